//! Hostile statements on PostgreSQL, each refused before the server sees it.

use hapax::store::{Connection, Tx};

use crate::support::database::TestStore;
use crate::{assert_claimed, begin, commit, effect, row};

const TABLES: &str = "
    CREATE TABLE effects (id text NOT NULL);
    CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);
    CREATE SEQUENCE numbers;
    CREATE PROCEDURE commits() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$;
";

/// The code of the refusal, and the statement.
const HOSTILE: &[(&str, &str)] = &[
    // The transaction's end, however it is written.
    ("denied.statement", "COMMIT"),
    ("denied.statement", "commit and chain"),
    ("denied.statement", "END"),
    ("denied.statement", "ROLLBACK"),
    ("denied.statement", "ABORT"),
    ("denied.statement", "BEGIN"),
    ("denied.statement", "START TRANSACTION"),
    ("denied.statement", "/* */ COMMIT"),
    ("denied.statement", "-- SELECT 1\nCOMMIT"),
    ("denied.statement", "-- SELECT 1\rCOMMIT"),
    ("denied.statement", "/* /* */ */ COMMIT"),
    ("denied.statement", "/* SELECT /* 1 */ -- */ COMMIT"),
    ("denied.statement", ";COMMIT"),
    ("denied.statement", "SELECT 1; COMMIT"),
    ("denied.statement", "SELECT 1;;/* */COMMIT"),
    ("denied.statement", "SELECT 'a''; COMMIT --'; COMMIT"),
    ("denied.statement", "SELECT E'a\\'; COMMIT --'; COMMIT"),
    ("denied.statement", "SELECT E'a'\n'\\'; COMMIT"),
    ("denied.statement", "SELECT $$a$$; COMMIT"),
    ("denied.statement", "SELECT $a$ $$ $b$ $a$; COMMIT"),
    ("denied.statement", "SELECT $1$$ $$; COMMIT"),
    ("denied.statement", "SELECT \"a\"\"; COMMIT --\"; COMMIT"),
    ("denied.statement", "U&\"\\0063ommit\""),
    (
        "denied.statement",
        "WITH a AS (SELECT 1) COMMIT; SELECT 1 FROM a",
    ),
    ("denied.statement", "SAVEPOINT a"),
    ("denied.statement", "RELEASE a"),
    ("denied.statement", "ROLLBACK TO a"),
    ("denied.statement", "PREPARE TRANSACTION 'x'"),
    ("denied.statement", "COMMIT PREPARED 'x'"),
    // Code and commands.
    ("denied.statement", "DO $$ BEGIN COMMIT; END $$"),
    ("denied.statement", "CALL commits()"),
    ("denied.statement", "EXPLAIN ANALYZE DELETE FROM accounts"),
    ("denied.statement", "EXPLAIN (ANALYZE) DELETE FROM accounts"),
    ("denied.statement", "PREPARE a AS SELECT 1"),
    (
        "denied.statement",
        "EXECUTE hapaxcheck('1', 'a', 'b', '{}')",
    ),
    ("denied.statement", "DEALLOCATE ALL"),
    ("denied.statement", "DISCARD ALL"),
    ("denied.statement", "COPY accounts TO PROGRAM 'sh'"),
    ("denied.statement", "COPY accounts FROM '/etc/passwd'"),
    ("denied.statement", "LOAD 'x'"),
    (
        "denied.statement",
        "DECLARE a CURSOR WITH HOLD FOR SELECT 1",
    ),
    ("denied.statement", "LOCK TABLE accounts"),
    ("denied.statement", "LISTEN a"),
    ("denied.statement", "NOTIFY a"),
    ("denied.statement", "VACUUM"),
    ("denied.statement", "CHECKPOINT"),
    ("denied.statement", "ALTER SYSTEM SET fsync = off"),
    ("denied.statement", "GRANT ALL ON accounts TO PUBLIC"),
    (
        "denied.statement",
        "SECURITY LABEL ON TABLE accounts IS 'x'",
    ),
    // Settings and roles.
    ("denied.statement", "SET search_path = pg_temp"),
    ("denied.statement", "SET LOCAL synchronous_commit = off"),
    ("denied.statement", "RESET ALL"),
    ("denied.statement", "SET ROLE postgres"),
    ("denied.statement", "SET SESSION AUTHORIZATION postgres"),
    ("denied.statement", "SET CONSTRAINTS ALL DEFERRED"),
    (
        "denied.function",
        "SELECT set_config('search_path', 'x', false)",
    ),
    (
        "denied.function",
        "SELECT \"set_config\"('search_path', 'x', false)",
    ),
    (
        "denied.function",
        "SELECT pg_catalog . set_config /* */ ('search_path', 'x', false)",
    ),
    (
        "denied.function",
        "SELECT \"pg_catalog\".\"set_config\"('role', 'x', false)",
    ),
    (
        "denied.function",
        "INSERT INTO effects SELECT set_config('a.b', 'x', false)",
    ),
    (
        "denied.function",
        "WITH a AS (SELECT set_config('a.b', 'x', true)) SELECT * FROM a",
    ),
    (
        "denied.function",
        "SELECT 1 FROM set_config('search_path', 'x', false)",
    ),
    (
        "denied.function",
        "SELECT 1 ORDER BY set_config('search_path', 'x', false)",
    ),
    (
        "denied.function",
        "SELECT CASE WHEN true THEN set_config('a.b', 'x', false) END",
    ),
    (
        "denied.statement",
        "SELECT U&\"set\\005fconfig\"('search_path', 'x', false)",
    ),
    (
        "denied.catalog",
        "UPDATE pg_settings SET setting = 'off' WHERE name = 'synchronous_commit'",
    ),
    (
        "denied.catalog",
        "UPDATE \"pg_catalog\" . \"pg_settings\" SET setting = 'off'",
    ),
    (
        "denied.catalog",
        "WITH a AS (UPDATE ONLY (pg_settings) SET setting = '1' RETURNING 1) SELECT 1",
    ),
    ("denied.catalog", "DELETE FROM pg_proc"),
    (
        "denied.catalog",
        "INSERT INTO pg_db_role_setting VALUES (0, 0, '{a=b}')",
    ),
    ("denied.catalog", "SELECT 1 FROM pg_class FOR UPDATE"),
    ("denied.function", "SELECT setseed(0.5)"),
    // SQL as text.
    (
        "denied.function",
        "SELECT query_to_xml('select set_con'||'fig(''search_path'', ''x'', false)', true, true, '')",
    ),
    (
        "denied.function",
        "SELECT table_to_xml('\"' || 'hapax' || '\".queue', true, true, '')",
    ),
    ("denied.function", "SELECT database_to_xml(true, true, '')"),
    (
        "denied.function",
        "SELECT cursor_to_xml('a', 1, true, true, '')",
    ),
    (
        "denied.function",
        "SELECT * FROM ts_stat('SELECT to_tsvector(set_con'||'fig(''a.b'', ''x'', false))')",
    ),
    (
        "denied.function",
        "SELECT ts_rewrite('a'::tsquery, 'SELECT ''a''::tsquery, ''b''::tsquery')",
    ),
    // Tables that hide others.
    (
        "denied.statement",
        "SELECT * INTO TEMP accounts FROM accounts",
    ),
    ("denied.statement", "SELECT 1 AS insert INTO TEMP accounts"),
    ("denied.statement", "SELECT (1) merge INTO accounts_2"),
    ("denied.statement", "CREATE TEMP TABLE accounts (id text)"),
    ("denied.statement", "CREATE TABLE t (a int)"),
    ("denied.statement", "DROP TABLE accounts"),
    ("denied.statement", "TRUNCATE accounts"),
    (
        "denied.catalog",
        "INSERT INTO pg_temp.accounts VALUES ('a', 1)",
    ),
    // Files, other databases, other sessions.
    ("denied.function", "SELECT pg_read_file('PG_VERSION')"),
    (
        "denied.function",
        "SELECT ('PG_VERSION'::text).pg_read_file",
    ),
    (
        "denied.function",
        "SELECT (a.name).\"pg_read_file\" FROM (SELECT 'PG_VERSION'::text AS name) AS a",
    ),
    ("denied.function", "SELECT pg_ls_dir('.')"),
    ("denied.function", "SELECT lo_import('/etc/passwd')"),
    ("denied.function", "SELECT lo_creat(-1)"),
    (
        "denied.function",
        "SELECT dblink('dbname=postgres', 'SELECT 1')",
    ),
    (
        "denied.function",
        "SELECT * FROM public.dblink_exec('dbname=postgres', 'DROP TABLE accounts')",
    ),
    (
        "denied.function",
        "SELECT pg_terminate_backend(pg_backend_pid())",
    ),
    ("denied.function", "SELECT pg_cancel_backend(1)"),
    ("denied.function", "SELECT pg_reload_conf()"),
    ("denied.function", "SELECT pg_switch_wal()"),
    ("denied.function", "SELECT pg_export_snapshot()"),
    ("denied.function", "SELECT pg_create_restore_point('a')"),
    ("denied.function", "SELECT pg_stat_reset()"),
    (
        "denied.function",
        "SELECT pg_logical_emit_message(false, 'a', 'b')",
    ),
    ("denied.function", "SELECT pg_notify('a', 'b')"),
    ("denied.function", "SELECT txid_status(1)"),
    // Locks and sequences.
    ("denied.function", "SELECT pg_advisory_lock(1)"),
    ("denied.function", "SELECT (1::bigint).pg_advisory_lock"),
    ("denied.function", "SELECT pg_try_advisory_lock_shared(1)"),
    ("denied.function", "SELECT pg_advisory_unlock_all()"),
    ("denied.function", "SELECT pg_advisory_xact_lock(1, 2)"),
    ("denied.function", "SELECT setval('numbers', 1000000)"),
    // hapax's own tables.
    (
        "denied.statement",
        "SELECT 1 FROM hapax.processed_messages FOR UPDATE",
    ),
    (
        "denied.statement",
        "DELETE FROM \"hapax\" . processed_messages",
    ),
    ("denied.statement", "UPDATE/**/Hapax/**/.queue SET seen = 0"),
    (
        "denied.statement",
        "WITH a AS (DELETE FROM ONLY (hapax.processed_messages) RETURNING 1) SELECT 1",
    ),
    (
        "denied.statement",
        "MERGE INTO hapax.queue USING accounts ON true WHEN MATCHED THEN DELETE",
    ),
    ("denied.statement", "SELECT 1 FROM U&\"\\0068apax\".queue"),
    (
        "denied.statement",
        "SELECT 1 FROM U&\"!0068apax\" UESCAPE '!'.queue",
    ),
];

