//! `execute-many`, savepoints and cursors: in the store, on both databases unchanged, and through the daemon.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

/// Makes tests of cases: each on both databases. What differs is asserted by name.
macro_rules! on_both {
    ($($case:ident)*) => {
        mod postgres {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(crate::TestStore::postgres().await).await;
                }
            )*
        }
        mod sqlite {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(crate::TestStore::sqlite().await).await;
                }
            )*
        }
    };
}

/// Makes tests of a check: each on both databases, from the queue.
macro_rules! on_both_databases {
    ($($check:ident)*) => {$(
        mod $check {
            use hapax::store::StoreKind;

            #[tokio::test]
            async fn on_postgres() {
                super::$check(StoreKind::Postgres).await;
            }

            #[tokio::test]
            async fn on_sqlite() {
                super::$check(StoreKind::Sqlite).await;
            }
        }
    )*};
}

mod changed;
mod cursors;
mod daemon;
mod daemon_cursors;
mod daemon_migrated;
mod many;
mod savepoints;

use hapax::message::{MessageId, ShortHash};
use hapax::store::{Claim, ClaimRequest, Connection, SqlError, StoreKind, Tx, Value};
use support::database::TestStore;

/// A transaction that has claimed an id, as every handler's has.
async fn begin(test: &TestStore) -> Tx {
    claimed(test.begin().await).await
}

async fn claimed(mut tx: Tx) -> Tx {
    let request = ClaimRequest {
        id: MessageId::new("m").unwrap(),
        payload_hash: ShortHash::of_payload(b""),
    };
    let claims = tx.claim("c", &[request], None).await.unwrap();
    assert_eq!(claims, [Claim::Fresh { attempt: 1 }]);
    tx
}

async fn commit(tx: Tx) -> Connection {
    let ended = tx.commit().await;
    ended.result.unwrap();
    ended.connection.unwrap()
}

/// The one value of a query inside the transaction.
async fn one(tx: &mut Tx, statement: &str) -> Value {
    let mut rows = tx.query(statement, &[], 10).await.unwrap().rows;
    assert_eq!(rows.len(), 1, "{statement}");
    rows.remove(0).remove(0)
}

fn code<T: std::fmt::Debug>(result: Result<T, SqlError>) -> String {
    result.unwrap_err().code
}

fn text(value: &str) -> Value {
    Value::Text(value.into())
}

fn claims(test: &TestStore) -> String {
    format!("SELECT count(*) FROM {}", test.table("processed_messages"))
}

/// What a statement's error is called on each database.
fn by_kind<'a>(test: &TestStore, postgres: &'a str, sqlite: &'a str) -> &'a str {
    match test.kind() {
        StoreKind::Postgres => postgres,
        StoreKind::Sqlite => sqlite,
    }
}
