//! The task that pulls messages from the server when they are asked for.
//!
//! It pulls in two ways: first what is there at once, and when there is nothing, one message that may take a while.
//! So what waits is fetched in one go, an idle source asks once in a few seconds, and no more is under way than was
//! asked for.
//!
//! **Invariant**: one pull at a time; what is under way and what exists stay together within `in_hand_max`.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::{HeaderMap, Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant as Moment;

use super::JetStreamOptions;
use super::connect::Link;
use super::durable::{self, GROUP, Opened};
use super::hand::Hand;
use super::in_order::InOrder;
use super::unreadable;
use crate::message::{Header, Incoming, Instant, Position};
use crate::source::desk::{CloseOnDrop, Desk};
use crate::source::{Delivery, Place, SourceError};

/// How long a pull waits for its one message.
const LONG_PULL: Duration = Duration::from_secs(10);
/// In order: pulls within the time after which the server serves another host.
const PULLS_PER_PRIORITY_TIMEOUT: u32 = 4;
/// In order: the pause between pulls that bring newer deliveries, while older ones are waited for.
const NEWER_PAUSE: Duration = Duration::from_millis(100);
/// In order: how many older deliveries may come at once, also into full hands.
const OLDER_AT_ONCE: usize = 64;
/// The header by which the server tells a host that it is the one that is served.
const PIN_HEADER: &str = "Nats-Pin-Id";
/// How much later than the server this side gives a pull up.
const PULL_MARGIN: Duration = Duration::from_secs(2);
/// How long a pull for what is there at once may take.
const SHORT_PULL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a lost connection is waited for before the caller hears of it.
const RECONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// The pause after a pull that the server turned down.
const TURNED_DOWN_PAUSE: Duration = Duration::from_millis(200);
/// How many pulls in a row may be turned down before the caller hears of it.
const TURNED_DOWN_MAX: u32 = 5;
/// Two pulls that were cut off by a lost connection belong together if less than this, and two ack waits, lie between them.
const CUTS_APART: Duration = Duration::from_secs(5);
/// How long the last messages of an ended subscription are waited for.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Fetcher {
    pub(super) options: JetStreamOptions,
    pub(super) link: Link,
    opened: Opened,
    hand: Arc<Hand>,
    pub(super) desk: Arc<Desk>,
    subscriber: Subscriber,
    /// Pull number n is answered at `<inbox>.n`.
    inbox: String,
    pulls: u64,
    pull: Option<Pull>,
    /// Nothing was there at the last pull: wait for one message.
    patient: bool,
    /// The durable has to be looked at before the next pull.
    doubtful: bool,
    /// The consumer's own number of the last delivery: it only rises, unless the consumer was made anew.
    last_consumer_sequence: u64,
    turned_down: u32,
    /// How often the stream was made anew.
    generation: u32,
    /// When the connection was lost while messages may have been on their way.
    last_cut: Option<Moment>,
    /// What cuts the connection may be a message that the client can't read.
    look_for_unreadable: bool,
    pub(super) pause_until: Option<Moment>,
    /// For deliveries in the stream's order.
    pub(super) order: Option<InOrder>,
}

/// A message that came, and how to answer for it.
pub(super) struct Arrived {
    pub(super) subject: String,
    pub(super) headers: Vec<Header>,
    pub(super) payload: Bytes,
    pub(super) published: Instant,
    pub(super) reply: Subject,
    pub(super) delivered: u64,
    pub(super) stream_sequence: u64,
    pub(super) consumer_sequence: u64,
}

/// Puts a message together. Each time that it is read it looks the same.
pub(super) fn incoming(
    position_prefix: &str,
    sequence: u64,
    subject: String,
    headers: Vec<Header>,
    payload: Bytes,
    published: Instant,
) -> Incoming {
    let content_type = headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("Content-Type"))
        .and_then(|header| String::from_utf8(header.value.to_vec()).ok());
    Incoming {
        subject,
        headers,
        content_type,
        payload,
        published_at: Some(published),
        position: Position(format!("{position_prefix}:{sequence}")),
        queue_id: None,
    }
}

/// A pull under way.
struct Pull {
    inbox: String,
    /// How many messages may still come.
    left: usize,
    deadline: Moment,
    got_some: bool,
}

