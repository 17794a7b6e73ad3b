//! The database, the broker or the way to them is gone: consumption pauses, nothing is charged, nothing is lost, and work goes on by
//! itself.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may stop at once, and prints how long it took"
)]

#[path = "../support/mod.rs"]
mod support;

mod store;

use std::time::{Duration, Instant};

use hapax::store::StoreKind;
use rustix::process::Signal;
use serde_json::json;
use support::host::Host;
use support::proxy::{Loss, Proxy, Upstream};
use support::scene::{Scene, SourceSort, TestMessage, script};

const TABLES: &str = "CREATE TABLE effects (id text NOT NULL);";
const HANDLER: &str =
    "lanes = 2\nbatch = { max = 20 }\nretry = { attempts = 2, backoff = \"10ms\" }";
/// The same on a database with one writer.
const HANDLER_ALONE: &str = "retry = { attempts = 2, backoff = \"10ms\" }";
const MESSAGES: i64 = 1_000;

/// How long an outage lasts.
fn length() -> Duration {
    match std::env::var_os("HAPAX_TEST_FULL") {
        Some(_) => Duration::from_secs(60),
        None => Duration::from_secs(5),
    }
}

fn inserting(id: &str) -> TestMessage {
    TestMessage::new(
        id,
        &json!({ "steps": [
            { "execute": "INSERT INTO effects (id) VALUES ($1)", "params": [{ "message": "id" }] },
        ] }),
    )
}

fn messages(from: i64, count: i64) -> Vec<TestMessage> {
    (from..from + count)
        .map(|n| inserting(&format!("m-{n}")))
        .collect()
}

async fn scene() -> Scene {
    let scene = bare_scene(StoreKind::Postgres, SourceSort::JetStream).await;
    record_charges(&scene).await;
    scene
}

/// A scene whose database is empty.
async fn bare_scene(kind: StoreKind, source: SourceSort) -> Scene {
    let handler = match kind {
        StoreKind::Postgres => HANDLER,
        StoreKind::Sqlite => HANDLER_ALONE,
    };
    Scene::new(kind, source, &script(), TABLES, handler).await
}

/// Records each charge as it happens: the rows of `attempts` go when their message succeeds.
async fn record_charges(scene: &Scene) {
    scene.store.connect().await.migrate().await.unwrap();
    scene
        .store
        .run("CREATE TABLE charged (message_id text, class text, error text)")
        .await;
    let insert = "INSERT INTO charged VALUES (NEW.message_id, NEW.class, NEW.error);";
    match scene.store.kind() {
        StoreKind::Postgres => {
            let function = format!(
                "CREATE FUNCTION record_charge() RETURNS trigger LANGUAGE plpgsql SET search_path = public \
                 AS $$ BEGIN {insert} RETURN NEW; END $$"
            );
            scene.store.run(&function).await;
            let trigger = "CREATE TRIGGER record_charge AFTER INSERT ON hapax.attempts FOR EACH ROW EXECUTE FUNCTION record_charge()";
            scene.store.run(trigger).await;
        }
        StoreKind::Sqlite => {
            let trigger = format!(
                "CREATE TRIGGER record_charge AFTER INSERT ON hapax_attempts BEGIN {insert} END"
            );
            scene.store.run(&trigger).await;
        }
    }
}

/// The variables of a host whose messages run alone: a batch that fails is taken apart before anybody is charged, which would hide a charge.
const ALONE: [(&str, &str); 2] = [
    ("HAPAX_HANDLERS__SUBJECT__LANES", "4"),
    ("HAPAX_HANDLERS__SUBJECT__BATCH__MAX", "1"),
];

/// A proxy before the scene's database, and the variable that leads a host through it.
fn through_a_proxy(scene: &Scene) -> (Proxy, String) {
    let postgres = scene.store.postgres.as_ref().unwrap();
    let proxy = Proxy::start(Upstream::Postgres(postgres.socket()));
    let url = postgres.url_through(proxy.port(), &scene.store.url);
    (proxy, url)
}

async fn effects(scene: &Scene) -> i64 {
    scene.store.number("SELECT count(*) FROM effects").await
}

