//! The session on SQLite.
//!
//! SQLite has ways to end a transaction without being asked: `INSERT OR ROLLBACK`, a table's `ON CONFLICT ROLLBACK`,
//! `RAISE(ROLLBACK)`, an interrupted write. The rollback hook tells; the commit hook refuses every commit that is not the
//! host's, so that what follows such an end can't be kept either.
//!
//! **Invariant**: while a transaction is open, only the host's own COMMIT can commit anything.
//! **Invariant**: after any error inside a transaction, no more of it is run but ROLLBACK, to a savepoint that was begun
//! before it or of the whole.

mod authorizer;
mod catalogue;
mod checkpoint;
mod claims;
mod connect;
mod cursors;
mod deployments;
mod errors;
mod hooks;
mod letters;
mod many;
mod order;
mod outbox;
mod params;
mod prune;
mod queue;
mod reach;
mod rows;
mod savepoints;
mod schema;
mod scratch;
mod started;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{
    AssertSqlSafe, Connection as _, Either, Executor as _, Row as _, SqlSafeStr as _,
    SqliteConnection, Statement as _,
};

use super::guard::{self, Passed, Rules};
use super::text::{clean_reason, headers_to_json, instant_to_text};
use super::{
    Baton, Claim, ClaimAs, ClaimRequest, Column, CommitError, Counters, HandlerMigration,
    OutboxRow, ResultSet, Rights, Savepoint, Session, SqlError, StoreError, StoreKind, Value,
    cursors::Cursors, records, savepoints::Savepoints,
};
use crate::message::{ComponentDigest, FailureClass, MessageId};
use crate::metrics::OpenSession;
use cursors::SqliteCursor;
use errors::Class;
use hooks::Hooks;
use rows::{RowSink, column};
pub(super) use scratch::copy_scratch;

/// How many steps of SQLite's machine run between two looks at the deadline: well below a millisecond.
const STEPS_BETWEEN_LOOKS: i32 = 1000;

/// How many rows the driver reads ahead of whoever takes them. They count for no limit, and a row may have a megabyte and more.
const ROWS_AHEAD: usize = 8;
/// How many verdicts on handlers' statements are kept on a connection.
const STATEMENTS_MAX: usize = 256;

/// How long to wait between two tries to open a file that another connection is switching to WAL.
const OPEN_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// The last year whose text sorts with the others.
const YEAR_MAX: i64 = 9999;

/// Reads the part of a URL behind `sqlite:`; opens nothing.
pub(super) fn parse(rest: &str) -> Result<PathBuf, StoreError> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    let unusable = |text: &str| {
        Err(StoreError::Unusable(format!(
            "the store's URL `sqlite:{rest}` {text}"
        )))
    };
    if path.is_empty() {
        return unusable("has no path\nhint: write `sqlite:hapax.db`");
    }
    if path.starts_with(":memory:") {
        return unusable(
            "is in memory, where nothing survives\nhint: name a file: `sqlite:hapax.db`",
        );
    }
    if path.starts_with("file:") || path.contains('?') {
        return unusable(
            "has options, which are not supported\nhint: name a file only: `sqlite:hapax.db`",
        );
    }
    if path.contains('\0') {
        return unusable("contains NUL");
    }
    Ok(path.into())
}

/// One connection. Dropping it interrupts what runs and closes it; SQLite rolls back what was open.
#[derive(Debug)]
pub struct SqliteSession {
    connection: SqliteConnection,
    statement_timeout: Option<Duration>,
    rights: Rights,
    hooks: Arc<Hooks>,
    verdicts: HashMap<String, Passed>,
    columns: HashMap<String, Arc<[Column]>>,
    /// Numbers of components that are committed.
    components: HashMap<ComponentDigest, i64>,
    tx_components: Vec<(ComponentDigest, i64)>,
    /// An error was raised: nothing more may be run.
    aborted: bool,
    fault: Option<StoreError>,
    savepoints: Savepoints,
    cursors: Cursors<SqliteCursor>,
    /// As the database counts changes of its tables; what is prepared goes with it.
    schema_version: Option<i64>,
    /// The file whose lock keeps suspects of all hosts apart.
    run_lock_path: PathBuf,
    /// That file, while a suspect runs on this session.
    run_lock: Option<std::fs::File>,
    /// As whom this session prunes.
    pruner: String,
    /// The database's file.
    path: PathBuf,
    /// The files whose locks keep relays of all hosts apart, while rows of the outbox are in hand on this session.
    relay_locks: Vec<std::fs::File>,
    /// True if the connection must be closed.
    broken: bool,
    _counted: OpenSession,
}

