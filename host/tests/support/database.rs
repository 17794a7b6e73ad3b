//! A store of the test's own on either database, and an independent look at it.

use std::time::Duration;

use hapax::store::{Connection, SessionOptions, Store, StoreKind, Tx};
use sqlx::{AssertSqlSafe, Connection as _};
use tempfile::TempDir;

use super::postgres::Postgres;

/// A fresh database with hapax's tables, gone when dropped.
#[derive(Debug)]
pub struct TestStore {
    /// For the configuration.
    pub url: String,
    /// The store itself.
    pub store: Store,
    /// The server, on PostgreSQL.
    pub postgres: Option<Postgres>,
    _folder: Option<TempDir>,
}

impl TestStore {
    /// On PostgreSQL.
    pub async fn postgres() -> Self {
        let this = Self::empty_postgres().await;
        this.migrated().await
    }

    /// On SQLite.
    pub async fn sqlite() -> Self {
        Self::empty_sqlite().migrated().await
    }

    /// On PostgreSQL, without hapax's tables.
    pub async fn empty_postgres() -> Self {
        let postgres = Postgres::start_with(&[("deadlock_timeout", "100ms")]);
        let url = postgres.database().await;
        Self {
            store: Store::open(&url).unwrap(),
            url,
            postgres: Some(postgres),
            _folder: None,
        }
    }

    /// On SQLite, without hapax's tables.
    pub fn empty_sqlite() -> Self {
        let folder = TempDir::with_prefix("hapax-sqlite-").unwrap();
        let url = format!("sqlite:{}", folder.path().join("hapax.db").display());
        Self {
            store: Store::open(&url).unwrap(),
            url,
            postgres: None,
            _folder: Some(folder),
        }
    }

    async fn migrated(self) -> Self {
        self.connect().await.migrate().await.unwrap();
        self
    }

    /// Which database it is.
    pub fn kind(&self) -> StoreKind {
        self.store.kind()
    }

    /// A connection with timeouts that no test should reach.
    pub async fn connect(&self) -> Connection {
        self.connect_with(&options()).await
    }

    /// A connection with given timeouts.
    pub async fn connect_with(&self, options: &SessionOptions) -> Connection {
        self.store.connect(options).await.unwrap()
    }

    /// A transaction on a new connection.
    pub async fn begin(&self) -> Tx {
        Tx::begin(self.connect().await).await.unwrap()
    }

    /// The name of one of hapax's own tables.
    pub fn table(&self, name: &str) -> String {
        match self.kind() {
            StoreKind::Postgres => format!("hapax.{name}"),
            StoreKind::Sqlite => format!("hapax_{name}"),
        }
    }

    /// An independent connection.
    pub async fn probe(&self) -> Probe {
        match self.kind() {
            StoreKind::Postgres => {
                Probe::Postgres(sqlx::PgConnection::connect(&self.url).await.unwrap())
            }
            StoreKind::Sqlite => {
                Probe::Sqlite(sqlx::SqliteConnection::connect(&self.url).await.unwrap())
            }
        }
    }

    /// Runs statements of the test's own.
    pub async fn run(&self, sql: &str) {
        self.probe().await.run(sql).await;
    }

    /// Counts or adds up by a statement of the test's own.
    pub async fn number(&self, sql: &str) -> i64 {
        self.probe().await.number(sql).await
    }

    /// Reads one text by a statement of the test's own.
    pub async fn text(&self, sql: &str) -> Option<String> {
        self.probe().await.text(sql).await
    }
}

/// Timeouts that no test should reach.
pub fn options() -> SessionOptions {
    SessionOptions {
        purpose: "test".into(),
        statement_timeout: Some(Duration::from_secs(120)),
        lock_timeout: Duration::from_secs(60),
        idle_in_transaction: Duration::from_secs(60),
    }
}

/// A connection that knows nothing of hapax.
#[derive(Debug)]
pub enum Probe {
    /// To PostgreSQL.
    Postgres(sqlx::PgConnection),
    /// To SQLite.
    Sqlite(sqlx::SqliteConnection),
}

impl Probe {
    /// Runs statements.
    pub async fn run(&mut self, sql: &str) {
        self.try_run(sql)
            .await
            .unwrap_or_else(|error| panic!("{error}: {sql}"));
    }

    /// Runs statements that may fail.
    pub async fn try_run(&mut self, sql: &str) -> Result<(), sqlx::Error> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        match self {
            Self::Postgres(connection) => sql.execute(connection).await.map(|_| ()),
            Self::Sqlite(connection) => sql.execute(connection).await.map(|_| ()),
        }
    }

    /// Reads one integer.
    pub async fn number(&mut self, sql: &str) -> i64 {
        match self {
            Self::Postgres(connection) => {
                sqlx::query_scalar(AssertSqlSafe(sql))
                    .persistent(false)
                    .fetch_one(connection)
                    .await
            }
            Self::Sqlite(connection) => {
                sqlx::query_scalar(AssertSqlSafe(sql))
                    .persistent(false)
                    .fetch_one(connection)
                    .await
            }
        }
        .unwrap_or_else(|error| panic!("{error}: {sql}"))
    }

    /// Reads one text, which may be NULL.
    pub async fn text(&mut self, sql: &str) -> Option<String> {
        match self {
            Self::Postgres(connection) => {
                sqlx::query_scalar(AssertSqlSafe(sql))
                    .persistent(false)
                    .fetch_one(connection)
                    .await
            }
            Self::Sqlite(connection) => {
                sqlx::query_scalar(AssertSqlSafe(sql))
                    .persistent(false)
                    .fetch_one(connection)
                    .await
            }
        }
        .unwrap_or_else(|error| panic!("{error}: {sql}"))
    }

    /// Asks until `sql` gives `expected`; for what has no other signal.
    pub async fn wait_for(&mut self, sql: &str, expected: i64) {
        let started = std::time::Instant::now();
        loop {
            let found = self.number(sql).await;
            if found == expected {
                return;
            }
            assert!(
                started.elapsed() < Duration::from_secs(120),
                "`{sql}` gives {found}, not {expected}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
