//! Claims and what else gets old go after their time, and only then; what is too old to tell is not run.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::time::Duration;

use hapax::store::{Leftover, PRUNE_BATCH_MAX, PruneCursor, StoreKind};
use serde_json::{Value, json};
use support::database::{Probe, TestStore};
use support::host::{Output, run};
use support::scene::{Scene, SourceSort, TestMessage, credit_account, script};

const EFFECTS: &str = "CREATE TABLE effects (id text NOT NULL)";
const ACCOUNTS: &str = "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);\n\
                        INSERT INTO accounts (id, balance) VALUES ('a', 0);";
const DAY: Duration = Duration::from_secs(86_400);

macro_rules! on_both_databases {
    ($($check:ident,)*) => {$(
        mod $check {
            #[tokio::test]
            async fn on_postgres() {
                super::$check(super::StoreKind::Postgres).await;
            }

            #[tokio::test]
            async fn on_sqlite() {
                super::$check(super::StoreKind::Sqlite).await;
            }
        }
    )*};
}

on_both_databases! {
    old_claims_go_and_others_stay,
    a_batch_is_found_by_index,
    one_prunes_at_a_time,
    leftovers_have_a_ceiling,
    four_hosts_prune_exactly_while_messages_flow,
    the_command_counts_and_deletes,
    what_is_too_old_is_parked_and_its_replay_runs,
    late_ones_run_if_wanted,
    a_message_with_charged_failures_is_not_too_old,
}

/// The moment that lies `seconds` back.
fn ago(kind: StoreKind, seconds: u64) -> String {
    match kind {
        StoreKind::Postgres => format!("now() - interval '{seconds} seconds'"),
        StoreKind::Sqlite => {
            format!("strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-{seconds} seconds')")
        }
    }
}

fn days_ago(kind: StoreKind, days: u64) -> String {
    ago(kind, days * 86_400)
}

/// Writes `count` claims `PREFIX-1`.., done that many days ago.
async fn add_claims(store: &TestStore, probe: &mut Probe, prefix: &str, count: u64, days: u64) {
    let table = store.table("processed_messages");
    let then = days_ago(store.kind(), days);
    let (series, hash) = match store.kind() {
        StoreKind::Postgres => (
            format!("generate_series(1, {count}) AS series (n)"),
            "decode('00112233445566778899aabbccddeeff', 'hex')",
        ),
        StoreKind::Sqlite => (
            format!(
                "(WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) SELECT n FROM c)"
            ),
            "x'00112233445566778899aabbccddeeff'",
        ),
    };
    probe
        .run(&format!(
            "INSERT INTO {table} (consumer, message_id, processed_at, outcome, payload_hash) \
             SELECT 'subject', '{prefix}-' || n, {then}, 'done', {hash} FROM {series}"
        ))
        .await;
}

async fn store_of(kind: StoreKind) -> TestStore {
    match kind {
        StoreKind::Postgres => TestStore::postgres().await,
        StoreKind::Sqlite => TestStore::sqlite().await,
    }
}

/// A dead letter with its claim, `days` old.
async fn add_letter(store: &TestStore, probe: &mut Probe, id: &str, days: u64) {
    let (claims, letters) = (
        store.table("processed_messages"),
        store.table("dead_letters"),
    );
    let then = days_ago(store.kind(), days);
    let (hash, empty) = match store.kind() {
        StoreKind::Postgres => (
            "decode('00112233445566778899aabbccddeeff', 'hex')",
            "decode('', 'hex')",
        ),
        StoreKind::Sqlite => ("x'00112233445566778899aabbccddeeff'", "x''"),
    };
    probe
        .run(&format!(
            "INSERT INTO {claims} (consumer, message_id, processed_at, outcome, payload_hash) \
                 VALUES ('subject', '{id}', {then}, 'dead', {hash}); \
             INSERT INTO {letters} (consumer, handler, message_id, source, position, subject, headers, payload, class, \
                 reason, attempts, dead_at) \
                 VALUES ('subject', 'subject', '{id}', 'messages', '{id}', '', '[]', {empty}, 'rejected', 'no', '[]', {then})"
        ))
        .await;
}

