//! The second lines of defence, each tried with the first one out of the way.

use std::time::Duration;

use super::*;
use crate::store::test_servers::postgres::Postgres;

struct Test {
    _server: Postgres,
    session: PostgresSession,
    probe: PgConnection,
}

impl Test {
    async fn begun() -> Self {
        let server = Postgres::start();
        let url = server.database().await;
        let options = SessionOptions {
            purpose: "test".into(),
            statement_timeout: Some(Duration::from_secs(20)),
            lock_timeout: Duration::from_secs(20),
            idle_in_transaction: Duration::from_secs(60),
        };
        let base = parse(&url).unwrap();
        let mut session = PostgresSession::connect(&base, &options).await.unwrap();
        session.migrate().await.unwrap();
        let probe = PostgresSession::connect(&base, &options)
            .await
            .unwrap()
            .connection;
        session
            .simple("CREATE TABLE t (a int PRIMARY KEY)")
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
            _server: server,
            session,
            probe,
        }
    }

    /// What is committed: rows of `t`, claims.
    async fn committed(&mut self) -> (i64, i64) {
        sqlx::query_as(
            "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM hapax.processed_messages)",
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

fn refused(result: Result<(), CommitError>) -> SqlError {
    match result {
        Err(CommitError::Refused(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Trap 1, as it is without the cure: the driver reports success for a COMMIT that rolled back.
#[tokio::test]
async fn a_bare_commit_of_an_aborted_transaction_succeeds() {
    let mut test = Test::begun().await;
    test.raw("INSERT INTO t VALUES (1)").await.unwrap_err();
    test.raw("COMMIT").await.unwrap();
    assert_eq!(test.committed().await, (0, 0));
}

#[tokio::test]
async fn an_aborted_transaction_that_the_session_does_not_know_of_is_refused() {
    let mut test = Test::begun().await;
    test.session
        .execute("INSERT INTO t VALUES (1)", &[])
        .await
        .unwrap_err();
    test.session.tx.aborted = false;
    assert_eq!(refused(test.session.commit().await).code, "aborted");
    assert_eq!(test.committed().await, (0, 0));
    test.session.rollback().await.unwrap();
    test.session.begin().await.unwrap();

    // Also when nothing was claimed.
    test.session.execute("SELECT 1 / 0", &[]).await.unwrap_err();
    test.session.tx.aborted = false;
    assert_eq!(refused(test.session.commit().await).code, "aborted");
}

/// Trap 2: a COMMIT that passed the guard. What it committed is lost to us, but no more may be told as committed.
#[tokio::test]
async fn a_transaction_that_was_ended_is_refused() {
    for end in [
        "COMMIT",
        "ROLLBACK",
        "COMMIT; BEGIN",
        "ROLLBACK; BEGIN; INSERT INTO t VALUES (7)",
    ] {
        let mut test = Test::begun().await;
        test.raw(end).await.unwrap();
        let error = refused(test.session.commit().await);
        assert_eq!(error.code, "aborted", "{end}");
        assert_eq!(error.detail.as_deref(), Some(NOT_ALIVE));
        // The connection is not used again.
        assert!(test.session.rollback().await.is_err());
        drop(test.session);
        let sevens: i64 = sqlx::query_scalar("SELECT count(*) FROM t WHERE a = 7")
            .fetch_one(&mut test.probe)
            .await
            .unwrap();
        assert_eq!(sevens, 0, "{end}");
    }
}

/// Behind the guard: the extended protocol takes one command only.
#[tokio::test]
async fn a_second_command_is_refused_by_the_server() {
    let mut test = Test::begun().await;
    for statement in ["SELECT 1; COMMIT", "INSERT INTO t VALUES (2); SELECT 1"] {
        let session = &mut test.session;
        let error = session
            .statements
            .prepare(&mut session.connection, statement)
            .await
            .unwrap_err();
        assert_eq!(errors::sql_error(&error).code, "syntax", "{statement}");
        test.session.rollback().await.unwrap();
        test.session.begin().await.unwrap();
    }
    // And PREPARE takes no transaction command.
    let session = &mut test.session;
    session
        .statements
        .prepare(&mut session.connection, "COMMIT")
        .await
        .unwrap_err();
    assert_eq!(test.committed().await, (0, 0));
}

/// After a migration: the run is charged to nobody, and the next one has a connection that sees the new columns.
#[tokio::test]
async fn a_plan_that_is_out_of_date_is_a_fault() {
    let mut test = Test::begun().await;
    test.session
        .query("SELECT * FROM t", &[], 10)
        .await
        .unwrap();
    test.session.commit().await.unwrap();
    sqlx::raw_sql("ALTER TABLE t ADD b int")
        .execute(&mut test.probe)
        .await
        .unwrap();
    test.session.begin().await.unwrap();
    let error = test
        .session
        .query("SELECT * FROM t", &[], 10)
        .await
        .unwrap_err();
    assert_eq!((error.code.as_str(), error.retryable), ("stale", true));
    assert!(matches!(test.session.fault(), Some(StoreError::Busy(_))));
    // The connection is as good as before: it prepares anew.
    test.session.rollback().await.unwrap();
    test.session.begin().await.unwrap();
    let result = test
        .session
        .query("SELECT * FROM t", &[], 10)
        .await
        .unwrap();
    assert_eq!(result.columns.len(), 2);
    test.session.rollback().await.unwrap();
}
