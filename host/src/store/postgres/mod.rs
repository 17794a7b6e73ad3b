//! The session on PostgreSQL.
//!
//! A handler's statement is described by the driver's `prepare` (parameter types, columns), then prepared again under a
//! name of ours through the extended protocol, which refuses a second command, and run as `EXECUTE name(E'..')` through
//! the simple one, whose results come as text (`params`).
//!
//! **Invariant**: after any error that came from the server inside a transaction, no more of it is sent but ROLLBACK, to
//! a savepoint that was begun before it or of the whole.

mod connect;
mod errors;
mod letters;
mod many;
mod order;
mod params;
mod savepoints;
mod started;
mod statements;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use futures_util::TryStreamExt as _;
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, Either, PgConnection, Row as _, ValueRef as _};

pub(super) use connect::{display, parse};
use errors::Class;
use letters::{LETTER_COLUMNS, read_carried};
pub(super) use params::{is_decimal, is_uuid};
use statements::{Prepared, Statements};

use super::migrations::{self, Recorded};
use super::text::{
    clean, clean_reason, headers_from_json, headers_to_json, instant_from_microseconds,
    instant_to_text,
};
use super::{
    Baton, Claim, ClaimAs, ClaimRequest, CommitError, Counters, DeadLetter, HandlerMigration,
    NewQueueRow, OutboxRow, QueueRow, ResultSet, Savepoint, Session, SessionOptions, SqlError,
    StoreError, StoreKind, StoredDeadLetter, Value, records, savepoints::Savepoints,
};
use crate::message::{ComponentDigest, FailureClass, MessageId, Position, ShortHash};

/// The class of the advisory locks that hapax takes: `hapx` in ASCII.
const LOCK_CLASS: i32 = 0x6861_7078;
/// The class of the locks of suspects' runs: `haps` in ASCII.
const LOCK_CLASS_RUNS: i32 = 0x6861_7073;
/// The lock of migrations within the class.
const LOCK_MIGRATIONS: i32 = 1;

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// What the check before COMMIT fails with. The words come back as the value that is no integer.
const NOT_ALIVE: &str = "hapax: the transaction is not the one that was begun";

/// The last year that timestamptz holds whole.
const YEAR_MAX: i64 = 294_275;

/// One connection. Dropping it closes it; the server rolls back what was open.
#[derive(Debug)]
pub struct PostgresSession {
    connection: PgConnection,
    options: SessionOptions,
    statements: Statements,
    /// Numbers of components that are committed.
    components: HashMap<ComponentDigest, i32>,
    tx: TxState,
    /// The lock of a suspect's run that this session holds.
    run_lock: Option<i32>,
    /// True if the connection must be closed.
    broken: bool,
}

/// What is known of the open transaction.
#[derive(Debug, Default)]
struct TxState {
    /// The transaction's number, once the claim has given it one.
    xid: Option<String>,
    /// The server raised an error: nothing more may be sent.
    aborted: bool,
    fault: Option<StoreError>,
    savepoints: Savepoints,
    /// Numbers of components that this transaction made or found.
    components: Vec<(ComponentDigest, i32)>,
}

/// Returns the second number of a consumer's advisory lock: the first four bytes of SHA-256 over its length-prefixed name.
fn baton_key(consumer: &str) -> i32 {
    let [a, b, c, d, ..] = ShortHash::of(&[consumer.as_bytes()]).0;
    i32::from_be_bytes([a, b, c, d])
}

