//! Migrations, of hapax's own tables and of the handlers', on PostgreSQL.

use sqlx::Row as _;

use super::{LOCK_CLASS, LOCK_MIGRATIONS, PostgresSession, connect};
use crate::store::migrations::{Recorded, Schema};
use crate::store::{
    CommitError, HandlerMigration, Session as _, StoreError, StoreKind, migrations, records,
};

impl PostgresSession {
    /// Begins a transaction of the host's own that holds the lock of migrations.
    pub(super) async fn begin_migration(&mut self) -> Result<(), StoreError> {
        self.begin().await?;
        self.simple(connect::no_statement_timeout()).await?;
        let locked = sqlx::query("SELECT pg_advisory_xact_lock($1, $2)")
            .bind(LOCK_CLASS)
            .bind(LOCK_MIGRATIONS)
            .execute(&mut self.connection)
            .await;
        locked.map_err(|error| self.host_error(&error))?;
        self.simple(connect::lock_timeout(&self.options)).await
    }

    /// Ends a transaction of the host's own after a failure; the failure is what is told.
    pub(super) async fn abandon<T>(&mut self, error: StoreError) -> Result<T, StoreError> {
        // A rollback that fails marks the session as broken.
        let _ = self.rollback().await;
        Err(error)
    }

    pub(super) async fn commit_own(&mut self) -> Result<(), StoreError> {
        match self.commit().await {
            Ok(()) => Ok(()),
            Err(CommitError::Busy(text)) => self.abandon(StoreError::Busy(text)).await,
            Err(CommitError::Refused(error)) => self.abandon(StoreError::Refused(error)).await,
            Err(CommitError::Unknown(text)) => Err(StoreError::Unavailable(text)),
        }
    }

    pub(super) async fn migrate_in_tx(&mut self) -> Result<(), StoreError> {
        self.begin_migration().await?;
        let made: bool = sqlx::query_scalar("SELECT to_regclass('hapax.meta') IS NOT NULL")
            .fetch_one(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        let found = if made {
            self.schema_in_tx().await?
        } else {
            Schema {
                version: 0,
                serves: None,
            }
        };
        for migration in migrations::own_missing(StoreKind::Postgres, found)? {
            self.simple(migration.sql).await?;
            sqlx::query(
                "INSERT INTO hapax.meta (name, value) VALUES ('schema-version', $1), ('schema-serves', $2) \
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            )
            .bind(migration.version.to_string())
            .bind(migration.serves.to_string())
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        }
        Ok(())
    }

    async fn schema_in_tx(&mut self) -> Result<Schema, StoreError> {
        let rows: Vec<(String, String)> = sqlx::query_as(
            "SELECT name, value FROM hapax.meta WHERE name IN ('schema-version', 'schema-serves')",
        )
        .persistent(false)
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        records::stored_schema(rows)
    }

    /// Applies the first migration that is missing. False: none is.
    pub(super) async fn apply_one_in_tx(
        &mut self,
        handler: &str,
        migrations: &[HandlerMigration],
    ) -> Result<bool, StoreError> {
        self.begin_migration().await?;
        let rows = sqlx::query(
            "SELECT version, file, checksum FROM hapax.handler_migrations WHERE handler = $1 ORDER BY version",
        )
        .bind(handler)
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        let recorded = rows
            .iter()
            .map(|row| {
                Ok(Recorded {
                    version: row.try_get(0)?,
                    file: row.try_get(1)?,
                    checksum: row.try_get(2)?,
                })
            })
            .collect::<Result<Vec<_>, sqlx::Error>>()
            .map_err(|error| self.host_error(&error))?;
        let missing = migrations::handler_missing(StoreKind::Postgres, migrations, &recorded)?;
        let Some(next) = missing.first() else {
            return Ok(false);
        };
        sqlx::query(
            "INSERT INTO hapax.handler_migrations (handler, version, file, checksum) VALUES ($1, $2, $3, $4)",
        )
        .bind(handler)
        .bind(next.version)
        .bind(&next.file)
        .bind(&migrations::checksum(next)[..])
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        let xid: String = sqlx::query_scalar("SELECT pg_current_xact_id()::text")
            .fetch_one(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        self.tx.xid = Some(xid);
        match self.simple(next.sql.as_str()).await {
            Ok(()) => Ok(true),
            Err(StoreError::Refused(mut error)) => {
                let line = error.position.map(|position| {
                    let before = next.sql.chars().take(position as usize);
                    before.filter(|char| *char == '\n').count() + 1
                });
                error.message = match line {
                    Some(line) => format!("`{}`, line {line}: {}", next.file, error.message),
                    None => format!("`{}`: {}", next.file, error.message),
                };
                Err(StoreError::Refused(error))
            }
            Err(error) => Err(error),
        }
    }
}
