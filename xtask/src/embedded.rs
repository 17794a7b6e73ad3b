//! The component that the daemon carries in its binary, for `hapax demo`.
//!
//! It is committed, so that a build of the daemon needs no Wasm target. `cargo xtask guests --embed` makes it anew and records
//! beside it of what it was made; the tests compare the record with the sources, so that neither can change alone.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::guests;
use crate::wasm_target::WasmTarget;

/// The component as `cargo xtask guests` builds it.
const BUILT: &str = "examples/github-activity/github-activity.wasm";
/// What that was made of; not committed.
const BUILT_OF: &str = "target/guests/github-activity.json";
/// The component in the daemon.
const EMBEDDED: &str = "host/src/app/demo/github-activity.wasm";
const RECORD: &str = "host/src/app/demo/github-activity.json";
/// All that decides about the component's bytes, but for the toolchain. Folders count with all that lies in them.
const SOURCES: [&str; 8] = [
    "examples/Cargo.toml",
    "examples/Cargo.lock",
    "examples/credit-account/rust/Cargo.toml",
    "examples/github-activity/Cargo.toml",
    "examples/github-activity/src",
    "guest-sdk/rust/Cargo.toml",
    "guest-sdk/rust/src",
    "wit",
];

/// What a component was made of.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    /// SHA-256 of the component.
    component: String,
    /// SHA-256 of the names and contents of all sources.
    sources: String,
    /// The compiler and the linker.
    toolchain: String,
}

/// Writes down of what the guests are made that were just built.
pub(crate) fn note_built(root: &Path, wasm: &WasmTarget) -> anyhow::Result<()> {
    let record = Record {
        component: hex(&read(root, BUILT)?),
        sources: sources(root)?,
        toolchain: wasm.toolchain()?,
    };
    guests::write_if_changed(&root.join(BUILT_OF), record.text().as_bytes())?;
    Ok(())
}

/// Puts the component that was just built into the daemon, with its record.
pub(crate) fn embed(root: &Path) -> anyhow::Result<()> {
    let mut changed = false;
    for (from, to) in [(BUILT, EMBEDDED), (BUILT_OF, RECORD)] {
        changed |= guests::write_if_changed(&root.join(to), &read(root, from)?)?;
    }
    let note = if changed { "" } else { ", unchanged" };
    eprintln!("    {EMBEDDED}{note}");
    Ok(())
}

impl Record {
    #[cfg(test)]
    fn read(root: &Path, file: &str) -> anyhow::Result<Self> {
        let shown = || format!("`{file}` is not a record");
        let value: serde_json::Value =
            serde_json::from_slice(&read(root, file)?).with_context(shown)?;
        let field = |name: &str| {
            value[name]
                .as_str()
                .map(str::to_owned)
                .with_context(|| format!("{}: it has no `{name}`", shown()))
        };
        Ok(Self {
            component: field("component")?,
            sources: field("sources")?,
            toolchain: field("toolchain")?,
        })
    }

    fn text(&self) -> String {
        let value = json!({
            "made by": "cargo xtask guests --embed",
            "component": self.component,
            "sources": self.sources,
            "toolchain": self.toolchain,
        });
        format!("{value:#}\n")
    }
}

/// Hashes every source, in the order of the paths: the lengths of name and content as 8 bytes, big-endian, each before its bytes.
fn sources(root: &Path) -> anyhow::Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(root, Path::new(source), &mut files)?;
    }
    files.sort();
    let mut hasher = Sha256::new();
    for file in files {
        let Some(name) = file.to_str() else {
            bail!("`{}` is not UTF-8", file.display());
        };
        for field in [name.as_bytes(), &read(root, name)?] {
            hasher.update((field.len() as u64).to_be_bytes());
            hasher.update(field);
        }
    }
    Ok(digits(&hasher.finalize()))
}

fn collect(root: &Path, source: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let path = root.join(source);
    if !path.is_dir() {
        files.push(source.to_owned());
        return Ok(());
    }
    let shown = || format!("cannot read `{}`", path.display());
    for entry in fs::read_dir(&path).with_context(shown)? {
        collect(
            root,
            &source.join(entry.with_context(shown)?.file_name()),
            files,
        )?;
    }
    Ok(())
}

fn read(root: &Path, file: &str) -> anyhow::Result<Vec<u8>> {
    fs::read(root.join(file)).with_context(|| format!("cannot read `{file}`"))
}

fn hex(bytes: &[u8]) -> String {
    digits(&Sha256::digest(bytes))
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_component_is_that_of_the_sources() {
        let root = crate::root();
        let recorded = Record::read(root, RECORD).unwrap();
        assert_eq!(
            recorded.sources,
            sources(root).unwrap(),
            "the sources of github-activity, the SDK or the contract have changed: run `cargo xtask guests --embed`"
        );
        assert_eq!(
            recorded.component,
            hex(&read(root, EMBEDDED).unwrap()),
            "`{EMBEDDED}` is not what its record says: run `cargo xtask guests --embed`"
        );
    }

    /// Only says something where `cargo xtask guests` has built the same sources with the same toolchain.
    #[test]
    fn the_recorded_toolchain_makes_the_same_bytes() {
        let root = crate::root();
        let recorded = Record::read(root, RECORD).unwrap();
        match Record::read(root, BUILT_OF) {
            Ok(built)
                if (&built.sources, &built.toolchain)
                    == (&recorded.sources, &recorded.toolchain) =>
            {
                assert_eq!(built.component, recorded.component);
            }
            Ok(built) => eprintln!("not compared: built with {}", built.toolchain),
            Err(error) => eprintln!("not compared: {error:#}"),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let record = Record {
            component: "c".to_owned(),
            sources: "s".to_owned(),
            toolchain: "t".to_owned(),
        };
        fs::write(folder.path().join("r.json"), record.text()).unwrap();
        assert_eq!(Record::read(folder.path(), "r.json").unwrap(), record);
        fs::write(folder.path().join("r.json"), "{}").unwrap();
        assert!(Record::read(folder.path(), "r.json").is_err());
    }
}
