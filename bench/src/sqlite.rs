//! On SQLite, which has one writer: one connection, the messages stand in a table.

use std::str::FromStr as _;
use std::time::Instant;

use anyhow::{Context as _, bail};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, SqliteConnection};

use crate::latency::Latencies;
use crate::statements::{CLAIM, ENTER, READ, UPDATE, WRITE, kind};
use crate::{Arguments, Credit, Work};

const TAKE: &str = "DELETE FROM queue WHERE number IN \
     (SELECT number FROM queue ORDER BY number LIMIT $1) RETURNING message_id, payload";

/// Returns the file of `sqlite:FILE`.
pub(crate) fn file(url: &str) -> anyhow::Result<&str> {
    url.strip_prefix("sqlite:")
        .with_context(|| format!("`{url}` is no `sqlite:FILE`"))
}

/// Processes so many messages.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Latencies> {
    if arguments.broker.is_some() || arguments.work == Work::Set {
        bail!("SQLite has no sets, and its messages stand in the table `queue`");
    }
    let mut connection = SqliteConnectOptions::from_str(&arguments.database)?
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
        .connect()
        .await?;
    let mut latencies = Latencies::default();
    let mut left = arguments.messages;
    while left > 0 {
        let begun = Instant::now();
        sqlx::query("BEGIN IMMEDIATE")
            .execute(&mut connection)
            .await?;
        let rows: Vec<(String, Vec<u8>)> = sqlx::query_as(TAKE)
            .bind(i64::try_from(arguments.batch)?)
            .fetch_all(&mut connection)
            .await?;
        if rows.is_empty() {
            bail!("the queue is empty, and {left} messages are missing");
        }
        let taken = rows.len();
        for (id, payload) in rows {
            let credit: Credit = serde_json::from_slice(&payload)?;
            let claimed = sqlx::query(CLAIM)
                .bind(id)
                .execute(&mut connection)
                .await?
                .rows_affected();
            if claimed == 1 {
                one(&mut connection, arguments.work, &credit).await?;
            }
            left = left.saturating_sub(claimed);
        }
        sqlx::query("COMMIT").execute(&mut connection).await?;
        let took = begun.elapsed();
        (0..taken).for_each(|_| latencies.add(took));
    }
    Ok(latencies)
}

/// One message's statements.
async fn one(connection: &mut SqliteConnection, work: Work, credit: &Credit) -> anyhow::Result<()> {
    if work == Work::Execute {
        let updated = sqlx::query(UPDATE)
            .bind(credit.amount)
            .bind(&credit.account)
            .execute(&mut *connection)
            .await?;
        if updated.rows_affected() == 0 {
            bail!("account `{}` does not exist", credit.account);
        }
        return Ok(());
    }
    let balance: i64 = sqlx::query_scalar(READ)
        .bind(&credit.account)
        .fetch_one(&mut *connection)
        .await?;
    let balance = balance + credit.amount;
    sqlx::query(WRITE)
        .bind(balance)
        .bind(&credit.account)
        .execute(&mut *connection)
        .await?;
    sqlx::query(ENTER)
        .bind(&credit.account)
        .bind(credit.amount)
        .bind(kind(balance))
        .execute(&mut *connection)
        .await?;
    Ok(())
}
