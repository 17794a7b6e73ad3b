//! libfaketime: a library that has one process believe in another time, for the tests of clocks.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::failure::Hinted;
use crate::{debian, process, tools};

/// The environment variable that names the library's file.
pub(crate) const VARIABLE: &str = "HAPAX_TEST_FAKETIME";
const PACKAGE: &str = "libfaketime";
const WHAT: &str = "libfaketime";

/// Finds libfaketime; else installs Debian's package as root, or unpacks it into `target/tools`.
///
/// # Errors
/// A named file that is not there, or none at all, with what to do.
pub(crate) fn library() -> anyhow::Result<PathBuf> {
    if let Some(file) = std::env::var_os(VARIABLE).filter(|set| !set.is_empty()) {
        let file = PathBuf::from(file);
        return match file.exists() {
            true => Ok(file),
            false => Err(Hinted::error(
                format!("`{VARIABLE}`: `{}` is not there", file.display()),
                "name the library's file, libfaketimeMT.so.1",
            )),
        };
    }
    let folder = tools().join("faketime");
    if let Some(file) = below(Path::new("/")).or_else(|| below(&folder.join("root"))) {
        return Ok(file);
    }
    let missing = if debian::is_root() {
        debian::allowed(&[PACKAGE], WHAT)
            .and_then(|()| debian::update())
            .and_then(|()| debian::install(&[PACKAGE], WHAT))
            .and_then(|()| below(Path::new("/")).context("it was installed and is not to be found"))
    } else if debian::is_here() {
        process::say("unpacking libfaketime from Debian's packages into `target/tools`");
        debian::unpack(PACKAGE, &folder)
            .and_then(|root| below(&root).context("it was unpacked and is not to be found"))
    } else {
        debian::allowed(&[PACKAGE], WHAT).map(|()| folder)
    };
    missing.map_err(|err| {
        let hint = Hinted::find(&err).map_or_else(String::new, |hint| format!("{hint}; or "));
        Hinted::error(
            format!("no libfaketime on this machine: {err:#}"),
            format!("{hint}set `{VARIABLE}` to the file libfaketimeMT.so.1"),
        )
    })
}

/// Looks where Debian's package puts it.
fn below(root: &Path) -> Option<PathBuf> {
    std::fs::read_dir(root.join("usr/lib"))
        .ok()?
        .filter_map(Result::ok)
        .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
        .find(|file| file.exists())
}
