//! Connections: how many there are, and how long one may keep others waiting.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

/// Connections at once; others wait until one ends. At most half of the files that the process may have open: the database and the
/// brokers need theirs.
const CONNECTIONS_MAX: usize = 1_100;
/// How long the head of a request may take to come, and so how long a connection may idle.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// How long a client may take nothing of an answer.
const WRITE_TIME: Duration = Duration::from_secs(30);
/// The longest head of a request.
const HEAD_MAX: usize = 64 << 10;
/// The pause after the system had no more descriptors for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` until it is dropped, and then ends all connections.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let files = getrlimit(Resource::Nofile).current;
    let half = files.and_then(|files| usize::try_from(files / 2).ok());
    let most = half.map_or(CONNECTIONS_MAX, |half| half.clamp(1, CONNECTIONS_MAX));
    let room = Arc::new(Semaphore::new(most));
    let mut connections = JoinSet::new();
    loop {
        // Nobody closes it.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                connections.spawn(async move {
                    connection(stream, router).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection to the admin address was not taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, router: Router) {
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIME));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_MAX)
        .serve_connection(
            TokioIo::new(Box::pin(stream)),
            TowerToHyperService::new(router),
        )
        .await;
    if let Err(error) = served {
        // What a client does wrong is no news of the host's.
        tracing::debug!(%error, "a connection to the admin address broke off");
    }
}