impl PostgresSession {
    /// Opens a session.
    pub(super) async fn connect(
        base: &PgConnectOptions,
        options: &SessionOptions,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            connection: connect::connect(base, options).await?,
            options: options.clone(),
            statements: Statements::default(),
            components: HashMap::new(),
            tx: TxState::default(),
            run_lock: None,
            broken: false,
        })
    }

    /// Takes down an error of a statement of the host's own.
    fn host_error(&mut self, error: &sqlx::Error) -> StoreError {
        self.note(error);
        self.tx.savepoints.lose();
        let error = errors::store_error(error);
        if matches!(error, StoreError::Busy(_)) {
            self.tx.fault = Some(error.clone());
        }
        error
    }

    /// Takes down an error of a handler's statement, before it is told.
    fn note(&mut self, error: &sqlx::Error) {
        self.tx.aborted = true;
        match errors::class(error) {
            Class::Busy => {
                self.tx.fault = Some(StoreError::Busy(errors::describe(error)));
            }
            Class::Unavailable => {
                self.broken = true;
                self.tx.fault = Some(StoreError::Unavailable(errors::describe(error)));
            }
            Class::Refused => {}
        }
    }

    fn refuse_if_aborted(&self) -> Result<(), SqlError> {
        if self.tx.aborted {
            return Err(self.tx.savepoints.aborted());
        }
        Ok(())
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

    /// Begins a transaction of the host's own that holds the lock of migrations.
    async fn begin_migration(&mut self) -> Result<(), StoreError> {
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
        self.begin_migration().await?;
        let made: bool = sqlx::query_scalar("SELECT to_regclass('hapax.meta') IS NOT NULL")
            .fetch_one(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        let found = if made {
            let text: Option<String> =
                sqlx::query_scalar("SELECT value FROM hapax.meta WHERE name = 'schema-version'")
                    .persistent(false)
                    .fetch_optional(&mut self.connection)
                    .await
                    .map_err(|error| self.host_error(&error))?;
            records::stored_version(text)?
        } else {
            0
        };
        for migration in migrations::own_missing(StoreKind::Postgres, found)? {
            self.simple(migration.sql).await?;
            sqlx::query(
                "INSERT INTO hapax.meta (name, value) VALUES ('schema-version', $1) \
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

    /// Returns the number of a component, made if need be.
    async fn component(
        &mut self,
        digest: Option<ComponentDigest>,
    ) -> Result<Option<i32>, StoreError> {
        let Some(digest) = digest else {
            return Ok(None);
        };
        if let Some(id) = self.components.get(&digest) {
            return Ok(Some(*id));
        }
        // A rolled-back number would point nowhere, so it is remembered at the commit.
        if let Some((_, id)) = self
            .tx
            .components
            .iter()
            .find(|(known, _)| *known == digest)
        {
            return Ok(Some(*id));
        }
        let bytes = &digest.0[..];
        let find = "SELECT id FROM hapax.components WHERE digest = $1";
        for _ in 0..2 {
            let found: Option<i32> = sqlx::query_scalar(find)
                .bind(bytes)
                .fetch_optional(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
            if let Some(id) = found {
                self.tx.components.push((digest, id));
                return Ok(Some(id));
            }
            sqlx::query(
                "INSERT INTO hapax.components (digest) VALUES ($1) ON CONFLICT (digest) DO NOTHING",
            )
            .bind(bytes)
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        }
        let found: Option<i32> = sqlx::query_scalar(find)
            .bind(bytes)
            .fetch_optional(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        match found {
            Some(id) => {
                self.tx.components.push((digest, id));
                Ok(Some(id))
            }
            None => Err(StoreError::Busy(
                "the component's row vanished while it was looked up".into(),
            )),
        }
    }

    async fn try_claim(
        &mut self,
        consumer: &str,
        requests: &[ClaimRequest],
        claim_as: ClaimAs,
        component: Option<i32>,
    ) -> Result<Vec<Claim>, sqlx::Error> {
        let ids: Vec<&str> = requests.iter().map(|request| request.id.as_str()).collect();
        let hashes: Vec<&[u8]> = requests
            .iter()
            .map(|request| &request.payload_hash.0[..])
            .collect();
        // The insert waits for uncommitted claims of the same ids; in one order, so that two hosts can't deadlock here.
        let rows = sqlx::query(
            "WITH claimed AS ( \
                 INSERT INTO hapax.processed_messages (consumer, message_id, outcome, payload_hash, component) \
                 SELECT $1, wanted.message_id, $4, wanted.payload_hash, $5 \
                 FROM unnest($2::text[], $3::bytea[]) AS wanted (message_id, payload_hash) \
                 ORDER BY wanted.message_id COLLATE \"C\" \
                 ON CONFLICT DO NOTHING \
                 RETURNING message_id \
             ) \
             SELECT claimed.message_id, pg_current_xact_id()::text, ( \
                 SELECT max(attempt) FROM hapax.attempts \
                 WHERE consumer = $1 AND message_id = claimed.message_id \
             ) \
             FROM claimed",
        )
        .bind(consumer)
        .bind(&ids)
        .bind(&hashes)
        .bind(records::outcome_text(claim_as))
        .bind(component)
        .fetch_all(&mut self.connection)
        .await?;

        let mut found: HashMap<String, Claim> = HashMap::with_capacity(requests.len());
        let mut tried_before: Vec<String> = Vec::new();
        for row in &rows {
            let id: String = row.try_get(0)?;
            self.tx.xid = Some(row.try_get(1)?);
            let attempts: Option<i32> = row.try_get(2)?;
            let attempts = u32::try_from(attempts.unwrap_or(0)).unwrap_or(0);
            if attempts > 0 {
                tried_before.push(id.clone());
            }
            found.insert(
                id,
                Claim::Fresh {
                    attempt: attempts + 1,
                },
            );
        }
        if claim_as == ClaimAs::Done && !tried_before.is_empty() {
            sqlx::query("DELETE FROM hapax.attempts WHERE consumer = $1 AND message_id = ANY ($2)")
                .bind(consumer)
                .bind(&tried_before)
                .execute(&mut self.connection)
                .await?;
        }
        if found.len() < requests.len() {
            // A row that the insert waited for is invisible to it; this statement has a newer snapshot.
            let rows = sqlx::query(
                "SELECT message_id, payload_hash, outcome, EXISTS ( \
                     SELECT 1 FROM hapax.attempts \
                     WHERE consumer = $1 AND message_id = processed_messages.message_id \
                 ) \
                 FROM hapax.processed_messages WHERE consumer = $1 AND message_id = ANY ($2)",
            )
            .bind(consumer)
            .bind(&ids)
            .fetch_all(&mut self.connection)
            .await?;
            let mut tried_in_vain: Vec<String> = Vec::new();
            for row in &rows {
                let id: String = row.try_get(0)?;
                if found.contains_key(&id) {
                    continue;
                }
                let hash: Vec<u8> = row.try_get(1)?;
                let outcome: String = row.try_get(2)?;
                let tried: bool = row.try_get(3)?;
                let Some(request) = requests.iter().find(|request| request.id.as_str() == id)
                else {
                    continue;
                };
                let claim = records::settled_claim(request, &hash, &outcome);
                if tried {
                    tried_in_vain.push(id.clone());
                }
                found.insert(id, claim);
            }
            // A failure that was recorded after another host's claim counts no more.
            if !tried_in_vain.is_empty() {
                sqlx::query(
                    "DELETE FROM hapax.attempts WHERE consumer = $1 AND message_id = ANY ($2)",
                )
                .bind(consumer)
                .bind(&tried_in_vain)
                .execute(&mut self.connection)
                .await?;
            }
        }
        // An id that is missing here was claimed when the insert looked and gone when the second statement did.
        Ok(requests
            .iter()
            .filter_map(|request| found.remove(request.id.as_str()))
            .collect())
    }

    /// Returns a handler's statement, prepared.
    async fn prepared(&mut self, statement: &str) -> Result<Prepared, SqlError> {
        if let Some(prepared) = self.statements.get(statement) {
            return Ok(prepared);
        }
        super::guard::check(StoreKind::Postgres, statement)?;
        if let Some(name) = self.statements.make_room()
            && let Err(error) = sqlx::raw_sql(AssertSqlSafe(format!("DEALLOCATE {name}")))
                .execute(&mut self.connection)
                .await
        {
            self.note(&error);
            return Err(errors::sql_error(&error));
        }
        match self
            .statements
            .prepare(&mut self.connection, statement)
            .await
        {
            Ok(prepared) => Ok(prepared),
            Err(error) => {
                self.note(&error);
                Err(errors::sql_error(&error))
            }
        }
    }

    /// Runs a handler's statement; `sink` takes its rows.
    async fn run(
        &mut self,
        statement: &str,
        params: &[Value],
        mut sink: Option<&mut RowSink>,
    ) -> Result<u64, SqlError> {
        self.refuse_if_aborted()?;
        let prepared = self.prepared(statement).await?;
        if params.len() != prepared.params.len() {
            return Err(records::wrong_count(prepared.params.len(), params.len()));
        }
        if let Some(sink) = &mut sink {
            sink.start(&prepared)?;
        }
        let (text, spans) = prepared.call(params)?;

        let mut affected = 0;
        let result = {
            let mut stream = sqlx::Executor::fetch_many(
                &mut self.connection,
                sqlx::raw_sql(AssertSqlSafe(text.as_str())),
            );
            loop {
                match stream.try_next().await {
                    Ok(Some(Either::Left(done))) => affected += done.rows_affected(),
                    // Once the sink is full, the rest is read and dropped: the session must come to rest.
                    Ok(Some(Either::Right(row))) => {
                        if let Some(sink) = &mut sink {
                            sink.take(&row);
                        }
                    }
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            }
        };
        if let Err(error) = result {
            self.note(&error);
            let mut error = errors::sql_error(&error);
            // The position is one in the text that was sent, which the handler never saw.
            if let Some(position) = error.position.take()
                && let Some((byte, _)) = text.char_indices().nth(position as usize - 1)
                && let Some(index) = spans.iter().position(|span| span.contains(&byte))
            {
                let number = index as u32 + 1;
                error.param = Some(number);
                error.message = format!("parameter ${number}: {}", error.message);
            }
            return Err(error);
        }
        Ok(affected)
    }

    async fn check_and_commit(&mut self) -> Result<(), CommitError> {
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
                    Class::Busy | Class::Unavailable => {
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

/// Takes a query's rows up to its limits.
struct RowSink {
    rows_max: u64,
    result: ResultSet,
    bases: Vec<params::Base>,
    bytes: usize,
    failure: Option<SqlError>,
}

impl RowSink {
    fn start(&mut self, prepared: &Prepared) -> Result<(), SqlError> {
        for (column, base) in prepared.columns.iter().zip(prepared.bases.iter()) {
            if matches!(base, params::Base::Other | params::Base::Oid) {
                return Err(SqlError {
                    column: Some(column.name.clone()),
                    hint: Some("cast the column to text in the statement".into()),
                    ..SqlError::new(
                        "unsupported",
                        format!(
                            "the column `{}` has the type `{}`, which this host can't return yet",
                            column.name, column.type_name
                        ),
                    )
                });
            }
        }
        self.result.columns = prepared.columns.to_vec();
        self.bases = prepared.bases.to_vec();
        Ok(())
    }

    fn take(&mut self, row: &sqlx::postgres::PgRow) {
        if self.failure.is_some() {
            return;
        }
        if self.result.rows.len() as u64 >= self.rows_max {
            self.failure = Some(records::too_many_rows(self.rows_max));
            return;
        }
        match self.read(row) {
            Ok(values) => {
                self.bytes += values.iter().map(records::value_bytes).sum::<usize>();
                if self.bytes > records::RESULT_MAX_BYTES {
                    self.failure = Some(records::too_many_bytes());
                    return;
                }
                self.result.rows.push(values);
            }
            Err(error) => self.failure = Some(error),
        }
    }

    fn read(&self, row: &sqlx::postgres::PgRow) -> Result<Vec<Value>, SqlError> {
        if row.len() != self.bases.len() {
            return Err(SqlError::new(
                "internal",
                format!("a row has {} columns, not {}", row.len(), self.bases.len()),
            ));
        }
        let column = |index: usize| &self.result.columns[index];
        let mut values = Vec::with_capacity(self.bases.len());
        for (index, base) in self.bases.iter().enumerate() {
            let raw = row
                .try_get_raw(index)
                .map_err(|error| SqlError::new("internal", error.to_string()))?;
            if raw.is_null() {
                values.push(Value::Null);
                continue;
            }
            let text = raw
                .as_str()
                .map_err(|error| SqlError::new("data.encoding", error.to_string()))?;
            let value = params::read(text, *base).ok_or_else(|| SqlError {
                column: Some(column(index).name.clone()),
                hint: Some("cast the column to text in the statement".into()),
                ..SqlError::new(
                    "unsupported",
                    format!(
                        "the column `{}` holds a `{}` that this host can't return: `{}`",
                        column(index).name,
                        column(index).type_name,
                        text.chars().take(64).collect::<String>()
                    ),
                )
            })?;
            values.push(value);
        }
        Ok(values)
    }
}

impl Session for PostgresSession {
    async fn begin(&mut self) -> Result<(), StoreError> {
        if self.broken {
            return Err(records::broken_connection());
        }
        self.tx = TxState::default();
        self.simple(BEGIN).await
    }

    async fn begin_with_baton(&mut self, consumer: &str, baton: Baton) -> Result<(), StoreError> {
        if self.broken {
            return Err(records::broken_connection());
        }
        self.tx = TxState::default();
        let function = match baton {
            Baton::Shared => "pg_advisory_xact_lock_shared",
            Baton::Alone | Baton::AloneForBatch => "pg_advisory_xact_lock",
        };
        let mut options = self.options.clone();
        if baton == Baton::AloneForBatch {
            options.lock_timeout = options.lock_timeout.min(connect::BATCH_LOCK_WAIT_MAX);
        }
        // One message: the wait for another batch is longer than any other wait may be.
        let text = format!(
            "{BEGIN}; {}; SELECT {function}({LOCK_CLASS}, {}); {}",
            connect::baton_timeouts(),
            baton_key(consumer),
            connect::timeouts(&options),
        );
        self.simple(text).await
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
        let ids: Vec<&str> = ids.iter().map(MessageId::as_str).collect();
        // The transaction gets its number here, so that the check before the commit can compare it.
        let rows = sqlx::query(
            "SELECT pg_current_xact_id()::text, ( \
                 SELECT max(attempt) FROM hapax.attempts \
                 WHERE consumer = $1 AND message_id = wanted.message_id \
             ) \
             FROM unnest($2::text[]) WITH ORDINALITY AS wanted (message_id, place) ORDER BY wanted.place",
        )
        .bind(consumer)
        .bind(&ids)
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        let mut attempts = Vec::with_capacity(ids.len());
        for row in &rows {
            let read = |row: &PgRow| Ok((row.try_get(0)?, row.try_get(1)?));
            let (xid, last): (String, Option<i32>) =
                read(row).map_err(|error| self.host_error(&error))?;
            self.tx.xid = Some(xid);
            attempts.push(u32::try_from(last.unwrap_or(0)).unwrap_or(0));
        }
        if attempts.iter().any(|count| *count > 0) {
            sqlx::query("DELETE FROM hapax.attempts WHERE consumer = $1 AND message_id = ANY ($2)")
                .bind(consumer)
                .bind(&ids)
                .execute(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
        }
        Ok(attempts)
    }

    async fn execute(&mut self, statement: &str, params: &[Value]) -> Result<u64, SqlError> {
        self.run(statement, params, None).await
    }

    async fn query(
        &mut self,
        statement: &str,
        params: &[Value],
        rows_max: u64,
    ) -> Result<ResultSet, SqlError> {
        let mut sink = RowSink {
            rows_max,
            result: ResultSet::default(),
            bases: Vec::new(),
            bytes: 0,
            failure: None,
        };
        self.run(statement, params, Some(&mut sink)).await?;
        match sink.failure {
            Some(error) => Err(error),
            None => Ok(sink.result),
        }
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
        self.tx.savepoints.open()
    }

    fn fault(&self) -> Option<StoreError> {
        self.tx.fault.clone()
    }

    fn is_aborted(&self) -> bool {
        self.refuse_if_aborted().is_err()
    }

    async fn write_outbox(&mut self, rows: &[OutboxRow]) -> Result<(), StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        let column = |get: fn(&OutboxRow) -> &str| rows.iter().map(get).collect::<Vec<_>>();
        let maybe = |get: fn(&OutboxRow) -> Option<&str>| rows.iter().map(get).collect::<Vec<_>>();
        let ordinals: Vec<i32> = rows
            .iter()
            .map(|row| i32::try_from(row.ordinal).unwrap_or(i32::MAX))
            .collect();
        let headers: Vec<String> = rows
            .iter()
            .map(|row| headers_to_json(&row.headers))
            .collect();
        let payloads: Vec<&[u8]> = rows.iter().map(|row| &row.payload[..]).collect();
        let not_before = rows
            .iter()
            .map(|row| {
                row.not_before
                    .map(|instant| instant_to_text(instant, YEAR_MAX))
                    .transpose()
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| {
                StoreError::Refused(SqlError::new(
                    "data.invalid",
                    format!("`not-before`: {error}"),
                ))
            })?;
        sqlx::query(
            "INSERT INTO hapax.outbox (id, consumer, message_id, ordinal, target, subject, key, headers, content_type, \
                 payload, not_before) \
             SELECT id, consumer, message_id, ordinal, target, subject, key, headers::json, content_type, payload, \
                 not_before::timestamptz \
             FROM unnest($1::text[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::text[], \
                 $8::text[], $9::text[], $10::bytea[], $11::text[]) WITH ORDINALITY \
                 AS row (id, consumer, message_id, ordinal, target, subject, key, headers, content_type, payload, \
                 not_before, place) \
             ORDER BY place",
        )
        .bind(column(|row| &row.id))
        .bind(column(|row| &row.consumer))
        .bind(column(|row| row.message_id.as_str()))
        .bind(ordinals)
        .bind(maybe(|row| row.target.as_deref()))
        .bind(column(|row| &row.subject))
        .bind(maybe(|row| row.key.as_deref()))
        .bind(headers)
        .bind(maybe(|row| row.content_type.as_deref()))
        .bind(payloads)
        .bind(not_before)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    async fn take_queue_rows(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        sqlx::query_scalar(
            "DELETE FROM hapax.queue WHERE number IN \
                 (SELECT number FROM hapax.queue WHERE number = ANY ($1) AND due_at <= clock_timestamp() \
                      ORDER BY number FOR UPDATE SKIP LOCKED) \
             RETURNING number",
        )
        .bind(numbers)
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn wait_for_queue_row(&mut self, number: i64) -> Result<bool, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        let done = sqlx::query("DELETE FROM hapax.queue WHERE number = $1")
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
            "INSERT INTO hapax.dead_letters (consumer, handler, message_id, source, position, subject, headers, \
                 content_type, payload, published_at, class, reason, component, order_key, queue_id, attempts) \
             VALUES ($1, $2, $3, $4, $5, $6, $7::text::json, $8, $9, $10::text::timestamptz, $11, $12, $13, $15, $16, ( \
                 SELECT coalesce(json_agg(json_build_object( \
                     'attempt', attempt.attempt, \
                     'at', to_char(attempt.at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), \
                     'class', attempt.class, \
                     'error', attempt.error, \
                     'component', encode(component.digest, 'hex') \
                 ) ORDER BY attempt.attempt), '[]') \
                 FROM hapax.attempts AS attempt \
                 LEFT JOIN hapax.components AS component ON component.id = attempt.component \
                 WHERE attempt.consumer = $1 AND attempt.message_id = $14 \
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
            sqlx::query("DELETE FROM hapax.attempts WHERE consumer = $1 AND message_id = $2")
                .bind(&letter.consumer)
                .bind(id)
                .execute(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
        }
        Ok(())
    }

    async fn commit(&mut self) -> Result<(), CommitError> {
        match &self.tx.fault {
            Some(StoreError::Busy(text) | StoreError::Unavailable(text)) => {
                return Err(CommitError::Busy(text.clone()));
            }
            _ if self.tx.aborted => return Err(CommitError::Refused(records::aborted())),
            _ if self.tx.savepoints.open() > 0 => {
                return Err(CommitError::Refused(records::open_savepoint()));
            }
            _ => {}
        }
        self.check_and_commit().await?;
        self.components.extend(self.tx.components.drain(..));
        self.tx = TxState::default();
        Ok(())
    }

    async fn rollback(&mut self) -> Result<(), StoreError> {
        if self.broken {
            return Err(records::broken_connection());
        }
        let rolled_back = self.simple("ROLLBACK").await;
        if rolled_back.is_err() {
            self.broken = true;
        } else {
            self.tx = TxState::default();
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
        self.tx = TxState::default();
        let component_id = self.component(component).await?;
        self.components.extend(self.tx.components.drain(..));
        // Two hosts that record at once collide on the number; the loser takes the next one.
        loop {
            let number: Result<i32, sqlx::Error> = sqlx::query_scalar(
                "INSERT INTO hapax.attempts (consumer, message_id, attempt, class, error, component) \
                 SELECT $1, $2, coalesce(max(attempt), 0) + 1, $3, $4, $5 FROM hapax.attempts \
                 WHERE consumer = $1 AND message_id = $2 \
                 RETURNING attempt",
            )
            .bind(consumer)
            .bind(id.as_str())
            .bind(class.as_str())
            .bind(clean_reason(error))
            .bind(component_id)
            .fetch_one(&mut self.connection)
            .await;
            match number {
                Ok(number) => return Ok(u32::try_from(number).unwrap_or(u32::MAX)),
                Err(error) if errors::sql_error(&error).code == "constraint.unique" => {}
                Err(error) => return Err(self.host_error(&error)),
            }
        }
    }

    async fn enqueue(&mut self, queue: &str, rows: &[NewQueueRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let maybe =
            |get: fn(&NewQueueRow) -> Option<&str>| rows.iter().map(get).collect::<Vec<_>>();
        let subjects: Vec<&str> = rows.iter().map(|row| row.subject.as_str()).collect();
        let headers: Vec<String> = rows
            .iter()
            .map(|row| headers_to_json(&row.headers))
            .collect();
        let payloads: Vec<&[u8]> = rows.iter().map(|row| &row.payload[..]).collect();
        sqlx::query(
            "INSERT INTO hapax.queue (queue, message_id, subject, headers, content_type, payload) \
             SELECT $1, message_id, subject, headers::json, content_type, payload \
             FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[]) WITH ORDINALITY \
                 AS row (message_id, subject, headers, content_type, payload, place) \
             ORDER BY place",
        )
        .bind(queue)
        .bind(maybe(|row| row.message_id.as_deref()))
        .bind(subjects)
        .bind(headers)
        .bind(maybe(|row| row.content_type.as_deref()))
        .bind(payloads)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    async fn peek_queue(
        &mut self,
        queue: &str,
        in_hand: &[i64],
        limit: u32,
    ) -> Result<Vec<QueueRow>, StoreError> {
        // A consumer's own queue has an index in which rows that are not due cost nothing.
        let (which, order) = if queue.starts_with('@') {
            ("origin_source IS NOT NULL", "due_at, number")
        } else {
            ("true", "number")
        };
        let rows = sqlx::query(AssertSqlSafe(format!(
            "SELECT number, message_id, subject, headers::text, content_type, payload, \
                 CASE WHEN isfinite(enqueued_at) THEN (extract(epoch FROM enqueued_at) * 1000000)::bigint END, \
                 origin_source, origin_position, (extract(epoch FROM origin_published_at) * 1000000)::bigint, \
                 origin_queue_id, dead_letter, forced, seen \
             FROM hapax.queue \
             WHERE queue = $1 AND due_at <= now() AND NOT (number = ANY ($2)) AND {which} \
             ORDER BY {order} LIMIT $3"
        )))
        .bind(queue)
        .bind(in_hand)
        .bind(i64::from(limit))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        rows.iter()
            .map(|row| {
                let headers: String = row.try_get(3)?;
                let enqueued_at: Option<i64> = row.try_get(6)?;
                let message_id: Option<String> = row.try_get(1)?;
                Ok(QueueRow {
                    number: row.try_get(0)?,
                    carried: read_carried(row, 7, message_id.as_deref())?,
                    message_id,
                    subject: row.try_get(2)?,
                    headers: headers_from_json(&headers),
                    content_type: row.try_get(4)?,
                    payload: row.try_get::<Vec<u8>, _>(5)?.into(),
                    enqueued_at: enqueued_at.map(instant_from_microseconds),
                    seen: u32::try_from(row.try_get::<i32, _>(13)?).unwrap_or(0),
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(|error| self.host_error(&error))
    }

    async fn queue_backlog(&mut self, queue: &str) -> Result<u64, StoreError> {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM hapax.queue WHERE queue = $1")
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
            "INSERT INTO hapax.counters AS old (consumer, host, claimed, duplicates, retried, rolled_back, dead) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) \
             ON CONFLICT (consumer, host) DO UPDATE SET claimed = old.claimed + excluded.claimed, \
                 duplicates = old.duplicates + excluded.duplicates, retried = old.retried + excluded.retried, \
                 rolled_back = old.rolled_back + excluded.rolled_back, \
                 dead = old.dead + excluded.dead, updated_at = now()",
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
            "SELECT coalesce(sum(claimed), 0)::bigint, coalesce(sum(duplicates), 0)::bigint, \
                 coalesce(sum(retried), 0)::bigint, coalesce(sum(rolled_back), 0)::bigint, coalesce(sum(dead), 0)::bigint \
             FROM hapax.counters WHERE consumer = $1",
        )
        .bind(consumer)
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(records::counters_of(sums))
    }

    async fn dead_letter_count(&mut self, consumer: &str) -> Result<u64, StoreError> {
        let count: i64 =
            sqlx::query_scalar("SELECT count(*) FROM hapax.dead_letters WHERE consumer = $1")
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
            "SELECT {LETTER_COLUMNS} FROM hapax.dead_letters AS letter \
             LEFT JOIN hapax.components AS component ON component.id = letter.component \
             WHERE letter.consumer = $1 ORDER BY letter.id LIMIT $2"
        )))
        .bind(consumer)
        .bind(i64::from(limit))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        rows.iter()
            .map(|row| self.read_letter(row))
            .collect::<Result<_, _>>()
    }
}

impl PostgresSession {
    fn read_letter(&self, row: &sqlx::postgres::PgRow) -> Result<StoredDeadLetter, StoreError> {
        let broken = |error: sqlx::Error| StoreError::Unusable(error.to_string());
        let headers: String = row.try_get(7).map_err(broken)?;
        let class: String = row.try_get(11).map_err(broken)?;
        let attempts: String = row.try_get(14).map_err(broken)?;
        let digest: Option<Vec<u8>> = row.try_get(13).map_err(broken)?;
        let published_at: Option<i64> = row.try_get(10).map_err(broken)?;
        let dead_at: Option<i64> = row.try_get(15).map_err(broken)?;
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
                published_at: published_at.map(instant_from_microseconds),
                queue_id: row.try_get(16).map_err(broken)?,
                class: records::stored_class(&class)?,
                reason: row.try_get(12).map_err(broken)?,
                component: records::stored_digest(digest)?,
                order_key: row.try_get(17).map_err(broken)?,
            },
            attempts: records::stored_attempts(&attempts)?,
            dead_at: dead_at.map(instant_from_microseconds),
        })
    }
}
