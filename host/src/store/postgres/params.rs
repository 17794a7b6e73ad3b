//! Parameters for PostgreSQL: what fits where, and literals.
//!
//! A parameter is always sent as quoted text, which the parameter type's own input function reads: one encoder for
//! awaited and, later, pipelined statements. The driver's own binding is binary only, where text bound to a bigint
//! becomes a number silently. What fits where is decided here, before anything is sent.
//!
//! **Invariant**: no I/O here; a value never loses a part of itself without an error.

use std::borrow::Cow;

use sqlx::postgres::{PgTypeInfo, PgTypeKind};
use sqlx::{Column as _, TypeInfo as _};

use super::YEAR_MAX;
use super::decode::element;
use crate::store::text::instant_to_text;
use crate::store::{Column, SqlError, Value, calendar};

/// The last year of date.
const DATE_YEAR_MAX: i64 = 5_874_897;

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
    Date,
    Time,
    Timestamp,
    Timestamptz,
    Interval,
    Uuid,
    Json,
    Other,
}

/// The type that a statement wants for a parameter, or gives in a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Type {
    /// As the database names it.
    pub(super) name: String,
    /// The name of what it is made of, if it is a domain.
    plain_name: String,
    /// Of an array's elements.
    pub(super) base: Base,
    pub(super) is_array: bool,
    /// Of the type itself, domain or not.
    pub(super) oid: u32,
}

impl Type {
    #[cfg(test)]
    pub(super) fn for_test(name: &str, base: Base) -> Self {
        Self {
            name: name.into(),
            plain_name: name.into(),
            base,
            is_array: false,
            oid: 0,
        }
    }

    pub(super) fn of(info: &PgTypeInfo) -> Self {
        let plain = under_domains(info);
        let (is_array, scalar) = match plain.kind() {
            PgTypeKind::Array(element) => (true, under_domains(element)),
            _ => (false, plain),
        };
        Self {
            name: name_of(info),
            plain_name: name_of(plain),
            base: base_of(scalar),
            is_array,
            oid: info.oid().map_or(0, |oid| oid.0),
        }
    }

    /// True if text of the type `name` is text of this one.
    fn takes_text_of(&self, name: &str) -> bool {
        // Such a type is known by its text only; and what is text takes any.
        (!self.is_array && matches!(self.base, Base::Other | Base::Text))
            || (self.is_array && self.base == Base::Other)
            || name.eq_ignore_ascii_case(&self.name)
            || name.eq_ignore_ascii_case(&self.plain_name)
    }
}

fn under_domains(info: &PgTypeInfo) -> &PgTypeInfo {
    let mut inner = info;
    while let PgTypeKind::Domain(base) = inner.kind() {
        inner = base;
    }
    inner
}

fn name_of(info: &PgTypeInfo) -> String {
    match info.kind() {
        PgTypeKind::Array(element) => format!("{}[]", name_of(element)),
        _ if info.oid().is_some_and(|oid| oid.0 == 1042) => "bpchar".into(),
        // The driver shouts the names of the types that it knows itself.
        _ if info.oid().is_some_and(|oid| oid.0 < FIRST_OWN_OID) => info.name().to_lowercase(),
        _ => info.name().to_owned(),
    }
}

/// Types that a database makes itself have larger numbers. Source: `FirstNormalObjectId` in `transam.h`.
const FIRST_OWN_OID: u32 = 16_384;

fn base_of(info: &PgTypeInfo) -> Base {
    // Source: `pg_type.dat` of PostgreSQL; these numbers never change.
    match info.oid().map(|oid| oid.0) {
        Some(16) => Base::Boolean,
        Some(17) => Base::Bytea,
        // "char", name, text, bpchar, varchar
        Some(18 | 19 | 25 | 1042 | 1043) => Base::Text,
        Some(20) => Base::Int8,
        Some(21) => Base::Int2,
        Some(23) => Base::Int4,
        Some(26) => Base::Oid,
        // json, jsonb
        Some(114 | 3802) => Base::Json,
        Some(700) => Base::Float4,
        Some(701) => Base::Float8,
        Some(1082) => Base::Date,
        Some(1083) => Base::Time,
        Some(1114) => Base::Timestamp,
        Some(1184) => Base::Timestamptz,
        Some(1186) => Base::Interval,
        Some(1700) => Base::Numeric,
        Some(2950) => Base::Uuid,
        _ => Base::Other,
    }
}

