//! A guest that imports WASI 0.2 and tries it: nothing is behind it, and every run of a message gets the same.

#![expect(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use hapax::handler::{
    Called, Component, Handler, HandlerOptions, Limits, Runtime, RuntimeOptions, Verdict,
};
use hapax::message::{Incoming, Instant as Moment, Message, MessageId, Position};
use hapax::store::{SessionOptions, Store, Tx};
use serde_json::{Value, json};
use tracing::Level;

#[path = "support/mod.rs"]
mod support;

use support::host;

const PUBLISHED_AT: Moment = Moment {
    seconds: 1_767_225_600,
    nanoseconds: 5_000,
};

fn guest() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/wasi.wasm")
}

fn load() -> Component {
    let path = guest();
    let bytes = std::fs::read(&path).unwrap_or_else(|error| {
        panic!(
            "cannot read `{}`: {error}; run `cargo xtask guests` to build it",
            path.display()
        )
    });
    let options = RuntimeOptions {
        calls_max: 2,
        memory_max_bytes: 64 << 20,
    };
    let runtime = Runtime::new(&options).unwrap();
    runtime.load_blocking("wasi.wasm", &bytes).unwrap()
}

fn handler_of(component: Component, consumer: &str, limits: Limits) -> Handler {
    let options = HandlerOptions {
        name: "wasi".into(),
        consumer: consumer.into(),
        limits,
        config: Default::default(),
        targets: Default::default(),
    };
    Handler::new(component, options).unwrap()
}

fn handler(limits: Limits) -> Handler {
    static GUEST: OnceLock<Component> = OnceLock::new();
    handler_of(GUEST.get_or_init(load).clone(), "credit", limits)
}

fn message(id: &str, published_at: Option<Moment>, payload: &Value) -> Message {
    Message {
        id: MessageId::new(id).unwrap(),
        source: "source".into(),
        incoming: Incoming {
            subject: String::new(),
            headers: Vec::new(),
            content_type: None,
            payload: Bytes::from(payload.to_string()),
            published_at,
            position: Position("1".into()),
            queue_id: None,
        }
        .into(),
    }
}

/// Calls the handler in a transaction that is rolled back.
async fn call(handler: &Handler, message: &Message, attempt: u32) -> Called {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("test.db").display());
    let options = SessionOptions {
        purpose: "test".into(),
        statement_timeout: None,
        lock_timeout: Duration::from_secs(10),
        idle_in_transaction: Duration::from_secs(60),
    };
    let store = Store::open(&url).unwrap();
    let mut connection = store.connect(&options).await.unwrap();
    connection.migrate().await.unwrap();
    let tx = Tx::begin(connection).await.unwrap();
    let mut called = handler.call(tx, message, None, attempt).await;
    if let Some(tx) = called.tx.take() {
        tx.rollback().await;
    }
    called
}

async fn probe(payload: Value) -> Called {
    let message = message("m-1", Some(PUBLISHED_AT), &payload);
    call(&handler(Limits::DEFAULT), &message, 1).await
}

