//! Trap 16: no text of a handler's or a database's, and no payload, breaks the way of a failure.

use hapax::message::FailureClass;
use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::support::scene::TestMessage;
use crate::{QUICK, SourceSort, assert_dead, assert_once, effect, good, letters, message, scene};

/// The longest reason that is kept, in bytes.
const REASON_MAX: usize = 8 * 1024;

/// Texts that were trouble somewhere, each with what must still be recognised of it.
fn hard_texts() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("nul", json!("before\0behind"), "before"),
        ("only-nul", json!("\0\0\0"), ""),
        ("many-nul", json!({ "repeat": "\0", "times": 100_000 }), ""),
        (
            "control",
            json!("red \u{1b}[31m\r\n\u{7}\u{8}\u{7f}\u{85}\u{202e}evil"),
            "red ",
        ),
        (
            "quotes",
            json!("it's \"quoted\" `so` $$or$$ \\'so\\' %s {} ); DROP TABLE effects; --"),
            "it's \"quoted\" `so` $$or$$ \\'so\\' %s {} ); DROP TABLE effects; --",
        ),
        (
            "wide",
            json!({ "repeat": "\u{1f600}ä", "times": 5_000 }),
            "\u{1f600}ä\u{1f600}ä",
        ),
        (
            "megabytes",
            json!({ "repeat": "x", "times": 5_000_000 }),
            "xxxxxxxx",
        ),
        ("empty", json!(""), ""),
    ]
}

fn assert_clean(reason: &str) {
    assert!(reason.len() <= REASON_MAX, "{} bytes", reason.len());
    let odd = reason
        .chars()
        .find(|char| char.is_control() && !matches!(char, '\n' | '\t'));
    assert_eq!(odd, None, "{reason:?}");
}

on_both_databases! {
    trap_16_no_text_of_a_handler_breaks_the_dead_letter,
    trap_16_no_text_of_the_database_breaks_the_dead_letter,
}

on_all! {
    trap_16_any_payload_is_kept_byte_for_byte,
}

async fn trap_16_no_text_of_a_handler_breaks_the_dead_letter(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, QUICK).await;
    let mut messages = Vec::new();
    for (name, text, _) in hard_texts() {
        let log = json!({ "log": { "level": "error", "message": text, "fields": { "a\0b": "c\0\u{1b}d" } } });
        for (verb, step) in [
            ("reject", json!({ "reject": text })),
            ("retry", json!({ "retry": { "reason": text } })),
            ("panic", json!({ "panic": text })),
        ] {
            let steps = json!([effect(), log, step]);
            messages.push(message(&format!("{verb}-{name}"), steps));
            messages.push(good(&format!("after-{verb}-{name}")));
        }
    }
    scene.publish(&messages).await;
    let said = scene.run_until_idle();

    for (name, _, kept) in hard_texts() {
        for (verb, class, attempts) in [
            ("reject", FailureClass::Rejected, 1),
            ("retry", FailureClass::Retried, 2),
            ("panic", FailureClass::Trapped, 2),
        ] {
            let letter = assert_dead(&scene, &format!("{verb}-{name}"), class).await;
            let reason = &letter.letter.reason;
            assert_clean(reason);
            assert!(reason.contains(kept), "{verb} {name}: {reason}");
            assert_eq!(letter.attempts.len(), attempts, "{letter:#?}");
            for attempt in &letter.attempts {
                assert_eq!(attempt.class, class);
                assert_clean(&attempt.error);
                assert!(attempt.error.contains(kept), "{attempt:#?}");
            }
            assert_once(&scene, &format!("after-{verb}-{name}")).await;
        }
    }
    assert_eq!(scene.pending().await, 0);
    // The log stays lines of a bounded length, of JSON.
    for line in said.lines() {
        assert!(line.len() < 64 * 1024, "{} bytes", line.len());
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}

