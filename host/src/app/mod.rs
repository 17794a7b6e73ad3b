//! Builds every room, hands each what it needs, starts and stops them in order; one file a command.
//!
//! **Invariant**: only this room sees all others.

mod admin;
mod build;
mod check;
mod dead_letters;
mod demo;
mod deployments;
mod dev;
mod gauges;
mod handler_migrations;
mod inspect;
mod new;
mod outbox;
mod prepare;
mod prove;
mod prune;
mod reconcile;
mod replayable;
mod rewind;
mod run;
mod send;
mod status;
mod supervisor;
mod watch;
mod window;

use std::sync::Arc;
use std::time::Duration;

pub use build::{BuildOptions, Built, Language, build};
pub use check::{
    CheckedDatabase, CheckedHandler, CheckedLimits, CheckedRetry, check, check_database,
};
pub use dead_letters::{
    DeadLetters, Imported, LetterGroup, LetterSelection, ListedLetter, Record, Refusal, Replayed,
    ShownLetter, moment_text, not_there, said as letters_said, told as letters_told,
};
pub use demo::{DemoOptions, DemoProgress, DemoReport, Kill, demo};
pub use dev::{DevAsk, DevEvent, DevOptions, MessageShown, PublishedShown, RowChange, dev};
pub use inspect::{InspectedFile, InspectedRefusal, inspect};
pub use new::{NewProject, new};
pub use outbox::{
    Outbox, OutboxSelection, Stranded, not_there as not_in_the_outbox, state as outbox_state,
    told as outbox_told,
};
pub use prove::{
    Difference, DifferingSql, Finding, LeftOut, ProveOptions, ProveProgress, ProveReport,
    ProvedStep, prove,
};
pub use prune::{PruneOptions, PruneProgress, Pruned, prune};
pub use reconcile::Unreconciled;
pub use rewind::{Rewind, RewindTold, place as rewind_place};
pub use run::{RunOptions, run};
pub use send::{Envelope, Line, NewMessage, Next, Sent, send};
pub use status::{ClaimsStatus, HandlerStatus, OutboxStatus, Status, status};
pub use supervisor::{
    Change, ChangeError, ComponentBytes, HandlerState, Phase, Supervisor, Swapped,
};
pub use watch::{Reread, Watching};

use crate::config::{Config, HandlerConfig, JetStreamConfig};
use crate::exit::{Cause, CommandError, Exit};
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

/// Returns the handler with this name.
fn handler_named<'a>(config: &'a Config, name: &str) -> Result<&'a HandlerConfig, CommandError> {
    config.handlers.get(name).ok_or_else(|| {
        let names: Vec<String> = config
            .handlers
            .keys()
            .map(|name| format!("`{name}`"))
            .collect();
        let hint = if names.is_empty() {
            NO_HANDLERS_HINT.to_owned()
        } else {
            format!("the handlers are {}", names.join(", "))
        };
        CommandError::new(
            Exit::CommandLine,
            format!("there is no handler `{name}`"),
            Some(&hint),
        )
        .because(Cause::NotThere)
    })
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
