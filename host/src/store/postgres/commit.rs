//! The commit, in one message with the check before it.

use futures_util::TryStreamExt as _;
use sqlx::{AssertSqlSafe, Either};

use super::errors::Class;
use super::{NOT_ALIVE, PostgresSession, errors};
use crate::store::CommitError;

impl PostgresSession {
    pub(super) async fn check_and_commit(&mut self) -> Result<(), CommitError> {
        // The state is compared where a handler's statement was run; else that the transaction is alive is enough.
        let (check, parts) = match (self.state_check(), &self.tx.xid) {
            (Some(check), _) => (check, 3),
            // An aborted transaction answers COMMIT with ROLLBACK, and no error; but it refuses a SELECT, and then the
            // COMMIT behind it in the same message is not run. A transaction that was ended unseen has another number.
            (None, Some(xid)) => (
                format!(
                    "SELECT CAST(CASE WHEN pg_catalog.pg_current_xact_id_if_assigned()::text = '{xid}' \
                     THEN '0' ELSE '{NOT_ALIVE}' END AS integer)"
                ),
                2,
            ),
            // Nothing was claimed, so nothing was written.
            (None, None) => ("SELECT 0".into(), 2),
        };
        let mut done = 0;
        let result = {
            let mut stream = sqlx::Executor::fetch_many(
                &mut self.connection,
                sqlx::raw_sql(AssertSqlSafe(format!("{check}; COMMIT"))),
            );
            loop {
                match stream.try_next().await {
                    Ok(Some(Either::Left(_))) => done += 1,
                    Ok(Some(Either::Right(_))) => {}
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            }
        };
        match result {
            // The completions of the check's statements and the commit's, and the session is at rest.
            Ok(()) if done == parts => Ok(()),
            Ok(()) => {
                self.broken = true;
                Err(CommitError::Unknown(format!(
                    "{done} of {parts} completions came back"
                )))
            }
            Err(error) if done >= parts || errors::ends_session(&error) => {
                self.note(&error);
                self.broken = true;
                Err(CommitError::Unknown(errors::describe(&error)))
            }
            Err(error) => {
                self.note(&error);
                match errors::class(&error) {
                    Class::Busy | Class::Stale | Class::Unavailable => {
                        Err(CommitError::Busy(errors::describe(&error)))
                    }
                    Class::Refused => Err(CommitError::Refused(self.refused_by_check(&error))),
                }
            }
        }
    }
}
