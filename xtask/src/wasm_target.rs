//! The standard library for `wasm32-unknown-unknown`, which every Rust guest needs.
//!
//! Three ways, in this order: the target that the toolchain already has; `rustup target add`; Debian's compiler with its source
//! (`rustc-web`, `rust-web-src`), from which cargo builds the library itself. `HAPAX_WASM_STD=rustup` or `debian` chooses one.
//!
//! **Invariant**: the Debian compiler is named only in the environment of a guest's build, never in that of the daemon's: it
//! also compiles build scripts and macros, and a shared target folder would be rebuilt at every change. Guests have their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::failure::Hinted;
use crate::{debian, process};

/// The environment variable that chooses a way.
const VARIABLE: &str = "HAPAX_WASM_STD";
const TRIPLE: &str = "wasm32-unknown-unknown";
const DEBIAN_PACKAGES: [&str; 2] = ["rustc-web", "rust-web-src"];
/// Its `wasm-ld`, for a toolchain without `rust-lld`; the plain `lld` of Debian 12 is years older than the compiler.
const DEBIAN_LINKER: &str = "lld-19";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// A way to build for `wasm32-unknown-unknown` that was found to be ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WasmTarget {
    /// The toolchain in use has the target.
    Installed,
    /// Debian's compiler, with the standard library built from source by cargo.
    Debian {
        /// The compiler.
        rustc: PathBuf,
        /// `rust-lld` of the toolchain in use, or a `wasm-ld`.
        linker: PathBuf,
    },
}

