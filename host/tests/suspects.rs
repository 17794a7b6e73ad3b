//! A message that kills its host is found and charged, and nothing else is: suspects run alone, under a mark.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use hapax::message::FailureClass;
use hapax::store::{StoreKind, StoredDeadLetter};
use rustix::process::Signal;
use serde_json::json;
use support::host::Host;
use support::scene::{Scene, SourceSort, TestMessage, script};

const TABLES: &str = "CREATE TABLE effects (id text NOT NULL, attempt bigint NOT NULL);";
/// How often a host may die before a test gives up.
const DEATHS_MAX: usize = 12;

/// Leaves its id and attempt in `effects`.
fn message(id: &str) -> TestMessage {
    busy_message(id, 0)
}

/// As `message`, after so many rounds of arithmetic.
fn busy_message(id: &str, rounds: u32) -> TestMessage {
    let effect = json!({
        "execute": "INSERT INTO effects (id, attempt) VALUES ($1, $2)",
        "params": [{ "message": "id" }, { "message": "attempt" }],
    });
    TestMessage::new(id, &json!({ "steps": [{ "busy": rounds }, effect] }))
}

fn messages(count: u32, rounds: u32) -> Vec<TestMessage> {
    (1..=count)
        .map(|n| busy_message(&format!("m-{n}"), rounds))
        .collect()
}

async fn scene(kind: StoreKind, source: SourceSort, handler: &str) -> Scene {
    Scene::new(kind, source, &script(), TABLES, handler).await
}

async fn letters(scene: &Scene) -> Vec<StoredDeadLetter> {
    let mut connection = scene.store.connect().await;
    connection.dead_letters("subject", 1_000).await.unwrap()
}

/// Says what a letter was charged with.
fn charges(letter: &StoredDeadLetter) -> Vec<FailureClass> {
    letter
        .attempts
        .iter()
        .map(|attempt| attempt.class)
        .collect()
}

async fn effects(scene: &Scene, condition: &str) -> i64 {
    scene
        .store
        .number(&format!("SELECT count(*) FROM effects WHERE {condition}"))
        .await
}

/// Everything took effect once and was charged nothing, and nothing is left over.
async fn assert_all_once(scene: &Scene, count: i64) {
    assert_eq!(effects(scene, "1 = 1").await, count);
    let distinct = "SELECT count(DISTINCT id) FROM effects";
    assert_eq!(scene.store.number(distinct).await, count);
    assert_eq!(effects(scene, "attempt > 1").await, 0, "charged");
    assert_nothing_left(scene).await;
}

async fn assert_nothing_left(scene: &Scene) {
    assert_eq!(scene.count("attempts", "1 = 1").await, 0);
    assert_eq!(scene.count("started", "1 = 1").await, 0);
    assert_eq!(scene.pending().await, 0);
}

/// The claim, the dead letter and the effect of the scene's one message agree. Returns whether it is dead.
async fn is_dead(scene: &Scene) -> bool {
    let claimed_done = scene.count("processed_messages", "outcome = 'done'").await;
    let claimed_dead = scene.count("processed_messages", "outcome = 'dead'").await;
    let dead = scene.count("dead_letters", "1 = 1").await;
    let took_effect = effects(scene, "1 = 1").await;
    match (claimed_done, claimed_dead, dead, took_effect) {
        (1, 0, 0, 1) => false,
        (0, 1, 1, 0) => true,
        other => panic!("claimed done, claimed dead, dead, effects: {other:?}"),
    }
}

/// Runs hosts until one ends by itself. Returns how many died.
fn run_until_idle_over_deaths(scene: &Scene, variables: &[(&str, &str)]) -> usize {
    for deaths in 0..=DEATHS_MAX {
        let (status, said) = scene.host(&["--until-idle"], variables).wait();
        if status.success() {
            return deaths;
        }
        assert_eq!(status.signal(), Some(9), "{status}; the host said:\n{said}");
    }
    panic!("the host still dies");
}

async fn a_message_that_kills_its_host(kind: StoreKind, source: SourceSort, handler: &str) {
    let handler = format!(
        "batch = {{ max = 50 }}\nretry = {{ attempts = 2, backoff = \"10ms\" }}\n{handler}"
    );
    let scene = scene(kind, source, &handler).await;
    scene.publish(&messages(60, 0)).await;
    let deaths = run_until_idle_over_deaths(
        &scene,
        &[
            ("HAPAX_FAULT_POINT", "after-first-sql"),
            ("HAPAX_FAULT_MESSAGE", "m-30"),
        ],
    );
    // Twice unsuspected, twice charged.
    assert!((3..=5).contains(&deaths), "{deaths} deaths");
    assert_all_once(&scene, 59).await;
    let letters = letters(&scene).await;
    assert_eq!(letters.len(), 1, "{letters:#?}");
    let letter = &letters[0];
    assert_eq!(letter.letter.message_id.as_ref().unwrap().as_str(), "m-30");
    assert_eq!(letter.letter.class, FailureClass::Crashed);
    assert_eq!(charges(letter), [FailureClass::Crashed; 2]);
    assert!(
        letter.letter.reason.starts_with("the host ended while"),
        "{letter:#?}"
    );
}

