//! `hapax:handler/sql`: statements inside the delivery's own transaction.
//!
//! **Invariant**: works on the `Tx` that the call's wasm store owns and on nothing else; there is no pool to reach.

use wasmtime::component::Resource;

use super::bindings::hapax::handler::{sql, types};
use super::state::State;
use super::{text, value};
use crate::fault;
use crate::store::{Column, Cursor, FetchLimits, ResultSet, Savepoint, SqlError, Value};

/// The longest statement, in bytes.
pub const STATEMENT_BYTES_MAX: usize = 1 << 20;
/// The most parameters of one statement: PostgreSQL's protocol counts them in 16 bits.
pub const PARAMS_MAX: usize = 65_535;

/// With so many bytes of rows a cursor's portion is full, whatever number of rows was asked for. A handler with little memory
/// gets less.
const PORTION_BYTES: usize = 4 << 20;

/// A database can put a whole value into its message.
const ERROR_TEXT_BYTES_MAX: usize = 16 << 10;

impl sql::Host for State {
    async fn execute(
        &mut self,
        statement: String,
        params: Vec<sql::Value>,
    ) -> wasmtime::Result<Result<u64, types::Error>> {
        self.reach("execute", Some(&statement)).await?;
        let params = match lift(&statement, params) {
            Ok(params) => params,
            Err(error) => return Ok(Err(self.refuse(error))),
        };
        if let Err(error) = self.count_statements(1) {
            return Ok(Err(self.refuse(error)));
        }
        self.executed += 1;
        let result = self.tx.execute(&statement, &params).await;
        self.answer(|_| None, &result);
        self.after_sql();
        self.hand_over(result)
    }

    async fn execute_many(
        &mut self,
        statement: String,
        rows: Vec<Vec<sql::Value>>,
    ) -> wasmtime::Result<Result<Vec<u64>, types::Error>> {
        self.reach("execute-many", Some(&statement)).await?;
        let rows = match lift_rows(&statement, rows) {
            Ok(rows) => rows,
            Err(error) => return Ok(Err(self.refuse(error))),
        };
        if let Err(error) = self.count_statements(rows.len() as u64) {
            return Ok(Err(self.refuse(error)));
        }
        self.executed += rows.len();
        let result = self.tx.execute_many(&statement, &rows).await;
        self.answer(|_| None, &result);
        self.after_sql();
        self.hand_over(result)
    }

    async fn query(
        &mut self,
        statement: String,
        params: Vec<sql::Value>,
    ) -> wasmtime::Result<Result<sql::ResultSet, types::Error>> {
        self.reach("query", Some(&statement)).await?;
        let params = match lift(&statement, params) {
            Ok(params) => params,
            Err(error) => return Ok(Err(self.refuse(error))),
        };
        if let Err(error) = self.count_statements(1) {
            return Ok(Err(self.refuse(error)));
        }
        let rows_max = self.options.limits.rows;
        let result = self.tx.query(&statement, &params, rows_max).await;
        self.answer(|result| Some(result.rows.len()), &result);
        self.after_sql();
        let bytes_max = self.options.limits.result_bytes;
        self.hand_over(result.and_then(|result| lower_result(result, bytes_max)))
    }

    async fn begin_savepoint(
        &mut self,
    ) -> wasmtime::Result<Result<Resource<sql::Savepoint>, types::Error>> {
        self.reach("begin-savepoint", None).await?;
        let savepoints_max = self.options.limits.savepoints;
        if self.tx.open_savepoints() >= savepoints_max {
            return Ok(Err(self.refuse(SqlError {
                hint: Some(
                    "release or roll back some, or raise `limits.savepoints` (at most 64)".into(),
                ),
                ..SqlError::new(
                    "limit.savepoints",
                    format!("at most {savepoints_max} savepoints may be open at once"),
                )
            })));
        }
        let begun = self.tx.begin_savepoint().await.map(|savepoint| {
            self.outbox.savepoint_begun(savepoint);
            Resource::new_own(savepoint.0)
        });
        self.hand_over(begun)
    }

    async fn open_cursor(
        &mut self,
        statement: String,
        params: Vec<sql::Value>,
    ) -> wasmtime::Result<Result<Resource<sql::Cursor>, types::Error>> {
        self.reach("open-cursor", Some(&statement)).await?;
        let params = match lift(&statement, params) {
            Ok(params) => params,
            Err(error) => return Ok(Err(self.refuse(error))),
        };
        if let Err(error) = self.count_statements(1) {
            return Ok(Err(self.refuse(error)));
        }
        let cursors_max = self.options.limits.cursors;
        if self.cursor_columns.len() >= cursors_max {
            return Ok(Err(self.refuse(SqlError {
                hint: Some("drop some, or raise `limits.cursors` (at most 64)".into()),
                ..SqlError::new(
                    "limit.cursors",
                    format!("at most {cursors_max} cursors may be held at once"),
                )
            })));
        }
        let opened = self.tx.open_cursor(&statement, &params).await;
        self.answer(|_| None, &opened);
        self.after_sql();
        let opened = opened.map(|(cursor, columns)| {
            self.cursor_columns.insert(cursor, columns);
            Resource::new_own(cursor.0)
        });
        self.hand_over(opened)
    }
}

