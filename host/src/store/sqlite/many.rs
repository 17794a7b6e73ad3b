//! One statement for many rows of parameters.
//!
//! **Invariant**: every row's parameters are checked before the first row is run.

use super::{SqliteSession, params};
use crate::store::{SqlError, Value, records};

impl SqliteSession {
    /// Runs a handler's statement for each row. Returns the rows affected by each.
    pub(super) async fn run_many(
        &mut self,
        statement: &str,
        rows: &[Vec<Value>],
    ) -> Result<Vec<u64>, SqlError> {
        self.refuse_if_aborted()?;
        let passed = self.verdict(statement)?;
        let arguments = rows
            .iter()
            .enumerate()
            .map(|(index, row)| {
                if row.len() != passed.params as usize {
                    let error = records::wrong_count(passed.params as usize, row.len());
                    return Err(records::in_row(index, error));
                }
                params::bind(row).map_err(|error| records::in_row(index, error))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut counts = Vec::with_capacity(rows.len());
        for (index, arguments) in arguments.into_iter().enumerate() {
            // The driver keeps the statement prepared.
            let count = self
                .run_counted(statement, passed, arguments)
                .await
                .map_err(|error| records::in_row(index, error))?;
            counts.push(count);
        }
        Ok(counts)
    }
}
