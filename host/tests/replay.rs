//! Dead letters run again through the real daemon: each takes effect once, whatever is killed on the way.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::os::unix::process::ExitStatusExt as _;

use hapax::message::{FailureClass, ShortHash};
use hapax::store::{StoreKind, StoredDeadLetter};
use serde_json::{Value, json};
use support::host::{Output, run};
use support::scene::{Scene, SourceSort, TestMessage, script};

/// `effects` has no key, so that an effect that is applied twice shows.
const TABLES: &str = "\
CREATE TABLE effects (id text NOT NULL, attempt bigint NOT NULL);
CREATE TABLE notes (key text PRIMARY KEY, value text);
";
const QUICK: &str = "lanes = 1\nretry = { attempts = 2, backoff = \"10ms\" }\nlimits = { cpu = \"100ms\", memory = \"16MiB\" }";
/// What makes the handler break on messages made by `broken`.
const BROKEN: &str = "[handlers.subject.config]\nbroken = \"yes\"";

async fn scene(kind: StoreKind, source: SourceSort, handler: &str) -> Scene {
    let handler = format!("{QUICK}\n{handler}\n{BROKEN}");
    Scene::new(kind, source, &script(), TABLES, &handler).await
}

/// Rewrites the configuration: another handler comes with the next start.
fn configure(scene: &Scene, from: &str, to: &str) {
    let text = std::fs::read_to_string(scene.config()).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(scene.config(), text.replace(from, to)).unwrap();
}

fn repair(scene: &Scene) {
    configure(scene, "broken = \"yes\"", "");
}

fn effect() -> Value {
    json!({
        "execute": "INSERT INTO effects (id, attempt) VALUES ($1, $2)",
        "params": [{ "message": "id" }, { "message": "attempt" }],
        "expect_count": 1,
    })
}

fn message(id: &str, steps: &Value) -> TestMessage {
    TestMessage::new(id, &json!({ "steps": steps }))
}

/// A message that takes effect, unless the handler is broken: then it does `step` after that.
fn broken(id: &str, step: &Value) -> TestMessage {
    message(
        id,
        &json!([effect(), { "if_config": "broken", "steps": [step] }]),
    )
}

fn hapax(scene: &Scene, arguments: &[&str]) -> Output {
    run(scene.folder(), arguments)
}

/// Runs a command of `hapax dead-letters` and returns what it printed.
#[track_caller]
fn letters_command(scene: &Scene, arguments: &[&str]) -> String {
    let arguments: Vec<&str> = std::iter::once("dead-letters")
        .chain(arguments.iter().copied())
        .collect();
    let output = hapax(scene, &arguments);
    assert!(output.status.success(), "{}", output.err);
    output.out
}

#[track_caller]
fn replay_all(scene: &Scene) -> String {
    letters_command(scene, &["replay", "--all", "--yes"])
}

async fn letters(scene: &Scene) -> Vec<StoredDeadLetter> {
    let mut connection = scene.store.connect().await;
    connection.dead_letters("subject", 1_000).await.unwrap()
}

