//! `hapax rewind`: arguments, the question, and what is printed.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use clap::Args;

use super::{ConfigFile, count, print, print_json};
use crate::app::{Rewind, rewind_place};
use crate::exit::{CommandError, Exit};
use crate::source::jetstream::RewindTo;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Whose stream is read again
    handler: String,
    /// From where: a message's number in the stream, or a time such as `2026-01-31T00:00:00Z`
    #[arg(long, value_name = "TIME|SEQUENCE", value_parser = rewind_place)]
    to: RewindTo,
    /// Also further back than claims reach
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    config: ConfigFile,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn rewind(arguments: Arguments) -> Result<(), CommandError> {
    let config = arguments.config.load()?;
    let mut rewind =
        Rewind::look_up(&config, &arguments.handler, arguments.to, arguments.force).await?;
    let told = rewind.told().clone();
    for warning in &told.warnings {
        let _ = writeln!(std::io::stderr(), "warning: {warning}");
    }
    let what = format!(
        "`{}` reads {} again, from number {}{}",
        told.handler,
        count(told.messages, "message"),
        told.sequence,
        told.first_published_at
            .as_ref()
            .map_or_else(String::new, |at| format!(", published at {at}")),
    );
    if !arguments.yes {
        ask(&what)?;
    }
    rewind.apply().await?;
    if arguments.json {
        return print_json(&told);
    }
    print(&format!(
        "{what}\nwhat is claimed already is a duplicate; running hosts go on by themselves\n"
    ))
}

fn ask(what: &str) -> Result<(), CommandError> {
    if !std::io::stdin().is_terminal() {
        return Err(CommandError::new(
            Exit::CommandLine,
            format!("{what}: there is no terminal to ask at"),
            Some("say `--yes`"),
        ));
    }
    let mut err = std::io::stderr();
    let _ = write!(err, "{what}? [y/N] ");
    let _ = err.flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    match (read, answer.trim().to_lowercase().as_str()) {
        (Ok(_), "y" | "yes") => Ok(()),
        _ => Err(CommandError::new(Exit::Failed, "nothing was rewound", None)),
    }
}
