//! The embedded queue as a source, on both databases.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "seeds and counts explain a failure")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax::message::{Header, ShortHash};
use hapax::source::identity::IdPlaces;
use hapax::source::queue::Queue;
use hapax::source::{Delivery, Source as _, SourceError};
use hapax::store::{ClaimRequest, NewQueueRow, StoreKind, Tx};
use rand::RngExt as _;
use rand::SeedableRng as _;
use support::database::TestStore;

/// Longer than anything that a test waits for takes.
const LONG: Duration = Duration::from_secs(30);
/// Long enough for what must not happen to happen.
const QUIET: Duration = Duration::from_millis(700);

/// Runs a test's body on SQLite and on PostgreSQL.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::TestStore::sqlite().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::TestStore::postgres().await).await;
            })+
        }
    };
}

on_both!(
    rows_arrive_whole_and_in_order,
    answers_and_drops,
    dropping_next_loses_nothing,
    two_hosts_lose_no_row,
    waiting_rows_come_by_themselves,
    closing_ends_it,
);

fn queue(test: &TestStore) -> Queue {
    Queue::new(Arc::new(test.store.clone()), "q")
}

fn row(payload: &str) -> NewQueueRow {
    NewQueueRow {
        message_id: Some(format!("id-{payload}")),
        payload: payload.to_owned().into(),
        ..NewQueueRow::default()
    }
}

async fn enqueue(test: &TestStore, numbers: std::ops::Range<u32>) {
    let rows: Vec<NewQueueRow> = numbers.map(|number| row(&number.to_string())).collect();
    test.connect().await.enqueue("q", &rows).await.unwrap();
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.incoming.payload.to_vec()).unwrap()
}

fn texts(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(text).collect()
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

async fn take(queue: &mut Queue, count: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let more = tokio::time::timeout(LONG, queue.next(count - taken.len())).await;
        taken.extend(more.expect("nothing came").unwrap());
    }
    taken
}

async fn nothing(queue: &mut Queue) {
    if let Ok(came) = tokio::time::timeout(QUIET, queue.next(10)).await {
        panic!("{:?}", came.map(|deliveries| texts(&deliveries)));
    }
}

/// Takes the row in a transaction with a claim, and answers. False: another host had it.
async fn process(test: &TestStore, delivery: Delivery) -> bool {
    let mut connection = test.connect().await;
    loop {
        let mut tx = Tx::begin(connection).await.unwrap();
        let request = ClaimRequest {
            id: IdPlaces::parse(&["queue:id".into()])
                .unwrap()
                .find(&delivery.incoming)
                .unwrap(),
            payload_hash: ShortHash::of_payload(&delivery.incoming.payload),
        };
        tx.claim("c", std::slice::from_ref(&request), None)
            .await
            .unwrap();
        if tx
            .take_queue_rows(&[delivery.queue_row.unwrap()])
            .await
            .unwrap()
            .is_empty()
        {
            tx.rollback().await.unwrap();
            return false;
        }
        let ended = tx.commit().await;
        match ended.result {
            Ok(committed) => {
                delivery.ack(&request.id, &committed.settled).await.unwrap();
                return true;
            }
            Err(error) => {
                println!("{error}");
                connection = ended.connection.unwrap();
            }
        }
    }
}

