//! What a column's value can be read as.
//!
//! SQLite stores decimals, UUIDs, moments and JSON as text and booleans as integers, so each is read from either form.
//!
//! **Invariant**: nothing is lost silently. A number that does not fit is an error, not a rounded one; the one exception is a decimal
//! read as `f64`, which is asked for by name.

use crate::Instant;
use crate::instant;
use crate::sql::{Date, Interval, Time, Timestamp, Value};
use crate::value::{Decimal, Json, Uuid};

/// A Rust value that a column can be read as.
pub trait FromValue: Sized {
    /// Names what is wanted, for errors: "a 64-bit integer".
    const WANTED: &'static str;

    /// True if NULL is one of its values.
    const NULLABLE: bool = false;

    /// Returns the value, or `None` if this is none or does not fit.
    fn from_value(value: &Value) -> Option<Self>;
}

/// Names what a value is, for errors.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "NULL",
        Value::Boolean(_) => "a boolean",
        Value::Int64(_) => "an integer",
        Value::Float64(_) => "a floating-point number",
        Value::Text(_) => "text",
        Value::Bytes(_) => "bytes",
        Value::Decimal(_) => "a decimal",
        Value::Date(_) => "a date",
        Value::Time(_) => "a time of day",
        Value::Timestamp(_) => "a timestamp without a zone",
        Value::Instant(_) => "a moment",
        Value::Interval(_) => "an interval",
        Value::Uuid(_) => "a UUID",
        Value::Json(_) => "JSON",
        Value::Other(_) => "a value in the database's text form",
        Value::Undecoded(_) => "a value that the host could not decode",
        Value::BooleanArray(_)
        | Value::Int64Array(_)
        | Value::Float64Array(_)
        | Value::TextArray(_)
        | Value::BytesArray(_)
        | Value::DecimalArray(_)
        | Value::DateArray(_)
        | Value::TimeArray(_)
        | Value::TimestampArray(_)
        | Value::InstantArray(_)
        | Value::IntervalArray(_)
        | Value::UuidArray(_)
        | Value::JsonArray(_) => "an array",
    }
}

impl FromValue for Value {
    const WANTED: &'static str = "any value";
    const NULLABLE: bool = true;

    fn from_value(value: &Value) -> Option<Self> {
        Some(value.clone())
    }
}

impl<T: FromValue> FromValue for Option<T> {
    const WANTED: &'static str = T::WANTED;
    const NULLABLE: bool = true;

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Null => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

impl FromValue for bool {
    const WANTED: &'static str = "a boolean";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Boolean(value) => Some(*value),
            Value::Int64(0) => Some(false),
            Value::Int64(1) => Some(true),
            _ => None,
        }
    }
}

impl FromValue for i64 {
    const WANTED: &'static str = "a 64-bit integer";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Int64(value) => Some(*value),
            // PostgreSQL's sum() of a bigint column is numeric.
            Value::Decimal(text) => whole_number(text),
            _ => None,
        }
    }
}

macro_rules! integers {
    ($($type:ident $wanted:literal)*) => {
        $(
            impl FromValue for $type {
                const WANTED: &'static str = $wanted;

                fn from_value(value: &Value) -> Option<Self> {
                    $type::try_from(i64::from_value(value)?).ok()
                }
            }
        )*
    };
}

integers! {
    i8 "an 8-bit integer"
    i16 "a 16-bit integer"
    i32 "a 32-bit integer"
    u8 "an unsigned 8-bit integer"
    u16 "an unsigned 16-bit integer"
    u32 "an unsigned 32-bit integer"
    u64 "an unsigned integer"
    usize "an unsigned integer"
}

impl FromValue for f64 {
    const WANTED: &'static str = "a floating-point number";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Float64(value) => Some(*value),
            // Above 2^53 not every integer has a double of its own.
            Value::Int64(value) if value.unsigned_abs() <= 1 << 53 => Some(*value as f64),
            Value::Decimal(text) => text.parse().ok(),
            _ => None,
        }
    }
}

impl FromValue for f32 {
    const WANTED: &'static str = "a 32-bit floating-point number";

