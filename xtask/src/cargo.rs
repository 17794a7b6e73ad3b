//! Calls of cargo on this workspace.
//!
//! **Invariant**: members are chosen by binary or as the whole workspace, never by `--package`: cargo unifies the features of
//! what is chosen, and a narrower choice would build the shared dependencies a second time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde_json::Value;

use crate::process;

/// Returns a call of the cargo that runs xtask, in the repository's root.
///
/// What `cargo run` sets for xtask itself is taken away: build scripts of dependencies watch some of these variables (ring's
/// `CARGO_PKG_NAME`), and would run again each time that cargo is called once from here and once by hand.
pub(crate) fn command(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    for (name, _) in std::env::vars_os() {
        let shown = name.to_string_lossy();
        if shown.starts_with("CARGO_PKG_") || shown.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Builds the daemon and returns the path of its binary.
pub(crate) fn build_host(root: &Path) -> anyhow::Result<PathBuf> {
    process::say("building the daemon (the first time takes minutes)");
    build(root, &["hapax"], &[])?
        .pop()
        .context("one binary was asked for")
}

/// Builds binaries and returns their paths, in the same order.
pub(crate) fn build(
    root: &Path,
    binaries: &[&str],
    options: &[&str],
) -> anyhow::Result<Vec<PathBuf>> {
    let messages = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    let mut command = command(root);
    command.arg("build").args(options);
    for binary in binaries {
        command.args(["--bin", binary]);
    }
    process::run(
        command
            .arg("--message-format=json-render-diagnostics")
            .stdin(Stdio::null())
            .stdout(messages.reopen().context("cannot open a temporary file")?),
    )?;
    let messages =
        std::fs::read_to_string(messages.path()).context("cannot read what cargo said")?;
    binaries
        .iter()
        .map(|binary| {
            executable(&messages, binary)
                .with_context(|| format!("cargo built `{binary}` without saying where it lies"))
        })
        .collect()
}

/// Returns the executable of the binary `name` in cargo's messages, one JSON object a line.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_is_read_from_the_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"hapax","kind":["lib"]},"executable":null}
not json
{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/debug/other"}
{"reason":"compiler-artifact","target":{"name":"hapax","kind":["bin"]},"executable":"/t/debug/hapax"}"#;
        assert_eq!(
            executable(messages, "hapax"),
            Some(PathBuf::from("/t/debug/hapax"))
        );
        assert_eq!(executable(messages, "absent"), None);
    }
}
