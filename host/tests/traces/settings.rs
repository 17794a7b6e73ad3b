//! How traces are turned on, and which are recorded.

use hapax::store::StoreKind;
use serde_json::json;

use crate::collector::{Collector, Received};
use crate::support::certificates::Authority;
use crate::support::host::Output;
use crate::support::scene::{Scene, SourceSort, script};
use crate::{Sent, TABLES, TRACE_ID, configure, note, outbox_row, send, traceparent};

const SORT: SourceSort = SourceSort::Queue;

/// A scene with two messages that publish: `traced` has a cause that is recorded, `plain` has none.
async fn with_messages() -> Scene {
    let scene = Scene::new(StoreKind::Sqlite, SORT, &script(), TABLES, "").await;
    let steps = json!([note(), { "publish": { "subject": "out.one", "payload": "1" } }]);
    let sampled = traceparent(true);
    let messages = [
        Sent {
            id: "traced",
            headers: &[("traceparent", &sampled)],
            steps: steps.clone(),
        },
        Sent {
            id: "plain",
            headers: &[],
            steps,
        },
    ];
    send(&scene, SORT, &messages);
    scene
}

/// The messages whose runs came, in order.
fn processed(collector: &Collector) -> Vec<String> {
    let mut ids: Vec<String> = collector
        .spans()
        .iter()
        .filter(|span| span.name() == "process subject")
        .map(|span| span.attribute("messaging.message.id").unwrap())
        .collect();
    ids.sort_unstable();
    ids
}

fn run(scene: &Scene, variables: &[(&str, &str)]) -> Output {
    crate::support::host::run_with(scene.folder(), &["run", "--until-idle"], variables, b"")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_part_is_of_what_brings_no_decision() {
    let collector = Collector::start().await;
    let scene = with_messages().await;
    let address = collector.address;
    configure(
        &scene,
        &format!(
            "\n[telemetry]\notlp = \"http://{address}/\"\nservice_name = \"payments\"\nsample = 0\n"
        ),
    );
    scene.run_until_idle();
    assert_eq!(processed(&collector), ["traced"]);
    let spans = collector.spans();
    assert!(
        spans
            .iter()
            .all(|span| span.resource["service.name"] == "payments")
    );
    // The batch is recorded with its message, although it begins a trace of its own.
    let batches: Vec<&Received> = spans
        .iter()
        .filter(|span| span.name() == "batch subject")
        .collect();
    assert_eq!(batches.len(), 1);
    assert_ne!(batches[0].trace_id(), TRACE_ID);
    // What was decided here is told to whoever gets what the message published.
    let (_, headers) = outbox_row(&scene, "plain").await;
    assert_eq!(headers.len(), 1);
    assert_eq!(headers[0].0, "traceparent");
    assert!(headers[0].1.ends_with("-00"), "{headers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_can_say_it_all() {
    let collector = Collector::start().await;
    let scene = with_messages().await;
    let url = collector.url();
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str());
    // Turned off, in each of its ways.
    for off in [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    ] {
        let output = run(&scene, &[endpoint, off]);
        assert!(output.status.success(), "{}", output.err);
        let says = output.err.contains("no traces are sent");
        assert_eq!(says, off.1 == "grpc", "{}", output.err);
    }
    assert!(collector.spans().is_empty());

    let scene = with_messages().await;
    let output = run(
        &scene,
        &[
            endpoint,
            ("OTEL_SERVICE_NAME", "billing"),
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "host.name=box,deployment.environment.name=test",
            ),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-scope=team%20a"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "none"),
        ],
    );
    assert!(output.status.success(), "{}", output.err);
    assert_eq!(processed(&collector), ["traced"]);
    let resource = &collector.spans()[0].resource;
    assert_eq!(resource["service.name"], "billing");
    assert_eq!(resource["host.name"], "box");
    assert_eq!(resource["deployment.environment.name"], "test");
    assert!(
        collector
            .headers()
            .iter()
            .all(|headers| headers["x-scope"] == "team a")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_are_sent_over_tls_and_secrets_are_told_nobody() {
    let authority = Authority::new();
    let signed = authority.server(&["localhost"]);
    let collector = Collector::start_with_tls(&signed).await;
    let scene = with_messages().await;
    let write = |name: &str, text: &str| std::fs::write(scene.folder().join(name), text).unwrap();
    write("ca.pem", &authority.pem);
    write("token", "Bearer s3cret-token\n");
    let port = collector.address.port();
    configure(
        &scene,
        &format!(
            "\n[telemetry]\notlp = \"https://localhost:{port}\"\n\n[telemetry.headers]\nX-Scope = \"100% a\"\n\
             Authorization = {{ file = \"token\" }}\n"
        ),
    );
    let ca = scene.folder().join("ca.pem");
    let trust = ("SSL_CERT_FILE", ca.to_str().unwrap());
    let output = run(&scene, &[trust, ("HAPAX_LOG", "debug")]);
    assert!(output.status.success(), "{}", output.err);
    assert_eq!(processed(&collector), ["plain", "traced"]);
    for headers in collector.headers() {
        assert_eq!(headers["authorization"], "Bearer s3cret-token");
        assert_eq!(headers["x-scope"], "100% a");
    }
    assert!(!output.err.contains("s3cret"), "{}", output.err);

    // Whoever is not trusted gets nothing.
    let before = collector.headers().len();
    let scene_of_others = with_messages().await;
    configure(
        &scene_of_others,
        &format!("\n[telemetry]\notlp = \"https://localhost:{port}\"\n"),
    );
    let stranger = scene_of_others.folder().join("stranger.pem");
    std::fs::write(&stranger, &Authority::new().pem).unwrap();
    let trust = ("SSL_CERT_FILE", stranger.to_str().unwrap());
    let output = run(&scene_of_others, &[trust]);
    assert!(output.status.success(), "{}", output.err);
    assert!(
        output.err.contains("does not take traces"),
        "{}",
        output.err
    );
    assert_eq!(collector.headers().len(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_missing_stops_the_start() {
    let scene = with_messages().await;
    configure(
        &scene,
        "\n[telemetry]\notlp = \"http://127.0.0.1:1\"\n\n[telemetry.headers]\nAuthorization = { env = \"NO_SUCH_TOKEN\" }\n",
    );
    let output = run(&scene, &[]);
    assert_eq!(output.status.code(), Some(3), "{}", output.err);
    assert!(
        output.err.contains(
            "error: `telemetry.headers.Authorization`: the variable `NO_SUCH_TOKEN`, which holds a secret, is not set\nhint: set it"
        ),
        "{}",
        output.err
    );
}
