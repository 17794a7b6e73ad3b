//! A collector that is away, or that never answers, costs spans and nothing else.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use hapax::store::StoreKind;
use serde_json::json;

use crate::support::http::Http;
use crate::support::scene::{Scene, SourceSort, script};
use crate::{Sent, TABLES, lines, note, send};

const MESSAGES: usize = 50;

async fn with_messages() -> Scene {
    let sort = SourceSort::Queue;
    let scene = Scene::new(StoreKind::Sqlite, sort, &script(), TABLES, "").await;
    let ids: Vec<String> = (0..MESSAGES).map(|number| format!("m{number}")).collect();
    let messages: Vec<Sent<'_>> = ids
        .iter()
        .map(|id| Sent {
            id,
            headers: &[],
            steps: json!([note()]),
        })
        .collect();
    send(&scene, sort, &messages);
    scene
}

/// Waits until so many spans were dropped for this reason.
fn wait_for_dropped(admin: &Http, reason: &str, at_least: f64) {
    let sample = format!("hapax_trace_spans_dropped_total{{reason=\"{reason}\"}} ");
    let started = Instant::now();
    loop {
        let answer = admin.get("/metrics").text();
        let dropped = answer
            .lines()
            .find_map(|line| line.strip_prefix(&sample)?.parse::<f64>().ok());
        if dropped.is_some_and(|dropped| dropped >= at_least) {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_is_told_of_once() {
    let scene = with_messages().await;
    // Bound and not listened at by anybody: nobody else gets the port meanwhile.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let mut host = scene.host(
        &[],
        &[
            ("HAPAX_TELEMETRY__OTLP", &url),
            ("HAPAX_ADMIN__LISTEN", "127.0.0.1:0"),
            // Several requests, each of a few spans.
            ("OTEL_BSP_SCHEDULE_DELAY", "50"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "32"),
        ],
    );
    let admin = Http::of(&mut host);
    scene.wait_until_nothing_pends().await;
    wait_for_dropped(&admin, "collector", 64.0);
    host.terminate();
    let said = host.wait_well();
    assert_eq!(
        scene.store.number("SELECT count(*) FROM notes").await,
        MESSAGES as i64
    );
    let told: Vec<_> = lines(&said)
        .into_iter()
        .filter(|line| {
            let message = line["message"].as_str().unwrap();
            message.starts_with("the collector does not take traces")
        })
        .collect();
    assert_eq!(told.len(), 1, "{said}");
    assert_eq!(told[0]["level"], "WARN");
    assert!(
        told[0]["why"].as_str().unwrap().contains("refused"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_never_answers_holds_nobody_up() {
    let scene = with_messages().await;
    // Connections are taken by the system, and nobody reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let mut host = scene.host(
        &[],
        &[
            ("HAPAX_TELEMETRY__OTLP", &url),
            ("HAPAX_ADMIN__LISTEN", "127.0.0.1:0"),
            ("OTEL_BSP_SCHEDULE_DELAY", "50"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "8"),
            // Longer than the test: what ends the wait is the bound of the flush.
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "600000"),
        ],
    );
    let admin = Http::of(&mut host);
    scene.wait_until_nothing_pends().await;
    wait_for_dropped(&admin, "queue-full", 1.0);
    host.terminate();
    let said = host.wait_well();
    assert_eq!(
        scene.store.number("SELECT count(*) FROM notes").await,
        MESSAGES as i64
    );
    let told = |text: &str| said.matches(text).count();
    assert_eq!(told("spans come faster than"), 1, "{said}");
    assert_eq!(told("did not take the last traces in time"), 1, "{said}");
}
