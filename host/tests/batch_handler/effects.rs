//! What a batch's call leaves: everything once.

use hapax::store::StoreKind;
use serde_json::json;

use crate::stage::{assert_once, effect, message, scene};
use crate::support::scene::{Scene, SourceSort, TestMessage, script_batch};

async fn duplicates_in_batches(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, "config = { calls = \"calls\" }").await;
    let messages: Vec<TestMessage> = (1..=40)
        .flat_map(|n| {
            let message = message(n, &[effect(n)]);
            // Every fourth comes twice, also within one batch.
            let twice = (n % 4 == 0).then(|| message.clone());
            [Some(message), twice]
        })
        .flatten()
        .collect();
    scene.publish(&messages).await;
    scene.publish(&messages[..5]).await;
    scene.run_until_idle();
    assert_once(&scene, 40, &[]).await;
    let number = async |sql: &str| scene.store.number(sql).await;
    assert_eq!(number("SELECT max(attempt) FROM effects").await, 1);
    let calls = "SELECT CAST(sum(n) AS bigint) FROM calls";
    assert_eq!(number(calls).await, 40);
    assert!(number("SELECT max(n) FROM calls").await > 10);
    let status = scene.status();
    assert_eq!(status["claimed"], 40, "{status}");
    assert_eq!(status["duplicates"], 15, "{status}");
}

#[tokio::test]
async fn duplicates_in_batches_on_postgres_with_jetstream() {
    duplicates_in_batches(StoreKind::Postgres, SourceSort::JetStream).await;
}

#[tokio::test]
async fn duplicates_in_batches_on_sqlite_with_the_queue() {
    duplicates_in_batches(StoreKind::Sqlite, SourceSort::Queue).await;
}

/// As `order.rs` has it for one message a call.
#[tokio::test]
async fn a_key_that_waits_keeps_its_order() {
    let tables =
        "CREATE TABLE effects (number bigint GENERATED ALWAYS AS IDENTITY, id text, key text);";
    let handler = "lanes = 2\nretry = { attempts = 5, backoff = \"200ms\" }\norder_by = \"json:/steps/0/log/message\"";
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &script_batch(),
        tables,
        handler,
    )
    .await;
    let message = |key: &str, id: &str, fails_below: u32| {
        let steps = json!([
            { "log": { "level": "trace", "message": key } },
            {
                "execute": "INSERT INTO effects (id, key) VALUES ($1, $2)",
                "params": [{ "message": "id" }, { "message": "key" }],
            },
            { "if_attempt_below": fails_below, "steps": [{ "retry": { "reason": "later" } }] },
        ]);
        TestMessage::new(id, &json!({ "steps": steps }))
    };
    scene
        .publish(&[
            message("a", "a-1", 3),
            message("a", "a-2", 1),
            message("b", "b-1", 1),
            message("a", "a-3", 2),
            message("a", "a-4", 1),
        ])
        .await;
    scene.run_until_idle();
    let order = "SELECT string_agg(id, ' ' ORDER BY number) FROM effects WHERE key IS NOT NULL";
    assert_eq!(
        scene.store.text(order).await.unwrap(),
        "b-1 a-1 a-2 a-3 a-4"
    );
    assert_eq!(scene.status()["retried"], 3);
}
