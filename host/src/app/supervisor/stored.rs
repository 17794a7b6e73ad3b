//! Handlers whose component the store holds: they wait until there is one, and can lose it again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use super::change::{ChangeError, ComponentBytes, Phase};
use super::{Entry, Inner, Ready, Supervisor, to_its_end};
use crate::app::prepare::prepare_handler;
use crate::app::run::sweep_marks_of;
use crate::config::HandlerConfig;
use crate::exit::CommandError;
use crate::handler::{ComponentInfo, Handler};
use crate::message::ComponentDigest;

impl Supervisor {
    /// Makes a component of the store ready for a handler of the start.
    ///
    /// # Errors
    /// It is refused.
    pub(in crate::app) async fn load_at_start(
        &self,
        handler: &HandlerConfig,
        component: ComponentBytes,
    ) -> Result<Handler, CommandError> {
        let targets = &self.config().targets;
        let loaded = self.inner.loader.load_at_start(handler, targets, component);
        loaded
            .await
            .map_err(|error| CommandError::component(&handler.name, &error))
    }

    /// Puts a handler of the start into its place: it waits for a component.
    pub(in crate::app) fn wait_at_start(&self, handler: &HandlerConfig) {
        self.inner.place_waiting(handler);
    }

    /// Puts handlers of the start into their places without starting them.
    pub(in crate::app) async fn pause_at_start(&self, all: Vec<Ready>) {
        for ready in all {
            self.inner.place_paused(ready).await;
        }
    }

    /// Checks, compiles and links a component for the handler `name`, and changes nothing.
    ///
    /// # Errors
    /// Why it can't run there.
    pub(in crate::app) async fn check(
        &self,
        name: &str,
        component: ComponentBytes,
    ) -> Result<ComponentInfo, ChangeError> {
        let config = self.config();
        let handler = config.handlers.get(name);
        let handler = handler.ok_or_else(|| ChangeError::NoHandler(name.to_owned()))?;
        let room = self.inner.room_beside_others(handler).await?;
        let loader = &self.inner.loader;
        let loaded = loader
            .load(&room.runtime, handler, &config.targets, component)
            .await
            .map_err(|error| CommandError::component(name, &error))?;
        Ok(loaded.info().clone())
    }

    /// Has the handler `name` run this component: as `swap`, and a handler that waits for one starts, or stands still if it `is_paused`.
    ///
    /// # Errors
    /// Why the handler goes on as it was. What is refused is in the log already.
    pub(in crate::app) async fn activate(
        &self,
        name: &str,
        component: ComponentBytes,
        is_paused: bool,
    ) -> Result<(), ChangeError> {
        if self.digest(name).is_some() {
            return self.swap(name, component).await.map(|_| ());
        }
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        to_its_end(async move {
            let _turn = inner.turn.lock().await;
            let started = inner.start_stored(&name, component, is_paused).await;
            inner.note_start(&name, &started);
            started
        })
        .await
    }

    /// Takes the component away from the handler `name`: what runs is finished, all else is given back, and it waits for another one.
    ///
    /// # Errors
    /// There is no such handler, or the host drains.
    pub(in crate::app) async fn withdraw(&self, name: &str) -> Result<(), ChangeError> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        to_its_end(async move {
            let _turn = inner.turn.lock().await;
            let config = inner.config();
            let Some(handler) = config.handlers.get(&name) else {
                return Err(ChangeError::NoHandler(name));
            };
            if inner.state().is_draining {
                return Err(ChangeError::Draining);
            }
            let _alive = inner.running.one_more();
            inner.stop(std::slice::from_ref(&name)).await;
            inner.retire(&name, None);
            inner.place_waiting(handler);
            Ok(())
        })
        .await
    }
}

impl Inner {
    async fn start_stored(
        &self,
        name: &str,
        component: ComponentBytes,
        is_paused: bool,
    ) -> Result<(), ChangeError> {
        let config = self.config();
        let Some(handler) = config.handlers.get(name) else {
            return Err(ChangeError::NoHandler(name.to_owned()));
        };
        if self.state().is_draining {
            return Err(ChangeError::Draining);
        }
        let room = self.room_beside_others(handler).await?;
        let loaded = self
            .loader
            .load(&room.runtime, handler, &config.targets, component)
            .await
            .map_err(|error| CommandError::component(name, &error))?;
        prepare_handler(&self.rooms.store, handler).await?;
        let connected = self.connect(&config, handler).await?;
        sweep_marks_of(&self.rooms.store, handler).await;
        let ready = self.ready(handler.clone(), loaded, room, connected);
        if is_paused {
            self.place_paused(ready).await;
            return Ok(());
        }
        self.launch(ready)
    }

