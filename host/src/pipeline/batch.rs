//! How many messages go into one transaction, and how a batch is taken apart when it can't be committed as it is.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::process::Member;

/// The number of messages that a handler's batches may have, between 1 and `batch.max`: it follows what was measured, so
/// that locks are not held longer than `batch.max_hold`.
#[derive(Debug)]
pub(super) struct BatchSizes {
    max: usize,
    now: AtomicUsize,
}

impl BatchSizes {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            now: AtomicUsize::new(max),
        }
    }

    /// Returns how many messages the next batch may have.
    pub(super) fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// A batch of `size` held its locks for `held`: grow if there is room, shrink if it was too long.
    pub(super) fn committed(&self, size: usize, held: Duration, max_hold: Duration) {
        let now = self.now();
        if held > max_hold {
            self.now
                .store((size / 2).clamp(1, self.max), Ordering::Relaxed);
        } else if size >= now && held < max_hold / 4 {
            self.now
                .store(now.saturating_mul(2).min(self.max), Ordering::Relaxed);
        }
    }

    /// Only `fitting` messages of a batch fitted.
    pub(super) fn too_long(&self, fitting: usize) {
        self.now
            .store(fitting.clamp(1, self.max), Ordering::Relaxed);
    }
}

/// Cuts `members` into batches in which no id occurs twice, in their order: a second message of an id waits for the
/// first one's batch, and is then a duplicate, a conflict, or the one that is tried next.
pub(super) fn without_twins(members: Vec<Member>) -> Vec<Vec<Member>> {
    let mut batches: Vec<Vec<Member>> = Vec::new();
    let mut seen: Vec<HashSet<String>> = Vec::new();
    for member in members {
        let id = member.message.id.as_str();
        let place = seen.iter().position(|ids| !ids.contains(id));
        match place {
            Some(place) => {
                seen[place].insert(id.to_owned());
                batches[place].push(member);
            }
            None => {
                seen.push(HashSet::from([id.to_owned()]));
                batches.push(vec![member]);
            }
        }
    }
    batches
}

/// Cuts a batch that was in somebody's way into two halves.
pub(super) fn halves(mut batch: Vec<Member>) -> [Vec<Member>; 2] {
    let second = batch.split_off(batch.len() / 2);
    [batch, second]
}

/// Cuts a batch around the member that failed: those before it, it alone, those after it.
pub(super) fn around(mut batch: Vec<Member>, index: usize) -> [Vec<Member>; 3] {
    let after = batch.split_off(index + 1);
    let alone = batch.split_off(index);
    [batch, alone, after]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_time_that_locks_are_held() {
        let sizes = BatchSizes::new(100);
        let max_hold = Duration::from_millis(100);
        sizes.too_long(3);
        assert_eq!(sizes.now(), 3);
        // Full and fast: more. Not full: nothing is known. Too long: half.
        sizes.committed(3, Duration::from_millis(10), max_hold);
        assert_eq!(sizes.now(), 6);
        sizes.committed(2, Duration::from_millis(1), max_hold);
        assert_eq!(sizes.now(), 6);
        sizes.committed(6, Duration::from_millis(150), max_hold);
        assert_eq!(sizes.now(), 3);
        sizes.too_long(0);
        assert_eq!(sizes.now(), 1);
        for _ in 0..20 {
            sizes.committed(100, Duration::ZERO, max_hold);
        }
        assert_eq!(sizes.now(), 100);
    }
}
