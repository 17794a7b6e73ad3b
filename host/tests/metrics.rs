//! `/metrics` says what happened, in names that `docs/metrics.md` explains.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use hapax::message::ComponentDigest;
use hapax::store::StoreKind;
use serde_json::json;
use support::scene::{Scene, SourceSort, TestMessage, script};

const HANDLER: &str = "batch = { max = 1 }\nlanes = 1\nretry = { attempts = 2, backoff = \"1ms\" }\n\
                       limits = { cpu = \"50ms\", statements = 2, log = \"1KiB\" }";

/// The samples by name and labels, and the names that have a type and a help text.
fn scrape(address: &str) -> (BTreeMap<String, f64>, BTreeSet<String>) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET /metrics HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200"), "{head}");
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    let mut samples = BTreeMap::new();
    let (mut typed, mut helped) = (BTreeSet::new(), BTreeSet::new());
    for line in body.lines().filter(|line| !line.is_empty()) {
        let word = |number| line.split(' ').nth(number).unwrap().to_owned();
        if line.starts_with("# TYPE ") {
            typed.insert(word(2));
        } else if line.starts_with("# HELP ") {
            helped.insert(word(2));
        } else {
            let (name, value) = line.rsplit_once(' ').unwrap();
            samples.insert(name.to_owned(), value.parse().unwrap());
        }
    }
    assert_eq!(typed, helped);
    (samples, typed)
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
    let line = host.wait_for_line("the admin address is open");
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = line["address"].as_str().unwrap();

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
            "hapax_batch_messages_bucket{handler=\"subject\",le=\"1\"}",
            6.0,
        ),
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
        // Each run, the failed ones too.
        ("hapax_handler_cpu_seconds_count{handler=\"subject\"}", 9.0),
        ("hapax_handler_memory_bytes_count{handler=\"subject\"}", 9.0),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .chain([(
        format!("hapax_component_info{{handler=\"subject\",digest=\"{digest}\"}}"),
        1.0,
    )])
    .collect();
    let started = Instant::now();
    let (samples, typed) = loop {
        let (samples, typed) = scrape(address);
        let differs: Vec<_> = expected
            .iter()
            .filter(|(name, value)| samples.get(*name) != Some(value))
            .map(|(name, value)| (name, value, samples.get(name)))
            .collect();
        if differs.is_empty() {
            break (samples, typed);
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{differs:#?}\n{samples:#?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    };
    // Two loops of at least 50 ms.
    assert!(samples["hapax_handler_cpu_seconds_sum{handler=\"subject\"}"] >= 0.1);
    // Each call has a linear memory.
    assert!(samples["hapax_handler_memory_bytes_sum{handler=\"subject\"}"] >= 9.0 * 65_536.0);
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
