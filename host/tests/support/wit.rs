//! Components made from the contract, as it is or changed by a test.

use std::path::Path;

use wit_component::{ComponentEncoder, StringEncoding, dummy_module, embed_component_metadata};
use wit_parser::{LiftLowerAbi, ManglingAndAbi, Resolve};

/// The package `hapax:handler` of this repository, to be changed by a test.
#[derive(Debug)]
pub struct Wit {
    folder: tempfile::TempDir,
}

impl Wit {
    /// As it stands in this repository.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let wit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit");
        for entry in std::fs::read_dir(wit).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "wit") {
                std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
            }
        }
        Self { folder }
    }

    /// With `to` for every `from` in `file`.
    pub fn replace(self, file: &str, from: &str, to: &str) -> Self {
        let path = self.folder.path().join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "`{file}` does not contain `{from}`");
        std::fs::write(path, text.replace(from, to)).unwrap();
        self
    }

    /// With one file more.
    pub fn add(self, file: &str, text: &str) -> Self {
        let path = self.folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    /// A core module for `world` whose functions trap.
    pub fn module(&self, world: &str) -> Vec<u8> {
        let mut resolve = Resolve::default();
        let (package, _) = resolve.push_path(self.folder.path()).unwrap();
        let world = resolve.select_world(&[package], Some(world)).unwrap();
        let mangling = ManglingAndAbi::Legacy(LiftLowerAbi::Sync);
        let mut module = dummy_module(&resolve, world, mangling);
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
        module
    }

    /// The component made of `module`.
    pub fn component(&self, world: &str) -> Vec<u8> {
        ComponentEncoder::default()
            .validate(true)
            .module(&self.module(world))
            .unwrap()
            .encode()
            .unwrap()
    }

    /// With an import of `acme:mail/send@1.0.0`.
    pub fn with_unknown_import(self) -> Self {
        self.add(
            "deps/mail/mail.wit",
            "package acme:mail@1.0.0; interface send { send: func(to: string); }",
        )
        .replace(
            "worlds.wit",
            "import config;",
            "import config; import acme:mail/send@1.0.0;",
        )
    }

    /// With another version of the contract.
    pub fn with_version(self, version: &str) -> Self {
        self.replace("types.wit", "@0.1.0", &format!("@{version}"))
    }
}
