//! A durable consumer on a stream, shared by all connections.

use std::time::Instant;

use anyhow::Context as _;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{self, Message};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::Mutex;

use crate::Credit;

/// Messages that are asked for at a time, so that no connection waits for the broker.
const FETCH_MIN: usize = 256;

/// A message that was delivered.
pub(crate) struct Delivered {
    pub(crate) id: String,
    pub(crate) credit: Credit,
    since: Instant,
    message: Message,
}

pub(crate) struct JetStream {
    client: async_nats::Client,
    deliveries: Mutex<pull::Stream>,
}

impl JetStream {
    /// `in_work` messages are in work at the same time, at the most.
    pub(crate) async fn connect(
        broker: &str,
        stream: &str,
        durable: &str,
        in_work: usize,
    ) -> anyhow::Result<Self> {
        let client = async_nats::connect(broker).await?;
        let consumer = jetstream::new(client.clone())
            .create_consumer_on_stream(
                pull::Config {
                    durable_name: Some(durable.to_owned()),
                    ack_policy: AckPolicy::Explicit,
                    max_ack_pending: i64::try_from(in_work.max(FETCH_MIN) * 4)?,
                    ..Default::default()
                },
                stream,
            )
            .await?;
        let deliveries = consumer
            .stream()
            .max_messages_per_batch(FETCH_MIN.max(in_work * 2))
            .messages()
            .await?;
        Ok(Self {
            client,
            deliveries: Mutex::new(deliveries),
        })
    }

    /// Waits for a message, and takes what has come meanwhile, up to `max` in all.
    pub(crate) async fn next(&self, max: usize) -> anyhow::Result<Vec<Delivered>> {
        let mut deliveries = self.deliveries.lock().await;
        let first = deliveries
            .next()
            .await
            .context("the stream of deliveries ended")??;
        let mut group = vec![delivered(first)?];
        while group.len() < max {
            // Without constraint: what has come counts, not how often this task may ask before others have their turn.
            match tokio::task::unconstrained(deliveries.next()).now_or_never() {
                Some(next) => {
                    group.push(delivered(next.context("the stream of deliveries ended")??)?)
                }
                None => break,
            }
        }
        Ok(group)
    }

    /// The acknowledgements are on their way, and arrive before the process ends.
    pub(crate) async fn flush(&self) -> anyhow::Result<()> {
        Ok(self.client.flush().await?)
    }
}

fn delivered(message: Message) -> anyhow::Result<Delivered> {
    let since = Instant::now();
    let id = message
        .headers
        .as_ref()
        .and_then(|headers| headers.get("Nats-Msg-Id"))
        .context("a message has no id")?
        .as_str()
        .to_owned();
    Ok(Delivered {
        id,
        credit: serde_json::from_slice(&message.payload)?,
        since,
        message,
    })
}

impl Delivered {
    /// Returns how long it took.
    pub(crate) async fn acknowledge(&self) -> anyhow::Result<std::time::Duration> {
        self.message
            .ack()
            .await
            .map_err(anyhow::Error::from_boxed)?;
        Ok(self.since.elapsed())
    }
}
