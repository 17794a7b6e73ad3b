//! Handlers in other languages than Rust: gets their tools, and has `hapax build` make their components.
//!
//! **Invariant**: the daemon, its demo and the guests in Rust need nothing of this. How a component is made, `hapax build` alone knows.

mod c;
mod go;
mod javascript;
mod python;
mod record;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::failure::Hinted;
use crate::{cargo, guests, interrupt, process};

/// What becomes of a language whose tools are neither here nor to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// A line says so, with what to run; the others are built.
    IsTold,
    /// Nothing goes on.
    IsAnError,
}

/// What the examples are built with.
struct Tools {
    /// Folders of programs, to go before those on `PATH`.
    folders: Vec<PathBuf>,
    /// The folder `node_modules`, for the examples that have one.
    node_modules: Option<PathBuf>,
    /// Their versions: with others, the same source makes another component.
    versions: String,
}

/// A handler that is built.
struct Project {
    /// Below the repository's root.
    folder: PathBuf,
    /// The component's file in it.
    component: &'static str,
}

impl Project {
    /// Returns those of a language: the example, and the handler that the tests of all languages run.
    fn of(word: &str) -> [Self; 2] {
        [
            Self {
                folder: Path::new("examples/credit-account").join(word),
                component: "credit-account.wasm",
            },
            Self {
                folder: Path::new("host/tests/languages/handlers").join(word),
                component: "handler.wasm",
            },
        ]
    }
}

/// Builds the handlers in C, JavaScript and Python, and with `all` in TypeScript and Go, which the ordinary tests do without: their components
/// take minutes of a small machine. Gets the tools for them first, and returns the folders of programs that are to go before those on `PATH`.
///
/// # Errors
/// What the tools say about a handler; with [`Missing::IsAnError`] also that there are none.
pub(crate) fn build(root: &Path, missing: Missing, all: bool) -> anyhow::Result<Vec<PathBuf>> {
    type Prepare = fn(&Path) -> anyhow::Result<Tools>;
    let languages: [(Prepare, &[&str]); 4] = if all {
        [
            (c::prepare, &["c"]),
            (javascript::prepare, &["js", "ts"]),
            (python::prepare, &["python"]),
            (go::prepare, &["go"]),
        ]
    } else {
        [
            (c::prepare, &["c"]),
            (javascript::prepare, &["js"]),
            (python::prepare, &["python"]),
            (go::prepare, &[]),
        ]
    };
    let words: Vec<&str> = languages
        .iter()
        .flat_map(|(_, words)| *words)
        .copied()
        .collect();
    process::say(format_args!(
        "building the handlers in other languages than Rust: {}",
        words.join(", ")
    ));
    let hapax = cargo::build_host(root)?;
    let mut folders = Vec::new();
    for (prepare, words) in languages {
        if words.is_empty() {
            continue;
        }
        let Some(tools) = usable(prepare(root), words, missing)? else {
            continue;
        };
        for project in words.iter().flat_map(|word| Project::of(word)) {
            build_one(root, &project, &hapax, &tools)
                .with_context(|| format!("`{}`", project.folder.display()))?;
            interrupt::check()?;
        }
        folders.extend(tools.folders);
    }
    Ok(folders)
}

/// Has `hapax build` make the component, unless the one that is there was made of the same things.
fn build_one(root: &Path, project: &Project, hapax: &Path, tools: &Tools) -> anyhow::Result<()> {
    let folder = root.join(&project.folder);
    let shown = project.folder.join(project.component);
    let component = root.join(&shown);
    let record = record::Record::of(root, &project.folder, tools)?;
    if let Some(bytes) = record.is_of(&component) {
        guests::say_built(&shown, bytes, false);
        return Ok(());
    }
    if let Some(node_modules) = &tools.node_modules {
        link(node_modules, &folder.join("node_modules"))?;
    }
    process::run_quietly(
        Command::new(hapax)
            .args(["build", "--update-sdk"])
            .env("PATH", path_with(&tools.folders)?)
            // Where the tests' hosts look for compiled code: what is compiled to be checked is compiled for them, too.
            .env("XDG_CACHE_HOME", crate::target().join("tmp/cache"))
            .current_dir(&folder),
    )?;
    let bytes = record.write(&component)?;
    guests::say_built(&shown, bytes, true);
    Ok(())
}

/// Makes a link, over an older one.
fn link(target: &Path, link: &Path) -> anyhow::Result<()> {
    if std::fs::read_link(link).is_ok_and(|old| old == target) {
        return Ok(());
    }
    if link.is_symlink() {
        std::fs::remove_file(link)
            .with_context(|| format!("cannot remove `{}`", link.display()))?;
    }
    std::os::unix::fs::symlink(target, link)
        .with_context(|| format!("cannot make `{}`", link.display()))
}

/// Returns `PATH` with `folders` before all others.
fn path_with(folders: &[PathBuf]) -> anyhow::Result<OsString> {
    let here = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(folders.iter().cloned().chain(std::env::split_paths(&here)))
        .context("`PATH` cannot be extended")
}

/// Returns the tools, or nothing where it was told that there are none.
fn usable<T>(
    tools: anyhow::Result<T>,
    words: &[&str],
    missing: Missing,
) -> anyhow::Result<Option<T>> {
    interrupt::check()?;
    match tools {
        Ok(tools) => Ok(Some(tools)),
        Err(err) if missing == Missing::IsTold => {
            let hint = Hinted::find(&err).unwrap_or("see above");
            eprintln!("    {} is not built: {err:#}; {hint}", words.join(", "));
            Ok(None)
        }
        Err(err) => Err(err),
    }
}
