//! Retention: deletes what is older than anybody needs, in bounded batches, each a transaction of its own.
//!
//! **Invariant**: ages are told by the database's clock alone.
//! **Invariant**: every batch finds its rows by an index, however large the table.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;

use super::connection::each;
use super::{Connection, Session, StoreError};
use crate::message::{Instant, MessageId};

/// Rows of one batch, at the most.
pub const PRUNE_BATCH_MAX: u32 = 1_000;
/// How much older than its window a claim must be, at the most: sources tell the time of a message by clocks of their own, which
/// may be off.
const MARGIN_MAX: Duration = Duration::from_secs(3_600);

/// Returns the age from which claims with this window may go. Above the window, so that no message whose claim is gone looks
/// young enough to run.
pub fn claims_go_after(window: Duration) -> Duration {
    window + window.min(MARGIN_MAX)
}

/// What else has an age beside claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// Charged failures of messages that never came back.
    Attempts,
    /// Marks of suspects' runs that nobody will ask for.
    Marks,
    /// Counters of hosts that are gone; they are added to those of the host with the empty name.
    Counters,
    /// Dead letters that are not queued for replay, if the operator wants that.
    DeadLetters,
}

impl Leftover {
    /// Returns the word for it in texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Marks => "marks",
            Self::Counters => "counters",
            Self::DeadLetters => "dead-letters",
        }
    }
}

/// Where the pruning of one consumer's claims has come to. Starts at the oldest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneCursor(pub(super) Option<String>);

/// What one batch did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrunedBatch {
    /// Rows that are gone.
    pub deleted: u64,
    /// Nothing as old is left, but what is kept.
    pub is_last: bool,
}

/// What may go, and what stays although it is as old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Prunable {
    /// Rows that may go.
    pub rows: u64,
    /// Claims of dead letters that still exist.
    pub kept: u64,
}

/// The size of the claims table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ClaimsSize {
    /// Of the table and its indexes.
    pub bytes: u64,
    /// Rows, of all consumers. On PostgreSQL the estimate of its statistics, if they have one.
    pub rows: u64,
}

/// What both databases offer for retention beside `Session`, whose rules hold here too.
pub(crate) trait PruneSession: Session {
    // Inside a transaction.

    /// Returns the database's time, at the last claim or now.
    fn now(&mut self) -> impl Future<Output = Result<Instant, StoreError>> + Send;

    /// Turns a claim of this transaction into one of a dead message.
    fn claim_died(
        &mut self,
        consumer: &str,
        id: &MessageId,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    // Outside a transaction: each is one of its own.

    /// Becomes the one that prunes, until `end_pruning`, the end of the session, or a minute without a batch. False: another is.
    fn begin_pruning(
        &mut self,
        process: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Lets others prune.
    fn end_pruning(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Deletes a batch of the consumer's claims that are older than `age`, oldest first, but none of a dead letter that exists.
    fn prune_claims(
        &mut self,
        consumer: &str,
        age: Duration,
        cursor: &mut PruneCursor,
    ) -> impl Future<Output = Result<PrunedBatch, StoreError>> + Send;

    /// Deletes a batch of what is older than `age`.
    fn prune_leftovers(
        &mut self,
        what: Leftover,
        age: Duration,
    ) -> impl Future<Output = Result<PrunedBatch, StoreError>> + Send;

    /// Counts what `prune_claims` would delete.
    fn prunable_claims(
        &mut self,
        consumer: &str,
        age: Duration,
    ) -> impl Future<Output = Result<Prunable, StoreError>> + Send;

    /// Counts what `prune_leftovers` would delete.
    fn prunable_leftovers(
        &mut self,
        what: Leftover,
        age: Duration,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Returns the age of the consumer's oldest claim, in seconds.
    fn oldest_claim(
        &mut self,
        consumer: &str,
    ) -> impl Future<Output = Result<Option<f64>, StoreError>> + Send;

    /// Returns the size of the claims table.
    fn claims_size(&mut self) -> impl Future<Output = Result<ClaimsSize, StoreError>> + Send;
}

/// Retention, outside a transaction.
impl Connection {
    pub(crate) async fn now(&mut self) -> Result<Instant, StoreError> {
        each!(self, session => session.now())
    }

    pub(super) async fn claim_died(
        &mut self,
        consumer: &str,
        id: &MessageId,
    ) -> Result<(), StoreError> {
        each!(self, session => session.claim_died(consumer, id))
    }

    /// Becomes the one that prunes, until `end_pruning`, the end of the connection, or a minute without a batch. False: another is.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn begin_pruning(&mut self, process: &str) -> Result<bool, StoreError> {
        each!(self, session => session.begin_pruning(process))
    }

    /// Lets others prune.
    ///
    /// # Errors
    /// As `StoreError` says; then the end of the connection does it, or a minute.
    pub async fn end_pruning(&mut self) -> Result<(), StoreError> {
        each!(self, session => session.end_pruning())
    }

    /// Deletes at most `PRUNE_BATCH_MAX` of the consumer's claims that are older than `age` by the database's clock, oldest first.
    /// The claim of a dead letter that still exists stays.
    ///
    /// # Errors
    /// As `StoreError` says; nothing is deleted, unless the connection was lost.
    pub async fn prune_claims(
        &mut self,
        consumer: &str,
        age: Duration,
        cursor: &mut PruneCursor,
    ) -> Result<PrunedBatch, StoreError> {
        each!(self, session => session.prune_claims(consumer, age, cursor))
    }

    /// Deletes at most `PRUNE_BATCH_MAX` rows of what is older than `age` by the database's clock.
    ///
    /// # Errors
    /// As `prune_claims`.
    pub async fn prune_leftovers(
        &mut self,
        what: Leftover,
        age: Duration,
    ) -> Result<PrunedBatch, StoreError> {
        each!(self, session => session.prune_leftovers(what, age))
    }

    /// Counts what `prune_claims` would delete in the end.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn prunable_claims(
        &mut self,
        consumer: &str,
        age: Duration,
    ) -> Result<Prunable, StoreError> {
        each!(self, session => session.prunable_claims(consumer, age))
    }

    /// Counts what `prune_leftovers` would delete in the end.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn prunable_leftovers(
        &mut self,
        what: Leftover,
        age: Duration,
    ) -> Result<u64, StoreError> {
        each!(self, session => session.prunable_leftovers(what, age))
    }

    /// Returns the age of the consumer's oldest claim in seconds, by the database's clock.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn oldest_claim(&mut self, consumer: &str) -> Result<Option<f64>, StoreError> {
        each!(self, session => session.oldest_claim(consumer))
    }

    /// Returns the size of the claims table.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn claims_size(&mut self) -> Result<ClaimsSize, StoreError> {
        each!(self, session => session.claims_size())
    }
}
