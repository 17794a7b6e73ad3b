//! A component of the other world takes the place of the one that runs, while messages come.

use std::path::Path;

use hapax::store::StoreKind;

use crate::stage::{TABLES, assert_once, effect, message};
use crate::support::scene::{Scene, SourceSort, TestMessage, script, script_batch};

const SWAPPED: &str = "\"message\":\"swapped\"";

#[tokio::test(flavor = "multi_thread")]
async fn from_one_message_a_call_to_batches_and_back() {
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        Path::new("handler.wasm"),
        TABLES,
        "lanes = 2\nbatch = { max = 20 }\nconfig = { calls = \"calls\" }",
    )
    .await;
    let becomes = |component: &Path| {
        let new = scene.folder().join("handler.new");
        std::fs::copy(component, &new).unwrap();
        std::fs::rename(new, scene.folder().join("handler.wasm")).unwrap();
    };
    let some = |from: i64| -> Vec<TestMessage> {
        (from..from + 200)
            .map(|n| message(n, &[effect(n)]))
            .collect()
    };
    let in_batches = "SELECT CAST(coalesce(sum(n), 0) AS bigint) FROM calls";
    becomes(&script());
    scene.publish(&some(1)).await;
    let mut host = scene.host(&[], &[("HAPAX_LOG", "info,hapax=debug,sqlx=warn")]);
    host.wait_until_ready();
    becomes(&script_batch());
    scene.publish(&some(201)).await;
    host.wait_for_line(SWAPPED);
    scene.publish(&some(401)).await;
    scene.wait_until_nothing_pends().await;
    let after_swap = scene.store.number(in_batches).await;
    assert!(after_swap >= 200, "{after_swap}");

    becomes(&script());
    scene.publish(&some(601)).await;
    host.wait_for_line(SWAPPED);
    scene.publish(&some(801)).await;
    scene.wait_until_nothing_pends().await;
    host.terminate();
    host.wait_well();
    assert_once(&scene, 1_000, &[]).await;
    let at_the_end = scene.store.number(in_batches).await;
    assert!(at_the_end <= 800, "{at_the_end}");
    let retried = "SELECT max(attempt) FROM effects";
    assert_eq!(scene.store.number(retried).await, 1);
}
