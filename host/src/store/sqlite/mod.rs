//! The session on SQLite.
//!
//! SQLite has ways to end a transaction without being asked: `INSERT OR ROLLBACK`, a table's `ON CONFLICT ROLLBACK`,
//! `RAISE(ROLLBACK)`, an interrupted write. The rollback hook tells; the commit hook refuses every commit that is not the
//! host's, so that what follows such an end can't be kept either.
//!
//! **Invariant**: while a transaction is open, only the host's own COMMIT can commit anything.
//! **Invariant**: after any error inside a transaction, no more of it is run but ROLLBACK, to a savepoint that was begun
//! before it or of the whole.

mod errors;
mod letters;
mod many;
mod order;
mod params;
mod savepoints;
mod started;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqliteRow, SqliteSynchronous,
};
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions as _, Either, Executor as _, Row as _,
    SqlSafeStr as _, SqliteConnection, Statement as _, TypeInfo as _,
};

use super::guard::{self, Passed};
use super::migrations::{self, Recorded};
use super::text::{
    clean, clean_reason, headers_from_json, headers_to_json, instant_from_text, instant_to_text,
};
use super::{
    Baton, Claim, ClaimAs, ClaimRequest, Column, CommitError, Counters, DeadLetter,
    HandlerMigration, NewQueueRow, OutboxRow, QueueRow, ResultSet, Savepoint, Session,
    SessionOptions, SqlError, StoreError, StoreKind, StoredDeadLetter, Value, records,
    savepoints::Savepoints,
};
use crate::message::{ComponentDigest, FailureClass, MessageId, Position};
use errors::Class;
use letters::{LETTER_COLUMNS, read_carried};

/// How many steps of SQLite's machine run between two looks at the deadline: well below a millisecond.
const STEPS_BETWEEN_LOOKS: i32 = 1000;

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
    /// The file whose lock keeps suspects of all hosts apart.
    run_lock_path: PathBuf,
    /// That file, while a suspect runs on this session.
    run_lock: Option<std::fs::File>,
    /// True if the connection must be closed.
    broken: bool,
}

/// What the callbacks inside SQLite share with the session.
#[derive(Debug)]
struct Hooks {
    /// A transaction is open that only the host may end.
    guarded: AtomicBool,
    /// It ended, and not by the host.
    ended: AtomicBool,
    /// The session was dropped.
    dropped: AtomicBool,
    started: Instant,
    /// When the statement that runs must have ended, in microseconds after `started`; 0 for never.
    deadline: AtomicU64,
}

impl Hooks {
    fn new() -> Self {
        Self {
            guarded: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            started: Instant::now(),
            deadline: AtomicU64::new(0),
        }
    }

    fn set_deadline(&self, timeout: Option<Duration>) {
        let at = timeout.map_or(0, |timeout| self.microseconds_after(timeout).max(1));
        self.deadline.store(at, Ordering::SeqCst);
    }

    fn microseconds_after(&self, timeout: Duration) -> u64 {
        u64::try_from((self.started.elapsed() + timeout).as_micros()).unwrap_or(u64::MAX)
    }

    fn may_go_on(&self) -> bool {
        if self.dropped.load(Ordering::SeqCst) {
            return false;
        }
        match self.deadline.load(Ordering::SeqCst) {
            0 => true,
            deadline => self.microseconds_after(Duration::ZERO) < deadline,
        }
    }
}

impl Drop for SqliteSession {
    fn drop(&mut self) {
        // Otherwise a long statement would go on, and keep the write lock.
        self.hooks.dropped.store(true, Ordering::SeqCst);
    }
}

