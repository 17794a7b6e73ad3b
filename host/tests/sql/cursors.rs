//! Cursors in the store: what they give, what ends them, and what they leave behind.

use hapax::store::{CURSORS_MAX, CommitError, Cursor, FetchLimits, Tx, Value};

use crate::support::database::TestStore;
use crate::{begin, by_kind, claimed, code, commit, one, text};

on_both! {
    portions_give_all_rows_in_order
    columns_come_without_rows
    rows_are_those_of_the_opening
    other_cursors_and_statements_go_on_between_portions
    parameters_are_those_of_query
    what_is_no_query_is_refused
    a_cursor_ends_with_an_earlier_savepoint
    a_cursor_lives_on_over_a_later_savepoint
    a_cursor_dropped_after_an_error_is_gone
    open_cursors_are_bounded
    portions_end_with_their_bytes
    cursors_end_with_the_transaction
    an_error_while_reading_ends_it
}

fn up_to(rows: u64) -> FetchLimits {
    FetchLimits {
        rows,
        bytes: 1 << 20,
    }
}

async fn open(tx: &mut Tx, statement: &str) -> Cursor {
    tx.open_cursor(statement, &[]).await.unwrap().0
}

/// The first column of the next rows.
async fn fetch(tx: &mut Tx, cursor: Cursor, rows: u64) -> Vec<i64> {
    tx.fetch_cursor(cursor, up_to(rows))
        .await
        .unwrap()
        .into_iter()
        .map(|row| match row[0] {
            Value::Int64(number) => number,
            ref other => panic!("{other:?}"),
        })
        .collect()
}

/// `t` with 0 to `count` - 1.
async fn table(test: &TestStore, count: u32) {
    test.run("CREATE TABLE t (a bigint PRIMARY KEY, b text)")
        .await;
    test.run(&format!(
        "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {count} - 1) \
         INSERT INTO t SELECT i, 'x' FROM n"
    ))
    .await;
}

async fn portions_give_all_rows_in_order(test: TestStore) {
    table(&test, 1_000).await;
    let mut tx = begin(&test).await;
    for portion in [1, 7, 16, 17, 999, 1_000, 1_001] {
        let cursor = open(&mut tx, "SELECT a FROM t ORDER BY a DESC").await;
        let mut found = Vec::new();
        loop {
            let rows = fetch(&mut tx, cursor, portion).await;
            assert!(rows.len() as u64 <= portion);
            if rows.is_empty() {
                break;
            }
            // Small rows fill a portion.
            if (found.len() + rows.len()) < 1_000 {
                assert_eq!(rows.len() as u64, portion);
            }
            found.extend(rows);
        }
        assert!(found.iter().copied().eq((0..1_000).rev()), "{portion}");
        assert!(fetch(&mut tx, cursor, portion).await.is_empty());
        tx.close_cursor(cursor).await;
    }
    commit(tx).await;
}

async fn columns_come_without_rows(test: TestStore) {
    table(&test, 1).await;
    let mut tx = begin(&test).await;
    for wanted in [0, 5] {
        let (cursor, columns) = tx
            .open_cursor("SELECT a, b FROM t WHERE a = $1", &[Value::Int64(wanted)])
            .await
            .unwrap();
        let names: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
        assert_eq!(names, ["a", "b"]);
        let rows = fetch(&mut tx, cursor, 10).await;
        assert_eq!(rows.len(), usize::from(wanted == 0));
    }
}

/// Also if they are changed or deleted while the cursor stands before them.
async fn rows_are_those_of_the_opening(test: TestStore) {
    table(&test, 100).await;
    let mut tx = begin(&test).await;
    let cursor = open(&mut tx, "SELECT a FROM t ORDER BY a").await;
    assert_eq!(fetch(&mut tx, cursor, 3).await, [0, 1, 2]);
    for statement in [
        "DELETE FROM t WHERE a = 3",
        "UPDATE t SET a = a + 1000 WHERE a = 4",
        "INSERT INTO t VALUES (500, '')",
    ] {
        tx.execute(statement, &[]).await.unwrap();
    }
    let mut rest = fetch(&mut tx, cursor, 4).await;
    rest.extend(fetch(&mut tx, cursor, 1_000).await);
    assert!(rest.into_iter().eq(3..100));
    commit(tx).await;
    assert_eq!(test.number("SELECT count(*) FROM t").await, 100);
}

