//! What handlers publish leaves after the commit: under the same ids in every run, nothing missing, in the order of each key, through
//! deaths of hosts at every point and on any number of them.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use hapax::store::StoreKind;
use serde_json::{Value, json};
use support::host::run_with;
use support::nats::Nats;
use support::scene::{Scene, SourceSort, TestMessage, script};

const TABLES: &str = "CREATE TABLE effects (id text NOT NULL);";
const STREAM: &str = "OUT";

/// The broker that messages leave for, with a stream that takes `out.*`, and a record of all that was published, duplicates too.
struct Receiver {
    nats: Nats,
    client: async_nats::Client,
    raw: async_nats::Subscriber,
}

impl Receiver {
    async fn start() -> Self {
        let nats = Nats::start();
        let client = async_nats::connect(nats.url()).await.unwrap();
        let raw = client.subscribe("out.>").await.unwrap();
        client.flush().await.unwrap();
        let receiver = Self { nats, client, raw };
        receiver.add_stream(STREAM, "out.*").await;
        receiver
    }

    async fn add_stream(&self, name: &str, subject: &str) {
        async_nats::jetstream::new(self.client.clone())
            .create_stream(async_nats::jetstream::stream::Config {
                name: name.into(),
                subjects: vec![subject.into()],
                ..Default::default()
            })
            .await
            .unwrap();
    }

    /// The lines of a handler's table and of the target that it publishes to.
    fn target(&self) -> String {
        format!(
            "target = \"out\"\n\n[targets.out]\nkind = \"jetstream\"\nurl = \"{}\"\n",
            self.nats.url()
        )
    }

    async fn stored(&self) -> u64 {
        let mut stream = async_nats::jetstream::new(self.client.clone())
            .get_stream(STREAM)
            .await
            .unwrap();
        stream.info().await.unwrap().state.messages
    }

