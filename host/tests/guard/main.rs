//! What a handler's SQL can't do: statements that are refused before the database sees them, what is caught before the commit,
//! and what code that the database's owner installed can do all the same.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod fuzz;
mod hostile;
mod installed;
mod role;
mod sqlite;

use hapax::message::{MessageId, ShortHash};
use hapax::store::{Claim, ClaimRequest, CommitError, Connection, SqlError, Tx, Value};
use support::database::TestStore;

/// A transaction on `connection` that has claimed `id`, as every handler's has.
async fn begin(connection: Connection, id: &str) -> Tx {
    let mut tx = Tx::begin(connection).await.unwrap();
    let request = ClaimRequest {
        id: MessageId::new(id).unwrap(),
        payload_hash: ShortHash::of_payload(b""),
    };
    let claims = tx.claim("c", &[request], None).await.unwrap();
    assert_eq!(claims, [Claim::Fresh { attempt: 1 }], "{id}");
    tx
}

/// The effect of the message `id`.
async fn effect(tx: &mut Tx, id: &str) {
    let params = [Value::Text(id.to_owned())];
    let done = tx
        .execute("INSERT INTO effects (id) VALUES ($1)", &params)
        .await
        .unwrap();
    assert_eq!(done, 1);
}

async fn commit(tx: Tx) -> Connection {
    let ended = tx.commit().await;
    ended.result.unwrap();
    ended.connection.unwrap()
}

/// The error of a commit that is refused, and whether the connection is still there.
async fn refused(tx: Tx) -> (SqlError, bool) {
    let ended = tx.commit().await;
    match ended.result {
        Err(CommitError::Refused(error)) => (error, ended.connection.is_some()),
        other => panic!("{other:?}"),
    }
}

/// The first row of a query inside the transaction.
async fn row(tx: &mut Tx, statement: &str) -> Vec<Value> {
    let mut result = tx.query(statement, &[], 1_000).await.unwrap();
    result.rows.remove(0)
}

/// Asserts that `count` messages whose ids begin with `prefix` were claimed and took effect, once each.
async fn assert_claimed(test: &TestStore, prefix: &str, count: usize) {
    let claims = format!(
        "SELECT count(*) FROM {} WHERE outcome = 'done' AND message_id LIKE '{prefix}%'",
        test.table("processed_messages")
    );
    assert_eq!(test.number(&claims).await as usize, count, "{prefix}");
    let effects = format!("SELECT count(*) FROM effects WHERE id LIKE '{prefix}%'");
    assert_eq!(test.number(&effects).await as usize, count, "{prefix}");
    let ids = format!("SELECT count(DISTINCT id) FROM effects WHERE id LIKE '{prefix}%'");
    assert_eq!(test.number(&ids).await as usize, count, "{prefix}");
}
