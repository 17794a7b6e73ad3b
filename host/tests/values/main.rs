//! Every type, both ways: a handler writes and an independent client reads, the client writes and the handler reads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod constraints;
mod postgres;
mod refused;
mod sqlite;

use hapax::store::StoreKind;
use serde_json::{Value, json};
use support::scene::{Scene, SourceSort, TestMessage, script};

/// One value of a column's type.
struct Case {
    /// As a column is declared.
    declared: &'static str,
    /// What the handler passes.
    passed: Value,
    /// What the client reads then, as text, and what it writes; `None` is NULL.
    text: Option<String>,
    /// What the handler reads.
    read: Value,
}

/// The handler reads what it passed.
fn case(declared: &'static str, value: Value, text: &str) -> Case {
    Case {
        declared,
        passed: value.clone(),
        text: Some(text.to_owned()),
        read: value,
    }
}

impl Case {
    fn reads(mut self, read: Value) -> Self {
        self.read = read;
        self
    }
}

fn null(declared: &'static str) -> Case {
    Case {
        declared,
        passed: json!({ "null": true }),
        text: None,
        read: json!({ "null": true }),
    }
}

fn text(text: &str) -> Value {
    json!({ "text": text })
}

/// All types in their order, each once.
fn types(cases: &[Case]) -> Vec<&'static str> {
    let mut types = Vec::new();
    for case in cases {
        if !types.contains(&case.declared) {
            types.push(case.declared);
        }
    }
    types
}

async fn scene(kind: StoreKind, tables: &str) -> Scene {
    let tables = format!("CREATE TABLE results (key text PRIMARY KEY, value text);\n{tables}");
    let handler = "lanes = 1\nretry = { attempts = 1, backoff = \"10ms\" }\nlimits = { cpu = \"60s\", time = \"120s\" }";
    Scene::new(kind, SourceSort::Queue, &script(), &tables, handler).await
}

/// Runs one message, which must succeed.
async fn run(scene: &Scene, id: &str, steps: Vec<Value>) {
    scene
        .publish(&[TestMessage::new(id, &json!({ "steps": steps }))])
        .await;
    let log = scene.run_until_idle();
    let done = format!("message_id = '{id}' AND outcome = 'done'");
    assert_eq!(scene.count("processed_messages", &done).await, 1, "{log}");
}

/// What a step has recorded under a key.
async fn recorded(scene: &Scene, key: &str) -> Value {
    let sql = format!("SELECT value FROM results WHERE key = '{key}'");
    serde_json::from_str(&scene.store.text(&sql).await.unwrap()).unwrap()
}

fn record(key: &str) -> Value {
    json!({ "table": "results", "key": key })
}

/// Has the handler write all cases and the client read them, and the other way. `as_text` is how the client reads the column
/// `v`, `literal` how it writes a text into a column of a type; `name` is what the type is called in results.
async fn matrix(
    scene: &Scene,
    cases: &[Case],
    as_text: &str,
    literal: impl Fn(&str, &str) -> String,
    name: impl Fn(&str) -> String,
) {
    let types = types(cases);
    let table = |declared: &str| {
        types
            .iter()
            .position(|known| *known == declared)
            .map(|place| format!("t{place}"))
            .unwrap()
    };

    // The handler writes, in one transaction.
    let steps = cases
        .iter()
        .enumerate()
        .map(|(number, case)| {
            json!({
                "execute": format!("INSERT INTO {} (n, v) VALUES ({number}, $1)", table(case.declared)),
                "params": [case.passed], "expect_count": 1,
            })
        })
        .collect();
    run(scene, "writes", steps).await;
    let mut wrong = Vec::new();
    let mut client = scene.store.probe().await;
    if scene.store.kind() == StoreKind::Postgres {
        client.run("SET TimeZone = 'UTC'").await;
    }
    for (number, case) in cases.iter().enumerate() {
        let sql = format!(
            "SELECT {as_text} FROM {} WHERE n = {number}",
            table(case.declared)
        );
        let found = client.text(&sql).await;
        if found != case.text {
            wrong.push(format!(
                "{}: passed {}: the client reads {found:?}, not {:?}",
                case.declared, case.passed, case.text
            ));
        }
    }

    // The client writes, and the handler reads by a query and by a cursor.
    let mut sql = String::new();
    for declared in &types {
        sql.push_str(&format!("DELETE FROM {};", table(declared)));
    }
    for (number, case) in cases.iter().enumerate() {
        let value = match &case.text {
            None => "NULL".to_owned(),
            Some(text) => literal(case.declared, text),
        };
        let table = table(case.declared);
        sql.push_str(&format!(
            "INSERT INTO {table} (n, v) VALUES ({number}, {value});"
        ));
    }
    client.run(&format!("BEGIN; {sql} COMMIT")).await;
    let mut steps = Vec::new();
    for declared in &types {
        let table = table(declared);
        let all = format!("SELECT n, v FROM {table} ORDER BY n");
        steps.push(json!({ "query": all, "record": record(&format!("{table} query")) }));
        steps.push(
            json!({ "cursor": all, "fetch": 3, "record": record(&format!("{table} cursor")) }),
        );
        steps.push(json!({
            "query": format!("SELECT n, v FROM {table} WHERE n < 0"),
            "record": record(&format!("{table} none")),
        }));
    }
    run(scene, "reads", steps).await;
    for declared in &types {
        let table = table(declared);
        let expected: Vec<Value> = cases
            .iter()
            .enumerate()
            .filter(|(_, case)| case.declared == *declared)
            .map(|(number, case)| {
                // As the record: numbers are written exactly, but this reader may be off by a digit.
                serde_json::from_str(&json!([{ "int64": number }, case.read]).to_string()).unwrap()
            })
            .collect();
        for way in ["query", "cursor", "none"] {
            let found = recorded(scene, &format!("{table} {way}")).await;
            if found["columns"][1] != json!(["v", name(declared)]) {
                wrong.push(format!(
                    "{declared}: {way} names the column {}",
                    found["columns"][1]
                ));
            }
            if way == "none" {
                assert_eq!(found["rows"], json!([]));
                continue;
            }
            for (found, expected) in found["rows"].as_array().unwrap().iter().zip(&expected) {
                if found != expected {
                    wrong.push(format!("{declared}: {way} gives {found}, not {expected}"));
                }
            }
            assert_eq!(found["rows"].as_array().unwrap().len(), expected.len());
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