async fn letter(scene: &Scene) -> StoredDeadLetter {
    let mut found = letters(scene).await;
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

async fn effects(scene: &Scene) -> i64 {
    scene.store.number("SELECT count(*) FROM effects").await
}

/// Every message took effect once; nothing is left anywhere.
async fn assert_all_once(scene: &Scene, messages: i64) {
    let ids = "SELECT count(DISTINCT id) FROM effects";
    assert_eq!(scene.store.number(ids).await, messages);
    assert_eq!(effects(scene).await, messages);
    let done = scene.count("processed_messages", "outcome = 'done'").await;
    assert_eq!(done, messages);
    assert_eq!(scene.count("processed_messages", "1 = 1").await, messages);
    assert_nothing_left(scene).await;
}

async fn assert_nothing_left(scene: &Scene) {
    assert_eq!(scene.count("dead_letters", "1 = 1").await, 0);
    assert_eq!(scene.count("attempts", "1 = 1").await, 0);
    assert_eq!(scene.count("queue", "1 = 1").await, 0);
    assert_eq!(scene.pending().await, 0);
}

/// Makes tests of a check: on both databases, with both sources.
macro_rules! on_all {
    ($($check:ident,)*) => {$(
        mod $check {
            use crate::{SourceSort, StoreKind};

            #[tokio::test]
            async fn on_postgres_with_jetstream() {
                super::$check(StoreKind::Postgres, SourceSort::JetStream).await;
            }

            #[tokio::test]
            async fn on_postgres_with_the_queue() {
                super::$check(StoreKind::Postgres, SourceSort::Queue).await;
            }

            #[tokio::test]
            async fn on_sqlite_with_jetstream() {
                super::$check(StoreKind::Sqlite, SourceSort::JetStream).await;
            }

            #[tokio::test]
            async fn on_sqlite_with_the_queue() {
                super::$check(StoreKind::Sqlite, SourceSort::Queue).await;
            }
        }
    )*};
}

/// Makes tests of a check: on both databases, each with another source.
macro_rules! on_both {
    ($($check:ident,)*) => {$(
        mod $check {
            use crate::{SourceSort, StoreKind};

            #[tokio::test]
            async fn on_postgres() {
                super::$check(StoreKind::Postgres, SourceSort::JetStream).await;
            }

            #[tokio::test]
            async fn on_sqlite() {
                super::$check(StoreKind::Sqlite, SourceSort::Queue).await;
            }
        }
    )*};
}

on_all! {
    bad_messages_among_good_ones_take_effect_once_the_handler_is_repaired,
}

on_both! {
    a_replay_that_fails_again_keeps_its_letter,
    a_forced_replay_runs_beside_the_claim,
    an_unforced_replay_is_the_run_that_failed,
    a_dropped_letter_does_not_run,
    a_replay_without_claims,
    two_hosts_replay_each_letter_once,
    a_redelivery_beside_a_replay,
}

async fn bad_messages_among_good_ones_take_effect_once_the_handler_is_repaired(
    kind: StoreKind,
    source: SourceSort,
) {
    let scene = scene(kind, source, "").await;
    let messages: Vec<TestMessage> = (0..104)
        .map(|n| match n {
            13 => broken("m-13", &json!({ "reject": "no such account" })),
            31 => broken("m-31", &json!({ "panic": "out of luck" })),
            57 => broken("m-57", &json!({ "loop": true })),
            88 => broken("m-88", &json!({ "alloc": 100_000_000 })),
            n => message(&format!("m-{n}"), &json!([effect()])),
        })
        .collect();
    scene.publish(&messages).await;
    scene.run_until_idle();
    assert_eq!(effects(&scene).await, 100);
    let mut found: Vec<(String, FailureClass, usize, bool)> = letters(&scene)
        .await
        .into_iter()
        .map(|stored| {
            let id = stored.letter.message_id.unwrap().to_string();
            let reason = match id.as_str() {
                "m-13" => "no such account",
                "m-31" => "out of luck",
                "m-57" => "limits.cpu",
                _ => "limits.memory",
            };
            let says_why = stored.letter.reason.contains(reason)
                && stored
                    .attempts
                    .iter()
                    .all(|attempt| attempt.error.contains(reason));
            (id, stored.letter.class, stored.attempts.len(), says_why)
        })
        .collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(
        found,
        [
            ("m-13".into(), FailureClass::Rejected, 1, true),
            ("m-31".into(), FailureClass::Trapped, 2, true),
            ("m-57".into(), FailureClass::Limit, 2, true),
            ("m-88".into(), FailureClass::Limit, 2, true),
        ]
    );

    repair(&scene);
    assert_eq!(
        replay_all(&scene),
        "queued 4 dead letters for replay; a running `hapax run` processes them\n"
    );
    assert_eq!(replay_all(&scene), "4 dead letters are queued already\n");
    scene.run_until_idle();
    assert_all_once(&scene, 104).await;
    assert_eq!(replay_all(&scene), "no dead letters\n");

    // Delivered again, all of them are duplicates.
    scene.publish(&messages).await;
    scene.run_until_idle();
    assert_all_once(&scene, 104).await;
}

const DEAD: i64 = 6;

/// A host that replays dies at `point`; the command and the host are started again.
async fn dies_at(point: &str, kind: StoreKind, source: SourceSort) {
    for batch_max in [1, 50] {
        let scene = scene(kind, source, &format!("batch = {{ max = {batch_max} }}")).await;
        let messages: Vec<TestMessage> = (0..DEAD)
            .map(|n| broken(&format!("m-{n}"), &json!({ "reject": "no" })))
            .collect();
        scene.publish(&messages).await;
        scene.run_until_idle();
        assert_eq!(letters(&scene).await.len(), 6);
        repair(&scene);
        replay_all(&scene);

        let told = scene.folder().join("died-at");
        let pass = match point {
            "after-fetch" => 1,
            "after-claim" | "before-commit" | "after-commit" if batch_max > 1 => 1,
            _ => 3,
        };
        let host = scene.host(
            &["--until-idle"],
            &[
                ("HAPAX_FAULT_POINT", &format!("{point}:{pass}")),
                ("HAPAX_FAULT_FILE", &told.display().to_string()),
            ],
        );
        let (status, said) = host.wait();
        assert_eq!(status.signal(), Some(9), "{status}; the host said:\n{said}");
        assert_eq!(std::fs::read_to_string(&told).unwrap(), point);

        // A letter and its effect are never there both, and never gone both.
        let left = letters(&scene).await.len();
        assert_eq!(effects(&scene).await + i64::try_from(left).unwrap(), DEAD);
        let queued = scene.count("queue", "dead_letter IS NOT NULL").await;
        assert_eq!(queued, i64::try_from(left).unwrap());
        if batch_max == 1 {
            assert!(left > 0, "{point}: nothing was left to do");
        }

        let said = replay_all(&scene);
        match left {
            0 => assert_eq!(said, "no dead letters\n"),
            1 => assert!(said.ends_with("is queued already\n"), "{said}"),
            many => assert_eq!(said, format!("{many} dead letters are queued already\n")),
        }
        scene.run_until_idle();
        assert_all_once(&scene, DEAD).await;
    }
}

/// Makes a test for a point on each database.
macro_rules! dies {
    ($($module:ident: $point:literal,)*) => {
        /// The points that have tests: all that there are.
        const TESTED: &[&str] = &[$($point),*];

        $(
            mod $module {
                use super::*;

                #[tokio::test]
                async fn on_postgres() {
                    dies_at($point, StoreKind::Postgres, SourceSort::JetStream).await;
                }

                #[tokio::test]
                async fn on_sqlite() {
                    dies_at($point, StoreKind::Sqlite, SourceSort::Queue).await;
                }
            }
        )*
    };
}

dies! {
    dies_after_fetch: "after-fetch",
    dies_after_claim: "after-claim",
    dies_after_first_sql: "after-first-sql",
    dies_after_handler: "after-handler",
    dies_before_commit: "before-commit",
    dies_after_commit: "after-commit",
    dies_before_ack: "before-ack",
    dies_after_ack: "after-ack",
}

#[test]
fn every_point_is_tested() {
    assert_eq!(TESTED, hapax::fault::POINTS);
}

async fn a_replay_that_fails_again_keeps_its_letter(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, "").await;
    scene
        .publish(&[broken("m", &json!({ "panic": "out of luck" }))])
        .await;
    scene.run_until_idle();
    let first = letter(&scene).await;
    assert_eq!(first.attempts.len(), 2);
    let number = first.number.to_string();
    // It is killed around the commit that rewrites the letter, too: nothing is lost, nothing is there twice.
    // A host that dies before the letter is written has the message run once more.
    for (point, runs) in [
        (None, 4),
        (Some("before-commit"), 7),
        (Some("before-ack"), 9),
    ] {
        letters_command(&scene, &["replay", &number]);
        if let Some(point) = point {
            let (status, said) = scene
                .host(&["--until-idle"], &[("HAPAX_FAULT_POINT", point)])
                .wait();
            assert_eq!(status.signal(), Some(9), "{said}");
            assert_eq!(letter(&scene).await.number, first.number);
        }
        scene.run_until_idle();
        let again = letter(&scene).await;
        assert_eq!(again.number, first.number);
        assert_eq!(again.letter, first.letter);
        assert_eq!(again.attempts[..2], first.attempts);
        assert_eq!(again.attempts.len(), runs, "{again:#?}");
        assert_eq!(scene.count("queue", "1 = 1").await, 0);
        assert_eq!(scene.count("attempts", "1 = 1").await, 0);
        let dead = scene.count("processed_messages", "outcome = 'dead'").await;
        assert_eq!(dead, 1);
    }
    assert_eq!(effects(&scene).await, 0);
    repair(&scene);
    letters_command(&scene, &["replay", &number]);
    scene.run_until_idle();
    assert_all_once(&scene, 1).await;
}

