//! Taking a query's rows.

use std::sync::Arc;

use sqlx::{Row as _, ValueRef as _};

use super::decode;
use super::params::Type;
use super::statements::Prepared;
use crate::store::{ResultSet, SqlError, Value, records};

/// Takes a query's rows up to its limits.
pub(super) struct RowSink {
    pub(super) rows_max: u64,
    pub(super) result: ResultSet,
    types: Arc<[Type]>,
    pub(super) bytes: usize,
    pub(super) failure: Option<SqlError>,
}

impl RowSink {
    pub(super) fn new(rows_max: u64) -> Self {
        Self {
            rows_max,
            result: ResultSet::default(),
            types: Arc::new([]),
            bytes: 0,
            failure: None,
        }
    }

    pub(super) fn start(&mut self, prepared: &Prepared) {
        self.result.columns = prepared.columns.to_vec();
        self.types = Arc::clone(&prepared.types);
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
                self.bytes += values.iter().map(Value::bytes).sum::<usize>();
                if self.bytes > records::RESULT_MAX_BYTES {
                    self.failure = Some(records::too_many_bytes());
                    return;
                }
                self.result.rows.push(values);
            }
            Err(error) => self.failure = Some(error),
        }
    }

    fn read(&self, row: &sqlx::postgres::PgRow) -> Result<Vec<Value>, SqlError> {
        if row.len() != self.types.len() {
            return Err(SqlError::new(
                "internal",
                format!("a row has {} columns, not {}", row.len(), self.types.len()),
            ));
        }
        let internal = |error: String| SqlError::new("internal", error);
        let mut values = Vec::with_capacity(self.types.len());
        for (index, kind) in self.types.iter().enumerate() {
            let raw = row
                .try_get_raw(index)
                .map_err(|error| internal(error.to_string()))?;
            values.push(if raw.is_null() {
                Value::Null
            } else {
                let bytes = raw
                    .as_bytes()
                    .map_err(|error| internal(error.to_string()))?;
                decode::read(bytes, kind)
            });
        }
        Ok(values)
    }
}
