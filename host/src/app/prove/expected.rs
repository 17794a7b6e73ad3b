//! Compares the once-only run with what the project expects of it, and writes that down for the first time.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::project::Expected;
use super::snapshot::{Comparison, DEAD, Difference, OUTBOX, Row, Snapshot};
use crate::exit::{CommandError, Exit};

/// The columns of a dead letter's reason: a part of it is enough.
const REASON: &str = "reason";
/// Of a published message: JSON is compared as such.
const PAYLOAD: &str = "payload";

/// Returns the rows that are not as expected, or why it can't be told.
pub(super) fn differences(
    expected: &Expected,
    found: &Snapshot,
    comparison: &Comparison,
) -> Result<Vec<Difference>, CommandError> {
    let mut differences = Vec::new();
    for (table, rows) in &expected.tables {
        let Some(found) = found.tables.get(table) else {
            let names: Vec<String> = found
                .tables
                .keys()
                .filter(|name| !name.starts_with('('))
                .map(|name| format!("`{name}`"))
                .collect();
            return Err(CommandError::new(
                Exit::Configuration,
                format!(
                    "the expectations name a table `{table}`, which the migrations do not make"
                ),
                Some(&format!("the tables are {}", names.join(", "))),
            ));
        };
        differences.extend(of_table(table, rows, found, comparison.key_of(table)));
    }
    let none = Vec::new();
    for (table, rows) in [(OUTBOX, &expected.outbox), (DEAD, &expected.dead)] {
        if let Some(rows) = rows {
            let found = found.tables.get(table).unwrap_or(&none);
            differences.extend(of_table(table, rows, found, comparison.key_of(table)));
        }
    }
    Ok(differences)
}

fn of_table(table: &str, expected: &[Row], found: &[Row], key: &[String]) -> Vec<Difference> {
    let mut left: Vec<&Row> = found.iter().collect();
    let mut missing = Vec::new();
    for row in expected {
        match left.iter().position(|found| is_as(row, found)) {
            Some(place) => drop(left.remove(place)),
            None => missing.push(row),
        }
    }
    // Of the rest, those go together that have the same key, or, if the expectation does not name it, the most in common.
    let mut differences = Vec::new();
    for row in missing {
        let common = |found: &Row| {
            row.iter()
                .filter(|(column, value)| {
                    found
                        .get(*column)
                        .is_some_and(|found| fits(column, value, found))
                })
                .count()
        };
        let has_key = !key.is_empty() && key.iter().all(|column| row.contains_key(column));
        let is_twin = |found: &Row| {
            !has_key
                || key
                    .iter()
                    .all(|column| row.get(column) == found.get(column))
        };
        let nearest = (0..left.len())
            .filter(|place| is_twin(left[*place]))
            .max_by_key(|place| (common(left[*place]), usize::MAX - place))
            .filter(|place| common(left[*place]) > 0);
        let found = nearest.map(|place| left.remove(place).clone());
        differences.push(Difference {
            table: table.to_owned(),
            columns: found.as_ref().map_or_else(Vec::new, |found| {
                row.iter()
                    .filter(|(column, value)| {
                        !found
                            .get(*column)
                            .is_some_and(|found| fits(column, value, found))
                    })
                    .map(|(column, _)| column.clone())
                    .collect()
            }),
            reference: Some(row.clone()),
            found,
        });
    }
    differences.extend(left.into_iter().map(|row| Difference {
        table: table.to_owned(),
        columns: Vec::new(),
        reference: None,
        found: Some(row.clone()),
    }));
    differences
}

/// True if the row has all that is expected, in the columns that are named.
fn is_as(expected: &Row, found: &Row) -> bool {
    expected.iter().all(|(column, value)| {
        found
            .get(column)
            .is_some_and(|found| fits(column, value, found))
    })
}

