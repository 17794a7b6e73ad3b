//! The bindings of the world `handler`, made from the contract that this binary carries.

use wit_bindgen_core::wit_parser::{Resolve, SourceMap, WorldId};
use wit_bindgen_core::{Files, WorldGenerator};

use super::sdk::{CONTRACT, File};
use crate::exit::{CommandError, Exit};

/// The world of handlers of one message.
const WORLD: &str = "handler";
/// Where the bindings for Go lie, as its code imports them.
const GO_PACKAGE: &str = "hapax/internal/wit";
/// What the bindings for Go import that lies in a module of its own registry, and the SDK's own packages in its place: with them nothing
/// has to be downloaded.
const GO_SHARED: [(&str, &str); 2] = [
    (
        "go.bytecodealliance.org/pkg/wit/types",
        "hapax/internal/types",
    ),
    (
        "go.bytecodealliance.org/pkg/wit/runtime",
        "hapax/internal/runtime",
    ),
];

/// Returns the world of a handler.
///
/// # Errors
/// None, as long as the contract that was compiled in can be read.
pub(super) fn world() -> anyhow::Result<(Resolve, WorldId)> {
    let mut sources = SourceMap::default();
    for (name, bytes) in CONTRACT {
        sources.push_str(name, std::str::from_utf8(bytes)?);
    }
    let mut resolve = Resolve::default();
    let group = sources
        .parse()
        .map_err(|(_, error)| anyhow::anyhow!("{error:?}"))?;
    let package = resolve.push_group(group)?;
    let world = resolve.select_world(&[package], Some(WORLD))?;
    Ok((resolve, world))
}

/// Makes the bindings for C: `handler.h`, `handler.c` and `handler_component_type.o`.
pub(super) fn c() -> Result<Vec<File>, CommandError> {
    made("C", || {
        generate(&mut *wit_bindgen_c::Opts::default().build())
    })
}

/// Makes the bindings for Go, to lie in the module of the SDK.
pub(super) fn go() -> Result<Vec<File>, CommandError> {
    let options = wit_bindgen_go::Opts {
        // By a program that need not be there: what is made must not depend on it.
        format: wit_bindgen_go::Format::False,
        pkg_name: Some(GO_PACKAGE.to_owned()),
        ..Default::default()
    };
    let mut files = made("Go", || generate(&mut *options.build()))?;
    for file in &mut files {
        file.path.insert_str(0, "internal/wit/");
        let mut text = String::from_utf8_lossy(&file.bytes).into_owned();
        for (shared, own) in GO_SHARED {
            text = text.replace(shared, own);
        }
        file.bytes = text.into_bytes();
    }
    Ok(files)
}

fn generate(generator: &mut dyn WorldGenerator) -> anyhow::Result<Files> {
    let (mut resolve, world) = world()?;
    let mut files = Files::default();
    generator.generate(&mut resolve, world, &mut files)?;
    Ok(files)
}

fn made(
    language: &str,
    generate: impl FnOnce() -> anyhow::Result<Files>,
) -> Result<Vec<File>, CommandError> {
    let files = generate().map_err(|error| {
        CommandError::new(
            Exit::Bug,
            format!("cannot make the bindings for {language}: {error:#}"),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn text<'a>(files: &'a [File], path: &str) -> &'a str {
        let file = files.iter().find(|file| file.path == path).unwrap();
        std::str::from_utf8(&file.bytes).unwrap()
    }

    #[test]
    fn those_for_c_are_of_the_contract() {
        let files = c().unwrap();
        let header = text(&files, "handler.h");
        assert!(header.contains("exports_handler_handle"), "{header}");
        assert!(
            files
                .iter()
                .any(|file| file.path == "handler_component_type.o")
        );
    }

    #[test]
    fn those_for_go_need_nothing_but_the_sdk() {
        let files = go().unwrap();
        let exports = text(&files, "internal/wit/wit_exports/wit_exports.go");
        assert!(exports.contains("//go:wasmexport handle"), "{exports}");
        for file in &files {
            assert!(!text(&files, &file.path).contains("bytecodealliance.org"));
        }
        if let Some(folder) = std::env::var_os("DUMP") {
            super::super::sdk::write_all(std::path::Path::new(&folder), &files).unwrap();
        }
    }
}
