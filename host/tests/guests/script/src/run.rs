//! Does the steps.

use std::hint::black_box;
use std::time::Duration;

use hapax_guest::outbox::Outgoing;
use hapax_guest::sql::{self, Column, Rows, Savepoint, Value};
use hapax_guest::{Error, Failure, Message, config, log, params};
use serde_json::json;

use crate::step::{Action, Level, Moment, OnError, Publish, Record, SavepointEnd, Step};
use crate::tagged::{Hex, Tagged};
use crate::{cursors, savepoints};

/// The rows that a cursor fetches at a time, if the step does not say.
const FETCH_DEFAULT: u32 = 100;
/// The memory that one allocation takes.
const PORTION_BYTES: u64 = 1 << 20;

/// What an action gave.
#[derive(Debug, PartialEq)]
enum Given {
    Nothing,
    Count(u64),
    Counts(Vec<u64>),
    Rows {
        columns: Vec<(String, String)>,
        rows: Vec<Vec<Tagged>>,
    },
    /// A publication's id, or a setting if there is one.
    Text(Option<String>),
    Names(Vec<String>),
}

/// Why an action gave nothing.
enum Trouble {
    /// The host's error, for the step's own words to judge.
    Host(Error),
    /// The script is wrong, or a step inside this one ended the handler.
    End(Failure),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Host(error)
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::End(failure)
    }
}

/// Does the steps in their order. `outer` is the number of the step that holds them, with a point behind it.
pub(crate) fn steps(message: &Message, steps: &[Step], outer: &str) -> Result<(), Failure> {
    for (index, step) in steps.iter().enumerate() {
        one(message, step, &format!("{outer}{}", index + 1))?;
    }
    Ok(())
}

fn one(message: &Message, step: &Step, number: &str) -> Result<(), Failure> {
    let given = match action(message, step, number) {
        Ok(given) => Ok(given),
        Err(Trouble::Host(error)) => Err(error),
        Err(Trouble::End(failure)) => return Err(failure),
    };
    check(step, &given).map_err(|problem| wrong(number, problem))?;
    if let Some(record) = &step.record {
        let text = match &given {
            Ok(given) => given_json(given),
            Err(error) => error_json(error),
        };
        keep(record, &text.to_string())?;
    }
    match given {
        Err(error) if step.expect_error.is_none() && !step.swallow => Err(match step.on_error {
            OnError::Retry => error.into(),
            OnError::Reject => Failure::reject(error),
        }),
        _ => Ok(()),
    }
}

