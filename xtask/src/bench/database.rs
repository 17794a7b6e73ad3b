//! The databases of the runs: one each, on one server.

use std::collections::BTreeMap;
use std::str::FromStr as _;

use anyhow::Context as _;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};
use tokio::runtime::Runtime;

use super::messages;

/// The table of ids of the consumer written by hand.
pub(super) const PROCESSED: &str = "CREATE TABLE processed_messages (\
     message_id text PRIMARY KEY, processed_at timestamptz NOT NULL DEFAULT now())";

/// The accounts, for both sides.
pub(super) fn accounts(count: usize) -> String {
    let rows: Vec<String> = (0..count)
        .map(|number| format!("('{}', 0)", messages::account(number)))
        .collect();
    format!(
        "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);\n\
         INSERT INTO accounts (id, balance) VALUES {};\n",
        rows.join(", ")
    )
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
    /// Returns the messages a second, by the database's clock: what either side needs to start does not count.
    pub(super) fn rate(&self) -> f64 {
        self.processed as f64 / self.seconds
    }
}

/// The server.
pub(super) struct Database {
    runtime: Runtime,
    server: PgConnectOptions,
}

impl Database {
    pub(super) fn new(url: &str) -> anyhow::Result<Self> {
        Ok(Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("cannot start talking to the database")?,
            server: PgConnectOptions::from_str(url).context("the server's URL is not one")?,
        })
    }

    /// Returns the URL of one of its databases.
    pub(super) fn url_of(&self, name: &str) -> String {
        self.server
            .clone()
            .database(name)
            .to_url_lossy()
            .to_string()
    }

    /// Makes an empty database, with nothing left to be written to disk from before. Returns its URL.
    pub(super) fn create(&self, name: &str) -> anyhow::Result<String> {
        self.run("postgres", &format!("CREATE DATABASE {name}"))?;
        self.run("postgres", "CHECKPOINT")?;
        Ok(self.url_of(name))
    }

    /// Runs statements in the database `name`.
    pub(super) fn run(&self, name: &str, sql: &str) -> anyhow::Result<()> {
        self.runtime
            .block_on(async {
                let mut connection = self.connect(name).await?;
                sqlx::raw_sql(AssertSqlSafe(sql))
                    .execute(&mut connection)
                    .await?;
                connection.close().await
            })
            .with_context(|| format!("cannot prepare the database `{name}`"))
    }

    /// Reads what a run left in the database `name`, whose ids stand in `ids`: a table, or one with a condition.
    pub(super) fn read(&self, name: &str, ids: &str) -> anyhow::Result<Run> {
        // It is one of two constants.
        let sql = AssertSqlSafe(format!(
            "SELECT count(*), extract(epoch FROM max(processed_at) - min(processed_at))::float8 FROM {ids}"
        ));
        self.runtime
            .block_on(async {
                let mut connection = self.connect(name).await?;
                let (count, seconds): (i64, Option<f64>) =
                    sqlx::query_as(sql).fetch_one(&mut connection).await?;
                let balances: Vec<(String, i64)> =
                    sqlx::query_as("SELECT id, balance FROM accounts")
                        .fetch_all(&mut connection)
                        .await?;
                // The other sessions have ended, so their counts are in.
                let deadlocks: i64 = sqlx::query_scalar(
                    "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
                )
                .fetch_one(&mut connection)
                .await?;
                connection.close().await?;
                Ok::<_, sqlx::Error>(Run {
                    deadlocks,
                    processed: usize::try_from(count).unwrap_or_default(),
                    balances: balances.into_iter().collect(),
                    seconds: seconds.unwrap_or_default(),
                })
            })
            .with_context(|| format!("cannot read the database `{name}`"))
    }

    /// Returns one number from the database `name`.
    pub(super) fn number(&self, name: &str, sql: &'static str) -> anyhow::Result<i64> {
        self.runtime
            .block_on(async {
                let mut connection = self.connect(name).await?;
                let number = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
                connection.close().await?;
                Ok::<_, sqlx::Error>(number)
            })
            .with_context(|| format!("cannot read the database `{name}`"))
    }

    async fn connect(&self, name: &str) -> Result<PgConnection, sqlx::Error> {
        self.server.clone().database(name).connect().await
    }
}
