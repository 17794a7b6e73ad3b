//! The marks of suspects' runs on PostgreSQL: the lock is an advisory one of the session.

use super::{LOCK_CLASS_RUNS, PostgresSession, TxState, errors, records};
use crate::message::{MessageId, ShortHash};
use crate::store::StoreError;
use crate::store::started::{Mark, MarkedFailure};
use crate::store::text::clean_reason;

/// Returns the second number of a run's lock. Two messages that share one wait for each other, and no more.
fn run_key(consumer: &str, id: &MessageId) -> i32 {
    let [a, b, c, d, ..] = ShortHash::of(&[consumer.as_bytes(), id.as_str().as_bytes()]).0;
    i32::from_be_bytes([a, b, c, d])
}

impl PostgresSession {
    pub(in crate::store) async fn mark_started(
        &mut self,
        consumer: &str,
        id: &MessageId,
        host: &str,
    ) -> Result<Mark, StoreError> {
        if self.broken {
            return Err(records::broken_connection());
        }
        self.tx = TxState::default();
        let key = run_key(consumer, id);
        let is_free: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1, $2)")
            .bind(LOCK_CLASS_RUNS)
            .bind(key)
            .fetch_one(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        if !is_free {
            return Ok(Mark::Elsewhere);
        }
        self.run_lock = Some(key);
        let marked = sqlx::query(
            "INSERT INTO hapax.started AS old (consumer, message_id, host) VALUES ($1, $2, $3) \
             ON CONFLICT (consumer, message_id) DO UPDATE SET started_at = now() WHERE old.host = excluded.host",
        )
        .bind(consumer)
        .bind(id.as_str())
        .bind(host)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        if marked.rows_affected() > 0 {
            return Ok(Mark::Mine);
        }
        let left: Option<(String, String)> = sqlx::query_as(
            "SELECT host, to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') \
             FROM hapax.started WHERE consumer = $1 AND message_id = $2",
        )
        .bind(consumer)
        .bind(id.as_str())
        .fetch_optional(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        match left {
            Some((host, started_at)) => Ok(Mark::Left { host, started_at }),
            // Swept away in between.
            None => Err(StoreError::Busy(
                "a mark vanished while it was looked at".into(),
            )),
        }
    }

    pub(in crate::store) async fn unmark_started(
        &mut self,
        consumer: &str,
        id: &MessageId,
        host: &str,
    ) -> Result<(), StoreError> {
        if self.broken {
            return Err(records::broken_connection());
        }
        self.tx = TxState::default();
        sqlx::query(
            "DELETE FROM hapax.started WHERE consumer = $1 AND message_id = $2 AND host = $3",
        )
        .bind(consumer)
        .bind(id.as_str())
        .bind(host)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        // Only after the mark is gone.
        if let Some(key) = self.run_lock.take() {
            sqlx::query("SELECT pg_advisory_unlock($1, $2)")
                .bind(LOCK_CLASS_RUNS)
                .bind(key)
                .execute(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
        }
        Ok(())
    }

    pub(in crate::store) async fn unmark_started_in_tx(
        &mut self,
        consumer: &str,
        ids: &[&MessageId],
    ) -> Result<(), StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        let ids: Vec<&str> = ids.iter().map(|id| id.as_str()).collect();
        sqlx::query("DELETE FROM hapax.started WHERE consumer = $1 AND message_id = ANY ($2)")
            .bind(consumer)
            .bind(&ids)
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    pub(in crate::store) async fn charge_started(
        &mut self,
        failure: &MarkedFailure<'_>,
    ) -> Result<u32, StoreError> {
        if self.broken {
            return Err(records::broken_connection());
        }
        // Outside a transaction each statement commits by itself, so the component's number is good at once.
        self.tx = TxState::default();
        let component = self.component(failure.component).await?;
        self.components.extend(self.tx.components.drain(..));
        // Two hosts that record at once collide on the number; the loser's statement is undone, and takes the next one.
        loop {
            let charged: Result<i32, sqlx::Error> = sqlx::query_scalar(
                "WITH ended AS ( \
                     DELETE FROM hapax.started WHERE consumer = $1 AND message_id = $2 AND host = $3 RETURNING 1 \
                 ), before AS ( \
                     SELECT coalesce(max(attempt), 0) AS attempts FROM hapax.attempts \
                     WHERE consumer = $1 AND message_id = $2 \
                 ), charged AS ( \
                     INSERT INTO hapax.attempts (consumer, message_id, attempt, class, error, component) \
                     SELECT $1, $2, attempts + 1, $4, $5, $6 FROM before WHERE EXISTS (SELECT 1 FROM ended) \
                     RETURNING attempt \
                 ) \
                 SELECT coalesce((SELECT attempt FROM charged), attempts) FROM before",
            )
            .bind(failure.consumer)
            .bind(failure.id.as_str())
            .bind(failure.host)
            .bind(failure.class.as_str())
            .bind(clean_reason(failure.error))
            .bind(component)
            .fetch_one(&mut self.connection)
            .await;
            match charged {
                Ok(attempts) => return Ok(u32::try_from(attempts).unwrap_or(u32::MAX)),
                Err(error) if errors::sql_error(&error).code == "constraint.unique" => {}
                Err(error) => return Err(self.host_error(&error)),
            }
        }
    }

    pub(in crate::store) async fn unmark_process(&mut self, host: &str) -> Result<(), StoreError> {
        self.tx = TxState::default();
        sqlx::query("DELETE FROM hapax.started WHERE host = $1")
            .bind(host)
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    pub(in crate::store) async fn sweep_started(
        &mut self,
        consumer: &str,
    ) -> Result<(), StoreError> {
        self.tx = TxState::default();
        sqlx::query(
            "DELETE FROM hapax.started WHERE consumer = $1 AND EXISTS ( \
                 SELECT 1 FROM hapax.processed_messages AS claim \
                 WHERE claim.consumer = $1 AND claim.message_id = started.message_id \
             )",
        )
        .bind(consumer)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    pub(in crate::store) async fn see_queue(
        &mut self,
        queue: &str,
        limit: u32,
    ) -> Result<(), StoreError> {
        self.tx = TxState::default();
        sqlx::query(
            "UPDATE hapax.queue SET seen = seen + 1 WHERE number IN ( \
                 SELECT number FROM hapax.queue WHERE queue = $1 AND due_at <= now() \
                 ORDER BY number LIMIT $2 FOR UPDATE SKIP LOCKED \
             )",
        )
        .bind(queue)
        .bind(i64::from(limit))
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(())
    }
}