    fn note_start(&self, name: &str, started: &Result<(), ChangeError>) {
        let error = started.as_ref().err().map(ToString::to_string);
        if let Err(why) = started {
            let is_known = self.last_error(name) == error;
            if !(is_known && why.is_passing()) {
                tracing::error!(
                    handler = name,
                    reason = %why,
                    hint = why.hint(),
                    "the component is not in force; the handler waits"
                );
            }
        }
        if let Some(entry) = self.state().entries.get_mut(name) {
            entry.last_error = error;
        }
    }

    /// Returns a runtime for a handler beside all others that run.
    async fn room_beside_others(
        &self,
        handler: &HandlerConfig,
    ) -> Result<super::Room, ChangeError> {
        let without = BTreeSet::from([handler.name.clone()]);
        let room = self.loader.room(handler, self.lanes_taken(&without)).await;
        Ok(room?)
    }

    /// Returns how many lanes of the shared runtime those that run take, without these.
    pub(super) fn lanes_taken(&self, without: &BTreeSet<String>) -> usize {
        let state = self.state();
        let others = state
            .entries
            .iter()
            .filter(|(name, _)| !without.contains(*name));
        others
            .filter_map(|(_, entry)| entry.ran.as_ref())
            .map(|ran| ran.room.shared_lanes)
            .sum()
    }

    /// Has a handler wait for its component.
    pub(super) fn place_waiting(&self, handler: &HandlerConfig) {
        tracing::info!(
            handler = %handler.name,
            hint = %format!("`hapax handlers deploy {} FILE`", handler.name),
            "waiting for its component to be deployed"
        );
        let entry = Entry {
            consumer: handler.consumer.clone(),
            ran: None,
            pipeline: None,
            phase: Phase::Waiting,
            since: SystemTime::now(),
            last_error: None,
            _down: None,
        };
        let mut state = self.state();
        state.entries.insert(handler.name.clone(), entry);
    }

    /// Reads the active component of a handler of the store's, `None` if nothing is deployed.
    pub(super) async fn stored_component(
        &self,
        handler: &HandlerConfig,
    ) -> Result<Option<ComponentBytes>, ChangeError> {
        let away = |error: &dyn std::fmt::Display| ChangeError::Away {
            problem: format!("what is deployed cannot be asked: {error}"),
            hint: "it is tried again; check that the database runs".into(),
        };
        let mut connection = self
            .rooms
            .store
            .connect(&crate::app::own_session("reload"))
            .await
            .map_err(|error| away(&error))?;
        let states = connection
            .wanted_states()
            .await
            .map_err(|error| away(&error))?;
        let active = states
            .into_iter()
            .find(|state| state.handler == handler.name)
            .and_then(|state| state.active);
        let Some((number, digest)) = active else {
            return Ok(None);
        };
        let bytes = connection
            .component_bytes(digest)
            .await
            .map_err(|error| away(&error))?;
        ComponentBytes::of_store(number, digest, bytes).map(Some)
    }
}

impl ComponentBytes {
    /// A component as the store holds it.
    ///
    /// # Errors
    /// It is not the one that was deployed.
    pub(in crate::app) fn of_store(
        number: u64,
        digest: ComponentDigest,
        bytes: Option<Vec<u8>>,
    ) -> Result<Self, ChangeError> {
        let found = bytes.filter(|bytes| ComponentDigest::of(bytes) == digest);
        match found {
            Some(bytes) => Ok(Self {
                bytes: bytes.into(),
                origin: format!("deployment {number}"),
            }),
            None => Err(ChangeError::Refused {
                problem: format!(
                    "the component of deployment {number} is damaged or missing in the store: it is not `{digest}`"
                ),
                hint: "restore the store's table of components, or deploy another build".into(),
            }),
        }
    }
}
