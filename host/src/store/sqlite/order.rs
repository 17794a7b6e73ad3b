//! Rows of the embedded queue that wait, by their keys.

use super::SqliteSession;
use crate::store::StoreError;
use crate::store::order::{PutOff, QueueHead, wait_of};

impl SqliteSession {
    pub(in crate::store) async fn take_due_queue_rows(
        &mut self,
        numbers: &[i64],
    ) -> Result<Vec<i64>, StoreError> {
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

    pub(in crate::store) async fn queue_heads(
        &mut self,
        queue: &str,
        keys: &[&str],
    ) -> Result<Vec<QueueHead>, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        // SQLite takes the bare column from the row that has the minimum.
        let rows: Vec<(String, i64, i64)> = sqlx::query_as(
            "SELECT order_key, min(number), \
                 CAST(max(0, (julianday(due_at) - julianday('now')) * 86400000.0 + 0.999) AS INTEGER) \
             FROM hapax_queue \
             WHERE queue = ?1 AND order_key IS NOT NULL AND order_key IN (SELECT value FROM json_each(?2)) \
             GROUP BY order_key",
        )
        .bind(queue)
        .bind(serde_json::Value::from(keys).to_string())
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(rows
            .into_iter()
            .map(|(key, number, wait)| QueueHead {
                key,
                number,
                wait: wait_of(wait),
            })
            .collect())
    }

    pub(in crate::store) async fn keys_with_dead_letters(
        &mut self,
        consumer: &str,
        keys: &[&str],
    ) -> Result<Vec<String>, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        sqlx::query_scalar(
            "SELECT DISTINCT order_key FROM hapax_dead_letters \
             WHERE consumer = ?1 AND order_key IS NOT NULL AND order_key IN (SELECT value FROM json_each(?2))",
        )
        .bind(consumer)
        .bind(serde_json::Value::from(keys).to_string())
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    pub(in crate::store) async fn put_off_queue_rows(
        &mut self,
        rows: &[PutOff],
    ) -> Result<Vec<i64>, StoreError> {
        let wanted: Vec<serde_json::Value> = rows
            .iter()
            .map(|row| serde_json::json!([row.number, row.key, row.wait_ms()]))
            .collect();
        sqlx::query_scalar(
            "UPDATE hapax_queue \
             SET order_key = wanted.key, \
                 due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (wanted.wait / 1000.0) || ' seconds') \
             FROM (SELECT value ->> 0 AS number, value ->> 1 AS key, value ->> 2 AS wait FROM json_each(?1)) AS wanted \
             WHERE hapax_queue.number = wanted.number \
             RETURNING hapax_queue.number",
        )
        .bind(serde_json::Value::from(wanted).to_string())
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }
}
