//! What a message is: plain data that every room shares.
//!
//! **Invariant**: no I/O and no knowledge of brokers, databases or Wasm here.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

/// The longest message id, in bytes.
///
/// The id is part of an index's key, and PostgreSQL refuses keys of more than 2,704 bytes.
pub const MESSAGE_ID_MAX_BYTES: usize = 1024;

/// The id that is claimed, unique within a handler's `consumer`: 1 to 1,024 bytes of UTF-8 without NUL.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(String);

impl MessageId {
    /// Checks `id` and wraps it.
    ///
    /// # Errors
    /// Says what is wrong with the id; the caller parks the message as `missing-id`.
    pub fn new(id: impl Into<String>) -> Result<Self, String> {
        let id = id.into();
        if id.is_empty() {
            return Err("the message id is empty".into());
        }
        if id.len() > MESSAGE_ID_MAX_BYTES {
            return Err(format!(
                "the message id has {} bytes; at most {MESSAGE_ID_MAX_BYTES} are possible",
                id.len()
            ));
        }
        if id.contains('\0') {
            return Err("the message id contains a NUL byte".into());
        }
        Ok(Self(id))
    }

    /// Returns the id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the id's text, owned.
    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A header; a name can occur more than once, and a value can be any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// As the source gave it; compared without regard to ASCII case.
    pub name: String,
    /// Any bytes.
    pub value: Bytes,
}

/// A moment in UTC, counted from 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant {
    /// Whole seconds, negative before the epoch (rounded down).
    pub seconds: i64,
    /// 0 to 999,999,999, always added to `seconds`.
    pub nanoseconds: u32,
}

impl Instant {
    /// Returns the moment that lies `span` before this one.
    pub(crate) fn before(self, span: std::time::Duration) -> Self {
        let seconds = self
            .seconds
            .saturating_sub(i64::try_from(span.as_secs()).unwrap_or(i64::MAX));
        match self.nanoseconds.checked_sub(span.subsec_nanos()) {
            Some(nanoseconds) => Self {
                seconds,
                nanoseconds,
            },
            None => Self {
                seconds: seconds.saturating_sub(1),
                nanoseconds: self.nanoseconds + 1_000_000_000 - span.subsec_nanos(),
            },
        }
    }
}

/// Where a source holds a message: unique within the source for ever, also when the broker's stream is made anew.
///
/// JetStream: `STREAM@<created, Unix seconds with nine decimals>:<sequence>`. Queue: the row's number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Position(pub String);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A message as a source delivers it: its id is not found yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The broker's subject, or the queue's topic; may be empty.
    pub subject: String,
    /// In the order in which the source gave them.
    pub headers: Vec<Header>,
    /// The MIME type, from the source's own field or a `Content-Type` header.
    pub content_type: Option<String>,
    /// Any bytes, none included.
    pub payload: Bytes,
    /// When the source accepted it, to the microsecond (what both databases can hold).
    pub published_at: Option<Instant>,
    /// Where the source holds it.
    pub position: Position,
    /// The id column of a `queue` row.
    pub queue_id: Option<String>,
}

impl Incoming {
    /// Returns the value of the first header called `name`, without regard to ASCII case.
    pub fn header(&self, name: &str) -> Option<&Bytes> {
        self.headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name))
            .map(|header| &header.value)
    }
}

/// Where a message came from that hapax carries itself: a row of a consumer's own queue, `@CONSUMER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The name of the source that delivered it first.
    pub source: String,
    /// Where that source held it.
    pub position: Position,
    /// When that source accepted it.
    pub published_at: Option<Instant>,
    /// Its id, if one was found. Absent, it is looked for in the handler's places.
    pub message_id: Option<MessageId>,
    /// The id column that it had in the embedded queue.
    pub queue_id: Option<String>,
    /// The number of the dead letter that is replayed.
    pub dead_letter: Option<i64>,
    /// It runs without a claim, although its id is taken.
    pub forced: bool,
}

