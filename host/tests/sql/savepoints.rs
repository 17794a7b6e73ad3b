//! Savepoints in the store: what is kept, what is undone, and what no savepoint can undo.

use std::time::Duration;

use hapax::store::{CommitError, SAVEPOINTS_MAX, SessionOptions, StoreError, Tx, Value};

use crate::support::database::{TestStore, options};
use crate::{begin, claimed, claims, code, commit, one};

on_both! {
    what_is_released_stays_and_what_is_rolled_back_goes
    an_error_is_undone_with_its_savepoint
    an_error_is_undone_with_an_outer_savepoint
    an_error_outside_is_never_undone
    a_savepoint_cannot_be_released_after_an_error
    savepoints_end_with_an_earlier_one
    open_savepoints_are_bounded
    an_open_savepoint_refuses_the_commit
    statements_live_on_over_a_savepoint
    many_rows_are_undone_with_their_savepoint
    a_connection_is_used_again_after_an_open_savepoint
}

const TABLE: &str = "CREATE TABLE t (a bigint PRIMARY KEY)";

async fn insert(tx: &mut Tx, a: i64) {
    let counted = tx
        .execute("INSERT INTO t VALUES ($1)", &[Value::Int64(a)])
        .await;
    assert_eq!(counted.unwrap(), 1);
}

/// Fails in the database: 0 is there from the start.
async fn fail(tx: &mut Tx) {
    let error = tx.execute("INSERT INTO t VALUES (0)", &[]).await;
    assert_eq!(code(error), "constraint.unique");
}

async fn table(test: &TestStore) {
    test.run(TABLE).await;
    test.run("INSERT INTO t VALUES (0)").await;
}

async fn sum(test: &TestStore) -> i64 {
    test.number("SELECT CAST(sum(a) AS bigint) FROM t").await
}

async fn what_is_released_stays_and_what_is_rolled_back_goes(test: TestStore) {
    table(&test).await;
    let mut tx = begin(&test).await;
    insert(&mut tx, 1).await;
    let outer = tx.begin_savepoint().await.unwrap();
    insert(&mut tx, 2).await;
    let inner = tx.begin_savepoint().await.unwrap();
    insert(&mut tx, 4).await;
    tx.roll_back_savepoint(inner).await.unwrap();
    insert(&mut tx, 8).await;
    let inner = tx.begin_savepoint().await.unwrap();
    insert(&mut tx, 16).await;
    tx.release_savepoint(inner).await.unwrap();
    tx.release_savepoint(outer).await.unwrap();
    let gone = tx.begin_savepoint().await.unwrap();
    insert(&mut tx, 32).await;
    // What an inner one has kept goes with the outer one.
    let kept = tx.begin_savepoint().await.unwrap();
    insert(&mut tx, 64).await;
    tx.release_savepoint(kept).await.unwrap();
    tx.roll_back_savepoint(gone).await.unwrap();
    insert(&mut tx, 128).await;
    assert_eq!(tx.open_savepoints(), 0);
    commit(tx).await;
    assert_eq!(sum(&test).await, 1 + 2 + 8 + 16 + 128);
    assert_eq!(test.number(&claims(&test)).await, 1);
}

async fn an_error_is_undone_with_its_savepoint(test: TestStore) {
    table(&test).await;
    let mut tx = begin(&test).await;
    insert(&mut tx, 1).await;
    for statement in [
        "INSERT INTO t VALUES (0)",
        "SELECT FROM WHERE",
        "INSERT INTO nowhere VALUES (1)",
    ] {
        let savepoint = tx.begin_savepoint().await.unwrap();
        insert(&mut tx, 2).await;
        tx.execute(statement, &[]).await.unwrap_err();
        assert!(tx.is_aborted());
        let error = tx.query("SELECT a FROM t", &[], 10).await.unwrap_err();
        assert_eq!(error.code, "aborted");
        assert!(error.message.contains("savepoint"), "{error:?}");
        tx.roll_back_savepoint(savepoint).await.unwrap();
        assert!(!tx.is_aborted());
        assert_eq!(
            one(&mut tx, "SELECT count(*) FROM t").await,
            Value::Int64(2)
        );
    }
    insert(&mut tx, 4).await;
    commit(tx).await;
    assert_eq!(sum(&test).await, 5);
    assert_eq!(test.number(&claims(&test)).await, 1);
}