/// The whole state of a session and its transaction, as far as a handler can ask.
const STATE: &str = "
    SELECT pg_current_xact_id_if_assigned()::text, current_user::text, session_user::text, pg_my_temp_schema()::text,
        (SELECT string_agg(name || '=' || setting, ';' ORDER BY name) FROM pg_settings),
        (SELECT string_agg(l.locktype || coalesce(l.relation::text, '') || l.mode || coalesce(l.objid::text, ''), ';'
             ORDER BY l.locktype, l.relation, l.mode, l.objid)
         FROM pg_locks AS l WHERE l.pid = pg_backend_pid()),
        (SELECT string_agg(name, ';' ORDER BY name) FROM pg_cursors),
        (SELECT count(*) FROM pg_listening_channels()),
        (SELECT count(*) FROM pg_class WHERE relpersistence = 't'),
        (SELECT last_value FROM numbers)";

async fn state(tx: &mut Tx) -> String {
    format!("{:?}", row(tx, STATE).await)
}

#[tokio::test]
async fn statements_on_postgres() {
    let test = TestStore::postgres().await;
    test.run(TABLES).await;
    hostile_statements_are_refused_and_touch_nothing(&test).await;
    ordinary_statements_pass(&test).await;
    nothing_but_a_call_by_name_reaches_a_volatile_function(&test).await;
    tables_are_made_where_that_is_allowed(&test).await;
}

