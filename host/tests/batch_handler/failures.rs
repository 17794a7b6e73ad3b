//! A member that fails costs only itself.

use hapax::store::StoreKind;
use serde_json::json;

use crate::stage::{TABLES, assert_once, dead, effect, message, scene};
use crate::support::scene::{Scene, SourceSort, TestMessage, script_batch};

async fn members_that_fail(kind: StoreKind, source: SourceSort) {
    let handler = "retry = { attempts = 2, backoff = \"10ms\" }\nconfig = { calls = \"calls\" }";
    let scene = scene(kind, source, handler).await;
    let messages: Vec<TestMessage> = (1..=30)
        .map(|n| {
            let last = match n {
                7 => {
                    json!({ "if_attempt_below": 2, "steps": [{ "retry": { "reason": "later" } }] })
                }
                13 => json!({ "reject": "no" }),
                // What stands behind it fails in the same call, as the transaction is over.
                20 => json!({ "execute": "INSERT INTO single (n) VALUES (1)" }),
                _ => json!({ "log": { "message": "well" } }),
            };
            message(n, &[effect(n), last])
        })
        .collect();
    scene.publish(&messages).await;
    scene.run_until_idle();
    assert_once(&scene, 30, &[13, 20]).await;
    let number = async |sql: &str| scene.store.number(sql).await;
    assert_eq!(
        number("SELECT count(*) FROM effects WHERE attempt = 1").await,
        27,
        "a sibling was charged"
    );
    assert_eq!(number("SELECT attempt FROM effects WHERE n = 7").await, 2);
    assert_eq!(number("SELECT CAST(sum(n) AS bigint) FROM calls").await, 28);
    let (class, reason, attempts) = dead(&scene, "m-13").await;
    assert_eq!((&*class, &*reason, attempts), ("rejected", "no", 1));
    let (class, _, attempts) = dead(&scene, "m-20").await;
    assert_eq!((&*class, attempts), ("retried", 2));
    let status = scene.status();
    assert_eq!(status["retried"], 2, "{status}");
    assert_eq!(status["dead"], 2, "{status}");
}

#[tokio::test]
async fn members_that_fail_on_postgres_with_jetstream() {
    members_that_fail(StoreKind::Postgres, SourceSort::JetStream).await;
}

#[tokio::test]
async fn members_that_fail_on_sqlite_with_the_queue() {
    members_that_fail(StoreKind::Sqlite, SourceSort::Queue).await;
}

/// A trap and a limit name nobody: each message runs alone.
#[tokio::test]
async fn a_trap_and_a_limit_cost_only_their_messages() {
    let handler = "retry = { attempts = 2, backoff = \"10ms\" }\nlimits = { cpu = \"50ms\" }";
    let scene = scene(StoreKind::Postgres, SourceSort::Queue, handler).await;
    let messages: Vec<TestMessage> = (1..=20)
        .map(|n| match n {
            5 => message(n, &[effect(n), json!({ "panic": "boom" })]),
            9 => message(n, &[effect(n), json!({ "loop": true })]),
            n => message(n, &[effect(n)]),
        })
        .collect();
    scene.publish(&messages).await;
    scene.run_until_idle();
    assert_once(&scene, 20, &[5, 9]).await;
    let attempts = "SELECT max(attempt) FROM effects";
    assert_eq!(
        scene.store.number(attempts).await,
        1,
        "a sibling was charged"
    );
    let (class, reason, attempts) = dead(&scene, "m-5").await;
    assert_eq!((&*class, attempts), ("trapped", 2));
    assert!(reason.starts_with("panic: boom\n"), "{reason}");
    let (class, _, attempts) = dead(&scene, "m-9").await;
    assert_eq!((&*class, attempts), ("limit", 2));
}

/// The commit is refused for the sake of one message, and nobody knows of which.
#[tokio::test]
async fn a_refused_commit_costs_only_its_message() {
    let tables = format!(
        "{TABLES}\nCREATE TABLE parts (whole bigint REFERENCES single (n) DEFERRABLE INITIALLY DEFERRED);"
    );
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &script_batch(),
        &tables,
        "lanes = 1\nretry = { attempts = 1 }",
    )
    .await;
    let messages: Vec<TestMessage> = (1..=10)
        .map(|n| {
            let part = json!({
                "execute": "INSERT INTO parts (whole) VALUES ($1)",
                "params": [{ "int64": if n == 4 { 2 } else { 1 } }],
            });
            message(n, &[effect(n), part])
        })
        .collect();
    scene.publish(&messages).await;
    scene.run_until_idle();
    assert_once(&scene, 10, &[4]).await;
    assert_eq!(dead(&scene, "m-4").await.0, "sql");
}

#[tokio::test]
async fn another_number_of_results_is_a_trap() {
    let handler = "retry = { attempts = 1 }\nconfig = { extra_result = \"yes\" }";
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue, handler).await;
    let messages: Vec<TestMessage> = (1..=3).map(|n| message(n, &[effect(n)])).collect();
    scene.publish(&messages).await;
    scene.run_until_idle();
    assert_once(&scene, 3, &[1, 2, 3]).await;
    let (class, reason, _) = dead(&scene, "m-2").await;
    assert_eq!(
        (&*class, &*reason),
        (
            "trapped",
            "the handler returned 2 results for 1 messages; it has to return one for each"
        )
    );
}

/// All together need more memory than a call may have, and half of them do not.
#[tokio::test]
async fn a_limit_that_only_many_messages_meet_costs_nobody_anything() {
    let handler = "limits = { memory = \"8 MiB\" }\nconfig = { calls = \"calls\" }";
    let scene = scene(StoreKind::Postgres, SourceSort::Queue, handler).await;
    let long = "x".repeat(1 << 20);
    let messages: Vec<TestMessage> = (1..=16)
        .map(|n| {
            let log = json!({ "log": { "level": "trace", "message": &long } });
            message(n, &[effect(n), log])
        })
        .collect();
    scene.publish(&messages).await;
    scene.run_until_idle();
    assert_once(&scene, 16, &[]).await;
    let number = async |sql: &str| scene.store.number(sql).await;
    assert_eq!(number("SELECT max(attempt) FROM effects").await, 1);
    let calls = number("SELECT count(*) FROM calls").await;
    assert!((3..16).contains(&calls), "{calls} calls");
    assert_eq!(scene.status()["retried"], 0);
}
