//! Makes findings of differences: what was done, with which messages, and what is known of why.

use std::collections::BTreeSet;

use super::bench::{Bench, BreakAt, Ran};
use super::plans::Step;
use super::project::Project;
use super::report::Finding;
use super::snapshot::{DEAD, Difference, OUTBOX};
use super::sql::Statements;
use super::{Broken, dedup_words};
use crate::config::Dedup;
use crate::handler::WatchedRun;
use crate::message::FailureClass;
use crate::text::one_line;

/// How the reason of a message begins that went on after an error.
const ABORTED: &str = "aborted:";

/// Returns what the once-only run has found by itself: handlers that go on after an error of the database.
pub(super) fn swallowed(reference: &Ran) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let aborted = reference.snapshot.rows(DEAD).iter().filter(|letter| {
        letter.get("class").and_then(|class| class.as_str()) == Some(FailureClass::Sql.as_str())
            && reason_of(letter).starts_with(ABORTED)
    });
    for letter in aborted {
        let id = letter
            .get("id")
            .and_then(|id| id.as_str())
            .unwrap_or_default();
        let because = went_on(&reference.runs, Some(id));
        // One message is enough for each cause.
        if findings.iter().any(|finding| finding.because == because) {
            continue;
        }
        findings.push(Finding {
            step: "once",
            what: "a statement failed, and the handler went on and returned ok: nothing of the message is kept, and it became a dead letter"
                .to_owned(),
            messages: vec![id.to_owned()],
            is_smallest: true,
            because,
            hint: Some(
                "return the error; or put what may fail into a savepoint, and roll that back; or write `ON CONFLICT .. DO NOTHING`"
                    .to_owned(),
            ),
            ..Finding::default()
        });
    }
    findings
}

fn reason_of(letter: &super::snapshot::Row) -> &str {
    letter
        .get("reason")
        .and_then(|reason| reason.as_str())
        .unwrap_or_default()
}

/// Returns the errors after which handlers returned ok, of one message or all.
fn went_on(runs: &[WatchedRun], id: Option<&str>) -> Vec<String> {
    let mut found = Vec::new();
    for run in runs
        .iter()
        .filter(|run| run.is_ok && id.is_none_or(|id| run.message.as_str() == id))
    {
        // The first error is the one; those behind it follow from it.
        let failed = run
            .calls
            .iter()
            .zip(1..)
            .find(|(call, _)| call.error.is_some());
        if let Some((call, number)) = failed
            && let Some(error) = &call.error
        {
            let text = format!(
                "host call {number}, {} `{}`, failed with {}; the handler returned ok",
                call.name,
                one_line(call.statement.as_deref().unwrap_or_default()),
                one_line(error)
            );
            if !found.contains(&text) {
                found.push(text);
            }
        }
    }
    found
}

/// Makes a finding of rows that are not as the project expects them.
pub(super) fn unexpected(differences: Vec<Difference>) -> Finding {
    Finding {
        step: "expected",
        what: "the once-only run does not leave what `expected.jsonl` says".to_owned(),
        is_smallest: true,
        differences,
        hint: Some(
            "correct the handler, or the file; `--write-expected` writes a new one if it is gone"
                .to_owned(),
        ),
        ..Finding::default()
    }
}

/// Makes a finding of a step that left something else behind than the once-only run.
pub(super) fn of(
    broken: &Broken,
    project: &Project,
    statements: &Statements,
    bench: &Bench,
) -> Finding {
    let tables = &bench.tables[..];
    let Broken {
        step, differences, ..
    } = broken;
    let delivered = broken
        .plan
        .batches
        .iter()
        .flatten()
        .filter_map(|index| project.messages.get(*index))
        .map(super::project::ProjectMessage::shown);
    let mut because = Vec::new();
    let touched: BTreeSet<&str> = differences
        .iter()
        .map(|difference| difference.table.as_str())
        .collect();
    let differing = statements.differing(tables, |_| false, |_, _| false);
    let reached = |table: &str, column: &str| {
        differences.iter().any(|difference| {
            difference.table == table
                && (difference.columns.is_empty()
                    || difference.columns.iter().any(|name| name == column))
        })
    };
    for sql in &differing {
        let is_why = match (&sql.table, &sql.column) {
            (Some(table), Some(column)) => reached(table, column),
            (Some(table), None) => touched.contains(table.as_str()),
            // What the handler was told can be anywhere.
            (None, _) => true,
        };
        if is_why {
            because.push(format!(
                "{} in `{}` reaches {}",
                sql.what,
                one_line(&sql.statement),
                sql.reaches
            ));
        }
    }
    if differences
        .iter()
        .any(|difference| difference.table == DEAD)
    {
        because.extend(went_on(&broken.ran.runs, None));
    }
    for difference in differences {
        let Some(table) = tables.iter().find(|table| table.name == difference.table) else {
            continue;
        };
        let floats = table
            .columns
            .iter()
            .filter(|column| column.is_float() && difference.columns.contains(&column.name));
        for column in floats.filter(|_| matches!(step, Step::Shuffled(_) | Step::Batches)) {
            because.push(format!(
                "`{}.{}` holds floating-point numbers ({}): a sum of them depends on the order of its parts",
                table.name, column.name, column.type_name
            ));
        }
        if difference.reference.is_none() && !table.columns.iter().any(|column| column.is_key) {
            because.push(format!(
                "`{}` has no primary key that a second row of a message could meet",
                table.name
            ));
        }
    }
    for statement in statements.writing(&broken.ran.runs, &touched) {
        because.push(format!("written by `{}`", one_line(&statement)));
    }
    let mut seen = BTreeSet::new();
    because.retain(|text| seen.insert(text.clone()));
    Finding {
        step: step.name(),
        what: what(broken, project, bench),
        messages: delivered.collect(),
        is_smallest: broken.is_smallest,
        place: place(broken),
        seed: match step {
            Step::Shuffled(seed) => Some(*seed),
            _ => None,
        },
        differences: differences.clone(),
        because,
        hint: hint(broken, project, bench).map(str::to_owned),
    }
}