async fn hostile_statements_are_refused_and_touch_nothing(test: &TestStore) {
    assert!(HOSTILE.len() >= 80, "{}", HOSTILE.len());
    let mut connection: Connection = test.connect().await;
    for (number, (code, statement)) in HOSTILE.iter().enumerate() {
        let id = format!("hostile-{number}");
        let mut tx = begin(connection, &id).await;
        effect(&mut tx, &id).await;
        // Asked once before, so that the locks of asking are there.
        state(&mut tx).await;
        let before = state(&mut tx).await;
        for _ in 0..2 {
            let error = tx.execute(statement, &[]).await.unwrap_err();
            assert_eq!(error.code, *code, "{statement}: {error}");
            assert!(error.hint.is_some(), "{statement}");
            let error = tx.query(statement, &[], 10).await.unwrap_err();
            assert_eq!(error.code, *code, "{statement}: {error}");
            let error = tx.execute_many(statement, &[vec![]]).await.unwrap_err();
            assert_eq!(error.code, *code, "{statement}: {error}");
        }
        assert_eq!(state(&mut tx).await, before, "{statement}");
        // Nothing has come near the database: the transaction goes on, and its connection serves the next message.
        connection = commit(tx).await;
    }
    assert_claimed(test, "hostile", HOSTILE.len()).await;
}

