//! What can be changed about running handlers, what became of it, and why something goes on as before.

use std::time::SystemTime;

use bytes::Bytes;

use crate::app::prepare::NotPrepared;
use crate::exit::CommandError;
use crate::message::ComponentDigest;
use crate::source::SourceError;

/// A component to run, whole.
#[derive(Clone, Debug)]
pub struct ComponentBytes {
    /// The file's content.
    pub bytes: Bytes,
    /// Where it is from, for messages: the file's path, say.
    pub origin: String,
}

/// Which code ran, and which runs from the next batch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swapped {
    /// Batches that have begun end with it.
    pub from: ComponentDigest,
    /// Equal to `from` if nothing had to be done.
    pub to: ComponentDigest,
}

/// Why a handler goes on as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// No handler of this name runs here.
    #[error("there is no handler `{0}`")]
    NoHandler(String),
    /// The host ends.
    #[error("the host drains: nothing is changed any more")]
    Draining,
    /// It can't be, until something about it changes.
    #[error("{problem}")]
    Refused {
        /// What is wrong.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// What it takes is away: the same may work later.
    #[error("{problem}")]
    Away {
        /// What is wrong.
        problem: String,
        /// What to do.
        hint: String,
    },
}

impl ChangeError {
    /// Returns what to do about it; empty if there is nothing.
    pub fn hint(&self) -> &str {
        match self {
            Self::Refused { hint, .. } | Self::Away { hint, .. } => hint,
            Self::NoHandler(_) | Self::Draining => "",
        }
    }

    /// True if the same may work later, with nothing changed about it.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Away { .. })
    }

    pub(super) fn source(name: &str, error: &SourceError) -> Self {
        let (problem, hint) = CommandError::source(name, error).sentences();
        match error {
            SourceError::Unavailable(_) => Self::Away { problem, hint },
            SourceError::Unusable(_) => Self::Refused { problem, hint },
        }
    }
}

impl From<CommandError> for ChangeError {
    fn from(error: CommandError) -> Self {
        let (problem, hint) = error.sentences();
        Self::Refused { problem, hint }
    }
}

impl From<NotPrepared> for ChangeError {
    fn from(error: NotPrepared) -> Self {
        match error {
            NotPrepared::Refused(error) => error.into(),
            NotPrepared::Away(why) => Self::Away {
                problem: format!("the database cannot be asked: {why}"),
                hint: "it is tried again; check that the database runs".into(),
            },
        }
    }
}

/// What a new configuration meant for one handler, or for the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A handler that is new.
    Started {
        /// Its name.
        handler: String,
        /// What it runs; absent if it waits for a deployment.
        digest: Option<ComponentDigest>,
    },
    /// A handler that is gone from the configuration.
    Stopped {
        /// Its name.
        handler: String,
    },
    /// A handler whose table changed.
    Restarted {
        /// Its name.
        handler: String,
        /// What it runs; absent if it waits for a deployment.
        digest: Option<ComponentDigest>,
    },
    /// A handler that goes on as it was, or is new and does not run.
    Kept {
        /// Its name.
        handler: String,
        /// Why.
        why: ChangeError,
    },
    /// What only a restart of the process changes.
    NeedsRestart {
        /// The key in the configuration.
        key: String,
    },
}

impl Change {
    /// Writes it to the log.
    pub(super) fn tell(&self) {
        match self {
            Self::Started { handler, digest } => {
                tracing::info!(%handler, component = %shown(*digest), "started");
            }
            Self::Stopped { handler } => tracing::info!(%handler, "stopped"),
            Self::Restarted { handler, digest } => {
                tracing::info!(%handler, component = %shown(*digest), "restarted with its new table");
            }
            Self::Kept { handler, why } => tracing::error!(
                %handler,
                reason = %why,
                hint = why.hint(),
                "the new table is not in force"
            ),
            Self::NeedsRestart { key } => tracing::warn!(
                key,
                hint = "restart the host",
                "changed in the configuration, which takes a restart"
            ),
        }
    }
}

fn shown(digest: Option<ComponentDigest>) -> String {
    digest.map_or_else(|| "none".to_owned(), |digest| digest.to_string())
}

/// What a handler does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It consumes.
    Running,
    /// It was told to consume nothing.
    Paused,
    /// The store is to hold its component, and none is deployed.
    Waiting,
    /// It consumes nothing, for this reason.
    Failed(String),
}

/// One handler, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerState {
    /// Its name.
    pub name: String,
    /// The claims' key.
    pub consumer: String,
    /// What it runs; absent if it never ran.
    pub digest: Option<ComponentDigest>,
    /// What it does.
    pub phase: Phase,
    /// Since when it does that, with that component.
    pub since: SystemTime,
    /// Why the last change to it was not made; absent if it was.
    pub last_error: Option<String>,
}
