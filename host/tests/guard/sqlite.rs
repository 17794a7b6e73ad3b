//! Hostile statements on SQLite.

use hapax::store::{Connection, Rights, Tx};

use crate::support::database::TestStore;
use crate::{assert_claimed, begin, commit, effect, row};

const TABLES: &str = "
    CREATE TABLE effects (id text NOT NULL);
    CREATE TABLE accounts (id text PRIMARY KEY, balance integer NOT NULL);
    CREATE VIRTUAL TABLE texts USING fts5(body);
";

/// The code of the refusal, and the statement.
const HOSTILE: &[(&str, &str)] = &[
    ("denied.statement", "COMMIT"),
    ("denied.statement", "END TRANSACTION"),
    ("denied.statement", "ROLLBACK"),
    ("denied.statement", "BEGIN IMMEDIATE"),
    ("denied.statement", "/* */COMMIT"),
    ("denied.statement", "-- x\nCOMMIT"),
    ("denied.statement", "\u{feff}COMMIT"),
    ("denied.statement", "/* /* */ COMMIT /* */"),
    ("denied.statement", "SELECT 1; COMMIT"),
    ("denied.statement", ";COMMIT"),
    ("denied.statement", "SELECT 'a''; COMMIT --'; COMMIT"),
    ("denied.statement", "SELECT [a]; COMMIT"),
    ("denied.statement", "SELECT \"a\"\"; COMMIT --\"; COMMIT"),
    ("denied.statement", "SELECT `a``; COMMIT --`; COMMIT"),
    ("denied.statement", "SAVEPOINT a"),
    ("denied.statement", "RELEASE a"),
    ("denied.statement", "ROLLBACK TO a"),
    ("denied.statement", "ATTACH 'other.db' AS other"),
    ("denied.statement", "ATTACH ':memory:' AS other"),
    ("denied.statement", "DETACH main"),
    ("denied.statement", "PRAGMA synchronous = OFF"),
    ("denied.statement", "PRAGMA writable_schema = ON"),
    ("denied.statement", "PRAGMA journal_mode(delete)"),
    ("denied.statement", "PRAGMA foreign_keys"),
    ("denied.statement", "VACUUM"),
    ("denied.statement", "VACUUM INTO 'copy.db'"),
    ("denied.statement", "ANALYZE"),
    ("denied.statement", "REINDEX"),
    ("denied.statement", "EXPLAIN SELECT 1"),
    ("denied.statement", "CREATE TABLE t (a)"),
    ("denied.statement", "CREATE TEMP TABLE accounts (a)"),
    ("denied.statement", "CREATE VIRTUAL TABLE v USING fts5(a)"),
    (
        "denied.statement",
        "CREATE VIRTUAL TABLE v USING csv(filename='x')",
    ),
    (
        "denied.statement",
        "CREATE TRIGGER t AFTER INSERT ON accounts BEGIN DELETE FROM accounts; END",
    ),
    ("denied.statement", "DROP TABLE accounts"),
    ("denied.statement", "ALTER TABLE accounts RENAME TO a"),
    ("denied.statement", "SELECT * FROM sqlite_master"),
    ("denied.statement", "UPDATE sqlite_schema SET sql = ''"),
    ("denied.statement", "DELETE FROM \"sqlite_master\""),
    (
        "denied.statement",
        "INSERT INTO main.[sqlite_master] VALUES (1, 2, 3, 4, 5)",
    ),
    ("denied.statement", "SELECT * FROM 'sqlite_master'"),
    ("denied.statement", "SELECT * FROM sqlite_dbpage"),
    ("denied.statement", "DELETE FROM sqlite_sequence"),
    ("denied.function", "SELECT load_extension('x.so')"),
    ("denied.function", "SELECT \"load_extension\" ('x.so')"),
    ("denied.function", "SELECT fts3_tokenizer('simple')"),
    ("denied.function", "SELECT * FROM pragma_optimize(2)"),
    ("denied.function", "SELECT * FROM pragma_wal_checkpoint"),
    ("denied.function", "SELECT * FROM 'pragma_integrity_check'"),
    (
        "denied.function",
        "INSERT INTO effects SELECT name FROM [Pragma_Table_Info]('accounts')",
    ),
    ("denied.statement", "SELECT * FROM hapax_processed_messages"),
    ("denied.statement", "DELETE FROM Hapax_Processed_Messages"),
    (
        "denied.statement",
        "DELETE FROM main . \"hapax_processed_messages\"",
    ),
    (
        "denied.statement",
        "INSERT INTO 'hapax_queue' (queue) VALUES ('q')",
    ),
    (
        "denied.statement",
        "WITH a AS (SELECT * FROM `hapax_queue`) SELECT * FROM a",
    ),
];

/// What a handler can see of the session.
async fn state(tx: &mut Tx) -> String {
    let found = row(
        tx,
        "SELECT (SELECT count(*) FROM accounts), (SELECT count(*) FROM texts), total_changes()",
    )
    .await;
    format!("{found:?}")
}

#[tokio::test]
async fn hostile_statements_are_refused_and_touch_nothing() {
    let test = TestStore::sqlite().await;
    test.run(TABLES).await;
    let mut connection: Connection = test.connect().await;
    for (number, (code, statement)) in HOSTILE.iter().enumerate() {
        let id = format!("m-{number}");
        let mut tx = begin(connection, &id).await;
        effect(&mut tx, &id).await;
        let before = state(&mut tx).await;
        for error in [
            tx.execute(statement, &[]).await.unwrap_err(),
            tx.query(statement, &[], 10).await.unwrap_err(),
            tx.execute_many(statement, &[vec![]]).await.unwrap_err(),
        ] {
            assert_eq!(error.code, *code, "{statement}: {error}");
            assert!(error.hint.is_some(), "{statement}");
        }
        assert_eq!(state(&mut tx).await, before, "{statement}");
        connection = commit(tx).await;
    }
    assert_claimed(&test, "m-", HOSTILE.len()).await;
    assert_eq!(
        test.text("PRAGMA journal_mode").await.as_deref(),
        Some("wal")
    );
}

#[tokio::test]
async fn tables_are_made_where_that_is_allowed() {
    let test = TestStore::sqlite().await;
    test.run(TABLES).await;
    let mut connection = test.connect().await;
    connection.set_rights(Rights {
        allow_ddl: true,
        ..Rights::default()
    });
    let mut tx = begin(connection, "m-0").await;
    effect(&mut tx, "m-0").await;
    for statement in [
        "CREATE TABLE monthly (id INTEGER PRIMARY KEY, note TEXT) STRICT",
        "CREATE UNIQUE INDEX by_note ON monthly (note)",
        "ALTER TABLE monthly ADD COLUMN at TEXT",
        "CREATE VIEW months AS SELECT id FROM monthly",
    ] {
        let done = tx.execute(statement, &[]).await;
        assert_eq!(done.unwrap(), 0, "{statement}");
    }
    for statement in [
        "CREATE TEMP TABLE accounts (id TEXT)",
        "CREATE VIRTUAL TABLE v USING fts5(a)",
        "DROP TABLE hapax_queue",
        "DROP TRIGGER t",
        "CREATE TABLE a (b); COMMIT",
    ] {
        let error = tx.execute(statement, &[]).await.unwrap_err();
        assert_eq!(error.code, "denied.statement", "{statement}: {error}");
    }
    commit(tx).await;
    assert_eq!(test.number("SELECT count(*) FROM months").await, 0);
    assert_claimed(&test, "m-", 1).await;
}