async fn an_error_is_undone_with_an_outer_savepoint(test: TestStore) {
    table(&test).await;
    let mut tx = begin(&test).await;
    insert(&mut tx, 1).await;
    let outer = tx.begin_savepoint().await.unwrap();
    insert(&mut tx, 2).await;
    let inner = tx.begin_savepoint().await.unwrap();
    insert(&mut tx, 4).await;
    fail(&mut tx).await;
    tx.roll_back_savepoint(outer).await.unwrap();
    assert_eq!(code(tx.roll_back_savepoint(inner).await), "savepoint.ended");
    insert(&mut tx, 8).await;
    commit(tx).await;
    assert_eq!(sum(&test).await, 9);
}

async fn an_error_outside_is_never_undone(test: TestStore) {
    table(&test).await;
    let mut tx = begin(&test).await;
    let savepoint = tx.begin_savepoint().await.unwrap();
    insert(&mut tx, 1).await;
    tx.release_savepoint(savepoint).await.unwrap();
    fail(&mut tx).await;
    assert_eq!(code(tx.begin_savepoint().await), "aborted");
    assert_eq!(
        code(tx.roll_back_savepoint(savepoint).await),
        "savepoint.ended"
    );
    assert!(tx.is_aborted());
    assert!(matches!(
        tx.commit().await.result,
        Err(CommitError::Refused(error)) if error.code == "aborted"
    ));
    assert_eq!(sum(&test).await, 0);
}

/// What was done since is not all there, so it can't be kept.
async fn a_savepoint_cannot_be_released_after_an_error(test: TestStore) {
    table(&test).await;
    let mut tx = begin(&test).await;
    let outer = tx.begin_savepoint().await.unwrap();
    insert(&mut tx, 1).await;
    let inner = tx.begin_savepoint().await.unwrap();
    insert(&mut tx, 2).await;
    fail(&mut tx).await;
    for savepoint in [inner, outer] {
        assert_eq!(code(tx.release_savepoint(savepoint).await), "aborted");
    }
    assert_eq!(code(tx.begin_savepoint().await), "aborted");
    tx.roll_back_savepoint(inner).await.unwrap();
    tx.release_savepoint(outer).await.unwrap();
    commit(tx).await;
    assert_eq!(sum(&test).await, 1);
}

async fn savepoints_end_with_an_earlier_one(test: TestStore) {
    table(&test).await;
    let mut tx = begin(&test).await;
    let mut three = Vec::new();
    for a in [1, 2, 4] {
        three.push(tx.begin_savepoint().await.unwrap());
        insert(&mut tx, a).await;
    }
    tx.release_savepoint(three[1]).await.unwrap();
    assert_eq!(tx.open_savepoints(), 1);
    for ended in &three[1..] {
        assert_eq!(code(tx.release_savepoint(*ended).await), "savepoint.ended");
        assert_eq!(
            code(tx.roll_back_savepoint(*ended).await),
            "savepoint.ended"
        );
    }
    // Such a mistake costs nothing.
    assert!(!tx.is_aborted());
    let later = tx.begin_savepoint().await.unwrap();
    insert(&mut tx, 8).await;
    tx.roll_back_savepoint(three[0]).await.unwrap();
    assert_eq!(code(tx.release_savepoint(later).await), "savepoint.ended");
    insert(&mut tx, 16).await;
    commit(tx).await;
    assert_eq!(sum(&test).await, 16);
}

async fn open_savepoints_are_bounded(test: TestStore) {
    table(&test).await;
    let mut tx = begin(&test).await;
    let mut open = Vec::new();
    for _ in 0..SAVEPOINTS_MAX {
        open.push(tx.begin_savepoint().await.unwrap());
    }
    insert(&mut tx, 1).await;
    assert_eq!(code(tx.begin_savepoint().await), "limit.savepoints");
    assert!(!tx.is_aborted());
    tx.release_savepoint(open[SAVEPOINTS_MAX - 1])
        .await
        .unwrap();
    let last = tx.begin_savepoint().await.unwrap();
    tx.release_savepoint(last).await.unwrap();
    tx.release_savepoint(open[0]).await.unwrap();
    commit(tx).await;
    assert_eq!(sum(&test).await, 1);
}

