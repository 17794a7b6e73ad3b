//! `cargo xtask demo`: real messages, sent three times and shuffled, through the real daemon; then a check of every row.
//!
//! **Invariant**: the expected tables are computed from the messages by [`expected`], which shares nothing with the handler, and
//! the tables that came out are read from the database itself, not asked from the daemon.

mod expected;
mod found;
mod payloads;
mod report;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::Signal;
use serde_json::Value;

use self::payloads::{IdPlace, Payload};
use self::report::Report;
use crate::process::{self, Daemon};
use crate::services::{nats, postgres};
use crate::wasm_target::WasmTarget;
use crate::{cargo, guests, interrupt};

/// How often every message is sent.
const TIMES: usize = 3;
/// The handler's name, which is also the identity of its claims.
const HANDLER: &str = "github-activity";
const SOURCE: &str = "github";
/// How long the daemons may take for all messages before the demo gives up.
const RUN_LIMIT: Duration = Duration::from_secs(600);
const STATUS_INTERVAL: Duration = Duration::from_millis(250);

/// What `cargo xtask demo` was asked for.
#[derive(Debug)]
pub(crate) struct Options {
    /// nats-server, PostgreSQL and two daemons instead of SQLite and one.
    pub(crate) full: bool,
    /// Decides the order of the deliveries.
    pub(crate) seed: Option<u64>,
    /// One JSON object instead of a table.
    pub(crate) json: bool,
}

