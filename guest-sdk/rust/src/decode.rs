//! Reads a row into a struct through serde.
//!
//! **Invariant**: a value is converted by [`FromValue`] alone, so a field and [`Row::get`](crate::sql::Row::get) agree.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::Instant;
use crate::convert::{FromValue, kind};
use crate::error::Error;
use crate::sql::{Column, Value, mismatch};
use crate::value::Json;

pub(crate) fn row<T: DeserializeOwned>(columns: &[Column], values: &[Value]) -> Result<T, Error> {
    T::deserialize(RowDeserializer { columns, values }).map_err(|problem| match problem {
        Problem::Found(error) => error,
        Problem::Unplaced(message) => Error::decode(None, format!("row cannot be read: {message}")),
    })
}

/// What went wrong: serde's own words, until the column is known that they are about.
#[derive(Debug)]
enum Problem {
    Unplaced(String),
    Found(Error),
}

impl Problem {
    fn at(self, column: &Column) -> Self {
        match self {
            Self::Found(error) => Self::Found(error),
            Self::Unplaced(message) => {
                let Column { name, type_name } = column;
                let message = format!("column `{name}` ({type_name}): {message}");
                Self::Found(Error::decode(Some(name), message))
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unplaced(message) => f.write_str(message),
            Self::Found(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Problem {}

impl de::Error for Problem {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Unplaced(message.to_string())
    }
}

struct RowDeserializer<'a> {
    columns: &'a [Column],
    values: &'a [Value],
}

impl<'a> RowDeserializer<'a> {
    /// Returns the value of a row that has exactly one.
    fn only(&self) -> Result<ValueDeserializer<'a>, Problem> {
        match (self.columns, self.values) {
            ([column], [value]) => Ok(ValueDeserializer { column, value }),
            _ => Err(Problem::Unplaced(format!(
                "it has {} columns, wanted a single value",
                self.values.len()
            ))),
        }
    }

    fn fields(&self) -> Fields<'a> {
        Fields {
            columns: self.columns,
            values: self.values,
        }
    }
}

/// Asks the row's only value.
macro_rules! of_the_only_value {
    ($($method:ident)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
                let only = self.only()?;
                let column = only.column;
                only.$method(visitor).map_err(|problem| problem.at(column))
            }
        )*
    };
}

impl<'de> de::Deserializer<'de> for RowDeserializer<'de> {
    type Error = Problem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_map(self.fields())
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_map(self.fields())
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        visitor.visit_map(self.fields())
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_seq(self.fields())
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Problem> {
        if length != self.values.len() {
            let message = format!("it has {} columns, wanted {length}", self.values.len());
            return Err(Problem::Unplaced(message));
        }
        visitor.visit_seq(self.fields())
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Problem> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Problem> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        let only = self.only()?;
        let column = only.column;
        only.deserialize_enum(name, variants, visitor)
            .map_err(|problem| problem.at(column))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Problem> {
        visitor.visit_unit()
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_unit()
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_unit()
    }

    of_the_only_value! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8 deserialize_u16
        deserialize_u32 deserialize_u64 deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string
        deserialize_bytes deserialize_byte_buf deserialize_option deserialize_identifier
    }
}

/// The columns and values that are still to be read.
struct Fields<'a> {
    columns: &'a [Column],
    values: &'a [Value],
}

impl<'a> Fields<'a> {
    fn next(&mut self) -> Option<ValueDeserializer<'a>> {
        let (column, columns) = self.columns.split_first()?;
        let (value, values) = self.values.split_first()?;
        (self.columns, self.values) = (columns, values);
        Some(ValueDeserializer { column, value })
    }
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Problem;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Problem> {
        // A row with fewer values than columns ends early, and serde reports the missing field.
        let (Some(column), false) = (self.columns.first(), self.values.is_empty()) else {
            return Ok(None);
        };
        let name: StrDeserializer<'_, Problem> = column.name.as_str().into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Problem> {
        let next = self
            .next()
            .ok_or_else(|| Problem::Unplaced("a value is missing".to_owned()))?;
        let column = next.column;
        seed.deserialize(next).map_err(|problem| problem.at(column))
    }
}

impl<'de> SeqAccess<'de> for Fields<'de> {
    type Error = Problem;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Problem> {
        let Some(next) = self.next() else {
            return Ok(None);
        };
        let column = next.column;
        seed.deserialize(next)
            .map(Some)
            .map_err(|problem| problem.at(column))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.values.len())
    }
}

struct ValueDeserializer<'a> {
    column: &'a Column,
    value: &'a Value,
}

