//! What a host that starts finds deployed.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::app::own_session;
use crate::app::prepare::{NotPrepared, pause_or_drain, prepare_handler};
use crate::app::supervisor::ComponentBytes;
use crate::config::{ComponentPlace, Config, HandlerConfig};
use crate::exit::{CommandError, Exit};
use crate::health::Health;
use crate::news::News;
use crate::store::{Store, StoreError, WantedState};
use crate::text::one_line;

/// What is deployed, and which handlers stand still.
pub(in crate::app) struct AtStart {
    /// By handler.
    pub(in crate::app) wanted: BTreeMap<String, WantedState>,
    /// The active components of the store's handlers; without one, a handler waits.
    pub(in crate::app) components: Vec<(HandlerConfig, Option<ComponentBytes>)>,
}

impl AtStart {
    /// True if the handler is to stand still.
    pub(in crate::app) fn is_paused(&self, handler: &str) -> bool {
        self.wanted
            .get(handler)
            .is_some_and(|state| state.is_paused)
    }
}

/// Waits for the database, and reads what is deployed to the handlers of `config`. `None` when the drain came first.
///
/// # Errors
/// A handler has two owners; a component in the store is damaged; a role can't be taken.
pub(in crate::app) async fn at_start(
    config: &Config,
    store: &Arc<Store>,
    health: &Arc<Health>,
    drain: &mut watch::Receiver<bool>,
) -> Result<Option<AtStart>, CommandError> {
    let part = health.part("store");
    let mut news = News::default();
    loop {
        match read(config, store).await {
            Ok(found) => {
                part.up();
                return Ok(Some(found));
            }
            Err(NotPrepared::Away(why)) => {
                part.down(&why);
                if news.is_news(&why) {
                    tracing::warn!(why = %one_line(&why), "waiting for the database");
                }
            }
            Err(NotPrepared::Refused(error)) => return Err(error),
        }
        if pause_or_drain(drain).await {
            return Ok(None);
        }
    }
}

async fn read(config: &Config, store: &Arc<Store>) -> Result<AtStart, NotPrepared> {
    let failed = |error: StoreError| {
        NotPrepared::of(error, |error| {
            CommandError::store("what is deployed cannot be read", &error)
        })
    };
    let mut connection = store
        .connect(&own_session("deployments"))
        .await
        .map_err(failed)?;
    let wanted: BTreeMap<String, WantedState> = connection
        .wanted_states()
        .await
        .map_err(failed)?
        .into_iter()
        .map(|state| (state.handler.clone(), state))
        .collect();
    let mut components = Vec::new();
    for handler in config.handlers.values() {
        let active = wanted.get(&handler.name).and_then(|state| state.active);
        if let (ComponentPlace::File(path), Some((number, digest))) = (&handler.component, active) {
            return Err(NotPrepared::Refused(CommandError::new(
                Exit::Configuration,
                format!(
                    "handler `{}`: its component is the file `{}`, and deployment {number} (`{digest}`) is active in the store",
                    handler.name,
                    path.display()
                ),
                Some(&format!(
                    "write `component = \"store\"`; or take the deployment away first: `hapax handlers remove {}`",
                    handler.name
                )),
            )));
        }
        if handler.component != ComponentPlace::Store {
            continue;
        }
        let component = match active {
            None => None,
            Some((number, digest)) => {
                let bytes = connection.component_bytes(digest).await.map_err(failed)?;
                let component = ComponentBytes::of_store(number, digest, bytes);
                let component = component.map_err(|error| {
                    NotPrepared::Refused(CommandError::new(
                        Exit::Failed,
                        format!("handler `{}`: {error}", handler.name),
                        Some(error.hint()),
                    ))
                })?;
                prepare_handler(store, handler).await?;
                Some(component)
            }
        };
        components.push((handler.clone(), component));
    }
    Ok(AtStart { wanted, components })
}
