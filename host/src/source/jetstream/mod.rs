//! NATS JetStream as a source: a durable pull consumer for each handler, and what publishes.
//!
//! A task of the source's own pulls what `next` asks for and nothing beyond; another tells the server at a third of
//! the ack wait that every delivery in hand is being worked on, whether it is fetched, running or held for a retry.
//! A connection that is lost is made again in the background; pulls that were under way are repeated.
//!
//! **Invariant**: at most `in_hand_max` deliveries exist at a time; in order, while older ones are waited for, a few more.
//! **Invariant**: the server's own give-up count is never used (`max_deliver` is unlimited): giving up is the
//! pipeline's decision, and leaves a dead letter.

mod access;
mod acknowledged;
mod connect;
mod durable;
mod epoch;
mod fetch;
mod hand;
mod in_order;
mod publish;
mod rewind;
mod unreadable;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::desk::Desk;
use super::{BoxFuture, Delivery, Source, SourceError};
use crate::health::Part;
use crate::message::Instant;
pub use access::{Access, Login, Secret, Tls};
pub use acknowledged::{AckFloor, Acknowledged};
use connect::Link;
pub use durable::Reach;
use fetch::Fetcher;
use hand::Hand;
pub use publish::{
    JetStreamPublisher, NewMessage, Prepared, PublishFailure, PublisherOptions, SubjectPublisher,
};
pub use rewind::{RewindPlan, RewindTo, Rewinder};

/// How long `close` waits for the server to confirm that it got the last answers.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Where a new durable begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the stream's first message.
    All,
    /// At what is published from now on.
    New,
    /// At the first message published at this moment or later.
    Time(Instant),
}

/// What a JetStream source is made from.
#[derive(Clone, PartialEq, Eq)]
pub struct JetStreamOptions {
    /// `nats://host:port`, several separated by commas; may hold `user:password@` or `token@`.
    pub url: String,
    /// Who asks, and how the server's certificate is checked.
    pub access: Access,
    /// The stream's name.
    pub stream: String,
    /// The consumer's filter, and the subjects of a stream that is created. Empty: no filter.
    pub subjects: Vec<String>,
    /// Create the stream if it is missing.
    pub create: bool,
    /// Of a new durable: after this long without an answer or a sign of progress the server delivers again.
    pub ack_wait: Duration,
    /// The durable's name.
    pub consumer: String,
    /// Where a new durable begins.
    pub start: Start,
    /// How many deliveries exist at a time, at the most.
    pub in_hand_max: usize,
    /// Deliver in the stream's order, to one host at a time: the durable has a priority group.
    pub in_order: bool,
}

impl fmt::Debug for JetStreamOptions {
    /// Shows the URL without its credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamOptions")
            .field("url", &connect::shown_url(&self.url))
            .field("stream", &self.stream)
            .field("subjects", &self.subjects)
            .field("create", &self.create)
            .field("ack_wait", &self.ack_wait)
            .field("consumer", &self.consumer)
            .field("start", &self.start)
            .field("in_hand_max", &self.in_hand_max)
            .field("in_order", &self.in_order)
            .finish()
    }
}

/// A durable consumer of a stream, as a source.
pub struct JetStream {
    options: JetStreamOptions,
    link: Link,
    hand: Arc<Hand>,
    desk: Arc<Desk>,
    drift: Vec<String>,
    reach: Reach,
    /// Ends the fetching task in good order.
    stop: Option<oneshot::Sender<()>>,
    fetching: JoinSet<()>,
    keeping_alive: JoinSet<()>,
}

