//! `hapax:handler/log` and `batch-log`: lines of a call, held until it is known whether the call took effect.
//!
//! **Invariant**: a call's lines have a bounded size, and no guest byte reaches the log unescaped.

use std::fmt::Write as _;
use std::sync::Arc;

use opentelemetry::trace::TraceId;
use tracing::Level;

use super::bindings::batch::hapax::handler::batch_log;
use super::bindings::hapax::handler::{log, types};
use super::call::Member;
use super::state::State;
use super::text;
use crate::message::{Incoming, Message};
use crate::telemetry::context;

/// The most lines that are kept of one call, for each of its messages.
pub const LOG_LINES_MAX: usize = 1_000;

const MESSAGE_BYTES_MAX: usize = 8 << 10;
const FIELDS_MAX: usize = 32;
const FIELD_NAME_BYTES_MAX: usize = 64;
const FIELD_VALUE_BYTES_MAX: usize = 1 << 10;

/// One line, escaped and bounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// As the handler chose it.
    pub level: Level,
    /// The handler's words.
    pub message: String,
    /// The handler's fields, as `name=value`, separated by spaces.
    pub fields: String,
}

/// What a handler logged in one call about one message, or about a batch as a whole.
///
/// Emit it once: after the commit with `emit_committed`, after a rollback with `emit_rolled_back`.
#[derive(Clone, Debug, Default)]
pub struct LogLines {
    handler: String,
    /// Absent for a batch.
    message_id: Option<String>,
    /// For the subject and the trace, which are looked at only if there are lines.
    incoming: Option<Arc<Incoming>>,
    trace_id: Option<TraceId>,
    /// Absent for a batch.
    attempt: Option<u32>,
    /// How many messages were in the call, for a batch.
    messages: Option<usize>,
    lines: Vec<LogLine>,
    dropped: u64,
}

/// What a handler logs in one call, and how much of it is kept.
#[derive(Debug)]
pub(super) struct CallLog {
    /// For each message; of a batch's, after that, what concerns it as a whole.
    lines: Vec<LogLines>,
    bytes_left: usize,
    last_words: Option<String>,
}

impl CallLog {
    /// For a handler of one message a call.
    pub(super) fn of_message(handler: &str, member: &Member<'_>, bytes_max: usize) -> Self {
        Self {
            lines: vec![LogLines::new(handler, member.message, member.attempt)],
            bytes_left: bytes_max,
            last_words: None,
        }
    }

    /// For a handler of batches.
    pub(super) fn of_batch(handler: &str, members: &[Member<'_>], bytes_max: usize) -> Self {
        let mut lines: Vec<LogLines> = members
            .iter()
            .map(|member| LogLines::new(handler, member.message, member.attempt))
            .collect();
        lines.push(LogLines {
            handler: handler.to_owned(),
            messages: Some(members.len()),
            ..LogLines::default()
        });
        Self {
            lines,
            bytes_left: bytes_max,
            last_words: None,
        }
    }

    /// Returns whom the call as a whole is about: its message, or a batch.
    pub(super) fn whole(&self) -> &LogLines {
        self.lines.last().expect("there is one for each call")
    }

    /// Returns the last line, if it was an error: a guest that panics says why just before it traps.
    pub(super) fn last_words(&self) -> Option<&str> {
        self.last_words.as_deref()
    }

    /// Returns how many lines were not kept.
    pub(super) fn dropped(&self) -> u64 {
        self.lines.iter().map(LogLines::dropped).sum()
    }

    /// Counts lines about the call as a whole that were not kept.
    pub(super) fn drop_lines(&mut self, lines: u64) {
        if let Some(whole) = self.lines.last_mut() {
            whole.dropped += lines;
        }
    }

    /// Returns the lines about each message, by its place, and those about the batch. Who has none is left out.
    pub(super) fn into_lines(self) -> Vec<(Option<usize>, LogLines)> {
        let whole = self.lines.len() - 1;
        self.lines
            .into_iter()
            .enumerate()
            .filter(|(_, lines)| !lines.is_empty())
            .map(|(index, lines)| ((index < whole).then_some(index), lines))
            .collect()
    }

    /// Returns the lines of a call with one message.
    pub(super) fn into_one(self) -> LogLines {
        self.lines.into_iter().next().unwrap_or_default()
    }

    /// Keeps a line about the message at `member`, or about the batch.
    pub(super) fn push(
        &mut self,
        member: Option<u32>,
        level: Level,
        message: &str,
        fields: &[(String, String)],
    ) {
        self.last_words =
            (level == Level::ERROR).then(|| text::bounded(message, MESSAGE_BYTES_MAX));
        let whole = self.lines.len() - 1;
        let index = member.map_or(whole, |member| member as usize);
        if member.is_some() && index >= whole {
            let whole = self.whole();
            tracing::warn!(
                handler = whole.handler,
                member,
                messages = whole.messages,
                hint = "members count from 0; leave it out for what concerns the whole batch",
                "ignored a handler's log line: there is no such member in the batch"
            );
            return;
        }
        self.lines[index].push(level, message, fields, &mut self.bytes_left);
    }
}

impl LogLines {
    pub(super) fn new(handler: &str, message: &Message, attempt: u32) -> Self {
        Self {
            handler: handler.to_owned(),
            message_id: Some(text::one_line(message.id.as_str(), MESSAGE_BYTES_MAX)),
            incoming: Some(Arc::clone(&message.incoming)),
            attempt: Some(attempt),
            ..Self::default()
        }
    }

