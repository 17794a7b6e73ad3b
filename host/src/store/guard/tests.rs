//! Statements that pass and statements that do not, on each database.

use super::*;

fn code(kind: StoreKind, statement: &str) -> String {
    match check(kind, statement) {
        Ok(_) => "ok".into(),
        Err(error) => error.code,
    }
}

#[test]
fn statements_that_pass_on_both() {
    for kind in [StoreKind::Postgres, StoreKind::Sqlite] {
        for statement in [
            "SELECT 1",
            "select 1;",
            "SELECT 1 ; ; -- done",
            "  -- a comment\n insert into t values (1)",
            "/* a */ update t set a = 1 /* b */;",
            "DELETE FROM t",
            "WITH a AS (SELECT 1) SELECT * FROM a",
            "VALUES (1), (2)",
            "SELECT ';COMMIT'",
            "SELECT 'it''s;' || \"a;b\" FROM t",
            "INSERT INTO t VALUES ('-- no comment', '/*')",
            "SELECT a/b, a - -b FROM t",
            "SELECT \u{e4}\u{f6} FROM \"caf\u{e9}\"",
        ] {
            assert_eq!(code(kind, statement), "ok", "{kind}: {statement}");
        }
    }
}

#[test]
fn statements_that_are_denied_on_both() {
    for kind in [StoreKind::Postgres, StoreKind::Sqlite] {
        for statement in [
            "",
            " -- nothing\n",
            ";",
            ";COMMIT",
            "; SELECT 1",
            "COMMIT",
            "/* a */COMMIT",
            "-- a\nCOMMIT",
            "commit;",
            "END",
            "ROLLBACK",
            "ABORT",
            "BEGIN",
            "START TRANSACTION",
            "SAVEPOINT a",
            "RELEASE a",
            "SET search_path = a",
            "RESET ALL",
            "CREATE TABLE t (a int)",
            "DROP TABLE t",
            "ALTER TABLE t ADD a int",
            "TRUNCATE t",
            "COPY t FROM STDIN",
            "DO $$ BEGIN COMMIT; END $$",
            "CALL p()",
            "PREPARE a AS SELECT 1",
            "EXECUTE a",
            "LISTEN a",
            "NOTIFY a",
            "LOCK TABLE t",
            "EXPLAIN ANALYZE DELETE FROM t",
            "VACUUM",
            "PRAGMA synchronous = OFF",
            "ATTACH 'x' AS y",
            "SELECT 1; COMMIT",
            "SELECT 1;/* a */COMMIT",
            "SELECT 1;;COMMIT",
            "SELECT 'a'; COMMIT --'",
            "SELECT 'a''; COMMIT --",
            "SELECT 'unterminated",
            "SELECT \"unterminated",
            "SELECT 1 /* unterminated",
            "1",
            "'a'",
            "\"select\" 1",
            "SELECT 1\0; COMMIT",
        ] {
            assert_eq!(
                code(kind, statement),
                "denied.statement",
                "{kind}: {statement}"
            );
        }
    }
}

#[test]
fn postgres_comments_nest() {
    let kind = StoreKind::Postgres;
    assert_eq!(code(kind, "/* /* */ */COMMIT"), "denied.statement");
    assert_eq!(code(kind, "/* /* */ COMMIT */ SELECT 1"), "ok");
    assert_eq!(code(kind, "/* /* */ SELECT 1"), "denied.statement");
    // SQLite ends the comment at the first `*/`.
    assert_eq!(
        code(StoreKind::Sqlite, "/* /* */ COMMIT */ SELECT 1"),
        "denied.statement"
    );
    assert_eq!(code(StoreKind::Sqlite, "/* /* */ SELECT 1"), "ok");
}