    async fn wait_for_stored(&self, at_least: u64) {
        let started = Instant::now();
        while self.stored().await < at_least {
            assert!(
                started.elapsed() < Duration::from_secs(120),
                "{} of {at_least} messages came",
                self.stored().await
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// All messages of the stream in its order: id, key and number.
    async fn messages(&self) -> Vec<(String, Value)> {
        let stream = async_nats::jetstream::new(self.client.clone())
            .get_stream(STREAM)
            .await
            .unwrap();
        let consumer = stream
            .create_consumer(async_nats::jetstream::consumer::pull::Config {
                ack_policy: async_nats::jetstream::consumer::AckPolicy::None,
                ..Default::default()
            })
            .await
            .unwrap();
        let stored = usize::try_from(self.stored().await).unwrap();
        let mut messages = consumer
            .fetch()
            .max_messages(stored)
            .expires(Duration::from_secs(60))
            .messages()
            .await
            .unwrap();
        let mut all = Vec::new();
        while all.len() < stored {
            let message = messages.next().await.unwrap().unwrap();
            let id = message
                .headers
                .as_ref()
                .unwrap()
                .get("Nats-Msg-Id")
                .unwrap()
                .to_string();
            all.push((id, serde_json::from_slice(&message.payload).unwrap()));
        }
        all
    }

    /// The ids of everything that was published since the last call, each as often as it was.
    async fn published(&mut self) -> Vec<String> {
        // Whatever the server has taken before this one comes before it.
        self.client
            .publish("out.end.of.it", "".into())
            .await
            .unwrap();
        let mut ids = Vec::new();
        loop {
            let message = self.raw.next().await.unwrap();
            if message.subject.as_str() == "out.end.of.it" {
                return ids;
            }
            ids.push(
                message
                    .headers
                    .unwrap()
                    .get("Nats-Msg-Id")
                    .unwrap()
                    .to_string(),
            );
        }
    }
}

/// A message whose handler writes a row and publishes three: two of one key, one without.
fn publishing(id: &str) -> TestMessage {
    let publish = |n: u32, key: Option<&str>| {
        json!({ "publish": {
            "subject": "out.thing", "key": key, "content_type": "application/json",
            "headers": [["n", n.to_string()]], "payload": json!({ "of": id, "n": n }).to_string(),
        } })
    };
    TestMessage::new(
        id,
        &json!({ "steps": [
            { "execute": "INSERT INTO effects (id) VALUES ($1)", "params": [{ "message": "id" }] },
            publish(1, Some("a")), publish(2, None), publish(3, Some("a")),
        ] }),
    )
}

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

/// A payload in the database's own words.
fn bytes(scene: &Scene, text: &str) -> String {
    match scene.store.kind() {
        StoreKind::Postgres => format!("'{text}'"),
        StoreKind::Sqlite => format!("CAST('{text}' AS BLOB)"),
    }
}

/// Rows as another transaction of the handler's may leave them.
fn insert(scene: &Scene, id: &str, key: Option<&str>, subject: &str) -> String {
    let table = scene.store.table("outbox");
    let key = key.map_or("NULL".to_owned(), |key| format!("'{key}'"));
    format!(
        "INSERT INTO {table} (id, consumer, message_id, ordinal, target, subject, key, headers, payload) \
         VALUES ('{id}', 'subject', '{id}', 0, 'out', '{subject}', {key}, '[]', {})",
        bytes(scene, "{}")
    )
}

#[tokio::test]
async fn a_transaction_that_commits_late_is_not_passed_over_and_delays_nobody() {
    let receiver = Receiver::start().await;
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &script(),
        TABLES,
        &receiver.target(),
    )
    .await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    // An early one that stays open; it has the smaller number and, in a second transaction, the same key as a later one.
    let mut early = scene.store.probe().await;
    early
        .run(&format!(
            "BEGIN; {}",
            insert(&scene, "early", Some("k"), "out.a")
        ))
        .await;
    let mut locked = scene.store.probe().await;
    let mut later = scene.store.probe().await;
    later
        .run(&insert(&scene, "locked", None, "out.missing"))
        .await;
    let table = scene.store.table("outbox");
    locked
        .run(&format!(
            "BEGIN; SELECT 1 FROM {table} WHERE id = 'locked' FOR UPDATE"
        ))
        .await;
    for id in ["one", "two", "three"] {
        later
            .run(&insert(&scene, id, (id != "one").then_some("k"), "out.a"))
            .await;
    }
    receiver.wait_for_stored(3).await;
    early.run("COMMIT").await;
    locked.run("ROLLBACK").await;
    receiver.wait_for_stored(5).await;
    let ids: Vec<String> = receiver
        .messages()
        .await
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    assert!(
        ids[3..].contains(&"early".to_owned()) && ids[3..].contains(&"locked".to_owned()),
        "{ids:?}"
    );
    host.terminate();
    host.wait_well();
}

/// 50 keys with 50 rows each, two hosts, one of which is killed and started again and again.
async fn keys_keep_their_order(kind: StoreKind, rounds: usize) {
    const KEYS: i64 = 50;
    const ROWS: i64 = 50;
    let receiver = Receiver::start().await;
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        TABLES,
        &format!("{}\n[outbox]\nbatch = 60\n", receiver.target()),
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let mut sql = String::from("BEGIN; ");
    let table = scene.store.table("outbox");
    for n in 0..KEYS * ROWS {
        let (key, row) = (n % KEYS, n / KEYS);
        let payload = bytes(&scene, &json!({ "key": key, "row": row }).to_string());
        sql.push_str(&format!(
            "INSERT INTO {table} (id, consumer, message_id, ordinal, target, subject, key, headers, payload) \
             VALUES ('{key}-{row}', 'subject', '{n}', 0, 'out', 'out.a', 'k{key}', '[]', {payload}); "
        ));
    }
    sql.push_str("COMMIT");
    scene.store.probe().await.run(&sql).await;

    let mut steady = scene.host(&[], &[]);
    steady.wait_until_ready();
    let all = (KEYS * ROWS) as u64;
    for round in 1..=rounds {
        let dying = scene.host(&[], &[("HAPAX_FAULT_POINT", "relay-before-mark:2")]);
        let wanted = all * round as u64 / (rounds as u64 + 1);
        receiver.wait_for_stored(wanted).await;
        // It may have killed itself already.
        dying.kill();
        dying.wait();
    }
    receiver.wait_for_stored(all).await;
    steady.terminate();
    steady.wait_well();

    let mut next: BTreeMap<i64, i64> = BTreeMap::new();
    for (_, body) in receiver.messages().await {
        let (key, row) = (body["key"].as_i64().unwrap(), body["row"].as_i64().unwrap());
        let expected = next.entry(key).or_insert(0);
        assert_eq!(row, *expected, "key {key}");
        *expected += 1;
    }
    assert!(next.len() as i64 == KEYS && next.values().all(|count| *count == ROWS));
    assert_eq!(receiver.stored().await, all);
}

#[tokio::test]
async fn keys_keep_their_order_on_postgres() {
    keys_keep_their_order(StoreKind::Postgres, 4).await;
}

#[tokio::test]
async fn keys_keep_their_order_on_sqlite() {
    keys_keep_their_order(StoreKind::Sqlite, 2).await;
}

/// A row that no stream takes waits and holds its key, and nobody else's; then it is parked and its key goes on.
async fn a_failing_row_holds_only_its_key(kind: StoreKind) {
    let receiver = Receiver::start().await;
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        TABLES,
        &format!(
            "{}\n[outbox]\nretry = {{ attempts = 3, backoff = \"1h\" }}\n",
            receiver.target()
        ),
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let mut probe = scene.store.probe().await;
    for (id, key, subject) in [
        ("1", Some("k"), "lost.a"),
        ("2", Some("k"), "out.a"),
        ("3", Some("other"), "out.a"),
        ("4", None, "out.a"),
        // Never can be.
        ("5", Some("other"), "out.*"),
        ("6", Some("other"), "out.a"),
    ] {
        probe.run(&insert(&scene, id, key, subject)).await;
    }
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    receiver.wait_for_stored(3).await;
    let state = |id: &'static str| {
        let scene = &scene;
        async move {
            let table = scene.store.table("outbox");
            let sql = format!(
                "SELECT CAST(CASE WHEN published_at IS NOT NULL THEN 1 WHEN parked_at IS NOT NULL THEN 2 ELSE 3 END AS bigint) FROM {table} \
                 WHERE id = '{id}'"
            );
            scene.store.number(&sql).await
        }
    };
    let table = scene.store.table("outbox");
    let attempts =
        |n: i64| format!("SELECT count(*) FROM {table} WHERE id = '1' AND attempts = {n}");
    probe.wait_for(&attempts(1), 1).await;
    probe
        .wait_for(
            &format!("SELECT count(*) FROM {table} WHERE published_at IS NOT NULL"),
            3,
        )
        .await;
    assert_eq!(
        (
            state("1").await,
            state("2").await,
            state("5").await,
            state("6").await
        ),
        (3, 3, 2, 1)
    );
    // Its time comes twice more.
    for n in [2, 3] {
        probe
            .run(&format!(
                "UPDATE {table} SET due_at = created_at WHERE id = '1'"
            ))
            .await;
        probe.wait_for(&attempts(n), 1).await;
    }
    receiver.wait_for_stored(4).await;
    assert_eq!(state("1").await, 2);

    let hapax = |arguments: &[&str]| run_with(scene.folder(), arguments, &[], b"");
    let listed = hapax(&["outbox", "list", "--state", "parked", "--json"]);
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    let parked = listed["messages"].as_array().unwrap();
    assert_eq!(parked.len(), 2);
    assert_eq!(parked[1]["error"], "no stream takes subject `lost.a`");
    assert!(
        parked[0]["error"]
            .as_str()
            .unwrap()
            .contains("`out.*` is a pattern"),
        "{}",
        parked[0]
    );
    let status = scene.status();
    assert_eq!(
        (
            &status["outbox"]["parked"],
            &status["outbox"]["unpublished"]
        ),
        (&json!(2), &json!(0))
    );
    let text = hapax(&["status"]);
    assert!(
        text.err
            .contains("2 messages of `subject` could not be published and are parked"),
        "{}",
        text.err
    );

    // Once a stream takes it, it leaves.
    receiver.add_stream("LOST", "lost.>").await;
    let number = parked[1]["number"].to_string();
    let republished = hapax(&["outbox", "republish", &number]);
    assert_eq!(
        (republished.out.as_str(), republished.status.code()),
        ("republished 1 message\n", Some(0))
    );
    probe
        .wait_for(
            &format!("SELECT count(*) FROM {table} WHERE id = '1' AND published_at IS NOT NULL"),
            1,
        )
        .await;
    let shown = hapax(&["outbox", "show", &number]);
    assert!(
        shown.out.contains("state       published") && shown.out.contains("subject     lost.a"),
        "{}",
        shown.out
    );

    let other = parked[0]["number"].to_string();
    let asked = hapax(&["outbox", "drop", &other]);
    assert_eq!(asked.status.code(), Some(2), "{}", asked.err);
    assert!(asked.err.contains("hint: say `--yes`"), "{}", asked.err);
    assert_eq!(
        hapax(&["outbox", "drop", "--yes", &other]).out,
        "dropped 1 message\n"
    );
    let again = hapax(&["outbox", "drop", "--yes", &other]);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        again
            .err
            .contains(&format!("there is no message {other} in the outbox")),
        "{}",
        again.err
    );
    let nothing = hapax(&["outbox", "list", "--state", "parked"]);
    assert_eq!(nothing.out, "no messages in the outbox\n");
    host.terminate();
    host.wait_well();
}

