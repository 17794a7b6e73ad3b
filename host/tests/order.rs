//! `order_by`: messages of one key run in the source's order, one at a time, also through retries, across hosts and restarts.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use hapax::store::StoreKind;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use support::scene::{Scene, SourceSort, TestMessage, script};

/// The key stands in the first step, which does nothing else.
const ORDER_BY: &str = "order_by = \"json:/steps/0/log/message\"";

fn message(key: &str, id: &str, steps: &[serde_json::Value]) -> TestMessage {
    let mut all = vec![json!({ "log": { "level": "trace", "message": key } })];
    all.extend_from_slice(steps);
    TestMessage::new(id, &json!({ "steps": all }))
}

/// Writes the message's id and key, in the order of running.
fn effect() -> serde_json::Value {
    json!({
        "execute": "INSERT INTO effects (id, key) VALUES ($1, $2)",
        "params": [{ "message": "id" }, { "message": "key" }],
    })
}

fn fails_below(attempt: u32) -> serde_json::Value {
    json!({ "if_attempt_below": attempt, "steps": [{ "retry": { "reason": "later" } }] })
}

async fn scene(kind: StoreKind, source: SourceSort, handler: &str) -> Scene {
    let number = match kind {
        StoreKind::Postgres => "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        StoreKind::Sqlite => "INTEGER PRIMARY KEY AUTOINCREMENT",
    };
    let tables = format!("CREATE TABLE effects (number {number}, id text, key text);");
    let handler = format!("{ORDER_BY}\n{handler}");
    Scene::new(kind, source, &script(), &tables, &handler).await
}

/// The ids of the messages that took effect, in their order.
async fn effects(scene: &Scene) -> Vec<String> {
    let count = scene.store.number("SELECT count(*) FROM effects").await;
    let mut ids = Vec::new();
    for offset in 0..count {
        let sql = format!("SELECT id FROM effects ORDER BY number LIMIT 1 OFFSET {offset}");
        ids.extend(scene.store.text(&sql).await);
    }
    ids
}

async fn followers_wait_behind_a_head_that_fails(kind: StoreKind, source: SourceSort) {
    for batch_max in [1, 50] {
        let handler = format!(
            "lanes = 1\nbatch = {{ max = {batch_max} }}\nretry = {{ attempts = 5, backoff = \"300ms\" }}"
        );
        let scene = scene(kind, source, &handler).await;
        let a = |n: u32| message("a", &format!("a-{n}"), &[effect()]);
        let messages = [
            message("a", "a-1", &[effect(), fails_below(3)]),
            a(2),
            message("b", "b-1", &[effect()]),
            a(3),
            message("", "none", &[effect()]),
            a(4),
        ];
        scene.publish(&messages).await;
        scene.run_until_idle();
        assert_eq!(
            effects(&scene).await,
            ["b-1", "none", "a-1", "a-2", "a-3", "a-4"],
            "batches of {batch_max}"
        );
        let keys = "SELECT count(*) FROM effects WHERE key = 'a' AND id LIKE 'a-%'";
        assert_eq!(scene.store.number(keys).await, 4);
        let unkeyed = "SELECT count(*) FROM effects WHERE key IS NULL OR key = ''";
        assert_eq!(scene.store.number(unkeyed).await, 1);
        assert_eq!(scene.count("attempts", "1 = 1").await, 0);
        assert_eq!(scene.count("dead_letters", "1 = 1").await, 0);
        assert_eq!(scene.status()["retried"], 2);
    }
}

#[tokio::test]
async fn followers_wait_behind_a_head_that_fails_on_postgres_with_the_queue() {
    followers_wait_behind_a_head_that_fails(StoreKind::Postgres, SourceSort::Queue).await;
}

#[tokio::test]
async fn followers_wait_behind_a_head_that_fails_on_sqlite_with_the_queue() {
    followers_wait_behind_a_head_that_fails(StoreKind::Sqlite, SourceSort::Queue).await;
}

#[tokio::test]
async fn followers_wait_behind_a_head_that_fails_on_postgres_with_jetstream() {
    followers_wait_behind_a_head_that_fails(StoreKind::Postgres, SourceSort::JetStream).await;
}

async fn a_dead_head_lets_its_key_go_on(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, "retry = { attempts = 2, backoff = \"50ms\" }").await;
    let messages = [
        message("a", "a-1", &[effect(), json!({ "reject": "no" })]),
        message("a", "a-2", &[effect(), fails_below(9)]),
        message("a", "a-3", &[effect()]),
    ];
    scene.publish(&messages).await;
    scene.run_until_idle();
    assert_eq!(effects(&scene).await, ["a-3"]);
    let dead = scene.count("dead_letters", "order_key = 'a'").await;
    assert_eq!(dead, 2);
    assert_eq!(scene.count("attempts", "1 = 1").await, 0);
}

