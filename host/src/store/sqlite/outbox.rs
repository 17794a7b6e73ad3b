//! Rows of the outbox on SQLite. There is one writer, so nothing is locked in the database while rows are published: one host at
//! a time relays, by the lock on a file beside the database.

use std::time::Duration;

use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::SqliteSession;
use super::started::{NOW, lock_file, relay_lock_path};
use crate::message::{Instant, MessageId};
use crate::store::outbox::{Candidate, OutboxSession, chosen, next_key, stranded};
use crate::store::text::{clean_reason, headers_from_json, instant_from_text};
use crate::store::{
    OutboxCounts, OutboxFilter, OutboxMarks, OutboxMessage, OutboxQuery, OutboxState,
    OutboxStranded, OutboxTaken, Session as _, StoreError, StoredOutboxRow, records,
};

/// True of rows whose target can be reached: `?2` is a JSON list of targets, `''` for none.
const REACHABLE: &str = "coalesce(target, '') IN (SELECT value FROM json_each(?2))";
const OPEN: &str = "published_at IS NULL AND parked_at IS NULL";

/// Selects the first row of each key for which `from` is true, at most `limit` keys. It goes from key to key in the index, however many rows each
/// has: grouping them would read all that stand behind a row that waits, again at each look.
fn heads(from: &str, limit: &str) -> String {
    format!(
        "WITH RECURSIVE heads (key) AS ( \
             SELECT (SELECT key FROM hapax_outbox \
                     WHERE consumer = ?1 AND {from} AND key IS NOT NULL AND {OPEN} ORDER BY key LIMIT 1) \
             UNION ALL \
             SELECT (SELECT later.key FROM hapax_outbox AS later \
                     WHERE later.consumer = ?1 AND later.key > heads.key AND later.key IS NOT NULL AND {OPEN} \
                     ORDER BY later.key LIMIT 1) \
             FROM heads WHERE heads.key IS NOT NULL LIMIT {limit} \
         ) SELECT key, (SELECT first.number FROM hapax_outbox AS first \
                        WHERE first.consumer = ?1 AND first.key = heads.key AND first.key IS NOT NULL AND {OPEN} \
                        ORDER BY first.number LIMIT 1) AS number \
         FROM heads WHERE key IS NOT NULL"
    )
}

const MESSAGE_COLUMNS: &str =
    "number, id, target, subject, key, headers, content_type, payload, attempts";

fn json(list: &[impl serde::Serialize]) -> String {
    serde_json::json!(list).to_string()
}

/// Returns the moment `span` before (`-`) or after (`+`) now, in the form of the database's own.
fn from_now(sign: char, span: Duration) -> String {
    format!(
        "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '{sign}{:.3} seconds')",
        span.as_secs_f64().min(1e10)
    )
}

fn read_message(row: &SqliteRow) -> Result<OutboxMessage, sqlx::Error> {
    let headers: String = row.try_get(5)?;
    Ok(OutboxMessage {
        number: row.try_get(0)?,
        id: row.try_get(1)?,
        target: row.try_get(2)?,
        subject: row.try_get(3)?,
        key: row.try_get(4)?,
        headers: headers_from_json(&headers),
        content_type: row.try_get(6)?,
        payload: row.try_get::<Vec<u8>, _>(7)?.into(),
        attempts: u32::try_from(row.try_get::<i64, _>(8)?).unwrap_or(0),
    })
}

/// The columns that `read_stored` takes; `payload` is one, or stands for it.
fn stored_columns(payload: &str) -> String {
    format!(
        "number, id, target, subject, key, headers, content_type, {payload}, attempts, consumer, message_id, \
         length(payload), error, created_at, due_at, published_at, parked_at IS NOT NULL, due_at > {NOW}"
    )
}

