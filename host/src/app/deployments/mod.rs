//! Deployments: what operators ask for is checked and recorded here, and every host brings its handlers in line with what is recorded.
//!
//! The store's `handler_states` says what every host is to do. A change is one transaction on it; the host that was asked has no other
//! part in it than all the others have, so it may end at any instant.
//!
//! **Invariant**: nothing is recorded that the host that was asked could not run.
//! **Invariant**: a host that can't take a change over goes on as before, and says so.

mod at_start;
mod keeper;
mod listed;

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{Mutex, Notify};

use super::supervisor::{ChangeError, ComponentBytes, Supervisor};
use super::{handler_migrations, own_session};
use crate::admin::{self, Answer, Changed, HandlersRequest, Refusal, Why};
use crate::config::{ComponentPlace, HandlerConfig};
use crate::exit::CommandError;
use crate::fault;
use crate::handler::inspect;
use crate::message::ComponentDigest;
use crate::store::{
    Connection, Deploy, HandlerMigration, NewComponent, Store, StoreError, check_handler_migrations,
};

pub(super) use at_start::at_start;
pub(super) use keeper::Keeper;

/// The fewest digits of a digest that a rollback takes for one.
const DIGEST_DIGITS_MIN: usize = 8;

/// Answers what is asked about handlers.
pub(super) struct Deployments {
    supervisor: Supervisor,
    store: Arc<Store>,
    /// This process, as in what it reports.
    process: String,
    /// Has the keeper look at once.
    changed: Arc<Notify>,
    /// One change at a time: a component is held whole, and compiled.
    turn: Mutex<()>,
}

impl Deployments {
    pub(super) fn new(
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
            turn: Mutex::default(),
        }
    }

    /// Answers a request.
    pub(super) async fn answer(&self, request: HandlersRequest) -> Answer {
        match request {
            HandlersRequest::List => json(&self.list().await?),
            HandlersRequest::History { handler } => json(&self.history(&handler).await?),
            HandlersRequest::Change {
                handler,
                change,
                by,
            } => json(&self.change(&handler, change, &by).await?),
        }
    }

    async fn change(
        &self,
        name: &str,
        change: admin::Change,
        by: &str,
    ) -> Result<Changed, Refusal> {
        let handler = self.handler(name)?;
        let _turn = self.turn.lock().await;
        let changed = match change {
            admin::Change::Deploy {
                component,
                migrations,
            } => {
                self.deploy(&handler, component, migrations.unwrap_or_default(), by)
                    .await
            }
            admin::Change::Rollback { digest } => self.roll_back(&handler, digest, by).await,
            admin::Change::Pause => self.set_paused(&handler, true, by).await,
            admin::Change::Resume => self.set_paused(&handler, false, by).await,
            admin::Change::Remove => self.remove(&handler, by).await,
        }?;
        self.changed.notify_one();
        Ok(changed)
    }

    fn handler(&self, name: &str) -> Result<HandlerConfig, Refusal> {
        let config = self.supervisor.config();
        config.handlers.get(name).cloned().ok_or_else(|| {
            let names: Vec<String> = config
                .handlers
                .keys()
                .map(|name| format!("`{name}`"))
                .collect();
            Refusal::new(
                Why::NotThere,
                format!("this host has no handler `{}`", name.escape_debug()),
                format!("its handlers are {}", names.join(", ")),
            )
        })
    }

    async fn connect(&self) -> Result<Connection, Refusal> {
        let connected = self.store.connect(&own_session("deployments")).await;
        connected.map_err(|error| of_store(&error))
    }

    async fn deploy(
        &self,
        handler: &HandlerConfig,
        component: Bytes,
        files: Vec<(String, String)>,
        by: &str,
    ) -> Result<Changed, Refusal> {
        owned_by_store(handler)?;
        let kind = self.store.kind();
        let digest = ComponentDigest::of(&component);
        let info = self
            .supervisor
            .check(
                &handler.name,
                ComponentBytes {
                    bytes: component.clone(),
                    origin: "the component".into(),
                },
            )
            .await
            .map_err(|error| of_change(&error))?;
        let migrations = handler_migrations::sent(files, kind, "--migrations")
            .map_err(|(problem, hint)| refused(&problem, Some(hint)))?;
        check_handler_migrations(kind, &migrations).map_err(|error| of_store(&error))?;

        let mut connection = self.connect().await?;
        let applied = migrate(&mut connection, handler, &migrations).await?;
        fault::point("deploy-before-record");
        // It can be read: it was loaded.
        let producers =
            inspect("the component", &component).map_or(Vec::new(), |read| read.producers);
        let made_with = serde_json::to_string(&producers).unwrap_or_default();
        let new = NewComponent {
            digest,
            bytes: &component,
            contract: &info.contract_version,
            producers: &made_with,
        };
        let deployed = connection
            .deploy(&handler.name, &Deploy::New(new), by, &applied)
            .await
            .map_err(|error| of_store(&error))?;
        fault::point("deploy-after-record");
        if deployed.is_new {
            tracing::info!(handler = %handler.name, number = deployed.number, component = %digest, by, "deployed");
        }
        self.changed_now(&mut connection, handler, deployed.is_new, applied)
            .await
    }

    async fn roll_back(
        &self,
        handler: &HandlerConfig,
        digest: Option<String>,
        by: &str,
    ) -> Result<Changed, Refusal> {
        owned_by_store(handler)?;
        let mut connection = self.connect().await?;
        let history = connection.deployments(&handler.name).await;
        let history = history.map_err(|error| of_store(&error))?;
        let target = match digest {
            Some(digits) => listed::with_digest(&history, &digits)?,
            None => listed::before_active(&history)?,
        };
        let bytes = connection.component_bytes(target.digest).await;
        let bytes = bytes.map_err(|error| of_store(&error))?;
        let component = ComponentBytes::of_store(target.number, target.digest, bytes);
        let component = component.map_err(|error| of_change(&error))?;
        let checked = self.supervisor.check(&handler.name, component).await;
        checked.map_err(|error| of_change(&error))?;
        fault::point("deploy-before-record");
        let deployed = connection
            .deploy(&handler.name, &Deploy::BackTo(target.number), by, &[])
            .await
            .map_err(|error| of_store(&error))?;
        fault::point("deploy-after-record");
        if deployed.is_new {
            tracing::info!(
                handler = %handler.name,
                number = deployed.number,
                back_to = target.number,
                component = %target.digest,
                by,
                "rolled back"
            );
        }
        self.changed_now(&mut connection, handler, deployed.is_new, Vec::new())
            .await
    }

    async fn set_paused(
        &self,
        handler: &HandlerConfig,
        paused: bool,
        by: &str,
    ) -> Result<Changed, Refusal> {
        let mut connection = self.connect().await?;
        let set = connection.set_paused(&handler.name, paused, by).await;
        let (_, is_new) = set.map_err(|error| of_store(&error))?;
        if is_new {
            tracing::info!(handler = %handler.name, paused, by, "asked of every host");
        }
        self.changed_now(&mut connection, handler, is_new, Vec::new())
            .await
    }

    async fn remove(&self, handler: &HandlerConfig, by: &str) -> Result<Changed, Refusal> {
        owned_by_store(handler)?;
        let mut connection = self.connect().await?;
        let withdrawn = connection.withdraw(&handler.name, by).await;
        let is_new = withdrawn.map_err(|error| of_store(&error))?.is_some();
        if is_new {
            tracing::info!(handler = %handler.name, by, "removed");
        }
        self.changed_now(&mut connection, handler, is_new, Vec::new())
            .await
    }

    async fn changed_now(
        &self,
        connection: &mut Connection,
        handler: &HandlerConfig,
        changed: bool,
        migrations: Vec<String>,
    ) -> Result<Changed, Refusal> {
        let states = connection.wanted_states().await;
        let state = states
            .map_err(|error| of_store(&error))?
            .into_iter()
            .find(|state| state.handler == handler.name)
            .unwrap_or_default();
        Ok(Changed {
            handler: handler.name.clone(),
            changed,
            generation: state.generation,
            deployment: state.active.map(|(number, _)| number),
            digest: state.active.map(|(_, digest)| digest.to_string()),
            paused: state.is_paused,
            migrations,
        })
    }
}