#[tokio::test]
async fn a_dead_head_lets_its_key_go_on_on_postgres_with_the_queue() {
    a_dead_head_lets_its_key_go_on(StoreKind::Postgres, SourceSort::Queue).await;
}

#[tokio::test]
async fn a_dead_head_lets_its_key_go_on_on_sqlite_with_the_queue() {
    a_dead_head_lets_its_key_go_on(StoreKind::Sqlite, SourceSort::Queue).await;
}

#[tokio::test]
async fn a_dead_head_lets_its_key_go_on_on_postgres_with_jetstream() {
    a_dead_head_lets_its_key_go_on(StoreKind::Postgres, SourceSort::JetStream).await;
}

async fn a_dead_head_holds_its_key(kind: StoreKind) {
    let scene = scene(kind, SourceSort::Queue, "on_dead = \"hold\"").await;
    let messages = [
        message("a", "a-1", &[effect(), json!({ "reject": "no" })]),
        message("a", "a-2", &[effect()]),
        message("b", "b-1", &[effect()]),
        message("a", "a-3", &[effect()]),
    ];
    scene.publish(&messages).await;
    let mut host = scene.host(&["--until-idle"], &[]);
    host.wait_until_ready();
    let queue = scene.store.table("queue");
    // The followers were put off: so they were looked at, behind the dead letter.
    let held = format!("SELECT count(*) FROM {queue} WHERE order_key = 'a'");
    let started = Instant::now();
    while scene.store.number(&held).await < 2 || effects(&scene).await.is_empty() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "nothing is held"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(effects(&scene).await, ["b-1"]);
    let letters = scene.store.table("dead_letters");
    scene
        .store
        .probe()
        .await
        .run(&format!("DELETE FROM {letters}"))
        .await;
    host.wait_well();
    assert_eq!(effects(&scene).await, ["b-1", "a-2", "a-3"]);
}

#[tokio::test]
async fn a_dead_head_holds_its_key_on_postgres() {
    a_dead_head_holds_its_key(StoreKind::Postgres).await;
}

#[tokio::test]
async fn a_dead_head_holds_its_key_on_sqlite() {
    a_dead_head_holds_its_key(StoreKind::Sqlite).await;
}

/// The consumer's messages are far apart in the stream, and those of a host that died are delivered again to the next.
#[tokio::test]
async fn what_lies_between_a_consumers_messages_holds_nothing_up() {
    let scene = scene(StoreKind::Postgres, SourceSort::JetStream, "lanes = 1").await;
    let url = scene.nats.as_ref().unwrap().url();
    let jetstream = async_nats::jetstream::new(async_nats::connect(url).await.unwrap());
    for n in 1..=4 {
        for _ in 0..3 {
            let others = jetstream.publish("messages.others", "x".into()).await;
            others.unwrap().await.unwrap();
        }
        scene
            .publish(&[message("a", &format!("a-{n}"), &[effect()])])
            .await;
    }
    let subjects = ("HAPAX_SOURCES__MESSAGES__SUBJECTS", "[\"messages.test\"]");
    for point in ["before-ack:1", "before-commit:1"] {
        let host = scene.host(&["--until-idle"], &[subjects, ("HAPAX_FAULT_POINT", point)]);
        let (status, said) = host.wait();
        assert_eq!(status.signal(), Some(9), "{status}; the host said:\n{said}");
    }
    scene.host(&["--until-idle"], &[subjects]).wait_well();
    assert_eq!(effects(&scene).await, ["a-1", "a-2", "a-3", "a-4"]);
    assert_eq!(scene.pending().await, 0);
}

const KEYS: usize = 100;
const VERSIONS: u64 = 100;
const ACK_WAIT: Duration = Duration::from_secs(2);

/// Every version of every key, mixed at random, those of one key in their order.
fn versions(random: &mut rand::rngs::StdRng) -> Vec<TestMessage> {
    let mut keys: Vec<usize> = (0..KEYS)
        .flat_map(|key| std::iter::repeat_n(key, usize::try_from(VERSIONS).unwrap()))
        .collect();
    keys.shuffle(random);
    let mut last = vec![0_u64; KEYS];
    keys.into_iter()
        .map(|key| {
            last[key] += 1;
            let version = last[key];
            let step = json!({
                "execute": "UPDATE versions SET version = version + 1 WHERE key = $1 AND version = $2",
                "params": [{ "int64": key }, { "int64": version - 1 }],
                "expect_count": 1,
            });
            message(&format!("k{key}"), &format!("{key}:{version}"), &[step])
        })
        .collect()
}