async fn ordinary_statements_pass(test: &TestStore) {
    test.run("INSERT INTO accounts VALUES ('a', 1), ('b', 2)")
        .await;
    let mut tx = begin(test.connect().await, "ordinary").await;
    for statement in [
        "SELECT nextval('numbers'), currval('numbers'), lastval()",
        "SELECT random(), gen_random_uuid(), clock_timestamp(), now(), timeofday()",
        "SELECT pg_advisory_xact_lock(7), pg_catalog.pg_try_advisory_xact_lock(hashtext('a')::bigint)",
        "SELECT * FROM accounts TABLESAMPLE system (100)",
        "SELECT * FROM accounts TABLESAMPLE bernoulli (50) REPEATABLE (1)",
        "SELECT pg_sleep(0)",
        "SELECT * FROM accounts ORDER BY id FOR UPDATE SKIP LOCKED",
        "SELECT * FROM accounts FOR NO KEY UPDATE OF accounts",
        "INSERT INTO accounts (id, balance) VALUES ('a', 1) ON CONFLICT (id) DO UPDATE SET balance = excluded.balance",
        "WITH a AS (INSERT INTO accounts VALUES ('c', 3) RETURNING *) SELECT * FROM a",
        "MERGE INTO accounts AS a USING (VALUES ('d', 4)) AS v (id, n) ON a.id = v.id \
         WHEN MATCHED THEN UPDATE SET balance = v.n WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.n)",
        "UPDATE ONLY accounts AS a SET balance = b.n FROM (SELECT 5 AS n) AS b WHERE a.id = 'a'",
        "DELETE FROM accounts AS a USING accounts AS b WHERE a.id = b.id AND a.id = 'd'",
        "SELECT 'accounts'::regclass, relname FROM pg_class WHERE oid = 'accounts'::regclass",
        "SELECT string_agg(id, ',' ORDER BY id) FILTER (WHERE balance > 0), count(*) OVER () FROM accounts GROUP BY id",
        "SELECT jsonb_build_object('a', 1)->>'a', (ROW(1, 2)).f1, (ARRAY[1,2])[1], ('a' || 'b')::varchar(10)",
        "SELECT to_tsvector('english', 'a b') @@ ts_rewrite('a'::tsquery, 'a'::tsquery, 'b'::tsquery)",
        "SELECT xmlelement(name a, 'b'), extract(year FROM now()), substring('abc' FROM 1 FOR 2), trim(both 'x' from 'xax')",
        "(SELECT 1) UNION ALL (VALUES (2)) ORDER BY 1",
        "SELECT current_setting('search_path'), version(), pg_typeof(1), to_regclass('accounts')",
    ] {
        if let Err(error) = tx.execute(statement, &[]).await {
            panic!("{statement}: {error}");
        }
    }
    commit(tx).await;
}

/// The guard takes operators, casts and types' input functions of the catalog for harmless.
async fn nothing_but_a_call_by_name_reaches_a_volatile_function(test: &TestStore) {
    for sql in [
        "SELECT count(*) FROM pg_operator o JOIN pg_proc p ON p.oid = o.oprcode WHERE p.provolatile = 'v' AND o.oid < 16384",
        "SELECT count(*) FROM pg_cast c JOIN pg_proc p ON p.oid = c.castfunc WHERE p.provolatile = 'v' AND c.oid < 16384",
        "SELECT count(*) FROM pg_type t JOIN pg_proc p ON p.oid IN (typinput, typoutput, typreceive, typsend, typmodin, typmodout) \
         WHERE p.provolatile = 'v' AND t.oid < 16384",
        "SELECT count(*) FROM pg_aggregate a JOIN pg_proc p ON p.oid IN (aggtransfn, aggfinalfn, aggcombinefn) \
         WHERE p.provolatile = 'v' AND a.aggfnoid < 16384",
    ] {
        assert_eq!(test.number(sql).await, 0, "{sql}");
    }
}

