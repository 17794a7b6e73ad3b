//! Durations and sizes: numbers with units.

use std::time::Duration;

/// Reads `250ms`, `10s`, `5m`, `2h`, `14d`.
///
/// # Errors
/// What is wrong, and what to write instead.
pub(crate) fn duration(text: &str) -> Result<Duration, (String, String)> {
    let (number, unit) = split(text);
    let hint = "write a number and a unit, such as `\"250ms\"`, `\"30s\"`, `\"5m\"`, `\"2h\"` or `\"14d\"`".to_owned();
    let Ok(count) = number.parse::<u64>() else {
        return Err((format!("`{text}` is not a duration"), hint));
    };
    let per_unit = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "" => {
            return Err((
                format!("`{text}` has no unit"),
                format!("write `\"{text}s\"`"),
            ));
        }
        _ => return Err((format!("`{unit}` is not a unit of time"), hint)),
    };
    match count.checked_mul(per_unit) {
        Some(milliseconds) => Ok(Duration::from_millis(milliseconds)),
        None => Err((format!("`{text}` is too long"), hint)),
    }
}

/// Reads `512B`, `64KiB`, `64MiB`, `1GiB`.
///
/// # Errors
/// What is wrong, and what to write instead.
pub(super) fn size(text: &str) -> Result<u64, (String, String)> {
    let (number, unit) = split(text);
    let hint =
        "write a number and a unit, such as `\"64KiB\"`, `\"64MiB\"` or `\"1GiB\"`".to_owned();
    let Ok(count) = number.parse::<u64>() else {
        return Err((format!("`{text}` is not a size"), hint));
    };
    let per_unit = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "" => {
            return Err((
                format!("`{text}` has no unit"),
                format!("write `\"{text}MiB\"`"),
            ));
        }
        _ => return Err((format!("`{unit}` is not a unit of size"), hint)),
    };
    match count.checked_mul(per_unit) {
        Some(bytes) => Ok(bytes),
        None => Err((format!("`{text}` is too large"), hint)),
    }
}

fn split(text: &str) -> (&str, &str) {
    let end = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("14d"), Ok(Duration::from_secs(14 * 86_400)));
        assert_eq!(
            duration("30"),
            Err(("`30` has no unit".into(), "write `\"30s\"`".into()))
        );
        assert!(duration("-1s").is_err());
        assert!(duration("s").is_err());
        assert!(duration("99999999999999999999s").is_err());
        assert!(duration("999999999999999999d").is_err());
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("1 GiB"), Ok(1 << 30));
        assert_eq!(
            size("64"),
            Err(("`64` has no unit".into(), "write `\"64MiB\"`".into()))
        );
        assert!(size("64MB").is_err());
        assert!(size("99999999999999999GiB").is_err());
    }
}