async fn an_open_savepoint_refuses_the_commit(test: TestStore) {
    table(&test).await;
    let mut tx = begin(&test).await;
    insert(&mut tx, 1).await;
    tx.begin_savepoint().await.unwrap();
    let ended = tx.commit().await;
    assert!(
        matches!(&ended.result, Err(CommitError::Refused(error)) if error.code == "savepoint.open"),
        "{ended:?}"
    );
    assert!(ended.connection.is_some());
    assert_eq!(sum(&test).await, 0);
    assert_eq!(test.number(&claims(&test)).await, 0);
}

/// On PostgreSQL they are prepared on the server; going back does not forget them.
async fn statements_live_on_over_a_savepoint(test: TestStore) {
    table(&test).await;
    let mut tx = begin(&test).await;
    for a in 1..4 {
        let savepoint = tx.begin_savepoint().await.unwrap();
        insert(&mut tx, a).await;
        tx.query("SELECT a FROM t", &[], 10).await.unwrap();
        fail(&mut tx).await;
        tx.roll_back_savepoint(savepoint).await.unwrap();
    }
    insert(&mut tx, 5).await;
    commit(tx).await;
    assert_eq!(sum(&test).await, 5);
}

async fn many_rows_are_undone_with_their_savepoint(test: TestStore) {
    table(&test).await;
    let rows =
        |range: std::ops::Range<i64>| range.map(|a| vec![Value::Int64(a)]).collect::<Vec<_>>();
    let mut tx = begin(&test).await;
    let savepoint = tx.begin_savepoint().await.unwrap();
    let mut failing = rows(1..200);
    failing[150] = vec![Value::Int64(0)];
    let error = tx
        .execute_many("INSERT INTO t VALUES ($1)", &failing)
        .await
        .unwrap_err();
    assert_eq!(error.row, Some(150));
    tx.roll_back_savepoint(savepoint).await.unwrap();
    assert_eq!(
        one(&mut tx, "SELECT count(*) FROM t").await,
        Value::Int64(1)
    );
    let savepoint = tx.begin_savepoint().await.unwrap();
    tx.execute_many("INSERT INTO t VALUES ($1)", &rows(1..4))
        .await
        .unwrap();
    tx.release_savepoint(savepoint).await.unwrap();
    commit(tx).await;
    assert_eq!(sum(&test).await, 6);
}

async fn a_connection_is_used_again_after_an_open_savepoint(test: TestStore) {
    table(&test).await;
    let mut tx = begin(&test).await;
    let first = tx.begin_savepoint().await.unwrap();
    fail(&mut tx).await;
    let mut tx = claimed(Tx::begin(tx.rollback().await.unwrap()).await.unwrap()).await;
    assert_eq!(tx.open_savepoints(), 0);
    assert_eq!(code(tx.release_savepoint(first).await), "savepoint.ended");
    let savepoint = tx.begin_savepoint().await.unwrap();
    insert(&mut tx, 1).await;
    tx.release_savepoint(savepoint).await.unwrap();
    commit(tx).await;
    assert_eq!(sum(&test).await, 1);
}

/// Going back would work on the server, but such a run is nobody's fault and must not be judged by what the handler
/// makes of it.
async fn stays_a_fault(mut tx: Tx, savepoint: hapax::store::Savepoint) {
    let before = format!("{:?}", tx.fault());
    assert_eq!(code(tx.roll_back_savepoint(savepoint).await), "aborted");
    assert_eq!(code(tx.release_savepoint(savepoint).await), "aborted");
    assert_eq!(code(tx.execute("SELECT 1", &[]).await), "aborted");
    assert!(tx.is_aborted());
    assert_eq!(format!("{:?}", tx.fault()), before);
    assert!(matches!(
        tx.commit().await.result,
        Err(CommitError::Busy(_))
    ));
}

