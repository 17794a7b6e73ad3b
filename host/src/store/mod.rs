//! The database room: connections, the delivery's transaction, claims, dead letters, outbox and queue rows.
//!
//! **Invariant**: nothing outside this room knows sqlx or writes SQL of hapax's own.
//! **Invariant**: a connection is bare and has one owner; there is no pool, and nothing here is raced against a timeout.

mod session;
mod tx;
mod value;

pub(crate) use session::Session;
pub use session::{
    Attempt, Claim, ClaimAs, ClaimRequest, CommitError, Counters, DeadLetter, HandlerMigration,
    NewQueueRow, OutboxRow, QueueRow, SessionOptions, StoreError,
};
pub use tx::{Committed, Ended, Parked, Settled, Tx};
pub use value::{Column, ResultSet, SqlError, Value};

/// One bare connection to either database.
#[derive(Debug)]
pub enum Connection {
    // Postgres(Box<postgres::PostgresSession>), Sqlite(Box<sqlite::SqliteSession>)
}
