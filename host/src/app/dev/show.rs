//! What an author is shown: plain data, for the terminal or as JSON.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value as Json};

use crate::app::build::Language;
use crate::app::prove::{Comparison, Difference, Snapshot, bytes_as_json};
use crate::handler::{Outgoing, Seen, SeenTable};
use crate::pipeline::{Became, MessageTold};

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum DevEvent {
    /// The project is followed from now on.
    Began {
        /// As it was given.
        folder: String,
        /// Of the project.
        language: Language,
        /// The file of the database.
        database: String,
    },
    /// A build begins.
    Building {
        /// The files because of which; none at the start.
        changed: Vec<String>,
    },
    /// What a build does next.
    Step {
        /// In words.
        text: String,
    },
    /// A build has ended well.
    Built {
        /// The component's size.
        bytes: usize,
        /// SHA-256 of the component.
        digest: String,
        /// The build, with the check that this host runs it.
        seconds: f64,
        /// What the tools warned of; empty if of nothing.
        warnings: String,
        /// False if the component is the same as before.
        is_new: bool,
    },
    /// A build has failed.
    BuildFailed {
        /// What the tools say.
        error: String,
        /// True if what was built before goes on serving.
        serves: bool,
    },
    /// Files change in every build: that is the build's own doing, and is not followed any more.
    Unfollowed {
        /// As the author sees them.
        files: Vec<String>,
    },
    /// The handlers are started.
    Serving {
        /// Their names.
        handlers: Vec<String>,
        /// True if the database is empty.
        is_fresh: bool,
    },
    /// The messages of the file were sent.
    Sent {
        /// Where to.
        source: String,
        /// How many.
        messages: u64,
    },
    /// A message was settled, or failed.
    Message(Box<MessageShown>),
    /// Something could not be done; the next change may cure it.
    Failed {
        /// With its remedy.
        error: String,
    },
}

/// What became of one delivery of a message.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MessageShown {
    /// The handler's name.
    pub handler: String,
    /// Absent if the message has none.
    pub id: Option<String>,
    /// `committed`, `duplicate`, `retry` or `dead`.
    pub became: &'static str,
    /// The number of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Why it failed: the class, and in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<(String, String)>,
    /// Until it runs again, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// The time that the handler's own code ran, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<u64>,
    /// How many messages were in the call, if it was more than this one: the rows are those of all of them, at the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_messages: Option<usize>,
    /// The rows that it has changed.
    pub rows: Vec<RowChange>,
    /// Tables with too many rows to be looked at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_looked_at: Vec<String>,
    /// What it has published.
    pub published: Vec<PublishedShown>,
}

/// A row that was inserted, updated or deleted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowChange {
    /// The table's name.
    pub table: String,
    /// The columns of the primary key; none if it has none.
    pub key: Vec<String>,
    /// The columns that are others now; none if the row is new or gone.
    pub columns: Vec<String>,
    /// Absent if it is new.
    pub before: Option<Map<String, Json>>,
    /// Absent if it is gone.
    pub after: Option<Map<String, Json>>,
}

/// A message that was published.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedShown {
    /// Where to.
    pub subject: String,
    /// The target; the handler's own if absent.
    pub target: Option<String>,
    /// Messages of one key leave in order.
    pub key: Option<String>,
    /// As text, or `{"base64": ..}`.
    pub payload: Json,
}

impl From<Outgoing> for PublishedShown {
    fn from(outgoing: Outgoing) -> Self {
        Self {
            subject: outgoing.subject,
            target: outgoing.target,
            key: outgoing.key,
            payload: bytes_as_json(&outgoing.payload),
        }
    }
}

/// Makes what is shown of what was told.
pub(super) fn shown(told: MessageTold) -> MessageShown {
    let shown = MessageShown {
        handler: told.handler,
        id: told.message_id.map(|id| id.to_string()),
        ..MessageShown::default()
    };
    match told.became {
        Became::Committed(effects) => {
            let seen = effects.seen.as_deref();
            MessageShown {
                became: "committed",
                attempt: Some(effects.attempt),
                cpu_us: u64::try_from(effects.cpu.as_micros()).ok(),
                call_messages: Some(effects.call_messages).filter(|messages| *messages > 1),
                rows: seen.map(changes).unwrap_or_default(),
                not_looked_at: seen.map(not_looked_at).unwrap_or_default(),
                published: effects.published.into_iter().map(Into::into).collect(),
                ..shown
            }
        }
        Became::Duplicate { is_dead } => MessageShown {
            became: "duplicate",
            why: is_dead.then(|| ("dead".to_owned(), "it is in the dead letters".to_owned())),
            ..shown
        },
        Became::Retried {
            attempt,
            class,
            reason,
            wait,
            ..
        } => MessageShown {
            became: "retry",
            attempt: Some(attempt),
            why: Some((class.to_string(), reason)),
            wait_ms: Some(milliseconds(wait)),
            ..shown
        },
        Became::Dead { class, reason } => MessageShown {
            became: "dead",
            why: Some((class.to_string(), reason)),
            ..shown
        },
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn changes(seen: &Seen) -> Vec<RowChange> {
    let tables: Vec<_> = seen.after.iter().map(|seen| seen.table.clone()).collect();
    let comparison = Comparison::new(&tables, []);
    // A table that was looked at only once would differ in all of its rows.
    let is_whole = |table: &&SeenTable| {
        let in_both = |side: &[SeenTable]| {
            side.iter()
                .any(|other| other.table.name == table.table.name && other.rows.is_some())
        };
        in_both(&seen.before) && in_both(&seen.after)
    };
    let snapshot = |side: &[SeenTable]| Snapshot::of_seen(side.iter().filter(is_whole));
    comparison
        .differences(&snapshot(&seen.before), &snapshot(&seen.after))
        .into_iter()
        .map(|difference| {
            let Difference {
                table,
                columns,
                reference,
                found,
            } = difference;
            RowChange {
                key: comparison.key_of(&table).to_vec(),
                columns,
                before: reference,
                after: found,
                table,
            }
        })
        .collect()
}

fn not_looked_at(seen: &Seen) -> Vec<String> {
    seen.after
        .iter()
        .filter(|table| table.rows.is_none())
        .map(|table| table.table.name.clone())
        .collect()
}