fn read_stored(row: &SqliteRow) -> Result<StoredOutboxRow, sqlx::Error> {
    let moment = |index: usize| -> Result<Option<Instant>, sqlx::Error> {
        let text: Option<String> = row.try_get(index)?;
        Ok(text.as_deref().and_then(instant_from_text))
    };
    let message_id: String = row.try_get(10)?;
    let is_published: Option<String> = row.try_get(15)?;
    let state = match (is_published, row.try_get(16)?, row.try_get(17)?) {
        (Some(_), _, _) => OutboxState::Published,
        (None, true, _) => OutboxState::Parked,
        (None, false, true) => OutboxState::Waiting,
        (None, false, false) => OutboxState::Unpublished,
    };
    Ok(StoredOutboxRow {
        message: read_message(row)?,
        consumer: row.try_get(9)?,
        message_id: MessageId::new(&message_id)
            .map_err(|error| sqlx::Error::Decode(error.to_string().into()))?,
        payload_bytes: row.try_get::<i64, _>(11)?.unsigned_abs(),
        state,
        error: row.try_get(12)?,
        created_at: moment(13)?,
        due_at: moment(14)?,
        published_at: moment(15)?,
    })
}

impl SqliteSession {
    async fn look_for(&mut self, query: &OutboxQuery) -> Result<OutboxTaken, sqlx::Error> {
        let targets = json(&query.reachable());
        let limit = i64::from(query.limit);
        // Target by target, so that rows of other targets are not read.
        let mut without_key: Vec<(String, i64, i64)> = Vec::new();
        for target in query.reachable() {
            let rows = sqlx::query_as(AssertSqlSafe(format!(
                "SELECT due_at, number, length(payload) FROM hapax_outbox \
                 WHERE consumer = ?1 AND coalesce(target, '') = ?2 AND key IS NULL AND {OPEN} AND due_at <= {NOW} \
                 ORDER BY due_at, number LIMIT ?3"
            )))
            .bind(&query.consumer)
            .bind(target)
            .bind(limit)
            .fetch_all(&mut self.connection)
            .await?;
            without_key.extend::<Vec<(String, i64, i64)>>(rows);
        }
        without_key.sort();
        without_key.truncate(query.limit as usize);
        let heads: Vec<(String, i64)> = sqlx::query_as(AssertSqlSafe(heads("key >= ?2", "?3")))
            .bind(&query.consumer)
            .bind(&query.from_key)
            .bind(limit)
            .fetch_all(&mut self.connection)
            .await?;
        let (from_key, all_keys_seen) = next_key(&heads, query.limit);
        let of_each = (limit / i64::try_from(heads.len()).unwrap_or(1).max(1)).max(1);
        let mut of_keys = Vec::new();
        for (key, _) in &heads {
            let rows: Vec<(i64, i64, bool)> = sqlx::query_as(AssertSqlSafe(format!(
                "SELECT number, length(payload), due_at <= {NOW} AND {REACHABLE} FROM hapax_outbox \
                 WHERE consumer = ?1 AND key = ?3 AND key IS NOT NULL AND {OPEN} ORDER BY number LIMIT ?4"
            )))
            .bind(&query.consumer)
            .bind(&targets)
            .bind(key)
            .bind(of_each)
            .fetch_all(&mut self.connection)
            .await?;
            of_keys.extend(
                rows.into_iter()
                    .map(|(number, bytes, may_leave)| Candidate {
                        number,
                        key: Some(key.clone()),
                        bytes: bytes.unsigned_abs(),
                        may_leave,
                    }),
            );
        }
        let without_key = without_key
            .into_iter()
            .map(|(_, number, bytes)| Candidate {
                number,
                key: None,
                bytes: bytes.unsigned_abs(),
                may_leave: true,
            })
            .collect();
        let numbers = chosen(without_key, &heads.into_iter().collect(), of_keys);
        let rows = sqlx::query(AssertSqlSafe(format!(
            "SELECT {MESSAGE_COLUMNS} FROM hapax_outbox WHERE number IN (SELECT value FROM json_each(?1)) ORDER BY number"
        )))
        .bind(json(&numbers))
        .fetch_all(&mut self.connection)
        .await?;
        let messages = rows
            .iter()
            .map(read_message)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(OutboxTaken {
            has_more: !all_keys_seen || !messages.is_empty(),
            messages,
            from_key,
        })
    }

