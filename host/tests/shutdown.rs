//! Stopping: within the grace, after it, at once; and what systemd is told.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::collections::HashSet;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use hapax::store::StoreKind;
use serde_json::json;
use support::host::Host;
use support::scene::{Scene, SourceSort, TestMessage, script};

const TABLES: &str = "CREATE TABLE effects (id TEXT NOT NULL, amount BIGINT NOT NULL)";
/// Longer than anything that a test waits for takes.
const LONG: Duration = Duration::from_secs(60);

/// Supervisors listen here.
struct Supervisor {
    socket: UnixDatagram,
    name: String,
    said: Vec<String>,
    _folder: Option<tempfile::TempDir>,
}

impl Supervisor {
    fn at_path() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        Self::new(
            UnixDatagram::bind(&path).unwrap(),
            path.display().to_string(),
            Some(folder),
        )
    }

    fn with_abstract_name() -> Self {
        let name = format!("hapax-test-{}-{}", std::process::id(), line!());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        Self::new(
            UnixDatagram::bind_addr(&address).unwrap(),
            format!("@{name}"),
            None,
        )
    }

    fn new(socket: UnixDatagram, name: String, folder: Option<tempfile::TempDir>) -> Self {
        socket
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        Self {
            socket,
            name,
            said: Vec::new(),
            _folder: folder,
        }
    }

    /// Reads until a line fits; returns it.
    fn wait_for(&mut self, is_it: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        let mut buffer = [0; 8192];
        while started.elapsed() < LONG {
            let Ok(length) = self.socket.recv(&mut buffer) else {
                continue;
            };
            let text = String::from_utf8(buffer[..length].to_vec()).unwrap();
            self.said.push(text.clone());
            if let Some(line) = text.lines().find(|line| is_it(line)) {
                return line.to_owned();
            }
        }
        panic!("not told; systemd heard: {:?}", self.said);
    }
}

fn insert(id: &str) -> serde_json::Value {
    json!({ "execute": "INSERT INTO effects VALUES ($1, 1)", "params": [{ "text": id }] })
}

#[tokio::test(flavor = "multi_thread")]
async fn systemd_is_told_what_happens() {
    let mut scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &script(),
        TABLES,
        "",
    )
    .await;
    let mut supervisor = Supervisor::at_path();
    let name = supervisor.name.clone();
    let variables = [
        ("NOTIFY_SOCKET", name.as_str()),
        ("WATCHDOG_USEC", "200000"),
    ];
    scene.store.postgres.as_mut().unwrap().stop();
    let host = scene.host(&[], &variables);
    let line = supervisor.wait_for(|line| line.starts_with("STATUS=") && line.contains("store: "));
    assert!(!line.contains("secret"), "{line}");
    assert!(!supervisor.said.concat().contains("READY=1"));

    scene.store.postgres.as_mut().unwrap().restart();
    supervisor.wait_for(|line| line == "READY=1");
    supervisor.wait_for(|line| line == "WATCHDOG=1");
    supervisor.wait_for(|line| line == "WATCHDOG=1");
    scene.store.postgres.as_mut().unwrap().kill();
    supervisor.wait_for(|line| line.starts_with("STATUS=store: "));
    // A database that is away is no reason to start the host again.
    supervisor.wait_for(|line| line == "WATCHDOG=1");
    scene.store.postgres.as_mut().unwrap().restart();
    supervisor.wait_for(|line| line == "STATUS=consuming");

    host.terminate();
    let line = supervisor.wait_for(|line| line.starts_with("EXTEND_TIMEOUT_USEC="));
    assert_eq!(line, "EXTEND_TIMEOUT_USEC=20000000");
    assert!(supervisor.said.last().unwrap().contains("STOPPING=1"));
    host.wait_well();
    let ready = supervisor
        .said
        .iter()
        .filter(|text| text.contains("READY=1"));
    assert_eq!(ready.count(), 1, "{:?}", supervisor.said);
}

#[tokio::test(flavor = "multi_thread")]
async fn abstract_names_serve_and_odd_ones_do_no_harm() {
    let scene = Scene::new(StoreKind::Sqlite, SourceSort::Queue, &script(), TABLES, "").await;
    let mut supervisor = Supervisor::with_abstract_name();
    let name = supervisor.name.clone();
    // Of another process: then nobody waits for signs of life.
    let host = scene.host(
        &[],
        &[
            ("NOTIFY_SOCKET", &name),
            ("WATCHDOG_USEC", "1000"),
            ("WATCHDOG_PID", "1"),
        ],
    );
    supervisor.wait_for(|line| line == "READY=1");
    host.terminate();
    supervisor.wait_for(|line| line == "STOPPING=1");
    host.wait_well();
    assert!(
        !supervisor.said.concat().contains("WATCHDOG"),
        "{:?}",
        supervisor.said
    );

    for odd in ["/nowhere/socket", "vsock:2:1234", ""] {
        let host = scene.host(&["--until-idle"], &[("NOTIFY_SOCKET", odd)]);
        host.wait_well();
    }
}

