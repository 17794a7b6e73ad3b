//! The command line: arguments in, texts and exit codes out.
//!
//! **Invariant**: nothing but this room and `main.rs` writes to standard output or knows process exit.

mod build;
mod check;
mod dead_letters;
mod demo;
mod dev;
mod handlers;
mod inspect;
mod listing;
mod new;
mod outbox;
mod prune;
mod rewind;
mod send;
mod status;
mod test;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use crate::app::{self, BatchObserver, Reread, RunOptions, SettledBatch, Watching};
use crate::config::Config;
use crate::exit::{CommandError, Exit};

/// Makes at-least-once messages take effect exactly once, in sandboxed Wasm handlers
#[derive(Debug, Parser)]
#[command(
    name = "hapax",
    version,
    after_help = "Examples:\n  \
                  hapax check\n  \
                  hapax send payments '{\"account\":\"a1\",\"amount\":5}' --id m1\n  \
                  hapax run --until-idle\n  \
                  hapax status\n\n\
                  Exit codes: 0 done, 1 failed while running or ended by a second signal, 2 bad command line, 3 bad configuration or component, \
                  4 schema newer than this binary, 70 a bug in hapax.\n\n\
                  Every key of the configuration can be overridden by a variable: `store.url` by HAPAX_STORE__URL."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// How log lines are written, on standard error
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT", help_heading = "Log")]
    log_format: LogFormat,

    /// Which log lines are written, such as `debug` or `info,hapax::source=debug`
    #[arg(
        long,
        global = true,
        help_heading = "Log",
        value_name = "FILTER",
        env = "HAPAX_LOG",
        default_value = LOG_DEFAULT
    )]
    log: String,
}

const LOG_DEFAULT: &str = "info,sqlx=warn,async_nats=warn";
/// The demo says what happens in its own words; its hosts log into a file.
const LOG_DEFAULT_DEMO: &str = "warn";
/// What fails in a test is part of the test.
const LOG_DEFAULT_TEST: &str = "off";