#[tokio::test]
async fn a_failing_row_holds_only_its_key_on_postgres() {
    a_failing_row_holds_only_its_key(StoreKind::Postgres).await;
}

#[tokio::test]
async fn a_failing_row_holds_only_its_key_on_sqlite() {
    a_failing_row_holds_only_its_key(StoreKind::Sqlite).await;
}

/// A subject that no stream takes but somebody listens to: nobody says that it was not stored, and yet nobody else waits for it.
#[tokio::test]
async fn a_subject_with_listeners_and_no_stream_is_found() {
    let receiver = Receiver::start().await;
    let _listener = receiver.client.subscribe("lost.>").await.unwrap();
    receiver.client.flush().await.unwrap();
    let scene = Scene::new(
        StoreKind::Sqlite,
        SourceSort::Queue,
        &script(),
        TABLES,
        &format!(
            "{}\n[outbox]\nretry = {{ attempts = 1 }}\n",
            receiver.target()
        ),
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let mut probe = scene.store.probe().await;
    probe.run(&insert(&scene, "1", None, "lost.a")).await;
    probe.run(&insert(&scene, "2", None, "out.a")).await;
    scene.run_until_idle();
    assert_eq!(receiver.stored().await, 1);
    let table = scene.store.table("outbox");
    let error = format!("SELECT error FROM {table} WHERE id = '1' AND parked_at IS NOT NULL");
    assert_eq!(
        scene.store.text(&error).await.as_deref(),
        Some("no stream takes subject `lost.a`")
    );
}

/// While the broker is away nothing is charged, and messages take effect as before.
#[tokio::test]
async fn a_target_that_is_away_charges_nobody() {
    let mut receiver = Receiver::start().await;
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &script(),
        TABLES,
        &receiver.target(),
    )
    .await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    receiver.nats.kill();
    scene.publish(&[publishing("m1"), publishing("m2")]).await;
    let mut probe = scene.store.probe().await;
    probe.wait_for("SELECT count(*) FROM effects", 2).await;
    host.wait_for_line("the target is away");
    assert_eq!(
        scene
            .count(
                "outbox",
                "published_at IS NULL AND attempts = 0 AND parked_at IS NULL"
            )
            .await,
        6
    );
    receiver.nats.restart();
    host.wait_for_line("the target can be reached again");
    receiver.wait_for_stored(6).await;
    host.terminate();
    host.wait_well();
}

