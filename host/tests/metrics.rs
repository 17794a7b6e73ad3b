//! `/metrics` says what happened, in names that `docs/metrics.md` explains.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use hapax::message::ComponentDigest;
use hapax::store::StoreKind;
use prometheus_parse::{LineInfo, SampleType, Scrape, Value};
use serde_json::json;
use support::http::Http;
use support::scene::{Scene, SourceSort, TestMessage, script};

/// Awaited: how many runs a message has is known only of a handler that never runs before its transaction.
const HANDLER: &str = "batch = { max = 1 }\nlanes = 1\nsql = \"await\"\nretry = { attempts = 2, backoff = \"1ms\" }\n\
                       limits = { cpu = \"50ms\", statements = 2, log = \"1KiB\" }";

/// The samples by name and labels, as a client library reads them, and the names that have a type and a help text.
fn scrape(admin: &Http) -> (BTreeMap<String, f64>, BTreeSet<String>) {
    let answer = admin.get("/metrics");
    let (head, body) = (&answer.head, answer.text());
    assert_eq!(answer.status, 200, "{head}");
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    let (mut typed, mut helped) = (BTreeSet::new(), BTreeSet::new());
    for line in body.lines() {
        match LineInfo::parse(line) {
            LineInfo::Type {
                metric_name,
                metric_alias,
                sample_type,
            } => {
                assert_ne!(sample_type, SampleType::Untyped, "{line}");
                typed.insert(metric_alias.unwrap_or(metric_name));
            }
            LineInfo::Doc { metric_name, .. } => {
                helped.insert(metric_name.to_owned());
            }
            LineInfo::Sample { .. } | LineInfo::Empty => {}
            LineInfo::Ignored => panic!("the library can't read this line: {line}"),
        }
    }
    assert_eq!(typed, helped);
    (parsed(&body), typed)
}

/// What the library makes of `text`.
fn parsed(text: &str) -> BTreeMap<String, f64> {
    let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap();
    let mut samples = BTreeMap::new();
    for sample in scrape.samples {
        let labels = sample.labels.to_string();
        match sample.value {
            Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => {
                samples.insert(format!("{}{{{labels}}}", sample.metric), value);
            }
            Value::Histogram(buckets) => {
                for bucket in buckets {
                    let key = format!("{}{{{labels}}} le {}", sample.metric, bucket.less_than);
                    samples.insert(key, bucket.count);
                }
            }
            Value::Summary(_) => panic!("{} is a summary", sample.metric),
        }
    }
    samples
}

/// A sample's name as `parsed` gives it: the library knows no order of labels.
fn key(text: &str) -> String {
    parsed(&format!("{text} 0")).into_keys().next().unwrap()
}