async fn rows_arrive_whole_and_in_order(test: TestStore) {
    let mut queue = queue(&test);
    let header = |name: &str, value: &[u8]| Header {
        name: name.into(),
        value: bytes(value),
    };
    let first = NewQueueRow {
        message_id: Some("m-1".into()),
        subject: "payments".into(),
        headers: vec![
            header("Zone", b"a"),
            header("A", b"\xff\x00"),
            header("Zone", b"b"),
        ],
        content_type: Some("application/json".into()),
        payload: bytes(b"\x00\xff{}"),
    };
    let mut connection = test.connect().await;
    connection
        .enqueue("q", &[first.clone(), NewQueueRow::default()])
        .await
        .unwrap();
    connection.enqueue("other", &[row("other")]).await.unwrap();
    let deliveries = take(&mut queue, 2).await;
    let incoming = &deliveries[0].incoming;
    assert_eq!(incoming.subject, "payments");
    assert_eq!(incoming.headers, first.headers);
    assert_eq!(incoming.content_type, first.content_type);
    assert_eq!(incoming.payload, first.payload);
    assert_eq!(incoming.queue_id.as_deref(), Some("m-1"));
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    assert!((now.as_secs() as i64 - incoming.published_at.unwrap().seconds).abs() < 60);
    let number = deliveries[0].queue_row.unwrap();
    assert_eq!(incoming.position.0, number.to_string());
    assert_eq!(deliveries[0].delivered, 1);
    let empty = &deliveries[1].incoming;
    assert_eq!(
        (
            empty.subject.as_str(),
            empty.headers.len(),
            empty.payload.len()
        ),
        ("", 0, 0)
    );
    assert_eq!(empty.queue_id, None);
    nothing(&mut queue).await;
    assert_eq!(queue.backlog().await.unwrap(), 2);

    enqueue(&test, 0..100).await;
    let mut all = take(&mut queue, 30).await;
    all.extend(take(&mut queue, 70).await);
    assert_eq!(texts(&all), numbers(0..100));
}

fn bytes(bytes: &[u8]) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(bytes)
}

async fn answers_and_drops(test: TestStore) {
    let mut queue = queue(&test);
    enqueue(&test, 0..3).await;
    let mut deliveries = take(&mut queue, 3).await;
    nothing(&mut queue).await;

    assert!(process(&test, deliveries.remove(0)).await);
    assert_eq!(queue.backlog().await.unwrap(), 2);
    drop(deliveries.remove(0));
    let again = take(&mut queue, 1).await.remove(0);
    assert_eq!((text(&again).as_str(), again.delivered), ("1", 2));
    let started = Instant::now();
    deliveries
        .remove(0)
        .nak(Duration::from_millis(900))
        .await
        .unwrap();
    let late = take(&mut queue, 1).await.remove(0);
    assert!(
        started.elapsed() >= Duration::from_millis(900),
        "{:?}",
        started.elapsed()
    );
    assert_eq!((text(&late).as_str(), late.delivered), ("2", 2));
    assert!(process(&test, again).await);
    assert!(process(&test, late).await);
    nothing(&mut queue).await;
    assert_eq!(queue.backlog().await.unwrap(), 0);
}

async fn dropping_next_loses_nothing(test: TestStore) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    let mut queue = queue(&test);
    let mut taken = Vec::new();
    let mut enqueued = 0;
    let mut dropped = 0;
    let started = Instant::now();
    while taken.len() < 200 {
        assert!(started.elapsed() < LONG, "{} came", taken.len());
        if enqueued < 200 && rng.random_bool(0.2) {
            enqueue(&test, enqueued..enqueued + 20).await;
            enqueued += 20;
        }
        let patience = Duration::from_micros(rng.random_range(0..4000));
        let max = rng.random_range(1..20);
        match tokio::time::timeout(patience, queue.next(max)).await {
            Ok(deliveries) => {
                let deliveries = deliveries.unwrap();
                assert!((1..=max).contains(&deliveries.len()));
                taken.extend(deliveries);
            }
            Err(_) => dropped += 1,
        }
    }
    println!("{dropped} times dropped");
    assert!(dropped > 0);
    assert_eq!(texts(&taken), numbers(0..200));
    assert!(taken.iter().all(|delivery| delivery.delivered == 1));
}

