//! Which dead letters are meant, as people write it.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::config::duration;
use crate::message::{FailureClass, Instant};

/// Reads a reason class.
///
/// # Errors
/// What the classes are.
pub fn class(text: &str) -> Result<FailureClass, String> {
    FailureClass::named(text).ok_or_else(|| {
        let names: Vec<&str> = FailureClass::ALL
            .iter()
            .map(|class| class.as_str())
            .collect();
        format!("the classes are {}", names.join(", "))
    })
}

/// Reads a moment, or how long ago it was, by this machine's clock.
///
/// # Errors
/// How either is written.
pub fn since(text: &str) -> Result<Instant, String> {
    let moment = match duration(text) {
        Ok(ago) => OffsetDateTime::now_utc()
            .checked_sub(ago.try_into().map_err(|_| "it is too long ago")?)
            .ok_or("it is too long ago")?,
        Err(_) => OffsetDateTime::parse(text, &Rfc3339).map_err(|_| {
            "write a time such as `30m`, `2h` or `14d`, or a moment such as `2026-05-01T12:00:00Z`"
        })?,
    };
    Ok(Instant {
        seconds: moment.unix_timestamp(),
        nanoseconds: moment.nanosecond() / 1_000_000 * 1_000_000,
    })
}

/// Reads a fingerprint, or how one begins.
///
/// # Errors
/// How one is written.
pub fn fingerprint(text: &str) -> Result<String, String> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if text.is_empty() || text.len() > 12 || !is_hex {
        return Err("a fingerprint has up to 12 hexadecimal digits".into());
    }
    Ok(text.to_lowercase())
}