impl SqliteSession {
    /// Opens the file, and makes it if it is missing.
    pub(super) async fn connect(path: &Path, options: &SessionOptions) -> Result<Self, StoreError> {
        if let Some(folder) = path.parent()
            && !folder.as_os_str().is_empty()
            && !folder.is_dir()
        {
            return Err(StoreError::Unusable(format!(
                "the store's file `{}` can't be opened: there is no folder `{}`\nhint: make it first, or \
                 correct `store.url`",
                path.display(),
                folder.display()
            )));
        }
        let driver_options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(options.lock_timeout)
            .statement_cache_capacity(STATEMENTS_MAX)
            .disable_statement_logging();
        let opening = Instant::now();
        let mut connection = loop {
            match driver_options.connect().await {
                Ok(connection) => break connection,
                // The switch to WAL does not wait for others, whatever the busy timeout says.
                Err(error)
                    if errors::class(&error) == Class::Busy
                        && opening.elapsed() < options.lock_timeout =>
                {
                    tokio::time::sleep(OPEN_AGAIN_AFTER).await;
                }
                Err(error) => {
                    let text = format!(
                        "the store's file `{}` can't be opened: {}{}",
                        path.display(),
                        errors::describe(&error),
                        errors::open_hint(&error)
                    );
                    return Err(match errors::class(&error) {
                        Class::Busy => StoreError::Busy(text),
                        _ => StoreError::Unusable(text),
                    });
                }
            }
        };

        let hooks = Arc::new(Hooks::new());
        let mut handle = connection
            .lock_handle()
            .await
            .map_err(|error| errors::store_error(&error))?;
        let shared = Arc::clone(&hooks);
        handle.set_commit_hook(move || !shared.guarded.load(Ordering::SeqCst));
        let shared = Arc::clone(&hooks);
        handle.set_rollback_hook(move || {
            if shared.guarded.load(Ordering::SeqCst) {
                shared.ended.store(true, Ordering::SeqCst);
            }
        });
        let shared = Arc::clone(&hooks);
        handle.set_progress_handler(STEPS_BETWEEN_LOOKS, move || shared.may_go_on());
        drop(handle);

        let mut session = Self {
            connection,
            statement_timeout: options.statement_timeout,
            hooks,
            verdicts: HashMap::new(),
            columns: HashMap::new(),
            components: HashMap::new(),
            tx_components: Vec::new(),
            aborted: false,
            fault: None,
            savepoints: Savepoints::default(),
            run_lock_path: started::lock_path(path),
            run_lock: None,
            broken: false,
        };
        session.check_settings(path).await?;
        Ok(session)
    }

    async fn check_settings(&mut self, path: &Path) -> Result<(), StoreError> {
        for (name, expected) in [
            ("journal_mode", "wal"),
            ("synchronous", "2"),
            ("foreign_keys", "1"),
        ] {
            let row = sqlx::raw_sql(AssertSqlSafe(format!("PRAGMA {name}")))
                .fetch_one(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
            let value = match params::read(&row).map_err(StoreError::Refused)?.pop() {
                Some(Value::Text(text)) => text,
                Some(Value::Int64(number)) => number.to_string(),
                other => format!("{other:?}"),
            };
            if value != expected {
                return Err(StoreError::Unusable(format!(
                    "the store's file `{}` has `{name} = {value}` although `{expected}` was set\nhint: put it on a local \
                     file system: this one cannot lock or share memory",
                    path.display()
                )));
            }
        }
        Ok(())
    }

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

    /// Ends a transaction of the host's own after a failure; the failure is what is told.
    async fn abandon<T>(&mut self, error: StoreError) -> Result<T, StoreError> {
        // A rollback that fails marks the session as broken.
        let _ = self.rollback().await;
        Err(error)
    }

    async fn commit_own(&mut self) -> Result<(), StoreError> {
        match self.commit().await {
            Ok(()) => Ok(()),
            Err(CommitError::Busy(text)) => self.abandon(StoreError::Busy(text)).await,
            Err(CommitError::Refused(error)) => self.abandon(StoreError::Refused(error)).await,
            Err(CommitError::Unknown(text)) => Err(StoreError::Unavailable(text)),
        }
    }

    async fn migrate_in_tx(&mut self) -> Result<(), StoreError> {
        self.begin().await?;
        let made: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'hapax_meta')",
        )
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        let found = if made {
            let text: Option<String> =
                sqlx::query_scalar("SELECT value FROM hapax_meta WHERE name = 'schema-version'")
                    .fetch_optional(&mut self.connection)
                    .await
                    .map_err(|error| self.host_error(&error))?;
            records::stored_version(text)?
        } else {
            0
        };
        for migration in migrations::own_missing(StoreKind::Sqlite, found)? {
            self.simple(migration.sql).await?;
            sqlx::query(
                "INSERT INTO hapax_meta (name, value) VALUES ('schema-version', ?1) \
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            )
            .bind(migration.version.to_string())
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        }
        Ok(())
    }