#[test]
fn postgres_strings() {
    let kind = StoreKind::Postgres;
    for statement in [
        r"SELECT E'it\'s;COMMIT'",
        r"SELECT e'\\';",
        r"SELECT 'a\'",
        "SELECT E'a'\n'b\\';COMMIT'",
        "SELECT E'a' -- c\n 'b\\';COMMIT'",
        "SELECT $$;COMMIT$$",
        "SELECT $a$;$$;COMMIT$a$",
        "SELECT $1::text || $2",
        "SELECT a$b$c FROM t",
        "SELECT U&'\\0041;'",
        "SELECT B'01', X'ff', N'x'",
        "(SELECT 1) UNION (SELECT 2)",
        "SELECT ARRAY[1,2][1], a::int, 'a' @> 'b'",
        "MERGE INTO t USING s ON true WHEN MATCHED THEN DO NOTHING",
        "INSERT INTO t SELECT 'hapax'",
        "SELECT hapax_queue FROM hapaxes",
        "SELECT \"HAPAX\" FROM t",
    ] {
        assert_eq!(code(kind, statement), "ok", "{statement}");
    }
    for statement in [
        r"SELECT 'a\'; COMMIT --'",
        r"SELECT E'\\'; COMMIT --'",
        "SELECT E'a' 'b\\'; COMMIT --'",
        "SELECT $$a$$; COMMIT",
        "SELECT $a$ $$ ; COMMIT",
        "SELECT $1$$a$$;COMMIT",
        "SELECT U&\"\\0068apax\" FROM t",
        "SELECT * FROM hapax.queue",
        "SELECT * FROM Hapax . queue",
        "DELETE FROM \"hapax\".queue",
        "DELETE FROM/**/hapax/**/.queue",
        "WITH a AS (DELETE FROM hapax.queue RETURNING 1) SELECT 1",
        "SELECT * INTO TEMP accounts FROM t",
        "SELECT 1 INTO t",
        "WITH a AS (SELECT 1) SELECT * INTO t FROM a",
        "REPLACE INTO t VALUES (1)",
        "SELECT E'\\",
    ] {
        assert_eq!(code(kind, statement), "denied.statement", "{statement}");
    }
}

#[test]
fn sqlite_names_and_parameters() {
    let kind = StoreKind::Sqlite;
    for (statement, params, reads) in [
        ("SELECT $1, $2", 2, true),
        ("SELECT ?3", 3, true),
        ("SELECT ?, ?", 2, true),
        ("SELECT [a;b], `c;d` FROM t", 0, true),
        ("REPLACE INTO t VALUES (x'00', $1)", 1, false),
        ("INSERT OR ROLLBACK INTO t VALUES ('$1')", 0, false),
        (
            "WITH a(x) AS (SELECT 1) INSERT INTO t SELECT x FROM a",
            0,
            false,
        ),
        ("WITH a AS (DELETE) VALUES (1)", 0, true),
        ("SELECT a$1 FROM t", 0, true),
        ("SELECT a->'b', a->>'$.c' FROM t", 0, true),
        ("\u{feff}SELECT 1", 0, true),
    ] {
        assert_eq!(
            check(kind, statement).unwrap(),
            Passed { reads, params },
            "{statement}"
        );
    }
    for statement in [
        "SELECT * FROM hapax_queue",
        "SELECT * FROM Hapax_Queue",
        "DELETE FROM main.hapax_queue",
        "DELETE FROM [hapax_queue]",
        "DELETE FROM `hapax_queue`",
        "DELETE FROM \"hapax_queue\"",
        "INSERT INTO 'hapax_queue' VALUES (1)",
        "SELECT * FROM \u{feff}hapax_queue",
        "SELECT * FROM sqlite_master",
        "SELECT [unterminated",
        "SELECT `unterminated",
        "MERGE INTO t USING s ON 1",
        "(SELECT 1)",
    ] {
        assert_eq!(code(kind, statement), "denied.statement", "{statement}");
    }
    for statement in [
        "SELECT :a",
        "SELECT @a",
        "SELECT $a",
        "SELECT $",
        "SELECT $0",
        "SELECT ?0",
        "SELECT $1a",
        "SELECT $1(;COMMIT)",
        "SELECT $1::int",
        "SELECT ?99999",
        "SELECT $99999999999999999999",
        "SELECT ?, $1",
    ] {
        assert_eq!(code(kind, statement), "params.name", "{statement}");
    }
}

#[test]
fn what_is_denied_is_named() {
    let error = check(StoreKind::Postgres, "  /* x */ Commit").unwrap_err();
    assert_eq!(error.message, "the statement begins with `Commit`");
    assert_eq!(error.position, Some(11));
    assert_eq!(
        error.hint.unwrap(),
        "a handler may send SELECT, INSERT, UPDATE, DELETE, MERGE, WITH, VALUES"
    );
    let long = format!("SELECT '{}'", "a".repeat(STATEMENT_MAX_BYTES));
    assert_eq!(code(StoreKind::Sqlite, &long), "denied.statement");
}

#[test]
fn transaction_commands_in_scripts() {
    let found = |script| transaction_command(StoreKind::Postgres, script);
    assert_eq!(
        found("CREATE TABLE t (a int); INSERT INTO t VALUES (1)"),
        None
    );
    assert_eq!(
        found("CREATE TABLE t (a int); commit; x"),
        Some("COMMIT".into())
    );
    assert_eq!(found("-- x\nBEGIN; "), Some("BEGIN".into()));
    assert_eq!(
        found("CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$BEGIN; COMMIT; END$$"),
        None
    );
    assert_eq!(
        transaction_command(
            StoreKind::Sqlite,
            "CREATE TRIGGER a AFTER INSERT ON t BEGIN SELECT 1; END; SELECT 1"
        ),
        None
    );
}
