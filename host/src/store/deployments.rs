//! Deployments: components that the store keeps, which of them is a handler's, and what each host made of it.
//!
//! **Invariant**: what every host is to do with a handler stands in one row, and a transaction that changes it raises its generation;
//! so of two changes at once every host ends with the same one.

use std::future::Future;
use std::time::Duration;

use super::connection::each;
use super::{Connection, Session, StoreError};
use crate::message::{ComponentDigest, Instant};

/// A component that is to be kept in the store.
#[derive(Clone, Debug)]
pub struct NewComponent<'a> {
    /// Of `bytes`.
    pub digest: ComponentDigest,
    /// The whole file; at most 1 GB on PostgreSQL, and on SQLite.
    pub bytes: &'a [u8],
    /// The version of `hapax:handler` that it was built for.
    pub contract: &'a str,
    /// The tools that made it, as JSON.
    pub producers: &'a str,
}

/// What is to become a handler's active component.
#[derive(Clone, Debug)]
pub enum Deploy<'a> {
    /// A component, kept with the same transaction unless it is already.
    New(NewComponent<'a>),
    /// That of an earlier deployment, by its number.
    BackTo(u64),
}

/// A deployment that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployed {
    /// Of the handler's active deployment now.
    pub number: u64,
    /// Of the handler's state now.
    pub generation: u64,
    /// What is active now.
    pub digest: ComponentDigest,
    /// False if that component was active already: nothing was recorded.
    pub is_new: bool,
}

/// A line of a handler's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// From 1, for each handler.
    pub number: u64,
    /// Of the component.
    pub digest: ComponentDigest,
    /// Of the component.
    pub size_bytes: u64,
    /// The version of `hapax:handler` that the component was built for.
    pub contract: String,
    /// The tools that made the component, as JSON.
    pub producers: String,
    /// By the database's clock.
    pub deployed_at: Option<Instant>,
    /// In the words of whoever asked.
    pub deployed_by: String,
    /// The files that were applied for it.
    pub migrations: Vec<String>,
    /// The number of the deployment that it went back to.
    pub back_to: Option<u64>,
    /// True of one at most.
    pub is_active: bool,
}

/// What every host is to do with a handler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedState {
    /// As the configuration names it.
    pub handler: String,
    /// The active deployment's number and component.
    pub active: Option<(u64, ComponentDigest)>,
    /// True: its messages wait.
    pub is_paused: bool,
    /// Rises with each change; 0 before the first.
    pub generation: u64,
}

/// What one host made of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostHandler {
    /// As the configuration names it.
    pub handler: String,
    /// `running`, `paused`, `waiting` or `failed`.
    pub state: String,
    /// Of the component that it runs, if any.
    pub digest: Option<ComponentDigest>,
    /// The generation that it has taken over, or failed at.
    pub generation: u64,
    /// Why it failed.
    pub error: Option<String>,
}

/// A row that a host left some time ago, by the database's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenHostHandler {
    /// The process.
    pub host: String,
    /// What it said.
    pub row: HostHandler,
    /// How long ago.
    pub age: Duration,
}

/// What both databases offer for deployments beside `Session`, whose rules hold here too. Outside a transaction.
pub(crate) trait DeploymentSession: Session {
    fn deploy(
        &mut self,
        handler: &str,
        what: &Deploy<'_>,
        by: &str,
        migrations: &[String],
    ) -> impl Future<Output = Result<Deployed, StoreError>> + Send;

    fn withdraw(
        &mut self,
        handler: &str,
        by: &str,
    ) -> impl Future<Output = Result<Option<u64>, StoreError>> + Send;

    fn set_paused(
        &mut self,
        handler: &str,
        paused: bool,
        by: &str,
    ) -> impl Future<Output = Result<(u64, bool), StoreError>> + Send;

    fn wanted_states(
        &mut self,
    ) -> impl Future<Output = Result<Vec<WantedState>, StoreError>> + Send;

    fn deployments(
        &mut self,
        handler: &str,
    ) -> impl Future<Output = Result<Vec<Deployment>, StoreError>> + Send;