/// A handler call that takes far longer than anybody waits for: PostgreSQL sleeps.
fn long() -> serde_json::Value {
    json!({ "steps": [insert("long"), { "execute": "SELECT pg_sleep(600)" }] })
}

/// A host with one message that runs and others behind it.
async fn busy(handler: &str, grace: &str) -> (Scene, Host) {
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::JetStream,
        &script(),
        TABLES,
        &format!("lanes = 1\nlimits = {{ time = \"15m\" }}\nbatch = {{ max = 1 }}\n{handler}"),
    )
    .await;
    let mut messages = vec![TestMessage::new("long", &long())];
    messages.extend((0..20).map(|number| {
        let id = number.to_string();
        TestMessage::new(id.clone(), &json!({ "steps": [insert(&id)] }))
    }));
    scene.publish(&messages).await;
    let mut host = scene.host(&[], &[("HAPAX_SHUTDOWN_GRACE", grace)]);
    host.wait_until_ready();
    wait_until_it_sleeps(&scene, 1).await;
    (scene, host)
}

async fn wait_until_it_sleeps(scene: &Scene, wanted: i64) {
    const SLEEPING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let started = Instant::now();
    while scene.store.number(SLEEPING).await != wanted {
        assert!(started.elapsed() < LONG, "not {wanted} that sleep");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_beyond_the_grace_is_rolled_back_and_nothing_is_charged() {
    let (scene, host) = busy("", "500ms").await;
    host.terminate();
    let said = host.wait_well();
    assert!(said.contains("still running after the grace"), "{said}");
    // Its connection is closed: the server ends what ran there.
    wait_until_it_sleeps(&scene, 0).await;
    assert_eq!(scene.store.number("SELECT count(*) FROM effects").await, 0);
    assert_eq!(scene.count("attempts", "true").await, 0);
    assert_eq!(scene.count("dead_letters", "true").await, 0);
    assert_eq!(scene.pending().await, 21);
    // What was not begun is there at once, not only after the ack wait.
    let mut next = scene.host(&[], &[("HAPAX_SHUTDOWN_GRACE", "0s")]);
    next.wait_until_ready();
    next.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once() {
    for second in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let (scene, mut host) = busy("", "10m").await;
        host.terminate();
        host.wait_for_line("draining");
        host.signal(second);
        let (status, said) = host.wait();
        assert_eq!(status.code(), Some(1), "{said}");
        wait_until_it_sleeps(&scene, 0).await;
        assert_eq!(scene.store.number("SELECT count(*) FROM effects").await, 0);
        assert_eq!(scene.count("attempts", "true").await, 0);
        assert_eq!(scene.pending().await, 21);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_begun_goes_back_at_once_and_uncharged() {
    let (scene, mut host) = busy("", "10m").await;
    host.terminate();
    host.wait_for_line("draining");
    // The host still has its first message, and would keep what it holds; all others can be fetched by anybody.
    let url = scene.nats.as_ref().unwrap().url();
    let jetstream = async_nats::jetstream::new(async_nats::connect(url).await.unwrap());
    let consumer: async_nats::jetstream::consumer::PullConsumer = jetstream
        .get_consumer_from_stream("subject", "MESSAGES")
        .await
        .unwrap();
    let started = Instant::now();
    let mut came = HashSet::new();
    while came.len() < 20 {
        assert!(started.elapsed() < LONG, "only {came:?} came");
        let mut batch = consumer
            .batch()
            .max_messages(20)
            .expires(Duration::from_secs(1))
            .messages()
            .await
            .unwrap();
        while let Some(Ok(message)) = batch.next().await {
            let id = message
                .headers
                .as_ref()
                .unwrap()
                .get("Message-Id")
                .unwrap()
                .to_string();
            assert_ne!(id, "long");
            came.insert(id);
        }
    }
    assert_eq!(scene.count("attempts", "true").await, 0);
    wait_until_it_sleeps(&scene, 1).await;
    host.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn systemd_is_told_of_a_reload() {
    let scene = Scene::new(StoreKind::Sqlite, SourceSort::Queue, &script(), TABLES, "").await;
    let mut supervisor = Supervisor::at_path();
    let name = supervisor.name.clone();
    let host = scene.host(&[], &[("NOTIFY_SOCKET", &name)]);
    supervisor.wait_for(|line| line == "READY=1");
    for _ in 0..2 {
        host.signal(rustix::process::Signal::HUP);
        let line = supervisor.wait_for(|line| line.starts_with("MONOTONIC_USEC="));
        assert!(line["MONOTONIC_USEC=".len()..].parse::<u64>().unwrap() > 0);
        assert!(supervisor.said.last().unwrap().starts_with("RELOADING=1\n"));
        supervisor.wait_for(|line| line == "READY=1");
    }
    host.terminate();
    host.wait_well();
}
