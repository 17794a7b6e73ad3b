//! Rows of the embedded queue on PostgreSQL.

use sqlx::{AssertSqlSafe, Row as _};

use super::PostgresSession;
use super::letters::read_carried;
use crate::store::queue::QueueSession;
use crate::store::text::{headers_from_json, headers_to_json, instant_from_microseconds};
use crate::store::{NewQueueRow, QueueRow, StoreError};

impl QueueSession for PostgresSession {
    async fn take_queue_rows(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        sqlx::query_scalar(
            "DELETE FROM hapax.queue WHERE number IN \
                 (SELECT number FROM hapax.queue WHERE number = ANY ($1) AND due_at <= clock_timestamp() \
                      ORDER BY number FOR UPDATE SKIP LOCKED) \
             RETURNING number",
        )
        .bind(numbers)
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn wait_for_queue_row(&mut self, number: i64) -> Result<bool, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        let done = sqlx::query("DELETE FROM hapax.queue WHERE number = $1")
            .bind(number)
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        Ok(done.rows_affected() > 0)
    }

    async fn enqueue(&mut self, queue: &str, rows: &[NewQueueRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let maybe =
            |get: fn(&NewQueueRow) -> Option<&str>| rows.iter().map(get).collect::<Vec<_>>();
        let subjects: Vec<&str> = rows.iter().map(|row| row.subject.as_str()).collect();
        let headers: Vec<String> = rows
            .iter()
            .map(|row| headers_to_json(&row.headers))
            .collect();
        let payloads: Vec<&[u8]> = rows.iter().map(|row| &row.payload[..]).collect();
        sqlx::query(
            "INSERT INTO hapax.queue (queue, message_id, subject, headers, content_type, payload) \
             SELECT $1, message_id, subject, headers::json, content_type, payload \
             FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[]) WITH ORDINALITY \
                 AS row (message_id, subject, headers, content_type, payload, place) \
             ORDER BY place",
        )
        .bind(queue)
        .bind(maybe(|row| row.message_id.as_deref()))
        .bind(subjects)
        .bind(headers)
        .bind(maybe(|row| row.content_type.as_deref()))
        .bind(payloads)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    async fn peek_queue(
        &mut self,
        queue: &str,
        in_hand: &[i64],
        limit: u32,
    ) -> Result<Vec<QueueRow>, StoreError> {
        // A consumer's own queue has an index in which rows that are not due cost nothing.
        let (which, order) = if queue.starts_with('@') {
            ("origin_source IS NOT NULL", "due_at, number")
        } else {
            ("true", "number")
        };
        let rows = sqlx::query(AssertSqlSafe(format!(
            "SELECT number, message_id, subject, headers::text, content_type, payload, \
                 CASE WHEN isfinite(enqueued_at) THEN (extract(epoch FROM enqueued_at) * 1000000)::bigint END, \
                 origin_source, origin_position, (extract(epoch FROM origin_published_at) * 1000000)::bigint, \
                 origin_queue_id, dead_letter, forced, seen \
             FROM hapax.queue \
             WHERE queue = $1 AND due_at <= now() AND NOT (number = ANY ($2)) AND {which} \
             ORDER BY {order} LIMIT $3"
        )))
        .bind(queue)
        .bind(in_hand)
        .bind(i64::from(limit))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        rows.iter()
            .map(|row| {
                let headers: String = row.try_get(3)?;
                let enqueued_at: Option<i64> = row.try_get(6)?;
                let message_id: Option<String> = row.try_get(1)?;
                Ok(QueueRow {
                    number: row.try_get(0)?,
                    carried: read_carried(row, 7, message_id.as_deref())?,
                    message_id,
                    subject: row.try_get(2)?,
                    headers: headers_from_json(&headers),
                    content_type: row.try_get(4)?,
                    payload: row.try_get::<Vec<u8>, _>(5)?.into(),
                    enqueued_at: enqueued_at.map(instant_from_microseconds),
                    seen: u32::try_from(row.try_get::<i32, _>(13)?).unwrap_or(0),
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(|error| self.host_error(&error))
    }

    async fn queue_backlog(&mut self, queue: &str) -> Result<u64, StoreError> {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM hapax.queue WHERE queue = $1")
            .bind(queue)
            .fetch_one(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        Ok(count.unsigned_abs())
    }

    async fn queue_age(&mut self, queue: &str) -> Result<Option<f64>, StoreError> {
        // Any program may have written the time, an endless one too.
        let age: Option<Option<f64>> = sqlx::query_scalar(
            "SELECT CASE WHEN isfinite(enqueued_at) THEN extract(epoch FROM now() - enqueued_at)::float8 END \
             FROM hapax.queue WHERE queue = $1 ORDER BY number LIMIT 1",
        )
        .bind(queue)
        .fetch_optional(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(age.map(Option::unwrap_or_default))
    }
}
