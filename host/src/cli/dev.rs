//! `hapax dev`: what happens, line by line, and what the author asks for.

use std::fmt::Write as _;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::new::LanguageWord;
use super::{count, terminated};
use crate::app::{self, DevAsk, DevEvent, DevOptions, MessageShown, RowChange};
use crate::exit::CommandError;

/// The longest value of a column that is shown, in characters.
const VALUE_MAX: usize = 200;
/// How many rows of one message are shown.
const ROWS_MAX: usize = 20;
/// How many changed files are named.
const FILES_MAX: usize = 3;
/// Lines of input that are not taken yet.
const ASKS_AHEAD: usize = 16;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The project's folder
    #[arg(value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// The language, where the project's files do not tell
    #[arg(long = "lang", value_enum, value_name = "LANGUAGE")]
    language: Option<LanguageWord>,
    /// Where `messages.jsonl` goes, if the handlers have several sources
    #[arg(long, value_name = "NAME", conflicts_with = "no_send")]
    source: Option<String>,
    /// Do not send `messages.jsonl`
    #[arg(long)]
    no_send: bool,
    /// Start over with an empty database after each new version, so that all messages are seen with it
    #[arg(long, conflicts_with_all = ["keep", "no_send"])]
    resend: bool,
    /// Go on with the database of last time instead of an empty one
    #[arg(long)]
    keep: bool,
    /// Open the configuration's admin address
    #[arg(long)]
    admin: bool,
    /// Let cargo, npm or pip download what the project names and this machine lacks
    #[arg(long)]
    install: bool,
    /// Print each event as one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Follows the project until it is ended.
pub(super) async fn dev(arguments: Arguments) -> Result<(), CommandError> {
    let stop = terminated()?;
    let json = arguments.json;
    let options = DevOptions {
        folder: arguments.folder,
        language: arguments.language.map(|word| word.0),
        source: arguments.source,
        sends: !arguments.no_send,
        resend: arguments.resend,
        keep: arguments.keep,
        admin: arguments.admin,
        install: arguments.install,
    };
    let ended = app::dev(options, asks(), move |event| say(&event, json), stop).await;
    if ended.is_ok() && !json {
        write("ended\n");
    }
    ended
}

/// Hears what the author types, a line each. At the end of the input nothing more is heard.
fn asks() -> mpsc::Receiver<DevAsk> {
    let (sender, asks) = mpsc::channel(ASKS_AHEAD);
    // A thread of its own: reading a terminal can't be given up, and the end of the process does not wait for it.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let ask = match line.trim() {
                "" | "s" => DevAsk::Send,
                "f" => DevAsk::StartOver,
                "q" => DevAsk::Quit,
                _ => {
                    write(HELP);
                    continue;
                }
            };
            if sender.blocking_send(ask).is_err() {
                return;
            }
        }
    });
    asks
}

const HELP: &str =
    "Enter sends messages.jsonl again; f starts over with an empty database; q ends\n";

fn say(event: &DevEvent, json: bool) {
    if json {
        if let Ok(mut line) = serde_json::to_string(event) {
            line.push('\n');
            write(&line);
        }
    } else {
        write(&text_of(event));
    }
}

/// Writes lines as a whole; an error means that nobody reads any more.
fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn text_of(event: &DevEvent) -> String {
    match event {
        DevEvent::Began {
            folder,
            language,
            database,
        } => {
            let help = if std::io::stdin().is_terminal() {
                HELP
            } else {
                ""
            };
            let name = language.name();
            format!("following {folder} ({name}); its database is {database}\n{help}")
        }
        DevEvent::Building { changed } if changed.is_empty() => "building\n".to_owned(),
        DevEvent::Building { changed } => format!("building: {} changed\n", named(changed)),
        DevEvent::Step { text } => format!("  {text}\n"),
        DevEvent::Built {
            bytes,
            seconds,
            warnings,
            is_new,
            ..
        } => {
            let mut text = String::new();
            if !warnings.is_empty() {
                text = format!("{warnings}\n");
            }
            let news = if *is_new {
                ""
            } else {
                "; the component is the same as before"
            };
            let kilobytes = bytes.div_ceil(1000);
            // Writing to a text cannot fail.
            let _ = writeln!(text, "built in {seconds:.1} s, {kilobytes} kB{news}");
            text
        }
        DevEvent::BuildFailed { error, serves } => {
            let serves = if *serves {
                "what was built before goes on serving"
            } else {
                "nothing serves yet"
            };
            format!("{error}\nthe build failed; {serves}\n")
        }
        DevEvent::Unfollowed { files } => format!(
            "{} changed in every build: such changes are not followed any more; save it once more if that was you\n",
            named(files)
        ),
        DevEvent::Serving { handlers, is_fresh } => {
            let database = if *is_fresh {
                "on an empty database"
            } else {
                "on the database of before"
            };
            format!("serving {} {database}\n", handlers.join(", "))
        }
        DevEvent::Sent { source, messages } => {
            format!("sent {} to {source}\n", count(*messages, "message"))
        }
        DevEvent::Message(message) => text_of_message(message),
        DevEvent::Failed { error } => format!("{error}\n"),
    }
}

