//! A handler's source and the queue of what hapax carries for it, as one source, on both databases.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use hapax::message::{Carried, Incoming, MessageId, Position};
use hapax::source::merged::Merged;
use hapax::source::queue::Queue;
use hapax::source::{Delivery, Source as _, SourceError};
use hapax::store::{NewQueueRow, Store, Tx};
use support::database::TestStore;

/// Longer than anything that a test waits for takes.
const LONG: Duration = Duration::from_secs(30);
/// Long enough for what must not happen to happen.
const QUIET: Duration = Duration::from_millis(700);

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
    both_sides_come,
    what_is_carried_comes_as_it_was,
    dropping_next_loses_nothing,
    what_is_carried_takes_a_part_and_not_all,
    a_side_that_is_down_does_not_stop_the_other,
    closing_ends_both,
);

fn queue(test: &TestStore, name: &str) -> Box<Queue> {
    Box::new(Queue::new(Arc::new(test.store.clone()), name))
}

fn merged(test: &TestStore, in_hand_max: usize) -> Merged {
    Merged::new("h", queue(test, "q"), queue(test, "@c"), in_hand_max)
}

async fn fill(test: &TestStore, main: usize, carried: usize) {
    let rows: Vec<NewQueueRow> = (0..main)
        .map(|number| NewQueueRow {
            payload: format!("m{number}").into(),
            ..NewQueueRow::default()
        })
        .collect();
    test.connect().await.enqueue("q", &rows).await.unwrap();
    let mut tx = Tx::begin(test.connect().await).await.unwrap();
    for number in 0..carried {
        let (origin, incoming) = origin(number);
        tx.carry("c", &origin, &incoming, Duration::ZERO)
            .await
            .unwrap();
    }
    tx.commit().await.result.unwrap();
}

fn origin(number: usize) -> (Carried, Incoming) {
    let position = Position(format!("ORDERS@1.5:{number}"));
    let incoming = Incoming {
        subject: String::new(),
        headers: Vec::new(),
        content_type: None,
        payload: format!("c{number}").into(),
        published_at: None,
        position: position.clone(),
        queue_id: None,
    };
    let carried = Carried {
        source: "orders".into(),
        position,
        published_at: None,
        message_id: Some(MessageId::new(format!("id-{number}")).unwrap()),
        queue_id: Some("row".into()),
        dead_letter: None,
        forced: false,
    };
    (carried, incoming)
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.incoming.payload.to_vec()).unwrap()
}

async fn next(source: &mut Merged, max: usize) -> Vec<Delivery> {
    tokio::time::timeout(LONG, source.next(max))
        .await
        .expect("nothing came")
        .unwrap()
}

async fn nothing(source: &mut Merged) {
    if let Ok(came) = tokio::time::timeout(QUIET, source.next(10)).await {
        panic!("{came:?}");
    }
}

async fn both_sides_come(test: TestStore) {
    fill(&test, 5, 5).await;
    let mut source = merged(&test, 100);
    assert_eq!(source.backlog().await.unwrap(), 10);
    let mut taken = Vec::new();
    while taken.len() < 10 {
        taken.extend(next(&mut source, 10).await);
    }
    nothing(&mut source).await;
    let mut texts: Vec<String> = taken.iter().map(text).collect();
    texts.sort();
    let expected: Vec<String> = ["c", "m"]
        .iter()
        .flat_map(|side| (0..5).map(move |number| format!("{side}{number}")))
        .collect();
    assert_eq!(texts, expected);
}

async fn what_is_carried_comes_as_it_was(test: TestStore) {
    fill(&test, 0, 1).await;
    let mut source = merged(&test, 100);
    let delivery = next(&mut source, 10).await.remove(0);
    let (carried, incoming) = origin(0);
    assert_eq!(delivery.incoming.position, incoming.position);
    assert_eq!(delivery.incoming.published_at, None);
    assert_eq!(delivery.incoming.queue_id, carried.queue_id);
    assert_eq!(delivery.carried, Some(carried));
    assert!(delivery.queue_row.is_some());
}

async fn dropping_next_loses_nothing(test: TestStore) {
    fill(&test, 40, 40).await;
    let mut source = merged(&test, 1_000);
    let mut taken = Vec::new();
    let mut round = 0;
    while taken.len() < 80 {
        // Cut off sooner and later.
        round += 1;
        let wait = Duration::from_micros(300 * (round % 60));
        if let Ok(came) = tokio::time::timeout(wait, source.next(3)).await {
            taken.extend(came.unwrap());
        }
    }
    nothing(&mut source).await;
    let mut texts: Vec<String> = taken.iter().map(text).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 80);
}

async fn what_is_carried_takes_a_part_and_not_all(test: TestStore) {
    fill(&test, 30, 30).await;
    let mut source = merged(&test, 16);
    let mut held = Vec::new();
    // Nothing is answered: the carried ones stop at their part, the others go on.
    while held
        .iter()
        .filter(|one: &&Delivery| one.carried.is_none())
        .count()
        < 30
    {
        held.extend(next(&mut source, 4).await);
    }
    let carried = |held: &[Delivery]| held.iter().filter(|one| one.carried.is_some()).count();
    while carried(&held) < 4 {
        held.extend(next(&mut source, 4).await);
    }
    nothing(&mut source).await;
    assert_eq!(carried(&held), 4);
    // An answer makes room, and so does a drop.
    let place = held.iter().position(|one| one.carried.is_some()).unwrap();
    held.remove(place).nak(LONG).await.unwrap();
    held.extend(next(&mut source, 4).await);
    assert_eq!(carried(&held), 4);
    let place = held.iter().position(|one| one.carried.is_some()).unwrap();
    drop(held.remove(place));
    held.extend(next(&mut source, 4).await);
    assert_eq!(carried(&held), 4);
}

async fn a_side_that_is_down_does_not_stop_the_other(test: TestStore) {
    fill(&test, 3, 3).await;
    let nowhere = || {
        let store = Store::open("postgres://u@127.0.0.1:1/db").unwrap();
        Box::new(Queue::new(Arc::new(store), "q"))
    };
    let mut source = Merged::new("h", nowhere(), queue(&test, "@c"), 100);
    let mut count = 0;
    while count < 3 {
        count += next(&mut source, 10).await.len();
    }
    assert!(matches!(
        source.backlog().await,
        Err(SourceError::Unavailable(_))
    ));
    let mut source = Merged::new("h", queue(&test, "q"), nowhere(), 100);
    let mut count = 0;
    while count < 3 {
        count += next(&mut source, 10).await.len();
    }
}

async fn closing_ends_both(test: TestStore) {
    fill(&test, 1, 1).await;
    let mut source = merged(&test, 100);
    next(&mut source, 10).await;
    source.close().await;
    assert!(matches!(
        source.next(1).await,
        Err(SourceError::Unusable(_))
    ));
}
