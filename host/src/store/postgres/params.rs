//! Values between the contract and PostgreSQL: parameters as literals, results from their text form.
//!
//! A parameter is always sent as quoted text, which the parameter type's own input function reads: one encoder for
//! awaited and, later, pipelined statements. The driver's own binding is binary only, where text bound to a bigint
//! becomes a number silently. What fits where is decided here, before anything is sent.
//!
//! **Invariant**: no I/O here; a value never loses a part of itself without an error.

use sqlx::postgres::{PgTypeInfo, PgTypeKind};
use sqlx::{Column as _, TypeInfo as _};

use crate::store::text::{instant_from_text, instant_to_text};
use crate::store::{Column, SqlError, Value};

/// The last year of timestamptz.
const YEAR_MAX: i64 = 294_275;

/// What a type is, as far as values of the contract go; domains count as what they are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    Boolean,
    Int2,
    Int4,
    Int8,
    Oid,
    Float4,
    Float8,
    Numeric,
    Text,
    Bytea,
    Timestamptz,
    Uuid,
    Json,
    Other,
}

/// The type that a statement wants for a parameter, or gives in a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) name: String,
    pub(super) base: Base,
}

impl Type {
    pub(super) fn of(info: &PgTypeInfo) -> Self {
        let mut inner = info;
        while let PgTypeKind::Domain(base) = inner.kind() {
            inner = base;
        }
        // Source: `pg_type.dat` of PostgreSQL; these numbers never change.
        let (base, name) = match inner.oid().map(|oid| oid.0) {
            Some(16) => (Base::Boolean, "bool"),
            Some(17) => (Base::Bytea, "bytea"),
            Some(18) => (Base::Text, "\"char\""),
            Some(19) => (Base::Text, "name"),
            Some(20) => (Base::Int8, "int8"),
            Some(21) => (Base::Int2, "int2"),
            Some(23) => (Base::Int4, "int4"),
            Some(25) => (Base::Text, "text"),
            Some(26) => (Base::Oid, "oid"),
            Some(114) => (Base::Json, "json"),
            Some(700) => (Base::Float4, "float4"),
            Some(701) => (Base::Float8, "float8"),
            Some(1042) => (Base::Text, "bpchar"),
            Some(1043) => (Base::Text, "varchar"),
            Some(1184) => (Base::Timestamptz, "timestamptz"),
            Some(1700) => (Base::Numeric, "numeric"),
            Some(2950) => (Base::Uuid, "uuid"),
            Some(3802) => (Base::Json, "jsonb"),
            _ => (Base::Other, ""),
        };
        let name = if name.is_empty() || !std::ptr::eq(inner, info) {
            // The driver shouts the names of the types that it knows itself.
            match info.kind() {
                PgTypeKind::Simple => info.name().to_ascii_lowercase(),
                _ => info.name().to_owned(),
            }
        } else {
            name.to_owned()
        };
        Self { name, base }
    }
}

/// Returns the columns of a prepared statement.
pub(super) fn columns(columns: &[sqlx::postgres::PgColumn]) -> (Vec<Column>, Vec<Base>) {
    columns
        .iter()
        .map(|column| {
            let kind = Type::of(column.type_info());
            let name = column.name().to_owned();
            (
                Column {
                    name,
                    type_name: kind.name,
                },
                kind.base,
            )
        })
        .unzip()
}

/// Appends `text` as an `E'..'` literal. It must not contain NUL.
pub(super) fn push_literal(out: &mut String, text: &str) {
    out.push_str("E'");
    for char in text.chars() {
        if matches!(char, '\'' | '\\') {
            out.push(char);
        }
        out.push(char);
    }
    out.push('\'');
}

