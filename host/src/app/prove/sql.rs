//! What the handler's statements say of differences: what the database fills in, what differs from run to run, and who wrote where.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::handler::WatchedRun;
use crate::store::{Filled, Reaches, Reading, StoreKind, Table, differing_in, read_statement};

/// A column that is not compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LeftOut {
    /// Its table.
    pub table: String,
    /// Its name.
    pub column: String,
    /// Why.
    pub why: String,
}

/// A statement whose effect may differ from run to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DifferingSql {
    /// The statement.
    pub statement: String,
    /// `now()`, `LIMIT without ORDER BY`.
    pub what: String,
    /// Its column in the table that is written to, if it reaches one.
    pub column: Option<String>,
    /// The table that the statement writes to.
    pub table: Option<String>,
    /// Where it goes, in words.
    pub reaches: String,
}

/// The handler's statements, each once.
#[derive(Debug, Default)]
pub(super) struct Statements {
    read: BTreeMap<String, Reading>,
}

impl Statements {
    /// Takes the statements of runs.
    pub(super) fn learn(&mut self, kind: StoreKind, runs: &[WatchedRun]) {
        let called = runs.iter().flat_map(|run| &run.calls);
        for statement in called.filter_map(|call| call.statement.as_ref()) {
            if !self.read.contains_key(statement) {
                self.read
                    .insert(statement.clone(), read_statement(kind, statement));
            }
        }
    }

    /// Returns how many there are.
    pub(super) fn len(&self) -> usize {
        self.read.len()
    }

    /// Returns the columns that the database fills with something else in each run, because a statement leaves them to it, and those
    /// that refer to such a column.
    pub(super) fn left_out(&self, kind: StoreKind, tables: &[Table]) -> Vec<LeftOut> {
        let mut left_out = Vec::new();
        for table in tables {
            for column in &table.columns {
                let why = match &column.filled {
                    Some(Filled::Number) => "numbered by the database".to_owned(),
                    Some(Filled::Default(default)) => match differing_in(kind, default) {
                        Some(what) => format!("filled by the database with {what}"),
                        None => continue,
                    },
                    None => continue,
                };
                let leaves_it = |reading: &Reading| {
                    reading.inserts
                        && is_table(reading.table.as_deref(), table)
                        && reading.columns.as_ref().is_some_and(|columns| {
                            !columns.iter().any(|named| is_name(named, &column.name))
                        })
                };
                if self.read.values().any(leaves_it) {
                    left_out.push(LeftOut {
                        table: table.name.clone(),
                        column: column.name.clone(),
                        why,
                    });
                }
            }
        }
        // One may refer to one that refers.
        loop {
            let before = left_out.len();
            for table in tables {
                for column in &table.columns {
                    let Some((to, named)) = &column.refers_to else {
                        continue;
                    };
                    let is_there = |table: &str, column: &str| {
                        left_out.iter().any(|out: &LeftOut| {
                            is_name(&out.table, table)
                                && (column.is_empty() || is_name(&out.column, column))
                        })
                    };
                    if is_there(to, named) && !is_there(&table.name, &column.name) {
                        left_out.push(LeftOut {
                            table: table.name.clone(),
                            column: column.name.clone(),
                            why: format!(
                                "refers to `{to}`, whose rows are numbered by the database"
                            ),
                        });
                    }
                }
            }
            if left_out.len() == before {
                return left_out;
            }
        }
    }

    /// Returns what in the statements may differ from run to run.
    pub(super) fn differing(
        &self,
        tables: &[Table],
        is_allowed: impl Fn(&str) -> bool,
        is_left_out: impl Fn(&str, &str) -> bool,
    ) -> Vec<DifferingSql> {
        let mut found = Vec::new();
        for (statement, reading) in &self.read {
            let table = tables
                .iter()
                .find(|table| is_table(reading.table.as_deref(), table));
            for differing in &reading.differing {
                let picks_one = differing.picks_from.as_ref().is_some_and(|(from, equal)| {
                    tables
                        .iter()
                        .filter(|table| is_table(Some(from), table))
                        .any(|table| has_whole_key(table, equal))
                });
                if picks_one || is_allowed(&differing.what) {
                    continue;
                }
                let column = match (&differing.reaches, table) {
                    (Reaches::Column(name), _) => Some(name.clone()),
                    (Reaches::ColumnAt(place), Some(table)) => {
                        table.columns.get(*place).map(|column| column.name.clone())
                    }
                    _ => None,
                };
                if let (Some(table), Some(column)) = (table, &column)
                    && is_left_out(&table.name, column)
                {
                    continue;
                }
                let name = table.map(|table| table.name.clone());
                found.push(DifferingSql {
                    reaches: match (&column, &differing.reaches) {
                        (Some(column), _) => {
                            format!("column `{}.{column}`", name.as_deref().unwrap_or_default())
                        }
                        (None, Reaches::Result) => {
                            "the handler, which may decide or write by it".to_owned()
                        }
                        (None, Reaches::Condition) if reading.table.is_some() => {
                            "the choice of the rows that are written".to_owned()
                        }
                        (None, _) => "the choice of the rows that the handler gets".to_owned(),
                    },
                    statement: statement.clone(),
                    what: differing.what.clone(),
                    column,
                    table: name,
                });
            }
        }
        found
    }

    /// Returns the statements of `runs` that write to one of these tables.
    pub(super) fn writing(&self, runs: &[WatchedRun], tables: &BTreeSet<&str>) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        let called = runs.iter().flat_map(|run| &run.calls);
        for statement in called.filter_map(|call| call.statement.as_ref()) {
            let writes = self.read.get(statement).is_some_and(|reading| {
                reading
                    .table
                    .as_deref()
                    .is_some_and(|table| tables.iter().any(|name| is_unqualified(name, table)))
            });
            if writes && !found.contains(statement) {
                found.push(statement.clone());
            }
        }
        found
    }
}

fn is_name(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

/// True if `table`, without a schema, is the last part of `name`.
fn is_unqualified(name: &str, table: &str) -> bool {
    is_name(name.rsplit('.').next().unwrap_or(name), table)
}

fn is_table(named: Option<&str>, table: &Table) -> bool {
    named.is_some_and(|named| is_unqualified(&table.name, named))
}

fn has_whole_key(table: &Table, equal: &[String]) -> bool {
    let mut key = table
        .columns
        .iter()
        .filter(|column| column.is_key)
        .peekable();
    key.peek().is_some() && key.all(|column| equal.iter().any(|name| is_name(name, &column.name)))
}
