//! What handlers in C are compiled with: a clang and its linker for Wasm.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::Tools;
use crate::failure::Hinted;
use crate::{debian, process, python, tools};

const DEBIAN_PACKAGES: [&str; 2] = ["clang-19", "lld-19"];
/// A package of Python's registry that carries a clang with its linker, for machines where nobody is root.
const PYPI_PACKAGE: &str = "ziglang==0.17.0";
const WHAT: &str = "a C compiler for Wasm";

/// Finds a clang, or gets one: Debian's as root, Python's registry's otherwise.
///
/// # Errors
/// With what to run, when none is installed and none can be.
pub(super) fn prepare(_root: &Path) -> anyhow::Result<Tools> {
    let venv = tools().join("zig");
    if let Some(found) = find(&venv) {
        return Ok(found);
    }
    if debian::is_root() && debian::is_here() {
        debian::update()?;
        debian::install(&DEBIAN_PACKAGES, &format!("{WHAT}, 51 MB to download"))?;
    } else {
        process::say(format_args!(
            "getting {WHAT} from Python's package registry ({PYPI_PACKAGE}, 100 MB)"
        ));
        python::install(&venv, PYPI_PACKAGE).map_err(|err| {
            Hinted::error(
                format!("there is no {WHAT}: {err:#}"),
                format!("as root: {}", debian::command_for(&DEBIAN_PACKAGES)),
            )
        })?;
    }
    find(&venv).with_context(|| format!("{WHAT} was installed and makes no module"))
}

/// Returns the first that makes a module.
fn find(venv: &Path) -> Option<Tools> {
    let python_zig = venv.join("bin/python-zig");
    let compilers = [
        (PathBuf::from("clang-19"), vec!["--target=wasm32"], None),
        (PathBuf::from("clang"), vec!["--target=wasm32"], None),
        (
            python_zig,
            vec!["cc", "-target", "wasm32-freestanding"],
            Some(venv.join("bin")),
        ),
    ];
    compilers
        .into_iter()
        .find(|(program, words, _)| makes_modules(program, words).unwrap_or(false))
        .map(|(program, _, folder)| Tools {
            folders: folder.into_iter().collect(),
            node_modules: None,
            versions: process::output(Command::new(&program).arg("--version")).unwrap_or_default(),
        })
}

fn makes_modules(program: &Path, words: &[&str]) -> anyhow::Result<bool> {
    let folder = tempfile::tempdir()?;
    let source = folder.path().join("empty.c");
    fs::write(&source, "int nothing;\n")?;
    let mut call = Command::new(program);
    call.args(words)
        .args(["-nostdlib", "-Wl,--no-entry", "-o"])
        .arg(folder.path().join("empty.wasm"))
        .arg(source);
    Ok(process::output(&mut call).is_ok())
}
