//! `hapax:handler/sql`: statements inside the delivery's own transaction.
//!
//! **Invariant**: works on the `Tx` that the call's wasm store owns and on nothing else; there is no pool to reach.
//! **Invariant**: what does not work yet answers `unsupported` and touches nothing.

use wasmtime::component::Resource;

use super::bindings::hapax::handler::{sql, types};
use super::state::State;
use super::text;
use crate::fault;
use crate::message::Instant;
use crate::store::{ResultSet, Savepoint, SqlError, Value};

/// The longest statement, in bytes.
pub const STATEMENT_BYTES_MAX: usize = 1 << 20;
/// The most parameters of one statement: PostgreSQL's protocol counts them in 16 bits.
pub const PARAMS_MAX: usize = 65_535;

/// A database can put a whole value into its message.
const ERROR_TEXT_BYTES_MAX: usize = 16 << 10;

impl sql::Host for State {
    async fn execute(
        &mut self,
        statement: String,
        params: Vec<sql::Value>,
    ) -> wasmtime::Result<Result<u64, types::Error>> {
        let params = match lift(&statement, params) {
            Ok(params) => params,
            Err(error) => return Ok(Err(lower_error(error))),
        };
        if let Err(error) = self.count_statements(1) {
            return Ok(Err(lower_error(error)));
        }
        self.executed += 1;
        let result = self.tx.execute(&statement, &params).await;
        self.after_sql();
        Ok(result.map_err(lower_error))
    }

    async fn execute_many(
        &mut self,
        statement: String,
        rows: Vec<Vec<sql::Value>>,
    ) -> wasmtime::Result<Result<Vec<u64>, types::Error>> {
        let rows = match lift_rows(&statement, rows) {
            Ok(rows) => rows,
            Err(error) => return Ok(Err(lower_error(error))),
        };
        if let Err(error) = self.count_statements(rows.len() as u64) {
            return Ok(Err(lower_error(error)));
        }
        self.executed += rows.len();
        let result = self.tx.execute_many(&statement, &rows).await;
        self.after_sql();
        Ok(result.map_err(lower_error))
    }

    async fn query(
        &mut self,
        statement: String,
        params: Vec<sql::Value>,
    ) -> wasmtime::Result<Result<sql::ResultSet, types::Error>> {
        let params = match lift(&statement, params) {
            Ok(params) => params,
            Err(error) => return Ok(Err(lower_error(error))),
        };
        if let Err(error) = self.count_statements(1) {
            return Ok(Err(lower_error(error)));
        }
        let rows_max = self.options.limits.rows;
        let result = self.tx.query(&statement, &params, rows_max).await;
        self.after_sql();
        let bytes_max = self.options.limits.result_bytes;
        Ok(result
            .and_then(|result| lower_result(result, bytes_max))
            .map_err(lower_error))
    }

    async fn begin_savepoint(
        &mut self,
    ) -> wasmtime::Result<Result<Resource<sql::Savepoint>, types::Error>> {
        let savepoints_max = self.options.limits.savepoints;
        if self.tx.open_savepoints() >= savepoints_max {
            return Ok(Err(lower_error(SqlError {
                hint: Some(
                    "release or roll back some, or raise `limits.savepoints` (at most 64)".into(),
                ),
                ..SqlError::new(
                    "limit.savepoints",
                    format!("at most {savepoints_max} savepoints may be open at once"),
                )
            })));
        }
        Ok(match self.tx.begin_savepoint().await {
            Ok(savepoint) => {
                self.outbox.savepoint_begun(savepoint);
                Ok(Resource::new_own(savepoint.0))
            }
            Err(error) => Err(lower_error(error)),
        })
    }

    async fn open_cursor(
        &mut self,
        _statement: String,
        _params: Vec<sql::Value>,
    ) -> wasmtime::Result<Result<Resource<sql::Cursor>, types::Error>> {
        Ok(Err(lower_error(unsupported(
            "`open-cursor`",
            "call `query` with LIMIT, for one portion after the other",
        ))))
    }
}

