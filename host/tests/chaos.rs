//! Everything breaks, all the time, at random from a seed; in the end each message has taken effect once.
//!
//! `cargo xtask chaos --seed N --seconds S` runs `chaos_on_postgres_with_jetstream` with `HAPAX_CHAOS_SEED` and `HAPAX_CHAOS_SECONDS`. The seed
//! gives the schedule of faults; when the operating system lets who run, it does not.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may stop at once, and prints its seed and its ledger"
)]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hapax::store::StoreKind;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::Signal;
use serde_json::json;
use support::host::Host;
use support::proxy::{Loss, Proxy, Upstream};
use support::scene::{Scene, SourceSort, TestMessage, script};

const ACCOUNTS: u64 = 20;
const TABLES: &str = "CREATE TABLE effects (id text NOT NULL);\n\
                      CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);";
const HANDLER: &str =
    "lanes = 2\nbatch = { max = 20 }\nretry = { attempts = 10, backoff = \"10ms..100ms\" }";
/// Once nothing breaks any more: for how long nothing may be settled before the rest is taken for stuck. Longer than any wait of a host's.
const STUCK_AFTER: Duration = Duration::from_secs(120);
/// The sender waits while the stream holds more than so many copies, so that a long run ends as soon as a short one.
const WAITING_MAX: u64 = 5_000;
/// After how many messages the sender looks at what waits.
const LOOK_EVERY: u64 = 50;

/// What is done to the hosts, the database, the broker and the ways between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    HostKilled,
    HostStopped,
    HostRestarted,
    DatabaseRestartedFast,
    DatabaseRestartedAtOnce,
    BackendsTerminated,
    BrokerKilled,
    CommitRepliesLost,
    CommitsLost,
    AcksLost,
    DeliveriesLost,
    DatabaseCut,
    BrokerCut,
    DatabaseHalfClosed,
    BrokerHalfClosed,
    DatabaseSlow,
    DatabaseStalled,
    BrokerStalled,
}

const FAULTS: [Fault; 18] = [
    Fault::HostKilled,
    Fault::HostStopped,
    Fault::HostRestarted,
    Fault::DatabaseRestartedFast,
    Fault::DatabaseRestartedAtOnce,
    Fault::BackendsTerminated,
    Fault::BrokerKilled,
    Fault::CommitRepliesLost,
    Fault::CommitsLost,
    Fault::AcksLost,
    Fault::DeliveriesLost,
    Fault::DatabaseCut,
    Fault::BrokerCut,
    Fault::DatabaseHalfClosed,
    Fault::BrokerHalfClosed,
    Fault::DatabaseSlow,
    Fault::DatabaseStalled,
    Fault::BrokerStalled,
];

