//! Builds the example handlers and the test guests, and makes components of them.
//!
//! **Invariant**: a component that imports anything outside `hapax:handler` is an error, so none of ours needs WASI, but the one that tries it.
//! **Invariant**: guests have a target folder of their own, since they may be built by another compiler than the daemon.
//! **Invariant**: the examples' bytes do not depend on where the repository lies; [`stage`] says how.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail};
use serde_json::Value;
use wit_component::{ComponentEncoder, DecodedWasm};

use crate::failure::Hinted;
use crate::wasm_target::WasmTarget;
use crate::{cargo, embedded, process};

/// The package that a handler may import from.
const CONTRACT: &str = "hapax:handler/";

/// The guest that imports WASI, for the tests of the closed one.
const WASI_GUEST: &str = "wasi";

/// A cargo workspace of guests.
struct Workspace {
    /// Its folder, below the repository's root.
    folder: &'static str,
    /// Returns the manifest to build it by.
    manifest: fn(root: &Path) -> anyhow::Result<PathBuf>,
    /// Returns where the component of a guest lies, below `folder`.
    component: fn(guest: &Guest) -> PathBuf,
}

const WORKSPACES: [Workspace; 2] = [
    Workspace {
        folder: "examples",
        manifest: stage,
        component: |guest| guest.folder.join(format!("{}.wasm", guest.name)),
    },
    Workspace {
        folder: "host/tests/guests",
        manifest: |root| Ok(root.join("host/tests/guests/Cargo.toml")),
        component: |guest| PathBuf::from(format!("{}.wasm", guest.name)),
    },
];

/// Builds every guest into its component, saying each with its size. A component that is the same as before is not touched.
///
/// # Errors
/// What cargo says, or the guest that is no component of the contract.
pub(crate) fn build(root: &Path, wasm: &WasmTarget) -> anyhow::Result<()> {
    for workspace in &WORKSPACES {
        process::say(format_args!(
            "building the guests in `{}` (the first time takes minutes)",
            workspace.folder
        ));
        for guest in compile(root, workspace, wasm)? {
            let path = Path::new(workspace.folder).join((workspace.component)(&guest));
            let component = componentize(&guest.module)
                .and_then(|component| {
                    if guest.name != WASI_GUEST {
                        only_the_contract(&component)?;
                    }
                    Ok(component)
                })
                .with_context(|| format!("guest `{}`: cannot make a component", guest.name))?;
            let written = write_if_changed(&root.join(&path), &component)?;
            say_built(&path, component.len(), written);
        }
    }
    embedded::note_built(root, wasm)
}

/// Says that the component `path` is there.
pub(crate) fn say_built(path: &Path, bytes: usize, written: bool) {
    let kilobytes = bytes.div_ceil(1000);
    let note = if written { "" } else { ", unchanged" };
    eprintln!(
        "    {:<45} {kilobytes:>5} kB{note}",
        path.display().to_string()
    );
}

/// A guest as the compiler left it.
struct Guest {
    /// The package's name.
    name: String,
    /// The package's folder, below that of its workspace.
    folder: PathBuf,
    /// The core module.
    module: PathBuf,
}

fn compile(root: &Path, workspace: &Workspace, wasm: &WasmTarget) -> anyhow::Result<Vec<Guest>> {
    let messages = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    let manifest = (workspace.manifest)(root)?;
    let mut command = cargo::command(root);
    command
        .args(["build", "--release", "--locked"])
        .arg("--message-format=json-render-diagnostics")
        .arg("--manifest-path")
        .arg(&manifest)
        .arg("--target-dir")
        .arg(root.join("target/guests"))
        .env("CARGO_ENCODED_RUSTFLAGS", path_flags(root))
        // Incremental builds cut the code into other pieces: the same sources would make other bytes.
        .env_remove("CARGO_INCREMENTAL")
        .stdin(Stdio::null())
        .stdout(messages.reopen().context("cannot open a temporary file")?);
    wasm.configure(&mut command);
    process::run(&mut command)?;
    let messages = fs::read_to_string(messages.path()).context("cannot read what cargo said")?;
    let guests = modules(&messages, manifest.parent().unwrap_or(root));
    if guests.is_empty() {
        bail!("cargo built no guest in `{}`", workspace.folder);
    }
    Ok(guests)
}

/// The folder of [`stage`], below the repository's root.
const STAGE: &str = "target/guest-workspace";

/// Makes a folder in which the workspace of examples and the SDK lie below one manifest, and returns that manifest.
///
/// Cargo hashes the path of a dependency into its symbols, and these decide the order of functions: relative to the workspace's
/// root if it lies below it, absolute if not, as the SDK does. Here it does, by links to the real folders.
fn stage(root: &Path) -> anyhow::Result<PathBuf> {
    let folder = root.join(STAGE);
    let examples = root.join("examples");
    let manifest = examples.join("Cargo.toml");
    let shown = |file: &Path| format!("cannot read `{}`", file.display());
    let text = fs::read_to_string(&manifest).with_context(|| shown(&manifest))?;
    let text = staged_manifest(&text)
        .with_context(|| format!("`{}` is not as expected", manifest.display()))?;

    // Made anew each time, so that nothing of a former list of members stays. Only links and two small files lie here.
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove `{}`", folder.display()))?;
    }
    let link = |name: &str, target: &Path| {
        std::os::unix::fs::symlink(target, folder.join(name))
            .with_context(|| format!("cannot make `{}`", folder.join(name).display()))
    };
    fs::create_dir_all(&folder).with_context(|| format!("cannot make `{}`", folder.display()))?;
    fs::write(folder.join("Cargo.toml"), text)
        .and_then(|()| fs::copy(examples.join("Cargo.lock"), folder.join("Cargo.lock")))
        .with_context(|| format!("cannot write into `{}`", folder.display()))?;
    link("guest-sdk", &root.join("guest-sdk"))?;
    for entry in fs::read_dir(&examples).with_context(|| shown(&examples))? {
        let entry = entry.with_context(|| shown(&examples))?;
        // One that is there in many languages has a folder for each.
        if ["Cargo.toml", "rust/Cargo.toml"]
            .iter()
            .any(|manifest| entry.path().join(manifest).is_file())
        {
            link(&entry.file_name().to_string_lossy(), &entry.path())?;
        }
    }
    Ok(folder.join("Cargo.toml"))
}

