//! What compiles Rust for `wasm32-unknown-unknown` on this machine: the toolchain's own target, else Debian's compiler with the source
//! of its standard library (`rustc-web`, `rust-web-src`), from which cargo builds that library itself.
//!
//! `cargo xtask` has this file, too; so it uses nothing of the crate around it.
//!
//! **Invariant**: only looks; installs nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The target of every handler in Rust.
pub(crate) const TRIPLE: &str = "wasm32-unknown-unknown";
/// What has Debian's compiler and the source of its standard library.
pub(crate) const DEBIAN_PACKAGES: [&str; 2] = ["rustc-web", "rust-web-src"];
/// Its `wasm-ld`, for a toolchain without `rust-lld`; the plain `lld` of Debian 12 is years older than the compiler.
pub(crate) const DEBIAN_LINKER: &str = "lld-19";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
/// The oldest compiler that builds a guest: the one that the workspace asks for.
pub(crate) const MINIMUM: &str = env!("CARGO_PKG_RUST_VERSION");

/// A way to build for the target that was found to be ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RustTarget {
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

impl RustTarget {
    /// Returns the toolchain's own target.
    pub(crate) fn installed() -> Option<Self> {
        let folder = output(compiler().args(["--print", "target-libdir", "--target", TRIPLE]))?;
        let has_std = std::fs::read_dir(folder).is_ok_and(|files| {
            files
                .flatten()
                .any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
        });
        has_std.then_some(Self::Installed)
    }

    /// Returns Debian's compiler.
    ///
    /// # Errors
    /// The packages that are missing.
    pub(crate) fn debian() -> Result<Self, Vec<&'static str>> {
        let rustc = Path::new(DEBIAN_RUSTC);
        let linker = linker();
        match (can_build_std(rustc), linker) {
            (true, Some(linker)) => Ok(Self::Debian {
                rustc: rustc.to_owned(),
                linker,
            }),
            (can_build_std, linker) => {
                let mut missing = Vec::new();
                if !can_build_std {
                    missing.extend(DEBIAN_PACKAGES);
                }
                if linker.is_none() {
                    missing.push(DEBIAN_LINKER);
                }
                Err(missing)
            }
        }
    }

    /// Adds target, environment and options to `cargo`, a `cargo build` of a guest.
    ///
    /// The Debian compiler also compiles build scripts and macros: a target folder that other builds use, too, would be rebuilt at each change.
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

/// The compiler in use, as cargo would find it.
pub(crate) fn compiler() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

/// Whether `rustc` is new enough and has the source of its standard library.
///
/// Debian's own `rustc` may lie at the same place and be years older.
fn can_build_std(rustc: &Path) -> bool {
    let version = output(Command::new(rustc).arg("--version"));
    let sysroot = output(Command::new(rustc).args(["--print", "sysroot"]));
    version.is_some_and(|version| is_recent(&version, MINIMUM))
        && sysroot.is_some_and(|sysroot| {
            Path::new(&sysroot)
                .join("lib/rustlib/src/rust/library/std")
                .is_dir()
        })
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
        let path = std::env::var_os("PATH")?;
        ["wasm-ld-22", "wasm-ld-19", "wasm-ld-16", "wasm-ld"]
            .into_iter()
            .find_map(|name| {
                std::env::split_paths(&path)
                    .map(|folder| folder.join(name))
                    .find(|file| file.is_file())
            })
    })
}

fn toolchain_lld() -> Option<PathBuf> {
    let sysroot = output(compiler().args(["--print", "sysroot"]))?;
    let about = output(compiler().arg("-vV"))?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "))?;
    let file = Path::new(&sysroot)
        .join("lib/rustlib")
        .join(host)
        .join("bin/rust-lld");
    file.is_file().then_some(file)
}

/// Returns what a program that succeeds prints, trimmed.
fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        RustTarget::Installed.configure(&mut plain);
        assert_eq!(plain.get_envs().count(), 0);
        assert_eq!(plain.get_args().collect::<Vec<_>>(), ["--target", TRIPLE]);

        let mut command = Command::new("cargo");
        RustTarget::Debian {
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
