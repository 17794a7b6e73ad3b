//! `hapax demo`: progress and result of the demo, on the terminal.

use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;

use super::{print, print_json, styled, terminated};
use crate::app::{self, DemoOptions, DemoProgress};
use crate::exit::{CommandError, Exit};

#[derive(Debug, Args)]
pub(super) struct Arguments {
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

/// Runs the demo. Fails unless every row is exact.
pub(super) async fn demo(arguments: Arguments) -> Result<(), CommandError> {
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
