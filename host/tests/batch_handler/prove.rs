//! `hapax test` on handlers of batches.

use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::stage::{effect, scene};
use crate::support::host::run;
use crate::support::scene::{Scene, SourceSort};

/// Runs `hapax test` on messages with these steps.
fn report(scene: &Scene, messages: &[Vec<Value>]) -> (Option<i32>, Value) {
    let lines: Vec<String> = messages
        .iter()
        .enumerate()
        .map(|(n, steps)| {
            let headers = json!({ "Message-Id": format!("m-{n}") });
            json!({ "headers": headers, "payload": { "steps": steps } }).to_string()
        })
        .collect();
    std::fs::write(scene.folder().join("messages.jsonl"), lines.join("\n")).unwrap();
    let output = run(scene.folder(), &["test", "--json"]);
    let report =
        serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.code(), report)
}

#[tokio::test]
async fn a_handler_that_does_the_same_in_any_batch_passes() {
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue, "").await;
    let publish = json!({ "publish": { "subject": "done", "payload": "x" } });
    let (code, report) = report(
        &scene,
        &[
            vec![effect(1), publish.clone()],
            vec![effect(2), publish],
            vec![effect(3), json!({ "reject": "no" })],
            vec![effect(4)],
        ],
    );
    // The attempt that it writes down is the one finding.
    assert_eq!(code, Some(1), "{report:#}");
    assert_eq!(report["findings"][0]["step"], "attempt", "{report:#}");
    assert_eq!(report["findings"].as_array().unwrap().len(), 1);
}

/// What a call does for all of its messages has to be what calls with each of them do.
#[tokio::test]
async fn what_depends_on_who_is_in_a_call_is_found() {
    let handler = "config = { calls = \"calls\" }";
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue, handler).await;
    let (code, report) = report(&scene, &[vec![effect(1)], vec![effect(2)], vec![effect(3)]]);
    assert_eq!(code, Some(1), "{report:#}");
    let finding = &report["findings"][0];
    assert_eq!(finding["step"], "batches", "{report:#}");
    assert_eq!(finding["messages"].as_array().unwrap().len(), 2);
    assert!(finding["what"].as_str().unwrap().starts_with("in one call"));
    let hint = finding["hint"].as_str().unwrap();
    assert!(hint.contains("GROUP BY"), "{hint}");
    let because = finding["because"].to_string();
    assert!(because.contains("INSERT INTO calls"), "{because}");
}