// A handle's number is the savepoint's own in the transaction: a guest can't make one up, and it never names another.
impl sql::HostSavepoint for State {
    async fn release(
        &mut self,
        savepoint: Resource<sql::Savepoint>,
    ) -> wasmtime::Result<Result<(), types::Error>> {
        self.reach("savepoint.release", None).await?;
        let savepoint = Savepoint(savepoint.rep());
        let result = self.tx.release_savepoint(savepoint).await;
        if result.is_ok() {
            self.outbox.savepoint_released(savepoint);
        }
        self.hand_over(result)
    }

    async fn rollback(
        &mut self,
        savepoint: Resource<sql::Savepoint>,
    ) -> wasmtime::Result<Result<(), types::Error>> {
        self.reach("savepoint.rollback", None).await?;
        let result = self.roll_back(Savepoint(savepoint.rep())).await;
        self.hand_over(result)
    }

    async fn drop(&mut self, savepoint: Resource<sql::Savepoint>) -> wasmtime::Result<()> {
        // There is nobody to tell: a failure leaves the transaction aborted, and for one that has ended there is nothing to do.
        let _ = self.roll_back(Savepoint(savepoint.rep())).await;
        self.unless_misled()
    }
}

// As with savepoints.
impl sql::HostCursor for State {
    async fn columns(
        &mut self,
        cursor: Resource<sql::Cursor>,
    ) -> wasmtime::Result<Vec<sql::Column>> {
        // Known also when the cursor has ended.
        let columns = self.cursor_columns.get(&Cursor(cursor.rep()));
        Ok(columns.map_or_else(Vec::new, |columns| lower_columns(columns)))
    }

    async fn fetch(
        &mut self,
        cursor: Resource<sql::Cursor>,
        rows_max: u32,
    ) -> wasmtime::Result<Result<Vec<Vec<sql::Value>>, types::Error>> {
        self.reach("cursor.fetch", None).await?;
        if rows_max == 0 {
            let error = SqlError::new(
                "invalid.max-rows",
                "`max-rows` is 0; a portion has at least one row",
            );
            return Ok(Err(self.refuse(error)));
        }
        let limits = &self.options.limits;
        let fetch = FetchLimits {
            rows: u64::from(rows_max).min(limits.rows.max(1)),
            bytes: PORTION_BYTES.min(limits.memory_bytes / 4),
        };
        let bytes_max = limits.result_bytes;
        let rows = self.tx.fetch_cursor(Cursor(cursor.rep()), fetch).await;
        self.after_sql();
        self.hand_over(rows.and_then(|rows| lower_rows(rows, bytes_max)))
    }

    async fn drop(&mut self, cursor: Resource<sql::Cursor>) -> wasmtime::Result<()> {
        let cursor = Cursor(cursor.rep());
        self.cursor_columns.remove(&cursor);
        self.tx.close_cursor(cursor).await;
        self.unless_misled()
    }
}

impl types::Host for State {}

impl State {
    async fn roll_back(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        self.tx.roll_back_savepoint(savepoint).await?;
        self.outbox.savepoint_rolled_back(savepoint);
        Ok(())
    }

    /// Gives a statement's result to the guest, unless the guest was misled before: then it comes no further.
    fn hand_over<T>(
        &mut self,
        result: Result<T, SqlError>,
    ) -> wasmtime::Result<Result<T, types::Error>> {
        self.unless_misled()?;
        Ok(result.map_err(|error| self.refuse(error)))
    }

    fn unless_misled(&self) -> wasmtime::Result<()> {
        match self.tx.misled() {
            Some(misled) => Err(misled.into()),
            None => Ok(()),
        }
    }

    /// Counts statements towards the call's limit, before they are run.
    fn count_statements(&mut self, statements: u64) -> Result<(), SqlError> {
        let statements_max = self.options.limits.statements;
        if self.statements.saturating_add(statements) > statements_max {
            return Err(SqlError {
                hint: Some("use fewer statements, or raise `limits.statements`".into()),
                ..SqlError::new(
                    "limit.statements",
                    format!("a call may run at most {statements_max} statements"),
                )
            });
        }
        self.statements += statements;
        Ok(())
    }

    fn after_sql(&mut self) {
        if !std::mem::replace(&mut self.sql_called, true) {
            for id in &self.message_ids {
                fault::point_of("after-first-sql", id);
            }
        }
    }
}

/// Checks a statement and takes over its parameters.
fn lift(statement: &str, params: Vec<sql::Value>) -> Result<Vec<Value>, SqlError> {
    check_length(statement)?;
    lift_params(params)
}

