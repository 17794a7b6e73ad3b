//! Values between the contract and the store.
//!
//! **Invariant**: no case is lost here and none becomes another.

use super::bindings::hapax::handler::{sql, types};
use crate::message::Instant;
use crate::store::{Date, Element, Interval, SqlError, Time, Timestamp, Value};

/// Takes over the parameter `number`, counted from 1.
///
/// # Errors
/// `invalid.param`: it breaks the contract.
pub(super) fn lift(value: sql::Value, number: u32) -> Result<Value, SqlError> {
    let invalid = |text: String| SqlError {
        param: Some(number),
        ..SqlError::new("invalid.param", format!("parameter ${number}: {text}"))
    };
    Ok(match value {
        sql::Value::Null => Value::Null,
        sql::Value::Boolean(value) => Value::Boolean(value),
        sql::Value::Int64(value) => Value::Int64(value),
        sql::Value::Float64(value) => Value::Float64(value),
        sql::Value::Text(value) => Value::Text(value),
        sql::Value::Bytes(value) => Value::Bytes(value),
        sql::Value::Decimal(value) => Value::Decimal(value),
        sql::Value::Date(date) => Value::Date(lift_date(date)),
        sql::Value::Time(time) => Value::Time(lift_time(time)),
        sql::Value::Timestamp(timestamp) => Value::Timestamp(lift_timestamp(timestamp)),
        sql::Value::Instant(moment) => Value::Instant(lift_instant(moment).map_err(invalid)?),
        sql::Value::Interval(interval) => Value::Interval(lift_interval(interval)),
        sql::Value::Uuid(value) => Value::Uuid(value),
        sql::Value::Json(value) => Value::Json(value),
        sql::Value::BooleanArray(array) => lift_array(Element::Boolean, array, Value::Boolean),
        sql::Value::Int64Array(array) => lift_array(Element::Int64, array, Value::Int64),
        sql::Value::Float64Array(array) => lift_array(Element::Float64, array, Value::Float64),
        sql::Value::TextArray(array) => lift_array(Element::Text, array, Value::Text),
        sql::Value::BytesArray(array) => lift_array(Element::Bytes, array, Value::Bytes),
        sql::Value::DecimalArray(array) => lift_array(Element::Decimal, array, Value::Decimal),
        sql::Value::DateArray(array) => {
            lift_array(Element::Date, array, |date| Value::Date(lift_date(date)))
        }
        sql::Value::TimeArray(array) => {
            lift_array(Element::Time, array, |time| Value::Time(lift_time(time)))
        }
        sql::Value::TimestampArray(array) => lift_array(Element::Timestamp, array, |timestamp| {
            Value::Timestamp(lift_timestamp(timestamp))
        }),
        sql::Value::InstantArray(array) => {
            let mut elements = Vec::with_capacity(array.len());
            for (index, element) in array.into_iter().enumerate() {
                elements.push(match element {
                    None => Value::Null,
                    Some(moment) => Value::Instant(
                        lift_instant(moment)
                            .map_err(|text| invalid(format!("element {index}: {text}")))?,
                    ),
                });
            }
            Value::Array(Element::Instant, elements)
        }
        sql::Value::IntervalArray(array) => lift_array(Element::Interval, array, |interval| {
            Value::Interval(lift_interval(interval))
        }),
        sql::Value::UuidArray(array) => lift_array(Element::Uuid, array, Value::Uuid),
        sql::Value::JsonArray(array) => lift_array(Element::Json, array, Value::Json),
        sql::Value::Other(other) => Value::Other {
            type_name: other.type_name,
            text: other.text,
        },
        sql::Value::Undecoded(_) => {
            return Err(invalid(
                "`undecoded` occurs in results only; it cannot be a parameter".into(),
            ));
        }
    })
}

fn lift_array<T>(element: Element, array: Vec<Option<T>>, lift: impl Fn(T) -> Value) -> Value {
    let elements = array
        .into_iter()
        .map(|element| element.map_or(Value::Null, &lift))
        .collect();
    Value::Array(element, elements)
}

