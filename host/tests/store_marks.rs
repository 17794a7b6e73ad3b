//! The marks of suspects' runs, and the count of starts in a queue's rows, on both databases.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use hapax::message::{FailureClass, MessageId};
use hapax::store::{Connection, Mark, MarkedFailure, NewQueueRow};
use support::database::TestStore;

const CONSUMER: &str = "c";

fn id() -> MessageId {
    MessageId::new("m-1").unwrap()
}

async fn mark(connection: &mut Connection, host: &str) -> Mark {
    connection
        .mark_started(CONSUMER, &id(), host)
        .await
        .unwrap()
}

async fn charge(connection: &mut Connection, host: &str) -> u32 {
    let failure = MarkedFailure {
        consumer: CONSUMER,
        id: &id(),
        host,
        class: FailureClass::Crashed,
        error: "gone",
        component: None,
    };
    connection.charge_started(&failure).await.unwrap()
}

async fn marks(store: &TestStore) -> i64 {
    let table = store.table("started");
    store.number(&format!("SELECT count(*) FROM {table}")).await
}

/// Makes a test for each database.
macro_rules! on_both {
    ($($name:ident,)*) => {
        mod on_postgres {
            use super::*;
            $(#[tokio::test]
            async fn $name() {
                super::$name(TestStore::postgres().await).await;
            })*
        }
        mod on_sqlite {
            use super::*;
            $(#[tokio::test]
            async fn $name() {
                super::$name(TestStore::sqlite().await).await;
            })*
        }
    };
}

on_both! {
    a_run_goes_on_at_one_place_only,
    a_run_is_charged_once,
    rows_at_the_head_are_counted_a_start,
}

async fn a_run_goes_on_at_one_place_only(store: TestStore) {
    let mut one = store.connect().await;
    let mut other = store.connect().await;
    assert_eq!(mark(&mut one, "one").await, Mark::Mine);
    assert_eq!(mark(&mut other, "other").await, Mark::Elsewhere);
    one.unmark_started(CONSUMER, &id(), "one").await.unwrap();
    assert_eq!(marks(&store).await, 0);
    assert_eq!(mark(&mut other, "other").await, Mark::Mine);

    // A session that ends frees the lock and leaves the mark. The server notices in its own time.
    drop(other);
    let left = loop {
        match mark(&mut one, "one").await {
            Mark::Elsewhere => tokio::task::yield_now().await,
            found => break found,
        }
    };
    assert!(
        matches!(&left, Mark::Left { host, started_at } if host == "other" && started_at.ends_with('Z')),
        "{left:?}"
    );
    one.unmark_started(CONSUMER, &id(), "one").await.unwrap();
    assert_eq!(marks(&store).await, 1, "another process's mark");
    // The same process takes its own mark over.
    assert_eq!(mark(&mut one, "other").await, Mark::Mine);
    one.unmark_process("other").await.unwrap();
    assert_eq!(marks(&store).await, 0);
}

async fn a_run_is_charged_once(store: TestStore) {
    let mut connection = store.connect().await;
    assert_eq!(mark(&mut connection, "one").await, Mark::Mine);
    assert_eq!(charge(&mut connection, "one").await, 1);
    assert_eq!(marks(&store).await, 0);
    // The reply was lost, say.
    assert_eq!(charge(&mut connection, "one").await, 1);
    connection
        .unmark_started(CONSUMER, &id(), "one")
        .await
        .unwrap();
    assert_eq!(mark(&mut connection, "one").await, Mark::Mine);
    // Another process's run is not this one.
    assert_eq!(charge(&mut connection, "other").await, 1);
    assert_eq!(marks(&store).await, 1);
    assert_eq!(charge(&mut connection, "one").await, 2);
}

async fn rows_at_the_head_are_counted_a_start(store: TestStore) {
    let mut connection = store.connect().await;
    let rows = vec![NewQueueRow::default(); 4];
    connection.enqueue("q", &rows).await.unwrap();
    connection.enqueue("other", &rows).await.unwrap();
    let table = store.table("queue");
    store
        .run(&format!(
            "UPDATE {table} SET due_at = '9999-01-01' WHERE number = 2"
        ))
        .await;
    connection.see_queue("q", 2).await.unwrap();
    connection.see_queue("q", 1).await.unwrap();
    let peeked = connection.peek_queue("q", &[], 10).await.unwrap();
    let seen: Vec<(i64, u32)> = peeked.iter().map(|row| (row.number, row.seen)).collect();
    assert_eq!(seen, [(1, 2), (3, 1), (4, 0)]);
    let others = connection.peek_queue("other", &[], 10).await.unwrap();
    assert!(others.iter().all(|row| row.seen == 0));
}
