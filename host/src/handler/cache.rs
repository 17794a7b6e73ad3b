//! The cache of compiled code: a component that was compiled once is not compiled again.
//!
//! An entry is a file: the digest of what follows, then what wasmtime serialised. Its name holds the component's digest and what
//! the code was compiled for (wasmtime's version, its settings, the processor).
//!
//! **Invariant**: bytes reach wasmtime only if they are, to the bit, what was written here, in a folder in which nobody else writes:
//! to take others for compiled code is to run them.
//! **Invariant**: whatever is wrong with the cache, the component is compiled instead.

#![allow(
    unsafe_code,
    reason = "compiled code cannot be checked, only trusted: wasmtime marks its loading as unsafe"
)]

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::hash::{Hash, Hasher};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::message::ComponentDigest;

/// What an entry begins with; the number grows when its layout changes.
const MAGIC: &[u8; 16] = b"hapax-compiled-1";
const HASH_BYTES: usize = 32;
const EXTENSION: &str = "compiled";
/// The entries that were used last stay, up to so many bytes together.
const CACHE_BYTES_MAX: u64 = 1 << 30;
/// What a process that died left half-written goes after this many seconds.
const LEFT_AFTER_SECONDS: u64 = 3_600;

/// A folder of compiled code.
#[derive(Debug)]
pub struct Cache {
    directory: PathBuf,
}

impl Cache {
    /// Returns the folder where nothing is configured: systemd's, or the user's. `None` where there is neither.
    pub fn default_directory(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let absolute = |path: PathBuf| path.is_absolute().then_some(path);
        // systemd lists several with colons between them.
        let systemd = variable("CACHE_DIRECTORY").and_then(|list| {
            let first = list.to_str()?.split(':').next()?.to_owned();
            absolute(PathBuf::from(first))
        });
        let of_user = || {
            variable("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .and_then(absolute)
                .or_else(|| absolute(PathBuf::from(variable("HOME")?).join(".cache")))
                .map(|cache| cache.join("hapax"))
        };
        systemd.or_else(of_user)
    }

    /// Opens the cache in `directory`, which is made, for this user only, if it is missing.
    ///
    /// # Errors
    /// Says why nothing in it can be trusted.
    pub fn open(directory: PathBuf) -> Result<Self, String> {
        let shown = directory.display();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|error| format!("`{shown}` cannot be made: {error}"))?;
        let metadata = std::fs::metadata(&directory)
            .map_err(|error| format!("`{shown}` cannot be looked at: {error}"))?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(format!("`{shown}` belongs to another user"));
        }
        if metadata.mode() & 0o022 != 0 {
            return Err(format!("others may write to `{shown}`"));
        }
        Ok(Self { directory })
    }

    /// Returns what was compiled of the component with this digest, if it is there.
    pub(super) fn get(&self, engine: &Engine, digest: ComponentDigest) -> Option<Component> {
        let path = self.path(engine, digest);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => return miss(&path, &error),
        };
        let mut entry = Vec::new();
        if let Err(error) = file.read_to_end(&mut entry) {
            return miss(&path, &error);
        }
        let Some(code) = checked(&entry) else {
            return miss(&path, &"it is damaged");
        };
        // SAFETY: these are the bytes that `put` got from wasmtime: their digest is right, and only this user, who could as well
        // replace the whole program, writes to the folder. They are read into memory first, so nobody can change them after the
        // check. wasmtime itself refuses what another version of it, or one for another processor, has made.
        match unsafe { Component::deserialize(engine, code) } {
            Ok(component) => {
                // The last use decides about what stays. Where that can't be noted, it may be compiled again one day.
                let _ = file.set_modified(SystemTime::now());
                tracing::debug!(component = %digest, "its compiled code is in the cache");
                Some(component)
            }
            Err(error) => miss(&path, &super::engine::causes(&error)),
        }
    }

    /// Keeps what was compiled of the component with this digest.
    pub(super) fn put(&self, engine: &Engine, digest: ComponentDigest, component: &Component) {
        let path = self.path(engine, digest);
        if let Err(error) = self.write(&path, component) {
            tracing::warn!(
                path = %path.display(),
                %error,
                hint = "correct `cache.directory`, or switch the cache off with `directory = \"off\"`",
                "compiled code is not kept: it is compiled again at the next start"
            );
        }
        self.prune(CACHE_BYTES_MAX);
    }

    fn write(&self, path: &Path, component: &Component) -> anyhow::Result<()> {
        let code = component.serialize()?;
        // Whole or not at all, whoever writes at the same time.
        let mut file = tempfile::Builder::new()
            .prefix(".hapax-")
            .tempfile_in(&self.directory)?;
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(&code))?;
        file.write_all(&code)?;
        file.persist(path)?;
        Ok(())
    }

    fn path(&self, engine: &Engine, digest: ComponentDigest) -> PathBuf {
        let mut hasher = ShaHasher(Sha256::new());
        engine.precompile_compatibility_hash().hash(&mut hasher);
        let compiled_for: String = hasher.0.finalize()[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.directory
            .join(format!("{digest}-{compiled_for}.{EXTENSION}"))
    }

    /// Deletes the entries that were not used for longest, until the rest has at most `bytes_max`. What fails is left to the next.
    fn prune(&self, bytes_max: u64) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else {
            return;
        };
        let mut kept: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in entries.filter_map(Result::ok) {
            let path = entry.path();
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if path.extension().is_some_and(|found| found == EXTENSION) {
                kept.push((used, metadata.len(), path));
            } else if entry.file_name().to_string_lossy().starts_with(".hapax-")
                && used
                    .elapsed()
                    .is_ok_and(|age| age.as_secs() > LEFT_AFTER_SECONDS)
            {
                let _ = std::fs::remove_file(path);
            }
        }
        kept.sort_unstable();
        let mut total: u64 = kept.iter().map(|(_, bytes, _)| bytes).sum();
        // The last one was used just now.
        kept.pop();
        for (_, bytes, path) in kept {
            if total <= bytes_max {
                return;
            }
            if std::fs::remove_file(path).is_ok() {
                total -= bytes;
            }
        }
    }
}

