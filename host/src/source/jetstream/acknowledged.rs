//! What the broker counts as done for a durable: how far it goes, and those messages again, for whoever compares them with the claims.
//!
//! **Invariant**: reads only. The durable does not notice.

use futures_util::{StreamExt as _, TryStreamExt as _};

use super::JetStreamOptions;
use super::connect::{Link, check_name, covers};
use super::{durable, fetch, unreadable};
use crate::message::{Incoming, Instant};
use crate::source::SourceError;

/// How many messages are asked for at a time.
const ASKED_AT_ONCE: usize = 16;

/// Up to where a durable's messages are all acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckFloor {
    /// The stream's name and creation time, as in positions: one that is made anew is another.
    pub stream: String,
    /// All messages up to this one are acknowledged, or are none of the durable's.
    pub sequence: u64,
    /// How many deliveries lie before it; 0 if nothing was acknowledged yet.
    pub acknowledged: u64,
    /// The first message that the stream still keeps.
    pub first_kept: u64,
}

/// What waits for a durable: not delivered yet, or delivered and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// How many messages.
    pub messages: u64,
    /// When the oldest of them was published, by the broker's clock; `None` if there are none.
    pub oldest: Option<Instant>,
}

/// Reads what is acknowledged.
#[derive(Clone)]
pub struct Acknowledged {
    link: Link,
    options: JetStreamOptions,
}

impl Acknowledged {
    /// Reads over a connection that exists.
    pub(super) fn over(link: &Link, options: &JetStreamOptions) -> Self {
        Self {
            link: link.clone(),
            options: options.clone(),
        }
    }

    /// Connects.
    ///
    /// # Errors
    /// As `JetStream::connect`.
    pub async fn connect(options: &JetStreamOptions) -> Result<Self, SourceError> {
        check_name("stream", &options.stream)?;
        check_name("consumer", &options.consumer)?;
        let name = format!("hapax {} status", options.consumer);
        Ok(Self {
            link: Link::connect(&options.url, &options.access, &name).await?,
            options: options.clone(),
        })
    }

    /// Returns how far the acknowledged messages go; `None` without a stream or durable.
    ///
    /// # Errors
    /// `Unavailable`: not reachable now.
    pub async fn floor(&self) -> Result<Option<AckFloor>, SourceError> {
        if !self.link.is_connected() {
            return Err(self.link.unavailable());
        }
        // The durable first: if both are made anew in between, the numbers are of an older stream than the name, and the
        // next look puts it right.
        let Some(info) = durable::info(&self.link, &self.options).await? else {
            return Ok(None);
        };
        let Some(stream) = self.link.stream_info(&self.options.stream).await? else {
            return Ok(None);
        };
        Ok(Some(AckFloor {
            stream: durable::position_prefix(&self.options.stream, &stream),
            sequence: info.ack_floor.stream_sequence,
            acknowledged: info.ack_floor.consumer_sequence,
            first_kept: stream.state.first_sequence,
        }))
    }

    /// Returns the durable's messages from number `first` to `last` that the stream still keeps, in its order. `stream` is that of the floor.
    ///
    /// # Errors
    /// `Unavailable`: not reachable now.
    pub async fn read(
        &self,
        stream: &str,
        first: u64,
        last: u64,
    ) -> Result<Vec<(u64, Incoming)>, SourceError> {
        let read: Vec<Option<(u64, Incoming)>> = futures_util::stream::iter(first..=last)
            .map(|sequence| async move {
                let stored = unreadable::stored(&self.link, &self.options.stream, sequence).await?;
                Ok::<_, SourceError>(stored.and_then(|stored| {
                    if !self.reads(&stored.subject) {
                        return None;
                    }
                    let headers = stored
                        .raw_headers
                        .map_or_else(Vec::new, |raw| unreadable::parse(&raw));
                    let incoming = fetch::incoming(
                        stream,
                        sequence,
                        stored.subject,
                        headers,
                        stored.payload,
                        stored.published,
                    );
                    Some((sequence, incoming))
                }))
            })
            .buffered(ASKED_AT_ONCE)
            .try_collect()
            .await?;
        Ok(read.into_iter().flatten().collect())
    }

    /// Returns how many messages wait for the durable, and when the oldest of them was published; `None` without a durable.
    ///
    /// # Errors
    /// `Unavailable`: not reachable now.
    pub async fn pending(&self) -> Result<Option<Pending>, SourceError> {
        if !self.link.is_connected() {
            return Err(self.link.unavailable());
        }
        let Some(info) = durable::info(&self.link, &self.options).await? else {
            return Ok(None);
        };
        let mut pending = Pending {
            messages: durable::backlog_of(&info),
            oldest: None,
        };
        if pending.messages > 0 {
            let first = info.ack_floor.stream_sequence.saturating_add(1);
            for filter in self.filters() {
                let found =
                    unreadable::next(&self.link, &self.options.stream, first, filter).await?;
                pending.oldest = pending
                    .oldest
                    .into_iter()
                    .chain(found)
                    .min_by_key(|moment| (moment.seconds, moment.nanoseconds));
            }
        }
        Ok(Some(pending))
    }

    fn filters(&self) -> impl Iterator<Item = &str> {
        let all = self.options.subjects.is_empty().then_some(">");
        all.into_iter()
            .chain(self.options.subjects.iter().map(String::as_str))
    }

    /// True if the durable's filter lets a subject pass.
    fn reads(&self, subject: &str) -> bool {
        let filter = &self.options.subjects;
        filter.is_empty() || filter.iter().any(|wanted| covers(wanted, subject))
    }
}