    /// Says in which trace the call ran, where the message's own headers name none.
    #[must_use]
    pub fn in_trace(mut self, trace_id: Option<TraceId>) -> Self {
        self.trace_id = trace_id;
        self
    }

    /// Returns the lines, in order.
    pub fn lines(&self) -> &[LogLine] {
        &self.lines
    }

    /// Returns how many lines were not kept, since the call wrote too many.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Writes the lines to the host's log, at their own levels.
    pub fn emit_committed(&self) {
        self.emit(|level| level);
    }

    /// Writes the lines to the host's log at level debug (trace stays trace): what they tell did not happen.
    pub fn emit_rolled_back(&self) {
        self.emit(|level| level.max(Level::DEBUG));
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.dropped == 0
    }

    fn push(
        &mut self,
        level: Level,
        message: &str,
        fields: &[(String, String)],
        bytes_left: &mut usize,
    ) {
        let mut line = LogLine {
            level,
            message: text::one_line(message, MESSAGE_BYTES_MAX),
            fields: String::new(),
        };
        for (name, value) in fields.iter().take(FIELDS_MAX) {
            let separator = if line.fields.is_empty() { "" } else { " " };
            let name = text::one_line(name, FIELD_NAME_BYTES_MAX);
            let value = text::one_line(value, FIELD_VALUE_BYTES_MAX);
            let _ = write!(line.fields, "{separator}{name}={value}");
        }
        if fields.len() > FIELDS_MAX {
            let _ = write!(line.fields, " [{} fields cut]", fields.len() - FIELDS_MAX);
        }
        let bytes = line.message.len() + line.fields.len();
        if self.lines.len() >= LOG_LINES_MAX || bytes > *bytes_left {
            self.dropped += 1;
            return;
        }
        *bytes_left -= bytes;
        self.lines.push(line);
    }

    /// Returns the message's subject, fit to be shown, if it has one.
    pub(super) fn subject(&self) -> Option<String> {
        let subject = &self.incoming.as_ref()?.subject;
        (!subject.is_empty()).then(|| text::one_line(subject, MESSAGE_BYTES_MAX))
    }

    /// Returns the trace that the call belongs to, if it is known.
    pub(super) fn trace_id(&self) -> Option<String> {
        self.trace_id
            .or_else(|| context::trace_id(&self.incoming.as_ref()?.headers))
            .map(|id| id.to_string())
    }

    /// Returns the number of the run, from 1, if it is of one message.
    pub(super) fn attempt(&self) -> Option<u32> {
        self.attempt
    }

    /// Returns the message's id, fit to be shown, if it is of one message.
    pub(super) fn message_id(&self) -> Option<&str> {
        self.message_id.as_deref()
    }

    /// Returns how many messages the call has, if it is of a batch.
    pub(super) fn messages(&self) -> Option<usize> {
        self.messages
    }

