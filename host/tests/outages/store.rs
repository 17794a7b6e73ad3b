//! The database is there and of no use: full, damaged.

use hapax::store::StoreKind;
use serde_json::json;

use crate::support::host::Host;
use crate::support::scene::{SourceSort, TestMessage};
use crate::{
    ALONE, all_is_well, bare_scene, ends_well, messages, nothing_is_charged, record_charges, scene,
};

/// The disk is full: SQLite says so by itself when its file may not grow.
#[tokio::test]
async fn a_full_sqlite_file_is_waited_for() {
    let scene = bare_scene(StoreKind::Sqlite, SourceSort::Queue).await;
    scene.run_until_idle();
    record_charges(&scene).await;
    let big = |id: &str| {
        TestMessage::new(
            id,
            &json!({ "steps": [{
                "execute": "INSERT INTO effects (id) VALUES ($1)",
                "params": [{ "long_text": { "repeat": "x", "times": 3_000_000 } }],
            }] }),
        )
    };
    // A stand-in for a disk that is full: a limit for the size of files, which the writes run into.
    let mut host = Host::start_with_file_limits(&scene.config());
    host.limit_files(Some(1 << 20));
    scene.publish(&[big("a"), big("b")]).await;
    host.wait_for_line("\"message\":\"paused\"");
    assert_eq!(scene.store.number("SELECT count(*) FROM effects").await, 0);
    host.limit_files(None);
    scene.wait_until_nothing_pends().await;
    assert_eq!(scene.store.number("SELECT count(*) FROM effects").await, 2);
    nothing_is_charged(&scene).await;
    host.terminate();
    host.wait_well();
}

/// Damage that the server finds while a handler writes: until a person has acted, nobody is charged for it.
#[tokio::test]
async fn a_damaged_table_is_waited_for() {
    let scene = scene().await;
    let mut host = scene.host(&[], &ALONE);
    host.wait_until_ready();
    // A stand-in for a page that can't be read.
    scene
        .store
        .run(
            "CREATE FUNCTION spoilt() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                 RAISE EXCEPTION 'invalid page in block 7' USING ERRCODE = 'data_corrupted'; END $$",
        )
        .await;
    let trigger =
        "CREATE TRIGGER spoilt BEFORE INSERT ON effects FOR EACH ROW EXECUTE FUNCTION spoilt()";
    scene.store.run(trigger).await;
    scene.publish(&messages(0, 20)).await;
    for _ in 0..3 {
        host.wait_for_line("invalid page in block 7 (XX001)");
    }
    scene.store.run("DROP TRIGGER spoilt ON effects").await;
    all_is_well(&scene, 20).await;
    ends_well(host);
}
