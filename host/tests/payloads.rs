//! Payloads, headers and ids of every kind: each message is processed or parked with a reason; never a loop, never a crash.
//! (Texts of errors, and payloads that are kept byte for byte, are in `traps/texts.rs`; texts that are not UTF-8 in `handler_hostile.rs`.)

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use hapax::store::StoreKind;
use serde_json::json;
use support::scene::{Scene, SourceSort, TestMessage, script};

const TABLES: &str = "CREATE TABLE effects (id TEXT NOT NULL)";

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its effect is there, once.
    Processed,
    /// It is a dead letter of this class.
    Parked(&'static str),
}
use Fate::{Parked, Processed};

/// A payload that leaves the effect `name`, of `size` bytes if that is more than it takes.
fn effect(name: &str, size: usize) -> Vec<u8> {
    let step =
        json!({ "execute": "INSERT INTO effects VALUES ($1)", "params": [{ "text": name }] });
    let mut payload = json!({ "steps": [step] }).to_string().into_bytes();
    payload.resize(payload.len().max(size), b' ');
    payload
}

/// Names, ids, payloads.
fn payloads() -> Vec<(&'static str, Option<String>, Vec<u8>, Fate)> {
    let own = |name: &str| Some(name.to_owned());
    vec![
        ("none", own("none"), Vec::new(), Parked("rejected")),
        ("one", own("one"), vec![0], Parked("rejected")),
        ("all", own("all"), (0..=255).collect(), Parked("rejected")),
        (
            "odd",
            own("odd"),
            b"{\"steps\":\"\xff\xc0\x80\"}".to_vec(),
            Parked("rejected"),
        ),
        (
            "half",
            own("half"),
            br#"{"steps":[{"reject":"\ud800"}]}"#.to_vec(),
            Parked("rejected"),
        ),
        ("1 MiB", own("1 MiB"), effect("1 MiB", 1 << 20), Processed),
        ("8 MiB", own("8 MiB"), effect("8 MiB", 8 << 20), Processed),
        (
            "long id",
            Some("i".repeat(1024)),
            effect("long id", 0),
            Processed,
        ),
        (
            "too long id",
            Some("i".repeat(4 << 10)),
            effect("too long id", 0),
            Parked("missing-id"),
        ),
        ("no id", None, effect("no id", 0), Parked("missing-id")),
    ]
}

/// Names and header blocks as they are on the wire.
fn headers() -> Vec<(&'static str, Vec<u8>, Fate)> {
    let with = |name: &str, first: &[u8], line: &[u8]| {
        let id = format!("\r\nMessage-Id: {name}\r\n").into_bytes();
        [first, &id, line, b"\r\n\r\n"].concat()
    };
    let plain = b"NATS/1.0";
    let many: Vec<u8> = (0..1_000)
        .flat_map(|n| format!("H-{n}: {n}\r\n").into_bytes())
        .collect();
    vec![
        (
            "1,000 headers",
            with("1,000 headers", plain, many.trim_ascii_end()),
            Processed,
        ),
        ("value", with("value", plain, b"Odd: \xff\xfe"), Processed),
        ("name", with("name", plain, b"\xff\xfe: x"), Processed),
        ("space", with("space", plain, b"a b: x"), Processed),
        ("line", with("line", plain, b"no colon"), Processed),
        (
            "control",
            with("control", plain, b"Odd: a\0\x01\x7fb"),
            Processed,
        ),
        (
            "status",
            with("status", b"NATS/1.0 503 No", b"A: b"),
            Processed,
        ),
        (
            "no status",
            with("no status", b"NATS/1.0 none", b"A: b"),
            Processed,
        ),
        (
            "id",
            b"NATS/1.0\r\nMessage-Id: \xff\r\n\r\n".to_vec(),
            Parked("missing-id"),
        ),
    ]
}

/// Publishes as a program of little care does.
fn publish_raw(scene: &Scene, messages: &[(Vec<u8>, Vec<u8>)]) {
    let port = scene.nats.as_ref().unwrap().port();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream
        .write_all(b"CONNECT {\"verbose\":false,\"headers\":true}\r\n")
        .unwrap();
    for (headers, payload) in messages {
        let total = headers.len() + payload.len();
        write!(stream, "HPUB messages.raw {} {total}\r\n", headers.len()).unwrap();
        stream.write_all(headers).unwrap();
        stream.write_all(payload).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"PING\r\n").unwrap();
    let answered = BufReader::new(stream)
        .lines()
        .map_while(Result::ok)
        .inspect(|line| assert!(!line.starts_with("-ERR"), "{line}"))
        .any(|line| line == "PONG");
    assert!(answered);
}

