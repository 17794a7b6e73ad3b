//! Rows of the outbox on PostgreSQL: locked in the transaction that marks them, so that any number of hosts may relay.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::PostgresSession;
use crate::message::{Instant, MessageId};
use crate::store::outbox::{Candidate, OutboxSession, chosen, next_key, stranded, without_gaps};
use crate::store::text::{clean_reason, headers_from_json, instant_from_microseconds};
use crate::store::{
    OutboxCounts, OutboxFilter, OutboxMarks, OutboxMessage, OutboxQuery, OutboxState,
    OutboxStranded, OutboxTaken, Session as _, StoreError, StoredOutboxRow,
};

/// Rows without a key that may leave, locked; those that other hosts have in hand are passed over. They are looked for target by target, so that those
/// of other targets are not read. `$2` holds targets, `''` for none.
const WITHOUT_KEY: &str = "SELECT of_target.number, of_target.bytes \
     FROM unnest($2::text[]) AS reachable (target) CROSS JOIN LATERAL \
         (SELECT number, due_at, octet_length(payload)::bigint AS bytes FROM hapax.outbox \
          WHERE consumer = $1 AND coalesce(target, '') = reachable.target COLLATE \"C\" \
              AND key IS NULL AND published_at IS NULL AND parked_at IS NULL AND due_at <= now() \
          ORDER BY due_at, number LIMIT $3 FOR UPDATE SKIP LOCKED) AS of_target \
     ORDER BY of_target.due_at, of_target.number LIMIT $3";

/// The first row of each key from `$2` on, found by going from key to key in the index, however many rows each has.
const HEADS: &str = "WITH RECURSIVE heads (key, number) AS ( \
         (SELECT key, number FROM hapax.outbox \
          WHERE consumer = $1 AND key >= $2 AND key IS NOT NULL AND published_at IS NULL AND parked_at IS NULL \
          ORDER BY key, number LIMIT 1) \
         UNION ALL \
         SELECT later.key, later.number FROM heads CROSS JOIN LATERAL \
             (SELECT key, number FROM hapax.outbox \
              WHERE consumer = $1 AND key > heads.key AND key IS NOT NULL AND published_at IS NULL AND parked_at IS NULL \
              ORDER BY key, number LIMIT 1) AS later \
     ) SELECT key, number FROM heads LIMIT $3";

/// Locks heads that may leave.
const LOCK_HEADS: &str = "SELECT key, number FROM hapax.outbox \
     WHERE number = ANY ($1) AND published_at IS NULL AND parked_at IS NULL AND due_at <= now() \
         AND coalesce(target, '') = ANY ($2) \
     ORDER BY number FOR UPDATE SKIP LOCKED";

/// The first rows of keys, in order, not locked yet.
const OF_KEYS: &str = "SELECT of_key.number, of_key.key, of_key.bytes, of_key.may_leave \
     FROM unnest($2::text[]) AS head (key) CROSS JOIN LATERAL \
         (SELECT number, key, octet_length(payload)::bigint AS bytes, \
              due_at <= now() AND coalesce(target, '') = ANY ($3) AS may_leave \
          FROM hapax.outbox \
          WHERE consumer = $1 AND key = head.key AND key IS NOT NULL AND published_at IS NULL AND parked_at IS NULL \
          ORDER BY number LIMIT $4) AS of_key \
     ORDER BY of_key.number";

const MESSAGE_COLUMNS: &str =
    "number, id, target, subject, key, headers::text, content_type, payload, attempts";

fn read_message(row: &PgRow) -> Result<OutboxMessage, sqlx::Error> {
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
        attempts: u32::try_from(row.try_get::<i32, _>(8)?).unwrap_or(0),
    })
}

fn microseconds(column: &str) -> String {
    format!(
        "CASE WHEN isfinite({column}) THEN (extract(epoch FROM {column}) * 1000000)::bigint END"
    )
}

/// The columns that `read_stored` takes; `payload` is one, or stands for it.
fn stored_columns(payload: &str) -> String {
    format!(
        "number, id, target, subject, key, headers::text, content_type, {payload}, attempts, consumer, message_id, \
         octet_length(payload)::bigint, error, {}, {}, {}, parked_at IS NOT NULL, due_at > now()",
        microseconds("created_at"),
        microseconds("due_at"),
        microseconds("published_at")
    )
}

