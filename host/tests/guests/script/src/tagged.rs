//! Values of the database in JSON, each with its case's name: `{"int64": 5}`.

use hapax_guest::sql::{self, Value};
use serde::{Deserialize, Serialize};

use crate::step::{Moment, Text};

/// A value; what it is read from, it is written as.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Tagged {
    Null(bool),
    Boolean(bool),
    Int64(i64),
    Float64(f64),
    /// For what JSON has no number for: `NaN`, `inf`, `-inf`.
    Float64Text(String),
    Text(String),
    BytesHex(Hex),
    Decimal(String),
    Date(Date),
    Time(Time),
    Timestamp(Timestamp),
    Instant(Moment),
    Interval(Interval),
    Uuid(String),
    Json(String),
    BooleanArray(Vec<Option<bool>>),
    Int64Array(Vec<Option<i64>>),
    Float64Array(Vec<Option<f64>>),
    TextArray(Vec<Option<String>>),
    BytesHexArray(Vec<Option<Hex>>),
    DecimalArray(Vec<Option<String>>),
    DateArray(Vec<Option<Date>>),
    TimeArray(Vec<Option<Time>>),
    TimestampArray(Vec<Option<Timestamp>>),
    InstantArray(Vec<Option<Moment>>),
    IntervalArray(Vec<Option<Interval>>),
    UuidArray(Vec<Option<String>>),
    JsonArray(Vec<Option<String>>),
    Other(Other),
    Undecoded(Undecoded),

    // Only as parameters: they are the values that the message gives.
    /// A text that is too long to write down.
    #[serde(skip_serializing)]
    LongText(Text),
    /// `id`, `source`, `subject` or `key` of the message as text, `attempt` as integer.
    #[serde(skip_serializing)]
    Message(Part),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    Id,
    Source,
    Subject,
    Key,
    Attempt,
}

/// Bytes as hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hex(pub(crate) Vec<u8>);

macro_rules! mirrored {
    ($($name:ident { $($field:ident: $type:ty),* })*) => {
        $(
            #[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
            #[serde(deny_unknown_fields)]
            pub(crate) struct $name {
                $($field: $type),*
            }

            impl From<$name> for sql::$name {
                fn from(value: $name) -> Self {
                    Self { $($field: value.$field.into()),* }
                }
            }

            impl From<sql::$name> for $name {
                fn from(value: sql::$name) -> Self {
                    Self { $($field: value.$field.into()),* }
                }
            }
        )*
    };
}