/// With `allow_ddl` a handler makes tables inside its transaction, and nothing else.
async fn tables_are_made_where_that_is_allowed(test: &TestStore) {
    let rights = hapax::store::Rights {
        allow_ddl: true,
        ..Default::default()
    };
    let mut connection = test.connect().await;
    connection.set_rights(rights.clone());
    let mut tx = begin(connection, "ddl-0").await;
    effect(&mut tx, "ddl-0").await;
    for statement in [
        "CREATE TABLE monthly (id int PRIMARY KEY, note text DEFAULT upper('x'))",
        "CREATE INDEX ON monthly (note)",
        "ALTER TABLE monthly ADD COLUMN at timestamptz DEFAULT now()",
        "INSERT INTO monthly (id) VALUES (1)",
        "TRUNCATE monthly",
        "CREATE VIEW months AS SELECT id FROM monthly",
        "DROP VIEW months",
    ] {
        if let Err(error) = tx.execute(statement, &[]).await {
            panic!("{statement}: {error}");
        }
    }
    for (code, statement) in [
        ("denied.statement", "DROP SCHEMA hapax CASCADE"),
        ("denied.statement", "CREATE TEMP TABLE accounts (id text)"),
        (
            "denied.statement",
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        ),
        ("denied.catalog", "CREATE TABLE pg_temp.accounts (id text)"),
        (
            "denied.function",
            "CREATE TABLE t AS SELECT set_config('a.b', 'x', false)",
        ),
        ("denied.statement", "DROP TABLE accounts; COMMIT"),
    ] {
        let error = tx.execute(statement, &[]).await.unwrap_err();
        assert_eq!(error.code, code, "{statement}: {error}");
    }
    let connection = commit(tx).await;
    assert_eq!(test.number("SELECT count(*) FROM monthly").await, 0);
    // What was prepared before a statement of its own goes on behind it.
    let columns = async |tx: &mut Tx| {
        let found = tx.query("SELECT * FROM monthly", &[], 10).await;
        found.map(|found| found.columns.len())
    };
    let mut tx = begin(connection, "ddl-1").await;
    assert_eq!(columns(&mut tx).await.unwrap(), 3);
    tx.execute("ALTER TABLE monthly DROP COLUMN at", &[])
        .await
        .unwrap();
    assert_eq!(columns(&mut tx).await.unwrap(), 2);
    // So does what is prepared behind it, once it is rolled back: to a savepoint, or with all.
    let savepoint = tx.begin_savepoint().await.unwrap();
    tx.execute("ALTER TABLE monthly DROP COLUMN note", &[])
        .await
        .unwrap();
    assert_eq!(columns(&mut tx).await.unwrap(), 1);
    tx.roll_back_savepoint(savepoint).await.unwrap();
    assert_eq!(columns(&mut tx).await.unwrap(), 2);
    let connection = tx.rollback().await.unwrap();
    let mut tx = begin(connection, "ddl-1").await;
    assert_eq!(columns(&mut tx).await.unwrap(), 3);
    effect(&mut tx, "ddl-1").await;
    let mut connection = commit(tx).await;
    // Where the host does not see what has changed the table, it may be somebody else: once. What happens again when all was
    // prepared anew is the message's failure: else it would run for ever.
    test.run(
        "CREATE FUNCTION alter_monthly() RETURNS void LANGUAGE sql AS 'ALTER TABLE monthly DROP COLUMN at; SELECT'",
    )
    .await;
    for is_own in [false, true] {
        let mut tx = begin(connection, "ddl-2").await;
        assert_eq!(columns(&mut tx).await.unwrap(), 3);
        tx.query("SELECT alter_monthly()", &[], 10).await.unwrap();
        let error = columns(&mut tx).await.unwrap_err();
        assert_eq!(error.code, "stale");
        assert!(tx.is_aborted());
        assert_eq!(tx.fault().is_none(), is_own);
        connection = tx.rollback().await.unwrap();
    }
    drop(connection);
    // Rolled back with its message.
    let mut connection = test.connect().await;
    connection.set_rights(rights);
    let mut tx = begin(connection, "ddl-2").await;
    tx.execute("DROP TABLE monthly", &[]).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(test.number("SELECT count(*) FROM monthly").await, 0);
    assert_claimed(test, "ddl", 2).await;
}
