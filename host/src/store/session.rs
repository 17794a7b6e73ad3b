//! One bare connection to the store's database, whichever of the two it is.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use super::{ResultSet, Savepoint, SqlError, Value};
use crate::message::{
    Carried, ComponentDigest, FailureClass, Header, Instant, MessageId, Position, ShortHash,
};

/// What one connection is for, and how long it may wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Shown in `pg_stat_activity` as `hapax <purpose>`.
    pub purpose: String,
    /// The longest that one statement may run; `None` for the host's own long work, such as migrations.
    pub statement_timeout: Option<Duration>,
    /// The longest wait for a row's or a claim's lock; for SQLite the busy timeout.
    pub lock_timeout: Duration,
    /// How long the session may sit in a transaction between two statements before the database ends it.
    pub idle_in_transaction: Duration,
}

/// Why the store could not do what the host asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// A lock, a deadlock, a serialization failure or a busy database: roll back and run again, charged to nobody.
    #[error("the database is busy: {0}")]
    Busy(String),
    /// The connection is lost or was refused. It is gone; what was in its transaction is rolled back, unless it was
    /// in its commit.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The schema is newer than this binary knows.
    #[error(
        "the schema of the store has version {found}, newer than version {known} of this binary"
    )]
    SchemaNewer {
        /// What the database holds.
        found: i64,
        /// What this binary was built with.
        known: i64,
    },
    /// The database refused a statement of the host's own.
    #[error("the database refused: {0}")]
    Refused(SqlError),
    /// The store cannot be used as it is configured; the text says what to do, on a line that begins with `hint: `.
    #[error("{0}")]
    Unusable(String),
}

/// Why a transaction did not commit.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// Known: nothing was committed, and running the same messages again may succeed.
    #[error("{0}")]
    Busy(String),
    /// Known: nothing was committed, because of what the handler wrote or swallowed (`aborted`, a deferred constraint).
    #[error("{0}")]
    Refused(SqlError),
    /// The connection was lost before the reply: it may be committed or not. Run the messages again; the claim tells.
    #[error("the reply to COMMIT was lost: {0}")]
    Unknown(String),
}

impl From<CommitError> for StoreError {
    /// What a transaction that is not known to be committed means for whoever runs it again.
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Busy(text) => Self::Busy(text),
            CommitError::Refused(error) => Self::Refused(error),
            CommitError::Unknown(text) => Self::Unavailable(text),
        }
    }
}

/// A request to claim one id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The id.
    pub id: MessageId,
    /// Of the message's payload.
    pub payload_hash: ShortHash,
}

/// How a transaction holds its baton, which keeps batches of one handler from overlapping on any host: they would lock rows
/// in different orders and deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baton {
    /// With others of its kind: for single messages that run on several lanes at once.
    Shared,
    /// Alone, for a single message.
    Alone,
    /// Alone, for a batch: its waits for locks that other handlers or programs hold are short, since it can go on in halves.
    AloneForBatch,
}

/// As what an id is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimAs {
    /// The handler is about to run.
    Done,
    /// The message is being given up on.
    Dead,
}

/// What the claim of one id found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The id is this transaction's now. `attempt` is the number of failures charged so far, plus 1.
    Fresh {
        /// From 1.
        attempt: u32,
    },
    /// A committed transaction holds the id, with the same payload: the handler must not run.
    Duplicate {
        /// How it ended.
        outcome: ClaimAs,
    },
    /// A committed transaction holds the id, with another payload.
    Conflict {
        /// The hash that was stored.
        stored: ShortHash,
    },
}

/// One failed run that was charged to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    /// By the database's clock, as RFC 3339 text.
    pub at: String,
    /// The reason class.
    pub class: FailureClass,
    /// The handler's or the host's words.
    pub error: String,
    /// Which code ran.
    pub component: Option<ComponentDigest>,
}

