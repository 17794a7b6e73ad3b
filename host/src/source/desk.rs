//! Where a source's own task lays down what it fetched, and where `Source::next` picks it up.
//!
//! The task, not the caller, talks to the broker or the database: so the caller may drop `next` at any time, and no
//! call to a database is ever cut off in the middle.
//!
//! **Invariant**: nothing is fetched that nobody asked for; what was fetched stays here until it is taken.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::Notify;

use super::{Delivery, SourceError};
use crate::health::Part;

/// Locks `mutex`; nothing that runs under these locks can panic halfway through a change.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place between one fetching task and one caller of `next`.
#[derive(Default)]
pub(super) struct Desk {
    state: Mutex<State>,
    /// The caller asked for something.
    asked: Notify,
    /// Deliveries or an error were laid down, or the desk was closed.
    answered: Notify,
    /// Is told whether the source can be reached.
    part: OnceLock<Part>,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Delivery>,
    error: Option<SourceError>,
    /// How many deliveries a caller waits for; stays when that caller gives up waiting.
    wanted: usize,
    closed: bool,
}

impl Desk {
    /// Takes what lies here, at most `max`; waits until there is something.
    ///
    /// Cancellation: may be dropped while it waits; what it asked for will lie here for the next call.
    ///
    /// # Errors
    /// What the fetching task reported, once; `Unusable` when it has ended.
    pub(super) async fn next(&self, max: usize) -> Result<Vec<Delivery>, SourceError> {
        let max = max.max(1);
        loop {
            {
                let mut state = lock(&self.state);
                if !state.ready.is_empty() {
                    let count = max.min(state.ready.len());
                    return Ok(state.ready.drain(..count).collect());
                }
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
                if state.closed {
                    return Err(SourceError::Unusable("the source was closed".into()));
                }
                state.wanted = max;
            }
            self.asked.notify_one();
            self.answered.notified().await;
        }
    }

    /// Returns how many deliveries a caller waits for.
    pub(super) fn wanted(&self) -> usize {
        lock(&self.state).wanted
    }

    /// Waits until a caller asks; `wanted` may have been above 0 before.
    ///
    /// Cancellation: may be dropped.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Lays a delivery down without waking the caller: more may follow at once.
    pub(super) fn lay_down(&self, delivery: Delivery) {
        lock(&self.state).ready.push_back(delivery);
    }

    /// Wakes the caller if something lies here.
    pub(super) fn hand_over(&self) {
        let mut state = lock(&self.state);
        if !state.ready.is_empty() {
            state.wanted = 0;
            self.answered.notify_one();
        }
    }

    /// Answers the caller with an error.
    pub(super) fn fail(&self, error: SourceError) {
        if let Some(part) = self.part.get() {
            part.down(&error.to_string());
        }
        let mut state = lock(&self.state);
        state.wanted = 0;
        state.error = Some(error);
        self.answered.notify_one();
    }

    /// Has `part` told whether the source can be reached. The first one counts.
    pub(super) fn report_to(&self, part: Part) {
        // An error means that there is one already.
        let _ = self.part.set(part);
    }

    /// Says that the source was reached.
    pub(super) fn is_reached(&self) {
        if let Some(part) = self.part.get() {
            part.up();
        }
    }

    /// Ends the desk: the fetching task is gone.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.wanted = 0;
        state.closed = true;
        self.answered.notify_one();
    }

    /// Takes everything that lies here.
    pub(super) fn clear(&self) -> Vec<Delivery> {
        lock(&self.state).ready.drain(..).collect()
    }
}

/// Closes the desk when the fetching task ends, however it ends: the caller must not wait for ever.
pub(super) struct CloseOnDrop<'a>(pub(super) &'a Desk);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