async fn old_claims_go_and_others_stay(kind: StoreKind) {
    let store = store_of(kind).await;
    let mut probe = store.probe().await;
    add_claims(
        &store,
        &mut probe,
        "old",
        2 * u64::from(PRUNE_BATCH_MAX) + 10,
        20,
    )
    .await;
    add_claims(&store, &mut probe, "young", 50, 13).await;
    add_letter(&store, &mut probe, "kept", 30).await;
    let claims = store.table("processed_messages");
    probe
        .run(&format!(
            "INSERT INTO {claims} (consumer, message_id, processed_at, outcome, payload_hash) \
             SELECT 'other', message_id, processed_at, outcome, payload_hash FROM {claims} WHERE message_id = 'old-1'"
        ))
        .await;

    let mut connection = store.connect().await;
    let age = 14 * DAY;
    let found = connection.prunable_claims("subject", age).await.unwrap();
    assert_eq!((found.rows, found.kept), (2_010, 1));
    let mut cursor = PruneCursor::default();
    let mut deleted = Vec::new();
    loop {
        let batch = connection
            .prune_claims("subject", age, &mut cursor)
            .await
            .unwrap();
        deleted.push(batch.deleted);
        if batch.is_last {
            break;
        }
    }
    assert_eq!(deleted, [1_000, 1_000, 10]);
    let left = |condition: &str| format!("SELECT count(*) FROM {claims} WHERE {condition}");
    assert_eq!(probe.number(&left("consumer = 'subject'")).await, 51);
    assert_eq!(probe.number(&left("message_id LIKE 'young-%'")).await, 50);
    assert_eq!(probe.number(&left("message_id = 'kept'")).await, 1);
    assert_eq!(probe.number(&left("consumer = 'other'")).await, 1);

    // Once its letter is gone, the claim goes like any other.
    probe
        .run(&format!("DELETE FROM {}", store.table("dead_letters")))
        .await;
    let batch = connection
        .prune_claims("subject", age, &mut PruneCursor::default())
        .await
        .unwrap();
    assert_eq!((batch.deleted, batch.is_last), (1, true));
}

/// However many claims there are, a batch looks only at those that it deletes.
async fn a_batch_is_found_by_index(kind: StoreKind) {
    let store = store_of(kind).await;
    let mut probe = store.probe().await;
    add_claims(&store, &mut probe, "young", 200_000, 1).await;
    add_claims(&store, &mut probe, "old", 500, 20).await;
    match &mut probe {
        Probe::Postgres(connection) => {
            let fetches = "SELECT (seq_scan + coalesce(seq_tup_read, 0))::bigint FROM pg_stat_user_tables \
                           WHERE relname = 'processed_messages'";
            sqlx::raw_sql("ANALYZE hapax.processed_messages; SELECT pg_stat_force_next_flush()")
                .execute(&mut *connection)
                .await
                .unwrap();
            let before: i64 = sqlx::query_scalar(fetches)
                .fetch_one(&mut *connection)
                .await
                .unwrap();
            {
                let mut pruner = store.connect().await;
                let batch = pruner
                    .prune_claims("subject", 14 * DAY, &mut PruneCursor::default())
                    .await
                    .unwrap();
                assert_eq!((batch.deleted, batch.is_last), (500, true));
                let found = pruner.prunable_claims("subject", 14 * DAY).await.unwrap();
                assert_eq!(found.rows, 0);
            }
            // The statistics of a session are there when it has ended.
            let ended = "SELECT count(*) FROM pg_stat_activity \
                         WHERE application_name LIKE '%hapax%' AND pid <> pg_backend_pid()";
            probe.wait_for(ended, 0).await;
            assert_eq!(probe.number(fetches).await, before, "the table was scanned");
        }
        Probe::Sqlite(connection) => {
            let plan: Vec<(i64, i64, i64, String)> = sqlx::query_as(
                "EXPLAIN QUERY PLAN SELECT message_id, processed_at FROM hapax_processed_messages AS claim \
                 WHERE claim.consumer = 'subject' AND claim.processed_at < '2020' AND claim.processed_at >= '' \
                 ORDER BY claim.processed_at LIMIT 1000",
            )
            .fetch_all(&mut *connection)
            .await
            .unwrap();
            let plan = format!("{plan:?}");
            assert!(
                plan.contains("SEARCH claim USING")
                    && plan.contains("hapax_processed_messages_age")
                    && !plan.contains("TEMP B-TREE"),
                "{plan}"
            );
            let mut pruner = store.connect().await;
            let batch = pruner
                .prune_claims("subject", 14 * DAY, &mut PruneCursor::default())
                .await
                .unwrap();
            assert_eq!((batch.deleted, batch.is_last), (500, true));
        }
    }
}

