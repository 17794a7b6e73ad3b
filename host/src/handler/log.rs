//! `hapax:handler/log`: lines of a call, held until it is known whether the call took effect.
//!
//! **Invariant**: a call's lines have a bounded size, and no guest byte reaches the log unescaped.

use std::fmt::Write as _;
use std::sync::Arc;

use opentelemetry::trace::TraceId;
use tracing::Level;

use super::bindings::hapax::handler::{log, types};
use super::limits::Limits;
use super::state::State;
use super::text;
use crate::message::{Incoming, Message};
use crate::telemetry::context;

/// The most lines that are kept of one call.
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

/// What a handler logged in one call.
///
/// Emit it once: after the commit with `emit_committed`, after a rollback with `emit_rolled_back`.
#[derive(Clone, Debug, Default)]
pub struct LogLines {
    handler: String,
    message_id: String,
    /// For the subject and the trace, which are looked at only if there are lines.
    incoming: Option<Arc<Incoming>>,
    trace_id: Option<TraceId>,
    attempt: u32,
    lines: Vec<LogLine>,
    bytes: usize,
    bytes_max: usize,
    dropped: u64,
    last_words: Option<String>,
}

impl LogLines {
    pub(super) fn new(handler: &str, message: &Message, attempt: u32) -> Self {
        Self {
            handler: handler.to_owned(),
            message_id: text::one_line(message.id.as_str(), MESSAGE_BYTES_MAX),
            incoming: Some(Arc::clone(&message.incoming)),
            attempt,
            bytes_max: Limits::DEFAULT.log_bytes,
            ..Self::default()
        }
    }

    /// Keeps no more than `bytes_max` bytes of the lines.
    pub(super) fn bounded_to(mut self, bytes_max: usize) -> Self {
        self.bytes_max = bytes_max;
        self
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

    /// Returns the last line, if it was an error: a guest that panics says why just before it traps.
    pub(super) fn last_words(&self) -> Option<&str> {
        self.last_words.as_deref()
    }

    pub(super) fn push(&mut self, level: Level, message: &str, fields: &[(String, String)]) {
        self.last_words =
            (level == Level::ERROR).then(|| text::bounded(message, MESSAGE_BYTES_MAX));
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
        if self.lines.len() >= LOG_LINES_MAX || self.bytes + bytes > self.bytes_max {
            self.dropped += 1;
            return;
        }
        self.bytes += bytes;
        self.lines.push(line);
    }

    /// Counts lines that were not kept.
    pub(super) fn drop_lines(&mut self, lines: u64) {
        self.dropped += lines;
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

    /// Returns the number of the run, from 1.
    pub(super) fn attempt(&self) -> u32 {
        self.attempt
    }

    fn emit(&self, at: impl Fn(Level) -> Level) {
        if self.lines.is_empty() && self.dropped == 0 {
            return;
        }
        let Self {
            handler,
            message_id,
            attempt,
            ..
        } = self;
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
                trace_id,
                dropped = self.dropped,
                hint = "log less, or raise `limits.log`",
                "the handler logged more than is kept of one call"
            );
        }
    }
}

impl log::Host for State {
    async fn write(
        &mut self,
        level: types::Level,
        message: String,
        fields: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        let level = match level {
            types::Level::Trace => Level::TRACE,
            types::Level::Debug => Level::DEBUG,
            types::Level::Info => Level::INFO,
            types::Level::Warn => Level::WARN,
            types::Level::Error => Level::ERROR,
        };
        // In the order of the handler's doing.
        self.log_output(false);
        self.log.push(level, &message, &fields);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        log.push(Level::INFO, "one\ntwo", &[("k".into(), "v\x1b".into())]);
        assert_eq!(log.message_id, "id\\n");
        assert_eq!(
            log.lines(),
            [LogLine {
                level: Level::INFO,
                message: "one\\ntwo".into(),
                fields: "k=v\\u{1b}".into()
            }]
        );
        for _ in 0..2 * LOG_LINES_MAX {
            log.push(Level::INFO, "x", &[]);
        }
        assert_eq!(log.lines().len(), LOG_LINES_MAX);
        assert_eq!(log.dropped() as usize, LOG_LINES_MAX + 1);
    }

    #[test]
    fn a_flood_of_long_lines_stays_within_the_bytes() {
        let mut log = LogLines::new("h", &message("id"), 1);
        let long = "\0".repeat(1 << 20);
        let fields = vec![(long.clone(), long.clone()); 100];
        for _ in 0..100 {
            log.push(Level::INFO, &long, &fields);
        }
        assert!(log.bytes <= Limits::DEFAULT.log_bytes);
        assert!(log.dropped() > 0);
    }

    #[test]
    fn the_last_words_are_an_error_that_nothing_follows() {
        let mut log = LogLines::new("h", &message("id"), 1);
        log.push(Level::ERROR, "panic: no", &[]);
        assert_eq!(log.last_words(), Some("panic: no"));
        log.push(Level::INFO, "went on", &[]);
        assert_eq!(log.last_words(), None);
    }
}