mirrored! {
    Date { year: i32, month: u8, day: u8 }
    Time { hour: u8, minute: u8, second: u8, microsecond: u32 }
    Timestamp { date: Date, time: Time }
    Interval { months: i32, days: i32, microseconds: i64 }
    Other { type_name: String, text: String }
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Undecoded {
    type_name: String,
    bytes_hex: Hex,
}

impl Tagged {
    /// Returns the parameter.
    pub(crate) fn to_value(&self, message: &hapax_guest::Message) -> Result<Value, String> {
        Ok(match self.clone() {
            Self::Null(_) => Value::Null,
            Self::Boolean(value) => Value::Boolean(value),
            Self::Int64(value) => Value::Int64(value),
            Self::Float64(value) => Value::Float64(value),
            Self::Float64Text(text) => match text.parse() {
                Ok(value) => Value::Float64(value),
                Err(_) => return Err(format!("`{text}` is not a floating-point number")),
            },
            Self::Text(text) => Value::Text(text),
            Self::BytesHex(hex) => Value::Bytes(hex.0),
            Self::Decimal(text) => Value::Decimal(text),
            Self::Date(date) => Value::Date(date.into()),
            Self::Time(time) => Value::Time(time.into()),
            Self::Timestamp(timestamp) => Value::Timestamp(timestamp.into()),
            Self::Instant(moment) => Value::Instant(moment.into()),
            Self::Interval(interval) => Value::Interval(interval.into()),
            Self::Uuid(text) => Value::Uuid(text),
            Self::Json(text) => Value::Json(text),
            Self::BooleanArray(array) => Value::BooleanArray(array),
            Self::Int64Array(array) => Value::Int64Array(array),
            Self::Float64Array(array) => Value::Float64Array(array),
            Self::TextArray(array) => Value::TextArray(array),
            Self::BytesHexArray(array) => Value::BytesArray(each(array, |hex| hex.0)),
            Self::DecimalArray(array) => Value::DecimalArray(array),
            Self::DateArray(array) => Value::DateArray(each(array, Into::into)),
            Self::TimeArray(array) => Value::TimeArray(each(array, Into::into)),
            Self::TimestampArray(array) => Value::TimestampArray(each(array, Into::into)),
            Self::InstantArray(array) => Value::InstantArray(each(array, Into::into)),
            Self::IntervalArray(array) => Value::IntervalArray(each(array, Into::into)),
            Self::UuidArray(array) => Value::UuidArray(array),
            Self::JsonArray(array) => Value::JsonArray(array),
            Self::Other(other) => Value::Other(other.into()),
            Self::Undecoded(undecoded) => Value::Undecoded(sql::Undecoded {
                type_name: undecoded.type_name,
                bytes: undecoded.bytes_hex.0,
            }),
            Self::LongText(text) => Value::Text(text.0),
            Self::Message(part) => match part {
                Part::Id => Value::Text(message.id.clone()),
                Part::Source => Value::Text(message.source.clone()),
                Part::Subject => Value::Text(message.subject.clone()),
                Part::Key => message.key.clone().map_or(Value::Null, Value::Text),
                Part::Attempt => Value::Int64(i64::from(message.attempt)),
            },
        })
    }
}

impl From<Value> for Tagged {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null(true),
            Value::Boolean(value) => Self::Boolean(value),
            Value::Int64(value) => Self::Int64(value),
            Value::Float64(value) if value.is_finite() => Self::Float64(value),
            Value::Float64(value) => Self::Float64Text(value.to_string()),
            Value::Text(text) => Self::Text(text),
            Value::Bytes(bytes) => Self::BytesHex(Hex(bytes)),
            Value::Decimal(text) => Self::Decimal(text),
            Value::Date(date) => Self::Date(date.into()),
            Value::Time(time) => Self::Time(time.into()),
            Value::Timestamp(timestamp) => Self::Timestamp(timestamp.into()),
            Value::Instant(instant) => Self::Instant(instant.into()),
            Value::Interval(interval) => Self::Interval(interval.into()),
            Value::Uuid(text) => Self::Uuid(text),
            Value::Json(text) => Self::Json(text),
            Value::BooleanArray(array) => Self::BooleanArray(array),
            Value::Int64Array(array) => Self::Int64Array(array),
            Value::Float64Array(array) => Self::Float64Array(array),
            Value::TextArray(array) => Self::TextArray(array),
            Value::BytesArray(array) => Self::BytesHexArray(each(array, Hex)),
            Value::DecimalArray(array) => Self::DecimalArray(array),
            Value::DateArray(array) => Self::DateArray(each(array, Into::into)),
            Value::TimeArray(array) => Self::TimeArray(each(array, Into::into)),
            Value::TimestampArray(array) => Self::TimestampArray(each(array, Into::into)),
            Value::InstantArray(array) => Self::InstantArray(each(array, Into::into)),
            Value::IntervalArray(array) => Self::IntervalArray(each(array, Into::into)),
            Value::UuidArray(array) => Self::UuidArray(array),
            Value::JsonArray(array) => Self::JsonArray(array),
            Value::Other(other) => Self::Other(other.into()),
            Value::Undecoded(undecoded) => Self::Undecoded(Undecoded {
                type_name: undecoded.type_name,
                bytes_hex: Hex(undecoded.bytes),
            }),
        }
    }
}

