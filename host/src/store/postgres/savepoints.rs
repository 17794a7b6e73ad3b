//! Savepoints of a handler, on PostgreSQL: subtransactions.

use sqlx::AssertSqlSafe;

use super::{PostgresSession, errors};
use crate::store::{Savepoint, SqlError};

impl PostgresSession {
    pub(super) async fn open_savepoint(&mut self) -> Result<Savepoint, SqlError> {
        self.refuse_if_aborted()?;
        let savepoint = self.tx.savepoints.next()?;
        // Set behind it, the role would end with it.
        self.enter_role().await?;
        self.savepoint_statement(savepoint.begin()).await?;
        self.tx.savepoints.begun(savepoint);
        Ok(savepoint)
    }

    pub(super) async fn keep_savepoint(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        self.tx.savepoints.check_open(savepoint)?;
        self.refuse_if_aborted()?;
        self.savepoint_statement(savepoint.release()).await?;
        self.tx.savepoints.ended(savepoint);
        Ok(())
    }

    pub(super) async fn undo_savepoint(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        self.tx.savepoints.check_open(savepoint)?;
        // A deadlock in a subtransaction aborts no more than that on the server, but the whole run is void.
        if self.tx.fault.is_some() || self.broken || self.tx.savepoints.is_lost() {
            return Err(self.tx.savepoints.aborted());
        }
        // The server takes ROLLBACK TO in an aborted transaction, and is alive again for the RELEASE behind it.
        self.savepoint_statement(savepoint.roll_back()).await?;
        self.tx.savepoints.ended(savepoint);
        self.tx.cursors.rolled_back(savepoint);
        self.tx.aborted = false;
        if self.tx.changed_tables
            && let Err(error) = self.forget_statements().await
        {
            self.host_error(&error);
            return Err(errors::sql_error(&error));
        }
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
        Ok(())
    }
}
