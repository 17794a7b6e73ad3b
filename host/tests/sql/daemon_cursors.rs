//! Cursors through the daemon.

use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::daemon::{QUICK, assert_dead, assert_done, effect, message, notes, savepoint, scene};

on_both_databases! {
    portions_with_other_calls_between_them
    what_ends_a_cursor_and_what_does_not
    cursors_that_are_left_open_end_with_the_call
    what_is_refused_says_why
    three_hundred_thousand_rows_in_little_memory
}

fn open(name: &str, statement: &str) -> Value {
    json!({ "open_cursor": { "name": name, "statement": statement } })
}

fn fetch(name: &str, count: u32, expected: &[i64]) -> Value {
    let rows: Vec<Value> = expected
        .iter()
        .map(|number| json!([{ "int64": number }]))
        .collect();
    json!({ "fetch_cursor": name, "fetch": count, "expect_rows": rows })
}

/// `numbers` with 1 to `count`.
fn numbers(count: u32) -> String {
    format!(
        "CREATE TABLE numbers (n bigint PRIMARY KEY);
         WITH RECURSIVE s (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {count})
         INSERT INTO numbers SELECT i FROM s;"
    )
}

async fn portions_with_other_calls_between_them(kind: StoreKind) {
    let scene = scene(kind, &numbers(5), QUICK).await;
    scene
        .publish(&[message(
            "m",
            json!([
                effect(),
                { "open_cursor": { "name": "a", "statement": "SELECT n FROM numbers WHERE n > $1 ORDER BY n" },
                  "params": [{ "int64": 1 }] },
                fetch("a", 2, &[2, 3]),
                { "execute": "DELETE FROM numbers WHERE n = 4", "expect_count": 1 },
                open("b", "SELECT n FROM numbers ORDER BY n DESC"),
                fetch("b", 1, &[5]),
                fetch("a", 10, &[4, 5]),
                fetch("a", 10, &[]),
                fetch("a", 10, &[]),
                { "drop_cursor": "a" },
                fetch("b", 10, &[3, 2, 1]),
                { "cursor": "SELECT n FROM numbers ORDER BY n", "fetch": 3, "expect_columns": ["n"],
                  "expect_rows": [[{ "int64": 1 }], [{ "int64": 2 }], [{ "int64": 3 }], [{ "int64": 5 }]] },
                { "cursor": "SELECT n FROM numbers WHERE n = 0", "expect_columns": ["n"], "expect_rows": [] },
                { "sum_cursor": "SELECT n FROM numbers", "expect_count": 11 },
            ]),
        )])
        .await;
    scene.run_until_idle();
    assert_done(&scene, "m").await;
    assert_eq!(scene.store.number("SELECT count(*) FROM numbers").await, 4);
}

async fn what_ends_a_cursor_and_what_does_not(kind: StoreKind) {
    let scene = scene(kind, &numbers(5), QUICK).await;
    let all = "SELECT n FROM numbers ORDER BY n";
    let ended = |name: &str| json!({ "fetch_cursor": name, "expect_error": "cursor.ended" });
    scene
        .publish(&[message(
            "m",
            json!([
                effect(),
                open("before", all),
                savepoint("rollback", json!([open("within", all), fetch("within", 1, &[1]), fetch("before", 1, &[1])])),
                ended("within"),
                fetch("before", 1, &[2]),
                savepoint("release", json!([open("kept", all), fetch("kept", 1, &[1])])),
                fetch("kept", 1, &[2]),
                // An error, and what was open before its savepoint.
                savepoint("rollback", json!([
                    { "execute": "INSERT INTO notes (key) VALUES ('taken')", "swallow": true },
                    { "fetch_cursor": "before", "expect_error": "aborted" },
                    { "drop_cursor": "kept" },
                ])),
                fetch("before", 1, &[3]),
                savepoint("drop", json!([open("dropped", all)])),
                ended("dropped"),
                { "drop_cursor": "dropped" },
            ]),
        )])
        .await;
    scene.run_until_idle();
    assert_done(&scene, "m").await;
    assert_eq!(notes(&scene).await, "taken");
}

