//! The session on PostgreSQL.
//!
//! A handler's statement is described by the driver's `prepare` (parameter types, columns), then prepared again under a
//! name of ours through the extended protocol, which refuses a second command, and run as `EXECUTE name(E'..')` through
//! the simple one, whose results come as text (`params`).
//!
//! **Invariant**: after any error that came from the server inside a transaction, no more of it is sent but ROLLBACK, to
//! a savepoint that was begun before it or of the whole.

mod ahead;
mod catalogue;
mod checkpoint;
mod claims;
mod commit;
mod connect;
mod cursors;
mod decode;
mod deployments;
mod errors;
mod letters;
mod many;
mod order;
mod outbox;
mod params;
mod prune;
mod queue;
mod reach;
mod rights;
mod rows;
mod savepoints;
mod schema;
mod scratch;
mod started;
mod statements;
#[cfg(test)]
mod tests;
mod url;

use std::collections::HashMap;

use futures_util::TryStreamExt as _;
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Either, PgConnection, Row as _};

pub(super) use ahead::Told;
use ahead::{Ahead, Counts};
pub(super) use connect::{display, look};
use cursors::PostgresCursor;
use errors::Class;
pub(super) use params::{is_decimal, is_uuid};
use rights::Learned;
use rows::RowSink;
pub(super) use scratch::PostgresScratch;
use statements::{Prepared, Statements};
pub(super) use url::parse;

use super::ahead::AheadSession as _;
use super::text::{clean_reason, headers_to_json, instant_to_text};
use super::{
    Baton, Claim, ClaimAs, ClaimRequest, CommitError, Counters, HandlerMigration, OutboxRow,
    ResultSet, Rights, Savepoint, Session, SessionOptions, SqlError, StoreError, Value,
    cursors::Cursors, records, savepoints::Savepoints,
};
use crate::message::{ComponentDigest, FailureClass, MessageId, ShortHash};
use crate::metrics::OpenSession;

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
    rights: Rights,
    /// What the server says of itself, once a handler's statement was run.
    learned: Option<Learned>,
    /// Numbers of components that are committed.
    components: HashMap<ComponentDigest, i32>,
    tx: TxState,
    /// How many rows statements of the handler affect.
    counts: Counts,
    /// The lock of a suspect's run that this session holds.
    run_lock: Option<i32>,
    /// What is prepared may be out of date: a table was changed.
    is_stale: bool,
    /// True if the connection must be closed.
    broken: bool,
    _counted: OpenSession,
}

/// What is known of the open transaction.
#[derive(Debug, Default)]
struct TxState {
    /// The transaction's number, once the claim has given it one.
    xid: Option<String>,
    /// The server's time at the last claim, in microseconds.
    claimed_at: Option<i64>,
    /// The server raised an error: nothing more may be sent.
    aborted: bool,
    fault: Option<StoreError>,
    savepoints: Savepoints,
    cursors: Cursors<PostgresCursor>,
    /// The handler's role is set.
    in_role: bool,
    /// Every statement that is prepared was prepared in it.
    is_fresh: bool,
    /// A statement of the handler's has made, changed or dropped something.
    changed_tables: bool,
    /// A statement of the handler's was run, so the state is checked before the commit.
    ran: bool,
    /// What handlers were told before the server had answered.
    ahead: Ahead,
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
            rights: Rights::default(),
            learned: None,
            components: HashMap::new(),
            tx: TxState::default(),
            counts: Counts::default(),
            run_lock: None,
            is_stale: false,
            broken: false,
            _counted: OpenSession::begin(&options.purpose),
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
            Class::Stale => self.note_stale(errors::describe(error)),
            Class::Busy => {
                self.tx.fault = Some(StoreError::Busy(errors::describe(error)));
            }
            Class::Unavailable => {
                self.broken = true;
                self.tx.fault = Some(StoreError::Unavailable(errors::describe(error)));
            }
            // Somebody ended the session's prepared statements: those that are kept here are gone.
            Class::Refused if errors::lacks_statement(error) => self.broken = true,
            Class::Refused => {}
        }
    }

    /// Takes down that a statement was prepared before its table was changed.
    fn note_stale(&mut self, text: String) {
        self.is_stale = true;
        // All were prepared in this transaction, so nobody else can have changed the table: the next run would do the same.
        if !self.tx.is_fresh {
            self.tx.fault = Some(StoreError::Busy(text));
        }
    }

    fn refuse_if_aborted(&self) -> Result<(), SqlError> {
        if self.tx.aborted {
            return Err(self.tx.savepoints.aborted());
        }
        Ok(())
    }

    /// Forgets the last transaction, and what a changed table has made of the prepared statements.
    async fn begin_afresh(&mut self) -> Result<(), StoreError> {
        self.tx = TxState::default();
        if !self.is_stale {
            return Ok(());
        }
        if let Err(error) = self.forget_statements().await {
            return Err(self.host_error(&error));
        }
        self.is_stale = false;
        self.tx.is_fresh = true;
        Ok(())
    }

    /// Ends the handlers' statements that are prepared, because a table was changed.
    async fn forget_statements(&mut self) -> Result<(), sqlx::Error> {
        // The driver's own copies hold the old columns too.
        self.connection.clear_cached_statements().await?;
        let text = self.statements.clear();
        if !text.is_empty() {
            sqlx::raw_sql(AssertSqlSafe(text))
                .execute(&mut self.connection)
                .await?;
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

    /// Returns a handler's statement, prepared; none if it is one that can't be: it makes or drops something.
    async fn prepared(&mut self, statement: &str) -> Result<Option<Prepared>, SqlError> {
        self.enter_role().await?;
        if let Some(prepared) = self.statements.get(statement) {
            return Ok(Some(prepared));
        }
        if self.check(statement).await?.is_ddl {
            return Ok(None);
        }
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
            Ok(prepared) => Ok(Some(prepared)),
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
        let Some(prepared) = self.prepared(statement).await? else {
            return self.run_unprepared(statement, params).await;
        };
        if params.len() != prepared.params.len() {
            return Err(records::wrong_count(prepared.params.len(), params.len()));
        }
        if let Some(sink) = &mut sink {
            sink.start(&prepared);
        }
        let (text, spans) = prepared.call(params)?;

        let mut affected = 0;
        let mut is_stale = false;
        let mut is_first = true;
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
                        // The driver's own copy of a description can be older than the statement.
                        is_stale |= std::mem::take(&mut is_first) && !prepared.describes(&row);
                        if let Some(sink) = &mut sink
                            && !is_stale
                        {
                            sink.take(&row);
                        }
                    }
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            }
        };
        if is_stale {
            return Err(self.stale_description());
        }
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
}

