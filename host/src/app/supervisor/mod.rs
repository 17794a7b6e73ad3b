//! The handlers that run in this process: started, swapped, paused and stopped while the others go on.
//!
//! `app/run.rs` starts them here as well: there is one way to start a handler.
//!
//! **Invariant**: one change is made at a time, and whatever stops it half-way leaves the handler as it was.
//! **Invariant**: of two pipelines for one consumer the first has ended before the second begins.
//! **Invariant**: once the host drains, no pipeline is started.

mod change;
mod compare;
mod loader;
mod reload;
mod running;
mod stored;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::{mpsc, watch};

use super::prepare::{ConnectedSource, prepare_handler, try_source};
use super::prune::Rules;
use super::reconcile::Reconciling;
use super::run::relayed;
use crate::config::{Config, HandlerConfig, SourceConfig};
use crate::exit::{CommandError, Exit};
use crate::handler::Handler;
use crate::health::{Health, Part};
use crate::idle::{IdleBoard, Seat};
use crate::message::ComponentDigest;
use crate::pipeline::{BatchObserver, HandlerContext, MessageObserver, Stop, Suspects};
use crate::relay::{RelayWaker, RelayedHandler};
use crate::store::Store;
use loader::Room;
use running::{Pipeline, Running};

pub use change::{Change, ChangeError, ComponentBytes, HandlerState, Phase, Swapped};
pub(super) use loader::{Loader, room_for};

/// What all handlers of a process are built with.
pub(super) struct Rooms {
    pub(super) store: Arc<Store>,
    pub(super) health: Arc<Health>,
    pub(super) suspects: Arc<Suspects>,
    pub(super) observer: Option<BatchObserver>,
    pub(super) told: Option<MessageObserver>,
    pub(super) waker: Option<RelayWaker>,
    /// Set if the process ends when nobody has anything to do.
    pub(super) board: Option<Arc<IdleBoard>>,
    /// Is told whose rows are relayed.
    pub(super) relayed: watch::Sender<Vec<RelayedHandler>>,
    /// Is told what may be pruned.
    pub(super) rules: watch::Sender<Rules>,
    /// Is told whose checkpoints are kept.
    pub(super) reconciling: mpsc::UnboundedSender<Reconciling>,
    /// Is told what is in force.
    pub(super) in_force: watch::Sender<Arc<Config>>,
}

/// The handlers that run. Cheap to clone.
#[derive(Clone)]
pub struct Supervisor {
    inner: Arc<Inner>,
}

struct Inner {
    rooms: Rooms,
    loader: Loader,
    running: Running,
    /// Held through a change.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

struct State {
    /// What is in force.
    config: Arc<Config>,
    entries: BTreeMap<String, Entry>,
    /// Their last counts are still to be written.
    retired: Vec<Arc<HandlerContext>>,
    is_draining: bool,
}

struct Entry {
    consumer: String,
    /// Absent if it never ran.
    ran: Option<Ran>,
    pipeline: Option<Pipeline>,
    phase: Phase,
    since: SystemTime,
    last_error: Option<String>,
    /// Down while a handler of the configuration does not run.
    _down: Option<Part>,
}

#[derive(Clone)]
struct Ran {
    context: Arc<HandlerContext>,
    room: Room,
}

/// A handler with everything that it takes to run.
pub(super) struct Ready {
    context: Arc<HandlerContext>,
    room: Room,
    connected: ConnectedSource,
    seat: Option<Seat>,
}

impl Supervisor {
    /// Makes one for `config`, of which nothing runs yet.
    pub(super) fn new(config: Config, loader: Loader, rooms: Rooms) -> Self {
        Self {
            inner: Arc::new(Inner {
                rooms,
                loader,
                running: Running::default(),
                turn: tokio::sync::Mutex::default(),
                state: Mutex::new(State {
                    config: Arc::new(config),
                    entries: BTreeMap::new(),
                    retired: Vec::new(),
                    is_draining: false,
                }),
            }),
        }
    }

