//! `cargo xtask test`: everything the tests need, then all of them.
//!
//! **Invariant**: nothing is printed after the test runner's own summary, and its exit code is ours.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::services::{faketime, nats, pgbouncer, postgres};
use crate::wasm_target::WasmTarget;
use crate::{cargo, foreign, guests, process, tools};

/// The version that is installed where there is none; it needs no newer compiler than this workspace does.
const NEXTEST_VERSION: &str = "0.9.151";

/// The workspaces beside this one: the SDK and the handlers. Their own tests run natively, with the ordinary compiler.
const GUEST_WORKSPACES: [&str; 3] = ["guest-sdk/rust", "examples", "host/tests/guests"];

/// What `cargo xtask test` was asked for.
#[derive(Debug)]
pub(crate) struct Options {
    /// Run the big sizes too.
    pub(crate) full: bool,
    /// Passed on to the test runner.
    pub(crate) arguments: Vec<String>,
    /// Variables for the tests.
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// Prepares what is missing, then runs the tests. Returns the runner's exit code.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let wasm = WasmTarget::prepare()?;
    let postgres = postgres::binaries()?;
    let nats = nats::binary()?;
    let pgbouncer = pgbouncer::binary()?;
    let faketime = faketime::library()?;
    let mut nextest = nextest(root)?;
    if std::env::var_os("CI").is_some_and(|value| value == "true") {
        check_style(root)?;
    }
    guests::build(root, &wasm)?;
    // The tests of `hapax build` call the same tools.
    let foreign = foreign::build(root, foreign::Missing::IsAnError, options.full)?;
    if options.arguments.is_empty() {
        test_guests(root)?;
    }

    process::say("building and running the tests (the first time takes minutes)");
    let path = with_folders(&nextest, foreign)?;
    // The daemon is built with them: its tests ask cargo for the binary.
    nextest
        .args(["run", "--workspace"])
        .env("PATH", path)
        .env(postgres::VARIABLE, postgres)
        .env(nats::VARIABLE, nats)
        .env(pgbouncer::VARIABLE, pgbouncer)
        .env(faketime::VARIABLE, faketime);
    if options.full {
        nextest
            .args(["--profile", "full"])
            .env("HAPAX_TEST_FULL", "1");
    }
    nextest
        .args(&options.arguments)
        .envs(options.variables.iter().cloned());
    let status = process::status(&mut nextest)?;
    Ok(
        match status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(code) => ExitCode::from(code),
            None => ExitCode::FAILURE,
        },
    )
}

/// Checks formatting and lints as a reviewer would.
fn check_style(root: &Path) -> anyhow::Result<()> {
    process::say("checking the formatting (cargo fmt --check)");
    process::run(cargo::command(root).args(["fmt", "--all", "--check"]))
        .context("run `cargo fmt --all`")?;
    for workspace in GUEST_WORKSPACES {
        process::run(guest_cargo(root, workspace, "fmt").args(["--all", "--check"]))
            .with_context(|| format!("run `cargo fmt --all` in `{workspace}`"))?;
    }
    process::say("checking the lints (cargo clippy, warnings denied)");
    let lints = ["--workspace", "--all-targets"];
    let denied = ["--", "-D", "warnings"];
    process::run(cargo::command(root).arg("clippy").args(lints).args(denied))?;
    for workspace in GUEST_WORKSPACES {
        let mut clippy = guest_cargo(root, workspace, "clippy");
        process::run(clippy.args(lints).args(native_target(root)).args(denied))?;
    }
    Ok(())
}

/// Runs the tests of the SDK and of the handlers that need no host, documentation examples included.
fn test_guests(root: &Path) -> anyhow::Result<()> {
    process::say("testing the SDK and the handlers by themselves");
    for workspace in GUEST_WORKSPACES {
        let mut test = guest_cargo(root, workspace, "test");
        process::run(
            test.args(["--quiet", "--workspace"])
                .args(native_target(root)),
        )?;
    }
    Ok(())
}

/// Returns a call of `cargo SUBCOMMAND` on another workspace.
fn guest_cargo(root: &Path, workspace: &str, subcommand: &str) -> Command {
    let mut cargo = cargo::command(root);
    cargo
        .arg(subcommand)
        .arg("--manifest-path")
        .arg(root.join(workspace).join("Cargo.toml"));
    cargo
}

/// Keeps native builds of guests apart from those for Wasm, whose compiler may be another.
fn native_target(root: &Path) -> [OsString; 2] {
    [
        "--target-dir".into(),
        root.join("target/native-guests").into(),
    ]
}

/// Returns a call of `cargo nextest`, which is installed into `target/tools` if this machine has none.
fn nextest(root: &Path) -> anyhow::Result<Command> {
    let folder = tools().join("nextest");
    let binaries = folder.join("bin");
    let here = |cargo: &mut Command| process::output(cargo.args(["nextest", "--version"])).is_ok();
    if here(&mut cargo::command(root)) {
        return Ok(with_nextest(cargo::command(root)));
    }
    let path = prepended(&binaries)?;
    let ours = || {
        let mut command = cargo::command(root);
        command.env("PATH", &path);
        command
    };
    if !here(&mut ours()) {
        process::say(format_args!(
            "building the test runner, cargo-nextest {NEXTEST_VERSION} (takes minutes, once)"
        ));
        process::run(
            cargo::command(root)
                .args([
                    "install",
                    "cargo-nextest",
                    "--locked",
                    "--version",
                    NEXTEST_VERSION,
                    "--root",
                ])
                .arg(&folder),
        )?;
    }
    Ok(with_nextest(ours()))
}

fn with_nextest(mut cargo: Command) -> Command {
    cargo.arg("nextest");
    cargo
}

/// Returns the `PATH` of a call with `folders` before all others.
fn with_folders(call: &Command, folders: Vec<PathBuf>) -> anyhow::Result<OsString> {
    let set = call
        .get_envs()
        .find(|(name, _)| *name == "PATH")
        .and_then(|(_, path)| path.map(OsString::from));
    let path = set.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&path)))
        .context("`PATH` cannot be extended")
}

/// Returns `PATH` with `folder` before all others.
fn prepended(folder: &Path) -> anyhow::Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(PathBuf::from(folder)).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).context("`PATH` cannot be extended")
}
