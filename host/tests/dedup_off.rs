//! `dedup = "off"`: no claims, and a naturally idempotent handler to which duplicates do no harm.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may stop at once, and prints its seed"
)]

mod support;

use hapax::store::StoreKind;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use serde_json::json;
use support::scene::{Scene, SourceSort, TestMessage, script, upsert_profile};

const PROFILES: &str = "CREATE TABLE profiles (id text PRIMARY KEY, version bigint NOT NULL, name text NOT NULL, email text);";

/// Five versions of four profiles, each three times, shuffled: the newest version of each stays.
async fn duplicates_do_no_harm(kind: StoreKind, source: SourceSort) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let mut messages = Vec::new();
    for profile in 0..4 {
        for version in 1..=5 {
            let message = TestMessage::new(
                format!("u{profile}-{version}"),
                &json!({
                    "id": format!("u{profile}"), "version": version, "name": format!("name {version}"),
                    "email": if version == 5 { None } else { Some("a@example.org") },
                }),
            );
            messages.extend(std::iter::repeat_n(message, 3));
        }
    }
    messages.shuffle(&mut random);
    let scene = Scene::new(kind, source, &upsert_profile(), PROFILES, "dedup = \"off\"").await;
    scene.publish(&messages).await;
    scene.run_until_idle();

    let newest =
        "SELECT count(*) FROM profiles WHERE version = 5 AND name = 'name 5' AND email IS NULL";
    assert_eq!(scene.store.number(newest).await, 4, "seed {seed}");
    assert_eq!(scene.store.number("SELECT count(*) FROM profiles").await, 4);
    assert_eq!(scene.count("processed_messages", "1 = 1").await, 0);
    assert_eq!(scene.pending().await, 0);
    // It did run for each of them.
    let status = scene.status();
    assert_eq!(
        (&status["claimed"], &status["duplicates"]),
        (&json!(60), &json!(0)),
        "{status}"
    );
}

#[tokio::test]
async fn duplicates_do_no_harm_on_postgres_with_jetstream() {
    duplicates_do_no_harm(StoreKind::Postgres, SourceSort::JetStream).await;
}

#[tokio::test]
async fn duplicates_do_no_harm_on_sqlite_with_the_queue() {
    duplicates_do_no_harm(StoreKind::Sqlite, SourceSort::Queue).await;
}

/// Attempts, dead letters and the check before the commit stay as they are.
async fn failures_are_charged_without_claims(kind: StoreKind) {
    let tables = "CREATE TABLE effects (n bigint PRIMARY KEY, attempt bigint NOT NULL);";
    let handler = "dedup = \"off\"\nretry = { attempts = 3, backoff = \"10ms\" }";
    let scene = Scene::new(kind, SourceSort::Queue, &script(), tables, handler).await;
    let insert = |n: i64| {
        json!({
            "execute": "INSERT INTO effects (n, attempt) VALUES ($1, $2)",
            "params": [{ "int64": n }, { "message": "attempt" }],
        })
    };
    let mut swallowed = insert(1);
    swallowed["swallow"] = json!(true);
    scene
        .publish(&[
            TestMessage::new("a", &json!({ "steps": [insert(1)] })),
            // The same id, other bytes: without claims there is no conflict.
            TestMessage::new(
                "a",
                &json!({ "steps": [insert(2), { "if_attempt_below": 3, "steps": [{ "retry": { "reason": "later" } }] }] }),
            ),
            TestMessage::new("b", &json!({ "steps": [insert(3), swallowed] })),
        ])
        .await;
    scene.run_until_idle();

    assert_eq!(
        scene
            .store
            .number("SELECT attempt FROM effects WHERE n = 2")
            .await,
        3
    );
    assert_eq!(scene.store.number("SELECT count(*) FROM effects").await, 2);
    assert_eq!(scene.count("attempts", "message_id = 'a'").await, 0);
    let aborted = "message_id = 'b' AND class = 'sql' AND reason LIKE '%aborted%'";
    assert_eq!(scene.count("dead_letters", aborted).await, 1);
    assert_eq!(scene.count("processed_messages", "1 = 1").await, 0);
}

#[tokio::test]
async fn failures_are_charged_without_claims_on_postgres() {
    failures_are_charged_without_claims(StoreKind::Postgres).await;
}

#[tokio::test]
async fn failures_are_charged_without_claims_on_sqlite() {
    failures_are_charged_without_claims(StoreKind::Sqlite).await;
}