/// What the guest got, which it has rejected the message with.
fn got(called: &Called) -> Value {
    match &called.verdict {
        Verdict::Reject { reason } => serde_json::from_str(reason).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clocks_stand_still_at_the_publishing() {
    let called = probe(json!({ "probe": "clock" })).await;
    let frozen = json!({
        "seconds": 1_767_225_600_u64, "nanoseconds": 5_000, "stands_still": true,
        "monotonic": 1_767_225_600_000_005_000_u64,
    });
    assert_eq!(got(&called), frozen);
    // Whenever and wherever it runs again.
    let again = message("m-1", Some(PUBLISHED_AT), &json!({ "probe": "clock" }));
    let elsewhere = handler_of(load(), "credit", Limits::DEFAULT);
    assert_eq!(got(&call(&elsewhere, &again, 7).await), frozen);
    // Not known, or before 1970, which the interface cannot tell.
    let before = Moment {
        seconds: -1,
        nanoseconds: 0,
    };
    for published_at in [None, Some(before)] {
        let message = message("m-1", published_at, &json!({ "probe": "clock" }));
        let got = got(&call(&handler(Limits::DEFAULT), &message, 1).await);
        assert_eq!(got["seconds"], 946_684_800, "{got}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_values_are_the_consumers_and_the_messages() {
    let payload = json!({ "probe": "random" });
    let one = message("m-1", Some(PUBLISHED_AT), &payload);
    let first = got(&call(&handler(Limits::DEFAULT), &one, 1).await);
    let elsewhere = handler_of(load(), "credit", Limits::DEFAULT);
    assert_eq!(got(&call(&elsewhere, &one, 2).await), first);
    let other = message("m-2", Some(PUBLISHED_AT), &payload);
    let others = [
        got(&call(&elsewhere, &other, 1).await),
        got(&call(&handler_of(load(), "debit", Limits::DEFAULT), &one, 1).await),
    ];
    for other in others {
        for value in ["bytes", "number", "insecure", "seed"] {
            assert_ne!(other[value], first[value], "{value}");
        }
    }
    assert_ne!(first["number"], first["insecure"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_around_it() {
    // This process has variables, arguments and a folder.
    assert!(std::env::vars_os().count() > 0);
    let called = probe(json!({ "probe": "around" })).await;
    assert_eq!(
        got(&called),
        json!({ "environment": [], "arguments": [], "folder": null, "preopened": 0, "input": true })
    );
    let called = probe(json!({ "probe": "sockets" })).await;
    assert_eq!(
        got(&called),
        json!({
            "tcp": "access-denied", "udp": "access-denied",
            "name": "permanent-resolver-failure",
        })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn output_becomes_log_lines_in_their_order_and_within_the_limit() {
    let called = probe(json!({ "probe": "print" })).await;
    assert_eq!(called.verdict, Verdict::Ok);
    let lines: Vec<(Level, &str)> = called
        .log
        .lines()
        .iter()
        .map(|line| (line.level, line.message.as_str()))
        .collect();
    assert_eq!(
        lines,
        [
            (Level::INFO, "one"),
            (Level::WARN, "wrong"),
            (Level::INFO, "between"),
            (Level::INFO, "two"),
        ]
    );

    let called = probe(json!({ "probe": "flood", "number": 1_000 })).await;
    assert_eq!(called.verdict, Verdict::Ok);
    let kept = called.log.lines();
    let bytes: usize = kept.iter().map(|line| line.message.len()).sum();
    assert!(
        bytes <= Limits::DEFAULT.log_bytes && bytes > 200_000,
        "{bytes}"
    );
    assert_eq!(kept.len() as u64 + called.log.dropped(), 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_exits_has_failed_with_its_last_words() {
    // With success, too: the handler has not returned.
    for status in [0, 1] {
        let payload =
            json!({ "probe": "last words", "text": "panic: nothing left", "number": status });
        let called = probe(payload).await;
        let Verdict::Trap { text } = &called.verdict else {
            panic!("{:?}", called.verdict);
        };
        assert!(text.starts_with("panic: nothing left\n"), "{text}");
        assert!(text.contains(&format!("exit status {status}")), "{text}");
    }
}

/// One that went off by the host's clock would tell the time to whoever asks for it in turn with work.
#[tokio::test(flavor = "multi_thread")]
async fn timers_tell_no_time() {
    let called = probe(json!({ "probe": "timers" })).await;
    let all = json!([true, true, true]);
    assert_eq!(
        got(&called),
        json!({ "first": all, "again": all, "woken": [0, 1, 2], "worked": true })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_clock_that_stands_still_meets_the_limit() {
    let limits = Limits {
        cpu: Duration::from_millis(100),
        ..Limits::DEFAULT
    };
    let handler = handler(limits);
    let payload = json!({ "probe": "sleep", "number": 1_000_000_000 });
    let called = call(&handler, &message("m-1", None, &payload), 1).await;
    assert!(
        matches!(called.verdict, Verdict::Limit { limit: "cpu", .. }),
        "{:?}",
        called.verdict
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_host_holds_for_it_is_bounded() {
    let few = probe(json!({ "probe": "many pollables", "number": 900 })).await;
    assert_eq!(got(&few), 900);
    let many = probe(json!({ "probe": "many pollables", "number": 2_000 })).await;
    assert!(
        matches!(
            many.verdict,
            Verdict::Limit {
                limit: "handles",
                ..
            }
        ),
        "{:?}",
        many.verdict
    );
    let few = probe(json!({ "probe": "many bytes", "number": 1 << 20 })).await;
    assert_eq!(got(&few), 1 << 20);
    let many = probe(json!({ "probe": "many bytes", "number": (1 << 20) + 1 })).await;
    assert!(
        matches!(many.verdict, Verdict::Trap { .. }),
        "{:?}",
        many.verdict
    );
}

/// `hapax test` runs it in every way in which a host may, and compares the values that it keeps.
#[test]
fn the_prover_finds_the_same_values_in_every_run() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "hapax.toml",
        &format!(
            "[store]\nurl = \"sqlite:hapax.db\"\n[sources.in]\nkind = \"queue\"\n[handlers.wasi]\ncomponent = \"{}\"\nsource = \"in\"\nmigrations = \"migrations\"\n",
            guest().display()
        ),
    );
    std::fs::create_dir(folder.path().join("migrations")).unwrap();
    write(
        "migrations/0001_kept.sql",
        "CREATE TABLE kept (id TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;",
    );
    write(
        "messages.jsonl",
        "{\"id\":\"m1\",\"payload\":{\"probe\":\"keep\"}}\n{\"id\":\"m2\",\"payload\":{\"probe\":\"keep\"}}\n",
    );
    let output = host::run(folder.path(), &["test"]);
    assert!(output.status.success(), "{}{}", output.out, output.err);
    assert!(output.out.contains("passed"), "{}", output.out);

    let output = host::run(folder.path(), &["inspect", guest().to_str().unwrap()]);
    assert!(output.status.success(), "{}", output.err);
    let line = output
        .out
        .lines()
        .find(|line| line.contains("wasi:random/random@"))
        .unwrap();
    assert!(line.ends_with("  granted by the closed WASI"), "{line}");
    assert!(output.out.contains("yes; compiled in"), "{}", output.out);
    let json = host::run(
        folder.path(),
        &["inspect", "--json", guest().to_str().unwrap()],
    );
    let told: Value = serde_json::from_str(&json.out).unwrap();
    let imports = told["imports"].as_array().unwrap();
    for import in imports {
        let is_wasi = import["name"].as_str().unwrap().starts_with("wasi:");
        assert_eq!(import["closed_wasi"], is_wasi, "{import}");
        assert_eq!(import["granted"], true, "{import}");
    }
}
