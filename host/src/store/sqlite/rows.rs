//! Taking a statement's rows.

use sqlx::sqlite::SqliteRow;
use sqlx::{Column as _, Row as _, TypeInfo as _};

use super::params;
use crate::store::{Column, ResultSet, SqlError, Value, records};

/// Takes a statement's rows up to its limits, or only counts them.
pub(super) struct RowSink {
    pub(super) keep: bool,
    pub(super) rows_max: u64,
    pub(super) count: u64,
    pub(super) bytes: usize,
    pub(super) result: ResultSet,
    pub(super) failure: Option<SqlError>,
}

impl RowSink {
    pub(super) fn new(rows_max: Option<u64>) -> Self {
        Self {
            keep: rows_max.is_some(),
            rows_max: rows_max.unwrap_or(u64::MAX),
            count: 0,
            bytes: 0,
            result: ResultSet::default(),
            failure: None,
        }
    }

    /// False: enough.
    pub(super) fn take(&mut self, row: &SqliteRow) -> bool {
        self.count += 1;
        if !self.keep {
            return true;
        }
        if self.count > self.rows_max {
            self.failure = Some(records::too_many_rows(self.rows_max));
            return false;
        }
        if self.result.columns.is_empty() {
            self.result.columns = row.columns().iter().map(column).collect();
        }
        match params::read(row) {
            Ok(values) => {
                self.bytes += values.iter().map(Value::bytes).sum::<usize>();
                if self.bytes > records::RESULT_MAX_BYTES {
                    self.failure = Some(records::too_many_bytes());
                    return false;
                }
                self.result.rows.push(values);
                true
            }
            Err(error) => {
                self.failure = Some(error);
                false
            }
        }
    }
}

pub(super) fn column(column: &sqlx::sqlite::SqliteColumn) -> Column {
    Column {
        name: column.name().to_owned(),
        type_name: column.type_info().name().to_owned(),
    }
}
