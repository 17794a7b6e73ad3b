//! Messages whose handler takes all that it can get: each fails for the reason that it gave, and the host stays small.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test may stop at once, and tells what it measured"
)]

mod support;

use hapax::store::StoreKind;
use serde_json::{Value, json};
use support::host::Host;
use support::scene::{Scene, SourceSort, TestMessage, script};

/// What one call may use by its limits: memory, a result, a host call; in KiB.
const BUDGETS_KIB: u64 = (64 + 16 + 16) << 10;
/// What the host may use beside that. What it only keeps of floods that are over would exceed it.
const MARGIN_KIB: u64 = 32 << 10;

/// The most memory that the process has had, in KiB.
fn peak_kib(host: &Host) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.pid())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// What a message does, and what its dead letter's reason names.
fn floods(kind: StoreKind) -> Vec<(&'static str, Value, &'static str)> {
    let many_rows = match kind {
        StoreKind::Postgres => "SELECT 1 FROM generate_series(1, 2000000)",
        StoreKind::Sqlite => {
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000) SELECT hex(zeroblob(50)) FROM n"
        }
    };
    let large_rows = match kind {
        StoreKind::Postgres => "SELECT repeat('x', 1000000) FROM generate_series(1, 100)",
        StoreKind::Sqlite => {
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT hex(zeroblob(500000)) FROM n"
        }
    };
    let cursors = (1..=17)
        .map(|number| json!({"open_cursor": {"name": number.to_string(), "statement": "SELECT 1"}}))
        .collect();
    vec![
        ("memory", json!([{"alloc": 300 << 20}]), "limit `memory`"),
        ("rows", json!([{"query": many_rows}]), "limit.rows"),
        ("bytes", json!([{"query": large_rows}]), "limit.bytes"),
        (
            "call",
            json!([{"query": "SELECT $1", "params": [{"long_text": {"repeat": "x", "times": 20_000_000}}]}]),
            "limit `call`",
        ),
        (
            "outbox",
            json!([{"repeat": 1_001, "steps": [{"publish": {"subject": "a", "payload": {"repeat": "x", "times": 1000}}}]}]),
            "limit.outbox",
        ),
        (
            "statements",
            json!([{"repeat": 501, "steps": [{"query": "SELECT 1"}]}]),
            "limit.statements",
        ),
        (
            "savepoints",
            json!([{"repeat": 65, "steps": [{"savepoint": "leak", "steps": []}]}]),
            "limit.savepoints",
        ),
        ("cursors", Value::Array(cursors), "limit.cursors"),
        ("stack", json!([{"recurse": true}]), "wasm trap: "),
        ("cpu", json!([{"loop": true}]), "limit `cpu`"),
    ]
}

async fn each_flood_fails_alone_and_the_host_stays_small(kind: StoreKind) {
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        "CREATE TABLE notes (key text PRIMARY KEY, value text);",
        "lanes = 1\nretry = { attempts = 1, backoff = \"10ms\" }\nlimits = { cpu = \"3s\", time = \"60s\", statements = 500 }",
    )
    .await;
    let note = |key: &str| {
        let insert = "INSERT INTO notes (key, value) VALUES ($1, 'v')";
        TestMessage::new(
            key,
            &json!({"steps": [{"execute": insert, "params": [{"message": "id"}]}]}),
        )
    };
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    let mut probe = scene.store.probe().await;
    let notes = "SELECT count(*) FROM notes";
    scene.publish(&[note("first")]).await;
    probe.wait_for(notes, 1).await;
    let before = peak_kib(&host);

    let log = json!({"steps": [
        {"repeat": 2_000, "steps": [{"log": {"message": {"repeat": "x", "times": 1000}}}]},
    ]});
    let mut sent = vec![TestMessage::new("log", &log)];
    for (name, steps, _) in floods(kind) {
        sent.push(TestMessage::new(name, &json!({"steps": steps})));
        sent.push(note(&format!("after-{name}")));
    }
    scene.publish(&sent).await;
    let count = i64::try_from(floods(kind).len()).unwrap();
    probe.wait_for(notes, 1 + count).await;
    let letters = scene.store.table("dead_letters");
    probe
        .wait_for(&format!("SELECT count(*) FROM {letters}"), count)
        .await;
    for (name, _, reason) in floods(kind) {
        let found = probe
            .text(&format!(
                "SELECT reason FROM {letters} WHERE message_id = '{name}'"
            ))
            .await
            .unwrap();
        assert!(found.contains(reason), "{name}: {found}");
    }
    let grown = peak_kib(&host) - before;
    host.terminate();
    let said = host.wait_well();
    assert!(
        said.contains("the handler logged more than is kept of one call"),
        "{said}"
    );
    assert!(
        grown <= BUDGETS_KIB + MARGIN_KIB,
        "the host grew by {grown} KiB"
    );
    eprintln!("the host grew by {} MiB at its peak", grown >> 10);
}

#[tokio::test]
async fn each_flood_fails_alone_on_sqlite() {
    each_flood_fails_alone_and_the_host_stays_small(StoreKind::Sqlite).await;
}

#[tokio::test]
async fn each_flood_fails_alone_on_postgres() {
    each_flood_fails_alone_and_the_host_stays_small(StoreKind::Postgres).await;
}
