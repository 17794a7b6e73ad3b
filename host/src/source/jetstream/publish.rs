//! Publishing: into one stream for `hapax send`, with many messages under way, and to any subject for the relay. Each message is
//! confirmed by the server.

use std::collections::VecDeque;
use std::fmt;

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue, NATS_MESSAGE_ID};
use async_nats::jetstream::context::{GetStreamByNameErrorKind, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use bytes::Bytes;
use futures_util::FutureExt as _;

use super::connect::{self, Link, covers};
use crate::message::Header;
use crate::source::{BoxFuture, SourceError};

/// How many messages may be sent and not confirmed.
const UNCONFIRMED_MAX: usize = 256;

/// Where to publish.
#[derive(Clone, PartialEq, Eq)]
pub struct PublisherOptions {
    /// `nats://host:port`, several separated by commas; may hold `user:password@` or `token@`.
    pub url: String,
    /// Who asks, and how the server's certificate is checked.
    pub access: super::Access,
    /// The stream's name.
    pub stream: String,
    /// The subjects of a stream that is created.
    pub subjects: Vec<String>,
    /// Create the stream if it is missing.
    pub create: bool,
}

impl fmt::Debug for PublisherOptions {
    /// Shows the URL without its credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublisherOptions")
            .field("url", &connect::shown_url(&self.url))
            .field("stream", &self.stream)
            .field("subjects", &self.subjects)
            .field("create", &self.create)
            .finish()
    }
}

/// A message to publish.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NewMessage {
    /// Goes into the header `Nats-Msg-Id`, by which the server drops what it got a short while ago.
    pub id: Option<String>,
    /// Where it goes; one that the stream takes, without wildcards.
    pub subject: String,
    /// UTF-8 without line breaks; NATS keeps no white space around them and no order between different names.
    pub headers: Vec<Header>,
    /// Any bytes.
    pub payload: Bytes,
}

/// A message of which is known that the stream takes its subject and NATS its headers.
#[derive(Debug)]
pub struct Prepared {
    subject: String,
    publish: PublishMessage,
}

/// Publishes into one stream, in order.
pub struct JetStreamPublisher {
    link: Link,
    stream: String,
    subjects: Vec<String>,
    unconfirmed: VecDeque<BoxFuture<'static, Result<PublishAck, PublishError>>>,
    sent: u64,
    duplicates: u64,
}

impl JetStreamPublisher {
    /// Connects, and makes the stream if it is missing and the options say so.
    ///
    /// # Errors
    /// As `JetStream::connect`.
    pub async fn connect(options: &PublisherOptions) -> Result<Self, SourceError> {
        connect::check_name("stream", &options.stream)?;
        let link = Link::connect(&options.url, &options.access, "hapax send").await?;
        let info = link
            .stream(&options.stream, &options.subjects, options.create)
            .await?;
        Ok(Self {
            link,
            stream: options.stream.clone(),
            subjects: info.config.subjects,
            unconfirmed: VecDeque::new(),
            sent: 0,
            duplicates: 0,
        })
    }

    /// Returns the subjects that the stream takes.
    pub fn subjects(&self) -> &[String] {
        &self.subjects
    }

    /// Prepares a message and sends it.
    ///
    /// # Errors
    /// As `prepare` and `send`.
    pub async fn publish(&mut self, message: NewMessage) -> Result<(), SourceError> {
        let prepared = self.prepare(message)?;
        self.send(prepared).await
    }

    /// Sends a message; waits for confirmations only if many are missing. Call `finish` after the last.
    ///
    /// # Errors
    /// `Unusable`: the server did not store this message, or one before it. `Unavailable`: the connection was lost; what
    /// is not in `confirmed` may be stored or not, and sending it again under the same id is harmless.
    pub async fn send(&mut self, message: Prepared) -> Result<(), SourceError> {
        let Prepared { subject, publish } = message;
        while self.unconfirmed.len() >= UNCONFIRMED_MAX {
            self.confirm_one().await?;
        }
        let ack = self
            .link
            .context
            .send_publish(subject, publish)
            .await
            .map_err(|error| self.failed(&error))?;
        self.unconfirmed.push_back(ack.into_future());
        // Counts what is confirmed already, so that progress can be shown.
        while let Some(front) = self.unconfirmed.front_mut() {
            let Some(result) = front.now_or_never() else {
                break;
            };
            self.unconfirmed.pop_front();
            self.count(result)?;
        }
        Ok(())
    }

