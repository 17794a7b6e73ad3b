//! What commits late is not passed over, and rows of a key leave in order.

use std::collections::BTreeMap;

use hapax::store::StoreKind;
use serde_json::json;

use crate::TABLES;
use crate::receiver::{Receiver, bytes, insert};
use crate::support::scene::{Scene, SourceSort, script};

#[tokio::test]
async fn a_transaction_that_commits_late_is_not_passed_over_and_delays_nobody() {
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
    // An early one that stays open; it has the smaller number and, in a second transaction, the same key as a later one.
    let mut early = scene.store.probe().await;
    early
        .run(&format!(
            "BEGIN; {}",
            insert(&scene, "early", Some("k"), "out.a")
        ))
        .await;
    let mut locked = scene.store.probe().await;
    let mut later = scene.store.probe().await;
    later
        .run(&insert(&scene, "locked", None, "out.missing"))
        .await;
    let table = scene.store.table("outbox");
    locked
        .run(&format!(
            "BEGIN; SELECT 1 FROM {table} WHERE id = 'locked' FOR UPDATE"
        ))
        .await;
    // Only now: a host that runs already could send the row before it is locked.
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    for id in ["one", "two", "three"] {
        later
            .run(&insert(&scene, id, (id != "one").then_some("k"), "out.a"))
            .await;
    }
    receiver.wait_for_stored(3).await;
    early.run("COMMIT").await;
    locked.run("ROLLBACK").await;
    receiver.wait_for_stored(5).await;
    let ids: Vec<String> = receiver
        .messages()
        .await
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    assert!(
        ids[3..].contains(&"early".to_owned()) && ids[3..].contains(&"locked".to_owned()),
        "{ids:?}"
    );
    host.terminate();
    host.wait_well();
}

/// 50 keys with 50 rows each, two hosts, one of which is killed and started again and again.
async fn keys_keep_their_order(kind: StoreKind, rounds: usize) {
    const KEYS: i64 = 50;
    const ROWS: i64 = 50;
    let receiver = Receiver::start().await;
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        TABLES,
        &format!("{}\n[outbox]\nbatch = 60\n", receiver.target()),
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let mut sql = String::from("BEGIN; ");
    let table = scene.store.table("outbox");
    for n in 0..KEYS * ROWS {
        let (key, row) = (n % KEYS, n / KEYS);
        let payload = bytes(&scene, &json!({ "key": key, "row": row }).to_string());
        sql.push_str(&format!(
            "INSERT INTO {table} (id, consumer, message_id, ordinal, target, subject, key, headers, payload) \
             VALUES ('{key}-{row}', 'subject', '{n}', 0, 'out', 'out.a', 'k{key}', '[]', {payload}); "
        ));
    }
    sql.push_str("COMMIT");
    scene.store.probe().await.run(&sql).await;

    let mut steady = scene.host(&[], &[]);
    steady.wait_until_ready();
    let all = (KEYS * ROWS) as u64;
    for round in 1..=rounds {
        let dying = scene.host(&[], &[("HAPAX_FAULT_POINT", "relay-before-mark:2")]);
        let wanted = all * round as u64 / (rounds as u64 + 1);
        receiver.wait_for_stored(wanted).await;
        // It may have killed itself already.
        dying.kill();
        dying.wait();
    }
    receiver.wait_for_stored(all).await;
    steady.terminate();
    steady.wait_well();

    let mut next: BTreeMap<i64, i64> = BTreeMap::new();
    for (_, body) in receiver.messages().await {
        let (key, row) = (body["key"].as_i64().unwrap(), body["row"].as_i64().unwrap());
        let expected = next.entry(key).or_insert(0);
        assert_eq!(row, *expected, "key {key}");
        *expected += 1;
    }
    assert!(next.len() as i64 == KEYS && next.values().all(|count| *count == ROWS));
    assert_eq!(receiver.stored().await, all);
}

#[tokio::test]
async fn keys_keep_their_order_on_postgres() {
    keys_keep_their_order(StoreKind::Postgres, 4).await;
}

#[tokio::test]
async fn keys_keep_their_order_on_sqlite() {
    keys_keep_their_order(StoreKind::Sqlite, 2).await;
}
