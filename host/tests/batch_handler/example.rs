//! The example `credit-accounts`: one statement for a whole batch, and accounts that do not exist.

use std::path::Path;

use hapax::store::StoreKind;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use tempfile::TempDir;

use crate::support::host::run;
use crate::support::postgres::Postgres;
use crate::support::scene::{Scene, SourceSort, TestMessage, credit_accounts};

/// The line that SQLite needs.
const JSON: &str = "config = { arrays = \"json\" }";

async fn all_accounts_of_a_batch_are_credited(kind: StoreKind, source: SourceSort, config: &str) {
    let accounts: Vec<String> = (0..20).map(|n| format!("('a{n}', 0)")).collect();
    let tables = format!(
        "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);\nINSERT INTO accounts (id, balance) VALUES {};",
        accounts.join(", ")
    );
    let lanes = match kind {
        StoreKind::Postgres => 2,
        StoreKind::Sqlite => 1,
    };
    let handler = format!("lanes = {lanes}\nbatch = {{ max = 200 }}\n{config}");
    let scene = Scene::new(kind, source, &credit_accounts(), &tables, &handler).await;
    let mut random = rand::rngs::StdRng::seed_from_u64(5);
    let mut sums = [0_i64; 20];
    let messages: Vec<TestMessage> = (0..600)
        .map(|n| {
            let id = format!("m-{n}");
            match n {
                100 => TestMessage::new(id, &json!({ "account": "nobody", "amount": 5 })),
                333 => TestMessage::new(id, &json!({ "account": 5 })),
                _ => {
                    let account = random.random_range(0..20_usize);
                    let amount = random.random_range(1..100);
                    sums[account] += amount;
                    TestMessage::new(
                        id,
                        &json!({ "account": format!("a{account}"), "amount": amount }),
                    )
                }
            }
        })
        .collect();
    scene.publish(&messages).await;
    scene.run_until_idle();
    for (account, sum) in sums.into_iter().enumerate() {
        let sql = format!("SELECT balance FROM accounts WHERE id = 'a{account}'");
        assert_eq!(scene.store.number(&sql).await, sum, "a{account}");
    }
    assert_eq!(scene.count("dead_letters", "class = 'rejected'").await, 2);
    let nobody = "message_id = 'm-100' AND reason LIKE '%`nobody` does not exist'";
    assert_eq!(scene.count("dead_letters", nobody).await, 1);
    assert_eq!(
        scene.count("processed_messages", "outcome = 'done'").await,
        598
    );
    assert_eq!(scene.status()["retried"], 0);
}

#[tokio::test]
async fn on_postgres_with_arrays() {
    let kind = StoreKind::Postgres;
    all_accounts_of_a_batch_are_credited(kind, SourceSort::Queue, "").await;
}

#[tokio::test]
async fn on_sqlite_with_json() {
    let kind = StoreKind::Sqlite;
    all_accounts_of_a_batch_are_credited(kind, SourceSort::JetStream, JSON).await;
}

/// A copy of the example's folder, so that no database stays in it.
fn copied() -> TempDir {
    let component = credit_accounts();
    let example = component.parent().unwrap();
    let folder = TempDir::with_prefix("hapax-credit-accounts-").unwrap();
    for kind in ["postgres", "sqlite"] {
        std::fs::create_dir_all(folder.path().join("migrations").join(kind)).unwrap();
    }
    for file in [
        "hapax.toml",
        "messages.jsonl",
        "credit-accounts.wasm",
        "migrations/postgres/0001_accounts.sql",
        "migrations/sqlite/0001_accounts.sql",
    ] {
        std::fs::copy(example.join(file), folder.path().join(file)).unwrap();
    }
    folder
}

/// Runs `hapax test` with more arguments, and asserts that it tried a batch and found nothing.
fn assert_proved(folder: &Path, arguments: &[&str]) {
    let output = run(folder, &[&["test", "--json"], arguments].concat());
    assert!(output.status.success(), "{}{}", output.out, output.err);
    let report: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(report["passed"], true, "{report:#}");
    let steps = report["steps"].as_array().unwrap();
    assert!(
        steps.iter().any(|step| step["step"] == "batches"),
        "{report:#}"
    );
}

#[test]
fn its_messages_leave_the_same_alone_and_together() {
    let folder = copied();
    assert_proved(folder.path(), &[]);

    let postgres = Postgres::start();
    let config = folder.path().join("hapax.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.contains(JSON), "{text}");
    std::fs::write(&config, text.replace(JSON, "")).unwrap();
    assert_proved(
        folder.path(),
        &["--database", &postgres.url("postgres"), "--shuffles", "1"],
    );
}