/// All messages are one transaction: what one has left open must not count against the next.
async fn cursors_that_are_left_open_end_with_the_call(kind: StoreKind) {
    // However long it takes, the batch is not cut.
    let handler = format!("{QUICK}\nbatch = {{ max_hold = \"60s\" }}");
    let scene = scene(kind, &numbers(100), &handler).await;
    let leaves = |id: &str| {
        let mut steps = vec![effect()];
        for number in 0..16 {
            steps.push(open(
                &format!("c{number}"),
                "SELECT n FROM numbers ORDER BY n",
            ));
            steps.push(fetch(&format!("c{number}"), 2, &[1, 2]));
        }
        steps.push(json!({ "open_cursor": { "name": "more", "statement": "SELECT 1" }, "expect_error": "limit.cursors" }));
        steps.push(json!({ "drop_cursor": "c0" }));
        steps.push(open("again", "SELECT n FROM numbers ORDER BY n"));
        message(id, Value::Array(steps))
    };
    let ids = ["a", "b", "c", "d"];
    scene.publish(&ids.map(leaves)).await;
    scene.run_until_idle();
    for id in ids {
        assert_done(&scene, id).await;
    }
    // Otherwise the batch would have been taken apart, and each would have run well alone.
    assert_eq!(scene.status()["rolled_back"], json!(0));
}

async fn what_is_refused_says_why(kind: StoreKind) {
    let scene = scene(kind, &numbers(3), QUICK).await;
    let refused = |statement: &str, code: &str| json!({ "open_cursor": { "name": "x", "statement": statement }, "expect_error": code });
    scene
        .publish(&[
            message(
                "m",
                json!([
                    effect(),
                    refused("COMMIT", "denied.statement"),
                    refused("SELECT 1; SELECT 2", "denied.statement"),
                    refused("DELETE FROM numbers RETURNING n", "denied.cursor"),
                    refused("SELECT n FROM numbers WHERE n = $1", "params.count"),
                    open("a", "SELECT n FROM numbers ORDER BY n"),
                    { "fetch_cursor": "a", "fetch": 0, "expect_error": "invalid.max-rows" },
                    fetch("a", 1, &[1]),
                ]),
            ),
            message(
                "swallows",
                json!([effect(), { "cursor": "SELECT nope FROM numbers", "swallow": true }]),
            ),
        ])
        .await;
    scene.run_until_idle();
    assert_done(&scene, "m").await;
    assert_dead(&scene, "swallows", "aborted").await;
    assert_eq!(scene.store.number("SELECT count(*) FROM numbers").await, 3);
}

/// In all they have about 30 MB as text, and more than three times as many as values in memory.
async fn three_hundred_thousand_rows_in_little_memory(kind: StoreKind) {
    const MEBIBYTE: u64 = 1 << 20;
    let handler = format!(
        "{QUICK}\nlimits = {{ memory = \"4MiB\", cpu = \"60s\", time = \"120s\", rows = 1000 }}"
    );
    let tables = "CREATE TABLE wide (n bigint, t text);
         WITH RECURSIVE s (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 300000)
         INSERT INTO wide SELECT i, 'a text of about a hundred bytes, so that all rows together are much more than the limit ' || i FROM s;";
    let scene = scene(kind, tables, &handler).await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    scene
        .publish(&[message(
            "warm",
            json!([effect(), { "cursor": "SELECT n, t FROM wide WHERE n < 3" }]),
        )])
        .await;
    scene.wait_until_nothing_pends().await;
    let before = host.peak_memory_bytes();
    scene
        .publish(&[
            message(
                "sums",
                json!([effect(), { "sum_cursor": "SELECT n, t FROM wide", "expect_count": 300_000_u64 * 300_001 / 2 }]),
            ),
            message(
                "counts",
                json!([
                    effect(),
                    open("a", "SELECT n, t FROM wide"),
                    // More than `limits.rows`, which is what comes then.
                    { "count_cursor": "a", "fetch": 1_000_000, "expect_count": 300_000 },
                ]),
            ),
        ])
        .await;
    scene.wait_until_nothing_pends().await;
    let grown = host.peak_memory_bytes() - before;
    host.terminate();
    host.wait_well();
    assert_done(&scene, "sums").await;
    assert_done(&scene, "counts").await;
    eprintln!("the host's peak grew by {} KiB", grown >> 10);
    assert!(grown < 24 * MEBIBYTE, "{} MiB", grown / MEBIBYTE);
}
