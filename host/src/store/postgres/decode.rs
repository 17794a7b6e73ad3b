//! Results from their text form.
//!
//! **Invariant**: no I/O here. A value that its case can't hold whole (`infinity`, years BC, arrays of several dimensions) has
//! no case: the text itself is given.

use super::params::{Base, Type};
use crate::store::calendar;
use crate::store::text::instant_from_text;
use crate::store::{Element, Value};

/// Reads one column's bytes, in the server's text form.
pub(super) fn read(bytes: &[u8], wanted: &Type) -> Value {
    let Ok(text) = std::str::from_utf8(bytes) else {
        // A database of the encoding SQL_ASCII gives what was put in.
        return Value::Undecoded {
            type_name: wanted.name.clone(),
            bytes: bytes.to_vec(),
        };
    };
    let value = if wanted.is_array {
        array(text, wanted.base)
    } else {
        scalar(text, wanted.base)
    };
    value.unwrap_or_else(|| Value::Other {
        type_name: wanted.name.clone(),
        text: text.to_owned(),
    })
}

fn scalar(text: &str, base: Base) -> Option<Value> {
    Some(match base {
        Base::Boolean => Value::Boolean(match text {
            "t" => true,
            "f" => false,
            _ => return None,
        }),
        Base::Int2 | Base::Int4 | Base::Int8 | Base::Oid => Value::Int64(text.parse().ok()?),
        // Its shortest digits are those of the narrow type: read as a wide one, they would be another number.
        Base::Float4 => Value::Float64(f64::from(text.parse::<f32>().ok()?)),
        Base::Float8 => Value::Float64(text.parse().ok()?),
        Base::Numeric => Value::Decimal(text.to_owned()),
        Base::Text => Value::Text(text.to_owned()),
        Base::Bytea => Value::Bytes(read_hex(text.strip_prefix("\\x")?)?),
        Base::Date => Value::Date(calendar::date_from_text(text)?),
        Base::Time => Value::Time(calendar::time_from_text(text)?),
        Base::Timestamp => Value::Timestamp(calendar::timestamp_from_text(text)?),
        Base::Timestamptz => Value::Instant(instant_from_text(text)?),
        Base::Interval => Value::Interval(calendar::interval_from_text(text)?),
        Base::Uuid => Value::Uuid(text.to_owned()),
        Base::Json => Value::Json(text.to_owned()),
        Base::Other => return None,
    })
}

/// Returns the contract's case for elements of a type.
pub(super) fn element(base: Base) -> Option<Element> {
    Some(match base {
        Base::Boolean => Element::Boolean,
        Base::Int2 | Base::Int4 | Base::Int8 | Base::Oid => Element::Int64,
        Base::Float4 | Base::Float8 => Element::Float64,
        Base::Numeric => Element::Decimal,
        Base::Text => Element::Text,
        Base::Bytea => Element::Bytes,
        Base::Date => Element::Date,
        Base::Time => Element::Time,
        Base::Timestamp => Element::Timestamp,
        Base::Timestamptz => Element::Instant,
        Base::Interval => Element::Interval,
        Base::Uuid => Element::Uuid,
        Base::Json => Element::Json,
        Base::Other => return None,
    })
}

/// Reads `{1,NULL,"a \"b\""}`. `None` for several dimensions, bounds of its own (`[0:1]={..}`), and elements without a case.
fn array(text: &str, base: Base) -> Option<Value> {
    let element = element(base)?;
    let mut rest = text.strip_prefix('{')?.strip_suffix('}')?;
    let mut elements = Vec::new();
    while !rest.is_empty() {
        let value = if let Some(quoted) = rest.strip_prefix('"') {
            let (text, behind) = unquote(quoted)?;
            rest = behind;
            scalar(&text, base)?
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            let word = &rest[..end];
            rest = &rest[end..];
            match word {
                "NULL" => Value::Null,
                _ if word.contains(['{', '}']) => return None,
                _ => scalar(word, base)?,
            }
        };
        elements.push(value);
        match rest.strip_prefix(',') {
            Some(next) if !next.is_empty() => rest = next,
            None if rest.is_empty() => {}
            _ => return None,
        }
    }
    Some(Value::Array(element, elements))
}

/// Reads up to the closing quote. Returns the text, and what stands behind it.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((text, &quoted[at + 1..])),
            '\\' => text.push(chars.next()?.1),
            _ => text.push(char),
        }
    }
    None
}

fn read_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    text.as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => u8::try_from(digit(*high)? << 4 | digit(*low)?).ok(),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, base: Base) -> Value {
        read(text.as_bytes(), &Type::for_test("x", base))
    }

    fn array_of(text: &str, base: Base) -> Value {
        let mut wanted = Type::for_test("x", base);
        wanted.is_array = true;
        read(text.as_bytes(), &wanted)
    }

    fn other(text: &str) -> Value {
        Value::Other {
            type_name: "x".into(),
            text: text.into(),
        }
    }

    #[test]
    fn results_are_read_or_given_as_they_are() {
        assert_eq!(of("t", Base::Boolean), Value::Boolean(true));
        assert_eq!(of("\\x00ff", Base::Bytea), Value::Bytes(vec![0, 255]));
        assert_eq!(
            of("-Infinity", Base::Float8),
            Value::Float64(f64::NEG_INFINITY)
        );
        assert_eq!(of("0.1", Base::Float4), Value::Float64(f64::from(0.1_f32)));
        for (text, base) in [
            ("infinity", Base::Timestamptz),
            ("0044-03-15 00:00:00+00 BC", Base::Timestamptz),
            ("-infinity", Base::Date),
            ("x", Base::Other),
            ("12:00:00+02", Base::Time),
        ] {
            assert_eq!(of(text, base), other(text));
        }
        assert_eq!(
            read(b"\xff", &Type::for_test("text", Base::Text)),
            Value::Undecoded {
                type_name: "text".into(),
                bytes: vec![0xff]
            }
        );
    }

    #[test]
    fn arrays_of_one_dimension_are_read_and_others_given_as_they_are() {
        let text = |text: &str| Value::Text(text.into());
        assert_eq!(
            array_of("{}", Base::Int4),
            Value::Array(Element::Int64, vec![])
        );
        assert_eq!(
            array_of("{1,NULL,-3}", Base::Int4),
            Value::Array(
                Element::Int64,
                vec![Value::Int64(1), Value::Null, Value::Int64(-3)]
            )
        );
        assert_eq!(
            array_of(r#"{a,"NULL",NULL,"","b \"c\" \\ {,}",ä}"#, Base::Text),
            Value::Array(
                Element::Text,
                vec![
                    text("a"),
                    text("NULL"),
                    Value::Null,
                    text(""),
                    text("b \"c\" \\ {,}"),
                    text("ä")
                ]
            )
        );
        for (odd, base) in [
            ("{{1,2},{3,4}}", Base::Int4),
            ("[0:1]={1,2}", Base::Int4),
            ("{infinity}", Base::Date),
            ("{a}", Base::Other),
            ("{1,}", Base::Int4),
            ("{\"a\"b}", Base::Text),
            ("{\"a}", Base::Text),
            ("", Base::Text),
        ] {
            assert_eq!(array_of(odd, base), other(odd));
        }
    }
}
