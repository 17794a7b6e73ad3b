//! What a new project builds to does what its `expected.jsonl` says.

use std::collections::BTreeMap;

use serde_json::Value;
use sqlx::{Column as _, Connection as _, Row as _, SqliteConnection};

use crate::place::Place;

/// Builds, sends the project's messages, each twice, runs them, and compares the tables and the dead letters.
async fn does_what_it_expects(language: &str, called: &str) {
    let place = Place::with_project(language);
    let output = place.build();
    assert!(output.status.success(), "{}", output.err);
    // Steps come on standard error, the result on standard output.
    assert!(
        output.err.contains("making the component"),
        "{}",
        output.err
    );
    let mut lines = output.out.lines();
    assert_eq!(lines.next(), Some("./handler.wasm"), "{}", output.out);
    for words in [
        format!("  language   {called}"),
        "  imports    hapax:handler/types@0.1.0".to_owned(),
        "             hapax:handler/sql@0.1.0".to_owned(),
    ] {
        assert!(
            output.out.lines().any(|line| line == words),
            "{}",
            output.out
        );
    }
    assert!(!output.out.contains("wasi:"), "{}", output.out);
    let proved = place.hapax("credit", &["test"]);
    assert!(proved.status.success(), "{}{}", proved.out, proved.err);
    assert!(proved.out.contains("passed"), "{}", proved.out);

    for arguments in [
        &[
            "send",
            "payments",
            "--envelope",
            "--lines",
            "messages.jsonl",
        ][..],
        &[
            "send",
            "payments",
            "--envelope",
            "--lines",
            "messages.jsonl",
        ],
        &["run", "--until-idle"],
    ] {
        let output = place.hapax("credit", arguments);
        assert!(output.status.success(), "{arguments:?}: {}", output.err);
    }
    let url = format!("sqlite:{}", place.project().join("hapax.db").display());
    let mut database = SqliteConnection::connect(&url).await.unwrap();
    let expected = place.read("expected.jsonl");
    assert_eq!(expected.lines().count(), 2);
    for line in expected.lines() {
        let wanted: BTreeMap<String, Value> = serde_json::from_str(line).unwrap();
        match wanted.get("table") {
            Some(Value::String(table)) => {
                assert_eq!(table, "accounts");
                let rows = sqlx::query("SELECT id, balance FROM accounts ORDER BY id")
                    .fetch_all(&mut database)
                    .await
                    .unwrap();
                let rows: Vec<Value> = rows
                    .iter()
                    .map(|row| {
                        assert_eq!(row.column(0).name(), "id");
                        serde_json::json!({ "id": row.get::<String, _>(0), "balance": row.get::<i64, _>(1) })
                    })
                    .collect();
                assert_eq!(&Value::from(rows), &wanted["rows"]);
            }
            _ => {
                let letters = sqlx::query(
                    "SELECT message_id, reason FROM hapax_dead_letters ORDER BY message_id",
                )
                .fetch_all(&mut database)
                .await
                .unwrap();
                let letters: Vec<Value> = letters
                    .iter()
                    .map(|row| {
                        serde_json::json!({ "id": row.get::<String, _>(0), "reason": row.get::<String, _>(1) })
                    })
                    .collect();
                assert_eq!(&Value::from(letters), &wanted["dead"]);
            }
        }
    }
}

/// Builds that take minutes of computing run with the big sizes only.
fn is_full() -> bool {
    std::env::var_os("HAPAX_TEST_FULL").is_some()
}

#[tokio::test]
async fn rust() {
    does_what_it_expects("rust", "Rust").await;
}

#[tokio::test]
async fn c() {
    does_what_it_expects("c", "C").await;
}

#[tokio::test]
async fn javascript() {
    does_what_it_expects("js", "JavaScript").await;
}

#[tokio::test]
async fn typescript() {
    if is_full() {
        does_what_it_expects("ts", "TypeScript").await;
    }
}

#[tokio::test]
async fn python() {
    if is_full() {
        does_what_it_expects("python", "Python").await;
    }
}

#[tokio::test]
async fn go() {
    if is_full() {
        does_what_it_expects("go", "Go").await;
    }
}

#[test]
fn json_tells_the_same_and_an_unchanged_component_is_not_touched() {
    let place = Place::with_project("c");
    let output = place.hapax("", &["build", "credit", "--json"]);
    assert!(output.status.success(), "{}", output.err);
    let told: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(told["language"], "c");
    assert_eq!(told["file"], "credit/handler.wasm");
    assert_eq!(told["world"], "handler");
    assert_eq!(told["warnings"], "");
    let file = place.project().join("handler.wasm");
    assert_eq!(
        told["bytes"].as_u64().unwrap(),
        file.metadata().unwrap().len()
    );
    // What is made of the same sources is the same, and a host that follows the file has nothing to do.
    let before = file.metadata().unwrap().modified().unwrap();
    let again: Value =
        serde_json::from_str(&place.hapax("", &["build", "credit", "--json"]).out).unwrap();
    assert_eq!(again["digest"], told["digest"]);
    assert_eq!(file.metadata().unwrap().modified().unwrap(), before);

    let output = place.hapax(
        "",
        &["build", "credit", "--out", "elsewhere/other one.wasm"],
    );
    assert!(output.status.success(), "{}", output.err);
    assert_eq!(
        std::fs::read(place.path().join("elsewhere/other one.wasm")).unwrap(),
        std::fs::read(&file).unwrap()
    );
}

#[test]
fn an_sdk_that_is_gone_or_old_is_written_anew() {
    let place = Place::with_project("c");
    let sdk = place.project().join("sdk");
    let header = place.read("sdk/hapax.h");
    std::fs::remove_dir_all(&sdk).unwrap();
    let output = place.build();
    assert!(output.status.success(), "{}", output.err);
    assert!(output.err.contains("writing the SDK"), "{}", output.err);
    assert_eq!(place.read("sdk/hapax.h"), header);

    // What is there is the author's to keep, until told otherwise.
    std::fs::write(sdk.join("hapax.h"), format!("{header}// mine\n")).unwrap();
    assert!(place.build().status.success());
    assert!(place.read("sdk/hapax.h").ends_with("// mine\n"));
    let output = place.hapax("credit", &["build", "--update-sdk"]);
    assert!(output.status.success(), "{}", output.err);
    assert_eq!(place.read("sdk/hapax.h"), header);
}