/// Applies a component's migrations, under their lock, and sees that the handler can take its role. Returns the names of the files that were
/// not there before.
async fn migrate(
    connection: &mut Connection,
    handler: &HandlerConfig,
    migrations: &[HandlerMigration],
) -> Result<Vec<String>, Refusal> {
    let mut applied = Vec::new();
    if !migrations.is_empty() {
        let count = connection
            .apply_handler_migrations(&handler.name, migrations)
            .await
            .map_err(|error| match error {
                StoreError::Refused(error) => refused(
                    &format!("the database refuses the migration {}", error.message),
                    Some("correct the file: nothing of it was applied, and those before it stay applied".into()),
                ),
                error => of_store(&error),
            })?;
        // They are applied in the order of their numbers, after those that were there.
        let new = migrations.iter().skip(migrations.len() - count);
        applied = new.map(|migration| migration.file.clone()).collect();
    }
    if let Some(role) = &handler.rights.role {
        let can = connection.check_role(role).await;
        can.map_err(|error| of_store(&error))?;
    }
    Ok(applied)
}

/// Refuses to deploy to a handler whose component is a file.
fn owned_by_store(handler: &HandlerConfig) -> Result<(), Refusal> {
    match &handler.component {
        ComponentPlace::Store => Ok(()),
        ComponentPlace::File(path) => Err(Refusal::new(
            Why::Refused,
            format!(
                "the component of `{}` is the file `{}`, and nothing is deployed to it",
                handler.name,
                path.display()
            ),
            format!(
                "replace the file; or write `component = \"store\"` into `[handlers.{}]` on every host, and deploy then",
                handler.name
            ),
        )),
    }
}

fn refused(problem: &str, hint: Option<String>) -> Refusal {
    Refusal::new(Why::Unusable, problem, hint)
}

fn of_store(error: &StoreError) -> Refusal {
    let (problem, hint) = CommandError::store("the store", error).sentences();
    let hint = (!hint.is_empty()).then_some(hint);
    match error {
        StoreError::Unavailable(_) | StoreError::Busy(_) => {
            Refusal::new(Why::Unavailable, problem, hint)
        }
        StoreError::SchemaNewer { .. } | StoreError::Refused(_) | StoreError::Unusable(_) => {
            refused(&problem, hint)
        }
    }
}

fn of_change(error: &ChangeError) -> Refusal {
    let hint = (!error.hint().is_empty()).then(|| error.hint().to_owned());
    match error {
        ChangeError::NoHandler(_) => Refusal::new(Why::NotThere, error, hint),
        ChangeError::Refused { problem, .. } => refused(problem, hint),
        ChangeError::Draining => Refusal::new(Why::Unavailable, error, hint),
        ChangeError::Away { .. } => Refusal::new(Why::Unavailable, error, hint),
    }
}

fn json(value: &impl Serialize) -> Answer {
    serde_json::to_value(value).map_err(|error| {
        Refusal::new(
            Why::Bug,
            format!("the answer cannot be written: {error}"),
            None,
        )
    })
}
