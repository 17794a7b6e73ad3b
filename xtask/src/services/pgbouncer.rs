//! PgBouncer: its program, for the tests of poolers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::failure::Hinted;
use crate::{debian, process, tools};

/// The environment variable that names the program.
pub(crate) const VARIABLE: &str = "HAPAX_TEST_PGBOUNCER";
/// Where Debian's package puts it; not on everybody's `PATH`.
const DEBIAN_FILE: &str = "/usr/sbin/pgbouncer";
const WHAT: &str = "PgBouncer";

/// Finds PgBouncer; else installs Debian's package as root, or unpacks it into `target/tools`.
///
/// # Errors
/// A named file that is not it, or none at all, with what to do.
pub(crate) fn binary() -> anyhow::Result<PathBuf> {
    if let Some(file) = std::env::var_os(VARIABLE).filter(|set| !set.is_empty()) {
        let file = PathBuf::from(file);
        return match runs(&file) {
            true => Ok(file),
            false => Err(Hinted::error(
                format!("`{VARIABLE}`: `{}` is not PgBouncer", file.display()),
                "name the program's file",
            )),
        };
    }
    if let Some(file) = installed() {
        return Ok(file);
    }
    let missing = if debian::is_root() {
        install().and_then(|()| installed().context("it was installed and is not to be found"))
    } else {
        unpacked(&tools().join("pgbouncer"))
    };
    missing.map_err(|err| {
        let hint = Hinted::find(&err).map_or_else(String::new, |hint| format!("{hint}; or "));
        Hinted::error(
            format!("no PgBouncer on this machine: {err:#}"),
            format!("{hint}set `{VARIABLE}` to the program"),
        )
    })
}

fn installed() -> Option<PathBuf> {
    process::find("pgbouncer")
        .into_iter()
        .chain([PathBuf::from(DEBIAN_FILE)])
        .find(|file| runs(file))
}

fn runs(file: &Path) -> bool {
    process::output(Command::new(file).arg("--version"))
        .is_ok_and(|text| text.starts_with("PgBouncer"))
}

/// Unpacks Debian's packages into `folder`, which nobody needs to be root for.
fn unpacked(folder: &Path) -> anyhow::Result<PathBuf> {
    let program = folder.join("pgbouncer");
    if runs(&program) {
        return Ok(program);
    }
    if !debian::is_here() {
        return debian::allowed(&["pgbouncer"], WHAT).map(|()| program);
    }
    process::say("unpacking PgBouncer from Debian's packages into `target/tools`");
    let root = debian::unpack("pgbouncer", folder)?;
    let script = format!(
        "#!/bin/sh\nroot='{root}'\nexport LD_LIBRARY_PATH=\"$(echo \"$root\"/usr/lib/*-linux-gnu | tr ' ' ':'):$(echo \"$root\"/lib/*-linux-gnu)\"\n\
         exec \"$root/usr/sbin/pgbouncer\" \"$@\"\n",
        root = root.display()
    );
    fs::write(&program, script)
        .and_then(|()| fs::set_permissions(&program, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot write `{}`", program.display()))?;
    if runs(&program) {
        return Ok(program);
    }
    bail!("what was unpacked into `{}` does not run", folder.display())
}

fn install() -> anyhow::Result<()> {
    debian::allowed(&["pgbouncer"], WHAT)?;
    debian::update()?;
    debian::install(&["pgbouncer"], WHAT)
}