/// Does what the step says and returns what it gave, to be judged by the step's expectations.
fn action(message: &Message, step: &Step, number: &str) -> Result<Given, Trouble> {
    let Some(action) = step.action() else {
        return Err(wrong(number, "wanted exactly one action".to_owned()).into());
    };
    let params = || values(message, &step.params, number);
    Ok(match action {
        Action::Execute(statement) => Given::Count(sql::execute(statement, &params()?)?),
        Action::ExecuteMany(statement) => {
            let rows: Result<Vec<Vec<Value>>, Failure> = step
                .rows
                .iter()
                .map(|row| values(message, row, number))
                .collect();
            Given::Counts(sql::execute_many(statement, &rows?)?)
        }
        Action::Query(statement) => {
            let rows = sql::query(statement, &params()?)?;
            Given::Rows {
                columns: columns(rows.columns()),
                rows: tagged(rows),
            }
        }
        Action::Cursor(statement) => cursor(statement, &params()?, step)?,
        Action::OpenCursor(open) => {
            cursors::open(&open.name, &open.statement, &params()?)?;
            Given::Nothing
        }
        Action::FetchCursor(name) => {
            let fetched = cursors::with(name, |cursor| {
                let rows = cursor.fetch(step.fetch.unwrap_or(FETCH_DEFAULT));
                (columns(cursor.columns()), rows)
            });
            let (columns, rows) = fetched.ok_or_else(|| no_cursor(name, number))?;
            Given::Rows {
                columns,
                rows: tagged(rows?),
            }
        }
        Action::CountCursor(name) => {
            let mut count = 0;
            loop {
                let rows = cursors::with(name, |cursor| {
                    cursor.fetch(step.fetch.unwrap_or(FETCH_DEFAULT))
                });
                let rows = rows.ok_or_else(|| no_cursor(name, number))??;
                if rows.is_empty() {
                    break Given::Count(count);
                }
                count += rows.len() as u64;
            }
        }
        Action::DropCursor(name) => {
            drop(cursors::take(name).ok_or_else(|| no_cursor(name, number))?);
            Given::Nothing
        }
        Action::SumCursor(statement) => {
            let mut sum = 0;
            for row in sql::open_cursor(statement, &params()?)?.rows() {
                sum += row?.get::<u64>(0)?;
            }
            Given::Count(sum)
        }
        Action::Savepoint(end) => savepoint(message, step, end, number)?,
        Action::BeginSavepoint(name) => {
            savepoints::begin(name)?;
            Given::Nothing
        }
        Action::ReleaseSavepoint(name) => {
            named(name, number)?.release()?;
            Given::Nothing
        }
        Action::RollBackSavepoint(name) => {
            named(name, number)?.rollback()?;
            Given::Nothing
        }
        Action::DropSavepoint(name) => {
            drop(named(name, number)?);
            Given::Nothing
        }
        Action::Publish(publish) => {
            let outgoing = outgoing(publish).map_err(|problem| wrong(number, problem))?;
            Given::Text(Some(crate::publish(&outgoing)?))
        }
        Action::Config(name) => Given::Text(config::get(name)),
        Action::ConfigNames => Given::Names(config::names()),
        Action::Log(line) => {
            let fields: Vec<(String, String)> = line.fields.clone().into_iter().collect();
            log::write(level(line.level), &line.message.0, &fields);
            Given::Nothing
        }
        Action::RecordMessage(record) => {
            keep(record, &message_json(message).to_string())?;
            Given::Nothing
        }
        Action::Reject(text) => return Err(Failure::reject(&text.0).into()),
        Action::Retry(retry) => {
            return Err(Trouble::End(match retry.delay_ms {
                Some(delay) => Failure::retry_after(Duration::from_millis(delay), &retry.reason.0),
                None => Failure::retry(&retry.reason.0),
            }));
        }
        Action::Panic(text) => panic!("{}", text.0),
        Action::Unreachable => unreachable_instruction(),
        Action::Loop => loop {
            black_box(());
        },
        Action::Recurse => {
            black_box(recurse(black_box(0)));
            Given::Nothing
        }
        Action::Busy(rounds) => {
            black_box((0..rounds).fold(0_u64, |sum, round| {
                black_box(sum.wrapping_mul(31).wrapping_add(round))
            }));
            Given::Nothing
        }
        Action::Alloc(bytes) => {
            allocate(bytes);
            Given::Nothing
        }
        Action::Repeat(times) => {
            for round in 1..=times {
                steps(message, &step.steps, &format!("{number}({round})."))?;
            }
            Given::Nothing
        }
        Action::IfConfig(name) => {
            if config::get(name).is_some() {
                steps(message, &step.steps, &format!("{number}."))?;
            }
            Given::Nothing
        }
        Action::IfAttemptBelow(attempt) => {
            if message.attempt < attempt {
                steps(message, &step.steps, &format!("{number}."))?;
            }
            Given::Nothing
        }
    })
}

fn cursor(statement: &str, params: &[Value], step: &Step) -> Result<Given, Trouble> {
    let cursor = sql::open_cursor(statement, params)?;
    let mut rows = Vec::new();
    let mut fetches = 0;
    while step.fetches.is_none_or(|fetches_max| fetches < fetches_max) {
        let portion = cursor.fetch(step.fetch.unwrap_or(FETCH_DEFAULT))?;
        if portion.is_empty() {
            break;
        }
        rows.extend(tagged(portion));
        fetches += 1;
    }
    Ok(Given::Rows {
        columns: columns(cursor.columns()),
        rows,
    })
}

fn savepoint(
    message: &Message,
    step: &Step,
    end: SavepointEnd,
    number: &str,
) -> Result<Given, Trouble> {
    let inner = || steps(message, &step.steps, &format!("{number}."));
    if end == SavepointEnd::Closure {
        return match sql::savepoint(|| inner().map_err(Trouble::End)) {
            Ok(()) => Ok(Given::Nothing),
            // A script that is wrong stays wrong.
            Err(Trouble::End(failure)) if step.swallow && !failure.reason().starts_with("step") => {
                Ok(Given::Text(Some(failure.reason().to_owned())))
            }
            Err(trouble) => Err(trouble),
        };
    }
    let savepoint = sql::begin_savepoint()?;
    inner()?;
    match end {
        SavepointEnd::Closure => {}
        SavepointEnd::Release => savepoint.release()?,
        SavepointEnd::Rollback => savepoint.rollback()?,
        SavepointEnd::Drop => drop(savepoint),
        SavepointEnd::Leak => std::mem::forget(savepoint),
    }
    Ok(Given::Nothing)
}

