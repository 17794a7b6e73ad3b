//! `execute-many` and savepoints through the daemon: what a handler's script does, and what is committed of it.

use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::support::scene::{Scene, SourceSort, TestMessage, script};

/// `effects` has no key, so that an effect that is applied twice shows.
const TABLES: &str = "\
CREATE TABLE effects (id text NOT NULL, attempt bigint NOT NULL);
CREATE TABLE notes (key text PRIMARY KEY, value text);
INSERT INTO notes (key, value) VALUES ('taken', '');
";

/// Two attempts, quickly; one lane, so that messages run in their order.
pub(crate) const QUICK: &str = "lanes = 1\nretry = { attempts = 2, backoff = \"10ms\" }";

on_both_databases! {
    an_error_that_is_swallowed_in_a_savepoint_commits
    a_savepoint_that_is_left_open_fails
    savepoints_that_end_out_of_order
    messages_published_in_a_savepoint_go_with_it
    a_handler_has_no_savepoint_statements
    many_rows_in_one_call
    a_failing_row_is_told_and_nothing_of_it_stays
}

pub(crate) async fn scene(kind: StoreKind, tables: &str, handler: &str) -> Scene {
    let tables = format!("{TABLES}{tables}");
    Scene::new(kind, SourceSort::Queue, &script(), &tables, handler).await
}

pub(crate) fn message(id: &str, steps: Value) -> TestMessage {
    TestMessage::new(id, &json!({ "steps": steps }))
}

/// The step that leaves the message's id and attempt in `effects`.
pub(crate) fn effect() -> Value {
    json!({
        "execute": "INSERT INTO effects (id, attempt) VALUES ($1, $2)",
        "params": [{ "message": "id" }, { "message": "attempt" }],
        "expect_count": 1,
    })
}

pub(crate) fn note(key: &str) -> Value {
    json!({ "execute": "INSERT INTO notes (key) VALUES ($1)", "params": [{ "text": key }] })
}

/// Fails in the database, and the handler does not care.
fn swallowed() -> Value {
    json!({ "execute": "INSERT INTO notes (key) VALUES ('taken')", "swallow": true })
}

pub(crate) fn savepoint(end: &str, steps: Value) -> Value {
    json!({ "savepoint": end, "steps": steps })
}

/// The message took effect once, at its first attempt, and nothing else is left of it.
pub(crate) async fn assert_done(scene: &Scene, id: &str) {
    let effects = format!("SELECT count(*) FROM effects WHERE id = '{id}' AND attempt = 1");
    assert_eq!(scene.store.number(&effects).await, 1, "`{id}`");
    let of_id = format!("message_id = '{id}' AND outcome = 'done'");
    assert_eq!(scene.count("processed_messages", &of_id).await, 1, "`{id}`");
}

/// The message is dead after both attempts, because of what it did to its transaction, and had no effect.
pub(crate) async fn assert_dead(scene: &Scene, id: &str, reason: &str) {
    assert_dead_as(scene, id, "sql", reason).await;
}

async fn assert_dead_as(scene: &Scene, id: &str, class: &str, reason: &str) {
    let effects = format!("SELECT count(*) FROM effects WHERE id = '{id}'");
    assert_eq!(scene.store.number(&effects).await, 0, "`{id}`");
    let mut connection = scene.store.connect().await;
    let mut letters = connection.dead_letters("subject", 100).await.unwrap();
    letters.retain(|letter| {
        letter
            .letter
            .message_id
            .as_ref()
            .is_some_and(|own| own.as_str() == id)
    });
    assert_eq!(letters.len(), 1, "`{id}`: {letters:#?}");
    assert!(
        letters[0].letter.reason.contains(reason),
        "`{id}`: {letters:#?}"
    );
    assert_eq!(letters[0].letter.class.as_str(), class, "`{id}`");
    assert_eq!(letters[0].attempts.len(), 2, "`{id}`: {letters:#?}");
}