/// An author sees what the handlers log, also in runs that were rolled back, and when another version serves. Failures are shown with
/// the messages.
const LOG_DEFAULT_DEV: &str =
    "warn,hapax::handler::log=debug,hapax::app::supervisor=info,hapax::pipeline::park=error";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show it at work with nothing but this program: deliver, kill, check every row
    ///
    /// 329 webhooks of GitHub's are delivered three times each, in shuffled order, from a queue in a SQLite database to a handler
    /// that is part of this program. Two hosts are killed with SIGKILL on the way. Then every row is compared with what the webhooks
    /// themselves say, beside what a consumer without claims makes of the same deliveries. Exits with 1 unless all rows are exact.
    ///
    /// The webhooks are from the npm package `@octokit/webhooks-examples` 7.6.1, (c) Gregor Martynus and Octokit contributors, MIT
    /// licence.
    #[command(
        after_help = "Examples:\n  hapax demo\n  hapax demo --seed 7 --keep /tmp/demo --json"
    )]
    Demo(demo::Arguments),
    /// Make a handler's project that builds at once
    ///
    /// Handler, tables, configuration, sample messages with what they must leave, and the SDK: all that it needs is written.
    #[command(
        after_help = "Examples:\n  hapax new credit --lang rust\n  hapax new services/credit --lang ts"
    )]
    New(new::Arguments),
    /// Build a handler's project into its component, and check it
    ///
    /// Downloads nothing without `--install`; what is missing is named with the command that gets it.
    #[command(
        after_help = "Examples:\n  hapax build\n  hapax build services/credit --install\n  hapax build --out /srv/handlers/credit.wasm --json"
    )]
    Build(build::Arguments),
    /// Build a project, run it, and do both again with every change
    ///
    /// The handlers run on a SQLite database of their own, in the project's folder `.hapax`, with queues in place of streams: neither the
    /// configuration's store nor its brokers are touched. For each message it is shown what became of it, the rows that it changed and
    /// what it published. While a build fails, what was built before goes on serving.
    #[command(
        after_help = "Examples:\n  hapax dev\n  hapax dev services/credit --resend\n  hapax dev --keep --no-send\n  \
                      hapax dev --json | jq 'select(.event == \"message\")'\n\n\
                      While it runs: Enter sends messages.jsonl again, f starts over with an empty database, q ends."
    )]
    Dev(dev::Arguments),
    /// Run the handlers: consume, call, commit, acknowledge
    ///
    /// Changed components and handlers' tables are taken up while it runs; SIGHUP has all of them read again.
    #[command(
        after_help = "Examples:\n  hapax run\n  hapax run --config examples/credit-account/rust/hapax.toml --until-idle\n  \
                      hapax run --check-first\n  \
                      HAPAX_STORE__URL=postgres://app@db/app hapax run --log-format json"
    )]
    Run {
        #[command(flatten)]
        config: ConfigFile,
        /// End when nothing waits in any source; changes of the configuration and the components are not followed then
        #[arg(long)]
        until_idle: bool,
        /// Check the configuration, the components and the files of the migrations first, as `hapax check` does; with findings, end
        /// with 3 before anything is consumed or the database is asked
        #[arg(long)]
        check_first: bool,
        /// Write a line of JSON to standard output for each settled batch; how `hapax demo` follows its hosts
        #[arg(long, hide = true)]
        report_batches: bool,
    },
    /// Check the configuration and the components, without database or broker
    #[command(
        after_help = "Examples:\n  hapax check\n  hapax check --config hapax.toml --json\n  hapax check --database"
    )]
    Check {
        #[command(flatten)]
        config: ConfigFile,
        /// Ask the database, too, what each handler can reach there; nothing is changed
        #[arg(long)]
        database: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Say what is in a component, and whether this host runs it
    #[command(
        after_help = "Examples:\n  hapax inspect handlers/credit.wasm\n  hapax inspect handlers/credit.wasm --json"
    )]
    Inspect {
        /// The component's file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run a handler's messages in every way a host may run them, and compare what is left
    ///
    /// Each message runs once, for the reference; then again, in batches, twice, rolled back at each call to its host, through deaths of its
    /// host, after a failure, and in other orders. The tables, what is published and the dead letters must come out the same each time, and as
    /// `expected.jsonl` says. The database of the configuration is not touched. Exits with 1 if something is found.
    #[command(
        after_help = "Examples:\n  hapax test\n  hapax test examples/credit-account/rust --seed 7 --shuffles 20\n  \
                      hapax test --write-expected\n  hapax test --database postgres://app@localhost/app --json"
    )]
    Test(test::Arguments),
    /// Send messages into a source
    #[command(after_help = "Examples:\n  \
        hapax send payments '{\"account\":\"a1\",\"amount\":5}' --id 42\n  \
        hapax send payments --file order.json --id order-7 --header 'Content-Type: application/json'\n  \
        hapax send payments --lines payments.jsonl --id batch-3\n  \
        generate | hapax send payments --lines - --envelope")]
    Send(send::Arguments),
    /// See which component each handler runs; change it on every host at once
    ///
    /// A running host is asked at its admin address. `deploy`, `rollback` and `remove` are for handlers whose table says
    /// `component = "store"`; all others run what their file holds.
    #[command(
        after_help = "Examples:\n  hapax handlers list\n  hapax handlers deploy credit target/credit.wasm\n  hapax handlers rollback credit\n  \
                      hapax handlers pause credit"
    )]
    Handlers {
        #[command(subcommand)]
        command: handlers::Command,
    },
    /// Look at messages that were given up on; replay, drop, export or import them
    #[command(
        after_help = "Examples:\n  hapax dead-letters list --group\n  hapax dead-letters show 12\n  hapax dead-letters replay 12"
    )]
    DeadLetters {
        #[command(subcommand)]
        command: dead_letters::Command,
    },
    /// Look at what handlers published; publish it again or drop it
    #[command(
        after_help = "Examples:\n  hapax outbox list --state parked\n  hapax outbox show 7\n  hapax outbox republish 7"
    )]
    Outbox {
        #[command(subcommand)]
        command: outbox::Command,
    },
    /// Delete claims older than `dedup`, and what else is old
    ///
    /// Hosts do it by themselves; this does it now, or says what would go.
    #[command(
        after_help = "Examples:\n  hapax prune --dry-run\n  hapax prune credit\n  hapax prune --dry-run --json"
    )]
    Prune(prune::Arguments),
    /// Read a stream again from an earlier message
    ///
    /// For what a restore or a failover has lost: the stream still keeps it, and claims make it safe. Hosts may run meanwhile.
    #[command(
        after_help = "Examples:\n  hapax rewind credit --to 1200\n  hapax rewind credit --to 2026-01-31T00:00:00Z --yes\n\n\
                      Interrupted, it is finished by running it again."
    )]
    Rewind(rewind::Arguments),
    /// Show what each handler has done, and what waits
    #[command(after_help = "Examples:\n  hapax status\n  hapax status --config hapax.toml --json")]
    Status {
        #[command(flatten)]
        config: ConfigFile,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
struct ConfigFile {
    /// The configuration
    #[arg(
        long,
        env = "HAPAX_CONFIG",
        default_value = "hapax.toml",
        value_name = "FILE"
    )]
    config: PathBuf,
}

