//! A handler in Python: componentize-py, which puts an interpreter and the project's modules into a component.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::tools;
use super::{Made, Work, sdk};
use crate::exit::CommandError;

/// What makes components of Python.
const PACKAGE: &str = "componentize-py==0.25.1";
/// Which tells of the version that `PACKAGE` names.
const VERSION: &str = "componentize-py 0.25.1";
/// The module between the contract and the handler; the world's own name would not do.
const APP: &str = "hapax._app";

pub(super) fn make(work: &Work<'_>) -> Result<Made, CommandError> {
    let tool = match find(work.folder) {
        Some(tool) => tool,
        None if work.install => {
            (work.step)(&format!(
                "pip downloads {PACKAGE} (72 MB on disk) into `.venv`"
            ));
            install(work.folder, PACKAGE)?;
            find(work.folder).ok_or_else(lacking)?
        }
        None => return Err(lacking()),
    };
    (work.step)("making the component with an interpreter inside (takes some 10 seconds)");
    let scratch = tools::scratch()?;
    let wit = scratch.path().join("wit");
    sdk::write_all(&wit, &sdk::contract())?;
    let out = scratch.path().join("handler.wasm");
    let said = tools::run(
        Command::new(&tool)
            .current_dir(work.folder)
            .arg("-d")
            .arg(&wit)
            .args(["-w", "handler", "componentize", "--stub-wasi"])
            .args(["-p", ".", "-p", "sdk", APP, "-o"])
            .arg(&out)
            // What Python leaves beside the sources would be put into the component.
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    )?;
    if !said.succeeded {
        return Err(said.failed(
            "componentize-py cannot load it",
            "correct what the last lines name; modules are loaded once, while the component is made",
        ));
    }
    Ok(Made {
        component: tools::read(&out)?,
        warnings: String::new(),
    })
}

/// Returns componentize-py, the project's own before the one on `PATH`, if it has the version.
fn find(folder: &Path) -> Option<PathBuf> {
    let own = folder.join(".venv/bin/componentize-py");
    tools::is_executable(&own)
        .then_some(own)
        .into_iter()
        .chain(tools::find("componentize-py"))
        .find(|tool| tools::first_line(tool, &["--version"]).as_deref() == Some(VERSION))
}

fn lacking() -> CommandError {
    tools::missing(
        &format!("`{}`", PACKAGE.replace("==", " ")),
        "it puts a Python interpreter and the handler into a component",
        &format!("python3 -m venv .venv && .venv/bin/pip install {PACKAGE}"),
    )
}

/// Installs a package of Python's registry into the project's folder `.venv`.
pub(super) fn install(folder: &Path, package: &str) -> Result<(), CommandError> {
    let venv = folder.join(".venv");
    if !tools::is_executable(&venv.join("bin/pip")) {
        let python = tools::find("python3").ok_or_else(|| {
            tools::missing(
                "`python3`",
                &format!("it installs {package}"),
                "apt-get install -y python3 python3-venv",
            )
        })?;
        let said = tools::run(Command::new(python).args(["-m", "venv"]).arg(&venv))?;
        if !said.succeeded {
            return Err(said.failed(
                &format!("python3 cannot make `{}`", venv.display()),
                "on Debian: `apt-get install -y python3-venv`",
            ));
        }
    }
    let said = tools::run(Command::new(venv.join("bin/python")).args([
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        package,
    ]))?;
    if !said.succeeded {
        return Err(said.failed(
            &format!("pip cannot install {package}"),
            "see what pip says; without a network nothing can be installed",
        ));
    }
    Ok(())
}