pub(crate) async fn notes(scene: &Scene) -> String {
    let keys = match scene.store.kind() {
        StoreKind::Postgres => "string_agg(key, ' ' ORDER BY key)",
        StoreKind::Sqlite => "group_concat(key, ' ' ORDER BY key)",
    };
    let sql = format!("SELECT {keys} FROM notes");
    scene.store.text(&sql).await.unwrap()
}

async fn an_error_that_is_swallowed_in_a_savepoint_commits(kind: StoreKind) {
    let scene = scene(kind, "", QUICK).await;
    let inside = |end: &str, id: &str| {
        let lost = format!("{id}-lost");
        let kept = format!("{id}-kept");
        message(
            id,
            json!([
                effect(),
                savepoint(end, json!([note(&lost), swallowed()])),
                note(&kept)
            ]),
        )
    };
    let closure = message(
        "closure",
        json!([
            effect(),
            { "savepoint": "closure", "steps": [note("closure-inside")] },
            { "savepoint": "closure", "swallow": true, "steps": [
                note("closure-lost"),
                { "execute": "INSERT INTO notes (key) VALUES ('taken')" },
            ] },
            note("closure-kept"),
        ]),
    );
    scene
        .publish(&[
            inside("rollback", "back"),
            message("outside", json!([effect(), swallowed()])),
            inside("drop", "dropped"),
            // A savepoint that was over before does not help.
            message(
                "before",
                json!([effect(), savepoint("release", json!([])), swallowed()]),
            ),
            // A release after the error is refused; the SDK's type is dropped with that, which undoes it.
            message(
                "released",
                json!([
                    effect(),
                    { "savepoint": "release", "steps": [note("released-lost"), swallowed()],
                      "expect_error": "aborted" },
                    note("released-kept"),
                ]),
            ),
            // An inner error, and an outer savepoint that is kept.
            message(
                "nested",
                json!([
                    effect(),
                    savepoint(
                        "release",
                        json!([
                            note("nested-kept"),
                            savepoint("rollback", json!([note("nested-lost"), swallowed()])),
                        ])
                    )
                ]),
            ),
            closure,
        ])
        .await;
    scene.run_until_idle();

    for id in ["back", "dropped", "released", "nested", "closure"] {
        assert_done(&scene, id).await;
    }
    assert_dead(&scene, "outside", "aborted").await;
    assert_dead(&scene, "before", "aborted").await;
    assert_eq!(
        notes(&scene).await,
        "back-kept closure-inside closure-kept dropped-kept nested-kept released-kept taken"
    );
    assert_eq!(scene.pending().await, 0);
}

async fn a_savepoint_that_is_left_open_fails(kind: StoreKind) {
    let scene = scene(kind, "", QUICK).await;
    scene
        .publish(&[
            message("first", json!([effect()])),
            message(
                "leaks",
                json!([
                    effect(),
                    note("leaked"),
                    savepoint("leak", json!([note("inner")]))
                ]),
            ),
            message(
                "by-name",
                json!([effect(), { "begin_savepoint": "a" }, { "begin_savepoint": "b" },
                       { "release_savepoint": "b" }]),
            ),
            // Ended with the outer one.
            message(
                "covered",
                json!([
                    effect(),
                    savepoint(
                        "release",
                        json!([
                            note("covered"),
                            savepoint("leak", json!([note("covered-inner")])),
                        ])
                    )
                ]),
            ),
            // Its own failure counts.
            message(
                "rejects",
                json!([{ "begin_savepoint": "a" }, { "reject": "no such account" }]),
            ),
            message("last", json!([effect()])),
        ])
        .await;
    scene.run_until_idle();

    for id in ["first", "covered", "last"] {
        assert_done(&scene, id).await;
    }
    assert_dead(&scene, "leaks", "savepoint.open").await;
    assert_dead(&scene, "by-name", "savepoint.open").await;
    let rejected = "message_id = 'rejects' AND class = 'rejected' AND reason = 'no such account'";
    assert_eq!(scene.count("dead_letters", rejected).await, 1);
    assert_eq!(notes(&scene).await, "covered covered-inner taken");
}

