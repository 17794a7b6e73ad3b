//! `hapax demo`: real messages, each delivered three times and shuffled, through hosts that are killed on the way; then a check of
//! every row, and the same deliveries through a consumer without claims.
//!
//! All that it needs is in the binary. The component is made by `cargo xtask guests --embed`, which writes beside it of what.
//!
//! **Invariant**: every count comes from the run: a host tells of each batch that it has settled, and the tables are read from the
//! database. What they must hold is computed from the messages by [`expected`], which shares nothing with the handler.

mod expected;
mod found;
mod hosts;
mod payloads;
mod plain;
mod report;
mod tables;

use std::path::{Path, PathBuf};
use std::time::Instant;

use tempfile::TempDir;

pub use report::DemoReport;

use super::{Envelope, NewMessage, Next, open_store, send};
use crate::config::Config;
use crate::exit::{CommandError, Exit};
use crate::message::ShortHash;
use crate::store::Store;

const PAYLOADS: &[u8] =
    include_bytes!("../../../../examples/github-activity/payloads/index.json.gz");
const COMPONENT: &[u8] = include_bytes!("github-activity.wasm");
const MIGRATION: &str =
    include_str!("../../../../examples/github-activity/migrations/sqlite/0001_activity.sql");
const CONFIG: &str = "\
# Written by `hapax demo`.
[store]
url = \"sqlite:hapax.db\"

[sources.github]
kind = \"queue\"

[handlers.github-activity]
component = \"github-activity.wasm\"
source = \"github\"
migrations = \"migrations\"
";

const HANDLER: &str = "github-activity";
const SOURCE: &str = "github";
/// How often every message is delivered.
const TIMES: usize = 3;

/// How the demo runs.
#[derive(Clone, Debug, Default)]
pub struct DemoOptions {
    /// Decides the order of the deliveries; drawn at random if absent.
    pub seed: Option<u64>,
    /// The folder for the databases, empty or not there yet; a temporary one if absent.
    pub folder: Option<PathBuf>,
}

/// How far the demo is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DemoProgress {
    /// The hosts begin.
    Begun {
        /// As many will be settled.
        deliveries: u64,
    },
    /// A batch was settled.
    Settled {
        /// Messages that took effect so far.
        took_effect: u64,
        /// Deliveries that were skipped so far.
        skipped: u64,
    },
    /// A host was killed, and the next one starts.
    Killed(Kill),
}

/// How a host was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The fault point.
    pub point: &'static str,
    /// What that means for the message that it had in hand.
    pub meaning: &'static str,
    /// Deliveries that were settled by then, by it and by those before it.
    pub settled: u64,
}

