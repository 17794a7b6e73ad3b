//! Tables that change while a host has statements on them prepared.

use hapax::store::StoreKind;
use serde_json::json;

use crate::daemon::{assert_done, effect, message, scene};
use crate::support::scene::TestMessage;

on_both_databases! {
    a_column_that_is_added_costs_no_message_an_attempt
    columns_without_rows_follow_the_table
}

/// No room for a charge: a message that fails once is dead.
const STRICT: &str = "retry = { attempts = 1, backoff = \"10ms\" }";

const TABLE: &str = "CREATE TABLE things (a bigint, b text); INSERT INTO things VALUES (1, 'x');";

fn reads(id: &str, columns: &[&str]) -> TestMessage {
    message(
        id,
        json!([
            effect(),
            { "query": "SELECT * FROM things", "expect_columns": columns, "expect_count": 1 },
            { "cursor": "SELECT * FROM things", "expect_columns": columns, "expect_count": 1 },
            { "query": "SELECT * FROM things", "expect_columns": columns, "expect_count": 1 },
        ]),
    )
}

async fn a_column_that_is_added_costs_no_message_an_attempt(kind: StoreKind) {
    let scene = scene(kind, TABLE, STRICT).await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    let mut columns = vec!["a", "b"];
    let mut ids = Vec::new();
    for round in 0..4 {
        let messages: Vec<TestMessage> = (0..40)
            .map(|number| {
                ids.push(format!("{round}-{number}"));
                reads(ids.last().unwrap(), &columns)
            })
            .collect();
        scene.publish(&messages).await;
        scene.wait_until_nothing_pends().await;
        let added = ["c", "d", "e", "f"][round];
        scene
            .store
            .run(&format!(
                "ALTER TABLE things ADD COLUMN {added} text DEFAULT 'new'"
            ))
            .await;
        columns.push(added);
    }
    host.terminate();
    let log = host.wait_well();
    assert_eq!(scene.count("dead_letters", "1 = 1").await, 0, "{log}");
    assert_eq!(scene.count("attempts", "1 = 1").await, 0, "{log}");
    for id in ids {
        assert_done(&scene, &id).await;
    }
    // It is no outage.
    assert!(!log.contains("paused"), "{log}");
}

async fn columns_without_rows_follow_the_table(kind: StoreKind) {
    let scene = scene(kind, "CREATE TABLE things (a bigint, b text);", STRICT).await;
    let reads = |id: &str, columns: &[&str]| {
        message(
            id,
            json!([
                effect(),
                { "query": "SELECT * FROM things", "expect_columns": columns, "expect_count": 0 },
                { "query": "SELECT * FROM things", "expect_columns": columns, "expect_count": 0 },
            ]),
        )
    };
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    scene.publish(&[reads("before", &["a", "b"])]).await;
    scene.wait_until_nothing_pends().await;
    scene
        .store
        .run("ALTER TABLE things ADD COLUMN c text")
        .await;
    scene.publish(&[reads("after", &["a", "b", "c"])]).await;
    scene.wait_until_nothing_pends().await;
    host.terminate();
    let log = host.wait_well();
    assert_eq!(scene.count("dead_letters", "1 = 1").await, 0, "{log}");
    assert_done(&scene, "before").await;
    assert_done(&scene, "after").await;
}