/// Returns the examples' manifest with the SDK below its own folder; the SDK stays a workspace of its own.
fn staged_manifest(text: &str) -> anyhow::Result<String> {
    let (begin, path) = ("[workspace]\n", "path = \"../guest-sdk/rust\"");
    if text.matches(begin).count() != 1 || text.matches(path).count() != 1 {
        bail!("it has no `[workspace]`, or does not name the SDK as `{path}`");
    }
    Ok(text
        .replace(begin, "[workspace]\nexclude = [\"guest-sdk\"]\n")
        .replace(path, "path = \"guest-sdk/rust\""))
}

/// Returns the flags that keep this machine's folders out of the guests, where panics name their source.
fn path_flags(root: &Path) -> OsString {
    let mut flags = OsString::new();
    let cargo_home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    // The last one that fits counts.
    let folders = [
        (Some(root.to_owned()), "hapax"),
        (Some(root.join(STAGE)), "hapax"),
        (cargo_home, "cargo"),
    ];
    for (folder, name) in folders {
        let Some(folder) = folder else { continue };
        if !flags.is_empty() {
            flags.push("\u{1f}");
        }
        flags.push("--remap-path-prefix=");
        flags.push(folder);
        flags.push("=");
        flags.push(name);
    }
    flags
}

/// Returns the Wasm modules in cargo's messages, one JSON object a line, about the workspace in `folder`.
fn modules(messages: &str, folder: &Path) -> Vec<Guest> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact")
        .filter_map(|message| {
            let module = message["filenames"]
                .as_array()?
                .iter()
                .filter_map(Value::as_str)
                .find(|file| file.ends_with(".wasm"))?;
            let manifest = Path::new(message["manifest_path"].as_str()?);
            let module = PathBuf::from(module);
            Some(Guest {
                // No package has an underscore in its name.
                name: module.file_stem()?.to_str()?.replace('_', "-"),
                folder: manifest.parent()?.strip_prefix(folder).ok()?.to_owned(),
                module,
            })
        })
        .collect()
}

/// Makes a component of the core module in `file`; wit-bindgen has put the types into it.
fn componentize(file: &Path) -> anyhow::Result<Vec<u8>> {
    let module = fs::read(file).with_context(|| format!("cannot read `{}`", file.display()))?;
    let mut encoder = ComponentEncoder::default();
    encoder.validate(true);
    encoder.module(&module)?;
    encoder.encode()
}

/// Sees that `component` imports nothing but what a host of handlers has.
pub(crate) fn only_the_contract(component: &[u8]) -> anyhow::Result<()> {
    let foreign = foreign_imports(component)?;
    if !foreign.is_empty() {
        return Err(Hinted::error(
            format!(
                "it imports {}, which no host of handlers has",
                foreign.join(", ")
            ),
            "find the dependency that needs it, and turn that feature off",
        ));
    }
    Ok(())
}

/// Returns the imports of `component` that do not belong to the contract.
fn foreign_imports(component: &[u8]) -> anyhow::Result<Vec<String>> {
    let DecodedWasm::Component(resolve, world) = wit_component::decode(component)? else {
        bail!("it is a WIT package, not a component");
    };
    Ok(resolve.worlds[world]
        .imports
        .keys()
        .map(|key| resolve.name_world_key(key))
        // Types that a world uses by name come as imports of their own, without a package.
        .filter(|name| name.contains(':') && !name.starts_with(CONTRACT))
        .map(|name| format!("`{name}`"))
        .collect())
}

/// Puts `bytes` into `file` in one step, unless it has them already. Returns whether it wrote.
pub(crate) fn write_if_changed(file: &Path, bytes: &[u8]) -> anyhow::Result<bool> {
    if fs::read(file).is_ok_and(|old| old == bytes) {
        return Ok(false);
    }
    let folder = file.parent().context("a component has a folder")?;
    // A name of its own, so that a second build at the same time writes another file.
    let temporary = folder.join(format!(".{}.part.wasm", std::process::id()));
    fs::write(&temporary, bytes)
        .and_then(|()| fs::rename(&temporary, file))
        .with_context(|| format!("cannot write `{}`", file.display()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_found_in_the_messages() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/r/serde/Cargo.toml","filenames":["/t/libserde.rlib"]}
not json
{"reason":"compiler-artifact","manifest_path":"/e/credit-account/rust/Cargo.toml","filenames":["/t/credit_account.wasm"]}
{"reason":"build-finished","success":true}"#;
        let guests = modules(messages, Path::new("/e"));
        assert_eq!(guests.len(), 1);
        assert_eq!(guests[0].name, "credit-account");
        assert_eq!(guests[0].folder, Path::new("credit-account/rust"));
        assert_eq!(guests[0].module, Path::new("/t/credit_account.wasm"));
    }

    #[test]
    fn an_unchanged_component_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.wasm");
        assert!(write_if_changed(&file, b"one").unwrap());
        assert!(!write_if_changed(&file, b"one").unwrap());
        assert!(write_if_changed(&file, b"two").unwrap());
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
