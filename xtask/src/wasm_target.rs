//! The standard library for `wasm32-unknown-unknown`, which every Rust guest needs.
//!
//! Three ways, in this order: the target that the toolchain already has; `rustup target add`; Debian's compiler with its source
//! (`rustc-web`, `rust-web-src`), from which cargo builds the library itself. `HAPAX_WASM_STD=rustup` or `debian` chooses one.
//!
//! **Invariant**: the Debian compiler is named only in the environment of a guest's build, never in that of the daemon's: it
//! also compiles build scripts and macros, and a shared target folder would be rebuilt at every change. Guests have their own.

use std::process::Command;

use anyhow::bail;

use self::rust_target::{MINIMUM, RustTarget, TRIPLE, compiler};
use crate::failure::Hinted;
use crate::{debian, process};

// `hapax build` looks for the same, and xtask cannot use the daemon as a library: it would be built before xtask itself.
#[path = "../../host/src/app/build/rust_target.rs"]
mod rust_target;

/// The environment variable that chooses a way.
const VARIABLE: &str = "HAPAX_WASM_STD";

/// A way to build for `wasm32-unknown-unknown` that was found to be ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WasmTarget(RustTarget);

impl WasmTarget {
    /// Finds the target or gets it, saying each step first.
    ///
    /// # Errors
    /// With what to run, when nothing is installed and nothing can be.
    pub(crate) fn prepare() -> anyhow::Result<Self> {
        let forced = Forced::from_variable(std::env::var(VARIABLE).ok().as_deref())?;
        let ways = ways(
            forced,
            RustTarget::installed().is_some(),
            process::find("rustup").is_some(),
        );
        let mut failures = Vec::new();
        for way in ways {
            let tried = match way {
                Way::Installed => Ok(Self(RustTarget::Installed)),
                Way::Rustup => rustup(),
                Way::Debian => debian(),
            };
            match tried {
                Ok(target) => return Ok(target),
                Err(err) => failures.push(err),
            }
            crate::interrupt::check()?;
            if way == Way::Rustup && forced.is_none() {
                eprintln!("    that did not work; trying Debian's compiler instead");
            }
        }
        let mut causes = failures.iter();
        let mut text = String::new();
        let mut hint = format!("run `rustup target add {TRIPLE}`");
        for err in causes.by_ref() {
            text.push_str(&format!("\n  {err:#}"));
            if let Some(other) = Hinted::find(err) {
                hint.push_str(&format!(", or {other}"));
            }
        }
        Err(Hinted::error(
            format!("no standard library for {TRIPLE}:{text}"),
            hint,
        ))
    }

    /// Adds target, environment and options to `cargo`, a `cargo build` of a guest.
    ///
    /// The call needs a `--target-dir` of its own; the module comment says why.
    pub(crate) fn configure(&self, cargo: &mut Command) {
        self.0.configure(cargo);
    }

    /// Returns the versions of compiler and linker: with the same ones, the same source gives the same bytes.
    ///
    /// # Errors
    /// If one of them does not run.
    pub(crate) fn toolchain(&self) -> anyhow::Result<String> {
        match &self.0 {
            // The target comes with the compiler, and so does its linker.
            RustTarget::Installed => process::output(compiler().arg("--version")),
            RustTarget::Debian { rustc, linker } => {
                let compiler = process::output(Command::new(rustc).arg("--version"))?;
                // One program serves as several linkers, by its first words.
                let mut version = Command::new(linker);
                if linker.ends_with("rust-lld") {
                    version.args(["-flavor", "wasm"]);
                }
                let linker = process::output(version.arg("--version"))?;
                Ok(format!("{compiler}; {linker}"))
            }
        }
    }
}

/// What `HAPAX_WASM_STD` may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forced {
    Rustup,
    Debian,
}

impl Forced {
    fn from_variable(value: Option<&str>) -> anyhow::Result<Option<Self>> {
        match value {
            None | Some("") => Ok(None),
            Some("rustup") => Ok(Some(Self::Rustup)),
            Some("debian") => Ok(Some(Self::Debian)),
            Some(other) => Err(Hinted::error(
                format!("`{VARIABLE}`: `{other}` is not a way to get the Wasm target"),
                "write `rustup` or `debian`, or leave it out",
            )),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Installed,
    Rustup,
    Debian,
}

/// Returns the ways to try, in order.
fn ways(forced: Option<Forced>, installed: bool, has_rustup: bool) -> Vec<Way> {
    match forced {
        Some(Forced::Rustup) => vec![Way::Rustup],
        Some(Forced::Debian) => vec![Way::Debian],
        None if installed => vec![Way::Installed],
        None if has_rustup => vec![Way::Rustup, Way::Debian],
        None => vec![Way::Debian],
    }
}

fn rustup() -> anyhow::Result<WasmTarget> {
    process::say(format_args!(
        "adding the Wasm target (rustup target add {TRIPLE})"
    ));
    process::run_quietly(Command::new("rustup").args(["target", "add", TRIPLE]))?;
    match RustTarget::installed() {
        Some(target) => Ok(WasmTarget(target)),
        None => {
            bail!(
                "`rustup target add {TRIPLE}` succeeded, but the compiler in use does not have it"
            )
        }
    }
}

fn debian() -> anyhow::Result<WasmTarget> {
    let missing = match RustTarget::debian() {
        Ok(target) => return Ok(WasmTarget(target)),
        Err(missing) => missing,
    };
    let what = format!("a compiler for {TRIPLE}");
    debian::allowed(&missing, &what)?;
    debian::update()?;
    debian::install(&missing, &format!("{what}, up to 140 MB to download"))?;
    RustTarget::debian().map(WasmTarget).map_err(|missing| {
        anyhow::anyhow!(
            "what Debian has of `{}` is not enough: the compiler must have the source of its standard library, and be {MINIMUM} or newer",
            missing.join("`, `")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_target_is_used_as_it_is() {
        assert_eq!(ways(None, true, true), [Way::Installed]);
        assert_eq!(ways(None, true, false), [Way::Installed]);
    }

    #[test]
    fn rustup_comes_before_debian() {
        assert_eq!(ways(None, false, true), [Way::Rustup, Way::Debian]);
        assert_eq!(ways(None, false, false), [Way::Debian]);
    }

    #[test]
    fn a_forced_way_is_the_only_one() {
        for installed in [false, true] {
            for has_rustup in [false, true] {
                assert_eq!(
                    ways(Some(Forced::Debian), installed, has_rustup),
                    [Way::Debian]
                );
                assert_eq!(
                    ways(Some(Forced::Rustup), installed, has_rustup),
                    [Way::Rustup]
                );
            }
        }
    }

    #[test]
    fn the_variable_knows_two_words() {
        assert_eq!(Forced::from_variable(None).unwrap(), None);
        assert_eq!(Forced::from_variable(Some("")).unwrap(), None);
        assert_eq!(
            Forced::from_variable(Some("debian")).unwrap(),
            Some(Forced::Debian)
        );
        assert_eq!(
            Forced::from_variable(Some("rustup")).unwrap(),
            Some(Forced::Rustup)
        );
        let err = Forced::from_variable(Some("Debian")).expect_err("a third word");
        assert_eq!(
            err.to_string(),
            "`HAPAX_WASM_STD`: `Debian` is not a way to get the Wasm target"
        );
        assert!(Hinted::find(&err).is_some());
    }
}
