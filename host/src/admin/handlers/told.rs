//! What is answered about handlers. The command line reads it, too.

use serde::{Deserialize, Serialize};

use crate::handler::Producer;

/// Answer to `GET /api/handlers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlersList {
    /// The process that answers.
    pub host: String,
    /// In the order of their names.
    pub handlers: Vec<ListedHandler>,
}

/// A handler, as every host has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedHandler {
    /// As the configuration names it.
    pub name: String,
    /// The claims' key.
    pub consumer: String,
    /// Who decides which component it is: `file` or `store`.
    pub owner: String,
    /// The component's file, if a file owns it.
    pub file: Option<String>,
    /// The active deployment's number.
    pub deployment: Option<u64>,
    /// The active deployment's component.
    pub digest: Option<String>,
    /// True: it is to stand still on every host.
    pub paused: bool,
    /// Rises with each change of the three before.
    pub generation: u64,
    /// Every host that told of it lately.
    pub hosts: Vec<ListedHost>,
}

/// What one host made of a handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedHost {
    /// The process: machine, number, random digits.
    pub host: String,
    /// `running`, `paused`, `waiting` or `failed`.
    pub state: String,
    /// Of the component that it runs.
    pub digest: Option<String>,
    /// Which generation it has taken over, or failed at.
    pub generation: u64,
    /// Why it goes on as before.
    pub error: Option<String>,
    /// How long ago it said so, in milliseconds.
    pub seen_ms: u64,
}

/// Answer to `GET /api/handlers/NAME/history`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerHistory {
    /// As the configuration names it.
    pub handler: String,
    /// The newest first.
    pub deployments: Vec<HistoryLine>,
}

/// One deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryLine {
    /// From 1.
    pub number: u64,
    /// Of the component.
    pub digest: String,
    /// Of the component.
    pub bytes: u64,
    /// The version of `hapax:handler` that the component was built for.
    pub contract: String,
    /// The tools that made the component.
    pub producers: Vec<Producer>,
    /// By the database's clock, as RFC 3339 text.
    pub deployed_at: Option<String>,
    /// Who asked for it, in its own words.
    pub deployed_by: String,
    /// The files that were applied for it.
    pub migrations: Vec<String>,
    /// The deployment that it went back to.
    pub back_to: Option<u64>,
    /// True of one at most.
    pub active: bool,
}

/// Answer to every change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// As the configuration names it.
    pub handler: String,
    /// False if it was so already.
    pub changed: bool,
    /// Of the handler's state now: hosts that have taken this one over have the change.
    pub generation: u64,
    /// The active deployment's number now.
    pub deployment: Option<u64>,
    /// The active deployment's component now.
    pub digest: Option<String>,
    /// True: it is to stand still on every host.
    pub paused: bool,
    /// The files that were applied.
    pub migrations: Vec<String>,
}
