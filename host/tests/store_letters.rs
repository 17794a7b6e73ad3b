//! What hapax carries itself, and what becomes of dead letters, on both databases: one suite, unchanged.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use hapax::message::{
    Carried, ComponentDigest, FailureClass, Header, Incoming, Instant, MessageId, Position,
    ShortHash,
};
use hapax::store::{
    Claim, ClaimAs, ClaimRequest, Connection, DeadLetter, LetterFilter, QueueRow, Reburied, Replay,
    Restored, StoreKind, StoredDeadLetter, Tx,
};
use support::database::TestStore;

macro_rules! on_both {
    ($($case:ident)*) => {
        mod postgres {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(super::TestStore::postgres().await).await;
                }
            )*
        }
        mod sqlite {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(super::TestStore::sqlite().await).await;
                }
            )*
        }
    };
}

on_both! {
    what_is_carried_waits_and_keeps_all_that_it_was
    what_is_carried_again_gets_another_time
    a_rollback_carries_nothing
    a_replay_ends_with_its_commit
    a_rollback_takes_a_replay_back
    a_replay_leaves_what_is_not_its_own
    a_letter_is_queued_once
    a_replay_that_fails_for_good_keeps_its_letter
    a_replay_that_was_done_meanwhile_ends
    a_replay_that_conflicts_writes_nothing_yet
    a_dropped_letter_stays_away
    letters_are_found_by_their_marks
    a_restored_letter_is_what_it_was
    a_letter_that_is_there_is_not_restored
}

const LONG: Duration = Duration::from_secs(3600);

