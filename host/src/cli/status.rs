//! `hapax status`: the figures as a table, and what needs somebody's attention beside it.

use std::io::Write as _;
use std::time::Duration;

use super::{count, print, print_json, table};
use crate::app::{self, HandlerStatus, Status};
use crate::config::Config;
use crate::exit::CommandError;

/// A message that should have left this many seconds ago is worth a warning.
const OUTBOX_AGE_SHOWN: u64 = 60;

pub(super) async fn status(config: &Config, json: bool) -> Result<(), CommandError> {
    let status = app::status(config).await?;
    if json {
        return print_json(&status);
    }
    let statuses = &status.handlers;
    print(&status_text(statuses))?;
    print(&claims_text(&status))?;
    warn_of_lost_effects(statuses);
    warn_of_unknown_backlogs(statuses);
    warn_of_the_outbox(statuses);
    if statuses.iter().any(|status| status.dead > 0) {
        let _ = writeln!(
            std::io::stderr(),
            "hint: `hapax dead-letters list` shows what was given up on, `hapax dead-letters replay` runs it again"
        );
    }
    Ok(())
}

fn status_text(statuses: &[HandlerStatus]) -> String {
    let mut rows = vec![
        [
            "handler",
            "claimed",
            "duplicates",
            "retried",
            "dead",
            "backlog",
            "outbox",
        ]
        .map(str::to_owned),
    ];
    for status in statuses {
        rows.push([
            status.name.clone(),
            status.claimed.to_string(),
            status.duplicates.to_string(),
            status.retried.to_string(),
            status.dead.to_string(),
            status
                .backlog
                .map_or_else(|| "?".to_owned(), |backlog| backlog.to_string()),
            status.outbox.unpublished.to_string(),
        ]);
    }
    table(&rows)
}

/// Says how large the claims table is, once there is a claim.
fn claims_text(status: &Status) -> String {
    let claims = &status.claims;
    let Some(per_million) = claims.bytes_per_million else {
        return String::new();
    };
    let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let mut text = format!(
        "\n{} in {}, {} per million\n",
        count(claims.rows, "claim"),
        mebibytes(claims.bytes),
        mebibytes(per_million),
    );
    for handler in &status.handlers {
        if let Some(seconds) = handler.oldest_claim_seconds {
            let age = indicatif::HumanDuration(Duration::from_secs(seconds));
            text.push_str(&format!("oldest claim of `{}`: {age}\n", handler.name));
        }
    }
    text
}

/// On standard error, so that the table stays a table.
fn warn_of_lost_effects(statuses: &[HandlerStatus]) {
    let mut error = std::io::stderr();
    for HandlerStatus {
        name, unreconciled, ..
    } in statuses
    {
        let Some(lost) = unreconciled else {
            continue;
        };
        let _ = writeln!(
            error,
            "warning: {}{} of `{name}` {} done at the broker without an effect in this database, the first is number {}{}\n\
             hint: after a restore or a failover `hapax rewind {name} --to {}` has them take effect; if they were processed \
             elsewhere, `--to {}` leaves them",
            if lost.at_least { "at least " } else { "" },
            count(lost.messages, "message"),
            if lost.messages == 1 { "is" } else { "are" },
            lost.first_sequence,
            lost.first_published_at
                .as_ref()
                .map_or_else(String::new, |at| format!(", published at {at}")),
            lost.first_sequence,
            lost.ack_floor + 1,
        );
    }
}

/// On standard error, so that the table stays a table.
fn warn_of_unknown_backlogs(statuses: &[HandlerStatus]) {
    let mut error = std::io::stderr();
    for status in statuses {
        if let Some(why) = &status.backlog_error {
            let _ = writeln!(
                error,
                "warning: the backlog of `{}` is not known: {why}",
                status.name
            );
        }
        if let Some(hint) = &status.backlog_hint {
            let _ = writeln!(error, "hint: {hint}");
        }
    }
}

/// On standard error, so that the table stays a table.
fn warn_of_the_outbox(statuses: &[HandlerStatus]) {
    let mut error = std::io::stderr();
    for HandlerStatus { name, outbox, .. } in statuses {
        if outbox.parked > 0 {
            let _ = writeln!(
                error,
                "warning: {} of `{name}` could not be published and {} parked\nhint: `hapax outbox list --state parked --handler \
                 {name}` says why, `hapax outbox republish` tries again",
                count(outbox.parked, "message"),
                if outbox.parked == 1 { "is" } else { "are" },
            );
        }
        if outbox.is_off && outbox.unpublished > 0 {
            let _ = writeln!(
                error,
                "warning: what `{name}` published does not leave: no target is configured\nhint: write a table \
                 `[targets.NAME]`, and `target = \"NAME\"` in `[handlers.{name}]`"
            );
            continue;
        }
        for stranded in &outbox.stranded {
            let _ = writeln!(
                error,
                "warning: {} of `{name}` in the outbox {} for {}\nhint: {}",
                count(stranded.messages, "message"),
                if stranded.messages == 1 {
                    "waits"
                } else {
                    "wait"
                },
                stranded.waits_for(),
                stranded.hint()
            );
        }
        if let Some(age) = outbox.oldest_seconds.filter(|age| *age >= OUTBOX_AGE_SHOWN) {
            let _ = writeln!(
                error,
                "warning: the oldest message of `{name}` in the outbox should have left {} ago",
                count(age, "second")
            );
        }
    }
}