fn read_stored(row: &PgRow) -> Result<StoredOutboxRow, sqlx::Error> {
    let moment = |index: usize| -> Result<Option<Instant>, sqlx::Error> {
        let microseconds: Option<i64> = row.try_get(index)?;
        Ok(microseconds.map(instant_from_microseconds))
    };
    let message_id: String = row.try_get(10)?;
    let published_at = moment(15)?;
    let state = match (published_at, row.try_get(16)?, row.try_get(17)?) {
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
        published_at,
    })
}

impl PostgresSession {
    async fn take_in_tx(&mut self, query: &OutboxQuery) -> Result<OutboxTaken, sqlx::Error> {
        let limit = i64::from(query.limit);
        let reachable = query.reachable();
        let without_key: Vec<(i64, i64)> = sqlx::query_as(WITHOUT_KEY)
            .bind(&query.consumer)
            .bind(&reachable)
            .bind(limit)
            .fetch_all(&mut self.connection)
            .await?;
        let heads: Vec<(String, i64)> = sqlx::query_as(HEADS)
            .bind(&query.consumer)
            .bind(&query.from_key)
            .bind(limit)
            .fetch_all(&mut self.connection)
            .await?;
        let (from_key, all_keys_seen) = next_key(&heads, query.limit);
        let mut locked: BTreeMap<String, i64> = BTreeMap::new();
        let mut of_keys = Vec::new();
        let mut key_of: BTreeMap<i64, String> = BTreeMap::new();
        if !heads.is_empty() {
            let numbers: Vec<i64> = heads.iter().map(|(_, number)| *number).collect();
            let rows: Vec<(String, i64)> = sqlx::query_as(LOCK_HEADS)
                .bind(&numbers)
                .bind(&reachable)
                .fetch_all(&mut self.connection)
                .await?;
            locked.extend(rows);
        }
        let of_each = (limit / i64::try_from(locked.len()).unwrap_or(1).max(1)).max(1);
        if !locked.is_empty() {
            let keys: Vec<&str> = locked.keys().map(String::as_str).collect();
            let rows: Vec<(i64, Option<String>, i64, bool)> = sqlx::query_as(OF_KEYS)
                .bind(&query.consumer)
                .bind(&keys)
                .bind(&reachable)
                .bind(of_each)
                .fetch_all(&mut self.connection)
                .await?;
            key_of.extend(
                rows.iter()
                    .filter_map(|(number, key, ..)| Some((*number, key.clone()?))),
            );
            of_keys.extend(
                rows.into_iter()
                    .map(|(number, key, bytes, may_leave)| Candidate {
                        number,
                        key,
                        bytes: bytes.unsigned_abs(),
                        may_leave,
                    }),
            );
        }
        let without_key = without_key
            .into_iter()
            .map(|(number, bytes)| Candidate {
                number,
                key: None,
                bytes: bytes.unsigned_abs(),
                may_leave: true,
            })
            .collect();
        let numbers = chosen(without_key, &locked, of_keys);
        let mut messages = Vec::with_capacity(numbers.len());
        if !numbers.is_empty() {
            // The lock of a key's head is not enough: a row that comes into sight with a smaller number (a late commit, one that
            // is published again) is the head for the next host, and the rows behind it are still in the hands of the first.
            let rows = sqlx::query(AssertSqlSafe(format!(
                "SELECT {MESSAGE_COLUMNS} FROM hapax.outbox \
                 WHERE number = ANY ($1) AND published_at IS NULL AND parked_at IS NULL \
                 ORDER BY number FOR UPDATE SKIP LOCKED"
            )))
            .bind(&numbers)
            .fetch_all(&mut self.connection)
            .await?;
            for row in &rows {
                messages.push(read_message(row)?);
            }
            without_gaps(&mut messages, &numbers, &key_of);
        }
        Ok(OutboxTaken {
            has_more: !all_keys_seen || !messages.is_empty(),
            messages,
            from_key,
        })
    }

