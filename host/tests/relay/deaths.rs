//! A host dies at each point of a row's way.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;

use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::TABLES;
use crate::receiver::{Receiver, publishing};
use crate::support::host::run_with;
use crate::support::scene::{Scene, SourceSort, TestMessage, script};

async fn ids_in_the_outbox(scene: &Scene) -> BTreeSet<String> {
    let list = run_with(
        scene.folder(),
        &["outbox", "list", "--json", "--limit", "100000"],
        &[],
        b"",
    );
    assert!(list.status.success(), "{}", list.err);
    let list: Value = serde_json::from_str(&list.out).unwrap();
    list["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Every message twice, a host that dies at `point`, two hosts that go on, every message again.
async fn dies_at(point: &str, kind: StoreKind) {
    let mut receiver = Receiver::start().await;
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        TABLES,
        &receiver.target(),
    )
    .await;
    let messages: Vec<TestMessage> = ["m1", "m2", "m3", "m4"].map(publishing).into();
    let twice: Vec<TestMessage> = messages.iter().chain(&messages).cloned().collect();
    scene.publish(&twice).await;

    let told = scene.folder().join("died-at");
    let host = scene.host(
        &["--until-idle"],
        &[
            ("HAPAX_FAULT_POINT", point),
            ("HAPAX_FAULT_FILE", &told.display().to_string()),
        ],
    );
    let (status, said) = host.wait();
    assert_eq!(status.signal(), Some(9), "{status}; the host said:\n{said}");
    assert_eq!(std::fs::read_to_string(&told).unwrap(), point);

    let hosts = [(); 2].map(|()| scene.host(&["--until-idle"], &[]));
    for host in hosts {
        host.wait_well();
    }
    scene.publish(&messages).await;
    scene.run_until_idle();

    let expected = ids_in_the_outbox(&scene).await;
    assert_eq!(expected.len(), 12, "{point}");
    let raw = receiver.published().await;
    assert_eq!(
        raw.iter().cloned().collect::<BTreeSet<_>>(),
        expected,
        "{point}"
    );
    // What was published before the death and not marked came again, under its id, and the server knew it.
    let stored = receiver.messages().await;
    assert_eq!(stored.len(), 12, "{point}");
    let order: Vec<_> = stored
        .iter()
        .map(|(_, body)| body)
        .filter(|body| body["n"] != 2)
        .collect();
    for pair in order.chunks(2) {
        assert_eq!(
            (&pair[0]["n"], &pair[1]["n"]),
            (&json!(1), &json!(3)),
            "{point}: {order:?}"
        );
        assert_eq!(pair[0]["of"], pair[1]["of"], "{point}: {order:?}");
    }
    assert_eq!(scene.store.number("SELECT count(*) FROM effects").await, 4);
    assert_eq!(scene.count("outbox", "published_at IS NULL").await, 0);
    assert_eq!(scene.status()["outbox"]["unpublished"], 0);
}

macro_rules! dies {
    ($($module:ident: $point:literal,)*) => {
        const TESTED: &[&str] = &[$($point),*];
        $(
            mod $module {
                use super::*;

                #[tokio::test]
                async fn on_postgres() {
                    dies_at($point, StoreKind::Postgres).await;
                }

                #[tokio::test]
                async fn on_sqlite() {
                    dies_at($point, StoreKind::Sqlite).await;
                }
            }
        )*
    };
}

dies! {
    dies_before_publish: "relay-before-publish",
    dies_after_publish: "relay-after-publish",
    dies_before_mark: "relay-before-mark",
    dies_after_mark: "relay-after-mark",
}

#[test]
fn every_point_is_tested() {
    assert_eq!(TESTED, hapax::fault::RELAY_POINTS);
}

/// Into a queue of the store: exactly once, whenever the host dies.
async fn a_queue_gets_each_once(kind: StoreKind) {
    // Nothing is published there: only the marks count.
    for point in ["relay-before-mark", "relay-after-mark"] {
        let target = "target = \"next\"\n\n[targets.next]\nkind = \"queue\"\nqueue = \"later\"\n\n[sources.later]\nkind = \"queue\"\n";
        let scene = Scene::new(kind, SourceSort::Queue, &script(), TABLES, target).await;
        let messages: Vec<TestMessage> = ["m1", "m2", "m3"].map(publishing).into();
        scene.publish(&messages).await;
        let (status, said) = scene
            .host(&["--until-idle"], &[("HAPAX_FAULT_POINT", point)])
            .wait();
        assert_eq!(status.signal(), Some(9), "{status}; the host said:\n{said}");
        scene.publish(&messages).await;
        let hosts = [(); 2].map(|()| scene.host(&["--until-idle"], &[]));
        for host in hosts {
            host.wait_well();
        }
        let table = scene.store.table("queue");
        let later = format!("FROM {table} WHERE queue = 'later'");
        assert_eq!(
            scene
                .store
                .number(&format!("SELECT count(*) {later}"))
                .await,
            9,
            "{point}"
        );
        let distinct = format!("SELECT count(DISTINCT message_id) {later}");
        assert_eq!(scene.store.number(&distinct).await, 9, "{point}");
        assert_eq!(scene.count("outbox", "published_at IS NULL").await, 0);
    }
}

#[tokio::test]
async fn a_queue_gets_each_once_on_postgres() {
    a_queue_gets_each_once(StoreKind::Postgres).await;
}

#[tokio::test]
async fn a_queue_gets_each_once_on_sqlite() {
    a_queue_gets_each_once(StoreKind::Sqlite).await;
}
