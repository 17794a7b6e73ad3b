//! Traps 1 and 2: what a handler can do to its transaction.

use hapax::message::FailureClass;
use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::{
    QUICK, SourceSort, assert_dead, assert_once, effect, good, message, scene, scene_with,
};

/// Fails in the database, and the handler does not care.
fn swallowed() -> Value {
    json!({ "execute": "INSERT INTO notes (key) VALUES ('taken')", "swallow": true })
}

on_all! {
    trap_01_a_swallowed_error_is_never_done,
    trap_02_a_handler_cannot_end_its_transaction,
}

/// PostgreSQL answers the COMMIT of an aborted transaction with ROLLBACK and no error: the message would be acknowledged
/// and nothing of it applied. SQLite would keep what came before the error.
async fn trap_01_a_swallowed_error_is_never_done(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, QUICK).await;
    let aborted = json!({
        "execute": "INSERT INTO effects (id, attempt) VALUES ('later', 1)",
        "expect_error": "aborted",
    });
    scene
        .publish(&[
            message("swallows", json!([effect(), swallowed()])),
            good("next"),
            message("goes-on", json!([effect(), swallowed(), aborted])),
            message(
                "publishes",
                json!([{ "publish": { "subject": "s" } }, effect(), swallowed()]),
            ),
            message(
                "syntax",
                json!([effect(), { "execute": "SELECT FROM WHERE", "swallow": true }]),
            ),
            good("last"),
        ])
        .await;
    scene.run_until_idle();

    for id in ["swallows", "goes-on", "publishes", "syntax"] {
        let letter = assert_dead(&scene, id, FailureClass::Sql).await;
        assert!(letter.letter.reason.contains("aborted"), "{letter:#?}");
        assert_eq!(letter.attempts.len(), 2, "{letter:#?}");
        for attempt in &letter.attempts {
            assert_eq!(attempt.class, FailureClass::Sql);
            assert!(attempt.error.contains("aborted"), "{attempt:#?}");
        }
    }
    assert_once(&scene, "next").await;
    assert_once(&scene, "last").await;
    assert_eq!(scene.count("outbox", "true").await, 0);
    let all = scene.store.number("SELECT count(*) FROM effects").await;
    assert_eq!(all, 2);
    assert_eq!(scene.pending().await, 0);
}

/// A COMMIT would go through the driver: half a message is committed with its claim, the failure behind it is a duplicate.
async fn trap_02_a_handler_cannot_end_its_transaction(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, QUICK).await;
    let statements = [
        "COMMIT",
        ";COMMIT",
        "/* */ COMMIT",
        "-- x\n COMMIT",
        "commit and chain",
        "END",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT x",
        "RELEASE x",
        "SELECT 1; COMMIT",
        "INSERT INTO effects (id, attempt) VALUES ('behind', 1); COMMIT; BEGIN",
        "PREPARE TRANSACTION 'x'",
        "SET TRANSACTION READ ONLY",
    ];
    let messages: Vec<_> = statements
        .iter()
        .enumerate()
        .map(|(number, statement)| {
            let again = json!({ "retry": { "reason": "again" } });
            message(
                &format!("m-{number}"),
                json!([
                    effect(),
                    { "execute": statement, "expect_error": "denied.statement" },
                    { "query": statement, "expect_error": "denied.statement" },
                    { "if_attempt_below": 2, "steps": [again] },
                    { "execute": "UPDATE effects SET attempt = attempt WHERE id = $1",
                      "params": [{ "message": "id" }], "expect_count": 1 },
                ]),
            )
        })
        .collect();
    scene.publish(&messages).await;
    scene.run_until_idle();

    for number in 0..statements.len() {
        assert_once(&scene, &format!("m-{number}")).await;
    }
    // Each ran twice: the first run was asked back as a whole.
    let second = "SELECT count(*) FROM effects WHERE attempt = 2";
    assert_eq!(scene.store.number(second).await as usize, statements.len());
    let all = scene.store.number("SELECT count(*) FROM effects").await;
    assert_eq!(all as usize, statements.len());
    assert_eq!(scene.pending().await, 0);
}

/// SQLite ends a transaction in these ways without being asked; what follows would commit by itself, statement by
/// statement, and the claim would be gone.
#[tokio::test]
async fn trap_01_a_transaction_that_sqlite_ended_leaves_nothing() {
    let tables = "
        CREATE TABLE keyed (key text PRIMARY KEY ON CONFLICT ROLLBACK);
        INSERT INTO keyed (key) VALUES ('taken');
        CREATE TABLE raising (key text);
        CREATE TRIGGER raises BEFORE INSERT ON raising BEGIN SELECT RAISE(ROLLBACK, 'not here'); END;
        CREATE TABLE twice (key text NOT NULL ON CONFLICT ROLLBACK);
    ";
    let scene = scene_with(StoreKind::Sqlite, SourceSort::Queue, tables, QUICK).await;
    let statements = [
        "INSERT OR ROLLBACK INTO notes (key) VALUES ('taken')",
        "UPDATE OR ROLLBACK notes SET key = 'taken' WHERE key = 'other'",
        "INSERT INTO keyed (key) VALUES ('taken')",
        "INSERT INTO raising (key) VALUES ('x')",
        "INSERT INTO twice (key) VALUES (NULL)",
    ];
    let mut messages = Vec::new();
    for (number, statement) in statements.iter().enumerate() {
        let later = json!({
            "execute": "INSERT INTO effects (id, attempt) VALUES ('later', 1)",
            "swallow": true,
        });
        messages.push(message(
            &format!("m-{number}"),
            json!([
                effect(),
                { "execute": "INSERT INTO notes (key) VALUES ('other')", "expect_count": 1 },
                { "execute": statement, "swallow": true },
                later,
                later,
            ]),
        ));
        messages.push(good(&format!("next-{number}")));
    }
    scene.publish(&messages).await;
    scene.run_until_idle();

    for number in 0..statements.len() {
        let letter = assert_dead(&scene, &format!("m-{number}"), FailureClass::Sql).await;
        assert!(letter.letter.reason.contains("aborted"), "{letter:#?}");
        assert_eq!(letter.attempts.len(), 2);
        assert_once(&scene, &format!("next-{number}")).await;
    }
    let all = scene.store.number("SELECT count(*) FROM effects").await;
    assert_eq!(all as usize, statements.len());
    let notes = scene.store.number("SELECT count(*) FROM notes").await;
    assert_eq!(notes, 1, "only the note of the migration");
    assert_eq!(scene.pending().await, 0);
}

/// A deferred constraint speaks up at COMMIT: a known failure of the message.
#[tokio::test]
async fn trap_01_a_commit_that_is_refused_is_charged() {
    for kind in [StoreKind::Postgres, StoreKind::Sqlite] {
        let tables = "CREATE TABLE children (parent text REFERENCES notes (key) DEFERRABLE INITIALLY DEFERRED);";
        let scene = scene_with(kind, SourceSort::Queue, tables, QUICK).await;
        let orphan = json!({ "execute": "INSERT INTO children (parent) VALUES ('nobody')" });
        scene
            .publish(&[message("orphan", json!([effect(), orphan])), good("next")])
            .await;
        scene.run_until_idle();
        let letter = assert_dead(&scene, "orphan", FailureClass::Sql).await;
        assert!(
            letter.letter.reason.contains("constraint.foreign-key"),
            "{letter:#?}"
        );
        assert_eq!(letter.attempts.len(), 2);
        assert_once(&scene, "next").await;
        assert_eq!(scene.store.number("SELECT count(*) FROM children").await, 0);
    }
}
