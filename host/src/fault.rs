//! Named points on the way of a message at which the process can be made to die, for tests and the demo.
//!
//! `HAPAX_FAULT_POINT=after-commit:3` kills the process with SIGKILL when it reaches `after-commit` for the third
//! time; before that it writes the point's name to the file `HAPAX_FAULT_FILE`, so that a test can prove where it died.
//!
//! With `HAPAX_FAULT_MESSAGE=ID` only passes with that message count (at `after-first-sql`, `after-handler` and `before-ack`).
//! `HAPAX_FAULT_ACTION` says what happens: `kill`, `stop` (SIGSTOP; goes on after a SIGCONT) or `panic`.
//!
//! `HAPAX_FAULT_RETRY=0.05:7` fails every twentieth call of a handler, on average, as if it had asked for a retry. Which ones
//! follows from the seed 7, the message and its attempt: what failed in a batch fails alone, too, and is charged. `HAPAX_FAULT_CALLS` names a file to which a line is added for each call of a handler, also of those
//! that are rolled back (`call TRANSACTION MESSAGE-ID ATTEMPT`), and one for each commit (`commit TRANSACTION`).

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::message::{MessageId, ShortHash};

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

/// Where `hapax rewind` can die: between the end of the old durable and the new one.
const POINT_REWIND: &str = "rewind";

/// Where a request at the admin address can be made to panic: before its route.
pub(crate) const POINT_ADMIN: &str = "admin-request";

/// The relay's points, in the order in which what a handler published passes them.
pub const RELAY_POINTS: [&str; 4] = [
    "relay-before-publish",
    "relay-after-publish",
    "relay-before-mark",
    "relay-after-mark",
];

/// A deployment's points: before and after it is recorded by the host that was asked, and around the change of components on each host.
pub const DEPLOY_POINTS: [&str; 4] = [
    "deploy-before-record",
    "deploy-after-record",
    "deploy-before-swap",
    "deploy-after-swap",
];

/// What happens at an armed point.
#[derive(Clone, Copy)]
enum Action {
    Kill,
    Stop,
    Panic,
}

struct Armed {
    point: String,
    passes_left: AtomicU64,
    /// Only passes with this message count.
    message_id: Option<String>,
    action: Action,
    file: Option<std::path::PathBuf>,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
static FAILING: OnceLock<Failing> = OnceLock::new();
static CALLS: OnceLock<std::fs::File> = OnceLock::new();

struct Failing {
    probability: f64,
    seed: u64,
}

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
            let known = [
                &POINTS[..],
                &RELAY_POINTS,
                &DEPLOY_POINTS,
                &[POINT_REWIND, POINT_ADMIN],
            ]
            .concat();
            if !known.contains(&point) {
                return Err(format!(
                    "`HAPAX_FAULT_POINT`: there is no point `{point}`; the points are {}",
                    known.join(", ")
                ));
            }
            let action = match std::env::var("HAPAX_FAULT_ACTION").as_deref() {
                Err(_) | Ok("kill") => Action::Kill,
                Ok("stop") => Action::Stop,
                Ok("panic") => Action::Panic,
                Ok(other) => {
                    return Err(format!(
                        "`HAPAX_FAULT_ACTION`: there is no action `{other}`; the actions are kill, stop, panic"
                    ));
                }
            };
            Some(Armed {
                point: point.to_owned(),
                passes_left: AtomicU64::new(passes),
                message_id: std::env::var("HAPAX_FAULT_MESSAGE").ok(),
                action,
                file: std::env::var_os("HAPAX_FAULT_FILE").map(Into::into),
            })
        }
    };
    let _ = ARMED.set(armed);
    if let Ok(text) = std::env::var("HAPAX_FAULT_RETRY") {
        let failing = text
            .split_once(':')
            .and_then(|(probability, seed)| {
                Some((probability.parse::<f64>().ok()?, seed.parse().ok()?))
            })
            .filter(|(probability, _)| (0.0..=1.0).contains(probability));
        let Some((probability, seed)) = failing else {
            return Err(format!(
                "`HAPAX_FAULT_RETRY`: `{text}` is not a probability and a seed, such as `0.05:7`"
            ));
        };
        let _ = FAILING.set(Failing { probability, seed });
    }
    if let Some(path) = std::env::var_os("HAPAX_FAULT_CALLS") {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|error| {
                format!("`HAPAX_FAULT_CALLS`: `{}`: {error}", path.to_string_lossy())
            })?;
        let _ = CALLS.set(file);
    }
    Ok(())
}

/// True if this call of a handler is one of those that are to fail.
pub(crate) fn fails_this_call(message_id: &str, attempt: u32) -> bool {
    FAILING.get().is_some_and(|failing| {
        let seed = failing.seed.to_be_bytes();
        let hash = ShortHash::of(&[&seed, message_id.as_bytes(), &attempt.to_be_bytes()]).0;
        let drawn = u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]);
        f64::from(drawn) < failing.probability * f64::from(u32::MAX)
    })
}

/// Takes down the handler's calls of one transaction, if a test wants to know.
pub(crate) struct Calls {
    number: u64,
}

impl Calls {
    /// A transaction that is about to call its handler.
    pub(crate) fn begin() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The handler is about to be called.
    pub(crate) fn note(&self, message_id: &str, attempt: u32) {
        self.line("call", format_args!(" {message_id} {attempt}"));
    }

    /// The transaction is committed.
    pub(crate) fn committed(&self) {
        self.line("commit", format_args!(""));
    }

    fn line(&self, what: &str, rest: std::fmt::Arguments<'_>) {
        if let Some(mut file) = CALLS.get() {
            // In one write: other hosts add to the same file.
            let line = format!("{what} {}-{}{rest}\n", std::process::id(), self.number);
            let _ = file.write_all(line.as_bytes());
        }
    }
}

/// Dies here, if this point is armed and reached for the n-th time.
pub fn point(name: &str) {
    reach(name, None);
}

/// As `point`, on the way of one message.
pub fn point_of(name: &str, id: &MessageId) {
    reach(name, Some(id));
}

fn reach(name: &str, id: Option<&MessageId>) {
    let Some(Some(armed)) = ARMED.get() else {
        return;
    };
    let is_meant = armed
        .message_id
        .as_deref()
        .is_none_or(|meant| id.is_some_and(|id| id.as_str() == meant));
    if armed.point == name && is_meant && armed.passes_left.fetch_sub(1, Ordering::SeqCst) == 1 {
        tell(armed);
        match armed.action {
            Action::Kill => die(),
            Action::Stop => stop(),
            Action::Panic => panic!("`HAPAX_FAULT_ACTION` says so"),
        }
    }
}

fn tell(armed: &Armed) {
    if let Some(path) = &armed.file
        && let Ok(mut file) = std::fs::File::create(path)
    {
        let _ = file.write_all(armed.point.as_bytes());
        let _ = file.sync_all();
    }
}

fn signal_itself(signal: rustix::process::Signal) {
    let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
}

fn stop() {
    signal_itself(rustix::process::Signal::STOP);
    // It takes a moment to arrive, too.
    std::thread::sleep(std::time::Duration::from_millis(100));
}

fn die() -> ! {
    signal_itself(rustix::process::Signal::KILL);
    // SIGKILL may take a moment to arrive; nothing more may happen until then.
    loop {
        std::thread::park();
    }
}
