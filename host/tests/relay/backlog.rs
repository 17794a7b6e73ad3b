//! Rows of which there are many, or for which it is too early or too late.

use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::TABLES;
use crate::receiver::Receiver;
use crate::support::scene::{Scene, SourceSort, TestMessage, script};

/// Nothing leaves before its time; what has left goes after a while.
async fn times(kind: StoreKind) {
    let receiver = Receiver::start().await;
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        TABLES,
        &format!("{}\n[outbox]\nkeep = \"0s\"\n", receiver.target()),
    )
    .await;
    let far = json!({ "seconds": 4_102_444_800_i64, "nanoseconds": 0 });
    let publish = |key: Option<&str>, not_before: Option<&Value>| json!({ "publish": { "subject": "out.a", "key": key, "payload": "{}", "not_before": not_before } });
    scene
        .publish(&[TestMessage::new(
            "m",
            &json!({ "steps": [publish(None, Some(&far)), publish(Some("k"), Some(&far)), publish(Some("k"), None), publish(None, None)] }),
        )])
        .await;
    // What is for later is for a later start.
    scene.run_until_idle();
    assert_eq!(receiver.stored().await, 1);
    assert_eq!(scene.count("outbox", "published_at IS NULL").await, 3);
    assert_eq!(scene.status()["outbox"]["unpublished"], 3);
    let table = scene.store.table("outbox");
    scene
        .store
        .run(&format!("UPDATE {table} SET due_at = created_at"))
        .await;
    scene.run_until_idle();
    assert_eq!(receiver.stored().await, 4);
    // Each start looks for what may go.
    scene.run_until_idle();
    assert_eq!(scene.count("outbox", "1 = 1").await, 0);
}

#[tokio::test]
async fn times_on_postgres() {
    times(StoreKind::Postgres).await;
}

#[tokio::test]
async fn times_on_sqlite() {
    times(StoreKind::Sqlite).await;
}

/// A backlog is found by index: the table is never read as a whole, and rows behind a waiting one are not read again and again.
#[tokio::test]
async fn a_backlog_is_drained_by_index() {
    let rows = if std::env::var_os("HAPAX_TEST_FULL").is_some() {
        10_000_000
    } else {
        100_000
    };
    let receiver = Receiver::start().await;
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &script(),
        TABLES,
        &receiver.target(),
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let fill = |what: &str, count: i64, key: &str, due: &str| {
        format!(
            "INSERT INTO hapax.outbox (id, consumer, message_id, ordinal, target, subject, key, headers, payload, due_at, published_at) \
             SELECT '{what}-' || n, 'subject', 'm', 0, 'out', 'out.a', {key}, '[]', '{{}}', {due}, \
                 CASE WHEN '{what}' = 'gone' THEN now() END FROM generate_series(1, {count}) n"
        )
    };
    // Published ones, one key whose first row waits, and rows without a key.
    scene.store.run(&fill("gone", rows, "NULL", "now()")).await;
    scene
        .store
        .run(&fill(
            "behind",
            rows,
            "'k'",
            "now() + CASE WHEN n = 1 THEN interval '1 day' ELSE interval '0' END",
        ))
        .await;
    scene.store.run(&fill("free", 5_000, "NULL", "now()")).await;
    scene.store.run("ANALYZE hapax.outbox").await;
    let reads = "SELECT (SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'outbox') * 1000000000 \
                     + (SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'outbox_keys')";
    let before = scene.store.number(reads).await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    receiver.wait_for_stored(5_000).await;
    host.terminate();
    host.wait_well();
    // The statistics come with the end of the host's sessions: before they say what it read for certain, they say nothing.
    scene
        .store
        .probe()
        .await
        .wait_for(
            "SELECT count(*) FROM pg_stat_user_indexes WHERE indexrelname = 'outbox_targets' AND idx_tup_read >= 5000",
            1,
        )
        .await;
    let read = scene.store.number(reads).await - before;
    assert!(
        read < 10_000,
        "{} scans, {} rows of keys read",
        read / 1_000_000_000,
        read % 1_000_000_000
    );
    assert_eq!(receiver.stored().await, 5_000);
}

/// Many rows wait for a target that is away; those of another target, which came later, are found without reading them.
#[tokio::test]
async fn rows_of_a_target_that_is_away_cost_the_others_nothing() {
    const AWAY: i64 = 100_000;
    const HERE: i64 = 2_000;
    let receiver = Receiver::start().await;
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &script(),
        TABLES,
        &format!(
            "{}\n[targets.away]\nkind = \"jetstream\"\nurl = \"nats://127.0.0.1:1\"\n",
            receiver.target()
        ),
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    for (target, count) in [("away", AWAY), ("out", HERE)] {
        let fill = format!(
            "INSERT INTO hapax.outbox (id, consumer, message_id, ordinal, target, subject, headers, payload) \
             SELECT '{target}-' || n, 'subject', 'm', 0, '{target}', 'out.a', '[]', '{{}}' FROM generate_series(1, {count}) n"
        );
        scene.store.run(&fill).await;
    }
    scene.store.run("ANALYZE hapax.outbox").await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    receiver.wait_for_stored(HERE as u64).await;
    host.terminate();
    host.wait_well();
    // The statistics come with the end of the host's sessions.
    let read = "SELECT CAST(coalesce(sum(idx_tup_read), 0) AS bigint) FROM pg_stat_user_indexes WHERE relname = 'outbox'";
    let mut probe = scene.store.probe().await;
    probe
        .wait_for(&format!("SELECT count(*) WHERE ({read}) >= {HERE}"), 1)
        .await;
    let read = probe.number(read).await;
    assert!(read < AWAY, "{read} rows read");
}
