//! A handler in Rust: cargo for `wasm32-unknown-unknown`, so that the component imports no WASI.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::rust_target::{DEBIAN_PACKAGES, RustTarget, TRIPLE};
use super::tools::{self, Said};
use super::{Made, Work, component};
use crate::exit::{CommandError, Exit};

const RUSTUP: &str = "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh";
/// How many crates are named of those that cargo would download.
const NAMED_MAX: usize = 12;

pub(super) fn make(work: &Work<'_>) -> Result<Made, CommandError> {
    let cargo = tools::program("CARGO", "cargo");
    let rustc = tools::program("RUSTC", "rustc");
    let mut lacking = Vec::new();
    if cargo.is_none() {
        lacking.push(tools::missing(
            "`cargo`",
            "it compiles handlers in Rust",
            RUSTUP,
        ));
    }
    if rustc.is_none() {
        lacking.push(tools::missing(
            "`rustc`",
            "cargo compiles handlers in Rust with it",
            RUSTUP,
        ));
    }
    if let Some(error) = CommandError::all(lacking) {
        return Err(error);
    }
    let cargo = cargo.unwrap_or_default();
    let target = RustTarget::installed().map_or_else(
        || RustTarget::debian().map_err(|missing| no_target(&missing)),
        Ok,
    )?;
    if matches!(target, RustTarget::Debian { .. }) {
        (work.step)(
            "compiling with cargo and Debian's rustc, its standard library first (the first time takes minutes)",
        );
    } else {
        (work.step)("compiling with cargo (the first time takes half a minute)");
    }
    let mut said = compile(work, &cargo, &target, true)?;
    if !said.succeeded && is_for_want_of_crates(&said) {
        let wanted = wanted(work.folder);
        if !work.install {
            return Err(CommandError::new(
                Exit::Failed,
                format!("crates are missing, which cargo would download: {wanted}"),
                Some("run `hapax build --install`, which lets cargo download them"),
            ));
        }
        (work.step)(&format!("cargo downloads {wanted}"));
        said = compile(work, &cargo, &target, false)?;
    }
    if !said.succeeded {
        return Err(CommandError::new(
            Exit::Failed,
            format!("cargo cannot compile it:\n{}", tools::tail(said.err.trim())),
            Some("correct what the compiler names"),
        ));
    }
    let module = tools::read(&module(&said.out)?)?;
    (work.step)("making the component");
    Ok(Made {
        component: component::of_module(&module)?,
        warnings: warnings(&said.err),
    })
}

fn compile(
    work: &Work<'_>,
    cargo: &Path,
    target: &RustTarget,
    offline: bool,
) -> Result<Said, CommandError> {
    let mut command = Command::new(cargo);
    command
        .args([
            "build",
            "--release",
            "--message-format=json-render-diagnostics",
        ])
        .current_dir(work.folder)
        // Incremental builds cut the code into other pieces: the same sources would make other bytes.
        .env_remove("CARGO_INCREMENTAL");
    // Whoever sets flags knows why.
    if ["CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS"]
        .iter()
        .all(|name| std::env::var_os(name).is_none())
        && let Some(flags) = path_flags()
    {
        command.env("CARGO_ENCODED_RUSTFLAGS", flags);
    }
    if offline {
        command.arg("--offline");
    }
    target.configure(&mut command);
    tools::run(&mut command)
}

/// Returns the flag that keeps this machine's folder of crates out of the component, where panics name their source.
fn path_flags() -> Option<OsString> {
    let mut flag = OsString::from("--remap-path-prefix=");
    flag.push(cargo_home()?);
    flag.push("=cargo");
    Some(flag)
}

fn cargo_home() -> Option<PathBuf> {
    std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")))
}

fn no_target(debian: &[&str]) -> CommandError {
    let rustup = tools::find("rustup").is_some();
    let apt = format!(
        "apt-get update && apt-get install -y --no-install-recommends {}",
        debian.join(" ")
    );
    let hint = match (rustup, tools::has_apt()) {
        (true, true) => format!(
            "run `rustup target add {TRIPLE}`; or, where that cannot be had, as root: `{apt}`"
        ),
        (false, true) => format!("as root: `{apt}`"),
        (_, false) => format!("run `rustup target add {TRIPLE}`"),
    };
    CommandError::new(
        Exit::Failed,
        format!(
            "the standard library for `{TRIPLE}` is missing: handlers are compiled for it (Debian's `{}` would serve, too)",
            DEBIAN_PACKAGES.join("` and `")
        ),
        Some(&hint),
    )
}

/// Cargo says so itself whenever a crate is not there and it may not get it.
fn is_for_want_of_crates(said: &Said) -> bool {
    said.err.contains("offline")
}

/// Names the crates of the lock file that are not on this machine.
fn wanted(folder: &Path) -> String {
    let read = || -> Option<Vec<String>> {
        let lock = std::fs::read_to_string(folder.join("Cargo.lock")).ok()?;
        let here = downloaded(&cargo_home()?);
        Some(
            locked(&lock)?
                .into_iter()
                .filter(|name| !here.contains(name))
                .collect(),
        )
    };
    match read() {
        Some(names) if !names.is_empty() => {
            let more = names.len().saturating_sub(NAMED_MAX);
            let shown = names[..names.len() - more].join(", ");
            match more {
                0 => shown,
                more => format!("{shown} and {more} more"),
            }
        }
        _ => "what `Cargo.toml` names, and what that needs".to_owned(),
    }
}

