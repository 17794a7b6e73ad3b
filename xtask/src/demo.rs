//! `cargo xtask demo`: builds the daemon and has it show itself. With `--full` the same messages go through real servers and two
//! daemons at once, and every row is checked.
//!
//! **Invariant**: the expected tables are computed from the messages by [`expected`], which shares nothing with the handler, and
//! the tables that came out are read from the database itself, not asked from the daemon.

mod found;
mod report;

// The daemon's own demo has these files, and xtask cannot use the daemon as a library: it would be built before xtask itself.
#[path = "../../host/src/app/demo/expected.rs"]
mod expected;
#[path = "../../host/src/app/demo/payloads.rs"]
mod payloads;
#[path = "../../host/src/app/demo/tables.rs"]
mod tables;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::Signal;
use serde_json::Value;

use self::payloads::Payload;
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
/// The header in which GitHub sends an id. It is nothing to the broker, so that it drops none of the repetitions: hapax alone has to
/// notice them.
const ID_HEADER: &str = "X-GitHub-Delivery";
/// How many daemons run at once.
const HOSTS: usize = 2;
/// How long the daemons may take for all messages before the demo gives up.
const RUN_LIMIT: Duration = Duration::from_secs(600);
const STATUS_INTERVAL: Duration = Duration::from_millis(250);

/// What `cargo xtask demo` was asked for.
#[derive(Debug)]
pub(crate) struct Options {
    /// nats-server, PostgreSQL and two daemons instead of the daemon's own demo.
    pub(crate) full: bool,
    /// Decides the order of the deliveries.
    pub(crate) seed: Option<u64>,
    /// One JSON object instead of a table.
    pub(crate) json: bool,
}

/// Runs the demo. The exit code is 1 unless every row is as expected.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    if options.full {
        full(root, options)
    } else {
        own(root, options)
    }
}

/// Runs the daemon's own demo, which needs nothing but its program: no Wasm target and no server.
fn own(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let hapax = cargo::build_host(root)?;
    process::say("running its demo (hapax demo)");
    let mut demo = Command::new(hapax);
    demo.arg("demo").stdin(Stdio::null());
    if let Some(seed) = options.seed {
        demo.arg("--seed").arg(seed.to_string());
    }
    if options.json {
        demo.arg("--json");
    }
    let status = process::status(&mut demo)?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn full(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let seed = options.seed.unwrap_or_else(|| {
        // Half the digits are easier to copy, and more orders than anybody will see.
        rand::random::<u32>().into()
    });
    let example = root.join("examples").join(HANDLER);
    let file = example.join("payloads/index.json.gz");
    let payloads = fs::read(&file)
        .map_err(anyhow::Error::from)
        .and_then(|bytes| payloads::read(&bytes))
        .with_context(|| format!("cannot read `{}`", file.display()))?;

    let wasm = WasmTarget::prepare()?;
    guests::build(root, &wasm)?;
    let hapax = cargo::build_host(root)?;

    let servers = Servers::start()?;
    let folder = tempfile::Builder::new()
        .prefix("hapax-demo-")
        .tempdir()
        .context("cannot make a folder for the demo")?;
    let stage = Stage {
        hapax,
        config: folder.path().join("hapax.toml"),
        store_url: servers.postgres.url(),
    };
    fs::write(
        &stage.config,
        configuration(&example, &stage.store_url, servers.nats.url()),
    )
    .with_context(|| format!("cannot write `{}`", stage.config.display()))?;

    let lines = folder.path().join("deliveries.jsonl");
    fs::write(&lines, shuffled_lines(&payloads, seed))
        .with_context(|| format!("cannot write `{}`", lines.display()))?;
    let deliveries = payloads.len() * TIMES;
    stage.send(&lines, deliveries, seed)?;
    stage.process(folder.path(), deliveries)?;

    process::say("comparing every row with what the messages themselves say");
    let report = Report {
        seed,
        hosts: HOSTS,
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
    report.print(options.json)?;
    Ok(if report.is_exact() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns every payload as often as it is sent, as lines for `hapax send --envelope`, in the order that `seed` gives.
fn shuffled_lines(payloads: &[Payload], seed: u64) -> String {
    let mut lines = String::new();
    for index in payloads::shuffled(payloads.len(), TIMES, seed) {
        let mut line = payloads[index].envelope();
        line["headers"][ID_HEADER] = line["id"].take();
        lines.push_str(&line.to_string());
        lines.push('\n');
    }
    lines
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
fn configuration(example: &Path, store_url: &str, nats_url: &str) -> String {
    format!(
        "[store]\nurl = {}\n\n\
         [sources.{SOURCE}]\nkind = \"jetstream\"\nurl = {}\nstream = \"GITHUB\"\nsubjects = [\"github.>\"]\ncreate = true\n\n\
         [handlers.{HANDLER}]\ncomponent = {}\nsource = \"{SOURCE}\"\nstart = \"all\"\nmessage_id = [\"header:{ID_HEADER}\"]\n\
         migrations = {}\n",
        quoted(store_url),
        quoted(nats_url),
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
        process::say(format_args!(
            "processing them with {HOSTS} daemons at once (hapax run --until-idle)"
        ));
        let mut running = Vec::new();
        for number in 1..=HOSTS {
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
        let text = configuration(Path::new("/a \"b\"\\c"), "postgres://h/d", "nats://h:1");
        assert!(
            text.contains(r#"component = "/a \"b\"\\c/github-activity.wasm""#),
            "{text}"
        );
    }

    #[test]
    fn the_id_is_only_where_the_broker_does_not_look() {
        let payloads = [Payload {
            id: "ping:0".to_owned(),
            event: "ping".to_owned(),
            body: Value::Null,
        }];
        let lines = shuffled_lines(&payloads, 1);
        assert_eq!(lines.lines().count(), TIMES);
        for line in lines.lines() {
            let message: Value = serde_json::from_str(line).unwrap();
            assert_eq!(message["id"], Value::Null);
            assert_eq!(message["headers"][ID_HEADER], "ping:0");
            assert_eq!(message["headers"]["X-GitHub-Event"], "ping");
        }
    }
}
