//! Text forms of dates, times and intervals: checked, written for either database, read from PostgreSQL's output.
//!
//! **Invariant**: no I/O and no sqlx here; what is not a day or a time is refused, never carried over.

use super::{Date, Interval, Time, Timestamp};

const MICROSECONDS_PER_HOUR: i64 = 3_600_000_000;

/// Writes `YYYY-MM-DD`.
///
/// # Errors
/// Says why it is no day, or that the year is not 1 to `year_max`.
pub(crate) fn date_to_text(date: Date, year_max: i64) -> Result<String, String> {
    let Date { year, month, day } = date;
    if !(1..=year_max).contains(&i64::from(year)) {
        return Err(format!("the year {year} is not 1 to {year_max}"));
    }
    if !(1..=12).contains(&month) {
        return Err(format!("there is no month {month}"));
    }
    if day == 0 || day > days_in(year, month) {
        return Err(format!(
            "there is no day {day} in the month {month} of {year}"
        ));
    }
    Ok(format!("{year:04}-{month:02}-{day:02}"))
}

fn days_in(year: i32, month: u8) -> u8 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Writes `HH:MM:SS.ffffff`.
///
/// # Errors
/// Says why it is no time of day.
pub(crate) fn time_to_text(time: Time) -> Result<String, String> {
    let Time {
        hour,
        minute,
        second,
        microsecond,
    } = time;
    let text = format!("{hour:02}:{minute:02}:{second:02}.{microsecond:06}");
    let is_midnight = hour == 24 && minute == 0 && second == 0 && microsecond == 0;
    if (hour < 24 || is_midnight) && minute < 60 && second < 60 && microsecond < 1_000_000 {
        Ok(text)
    } else {
        Err(format!("{text} is no time of day"))
    }
}

/// Writes `YYYY-MM-DDTHH:MM:SS.ffffff`.
///
/// # Errors
/// As for its parts; 24:00:00 is the next day's, and is refused.
pub(crate) fn timestamp_to_text(timestamp: Timestamp, year_max: i64) -> Result<String, String> {
    if timestamp.time.hour == 24 {
        return Err("24:00:00 of a day is 00:00:00 of the next".into());
    }
    Ok(format!(
        "{}T{}",
        date_to_text(timestamp.date, year_max)?,
        time_to_text(timestamp.time)?
    ))
}

/// Writes an interval as PostgreSQL reads it, each part with its own sign.
pub(crate) fn interval_to_postgres(interval: Interval) -> String {
    let Interval {
        months,
        days,
        microseconds,
    } = interval;
    let hours = microseconds / MICROSECONDS_PER_HOUR;
    let rest = microseconds % MICROSECONDS_PER_HOUR;
    let sign = if rest < 0 { "-" } else { "" };
    let (seconds, fraction) = (rest.abs() / 1_000_000, rest.abs() % 1_000_000);
    format!("{months} mons {days} days {hours} hours {sign}{seconds}.{fraction:06} secs")
}

/// Writes an interval as ISO 8601 has it, in months, days and seconds, each with its own sign: `P1M-2DT3.500000S`.
pub(crate) fn interval_to_iso(interval: Interval) -> String {
    let Interval {
        months,
        days,
        microseconds,
    } = interval;
    let sign = if microseconds < 0 { "-" } else { "" };
    let size = microseconds.unsigned_abs();
    let (seconds, fraction) = (size / 1_000_000, size % 1_000_000);
    format!("P{months}M{days}DT{sign}{seconds}.{fraction:06}S")
}

/// Reads `YYYY-MM-DD`; `None` for `infinity` and years BC.
pub(crate) fn date_from_text(text: &str) -> Option<Date> {
    let mut parts = text.splitn(3, '-');
    let date = Date {
        year: number(parts.next()?)?,
        month: number(parts.next()?)?,
        day: number(parts.next()?)?,
    };
    (date.year > 0).then_some(date)
}

/// Reads `HH:MM:SS[.f..]`; `None` with a zone.
pub(crate) fn time_from_text(text: &str) -> Option<Time> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = whole.splitn(3, ':');
    Some(Time {
        hour: number(parts.next()?)?,
        minute: number(parts.next()?)?,
        second: number(parts.next()?)?,
        microsecond: microseconds(fraction)?,
    })
}

/// Reads a date and a time with a blank or `T` between them; `None` for `infinity` and years BC.
pub(crate) fn timestamp_from_text(text: &str) -> Option<Timestamp> {
    let (date, time) = text.split_once([' ', 'T'])?;
    Some(Timestamp {
        date: date_from_text(date)?,
        time: time_from_text(time)?,
    })
}

/// Reads PostgreSQL's own style: `1 year 2 mons -3 days +04:05:06.789`; `None` for `infinity`.
pub(crate) fn interval_from_text(text: &str) -> Option<Interval> {
    let (mut months, mut days, mut microseconds) = (0_i64, 0_i64, 0_i64);
    let mut words = text.split(' ');
    while let Some(word) = words.next() {
        if word.contains(':') {
            microseconds = clock(word)?;
            continue;
        }
        let count: i64 = word.parse().ok()?;
        match words.next()? {
            "year" | "years" => months += count.checked_mul(12)?,
            "mon" | "mons" => months += count,
            "day" | "days" => days += count,
            _ => return None,
        }
    }
    Some(Interval {
        months: i32::try_from(months).ok()?,
        days: i32::try_from(days).ok()?,
        microseconds,
    })
}

