//! The sources: where messages come from, and the means to answer for each.
//!
//! **Invariant**: nothing here decides a message's fate; `ack` and `term` ask for the store's proof.
//! **Invariant**: a dropped delivery answers nothing, so the source delivers it again.

mod desk;
pub mod identity;
pub mod jetstream;
pub mod merged;
pub mod queue;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::health::Part;
use crate::message::{Carried, Incoming, MessageId};
use crate::metrics::InFlight;
use crate::store::{Parked, Settled};

/// How often a message may be delivered before it is a suspect: a host may have died of it. Twice happens to the innocent:
/// those that a dying host had in hand beside the culprit come again like it.
const UNSUSPECTED_DELIVERIES: u64 = 2;

/// A boxed future, for traits that are used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why a source could not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SourceError {
    /// Not reachable now: wait and try again.
    #[error("{0}")]
    Unavailable(String),
    /// It cannot serve as configured; the text says what to do.
    #[error("{0}")]
    Unusable(String),
}

/// A handler's own stream of deliveries.
pub trait Source: Send {
    /// Returns the next deliveries, at least one and at most `max`; waits until there is one.
    ///
    /// Cancellation: may be dropped while it waits; nothing that was fetched is lost (what the caller did not get is
    /// kept for the next call).
    ///
    /// # Errors
    /// `Unavailable`: call again later.
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<Delivery>, SourceError>>;

    /// Returns how many messages wait: not delivered yet, or delivered and not answered.
    ///
    /// # Errors
    /// `Unavailable`: call again later.
    fn backlog(&mut self) -> BoxFuture<'_, Result<u64, SourceError>>;

    /// Has `part` told whether the source can be reached, from now on.
    fn report_to(&mut self, part: Part) {
        drop(part);
    }

    /// Fetches no more, and gives back what was fetched and not handed over. Deliveries are kept alive still.
    ///
    /// Await it to the end.
    fn stop(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Ends the source: what was fetched and not handed over goes back, and the answers given so far have reached the
    /// broker when this returns, so that the process may exit. Call it when every delivery is answered or dropped;
    /// `next` answers `Unusable` afterwards.
    ///
    /// What cannot be sent (a broker that is gone) is logged and left: the broker delivers again. Dropping the source
    /// instead loses nothing either; the broker just finds out later.
    ///
    /// Await it to the end.
    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// The means to answer for one delivery. Dropping it answers nothing and ends the keeping-alive.
pub(crate) trait Answer: Send + Sync {
    /// Done: never again. Returns when the answer is on its way to the source.
    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<(), SourceError>>;
    /// Never again: it is in the dead letters.
    fn term(self: Box<Self>) -> BoxFuture<'static, Result<(), SourceError>>;
    /// Again, after a delay.
    fn nak(self: Box<Self>, delay: Duration) -> BoxFuture<'static, Result<(), SourceError>>;
    /// In hand no more: the source itself knows whether and when it comes again.
    fn let_go(self: Box<Self>);
}

/// Where a message stands in its source: of two, the one with the smaller place comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Counts, within this process, how often the stream was made anew: its numbers begin again.
    pub generation: u32,
    /// The row's number, or the sequence in the stream.
    pub number: u64,
}

/// One attempt at handing a message over. While it exists, the source is told that it is being worked on
/// (each source does so by itself for all deliveries in hand, a held retry included).
pub struct Delivery {
    /// The message.
    pub incoming: Arc<Incoming>,
    /// How often the source says it delivered this message, from 1. Never used to count attempts.
    pub delivered: u64,
    /// True if the message was probably in hand when a host died, more than once: it runs alone. Innocent ones that
    /// were in hand with it are suspected, too, and so are those that hosts gave back again and again.
    pub is_suspect: bool,
    /// The row's number, if the source is the embedded queue: it is taken inside the message's transaction.
    pub queue_row: Option<i64>,
    /// Where it stands in the source's order.
    pub place: Place,
    /// The value of `order_by`; absent until the pipeline has looked for it, and where there is none.
    pub(crate) order_key: Option<Arc<str>>,
    /// Set if hapax carried the message itself. `incoming` then has the position and time of the source that delivered it first.
    pub carried: Option<Carried>,
    /// When the source handed it over; only where that is traced, and until its first run.
    pub(crate) fetched_at: Option<SystemTime>,
    /// Counted as long as it is in hand.
    in_flight: Option<InFlight>,
    answer: Box<dyn Answer>,
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delivery")
            .field("position", &self.incoming.position)
            .field("delivered", &self.delivered)
            .finish_non_exhaustive()
    }
}

impl Delivery {
    /// Puts a delivery together. `suspicion` counts what may have been deaths of hosts: deliveries, or starts of hosts
    /// that found it waiting.
    pub(crate) fn new(
        incoming: Incoming,
        delivered: u64,
        suspicion: u64,
        queue_row: Option<i64>,
        place: Place,
        answer: Box<dyn Answer>,
    ) -> Self {
        Self {
            incoming: Arc::new(incoming),
            delivered,
            is_suspect: suspicion > UNSUSPECTED_DELIVERIES,
            queue_row,
            place,
            order_key: None,
            carried: None,
            fetched_at: None,
            in_flight: None,
            answer,
        }
    }

    /// Has it in hand no more, without an answer: its row is gone, or says itself when it is due. (From a broker it comes
    /// again after the ack wait.)
    pub(crate) fn let_go(self) {
        self.answer.let_go();
    }

    /// Says that hapax carried the message itself.
    pub(crate) fn carried_from(mut self, carried: Option<Carried>) -> Self {
        self.carried = carried;
        self
    }

    /// Counts it as in hand, until it is answered or dropped.
    pub(crate) fn counted_as(mut self, in_flight: InFlight) -> Self {
        self.in_flight = Some(in_flight);
        self
    }

    /// Has `wrap` put something around the means to answer.
    pub(crate) fn answered_through(
        mut self,
        wrap: impl FnOnce(Box<dyn Answer>) -> Box<dyn Answer>,
    ) -> Self {
        self.answer = wrap(self.answer);
        self
    }

    /// Says that the message is done. `id` is the id under which it was claimed.
    ///
    /// # Errors
    /// `Unavailable`: the source delivers it again, and the claim will find it a duplicate. `Unusable`: the proof does
    /// not cover this message, which is a bug; nothing was answered.
    pub async fn ack(self, id: &MessageId, proof: &Settled) -> Result<(), SourceError> {
        if !proof.covers(id) {
            return Err(SourceError::Unusable(format!(
                "the commit does not cover message `{id}`"
            )));
        }
        let Self {
            answer, in_flight, ..
        } = self;
        answer.ack().await?;
        if let Some(in_flight) = in_flight {
            in_flight.acknowledged();
        }
        Ok(())
    }

    /// Says that the message is in the dead letters.
    ///
    /// # Errors
    /// As `ack`.
    pub async fn term(self, proof: &Parked) -> Result<(), SourceError> {
        if !proof.covers(&self.incoming.position) {
            return Err(SourceError::Unusable(format!(
                "the commit does not cover the message at `{}`",
                self.incoming.position
            )));
        }
        self.answer.term().await
    }

    /// Gives the message back, to be delivered again after `delay`.
    ///
    /// # Errors
    /// `Unavailable`: the source delivers it again by itself.
    pub async fn nak(self, delay: Duration) -> Result<(), SourceError> {
        self.answer.nak(delay).await
    }
}
