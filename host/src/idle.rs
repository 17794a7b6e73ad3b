//! Whether everything in this process has nothing to do, so that all of it can end together.
//!
//! A handler may publish what another one handles: so none ends as long as any may still make work.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who has nothing to do.
#[derive(Debug, Default)]
pub struct IdleBoard {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Grows with each piece of work: who looked before has to look again.
    work: u64,
    /// `None` where the seat was left.
    idle: Vec<Option<bool>>,
    /// Once all were idle at the same time, they stay so.
    is_over: bool,
}

/// One who may have work.
#[derive(Debug)]
pub struct Seat {
    board: Arc<IdleBoard>,
    number: usize,
}

impl IdleBoard {
    /// Returns a seat for one more, who counts as busy until it is dropped. All seats are taken before the first of them looks; who
    /// takes another's place takes its own seat first.
    pub fn seat(self: &Arc<Self>) -> Seat {
        let mut state = self.lock();
        state.idle.push(Some(false));
        Seat {
            board: Arc::clone(self),
            number: state.idle.len() - 1,
        }
    }

    /// Tells that there is work, or may be.
    pub fn busy(&self) {
        let mut state = self.lock();
        state.work += 1;
        for idle in state.idle.iter_mut().flatten() {
            *idle = false;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics with the lock held, and each change is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Returns how much work there has been. Ask before looking for some.
    pub fn work(&self) -> u64 {
        self.board.lock().work
    }

    /// Tells that there is work, or may be.
    pub fn busy(&self) {
        self.board.busy();
    }

    /// Tells that a look, begun after `work` was asked for, found nothing. True if nobody has anything to do any more.
    pub fn found_nothing(&self, work: u64) -> bool {
        let mut state = self.board.lock();
        if state.work == work
            && let Some(idle) = state.idle.get_mut(self.number)
        {
            *idle = Some(true);
        }
        state.is_over |= state.idle.iter().flatten().all(|idle| *idle);
        state.is_over
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(idle) = self.board.lock().idle.get_mut(self.number) {
            *idle = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_left_is_not_waited_for() {
        let board = Arc::new(IdleBoard::default());
        let (one, two) = (board.seat(), board.seat());
        assert!(!one.found_nothing(one.work()));
        let after_it = board.seat();
        drop(two);
        assert!(!one.found_nothing(one.work()));
        drop(after_it);
        assert!(one.found_nothing(one.work()));
    }

    #[test]
    fn all_end_together_and_nobody_before() {
        let board = Arc::new(IdleBoard::default());
        let (one, two) = (board.seat(), board.seat());
        assert!(!one.found_nothing(one.work()));
        // Work came up while the other one looked.
        let before = two.work();
        one.busy();
        assert!(!two.found_nothing(before));
        assert!(!two.found_nothing(two.work()));
        assert!(one.found_nothing(one.work()));
        // What comes from outside now is for the next start.
        one.busy();
        assert!(two.found_nothing(two.work()));
    }
}
