//! Text forms that both databases share: cleaned texts, headers as JSON, moments.
//!
//! **Invariant**: no I/O and no sqlx here.

use bytes::Bytes;
use serde_json::Value as Json;

use crate::message::{Header, Instant};

/// The longest reason or error text that is kept, in bytes.
pub(crate) const REASON_MAX_BYTES: usize = 8 * 1024;

/// The name of the one header of a queue row whose `headers` can't be read; its value is the column's text.
pub(crate) const UNREADABLE_HEADERS: &str = "hapax-unreadable-headers";

/// Returns `text` with NUL, which PostgreSQL can't keep in text, replaced by U+FFFD.
pub(crate) fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Cleans `text` and cuts it to `REASON_MAX_BYTES`, saying how much is missing.
pub(crate) fn clean_reason(text: &str) -> String {
    if text.len() <= REASON_MAX_BYTES {
        return clean(text);
    }
    // Replacing a NUL makes a text longer, so it is cut behind that. The marker's room is set aside.
    let mut kept = clean(&text[..text.floor_char_boundary(REASON_MAX_BYTES)]);
    kept.truncate(kept.floor_char_boundary(REASON_MAX_BYTES - 64));
    format!("{kept} [cut: {} bytes in all]", text.len())
}

/// Writes headers as JSON: `[["name","text"],["name",{"base64":".."}]]`, the second form for values that are not UTF-8.
pub(crate) fn headers_to_json(headers: &[Header]) -> String {
    let list: Vec<Json> = headers
        .iter()
        .map(|header| {
            let value = match std::str::from_utf8(&header.value) {
                Ok(text) => Json::from(text),
                Err(_) => serde_json::json!({ "base64": to_base64(&header.value) }),
            };
            Json::Array(vec![Json::from(header.name.as_str()), value])
        })
        .collect();
    Json::Array(list).to_string()
}

/// Reads what `headers_to_json` writes, and also the form `{"name":"text"}`, for those who write rows by hand.
///
/// Anything else becomes one header named `UNREADABLE_HEADERS`, so that a row's message is still delivered, and then
/// parked with all that it had.
pub(crate) fn headers_from_json(text: &str) -> Vec<Header> {
    read_headers(text).unwrap_or_else(|| {
        vec![Header {
            name: UNREADABLE_HEADERS.into(),
            value: Bytes::copy_from_slice(text.as_bytes()),
        }]
    })
}

fn read_headers(text: &str) -> Option<Vec<Header>> {
    match serde_json::from_str(text).ok()? {
        Json::Array(list) => list
            .into_iter()
            .map(|pair| match pair {
                Json::Array(pair) => {
                    let [name, value]: [Json; 2] = pair.try_into().ok()?;
                    read_header(name.as_str()?, &value)
                }
                _ => None,
            })
            .collect(),
        Json::Object(map) => map
            .iter()
            .map(|(name, value)| read_header(name, value))
            .collect(),
        _ => None,
    }
}

