//! The host dies by SIGKILL at each named point, on both databases and both sources; after a restart every sum is exact.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::os::unix::process::ExitStatusExt as _;

use hapax::store::StoreKind;
use support::scene::{Scene, SourceSort, TestMessage, credit_account};

const MESSAGES: i64 = 12;

/// How many times the point is passed: messages before it are done, others wait.
fn passes(point: &str, batch_max: usize) -> u32 {
    match point {
        // Messages are fetched many at a time.
        "after-fetch" => 1,
        // Once a batch.
        "after-claim" | "before-commit" | "after-commit" if batch_max > 1 => 1,
        _ => 3,
    }
}

async fn dies_at(point: &str, kind: StoreKind, source: SourceSort) {
    // On PostgreSQL the two sources share the four shapes; SQLite has one writer.
    let shapes = match (kind, source) {
        (StoreKind::Postgres, SourceSort::JetStream) => [(1, 1), (50, 4)],
        (StoreKind::Postgres, SourceSort::Queue) => [(1, 4), (50, 1)],
        (StoreKind::Sqlite, _) => [(1, 1), (50, 1)],
    };
    for (batch_max, lanes) in shapes {
        dies_in_a_batch(point, kind, source, batch_max, lanes).await;
    }
}

async fn dies_in_a_batch(
    point: &str,
    kind: StoreKind,
    source: SourceSort,
    batch_max: usize,
    lanes: usize,
) {
    let tables = "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);\n\
                  INSERT INTO accounts (id, balance) VALUES ('a', 0);";
    let handler = format!("lanes = {lanes}\nbatch = {{ max = {batch_max} }}");
    let scene = Scene::new(kind, source, &credit_account(), tables, &handler).await;
    let messages: Vec<TestMessage> = (1..=MESSAGES)
        .map(|amount| {
            TestMessage::new(
                format!("m-{amount}"),
                &serde_json::json!({ "account": "a", "amount": amount }),
            )
        })
        .collect();
    scene.publish(&messages).await;

    let told = scene.folder().join("died-at");
    let pass = passes(point, batch_max);
    let host = scene.host(
        &["--until-idle"],
        &[
            ("HAPAX_FAULT_POINT", &format!("{point}:{pass}")),
            ("HAPAX_FAULT_FILE", &told.display().to_string()),
        ],
    );
    let (status, said) = host.wait();
    assert_eq!(status.signal(), Some(9), "{status}; the host said:\n{said}");
    assert_eq!(std::fs::read_to_string(&told).unwrap(), point);
    if batch_max == 1 {
        // The kill came in the middle.
        assert!(scene.pending().await > 0, "{point}: nothing was left to do");
    }

    scene.run_until_idle();
    assert_eq!(
        scene.store.number("SELECT balance FROM accounts").await,
        (1..=MESSAGES).sum::<i64>()
    );
    assert_eq!(
        scene.count("processed_messages", "outcome = 'done'").await,
        MESSAGES
    );
    assert_eq!(scene.count("dead_letters", "true").await, 0);
    assert_eq!(scene.count("attempts", "true").await, 0);
    assert_eq!(scene.pending().await, 0);
}

/// Makes a test for a point on each database and source.
macro_rules! dies {
    ($($module:ident: $point:literal,)*) => {
        /// The points that have tests: all that there are.
        const TESTED: &[&str] = &[$($point),*];

        $(
            mod $module {
                use super::*;

                #[tokio::test]
                async fn on_postgres_with_jetstream() {
                    dies_at($point, StoreKind::Postgres, SourceSort::JetStream).await;
                }

                #[tokio::test]
                async fn on_postgres_with_the_queue() {
                    dies_at($point, StoreKind::Postgres, SourceSort::Queue).await;
                }

                #[tokio::test]
                async fn on_sqlite_with_jetstream() {
                    dies_at($point, StoreKind::Sqlite, SourceSort::JetStream).await;
                }

                #[tokio::test]
                async fn on_sqlite_with_the_queue() {
                    dies_at($point, StoreKind::Sqlite, SourceSort::Queue).await;
                }
            }
        )*
    };
}

dies! {
    after_fetch: "after-fetch",
    after_claim: "after-claim",
    after_first_sql: "after-first-sql",
    after_handler: "after-handler",
    before_commit: "before-commit",
    after_commit: "after-commit",
    before_ack: "before-ack",
    after_ack: "after-ack",
}

#[test]
fn every_point_is_tested() {
    assert_eq!(TESTED, hapax::fault::POINTS);
}