impl Drop for SqliteSession {
    fn drop(&mut self) {
        // Otherwise a long statement would go on, and keep the write lock.
        self.hooks.dropped.store(true, Ordering::SeqCst);
    }
}

impl SqliteSession {
    /// Takes down an error of a statement of the host's own.
    fn host_error(&mut self, error: &sqlx::Error) -> StoreError {
        self.note(error);
        self.savepoints.lose();
        errors::store_error(error)
    }

    /// Takes down an error, before it is told.
    fn note(&mut self, error: &sqlx::Error) {
        self.aborted = true;
        match errors::class(error) {
            Class::Busy => self.fault = Some(StoreError::Busy(errors::describe(error))),
            Class::Unavailable => {
                self.broken = true;
                self.fault = Some(StoreError::Unavailable(errors::describe(error)));
            }
            Class::Refused => {}
        }
        self.note_end();
    }

    /// Takes down that SQLite has ended the transaction by itself.
    fn note_end(&mut self) {
        if self.hooks.ended.load(Ordering::SeqCst) {
            self.aborted = true;
            self.broken = true;
            self.savepoints.lose();
        }
    }

    fn refuse_if_aborted(&self) -> Result<(), SqlError> {
        if self.aborted {
            return Err(self.savepoints.aborted());
        }
        Ok(())
    }

    fn clear_tx(&mut self) {
        self.hooks.guarded.store(false, Ordering::SeqCst);
        self.tx_components.clear();
        self.aborted = false;
        self.fault = None;
        self.savepoints = Savepoints::default();
        self.cursors = Cursors::default();
    }

    async fn simple(&mut self, text: impl Into<String>) -> Result<(), StoreError> {
        match sqlx::raw_sql(AssertSqlSafe(text.into()))
            .execute(&mut self.connection)
            .await
        {
            Ok(_) => Ok(()),
            Err(error) => Err(self.host_error(&error)),
        }
    }

    pub(super) fn set_rights(&mut self, rights: Rights) {
        self.hooks
            .allow_ddl
            .store(rights.allow_ddl, Ordering::SeqCst);
        self.rights = rights;
        self.verdicts.clear();
    }

    fn verdict(&mut self, statement: &str) -> Result<Passed, SqlError> {
        if let Some(passed) = self.verdicts.get(statement) {
            return Ok(*passed);
        }
        let rules = Rules {
            allow_ddl: self.rights.allow_ddl,
            functions: None,
        };
        let passed = guard::check(StoreKind::Sqlite, statement, rules)?;
        if self.verdicts.len() >= STATEMENTS_MAX {
            // Cheap to learn again.
            self.verdicts.clear();
        }
        self.verdicts.insert(statement.to_owned(), passed);
        Ok(passed)
    }

    /// Returns the columns of a statement that gave no rows to read them from.
    async fn columns_of(&mut self, statement: &str) -> Result<Arc<[Column]>, SqlError> {
        if let Some(columns) = self.columns.get(statement) {
            return Ok(Arc::clone(columns));
        }
        self.hooks.in_handler.store(true, Ordering::SeqCst);
        let prepared = (&mut self.connection)
            .prepare(AssertSqlSafe(statement).into_sql_str())
            .await;
        self.hooks.in_handler.store(false, Ordering::SeqCst);
        let columns: Arc<[Column]> = match prepared {
            Ok(prepared) => prepared.columns().iter().map(column).collect(),
            Err(error) => {
                self.note(&error);
                return Err(errors::sql_error(&error));
            }
        };
        if self.columns.len() >= STATEMENTS_MAX {
            self.columns.clear();
        }
        self.columns
            .insert(statement.to_owned(), Arc::clone(&columns));
        Ok(columns)
    }

