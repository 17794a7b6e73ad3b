//! What makes components of Python: componentize-py.

use std::path::Path;
use std::process::Command;

use super::Tools;
use crate::failure::Hinted;
use crate::{process, python, tools};

const PYPI_PACKAGE: &str = "componentize-py==0.25.1";

/// Finds componentize-py, or gets it from Python's registry.
///
/// # Errors
/// With what to run, when it is not there and can't be had.
pub(super) fn prepare(_root: &Path) -> anyhow::Result<Tools> {
    let venv = tools().join("componentize-py");
    let folder = venv.join("bin");
    let version = || {
        process::output(Command::new(folder.join("componentize-py")).arg("--version"))
            .ok()
            .filter(|version| PYPI_PACKAGE.replace("==", " ") == *version)
    };
    if version().is_none() {
        process::say(format_args!(
            "getting componentize-py from Python's package registry ({PYPI_PACKAGE}, 40 MB)"
        ));
        python::install(&venv, PYPI_PACKAGE).map_err(|err| {
            Hinted::error(
                format!("there is no componentize-py: {err:#}"),
                format!("run `pip install {PYPI_PACKAGE}` to see why"),
            )
        })?;
    }
    Ok(Tools {
        versions: version().unwrap_or_default(),
        folders: vec![folder],
        node_modules: None,
    })
}
