//! Which dead letters the command line means.

use clap::Args;

use crate::app::{LetterSelection, letters_said};
use crate::exit::{CommandError, Exit};
use crate::message::{FailureClass, Instant};

#[derive(Debug, Args)]
pub(in crate::cli) struct Filters {
    /// Those of this handler, or of its consumer
    #[arg(long, value_name = "HANDLER")]
    handler: Option<String>,
    /// Those of this class
    #[arg(long, value_name = "CLASS", value_parser = letters_said::class)]
    class: Option<FailureClass>,
    /// Those given up on in this time, such as `2h`, or since a moment such as `2026-05-01T12:00:00Z`
    #[arg(long, value_name = "TIME", value_parser = letters_said::since)]
    since: Option<Instant>,
    /// Those whose failure has this fingerprint, or one that begins so; `list --group` shows them
    #[arg(long, value_name = "HEX", value_parser = letters_said::fingerprint)]
    fingerprint: Option<String>,
    /// Those of this message id
    #[arg(long, value_name = "ID")]
    id: Option<String>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Selected {
    /// Their numbers
    #[arg(value_name = "NUMBER", conflicts_with_all = ["handler", "class", "since", "fingerprint", "id", "all"])]
    numbers: Vec<i64>,
    #[command(flatten)]
    filters: Filters,
    /// All there are
    #[arg(long, conflicts_with_all = ["handler", "class", "since", "fingerprint", "id"])]
    all: bool,
}

impl Filters {
    pub(super) fn selection(self) -> LetterSelection {
        LetterSelection {
            numbers: Vec::new(),
            handler: self.handler,
            class: self.class,
            since: self.since,
            message_id: self.id,
            fingerprint: self.fingerprint,
        }
    }

    fn is_empty(&self) -> bool {
        self.handler.is_none()
            && self.class.is_none()
            && self.since.is_none()
            && self.fingerprint.is_none()
            && self.id.is_none()
    }
}

impl Selected {
    /// Returns what is meant; nothing said means all.
    pub(super) fn or_all(self) -> LetterSelection {
        LetterSelection {
            numbers: self.numbers,
            ..self.filters.selection()
        }
    }

    /// Returns what is meant; it has to be said.
    pub(super) fn required(self) -> Result<LetterSelection, CommandError> {
        if self.numbers.is_empty() && self.filters.is_empty() && !self.all {
            return Err(CommandError::new(
                Exit::CommandLine,
                "which dead letters are meant is not said",
                Some(
                    "name their numbers, a filter such as `--handler` or `--fingerprint`, or `--all`",
                ),
            ));
        }
        Ok(self.or_all())
    }
}
