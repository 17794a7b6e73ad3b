//! Where ids and keys are found, and where not.

use super::*;
use crate::message::{Header, Position};

fn places(texts: &[&str]) -> IdPlaces {
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    IdPlaces::parse(&texts).unwrap()
}

fn message(headers: &[(&str, &[u8])], payload: &str) -> Incoming {
    Incoming {
        subject: String::new(),
        headers: headers
            .iter()
            .map(|(name, value)| Header {
                name: (*name).to_owned(),
                value: bytes::Bytes::copy_from_slice(value),
            })
            .collect(),
        content_type: None,
        payload: payload.to_owned().into(),
        published_at: None,
        position: Position("7".into()),
        queue_id: None,
    }
}

fn found(place: &str, message: &Incoming) -> Result<String, String> {
    places(&[place])
        .find(message)
        .map(|id| id.as_str().to_owned())
        .map_err(|text| {
            text.strip_prefix(&format!("no usable message id: `{place}`: "))
                .unwrap_or_else(|| panic!("{text}"))
                .to_owned()
        })
}

#[test]
fn places_are_read_or_refused_with_a_remedy() {
    for text in [
        "header:Nats-Msg-Id",
        "header:ce-source+ce-id",
        "json:/id",
        "json:",
        "json:/a~1b/~0/0",
        "stream-sequence",
        "queue:id",
    ] {
        assert_eq!(IdPlace::parse(text).unwrap().to_string(), text);
    }
    let refused = [
        ("", "`` is no place for a message id; the places are"),
        ("Nats-Msg-Id", "`Nats-Msg-Id` is no place for a message id"),
        ("header:", "names an empty header; write `header:NAME`"),
        ("header:a+", "names an empty header"),
        ("header:a b", "a header's name cannot contain ' '"),
        ("header:a+A", "names a header twice"),
        ("header:é", "a header's name cannot contain 'é'"),
        (
            "json:id",
            "a JSON pointer starts with `/`; write `json:/id`",
        ),
        ("json:/a~2", "`~` is written `~0`"),
        ("json:/a~", "`~` is written `~0`"),
        ("queue:number", "is no place for a message id"),
    ];
    for (text, problem) in refused {
        let error = IdPlace::parse(text).unwrap_err();
        assert!(error.contains(problem), "`{text}`: {error}");
    }
    let error = IdPlaces::parse(&[]).unwrap_err();
    assert!(error.contains("the places are"), "{error}");
    let twice = ["queue:id".to_owned(), "queue:id".to_owned()];
    assert!(IdPlaces::parse(&twice).unwrap_err().contains("named twice"));
}

#[test]
fn headers() {
    let ok = |headers: &[(&str, &[u8])], place| found(place, &message(headers, ""));
    assert_eq!(ok(&[("X-Id", b"a")], "header:x-ID"), Ok("a".into()));
    assert_eq!(
        ok(&[("X-Id", b"a"), ("x-id", b"a")], "header:X-Id"),
        Ok("a".into())
    );
    assert_eq!(ok(&[], "header:X-Id"), Err("absent".into()));
    assert_eq!(ok(&[("X-Id", b"")], "header:X-Id"), Err("empty".into()));
    assert_eq!(
        ok(&[("X-Id", b"a"), ("X-Id", b"b")], "header:X-Id"),
        Err("occurs more than once, with different values".into())
    );
    assert_eq!(
        ok(&[("X-Id", b"\xff\xfe")], "header:X-Id"),
        Err("not UTF-8 (2 bytes)".into())
    );
    assert_eq!(
        ok(&[("X-Id", b"a\0b")], "header:X-Id"),
        Err("the message id contains a NUL byte".into())
    );
    assert_eq!(
        ok(&[("X-Id", &[b'a'; 1025])], "header:X-Id"),
        Err("the message id has 1025 bytes; at most 1024 are possible".into())
    );
    assert_eq!(
        ok(&[("ce-id", b"1")], "header:ce-source+ce-id"),
        Err("`ce-source` absent".into())
    );
}

#[test]
fn joined_headers_never_collide() {
    let joined = |source: &[u8], id: &[u8]| {
        found(
            "header:ce-source+ce-id",
            &message(&[("ce-id", id), ("ce-source", source)], ""),
        )
        .unwrap()
    };
    assert_eq!(joined(b"/orders", b"42"), "7:/orders:42");
    let pairs: [(&[u8], &[u8]); 6] = [
        (b"a", b"b:c"),
        (b"a:b", b"c"),
        (b"a+b", b"c"),
        (b"a", b"b+c"),
        (b"1:a", b"b"),
        (b"1", b"a:b"),
    ];
    let ids: std::collections::HashSet<String> = pairs.iter().map(|(a, b)| joined(a, b)).collect();
    assert_eq!(ids.len(), pairs.len(), "{ids:?}");
}

