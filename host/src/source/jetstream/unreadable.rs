//! Messages whose headers the client cannot read.
//!
//! The client drops its connection at headers that are not UTF-8 or not as it expects them, and never shows such a message: the
//! server would deliver it again and again, and each time what is on its way beside it is lost. The stream's interface
//! gives a message's headers as they are, in base64. So after connections were lost in the middle of deliveries, what is delivered and not
//! answered is looked at there, and what the client cannot read is taken from there.
//!
//! **Invariant**: a message that is taken from here looks the same each time.

use std::str::FromStr as _;

use async_nats::Subject;
use async_nats::header::HeaderName;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::stream::RawMessage;
use bytes::Bytes;
use serde_json::json;

use super::connect::Link;
use super::durable;
use super::fetch::Arrived;
use super::{JetStreamOptions, hand::Hand};
use crate::message::{Header, Instant};
use crate::source::SourceError;
use crate::store::from_base64;

/// The most messages that are looked at, from the first that is not answered.
const LOOK_MAX: u64 = 10_000;
/// The first line of headers.
const VERSION: &[u8] = b"NATS/1.0";

#[derive(serde::Deserialize)]
struct Found {
    message: RawMessage,
}

/// A message as the stream keeps it.
pub(super) struct Stored {
    pub(super) subject: String,
    pub(super) raw_headers: Option<Vec<u8>>,
    pub(super) payload: Bytes,
    pub(super) published: Instant,
    published_nanoseconds: i128,
}

/// Returns the stream's message with that number, if it still keeps it.
pub(super) async fn stored(
    link: &Link,
    stream: &str,
    sequence: u64,
) -> Result<Option<Stored>, SourceError> {
    let subject = format!("STREAM.MSG.GET.{stream}");
    let message = match link
        .ask::<Found>(&subject, &json!({ "seq": sequence }))
        .await?
    {
        Ok(Found { message }) => message,
        Err(error) if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => return Ok(None),
        Err(error) => {
            return Err(link.refused(
                &format!("reading message {sequence} of stream `{stream}`"),
                &error,
            ));
        }
    };
    let Some(payload) = from_base64(&message.payload) else {
        return Err(SourceError::Unavailable(format!(
            "message {sequence} of stream `{stream}` came without a payload that can be read"
        )));
    };
    Ok(Some(Stored {
        raw_headers: message.headers.as_deref().and_then(from_base64),
        payload: Bytes::from(payload),
        published: Instant {
            seconds: message.time.unix_timestamp(),
            nanoseconds: message.time.microsecond() * 1000,
        },
        published_nanoseconds: message.time.unix_timestamp_nanos(),
        subject: message.subject,
    }))
}

/// Returns when the stream's first message from number `first` on was published whose subject `filter` lets pass.
pub(super) async fn next(
    link: &Link,
    stream: &str,
    first: u64,
    filter: &str,
) -> Result<Option<Instant>, SourceError> {
    /// Only what is asked for: the payload may have megabytes.
    #[derive(serde::Deserialize)]
    struct Published {
        message: PublishedAt,
    }
    #[derive(serde::Deserialize)]
    struct PublishedAt {
        #[serde(with = "time::serde::rfc3339")]
        time: time::OffsetDateTime,
    }
    let subject = format!("STREAM.MSG.GET.{stream}");
    let body = json!({ "seq": first, "next_by_subj": filter });
    match link.ask::<Published>(&subject, &body).await? {
        Ok(Published { message }) => Ok(Some(Instant {
            seconds: message.time.unix_timestamp(),
            nanoseconds: message.time.nanosecond(),
        })),
        Err(error) if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => Ok(None),
        Err(error) => Err(link.refused(
            &format!("looking for the oldest message of stream `{stream}`"),
            &error,
        )),
    }
}