impl Fetcher {
    pub(super) async fn new(
        options: JetStreamOptions,
        link: Link,
        opened: Opened,
        hand: Arc<Hand>,
        desk: Arc<Desk>,
    ) -> Result<Self, SourceError> {
        let inbox = link.client.new_inbox();
        let order = options.in_order.then(InOrder::default);
        let subscriber = link
            .client
            .subscribe(format!("{inbox}.*"))
            .await
            .map_err(|error| SourceError::Unavailable(format!("cannot subscribe: {error}")))?;
        Ok(Self {
            options,
            link,
            opened,
            hand,
            desk,
            subscriber,
            inbox,
            pulls: 0,
            pull: None,
            patient: false,
            doubtful: false,
            last_consumer_sequence: 0,
            turned_down: 0,
            generation: 0,
            last_cut: None,
            look_for_unreadable: false,
            pause_until: None,
            order,
        })
    }

    /// Fetches until it is told to stop.
    pub(super) async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let desk = Arc::clone(&self.desk);
        let hand = Arc::clone(&self.hand);
        let _closed_at_the_end = CloseOnDrop(&desk);
        loop {
            if self.pull.is_none()
                && self.pause_until.is_none_or(|until| until <= Moment::now())
                && desk.wanted() > 0
            {
                self.pause_until = None;
                self.ask().await;
            }
            let idle = self.pull.is_none();
            // Each branch that loses is a wait that can be made anew; no message is taken and not kept.
            tokio::select! {
                biased;
                _ = &mut stop => break,
                message = self.subscriber.next() => {
                    let Some(message) = message else {
                        desk.fail(SourceError::Unavailable("the client was closed".into()));
                        return;
                    };
                    self.receive(message).await;
                    while let Some(Some(message)) = self.subscriber.next().now_or_never() {
                        self.receive(message).await;
                    }
                    desk.hand_over();
                }
                () = self.link.lost() => {
                    // The server forgot the pull with the connection, and may not be the same when it comes back.
                    if self.pull.take().is_some() {
                        self.note_cut_pull();
                    }
                    self.patient = false;
                    self.doubtful = true;
                }
                () = sleep_until(self.pull.as_ref().map(|pull| pull.deadline)) => {
                    // The server's own word for it got lost.
                    self.pull = None;
                    self.doubtful = true;
                }
                () = sleep_until(self.pause_until) => {}
                () = sleep_until(self.order.as_ref().and_then(|order| order.look_at)) => {
                    self.look_what_is_settled().await;
                    desk.hand_over();
                }
                () = desk.asked(), if idle => {}
                () = hand.freed.notified(), if idle => {}
            }
        }
        self.leave().await;
    }

    /// Pulls, if there is room and the durable is as it should be.
    async fn ask(&mut self) {
        if !self.link.is_connected() {
            self.wait_for_connection().await;
            if !self.link.is_connected() {
                self.desk.fail(self.link.unavailable());
                return;
            }
        }
        if self.doubtful
            && let Err(error) = self.reopen().await
        {
            self.pause_until = Some(Moment::now() + TURNED_DOWN_PAUSE);
            self.desk.fail(error);
            return;
        }
        if self.look_for_unreadable
            && let Err(error) = self.take_unreadable().await
        {
            self.pause_until = Some(Moment::now() + TURNED_DOWN_PAUSE);
            self.desk.fail(error);
            return;
        }
        let mut room = self.options.in_hand_max.saturating_sub(self.hand.count());
        if let Some(order) = &self.order
            && order.epoch.is_settling()
        {
            // Older deliveries have to come, also into full hands; but newer ones may come instead, and they have to wait.
            if order.last_was_new {
                room = 1;
                self.pause_until = Some(Moment::now() + NEWER_PAUSE);
            } else {
                room = room.max(OLDER_AT_ONCE);
            }
        }
        let wanted = self.desk.wanted().min(room).min(self.opened.batch_max);
        if wanted == 0 {
            return;
        }
        let (batch, body, timeout) = if let Some(order) = &self.order {
            // One kind of pull: a host that is not the one that is served waits with all that it wants. Well within the
            // time after which the server would serve another.
            let expires = LONG_PULL
                .min(self.opened.expires_max)
                .min(self.opened.priority_timeout / PULLS_PER_PRIORITY_TIMEOUT);
            let nanoseconds = u64::try_from(expires.as_nanos()).unwrap_or(u64::MAX);
            let mut body = json!({ "batch": wanted, "expires": nanoseconds, "group": GROUP });
            if let Some(pin) = &order.pin {
                body["id"] = pin.as_str().into();
            }
            (wanted, body, expires + PULL_MARGIN)
        } else if self.patient {
            let expires = LONG_PULL.min(self.opened.expires_max);
            let nanoseconds = u64::try_from(expires.as_nanos()).unwrap_or(u64::MAX);
            let body = json!({ "batch": 1, "expires": nanoseconds });
            (1, body, expires + PULL_MARGIN)
        } else {
            let body = json!({ "batch": wanted, "no_wait": true });
            (wanted, body, SHORT_PULL_TIMEOUT)
        };
        self.pulls += 1;
        let inbox = format!("{}.{}", self.inbox, self.pulls);
        let subject = format!(
            "$JS.API.CONSUMER.MSG.NEXT.{}.{}",
            self.options.stream, self.options.consumer
        );
        let sent = self
            .link
            .client
            .publish_with_reply(subject, inbox.clone(), Bytes::from(body.to_string()))
            .await;
        match sent {
            Ok(()) => {
                self.pull = Some(Pull {
                    inbox,
                    left: batch,
                    deadline: Moment::now() + timeout,
                    got_some: false,
                });
            }
            Err(error) => self.desk.fail(SourceError::Unavailable(format!(
                "cannot ask for messages: {error}"
            ))),
        }
    }

    /// The client drops its connection at headers that it can't read, and only this tells of it. Once is what happens to every
    /// connection; when the same message comes again after the ack wait, it is not.
    fn note_cut_pull(&mut self) {
        let now = Moment::now();
        let again = self.opened.ack_wait * 2 + CUTS_APART;
        if self.last_cut.is_some_and(|last| now - last < again) {
            self.look_for_unreadable = true;
        }
        self.last_cut = Some(now);
    }

    /// Takes the messages from the stream that the client can't read.
    async fn take_unreadable(&mut self) -> Result<(), SourceError> {
        let found = unreadable::find(&self.link, &self.options, &self.hand).await?;
        self.look_for_unreadable = false;
        if let Some(order) = &mut self.order
            && !found.is_empty()
        {
            order.epoch.begin();
        }
        found.into_iter().for_each(|arrived| self.take(arrived));
        self.desk.hand_over();
        Ok(())
    }

    async fn wait_for_connection(&self) {
        let deadline = Moment::now() + RECONNECT_PATIENCE;
        // The client tells of a lost connection, but not of a new one.
        while !self.link.is_connected() && Moment::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Looks at stream and durable again, and makes what is missing.
    async fn reopen(&mut self) -> Result<(), SourceError> {
        let opened = durable::open(&self.link, &self.options, Some(&self.opened)).await?;
        if opened.position_prefix != self.opened.position_prefix {
            tracing::warn!(
                stream = %self.options.stream,
                before = %self.opened.position_prefix,
                now = %opened.position_prefix,
                "the stream was deleted and made anew"
            );
            self.hand.orphan_all();
            self.generation += 1;
            if let Some(order) = &mut self.order {
                drop(order.epoch.restart());
            }
        }
        if opened.made != self.opened.made {
            tracing::info!(
                stream = %self.options.stream,
                consumer = %self.options.consumer,
                "the durable was made anew"
            );
            // Its numbers may go on where this host's last one ended, and mean other deliveries.
            if let Some(order) = &mut self.order {
                order.epoch.begin();
                order.pin = None;
            }
        }
        self.hand.set_ack_wait(opened.ack_wait);
        self.opened = opened;
        self.doubtful = false;
        Ok(())
    }

    async fn receive(&mut self, message: Message) {
        match message.status {
            Some(status) if status != StatusCode::OK => self.receive_status(status, &message),
            _ => self.receive_message(message).await,
        }
    }

    async fn receive_message(&mut self, message: Message) {
        self.desk.is_reached();
        let message = jetstream::Message {
            message,
            context: self.link.context.clone(),
        };
        let (delivered, stream_sequence, consumer_sequence, published) = match message.info() {
            Ok(info) => (
                info.delivered,
                info.stream_sequence,
                info.consumer_sequence,
                info.published,
            ),
            Err(error) => {
                tracing::warn!(%error, "ignored a message that JetStream did not send");
                return;
            }
        };
        if let Some(pull) = &mut self.pull {
            pull.got_some = true;
            pull.left = pull.left.saturating_sub(1);
            if pull.left == 0 {
                self.pull = None;
            }
        }
        self.patient = false;
        self.turned_down = 0;
        // The consumer counts from 1 again: it was made anew, and the stream may have been, too.
        if consumer_sequence <= self.last_consumer_sequence {
            self.doubtful = true;
        }
        self.last_consumer_sequence = consumer_sequence;
        if self.doubtful
            && let Err(error) = self.reopen().await
        {
            // Its position would be a guess. Unanswered, it is delivered again.
            tracing::debug!(%error, "left a message alone");
            return;
        }
        let message = message.message;
        let Some(reply) = message.reply else {
            return;
        };
        let mut headers = headers(message.headers.as_ref());
        if let Some(order) = &mut self.order {
            let is_pin = |header: &Header| header.name.eq_ignore_ascii_case(PIN_HEADER);
            if let Some(pin) = headers.iter().find(|header| is_pin(header)) {
                order.pin = String::from_utf8(pin.value.to_vec()).ok();
            }
            // Each delivery of a message must look the same.
            headers.retain(|header| !is_pin(header));
        }
        self.take(Arrived {
            subject: message.subject.into_string(),
            headers,
            payload: message.payload,
            published: Instant {
                seconds: published.unix_timestamp(),
                nanoseconds: published.microsecond() * 1000,
            },
            reply,
            delivered: u64::try_from(delivered).unwrap_or(1),
            stream_sequence,
            consumer_sequence,
        });
    }

    /// Takes a message in hand, and lays it down as soon as it may be handed over.
    fn take(&mut self, arrived: Arrived) {
        let Arrived {
            subject,
            headers,
            payload,
            published,
            reply,
            delivered,
            stream_sequence,
            consumer_sequence,
        } = arrived;
        let incoming = incoming(
            &self.opened.position_prefix,
            stream_sequence,
            subject,
            headers,
            payload,
            published,
        );
        let answer = self.hand.hold(reply);
        let delivery = Delivery::new(
            incoming,
            delivered,
            delivered,
            None,
            Place {
                generation: self.generation,
                number: stream_sequence,
            },
            answer,
        );
        let delivery = match &mut self.order {
            None => Some(delivery),
            Some(order) => {
                if self.hand.take_dropped() {
                    order.epoch.begin();
                }
                let is_new = delivery.delivered == 1;
                order.last_was_new = is_new;
                let free = order
                    .epoch
                    .arrive(consumer_sequence, stream_sequence, is_new, delivery);
                if free.is_none() {
                    order.idle_looks = 0;
                    order.look_at = Some(Moment::now());
                }
                free
            }
        };
        if let Some(delivery) = delivery {
            self.desk.lay_down(delivery);
        }
    }

    /// Takes the server's word on how a pull ended.
    fn receive_status(&mut self, status: StatusCode, message: &Message) {
        let subject = message.subject.as_str();
        let Some(pull) = self.pull.take_if(|pull| pull.inbox == subject) else {
            // Of a pull that was given up.
            return;
        };
        let description = message.description.clone().unwrap_or_default();
        match status.as_u16() {
            100 => self.pull = Some(pull),
            // Nothing (more) there, or the time is over.
            404 | 408 => {
                self.desk.is_reached();
                self.patient = !pull.got_some;
                self.turned_down = 0;
            }
            // Another host is served now.
            423 => {
                self.desk.is_reached();
                if let Some(order) = &mut self.order {
                    order.pin = None;
                }
            }
            code => {
                // Deleted, moved to another server, without a leader, too much under way.
                tracing::debug!(code, %description, "the server turned a pull down");
                self.patient = false;
                self.doubtful = true;
                self.turned_down += 1;
                self.pause_until = Some(Moment::now() + TURNED_DOWN_PAUSE);
                if self.turned_down >= TURNED_DOWN_MAX {
                    self.turned_down = 0;
                    self.desk.fail(SourceError::Unavailable(format!(
                        "the server turns down requests for messages of durable `{}`: {code} {description}",
                        self.options.consumer
                    )));
                }
            }
        }
    }

    /// Ends the subscription, and keeps what the server had sent before it knew.
    async fn leave(&mut self) {
        if !self.link.is_connected() || self.subscriber.drain().await.is_err() {
            return;
        }
        let deadline = Moment::now() + LEAVE_TIMEOUT;
        while let Ok(Some(message)) =
            tokio::time::timeout_at(deadline, self.subscriber.next()).await
        {
            self.receive(message).await;
        }
        if let Some(order) = &mut self.order {
            for delivery in order.epoch.clear() {
                self.desk.lay_down(delivery);
            }
        }
        self.unpin().await;
    }
}

/// Returns the headers, sorted by name: the client does not keep the order between names, and each delivery of a
/// message must look the same. Of one name they stand in the order of the message.
fn headers(map: Option<&HeaderMap>) -> Vec<Header> {
    let mut headers: Vec<Header> = map
        .into_iter()
        .flat_map(HeaderMap::iter)
        .flat_map(|(name, values)| {
            values.iter().map(move |value| Header {
                name: name.to_string(),
                value: Bytes::copy_from_slice(value.as_str().as_bytes()),
            })
        })
        .collect();
    headers.sort_by_cached_key(|header| (header.name.to_ascii_lowercase(), header.name.clone()));
    headers
}

async fn sleep_until(moment: Option<Moment>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
