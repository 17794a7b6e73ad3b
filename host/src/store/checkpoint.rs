//! Reconciliation: up to where what the broker counts as done is known to be claimed here.
//!
//! **Invariant**: a checkpoint says what this database holds. It goes back and forth with it: a restored one is as old as the claims.

use std::future::Future;

use super::connection::each;
use super::{Connection, Session, StoreError};
use crate::message::MessageId;

/// Up to where a consumer's acknowledged messages are known to be claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The stream's name and creation time, as in positions.
    pub stream: String,
    /// The number of a message in it; 0 before the first.
    pub sequence: u64,
}

impl Checkpoint {
    /// Takes over a row: SQL's integers are signed.
    pub(super) fn of((stream, sequence): (String, i64)) -> Self {
        Self {
            stream,
            sequence: u64::try_from(sequence).unwrap_or(0),
        }
    }
}

/// What both databases offer for reconciliation beside `Session`, whose rules hold here too. Outside a transaction.
pub(crate) trait CheckpointSession: Session {
    fn checkpoint(
        &mut self,
        consumer: &str,
    ) -> impl Future<Output = Result<Option<Checkpoint>, StoreError>> + Send;

    fn set_checkpoint(
        &mut self,
        consumer: &str,
        checkpoint: &Checkpoint,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    fn without_claim(
        &mut self,
        consumer: &str,
        ids: &[MessageId],
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;
}

impl Connection {
    /// Returns the consumer's checkpoint, `None` before its first.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn checkpoint(&mut self, consumer: &str) -> Result<Option<Checkpoint>, StoreError> {
        each!(self, session => session.checkpoint(consumer))
    }

    /// Writes the consumer's checkpoint, whatever it was.
    ///
    /// # Errors
    /// As `StoreError` says; it is as it was, unless the connection was lost.
    pub async fn set_checkpoint(
        &mut self,
        consumer: &str,
        checkpoint: &Checkpoint,
    ) -> Result<(), StoreError> {
        each!(self, session => session.set_checkpoint(consumer, checkpoint))
    }

    /// Returns those of `ids` that are neither claimed, be it as done or dead, nor carried by hapax itself (waiting for a retry).
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn without_claim(
        &mut self,
        consumer: &str,
        ids: &[MessageId],
    ) -> Result<Vec<String>, StoreError> {
        each!(self, session => session.without_claim(consumer, ids))
    }
}