    async fn mark_in_tx(&mut self, marks: &OutboxMarks) -> Result<(), sqlx::Error> {
        let mut queues: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
        let mut published = marks.published.clone();
        for (queue, number) in &marks.enqueued {
            queues.entry(queue).or_default().push(*number);
            published.push(*number);
        }
        for (queue, numbers) in queues {
            sqlx::query(
                "INSERT INTO hapax.queue (queue, message_id, subject, headers, content_type, payload) \
                 SELECT $1, id, subject, headers, content_type, payload FROM hapax.outbox \
                 WHERE number = ANY ($2) AND published_at IS NULL ORDER BY number",
            )
            .bind(queue)
            .bind(&numbers)
            .execute(&mut self.connection)
            .await?;
        }
        if !published.is_empty() {
            sqlx::query(
                "UPDATE hapax.outbox SET published_at = clock_timestamp(), error = NULL \
                 WHERE number = ANY ($1) AND published_at IS NULL",
            )
            .bind(&published)
            .execute(&mut self.connection)
            .await?;
        }
        for (number, error, wait) in &marks.failed {
            sqlx::query(
                "UPDATE hapax.outbox SET attempts = attempts + 1, error = $2, \
                     due_at = clock_timestamp() + $3 * interval '1 millisecond' WHERE number = $1",
            )
            .bind(number)
            .bind(clean_reason(error))
            .bind(wait.as_millis().min(1 << 50) as f64)
            .execute(&mut self.connection)
            .await?;
        }
        for (number, reason) in &marks.parked {
            sqlx::query(
                "UPDATE hapax.outbox SET attempts = attempts + 1, error = $2, parked_at = clock_timestamp() \
                 WHERE number = $1",
            )
            .bind(number)
            .bind(clean_reason(reason))
            .execute(&mut self.connection)
            .await?;
        }
        Ok(())
    }
}

impl OutboxSession for PostgresSession {
    async fn take_outbox(
        &mut self,
        query: &OutboxQuery,
    ) -> Result<Option<OutboxTaken>, StoreError> {
        self.begin().await?;
        match self.take_in_tx(query).await {
            Ok(taken) => Ok(Some(taken)),
            Err(error) => {
                let error = self.host_error(&error);
                self.abandon(error).await
            }
        }
    }

    async fn settle_outbox(&mut self, marks: &OutboxMarks) -> Result<(), StoreError> {
        match self.mark_in_tx(marks).await {
            Ok(()) => self.commit_own().await,
            Err(error) => {
                let error = self.host_error(&error);
                self.abandon(error).await
            }
        }
    }

    async fn give_back_outbox(&mut self) -> Result<(), StoreError> {
        self.rollback().await
    }

