//! Rows of the embedded queue that wait, by their keys.

use super::PostgresSession;
use crate::store::StoreError;
use crate::store::order::{PutOff, QueueHead, wait_of};

impl PostgresSession {
    pub(in crate::store) async fn take_due_queue_rows(
        &mut self,
        numbers: &[i64],
    ) -> Result<Vec<i64>, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        sqlx::query_scalar(
            "DELETE FROM hapax.queue WHERE number IN \
                 (SELECT number FROM hapax.queue WHERE number = ANY ($1) AND due_at <= now() ORDER BY number FOR UPDATE) \
             RETURNING number",
        )
        .bind(numbers)
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    /// A statement of its own, after the rows were taken: its snapshot has all that was put off until then.
    pub(in crate::store) async fn queue_heads(
        &mut self,
        queue: &str,
        keys: &[&str],
    ) -> Result<Vec<QueueHead>, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        let rows: Vec<(String, i64, i64)> = sqlx::query_as(
            "SELECT DISTINCT ON (order_key) order_key, number, \
                 CASE WHEN isfinite(due_at) \
                     THEN ceil(greatest(extract(epoch FROM due_at - clock_timestamp()), 0) * 1000)::bigint \
                     ELSE 3600000 END \
             FROM hapax.queue WHERE queue = $1 AND order_key = ANY ($2) ORDER BY order_key, number",
        )
        .bind(queue)
        .bind(keys)
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
            "SELECT DISTINCT order_key FROM hapax.dead_letters WHERE consumer = $1 AND order_key = ANY ($2)",
        )
        .bind(consumer)
        .bind(keys)
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    pub(in crate::store) async fn put_off_queue_rows(
        &mut self,
        rows: &[PutOff],
    ) -> Result<Vec<i64>, StoreError> {
        let numbers: Vec<i64> = rows.iter().map(|row| row.number).collect();
        let keys: Vec<Option<&str>> = rows.iter().map(|row| row.key.as_deref()).collect();
        let waits: Vec<i64> = rows.iter().map(PutOff::wait_ms).collect();
        // Locked in the order in which batches take them, so that the two can't deadlock.
        sqlx::query_scalar(
            "WITH here AS ( \
                 SELECT number FROM hapax.queue WHERE number = ANY ($1) ORDER BY number FOR UPDATE \
             ) \
             UPDATE hapax.queue AS row \
             SET order_key = wanted.key, due_at = clock_timestamp() + wanted.wait * interval '1 millisecond' \
             FROM here JOIN unnest($1::bigint[], $2::text[], $3::bigint[]) AS wanted (number, key, wait) USING (number) \
             WHERE row.number = here.number \
             RETURNING row.number",
        )
        .bind(&numbers)
        .bind(&keys)
        .bind(&waits)
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }
}
