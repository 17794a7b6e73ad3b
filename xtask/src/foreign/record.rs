//! Of what a component was made, beside which the tests need not make it again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

use super::Tools;
use crate::guests;

/// What decides about every component but its own folder: the contract, the SDKs, the recipes.
const SHARED: [&str; 3] = ["wit", "guest-sdk", "host/src/app/build"];

/// A hash of all that decides about a component.
pub(super) struct Record {
    file: PathBuf,
    made_of: String,
}

impl Record {
    /// Looks at the sources of the project in `folder`, which lies below `root`.
    pub(super) fn of(root: &Path, folder: &Path, tools: &Tools) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        for shared in SHARED {
            collect(&root.join(shared), &mut files)?;
        }
        collect(&root.join(folder), &mut files)?;
        files.sort();
        let mut hash = Sha256::new_with_prefix(&tools.versions);
        for file in files {
            // Their own hashes, so that where one ends is clear.
            hash.update(Sha256::digest(read(&file)?));
        }
        let name = folder.display().to_string().replace('/', "-");
        Ok(Self {
            file: root.join("target/foreign").join(name),
            made_of: hex(hash),
        })
    }

    /// Returns the component's size, if it was made of this.
    pub(super) fn is_of(&self, component: &Path) -> Option<usize> {
        let bytes = fs::read(component).ok()?;
        let recorded = fs::read_to_string(&self.file).ok()?;
        (recorded == self.text(&bytes)).then_some(bytes.len())
    }

    /// Writes down that the component was made of this. Returns its size.
    pub(super) fn write(&self, component: &Path) -> anyhow::Result<usize> {
        let bytes = read(component)?;
        guests::only_the_contract(&bytes)?;
        let folder = self.file.parent().context("a record has a folder")?;
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&self.file, self.text(&bytes)))
            .with_context(|| format!("cannot write `{}`", self.file.display()))?;
        Ok(bytes.len())
    }

    fn text(&self, component: &[u8]) -> String {
        let component = hex(Sha256::new_with_prefix(component));
        format!("{} {component}", self.made_of)
    }
}

/// Lists the files below a folder, without what tools put there and databases.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let shown = || format!("cannot read `{}`", folder.display());
    for entry in fs::read_dir(folder).with_context(shown)? {
        let entry = entry.with_context(shown)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_made = ["node_modules", "sdk", "target", "__pycache__", ".venv"]
            .contains(&name.as_str())
            || name.ends_with(".wasm")
            || name.contains(".db");
        if is_made {
            continue;
        }
        if entry.path().is_dir() {
            collect(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

pub(super) fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read `{}`", file.display()))
}

pub(super) fn hex(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