    async fn has_outbox(&mut self, query: &OutboxQuery) -> Result<bool, StoreError> {
        // A key waits as a whole for its head.
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM hapax.outbox \
                 WHERE consumer = $1 AND key IS NULL AND published_at IS NULL AND parked_at IS NULL \
                     AND (due_at <= now() OR attempts > 0) AND coalesce(target, '') = ANY ($2)) \
             OR EXISTS (WITH RECURSIVE heads (key, number) AS ( \
                     (SELECT key, number FROM hapax.outbox \
                      WHERE consumer = $1 AND key IS NOT NULL AND published_at IS NULL AND parked_at IS NULL \
                      ORDER BY key, number LIMIT 1) \
                     UNION ALL \
                     SELECT later.key, later.number FROM heads CROSS JOIN LATERAL \
                         (SELECT key, number FROM hapax.outbox WHERE consumer = $1 AND key > heads.key \
                              AND key IS NOT NULL AND published_at IS NULL AND parked_at IS NULL \
                          ORDER BY key, number LIMIT 1) AS later \
                 ) SELECT 1 FROM heads JOIN hapax.outbox USING (number) \
                 WHERE (due_at <= now() OR attempts > 0) AND coalesce(target, '') = ANY ($2))",
        )
        .bind(&query.consumer)
        .bind(query.reachable())
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn stranded_outbox(
        &mut self,
        query: &OutboxQuery,
    ) -> Result<Vec<OutboxStranded>, StoreError> {
        let rows: Vec<(Option<String>, i64)> = sqlx::query_as(
            "WITH RECURSIVE targets (target) AS ( \
                 (SELECT coalesce(target, '') FROM hapax.outbox \
                  WHERE consumer = $1 AND key IS NULL AND published_at IS NULL AND parked_at IS NULL \
                  ORDER BY coalesce(target, '') LIMIT 1) \
                 UNION ALL \
                 SELECT later.target FROM targets CROSS JOIN LATERAL \
                     (SELECT coalesce(target, '') AS target FROM hapax.outbox \
                      WHERE consumer = $1 AND coalesce(target, '') > targets.target \
                          AND key IS NULL AND published_at IS NULL AND parked_at IS NULL \
                      ORDER BY coalesce(target, '') LIMIT 1) AS later \
             ), heads (key, number) AS ( \
                 (SELECT key, number FROM hapax.outbox \
                  WHERE consumer = $1 AND key IS NOT NULL AND published_at IS NULL AND parked_at IS NULL \
                  ORDER BY key, number LIMIT 1) \
                 UNION ALL \
                 SELECT later.key, later.number FROM heads CROSS JOIN LATERAL \
                     (SELECT key, number FROM hapax.outbox WHERE consumer = $1 AND key > heads.key \
                          AND key IS NOT NULL AND published_at IS NULL AND parked_at IS NULL \
                      ORDER BY key, number LIMIT 1) AS later \
             ) SELECT nullif(target, ''), sum(rows)::bigint FROM ( \
                 SELECT targets.target, (SELECT count(*) FROM hapax.outbox AS one \
                     WHERE one.consumer = $1 AND coalesce(one.target, '') = targets.target \
                         AND one.key IS NULL AND one.published_at IS NULL AND one.parked_at IS NULL) \
                 FROM targets WHERE targets.target <> ALL ($2) \
                 UNION ALL \
                 SELECT coalesce(head.target, ''), (SELECT count(*) FROM hapax.outbox AS one \
                     WHERE one.consumer = $1 AND one.key = heads.key \
                         AND one.key IS NOT NULL AND one.published_at IS NULL AND one.parked_at IS NULL) \
                 FROM heads JOIN hapax.outbox AS head USING (number) WHERE coalesce(head.target, '') <> ALL ($2) \
             ) AS here (target, rows) GROUP BY target ORDER BY target",
        )
        .bind(&query.consumer)
        .bind(query.reachable())
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(stranded(rows))
    }

    async fn prune_outbox(&mut self, keep: Duration, limit: u32) -> Result<u64, StoreError> {
        let done = sqlx::query(
            "DELETE FROM hapax.outbox WHERE number IN (SELECT number FROM hapax.outbox \
                 WHERE published_at IS NOT NULL AND published_at < now() - $1 * interval '1 millisecond' \
                 ORDER BY published_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
        )
        .bind(keep.as_millis().min(1 << 50) as f64)
        .bind(i64::from(limit))
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(done.rows_affected())
    }

    async fn outbox_counts(&mut self, consumer: &str) -> Result<OutboxCounts, StoreError> {
        let (unpublished, parked, oldest): (i64, i64, Option<f64>) = sqlx::query_as(
            "SELECT count(*) FILTER (WHERE parked_at IS NULL), count(*) FILTER (WHERE parked_at IS NOT NULL), \
                 extract(epoch FROM now() - min(CASE WHEN attempts > 0 THEN created_at ELSE due_at END) \
                     FILTER (WHERE parked_at IS NULL AND (due_at <= now() OR attempts > 0)))::double precision \
             FROM (SELECT due_at, attempts, created_at, parked_at FROM hapax.outbox \
                   WHERE consumer = $1 AND key IS NULL AND published_at IS NULL AND parked_at IS NULL \
                   UNION ALL SELECT due_at, attempts, created_at, parked_at FROM hapax.outbox \
                   WHERE consumer = $1 AND key IS NOT NULL AND published_at IS NULL AND parked_at IS NULL \
                   UNION ALL SELECT due_at, attempts, created_at, parked_at FROM hapax.outbox \
                   WHERE consumer = $1 AND parked_at IS NOT NULL) AS here",
        )
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
            .map_or("true".to_owned(), |state| state.condition("now()"));
        let rows = sqlx::query(AssertSqlSafe(format!(
            "SELECT {} FROM hapax.outbox \
             WHERE (cardinality($1::text[]) = 0 OR consumer = ANY ($1)) AND ($2::text IS NULL OR target = $2) \
                 AND ($3::text IS NULL OR id = $3) AND ($4::bigint IS NULL OR number < $4) AND {state} \
             ORDER BY number DESC LIMIT $5",
            stored_columns("''::bytea"),
        )))
        .bind(&filter.consumers)
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
            "SELECT {} FROM hapax.outbox WHERE number = $1",
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
        sqlx::query_scalar(
            "UPDATE hapax.outbox SET published_at = NULL, parked_at = NULL, attempts = 0, error = NULL, due_at = now() \
             WHERE number = ANY ($1) RETURNING number",
        )
        .bind(numbers)
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn drop_outbox(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        sqlx::query_scalar("DELETE FROM hapax.outbox WHERE number = ANY ($1) RETURNING number")
            .bind(numbers)
            .fetch_all(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))
    }
}