/// Appends a parameter for the type that the database wants at its place. `number` counts from 1.
///
/// # Errors
/// `type.mismatch` or `data.invalid`, naming the parameter.
pub(super) fn push_param(
    out: &mut String,
    number: u32,
    value: &Value,
    wanted: &Type,
) -> Result<(), SqlError> {
    let fail = |code: &str, text: String, hint: Option<&str>| SqlError {
        param: Some(number),
        hint: hint.map(str::to_owned),
        ..SqlError::new(code, format!("parameter ${number}: {text}"))
    };
    let mismatch = || {
        fail(
            "type.mismatch",
            format!(
                "the statement wants `{}` here, not {}",
                wanted.name,
                value.kind()
            ),
            Some("pass text for types without a case of their own, or cast in the statement"),
        )
    };
    let invalid = |text: String| fail("data.invalid", text, None);

    match (value, wanted.base) {
        (Value::Null, _) => out.push_str("NULL"),
        (Value::Text(text), _) => {
            if text.contains('\0') {
                return Err(fail(
                    "data.invalid",
                    "the text contains NUL, which PostgreSQL can't store".into(),
                    Some("pass bytes, into a column of type bytea"),
                ));
            }
            push_literal(out, text);
        }
        (Value::Boolean(value), Base::Boolean) => {
            push_literal(out, if *value { "true" } else { "false" });
        }
        (Value::Int64(value), base) => {
            let fits = match base {
                Base::Int2 => i16::try_from(*value).is_ok(),
                Base::Int4 => i32::try_from(*value).is_ok(),
                Base::Oid => u32::try_from(*value).is_ok(),
                Base::Int8 | Base::Numeric => true,
                Base::Float4 => is_exact(*value, 24),
                Base::Float8 => is_exact(*value, 53),
                _ => return Err(mismatch()),
            };
            if !fits {
                return Err(fail(
                    "data.out-of-range",
                    format!("{value} does not fit into `{}` exactly", wanted.name),
                    None,
                ));
            }
            push_literal(out, &value.to_string());
        }
        (Value::Float64(value), Base::Float4 | Base::Float8 | Base::Numeric) => {
            // The shortest digits that give the same number again, in both of the type's input functions.
            push_literal(
                out,
                &if value.is_nan() {
                    "NaN".into()
                } else if value.is_infinite() {
                    let sign = if value.is_sign_negative() { "-" } else { "" };
                    format!("{sign}Infinity")
                } else if *value == 0.0 || (1e-5..1e16).contains(&value.abs()) {
                    value.to_string()
                } else {
                    format!("{value:e}")
                },
            );
        }
        (Value::Decimal(text), Base::Numeric | Base::Int2 | Base::Int4 | Base::Int8) => {
            if !is_decimal(text) {
                return Err(invalid(format!("`{}` is no decimal number", shorten(text))));
            }
            push_literal(out, text);
        }
        (Value::Bytes(bytes), Base::Bytea) => {
            // The backslash of `\x..` is doubled like any other.
            out.reserve(bytes.len() * 2 + 6);
            out.push_str("E'\\\\x");
            for byte in bytes {
                out.push(char::from(HEX[usize::from(byte >> 4)]));
                out.push(char::from(HEX[usize::from(byte & 15)]));
            }
            out.push('\'');
        }
        (Value::Instant(instant), Base::Timestamptz) => {
            let text = instant_to_text(*instant, YEAR_MAX).map_err(invalid)?;
            push_literal(out, &text);
        }
        (Value::Uuid(text), Base::Uuid | Base::Text) => {
            if !is_uuid(text) {
                return Err(invalid(format!("`{}` is no uuid", shorten(text))));
            }
            push_literal(out, text);
        }
        (Value::Json(text), Base::Json | Base::Text) => {
            if text.contains('\0') {
                return Err(invalid("the JSON text contains NUL".into()));
            }
            push_literal(out, text);
        }
        _ => return Err(mismatch()),
    }
    Ok(())
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// True if a floating-point number of `bits` significant bits holds `value` exactly.
fn is_exact(value: i64, bits: u32) -> bool {
    let size = value.unsigned_abs();
    size == 0 || 64 - size.leading_zeros() - size.trailing_zeros() <= bits
}

fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}

/// True for plain and scientific notation, and for the three words of the contract.
pub(in crate::store) fn is_decimal(text: &str) -> bool {
    if ["NaN", "Infinity", "-Infinity"].contains(&text) {
        return true;
    }
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        None => (unsigned, "0"),
        Some((mantissa, exponent)) => (
            mantissa,
            exponent.strip_prefix(['-', '+']).unwrap_or(exponent),
        ),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let has_digits = !(whole.is_empty() && fraction.is_empty() || exponent.is_empty());
    has_digits && digits(whole) && digits(fraction) && digits(exponent)
}