/// The ids that a message's publications have.
fn outbox_id(id: &str, generation: Option<i64>) -> String {
    let generation = generation.map(i64::to_be_bytes);
    let mut fields: Vec<&[u8]> = vec![b"outbox", b"subject", id.as_bytes(), &[0; 4]];
    fields.extend(generation.as_ref().map(|bytes| &bytes[..]));
    ShortHash::of(&fields).to_hex()
}

async fn outbox_ids(scene: &Scene) -> Vec<String> {
    let table = scene.store.table("outbox");
    let count = scene.count("outbox", "1 = 1").await;
    let mut ids = Vec::new();
    for place in 0..count {
        let sql = format!("SELECT id FROM {table} ORDER BY number LIMIT 1 OFFSET {place}");
        ids.push(scene.store.text(&sql).await.unwrap());
    }
    ids
}

async fn a_forced_replay_runs_beside_the_claim(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, "").await;
    let publishing = |payload: &str, last: Value| {
        let publish = json!({ "publish": { "subject": "out", "payload": payload } });
        message("m", &json!([effect(), publish, last]))
    };
    let nothing = json!({ "if_attempt_below": 0, "steps": [] });
    let fails_once = json!({ "if_attempt_below": 2, "steps": [{ "panic": "first" }] });
    scene.publish(&[publishing("one", nothing)]).await;
    scene.run_until_idle();
    scene.publish(&[publishing("two", fails_once)]).await;
    scene.run_until_idle();
    let conflict = letter(&scene).await;
    assert_eq!(conflict.letter.class, FailureClass::Conflict);
    let claims = scene.store.table("processed_messages");
    let hash = match kind {
        StoreKind::Postgres => "encode(payload_hash, 'hex')",
        StoreKind::Sqlite => "hex(payload_hash)",
    };
    let claim = format!("SELECT {hash} || outcome || CAST(processed_at AS text) FROM {claims}");
    let before = scene.store.text(&claim).await;

    let number = conflict.number.to_string();
    let refused = hapax(&scene, &["dead-letters", "replay", &number]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(
        refused.err,
        format!(
            "error: dead letter {number} is not replayed: its message id `m` was processed\n\
             hint: `--force` runs it without a claim; `hapax dead-letters drop {number}` removes it\n"
        )
    );
    assert_eq!(scene.count("queue", "1 = 1").await, 0);

    letters_command(&scene, &["replay", &number, "--force"]);
    // Killed when its effects are not committed yet, it runs again.
    let variables = [("HAPAX_FAULT_POINT", "before-commit")];
    let (status, said) = scene.host(&["--until-idle"], &variables).wait();
    assert_eq!(status.signal(), Some(9), "{said}");
    assert_eq!(effects(&scene).await, 1);
    scene.run_until_idle();
    assert_eq!(effects(&scene).await, 2);
    assert_nothing_left(&scene).await;
    assert_eq!(scene.store.text(&claim).await, before);
    assert_eq!(
        outbox_ids(&scene).await,
        [outbox_id("m", None), outbox_id("m", Some(conflict.number))]
    );
}

