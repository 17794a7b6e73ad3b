//! `hapax rewind`: the stream is read again, and every sum stays exact.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::os::unix::process::ExitStatusExt as _;

use hapax::store::StoreKind;
use serde_json::json;
use support::host::{Output, run, run_with};
use support::scene::{Scene, SourceSort, TestMessage, credit_account};

const ACCOUNTS: &str = "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);\n\
                        INSERT INTO accounts (id, balance) VALUES ('a', 0);";

fn credits(numbers: std::ops::RangeInclusive<u64>) -> Vec<TestMessage> {
    let credit = |n| TestMessage::new(format!("m-{n}"), &json!({ "account": "a", "amount": n }));
    numbers.map(credit).collect()
}

async fn balance(scene: &Scene) -> i64 {
    scene.store.number("SELECT balance FROM accounts").await
}

async fn scene_with(source: SourceSort, handler: &str) -> Scene {
    let sqlite = StoreKind::Sqlite;
    Scene::new(sqlite, source, &credit_account(), ACCOUNTS, handler).await
}

fn assert_refused(output: &Output, code: i32, text: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", output.err);
    assert!(output.err.contains(text), "{}", output.err);
}

/// Without its effects and claims from `from` on, as an older dump leaves the store.
async fn forget(scene: &Scene, from: u64, to: u64) {
    let claims = scene.store.table("processed_messages");
    let ids: Vec<String> = (from..=to).map(|n| format!("'m-{n}'")).collect();
    let lost: u64 = (from..=to).sum();
    scene
        .store
        .run(&format!(
            "DELETE FROM {claims} WHERE message_id IN ({}); UPDATE accounts SET balance = balance - {lost}",
            ids.join(", ")
        ))
        .await;
}

async fn works_while_a_host_runs(handler: &str) {
    let scene = scene_with(SourceSort::JetStream, handler).await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    scene.publish(&credits(1..=60)).await;
    scene.wait_until_nothing_pends().await;
    assert_eq!(balance(&scene).await, 1830);
    forget(&scene, 31, 60).await;
    let output = run(
        scene.folder(),
        &["rewind", "subject", "--to", "21", "--yes", "--json"],
    );
    assert!(output.status.success(), "{}", output.err);
    let told: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(
        (&told["sequence"], &told["messages"]),
        (&json!(21), &json!(40))
    );
    scene.publish(&credits(61..=70)).await;
    let claims = scene.store.table("processed_messages");
    let mut probe = scene.store.probe().await;
    probe
        .wait_for(&format!("SELECT count(*) FROM {claims}"), 70)
        .await;
    scene.wait_until_nothing_pends().await;
    host.terminate();
    host.wait_well();
    assert_eq!(balance(&scene).await, (1..=70).sum::<i64>());
}

#[tokio::test]
async fn while_a_host_runs() {
    works_while_a_host_runs("").await;
}

#[tokio::test]
async fn while_a_host_runs_in_order() {
    works_while_a_host_runs("order_by = \"json:/account\"").await;
}

/// Killed between the end of the old durable and the new one, it is finished by running it again.
#[tokio::test]
async fn a_crash_in_between_is_finished_by_running_it_again() {
    let scene = scene_with(SourceSort::JetStream, "").await;
    scene.publish(&credits(1..=20)).await;
    scene.run_until_idle();
    forget(&scene, 11, 20).await;
    let arguments = ["rewind", "subject", "--to", "11", "--yes"];
    let crash = [("HAPAX_FAULT_POINT", "rewind:1")];
    let killed = run_with(scene.folder(), &arguments, &crash, b"");
    assert_eq!(killed.status.signal(), Some(9), "{}", killed.err);
    let output = run(scene.folder(), &arguments);
    assert!(output.status.success(), "{}", output.err);
    scene.run_until_idle();
    assert_eq!(balance(&scene).await, 210);
    assert_eq!(scene.status()["duplicates"], 0, "only 11 to 20 came again");
}

#[tokio::test]
async fn what_claims_do_not_cover_is_refused() {
    let scene = scene_with(SourceSort::JetStream, "dedup = \"1s\"").await;
    scene.publish(&credits(1..=3)).await;
    scene.run_until_idle();
    // The first message's age is what counts; the window is short.
    let published = std::time::Instant::now();
    while published.elapsed() < std::time::Duration::from_millis(1_200) {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let rewind = |more: &[&str]| {
        let arguments = [&["rewind", "subject", "--to", "1"], more].concat();
        run(scene.folder(), &arguments)
    };
    assert_refused(
        &rewind(&["--yes"]),
        1,
        "is not rewound: message 1 was published at",
    );
    assert_refused(&rewind(&["--force"]), 2, "there is no terminal to ask at");
    let forced = rewind(&["--yes", "--force"]);
    assert!(forced.status.success(), "{}", forced.err);
    assert!(forced.err.contains("`too-old`"), "{}", forced.err);

    let beyond = run(scene.folder(), &["rewind", "subject", "--to", "9", "--yes"]);
    assert_refused(&beyond, 3, "has no message 9: its last one is 3");
}

#[tokio::test]
async fn without_claims_and_on_a_queue_it_is_refused() {
    let scene = scene_with(SourceSort::JetStream, "dedup = \"off\"").await;
    scene.publish(&credits(1..=3)).await;
    let arguments = ["rewind", "subject", "--to", "1", "--yes"];
    let output = run(scene.folder(), &arguments);
    assert_refused(
        &output,
        1,
        "each of the 3 messages that it reads again takes effect again",
    );

    let scene = scene_with(SourceSort::Queue, "").await;
    let output = run(scene.folder(), &arguments);
    assert_refused(
        &output,
        2,
        "is a queue, which keeps no message that is done",
    );
}