/// One transaction of the record: which versions of which keys were called in it, in their order.
#[derive(Debug, Default)]
struct Transaction {
    calls: Vec<(usize, u64)>,
    is_committed: bool,
}

/// Fails if any call, rolled back or not, was for another version than the next of its key. The baton lets one transaction
/// at a time call the handler, so the record's order is the order of running.
fn check_record(record: &str) -> usize {
    let mut transactions: Vec<Transaction> = Vec::new();
    let mut names: HashMap<&str, usize> = HashMap::new();
    for line in record.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let index = *names.entry(words[1]).or_insert_with(|| {
            transactions.push(Transaction::default());
            transactions.len() - 1
        });
        match words[..] {
            ["call", _, id, _] => {
                assert_eq!(
                    index,
                    transactions.len() - 1,
                    "two transactions at once: {line}"
                );
                let (key, version) = id.split_once(':').unwrap();
                let call = (key.parse().unwrap(), version.parse().unwrap());
                transactions[index].calls.push(call);
            }
            ["commit", _] => transactions[index].is_committed = true,
            _ => panic!("{line}"),
        }
    }
    let mut committed = vec![0_u64; KEYS];
    let mut calls = 0;
    for transaction in &transactions {
        let mut now = committed.clone();
        for (key, version) in &transaction.calls {
            calls += 1;
            now[*key] += 1;
            assert_eq!(now[*key], *version, "key {key} in {transaction:?}");
        }
        if transaction.is_committed {
            committed = now;
        }
    }
    assert!(
        committed.iter().all(|version| *version == VERSIONS),
        "{committed:?}"
    );
    calls
}

async fn every_key_in_its_order(source: SourceSort) {
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let rows: Vec<String> = (0..KEYS).map(|key| format!("({key}, 0)")).collect();
    let tables = format!(
        "CREATE TABLE versions (key bigint PRIMARY KEY, version bigint NOT NULL);\n\
         INSERT INTO versions (key, version) VALUES {};",
        rows.join(", ")
    );
    let handler = format!(
        "{ORDER_BY}\nretry = {{ attempts = 100, backoff = \"20ms..100ms\" }}\nbatch = {{ max = 50 }}"
    );
    let scene = Scene::new(StoreKind::Postgres, source, &script(), &tables, &handler).await;
    scene.publish(&versions(&mut random)).await;

    let record = scene.folder().join("calls");
    let record_name = record.display().to_string();
    let fails = format!("0.02:{}", random.random::<u64>());
    let start = |fault: Option<&str>| {
        let mut variables = vec![
            ("HAPAX_FAULT_RETRY", fails.as_str()),
            ("HAPAX_FAULT_CALLS", record_name.as_str()),
        ];
        variables.extend(fault.map(|fault| ("HAPAX_FAULT_POINT", fault)));
        scene.host(&["--until-idle"], &variables)
    };
    let killed = |host: support::host::Host| {
        let (status, said) = host.wait();
        assert_eq!(status.signal(), Some(9), "{status}; the host said:\n{said}");
    };
    let first = start(Some("before-commit:20"));
    let second = start(Some("after-commit:50"));
    killed(first);
    // Back before the ack wait of what the first had in hand is over.
    let third = start(Some("after-handler:1500"));
    killed(second);
    killed(third);
    if source == SourceSort::JetStream {
        // Not synchronisation: the next hosts are to come after the ack wait.
        tokio::time::sleep(ACK_WAIT + Duration::from_millis(500)).await;
    }
    assert!(scene.pending().await > 0, "nothing was left to do");
    let (fourth, fifth) = (start(None), start(None));
    fourth.wait_well();
    fifth.wait_well();

    let calls = check_record(&std::fs::read_to_string(&record).unwrap());
    assert!(
        calls > KEYS * usize::try_from(VERSIONS).unwrap(),
        "nothing failed"
    );
    // At least half of what was to fail: the counters are inexact after a kill.
    let retried = scene.status()["retried"].as_u64().unwrap();
    assert!(retried > 100, "{retried} retries");
    let whole = format!("SELECT count(*) FROM versions WHERE version = {VERSIONS}");
    let keys = i64::try_from(KEYS).unwrap();
    assert_eq!(scene.store.number(&whole).await, keys, "seed {seed}");
    assert_eq!(scene.count("dead_letters", "true").await, 0, "seed {seed}");
    assert_eq!(scene.count("attempts", "true").await, 0, "seed {seed}");
}

#[tokio::test]
async fn every_key_in_its_order_with_the_queue() {
    every_key_in_its_order(SourceSort::Queue).await;
}

#[tokio::test]
async fn every_key_in_its_order_with_jetstream() {
    every_key_in_its_order(SourceSort::JetStream).await;
}
