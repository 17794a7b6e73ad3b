//! The promise as a whole: thousands of messages, each three times, two hosts at once; every sum must be exact.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may stop at once, and prints its seed"
)]

mod support;

use std::collections::BTreeMap;

use hapax::store::StoreKind;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use support::scene::{Scene, SourceSort, TestMessage, credit_account};

const COPIES: usize = 3;
const ACCOUNTS: usize = 100;

fn tables() -> String {
    let accounts: Vec<String> = (0..ACCOUNTS)
        .map(|number| format!("('a{number}', 0)"))
        .collect();
    format!(
        "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);\n\
         INSERT INTO accounts (id, balance) VALUES {};",
        accounts.join(", ")
    )
}

/// 5,000 messages through JetStream and PostgreSQL, every one published three times under one id, two hosts at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hosts_and_three_copies_of_each_message_give_exact_sums() {
    two_hosts_give_exact_sums(5_000, "").await;
}

/// Fewer of them, however they are put together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_shape_of_batches_gives_exact_sums() {
    for handler in [
        "lanes = 1\nbatch = { max = 1 }",
        "lanes = 4\nbatch = { max = 1 }",
        "lanes = 1\nbatch = { max = 50 }",
        "lanes = 4\nbatch = { max = 50 }",
    ] {
        two_hosts_give_exact_sums(500, handler).await;
    }
}

async fn two_hosts_give_exact_sums(count: usize, handler: &str) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    let mut messages = Vec::with_capacity(count * COPIES);
    for number in 0..count {
        let account = format!("a{}", random.random_range(0..ACCOUNTS));
        let amount: i64 = random.random_range(-1_000..=1_000);
        *expected.entry(account.clone()).or_default() += amount;
        let message = TestMessage::new(
            format!("m-{number}"),
            &serde_json::json!({ "account": account, "amount": amount }),
        );
        messages.extend(std::iter::repeat_n(message, COPIES));
    }
    messages.shuffle(&mut random);

    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::JetStream,
        &credit_account(),
        &tables(),
        handler,
    )
    .await;
    let mut hosts = [scene.host(&[], &[]), scene.host(&[], &[])];
    for host in &mut hosts {
        host.wait_until_ready();
    }
    scene.publish(&messages).await;
    scene.wait_until_nothing_pends().await;
    for host in hosts {
        host.terminate();
        host.wait_well();
    }

    let mut wrong = Vec::new();
    for (account, balance) in &expected {
        let found = scene
            .store
            .number(&format!(
                "SELECT balance FROM accounts WHERE id = '{account}'"
            ))
            .await;
        if found != *balance {
            wrong.push(format!("{account}: {found} instead of {balance}"));
        }
    }
    assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
    assert_eq!(
        scene.count("processed_messages", "outcome = 'done'").await,
        count as i64
    );
    assert_eq!(
        scene.count("processed_messages", "true").await,
        count as i64
    );
    assert_eq!(scene.count("dead_letters", "true").await, 0);
    let status = scene.status();
    assert_eq!(status["claimed"], count, "{status}");
    assert_eq!(status["duplicates"], count * (COPIES - 1), "{status}");
    assert_eq!(status["backlog"], 0, "{status}");
}