    async fn mark_in_tx(&mut self, marks: &OutboxMarks) -> Result<(), sqlx::Error> {
        for (queue, number) in &marks.enqueued {
            sqlx::query(
                "INSERT INTO hapax_queue (queue, message_id, subject, headers, content_type, payload) \
                 SELECT ?1, id, subject, headers, content_type, payload FROM hapax_outbox \
                 WHERE number = ?2 AND published_at IS NULL",
            )
            .bind(queue)
            .bind(number)
            .execute(&mut self.connection)
            .await?;
        }
        let enqueued = marks.enqueued.iter().map(|(_, number)| *number);
        let published: Vec<i64> = marks.published.iter().copied().chain(enqueued).collect();
        sqlx::query(AssertSqlSafe(format!(
            "UPDATE hapax_outbox SET published_at = {NOW}, error = NULL \
             WHERE number IN (SELECT value FROM json_each(?1)) AND published_at IS NULL"
        )))
        .bind(json(&published))
        .execute(&mut self.connection)
        .await?;
        for (number, error, wait) in &marks.failed {
            sqlx::query(AssertSqlSafe(format!(
                "UPDATE hapax_outbox SET attempts = attempts + 1, error = ?2, due_at = {} WHERE number = ?1",
                from_now('+', *wait)
            )))
            .bind(number)
            .bind(clean_reason(error))
            .execute(&mut self.connection)
            .await?;
        }
        for (number, reason) in &marks.parked {
            sqlx::query(AssertSqlSafe(format!(
                "UPDATE hapax_outbox SET attempts = attempts + 1, error = ?2, parked_at = {NOW} WHERE number = ?1"
            )))
            .bind(number)
            .bind(clean_reason(reason))
            .execute(&mut self.connection)
            .await?;
        }
        Ok(())
    }
}

impl OutboxSession for SqliteSession {
    async fn take_outbox(
        &mut self,
        query: &OutboxQuery,
    ) -> Result<Option<OutboxTaken>, StoreError> {
        if self.broken {
            return Err(records::broken_connection());
        }
        self.clear_tx();
        let mut locks = Vec::with_capacity(query.targets.len());
        for target in &query.targets {
            match lock_file(&relay_lock_path(&self.path, target))? {
                Some(lock) => locks.push(lock),
                None => return Ok(None),
            }
        }
        let taken = self
            .look_for(query)
            .await
            .map_err(|error| self.host_error(&error))?;
        self.relay_locks = locks;
        Ok(Some(taken))
    }

    async fn settle_outbox(&mut self, marks: &OutboxMarks) -> Result<(), StoreError> {
        let locks = std::mem::take(&mut self.relay_locks);
        self.begin().await?;
        let settled = match self.mark_in_tx(marks).await {
            Ok(()) => self.commit_own().await,
            Err(error) => {
                let error = self.host_error(&error);
                self.abandon(error).await
            }
        };
        // Only after the marks are there for the next relay to see.
        drop(locks);
        settled
    }

    async fn give_back_outbox(&mut self) -> Result<(), StoreError> {
        self.relay_locks.clear();
        Ok(())
    }

