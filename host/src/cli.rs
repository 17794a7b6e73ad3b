//! The command line: arguments in, texts and exit codes out.
//!
//! **Invariant**: nothing but this room and `main.rs` writes to standard output or knows process exit.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use crate::app::{
    self, BatchObserver, CheckedHandler, DemoOptions, DemoProgress, Envelope, HandlerStatus,
    NewMessage, RunOptions, SettledBatch,
};
use crate::config::Config;
use crate::exit::{CommandError, Exit};
use crate::message::Header;

/// Makes at-least-once messages take effect exactly once, in sandboxed Wasm handlers
#[derive(Debug, Parser)]
#[command(
    name = "hapax",
    version,
    after_help = "Exit codes: 0 done, 1 failed while running, 2 bad command line, 3 bad configuration or component, \
                  4 schema newer than this binary, 70 a bug in hapax.\n\n\
                  Every key of the configuration can be overridden by a variable: `store.url` by HAPAX_STORE__URL."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// How log lines are written, on standard error
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,

    /// Which log lines are written, such as `debug` or `info,hapax::source=debug`
    #[arg(
        long,
        global = true,
        env = "HAPAX_LOG",
        default_value = LOG_DEFAULT
    )]
    log: String,
}

const LOG_DEFAULT: &str = "info,sqlx=warn,async_nats=warn";
/// The demo says what happens in its own words; its hosts log into a file.
const LOG_DEFAULT_DEMO: &str = "warn";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show it at work, with nothing but this program: real webhooks, hosts that are killed, a check of every row
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
    Demo(DemoArguments),
    /// Run the handlers: consume, call, commit, acknowledge
    #[command(
        after_help = "Examples:\n  hapax run\n  hapax run --config examples/credit-account/hapax.toml --until-idle"
    )]
    Run {
        #[command(flatten)]
        config: ConfigFile,
        /// End when nothing waits in any source
        #[arg(long)]
        until_idle: bool,
        /// Write a line of JSON to standard output for each settled batch; how `hapax demo` follows its hosts
        #[arg(long, hide = true)]
        report_batches: bool,
    },
    /// Check the configuration and the components, without database or broker
    #[command(after_help = "Example:\n  hapax check --config hapax.toml")]
    Check {
        #[command(flatten)]
        config: ConfigFile,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Send messages into a source
    #[command(after_help = "Examples:\n  \
        hapax send payments '{\"account\":\"a1\",\"amount\":5}' --id 42\n  \
        hapax send payments --file order.json --id order-7 --header 'Content-Type: application/json'\n  \
        hapax send payments --lines payments.jsonl --id batch-3\n  \
        generate | hapax send payments --lines - --envelope")]
    Send(SendArguments),
    /// Show what each handler has done, and what waits
    #[command(after_help = "Example:\n  hapax status --json")]
    Status {
        #[command(flatten)]
        config: ConfigFile,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
struct DemoArguments {
    /// Deliver in the order that this number gives; drawn at random otherwise, and printed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Put the databases into this folder, which must be empty or not exist; otherwise into a new temporary one
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
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
        // A variable that is not UTF-8 can't be an override.
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Ok(Config::load(&self.config, environment)?)
    }
}

#[derive(Debug, Args)]
struct SendArguments {
    /// The source's name in the configuration
    source: String,
    /// The message; for anything but a short text use `--file` or `--lines`
    #[arg(conflicts_with_all = ["file", "lines"], required_unless_present_any = ["file", "lines"])]
    payload: Option<String>,
    /// The message's id; with `--lines` each gets `<ID>-<line number>`
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// The subject or topic
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,
    /// A header as `Name: value`; may be repeated
    #[arg(long = "header", value_name = "HEADER", value_parser = parse_header)]
    headers: Vec<(String, String)>,
    /// Send this file as one message; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "lines")]
    file: Option<PathBuf>,
    /// Send each line of this file as a message, empty lines left out; `-` is standard input
    #[arg(long, value_name = "FILE")]
    lines: Option<PathBuf>,
    /// Each line is `{"id": .., "subject": .., "headers": {..}, "payload": ..}`
    #[arg(long, requires = "lines", conflicts_with = "id")]
    envelope: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigFile,
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("write it as `Name: value`".to_owned()),
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
        _ => &cli.log,
    };
    let filter = tracing_subscriber::EnvFilter::try_new(log).map_err(|error| {
        CommandError::new(
            Exit::CommandLine,
            format!("`{}` is not a log filter: {error}", cli.log),
            Some("write a level such as `debug`, or `info,hapax::source=debug`"),
        )
    })?;
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
        Command::Demo(arguments) => demo(arguments).await,
        Command::Run {
            config,
            until_idle,
            report_batches,
        } => {
            let stop = terminated()?;
            let options = RunOptions {
                until_idle,
                observer: report_batches.then(|| BatchObserver::new(write_batch)),
            };
            app::run(&config.load()?, options, stop).await
        }
        Command::Check { config, json } => {
            let checked = app::check(&config.load()?).await?;
            if json {
                print_json(&serde_json::json!({ "handlers": checked }))
            } else {
                print(&checked_text(&config.config, &checked))
            }
        }
        Command::Send(arguments) => send(arguments).await,
        Command::Status { config, json } => {
            let statuses = app::status(&config.load()?).await?;
            if json {
                print_json(&serde_json::json!({ "handlers": statuses }))
            } else {
                print(&status_text(&statuses))
            }
        }
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

async fn demo(arguments: DemoArguments) -> Result<(), CommandError> {
    let stop = terminated()?;
    let bar = styled(
        ProgressBar::new(0),
        "{bar:40} {pos}/{len} deliveries, {msg}",
    );
    let options = DemoOptions {
        seed: arguments.seed,
        folder: arguments.keep,
    };
    let running = app::demo(&options, |progress| match progress {
        DemoProgress::Begun { deliveries } => bar.set_length(deliveries),
        DemoProgress::Settled {
            took_effect,
            skipped,
        } => {
            bar.set_message(format!("{took_effect} took effect, {skipped} skipped"));
            bar.set_position(took_effect + skipped);
        }
        DemoProgress::Killed(kill) => bar.println(format!(
            "killed the host at `{}`; starting the next one",
            kill.point
        )),
    });
    let ended = tokio::select! {
        ended = running => ended,
        // Dropping the demo kills its host and closes its databases, which nobody needs then.
        () = stop => Err(CommandError::new(Exit::Failed, "interrupted", None)),
    };
    bar.finish_and_clear();
    let report = ended?;
    if arguments.json {
        print_json(&report.json())?;
    } else {
        print(&report.text(&own_name()))?;
    }
    report.require_exact()
}

/// Returns how to call this program from any folder.
fn own_name() -> String {
    let called = std::env::args_os().next().map(PathBuf::from);
    match called {
        Some(name) if name.components().count() > 1 => std::env::current_exe()
            .unwrap_or(name)
            .display()
            .to_string(),
        _ => "hapax".to_owned(),
    }
}

async fn send(arguments: SendArguments) -> Result<(), CommandError> {
    let config = arguments.config.load()?;
    let headers: Vec<Header> = arguments
        .headers
        .iter()
        .map(|(name, value)| Header {
            name: name.clone(),
            value: value.clone().into(),
        })
        .collect();
    let sent = match &arguments.lines {
        None => {
            let payload = match (&arguments.file, arguments.payload) {
                (Some(file), _) => read_all(file)?,
                (None, payload) => payload.unwrap_or_default().into_bytes(),
            };
            let message = NewMessage {
                id: arguments.id,
                subject: arguments.subject,
                headers,
                payload: payload.into(),
            };
            app::send(
                &config,
                &arguments.source,
                std::iter::once(Ok(message)),
                |_| {},
            )
            .await?
        }
        Some(file) => {
            let bar = progress_bar(file);
            let shape = LineShape {
                file: file.clone(),
                envelope: arguments.envelope,
                id: arguments.id,
                subject: arguments.subject,
                headers,
            };
            let messages = open(file)?
                .split(b'\n')
                .enumerate()
                .filter(|(_, line)| !matches!(line, Ok(line) if line.trim_ascii().is_empty()))
                .map(|(index, line)| shape.message(index + 1, line));
            let sent = app::send(&config, &arguments.source, messages, |sent| {
                bar.set_position(sent)
            })
            .await;
            bar.finish_and_clear();
            sent?
        }
    };
    if arguments.json {
        print_json(&sent)
    } else {
        print(&format!(
            "sent {}, dropped by the broker as duplicates {}\n",
            sent.sent, sent.duplicates
        ))
    }
}

/// How a line becomes a message.
struct LineShape {
    file: PathBuf,
    envelope: bool,
    id: Option<String>,
    subject: Option<String>,
    headers: Vec<Header>,
}

impl LineShape {
    fn message(
        &self,
        number: usize,
        line: std::io::Result<Vec<u8>>,
    ) -> Result<NewMessage, CommandError> {
        let line = line.map_err(|error| cannot_read(&self.file, &error))?;
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if !self.envelope {
            return Ok(NewMessage {
                id: self.id.as_ref().map(|id| format!("{id}-{number}")),
                subject: self.subject.clone(),
                headers: self.headers.clone(),
                payload: bytes::Bytes::copy_from_slice(line),
            });
        }
        let envelope: Envelope<'_> = serde_json::from_slice(line).map_err(|error| {
            CommandError::new(
                Exit::Failed,
                format!("`{}`: line {number}: {error}", self.file.display()),
                Some("each line must be `{\"id\": .., \"subject\": .., \"headers\": {..}, \"payload\": ..}`"),
            )
        })?;
        let mut message = NewMessage::from(envelope);
        message.subject = message.subject.or_else(|| self.subject.clone());
        message.headers.extend(self.headers.iter().cloned());
        Ok(message)
    }
}

