//! The handler's role, and what is compared before a commit: that the session is as it was before the handler's statements.
//!
//! The role is set with the first statement of a handler in a transaction, after the claim, and ends before the host writes its
//! own rows. Set with `SET LOCAL`, it ends with the transaction in any case.
//!
//! **Invariant**: constraints that were put off are made to speak up while the role is still set: at COMMIT they would run as
//! the login.
//! **Invariant**: nothing of the host's own is written before the state was found unchanged.

use sqlx::{AssertSqlSafe, Row as _};

use super::errors::{self, Class};
use super::{NOT_ALIVE, PostgresSession};
use crate::store::guard::{self, EXTENSIONS, Functions, Passed, Rules};
use crate::store::{
    CommitError, Rights, Session as _, SqlError, StoreError, StoreKind, Value, records,
};

/// The settings that are compared. The two timeouts that a transaction sets for itself are left out: the next one sets
/// them anew. A setting that the server does not know counts as empty.
const SETTINGS: &[&str] = &[
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "array_nulls",
    "bytea_output",
    "check_function_bodies",
    "client_connection_check_interval",
    "client_encoding",
    "default_transaction_deferrable",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "extra_float_digits",
    "hapax.session",
    "idle_in_transaction_session_timeout",
    "lc_monetary",
    "lc_numeric",
    "lc_time",
    "row_security",
    "search_path",
    "session_replication_role",
    "standard_conforming_strings",
    "synchronous_commit",
    "transaction_isolation",
    "transaction_read_only",
    "transform_null_equals",
    "xmloption",
];

/// What the check fails with if the state has changed; what has changed stands behind it.
pub(super) const CHANGED: &str = "hapax: changed: ";

/// Stands between the settings in the words of a check that failed: the unit separator.
const SEPARATOR: char = '\u{1f}';

/// The name of the prepared check.
const CHECK: &str = "hapaxcheck";

/// What a connection has learned of its server.
#[derive(Debug)]
pub(super) struct Learned {
    functions: Functions,
    /// The login.
    login: String,
    /// The settings before any statement of a handler, in the order of `SETTINGS`.
    settings: Vec<Option<String>>,
    /// The same as an array's text.
    settings_text: String,
}