/// Waits until some messages took effect and at least `left` did not.
async fn wait_for_the_middle(scene: &Scene, left: i64) {
    let mut probe = scene.store.probe().await;
    let started = Instant::now();
    loop {
        let done = probe.number("SELECT count(*) FROM effects").await;
        if done > 0 {
            assert!(
                done + left <= MESSAGES,
                "{done} were done at the first look"
            );
            return;
        }
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "nothing takes effect"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Everything took effect once, nothing was given up on or charged.
async fn all_is_well(scene: &Scene, expected: i64) {
    scene.wait_until_nothing_pends().await;
    let mut probe = scene.store.probe().await;
    probe
        .wait_for("SELECT count(*) FROM effects", expected)
        .await;
    assert_eq!(
        probe.number("SELECT count(DISTINCT id) FROM effects").await,
        expected
    );
    nothing_is_charged(scene).await;
}

/// Nothing was charged since `record_charges`, not even for a while, and nothing is dead.
async fn nothing_is_charged(scene: &Scene) {
    assert_eq!(scene.count("dead_letters", "1 = 1").await, 0);
    let charged = match scene.store.kind() {
        StoreKind::Postgres => {
            "SELECT string_agg(concat_ws(' ', message_id, class, error), chr(10)) FROM charged"
        }
        StoreKind::Sqlite => {
            "SELECT group_concat(message_id || ' ' || class || ' ' || error, char(10)) FROM charged"
        }
    };
    assert_eq!(
        scene.store.text(charged).await,
        None,
        "nothing may be charged"
    );
}

fn ends_well(host: Host) -> String {
    host.terminate();
    let said = host.wait_well();
    assert!(!said.contains("failed, will be retried"), "{said}");
    said
}

/// A slow handler, so that the outage meets messages in hand.
async fn an_outage(database: bool, broker: bool) {
    let mut scene = scene().await;
    let started = Instant::now();
    scene.publish(&messages(0, MESSAGES)).await;
    // 120 in hand, and 60 of them running alone.
    let mut host = scene.host(&[], &[("HAPAX_HANDLERS__SUBJECT__LANES", "60"), ALONE[1]]);
    host.wait_until_ready();
    wait_for_the_middle(&scene, 100).await;
    if database {
        scene.store.postgres.as_mut().unwrap().stop();
    }
    if broker {
        scene.nats.as_mut().unwrap().kill();
    }
    // The outage itself: what is measured is that it lasts longer than the ack wait.
    tokio::time::sleep(length()).await;
    if broker {
        scene.nats.as_mut().unwrap().restart();
    }
    if database {
        scene.store.postgres.as_mut().unwrap().restart();
    }
    let back = Instant::now();
    if database {
        host.wait_for_line("\"message\":\"resumed\"");
    }
    all_is_well(&scene, MESSAGES).await;
    println!("all done {:?} after the end of the outage", back.elapsed());
    let said = ends_well(host);
    if database {
        // Once a second at most, however many lanes there are.
        let paused = said.matches("\"message\":\"paused\"").count() as u64;
        let seconds = started.elapsed().as_secs();
        assert!(
            (1..=seconds + 1).contains(&paused),
            "{paused} lines in {seconds} s"
        );
    }
}

#[tokio::test]
async fn the_database_is_away() {
    an_outage(true, false).await;
}

#[tokio::test]
async fn the_broker_is_away() {
    an_outage(false, true).await;
}

#[tokio::test]
async fn both_are_away() {
    an_outage(true, true).await;
}

/// The reply to a COMMIT is lost: the claim tells whether it was carried out.
async fn commits_are_not_known(loss: Loss) {
    let scene = scene().await;
    let (proxy, url) = through_a_proxy(&scene);
    let mut host = scene.host(&[], &[("HAPAX_STORE__URL", &url), ALONE[0], ALONE[1]]);
    host.wait_until_ready();
    proxy.lose(loss, 10);
    scene.publish(&messages(0, 300)).await;
    all_is_well(&scene, 300).await;
    assert_eq!(proxy.lost(loss), 10);
    ends_well(host);
    let status = scene.status();
    let duplicates = status["duplicates"].as_u64().unwrap();
    match loss {
        // They were in: their next runs found the claims. Of those the replies may have been lost, too.
        Loss::CommitReply => assert!((1..=10).contains(&duplicates), "{status}"),
        _ => assert_eq!(duplicates, 0, "{status}"),
    }
}

#[tokio::test]
async fn a_commit_whose_reply_is_lost_is_found_by_its_claims() {
    commits_are_not_known(Loss::CommitReply).await;
}

#[tokio::test]
async fn a_commit_that_did_not_arrive_runs_again() {
    commits_are_not_known(Loss::Commit).await;
}

/// The database goes away while a host brings the tables up to date: it waits, and goes on with what is missing.
#[tokio::test]
async fn a_start_in_the_middle_of_an_outage_goes_on() {
    let scene = bare_scene(StoreKind::Postgres, SourceSort::JetStream).await;
    let (proxy, url) = through_a_proxy(&scene);
    // Each COMMIT on the way to the first message fails once: hapax's own migrations, the handler's, and what follows.
    proxy.lose(Loss::Commit, 2);
    let mut host = scene.host(&[], &[("HAPAX_STORE__URL", &url)]);
    host.wait_for_line("waiting for the database");
    host.wait_until_ready();
    assert_eq!(proxy.lost(Loss::Commit), 2);
    record_charges(&scene).await;
    scene.publish(&messages(0, 10)).await;
    all_is_well(&scene, 10).await;
    ends_well(host);
}

/// What an outage does to a statement of the handler's, which gets the error and asks for a retry: it is charged to nobody.
#[tokio::test]
async fn sessions_that_are_ended_all_the_time_charge_nobody() {
    let scene = scene().await;
    scene.publish(&messages(0, MESSAGES)).await;
    let mut host = scene.host(&[], &ALONE);
    host.wait_until_ready();
    let mut ended = 0;
    for _ in 0..20 {
        ended += scene
            .store
            .number(
                "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE application_name LIKE 'hapax%') AS ended",
            )
            .await;
        tokio::task::yield_now().await;
    }
    assert!(ended > 0);
    all_is_well(&scene, MESSAGES).await;
    ends_well(host);
}

/// A server that takes no writes until it is promoted.
#[tokio::test]
async fn a_standby_is_waited_for() {
    let mut scene = scene().await;
    let mut host = scene.host(&[], &ALONE);
    host.wait_until_ready();
    let postgres = scene.store.postgres.as_mut().unwrap();
    postgres.restart_as_standby();
    scene.publish(&messages(0, 100)).await;
    host.wait_for_line("is a standby, which takes no writes");
    assert_eq!(effects(&scene).await, 0);
    scene.store.probe().await.run("SELECT pg_promote()").await;
    all_is_well(&scene, 100).await;
    ends_well(host);
}

/// Others have all connections of the server.
#[tokio::test]
async fn too_many_connections_are_waited_for() {
    let scene = scene().await;
    let (proxy, url) = through_a_proxy(&scene);
    let mut host = scene.host(&[], &[("HAPAX_STORE__URL", &url), ALONE[0], ALONE[1]]);
    host.wait_until_ready();
    proxy.cut();
    proxy.refuse(true);
    let mut others = Vec::new();
    // Until the server refuses; superusers' reserve included.
    while let Ok(connection) =
        <sqlx::PgConnection as sqlx::Connection>::connect(&scene.store.url).await
    {
        others.push(connection);
        assert!(others.len() < 1_000);
    }
    proxy.refuse(false);
    scene.publish(&messages(0, 100)).await;
    host.wait_for_line("53300");
    drop(others);
    all_is_well(&scene, 100).await;
    ends_well(host);
}

/// A host that stands still for longer than the broker and the database wait for it, while another one works: what it commits late
/// fails or finds the claims, its late acks do no harm.
#[tokio::test]
async fn a_host_that_stood_still_does_no_harm() {
    let scene = scene().await;
    scene.publish(&messages(0, MESSAGES)).await;
    let mut still = scene.host(&[], &[("HAPAX_HANDLERS__SUBJECT__LIMITS__TIME", "1s")]);
    still.wait_until_ready();
    wait_for_the_middle(&scene, 100).await;
    still.signal(Signal::STOP);
    let other = scene.host(&[], &[]);
    // Its transaction, if it had one open, ends with its session's time; its messages come to the other one with the ack wait.
    all_is_well(&scene, MESSAGES).await;
    still.signal(Signal::CONT);
    scene.publish(&messages(MESSAGES, 10)).await;
    all_is_well(&scene, MESSAGES + 10).await;
    ends_well(other);
    ends_well(still);
    all_is_well(&scene, MESSAGES + 10).await;
}

/// The network of one host is gone: its messages and its baton come to the other one.
#[tokio::test]
async fn a_host_without_network_holds_nobody_up() {
    let scene = scene().await;
    let (proxy, url) = through_a_proxy(&scene);
    let cut_off = scene.host(
        &[],
        &[
            ("HAPAX_STORE__URL", &url),
            ("HAPAX_HANDLERS__SUBJECT__LIMITS__TIME", "1s"),
            // Inside its transaction, with the baton.
            ("HAPAX_FAULT_POINT", "after-claim"),
            ("HAPAX_FAULT_ACTION", "stop"),
            (
                "HAPAX_FAULT_FILE",
                &scene.folder().join("stopped").display().to_string(),
            ),
        ],
    );
    scene.publish(&messages(0, 100)).await;
    let started = Instant::now();
    while !scene.folder().join("stopped").exists() {
        assert!(started.elapsed() < Duration::from_secs(120));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    proxy.stall(true);
    let other = scene.host(&[], &[]);
    all_is_well(&scene, 100).await;
    ends_well(other);
    drop(cut_off);
}

/// The same id at two hosts at the same moment: one runs, the other one finds its claim; if the first rolls back, the second runs.
async fn at_two_hosts_at_once(first_commits: bool) {
    let scene = bare_scene(StoreKind::Postgres, SourceSort::Queue).await;
    record_charges(&scene).await;
    let twins = [inserting("m"), inserting("m")];
    let stopped = scene.folder().join("stopped");
    let (point, action) = if first_commits {
        ("after-handler", "stop")
    } else {
        ("before-commit", "kill")
    };
    scene.publish(&twins[..1]).await;
    let first = scene.host(
        &[],
        &[
            ("HAPAX_FAULT_POINT", point),
            ("HAPAX_FAULT_ACTION", action),
            ("HAPAX_FAULT_FILE", &stopped.display().to_string()),
        ],
    );
    let started = Instant::now();
    while !stopped.exists() {
        assert!(started.elapsed() < Duration::from_secs(120));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    scene.publish(&twins[1..]).await;
    let second = scene.host(&[], &[]);
    if first_commits {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE 'hapax lane%'";
        scene.store.probe().await.wait_for(waits, 1).await;
        first.signal(Signal::CONT);
    }
    all_is_well(&scene, 1).await;
    ends_well(second);
    if first_commits {
        ends_well(first);
    }
    let status = scene.status();
    assert_eq!(status["claimed"], 1, "{status}");
}

#[tokio::test]
async fn the_same_id_at_two_hosts_and_the_first_commits() {
    at_two_hosts_at_once(true).await;
}

#[tokio::test]
async fn the_same_id_at_two_hosts_and_the_first_dies() {
    at_two_hosts_at_once(false).await;
}

/// A handler that takes nearly as long as the ack wait, many messages in hand: progress keeps them, so hardly any comes twice. Returns how
/// long all took.
async fn slow_messages(hosts: usize) -> Duration {
    const SLOW: i64 = 128;
    let scene = scene().await;
    let variables = [
        ("HAPAX_HANDLERS__SUBJECT__LANES", "8"),
        ("HAPAX_HANDLERS__SUBJECT__BATCH__MAX", "1"),
    ];
    let mut hosts: Vec<Host> = (0..hosts).map(|_| scene.host(&[], &variables)).collect();
    for host in &mut hosts {
        host.wait_until_ready();
    }
    let messages: Vec<TestMessage> = (0..SLOW)
        .map(|n| {
            TestMessage::new(
                format!("m-{n}"),
                &json!({ "steps": [
                    { "execute": "INSERT INTO effects (id) SELECT $1 FROM pg_sleep(1.5)", "params": [{ "message": "id" }] },
                ] }),
            )
        })
        .collect();
    let started = Instant::now();
    scene.publish(&messages).await;
    all_is_well(&scene, SLOW).await;
    let took = started.elapsed();
    let again = scene.deliveries().await - SLOW as u64;
    println!(
        "{} hosts: {took:?}, {again} of {SLOW} delivered again",
        hosts.len()
    );
    assert!(
        again * 100 <= SLOW as u64,
        "{again} of {SLOW} were delivered again"
    );
    for host in hosts {
        ends_well(host);
    }
    took
}

#[tokio::test]
async fn slow_messages_in_hand_are_kept() {
    let two = slow_messages(2).await;
    if std::env::var_os("HAPAX_TEST_FULL").is_some() {
        let one = slow_messages(1).await;
        println!(
            "two hosts are {:.2} times as fast as one",
            one.as_secs_f64() / two.as_secs_f64()
        );
    }
}

/// A host that starts just then: its handler's migration is cut off, by the server and by a lock that is not free in time.
#[tokio::test]
async fn a_session_that_ends_in_a_handlers_migration_is_waited_for() {
    let tables = format!("LOCK TABLE gate IN ACCESS EXCLUSIVE MODE;\n{TABLES}");
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::JetStream,
        &script(),
        &tables,
        HANDLER,
    )
    .await;
    record_charges(&scene).await;
    scene.store.run("CREATE TABLE gate ()").await;
    let mut keeper = scene.store.probe().await;
    keeper.run("BEGIN").await;
    keeper.run("LOCK TABLE gate IN ACCESS EXCLUSIVE MODE").await;
    let mut host = scene.host(&[], &[]);
    let mut other = scene.store.probe().await;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE 'hapax%'";
    other.wait_for(waits, 1).await;
    let ended = format!(
        "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) {}) AS ended",
        waits.strip_prefix("SELECT count(*) ").unwrap()
    );
    assert_eq!(other.number(&ended).await, 1);
    host.wait_for_line("waiting for the database");
    keeper.run("ROLLBACK").await;
    host.wait_until_ready();
    scene.publish(&messages(0, 10)).await;
    all_is_well(&scene, 10).await;
    ends_well(host);
}
