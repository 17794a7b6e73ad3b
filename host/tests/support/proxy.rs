//! A TCP proxy between a host and its database or broker that breaks things on purpose.
//!
//! It runs on a thread of its own, so that a test that waits does not hold it up. What it loses it counts: a fault that was armed and
//! met nothing is no fault.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

/// Whom the proxy stands before.
#[derive(Clone, Debug)]
pub enum Upstream {
    /// PostgreSQL at a Unix socket.
    Postgres(PathBuf),
    /// nats-server at a port.
    Nats(u16),
}

/// What can be lost on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The server's reply to a COMMIT that it has carried out; the connection with it.
    CommitReply,
    /// A COMMIT, before the server gets it; the connection with it.
    Commit,
    /// A client's acknowledgement of a message.
    Ack,
    /// A message on its way to the client.
    Delivery,
}

const LOSSES: [Loss; 4] = [Loss::CommitReply, Loss::Commit, Loss::Ack, Loss::Delivery];

/// How all connections are treated; a change takes effect at once.
#[derive(Clone, Debug, Default)]
struct Mood {
    /// Grows when all connections are to be cut.
    cuts: u64,
    /// Grows when the clients' ends are to be closed for reading, while what they send still arrives.
    half_closes: u64,
    /// New connections are closed at once.
    refuses: bool,
    /// Nothing passes, and nothing is closed.
    stalled: bool,
    /// Each piece waits so long.
    delay: Duration,
}

#[derive(Debug, Default)]
struct Losses {
    armed: Mutex<[u64; 4]>,
    applied: [AtomicU64; 4],
}

impl Losses {
    /// True if this one is to be lost.
    fn take(&self, loss: Loss) -> bool {
        let mut armed = self.armed.lock().unwrap();
        let left = &mut armed[loss as usize];
        if *left == 0 {
            return false;
        }
        *left -= 1;
        self.applied[loss as usize].fetch_add(1, Ordering::SeqCst);
        true
    }
}

/// A running proxy; its connections end with it.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    mood: watch::Sender<Mood>,
    losses: Arc<Losses>,
    open: Arc<AtomicU64>,
}

impl Proxy {
    /// Starts one on a free port.
    pub fn start(upstream: Upstream) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mood, moods) = watch::channel(Mood::default());
        let losses = Arc::new(Losses::default());
        let open = Arc::new(AtomicU64::new(0));
        let (shared, counted) = (Arc::clone(&losses), Arc::clone(&open));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(accept(listener, upstream, moods, shared, counted));
        });
        Self {
            port,
            mood,
            losses,
            open,
        }
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections are open.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::SeqCst)
    }

    /// Cuts every connection. Returns how many there were.
    pub fn cut(&self) -> u64 {
        let open = self.open();
        self.mood.send_modify(|mood| mood.cuts += 1);
        open
    }

    /// Closes every connection towards the client only. Returns how many there were.
    pub fn half_close(&self) -> u64 {
        let open = self.open();
        self.mood.send_modify(|mood| mood.half_closes += 1);
        open
    }

    /// Refuses new connections, or takes them again.
    pub fn refuse(&self, refuses: bool) {
        self.mood.send_modify(|mood| mood.refuses = refuses);
    }

    /// Lets nothing pass, as a network that is gone, or all again.
    pub fn stall(&self, stalled: bool) {
        self.mood.send_modify(|mood| mood.stalled = stalled);
    }

    /// Lets each piece wait.
    pub fn delay(&self, delay: Duration) {
        self.mood.send_modify(|mood| mood.delay = delay);
    }

    /// Loses the next `count` of a kind.
    pub fn lose(&self, loss: Loss, count: u64) {
        self.losses.armed.lock().unwrap()[loss as usize] = count;
    }

    /// How many of a kind were lost so far.
    pub fn lost(&self, loss: Loss) -> u64 {
        self.losses.applied[loss as usize].load(Ordering::SeqCst)
    }

    /// Loses nothing any more, and lets everything pass.
    pub fn calm(&self) {
        for loss in LOSSES {
            self.lose(loss, 0);
        }
        self.mood.send_modify(|mood| {
            mood.refuses = false;
            mood.stalled = false;
            mood.delay = Duration::ZERO;
        });
    }
}

