//! The tables of the handler `github-activity`, as plain values, and how two of them differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

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

/// Returns the rows in which `found` is not `expected`, in the order of their keys.
pub(super) fn differences<K: Ord + Debug, R: PartialEq + Debug>(
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
}