/// Returns the columns of a prepared statement.
pub(super) fn columns(columns: &[sqlx::postgres::PgColumn]) -> (Vec<Column>, Vec<Type>) {
    columns
        .iter()
        .map(|column| {
            let kind = Type::of(column.type_info());
            let shown = Column {
                name: column.name().to_owned(),
                type_name: kind.name.clone(),
            };
            (shown, kind)
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

/// Why a value is no parameter of a type.
enum Misfit {
    Mismatch,
    Invalid(String),
    OutOfRange(String),
    Nul,
}

/// Appends a parameter for the type that the database wants at its place. `number` counts from 1.
///
/// # Errors
/// `type.mismatch`, `data.invalid` or `data.out-of-range`, naming the parameter.
pub(super) fn push_param(
    out: &mut String,
    number: u32,
    value: &Value,
    wanted: &Type,
) -> Result<(), SqlError> {
    let written = match (value, wanted.is_array) {
        (Value::Null, _) => {
            out.push_str("NULL");
            Ok(())
        }
        // The one value that can be large and is longer as text: without a copy.
        (Value::Bytes(bytes), false) if wanted.base == Base::Bytea => {
            out.reserve(bytes.len() * 2 + 6);
            // The backslash of `\x..` is doubled like any other.
            out.push_str("E'\\\\x");
            push_hex(out, bytes);
            out.push('\'');
            Ok(())
        }
        _ => whole_text(value, wanted).map(|text| push_literal(out, &text)),
    };
    written.map_err(|misfit| refused(number, value, wanted, misfit))
}

fn refused(number: u32, value: &Value, wanted: &Type, misfit: Misfit) -> SqlError {
    let fail = |code: &str, text: String, hint: Option<&str>| SqlError {
        param: Some(number),
        hint: hint.map(str::to_owned),
        ..SqlError::new(code, format!("parameter ${number}: {text}"))
    };
    let name = &wanted.name;
    match misfit {
        Misfit::Mismatch => {
            let got = match value {
                Value::Other { type_name, .. } => format!("other `{type_name}`"),
                other => other.kind().to_owned(),
            };
            fail(
                "type.mismatch",
                format!("the statement wants `{name}` here, not {got}"),
                Some("pass text for types without a case of their own, or cast in the statement"),
            )
        }
        Misfit::Invalid(text) => fail("data.invalid", text, None),
        Misfit::OutOfRange(text) => fail(
            "data.out-of-range",
            format!("{text} does not fit into `{name}` exactly"),
            None,
        ),
        Misfit::Nul => fail(
            "data.invalid",
            "the text contains NUL, which PostgreSQL can't store".into(),
            Some("pass bytes, into a column of type bytea"),
        ),
    }
}

/// Returns what the type's input function is to read.
fn whole_text<'a>(value: &'a Value, wanted: &Type) -> Result<Cow<'a, str>, Misfit> {
    match value {
        Value::Text(text) => without_nul(text),
        Value::Other { type_name, text } if wanted.takes_text_of(type_name) => without_nul(text),
        Value::Array(kind, elements) if wanted.is_array => {
            // An array of texts fits any, as text does, if its elements do.
            let fits = *kind == crate::store::Element::Text
                || element(wanted.base).is_none_or(|own| own == *kind)
                || kind_fits(*kind, wanted.base);
            if !fits {
                return Err(Misfit::Mismatch);
            }
            array_text(elements, wanted.base).map(Cow::Owned)
        }
        Value::Array(..) | Value::Other { .. } => Err(Misfit::Mismatch),
        _ if wanted.is_array => Err(Misfit::Mismatch),
        _ => scalar_text(value, wanted.base),
    }
}

/// True for the elements that fit another type's array: those of which each value is checked.
fn kind_fits(kind: crate::store::Element, base: Base) -> bool {
    use crate::store::Element;
    matches!(
        (kind, base),
        (Element::Int64, Base::Float4 | Base::Float8 | Base::Numeric)
            | (Element::Float64, Base::Numeric)
            | (Element::Decimal, Base::Int2 | Base::Int4 | Base::Int8)
            | (Element::Uuid | Element::Json, Base::Text)
    )
}

fn array_text(elements: &[Value], base: Base) -> Result<String, Misfit> {
    let mut out = String::from("{");
    for (index, element) in elements.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        if *element == Value::Null {
            out.push_str("NULL");
            continue;
        }
        let text = match element {
            Value::Text(text) => without_nul(text),
            other => scalar_text(other, base),
        };
        let text = text.map_err(|misfit| match misfit {
            Misfit::Invalid(text) => Misfit::Invalid(format!("element {index}: {text}")),
            Misfit::OutOfRange(text) => Misfit::OutOfRange(format!("element {index}: {text}")),
            other => other,
        })?;
        out.push('"');
        for char in text.chars() {
            if matches!(char, '"' | '\\') {
                out.push('\\');
            }
            out.push(char);
        }
        out.push('"');
    }
    out.push('}');
    Ok(out)
}

