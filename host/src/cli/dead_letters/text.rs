//! Dead letters as text and as JSON.
//!
//! **Invariant**: foreign text is shown without control characters; what is cut says how much is missing.

use std::fmt::Write as _;

use super::super::count;
use super::super::listing::{cut, fitted, moment};
use crate::app::{Imported, LetterGroup, ListedLetter, Replayed, ShownLetter};
use crate::message::{ComponentDigest, hex};
use crate::text::{one_line, printable};

/// The most characters of a handler's name in a list.
const HANDLER_MAX: usize = 16;
/// The most characters of a message id in a list.
const ID_MAX: usize = 20;
/// The most bytes of a text payload that are shown.
const TEXT_MAX: usize = 64 << 10;
/// The most bytes of another payload that are shown.
const HEX_MAX: usize = 2 << 10;
/// Bytes in a line of a hex dump.
const HEX_LINE: usize = 16;

pub(super) fn list(letters: &[ListedLetter]) -> String {
    if letters.is_empty() {
        return "no dead letters\n".into();
    }
    let mut rows = vec![
        [
            "number",
            "dead since",
            "handler",
            "class",
            "runs",
            "replay",
            "message id",
            "reason",
        ]
        .map(str::to_owned),
    ];
    for ListedLetter { summary, .. } in letters {
        rows.push([
            summary.number.to_string(),
            moment(summary.dead_at),
            cut(&summary.handler, HANDLER_MAX),
            summary.class.to_string(),
            summary.attempts.to_string(),
            if summary.is_queued { "queued" } else { "-" }.to_owned(),
            cut(summary.message_id.as_deref().unwrap_or("-"), ID_MAX),
            summary.reason.clone(),
        ]);
    }
    fitted(rows)
}

pub(super) fn groups(groups: &[LetterGroup]) -> String {
    if groups.is_empty() {
        return "no dead letters\n".into();
    }
    let mut rows = vec![
        [
            "fingerprint",
            "count",
            "queued",
            "class",
            "first",
            "last",
            "reason of one",
        ]
        .map(str::to_owned),
    ];
    for group in groups {
        rows.push([
            group.fingerprint.clone(),
            group.count.to_string(),
            group.queued.to_string(),
            group.class.to_string(),
            moment(group.first),
            moment(group.last),
            group.reason.clone(),
        ]);
    }
    fitted(rows)
}

/// Appends a text under an indent; each of its lines on a line.
fn indented(text: &mut String, indent: &str, shown: &str) {
    for line in printable(shown).lines() {
        let _ = writeln!(text, "{indent}{line}");
    }
}

fn digest(digest: Option<ComponentDigest>) -> String {
    digest.map_or_else(|| "-".to_owned(), |digest| digest.to_string())
}

pub(super) fn shown(shown: &ShownLetter) -> String {
    let letter = &shown.stored.letter;
    let mut text = format!("dead letter {}", shown.stored.number);
    if shown.is_queued {
        text.push_str(" (queued for replay)");
    }
    text.push('\n');
    let position = format!("{} at {}", letter.source, letter.position);
    let id = letter.message_id.as_ref().map(ToString::to_string);
    for (name, value) in [
        ("handler", letter.handler.as_str()),
        ("consumer", &letter.consumer),
        ("message id", id.as_deref().unwrap_or("-")),
        ("source", &position),
        ("subject", &letter.subject),
        ("published", &moment(letter.published_at)),
        ("dead since", &moment(shown.stored.dead_at)),
        ("class", letter.class.as_str()),
        ("component", &digest(letter.component)),
        ("fingerprint", &shown.fingerprint),
    ] {
        let _ = writeln!(
            text,
            "  {}",
            format!("{name:<12} {}", cut(value, 2048)).trim_end()
        );
    }
    text.push_str("reason\n");
    indented(&mut text, "  ", &letter.reason);

    let _ = writeln!(text, "headers ({})", letter.headers.len());
    for header in &letter.headers {
        let value = match std::str::from_utf8(&header.value) {
            Ok(value) => printable(value).replace('\n', "\\n"),
            Err(_) => format!("(not UTF-8) {}", hex(&header.value)),
        };
        let name = printable(&header.name).replace('\n', "\\n");
        let _ = writeln!(text, "  {}", format!("{name}: {value}").trim_end());
    }

    let bytes = count(letter.payload.len() as u64, "byte");
    let content_type = letter.content_type.as_deref().unwrap_or("no content type");
    let _ = writeln!(text, "payload ({bytes}, {})", one_line(content_type));
    payload(&mut text, &letter.payload);

    let _ = writeln!(text, "attempts ({})", shown.stored.attempts.len());
    for attempt in &shown.stored.attempts {
        let _ = writeln!(
            text,
            "  {}  {}  {}  component {}",
            attempt.number,
            one_line(&attempt.at),
            attempt.class,
            digest(attempt.component),
        );
        indented(&mut text, "     ", &attempt.error);
    }
    text
}

