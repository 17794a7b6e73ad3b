//! Schemas that are older or newer than the binary: both work where the newer one says so, else a sentence says why not.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use hapax::store::{StoreError, StoreKind, schema_version};
use serde_json::json;
use support::database::TestStore;
use support::host::run;
use support::scene::{Scene, SourceSort, TestMessage, credit_account};

const ACCOUNTS: &str = "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);\n\
                        INSERT INTO accounts (id, balance) VALUES ('a', 0);";
macro_rules! on_both_databases {
    ($($check:ident,)*) => {$(
        mod $check {
            #[tokio::test]
            async fn on_postgres() {
                super::$check(super::StoreKind::Postgres).await;
            }

            #[tokio::test]
            async fn on_sqlite() {
                super::$check(super::StoreKind::Sqlite).await;
            }
        }
    )*};
}

on_both_databases! {
    the_first_schema_with_rows_in_it_is_migrated,
    a_newer_schema_that_serves_this_binary_works,
    a_newer_schema_that_does_not_stops_with_a_sentence,
    two_at_once_from_empty_and_from_the_first,
}

/// The first released schema, as it was.
fn first(kind: StoreKind) -> &'static str {
    match kind {
        StoreKind::Postgres => include_str!("../../migrations/postgres/0001_tables.sql"),
        StoreKind::Sqlite => include_str!("../../migrations/sqlite/0001_tables.sql"),
    }
}

/// Brings an empty database to the first schema, as the binary of its time did.
async fn make_first(store: &TestStore) {
    let meta = store.table("meta");
    // Makes SQLite's file.
    drop(store.connect().await);
    let mut probe = store.probe().await;
    probe.run(first(store.kind())).await;
    probe
        .run(&format!(
            "INSERT INTO {meta} (name, value) VALUES ('schema-version', '1')"
        ))
        .await;
}

async fn version(store: &TestStore) -> String {
    let meta = store.table("meta");
    let sql = format!("SELECT value FROM {meta} WHERE name = 'schema-version'");
    store.text(&sql).await.unwrap()
}

fn credit(id: &str, amount: u64) -> TestMessage {
    TestMessage::new(id, &json!({ "account": "a", "amount": amount }))
}

async fn balance(scene: &Scene) -> i64 {
    scene.store.number("SELECT balance FROM accounts").await
}

async fn scene_of(kind: StoreKind) -> Scene {
    let dedup = "dedup = \"14d\"";
    Scene::new(kind, SourceSort::Queue, &credit_account(), ACCOUNTS, dedup).await
}

fn assert_works(scene: &Scene, arguments: &[&str]) -> String {
    let output = run(scene.folder(), arguments);
    assert!(output.status.success(), "{arguments:?}: {}", output.err);
    output.out
}

async fn the_first_schema_with_rows_in_it_is_migrated(kind: StoreKind) {
    let scene = scene_of(kind).await;
    make_first(&scene.store).await;
    let [claims, letters] =
        ["processed_messages", "dead_letters"].map(|name| scene.store.table(name));
    let hash = hapax::message::ShortHash::of_payload(&credit("m-1", 1).payload).to_hex();
    let (hash, empty) = match kind {
        StoreKind::Postgres => (format!("decode('{hash}', 'hex')"), "''"),
        StoreKind::Sqlite => (format!("x'{hash}'"), "x''"),
    };
    scene
        .store
        .run(&format!(
            "INSERT INTO {claims} (consumer, message_id, outcome, payload_hash) VALUES ('subject', 'm-1', 'done', {hash}); \
             INSERT INTO {letters} (consumer, handler, message_id, source, position, subject, headers, payload, class, \
                 reason, attempts) \
                 VALUES ('subject', 'subject', 'x', 'messages', 'x', '', '[]', {empty}, 'rejected', 'no', '[]')"
        ))
        .await;
    scene.publish(&[credit("m-1", 1), credit("m-2", 2)]).await;
    scene.run_until_idle();
    assert_eq!(version(&scene.store).await, schema_version().to_string());
    assert_eq!(balance(&scene).await, 2, "m-1 was done before");
    assert_eq!(scene.status()["dead"], 1);
    assert!(assert_works(&scene, &["dead-letters", "list"]).contains("rejected"));
}

