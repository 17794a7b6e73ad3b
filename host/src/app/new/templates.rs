//! The files of a new project, as they lie in `guest-sdk/template` and `guest-sdk/LANGUAGE/template`.
//!
//! **Invariant**: the lists name every file there; a test compares. They are lists because cargo would not see a changed file behind a macro
//! that reads folders.

use super::Language;

type Listed = &'static [(&'static str, &'static [u8])];

/// Lists files of the folder `$folder` of `guest-sdk/`. One that is named `gitignore` gets its dot.
macro_rules! files {
    ($folder:literal: $($file:literal),* $(,)?) => {
        &[$((
            $file,
            include_bytes!(concat!("../../../../guest-sdk/", $folder, "/", $file)) as &[u8],
        )),*]
    };
}

const COMMON: Listed = files!("template":
    "expected.jsonl", "hapax.toml", "messages.jsonl", "migrations/postgres/0001_accounts.sql", "migrations/sqlite/0001_accounts.sql",
);
const RUST: Listed =
    files!("rust/template": "Cargo.lock", "Cargo.toml", "README.md", "gitignore", "src/lib.rs");
const JAVASCRIPT: Listed = files!("js/template":
    "README.md", "gitignore", "handler.js", "package-lock.json", "package.json",
);
const TYPESCRIPT: Listed = files!("ts/template":
    "README.md", "gitignore", "handler.ts", "package-lock.json", "package.json", "tsconfig.json",
);
const PYTHON: Listed =
    files!("python/template": "README.md", "gitignore", "handler.py", "pyproject.toml");
const C: Listed = files!("c/template": "README.md", "compile_flags.txt", "gitignore", "handler.c");
const GO: Listed = files!("go/template": "README.md", "gitignore", "go.mod", "handler.go");

fn own(language: Language) -> Listed {
    match language {
        Language::Rust => RUST,
        Language::JavaScript => JAVASCRIPT,
        Language::TypeScript => TYPESCRIPT,
        Language::Python => PYTHON,
        Language::C => C,
        Language::Go => GO,
    }
}

/// Returns the path in the project and the bytes of each file.
pub(super) fn files(language: Language) -> impl Iterator<Item = (&'static str, &'static [u8])> {
    COMMON.iter().chain(own(language)).map(|(path, bytes)| {
        // Under its real name it would rule over the templates themselves.
        let path = if *path == "gitignore" {
            ".gitignore"
        } else {
            path
        };
        (path, *bytes)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn collect(folder: &Path, below: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder.join(below)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = if below.is_empty() {
                name
            } else {
                format!("{below}/{name}")
            };
            if entry.path().is_dir() {
                collect(folder, &path, found);
            } else {
                found.push(path);
            }
        }
    }

    #[test]
    fn every_file_of_a_template_is_carried() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-sdk");
        let compare = |folder: &str, listed: Listed| {
            let mut found = Vec::new();
            collect(&root.join(folder), "", &mut found);
            found.sort();
            let mut names: Vec<&str> = listed.iter().map(|(path, _)| *path).collect();
            names.sort_unstable();
            assert_eq!(found, names, "{folder}");
        };
        compare("template", COMMON);
        for language in Language::ALL {
            compare(&format!("{}/template", language.word()), own(language));
        }
    }
}