    /// Runs a handler's statement. Returns how many rows it changed; `take` gets those that it returned, until it says
    /// that it has enough.
    async fn run(
        &mut self,
        statement: &str,
        arguments: SqliteArguments,
        take: &mut (dyn FnMut(&SqliteRow) -> bool + Send),
    ) -> Result<u64, SqlError> {
        self.hooks.set_deadline(self.statement_timeout);
        self.hooks.in_handler.store(true, Ordering::SeqCst);
        let mut changed = 0;
        let result = {
            let mut stream = self
                .connection
                .fetch_many(sqlx::query_with(AssertSqlSafe(statement), arguments));
            loop {
                match stream.try_next().await {
                    Ok(Some(Either::Left(done))) => changed += done.rows_affected(),
                    Ok(Some(Either::Right(row))) => {
                        if !take(&row) {
                            // All changes were made before the first row came; the statement is reset.
                            break Ok(());
                        }
                    }
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            }
        };
        self.hooks.in_handler.store(false, Ordering::SeqCst);
        self.hooks.set_deadline(None);
        match result {
            Ok(()) => {
                self.note_end();
                // A trigger's `RAISE(IGNORE)` aside, a transaction that ended raises an error as well.
                self.refuse_if_aborted()?;
                Ok(changed)
            }
            Err(error) => {
                self.note(&error);
                Err(errors::sql_error(&error))
            }
        }
    }

    /// Runs a handler's statement. Returns the rows that it affected.
    async fn run_counted(
        &mut self,
        statement: &str,
        passed: Passed,
        arguments: SqliteArguments,
    ) -> Result<u64, SqlError> {
        let mut rows = RowSink::new(None);
        let changed = self
            .run(statement, arguments, &mut |row| rows.take(row))
            .await?;
        // For a statement that only reads, SQLite reports the changes of an earlier one.
        Ok(match passed {
            Passed { is_ddl: true, .. } => 0,
            Passed { reads: true, .. } => rows.count,
            Passed { .. } => changed,
        })
    }
}

impl Session for SqliteSession {
    async fn begin(&mut self) -> Result<(), StoreError> {
        if self.broken {
            return Err(records::broken_connection());
        }
        self.clear_tx();
        self.hooks.ended.store(false, Ordering::SeqCst);
        // A plain BEGIN would take the write lock later, and then fail at once whatever the busy timeout says.
        let began = sqlx::raw_sql("BEGIN IMMEDIATE; PRAGMA schema_version")
            .fetch_one(&mut self.connection)
            .await
            .and_then(|row| row.try_get(0));
        let version: i64 = began.map_err(|error| self.host_error(&error))?;
        // SQLite prepares anew by itself after a change of tables, but the driver goes on with the columns as they were: with
        // one more of them it panics. Within a transaction nobody else changes any.
        if self.schema_version.replace(version) != Some(version) {
            self.columns.clear();
            self.connection
                .clear_cached_statements()
                .await
                .map_err(|error| self.host_error(&error))?;
        }
        self.hooks.guarded.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn begin_with_baton(&mut self, _consumer: &str, _baton: Baton) -> Result<(), StoreError> {
        // There is one writer: the transaction itself keeps others out.
        self.begin().await
    }

    async fn claim(
        &mut self,
        consumer: &str,
        requests: &[ClaimRequest],
        claim_as: ClaimAs,
        component: Option<ComponentDigest>,
    ) -> Result<Vec<Claim>, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let component = self.component(component).await?;
        let claims = self
            .try_claim(consumer, requests, claim_as, component)
            .await
            .map_err(|error| self.host_error(&error))?;
        if claims.len() != requests.len() {
            return Err(records::vanished_claim());
        }
        Ok(claims)
    }

    async fn attempts_without_claim(
        &mut self,
        consumer: &str,
        ids: &[MessageId],
    ) -> Result<Vec<u32>, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        let wanted = serde_json::Value::from(
            ids.iter()
                .map(|id| serde_json::Value::from(id.as_str()))
                .collect::<Vec<_>>(),
        )
        .to_string();
        let last: Vec<i64> = sqlx::query_scalar(
            "SELECT coalesce((SELECT max(attempt) FROM hapax_attempts WHERE consumer = ?1 AND message_id = wanted.value), 0) \
             FROM json_each(?2) AS wanted ORDER BY wanted.key",
        )
        .bind(consumer)
        .bind(&wanted)
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        if last.iter().any(|count| *count > 0) {
            sqlx::query(
                "DELETE FROM hapax_attempts WHERE consumer = ?1 AND message_id IN (SELECT value FROM json_each(?2))",
            )
            .bind(consumer)
            .bind(&wanted)
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        }
        Ok(last
            .into_iter()
            .map(|count| u32::try_from(count).unwrap_or(0))
            .collect())
    }

