//! A PgBouncer before a test's PostgreSQL, reached through a Unix socket in a folder of its own.
//!
//! `HAPAX_TEST_PGBOUNCER` names the program; else it is looked for on `PATH` and in `/usr/sbin`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

use super::postgres::Postgres;
use super::server::{Server, find_program, on_path};

/// A running PgBouncer; killed when dropped.
#[derive(Debug)]
pub struct PgBouncer {
    _server: Server,
    folder: TempDir,
}

impl PgBouncer {
    /// Starts one in `mode`: `session` or `transaction`. All else is as it comes.
    pub fn start(postgres: &Postgres, mode: &str) -> Self {
        let mut candidates = on_path("pgbouncer");
        candidates.push(PathBuf::from("/usr/sbin/pgbouncer"));
        let program = find_program("HAPAX_TEST_PGBOUNCER", "the program pgbouncer", candidates);
        let folder = TempDir::with_prefix("hapax-pgbouncer-").unwrap();
        // It runs as the server's user.
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let users = folder.path().join("users");
        std::fs::write(&users, "\"tester\" \"secret\"\n").unwrap();
        let config = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={server}\n[pgbouncer]\nlisten_addr =\nlisten_port = 6432\nunix_socket_dir = {own}\n\
             auth_type = trust\nauth_file = {users}\npool_mode = {mode}\n",
            server = postgres.folder().display(),
            own = folder.path().display(),
            users = users.display(),
        );
        std::fs::write(&config, text).unwrap();
        let mut command = postgres.command(&program);
        command.arg(&config);
        let (server, ()) = Server::start(command, |line| line.contains("process up").then_some(()));
        Self {
            _server: server,
            folder,
        }
    }

    /// The URL of the database that `url` names at the server, through this.
    pub fn url(&self, url: &str) -> String {
        let database = url.rsplit('/').next().unwrap();
        let folder = self.folder.path().display().to_string().replace('/', "%2F");
        format!("postgres://tester:secret@{folder}:6432/{database}")
    }
}
