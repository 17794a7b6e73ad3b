//! The lines of the log: what they carry, and how loud they are.

use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::collector::Collector;
use crate::support::scene::{Scene, SourceSort, script};
use crate::{Sent, TRACE_ID, lines, note, send, traceparent};

/// A child without its parent is found by the commit only.
const TABLES: &str = "CREATE TABLE notes (key text NOT NULL); CREATE TABLE parents (id integer PRIMARY KEY); \
                      CREATE TABLE children (parent integer REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED);";
const HANDLER: &str = "retry = { attempts = 2, backoff = \"1ms\" }";

/// The only line with this message.
fn one<'a>(lines: &'a [Value], message: &str) -> &'a Value {
    let found: Vec<&Value> = lines
        .iter()
        .filter(|line| line["message"] == message)
        .collect();
    assert_eq!(found.len(), 1, "{message}: {lines:#?}");
    found[0]
}

async fn lines_carry_what_is_known(kind: StoreKind, sort: SourceSort) {
    let scene = Scene::new(kind, sort, &script(), TABLES, HANDLER).await;
    let sampled = traceparent(true);
    let log = |message: &str| json!({ "log": { "level": "warn", "message": message, "fields": { "account": "a1" } } });
    let orphan = json!({ "execute": "INSERT INTO children VALUES (7)" });
    send(
        &scene,
        sort,
        &[
            Sent {
                id: "good",
                headers: &[("traceparent", &sampled)],
                steps: json!([log("said"), note()]),
            },
            // The call is well, and the commit is refused.
            Sent {
                id: "orphan",
                headers: &[("traceparent", &sampled)],
                steps: json!([{ "if_attempt_below": 2, "steps": [log("did not happen"), orphan] }, note()]),
            },
            Sent {
                id: "rejected",
                headers: &[("traceparent", &sampled)],
                steps: json!([log("nor did this"), { "reject": "no" }]),
            },
        ],
    );
    let said = scene
        .host(&["--until-idle"], &[("HAPAX_LOG", "info,hapax=debug")])
        .wait_well();
    let lines = lines(&said);
    let known = |id: &str| json!({ "handler": "subject", "message_id": id, "subject": "messages.test", "attempt": 1, "trace_id": TRACE_ID });
    let assert_carries = |line: &Value, level: &str, id: &str| {
        assert_eq!(line["level"], level, "{line}");
        for (key, value) in known(id).as_object().unwrap() {
            assert_eq!(&line[key], value, "{key}: {line}");
        }
    };
    // In whatever batches they run: siblings of what failed ran again, and what they had said before did not happen.
    let of = |message: &str| -> Vec<&Value> {
        lines
            .iter()
            .filter(|line| line["message"] == message)
            .collect()
    };
    let loud: Vec<&Value> = of("said")
        .into_iter()
        .filter(|line| line["level"] != "DEBUG")
        .collect();
    assert_eq!(loud.len(), 1, "{said}");
    assert_carries(loud[0], "WARN", "good");
    assert_eq!(loud[0]["fields"], "account=a1");
    for (message, id) in [("did not happen", "orphan"), ("nor did this", "rejected")] {
        assert!(!of(message).is_empty(), "{said}");
        for line in of(message) {
            assert_carries(line, "DEBUG", id);
        }
    }
    let retried = one(&lines, "failed, will be retried");
    assert_carries(retried, "INFO", "orphan");
    let dead = one(&lines, "dead letter");
    assert_carries(dead, "WARN", "rejected");
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_carry_what_is_known_on_sqlite() {
    lines_carry_what_is_known(StoreKind::Sqlite, SourceSort::Queue).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_carry_what_is_known_on_postgres() {
    lines_carry_what_is_known(StoreKind::Postgres, SourceSort::JetStream).await;
}

/// A message that names no trace gets one with its span, and its lines name that.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_that_begins_here_is_named_by_its_lines() {
    let collector = Collector::start().await;
    let sort = SourceSort::Queue;
    let scene = Scene::new(StoreKind::Sqlite, sort, &script(), TABLES, HANDLER).await;
    send(
        &scene,
        sort,
        &[Sent {
            id: "m1",
            headers: &[],
            steps: json!([{ "log": { "message": "said" } }, note()]),
        }],
    );
    let said = scene
        .host(
            &["--until-idle"],
            &[("HAPAX_TELEMETRY__OTLP", &collector.url())],
        )
        .wait_well();
    let spans = collector.spans();
    let process = spans.iter().find(|span| span.name() == "process subject");
    let trace_id = process.unwrap().trace_id();
    assert_eq!(one(&lines(&said), "said")["trace_id"], trace_id.as_str());

    // Without traces there is none to name.
    send(
        &scene,
        sort,
        &[Sent {
            id: "m2",
            headers: &[],
            steps: json!([{ "log": { "message": "said" } }, note()]),
        }],
    );
    let said = scene.run_until_idle();
    assert_eq!(one(&lines(&said), "said").get("trace_id"), None);
}
