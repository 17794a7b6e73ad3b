//! The contract in five languages: one handler in Rust, C, JavaScript, TypeScript and Python does the same, on both databases and sources, also when hosts are killed.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use hapax::store::StoreKind;
use serde_json::json;
use support::scene::{
    Scene, SourceSort, TestMessage, credit_account, credit_account_c, credit_account_js,
    credit_account_python, credit_account_ts,
};

const COPIES: usize = 3;
const ACCOUNTS: i64 = 3;
/// For each account: `a1` gets the amounts 1, 4, 7, ..., `a2` the amounts 2, 5, 8, ...
const CREDITS: i64 = 24;
/// Above 2^53, where not every integer is a JavaScript number.
const GREAT: i64 = (1 << 53) + 1;

/// Two hosts at once get each message three times; one is killed before a commit, the other after one, and a third one goes on.
async fn does_what_the_contract_says(component: PathBuf, kind: StoreKind, source: SourceSort) {
    let tables = format!(
        "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL, \
         CONSTRAINT balance_cap CHECK (balance <= {GREAT}));\n\
         INSERT INTO accounts (id, balance) VALUES ('a1', 0), ('a2', 0), ('a3', 0), ('great', 0), ('capped', 0), ('ä😀', 0);"
    );
    // What an error of the database asks for is one run more: here there is none.
    let handler = "lanes = 1\nbatch = { max = 1 }\nretry = { attempts = 1 }";
    let scene = Scene::new(kind, source, &component, &tables, handler).await;

    let mut messages = Vec::new();
    let mut expected = [0; ACCOUNTS as usize];
    for amount in 1..=CREDITS {
        let account = (amount - 1) % ACCOUNTS;
        expected[usize::try_from(account).unwrap()] += amount;
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

    for (number, sum) in (1..).zip(expected) {
        assert_eq!(balance(&scene, &format!("a{number}")).await, sum);
    }
    assert_eq!(balance(&scene, "great").await, GREAT);
    assert_eq!(balance(&scene, "ä😀").await, 1);
    assert_eq!(scene.pending().await, 0);
    assert_eq!(
        scene.count("processed_messages", "outcome = 'done'").await,
        CREDITS + 2
    );
    assert_eq!(scene.count("dead_letters", "true").await, 8);

    assert_eq!(
        reason(&scene, "missing").await,
        "rejected: account `nobody` does not exist"
    );
    // The host's record, as each handler puts it together from code, message and detail.
    let refused = match kind {
        StoreKind::Sqlite => "retried: constraint.check: CHECK constraint failed: balance_cap",
        StoreKind::Postgres => {
            "retried: constraint.check: new row for relation \"accounts\" violates check constraint \"balance_cap\" \
             (Failing row contains (capped, 9007199254740994).)"
        }
    };
    assert_eq!(reason(&scene, "constraint").await, refused);
    for id in ["cut", "extra", "absent", "fraction", "beyond", "no-text"] {
        let reason = reason(&scene, id).await;
        assert!(
            reason.starts_with("rejected: payload is not the expected JSON: "),
            "{id}: {reason}"
        );
    }
}

async fn balance(scene: &Scene, account: &str) -> i64 {
    let sql = format!("SELECT balance FROM accounts WHERE id = '{account}'");
    scene.store.number(&sql).await
}

/// Returns the class and the reason of the dead letter.
async fn reason(scene: &Scene, id: &str) -> String {
    let letters = scene.store.table("dead_letters");
    let sql = format!("SELECT class || ': ' || reason FROM {letters} WHERE message_id = '{id}'");
    let found = scene.store.text(&sql).await;
    found.unwrap_or_else(|| panic!("`{id}` is no dead letter"))
}

/// Makes the tests of a language.
macro_rules! languages {
    ($($language:ident: $component:expr,)*) => {$(
        mod $language {
            use super::*;

            #[tokio::test]
            async fn on_sqlite_with_the_queue() {
                does_what_the_contract_says($component, StoreKind::Sqlite, SourceSort::Queue).await;
            }

            #[tokio::test]
            async fn on_postgres_with_jetstream() {
                does_what_the_contract_says($component, StoreKind::Postgres, SourceSort::JetStream).await;
            }
        }
    )*};
}

languages! {
    rust: credit_account(),
    c: credit_account_c(),
    javascript: credit_account_js(),
    python: credit_account_python(),
}

/// As JavaScript in all that runs: with the big sizes only.
mod typescript {
    use super::*;

    #[tokio::test]
    async fn on_sqlite_with_the_queue() {
        if std::env::var_os("HAPAX_TEST_FULL").is_some() {
            let component = credit_account_ts();
            does_what_the_contract_says(component, StoreKind::Sqlite, SourceSort::Queue).await;
        }
    }

    #[tokio::test]
    async fn on_postgres_with_jetstream() {
        if std::env::var_os("HAPAX_TEST_FULL").is_some() {
            let component = credit_account_ts();
            does_what_the_contract_says(component, StoreKind::Postgres, SourceSort::JetStream)
                .await;
        }
    }
}