    async fn execute(&mut self, statement: &str, params: &[Value]) -> Result<u64, SqlError> {
        self.refuse_if_aborted()?;
        let passed = self.verdict(statement)?;
        if passed.params as usize != params.len() {
            return Err(records::wrong_count(passed.params as usize, params.len()));
        }
        self.run_counted(statement, passed, params::bind(params)?)
            .await
    }

    async fn query(
        &mut self,
        statement: &str,
        params: &[Value],
        rows_max: u64,
    ) -> Result<ResultSet, SqlError> {
        self.refuse_if_aborted()?;
        let passed = self.verdict(statement)?;
        if passed.params as usize != params.len() {
            return Err(records::wrong_count(passed.params as usize, params.len()));
        }
        let mut rows = RowSink::new(Some(rows_max));
        self.run(statement, params::bind(params)?, &mut |row| rows.take(row))
            .await?;
        if let Some(error) = rows.failure {
            return Err(error);
        }
        let mut result = rows.result;
        if result.rows.is_empty() {
            result.columns = self.columns_of(statement).await?.to_vec();
        }
        Ok(result)
    }

    async fn execute_many(
        &mut self,
        statement: &str,
        rows: &[Vec<Value>],
    ) -> Result<Vec<u64>, SqlError> {
        self.run_many(statement, rows).await
    }

    async fn begin_savepoint(&mut self) -> Result<Savepoint, SqlError> {
        self.open_savepoint().await
    }

    async fn release_savepoint(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        self.keep_savepoint(savepoint).await
    }

    async fn roll_back_savepoint(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        self.undo_savepoint(savepoint).await
    }

    fn open_savepoints(&self) -> usize {
        self.savepoints.open()
    }

    fn fault(&self) -> Option<StoreError> {
        self.fault.clone()
    }

    fn is_aborted(&self) -> bool {
        self.refuse_if_aborted().is_err()
    }