// A handle's number is the savepoint's own in the transaction: a guest can't make one up, and it never names another.
impl sql::HostSavepoint for State {
    async fn release(
        &mut self,
        savepoint: Resource<sql::Savepoint>,
    ) -> wasmtime::Result<Result<(), types::Error>> {
        let savepoint = Savepoint(savepoint.rep());
        let result = self.tx.release_savepoint(savepoint).await;
        if result.is_ok() {
            self.outbox.savepoint_released(savepoint);
        }
        Ok(result.map_err(lower_error))
    }

    async fn rollback(
        &mut self,
        savepoint: Resource<sql::Savepoint>,
    ) -> wasmtime::Result<Result<(), types::Error>> {
        Ok(self
            .roll_back(Savepoint(savepoint.rep()))
            .await
            .map_err(lower_error))
    }

    async fn drop(&mut self, savepoint: Resource<sql::Savepoint>) -> wasmtime::Result<()> {
        // There is nobody to tell: a failure leaves the transaction aborted, and for one that has ended there is nothing to do.
        let _ = self.roll_back(Savepoint(savepoint.rep())).await;
        Ok(())
    }
}

// No call makes a cursor yet, so a guest has no handle to call these with.
impl sql::HostCursor for State {
    async fn columns(
        &mut self,
        _cursor: Resource<sql::Cursor>,
    ) -> wasmtime::Result<Vec<sql::Column>> {
        Ok(Vec::new())
    }

    async fn fetch(
        &mut self,
        _cursor: Resource<sql::Cursor>,
        _rows_max: u32,
    ) -> wasmtime::Result<Result<Vec<Vec<sql::Value>>, types::Error>> {
        Ok(Err(lower_error(unsupported("a cursor", ""))))
    }

