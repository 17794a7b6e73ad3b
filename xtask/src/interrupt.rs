//! Ctrl-C and SIGTERM: servers are stopped and temporary folders removed before xtask ends.
//!
//! **Invariant**: a signal only sets a flag here. Whoever waits looks at it and returns an error, so that everything held on the
//! way out is dropped in order. A second signal ends xtask at once.

use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context as _, bail};
use tokio::signal::unix::{SignalKind, signal};

const NONE: u8 = 0;
const INTERRUPT: u8 = 1;
const TERMINATE: u8 = 2;

static SEEN: AtomicU8 = AtomicU8::new(NONE);

/// Starts to listen for signals, on a thread of its own.
pub(crate) fn install() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot listen for signals")?;
    let (mut interrupts, mut terminations) = {
        let _inside = runtime.enter();
        let listen = |kind: SignalKind| signal(kind).context("cannot listen for signals");
        (
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
        )
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                // Both branches only receive: what the losing one misses now, it receives in the next turn.
                let which = tokio::select! {
                    _ = interrupts.recv() => INTERRUPT,
                    _ = terminations.recv() => TERMINATE,
                };
                if SEEN.swap(which, Ordering::SeqCst) != NONE {
                    std::process::exit(130);
                }
            }
        });
    });
    Ok(())
}

/// Whether xtask was asked to end.
pub(crate) fn seen() -> bool {
    SEEN.load(Ordering::SeqCst) != NONE
}

/// Whether the signal went to xtask alone: a terminal sends Ctrl-C to all children too, `kill` does not.
pub(crate) fn children_unaware() -> bool {
    SEEN.load(Ordering::SeqCst) == TERMINATE
}

/// Returns an error once xtask was asked to end.
pub(crate) fn check() -> anyhow::Result<()> {
    if seen() {
        bail!("interrupted");
    }
    Ok(())
}
