//! Making foreign text fit to be shown.

/// The longest foreign text in a log line, in bytes.
const LINE_MAX_BYTES: usize = 2048;

/// Returns `text` on one line, without control characters, cut at 2 KiB.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(LINE_MAX_BYTES));
    for character in text.chars() {
        if line.len() >= LINE_MAX_BYTES {
            line.push('…');
            break;
        }
        match character {
            '\n' => line.push_str("\\n"),
            character if character.is_control() => line.extend(character.escape_default()),
            character => line.push(character),
        }
    }
    line
}

/// Parts a text from the hint on its last line, if it has one.
pub(crate) fn split_hint(text: &str) -> (&str, Option<&str>) {
    match text.split_once("\nhint: ") {
        Some((text, hint)) => (text, Some(hint)),
        None => (text, None),
    }
}

/// Returns `text` without control characters, whole; line ends stay.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => shown.push('\n'),
            character if character.is_control() => shown.extend(character.escape_default()),
            character => shown.push(character),
        }
    }
    shown
}

/// Writes a duration as the configuration has it, with the largest unit that loses nothing.
pub(crate) fn span(duration: std::time::Duration) -> String {
    let milliseconds = duration.as_millis();
    for (unit, name) in [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1_000, "s"),
    ] {
        if milliseconds >= unit && milliseconds.is_multiple_of(unit) {
            return format!("{}{name}", milliseconds / unit);
        }
    }
    format!("{milliseconds}ms")
}

/// Decodes what stands behind `=` in a URL. What is not UTF-8 is replaced.
pub(crate) fn url_decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = match (byte, digits) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                &after[2..]
            }
            (b'+', _) => {
                bytes.push(b' ');
                after
            }
            _ => {
                bytes.push(byte);
                after
            }
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_the_line_that_begins_with_it() {
        assert_eq!(
            split_hint("no stream\nhint: make it"),
            ("no stream", Some("make it"))
        );
        assert_eq!(split_hint("hint: no"), ("hint: no", None));
    }

    #[test]
    fn foreign_text_stays_on_one_bounded_line() {
        assert_eq!(one_line("a\nb\u{0}\u{1b}[31m"), "a\\nb\\u{0}\\u{1b}[31m");
        assert_eq!(printable("a\nb\r\u{1b}[31m"), "a\nb\\r\\u{1b}[31m");
        assert!(one_line(&"ä".repeat(10_000)).len() < LINE_MAX_BYTES + 8);
    }
}