async fn other_cursors_and_statements_go_on_between_portions(test: TestStore) {
    table(&test, 10).await;
    let mut tx = begin(&test).await;
    let one_way = open(&mut tx, "SELECT a FROM t ORDER BY a").await;
    let other_way = open(&mut tx, "SELECT a FROM t ORDER BY a DESC").await;
    for a in 0..10 {
        assert_eq!(fetch(&mut tx, one_way, 1).await, [a]);
        assert_eq!(fetch(&mut tx, other_way, 1).await, [9 - a]);
        let row = [Value::Int64(a)];
        let changed = tx
            .execute("UPDATE t SET b = b || 'y' WHERE a = $1", &row)
            .await;
        assert_eq!(changed.unwrap(), 1);
        let rows = tx.query("SELECT b FROM t WHERE a = $1", &row, 10).await;
        assert_eq!(rows.unwrap().rows, [[text("xy")]]);
    }
    commit(tx).await;
    assert_eq!(
        test.number("SELECT count(*) FROM t WHERE b = 'xy'").await,
        10
    );
}

async fn parameters_are_those_of_query(test: TestStore) {
    table(&test, 10).await;
    let mut tx = begin(&test).await;
    let odd = "it's \\ \"$2\" $$ \u{1f600} -- /*";
    let statement = "SELECT a, CAST($2 AS text) AS \"$1\", '$1' /* $3 */ FROM t WHERE a > $1 -- $4\n ORDER BY a";
    let params = [Value::Int64(7), text(odd)];
    let expected = tx.query(statement, &params, 100).await.unwrap();
    assert_eq!(expected.rows[0][1], text(odd));
    assert_eq!(expected.rows[0][2], text("$1"));
    let (cursor, columns) = tx.open_cursor(statement, &params).await.unwrap();
    assert_eq!(*columns, *expected.columns);
    let rows = tx.fetch_cursor(cursor, up_to(100)).await.unwrap();
    assert_eq!(rows, expected.rows);

    let limited = "SELECT a FROM t WHERE a IN ($1, $2, $3) ORDER BY a LIMIT $4 OFFSET $5";
    let numbers = [2, 5, 8, 2, 1].map(Value::Int64);
    let (cursor, _) = tx.open_cursor(limited, &numbers).await.unwrap();
    assert_eq!(fetch(&mut tx, cursor, 100).await, [5, 8]);

    let nothing = [Value::Null];
    let is_null = "SELECT 1 AS a FROM t WHERE CAST($1 AS bigint) IS NULL AND a = 0";
    let (cursor, _) = tx.open_cursor(is_null, &nothing).await.unwrap();
    assert_eq!(fetch(&mut tx, cursor, 100).await, [1]);

    for params in [&[][..], &[Value::Int64(1), Value::Int64(2)]] {
        let error = tx.open_cursor("SELECT a FROM t WHERE a = $1", params).await;
        assert_eq!(code(error), "params.count");
    }
    commit(tx).await;
}

async fn what_is_no_query_is_refused(test: TestStore) {
    table(&test, 1).await;
    let mut tx = begin(&test).await;
    for statement in [
        "INSERT INTO t VALUES (5, '') RETURNING a",
        "UPDATE t SET a = 7 RETURNING a",
        "DELETE FROM t RETURNING a",
        "WITH x AS (SELECT 1) DELETE FROM t RETURNING a",
    ] {
        assert_eq!(
            code(tx.open_cursor(statement, &[]).await),
            "denied.cursor",
            "{statement}"
        );
    }
    for statement in [
        "COMMIT",
        "SELECT 1; SELECT 2",
        "DECLARE x CURSOR FOR SELECT 1",
        "FETCH ALL FROM hapax_cursor_1",
        "CLOSE ALL",
    ] {
        let refused = tx.open_cursor(statement, &[]).await;
        assert_eq!(code(refused), "denied.statement", "{statement}");
    }
    assert!(!tx.is_aborted());
    // A query that is wrong is told as by `query`, with the place in the statement as it was passed.
    let statement = "SELECT a, $1 FROM t WHERE a = $1 AND nope = 1";
    let five = [Value::Int64(5)];
    let error = tx.open_cursor(statement, &five).await.unwrap_err();
    assert_eq!(error.code, "undefined.column", "{error:?}");
    assert!(tx.is_aborted());
    assert!(matches!(
        tx.commit().await.result,
        Err(CommitError::Refused(error)) if error.code == "aborted"
    ));
    assert_eq!(test.number("SELECT count(*) FROM t").await, 1);
}

