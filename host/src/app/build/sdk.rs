//! The SDK of each language as this binary carries it: what a project has in its folder `sdk/`.
//!
//! **Invariant**: the lists name every file of `guest-sdk/`; a test compares. They are lists, and not a macro that reads folders, because cargo
//! would not see a changed file then.

use std::path::Path;

use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::{Resolve, SourceMap};

use super::Language;
use crate::exit::{CommandError, Exit};

/// A file below a folder.
pub(in crate::app) struct File {
    /// With `/` between folders.
    pub(in crate::app) path: String,
    pub(in crate::app) bytes: Vec<u8>,
}

/// Lists files of the repository's folder `$folder`, to lie below another one.
macro_rules! files {
    ($folder:literal: $($file:literal),* $(,)?) => {
        &[$(($file, include_bytes!(concat!("../../../../", $folder, "/", $file)) as &[u8])),*]
    };
}

type Listed = &'static [(&'static str, &'static [u8])];

const CONTRACT: Listed = files!("wit": "host.wit", "sql.wit", "types.wit", "worlds.wit");
const LICENCES: Listed = files!("": "LICENSE-APACHE", "LICENSE-MIT");
const RUST: Listed = files!("guest-sdk/rust":
    "Cargo.toml", "README.md", "src/config.rs", "src/convert.rs", "src/decode.rs", "src/error.rs", "src/failure.rs", "src/instant.rs",
    "src/lib.rs", "src/log.rs", "src/message.rs", "src/outbox.rs", "src/sql.rs", "src/value.rs",
);
const JAVASCRIPT: Listed = files!("guest-sdk/js": "hapax.d.ts", "hapax.js");
const C: Listed = files!("guest-sdk/c":
    "hapax.c", "hapax.h", "json.c", "json.h", "libc/libc.c", "libc/stdlib.h", "libc/string.h",
);
const PYTHON: Listed = files!("guest-sdk/python":
    "hapax/__init__.py", "hapax/_app.py", "hapax/_errors.py", "hapax/_message.py", "hapax/_values.py", "hapax/config.py", "hapax/log.py", "hapax/outbox.py",
    "hapax/py.typed", "hapax/sql.py",
);

/// Returns the files of the language's SDK.
pub(in crate::app) fn files(language: Language) -> Result<Vec<File>, CommandError> {
    let mut files = listed(LICENCES, "");
    match language {
        Language::Rust => {
            files.extend(listed(RUST, ""));
            files.extend(listed(CONTRACT, "wit/"));
            for file in &mut files {
                if file.path == "Cargo.toml" {
                    // In a project the SDK belongs to the project's workspace.
                    let text = String::from_utf8_lossy(&file.bytes);
                    let own = text.split("\n# A workspace of its own").next();
                    file.bytes = own.unwrap_or_default().as_bytes().to_vec();
                }
            }
        }
        Language::JavaScript | Language::TypeScript => files.extend(listed(JAVASCRIPT, "")),
        Language::Python => files.extend(listed(PYTHON, "")),
        Language::C => {
            files.extend(listed(C, ""));
            // For editors: a build makes its own.
            files.extend(
                c_bindings()?
                    .into_iter()
                    .filter(|file| file.path.ends_with(".h")),
            );
        }
    }
    Ok(files)
}

/// Returns the files of the contract.
pub(super) fn contract() -> Vec<File> {
    listed(CONTRACT, "")
}

fn listed(files: Listed, below: &str) -> Vec<File> {
    files
        .iter()
        .map(|(path, bytes)| File {
            path: format!("{below}{path}"),
            bytes: bytes.to_vec(),
        })
        .collect()
}

