//! What a run left behind, as plain rows, and in what two of them differ.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use crate::handler::SeenTable;
use crate::store::{
    Connection, OutboxFilter, StoreError, Table, Tx, Value, instant_to_text, to_base64,
};

/// Stands for the outbox where tables are named.
pub(super) const OUTBOX: &str = "(outbox)";
/// Stands for the dead letters where tables are named.
pub(super) const DEAD: &str = "(dead letters)";
/// Stands for messages that wait behind a dead letter of their key.
pub(super) const HELD: &str = "(held messages)";

/// The most rows of one table that are read.
const ROWS_MAX: u64 = 1_000_000;
/// The last year that is written as a date.
const YEAR_MAX: i64 = 9999;
/// Rows of the outbox, or letters, that are asked for at a time.
const PAGE: u32 = 500;

/// A row by its columns.
pub(super) type Row = Map<String, Json>;

/// All rows, by table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::app) struct Snapshot {
    pub(super) tables: BTreeMap<String, Vec<Row>>,
}

/// A row in which two runs differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The table, or `(outbox)`, `(dead letters)`, `(held messages)`.
    pub table: String,
    /// The columns that differ; empty if the row is only in one of the two.
    pub columns: Vec<String>,
    /// As the once-only run, or the expectation, has it.
    pub reference: Option<Map<String, Json>>,
    /// As it was found.
    pub found: Option<Map<String, Json>>,
}

/// Reads everything that the handler left behind.
pub(super) async fn read(
    mut connection: Connection,
    tables: &[Table],
    consumer: &str,
) -> Result<Snapshot, StoreError> {
    let mut snapshot = Snapshot::default();
    let outbox = read_outbox(&mut connection, consumer).await?;
    snapshot.tables.insert(OUTBOX.to_owned(), outbox);
    let letters = connection.dead_letters(consumer, u32::MAX >> 1).await?;
    let dead =
        letters
            .into_iter()
            .map(|stored| {
                let letter = stored.letter;
                row([
                    (
                        "id",
                        json!(letter.message_id.map_or_else(
                            || format!("line {}", letter.position),
                            |id| id.to_string()
                        )),
                    ),
                    ("class", json!(letter.class.as_str())),
                    ("reason", json!(letter.reason)),
                ])
            })
            .collect();
    snapshot.tables.insert(DEAD.to_owned(), dead);
    let mut tx = Tx::begin(connection).await?;
    for table in tables {
        let result = tx
            .query(&format!("SELECT * FROM {}", table.quoted), &[], ROWS_MAX)
            .await
            .map_err(StoreError::Refused)?;
        let names: Vec<String> = result
            .columns
            .into_iter()
            .map(|column| column.name)
            .collect();
        let rows = rows_of(&names, &result.rows);
        snapshot.tables.insert(table.name.clone(), rows);
    }
    tx.rollback().await;
    Ok(snapshot)
}

async fn read_outbox(connection: &mut Connection, consumer: &str) -> Result<Vec<Row>, StoreError> {
    let filter = OutboxFilter {
        consumers: vec![consumer.to_owned()],
        ..OutboxFilter::default()
    };
    let mut rows = Vec::new();
    let mut below = None;
    loop {
        let page = connection.outbox_rows(&filter, below, PAGE).await?;
        let Some(last) = page.last() else {
            break;
        };
        below = Some(last.message.number);
        for summary in page {
            let Some(stored) = connection.outbox_row(summary.message.number).await? else {
                continue;
            };
            let message = stored.message;
            let headers: Vec<Json> = message
                .headers
                .iter()
                .map(|header| json!([header.name, bytes(&header.value)]))
                .collect();
            rows.push(row([
                ("id", json!(message.id)),
                ("message", json!(stored.message_id.as_str())),
                ("target", json!(message.target)),
                ("subject", json!(message.subject)),
                ("key", json!(message.key)),
                ("headers", json!(headers)),
                ("content_type", json!(message.content_type)),
                ("payload", bytes(&message.payload)),
            ]));
        }
    }
    rows.reverse();
    Ok(rows)
}

