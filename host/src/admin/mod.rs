//! The address for operators and their tools: `/healthz`, `/readyz` and `/metrics`.
//!
//! **Invariant**: nothing here changes anything, and no answer holds a secret.

mod handlers;
mod health;
mod metrics;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::health::Health;

pub use handlers::{
    Answer, BY_HEADER, Change, Changed, HandlerHistory, HandlersDoor, HandlersList,
    HandlersRequest, HistoryLine, ListedHandler, ListedHost, MIGRATIONS_BYTES_MAX, Refusal,
    RefusalBody,
};

/// How often measured values are put into their buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// What the answers are made from.
#[derive(Clone)]
pub struct AdminState {
    /// Whether the host is ready.
    pub health: Arc<Health>,
    /// What it measures.
    pub metrics: PrometheusHandle,
    /// Who answers about the handlers.
    pub handlers: HandlersDoor,
}

impl std::fmt::Debug for AdminState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminState")
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

/// The admin address, served until it is dropped.
#[derive(Debug)]
pub struct Admin {
    /// Where it listens; with port 0 the system chose one.
    pub address: SocketAddr,
    serving: JoinHandle<()>,
    keeping: JoinHandle<()>,
}

impl Admin {
    /// Listens at `address`.
    ///
    /// # Errors
    /// What the system says: the port is in use, or may not be used.
    pub async fn listen(address: SocketAddr, state: AdminState) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let measured = state.metrics.clone();
        let keeping = tokio::spawn(async move {
            // What was recorded is kept whole until then, whether anybody asks for it or not.
            loop {
                tokio::time::sleep(UPKEEP_INTERVAL).await;
                measured.run_upkeep();
            }
        });
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes(state)).await {
                tracing::error!(%error, "the admin address is not served any more");
            }
        });
        Ok(Self {
            address,
            serving,
            keeping,
        })
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.serving.abort();
        self.keeping.abort();
    }
}

/// One file a subject; each has a router of its own.
fn routes(state: AdminState) -> Router {
    Router::new()
        .merge(handlers::routes())
        .merge(health::routes())
        .merge(metrics::routes())
        .with_state(state)
}
