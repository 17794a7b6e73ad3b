//! Makes components ready to run: reads, checks, compiles and links them, and gives each handler a Wasm runtime that is large enough.
//!
//! **Invariant**: at most `COMPILES_MAX` components are compiled at once, none of them on a thread that messages run on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::change::ComponentBytes;
use crate::app::check::{check_pin, handler_options};
use crate::app::run::{checked_runtime, open_cache};
use crate::config::{Config, HandlerConfig, TargetConfig};
use crate::exit::CommandError;
use crate::handler::{Cache, Handler, LoadError, Runtime, RuntimeOptions, read_component};
use crate::message::ComponentDigest;

/// How many components are compiled at once: a compiler keeps a core busy, and messages need theirs.
const COMPILES_MAX: usize = 1;

/// Loads components.
#[derive(Debug)]
pub(in crate::app) struct Loader {
    shared: Runtime,
    room: RuntimeOptions,
    cache: Option<Arc<Cache>>,
    compiles: Semaphore,
}

/// A runtime for one handler.
#[derive(Clone, Debug)]
pub(super) struct Room {
    pub(super) runtime: Runtime,
    /// The lanes that it takes of the runtime that the handlers of the start share; 0 on one of its own.
    pub(super) shared_lanes: usize,
}

impl Loader {
    /// Makes the runtime for the handlers of a configuration.
    pub(in crate::app) async fn new(config: &Config) -> Result<Self, CommandError> {
        let room = room_for(config.handlers.values());
        let cache = open_cache(config);
        Ok(Self {
            shared: checked_runtime(&room, cache.clone()).await?,
            room,
            cache,
            compiles: Semaphore::new(COMPILES_MAX),
        })
    }

    /// Returns a runtime for `handler`, beside others that have `lanes_taken` of the shared one: that one, unless it is too small.
    pub(super) async fn room(
        &self,
        handler: &HandlerConfig,
        lanes_taken: usize,
    ) -> Result<Room, CommandError> {
        let wants = room_for([handler]);
        if wants.memory_max_bytes <= self.room.memory_max_bytes
            && lanes_taken + handler.lanes <= self.room.calls_max
        {
            return Ok(Room {
                runtime: self.shared.clone(),
                shared_lanes: handler.lanes,
            });
        }
        Ok(Room {
            runtime: checked_runtime(&wants, self.cache.clone()).await?,
            shared_lanes: 0,
        })
    }

    /// Returns the runtime that was made for the handlers of the start.
    pub(super) fn room_at_start(&self, handler: &HandlerConfig) -> Room {
        Room {
            runtime: self.shared.clone(),
            shared_lanes: handler.lanes,
        }
    }

    /// Reads a handler's component, whole.
    pub(in crate::app) async fn read(&self, path: &Path) -> Result<ComponentBytes, LoadError> {
        Ok(ComponentBytes {
            bytes: read_component(path).await?.into(),
            origin: path.display().to_string(),
        })
    }

    /// Makes a component ready to run at start.
    pub(in crate::app) async fn load_at_start(
        &self,
        config: &HandlerConfig,
        targets: &BTreeMap<String, TargetConfig>,
        component: ComponentBytes,
    ) -> Result<Handler, LoadError> {
        self.load(&self.shared, config, targets, component).await
    }

    /// Makes a component ready to run on `runtime`.
    pub(super) async fn load(
        &self,
        runtime: &Runtime,
        config: &HandlerConfig,
        targets: &BTreeMap<String, TargetConfig>,
        component: ComponentBytes,
    ) -> Result<Handler, LoadError> {
        let digest = ComponentDigest::of(&component.bytes);
        check_pin(config, &component.origin, digest)?;
        let _turn = self
            .compiles
            .acquire()
            .await
            .expect("nothing closes the semaphore");
        let loaded = runtime.load(&component.origin, component.bytes).await?;
        Handler::new(loaded, handler_options(config, targets))
    }
}

/// Returns what these handlers need together.
pub(in crate::app) fn room_for<'a>(
    handlers: impl IntoIterator<Item = &'a HandlerConfig>,
) -> RuntimeOptions {
    let mut room = RuntimeOptions {
        calls_max: 0,
        memory_max_bytes: 0,
    };
    for handler in handlers {
        room.calls_max += handler.lanes;
        room.memory_max_bytes = room.memory_max_bytes.max(handler.limits.memory_bytes);
    }
    RuntimeOptions {
        calls_max: room.calls_max.max(1),
        memory_max_bytes: room.memory_max_bytes.max(1 << 20),
    }
}
