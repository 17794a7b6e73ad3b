//! Deliveries in the stream's order, across hosts (`order_by`).
//!
//! The durable's priority group gives messages to one host at a time. When that changes, and after anything else that may have
//! left a hole in what this host got, earlier deliveries may be with another host, or on their way again: then newer ones are
//! held here until all that was delivered before is settled. A delivery that is held is handed over when nothing before it is
//! open any more: so redeliveries, which come late and in any order, run first and in theirs.
//!
//! The consumer counts each delivery, so a number that is not the next one tells of a hole: a delivery that went to another
//! host, or was lost on the way.
//!
//! **Invariant**: while nothing is held back, every delivery before the last one is settled or in this host's hands.

use std::collections::BTreeMap;

/// What this host knows of the order of its deliveries.
#[derive(Debug)]
pub(super) struct Epoch<T> {
    /// Not handed over yet, by sequence in the stream.
    held: BTreeMap<u64, Vec<T>>,
    is_settling: bool,
    /// The consumer's number of the first delivery since the hole that was nobody's before. All newer ones came here.
    first_new: Option<u64>,
    /// The consumer's number of the last delivery.
    last: Option<u64>,
}

impl<T> Default for Epoch<T> {
    fn default() -> Self {
        Self {
            held: BTreeMap::new(),
            is_settling: true,
            first_new: None,
            last: None,
        }
    }
}

/// Up to where everything that was delivered is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Floor {
    /// By the stream's sequence.
    pub(super) stream: u64,
    /// By the consumer's number of the first delivery.
    pub(super) consumer: u64,
}

impl<T> Epoch<T> {
    /// There may be a hole before what comes next.
    pub(super) fn begin(&mut self) {
        self.is_settling = true;
        self.first_new = None;
    }

    /// The stream was made anew. Returns what was held: it exists no more.
    pub(super) fn restart(&mut self) -> Vec<T> {
        let gone = std::mem::take(self);
        gone.held.into_values().flatten().collect()
    }

    /// A delivery came; `is_new` says that it was nobody's before. Returns it if it may be handed over.
    pub(super) fn arrive(
        &mut self,
        consumer_sequence: u64,
        stream_sequence: u64,
        is_new: bool,
        item: T,
    ) -> Option<T> {
        if self.last.and_then(|last| last.checked_add(1)) != Some(consumer_sequence) {
            self.begin();
        }
        self.last = Some(consumer_sequence);
        if !self.is_settling {
            return Some(item);
        }
        if is_new && self.first_new.is_none() {
            self.first_new = Some(consumer_sequence);
        }
        self.held.entry(stream_sequence).or_default().push(item);
        None
    }

    /// Returns the sequence of the first delivery that is held.
    pub(super) fn first_held(&self) -> Option<u64> {
        self.held.first_key_value().map(|(sequence, _)| *sequence)
    }

    /// True while newer deliveries have to wait for older ones.
    pub(super) fn is_settling(&self) -> bool {
        self.is_settling
    }

    /// Returns what may be handed over now that all up to `floor` is settled, in order.
    pub(super) fn settled(&mut self, floor: Floor) -> Vec<T> {
        let is_over = self
            .first_new
            .is_some_and(|first| floor.consumer.saturating_add(1) >= first);
        let later = if is_over {
            self.is_settling = false;
            self.first_new = None;
            BTreeMap::new()
        } else {
            // The one right after the floor, and copies of what is settled.
            self.held.split_off(&floor.stream.saturating_add(2))
        };
        let free = std::mem::replace(&mut self.held, later);
        free.into_values().flatten().collect()
    }

    /// Takes all that is held.
    pub(super) fn clear(&mut self) -> Vec<T> {
        std::mem::take(&mut self.held)
            .into_values()
            .flatten()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floor(stream: u64, consumer: u64) -> Floor {
        Floor { stream, consumer }
    }

    #[test]
    fn newer_deliveries_wait_for_redeliveries_that_come_late() {
        let mut epoch = Epoch::default();
        // 1 to 3 are with another host that died: 6 to 7 come first.
        assert_eq!(epoch.arrive(4, 6, true, "6"), None);
        assert_eq!(epoch.arrive(5, 7, true, "7"), None);
        assert_eq!(epoch.settled(floor(0, 0)), [""; 0]);
        assert_eq!(epoch.arrive(6, 3, false, "3"), None);
        assert_eq!(epoch.arrive(7, 1, false, "1"), None);
        assert_eq!(epoch.arrive(8, 2, false, "2"), None);
        assert_eq!(epoch.first_held(), Some(1));
        assert_eq!(epoch.settled(floor(0, 0)), ["1"]);
        assert_eq!(epoch.settled(floor(0, 0)), [""; 0]);
        assert_eq!(epoch.settled(floor(1, 1)), ["2"]);
        assert_eq!(epoch.settled(floor(2, 2)), ["3"]);
        // The consumer's floor jumps to what the first new delivery follows.
        assert_eq!(epoch.settled(floor(5, 3)), ["6", "7"]);
        assert!(!epoch.is_settling());
        assert_eq!(epoch.arrive(9, 8, true, "8"), Some("8"));
        // A late copy of what this host has in its hands.
        assert_eq!(epoch.arrive(10, 7, false, "7"), Some("7"));
    }

    #[test]
    fn a_hole_in_the_numbers_begins_anew() {
        let mut epoch = Epoch::default();
        assert_eq!(epoch.arrive(1, 1, true, 1), None);
        assert_eq!(epoch.settled(floor(0, 0)), [1]);
        assert_eq!(epoch.arrive(2, 2, true, 2), Some(2));
        assert_eq!(epoch.arrive(4, 4, true, 4), None);
        assert_eq!(epoch.arrive(5, 5, true, 5), None);
        // Another hole: what was new before may stand behind it.
        assert_eq!(epoch.arrive(8, 9, true, 9), None);
        assert_eq!(epoch.settled(floor(2, 3)), [0; 0]);
        assert_eq!(epoch.settled(floor(3, 3)), [4]);
        assert_eq!(epoch.settled(floor(8, 7)), [5, 9]);
        epoch.begin();
        assert_eq!(epoch.arrive(9, 10, true, 10), None);
        assert_eq!(epoch.restart(), [10]);
        assert_eq!(epoch.arrive(10, 1, true, 1), None);
    }
}