/// Returns the code in an entry, if it is what was written.
fn checked(entry: &[u8]) -> Option<&[u8]> {
    let (hash, code) = entry.strip_prefix(MAGIC)?.split_at_checked(HASH_BYTES)?;
    (Sha256::digest(code)[..] == *hash).then_some(code)
}

/// An entry that can't be used: it is compiled again, and the entry replaced, so this is said once.
fn miss(path: &Path, why: &dyn std::fmt::Display) -> Option<Component> {
    tracing::warn!(path = %path.display(), %why, "compiled code in the cache cannot be used: it is compiled again");
    None
}

/// The same for the same input in every build, as the standard library's is not.
struct ShaHasher(Sha256);

impl Hasher for ShaHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        digest[..8]
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use super::*;

    fn variables<'a>(all: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + use<'a> {
        move |name| {
            let found = all.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        }
    }

    #[test]
    fn the_folder_is_systemds_or_the_users() {
        let directory = |all: &[(&str, &str)]| Cache::default_directory(variables(all));
        assert_eq!(directory(&[]), None);
        assert_eq!(directory(&[("HOME", "/h")]), Some("/h/.cache/hapax".into()));
        assert_eq!(
            directory(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]),
            Some("/x/hapax".into())
        );
        assert_eq!(
            directory(&[("HOME", "/h"), ("XDG_CACHE_HOME", "relative")]),
            Some("/h/.cache/hapax".into())
        );
        assert_eq!(
            directory(&[("HOME", "/h"), ("CACHE_DIRECTORY", "/s:/t")]),
            Some("/s".into())
        );
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("a/b");
        Cache::open(directory.clone()).unwrap();
        let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        for mode in [0o720, 0o702, 0o777] {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&directory, mode).unwrap();
            let refused = Cache::open(directory.clone()).unwrap_err();
            assert!(refused.starts_with("others may write to"), "{refused}");
        }
    }

    #[test]
    fn every_damage_is_seen() {
        let code = b"code".repeat(100);
        let mut entry = MAGIC.to_vec();
        entry.extend_from_slice(&Sha256::digest(&code));
        entry.extend_from_slice(&code);
        assert_eq!(checked(&entry), Some(&code[..]));
        for length in 0..entry.len() {
            assert_eq!(checked(&entry[..length]), None, "{length}");
        }
        for index in 0..entry.len() {
            let mut damaged = entry.clone();
            damaged[index] ^= 1;
            assert_eq!(checked(&damaged), None, "{index}");
        }
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path().join("cache")).unwrap();
        let start = SystemTime::now() - Duration::from_secs(100);
        for (index, name) in ["c", "a", "b"].into_iter().enumerate() {
            let path = cache.directory.join(format!("{name}.{EXTENSION}"));
            std::fs::write(&path, [0; 10]).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(start + Duration::from_secs(index as u64))
                .unwrap();
        }
        let there = || {
            let mut names: Vec<String> = std::fs::read_dir(&cache.directory)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort_unstable();
            names
        };
        cache.prune(30);
        assert_eq!(there().len(), 3);
        cache.prune(29);
        assert_eq!(there(), ["a.compiled", "b.compiled"]);
        // The one that was used last stays, whatever its size.
        cache.prune(0);
        assert_eq!(there(), ["b.compiled"]);
    }
}
