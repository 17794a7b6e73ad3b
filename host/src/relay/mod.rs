//! The relay: publishes committed rows of the outbox, then marks them.
//!
//! A row leaves at least once, always under the same id: a host that dies between the confirmation and the mark publishes it
//! again. Into a queue of the store it is put by the transaction that marks it, exactly once.
//!
//! **Invariant**: a row is marked as published only after its target has confirmed it.
//! **Invariant**: rows of one consumer and key are published one after the other; one that fails holds only its key.
//! **Invariant**: a target that is away or slow delays no other: each has a lane of its own.

mod lane;
mod target;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, watch};

use crate::config::{OutboxConfig, TargetConfig, TargetKind};
use crate::idle::IdleBoard;
use crate::news::News;
use crate::store::{Store, StoreError};
use crate::text::one_line;
use lane::Lane;
use target::Target;

/// Tells the relay of this process that a transaction with rows for it has committed.
#[derive(Clone, Debug)]
pub struct RelayWaker {
    lanes: Arc<Wakes>,
    board: Arc<IdleBoard>,
}

impl RelayWaker {
    /// Wakes it.
    pub fn wake(&self) {
        self.board.busy();
        self.lanes.wake_all();
    }
}

/// What wakes each lane.
#[derive(Debug)]
struct Wakes(Vec<Arc<Notify>>);

impl Wakes {
    fn wake_all(&self) {
        for lane in &self.0 {
            lane.notify_one();
        }
    }
}

/// A handler whose rows are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayedHandler {
    /// Its name, for the log.
    pub name: String,
    /// Whose rows.
    pub consumer: String,
    /// Where rows go that name no target.
    pub target: Option<String>,
}

/// Publishes the rows of a process's handlers.
pub struct Relay {
    lanes: Vec<Lane>,
    wakes: Arc<Wakes>,
    board: Arc<IdleBoard>,
}

/// What all lanes share.
struct Shared {
    store: Arc<Store>,
    settings: OutboxConfig,
    wakes: Arc<Wakes>,
    board: Arc<IdleBoard>,
    /// Of the database that is in the way.
    news: Mutex<News>,
}

impl Shared {
    fn tell(&self, error: &StoreError) {
        let why = one_line(&error.to_string());
        match error {
            StoreError::Busy(_) => tracing::debug!(%why, "the relay looks again"),
            _ if self.news().is_news(&why) => tracing::warn!(%why, "the relay is paused"),
            _ => {}
        }
    }

    fn all_is_well(&self) {
        if self.news().is_over() {
            tracing::info!("the relay goes on");
        }
    }

    /// Nothing panics with the lock held, and each change is whole.
    fn news(&self) -> std::sync::MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Relay {
    /// Makes a relay for `handlers`, which may change while it runs, that publishes to `targets`. Connects when it runs, once for each broker and once for all queues
    /// of the store.
    pub fn new(
        store: Arc<Store>,
        handlers: watch::Receiver<Vec<RelayedHandler>>,
        targets: &BTreeMap<String, TargetConfig>,
        settings: OutboxConfig,
        board: Arc<IdleBoard>,
    ) -> Self {
        // A queue is as near as the store itself: one of them can't be away alone.
        let (queues, brokers): (Vec<_>, Vec<_>) = targets
            .iter()
            .partition(|(_, config)| matches!(config.kind, TargetKind::Queue { .. }));
        let mut of_lanes: Vec<Vec<_>> = brokers.into_iter().map(|broker| vec![broker]).collect();
        if !queues.is_empty() {
            of_lanes.push(queues);
        }
        let wakes = Arc::new(Wakes(of_lanes.iter().map(|_| Arc::default()).collect()));
        let shared = Arc::new(Shared {
            store,
            settings,
            wakes: Arc::clone(&wakes),
            board: Arc::clone(&board),
            news: Mutex::default(),
        });
        let lanes = of_lanes.into_iter().zip(&wakes.0).enumerate();
        let lanes = lanes.map(|(number, (targets, wake))| {
            let targets = targets
                .into_iter()
                .map(|(name, config)| (name.clone(), Target::new(name, config)))
                .collect();
            Lane::new(
                Arc::clone(&shared),
                Arc::clone(wake),
                number == 0,
                handlers.clone(),
                targets,
            )
        });
        let lanes = lanes.collect();
        Self {
            lanes,
            wakes,
            board,
        }
    }

    /// Returns what wakes it.
    pub fn waker(&self) -> RelayWaker {
        RelayWaker {
            lanes: Arc::clone(&self.wakes),
            board: Arc::clone(&self.board),
        }
    }

    /// Has it end when nobody in this process has anything to do: takes its seats at the board.
    pub fn until_idle(mut self) -> Self {
        for lane in &mut self.lanes {
            lane.seat = Some(self.board.seat());
        }
        self
    }

    /// Runs until the drain. What is in hand then is marked or given back. Await it to the end; where that takes too long, dropping it
    /// gives back what is in hand.
    pub async fn run(self, drain: watch::Receiver<bool>) {
        futures_util::future::join_all(self.lanes.into_iter().map(|lane| lane.run(drain.clone())))
            .await;
    }
}
