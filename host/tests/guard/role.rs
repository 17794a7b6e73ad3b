//! `role`: a handler's statements run as a role of the database, and nothing of it is left when the host writes.

use hapax::message::FailureClass;
use hapax::message::MessageId;
use hapax::store::{Connection, OutboxRow, Rights, StoreError, StoreKind, Tx, Value};
use serde_json::json;

use crate::support::database::TestStore;
use crate::support::host::run;
use crate::support::scene::{Scene, SourceSort, TestMessage, script};
use crate::{assert_claimed, begin, commit, effect, refused, row};

/// `\"Credit's\"`: a name that has to be quoted.
const ROLE: &str = "Credit's";

const TABLES: &str = "
    CREATE ROLE \"Credit's\" NOLOGIN;
    CREATE TABLE effects (id text NOT NULL);
    CREATE TABLE secrets (id text);
    CREATE TABLE watched (id text);
    CREATE TABLE seen (role text);
    CREATE FUNCTION sees() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES (current_user); RETURN NEW; END $$;
    CREATE CONSTRAINT TRIGGER sees AFTER INSERT ON watched DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION sees();
    CREATE TABLE trapped (id text);
    CREATE FUNCTION reads() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM 1 FROM secrets; RETURN NEW; END $$;
    CREATE CONSTRAINT TRIGGER reads AFTER INSERT ON trapped DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION reads();
    GRANT SELECT, INSERT ON effects, watched, seen, trapped TO \"Credit's\";
";

async fn connect(test: &TestStore) -> Connection {
    let mut connection = test.connect().await;
    connection.check_role(ROLE).await.unwrap();
    connection.set_rights(Rights {
        role: Some(ROLE.into()),
        allow_ddl: false,
    });
    connection
}

async fn user(tx: &mut Tx) -> Vec<Value> {
    row(tx, "SELECT current_user::text, session_user::text").await
}

fn users(current: &str) -> [Value; 2] {
    [Value::Text(current.into()), Value::Text("tester".into())]
}

fn outbox_row(id: &str) -> OutboxRow {
    OutboxRow {
        id: id.into(),
        consumer: "c".into(),
        message_id: MessageId::new("m").unwrap(),
        ordinal: 0,
        target: None,
        subject: "s".into(),
        key: None,
        headers: Vec::new(),
        content_type: None,
        payload: Vec::new().into(),
        not_before: None,
    }
}

#[tokio::test]
async fn in_the_store() {
    let test = TestStore::postgres().await;
    test.run(TABLES).await;
    statements_run_as_the_role_and_the_host_as_the_login(&test).await;
    a_savepoint_keeps_the_role(&test).await;
    trap_21_deferred_constraints_run_as_the_role(&test).await;
    a_role_that_cannot_be_taken_is_named(&test).await;
}

async fn statements_run_as_the_role_and_the_host_as_the_login(test: &TestStore) {
    let mut tx = begin(connect(test).await, "as-0").await;
    assert_eq!(user(&mut tx).await, users(ROLE));
    effect(&mut tx, "as-0").await;
    // The host's own row needs a right that the role does not have.
    tx.end_role().await.unwrap();
    tx.write_outbox(&[outbox_row("o-1")]).await.unwrap();
    let connection = commit(tx).await;
    assert_eq!(test.number("SELECT count(*) FROM hapax.outbox").await, 1);

    // The next transaction of the connection claims as the login, and is the role's again.
    let mut tx = begin(connection, "as-1").await;
    effect(&mut tx, "as-1").await;
    assert_eq!(user(&mut tx).await, users(ROLE));
    let connection = commit(tx).await;

    // Also after a rollback, and where many rows come first.
    let mut tx = begin(connection, "as-2").await;
    let error = tx
        .execute_many("INSERT INTO secrets VALUES ($1)", &[vec![Value::Null]])
        .await
        .unwrap_err();
    assert_eq!(error.code, "denied.privilege", "{error}");
    let connection = tx.rollback().await.unwrap();
    let mut tx = begin(connection, "as-2").await;
    let error = tx.query("SELECT * FROM secrets", &[], 1).await.unwrap_err();
    assert_eq!(error.code, "denied.privilege", "{error}");
    tx.rollback().await.unwrap();
    assert_claimed(test, "as", 2).await;
}

