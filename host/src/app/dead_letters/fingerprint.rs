//! What failures have in common: a fingerprint of the class and of the words, without what differs from message to message.
//!
//! **Invariant**: the same failure has the same fingerprint whatever component raised it.

use crate::message::{FailureClass, ShortHash};

/// Digits of a fingerprint.
const DIGITS: usize = 12;
/// From so many on, hexadecimal digits in a row are a number, if a decimal one is among them.
const HEX_MIN: usize = 8;

/// Returns the fingerprint of a failure: 12 hexadecimal digits.
pub(super) fn fingerprint(class: FailureClass, reason: &str) -> String {
    let words = without_values(reason);
    let mut digits =
        ShortHash::of(&[b"fingerprint", class.as_str().as_bytes(), words.as_bytes()]).to_hex();
    digits.truncate(DIGITS);
    digits
}

/// Replaces numbers, UUIDs, hashes and quoted values, and leaves a backtrace out.
fn without_values(reason: &str) -> String {
    let mut words = String::with_capacity(reason.len());
    for line in reason.lines() {
        if line.starts_with("  at ") || is_rest_of_backtrace(line) {
            continue;
        }
        line_without_values(line, &mut words);
        words.push('\n');
    }
    words
}

fn is_rest_of_backtrace(line: &str) -> bool {
    line.strip_prefix("  and ")
        .and_then(|rest| rest.strip_suffix(" more"))
        .is_some_and(|count| count.bytes().all(|byte| byte.is_ascii_digit()))
}

fn line_without_values(line: &str, words: &mut String) {
    let mut rest = line;
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        if let Some(length) = quoted(rest, before) {
            words.push_str("`_`");
            (before, rest) = ('`', &rest[length..]);
        } else if first.is_alphanumeric() {
            let length = rest
                .find(|c: char| !c.is_alphanumeric() && c != '-' && c != '_')
                .unwrap_or(rest.len());
            word(&rest[..length], words);
            (before, rest) = ('x', &rest[length..]);
        } else {
            words.push(first);
            (before, rest) = (first, &rest[first.len_utf8()..]);
        }
    }
}

/// Returns the length of the quoted value at the start of `text`. An apostrophe inside a word is no quote.
fn quoted(text: &str, before: char) -> Option<usize> {
    let quote = text.chars().next().filter(|c| "'\"`".contains(*c))?;
    if quote == '\'' && before.is_alphanumeric() {
        return None;
    }
    Some(text[1..].find(quote)? + 2)
}

fn word(text: &str, words: &mut String) {
    if is_uuid(text) {
        words.push('#');
        return;
    }
    for (index, part) in text.split(['-', '_']).enumerate() {
        if index > 0 {
            words.push('-');
        }
        let digits = part.strip_prefix("0x").unwrap_or(part);
        let is_hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let has_decimal = digits.bytes().any(|byte| byte.is_ascii_digit());
        if is_hex && (digits.len() < part.len() || digits.len() >= HEX_MIN && has_decimal) {
            words.push('#');
            continue;
        }
        let mut in_number = false;
        for c in part.chars() {
            if !c.is_numeric() {
                words.push(c);
            } else if !in_number {
                words.push('#');
            }
            in_number = c.is_numeric();
        }
    }
}

fn is_uuid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    parts.len() == 5
        && parts.iter().zip([8, 4, 4, 4, 12]).all(|(part, length)| {
            part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_do_not_count_and_words_do() {
        for (one, other) in [
            ("no account 17", "no account 4"),
            ("order ord-17 at 1.50", "order ord-2 at 12.75"),
            (
                "id 3f2504e0-4f89-11d3-9a0c-0305e82c3301 unknown",
                "id 00000000-0000-0000-0000-000000000000 unknown",
            ),
            ("hash deadbeef01", "hash 0123456789abcdef"),
            ("at 0xff", "at 0xabc"),
            ("column `a` is not 'b'", "column `cc dd` is not ''"),
            (
                "panicked: it's 'x'\nunreachable\n  at handle (3 times)\n  and 20 more",
                "panicked: it's 'y z'\nunreachable\n  at other",
            ),
        ] {
            assert_eq!(without_values(one), without_values(other));
            assert_eq!(
                fingerprint(FailureClass::Trapped, one),
                fingerprint(FailureClass::Trapped, other)
            );
        }
        assert_eq!(
            without_values("it's the addedface of 2 ä'"),
            "it's the addedface of # ä'\n"
        );
        assert_ne!(
            fingerprint(FailureClass::Trapped, "a"),
            fingerprint(FailureClass::Trapped, "b")
        );
        assert_ne!(
            fingerprint(FailureClass::Trapped, "a"),
            fingerprint(FailureClass::Limit, "a")
        );
        assert_eq!(fingerprint(FailureClass::Trapped, "").len(), 12);
    }
}
