//! The deliveries that exist, the answers for them, and the signs of progress that keep them.
//!
//! **Invariant**: a delivery is here from the moment it is fetched until it is answered or dropped.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::AckKind;
use async_nats::{Client, Subject};
use bytes::Bytes;
use tokio::sync::Notify;

use crate::source::desk::lock;
use crate::source::{Answer, BoxFuture, SourceError};

/// Signs of progress in one ack wait: two of them may be lost.
const PROGRESS_PER_ACK_WAIT: u32 = 3;
/// How long an answer may wait for room in the client's queue.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The deliveries of one source that exist.
pub(super) struct Hand {
    client: Client,
    held: Mutex<Held>,
    /// A delivery was answered or dropped.
    pub(super) freed: Notify,
    ack_wait_ms: AtomicU64,
    /// A delivery was dropped without an answer.
    dropped: AtomicBool,
}

#[derive(Default)]
struct Held {
    next_key: u64,
    /// Where to answer.
    replies: BTreeMap<u64, Subject>,
    /// Deliveries of a stream that is no more: nothing is said for them.
    orphans: BTreeSet<u64>,
}

impl Hand {
    pub(super) fn new(client: Client, ack_wait: Duration) -> Self {
        let hand = Self {
            client,
            held: Mutex::default(),
            freed: Notify::new(),
            ack_wait_ms: AtomicU64::new(0),
            dropped: AtomicBool::new(false),
        };
        hand.set_ack_wait(ack_wait);
        hand
    }

    pub(super) fn set_ack_wait(&self, ack_wait: Duration) {
        let milliseconds = u64::try_from(ack_wait.as_millis()).unwrap_or(u64::MAX);
        self.ack_wait_ms.store(milliseconds, Ordering::Relaxed);
    }

    /// True if a delivery was dropped without an answer since the last call.
    pub(super) fn take_dropped(&self) -> bool {
        self.dropped.swap(false, Ordering::SeqCst)
    }

    /// Returns how many deliveries exist.
    pub(super) fn count(&self) -> usize {
        let held = lock(&self.held);
        held.replies.len() + held.orphans.len()
    }

    /// Takes a delivery in hand.
    pub(super) fn hold(self: &Arc<Self>, reply: Subject) -> Box<dyn Answer> {
        let key = {
            let mut held = lock(&self.held);
            let key = held.next_key;
            held.next_key += 1;
            held.replies.insert(key, reply);
            key
        };
        Box::new(JetStreamAnswer {
            hand: Arc::clone(self),
            key,
        })
    }

    /// Forgets where to answer for what is in hand: its stream was deleted and made anew, and an answer would hit the
    /// message that has the same number now.
    pub(super) fn orphan_all(&self) {
        let mut held = lock(&self.held);
        let replies = std::mem::take(&mut held.replies);
        held.orphans.extend(replies.into_keys());
    }

    /// Lets go of a delivery; returns where to answer.
    fn release(&self, key: u64) -> Option<Subject> {
        let (reply, was_here) = {
            let mut held = lock(&self.held);
            let reply = held.replies.remove(&key);
            let was_here = reply.is_some() || held.orphans.remove(&key);
            (reply, was_here)
        };
        if was_here {
            self.freed.notify_one();
        }
        reply
    }

    fn reply_of(&self, key: u64) -> Option<Subject> {
        lock(&self.held).replies.get(&key).cloned()
    }

    /// Returns the numbers that the deliveries in hand have in their stream.
    pub(super) fn stream_sequences(&self) -> HashSet<u64> {
        lock(&self.held)
            .replies
            .values()
            .filter_map(|reply| {
                let tokens: Vec<&str> = reply.split('.').collect();
                // With a domain and an account in front the subject is longer.
                let index = if tokens.len() > 9 { 7 } else { 5 };
                tokens.get(index)?.parse().ok()
            })
            .collect()
    }

    fn keys(&self) -> Vec<u64> {
        lock(&self.held).replies.keys().copied().collect()
    }
}

/// Tells the server, for everything in hand, that it is being worked on. Runs until it is aborted.
pub(super) async fn keep_alive(hand: Arc<Hand>) {
    loop {
        let ack_wait = Duration::from_millis(hand.ack_wait_ms.load(Ordering::Relaxed));
        tokio::time::sleep(ack_wait / PROGRESS_PER_ACK_WAIT).await;
        // While there is no connection these would only pile up.
        if hand.client.connection_state() != State::Connected {
            continue;
        }
        for key in hand.keys() {
            // Asked for each again: after a nak, a sign of progress would put off the next delivery.
            let Some(reply) = hand.reply_of(key) else {
                continue;
            };
            let progress = Bytes::from(AckKind::Progress);
            if let Err(error) = hand.client.publish(reply, progress).await {
                tracing::warn!(%error, "cannot tell the server that messages are being worked on");
                break;
            }
        }
    }
}

struct JetStreamAnswer {
    hand: Arc<Hand>,
    key: u64,
}

impl JetStreamAnswer {
    /// Lets go first, so that no sign of progress follows the answer.
    async fn send(self: Box<Self>, kind: AckKind) -> Result<(), SourceError> {
        let Some(reply) = self.hand.release(self.key) else {
            tracing::debug!("no answer for a message of a stream that was deleted");
            return Ok(());
        };
        // Without a connection the answer waits in the client's queue and goes out when there is one again.
        let sent = self.hand.client.publish(reply, kind.into());
        match tokio::time::timeout(SEND_TIMEOUT, sent).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(SourceError::Unavailable(format!(
                "the answer cannot be sent: {error}"
            ))),
            Err(_) => Err(SourceError::Unavailable(
                "the answer cannot be sent: no connection, and the queue of answers is full".into(),
            )),
        }
    }
}

impl Answer for JetStreamAnswer {
    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<(), SourceError>> {
        Box::pin(self.send(AckKind::Ack))
    }

    fn term(self: Box<Self>) -> BoxFuture<'static, Result<(), SourceError>> {
        Box::pin(self.send(AckKind::Term))
    }

    fn nak(self: Box<Self>, delay: Duration) -> BoxFuture<'static, Result<(), SourceError>> {
        let delay = Some(delay).filter(|delay| !delay.is_zero());
        Box::pin(self.send(AckKind::Nak(delay)))
    }

    fn let_go(self: Box<Self>) {}
}

impl Drop for JetStreamAnswer {
    fn drop(&mut self) {
        if self.hand.release(self.key).is_some() {
            self.hand.dropped.store(true, Ordering::SeqCst);
        }
    }
}
