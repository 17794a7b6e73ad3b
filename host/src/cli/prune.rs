//! `hapax prune`: arguments, progress, and what is printed.

use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;

use super::{ConfigFile, count, print, print_json, styled, table_of};
use crate::app::{self, PruneOptions, Pruned};
use crate::exit::CommandError;
use crate::text::span;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only the claims of this handler
    handler: Option<String>,
    /// Say what would go, and delete nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    config: ConfigFile,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn prune(arguments: Arguments) -> Result<(), CommandError> {
    let config = arguments.config.load()?;
    let options = PruneOptions {
        handler: arguments.handler,
        dry_run: arguments.dry_run,
    };
    // Hidden if standard error is no terminal.
    let bar = styled(
        ProgressBar::new(0),
        "{msg}: {bar:40} {pos}/{len}, {eta} left",
    );
    bar.enable_steady_tick(Duration::from_millis(200));
    let done = app::prune(&config, &options, &mut |what, done, all| {
        bar.set_message(what.to_owned());
        bar.set_length(all);
        bar.set_position(done);
    })
    .await;
    bar.finish_and_clear();
    let pruned = done?;
    if arguments.json {
        return print_json(&serde_json::json!({ "dry_run": options.dry_run, "pruned": pruned }));
    }
    print(&text(&pruned, options.dry_run))
}

fn text(pruned: &[Pruned], dry_run: bool) -> String {
    let last = if dry_run { "would go" } else { "gone" };
    let mut rows = vec![["what", "older than", last, "kept"].map(str::to_owned)];
    for one in pruned {
        let what = match &one.handler {
            Some(handler) => format!("claims of `{handler}`"),
            None => one.what.to_owned(),
        };
        rows.push([
            what,
            span(Duration::from_secs(one.older_than_seconds)),
            if dry_run { one.rows } else { one.deleted }.to_string(),
            one.kept.to_string(),
        ]);
    }
    let mut text = table_of(&rows, |column| column == 0);
    let kept = pruned.iter().map(|one| one.kept).sum();
    if kept > 0 {
        text.push_str(&format!(
            "{} of dead letters that still exist: kept as long as they\n",
            count(kept, "claim")
        ));
    }
    text
}
