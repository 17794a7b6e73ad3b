//! Where published messages go, and how.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::checked::{SourceConfig, SourceKind};
use super::connections::check_access;
use super::handler::{Retry, check_retry};
use super::section::Section;
use crate::source::jetstream::Access;

/// How long published rows are kept.
const KEEP_DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);
/// Rows that are taken at once.
const BATCH_DEFAULT: u32 = 200;

/// How the relay works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxConfig {
    /// How long published rows are kept.
    pub keep: Duration,
    /// How often and when a row is tried again that its target did not store.
    pub retry: Retry,
    /// Rows that are taken at once; at least 1.
    pub batch: u32,
}

/// Where published messages go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetConfig {
    /// The table's name in the file.
    pub name: String,
    /// What it is.
    pub kind: TargetKind,
}

/// What a target is.
#[derive(Clone, PartialEq, Eq)]
pub enum TargetKind {
    /// A queue of the store, which another handler reads.
    Queue {
        /// Its source's name.
        queue: String,
    },
    /// Subjects of NATS JetStream; some stream must take them.
    JetStream {
        /// `nats://host:port`; may hold credentials.
        url: String,
        /// Who asks, and which certificates count.
        access: Box<Access>,
    },
}

impl TargetKind {
    /// Returns the word of the configuration.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Queue { .. } => "queue",
            Self::JetStream { .. } => "jetstream",
        }
    }
}

impl std::fmt::Debug for TargetKind {
    /// Leaves the URL out: it may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Queue { queue } => f.debug_struct("Queue").field("queue", queue).finish(),
            Self::JetStream { .. } => f.debug_struct("JetStream").finish_non_exhaustive(),
        }
    }
}

pub(super) fn check_outbox(section: Option<Section<'_>>) -> OutboxConfig {
    let mut outbox = OutboxConfig {
        keep: KEEP_DEFAULT,
        retry: Retry::DEFAULT,
        batch: BATCH_DEFAULT,
    };
    if let Some(section) = section {
        outbox.keep = section.duration("keep", KEEP_DEFAULT, Duration::ZERO);
        outbox.retry = check_retry(&section);
        if let Some(batch) = section.integer("batch", 1..=10_000) {
            outbox.batch = u32::try_from(batch).unwrap_or(BATCH_DEFAULT);
        }
        section.finish();
    }
    outbox
}

pub(super) fn check_target(
    folder: &Path,
    name: &str,
    section: Section<'_>,
    sources: &BTreeMap<String, SourceConfig>,
) -> Option<TargetConfig> {
    let kind =
        section.required_text("kind", "write `kind = \"jetstream\"` or `kind = \"queue\"`")?;
    let kind = match kind {
        "queue" => {
            let queue = section.required_text(
                "queue",
                "name a source of kind `queue`: `queue = \"shipments\"`",
            );
            queue.and_then(|queue| match sources.get(queue).map(|source| &source.kind) {
                Some(SourceKind::Queue) => Some(TargetKind::Queue {
                    queue: queue.to_owned(),
                }),
                Some(SourceKind::JetStream(_)) => {
                    section.problem(
                        "queue",
                        format!("the source `{queue}` is a stream"),
                        "name a source of kind `queue`, or write `kind = \"jetstream\"` with its `url`".to_owned(),
                    );
                    None
                }
                None => {
                    section.problem(
                        "queue",
                        format!("there is no source `{queue}`"),
                        format!("write a table `[sources.{queue}]` with `kind = \"queue\"`"),
                    );
                    None
                }
            })
        }
        "jetstream" => {
            let url = section.required_text("url", "write `url = \"nats://127.0.0.1:4222\"`");
            let access = Box::new(check_access(folder, &section, url));
            url.and_then(|url| {
                if url.starts_with("nats://") || url.starts_with("tls://") {
                    return Some(TargetKind::JetStream {
                        url: url.to_owned(),
                        access,
                    });
                }
                section.problem(
                    "url",
                    "does not start with `nats://` or `tls://`",
                    "write `url = \"nats://127.0.0.1:4222\"`".to_owned(),
                );
                None
            })
        }
        other => {
            section.problem(
                "kind",
                format!("`{other}` is not a kind of target"),
                "the kinds are `jetstream` and `queue`".to_owned(),
            );
            // Which keys belong to it is not known either.
            return None;
        }
    };
    section.finish();
    Some(TargetConfig {
        name: name.to_owned(),
        kind: kind?,
    })
}
