//! Logs and traces: what a collector gets of a message's way from its publisher into the outbox, that one that is away costs nothing but
//! spans, and what stands in the lines of the log.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

#[path = "../support/mod.rs"]
mod support;

mod away;
mod collector;
mod logs;
mod messages;
mod settings;

use std::fmt::Write as _;

use serde_json::{Value, json};
use support::scene::{Scene, SourceSort};

/// The table of the handler.
const TABLES: &str = "CREATE TABLE notes (key text NOT NULL);";
/// Of a publisher.
const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN_ID: &str = "00f067aa0ba902b7";

/// Returns the publisher's `traceparent`.
fn traceparent(is_sampled: bool) -> String {
    format!("00-{TRACE_ID}-{SPAN_ID}-0{}", u8::from(is_sampled))
}

/// A message with headers.
struct Sent<'a> {
    id: &'a str,
    headers: &'a [(&'a str, &'a str)],
    steps: Value,
}

/// Returns the step that writes a note.
fn note() -> Value {
    json!({ "execute": "INSERT INTO notes VALUES ('k')" })
}

/// Sends messages with `hapax send`, so that the source has them all when it returns.
fn send(scene: &Scene, sort: SourceSort, messages: &[Sent<'_>]) {
    let mut lines = String::new();
    for message in messages {
        let mut headers = json!({ "Message-Id": message.id });
        for (name, value) in message.headers {
            headers[*name] = json!(value);
        }
        let line = json!({
            "id": message.id,
            "subject": "messages.test",
            "headers": headers,
            "payload": { "steps": message.steps },
        });
        writeln!(lines, "{line}").unwrap();
    }
    let file = scene.folder().join("messages.jsonl");
    std::fs::write(&file, lines).unwrap();
    let mut arguments = vec!["send", "messages", "--envelope", "--lines"];
    let file = file.to_str().unwrap();
    arguments.push(file);
    let output = support::host::run(scene.folder(), &arguments);
    assert!(output.status.success(), "{sort:?}: {}", output.err);
}

/// Adds lines to the scene's configuration.
fn configure(scene: &Scene, lines: &str) {
    let mut config = std::fs::read_to_string(scene.config()).unwrap();
    config.push_str(lines);
    std::fs::write(scene.config(), config).unwrap();
}

/// Returns the headers of a row of the outbox, with its id.
async fn outbox_row(scene: &Scene, message_id: &str) -> (String, Vec<(String, String)>) {
    let table = scene.store.table("outbox");
    let of = |column: &str| {
        format!("SELECT CAST({column} AS text) FROM {table} WHERE message_id = '{message_id}'")
    };
    let id = scene.store.text(&of("id")).await.unwrap();
    let headers = scene.store.text(&of("headers")).await.unwrap();
    (id, serde_json::from_str(&headers).unwrap())
}

/// Returns the lines of a log in JSON.
fn lines(said: &str) -> Vec<Value> {
    said.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}
