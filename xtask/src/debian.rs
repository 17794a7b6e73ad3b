//! Debian's packages, for what this machine lacks.
//!
//! **Invariant**: installs only as root, and never becomes root by itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::failure::Hinted;
use crate::process;

/// Whether this process may install packages.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this machine has Debian's package tools.
pub(crate) fn is_here() -> bool {
    process::find("apt-get").is_some()
}

/// Whether the known lists have a package of this name. Call [`update`] first.
pub(crate) fn offers(package: &str) -> bool {
    process::output(Command::new("apt-cache").args(["show", package]))
        .is_ok_and(|text| !text.is_empty())
}

/// Returns the command that a person would run as root.
pub(crate) fn command_for(packages: &[&str]) -> String {
    format!(
        "apt-get update && apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    )
}

/// Reads the lists of packages anew.
pub(crate) fn update() -> anyhow::Result<()> {
    process::say("reading Debian's package lists (apt-get update)");
    process::run_quietly(apt_get().arg("update"))
}

/// Installs `packages`, which `what` describes, from the lists as they are: call [`update`] first.
///
/// # Errors
/// Without root, or without Debian's tools: the exact command to run.
pub(crate) fn install(packages: &[&str], what: &str) -> anyhow::Result<()> {
    allowed(packages, what)?;
    process::say(format_args!(
        "installing {what} from Debian ({})",
        packages.join(", ")
    ));
    process::run_quietly(
        apt_get()
            .args(["install", "-y", "--no-install-recommends"])
            .args(packages),
    )
    .with_context(|| format!("cannot install {what}"))
}

/// Fetches a package and the libraries that it depends on by itself, and unpacks them below `folder`, which nobody needs to be root for. Returns the
/// folder that stands for `/`.
pub(crate) fn unpack(package: &str, folder: &Path) -> anyhow::Result<PathBuf> {
    let packages = folder.join("packages");
    let root = folder.join("root");
    for folder in [
        &packages,
        &root,
        &folder.join("lists/partial"),
        &folder.join("cache/archives/partial"),
    ] {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make `{}`", folder.display()))?;
    }
    let apt = |program: &str| {
        let mut command = Command::new(program);
        command
            .current_dir(&packages)
            .arg("-q")
            .args([
                "-o",
                &format!("Dir::State::lists={}", folder.join("lists").display()),
            ])
            .args([
                "-o",
                &format!("Dir::Cache={}", folder.join("cache").display()),
            ]);
        command
    };
    process::run_quietly(apt("apt-get").arg("update"))?;
    let depends = process::output(apt("apt-cache").args(["depends", package]))?;
    let mut wanted = vec![package];
    wanted.extend(
        depends
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .filter(|name| name.starts_with("lib") && *name != "libc6"),
    );
    process::run_quietly(apt("apt-get").arg("download").args(&wanted))?;
    for entry in fs::read_dir(&packages).context("cannot read what was fetched")? {
        process::run_quietly(Command::new("dpkg").arg("-x").arg(entry?.path()).arg(&root))?;
    }
    Ok(root)
}

/// Returns an error with the command to run, unless [`install`] may go on.
pub(crate) fn allowed(packages: &[&str], what: &str) -> anyhow::Result<()> {
    if !is_here() {
        return Err(Hinted::error(
            format!("{what} is missing, and this machine has no `apt-get` to install it with"),
            format!("install what Debian calls `{}`", packages.join("`, `")),
        ));
    }
    if !is_root() {
        return Err(Hinted::error(
            format!("{what} is missing, and only root can install it"),
            format!("as root: {}", command_for(packages)),
        ));
    }
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args([
        "-q",
        "-o",
        "Dpkg::Use-Pty=0",
        "-o",
        "Acquire::Retries=3",
    ]);
    command
}