async fn one_prunes_at_a_time(kind: StoreKind) {
    let store = store_of(kind).await;
    let mut first = store.connect().await;
    let mut second = store.connect().await;
    assert!(first.begin_pruning("first").await.unwrap());
    assert!(!second.begin_pruning("second").await.unwrap());
    first.end_pruning().await.unwrap();
    assert!(second.begin_pruning("second").await.unwrap());
    assert!(!first.begin_pruning("first").await.unwrap());
    if kind == StoreKind::Sqlite {
        // A process that died is waited for a minute at the most.
        let mut probe = store.probe().await;
        probe
            .run(&format!("UPDATE hapax_pruner SET until = {}", ago(kind, 1)))
            .await;
    } else {
        drop(second);
        let mut probe = store.probe().await;
        probe
            .wait_for(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'",
                0,
            )
            .await;
    }
    assert!(first.begin_pruning("first").await.unwrap());
}

async fn leftovers_have_a_ceiling(kind: StoreKind) {
    let store = store_of(kind).await;
    let mut probe = store.probe().await;
    let [attempts, started, counters, queue, letters] =
        ["attempts", "started", "counters", "queue", "dead_letters"].map(|name| store.table(name));
    let (old, young) = (days_ago(kind, 40), days_ago(kind, 1));
    let yes = match kind {
        StoreKind::Postgres => "''",
        StoreKind::Sqlite => "x''",
    };
    probe
        .run(&format!(
            "INSERT INTO {attempts} (consumer, message_id, attempt, at, class, error) VALUES \
                 ('subject', 'gone', 1, {old}, 'retried', ''), ('subject', 'gone', 2, {old}, 'retried', ''), \
                 ('subject', 'waits', 1, {old}, 'retried', ''), ('subject', 'fresh', 1, {young}, 'retried', ''); \
             INSERT INTO {queue} (queue, message_id, payload, origin_source) VALUES ('@subject', 'waits', {yes}, 'messages'); \
             INSERT INTO {started} (consumer, message_id, host, started_at) VALUES \
                 ('subject', 'gone', 'h', {old}), ('subject', 'fresh', 'h', {young}); \
             INSERT INTO {counters} (consumer, host, claimed, dead, updated_at) VALUES \
                 ('subject', 'pod-1', 5, 1, {old}), ('subject', 'pod-2', 7, 2, {old}), ('subject', 'pod-3', 11, 3, {young})"
        ))
        .await;
    add_letter(&store, &mut probe, "old", 100).await;
    add_letter(&store, &mut probe, "queued", 100).await;
    add_letter(&store, &mut probe, "young", 10).await;
    probe
        .run(&format!(
            "INSERT INTO {queue} (queue, payload, origin_source, dead_letter) \
             SELECT '@subject', {yes}, 'messages', id FROM {letters} WHERE message_id = 'queued'"
        ))
        .await;

    let mut connection = store.connect().await;
    for (what, days, gone) in [
        (Leftover::Attempts, 30, 2),
        (Leftover::Marks, 30, 1),
        (Leftover::Counters, 7, 2),
        (Leftover::DeadLetters, 90, 1),
    ] {
        let age = days * DAY;
        assert_eq!(
            connection.prunable_leftovers(what, age).await.unwrap(),
            gone,
            "{what:?}"
        );
        let batch = connection.prune_leftovers(what, age).await.unwrap();
        assert_eq!((batch.deleted, batch.is_last), (gone, true), "{what:?}");
        let batch = connection.prune_leftovers(what, age).await.unwrap();
        assert_eq!(batch.deleted, 0, "{what:?}");
    }
    // What was counted stays counted.
    let sum = connection.counters("subject").await.unwrap();
    assert_eq!((sum.claimed, sum.dead), (23, 6));
    let hosts = format!("SELECT count(*) FROM {counters}");
    assert_eq!(probe.number(&hosts).await, 2);
    let left = format!("SELECT count(*) FROM {letters} WHERE message_id IN ('queued', 'young')");
    assert_eq!(probe.number(&left).await, 2);
}

fn credit(id: String, amount: u64) -> TestMessage {
    TestMessage::new(id, &json!({ "account": "a", "amount": amount }))
}