impl ConfigFile {
    fn load(&self) -> Result<Config, CommandError> {
        Ok(Config::load_here(&self.config)?)
    }
}

/// Runs the command that the arguments name, to its end. Prints what it has to say.
pub fn main() -> Exit {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            // Help and version are not mistakes.
            return if error.use_stderr() {
                Exit::CommandLine
            } else {
                Exit::Done
            };
        }
    };
    if let Err(error) = start(&cli) {
        return report(&error);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            return report(&CommandError::new(
                Exit::Failed,
                format!("cannot start the async runtime: {error}"),
                None,
            ));
        }
    };
    let exit = match runtime.block_on(execute(cli.command)) {
        Ok(()) => Exit::Done,
        Err(error) => report(&error),
    };
    // What still runs after the grace is ended with the process: its transactions roll back.
    runtime.shutdown_background();
    exit
}

fn report(error: &CommandError) -> Exit {
    let _ = writeln!(std::io::stderr(), "{error}");
    error.exit
}

fn start(cli: &Cli) -> Result<(), CommandError> {
    let log = match cli.command {
        Command::Demo(_) if cli.log == LOG_DEFAULT => LOG_DEFAULT_DEMO,
        Command::Test(_) if cli.log == LOG_DEFAULT => LOG_DEFAULT_TEST,
        Command::Dev(_) if cli.log == LOG_DEFAULT => LOG_DEFAULT_DEV,
        _ => &cli.log,
    };
    let filter = tracing_subscriber::EnvFilter::try_new(log).map_err(|error| {
        CommandError::new(
            Exit::CommandLine,
            format!("`{}` is not a log filter: {error}", cli.log),
            Some("write a level such as `debug`, or `info,hapax::source=debug`"),
        )
    })?;
    // The driver shows lines of password files that it cannot read.
    let filter = match "sqlx_postgres::options::pgpass=off".parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match cli.log_format {
        LogFormat::Text => lines
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    crate::fault::arm_from_environment()
        .map_err(|text| CommandError::new(Exit::CommandLine, text, None))
}

async fn execute(command: Command) -> Result<(), CommandError> {
    match command {
        Command::Demo(arguments) => demo::demo(arguments).await,
        Command::New(arguments) => new::new(&arguments),
        Command::Build(arguments) => build::build(arguments).await,
        Command::Dev(arguments) => dev::dev(arguments).await,
        Command::Run {
            config,
            until_idle,
            check_first,
            report_batches,
        } => {
            let stop = terminated()?;
            let asked = hung_up()?;
            let loaded = config.load()?;
            let options = RunOptions {
                until_idle,
                check_first,
                told: None,
                observer: report_batches.then(|| BatchObserver::new(write_batch)),
                watching: Some(Watching {
                    reread: Reread::new(move || config.load()),
                    asked,
                }),
            };
            app::run(&loaded, options, stop).await
        }
        Command::Check {
            config,
            database,
            json,
        } => check::check(&config, database, json).await,
        Command::Inspect { file, json } => inspect::inspect(&file, json).await,
        Command::Test(arguments) => test::test(arguments).await,
        Command::Send(arguments) => send::send(arguments).await,
        Command::Handlers { command } => handlers::handlers(command).await,
        Command::DeadLetters { command } => dead_letters::dead_letters(command).await,
        Command::Outbox { command } => outbox::outbox(command).await,
        Command::Prune(arguments) => prune::prune(arguments).await,
        Command::Rewind(arguments) => rewind::rewind(arguments).await,
        Command::Status { config, json } => status::status(&config.load()?, json).await,
    }
}

/// Writes a batch as one line, whole or not at all: a pipe takes so few bytes in one piece.
fn write_batch(batch: &SettledBatch) {
    if let Ok(mut line) = serde_json::to_vec(batch) {
        line.push(b'\n');
        // An error means that nobody reads any more, which is nothing to the messages.
        let _ = std::io::stdout().lock().write_all(&line);
    }
}

/// Returns what counts each SIGHUP from now on.
fn hung_up() -> Result<tokio::sync::watch::Receiver<u64>, CommandError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangups = signal(SignalKind::hangup()).map_err(|error| {
        CommandError::new(
            Exit::Failed,
            format!("cannot listen for signals: {error}"),
            None,
        )
    })?;
    let (sender, receiver) = tokio::sync::watch::channel(0);
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            sender.send_modify(|asked| *asked += 1);
        }
    });
    Ok(receiver)
}