fn fits(column: &str, expected: &Json, found: &Json) -> bool {
    if expected == found {
        return true;
    }
    match (expected, found) {
        (Json::String(part), Json::String(text)) if column == REASON => text.contains(part),
        // SQLite has no truth values, and keeps JSON as text.
        (Json::Bool(expected), Json::Number(number)) => {
            number.as_i64() == Some(i64::from(*expected))
        }
        (Json::Object(_) | Json::Array(_), Json::String(text)) => {
            serde_json::from_str::<Json>(text).is_ok_and(|found| found == *expected)
        }
        (Json::Number(_), Json::String(text)) if column == PAYLOAD => {
            serde_json::from_str::<Json>(text).is_ok_and(|found| found == *expected)
        }
        (Json::Number(expected), Json::Number(found)) => expected.as_f64() == found.as_f64(),
        // An exact decimal.
        (Json::Number(expected), Json::String(text)) => expected.to_string() == *text,
        _ => false,
    }
}

/// Writes what the once-only run left behind as the expectations, without the columns that `is_left_out`.
pub(super) fn write(
    file: &Path,
    found: &Snapshot,
    is_left_out: impl Fn(&str, &str) -> bool,
) -> Result<(), CommandError> {
    let mut lines = String::new();
    let kept = |table: &str, rows: &[Row]| -> Vec<Row> {
        rows.iter()
            .map(|row| {
                row.iter()
                    .filter(|(column, _)| !is_left_out(table, column))
                    .map(|(column, value)| (column.clone(), value.clone()))
                    .collect()
            })
            .collect()
    };
    for (table, rows) in &found.tables {
        let rows = kept(table, rows);
        let line = match table.as_str() {
            OUTBOX => json!({ "outbox": rows }),
            DEAD => json!({ "dead": rows }),
            name if name.starts_with('(') => continue,
            name => json!({ "table": name, "rows": rows }),
        };
        lines.push_str(&line.to_string());
        lines.push('\n');
    }
    // Never over a file that somebody wrote.
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(file)
        .and_then(|mut file| std::io::Write::write_all(&mut file, lines.as_bytes()))
        .map_err(|error| {
            let hint = match error.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    "remove it first, or leave `--write-expected` out"
                }
                _ => "let this user write into the folder",
            };
            CommandError::new(
                Exit::Failed,
                format!("cannot write `{}`: {error}", file.display()),
                Some(hint),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(json: Json) -> Row {
        json.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn only_named_columns_count_and_values_fit_in_the_forms_that_people_write() {
        let found = row(json!({
            "id": "a", "n": 1, "flag": 1, "doc": "{\"x\": [1]}", "price": "1.50", "at": "2026", "reason": "no such account `a`",
        }));
        for expected in [
            json!({}),
            json!({ "id": "a", "n": 1.0 }),
            json!({ "flag": true, "doc": { "x": [1] }, "price": "1.50" }),
            json!({ "reason": "no such account" }),
        ] {
            assert!(is_as(&row(expected.clone()), &found), "{expected}");
        }
        for expected in [
            json!({ "id": "b" }),
            json!({ "n": "1" }),
            json!({ "flag": false }),
            json!({ "missing": null }),
            json!({ "id": "" }),
        ] {
            assert!(!is_as(&row(expected.clone()), &found), "{expected}");
        }
    }

    #[test]
    fn rows_count_as_often_as_they_are_there_and_the_nearest_are_put_together() {
        let (one, two) = (json!({ "id": 1, "n": 5 }), json!({ "id": 2, "n": 5 }));
        let expected = [
            row(one.clone()),
            row(one.clone()),
            row(json!({ "id": 2, "n": 6 })),
        ];
        let found = [row(two), row(one.clone())];
        let differences = of_table("t", &expected, &found, &["id".to_owned()]);
        assert_eq!(differences.len(), 2, "{differences:?}");
        let nearest = differences
            .iter()
            .find(|difference| !difference.columns.is_empty());
        assert_eq!(
            nearest.map(|difference| difference.columns.clone()),
            Some(vec!["n".to_owned()])
        );
    }
}
