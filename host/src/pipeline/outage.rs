//! What a handler's log, and the host's health, say of a database that is in the way.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::HandlerContext;
use crate::health::Part;
use crate::store::StoreError;
use crate::text::one_line;

/// The shortest time between two lines of one handler, however many lanes it has.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// What a handler's log said; one for all its lanes.
#[derive(Debug, Default)]
pub(super) struct OutageLog(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    last_line: Option<Instant>,
    is_paused: bool,
}

impl OutageLog {
    /// True if a line about a pause is due, which is written then.
    fn is_due(&self) -> bool {
        let mut told = self.lock();
        let is_due = told
            .last_line
            .is_none_or(|last| last.elapsed() >= LINE_EVERY);
        if is_due {
            told.last_line = Some(Instant::now());
            told.is_paused = true;
        }
        is_due
    }

    /// Ends the pause. True if a line told of it.
    fn is_over(&self) -> bool {
        std::mem::take(&mut self.lock().is_paused)
    }

    /// Nothing panics with the lock held, and each change is whole.
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the database is in the way of one lane.
pub(super) struct Outage {
    store: Part,
    lasts: bool,
}

impl Outage {
    pub(super) fn new(store: Part) -> Self {
        Self {
            store,
            lasts: false,
        }
    }

    /// Says that the database is in the way: the log once a second at most.
    pub(super) fn note(&mut self, handler: &HandlerContext, why: &StoreError) {
        // Ordinary on a busy database.
        if let StoreError::Busy(text) = why {
            tracing::debug!(handler = %handler.name, why = %one_line(text), "running again");
            return;
        }
        let why = why.to_string();
        self.lasts = true;
        self.store.down(&why);
        if handler.outage.is_due() {
            tracing::warn!(handler = %handler.name, why = %one_line(&why), "paused");
        }
    }

    /// Says that it is not, or no more: the log if it told of it.
    pub(super) fn over(&mut self, handler: &HandlerContext) {
        if std::mem::take(&mut self.lasts) {
            self.store.up();
            if handler.outage.is_over() {
                tracing::info!(handler = %handler.name, "resumed");
            }
        }
    }
}
