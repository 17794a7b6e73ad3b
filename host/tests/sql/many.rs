//! One statement for many rows of parameters, in the store.

use std::time::Duration;

use hapax::message::Instant;
use hapax::store::{CommitError, SessionOptions, Tx, Value};

use crate::support::database::{TestStore, options};
use crate::{begin, by_kind, claimed, claims, code, commit, one, text};

on_both! {
    rows_run_in_their_order_and_are_counted_each
    no_rows_have_no_effect
    the_failing_row_is_named
    what_does_not_fit_is_found_before_the_first_row
    what_the_database_does_not_take_names_row_and_parameter
    statements_that_return_rows_count_them
    values_arrive_as_with_execute
    many_rows_of_many_bytes
    each_row_has_the_time_of_a_statement
    after_an_error_nothing_is_run
}

const INSERT: &str = "INSERT INTO t (a, b) VALUES ($1, $2)";

fn pair(a: i64, b: &str) -> Vec<Value> {
    vec![Value::Int64(a), text(b)]
}

async fn rows_run_in_their_order_and_are_counted_each(test: TestStore) {
    test.run("CREATE TABLE t (a bigint, b bigint)").await;
    let mut tx = begin(&test).await;
    // Each row sees what those before it did.
    let counts = tx
        .execute_many(
            "INSERT INTO t (a, b) SELECT $1, count(*) FROM t",
            &(0..200).map(|a| vec![Value::Int64(a)]).collect::<Vec<_>>(),
        )
        .await
        .unwrap();
    assert_eq!(counts, vec![1; 200]);
    let counts = tx
        .execute_many(
            "UPDATE t SET b = b + 1000 WHERE a >= $1 AND a < $2",
            &[(0, 0), (10, 13), (500, 600), (0, 200), (7, 8)]
                .map(|(from, to)| vec![Value::Int64(from), Value::Int64(to)]),
        )
        .await
        .unwrap();
    assert_eq!(counts, [0, 3, 0, 200, 1]);
    // Without parameters too.
    let counts = tx
        .execute_many("DELETE FROM t WHERE a >= 198", &[vec![], vec![]])
        .await
        .unwrap();
    assert_eq!(counts, [2, 0]);
    commit(tx).await;
    let sum = "SELECT CAST(sum(b - a) AS bigint) FROM t";
    assert_eq!(test.number(sum).await, 198 * 1000 + 3 * 1000 + 1000);
}

async fn no_rows_have_no_effect(test: TestStore) {
    test.run("CREATE TABLE t (a bigint, b text)").await;
    let mut tx = begin(&test).await;
    assert!(tx.execute_many(INSERT, &[]).await.unwrap().is_empty());
    assert_eq!(
        code(tx.execute_many("COMMIT", &[]).await),
        "denied.statement"
    );
    assert_eq!(
        code(tx.execute_many("SELECT 1; SELECT 2", &[vec![]]).await),
        "denied.statement"
    );
    commit(tx).await;
    assert_eq!(test.number("SELECT count(*) FROM t").await, 0);
}

async fn the_failing_row_is_named(test: TestStore) {
    test.run("CREATE TABLE t (a bigint PRIMARY KEY, b text)")
        .await;
    for failing in [0, 1, 137, 199] {
        let mut tx = begin(&test).await;
        let mut rows: Vec<_> = (0..200).map(|a| pair(a, "x")).collect();
        rows[failing] = pair(if failing == 0 { 1 } else { 0 }, "again");
        // Row 0 can only fail on what was there before.
        if failing == 0 {
            tx.execute(INSERT, &pair(1, "before")).await.unwrap();
        }
        let error = tx.execute_many(INSERT, &rows).await.unwrap_err();
        assert_eq!(error.code, "constraint.unique", "{error:?}");
        assert_eq!(error.row, Some(failing as u32), "{error:?}");
        assert_eq!(error.param, None);
        assert_eq!(error.position, None);
        assert!(
            error.message.starts_with(&format!("row {failing}: ")),
            "{error:?}"
        );
        assert_eq!(error.table.as_deref(), Some("t"));
        // As after any error of the database.
        assert!(tx.is_aborted());
        assert!(tx.fault().is_none());
        assert_eq!(code(tx.execute(INSERT, &pair(500, "x")).await), "aborted");
        let ended = tx.commit().await;
        assert!(
            matches!(&ended.result, Err(CommitError::Refused(error)) if error.code == "aborted"),
            "{ended:?}"
        );
        assert!(ended.connection.is_some());
    }
    assert_eq!(test.number("SELECT count(*) FROM t").await, 0);
    assert_eq!(test.number(&claims(&test)).await, 0);
}

