//! What systemd is told: ready, stopping, alive, and what is in the way.
//!
//! The protocol is that of `sd_notify(3)`: lines in a datagram to the socket that `NOTIFY_SOCKET` names. Without that variable
//! nothing is sent.
//!
//! **Invariant**: a supervisor that does not listen disturbs nothing.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::health::Health;

/// How much longer than the grace the end of a process may take.
const STOP_MARGIN: Duration = Duration::from_secs(10);

/// The socket of a supervisor.
#[derive(Debug)]
pub struct Notifier {
    socket: UnixDatagram,
    to: SocketAddr,
    /// How often the supervisor wants a sign of life.
    watchdog: Option<Duration>,
    /// How long a drain may take.
    grace: Duration,
    is_stopping: AtomicBool,
}

impl Notifier {
    /// Returns the supervisor that the variables `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` name, if there is one.
    ///
    /// `grace` is how long the drain may take.
    pub fn from_environment(grace: Duration) -> Option<Self> {
        let name = std::env::var("NOTIFY_SOCKET").ok()?;
        let variable = |name: &str| std::env::var(name).ok();
        let is_for_us =
            variable("WATCHDOG_PID").is_none_or(|pid| pid.parse() == Ok(std::process::id()));
        let watchdog = variable("WATCHDOG_USEC")
            .filter(|_| is_for_us)
            .and_then(|text| text.parse().ok())
            .filter(|microseconds| *microseconds > 0)
            .map(Duration::from_micros);
        match Self::new(&name, watchdog, grace) {
            Ok(notifier) => Some(notifier),
            Err(error) => {
                tracing::warn!(socket = %name, %error, "systemd cannot be told anything: its socket is not to be used");
                None
            }
        }
    }

    /// Takes `name` as a path, or with `@` in front as an abstract name.
    fn new(name: &str, watchdog: Option<Duration>, grace: Duration) -> std::io::Result<Self> {
        let to = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A supervisor that does not read must not stop the host.
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            to,
            watchdog,
            grace,
            is_stopping: AtomicBool::new(false),
        })
    }

    fn tell(&self, lines: &str) {
        if let Err(error) = self.socket.send_to_addr(lines.as_bytes(), &self.to) {
            tracing::debug!(%error, "systemd was not told");
        }
    }

    /// Says, once, that the host stops, and how long that may take.
    pub fn stopping(&self) {
        if !self.is_stopping.swap(true, Ordering::SeqCst) {
            let microseconds = (self.grace + STOP_MARGIN).as_micros();
            self.tell(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={microseconds}"));
        }
    }

    /// Says that the configuration is being read again. `reloaded` says that it was.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
    }

    /// Says that what was asked to be read again was.
    pub fn reloaded(&self) {
        self.tell("READY=1");
    }

    /// Tells of each change of `health`, and shows signs of life while its pipelines do. Runs until it is aborted.
    pub async fn run(self: Arc<Self>, health: Arc<Health>) {
        let mut changes = health.changes();
        let mut is_ready = false;
        let mut told = String::new();
        // Half of what is asked for, as `sd_watchdog_enabled(3)` recommends.
        let mut life = tokio::time::interval(
            self.watchdog
                .map_or(Duration::from_secs(3600), |period| period / 2)
                .max(Duration::from_millis(1)),
        );
        loop {
            changes.borrow_and_update();
            let readiness = health.readiness();
            let mut lines = Vec::new();
            if readiness.ready && !is_ready {
                is_ready = true;
                lines.push("READY=1".to_owned());
            }
            let status = match &readiness.down[..] {
                [] => "consuming".to_owned(),
                down => down
                    .iter()
                    .map(|down| match &down.part[..] {
                        "host" => down.why.clone(),
                        part => format!("{part}: {}", down.why),
                    })
                    .collect::<Vec<_>>()
                    .join("; "),
            };
            if status != told {
                lines.push(format!("STATUS={status}"));
                told = status;
            }
            if !lines.is_empty() {
                self.tell(&lines.join("\n"));
            }
            // Neither wait loses anything when dropped.
            tokio::select! {
                changed = changes.changed() => if changed.is_err() {
                    return;
                },
                _ = life.tick() => if self.watchdog.is_some() {
                    if health.is_alive() {
                        self.tell("WATCHDOG=1");
                    } else {
                        tracing::error!("a pipeline shows no sign of life: systemd is not told that all is well");
                    }
                },
            }
        }
    }
}