fn read_header(name: &str, value: &Json) -> Option<Header> {
    let value = match value {
        Json::String(text) => Bytes::copy_from_slice(text.as_bytes()),
        Json::Object(map) if map.len() == 1 => from_base64(map.get("base64")?.as_str()?)?.into(),
        _ => return None,
    };
    Some(Header {
        name: name.into(),
        value,
    })
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Writes bytes in base64, with padding.
pub(crate) fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .fold(0_u32, |group, byte| group << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for place in 0..4 {
            if place <= chunk.len() {
                text.push(char::from(
                    BASE64[(group >> (18 - 6 * place)) as usize & 63],
                ));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// Reads what `to_base64` writes.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let digits = text.trim_end_matches('=');
    if text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for chunk in digits.as_bytes().chunks(4) {
        let mut group = 0_u32;
        for byte in chunk {
            let digit = BASE64.iter().position(|digit| digit == byte)?;
            group = group << 6 | u32::try_from(digit).ok()?;
        }
        group <<= 6 * (4 - chunk.len());
        bytes.extend_from_slice(&group.to_be_bytes()[1..chunk.len()]);
    }
    Some(bytes)
}

/// Writes a moment as `YYYY-MM-DDTHH:MM:SS.ffffffZ`, as it is stored in text and sent to PostgreSQL.
///
/// # Errors
/// Says why not: parts of a microsecond would be lost, or the year is not 1 to `year_max`.
pub(crate) fn instant_to_text(instant: Instant, year_max: i64) -> Result<String, String> {
    if instant.nanoseconds >= 1_000_000_000 {
        return Err(format!(
            "{} nanoseconds are no fraction",
            instant.nanoseconds
        ));
    }
    if !instant.nanoseconds.is_multiple_of(1000) {
        return Err("the database keeps microseconds; a part of one would be lost".into());
    }
    let days = instant.seconds.div_euclid(86_400);
    let second = instant.seconds.rem_euclid(86_400);
    let (year, month, day) = date_of(days);
    if !(1..=year_max).contains(&year) {
        return Err(format!("the year is not 1 to {year_max}"));
    }
    Ok(format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        instant.nanoseconds / 1000
    ))
}

/// Reads `YYYY-MM-DD HH:MM:SS[.f..][Z|+HH[:MM[:SS]]]`, with `T` or a blank in the middle.
///
/// `None` for anything else; PostgreSQL's `infinity` and years BC among it.
pub(crate) fn instant_from_text(text: &str) -> Option<Instant> {
    let (date, clock) = text.split_once(['T', ' '])?;
    let mut date = date.splitn(3, '-');
    let year: i64 = number(date.next()?)?;
    let month = number(date.next()?)?;
    let day = number(date.next()?)?;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let zone_at = clock.find(['Z', '+', '-']).unwrap_or(clock.len());
    let (clock, zone) = clock.split_at(zone_at);
    let offset = match zone.as_bytes().first() {
        None | Some(b'Z') if zone.len() <= 1 => 0,
        Some(sign @ (b'+' | b'-')) => {
            let mut parts = zone[1..].split(':');
            let hours: i64 = number(parts.next()?)?;
            let minutes: i64 = parts.next().map_or(Some(0), number)?;
            let seconds: i64 = parts.next().map_or(Some(0), number)?;
            let size = hours * 3600 + minutes * 60 + seconds;
            if *sign == b'-' { -size } else { size }
        }
        _ => return None,
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut parts = clock.split(':');
    let hour: i64 = number(parts.next()?)?;
    let minute: i64 = number(parts.next()?)?;
    let second: i64 = number(parts.next().unwrap_or("0"))?;
    if parts.next().is_some() || hour > 24 || minute > 59 || second > 60 || fraction.len() > 9 {
        return None;
    }
    let nanoseconds = if fraction.is_empty() {
        0
    } else {
        let value: i64 = number(fraction)?;
        u32::try_from(value).ok()? * 10_u32.pow(9 - u32::try_from(fraction.len()).ok()?)
    };
    Some(Instant {
        seconds: days_of(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset,
        nanoseconds,
    })
}

/// Returns the moment that is `microseconds` after the epoch.
pub(crate) fn instant_from_microseconds(microseconds: i64) -> Instant {
    Instant {
        seconds: microseconds.div_euclid(1_000_000),
        nanoseconds: u32::try_from(microseconds.rem_euclid(1_000_000) * 1000)
            .expect("a remainder of a million, times a thousand, is below 2^32"),
    }
}

fn number(text: &str) -> Option<i64> {
    if text.is_empty() || text.len() > 9 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// The Gregorian date `days` after 1970-01-01. Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
fn date_of(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
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

/// The days from 1970-01-01 to a date: `date_of` backwards.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_cleaned_and_cut() {
        assert_eq!(clean_reason("a\0b"), "a\u{fffd}b");
        for unit in ["a", "\0", "\u{e4}", "\u{1f600}"] {
            let text = unit.repeat(1_000_000);
            let kept = clean_reason(&text);
            assert!(kept.len() <= REASON_MAX_BYTES, "{}", kept.len());
            assert!(!kept.contains('\0'));
            assert!(kept.ends_with(&format!("[cut: {} bytes in all]", text.len())));
        }
    }

    #[test]
    fn headers_survive_byte_for_byte() {
        let header = |name: &str, value: &[u8]| Header {
            name: name.into(),
            value: Bytes::copy_from_slice(value),
        };
        let headers = vec![
            header("a", b"text"),
            header("a", b""),
            header("A\0\"", b"\0\n\\"),
            header("b", &[0xff]),
            header("b", &[0xff, 0x00]),
            header("b", &[0xff, 0x00, 0xfe, 0x80]),
            header("", "\u{e4}".as_bytes()),
        ];
        assert_eq!(headers_from_json(&headers_to_json(&headers)), headers);
        assert_eq!(headers_from_json(r#"{"n":"v"}"#), vec![header("n", b"v")]);
        for unreadable in [
            "",
            "1",
            r#"[["a"]]"#,
            r#"[["a",1]]"#,
            r#"{"a":{"base64":"x"}}"#,
        ] {
            assert_eq!(
                headers_from_json(unreadable),
                vec![header(UNREADABLE_HEADERS, unreadable.as_bytes())]
            );
        }
    }

    #[test]
    fn instants_as_text() {
        for (seconds, nanoseconds, text) in [
            (0, 0, "1970-01-01T00:00:00.000000Z"),
            (-1, 999_999_000, "1969-12-31T23:59:59.999999Z"),
            (951_782_400, 1000, "2000-02-29T00:00:00.000001Z"),
            (-62_135_596_800, 0, "0001-01-01T00:00:00.000000Z"),
            (253_402_300_799, 0, "9999-12-31T23:59:59.000000Z"),
        ] {
            let instant = Instant {
                seconds,
                nanoseconds,
            };
            assert_eq!(instant_to_text(instant, 9999).unwrap(), text);
            assert_eq!(instant_from_text(text), Some(instant));
        }
        let at = |text| instant_from_text(text).map(|instant| instant.seconds);
        assert_eq!(at("1970-01-01 01:00:00+01"), Some(0));
        assert_eq!(at("1970-01-01 00:00:00-00:30"), Some(1800));
        assert_eq!(at("12345-01-01 00:00:00+00"), Some(327_403_382_400));
        for refused in [
            "infinity",
            "-infinity",
            "0044-03-15 00:00:00+00 BC",
            "",
            "x",
        ] {
            assert_eq!(at(refused), None, "{refused}");
        }
        let far = |seconds| Instant {
            seconds,
            nanoseconds: 0,
        };
        assert!(instant_to_text(far(i64::MAX), 294_276).is_err());
        assert!(instant_to_text(far(i64::MIN), 294_276).is_err());
        let fine = Instant {
            seconds: 0,
            nanoseconds: 1,
        };
        assert!(instant_to_text(fine, 9999).is_err());
    }
}
