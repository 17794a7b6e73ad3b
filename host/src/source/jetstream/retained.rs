//! A look at what a stream still keeps, and how far its durable is, without changing either.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use futures_util::StreamExt as _;

use super::connect::Link;
use super::durable::{self, position_prefix};
use super::fetch::headers;
use super::{JetStreamOptions, connect};
use crate::message::{Incoming, Instant, Position};
use crate::source::SourceError;

/// A consumer of ours that nobody asks for this long is gone.
const LOOK_ENDS_AFTER: Duration = Duration::from_secs(30);
/// How long a message that is there may take.
const PULL_EXPIRES: Duration = Duration::from_secs(5);
/// Messages of one pull.
const PULL_MAX: usize = 500;

/// A message that the stream keeps.
#[derive(Clone, Debug)]
pub struct Retained {
    /// Its number in the stream.
    pub sequence: u64,
    /// The message.
    pub incoming: Incoming,
}

/// How far a durable is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The stream's name and creation time, as in positions.
    pub stream: String,
    /// Up to this number of the stream everything was answered.
    pub sequence: u64,
}

/// A connection for looking.
pub struct RetainedStream {
    pub(super) options: JetStreamOptions,
    pub(super) link: Link,
}

impl RetainedStream {
    /// Connects.
    ///
    /// # Errors
    /// As `JetStream::connect`.
    pub async fn connect(options: &JetStreamOptions) -> Result<Self, SourceError> {
        connect::check_name("stream", &options.stream)?;
        connect::check_name("consumer", &options.consumer)?;
        let link =
            Link::connect(&options.url, &format!("hapax {} looks", options.consumer)).await?;
        Ok(Self {
            options: options.clone(),
            link,
        })
    }

    /// Returns how far the durable is. `None` if there is no durable, or no stream.
    ///
    /// # Errors
    /// `Unavailable`: not reachable now.
    pub async fn settled(&self) -> Result<Option<Settled>, SourceError> {
        if !self.link.is_connected() {
            return Err(self.link.unavailable());
        }
        let Some(stream) = self.link.stream_info(&self.options.stream).await? else {
            return Ok(None);
        };
        Ok(durable::info(&self.link, &self.options)
            .await?
            .map(|info| Settled {
                stream: position_prefix(&self.options.stream, &stream),
                sequence: info.ack_floor.stream_sequence,
            }))
    }

    /// Returns the handler's messages with numbers from `first` to `last`, at most `max`, in order.
    ///
    /// # Errors
    /// `Unavailable`: not reachable now.
    pub async fn read(
        &self,
        first: u64,
        last: u64,
        max: usize,
    ) -> Result<Vec<Retained>, SourceError> {
        let policy = DeliverPolicy::ByStartSequence {
            start_sequence: first.max(1),
        };
        let consumer = self.look(policy).await?;
        let mut there = usize::try_from(consumer.cached_info().num_pending).unwrap_or(usize::MAX);
        let prefix = match self.link.stream_info(&self.options.stream).await? {
            Some(stream) => position_prefix(&self.options.stream, &stream),
            None => return Ok(Vec::new()),
        };
        let mut found = Vec::new();
        while found.len() < max && there > 0 {
            let wanted = PULL_MAX.min(max - found.len()).min(there);
            let mut messages = consumer
                .fetch()
                .max_messages(wanted)
                .expires(PULL_EXPIRES)
                .messages()
                .await
                .map_err(|error| failed(&error))?;
            let mut came = 0;
            while let Some(message) = messages.next().await {
                let message = message.map_err(|error| failed(&error))?;
                let (sequence, published) = {
                    let info = message.info().map_err(|error| failed(&error))?;
                    (info.stream_sequence, info.published)
                };
                came += 1;
                if sequence > last {
                    return Ok(found);
                }
                found.push(Retained {
                    sequence,
                    incoming: Incoming {
                        subject: message.subject.to_string(),
                        headers: headers(message.headers.as_ref()),
                        content_type: None,
                        payload: message.payload.clone(),
                        published_at: Some(Instant {
                            seconds: published.unix_timestamp(),
                            nanoseconds: published.microsecond() * 1000,
                        }),
                        position: Position(format!("{prefix}:{sequence}")),
                        queue_id: None,
                    },
                });
            }
            if came == 0 {
                break;
            }
            there -= came.min(there);
        }
        Ok(found)
    }

    /// Makes a consumer of our own that reads and answers nothing. It goes by itself.
    pub(super) async fn look(&self, policy: DeliverPolicy) -> Result<PullConsumer, SourceError> {
        let stream = self
            .link
            .context
            .get_stream_no_info(&self.options.stream)
            .await
            .map_err(|error| failed(&error))?;
        stream
            .create_consumer(pull::Config {
                deliver_policy: policy,
                ack_policy: AckPolicy::None,
                filter_subjects: self.options.subjects.clone(),
                inactive_threshold: LOOK_ENDS_AFTER,
                memory_storage: true,
                ..pull::Config::default()
            })
            .await
            .map_err(|error| failed(&error))
    }
}

fn failed(error: &dyn std::fmt::Display) -> SourceError {
    SourceError::Unavailable(format!("reading what the stream keeps: {error}"))
}