fn named(name: &str, number: &str) -> Result<Savepoint, Failure> {
    savepoints::take(name).ok_or_else(|| wrong(number, format!("there is no savepoint `{name}`")))
}

fn no_cursor(name: &str, number: &str) -> Failure {
    wrong(number, format!("there is no cursor `{name}`"))
}

fn outgoing(publish: &Publish) -> Result<Outgoing, String> {
    let payload = match &publish.payload_hex {
        None => publish.payload.0.clone().into_bytes(),
        Some(hex) => Hex::parse(hex).ok_or("`payload_hex` is not hexadecimal")?.0,
    };
    let mut outgoing = Outgoing::new(&publish.subject).payload(payload);
    for (name, value) in &publish.headers {
        outgoing = outgoing.header(name, value.as_bytes());
    }
    outgoing.target = publish.target.clone();
    outgoing.key = publish.key.clone();
    outgoing.content_type = publish.content_type.clone();
    outgoing.not_before = publish.not_before.map(Into::into);
    Ok(outgoing)
}

/// Compares what was given with what the step expects.
fn check(step: &Step, given: &Result<Given, Error>) -> Result<(), String> {
    if let Some(code) = &step.expect_error {
        return match given {
            Err(error) if error.code_text() == code => Ok(()),
            Err(error) => Err(format!("expected error `{code}`, got {error}")),
            Ok(given) => Err(format!(
                "expected error `{code}`, got {}",
                given_json(given)
            )),
        };
    }
    let Ok(given) = given else {
        return Ok(());
    };
    let mut expected: Vec<(&str, String, bool)> = Vec::new();
    if let Some(count) = step.expect_count {
        let same = match given {
            Given::Count(found) => *found == count,
            Given::Rows { rows, .. } => u64::try_from(rows.len()) == Ok(count),
            _ => false,
        };
        expected.push(("count", count.to_string(), same));
    }
    if let Some(counts) = &step.expect_counts {
        let same = matches!(given, Given::Counts(found) if found == counts);
        expected.push(("counts", json!(counts).to_string(), same));
    }
    if let Some(wanted) = &step.expect_rows {
        let same = matches!(given, Given::Rows { rows, .. } if rows == wanted);
        expected.push(("rows", json!(wanted).to_string(), same));
    }
    if let Some(wanted) = &step.expect_columns {
        let same = matches!(given, Given::Rows { columns, .. }
            if columns.iter().map(|(name, _)| name).eq(wanted));
        expected.push(("columns", json!(wanted).to_string(), same));
    }
    if let Some(wanted) = &step.expect_text {
        let same = matches!(given, Given::Text(Some(found)) if found == wanted);
        expected.push(("text", json!(wanted).to_string(), same));
    }
    for (what, wanted, same) in expected {
        if !same {
            return Err(format!(
                "expected {what} {wanted}, got {}",
                given_json(given)
            ));
        }
    }
    Ok(())
}

fn values(message: &Message, tagged: &[Tagged], number: &str) -> Result<Vec<Value>, Failure> {
    tagged
        .iter()
        .map(|tagged| {
            tagged
                .to_value(message)
                .map_err(|problem| wrong(number, problem))
        })
        .collect()
}

fn tagged(rows: Rows) -> Vec<Vec<Tagged>> {
    rows.into_iter()
        .map(|row| row.values().iter().cloned().map(Tagged::from).collect())
        .collect()
}

fn columns(columns: &[Column]) -> Vec<(String, String)> {
    columns
        .iter()
        .map(|column| (column.name.clone(), column.type_name.clone()))
        .collect()
}

/// Writes a text into the record's table.
fn keep(record: &Record, text: &str) -> Result<(), Failure> {
    // A table's name can't be a parameter, and a test can name whatever it likes: the guard is the host's.
    let statement = format!("INSERT INTO {} (key, value) VALUES ($1, $2)", record.table);
    sql::execute(&statement, &params![record.key, text])?;
    Ok(())
}

