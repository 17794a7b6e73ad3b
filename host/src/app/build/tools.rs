//! The programs that a build calls: where they are, what they say, and what is said where they are not.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::running;
use crate::exit::{CommandError, Exit};

/// The most of a tool's output that is repeated, in lines from its end.
const LINES_MAX: usize = 200;

/// What a tool said.
pub(super) struct Said {
    pub(super) succeeded: bool,
    pub(super) out: Vec<u8>,
    pub(super) err: String,
}

impl Said {
    /// Returns both outputs, the end of what is long.
    pub(super) fn text(&self) -> String {
        let out = String::from_utf8_lossy(&self.out);
        tail(format!("{}\n{}", out.trim_end(), self.err.trim_end()).trim())
    }

    /// Returns what a failed tool said as an error of `what`.
    pub(super) fn failed(&self, what: &str, hint: &str) -> CommandError {
        CommandError::new(
            Exit::Failed,
            format!("{what}:\n{}", self.text()),
            Some(hint),
        )
    }
}

pub(super) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES_MAX)..].join("\n")
}

/// Says that a tool is not there: what, what it is for, and the one command that gets it.
pub(super) fn missing(what: &str, why: &str, install: &str) -> CommandError {
    CommandError::new(
        Exit::Failed,
        format!("{what} is missing: {why}"),
        Some(&format!("run `{install}`")),
    )
}

/// Returns the path of a program on `PATH`.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

pub(super) fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(file)
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Runs a program to its end, without input.
///
/// # Errors
/// It can't be started.
pub(super) fn run(command: &mut Command) -> Result<Said, CommandError> {
    let output = running::output(command.stdin(Stdio::null())).map_err(|error| {
        CommandError::new(
            Exit::Failed,
            format!(
                "cannot run `{}`: {error}",
                Path::new(command.get_program()).display()
            ),
            Some("check that the program is whole and may be run"),
        )
    })?;
    Ok(Said {
        succeeded: output.status.success(),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Returns the first line of what a program that succeeds prints.
pub(super) fn first_line(program: &Path, arguments: &[&str]) -> Option<String> {
    let said = run(Command::new(program).args(arguments)).ok()?;
    let text = String::from_utf8_lossy(&said.out);
    let line = text.lines().next().unwrap_or_default().trim();
    (said.succeeded && !line.is_empty()).then(|| line.to_owned())
}

/// Makes a temporary folder, which goes with the value.
pub(super) fn scratch() -> Result<tempfile::TempDir, CommandError> {
    tempfile::TempDir::with_prefix("hapax-build-").map_err(|error| {
        CommandError::new(
            Exit::Failed,
            format!("cannot make a temporary folder: {error}"),
            Some("set TMPDIR to a folder that can be written"),
        )
    })
}

/// Reads what a tool has made.
pub(super) fn read(file: &Path) -> Result<Vec<u8>, CommandError> {
    std::fs::read(file).map_err(|error| {
        CommandError::new(
            Exit::Failed,
            format!("cannot read `{}`: {error}", file.display()),
            None,
        )
    })
}

/// Returns whether Debian's package tools are here.
pub(super) fn has_apt() -> bool {
    find("apt-get").is_some()
}

/// Returns the program of a variable such as `CARGO`, else the one on `PATH`.
pub(super) fn program(variable: &str, name: &str) -> Option<PathBuf> {
    match std::env::var_os(variable) {
        Some(set) if !set.is_empty() => Some(PathBuf::from(set)),
        _ => find(name),
    }
}
