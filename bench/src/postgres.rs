//! On PostgreSQL: each connection takes its messages through transactions of its own.

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, Postgres, Transaction};
use tokio::task::JoinSet;

use crate::jetstream::JetStream;
use crate::latency::Latencies;
use crate::statements::{CLAIM, ENTER, READ_LOCKED, UPDATE, WRITE, kind};
use crate::{Arguments, Credit, Work};

/// How often an empty queue is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// The lock that groups take in turn, before any other: they would lock rows in different orders.
const BATON: &str = "SELECT pg_advisory_xact_lock(1, 1)";
const CLAIM_ALL: &str = "INSERT INTO processed_messages (message_id) SELECT * FROM unnest($1::text[]) \
     ON CONFLICT DO NOTHING RETURNING message_id";
const TAKE: &str = "DELETE FROM queue WHERE number IN \
     (SELECT number FROM queue ORDER BY number LIMIT $1 FOR UPDATE SKIP LOCKED) RETURNING message_id, payload";
const UPDATE_ALL: &str = "UPDATE accounts SET balance = balance + sums.amount \
     FROM (SELECT id, sum(amount)::bigint AS amount FROM unnest($1::text[], $2::bigint[]) AS drawn (id, amount) GROUP BY id) AS sums \
     WHERE accounts.id = sums.id";

/// What one connection reports: how many messages took effect, and how long each took.
type Report = (u64, Vec<Duration>);

/// Processes so many messages.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Latencies> {
    let stream = match (&arguments.broker, &arguments.stream) {
        (Some(broker), Some(stream)) => {
            let in_work = arguments.at_once * arguments.batch;
            let connected = JetStream::connect(broker, stream, &arguments.durable, in_work).await?;
            Some(Arc::new(connected))
        }
        _ => None,
    };
    let options = PgConnectOptions::from_str(&arguments.database)?.disable_statement_logging();
    let (applied, mut reports) = tokio::sync::mpsc::unbounded_channel::<Report>();
    let mut workers: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for _ in 0..arguments.at_once {
        let mut worker = Worker {
            connection: options.connect().await?,
            batch: arguments.batch,
            work: arguments.work,
        };
        let applied = applied.clone();
        let stream = stream.clone();
        workers.spawn(async move {
            loop {
                let report = match &stream {
                    Some(stream) => worker.read_stream(stream).await?,
                    None => worker.read_queue().await?,
                };
                applied.send(report)?;
            }
        });
    }

    let mut latencies = Latencies::default();
    let mut left = arguments.messages;
    while left > 0 {
        tokio::select! {
            // A report that is not received in this turn is received in the next.
            Some((fresh, took)) = reports.recv() => {
                left = left.saturating_sub(fresh);
                took.into_iter().for_each(|took| latencies.add(took));
            }
            // A worker ends only with an error.
            Some(ended) = workers.join_next() => ended??,
        }
    }
    if let Some(stream) = stream {
        stream.flush().await?;
    }
    Ok(latencies)
}

struct Worker {
    connection: PgConnection,
    batch: usize,
    work: Work,
}

impl Worker {
    async fn read_stream(&mut self, stream: &JetStream) -> anyhow::Result<Report> {
        let group = stream.next(self.batch).await?;
        let mut tx = self.connection.begin().await?;
        // A group of one holds one row, and needs no lock before it.
        if self.batch > 1 {
            sqlx::query(BATON).execute(&mut *tx).await?;
        }
        let ids: Vec<&str> = group.iter().map(|one| one.id.as_str()).collect();
        let credits: Vec<&Credit> = group.iter().map(|one| &one.credit).collect();
        let fresh = apply(&mut tx, self.batch, self.work, &ids, &credits).await?;
        tx.commit().await?;
        let mut took = Vec::with_capacity(group.len());
        for one in &group {
            took.push(one.acknowledge().await?);
        }
        Ok((fresh, took))
    }

