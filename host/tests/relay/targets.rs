//! Several targets: one that is in trouble holds up no other, and the rows of a key leave in order whoever gets them.

use std::time::{Duration, Instant};

use hapax::store::StoreKind;
use serde_json::json;

use crate::TABLES;
use crate::receiver::{Receiver, insert, insert_for};
use crate::support::host::run_with;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::scene::{Scene, SourceSort, script};

/// A queue of the store.
const NEXT: &str =
    "\n[targets.next]\nkind = \"queue\"\nqueue = \"later\"\n\n[sources.later]\nkind = \"queue\"\n";
/// How often rows are sent to the other targets in each state of the mute one.
const ROUNDS: u64 = 5;
/// Far more than they take, and far less than if each waited once for the mute target's time to run out.
const ROUNDS_MAX: Duration = Duration::from_secs(15);

/// A broker that takes the connection, or has it already, and says nothing more.
async fn a_mute_broker_delays_no_other(kind: StoreKind) {
    let receiver = Receiver::start().await;
    let other = Receiver::start().await;
    let proxy = Proxy::start(Upstream::Nats(other.nats.port()));
    let mute = format!(
        "\n[targets.mute]\nkind = \"jetstream\"\nurl = \"nats://127.0.0.1:{}\"\n",
        proxy.port()
    );
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        TABLES,
        &format!("{}{mute}{NEXT}", receiver.target()),
    )
    .await;
    proxy.stall(true);
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    let mut probe = scene.store.probe().await;
    let queue = scene.store.table("queue");
    let in_queue = format!("SELECT count(*) FROM {queue} WHERE queue = 'later'");
    let mut sent = 0;
    for is_connected in [false, true] {
        if is_connected {
            // What waited for it leaves, and then it says nothing any more.
            proxy.stall(false);
            other.wait_for_stored(ROUNDS).await;
            proxy.stall(true);
        }
        let started = Instant::now();
        for _ in 0..ROUNDS {
            sent += 1;
            for (target, subject) in [("mute", "out.a"), ("out", "out.a"), ("next", "s")] {
                let id = format!("{target}-{sent}");
                probe
                    .run(&insert_for(&scene, target, &id, None, subject))
                    .await;
            }
            receiver.wait_for_stored(sent).await;
            probe
                .wait_for(&in_queue, i64::try_from(sent).unwrap())
                .await;
        }
        let took = started.elapsed();
        assert!(took < ROUNDS_MAX, "connected: {is_connected}: {took:?}");
    }
    proxy.stall(false);
    other.wait_for_stored(2 * ROUNDS).await;
    // A message that was stored without its confirmation being heard came again under its id.
    assert_eq!(other.stored().await, 2 * ROUNDS);
    let open = "published_at IS NULL";
    let table = scene.store.table("outbox");
    probe
        .wait_for(&format!("SELECT count(*) FROM {table} WHERE {open}"), 0)
        .await;
    assert_eq!(scene.count("outbox", "attempts > 0").await, 0);
    host.terminate();
    host.wait_well();
}

#[tokio::test]
async fn a_mute_broker_delays_no_other_on_postgres() {
    a_mute_broker_delays_no_other(StoreKind::Postgres).await;
}

#[tokio::test]
async fn a_mute_broker_delays_no_other_on_sqlite() {
    a_mute_broker_delays_no_other(StoreKind::Sqlite).await;
}

/// What is in hand for a mute broker does not keep a host that is to stop longer than its grace allows; it comes again under its id.
#[tokio::test]
async fn a_stop_does_not_wait_for_a_mute_broker() {
    let receiver = Receiver::start().await;
    let proxy = Proxy::start(Upstream::Nats(receiver.nats.port()));
    let target = format!(
        "target = \"out\"\n\n[targets.out]\nkind = \"jetstream\"\nurl = \"nats://127.0.0.1:{}\"\n",
        proxy.port()
    );
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &script(),
        TABLES,
        &target,
    )
    .await;
    let mut host = scene.host(&[], &[("HAPAX_SHUTDOWN_GRACE", "1s")]);
    host.wait_until_ready();
    let mut probe = scene.store.probe().await;
    // The connection stands.
    probe.run(&insert(&scene, "before", None, "out.a")).await;
    receiver.wait_for_stored(1).await;
    proxy.stall(true);
    probe.run(&insert(&scene, "stuck", None, "out.a")).await;
    let in_hand = "SELECT count(*) FROM pg_stat_activity \
         WHERE application_name LIKE 'hapax relay%' AND state = 'idle in transaction'";
    probe.wait_for(in_hand, 1).await;
    let asked = Instant::now();
    host.terminate();
    host.wait_well();
    let took = asked.elapsed();
    // The time for a confirmation, and for the question after it, is ten seconds.
    assert!(took < Duration::from_secs(6), "{took:?}");
    proxy.stall(false);
    scene.run_until_idle();
    assert_eq!(receiver.stored().await, 2);
    assert_eq!(
        scene
            .count("outbox", "attempts > 0 OR published_at IS NULL")
            .await,
        0
    );
}