/// Makes the bindings of the world `handler` for C: `handler.h`, `handler.c` and `handler_component_type.o`.
pub(super) fn c_bindings() -> Result<Vec<File>, CommandError> {
    let generate = || {
        let mut sources = SourceMap::default();
        for (name, bytes) in CONTRACT {
            sources.push_str(name, std::str::from_utf8(bytes)?);
        }
        let mut resolve = Resolve::default();
        let group = sources
            .parse()
            .map_err(|(_, error)| anyhow::anyhow!("{error:?}"))?;
        let package = resolve.push_group(group)?;
        let world = resolve.select_world(&[package], Some("handler"))?;
        let mut files = Files::default();
        wit_bindgen_c::Opts::default()
            .build()
            .generate(&mut resolve, world, &mut files)?;
        anyhow::Ok(files)
    };
    let files = generate().map_err(|error| {
        CommandError::new(
            Exit::Bug,
            format!("cannot make the bindings for C: {error:#}"),
            None,
        )
    })?;
    Ok(files
        .iter()
        .map(|(path, bytes)| File {
            path: path.to_owned(),
            bytes: bytes.to_vec(),
        })
        .collect())
}

/// Writes files below a folder, over those that are there.
pub(in crate::app) fn write_all(folder: &Path, files: &[File]) -> Result<(), CommandError> {
    for file in files {
        let path = folder.join(&file.path);
        let written = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&path, &file.bytes));
        written.map_err(|error| {
            CommandError::new(
                Exit::Failed,
                format!("cannot write `{}`: {error}", path.display()),
                Some("check that the folder may be written and the disk has room"),
            )
        })?;
    }
    Ok(())
}

/// Sees that a project has its SDK: writes it if there is none, or if it is asked for.
pub(super) fn prepare(
    language: Language,
    project: &Path,
    update: bool,
    step: &(dyn Fn(&str) + Send + Sync),
) -> Result<(), CommandError> {
    let folder = project.join("sdk");
    // A crate may have the SDK anywhere; `Cargo.toml` says where.
    let wanted = match language {
        Language::Rust => update,
        _ => update || !folder.exists(),
    };
    if !wanted {
        return Ok(());
    }
    step("writing the SDK into `sdk/`");
    if update && folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|error| {
            CommandError::new(
                Exit::Failed,
                format!("cannot remove `{}`: {error}", folder.display()),
                Some("remove it by hand"),
            )
        })?;
    }
    write_all(&folder, &files(language)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(folder: &Path, below: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder.join(below)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = if below.is_empty() {
                name.clone()
            } else {
                format!("{below}/{name}")
            };
            match name.as_str() {
                "template" | "wit" | "Cargo.lock" | "target" | "__pycache__" | "tests" => {}
                _ if entry.path().is_dir() => collect(folder, &path, found),
                _ => found.push(path),
            }
        }
    }

    #[test]
    fn every_file_of_an_sdk_is_carried() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-sdk");
        for (folder, listed) in [
            ("rust", RUST),
            ("js", JAVASCRIPT),
            ("c", C),
            ("python", PYTHON),
        ] {
            let mut found = Vec::new();
            collect(&root.join(folder), "", &mut found);
            found.sort();
            let mut names: Vec<&str> = listed.iter().map(|(path, _)| *path).collect();
            names.sort_unstable();
            assert_eq!(found, names, "{folder}");
        }
    }

    #[test]
    fn in_a_project_the_crate_is_no_workspace_of_its_own() {
        let files = files(Language::Rust).unwrap();
        let manifest = files.iter().find(|file| file.path == "Cargo.toml").unwrap();
        let text = std::str::from_utf8(&manifest.bytes).unwrap();
        assert!(!text.contains("[workspace]"), "{text}");
        let parsed: toml::Table = toml::from_str(text).unwrap();
        assert_eq!(parsed["package"]["name"].as_str(), Some("hapax-guest"));
    }

    #[test]
    fn the_bindings_for_c_are_those_of_the_contract() {
        let files = c_bindings().unwrap();
        let header = files.iter().find(|file| file.path == "handler.h").unwrap();
        let text = std::str::from_utf8(&header.bytes).unwrap();
        assert!(text.contains("exports_handler_handle"), "{text}");
        assert!(
            files
                .iter()
                .any(|file| file.path == "handler_component_type.o")
        );
    }
}
