//! The databases of the runs: one each, on one server, or a file of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use anyhow::{Context as _, bail};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, SqliteConnection};
use tokio::runtime::Runtime;

use super::messages::{self, Messages};

/// The accounts, and the entries of who reads first, for all sides.
pub(super) fn accounts(table: &str, count: usize) -> String {
    let rows: Vec<String> = (0..count)
        .map(|number| format!("('{}', 0)", messages::account(number)))
        .collect();
    let mut text = format!(
        "CREATE TABLE {table} (id text PRIMARY KEY, balance bigint NOT NULL);\n\
         CREATE TABLE {table}_entries (account text NOT NULL, amount bigint NOT NULL, kind text NOT NULL);\n"
    );
    // A statement has bounds.
    for rows in rows.chunks(1_000) {
        text.push_str(&format!(
            "INSERT INTO {table} (id, balance) VALUES {};\n",
            rows.join(", ")
        ));
    }
    text
}

/// What the consumer written by hand has beside the accounts: its ids, and its queue.
pub(super) fn by_hand(kind: StoreKind) -> &'static str {
    match kind {
        StoreKind::Postgres => {
            "CREATE TABLE processed_messages (\
                 message_id text PRIMARY KEY, processed_at timestamptz NOT NULL DEFAULT now()); \
             CREATE TABLE queue (\
                 number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text NOT NULL, payload bytea NOT NULL)"
        }
        StoreKind::Sqlite => {
            "PRAGMA journal_mode = WAL; \
             CREATE TABLE processed_messages (message_id TEXT PRIMARY KEY, \
                 processed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))) WITHOUT ROWID; \
             CREATE TABLE queue (number INTEGER PRIMARY KEY, message_id TEXT NOT NULL, payload BLOB NOT NULL)"
        }
    }
}

/// Fills the queue of the consumer written by hand.
pub(super) fn queue(kind: StoreKind, messages: &Messages) -> String {
    let bytes = |text: &str| match kind {
        StoreKind::Postgres => format!("convert_to('{text}', 'UTF8')"),
        StoreKind::Sqlite => format!("CAST('{text}' AS BLOB)"),
    };
    let rows: Vec<String> = messages
        .payloads()
        .enumerate()
        .map(|(number, payload)| format!("('{}', {})", Messages::id(number), bytes(&payload)))
        .collect();
    let statements: Vec<String> = rows
        .chunks(1_000)
        .map(|rows| {
            format!(
                "INSERT INTO queue (message_id, payload) VALUES {}",
                rows.join(", ")
            )
        })
        .collect();
    format!("BEGIN; {}; COMMIT", statements.join("; "))
}

/// What a run left behind.
#[derive(Debug)]
pub(super) struct Run {
    /// How many messages took effect.
    pub(super) processed: usize,
    /// How often the server found two transactions waiting for each other.
    pub(super) deadlocks: i64,
    /// By account.
    pub(super) balances: BTreeMap<String, i64>,
    /// From the start of the first transaction to that of the last.
    seconds: f64,
}

impl Run {
    /// Returns the rate a second of so many messages, by the database's clock: what either side needs to start does not count.
    ///
    /// # Errors
    /// One transaction took all of them.
    pub(super) fn rate(&self, messages: usize) -> anyhow::Result<f64> {
        if self.seconds <= 0.0 {
            bail!("all messages were in one transaction: send more (`--messages`)");
        }
        Ok(messages as f64 / self.seconds)
    }
}

/// Which database hapax keeps its tables in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StoreKind {
    #[default]
    Postgres,
    Sqlite,
}

impl StoreKind {
    /// Returns the name of one of hapax's own tables.
    pub(super) fn table(self, table: &str) -> String {
        match self {
            Self::Postgres => format!("hapax.{table}"),
            Self::Sqlite => format!("hapax_{table}"),
        }
    }
}

/// The server, and the folder of the files.
#[derive(Debug)]
pub(super) struct Databases {
    runtime: Runtime,
    server: PgConnectOptions,
    folder: PathBuf,
}

/// The database of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Database<'a> {
    all: &'a Databases,
    kind: StoreKind,
    name: &'a str,
}

