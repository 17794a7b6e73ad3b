//! Savepoints of a handler, on SQLite.
//!
//! Inside `BEGIN` they are nested: RELEASE commits nothing and ROLLBACK TO calls no hook, so that the hooks go on telling
//! of the whole transaction's end only.

use sqlx::AssertSqlSafe;

use super::{SqliteSession, errors};
use crate::store::{Savepoint, SqlError};

impl SqliteSession {
    pub(super) async fn open_savepoint(&mut self) -> Result<Savepoint, SqlError> {
        // In a transaction that has ended unseen, a savepoint would begin another.
        self.note_end();
        self.refuse_if_aborted()?;
        let savepoint = self.savepoints.next()?;
        self.savepoint_statement(savepoint.begin()).await?;
        self.savepoints.begun(savepoint);
        Ok(savepoint)
    }

    pub(super) async fn keep_savepoint(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        self.note_end();
        self.savepoints.check_open(savepoint)?;
        self.refuse_if_aborted()?;
        self.savepoint_statement(savepoint.release()).await?;
        self.savepoints.ended(savepoint);
        Ok(())
    }

    pub(super) async fn undo_savepoint(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        self.note_end();
        self.savepoints.check_open(savepoint)?;
        if self.fault.is_some() || self.broken || self.savepoints.is_lost() {
            return Err(self.savepoints.aborted());
        }
        self.savepoint_statement(savepoint.roll_back()).await?;
        self.savepoints.ended(savepoint);
        self.cursors.rolled_back(savepoint);
        self.aborted = false;
        Ok(())
    }

    /// Runs a statement of the host's own; after its failure no savepoint helps.
    async fn savepoint_statement(&mut self, text: String) -> Result<(), SqlError> {
        let done = sqlx::raw_sql(AssertSqlSafe(text))
            .execute(&mut self.connection)
            .await;
        if let Err(error) = done {
            self.host_error(&error);
            return Err(errors::sql_error(&error));
        }
        self.note_end();
        self.refuse_if_ended()
    }

    fn refuse_if_ended(&self) -> Result<(), SqlError> {
        if self.broken {
            return Err(self.savepoints.aborted());
        }
        Ok(())
    }
}
