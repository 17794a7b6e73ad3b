//! The SDK of each language as this binary carries it: what a project has in its folder `sdk/`.
//!
//! **Invariant**: the lists name every file of `guest-sdk/`; a test compares. They are lists, and not a macro that reads folders, because cargo
//! would not see a changed file then.

use std::path::Path;

use super::{Language, bindings};
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

pub(super) type Listed = &'static [(&'static str, &'static [u8])];

pub(super) const CONTRACT: Listed = files!("wit": "host.wit", "sql.wit", "types.wit", "worlds.wit");
const LICENCES: Listed = files!("": "LICENSE-APACHE", "LICENSE-MIT");
const RUST: Listed = files!("guest-sdk/rust":
    "Cargo.toml", "README.md", "src/config.rs", "src/convert.rs", "src/decode.rs", "src/error.rs", "src/failure.rs", "src/host.rs",
    "src/instant.rs", "src/allocator.rs", "src/batch.rs", "src/lib.rs", "src/log.rs", "src/message.rs", "src/outbox.rs", "src/sql.rs", "src/value.rs",
);
const JAVASCRIPT: Listed = files!("guest-sdk/js": "hapax.d.ts", "hapax.js");
const C: Listed = files!("guest-sdk/c":
    "hapax.c", "hapax.h", "json.c", "json.h", "libc/libc.c", "libc/stdlib.h", "libc/string.h",
);
const PYTHON: Listed = files!("guest-sdk/python":
    "hapax/__init__.py", "hapax/_app.py", "hapax/_errors.py", "hapax/_message.py", "hapax/_values.py", "hapax/config.py", "hapax/log.py", "hapax/outbox.py",
    "hapax/py.typed", "hapax/sql.py",
);

const GO: Listed = files!("guest-sdk/go":
    "config/config.go", "errors.go", "go.mod", "hapax.go", "internal/host/host.go", "internal/runtime/runtime.go", "internal/types/types.go",
    "internal/wit/export_wit_world/handle.go", "json.go", "log/log.go", "message.go", "outbox/outbox.go", "sql/params.go", "sql/rows.go", "sql/sql.go", "sql/values.go",
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
                bindings::c()?
                    .into_iter()
                    .filter(|file| file.path.ends_with(".h")),
            );
        }
        Language::Go => {
            files.extend(listed(GO, ""));
            files.extend(bindings::go()?);
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
                "template" | "Cargo.lock" | "target" | "__pycache__" | "tests" => {}
                // The contract, which is carried by itself.
                "wit" if below.is_empty() => {}
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
            ("go", GO),
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
}
