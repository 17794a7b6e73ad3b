//! Where a message's id stands: a list of places, of which the first that holds a usable id counts.
//!
//! **Invariant**: an id is never guessed. A value that is ambiguous, damaged or of the wrong type is no id.
//! **Invariant**: the same message gives the same id in every delivery, on every host, in every version.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::message::{Incoming, MessageId};

/// The places, for error messages.
const PLACES: &str =
    "`header:NAME`, `header:A+B`, `json:/pointer`, `stream-sequence` and `queue:id`";

/// One place for an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdPlace {
    /// `header:NAME`, or `header:A+B` for several headers that make the id together.
    ///
    /// Names are compared without regard to ASCII case. A header that occurs twice with different values is no id.
    /// *Encoding* of several: each value but the last has its length in bytes and a colon before it and a colon after
    /// it, so that no two different lists of values give one id: `/orders` and `42` give `7:/orders:42`.
    Headers(Vec<String>),
    /// `json:/pointer`: a JSON pointer (RFC 6901) into the payload, to a string or an integer.
    ///
    /// An integer counts as it is written, so `json:/id` finds one id in `{"id": 1}` and `{"id": "1"}`. Numbers with a
    /// fraction or an exponent are no ids. Of a member that occurs twice the last one counts.
    JsonPointer(String),
    /// `stream-sequence`: the stream's name and creation time and the message's sequence number in it.
    StreamSequence,
    /// `queue:id`: the id that was given when the message was put into the embedded queue.
    QueueId,
}

impl fmt::Display for IdPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Headers(names) => write!(f, "header:{}", names.join("+")),
            Self::JsonPointer(pointer) => write!(f, "json:{pointer}"),
            Self::StreamSequence => f.write_str("stream-sequence"),
            Self::QueueId => f.write_str("queue:id"),
        }
    }
}

impl IdPlace {
    /// Reads a place as it stands in the configuration.
    ///
    /// # Errors
    /// What is wrong with it and what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(names) = text.strip_prefix("header:") {
            let names: Vec<String> = names.split('+').map(str::to_owned).collect();
            for name in &names {
                if name.is_empty() {
                    return Err(format!(
                        "`{text}` names an empty header; write `header:NAME`, or `header:A+B` for two that make the \
                         id together"
                    ));
                }
                if let Some(odd) = name
                    .chars()
                    .find(|c| !c.is_ascii_graphic() || matches!(c, ':'))
                {
                    return Err(format!(
                        "`{text}`: a header's name cannot contain {odd:?}; write it as the sender does, such as \
                         `header:Nats-Msg-Id`"
                    ));
                }
            }
            let mut lower: Vec<String> =
                names.iter().map(|name| name.to_ascii_lowercase()).collect();
            lower.sort();
            if lower.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(format!("`{text}` names a header twice; name each once"));
            }
            return Ok(Self::Headers(names));
        }
        if let Some(pointer) = text.strip_prefix("json:") {
            if !pointer.is_empty() && !pointer.starts_with('/') {
                return Err(format!(
                    "`{text}`: a JSON pointer starts with `/`; write `json:/{pointer}`"
                ));
            }
            if pointer
                .split('~')
                .skip(1)
                .any(|rest| !rest.starts_with(['0', '1']))
            {
                return Err(format!(
                    "`{text}`: in a JSON pointer `~` is written `~0`, and a `/` within a name `~1`"
                ));
            }
            return Ok(Self::JsonPointer(pointer.to_owned()));
        }
        match text {
            "stream-sequence" => Ok(Self::StreamSequence),
            "queue:id" => Ok(Self::QueueId),
            _ => Err(format!(
                "`{text}` is no place for a message id; the places are {PLACES}"
            )),
        }
    }

    /// Looks for an id here; says what was found instead.
    fn look(&self, incoming: &Incoming) -> Result<MessageId, String> {
        match self {
            Self::Headers(names) => {
                let values = names
                    .iter()
                    .map(|name| header_value(incoming, name).map_err(|found| (name, found)))
                    .collect::<Result<Vec<&str>, (&String, String)>>()
                    .map_err(|(name, found)| match names.len() {
                        1 => found,
                        _ => format!("`{name}` {found}"),
                    })?;
                usable(join(&values))
            }
            Self::JsonPointer(pointer) => usable(json_value(&incoming.payload, pointer)?),
            Self::StreamSequence => {
                // Only streams have positions with the stream's name before an `@`.
                if incoming.position.0.contains('@') {
                    usable(incoming.position.0.clone())
                } else {
                    Err("the source is not a stream".into())
                }
            }
            Self::QueueId => match &incoming.queue_id {
                Some(id) => usable(id.clone()),
                None => Err("absent".into()),
            },
        }
    }
}

/// Where a message's key stands: messages of one key run in the source's order (`order_by`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPlace(IdPlace);

impl KeyPlace {
    /// Reads the place as it stands in the configuration: `header:NAME`, `header:A+B` or `json:/pointer`.
    ///
    /// # Errors
    /// What is wrong with it and what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !["header:", "json:", "stream-sequence", "queue:id"]
            .iter()
            .any(|known| text.starts_with(known))
        {
            return Err(format!("`{text}` is no place for a key"));
        }
        match IdPlace::parse(text)? {
            place @ (IdPlace::Headers(_) | IdPlace::JsonPointer(_)) => Ok(Self(place)),
            // Each message has one of its own, so nothing would be put in order.
            IdPlace::StreamSequence | IdPlace::QueueId => Err(format!(
                "`{text}` differs from message to message, so no two would have a key in common"
            )),
        }
    }

    /// Returns the key of `incoming`: 1 to 1,024 bytes, without NUL. `None` if the place holds none that can be used; the
    /// rules are those of message ids.
    pub fn find(&self, incoming: &Incoming) -> Option<String> {
        self.0.look(incoming).ok().map(MessageId::into_text)
    }
}

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The places of a handler, in the order in which they are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdPlaces(Vec<IdPlace>);