    /// Puts a handler of the start together. All of them are made ready before the first is started.
    pub(super) fn ready_at_start(
        &self,
        config: HandlerConfig,
        component: Handler,
        connected: ConnectedSource,
    ) -> Ready {
        let room = self.inner.loader.room_at_start(&config);
        self.inner.ready(config, component, room, connected)
    }

    /// Starts the handlers of the start.
    pub(super) fn start(&self, all: Vec<Ready>) {
        for ready in all {
            // At the drain there is nobody to tell.
            let _ = self.inner.launch(ready);
        }
        let config = self.config();
        self.inner.rooms.relayed.send_replace(relayed(&config));
        self.inner.rooms.rules.send_replace(Rules::of(&config));
    }

    /// Has the handler `name` run another component from the next batch on; batches that have begun end with what they began with.
    ///
    /// Checks, compiles and links it, and applies the handler's new migrations first. The same component changes nothing. Goes on
    /// to its end if the caller does not wait for it.
    ///
    /// # Errors
    /// Why the handler goes on with what it runs. It is in the log already.
    pub async fn swap(
        &self,
        name: &str,
        component: ComponentBytes,
    ) -> Result<Swapped, ChangeError> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        to_its_end(async move {
            let _turn = inner.turn.lock().await;
            let swapped = inner.swap(&name, component).await;
            inner.note_swap(&name, &swapped);
            swapped
        })
        .await
    }

    /// Has the handler `name` consume nothing any more: what runs is finished, all else is given back. It is not down then.
    ///
    /// # Errors
    /// There is no such handler, or the host drains.
    pub async fn pause(&self, name: &str) -> Result<(), ChangeError> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        to_its_end(async move {
            let _turn = inner.turn.lock().await;
            inner.pause(&name).await
        })
        .await
    }

    /// Has a paused handler consume again.
    ///
    /// # Errors
    /// There is no such handler, its source cannot serve it, or the host drains.
    pub async fn resume(&self, name: &str) -> Result<(), ChangeError> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        to_its_end(async move {
            let _turn = inner.turn.lock().await;
            inner.resume(&name).await
        })
        .await
    }

    /// Returns what each handler does, by name.
    pub fn list(&self) -> Vec<HandlerState> {
        let state = self.inner.state();
        let entries = state.entries.iter();
        entries
            .map(|(name, entry)| HandlerState {
                name: name.clone(),
                consumer: entry.consumer.clone(),
                digest: entry.ran.as_ref().map(|ran| ran.context.digest()),
                phase: entry.phase.clone(),
                since: entry.since,
                last_error: entry.last_error.clone(),
            })
            .collect()
    }

    /// Returns the configuration that is in force.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.inner.state().config)
    }

    /// Returns what the handler `name` runs, or would if it were not paused.
    pub fn digest(&self, name: &str) -> Option<ComponentDigest> {
        let state = self.inner.state();
        let ran = state.entries.get(name)?.ran.as_ref()?;
        Some(ran.context.digest())
    }

    /// Has every handler take no more, and starts none any more.
    pub(super) fn drain(&self) {
        let mut state = self.inner.state();
        state.is_draining = true;
        for pipeline in state
            .entries
            .values()
            .filter_map(|entry| entry.pipeline.as_ref())
        {
            pipeline.drain();
        }
        self.inner.running.draining();
    }

    /// Waits until a pipeline has died, which is a bug.
    pub(super) async fn death(&self) {
        self.inner.running.death().await;
    }

    /// True if one has.
    pub(super) fn has_died(&self) -> bool {
        self.inner.running.has_died()
    }

    /// Waits until no handler runs any more, after the drain or because all are idle.
    pub(super) async fn end(&self) {
        let until_idle = self.inner.rooms.board.is_some();
        self.inner.running.end(until_idle).await;
    }

    /// Returns all whose counts are to be written.
    pub(super) fn counted(&self) -> Vec<Arc<HandlerContext>> {
        let state = self.inner.state();
        let ran = state
            .entries
            .values()
            .filter_map(|entry| entry.ran.as_ref());
        ran.map(|ran| Arc::clone(&ran.context))
            .chain(state.retired.iter().cloned())
            .collect()
    }

    /// Says that the counts of all of `counted` are written: those that run no more need not be asked again.
    pub(super) fn are_counted(&self, counted: &[Arc<HandlerContext>]) {
        self.inner
            .state()
            .retired
            .retain(|retired| !counted.iter().any(|one| Arc::ptr_eq(one, retired)));
    }
}