/// What a release of later does: it adds, and says which binary it still serves.
async fn make_newer(store: &TestStore, serves: i64) {
    let [meta, claims, letters] =
        ["meta", "processed_messages", "dead_letters"].map(|name| store.table(name));
    store
        .run(&format!(
            "ALTER TABLE {claims} ADD COLUMN added text; ALTER TABLE {letters} ADD COLUMN added integer NOT NULL DEFAULT 7; \
             UPDATE {meta} SET value = '{}' WHERE name = 'schema-version'; \
             UPDATE {meta} SET value = '{serves}' WHERE name = 'schema-serves'",
            schema_version() + 1
        ))
        .await;
}

async fn a_newer_schema_that_serves_this_binary_works(kind: StoreKind) {
    let scene = scene_of(kind).await;
    // The source's rows and hapax's tables; a message that is done before.
    scene.publish(&[credit("m-1", 1)]).await;
    scene.run_until_idle();
    make_newer(&scene.store, schema_version()).await;
    let no_account = TestMessage::new("bad", &json!({ "amount": "much" }));
    scene
        .publish(&[credit("m-1", 1), credit("m-2", 2), no_account])
        .await;
    let mut hosts = [scene.host(&[], &[]), scene.host(&[], &[])];
    for host in &mut hosts {
        host.wait_until_ready();
    }
    scene.wait_until_nothing_pends().await;
    for host in hosts {
        host.terminate();
        host.wait_well();
    }
    assert_eq!(balance(&scene).await, 3);
    assert_eq!(scene.count("dead_letters", "added = 7").await, 1);
    for arguments in [
        &["status"][..],
        &["dead-letters", "list"],
        &["dead-letters", "replay", "--all", "--yes"],
        &["prune", "--dry-run"],
        &["prune"],
    ] {
        assert_works(&scene, arguments);
    }
    // It is as it was.
    assert_eq!(
        version(&scene.store).await,
        (schema_version() + 1).to_string()
    );
}

async fn a_newer_schema_that_does_not_stops_with_a_sentence(kind: StoreKind) {
    let scene = scene_of(kind).await;
    scene.store.connect().await.migrate().await.unwrap();
    make_newer(&scene.store, schema_version() + 1).await;
    let error = scene.store.connect().await.migrate().await.unwrap_err();
    assert!(
        matches!(error, StoreError::SchemaNewer { found, known } if (found, known) == (schema_version() + 1, schema_version())),
        "{error}"
    );
    for arguments in [
        &["run", "--until-idle"][..],
        &["status"],
        &["dead-letters", "list"],
        &["prune", "--dry-run"],
    ] {
        let output = run(scene.folder(), arguments);
        assert_eq!(
            output.status.code(),
            Some(4),
            "{arguments:?}: {}",
            output.err
        );
        assert!(
            output.err.contains(&format!(
                "the schema of the store has version {}, newer than version {} of this binary\n\
                 hint: run the version of hapax that made it, or a newer one",
                schema_version() + 1,
                schema_version()
            )),
            "{}",
            output.err
        );
    }
}

async fn two_at_once_from_empty_and_from_the_first(kind: StoreKind) {
    for from_first in [false, true] {
        let store = match kind {
            StoreKind::Postgres => TestStore::empty_postgres().await,
            StoreKind::Sqlite => TestStore::empty_sqlite(),
        };
        if from_first {
            make_first(&store).await;
        }
        let (mut one, mut two) = (store.connect().await, store.connect().await);
        let (first, second) = tokio::join!(one.migrate(), two.migrate());
        first.unwrap();
        second.unwrap();
        one.migrate().await.unwrap();
        assert_eq!(version(&store).await, schema_version().to_string());
    }
}