/// Set behind a savepoint, the role would end with it.
async fn a_savepoint_keeps_the_role(test: &TestStore) {
    let mut tx = begin(connect(test).await, "savepoint").await;
    let savepoint = tx.begin_savepoint().await.unwrap();
    effect(&mut tx, "other").await;
    tx.roll_back_savepoint(savepoint).await.unwrap();
    assert_eq!(user(&mut tx).await, users(ROLE));
    let savepoint = tx.begin_savepoint().await.unwrap();
    tx.query("SELECT * FROM secrets", &[], 1).await.unwrap_err();
    tx.roll_back_savepoint(savepoint).await.unwrap();
    assert_eq!(user(&mut tx).await, users(ROLE));
    effect(&mut tx, "savepoint").await;
    commit(tx).await;
    assert_claimed(test, "savepoint", 1).await;
}

/// Trap 21: at COMMIT, after the role was reset, they would run as the login.
async fn trap_21_deferred_constraints_run_as_the_role(test: &TestStore) {
    let mut tx = begin(connect(test).await, "late-0").await;
    effect(&mut tx, "late-0").await;
    tx.execute("INSERT INTO watched VALUES ('a')", &[])
        .await
        .unwrap();
    let connection = commit(tx).await;
    // The same with rows of the host's own in between.
    let mut tx = begin(connection, "late-1").await;
    effect(&mut tx, "late-1").await;
    tx.execute("INSERT INTO watched VALUES ('b')", &[])
        .await
        .unwrap();
    tx.end_role().await.unwrap();
    tx.write_outbox(&[outbox_row("o-2")]).await.unwrap();
    let connection = commit(tx).await;
    let roles = "SELECT string_agg(role, ',') FROM seen";
    assert_eq!(test.text(roles).await.as_deref(), Some("Credit's,Credit's"));

    // What the role may not do, its deferred triggers may not do either.
    let mut tx = begin(connection, "late-2").await;
    effect(&mut tx, "late-2").await;
    tx.execute("INSERT INTO trapped VALUES ('a')", &[])
        .await
        .unwrap();
    let (error, _) = refused(tx).await;
    assert_eq!(error.code, "denied.privilege", "{error}");
    assert_claimed(test, "late", 2).await;
}

async fn a_role_that_cannot_be_taken_is_named(test: &TestStore) {
    test.run("CREATE ROLE plain LOGIN; GRANT USAGE ON SCHEMA hapax TO plain")
        .await;
    let url = test.url.replace("tester:secret@", "plain@");
    let store = hapax::store::Store::open(&url).unwrap();
    let mut connection = store
        .connect(&crate::support::database::options())
        .await
        .unwrap();
    let text = |error: StoreError| match error {
        StoreError::Unusable(text) => text,
        other => panic!("{other:?}"),
    };
    let missing = text(connection.check_role("nobody").await.unwrap_err());
    assert!(
        missing.contains("there is no role `\"nobody\"`") && missing.contains("hint: "),
        "{missing}"
    );
    let denied = text(connection.check_role(ROLE).await.unwrap_err());
    assert!(
        denied.contains("may not act as") && denied.contains("GRANT \"Credit's\" TO \"plain\""),
        "{denied}"
    );
    // The connection is as before.
    connection.check_role("plain").await.unwrap();

    // A role that is gone later fails the messages.
    let mut connection = connect(test).await;
    connection.set_rights(Rights {
        role: Some("gone".into()),
        allow_ddl: false,
    });
    let mut tx = begin(connection, "gone").await;
    let error = tx.execute("SELECT 1", &[]).await.unwrap_err();
    assert!(error.message.contains("gone"), "{error}");
    assert!(tx.is_aborted());
}