async fn savepoints_that_end_out_of_order(kind: StoreKind) {
    let scene = scene(kind, "", QUICK).await;
    let begin = |name: &str| json!({ "begin_savepoint": name });
    let mut limit = vec![effect()];
    limit.extend((0..64).map(|number| begin(&format!("s{number}"))));
    limit.push(json!({ "begin_savepoint": "more", "expect_error": "limit.savepoints" }));
    limit.push(json!({ "release_savepoint": "s63" }));
    limit.push(begin("again"));
    limit.push(json!({ "roll_back_savepoint": "s0" }));
    scene
        .publish(&[
            message(
                "released",
                json!([effect(), begin("a"), note("a"), begin("b"), note("b"), { "release_savepoint": "a" },
                       { "release_savepoint": "b", "expect_error": "savepoint.ended" }]),
            ),
            message(
                "rolled-back",
                json!([effect(), begin("a"), note("x"), begin("b"), note("y"), { "roll_back_savepoint": "a" },
                       { "roll_back_savepoint": "b", "expect_error": "savepoint.ended" }, note("c")]),
            ),
            message(
                "dropped",
                json!([effect(), begin("a"), note("x"), begin("b"), note("y"), { "drop_savepoint": "a" },
                       note("d"), { "drop_savepoint": "b" }]),
            ),
            message("limit", Value::Array(limit)),
        ])
        .await;
    scene.run_until_idle();
    for id in ["released", "rolled-back", "dropped", "limit"] {
        assert_done(&scene, id).await;
    }
    assert_eq!(notes(&scene).await, "a b c d taken");
}

async fn messages_published_in_a_savepoint_go_with_it(kind: StoreKind) {
    let scene = scene(kind, "", QUICK).await;
    let publish = |subject: &str| json!({ "publish": { "subject": subject } });
    scene
        .publish(&[message(
            "m",
            json!([
                effect(),
                publish("a"),
                savepoint("rollback", json!([publish("lost-1"), swallowed()])),
                savepoint(
                    "release",
                    json!([publish("b"), savepoint("drop", json!([publish("lost-2")]))])
                ),
                savepoint(
                    "rollback",
                    json!([savepoint("release", json!([publish("lost-3")]))])
                ),
                publish("c"),
            ]),
        )])
        .await;
    scene.run_until_idle();
    assert_done(&scene, "m").await;
    assert_eq!(scene.count("outbox", "1 = 1").await, 3);
    for (subject, ordinal) in [("a", 0), ("b", 2), ("c", 5)] {
        let row = format!("subject = '{subject}' AND ordinal = {ordinal}");
        assert_eq!(scene.count("outbox", &row).await, 1, "{row}");
    }
}

/// The names are the host's own, and known: a handler that could use them could end what the host thinks is open.
async fn a_handler_has_no_savepoint_statements(kind: StoreKind) {
    let scene = scene(kind, "", QUICK).await;
    let denied: Vec<Value> = [
        "SAVEPOINT x",
        "RELEASE hapax_savepoint_1",
        "RELEASE SAVEPOINT hapax_savepoint_1",
        "ROLLBACK TO hapax_savepoint_1",
        "ROLLBACK TO SAVEPOINT hapax_savepoint_1",
        "ROLLBACK",
        "COMMIT",
    ]
    .iter()
    .flat_map(|statement| {
        [
            json!({ "execute": statement, "expect_error": "denied.statement" }),
            json!({ "execute_many": statement, "rows": [[]], "expect_error": "denied.statement" }),
        ]
    })
    .collect();
    scene
        .publish(&[message(
            "m",
            json!([
                effect(),
                savepoint(
                    "release",
                    json!([note("kept"), savepoint("rollback", Value::Array(denied))])
                )
            ]),
        )])
        .await;
    scene.run_until_idle();
    assert_done(&scene, "m").await;
    assert_eq!(notes(&scene).await, "kept taken");
}