/// A message given up on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The claim's key.
    pub consumer: String,
    /// The handler's name.
    pub handler: String,
    /// Absent if no usable id was found. With `class` conflict it is kept but not claimed.
    pub message_id: Option<MessageId>,
    /// The source's name.
    pub source: String,
    /// Unique within the source: what keeps a letter without a claimable id from being written twice.
    pub position: Position,
    /// Of the message.
    pub subject: String,
    /// Of the message, byte for byte.
    pub headers: Vec<Header>,
    /// Of the message.
    pub content_type: Option<String>,
    /// Of the message, byte for byte.
    pub payload: Bytes,
    /// When the source accepted it.
    pub published_at: Option<Instant>,
    /// The id column that it had in the embedded queue.
    pub queue_id: Option<String>,
    /// Why.
    pub class: FailureClass,
    /// Why, in words.
    pub reason: String,
    /// The failed run that used up the attempts, or rejected, if it is not in `attempts` yet.
    pub component: Option<ComponentDigest>,
    /// The value of `order_by`, if the handler has it and the message had one.
    pub order_key: Option<String>,
}

/// A dead letter as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDeadLetter {
    /// In the order of writing.
    pub number: i64,
    /// The message, and why it was given up on.
    pub letter: DeadLetter,
    /// The failed runs that were charged to it before, in order.
    pub attempts: Vec<Attempt>,
    /// By the database's clock.
    pub dead_at: Option<Instant>,
}

/// One message to publish after the commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Derived from consumer, message id and `ordinal`: the same in every run.
    pub id: String,
    /// The claim's key.
    pub consumer: String,
    /// The message whose handler published it.
    pub message_id: MessageId,
    /// From 0, in the order of publishing.
    pub ordinal: u32,
    /// The configured target.
    pub target: Option<String>,
    /// Where it goes.
    pub subject: String,
    /// Messages of one key leave in order.
    pub key: Option<String>,
    /// As the handler gave them.
    pub headers: Vec<Header>,
    /// As the handler gave it.
    pub content_type: Option<String>,
    /// Any bytes.
    pub payload: Bytes,
    /// The earliest moment.
    pub not_before: Option<Instant>,
}

/// A row of the embedded queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// The row's number: rows are delivered in this order.
    pub number: i64,
    /// The sender's id for the message.
    pub message_id: Option<String>,
    /// The topic.
    pub subject: String,
    /// Byte for byte.
    pub headers: Vec<Header>,
    /// The MIME type.
    pub content_type: Option<String>,
    /// Any bytes.
    pub payload: Bytes,
    /// By the database's clock.
    pub enqueued_at: Option<Instant>,
    /// How many starts of a host found the row at the head of its queue.
    pub seen: u32,
    /// Set in a consumer's own queue; `message_id` is then the id of the message, as far as it is known.
    pub carried: Option<Carried>,
}

/// A message to put into the embedded queue.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NewQueueRow {
    /// The sender's id for the message.
    pub message_id: Option<String>,
    /// The topic.
    pub subject: String,
    /// Byte for byte.
    pub headers: Vec<Header>,
    /// The MIME type.
    pub content_type: Option<String>,
    /// Any bytes.
    pub payload: Bytes,
}

/// One numbered SQL file of a handler's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerMigration {
    /// The number at the start of the file's name.
    pub version: i64,
    /// The file's name, for messages.
    pub file: String,
    /// The file's text; may hold several statements.
    pub sql: String,
}

/// What a handler has done, added up over hosts. Inexact after a kill: flushed once a second and at drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Messages that took effect.
    pub claimed: u64,
    /// Deliveries acknowledged without running the handler.
    pub duplicates: u64,
    /// Failed runs that were charged and will be run again.
    pub retried: u64,
    /// Transactions of which nothing stayed, and whose messages ran again, alone or in other company.
    pub rolled_back: u64,
    /// Messages that became dead letters.
    pub dead: u64,
}

/// One bare connection: what both databases offer to the rooms above. `Connection` and `Tx` are the public door.
///
/// Between `begin` and `commit` or `rollback` the transaction is open; `record_attempt` and the other calls under
/// "outside a transaction" must not be made then. No call may be dropped before it has ended: close the connection
/// instead.
pub(crate) trait Session: Sized + Send {
    // Inside a transaction, or around it.

