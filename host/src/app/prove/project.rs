//! A handler's project: its configuration, its messages, and what is expected of them. `docs/testing-handlers.md` describes the files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use super::super::send::content_type;
use crate::app::{Envelope, NO_HANDLERS_HINT, NewMessage, handler_named};
use crate::config::{Config, HandlerConfig, SourceKind};
use crate::exit::{CommandError, Exit};
use crate::message::{Header, Incoming, Instant, MessageId, Position};

pub(in crate::app) const CONFIG: &str = "hapax.toml";
pub(in crate::app) const MESSAGES: &str = "messages.jsonl";
pub(in crate::app) const EXPECTED: &str = "expected.jsonl";

/// When the first message was published, as far as the handler is told: 2026-01-01T00:00:00Z, the others a second later each. The same
/// in every run, so that what a handler makes of it can be compared.
const PUBLISHED_AT: i64 = 1_767_225_600;

/// What is to be proved.
pub(super) struct Project {
    pub(super) config: Config,
    pub(super) handler: HandlerConfig,
    /// In the order of the file.
    pub(super) messages: Vec<ProjectMessage>,
    /// Absent if there is no such file.
    pub(super) expected: Option<Expected>,
}

/// A message of the file.
pub(super) struct ProjectMessage {
    /// Where it stands in the file, from 1.
    pub(super) line: usize,
    /// As the source would deliver it.
    pub(super) incoming: Arc<Incoming>,
    /// Absent if the handler's places hold none: it becomes a dead letter.
    pub(super) id: Option<MessageId>,
    /// The value of `order_by`.
    pub(super) key: Option<String>,
}

impl ProjectMessage {
    /// Returns what it is called in texts.
    pub(super) fn shown(&self) -> String {
        match &self.id {
            Some(id) => id.to_string(),
            None => format!("line {}", self.line),
        }
    }
}

/// What the file of expectations says.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// By table; only the columns that are named count.
    pub(super) tables: BTreeMap<String, Vec<Map<String, Json>>>,
    pub(super) outbox: Option<Vec<Map<String, Json>>>,
    pub(super) dead: Option<Vec<Map<String, Json>>>,
    /// Columns that are not compared: `table.column`.
    pub(super) ignore: Vec<String>,
    /// What may differ from run to run: `now()`.
    pub(super) allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedLine {
    table: Option<String>,
    rows: Option<Vec<Map<String, Json>>>,
    outbox: Option<Vec<Map<String, Json>>>,
    dead: Option<Vec<Map<String, Json>>>,
    #[serde(default)]
    ignore: Vec<String>,
    #[serde(default)]
    allow: Vec<String>,
}

impl Project {
    /// Reads the files in `folder`.
    ///
    /// # Errors
    /// The file that is missing or wrong, with its line.
    pub(super) fn read(folder: &Path, name: Option<&str>) -> Result<Self, CommandError> {
        let config = Config::load_here(&folder.join(CONFIG))?;
        let handler = the_handler(&config, name)?.clone();
        let source = config.sources.get(&handler.source);
        let stream = match source.map(|source| &source.kind) {
            Some(SourceKind::JetStream(stream)) => Some(stream.stream.as_str()),
            Some(SourceKind::Queue) | None => None,
        };
        let messages = read_messages(&folder.join(MESSAGES))?
            .into_iter()
            .map(|(number, new)| message(new, number, &handler, stream))
            .collect();
        let expected = read_expected(&folder.join(EXPECTED))?;
        Ok(Self {
            config,
            handler,
            messages,
            expected,
        })
    }
}

fn the_handler<'a>(
    config: &'a Config,
    name: Option<&str>,
) -> Result<&'a HandlerConfig, CommandError> {
    if let Some(name) = name {
        return handler_named(config, name);
    }
    let mut handlers = config.handlers.values();
    let file = config.file.display();
    match (handlers.next(), handlers.next()) {
        (Some(handler), None) => Ok(handler),
        (None, _) => Err(CommandError::new(
            Exit::Configuration,
            format!("`{file}` has no handlers"),
            Some(NO_HANDLERS_HINT),
        )),
        (Some(first), Some(_)) => Err(CommandError::new(
            Exit::CommandLine,
            format!("`{file}` has several handlers"),
            Some(&format!("name one: `--handler {}`", first.name)),
        )),
    }
}

