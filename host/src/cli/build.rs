//! `hapax build`: steps and result on the terminal.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;

use super::new::LanguageWord;
use super::{print, print_json, styled};
use crate::app::{self, BuildOptions, Built};
use crate::exit::CommandError;

/// How often the spinner turns.
const TICK: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The project's folder
    #[arg(value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// The language, where the project's files do not tell
    #[arg(long = "lang", value_enum, value_name = "LANGUAGE")]
    language: Option<LanguageWord>,
    /// The component's file; otherwise the one that `hapax.toml` names
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Let cargo, npm or pip download what the project names and this machine lacks
    #[arg(long)]
    install: bool,
    /// Replace the project's `sdk/` by the one of this release first
    #[arg(long)]
    update_sdk: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Builds, saying each step on standard error.
pub(super) async fn build(arguments: Arguments) -> Result<(), CommandError> {
    let bar = styled(ProgressBar::new_spinner(), "{spinner} {elapsed}");
    bar.enable_steady_tick(TICK);
    let steps = bar.clone();
    let built = app::build(
        BuildOptions {
            folder: arguments.folder,
            language: arguments.language.map(|word| word.0),
            out: arguments.out,
            install: arguments.install,
            update_sdk: arguments.update_sdk,
        },
        move |step| steps.suspend(|| say(step)),
    )
    .await;
    bar.finish_and_clear();
    let built = built?;
    if !built.warnings.is_empty() {
        say(&built.warnings);
    }
    if arguments.json {
        return print_json(&built);
    }
    print(&text_of(&built))
}

/// Writes a line on standard error; an error means that nobody reads any more.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn text_of(built: &Built) -> String {
    let component = &built.inspected.component;
    let mut text = format!("{}\n", built.inspected.file);
    let mut line = |label: &str, value: &str| {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "  {label:<9}  {value}");
    };
    line("language", built.language.name());
    line("size", &format!("{} kB", component.bytes.div_ceil(1000)));
    for (index, import) in component.imports.iter().enumerate() {
        line(if index == 0 { "imports" } else { "" }, &import.name);
    }
    line("sha256", &component.digest);
    line(
        "took",
        &format!(
            "{:.1} s, and {:.1} s to check that this host runs it",
            built.took.as_secs_f64(),
            built.inspected.compiled_in.as_secs_f64()
        ),
    );
    text
}