fn scalar_text(value: &Value, base: Base) -> Result<Cow<'_, str>, Misfit> {
    Ok(match (value, base) {
        (Value::Boolean(value), Base::Boolean) => if *value { "true" } else { "false" }.into(),
        (Value::Int64(value), base) => {
            let fits = match base {
                Base::Int2 => i16::try_from(*value).is_ok(),
                Base::Int4 => i32::try_from(*value).is_ok(),
                Base::Oid => u32::try_from(*value).is_ok(),
                Base::Int8 | Base::Numeric => true,
                Base::Float4 => is_exact(*value, 24),
                Base::Float8 => is_exact(*value, 53),
                _ => return Err(Misfit::Mismatch),
            };
            if !fits {
                return Err(Misfit::OutOfRange(value.to_string()));
            }
            value.to_string().into()
        }
        (Value::Float64(value), Base::Float4) => {
            // A narrow number that was made wide is exact; of another, digits would be lost.
            if !value.is_nan() && f64::from(*value as f32) != *value {
                return Err(Misfit::OutOfRange(float_text(*value)));
            }
            float_text(*value).into()
        }
        (Value::Float64(value), Base::Float8 | Base::Numeric) => float_text(*value).into(),
        (Value::Decimal(text), Base::Numeric | Base::Int2 | Base::Int4 | Base::Int8) => {
            if !is_decimal(text) {
                return Err(Misfit::Invalid(format!(
                    "`{}` is no decimal number",
                    shorten(text)
                )));
            }
            text.into()
        }
        (Value::Bytes(bytes), Base::Bytea) => {
            let mut text = String::with_capacity(bytes.len() * 2 + 2);
            text.push_str("\\x");
            push_hex(&mut text, bytes);
            text.into()
        }
        (Value::Date(date), Base::Date) => calendar::date_to_text(*date, DATE_YEAR_MAX)
            .map_err(Misfit::Invalid)?
            .into(),
        (Value::Time(time), Base::Time) => calendar::time_to_text(*time)
            .map_err(Misfit::Invalid)?
            .into(),
        (Value::Timestamp(timestamp), Base::Timestamp) => {
            calendar::timestamp_to_text(*timestamp, YEAR_MAX)
                .map_err(Misfit::Invalid)?
                .into()
        }
        (Value::Instant(instant), Base::Timestamptz) => instant_to_text(*instant, YEAR_MAX)
            .map_err(Misfit::Invalid)?
            .into(),
        (Value::Interval(interval), Base::Interval) => {
            calendar::interval_to_postgres(*interval).into()
        }
        (Value::Uuid(text), Base::Uuid | Base::Text) => {
            if !is_uuid(text) {
                return Err(Misfit::Invalid(format!("`{}` is no uuid", shorten(text))));
            }
            text.into()
        }
        (Value::Json(text), Base::Json | Base::Text) => without_nul(text)?,
        _ => return Err(Misfit::Mismatch),
    })
}

fn without_nul(text: &str) -> Result<Cow<'_, str>, Misfit> {
    if text.contains('\0') {
        return Err(Misfit::Nul);
    }
    Ok(text.into())
}

/// Writes the shortest digits that give the same number again, in the input functions of all types for numbers.
fn float_text(value: f64) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        let sign = if value.is_sign_negative() { "-" } else { "" };
        format!("{sign}Infinity")
    } else if value == 0.0 || (1e-5..1e16).contains(&value.abs()) {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

fn push_hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        out.push(char::from(HEX[usize::from(byte >> 4)]));
        out.push(char::from(HEX[usize::from(byte & 15)]));
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Instant;

    fn wanted(name: &str, base: Base) -> Type {
        Type::for_test(name, base)
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
}
