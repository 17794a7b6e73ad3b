//! A handler in each language that goes through all of its SDK: messages, values, savepoints, cursors, outbox, configuration, failures.

use serde_json::{Value, json};
use sqlx::{Connection as _, Row as _, SqliteConnection};

use crate::place::Place;

const CONFIG: &str = "[store]\nurl = \"sqlite:hapax.db\"\n[sources.payments]\nkind = \"queue\"\n[sources.next]\nkind = \"queue\"\n\
                      [targets.next]\nkind = \"queue\"\nqueue = \"next\"\n\
                      [handlers.tour]\ncomponent = \"handler.wasm\"\nsource = \"payments\"\nmigrations = \"migrations\"\ntarget = \"next\"\n\
                      retry = { attempts = 1 }\nconfig = { currency = \"EUR\" }\n";

/// Replaces the template's handler by the one that is in this folder, and runs it once. `failure` is how it reports an error that is its own.
async fn tells_the_same(language: &str, handler: (&str, &str), failure: &str) {
    let place = Place::with_project(language);
    let write = |file: &str, text: &str| std::fs::write(place.project().join(file), text).unwrap();
    write(handler.0, handler.1);
    write("hapax.toml", CONFIG);
    write(
        "migrations/sqlite/0001_accounts.sql",
        include_str!("tour/tables.sql"),
    );
    let messages = [
        json!({ "id": "m-1", "headers": { "Kind": "tour ä" }, "payload": {} }),
        json!({ "id": "m-2", "payload": "fail" }),
    ];
    write(
        "messages.jsonl",
        &messages.map(|message| message.to_string()).join("\n"),
    );
    for arguments in [
        &["build"][..],
        &[
            "send",
            "payments",
            "--envelope",
            "--lines",
            "messages.jsonl",
        ],
        &["run", "--until-idle"],
    ] {
        let output = place.hapax("credit", arguments);
        assert!(output.status.success(), "{arguments:?}: {}", output.err);
        assert!(!output.err.contains("savepoint.open"), "{}", output.err);
    }
    let url = format!("sqlite:{}", place.project().join("hapax.db").display());
    let mut database = SqliteConnection::connect(&url).await.unwrap();
    let letters = sqlx::query("SELECT message_id, reason FROM hapax_dead_letters")
        .fetch_all(&mut database)
        .await
        .unwrap();
    let letters: Vec<(String, String)> =
        letters.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(letters, [("m-2".to_owned(), failure.to_owned())]);
    let rows = sqlx::query("SELECT name, value FROM told ORDER BY name")
        .fetch_all(&mut database)
        .await
        .unwrap();
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| json!({ "name": row.get::<String, _>(0), "value": row.get::<Option<String>, _>(1) }))
        .collect();
    let expected: Vec<Value> = include_str!("tour/expected.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows, expected);
    // What was published in a savepoint that was undone has not left.
    let left = sqlx::query("SELECT subject, key, CAST(payload AS TEXT) FROM hapax_outbox")
        .fetch_all(&mut database)
        .await
        .unwrap();
    let left: Vec<(String, Option<String>, Value)> = left
        .iter()
        .map(|row| {
            let payload: String = row.get(2);
            (
                row.get(0),
                row.get(1),
                serde_json::from_str(&payload).unwrap(),
            )
        })
        .collect();
    assert_eq!(
        left,
        [(
            "told".to_owned(),
            Some("k".to_owned()),
            json!({ "great": 9_007_199_254_740_993_i64 })
        )]
    );
}

/// Builds that take minutes of computing run with the big sizes only.
fn is_full() -> bool {
    std::env::var_os("HAPAX_TEST_FULL").is_some()
}

#[tokio::test]
async fn c() {
    let handler = ("handler.c", include_str!("tour/handler.c"));
    tells_the_same("c", handler, "Error: out of order").await;
}

#[tokio::test]
async fn javascript() {
    if is_full() {
        let handler = ("handler.js", include_str!("tour/handler.js"));
        tells_the_same("js", handler, "Error: out of order").await;
    }
}

#[tokio::test]
async fn python() {
    if is_full() {
        let handler = ("handler.py", include_str!("tour/handler.py"));
        tells_the_same("python", handler, "ValueError: out of order").await;
    }
}