fn lift_instant(moment: types::Instant) -> Result<Instant, String> {
    if moment.nanoseconds > 999_999_999 {
        return Err(format!(
            "{} nanoseconds are more than a second",
            moment.nanoseconds
        ));
    }
    Ok(Instant {
        seconds: moment.seconds,
        nanoseconds: moment.nanoseconds,
    })
}

fn lift_date(date: sql::Date) -> Date {
    Date {
        year: date.year,
        month: date.month,
        day: date.day,
    }
}

fn lift_time(time: sql::Time) -> Time {
    Time {
        hour: time.hour,
        minute: time.minute,
        second: time.second,
        microsecond: time.microsecond,
    }
}

fn lift_timestamp(timestamp: sql::Timestamp) -> Timestamp {
    Timestamp {
        date: lift_date(timestamp.date),
        time: lift_time(timestamp.time),
    }
}

fn lift_interval(interval: sql::Interval) -> Interval {
    Interval {
        months: interval.months,
        days: interval.days,
        microseconds: interval.microseconds,
    }
}

/// Hands one column's value over.
pub(super) fn lower(value: Value) -> sql::Value {
    match value {
        Value::Null => sql::Value::Null,
        Value::Boolean(value) => sql::Value::Boolean(value),
        Value::Int64(value) => sql::Value::Int64(value),
        Value::Float64(value) => sql::Value::Float64(value),
        Value::Text(value) => sql::Value::Text(value),
        Value::Bytes(value) => sql::Value::Bytes(value),
        Value::Decimal(value) => sql::Value::Decimal(value),
        Value::Date(date) => sql::Value::Date(lower_date(date)),
        Value::Time(time) => sql::Value::Time(lower_time(time)),
        Value::Timestamp(timestamp) => sql::Value::Timestamp(lower_timestamp(timestamp)),
        Value::Instant(moment) => sql::Value::Instant(lower_instant(moment)),
        Value::Interval(interval) => sql::Value::Interval(lower_interval(interval)),
        Value::Uuid(value) => sql::Value::Uuid(value),
        Value::Json(value) => sql::Value::Json(value),
        Value::Array(element, elements) => lower_array(element, elements),
        Value::Other { type_name, text } => sql::Value::Other(sql::Other { type_name, text }),
        Value::Undecoded { type_name, bytes } => {
            sql::Value::Undecoded(sql::Undecoded { type_name, bytes })
        }
    }
}

fn lower_array(element: Element, elements: Vec<Value>) -> sql::Value {
    // What is not of the array's kind can only be NULL.
    macro_rules! each {
        ($case:ident, $lower:expr) => {
            elements
                .into_iter()
                .map(|element| match element {
                    Value::$case(value) => Some($lower(value)),
                    _ => None,
                })
                .collect()
        };
    }
    use std::convert::identity;
    match element {
        Element::Boolean => sql::Value::BooleanArray(each!(Boolean, identity)),
        Element::Int64 => sql::Value::Int64Array(each!(Int64, identity)),
        Element::Float64 => sql::Value::Float64Array(each!(Float64, identity)),
        Element::Text => sql::Value::TextArray(each!(Text, identity)),
        Element::Bytes => sql::Value::BytesArray(each!(Bytes, identity)),
        Element::Decimal => sql::Value::DecimalArray(each!(Decimal, identity)),
        Element::Date => sql::Value::DateArray(each!(Date, lower_date)),
        Element::Time => sql::Value::TimeArray(each!(Time, lower_time)),
        Element::Timestamp => sql::Value::TimestampArray(each!(Timestamp, lower_timestamp)),
        Element::Instant => sql::Value::InstantArray(each!(Instant, lower_instant)),
        Element::Interval => sql::Value::IntervalArray(each!(Interval, lower_interval)),
        Element::Uuid => sql::Value::UuidArray(each!(Uuid, identity)),
        Element::Json => sql::Value::JsonArray(each!(Json, identity)),
    }
}