impl Carried {
    /// Returns the name of the queue that holds what is carried for `consumer`. No configured source can have it.
    pub fn queue(consumer: &str) -> String {
        format!("@{consumer}")
    }
}

/// A message with its id: what a handler is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The id that is claimed.
    pub id: MessageId,
    /// The source's name in the configuration.
    pub source: String,
    /// What the source delivered; shared with the delivery.
    pub incoming: Arc<Incoming>,
}

/// The first 16 bytes of SHA-256 over length-prefixed fields: how payloads are compared for ever.
///
/// *Encoding*: for each field its length as 8 bytes, big-endian, then its bytes. Written down in
/// `ARCHITECTURE.md`, since it must never change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShortHash(pub [u8; 16]);

impl ShortHash {
    /// Hashes `fields`.
    pub fn of(fields: &[&[u8]]) -> Self {
        let mut hasher = Sha256::new();
        for field in fields {
            hasher.update((field.len() as u64).to_be_bytes());
            hasher.update(field);
        }
        let digest = hasher.finalize();
        let mut short = [0; 16];
        short.copy_from_slice(&digest[..16]);
        Self(short)
    }

    /// Hashes a message's payload: the fields are `payload` and the bytes.
    pub fn of_payload(payload: &[u8]) -> Self {
        Self::of(&[b"payload", payload])
    }

    /// Returns 32 hexadecimal digits.
    pub fn to_hex(self) -> String {
        hex(&self.0)
    }
}

impl fmt::Debug for ShortHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// A component's SHA-256: which code processed a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ComponentDigest(pub [u8; 32]);

impl ComponentDigest {
    /// Hashes a component's bytes.
    pub fn of(component: &[u8]) -> Self {
        Self(Sha256::digest(component).into())
    }

    /// Reads 64 hexadecimal digits, in lower or upper case. `None` if it is anything else.
    pub fn from_hex(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        let mut digest = [0; 32];
        if text.len() != 2 * digest.len() {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(text.chunks(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
        }
        Some(Self(digest))
    }
}

impl fmt::Display for ComponentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for ComponentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns `bytes` as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Why a message was given up on: the reason class of a dead letter, and of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// No configured place held a usable id.
    MissingId,
    /// The id was claimed before, with another payload.
    Conflict,
    /// It is older than the handler's window, and its id is not claimed: its claim may have been pruned.
    TooOld,
    /// The handler said `reject`.
    Rejected,
    /// The handler asked for a retry, until the attempts were used up.
    Retried,
    /// The handler trapped: a panic, an exception, stack overflow.
    Trapped,
    /// The handler went over one of its limits.
    Limit,
    /// The database refused what the handler had written: a deferred constraint, an aborted transaction.
    Sql,
    /// The host ended while this message ran, and nothing else ran beside it that could be to blame.
    Crashed,
}

impl FailureClass {
    /// Every class, in the order of the documentation.
    pub const ALL: [Self; 9] = [
        Self::MissingId,
        Self::Conflict,
        Self::TooOld,
        Self::Rejected,
        Self::Retried,
        Self::Trapped,
        Self::Limit,
        Self::Sql,
        Self::Crashed,
    ];

    /// Returns the class with this stable name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == name)
    }

    /// Returns the stable name, as stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MissingId => "missing-id",
            Self::Conflict => "conflict",
            Self::TooOld => "too-old",
            Self::Rejected => "rejected",
            Self::Retried => "retried",
            Self::Trapped => "trapped",
            Self::Limit => "limit",
            Self::Sql => "sql",
            Self::Crashed => "crashed",
        }
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_moment_before() {
        let at = |seconds, nanoseconds| Instant {
            seconds,
            nanoseconds,
        };
        assert_eq!(at(100, 5).before(Duration::from_secs(10)), at(90, 5));
        assert_eq!(
            at(100, 5).before(Duration::from_millis(10_500)),
            at(89, 500_000_005)
        );
    }
}