/// Writes rows whose headers are no UTF-8, as any program may.
async fn insert_raw(scene: &Scene) {
    let table = scene.store.table("queue");
    let payload = |name: &str| {
        let hex: String = effect(name, 0)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        match scene.store.kind() {
            StoreKind::Postgres => format!("'\\x{hex}'"),
            StoreKind::Sqlite => format!("X'{hex}'"),
        }
    };
    let many: Vec<_> = (0..1_000)
        .map(|n| json!([format!("H-{n}"), n.to_string()]))
        .collect();
    let rows = [
        (
            "value",
            json!([["Message-Id", "value"], ["Odd", { "base64": "//4=" }]]),
        ),
        (
            "1,000 headers",
            json!([vec![json!(["Message-Id", "1,000 headers"])], many].concat()),
        ),
        ("id", json!([["Message-Id", { "base64": "/w==" }]])),
    ];
    for (name, headers) in rows {
        let sql = format!(
            "INSERT INTO {table} (queue, headers, payload) VALUES ('messages', '{headers}', {})",
            payload(name)
        );
        scene.store.run(&sql).await;
    }
}

async fn each_is_processed_or_parked(kind: StoreKind, source: SourceSort) {
    let handler = "retry = { attempts = 2, backoff = \"10ms\" }\nbatch = { max = 50 }";
    let scene = Scene::new(kind, source, &script(), TABLES, handler).await;
    let table = payloads();
    let messages: Vec<TestMessage> = table
        .iter()
        .map(|(_, id, payload, _)| TestMessage {
            id: id.clone(),
            payload: payload.clone(),
        })
        .collect();
    scene.publish(&messages).await;
    let mut fates: Vec<(&str, Fate)> = table.iter().map(|case| (case.0, case.3)).collect();
    match source {
        SourceSort::JetStream => {
            let raw: Vec<(Vec<u8>, Vec<u8>)> = headers()
                .into_iter()
                .map(|(name, headers, _)| (headers, effect(name, 0)))
                .collect();
            publish_raw(&scene, &raw);
            fates.extend(headers().iter().map(|case| (case.0, case.2)));
        }
        SourceSort::Queue => {
            insert_raw(&scene).await;
            fates.extend([
                ("value", Processed),
                ("1,000 headers", Processed),
                ("id", Parked("missing-id")),
            ]);
        }
    }
    fates.push(("last", Processed));
    scene
        .publish(&[TestMessage {
            id: Some("last".into()),
            payload: effect("last", 0),
        }])
        .await;

    let said = scene.run_until_idle();

    let mut parked = std::collections::BTreeMap::new();
    for (name, fate) in &fates {
        let effects = format!("SELECT count(*) FROM effects WHERE id = '{name}'");
        let effects = scene.store.number(&effects).await;
        assert_eq!(effects, i64::from(*fate == Processed), "`{name}`: {said}");
        if let Parked(class) = fate {
            *parked.entry(*class).or_insert(0) += 1;
        }
    }
    for (class, count) in parked {
        let found = scene
            .count("dead_letters", &format!("class = '{class}'"))
            .await;
        assert_eq!(found, count, "{class}: {said}");
    }
    let without = scene.count("dead_letters", "reason = ''").await;
    assert_eq!(without, 0, "each has a reason");
    assert_eq!(scene.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_is_processed_or_parked_postgres_jetstream() {
    each_is_processed_or_parked(StoreKind::Postgres, SourceSort::JetStream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_is_processed_or_parked_postgres_queue() {
    each_is_processed_or_parked(StoreKind::Postgres, SourceSort::Queue).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_is_processed_or_parked_sqlite_jetstream() {
    each_is_processed_or_parked(StoreKind::Sqlite, SourceSort::JetStream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_is_processed_or_parked_sqlite_queue() {
    each_is_processed_or_parked(StoreKind::Sqlite, SourceSort::Queue).await;
}
