//! Moments as text: RFC 3339, section 5.6.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Instant;

const SECONDS_PER_DAY: i64 = 86_400;

/// A text that is no moment in RFC 3339's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnInstant;

impl fmt::Display for NotAnInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a moment like `2026-01-31T12:00:00Z`")
    }
}

impl std::error::Error for NotAnInstant {}

/// Writes the moment in UTC, such as `2026-01-31T12:00:00.5Z`, without zeros at the end of the fraction.
impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date_of(self.seconds.div_euclid(SECONDS_PER_DAY));
        let second = self.seconds.rem_euclid(SECONDS_PER_DAY);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        )?;
        if self.nanoseconds > 0 {
            let fraction = format!("{:09}", self.nanoseconds);
            write!(f, ".{}", fraction.trim_end_matches('0'))?;
        }
        f.write_str("Z")
    }
}

/// Reads RFC 3339 with a zone, a blank instead of the `T` allowed.
impl FromStr for Instant {
    type Err = NotAnInstant;

    fn from_str(text: &str) -> Result<Self, NotAnInstant> {
        parse(text, false).ok_or(NotAnInstant)
    }
}

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // Columns reach this too, and SQLite's own functions write UTC without a zone.
        parse(&text, true).ok_or_else(|| D::Error::custom(NotAnInstant))
    }
}

/// Reads a moment; without a zone it is in UTC if `zone_optional`.
pub(crate) fn parse(text: &str, zone_optional: bool) -> Option<Instant> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = bytes.get(from..to)?;
        digits.iter().try_fold(0, |sum, digit| {
            digit
                .is_ascii_digit()
                .then(|| sum * 10 + i64::from(digit - b'0'))
        })
    };
    let is = |at: usize, expected: &[u8]| bytes.get(at).is_some_and(|byte| expected.contains(byte));

    if !(is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let days = days_of(year, month, day);
    if date_of(days) != (year, month, day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }

    let mut at = 19;
    let mut nanoseconds = 0;
    if is(at, b".") {
        let digits = bytes[at + 1..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if digits == 0 || digits > 9 {
            return None;
        }
        let fraction = number(at + 1, at + 1 + digits)?;
        nanoseconds = u32::try_from(fraction).ok()? * 10_u32.pow(9 - u32::try_from(digits).ok()?);
        at += 1 + digits;
    }

    let zone = &bytes[at..];
    let offset = match (zone.first(), zone.len()) {
        (None, _) if zone_optional => 0,
        (Some(b'Z' | b'z'), 1) => 0,
        (Some(sign @ (b'+' | b'-')), length) => {
            let (hours, minutes) = match length {
                3 => (number(at + 1, at + 3)?, 0),
                5 => (number(at + 1, at + 3)?, number(at + 3, at + 5)?),
                6 if zone[3] == b':' => (number(at + 1, at + 3)?, number(at + 4, at + 6)?),
                _ => return None,
            };
            if hours > 23 || minutes > 59 {
                return None;
            }
            let seconds = hours * 3600 + minutes * 60;
            if *sign == b'+' { seconds } else { -seconds }
        }
        _ => return None,
    };
    Some(Instant {
        seconds: days * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second - offset,
        nanoseconds,
    })
}

/// Returns the days from 1970-01-01 to a date of the proleptic Gregorian calendar. (Howard Hinnant, "chrono-Compatible Low-Level
/// Date Algorithms", `days_from_civil`.)
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The reverse of [`days_of`]: year, month, day. (The same source, `civil_from_days`.)
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instant(seconds: i64, nanoseconds: u32) -> Instant {
        Instant {
            seconds,
            nanoseconds,
        }
    }

    #[test]
    fn moments_are_written() {
        assert_eq!(instant(0, 0).to_string(), "1970-01-01T00:00:00Z");
        assert_eq!(
            instant(-1, 999_000_000).to_string(),
            "1969-12-31T23:59:59.999Z"
        );
        assert_eq!(
            instant(1_709_208_000, 1).to_string(),
            "2024-02-29T12:00:00.000000001Z"
        );
        // The ends of the type must not overflow.
        assert!(instant(i64::MAX, 0).to_string().ends_with("Z"));
        assert!(instant(i64::MIN, 0).to_string().starts_with('-'));
    }

    #[test]
    fn moments_are_read() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", instant(0, 0)),
            (
                "2024-02-29 12:00:00.5+00",
                instant(1_709_208_000, 500_000_000),
            ),
            ("2024-02-29T14:30:00+02:30", instant(1_709_208_000, 0)),
            ("2024-02-29T10:00:00-0200", instant(1_709_208_000, 0)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        assert_eq!(
            parse("2024-02-29 12:00:00", true),
            Some(instant(1_709_208_000, 0))
        );
        for text in [
            "",
            "2024-02-30T12:00:00Z",
            "2024-02-29T24:00:00Z",
            "2024-02-29T12:00:00",
            "2024-02-29T12:00:00.Z",
            "2024-02-29T12:00:00.1234567890Z",
            "2024-02-29T12:00:00Zz",
            "2024-02-29T12:00:00+2",
            "２０２４-02-29T12:00:00Z",
        ] {
            assert_eq!(text.parse::<Instant>(), Err(NotAnInstant), "{text}");
        }
    }

    #[test]
    fn every_day_of_four_centuries_goes_there_and_back() {
        for days in -146_097..146_097 {
            let (year, month, day) = date_of(days);
            assert_eq!(days_of(year, month, day), days);
        }
    }
}
