//! Reading one table of the file: typed values out, problems noted, unknown keys found.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use toml::{Table, Value};

use super::problem::Problem;
use super::units;

/// A table at a known path, with the problems of the whole file.
pub(super) struct Section<'a> {
    path: String,
    table: &'a Table,
    known: RefCell<BTreeSet<&'static str>>,
    problems: &'a RefCell<Vec<Problem>>,
}

impl<'a> Section<'a> {
    pub(super) fn new(path: String, table: &'a Table, problems: &'a RefCell<Vec<Problem>>) -> Self {
        Self {
            path,
            table,
            known: RefCell::default(),
            problems,
        }
    }

    /// Returns the path of `key` in this table.
    pub(super) fn key(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// Notes a problem with `key`.
    pub(super) fn problem(
        &self,
        key: &str,
        text: impl Into<String>,
        hint: impl Into<Option<String>>,
    ) {
        let key = if key.is_empty() {
            self.path.clone()
        } else {
            self.key(key)
        };
        self.problems.borrow_mut().push(Problem {
            key,
            text: text.into(),
            hint: hint.into(),
        });
    }

    fn value(&self, key: &'static str) -> Option<&'a Value> {
        self.known.borrow_mut().insert(key);
        self.table.get(key)
    }

    fn wrong_type(&self, key: &str, wanted: &str, found: &Value) {
        self.problem(
            key,
            format!("expected {wanted}, found {}", describe(found)),
            None,
        );
    }

    /// Returns the text at `key`, if it is there and is one.
    pub(super) fn text(&self, key: &'static str) -> Option<&'a str> {
        match self.value(key)? {
            Value::String(text) => Some(text),
            other => {
                self.wrong_type(key, "a text in quotes", other);
                None
            }
        }
    }

    /// As `text`, and notes a problem if it is missing.
    pub(super) fn required_text(&self, key: &'static str, hint: &str) -> Option<&'a str> {
        if self.table.contains_key(key) {
            return self.text(key);
        }
        self.known.borrow_mut().insert(key);
        self.problem(key, "is missing", hint.to_owned());
        None
    }

    /// Returns the boolean at `key`, or `default`.
    pub(super) fn boolean(&self, key: &'static str, default: bool) -> bool {
        match self.value(key) {
            None => default,
            Some(Value::Boolean(value)) => *value,
            Some(other) => {
                self.wrong_type(key, "`true` or `false`", other);
                default
            }
        }
    }

    /// Returns the whole number at `key`, which must lie in `range`.
    pub(super) fn integer(
        &self,
        key: &'static str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Option<i64> {
        match self.value(key)? {
            Value::Integer(number) if range.contains(number) => Some(*number),
            Value::Integer(number) => {
                self.problem(
                    key,
                    format!(
                        "`{number}` is not from {} to {}",
                        range.start(),
                        range.end()
                    ),
                    None,
                );
                None
            }
            other => {
                self.wrong_type(key, "a whole number", other);
                None
            }
        }
    }

    /// Returns the part at `key`, from 0 to 1.
    pub(super) fn part(&self, key: &'static str) -> Option<f64> {
        let part = match self.value(key)? {
            Value::Float(number) => *number,
            // 0 and 1 may lack the point; other whole numbers are refused with the rest.
            Value::Integer(0) => 0.0,
            Value::Integer(1) => 1.0,
            other => {
                self.wrong_type(key, "a number from 0 to 1", other);
                return None;
            }
        };
        if !(0.0..=1.0).contains(&part) {
            self.problem(key, format!("`{part}` is not from 0 to 1"), None);
            return None;
        }
        Some(part)
    }

    /// Returns the duration at `key`, or `default`; it must be at least `least`.
    pub(super) fn duration(
        &self,
        key: &'static str,
        default: Duration,
        least: Duration,
    ) -> Duration {
        match self.value(key) {
            None => default,
            Some(Value::String(text)) => match units::duration(text) {
                Ok(value) if value >= least => value,
                Ok(_) => {
                    self.problem(key, format!("`{text}` is shorter than {least:?}"), None);
                    default
                }
                Err((text, hint)) => {
                    self.problem(key, text, hint);
                    default
                }
            },
            Some(Value::Integer(number)) => {
                self.problem(
                    key,
                    format!("`{number}` has no unit"),
                    format!("write `\"{number}s\"`"),
                );
                default
            }
            Some(other) => {
                self.wrong_type(key, "a duration such as `\"30s\"`", other);
                default
            }
        }
    }

    /// Returns the size in bytes at `key`, or `default`; it must lie in `range`.
    pub(super) fn size(
        &self,
        key: &'static str,
        default: u64,
        range: std::ops::RangeInclusive<u64>,
    ) -> u64 {
        match self.value(key) {
            None => default,
            Some(Value::String(text)) => match units::size(text) {
                Ok(value) if range.contains(&value) => value,
                Ok(_) => {
                    self.problem(
                        key,
                        format!(
                            "`{text}` is not from {} to {} bytes",
                            range.start(),
                            range.end()
                        ),
                        None,
                    );
                    default
                }
                Err((text, hint)) => {
                    self.problem(key, text, hint);
                    default
                }
            },
            Some(Value::Integer(number)) => {
                self.problem(
                    key,
                    format!("`{number}` has no unit"),
                    format!("write `\"{number}MiB\"`"),
                );
                default
            }
            Some(other) => {
                self.wrong_type(key, "a size such as `\"64MiB\"`", other);
                default
            }
        }
    }

    /// Returns the texts of the array at `key`.
    pub(super) fn texts(&self, key: &'static str) -> Option<Vec<String>> {
        let Value::Array(values) = self.value(key)? else {
            self.problem(
                key,
                "expected a list of texts",
                "write `[\"...\"]`".to_owned(),
            );
            return None;
        };
        let mut texts = Vec::with_capacity(values.len());
        for (index, value) in values.iter().enumerate() {
            match value {
                Value::String(text) => texts.push(text.clone()),
                other => self.wrong_type(&format!("{key}[{index}]"), "a text in quotes", other),
            }
        }
        Some(texts)
    }

    /// Returns the table at `key`, if there is one.
    pub(super) fn section(&self, key: &'static str) -> Option<Section<'a>> {
        match self.value(key)? {
            Value::Table(table) => Some(Section::new(self.key(key), table, self.problems)),
            other => {
                self.wrong_type(key, &format!("a table: `[{}]`", self.key(key)), other);
                None
            }
        }
    }

    /// True if there is a value at `key`, of whatever type.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// True if the value at `key` is a table.
    pub(super) fn is_table(&self, key: &str) -> bool {
        matches!(self.table.get(key), Some(Value::Table(_)))
    }

    /// As `text`, for a value that no problem may show.
    pub(super) fn secret_text(&self, key: &'static str) -> Option<&'a str> {
        match self.value(key)? {
            Value::String(text) => Some(text),
            _ => {
                self.problem(key, "expected a text in quotes", None);
                None
            }
        }
    }

    /// Returns every entry of this table as a table of its own, by name. Ends the reading of this one.
    pub(super) fn sections(self) -> Vec<(String, Section<'a>)> {
        self.table
            .iter()
            .filter_map(|(name, value)| match value {
                Value::Table(table) => Some((
                    name.clone(),
                    Section::new(self.key(name), table, self.problems),
                )),
                other => {
                    self.wrong_type(name, &format!("a table: `[{}]`", self.key(name)), other);
                    None
                }
            })
            .collect()
    }

    /// Returns the table `table` that stands at `key`, whatever its name is.
    pub(super) fn inner(&self, key: &str, table: &'a Table) -> Section<'a> {
        Section::new(self.key(key), table, self.problems)
    }

    /// Returns every entry of this table as it is, by name. No key of it is unknown then.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.table.iter()
    }

    /// Notes a problem for each key that nobody asked for.
    pub(super) fn finish(self) {
        let known = self.known.borrow();
        for key in self.table.keys() {
            if !known.contains(key.as_str()) {
                let hint = match nearest(key, &known) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!(
                        "the keys here are {}",
                        known
                            .iter()
                            .map(|key| format!("`{key}`"))
                            .collect::<Vec<_>>()
                            .join(", ")
                    ),
                };
                self.problem(key, "is not a known key", hint);
            }
        }
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::String(text) => format!("the text `{text}`"),
        Value::Integer(number) => format!("the number `{number}`"),
        Value::Float(number) => format!("the number `{number}`"),
        Value::Boolean(value) => format!("`{value}`"),
        Value::Datetime(value) => format!("the time `{value}`"),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    }
}

fn nearest(key: &str, known: &BTreeSet<&'static str>) -> Option<&'static str> {
    known
        .iter()
        .map(|candidate| (edit_distance(key, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(3) / 3)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Counts the single-letter changes that make one text into the other (Levenshtein).
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}