impl IdPlaces {
    /// Reads the places as they stand in the configuration.
    ///
    /// # Errors
    /// What is wrong with the first one that is wrong, and what to write instead.
    pub fn parse(places: &[String]) -> Result<Self, String> {
        if places.is_empty() {
            return Err(format!(
                "no place for a message id is named; the places are {PLACES}"
            ));
        }
        let places = places
            .iter()
            .map(|place| IdPlace::parse(place))
            .collect::<Result<Vec<_>, _>>()?;
        for (index, place) in places.iter().enumerate() {
            if places[..index].contains(place) {
                return Err(format!("`{place}` is named twice; name each place once"));
            }
        }
        Ok(Self(places))
    }

    /// Returns the places, in their order.
    pub fn places(&self) -> &[IdPlace] {
        &self.0
    }

    /// True if every message of a stream has an id by its place in the stream.
    pub fn has_stream_sequence(&self) -> bool {
        self.0.contains(&IdPlace::StreamSequence)
    }

    /// Returns the id of `incoming`: that of the first place that holds a usable one.
    ///
    /// # Errors
    /// No place holds one: lists the places that were looked at and what was found there, for the dead letter
    /// `missing-id`. The text holds nothing of the message but lengths and types.
    pub fn find(&self, incoming: &Incoming) -> Result<MessageId, String> {
        let mut found = Vec::with_capacity(self.0.len());
        for place in &self.0 {
            match place.look(incoming) {
                Ok(id) => return Ok(id),
                Err(instead) => found.push(format!("`{place}`: {instead}")),
            }
        }
        Err(format!("no usable message id: {}", found.join("; ")))
    }
}

impl fmt::Display for IdPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, place) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{place}")?;
        }
        Ok(())
    }
}

fn usable(id: String) -> Result<MessageId, String> {
    MessageId::new(id)
}

/// Joins the values of several headers so that no two different lists give the same text.
fn join(values: &[&str]) -> String {
    let Some((last, others)) = values.split_last() else {
        return String::new();
    };
    let mut joined = String::new();
    for value in others {
        // An empty part is as useless as an empty id, and is refused before.
        joined.push_str(&format!("{}:{value}:", value.len()));
    }
    joined.push_str(last);
    joined
}

fn header_value<'a>(incoming: &'a Incoming, name: &str) -> Result<&'a str, String> {
    let mut values = incoming
        .headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case(name))
        .map(|header| &header.value);
    let first = values.next().ok_or("absent")?;
    if values.any(|other| other != first) {
        return Err("occurs more than once, with different values".into());
    }
    if first.is_empty() {
        return Err("empty".into());
    }
    std::str::from_utf8(first).map_err(|_| format!("not UTF-8 ({} bytes)", first.len()))
}

fn json_value(payload: &[u8], pointer: &str) -> Result<String, String> {
    let tokens: Vec<String> = pointer
        .split('/')
        .skip(1)
        .map(|token| token.replace("~1", "/").replace("~0", "~"))
        .collect();
    let mut deserializer = serde_json::Deserializer::from_slice(payload);
    let found = Seek(&tokens)
        .deserialize(&mut deserializer)
        .and_then(|found| deserializer.end().map(|()| found))
        // The parser's own words may hold parts of the payload.
        .map_err(|err| match payload.len() {
            0 => "the payload is empty".to_owned(),
            _ => format!(
                "the payload is not JSON (line {}, column {})",
                err.line(),
                err.column()
            ),
        })?
        .ok_or("absent")?;
    let text = found.get();
    match text.as_bytes().first() {
        Some(b'"') => {
            serde_json::from_str(text).map_err(|_| "a string that is not Unicode text".to_owned())
        }
        Some(b'-' | b'0'..=b'9') if text.bytes().all(|b| b == b'-' || b.is_ascii_digit()) => {
            Ok(text.to_owned())
        }
        Some(b'-' | b'0'..=b'9') => Err("a number with a fraction or an exponent".into()),
        Some(b'{') => Err("an object, not a string or an integer".into()),
        Some(b'[') => Err("an array, not a string or an integer".into()),
        Some(b'n') => Err("null".into()),
        _ => Err("a boolean, not a string or an integer".into()),
    }
}

/// Walks a JSON text to the value that the remaining tokens of a pointer name, in one pass.
struct Seek<'p>(&'p [String]);

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: serde::Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() {
            return <&RawValue as serde::Deserialize>::deserialize(deserializer).map(Some);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (token, rest) = self
            .0
            .split_first()
            .ok_or_else(|| A::Error::custom("bug"))?;
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == *token {
                found = map.next_value_seed(Seek(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let (token, rest) = self
            .0
            .split_first()
            .ok_or_else(|| A::Error::custom("bug"))?;
        // RFC 6901, section 4: no leading zeros; `-` means the element after the last, which does not exist.
        let index = match token.as_bytes() {
            [b'0'] => Some(0),
            [b'1'..=b'9', ..] if token.bytes().all(|b| b.is_ascii_digit()) => {
                token.parse::<usize>().ok()
            }
            _ => None,
        };
        let mut found = None;
        let mut position = 0_usize;
        loop {
            if index == Some(position) {
                match seq.next_element_seed(Seek(rest))? {
                    Some(value) => found = value,
                    None => return Ok(found),
                }
            } else if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(found);
            }
            position += 1;
        }
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