async fn a_cursor_ends_with_an_earlier_savepoint(test: TestStore) {
    table(&test, 10).await;
    let mut tx = begin(&test).await;
    let before = open(&mut tx, "SELECT a FROM t ORDER BY a").await;
    let outer = tx.begin_savepoint().await.unwrap();
    let between = open(&mut tx, "SELECT a FROM t ORDER BY a").await;
    let inner = tx.begin_savepoint().await.unwrap();
    let within = open(&mut tx, "SELECT a FROM t ORDER BY a").await;
    for cursor in [before, between, within] {
        assert_eq!(fetch(&mut tx, cursor, 1).await, [0]);
    }
    // Kept with the outer one, and gone with it.
    tx.release_savepoint(inner).await.unwrap();
    assert_eq!(fetch(&mut tx, within, 1).await, [1]);
    tx.roll_back_savepoint(outer).await.unwrap();
    for ended in [between, within] {
        assert_eq!(code(tx.fetch_cursor(ended, up_to(1)).await), "cursor.ended");
        tx.close_cursor(ended).await;
    }
    assert!(!tx.is_aborted());
    assert_eq!(fetch(&mut tx, before, 1).await, [1]);
    commit(tx).await;
}

/// Where it stands is not undone.
async fn a_cursor_lives_on_over_a_later_savepoint(test: TestStore) {
    table(&test, 10).await;
    let mut tx = begin(&test).await;
    let cursor = open(&mut tx, "SELECT a FROM t ORDER BY a").await;
    assert_eq!(fetch(&mut tx, cursor, 2).await, [0, 1]);
    let savepoint = tx.begin_savepoint().await.unwrap();
    assert_eq!(fetch(&mut tx, cursor, 2).await, [2, 3]);
    tx.execute("DELETE FROM t", &[]).await.unwrap();
    let error = tx.execute("INSERT INTO nowhere VALUES (1)", &[]).await;
    assert_eq!(code(error), "undefined.table");
    assert_eq!(code(tx.fetch_cursor(cursor, up_to(1)).await), "aborted");
    assert_eq!(code(tx.open_cursor("SELECT 1", &[]).await), "aborted");
    tx.roll_back_savepoint(savepoint).await.unwrap();
    assert_eq!(fetch(&mut tx, cursor, 2).await, [4, 5]);
    commit(tx).await;
}

/// Nothing can be closed in the server then; but its place is free.
async fn a_cursor_dropped_after_an_error_is_gone(test: TestStore) {
    table(&test, 10).await;
    let mut tx = begin(&test).await;
    for _ in 0..3 {
        let mut open_ones = Vec::new();
        for _ in 0..CURSORS_MAX / 2 {
            open_ones.push(open(&mut tx, "SELECT a FROM t").await);
        }
        let savepoint = tx.begin_savepoint().await.unwrap();
        for _ in 0..CURSORS_MAX / 2 {
            open_ones.push(open(&mut tx, "SELECT a FROM t").await);
        }
        tx.execute("SELECT nope", &[]).await.unwrap_err();
        for cursor in open_ones {
            tx.close_cursor(cursor).await;
        }
        tx.roll_back_savepoint(savepoint).await.unwrap();
    }
    let cursor = open(&mut tx, "SELECT a FROM t ORDER BY a").await;
    assert_eq!(fetch(&mut tx, cursor, 1).await, [0]);
    if test.postgres.is_some() {
        let portals = one(&mut tx, "SELECT count(*) FROM pg_cursors").await;
        // The query itself is one.
        assert!(matches!(portals, Value::Int64(1..=2)), "{portals:?}");
    }
    commit(tx).await;
}