async fn what_does_not_fit_is_found_before_the_first_row(test: TestStore) {
    test.run("CREATE TABLE t (a bigint, b text)").await;
    let mut tx = begin(&test).await;
    let good: Vec<_> = (0..200).map(|a| pair(a, "x")).collect();
    let with = |index: usize, row: Vec<Value>| {
        let mut rows = good.clone();
        rows[index] = row;
        rows
    };
    let error = tx
        .execute_many(INSERT, &with(150, vec![Value::Int64(1)]))
        .await
        .unwrap_err();
    assert_eq!(
        (error.code.as_str(), error.row, error.param),
        ("params.count", Some(150), None)
    );
    assert_eq!(
        error.message,
        "row 150: the statement takes 2 parameters, but 1 were passed"
    );
    let error = tx
        .execute_many(
            INSERT,
            &with(199, vec![Value::Int64(1), Value::Uuid("x".into())]),
        )
        .await
        .unwrap_err();
    assert_eq!(error.row, Some(199), "{error:?}");
    assert_eq!(error.param, Some(2), "{error:?}");
    assert_eq!(error.code, "data.invalid", "{error:?}");
    assert!(
        error.message.starts_with("row 199: parameter $2: "),
        "{error:?}"
    );
    // Nothing was run, and the transaction is as good as before.
    assert!(!tx.is_aborted());
    assert_eq!(
        one(&mut tx, "SELECT count(*) FROM t").await,
        Value::Int64(0)
    );
    tx.execute_many(INSERT, &good).await.unwrap();
    commit(tx).await;
    assert_eq!(test.number("SELECT count(*) FROM t").await, 200);
}

async fn what_the_database_does_not_take_names_row_and_parameter(test: TestStore) {
    let strict = by_kind(&test, "", " STRICT");
    let int = by_kind(&test, "bigint", "INTEGER");
    test.run(&format!("CREATE TABLE t (a {int}, b text){strict}"))
        .await;
    let mut tx = begin(&test).await;
    let rows = [
        // Characters of more than one byte before it, since positions are counted in characters.
        pair(1, "\u{e4}\u{1f600}'\\"),
        pair(2, ";EXECUTE"),
        vec![text("abc"), text("x")],
        pair(3, "x"),
    ];
    let error = tx.execute_many(INSERT, &rows).await.unwrap_err();
    assert_eq!(error.row, Some(2), "{error:?}");
    // SQLite only says which column.
    assert_eq!(
        (error.code.as_str(), error.param.is_some()),
        match by_kind(&test, "postgres", "sqlite") {
            "postgres" => ("data.invalid", true),
            _ => ("type.mismatch", false),
        },
        "{error:?}"
    );
    if error.param.is_some() {
        assert_eq!(error.param, Some(1));
        assert!(
            error.message.starts_with("row 2: parameter $1: "),
            "{error:?}"
        );
    }
    assert!(tx.is_aborted());
}

async fn statements_that_return_rows_count_them(test: TestStore) {
    test.run("CREATE TABLE t (a bigint, b text)").await;
    test.run("INSERT INTO t VALUES (1, 'x'), (2, 'x'), (3, 'y')")
        .await;
    let mut tx = begin(&test).await;
    let by_b = ["x", "z", "y"].map(|b| vec![text(b)]);
    let select = "SELECT a FROM t WHERE b = $1";
    let counts = tx.execute_many(select, &by_b).await.unwrap();
    assert_eq!(counts, [2, 0, 1]);
    for (row, count) in by_b.iter().zip(counts) {
        assert_eq!(tx.execute(select, row).await.unwrap(), count);
    }
    let update = "UPDATE t SET a = a + 1 WHERE b = $1 RETURNING a";
    assert_eq!(tx.execute_many(update, &by_b).await.unwrap(), [2, 0, 1]);
    commit(tx).await;
}

/// There is one encoder.
async fn values_arrive_as_with_execute(test: TestStore) {
    let types = by_kind(
        &test,
        "a text, b boolean, c bigint, d double precision, e text, f bytea, g numeric, h uuid, i jsonb, j timestamptz",
        "a, b, c, d, e, f, g, h, i, j",
    );
    test.run(&format!(
        "CREATE TABLE one ({types}); CREATE TABLE two ({types})"
    ))
    .await;
    let row = |number: i64| {
        vec![
            Value::Null,
            Value::Boolean(number % 2 == 0),
            Value::Int64(i64::MIN + number),
            Value::Float64(0.1 * number as f64),
            text("it's \\ E'\u{e9}\n; $1"),
            Value::Bytes((0..=255).collect()),
            Value::Decimal(format!("{number}.123456789012345678901234567890")),
            Value::Uuid("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11".into()),
            Value::Json("{\"a\": [1, \"'\"]}".into()),
            Value::Instant(Instant {
                seconds: number,
                nanoseconds: 1_000,
            }),
        ]
    };
    let rows: Vec<_> = (0..20).map(row).collect();
    let insert = |table: &str| {
        format!("INSERT INTO {table} VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)")
    };
    let mut tx = begin(&test).await;
    for row in &rows {
        tx.execute(&insert("one"), row).await.unwrap();
    }
    tx.execute_many(&insert("two"), &rows).await.unwrap();
    commit(tx).await;
    let differ = "SELECT count(*) FROM (SELECT * FROM one EXCEPT SELECT * FROM two) AS d";
    assert_eq!(test.number(differ).await, 0);
    let all = "SELECT count(*) FROM (SELECT DISTINCT * FROM two) AS d";
    assert_eq!(test.number(all).await, 20);
}