    async fn drop(&mut self, _cursor: Resource<sql::Cursor>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl types::Host for State {}

impl State {
    async fn roll_back(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        self.tx.roll_back_savepoint(savepoint).await?;
        self.outbox.savepoint_rolled_back(savepoint);
        Ok(())
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
            fault::point_of("after-first-sql", &self.message_id);
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
        .map(|(value, number)| lift_value(value, number))
        .collect()
}

/// Takes over the parameter `number`, counted from 1.
fn lift_value(value: sql::Value, number: u32) -> Result<Value, SqlError> {
    let (case, remedy) = match value {
        sql::Value::Null => return Ok(Value::Null),
        sql::Value::Boolean(value) => return Ok(Value::Boolean(value)),
        sql::Value::Int64(value) => return Ok(Value::Int64(value)),
        sql::Value::Float64(value) => return Ok(Value::Float64(value)),
        sql::Value::Text(value) => return Ok(Value::Text(value)),
        sql::Value::Bytes(value) => return Ok(Value::Bytes(value)),
        sql::Value::Decimal(value) => return Ok(Value::Decimal(value)),
        sql::Value::Uuid(value) => return Ok(Value::Uuid(value)),
        sql::Value::Json(value) => return Ok(Value::Json(value)),
        sql::Value::Instant(moment) if moment.nanoseconds <= 999_999_999 => {
            return Ok(Value::Instant(Instant {
                seconds: moment.seconds,
                nanoseconds: moment.nanoseconds,
            }));
        }
        sql::Value::Instant(moment) => {
            return Err(SqlError {
                param: Some(number),
                ..SqlError::new(
                    "invalid.param",
                    format!(
                        "parameter ${number}: {} nanoseconds are more than a second",
                        moment.nanoseconds
                    ),
                )
            });
        }
        sql::Value::Undecoded(_) => {
            return Err(SqlError {
                param: Some(number),
                ..SqlError::new(
                    "invalid.param",
                    format!(
                        "parameter ${number}: `undecoded` occurs in results only; it cannot be a parameter"
                    ),
                )
            });
        }
        sql::Value::Date(_) => ("date", AS_TEXT),
        sql::Value::Time(_) => ("time", AS_TEXT),
        sql::Value::Timestamp(_) => ("timestamp", AS_TEXT),
        sql::Value::Interval(_) => ("interval", AS_TEXT),
        sql::Value::Other(_) => ("other", AS_TEXT),
        sql::Value::BooleanArray(_) => ("boolean-array", AS_TEXT),
        sql::Value::Int64Array(_) => ("int64-array", AS_TEXT),
        sql::Value::Float64Array(_) => ("float64-array", AS_TEXT),
        sql::Value::TextArray(_) => ("text-array", AS_TEXT),
        sql::Value::BytesArray(_) => ("bytes-array", AS_TEXT),
        sql::Value::DecimalArray(_) => ("decimal-array", AS_TEXT),
        sql::Value::DateArray(_) => ("date-array", AS_TEXT),
        sql::Value::TimeArray(_) => ("time-array", AS_TEXT),
        sql::Value::TimestampArray(_) => ("timestamp-array", AS_TEXT),
        sql::Value::InstantArray(_) => ("instant-array", AS_TEXT),
        sql::Value::IntervalArray(_) => ("interval-array", AS_TEXT),
        sql::Value::UuidArray(_) => ("uuid-array", AS_TEXT),
        sql::Value::JsonArray(_) => ("json-array", AS_TEXT),
    };
    Err(SqlError {
        param: Some(number),
        ..unsupported(&format!("parameter ${number}: a `{case}`"), remedy)
    })
}

const AS_TEXT: &str = "send it as `text`, in the database's own form";

fn unsupported(what: &str, remedy: &str) -> SqlError {
    SqlError {
        hint: (!remedy.is_empty()).then(|| remedy.to_owned()),
        ..SqlError::new(
            "unsupported",
            format!("{what} is not supported by this host yet"),
        )
    }
}

/// Hands a result over, unless it is too large: wasmtime bounds only what a guest gives the host.
fn lower_result(result: ResultSet, bytes_max: usize) -> Result<sql::ResultSet, SqlError> {
    let mut bytes = 0;
    for value in result.rows.iter().flatten() {
        bytes += size_of::<Value>() + bytes_of(value);
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
    Ok(sql::ResultSet {
        columns: result
            .columns
            .into_iter()
            .map(|column| sql::Column {
                name: column.name,
                type_name: column.type_name,
            })
            .collect(),
        rows: result
            .rows
            .into_iter()
            .map(|row| row.into_iter().map(lower_value).collect())
            .collect(),
    })
}

fn bytes_of(value: &Value) -> usize {
    match value {
        Value::Text(text) | Value::Decimal(text) | Value::Uuid(text) | Value::Json(text) => {
            text.len()
        }
        Value::Bytes(bytes) => bytes.len(),
        Value::Null
        | Value::Boolean(_)
        | Value::Int64(_)
        | Value::Float64(_)
        | Value::Instant(_) => 0,
    }
}

fn lower_value(value: Value) -> sql::Value {
    match value {
        Value::Null => sql::Value::Null,
        Value::Boolean(value) => sql::Value::Boolean(value),
        Value::Int64(value) => sql::Value::Int64(value),
        Value::Float64(value) => sql::Value::Float64(value),
        Value::Text(value) => sql::Value::Text(value),
        Value::Bytes(value) => sql::Value::Bytes(value),
        Value::Decimal(value) => sql::Value::Decimal(value),
        Value::Instant(moment) => sql::Value::Instant(types::Instant {
            seconds: moment.seconds,
            nanoseconds: moment.nanoseconds,
        }),
        Value::Uuid(value) => sql::Value::Uuid(value),
        Value::Json(value) => sql::Value::Json(value),
    }
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
    fn what_does_not_work_yet_names_the_parameter_and_the_case() {
        let error = lift(
            "SELECT $1, $2",
            vec![
                sql::Value::Int64(1),
                sql::Value::TextArray(vec![Some("a".into())]),
            ],
        )
        .unwrap_err();
        assert_eq!(error.code, "unsupported");
        assert_eq!(error.param, Some(2));
        assert_eq!(
            error.message,
            "parameter $2: a `text-array` is not supported by this host yet"
        );
        let error = lift(
            "",
            vec![sql::Value::Instant(types::Instant {
                seconds: 0,
                nanoseconds: 1_000_000_000,
            })],
        )
        .unwrap_err();
        assert_eq!(
            (error.code.as_str(), error.param),
            ("invalid.param", Some(1))
        );
        let good = vec![sql::Value::Int64(1)];
        let bad = vec![sql::Value::Interval(sql::Interval {
            months: 0,
            days: 0,
            microseconds: 0,
        })];
        let error = lift_rows("", vec![good.clone(), good, bad]).unwrap_err();
        assert_eq!((error.row, error.param), (Some(2), Some(1)));
        assert_eq!(
            error.message,
            "row 2: parameter $1: a `interval` is not supported by this host yet"
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
