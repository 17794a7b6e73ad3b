//! `run`: starting before its servers, and ending.

use hapax::store::StoreKind;
use serde_json::json;

use crate::place::{NO_NATS, NO_POSTGRES, Place, handler_table, stream_table};
use crate::support::host::Host;
use crate::support::scene::{Scene, SourceSort, TestMessage, script};

async fn process_one(scene: &Scene, mut host: Host) {
    host.wait_until_ready();
    scene
        .publish(&[TestMessage::new("1", &json!({"steps": []}))])
        .await;
    scene.wait_until_nothing_pends().await;
    host.terminate();
    host.wait_well();
    assert_eq!(
        scene.count("processed_messages", "outcome = 'done'").await,
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_that_is_absent_at_start_is_waited_for() {
    let mut scene = Scene::new(StoreKind::Postgres, SourceSort::Queue, &script(), "", "").await;
    scene.store.postgres.as_mut().unwrap().stop();
    let mut host = scene.host(&[], &[]);
    let line = host.wait_for_line("waiting for the database");
    assert!(
        line.contains("cannot connect to `postgres://tester@"),
        "{line}"
    );
    assert!(!line.contains("secret"), "{line}");
    scene.store.postgres.as_mut().unwrap().restart();
    process_one(&scene, host).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_absent_at_start_is_waited_for() {
    let mut scene = Scene::new(StoreKind::Sqlite, SourceSort::JetStream, &script(), "", "").await;
    scene.nats.as_mut().unwrap().kill();
    let mut host = scene.host(&[], &[]);
    let line = host.wait_for_line("waiting for the source");
    assert!(line.contains("\"source\":\"messages\""), "{line}");
    assert!(
        line.contains("cannot connect to `nats://127.0.0.1:"),
        "{line}"
    );
    scene.nats.as_mut().unwrap().restart();
    process_one(&scene, host).await;
}

#[test]
fn sigterm_ends_it_while_it_waits() {
    let offline = Place::new(&format!(
        "[store]\nurl = \"{NO_POSTGRES}\"\n[sources.orders]\nkind = \"queue\"\n{}",
        handler_table("ship", "orders")
    ));
    let no_broker = Place::new(&format!(
        "[store]\nurl = \"sqlite:hapax.db\"\n{}{}start = \"all\"\n",
        stream_table("orders", NO_NATS, ""),
        handler_table("ship", "orders"),
    ));
    for (place, waiting) in [
        (offline, "waiting for the database"),
        (no_broker, "waiting for the source"),
    ] {
        let mut host = Host::start(&place.path().join("hapax.toml"), &[], &[]);
        let line = host.wait_for_line(waiting);
        assert!(!line.contains("secret"), "{line}");
        host.terminate();
        let said = host.wait_well();
        assert!(said.contains("draining"), "{said}");
    }
}

#[test]
fn sigterm_and_sigint_end_it_well() {
    let place = Place::with_queue("");
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut host = Host::start(&place.path().join("hapax.toml"), &[], &[]);
        host.wait_until_ready();
        host.signal(signal);
        let said = host.wait_well();
        assert!(said.contains("\"message\":\"drained\""), "{said}");
    }
}