/// Returns the source of a handler.
pub(super) fn source_of<'a>(
    config: &'a Config,
    handler: &HandlerConfig,
) -> Result<&'a SourceConfig, CommandError> {
    config.sources.get(&handler.source).ok_or_else(|| {
        CommandError::new(
            Exit::Bug,
            format!(
                "handler `{}`: its source vanished after the check",
                handler.name
            ),
            None,
        )
    })
}

/// Runs a change that is not cut off when nobody waits for it any more.
async fn to_its_end<T: Send + 'static>(
    change: impl Future<Output = Result<T, ChangeError>> + Send + 'static,
) -> Result<T, ChangeError> {
    match tokio::spawn(change).await {
        Ok(changed) => changed,
        Err(error) => Err(ChangeError::Refused {
            problem: format!("the change ended half-way: {error}"),
            hint: "this is a bug: report it, with the log's lines before this one".into(),
        }),
    }
}

impl Inner {
    /// Each change under it is whole, and nothing panics with it held.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready(
        &self,
        config: HandlerConfig,
        component: Handler,
        room: Room,
        connected: ConnectedSource,
    ) -> Ready {
        let rooms = &self.rooms;
        let context = HandlerContext::new(
            config,
            component,
            Arc::clone(&rooms.store),
            Arc::clone(&rooms.suspects),
        )
        .observed_by(rooms.observer.clone())
        .telling(rooms.told.clone())
        .relayed_by(rooms.waker.clone())
        .reporting_to(Arc::clone(&rooms.health));
        Ready {
            context: Arc::new(context),
            room,
            connected,
            seat: self.seat(),
        }
    }

    fn seat(&self) -> Option<Seat> {
        self.rooms.board.as_ref().map(IdleBoard::seat)
    }

    /// Starts a handler whose consumer no other pipeline serves.
    fn launch(&self, ready: Ready) -> Result<(), ChangeError> {
        let Ready {
            context,
            room,
            connected,
            seat,
        } = ready;
        let mut state = self.state();
        if state.is_draining {
            // Dropping the source loses nothing.
            return Err(ChangeError::Draining);
        }
        let name = context.name().to_owned();
        tracing::info!(
            handler = context.name(),
            consumer = context.consumer(),
            "consuming"
        );
        if let Some(reconciled) = connected.reconciled {
            let _ = self
                .rooms
                .reconciling
                .send(Reconciling::Begins(Box::new(reconciled)));
        }
        let when = seat.map_or(Stop::WhenDrained, Stop::WhenIdle);
        let pipeline = self
            .running
            .start(Arc::clone(&context), connected.source, when);
        let entry = Entry {
            consumer: context.consumer().to_owned(),
            ran: Some(Ran { context, room }),
            pipeline: Some(pipeline),
            phase: Phase::Running,
            since: SystemTime::now(),
            last_error: None,
            _down: None,
        };
        state.entries.insert(name, entry);
        Ok(())
    }

    fn ran(&self, name: &str) -> Result<Ran, ChangeError> {
        let state = self.state();
        if state.is_draining {
            return Err(ChangeError::Draining);
        }
        let entry = state.entries.get(name);
        entry
            .and_then(|entry| entry.ran.clone())
            .ok_or_else(|| ChangeError::NoHandler(name.to_owned()))
    }

    async fn swap(&self, name: &str, component: ComponentBytes) -> Result<Swapped, ChangeError> {
        let Ran { context, room } = self.ran(name)?;
        let from = context.digest();
        let to = ComponentDigest::of(&component.bytes);
        if from == to {
            return Ok(Swapped { from, to });
        }
        let config = context.config();
        let targets = self.state().config.targets.clone();
        let loaded = self
            .loader
            .load(&room.runtime, config, &targets, component)
            .await
            .map_err(|error| CommandError::component(name, &error))?;
        prepare_handler(&self.rooms.store, config).await?;
        context.swap(loaded);
        Ok(Swapped { from, to })
    }

    fn note_swap(&self, name: &str, swapped: &Result<Swapped, ChangeError>) {
        let error = swapped.as_ref().err();
        match swapped {
            Err(why) if why.is_passing() && self.last_error(name) == Some(why.to_string()) => {
                tracing::debug!(handler = name, reason = %why, "still");
            }
            Ok(Swapped { from, to }) if from == to => {
                tracing::debug!(handler = name, component = %to, "runs already");
            }
            Ok(Swapped { from, to }) => {
                tracing::info!(handler = name, component = %to, before = %from, "swapped");
            }
            Err(why) => tracing::error!(
                handler = name,
                reason = %why,
                hint = why.hint(),
                "the new component is not in force; the one before goes on"
            ),
        }
        let mut state = self.state();
        if let Some(entry) = state.entries.get_mut(name) {
            entry.last_error = error.map(ToString::to_string);
            if swapped
                .as_ref()
                .is_ok_and(|swapped| swapped.from != swapped.to)
            {
                entry.since = SystemTime::now();
            }
        }
    }

    fn last_error(&self, name: &str) -> Option<String> {
        self.state().entries.get(name)?.last_error.clone()
    }

    async fn pause(&self, name: &str) -> Result<(), ChangeError> {
        self.ran(name)?;
        let _alive = self.running.one_more();
        self.stop(&[name.to_owned()]).await;
        let mut state = self.state();
        if let Some(entry) = state.entries.get_mut(name)
            && entry.phase != Phase::Paused
        {
            entry.phase = Phase::Paused;
            entry.since = SystemTime::now();
            tracing::info!(handler = name, "paused on request");
        }
        Ok(())
    }

    async fn resume(&self, name: &str) -> Result<(), ChangeError> {
        let Ran { context, room } = self.ran(name)?;
        let _alive = self.running.one_more();
        if self.has_pipeline(name) {
            return Ok(());
        }
        let connected = self.connect(&self.config(), context.config()).await?;
        let seat = self.seat();
        self.launch(Ready {
            context,
            room,
            connected,
            seat,
        })
    }

    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.state().config)
    }

    fn has_pipeline(&self, name: &str) -> bool {
        let state = self.state();
        let entry = state.entries.get(name);
        entry.is_some_and(|entry| entry.pipeline.is_some())
    }

    /// Connects a handler's source, if that can be had now.
    async fn connect(
        &self,
        config: &Config,
        handler: &HandlerConfig,
    ) -> Result<ConnectedSource, ChangeError> {
        let source = source_of(config, handler)?;
        try_source(source, handler, &self.rooms.store, &self.rooms.health)
            .await
            .map_err(|error| ChangeError::source(&source.name, &error))
    }

    /// Ends pipelines: what runs is finished, all else is given back.
    async fn stop(&self, names: &[String]) {
        let pipelines: Vec<Pipeline> = {
            let mut state = self.state();
            let pipelines = names
                .iter()
                .filter_map(|name| state.entries.get_mut(name)?.pipeline.take());
            pipelines.collect()
        };
        for pipeline in &pipelines {
            pipeline.drain();
        }
        for pipeline in pipelines {
            pipeline.ended().await;
        }
        for name in names {
            let _ = self.rooms.reconciling.send(Reconciling::Ends(name.clone()));
        }
    }
}
