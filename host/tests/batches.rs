//! Many messages in one commit: a bad one costs only itself.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may stop at once, and prints its seed"
)]

mod support;

use hapax::store::StoreKind;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use support::scene::{Scene, SourceSort, TestMessage, script};

const TABLES: &str = "CREATE TABLE effects (n bigint NOT NULL, attempt bigint NOT NULL);";
const HANDLER: &str = "lanes = 1\nbatch = { max = 50 }\nretry = { attempts = 2, backoff = \"10ms\" }\nlimits = { cpu = \"50ms\" }";

/// Writes one row, with the attempt that the handler was told.
fn effect(n: i64) -> serde_json::Value {
    json!({
        "execute": "INSERT INTO effects (n, attempt) VALUES ($1, $2)",
        "params": [{ "int64": n }, { "message": "attempt" }],
    })
}

fn message(id: &str, steps: &[serde_json::Value]) -> TestMessage {
    TestMessage::new(id, &json!({ "steps": steps }))
}

async fn dead(scene: &Scene, id: &str) -> (String, i64) {
    let table = scene.store.table("dead_letters");
    let class = scene
        .store
        .text(&format!(
            "SELECT class FROM {table} WHERE message_id = '{id}'"
        ))
        .await
        .unwrap();
    let attempts = scene
        .store
        .text(&format!(
            "SELECT CAST(attempts AS text) FROM {table} WHERE message_id = '{id}'"
        ))
        .await
        .unwrap();
    let attempts: serde_json::Value = serde_json::from_str(&attempts).unwrap();
    (
        class,
        i64::try_from(attempts.as_array().unwrap().len()).unwrap(),
    )
}

async fn a_bad_message_costs_only_itself(kind: StoreKind, source: SourceSort) {
    let scene = Scene::new(kind, source, &script(), TABLES, HANDLER).await;
    let messages: Vec<TestMessage> = (1..=50)
        .map(|n| match n {
            17 => message("m-17", &[effect(17), json!({ "reject": "no" })]),
            30 => message("m-30", &[effect(30), json!({ "panic": "boom" })]),
            31 => message("m-31", &[effect(31), json!({ "loop": true })]),
            40 => message("m-39", &[effect(39)]),
            n => message(&format!("m-{n}"), &[effect(n)]),
        })
        .collect();
    scene.publish(&messages).await;
    scene.run_until_idle();

    let count = |sql: &'static str| scene.store.number(sql);
    assert_eq!(count("SELECT count(*) FROM effects").await, 46);
    assert_eq!(count("SELECT count(DISTINCT n) FROM effects").await, 46);
    assert_eq!(
        count("SELECT max(attempt) FROM effects").await,
        1,
        "a sibling was charged"
    );
    assert_eq!(dead(&scene, "m-17").await, ("rejected".to_owned(), 1));
    assert_eq!(dead(&scene, "m-30").await, ("trapped".to_owned(), 2));
    assert_eq!(dead(&scene, "m-31").await, ("limit".to_owned(), 2));
    assert_eq!(scene.count("dead_letters", "1 = 1").await, 3);
    assert_eq!(scene.count("attempts", "1 = 1").await, 0);
    assert_eq!(scene.pending().await, 0);
    let status = scene.status();
    assert_eq!(status["claimed"], 46, "{status}");
    assert_eq!(status["duplicates"], 1, "{status}");
    assert_eq!(status["retried"], 2, "{status}");
    assert_eq!(status["dead"], 3, "{status}");
}

#[tokio::test]
async fn a_bad_message_costs_only_itself_on_postgres_with_jetstream() {
    a_bad_message_costs_only_itself(StoreKind::Postgres, SourceSort::JetStream).await;
}

#[tokio::test]
async fn a_bad_message_costs_only_itself_on_postgres_with_the_queue() {
    a_bad_message_costs_only_itself(StoreKind::Postgres, SourceSort::Queue).await;
}

#[tokio::test]
async fn a_bad_message_costs_only_itself_on_sqlite_with_the_queue() {
    a_bad_message_costs_only_itself(StoreKind::Sqlite, SourceSort::Queue).await;
}

async fn duplicates_and_conflicts_in_a_batch(kind: StoreKind, source: SourceSort) {
    let scene = Scene::new(kind, source, &script(), TABLES, HANDLER).await;
    let b = message("b", &[effect(2)]);
    scene.publish(std::slice::from_ref(&b)).await;
    scene.run_until_idle();
    let fails_once = message(
        "y",
        &[
            effect(5),
            json!({ "if_attempt_below": 2, "steps": [{ "retry": { "reason": "later" } }] }),
        ],
    );
    scene
        .publish(&[
            message("a", &[effect(1)]),
            b,
            message("b", &[effect(22)]),
            message("c", &[effect(3)]),
            message("x", &[effect(4)]),
            message("x", &[effect(4)]),
            message("x", &[effect(44)]),
            fails_once.clone(),
            fails_once,
        ])
        .await;
    scene.run_until_idle();

    let all = "SELECT count(*) FROM effects";
    assert_eq!(scene.store.number(all).await, 5);
    let numbers = "SELECT count(*) FROM effects WHERE n IN (1, 2, 3, 4, 5)";
    assert_eq!(scene.store.number(numbers).await, 5);
    assert_eq!(
        scene
            .count("dead_letters", "class = 'conflict' AND message_id = 'b'")
            .await,
        1
    );
    assert_eq!(
        scene
            .count("dead_letters", "class = 'conflict' AND message_id = 'x'")
            .await,
        1
    );
    assert_eq!(scene.count("dead_letters", "1 = 1").await, 2);
    assert_eq!(
        scene.count("processed_messages", "outcome = 'done'").await,
        5
    );
    assert_eq!(scene.pending().await, 0);
    let status = scene.status();
    assert_eq!(status["duplicates"], 3, "{status}");
}