fn what(broken: &Broken, project: &Project, bench: &Bench) -> String {
    let left = match broken.differences.first() {
        Some(difference) if difference.table == OUTBOX => "published something else",
        Some(difference) if difference.table == DEAD => "left other dead letters",
        _ => "left other rows",
    };
    let how = match broken.step {
        Step::Again => "run once more in the same way, they".to_owned(),
        Step::Batches if bench.takes_batches() => "in one call, they".to_owned(),
        Step::Batches => "in one transaction, they".to_owned(),
        Step::Twice | Step::TwiceLater => format!(
            "delivered twice {}, they",
            dedup_words(project.handler.dedup)
        ),
        Step::Shuffled(_) => "in this order, they".to_owned(),
        Step::RolledBack => "rolled back and run again, they".to_owned(),
        Step::DiedBeforeCommit => {
            "run again after their host died before the commit, they".to_owned()
        }
        Step::DiedAfterCommit => {
            "delivered again after their host died behind the commit, they".to_owned()
        }
        Step::Attempt => {
            let attempt = broken.ran.runs.iter().map(|run| run.attempt).max();
            format!(
                "called with attempt {} instead of 1, they",
                attempt.unwrap_or(2)
            )
        }
    };
    format!("{how} {left}")
}

/// Says where a run was broken, if that is one place.
fn place(broken: &Broken) -> Option<String> {
    let [only] = broken.plan.breaks.as_slice() else {
        return None;
    };
    Some(match only.at {
        BreakAt::RolledBack(number) => {
            let call = broken
                .ran
                .runs
                .last()
                .and_then(|run| run.calls.get(number - 1));
            match call {
                Some(call) => format!(
                    "host call {number}, {} `{}`",
                    call.name,
                    one_line(call.statement.as_deref().unwrap_or_default())
                ),
                None => format!("host call {number}"),
            }
        }
        BreakAt::RolledBackAtEnd | BreakAt::DiedBeforeCommit => {
            "behind the handler's end, before the commit".to_owned()
        }
        BreakAt::DiedAfterCommit => "behind the commit".to_owned(),
        BreakAt::Charged => "before the call".to_owned(),
    })
}

fn hint(broken: &Broken, project: &Project, bench: &Bench) -> Option<&'static str> {
    Some(match broken.step {
        Step::Shuffled(_) if project.handler.order.is_none() => {
            "messages come in any order: keep the newest by a version of its own, add exact numbers, or let `order_by` keep the order"
        }
        Step::Twice | Step::TwiceLater | Step::DiedAfterCommit
            if project.handler.dedup == Dedup::Off =>
        {
            "without claims the handler has to meet its own rows: give them a key of the message's, and write `ON CONFLICT`; or leave \
             `dedup = \"off\"` out"
        }
        Step::Attempt => {
            "a message's attempt tells of failures, which are no part of it: do not write or decide by it"
        }
        Step::Batches if bench.takes_batches() => {
            "a call with many messages has to do what a call with each does: add up (`GROUP BY`) what is for one row, since a statement that \
             joins it with several takes one of them"
        }
        Step::Again | Step::Batches | Step::RolledBack | Step::DiedBeforeCommit => {
            "take times and ids from the message (`published_at`, its id), not from the database"
        }
        _ => return None,
    })
}
