//! The way of a message as its trace shows it.

use std::collections::BTreeSet;

use hapax::message::{ComponentDigest, ShortHash};
use hapax::store::StoreKind;
use serde_json::json;

use crate::collector::{Collector, Received};
use crate::support::scene::{Scene, SourceSort, script};
use crate::{SPAN_ID, Sent, TABLES, TRACE_ID, configure, note, outbox_row, send, traceparent};

const PUBLISH: &str = r#"{ "publish": { "subject": "out.one", "payload": "1" } }"#;

fn named<'a>(spans: &'a [Received], name: &str) -> Vec<&'a Received> {
    spans.iter().filter(|span| span.name() == name).collect()
}

fn one<'a>(spans: &'a [Received], name: &str) -> &'a Received {
    let found = named(spans, name);
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

fn of_message(spans: &[Received], id: &str) -> Vec<Received> {
    let is_its = |span: &&Received| {
        span.name() == "process subject"
            && span.attribute("messaging.message.id").as_deref() == Some(id)
    };
    spans.iter().filter(is_its).cloned().collect()
}

/// The run of a message that took effect. A machine that is slow may have others: redeliveries, and runs that met a busy database.
fn effective(spans: &[Received], id: &str) -> Received {
    let runs = of_message(spans, id);
    let mut took_effect = runs.iter().filter(|run| {
        run.attribute("hapax.claim").as_deref() == Some("fresh")
            && run.attribute("hapax.rolled_back").is_none()
    });
    let (Some(run), None) = (took_effect.next(), took_effect.next()) else {
        panic!("{id}: {runs:#?}");
    };
    run.clone()
}

fn names(spans: &[Received]) -> Vec<&str> {
    let mut names: Vec<&str> = spans.iter().map(Received::name).collect();
    names.sort_unstable();
    names
}

/// A scene whose handler publishes to the target `out`.
async fn scene(kind: StoreKind, sort: SourceSort) -> Scene {
    let scene = Scene::new(kind, sort, &script(), TABLES, "target = \"out\"").await;
    match &scene.nats {
        None => configure(
            &scene,
            "\n[targets.out]\nkind = \"queue\"\nqueue = \"next\"\n\n[sources.next]\nkind = \"queue\"\n",
        ),
        Some(nats) => {
            let url = nats.url();
            configure(
                &scene,
                &format!("\n[targets.out]\nkind = \"jetstream\"\nurl = \"{url}\"\n"),
            );
            async_nats::jetstream::new(async_nats::connect(url).await.unwrap())
                .create_stream(async_nats::jetstream::stream::Config {
                    name: "OUT".into(),
                    subjects: vec!["out.*".into()],
                    ..Default::default()
                })
                .await
                .unwrap();
        }
    }
    scene
}

