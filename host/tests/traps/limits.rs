//! Traps 3 to 6: time, instances, and the one writer of SQLite.

use std::time::{Duration, Instant};

use hapax::message::{ComponentDigest, FailureClass};
use hapax::store::StoreKind;
use serde_json::json;

use crate::support::scene::{Scene, script};
use crate::{
    QUICK, SourceSort, assert_dead, assert_once, effect, effects, good, message, scene,
    wait_for_settled,
};

/// A statement that would not end by itself while the test lasts.
fn endless(kind: StoreKind) -> &'static str {
    match kind {
        StoreKind::Postgres => "SELECT pg_sleep(600)",
        StoreKind::Sqlite => {
            "WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t"
        }
    }
}

/// No session of a host runs anything or sits in a transaction; on SQLite, nobody holds the write lock.
async fn assert_at_rest(scene: &Scene) {
    let mut probe = scene.store.probe().await;
    match scene.store.kind() {
        StoreKind::Postgres => {
            let busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'hapax lane%' AND \
                        (state LIKE 'idle in transaction%' OR wait_event = 'PgSleep')";
            probe.wait_for(busy, 0).await;
        }
        StoreKind::Sqlite => {
            // The host writes its counters now and then.
            probe.run("PRAGMA busy_timeout = 3000").await;
            probe.run("BEGIN IMMEDIATE; ROLLBACK").await;
        }
    }
}

on_all! {
    trap_03_and_04_an_endless_statement_is_cut_off_with_its_connection,
}

/// Epochs do not interrupt a host call, and a future that is dropped in the middle of one leaves its connection inside a
/// transaction: the connection is closed, which rolls back, and the next message has another.
async fn trap_03_and_04_an_endless_statement_is_cut_off_with_its_connection(
    kind: StoreKind,
    source: SourceSort,
) {
    let handler = format!("{QUICK}\nlimits = {{ time = \"300ms\" }}");
    let scene = scene(kind, source, &handler).await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    let started = Instant::now();
    scene
        .publish(&[
            message("slow", json!([effect(), { "execute": endless(kind) }])),
            good("next"),
            // Whatever the handler makes of it.
            message(
                "swallows",
                json!([effect(), { "execute": endless(kind), "swallow": true }]),
            ),
            // A write is interrupted in another way on SQLite: it ends the whole transaction.
            message(
                "writes",
                json!([effect(), { "execute": format!(
                    "INSERT INTO effects (id, attempt) SELECT 'slow', 1 FROM ({}) AS endless", match kind {
                        StoreKind::Postgres => "SELECT pg_sleep(600)",
                        StoreKind::Sqlite => "WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n FROM t WHERE n < 0",
                    }
                ), "swallow": true }, effect()]),
            ),
            good("last"),
        ])
        .await;
    wait_for_settled(&scene, 5).await;
    let took = started.elapsed();
    for id in ["slow", "swallows", "writes"] {
        let letter = assert_dead(&scene, id, FailureClass::Limit).await;
        assert!(letter.letter.reason.contains("limit `time`"), "{letter:#?}");
        // A server may take a second to see that its client is gone; until then the dead session holds the queue's row, which is
        // given up as another host's and comes once more.
        assert!(letter.attempts.len() >= 2, "{letter:#?}");
        for attempt in &letter.attempts {
            assert_eq!(attempt.class, FailureClass::Limit, "{attempt:#?}");
        }
    }
    assert_once(&scene, "next").await;
    assert_once(&scene, "last").await;
    // Six runs of 300 ms; a server may take a second to see that its client is gone.
    assert!(took < Duration::from_secs(25), "{took:?}");
    scene.wait_until_nothing_pends().await;
    assert_at_rest(&scene).await;
    host.terminate();
    host.wait_well();
}