/// One key, its rows for two targets in turn.
async fn a_key_keeps_its_order_across_targets(kind: StoreKind) {
    const ROWS: i64 = 40;
    let receiver = Receiver::start().await;
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        TABLES,
        &format!("{}{NEXT}", receiver.target()),
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let mut probe = scene.store.probe().await;
    for n in 0..ROWS {
        let id = n.to_string();
        let row = if n % 4 < 2 {
            insert(&scene, &id, Some("k"), "out.a")
        } else {
            insert_for(&scene, "next", &id, Some("k"), "s")
        };
        probe.run(&row).await;
    }
    let hosts = [(); 2].map(|()| scene.host(&["--until-idle"], &[]));
    for host in hosts {
        host.wait_well();
    }
    assert_eq!(scene.count("outbox", "published_at IS NULL").await, 0);
    let table = scene.store.table("outbox");
    let overtaken = format!(
        "SELECT count(*) FROM {table} AS one JOIN {table} AS later ON later.number > one.number \
         WHERE later.published_at < one.published_at"
    );
    assert_eq!(scene.store.number(&overtaken).await, 0);
    assert_eq!(receiver.stored().await, ROWS as u64 / 2);
}

#[tokio::test]
async fn a_key_keeps_its_order_across_targets_on_postgres() {
    a_key_keeps_its_order_across_targets(StoreKind::Postgres).await;
}

#[tokio::test]
async fn a_key_keeps_its_order_across_targets_on_sqlite() {
    a_key_keeps_its_order_across_targets(StoreKind::Sqlite).await;
}

/// Rows for a target that was taken out of the configuration: a start says so once, and so do `status` and `outbox list`.
async fn rows_of_a_target_that_is_gone_are_told_of(kind: StoreKind) {
    let receiver = Receiver::start().await;
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        TABLES,
        &receiver.target(),
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let mut probe = scene.store.probe().await;
    for (id, key) in [("1", None), ("2", Some("k"))] {
        probe.run(&insert_for(&scene, "gone", id, key, "s")).await;
    }
    // Behind one that waits.
    probe.run(&insert(&scene, "4", Some("k"), "out.a")).await;
    probe.run(&insert(&scene, "3", None, "out.a")).await;
    let said = scene.run_until_idle();
    let told: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("do not leave"))
        .collect();
    assert_eq!(told.len(), 1, "{said}");
    let hint = "write the table `[targets.gone]` again, or delete them: `hapax outbox drop --handler subject --target gone`";
    for part in [
        "they wait for the target `gone`, which is not configured",
        "\"messages\":3",
        hint,
    ] {
        assert!(told[0].contains(part), "{}", told[0]);
    }
    let warning = |count: u32, what: &str| {
        format!(
            "warning: {count} messages of `subject`{what} wait for the target `gone`, which is not configured\nhint: {hint}\n"
        )
    };
    let hapax = |arguments: &[&str]| run_with(scene.folder(), arguments, &[], b"");
    assert_eq!(hapax(&["status"]).err, warning(3, " in the outbox"));
    assert_eq!(
        scene.status()["outbox"]["stranded"],
        json!([{ "target": "gone", "messages": 3 }])
    );
    assert_eq!(hapax(&["outbox", "list"]).err, warning(2, ""));

    let mut config = std::fs::read_to_string(scene.config()).unwrap();
    config.push_str(&NEXT.replace("targets.next", "targets.gone"));
    std::fs::write(scene.config(), config).unwrap();
    let said = scene.run_until_idle();
    assert!(!said.contains("do not leave"), "{said}");
    assert_eq!(scene.count("outbox", "published_at IS NULL").await, 0);
    assert_eq!(hapax(&["status"]).err, "");
    assert_eq!(hapax(&["outbox", "list"]).err, "");
}

#[tokio::test]
async fn rows_of_a_target_that_is_gone_are_told_of_on_postgres() {
    rows_of_a_target_that_is_gone_are_told_of(StoreKind::Postgres).await;
}

#[tokio::test]
async fn rows_of_a_target_that_is_gone_are_told_of_on_sqlite() {
    rows_of_a_target_that_is_gone_are_told_of(StoreKind::Sqlite).await;
}