/// Returns the messages that are delivered, not answered, not in hand here, and that the client cannot read.
pub(super) async fn find(
    link: &Link,
    options: &JetStreamOptions,
    hand: &Hand,
) -> Result<Vec<Arrived>, SourceError> {
    let Some(info) = durable::info(link, options).await? else {
        return Ok(Vec::new());
    };
    if info.num_ack_pending == 0 {
        return Ok(Vec::new());
    }
    let first = info.ack_floor.stream_sequence.saturating_add(1);
    let last = info
        .delivered
        .stream_sequence
        .min(first.saturating_add(LOOK_MAX));
    let in_hand = hand.stream_sequences();
    let mut found = Vec::new();
    for sequence in (first..=last).filter(|sequence| !in_hand.contains(sequence)) {
        let Some(message) = stored(link, &options.stream, sequence).await? else {
            continue;
        };
        let Some(raw) = message.raw_headers else {
            continue;
        };
        if is_readable(&raw) {
            continue;
        }
        // Only the stream's sequence counts in an answer; the rest has to be possible.
        let reply = format!(
            "$JS.ACK.{}.{}.3.{sequence}.{}.{}.0",
            options.stream,
            options.consumer,
            info.delivered.consumer_sequence,
            message.published_nanoseconds,
        );
        tracing::warn!(
            stream = %options.stream,
            consumer = %options.consumer,
            sequence,
            "took a message with unreadable headers from the stream: they are not UTF-8, or damaged"
        );
        found.push(Arrived {
            subject: message.subject,
            headers: parse(&raw),
            payload: message.payload,
            published: message.published,
            reply: Subject::from(reply),
            // How often it was is not known, and what cuts connections may do more: it runs alone.
            delivered: 3,
            stream_sequence: sequence,
            consumer_sequence: info.delivered.consumer_sequence,
        });
    }
    Ok(found)
}

/// True if the client reads headers that are written like this.
fn is_readable(raw: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(raw) else {
        return false;
    };
    let mut lines = text.lines().peekable();
    // A status that is none ends the connection, too.
    let Some(rest) = lines.next().and_then(|line| line.strip_prefix("NATS/1.0")) else {
        return false;
    };
    let status = rest.trim().split(' ').next().unwrap_or_default();
    if !status.is_empty() && status.parse::<async_nats::StatusCode>().is_err() {
        return false;
    }
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        match line.split_once(':') {
            Some((name, _)) if HeaderName::from_str(name).is_ok() => {}
            _ => return false,
        }
        while lines
            .next_if(|line| line.starts_with(char::is_whitespace))
            .is_some()
        {}
    }
    true
}

/// Reads headers of any bytes. Names that are no UTF-8 are read with replacements; a line without a colon is a name without
/// value. The order is that of readable messages: by name, and of one name as they stand.
pub(super) fn parse(raw: &[u8]) -> Vec<Header> {
    let mut headers: Vec<(String, Vec<u8>)> = Vec::new();
    let body = raw.strip_prefix(VERSION).unwrap_or(raw);
    let mut lines = body
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    // The rest of the first line is a status.
    lines.next();
    for line in lines {
        if line.is_empty() {
            continue;
        }
        if line[0].is_ascii_whitespace()
            && let Some((_, value)) = headers.last_mut()
        {
            value.extend_from_slice(line);
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        headers.push((
            String::from_utf8_lossy(name).into_owned(),
            value.trim_ascii_start().to_vec(),
        ));
    }
    let mut headers: Vec<Header> = headers
        .into_iter()
        .map(|(name, value)| Header {
            name,
            value: Bytes::copy_from_slice(value.trim_ascii_end()),
        })
        .collect();
    headers.sort_by_cached_key(|header| (header.name.to_ascii_lowercase(), header.name.clone()));
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_client_cannot_read_is_known() {
        let table: [(&[u8], bool); 10] = [
            (b"NATS/1.0\r\nA: b\r\n\r\n", true),
            (b"NATS/1.0\r\nA: b\r\n c\r\n\r\n", true),
            (b"NATS/1.0 404 No Messages\r\n\r\n", true),
            ("NATS/1.0\r\nA: \u{e9}\r\n\r\n".as_bytes(), true),
            (b"NATS/1.0\r\nA: \xff\r\n\r\n", false),
            (b"NATS/1.0\r\n\xff: b\r\n\r\n", false),
            (b"NATS/1.0\r\nA b: c\r\n\r\n", false),
            (b"NATS/1.0\r\nno colon\r\n\r\n", false),
            (b"NATS/1.0 none\r\n\r\n", false),
            (b"", false),
        ];
        for (raw, readable) in table {
            assert_eq!(is_readable(raw), readable, "{}", raw.escape_ascii());
        }
    }

    #[test]
    fn any_bytes_are_headers() {
        let headers =
            parse(b"NATS/1.0\r\nb: \xff\xfe \r\n x\r\nA:1\r\n\xff: 2\r\nno colon\r\nA:0\r\n\r\n");
        let shown: Vec<String> = headers
            .iter()
            .map(|header| format!("{}={}", header.name, header.value.escape_ascii()))
            .collect();
        assert_eq!(
            shown,
            ["A=1", "A=0", "b=\\xff\\xfe  x", "no colon=", "\u{fffd}=2"]
        );
        assert!(parse(b"").is_empty());
    }
}
