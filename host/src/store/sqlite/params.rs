//! Values between the contract and SQLite.
//!
//! SQLite has five storage classes. What it has no class for is stored as TEXT in a stated form: decimal, uuid (in lower case),
//! json and other verbatim, a date as `YYYY-MM-DD`, a time as `HH:MM:SS.ffffff`, a timestamp as `YYYY-MM-DDTHH:MM:SS.ffffff`, an
//! instant with a `Z` behind that, an interval as ISO 8601 has it (`P1M-2DT3.500000S`). Arrays have none. Results follow the
//! class that is stored.
//!
//! **Invariant**: no I/O here; a value never loses a part of itself without an error. (A column's affinity may still
//! change it: declare TEXT or STRICT.)

use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments as _, Row as _, Sqlite, TypeInfo as _, ValueRef as _};

use crate::store::postgres::{is_decimal, is_uuid};
use crate::store::text::instant_to_text;
use crate::store::{SqlError, Value, calendar};

/// The last year whose text sorts with the others.
const YEAR_MAX: i64 = 9999;

/// Binds all parameters.
///
/// # Errors
/// `data.invalid`, naming the parameter.
pub(super) fn bind(values: &[Value]) -> Result<SqliteArguments, SqlError> {
    let mut arguments = SqliteArguments::default();
    for (index, value) in values.iter().enumerate() {
        let number = index as u32 + 1;
        let invalid = |text: String| SqlError {
            param: Some(number),
            ..SqlError::new("data.invalid", format!("parameter ${number}: {text}"))
        };
        let short = |text: &str| text.chars().take(64).collect::<String>();
        let added = match value {
            Value::Null => arguments.add(None::<i64>),
            Value::Boolean(value) => arguments.add(i64::from(*value)),
            Value::Int64(value) => arguments.add(*value),
            Value::Float64(value) if value.is_nan() => {
                return Err(invalid(
                    "SQLite would store NULL for a number that is NaN".into(),
                ));
            }
            Value::Float64(value) => arguments.add(*value),
            Value::Text(text) | Value::Json(text) => arguments.add(text.clone()),
            Value::Bytes(bytes) => arguments.add(bytes.clone()),
            Value::Decimal(text) if !is_decimal(text) => {
                return Err(invalid(format!("`{}` is no decimal number", short(text))));
            }
            Value::Uuid(text) if !is_uuid(text) => {
                return Err(invalid(format!("`{}` is no uuid", short(text))));
            }
            Value::Decimal(text) => arguments.add(text.clone()),
            Value::Uuid(text) => arguments.add(text.to_ascii_lowercase()),
            Value::Instant(instant) => {
                arguments.add(instant_to_text(*instant, YEAR_MAX).map_err(invalid)?)
            }
            Value::Date(date) => {
                arguments.add(calendar::date_to_text(*date, YEAR_MAX).map_err(invalid)?)
            }
            Value::Time(time) => arguments.add(calendar::time_to_text(*time).map_err(invalid)?),
            Value::Timestamp(timestamp) => {
                arguments.add(calendar::timestamp_to_text(*timestamp, YEAR_MAX).map_err(invalid)?)
            }
            Value::Interval(interval) => arguments.add(calendar::interval_to_iso(*interval)),
            Value::Other { text, .. } => arguments.add(text.clone()),
            Value::Array(..) => {
                return Err(SqlError {
                    param: Some(number),
                    hint: Some("pass the elements as JSON, for `json_each`".into()),
                    ..SqlError::new(
                        "type.mismatch",
                        format!(
                            "parameter ${number}: SQLite has no arrays, and this is a {}",
                            value.kind()
                        ),
                    )
                });
            }
            Value::Undecoded { .. } => {
                return Err(invalid("`undecoded` occurs in results only".into()));
            }
        };
        added.map_err(|error| invalid(error.to_string()))?;
    }
    Ok(arguments)
}

/// Reads a row by the storage classes of its values.
pub(super) fn read(row: &SqliteRow) -> Result<Vec<Value>, SqlError> {
    (0..row.len())
        .map(|index| {
            let internal =
                |text: String| SqlError::new("internal", format!("column {}: {text}", index + 1));
            let raw = row
                .try_get_raw(index)
                .map_err(|error| internal(error.to_string()))?;
            if raw.is_null() {
                return Ok(Value::Null);
            }
            let class = raw.type_info().name().to_owned();
            let value = match class.as_str() {
                "INTEGER" => <i64 as sqlx::Decode<Sqlite>>::decode(raw).map(Value::Int64),
                "REAL" => <f64 as sqlx::Decode<Sqlite>>::decode(raw).map(Value::Float64),
                "TEXT" => <Vec<u8> as sqlx::Decode<Sqlite>>::decode(raw).map(|bytes| {
                    String::from_utf8(bytes).map_or_else(
                        // SQLite stores as text what it is given as text.
                        |error| Value::Undecoded {
                            type_name: "TEXT".into(),
                            bytes: error.into_bytes(),
                        },
                        Value::Text,
                    )
                }),
                "BLOB" => <Vec<u8> as sqlx::Decode<Sqlite>>::decode(raw).map(Value::Bytes),
                other => return Err(internal(format!("unknown storage class `{other}`"))),
            };
            value.map_err(|error| internal(error.to_string()))
        })
        .collect()
}
