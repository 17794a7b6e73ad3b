//! What a handler has done, counted in memory until it is flushed to the store.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::Counters;

/// Counts that were not flushed yet.
#[derive(Debug, Default)]
pub struct LiveCounters {
    claimed: AtomicU64,
    duplicates: AtomicU64,
    retried: AtomicU64,
    rolled_back: AtomicU64,
    dead: AtomicU64,
}

impl LiveCounters {
    pub(super) fn settled(&self, claimed: u64, duplicates: u64) {
        self.claimed.fetch_add(claimed, Ordering::Relaxed);
        self.duplicates.fetch_add(duplicates, Ordering::Relaxed);
    }

    pub(super) fn retried(&self) {
        self.retried.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn rolled_back(&self) {
        self.rolled_back.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn dead(&self, messages: u64) {
        self.dead.fetch_add(messages, Ordering::Relaxed);
    }

    /// Takes what was counted since the last call. Give it back with `put_back` if it could not be flushed.
    pub fn take(&self) -> Counters {
        Counters {
            claimed: self.claimed.swap(0, Ordering::Relaxed),
            duplicates: self.duplicates.swap(0, Ordering::Relaxed),
            retried: self.retried.swap(0, Ordering::Relaxed),
            rolled_back: self.rolled_back.swap(0, Ordering::Relaxed),
            dead: self.dead.swap(0, Ordering::Relaxed),
        }
    }

    /// Counts what `take` took once more.
    pub fn put_back(&self, counters: &Counters) {
        self.claimed.fetch_add(counters.claimed, Ordering::Relaxed);
        self.duplicates
            .fetch_add(counters.duplicates, Ordering::Relaxed);
        self.retried.fetch_add(counters.retried, Ordering::Relaxed);
        self.rolled_back
            .fetch_add(counters.rolled_back, Ordering::Relaxed);
        self.dead.fetch_add(counters.dead, Ordering::Relaxed);
    }
}
