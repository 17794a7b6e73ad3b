//! Which rows of the outbox a relay gets, on both databases: what one host has in hand is nobody else's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use hapax::store::{OutboxMarks, OutboxQuery, OutboxTaken, StoreKind};
use support::database::TestStore;

fn query() -> OutboxQuery {
    OutboxQuery {
        consumer: "c".to_owned(),
        targets: vec!["next".to_owned()],
        without_target: false,
        from_key: String::new(),
        limit: 10,
    }
}

/// Writes a row.
async fn insert(store: &TestStore, number: i64, key: &str) {
    let (overriding, payload) = match store.kind() {
        StoreKind::Postgres => ("OVERRIDING SYSTEM VALUE", "''"),
        StoreKind::Sqlite => ("", "x''"),
    };
    store
        .run(&format!(
            "INSERT INTO {} (number, id, consumer, message_id, ordinal, target, subject, key, headers, payload) \
             {overriding} VALUES ({number}, 'row-{number}', 'c', 'm', {number}, 'next', 's', '{key}', '[]', {payload})",
            store.table("outbox")
        ))
        .await;
}

fn numbers(taken: &OutboxTaken) -> Vec<i64> {
    taken
        .messages
        .iter()
        .map(|message| message.number)
        .collect()
}

/// All that was taken goes into a queue.
fn enqueue(taken: &OutboxTaken) -> OutboxMarks {
    OutboxMarks {
        enqueued: numbers(taken)
            .into_iter()
            .map(|number| ("later".to_owned(), number))
            .collect(),
        ..OutboxMarks::default()
    }
}

/// A host has rows of a key in hand when one with a smaller number comes into sight; another host takes that one alone.
async fn only_the_new_head_is_free(store: &TestStore) {
    let (mut one, mut two) = (store.connect().await, store.connect().await);
    let first = one.take_outbox(&query()).await.unwrap().unwrap();
    assert_eq!(numbers(&first), [2, 3]);
    insert(store, 1, "k").await;
    // Behind rows that are not free, so it stays, too.
    insert(store, 4, "k").await;
    let second = two.take_outbox(&query()).await.unwrap().unwrap();
    assert_eq!(
        numbers(&second),
        [1],
        "rows 2 and 3 are in the other host's hands"
    );

    let (marks_of_first, marks_of_second) = (enqueue(&first), enqueue(&second));
    let (first, second) = tokio::join!(
        one.settle_outbox(&marks_of_first),
        two.settle_outbox(&marks_of_second)
    );
    first.unwrap();
    second.unwrap();
    let rest = one.take_outbox(&query()).await.unwrap().unwrap();
    assert_eq!(numbers(&rest), [4]);
    one.settle_outbox(&enqueue(&rest)).await.unwrap();
    let queue = store.table("queue");
    let counts = format!("SELECT count(*) * 100 + count(DISTINCT message_id) FROM {queue}");
    assert_eq!(store.number(&counts).await, 404);
}

#[tokio::test]
async fn rows_in_hand_stay_there_when_a_smaller_number_commits_late() {
    let store = TestStore::postgres().await;
    for number in [2, 3] {
        insert(&store, number, "k").await;
    }
    only_the_new_head_is_free(&store).await;
}

#[tokio::test]
async fn rows_in_hand_stay_there_when_an_older_one_is_republished() {
    let store = TestStore::postgres().await;
    for number in [1, 2, 3] {
        insert(&store, number, "k").await;
    }
    let (mut one, mut two) = (store.connect().await, store.connect().await);
    let all = one.take_outbox(&query()).await.unwrap().unwrap();
    assert_eq!(numbers(&all), [1, 2, 3]);
    let marks = OutboxMarks {
        published: vec![1],
        ..OutboxMarks::default()
    };
    one.settle_outbox(&marks).await.unwrap();
    let first = one.take_outbox(&query()).await.unwrap().unwrap();
    assert_eq!(numbers(&first), [2, 3]);
    let mut operator = store.connect().await;
    assert_eq!(operator.republish_outbox(&[1]).await.unwrap(), [1]);
    let second = two.take_outbox(&query()).await.unwrap().unwrap();
    assert_eq!(
        numbers(&second),
        [1],
        "rows 2 and 3 are in the other host's hands"
    );
    one.give_back_outbox().await.unwrap();
    two.give_back_outbox().await.unwrap();
    let all = two.take_outbox(&query()).await.unwrap().unwrap();
    assert_eq!(numbers(&all), [1, 2, 3]);
    two.give_back_outbox().await.unwrap();
}

/// On SQLite one host at a time has rows in hand, so nothing that comes into sight can be mixed up with them.
#[tokio::test]
async fn on_sqlite_one_host_has_all_that_is_in_hand() {
    let store = TestStore::sqlite().await;
    for number in [2, 3] {
        insert(&store, number, "k").await;
    }
    let (mut one, mut two) = (store.connect().await, store.connect().await);
    let first = one.take_outbox(&query()).await.unwrap().unwrap();
    assert_eq!(numbers(&first), [2, 3]);
    assert!(two.take_outbox(&query()).await.unwrap().is_none());
    one.settle_outbox(&enqueue(&first)).await.unwrap();
    let nothing = two.take_outbox(&query()).await.unwrap().unwrap();
    assert_eq!(numbers(&nothing), [0_i64; 0]);
    two.give_back_outbox().await.unwrap();
    let count = format!("SELECT count(*) FROM {}", store.table("queue"));
    assert_eq!(store.number(&count).await, 2);
}

/// Every key has its turn, the empty one and those that begin alike too, however few rows are taken at once.
async fn every_key_has_its_turn(store: TestStore) {
    let keys = ["", "a", "a ", "a!", "aa", "b", "\u{e9}"];
    for (number, key) in (1..).zip(keys) {
        insert(&store, number, key).await;
    }
    let mut connection = store.connect().await;
    let mut query = OutboxQuery {
        limit: 2,
        ..query()
    };
    assert!(connection.has_outbox(&query).await.unwrap());
    let mut seen = Vec::new();
    loop {
        let taken = connection.take_outbox(&query).await.unwrap().unwrap();
        seen.extend(numbers(&taken));
        connection.give_back_outbox().await.unwrap();
        if taken.from_key.is_empty() {
            break;
        }
        query.from_key = taken.from_key;
    }
    // In the order of the keys' bytes, which is that of the numbers here.
    assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test]
async fn every_key_has_its_turn_on_postgres() {
    every_key_has_its_turn(TestStore::postgres().await).await;
}

#[tokio::test]
async fn every_key_has_its_turn_on_sqlite() {
    every_key_has_its_turn(TestStore::sqlite().await).await;
}
