//! A folder with a configuration, in which commands are run.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::support::host::{self, Output};
use crate::support::scene;

/// Where nobody listens.
pub(crate) const NO_POSTGRES: &str = "postgres://u:secret@127.0.0.1:1/db";
/// Where nobody listens.
pub(crate) const NO_NATS: &str = "nats://u:secret@127.0.0.1:1";

/// A folder of the test's own.
pub(crate) struct Place {
    _folder: TempDir,
    path: PathBuf,
}

impl Place {
    /// With `hapax.toml`.
    pub(crate) fn new(config: &str) -> Self {
        let place = Self::empty();
        place.write("hapax.toml", config);
        place
    }

    /// With SQLite, the queue `orders`, and the handler `ship` on the scriptable component; `handler` is more lines of its table.
    pub(crate) fn with_queue(handler: &str) -> Self {
        Self::new(&format!(
            "[store]\nurl = \"sqlite:hapax.db\"\n[sources.orders]\nkind = \"queue\"\n{}{handler}\n",
            handler_table("ship", "orders")
        ))
    }

    pub(crate) fn empty() -> Self {
        let folder = TempDir::with_prefix("hapax-commands-").unwrap();
        // Commands print the path as the system knows it.
        let path = folder.path().canonicalize().unwrap();
        Self {
            _folder: folder,
            path,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it, as commands print it.
    pub(crate) fn shown(&self, file: &str) -> String {
        self.path.join(file).display().to_string()
    }

    pub(crate) fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// Runs a command to its end.
    pub(crate) fn hapax(&self, arguments: &[&str]) -> Output {
        host::run(&self.path, arguments)
    }

    /// As `hapax`, with bytes on standard input.
    pub(crate) fn hapax_reading(&self, input: &[u8], arguments: &[&str]) -> Output {
        host::run_with(&self.path, arguments, &[], input)
    }

    /// As `hapax`, with variables.
    pub(crate) fn hapax_where(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
        host::run_with(&self.path, arguments, variables, b"")
    }

    /// As `sqlite`, and makes the file.
    pub(crate) async fn sqlite_made(&self) -> crate::support::database::Probe {
        std::fs::File::create(self.shown("hapax.db")).unwrap();
        self.sqlite().await
    }

    pub(crate) async fn sqlite(&self) -> crate::support::database::Probe {
        let url = format!("sqlite:{}", self.shown("hapax.db"));
        crate::support::database::Probe::Sqlite(
            <sqlx::SqliteConnection as sqlx::Connection>::connect(&url)
                .await
                .unwrap(),
        )
    }
}

/// A handler's table on the scriptable component.
pub(crate) fn handler_table(name: &str, source: &str) -> String {
    format!(
        "[handlers.{name}]\ncomponent = \"{}\"\nsource = \"{source}\"\n",
        scene::script().display()
    )
}

/// A stream's table.
pub(crate) fn stream_table(name: &str, url: &str, more: &str) -> String {
    format!(
        "[sources.{name}]\nkind = \"jetstream\"\nurl = \"{url}\"\nstream = \"ORDERS\"\n{more}\n"
    )
}

/// Asserts that a command worked, said nothing on standard error, and printed `text`.
#[track_caller]
pub(crate) fn assert_prints(output: &Output, text: &str) {
    assert_eq!(
        (
            output.status.code(),
            output.err.as_str(),
            output.out.as_str()
        ),
        (Some(0), "", text)
    );
}

/// Asserts that a command failed with `code` and printed exactly `text`, on standard error alone.
#[track_caller]
pub(crate) fn assert_fails(output: &Output, code: i32, text: &str) {
    assert_eq!(
        (
            output.status.code(),
            output.err.as_str(),
            output.out.as_str()
        ),
        (Some(code), format!("{text}\n").as_str(), "")
    );
}