#[tokio::test]
async fn a_message_that_kills_its_host_on_postgres_with_jetstream_and_one_lane() {
    let (kind, source) = (StoreKind::Postgres, SourceSort::JetStream);
    a_message_that_kills_its_host(kind, source, "lanes = 1").await;
}

#[tokio::test]
async fn a_message_that_kills_its_host_on_postgres_with_jetstream_and_four_lanes() {
    let (kind, source) = (StoreKind::Postgres, SourceSort::JetStream);
    a_message_that_kills_its_host(kind, source, "lanes = 4").await;
}

#[tokio::test]
async fn a_message_that_kills_its_host_on_postgres_with_the_queue_and_one_lane() {
    let (kind, source) = (StoreKind::Postgres, SourceSort::Queue);
    a_message_that_kills_its_host(kind, source, "lanes = 1").await;
}

#[tokio::test]
async fn a_message_that_kills_its_host_on_postgres_with_the_queue_and_four_lanes() {
    let (kind, source) = (StoreKind::Postgres, SourceSort::Queue);
    a_message_that_kills_its_host(kind, source, "lanes = 4").await;
}

#[tokio::test]
async fn a_message_that_kills_its_host_on_sqlite_with_the_queue() {
    let (kind, source) = (StoreKind::Sqlite, SourceSort::Queue);
    a_message_that_kills_its_host(kind, source, "lanes = 1").await;
}

/// Without claims the run's own lock tells that it is over.
#[tokio::test]
async fn a_message_that_kills_its_host_without_claims() {
    let (kind, source) = (StoreKind::Postgres, SourceSort::Queue);
    a_message_that_kills_its_host(kind, source, "lanes = 1\ndedup = \"off\"").await;
}