    fn component_bytes(
        &mut self,
        digest: ComponentDigest,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    fn report_host(
        &mut self,
        host: &str,
        rows: &[HostHandler],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    fn forget_host(&mut self, host: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    fn host_handlers(
        &mut self,
    ) -> impl Future<Output = Result<Vec<SeenHostHandler>, StoreError>> + Send;
}

/// Outside a transaction.
impl Connection {
    /// Makes a component the handler's active one on every host, in one transaction. `migrations` are the files that were applied
    /// for it.
    ///
    /// # Errors
    /// `Unusable`: there is no such deployment to go back to. As `StoreError` says; then nothing is recorded, unless the connection was
    /// lost.
    pub async fn deploy(
        &mut self,
        handler: &str,
        what: &Deploy<'_>,
        by: &str,
        migrations: &[String],
    ) -> Result<Deployed, StoreError> {
        each!(self, session => session.deploy(handler, what, by, migrations))
    }

    /// Leaves the handler without an active deployment; its history stays. Returns the new generation, `None` if there was none active.
    ///
    /// # Errors
    /// As `StoreError` says; nothing is changed, unless the connection was lost.
    pub async fn withdraw(&mut self, handler: &str, by: &str) -> Result<Option<u64>, StoreError> {
        each!(self, session => session.withdraw(handler, by))
    }

    /// Pauses the handler on every host, or resumes it. Returns the generation, and whether it was otherwise before.
    ///
    /// # Errors
    /// As `StoreError` says; nothing is changed, unless the connection was lost.
    pub async fn set_paused(
        &mut self,
        handler: &str,
        paused: bool,
        by: &str,
    ) -> Result<(u64, bool), StoreError> {
        each!(self, session => session.set_paused(handler, paused, by))
    }

    /// Returns what every host is to do, for each handler of which anything was ever said. One cheap query.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn wanted_states(&mut self) -> Result<Vec<WantedState>, StoreError> {
        each!(self, session => session.wanted_states())
    }

    /// Returns the handler's deployments, the newest first.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn deployments(&mut self, handler: &str) -> Result<Vec<Deployment>, StoreError> {
        each!(self, session => session.deployments(handler))
    }

    /// Returns a component that was deployed once, as it is stored: compare its digest.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn component_bytes(
        &mut self,
        digest: ComponentDigest,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        each!(self, session => session.component_bytes(digest))
    }

    /// Writes what this host made of its handlers: all of them, as of now; what it said before of others is gone.
    ///
    /// # Errors
    /// As `StoreError` says; nothing is changed, unless the connection was lost.
    pub async fn report_host(
        &mut self,
        host: &str,
        rows: &[HostHandler],
    ) -> Result<(), StoreError> {
        each!(self, session => session.report_host(host, rows))
    }

    /// Removes what a host said: it ends. Removes, too, what others said more than an hour ago.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn forget_host(&mut self, host: &str) -> Result<(), StoreError> {
        each!(self, session => session.forget_host(host))
    }

    /// Returns what every host said last, of all handlers, in the order of handlers and hosts.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn host_handlers(&mut self) -> Result<Vec<SeenHostHandler>, StoreError> {
        each!(self, session => session.host_handlers())
    }
}

/// Rows of hosts that were not renewed for so long are swept, in seconds.
pub(super) const HOST_ROWS_KEPT_SECONDS: i64 = 3_600;

/// Says that there is no deployment with this number.
pub(super) fn no_deployment(handler: &str, number: u64) -> StoreError {
    StoreError::Unusable(format!(
        "`{handler}` has no deployment {number}\nhint: `hapax handlers history {handler}` shows which there are"
    ))
}

/// Reads a digest that must be there.
pub(super) fn digest_of(bytes: Vec<u8>) -> Result<ComponentDigest, StoreError> {
    let bytes: [u8; 32] = bytes.try_into().map_err(|_| {
        StoreError::Unusable("a digest in the store has not the length of SHA-256".into())
    })?;
    Ok(ComponentDigest(bytes))
}

/// SQL's integers are signed; none of these is negative.
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The other way.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Reads a list of file names.
pub(super) fn names_of(json: &str) -> Vec<String> {
    serde_json::from_str(json).unwrap_or_default()
}

/// A row of the history, as both databases give it.
pub(super) type DeploymentRow = (
    i64,
    Vec<u8>,
    Option<i64>,
    Option<String>,
    Option<String>,
    String,
    String,
    Option<i64>,
    bool,
);

/// Makes a line of the history of its row; `deployed_at` is read by the database at hand.
pub(super) fn deployment_of(
    row: DeploymentRow,
    deployed_at: Option<Instant>,
) -> Result<Deployment, StoreError> {
    let (number, digest, size, contract, producers, by, migrations, back_to, is_active) = row;
    Ok(Deployment {
        number: unsigned(number),
        digest: digest_of(digest)?,
        size_bytes: unsigned(size.unwrap_or(0)),
        contract: contract.unwrap_or_default(),
        producers: producers.unwrap_or_else(|| "[]".into()),
        deployed_at,
        deployed_by: by,
        migrations: names_of(&migrations),
        back_to: back_to.map(unsigned),
        is_active,
    })
}

/// A handler's state, as both databases give it: handler, deployment, its digest, paused, generation.
pub(super) type StateRow = (String, Option<i64>, Option<Vec<u8>>, bool, i64);

impl WantedState {
    /// Reads a row.
    pub(super) fn of(
        (handler, number, digest, is_paused, generation): StateRow,
    ) -> Result<Self, StoreError> {
        let digest = digest.map(digest_of).transpose()?;
        Ok(Self {
            handler,
            active: number.map(unsigned).zip(digest),
            is_paused,
            generation: unsigned(generation),
        })
    }
}