/// Reads `[+-]H..:MM:SS[.f..]`, with any number of hours.
fn clock(text: &str) -> Option<i64> {
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = whole.splitn(3, ':');
    let hours: i64 = number(parts.next()?)?;
    let minutes: i64 = number(parts.next()?)?;
    let seconds: i64 = number(parts.next()?)?;
    let size = i128::from(hours) * i128::from(MICROSECONDS_PER_HOUR)
        + i128::from(minutes * 60 + seconds) * 1_000_000
        + i128::from(microseconds(fraction)?);
    i64::try_from(if is_negative { -size } else { size }).ok()
}

/// Reads up to six digits behind a point.
fn microseconds(fraction: &str) -> Option<u32> {
    if fraction.is_empty() {
        return Some(0);
    }
    let value: u32 = number(fraction)?;
    Some(value * 10_u32.pow(6_u32.checked_sub(u32::try_from(fraction.len()).ok()?)?))
}

fn number<T: std::str::FromStr>(digits: &str) -> Option<T> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(year: i32, month: u8, day: u8) -> Date {
        Date { year, month, day }
    }

    fn time(hour: u8, minute: u8, second: u8, microsecond: u32) -> Time {
        Time {
            hour,
            minute,
            second,
            microsecond,
        }
    }

    fn interval(months: i32, days: i32, microseconds: i64) -> Interval {
        Interval {
            months,
            days,
            microseconds,
        }
    }

    #[test]
    fn days_and_times_go_there_and_back_and_what_is_none_is_refused() {
        for (date, text) in [
            (date(1, 1, 1), "0001-01-01"),
            (date(2024, 2, 29), "2024-02-29"),
            (date(5_874_897, 12, 31), "5874897-12-31"),
        ] {
            assert_eq!(date_to_text(date, 5_874_897).unwrap(), text);
            assert_eq!(date_from_text(text), Some(date));
        }
        for wrong in [
            date(0, 1, 1),
            date(-1, 1, 1),
            date(2023, 2, 29),
            date(1900, 2, 29),
            date(2024, 0, 1),
            date(2024, 13, 1),
            date(2024, 4, 31),
            date(2024, 1, 0),
            date(10_000, 1, 1),
        ] {
            date_to_text(wrong, 9999).unwrap_err();
        }
        assert_eq!(date_from_text("0044-03-15 BC"), None);
        assert_eq!(date_from_text("infinity"), None);
        assert_eq!(time_to_text(time(24, 0, 0, 0)).unwrap(), "24:00:00.000000");
        assert_eq!(time_from_text("24:00:00"), Some(time(24, 0, 0, 0)));
        assert_eq!(time_from_text("01:02:03.000004"), Some(time(1, 2, 3, 4)));
        assert_eq!(time_from_text("01:02:03.5"), Some(time(1, 2, 3, 500_000)));
        assert_eq!(time_from_text("01:02:03+02"), None);
        for wrong in [
            time(24, 0, 0, 1),
            time(25, 0, 0, 0),
            time(1, 60, 0, 0),
            time(1, 0, 60, 0),
            time(1, 0, 0, 1_000_000),
        ] {
            time_to_text(wrong).unwrap_err();
        }
        let moment = Timestamp {
            date: date(1, 2, 3),
            time: time(4, 5, 6, 7),
        };
        let text = timestamp_to_text(moment, 9999).unwrap();
        assert_eq!(text, "0001-02-03T04:05:06.000007");
        assert_eq!(timestamp_from_text(&text), Some(moment));
        assert_eq!(timestamp_from_text("0044-03-15 00:00:00 BC"), None);
        assert_eq!(timestamp_from_text("-infinity"), None);
        timestamp_to_text(
            Timestamp {
                time: time(24, 0, 0, 0),
                ..moment
            },
            9999,
        )
        .unwrap_err();
    }

    #[test]
    fn intervals_keep_their_three_parts() {
        for (value, sent) in [
            (interval(0, 0, 0), "0 mons 0 days 0 hours 0.000000 secs"),
            (
                interval(-14, 3, -1),
                "-14 mons 3 days 0 hours -0.000001 secs",
            ),
            (
                interval(i32::MAX, i32::MIN, i64::MIN),
                "2147483647 mons -2147483648 days -2562047788 hours -54.775808 secs",
            ),
        ] {
            assert_eq!(interval_to_postgres(value), sent);
        }
        for (text, value) in [
            ("00:00:00", interval(0, 0, 0)),
            ("1 year", interval(12, 0, 0)),
            (
                "-1 years -2 mons +3 days -04:05:06.000007",
                interval(-14, 3, -14_706_000_007),
            ),
            ("1 mon -1 days +00:00:00.5", interval(1, -1, 500_000)),
            ("-2562047788:00:54.775808", interval(0, 0, i64::MIN)),
        ] {
            assert_eq!(interval_from_text(text), Some(value), "{text}");
        }
        assert_eq!(interval_from_text("infinity"), None);
        assert_eq!(interval_from_text("-2562047788:00:54.775809"), None);
        assert_eq!(
            interval_to_iso(interval(1, -2, -3_500_000)),
            "P1M-2DT-3.500000S"
        );
    }
}