/// Checks a statement and takes over its rows of parameters. Their bytes are bounded together, as those of every host call.
fn lift_rows(statement: &str, rows: Vec<Vec<sql::Value>>) -> Result<Vec<Vec<Value>>, SqlError> {
    check_length(statement)?;
    rows.into_iter()
        .enumerate()
        .map(|(row, params)| {
            lift_params(params).map_err(|error| SqlError {
                row: u32::try_from(row).ok(),
                message: format!("row {row}: {}", error.message),
                ..error
            })
        })
        .collect()
}

fn check_length(statement: &str) -> Result<(), SqlError> {
    if statement.len() > STATEMENT_BYTES_MAX {
        return Err(SqlError::new(
            "limit.statement",
            format!(
                "the statement has {} bytes; at most {} are possible",
                statement.len(),
                text::bytes(STATEMENT_BYTES_MAX)
            ),
        ));
    }
    Ok(())
}

fn lift_params(params: Vec<sql::Value>) -> Result<Vec<Value>, SqlError> {
    if params.len() > PARAMS_MAX {
        return Err(SqlError::new(
            "limit.params",
            format!(
                "the statement has {} parameters; at most {PARAMS_MAX} are possible",
                params.len()
            ),
        ));
    }
    params
        .into_iter()
        .zip(1..)
        .map(|(value, number)| value::lift(value, number))
        .collect()
}

fn lower_result(result: ResultSet, bytes_max: usize) -> Result<sql::ResultSet, SqlError> {
    Ok(sql::ResultSet {
        columns: lower_columns(&result.columns),
        rows: lower_rows(result.rows, bytes_max)?,
    })
}

fn lower_columns(columns: &[Column]) -> Vec<sql::Column> {
    columns
        .iter()
        .map(|column| sql::Column {
            name: column.name.clone(),
            type_name: column.type_name.clone(),
        })
        .collect()
}

/// Hands rows over, unless they are too large: wasmtime bounds only what a guest gives the host.
fn lower_rows(rows: Vec<Vec<Value>>, bytes_max: usize) -> Result<Vec<Vec<sql::Value>>, SqlError> {
    let mut bytes = 0;
    for value in rows.iter().flatten() {
        bytes += value.bytes();
        if bytes > bytes_max {
            return Err(SqlError {
                hint: Some("ask for fewer or smaller rows, or raise `limits.result`".into()),
                ..SqlError::new(
                    "limit.bytes",
                    format!("the result has more than {}", text::bytes(bytes_max)),
                )
            });
        }
    }
    Ok(rows
        .into_iter()
        .map(|row| row.into_iter().map(value::lower).collect())
        .collect())
}

/// Hands an error over, with bounded texts.
pub(super) fn lower_error(error: SqlError) -> types::Error {
    let short = |text: String| {
        if text.len() > ERROR_TEXT_BYTES_MAX {
            text::bounded(&text, ERROR_TEXT_BYTES_MAX)
        } else {
            text
        }
    };
    types::Error {
        code: short(error.code),
        message: short(error.message),
        retryable: error.retryable,
        sqlstate: error.sqlstate.map(short),
        detail: error.detail.map(short),
        hint: error.hint.map(short),
        schema: error.schema.map(short),
        table: error.table.map(short),
        column: error.column.map(short),
        constraint: error.constraint.map(short),
        param: error.param,
        row: error.row,
        position: error.position,
        extra: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_parameter_names_its_row() {
        let good = vec![sql::Value::Int64(1)];
        let bad = vec![sql::Value::Instant(types::Instant {
            seconds: 0,
            nanoseconds: 1_000_000_000,
        })];
        let error = lift_rows("", vec![good.clone(), good, bad]).unwrap_err();
        assert_eq!((error.row, error.param), (Some(2), Some(1)));
        assert_eq!(
            error.message,
            "row 2: parameter $1: 1000000000 nanoseconds are more than a second"
        );
    }

    #[test]
    fn statements_parameters_results_and_errors_are_bounded() {
        let statement = "x".repeat(STATEMENT_BYTES_MAX + 1);
        assert_eq!(
            lift(&statement, vec![]).unwrap_err().code,
            "limit.statement"
        );
        let params = vec![sql::Value::Null; PARAMS_MAX + 1];
        assert_eq!(lift("", params).unwrap_err().code, "limit.params");
        let result = ResultSet {
            columns: Vec::new(),
            rows: vec![vec![Value::Text("x".repeat(2000))]],
        };
        assert!(lower_result(result.clone(), 4000).is_ok());
        assert_eq!(lower_result(result, 1000).unwrap_err().code, "limit.bytes");
        let error = lower_error(SqlError::new("sql", "y".repeat(1 << 20)));
        assert!(error.message.len() < ERROR_TEXT_BYTES_MAX + 100);
    }
}