#[tokio::test]
async fn duplicates_and_conflicts_in_a_batch_on_postgres_with_jetstream() {
    duplicates_and_conflicts_in_a_batch(StoreKind::Postgres, SourceSort::JetStream).await;
}

#[tokio::test]
async fn duplicates_and_conflicts_in_a_batch_on_sqlite_with_the_queue() {
    duplicates_and_conflicts_in_a_batch(StoreKind::Sqlite, SourceSort::Queue).await;
}

/// Forty accounts.
fn accounts() -> String {
    let accounts: Vec<String> = (0..40).map(|n| format!("({n}, 0)")).collect();
    format!(
        "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);\n\
         INSERT INTO accounts (id, balance) VALUES {};",
        accounts.join(", ")
    )
}

/// Messages that each take 1 from a random account and give 3 to another. Returns their seed with them.
fn transfers(count: usize) -> (u64, Vec<TestMessage>) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let update = "UPDATE accounts SET balance = balance + $1 WHERE id = $2";
    let messages = (0..count)
        .map(|n| {
            let (from, to) = (random.random_range(0..40), random.random_range(0..40));
            message(
                &format!("m-{n}"),
                &[
                    json!({ "execute": update, "params": [{ "int64": -1 }, { "int64": from }] }),
                    json!({ "execute": update, "params": [{ "int64": 3 }, { "int64": to }] }),
                ],
            )
        })
        .collect();
    (seed, messages)
}

/// Two hosts, four lanes each, every message updates two random rows: without the baton such batches deadlock at once.
#[tokio::test]
async fn batches_of_one_handler_never_deadlock() {
    let tables = accounts();
    let handler = "lanes = 4\nbatch = { max = 50 }";
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::JetStream,
        &script(),
        &tables,
        handler,
    )
    .await;
    let (seed, messages) = transfers(2_000);
    scene.publish(&messages).await;
    let hosts = [
        scene.host(&["--until-idle"], &[]),
        scene.host(&["--until-idle"], &[]),
    ];
    for host in hosts {
        host.wait_well();
    }
    assert_eq!(
        scene
            .store
            .number("SELECT CAST(sum(balance) AS bigint) FROM accounts")
            .await,
        4_000
    );
    assert_eq!(scene.count("dead_letters", "true").await, 0);
    // The sessions have ended, so their counts are in.
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(scene.store.number(deadlocks).await, 0, "seed {seed}");
}

/// One handler moves from the first account to the second, the other the other way round.
fn two_handlers(baton: &str) -> String {
    format!(
        "lanes = 4\n{baton}\n\n[handlers.other]\ncomponent = \"{}\"\nsource = \"messages\"\nstart = \"all\"\n\
         message_id = [\"header:Message-Id\"]\nlanes = 4\n{baton}",
        script().display()
    )
}

/// Two handlers on two hosts update the same few rows, each message in an order of its own. Returns how many deadlocks
/// the server found.
async fn handlers_on_the_same_rows(baton: &str) -> i64 {
    let tables = accounts();
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::JetStream,
        &script(),
        &tables,
        &two_handlers(baton),
    )
    .await;
    let (seed, messages) = transfers(500);
    scene.publish(&messages).await;
    let hosts = [
        scene.host(&["--until-idle"], &[]),
        scene.host(&["--until-idle"], &[]),
    ];
    for host in hosts {
        host.wait_well();
    }
    let number = async |sql: &'static str| scene.store.number(sql).await;
    assert_eq!(
        number("SELECT CAST(sum(balance) AS bigint) FROM accounts").await,
        2 * 2 * 500,
        "seed {seed}"
    );
    assert_eq!(
        scene.count("processed_messages", "outcome = 'done'").await,
        1_000
    );
    assert_eq!(scene.count("dead_letters", "true").await, 0);
    assert_eq!(
        number("SELECT CAST(coalesce(sum(retried), 0) AS bigint) FROM hapax.counters").await,
        0,
        "a message was charged; seed {seed}"
    );
    number("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").await
}

#[tokio::test]
async fn another_handler_on_the_same_rows_costs_nobody_an_attempt() {
    handlers_on_the_same_rows("").await;
}

#[tokio::test]
async fn handlers_that_share_a_baton_never_deadlock() {
    assert_eq!(handlers_on_the_same_rows("baton = \"accounts\"").await, 0);
}
