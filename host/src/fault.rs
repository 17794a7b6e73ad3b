//! Named points on the way of a message at which the process can be made to die, for tests and the demo.
//!
//! `HAPAX_FAULT_POINT=after-commit:3` kills the process with SIGKILL when it reaches `after-commit` for the third
//! time; before that it writes the point's name to the file `HAPAX_FAULT_FILE`, so that a test can prove where it died.

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The points, in the order in which a message passes them.
pub const POINTS: [&str; 8] = [
    "after-fetch",
    "after-claim",
    "after-first-sql",
    "after-handler",
    "before-commit",
    "after-commit",
    "before-ack",
    "after-ack",
];

struct Armed {
    point: String,
    passes_left: AtomicU64,
    file: Option<std::path::PathBuf>,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

/// Reads the environment. Call once at start; until then no point does anything.
///
/// # Errors
/// Says which variable holds what it can't.
pub fn arm_from_environment() -> Result<(), String> {
    let armed = match std::env::var("HAPAX_FAULT_POINT") {
        Err(_) => None,
        Ok(text) => {
            let (point, passes) = match text.split_once(':') {
                None => (text.as_str(), 1),
                Some((point, count)) => match count.parse::<u64>() {
                    Ok(passes) if passes > 0 => (point, passes),
                    _ => {
                        return Err(format!(
                            "`HAPAX_FAULT_POINT`: `{count}` is not a count from 1"
                        ));
                    }
                },
            };
            if !POINTS.contains(&point) {
                return Err(format!(
                    "`HAPAX_FAULT_POINT`: there is no point `{point}`; the points are {}",
                    POINTS.join(", ")
                ));
            }
            Some(Armed {
                point: point.to_owned(),
                passes_left: AtomicU64::new(passes),
                file: std::env::var_os("HAPAX_FAULT_FILE").map(Into::into),
            })
        }
    };
    let _ = ARMED.set(armed);
    Ok(())
}

/// Dies here, if this point is armed and reached for the n-th time.
pub fn point(name: &str) {
    if let Some(Some(armed)) = ARMED.get()
        && armed.point == name
        && armed.passes_left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        die(armed);
    }
}

fn die(armed: &Armed) -> ! {
    if let Some(path) = &armed.file
        && let Ok(mut file) = std::fs::File::create(path)
    {
        let _ = file.write_all(armed.point.as_bytes());
        let _ = file.sync_all();
    }
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // SIGKILL may take a moment to arrive; nothing more may happen until then.
    loop {
        std::thread::park();
    }
}
