//! The database room: connections, the delivery's transaction, claims, dead letters, outbox and queue rows.
//!
//! **Invariant**: nothing outside this room knows sqlx or writes SQL of hapax's own.
//! **Invariant**: a connection is bare and has one owner; there is no pool, and nothing but its opening is raced against
//! a timeout.

mod ahead;
mod calendar;
mod catalogue;
mod checkpoint;
mod connection;
mod cursors;
mod deployments;
mod guard;
mod letters;
mod migrations;
mod order;
mod outbox;
mod postgres;
mod prune;
mod queue;
mod reach;
mod records;
mod rights;
mod savepoints;
mod scratch;
mod session;
mod sqlite;
mod started;
#[cfg(test)]
mod test_servers;
mod text;
mod tx;
mod value;

use std::fmt;
use std::path::PathBuf;

pub use ahead::{Early, Misled, Promises, Run};
pub use catalogue::{Filled, Table, TableColumn};
pub use checkpoint::Checkpoint;
pub use connection::Connection;
pub(crate) use cursors::CursorSession;
pub use cursors::{CURSORS_MAX, Cursor, FetchLimits};
pub use deployments::{
    Deploy, Deployed, Deployment, HostHandler, NewComponent, SeenHostHandler, WantedState,
};
pub(crate) use guard::{Reaches, Reading, differing_in, read as read_statement};
pub(crate) use letters::LetterSession;
pub use letters::{LetterFilter, LetterState, LetterSummary, Reburied, Replay, Restored};
pub use migrations::{check_handler_migrations, schema_version};
pub use order::{PutOff, QueueHead};
pub use outbox::{
    OutboxCounts, OutboxFilter, OutboxMarks, OutboxMessage, OutboxQuery, OutboxState,
    OutboxStranded, OutboxTaken, StoredOutboxRow,
};
pub use prune::{
    ClaimsSize, Leftover, PRUNE_BATCH_MAX, Prunable, PruneCursor, PrunedBatch, claims_go_after,
};
pub use reach::{Outlives, Reach, ReachedTable};
pub use rights::Rights;
pub use savepoints::{SAVEPOINTS_MAX, Savepoint};
pub use scratch::Scratch;
pub(crate) use session::Session;
pub use session::{
    Attempt, Baton, Claim, ClaimAs, ClaimRequest, CommitError, Counters, DeadLetter,
    HandlerMigration, NewQueueRow, OutboxRow, QueueRow, SessionOptions, StoreError,
    StoredDeadLetter,
};
pub use started::{Mark, MarkedFailure};
pub(crate) use text::{from_base64, instant_from_text, instant_to_text, to_base64};
pub use tx::{Committed, Ended, Parked, Settled, Tx};
pub use value::{Column, Date, Element, Interval, ResultSet, SqlError, Time, Timestamp, Value};

/// Which database a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// PostgreSQL, 14 or newer.
    Postgres,
    /// SQLite.
    Sqlite,
}

impl StoreKind {
    /// Returns the name of the folder that holds this database's migrations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
        }
    }
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Postgres => "PostgreSQL",
            Self::Sqlite => "SQLite",
        })
    }
}

/// The database that holds the claims and the handlers' tables: where it is, not a connection to it.
#[derive(Clone, Debug)]
pub struct Store {
    target: Target,
}

#[derive(Clone, Debug)]
enum Target {
    Postgres(Box<sqlx::postgres::PgConnectOptions>),
    Sqlite(PathBuf),
}

impl Store {
    /// Reads `url`: `postgres://user:password@host:port/database` or `sqlite:path`. Opens nothing.
    ///
    /// # Errors
    /// `Unusable`, saying what is wrong with the URL, without its password.
    pub fn open(url: &str) -> Result<Self, StoreError> {
        let target = if let Some(rest) = url.strip_prefix("sqlite:") {
            Target::Sqlite(sqlite::parse(rest)?)
        } else if url.starts_with("postgres:") || url.starts_with("postgresql:") {
            Target::Postgres(Box::new(postgres::parse(url)?))
        } else {
            let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
            return Err(StoreError::Unusable(format!(
                "the store's URL begins with `{scheme}:`\nhint: write `postgres://user:password@host:port/database` or \
                 `sqlite:path`"
            )));
        };
        Ok(Self { target })
    }

    /// Returns which database this is.
    pub fn kind(&self) -> StoreKind {
        match &self.target {
            Target::Postgres(_) => StoreKind::Postgres,
            Target::Sqlite(_) => StoreKind::Sqlite,
        }
    }

    /// Returns the URL without its password.
    pub fn display(&self) -> String {
        match &self.target {
            Target::Postgres(options) => postgres::display(options),
            Target::Sqlite(path) => format!("sqlite:{}", path.display()),
        }
    }

    /// Looks how the database is reached and kept: call it while one connection is idle. Returns what makes acknowledged
    /// data losable, a sentence each.
    ///
    /// # Errors
    /// `Unusable`: a pooler hands sessions from one transaction to the next. `Unavailable`: it could not be looked at now.
    pub async fn look(&self) -> Result<Vec<String>, StoreError> {
        match &self.target {
            Target::Postgres(base) => postgres::look(base).await,
            Target::Sqlite(_) => Ok(Vec::new()),
        }
    }

    /// Opens a connection. A SQLite file is made if it is missing; its folder must exist.
    ///
    /// # Errors
    /// `Unavailable` or `Busy`: try again. `Unusable`: trying again won't help.
    pub async fn connect(&self, options: &SessionOptions) -> Result<Connection, StoreError> {
        Ok(match &self.target {
            Target::Postgres(base) => Connection::Postgres(Box::new(
                postgres::PostgresSession::connect(base, options).await?,
            )),
            Target::Sqlite(path) => Connection::Sqlite(Box::new(
                sqlite::SqliteSession::connect(path, options).await?,
            )),
        })
    }
}