fn payload(text: &mut String, bytes: &[u8]) {
    let rest = match std::str::from_utf8(bytes) {
        Ok(payload) => {
            let shown = &payload[..payload.floor_char_boundary(TEXT_MAX)];
            match pretty_json(payload) {
                Some(pretty) if shown.len() == payload.len() => indented(text, "  ", &pretty),
                _ => indented(text, "  ", shown),
            }
            payload.len() - shown.len()
        }
        Err(_) => {
            let shown = &bytes[..bytes.len().min(HEX_MAX)];
            for (index, line) in shown.chunks(HEX_LINE).enumerate() {
                let digits: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
                let characters: String = line
                    .iter()
                    .map(|byte| match byte {
                        b' '..=b'~' => char::from(*byte),
                        _ => '.',
                    })
                    .collect();
                let _ = writeln!(
                    text,
                    "  {:08x}  {:<47}  {characters}",
                    index * HEX_LINE,
                    digits.join(" ")
                );
            }
            bytes.len() - shown.len()
        }
    };
    if rest > 0 {
        let rest = count(rest as u64, "byte");
        let _ = writeln!(
            text,
            "  … and {rest} more: `--payload FILE` writes them all"
        );
    }
}

/// Lays JSON out in lines. Its names, numbers and texts stay as they are written. `None` if it is no JSON object or list.
fn pretty_json(text: &str) -> Option<String> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    let mut pretty = String::with_capacity(text.len() * 2);
    let mut depth = 0;
    let mut in_text = false;
    let mut is_escaped = false;
    let new_line = |pretty: &mut String, depth: usize| {
        pretty.push('\n');
        pretty.extend(std::iter::repeat_n("  ", depth));
    };
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if in_text {
            pretty.push(character);
            in_text = is_escaped || character != '"';
            is_escaped = !is_escaped && character == '\\';
            continue;
        }
        match character {
            '"' => {
                in_text = true;
                pretty.push(character);
            }
            '{' | '[' => {
                pretty.push(character);
                while characters.next_if(|next| next.is_whitespace()).is_some() {}
                if let Some(end) = characters.next_if(|next| matches!(next, '}' | ']')) {
                    pretty.push(end);
                } else {
                    depth += 1;
                    new_line(&mut pretty, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut pretty, depth);
                pretty.push(character);
            }
            ',' => {
                pretty.push(character);
                new_line(&mut pretty, depth);
            }
            ':' => pretty.push_str(": "),
            character if character.is_whitespace() => {}
            character => pretty.push(character),
        }
    }
    Some(pretty)
}

pub(super) fn replayed(replayed: &Replayed) -> String {
    let mut text = match replayed.queued.len() {
        0 => String::new(),
        queued => format!(
            "queued {} for replay; a running `hapax run` processes them\n",
            count(queued as u64, "dead letter")
        ),
    };
    match replayed.queued_already.as_slice() {
        [] => {}
        [one] => {
            let _ = writeln!(text, "dead letter {one} is queued already");
        }
        many => {
            let _ = writeln!(text, "{} dead letters are queued already", many.len());
        }
    }
    if text.is_empty() && replayed.refused.is_empty() {
        text.push_str("no dead letters\n");
    }
    text
}

pub(super) fn dropped(dropped: usize) -> String {
    match dropped {
        0 => "no dead letters\n".to_owned(),
        1 => {
            "dropped 1 dead letter; its id stays claimed, so that a redelivery stays a duplicate\n"
                .to_owned()
        }
        many => format!(
            "dropped {many} dead letters; their ids stay claimed, so that a redelivery stays a duplicate\n"
        ),
    }
}

pub(super) fn imported(imported: &Imported) -> String {
    let mut text = format!("imported {}", count(imported.imported, "dead letter"));
    if imported.renumbered > 0 {
        let _ = write!(text, ", {} under a new number", imported.renumbered);
    }
    text.push('\n');
    for (left_out, why) in [
        (imported.there_already, "there already"),
        (imported.processed_already, "processed already"),
    ] {
        if left_out > 0 {
            let _ = writeln!(text, "left out {}: {why}", count(left_out, "dead letter"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::super::listing::WIDTH;
    use super::*;

    #[test]
    fn json_is_laid_out_as_it_is_written() {
        assert_eq!(
            pretty_json(r#"{"b":[1.50,{},"a\",[\\"],"a" : 12345678901234567890123 , "e":[ ]}"#)
                .as_deref(),
            Some(
                "{\n  \"b\": [\n    1.50,\n    {},\n    \"a\\\",[\\\\\"\n  ],\n  \"a\": 12345678901234567890123,\n  \"e\": []\n}"
            )
        );
        for other in ["", "1", "\"a\"", "{", "[1,]", "x"] {
            assert_eq!(pretty_json(other), None, "{other}");
        }
    }

    #[test]
    fn payloads_are_shown_or_said_to_be_cut() {
        let shown = |bytes: &[u8]| {
            let mut text = String::new();
            payload(&mut text, bytes);
            text
        };
        assert_eq!(shown(b"a\x1b[31m\nb"), "  a\\u{1b}[31m\n  b\n");
        assert_eq!(
            shown(&[0xff, b'a', 0]),
            format!("  00000000  {:<47}  .a.\n", "ff 61 00")
        );
        let long = shown(&[0xff; HEX_MAX + 3]);
        assert!(long.ends_with("  … and 3 bytes more: `--payload FILE` writes them all\n"));
        let long = shown("ä".repeat(TEXT_MAX).as_bytes());
        assert!(long.ends_with("bytes more: `--payload FILE` writes them all\n"));
    }

    #[test]
    fn lists_fit_their_width() {
        let text = fitted(vec![
            ["a", "b"].map(str::to_owned),
            ["x".repeat(30), "long ".repeat(100)],
        ]);
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
        assert!(text.contains('…'));
    }
}