    /// Waits until everything is confirmed.
    ///
    /// # Errors
    /// As `publish`.
    pub async fn finish(&mut self) -> Result<(), SourceError> {
        while !self.unconfirmed.is_empty() {
            self.confirm_one().await?;
        }
        Ok(())
    }

    /// Returns how many messages the server has confirmed, and how many of these it dropped as duplicates.
    pub fn confirmed(&self) -> (u64, u64) {
        (self.sent, self.duplicates)
    }

    /// Cancellation: may be dropped; the confirmation stays in its place.
    async fn confirm_one(&mut self) -> Result<(), SourceError> {
        let Some(front) = self.unconfirmed.front_mut() else {
            return Ok(());
        };
        let result = front.await;
        self.unconfirmed.pop_front();
        self.count(result)
    }

    fn count(&mut self, result: Result<PublishAck, PublishError>) -> Result<(), SourceError> {
        let ack = result.map_err(|error| self.failed(&error))?;
        self.sent += 1;
        if ack.duplicate {
            self.duplicates += 1;
        }
        Ok(())
    }

    /// Checks a message without sending it.
    ///
    /// # Errors
    /// `Unusable`: the stream does not take its subject, or NATS not its headers or its id.
    pub fn prepare(&self, message: NewMessage) -> Result<Prepared, SourceError> {
        let subject = &message.subject;
        check_subject(subject)?;
        if !self.subjects.iter().any(|taken| covers(taken, subject)) {
            let taken: Vec<String> = self.subjects.iter().map(|s| format!("`{s}`")).collect();
            return Err(SourceError::Unusable(format!(
                "stream `{}` does not take subject `{subject}`\nhint: its subjects are {}",
                self.stream,
                taken.join(", ")
            )));
        }
        let subject = message.subject.clone();
        Ok(Prepared {
            publish: to_publish(&message)?,
            subject,
        })
    }

    fn failed(&self, error: &PublishError) -> SourceError {
        let stream = &self.stream;
        match error.kind() {
            PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe => {
                SourceError::Unavailable(format!(
                    "stream `{stream}` did not confirm a message in time; it may be stored or not, and sending it again \
                 under the same id is harmless"
                ))
            }
            PublishErrorKind::StreamNotFound => SourceError::Unavailable(format!(
                "nothing takes messages for stream `{stream}` now; it may have been deleted, or JetStream is starting"
            )),
            PublishErrorKind::MaxPayloadExceeded => SourceError::Unusable(format!(
                "a message is larger than the {} bytes that the server takes\nhint: raise `max_payload` of the server, \
                 or send less",
                self.link.client.max_payload()
            )),
            _ => SourceError::Unusable(format!(
                "stream `{stream}` did not store a message: {error}"
            )),
        }
    }
}

/// Publishes to subjects of any stream, one confirmed message at a time; any number of calls may be under way.
#[derive(Clone)]
pub struct SubjectPublisher {
    link: Link,
}

/// Why a message was not confirmed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishFailure {
    /// The server can't be reached or did not answer: the message may be stored or not. It is not the message's fault.
    #[error("{0}")]
    Unavailable(String),
    /// The server did not store it, or did not say that it did, and may do so later: no stream takes the subject, it is full, this user may
    /// not publish to it.
    #[error("{0}")]
    NotStored(String),
    /// It can never be published as it is.
    #[error("{0}")]
    Refused(String),
}

impl SubjectPublisher {
    /// Connects; a connection that is lost is made again by itself.
    ///
    /// # Errors
    /// As `JetStream::connect`.
    pub async fn connect(
        url: &str,
        access: &super::Access,
        name: &str,
    ) -> Result<Self, SourceError> {
        let link = Link::connect(url, access, name).await?;
        Ok(Self { link })
    }

    /// True if the connection stands, as far as is known.
    pub fn is_connected(&self) -> bool {
        self.link.is_connected()
    }

    /// Publishes a message and waits for the confirmation. Returns whether the server had it already, by its id.
    ///
    /// A message that is not confirmed in time may be sent twice.
    ///
    /// # Errors
    /// As `PublishFailure` says.
    pub async fn publish(&self, message: NewMessage) -> Result<bool, PublishFailure> {
        check_subject(&message.subject).map_err(refused)?;
        let subject = &message.subject;
        for is_last in [false, true] {
            if let Some(is_known) = self.publish_once(&message).await? {
                return Ok(is_known);
            }
            if !self.is_connected() {
                break;
            }
            match self.link.context.stream_by_subject(subject.clone()).await {
                // Where somebody listens, the server does not say by itself that no stream does.
                Err(error) if error.kind() == GetStreamByNameErrorKind::NotFound => {
                    return Err(PublishFailure::NotStored(no_stream(subject)));
                }
                // It did answer before the second try: it is the matter of this subject alone.
                Ok(stream) if is_last => {
                    return Err(PublishFailure::NotStored(format!(
                        "subject `{subject}`: stream `{stream}` did not confirm the message in time; it may be stored or not"
                    )));
                }
                // It may have been away until now.
                Ok(_) => {}
                Err(_) => break,
            }
        }
        Err(PublishFailure::Unavailable(self.unconfirmed()))
    }