async fn four_hosts_prune_exactly_while_messages_flow(kind: StoreKind) {
    const OLD: u64 = 20_000;
    const MESSAGES: u64 = 400;
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &credit_account(),
        ACCOUNTS,
        "dedup = \"14d\"",
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let mut probe = scene.store.probe().await;
    add_claims(&scene.store, &mut probe, "old", OLD, 20).await;
    add_claims(&scene.store, &mut probe, "young", 1_000, 10).await;
    add_letter(&scene.store, &mut probe, "kept", 20).await;
    let mut hosts: Vec<_> = (0..4).map(|_| scene.host(&[], &[])).collect();
    for host in &mut hosts {
        host.wait_until_ready();
    }
    let messages: Vec<TestMessage> = (0..MESSAGES).map(|n| credit(format!("m-{n}"), n)).collect();
    for some in messages.chunks(100) {
        scene.publish(some).await;
    }
    scene.wait_until_nothing_pends().await;
    let claims = scene.store.table("processed_messages");
    probe
        .wait_for(
            &format!("SELECT count(*) FROM {claims} WHERE message_id LIKE 'old-%'"),
            0,
        )
        .await;
    let mut said = String::new();
    for host in hosts {
        host.terminate();
        said.push_str(&host.wait_well());
    }
    assert!(!said.contains("deadlock"), "{said}");
    assert!(!said.contains("cannot prune"), "{said}");
    assert_eq!(
        scene.count("processed_messages", "true").await,
        1_000 + 1 + MESSAGES as i64
    );
    assert_eq!(
        scene.store.number("SELECT balance FROM accounts").await,
        (0..MESSAGES).sum::<u64>() as i64
    );
}

fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", output.err);
    serde_json::from_str(&output.out).unwrap()
}

