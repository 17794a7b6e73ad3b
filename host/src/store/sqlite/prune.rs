//! Retention on SQLite. Who prunes says so in a row, for a minute; each batch is a short `BEGIN IMMEDIATE`.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use super::SqliteSession;
use crate::message::{Instant, MessageId};
use crate::store::prune::{
    ClaimsSize, Leftover, PRUNE_BATCH_MAX, Prunable, PruneCursor, PruneSession, PrunedBatch,
};
use crate::store::text::instant_from_text;
use crate::store::{Session as _, StoreError};

/// The moment that lies `?AGE` seconds back.
macro_rules! edge {
    ($age:literal) => {
        concat!(
            "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ",
            $age,
            " || ' seconds')"
        )
    };
}

const HAS_LETTER: &str = "claim.outcome = 'dead' AND EXISTS (SELECT 1 FROM hapax_dead_letters AS letter \
     WHERE letter.consumer = claim.consumer AND letter.message_id = claim.message_id)";
const OLD_CLAIMS: &str = concat!("claim.consumer = ?1 AND claim.processed_at < ", edge!("?2"));
const IN_A_MINUTE: &str = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '60 seconds')";

/// Returns the table, its key, and the condition of what is older than `?1` seconds.
fn leftovers(what: Leftover) -> (&'static str, &'static str, &'static str) {
    match what {
        // A message that waits in the consumer's own queue comes back.
        Leftover::Attempts => (
            "hapax_attempts",
            "consumer, message_id, attempt",
            concat!(
                "old.at < ",
                edge!("?1"),
                " AND NOT EXISTS (SELECT 1 FROM hapax_queue AS carried \
                     WHERE carried.queue = '@' || old.consumer AND carried.message_id = old.message_id \
                         AND carried.origin_source IS NOT NULL)"
            ),
        ),
        Leftover::Marks => (
            "hapax_started",
            "consumer, message_id",
            concat!("old.started_at < ", edge!("?1")),
        ),
        Leftover::Counters => (
            "hapax_counters",
            "consumer, host",
            concat!("old.updated_at < ", edge!("?1"), " AND old.host <> ''"),
        ),
        Leftover::DeadLetters => (
            "hapax_dead_letters",
            "id",
            concat!(
                "old.dead_at < ",
                edge!("?1"),
                " AND NOT EXISTS (SELECT 1 FROM hapax_queue WHERE dead_letter = old.id)"
            ),
        ),
    }
}