/// Returns a future that ends with the first SIGTERM or SIGINT. A second signal ends the process at once, which is
/// safe at any instant.
fn terminated() -> Result<impl Future<Output = ()> + Send + 'static, CommandError> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| {
        signal(kind).map_err(|error| {
            CommandError::new(
                Exit::Failed,
                format!("cannot listen for signals: {error}"),
                None,
            )
        })
    };
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            std::process::exit(Exit::Failed as i32);
        });
    })
}

/// Gives a progress bar its look.
fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Returns a number with its noun.
fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn print(text: &str) -> Result<(), CommandError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever read it has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(CommandError::new(
            Exit::Failed,
            format!("cannot write to standard output: {error}"),
            None,
        )),
        Ok(()) => Ok(()),
    }
}

fn print_json(value: &impl serde::Serialize) -> Result<(), CommandError> {
    match serde_json::to_string(value) {
        Ok(text) => print(&format!("{text}\n")),
        Err(error) => Err(CommandError::new(
            Exit::Bug,
            format!("cannot write JSON: {error}"),
            None,
        )),
    }
}

/// Writes a size with the largest unit that loses nothing.
fn size(bytes: u64) -> String {
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    format!("{bytes} bytes")
}

/// Lays rows out in columns: the first to the left, the others to the right.
fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    table_of(rows, |column| column == 0)
}

/// Lays rows out in columns, to the left or to the right.
fn table_of<const COLUMNS: usize>(
    rows: &[[String; COLUMNS]],
    is_left: impl Fn(usize) -> bool,
) -> String {
    let widths: Vec<usize> = (0..COLUMNS)
        .map(|column| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let (width, gap) = (widths[column], if column == 0 { "" } else { "  " });
            if is_left(column) {
                text.push_str(&format!("{gap}{cell:<width$}"));
            } else {
                text.push_str(&format!("{gap}{cell:>width$}"));
            }
        }
        text.push('\n');
    }
    text
}