impl<'de> ValueDeserializer<'de> {
    fn read<T: FromValue>(&self) -> Result<T, Problem> {
        T::from_value(self.value)
            .ok_or_else(|| Problem::Found(mismatch(self.column, self.value, T::WANTED)))
    }

    /// Hands on to serde_json, for what only JSON can hold.
    fn json<T>(
        &self,
        visit: impl FnOnce(
            &mut serde_json::Deserializer<serde_json::de::StrRead<'de>>,
        ) -> serde_json::Result<T>,
    ) -> Result<T, Problem> {
        let (Value::Json(text) | Value::Text(text)) = self.value else {
            return Err(Problem::Found(mismatch(
                self.column,
                self.value,
                Json::WANTED,
            )));
        };
        let mut json = serde_json::Deserializer::from_str(text);
        let value = visit(&mut json).and_then(|value| json.end().map(|()| value));
        value.map_err(|error| Problem::Unplaced(error.to_string()))
    }

    /// Returns the value as text, moments as RFC 3339.
    fn text(&self) -> Result<String, Problem> {
        match self.value {
            Value::Instant(_) => self.read::<Instant>().map(|instant| instant.to_string()),
            _ => self.read(),
        }
    }
}

macro_rules! converted {
    ($($method:ident $type:ty, $visit:ident;)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
                visitor.$visit(self.read::<$type>()?)
            }
        )*
    };
}

macro_rules! as_json {
    ($($method:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, Problem> {
                self.json(|json| json.$method($($argument,)* visitor))
            }
        )*
    };
}

