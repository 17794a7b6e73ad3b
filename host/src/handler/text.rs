//! Text that came from a guest or a database, made fit for logs and for the store.
//!
//! **Invariant**: what leaves here has a bounded length and holds no NUL.

use std::fmt::Write as _;

/// Returns `text`, cut to at most `bytes_max` bytes and a note of what was cut, with NUL and the other control characters
/// but line feed and tab escaped.
pub(super) fn bounded(text: &str, bytes_max: usize) -> String {
    escaped(text, bytes_max, |char| {
        !matches!(char, '\n' | '\t') && is_invisible(char)
    })
}

/// Returns `text` as one line: as `bounded`, with line feed and tab escaped too.
pub(super) fn one_line(text: &str, bytes_max: usize) -> String {
    escaped(text, bytes_max, is_invisible)
}

/// Returns the longest start of `text` that has at most `bytes_max` bytes.
pub(super) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

fn escaped(text: &str, bytes_max: usize, escape: impl Fn(char) -> bool) -> String {
    let kept = cut(text, bytes_max);
    let mut out = String::with_capacity(kept.len());
    for char in kept.chars() {
        if escape(char) {
            let _ = write!(out, "{}", char.escape_default());
        } else {
            out.push(char);
        }
    }
    if kept.len() < text.len() {
        let _ = write!(out, " [{} bytes cut]", text.len() - kept.len());
    }
    out
}

/// True for what could break a line, reorder it or drive a terminal.
fn is_invisible(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes a number of bytes with the largest unit that divides it, as in the configuration.
pub(super) fn bytes(count: usize) -> String {
    const UNITS: [(usize, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    UNITS
        .iter()
        .find(|(size, _)| count >= *size && count.is_multiple_of(*size))
        .map_or_else(
            || format!("{count} bytes"),
            |(size, unit)| format!("{}{unit}", count / size),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_lengths_bounded() {
        assert_eq!(one_line("a\nb\0c\x1b[31m", 100), "a\\nb\\u{0}c\\u{1b}[31m");
        assert_eq!(bounded("a\nb\0", 100), "a\nb\\u{0}");
        assert_eq!(one_line("\u{202e}evil", 100), "\\u{202e}evil");
        assert_eq!(bounded("äöü", 3), "ä [4 bytes cut]");
        assert_eq!(bounded("", 0), "");
    }

    #[test]
    fn bytes_are_written_with_the_unit_of_the_configuration() {
        assert_eq!(bytes(64 << 20), "64MiB");
        assert_eq!(bytes(1536 << 10), "1536KiB");
        assert_eq!(bytes(2 << 30), "2GiB");
        assert_eq!(bytes(1000), "1000 bytes");
        assert_eq!(bytes(0), "0 bytes");
    }
}
