//! A scene whose handler does what the messages of each call say.

use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::support::scene::{Scene, SourceSort, TestMessage, script_batch};

/// `calls` has a row for each call that was committed.
pub(crate) const TABLES: &str = "CREATE TABLE effects (n bigint NOT NULL, attempt bigint NOT NULL, id text NOT NULL);\n\
                                 CREATE TABLE single (n bigint PRIMARY KEY);\n\
                                 INSERT INTO single (n) VALUES (1);\n\
                                 CREATE TABLE calls (n bigint NOT NULL);";

pub(crate) async fn scene(kind: StoreKind, source: SourceSort, handler: &str) -> Scene {
    let handler = format!("lanes = 1\nbatch = {{ max = 50 }}\n{handler}");
    Scene::new(kind, source, &script_batch(), TABLES, &handler).await
}

pub(crate) fn message(n: i64, steps: &[Value]) -> TestMessage {
    TestMessage::new(format!("m-{n}"), &json!({ "steps": steps }))
}

/// Writes one row, with the attempt and the id that the handler was told.
pub(crate) fn effect(n: i64) -> Value {
    json!({
        "execute": "INSERT INTO effects (n, attempt, id) VALUES ($1, $2, $3)",
        "params": [{ "int64": n }, { "message": "attempt" }, { "message": "id" }],
    })
}

/// Class and reason of a dead letter, and how many attempts it has.
pub(crate) async fn dead(scene: &Scene, id: &str) -> (String, String, usize) {
    let table = scene.store.table("dead_letters");
    let column = async |column: &str| {
        let sql = format!("SELECT CAST({column} AS text) FROM {table} WHERE message_id = '{id}'");
        scene.store.text(&sql).await.unwrap()
    };
    let attempts: Value = serde_json::from_str(&column("attempts").await).unwrap();
    (
        column("class").await,
        column("reason").await,
        attempts.as_array().unwrap().len(),
    )
}

/// Asserts that each of the messages `1..=count`, but for `without`, has taken effect once, at its first attempt.
pub(crate) async fn assert_once(scene: &Scene, count: i64, without: &[i64]) {
    let number = async |sql: &str| scene.store.number(sql).await;
    assert_eq!(
        number("SELECT count(*) FROM effects").await,
        count - without.len() as i64
    );
    assert_eq!(
        number("SELECT count(DISTINCT n) FROM effects").await,
        count - without.len() as i64
    );
    for n in without {
        let sql = format!("SELECT count(*) FROM effects WHERE n = {n}");
        assert_eq!(number(&sql).await, 0, "{n}");
    }
    assert_eq!(scene.pending().await, 0);
    assert_eq!(scene.count("attempts", "1 = 1").await, 0);
}
