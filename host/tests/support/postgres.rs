//! A PostgreSQL server in a folder of its own, reached through a Unix socket there.
//!
//! `HAPAX_TEST_POSTGRES_BIN` names the folder with `initdb` and `postgres`; else the newest in `/usr/lib/postgresql` is
//! taken. Both refuse to run as root: then they run as the user `postgres`, or `nobody`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use super::server::{Server, find_program};

/// The superuser of the test server; any password is taken. Not `hapax`: by the default `search_path`, a login of that
/// name would make its tables in the schema `hapax`.
const USER: &str = "tester";

/// A running server; killed and removed when dropped.
#[derive(Debug)]
pub struct Postgres {
    server: Option<Server>,
    settings: Vec<(String, String)>,
    programs: PathBuf,
    login: Option<(u32, u32)>,
    folder: TempDir,
    databases: AtomicU32,
}

impl Postgres {
    /// Starts one with the test's usual settings: no fsync.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with further settings.
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let programs = programs();
        let login = other_login();
        let folder = TempDir::with_prefix("hapax-pg-").unwrap();
        give(folder.path(), login);
        make_data(&programs, login, folder.path());
        let settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let mut postgres = Self {
            server: None,
            settings,
            programs,
            login,
            folder,
            databases: AtomicU32::new(0),
        };
        postgres.restart();
        postgres
    }

    /// Starts it again on the same data, after `kill` too.
    pub fn restart(&mut self) {
        self.stop();
        let mut command = command_as(self.login, &self.programs.join("postgres"));
        command
            .arg("-D")
            .arg(self.folder.path().join("data"))
            .arg("-k")
            .arg(self.folder.path())
            .args(["-c", "listen_addresses="])
            .args(["-c", "fsync=off"])
            .args(["-c", "full_page_writes=off"])
            .args(["-c", "shared_buffers=32MB"])
            .args(["-c", "unix_socket_permissions=0777"])
            .args(["-c", "log_min_messages=warning"])
            .args(["-c", "log_min_error_statement=panic"]);
        for (name, value) in &self.settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        // PostgreSQL reports this at level LOG, which `log_min_messages = warning` includes.
        let (server, ()) = Server::start(command, |line| {
            line.contains("database system is ready to accept ")
                .then_some(())
        });
        self.server = Some(server);
    }

    /// Writes a file that only the server and root may read, and returns its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        give(&path, self.login);
        path
    }

    /// Changes settings with the next start.
    pub fn set(&mut self, settings: &[(&str, &str)]) {
        let settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.settings.extend(settings);
    }

    /// The folder of its Unix socket, which is its own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A command that runs as the server's user.
    pub fn command(&self, program: &Path) -> Command {
        command_as(self.login, program)
    }

    /// Kills the server with SIGKILL; its sessions end at once or soon after.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill();
        }
    }

    /// Ends the server at once; when this returns, its sessions have ended too.
    pub fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // "Immediate": without a checkpoint, but the shared memory is given back.
            server.signal(rustix::process::Signal::QUIT);
            server.wait_at_most(Duration::from_secs(10));
        }
    }

    /// Ends the server as `pg_ctl stop -m fast` does: sessions are ended, what is committed is written.
    pub fn stop_fast(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.signal(rustix::process::Signal::INT);
            server.wait_at_most(Duration::from_secs(30));
        }
    }

    /// Starts it again on the same data as a standby without a primary: it takes no writes until `pg_promote()`.
    pub fn restart_as_standby(&mut self) {
        self.stop_fast();
        let signal = self.folder.path().join("data/standby.signal");
        fs::write(&signal, "").unwrap();
        give(&signal, self.login);
        self.restart();
    }

    /// The socket that it listens on.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join(".s.PGSQL.5432")
    }

    /// The URL of a database of this server as it is reached through a TCP port of this machine.
    pub fn url_through(&self, port: u16, database_url: &str) -> String {
        let database = database_url.rsplit('/').next().unwrap();
        format!("postgres://{USER}:secret@127.0.0.1:{port}/{database}")
    }

    /// The URL of a database of this server.
    pub fn url(&self, database: &str) -> String {
        let folder = self.folder.path().display().to_string().replace('/', "%2F");
        format!("postgres://{USER}:secret@{folder}/{database}")
    }

    /// Makes a new database and returns its URL.
    pub async fn database(&self) -> String {
        use sqlx::Connection as _;
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::SeqCst));
        let mut connection = sqlx::PgConnection::connect(&self.url("postgres"))
            .await
            .unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}")))
            .execute(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
        self.url(&name)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
    }
}

