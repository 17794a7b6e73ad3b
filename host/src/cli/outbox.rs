//! `hapax outbox`: arguments, and what is printed.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use serde_json::json;

use super::listing::{ask, cut, fitted, moment};
use super::{ConfigFile, count, print, print_json, styled};
use crate::app::{
    Outbox, OutboxSelection, moment_text, not_in_the_outbox, outbox_state, outbox_told,
};
use crate::exit::{CommandError, Exit};
use crate::store::{OutboxState, StoredOutboxRow};
use crate::text::printable;

/// Rows in a list, unless the command line says otherwise.
const LIMIT_DEFAULT: usize = 50;
/// The most characters of a subject or a name in a list.
const NAME_MAX: usize = 24;
/// The most bytes of a text payload that are shown.
const TEXT_MAX: usize = 64 << 10;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List messages, newest first
    #[command(after_help = "Examples:\n  \
        hapax outbox list\n  \
        hapax outbox list --state parked --handler stock\n  \
        hapax outbox list --target shipments --limit 500 --json")]
    List {
        #[command(flatten)]
        filters: Filters,
        /// How many, at the most
        #[arg(long, value_name = "N", default_value_t = LIMIT_DEFAULT)]
        limit: usize,
        #[command(flatten)]
        output: Output,
    },
    /// Show one: where it goes, how it stands, headers and payload
    #[command(after_help = "Examples:\n  \
        hapax outbox show 7\n  \
        hapax outbox show 7 --payload shipment.json")]
    Show {
        /// Its number
        number: i64,
        /// Write the payload, byte for byte, into this file and print nothing else; `-` is standard output
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        payload: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Have messages leave again, under their old ids: parked, waiting or published ones
    ///
    /// A receiver that knows the id takes a published one for the duplicate that it is.
    #[command(after_help = "Examples:\n  \
        hapax outbox republish 7\n  \
        hapax outbox republish --state parked --target shipments --yes\n\n\
        Exit codes: 0 they leave with the next look of `hapax run`; 1 at least one that was named is not there.")]
    Republish {
        #[command(flatten)]
        selected: Selected,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Delete messages; those that were not published never leave
    #[command(after_help = "Examples:\n  \
        hapax outbox drop 7\n  \
        hapax outbox drop --state parked --yes\n\n\
        Exit codes: 0 dropped; 1 at least one that was named is not there.")]
    Drop {
        #[command(flatten)]
        selected: Selected,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(super) struct Output {
    #[command(flatten)]
    config: ConfigFile,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Filters {
    /// Those of this handler, or of its consumer
    #[arg(long, value_name = "HANDLER")]
    handler: Option<String>,
    /// Those for this target
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
    /// Those that stand so: unpublished, waiting, parked or published
    #[arg(long, value_name = "STATE", value_parser = outbox_state)]
    state: Option<OutboxState>,
    /// The one with this id, as receivers see it
    #[arg(long, value_name = "ID")]
    id: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Selected {
    /// Their numbers
    #[arg(value_name = "NUMBER", conflicts_with_all = ["handler", "target", "state", "id", "all"])]
    numbers: Vec<i64>,
    #[command(flatten)]
    filters: Filters,
    /// All there are
    #[arg(long, conflicts_with_all = ["handler", "target", "state", "id"])]
    all: bool,
}

impl Filters {
    fn selection(self) -> OutboxSelection {
        OutboxSelection {
            numbers: Vec::new(),
            handler: self.handler,
            target: self.target,
            state: self.state,
            id: self.id,
        }
    }
}

impl Selected {
    fn required(self) -> Result<OutboxSelection, CommandError> {
        let numbers = self.numbers;
        let selection = self.filters.selection();
        let is_filtered = selection.handler.is_some()
            || selection.target.is_some()
            || selection.state.is_some()
            || selection.id.is_some();
        if numbers.is_empty() && !is_filtered && !self.all {
            return Err(CommandError::new(
                Exit::CommandLine,
                "which messages are meant is not said",
                Some("name their numbers, a filter such as `--state parked`, or `--all`"),
            ));
        }
        Ok(OutboxSelection {
            numbers,
            ..selection
        })
    }
}

pub(super) async fn outbox(command: Command) -> Result<(), CommandError> {
    match command {
        Command::List {
            filters,
            limit,
            output,
        } => list(filters, limit, output).await,
        Command::Show {
            number,
            payload,
            output,
        } => show(number, payload, output).await,
        Command::Republish {
            selected,
            yes,
            output,
        } => change(Change::Republish, selected, yes, output).await,
        Command::Drop {
            selected,
            yes,
            output,
        } => change(Change::Drop, selected, yes, output).await,
    }
}

async fn list(filters: Filters, limit: usize, output: Output) -> Result<(), CommandError> {
    let config = output.config.load()?;
    let mut outbox = Outbox::open(&config).await?;
    let (rows, has_more) = outbox.list(&filters.selection(), limit).await?;
    if output.json {
        return print_json(&outbox_told::listed(&rows, has_more));
    }
    print(&list_text(&rows))?;
    for stranded in outbox.stranded(&rows) {
        let _ = writeln!(
            std::io::stderr(),
            "warning: {} of `{}` {} for {}\nhint: {}",
            count(stranded.messages, "message"),
            stranded.handler,
            if stranded.messages == 1 {
                "waits"
            } else {
                "wait"
            },
            stranded.waits_for(),
            stranded.hint()
        );
    }
    if has_more {
        let _ = writeln!(
            std::io::stderr(),
            "note: there are more than {limit}\nhint: raise `--limit`, or filter with `--state`"
        );
    }
    Ok(())
}

async fn show(number: i64, file: Option<PathBuf>, output: Output) -> Result<(), CommandError> {
    let config = output.config.load()?;
    let row = Outbox::open(&config).await?.show(number).await?;
    let payload = &row.message.payload;
    match file {
        Some(file) if file == Path::new("-") => match std::io::stdout().lock().write_all(payload) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(cannot_write(&file, &error))
            }
            _ => Ok(()),
        },
        Some(file) => {
            std::fs::write(&file, payload).map_err(|error| cannot_write(&file, &error))?;
            print(&format!(
                "wrote {} to `{}`\n",
                count(payload.len() as u64, "byte"),
                file.display()
            ))
        }
        None if output.json => print_json(&outbox_told::shown(&row)),
        None => print(&shown_text(&row)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Republish,
    Drop,
}

async fn change(
    change: Change,
    selected: Selected,
    yes: bool,
    output: Output,
) -> Result<(), CommandError> {
    let selection = selected.required()?;
    let config = output.config.load()?;
    let mut outbox = Outbox::open(&config).await?;
    let numbers = outbox.numbers(&selection).await?;
    let (act, done, note) = match change {
        Change::Republish => ("republish", "republished", ""),
        Change::Drop => (
            "drop",
            "dropped",
            " Those that were not published never leave.",
        ),
    };
    let is_asked = match change {
        Change::Republish => numbers.len() > 1,
        Change::Drop => !numbers.is_empty(),
    };
    if is_asked && !yes {
        ask(act, done, &count(numbers.len() as u64, "message"), note)?;
    }
    let bar = styled(
        ProgressBar::new(numbers.len() as u64),
        "{bar:40} {pos}/{len}, {per_sec}, {eta} left",
    );
    let changed = match change {
        Change::Republish => {
            outbox
                .republish(&numbers, |done| bar.set_position(done))
                .await
        }
        Change::Drop => {
            outbox
                .drop_rows(&numbers, |done| bar.set_position(done))
                .await
        }
    };
    bar.finish_and_clear();
    let changed = changed?;
    if output.json {
        print_json(&json!({ done: changed }))?;
    } else {
        print(&format!(
            "{done} {}\n",
            count(changed.len() as u64, "message")
        ))?;
    }
    if selection.numbers.is_empty() {
        // One that went meanwhile was meant to go.
        return Ok(());
    }
    let missing = numbers
        .iter()
        .filter(|number| !changed.contains(number))
        .map(|number| not_in_the_outbox(*number))
        .collect();
    CommandError::all(missing).map_or(Ok(()), Err)
}

fn cannot_write(file: &Path, error: &std::io::Error) -> CommandError {
    CommandError::new(
        Exit::Failed,
        format!("cannot write `{}`: {error}", file.display()),
        Some("name a file in a folder that is there and writable"),
    )
}

fn list_text(rows: &[StoredOutboxRow]) -> String {
    if rows.is_empty() {
        return "no messages in the outbox\n".into();
    }
    let mut lines = vec![
        [
            "number", "state", "target", "subject", "consumer", "created", "error",
        ]
        .map(str::to_owned),
    ];
    for row in rows {
        lines.push([
            row.message.number.to_string(),
            row.state.as_str().to_owned(),
            cut(row.message.target.as_deref().unwrap_or("-"), NAME_MAX),
            cut(&row.message.subject, NAME_MAX),
            cut(&row.consumer, NAME_MAX),
            moment(row.created_at),
            row.error.clone().unwrap_or_default(),
        ]);
    }
    fitted(lines)
}

fn shown_text(row: &StoredOutboxRow) -> String {
    let message = &row.message;
    let mut lines = vec![
        format!("number      {}", message.number),
        format!("id          {}", message.id),
        format!("state       {}", row.state.as_str()),
    ];
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            lines.push(format!("{name:<11} {value}"));
        }
    };
    line(
        "attempts",
        (message.attempts > 0).then(|| message.attempts.to_string()),
    );
    line("error", row.error.as_deref().map(printable));
    line(
        "target",
        message.target.clone().map(|target| printable(&target)),
    );
    line("subject", Some(printable(&message.subject)));
    line("key", message.key.as_deref().map(printable));
    line("consumer", Some(row.consumer.clone()));
    line("message id", Some(printable(row.message_id.as_str())));
    line("created", moment_text(row.created_at));
    line("due", moment_text(row.due_at));
    line("published", moment_text(row.published_at));
    line("type", message.content_type.as_deref().map(printable));
    for header in &message.headers {
        line(
            "header",
            Some(format!(
                "{}: {}",
                printable(&header.name),
                printable(&String::from_utf8_lossy(&header.value))
            )),
        );
    }
    let payload = &message.payload;
    let shown = match std::str::from_utf8(payload) {
        Ok(text) if text.len() <= TEXT_MAX => printable(text),
        Ok(text) => format!(
            "{} ...",
            printable(&text.chars().take(TEXT_MAX).collect::<String>())
        ),
        Err(_) => "not text: `--payload FILE` writes it".to_owned(),
    };
    format!(
        "{}\npayload     {}\n\n{shown}\n",
        lines.join("\n"),
        count(payload.len() as u64, "byte")
    )
}