    fn emit(&self, at: impl Fn(Level) -> Level) {
        if self.is_empty() {
            return;
        }
        let Self {
            handler,
            message_id,
            attempt,
            messages,
            ..
        } = self;
        let message_id = message_id.as_deref();
        let (subject, trace_id) = (self.subject(), self.trace_id());
        let (subject, trace_id) = (subject.as_deref(), trace_id.as_deref());
        for line in &self.lines {
            let LogLine {
                message, fields, ..
            } = line;
            // The level of a tracing call is fixed where it is written, and an empty field would only be noise.
            macro_rules! emit {
                ($level:ident) => {
                    if fields.is_empty() {
                        tracing::event!(
                            Level::$level,
                            handler,
                            message_id,
                            subject,
                            attempt,
                            messages,
                            trace_id,
                            "{message}"
                        )
                    } else {
                        tracing::event!(
                            Level::$level,
                            handler,
                            message_id,
                            subject,
                            attempt,
                            messages,
                            trace_id,
                            fields,
                            "{message}"
                        )
                    }
                };
            }
            match at(line.level) {
                Level::ERROR => emit!(ERROR),
                Level::WARN => emit!(WARN),
                Level::INFO => emit!(INFO),
                Level::DEBUG => emit!(DEBUG),
                Level::TRACE => emit!(TRACE),
            }
        }
        if self.dropped > 0 {
            tracing::warn!(
                handler,
                message_id,
                subject,
                attempt,
                messages,
                trace_id,
                dropped = self.dropped,
                hint = "log less, or raise `limits.log`",
                "the handler logged more than is kept of one call"
            );
        }
    }
}

fn level(level: types::Level) -> Level {
    match level {
        types::Level::Trace => Level::TRACE,
        types::Level::Debug => Level::DEBUG,
        types::Level::Info => Level::INFO,
        types::Level::Warn => Level::WARN,
        types::Level::Error => Level::ERROR,
    }
}

impl log::Host for State {
    async fn write(
        &mut self,
        at: types::Level,
        message: String,
        fields: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        // In the order of the handler's doing.
        self.log_output(false);
        self.log.push(None, level(at), &message, &fields);
        Ok(())
    }
}

impl batch_log::Host for State {
    async fn write(
        &mut self,
        member: Option<u32>,
        at: types::Level,
        message: String,
        fields: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        // In the order of the handler's doing.
        self.log_output(false);
        self.log.push(member, level(at), &message, &fields);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::Limits;
    use crate::message::{MessageId, Position};

    fn message(id: &str) -> Message {
        Message {
            id: MessageId::new(id).unwrap(),
            source: "s".into(),
            incoming: Arc::new(Incoming {
                subject: String::new(),
                headers: Vec::new(),
                content_type: None,
                payload: bytes::Bytes::new(),
                published_at: None,
                position: Position("1".into()),
                queue_id: None,
            }),
        }
    }

    #[test]
    fn lines_are_escaped_and_bounded() {
        let mut log = LogLines::new("h", &message("id\n"), 2);
        let mut left = Limits::DEFAULT.log_bytes;
        log.push(
            Level::INFO,
            "one\ntwo",
            &[("k".into(), "v\x1b".into())],
            &mut left,
        );
        assert_eq!(log.message_id(), Some("id\\n"));
        assert_eq!(
            log.lines(),
            [LogLine {
                level: Level::INFO,
                message: "one\\ntwo".into(),
                fields: "k=v\\u{1b}".into()
            }]
        );
        for _ in 0..2 * LOG_LINES_MAX {
            log.push(Level::INFO, "x", &[], &mut left);
        }
        assert_eq!(log.lines().len(), LOG_LINES_MAX);
        assert_eq!(log.dropped() as usize, LOG_LINES_MAX + 1);
    }

    fn call_log(messages: &[Message], bytes_max: usize) -> CallLog {
        let members: Vec<Member<'_>> = messages
            .iter()
            .map(|message| Member {
                message,
                key: None,
                attempt: 1,
                generation: None,
            })
            .collect();
        CallLog::of_batch("h", &members, bytes_max)
    }

    #[test]
    fn a_flood_of_long_lines_stays_within_the_bytes_of_the_call() {
        let messages = [message("a"), message("b")];
        let mut log = call_log(&messages, 10_000);
        let long = "\0".repeat(1 << 20);
        let fields = vec![(long.clone(), long.clone()); 100];
        for n in 0..100 {
            log.push(Some(n % 2), Level::INFO, &long, &fields);
            log.push(None, Level::INFO, "short", &[]);
        }
        let kept: usize = log
            .lines
            .iter()
            .flat_map(|lines| &lines.lines)
            .map(|line| line.message.len() + line.fields.len())
            .sum();
        assert!(kept <= 10_000, "{kept}");
        assert!(log.dropped() >= 99);
    }

    #[test]
    fn a_line_is_its_members_or_the_batchs() {
        let messages = [message("a"), message("b")];
        let mut log = call_log(&messages, 1_000);
        log.push(Some(1), Level::INFO, "of b", &[]);
        log.push(None, Level::INFO, "of all", &[]);
        log.push(Some(2), Level::INFO, "of nobody", &[]);
        log.push(Some(u32::MAX), Level::INFO, "of nobody", &[]);
        let kept: Vec<_> = log
            .into_lines()
            .iter()
            .map(|(place, lines)| {
                let id = lines.message_id().map(str::to_owned);
                (
                    *place,
                    id,
                    lines.messages(),
                    lines.lines()[0].message.clone(),
                )
            })
            .collect();
        assert_eq!(
            kept,
            [
                (Some(1), Some("b".to_owned()), None, "of b".to_owned()),
                (None, None, Some(2), "of all".to_owned())
            ]
        );
    }

    #[test]
    fn the_last_words_are_an_error_that_nothing_follows() {
        let mut log = call_log(&[message("id")], 1_000);
        log.push(None, Level::ERROR, "panic: no", &[]);
        assert_eq!(log.last_words(), Some("panic: no"));
        log.push(Some(0), Level::INFO, "went on", &[]);
        assert_eq!(log.last_words(), None);
    }
}
