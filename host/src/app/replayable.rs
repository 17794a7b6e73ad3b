//! What in a component speaks against running its messages again: SQL whose result differs from run to run.
//!
//! Statements are not known before they are sent, so this looks for their texts in the file, and can only warn: a text may serve
//! something else, and a statement may be put together at run time.

/// Functions that give something else in each run, as they are called.
const CALLS: &[&str] = &[
    "clock_timestamp",
    "gen_random_uuid",
    "nextval",
    "now",
    "random",
    "randomblob",
    "statement_timestamp",
    "timeofday",
    "transaction_timestamp",
    "uuidv4",
    "uuidv7",
];

/// The same without parentheses.
const WORDS: &[&str] = &[
    "current_date",
    "current_time",
    "current_timestamp",
    "localtimestamp",
];

/// What tells SQL from other text.
const KEYWORDS: &[&str] = &["select ", "insert ", "update ", "delete ", "values"];

/// How far from a call a keyword may stand, in bytes.
const NEAR: usize = 512;

/// Returns what was found, each once, in alphabetical order: `now()`.
pub(super) fn differing(component: &[u8]) -> Vec<String> {
    let bytes: Vec<u8> = component.to_ascii_lowercase();
    let mut found = Vec::new();
    for (names, is_call) in [(CALLS, true), (WORDS, false)] {
        for name in names {
            if occurs(&bytes, name.as_bytes(), is_call) {
                found.push(if is_call {
                    format!("{name}()")
                } else {
                    (*name).to_owned()
                });
            }
        }
    }
    found.sort();
    found
}

fn occurs(bytes: &[u8], name: &[u8], is_call: bool) -> bool {
    let is_name = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b'$')
    };
    let mut from = 0;
    while let Some(at) = position(&bytes[from..], name) {
        let start = from + at;
        let end = start + name.len();
        from = end;
        let before = start.checked_sub(1).and_then(|index| bytes.get(index));
        if is_name(before) || is_name(bytes.get(end)) {
            continue;
        }
        let behind = bytes[end..].iter().find(|byte| **byte != b' ');
        if is_call && behind != Some(&b'(') {
            continue;
        }
        if is_sql(bytes, start) {
            return true;
        }
    }
    false
}

/// True if the text around `at` reads like a statement.
fn is_sql(bytes: &[u8], at: usize) -> bool {
    let is_text = |byte: &u8| (0x20..0x7f).contains(byte) || matches!(*byte, b'\n' | b'\t' | b'\r');
    let low = at.saturating_sub(NEAR);
    let start = bytes[low..at]
        .iter()
        .rposition(|byte| !is_text(byte))
        .map_or(low, |index| low + index + 1);
    let high = bytes.len().min(at + NEAR);
    let end = bytes[at..high]
        .iter()
        .position(|byte| !is_text(byte))
        .map_or(high, |index| at + index);
    KEYWORDS
        .iter()
        .any(|keyword| position(&bytes[start..end], keyword.as_bytes()).is_some())
}

fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = *wanted.first()?;
    let mut from = 0;
    loop {
        let at = from + bytes.get(from..)?.iter().position(|byte| *byte == first)?;
        if bytes[at..].starts_with(wanted) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_in_statements_are_found() {
        let component = b"\0asm\x01INSERT INTO t VALUES ($1, NOW (), random())\0SELECT nextval('s')select current_timestamp\xff";
        assert_eq!(
            differing(component),
            ["current_timestamp", "nextval()", "now()", "random()"]
        );
    }

    #[test]
    fn other_texts_are_not() {
        for component in [
            &b"SELECT known() FROM now_table"[..],
            b"core::time::now(",
            b"SELECT 1\0random()",
            b"SELECT t.random, brandom()",
            b"",
        ] {
            assert_eq!(differing(component), Vec::<String>::new());
        }
    }
}
