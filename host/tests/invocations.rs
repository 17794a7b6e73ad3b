//! 100,000 calls of a handler, one in a hundred of which traps with all it holds: the host is as it was.
//!
//! With `HAPAX_TEST_FULL` there are 1,000,000; on PostgreSQL 10,000 without it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use hapax::handler::{Handler, HandlerOptions, Limits, Runtime, RuntimeOptions, Verdict};
use hapax::message::{Incoming, Message, MessageId, Position};
use hapax::store::{StoreKind, Tx};
use serde_json::{Value as Json, json};
use support::database::TestStore;

const CALLS: u64 = 100_000;
const TRAPS_ONE_IN: u64 = 100;
const CALLS_PER_TRANSACTION: u64 = 50;
/// How much more memory the process may hold after each 100,000 calls more.
const GROWTH_MAX_KIB: u64 = 1024;

fn handler() -> Handler {
    let path = support::scene::script();
    let component = Runtime::new(&RuntimeOptions {
        calls_max: 1,
        memory_max_bytes: 64 << 20,
    })
    .unwrap()
    .load_blocking("script.wasm", &std::fs::read(path).unwrap())
    .unwrap();
    let options = HandlerOptions {
        name: "script".into(),
        consumer: "script".into(),
        limits: Limits {
            memory_bytes: 16 << 20,
            cpu: Duration::from_secs(20),
            time: Duration::from_secs(60),
            ..Limits::DEFAULT
        },
        config: Default::default(),
        targets: Default::default(),
    };
    Handler::new(component, options).unwrap()
}

fn message(steps: &Json) -> Message {
    Message {
        id: MessageId::new("m").unwrap(),
        source: "source".into(),
        incoming: Incoming {
            subject: "subject".into(),
            headers: Vec::new(),
            content_type: None,
            payload: json!({ "steps": steps }).to_string().into(),
            published_at: None,
            position: Position("1".into()),
            queue_id: None,
        }
        .into(),
    }
}

/// What this process holds, in KiB, and how many files it has open.
fn held() -> (u64, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kib = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    (kib, std::fs::read_dir("/proc/self/fd").unwrap().count())
}

async fn calls_leave_nothing_behind(test: TestStore) {
    let is_full = std::env::var_os("HAPAX_TEST_FULL").is_some();
    let count = match test.kind() {
        _ if is_full => CALLS * 10,
        StoreKind::Sqlite => CALLS,
        // The calls are the same; a statement takes longer.
        StoreKind::Postgres => CALLS / 10,
    };
    test.run("CREATE TABLE notes (number bigint); CREATE TABLE numbers (n bigint); INSERT INTO numbers VALUES (1), (2), (3)")
        .await;
    let handler = handler();
    let effect = json!({"execute": "INSERT INTO notes VALUES (1)"});
    let good = message(&json!([effect]));
    let open =
        json!({"open_cursor": {"name": "c", "statement": "SELECT n FROM numbers ORDER BY n"}});
    let traps = [
        json!({"panic": "with a savepoint and a cursor open"}),
        json!({"unreachable": true}),
        json!({"alloc": 100 << 20}),
    ]
    .map(|trap| {
        message(&json!([effect, open, {"savepoint": "release", "steps": [effect, open, trap]}]))
    });

    let mut connection = Some(test.connect().await);
    let mut connects = 1;
    let mut number = 0;
    let mut kept = 0_i64;
    let mut at_half = (0, 0);
    while number < count {
        let usable = match connection.take() {
            Some(usable) => usable,
            None => {
                connects += 1;
                test.connect().await
            }
        };
        let mut tx = Tx::begin(usable).await.unwrap();
        let mut done = 0;
        connection = loop {
            if done == CALLS_PER_TRANSACTION || number == count {
                let ended = tx.commit().await;
                ended.result.unwrap();
                kept += i64::try_from(done).unwrap();
                break ended.connection;
            }
            number += 1;
            let is_trap = number.is_multiple_of(TRAPS_ONE_IN);
            let message = if is_trap {
                &traps[usize::try_from(number / TRAPS_ONE_IN).unwrap() % traps.len()]
            } else {
                &good
            };
            let called = handler.call(tx, message, None, 1).await;
            tx = called.tx.unwrap();
            match called.verdict {
                Verdict::Ok if !is_trap => done += 1,
                Verdict::Trap { .. }
                | Verdict::Limit {
                    limit: "memory", ..
                } if is_trap => {
                    break tx.rollback().await;
                }
                other => panic!("call {number}: {other:?}"),
            }
        };
        if at_half == (0, 0) && number >= count / 2 {
            at_half = held();
        }
    }
    let (memory, files) = held();
    // A trap costs no connection.
    assert_eq!(connects, 1);
    assert_eq!(test.number("SELECT count(*) FROM notes").await, kept);
    assert_eq!(files, at_half.1, "files are left open");
    let grown = memory.saturating_sub(at_half.0);
    eprintln!(
        "{count} calls: {memory} KiB, {grown} KiB more than after half of them, {files} files"
    );
    assert!(
        grown < GROWTH_MAX_KIB * count.div_ceil(CALLS),
        "{grown} KiB more than after half of {count} calls"
    );

    // Nothing of it is open in the database: it can all be dropped while the connection is there.
    let mut probe = test.probe().await;
    if test.kind() == StoreKind::Postgres {
        let busy = "SELECT count(*) FROM pg_locks WHERE pid <> pg_backend_pid() AND locktype <> 'virtualxid' \
                    AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())";
        assert_eq!(probe.number(busy).await, 0);
    }
    probe.run("DROP TABLE notes; DROP TABLE numbers").await;
}

#[tokio::test]
async fn calls_leave_nothing_behind_on_sqlite() {
    calls_leave_nothing_behind(TestStore::sqlite().await).await;
}

#[tokio::test]
async fn calls_leave_nothing_behind_on_postgres() {
    calls_leave_nothing_behind(TestStore::postgres().await).await;
}