async fn many_rows_in_one_call(kind: StoreKind) {
    let scene = scene(kind, "CREATE TABLE lines (n bigint, t text);", QUICK).await;
    let insert = "INSERT INTO lines (n, t) VALUES ($1, $2)";
    let rows: Vec<Value> = (0..200)
        .map(|n| json!([{ "int64": n }, { "message": "id" }]))
        .collect();
    scene
        .publish(&[message(
            "m",
            json!([
                effect(),
                { "execute_many": insert, "rows": rows, "expect_counts": vec![1; 200] },
                { "execute_many": insert, "rows": [], "expect_counts": [] },
                { "execute_many": "UPDATE lines SET t = 'x' WHERE n < $1",
                  "rows": [[{ "int64": 3 }], [{ "int64": -1 }]], "expect_counts": [3, 0] },
                // None of these has touched the transaction.
                { "execute_many": insert, "rows": [[{ "int64": 1 }]], "expect_error": "params.count" },
                { "execute_many": insert, "rows": [[{ "int64": 1 }, { "text": "" }], [{ "int64": 1 }, { "int64_array": [1] }]],
                  "expect_error": "type.mismatch", "record": { "table": "notes", "key": "error" } },
            ]),
        )])
        .await;
    scene.run_until_idle();
    assert_done(&scene, "m").await;
    let count = "SELECT count(*) FROM lines";
    assert_eq!(scene.store.number(count).await, 200);
    let error = "SELECT value FROM notes WHERE key = 'error'";
    let error: Value = serde_json::from_str(&scene.store.text(error).await.unwrap()).unwrap();
    assert_eq!(error["error"]["row"], 1, "{error}");
    assert_eq!(error["error"]["param"], 2, "{error}");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("row 1: parameter $2: "), "{message}");
    assert!(message.ends_with("int64-array"), "{message}");
}

async fn a_failing_row_is_told_and_nothing_of_it_stays(kind: StoreKind) {
    let scene = scene(kind, "CREATE TABLE lines (n bigint PRIMARY KEY);", QUICK).await;
    let rows = |failing: usize| {
        let mut rows: Vec<Value> = (0..200).map(|n| json!([{ "int64": n }])).collect();
        rows[failing] = json!([{ "int64": 0 }]);
        Value::Array(rows)
    };
    let insert = "INSERT INTO lines (n) VALUES ($1)";
    scene
        .publish(&[
            message(
                "fails",
                json!([effect(), { "execute_many": insert, "rows": rows(123) }]),
            ),
            message(
                "swallows",
                json!([effect(), { "execute_many": insert, "rows": rows(7), "swallow": true }]),
            ),
            message(
                "in-savepoint",
                json!([
                    effect(),
                    savepoint("rollback", json!([
                        { "execute_many": insert, "rows": rows(99), "expect_error": "constraint.unique" },
                    ])),
                    { "execute_many": insert, "rows": [[{ "int64": 1_000 }]], "expect_counts": [1] },
                ]),
            ),
        ])
        .await;
    scene.run_until_idle();
    assert_dead_as(&scene, "fails", "retried", "row 123: ").await;
    assert_dead(&scene, "swallows", "aborted").await;
    assert_done(&scene, "in-savepoint").await;
    let all = "SELECT CAST(sum(n) + count(*) AS bigint) FROM lines";
    assert_eq!(scene.store.number(all).await, 1_001);
}