/// The message `n`: a row without a key, and two accounts in an order that differs from message to message.
fn message(n: u64) -> TestMessage {
    let (a, b) = (n * 7 % ACCOUNTS, (n * 13 + 5) % ACCOUNTS);
    let credit = |account: u64| {
        json!({
            "execute": "UPDATE accounts SET balance = balance + 1 WHERE id = $1",
            "params": [{ "int64": account }], "expect_count": 1,
        })
    };
    TestMessage::new(
        format!("m-{n}"),
        &json!({ "steps": [
            { "execute": "INSERT INTO effects (id) VALUES ($1)", "params": [{ "message": "id" }] },
            credit(a), credit(b),
        ] }),
    )
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Sends messages, some of them twice or three times, until it is told to stop. Returns how many different ones.
fn send_all_the_time(
    url: String,
    seed: u64,
    stop: Arc<AtomicBool>,
    copies: Arc<AtomicU64>,
    waiting: Arc<AtomicU64>,
) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let mut random = StdRng::seed_from_u64(seed);
            let client = async_nats::ConnectOptions::new()
                .retry_on_initial_connect()
                .connect(url)
                .await
                .unwrap();
            let jetstream = async_nats::jetstream::new(client);
            let mut sent = 0;
            while !stop.load(Ordering::SeqCst) {
                let message = message(sent);
                let mut left = random.random_range(1..=3_u32);
                while left > 0 {
                    let mut headers = async_nats::HeaderMap::new();
                    headers.insert("Message-Id", message.id.as_deref().unwrap());
                    let payload = message.payload.clone().into();
                    let sent = jetstream
                        .publish_with_headers("messages.test", headers, payload)
                        .await;
                    // One that was not confirmed is sent again; it may be a copy more.
                    let is_stored = match sent {
                        Ok(ack) => ack.await.is_ok(),
                        Err(_) => false,
                    };
                    if is_stored {
                        left -= 1;
                        copies.fetch_add(1, Ordering::SeqCst);
                    } else {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
                sent += 1;
                while sent % LOOK_EVERY == 0 && !stop.load(Ordering::SeqCst) {
                    // While the broker is away nothing is known.
                    if let Some(left) = waiting_of(&jetstream).await {
                        waiting.store(left, Ordering::SeqCst);
                        if left <= WAITING_MAX {
                            break;
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            sent
        })
    })
}

/// How many copies wait in the stream or in hands; nothing while the broker does not answer.
async fn waiting_of(jetstream: &async_nats::jetstream::Context) -> Option<u64> {
    let mut consumer: async_nats::jetstream::consumer::PullConsumer = jetstream
        .get_consumer_from_stream("subject", "MESSAGES")
        .await
        .ok()?;
    let info = consumer.info().await.ok()?;
    Some(info.num_pending + info.num_ack_pending as u64)
}

struct Chaos {
    scene: Scene,
    database: Proxy,
    broker: Option<Proxy>,
    variables: Vec<(String, String)>,
    hosts: Vec<Host>,
    random: StdRng,
    applied: BTreeMap<Fault, u64>,
}

impl Chaos {
    fn start_host(&self) -> Host {
        let variables: Vec<(&str, &str)> = self
            .variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        self.scene.host(&[], &variables)
    }

    fn some_host(&mut self) -> usize {
        self.random.random_range(0..self.hosts.len())
    }

    async fn pause(&mut self, milliseconds: std::ops::Range<u64>) {
        let pause = Duration::from_millis(self.random.random_range(milliseconds));
        tokio::time::sleep(pause).await;
    }

    /// Arms a loss and waits until it has met something. Returns what it met.
    async fn lose(proxy: &Proxy, loss: Loss, count: u64) -> u64 {
        let before = proxy.lost(loss);
        proxy.lose(loss, count);
        let started = Instant::now();
        while proxy.lost(loss) - before < count && started.elapsed() < Duration::from_secs(10) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        proxy.lose(loss, 0);
        proxy.lost(loss) - before
    }

    /// Returns how often it took effect.
    async fn apply(&mut self, fault: Fault) -> u64 {
        let broker = self.broker.as_ref().unwrap();
        match fault {
            Fault::HostKilled => {
                let host = self.some_host();
                self.hosts[host].kill();
                let new = self.start_host();
                std::mem::replace(&mut self.hosts[host], new).wait();
                1
            }
            Fault::HostStopped => {
                // Beyond the ack wait, so that its messages go to others meanwhile.
                let host = self.some_host();
                self.hosts[host].signal(Signal::STOP);
                self.pause(2_500..3_500).await;
                self.hosts[host].signal(Signal::CONT);
                1
            }
            Fault::HostRestarted => {
                let host = self.some_host();
                self.hosts[host].terminate();
                let new = self.start_host();
                let (status, said) = std::mem::replace(&mut self.hosts[host], new).wait();
                // While the database is away a host may not be done within its grace.
                assert!(status.code().is_some(), "{status}; the host said:\n{said}");
                1
            }
            Fault::DatabaseRestartedFast => {
                self.scene.store.postgres.as_mut().unwrap().stop_fast();
                self.pause(0..1_000).await;
                self.scene.store.postgres.as_mut().unwrap().restart();
                1
            }
            Fault::DatabaseRestartedAtOnce => {
                self.scene.store.postgres.as_mut().unwrap().restart();
                1
            }
            Fault::BackendsTerminated => {
                let ended = "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                             WHERE application_name LIKE 'hapax%') AS ended";
                self.scene.store.number(ended).await.unsigned_abs()
            }
            Fault::BrokerKilled => {
                self.scene.nats.as_mut().unwrap().kill();
                self.pause(0..1_000).await;
                self.scene.nats.as_mut().unwrap().restart();
                1
            }
            Fault::CommitRepliesLost => Self::lose(&self.database, Loss::CommitReply, 3).await,
            Fault::CommitsLost => Self::lose(&self.database, Loss::Commit, 3).await,
            Fault::AcksLost => Self::lose(broker, Loss::Ack, 20).await,
            Fault::DeliveriesLost => Self::lose(broker, Loss::Delivery, 20).await,
            Fault::DatabaseCut => self.database.cut(),
            Fault::BrokerCut => broker.cut(),
            Fault::DatabaseHalfClosed => self.database.half_close(),
            Fault::BrokerHalfClosed => broker.half_close(),
            Fault::DatabaseSlow => {
                self.database.delay(Duration::from_millis(20));
                self.pause(500..1_500).await;
                self.database.delay(Duration::ZERO);
                1
            }
            Fault::DatabaseStalled => {
                self.database.stall(true);
                self.pause(500..3_000).await;
                self.database.stall(false);
                1
            }
            Fault::BrokerStalled => {
                broker.stall(true);
                self.pause(500..3_000).await;
                self.broker.as_ref().unwrap().stall(false);
                1
            }
        }
    }

    fn ledger(&self) -> String {
        let mut text = String::from("faults applied:\n");
        for fault in FAULTS {
            let count = self.applied.get(&fault).copied().unwrap_or(0);
            writeln!(text, "  {:<26} {count:>5}", format!("{fault:?}")).unwrap();
        }
        text
    }
}

#[tokio::test]
async fn chaos_on_postgres_with_jetstream() {
    let seed = variable("HAPAX_CHAOS_SEED").unwrap_or_else(rand::random);
    let full = std::env::var_os("HAPAX_TEST_FULL").is_some();
    let seconds = variable("HAPAX_CHAOS_SECONDS").unwrap_or(if full { 1_200 } else { 60 });
    let hosts = usize::try_from(variable("HAPAX_CHAOS_HOSTS").unwrap_or(2)).unwrap();
    println!("seed {seed}, {seconds} s, {hosts} hosts");

    let mut scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::JetStream,
        &script(),
        TABLES,
        HANDLER,
    )
    .await;
    let postgres = scene.store.postgres.as_ref().unwrap();
    let database = Proxy::start(Upstream::Postgres(postgres.socket()));
    let store_url = postgres.url_through(database.port(), &scene.store.url);
    let nats = scene.nats.as_mut().unwrap();
    let nats_url = nats.url();
    let port = nats_url.rsplit(':').next().unwrap().parse().unwrap();
    let broker = Proxy::start(Upstream::Nats(port));
    let variables = vec![
        ("HAPAX_STORE__URL".to_owned(), store_url),
        (
            "HAPAX_SOURCES__MESSAGES__URL".to_owned(),
            format!("nats://127.0.0.1:{}", broker.port()),
        ),
    ];
    let mut chaos = Chaos {
        scene,
        database,
        broker: Some(broker),
        variables,
        hosts: Vec::new(),
        random: StdRng::seed_from_u64(seed),
        applied: BTreeMap::new(),
    };
    let mut first = chaos.start_host();
    first.wait_until_ready();
    let fill = format!(
        "INSERT INTO accounts SELECT n, 0 FROM generate_series(0, {}) n",
        ACCOUNTS - 1
    );
    chaos.scene.store.run(&fill).await;
    chaos.hosts.push(first);
    for _ in 1..hosts {
        chaos.hosts.push(chaos.start_host());
    }
    let stop = Arc::new(AtomicBool::new(false));
    let copies = Arc::new(AtomicU64::new(0));
    let waiting = Arc::new(AtomicU64::new(0));
    let sender = send_all_the_time(
        nats_url,
        seed,
        Arc::clone(&stop),
        Arc::clone(&copies),
        Arc::clone(&waiting),
    );

    // All kinds in turn, in an order of its own each time; at least one round, however slow the machine is.
    let started = Instant::now();
    let length = Duration::from_secs(seconds);
    let mut rounds = 0;
    'all: loop {
        let mut faults = FAULTS;
        faults.shuffle(&mut chaos.random);
        for fault in faults {
            if rounds > 0 && started.elapsed() >= length {
                break 'all;
            }
            let count = chaos.apply(fault).await;
            *chaos.applied.entry(fault).or_default() += count;
            chaos.pause(50..600).await;
            for index in 0..chaos.hosts.len() {
                if chaos.hosts[index].has_ended() {
                    let new = chaos.start_host();
                    let (status, said) = std::mem::replace(&mut chaos.hosts[index], new).wait();
                    panic!(
                        "seed {seed}: a host ended by itself after {fault:?}: {status}; it said:\n{said}"
                    );
                }
            }
        }
        rounds += 1;
        if full || seconds > 120 {
            eprintln!(
                "{:>5} s of {seconds}, {rounds} rounds, {} copies sent, {} wait",
                started.elapsed().as_secs(),
                copies.load(Ordering::SeqCst),
                waiting.load(Ordering::SeqCst)
            );
        }
    }

    // Nothing breaks any more: everything comes to rest.
    chaos.database.calm();
    chaos.broker.as_ref().unwrap().calm();
    stop.store(true, Ordering::SeqCst);
    let sent = tokio::task::spawn_blocking(|| sender.join().unwrap())
        .await
        .unwrap();
    let carried = "SELECT count(*) FROM hapax.queue";
    let (mut least, mut since) = (u64::MAX, Instant::now());
    let calm = Instant::now();
    loop {
        let left =
            chaos.scene.pending().await + chaos.scene.store.number(carried).await.unsigned_abs();
        if left == 0 {
            break;
        }
        if left < least {
            (least, since) = (left, Instant::now());
        }
        assert!(
            since.elapsed() < STUCK_AFTER,
            "seed {seed}: {left} messages are stuck\n{}",
            chaos.ledger()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("at rest after {:?}", calm.elapsed());
    for host in std::mem::take(&mut chaos.hosts) {
        host.terminate();
        host.wait_well();
    }

    let store = &chaos.scene.store;
    let number = async |sql: &str| store.number(sql).await;
    let effects = number("SELECT count(DISTINCT id) FROM effects")
        .await
        .unsigned_abs();
    let twice = number("SELECT count(*) - count(DISTINCT id) FROM effects").await;
    let dead = number("SELECT count(*) FROM hapax.dead_letters").await;
    let charged = number("SELECT coalesce(sum(retried), 0)::bigint FROM hapax.counters").await;
    let balance = number("SELECT sum(balance)::bigint FROM accounts").await;
    let lost = sent - effects.min(sent);
    println!(
        "{}messages {sent}, copies {}, lost {lost}, twice {twice}, stuck 0, dead {dead}, charged {charged}",
        chaos.ledger(),
        copies.load(Ordering::SeqCst)
    );
    assert_eq!(
        (lost, twice, dead),
        (0, 0, 0),
        "seed {seed}\n{}",
        chaos.ledger()
    );
    assert_eq!(balance.unsigned_abs(), 2 * sent, "seed {seed}");
    for fault in FAULTS {
        assert!(
            chaos.applied.get(&fault).is_some_and(|count| *count > 0),
            "seed {seed}: {fault:?} never took effect\n{}",
            chaos.ledger()
        );
    }
}

/// Hosts on one file: killed, and stopped for longer than others wait for them.
#[tokio::test]
async fn chaos_on_sqlite_with_the_queue() {
    let seed = variable("HAPAX_CHAOS_SEED").unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let scene = Scene::new(
        StoreKind::Sqlite,
        SourceSort::Queue,
        &script(),
        TABLES,
        "batch = { max = 5 }\nretry = { attempts = 10, backoff = \"10ms\" }",
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let mut sent: u64 = 0;
    let (mut kills, mut stops) = (0, 0);
    let mut hosts = vec![scene.host(&[], &[]), scene.host(&[], &[])];
    for host in &mut hosts {
        host.wait_until_ready();
    }
    for account in 0..ACCOUNTS {
        scene
            .store
            .run(&format!("INSERT INTO accounts VALUES ({account}, 0)"))
            .await;
    }
    for round in 0..12 {
        let messages: Vec<TestMessage> = (sent..sent + 50)
            .flat_map(|n| std::iter::repeat_n(message(n), random.random_range(1..=2)))
            .collect();
        sent += 50;
        scene.publish(&messages).await;
        let host = random.random_range(0..hosts.len());
        if round % 3 == 2 {
            hosts[host].signal(Signal::STOP);
            let some = format!("SELECT count(*) FROM {}", scene.store.table("queue"));
            // The other one goes on, unless the stopped one has the write lock: then nobody can.
            let started = Instant::now();
            while scene.store.number(&some).await > 0 && started.elapsed() < Duration::from_secs(1)
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            hosts[host].signal(Signal::CONT);
            stops += 1;
        } else {
            hosts[host].kill();
            let new = scene.host(&[], &[]);
            std::mem::replace(&mut hosts[host], new).wait();
            kills += 1;
        }
    }
    scene.wait_until_nothing_pends().await;
    for host in hosts {
        host.terminate();
        host.wait_well();
    }
    let number = async |sql: &str| scene.store.number(sql).await;
    let effects = number("SELECT count(DISTINCT id) FROM effects")
        .await
        .unsigned_abs();
    let twice = number("SELECT count(*) - count(DISTINCT id) FROM effects").await;
    let dead = scene.count("dead_letters", "1 = 1").await;
    println!(
        "kills {kills}, stops {stops}, messages {sent}, lost {}, twice {twice}, dead {dead}",
        sent - effects
    );
    assert_eq!((sent - effects, twice, dead), (0, 0, 0), "seed {seed}");
    let balance = number("SELECT sum(balance) FROM accounts").await;
    assert_eq!(balance.unsigned_abs(), 2 * sent, "seed {seed}");
}