/// SIGTERM in the middle of a statement: the call runs to its limit, and then the host ends well.
#[tokio::test]
async fn trap_03_a_host_that_drains_waits_for_the_statement_that_runs() {
    let handler = "lanes = 1\nlimits = { time = \"2s\" }";
    let scene = scene(StoreKind::Postgres, SourceSort::Queue, handler).await;
    let steps = json!([
        effect(),
        { "if_attempt_below": 2, "steps": [{ "execute": "SELECT pg_sleep(600)" }] },
    ]);
    scene.publish(&[message("slow", steps)]).await;
    let host = scene.host(&[], &[]);
    let mut probe = scene.store.probe().await;
    probe
        .wait_for(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND application_name LIKE 'hapax lane%'",
            1,
        )
        .await;
    host.terminate();
    host.wait_well();
    assert_eq!(effects(&scene, "slow").await, 0);
    assert_eq!(scene.count("processed_messages", "true").await, 0);
    assert_eq!(scene.count("attempts", "class = 'limit'").await, 1);
    assert_at_rest(&scene).await;
    scene.run_until_idle();
    assert_once(&scene, "slow").await;
}

/// More endless loops than threads: without epochs nothing else would run on this host.
#[tokio::test]
async fn trap_04_healthy_messages_run_beside_endless_loops() {
    // One message a transaction: a batch runs its messages in turn.
    let handler = "lanes = 6\nbatch = { max = 1 }\nretry = { attempts = 1 }\nlimits = { cpu = \"1s\", time = \"60s\" }";
    let scene = scene(StoreKind::Postgres, SourceSort::Queue, handler).await;
    let mut messages: Vec<_> = (0..4)
        .map(|number| {
            message(
                &format!("loop-{number}"),
                json!([effect(), { "loop": true }]),
            )
        })
        .collect();
    messages.extend((0..20).map(|number| good(&format!("m-{number}"))));
    scene.publish(&messages).await;
    scene
        .host(&["--until-idle"], &[("TOKIO_WORKER_THREADS", "2")])
        .wait_well();

    for number in 0..4 {
        let letter = assert_dead(&scene, &format!("loop-{number}"), FailureClass::Limit).await;
        assert!(letter.letter.reason.contains("limit `cpu`"), "{letter:#?}");
    }
    for number in 0..20 {
        assert_once(&scene, &format!("m-{number}")).await;
    }
    assert_at_rest(&scene).await;
}

on_both_databases! {
    trap_05_the_message_after_a_trap_has_a_fresh_instance,
}

/// A trapped instance can't be entered again.
async fn trap_05_the_message_after_a_trap_has_a_fresh_instance(
    kind: StoreKind,
    source: SourceSort,
) {
    let handler =
        "lanes = 1\nretry = { attempts = 2, backoff = \"10ms\" }\nlimits = { memory = \"16MiB\" }";
    let scene = scene(kind, source, handler).await;
    let traps = [
        (
            "panics",
            json!({ "panic": "at the disco" }),
            FailureClass::Trapped,
        ),
        (
            "traps",
            json!({ "unreachable": true }),
            FailureClass::Trapped,
        ),
        (
            "recurses",
            json!({ "recurse": true }),
            FailureClass::Trapped,
        ),
        (
            "swells",
            json!({ "alloc": 100_000_000 }),
            FailureClass::Limit,
        ),
    ];
    let mut messages = Vec::new();
    for (id, step, _) in &traps {
        messages.push(message(id, json!([effect(), step])));
        // As much memory as there is: nothing of the instance before counts.
        messages.push(message(
            &format!("after-{id}"),
            json!([{ "alloc": 10_000_000 }, effect()]),
        ));
        // Traps the first time, and is well in the next instance.
        messages.push(message(
            &format!("{id}-once"),
            json!([effect(), { "if_attempt_below": 2, "steps": [step] }]),
        ));
    }
    scene.publish(&messages).await;
    let said = scene.run_until_idle();
    for (id, _, class) in traps {
        assert_dead(&scene, id, class).await;
        assert_once(&scene, &format!("after-{id}")).await;
        assert_once(&scene, &format!("{id}-once")).await;
    }
    assert_eq!(scene.pending().await, 0);
    assert_explained(&scene, &said, source).await;
}

/// The guest's own words, and the function in whose code it was.
fn assert_explains(text: &str) {
    assert!(text.contains("panic: at the disco"), "{text}");
    assert!(text.contains("  at script::run::steps"), "{text}");
}