/// A modifier of SQLite's date functions.
fn back(age: Duration) -> String {
    format!("-{:.3}", age.as_secs_f64())
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

impl SqliteSession {
    async fn prune_claims_in_tx(
        &mut self,
        consumer: &str,
        age: Duration,
        cursor: &mut PruneCursor,
    ) -> Result<PrunedBatch, sqlx::Error> {
        let old: Vec<(String, String)> = sqlx::query_as(AssertSqlSafe(format!(
            "SELECT message_id, processed_at FROM hapax_processed_messages AS claim \
             WHERE {OLD_CLAIMS} AND claim.processed_at >= coalesce(?3, '') AND NOT ({HAS_LETTER}) \
             ORDER BY claim.processed_at LIMIT ?4"
        )))
        .bind(consumer)
        .bind(back(age))
        .bind(&cursor.0)
        .bind(i64::from(PRUNE_BATCH_MAX))
        .fetch_all(&mut self.connection)
        .await?;
        let ids: Vec<&str> = old.iter().map(|(id, _)| id.as_str()).collect();
        let deleted = sqlx::query(
            "DELETE FROM hapax_processed_messages \
             WHERE consumer = ?1 AND message_id IN (SELECT value FROM json_each(?2))",
        )
        .bind(consumer)
        .bind(serde_json::Value::from(ids).to_string())
        .execute(&mut self.connection)
        .await?
        .rows_affected();
        let is_last = old.len() < PRUNE_BATCH_MAX as usize;
        if let Some((_, last)) = old.into_iter().next_back() {
            cursor.0 = Some(last);
        }
        self.hold_pruning().await?;
        Ok(PrunedBatch { deleted, is_last })
    }

    async fn prune_leftovers_in_tx(
        &mut self,
        what: Leftover,
        age: Duration,
    ) -> Result<PrunedBatch, sqlx::Error> {
        let (table, key, is_old) = leftovers(what);
        if what == Leftover::Counters {
            sqlx::query(AssertSqlSafe(format!(
                "INSERT INTO hapax_counters (consumer, host, claimed, duplicates, retried, rolled_back, dead) \
                 SELECT consumer, '', sum(claimed), sum(duplicates), sum(retried), sum(rolled_back), sum(dead) \
                 FROM (SELECT * FROM hapax_counters AS old WHERE {is_old} ORDER BY {key} LIMIT ?2) GROUP BY consumer \
                 ON CONFLICT (consumer, host) DO UPDATE SET \
                     claimed = claimed + excluded.claimed, duplicates = duplicates + excluded.duplicates, \
                     retried = retried + excluded.retried, rolled_back = rolled_back + excluded.rolled_back, \
                     dead = dead + excluded.dead, updated_at = excluded.updated_at"
            )))
            .bind(back(age))
            .bind(i64::from(PRUNE_BATCH_MAX))
            .execute(&mut self.connection)
            .await?;
        }
        let order = if what == Leftover::Counters {
            format!("ORDER BY {key}")
        } else {
            String::new()
        };
        let deleted = sqlx::query(AssertSqlSafe(format!(
            "DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} AS old WHERE {is_old} {order} LIMIT ?2)"
        )))
        .bind(back(age))
        .bind(i64::from(PRUNE_BATCH_MAX))
        .execute(&mut self.connection)
        .await?
        .rows_affected();
        self.hold_pruning().await?;
        Ok(PrunedBatch {
            deleted,
            is_last: deleted < u64::from(PRUNE_BATCH_MAX),
        })
    }

    /// Keeps others from pruning for a minute more.
    async fn hold_pruning(&mut self) -> Result<(), sqlx::Error> {
        sqlx::query(AssertSqlSafe(format!(
            "UPDATE hapax_pruner SET until = {IN_A_MINUTE} WHERE holder = ?1"
        )))
        .bind(&self.pruner)
        .execute(&mut self.connection)
        .await
        .map(|_| ())
    }

    async fn ended<T>(&mut self, done: Result<T, sqlx::Error>) -> Result<T, StoreError> {
        match done {
            Ok(done) => {
                self.commit_own().await?;
                Ok(done)
            }
            Err(error) => {
                let error = self.host_error(&error);
                self.abandon(error).await
            }
        }
    }
}

impl PruneSession for SqliteSession {
    async fn now(&mut self) -> Result<Instant, StoreError> {
        let now: String = sqlx::query_scalar("SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now')")
            .fetch_one(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        instant_from_text(&now).ok_or_else(|| {
            StoreError::Unusable(format!("the database's time can't be read: it is `{now}`"))
        })
    }

    async fn claim_died(&mut self, consumer: &str, id: &MessageId) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE hapax_processed_messages SET outcome = 'dead' WHERE consumer = ?1 AND message_id = ?2",
        )
        .bind(consumer)
        .bind(id.as_str())
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    async fn begin_pruning(&mut self, process: &str) -> Result<bool, StoreError> {
        self.pruner = process.to_owned();
        self.begin().await?;
        let done = sqlx::query(AssertSqlSafe(format!(
            "INSERT INTO hapax_pruner (only, holder, until) VALUES (1, ?1, {IN_A_MINUTE}) \
             ON CONFLICT (only) DO UPDATE SET holder = excluded.holder, until = excluded.until \
             WHERE until < strftime('%Y-%m-%dT%H:%M:%fZ', 'now') OR holder = excluded.holder"
        )))
        .bind(process)
        .execute(&mut self.connection)
        .await
        .map(|done| done.rows_affected() > 0);
        self.ended(done).await
    }

    async fn end_pruning(&mut self) -> Result<(), StoreError> {
        self.begin().await?;
        let done = sqlx::query("DELETE FROM hapax_pruner WHERE holder = ?1")
            .bind(&self.pruner)
            .execute(&mut self.connection)
            .await
            .map(|_| ());
        self.ended(done).await
    }

    async fn prune_claims(
        &mut self,
        consumer: &str,
        age: Duration,
        cursor: &mut PruneCursor,
    ) -> Result<PrunedBatch, StoreError> {
        self.begin().await?;
        let done = self.prune_claims_in_tx(consumer, age, cursor).await;
        self.ended(done).await
    }

    async fn prune_leftovers(
        &mut self,
        what: Leftover,
        age: Duration,
    ) -> Result<PrunedBatch, StoreError> {
        self.begin().await?;
        let done = self.prune_leftovers_in_tx(what, age).await;
        self.ended(done).await
    }

    async fn prunable_claims(
        &mut self,
        consumer: &str,
        age: Duration,
    ) -> Result<Prunable, StoreError> {
        let (rows, kept): (i64, i64) = sqlx::query_as(AssertSqlSafe(format!(
            "SELECT count(*), count(*) FILTER (WHERE {HAS_LETTER}) FROM hapax_processed_messages AS claim \
             WHERE {OLD_CLAIMS}"
        )))
        .bind(consumer)
        .bind(back(age))
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(Prunable {
            rows: count(rows - kept),
            kept: count(kept),
        })
    }

    async fn prunable_leftovers(
        &mut self,
        what: Leftover,
        age: Duration,
    ) -> Result<u64, StoreError> {
        let (table, _, is_old) = leftovers(what);
        let rows: i64 = sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT count(*) FROM {table} AS old WHERE {is_old}"
        )))
        .bind(back(age))
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(count(rows))
    }

    async fn oldest_claim(&mut self, consumer: &str) -> Result<Option<f64>, StoreError> {
        sqlx::query_scalar(
            "SELECT (julianday('now') - julianday(min(processed_at))) * 86400.0 \
             FROM hapax_processed_messages WHERE consumer = ?1",
        )
        .bind(consumer)
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn claims_size(&mut self) -> Result<ClaimsSize, StoreError> {
        let (bytes, rows): (i64, i64) = sqlx::query_as(
            "SELECT (SELECT coalesce(sum(pgsize), 0) FROM dbstat \
                 WHERE aggregate = TRUE AND name IN ('hapax_processed_messages', 'hapax_processed_messages_age')), \
                 (SELECT count(*) FROM hapax_processed_messages)",
        )
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(ClaimsSize {
            bytes: count(bytes),
            rows: count(rows),
        })
    }
}
