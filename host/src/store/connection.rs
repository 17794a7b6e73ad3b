//! The one connection type that the rooms above see: each call goes to the database at hand.

use super::postgres::PostgresSession;
use super::sqlite::SqliteSession;
use super::{
    Baton, Claim, ClaimAs, ClaimRequest, CommitError, Counters, HandlerMigration, OutboxRow,
    ResultSet, Savepoint, Session, SqlError, StoreError, StoreKind, Value,
};
use crate::message::{ComponentDigest, FailureClass, MessageId};

/// One bare connection to either database. Dropping it closes it, also in the middle of a statement.
#[derive(Debug)]
pub enum Connection {
    /// To PostgreSQL.
    Postgres(Box<PostgresSession>),
    /// To SQLite.
    Sqlite(Box<SqliteSession>),
}

/// Calls the session of the database at hand.
macro_rules! each {
    ($connection:expr, $session:ident => $call:expr) => {
        match $connection {
            Connection::Postgres($session) => $call.await,
            Connection::Sqlite($session) => $call.await,
        }
    };
}
pub(super) use each;

/// What lies outside a transaction. Between `Tx::begin` and its end the connection belongs to the `Tx`.
impl Connection {
    /// Returns which database this is.
    pub fn kind(&self) -> StoreKind {
        match self {
            Self::Postgres(_) => StoreKind::Postgres,
            Self::Sqlite(_) => StoreKind::Sqlite,
        }
    }

    /// Brings hapax's own tables to this binary's version, under a lock. Twice, or two at once, is harmless.
    ///
    /// # Errors
    /// `SchemaNewer` if the database is beyond this binary.
    pub async fn migrate(&mut self) -> Result<(), StoreError> {
        Session::migrate(self).await
    }

    /// Applies the handler's migrations that are not recorded yet, in order, under a lock. Returns how many.
    ///
    /// # Errors
    /// `Unusable` if a recorded file has changed or is missing, or if a file fails; the text names the file.
    pub async fn apply_handler_migrations(
        &mut self,
        handler: &str,
        migrations: &[HandlerMigration],
    ) -> Result<usize, StoreError> {
        Session::apply_handler_migrations(self, handler, migrations).await
    }

    /// Records a charged failure. Returns its number, from 1. The time is the database's.
    ///
    /// Any text serves as `error`: NUL is replaced, and what is longer than 8 KiB is cut.
    ///
    /// # Errors
    /// As `StoreError` says; nothing is recorded, unless the connection was lost.
    pub async fn record_attempt(
        &mut self,
        consumer: &str,
        id: &MessageId,
        class: FailureClass,
        error: &str,
        component: Option<ComponentDigest>,
    ) -> Result<u32, StoreError> {
        Session::record_attempt(self, consumer, id, class, error, component).await
    }

    /// Adds to the counters of this host and consumer.
    ///
    /// # Errors
    /// As `StoreError` says; nothing is added, unless the connection was lost.
    pub async fn add_counters(
        &mut self,
        consumer: &str,
        host: &str,
        counters: &Counters,
    ) -> Result<(), StoreError> {
        Session::add_counters(self, consumer, host, counters).await
    }

    /// Returns the counters of a consumer, added up over hosts.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn counters(&mut self, consumer: &str) -> Result<Counters, StoreError> {
        Session::counters(self, consumer).await
    }
}

impl Session for Connection {
    async fn begin(&mut self) -> Result<(), StoreError> {
        match self {
            Self::Postgres(session) => session.begin().await,
            Self::Sqlite(session) => session.begin().await,
        }
    }

    async fn begin_with_baton(&mut self, consumer: &str, baton: Baton) -> Result<(), StoreError> {
        match self {
            Self::Postgres(session) => session.begin_with_baton(consumer, baton).await,
            Self::Sqlite(session) => session.begin_with_baton(consumer, baton).await,
        }
    }

    async fn claim(
        &mut self,
        consumer: &str,
        requests: &[ClaimRequest],
        claim_as: ClaimAs,
        component: Option<ComponentDigest>,
    ) -> Result<Vec<Claim>, StoreError> {
        match self {
            Self::Postgres(session) => session.claim(consumer, requests, claim_as, component).await,
            Self::Sqlite(session) => session.claim(consumer, requests, claim_as, component).await,
        }
    }

    async fn attempts_without_claim(
        &mut self,
        consumer: &str,
        ids: &[MessageId],
    ) -> Result<Vec<u32>, StoreError> {
        match self {
            Self::Postgres(session) => session.attempts_without_claim(consumer, ids).await,
            Self::Sqlite(session) => session.attempts_without_claim(consumer, ids).await,
        }
    }