    /// Begins. SQLite: `BEGIN IMMEDIATE`.
    fn begin(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Begins with the baton of `consumer` as the transaction's first lock. SQLite has one writer and needs none.
    fn begin_with_baton(
        &mut self,
        consumer: &str,
        baton: Baton,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Claims every id, in one statement. Returns one entry for each request, in their order.
    ///
    /// On PostgreSQL this waits for a concurrent claim of the same pair, at most `lock_timeout`; then `Busy`.
    /// An id that occurs twice in `requests` is the caller's mistake.
    fn claim(
        &mut self,
        consumer: &str,
        requests: &[ClaimRequest],
        claim_as: ClaimAs,
        component: Option<ComponentDigest>,
    ) -> impl Future<Output = Result<Vec<Claim>, StoreError>> + Send;

    /// Returns for each id the failures charged so far, and claims nothing. The attempts of these ids end with the
    /// transaction, as with a claim.
    fn attempts_without_claim(
        &mut self,
        consumer: &str,
        ids: &[MessageId],
    ) -> impl Future<Output = Result<Vec<u32>, StoreError>> + Send;

    /// Runs one guarded statement of the handler. Returns the rows affected.
    ///
    /// After any error that came from the database the transaction counts as aborted, on both databases: every later
    /// call answers `aborted`, and the commit is refused, until a savepoint that was begun before is rolled back to.
    fn execute(
        &mut self,
        statement: &str,
        params: &[Value],
    ) -> impl Future<Output = Result<u64, SqlError>> + Send;

    /// Runs one guarded statement of the handler and returns its rows, at most `rows_max` (else `limit.rows`).
    fn query(
        &mut self,
        statement: &str,
        params: &[Value],
        rows_max: u64,
    ) -> impl Future<Output = Result<ResultSet, SqlError>> + Send;

    /// Runs one guarded statement of the handler once for each row of parameters, in order. Returns the rows affected by
    /// each. All parameters are checked and encoded before the first row is run; an error names its row.
    fn execute_many(
        &mut self,
        statement: &str,
        rows: &[Vec<Value>],
    ) -> impl Future<Output = Result<Vec<u64>, SqlError>> + Send;

    /// Begins a savepoint. `aborted` after an error.
    fn begin_savepoint(&mut self) -> impl Future<Output = Result<Savepoint, SqlError>> + Send;

    /// Keeps what was done since the savepoint; it and later ones end. `aborted` after an error: it stays open.
    fn release_savepoint(
        &mut self,
        savepoint: Savepoint,
    ) -> impl Future<Output = Result<(), SqlError>> + Send;

    /// Undoes what was done since the savepoint, an error among it; it and later ones end. `aborted` if no savepoint can
    /// undo what has happened: a fault, or the end of the whole transaction.
    fn roll_back_savepoint(
        &mut self,
        savepoint: Savepoint,
    ) -> impl Future<Output = Result<(), SqlError>> + Send;

    /// Counts the open savepoints. With any, the commit is refused.
    fn open_savepoints(&self) -> usize;

    /// What the host knows of the transaction that the handler's words can't change: a deadlock, a lost connection.
    /// While it is set, the run is charged to nobody.
    fn fault(&self) -> Option<StoreError>;

    /// True once nothing of the transaction can be kept, whatever the handler says.
    fn is_aborted(&self) -> bool;

    /// Writes outbox rows, in one statement.
    fn write_outbox(
        &mut self,
        rows: &[OutboxRow],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Checks that the transaction is alive and the one begun, and commits, in one message.
    fn commit(&mut self) -> impl Future<Output = Result<(), CommitError>> + Send;

    /// Rolls back. After an error the connection must be closed.
    fn rollback(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    // Outside a transaction: each is one of its own.

    /// Brings hapax's own tables to this binary's version, under a lock; `SchemaNewer` if they are beyond it.
    fn migrate(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Applies the handler's migrations that are not recorded yet, in order, under a lock. Returns how many.
    ///
    /// `Unusable` if a recorded file has changed or is missing; `Refused` names the file that failed.
    fn apply_handler_migrations(
        &mut self,
        handler: &str,
        migrations: &[HandlerMigration],
    ) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Records a charged failure. Returns its number, from 1. The time is the database's.
    fn record_attempt(
        &mut self,
        consumer: &str,
        id: &MessageId,
        class: FailureClass,
        error: &str,
        component: Option<ComponentDigest>,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// Adds to the counters of this host and consumer.
    fn add_counters(
        &mut self,
        consumer: &str,
        host: &str,
        counters: &Counters,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the counters of a consumer, added up over hosts.
    fn counters(
        &mut self,
        consumer: &str,
    ) -> impl Future<Output = Result<Counters, StoreError>> + Send;
}
