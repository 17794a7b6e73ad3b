//! Rewind: the durable is made anew, to begin at an earlier message.
//!
//! A durable can't be moved, so it is deleted and made again, with all else as it was. A host that notices in between makes one
//! by its own configuration; that one is deleted, too. After a crash in between there is none, or one of a host's: rewinding again
//! finishes it.

use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::json;

use super::connect::{Link, check_name};
use super::{JetStreamOptions, durable};
use crate::fault;
use crate::message::Instant;
use crate::source::SourceError;

/// A consumer for looking that nobody asks for this long is gone.
const LOOK_ENDS_AFTER: Duration = Duration::from_secs(30);
/// How long a message that is there may take.
const PULL_EXPIRES: Duration = Duration::from_secs(5);
/// How often hosts may be faster.
const TRIES_MAX: u32 = 50;

/// Where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewindTo {
    /// A message's number in the stream.
    Sequence(u64),
    /// The first message published at this moment or later.
    Time(Instant),
}

/// What a rewind would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewindPlan {
    /// Where the durable will begin.
    pub sequence: u64,
    /// How many messages it will read from there; those that it has read before are among them.
    pub messages: u64,
    /// When the first of them was published; `None` if there are none.
    pub first_published_at: Option<Instant>,
}

/// A connection for rewinding one durable.
pub struct Rewinder {
    options: JetStreamOptions,
    link: Link,
}

#[derive(Deserialize)]
struct Deleted {}

impl Rewinder {
    /// Connects.
    ///
    /// # Errors
    /// As `JetStream::connect`.
    pub async fn connect(options: &JetStreamOptions) -> Result<Self, SourceError> {
        check_name("stream", &options.stream)?;
        check_name("consumer", &options.consumer)?;
        let name = format!("hapax {} rewind", options.consumer);
        Ok(Self {
            options: options.clone(),
            link: Link::connect(&options.url, &options.access, &name).await?,
        })
    }

    /// Looks up what a rewind would do, and changes nothing.
    ///
    /// # Errors
    /// `Unusable`: the stream does not exist, or ends before `to`. `Unavailable`: not reachable now.
    pub async fn plan(&self, to: RewindTo) -> Result<RewindPlan, SourceError> {
        let options = &self.options;
        let stream = self
            .link
            .stream(&options.stream, &options.subjects, false)
            .await?;
        let last = stream.state.last_sequence;
        let policy = match to {
            RewindTo::Sequence(sequence) if sequence == 0 || sequence > last.saturating_add(1) => {
                return Err(SourceError::Unusable(format!(
                    "stream `{}` has no message {sequence}: its last one is {last}\nhint: the first that it still keeps is {}",
                    options.stream, stream.state.first_sequence
                )));
            }
            RewindTo::Sequence(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
            RewindTo::Time(instant) => {
                let nanoseconds =
                    i128::from(instant.seconds) * 1_000_000_000 + i128::from(instant.nanoseconds);
                let start_time = async_nats::datetime::from_nanos(nanoseconds)
                    .map_err(|_| SourceError::Unusable("the time is out of range".into()))?;
                DeliverPolicy::ByStartTime { start_time }
            }
        };
        let look = self.look(policy).await?;
        let info = look.cached_info();
        let sequence = match to {
            RewindTo::Sequence(sequence) => sequence,
            RewindTo::Time(_) => info.delivered.stream_sequence + 1,
        };
        let messages = info.num_pending;
        let first_published_at = if messages > 0 {
            first_published_at(&look).await?
        } else {
            None
        };
        Ok(RewindPlan {
            sequence,
            messages,
            first_published_at,
        })
    }

    /// Makes a consumer of our own that reads and answers nothing. It goes by itself.
    async fn look(&self, policy: DeliverPolicy) -> Result<PullConsumer, SourceError> {
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

    /// Makes the durable anew, to begin at message `sequence`. Interrupted, or failed, it is to be called again.
    ///
    /// # Errors
    /// `Unusable`: a durable that hapax could not use. `Unavailable`: not reachable now, or hosts were faster again and again.
    pub async fn rewind(&self, sequence: u64) -> Result<(), SourceError> {
        let (link, options) = (&self.link, &self.options);
        let mut config = match durable::info(link, options).await? {
            Some(info) => {
                durable::check(options, &info)?;
                info.config
            }
            None => durable::new_config(options)?,
        };
        config.deliver_policy = DeliverPolicy::ByStartSequence {
            start_sequence: sequence,
        };
        let mut why = String::new();
        for _ in 0..TRIES_MAX {
            let subject = format!("CONSUMER.DELETE.{}.{}", options.stream, options.consumer);
            match link.ask::<Deleted>(&subject, &json!({})).await? {
                Ok(Deleted {}) => {}
                Err(error) if error.error_code() == ErrorCode::CONSUMER_NOT_FOUND => {}
                Err(error) => {
                    return Err(
                        link.refused(&format!("deleting durable `{}`", options.consumer), &error)
                    );
                }
            }
            fault::point("rewind");
            match durable::ask_for(link, options, &config).await? {
                Ok(_) => return Ok(()),
                // A host has made one in the meantime.
                Err(error) => why = error.to_string(),
            }
        }
        Err(SourceError::Unavailable(format!(
            "durable `{}` of stream `{}` can't be made anew: {why}",
            options.consumer, options.stream
        )))
    }
}

/// Returns when the consumer's first message was published.
async fn first_published_at(consumer: &PullConsumer) -> Result<Option<Instant>, SourceError> {
    let mut messages = consumer
        .fetch()
        .max_messages(1)
        .expires(PULL_EXPIRES)
        .messages()
        .await
        .map_err(|error| failed(&error))?;
    let Some(message) = messages.next().await else {
        return Ok(None);
    };
    let message = message.map_err(|error| failed(&error))?;
    let published = message.info().map_err(|error| failed(&error))?.published;
    Ok(Some(Instant {
        seconds: published.unix_timestamp(),
        nanoseconds: published.microsecond() * 1000,
    }))
}

fn failed(error: &dyn std::fmt::Display) -> SourceError {
    SourceError::Unavailable(format!("reading what the stream keeps: {error}"))
}
