//! `hapax test`: progress and result of a proof, on the terminal.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;

use super::{print, print_json, styled, terminated};
use crate::app::{self, ProveOptions, ProveProgress};
use crate::exit::CommandError;

/// How often the terminal shows that it goes on.
const TICK: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The project's folder, with `hapax.toml`, `messages.jsonl` and, if there are expectations, `expected.jsonl`
    #[arg(value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// The handler, if the configuration has several
    #[arg(long, value_name = "NAME")]
    handler: Option<String>,
    /// Run on this PostgreSQL server, in databases of its own that are made beside the one that is named, and dropped afterwards;
    /// otherwise on SQLite in a temporary folder
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Try the orders that this number gives; drawn at random otherwise, and printed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many orders are tried
    #[arg(long, value_name = "N", default_value_t = 5)]
    shuffles: u32,
    /// How many places of one step are broken at the most, spread over all messages
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    breaks: usize,
    /// Do not compare this column; may be repeated
    #[arg(long, value_name = "TABLE.COLUMN")]
    ignore: Vec<String>,
    /// Let this differ from run to run, such as `now()`, `random()` or `limit`; may be repeated
    #[arg(long, value_name = "WHAT")]
    allow: Vec<String>,
    /// Write what the once-only run leaves as `expected.jsonl`, which must not exist
    #[arg(long)]
    write_expected: bool,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Tests a handler. Fails if something is found.
pub(super) async fn test(arguments: Arguments) -> Result<(), CommandError> {
    let stop = terminated()?;
    let bar = styled(
        ProgressBar::new(0),
        "{spinner} {elapsed} step {pos}/{len}, {msg}",
    );
    // A step can take long.
    bar.enable_steady_tick(TICK);
    let options = ProveOptions {
        folder: arguments.folder,
        handler: arguments.handler,
        database: arguments.database,
        seed: arguments.seed,
        shuffles: arguments.shuffles,
        breaks_max: arguments.breaks,
        ignore: arguments.ignore,
        allow: arguments.allow,
        write_expected: arguments.write_expected,
    };
    let ended = app::prove(
        &options,
        |progress| match progress {
            ProveProgress::Preparing => bar.set_message("compiling the handler"),
            ProveProgress::Step { number, of, words } => {
                bar.set_length(of as u64);
                bar.set_position(number as u64);
                bar.set_message(words);
            }
            ProveProgress::Shrinking { messages } => {
                bar.set_message(format!(
                    "found something; it takes {messages} messages so far"
                ));
            }
        },
        stop,
    )
    .await;
    bar.finish_and_clear();
    let report = ended?;
    if arguments.json {
        print_json(&report)?;
    } else {
        print(&report.text())?;
    }
    report.require_passed()
}