impl<'de> de::Deserializer<'de> for ValueDeserializer<'de> {
    type Error = Problem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Boolean(value) => visitor.visit_bool(*value),
            Value::Int64(value) => visitor.visit_i64(*value),
            Value::Float64(value) => visitor.visit_f64(*value),
            Value::Bytes(bytes) => visitor.visit_bytes(bytes),
            Value::Text(_)
            | Value::Decimal(_)
            | Value::Uuid(_)
            | Value::Other(_)
            | Value::Instant(_) => visitor.visit_string(self.text()?),
            Value::Json(_) => self.json(|json| json.deserialize_any(visitor)),
            value => Err(Problem::Unplaced(format!(
                "{} has no form in a struct; read it with `get`",
                kind(value)
            ))),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Problem> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        visitor.visit_enum(self.text()?.into_deserializer())
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_string(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_string(self.text()?)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_string(self.text()?)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Problem> {
        visitor.visit_unit()
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_unit()
    }

    converted! {
        deserialize_bool bool, visit_bool;
        deserialize_i8 i8, visit_i8;
        deserialize_i16 i16, visit_i16;
        deserialize_i32 i32, visit_i32;
        deserialize_i64 i64, visit_i64;
        deserialize_u8 u8, visit_u8;
        deserialize_u16 u16, visit_u16;
        deserialize_u32 u32, visit_u32;
        deserialize_u64 u64, visit_u64;
        deserialize_f32 f32, visit_f32;
        deserialize_f64 f64, visit_f64;
        deserialize_bytes Vec<u8>, visit_byte_buf;
        deserialize_byte_buf Vec<u8>, visit_byte_buf;
    }

    as_json! {
        deserialize_seq();
        deserialize_map();
        deserialize_tuple(length: usize);
        deserialize_tuple_struct(name: &'static str, length: usize);
        deserialize_struct(name: &'static str, fields: &'static [&'static str]);
    }

    forward_to_deserialize_any! { i128 u128 identifier }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::sql::Row;
    use crate::sql::tests::rows;
    use crate::value::{Decimal, Uuid};

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum State {
        Open,
        Closed,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Account {
        id: String,
        balance: i64,
        small: Option<u8>,
        active: bool,
        rate: f64,
        price: Decimal,
        token: Uuid,
        tags: Vec<String>,
        raw: Json,
        since: Instant,
        state: State,
    }

    const COLUMNS: [(&str, &str); 12] = [
        ("unused", "BYTEA"),
        ("id", "TEXT"),
        ("balance", "BIGINT"),
        ("small", "INT2"),
        ("active", "BOOL"),
        ("rate", "FLOAT8"),
        ("price", "NUMERIC"),
        ("token", "UUID"),
        ("tags", "JSONB"),
        ("raw", "JSONB"),
        ("since", "TIMESTAMPTZ"),
        ("state", "mood"),
    ];
    const TOKEN: &str = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    fn one(columns: &[(&str, &str)], values: Vec<Value>) -> Row {
        rows(columns, vec![values]).one().unwrap()
    }

    fn account() -> Account {
        Account {
            id: "a1".to_owned(),
            balance: 5,
            small: None,
            active: true,
            rate: 0.5,
            price: Decimal("1.50".to_owned()),
            token: Uuid(TOKEN.to_owned()),
            tags: vec!["x".to_owned()],
            raw: Json("[\"x\"]".to_owned()),
            since: Instant {
                seconds: 1,
                nanoseconds: 0,
            },
            state: State::Open,
        }
    }

    #[test]
    fn a_struct_is_read_from_postgresql() {
        let row = one(
            &COLUMNS,
            vec![
                Value::Bytes(vec![1]),
                text("a1"),
                Value::Int64(5),
                Value::Null,
                Value::Boolean(true),
                Value::Float64(0.5),
                Value::Decimal("1.50".to_owned()),
                Value::Uuid(TOKEN.to_owned()),
                Value::Json("[\"x\"]".to_owned()),
                Value::Json("[\"x\"]".to_owned()),
                Value::Instant(Instant {
                    seconds: 1,
                    nanoseconds: 0,
                }),
                Value::Other(crate::sql::Other {
                    type_name: "mood".to_owned(),
                    text: "open".to_owned(),
                }),
            ],
        );
        assert_eq!(row.decode(), Ok(account()));
    }

    #[test]
    fn the_same_struct_is_read_from_sqlite() {
        let row = one(
            &COLUMNS,
            vec![
                Value::Null,
                text("a1"),
                Value::Int64(5),
                Value::Null,
                Value::Int64(1),
                Value::Float64(0.5),
                text("1.50"),
                text(TOKEN),
                text("[\"x\"]"),
                text("[\"x\"]"),
                text("1970-01-01 00:00:01"),
                text("open"),
            ],
        );
        assert_eq!(row.decode(), Ok(account()));
    }

    #[test]
    fn tuples_and_single_values_are_read() {
        let row = one(
            &[("a", "TEXT"), ("b", "INT8")],
            vec![text("x"), Value::Int64(1)],
        );
        assert_eq!(row.decode(), Ok(("x".to_owned(), 1_i64)));
        assert_eq!(
            row.decode::<(String,)>().unwrap_err().message(),
            "row cannot be read: it has 2 columns, wanted 1"
        );
        let single = one(&[("n", "INT8")], vec![Value::Int64(7)]);
        assert_eq!(single.decode::<i64>(), Ok(7));
        assert_eq!(single.decode::<Option<u8>>(), Ok(Some(7)));
        assert!(row.decode::<i64>().is_err());
        let json: serde_json::Value = row.decode().unwrap();
        assert_eq!(json, serde_json::json!({ "a": "x", "b": 1 }));
    }

    #[test]
    fn errors_name_the_column() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Small {
            n: u8,
        }
        #[derive(Debug, PartialEq, Deserialize)]
        struct Tagged {
            tags: Vec<i64>,
        }
        #[derive(Debug, PartialEq, Deserialize)]
        struct Stated {
            state: State,
        }
        let message = |error: Error| error.message().to_owned();

        let row = one(&[("n", "INT8")], vec![Value::Int64(300)]);
        assert_eq!(
            message(row.decode::<Small>().unwrap_err()),
            "column `n` (INT8) holds an integer that is not an unsigned 8-bit integer"
        );
        let row = one(&[("n", "INT8")], vec![Value::Null]);
        let error = row.decode::<Small>().unwrap_err();
        assert_eq!(error.column(), Some("n"));
        assert_eq!(
            message(error),
            "column `n` (INT8) is NULL, wanted an unsigned 8-bit integer; an `Option` takes both"
        );
        let row = one(&[("m", "INT8")], vec![Value::Int64(1)]);
        assert_eq!(
            message(row.decode::<Small>().unwrap_err()),
            "row cannot be read: missing field `n`"
        );
        let row = one(
            &[("tags", "JSON")],
            vec![Value::Json("[1,\"x\"]".to_owned())],
        );
        assert_eq!(
            message(row.decode::<Tagged>().unwrap_err()),
            "column `tags` (JSON): invalid type: string \"x\", expected i64 at line 1 column 6"
        );
        let row = one(&[("state", "TEXT")], vec![text("lost")]);
        assert_eq!(
            message(row.decode::<Stated>().unwrap_err()),
            "column `state` (TEXT): unknown variant `lost`, expected `open` or `closed`"
        );
        let row = one(&[("tags", "INT8")], vec![Value::Int64(1)]);
        assert_eq!(
            message(row.decode::<Tagged>().unwrap_err()),
            "column `tags` (INT8) holds an integer that is not JSON"
        );
    }
}
