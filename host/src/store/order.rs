//! What keeps messages of one key in order (`order_by`): rows of the embedded queue that wait, and keys with dead letters.
//!
//! **Invariant**: a row that was put off names its key. So a host that has a later row of the key in hand, and not this one,
//! finds it by asking for the key.

use std::time::Duration;

use super::{Connection, StoreError, Tx};

/// The first row of a key that was put off and is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueHead {
    /// The key.
    pub key: String,
    /// The row's number.
    pub number: i64,
    /// Until it is due, by the database's clock; zero if it is.
    pub wait: Duration,
}

/// A row of the embedded queue that is to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutOff {
    /// The row's number.
    pub number: i64,
    /// Of its message, if it has one.
    pub key: Option<String>,
    /// From now, by the database's clock; to the millisecond.
    pub wait: Duration,
}

impl PutOff {
    pub(super) fn wait_ms(&self) -> i64 {
        milliseconds(self.wait)
    }
}

/// The longest wait that the databases are asked to add to a moment: a century.
const WAIT_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

fn milliseconds(wait: Duration) -> i64 {
    i64::try_from(wait.min(WAIT_MAX).as_millis()).unwrap_or(i64::MAX)
}

pub(super) fn wait_of(milliseconds: i64) -> Duration {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0)).min(WAIT_MAX)
}

impl Tx {
    /// As `take_queue_rows`, but only rows that are due, and each that another transaction has locked is waited for: so
    /// what is not among the numbers returned is done, or waits and names its key.
    ///
    /// # Errors
    /// `Busy` if the wait ran out.
    pub async fn take_due_queue_rows(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        match &mut self.connection {
            Connection::Postgres(session) => session.take_due_queue_rows(numbers).await,
            Connection::Sqlite(session) => session.take_due_queue_rows(numbers).await,
        }
    }

    /// Returns, for each of `keys`, the first row of the queue that was put off and that this transaction has not taken.
    /// Keys without one are left out.
    ///
    /// Ask after the rows were taken: what was put off until then is seen.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn queue_heads(
        &mut self,
        queue: &str,
        keys: &[&str],
    ) -> Result<Vec<QueueHead>, StoreError> {
        match &mut self.connection {
            Connection::Postgres(session) => session.queue_heads(queue, keys).await,
            Connection::Sqlite(session) => session.queue_heads(queue, keys).await,
        }
    }

    /// Returns those of `keys` of which the consumer has dead letters.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn keys_with_dead_letters(
        &mut self,
        consumer: &str,
        keys: &[&str],
    ) -> Result<Vec<String>, StoreError> {
        match &mut self.connection {
            Connection::Postgres(session) => session.keys_with_dead_letters(consumer, keys).await,
            Connection::Sqlite(session) => session.keys_with_dead_letters(consumer, keys).await,
        }
    }
}

impl Connection {
    /// Puts rows of the embedded queue off, in a transaction of its own. Returns the numbers of those that are there; one
    /// that a transaction is taking is waited for.
    ///
    /// # Errors
    /// `Busy` if the wait ran out.
    pub async fn put_off_queue_rows(&mut self, rows: &[PutOff]) -> Result<Vec<i64>, StoreError> {
        match self {
            Self::Postgres(session) => session.put_off_queue_rows(rows).await,
            Self::Sqlite(session) => session.put_off_queue_rows(rows).await,
        }
    }
}