impl Learned {
    /// Returns the names of the settings that are not among `found`, which are joined by `SEPARATOR`.
    fn changed_settings(&self, found: &str) -> String {
        let names: Vec<&str> = SETTINGS
            .iter()
            .zip(&self.settings)
            .zip(found.split(SEPARATOR))
            .filter(|((_, before), now)| before.as_deref().unwrap_or_default() != *now)
            .map(|((name, _), _)| *name)
            .collect();
        names.join(", ")
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn name(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Returns the statement that sets `role` for the rest of the transaction.
fn set_role(role: &str) -> String {
    format!("SET LOCAL ROLE {}", name(role))
}

fn settings_array() -> String {
    let each: Vec<String> = SETTINGS
        .iter()
        .map(|name| format!("pg_catalog.current_setting({}, true)", quoted(name)))
        .collect();
    format!("ARRAY[{}]", each.join(", "))
}

/// Returns the statement that prepares the check: its parameters are the transaction's number, the user, the login, and the settings.
///
/// It fails, with words that say why, by reading them as a number. It is run for every transaction, so no table is named in it: to
/// open one takes longer than all else. Whether there are temporary tables is a query inside a function's text, which is only looked at
/// in a session that has ever had one.
fn prepare_check() -> String {
    format!(
        "PREPARE {CHECK} (text, text, text, text[]) AS SELECT CAST(CASE \
         WHEN pg_catalog.pg_current_xact_id_if_assigned()::text IS DISTINCT FROM $1 THEN '{NOT_ALIVE}' \
         WHEN current_user::text <> $2 OR session_user::text <> $3 THEN '{CHANGED}current_user' \
         WHEN {settings} IS DISTINCT FROM $4 \
             THEN '{CHANGED}' || pg_catalog.array_to_string({settings}, pg_catalog.chr({SEPARATOR}), '') \
         WHEN pg_catalog.pg_my_temp_schema() = 0 THEN '0' \
         WHEN EXISTS (SELECT FROM pg_catalog.ts_stat('SELECT ''a''::pg_catalog.tsvector FROM pg_catalog.pg_class \
             WHERE relnamespace = pg_catalog.pg_my_temp_schema() LIMIT 1')) THEN '{CHANGED}temporary tables' \
         ELSE '0' END AS integer)",
        settings = settings_array(),
        SEPARATOR = u32::from(SEPARATOR),
    )
}

impl PostgresSession {
    pub(in crate::store) fn set_rights(&mut self, rights: Rights) {
        self.rights = rights;
    }

    pub(in crate::store) async fn check_role(&mut self, role: &str) -> Result<(), StoreError> {
        let text = format!("BEGIN; {}; ROLLBACK", set_role(role));
        let Err(error) = sqlx::raw_sql(AssertSqlSafe(text))
            .execute(&mut self.connection)
            .await
        else {
            return Ok(());
        };
        if errors::class(&error) != Class::Refused {
            return Err(errors::store_error(&error));
        }
        self.rollback().await?;
        let login: String = sqlx::query_scalar("SELECT session_user::text")
            .fetch_one(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        let sqlstate = error
            .as_database_error()
            .and_then(|error| error.code())
            .unwrap_or_default()
            .into_owned();
        Err(StoreError::Unusable(match &*sqlstate {
            "22023" | "42704" => format!(
                "there is no role `{role}` in the database\nhint: make it: `CREATE ROLE {role} NOLOGIN; GRANT {role} TO {login}`, and \
                 give it its rights in the handler's migrations",
                role = name(role),
                login = name(&login),
            ),
            _ => format!(
                "the login `{login}` may not act as the role `{role}`: {}\nhint: `GRANT {} TO {}`",
                errors::describe(&error),
                name(role),
                name(&login),
            ),
        }))
    }

    /// Checks a handler's statement; learns from the server first what that takes.
    pub(super) async fn check(&mut self, statement: &str) -> Result<Passed, SqlError> {
        self.learn().await?;
        guard::check(
            StoreKind::Postgres,
            statement,
            Rules {
                allow_ddl: self.rights.allow_ddl,
                functions: self.learned.as_ref().map(|learned| &learned.functions),
            },
        )
    }

    /// Asks the server, once a connection and before any statement of a handler.
    async fn learn(&mut self) -> Result<(), SqlError> {
        if self.learned.is_some() {
            return Ok(());
        }
        match self.try_learn().await {
            Ok(learned) => {
                self.learned = Some(learned);
                Ok(())
            }
            Err(error) => {
                self.host_error(&error);
                Err(errors::sql_error(&error))
            }
        }
    }

    async fn try_learn(&mut self) -> Result<Learned, sqlx::Error> {
        let extensions: Vec<String> = EXTENSIONS.iter().map(|name| quoted(name)).collect();
        // A name of which one form is volatile counts.
        let rows = sqlx::raw_sql(AssertSqlSafe(format!(
            "SELECT session_user::text, {settings}, {settings}::text, ARRAY( \
                 SELECT p.proname FROM pg_catalog.pg_proc p \
                 WHERE p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace AND p.provolatile = 'v' \
                 UNION \
                 SELECT p.proname FROM pg_catalog.pg_extension e \
                 JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass \
                     AND d.refobjid = e.oid AND d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.deptype = 'e' \
                 JOIN pg_catalog.pg_proc p ON p.oid = d.objid \
                 WHERE e.extname IN ({extensions}))::text[]; {check}",
            settings = settings_array(),
            extensions = extensions.join(", "),
            check = prepare_check(),
        )))
        .fetch_all(&mut self.connection)
        .await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let names: Vec<String> = row.try_get(3)?;
        Ok(Learned {
            functions: Functions::new(names),
            login: row.try_get(0)?,
            settings: row.try_get(1)?,
            settings_text: row.try_get(2)?,
        })
    }

    /// Sets the handler's role, if it has one and it is not set. The claim is made by then.
    pub(super) async fn enter_role(&mut self) -> Result<(), SqlError> {
        self.learn().await?;
        self.tx.ran = true;
        if self.tx.in_role {
            return Ok(());
        }
        let Some(role) = &self.rights.role else {
            return Ok(());
        };
        let text = set_role(role);
        if let Err(error) = sqlx::raw_sql(AssertSqlSafe(text))
            .execute(&mut self.connection)
            .await
        {
            // The role is gone, or no longer granted: no statement of the handler's is to blame, and no savepoint helps.
            self.note(&error);
            self.tx.savepoints.lose();
            return Err(errors::sql_error(&error));
        }
        self.tx.in_role = true;
        Ok(())
    }

    /// Returns the command that sets the handler's role, if it has one and it is not set.
    pub(super) fn role_to_enter(&self) -> Option<String> {
        match &self.rights.role {
            Some(role) if !self.tx.in_role => Some(set_role(role)),
            _ => None,
        }
    }

    /// Ends the role for statements of the host's own between those of handlers; the next one sets it again.
    pub(in crate::store) async fn leave_role(&mut self) -> Result<(), StoreError> {
        if !self.tx.in_role || self.tx.aborted {
            return Ok(());
        }
        self.simple("SET LOCAL ROLE NONE").await?;
        self.tx.in_role = false;
        Ok(())
    }

    /// Ends the role after all statements of handlers, so that the host can write rows of its own: what was put off is checked
    /// now, as the role, and the state compared.
    pub(in crate::store) async fn end_role(&mut self) -> Result<(), CommitError> {
        if !self.tx.in_role || self.tx.aborted {
            return Ok(());
        }
        let Some(check) = self.state_check() else {
            return Ok(());
        };
        let text = format!("{check}; SET LOCAL ROLE NONE");
        if let Err(error) = sqlx::raw_sql(AssertSqlSafe(text))
            .execute(&mut self.connection)
            .await
        {
            self.note(&error);
            self.tx.savepoints.lose();
            return Err(match errors::class(&error) {
                Class::Busy | Class::Stale | Class::Unavailable => {
                    CommitError::Busy(errors::describe(&error))
                }
                Class::Refused => CommitError::Refused(self.refused_by_check(&error)),
            });
        }
        self.tx.in_role = false;
        Ok(())
    }

    /// Returns the statements before a commit that fail unless all is as it was; none if no handler's statement was run.
    pub(super) fn state_check(&self) -> Option<String> {
        let learned = self.learned.as_ref().filter(|_| self.tx.ran)?;
        let user = match &self.rights.role {
            Some(role) if self.tx.in_role => role,
            _ => &learned.login,
        };
        let xid = match &self.tx.xid {
            Some(xid) => quoted(xid),
            // Nothing was claimed.
            None => "pg_catalog.pg_current_xact_id_if_assigned()::text".into(),
        };
        Some(format!(
            "SET CONSTRAINTS ALL IMMEDIATE; EXECUTE {CHECK} ({xid}, {}, {}, {})",
            quoted(user),
            quoted(&learned.login),
            quoted(&learned.settings_text),
        ))
    }

    /// Returns what a failed check says of the transaction.
    pub(super) fn refused_by_check(&mut self, error: &sqlx::Error) -> SqlError {
        let error = errors::sql_error(error);
        if error.message.contains(NOT_ALIVE) {
            self.broken = true;
            return SqlError {
                detail: Some(NOT_ALIVE.into()),
                ..records::aborted()
            };
        }
        if let Some((_, changed)) = error.message.split_once(CHANGED) {
            self.broken = true;
            let changed = changed.trim_end_matches('"');
            return records::changed(&match &self.learned {
                Some(learned) if changed.contains(SEPARATOR) => learned.changed_settings(changed),
                _ => changed.to_owned(),
            });
        }
        if error.code == "aborted" {
            return records::aborted();
        }
        // The check itself is gone: somebody ended the session's prepared statements.
        if error.sqlstate.as_deref() == Some("26000") {
            self.broken = true;
            return records::changed("prepared statements");
        }
        error
    }

    /// Runs a handler's statement that makes or drops something: it can't be prepared.
    pub(super) async fn run_unprepared(
        &mut self,
        statement: &str,
        params: &[Value],
    ) -> Result<u64, SqlError> {
        if !params.is_empty() {
            return Err(records::wrong_count(0, params.len()));
        }
        // Through the extended protocol, which takes one command only.
        match sqlx::query(AssertSqlSafe(statement))
            .persistent(false)
            .execute(&mut self.connection)
            .await
        {
            Ok(done) => {
                // Otherwise the handler's own next statement would be the first to fail for it.
                if let Err(error) = self.forget_statements().await {
                    self.note(&error);
                    return Err(errors::sql_error(&error));
                }
                self.tx.is_fresh = true;
                self.tx.changed_tables = true;
                Ok(done.rows_affected())
            }
            Err(error) => {
                self.note(&error);
                Err(errors::sql_error(&error))
            }
        }
    }
}