fn id(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

fn request(text: &str, payload: &str) -> ClaimRequest {
    ClaimRequest {
        id: id(text),
        payload_hash: ShortHash::of_payload(payload.as_bytes()),
    }
}

fn every_byte() -> Bytes {
    (0..=255).collect::<Vec<u8>>().into()
}

fn incoming(payload: impl Into<Bytes>) -> Incoming {
    Incoming {
        subject: "topic".into(),
        headers: vec![Header {
            name: "n".into(),
            value: every_byte(),
        }],
        content_type: Some("text/plain".into()),
        payload: payload.into(),
        published_at: Some(Instant {
            seconds: 1_700_000_000,
            nanoseconds: 123_456_000,
        }),
        position: Position("ORDERS@1.5:7".into()),
        queue_id: Some("row-id".into()),
    }
}

fn carried(id_text: &str) -> Carried {
    let incoming = incoming("");
    Carried {
        source: "orders".into(),
        position: incoming.position,
        published_at: incoming.published_at,
        message_id: Some(id(id_text)),
        queue_id: incoming.queue_id,
        dead_letter: None,
        forced: false,
    }
}

fn letter(message: &str) -> DeadLetter {
    DeadLetter {
        order_key: None,
        consumer: "c".into(),
        handler: "h".into(),
        message_id: Some(id(message)),
        source: "s".into(),
        position: Position(format!("at {message}")),
        subject: "subject".into(),
        headers: incoming("").headers,
        content_type: None,
        payload: Bytes::copy_from_slice(message.as_bytes()),
        published_at: incoming("").published_at,
        queue_id: None,
        class: FailureClass::Rejected,
        reason: "no".into(),
        component: Some(ComponentDigest::of(b"one")),
    }
}

async fn commit(tx: Tx) -> Connection {
    let ended = tx.commit().await;
    ended.result.unwrap();
    ended.connection.unwrap()
}

async fn begin(connection: Connection) -> Tx {
    Tx::begin(connection).await.unwrap()
}

/// Buries a message and returns its letter's number.
async fn bury(test: &TestStore, message: &str) -> i64 {
    let mut tx = test.begin().await;
    tx.bury(&letter(message), Some(&request(message, message)))
        .await
        .unwrap();
    let mut connection = commit(tx).await;
    number_of(&mut connection, message).await
}

async fn number_of(connection: &mut Connection, message: &str) -> i64 {
    let filter = LetterFilter {
        message_id: Some(message.into()),
        ..LetterFilter::default()
    };
    let found = connection.letter_summaries(&filter, None, 10).await;
    found.unwrap()[0].number
}

async fn peek(connection: &mut Connection) -> Vec<QueueRow> {
    connection.peek_queue("@c", &[], 100).await.unwrap()
}

fn replay(letter: i64, message: &str) -> Replay {
    Replay {
        letter,
        claim: Some((id(message), ShortHash::of_payload(message.as_bytes()))),
    }
}

async fn outcome(test: &TestStore, message: &str) -> Option<String> {
    let table = test.table("processed_messages");
    test.text(&format!(
        "SELECT max(outcome) FROM {table} WHERE consumer = 'c' AND message_id = '{message}'"
    ))
    .await
}

async fn what_is_carried_waits_and_keeps_all_that_it_was(test: TestStore) {
    let mut tx = test.begin().await;
    let message = incoming(every_byte());
    tx.carry("c", &carried("a"), &message, LONG).await.unwrap();
    let ended = tx.commit().await;
    // Its source may be told that it is done.
    assert!(ended.result.unwrap().settled.covers(&id("a")));
    let mut connection = ended.connection.unwrap();
    assert_eq!(peek(&mut connection).await, []);
    assert_eq!(connection.queue_backlog("@c").await.unwrap(), 1);

    // By the database's clock.
    let table = test.table("queue");
    let waits = match test.kind() {
        StoreKind::Postgres => "extract(epoch FROM due_at - enqueued_at)::bigint",
        StoreKind::Sqlite => {
            "CAST(round((julianday(due_at) - julianday(enqueued_at)) * 86400) AS INTEGER)"
        }
    };
    let waits = test.number(&format!("SELECT {waits} FROM {table}")).await;
    assert_eq!(waits, 3600);

    let mut tx = begin(connection).await;
    tx.carry("c", &carried("a"), &message, Duration::ZERO)
        .await
        .unwrap();
    let mut connection = commit(tx).await;
    let rows = peek(&mut connection).await;
    assert_eq!(rows.len(), 1);
    let row = &rows[0];
    assert_eq!(row.carried, Some(carried("a")));
    assert_eq!(row.message_id.as_deref(), Some("a"));
    assert_eq!(row.subject, message.subject);
    assert_eq!(row.headers, message.headers);
    assert_eq!(row.content_type, message.content_type);
    assert_eq!(row.payload, message.payload);
    // Other queues and other consumers have nothing of it.
    for other in ["c", "@d", "orders"] {
        let found = connection.peek_queue(other, &[], 10).await.unwrap();
        assert_eq!(found, []);
    }
    assert_eq!(
        connection
            .peek_queue("@c", &[row.number], 10)
            .await
            .unwrap(),
        []
    );
}

async fn what_is_carried_again_gets_another_time(test: TestStore) {
    let mut connection = test.connect().await;
    for (payload, wait) in [
        ("x", LONG),
        ("x", LONG),
        ("other", LONG),
        ("x", Duration::ZERO),
        ("other", Duration::ZERO),
    ] {
        let mut tx = begin(connection).await;
        tx.carry("c", &carried("a"), &incoming(payload), wait)
            .await
            .unwrap();
        connection = commit(tx).await;
    }
    // Another payload under the same id is another message: neither may be lost.
    let payloads: Vec<Bytes> = peek(&mut connection)
        .await
        .into_iter()
        .map(|row| row.payload)
        .collect();
    assert_eq!(payloads, [Bytes::from("x"), Bytes::from("other")]);

    // A row that was taken is carried again in the same transaction.
    let number = peek(&mut connection).await[0].number;
    let mut tx = begin(connection).await;
    tx.take_queue_rows(&[number]).await.unwrap();
    tx.carry("c", &carried("a"), &incoming("x"), LONG)
        .await
        .unwrap();
    let mut connection = commit(tx).await;
    assert_eq!(connection.queue_backlog("@c").await.unwrap(), 2);
    assert_eq!(peek(&mut connection).await.len(), 1);

    // So is one that replays a letter, of which there is one at the most.
    let replays = Carried {
        dead_letter: Some(7),
        forced: true,
        ..carried("a")
    };
    for wait in [LONG, Duration::ZERO] {
        let mut tx = begin(connection).await;
        tx.carry("c", &replays, &incoming("x"), wait).await.unwrap();
        connection = commit(tx).await;
    }
    assert_eq!(connection.queue_backlog("@c").await.unwrap(), 3);
    let rows = peek(&mut connection).await;
    assert_eq!(rows.last().unwrap().carried.as_ref(), Some(&replays));
}

async fn a_rollback_carries_nothing(test: TestStore) {
    let mut tx = test.begin().await;
    tx.carry("c", &carried("a"), &incoming("x"), Duration::ZERO)
        .await
        .unwrap();
    let mut connection = tx.rollback().await.unwrap();
    assert_eq!(connection.queue_backlog("@c").await.unwrap(), 0);
}

async fn a_replay_ends_with_its_commit(test: TestStore) {
    let number = bury(&test, "a").await;
    let mut connection = test.connect().await;
    assert_eq!(
        connection.queue_replays(&[(number, false)]).await.unwrap(),
        [number]
    );
    let row = peek(&mut connection).await.remove(0);
    let origin = row.carried.clone().unwrap();
    assert_eq!(
        origin,
        Carried {
            source: "s".into(),
            position: Position("at a".into()),
            published_at: letter("a").published_at,
            message_id: Some(id("a")),
            queue_id: None,
            dead_letter: Some(number),
            forced: false,
        }
    );
    assert_eq!(
        (&row.payload[..], &row.headers),
        (&b"a"[..], &letter("a").headers)
    );

    let mut tx = begin(connection).await;
    tx.take_queue_rows(&[row.number]).await.unwrap();
    let found = tx.begin_replays("c", &[replay(number, "a")]).await.unwrap();
    assert!(found.contains(&number));
    assert_eq!(
        tx.claim("c", &[request("a", "a")], None).await.unwrap(),
        [Claim::Fresh { attempt: 1 }]
    );
    tx.end_replays("c", &[number]).await.unwrap();
    let mut connection = commit(tx).await;
    assert_eq!(outcome(&test, "a").await.as_deref(), Some("done"));
    assert_eq!(connection.dead_letter_count("c").await.unwrap(), 0);
    assert_eq!(connection.queue_backlog("@c").await.unwrap(), 0);
}

async fn a_rollback_takes_a_replay_back(test: TestStore) {
    let number = bury(&test, "a").await;
    let mut connection = test.connect().await;
    connection.queue_replays(&[(number, true)]).await.unwrap();
    let before = connection.letters(&[number]).await.unwrap();
    let row = peek(&mut connection).await.remove(0);
    assert!(row.carried.as_ref().unwrap().forced);
    let mut tx = begin(connection).await;
    tx.take_queue_rows(&[row.number]).await.unwrap();
    tx.begin_replays("c", &[replay(number, "a")]).await.unwrap();
    tx.claim("c", &[request("a", "a")], None).await.unwrap();
    tx.end_replays("c", &[number]).await.unwrap();
    let mut connection = tx.rollback().await.unwrap();
    assert_eq!(outcome(&test, "a").await.as_deref(), Some("dead"));
    assert_eq!(connection.letters(&[number]).await.unwrap(), before);
    assert_eq!(peek(&mut connection).await, [row]);
}

async fn a_replay_leaves_what_is_not_its_own(test: TestStore) {
    let number = bury(&test, "a").await;
    let other = bury(&test, "b").await;
    let mut tx = test.begin().await;
    tx.claim("c", &[request("done", "done")], None)
        .await
        .unwrap();
    let mut tx = begin(commit(tx).await).await;
    // A claim of another payload, one that is done, another consumer's letter.
    let replays = [
        Replay {
            letter: number,
            claim: Some((id("a"), ShortHash::of_payload(b"other"))),
        },
        replay(other, "done"),
    ];
    assert!(tx.begin_replays("d", &replays).await.unwrap().is_empty());
    assert_eq!(tx.begin_replays("c", &replays).await.unwrap().len(), 2);
    tx.end_replays("d", &[number, other]).await.unwrap();
    let mut connection = commit(tx).await;
    assert_eq!(outcome(&test, "a").await.as_deref(), Some("dead"));
    assert_eq!(outcome(&test, "done").await.as_deref(), Some("done"));
    assert_eq!(connection.dead_letter_count("c").await.unwrap(), 2);
}

async fn a_letter_is_queued_once(test: TestStore) {
    let (first, second) = (bury(&test, "a").await, bury(&test, "b").await);
    let mut connection = test.connect().await;
    assert_eq!(
        connection.queue_replays(&[(first, false)]).await.unwrap(),
        [first]
    );
    assert_eq!(
        connection
            .queue_replays(&[(first, true), (second, false), (second + 100, false)])
            .await
            .unwrap(),
        [second]
    );
    let states = connection
        .letter_states(&[second, first, second + 100])
        .await
        .unwrap();
    assert_eq!(states.len(), 2);
    assert_eq!(states[0].number, first);
    assert!(states.iter().all(|state| state.is_queued));
    assert_eq!(states[0].claim, Some(ClaimAs::Dead));
    let summaries = connection
        .letter_summaries(&LetterFilter::default(), None, 10)
        .await
        .unwrap();
    assert!(summaries.iter().all(|letter| letter.is_queued));

    // Two at once.
    let third = bury(&test, "c").await;
    let mut other = test.connect().await;
    let (here, there) = ([(third, false)], [(third, false)]);
    let (here, there) = tokio::join!(connection.queue_replays(&here), other.queue_replays(&there));
    assert_eq!(here.unwrap().len() + there.unwrap().len(), 1);
    assert_eq!(connection.queue_backlog("@c").await.unwrap(), 3);
}

async fn a_replay_that_fails_for_good_keeps_its_letter(test: TestStore) {
    let mut connection = test.connect().await;
    let attempt = async |connection: &mut Connection, error: &str| {
        connection
            .record_attempt("c", &id("a"), FailureClass::Trapped, error, None)
            .await
            .unwrap()
    };
    attempt(&mut connection, "one").await;
    attempt(&mut connection, "two").await;
    let number = bury(&test, "a").await;
    let first = connection.letters(&[number]).await.unwrap().remove(0);
    // They start anew.
    assert_eq!(attempt(&mut connection, "three").await, 1);
    let again = DeadLetter {
        class: FailureClass::Limit,
        reason: "too slow".into(),
        handler: "renamed".into(),
        component: Some(ComponentDigest::of(b"two")),
        ..letter("a")
    };
    let mut tx = begin(connection).await;
    let claim = request("a", "a");
    let buried = tx.bury_again(number, &again, Some(&claim)).await.unwrap();
    assert_eq!(buried, Reburied::Rewritten);
    let ended = tx.commit().await;
    assert!(ended.result.unwrap().parked.covers(&again.position));
    let mut connection = ended.connection.unwrap();
    let stored = connection.letters(&[number]).await.unwrap().remove(0);
    assert_eq!(stored.letter, again);
    let errors: Vec<(u32, &str)> = stored
        .attempts
        .iter()
        .map(|attempt| (attempt.number, attempt.error.as_str()))
        .collect();
    assert_eq!(errors, [(1, "one"), (2, "two"), (1, "three")]);
    assert_eq!(stored.attempts[..2], first.attempts);
    assert_eq!(attempt(&mut connection, "four").await, 1);
    assert_eq!(outcome(&test, "a").await.as_deref(), Some("dead"));

    // A letter without an id gets the one that was found, and its claim.
    let missing = DeadLetter {
        message_id: None,
        class: FailureClass::MissingId,
        ..letter("m")
    };
    let mut tx = begin(connection).await;
    tx.bury(&missing, None).await.unwrap();
    let mut connection = commit(tx).await;
    let number = connection.dead_letters("c", 10).await.unwrap()[1].number;
    let mut tx = begin(connection).await;
    let claim = request("m", "m");
    tx.bury_again(number, &letter("m"), Some(&claim))
        .await
        .unwrap();
    let mut connection = commit(tx).await;
    let stored = connection.letters(&[number]).await.unwrap().remove(0);
    assert_eq!(stored.letter, letter("m"));
    assert_eq!(outcome(&test, "m").await.as_deref(), Some("dead"));
}

async fn a_replay_that_was_done_meanwhile_ends(test: TestStore) {
    let mut tx = test.begin().await;
    tx.claim("c", &[request("a", "a")], None).await.unwrap();
    // As if another host had no id.
    let missing = DeadLetter {
        message_id: None,
        ..letter("a")
    };
    tx.bury(&missing, None).await.unwrap();
    let mut connection = commit(tx).await;
    let number = connection.dead_letters("c", 10).await.unwrap()[0].number;
    let mut tx = begin(connection).await;
    let claim = request("a", "a");
    assert_eq!(
        tx.bury_again(number, &letter("a"), Some(&claim))
            .await
            .unwrap(),
        Reburied::Succeeded
    );
    let ended = tx.commit().await;
    assert!(ended.result.unwrap().settled.covers(&id("a")));
    let count = ended.connection.unwrap().dead_letter_count("c").await;
    assert_eq!(count.unwrap(), 0);
}

async fn a_replay_that_conflicts_writes_nothing_yet(test: TestStore) {
    let number = bury(&test, "a").await;
    let mut tx = test.begin().await;
    let again = DeadLetter {
        reason: "another".into(),
        ..letter("a")
    };
    let claim = request("a", "other");
    assert_eq!(
        tx.bury_again(number, &again, Some(&claim)).await.unwrap(),
        Reburied::Conflict {
            stored: ShortHash::of_payload(b"a")
        }
    );
    let mut connection = commit(tx).await;
    let stored = connection.letters(&[number]).await.unwrap().remove(0);
    assert_eq!(stored.letter, letter("a"));
}

async fn a_dropped_letter_stays_away(test: TestStore) {
    let (first, second) = (bury(&test, "a").await, bury(&test, "b").await);
    let mut connection = test.connect().await;
    let queued = [(first, false), (second, false)];
    connection.queue_replays(&queued).await.unwrap();
    let dropped = connection
        .drop_letters(&[first, second + 100])
        .await
        .unwrap();
    assert_eq!(dropped, [first]);
    assert_eq!(connection.dead_letter_count("c").await.unwrap(), 1);
    let rows = peek(&mut connection).await;
    assert_eq!(rows.len(), 1);
    // Delivered again, it is a duplicate.
    assert_eq!(outcome(&test, "a").await.as_deref(), Some("dead"));

    // A replay that has begun finds it gone, and claims nothing.
    connection.drop_letters(&[second]).await.unwrap();
    let mut tx = begin(connection).await;
    let found = tx.begin_replays("c", &[replay(second, "b")]).await;
    assert!(found.unwrap().is_empty());
    let claim = request("b", "b");
    let buried = tx.bury_again(second, &letter("b"), Some(&claim)).await;
    assert_eq!(buried.unwrap(), Reburied::Dropped);
    let mut connection = commit(tx).await;
    assert_eq!(outcome(&test, "b").await.as_deref(), Some("dead"));
    assert_eq!(connection.dead_letter_count("c").await.unwrap(), 0);
}

async fn letters_are_found_by_their_marks(test: TestStore) {
    let mut tx = test.begin().await;
    for (message, consumer, handler, class) in [
        ("1", "c", "h", FailureClass::Rejected),
        ("2", "c", "old", FailureClass::Trapped),
        ("3", "d", "h", FailureClass::Rejected),
        ("4", "d", "other", FailureClass::Limit),
    ] {
        let one = DeadLetter {
            consumer: consumer.into(),
            handler: handler.into(),
            class,
            ..letter(message)
        };
        tx.bury(&one, None).await.unwrap();
    }
    let mut connection = commit(tx).await;
    let mut ids = async |filter: LetterFilter, below: Option<i64>, limit: u32| {
        connection
            .letter_summaries(&filter, below, limit)
            .await
            .unwrap()
            .into_iter()
            .map(|letter| letter.message_id.unwrap())
            .collect::<Vec<_>>()
    };
    let all = LetterFilter::default;
    assert_eq!(ids(all(), None, 10).await, ["4", "3", "2", "1"]);
    assert_eq!(ids(all(), None, 2).await, ["4", "3"]);
    assert_eq!(ids(all(), Some(3), 2).await, ["2", "1"]);
    let handler = |name: &str, consumer: Option<&str>| LetterFilter {
        handler: Some(name.into()),
        consumer: consumer.map(str::to_owned),
        ..all()
    };
    assert_eq!(ids(handler("h", None), None, 10).await, ["3", "1"]);
    assert_eq!(
        ids(handler("h", Some("c")), None, 10).await,
        ["3", "2", "1"]
    );
    let class = LetterFilter {
        class: Some(FailureClass::Limit),
        ..all()
    };
    assert_eq!(ids(class, None, 10).await, ["4"]);
    let message_id = LetterFilter {
        message_id: Some("2".into()),
        ..all()
    };
    assert_eq!(ids(message_id, None, 10).await, ["2"]);
    let since = |seconds| LetterFilter {
        since: Some(Instant {
            seconds,
            nanoseconds: 0,
        }),
        ..all()
    };
    assert_eq!(ids(since(1_700_000_000), None, 10).await.len(), 4);
    assert_eq!(ids(since(20_000_000_000), None, 10).await.len(), 0);
}

async fn a_restored_letter_is_what_it_was(test: TestStore) {
    let mut connection = test.connect().await;
    connection
        .record_attempt(
            "c",
            &id("a"),
            FailureClass::Trapped,
            "one\n\u{1f600}",
            Some(ComponentDigest::of(b"one")),
        )
        .await
        .unwrap();
    let full = DeadLetter {
        payload: every_byte(),
        queue_id: Some("row".into()),
        content_type: Some("x/y".into()),
        ..letter("a")
    };
    let mut tx = begin(connection).await;
    let claim = ClaimRequest {
        id: id("a"),
        payload_hash: ShortHash::of_payload(&full.payload),
    };
    tx.bury(&full, Some(&claim)).await.unwrap();
    let mut connection = commit(tx).await;
    bury(&test, "later").await;
    let number = number_of(&mut connection, "a").await;
    let before = connection.letters(&[number]).await.unwrap();
    assert_eq!(before[0].letter, full);
    connection.drop_letters(&[number]).await.unwrap();
    test.run(&format!(
        "DELETE FROM {} WHERE message_id = 'a'",
        test.table("processed_messages")
    ))
    .await;

    let mut tx = begin(connection).await;
    assert_eq!(
        tx.restore(&before[0], true).await.unwrap(),
        Restored::As(number)
    );
    let mut connection = commit(tx).await;
    assert_eq!(connection.letters(&[number]).await.unwrap(), before);
    assert_eq!(outcome(&test, "a").await.as_deref(), Some("dead"));

    // A number that was never given is not kept, or it would be given again.
    let unknown = StoredDeadLetter {
        number: number + 1000,
        letter: letter("b"),
        attempts: Vec::new(),
        dead_at: None,
    };
    let mut tx = begin(connection).await;
    let restored = tx.restore(&unknown, false).await.unwrap();
    let mut connection = commit(tx).await;
    let Restored::As(given) = restored else {
        panic!("{restored:?}");
    };
    assert!(given < number + 1000);
    assert_eq!(outcome(&test, "b").await, None);
    let stored = connection.letters(&[given]).await.unwrap().remove(0);
    assert_eq!(stored.letter, letter("b"));
    assert!(stored.dead_at.is_some());
    assert!(bury(&test, "next").await > given);
}

async fn a_letter_that_is_there_is_not_restored(test: TestStore) {
    let number = bury(&test, "a").await;
    let mut connection = test.connect().await;
    let stored = connection.letters(&[number]).await.unwrap().remove(0);
    let mut tx = begin(connection).await;
    assert_eq!(tx.restore(&stored, true).await.unwrap(), Restored::IsThere);
    // The id was processed since.
    tx.begin_replays("c", &[replay(number, "a")]).await.unwrap();
    tx.claim("c", &[request("a", "a")], None).await.unwrap();
    tx.end_replays("c", &[number]).await.unwrap();
    assert_eq!(
        tx.restore(&stored, true).await.unwrap(),
        Restored::Succeeded
    );
    assert_eq!(
        tx.restore(&stored, false).await.unwrap(),
        Restored::Succeeded
    );
    let mut connection = commit(tx).await;
    assert_eq!(connection.dead_letter_count("c").await.unwrap(), 0);
}
