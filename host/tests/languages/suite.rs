//! One handler that goes through all of its SDK, every kind of value, every way to fail, and the limits. The payload is a word that says which.

use hapax::store::StoreKind;

use crate::support::scene::{Scene, SourceSort, TestMessage};
use crate::{expected, in_each_language, suite_handler};

/// What a limit was gone over, in the words of the host.
const CONFIG: &str = "retry = { attempts = 1 }\ntarget = \"next\"\n[handlers.subject.limits]\nmemory = \"48MiB\"\n\
                      [handlers.subject.config]\ncurrency = \"EUR\"\n[sources.next]\nkind = \"queue\"\n[targets.next]\nkind = \"queue\"\nqueue = \"next\"";

async fn does_all_of_it(language: &str, kind: StoreKind) {
    let (tables, file) = match kind {
        StoreKind::Sqlite => (include_str!("tables/sqlite.sql"), "suite-sqlite.jsonl"),
        StoreKind::Postgres => (include_str!("tables/postgres.sql"), "suite-postgres.jsonl"),
    };
    let handler = suite_handler(language);
    let scene = Scene::new(kind, SourceSort::Queue, &handler, tables, CONFIG).await;
    let words = [
        // Its id comes back as a header.
        ("tour ä", "tour"),
        ("values", "values"),
        ("reject", "reject"),
        ("retry", "retry"),
        ("error", "error"),
        ("unique", "unique"),
        ("wrong", "wrong"),
        ("panic", "panic"),
        ("memory", "memory"),
        ("time", "time"),
    ];
    let mut messages = words.map(message).to_vec();
    // SQLite has no arrays.
    messages.extend((kind == StoreKind::Postgres).then(|| message(("arrays", "arrays"))));
    scene.publish(&messages).await;
    let said = scene.run_until_idle();
    assert!(!said.contains("savepoint.open"), "{said}");
    // The text of a panic is in the log where a trap can't carry it.
    if language != "c" {
        assert!(said.contains("out of order"), "{said}");
    }
    expected::compare(&scene, file, language).await;
}

fn message((id, word): (&str, &str)) -> TestMessage {
    TestMessage {
        id: Some(id.to_owned()),
        payload: word.as_bytes().to_vec(),
    }
}

in_each_language!(super::does_all_of_it);
