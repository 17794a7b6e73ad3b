//! What is sent: streams of messages for every run to read from its start, and the lines that fill a queue.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use async_nats::jetstream;
use serde_json::Value;

use super::database::{self, Run};
use super::messages::{Load, Messages};
use super::scenario::{Scenario, Work};
use super::{BATCH_COMPONENT, Bench, LOOPS, SOURCE, hapax};
use crate::process;

/// A stream that holds messages.
pub(super) struct Sent {
    pub(super) stream: String,
    pub(super) load: Load,
    pub(super) messages: Messages,
    /// The file of their lines, for `hapax send --envelope`.
    pub(super) lines: PathBuf,
}

impl Sent {
    /// Draws messages without sending them.
    pub(super) fn unsent(stream: &str, count: u32, load: Load, seed: u64) -> Self {
        Self {
            stream: stream.to_owned(),
            load,
            messages: Messages::draw(count, load, seed),
            lines: PathBuf::new(),
        }
    }

    /// Sees that the first `count` messages took effect once, and those of the numbers `again` twice.
    ///
    /// # Errors
    /// What is missing or wrong.
    pub(super) fn check(&self, run: &Run, count: usize, again: &[usize]) -> anyhow::Result<()> {
        if run.processed != count {
            bail!("{} messages were processed, not {count}", run.processed);
        }
        let difference = self.messages.first_difference(&run.balances, count, again);
        if let Some((account, found, expected)) = difference {
            bail!("the balance of account `{account}` is {found}, not {expected}");
        }
        Ok(())
    }
}

impl Bench<'_> {
    /// Draws messages and fills a stream with them.
    pub(super) fn send(&self, stream: &str, count: u32, load: Load) -> anyhow::Result<Sent> {
        let mut sent = Sent::unsent(stream, count, load, self.seed);
        process::say(format_args!(
            "sending {count} messages, keys {}, drawn with seed {} (hapax send)",
            load.keys, self.seed
        ));
        sent.lines = self.folder.join(format!("{stream}.jsonl"));
        let subject = format!("{SOURCE}.{stream}");
        fs::write(&sent.lines, sent.messages.lines(&subject))
            .with_context(|| format!("cannot write `{}`", sent.lines.display()))?;
        let source = hapax::source(self, SOURCE, stream, &subject);
        let config = self.for_sending(stream, &source)?;
        self.send_lines(&config, SOURCE, &sent.lines, sent.messages.count())?;
        Ok(sent)
    }

    /// Fills a stream with messages whose handler never ends.
    pub(super) fn send_loops(&self, count: u32) -> anyhow::Result<()> {
        let source = hapax::source(self, LOOPS, LOOPS, &format!("{LOOPS}.a"));
        let config = self.for_sending(LOOPS, &source)?;
        let lines = self.folder.join("loops.jsonl");
        let text: String = (0..count)
            .map(|number| {
                format!(
                    "{{\"id\":\"l{number}\",\"subject\":\"{LOOPS}.a\",\"payload\":{{\"steps\":[{{\"loop\":true}}]}}}}\n"
                )
            })
            .collect();
        fs::write(&lines, text).with_context(|| format!("cannot write `{}`", lines.display()))?;
        self.send_lines(&config, LOOPS, &lines, count as usize)
    }

    /// Writes a configuration with nothing but a source.
    fn for_sending(&self, stream: &str, source: &str) -> anyhow::Result<PathBuf> {
        let url = Value::from(self.databases.at("postgres").url());
        let file = self.folder.join(format!("send-{stream}.toml"));
        fs::write(&file, format!("[store]\nurl = {url}\n{source}"))
            .with_context(|| format!("cannot write `{}`", file.display()))?;
        Ok(file)
    }

    /// Has hapax send a file's lines to a source.
    pub(super) fn send_lines(
        &self,
        config: &Path,
        source: &str,
        lines: &Path,
        count: usize,
    ) -> anyhow::Result<()> {
        let answer = process::output(
            Command::new(&self.programs.hapax)
                .args(["send", source, "--envelope", "--json", "--config"])
                .arg(config)
                .arg("--lines")
                .arg(lines),
        )?;
        let answer: Value = serde_json::from_str(&answer)
            .with_context(|| format!("`hapax send --json` answered `{answer}`"))?;
        if answer["sent"] != count || answer["duplicates"].as_u64().unwrap_or_default() != 0 {
            bail!("`hapax send` should have sent {count} and dropped none; it says {answer}");
        }
        Ok(())
    }

    /// Has a stream forget how far a consumer got: all messages come again.
    pub(super) fn forget_durable(&self, stream: &str, durable: &str) -> anyhow::Result<()> {
        self.runtime
            .block_on(async {
                let client = async_nats::connect(self.broker).await?;
                let stream = jetstream::new(client).get_stream(stream).await?;
                stream.delete_consumer(durable).await?;
                Ok::<_, anyhow::Error>(())
            })
            .with_context(|| format!("cannot delete the consumer `{durable}`"))
    }

    /// Returns the folder of the migrations that make a table of accounts.
    pub(super) fn migrations(&self, table: &str, accounts: usize) -> anyhow::Result<PathBuf> {
        let folder = self.folder.join(format!("{table}-{accounts}"));
        fs::create_dir_all(&folder)
            .and_then(|()| {
                fs::write(
                    folder.join("0001_accounts.sql"),
                    database::accounts(table, accounts),
                )
            })
            .context("cannot write the handler's migration")?;
        Ok(folder)
    }

    /// Returns the component that does a scenario's work.
    pub(super) fn component(&self, scenario: &Scenario) -> PathBuf {
        match scenario.work {
            Work::Execute if scenario.setting.more_handlers == 0 => self
                .root
                .join("examples/credit-account/rust/credit-account.wasm"),
            Work::Execute | Work::ReadWrite => self.guest("accounts"),
            Work::Batch => self.root.join(BATCH_COMPONENT),
        }
    }

    /// Returns the component of a test guest.
    pub(super) fn guest(&self, name: &str) -> PathBuf {
        self.root.join(format!("host/tests/guests/{name}.wasm"))
    }

    /// Whether a handler's table may have `sql = "await"`: if not, nothing runs ahead of the database anyway.
    pub(super) fn asks_for_await(&self) -> anyhow::Result<bool> {
        let file = self.folder.join("await.toml");
        let component = self
            .root
            .join("examples/credit-account/rust/credit-account.wasm");
        let component = Value::from(component.to_string_lossy());
        let text = format!(
            "[store]\nurl = \"sqlite:await.db\"\n\n[sources.{SOURCE}]\nkind = \"queue\"\n\n\
             [handlers.await]\ncomponent = {component}\nsource = \"{SOURCE}\"\nsql = \"await\"\n"
        );
        fs::write(&file, text).with_context(|| format!("cannot write `{}`", file.display()))?;
        let checked = Command::new(&self.programs.hapax)
            .args(["check", "--config"])
            .arg(&file)
            .current_dir(self.folder)
            .output()
            .context("cannot run `hapax check`")?;
        let said = String::from_utf8_lossy(&checked.stderr);
        if !checked.status.success() && !said.contains("sql") {
            bail!("`hapax check` failed for another reason than `sql`:\n{said}");
        }
        Ok(checked.status.success())
    }
}