/// Runs the demo. The exit code is 1 unless every row is as expected.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let seed = options.seed.unwrap_or_else(|| {
        // Half the digits are easier to copy, and more orders than anybody will see.
        rand::random::<u32>().into()
    });
    let example = root.join("examples").join(HANDLER);
    let payloads = payloads::read(&example.join("payloads/index.json.gz"))?;

    let wasm = WasmTarget::prepare()?;
    guests::build(root, &wasm)?;
    let hapax = cargo::build_host(root)?;

    let servers = if options.full {
        Some(Servers::start()?)
    } else {
        None
    };
    let folder = tempfile::Builder::new()
        .prefix("hapax-demo-")
        .tempdir()
        .context("cannot make a folder for the demo")?;
    let stage = Stage {
        hapax,
        config: folder.path().join("hapax.toml"),
        hosts: if options.full { 2 } else { 1 },
        store_url: match &servers {
            Some(servers) => servers.postgres.url(),
            None => format!("sqlite:{}", folder.path().join("hapax.db").display()),
        },
    };
    fs::write(
        &stage.config,
        configuration(&example, &stage.store_url, servers.as_ref()),
    )
    .with_context(|| format!("cannot write `{}`", stage.config.display()))?;

    // GitHub's header is nothing to the broker, so that it drops none of the repetitions: hapax alone has to notice them.
    let place = if options.full {
        IdPlace::Header
    } else {
        IdPlace::Envelope
    };
    let lines = folder.path().join("deliveries.jsonl");
    fs::write(
        &lines,
        payloads::shuffled_lines(&payloads, TIMES, seed, place),
    )
    .with_context(|| format!("cannot write `{}`", lines.display()))?;
    let deliveries = payloads.len() * TIMES;
    stage.send(&lines, deliveries, seed)?;
    stage.process(folder.path(), deliveries)?;

    process::say("comparing every row with what the messages themselves say");
    let report = Report {
        full: options.full,
        seed,
        hosts: stage.hosts,
        messages: payloads.len(),
        times: TIMES,
        status: report::Counts::read(&stage.status()?, HANDLER)?,
        found: found::read(&stage.store_url, HANDLER)?,
        expected: expected::tables(
            payloads
                .iter()
                .map(|payload: &Payload| (&*payload.event, &payload.body)),
        ),
        elapsed: begun.elapsed(),
    };
    // The servers' folders go with them; the one with the SQLite database stays, to be looked at.
    let kept = if options.full {
        None
    } else {
        Some(folder.keep())
    };
    let here = std::env::current_dir().unwrap_or_default();
    let hapax = stage.hapax.strip_prefix(&here).unwrap_or(&stage.hapax);
    report.print(options.json, hapax, kept.as_deref())?;
    Ok(if report.is_exact() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The servers of `demo --full`.
struct Servers {
    postgres: postgres::Server,
    nats: nats::Server,
}

impl Servers {
    fn start() -> anyhow::Result<Self> {
        // Both programs first: what is missing is said before anything runs.
        let binaries = postgres::binaries()?;
        let binary = nats::binary()?;
        Ok(Self {
            postgres: postgres::Server::start(&binaries)?,
            nats: nats::Server::start(&binary)?,
        })
    }
}

/// Returns the daemon's configuration.
fn configuration(example: &Path, store_url: &str, servers: Option<&Servers>) -> String {
    let source = match servers {
        None => "kind = \"queue\"\n".to_owned(),
        Some(servers) => format!(
            "kind = \"jetstream\"\nurl = {}\nstream = \"GITHUB\"\nsubjects = [\"github.>\"]\ncreate = true\n",
            quoted(servers.nats.url())
        ),
    };
    let identity = match servers {
        None => String::new(),
        Some(_) => format!(
            "start = \"all\"\nmessage_id = [\"header:{}\"]\n",
            payloads::ID_HEADER
        ),
    };
    format!(
        "[store]\nurl = {}\n\n[sources.{SOURCE}]\n{source}\n[handlers.{HANDLER}]\ncomponent = {}\nsource = \"{SOURCE}\"\n\
         {identity}migrations = {}\n",
        quoted(store_url),
        quoted(&example.join(format!("{HANDLER}.wasm")).to_string_lossy()),
        quoted(&example.join("migrations").to_string_lossy()),
    )
}

/// Returns `text` as a basic string of TOML, whose escapes include those of JSON.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The daemon's program with one configuration.
struct Stage {
    hapax: PathBuf,
    config: PathBuf,
    hosts: usize,
    store_url: String,
}

impl Stage {
    fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.hapax);
        command.arg(subcommand).arg("--config").arg(&self.config);
        command
    }

    /// Sends every line of `lines`, and makes sure that all arrived.
    fn send(&self, lines: &Path, deliveries: usize, seed: u64) -> anyhow::Result<()> {
        process::say(format_args!(
            "sending {deliveries} deliveries: every message {TIMES} times, shuffled with seed {seed} (hapax send)"
        ));
        let answer = process::output(
            self.command("send")
                .args([SOURCE, "--envelope", "--json", "--lines"])
                .arg(lines),
        )?;
        let answer: Value = serde_json::from_str(&answer)
            .with_context(|| format!("`hapax send --json` answered `{answer}`"))?;
        if answer["sent"] != deliveries || answer["duplicates"] != 0 {
            bail!("`hapax send` should have sent {deliveries} and dropped none; it says {answer}");
        }
        Ok(())
    }

    /// Runs the daemons until nothing is left to do.
    fn process(&self, folder: &Path, deliveries: usize) -> anyhow::Result<()> {
        process::say(match self.hosts {
            1 => "processing them (hapax run --until-idle)".to_owned(),
            hosts => {
                format!("processing them with {hosts} daemons at once (hapax run --until-idle)")
            }
        });
        let mut running = Vec::new();
        for number in 1..=self.hosts {
            running.push(Daemon::start(
                format!("daemon {number} (`hapax run`)"),
                self.command("run")
                    .arg("--until-idle")
                    .current_dir(folder)
                    .stdin(Stdio::null()),
                folder.join(format!("hapax-{number}.log")),
                Signal::TERM,
            )?);
        }
        let bar = ProgressBar::new(u64::try_from(deliveries).unwrap_or(u64::MAX)).with_style(
            ProgressStyle::with_template("    {bar:40} {pos}/{len} deliveries, {elapsed}")
                .expect("a constant"),
        );
        let begun = Instant::now();
        let mut asked = Instant::now();
        while !running.is_empty() {
            interrupt::check()?;
            let mut still = Vec::new();
            for mut daemon in running {
                match daemon.ended()? {
                    None => still.push(daemon),
                    Some(status) if status.success() => {}
                    Some(status) => return Err(daemon.failed(format_args!("failed: {status}"))),
                }
            }
            running = still;
            if begun.elapsed() > RUN_LIMIT
                && let Some(daemon) = running.first()
            {
                return Err(daemon.failed(format_args!("is not done after {RUN_LIMIT:?}")));
            }
            if !bar.is_hidden() && asked.elapsed() > STATUS_INTERVAL {
                // Before the daemon has made its tables there is no status: the bar stays where it is.
                if let Ok(counts) = self
                    .status()
                    .and_then(|all| report::Counts::read(&all, HANDLER))
                {
                    bar.set_position(counts.claimed + counts.duplicates);
                }
                asked = Instant::now();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn status(&self) -> anyhow::Result<Value> {
        let answer = process::output(self.command("status").arg("--json"))?;
        serde_json::from_str(&answer)
            .with_context(|| format!("`hapax status --json` answered `{answer}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted() {
        let text = configuration(Path::new("/a \"b\"\\c"), "sqlite:hapax.db", None);
        assert!(
            text.contains(r#"component = "/a \"b\"\\c/github-activity.wasm""#),
            "{text}"
        );
        assert!(text.contains("kind = \"queue\""), "{text}");
        assert!(!text.contains("message_id"), "{text}");
    }
}