/// Through the daemon: grants in the migration, an outbox, a failing neighbour, a conflict between two messages of a batch.
#[tokio::test]
async fn a_handler_with_a_role_works_through_the_daemon() {
    let tables = "
        CREATE ROLE subject NOLOGIN;
        CREATE TABLE effects (id text NOT NULL, role text NOT NULL);
        CREATE TABLE secrets (id text);
        GRANT SELECT, INSERT ON effects TO subject;
    ";
    let handler = "role = \"subject\"\nlanes = 1\nretry = { attempts = 2, backoff = \"10ms\" }";
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &script(),
        tables,
        handler,
    )
    .await;
    let effect = json!({
        "execute": "INSERT INTO effects (id, role) VALUES ($1, current_user)",
        "params": [{ "message": "id" }],
        "expect_count": 1,
    });
    let steps = |steps: serde_json::Value| json!({ "steps": steps });
    scene
        .publish(&[TestMessage::new("a", &steps(json!([effect])))])
        .await;
    scene.run_until_idle();
    // The conflict stands between two calls of one batch: the host writes its letter as itself.
    scene
        .publish(&[
            TestMessage::new(
                "b",
                &steps(json!([effect, { "publish": { "subject": "s" } }])),
            ),
            TestMessage::new("a", &steps(json!([effect, effect]))),
            TestMessage::new("d", &steps(json!([effect]))),
        ])
        .await;
    scene.run_until_idle();
    scene
        .publish(&[TestMessage::new(
            "c",
            &steps(json!([{ "execute": "INSERT INTO secrets VALUES ('x')" }])),
        )])
        .await;
    scene.run_until_idle();
    let done = "SELECT string_agg(id || '=' || role, ',' ORDER BY id) FROM effects";
    assert_eq!(
        scene.store.text(done).await.as_deref(),
        Some("a=subject,b=subject,d=subject")
    );
    assert_eq!(scene.count("outbox", "true").await, 1);
    let mut connection = scene.store.connect().await;
    let letters = connection.dead_letters("subject", 10).await.unwrap();
    let mut classes: Vec<FailureClass> = letters.iter().map(|letter| letter.letter.class).collect();
    classes.sort_by_key(|class| class.as_str());
    assert_eq!(classes.len(), 2, "{letters:#?}");
    assert!(classes.contains(&FailureClass::Conflict), "{letters:#?}");
    let denied = letters
        .iter()
        .find(|letter| letter.letter.class != FailureClass::Conflict)
        .unwrap();
    assert!(denied.letter.reason.contains("secrets"), "{denied:#?}");
}

/// What a commit refuses is the message's failure, also where rows of the host's own come before the commit.
#[tokio::test]
async fn a_changed_session_fails_the_message_through_the_daemon() {
    let tables = "
        CREATE ROLE subject NOLOGIN;
        CREATE TABLE effects (id text NOT NULL);
        CREATE FUNCTION sets() RETURNS text LANGUAGE sql AS $$ SELECT set_config('TimeZone', 'Asia/Tokyo', false) $$;
        GRANT SELECT, INSERT ON effects TO subject;
    ";
    let handler = "role = \"subject\"\nlanes = 1\nretry = { attempts = 2, backoff = \"10ms\" }";
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &script(),
        tables,
        handler,
    )
    .await;
    let effect = json!({
        "execute": "INSERT INTO effects (id) VALUES ($1)",
        "params": [{ "message": "id" }],
    });
    let sets = json!({ "query": "SELECT sets()" });
    let publish = json!({ "publish": { "subject": "s" } });
    scene
        .publish(&[
            TestMessage::new("a", &json!({ "steps": [effect] })),
            TestMessage::new("b", &json!({ "steps": [effect, sets] })),
            TestMessage::new("c", &json!({ "steps": [effect, sets, publish] })),
            TestMessage::new("d", &json!({ "steps": [effect, publish] })),
        ])
        .await;
    scene.run_until_idle();
    let done = "SELECT string_agg(id, ',' ORDER BY id) FROM effects";
    assert_eq!(scene.store.text(done).await.as_deref(), Some("a,d"));
    let mut connection = scene.store.connect().await;
    let letters = connection.dead_letters("subject", 10).await.unwrap();
    assert_eq!(letters.len(), 2, "{letters:#?}");
    for letter in letters {
        assert_eq!(letter.attempts.len(), 2, "{letter:#?}");
        let reason = &letter.letter.reason;
        assert!(
            reason.contains("left the session changed: TimeZone"),
            "{reason}"
        );
    }
}

#[tokio::test]
async fn a_host_does_not_start_with_a_role_that_it_cannot_take() {
    let tables = "CREATE TABLE effects (id text NOT NULL);";
    let handler = "role = \"nobody\"";
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &script(),
        tables,
        handler,
    )
    .await;
    let output = run(scene.folder(), &["run"]);
    assert!(!output.status.success());
    assert!(
        output
            .err
            .contains("handler `subject`: `role`: there is no role `\"nobody\"`"),
        "{}",
        output.err
    );
}