fn each<A, B>(array: Vec<Option<A>>, mut convert: impl FnMut(A) -> B) -> Vec<Option<B>> {
    array
        .into_iter()
        .map(|element| element.map(&mut convert))
        .collect()
}

impl Hex {
    /// Reads hexadecimal digits, two a byte.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
        let digits = digits?;
        if digits.len() % 2 != 0 {
            return None;
        }
        digits
            .chunks_exact(2)
            .map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok())
            .collect::<Option<Vec<u8>>>()
            .map(Self)
    }
}

impl std::fmt::Display for Hex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom("expected hexadecimal digits, two for each byte")
        })
    }
}

impl Serialize for Hex {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> hapax_guest::Message {
        hapax_guest::Message {
            id: "m1".to_owned(),
            source: "s".to_owned(),
            subject: "a.b".to_owned(),
            key: None,
            headers: Vec::new(),
            content_type: None,
            payload: Vec::new(),
            attempt: 3,
            published_at: None,
        }
    }

    #[test]
    fn every_value_is_written_as_it_is_read() {
        let all = serde_json::json!([
            {"null": true}, {"boolean": false}, {"int64": i64::MIN}, {"float64": 1.5}, {"float64_text": "NaN"},
            {"float64_text": "-inf"}, {"text": "a\u{0}b"}, {"bytes_hex": "00ff"}, {"decimal": "1.50"},
            {"date": {"year": 2024, "month": 2, "day": 29}},
            {"time": {"hour": 24, "minute": 0, "second": 0, "microsecond": 0}},
            {"timestamp": {"date": {"year": 1, "month": 1, "day": 1},
                           "time": {"hour": 1, "minute": 2, "second": 3, "microsecond": 4}}},
            {"instant": {"seconds": -1, "nanoseconds": 5}}, {"interval": {"months": 1, "days": -2, "microseconds": 3}},
            {"uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}, {"json": "{\"a\": 1}"},
            {"boolean_array": [true, null]}, {"int64_array": [1, null]}, {"float64_array": [1.5]},
            {"text_array": ["a", null]}, {"bytes_hex_array": ["00", null]}, {"decimal_array": ["1.0"]},
            {"date_array": [{"year": 1, "month": 1, "day": 1}]}, {"time_array": [null]}, {"timestamp_array": []},
            {"instant_array": [{"seconds": 1, "nanoseconds": 0}]}, {"interval_array": []}, {"uuid_array": []},
            {"json_array": ["null"]}, {"other": {"type_name": "inet", "text": "::1"}},
            {"undecoded": {"type_name": "x", "bytes_hex": "ab"}}
        ]);
        let read: Vec<Tagged> = serde_json::from_value(all.clone()).unwrap();
        let written: Vec<Tagged> = read
            .iter()
            .map(|tagged| tagged.to_value(&message()).unwrap().into())
            .collect();
        assert_eq!(serde_json::to_value(written).unwrap(), all);
    }

    #[test]
    fn the_message_gives_parameters() {
        let read: Vec<Tagged> = serde_json::from_str(
            r#"[{"message": "id"}, {"message": "attempt"}, {"message": "key"}, {"long_text": {"repeat": "x", "times": 3}}]"#,
        )
        .unwrap();
        let values: Vec<Value> = read
            .iter()
            .map(|tagged| tagged.to_value(&message()).unwrap())
            .collect();
        assert_eq!(
            values,
            [
                Value::Text("m1".to_owned()),
                Value::Int64(3),
                Value::Null,
                Value::Text("xxx".to_owned())
            ]
        );
    }

    #[test]
    fn bytes_are_two_digits_each() {
        assert_eq!(Hex::parse("00fF"), Some(Hex(vec![0, 255])));
        assert_eq!(Hex::parse("0"), None);
        assert_eq!(Hex::parse("0g"), None);
        assert_eq!(Hex::parse("ää"), None);
    }
}
