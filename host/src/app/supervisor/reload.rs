//! Brings what runs in line with a new configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use super::change::{Change, ChangeError};
use super::compare::{collide, restart_keys, waits_for};
use super::{Entry, Inner, Phase, Ran, Ready, Supervisor, to_its_end};
use crate::app::prepare::prepare_handler;
use crate::app::prune::Rules;
use crate::app::run::{relayed, sweep_marks_of};
use crate::config::{Config, HandlerConfig};
use crate::exit::CommandError;
use crate::message::ComponentDigest;

impl Supervisor {
    /// Brings what runs in line with `config`: starts handlers that are new, stops those that are gone, restarts those whose table
    /// changed, and says what takes a restart of the process. Components whose file changed are swapped by `swap`.
    ///
    /// What is said of each handler is in the log already. Goes on to its end if the caller does not wait for it.
    ///
    /// # Errors
    /// Nothing was changed: the configuration has no handlers, or the host drains.
    pub async fn reload(&self, config: Config) -> Result<Vec<Change>, ChangeError> {
        let inner = Arc::clone(&self.inner);
        to_its_end(async move {
            let _turn = inner.turn.lock().await;
            inner.reload(&config).await
        })
        .await
    }
}

/// A handler that can take its place.
enum Made {
    Runs(Box<Ready>),
    /// The store is to hold its component, and none is deployed.
    Waits,
}

impl Made {
    fn digest(&self) -> Option<ComponentDigest> {
        match self {
            Self::Runs(ready) => Some(ready.context.digest()),
            Self::Waits => None,
        }
    }
}

impl Inner {
    async fn reload(&self, new: &Config) -> Result<Vec<Change>, ChangeError> {
        if new.handlers.is_empty() {
            return Err(ChangeError::Refused {
                problem: format!("`{}` has no handlers", new.file.display()),
                hint: crate::app::NO_HANDLERS_HINT.into(),
            });
        }
        if self.state().is_draining {
            return Err(ChangeError::Draining);
        }
        // Between two pipelines the process must not seem to have ended.
        let _alive = self.running.one_more();
        let old = self.config();
        let mut changes: Vec<Change> = restart_keys(&old, new)
            .into_iter()
            .map(|key| Change::NeedsRestart { key })
            .collect();
        let mut in_force = (*old).clone();
        for (name, source) in &new.sources {
            let known = in_force.sources.entry(name.clone());
            known.or_insert_with(|| source.clone());
        }

        let removed: BTreeSet<String> = {
            let state = self.state();
            let gone = |name: &&String| !new.handlers.contains_key(*name);
            state.entries.keys().filter(gone).cloned().collect()
        };
        let mut kept: BTreeMap<String, ChangeError> = BTreeMap::new();
        let mut ready: BTreeMap<String, (HandlerConfig, Made)> = BTreeMap::new();
        for (name, handler) in &new.handlers {
            if old.handlers.get(name) == Some(handler) {
                continue;
            }
            match self.make_ready(handler, &in_force, new, &removed).await {
                Ok(made) => {
                    ready.insert(name.clone(), (handler.clone(), made));
                }
                Err(why) => {
                    kept.insert(name.clone(), why);
                }
            }
        }
        let refused = colliding(&mut ready, &old, &removed, &in_force);
        kept.extend(refused);

        let paused: BTreeSet<String> = {
            let state = self.state();
            let is_paused = |entry: &Entry| entry.phase == Phase::Paused;
            let entries = state.entries.iter();
            entries
                .filter(|(_, entry)| is_paused(entry))
                .map(|(name, _)| name.clone())
                .collect()
        };
        let stopped: Vec<String> = removed.iter().chain(ready.keys()).cloned().collect();
        self.stop(&stopped).await;
        for name in removed {
            in_force.handlers.remove(&name);
            self.retire(&name, None);
            changes.push(Change::Stopped { handler: name });
        }
        changes.iter().for_each(Change::tell);
        let told = changes.len();
        for (name, (handler, made)) in ready {
            let digest = made.digest();
            let is_new = !old.handlers.contains_key(&name);
            self.retire(&name, digest);
            match made {
                Made::Waits => self.place_waiting(&handler),
                // A person paused it, and it stays so.
                Made::Runs(ready) if paused.contains(&name) => self.place_paused(*ready).await,
                Made::Runs(ready) => self.launch(*ready)?,
            }
            in_force.handlers.insert(name.clone(), handler);
            changes.push(if is_new {
                Change::Started {
                    handler: name,
                    digest,
                }
            } else {
                Change::Restarted {
                    handler: name,
                    digest,
                }
            });
        }
        self.enforce(in_force);
        changes[told..].iter().for_each(Change::tell);
        for (handler, why) in kept {
            let is_known = self.last_error(&handler) == Some(why.to_string());
            self.note_kept(&handler, new, &why);
            let change = Change::Kept { handler, why };
            match &change {
                Change::Kept { why, .. } if is_known && why.is_passing() => {}
                change => change.tell(),
            }
            changes.push(change);
        }
        Ok(changes)
    }

