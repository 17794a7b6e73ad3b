//! Those who ask the admin address of a host, many at once, while it processes messages.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// What they ask, in turns: from memory, and out of the database.
const PATHS: [&str; 4] = ["/healthz", "/metrics", "/api/status", "/api/dead-letters"];
/// How often it is looked whether the host listens.
const LOOK: Duration = Duration::from_millis(2);

/// What became of the requests of one run.
#[derive(Debug, Default)]
pub(super) struct Asked {
    served: AtomicU32,
    /// Refused for want of room.
    busy: AtomicU32,
    /// Open when the host ended.
    cut: AtomicU32,
    waves: AtomicU32,
}

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let read = |count: &AtomicU32| count.load(Ordering::Relaxed);
        write!(
            f,
            "requests in {} waves: {} served, {} refused as busy, {} open at the end",
            read(&self.waves),
            read(&self.served),
            read(&self.busy),
            read(&self.cut)
        )
    }
}

/// Returns an address that nobody uses just now.
pub(super) fn free_address() -> anyhow::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .context("cannot find a free port")
}

/// Asks with `at_once` requests at a time, as soon as somebody listens: when all are answered, they ask again. Until `stop`.
pub(super) fn ask(address: SocketAddr, at_once: u32, stop: &AtomicBool) -> anyhow::Result<Asked> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime for those who ask")?;
    let asked = Arc::new(Asked::default());
    runtime.block_on(async {
        while TcpStream::connect(address).await.is_err() {
            if stop.load(Ordering::SeqCst) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
        while !stop.load(Ordering::SeqCst) {
            asked.waves.fetch_add(1, Ordering::Relaxed);
            let mut wave = JoinSet::new();
            for number in 0..at_once {
                let path = PATHS[number as usize % PATHS.len()];
                let asked = Arc::clone(&asked);
                wave.spawn(async move {
                    let counter = match one(address, path).await {
                        Ok(200) => &asked.served,
                        Ok(_) => &asked.busy,
                        Err(_) => &asked.cut,
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                });
            }
            while wave.join_next().await.is_some() {}
        }
    });
    Arc::try_unwrap(asked).map_err(|_| anyhow::anyhow!("a request is still counted"))
}

/// Asks once. Returns the status.
async fn one(address: SocketAddr, path: &str) -> anyhow::Result<u16> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let status = answer.get(9..12).context("no answer")?;
    Ok(std::str::from_utf8(status)?.parse()?)
}