    fn from_value(value: &Value) -> Option<Self> {
        let wide = f64::from_value(value)?;
        let narrow = wide as f32;
        (f64::from(narrow) == wide || wide.is_nan()).then_some(narrow)
    }
}

impl FromValue for String {
    const WANTED: &'static str = "text";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Text(text) | Value::Decimal(text) | Value::Uuid(text) | Value::Json(text) => {
                Some(text.clone())
            }
            Value::Other(other) => Some(other.text.clone()),
            _ => None,
        }
    }
}

impl FromValue for Vec<u8> {
    const WANTED: &'static str = "bytes";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Bytes(bytes) => Some(bytes.clone()),
            _ => None,
        }
    }
}

impl FromValue for Decimal {
    const WANTED: &'static str = "a decimal";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Decimal(text) => Some(Self(text.clone())),
            Value::Int64(value) => Some(Self(value.to_string())),
            Value::Text(text) if is_decimal(text) => Some(Self(text.clone())),
            _ => None,
        }
    }
}

impl FromValue for Uuid {
    const WANTED: &'static str = "a UUID";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Uuid(text) => Some(Self(text.clone())),
            Value::Text(text) if is_uuid(text) => Some(Self(text.to_ascii_lowercase())),
            _ => None,
        }
    }
}

impl FromValue for Json {
    const WANTED: &'static str = "JSON";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Json(text) => Some(Self(text.clone())),
            Value::Text(text) => serde_json::from_str::<serde::de::IgnoredAny>(text)
                .is_ok()
                .then(|| Self(text.clone())),
            _ => None,
        }
    }
}

impl FromValue for serde_json::Value {
    const WANTED: &'static str = "JSON";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Json(text) | Value::Text(text) => serde_json::from_str(text).ok(),
            _ => None,
        }
    }
}

impl FromValue for Instant {
    const WANTED: &'static str = "a moment";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Instant(instant) => Some(*instant),
            Value::Text(text) => instant::parse(text, true),
            _ => None,
        }
    }
}

macro_rules! verbatim {
    ($($type:ident $wanted:literal)*) => {
        $(
            impl FromValue for $type {
                const WANTED: &'static str = $wanted;

                fn from_value(value: &Value) -> Option<Self> {
                    match value {
                        Value::$type(value) => Some(*value),
                        _ => None,
                    }
                }
            }
        )*
    };
}

verbatim! {
    Date "a date"
    Time "a time of day"
    Timestamp "a timestamp without a zone"
    Interval "an interval"
}

/// Arrays of one dimension. Without `Option` an element that is NULL is none of the wanted.
macro_rules! arrays {
    ($($case:ident $type:ty, $wanted:literal: $element:ident => $value:expr;)*) => {
        $(
            impl FromValue for Vec<Option<$type>> {
                const WANTED: &'static str = $wanted;

                fn from_value(value: &Value) -> Option<Self> {
                    let Value::$case(array) = value else {
                        return None;
                    };
                    array
                        .iter()
                        .map(|element| match element {
                            None => Some(None),
                            Some($element) => $value.map(Some),
                        })
                        .collect()
                }
            }

            impl FromValue for Vec<$type> {
                const WANTED: &'static str = $wanted;

                fn from_value(value: &Value) -> Option<Self> {
                    let array = Vec::<Option<$type>>::from_value(value)?;
                    array.into_iter().collect()
                }
            }
        )*
    };
}

arrays! {
    BooleanArray bool, "an array of booleans": element => Some(*element);
    Int64Array i16, "an array of 16-bit integers": element => i16::try_from(*element).ok();
    Int64Array i32, "an array of 32-bit integers": element => i32::try_from(*element).ok();
    Int64Array i64, "an array of 64-bit integers": element => Some(*element);
    Float64Array f64, "an array of floating-point numbers": element => Some(*element);
    TextArray String, "an array of texts": element => Some(element.clone());
    BytesArray Vec<u8>, "an array of bytes": element => Some(element.clone());
    DecimalArray Decimal, "an array of decimals": element => Some(Decimal(element.clone()));
    DateArray Date, "an array of dates": element => Some(*element);
    TimeArray Time, "an array of times of day": element => Some(*element);
    TimestampArray Timestamp, "an array of timestamps": element => Some(*element);
    InstantArray Instant, "an array of moments": element => Some(*element);
    IntervalArray Interval, "an array of intervals": element => Some(*element);
    UuidArray Uuid, "an array of UUIDs": element => Some(Uuid(element.clone()));
    JsonArray Json, "an array of JSON": element => Some(Json(element.clone()));
}

