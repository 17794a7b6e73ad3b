//! The second lines of defence, each tried with the first one out of the way.

use tempfile::TempDir;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;

use super::*;
use crate::store::SessionOptions;

struct Test {
    session: SqliteSession,
    probe: SqliteConnection,
    _folder: TempDir,
}

impl Test {
    async fn begun() -> Self {
        let folder = TempDir::with_prefix("hapax-sqlite-").unwrap();
        let path = folder.path().join("hapax.db");
        let options = SessionOptions {
            purpose: "test".into(),
            statement_timeout: Some(Duration::from_secs(20)),
            lock_timeout: Duration::from_secs(20),
            idle_in_transaction: Duration::from_secs(60),
        };
        let mut session = SqliteSession::connect(&path, &options).await.unwrap();
        session.migrate().await.unwrap();
        session
            .simple("CREATE TABLE t (a int PRIMARY KEY)")
            .await
            .unwrap();
        let probe = SqliteConnectOptions::new()
            .filename(&path)
            .connect()
            .await
            .unwrap();
        session.begin().await.unwrap();
        let request = ClaimRequest {
            id: MessageId::new("a").unwrap(),
            payload_hash: crate::message::ShortHash::of_payload(b""),
        };
        session
            .claim("c", &[request], ClaimAs::Done, None)
            .await
            .unwrap();
        session
            .execute("INSERT INTO t VALUES (1)", &[])
            .await
            .unwrap();
        Self {
            session,
            probe,
            _folder: folder,
        }
    }

    /// What is committed: rows of `t`, claims.
    async fn committed(&mut self) -> (i64, i64) {
        sqlx::query_as(
            "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM hapax_processed_messages)",
        )
        .fetch_one(&mut self.probe)
        .await
        .unwrap()
    }

    /// A statement that no guard has seen.
    async fn raw(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(sql)
            .execute(&mut self.session.connection)
            .await
            .map(|_| ())
    }
}

/// Trap 2, behind the guard: the commit hook turns it into a rollback.
#[tokio::test]
async fn a_commit_that_is_not_the_hosts_is_refused() {
    for end in ["COMMIT", "END", "INSERT INTO t VALUES (2); COMMIT"] {
        let mut test = Test::begun().await;
        let error = test.raw(end).await.unwrap_err();
        assert_eq!(errors::sql_error(&error).code, "aborted", "{end}");
        assert!(matches!(
            test.session.commit().await,
            Err(CommitError::Refused(error)) if error.code == "aborted"
        ));
        assert!(test.session.rollback().await.is_err());
        assert_eq!(test.committed().await, (0, 0), "{end}");
    }
}

/// What runs after an unseen end would be kept at once, statement by statement.
#[tokio::test]
async fn after_an_unseen_end_nothing_can_be_kept() {
    let mut test = Test::begun().await;
    test.raw("INSERT OR ROLLBACK INTO t VALUES (1)")
        .await
        .unwrap_err();
    let error = test.raw("INSERT INTO t VALUES (2)").await.unwrap_err();
    assert_eq!(errors::sql_error(&error).code, "aborted");
    test.session
        .execute("INSERT INTO t VALUES (3)", &[])
        .await
        .unwrap_err();
    // The session has not seen an error of its own, but the hook has told it.
    test.session.aborted = false;
    assert!(matches!(
        test.session.commit().await,
        Err(CommitError::Refused(error)) if error.code == "aborted"
    ));
    assert!(test.session.rollback().await.is_err());
    assert_eq!(test.committed().await, (0, 0));
}

/// The hooks tell of the whole transaction's end only: not of a savepoint's, and of a COMMIT also while one is open.
#[tokio::test]
async fn the_hooks_work_around_savepoints() {
    let mut test = Test::begun().await;
    let released = test.session.begin_savepoint().await.unwrap();
    test.session
        .execute("INSERT INTO t VALUES (2)", &[])
        .await
        .unwrap();
    test.session.release_savepoint(released).await.unwrap();
    let undone = test.session.begin_savepoint().await.unwrap();
    test.session
        .execute("INSERT INTO t VALUES (3)", &[])
        .await
        .unwrap();
    test.session.roll_back_savepoint(undone).await.unwrap();
    assert!(!test.session.hooks.ended.load(Ordering::SeqCst));
    assert_eq!(test.committed().await, (0, 0));
    test.session.commit().await.unwrap();
    assert_eq!(test.committed().await, (2, 1));

    let mut test = Test::begun().await;
    let savepoint = test.session.begin_savepoint().await.unwrap();
    test.raw("COMMIT").await.unwrap_err();
    assert_eq!(
        test.session
            .roll_back_savepoint(savepoint)
            .await
            .unwrap_err()
            .code,
        "aborted"
    );
    assert!(matches!(
        test.session.commit().await,
        Err(CommitError::Refused(error)) if error.code == "aborted"
    ));
    assert_eq!(test.committed().await, (0, 0));
}

/// As after a drop that failed, of which nobody is told.
#[tokio::test]
async fn a_savepoint_that_cannot_be_undone_is_the_end() {
    let mut test = Test::begun().await;
    let outer = test.session.begin_savepoint().await.unwrap();
    let inner = test.session.begin_savepoint().await.unwrap();
    test.raw("RELEASE hapax_savepoint_2").await.unwrap();
    test.session.roll_back_savepoint(inner).await.unwrap_err();
    assert!(test.session.is_aborted());
    let error = test.session.roll_back_savepoint(outer).await.unwrap_err();
    assert_eq!(error.code, "aborted");
    assert!(matches!(
        test.session.commit().await,
        Err(CommitError::Refused(error)) if error.code == "aborted"
    ));
    test.session.rollback().await.unwrap();
    assert_eq!(test.committed().await, (0, 0));
}

/// A file that became read-only, to the statement of a handler and to those of the host.
#[tokio::test]
async fn a_database_that_takes_no_writes_is_nobodys_fault() {
    let mut test = Test::begun().await;
    test.raw("PRAGMA query_only = ON").await.unwrap();
    let error = test
        .session
        .execute("INSERT INTO t VALUES (2)", &[])
        .await
        .unwrap_err();
    assert_eq!(
        (error.code.as_str(), error.retryable),
        ("unavailable", true)
    );
    assert!(matches!(
        test.session.fault,
        Some(StoreError::Unavailable(_))
    ));
    let error = test.raw("DELETE FROM hapax_attempts").await.unwrap_err();
    assert!(matches!(
        errors::store_error(&error),
        StoreError::Unavailable(_)
    ));
}
