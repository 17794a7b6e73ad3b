//! The pipeline: takes a handler's deliveries through their transactions, and decides about failures.
//!
//! **Invariant**: only this room knows the order of the steps; `process.rs` holds it on one page.
//! **Invariant**: every delivery taken from the source is answered, held for a retry, or dropped so that the source
//! delivers it again.

mod ahead;
mod batch;
mod by_hand;
mod counters;
mod dispatch;
mod early;
mod handle;
mod lane;
mod logged;
mod observer;
mod order;
mod outage;
mod park;
mod policy;
mod process;
mod replay;
mod suspect;
mod told;
mod too_old;
mod trace;
mod waiting;

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::config::{ConflictPolicy, HandlerConfig};
use crate::handler::{Handler, Outgoing};
use crate::health::Health;
use crate::message::{ComponentDigest, FailureClass, Header, Message};
use crate::metrics::HandlerMetrics;
use crate::relay::RelayWaker;
use crate::store::{Baton, OutboxRow, Store, StoreError, Tx};
use crate::telemetry::context::caused_by;
use batch::{BatchSizes, Took};
use early::EarlyRunning;
use outage::OutageLog;
use process::Member;

pub(crate) use by_hand::{ByHand, NotDone};
pub use counters::LiveCounters;
pub use dispatch::{LaneDied, Stop, in_hand_max, run};
pub use observer::{BatchObserver, SettledBatch};
pub use suspect::Suspects;
pub use told::{Became, Effects, MessageObserver, MessageTold};

/// What every lane of a handler knows.
#[derive(Debug)]
pub struct HandlerContext {
    name: String,
    consumer: String,
    /// What runs from the next batch on. A batch keeps the one that it began with.
    component: std::sync::RwLock<Handler>,
    store: Arc<Store>,
    config: HandlerConfig,
    counters: LiveCounters,
    metrics: HandlerMetrics,
    /// The baton within this host: lanes queue here, and only hosts meet in the database.
    turns: RwLock<()>,
    sizes: BatchSizes,
    early: EarlyRunning,
    suspects: Arc<Suspects>,
    outage: OutageLog,
    observer: Option<BatchObserver>,
    told: Option<MessageObserver>,
    relay: Option<RelayWaker>,
    /// Is told of what is in the way.
    health: Arc<Health>,
}

/// A lane's turn, until it is dropped.
pub(crate) enum Turn<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

impl HandlerContext {
    /// Puts a handler and its store together. All handlers of a process share one `suspects`.
    pub fn new(
        config: HandlerConfig,
        component: Handler,
        store: Arc<Store>,
        suspects: Arc<Suspects>,
    ) -> Self {
        Self {
            metrics: HandlerMetrics::new(&config.name, component.digest()),
            name: config.name.clone(),
            consumer: config.consumer.clone(),
            component: std::sync::RwLock::new(component),
            store,
            sizes: BatchSizes::new(
                config.batch.max,
                config.lanes,
                std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            ),
            early: EarlyRunning::default(),
            config,
            counters: LiveCounters::default(),
            turns: RwLock::new(()),
            suspects,
            outage: OutageLog::default(),
            observer: None,
            told: None,
            relay: None,
            health: Arc::default(),
        }
    }

    /// Has `relay`, if there is one, woken after commits with rows for it.
    #[must_use]
    pub fn relayed_by(mut self, relay: Option<RelayWaker>) -> Self {
        self.relay = relay;
        self
    }

    /// Has `observer`, if there is one, told of each settled batch.
    #[must_use]
    pub fn observed_by(mut self, observer: Option<BatchObserver>) -> Self {
        self.observer = observer;
        self
    }

    /// Has `observer`, if there is one, told of each message and its effects.
    #[must_use]
    pub fn telling(mut self, observer: Option<MessageObserver>) -> Self {
        if observer.is_some() {
            let component = self.component().showing_effects();
            self.component = std::sync::RwLock::new(component);
        }
        self.told = observer;
        self
    }