/// More than one message on PostgreSQL.
async fn many_rows_of_many_bytes(test: TestStore) {
    test.run("CREATE TABLE t (a bigint PRIMARY KEY, b text)")
        .await;
    let long = "y".repeat(100_000);
    let mut rows: Vec<_> = (0..45).map(|a| pair(a, &long)).collect();
    let mut tx = begin(&test).await;
    let counts = tx.execute_many(INSERT, &rows).await.unwrap();
    assert_eq!(counts, vec![1; 45]);
    let connection = commit(tx).await;
    assert_eq!(test.number("SELECT count(*) FROM t").await, 45);

    // The row is counted over all messages.
    test.run("DELETE FROM t").await;
    test.run(&format!("DELETE FROM {}", test.table("processed_messages")))
        .await;
    rows[38] = pair(0, &long);
    let mut tx = claimed(Tx::begin(connection).await.unwrap()).await;
    let error = tx.execute_many(INSERT, &rows).await.unwrap_err();
    assert_eq!(
        (error.code.as_str(), error.row),
        ("constraint.unique", Some(38))
    );
    tx.rollback().await.unwrap();

    // Many small ones as well.
    let mut tx = begin(&test).await;
    let rows: Vec<_> = (0..30_000).map(|a| pair(a, "z")).collect();
    assert_eq!(tx.execute_many(INSERT, &rows).await.unwrap().len(), 30_000);
    commit(tx).await;
    assert_eq!(test.number("SELECT count(*) FROM t").await, 30_000);
}

async fn each_row_has_the_time_of_a_statement(test: TestStore) {
    let short = SessionOptions {
        statement_timeout: Some(Duration::from_millis(300)),
        ..options()
    };
    let slow = by_kind(
        &test,
        "SELECT pg_sleep($1)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1) SELECT count(*) FROM n",
    );
    let (little, endless) = match by_kind(&test, "postgres", "sqlite") {
        "postgres" => (Value::Float64(0.1), Value::Float64(60.0)),
        _ => (Value::Int64(10), Value::Int64(i64::MAX)),
    };
    let mut tx = claimed(Tx::begin(test.connect_with(&short).await).await.unwrap()).await;
    // Together they take longer than one may.
    let rows = vec![vec![little.clone()]; 5];
    assert_eq!(tx.execute_many(slow, &rows).await.unwrap(), [1; 5]);
    let rows = [vec![little.clone()], vec![endless], vec![little]];
    let error = tx.execute_many(slow, &rows).await.unwrap_err();
    assert_eq!((error.code.as_str(), error.row), ("timeout", Some(1)));
    assert!(tx.is_aborted());
}

async fn after_an_error_nothing_is_run(test: TestStore) {
    test.run("CREATE TABLE t (a bigint, b text)").await;
    let mut tx = begin(&test).await;
    tx.execute("INSERT INTO nowhere VALUES (1)", &[])
        .await
        .unwrap_err();
    assert_eq!(
        code(tx.execute_many(INSERT, &[pair(1, "x")]).await),
        "aborted"
    );
    assert_eq!(code(tx.execute_many(INSERT, &[]).await), "aborted");
}

/// The server shows the whole message that a statement came in.
#[tokio::test]
async fn on_postgres_all_rows_are_one_message() {
    let test = TestStore::postgres().await;
    test.run(
        "CREATE TABLE t (a bigint, b text, message text DEFAULT md5(current_query()), \
         bytes bigint DEFAULT octet_length(current_query()))",
    )
    .await;
    let messages = "SELECT count(DISTINCT message) FROM t";
    let mut tx = begin(&test).await;
    let rows: Vec<_> = (0..200).map(|a| pair(a, "x")).collect();
    tx.execute_many(INSERT, &rows).await.unwrap();
    assert_eq!(one(&mut tx, messages).await, Value::Int64(1));
    tx.execute("DELETE FROM t", &[]).await.unwrap();

    // 4.5 MB in messages of 1 MiB, and the row that reaches it.
    let long = "y".repeat(100_000);
    let rows: Vec<_> = (0..45).map(|a| pair(a, &long)).collect();
    tx.execute_many(INSERT, &rows).await.unwrap();
    assert_eq!(one(&mut tx, messages).await, Value::Int64(5));
    let Value::Int64(longest) = one(&mut tx, "SELECT max(bytes) FROM t").await else {
        panic!("no number")
    };
    assert!(longest < (1 << 20) + 101_000, "{longest}");
    commit(tx).await;
}