async fn accept(
    listener: std::net::TcpListener,
    upstream: Upstream,
    mut moods: watch::Receiver<Mood>,
    losses: Arc<Losses>,
    open: Arc<AtomicU64>,
) {
    let listener = TcpListener::from_std(listener).unwrap();
    loop {
        tokio::select! {
            changed = moods.changed() => {
                if changed.is_err() {
                    // The test is over.
                    return;
                }
            }
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                if moods.borrow().refuses {
                    continue;
                }
                let _ = client.set_nodelay(true);
                let (moods, losses, open) = (moods.clone(), Arc::clone(&losses), Arc::clone(&open));
                let upstream = upstream.clone();
                tokio::spawn(async move {
                    open.fetch_add(1, Ordering::SeqCst);
                    connection(client, upstream, moods, losses).await;
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        }
    }
}

async fn connection(
    client: TcpStream,
    upstream: Upstream,
    moods: watch::Receiver<Mood>,
    losses: Arc<Losses>,
) {
    let (from_client, to_client) = client.into_split();
    let to_client: Box<dyn AsyncWrite + Send + Unpin> = Box::new(to_client);
    match upstream {
        Upstream::Postgres(socket) => {
            let Ok(server) = UnixStream::connect(socket).await else {
                return;
            };
            let (from_server, to_server) = server.into_split();
            let up = pump(
                from_client,
                Box::new(to_server),
                moods.clone(),
                false,
                |piece| frames_to_postgres(piece, &losses),
            );
            let mut framer = PostgresReplies::default();
            let down = pump(from_server, to_client, moods.clone(), true, |piece| {
                framer.pass(piece, &losses)
            });
            either(up, down).await;
        }
        Upstream::Nats(port) => {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
                return;
            };
            let _ = server.set_nodelay(true);
            let (from_server, to_server) = server.into_split();
            let (mut ups, mut downs) = (NatsLines::default(), NatsLines::default());
            let up = pump(
                from_client,
                Box::new(to_server),
                moods.clone(),
                false,
                |piece| {
                    Some(ups.pass(piece, |line| {
                        line.contains("PUB $JS.ACK.") && losses.take(Loss::Ack)
                    }))
                },
            );
            let down = pump(from_server, to_client, moods.clone(), true, |piece| {
                Some(downs.pass(piece, |line| {
                    line.starts_with("HMSG")
                        && line.contains("$JS.ACK.")
                        && losses.take(Loss::Delivery)
                }))
            });
            either(up, down).await;
        }
    }
}

/// Ends both directions with the first that ends.
async fn either(up: impl Future<Output = ()>, down: impl Future<Output = ()>) {
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

/// Carries bytes one way until an end, a cut, or `pass` says so with `None`.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: Box<dyn AsyncWrite + Send + Unpin>,
    mut moods: watch::Receiver<Mood>,
    to_client: bool,
    mut pass: impl FnMut(&[u8]) -> Option<Vec<u8>>,
) {
    let born = moods.borrow().clone();
    let mut is_closed = false;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mood = moods.borrow_and_update().clone();
        if mood.cuts != born.cuts {
            return;
        }
        if to_client && !is_closed && mood.half_closes != born.half_closes {
            is_closed = true;
            let _ = to.shutdown().await;
        }
        if mood.stalled {
            if moods.changed().await.is_err() {
                return;
            }
            continue;
        }
        let read = tokio::select! {
            changed = moods.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
            read = from.read(&mut buffer) => read,
        };
        let Ok(length @ 1..) = read else { return };
        if !mood.delay.is_zero() {
            tokio::time::sleep(mood.delay).await;
        }
        let Some(piece) = pass(&buffer[..length]) else {
            return;
        };
        if !is_closed && to.write_all(&piece).await.is_err() {
            return;
        }
    }
}

/// What a client of PostgreSQL sends: hapax's commits are short messages, so one comes in one piece.
fn frames_to_postgres(piece: &[u8], losses: &Losses) -> Option<Vec<u8>> {
    let is_commit = piece.first() == Some(&b'Q') && piece.ends_with(b"; COMMIT\0");
    (!is_commit || !losses.take(Loss::Commit)).then(|| piece.to_vec())
}

/// The messages of PostgreSQL's server: a letter, a length, the rest.
#[derive(Default)]
struct PostgresReplies {
    waiting: Vec<u8>,
    has_begun: bool,
}

impl PostgresReplies {
    fn pass(&mut self, piece: &[u8], losses: &Losses) -> Option<Vec<u8>> {
        self.waiting.extend_from_slice(piece);
        let mut passed = Vec::new();
        if !self.has_begun && self.waiting.first() == Some(&b'N') && self.waiting.len() == 1 {
            // No TLS: an answer without a length.
            passed.append(&mut self.waiting);
            return Some(passed);
        }
        self.has_begun = true;
        while self.waiting.len() >= 5 {
            let length = u32::from_be_bytes(self.waiting[1..5].try_into().unwrap()) as usize + 1;
            if self.waiting.len() < length {
                break;
            }
            let message: Vec<u8> = self.waiting.drain(..length).collect();
            if message[0] == b'C' && &message[5..] == b"COMMIT\0" && losses.take(Loss::CommitReply)
            {
                return None;
            }
            passed.extend(message);
        }
        Some(passed)
    }
}

/// The lines of NATS, each with the payload that it announces.
#[derive(Default)]
struct NatsLines {
    waiting: Vec<u8>,
}

impl NatsLines {
    fn pass(&mut self, piece: &[u8], mut is_lost: impl FnMut(&str) -> bool) -> Vec<u8> {
        self.waiting.extend_from_slice(piece);
        let mut passed = Vec::new();
        loop {
            let Some(end) = self.waiting.windows(2).position(|two| two == b"\r\n") else {
                return passed;
            };
            let line = String::from_utf8_lossy(&self.waiting[..end]).into_owned();
            let carries = ["PUB ", "HPUB ", "MSG ", "HMSG "]
                .iter()
                .any(|word| line.starts_with(word));
            let payload = match line.rsplit(' ').next() {
                Some(size) if carries => size.parse::<usize>().unwrap_or(0) + 2,
                _ => 0,
            };
            let length = end + 2 + payload;
            if self.waiting.len() < length {
                return passed;
            }
            let message: Vec<u8> = self.waiting.drain(..length).collect();
            if !is_lost(&line) {
                passed.extend(message);
            }
        }
    }
}