async fn open_cursors_are_bounded(test: TestStore) {
    table(&test, 1).await;
    let mut tx = begin(&test).await;
    let mut last = None;
    for _ in 0..CURSORS_MAX {
        last = Some(open(&mut tx, "SELECT a FROM t").await);
    }
    assert_eq!(code(tx.open_cursor("SELECT 1", &[]).await), "limit.cursors");
    assert!(!tx.is_aborted());
    tx.close_cursor(last.unwrap()).await;
    // Twice is harmless.
    tx.close_cursor(last.unwrap()).await;
    open(&mut tx, "SELECT a FROM t").await;
    tx.close_cursors().await;
    for _ in 0..CURSORS_MAX {
        open(&mut tx, "SELECT a FROM t").await;
    }
    commit(tx).await;
}

async fn portions_end_with_their_bytes(test: TestStore) {
    let long = by_kind(
        &test,
        "repeat('x', 10000)",
        "replace(hex(zeroblob(5000)), '0', 'x')",
    );
    test.run(&format!(
        "CREATE TABLE t (a bigint, b text); \
         WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999) \
         INSERT INTO t SELECT i, {long} FROM n"
    ))
    .await;
    let mut tx = begin(&test).await;
    let cursor = open(&mut tx, "SELECT a, b FROM t ORDER BY a").await;
    let limits = FetchLimits {
        rows: 1_000,
        bytes: 100_000,
    };
    let (mut count, mut portions) = (0, 0);
    loop {
        let rows = tx.fetch_cursor(cursor, limits).await.unwrap();
        if rows.is_empty() {
            break;
        }
        assert!(rows.len() <= 16, "{}", rows.len());
        for row in rows {
            assert_eq!(row[0], Value::Int64(count));
            count += 1;
        }
        portions += 1;
    }
    assert_eq!(count, 1_000);
    assert!((60..=125).contains(&portions), "{portions}");
    // A row that is larger than a portion comes alone.
    let cursor = open(&mut tx, "SELECT a, b FROM t ORDER BY a").await;
    let limits = FetchLimits {
        rows: 1_000,
        bytes: 1,
    };
    tx.fetch_cursor(cursor, limits).await.unwrap();
    assert_eq!(tx.fetch_cursor(cursor, limits).await.unwrap().len(), 1);
}

async fn cursors_end_with_the_transaction(test: TestStore) {
    table(&test, 10).await;
    let mut tx = begin(&test).await;
    let cursor = open(&mut tx, "SELECT a FROM t ORDER BY a").await;
    fetch(&mut tx, cursor, 1).await;
    let connection = tx.rollback().await.unwrap();
    let mut tx = claimed(Tx::begin(connection).await.unwrap()).await;
    assert_eq!(
        code(tx.fetch_cursor(cursor, up_to(1)).await),
        "cursor.ended"
    );
    let again = open(&mut tx, "SELECT a FROM t ORDER BY a DESC").await;
    assert_eq!(fetch(&mut tx, again, 1).await, [9]);
    // The commit does not mind.
    let mut tx = Tx::begin(commit(tx).await).await.unwrap();
    assert_eq!(code(tx.fetch_cursor(again, up_to(1)).await), "cursor.ended");
}

/// PostgreSQL finds it at the portion, SQLite at the opening.
async fn an_error_while_reading_ends_it(test: TestStore) {
    table(&test, 100).await;
    let mut tx = begin(&test).await;
    let savepoint = tx.begin_savepoint().await.unwrap();
    let failing = by_kind(
        &test,
        "SELECT 10 / (50 - a) AS a FROM t ORDER BY t.a",
        "SELECT json_extract(CASE WHEN a = 50 THEN '{' ELSE '1' END, '$') AS a FROM t ORDER BY t.a",
    );
    let error = match tx.open_cursor(failing, &[]).await {
        Err(error) => error,
        Ok((cursor, _)) => {
            assert_eq!(fetch(&mut tx, cursor, 20).await.len(), 20);
            let error = tx.fetch_cursor(cursor, up_to(50)).await.unwrap_err();
            assert_eq!(code(tx.fetch_cursor(cursor, up_to(50)).await), "aborted");
            error
        }
    };
    let expected = by_kind(&test, "data.division-by-zero", "invalid");
    assert_eq!(error.code, expected, "{error:?}");
    assert!(tx.is_aborted());
    tx.roll_back_savepoint(savepoint).await.unwrap();
    let cursor = open(&mut tx, "SELECT a FROM t ORDER BY a").await;
    assert_eq!(fetch(&mut tx, cursor, 1).await, [0]);
    commit(tx).await;
}

