//! The hosts of the demo: `hapax run` in processes of their own, two of which are killed on the way.

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use super::{DemoProgress, Kill};
use crate::app::SettledBatch;
use crate::config::Config;
use crate::exit::{CommandError, Exit};

/// How long one host may take before the demo gives up on it.
const LIMIT: Duration = Duration::from_secs(120);
/// The log of all hosts, in the demo's folder.
const LOG: &str = "hosts.log";
/// Where a host writes at which point it is about to die.
const DIED_AT: &str = "died-at";
/// How much of the log is shown when a host fails.
const SHOWN_LINES: usize = 25;

/// What the hosts have told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hosts {
    /// Messages that took effect.
    pub(super) claimed: u64,
    /// Deliveries of messages that had taken effect before.
    pub(super) duplicates: u64,
    /// In their order.
    pub(super) killed: Vec<Kill>,
}

/// A place at which a host is to die.
struct Fault {
    point: &'static str,
    meaning: &'static str,
    /// When it comes there for the n-th time.
    pass: usize,
}

/// Runs one host after the other, each on what the one before it left, until nothing is left.
///
/// The first dies half through the `messages`, in an open transaction; the second after another third of the `deliveries`,
/// between its commit and its acknowledgements.
pub(super) async fn run(
    config: &Config,
    messages: usize,
    deliveries: usize,
    mut progress: impl FnMut(DemoProgress),
) -> Result<Hosts, CommandError> {
    let faults = [
        Fault {
            point: "after-handler",
            meaning: "the SQL of its open transaction was rolled back",
            pass: messages / 2,
        },
        Fault {
            point: "before-ack",
            meaning: "what it had in hand was committed, not acknowledged",
            pass: deliveries / 3,
        },
    ];
    progress(DemoProgress::Begun {
        deliveries: deliveries as u64,
    });
    let mut hosts = Hosts::default();
    for fault in faults {
        let host = one(config, Some(&fault), &mut hosts, &mut progress);
        let status = within_the_limit(config, host).await?;
        let died_at = std::fs::read_to_string(folder(config).join(DIED_AT)).unwrap_or_default();
        if status.signal() != Some(rustix::process::Signal::KILL.as_raw()) || died_at != fault.point
        {
            let what = format!(
                "should have been killed at `{}`, and ended: {status}",
                fault.point
            );
            return Err(failed(config, &what));
        }
        let kill = Kill {
            point: fault.point,
            meaning: fault.meaning,
            settled: hosts.claimed + hosts.duplicates,
        };
        hosts.killed.push(kill.clone());
        progress(DemoProgress::Killed(kill));
    }
    let host = one(config, None, &mut hosts, &mut progress);
    let status = within_the_limit(config, host).await?;
    if !status.success() {
        return Err(failed(config, &format!("failed: {status}")));
    }
    Ok(hosts)
}

/// Runs a host to its end, and adds what it tells.
async fn one(
    config: &Config,
    fault: Option<&Fault>,
    hosts: &mut Hosts,
    progress: &mut impl FnMut(DemoProgress),
) -> Result<ExitStatus, CommandError> {
    let cannot = |error: std::io::Error| {
        CommandError::new(Exit::Failed, format!("cannot run a host: {error}"), None)
    };
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder(config).join(LOG))
        .map_err(cannot)?;
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HAPAX_") {
            command.env_remove(name);
        }
    }
    if let Some(fault) = fault {
        command
            .env(
                "HAPAX_FAULT_POINT",
                format!("{}:{}", fault.point, fault.pass),
            )
            .env("HAPAX_FAULT_FILE", folder(config).join(DIED_AT));
    }
    let mut child = command
        .args(["run", "--until-idle", "--report-batches", "--config"])
        .arg(&config.file)
        .current_dir(folder(config))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .map_err(cannot)?;
    if let Some(told) = child.stdout.take() {
        let mut lines = BufReader::new(told).lines();
        while let Some(line) = lines.next_line().await.map_err(cannot)? {
            let batch: SettledBatch = serde_json::from_str(&line)
                .map_err(|error| super::bug(&format!("a host wrote `{line}`: {error}")))?;
            hosts.claimed += batch.claimed;
            hosts.duplicates += batch.duplicates;
            progress(DemoProgress::Settled {
                took_effect: hosts.claimed,
                skipped: hosts.duplicates,
            });
        }
    }
    child.wait().await.map_err(cannot)
}

/// Waits for a host; one that takes too long is dropped, and with that killed.
async fn within_the_limit(
    config: &Config,
    host: impl Future<Output = Result<ExitStatus, CommandError>>,
) -> Result<ExitStatus, CommandError> {
    match tokio::time::timeout(LIMIT, host).await {
        Ok(ended) => ended,
        Err(_) => Err(failed(config, &format!("is not done after {LIMIT:?}"))),
    }
}

fn failed(config: &Config, what: &str) -> CommandError {
    let log = std::fs::read(folder(config).join(LOG)).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.trim_end().lines().collect();
    let shown = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n    ");
    CommandError::new(
        Exit::Failed,
        format!("a host of the demo (`hapax run`) {what}\n    {shown}"),
        None,
    )
}

/// The demo's folder.
fn folder(config: &Config) -> &Path {
    config.file.parent().unwrap_or(Path::new("."))
}
