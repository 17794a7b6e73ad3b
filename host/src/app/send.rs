//! `hapax send`: messages into a source.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{connect_and_migrate, open_store};
use crate::config::{Config, SourceKind};
use crate::exit::{CommandError, Exit};
use crate::message::{Header, Incoming, Position};
use crate::source::jetstream::{self, JetStreamPublisher, PublisherOptions};
use crate::store::NewQueueRow;

/// Rows of the queue that are written in one transaction.
const ROWS_PER_TRANSACTION: usize = 500;

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NewMessage {
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
/// An unknown source, a source that cannot be reached, a message that cannot be read (its error is passed on), or one
/// in which the handler of that source would find no id. What was sent before the error stays sent; the text says how many.
pub async fn send(
    config: &Config,
    name: &str,
    messages: impl Iterator<Item = Result<NewMessage, CommandError>>,
    mut progress: impl FnMut(u64),
) -> Result<Sent, CommandError> {
    let Some(source) = config.sources.get(name) else {
        let names: Vec<String> = config
            .sources
            .keys()
            .map(|name| format!("`{name}`"))
            .collect();
        return Err(CommandError::new(
            Exit::CommandLine,
            format!("there is no source `{name}` in `{}`", config.file.display()),
            Some(&format!("the sources are {}", names.join(", "))),
        ));
    };
    let mut sent = Sent::default();
    let result = match &source.kind {
        SourceKind::Queue => send_to_queue(config, name, messages, &mut sent, &mut progress).await,
        SourceKind::JetStream(stream) => {
            let mut publisher = JetStreamPublisher::connect(&PublisherOptions {
                url: stream.url.clone(),
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
    match result {
        Ok(()) => Ok(sent),
        Err(error) if sent.sent == 0 => Err(error),
        Err(error) => Err(error.after(&format!("{} messages were sent before that", sent.sent))),
    }
}

async fn send_to_queue(
    config: &Config,
    name: &str,
    messages: impl Iterator<Item = Result<NewMessage, CommandError>>,
    sent: &mut Sent,
    progress: &mut impl FnMut(u64),
) -> Result<(), CommandError> {
    let store = open_store(config)?;
    let failed = |error| CommandError::store("cannot write to the queue", &error);
    let mut connection = connect_and_migrate(&store, "send").await.map_err(failed)?;
    let mut rows = Vec::new();
    let mut messages = messages.peekable();
    while let Some(message) = messages.next() {
        let message = message?;
        require_id(config, name, &message)?;
        rows.push(NewQueueRow {
            message_id: message.id,
            subject: message.subject.unwrap_or_default(),
            content_type: content_type(&message.headers),
            headers: message.headers,
            payload: message.payload,
        });
        if rows.len() == ROWS_PER_TRANSACTION || messages.peek().is_none() {
            connection.enqueue(name, &rows).await.map_err(failed)?;
            sent.sent += rows.len() as u64;
            rows.clear();
            progress(sent.sent);
        }
    }
    Ok(())
}

async fn send_to_stream(
    config: &Config,
    name: &str,
    publisher: &mut JetStreamPublisher,
    messages: impl Iterator<Item = Result<NewMessage, CommandError>>,
    sent: &mut Sent,
    progress: &mut impl FnMut(u64),
) -> Result<(), CommandError> {
    let default_subject = publisher
        .subjects()
        .iter()
        .find(|subject| !subject.contains(['*', '>']))
        .cloned();
    for message in messages {
        let message = message?;
        require_id(config, name, &message)?;
        let Some(subject) = message.subject.clone().or_else(|| default_subject.clone()) else {
            return Err(CommandError::new(
                Exit::CommandLine,
                format!(
                    "source `{name}`: the message has no subject, and the stream's subjects are patterns"
                ),
                Some("name one with `--subject`"),
            ));
        };
        publisher
            .publish(jetstream::NewMessage {
                id: message.id,
                subject,
                headers: message.headers,
                payload: message.payload,
            })
            .await
            .map_err(|error| CommandError::source(name, &error))?;
        (sent.sent, sent.duplicates) = publisher.confirmed();
        progress(sent.sent);
    }
    let finished = publisher.finish().await;
    (sent.sent, sent.duplicates) = publisher.confirmed();
    progress(sent.sent);
    finished.map_err(|error| CommandError::source(name, &error))
}

fn content_type(headers: &[Header]) -> Option<String> {
    headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-type"))
        .and_then(|header| String::from_utf8(header.value.to_vec()).ok())
}

/// Refuses a message in which a handler of the source would find no id: it would become a dead letter.
fn require_id(config: &Config, source: &str, message: &NewMessage) -> Result<(), CommandError> {
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
            return Err(CommandError::new(
                Exit::CommandLine,
                format!(
                    "handler `{}` would find no id in the message: {reason}",
                    handler.name
                ),
                Some(
                    "give one with `--id`, or put one where `message_id` of the handler looks for it",
                ),
            ));
        }
    }
    Ok(())
}