    async fn has_outbox(&mut self, query: &OutboxQuery) -> Result<bool, StoreError> {
        // A key waits as a whole for its head.
        sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT EXISTS (SELECT 1 FROM hapax_outbox WHERE consumer = ?1 AND key IS NULL AND {OPEN} \
                 AND (due_at <= {NOW} OR attempts > 0) AND {REACHABLE}) \
             OR EXISTS (SELECT 1 FROM ({}) AS head \
                 JOIN hapax_outbox USING (number) WHERE (due_at <= {NOW} OR attempts > 0) AND {REACHABLE})",
            heads("true", "-1"),
        )))
        .bind(&query.consumer)
        .bind(json(&query.reachable()))
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn stranded_outbox(
        &mut self,
        query: &OutboxQuery,
    ) -> Result<Vec<OutboxStranded>, StoreError> {
        let rows: Vec<(Option<String>, i64)> = sqlx::query_as(AssertSqlSafe(format!(
            "WITH RECURSIVE targets (name) AS ( \
                 SELECT (SELECT coalesce(target, '') FROM hapax_outbox \
                         WHERE consumer = ?1 AND key IS NULL AND {OPEN} ORDER BY coalesce(target, '') LIMIT 1) \
                 UNION ALL \
                 SELECT (SELECT coalesce(target, '') FROM hapax_outbox \
                         WHERE consumer = ?1 AND coalesce(target, '') > targets.name AND key IS NULL AND {OPEN} \
                         ORDER BY coalesce(target, '') LIMIT 1) \
                 FROM targets WHERE targets.name IS NOT NULL \
             ) SELECT nullif(target, ''), sum(rows) FROM ( \
                 SELECT targets.name AS target, (SELECT count(*) FROM hapax_outbox \
                     WHERE consumer = ?1 AND coalesce(target, '') = targets.name AND key IS NULL AND {OPEN}) AS rows \
                 FROM targets WHERE targets.name IS NOT NULL AND targets.name NOT IN (SELECT value FROM json_each(?2)) \
                 UNION ALL \
                 SELECT coalesce(first.target, ''), (SELECT count(*) FROM hapax_outbox AS one \
                     WHERE one.consumer = ?1 AND one.key = head.key AND one.key IS NOT NULL AND {OPEN}) \
                 FROM ({}) AS head JOIN hapax_outbox AS first ON first.number = head.number \
                 WHERE coalesce(first.target, '') NOT IN (SELECT value FROM json_each(?2)) \
             ) GROUP BY target ORDER BY target",
            heads("true", "-1"),
        )))
        .bind(&query.consumer)
        .bind(json(&query.reachable()))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(stranded(rows))
    }

    async fn prune_outbox(&mut self, keep: Duration, limit: u32) -> Result<u64, StoreError> {
        self.clear_tx();
        let done = sqlx::query(AssertSqlSafe(format!(
            "DELETE FROM hapax_outbox WHERE number IN (SELECT number FROM hapax_outbox \
                 WHERE published_at IS NOT NULL AND published_at < {} ORDER BY published_at LIMIT ?1)",
            from_now('-', keep)
        )))
        .bind(i64::from(limit))
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(done.rows_affected())
    }

    async fn outbox_counts(&mut self, consumer: &str) -> Result<OutboxCounts, StoreError> {
        let (unpublished, parked, oldest): (i64, i64, Option<f64>) = sqlx::query_as(AssertSqlSafe(format!(
            "SELECT count(*) FILTER (WHERE parked_at IS NULL), count(*) FILTER (WHERE parked_at IS NOT NULL), \
                 (julianday('now') - julianday(min(CASE WHEN attempts > 0 OR due_at = '' THEN created_at ELSE due_at END) \
                     FILTER (WHERE parked_at IS NULL AND (due_at <= {NOW} OR attempts > 0)))) * 86400.0 \
             FROM hapax_outbox WHERE consumer = ?1 AND published_at IS NULL"
        )))
        .bind(consumer)
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(OutboxCounts {
            unpublished: unpublished.unsigned_abs(),
            parked: parked.unsigned_abs(),
            oldest_seconds: oldest.map(|seconds| seconds.max(0.0) as u64),
        })
    }

    async fn outbox_rows(
        &mut self,
        filter: &OutboxFilter,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<StoredOutboxRow>, StoreError> {
        let state = filter
            .state
            .map_or("1".to_owned(), |state| state.condition(NOW));
        let rows = sqlx::query(AssertSqlSafe(format!(
            "SELECT {} FROM hapax_outbox \
             WHERE (?1 = '[]' OR consumer IN (SELECT value FROM json_each(?1))) AND (?2 IS NULL OR target = ?2) \
                 AND (?3 IS NULL OR id = ?3) AND (?4 IS NULL OR number < ?4) AND {state} \
             ORDER BY number DESC LIMIT ?5",
            stored_columns("x''"),
        )))
        .bind(json(&filter.consumers))
        .bind(&filter.target)
        .bind(&filter.id)
        .bind(below)
        .bind(i64::from(limit))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        rows.iter()
            .map(read_stored)
            .collect::<Result<_, _>>()
            .map_err(|error| self.host_error(&error))
    }

    async fn outbox_row(&mut self, number: i64) -> Result<Option<StoredOutboxRow>, StoreError> {
        let row = sqlx::query(AssertSqlSafe(format!(
            "SELECT {} FROM hapax_outbox WHERE number = ?1",
            stored_columns("payload")
        )))
        .bind(number)
        .fetch_optional(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        row.as_ref()
            .map(read_stored)
            .transpose()
            .map_err(|error| self.host_error(&error))
    }

    async fn republish_outbox(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        self.clear_tx();
        sqlx::query_scalar(AssertSqlSafe(format!(
            "UPDATE hapax_outbox SET published_at = NULL, parked_at = NULL, attempts = 0, error = NULL, due_at = {NOW} \
             WHERE number IN (SELECT value FROM json_each(?1)) RETURNING number"
        )))
        .bind(json(numbers))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn drop_outbox(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        self.clear_tx();
        sqlx::query_scalar(
            "DELETE FROM hapax_outbox WHERE number IN (SELECT value FROM json_each(?1)) RETURNING number",
        )
        .bind(json(numbers))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
    use sqlx::{ConnectOptions as _, Connection as _};
    use tempfile::TempDir;

    use super::*;
    use crate::store::SessionOptions;

    /// How many steps of SQLite's machine a statement for the consumer `c` takes, and how many rows it gives.
    async fn steps_of(connection: &mut SqliteConnection, sql: String) -> (u64, usize) {
        let steps = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&steps);
        let mut handle = connection.lock_handle().await.unwrap();
        handle.set_progress_handler(1, move || {
            counted.fetch_add(1, Ordering::Relaxed);
            true
        });
        drop(handle);
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind("c")
            .bind("")
            .bind(200)
            .fetch_all(&mut *connection)
            .await
            .unwrap();
        connection
            .lock_handle()
            .await
            .unwrap()
            .remove_progress_handler();
        (steps.load(Ordering::Relaxed), rows.len())
    }

    #[tokio::test]
    async fn the_look_at_keys_does_not_read_what_stands_behind_a_waiting_row() {
        let folder = TempDir::with_prefix("hapax-sqlite-").unwrap();
        let path = folder.path().join("hapax.db");
        let options = SessionOptions {
            purpose: "test".into(),
            statement_timeout: Some(Duration::from_secs(60)),
            lock_timeout: Duration::from_secs(20),
            idle_in_transaction: Duration::from_secs(60),
        };
        let mut session = SqliteSession::connect(&path, &options).await.unwrap();
        session.migrate().await.unwrap();
        let mut probe = SqliteConnectOptions::new()
            .filename(&path)
            .connect()
            .await
            .unwrap();
        // 20 keys of one row each, and one with all others, of which the first waits.
        sqlx::query(
            "INSERT INTO hapax_outbox (id, consumer, message_id, ordinal, target, subject, key, headers, payload, due_at) \
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 100000) \
             SELECT 'r' || n, 'c', 'm', n, 't', 's', CASE WHEN n % 5000 = 0 THEN 'b' || n ELSE 'a' END, '[]', x'', \
                 CASE WHEN n = 1 THEN '9999' ELSE '' END FROM n",
        )
        .execute(&mut probe)
        .await
        .unwrap();
        let (steps, keys) = steps_of(&mut probe, heads("key >= ?2", "?3")).await;
        assert_eq!(keys, 21);
        assert!(steps < 10_000, "{steps} steps");
        probe.close().await.unwrap();
    }
}