/// Each failure of `panics` is one record of the log that says all there is to know, and so does the history.
async fn assert_explained(scene: &Scene, said: &str, source: SourceSort) {
    let digest = ComponentDigest::of(&std::fs::read(script()).unwrap());
    let subject = match source {
        SourceSort::JetStream => "messages.test",
        SourceSort::Queue => "",
    };
    let records: Vec<serde_json::Value> = said
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|record: &serde_json::Value| record["message_id"] == "panics")
        .filter(|record| record["level"] != "DEBUG")
        .collect();
    assert_eq!(records.len(), 2, "{said}");
    for (record, (attempt, message)) in records
        .iter()
        .zip([(1, "failed, will be retried"), (2, "dead letter")])
    {
        let found = |name: &str| record[name].clone();
        assert_eq!(found("message"), message);
        assert_eq!(found("handler"), "subject");
        assert_eq!(found("component"), digest.to_string());
        assert_eq!(found("subject"), subject);
        assert_eq!(found("attempt"), attempt);
        assert_eq!(found("class"), "trapped");
        assert_explains(&found("reason").to_string());
    }
    let letters = scene.store.table("dead_letters");
    let history = scene
        .store
        .probe()
        .await
        .text(&format!(
            "SELECT CAST(attempts AS text) FROM {letters} WHERE message_id = 'panics'"
        ))
        .await
        .unwrap();
    let history: Vec<serde_json::Value> = serde_json::from_str(&history).unwrap();
    assert_eq!(history.len(), 2);
    for attempt in history {
        let text = attempt.to_string();
        assert_explains(&text);
        assert!(text.contains(&digest.to_string()[..12]), "{text}");
    }
}

/// Another program writes for longer than a lane waits: nobody is to blame.
#[tokio::test]
async fn trap_06_another_writer_on_sqlite_costs_no_message_anything() {
    let scene = scene(
        StoreKind::Sqlite,
        SourceSort::JetStream,
        "retry = { attempts = 1 }",
    )
    .await;
    let mut host = scene.host(&[], &[("HAPAX_LOG", "info,hapax=debug")]);
    host.wait_until_ready();
    let mut writer = scene.store.probe().await;
    writer
        .run("BEGIN IMMEDIATE; INSERT INTO notes (key) VALUES ('other')")
        .await;
    let ids: Vec<String> = (0..20).map(|number| format!("m-{number}")).collect();
    let messages: Vec<_> = ids.iter().map(|id| good(id)).collect();
    scene.publish(&messages).await;
    host.wait_for_line("running again");
    assert_eq!(scene.count("processed_messages", "true").await, 0);
    writer.run("COMMIT").await;
    // And one that writes all the time.
    let table = scene.store.table("processed_messages");
    let mut number = 0;
    let started = Instant::now();
    while scene
        .store
        .number(&format!("SELECT count(*) FROM {table}"))
        .await
        < 20
    {
        number += 1;
        writer
            .run(&format!("INSERT INTO notes (key) VALUES ('w-{number}')"))
            .await;
        assert!(started.elapsed() < Duration::from_secs(60), "starved");
    }
    scene.wait_until_nothing_pends().await;
    host.terminate();
    host.wait_well();
    for id in &ids {
        assert_once(&scene, id).await;
    }
    assert_eq!(scene.count("dead_letters", "true").await, 0);
    assert_eq!(scene.count("attempts", "true").await, 0);
}

/// Migrations read before they write. A transaction that begins as a reader is refused at once where it becomes a writer,
/// whatever the busy timeout says; one that begins as a writer waits.
#[tokio::test]
async fn trap_06_a_host_that_starts_waits_for_another_writer() {
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue, "").await;
    scene.publish(&[good("first")]).await;
    let mut writer = scene.store.probe().await;
    writer.run("CREATE TABLE other (id text)").await;
    writer
        .run("BEGIN IMMEDIATE; INSERT INTO other (id) VALUES ('x')")
        .await;
    let host = scene.host(&["--until-idle"], &[]);
    let database = scene.store.url.strip_prefix("sqlite:").unwrap().to_owned();
    let started = Instant::now();
    while !host.has_open(&database) {
        assert!(started.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // It is at the database now; the lock stays for a while.
    tokio::time::sleep(Duration::from_secs(1)).await;
    writer.run("COMMIT").await;
    host.wait_well();
    assert_once(&scene, "first").await;
}
