//! `hapax build`: makes the component of a handler's project, in whatever language it is written. Needs no database.
//!
//! The recipe of each language lives here and nowhere else; `cargo xtask guests` calls it for the examples, and shares [`rust_target`].
//!
//! **Invariant**: nothing is downloaded unless it was asked for, and what a tool lacks is said with the one command that gets it.
//! **Invariant**: the component's file is replaced in one step, and only by a component that this host runs.

mod bindings;
mod c;
mod component;
mod go;
mod javascript;
mod project;
mod python;
pub(super) mod running;
mod rust;
mod rust_target;
pub(super) mod sdk;
mod tools;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

pub use project::Language;
use running::Running;

use super::inspect::{InspectedFile, inspect_bytes};
use crate::exit::{CommandError, Exit};

/// What is built, and how.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The project's folder.
    pub folder: PathBuf,
    /// Found from the project's files if absent.
    pub language: Option<Language>,
    /// The component's file; the one that `hapax.toml` names if absent.
    pub out: Option<PathBuf>,
    /// Have cargo, npm or pip download what is missing.
    pub install: bool,
    /// Put the SDK that this binary carries into the project first, over the one that is there.
    pub update_sdk: bool,
}

/// A component that was built, is run by this host, and lies in its file.
#[derive(Clone, Debug, Serialize)]
pub struct Built {
    /// Of the project.
    pub language: Language,
    /// What is in the component.
    #[serde(flatten)]
    pub inspected: InspectedFile,
    /// What the tools warned of; empty if of nothing.
    pub warnings: String,
    /// The build, in seconds, without the check.
    #[serde(rename = "build_seconds", serialize_with = "seconds")]
    pub took: Duration,
}

fn seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((time.as_secs_f64() * 10.0).round() / 10.0)
}

/// What a language's tools made.
struct Made {
    component: Vec<u8>,
    warnings: String,
}

/// What the recipe of a language works on.
struct Work<'a> {
    /// The project's folder, absolute.
    folder: &'a Path,
    install: bool,
    /// Says what is done next.
    step: &'a (dyn Fn(&str) + Send + Sync),
}

/// Builds the project and puts its component into its file. `step` is told what is done next.
///
/// # Errors
/// The folder is no project; each tool that is missing, with the command that installs it; what the tools say about the handler; why
/// this host does not run the component. The component's file is as before then.
pub async fn build(
    options: BuildOptions,
    step: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Built, CommandError> {
    build_until(options, step, None).await
}

/// As [`build`], with tools that somebody else can end.
pub(super) async fn build_until(
    options: BuildOptions,
    step: impl Fn(&str) + Send + Sync + 'static,
    running: Option<Running>,
) -> Result<Built, CommandError> {
    let began = Instant::now();
    let project = project::find(&options)?;
    let (project, made) = tokio::task::spawn_blocking(move || {
        let make = || make(&project, &options, &step);
        let made = match running {
            None => make(),
            Some(running) => running.during(make),
        };
        (project, made)
    })
    .await
    .map_err(|error| CommandError::new(Exit::Bug, error, None))?;
    let made = made?;
    let took = began.elapsed();
    let shown = project.out.display().to_string();
    let inspected = inspect_bytes(&shown, made.component.clone(), project.cache.clone()).await?;
    if let Some(refused) = &inspected.refused {
        return Err(CommandError::new(
            Exit::Configuration,
            &refused.problem,
            Some(&refused.hint),
        ));
    }
    write(&project.out, &made.component)?;
    Ok(Built {
        language: project.language,
        inspected,
        warnings: made.warnings,
        took,
    })
}

/// Says in which language the project is.
///
/// # Errors
/// The folder is no project, or one in several languages.
pub(super) fn language_of(options: &BuildOptions) -> Result<Language, CommandError> {
    Ok(project::find(options)?.language)
}

fn make(
    project: &project::Project,
    options: &BuildOptions,
    step: &(dyn Fn(&str) + Send + Sync),
) -> Result<Made, CommandError> {
    sdk::prepare(project.language, &project.folder, options.update_sdk, step)?;
    let work = Work {
        folder: &project.folder,
        install: options.install,
        step,
    };
    match project.language {
        Language::Rust => rust::make(&work),
        Language::JavaScript | Language::TypeScript => javascript::make(&work, project.language),
        Language::C => c::make(&work),
        Language::Python => python::make(&work),
        Language::Go => go::make(&work),
    }
}

/// Puts the component into its file in one step, so that a host that follows it never sees half of one.
fn write(file: &Path, bytes: &[u8]) -> Result<(), CommandError> {
    let failed = |error: std::io::Error| {
        CommandError::new(
            Exit::Failed,
            format!("cannot write `{}`: {error}", file.display()),
            Some("check the folder, or name another file with `--out FILE`"),
        )
    };
    // One that is the same is left alone: a running host would read it again for nothing.
    if std::fs::read(file).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let mut part = tempfile::Builder::new()
        .prefix(".hapax-build-")
        .suffix(".part")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(folder)
        .map_err(failed)?;
    std::io::Write::write_all(&mut part, bytes).map_err(failed)?;
    part.persist(file).map_err(|error| failed(error.error))?;
    Ok(())
}