async fn rolling_restarts_charge_nothing(kind: StoreKind, source: SourceSort) {
    const RESTARTS: u32 = 20;
    const EACH: u32 = 60;
    // SQLite has one writer.
    let lanes = if kind == StoreKind::Postgres { 2 } else { 1 };
    let handler = format!(
        "lanes = {lanes}\nbatch = {{ max = 10 }}\nretry = {{ attempts = 2, backoff = \"10ms\" }}"
    );
    let scene = scene(kind, source, &handler).await;
    let all = messages(RESTARTS * EACH, 100_000);
    let mut ran_alone = 0;
    let mut done = 0;
    let mut in_the_middle = 0;
    for some in all.chunks(EACH as usize) {
        scene.publish(some).await;
        let mut host = scene.host(&["--log", "info,hapax::pipeline=debug"], &[]);
        host.wait_until_ready();
        let started = Instant::now();
        while effects(&scene, "1 = 1").await <= done {
            assert!(started.elapsed() < Duration::from_secs(60), "no progress");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        host.terminate();
        let said = host.wait_well();
        ran_alone += said.matches("\"runs alone\"").count();
        assert_eq!(scene.count("started", "1 = 1").await, 0);
        done = effects(&scene, "1 = 1").await;
        in_the_middle += u32::from(scene.pending().await > 0);
    }
    assert!(
        in_the_middle > RESTARTS / 2,
        "only {in_the_middle} restarts came in the middle of the work"
    );
    let said = scene
        .host(
            &["--until-idle", "--log", "info,hapax::pipeline=debug"],
            &[],
        )
        .wait_well();
    ran_alone += said.matches("\"runs alone\"").count();
    assert!(ran_alone > 0, "nothing was suspected");
    assert_eq!(scene.count("dead_letters", "1 = 1").await, 0);
    assert_all_once(&scene, all.len() as i64).await;
}

#[tokio::test]
async fn rolling_restarts_charge_nothing_on_postgres_with_jetstream() {
    rolling_restarts_charge_nothing(StoreKind::Postgres, SourceSort::JetStream).await;
}

#[tokio::test]
async fn rolling_restarts_charge_nothing_on_postgres_with_the_queue() {
    rolling_restarts_charge_nothing(StoreKind::Postgres, SourceSort::Queue).await;
}

#[tokio::test]
async fn rolling_restarts_charge_nothing_on_sqlite_with_the_queue() {
    rolling_restarts_charge_nothing(StoreKind::Sqlite, SourceSort::Queue).await;
}

/// Waits until one of the files is there; returns which.
async fn wait_for_file(files: &[&Path]) -> usize {
    let started = Instant::now();
    loop {
        if let Some(index) = files.iter().position(|file| file.exists()) {
            return index;
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "no host came to its fault point"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Starts a host that stops itself, as by SIGSTOP, once `m-1` has run its statement; then it writes `file`.
fn host_that_stops(scene: &Scene, file: &Path, arguments: &[&str]) -> Host {
    scene.host(
        arguments,
        &[
            ("HAPAX_FAULT_POINT", "after-first-sql"),
            ("HAPAX_FAULT_MESSAGE", "m-1"),
            ("HAPAX_FAULT_ACTION", "stop"),
            ("HAPAX_FAULT_FILE", &file.display().to_string()),
        ],
    )
}

/// Publishes `m-1` as a message that two hosts died with.
async fn publish_suspect(scene: &Scene) {
    scene.publish(&[message("m-1")]).await;
    if scene.nats.is_none() {
        let table = scene.store.table("queue");
        scene
            .store
            .run(&format!("UPDATE {table} SET seen = 3"))
            .await;
        return;
    }
    for _ in 0..2 {
        let (status, said) = scene
            .host(&[], &[("HAPAX_FAULT_POINT", "after-fetch")])
            .wait();
        assert_eq!(status.signal(), Some(9), "{status}; the host said:\n{said}");
    }
}

/// Two hosts wait at an empty queue; one of them takes the suspect and stops in its middle. Returns it, and the other.
async fn stopped_and_other(scene: &Scene) -> (Host, Host) {
    let files = ["stopped-1", "stopped-2"].map(|name| scene.folder().join(name));
    if scene.nats.is_some() {
        publish_suspect(scene).await;
        let first = host_that_stops(scene, &files[0], &[]);
        wait_for_file(&[&files[0]]).await;
        return (first, scene.host(&[], &[]));
    }
    let [mut first, mut second] = [0, 1].map(|index| host_that_stops(scene, &files[index], &[]));
    first.wait_until_ready();
    second.wait_until_ready();
    let mut probe = scene.store.probe().await;
    // One transaction: no host may see the row as no suspect.
    let table = scene.store.table("queue");
    let payload = String::from_utf8(message("m-1").payload)
        .unwrap()
        .replace('\'', "''");
    let payload = match scene.store.kind() {
        StoreKind::Postgres => format!("convert_to('{payload}', 'UTF8')"),
        StoreKind::Sqlite => format!("'{payload}'"),
    };
    probe
        .run(&format!(
            "INSERT INTO {table} (queue, headers, payload, seen) \
             VALUES ('messages', '[[\"Message-Id\", \"m-1\"]]', {payload}, 3)"
        ))
        .await;
    match wait_for_file(&[&files[0], &files[1]]).await {
        0 => (first, second),
        _ => (second, first),
    }
}

async fn a_slow_run_elsewhere_is_not_charged(kind: StoreKind, source: SourceSort) {
    let handler = "retry = { attempts = 1 }\nlimits = { time = \"60s\" }";
    const ELSEWHERE: &str = "runs at another host";
    const TRIES: usize = 20;
    let mut tries = 0;
    let (scene, slow, mut other) = loop {
        let scene = scene(kind, source, handler).await;
        let (slow, mut other) = stopped_and_other(&scene).await;
        // On SQLite the one that stands still holds the write lock. If the other had not seen the row before that, it never will.
        let (found, _) = other.wait_for_one_of(&[ELSEWHERE, "the source cannot be reached"]);
        if found == 0 {
            break (scene, slow, other);
        }
        tries += 1;
        assert!(tries < TRIES, "the row was never seen by both");
        for host in [slow, other] {
            host.kill();
            host.wait();
        }
    };
    for _ in 0..2 {
        other.wait_for_line(ELSEWHERE);
    }
    assert_eq!(scene.count("attempts", "1 = 1").await, 0);
    assert_eq!(scene.count("started", "1 = 1").await, 1);
    slow.signal(Signal::CONT);
    scene.wait_until_nothing_pends().await;
    for host in [slow, other] {
        host.terminate();
        host.wait_well();
    }
    assert!(!is_dead(&scene).await);
    assert_all_once(&scene, 1).await;
}

#[tokio::test]
async fn a_slow_run_elsewhere_is_not_charged_on_postgres_with_jetstream() {
    a_slow_run_elsewhere_is_not_charged(StoreKind::Postgres, SourceSort::JetStream).await;
}

#[tokio::test]
async fn a_slow_run_elsewhere_is_not_charged_on_postgres_with_the_queue() {
    a_slow_run_elsewhere_is_not_charged(StoreKind::Postgres, SourceSort::Queue).await;
}

#[tokio::test]
async fn a_slow_run_elsewhere_is_not_charged_on_sqlite_with_the_queue() {
    a_slow_run_elsewhere_is_not_charged(StoreKind::Sqlite, SourceSort::Queue).await;
}

/// The database ends the session of a host that is stopped for too long; then its run is over, and the other host uses up the
/// attempts. The stopped one goes on later and must not have its way.
async fn a_run_that_was_given_up_on(source: SourceSort) {
    let handler = "retry = { attempts = 1 }\nlimits = { time = \"1s\" }";
    let scene = scene(StoreKind::Postgres, source, handler).await;
    let (stopped, mut other) = stopped_and_other(&scene).await;
    other.wait_for_line("\"dead letter\"");
    stopped.signal(Signal::CONT);
    scene.wait_until_nothing_pends().await;
    for host in [stopped, other] {
        host.terminate();
        host.wait_well();
    }
    assert!(is_dead(&scene).await);
    assert_nothing_left(&scene).await;
    assert_eq!(charges(&letters(&scene).await[0]), [FailureClass::Crashed]);
}

#[tokio::test]
async fn a_run_that_was_given_up_on_with_jetstream() {
    a_run_that_was_given_up_on(SourceSort::JetStream).await;
}

#[tokio::test]
async fn a_run_that_was_given_up_on_with_the_queue() {
    a_run_that_was_given_up_on(SourceSort::Queue).await;
}

/// One host is slow on the message, unsuspecting; the other gets it again, finds the mark of an earlier death, and has no attempt
/// left: whether the slow one then commits or dies, the message is processed or dead, and never both.
async fn slow_beside_used_up_attempts(slow_one_dies: bool) {
    let handler =
        "lanes = 1\nretry = { attempts = 1, backoff = \"10ms\" }\nlimits = { time = \"60s\" }";
    let scene = scene(StoreKind::Postgres, SourceSort::JetStream, handler).await;
    // The first transaction of all writes down the component, and whoever needs it too waits for that one.
    scene.publish(&[message("m-0")]).await;
    scene.run_until_idle();
    scene
        .store
        .run("DELETE FROM effects; DELETE FROM hapax.processed_messages")
        .await;
    scene.publish(&[message("m-1")]).await;
    let file = scene.folder().join("stopped");
    let slow = host_that_stops(&scene, &file, &[]);
    wait_for_file(&[&file]).await;
    scene
        .store
        .run("INSERT INTO hapax.started (consumer, message_id, host) VALUES ('subject', 'm-1', 'gone:1:0')")
        .await;
    // The second delivery dies with its host; the third makes a suspect.
    let (status, said) = scene
        .host(&[], &[("HAPAX_FAULT_POINT", "after-fetch")])
        .wait();
    assert_eq!(status.signal(), Some(9), "{status}; the host said:\n{said}");
    let other = scene.host(&[], &[]);
    let mut probe = scene.store.probe().await;
    probe
        .wait_for(
            "SELECT count(*) FROM hapax.attempts WHERE class = 'crashed'",
            1,
        )
        .await;
    // It waits for the claim of the slow run.
    probe
        .wait_for(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%processed_messages%'",
            1,
        )
        .await;
    assert_eq!(scene.count("dead_letters", "1 = 1").await, 0);
    if slow_one_dies {
        slow.kill();
        slow.wait();
    } else {
        slow.signal(Signal::CONT);
        scene.wait_until_nothing_pends().await;
        slow.terminate();
        slow.wait_well();
    }
    scene.wait_until_nothing_pends().await;
    other.terminate();
    other.wait_well();
    assert_eq!(is_dead(&scene).await, slow_one_dies);
    assert_nothing_left(&scene).await;
}

#[tokio::test]
async fn slow_beside_used_up_attempts_and_it_commits() {
    slow_beside_used_up_attempts(false).await;
}

#[tokio::test]
async fn slow_beside_used_up_attempts_and_it_dies() {
    slow_beside_used_up_attempts(true).await;
}

/// The mark goes with the commit: dying right behind it leaves none.
async fn dying_after_the_commit_leaves_no_mark(kind: StoreKind) {
    let scene = scene(kind, SourceSort::Queue, "retry = { attempts = 1 }").await;
    publish_suspect(&scene).await;
    let variables = [("HAPAX_FAULT_POINT", "after-commit")];
    let (status, said) = scene.host(&["--until-idle"], &variables).wait();
    assert_eq!(status.signal(), Some(9), "{status}; the host said:\n{said}");
    assert_eq!(scene.count("started", "1 = 1").await, 0);
    assert_eq!(effects(&scene, "1 = 1").await, 1);
    scene.run_until_idle();
    assert!(!is_dead(&scene).await);
    assert_all_once(&scene, 1).await;
}

#[tokio::test]
async fn dying_after_the_commit_leaves_no_mark_on_postgres() {
    dying_after_the_commit_leaves_no_mark(StoreKind::Postgres).await;
}

#[tokio::test]
async fn dying_after_the_commit_leaves_no_mark_on_sqlite() {
    dying_after_the_commit_leaves_no_mark(StoreKind::Sqlite).await;
}

/// A suspect that runs longer than the grace of a stop is cut off with the process, and is not charged for it.
#[tokio::test]
async fn a_stop_within_a_suspect_is_not_charged() {
    let handler = "retry = { attempts = 1 }\nlimits = { time = \"60s\" }";
    let scene = scene(StoreKind::Postgres, SourceSort::Queue, handler).await;
    scene
        .store
        .run("CREATE TABLE gate (open boolean); INSERT INTO gate VALUES (false)")
        .await;
    let sleeps = "SELECT pg_sleep(CASE WHEN open THEN 0 ELSE 40 END) IS NULL FROM gate";
    let effect = "INSERT INTO effects (id, attempt) VALUES ('m-1', 1)";
    let steps = json!({ "steps": [{ "query": sleeps }, { "execute": effect }] });
    scene.publish(&[TestMessage::new("m-1", &steps)]).await;
    scene.store.run("UPDATE hapax.queue SET seen = 3").await;
    let host = scene.host(&[], &[("HAPAX_SHUTDOWN_GRACE", "1s")]);
    let mut probe = scene.store.probe().await;
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    probe.wait_for(asleep, 1).await;
    assert_eq!(scene.count("started", "true").await, 1);
    host.terminate();
    let (status, said) = host.wait();
    assert_eq!(status.code(), Some(0), "{status}; the host said:\n{said}");
    assert_eq!(scene.count("started", "true").await, 0);
    scene.store.run("UPDATE gate SET open = true").await;
    // What the server runs for the stopped host it ends by itself, later.
    scene
        .store
        .run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
        .await;
    scene.run_until_idle();
    assert!(!is_dead(&scene).await);
    assert_all_once(&scene, 1).await;
}

/// A mark whose message was then run by a host that did not suspect it: the next start sweeps it away.
async fn a_stale_mark_does_no_harm(kind: StoreKind) {
    let scene = scene(kind, SourceSort::Queue, "retry = { attempts = 1 }").await;
    scene.publish(&[message("m-1")]).await;
    let table = scene.store.table("started");
    scene
        .store
        .run(&format!(
            "INSERT INTO {table} (consumer, message_id, host) VALUES ('subject', 'm-1', 'gone:1:0')"
        ))
        .await;
    scene.run_until_idle();
    assert!(!is_dead(&scene).await);
    scene.run_until_idle();
    assert!(!is_dead(&scene).await);
    assert_all_once(&scene, 1).await;
}

#[tokio::test]
async fn a_stale_mark_does_no_harm_on_postgres() {
    a_stale_mark_does_no_harm(StoreKind::Postgres).await;
}

#[tokio::test]
async fn a_stale_mark_does_no_harm_on_sqlite() {
    a_stale_mark_does_no_harm(StoreKind::Sqlite).await;
}

/// A panic of the host is a bug; it must not look like a clean end, and the other lanes must not go on as if nothing were.
#[tokio::test]
async fn a_lane_that_panics_ends_the_process() {
    let scene = scene(StoreKind::Postgres, SourceSort::Queue, "lanes = 2").await;
    scene.publish(&messages(5, 0)).await;
    let host = scene.host(
        &[],
        &[
            ("HAPAX_FAULT_POINT", "after-handler"),
            ("HAPAX_FAULT_MESSAGE", "m-3"),
            ("HAPAX_FAULT_ACTION", "panic"),
        ],
    );
    let (status, said) = host.wait();
    assert_eq!(status.code(), Some(70), "{status}; the host said:\n{said}");
    assert!(
        said.contains("error: a part of the host panicked, so it stopped\nhint: "),
        "{said}"
    );
    scene.run_until_idle();
    assert_all_once(&scene, 5).await;
}
