//! Programs from Python's package registry, each in an environment of its own.

use std::path::Path;
use std::process::Command;

use crate::{debian, process};

/// Installs `package` into the environment in the folder `venv`, made anew.
///
/// # Errors
/// Without Python, or what its installer says.
pub(crate) fn install(venv: &Path, package: &str) -> anyhow::Result<()> {
    let make = || {
        process::run_quietly(
            Command::new("python3")
                .args(["-m", "venv", "--clear"])
                .arg(venv),
        )
    };
    if let Err(err) = make() {
        // Debian splits Python: `python3 -m venv` needs a package of its own.
        if !debian::is_here() {
            return Err(err);
        }
        debian::allowed(&["python3-venv"], "Python's `venv`")?;
        debian::update()?;
        debian::install(&["python3-venv"], "Python's `venv`")?;
        make()?;
    }
    process::run_quietly(Command::new(venv.join("bin/python")).args([
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        package,
    ]))
}