async fn an_unforced_replay_is_the_run_that_failed(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, "").await;
    let publish = json!({ "publish": { "subject": "out", "payload": "x" } });
    let record = json!({ "record_message": { "table": "notes", "key": "message" } });
    let breaks = json!({ "if_config": "broken", "steps": [{ "reject": "no" }] });
    scene
        .publish(&[message("m", &json!([effect(), publish, record, breaks]))])
        .await;
    scene.run_until_idle();
    let dead = letter(&scene).await;
    assert_eq!(dead.letter.source, "messages");
    repair(&scene);
    // It does not matter that its source is not the handler's any more.
    configure(&scene, "[sources.messages]", "[sources.renamed]");
    configure(&scene, "source = \"messages\"", "source = \"renamed\"");
    letters_command(&scene, &["replay", &dead.number.to_string()]);
    scene.run_until_idle();
    assert_all_once(&scene, 1).await;
    assert_eq!(outbox_ids(&scene).await, [outbox_id("m", None)]);
    let seen = scene.store.text("SELECT value FROM notes").await.unwrap();
    let seen: Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(seen["source"], "messages");
    // Attempts start anew.
    assert_eq!(seen["attempt"], 1);
    let published = dead.letter.published_at.unwrap();
    assert_eq!(seen["published_at"]["seconds"], published.seconds);
    assert_eq!(seen["published_at"]["nanoseconds"], published.nanoseconds);
}

async fn a_dropped_letter_does_not_run(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, "").await;
    let one = broken("m", &json!({ "reject": "no" }));
    scene.publish(std::slice::from_ref(&one)).await;
    scene.run_until_idle();
    repair(&scene);
    let number = letter(&scene).await.number.to_string();
    letters_command(&scene, &["replay", &number]);
    // As if the row had been in hand when the letter was dropped.
    let table = scene.store.table("dead_letters");
    scene.store.run(&format!("DELETE FROM {table}")).await;
    scene.publish(&[one]).await;
    scene.run_until_idle();
    assert_eq!(effects(&scene).await, 0);
    assert_nothing_left(&scene).await;
    let dead = scene.count("processed_messages", "outcome = 'dead'").await;
    assert_eq!(dead, 1);
    assert_eq!(scene.status()["duplicates"], 2);
}