async fn the_command_counts_and_deletes(kind: StoreKind) {
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        EFFECTS,
        "dedup = \"14d\"",
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let mut probe = scene.store.probe().await;
    add_claims(&scene.store, &mut probe, "old", 1_500, 20).await;
    add_claims(&scene.store, &mut probe, "young", 5, 2).await;
    add_letter(&scene.store, &mut probe, "kept", 20).await;

    let said = json_of(&run(scene.folder(), &["prune", "--dry-run", "--json"]));
    assert_eq!(said["dry_run"], true);
    assert_eq!(
        said["pruned"][0],
        json!({"what": "claims", "handler": "subject", "older_than_seconds": 14 * 86_400 + 3_600, "rows": 1_500, "kept": 1, "deleted": 0})
    );
    assert_eq!(scene.count("processed_messages", "true").await, 1_506);
    // Its estimate or its count: bytes and an age are told.
    let status = run(scene.folder(), &["status"]);
    assert!(
        status.out.contains("1506 claims in") && status.out.contains("oldest claim of `subject`: "),
        "{}",
        status.out
    );

    let said = json_of(&run(scene.folder(), &["prune", "subject", "--json"]));
    assert_eq!(said["pruned"].as_array().unwrap().len(), 1);
    assert_eq!(said["pruned"][0]["deleted"], 1_500);
    assert_eq!(scene.count("processed_messages", "true").await, 6);
    let output = run(scene.folder(), &["prune"]);
    assert!(output.status.success(), "{}", output.err);
    assert!(
        output
            .out
            .contains("1 claim of dead letters that still exist"),
        "{}",
        output.out
    );

    let unknown = run(scene.folder(), &["prune", "nobody"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert_eq!(
        unknown.err,
        "error: there is no handler `nobody`\nhint: the handlers are `subject`\n"
    );
    let mut other = scene.store.connect().await;
    assert!(other.begin_pruning("other").await.unwrap());
    let busy = run(scene.folder(), &["prune"]);
    assert_eq!(busy.status.code(), Some(1));
    assert!(
        busy.err.contains("a host is pruning this store now"),
        "{}",
        busy.err
    );
}

fn leaves_an_effect(id: &str) -> TestMessage {
    TestMessage::new(
        id,
        &json!({ "steps": [
            { "execute": "INSERT INTO effects (id) VALUES ($1)", "params": [{ "message": "id" }] }
        ] }),
    )
}

/// Makes the queue's row with this id older.
async fn age_row(scene: &Scene, id: &str, days: u64) {
    let queue = scene.store.table("queue");
    let then = days_ago(scene.store.kind(), days);
    let headers = match scene.store.kind() {
        StoreKind::Postgres => "headers::text",
        StoreKind::Sqlite => "headers",
    };
    scene
        .store
        .run(&format!(
            "UPDATE {queue} SET enqueued_at = {then} WHERE {headers} LIKE '%\"{id}\"%'"
        ))
        .await;
}

async fn effects(scene: &Scene, id: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM effects WHERE id = '{id}'");
    scene.store.number(&sql).await
}

async fn what_is_too_old_is_parked_and_its_replay_runs(kind: StoreKind) {
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        EFFECTS,
        "dedup = \"14d\"",
    )
    .await;
    scene
        .publish(&[
            leaves_an_effect("old"),
            leaves_an_effect("edge"),
            leaves_an_effect("done"),
            leaves_an_effect("new"),
        ])
        .await;
    age_row(&scene, "old", 15).await;
    age_row(&scene, "edge", 13).await;
    // Done before, and not pruned yet: a duplicate, however old.
    age_row(&scene, "done", 15).await;
    let mut probe = scene.store.probe().await;
    add_claims(&scene.store, &mut probe, "d", 1, 14).await;
    let claims = scene.store.table("processed_messages");
    let payload = leaves_an_effect("done").payload;
    let hash = hapax::message::ShortHash::of_payload(&payload).to_hex();
    let hash = match kind {
        StoreKind::Postgres => format!("decode('{hash}', 'hex')"),
        StoreKind::Sqlite => format!("x'{hash}'"),
    };
    probe
        .run(&format!(
            "UPDATE {claims} SET message_id = 'done', payload_hash = {hash} WHERE message_id = 'd-1'"
        ))
        .await;
    scene.run_until_idle();

    assert_eq!(effects(&scene, "old").await, 0);
    assert_eq!(effects(&scene, "done").await, 0);
    assert_eq!(effects(&scene, "edge").await, 1);
    assert_eq!(effects(&scene, "new").await, 1);
    assert_eq!(
        scene
            .count("dead_letters", "message_id = 'old' AND class = 'too-old'")
            .await,
        1
    );
    assert_eq!(scene.count("dead_letters", "true").await, 1);
    assert_eq!(
        scene
            .count(
                "processed_messages",
                "message_id = 'old' AND outcome = 'dead'"
            )
            .await,
        1
    );
    let status = scene.status();
    assert_eq!(
        (&status["claimed"], &status["duplicates"], &status["dead"]),
        (&json!(2), &json!(1), &json!(1))
    );

    let listed = json_of(&run(
        scene.folder(),
        &["dead-letters", "list", "--class", "too-old", "--json"],
    ));
    assert!(listed.to_string().contains("before the window"), "{listed}");
    let replayed = run(
        scene.folder(),
        &["dead-letters", "replay", "--class", "too-old", "--yes"],
    );
    assert!(replayed.status.success(), "{}", replayed.err);
    scene.run_until_idle();
    assert_eq!(effects(&scene, "old").await, 1);
    assert_eq!(scene.count("dead_letters", "true").await, 0);
}

async fn late_ones_run_if_wanted(kind: StoreKind) {
    let handler = "dedup = \"14d\"\nlate = \"run\"";
    let scene = Scene::new(kind, SourceSort::Queue, &script(), EFFECTS, handler).await;
    scene.publish(&[leaves_an_effect("old")]).await;
    age_row(&scene, "old", 15).await;
    scene.run_until_idle();
    assert_eq!(effects(&scene, "old").await, 1);
}

/// It ran here and came to nothing, so it was not processed; and what hapax carries itself is not its source's any more.
async fn a_message_with_charged_failures_is_not_too_old(kind: StoreKind) {
    let handler = "dedup = \"2s\"\nretry = { attempts = 3, backoff = \"3s\" }";
    let scene = Scene::new(kind, SourceSort::Queue, &script(), EFFECTS, handler).await;
    let mut message = leaves_an_effect("again");
    let steps: Value = serde_json::from_slice(&message.payload).unwrap();
    message.payload = json!({ "steps": [
        { "if_attempt_below": 2, "steps": [{ "panic": "first" }] },
        steps["steps"][0],
    ] })
    .to_string()
    .into_bytes();
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    scene.publish(&[message]).await;
    let claims = scene.store.table("processed_messages");
    let mut probe = scene.store.probe().await;
    probe
        .wait_for(&format!("SELECT count(*) FROM {claims}"), 1)
        .await;
    assert_eq!(effects(&scene, "again").await, 1);
    assert_eq!(scene.count("dead_letters", "true").await, 0);
}

#[test]
fn a_window_that_is_shorter_than_the_streams_memory_is_warned_of_with_numbers() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let scene = runtime.block_on(Scene::new(
        StoreKind::Sqlite,
        SourceSort::JetStream,
        &script(),
        EFFECTS,
        "dedup = \"14d\"",
    ));
    let said = scene.run_until_idle();
    assert!(
        said.contains(
            "claims are kept for 14d, and the stream keeps messages for ever (ack wait 2s, duplicates dropped for 2m)"
        ) && said.contains("also one that was never processed"),
        "{said}"
    );
}
