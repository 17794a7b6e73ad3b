//! `hapax send`: messages into a source.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{connect_and_migrate, open_store};
use crate::config::{Config, SourceKind};
use crate::exit::{Cause, CommandError, Exit};
use crate::message::{Header, Incoming, Position};
use crate::source::SourceError;
use crate::source::jetstream::{self, JetStreamPublisher, PublisherOptions};
use crate::store::NewQueueRow;

/// Rows of the queue that are written in one transaction.
const ROWS_PER_TRANSACTION: usize = 500;

/// Where a message was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// As it is shown.
    pub file: Arc<str>,
    /// From 1.
    pub number: usize,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", self.file, self.number)
    }
}

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NewMessage {
    /// Where it was read, if that was a line of many.
    pub line: Option<Line>,
    /// Its id: the row's id in a queue, the header `Nats-Msg-Id` in a stream.
    pub id: Option<String>,
    /// The topic or subject.
    pub subject: Option<String>,
    /// In their order.
    pub headers: Vec<Header>,
    /// Any bytes.
    pub payload: Bytes,
}

/// One line of a file of whole messages: `{"id": .., "subject": .., "headers": {..}, "payload": ..}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope<'a> {
    /// The message's id.
    pub id: Option<String>,
    /// The topic or subject.
    pub subject: Option<String>,
    /// By name.
    #[serde(default)]
    pub headers: std::collections::BTreeMap<String, String>,
    /// JSON, sent as it stands in the line.
    #[serde(borrow)]
    pub payload: &'a serde_json::value::RawValue,
}

impl From<Envelope<'_>> for NewMessage {
    fn from(envelope: Envelope<'_>) -> Self {
        Self {
            line: None,
            id: envelope.id,
            subject: envelope.subject,
            headers: envelope
                .headers
                .into_iter()
                .map(|(name, value)| Header {
                    name,
                    value: value.into(),
                })
                .collect(),
            payload: Bytes::copy_from_slice(envelope.payload.get().as_bytes()),
        }
    }
}

/// What comes next of that which is to be sent.
#[derive(Debug)]
pub enum Next {
    /// A message, or why it cannot be read.
    Message(Result<NewMessage, CommandError>),
    /// The next message may be long in coming: what is there should be sent without it.
    Pause,
}

/// What was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Sent {
    /// Messages that the source took, the duplicates included.
    pub sent: u64,
    /// Messages that the broker dropped because it had seen their id. hapax itself drops none.
    pub duplicates: u64,
}

/// Sends every message to the source `name`, in order, and tells `progress` how many are sent.
///
/// # Errors
/// An unknown source, a source that cannot be reached, a message that cannot be read (its error is passed on), one
/// in which the handler of that source would find no id, or one that the source refuses. All messages before it are sent
/// nevertheless; the text says how many.
pub async fn send(
    config: &Config,
    name: &str,
    messages: impl Iterator<Item = Next>,
    mut progress: impl FnMut(u64),
) -> Result<Sent, CommandError> {
    let Some(source) = config.sources.get(name) else {
        let names: Vec<String> = config
            .sources
            .keys()
            .map(|name| format!("`{name}`"))
            .collect();
        let hint = if names.is_empty() {
            format!("write `[sources.{name}]` with `kind = \"queue\"`")
        } else {
            format!("the sources are {}", names.join(", "))
        };
        return Err(CommandError::new(
            Exit::CommandLine,
            format!("there is no source `{name}` in `{}`", config.file.display()),
            Some(&hint),
        )
        .because(Cause::NotThere));
    };
    let mut sent = Sent::default();
    let result = match &source.kind {
        SourceKind::Queue => send_to_queue(config, name, messages, &mut sent, &mut progress).await,
        SourceKind::JetStream(stream) => {
            let mut publisher = JetStreamPublisher::connect(&PublisherOptions {
                url: stream.url.clone(),
                access: stream.access.clone(),
                stream: stream.stream.clone(),
                subjects: stream.subjects.clone(),
                create: stream.create,
            })
            .await
            .map_err(|error| CommandError::source(name, &error))?;
            send_to_stream(
                config,
                name,
                &mut publisher,
                messages,
                &mut sent,
                &mut progress,
            )
            .await
        }
    };
    match (result, sent.sent) {
        (Ok(()), _) => Ok(sent),
        (Err(error), 0) => Err(error),
        (Err(error), 1) => Err(error.after("1 message was sent before that")),
        (Err(error), count) => Err(error.after(&format!("{count} messages were sent before that"))),
    }
}

async fn send_to_queue(
    config: &Config,
    name: &str,
    messages: impl Iterator<Item = Next>,
    sent: &mut Sent,
    progress: &mut impl FnMut(u64),
) -> Result<(), CommandError> {
    let store = open_store(config)?;
    let failed = |error| CommandError::store("cannot write to the queue", &error);
    let mut connection = connect_and_migrate(&store, "send").await.map_err(failed)?;
    let mut rows = Vec::new();
    let mut stopped = Ok(());
    for next in messages {
        let is_pause = matches!(next, Next::Pause);
        if let Next::Message(message) = next {
            match message.and_then(|message| with_id(config, name, message)) {
                Ok(message) => rows.push(NewQueueRow {
                    message_id: message.id,
                    subject: message.subject.unwrap_or_default(),
                    content_type: content_type(&message.headers),
                    headers: message.headers,
                    payload: message.payload,
                }),
                Err(error) => {
                    stopped = Err(error);
                    break;
                }
            }
        }
        if rows.len() == ROWS_PER_TRANSACTION || (is_pause && !rows.is_empty()) {
            connection.enqueue(name, &rows).await.map_err(failed)?;
            sent.sent += rows.len() as u64;
            rows.clear();
            progress(sent.sent);
        }
    }
    if !rows.is_empty() {
        connection.enqueue(name, &rows).await.map_err(failed)?;
        sent.sent += rows.len() as u64;
        progress(sent.sent);
    }
    stopped
}

