//! What the callbacks inside SQLite share with the session.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the callbacks inside SQLite share with the session.
#[derive(Debug)]
pub(super) struct Hooks {
    /// A transaction is open that only the host may end.
    pub(super) guarded: AtomicBool,
    /// The statement that is prepared or run is a handler's.
    pub(super) in_handler: AtomicBool,
    /// A handler may make, change and drop tables.
    pub(super) allow_ddl: AtomicBool,
    /// It ended, and not by the host.
    pub(super) ended: AtomicBool,
    /// The session was dropped.
    pub(super) dropped: AtomicBool,
    pub(super) started: Instant,
    /// When the statement that runs must have ended, in microseconds after `started`; 0 for never.
    pub(super) deadline: AtomicU64,
}

impl Hooks {
    pub(super) fn new() -> Self {
        Self {
            guarded: AtomicBool::new(false),
            in_handler: AtomicBool::new(false),
            allow_ddl: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            started: Instant::now(),
            deadline: AtomicU64::new(0),
        }
    }

    pub(super) fn set_deadline(&self, timeout: Option<Duration>) {
        let at = timeout.map_or(0, |timeout| self.microseconds_after(timeout).max(1));
        self.deadline.store(at, Ordering::SeqCst);
    }

    pub(super) fn microseconds_after(&self, timeout: Duration) -> u64 {
        u64::try_from((self.started.elapsed() + timeout).as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn may_go_on(&self) -> bool {
        if self.dropped.load(Ordering::SeqCst) {
            return false;
        }
        match self.deadline.load(Ordering::SeqCst) {
            0 => true,
            deadline => self.microseconds_after(Duration::ZERO) < deadline,
        }
    }
}
