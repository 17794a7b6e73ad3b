//! Retention on PostgreSQL.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use super::{LOCK_CLASS, PostgresSession};
use crate::message::{Instant, MessageId};
use crate::store::StoreError;
use crate::store::prune::{
    ClaimsSize, Leftover, PRUNE_BATCH_MAX, Prunable, PruneCursor, PruneSession, PrunedBatch,
};
use crate::store::text::instant_from_microseconds;

/// The lock of the one that prunes, within the class.
const LOCK_PRUNER: i32 = 2;

/// Which rows of `claim` are older than `$2` seconds.
const OLD_CLAIMS: &str =
    "claim.consumer = $1 AND claim.processed_at < now() - make_interval(secs => $2)";
const HAS_LETTER: &str = "claim.outcome = 'dead' AND EXISTS (SELECT 1 FROM hapax.dead_letters AS letter \
     WHERE letter.consumer = claim.consumer AND letter.message_id = claim.message_id)";

/// Returns the table, and the condition of what is older than `$1` seconds.
fn leftovers(what: Leftover) -> (&'static str, &'static str) {
    match what {
        // A message that waits in the consumer's own queue comes back.
        Leftover::Attempts => (
            "hapax.attempts",
            "old.at < now() - make_interval(secs => $1) AND NOT EXISTS (SELECT 1 FROM hapax.queue AS carried \
                 WHERE carried.queue = '@' || old.consumer AND carried.message_id = old.message_id \
                     AND carried.origin_source IS NOT NULL)",
        ),
        Leftover::Marks => (
            "hapax.started",
            "old.started_at < now() - make_interval(secs => $1)",
        ),
        Leftover::Counters => (
            "hapax.counters",
            "old.updated_at < now() - make_interval(secs => $1) AND old.host <> ''",
        ),
        Leftover::DeadLetters => (
            "hapax.dead_letters",
            "old.dead_at < now() - make_interval(secs => $1) \
                 AND NOT EXISTS (SELECT 1 FROM hapax.queue WHERE dead_letter = old.id)",
        ),
    }
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn batch(seen: i64, deleted: i64) -> PrunedBatch {
    PrunedBatch {
        deleted: count(deleted),
        is_last: seen < i64::from(PRUNE_BATCH_MAX),
    }
}

impl PruneSession for PostgresSession {
    async fn now(&mut self) -> Result<Instant, StoreError> {
        if let Some(claimed_at) = self.tx.claimed_at {
            return Ok(instant_from_microseconds(claimed_at));
        }
        let now: i64 =
            sqlx::query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
                .fetch_one(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
        Ok(instant_from_microseconds(now))
    }

    async fn claim_died(&mut self, consumer: &str, id: &MessageId) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE hapax.processed_messages SET outcome = 'dead' WHERE consumer = $1 AND message_id = $2",
        )
        .bind(consumer)
        .bind(id.as_str())
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    async fn begin_pruning(&mut self, _process: &str) -> Result<bool, StoreError> {
        // A host that stands still must not keep the others from pruning.
        self.simple("SET idle_session_timeout = '60s'").await?;
        let is_alone: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1, $2)")
            .bind(LOCK_CLASS)
            .bind(LOCK_PRUNER)
            .fetch_one(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        if is_alone {
            // A crash that undoes a batch is made good by the next round, and whatever is committed later is never kept without it: so no
            // batch waits for the disk, nor has others wait for it.
            self.simple("SET synchronous_commit = off").await?;
        }
        Ok(is_alone)
    }

    async fn end_pruning(&mut self) -> Result<(), StoreError> {
        self.simple(format!(
            "SELECT pg_advisory_unlock({LOCK_CLASS}, {LOCK_PRUNER}); SET idle_session_timeout = 0; SET synchronous_commit = on"
        ))
        .await
    }

    async fn prune_claims(
        &mut self,
        consumer: &str,
        age: Duration,
        cursor: &mut PruneCursor,
    ) -> Result<PrunedBatch, StoreError> {
        // By the row's address: a join by the key would look each up in the index again.
        let (seen, deleted, last): (i64, i64, Option<String>) = sqlx::query_as(AssertSqlSafe(format!(
            "WITH old AS MATERIALIZED ( \
                 SELECT claim.ctid, claim.processed_at FROM hapax.processed_messages AS claim \
                 WHERE {OLD_CLAIMS} AND claim.processed_at >= coalesce($3::timestamptz, '-infinity') AND NOT ({HAS_LETTER}) \
                 ORDER BY claim.processed_at LIMIT $4 FOR UPDATE OF claim SKIP LOCKED \
             ), gone AS ( \
                 DELETE FROM hapax.processed_messages WHERE ctid = ANY (ARRAY(SELECT ctid FROM old)) RETURNING 1 \
             ) \
             SELECT (SELECT count(*) FROM old), (SELECT count(*) FROM gone), (SELECT max(processed_at)::text FROM old)"
        )))
        .bind(consumer)
        .bind(age.as_secs_f64())
        .bind(&cursor.0)
        .bind(i64::from(PRUNE_BATCH_MAX))
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        if last.is_some() {
            cursor.0 = last;
        }
        Ok(batch(seen, deleted))
    }

    async fn prune_leftovers(
        &mut self,
        what: Leftover,
        age: Duration,
    ) -> Result<PrunedBatch, StoreError> {
        let (table, is_old) = leftovers(what);
        let then = match what {
            Leftover::Counters => {
                ", added AS ( \
                     INSERT INTO hapax.counters (consumer, host, claimed, duplicates, retried, rolled_back, dead) \
                     SELECT consumer, '', sum(claimed), sum(duplicates), sum(retried), sum(rolled_back), sum(dead) \
                     FROM gone GROUP BY consumer \
                     ON CONFLICT (consumer, host) DO UPDATE SET \
                         claimed = counters.claimed + excluded.claimed, \
                         duplicates = counters.duplicates + excluded.duplicates, \
                         retried = counters.retried + excluded.retried, \
                         rolled_back = counters.rolled_back + excluded.rolled_back, \
                         dead = counters.dead + excluded.dead, updated_at = now() \
                 )"
            }
            Leftover::Attempts | Leftover::Marks | Leftover::DeadLetters => "",
        };
        let deleted: i64 = sqlx::query_scalar(AssertSqlSafe(format!(
            "WITH gone AS ( \
                 DELETE FROM {table} WHERE ctid = ANY (ARRAY( \
                     SELECT old.ctid FROM {table} AS old WHERE {is_old} LIMIT $2 FOR UPDATE OF old SKIP LOCKED)) \
                 RETURNING * \
             ){then} \
             SELECT count(*) FROM gone"
        )))
        .bind(age.as_secs_f64())
        .bind(i64::from(PRUNE_BATCH_MAX))
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(batch(deleted, deleted))
    }

    async fn prunable_claims(
        &mut self,
        consumer: &str,
        age: Duration,
    ) -> Result<Prunable, StoreError> {
        let (rows, kept): (i64, i64) = sqlx::query_as(AssertSqlSafe(format!(
            "SELECT count(*), count(*) FILTER (WHERE {HAS_LETTER}) FROM hapax.processed_messages AS claim \
             WHERE {OLD_CLAIMS}"
        )))
        .bind(consumer)
        .bind(age.as_secs_f64())
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
        let (table, is_old) = leftovers(what);
        let rows: i64 = sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT count(*) FROM {table} AS old WHERE {is_old}"
        )))
        .bind(age.as_secs_f64())
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(count(rows))
    }

    async fn oldest_claim(&mut self, consumer: &str) -> Result<Option<f64>, StoreError> {
        sqlx::query_scalar(
            "SELECT extract(epoch FROM now() - min(processed_at))::float8 FROM hapax.processed_messages WHERE consumer = $1",
        )
        .bind(consumer)
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn claims_size(&mut self) -> Result<ClaimsSize, StoreError> {
        // Counting a large table reads all of it; a small one may have no statistics yet.
        let (bytes, estimate): (i64, f64) = sqlx::query_as(
            "SELECT pg_total_relation_size(oid), reltuples::float8 FROM pg_class \
             WHERE oid = 'hapax.processed_messages'::regclass",
        )
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        let rows = if bytes > 64 << 20 && estimate > 0.0 {
            estimate as u64
        } else {
            let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM hapax.processed_messages")
                .fetch_one(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
            count(rows)
        };
        Ok(ClaimsSize {
            bytes: count(bytes),
            rows,
        })
    }
}
