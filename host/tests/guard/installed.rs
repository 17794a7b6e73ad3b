//! What code that the database's owner installed does to a session when a handler's statement reaches it. What is caught before
//! the commit, and what is not promised, stands in `docs/writing-handlers.md`.

use hapax::store::{Connection, Tx};

use crate::support::database::TestStore;
use crate::{assert_claimed, begin, commit, effect, refused, row};

const INSTALLED: &str = "
    CREATE TABLE effects (id text NOT NULL);
    CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
    CREATE TABLE watched (id text);
    CREATE TABLE deferred (id text);
    CREATE TABLE children (parent text REFERENCES accounts DEFERRABLE INITIALLY DEFERRED);
    CREATE TABLE ruled (id text);
    CREATE TABLE forgotten (id text);
    CREATE ROLE stranger;

    CREATE FUNCTION sets_zone() RETURNS text LANGUAGE sql AS $$ SELECT set_config('TimeZone', 'Asia/Tokyo', false) $$;
    CREATE FUNCTION sets_commit() RETURNS text LANGUAGE sql AS $$ SELECT set_config('synchronous_commit', 'off', true) $$;
    CREATE FUNCTION sets_role() RETURNS text LANGUAGE sql AS $$ SELECT set_config('role', 'stranger', true) $$;
    CREATE FUNCTION sets_login() RETURNS text LANGUAGE sql AS $$ SELECT set_config('session_authorization', 'stranger', false) $$;
    CREATE FUNCTION makes_temp() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP TABLE accounts (id text); END $$;
    CREATE FUNCTION uses_temp() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP TABLE scratch (id text); DROP TABLE scratch; END $$;
    CREATE FUNCTION commits() RETURNS void LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$;
    CREATE FUNCTION forgets() RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$;
    CREATE FUNCTION locks() RETURNS void LANGUAGE sql AS $$ SELECT pg_advisory_lock(4711) $$;
    CREATE FUNCTION catches() RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM 1 / 0; RETURN 'no'; EXCEPTION WHEN division_by_zero THEN RETURN 'caught'; END $$;

    CREATE FUNCTION sets() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('search_path', 'stranger', false); RETURN NEW; END $$;
    CREATE TRIGGER sets AFTER INSERT ON watched FOR EACH ROW EXECUTE FUNCTION sets();
    CREATE CONSTRAINT TRIGGER sets_late AFTER INSERT ON deferred DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION sets();
    CREATE FUNCTION forgets_too() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'DEALLOCATE ALL'; RETURN NEW; END $$;
    CREATE TRIGGER forgets AFTER INSERT ON forgotten FOR EACH ROW EXECUTE FUNCTION forgets_too();
    CREATE VIEW settings AS SELECT set_config('bytea_output', 'escape', false) AS value;
    CREATE VIEW jobs AS SELECT queue, payload FROM hapax.queue;
    CREATE RULE tells AS ON INSERT TO ruled DO ALSO NOTIFY told;
";

/// What the statement leaves behind, as the reason says it.
const CAUGHT: &[(&str, &str)] = &[
    ("TimeZone", "SELECT sets_zone()"),
    ("TimeZone", "SELECT 1 FROM sets_zone()"),
    ("synchronous_commit", "SELECT public.sets_commit()"),
    ("current_user", "SELECT sets_role()"),
    ("current_user", "SELECT sets_login()"),
    ("temporary tables", "SELECT makes_temp()"),
    ("search_path", "INSERT INTO watched VALUES ('a')"),
    ("search_path", "INSERT INTO deferred VALUES ('a')"),
    ("bytea_output", "SELECT * FROM settings"),
    ("prepared statements", "INSERT INTO forgotten VALUES ('a')"),
];

/// The state that the next message finds.
async fn assert_untouched(tx: &mut Tx) {
    let statement = "SELECT current_user = session_user AND current_setting('search_path') = 'public, pg_temp' \
                     AND current_setting('synchronous_commit') = 'on' AND current_setting('bytea_output') = 'hex' AND current_setting('TimeZone') = 'UTC' \
                     AND NOT EXISTS (SELECT FROM pg_class WHERE relpersistence = 't'), current_user::text";
    let found = row(tx, statement).await;
    assert_eq!(
        found,
        [
            hapax::store::Value::Boolean(true),
            hapax::store::Value::Text("tester".into())
        ]
    );
}

#[tokio::test]
async fn code_that_the_owner_installed() {
    let test = TestStore::postgres().await;
    test.run(INSTALLED).await;
    a_session_that_was_changed_commits_nothing_and_is_closed(&test).await;
    code_that_leaves_nothing_behind_is_no_fault(&test).await;
    a_commit_in_a_function_is_an_error(&test).await;
    a_deferred_constraint_is_a_known_failure(&test).await;
    what_the_owner_installed_is_the_owners_trust(&test).await;
}

