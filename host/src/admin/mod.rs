//! The address for operators and their tools: health, metrics, and all that the command line does, as JSON.
//!
//! A door like `cli`: its routes read what is asked, call the same commands of `app`, and answer with the same objects. One file a
//! subject, each with its table of routes.
//!
//! **Invariant**: no answer holds a secret, and no request is served that may not ask (`access.rs`).
//! **Invariant**: what is asked here never takes a lane, a connection or a lock of the pipeline's.

mod access;
mod answer;
mod body;
mod check;
mod dead_letters;
mod handlers;
mod health;
mod metrics;
mod outbox;
mod prune;
mod rewind;
mod routes;
mod send;
mod server;
mod status;
mod work;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use access::Token;
pub use handlers::{
    Answer, BY_HEADER, Change, Changed, HandlerHistory, HandlersDoor, HandlersList,
    HandlersRequest, HistoryLine, ListedHandler, ListedHost, MIGRATIONS_BYTES_MAX, Refusal, Why,
};
use metrics_exporter_prometheus::PrometheusHandle;
pub use routes::{Route, routes};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::health::Health;
use access::Access;
use work::Bounds;

/// How often measured values are put into their buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// What the answers are made from.
#[derive(Clone)]
pub struct AdminRooms {
    /// What the host runs with; a reload changes it.
    pub config: watch::Receiver<Arc<Config>>,
    /// Whether the host is ready.
    pub health: Arc<Health>,
    /// What it measures.
    pub metrics: PrometheusHandle,
    /// What those who ask have to know.
    pub token: Option<Token>,
    /// Who answers about the handlers.
    pub handlers: HandlersDoor,
}

impl std::fmt::Debug for AdminRooms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminRooms")
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

/// What every route is handed.
#[derive(Clone, Debug)]
pub(crate) struct AdminState {
    rooms: AdminRooms,
    access: Access,
    bounds: Bounds,
}

impl AdminState {
    /// Returns the configuration that is in force.
    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.rooms.config.borrow())
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
    /// Listens at `address`. Beyond this machine nobody is served without the token.
    ///
    /// # Errors
    /// What the system says: the port is in use, or may not be used.
    pub async fn listen(address: SocketAddr, rooms: AdminRooms) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let measured = rooms.metrics.clone();
        let keeping = tokio::spawn(async move {
            // What was recorded is kept whole until then, whether anybody asks for it or not.
            loop {
                tokio::time::sleep(UPKEEP_INTERVAL).await;
                measured.run_upkeep();
            }
        });
        let state = AdminState {
            access: Access::new(address, rooms.token.clone()),
            rooms,
            bounds: Bounds::default(),
        };
        let serving = tokio::spawn(server::serve(listener, routes::router(state)));
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