/// Runs the demo in this process and in hosts that it starts from this program's file.
///
/// *Cancellation*: dropped before it has ended, the host is killed, and a temporary folder is removed.
///
/// # Errors
/// What kept it from coming to a result. A result that is not exact is none.
pub async fn demo(
    options: &DemoOptions,
    progress: impl FnMut(DemoProgress),
) -> Result<DemoReport, CommandError> {
    let begun = Instant::now();
    // Half the digits are easier to copy, and more orders than anybody will see.
    let seed = options.seed.unwrap_or_else(|| rand::random::<u32>().into());
    let payloads = payloads::read(PAYLOADS)
        .map_err(|error| bug(&format!("the payloads in this program: {error:#}")))?;
    let order = payloads::shuffled(payloads.len(), TIMES, seed);

    let folder = Folder::make(options.folder.as_deref())?;
    let lines: Vec<String> = payloads
        .iter()
        .map(|payload| payload.envelope().to_string())
        .collect();
    folder.write("messages.jsonl", (lines.join("\n") + "\n").as_bytes())?;
    folder.write("github-activity.wasm", COMPONENT)?;
    folder.write("migrations/0001_activity.sql", MIGRATION.as_bytes())?;
    folder.write("hapax.toml", CONFIG.as_bytes())?;
    // No variable of the caller's: the demo is the same everywhere.
    let config = Config::load(&folder.path().join("hapax.toml"), std::iter::empty())?;
    let messages = lines
        .iter()
        .map(|line| serde_json::from_str::<Envelope<'_>>(line).map(NewMessage::from))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| bug(&format!("a message of its own: {error}")))?;
    let deliveries = || order.iter().map(|index| &messages[*index]);

    let sent = send(
        &config,
        SOURCE,
        deliveries().map(|message| Next::Message(Ok(message.clone()))),
        |_| {},
    )
    .await?;
    let plain_url = format!("sqlite:{}", folder.path().join("plain.db").display());
    let plain_store =
        Store::open(&plain_url).map_err(|error| CommandError::store(&plain_url, &error))?;
    // Both at once: each waits for its own file most of the time.
    let (hosts, plain) = tokio::try_join!(
        Box::pin(hosts::run(&config, payloads.len(), order.len(), progress)),
        Box::pin(plain::run(&config, &plain_store, deliveries())),
    )?;

    let status = super::status(&config).await?;
    let ids: Vec<&[u8]> = order
        .iter()
        .map(|index| payloads[*index].id.as_bytes())
        .collect();
    let expected = expected::tables(
        payloads
            .iter()
            .map(|payload| (&*payload.event, &payload.body)),
    );
    Ok(DemoReport {
        seed,
        order: ShortHash::of(&ids).to_hex(),
        messages: payloads.len() as u64,
        times: TIMES as u64,
        sent: sent.sent,
        dead: status.handlers.iter().map(|handler| handler.dead).sum(),
        backlog: status
            .handlers
            .iter()
            .filter_map(|handler| handler.backlog)
            .sum(),
        found: found::read(open_store(&config)?.as_ref()).await?,
        hosts,
        plain: report::Plain {
            took_effect: plain,
            found: found::read(&plain_store).await?,
        },
        expected,
        elapsed: begun.elapsed(),
        folder: folder.keep(),
    })
}

fn bug(what: &str) -> CommandError {
    CommandError::new(Exit::Bug, what, None)
}

/// Where the demo's files lie.
enum Folder {
    /// Removed when dropped.
    Temporary(TempDir),
    /// The caller's, never removed.
    Named(PathBuf),
}

impl Folder {
    fn make(named: Option<&Path>) -> Result<Self, CommandError> {
        let Some(folder) = named else {
            let made = tempfile::Builder::new().prefix("hapax-demo-").tempdir();
            return made.map(Self::Temporary).map_err(|error| {
                CommandError::new(
                    Exit::Failed,
                    format!(
                        "cannot make a folder in `{}`: {error}",
                        std::env::temp_dir().display()
                    ),
                    Some("name a folder with `--keep DIR`"),
                )
            });
        };
        let unusable = |why: String, hint| {
            CommandError::new(
                Exit::CommandLine,
                format!("`--keep {}`: {why}", folder.display()),
                Some(hint),
            )
        };
        let entries = std::fs::create_dir_all(folder).and_then(|()| std::fs::read_dir(folder));
        match entries.map(|mut entries| entries.next().is_some()) {
            Ok(false) => {}
            Ok(true) => {
                return Err(unusable(
                    "the folder is not empty".to_owned(),
                    "name one that is empty or does not exist yet",
                ));
            }
            Err(error) => {
                return Err(unusable(
                    error.to_string(),
                    "name a folder that can be written to",
                ));
            }
        }
        // Absolute, since the hosts run in it.
        std::path::absolute(folder)
            .map(Self::Named)
            .map_err(|error| unusable(error.to_string(), "name it by its full path"))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Temporary(folder) => folder.path(),
            Self::Named(folder) => folder,
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), CommandError> {
        let file = self.path().join(name);
        file.parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&file, bytes))
            .map_err(|error| {
                CommandError::new(
                    Exit::Failed,
                    format!("cannot write `{}`: {error}", file.display()),
                    Some("name a folder with `--keep DIR` that can be written to and has 50 MB of room"),
                )
            })
    }

    fn keep(self) -> PathBuf {
        match self {
            Self::Temporary(folder) => folder.keep(),
            Self::Named(folder) => folder,
        }
    }
}
