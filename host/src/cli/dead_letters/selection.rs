//! Which dead letters the command line means.

use clap::Args;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::app::LetterSelection;
use crate::config::duration;
use crate::exit::{CommandError, Exit};
use crate::message::{FailureClass, Instant};

#[derive(Debug, Args)]
pub(in crate::cli) struct Filters {
    /// Those of this handler, or of its consumer
    #[arg(long, value_name = "HANDLER")]
    handler: Option<String>,
    /// Those of this class
    #[arg(long, value_name = "CLASS", value_parser = parse_class)]
    class: Option<FailureClass>,
    /// Those given up on in this time, such as `2h`, or since a moment such as `2026-05-01T12:00:00Z`
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<Instant>,
    /// Those whose failure has this fingerprint, or one that begins so; `list --group` shows them
    #[arg(long, value_name = "HEX", value_parser = parse_fingerprint)]
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

fn parse_class(text: &str) -> Result<FailureClass, String> {
    FailureClass::named(text).ok_or_else(|| {
        let names: Vec<&str> = FailureClass::ALL
            .iter()
            .map(|class| class.as_str())
            .collect();
        format!("the classes are {}", names.join(", "))
    })
}

fn parse_since(text: &str) -> Result<Instant, String> {
    let moment = match duration(text) {
        Ok(ago) => OffsetDateTime::now_utc()
            .checked_sub(ago.try_into().map_err(|_| "it is too long ago")?)
            .ok_or("it is too long ago")?,
        Err(_) => OffsetDateTime::parse(text, &Rfc3339).map_err(|_| {
            "write a time such as `30m`, `2h` or `14d`, or a moment such as `2026-05-01T12:00:00Z`"
        })?,
    };
    Ok(Instant {
        seconds: moment.unix_timestamp(),
        nanoseconds: moment.nanosecond() / 1_000_000 * 1_000_000,
    })
}

fn parse_fingerprint(text: &str) -> Result<String, String> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if text.is_empty() || text.len() > 12 || !is_hex {
        return Err("a fingerprint has up to 12 hexadecimal digits".into());
    }
    Ok(text.to_lowercase())
}
