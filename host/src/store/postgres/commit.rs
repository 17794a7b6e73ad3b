//! The commit, in one message with the check before it.

use futures_util::TryStreamExt as _;
use sqlx::{AssertSqlSafe, Either};

use super::errors::Class;
use super::{NOT_ALIVE, PostgresSession, errors};
use crate::store::{CommitError, SqlError, records};

impl PostgresSession {
    pub(super) async fn check_and_commit(&mut self) -> Result<(), CommitError> {
        let check = match &self.tx.xid {
            // An aborted transaction answers COMMIT with ROLLBACK, and no error; but it refuses a SELECT, and then the
            // COMMIT behind it in the same message is not run. A transaction that was ended unseen has another number.
            Some(xid) => format!(
                "SELECT CAST(CASE WHEN pg_catalog.pg_current_xact_id_if_assigned()::text = '{xid}' \
                 THEN '0' ELSE '{NOT_ALIVE}' END AS integer)"
            ),
            // Nothing was claimed, so nothing was written.
            None => "SELECT 0".into(),
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
            // The check's completion and the commit's, and the session is at rest.
            Ok(()) if done == 2 => Ok(()),
            Ok(()) => {
                self.broken = true;
                Err(CommitError::Unknown(format!(
                    "{done} of 2 completions came back"
                )))
            }
            Err(error) if done >= 2 || errors::ends_session(&error) => {
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
                    Class::Refused => {
                        let error = errors::sql_error(&error);
                        Err(CommitError::Refused(if error.message.contains(NOT_ALIVE) {
                            self.broken = true;
                            SqlError {
                                detail: Some(NOT_ALIVE.into()),
                                ..records::aborted()
                            }
                        } else if error.code == "aborted" {
                            records::aborted()
                        } else {
                            error
                        }))
                    }
                }
            }
        }
    }
}