impl WasmTarget {
    /// Finds the target or gets it, saying each step first.
    ///
    /// # Errors
    /// With what to run, when nothing is installed and nothing can be.
    pub(crate) fn prepare() -> anyhow::Result<Self> {
        let forced = Forced::from_variable(std::env::var(VARIABLE).ok().as_deref())?;
        let ways = ways(forced, is_installed(), process::find("rustup").is_some());
        let mut failures = Vec::new();
        for way in ways {
            let tried = match way {
                Way::Installed => Ok(Self::Installed),
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
        cargo.args(["--target", TRIPLE]);
        if let Self::Debian { rustc, linker } = self {
            cargo
                .arg("-Zbuild-std=std,panic_abort")
                .env("RUSTC", rustc)
                // Debian's compiler is a stable one; this lets it build its own library, as cargo does with a nightly.
                .env("RUSTC_BOOTSTRAP", "1")
                .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
        }
    }
}

impl WasmTarget {
    /// Returns the versions of compiler and linker: with the same ones, the same source gives the same bytes.
    ///
    /// # Errors
    /// If one of them does not run.
    pub(crate) fn toolchain(&self) -> anyhow::Result<String> {
        match self {
            // The target comes with the compiler, and so does its linker.
            Self::Installed => process::output(compiler().arg("--version")),
            Self::Debian { rustc, linker } => {
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

/// Whether the compiler in use has the target's standard library.
fn is_installed() -> bool {
    process::output(compiler().args(["--print", "target-libdir", "--target", TRIPLE])).is_ok_and(
        |folder| {
            std::fs::read_dir(folder).is_ok_and(|files| {
                files
                    .flatten()
                    .any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
            })
        },
    )
}

fn rustup() -> anyhow::Result<WasmTarget> {
    process::say(format_args!(
        "adding the Wasm target (rustup target add {TRIPLE})"
    ));
    process::run_quietly(Command::new("rustup").args(["target", "add", TRIPLE]))?;
    if !is_installed() {
        bail!("`rustup target add {TRIPLE}` succeeded, but the compiler in use does not have it");
    }
    Ok(WasmTarget::Installed)
}

fn debian() -> anyhow::Result<WasmTarget> {
    let rustc = Path::new(DEBIAN_RUSTC);
    let mut missing = Vec::new();
    if !can_build_std(rustc)? {
        missing.extend(DEBIAN_PACKAGES);
    }
    let mut linker = linker();
    if linker.is_none() {
        missing.push(DEBIAN_LINKER);
    }
    if !missing.is_empty() {
        let what = format!("a compiler for {TRIPLE}");
        debian::allowed(&missing, &what)?;
        debian::update()?;
        debian::install(&missing, &format!("{what}, up to 140 MB to download"))?;
        linker = self::linker();
    }
    if !can_build_std(rustc)? {
        bail!(
            "`{DEBIAN_RUSTC}` came without the source of its standard library, or is older than {MINIMUM}"
        );
    }
    Ok(WasmTarget::Debian {
        rustc: rustc.to_owned(),
        linker: linker.context("no linker for Wasm: neither `rust-lld` nor `wasm-ld` is here")?,
    })
}

/// The oldest compiler that builds a guest: the one that the workspace asks for.
const MINIMUM: &str = env!("CARGO_PKG_RUST_VERSION");

/// Whether `rustc` is new enough and has the source of its standard library.
///
/// Debian's own `rustc` may lie at the same place and be years older.
fn can_build_std(rustc: &Path) -> anyhow::Result<bool> {
    if !process::is_executable(rustc) {
        return Ok(false);
    }
    let version = process::output(Command::new(rustc).arg("--version"))?;
    let sysroot = process::output(Command::new(rustc).args(["--print", "sysroot"]))?;
    Ok(is_recent(&version, MINIMUM)
        && Path::new(&sysroot)
            .join("lib/rustlib/src/rust/library/std")
            .is_dir())
}

/// Whether the line of `rustc --version` names at least `minimum`, as major and minor number.
fn is_recent(version: &str, minimum: &str) -> bool {
    let numbers = |text: &str| -> Option<(u32, u32)> {
        let mut parts = text.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    let found = version.split_whitespace().nth(1).and_then(numbers);
    found.is_some() && found >= numbers(minimum)
}

/// Returns a linker for Wasm: the toolchain's own, else one of LLVM's.
fn linker() -> Option<PathBuf> {
    toolchain_lld().or_else(|| {
        ["wasm-ld-22", "wasm-ld-19", "wasm-ld-16", "wasm-ld"]
            .into_iter()
            .find_map(process::find)
    })
}

fn toolchain_lld() -> Option<PathBuf> {
    let sysroot = process::output(compiler().args(["--print", "sysroot"])).ok()?;
    let about = process::output(compiler().arg("-vV")).ok()?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "))?;
    let file = Path::new(&sysroot)
        .join("lib/rustlib")
        .join(host)
        .join("bin/rust-lld");
    process::is_executable(&file).then_some(file)
}

/// The compiler in use, as cargo would find it.
fn compiler() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
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

    #[test]
    fn an_old_compiler_is_not_taken() {
        assert!(is_recent(
            "rustc 1.96.0 (abc 2026-05-01) (built from a source tarball)",
            "1.95"
        ));
        assert!(is_recent("rustc 1.95.0-nightly", "1.95"));
        assert!(!is_recent("rustc 1.63.0", "1.95"));
        assert!(is_recent("rustc 2.0.0", "1.95"));
        assert!(!is_recent("nonsense", "1.95"));
    }

    #[test]
    fn only_the_debian_way_changes_the_environment() {
        let mut plain = Command::new("cargo");
        WasmTarget::Installed.configure(&mut plain);
        assert_eq!(plain.get_envs().count(), 0);
        assert_eq!(plain.get_args().collect::<Vec<_>>(), ["--target", TRIPLE]);

        let mut command = Command::new("cargo");
        WasmTarget::Debian {
            rustc: "/usr/bin/rustc".into(),
            linker: "/l".into(),
        }
        .configure(&mut command);
        let names: Vec<_> = command.get_envs().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            [
                "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER",
                "RUSTC",
                "RUSTC_BOOTSTRAP"
            ]
        );
        assert!(
            command
                .get_args()
                .any(|arg| arg == "-Zbuild-std=std,panic_abort")
        );
    }
}
