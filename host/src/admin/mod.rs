//! The address for operators and their tools: `/healthz` and `/readyz`.
//!
//! **Invariant**: nothing here changes anything, and no answer holds a secret.

mod health;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::health::Health;

/// What the answers are made from.
#[derive(Clone, Debug)]
pub struct AdminState {
    /// Whether the host is ready.
    pub health: Arc<Health>,
}

/// The admin address, served until it is dropped.
#[derive(Debug)]
pub struct Admin {
    /// Where it listens; with port 0 the system chose one.
    pub address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Admin {
    /// Listens at `address`.
    ///
    /// # Errors
    /// What the system says: the port is in use, or may not be used.
    pub async fn listen(address: SocketAddr, state: AdminState) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes(state)).await {
                tracing::error!(%error, "the admin address is not served any more");
            }
        });
        Ok(Self { address, serving })
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// One file a subject; each has a router of its own.
fn routes(state: AdminState) -> Router {
    Router::new().merge(health::routes()).with_state(state)
}