    /// Has `health` told of what is in the way.
    #[must_use]
    pub fn reporting_to(mut self, health: Arc<Health>) -> Self {
        self.health = health;
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

    /// Returns how the handler is configured.
    pub fn config(&self) -> &HandlerConfig {
        &self.config
    }

    /// Returns the component that the next batch runs, whatever is swapped in meanwhile.
    pub fn component(&self) -> Handler {
        // A poisoned lock holds a whole value: nothing panics between two halves of one.
        self.component
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Has `component` run from the next batch on. Returns what ran before, which batches that have begun go on with.
    pub fn swap(&self, component: Handler) -> Handler {
        let to = component.digest();
        let component = match self.told {
            None => component,
            Some(_) => component.showing_effects(),
        };
        let before = {
            let mut slot = self
                .component
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *slot, component)
        };
        self.metrics.component(before.digest(), to);
        before
    }

    /// Returns which component the next batch runs.
    pub fn digest(&self) -> ComponentDigest {
        self.component().digest()
    }

    /// Says that this handler runs no more; `next` is the component of the one that takes its place.
    pub fn retired(&self, next: Option<ComponentDigest>) {
        match next {
            Some(next) => self.metrics.component(self.digest(), next),
            None => self.metrics.stopped(self.digest()),
        }
    }

    /// Returns what the handler has done since the last call of `LiveCounters::take`.
    pub fn counters(&self) -> &LiveCounters {
        &self.counters
    }

    /// Waits until no batch of this handler runs in this host, or, for a batch, until nothing of it does.
    async fn turn(&self, baton: Baton) -> Turn<'_> {
        match baton {
            Baton::Shared => Turn::Shared {
                _guard: self.turns.read().await,
            },
            Baton::Alone | Baton::AloneForBatch => Turn::Alone {
                _guard: self.turns.write().await,
            },
        }
    }

    /// Returns how a transaction of `batch` holds the baton.
    fn baton_of(&self, batch: &[Member]) -> Baton {
        match batch.len() {
            1 if self.sizes.is_apart() && self.config.order.is_none() => Baton::Shared,
            1 => Baton::Alone,
            _ => Baton::AloneForBatch,
        }
    }

    /// Takes the rows of the embedded queue among the deliveries of `batch`, and drops the members whose row is not to be had.
    async fn take_rows(&self, tx: &mut Tx, batch: &mut Vec<Member>) -> Result<(), StoreError> {
        let numbers: Vec<i64> = batch
            .iter()
            .filter_map(|member| member.delivery.queue_row)
            .collect();
        if numbers.is_empty() {
            return Ok(());
        }
        let is_ordered = self.config.order.is_some();
        let taken: HashSet<i64> = match is_ordered {
            false => tx.take_queue_rows(&numbers).await?,
            true => tx.take_due_queue_rows(&numbers).await?,
        }
        .into_iter()
        .collect();
        let is_ours = |member: &Member| {
            let row = member.delivery.queue_row;
            row.is_none_or(|number| taken.contains(&number))
        };
        let (ours, others): (Vec<Member>, Vec<Member>) =
            std::mem::take(batch).into_iter().partition(is_ours);
        *batch = ours;
        if is_ordered {
            // Gone, or waiting in the table until it is due.
            others
                .into_iter()
                .for_each(|member| member.delivery.let_go());
        }
        Ok(())
    }

    /// Counts what a commit settled, and learns how many messages fit into the time that locks may be held.
    fn batch_committed(&self, took: &Took, too_old: usize, conflicts: usize) {
        let (size, handled) = took.counts();
        self.metrics.committed(size);
        self.settled(
            handled as u64,
            (size - handled - too_old - conflicts) as u64,
        );
        self.dead(FailureClass::TooOld, too_old as u64);
        self.dead(FailureClass::Conflict, conflicts as u64);
        self.sizes.committed(took, self.config.batch.max_hold);
    }

    /// Counts a batch whose transaction is committed, and tells of it.
    fn settled(&self, claimed: u64, duplicates: u64) {
        self.counters.settled(claimed, duplicates);
        self.metrics.settled(claimed, duplicates);
        if let Some(observer) = &self.observer {
            observer.tell(&SettledBatch {
                handler: self.name.clone(),
                claimed,
                duplicates,
            });
        }
    }

    /// Counts messages that are in the dead letters now.
    fn dead(&self, class: FailureClass, messages: u64) {
        self.counters.dead(messages);
        self.metrics.dead(class, messages);
    }

    /// Wakes the relay if a commit left rows for it.
    fn wake_relay(&self, rows: &[OutboxRow]) {
        if let (Some(relay), false) = (&self.relay, rows.is_empty()) {
            relay.wake();
        }
    }

    fn ignores_conflicts(&self) -> bool {
        self.config.conflict == ConflictPolicy::Ignore
    }

    /// Makes a row of what was published on behalf of `message`; `cause` holds the headers that name what caused it.
    fn outbox_row(&self, message: &Message, outgoing: Outgoing, cause: &[Header]) -> OutboxRow {
        OutboxRow {
            id: outgoing.id,
            consumer: self.consumer.clone(),
            message_id: message.id.clone(),
            ordinal: outgoing.ordinal,
            target: outgoing.target,
            subject: outgoing.subject,
            key: outgoing.key,
            headers: caused_by(outgoing.headers, cause),
            content_type: outgoing.content_type,
            payload: outgoing.payload,
            not_before: outgoing.not_before,
        }
    }
}