fn lower_instant(moment: Instant) -> types::Instant {
    types::Instant {
        seconds: moment.seconds,
        nanoseconds: moment.nanoseconds,
    }
}

fn lower_date(date: Date) -> sql::Date {
    sql::Date {
        year: date.year,
        month: date.month,
        day: date.day,
    }
}

fn lower_time(time: Time) -> sql::Time {
    sql::Time {
        hour: time.hour,
        minute: time.minute,
        second: time.second,
        microsecond: time.microsecond,
    }
}

fn lower_timestamp(timestamp: Timestamp) -> sql::Timestamp {
    sql::Timestamp {
        date: lower_date(timestamp.date),
        time: lower_time(timestamp.time),
    }
}

fn lower_interval(interval: Interval) -> sql::Interval {
    sql::Interval {
        months: interval.months,
        days: interval.days,
        microseconds: interval.microseconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_goes_there_and_back() {
        let date = sql::Date {
            year: 2024,
            month: 2,
            day: 29,
        };
        let time = sql::Time {
            hour: 24,
            minute: 0,
            second: 0,
            microsecond: 1,
        };
        let timestamp = sql::Timestamp { date, time };
        let instant = types::Instant {
            seconds: -1,
            nanoseconds: 5,
        };
        let interval = sql::Interval {
            months: 1,
            days: -2,
            microseconds: 3,
        };
        let text = || "x".to_owned();
        for value in [
            sql::Value::Null,
            sql::Value::Boolean(true),
            sql::Value::Int64(-1),
            sql::Value::Float64(0.5),
            sql::Value::Text(text()),
            sql::Value::Bytes(vec![0]),
            sql::Value::Decimal(text()),
            sql::Value::Date(date),
            sql::Value::Time(time),
            sql::Value::Timestamp(timestamp),
            sql::Value::Instant(instant),
            sql::Value::Interval(interval),
            sql::Value::Uuid(text()),
            sql::Value::Json(text()),
            sql::Value::BooleanArray(vec![Some(true), None]),
            sql::Value::Int64Array(vec![Some(1), None]),
            sql::Value::Float64Array(vec![Some(0.5), None]),
            sql::Value::TextArray(vec![Some(text()), None]),
            sql::Value::BytesArray(vec![Some(vec![0]), None]),
            sql::Value::DecimalArray(vec![Some(text()), None]),
            sql::Value::DateArray(vec![Some(date), None]),
            sql::Value::TimeArray(vec![Some(time), None]),
            sql::Value::TimestampArray(vec![Some(timestamp), None]),
            sql::Value::InstantArray(vec![Some(instant), None]),
            sql::Value::IntervalArray(vec![Some(interval), None]),
            sql::Value::UuidArray(vec![Some(text()), None]),
            sql::Value::JsonArray(vec![Some(text()), None]),
            sql::Value::Other(sql::Other {
                type_name: text(),
                text: text(),
            }),
        ] {
            let shown = format!("{value:?}");
            let back = lower(lift(value, 1).unwrap());
            assert_eq!(format!("{back:?}"), shown);
        }
    }

    #[test]
    fn what_breaks_the_contract_names_the_parameter() {
        let moment = types::Instant {
            seconds: 0,
            nanoseconds: 1_000_000_000,
        };
        for (value, words) in [
            (
                sql::Value::Instant(moment),
                "parameter $3: 1000000000 nanoseconds",
            ),
            (
                sql::Value::InstantArray(vec![None, Some(moment)]),
                "parameter $3: element 1: 1000000000 nanoseconds",
            ),
            (
                sql::Value::Undecoded(sql::Undecoded {
                    type_name: String::new(),
                    bytes: Vec::new(),
                }),
                "parameter $3: `undecoded`",
            ),
        ] {
            let error = lift(value, 3).unwrap_err();
            assert_eq!(
                (error.code.as_str(), error.param),
                ("invalid.param", Some(3))
            );
            assert!(error.message.starts_with(words), "{}", error.message);
        }
    }
}