pub(super) fn row<const COLUMNS: usize>(cells: [(&str, Json); COLUMNS]) -> Row {
    cells
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Bytes as JSON: as text if they are, else `{"base64": ..}`.
pub(in crate::app) fn bytes(bytes: &[u8]) -> Json {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "base64": to_base64(bytes) }),
    }
}

/// A value as JSON: numbers, truth values and texts as they are, JSON as itself, all else in a form of its own as text.
fn cell(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Boolean(boolean) => json!(boolean),
        Value::Int64(number) => json!(number),
        Value::Float64(number) if number.is_finite() => json!(number),
        Value::Float64(number) => json!(number.to_string()),
        Value::Text(text) | Value::Decimal(text) | Value::Uuid(text) => json!(text),
        Value::Other { text, .. } => json!(text),
        Value::Bytes(data) | Value::Undecoded { bytes: data, .. } => {
            json!({ "base64": to_base64(data) })
        }
        Value::Date(date) => json!(format!(
            "{:04}-{:02}-{:02}",
            date.year, date.month, date.day
        )),
        Value::Time(time) => json!(time_text(time)),
        Value::Timestamp(timestamp) => {
            let date = timestamp.date;
            json!(format!(
                "{:04}-{:02}-{:02}T{}",
                date.year,
                date.month,
                date.day,
                time_text(&timestamp.time)
            ))
        }
        Value::Instant(instant) => match instant_to_text(*instant, YEAR_MAX) {
            Ok(text) => json!(text),
            Err(_) => json!(format!("{}.{:09}", instant.seconds, instant.nanoseconds)),
        },
        Value::Interval(interval) => json!({
            "months": interval.months, "days": interval.days, "microseconds": interval.microseconds,
        }),
        Value::Json(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        Value::Array(_, elements) => Json::Array(elements.iter().map(cell).collect()),
    }
}

fn time_text(time: &crate::store::Time) -> String {
    format!(
        "{:02}:{:02}:{:02}.{:06}",
        time.hour, time.minute, time.second, time.microsecond
    )
}

fn rows_of(names: &[String], rows: &[Vec<Value>]) -> Vec<Row> {
    rows.iter()
        .map(|values| names.iter().cloned().zip(values.iter().map(cell)).collect())
        .collect()
}

impl Snapshot {
    /// Makes one of tables that were looked at around a call; those with too many rows are empty.
    pub(in crate::app) fn of_seen<'a>(seen: impl Iterator<Item = &'a SeenTable>) -> Self {
        let tables = seen.map(|seen| {
            let rows = seen.rows.as_deref().unwrap_or_default();
            (seen.table.name.clone(), rows_of(&seen.columns, rows))
        });
        Self {
            tables: tables.collect(),
        }
    }
}

/// What two runs are compared by.
#[derive(Clone, Debug, Default)]
pub(in crate::app) struct Comparison {
    /// The primary keys, by table.
    keys: BTreeMap<String, Vec<String>>,
    /// Columns that are left out: table and column.
    left_out: BTreeSet<(String, String)>,
}

impl Comparison {
    /// Compares the tables by their keys, without some columns.
    pub(in crate::app) fn new(
        tables: &[Table],
        left_out: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let mut left_out: BTreeSet<(String, String)> = left_out.into_iter().collect();
        // The words of a reason may tell of what the order was; that it is dead, and why, may not.
        left_out.insert((DEAD.to_owned(), "reason".to_owned()));
        let mut keys: BTreeMap<String, Vec<String>> = tables
            .iter()
            .map(|table| {
                let key = table
                    .columns
                    .iter()
                    .filter(|column| column.is_key)
                    .map(|column| column.name.clone());
                (table.name.clone(), key.collect())
            })
            .collect();
        keys.insert(OUTBOX.to_owned(), vec!["id".to_owned()]);
        keys.insert(DEAD.to_owned(), vec!["id".to_owned()]);
        Self { keys, left_out }
    }

