//! The example does the same in each language, also when hosts are killed: on SQLite with the queue, on PostgreSQL with JetStream.

use std::os::unix::process::ExitStatusExt as _;

use hapax::store::StoreKind;
use serde_json::json;

use crate::support::scene::{Scene, SourceSort, TestMessage};
use crate::{credit_account, expected, in_each_language};

const COPIES: usize = 3;
const ACCOUNTS: i64 = 3;
/// For each account: `a1` gets the amounts 1, 4, 7, ..., `a2` the amounts 2, 5, 8, ...
const CREDITS: i64 = 24;
/// Above 2^53, where not every integer is a JavaScript number.
const GREAT: i64 = (1 << 53) + 1;

/// Two hosts at once get each message three times; one is killed before a commit, the other after one, and a third one goes on.
async fn does_what_the_contract_says(language: &str, kind: StoreKind) {
    let (source, file) = match kind {
        StoreKind::Sqlite => (SourceSort::Queue, "credit-sqlite.jsonl"),
        StoreKind::Postgres => (SourceSort::JetStream, "credit-postgres.jsonl"),
    };
    let component = credit_account(language);
    let tables = format!(
        "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL, \
         CONSTRAINT balance_cap CHECK (balance <= {GREAT}));\n\
         INSERT INTO accounts (id, balance) VALUES ('a1', 0), ('a2', 0), ('a3', 0), ('great', 0), ('capped', 0), ('ä😀', 0);"
    );
    // What an error of the database asks for is one run more: here there is none.
    let handler = "lanes = 1\nbatch = { max = 1 }\nretry = { attempts = 1 }";
    let scene = Scene::new(kind, source, &component, &tables, handler).await;

    let mut messages = Vec::new();
    for amount in 1..=CREDITS {
        let account = (amount - 1) % ACCOUNTS;
        let payload = json!({ "account": format!("a{}", account + 1), "amount": amount });
        messages.push(TestMessage::new(format!("m-{amount}"), &payload));
    }
    for (id, account, amount) in [
        ("great", "great", GREAT),
        ("letters", "ä😀", 1),
        ("missing", "nobody", 1),
        ("constraint", "capped", GREAT + 1),
    ] {
        messages.push(TestMessage::new(
            id,
            &json!({ "account": account, "amount": amount }),
        ));
    }
    for (id, payload) in [
        ("cut", r#"{"account":"a1","amount":"#),
        ("extra", r#"{"account":"a1","amount":5} x"#),
        ("absent", r#"{"account":"a1"}"#),
        ("fraction", r#"{"account":"a1","amount":5.5}"#),
        ("beyond", r#"{"account":"a1","amount":9223372036854775808}"#),
        ("no-text", r#"{"account":1,"amount":1}"#),
    ] {
        messages.push(TestMessage {
            id: Some(id.to_owned()),
            payload: payload.as_bytes().to_vec(),
        });
    }
    let copies: Vec<TestMessage> = (0..COPIES).flat_map(|_| messages.clone()).collect();
    scene.publish(&copies).await;

    // The first of them to die has left nearly all of the messages to the other.
    let killed = ["before-commit", "after-commit"].map(|point| {
        let told = scene.folder().join(point);
        let host = scene.host(
            &[],
            &[
                ("HAPAX_FAULT_POINT", &format!("{point}:3")),
                ("HAPAX_FAULT_FILE", &told.display().to_string()),
            ],
        );
        (point, told, host)
    });
    for (point, told, host) in killed {
        let (status, said) = host.wait();
        assert_eq!(status.signal(), Some(9), "{status}; the host said:\n{said}");
        assert_eq!(std::fs::read_to_string(&told).unwrap(), point);
    }
    assert!(scene.pending().await > 0, "nothing was left to do");
    scene.run_until_idle();

    assert_eq!(scene.pending().await, 0);
    assert_eq!(
        scene.count("processed_messages", "outcome = 'done'").await,
        CREDITS + 2
    );
    expected::compare(&scene, file, language).await;
}

in_each_language!(super::does_what_the_contract_says);
