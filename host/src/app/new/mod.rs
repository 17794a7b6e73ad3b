//! `hapax new`: writes a handler's project, all of which this binary carries.
//!
//! **Invariant**: nothing that is there is overwritten: the folder is made here, and all of it goes if it can't be completed.

mod templates;

use std::path::{Path, PathBuf};

use super::build::Language;
use super::build::sdk;
use crate::exit::{CommandError, Exit};

/// The longest name, in bytes: it is a handler's and a package's.
const NAME_BYTES_MAX: usize = 64;
/// What stands in the templates where the name belongs.
const NAME: &str = "{{name}}";

/// A project that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewProject {
    /// The handler's name.
    pub name: String,
    /// As it was given.
    pub folder: PathBuf,
    /// The files that are the author's, without the SDK's, sorted.
    pub files: Vec<String>,
}

/// Writes the project of a handler into the new folder `folder`, whose last part is the handler's name.
///
/// # Errors
/// The name will not do; the folder is there; it can't be written.
pub fn new(folder: &Path, language: Language) -> Result<NewProject, CommandError> {
    let name = name_of(folder)?;
    let mut files: Vec<sdk::File> = templates::files(language)
        .map(|(path, bytes)| sdk::File {
            path: path.to_owned(),
            bytes: match std::str::from_utf8(bytes) {
                Ok(text) => text.replace(NAME, &name).into_bytes(),
                Err(_) => bytes.to_vec(),
            },
        })
        .collect();
    let mut own: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
    own.sort_unstable();
    files.extend(sdk::files(language)?.into_iter().map(|mut file| {
        file.path.insert_str(0, "sdk/");
        file
    }));
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent).map_err(|error| cannot_make(folder, &error))?;
    }
    std::fs::create_dir(folder).map_err(|error| cannot_make(folder, &error))?;
    if let Err(error) = sdk::write_all(folder, &files) {
        // Half of a project is none. It was made here a moment ago.
        let _ = std::fs::remove_dir_all(folder);
        return Err(error);
    }
    Ok(NewProject {
        name,
        folder: folder.to_owned(),
        files: own,
    })
}

fn cannot_make(folder: &Path, error: &std::io::Error) -> CommandError {
    let shown = folder.display();
    if error.kind() == std::io::ErrorKind::AlreadyExists {
        CommandError::new(
            Exit::Failed,
            format!("`{shown}` is there already, and nothing is overwritten"),
            Some("choose another name, or remove it"),
        )
    } else {
        CommandError::new(
            Exit::Failed,
            format!("cannot make the folder `{shown}`: {error}"),
            Some("check the path and who may write there"),
        )
    }
}

/// Returns the name, if it can be that of a handler, of a consumer and of a package in every language.
fn name_of(folder: &Path) -> Result<String, CommandError> {
    let wrong = |shown: &str| {
        CommandError::new(
            Exit::CommandLine,
            format!("`{shown}` cannot be a handler's name"),
            Some(&format!(
                "use lower-case letters, digits and hyphens, a letter first, at most {NAME_BYTES_MAX}; `hapax-guest` is taken by the SDK"
            )),
        )
    };
    let last = folder
        .file_name()
        .ok_or_else(|| wrong(&folder.display().to_string()))?;
    let name = last.to_string_lossy();
    let fits = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.len() <= NAME_BYTES_MAX
        && !name.ends_with('-')
        && name != "hapax-guest"
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if fits {
        Ok(name.into_owned())
    } else {
        Err(wrong(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_serves_everywhere() {
        for name in ["credit", "c", "credit-2", "some where/crédit/pay-out"] {
            assert!(name_of(Path::new(name)).is_ok(), "{name}");
        }
        let long = "a".repeat(65);
        for name in [
            "",
            "..",
            "/",
            "Credit",
            "2credit",
            "-credit",
            "credit-",
            "crédit",
            "cre dit",
            "cre_dit",
            "hapax-guest",
            &long,
        ] {
            let error = name_of(Path::new(name)).unwrap_err();
            assert_eq!(error.exit, Exit::CommandLine, "{name}");
        }
    }
}
