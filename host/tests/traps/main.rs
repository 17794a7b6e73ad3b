//! The traps that were found in messages, databases and handlers, each through the real daemon: what would be lost or done
//! twice without its cure is counted.
//!
//! The handler is `script`: what it does stands in the message. Each module holds the traps of one subject; a test's name
//! begins with its trap's number in the design.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

/// Makes tests of a check: on both databases, with the embedded queue.
macro_rules! on_both_databases {
    ($($check:ident,)*) => {$(
        mod $check {
            use crate::{SourceSort, StoreKind};

            #[tokio::test]
            async fn on_postgres() {
                super::$check(StoreKind::Postgres, SourceSort::Queue).await;
            }

            #[tokio::test]
            async fn on_sqlite() {
                super::$check(StoreKind::Sqlite, SourceSort::Queue).await;
            }
        }
    )*};
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

mod dead;
mod identity;
mod limits;
mod retries;
mod texts;
mod transaction;

use hapax::message::FailureClass;
use hapax::store::{StoreKind, StoredDeadLetter};
use serde_json::{Value, json};
use support::scene::{Scene, SourceSort, TestMessage, script};

/// `effects` has no key, so that an effect that is applied twice shows.
const TABLES: &str = "\
CREATE TABLE effects (id text NOT NULL, attempt bigint NOT NULL);
CREATE TABLE notes (key text PRIMARY KEY, value text);
INSERT INTO notes (key, value) VALUES ('taken', '');
";

/// Two attempts, quickly; one lane, so that messages run in their order.
const QUICK: &str = "lanes = 1\nretry = { attempts = 2, backoff = \"10ms\" }";

/// A scene with the tables above, and more lines for the handler.
async fn scene(kind: StoreKind, source: SourceSort, handler: &str) -> Scene {
    scene_with(kind, source, "", handler).await
}

/// A scene with more tables.
async fn scene_with(kind: StoreKind, source: SourceSort, tables: &str, handler: &str) -> Scene {
    let tables = format!("{TABLES}{tables}");
    let scene = Scene::new(kind, source, &script(), &tables, handler).await;
    // So that a test can look before the host has started.
    scene.store.connect().await.migrate().await.unwrap();
    scene
}

/// A message whose handler does `steps`.
fn message(id: &str, steps: Value) -> TestMessage {
    TestMessage::new(id, &json!({ "steps": steps }))
}

/// A message that only takes effect.
fn good(id: &str) -> TestMessage {
    message(id, json!([effect()]))
}

/// The step that leaves the message's id and attempt in `effects`.
fn effect() -> Value {
    json!({
        "execute": "INSERT INTO effects (id, attempt) VALUES ($1, $2)",
        "params": [{ "message": "id" }, { "message": "attempt" }],
        "expect_count": 1,
    })
}

/// How often a message has taken effect.
async fn effects(scene: &Scene, id: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM effects WHERE id = '{id}'");
    scene.store.number(&sql).await
}

/// The dead letters, in the order of writing.
async fn letters(scene: &Scene) -> Vec<StoredDeadLetter> {
    let mut connection = scene.store.connect().await;
    connection.dead_letters("subject", 1_000).await.unwrap()
}

/// The one dead letter with this message id.
async fn letter(scene: &Scene, id: &str) -> StoredDeadLetter {
    let mut found = letters(scene).await;
    found.retain(|letter| {
        letter
            .letter
            .message_id
            .as_ref()
            .is_some_and(|own| own.as_str() == id)
    });
    assert_eq!(found.len(), 1, "dead letters of `{id}`: {found:#?}");
    found.remove(0)
}

/// The message took effect once, counts as done, and is nowhere else.
async fn assert_once(scene: &Scene, id: &str) {
    assert_eq!(effects(scene, id).await, 1, "effects of `{id}`");
    assert_eq!(outcomes(scene, id).await, "done");
    let of_id = format!("message_id = '{id}'");
    assert_eq!(scene.count("attempts", &of_id).await, 0, "`{id}`");
    assert_eq!(scene.count("dead_letters", &of_id).await, 0, "`{id}`");
}

/// The message had no effect, counts as dead, and stands once in the dead letters. Returns its letter.
async fn assert_dead(scene: &Scene, id: &str, class: FailureClass) -> StoredDeadLetter {
    assert_eq!(effects(scene, id).await, 0, "effects of `{id}`");
    assert_eq!(outcomes(scene, id).await, "dead");
    let of_id = format!("message_id = '{id}'");
    assert_eq!(scene.count("attempts", &of_id).await, 0, "`{id}`");
    let letter = letter(scene, id).await;
    assert_eq!(letter.letter.class, class, "{letter:#?}");
    letter
}

/// The outcomes of an id's claims: `done`, `dead`, or nothing.
async fn outcomes(scene: &Scene, id: &str) -> String {
    let table = scene.store.table("processed_messages");
    let sql = format!(
        "SELECT coalesce(max(outcome), '') FROM {table} WHERE consumer = 'subject' AND message_id = '{id}'"
    );
    scene.store.text(&sql).await.unwrap()
}

/// Waits until so many messages are settled: done or dead.
async fn wait_for_settled(scene: &Scene, count: i64) {
    let table = scene.store.table("processed_messages");
    let mut probe = scene.store.probe().await;
    probe
        .wait_for(&format!("SELECT count(*) FROM {table}"), count)
        .await;
}
