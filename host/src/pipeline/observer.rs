//! Telling somebody of every batch that was settled.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What became of the messages of one batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledBatch {
    /// The handler's name.
    pub handler: String,
    /// Messages that took effect.
    pub claimed: u64,
    /// Deliveries that are acknowledged without running the handler.
    pub duplicates: u64,
}

/// Is told of each batch between its commit and its acknowledgement, so that a host that dies later has told it already.
///
/// It is called on the lane's way, and is done before the batch goes on: it must be quick.
#[derive(Clone)]
pub struct BatchObserver(Arc<dyn Fn(&SettledBatch) + Send + Sync>);

impl BatchObserver {
    /// Makes an observer of a function.
    pub fn new(observe: impl Fn(&SettledBatch) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(super) fn tell(&self, batch: &SettledBatch) {
        (self.0)(batch);
    }
}

impl fmt::Debug for BatchObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchObserver").finish_non_exhaustive()
    }
}