async fn send_to_stream(
    config: &Config,
    name: &str,
    publisher: &mut JetStreamPublisher,
    messages: impl Iterator<Item = Next>,
    sent: &mut Sent,
    progress: &mut impl FnMut(u64),
) -> Result<(), CommandError> {
    let default_subject = publisher
        .subjects()
        .iter()
        .find(|subject| !subject.contains(['*', '>']))
        .cloned();
    let mut stopped = Ok(());
    for next in messages {
        let published = match next {
            Next::Pause => publisher
                .finish()
                .await
                .map_err(|error| refused(name, None, &error)),
            Next::Message(message) => {
                match message.and_then(|message| with_id(config, name, message)) {
                    Ok(message) => {
                        publish(name, publisher, message, default_subject.as_deref()).await
                    }
                    Err(error) => Err(error),
                }
            }
        };
        if published.is_err() {
            stopped = published;
            break;
        }
        (sent.sent, sent.duplicates) = publisher.confirmed();
        progress(sent.sent);
    }
    // What is under way is confirmed first, also after an error: it counts, and ending now might lose it.
    let finished = publisher.finish().await;
    (sent.sent, sent.duplicates) = publisher.confirmed();
    progress(sent.sent);
    stopped.and_then(|()| finished.map_err(|error| refused(name, None, &error)))
}

async fn publish(
    name: &str,
    publisher: &mut JetStreamPublisher,
    message: NewMessage,
    default_subject: Option<&str>,
) -> Result<(), CommandError> {
    let Some(subject) = message.subject.as_deref().or(default_subject) else {
        let patterns: Vec<String> = publisher
            .subjects()
            .iter()
            .map(|subject| format!("`{subject}`"))
            .collect();
        return Err(CommandError::new(
            Exit::CommandLine,
            format!(
                "{}the message has no subject, and the subjects of source `{name}` are patterns: {}",
                place(message.line.as_ref()),
                patterns.join(", ")
            ),
            Some("name one that fits with `--subject`"),
        ));
    };
    let new = jetstream::NewMessage {
        id: message.id,
        subject: subject.to_owned(),
        headers: message.headers,
        payload: message.payload,
    };
    let prepared = publisher
        .prepare(new)
        .map_err(|error| refused(name, message.line.as_ref(), &error))?;
    // What fails here may be about a message before this one.
    publisher
        .send(prepared)
        .await
        .map_err(|error| refused(name, None, &error))
}

/// A message was not taken: unlike at connecting, this is no fault of the configuration.
fn refused(name: &str, line: Option<&Line>, error: &SourceError) -> CommandError {
    match error {
        SourceError::Unavailable(_) => CommandError::source(name, error),
        SourceError::Unusable(why) => CommandError::new(
            Exit::Failed,
            format!("{}source `{name}`: {why}", place(line)),
            None,
        ),
    }
}

/// Returns the start of a sentence about a message; empty if it is the only one.
fn place(line: Option<&Line>) -> String {
    line.map_or_else(String::new, |line| format!("{line}: "))
}

pub(super) fn content_type(headers: &[Header]) -> Option<String> {
    headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-type"))
        .and_then(|header| String::from_utf8(header.value.to_vec()).ok())
}

/// Returns the message, unless a handler of the source would find no id in it: it would become a dead letter.
fn with_id(config: &Config, source: &str, message: NewMessage) -> Result<NewMessage, CommandError> {
    let is_queue = config
        .sources
        .get(source)
        .is_some_and(|source| source.kind == SourceKind::Queue);
    for handler in config
        .handlers
        .values()
        .filter(|handler| handler.source == source)
    {
        if handler.message_id.has_stream_sequence() {
            continue;
        }
        let mut headers = message.headers.clone();
        if let (Some(id), false) = (&message.id, is_queue) {
            headers.push(Header {
                name: "Nats-Msg-Id".into(),
                value: id.clone().into(),
            });
        }
        let incoming = Incoming {
            subject: message.subject.clone().unwrap_or_default(),
            headers,
            content_type: None,
            payload: message.payload.clone(),
            published_at: None,
            position: Position(String::new()),
            queue_id: message.id.clone().filter(|_| is_queue),
        };
        if let Err(reason) = handler.message_id.find(&incoming) {
            let from_option = if is_queue {
                "queue:id"
            } else {
                "header:Nats-Msg-Id"
            };
            let takes_option = handler
                .message_id
                .places()
                .iter()
                .any(|place| place.to_string().eq_ignore_ascii_case(from_option));
            let hint = if takes_option {
                "give one with `--id` (in an envelope: `\"id\"`), or put one where the handler's `message_id` looks for it"
            } else {
                "put one where the handler's `message_id` looks for it: `--id` gives none there"
            };
            return Err(CommandError::new(
                Exit::CommandLine,
                format!(
                    "{}handler `{}` would find {reason}",
                    place(message.line.as_ref()),
                    handler.name
                ),
                Some(hint),
            ));
        }
    }
    Ok(message)
}
