//! A folder for projects, with a space and letters beyond ASCII in its path.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::support::host::{self, Output};

/// A folder of the test's own, and the variables for the commands that run in it.
pub(crate) struct Place {
    _folder: TempDir,
    path: PathBuf,
    variables: Vec<(String, String)>,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = TempDir::with_prefix("hapax projects ü ").unwrap();
        let path = folder.path().canonicalize().unwrap();
        Self {
            _folder: folder,
            path,
            variables: rust_variables(),
        }
    }

    /// As `new`, with the project `credit`.
    pub(crate) fn with_project(language: &str) -> Self {
        let place = Self::new();
        let output = place.hapax("", &["new", "credit", "--lang", language]);
        assert!(output.status.success(), "{}", output.err);
        if matches!(language, "js" | "ts") {
            std::os::unix::fs::symlink(node_modules(), place.project().join("node_modules"))
                .unwrap();
        }
        place
    }

    /// Sets a variable for the commands that follow.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.retain(|(old, _)| old != name);
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.path.join("credit")
    }

    pub(crate) fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.project().join(file)).unwrap()
    }

    /// Replaces a piece of a file, which is there.
    pub(crate) fn replace(&self, file: &str, old: &str, new: &str) {
        let text = self.read(file);
        assert!(text.contains(old), "{text}");
        std::fs::write(self.project().join(file), text.replace(old, new)).unwrap();
    }

    /// Runs a command to its end in a folder below.
    pub(crate) fn hapax(&self, folder: &str, arguments: &[&str]) -> Output {
        let variables: Vec<(&str, &str)> = self
            .variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        host::run_with(&self.path.join(folder), arguments, &variables, b"")
    }

    /// `hapax build` in the project.
    pub(crate) fn build(&self) -> Output {
        self.hapax("credit", &["build"])
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// The packages of npm that `cargo xtask guests` has got for the examples.
fn node_modules() -> PathBuf {
    let folder = root().join("examples/credit-account/js/node_modules");
    assert!(
        folder.join("esbuild").exists(),
        "`{}` is not there: run `cargo xtask guests`",
        folder.display()
    );
    folder
}

/// Has cargo build where and as `cargo xtask guests` does, so that what both need is compiled once.
fn rust_variables() -> Vec<(String, String)> {
    let root = root();
    let home = std::env::var("CARGO_HOME")
        .unwrap_or_else(|_| format!("{}/.cargo", std::env::var("HOME").unwrap()));
    let flags = [
        (root.display().to_string(), "hapax"),
        (
            root.join("target/guest-workspace").display().to_string(),
            "hapax",
        ),
        (home, "cargo"),
    ]
    .map(|(folder, name)| format!("--remap-path-prefix={folder}={name}"));
    vec![
        (
            "CARGO_TARGET_DIR".to_owned(),
            root.join("target/guests").display().to_string(),
        ),
        ("CARGO_ENCODED_RUSTFLAGS".to_owned(), flags.join("\u{1f}")),
    ]
}