/// Nothing leaves before its time; what has left goes after a while.
async fn times(kind: StoreKind) {
    let receiver = Receiver::start().await;
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        TABLES,
        &format!("{}\n[outbox]\nkeep = \"0s\"\n", receiver.target()),
    )
    .await;
    let far = json!({ "seconds": 4_102_444_800_i64, "nanoseconds": 0 });
    let publish = |key: Option<&str>, not_before: Option<&Value>| json!({ "publish": { "subject": "out.a", "key": key, "payload": "{}", "not_before": not_before } });
    scene
        .publish(&[TestMessage::new(
            "m",
            &json!({ "steps": [publish(None, Some(&far)), publish(Some("k"), Some(&far)), publish(Some("k"), None), publish(None, None)] }),
        )])
        .await;
    // What is for later is for a later start.
    scene.run_until_idle();
    assert_eq!(receiver.stored().await, 1);
    assert_eq!(scene.count("outbox", "published_at IS NULL").await, 3);
    assert_eq!(scene.status()["outbox"]["unpublished"], 3);
    let table = scene.store.table("outbox");
    scene
        .store
        .run(&format!("UPDATE {table} SET due_at = created_at"))
        .await;
    scene.run_until_idle();
    assert_eq!(receiver.stored().await, 4);
    // Each start looks for what may go.
    scene.run_until_idle();
    assert_eq!(scene.count("outbox", "1 = 1").await, 0);
}