#[tokio::test]
async fn on_postgres_a_failed_cursor_does_not_come_back_with_its_savepoint() {
    let test = TestStore::postgres().await;
    table(&test, 100).await;
    let mut tx = begin(&test).await;
    let cursor = open(&mut tx, "SELECT 10 / (5 - a) AS a FROM t ORDER BY t.a").await;
    let savepoint = tx.begin_savepoint().await.unwrap();
    let error = tx.fetch_cursor(cursor, up_to(50)).await.unwrap_err();
    assert_eq!(error.code, "data.division-by-zero");
    tx.roll_back_savepoint(savepoint).await.unwrap();
    assert_eq!(
        code(tx.fetch_cursor(cursor, up_to(1)).await),
        "cursor.ended"
    );
    assert!(!tx.is_aborted());
    commit(tx).await;
}

/// The declaration has a literal for each parameter; the handler's statement has none.
#[tokio::test]
async fn on_postgres_errors_name_the_parameter_or_the_place_in_the_statement() {
    let test = TestStore::postgres().await;
    test.run("CREATE TABLE t (a bigint, u uuid)").await;
    let error_of = async |statement: &str, params: &[Value]| {
        let mut tx = begin(&test).await;
        tx.open_cursor(statement, params).await.unwrap_err()
    };
    let error = error_of(
        "SELECT a FROM t WHERE a = $1 AND u = $2",
        &[Value::Int64(1), text("no uuid")],
    )
    .await;
    assert_eq!(
        (error.code.as_str(), error.param, error.position),
        ("data.invalid", Some(2), None),
        "{error:?}"
    );
    let error = error_of(
        "SELECT a FROM t WHERE a = $1",
        &[Value::Decimal("1.5".into())],
    )
    .await;
    assert_eq!(error.param, Some(1), "{error:?}");
    let error = error_of("SELECT a FROM t WHERE a = $1", &[text("x\0")]).await;
    assert_eq!(error.param, Some(1), "{error:?}");
}

/// It is prepared on the connection with the columns that the table had.
#[tokio::test]
async fn on_postgres_a_table_that_changed_is_no_fault_of_the_message() {
    let test = TestStore::postgres().await;
    table(&test, 3).await;
    for change in [
        "ALTER TABLE t ADD COLUMN c text",
        "ALTER TABLE t RENAME COLUMN b TO d",
        "ALTER TABLE t ALTER COLUMN a TYPE numeric",
    ] {
        let mut tx = begin(&test).await;
        let cursor = open(&mut tx, "SELECT * FROM t").await;
        assert_eq!(tx.fetch_cursor(cursor, up_to(9)).await.unwrap().len(), 3);
        let connection = tx.rollback().await.unwrap();
        test.run(change).await;
        let mut tx = claimed(Tx::begin(connection).await.unwrap()).await;
        let cursor = open(&mut tx, "SELECT * FROM t").await;
        let error = tx.fetch_cursor(cursor, up_to(9)).await.unwrap_err();
        assert_eq!((error.code.as_str(), error.retryable), ("stale", true));
        assert!(tx.fault().is_some());
        let connection = tx.rollback().await.unwrap();
        let mut tx = claimed(Tx::begin(connection).await.unwrap()).await;
        let (cursor, columns) = tx.open_cursor("SELECT * FROM t", &[]).await.unwrap();
        let rows = tx.fetch_cursor(cursor, up_to(9)).await.unwrap();
        assert_eq!((rows.len(), rows[0].len()), (3, columns.len()), "{change}");
        assert!(columns.len() >= 3);
        tx.rollback().await.unwrap();
    }
}
