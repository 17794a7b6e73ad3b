//! Builds every room, hands each what it needs, starts and stops them in order; one file a command.
//!
//! **Invariant**: only this room sees all others.

mod check;
mod dead_letters;
mod demo;
mod handler_migrations;
mod outbox;
mod prepare;
mod replayable;
mod run;
mod send;
mod status;

use std::sync::Arc;
use std::time::Duration;

pub use check::{
    CheckedDatabase, CheckedHandler, CheckedLimits, CheckedRetry, check, check_database,
};
pub use dead_letters::{
    DeadLetters, Imported, LetterGroup, LetterSelection, ListedLetter, Record, Refusal, Replayed,
    ShownLetter, not_there,
};
pub use demo::{DemoOptions, DemoProgress, DemoReport, Kill, demo};
pub use outbox::{Outbox, OutboxSelection, not_there as not_in_the_outbox};
pub use run::{RunOptions, run};
pub use send::{Envelope, Line, NewMessage, Next, Sent, send};
pub use status::{HandlerStatus, OutboxStatus, status};

use crate::config::{Config, HandlerConfig, JetStreamConfig};
use crate::exit::CommandError;
use crate::pipeline::in_hand_max;
pub use crate::pipeline::{BatchObserver, SettledBatch};
use crate::source::jetstream::{JetStreamOptions, Start};
use crate::store::{Connection, SessionOptions, Store, StoreError};

/// How long the host's own statements may wait for a lock, a migration of another host included.
const OWN_LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// What to do about a configuration without handlers.
pub const NO_HANDLERS_HINT: &str =
    "write a table `[handlers.NAME]` with `component = \"FILE.wasm\"` and `source = \"SOURCE\"`";

fn open_store(config: &Config) -> Result<Arc<Store>, CommandError> {
    match Store::open(&config.store.url) {
        Ok(store) => Ok(Arc::new(store)),
        Err(error) => Err(CommandError::store("`store.url`", &error)),
    }
}

fn own_session(purpose: &str) -> SessionOptions {
    SessionOptions {
        purpose: purpose.to_owned(),
        statement_timeout: None,
        lock_timeout: OWN_LOCK_TIMEOUT,
        idle_in_transaction: OWN_LOCK_TIMEOUT,
    }
}

/// Connects once and brings hapax's own tables up to date.
async fn connect_and_migrate(store: &Store, purpose: &str) -> Result<Connection, StoreError> {
    let mut connection = store.connect(&own_session(purpose)).await?;
    connection.migrate().await?;
    Ok(connection)
}

fn jetstream_options(stream: &JetStreamConfig, handler: &HandlerConfig) -> JetStreamOptions {
    JetStreamOptions {
        url: stream.url.clone(),
        access: stream.access.clone(),
        stream: stream.stream.clone(),
        subjects: stream.subjects.clone(),
        create: stream.create,
        ack_wait: stream.ack_wait,
        consumer: handler.consumer.clone(),
        start: handler.start.unwrap_or(Start::All),
        in_hand_max: in_hand_max(handler),
        in_order: handler.order.is_some(),
    }
}