#[tokio::test]
async fn times_on_postgres() {
    times(StoreKind::Postgres).await;
}

#[tokio::test]
async fn times_on_sqlite() {
    times(StoreKind::Sqlite).await;
}

/// A backlog is found by index: the table is never read as a whole, and rows behind a waiting one are not read again and again.
#[tokio::test]
async fn a_backlog_is_drained_by_index() {
    let rows = if std::env::var_os("HAPAX_TEST_FULL").is_some() {
        10_000_000
    } else {
        100_000
    };
    let receiver = Receiver::start().await;
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &script(),
        TABLES,
        &receiver.target(),
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let fill = |what: &str, count: i64, key: &str, due: &str| {
        format!(
            "INSERT INTO hapax.outbox (id, consumer, message_id, ordinal, target, subject, key, headers, payload, due_at, published_at) \
             SELECT '{what}-' || n, 'subject', 'm', 0, 'out', 'out.a', {key}, '[]', '{{}}', {due}, \
                 CASE WHEN '{what}' = 'gone' THEN now() END FROM generate_series(1, {count}) n"
        )
    };
    // Published ones, one key whose first row waits, and rows without a key.
    scene.store.run(&fill("gone", rows, "NULL", "now()")).await;
    scene
        .store
        .run(&fill(
            "behind",
            rows,
            "'k'",
            "now() + CASE WHEN n = 1 THEN interval '1 day' ELSE interval '0' END",
        ))
        .await;
    scene.store.run(&fill("free", 5_000, "NULL", "now()")).await;
    scene.store.run("ANALYZE hapax.outbox").await;
    let reads = "SELECT (SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'outbox') * 1000000000 \
                     + (SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'outbox_keys')";
    let before = scene.store.number(reads).await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    receiver.wait_for_stored(5_000).await;
    host.terminate();
    host.wait_well();
    // The statistics come with the end of the host's sessions: before they say what it read for certain, they say nothing.
    scene
        .store
        .probe()
        .await
        .wait_for(
            "SELECT count(*) FROM pg_stat_user_indexes WHERE indexrelname = 'outbox_due' AND idx_tup_read >= 5000",
            1,
        )
        .await;
    let read = scene.store.number(reads).await - before;
    assert!(
        read < 10_000,
        "{} scans, {} rows of keys read",
        read / 1_000_000_000,
        read % 1_000_000_000
    );
    assert_eq!(receiver.stored().await, 5_000);
}
