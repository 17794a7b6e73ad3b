//! The pipeline: takes a handler's deliveries through their transactions, and decides about failures.
//!
//! **Invariant**: only this room knows the order of the steps; `process.rs` holds it on one page.
//! **Invariant**: every delivery taken from the source is answered, held for a retry, or dropped so that the source
//! delivers it again.

mod counters;
mod dispatch;
mod lane;
mod observer;
mod park;
mod policy;
mod process;

use std::sync::Arc;

use crate::config::{ConflictPolicy, HandlerConfig};
use crate::handler::{Handler, Outgoing};
use crate::message::Message;
use crate::store::{OutboxRow, Store};

pub use counters::LiveCounters;
pub use dispatch::{Stop, in_hand_max, run};
pub use observer::{BatchObserver, SettledBatch};

/// What every lane of a handler knows.
#[derive(Debug)]
pub struct HandlerContext {
    name: String,
    consumer: String,
    component: Handler,
    store: Arc<Store>,
    config: HandlerConfig,
    counters: LiveCounters,
    observer: Option<BatchObserver>,
}

impl HandlerContext {
    /// Puts a handler and its store together.
    pub fn new(config: HandlerConfig, component: Handler, store: Arc<Store>) -> Self {
        Self {
            name: config.name.clone(),
            consumer: config.consumer.clone(),
            component,
            store,
            config,
            counters: LiveCounters::default(),
            observer: None,
        }
    }

    /// Has `observer`, if there is one, told of each settled batch.
    #[must_use]
    pub fn observed_by(mut self, observer: Option<BatchObserver>) -> Self {
        self.observer = observer;
        self
    }

    /// Returns the handler's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the key of the handler's claims.
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Returns what the handler has done since the last call of `LiveCounters::take`.
    pub fn counters(&self) -> &LiveCounters {
        &self.counters
    }

    /// Counts a batch whose transaction is committed, and tells of it.
    fn settled(&self, claimed: u64, duplicates: u64) {
        self.counters.settled(claimed, duplicates);
        if let Some(observer) = &self.observer {
            observer.tell(&SettledBatch {
                handler: self.name.clone(),
                claimed,
                duplicates,
            });
        }
    }

    fn ignores_conflicts(&self) -> bool {
        self.config.conflict == ConflictPolicy::Ignore
    }

    fn outbox_rows(
        &self,
        message: &Message,
        published: Vec<Outgoing>,
    ) -> impl Iterator<Item = OutboxRow> {
        let consumer = self.consumer.clone();
        let message_id = message.id.clone();
        published.into_iter().map(move |outgoing| OutboxRow {
            id: outgoing.id,
            consumer: consumer.clone(),
            message_id: message_id.clone(),
            ordinal: outgoing.ordinal,
            target: outgoing.target,
            subject: outgoing.subject,
            key: outgoing.key,
            headers: outgoing.headers,
            content_type: outgoing.content_type,
            payload: outgoing.payload,
            not_before: outgoing.not_before,
        })
    }
}