async fn a_session_that_was_changed_commits_nothing_and_is_closed(test: &TestStore) {
    for (number, (changed, statement)) in CAUGHT.iter().enumerate() {
        let id = format!("caught-{number}");
        let mut tx = begin(test.connect().await, &id).await;
        effect(&mut tx, &id).await;
        tx.execute(statement, &[]).await.unwrap();
        let (error, is_kept) = refused(tx).await;
        assert_eq!(error.code, "denied.state", "{statement}: {error}");
        assert!(error.message.contains(changed), "{statement}: {error}");
        assert!(!is_kept, "{statement}");
        // Nothing of it stays: the id can be claimed.
        let mut tx = begin(test.connect().await, &id).await;
        assert_untouched(&mut tx).await;
        effect(&mut tx, &id).await;
        commit(tx).await;
    }
    assert_claimed(test, "caught", CAUGHT.len()).await;

    // The statement that is run is among those that it forgets.
    let mut tx = begin(test.connect().await, "forgets").await;
    tx.execute("SELECT forgets()", &[]).await.unwrap_err();
    assert!(tx.rollback().await.is_none());
}

async fn code_that_leaves_nothing_behind_is_no_fault(test: &TestStore) {
    let mut connection: Connection = test.connect().await;
    for (number, statement) in ["SELECT uses_temp()", "SELECT catches()"]
        .iter()
        .enumerate()
    {
        let id = format!("clean-{number}");
        let mut tx = begin(connection, &id).await;
        effect(&mut tx, &id).await;
        tx.execute(statement, &[]).await.unwrap();
        assert_untouched(&mut tx).await;
        connection = commit(tx).await;
    }
    assert_claimed(test, "clean", 2).await;
}

/// A function can't end the transaction of the SELECT that calls it.
async fn a_commit_in_a_function_is_an_error(test: &TestStore) {
    let mut tx = begin(test.connect().await, "commits").await;
    effect(&mut tx, "commits").await;
    tx.execute("SELECT commits()", &[]).await.unwrap_err();
    let (error, _) = refused(tx).await;
    assert_eq!(error.code, "aborted");
    assert_claimed(test, "commits", 0).await;
}

/// What was put off speaks up before the check, as an error that is known.
async fn a_deferred_constraint_is_a_known_failure(test: &TestStore) {
    let mut tx = begin(test.connect().await, "deferred").await;
    effect(&mut tx, "deferred").await;
    tx.execute("INSERT INTO children VALUES ('nobody')", &[])
        .await
        .unwrap();
    let (error, is_kept) = refused(tx).await;
    assert_eq!(error.code, "constraint.foreign-key");
    assert!(error.constraint.is_some(), "{error:?}");
    assert!(is_kept);
    assert_claimed(test, "deferred", 0).await;
}

/// These are not promised: the owner's code does as its owner. What it writes is still the transaction's.
async fn what_the_owner_installed_is_the_owners_trust(test: &TestStore) {
    // A view on hapax's own tables is a way to them, inside the transaction.
    let mut tx = begin(test.connect().await, "trust-0").await;
    let enqueue = "INSERT INTO jobs (queue, payload) VALUES ('q', 'x')";
    tx.execute(enqueue, &[]).await.unwrap();
    let connection = tx.rollback().await.unwrap();
    assert_eq!(test.number("SELECT count(*) FROM hapax.queue").await, 0);
    let mut tx = begin(connection, "trust-0").await;
    effect(&mut tx, "trust-0").await;
    tx.execute(enqueue, &[]).await.unwrap();
    let connection = commit(tx).await;
    assert_eq!(test.number("SELECT count(*) FROM hapax.queue").await, 1);

    // A rule's NOTIFY leaves with the commit.
    let mut tx = begin(connection, "trust-1").await;
    effect(&mut tx, "trust-1").await;
    tx.execute("INSERT INTO ruled VALUES ('a')", &[])
        .await
        .unwrap();
    let connection = commit(tx).await;

    // A session's lock outlives the rollback, until the connection ends.
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711";
    let mut tx = begin(connection, "trust-2").await;
    tx.execute("SELECT locks()", &[]).await.unwrap();
    let connection = tx.rollback().await.unwrap();
    assert_eq!(test.number(locks).await, 1);
    drop(connection);
    test.probe().await.wait_for(locks, 0).await;
    assert_claimed(test, "trust", 2).await;
}
