//! A host whose clock is ten minutes off, either way: what is due, how long a retry waits and what is old enough to go is decided by the
//! database's clock.
//!
//! On SQLite the database's clock is the machine's, which all hosts share.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::path::PathBuf;

use hapax::store::StoreKind;
use serde_json::{Value, json};
use support::host::Host;
use support::scene::{Scene, SourceSort, TestMessage, script};
use support::server::find_program;

const TABLES: &str =
    "CREATE TABLE effects (id text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());";
const HANDLER: &str = "retry = { attempts = 3, backoff = \"10ms\" }\ntarget = \"next\"\n\
     [targets.next]\nkind = \"queue\"\nqueue = \"later\"\n[sources.later]\nkind = \"queue\"\n[outbox]\nkeep = \"5m\"\n";
/// How many messages of each sort.
const EACH: i64 = 20;
/// Above the wait that a host keeps to itself: it waits in the store.
const SOON_MS: u64 = 2_000;
const FIVE_MINUTES_MS: u64 = 5 * 60 * 1_000;

/// The library that lies to one process about the time.
fn liar() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten();
    let candidates = folders
        .filter_map(Result::ok)
        .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
        .filter(|file| file.exists());
    find_program(
        "HAPAX_TEST_FAKETIME",
        "the library libfaketimeMT.so.1 (Debian's package libfaketime)",
        candidates.collect(),
    )
}

/// Starts a host that believes in another time, and makes sure that it does.
async fn host(scene: &Scene, offset: &str) -> Host {
    let liar = liar().display().to_string();
    let variables = [
        ("LD_PRELOAD", liar.as_str()),
        ("FAKETIME", offset),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("HAPAX_HANDLERS__SUBJECT__BATCH__MAX", "5"),
    ];
    let mut host = scene.host(&[], &variables);
    let ready = host.wait_for_line("\"message\":\"ready\"");
    let ready: Value = serde_json::from_str(&ready).unwrap();
    let told = ready["timestamp"].as_str().unwrap();
    let difference =
        format!("SELECT abs(extract(epoch FROM timestamptz '{told}' - now()))::bigint");
    let difference = scene.store.number(&difference).await;
    assert!((480..=720).contains(&difference), "{difference} s off");
    host
}

/// Fails once and asks for a wait, then leaves its effect and publishes a message for now and one for much later.
fn failing_once(id: &str, wait_ms: u64, much_later: &Value) -> TestMessage {
    let publish = |not_before: Option<&Value>| json!({ "publish": { "subject": "s", "payload": "{}", "not_before": not_before } });
    TestMessage::new(
        id,
        &json!({ "steps": [
            { "if_attempt_below": 2, "steps": [{ "retry": { "reason": "not yet", "delay_ms": wait_ms } }] },
            { "execute": "INSERT INTO effects (id) VALUES ($1)", "params": [{ "message": "id" }] },
            publish(None), publish(Some(much_later)),
        ] }),
    )
}

async fn clocks_are_off(source: SourceSort) {
    let kind = StoreKind::Postgres;
    let scene = Scene::new(kind, source, &script(), TABLES, HANDLER).await;
    scene.store.connect().await.migrate().await.unwrap();
    // Rows of `attempts` go when their message succeeds.
    for sql in [
        "CREATE TABLE charged (id text, at timestamptz)",
        "CREATE FUNCTION record_charge() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO public.charged VALUES (NEW.message_id, NEW.at); RETURN NEW; END $$",
        "CREATE TRIGGER record_charge AFTER INSERT ON hapax.attempts FOR EACH ROW EXECUTE FUNCTION record_charge()",
    ] {
        scene.store.run(sql).await;
    }
    let mut probe = scene.store.probe().await;
    let now = probe
        .number("SELECT extract(epoch FROM now())::bigint")
        .await;
    let much_later = json!({ "seconds": now + 5 * 60, "nanoseconds": 0 });
    let mut done = 0;
    for offset in ["+10m", "-10m"] {
        let clock_is_off = host(&scene, offset).await;
        let mut messages = Vec::new();
        for n in 0..EACH {
            for (sort, wait) in [("soon", SOON_MS), ("late", FIVE_MINUTES_MS)] {
                messages.push(failing_once(
                    &format!("{sort}{offset}-{n}"),
                    wait,
                    &much_later,
                ));
            }
        }
        scene.publish(&messages).await;
        done += EACH;
        // Those for soon are not ten minutes late, and what they published now is there.
        probe.wait_for("SELECT count(*) FROM effects", done).await;
        let published = "SELECT count(*) FROM hapax.outbox WHERE published_at IS NOT NULL";
        probe.wait_for(published, done).await;
        probe
            .wait_for("SELECT count(*) FROM hapax.attempts", done)
            .await;
        // Those for later are not ten minutes early. Each start looks for what may go.
        clock_is_off.terminate();
        clock_is_off.wait_well();
        let again = host(&scene, offset).await;
        again.terminate();
        again.wait_well();
        assert_eq!(
            probe.number("SELECT count(*) FROM effects").await,
            done,
            "{offset}"
        );
        assert_eq!(probe.number(published).await, done, "{offset}");
        let waiting = "SELECT count(*) FROM hapax.queue WHERE queue <> 'later' \
             AND due_at BETWEEN now() + interval '3 minutes' AND now() + interval '6 minutes'";
        assert_eq!(probe.number(waiting).await, done, "{offset}");
    }
    let early = format!(
        "SELECT count(*) FROM effects JOIN charged USING (id) WHERE effects.at < charged.at + interval '{SOON_MS} milliseconds'"
    );
    assert_eq!(probe.number(&early).await, 0);
    assert_eq!(scene.count("dead_letters", "true").await, 0);
    assert_eq!(probe.number("SELECT count(*) FROM charged").await, 2 * done);
}

#[tokio::test]
async fn clocks_are_off_with_the_queue() {
    clocks_are_off(SourceSort::Queue).await;
}

#[tokio::test]
async fn clocks_are_off_with_jetstream() {
    clocks_are_off(SourceSort::JetStream).await;
}