/// Returns the integer that a decimal without a fraction (`5`, `-5.00`) is.
fn whole_number(text: &str) -> Option<i64> {
    match text.split_once('.') {
        None => text.parse().ok(),
        Some((whole, fraction)) if fraction.bytes().all(|byte| byte == b'0') => whole.parse().ok(),
        Some(_) => None,
    }
}

fn is_decimal(text: &str) -> bool {
    // The float parser takes the same notations, and more names for what is not finite.
    matches!(text, "NaN" | "Infinity" | "-Infinity")
        || (text.bytes().any(|byte| byte.is_ascii_digit()) && text.parse::<f64>().is_ok())
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn numbers_are_read_without_loss_or_not_at_all() {
        assert_eq!(i64::from_value(&Value::Int64(i64::MIN)), Some(i64::MIN));
        assert_eq!(
            i64::from_value(&Value::Decimal("12.00".to_owned())),
            Some(12)
        );
        assert_eq!(i64::from_value(&Value::Decimal("12.01".to_owned())), None);
        assert_eq!(
            i64::from_value(&Value::Decimal("99999999999999999999".to_owned())),
            None
        );
        assert_eq!(i64::from_value(&Value::Float64(1.0)), None);
        assert_eq!(i64::from_value(&text("1")), None);
        assert_eq!(i16::from_value(&Value::Int64(40_000)), None);
        assert_eq!(u32::from_value(&Value::Int64(-1)), None);
        assert_eq!(f64::from_value(&Value::Int64(3)), Some(3.0));
        assert_eq!(f64::from_value(&Value::Int64((1 << 53) + 1)), None);
        assert_eq!(f32::from_value(&Value::Float64(0.1)), None);
        assert_eq!(f32::from_value(&Value::Float64(0.5)), Some(0.5));
    }

    #[test]
    fn what_sqlite_stores_is_read() {
        assert_eq!(bool::from_value(&Value::Int64(1)), Some(true));
        assert_eq!(bool::from_value(&Value::Int64(2)), None);
        assert_eq!(
            Decimal::from_value(&text("1.50")),
            Some(Decimal("1.50".to_owned()))
        );
        assert_eq!(
            Decimal::from_value(&text("1e3")),
            Some(Decimal("1e3".to_owned()))
        );
        assert_eq!(Decimal::from_value(&text("inf")), None);
        assert_eq!(
            Uuid::from_value(&text("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11")),
            Some(Uuid("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11".to_owned()))
        );
        assert_eq!(Uuid::from_value(&text("a0eebc99")), None);
        assert_eq!(
            Json::from_value(&text("{\"a\":1}")),
            Some(Json("{\"a\":1}".to_owned()))
        );
        assert_eq!(Json::from_value(&text("{")), None);
        assert_eq!(
            Instant::from_value(&text("1970-01-01 00:00:01")),
            Some(Instant {
                seconds: 1,
                nanoseconds: 0
            })
        );
    }

    #[test]
    fn arrays_are_read_whole_or_not_at_all() {
        let array = Value::Int64Array(vec![Some(1), None]);
        assert_eq!(
            Vec::<Option<i64>>::from_value(&array),
            Some(vec![Some(1), None])
        );
        assert_eq!(Vec::<i64>::from_value(&array), None);
        let large = Value::Int64Array(vec![Some(1), Some(40_000)]);
        assert_eq!(Vec::<i32>::from_value(&large), Some(vec![1, 40_000]));
        assert_eq!(Vec::<i16>::from_value(&large), None);
        assert_eq!(Vec::<String>::from_value(&large), None);
    }

    #[test]
    fn null_needs_an_option() {
        assert_eq!(i64::from_value(&Value::Null), None);
        assert_eq!(Option::<i64>::from_value(&Value::Null), Some(None));
        assert_eq!(Option::<i64>::from_value(&text("1")), None);
    }
}