#[test]
fn json() {
    let table: &[(&str, &str, Result<&str, &str>)] = &[
        ("json:/id", r#"{"id":"a"}"#, Ok("a")),
        (
            "json:/id",
            r#" { "x" : [1,{"id":"no"}] , "id" : "\u00e4\n" } "#,
            Ok("ä\n"),
        ),
        ("json:/id", r#"{"id":1}"#, Ok("1")),
        ("json:/id", r#"{"id":-12}"#, Ok("-12")),
        (
            "json:/id",
            r#"{"id":123456789012345678901234567890}"#,
            Ok("123456789012345678901234567890"),
        ),
        (
            "json:/id",
            r#"{"id":1.0}"#,
            Err("a number with a fraction or an exponent"),
        ),
        (
            "json:/id",
            r#"{"id":1e3}"#,
            Err("a number with a fraction or an exponent"),
        ),
        ("json:/id", r#"{"id":"a","id":"b"}"#, Ok("b")),
        ("json:/id", r#"{"id":null}"#, Err("null")),
        (
            "json:/id",
            r#"{"id":true}"#,
            Err("a boolean, not a string or an integer"),
        ),
        (
            "json:/id",
            r#"{"id":{"id":1}}"#,
            Err("an object, not a string or an integer"),
        ),
        (
            "json:/id",
            r#"{"id":["a"]}"#,
            Err("an array, not a string or an integer"),
        ),
        ("json:/id", r#"{"ID":"a"}"#, Err("absent")),
        ("json:/id", r#""id""#, Err("absent")),
        ("json:/id", "17", Err("absent")),
        ("json:/id", r#"{"id":""}"#, Err("the message id is empty")),
        (
            "json:/id",
            r#"{"id":"a\u0000"}"#,
            Err("the message id contains a NUL byte"),
        ),
        (
            "json:/id",
            r#"{"id":"\ud800"}"#,
            Err("a string that is not Unicode text"),
        ),
        ("json:/id", "", Err("the payload is empty")),
        (
            "json:/id",
            r#"{"id":"a"} x"#,
            Err("the payload is not JSON (line 1, column 12)"),
        ),
        (
            "json:/id",
            r#"{"id":"a""#,
            Err("the payload is not JSON (line 1, column 9)"),
        ),
        ("json:", r#""a""#, Ok("a")),
        ("json:", "17", Ok("17")),
        ("json:/a/b", r#"{"a":{"b":"x"}}"#, Ok("x")),
        ("json:/a/1/b", r#"{"a":[{"b":"w"},{"b":"x"}]}"#, Ok("x")),
        ("json:/a/2", r#"{"a":["w","x"]}"#, Err("absent")),
        ("json:/a/-", r#"{"a":["w"]}"#, Err("absent")),
        ("json:/a/01", r#"{"a":["w","x"]}"#, Err("absent")),
        ("json:/a/01", r#"{"a":{"01":"x"}}"#, Ok("x")),
        ("json:/a~1b/~01", r#"{"a/b":{"~1":"x"}}"#, Ok("x")),
        ("json:/", r#"{"":"x"}"#, Ok("x")),
    ];
    for (place, payload, expected) in table {
        assert_eq!(
            found(place, &message(&[], payload)),
            expected.map(str::to_owned).map_err(str::to_owned),
            "{place} in {payload}"
        );
    }
}

#[test]
fn deep_json_is_refused_not_overflowed() {
    let deep = "[".repeat(100_000);
    assert!(found("json:/0/0", &message(&[], &deep)).is_err());
}

#[test]
fn positions_and_queue_ids() {
    let mut incoming = message(&[], "");
    assert_eq!(
        found("stream-sequence", &incoming),
        Err("the source is not a stream".into())
    );
    assert_eq!(found("queue:id", &incoming), Err("absent".into()));
    incoming.position = Position("S@1700000000.5:3".into());
    incoming.queue_id = Some("q".into());
    assert_eq!(
        found("stream-sequence", &incoming),
        Ok("S@1700000000.5:3".into())
    );
    assert_eq!(found("queue:id", &incoming), Ok("q".into()));
}

#[test]
fn the_first_usable_place_counts_and_the_error_lists_all() {
    let order = places(&["queue:id", "header:X-Id", "json:/id"]);
    let mut incoming = message(&[("X-Id", b"h")], r#"{"id":"j"}"#);
    assert_eq!(order.find(&incoming).unwrap().as_str(), "h");
    incoming.queue_id = Some("q".into());
    assert_eq!(order.find(&incoming).unwrap().as_str(), "q");
    let none = message(&[("X-Id", b"\xff")], r#"{"id":1.5}"#);
    assert_eq!(
        order.find(&none).unwrap_err(),
        "no usable message id: `queue:id`: absent; `header:X-Id`: not UTF-8 (1 bytes); `json:/id`: a number with a \
         fraction or an exponent"
    );
}
