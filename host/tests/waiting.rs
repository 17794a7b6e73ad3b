//! Messages that wait long for a retry are in nobody's way, and come again when they are due, also over a restart.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use hapax::store::StoreKind;
use serde_json::json;
use support::scene::{Scene, SourceSort, TestMessage, script};

const TABLES: &str = "CREATE TABLE effects (id text NOT NULL, attempt bigint NOT NULL);";
const FIVE_MINUTES: u64 = 5 * 60 * 1_000;

fn effect() -> serde_json::Value {
    json!({
        "execute": "INSERT INTO effects (id, attempt) VALUES ($1, $2)",
        "params": [{ "message": "id" }, { "message": "attempt" }],
    })
}

/// Fails once, and asks for five minutes.
fn failing(number: usize) -> TestMessage {
    let retry = json!({ "retry": { "reason": "not yet", "delay_ms": FIVE_MINUTES } });
    let steps = json!({ "steps": [{ "if_attempt_below": 2, "steps": [retry] }, effect()] });
    TestMessage::new(format!("late-{number}"), &steps)
}

fn good(number: usize) -> TestMessage {
    TestMessage::new(format!("good-{number}"), &json!({ "steps": [effect()] }))
}

/// One failing message before every `per_failing` good ones.
async fn failing_messages_are_in_nobodys_way(
    kind: StoreKind,
    source: SourceSort,
    failing_count: usize,
    per_failing: usize,
) {
    let scene = Scene::new(
        kind,
        source,
        &script(),
        TABLES,
        "retry = { attempts = 3, backoff = \"10ms\" }",
    )
    .await;
    let messages: Vec<TestMessage> = (0..failing_count)
        .flat_map(|number| {
            std::iter::once(failing(number))
                .chain((0..per_failing).map(move |more| good(number * per_failing + more)))
        })
        .collect();
    scene.publish(&messages).await;
    let good_count = i64::try_from(failing_count * per_failing).unwrap();
    let failing_count = i64::try_from(failing_count).unwrap();

    let queue = scene.store.table("queue");
    let attempts = scene.store.table("attempts");
    let later = match kind {
        StoreKind::Postgres => "due_at > now() + interval '4 minutes'",
        StoreKind::Sqlite => "julianday(due_at) > julianday('now', '4 minutes')",
    };
    let waiting = format!("SELECT count(*) FROM {queue} WHERE {later}");
    let mut probe = scene.store.probe().await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    probe
        .wait_for("SELECT count(*) FROM effects", good_count)
        .await;
    probe.wait_for(&waiting, failing_count).await;
    probe
        .wait_for(&format!("SELECT count(*) FROM {attempts}"), failing_count)
        .await;
    assert_eq!(
        probe.number(&format!("SELECT count(*) FROM {queue}")).await,
        failing_count
    );

    // Half of them are due now: the clock that counts is the database's, so moving their time is as good as waiting.
    let due = |condition: &str| {
        let now = match kind {
            StoreKind::Postgres => "now()",
            StoreKind::Sqlite => "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
        };
        format!("UPDATE {queue} SET due_at = {now} WHERE {condition}")
    };
    probe.run(&due("number % 2 = 0")).await;
    let half = probe
        .number(&format!(
            "SELECT count(*) FROM {queue} WHERE number % 2 = 1"
        ))
        .await;
    probe
        .wait_for(
            "SELECT count(*) FROM effects",
            good_count + failing_count - half,
        )
        .await;
    host.terminate();
    host.wait_well();

    // The others are due while no host runs.
    assert_eq!(
        probe.number(&waiting).await,
        half,
        "what waits outlives its host"
    );
    probe.run(&due("1 = 1")).await;
    scene.run_until_idle();
    let late = "SELECT count(*) FROM effects WHERE id LIKE 'late-%' AND attempt = 2";
    assert_eq!(probe.number(late).await, failing_count);
    assert_eq!(
        probe.number("SELECT count(DISTINCT id) FROM effects").await,
        good_count + failing_count
    );
    assert_eq!(
        probe.number("SELECT count(*) FROM effects").await,
        good_count + failing_count
    );
    assert_eq!(scene.count("dead_letters", "1 = 1").await, 0);
    assert_eq!(scene.count("attempts", "1 = 1").await, 0);
    assert_eq!(scene.pending().await, 0);
}

#[tokio::test]
async fn failing_messages_are_in_nobodys_way_on_postgres_with_jetstream() {
    failing_messages_are_in_nobodys_way(StoreKind::Postgres, SourceSort::JetStream, 1_000, 10)
        .await;
}

#[tokio::test]
async fn failing_messages_are_in_nobodys_way_on_postgres_with_the_queue() {
    failing_messages_are_in_nobodys_way(StoreKind::Postgres, SourceSort::Queue, 200, 10).await;
}

#[tokio::test]
async fn failing_messages_are_in_nobodys_way_on_sqlite_with_the_queue() {
    failing_messages_are_in_nobodys_way(StoreKind::Sqlite, SourceSort::Queue, 200, 10).await;
}