fn cannot_read(file: &Path, error: &std::io::Error) -> CommandError {
    CommandError::new(
        Exit::Failed,
        format!("cannot read `{}`: {error}", file.display()),
        Some("name a file that exists, or `-` for standard input"),
    )
}

fn open(file: &Path) -> Result<Box<dyn BufRead>, CommandError> {
    if file == Path::new("-") {
        return Ok(Box::new(BufReader::new(std::io::stdin())));
    }
    match File::open(file) {
        Ok(opened) => Ok(Box::new(BufReader::new(opened))),
        Err(error) => Err(cannot_read(file, &error)),
    }
}

fn read_all(file: &Path) -> Result<Vec<u8>, CommandError> {
    let mut bytes = Vec::new();
    open(file)?
        .read_to_end(&mut bytes)
        .map_err(|error| cannot_read(file, &error))?;
    Ok(bytes)
}

/// Makes a bar on standard error: hidden if that is no terminal, without an end if the number of lines is not known.
fn progress_bar(file: &Path) -> ProgressBar {
    let lines = if std::io::stderr().is_terminal() && file.is_file() {
        open(file)
            .ok()
            .map(|reader| reader.split(b'\n').count() as u64)
    } else {
        None
    };
    match lines {
        Some(lines) => styled(
            ProgressBar::new(lines),
            "{bar:40} {pos}/{len} sent, {per_sec}, {eta} left",
        ),
        None => styled(
            ProgressBar::new_spinner(),
            "{spinner} {pos} sent, {per_sec}",
        ),
    }
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
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

fn checked_text(file: &Path, handlers: &[CheckedHandler]) -> String {
    let mut text = String::new();
    for handler in handlers {
        text.push_str(&format!(
            "handler `{}`\n  component  {} ({} bytes, contract {}, sha256 {})\n  imports    {}\n  source     {}\n  consumer   {}\n  \
             message id {}\n  migrations {}\n",
            handler.name,
            handler.component,
            handler.bytes,
            handler.contract,
            &handler.digest[..12],
            handler.imports.join(", "),
            handler.source,
            handler.consumer,
            handler.message_id.join(", "),
            handler.migrations,
        ));
    }
    text.push_str(&format!(
        "`{}` is valid: {} handlers\n",
        file.display(),
        handlers.len()
    ));
    text
}

fn status_text(statuses: &[HandlerStatus]) -> String {
    let mut rows = vec![
        [
            "handler",
            "claimed",
            "duplicates",
            "retried",
            "dead",
            "backlog",
        ]
        .map(str::to_owned),
    ];
    for status in statuses {
        rows.push([
            status.name.clone(),
            status.claimed.to_string(),
            status.duplicates.to_string(),
            status.retried.to_string(),
            status.dead.to_string(),
            status
                .backlog
                .map_or_else(|| "?".to_owned(), |backlog| backlog.to_string()),
        ]);
    }
    let mut text = table(&rows);
    for status in statuses {
        if let Some(error) = &status.backlog_error {
            text.push_str(&format!(
                "warning: the backlog of `{}` is not known: {error}\n",
                status.name
            ));
        }
    }
    text
}

/// Lays rows out in columns: the first to the left, the others to the right.
fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
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
            if column == 0 {
                text.push_str(&format!("{cell:<width$}", width = widths[column]));
            } else {
                text.push_str(&format!("  {cell:>width$}", width = widths[column]));
            }
        }
        text.push('\n');
    }
    text
}
