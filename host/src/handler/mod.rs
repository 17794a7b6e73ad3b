//! The handler room: loads and checks components, and calls one in a fresh instance for each message, or batch.
//!
//! **Invariant**: a handler reaches nothing but the `Tx` that its wasm store owns for the call.
//! **Invariant**: an instance is used once; after the call its wasm store is dropped, whatever happened.

mod bindings;
mod cache;
mod call;
mod config;
mod engine;
mod inspect;
mod limits;
mod load;
mod log;
mod outbox;
mod seen;
mod self_check;
mod sql;
mod state;
mod stopped;
mod text;
mod value;
mod wasi;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::message::{ComponentDigest, Header, Instant};
use crate::store::{SqlError, Tx};

pub use bindings::World;
pub use cache::Cache;
pub use call::{CalledBatch, HANDLES_MAX, Handler, Member, RETRY_DELAY_MAX};
pub use engine::{MEMORY_MAX_BYTES, Runtime, RuntimeError, RuntimeOptions, TICK};
pub use inspect::{Inspected, InspectedImport, Producer, SectionSize, inspect};
pub use limits::Limits;
pub use load::{COMPONENT_BYTES_MAX, Component, ComponentInfo, read_component};
pub use log::{LOG_LINES_MAX, LogLine, LogLines};
pub use outbox::{OUTBOX_BYTES_MAX, OUTBOX_HEADERS_MAX, OUTBOX_TEXT_BYTES_MAX};
pub use seen::{SEEN_ROWS_MAX, Seen, SeenTable};
pub use sql::{PARAMS_MAX, STATEMENT_BYTES_MAX};
pub(crate) use watch::{Break, How, Place, Watch, WatchedRun};

/// The handler's `config` table: a string as written, any other value as JSON text.
pub type ConfigTable = BTreeMap<String, String>;

/// What a handler is, but for its component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerOptions {
    /// As the configuration names it.
    pub name: String,
    /// The claim's key, from which ids of published messages are derived.
    pub consumer: String,
    /// What each call may use.
    pub limits: Limits,
    /// What the handler reads with `config`.
    pub config: ConfigTable,
    /// Where what it publishes may go.
    pub targets: Targets,
}

/// Where a handler's messages may go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// The configured ones. With none at all, rows stay in the outbox.
    pub names: BTreeSet<String>,
    /// The handler's own, for messages that name none.
    pub default: Option<String>,
}

/// A message that a handler published, held by the host until the commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The id that the handler was told.
    pub id: String,
    /// From 0.
    pub ordinal: u32,
    /// The configured target; the handler's default if absent.
    pub target: Option<String>,
    /// Where it goes.
    pub subject: String,
    /// Messages of one key leave in order.
    pub key: Option<String>,
    /// In their order.
    pub headers: Vec<Header>,
    /// The MIME type.
    pub content_type: Option<String>,
    /// Any bytes.
    pub payload: bytes::Bytes,
    /// The earliest moment.
    pub not_before: Option<Instant>,
}

/// How one call ended, as far as the handler and its sandbox can tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The handler returned ok.
    Ok,
    /// The handler asked to be run again.
    Retry {
        /// Its words.
        reason: String,
        /// The shortest wait that it asked for.
        delay: Option<Duration>,
    },
    /// The handler refused the message for good.
    Reject {
        /// Its words.
        reason: String,
    },
    /// The handler trapped.
    Trap {
        /// The trap's name, the guest's own panic text and the Wasm backtrace, as far as there are any.
        text: String,
    },
    /// The handler went over a limit.
    Limit {
        /// `memory`, `table`, `cpu`, `time`, `call`: as in the configuration; or `handles`.
        limit: &'static str,
        /// What was allowed, in words.
        text: String,
    },
    /// The host failed inside the call; charged to nobody.
    Host {
        /// What failed.
        text: String,
    },
}

/// What one call leaves behind.
#[derive(Debug)]
pub struct Called {
    /// The transaction, back from the wasm store. After a cut-off at the wall-clock limit it is gone: the connection was
    /// in the middle of a statement, and was closed.
    pub tx: Option<Tx>,
    /// How it ended.
    pub verdict: Verdict,
    /// What it published, in order. Empty unless the verdict is ok.
    pub published: Vec<Outgoing>,
    /// What it logged. Emit it after the commit or the rollback.
    pub log: LogLines,
    /// The time that its own code ran.
    pub cpu: Duration,
    /// The linear memory that it had at its end, in bytes.
    pub memory_bytes: usize,
    /// How many statements it executed, those of `execute-many` once for each row. Queries do not count.
    pub executed: usize,
    /// Statements were answered ahead (`Tx::is_unsettled`) and not compared when it ended: its verdict may follow from a wrong answer.
    pub is_unsettled: bool,
    /// The tables around it, if it succeeded and somebody looks.
    pub seen: Option<Arc<Seen>>,
}

/// Why a component cannot serve as a handler: what it wants, what the host has, what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct LoadError {
    /// What is wrong, in one sentence.
    pub problem: String,
    /// What to do.
    pub hint: String,
}

/// Which component a handler runs, for logs and claims.
pub type Digest = ComponentDigest;

/// An error of a host call, before it is lowered to the contract's record.
pub type HostCallError = SqlError;
