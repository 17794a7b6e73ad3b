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

/// What SQLite's parser finds in statements that the guard would have refused.
#[tokio::test]
async fn the_authorizer_refuses_what_reaches_past_the_transaction() {
    let mut test = Test::begun().await;
    let session = &mut test.session;
    let mut as_handler = async |allow_ddl: bool, statement: &'static str| {
        session.hooks.allow_ddl.store(allow_ddl, Ordering::SeqCst);
        session.hooks.in_handler.store(true, Ordering::SeqCst);
        let result = sqlx::raw_sql(statement)
            .fetch_all(&mut session.connection)
            .await;
        session.hooks.in_handler.store(false, Ordering::SeqCst);
        match result {
            Ok(_) => "ok".to_owned(),
            Err(error) => errors::sql_error(&error).code,
        }
    };
    for statement in [
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT a",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "PRAGMA user_version = 3",
        "PRAGMA synchronous",
        "SELECT * FROM pragma_user_version",
        "SELECT * FROM 'pragma_table_list'",
        "SELECT * FROM hapax_queue",
        "SELECT 1 FROM t WHERE EXISTS (SELECT * FROM main.[Hapax_Queue])",
        "DELETE FROM hapax_processed_messages",
        "SELECT load_extension('x')",
        "SELECT fts3_tokenizer('simple')",
        "CREATE TEMP TABLE t (a)",
        "CREATE TEMP VIEW t AS SELECT 1",
        "CREATE TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE v USING fts5(a)",
        "DROP TABLE hapax_queue",
        "ALTER TABLE hapax_queue ADD COLUMN a",
        "ANALYZE",
    ] {
        for allow_ddl in [false, true] {
            // SQLite has no code of its own for a function.
            let code = if statement.contains("load_extension") || statement.contains("tokenizer") {
                "invalid"
            } else {
                "denied.privilege"
            };
            assert_eq!(as_handler(allow_ddl, statement).await, code, "{statement}");
        }
    }
    for statement in [
        "CREATE TABLE made (a INTEGER PRIMARY KEY AUTOINCREMENT, b UNIQUE)",
        "CREATE INDEX by_b ON made (b)",
        "ALTER TABLE made ADD COLUMN c",
        "ALTER TABLE made RENAME COLUMN c TO d",
        "CREATE VIEW seen AS SELECT a FROM made",
        "DROP VIEW seen",
        "DROP TABLE made",
    ] {
        assert_eq!(
            as_handler(false, statement).await,
            "denied.privilege",
            "{statement}"
        );
        assert_eq!(as_handler(true, statement).await, "ok", "{statement}");
    }
    for statement in [
        "INSERT INTO t SELECT value + 10 FROM json_each('[1, 2]')",
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT count(*) FROM n",
        "UPDATE t SET a = a + 100 RETURNING a",
    ] {
        assert_eq!(as_handler(false, statement).await, "ok", "{statement}");
    }
}

/// Full-text tables send statements of their own, and triggers of the handler's are their owner's.
#[tokio::test]
async fn the_authorizer_lets_virtual_tables_and_triggers_work() {
    let mut test = Test::begun().await;
    test.session.rollback().await.unwrap();
    test.session
        .simple(
            "CREATE VIRTUAL TABLE texts USING fts5(body); CREATE VIRTUAL TABLE boxes USING rtree(id, x1, x2);              CREATE TRIGGER enqueues AFTER INSERT ON t BEGIN INSERT INTO hapax_queue (queue, payload) VALUES ('q', x''); END",
        )
        .await
        .unwrap();
    // A connection that sees them for the first time inside a handler's statement.
    let path = test._folder.path().join("hapax.db");
    let options = SessionOptions {
        purpose: "test".into(),
        statement_timeout: None,
        lock_timeout: Duration::from_secs(20),
        idle_in_transaction: Duration::from_secs(60),
    };
    let mut session = SqliteSession::connect(&path, &options).await.unwrap();
    session.begin().await.unwrap();
    for statement in [
        "INSERT INTO texts (body) VALUES ('some words')",
        "UPDATE texts SET body = 'other words' WHERE texts MATCH 'some'",
        "INSERT INTO texts (texts) VALUES ('optimize')",
        "INSERT INTO boxes VALUES (1, 2, 3)",
        "DELETE FROM boxes WHERE x1 < 5",
        "INSERT INTO t VALUES (7)",
    ] {
        session
            .execute(statement, &[])
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    let found = session
        .query(
            "SELECT count(*) FROM texts WHERE texts MATCH 'words'",
            &[],
            10,
        )
        .await
        .unwrap();
    assert_eq!(found.rows, [[Value::Int64(1)]]);
    session.commit().await.unwrap();
}