async fn a_trace_runs_from_the_publisher_into_the_outbox(kind: StoreKind, sort: SourceSort) {
    let collector = Collector::start().await;
    let scene = scene(kind, sort).await;
    let publish: serde_json::Value = serde_json::from_str(PUBLISH).unwrap();
    let (sampled, unsampled) = (traceparent(true), traceparent(false).replace('4', "5"));
    let malformed = format!("{sampled}-more");
    let message = |id, headers| Sent {
        id,
        headers,
        steps: json!([note(), publish]),
    };
    let state = "vendor=1";
    send(
        &scene,
        sort,
        &[
            message("m1", &[("traceparent", &sampled), ("tracestate", state)]),
            message("unsampled", &[("Traceparent", &unsampled)]),
            message("malformed", &[("traceparent", &malformed)]),
            message("none", &[]),
        ],
    );
    scene
        .host(
            &["--until-idle"],
            &[("HAPAX_TELEMETRY__OTLP", &collector.url())],
        )
        .wait_well();

    // The last spans leave before the host ends.
    let spans = collector.spans();
    let process = effective(&spans, "m1");
    assert_eq!(process.trace_id(), TRACE_ID);
    assert_eq!(process.parent(), SPAN_ID);
    assert_eq!(process.span.trace_state, state);
    assert_eq!(process.span.kind, 5, "a consumer");
    let within: Vec<Received> = spans
        .iter()
        .filter(|span| span.parent() == process.id() && span.name() != "fetch subject")
        .cloned()
        .collect();
    let expected = [
        "ack subject",
        "commit subject",
        "handle subject",
        "publish out",
    ];
    assert_eq!(names(&within), expected);
    assert!(within.iter().all(|span| span.trace_id() == TRACE_ID));
    for step in ["handle", "commit", "ack"] {
        let step = one(&within, &format!("{step} subject"));
        assert!(step.span.start_time_unix_nano >= process.span.start_time_unix_nano);
        assert!(step.span.start_time_unix_nano <= step.span.end_time_unix_nano);
        assert!(step.span.end_time_unix_nano <= process.span.end_time_unix_nano);
    }
    // What its first run waited for.
    let runs: Vec<String> = of_message(&spans, "m1").iter().map(Received::id).collect();
    let is_its = |span: &&&Received| runs.contains(&span.parent());
    assert!(
        named(&spans, "fetch subject")
            .iter()
            .any(|span| is_its(&span))
    );
    let digest = ComponentDigest::of(&std::fs::read(script()).unwrap()).to_string();
    let is_queue = sort == SourceSort::Queue;
    for (key, value) in [
        ("messaging.system", if is_queue { "hapax" } else { "nats" }),
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", "messages.test"),
        ("messaging.message.id", "m1"),
        ("messaging.consumer.group.name", "subject"),
        ("hapax.handler", "subject"),
        ("hapax.source", "messages"),
        ("hapax.component.digest", &digest),
        ("hapax.claim", "fresh"),
        ("hapax.attempt", "1"),
    ] {
        assert_eq!(process.attribute(key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(process.attribute("hapax.rolled_back"), None);
    assert_eq!(process.error(), None);
    assert_eq!(process.resource["service.name"], "hapax");
    assert_eq!(
        process.resource["service.version"],
        env!("CARGO_PKG_VERSION")
    );
    assert!(process.resource.contains_key("host.name"));
    let published = one(&within, "publish out");
    assert_eq!(published.span.kind, 4, "a producer");
    assert_eq!(
        published.attribute("messaging.destination.name").as_deref(),
        Some("out.one")
    );
    assert_eq!(
        published.attribute("hapax.published").as_deref(),
        Some("true")
    );

    // What leaves names that run, under the id that it has in every run.
    let (id, headers) = outbox_row(&scene, "m1").await;
    let ours = format!("00-{TRACE_ID}-{}-01", process.id());
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        headers,
        [header("traceparent", &ours), header("tracestate", state)]
    );
    let derived = ShortHash::of(&[b"outbox", b"subject", b"m1", &[0; 4]]).to_hex();
    assert_eq!(id, derived);
    assert_eq!(published.attribute("messaging.message.id"), Some(derived));

    // Whoever decided against recording is followed, and passed on.
    assert!(of_message(&spans, "unsampled").is_empty());
    assert!(
        !spans
            .iter()
            .any(|span| unsampled.contains(&span.trace_id()))
    );
    let (_, headers) = outbox_row(&scene, "unsampled").await;
    assert_eq!(headers, [header("Traceparent", &unsampled)]);

    // What names no trace begins one.
    for id in ["malformed", "none"] {
        let run = effective(&spans, id);
        assert_eq!(run.parent(), "", "{id}");
        assert_ne!(run.trace_id(), TRACE_ID, "{id}");
        let (_, headers) = outbox_row(&scene, id).await;
        let ours = format!("00-{}-{}-01", run.trace_id(), run.id());
        assert_eq!(headers, [header("traceparent", &ours)], "{id}");
    }

    // Batches are traces of their own that link to their messages, and these to them.
    let batches = named(&spans, "batch subject");
    let linked: BTreeSet<String> = batches
        .iter()
        .flat_map(|batch| &batch.span.links)
        .map(|link| {
            link.span_id
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect()
        })
        .collect();
    let runs: BTreeSet<String> = named(&spans, "process subject")
        .iter()
        .map(|span| span.id())
        .collect();
    assert_eq!(linked, runs);
    assert!(runs.len() >= 3);
    for batch in &batches {
        assert_eq!(batch.parent(), "");
        assert_ne!(batch.trace_id(), TRACE_ID);
        if batch.attribute("hapax.rolled_back").is_some() {
            continue;
        }
        let mut stages: Vec<&str> = spans
            .iter()
            .filter(|span| span.parent() == batch.id())
            .map(Received::name)
            .collect();
        stages.sort_unstable();
        let expected = ["ack", "begin", "claim", "commit", "handle"];
        assert_eq!(stages, expected.map(|stage| format!("{stage} subject")));
    }
    let its_batch = &process.span.links[0];
    assert!(
        batches
            .iter()
            .any(|batch| batch.span.span_id == its_batch.span_id)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_runs_from_a_stream_into_a_stream() {
    a_trace_runs_from_the_publisher_into_the_outbox(StoreKind::Postgres, SourceSort::JetStream)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_runs_from_a_queue_into_a_queue() {
    a_trace_runs_from_the_publisher_into_the_outbox(StoreKind::Sqlite, SourceSort::Queue).await;
}

/// A failed run says so, the next one is another span of the same trace, and a redelivery one that did not call the handler.
#[tokio::test(flavor = "multi_thread")]
async fn runs_that_did_not_take_effect_say_so() {
    let collector = Collector::start().await;
    let sort = SourceSort::Queue;
    let handler = "batch = { max = 1 }\nretry = { attempts = 3, backoff = \"1ms\" }";
    let scene = Scene::new(StoreKind::Sqlite, sort, &script(), TABLES, handler).await;
    let sampled = traceparent(true);
    let headers = [("traceparent", sampled.as_str())];
    let message = || Sent {
        id: "m1",
        headers: &headers,
        steps: json!([{ "if_attempt_below": 2, "steps": [{ "panic": "not yet" }] }, note()]),
    };
    send(&scene, sort, &[message(), message()]);
    scene
        .host(
            &["--until-idle"],
            &[("HAPAX_TELEMETRY__OTLP", &collector.url())],
        )
        .wait_well();
    let spans = collector.spans();
    let mut runs = of_message(&spans, "m1");
    runs.sort_by_key(|span| span.span.start_time_unix_nano);
    let children = |run: &Received| {
        let mut names: Vec<String> = spans
            .iter()
            .filter(|span| span.parent() == run.id())
            .map(|span| span.name().to_owned())
            .collect();
        names.sort_unstable();
        names
    };
    let outcome = |run: &Received| {
        (
            run.attribute("hapax.claim").unwrap(),
            run.attribute("hapax.attempt"),
            run.attribute("hapax.rolled_back"),
        )
    };
    let found = |claim: &str| -> Vec<&Received> {
        let is = |run: &&Received| run.attribute("hapax.claim").as_deref() == Some(claim);
        runs.iter().filter(is).collect()
    };
    let (fresh, duplicates) = (found("fresh"), found("duplicate"));
    let text = |text: &str| Some(text.to_owned());
    // Both deliveries may fail once before one succeeds, and the first failure counts for the other's run, too.
    let (failed, done): (Vec<&Received>, Vec<&Received>) = fresh
        .into_iter()
        .partition(|run| run.attribute("hapax.rolled_back").is_some());
    assert!(!failed.is_empty(), "{runs:#?}");
    for run in &failed {
        assert_eq!(run.trace_id(), TRACE_ID);
        assert_eq!(run.attribute("hapax.rolled_back"), text("true"));
        assert_eq!(run.attribute("error.type"), text("trapped"));
        assert!(run.error().unwrap().contains("not yet"), "{run:#?}");
        assert!(!children(run).contains(&"commit subject".to_owned()));
        assert!(!children(run).contains(&"ack subject".to_owned()));
        let call = spans
            .iter()
            .find(|span| span.parent() == run.id() && span.name() == "handle subject");
        assert!(call.unwrap().error().unwrap().contains("not yet"));
    }
    assert_eq!(done.len(), 1, "{runs:#?}");
    let (claim, attempt, rolled_back) = outcome(done[0]);
    assert_eq!((claim.as_str(), rolled_back), ("fresh", None));
    assert!(attempt.unwrap().parse::<u32>().unwrap() >= 2);
    assert_eq!(done[0].error(), None);
    assert_eq!(duplicates.len(), 1, "{runs:#?}");
    assert_eq!(outcome(duplicates[0]), ("duplicate".into(), None, None));
    assert!(!children(duplicates[0]).contains(&"handle subject".to_owned()));
    // A second run did not wait for its source.
    assert!(named(&spans, "fetch subject").len() < runs.len());
    assert_eq!(scene.store.number("SELECT count(*) FROM notes").await, 1);
}

/// Without traces, the cause goes on as it came.
#[tokio::test(flavor = "multi_thread")]
async fn without_traces_a_cause_goes_on_unchanged() {
    let sort = SourceSort::Queue;
    let scene = scene(StoreKind::Sqlite, sort).await;
    let publish: serde_json::Value = serde_json::from_str(PUBLISH).unwrap();
    let sampled = traceparent(true);
    send(
        &scene,
        sort,
        &[Sent {
            id: "m1",
            headers: &[("traceparent", &sampled), ("tracestate", "a=1 , b=2")],
            steps: json!([note(), publish]),
        }],
    );
    scene.run_until_idle();
    let (_, headers) = outbox_row(&scene, "m1").await;
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        headers,
        [
            header("traceparent", &sampled),
            header("tracestate", "a=1 , b=2")
        ]
    );
}