/// True for 8-4-4-4-12 hexadecimal digits.
pub(in crate::store) fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(place, byte)| match place {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// Reads one column's text form. `None`: this host has no case for it.
pub(super) fn read(text: &str, base: Base) -> Option<Value> {
    Some(match base {
        Base::Boolean => Value::Boolean(match text {
            "t" => true,
            "f" => false,
            _ => return None,
        }),
        Base::Int2 | Base::Int4 | Base::Int8 => Value::Int64(text.parse().ok()?),
        Base::Float4 | Base::Float8 => Value::Float64(text.parse().ok()?),
        Base::Numeric => Value::Decimal(text.to_owned()),
        Base::Text => Value::Text(text.to_owned()),
        Base::Bytea => Value::Bytes(read_hex(text.strip_prefix("\\x")?)?),
        Base::Timestamptz => Value::Instant(instant_from_text(text)?),
        Base::Uuid => Value::Uuid(text.to_owned()),
        Base::Json => Value::Json(text.to_owned()),
        Base::Oid | Base::Other => return None,
    })
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
    use crate::message::Instant;

    fn wanted(name: &str, base: Base) -> Type {
        Type {
            name: name.into(),
            base,
        }
    }

    fn literal(value: Value, base: Base) -> Result<String, String> {
        let mut out = String::new();
        push_param(&mut out, 1, &value, &wanted("x", base))
            .map(|()| out)
            .map_err(|error| {
                assert_eq!(error.param, Some(1));
                error.code
            })
    }

    #[test]
    fn literals_are_quoted_text() {
        let text = |text: &str| Value::Text(text.into());
        for (value, base, expected) in [
            (Value::Null, Base::Int4, "NULL"),
            (text("it's \\ \"x\""), Base::Other, "E'it''s \\\\ \"x\"'"),
            (Value::Boolean(true), Base::Boolean, "E'true'"),
            (Value::Int64(-5), Base::Int2, "E'-5'"),
            (
                Value::Int64(i64::MIN),
                Base::Numeric,
                "E'-9223372036854775808'",
            ),
            (
                Value::Int64(1 << 60),
                Base::Float4,
                "E'1152921504606846976'",
            ),
            (Value::Float64(0.1), Base::Numeric, "E'0.1'"),
            (Value::Float64(1e300), Base::Float8, "E'1e300'"),
            (Value::Float64(-0.0), Base::Float8, "E'-0'"),
            (
                Value::Float64(f64::NEG_INFINITY),
                Base::Float8,
                "E'-Infinity'",
            ),
            (
                Value::Decimal("-1.50e3".into()),
                Base::Numeric,
                "E'-1.50e3'",
            ),
            (Value::Bytes(vec![0, 255]), Base::Bytea, "E'\\\\x00ff'"),
            (
                Value::Instant(Instant {
                    seconds: 0,
                    nanoseconds: 1000,
                }),
                Base::Timestamptz,
                "E'1970-01-01T00:00:00.000001Z'",
            ),
        ] {
            assert_eq!(literal(value, base).unwrap(), expected);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_sent() {
        let text = |text: &str| Value::Text(text.into());
        let nanosecond = Value::Instant(Instant {
            seconds: 0,
            nanoseconds: 1,
        });
        for (value, base, code) in [
            (text("a\0b"), Base::Text, "data.invalid"),
            (Value::Json("\0".into()), Base::Json, "data.invalid"),
            (Value::Int64(40_000), Base::Int2, "data.out-of-range"),
            (Value::Int64(1 << 40), Base::Int4, "data.out-of-range"),
            (
                Value::Int64((1 << 24) + 1),
                Base::Float4,
                "data.out-of-range",
            ),
            (Value::Int64(i64::MAX), Base::Float8, "data.out-of-range"),
            (Value::Int64(1), Base::Text, "type.mismatch"),
            (Value::Int64(1), Base::Boolean, "type.mismatch"),
            (Value::Float64(1.0), Base::Int4, "type.mismatch"),
            (Value::Boolean(true), Base::Int4, "type.mismatch"),
            (Value::Bytes(vec![]), Base::Text, "type.mismatch"),
            (Value::Decimal("1".into()), Base::Text, "type.mismatch"),
            (Value::Decimal("0x10".into()), Base::Int4, "data.invalid"),
            (Value::Decimal("1_000".into()), Base::Int4, "data.invalid"),
            (Value::Decimal(".".into()), Base::Numeric, "data.invalid"),
            (Value::Decimal("1e".into()), Base::Numeric, "data.invalid"),
            (Value::Uuid("x".into()), Base::Uuid, "data.invalid"),
            (nanosecond, Base::Timestamptz, "data.invalid"),
        ] {
            assert_eq!(literal(value, base).unwrap_err(), code);
        }
    }

    #[test]
    fn results_are_read_or_refused() {
        assert_eq!(read("t", Base::Boolean), Some(Value::Boolean(true)));
        assert_eq!(
            read("\\x00ff", Base::Bytea),
            Some(Value::Bytes(vec![0, 255]))
        );
        assert_eq!(
            read("-Infinity", Base::Float8),
            Some(Value::Float64(f64::NEG_INFINITY))
        );
        assert_eq!(read("infinity", Base::Timestamptz), None);
        assert_eq!(read("0044-03-15 00:00:00+00 BC", Base::Timestamptz), None);
        assert_eq!(read("x", Base::Other), None);
    }
}
