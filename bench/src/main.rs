//! What `cargo xtask bench` measures hapax against: consumers as a careful engineer writes them by hand.
//!
//! With `--batch 1` each message goes through a transaction of its own, `--at-once` of them at a time, each on a connection that it
//! need not wait for. With more, messages are committed in groups: one transaction claims all ids, then runs each message's
//! statements, behind a lock that keeps two groups from waiting for each other's rows. Acknowledged is after the commit.
//!
//! **Invariant**: nothing here is slower than it has to be for what it promises, and nothing here comes from hapax.

mod c_api;
mod jetstream;
mod latency;
mod postgres;
mod sqlite;
mod statements;

use std::io::Write as _;

use anyhow::{Context as _, bail};
use clap::Parser;
use serde_json::json;

/// Process messages as one would without hapax
#[derive(Parser)]
struct Arguments {
    /// The database: `postgres://..` or `sqlite:FILE`
    #[arg(long)]
    database: String,
    /// The server of the stream. Without one, the messages stand in the database's table `queue`
    #[arg(long, requires = "stream")]
    broker: Option<String>,
    #[arg(long)]
    stream: Option<String>,
    #[arg(long, default_value = "plain")]
    durable: String,
    /// How many messages to process
    #[arg(long)]
    messages: u64,
    /// Connections in work at the same time
    #[arg(long, default_value_t = 32)]
    at_once: usize,
    /// Messages in one transaction, at the most
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// What is done for a message
    #[arg(long, value_enum, default_value_t = Work::Execute)]
    work: Work,
    /// A loop over SQLite's C API, without messages: as many accounts as the database has, drawn from this number
    #[arg(long, value_name = "SEED")]
    c_api: Option<u64>,
}

/// What is done for a message, after its id was claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Work {
    /// One statement.
    Execute,
    /// A query, a decision, two statements.
    ReadWrite,
    /// One statement for all messages of a group.
    Set,
}

/// A message's payload.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Credit {
    pub(crate) account: String,
    pub(crate) amount: i64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.c_api {
        let file = sqlite::file(&arguments.database)?;
        let rate = c_api::run(
            file,
            arguments.messages,
            arguments.batch,
            arguments.work,
            seed,
        )?;
        return print(&json!({ "msgs_per_s": rate }));
    }
    if arguments.batch == 0 || arguments.at_once == 0 {
        bail!("`--batch` and `--at-once` begin at 1");
    }
    if arguments.work == Work::Set && arguments.batch == 1 {
        bail!("`--work set` needs a `--batch` of more than 1");
    }
    let latencies = if arguments.database.starts_with("sqlite:") {
        sqlite::run(&arguments).await?
    } else {
        postgres::run(&arguments).await?
    };
    print(&json!({
        "p50_ms": latencies.quantile_ms(0.5),
        "p99_ms": latencies.quantile_ms(0.99),
    }))
}

fn print(figures: &serde_json::Value) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{figures}").context("cannot print the figures")
}
