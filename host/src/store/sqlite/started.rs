//! The marks of suspects' runs on SQLite: the lock is on a file beside the database. There is one, so one suspect at a time
//! runs on all hosts together; they share the one writer anyway.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use super::{SqliteSession, records};
use crate::message::MessageId;
use crate::store::started::{Mark, MarkedFailure};
use crate::store::text::clean_reason;
use crate::store::{Session as _, StoreError};

/// Returns the file that is locked while a suspect runs: `hapax.db-suspect` for `hapax.db`. Never the database itself:
/// closing a second handle of it would free the locks that SQLite holds.
pub(super) fn lock_path(database: &Path) -> PathBuf {
    beside(database, "-suspect")
}

/// Returns the file that is locked while rows of the outbox are published to `target`: `hapax.db-relay-TARGET`.
pub(super) fn relay_lock_path(database: &Path, target: &str) -> PathBuf {
    beside(database, &format!("-relay-{target}"))
}

fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The present moment in the form that the database writes itself.
pub(super) const NOW: &str = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')";

/// Locks a file, made if it is missing. `None` if another session or process has it.
pub(super) fn lock_file(path: &Path) -> Result<Option<File>, StoreError> {
    let failed = |error: std::io::Error| {
        StoreError::Unavailable(format!(
            "the file `{}` can't be locked: {error}",
            path.display()
        ))
    };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

impl SqliteSession {
    pub(in crate::store) async fn mark_started(
        &mut self,
        consumer: &str,
        id: &MessageId,
        host: &str,
    ) -> Result<Mark, StoreError> {
        if self.broken {
            return Err(records::broken_connection());
        }
        self.clear_tx();
        self.run_lock = None;
        let Some(lock) = lock_file(&self.run_lock_path)? else {
            return Ok(Mark::Elsewhere);
        };
        self.run_lock = Some(lock);
        let marked = sqlx::query(
            "INSERT INTO hapax_started (consumer, message_id, host) VALUES (?1, ?2, ?3) \
             ON CONFLICT (consumer, message_id) DO UPDATE SET started_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') \
             WHERE host = excluded.host",
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
            "SELECT host, started_at FROM hapax_started WHERE consumer = ?1 AND message_id = ?2",
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
        self.clear_tx();
        sqlx::query(
            "DELETE FROM hapax_started WHERE consumer = ?1 AND message_id = ?2 AND host = ?3",
        )
        .bind(consumer)
        .bind(id.as_str())
        .bind(host)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        // Only after the mark is gone.
        self.run_lock = None;
        Ok(())
    }

    pub(in crate::store) async fn unmark_started_in_tx(
        &mut self,
        consumer: &str,
        ids: &[&MessageId],
    ) -> Result<(), StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        for id in ids {
            sqlx::query("DELETE FROM hapax_started WHERE consumer = ?1 AND message_id = ?2")
                .bind(consumer)
                .bind(id.as_str())
                .execute(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
        }
        Ok(())
    }

    pub(in crate::store) async fn charge_started(
        &mut self,
        failure: &MarkedFailure<'_>,
    ) -> Result<u32, StoreError> {
        self.begin().await?;
        match self.charge_started_in_tx(failure).await {
            Ok(attempts) => {
                self.commit_own().await?;
                Ok(attempts)
            }
            Err(error) => self.abandon(error).await,
        }
    }

    async fn charge_started_in_tx(
        &mut self,
        failure: &MarkedFailure<'_>,
    ) -> Result<u32, StoreError> {
        let component = self.component(failure.component).await?;
        let ended = sqlx::query(
            "DELETE FROM hapax_started WHERE consumer = ?1 AND message_id = ?2 AND host = ?3",
        )
        .bind(failure.consumer)
        .bind(failure.id.as_str())
        .bind(failure.host)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        if ended.rows_affected() > 0 {
            sqlx::query(
                "INSERT INTO hapax_attempts (consumer, message_id, attempt, class, error, component) \
                 SELECT ?1, ?2, coalesce(max(attempt), 0) + 1, ?3, ?4, ?5 FROM hapax_attempts \
                 WHERE consumer = ?1 AND message_id = ?2",
            )
            .bind(failure.consumer)
            .bind(failure.id.as_str())
            .bind(failure.class.as_str())
            .bind(clean_reason(failure.error))
            .bind(component)
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        }
        let attempts: i64 = sqlx::query_scalar(
            "SELECT coalesce(max(attempt), 0) FROM hapax_attempts WHERE consumer = ?1 AND message_id = ?2",
        )
        .bind(failure.consumer)
        .bind(failure.id.as_str())
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(u32::try_from(attempts).unwrap_or(u32::MAX))
    }

    pub(in crate::store) async fn unmark_process(&mut self, host: &str) -> Result<(), StoreError> {
        self.clear_tx();
        sqlx::query("DELETE FROM hapax_started WHERE host = ?1")
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
        self.clear_tx();
        sqlx::query(
            "DELETE FROM hapax_started WHERE consumer = ?1 AND EXISTS ( \
                 SELECT 1 FROM hapax_processed_messages AS claim \
                 WHERE claim.consumer = ?1 AND claim.message_id = hapax_started.message_id \
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
        self.clear_tx();
        sqlx::query(
            "UPDATE hapax_queue SET seen = seen + 1 WHERE number IN ( \
                 SELECT number FROM hapax_queue WHERE queue = ?1 AND julianday(due_at) <= julianday('now') \
                 ORDER BY number LIMIT ?2 \
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
