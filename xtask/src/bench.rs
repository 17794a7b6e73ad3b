//! `cargo xtask bench`: the same messages through hapax and through a consumer written by hand, side by side.
//!
//! **Invariant**: a rate counts only if every account ended with the sum that was computed from the messages.
//! **Invariant**: both sides read one stream and write to one server, in turns that alternate, so that neither has the quieter
//! machine; keys are drawn at random from a printed seed, since keys that never meet would hide deadlocks.

mod database;
mod figures;
mod messages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

use self::database::{Database, Run};
use self::figures::{Figures, Pair};
use self::messages::Messages;
use crate::services::{nats, postgres};
use crate::wasm_target::WasmTarget;
use crate::{cargo, guests, process};

/// The stream's name, its source's name, and the subject's first word.
const STREAM: &str = "BENCH";
const SOURCE: &str = "bench";
const HANDLER: &str = "credit";

/// What `cargo xtask bench` was asked for.
#[derive(Debug)]
pub(crate) struct Options {
    /// How many messages each run processes.
    pub(crate) messages: u32,
    /// How often each side runs.
    pub(crate) runs: u32,
    /// Decides accounts and amounts.
    pub(crate) seed: Option<u64>,
    /// One JSON object instead of a table.
    pub(crate) json: bool,
}

/// Runs the bench.
///
/// # Errors
/// Also if a sum is wrong.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let seed = options.seed.unwrap_or_else(|| rand::random::<u32>().into());
    guests::build(root, &WasmTarget::prepare()?)?;
    let programs = Programs::build(root)?;
    let postgres_binaries = postgres::binaries()?;
    let nats_binary = nats::binary()?;
    let postgres = postgres::Server::start(&postgres_binaries)?;
    let nats = nats::Server::start(&nats_binary)?;
    let folder = tempfile::Builder::new()
        .prefix("hapax-bench-")
        .tempdir()
        .context("cannot make a folder for the bench")?;

    let bench = Bench {
        programs,
        folder: folder.path(),
        component: root.join("examples/credit-account/credit-account.wasm"),
        database: Database::new(&postgres.url())?,
        broker: nats.url(),
        messages: Messages::draw(options.messages, seed),
    };
    fs::create_dir(bench.migrations())
        .and_then(|()| {
            fs::write(
                bench.migrations().join("0001_accounts.sql"),
                database::accounts(),
            )
        })
        .context("cannot write the handler's migration")?;
    bench.send(seed)?;

    let mut figures = Figures {
        seed,
        messages: options.messages,
        pairs: Vec::new(),
    };
    for number in 1..=options.runs {
        // Who goes second finds a warmer machine: that alternates too.
        let pair = if number % 2 == 1 {
            let hapax = bench.hapax(number)?;
            Pair {
                hapax,
                plain: bench.plain(number)?,
            }
        } else {
            let plain = bench.plain(number)?;
            Pair {
                hapax: bench.hapax(number)?,
                plain,
            }
        };
        eprintln!("    run {number}: {pair}");
        figures.pairs.push(pair);
    }
    figures.print(options.json)?;
    Ok(ExitCode::SUCCESS)
}

/// The programs of both sides, optimized.
struct Programs {
    hapax: PathBuf,
    plain: PathBuf,
}

impl Programs {
    fn build(root: &Path) -> anyhow::Result<Self> {
        process::say("building both sides with optimization (the first time takes many minutes)");
        let mut built = cargo::build(root, &["hapax", "plain-consumer"], &["--release"])?;
        let plain = built.pop().context("cargo built one program only")?;
        let hapax = built.pop().context("cargo built one program only")?;
        Ok(Self { hapax, plain })
    }
}

struct Bench<'a> {
    programs: Programs,
    folder: &'a Path,
    component: PathBuf,
    database: Database,
    broker: &'a str,
    messages: Messages,
}