#[tokio::test]
async fn on_postgres_a_deadlock_in_a_savepoint_stays_a_fault() {
    let test = TestStore::postgres().await;
    table(&test).await;
    test.run("INSERT INTO t VALUES (1)").await;
    let lock = |a: i64| format!("UPDATE t SET a = a WHERE a = {a}");
    let mut tx = begin(&test).await;
    tx.execute(&lock(0), &[]).await.unwrap();
    let savepoint = tx.begin_savepoint().await.unwrap();
    // The other one never looks for a deadlock, so that it is ours that the server ends.
    let mut other = test.probe().await;
    other.run("SET deadlock_timeout = '1h'").await;
    other.run(&format!("BEGIN; {}", lock(1))).await;
    let other = tokio::spawn({
        let text = lock(0);
        async move {
            other.run(&text).await;
            other
        }
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    test.probe().await.wait_for(waiting, 1).await;
    let error = tx.execute(&lock(1), &[]).await.unwrap_err();
    assert_eq!(error.code, "deadlock");
    assert!(matches!(tx.fault(), Some(StoreError::Busy(_))));
    stays_a_fault(tx, savepoint).await;
    other.await.unwrap();
}

#[tokio::test]
async fn on_postgres_a_lock_timeout_in_a_savepoint_stays_a_fault() {
    let test = TestStore::postgres().await;
    table(&test).await;
    let mut other = test.begin().await;
    other.execute("UPDATE t SET a = a", &[]).await.unwrap();
    let short = SessionOptions {
        lock_timeout: Duration::from_millis(50),
        ..options()
    };
    let mut tx = claimed(Tx::begin(test.connect_with(&short).await).await.unwrap()).await;
    let savepoint = tx.begin_savepoint().await.unwrap();
    let error = tx.execute("UPDATE t SET a = a", &[]).await.unwrap_err();
    assert_eq!(error.code, "lock-timeout");
    assert!(matches!(tx.fault(), Some(StoreError::Busy(_))));
    stays_a_fault(tx, savepoint).await;
}

#[tokio::test]
async fn on_postgres_a_lost_connection_in_a_savepoint_stays_a_fault() {
    let test = TestStore::postgres().await;
    table(&test).await;
    for lost_in_statement in [true, false] {
        let mut tx = begin(&test).await;
        let savepoint = tx.begin_savepoint().await.unwrap();
        test.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hapax test'")
            .await;
        // A dropped savepoint meets it as well, and nobody is told.
        let error = if lost_in_statement {
            tx.execute("SELECT 1", &[]).await.unwrap_err()
        } else {
            tx.roll_back_savepoint(savepoint).await.unwrap_err()
        };
        assert_eq!(error.code, "unavailable");
        assert!(matches!(tx.fault(), Some(StoreError::Unavailable(_))));
        stays_a_fault(tx, savepoint).await;
    }
}

/// These end the whole transaction, its savepoints with it; the rollback hook tells, ROLLBACK TO does not.
#[tokio::test]
async fn on_sqlite_an_unseen_end_in_a_savepoint_is_the_end() {
    let test = TestStore::sqlite().await;
    table(&test).await;
    test.run(
        "CREATE TABLE keyed (a int PRIMARY KEY ON CONFLICT ROLLBACK); INSERT INTO keyed VALUES (1); \
         CREATE TABLE raising (a int); \
         CREATE TRIGGER raises BEFORE INSERT ON raising BEGIN SELECT RAISE(ROLLBACK, 'not here'); END;",
    )
    .await;
    for statement in [
        "INSERT OR ROLLBACK INTO t VALUES (0)",
        "INSERT INTO keyed VALUES (1)",
        "INSERT INTO raising VALUES (1)",
    ] {
        let mut tx = begin(&test).await;
        insert(&mut tx, 1).await;
        let before = tx.begin_savepoint().await.unwrap();
        insert(&mut tx, 2).await;
        tx.roll_back_savepoint(before).await.unwrap();
        let savepoint = tx.begin_savepoint().await.unwrap();
        tx.execute(statement, &[]).await.unwrap_err();
        assert_eq!(code(tx.roll_back_savepoint(savepoint).await), "aborted");
        assert_eq!(code(tx.begin_savepoint().await), "aborted");
        assert_eq!(
            code(tx.execute("INSERT INTO t VALUES (9)", &[]).await),
            "aborted"
        );
        assert!(tx.is_aborted());
        assert!(tx.fault().is_none());
        assert!(matches!(
            tx.commit().await.result,
            Err(CommitError::Refused(error)) if error.code == "aborted"
        ));
        assert_eq!(sum(&test).await, 0, "{statement}");
        assert_eq!(test.number(&claims(&test)).await, 0, "{statement}");
    }
}
