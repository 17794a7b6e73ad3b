//! Statements that pass and statements that do not, on each database.

use super::*;

fn code(kind: StoreKind, statement: &str) -> String {
    match check(kind, statement, Rules::default()) {
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
            check(kind, statement, Rules::default()).unwrap(),
            Passed {
                reads,
                params,
                is_ddl: false
            },
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
    let error = check(StoreKind::Postgres, "  /* x */ Commit", Rules::default()).unwrap_err();
    assert_eq!(error.message, "the statement begins with `Commit`");
    assert_eq!(error.position, Some(11));
    assert_eq!(
        error.hint.unwrap(),
        "the host begins and ends the transaction: return ok or a failure; \
         a handler may send SELECT, INSERT, UPDATE, DELETE, MERGE, WITH, VALUES"
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

fn postgres(statement: &str) -> String {
    let functions = Functions::new(
        [
            "set_config",
            "pg_read_file",
            "setval",
            "pg_notify",
            "random",
        ]
        .map(str::to_owned),
    );
    let rules = Rules {
        functions: Some(&functions),
        ..Rules::default()
    };
    match check(StoreKind::Postgres, statement, rules) {
        Ok(_) => "ok".into(),
        Err(error) => error.code,
    }
}

#[test]
fn postgres_calls() {
    for statement in [
        "SELECT set_config('a', 'b', false)",
        "SELECT pg_catalog.set_config('a', 'b', false)",
        "SELECT \"set_config\"('a', 'b', false)",
        "SELECT Set_Config /* x */ ('a', 'b', false)",
        "SELECT ('x'::text).pg_read_file",
        "SELECT t.x.pg_read_file FROM t",
        "SELECT ('x'::text) . \"pg_read_file\"",
        "SELECT a FROM setval('s', 1) AS a",
        "SELECT table_to_xml('t', true, true, '')",
        "SELECT ts_rewrite('a'::tsquery, 'SELECT 1')",
        "SELECT ('a'::text).ts_rewrite",
        "SELECT pg_advisory_xact_lock(1, 2)",
        "SELECT pg_advisory_xact_lock()",
        "SELECT pg_catalog.pg_advisory_xact_lock(1, f(2, 3))",
        "SELECT (1::bigint).pg_advisory_xact_lock",
        "INSERT INTO t SELECT dblink_exec('..')",
    ] {
        assert_eq!(postgres(statement), "denied.function", "{statement}");
    }
    for statement in [
        "SELECT random(), now()",
        "SELECT set_config FROM t",
        "SELECT pg_advisory_xact_lock(f(1, 2)), a[1, 2]",
        "SELECT pg_catalog.pg_advisory_xact_lock((1))",
        "SELECT ts_rewrite(a, b, c)",
        "SELECT 'set_config(1)', $$pg_read_file(1)$$",
    ] {
        assert_eq!(postgres(statement), "ok", "{statement}");
    }
}

#[test]
fn postgres_writes_to_the_catalog() {
    for statement in [
        "UPDATE pg_settings SET setting = 1",
        "UPDATE ONLY pg_catalog.pg_settings SET setting = 1",
        "UPDATE ONLY (\"pg_settings\") SET setting = 1",
        "WITH a AS (DELETE FROM pg_class RETURNING 1) SELECT 1",
        "INSERT INTO pg_catalog . pg_proc SELECT 1",
        "MERGE INTO pg_class USING a ON true WHEN MATCHED THEN DELETE",
        "INSERT INTO information_schema.tables VALUES (1)",
        "SELECT 1 FROM pg_class FOR UPDATE",
        "SELECT 1 FROM pg_catalog.pg_class FOR NO KEY UPDATE",
        "SELECT 1 FROM pg_class AS c FOR SHARE OF c",
        "SELECT * FROM pg_temp_3.accounts",
        "SELECT pg_temp.f()",
    ] {
        assert_eq!(postgres(statement), "denied.catalog", "{statement}");
    }
    for statement in [
        "SELECT relname FROM pg_class",
        "INSERT INTO t SELECT relname FROM pg_catalog.pg_class",
        "INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 1",
        "SELECT pg_typeof(a), pg_catalog.now() FROM t FOR UPDATE",
        "UPDATE t SET a = (SELECT count(*) FROM pg_class)",
    ] {
        assert_eq!(postgres(statement), "ok", "{statement}");
    }
}

#[test]
fn postgres_into() {
    for statement in [
        // `insert` and `merge` are names too.
        "SELECT 1 AS insert INTO t",
        "SELECT (1) insert INTO t",
        "SELECT (1) merge INTO TEMP t",
        "SELECT a.insert INTO t FROM a",
        "WITH insert AS (SELECT 1) SELECT 1 insert INTO t",
        "INSERT INTO t SELECT 1 INTO u",
        "SELECT * FROM (SELECT 1 insert INTO t) AS a",
        "VALUES (1) insert INTO t",
        "TABLE t",
    ] {
        assert_eq!(postgres(statement), "denied.statement", "{statement}");
    }
    for statement in [
        "INSERT INTO t VALUES (1)",
        "WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a",
        "WITH a AS (WITH b AS (SELECT 1) INSERT INTO t SELECT 1 RETURNING 1) SELECT * FROM a",
        "WITH insert AS (SELECT 1) INSERT INTO t SELECT 1",
        "WITH insert (a) AS (SELECT 1) INSERT INTO t SELECT 1",
        "MERGE INTO t USING s ON true WHEN NOT MATCHED THEN INSERT VALUES (1)",
    ] {
        assert_eq!(postgres(statement), "ok", "{statement}");
    }
}

#[test]
fn tables_are_made_only_where_that_is_allowed() {
    let allowed = |kind, statement: &str| {
        let rules = Rules {
            allow_ddl: true,
            ..Rules::default()
        };
        match check(kind, statement, rules) {
            Ok(passed) => passed.is_ddl.to_string(),
            Err(error) => error.code,
        }
    };
    for kind in [StoreKind::Postgres, StoreKind::Sqlite] {
        for statement in [
            "CREATE TABLE t (a int DEFAULT 1)",
            "CREATE UNIQUE INDEX i ON t (a)",
            "ALTER TABLE t ADD COLUMN b int",
            "DROP VIEW v",
        ] {
            assert_eq!(code(kind, statement), "denied.statement", "{statement}");
            assert_eq!(allowed(kind, statement), "true", "{statement}");
        }
        for statement in [
            "CREATE",
            "CREATE TEMP TABLE t (a int)",
            "CREATE TEMPORARY VIEW v AS SELECT 1",
            "CREATE TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END",
            "CREATE VIRTUAL TABLE t USING fts5(a)",
            "CREATE TABLE t (a int); COMMIT",
            "DROP DATABASE x",
            "COMMIT",
            "VACUUM",
        ] {
            assert_eq!(
                allowed(kind, statement),
                "denied.statement",
                "{kind}: {statement}"
            );
        }
    }
    let kind = StoreKind::Postgres;
    for (statement, expected) in [
        ("TRUNCATE t", "true"),
        ("DROP SCHEMA hapax CASCADE", "denied.statement"),
        ("DROP TABLE hapax.queue", "denied.statement"),
        (
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "denied.statement",
        ),
        ("CREATE UNLOGGED TABLE t (a int)", "denied.statement"),
        ("CREATE TABLE t AS EXECUTE hapax_1", "denied.statement"),
        ("CREATE TABLE pg_temp.t (a int)", "denied.catalog"),
        (
            "ALTER TABLE pg_catalog.pg_class ADD a int",
            "denied.catalog",
        ),
        (
            "CREATE TABLE t (a text DEFAULT pg_catalog.pg_typeof(1))",
            "true",
        ),
        ("TRUNCATE t, pg_class", "denied.catalog"),
    ] {
        assert_eq!(allowed(kind, statement), expected, "{statement}");
    }
    assert_eq!(
        allowed(StoreKind::Sqlite, "DROP TABLE hapax_queue"),
        "denied.statement"
    );
}

#[test]
fn sqlite_names_that_reach_past_the_transaction() {
    for statement in [
        "SELECT load_extension('x')",
        "SELECT \"load_extension\"('x')",
        "SELECT [load_extension] ('x')",
        "SELECT * FROM pragma_optimize(1)",
        "SELECT * FROM Pragma_User_Version",
        "SELECT * FROM 'pragma_optimize'",
        "SELECT fts3_tokenizer('simple')",
    ] {
        assert_eq!(
            code(StoreKind::Sqlite, statement),
            "denied.function",
            "{statement}"
        );
    }
    assert_eq!(code(StoreKind::Sqlite, "SELECT 'load_extension'"), "ok");
}
