//! Deliveries in the stream's order: when what is held may go on, and who is served.

use std::time::Duration;

use async_nats::jetstream;
use serde_json::json;
use tokio::time::Instant as Moment;

use super::durable::{self, GROUP};
use super::epoch::{Epoch, Floor};
use super::fetch::Fetcher;
use crate::source::{Delivery, SourceError};

/// The first pause before it is asked again what is settled; it doubles.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(2);
/// The longest such pause.
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(250);

/// What goes with deliveries in the stream's order.
#[derive(Default)]
pub(super) struct InOrder {
    pub(super) epoch: Epoch<Delivery>,
    /// By this the server knows that this host is the one that is served.
    pub(super) pin: Option<String>,
    /// When to ask again what is settled.
    pub(super) look_at: Option<Moment>,
    /// Looks in a row that freed nothing.
    pub(super) idle_looks: u32,
    /// The last delivery was nobody's before.
    pub(super) last_was_new: bool,
}

impl Fetcher {
    /// Asks what is settled, and hands over what waited for that.
    pub(super) async fn look_what_is_settled(&mut self) {
        let info = if self.link.is_connected() {
            durable::info(&self.link, &self.options).await
        } else {
            Err(self.link.unavailable())
        };
        let first_held = self
            .order
            .as_ref()
            .and_then(|order| order.epoch.first_held());
        let floor = match (info, first_held) {
            (Ok(Some(info)), Some(first)) => {
                let mut floor = Floor {
                    stream: info.ack_floor.stream_sequence,
                    consumer: info.ack_floor.consumer_sequence,
                };
                // Between the two there may be none of the consumer's messages.
                if floor.stream.saturating_add(1) < first
                    && self
                        .is_first_after(floor.stream, first, &info.config)
                        .await
                        .unwrap_or(false)
                {
                    floor.stream = first - 1;
                }
                Some(floor)
            }
            // Gone, or not to be reached: nothing is known.
            _ => None,
        };
        let Some(order) = &mut self.order else {
            return;
        };
        let free = floor.map_or_else(Vec::new, |floor| order.epoch.settled(floor));
        if free.is_empty() {
            order.idle_looks = order.idle_looks.saturating_add(1);
        } else {
            order.idle_looks = 0;
        }
        if !order.epoch.is_settling() {
            self.pause_until = None;
        }
        order.look_at = order.epoch.first_held().map(|_| {
            let factor = 1_u32.checked_shl(order.idle_looks).unwrap_or(u32::MAX);
            Moment::now() + LOOK_PAUSE_MIN.saturating_mul(factor).min(LOOK_PAUSE_MAX)
        });
        for delivery in free {
            self.desk.lay_down(delivery);
        }
    }

    /// True if no message of the consumer stands in the stream between `floor` and `first`.
    async fn is_first_after(
        &self,
        floor: u64,
        first: u64,
        config: &async_nats::jetstream::consumer::Config,
    ) -> Result<bool, SourceError> {
        let mut filters = config.filter_subjects.clone();
        if !config.filter_subject.is_empty() {
            filters.push(config.filter_subject.clone());
        }
        if filters.is_empty() {
            filters.push(">".to_owned());
        }
        let subject = format!("STREAM.MSG.GET.{}", self.options.stream);
        for filter in filters {
            let body = json!({ "seq": floor.saturating_add(1), "next_by_subj": filter });
            match self.link.ask::<StoredMessage>(&subject, &body).await? {
                Ok(found) if found.message.seq < first => return Ok(false),
                Ok(_) => {}
                Err(error) if error.error_code() == jetstream::ErrorCode::NO_MESSAGE_FOUND => {}
                Err(error) => {
                    return Err(self
                        .link
                        .refused(&format!("stream `{}`", self.options.stream), &error));
                }
            }
        }
        Ok(true)
    }

    /// Lets another host be served at once.
    pub(super) async fn unpin(&mut self) {
        let Some(pin) = self.order.as_mut().and_then(|order| order.pin.take()) else {
            return;
        };
        let Ok(Some(info)) = durable::info(&self.link, &self.options).await else {
            return;
        };
        let is_ours = info.priority_groups.iter().any(|group| {
            group.group == GROUP && group.pinned_client_id.as_deref() == Some(pin.as_str())
        });
        if is_ours {
            let subject = format!(
                "CONSUMER.UNPIN.{}.{}",
                self.options.stream, self.options.consumer
            );
            let body = json!({ "group": GROUP });
            if let Err(error) = self.link.ask::<serde_json::Value>(&subject, &body).await {
                tracing::debug!(%error, "the next host is served only after a while");
            }
        }
    }
}

/// A message of a stream, as the server returns it; only what is looked at.
#[derive(serde::Deserialize)]
struct StoredMessage {
    message: StoredSequence,
}

#[derive(serde::Deserialize)]
struct StoredSequence {
    seq: u64,
}
