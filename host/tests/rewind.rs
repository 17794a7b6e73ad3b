//! `hapax rewind`: the stream is read again, and every sum stays exact.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::os::unix::process::ExitStatusExt as _;

use hapax::store::StoreKind;
use serde_json::json;
use sqlx::Connection as _;
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

/// A copy of the store while no host runs.
async fn dump(scene: &Scene) -> Dump {
    match &scene.store.postgres {
        Some(postgres) => {
            let (_, name) = scene.store.url.rsplit_once('/').unwrap();
            let mut admin = sqlx::PgConnection::connect(&postgres.url("postgres"))
                .await
                .unwrap();
            run_on(&mut admin, &format!("CREATE DATABASE dump TEMPLATE {name}")).await;
            Dump::Postgres(admin, name.to_owned())
        }
        None => {
            let file = scene.folder().join("dump.db");
            scene
                .store
                .run(&format!("VACUUM INTO '{}'", file.display()))
                .await;
            Dump::Sqlite(file)
        }
    }
}

enum Dump {
    Postgres(sqlx::PgConnection, String),
    Sqlite(std::path::PathBuf),
}

async fn run_on(admin: &mut sqlx::PgConnection, sql: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(admin)
        .await
        .unwrap();
}

/// Puts the copy in the store's place.
async fn restore(scene: &Scene, dump: &mut Dump) {
    match dump {
        Dump::Postgres(admin, name) => {
            run_on(admin, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
            run_on(admin, &format!("CREATE DATABASE {name} TEMPLATE dump")).await;
        }
        Dump::Sqlite(file) => {
            let store = scene.store.url.trim_start_matches("sqlite:");
            for beside in ["-wal", "-shm"] {
                let _ = std::fs::remove_file(format!("{store}{beside}"));
            }
            std::fs::copy(file, store).unwrap();
        }
    }
}

async fn checkpoint(scene: &Scene) -> i64 {
    let checkpoints = scene.store.table("checkpoints");
    scene
        .store
        .number(&format!(
            "SELECT coalesce(max(sequence), 0) FROM {checkpoints}"
        ))
        .await
}

/// Restored from an older dump: what is lost is named until it took effect, however long hosts run in between.
async fn a_restored_store_names_what_is_lost(kind: StoreKind) {
    let jetstream = SourceSort::JetStream;
    let scene = Scene::new(kind, jetstream, &credit_account(), ACCOUNTS, "").await;
    scene.publish(&credits(1..=20)).await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    let checkpoints = scene.store.table("checkpoints");
    scene
        .store
        .probe()
        .await
        .wait_for(
            &format!("SELECT coalesce(max(sequence), 0) FROM {checkpoints}"),
            20,
        )
        .await;
    host.terminate();
    host.wait_well();
    let mut dump = dump(&scene).await;

    // What is parked is not lost; what has no id is never claimed.
    scene.publish(&credits(21..=40)).await;
    let no_account = TestMessage::new("bad", &json!({ "amount": "much" }));
    let no_id = TestMessage {
        id: None,
        ..TestMessage::new("", &json!({}))
    };
    scene.publish(&[no_account, no_id]).await;
    scene.run_until_idle();
    assert_eq!(scene.status()["unreconciled"], json!(null));
    restore(&scene, &mut dump).await;
    assert_eq!(balance(&scene).await, (1..=20).sum::<i64>());

    let lost = |messages: u64| {
        let lost = scene.status()["unreconciled"].clone();
        assert_eq!(
            (&lost["messages"], &lost["first_sequence"]),
            (&json!(messages), &json!(21)),
            "{lost}"
        );
    };
    // 21 to 40, and the one that was parked.
    lost(21);
    // Hosts go on with what is new, and don't forget it.
    scene.publish(&credits(41..=50)).await;
    let mut host = scene.host(&[], &[]);
    host.wait_for_line("the broker counts messages as done that have no effect in this database");
    scene.wait_until_nothing_pends().await;
    lost(21);
    assert_eq!(checkpoint(&scene).await, 20);
    let output = run(scene.folder(), &["status"]);
    assert!(
        output.err.contains(
            "warning: 21 messages of `subject` are done at the broker without an effect in this database, the first is number 21, \
             published at "
        ) && output.err.contains("`hapax rewind subject --to 21`"),
        "{}",
        output.err
    );

    // Not far enough: it says so.
    let rewind = |to: &str| {
        let output = run(scene.folder(), &["rewind", "subject", "--to", to, "--yes"]);
        assert!(output.status.success(), "{}", output.err);
        output.err
    };
    let warned = rewind("31");
    assert!(
        warned.contains(
            "10 messages before it have no effect in this database either, from number 21 on"
        ),
        "{warned}"
    );
    assert_eq!(rewind("21"), "");
    scene.wait_until_nothing_pends().await;
    host.terminate();
    host.wait_well();
    scene.run_until_idle();
    assert_eq!(balance(&scene).await, (1..=50).sum::<i64>());
    assert_eq!(scene.status()["unreconciled"], json!(null));
}

#[tokio::test]
async fn a_restored_store_names_what_is_lost_on_sqlite() {
    a_restored_store_names_what_is_lost(StoreKind::Sqlite).await;
}

#[tokio::test]
async fn a_restored_store_names_what_is_lost_on_postgres() {
    a_restored_store_names_what_is_lost(StoreKind::Postgres).await;
}

/// An empty store in the place of a lost one: the durable alone knows that there was something.
#[tokio::test]
async fn an_empty_store_names_what_is_lost() {
    let scene = scene_with(SourceSort::JetStream, "").await;
    scene.publish(&credits(1..=20)).await;
    scene.run_until_idle();
    let store = scene.store.url.trim_start_matches("sqlite:");
    for file in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{store}{file}"));
    }
    assert_eq!(scene.status()["unreconciled"]["messages"], 20);
    scene.publish(&credits(21..=22)).await;
    scene.run_until_idle();
    assert_eq!(scene.status()["unreconciled"]["messages"], 20);
    // Done elsewhere, says the operator.
    let accept = ["rewind", "subject", "--to", "23", "--yes"];
    let output = run(scene.folder(), &accept);
    assert!(output.status.success(), "{}", output.err);
    assert_eq!(scene.status()["unreconciled"], json!(null));
    scene.run_until_idle();
    assert_eq!(balance(&scene).await, 43);
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
