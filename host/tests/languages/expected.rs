//! Compares what a scene's tables hold with a checked-in file.
//!
//! Each line of the file is a table: `table` (or `hapax`, one of hapax's own), `columns` (expressions of SQL, each read as text) and `rows`, in any
//! order. A cell is a text or null; `{"start": .., "names": ..}`, where a language says the rest in its own words, but names what is at fault; or an
//! object with a cell for each language that has its own, and `else` for the others.

use hapax::store::StoreKind;
use serde_json::Value;

use crate::support::scene::Scene;

/// Asserts that the tables are those of `expected/{file}`.
pub(crate) async fn compare(scene: &Scene, file: &str, language: &str) {
    let path = format!(
        "{}/tests/languages/expected/{file}",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(&path).unwrap();
    // All of it is said at once: what is in one table explains another.
    let mut wrong = Vec::new();
    for line in text.lines() {
        let wanted: Value =
            serde_json::from_str(line).unwrap_or_else(|err| panic!("{err}: {line}"));
        let table = match (wanted["table"].as_str(), wanted["hapax"].as_str()) {
            (Some(table), None) => table.to_owned(),
            (None, Some(table)) => scene.store.table(table),
            _ => panic!("{file}: a line names no table: {line}"),
        };
        let columns: Vec<String> = wanted["columns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|column| format!("CAST({} AS text)", column.as_str().unwrap()))
            .collect();
        let columns = columns.join(", ");
        let sql = match scene.store.kind() {
            StoreKind::Sqlite => {
                format!("SELECT json_group_array(json_array({columns})) FROM {table}")
            }
            StoreKind::Postgres => format!(
                "SELECT CAST(coalesce(json_agg(json_build_array({columns})), '[]') AS text) FROM {table}"
            ),
        };
        let found = scene.store.text(&sql).await.unwrap();
        let mut found: Vec<Value> = serde_json::from_str(&found).unwrap();
        let mut rows = wanted["rows"].as_array().unwrap().clone();
        // By the first column, which is the same everywhere.
        let first = |row: &Value| row[0].as_str().unwrap().to_owned();
        found.sort_by_key(first);
        rows.sort_by_key(first);
        if found.len() != rows.len() {
            let shown = serde_json::to_string(&found).unwrap();
            wrong.push(format!(
                "{table}: {} rows, and not {}: {shown}",
                found.len(),
                rows.len()
            ));
            continue;
        }
        for (row, wanted) in found.iter().zip(&rows) {
            let (row, wanted) = (row.as_array().unwrap(), wanted.as_array().unwrap());
            assert_eq!(row.len(), wanted.len(), "{file}: {table}");
            for (cell, wanted) in row.iter().zip(wanted) {
                if !fits(cell, wanted, language) {
                    wrong.push(format!(
                        "{table}: {} holds {cell}, and not {wanted}",
                        row[0]
                    ));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{language}: {file}:\n{}",
        wrong.join("\n")
    );
}

fn fits(cell: &Value, wanted: &Value, language: &str) -> bool {
    let Value::Object(wanted) = wanted else {
        return cell == wanted;
    };
    if let Some(start) = wanted.get("start") {
        let text = cell.as_str().unwrap_or_default();
        let names = wanted.get("names").and_then(Value::as_str);
        return text.starts_with(start.as_str().unwrap())
            && text.contains(names.unwrap_or_default());
    }
    let own = wanted.get(language).or_else(|| wanted.get("else"));
    fits(cell, own.unwrap_or(&Value::Bool(false)), language)
}

#[test]
fn a_cell_is_compared_by_all_that_it_says() {
    let fits = |cell: &str, wanted: &str| {
        fits(
            &Value::from(cell),
            &serde_json::from_str(wanted).unwrap(),
            "c",
        )
    };
    assert!(fits("one", "\"one\"") && !fits("one", "\"two\"") && !fits("one", "null"));
    let wanted = r#"{"start":"not JSON: ","names":"amount"}"#;
    assert!(fits("not JSON: `amount`", wanted) && !fits("not JSON: `account`", wanted));
    assert!(!fits("no `amount`", wanted));
    assert!(
        fits("one", r#"{"c":"one","else":"two"}"#) && !fits("two", r#"{"c":"one","else":"two"}"#)
    );
    assert!(fits("two", r#"{"js":"one","else":"two"}"#) && !fits("two", r#"{"js":"two"}"#));
}
