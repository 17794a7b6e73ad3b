//! `hapax:handler/outbox` and `batch-outbox`: messages to publish, held until the commit.
//!
//! **Invariant**: an id depends on consumer, message id, ordinal and, in a forced replay, the letter's number only, so that every
//! run of a message gives the same, alone or in whatever batch.

use bytes::Bytes;

use super::bindings::batch::hapax::handler::batch_outbox;
use super::bindings::hapax::handler::{outbox, types};
use super::call::Member;
use super::state::State;
use super::{Outgoing, Targets, text};
use crate::message::{Header, Instant, MessageId, ShortHash};
use crate::store::{Savepoint, SqlError};

/// The most bytes that one call may publish, in all of its messages together.
pub const OUTBOX_BYTES_MAX: usize = 16 << 20;
/// The longest subject, key, target, header name or content type, in bytes.
pub const OUTBOX_TEXT_BYTES_MAX: usize = 1_024;
/// The most headers of one message.
pub const OUTBOX_HEADERS_MAX: usize = 100;

/// 0001-01-01 to 9999-12-31: what both databases can hold.
const SECONDS_MIN: i64 = -62_135_596_800;
const SECONDS_MAX: i64 = 253_402_300_799;

/// What one call has published so far.
#[derive(Debug)]
pub(super) struct Outbox {
    /// For each message of the call.
    messages_max: u32,
    /// Each with the place of the message on whose behalf it is.
    published: Vec<(usize, Outgoing)>,
    bytes: usize,
    /// One for each message of the call.
    members: Vec<Publisher>,
    /// The open savepoints in their order, each with what was published before it.
    marks: Vec<Mark>,
}

/// A message of the call, as far as what is published for it depends on it.
#[derive(Debug)]
struct Publisher {
    id: MessageId,
    /// Of a forced replay.
    generation: Option<i64>,
    /// Counts also what was dropped with a savepoint: an id never stands for two messages of a run.
    next_ordinal: u32,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    savepoint: Savepoint,
    count: usize,
    bytes: usize,
}

