//! A table that somebody changes while a connection has statements on it prepared.

use hapax::store::{StoreKind, Tx, Value};

use crate::support::database::TestStore;
use crate::{begin, claimed, text};

on_both! {
    the_next_transaction_sees_the_new_columns
}

const STATEMENT: &str = "SELECT * FROM t";

/// PostgreSQL refuses the old plan, once, which is no fault of the message; SQLite's statements are prepared anew at the begin.
async fn the_next_transaction_sees_the_new_columns(test: TestStore) {
    test.run("CREATE TABLE t (a bigint, b text); INSERT INTO t VALUES (1, 'x')")
        .await;
    let mut tx = begin(&test).await;
    for _ in 0..3 {
        let result = tx.query(STATEMENT, &[], 10).await.unwrap();
        assert_eq!(result.columns.len(), 2);
    }
    let mut connection = tx.rollback().await.unwrap();
    for (change, columns) in [
        ("ALTER TABLE t ADD COLUMN c text", 3),
        ("ALTER TABLE t DROP COLUMN b", 2),
        ("ALTER TABLE t RENAME COLUMN c TO d", 2),
    ] {
        test.run(change).await;
        if test.kind() == StoreKind::Postgres {
            let mut tx = claimed(Tx::begin(connection).await.unwrap()).await;
            let error = tx.query(STATEMENT, &[], 10).await.unwrap_err();
            assert_eq!((error.code.as_str(), error.retryable), ("stale", true));
            assert!(tx.fault().is_some());
            connection = tx.rollback().await.unwrap();
        }
        let mut tx = claimed(Tx::begin(connection).await.unwrap()).await;
        let result = tx.query(STATEMENT, &[], 10).await.unwrap();
        assert_eq!(result.columns.len(), columns, "{change}");
        assert_eq!(result.rows.len(), 1);
        assert_eq!(result.rows[0].len(), columns, "{change}");
        assert_eq!(result.rows[0][0], Value::Int64(1));
        let none = tx
            .query("SELECT * FROM t WHERE a = $1", &[Value::Int64(0)], 10)
            .await;
        assert_eq!(none.unwrap().columns, result.columns);
        tx.execute("INSERT INTO t (a) VALUES ($1)", &[Value::Int64(2)])
            .await
            .unwrap();
        connection = tx.rollback().await.unwrap();
    }
    let mut tx = claimed(Tx::begin(connection).await.unwrap()).await;
    let result = tx.query(STATEMENT, &[], 10).await.unwrap();
    assert_eq!(result.columns[1].name, "d");
    tx.execute(
        "INSERT INTO t VALUES ($1, $2)",
        &[Value::Int64(2), text("y")],
    )
    .await
    .unwrap();
}