async fn a_replay_without_claims(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, "dedup = \"off\"").await;
    let good = message("m", &json!([effect()]));
    scene
        .publish(&[broken("m", &json!({ "reject": "no" })), good])
        .await;
    scene.run_until_idle();
    assert_eq!(effects(&scene).await, 1);
    repair(&scene);
    letters_command(&scene, &["replay", "--all"]);
    scene.run_until_idle();
    assert_eq!(effects(&scene).await, 2);
    assert_eq!(scene.count("processed_messages", "1 = 1").await, 0);
    assert_nothing_left(&scene).await;
}

async fn two_hosts_replay_each_letter_once(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, "").await;
    let messages: Vec<TestMessage> = (0..100)
        .map(|n| broken(&format!("m-{n}"), &json!({ "reject": "no" })))
        .collect();
    scene.publish(&messages).await;
    scene.run_until_idle();
    repair(&scene);
    let mut hosts = [scene.host(&[], &[]), scene.host(&[], &[])];
    for host in &mut hosts {
        host.wait_until_ready();
    }
    replay_all(&scene);
    let table = scene.store.table("dead_letters");
    let mut probe = scene.store.probe().await;
    probe
        .wait_for(&format!("SELECT count(*) FROM {table}"), 0)
        .await;
    for host in hosts {
        host.terminate();
        host.wait_well();
    }
    assert_all_once(&scene, 100).await;
}

/// The broker delivers the message again while its replay is queued: one of the two runs.
async fn a_redelivery_beside_a_replay(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, "").await;
    let messages: Vec<TestMessage> = (0..20)
        .map(|n| broken(&format!("m-{n}"), &json!({ "reject": "no" })))
        .collect();
    scene.publish(&messages).await;
    scene.run_until_idle();
    repair(&scene);
    replay_all(&scene);
    scene.publish(&messages).await;
    scene.run_until_idle();
    assert_all_once(&scene, 20).await;
}

/// Letters whose ids were looked for in the wrong place.
async fn ids_that_are_found_later(kind: StoreKind) {
    let scene = scene(kind, SourceSort::Queue, "").await;
    scene.store.connect().await.migrate().await.unwrap();
    let table = scene.store.table("queue");
    let payload = |steps: Value| json!({ "steps": steps }).to_string();
    let rows = [
        ("a", payload(json!([effect()]))),
        ("a", payload(json!([effect()]))),
        ("a", payload(json!([effect(), effect()]))),
        ("b", payload(json!([effect(), { "reject": "no" }]))),
    ];
    for (id, payload) in rows {
        scene
            .store
            .run(&format!(
                "INSERT INTO {table} (queue, message_id, payload) VALUES ('messages', '{id}', '{payload}')"
            ))
            .await;
    }
    scene.run_until_idle();
    let missing = letters(&scene).await;
    let numbers: Vec<i64> = missing.iter().map(|stored| stored.number).collect();
    assert!(
        missing
            .iter()
            .all(|stored| stored.letter.class == FailureClass::MissingId)
    );
    configure(
        &scene,
        "message_id = [\"header:Message-Id\"]",
        "message_id = [\"header:Message-Id\", \"queue:id\"]",
    );
    replay_all(&scene);
    scene.run_until_idle();
    // One took effect, one was its duplicate, one has another payload, one was rejected.
    assert_eq!(effects(&scene).await, 1);
    let left: Vec<(i64, FailureClass, String)> = letters(&scene)
        .await
        .into_iter()
        .map(|stored| {
            (
                stored.number,
                stored.letter.class,
                stored.letter.message_id.unwrap().to_string(),
            )
        })
        .collect();
    assert_eq!(
        left,
        [
            (numbers[2], FailureClass::Conflict, "a".to_owned()),
            (numbers[3], FailureClass::Rejected, "b".to_owned())
        ]
    );
    let dead = scene.count("processed_messages", "outcome = 'dead'").await;
    assert_eq!(dead, 1);
    assert_eq!(scene.count("queue", "1 = 1").await, 0);

    // A conflict stays one.
    let output = hapax(&scene, &["dead-letters", "replay", "--all", "--yes"]);
    assert_eq!(output.status.code(), Some(1));
    scene.run_until_idle();
    assert_eq!(
        letters(&scene).await[0].letter.class,
        FailureClass::Conflict
    );
    assert_eq!(effects(&scene).await, 1);
}

#[tokio::test]
async fn ids_that_are_found_later_on_postgres() {
    ids_that_are_found_later(StoreKind::Postgres).await;
}

#[tokio::test]
async fn ids_that_are_found_later_on_sqlite() {
    ids_that_are_found_later(StoreKind::Sqlite).await;
}