impl JetStream {
    /// Connects, and makes what is missing: the stream if the options say so, and the durable.
    ///
    /// An existing stream or durable is used as it is. What differs from the options and does no harm is logged and
    /// kept in `drift`.
    ///
    /// # Errors
    /// `Unavailable`: try again. `Unusable`: a name that NATS forbids, refused credentials, a stream that is missing,
    /// a durable that would lose messages.
    pub async fn connect(options: &JetStreamOptions) -> Result<Self, SourceError> {
        connect::check_name("stream", &options.stream)?;
        connect::check_name("consumer", &options.consumer)?;
        for subject in &options.subjects {
            connect::check_filter(subject)?;
        }
        let link = Link::connect(
            &options.url,
            &options.access,
            &format!("hapax {}", options.consumer),
        )
        .await?;
        let opened = durable::open(&link, options, None).await?;
        for difference in &opened.drift {
            tracing::warn!(
                stream = %options.stream,
                consumer = %options.consumer,
                difference = %difference,
                "an existing stream or durable is used as it is"
            );
        }
        let drift = opened.drift.clone();
        let reach = opened.reach;
        let hand = Arc::new(Hand::new(link.client.clone(), opened.ack_wait));
        let desk = Arc::new(Desk::default());
        let (stop, stopped) = oneshot::channel();
        let fetcher = Fetcher::new(
            options.clone(),
            link.clone(),
            opened,
            Arc::clone(&hand),
            Arc::clone(&desk),
        )
        .await?;
        let mut fetching = JoinSet::new();
        fetching.spawn(fetcher.run(stopped));
        let mut keeping_alive = JoinSet::new();
        keeping_alive.spawn(hand::keep_alive(Arc::clone(&hand)));
        Ok(Self {
            options: options.clone(),
            link,
            hand,
            desk,
            drift,
            reach,
            stop: Some(stop),
            fetching,
            keeping_alive,
        })
    }

    /// Returns how the stream and the durable that were found differ from the options, a sentence each.
    pub fn drift(&self) -> &[String] {
        &self.drift
    }

    /// Returns a reader of what the broker counts as done, over this source's connection.
    pub fn acknowledged(&self) -> Acknowledged {
        Acknowledged::over(&self.link, &self.options)
    }

    /// Returns for how long a message may come again.
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// Returns how many deliveries exist: fetched, running, or held for a retry.
    pub fn in_hand(&self) -> usize {
        self.hand.count()
    }
}

impl Source for JetStream {
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<Delivery>, SourceError>> {
        Box::pin(self.desk.next(max))
    }

    fn backlog(&mut self) -> BoxFuture<'_, Result<u64, SourceError>> {
        Box::pin(async {
            if !self.link.is_connected() {
                return Err(self.link.unavailable());
            }
            match durable::info(&self.link, &self.options).await? {
                Some(info) => Ok(durable::backlog_of(&info)),
                None => Err(SourceError::Unavailable(format!(
                    "stream `{}` has no durable `{}` any more",
                    self.options.stream, self.options.consumer
                ))),
            }
        })
    }

    fn report_to(&mut self, part: Part) {
        self.desk.report_to(part);
    }

    fn stop(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(stop) = self.stop.take() {
                // An error means that the task has ended already.
                let _ = stop.send(());
            }
            while self.fetching.join_next().await.is_some() {}
            for delivery in self.desk.clear() {
                let position = delivery.incoming.position.clone();
                if let Err(error) = delivery.nak(Duration::ZERO).await {
                    tracing::debug!(%position, %error, "could not give a delivery back");
                }
            }
        })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.stop().await;
            self.keeping_alive.shutdown().await;
            if !self.link.is_connected() {
                tracing::warn!(
                    stream = %self.options.stream,
                    "the connection is lost: what was answered last may be delivered again"
                );
                return;
            }
            // The server handles a connection's lines in order: its reply says that it has read every answer.
            let confirmed = durable::info(&self.link, &self.options);
            match tokio::time::timeout(CLOSE_TIMEOUT, confirmed).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(
                    stream = %self.options.stream,
                    %error,
                    "what was answered last may be delivered again"
                ),
                Err(_) => tracing::warn!(
                    stream = %self.options.stream,
                    "the server did not confirm in time: what was answered last may be delivered again"
                ),
            }
        })
    }
}

/// Returns how many messages wait for the durable of `options`, without making or changing anything.
///
/// # Errors
/// `Unavailable`: not reachable now. `Unusable`: the stream does not exist, or the credentials are refused.
pub async fn backlog(options: &JetStreamOptions) -> Result<u64, SourceError> {
    connect::check_name("stream", &options.stream)?;
    connect::check_name("consumer", &options.consumer)?;
    let link = Link::connect(
        &options.url,
        &options.access,
        &format!("hapax {}", options.consumer),
    )
    .await?;
    if let Some(info) = durable::info(&link, options).await? {
        return Ok(durable::backlog_of(&info));
    }
    durable::backlog_before_start(&link, options).await
}
