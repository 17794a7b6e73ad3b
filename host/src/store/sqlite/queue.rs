//! Rows of the embedded queue on SQLite.

use sqlx::{AssertSqlSafe, Row as _};

use super::SqliteSession;
use super::letters::read_carried;
use crate::store::queue::QueueSession;
use crate::store::text::{headers_from_json, headers_to_json, instant_from_text};
use crate::store::{NewQueueRow, QueueRow, Session as _, StoreError};

impl QueueSession for SqliteSession {
    async fn take_queue_rows(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        sqlx::query_scalar(
            "DELETE FROM hapax_queue WHERE number IN (SELECT value FROM json_each(?1)) \
                 AND julianday(due_at) <= julianday('now') \
             RETURNING number",
        )
        .bind(serde_json::Value::from(numbers).to_string())
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn wait_for_queue_row(&mut self, number: i64) -> Result<bool, StoreError> {
        // There is one writer: who has begun has waited.
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        let done = sqlx::query("DELETE FROM hapax_queue WHERE number = ?1")
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
        self.begin().await?;
        for row in rows {
            let written = sqlx::query(
                "INSERT INTO hapax_queue (queue, message_id, subject, headers, content_type, payload) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )
            .bind(queue)
            .bind(&row.message_id)
            .bind(&row.subject)
            .bind(headers_to_json(&row.headers))
            .bind(&row.content_type)
            .bind(&row.payload[..])
            .execute(&mut self.connection)
            .await;
            if let Err(error) = written {
                let error = self.host_error(&error);
                return self.abandon(error).await;
            }
        }
        self.commit_own().await
    }

    async fn peek_queue(
        &mut self,
        queue: &str,
        in_hand: &[i64],
        limit: u32,
    ) -> Result<Vec<QueueRow>, StoreError> {
        // What hapax wrote itself compares as text, in an index in which rows that are not due cost nothing.
        let (is_due, order) = if queue.starts_with('@') {
            (
                "origin_source IS NOT NULL AND due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
                "due_at, number",
            )
        } else {
            ("julianday(due_at) <= julianday('now')", "number")
        };
        let rows = sqlx::query(AssertSqlSafe(format!(
            "SELECT number, message_id, subject, headers, content_type, CAST(payload AS BLOB), enqueued_at, \
                 origin_source, origin_position, origin_published_at, origin_queue_id, dead_letter, forced, seen \
             FROM hapax_queue \
             WHERE queue = ?1 AND {is_due} AND number NOT IN (SELECT value FROM json_each(?2)) \
             ORDER BY {order} LIMIT ?3"
        )))
        .bind(queue)
        .bind(serde_json::json!(in_hand).to_string())
        .bind(i64::from(limit))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        rows.iter()
            .map(|row| {
                let headers: String = row.try_get(3)?;
                let enqueued_at: String = row.try_get(6)?;
                let message_id: Option<String> = row.try_get(1)?;
                Ok(QueueRow {
                    number: row.try_get(0)?,
                    carried: read_carried(row, 7, message_id.as_deref())?,
                    message_id,
                    subject: row.try_get(2)?,
                    headers: headers_from_json(&headers),
                    content_type: row.try_get(4)?,
                    payload: row.try_get::<Vec<u8>, _>(5)?.into(),
                    enqueued_at: instant_from_text(&enqueued_at),
                    seen: u32::try_from(row.try_get::<i64, _>(13)?).unwrap_or(0),
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(|error| self.host_error(&error))
    }

    async fn queue_backlog(&mut self, queue: &str) -> Result<u64, StoreError> {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM hapax_queue WHERE queue = ?1")
            .bind(queue)
            .fetch_one(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        Ok(count.unsigned_abs())
    }

    async fn queue_age(&mut self, queue: &str) -> Result<Option<f64>, StoreError> {
        // Any program may have written the time, and as what it likes.
        let age: Option<Option<f64>> = sqlx::query_scalar(
            "SELECT (julianday('now') - julianday(enqueued_at)) * 86400.0 \
             FROM hapax_queue WHERE queue = ?1 ORDER BY number LIMIT 1",
        )
        .bind(queue)
        .fetch_optional(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(age.map(Option::unwrap_or_default))
    }
}