impl Session for PostgresSession {
    async fn begin(&mut self) -> Result<(), StoreError> {
        if self.broken {
            return Err(records::broken_connection());
        }
        self.begin_afresh().await?;
        self.simple(BEGIN).await
    }

    async fn begin_with_baton(&mut self, consumer: &str, baton: Baton) -> Result<(), StoreError> {
        if self.broken {
            return Err(records::broken_connection());
        }
        self.begin_afresh().await?;
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
        if let Some(count) = self.answer_ahead(statement, params)? {
            if self.waits_for_much() {
                self.settle_first().await?;
            }
            return Ok(count);
        }
        self.settle_first().await?;
        let count = self.run(statement, params, None).await?;
        self.count(statement, count);
        Ok(count)
    }

    async fn query(
        &mut self,
        statement: &str,
        params: &[Value],
        rows_max: u64,
    ) -> Result<ResultSet, SqlError> {
        let mut sink = RowSink::new(rows_max);
        if self
            .query_behind(statement, params, &mut sink)
            .await?
            .is_none()
        {
            self.settle_first().await?;
            self.run(statement, params, Some(&mut sink)).await?;
        }
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
        self.settle_first().await?;
        self.run_many(statement, rows).await
    }

    async fn begin_savepoint(&mut self) -> Result<Savepoint, SqlError> {
        self.settle_first().await?;
        self.open_savepoint().await
    }

    async fn release_savepoint(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        self.settle_first().await?;
        self.keep_savepoint(savepoint).await
    }

    async fn roll_back_savepoint(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        self.settle_first().await?;
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
                 payload, not_before, due_at) \
             SELECT id, consumer, message_id, ordinal, target, subject, key, headers::json, content_type, payload, \
                 not_before::timestamptz, coalesce(not_before::timestamptz, now()) \
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

    async fn commit(&mut self) -> Result<(), CommitError> {
        match &self.tx.fault {
            Some(StoreError::Busy(text) | StoreError::Unavailable(text)) => {
                return Err(CommitError::Busy(text.clone()));
            }
            // Whoever commits settles first; without that, what waits was not run.
            _ if self.is_unsettled() => {
                return Err(CommitError::Busy("statements wait to be sent".into()));
            }
            _ if self.tx.aborted => return Err(CommitError::Refused(records::aborted())),
            _ if self.tx.savepoints.open() > 0 => {
                return Err(CommitError::Refused(records::open_savepoint()));
            }
            _ => {}
        }
        self.check_and_commit().await?;
        self.components.extend(self.tx.components.drain(..));
        self.learn_counts();
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
            // What was prepared behind the change is out of date.
            self.is_stale |= self.tx.changed_tables;
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
}