impl Bench<'_> {
    fn migrations(&self) -> PathBuf {
        self.folder.join("migrations")
    }

    /// Fills the stream, which every run reads from its start.
    fn send(&self, seed: u64) -> anyhow::Result<()> {
        let count = self.messages.count();
        process::say(format_args!(
            "sending {count} messages for {} accounts, drawn with seed {seed} (hapax send)",
            messages::ACCOUNTS
        ));
        let lines = self.folder.join("messages.jsonl");
        fs::write(&lines, self.messages.lines())
            .with_context(|| format!("cannot write `{}`", lines.display()))?;
        // Only the source matters here.
        let config = self.configuration("send", &self.database.url_of("postgres"))?;
        let answer = process::output(
            Command::new(&self.programs.hapax)
                .args(["send", SOURCE, "--envelope", "--json", "--config"])
                .arg(config)
                .arg("--lines")
                .arg(lines),
        )?;
        let answer: Value = serde_json::from_str(&answer)
            .with_context(|| format!("`hapax send --json` answered `{answer}`"))?;
        if answer["sent"] != count || answer["duplicates"] != 0 {
            bail!("`hapax send` should have sent {count} and dropped none; it says {answer}");
        }
        Ok(())
    }

    /// Returns the messages a second that hapax processed.
    fn hapax(&self, number: u32) -> anyhow::Result<f64> {
        let name = format!("hapax_{number}");
        process::say(format_args!("run {number}: hapax"));
        let url = self.database.create(&name)?;
        let config = self.configuration(&name, &url)?;
        process::run_quietly(
            Command::new(&self.programs.hapax)
                .args(["run", "--until-idle", "--config"])
                .arg(config)
                .current_dir(self.folder)
                .stdin(Stdio::null()),
        )?;
        self.rate(&self.database.read(&name, "hapax.processed_messages")?)
    }

    /// Returns the messages a second that the consumer written by hand processed.
    fn plain(&self, number: u32) -> anyhow::Result<f64> {
        let name = format!("plain_{number}");
        process::say(format_args!("run {number}: the consumer written by hand"));
        let url = self.database.create(&name)?;
        self.database.run(&name, &database::accounts())?;
        self.database.run(&name, database::PROCESSED)?;
        process::run_quietly(
            Command::new(&self.programs.plain)
                .args([&url, self.broker, STREAM, &name])
                .arg(self.messages.count().to_string()),
        )?;
        self.rate(&self.database.read(&name, "processed_messages")?)
    }

    /// Returns the rate of a run whose sums are right.
    fn rate(&self, run: &Run) -> anyhow::Result<f64> {
        if run.processed != self.messages.count() {
            bail!(
                "{} messages were processed, not {}",
                run.processed,
                self.messages.count()
            );
        }
        if let Some((account, found, expected)) = self.messages.first_difference(&run.balances) {
            bail!("the balance of account `{account}` is {found}, not {expected}");
        }
        Ok(run.rate())
    }

    /// Writes hapax's configuration for one run: all that it does not say has its default.
    fn configuration(&self, name: &str, store_url: &str) -> anyhow::Result<PathBuf> {
        let quoted = |text: &str| Value::from(text).to_string();
        let text = format!(
            "[store]\nurl = {}\n\n\
             [sources.{SOURCE}]\nkind = \"jetstream\"\nurl = {}\nstream = \"{STREAM}\"\nsubjects = [\"{SOURCE}.>\"]\ncreate = true\n\n\
             [handlers.{HANDLER}]\ncomponent = {}\nsource = \"{SOURCE}\"\nconsumer = \"{name}\"\nstart = \"all\"\nmigrations = {}\n",
            quoted(store_url),
            quoted(self.broker),
            quoted(&self.component.to_string_lossy()),
            quoted(&self.migrations().to_string_lossy()),
        );
        let file = self.folder.join(format!("{name}.toml"));
        fs::write(&file, text).with_context(|| format!("cannot write `{}`", file.display()))?;
        Ok(file)
    }
}
