//! Where a project is developed: its folder, the configuration as it is run here, and a database of its own.
//!
//! **Invariant**: all that is written lies in the project's folder `.hapax`, which one `hapax dev` has at a time.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::DevOptions;
use crate::app::NewMessage;
use crate::app::build::BuildOptions;
use crate::app::prove::{CONFIG, MESSAGES};
use crate::config::{ComponentPlace, Config, SourceKind, TargetKind};
use crate::exit::{CommandError, Exit};
use crate::message::Header;

/// What is written lies here; also where the component is put if the configuration names no file for it.
const FOLDER: &str = ".hapax";
const DATABASE: &str = "dev.db";
const COMPONENT: &str = "handler.wasm";
const LOCK: &str = "dev.lock";

/// The place of one project. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Absolute.
    folder: PathBuf,
    /// As it was given.
    given: PathBuf,
    /// Held as long as the project is followed.
    _lock: Arc<File>,
}

/// The configuration as it is run here.
pub(super) struct Read {
    pub(super) config: Config,
    /// Sources that are streams of a broker elsewhere, and queues here.
    streams: BTreeSet<String>,
}

impl Place {
    /// Takes the folder.
    ///
    /// # Errors
    /// It is not there, or another `hapax dev` has it.
    pub(super) fn open(options: &DevOptions) -> Result<Self, CommandError> {
        let shown = options.folder.display();
        let folder = options.folder.canonicalize().map_err(|error| {
            CommandError::new(
                Exit::CommandLine,
                format!("cannot read the folder `{shown}`: {error}"),
                Some("name a project's folder, such as one that `hapax new` has made"),
            )
        })?;
        if !folder.join(CONFIG).is_file() {
            return Err(CommandError::new(
                Exit::CommandLine,
                format!("`{shown}` is no project: it has no `{CONFIG}`"),
                Some("name a project's folder; `hapax new NAME --lang rust` makes one"),
            ));
        }
        let own = folder.join(FOLDER);
        let failed = |error: std::io::Error| {
            CommandError::new(
                Exit::Failed,
                format!("cannot write to `{}`: {error}", own.display()),
                Some("see that this user may write to the project's folder"),
            )
        };
        std::fs::create_dir_all(&own).map_err(failed)?;
        // Nothing in it is for the project's repository.
        std::fs::write(own.join(".gitignore"), "*\n").map_err(failed)?;
        let lock = File::create(own.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(CommandError::new(
                    Exit::Failed,
                    format!("another `hapax dev` follows `{shown}`"),
                    Some("end that one first"),
                ));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        Ok(Self {
            folder,
            given: options.folder.clone(),
            _lock: Arc::new(lock),
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the file of the project's messages.
    pub(super) fn messages(&self) -> PathBuf {
        self.folder.join(MESSAGES)
    }

    fn database(&self) -> PathBuf {
        self.folder.join(FOLDER).join(DATABASE)
    }

    /// Returns the database as the author sees it.
    pub(super) fn shown_database(&self) -> String {
        let path = self.given.join(FOLDER).join(DATABASE);
        path.display().to_string()
    }

    /// Returns paths as the author sees them: from the project's folder on.
    pub(super) fn shown<'a>(&self, paths: impl IntoIterator<Item = &'a PathBuf>) -> Vec<String> {
        paths
            .into_iter()
            .map(|path| {
                let path = path.strip_prefix(&self.folder).unwrap_or(path);
                path.display().to_string()
            })
            .collect()
    }

    /// Returns how the project is built.
    ///
    /// # Errors
    /// The configuration is wrong.
    pub(super) fn build_options(&self, options: &DevOptions) -> Result<BuildOptions, CommandError> {
        let config = Config::load_here(&self.folder.join(CONFIG))?;
        let is_in_file = config
            .handlers
            .values()
            .any(|handler| handler.component.file().is_some());
        Ok(BuildOptions {
            folder: options.folder.clone(),
            language: options.language,
            // The file that the configuration names, unless all come from the store.
            out: (!is_in_file).then(|| self.component()),
            install: options.install,
            update_sdk: false,
        })
    }

    fn component(&self) -> PathBuf {
        self.folder.join(FOLDER).join(COMPONENT)
    }

    /// Reads the configuration, and has everything of it that is outside of this folder left out: the store is a file of its own,
    /// streams are queues, and what is published for a broker stays in the outbox.
    ///
    /// # Errors
    /// It is wrong.
    pub(super) fn read(&self, options: &DevOptions) -> Result<Read, CommandError> {
        let mut config = Config::load_here(&self.folder.join(CONFIG))?;
        config.store.url = format!("sqlite:{}", self.database().display());
        let mut streams = BTreeSet::new();
        for source in config.sources.values_mut() {
            if source.kind != SourceKind::Queue {
                source.kind = SourceKind::Queue;
                streams.insert(source.name.clone());
            }
        }
        let is_queue = |kind: &TargetKind| matches!(kind, TargetKind::Queue { .. });
        if !config.targets.values().all(|target| is_queue(&target.kind)) {
            config.targets.clear();
        }
        for handler in config.handlers.values_mut() {
            if handler.component == ComponentPlace::Store {
                handler.component = ComponentPlace::File(self.component());
            }
            // What is pinned is what was deployed.
            handler.sha256 = None;
            // SQLite has none.
            handler.rights.role = None;
            // It has one writer, and what is shown comes in order.
            handler.lanes = 1;
        }
        config.telemetry = None;
        if !options.admin {
            config.admin = None;
        } else if config.admin.is_none() {
            return Err(CommandError::new(
                Exit::Configuration,
                format!("`{CONFIG}` has no table `[admin]`"),
                Some("write one with `listen = \"127.0.0.1:9090\"`, or leave `--admin` out"),
            ));
        }
        Ok(Read { config, streams })
    }

    /// Removes the database.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(super) fn clear(&self) -> Result<(), CommandError> {
        let folder = self.folder.join(FOLDER);
        let cleared = std::fs::read_dir(&folder).and_then(|entries| {
            for entry in entries {
                let entry = entry?;
                // With it go its journal and its locks, which are called after it.
                if entry.file_name().to_string_lossy().starts_with(DATABASE)
                    && let Err(error) = std::fs::remove_file(entry.path())
                    // The last connection, which another thread may close just now, removes the journal itself.
                    && error.kind() != std::io::ErrorKind::NotFound
                {
                    return Err(error);
                }
            }
            Ok(())
        });
        cleared.map_err(|error| {
            CommandError::new(
                Exit::Failed,
                format!(
                    "cannot remove the database in `{}`: {error}",
                    folder.display()
                ),
                Some("remove it by hand"),
            )
        })
    }
}

impl Read {
    /// Returns the source that the messages go to: the one that is named, or the only one.
    ///
    /// # Errors
    /// There are several, or none.
    pub(super) fn source(&self, named: Option<&str>) -> Result<String, CommandError> {
        if let Some(name) = named {
            return Ok(name.to_owned());
        }
        let used: BTreeSet<&str> = self
            .config
            .handlers
            .values()
            .map(|handler| handler.source.as_str())
            .collect();
        let mut names = used.iter();
        match (names.next(), names.next()) {
            (Some(only), None) => Ok((*only).to_owned()),
            (first, _) => Err(CommandError::new(
                Exit::CommandLine,
                format!(
                    "where `{MESSAGES}` goes is not clear: `{CONFIG}` has {} sources with handlers",
                    used.len()
                ),
                Some(&match first {
                    Some(name) => format!("name one: `--source {name}`"),
                    None => crate::app::NO_HANDLERS_HINT.to_owned(),
                }),
            )),
        }
    }

    /// Makes a message what its source would deliver: a stream's broker has the id in a header.
    pub(super) fn as_sent(&self, source: &str, mut message: NewMessage) -> NewMessage {
        if let (Some(id), true) = (&message.id, self.streams.contains(source)) {
            message.headers.push(Header {
                name: "Nats-Msg-Id".into(),
                value: id.clone().into(),
            });
        }
        message
    }
}
