//! What can be a parameter of a statement.

use std::borrow::Cow;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Instant;
use crate::sql::{Date, Interval, Time, Timestamp, Value};

/// An exact number as text: plain or scientific notation, also `NaN`, `Infinity`, `-Infinity`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Decimal(pub String);

/// A UUID as text: 8-4-4-4-12 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uuid(pub String);

/// JSON as text, verbatim, for a column of type json or jsonb (TEXT on SQLite).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(pub String);

/// NULL, where its type need not be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Null;

impl Json {
    /// Writes `value` as JSON.
    ///
    /// # Errors
    /// JSON can't express it, such as a map with keys that are not text.
    pub fn encode(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::to_string(value).map(Self)
    }

    /// Reads the text as a `T`.
    ///
    /// # Errors
    /// It is not JSON, or not of this shape.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

macro_rules! displayed {
    ($($type:ident)*) => {
        $(
            impl fmt::Display for $type {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(&self.0)
                }
            }
        )*
    };
}

displayed!(Decimal Uuid Json);

/// A Rust value that can be a parameter. [`params!`](crate::params) calls it.
///
/// `u64` and `usize` are left out, since they may not fit the databases' largest integer: convert them with `i64::try_from`.
pub trait ToValue {
    /// Returns the parameter.
    fn to_value(&self) -> Value;
}

macro_rules! to_value {
    ($($type:ty: $self:ident => $value:expr;)*) => {
        $(
            impl ToValue for $type {
                fn to_value(&$self) -> Value {
                    $value
                }
            }
        )*
    };
}

to_value! {
    Value: self => self.clone();
    Null: self => Value::Null;
    bool: self => Value::Boolean(*self);
    i8: self => Value::Int64(i64::from(*self));
    i16: self => Value::Int64(i64::from(*self));
    i32: self => Value::Int64(i64::from(*self));
    i64: self => Value::Int64(*self);
    u8: self => Value::Int64(i64::from(*self));
    u16: self => Value::Int64(i64::from(*self));
    u32: self => Value::Int64(i64::from(*self));
    f32: self => Value::Float64(f64::from(*self));
    f64: self => Value::Float64(*self);
    str: self => Value::Text(self.to_owned());
    String: self => Value::Text(self.clone());
    Cow<'_, str>: self => Value::Text(self.clone().into_owned());
    [u8]: self => Value::Bytes(self.to_vec());
    Vec<u8>: self => Value::Bytes(self.clone());
    Decimal: self => Value::Decimal(self.0.clone());
    Uuid: self => Value::Uuid(self.0.clone());
    Json: self => Value::Json(self.0.clone());
    serde_json::Value: self => Value::Json(self.to_string());
    Instant: self => Value::Instant(*self);
    Date: self => Value::Date(*self);
    Time: self => Value::Time(*self);
    Timestamp: self => Value::Timestamp(*self);
    Interval: self => Value::Interval(*self);
}

/// Arrays of one dimension, with and without NULL among their elements (PostgreSQL only).
macro_rules! array_to_value {
    ($($case:ident $type:ty: $element:ident => $value:expr;)*) => {
        $(
            impl ToValue for [$type] {
                fn to_value(&self) -> Value {
                    Value::$case(self.iter().map(|$element| Some($value)).collect())
                }
            }

            impl ToValue for [Option<$type>] {
                fn to_value(&self) -> Value {
                    let element = |$element: &$type| $value;
                    Value::$case(self.iter().map(|value| value.as_ref().map(element)).collect())
                }
            }

            impl ToValue for Vec<$type> {
                fn to_value(&self) -> Value {
                    self.as_slice().to_value()
                }
            }

            impl ToValue for Vec<Option<$type>> {
                fn to_value(&self) -> Value {
                    self.as_slice().to_value()
                }
            }
        )*
    };
}

array_to_value! {
    BooleanArray bool: element => *element;
    Int64Array i16: element => i64::from(*element);
    Int64Array i32: element => i64::from(*element);
    Int64Array i64: element => *element;
    Float64Array f64: element => *element;
    TextArray String: element => element.clone();
    TextArray &str: element => (*element).to_owned();
    BytesArray Vec<u8>: element => element.clone();
    DecimalArray Decimal: element => element.0.clone();
    DateArray Date: element => *element;
    TimeArray Time: element => *element;
    TimestampArray Timestamp: element => *element;
    InstantArray Instant: element => *element;
    IntervalArray Interval: element => *element;
    UuidArray Uuid: element => element.0.clone();
    JsonArray Json: element => element.0.clone();
}

impl<const N: usize> ToValue for [u8; N] {
    fn to_value(&self) -> Value {
        Value::Bytes(self.to_vec())
    }
}

impl<T: ToValue> ToValue for Option<T> {
    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Null, ToValue::to_value)
    }
}

impl<T: ToValue + ?Sized> ToValue for &T {
    fn to_value(&self) -> Value {
        (**self).to_value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params;

    #[test]
    fn parameters_are_made_of_many_types_and_not_moved() {
        let name = String::from("n");
        let nothing: Option<&str> = None;
        let made = params![
            true,
            1_i16,
            2_u32,
            1.5_f32,
            "text",
            name,
            &name,
            b"bytes",
            vec![1_u8],
            Some(3),
            nothing,
            Null,
            Decimal("1.50".to_owned()),
            Uuid("u".to_owned()),
            Json("{}".to_owned()),
            serde_json::json!({"a": [1]}),
            Instant {
                seconds: 1,
                nanoseconds: 2
            },
        ];
        assert_eq!(
            made,
            [
                Value::Boolean(true),
                Value::Int64(1),
                Value::Int64(2),
                Value::Float64(1.5),
                Value::Text("text".to_owned()),
                Value::Text("n".to_owned()),
                Value::Text("n".to_owned()),
                Value::Bytes(b"bytes".to_vec()),
                Value::Bytes(vec![1]),
                Value::Int64(3),
                Value::Null,
                Value::Null,
                Value::Decimal("1.50".to_owned()),
                Value::Uuid("u".to_owned()),
                Value::Json("{}".to_owned()),
                Value::Json("{\"a\":[1]}".to_owned()),
                Value::Instant(Instant {
                    seconds: 1,
                    nanoseconds: 2
                }),
            ]
        );
        assert_eq!(params![], []);
        assert_eq!(
            params![vec![1_i64, 2], vec![Some("a"), None], &[true][..]],
            [
                Value::Int64Array(vec![Some(1), Some(2)]),
                Value::TextArray(vec![Some("a".to_owned()), None]),
                Value::BooleanArray(vec![Some(true)]),
            ]
        );
    }
}
