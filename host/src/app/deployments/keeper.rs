//! Brings this host's handlers in line with what the store says, and tells what it made of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::app::own_session;
use crate::app::supervisor::{ChangeError, ComponentBytes, HandlerState, Phase, Supervisor};
use crate::config::{ComponentPlace, HandlerConfig};
use crate::fault;
use crate::message::ComponentDigest;
use crate::news::News;
use crate::store::{Connection, HostHandler, SessionOptions, Store, StoreError, WantedState};
use crate::text::one_line;

/// How often the store is asked.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often a host says that it is still there.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// How long a report waits for SQLite's one writer: a later one says the same.
const REPORT_LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// Keeps one process in line.
pub(in crate::app) struct Keeper {
    supervisor: Supervisor,
    store: Arc<Store>,
    /// This process.
    process: String,
    /// Rings when something was changed here.
    changed: Arc<Notify>,
    connection: Option<Connection>,
    /// What each handler could not be brought to, and why.
    failed: BTreeMap<String, Failed>,
    reported: Vec<HostHandler>,
    reported_at: Option<Instant>,
    unreachable: News,
}

/// A change that was not made.
struct Failed {
    /// Of the state that was wanted.
    generation: u64,
    /// Of the component that it would have run before and after.
    between: (Option<ComponentDigest>, Option<ComponentDigest>),
    why: ChangeError,
}

impl Keeper {
    pub(in crate::app) fn new(
        supervisor: Supervisor,
        store: Arc<Store>,
        process: String,
        changed: Arc<Notify>,
    ) -> Self {
        Self {
            supervisor,
            store,
            process,
            changed,
            connection: None,
            failed: BTreeMap::new(),
            reported: Vec::new(),
            reported_at: None,
            unreachable: News::default(),
        }
    }

    /// Looks again and again, until `stop` says so; then takes back what it told.
    pub(in crate::app) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            match self.round().await {
                Ok(()) => {
                    self.unreachable.is_over();
                }
                Err(error) => {
                    self.connection = None;
                    let why = one_line(&error.to_string());
                    if self.unreachable.is_news(&why) {
                        tracing::warn!(%why, "what is deployed cannot be asked; the handlers go on as they are");
                    }
                }
            }
            // Only the waits are raced.
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                () = self.changed.notified() => {}
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
        }
        if let Some(mut connection) = self.connection
            && let Err(error) = connection.forget_host(&self.process).await
        {
            tracing::debug!(%error, "this host is listed for some seconds more");
        }
    }

    async fn round(&mut self) -> Result<(), StoreError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let options = SessionOptions {
                    lock_timeout: REPORT_LOCK_TIMEOUT,
                    ..own_session("deployments")
                };
                self.store.connect(&options).await?
            }
        };
        let wanted: BTreeMap<String, WantedState> = connection
            .wanted_states()
            .await?
            .into_iter()
            .map(|state| (state.handler.clone(), state))
            .collect();
        let config = self.supervisor.config();
        let none = WantedState::default();
        for state in self.supervisor.list() {
            let Some(handler) = config.handlers.get(&state.name) else {
                continue;
            };
            let wanted = wanted.get(&state.name).unwrap_or(&none);
            self.bring(&mut connection, handler, &state, wanted).await?;
        }
        self.report(&mut connection, &wanted).await;
        self.connection = Some(connection);
        Ok(())
    }

    /// Brings one handler in line, unless that is known to fail.
    async fn bring(
        &mut self,
        connection: &mut Connection,
        handler: &HandlerConfig,
        state: &HandlerState,
        wanted: &WantedState,
    ) -> Result<(), StoreError> {
        let between = (state.digest, wanted.active.map(|(_, digest)| digest));
        if self.failed.get(&handler.name).is_some_and(|failed| {
            !failed.why.is_passing()
                && failed.generation == wanted.generation
                && failed.between == between
        }) {
            return Ok(());
        }
        let brought = self.try_bring(connection, handler, state, wanted).await?;
        match brought {
            Ok(()) => {
                self.failed.remove(&handler.name);
            }
            // The end of the process is no failure of the handler's.
            Err(ChangeError::Draining) => {}
            Err(why) => {
                let failed = Failed {
                    generation: wanted.generation,
                    between,
                    why,
                };
                self.failed.insert(handler.name.clone(), failed);
            }
        }
        Ok(())
    }

    async fn try_bring(
        &self,
        connection: &mut Connection,
        handler: &HandlerConfig,
        state: &HandlerState,
        wanted: &WantedState,
    ) -> Result<Result<(), ChangeError>, StoreError> {
        let name = &handler.name;
        if handler.component == ComponentPlace::Store {
            match wanted.active {
                None if state.phase == Phase::Waiting => return Ok(Ok(())),
                None => return Ok(self.supervisor.withdraw(name).await),
                Some((_, digest)) if state.digest == Some(digest) => {}
                Some((number, digest)) => {
                    let bytes = connection.component_bytes(digest).await?;
                    let component = match ComponentBytes::of_store(number, digest, bytes) {
                        Ok(component) => component,
                        Err(why) => {
                            tracing::error!(handler = %name, reason = %why, hint = why.hint(), "not activated");
                            return Ok(Err(why));
                        }
                    };
                    fault::point("deploy-before-swap");
                    let activated = self.supervisor.activate(name, component, wanted.is_paused);
                    if let Err(why) = activated.await {
                        return Ok(Err(why));
                    }
                    fault::point("deploy-after-swap");
                    tracing::info!(handler = %name, number, component = %digest, "the deployment is active here");
                }
            }
        }
        Ok(match (wanted.is_paused, &state.phase) {
            (true, Phase::Running) => self.supervisor.pause(name).await,
            (false, Phase::Paused) => self.supervisor.resume(name).await,
            _ => Ok(()),
        })
    }

    /// Tells what became of it, when that has changed, and from time to time.
    async fn report(
        &mut self,
        connection: &mut Connection,
        wanted: &BTreeMap<String, WantedState>,
    ) {
        let rows: Vec<HostHandler> = self
            .supervisor
            .list()
            .into_iter()
            .map(|state| self.row(state, wanted))
            .collect();
        let is_due = self
            .reported_at
            .is_none_or(|at| at.elapsed() >= REPORT_INTERVAL);
        if rows == self.reported && !is_due {
            return;
        }
        match connection.report_host(&self.process, &rows).await {
            Ok(()) => {
                self.reported = rows;
                self.reported_at = Some(Instant::now());
            }
            // The next round asks for it again.
            Err(error) => tracing::debug!(%error, "what this host runs was not told"),
        }
    }

    fn row(&self, state: HandlerState, wanted: &BTreeMap<String, WantedState>) -> HostHandler {
        let wanted = wanted.get(&state.name);
        let failed = self.failed.get(&state.name);
        // What fails for now is still to come.
        let is_pending = failed.is_some_and(|failed| failed.why.is_passing());
        let generation = wanted.map_or(0, |wanted| wanted.generation);
        let (word, why) = match &state.phase {
            Phase::Running => ("running", None),
            Phase::Paused => ("paused", None),
            Phase::Waiting => ("waiting", None),
            Phase::Failed(why) => ("failed", Some(why.clone())),
        };
        let error = failed
            .map(|failed| failed.why.to_string())
            .or(why)
            .or(state.last_error);
        HostHandler {
            handler: state.name,
            state: word.to_owned(),
            digest: state.digest,
            generation: generation.saturating_sub(u64::from(is_pending)),
            error: error.map(|error| one_line(&error)),
        }
    }
}