enum Connection {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Databases {
    pub(super) fn new(url: &str, folder: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("cannot start talking to the database")?,
            server: PgConnectOptions::from_str(url).context("the server's URL is not one")?,
            folder: folder.to_owned(),
        })
    }

    /// Makes an empty database, with nothing left to be written to disk from before. A file is made when it is opened.
    pub(super) fn create<'a>(
        &'a self,
        kind: StoreKind,
        name: &'a str,
    ) -> anyhow::Result<Database<'a>> {
        if kind == StoreKind::Postgres {
            let server = self.at("postgres");
            server.run(&format!("CREATE DATABASE {name}"))?;
            server.run("CHECKPOINT")?;
        }
        Ok(Database {
            all: self,
            kind,
            name,
        })
    }

    /// Returns a database of the server that is there.
    pub(super) fn at<'a>(&'a self, name: &'a str) -> Database<'a> {
        Database {
            all: self,
            kind: StoreKind::Postgres,
            name,
        }
    }
}

impl Database<'_> {
    pub(super) fn kind(&self) -> StoreKind {
        self.kind
    }

    fn file(&self) -> PathBuf {
        self.all.folder.join(format!("{}.db", self.name))
    }

    /// Returns its URL, as hapax takes it.
    pub(super) fn url(&self) -> String {
        match self.kind {
            StoreKind::Postgres => {
                let options = self.all.server.clone().database(self.name);
                options.to_url_lossy().to_string()
            }
            StoreKind::Sqlite => format!("sqlite:{}", self.file().display()),
        }
    }

    /// Runs statements.
    pub(super) fn run(&self, sql: &str) -> anyhow::Result<()> {
        let sql = AssertSqlSafe(sql);
        self.all
            .runtime
            .block_on(async {
                match self.connect().await? {
                    Connection::Postgres(mut connection) => {
                        sqlx::raw_sql(sql).execute(&mut connection).await?;
                        connection.close().await
                    }
                    Connection::Sqlite(mut connection) => {
                        sqlx::raw_sql(sql).execute(&mut connection).await?;
                        connection.close().await
                    }
                }
            })
            .with_context(|| format!("cannot prepare the database `{}`", self.name))
    }

    /// Reads what a run left, whose ids stand in `ids`: a table, or one with a condition.
    pub(super) fn read(&self, ids: &str, accounts: &str) -> anyhow::Result<Run> {
        let between = match self.kind {
            StoreKind::Postgres => {
                "extract(epoch FROM max(processed_at) - min(processed_at))::float8"
            }
            StoreKind::Sqlite => {
                "(julianday(max(processed_at)) - julianday(min(processed_at))) * 86400.0"
            }
        };
        let times = AssertSqlSafe(format!("SELECT count(*), {between} FROM {ids}"));
        let accounts = || AssertSqlSafe(format!("SELECT id, balance FROM {accounts}"));
        self.all
            .runtime
            .block_on(async {
                let balances: Vec<(String, i64)>;
                let deadlocks: i64;
                let times: (i64, Option<f64>) = match self.connect().await? {
                    Connection::Postgres(mut connection) => {
                        balances = sqlx::query_as(accounts()).fetch_all(&mut connection).await?;
                        // The other sessions have ended, so their counts are in.
                        deadlocks = sqlx::query_scalar(
                            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
                        )
                        .fetch_one(&mut connection)
                        .await?;
                        sqlx::query_as(times).fetch_one(&mut connection).await?
                    }
                    Connection::Sqlite(mut connection) => {
                        balances = sqlx::query_as(accounts()).fetch_all(&mut connection).await?;
                        // There is one writer.
                        deadlocks = 0;
                        sqlx::query_as(times).fetch_one(&mut connection).await?
                    }
                };
                let (count, seconds) = times;
                Ok::<_, sqlx::Error>(Run {
                    deadlocks,
                    processed: usize::try_from(count).unwrap_or_default(),
                    balances: balances.into_iter().collect(),
                    seconds: seconds.unwrap_or_default(),
                })
            })
            .with_context(|| format!("cannot read the database `{}`", self.name))
    }

    /// Returns one number.
    pub(super) fn number(&self, sql: &str) -> anyhow::Result<i64> {
        let sql = AssertSqlSafe(sql);
        self.all
            .runtime
            .block_on(async {
                match self.connect().await? {
                    Connection::Postgres(mut connection) => {
                        sqlx::query_scalar(sql).fetch_one(&mut connection).await
                    }
                    Connection::Sqlite(mut connection) => {
                        sqlx::query_scalar(sql).fetch_one(&mut connection).await
                    }
                }
            })
            .with_context(|| format!("cannot read the database `{}`", self.name))
    }

    async fn connect(&self) -> Result<Connection, sqlx::Error> {
        Ok(match self.kind {
            StoreKind::Postgres => {
                let options = self.all.server.clone().database(self.name);
                Connection::Postgres(options.connect().await?)
            }
            StoreKind::Sqlite => {
                let options = SqliteConnectOptions::new().filename(self.file());
                Connection::Sqlite(options.connect().await?)
            }
        })
    }
}
