//! Reconciliation on SQLite.

use super::SqliteSession;
use crate::message::{Carried, MessageId};
use crate::store::checkpoint::{Checkpoint, CheckpointSession};
use crate::store::{Session as _, StoreError};

impl CheckpointSession for SqliteSession {
    async fn checkpoint(&mut self, consumer: &str) -> Result<Option<Checkpoint>, StoreError> {
        let found: Option<(String, i64)> =
            sqlx::query_as("SELECT stream, sequence FROM hapax_checkpoints WHERE consumer = ?1")
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
        self.begin().await?;
        let written = sqlx::query(
            "INSERT INTO hapax_checkpoints (consumer, stream, sequence) VALUES (?1, ?2, ?3) \
             ON CONFLICT (consumer) DO UPDATE SET stream = excluded.stream, sequence = excluded.sequence",
        )
        .bind(consumer)
        .bind(&checkpoint.stream)
        .bind(i64::try_from(checkpoint.sequence).unwrap_or(i64::MAX))
        .execute(&mut self.connection)
        .await;
        if let Err(error) = written {
            let error = self.host_error(&error);
            return self.abandon(error).await;
        }
        self.commit_own().await
    }

    async fn without_claim(
        &mut self,
        consumer: &str,
        ids: &[MessageId],
    ) -> Result<Vec<String>, StoreError> {
        let ids: Vec<&str> = ids.iter().map(MessageId::as_str).collect();
        sqlx::query_scalar(
            "SELECT value FROM json_each(?2) \
             WHERE NOT EXISTS (SELECT 1 FROM hapax_processed_messages WHERE consumer = ?1 AND message_id = value) \
                 AND NOT EXISTS (SELECT 1 FROM hapax_queue WHERE queue = ?3 AND message_id = value)",
        )
        .bind(consumer)
        .bind(serde_json::Value::from(ids).to_string())
        .bind(Carried::queue(consumer))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }
}
