//! Taking a query's rows.

use sqlx::{Row as _, ValueRef as _};

use super::params;
use super::statements::Prepared;
use crate::store::{ResultSet, SqlError, Value, records};

/// Takes a query's rows up to its limits.
pub(super) struct RowSink {
    pub(super) rows_max: u64,
    pub(super) result: ResultSet,
    pub(super) bases: Vec<params::Base>,
    pub(super) bytes: usize,
    pub(super) failure: Option<SqlError>,
}

impl RowSink {
    pub(super) fn start(&mut self, prepared: &Prepared) -> Result<(), SqlError> {
        for (column, base) in prepared.columns.iter().zip(prepared.bases.iter()) {
            if matches!(base, params::Base::Other | params::Base::Oid) {
                return Err(SqlError {
                    column: Some(column.name.clone()),
                    hint: Some("cast the column to text in the statement".into()),
                    ..SqlError::new(
                        "unsupported",
                        format!(
                            "the column `{}` has the type `{}`, which this host can't return yet",
                            column.name, column.type_name
                        ),
                    )
                });
            }
        }
        self.result.columns = prepared.columns.to_vec();
        self.bases = prepared.bases.to_vec();
        Ok(())
    }

    pub(super) fn take(&mut self, row: &sqlx::postgres::PgRow) {
        if self.failure.is_some() {
            return;
        }
        if self.result.rows.len() as u64 >= self.rows_max {
            self.failure = Some(records::too_many_rows(self.rows_max));
            return;
        }
        match self.read(row) {
            Ok(values) => {
                self.bytes += values.iter().map(records::value_bytes).sum::<usize>();
                if self.bytes > records::RESULT_MAX_BYTES {
                    self.failure = Some(records::too_many_bytes());
                    return;
                }
                self.result.rows.push(values);
            }
            Err(error) => self.failure = Some(error),
        }
    }

    pub(super) fn read(&self, row: &sqlx::postgres::PgRow) -> Result<Vec<Value>, SqlError> {
        if row.len() != self.bases.len() {
            return Err(SqlError::new(
                "internal",
                format!("a row has {} columns, not {}", row.len(), self.bases.len()),
            ));
        }
        let column = |index: usize| &self.result.columns[index];
        let mut values = Vec::with_capacity(self.bases.len());
        for (index, base) in self.bases.iter().enumerate() {
            let raw = row
                .try_get_raw(index)
                .map_err(|error| SqlError::new("internal", error.to_string()))?;
            if raw.is_null() {
                values.push(Value::Null);
                continue;
            }
            let text = raw
                .as_str()
                .map_err(|error| SqlError::new("data.encoding", error.to_string()))?;
            let value = params::read(text, *base).ok_or_else(|| SqlError {
                column: Some(column(index).name.clone()),
                hint: Some("cast the column to text in the statement".into()),
                ..SqlError::new(
                    "unsupported",
                    format!(
                        "the column `{}` holds a `{}` that this host can't return: `{}`",
                        column(index).name,
                        column(index).type_name,
                        text.chars().take(64).collect::<String>()
                    ),
                )
            })?;
            values.push(value);
        }
        Ok(values)
    }
}