    async fn write_outbox(&mut self, rows: &[OutboxRow]) -> Result<(), StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        for row in rows {
            let not_before = row
                .not_before
                .map(|instant| instant_to_text(instant, YEAR_MAX))
                .transpose()
                .map_err(|error| {
                    StoreError::Refused(SqlError::new(
                        "data.invalid",
                        format!("`not-before`: {error}"),
                    ))
                })?;
            sqlx::query(
                "INSERT INTO hapax_outbox (id, consumer, message_id, ordinal, target, subject, key, headers, \
                     content_type, payload, not_before, due_at) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, \
                     coalesce(?12, strftime('%Y-%m-%dT%H:%M:%fZ', 'now')))",
            )
            .bind(&row.id)
            .bind(&row.consumer)
            .bind(row.message_id.as_str())
            .bind(i64::from(row.ordinal))
            .bind(&row.target)
            .bind(&row.subject)
            .bind(&row.key)
            .bind(headers_to_json(&row.headers))
            .bind(&row.content_type)
            .bind(&row.payload[..])
            .bind(not_before)
            .bind(letters::own_moment(row.not_before))
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        }
        Ok(())
    }

    async fn commit(&mut self) -> Result<(), CommitError> {
        self.note_end();
        match &self.fault {
            Some(StoreError::Busy(text) | StoreError::Unavailable(text)) => {
                return Err(CommitError::Busy(text.clone()));
            }
            _ if self.aborted => return Err(CommitError::Refused(records::aborted())),
            _ if self.savepoints.open() > 0 => {
                return Err(CommitError::Refused(records::open_savepoint()));
            }
            _ => {}
        }
        // From here on the commit hook lets a commit pass: the next one is the host's.
        self.hooks.guarded.store(false, Ordering::SeqCst);
        let result = sqlx::raw_sql("COMMIT").execute(&mut self.connection).await;
        match result {
            Ok(_) => {
                self.components.extend(self.tx_components.drain(..));
                self.clear_tx();
                Ok(())
            }
            Err(error) => {
                self.note(&error);
                if errors::leaves_commit_unknown(&error) {
                    self.broken = true;
                    return Err(CommitError::Unknown(errors::describe(&error)));
                }
                Err(match errors::class(&error) {
                    Class::Busy | Class::Unavailable => CommitError::Busy(errors::describe(&error)),
                    Class::Refused => CommitError::Refused(errors::sql_error(&error)),
                })
            }
        }
    }

    async fn rollback(&mut self) -> Result<(), StoreError> {
        self.note_end();
        if self.broken {
            return Err(records::broken_connection());
        }
        self.hooks.guarded.store(false, Ordering::SeqCst);
        let rolled_back = self.simple("ROLLBACK").await;
        if rolled_back.is_err() {
            self.broken = true;
        } else {
            self.clear_tx();
        }
        rolled_back
    }

    async fn migrate(&mut self) -> Result<(), StoreError> {
        match self.migrate_in_tx().await {
            Ok(()) => self.commit_own().await,
            Err(error) => self.abandon(error).await,
        }
    }

    async fn apply_handler_migrations(
        &mut self,
        handler: &str,
        migrations: &[HandlerMigration],
    ) -> Result<usize, StoreError> {
        let mut applied = 0;
        loop {
            match self.apply_one_in_tx(handler, migrations).await {
                Ok(true) => {
                    self.commit_own().await?;
                    applied += 1;
                }
                Ok(false) => {
                    self.rollback().await?;
                    return Ok(applied);
                }
                Err(error) => return self.abandon(error).await,
            }
        }
    }

    async fn record_attempt(
        &mut self,
        consumer: &str,
        id: &MessageId,
        class: FailureClass,
        error: &str,
        component: Option<ComponentDigest>,
    ) -> Result<u32, StoreError> {
        // Outside a transaction each statement commits by itself, so the component's number is good at once.
        self.clear_tx();
        let component_id = self.component(component).await?;
        self.components.extend(self.tx_components.drain(..));
        let number: i64 = sqlx::query_scalar(
            "INSERT INTO hapax_attempts (consumer, message_id, attempt, class, error, component) \
             SELECT ?1, ?2, coalesce(max(attempt), 0) + 1, ?3, ?4, ?5 FROM hapax_attempts \
             WHERE consumer = ?1 AND message_id = ?2 \
             RETURNING attempt",
        )
        .bind(consumer)
        .bind(id.as_str())
        .bind(class.as_str())
        .bind(clean_reason(error))
        .bind(component_id)
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(u32::try_from(number).unwrap_or(u32::MAX))
    }

    async fn add_counters(
        &mut self,
        consumer: &str,
        host: &str,
        counters: &Counters,
    ) -> Result<(), StoreError> {
        let [claimed, duplicates, retried, rolled_back, dead] = records::counter_columns(counters);
        sqlx::query(
            "INSERT INTO hapax_counters (consumer, host, claimed, duplicates, retried, rolled_back, dead) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
             ON CONFLICT (consumer, host) DO UPDATE SET claimed = claimed + excluded.claimed, \
                 duplicates = duplicates + excluded.duplicates, retried = retried + excluded.retried, \
                 rolled_back = rolled_back + excluded.rolled_back, \
                 dead = dead + excluded.dead, updated_at = excluded.updated_at",
        )
        .bind(consumer)
        .bind(host)
        .bind(claimed)
        .bind(duplicates)
        .bind(retried)
        .bind(rolled_back)
        .bind(dead)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    async fn counters(&mut self, consumer: &str) -> Result<Counters, StoreError> {
        let sums: (i64, i64, i64, i64, i64) = sqlx::query_as(
            "SELECT coalesce(sum(claimed), 0), coalesce(sum(duplicates), 0), coalesce(sum(retried), 0), coalesce(sum(rolled_back), 0), \
                 coalesce(sum(dead), 0) \
             FROM hapax_counters WHERE consumer = ?1",
        )
        .bind(consumer)
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(records::counters_of(sums))
    }
}
