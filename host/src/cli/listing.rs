//! What commands that list and change rows share: columns, moments, questions.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use super::table_of;
use crate::app::moment_text;
use crate::exit::{CommandError, Exit};
use crate::message::Instant;
use crate::text::one_line;

/// The width of a list, in characters.
pub(super) const WIDTH: usize = 120;

/// Returns a moment to the second; `-` if there is none.
pub(super) fn moment(moment: Option<Instant>) -> String {
    moment_text(moment).map_or_else(
        || "-".to_owned(),
        |text| {
            let (seconds, _) = text.split_once('.').unwrap_or((&text, ""));
            format!("{seconds}Z")
        },
    )
}

/// Cuts a text to `max` characters.
pub(super) fn cut(text: &str, max: usize) -> String {
    let text = one_line(text);
    if text.chars().count() <= max {
        return text;
    }
    let mut kept: String = text.chars().take(max.saturating_sub(1)).collect();
    kept.push('…');
    kept
}

/// Lays rows out within `WIDTH`: the last column takes what is left.
pub(super) fn fitted<const COLUMNS: usize>(mut rows: Vec<[String; COLUMNS]>) -> String {
    let used: usize = (0..COLUMNS - 1)
        .map(|column| {
            let width = rows.iter().map(|row| row[column].chars().count()).max();
            width.unwrap_or(0) + 2
        })
        .sum();
    for row in &mut rows {
        row[COLUMNS - 1] = cut(&row[COLUMNS - 1], WIDTH.saturating_sub(used).max(20));
    }
    let mut text = String::new();
    for line in table_of(&rows, |_| true).lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Asks before rows (`what`, such as `3 dead letters`) are changed. Without a terminal there is nobody to ask.
pub(super) fn ask(act: &str, done: &str, what: &str, note: &str) -> Result<(), CommandError> {
    if !std::io::stdin().is_terminal() {
        return Err(CommandError::new(
            Exit::CommandLine,
            format!("{what} would be {done}, and there is no terminal to ask at"),
            Some("say `--yes`"),
        ));
    }
    let mut err = std::io::stderr();
    let _ = write!(err, "{act} {what}?{note} [y/N] ");
    let _ = err.flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    match (read, answer.trim().to_lowercase().as_str()) {
        (Ok(_), "y" | "yes") => Ok(()),
        _ => Err(CommandError::new(
            Exit::Failed,
            format!("nothing was {done}"),
            None,
        )),
    }
}