async fn what_happened_is_counted(kind: StoreKind, source: SourceSort) {
    let scene = Scene::new(
        kind,
        source,
        &script(),
        "CREATE TABLE notes (key text)",
        HANDLER,
    )
    .await;
    let mut host = scene.host(&[], &[("HAPAX_ADMIN__LISTEN", "127.0.0.1:0")]);
    let admin = Http::of(&mut host);

    let note = json!({"execute": "INSERT INTO notes VALUES ('k')"});
    let message =
        |id: &str, steps: serde_json::Value| TestMessage::new(id, &json!({ "steps": steps }));
    let long = json!({"log": {"message": {"repeat": "x", "times": 2000}}});
    scene
        .publish(&[
            message("a", json!([note])),
            message("b", json!([note])),
            message("a", json!([note])),
            message("rejected", json!([{"reject": "no"}])),
            message(
                "once",
                json!([{"if_attempt_below": 2, "steps": [{"panic": "not yet"}]}, note]),
            ),
            // The error does not abort: what is over the limit was not run.
            message(
                "many",
                json!([note, note, {"execute": "SELECT 1", "expect_error": "limit.statements"},
                {"execute": "SELECT 1", "expect_error": "limit.statements"}]),
            ),
            message("loops", json!([{"loop": true}])),
            message("talks", json!([long, note])),
        ])
        .await;

    let digest = ComponentDigest::of(&std::fs::read(script()).unwrap());
    let expected: BTreeMap<String, f64> = [
        ("hapax_messages_processed_total{handler=\"subject\"}", 5.0),
        ("hapax_messages_duplicate_total{handler=\"subject\"}", 1.0),
        (
            "hapax_messages_retried_total{handler=\"subject\",class=\"trapped\"}",
            1.0,
        ),
        (
            "hapax_messages_retried_total{handler=\"subject\",class=\"limit\"}",
            1.0,
        ),
        (
            "hapax_messages_dead_total{handler=\"subject\",class=\"rejected\"}",
            1.0,
        ),
        (
            "hapax_messages_dead_total{handler=\"subject\",class=\"limit\"}",
            1.0,
        ),
        ("hapax_batches_rolled_back_total{handler=\"subject\"}", 4.0),
        (
            "hapax_limits_met_total{handler=\"subject\",limit=\"statements\"}",
            1.0,
        ),
        (
            "hapax_limits_met_total{handler=\"subject\",limit=\"cpu\"}",
            2.0,
        ),
        (
            "hapax_limits_met_total{handler=\"subject\",limit=\"log\"}",
            1.0,
        ),
        // The duplicate has a transaction of its own; a dead letter's is not a batch's.
        ("hapax_batch_messages_count{handler=\"subject\"}", 6.0),
        ("hapax_batch_messages_sum{handler=\"subject\"}", 6.0),
        (
            "hapax_stage_duration_seconds_count{handler=\"subject\",stage=\"begin\"}",
            6.0,
        ),
        (
            "hapax_stage_duration_seconds_count{handler=\"subject\",stage=\"claim\"}",
            6.0,
        ),
        (
            "hapax_stage_duration_seconds_count{handler=\"subject\",stage=\"handle\"}",
            6.0,
        ),
        (
            "hapax_stage_duration_seconds_count{handler=\"subject\",stage=\"commit\"}",
            6.0,
        ),
        (
            "hapax_stage_duration_seconds_count{handler=\"subject\",stage=\"ack\"}",
            6.0,
        ),
        // Dead letters are not acknowledged.
        (
            "hapax_message_duration_seconds_count{handler=\"subject\"}",
            6.0,
        ),
        // Each run, the failed ones too.
        ("hapax_handler_cpu_seconds_count{handler=\"subject\"}", 9.0),
        ("hapax_handler_memory_bytes_count{handler=\"subject\"}", 9.0),
        // Nothing is in hand or waits any more; what is asked of the database and the broker comes later.
        ("hapax_messages_in_flight{handler=\"subject\"}", 0.0),
        ("hapax_backlog_messages{handler=\"subject\"}", 0.0),
        ("hapax_oldest_pending_seconds{handler=\"subject\"}", 0.0),
        ("hapax_dead_letters{handler=\"subject\"}", 2.0),
        (
            "hapax_outbox_unpublished_messages{handler=\"subject\"}",
            0.0,
        ),
        ("hapax_outbox_parked_messages{handler=\"subject\"}", 0.0),
        ("hapax_outbox_oldest_seconds{handler=\"subject\"}", 0.0),
        // Of five messages that took effect and two that are dead.
        ("hapax_claims", 7.0),
        ("hapax_database_sessions{purpose=\"lane\"}", 1.0),
        ("hapax_database_sessions{purpose=\"host\"}", 1.0),
    ]
    .map(|(name, value)| (key(name), value))
    .into_iter()
    .chain([
        (
            key(&format!(
                "hapax_component_info{{handler=\"subject\",digest=\"{digest}\"}}"
            )),
            1.0,
        ),
        (
            key(&format!(
                "hapax_build_info{{version=\"{}\"}}",
                env!("CARGO_PKG_VERSION")
            )),
            1.0,
        ),
        (
            "hapax_batch_messages{handler=\"subject\"} le 1".to_owned(),
            6.0,
        ),
    ])
    .collect();
    let started = Instant::now();
    let (samples, typed) = loop {
        let (samples, typed) = scrape(&admin);
        let differs: Vec<_> = expected
            .iter()
            .filter(|(name, value)| samples.get(*name) != Some(value))
            .map(|(name, value)| (name, value, samples.get(name)))
            .collect();
        // The size of the claims is asked for most seldom.
        if differs.is_empty() {
            break (samples, typed);
        }
        assert!(
            started.elapsed() < Duration::from_secs(180),
            "{differs:#?}\n{samples:#?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    };
    // Two loops of at least 50 ms.
    let read = |name: &str| samples[&key(name)];
    assert!(read("hapax_handler_cpu_seconds_sum{handler=\"subject\"}") >= 0.1);
    // Each call has a linear memory.
    assert!(read("hapax_handler_memory_bytes_sum{handler=\"subject\"}") >= 9.0 * 65_536.0);
    assert!(read("hapax_claims_bytes") > 0.0);
    assert!(read("process_resident_memory_bytes") > f64::from(1 << 20));
    assert!(read("process_open_fds") > 3.0);
    assert_eq!(typed, hapax::metrics::names().map(str::to_owned).collect());

    host.terminate();
    let said = host.wait_well();
    let told: Vec<serde_json::Value> = said
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|record: &serde_json::Value| record["limit"] == "statements")
        .collect();
    assert_eq!(told.len(), 1, "{said}");
    assert_eq!(told[0]["message_id"], "many");
}

/// A message that waits an hour for its retry, and what it published before it failed, which is nothing.
async fn what_waits_is_told(kind: StoreKind, source: SourceSort) {
    let handler = "retry = { attempts = 2, backoff = \"1h\" }";
    let scene = Scene::new(kind, source, &script(), "SELECT 1", handler).await;
    let message =
        |id: &str, steps: serde_json::Value| TestMessage::new(id, &json!({ "steps": steps }));
    let published = json!({"publish": {"subject": "out.a", "payload": "{}"}});
    scene
        .publish(&[
            message("waits", json!([published, {"panic": "not yet"}])),
            message("publishes", json!([published])),
        ])
        .await;
    let mut host = scene.host(&[], &[("HAPAX_ADMIN__LISTEN", "127.0.0.1:0")]);
    let admin = Http::of(&mut host);
    let started = Instant::now();
    loop {
        let (samples, _) = scrape(&admin);
        let read = |name: &str| {
            let name = key(&format!("{name}{{handler=\"subject\"}}"));
            samples.get(&name).copied().unwrap_or(f64::NAN)
        };
        let is_told = read("hapax_messages_processed_total") == 1.0
            && read("hapax_messages_retried_total") != 0.0
            && read("hapax_messages_in_flight") == 0.0
            && read("hapax_backlog_messages") == 1.0
            && read("hapax_oldest_pending_seconds") > 0.0
            && read("hapax_oldest_pending_seconds") < 3_600.0
            && read("hapax_dead_letters") == 0.0
            && read("hapax_outbox_unpublished_messages") == 1.0
            && read("hapax_outbox_oldest_seconds") > 0.0;
        if is_told {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(180), "{samples:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    host.terminate();
    host.wait_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_told_on_sqlite() {
    what_waits_is_told(StoreKind::Sqlite, SourceSort::Queue).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_told_on_postgres() {
    what_waits_is_told(StoreKind::Postgres, SourceSort::JetStream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_is_counted_on_sqlite() {
    what_happened_is_counted(StoreKind::Sqlite, SourceSort::Queue).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_is_counted_on_postgres() {
    what_happened_is_counted(StoreKind::Postgres, SourceSort::JetStream).await;
}

#[test]
fn every_metric_is_explained() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let explained: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert_eq!(explained, hapax::metrics::names().collect());
}