async fn trap_16_no_text_of_the_database_breaks_the_dead_letter(
    kind: StoreKind,
    source: SourceSort,
) {
    let scene = scene(kind, source, QUICK).await;
    // What the database puts the handler's own text into.
    let statements: Vec<(&str, String, Value)> = vec![
        (
            "quotes",
            "SELECT * FROM \"no 'such' `table` \u{1b}[31m \u{7} $$ \\\"".into(),
            json!([]),
        ),
        (
            "long-name",
            format!("SELECT * FROM \"{}\"", "x".repeat(500_000)),
            json!([]),
        ),
        (
            "long-syntax",
            format!("SELECT {}", "( ".repeat(200_000)),
            json!([]),
        ),
    ];
    let mut cases: Vec<(String, Value)> = statements
        .into_iter()
        .map(|(name, sql, params)| (name.to_owned(), json!({ "execute": sql, "params": params })))
        .collect();
    match kind {
        StoreKind::Postgres => {
            let cast = "SELECT CAST(CAST($1 AS text) AS integer)";
            cases.push((
                "long-value".into(),
                json!({ "query": cast, "params": [{ "long_text": { "repeat": "y", "times": 3_000_000 } }] }),
            ));
            cases.push((
                "control-value".into(),
                json!({ "query": cast, "params": [{ "text": "it's \u{1b}[31m\r\n\u{7} \"so\"" }] }),
            ));
            cases.push((
                "nul-value".into(),
                json!({ "query": cast, "params": [{ "text": "a\0b" }] }),
            ));
            // The detail holds the whole key.
            cases.push((
                "detail".into(),
                json!({ "execute": "INSERT INTO notes (key) VALUES ($1), ($1)",
                        "params": [{ "text": "it's \u{1b}[31m\r\n\u{7} \"so\"" }] }),
            ));
        }
        StoreKind::Sqlite => {
            cases.push((
                "control-value".into(),
                json!({ "query": "SELECT json($1)", "params": [{ "text": "it's \u{1b}[31m\r\n\u{7} \"so\"" }] }),
            ));
        }
    }
    let mut messages = Vec::new();
    for (name, step) in &cases {
        for on_error in ["retry", "reject"] {
            let mut step = step.clone();
            step["on_error"] = on_error.into();
            messages.push(message(
                &format!("{on_error}-{name}"),
                json!([effect(), step]),
            ));
        }
        // And swallowed: the commit is refused.
        let mut step = step.clone();
        step["swallow"] = true.into();
        messages.push(message(
            &format!("swallow-{name}"),
            json!([effect(), step, { "reject": "swallowed" }]),
        ));
        messages.push(good(&format!("after-{name}")));
    }
    scene.publish(&messages).await;
    scene.run_until_idle();

    for (name, _) in &cases {
        for (on_error, class, attempts) in [
            ("retry", FailureClass::Retried, 2),
            ("reject", FailureClass::Rejected, 1),
            ("swallow", FailureClass::Rejected, 1),
        ] {
            let letter = assert_dead(&scene, &format!("{on_error}-{name}"), class).await;
            assert_clean(&letter.letter.reason);
            assert_eq!(letter.attempts.len(), attempts, "{letter:#?}");
            for attempt in &letter.attempts {
                assert_clean(&attempt.error);
            }
        }
        assert_once(&scene, &format!("after-{name}")).await;
    }
    assert_eq!(scene.pending().await, 0);
}

/// Every byte, no UTF-8, nothing at all, much: the payload of a dead letter is the payload that came.
async fn trap_16_any_payload_is_kept_byte_for_byte(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, QUICK).await;
    let all: Vec<u8> = (0..=u8::MAX).collect();
    let payloads = [
        all.clone(),
        all.repeat(2_000),
        Vec::new(),
        vec![0],
        b"\xff\xfe\x00{".to_vec(),
        b"{\"steps\": [{\"reject\": \"\\u0000\"}], \"\\u0000\": 1".to_vec(),
        "'); --\\".into(),
    ];
    let messages: Vec<TestMessage> = payloads
        .iter()
        .enumerate()
        .map(|(number, payload)| TestMessage {
            id: Some(format!("m-{number}")),
            payload: payload.clone(),
        })
        .collect();
    scene.publish(&messages).await;
    scene.publish(&[good("next")]).await;
    scene.run_until_idle();

    let found = letters(&scene).await;
    assert_eq!(found.len(), payloads.len());
    for (number, payload) in payloads.iter().enumerate() {
        let id = format!("m-{number}");
        let letter = assert_dead(&scene, &id, FailureClass::Rejected).await;
        assert_eq!(&letter.letter.payload[..], &payload[..], "`{id}`");
        assert_clean(&letter.letter.reason);
    }
    assert_once(&scene, "next").await;
    assert_eq!(scene.pending().await, 0);
}