fn named(files: &[String]) -> String {
    let more = files.len().saturating_sub(FILES_MAX);
    let shown = files[..files.len() - more].join(", ");
    match more {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn text_of_message(message: &MessageShown) -> String {
    let id = message.id.as_deref().unwrap_or("a message without an id");
    let mut text = format!("{id}  {}", message.became);
    let mut more = Vec::new();
    if message.became == "retry" {
        let wait = message.wait_ms.unwrap_or(0);
        let attempt = message.attempt.unwrap_or(1);
        more.push(format!("in {wait} ms, after failure {attempt}"));
    } else if let Some(attempt @ 2..) = message.attempt {
        more.push(format!("run {attempt}"));
    }
    if let Some((class, reason)) = &message.why {
        more.push(format!("{class}: {}", shown(reason.trim())));
    }
    if let (Some(cpu), "committed") = (message.cpu_us, message.became) {
        more.push(format!("{cpu} us"));
    }
    if let Some(messages) = message.call_messages {
        more.push(format!("one call with {messages} messages"));
    } else if message.became == "committed"
        && message.rows.is_empty()
        && message.published.is_empty()
    {
        more.push("changed nothing".to_owned());
    }
    if !more.is_empty() {
        let _ = write!(text, "  ({})", more.join("; "));
    }
    text.push('\n');
    for row in message.rows.iter().take(ROWS_MAX) {
        text.push_str(&text_of_row(row));
    }
    if message.rows.len() > ROWS_MAX {
        let _ = writeln!(text, "    and {} rows more", message.rows.len() - ROWS_MAX);
    }
    for table in &message.not_looked_at {
        let _ = writeln!(text, "    {table}  (too many rows to be looked at)");
    }
    for published in &message.published {
        let to = published.target.as_deref().unwrap_or("outbox");
        let key = published
            .key
            .as_ref()
            .map_or(String::new(), |key| format!(" [{}]", shown(key)));
        let payload = match &published.payload {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let _ = writeln!(
            text,
            "    {to} <- {}{key} {}",
            shown(&published.subject),
            shown(&payload)
        );
    }
    text
}

/// `accounts  + {"id":"a1"}`, `accounts  - {..}`, or `accounts  id "a1"  balance 5 -> 15`.
fn text_of_row(row: &RowChange) -> String {
    let whole = |row: &Map<String, Value>| {
        let columns: Vec<String> = row
            .iter()
            .map(|(name, value)| format!("{name} {}", value_of(value)))
            .collect();
        columns.join(", ")
    };
    let what = match (&row.before, &row.after) {
        (None, None) => String::new(),
        (None, Some(after)) => format!("+ {}", whole(after)),
        (Some(before), None) => format!("- {}", whole(before)),
        (Some(before), Some(after)) => {
            let value = |row: &Map<String, Value>, column: &String| {
                value_of(row.get(column).unwrap_or(&Value::Null))
            };
            let key: Vec<String> = row
                .key
                .iter()
                .map(|column| format!("{column} {}", value(after, column)))
                .collect();
            let columns: Vec<String> = row
                .columns
                .iter()
                .map(|column| {
                    let (before, after) = (value(before, column), value(after, column));
                    format!("{column} {before} -> {after}")
                })
                .collect();
            format!("{}: {}", key.join(", "), columns.join(", "))
        }
    };
    format!("    {}  {what}\n", row.table)
}

/// As JSON, which escapes what a terminal would take for more than text.
fn value_of(value: &Value) -> String {
    cut(value.to_string())
}

fn shown(text: &str) -> String {
    cut(crate::text::one_line(text).to_string())
}

fn cut(text: String) -> String {
    match text.char_indices().nth(VALUE_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