async fn two_hosts_lose_no_row(test: TestStore) {
    const ROWS: u32 = 120;
    let test = Arc::new(test);
    enqueue(&test, 0..ROWS).await;
    let mut hosts = Vec::new();
    for _ in 0..2 {
        let test = Arc::clone(&test);
        hosts.push(tokio::spawn(async move {
            let mut queue = queue(&test);
            let mut done = Vec::new();
            let mut others = 0;
            while queue.backlog().await.unwrap() > 0 {
                let next = tokio::time::timeout(Duration::from_millis(300), queue.next(7)).await;
                for delivery in next.map(Result::unwrap).unwrap_or_default() {
                    let text = text(&delivery);
                    if process(&test, delivery).await {
                        done.push(text);
                    } else {
                        others += 1;
                    }
                }
            }
            (done, others)
        }));
    }
    let mut count = BTreeMap::new();
    for host in hosts {
        let (done, others) = host.await.unwrap();
        println!("{} done, {others} were the other's", done.len());
        for text in done {
            *count.entry(text).or_insert(0) += 1;
        }
    }
    assert_eq!(count.len(), ROWS as usize);
    assert!(count.values().all(|n| *n == 1), "{count:?}");
    let left = test
        .number(&format!("SELECT count(*) FROM {}", test.table("queue")))
        .await;
    assert_eq!(left, 0);
    let claims = test
        .number(&format!(
            "SELECT count(*) FROM {}",
            test.table("processed_messages")
        ))
        .await;
    assert_eq!(claims, i64::from(ROWS));
}

async fn waiting_rows_come_by_themselves(test: TestStore) {
    let mut queue = queue(&test);
    nothing(&mut queue).await;
    // By polling, from any program.
    let sql = format!(
        "INSERT INTO {} (queue, payload) VALUES ('q', 'plain')",
        test.table("queue")
    );
    test.run(&sql).await;
    let mut held = take(&mut queue, 1).await;
    assert_eq!(texts(&held), ["plain"]);
    // By a wake, at once.
    let waker = queue.waker();
    nothing(&mut queue).await;
    let mut connection = test.connect().await;
    let mut fastest = LONG;
    for number in 0..5 {
        nothing(&mut queue).await;
        connection
            .enqueue("q", &[row(&number.to_string())])
            .await
            .unwrap();
        let started = Instant::now();
        waker.wake();
        let came = take(&mut queue, 1).await;
        fastest = fastest.min(started.elapsed());
        assert_eq!(texts(&came), [number.to_string()]);
        held.extend(came);
    }
    assert!(fastest < Duration::from_millis(200), "{fastest:?}");
}

async fn closing_ends_it(test: TestStore) {
    let mut queue = queue(&test);
    enqueue(&test, 0..3).await;
    let taken = take(&mut queue, 1).await;
    let _ = tokio::time::timeout(Duration::from_millis(1), queue.next(1)).await;
    drop(taken);
    queue.close().await;
    assert!(matches!(queue.next(1).await, Err(SourceError::Unusable(_))));
    assert!(matches!(
        queue.backlog().await,
        Err(SourceError::Unusable(_))
    ));
    drop(queue);
    if test.kind() == StoreKind::Postgres {
        let mut probe = test.probe().await;
        let open =
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'hapax queue%'";
        probe.wait_for(open, 0).await;
    }
    // Another host has them all.
    let mut other = self::queue(&test);
    assert_eq!(texts(&take(&mut other, 3).await), numbers(0..3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_is_made_again() {
    let mut test = TestStore::postgres().await;
    let mut queue = queue(&test);
    enqueue(&test, 0..2).await;
    let held = take(&mut queue, 1).await;
    let mut postgres = test.postgres.take().unwrap();
    let mut probe = test.probe().await;
    // Sessions may outlive a killed server by a moment, so the queue's is ended first.
    let sessions = "FROM pg_stat_activity WHERE application_name LIKE 'hapax queue%'";
    probe
        .run(&format!("SELECT pg_terminate_backend(pid) {sessions}"))
        .await;
    probe
        .wait_for(&format!("SELECT count(*) {sessions}"), 0)
        .await;
    postgres.kill();
    let mut unavailable = 0;
    let started = Instant::now();
    while unavailable < 3 {
        match queue.next(5).await {
            Err(SourceError::Unavailable(_)) => unavailable += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(
        started.elapsed() >= Duration::from_millis(400),
        "a pause between two tries"
    );
    assert!(matches!(
        queue.backlog().await,
        Err(SourceError::Unavailable(_))
    ));
    postgres.restart();
    let started = Instant::now();
    let more = loop {
        assert!(started.elapsed() < LONG);
        match queue.next(5).await {
            Ok(deliveries) => break deliveries,
            Err(SourceError::Unavailable(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    };
    assert_eq!(texts(&more), ["1"], "what is in hand stays in hand");
    assert_eq!(texts(&held), ["0"]);
}