/// Reads the file of a project's messages: each with the number of its line, from 1.
///
/// # Errors
/// The line that is wrong; there is no such file, or no message in it.
pub(in crate::app) fn read_messages(file: &Path) -> Result<Vec<(usize, NewMessage)>, CommandError> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| {
        CommandError::new(
            Exit::Configuration,
            format!("cannot read `{shown}`: {error}"),
            Some(
                "write the messages there that the handler is tested with, one a line: `{\"id\": \"m1\", \"payload\": {..}}`",
            ),
        )
    })?;
    let mut messages = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let number = index + 1;
        let envelope: Envelope<'_> = serde_json::from_str(line).map_err(|error| {
            CommandError::new(
                Exit::Configuration,
                format!("`{shown}`, line {number}: {error}"),
                Some(
                    "each line is `{\"id\": .., \"subject\": .., \"headers\": {..}, \"payload\": ..}`; only `payload` has to be there",
                ),
            )
        })?;
        messages.push((number, envelope.into()));
    }
    if messages.is_empty() {
        return Err(CommandError::new(
            Exit::Configuration,
            format!("`{shown}` holds no message"),
            Some("write some, one a line: `{\"id\": \"m1\", \"payload\": {..}}`"),
        ));
    }
    Ok(messages)
}

fn message(
    new: NewMessage,
    number: usize,
    handler: &HandlerConfig,
    stream: Option<&str>,
) -> ProjectMessage {
    let mut headers = new.headers;
    let content_type = content_type(&headers);
    if let (Some(id), Some(_)) = (&new.id, stream) {
        headers.push(Header {
            name: "Nats-Msg-Id".into(),
            value: id.clone().into(),
        });
    }
    let incoming = Incoming {
        subject: new.subject.unwrap_or_default(),
        headers,
        content_type,
        payload: new.payload,
        published_at: Some(Instant {
            seconds: PUBLISHED_AT + number as i64 - 1,
            nanoseconds: 0,
        }),
        position: Position(match stream {
            Some(stream) => format!("{stream}@{PUBLISHED_AT}.000000000:{number}"),
            None => number.to_string(),
        }),
        queue_id: new.id.filter(|_| stream.is_none()),
    };
    ProjectMessage {
        line: number,
        id: handler.message_id.find(&incoming).ok(),
        key: handler
            .order
            .as_ref()
            .and_then(|order| order.by.find(&incoming)),
        incoming: Arc::new(incoming),
    }
}

fn read_expected(file: &Path) -> Result<Option<Expected>, CommandError> {
    let shown = file.display();
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(CommandError::new(
                Exit::Configuration,
                format!("cannot read `{shown}`: {error}"),
                None,
            ));
        }
    };
    let mut expected = Expected::default();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |problem: String| {
            CommandError::new(
                Exit::Configuration,
                format!("`{shown}`, line {}: {problem}", index + 1),
                Some(
                    "a line is `{\"table\": \"t\", \"rows\": [{..}]}`, `{\"outbox\": [..]}`, `{\"dead\": [..]}`, \
                     `{\"ignore\": [\"t.column\"]}` or `{\"allow\": [\"now()\"]}`",
                ),
            )
        };
        let line: ExpectedLine =
            serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        match (line.table, line.rows) {
            (Some(table), Some(rows)) => {
                if expected.tables.insert(table.clone(), rows).is_some() {
                    return Err(wrong(format!(
                        "the table `{table}` stands in an earlier line, too"
                    )));
                }
            }
            (None, None) => {}
            _ => return Err(wrong("`table` and `rows` go together".to_owned())),
        }
        expected.outbox = line.outbox.or(expected.outbox);
        expected.dead = line.dead.or(expected.dead);
        expected.ignore.extend(line.ignore);
        expected.allow.extend(line.allow);
    }
    Ok(Some(expected))
}
