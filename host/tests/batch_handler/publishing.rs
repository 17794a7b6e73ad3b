//! What leaves a batch's call, and what it says in the log.

use std::path::Path;

use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::stage::{TABLES, effect, message, scene};
use crate::support::scene::{Scene, SourceSort, TestMessage, script, script_batch};

/// Runs the messages with a handler, and returns what stands in the outbox.
async fn outbox_of(handler: &Path, messages: &[TestMessage]) -> String {
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        handler,
        TABLES,
        "lanes = 1\nretry = { attempts = 1 }",
    )
    .await;
    scene.publish(messages).await;
    scene.run_until_idle();
    assert_eq!(scene.count("dead_letters", "1 = 1").await, 1);
    let outbox = scene.store.table("outbox");
    let sql = format!(
        "SELECT string_agg(concat_ws(' ', message_id, ordinal, subject, id), E'\\n' ORDER BY message_id, ordinal) FROM {outbox}"
    );
    scene.store.text(&sql).await.unwrap()
}

/// A receiver knows a message by its id: the one that a message's run alone would give it.
#[tokio::test]
async fn ids_of_what_leaves_are_those_of_single_runs() {
    let publish = |subject: &str| json!({ "publish": { "subject": subject, "payload": "x" } });
    let messages: Vec<TestMessage> = (1..=9)
        .map(|n| {
            let mut steps = vec![publish("first"), effect(n), publish("second")];
            if n == 5 {
                // What it has published does not exist.
                steps.push(json!({ "reject": "no" }));
            }
            message(n, &steps)
        })
        .collect();
    let single = outbox_of(&script(), &messages).await;
    let batch = outbox_of(&script_batch(), &messages).await;
    assert_eq!(batch, single);
    assert_eq!(batch.lines().count(), 16);
    assert!(!batch.contains("m-5 "), "{batch}");
}

/// Each line names its message; what concerns nobody in particular names the batch's size.
#[tokio::test]
async fn lines_carry_their_messages_id() {
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue, "").await;
    let messages: Vec<TestMessage> = (1..=3)
        .map(|n| message(n, &[json!({ "log": { "message": format!("line {n}") } })]))
        .collect();
    scene.publish(&messages).await;
    let said = scene.run_until_idle();
    let lines: Vec<Value> = said
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let find = |text: &str| -> &Value {
        lines
            .iter()
            .find(|line| line["message"] == text || line["fields"]["message"] == text)
            .unwrap_or_else(|| panic!("no line `{text}` in:\n{said}"))
    };
    for n in 1..=3 {
        let line = find(&format!("line {n}")).to_string();
        assert!(
            line.contains(&format!("\"message_id\":\"m-{n}\"")) && line.contains("\"attempt\":1"),
            "{line}"
        );
    }
    let line = find("a call").to_string();
    assert!(
        line.contains("\"messages\":3") && !line.contains("message_id"),
        "{line}"
    );
}