fn given_json(given: &Given) -> serde_json::Value {
    match given {
        Given::Nothing => json!({}),
        Given::Count(count) => json!({ "count": count }),
        Given::Counts(counts) => json!({ "counts": counts }),
        Given::Rows { columns, rows } => json!({ "columns": columns, "rows": rows }),
        Given::Text(text) => json!({ "text": text }),
        Given::Names(names) => json!({ "names": names }),
    }
}

fn error_json(error: &Error) -> serde_json::Value {
    json!({ "error": {
        "code": error.code_text(),
        "message": error.message(),
        "retryable": error.is_retryable(),
        "sqlstate": error.sqlstate(),
        "detail": error.detail(),
        "hint": error.hint(),
        "schema": error.schema(),
        "table": error.table(),
        "column": error.column(),
        "constraint": error.constraint(),
        "param": error.param(),
        "row": error.row(),
        "position": error.position(),
        "extra": error.extras(),
    } })
}

fn message_json(message: &Message) -> serde_json::Value {
    let headers: Vec<(&str, Tagged)> = message
        .headers
        .iter()
        .map(|header| {
            let value = match std::str::from_utf8(&header.value) {
                Ok(text) => Tagged::Text(text.to_owned()),
                Err(_) => Tagged::BytesHex(Hex(header.value.clone())),
            };
            (header.name.as_str(), value)
        })
        .collect();
    json!({
        "id": message.id,
        "source": message.source,
        "subject": message.subject,
        "key": message.key,
        "headers": headers,
        "content_type": message.content_type,
        "payload_bytes": message.payload.len(),
        "attempt": message.attempt,
        "published_at": message.published_at.map(Moment::from),
    })
}

fn level(level: Level) -> log::Level {
    match level {
        Level::Trace => log::Level::Trace,
        Level::Debug => log::Level::Debug,
        Level::Info => log::Level::Info,
        Level::Warn => log::Level::Warn,
        Level::Error => log::Level::Error,
    }
}

fn wrong(number: &str, problem: String) -> Failure {
    Failure::reject(format_args!("step {number}: {problem}"))
}

/// Traps without a word, as a handler in another language may.
fn unreachable_instruction() -> ! {
    #[cfg(target_arch = "wasm32")]
    std::arch::wasm32::unreachable();
    #[cfg(not(target_arch = "wasm32"))]
    std::process::abort();
}

/// Calls itself until the stack is used up.
fn recurse(depth: u64) -> u64 {
    let frame = black_box([depth; 32]);
    if frame[0] == u64::MAX {
        return 0;
    }
    recurse(black_box(depth + 1)).wrapping_add(frame[31])
}

/// Takes this much memory, in portions, and touches all of it.
fn allocate(bytes: u64) {
    let mut kept = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let portion = left.min(PORTION_BYTES);
        kept.push(vec![1_u8; usize::try_from(portion).unwrap_or(usize::MAX)]);
        left -= portion;
    }
    black_box(kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(text: &str) -> Step {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn expectations_are_compared_and_both_sides_shown() {
        let given = Ok(Given::Rows {
            columns: vec![("n".to_owned(), "INT8".to_owned())],
            rows: vec![vec![Tagged::Int64(1)]],
        });
        let good = step(
            r#"{"query": "x", "expect_rows": [[{"int64": 1}]], "expect_count": 1, "expect_columns": ["n"]}"#,
        );
        assert_eq!(check(&good, &given), Ok(()));
        let bad = step(r#"{"query": "x", "expect_rows": [[{"int64": 2}]]}"#);
        assert_eq!(
            check(&bad, &given),
            Err(
                r#"expected rows [[{"int64":2}]], got {"columns":[["n","INT8"]],"rows":[[{"int64":1}]]}"#
                    .to_owned()
            )
        );
        let error = step(r#"{"query": "x", "expect_error": "denied.statement"}"#);
        assert!(check(&error, &given).is_err());
        let text = step(r#"{"config": "x", "expect_text": "EUR"}"#);
        assert_eq!(
            check(&text, &Ok(Given::Text(Some("EUR".to_owned())))),
            Ok(())
        );
        assert!(check(&text, &Ok(Given::Text(None))).is_err());
    }
}