/// The server would be content with going back; but a deadlock is nobody's fault, so the message just runs again.
#[tokio::test]
async fn a_deadlock_in_a_savepoint_is_charged_to_nobody() {
    let tables = "CREATE TABLE places (n bigint); INSERT INTO places VALUES (1), (2), (3);";
    let scene = scene(StoreKind::Postgres, tables, QUICK).await;
    let update = |n: i64| format!("UPDATE places SET n = n WHERE n = {n}");
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();

    // The other session never looks for a deadlock, so that it is the handler's that the server ends; and the handler waits
    // for the gate until the other one waits for the handler.
    let mut other = scene.store.probe().await;
    other.run("SET deadlock_timeout = '1h'").await;
    other.run(&format!("BEGIN; {}", update(2))).await;
    let mut gate = scene.store.probe().await;
    gate.run(&format!("BEGIN; {}", update(3))).await;
    scene
        .publish(&[message(
            "m",
            json!([
                effect(),
                { "execute": update(1) },
                { "execute": update(3) },
                // Refused after the deadlock, and then dropped; kept in the run without one.
                { "savepoint": "release", "swallow": true, "steps": [
                    note("inside"),
                    { "execute": update(2), "swallow": true },
                ] },
            ]),
        )])
        .await;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let mut probe = scene.store.probe().await;
    probe.wait_for(waiting, 1).await;
    let text = update(1);
    let other = tokio::spawn(async move {
        other.run(&format!("{text}; COMMIT")).await;
    });
    probe.wait_for(waiting, 2).await;
    gate.run("COMMIT").await;
    other.await.unwrap();
    scene.wait_until_nothing_pends().await;
    host.terminate();
    host.wait_well();

    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    probe.wait_for(deadlocks, 1).await;
    // At its first attempt, which came twice.
    assert_done(&scene, "m").await;
    assert_eq!(scene.count("attempts", "true").await, 0);
    assert_eq!(scene.count("dead_letters", "true").await, 0);
    assert_eq!(notes(&scene).await, "inside taken");
}

/// Each row has the time of a statement, so it is the call's own limit that ends a long list, also on the server.
#[tokio::test]
async fn a_long_list_of_rows_ends_at_the_limit_of_the_call() {
    let handler = format!("{QUICK}\nlimits = {{ time = \"2s\" }}");
    let scene = scene(StoreKind::Postgres, "", &handler).await;
    let rows: Vec<Value> = (0..100).map(|_| json!([{ "float64": 1.5 }])).collect();
    scene
        .publish(&[
            message(
                "long",
                json!([effect(), { "execute_many": "SELECT pg_sleep($1)", "rows": rows }]),
            ),
            message("next", json!([effect()])),
        ])
        .await;
    scene.run_until_idle();
    assert_done(&scene, "next").await;
    let dead = "message_id = 'long' AND class = 'limit'";
    assert_eq!(scene.count("dead_letters", dead).await, 1);
    // All rows together would take 150 seconds.
    let mut probe = scene.store.probe().await;
    let running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'EXECUTE%'";
    probe.wait_for(running, 0).await;
}

/// They end the whole transaction, which going back to a savepoint does not mend.
#[tokio::test]
async fn a_transaction_that_sqlite_ended_in_a_savepoint_leaves_nothing() {
    let scene = scene(StoreKind::Sqlite, "", QUICK).await;
    let ending = |id: &str, end: &str| {
        let statement = json!({ "execute": "INSERT OR ROLLBACK INTO notes (key) VALUES ('taken')", "swallow": true });
        let mut ending = savepoint(end, json!([note("inside"), statement]));
        ending["swallow"] = json!(true);
        let mut after = note("after");
        after["swallow"] = json!(true);
        message(id, json!([effect(), ending, after]))
    };
    scene
        .publish(&[
            ending("back", "rollback"),
            message("next", json!([effect()])),
            ending("dropped", "drop"),
            message("last", json!([effect()])),
        ])
        .await;
    scene.run_until_idle();
    assert_dead(&scene, "back", "aborted").await;
    assert_dead(&scene, "dropped", "aborted").await;
    assert_done(&scene, "next").await;
    assert_done(&scene, "last").await;
    assert_eq!(notes(&scene).await, "taken");
}
