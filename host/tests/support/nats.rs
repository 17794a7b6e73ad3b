//! A nats-server with JetStream in a folder of its own.
//!
//! `HAPAX_TEST_NATS` names the program; else it is looked for on `PATH`.

use std::process::Command;

use tempfile::TempDir;

use super::server::{Server, find_program, on_path};

/// The configuration, in the server's folder.
const CONFIG: &str = "nats.conf";

/// A running nats-server; killed when dropped.
#[derive(Debug)]
pub struct Nats {
    server: Option<Server>,
    port: u16,
    folder: TempDir,
}

impl Nats {
    /// Starts one on a free port.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts one with more lines of its configuration.
    pub fn start_with(config: &str) -> Self {
        let folder = TempDir::with_prefix("hapax-nats-").unwrap();
        std::fs::write(folder.path().join(CONFIG), config).unwrap();
        let (server, port) = launch(&folder, None);
        Self {
            server: Some(server),
            port,
            folder,
        }
    }

    /// `nats://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills it; its streams stay.
    pub fn kill(&mut self) {
        self.server = None;
    }

    /// Starts it again on the same port and streams.
    pub fn restart(&mut self) {
        self.server = None;
        let (server, _) = launch(&self.folder, Some(self.port));
        self.server = Some(server);
    }
}

fn launch(folder: &TempDir, port: Option<u16>) -> (Server, u16) {
    let program = find_program(
        "HAPAX_TEST_NATS",
        "the program nats-server",
        on_path("nats-server"),
    );
    let mut command = Command::new(program);
    command
        .args(["-js", "-a", "127.0.0.1", "-p"])
        .arg(port.map_or("-1".into(), |port| port.to_string()))
        .arg("-c")
        .arg(folder.path().join(CONFIG))
        .arg("-sd")
        .arg(folder.path().join("data"));
    let mut port = None;
    Server::start(command, move |line| {
        if let Some((_, address)) = line.split_once("Listening for client connections on ") {
            port = address
                .rsplit(':')
                .next()
                .and_then(|port| port.trim().parse().ok());
        }
        line.contains("Server is ready").then_some(port).flatten()
    })
}