/// Returns the crates of a registry in a lock file, as `serde 1.0.228`.
fn locked(lock: &str) -> Option<Vec<String>> {
    let lock: toml::Table = toml::from_str(lock).ok()?;
    let packages = lock.get("package")?.as_array()?;
    Some(
        packages
            .iter()
            .filter(|package| package.get("source").is_some())
            .filter_map(|package| {
                let text = |key| package.get(key).and_then(toml::Value::as_str);
                Some(format!("{} {}", text("name")?, text("version")?))
            })
            .collect(),
    )
}

/// Returns what cargo keeps of registries, as `serde 1.0.228`.
fn downloaded(cargo_home: &Path) -> Vec<String> {
    let files = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    files(cargo_home.join("registry/cache"))
        .flat_map(|registry| files(registry.path()))
        .filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            let name = name.strip_suffix(".crate")?;
            // The version begins at the first hyphen before a digit that makes one.
            let at = name
                .match_indices('-')
                .find(|(at, _)| {
                    let rest = &name[at + 1..];
                    let version = rest.split('-').next().unwrap_or_default();
                    version.starts_with(|first: char| first.is_ascii_digit())
                        && version.contains('.')
                })?
                .0;
            Some(format!("{} {}", &name[..at], &name[at + 1..]))
        })
        .collect()
}

/// Returns the one module in cargo's messages, one JSON object a line.
fn module(messages: &[u8]) -> Result<PathBuf, CommandError> {
    let found: Vec<PathBuf> = String::from_utf8_lossy(messages)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact")
        .filter_map(|message| {
            let files = message["filenames"].as_array()?;
            files
                .iter()
                .filter_map(Value::as_str)
                .find(|file| file.ends_with(".wasm"))
                .map(PathBuf::from)
        })
        .collect();
    match found.as_slice() {
        [file] => Ok(file.clone()),
        [] => Err(CommandError::new(
            Exit::Failed,
            "cargo built no Wasm module",
            Some("a handler's `Cargo.toml` has `crate-type = [\"cdylib\"]` in its table `[lib]`"),
        )),
        several => Err(CommandError::new(
            Exit::Failed,
            format!(
                "cargo built {} Wasm modules, where one is the handler",
                several.len()
            ),
            Some("build the folder of one package, not of a workspace"),
        )),
    }
}

/// Returns what the compiler warned of, without the lines that tell of its progress.
fn warnings(err: &str) -> String {
    let lines: Vec<&str> = err
        .lines()
        .filter(|line| {
            let word = line.trim_start().split(' ').next().unwrap_or_default();
            // As cargo writes its progress: the verbs end in the twelfth column.
            !(line.starts_with("  ") && word.ends_with("ing")
                || word == "Finished"
                || word == "Locked"
                || word == "Downloaded"
                || word == "Compiled")
        })
        .collect();
    lines.join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crates_of_a_lock_file_are_those_with_a_source() {
        let lock = "version = 4\n[[package]]\nname = \"mine\"\nversion = \"0.1.0\"\n\
                    [[package]]\nname = \"serde\"\nversion = \"1.0.1\"\nsource = \"registry\"\n";
        assert_eq!(locked(lock).unwrap(), ["serde 1.0.1"]);
        assert_eq!(locked("nonsense"), None);
    }

    #[test]
    fn what_cargo_keeps_is_known_by_name_and_version() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("registry/cache/index");
        std::fs::create_dir_all(&folder).unwrap();
        for file in [
            "wit-bindgen-0.61.1.crate",
            "sha-1-0.10.0-rc.1.crate",
            "note.txt",
        ] {
            std::fs::write(folder.join(file), "").unwrap();
        }
        let mut found = downloaded(home.path());
        found.sort();
        assert_eq!(found, ["sha-1 0.10.0-rc.1", "wit-bindgen 0.61.1"]);
        assert!(downloaded(&home.path().join("nowhere")).is_empty());
    }

    #[test]
    fn the_module_is_the_only_one_in_the_messages() {
        let line =
            |file: &str| format!(r#"{{"reason":"compiler-artifact","filenames":["/t/{file}"]}}"#);
        let messages = format!(
            "{}\nnot json\n{}",
            line("libserde.rlib"),
            line("handler.wasm")
        );
        assert_eq!(
            module(messages.as_bytes()).unwrap(),
            Path::new("/t/handler.wasm")
        );
        let two = format!("{}\n{}", line("a.wasm"), line("b.wasm"));
        assert!(
            module(two.as_bytes())
                .unwrap_err()
                .to_string()
                .contains("built 2 Wasm modules")
        );
        assert!(module(b"").unwrap_err().to_string().contains("crate-type"));
    }

    #[test]
    fn warnings_stay_and_progress_goes() {
        let err = "   Compiling handler v0.1.0 (/p)\nwarning: unused variable: `x`\n --> src/lib.rs:1:1\n    Finished `release` profile\n";
        assert_eq!(
            warnings(err),
            "warning: unused variable: `x`\n --> src/lib.rs:1:1"
        );
        assert_eq!(warnings("   Compiling a v1\n    Finished `release`\n"), "");
    }
}