    async fn read_queue(&mut self) -> anyhow::Result<Report> {
        let begun = Instant::now();
        let mut tx = self.connection.begin().await?;
        if self.batch > 1 {
            sqlx::query(BATON).execute(&mut *tx).await?;
        }
        let rows: Vec<(String, Vec<u8>)> = sqlx::query_as(TAKE)
            .bind(i64::try_from(self.batch)?)
            .fetch_all(&mut *tx)
            .await?;
        if rows.is_empty() {
            tx.rollback().await?;
            tokio::time::sleep(LOOK).await;
            return Ok((0, Vec::new()));
        }
        let credits = rows
            .iter()
            .map(|(_, payload)| serde_json::from_slice(payload))
            .collect::<Result<Vec<Credit>, _>>()?;
        let ids: Vec<&str> = rows.iter().map(|(id, _)| id.as_str()).collect();
        let credits: Vec<&Credit> = credits.iter().collect();
        let fresh = apply(&mut tx, self.batch, self.work, &ids, &credits).await?;
        tx.commit().await?;
        Ok((fresh, vec![begun.elapsed(); rows.len()]))
    }
}

/// Claims the ids, and runs the statements of those that are fresh. Returns how many these are.
async fn apply(
    tx: &mut Transaction<'_, Postgres>,
    batch: usize,
    work: Work,
    ids: &[&str],
    credits: &[&Credit],
) -> anyhow::Result<u64> {
    if let (1, [id]) = (batch, ids) {
        let claimed = sqlx::query(CLAIM).bind(*id).execute(&mut **tx).await?;
        if claimed.rows_affected() == 1 {
            for credit in credits {
                one(tx, work, credit).await?;
            }
        }
        return Ok(claimed.rows_affected());
    }
    let claimed: Vec<String> = sqlx::query_scalar(CLAIM_ALL)
        .bind(ids)
        .fetch_all(&mut **tx)
        .await?;
    let claimed: std::collections::HashSet<&str> = claimed.iter().map(String::as_str).collect();
    let fresh = ids
        .iter()
        .zip(credits)
        .filter(|(id, _)| claimed.contains(*id))
        .map(|(_, credit)| *credit);
    if work == Work::Set {
        all(tx, fresh).await?;
    } else {
        for credit in fresh {
            one(tx, work, credit).await?;
        }
    }
    Ok(claimed.len() as u64)
}

/// One message's statements.
async fn one(
    tx: &mut Transaction<'_, Postgres>,
    work: Work,
    credit: &Credit,
) -> anyhow::Result<()> {
    if work != Work::ReadWrite {
        let updated = sqlx::query(UPDATE)
            .bind(credit.amount)
            .bind(&credit.account)
            .execute(&mut **tx)
            .await?;
        return is_there(credit, updated.rows_affected() > 0);
    }
    let found: Option<i64> = sqlx::query_scalar(READ_LOCKED)
        .bind(&credit.account)
        .fetch_optional(&mut **tx)
        .await?;
    is_there(credit, found.is_some())?;
    let balance = found.unwrap_or_default() + credit.amount;
    sqlx::query(WRITE)
        .bind(balance)
        .bind(&credit.account)
        .execute(&mut **tx)
        .await?;
    sqlx::query(ENTER)
        .bind(&credit.account)
        .bind(credit.amount)
        .bind(kind(balance))
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// One statement for all messages of a group.
async fn all<'a>(
    tx: &mut Transaction<'_, Postgres>,
    credits: impl Iterator<Item = &'a Credit>,
) -> anyhow::Result<()> {
    let (accounts, amounts): (Vec<&str>, Vec<i64>) = credits
        .map(|credit| (credit.account.as_str(), credit.amount))
        .unzip();
    sqlx::query(UPDATE_ALL)
        .bind(accounts)
        .bind(amounts)
        .execute(&mut **tx)
        .await
        .context("cannot update the accounts of a group")?;
    Ok(())
}

fn is_there(credit: &Credit, found: bool) -> anyhow::Result<()> {
    if !found {
        bail!("account `{}` does not exist", credit.account);
    }
    Ok(())
}