fn programs() -> PathBuf {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .map(|entries| {
            entries
                .filter_map(Result::ok)
                .filter_map(|entry| {
                    let version = entry.file_name().to_str()?.parse().ok()?;
                    Some((version, entry.path().join("bin")))
                })
                .collect()
        })
        .unwrap_or_default();
    versions.sort();
    find_program(
        "HAPAX_TEST_POSTGRES_BIN",
        "the folder with PostgreSQL's `initdb` and `postgres`",
        versions.into_iter().rev().map(|(_, path)| path).collect(),
    )
}

/// The user and group to run as, if this process is root.
fn other_login() -> Option<(u32, u32)> {
    if !rustix::process::getuid().is_root() {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let login = |name: &str| {
        passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            (fields.first() == Some(&name))
                .then(|| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)))
                .flatten()
        })
    };
    Some(
        login("postgres").or_else(|| login("nobody")).expect(
            "root can't run PostgreSQL, and there is neither a user `postgres` nor `nobody`",
        ),
    )
}

fn command_as(login: Option<(u32, u32)>, program: &Path) -> Command {
    let mut command = Command::new(program);
    // The folder of the test may be closed to that user.
    command.current_dir("/");
    if let Some((user, group)) = login {
        command.uid(user).gid(group);
    }
    command
}

fn give(path: &Path, login: Option<(u32, u32)>) {
    if let Some((user, group)) = login {
        chown(path, Some(user), Some(group)).unwrap();
    }
}

/// Makes `folder/data`: a copy of a fresh one that is made once and kept beside the build.
fn make_data(programs: &Path, login: Option<(u32, u32)>, folder: &Path) {
    let data = folder.join("data");
    let Some(cache) = option_env!("CARGO_TARGET_TMPDIR").map(PathBuf::from) else {
        init(programs, login, &data);
        return;
    };
    let version = Command::new(programs.join("postgres"))
        .arg("--version")
        .output()
        .unwrap();
    let version: String = String::from_utf8_lossy(&version.stdout)
        .chars()
        .map(|char| {
            if char.is_ascii_alphanumeric() || char == '.' {
                char
            } else {
                '_'
            }
        })
        .collect();
    let template = cache.join(format!("{USER}-{}-data", version.trim_matches('_')));
    if !template.exists() {
        init(programs, login, &data);
        // Another test may do the same at once: the first to rename wins.
        let own = cache.join(format!("data-{}", std::process::id()));
        copy(&data, &own, None);
        if fs::rename(&own, &template).is_err() {
            let _ = fs::remove_dir_all(&own);
        }
        return;
    }
    copy(&template, &data, login);
}

fn init(programs: &Path, login: Option<(u32, u32)>, data: &Path) {
    let output = command_as(login, &programs.join("initdb"))
        .arg("-D")
        .arg(data)
        .args(["-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C"])
        .args(["--no-sync", "--no-instructions", "--wal-segsize=1"])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "initdb failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn copy(from: &Path, to: &Path, login: Option<(u32, u32)>) {
    let metadata = fs::symlink_metadata(from).unwrap();
    if metadata.is_dir() {
        fs::create_dir(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()), login);
        }
    } else {
        fs::copy(from, to).unwrap();
    }
    fs::set_permissions(to, fs::Permissions::from_mode(metadata.mode() & 0o777)).unwrap();
    give(to, login);
}