    async fn execute(&mut self, statement: &str, params: &[Value]) -> Result<u64, SqlError> {
        match self {
            Self::Postgres(session) => session.execute(statement, params).await,
            Self::Sqlite(session) => session.execute(statement, params).await,
        }
    }

    async fn query(
        &mut self,
        statement: &str,
        params: &[Value],
        rows_max: u64,
    ) -> Result<ResultSet, SqlError> {
        match self {
            Self::Postgres(session) => session.query(statement, params, rows_max).await,
            Self::Sqlite(session) => session.query(statement, params, rows_max).await,
        }
    }

    async fn execute_many(
        &mut self,
        statement: &str,
        rows: &[Vec<Value>],
    ) -> Result<Vec<u64>, SqlError> {
        match self {
            Self::Postgres(session) => session.execute_many(statement, rows).await,
            Self::Sqlite(session) => session.execute_many(statement, rows).await,
        }
    }

    async fn begin_savepoint(&mut self) -> Result<Savepoint, SqlError> {
        match self {
            Self::Postgres(session) => session.begin_savepoint().await,
            Self::Sqlite(session) => session.begin_savepoint().await,
        }
    }

    async fn release_savepoint(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        match self {
            Self::Postgres(session) => session.release_savepoint(savepoint).await,
            Self::Sqlite(session) => session.release_savepoint(savepoint).await,
        }
    }

    async fn roll_back_savepoint(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        match self {
            Self::Postgres(session) => session.roll_back_savepoint(savepoint).await,
            Self::Sqlite(session) => session.roll_back_savepoint(savepoint).await,
        }
    }

    fn open_savepoints(&self) -> usize {
        match self {
            Self::Postgres(session) => session.open_savepoints(),
            Self::Sqlite(session) => session.open_savepoints(),
        }
    }

    fn fault(&self) -> Option<StoreError> {
        match self {
            Self::Postgres(session) => session.fault(),
            Self::Sqlite(session) => session.fault(),
        }
    }

    fn is_aborted(&self) -> bool {
        match self {
            Self::Postgres(session) => session.is_aborted(),
            Self::Sqlite(session) => session.is_aborted(),
        }
    }

    async fn write_outbox(&mut self, rows: &[OutboxRow]) -> Result<(), StoreError> {
        match self {
            Self::Postgres(session) => session.write_outbox(rows).await,
            Self::Sqlite(session) => session.write_outbox(rows).await,
        }
    }

    async fn commit(&mut self) -> Result<(), CommitError> {
        match self {
            Self::Postgres(session) => session.commit().await,
            Self::Sqlite(session) => session.commit().await,
        }
    }

    async fn rollback(&mut self) -> Result<(), StoreError> {
        match self {
            Self::Postgres(session) => session.rollback().await,
            Self::Sqlite(session) => session.rollback().await,
        }
    }

    async fn migrate(&mut self) -> Result<(), StoreError> {
        match self {
            Self::Postgres(session) => session.migrate().await,
            Self::Sqlite(session) => session.migrate().await,
        }
    }

    async fn apply_handler_migrations(
        &mut self,
        handler: &str,
        migrations: &[HandlerMigration],
    ) -> Result<usize, StoreError> {
        match self {
            Self::Postgres(session) => session.apply_handler_migrations(handler, migrations).await,
            Self::Sqlite(session) => session.apply_handler_migrations(handler, migrations).await,
        }
    }

    async fn record_attempt(
        &mut self,
        consumer: &str,
        id: &MessageId,
        class: FailureClass,
        error: &str,
        component: Option<ComponentDigest>,
    ) -> Result<u32, StoreError> {
        match self {
            Self::Postgres(session) => {
                session
                    .record_attempt(consumer, id, class, error, component)
                    .await
            }
            Self::Sqlite(session) => {
                session
                    .record_attempt(consumer, id, class, error, component)
                    .await
            }
        }
    }

    async fn add_counters(
        &mut self,
        consumer: &str,
        host: &str,
        counters: &Counters,
    ) -> Result<(), StoreError> {
        match self {
            Self::Postgres(session) => session.add_counters(consumer, host, counters).await,
            Self::Sqlite(session) => session.add_counters(consumer, host, counters).await,
        }
    }

    async fn counters(&mut self, consumer: &str) -> Result<Counters, StoreError> {
        match self {
            Self::Postgres(session) => session.counters(consumer).await,
            Self::Sqlite(session) => session.counters(consumer).await,
        }
    }
}
