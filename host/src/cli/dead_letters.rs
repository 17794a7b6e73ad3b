//! `hapax dead-letters`: arguments, questions, and what is printed.

mod selection;
mod text;

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use indicatif::ProgressBar;

use super::{ConfigFile, count, listing, print, print_json, styled};
use crate::app::{DeadLetters, Imported, Refusal, Replayed, letters_told};
use crate::exit::{CommandError, Exit};
use selection::{Filters, Selected};

/// Letters in a list, unless the command line says otherwise.
const LIMIT_DEFAULT: usize = 50;
/// Refused letters that are named one by one.
const REFUSED_NAMED: usize = 10;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List them, newest first, or in groups of like failures
    #[command(after_help = "Examples:\n  \
        hapax dead-letters list\n  \
        hapax dead-letters list --group\n  \
        hapax dead-letters list --handler credit --class trapped --since 2h --limit 500 --json")]
    List {
        #[command(flatten)]
        filters: Filters,
        /// Put like failures into groups: same class, same words but for numbers, ids and quoted values
        #[arg(long, conflicts_with = "limit")]
        group: bool,
        /// How many, at the most
        #[arg(long, value_name = "N", default_value_t = LIMIT_DEFAULT)]
        limit: usize,
        #[command(flatten)]
        output: Output,
    },
    /// Show all that was kept of one: headers, payload, every attempt
    #[command(after_help = "Examples:\n  \
        hapax dead-letters show 12\n  \
        hapax dead-letters show 12 --payload order.json\n  \
        hapax dead-letters show 12 --payload -")]
    Show {
        /// Its number
        number: i64,
        /// Write the payload, byte for byte, into this file and print nothing else; `-` is standard output
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        payload: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Run them again, on the way of every message: queue them for `hapax run`
    ///
    /// Each runs once, in one transaction with the end of its letter; interrupt and repeat it as you like. One that fails for good again
    /// keeps its letter, with the new attempts after the old ones. A letter whose id was processed is refused.
    #[command(after_help = "Examples:\n  \
        hapax dead-letters replay 12\n  \
        hapax dead-letters replay --fingerprint 3fa2c1 --yes\n  \
        hapax dead-letters replay --handler credit --class limit\n  \
        hapax dead-letters replay 12 --force\n\n\
        Exit codes: 0 queued, now or before; 1 at least one was refused, the others are queued.")]
    Replay {
        #[command(flatten)]
        selected: Selected,
        /// Also those whose ids are taken: their handlers run once more, without a claim, and publish under new ids
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Delete them; their ids stay claimed, so that a redelivery stays a duplicate
    #[command(after_help = "Examples:\n  \
        hapax dead-letters drop 12 13\n  \
        hapax dead-letters drop --class missing-id --yes\n\n\
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
    /// Write them as lines of JSON, byte for byte; they stay
    #[command(after_help = "Examples:\n  \
        hapax dead-letters export --output letters.jsonl\n  \
        hapax dead-letters export --handler credit --class conflict")]
    Export {
        #[command(flatten)]
        selected: Selected,
        /// Write into this file
        #[arg(long = "output", short = 'o', value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        config: ConfigFile,
    },
    /// Put exported ones back, all or none; those that are there or were processed are left out
    #[command(after_help = "Examples:\n  \
        hapax dead-letters import letters.jsonl\n  \
        generate | hapax dead-letters import -")]
    Import {
        /// What `export` wrote; `-` is standard input
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(super) struct Output {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigFile,
}

pub(super) async fn dead_letters(command: Command) -> Result<(), CommandError> {
    match command {
        Command::List {
            filters,
            group,
            limit,
            output,
        } => list(filters, group, limit, output).await,
        Command::Show {
            number,
            payload,
            output,
        } => show(number, payload, output).await,
        Command::Replay {
            selected,
            force,
            yes,
            output,
        } => replay(selected, force, yes, output).await,
        Command::Drop {
            selected,
            yes,
            output,
        } => drop_letters(selected, yes, output).await,
        Command::Export {
            selected,
            file,
            config,
        } => export(selected, file, config).await,
        Command::Import { file, output } => import(file, output).await,
    }
}

async fn list(
    filters: Filters,
    group: bool,
    limit: usize,
    output: Output,
) -> Result<(), CommandError> {
    let config = output.config.load()?;
    let mut letters = DeadLetters::open(&config).await?;
    let selection = filters.selection();
    if group {
        let groups = letters.groups(&selection).await?;
        return if output.json {
            print_json(&letters_told::grouped(&groups))
        } else {
            print(&text::groups(&groups))
        };
    }
    let (found, has_more) = letters.list(&selection, limit).await?;
    if output.json {
        return print_json(&letters_told::listed(&found, has_more));
    }
    print(&text::list(&found))?;
    if has_more {
        let _ = writeln!(
            std::io::stderr(),
            "note: there are more than {limit}\nhint: raise `--limit`, or see them in groups with `--group`"
        );
    }
    Ok(())
}

async fn show(number: i64, file: Option<PathBuf>, output: Output) -> Result<(), CommandError> {
    let config = output.config.load()?;
    let letter = DeadLetters::open(&config).await?.show(number).await?;
    let Some(file) = file else {
        return if output.json {
            print_json(&letters_told::shown(&letter))
        } else {
            print(&text::shown(&letter))
        };
    };
    let payload = &letter.stored.letter.payload;
    if file == Path::new("-") {
        return written(std::io::stdout().lock().write_all(payload));
    }
    std::fs::write(&file, payload).map_err(|error| cannot_write(&file, &error))?;
    print(&format!(
        "wrote {} to `{}`\n",
        count(payload.len() as u64, "byte"),
        file.display()
    ))
}

async fn replay(
    selected: Selected,
    force: bool,
    yes: bool,
    output: Output,
) -> Result<(), CommandError> {
    let selection = selected.required()?;
    let config = output.config.load()?;
    let mut letters = DeadLetters::open(&config).await?;
    let numbers = letters.numbers(&selection).await?;
    if numbers.len() > 1 && !yes {
        ask("replay", "replayed", &numbers)?;
    }
    let bar = bar(numbers.len());
    let replayed = letters
        .replay(&numbers, force, |done| bar.set_position(done))
        .await;
    bar.finish_and_clear();
    let replayed = replayed?;
    if output.json {
        print_json(&letters_told::replayed(&replayed))?;
    } else {
        print(&text::replayed(&replayed))?;
    }
    refused(&replayed)
}

/// Turns refusals into errors: the first ones by name, then how many more.
fn refused(replayed: &Replayed) -> Result<(), CommandError> {
    let refused = &replayed.refused;
    let mut errors: Vec<CommandError> = refused
        .iter()
        .take(REFUSED_NAMED)
        .map(|(number, refusal)| refusal_error(*number, refusal))
        .collect();
    if refused.len() > REFUSED_NAMED {
        let more = refused.len() - REFUSED_NAMED;
        errors.push(CommandError::new(
            Exit::Failed,
            format!("{more} more are not replayed"),
            Some("`--json` names each"),
        ));
    }
    CommandError::all(errors).map_or(Ok(()), Err)
}

fn refusal_error(number: i64, refusal: &Refusal) -> CommandError {
    let error = |why: String, hint: &str| {
        CommandError::new(
            Exit::Failed,
            format!("dead letter {number} is not replayed: {why}"),
            Some(hint),
        )
    };
    let forced = || {
        format!("`--force` runs it without a claim; `hapax dead-letters drop {number}` removes it")
    };
    match refusal {
        Refusal::NotThere => crate::app::not_there(number),
        Refusal::NoHandler { consumer } => error(
            format!("no handler has its consumer `{consumer}`"),
            &format!("configure one with `consumer = \"{consumer}\"`"),
        ),
        Refusal::Processed { message_id } => error(
            format!("its message id `{message_id}` was processed"),
            &forced(),
        ),
        Refusal::Taken { message_id } => error(
            format!(
                "its message id `{message_id}` belongs to another dead letter, with another payload"
            ),
            &forced(),
        ),
    }
}

async fn drop_letters(selected: Selected, yes: bool, output: Output) -> Result<(), CommandError> {
    let selection = selected.required()?;
    let config = output.config.load()?;
    let mut letters = DeadLetters::open(&config).await?;
    let numbers = letters.numbers(&selection).await?;
    if !numbers.is_empty() && !yes {
        ask("drop", "dropped", &numbers)?;
    }
    let bar = bar(numbers.len());
    let dropped = letters
        .drop_letters(&numbers, |done| bar.set_position(done))
        .await;
    bar.finish_and_clear();
    let dropped = dropped?;
    if output.json {
        print_json(&serde_json::json!({ "dropped": dropped }))?;
    } else {
        print(&text::dropped(dropped.len()))?;
    }
    if selection.numbers.is_empty() {
        // One that went meanwhile was meant to go.
        return Ok(());
    }
    let missing = numbers
        .iter()
        .filter(|number| !dropped.contains(number))
        .map(|number| crate::app::not_there(*number))
        .collect();
    CommandError::all(missing).map_or(Ok(()), Err)
}

async fn export(
    selected: Selected,
    file: Option<PathBuf>,
    config: ConfigFile,
) -> Result<(), CommandError> {
    let config = config.load()?;
    let mut letters = DeadLetters::open(&config).await?;
    let selection = selected.or_all();
    let numbers = letters.numbers(&selection).await?;
    let bar = if file.is_some() {
        bar(numbers.len())
    } else {
        ProgressBar::hidden()
    };
    let shown = file.clone().unwrap_or_else(|| "-".into());
    let mut sink: Box<dyn Write> = match &file {
        None => Box::new(BufWriter::new(std::io::stdout())),
        Some(file) => {
            let file = File::create(file).map_err(|error| cannot_write(file, &error))?;
            Box::new(BufWriter::new(file))
        }
    };
    let mut is_read = true;
    let mut end_of = |result: std::io::Result<()>| match result {
        // Whoever read it has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            is_read = false;
            Ok(())
        }
        result => result.map_err(|error| cannot_write(&shown, &error)),
    };
    let exported = letters
        .export(&numbers, |record| {
            let mut line = serde_json::to_vec(record).map_err(|error| {
                CommandError::new(Exit::Bug, format!("cannot write JSON: {error}"), None)
            })?;
            line.push(b'\n');
            bar.inc(1);
            end_of(sink.write_all(&line))
        })
        .await;
    bar.finish_and_clear();
    let exported = exported?;
    end_of(sink.flush())?;
    if is_read {
        let _ = writeln!(
            std::io::stderr(),
            "exported {}",
            count(exported, "dead letter")
        );
    }
    let missing = selection
        .numbers
        .len()
        .saturating_sub(usize::try_from(exported).unwrap_or(usize::MAX));
    if missing > 0 {
        return Err(CommandError::new(
            Exit::Failed,
            format!("not there: {missing} of the dead letters that were named"),
            Some("`hapax dead-letters list` shows the numbers"),
        ));
    }
    Ok(())
}

async fn import(file: PathBuf, output: Output) -> Result<(), CommandError> {
    let config = output.config.load()?;
    let shown = if file == Path::new("-") {
        "standard input".to_owned()
    } else {
        format!("`{}`", file.display())
    };
    let reader: Box<dyn std::io::BufRead> = if file == Path::new("-") {
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        let opened = File::open(&file).map_err(|error| {
            CommandError::new(
                Exit::Failed,
                format!("cannot read {shown}: {error}"),
                Some("name a file that can be read, or `-` for standard input"),
            )
        })?;
        Box::new(BufReader::new(opened))
    };
    let letters = DeadLetters::open(&config).await?;
    let bar = styled(
        ProgressBar::new_spinner(),
        "{spinner} {pos} read, {per_sec}",
    );
    let imported = letters
        .import(&shown, reader.split(b'\n'), |read| bar.set_position(read))
        .await;
    bar.finish_and_clear();
    let imported: Imported = imported?;
    if output.json {
        print_json(&imported)
    } else {
        print(&text::imported(&imported))
    }
}

/// Asks before several letters are touched.
fn ask(act: &str, done: &str, numbers: &[i64]) -> Result<(), CommandError> {
    let note = match act {
        "drop" => " Their ids stay claimed: a redelivery stays a duplicate.",
        _ => "",
    };
    listing::ask(act, done, &count(numbers.len() as u64, "dead letter"), note)
}

fn bar(length: usize) -> ProgressBar {
    styled(
        ProgressBar::new(length as u64),
        "{bar:40} {pos}/{len}, {per_sec}, {eta} left",
    )
}

fn cannot_write(file: &Path, error: &std::io::Error) -> CommandError {
    if file == Path::new("-") {
        return CommandError::new(
            Exit::Failed,
            format!("cannot write to standard output: {error}"),
            None,
        );
    }
    CommandError::new(
        Exit::Failed,
        format!("cannot write `{}`: {error}", file.display()),
        Some("name a file in a folder that is there and writable"),
    )
}

fn written(result: std::io::Result<()>) -> Result<(), CommandError> {
    match result.and_then(|()| std::io::stdout().flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(cannot_write(Path::new("-"), &error))
        }
        _ => Ok(()),
    }
}