    /// `None`: it was not confirmed in time.
    async fn publish_once(&self, message: &NewMessage) -> Result<Option<bool>, PublishFailure> {
        let subject = &message.subject;
        let publish = to_publish(message).map_err(refused)?;
        // Before the message is on its way.
        let mut denied = self.link.denied();
        let confirmed = async {
            self.link
                .context
                .send_publish(subject.clone(), publish)
                .await?
                .await
        };
        let confirmed = tokio::select! {
            confirmed = confirmed => confirmed,
            // The confirmation will never come.
            () = denied.heard(subject) => {
                return Err(PublishFailure::NotStored(format!(
                    "the server does not let this user publish to subject `{subject}`"
                )));
            }
        };
        let error = match confirmed {
            Ok(ack) => return Ok(Some(ack.duplicate)),
            Err(error) => error,
        };
        match error.kind() {
            PublishErrorKind::TimedOut => Ok(None),
            PublishErrorKind::BrokenPipe => Err(PublishFailure::Unavailable(self.unconfirmed())),
            PublishErrorKind::StreamNotFound => Err(PublishFailure::NotStored(no_stream(subject))),
            PublishErrorKind::MaxPayloadExceeded => Err(PublishFailure::Refused(format!(
                "its {} bytes are more than the {} that the server takes",
                message.payload.len(),
                self.link.client.max_payload()
            ))),
            _ => Err(PublishFailure::NotStored(format!(
                "subject `{subject}`: {error}"
            ))),
        }
    }

    fn unconfirmed(&self) -> String {
        format!(
            "`{}` did not confirm a message in time",
            self.link.shown_url
        )
    }
}

fn refused(error: SourceError) -> PublishFailure {
    PublishFailure::Refused(error.to_string())
}

fn no_stream(subject: &str) -> String {
    format!("no stream takes subject `{subject}`")
}

/// Checks that a subject is one, and no pattern.
fn check_subject(subject: &str) -> Result<(), SourceError> {
    connect::check_filter(subject)?;
    if subject.split('.').any(|token| token == "*" || token == ">") {
        return Err(SourceError::Unusable(format!(
            "`{subject}` is a pattern; a message needs one subject\nhint: put words in place of `*` and `>`"
        )));
    }
    Ok(())
}

/// Puts a message into the client's form.
fn to_publish(message: &NewMessage) -> Result<PublishMessage, SourceError> {
    let mut headers = HeaderMap::new();
    for header in &message.headers {
        headers.append(
            header_name(&header.name)?,
            header_value(&header.name, &header.value)?,
        );
    }
    if let Some(id) = &message.id {
        let value = header_value("Nats-Msg-Id", id.as_bytes())?;
        if id.is_empty() {
            return Err(SourceError::Unusable("the message's id is empty".into()));
        }
        headers.insert(NATS_MESSAGE_ID, value);
    }
    let publish = PublishMessage::build().payload(message.payload.clone());
    Ok(if headers.is_empty() {
        publish
    } else {
        publish.headers(headers)
    })
}

fn header_name(name: &str) -> Result<HeaderName, SourceError> {
    let refused = || {
        SourceError::Unusable(format!(
            "`{name}` is no header's name\nhint: use visible ASCII characters but `:`"
        ))
    };
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_graphic() && b != b':') {
        return Err(refused());
    }
    name.parse().map_err(|_| refused())
}

fn header_value(name: &str, value: &[u8]) -> Result<HeaderValue, SourceError> {
    let refused = |problem: &str| {
        SourceError::Unusable(format!(
            "header `{name}`: its value {problem}\nhint: NATS keeps UTF-8 text on one line, without white space around it"
        ))
    };
    let text = std::str::from_utf8(value).map_err(|_| refused("is not UTF-8"))?;
    if text.trim() != text {
        return Err(refused("has white space around it"));
    }
    text.parse().map_err(|_| refused("contains a line break"))
}