    /// Takes every step for a handler that leaves what runs as it is.
    async fn make_ready(
        &self,
        handler: &HandlerConfig,
        in_force: &Config,
        new: &Config,
        removed: &BTreeSet<String>,
    ) -> Result<Made, ChangeError> {
        if let Some(key) = waits_for(handler, in_force, new) {
            return Err(ChangeError::Refused {
                problem: format!("`{key}` changed, too, which takes a restart"),
                hint: "restart the host".into(),
            });
        }
        let component = match handler.component.file() {
            None => match self.stored_component(handler).await? {
                Some(component) => component,
                None => return Ok(Made::Waits),
            },
            Some(path) => {
                let read = self.loader.read(path).await;
                read.map_err(|error| CommandError::component(&handler.name, &error))?
            }
        };
        let mut without = removed.clone();
        without.insert(handler.name.clone());
        let lanes_taken = self.lanes_taken(&without);
        let room = self.loader.room(handler, lanes_taken).await?;
        let refused = |error| CommandError::component(&handler.name, &error);
        let component = self
            .loader
            .load(&room.runtime, handler, &in_force.targets, component)
            .await
            .map_err(refused)?;
        prepare_handler(&self.rooms.store, handler).await?;
        let connected = self.connect(in_force, handler).await?;
        sweep_marks_of(&self.rooms.store, handler).await;
        Ok(Made::Runs(Box::new(self.ready(
            handler.clone(),
            component,
            room,
            connected,
        ))))
    }

    /// Puts a handler into its place without starting it.
    pub(super) async fn place_paused(&self, ready: Ready) {
        let Ready {
            context,
            room,
            connected,
            ..
        } = ready;
        let mut source = connected.source;
        source.stop().await;
        source.close().await;
        let entry = Entry {
            consumer: context.consumer().to_owned(),
            pipeline: None,
            phase: Phase::Paused,
            since: SystemTime::now(),
            last_error: None,
            _down: None,
            ran: Some(Ran {
                context: Arc::clone(&context),
                room,
            }),
        };
        let mut state = self.state();
        state.entries.insert(context.name().to_owned(), entry);
    }

    /// Lets go of what ran under this name; what runs `next` takes its place.
    pub(super) fn retire(&self, name: &str, next: Option<ComponentDigest>) {
        let mut state = self.state();
        let Some(ran) = state.entries.remove(name).and_then(|entry| entry.ran) else {
            return;
        };
        ran.context.retired(next);
        state.retired.push(ran.context);
    }

    /// Notes why the new table of a handler is not in force.
    fn note_kept(&self, name: &str, new: &Config, why: &ChangeError) {
        let mut state = self.state();
        if let Some(entry) = state.entries.get_mut(name)
            && entry.ran.is_some()
        {
            entry.last_error = Some(why.to_string());
            return;
        }
        let Some(handler) = new.handlers.get(name) else {
            return;
        };
        let down = self.rooms.health.part(format!("handler {name}"));
        down.down(&why.to_string());
        let entry = Entry {
            consumer: handler.consumer.clone(),
            ran: None,
            pipeline: None,
            phase: Phase::Failed(why.to_string()),
            since: SystemTime::now(),
            last_error: Some(why.to_string()),
            _down: Some(down),
        };
        state.entries.insert(name.to_owned(), entry);
    }

    /// Has all that is not a handler go by the configuration that is in force.
    fn enforce(&self, in_force: Config) {
        self.rooms.relayed.send_replace(relayed(&in_force));
        self.rooms.rules.send_replace(Rules::of(&in_force));
        let in_force = Arc::new(in_force);
        self.rooms.in_force.send_replace(Arc::clone(&in_force));
        self.state().config = in_force;
    }
}

/// Takes out of `ready` what can't run beside handlers that go on as they were.
fn colliding(
    ready: &mut BTreeMap<String, (HandlerConfig, Made)>,
    old: &Config,
    removed: &BTreeSet<String>,
    in_force: &Config,
) -> Vec<(String, ChangeError)> {
    let mut refused = Vec::new();
    loop {
        let stays = |name: &String| !removed.contains(name) && !ready.contains_key(name);
        let staying: Vec<&HandlerConfig> = old
            .handlers
            .iter()
            .filter(|(name, _)| stays(name))
            .map(|(_, handler)| handler)
            .collect();
        let found = ready.values().find_map(|(handler, _)| {
            let other = staying
                .iter()
                .find(|other| other.name != handler.name && collide(handler, other, in_force))?;
            Some((handler.name.clone(), other.name.clone()))
        });
        let Some((name, other)) = found else {
            return refused;
        };
        ready.remove(&name);
        let why = ChangeError::Refused {
            problem: format!(
                "its consumer or queue is that of `{other}`, whose new table is not in force"
            ),
            hint: format!("see to `{other}` first"),
        };
        refused.push((name, why));
    }
}