    /// Applies the first migration that is missing. False: none is.
    async fn apply_one_in_tx(
        &mut self,
        handler: &str,
        migrations: &[HandlerMigration],
    ) -> Result<bool, StoreError> {
        self.begin().await?;
        let rows = sqlx::query(
            "SELECT version, file, checksum FROM hapax_handler_migrations WHERE handler = ?1 ORDER BY version",
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
        let missing = migrations::handler_missing(StoreKind::Sqlite, migrations, &recorded)?;
        let Some(next) = missing.first() else {
            return Ok(false);
        };
        sqlx::query(
            "INSERT INTO hapax_handler_migrations (handler, version, file, checksum) VALUES (?1, ?2, ?3, ?4)",
        )
        .bind(handler)
        .bind(next.version)
        .bind(&next.file)
        .bind(&migrations::checksum(next)[..])
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        match self.simple(next.sql.as_str()).await {
            Ok(()) => Ok(true),
            Err(StoreError::Refused(mut error)) => {
                error.message = format!("`{}`: {}", next.file, error.message);
                Err(StoreError::Refused(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the number of a component, made if need be.
    async fn component(
        &mut self,
        digest: Option<ComponentDigest>,
    ) -> Result<Option<i64>, StoreError> {
        let Some(digest) = digest else {
            return Ok(None);
        };
        if let Some(id) = self.components.get(&digest) {
            return Ok(Some(*id));
        }
        // A rolled-back number would point nowhere, so it is remembered at the commit.
        if let Some((_, id)) = self
            .tx_components
            .iter()
            .find(|(known, _)| *known == digest)
        {
            return Ok(Some(*id));
        }
        // The update that changes nothing makes RETURNING answer for a row that is there already.
        let id: i64 = sqlx::query_scalar(
            "INSERT INTO hapax_components (digest) VALUES (?1) \
             ON CONFLICT (digest) DO UPDATE SET digest = excluded.digest RETURNING id",
        )
        .bind(&digest.0[..])
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        self.tx_components.push((digest, id));
        Ok(Some(id))
    }

    async fn try_claim(
        &mut self,
        consumer: &str,
        requests: &[ClaimRequest],
        claim_as: ClaimAs,
        component: Option<i64>,
    ) -> Result<Vec<Claim>, sqlx::Error> {
        let wanted = serde_json::Value::from(
            requests
                .iter()
                .map(|request| {
                    serde_json::json!([request.id.as_str(), request.payload_hash.to_hex()])
                })
                .collect::<Vec<_>>(),
        )
        .to_string();
        let fresh: Vec<String> = sqlx::query_scalar(
            "INSERT INTO hapax_processed_messages (consumer, message_id, outcome, payload_hash, component) \
             SELECT ?1, wanted.value ->> 0, ?3, unhex(wanted.value ->> 1), ?4 FROM json_each(?2) AS wanted WHERE true \
             ON CONFLICT DO NOTHING RETURNING message_id",
        )
        .bind(consumer)
        .bind(&wanted)
        .bind(records::outcome_text(claim_as))
        .bind(component)
        .fetch_all(&mut self.connection)
        .await?;
        let mut found: HashMap<String, Claim> = fresh
            .into_iter()
            .map(|id| (id, Claim::Fresh { attempt: 1 }))
            .collect();
        if !found.is_empty() {
            let attempts: Vec<(String, i64)> = sqlx::query_as(
                "SELECT message_id, max(attempt) FROM hapax_attempts \
                 WHERE consumer = ?1 AND message_id IN (SELECT value ->> 0 FROM json_each(?2)) GROUP BY message_id",
            )
            .bind(consumer)
            .bind(&wanted)
            .fetch_all(&mut self.connection)
            .await?;
            for (id, last) in attempts {
                let Some(claim @ Claim::Fresh { .. }) = found.get_mut(&id) else {
                    continue;
                };
                *claim = Claim::Fresh {
                    attempt: u32::try_from(last).unwrap_or(0) + 1,
                };
                if claim_as == ClaimAs::Done {
                    sqlx::query(
                        "DELETE FROM hapax_attempts WHERE consumer = ?1 AND message_id = ?2",
                    )
                    .bind(consumer)
                    .bind(&id)
                    .execute(&mut self.connection)
                    .await?;
                }
            }
        }
        if found.len() < requests.len() {
            let settled: Vec<(String, Vec<u8>, String, bool)> = sqlx::query_as(
                "SELECT message_id, payload_hash, outcome, EXISTS ( \
                     SELECT 1 FROM hapax_attempts AS attempt \
                     WHERE attempt.consumer = ?1 AND attempt.message_id = claim.message_id \
                 ) \
                 FROM hapax_processed_messages AS claim \
                 WHERE consumer = ?1 AND message_id IN (SELECT value ->> 0 FROM json_each(?2))",
            )
            .bind(consumer)
            .bind(&wanted)
            .fetch_all(&mut self.connection)
            .await?;
            for (id, hash, outcome, tried) in settled {
                if found.contains_key(&id) {
                    continue;
                }
                let Some(request) = requests.iter().find(|request| request.id.as_str() == id)
                else {
                    continue;
                };
                let claim = records::settled_claim(request, &hash, &outcome);
                if tried {
                    // A failure that was recorded after another host's claim counts no more.
                    sqlx::query(
                        "DELETE FROM hapax_attempts WHERE consumer = ?1 AND message_id = ?2",
                    )
                    .bind(consumer)
                    .bind(&id)
                    .execute(&mut self.connection)
                    .await?;
                }
                found.insert(id, claim);
            }
        }
        Ok(requests
            .iter()
            .filter_map(|request| found.remove(request.id.as_str()))
            .collect())
    }

    fn verdict(&mut self, statement: &str) -> Result<Passed, SqlError> {
        if let Some(passed) = self.verdicts.get(statement) {
            return Ok(*passed);
        }
        let passed = guard::check(StoreKind::Sqlite, statement)?;
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
        let prepared = (&mut self.connection)
            .prepare(AssertSqlSafe(statement).into_sql_str())
            .await;
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

    /// Runs a handler's statement. Returns the rows that it changed and those that it returned.
    async fn run(
        &mut self,
        statement: &str,
        arguments: SqliteArguments,
        rows: &mut RowSink,
    ) -> Result<u64, SqlError> {
        self.hooks.set_deadline(self.statement_timeout);
        let mut changed = 0;
        let result = {
            let mut stream = self
                .connection
                .fetch_many(sqlx::query_with(AssertSqlSafe(statement), arguments));
            loop {
                match stream.try_next().await {
                    Ok(Some(Either::Left(done))) => changed += done.rows_affected(),
                    Ok(Some(Either::Right(row))) => {
                        if !rows.take(&row) {
                            // All changes were made before the first row came; the statement is reset.
                            break Ok(());
                        }
                    }
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            }
        };
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
        let changed = self.run(statement, arguments, &mut rows).await?;
        // For a statement that only reads, SQLite reports the changes of an earlier one.
        Ok(if passed.reads { rows.count } else { changed })
    }
}

/// Takes a statement's rows up to its limits, or only counts them.
struct RowSink {
    keep: bool,
    rows_max: u64,
    count: u64,
    bytes: usize,
    result: ResultSet,
    failure: Option<SqlError>,
}

impl RowSink {
    fn new(rows_max: Option<u64>) -> Self {
        Self {
            keep: rows_max.is_some(),
            rows_max: rows_max.unwrap_or(u64::MAX),
            count: 0,
            bytes: 0,
            result: ResultSet::default(),
            failure: None,
        }
    }

    /// False: enough.
    fn take(&mut self, row: &SqliteRow) -> bool {
        self.count += 1;
        if !self.keep {
            return true;
        }
        if self.count > self.rows_max {
            self.failure = Some(records::too_many_rows(self.rows_max));
            return false;
        }
        if self.result.columns.is_empty() {
            self.result.columns = row.columns().iter().map(column).collect();
        }
        match params::read(row) {
            Ok(values) => {
                self.bytes += values.iter().map(records::value_bytes).sum::<usize>();
                if self.bytes > records::RESULT_MAX_BYTES {
                    self.failure = Some(records::too_many_bytes());
                    return false;
                }
                self.result.rows.push(values);
                true
            }
            Err(error) => {
                self.failure = Some(error);
                false
            }
        }
    }
}

fn column(column: &sqlx::sqlite::SqliteColumn) -> Column {
    Column {
        name: column.name().to_owned(),
        type_name: column.type_info().name().to_owned(),
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
        self.simple("BEGIN IMMEDIATE").await?;
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
        self.run(statement, params::bind(params)?, &mut rows)
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
                     content_type, payload, not_before) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
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
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        }
        Ok(())
    }

    async fn take_queue_rows(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        sqlx::query_scalar(
            "DELETE FROM hapax_queue WHERE number IN (SELECT value FROM json_each(?1)) \
                 AND julianday(due_at) <= julianday('now') \
             RETURNING number",
        )
        .bind(serde_json::Value::from(numbers).to_string())
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn wait_for_queue_row(&mut self, number: i64) -> Result<bool, StoreError> {
        // There is one writer: who has begun has waited.
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        let done = sqlx::query("DELETE FROM hapax_queue WHERE number = ?1")
            .bind(number)
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        Ok(done.rows_affected() > 0)
    }

    async fn write_dead_letter(&mut self, letter: &DeadLetter) -> Result<(), StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        let component = self.component(letter.component).await?;
        let own_id = records::id_of_own_attempts(letter);
        let published_at = letter
            .published_at
            .and_then(|instant| instant_to_text(records::to_microseconds(instant), YEAR_MAX).ok());
        sqlx::query(
            "INSERT INTO hapax_dead_letters (consumer, handler, message_id, source, position, subject, headers, \
                 content_type, payload, published_at, class, reason, component, order_key, queue_id, attempts) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?15, ?16, ( \
                 SELECT json_group_array(json_object( \
                     'attempt', attempt.attempt, \
                     'at', attempt.at, \
                     'class', attempt.class, \
                     'error', attempt.error, \
                     'component', nullif(lower(hex(component.digest)), '') \
                 ) ORDER BY attempt.attempt) \
                 FROM hapax_attempts AS attempt \
                 LEFT JOIN hapax_components AS component ON component.id = attempt.component \
                 WHERE attempt.consumer = ?1 AND attempt.message_id = ?14 \
             )) \
             ON CONFLICT (consumer, source, position) DO NOTHING",
        )
        .bind(clean(&letter.consumer))
        .bind(clean(&letter.handler))
        .bind(letter.message_id.as_ref().map(MessageId::as_str))
        .bind(clean(&letter.source))
        .bind(clean(&letter.position.0))
        .bind(clean(&letter.subject))
        .bind(headers_to_json(&letter.headers))
        .bind(letter.content_type.as_deref().map(clean))
        .bind(&letter.payload[..])
        .bind(published_at)
        .bind(letter.class.as_str())
        .bind(clean_reason(&letter.reason))
        .bind(component)
        .bind(own_id)
        .bind(letter.order_key.as_deref().map(clean))
        .bind(letter.queue_id.as_deref().map(clean))
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        if let Some(id) = own_id {
            sqlx::query("DELETE FROM hapax_attempts WHERE consumer = ?1 AND message_id = ?2")
                .bind(&letter.consumer)
                .bind(id)
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

    async fn enqueue(&mut self, queue: &str, rows: &[NewQueueRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        self.begin().await?;
        for row in rows {
            let written = sqlx::query(
                "INSERT INTO hapax_queue (queue, message_id, subject, headers, content_type, payload) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )
            .bind(queue)
            .bind(&row.message_id)
            .bind(&row.subject)
            .bind(headers_to_json(&row.headers))
            .bind(&row.content_type)
            .bind(&row.payload[..])
            .execute(&mut self.connection)
            .await;
            if let Err(error) = written {
                let error = self.host_error(&error);
                return self.abandon(error).await;
            }
        }
        self.commit_own().await
    }

    async fn peek_queue(
        &mut self,
        queue: &str,
        in_hand: &[i64],
        limit: u32,
    ) -> Result<Vec<QueueRow>, StoreError> {
        // What hapax wrote itself compares as text, in an index in which rows that are not due cost nothing.
        let (is_due, order) = if queue.starts_with('@') {
            (
                "origin_source IS NOT NULL AND due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
                "due_at, number",
            )
        } else {
            ("julianday(due_at) <= julianday('now')", "number")
        };
        let rows = sqlx::query(AssertSqlSafe(format!(
            "SELECT number, message_id, subject, headers, content_type, CAST(payload AS BLOB), enqueued_at, \
                 origin_source, origin_position, origin_published_at, origin_queue_id, dead_letter, forced, seen \
             FROM hapax_queue \
             WHERE queue = ?1 AND {is_due} AND number NOT IN (SELECT value FROM json_each(?2)) \
             ORDER BY {order} LIMIT ?3"
        )))
        .bind(queue)
        .bind(serde_json::json!(in_hand).to_string())
        .bind(i64::from(limit))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        rows.iter()
            .map(|row| {
                let headers: String = row.try_get(3)?;
                let enqueued_at: String = row.try_get(6)?;
                let message_id: Option<String> = row.try_get(1)?;
                Ok(QueueRow {
                    number: row.try_get(0)?,
                    carried: read_carried(row, 7, message_id.as_deref())?,
                    message_id,
                    subject: row.try_get(2)?,
                    headers: headers_from_json(&headers),
                    content_type: row.try_get(4)?,
                    payload: row.try_get::<Vec<u8>, _>(5)?.into(),
                    enqueued_at: instant_from_text(&enqueued_at),
                    seen: u32::try_from(row.try_get::<i64, _>(13)?).unwrap_or(0),
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(|error| self.host_error(&error))
    }

    async fn queue_backlog(&mut self, queue: &str) -> Result<u64, StoreError> {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM hapax_queue WHERE queue = ?1")
            .bind(queue)
            .fetch_one(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        Ok(count.unsigned_abs())
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

    async fn dead_letter_count(&mut self, consumer: &str) -> Result<u64, StoreError> {
        let count: i64 =
            sqlx::query_scalar("SELECT count(*) FROM hapax_dead_letters WHERE consumer = ?1")
                .bind(consumer)
                .fetch_one(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
        Ok(count.unsigned_abs())
    }

    async fn dead_letters(
        &mut self,
        consumer: &str,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        let rows = sqlx::query(AssertSqlSafe(format!(
            "SELECT {LETTER_COLUMNS} FROM hapax_dead_letters AS letter \
             LEFT JOIN hapax_components AS component ON component.id = letter.component \
             WHERE letter.consumer = ?1 ORDER BY letter.id LIMIT ?2"
        )))
        .bind(consumer)
        .bind(i64::from(limit))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        rows.iter().map(read_letter).collect()
    }
}

fn read_letter(row: &SqliteRow) -> Result<StoredDeadLetter, StoreError> {
    let broken = |error: sqlx::Error| StoreError::Unusable(error.to_string());
    let headers: String = row.try_get(7).map_err(broken)?;
    let class: String = row.try_get(11).map_err(broken)?;
    let attempts: String = row.try_get(14).map_err(broken)?;
    let published_at: Option<String> = row.try_get(10).map_err(broken)?;
    let dead_at: String = row.try_get(15).map_err(broken)?;
    Ok(StoredDeadLetter {
        number: row.try_get(0).map_err(broken)?,
        letter: DeadLetter {
            consumer: row.try_get(1).map_err(broken)?,
            handler: row.try_get(2).map_err(broken)?,
            message_id: records::stored_id(row.try_get(3).map_err(broken)?)?,
            source: row.try_get(4).map_err(broken)?,
            position: Position(row.try_get(5).map_err(broken)?),
            subject: row.try_get(6).map_err(broken)?,
            headers: headers_from_json(&headers),
            content_type: row.try_get(8).map_err(broken)?,
            payload: row.try_get::<Vec<u8>, _>(9).map_err(broken)?.into(),
            published_at: published_at.as_deref().and_then(instant_from_text),
            queue_id: row.try_get(16).map_err(broken)?,
            class: records::stored_class(&class)?,
            reason: row.try_get(12).map_err(broken)?,
            component: records::stored_digest(row.try_get(13).map_err(broken)?)?,
            order_key: row.try_get(17).map_err(broken)?,
        },
        attempts: records::stored_attempts(&attempts)?,
        dead_at: instant_from_text(&dead_at),
    })
}
