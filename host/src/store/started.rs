//! The marks of suspects' runs: which message runs alone at which host, so that a host's end can be charged to it.
//!
//! A mark is a row that is committed before the run and goes with the run's own end. As long as the run goes on, its session
//! also holds a lock that ends with the session (PostgreSQL: an advisory lock; SQLite: a lock on a file beside the
//! database), so a mark whose lock is free tells of a run that ended without a word.
//!
//! **Invariant**: a mark is made, and charged for, only under its lock.

use super::{Connection, StoreError, Tx};
use crate::message::{ComponentDigest, FailureClass, MessageId};

/// What asking for a suspect's run found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The run may begin: it is marked, and this connection holds its lock.
    Mine,
    /// A run goes on elsewhere. On SQLite it may be another message's.
    Elsewhere,
    /// An earlier run ended with its host. This connection holds the lock; the mark is still there.
    Left {
        /// The process that ran it.
        host: String,
        /// By the database's clock.
        started_at: String,
    },
}

/// A failed run of a suspect that is to be charged.
#[derive(Clone, Copy, Debug)]
pub struct MarkedFailure<'a> {
    /// The claim's key.
    pub consumer: &'a str,
    /// The message's.
    pub id: &'a MessageId,
    /// The process that ran it: this one, or the one that ended.
    pub host: &'a str,
    /// The reason class.
    pub class: FailureClass,
    /// In words; any text.
    pub error: &'a str,
    /// Which code ran.
    pub component: Option<ComponentDigest>,
}

/// Outside a transaction. After an error the connection must be closed, which frees the lock.
impl Connection {
    /// Marks a suspect's run by the process `host`, unless one goes on elsewhere or ended with its host. A mark that the
    /// same process left behind, because it lost its connection, becomes this run's.
    ///
    /// # Errors
    /// As `StoreError` says; the mark may be there.
    pub async fn mark_started(
        &mut self,
        consumer: &str,
        id: &MessageId,
        host: &str,
    ) -> Result<Mark, StoreError> {
        match self {
            Self::Postgres(session) => session.mark_started(consumer, id, host).await,
            Self::Sqlite(session) => session.mark_started(consumer, id, host).await,
        }
    }

    /// Removes the mark of `host`'s run if it is still there, and frees the lock: the run ended, and is charged to nobody.
    ///
    /// # Errors
    /// As `StoreError` says; the mark may be there.
    pub async fn unmark_started(
        &mut self,
        consumer: &str,
        id: &MessageId,
        host: &str,
    ) -> Result<(), StoreError> {
        match self {
            Self::Postgres(session) => session.unmark_started(consumer, id, host).await,
            Self::Sqlite(session) => session.unmark_started(consumer, id, host).await,
        }
    }

    /// Records the failure and removes the mark, in one transaction. If the mark is gone, the run was charged by another host
    /// that took it for ended, and nothing is recorded. Returns the number of failures charged so far.
    ///
    /// # Errors
    /// As `StoreError` says. Call it again, on any connection: no run is charged twice.
    pub async fn charge_started(&mut self, failure: &MarkedFailure<'_>) -> Result<u32, StoreError> {
        match self {
            Self::Postgres(session) => session.charge_started(failure).await,
            Self::Sqlite(session) => session.charge_started(failure).await,
        }
    }

    /// Removes every mark of the process `host`: it is stopped, and what it still runs is not to blame.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn unmark_process(&mut self, host: &str) -> Result<(), StoreError> {
        match self {
            Self::Postgres(session) => session.unmark_process(host).await,
            Self::Sqlite(session) => session.unmark_process(host).await,
        }
    }

    /// Removes the marks of messages that are processed or dead: such a run ended with its host, and the message was then run
    /// by one that did not suspect it.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn sweep_started(&mut self, consumer: &str) -> Result<(), StoreError> {
        match self {
            Self::Postgres(session) => session.sweep_started(consumer).await,
            Self::Sqlite(session) => session.sweep_started(consumer).await,
        }
    }

    /// Counts a start of a host for the first `limit` due rows of a queue. Rows that are in hand elsewhere may be left out.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn see_queue(&mut self, queue: &str, limit: u32) -> Result<(), StoreError> {
        match self {
            Self::Postgres(session) => session.see_queue(queue, limit).await,
            Self::Sqlite(session) => session.see_queue(queue, limit).await,
        }
    }
}

impl Tx {
    /// Removes the marks of messages whose runs end with this transaction.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn unmark_started(
        &mut self,
        consumer: &str,
        ids: &[&MessageId],
    ) -> Result<(), StoreError> {
        match self.connection() {
            Connection::Postgres(session) => session.unmark_started_in_tx(consumer, ids).await,
            Connection::Sqlite(session) => session.unmark_started_in_tx(consumer, ids).await,
        }
    }
}
