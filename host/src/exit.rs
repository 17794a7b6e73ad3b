//! How a command ends: exit codes, and errors with their remedy.

use std::fmt;

use crate::config::ConfigError;
use crate::handler::LoadError;
use crate::source::SourceError;
use crate::store::StoreError;

/// The exit codes of every command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Failed while running.
    Failed = 1,
    /// The command line is wrong.
    CommandLine = 2,
    /// The configuration, or a component or migration that it names, is wrong.
    Configuration = 3,
    /// The schema of the store is newer than this binary.
    SchemaNewer = 4,
    /// A bug in hapax.
    Bug = 70,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// With which code the process ends.
    pub exit: Exit,
    /// One or more `error:` lines, each with its `hint:` line.
    text: String,
}

impl CommandError {
    /// Makes an error of one sentence and its remedy.
    pub fn new(exit: Exit, problem: impl fmt::Display, hint: Option<&str>) -> Self {
        let mut text = format!("error: {problem}");
        if let Some(hint) = hint {
            text.push_str("\nhint: ");
            text.push_str(hint);
        }
        Self { exit, text }
    }

    /// Puts several errors together; the first one's code counts. `None` if there are none.
    pub fn all(errors: Vec<Self>) -> Option<Self> {
        let exit = errors.first()?.exit;
        let texts: Vec<String> = errors.into_iter().map(|error| error.text).collect();
        Some(Self {
            exit,
            text: texts.join("\n"),
        })
    }

    /// Returns what is wrong and what to do about it, for the fields of a log line.
    pub(crate) fn sentences(&self) -> (String, String) {
        let (mut problems, mut hints) = (Vec::new(), Vec::new());
        for line in self.text.lines() {
            match line.strip_prefix("hint: ") {
                Some(hint) => hints.push(hint),
                None => problems.push(line.strip_prefix("error: ").unwrap_or(line)),
            }
        }
        (problems.join("; "), hints.join("; "))
    }

    /// Adds what had happened before the error.
    #[must_use]
    pub fn after(mut self, happened: &str) -> Self {
        self.text.push_str("\nnote: ");
        self.text.push_str(happened);
        self
    }

    /// The store failed at `doing`.
    pub fn store(doing: &str, error: &StoreError) -> Self {
        match error {
            StoreError::SchemaNewer { .. } => Self::new(
                Exit::SchemaNewer,
                format!("{doing}: {error}"),
                Some("run the version of hapax that made it, or a newer one"),
            ),
            // The text has its own hint.
            StoreError::Unusable(_) => {
                Self::new(Exit::Configuration, format!("{doing}: {error}"), None)
            }
            // Why it is not available says that it is not.
            StoreError::Unavailable(why) => Self::new(
                Exit::Failed,
                format!("{doing}: {why}"),
                Some("check `store.url` in the configuration, and that the database runs"),
            ),
            StoreError::Busy(_) => Self::new(
                Exit::Failed,
                format!("{doing}: {error}"),
                Some("try again; if it stays like that, look for a transaction that does not end"),
            ),
            StoreError::Refused(_) => Self::new(Exit::Failed, format!("{doing}: {error}"), None),
        }
    }

    /// A source failed.
    pub fn source(name: &str, error: &SourceError) -> Self {
        match error {
            SourceError::Unavailable(why) => Self::new(
                Exit::Failed,
                format!("source `{name}` cannot be reached: {why}"),
                Some("check the source's `url` in the configuration, and that the server runs"),
            ),
            SourceError::Unusable(why) => {
                Self::new(Exit::Configuration, format!("source `{name}`: {why}"), None)
            }
        }
    }

    /// A component cannot serve as a handler.
    pub fn component(handler: &str, error: &LoadError) -> Self {
        Self::new(
            Exit::Configuration,
            format!("handler `{handler}`: {}", error.problem),
            Some(&error.hint),
        )
    }
}

impl From<ConfigError> for CommandError {
    fn from(error: ConfigError) -> Self {
        Self {
            exit: Exit::Configuration,
            text: error.to_string(),
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CommandError {}
