//! The tables of the handler `github-activity`, as plain values, and how they came out.
//!
//! `cargo xtask demo --full` compiles this file too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use serde_json::{Value, json};

/// How many differing rows of a table are shown.
const SHOWN_ROWS: usize = 5;

/// The bucket for messages that concern no repository.
pub(super) const NO_REPOSITORY: &str = "(none)";

/// The three tables, by primary key.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tables {
    /// By full name.
    pub(super) repositories: BTreeMap<String, Repository>,
    /// By full name and event.
    pub(super) event_counts: BTreeMap<(String, String), i64>,
    /// By GitHub's id.
    pub(super) issues: BTreeMap<i64, Issue>,
}

/// A row of `repositories`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Repository {
    pub(super) events: i64,
    pub(super) last_activity: Option<String>,
}

/// A row of `issues`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Issue {
    pub(super) repository: String,
    pub(super) number: i64,
    pub(super) title: Option<String>,
    pub(super) state: Option<String>,
    pub(super) updated_at: Option<String>,
}

/// A row that is not as expected, in words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) key: String,
    pub(super) expected: Option<String>,
    pub(super) found: Option<String>,
}

/// How one table came out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Compared {
    /// The table.
    pub(super) name: &'static str,
    /// The rows that are there.
    pub(super) rows: usize,
    /// The rows that are not as expected, missing ones included.
    pub(super) differences: Vec<Difference>,
}

/// Compares every row of the three tables.
pub(super) fn compare(expected: &Tables, found: &Tables) -> [Compared; 3] {
    [
        Compared {
            name: "repositories",
            rows: found.repositories.len(),
            differences: differences(&expected.repositories, &found.repositories),
        },
        Compared {
            name: "event_counts",
            rows: found.event_counts.len(),
            differences: differences(&expected.event_counts, &found.event_counts),
        },
        Compared {
            name: "issues",
            rows: found.issues.len(),
            differences: differences(&expected.issues, &found.issues),
        },
    ]
}

impl Compared {
    /// Returns the first rows that differ, indented, each line with its end. Nothing if none differs.
    pub(super) fn shown(&self) -> String {
        let side = |row: &Option<String>| row.clone().unwrap_or_else(|| "no row".to_owned());
        let mut text = String::new();
        for row in self.differences.iter().take(SHOWN_ROWS) {
            text.push_str(&format!(
                "      {}\n        expected  {}\n        found     {}\n",
                row.key,
                side(&row.expected),
                side(&row.found)
            ));
        }
        if let Some(more @ 1..) = self.differences.len().checked_sub(SHOWN_ROWS) {
            text.push_str(&format!("      and {more} more\n"));
        }
        text
    }

    /// Returns it as JSON, with every row that differs.
    pub(super) fn as_json(&self) -> Value {
        let rows: Vec<Value> = self
            .differences
            .iter()
            .map(|row| json!({"key": row.key, "expected": row.expected, "found": row.found}))
            .collect();
        json!({"rows": self.rows, "differences": rows})
    }
}

/// Returns the rows in which `found` is not `expected`, in the order of their keys.
fn differences<K: Ord + Debug, R: PartialEq + Debug>(
    expected: &BTreeMap<K, R>,
    found: &BTreeMap<K, R>,
) -> Vec<Difference> {
    let keys: BTreeSet<&K> = expected.keys().chain(found.keys()).collect();
    let words = |row: Option<&R>| row.map(|row| format!("{row:?}"));
    keys.into_iter()
        .filter(|key| expected.get(key) != found.get(key))
        .map(|key| Difference {
            key: format!("{key:?}"),
            expected: words(expected.get(key)),
            found: words(found.get(key)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_additional_and_changed_rows_differ() {
        let expected = BTreeMap::from([("a", 1), ("b", 2), ("c", 3)]);
        let found = BTreeMap::from([("b", 2), ("c", 4), ("d", 5)]);
        let keys: Vec<_> = differences(&expected, &found)
            .into_iter()
            .map(|row| (row.key, row.expected, row.found))
            .collect();
        let row = |key: &str, expected: Option<&str>, found: Option<&str>| {
            (
                format!("{key:?}"),
                expected.map(str::to_owned),
                found.map(str::to_owned),
            )
        };
        assert_eq!(
            keys,
            [
                row("a", Some("1"), None),
                row("c", Some("3"), Some("4")),
                row("d", None, Some("5")),
            ]
        );
        assert!(differences(&expected, &expected).is_empty());
    }

    #[test]
    fn every_table_is_compared() {
        let full = Tables {
            repositories: [("a/b".to_owned(), Repository::default())].into(),
            event_counts: [(("a/b".to_owned(), "push".to_owned()), 1)].into(),
            issues: (0..7)
                .map(|id| {
                    let issue = Issue {
                        repository: "a/b".to_owned(),
                        number: id,
                        title: None,
                        state: None,
                        updated_at: None,
                    };
                    (id, issue)
                })
                .collect(),
        };
        assert!(
            compare(&full, &full)
                .iter()
                .all(|table| table.differences.is_empty() && table.shown().is_empty())
        );
        let compared = compare(&full, &Tables::default());
        assert_eq!(
            compared.each_ref().map(|table| table.differences.len()),
            [1, 1, 7]
        );
        let text = compared[2].shown();
        assert!(
            text.contains("found     no row") && text.ends_with("and 2 more\n"),
            "{text}"
        );
        assert_eq!(compared[0].as_json()["differences"][0]["key"], "\"a/b\"");
    }
}
