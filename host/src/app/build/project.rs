//! What a project's folder holds: its language, and where its component belongs.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use super::BuildOptions;
use crate::app::run::open_cache;
use crate::config::{ComponentPlace, Config};
use crate::exit::{CommandError, Exit};
use crate::handler::Cache;

/// The languages that handlers are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// With the crate `hapax-guest`.
    Rust,
    /// On the engine that componentize-js brings along.
    JavaScript,
    /// Checked by its compiler, then as JavaScript.
    TypeScript,
    /// On the interpreter that componentize-py brings along.
    Python,
    /// Without a C library.
    C,
    /// With the runtime and the standard library of its own compiler.
    Go,
}

impl Language {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Rust,
        Self::JavaScript,
        Self::TypeScript,
        Self::Python,
        Self::C,
        Self::Go,
    ];

    /// Returns how people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rust => "Rust",
            Self::JavaScript => "JavaScript",
            Self::TypeScript => "TypeScript",
            Self::Python => "Python",
            Self::C => "C",
            Self::Go => "Go",
        }
    }

    /// Returns the word for `--lang`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::JavaScript => "js",
            Self::TypeScript => "ts",
            Self::Python => "python",
            Self::C => "c",
            Self::Go => "go",
        }
    }

    /// Returns the file by which a project of it is known.
    pub fn marker(self) -> &'static str {
        match self {
            Self::Rust => "Cargo.toml",
            Self::JavaScript => "handler.js",
            Self::TypeScript => "handler.ts",
            Self::Python => "handler.py",
            Self::C => "handler.c",
            Self::Go => "handler.go",
        }
    }
}

/// A project that can be built.
pub(super) struct Project {
    /// Absolute.
    pub(super) folder: PathBuf,
    pub(super) language: Language,
    /// The component's file.
    pub(super) out: PathBuf,
    /// Where the project's hosts keep compiled code, so that they find this component compiled.
    pub(super) cache: Option<Arc<Cache>>,
}

/// Looks at the folder.
pub(super) fn find(options: &BuildOptions) -> Result<Project, CommandError> {
    let shown = options.folder.display();
    let folder = options.folder.canonicalize().map_err(|error| {
        CommandError::new(
            Exit::CommandLine,
            format!("cannot read the folder `{shown}`: {error}"),
            Some("name a project's folder, such as one that `hapax new` has made"),
        )
    })?;
    let has = |language: &Language| folder.join(language.marker()).is_file();
    let found: Vec<Language> = Language::ALL.into_iter().filter(has).collect();
    let list = |languages: &[Language]| {
        let names: Vec<String> = languages
            .iter()
            .map(|language| format!("`{}`", language.marker()))
            .collect();
        names.join(", ")
    };
    let language = match (options.language, found.as_slice()) {
        (Some(language), _) if has(&language) => language,
        (None, [language]) => *language,
        (Some(language), _) => {
            return Err(CommandError::new(
                Exit::CommandLine,
                format!(
                    "`{shown}` is no project in {}: it has no `{}`",
                    language.name(),
                    language.marker()
                ),
                Some("leave `--lang` out, or name another folder"),
            ));
        }
        (None, []) => {
            return Err(CommandError::new(
                Exit::CommandLine,
                format!(
                    "`{shown}` is no project: it has none of {}",
                    list(&Language::ALL)
                ),
                Some("name a project's folder; `hapax new NAME --lang rust` makes one"),
            ));
        }
        (None, several) => {
            return Err(CommandError::new(
                Exit::CommandLine,
                format!(
                    "the language of `{shown}` is not clear: it has {}",
                    list(several)
                ),
                Some("name it with `--lang`"),
            ));
        }
    };
    let (out, cache) = match &options.out {
        Some(file) => (file.clone(), None),
        None => configured(options)?,
    };
    Ok(Project {
        folder,
        language,
        out,
        cache,
    })
}

/// Returns the component's file that the project's configuration names, and its cache of compiled code.
fn configured(options: &BuildOptions) -> Result<(PathBuf, Option<Arc<Cache>>), CommandError> {
    let file = options.folder.join("hapax.toml");
    if !file.exists() {
        return Err(CommandError::new(
            Exit::CommandLine,
            format!(
                "where the component belongs is not known: there is no `{}`",
                file.display()
            ),
            Some("name its file with `--out FILE`"),
        ));
    }
    let config = Config::load_here(&file)?;
    let mut components: Vec<&PathBuf> = config
        .handlers
        .values()
        .filter_map(|handler| match &handler.component {
            ComponentPlace::File(path) => Some(path),
            // It is deployed by its name, from wherever it was built.
            ComponentPlace::Store => None,
        })
        .collect();
    components.sort();
    components.dedup();
    match components.as_slice() {
        // Shown as the reader sees the folder.
        [component] => {
            let out = std::path::absolute(&options.folder)
                .ok()
                .and_then(|folder| component.strip_prefix(folder).ok())
                .map_or_else(|| (*component).clone(), |path| options.folder.join(path));
            Ok((out, open_cache(&config)))
        }
        _ => Err(CommandError::new(
            Exit::CommandLine,
            format!(
                "where the component belongs is not clear: `{}` names {} files of components",
                file.display(),
                components.len()
            ),
            Some("name its file with `--out FILE`"),
        )),
    }
}
