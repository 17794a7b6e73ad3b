//! Reconciliation on PostgreSQL.

use super::PostgresSession;
use crate::message::{Carried, MessageId};
use crate::store::StoreError;
use crate::store::checkpoint::{Checkpoint, CheckpointSession};

impl CheckpointSession for PostgresSession {
    async fn checkpoint(&mut self, consumer: &str) -> Result<Option<Checkpoint>, StoreError> {
        let found: Option<(String, i64)> =
            sqlx::query_as("SELECT stream, sequence FROM hapax.checkpoints WHERE consumer = $1")
                .bind(consumer)
                .fetch_optional(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
        Ok(found.map(Checkpoint::of))
    }

    async fn set_checkpoint(
        &mut self,
        consumer: &str,
        checkpoint: &Checkpoint,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO hapax.checkpoints (consumer, stream, sequence) VALUES ($1, $2, $3) \
             ON CONFLICT (consumer) DO UPDATE SET stream = excluded.stream, sequence = excluded.sequence",
        )
        .bind(consumer)
        .bind(&checkpoint.stream)
        .bind(i64::try_from(checkpoint.sequence).unwrap_or(i64::MAX))
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    async fn without_claim(
        &mut self,
        consumer: &str,
        ids: &[MessageId],
    ) -> Result<Vec<String>, StoreError> {
        let ids: Vec<&str> = ids.iter().map(MessageId::as_str).collect();
        sqlx::query_scalar(
            "SELECT id FROM unnest($2::text[]) AS id \
             WHERE NOT EXISTS (SELECT 1 FROM hapax.processed_messages WHERE consumer = $1 AND message_id = id) \
                 AND NOT EXISTS (SELECT 1 FROM hapax.queue WHERE queue = $3 AND message_id = id)",
        )
        .bind(consumer)
        .bind(ids)
        .bind(Carried::queue(consumer))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }
}