impl Outbox {
    /// For up to `messages_max` messages on behalf of each of `members`. With a generation, a member's ids are the run's own: a forced
    /// replay.
    pub(super) fn new(members: &[Member<'_>], messages_max: u32) -> Self {
        Self {
            messages_max,
            published: Vec::new(),
            bytes: 0,
            members: members
                .iter()
                .map(|member| Publisher {
                    id: member.message.id.clone(),
                    generation: member.generation,
                    next_ordinal: 0,
                })
                .collect(),
            marks: Vec::new(),
        }
    }

    /// Returns the messages in order, each with the place of the message on whose behalf it was published.
    pub(super) fn into_published(self) -> Vec<(usize, Outgoing)> {
        self.published
    }

    pub(super) fn savepoint_begun(&mut self, savepoint: Savepoint) {
        self.marks.push(Mark {
            savepoint,
            count: self.published.len(),
            bytes: self.bytes,
        });
    }

    pub(super) fn savepoint_released(&mut self, savepoint: Savepoint) {
        self.marks.retain(|mark| mark.savepoint < savepoint);
    }

    /// Drops what was published since the savepoint was begun.
    pub(super) fn savepoint_rolled_back(&mut self, savepoint: Savepoint) {
        if let Some(mark) = self.marks.iter().find(|mark| mark.savepoint == savepoint) {
            self.published.truncate(mark.count);
            self.bytes = mark.bytes;
        }
        self.marks.retain(|mark| mark.savepoint < savepoint);
    }

    fn publish(
        &mut self,
        consumer: &str,
        member: u32,
        targets: &Targets,
        mut message: types::Outgoing,
    ) -> Result<String, SqlError> {
        let members = self.members.len();
        let place = member as usize;
        let Some(publisher) = self.members.get_mut(place) else {
            return Err(SqlError {
                hint: Some("members count from 0".into()),
                ..SqlError::new(
                    "invalid.member",
                    format!("there is no member {member} in a batch of {members}"),
                )
            });
        };
        if publisher.next_ordinal >= self.messages_max {
            return Err(SqlError {
                hint: Some("publish fewer, or raise `limits.outbox`".into()),
                ..SqlError::new(
                    "limit.outbox",
                    format!(
                        "at most {} messages may be published on behalf of one",
                        self.messages_max
                    ),
                )
            });
        }
        if message.subject.is_empty() {
            return Err(SqlError::new("invalid.subject", "the subject is empty"));
        }
        check_text("subject", &message.subject)?;
        if message.target.is_none() {
            message.target.clone_from(&targets.default);
        }
        check_target(message.target.as_deref(), targets)?;
        if let Some(key) = &message.key {
            check_text("key", key)?;
        }
        if let Some(content_type) = &message.content_type {
            check_text("content-type", content_type)?;
        }
        if message.headers.len() > OUTBOX_HEADERS_MAX {
            return Err(SqlError::new(
                "invalid.headers",
                format!("a message may have at most {OUTBOX_HEADERS_MAX} headers"),
            ));
        }
        for header in &message.headers {
            if header.name.is_empty() {
                return Err(SqlError::new("invalid.headers", "a header's name is empty"));
            }
            check_text("headers", &header.name)?;
        }
        if let Some(moment) = &message.not_before
            && (moment.nanoseconds > 999_999_999
                || !(SECONDS_MIN..=SECONDS_MAX).contains(&moment.seconds))
        {
            return Err(SqlError::new(
                "invalid.not-before",
                "`not-before` is not a moment in the years 1 to 9999",
            ));
        }
        let bytes = message.payload.len()
            + message.subject.len()
            + message
                .headers
                .iter()
                .map(|header| header.name.len() + header.value.len())
                .sum::<usize>();
        if self.bytes + bytes > OUTBOX_BYTES_MAX {
            return Err(SqlError::new(
                "limit.outbox",
                format!(
                    "a call may publish at most {}",
                    text::bytes(OUTBOX_BYTES_MAX)
                ),
            ));
        }
        self.bytes += bytes;
        let ordinal = publisher.next_ordinal;
        publisher.next_ordinal += 1;
        let id = outgoing_id(consumer, &publisher.id, ordinal, publisher.generation);
        let outgoing = Outgoing {
            id: id.clone(),
            ordinal,
            target: message.target,
            subject: message.subject,
            key: message.key,
            headers: message
                .headers
                .into_iter()
                .map(|header| Header {
                    name: header.name,
                    value: Bytes::from(header.value),
                })
                .collect(),
            content_type: message.content_type,
            payload: Bytes::from(message.payload),
            not_before: message.not_before.map(|moment| Instant {
                seconds: moment.seconds,
                nanoseconds: moment.nanoseconds,
            }),
        };
        self.published.push((place, outgoing));
        Ok(id)
    }
}

/// Derives the id of a published message: 32 hexadecimal digits.
///
/// *Encoding*: `ShortHash` over `outbox`, the consumer, the message id, the ordinal as 4 bytes, big-endian, and the generation, if
/// there is one, as 8 bytes, big-endian. It must never change.
fn outgoing_id(
    consumer: &str,
    message_id: &MessageId,
    ordinal: u32,
    generation: Option<i64>,
) -> String {
    let (ordinal, generation) = (ordinal.to_be_bytes(), generation.map(i64::to_be_bytes));
    let mut fields: Vec<&[u8]> = vec![
        b"outbox",
        consumer.as_bytes(),
        message_id.as_str().as_bytes(),
        &ordinal,
    ];
    fields.extend(generation.as_ref().map(|bytes| &bytes[..]));
    ShortHash::of(&fields).to_hex()
}

/// Refuses a target that is not configured. Without any configured, all are taken: the rows wait for a configuration.
fn check_target(target: Option<&str>, targets: &Targets) -> Result<(), SqlError> {
    if let Some(target) = target {
        check_text("target", target)?;
    }
    if targets.names.is_empty() || target.is_some_and(|name| targets.names.contains(name)) {
        return Ok(());
    }
    Err(SqlError {
        hint: Some(match target {
            Some(name) => format!("write a table `[targets.{name}]`"),
            None => "name one, or write `target` in the handler's table".to_owned(),
        }),
        ..SqlError::new(
            "invalid.target",
            match target {
                Some(name) => format!("there is no target `{name}`"),
                None => "the message names no target, and the handler has no default".to_owned(),
            },
        )
    })
}

/// Refuses what no broker or database could carry as a name.
fn check_text(field: &str, text: &str) -> Result<(), SqlError> {
    if text.len() > OUTBOX_TEXT_BYTES_MAX {
        return Err(SqlError::new(
            format!("invalid.{field}"),
            format!(
                "`{field}` has {} bytes; at most {OUTBOX_TEXT_BYTES_MAX} are possible",
                text.len()
            ),
        ));
    }
    if text.chars().any(char::is_control) {
        return Err(SqlError::new(
            format!("invalid.{field}"),
            format!("`{field}` holds a control character"),
        ));
    }
    Ok(())
}

impl State {
    async fn publish(
        &mut self,
        name: &'static str,
        member: u32,
        message: types::Outgoing,
    ) -> wasmtime::Result<Result<String, types::Error>> {
        self.reach(name, None).await?;
        let options = &self.options;
        let published = self
            .outbox
            .publish(&options.consumer, member, &options.targets, message);
        self.answer(|_| None, &published);
        Ok(published.map_err(|error| self.refuse(error)))
    }
}

impl outbox::Host for State {
    async fn publish(
        &mut self,
        message: types::Outgoing,
    ) -> wasmtime::Result<Result<String, types::Error>> {
        self.publish("outbox.publish", 0, message).await
    }
}

impl batch_outbox::Host for State {
    async fn publish(
        &mut self,
        member: u32,
        message: types::Outgoing,
    ) -> wasmtime::Result<Result<String, types::Error>> {
        self.publish("batch-outbox.publish", member, message).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES_MAX: u32 = 10;

    fn outbox() -> Outbox {
        of_messages(&["m"])
    }

    fn of_messages(ids: &[&str]) -> Outbox {
        Outbox {
            messages_max: MESSAGES_MAX,
            published: Vec::new(),
            bytes: 0,
            members: ids
                .iter()
                .map(|text| Publisher {
                    id: id(text),
                    generation: None,
                    next_ordinal: 0,
                })
                .collect(),
            marks: Vec::new(),
        }
    }

    fn outgoing(subject: &str, payload: usize) -> types::Outgoing {
        types::Outgoing {
            target: None,
            subject: subject.into(),
            key: None,
            headers: Vec::new(),
            content_type: None,
            payload: vec![0; payload],
            not_before: None,
        }
    }

    fn id(text: &str) -> MessageId {
        MessageId::new(text).unwrap()
    }

    #[test]
    fn ids_are_derived_and_never_change() {
        assert_eq!(
            outgoing_id("credit", &id("m-1"), 0, None),
            ShortHash::of(&[b"outbox", b"credit", b"m-1", &[0, 0, 0, 0]]).to_hex()
        );
        assert_eq!(
            outgoing_id("credit", &id("m-1"), 0, Some(258)),
            ShortHash::of(&[
                b"outbox",
                b"credit",
                b"m-1",
                &[0, 0, 0, 0],
                &[0, 0, 0, 0, 0, 0, 1, 2]
            ])
            .to_hex()
        );
        let mut outbox = outbox();
        let first = outbox
            .publish("c", 0, &Targets::default(), outgoing("a", 0))
            .unwrap();
        let second = outbox
            .publish("c", 0, &Targets::default(), outgoing("a", 0))
            .unwrap();
        assert_ne!(first, second);
        assert_eq!(outbox.published[1].1.ordinal, 1);
    }

    #[test]
    fn ids_in_a_batch_are_those_of_each_message_alone() {
        let mut batch = of_messages(&["a", "b"]);
        let mut publish =
            |member| batch.publish("c", member, &Targets::default(), outgoing("s", 0));
        let (a, b) = (id("a"), id("b"));
        assert_eq!(publish(1).unwrap(), outgoing_id("c", &b, 0, None));
        assert_eq!(publish(0).unwrap(), outgoing_id("c", &a, 0, None));
        assert_eq!(publish(1).unwrap(), outgoing_id("c", &b, 1, None));
        assert_eq!(publish(2).unwrap_err().code, "invalid.member");
        let order: Vec<usize> = batch.published.iter().map(|(place, _)| *place).collect();
        assert_eq!(order, [1, 0, 1]);
    }

    #[test]
    fn what_cannot_be_published_is_refused_by_name() {
        let mut outbox = outbox();
        let mut refused = |message| {
            outbox
                .publish("c", 0, &Targets::default(), message)
                .unwrap_err()
                .code
        };
        assert_eq!(refused(outgoing("", 0)), "invalid.subject");
        assert_eq!(refused(outgoing("a\0b", 0)), "invalid.subject");
        assert_eq!(refused(outgoing(&"a".repeat(2000), 0)), "invalid.subject");
        let mut message = outgoing("a", 0);
        message.not_before = Some(types::Instant {
            seconds: i64::MAX,
            nanoseconds: 0,
        });
        assert_eq!(refused(message), "invalid.not-before");
        let mut message = outgoing("a", 0);
        message.headers = vec![
            types::Header {
                name: "h".into(),
                value: Vec::new()
            };
            OUTBOX_HEADERS_MAX + 1
        ];
        assert_eq!(refused(message), "invalid.headers");
        assert_eq!(refused(outgoing("a", OUTBOX_BYTES_MAX + 1)), "limit.outbox");
        assert!(outbox.published.is_empty());
    }

    #[test]
    fn only_configured_targets_are_taken() {
        let mut targets = Targets {
            names: ["here".to_owned()].into(),
            default: None,
        };
        let mut outbox = outbox();
        let mut publish = |targets: &Targets, target: Option<&str>| {
            let mut message = outgoing("a", 0);
            message.target = target.map(str::to_owned);
            outbox.publish("c", 0, targets, message)
        };
        publish(&targets, Some("here")).unwrap();
        let error = publish(&targets, Some("there")).unwrap_err();
        assert_eq!(error.code, "invalid.target");
        assert_eq!(error.message, "there is no target `there`");
        assert_eq!(publish(&targets, None).unwrap_err().code, "invalid.target");
        targets.default = Some("here".to_owned());
        publish(&targets, None).unwrap();
        assert_eq!(outbox.published.len(), 2);
        assert_eq!(outbox.published[1].1.target.as_deref(), Some("here"));
    }

    #[test]
    fn count_and_bytes_are_bounded() {
        let mut outbox = outbox();
        for _ in 0..MESSAGES_MAX {
            outbox
                .publish("c", 0, &Targets::default(), outgoing("a", 1))
                .unwrap();
        }
        let error = outbox
            .publish("c", 0, &Targets::default(), outgoing("a", 1))
            .unwrap_err();
        assert_eq!(error.code, "limit.outbox");
    }

    #[test]
    fn what_was_published_since_a_savepoint_goes_with_it() {
        let mut outbox = outbox();
        let publish = |outbox: &mut Outbox| {
            outbox
                .publish("c", 0, &Targets::default(), outgoing("a", 1 << 20))
                .unwrap()
        };
        let first = publish(&mut outbox);
        outbox.savepoint_begun(Savepoint(1));
        publish(&mut outbox);
        outbox.savepoint_begun(Savepoint(2));
        publish(&mut outbox);
        // Kept in the outer one, and gone with it.
        outbox.savepoint_released(Savepoint(2));
        assert_eq!(outbox.published.len(), 3);
        outbox.savepoint_rolled_back(Savepoint(1));
        assert_eq!(outbox.bytes, (1 << 20) + 1);
        // One that has ended changes nothing.
        outbox.savepoint_rolled_back(Savepoint(2));
        let last = publish(&mut outbox);
        let kept: Vec<_> = outbox
            .into_published()
            .into_iter()
            .map(|(_, outgoing)| (outgoing.id, outgoing.ordinal))
            .collect();
        assert_eq!(kept, [(first, 0), (last, 3)]);
    }
}