    /// Returns the columns of the primary key of a table; none if it has none.
    pub(in crate::app) fn key_of(&self, table: &str) -> &[String] {
        self.keys.get(table).map_or(&[], Vec::as_slice)
    }

    /// Returns the rows in which `found` differs from `reference`. How often a row is there counts, its place does not.
    pub(in crate::app) fn differences(
        &self,
        reference: &Snapshot,
        found: &Snapshot,
    ) -> Vec<Difference> {
        let names: BTreeSet<&String> = reference.tables.keys().chain(found.tables.keys()).collect();
        let none = Vec::new();
        names
            .into_iter()
            .flat_map(|name| {
                let of = |snapshot: &Snapshot| {
                    self.compared(name, snapshot.tables.get(name).unwrap_or(&none))
                };
                self.differing_rows(name, of(reference), of(found))
            })
            .collect()
    }

    /// The rows without what is left out, in an order of their own.
    fn compared(&self, table: &str, rows: &[Row]) -> Vec<(String, Row)> {
        let is_compared = |column: &str| {
            !self
                .left_out
                .contains(&(table.to_owned(), column.to_owned()))
        };
        let mut compared: Vec<(String, Row)> = rows
            .iter()
            .map(|row| {
                let seen: Row = row
                    .iter()
                    .filter(|(column, _)| is_compared(column))
                    .map(|(column, value)| (column.clone(), value.clone()))
                    .collect();
                (Json::Object(seen).to_string(), row.clone())
            })
            .collect();
        compared.sort_by(|one, other| one.0.cmp(&other.0));
        compared
    }

    fn differing_rows(
        &self,
        table: &str,
        reference: Vec<(String, Row)>,
        found: Vec<(String, Row)>,
    ) -> Vec<Difference> {
        // Both are sorted.
        let (mut only_reference, mut only_found) = (Vec::new(), Vec::new());
        let (mut reference, mut found) = (
            reference.into_iter().peekable(),
            found.into_iter().peekable(),
        );
        loop {
            let order = match (reference.peek(), found.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((one, _)), Some((other, _))) => one.cmp(other),
            };
            let expected = reference.next_if(|_| order != Ordering::Greater);
            let seen = found.next_if(|_| order != Ordering::Less);
            if order != Ordering::Equal {
                only_reference.extend(expected.map(|(_, row)| row));
                only_found.extend(seen.map(|(_, row)| row));
            }
        }
        let key = self.keys.get(table).filter(|key| {
            !key.is_empty()
                && !key
                    .iter()
                    .any(|column| self.left_out.contains(&(table.to_owned(), column.clone())))
        });
        let mut differences = Vec::new();
        for row in only_reference {
            let twin = key.and_then(|key| {
                only_found.iter().position(|other| {
                    key.iter()
                        .all(|column| other.get(column) == row.get(column))
                })
            });
            let found = twin.map(|place| only_found.remove(place));
            differences.push(self.difference(table, Some(row), found));
        }
        differences.extend(
            only_found
                .into_iter()
                .map(|row| self.difference(table, None, Some(row))),
        );
        differences
    }

    fn difference(&self, table: &str, reference: Option<Row>, found: Option<Row>) -> Difference {
        let columns = match (&reference, &found) {
            (Some(reference), Some(found)) => reference
                .keys()
                .filter(|column| reference.get(*column) != found.get(*column))
                .filter(|column| {
                    !self
                        .left_out
                        .contains(&(table.to_owned(), (*column).clone()))
                })
                .cloned()
                .collect(),
            _ => Vec::new(),
        };
        Difference {
            table: table.to_owned(),
            columns,
            reference,
            found,
        }
    }
}
