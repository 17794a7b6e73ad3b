//! The JetStream source against a real nats-server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "seeds and counts explain a failure")]

mod support;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, consumer, stream};
use futures_util::{FutureExt as _, StreamExt as _};
use hapax::message::{FailureClass, Header, MessageId, ShortHash};
use hapax::source::identity::IdPlaces;
use hapax::source::jetstream::{
    self as source, Access, JetStream, JetStreamOptions, JetStreamPublisher, NewMessage,
    PublisherOptions, Start,
};
use hapax::source::{Delivery, Source as _, SourceError};
use hapax::store::{ClaimRequest, DeadLetter, Parked, Settled};
use rand::RngExt as _;
use rand::SeedableRng as _;
use support::database::TestStore;
use support::nats::Nats;
use support::server::{Server, find_program, on_path};

/// Longer than anything that a test waits for takes.
const LONG: Duration = Duration::from_secs(30);
/// Long enough for what must not happen to happen.
const QUIET: Duration = Duration::from_millis(400);

fn options(nats: &Nats) -> JetStreamOptions {
    JetStreamOptions {
        url: nats.url(),
        access: Access::default(),
        stream: "S".into(),
        subjects: vec!["s.>".into()],
        create: true,
        ack_wait: LONG,
        consumer: "c".into(),
        start: Start::All,
        in_hand_max: 64,
        in_order: false,
    }
}

async fn context(nats: &Nats) -> jetstream::Context {
    jetstream::new(async_nats::connect(nats.url()).await.unwrap())
}

async fn publish(nats: &Nats, payloads: impl IntoIterator<Item = String>) {
    let mut publisher = publisher(nats).await;
    for payload in payloads {
        publisher.publish(message(&payload)).await.unwrap();
    }
    publisher.finish().await.unwrap();
}

async fn publisher(nats: &Nats) -> JetStreamPublisher {
    let options = options(nats);
    JetStreamPublisher::connect(&PublisherOptions {
        url: options.url,
        access: options.access,
        stream: options.stream,
        subjects: options.subjects,
        create: true,
    })
    .await
    .unwrap()
}

fn message(payload: &str) -> NewMessage {
    NewMessage {
        subject: "s.a".into(),
        payload: payload.to_owned().into(),
        ..NewMessage::default()
    }
}

fn numbers(range: std::ops::Range<u32>) -> impl Iterator<Item = String> {
    range.map(|number| number.to_string())
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.incoming.payload.to_vec()).unwrap()
}

fn texts(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(text).collect()
}

/// Takes `count` deliveries, however many calls it takes.
async fn take(source: &mut JetStream, count: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let more = tokio::time::timeout(LONG, source.next(count - taken.len())).await;
        taken.extend(more.expect("nothing came").unwrap());
    }
    taken
}

/// Asserts that nothing comes.
async fn nothing(source: &mut JetStream) {
    if let Ok(came) = tokio::time::timeout(QUIET, source.next(10)).await {
        panic!("{:?}", came.map(|deliveries| texts(&deliveries)));
    }
}

async fn info(nats: &Nats) -> consumer::Info {
    let stream = context(nats).await.get_stream_no_info("S").await.unwrap();
    stream.consumer_info("c").await.unwrap()
}

/// Waits until `wanted` is true of the consumer's state.
async fn wait_for(
    nats: &Nats,
    what: &str,
    wanted: impl Fn(&consumer::Info) -> bool,
) -> consumer::Info {
    let started = Instant::now();
    loop {
        let info = info(nats).await;
        if wanted(&info) {
            return info;
        }
        assert!(started.elapsed() < LONG, "never {what}: {info:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn id_of(delivery: &Delivery) -> MessageId {
    IdPlaces::parse(&["stream-sequence".into()])
        .unwrap()
        .find(&delivery.incoming)
        .unwrap()
}

/// Commits claims for the deliveries: the only way to a proof.
async fn settle(store: &TestStore, deliveries: &[Delivery]) -> Settled {
    let requests: Vec<ClaimRequest> = deliveries
        .iter()
        .map(|delivery| ClaimRequest {
            id: id_of(delivery),
            payload_hash: ShortHash::of_payload(&delivery.incoming.payload),
        })
        .collect();
    let mut tx = store.begin().await;
    tx.claim("c", &requests, None).await.unwrap();
    tx.commit().await.result.unwrap().settled
}

async fn ack_all(store: &TestStore, deliveries: Vec<Delivery>) {
    let settled = settle(store, &deliveries).await;
    for delivery in deliveries {
        let id = id_of(&delivery);
        delivery.ack(&id, &settled).await.unwrap();
    }
}

async fn park(store: &TestStore, delivery: &Delivery) -> Parked {
    let letter = DeadLetter {
        consumer: "c".into(),
        handler: "c".into(),
        message_id: None,
        source: "s".into(),
        position: delivery.incoming.position.clone(),
        subject: delivery.incoming.subject.clone(),
        headers: Vec::new(),
        content_type: None,
        payload: delivery.incoming.payload.clone(),
        published_at: delivery.incoming.published_at,
        queue_id: None,
        class: FailureClass::MissingId,
        reason: "a test".into(),
        component: None,
        order_key: None,
    };
    let mut tx = store.begin().await;
    tx.bury(&letter, None).await.unwrap();
    tx.commit().await.result.unwrap().parked
}

fn unusable<T>(result: Result<T, SourceError>) -> String {
    match result {
        Err(SourceError::Unusable(why)) => why,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it worked"),
    }
}

#[tokio::test]
async fn a_message_arrives_whole_and_in_order() {
    let nats = Nats::start();
    let mut publisher = publisher(&nats).await;
    let header = |name: &str, value: &str| Header {
        name: name.into(),
        value: value.to_owned().into(),
    };
    publisher
        .publish(NewMessage {
            id: Some("m-1".into()),
            subject: "s.eu.payments".into(),
            headers: vec![
                header("Zone", "ä"),
                header("content-type", "application/json"),
                header("Trace", "one"),
                header("Trace", "two: 2"),
            ],
            payload: "{\"a\": 1}".into(),
        })
        .await
        .unwrap();
    publisher.publish(message("")).await.unwrap();
    publisher.finish().await.unwrap();
    let mut source = JetStream::connect(&options(&nats)).await.unwrap();
    let deliveries = take(&mut source, 2).await;
    let incoming = &deliveries[0].incoming;
    assert_eq!(incoming.subject, "s.eu.payments");
    let headers: Vec<(&str, &[u8])> = incoming
        .headers
        .iter()
        .map(|header| (header.name.as_str(), header.value.as_ref()))
        .collect();
    assert_eq!(
        headers,
        [
            ("content-type", &b"application/json"[..]),
            ("Nats-Msg-Id", b"m-1"),
            ("Trace", b"one"),
            ("Trace", b"two: 2"),
            ("Zone", "ä".as_bytes()),
        ]
    );
    assert_eq!(incoming.content_type.as_deref(), Some("application/json"));
    assert_eq!(&incoming.payload[..], b"{\"a\": 1}");
    assert_eq!(incoming.queue_id, None);
    let published = incoming.published_at.unwrap();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    assert!((now.as_secs() as i64 - published.seconds).abs() < 60);
    assert_eq!(published.nanoseconds % 1000, 0, "to the microsecond");
    assert_eq!(deliveries[0].delivered, 1);
    assert_eq!(deliveries[0].queue_row, None);
    let stream = context(&nats).await.get_stream("S").await.unwrap();
    let created = stream.cached_info().created;
    let prefix = format!("S@{}.{:09}", created.unix_timestamp(), created.nanosecond());
    assert_eq!(incoming.position.0, format!("{prefix}:1"));
    assert_eq!(deliveries[1].incoming.position.0, format!("{prefix}:2"));
    assert_eq!(deliveries[1].incoming.headers, []);
    assert!(deliveries[1].incoming.payload.is_empty());

    publish(&nats, numbers(0..100)).await;
    let all = take(&mut source, 62).await;
    assert_eq!(texts(&all), numbers(0..62).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_new_durable_is_made_as_the_guarantee_needs_it() {
    let nats = Nats::start();
    let mut options = options(&nats);
    options.ack_wait = Duration::from_secs(7);
    options.subjects = vec!["s.a".into(), "s.b.>".into()];
    let source = JetStream::connect(&options).await.unwrap();
    assert_eq!(source.drift(), [] as [String; 0]);
    let config = info(&nats).await.config;
    assert_eq!(config.durable_name.as_deref(), Some("c"));
    assert_eq!(config.ack_policy, consumer::AckPolicy::Explicit);
    assert_eq!(config.ack_wait, Duration::from_secs(7));
    assert_eq!(config.max_deliver, -1);
    assert_eq!(config.deliver_policy, consumer::DeliverPolicy::All);
    assert_eq!(config.deliver_subject, None);
    assert_eq!(config.filter_subjects, ["s.a", "s.b.>"]);
    assert!(config.max_ack_pending >= 1000);
    let stream = context(&nats).await.get_stream("S").await.unwrap();
    assert_eq!(
        stream.cached_info().config.storage,
        stream::StorageType::File
    );
    assert_eq!(stream.cached_info().config.subjects, ["s.a", "s.b.>"]);
}

#[tokio::test]
async fn starts_where_it_is_told() {
    let nats = Nats::start();
    publish(&nats, numbers(0..2)).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let since_epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let between = hapax::message::Instant {
        seconds: since_epoch.as_secs() as i64,
        nanoseconds: since_epoch.subsec_nanos(),
    };
    publish(&nats, numbers(2..4)).await;
    let connect = async |consumer: &str, start| {
        JetStream::connect(&JetStreamOptions {
            consumer: consumer.into(),
            start,
            ..options(&nats)
        })
        .await
        .unwrap()
    };
    let mut all = connect("all", Start::All).await;
    let mut new = connect("new", Start::New).await;
    let mut time = connect("time", Start::Time(between)).await;
    publish(&nats, numbers(4..5)).await;
    assert_eq!(texts(&take(&mut all, 5).await), ["0", "1", "2", "3", "4"]);
    assert_eq!(texts(&take(&mut new, 1).await), ["4"]);
    assert_eq!(texts(&take(&mut time, 3).await), ["2", "3", "4"]);
}

#[tokio::test]
async fn a_dropped_delivery_comes_again() {
    let nats = Nats::start();
    let mut options = options(&nats);
    options.ack_wait = Duration::from_secs(1);
    let mut source = JetStream::connect(&options).await.unwrap();
    publish(&nats, numbers(0..1)).await;
    let mut position = None;
    for delivered in 1..4 {
        let delivery = take(&mut source, 1).await.remove(0);
        assert_eq!(delivery.delivered, delivered);
        let before = position.replace(delivery.incoming.position.clone());
        assert!(before.is_none_or(|before| before == delivery.incoming.position));
        assert_eq!(source.in_hand(), 1);
        drop(delivery);
        assert_eq!(source.in_hand(), 0);
    }
}

#[tokio::test]
async fn every_answer_is_understood() {
    let nats = Nats::start();
    let store = TestStore::sqlite().await;
    let mut source = JetStream::connect(&options(&nats)).await.unwrap();
    publish(&nats, numbers(0..4)).await;
    let mut deliveries = take(&mut source, 4).await;
    assert_eq!(info(&nats).await.num_ack_pending, 4);
    assert_eq!(source.backlog().await.unwrap(), 4);

    // A proof for another message is refused, and answers nothing.
    let wrong = settle(&store, &deliveries[3..]).await;
    let first = deliveries.remove(0);
    let id = id_of(&first);
    assert!(unusable(first.ack(&id, &wrong).await).contains("does not cover"));

    ack_all(&store, vec![deliveries.remove(0)]).await;
    wait_for(&nats, "acked", |info| info.num_ack_pending == 3).await;
    let terminated = deliveries.remove(0);
    let parked = park(&store, &terminated).await;
    terminated.term(&parked).await.unwrap();
    wait_for(&nats, "terminated", |info| info.num_ack_pending == 2).await;

    // Far below the ack wait, so it is the nak that brings it back.
    let started = Instant::now();
    deliveries
        .remove(0)
        .nak(Duration::from_millis(700))
        .await
        .unwrap();
    let again = take(&mut source, 1).await.remove(0);
    assert!(
        started.elapsed() >= Duration::from_millis(700),
        "{:?}",
        started.elapsed()
    );
    assert_eq!((text(&again).as_str(), again.delivered), ("3", 2));
    again.nak(Duration::ZERO).await.unwrap();
    let again = take(&mut source, 1).await.remove(0);
    assert_eq!((text(&again).as_str(), again.delivered), ("3", 3));
    ack_all(&store, vec![again]).await;
    let info = wait_for(&nats, "acked", |info| info.num_ack_pending == 1).await;
    assert_eq!(info.num_pending, 0);
}

/// Trap 8: what is fetched and waits ages like what runs.
#[tokio::test]
async fn progress_keeps_everything_in_hand() {
    let nats = Nats::start();
    let store = TestStore::sqlite().await;
    let mut options = options(&nats);
    options.ack_wait = Duration::from_secs(1);
    let mut source = JetStream::connect(&options).await.unwrap();
    publish(&nats, numbers(0..3)).await;
    let held = take(&mut source, 1).await;
    // Asked for, fetched, and never picked up: it waits inside the source.
    assert!(source.next(2).now_or_never().is_none());
    wait_for(&nats, "fetched", |info| info.num_ack_pending == 3).await;

    // Whoever asks gets what is overdue.
    let mut other = JetStream::connect(&options).await.unwrap();
    let started = Instant::now();
    while started.elapsed() < options.ack_wait * 4 {
        nothing(&mut other).await;
        let info = info(&nats).await;
        assert_eq!((info.num_ack_pending, info.num_redelivered), (3, 0));
        assert_eq!(info.delivered.consumer_sequence, 3);
    }
    let waiting = take(&mut source, 2).await;
    assert_eq!(texts(&waiting), ["1", "2"]);
    assert!(
        held.iter()
            .chain(&waiting)
            .all(|delivery| delivery.delivered == 1)
    );
    ack_all(&store, held).await;
    ack_all(&store, waiting).await;
    let info = wait_for(&nats, "acked", |info| info.num_ack_pending == 0).await;
    assert_eq!(info.delivered.consumer_sequence, 3, "nothing came twice");
}

#[tokio::test]
async fn takes_no_more_than_it_is_asked_for_and_may_hold() {
    let nats = Nats::start();
    let store = TestStore::sqlite().await;
    let mut options = options(&nats);
    options.in_hand_max = 4;
    let mut source = JetStream::connect(&options).await.unwrap();
    publish(&nats, numbers(0..20)).await;
    let mut hand = take(&mut source, 2).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(
        info(&nats).await.num_ack_pending,
        2,
        "only what was asked for"
    );
    while hand.len() < 4 {
        hand.extend(source.next(100).await.unwrap());
    }
    assert_eq!(texts(&hand), ["0", "1", "2", "3"]);
    nothing(&mut source).await;
    assert_eq!(info(&nats).await.num_ack_pending, 4);
    assert_eq!(source.in_hand(), 4);
    let last = hand.split_off(3);
    ack_all(&store, hand).await;
    let mut hand = source.next(100).await.unwrap();
    while hand.len() < 3 {
        hand.extend(source.next(100).await.unwrap());
    }
    assert_eq!(texts(&hand), ["4", "5", "6"]);
    drop(last);
}

#[tokio::test]
async fn dropping_next_loses_nothing() {
    let nats = Nats::start();
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    let mut options = options(&nats);
    options.in_hand_max = 1000;
    let mut source = JetStream::connect(&options).await.unwrap();
    let sending = tokio::spawn({
        let url = nats.url();
        async move {
            let client = async_nats::connect(url).await.unwrap();
            let context = jetstream::new(client);
            for number in 0..300 {
                let ack = context
                    .publish("s.a", number.to_string().into())
                    .await
                    .unwrap();
                ack.await.unwrap();
                if number % 50 == 0 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    });
    let mut taken = Vec::new();
    let mut dropped = 0;
    let started = Instant::now();
    while taken.len() < 300 {
        assert!(started.elapsed() < LONG, "{} came", taken.len());
        let patience = Duration::from_micros(rng.random_range(0..3000));
        let max = rng.random_range(1..20);
        match tokio::time::timeout(patience, source.next(max)).await {
            Ok(deliveries) => {
                let deliveries = deliveries.unwrap();
                assert!((1..=max).contains(&deliveries.len()));
                taken.extend(deliveries);
            }
            Err(_) => dropped += 1,
        }
    }
    sending.await.unwrap();
    println!("{dropped} times dropped");
    assert!(dropped > 0);
    assert_eq!(texts(&taken), numbers(0..300).collect::<Vec<_>>());
    assert!(taken.iter().all(|delivery| delivery.delivered == 1));
}

#[tokio::test]
async fn an_idle_source_asks_rarely() {
    let nats = Nats::start();
    let mut source = JetStream::connect(&options(&nats)).await.unwrap();
    let spy = async_nats::connect(nats.url()).await.unwrap();
    let mut pulls = spy.subscribe("$JS.API.CONSUMER.MSG.NEXT.>").await.unwrap();
    // Its reply says that the server knows the subscription.
    spy.request("$JS.API.INFO", "".into()).await.unwrap();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        // As the pipeline does: asks anew whenever something else happened.
        assert!(
            tokio::time::timeout(Duration::from_millis(3), source.next(5))
                .await
                .is_err()
        );
    }
    publish(&nats, numbers(0..1)).await;
    take(&mut source, 1).await;
    let mut count = 0;
    while let Ok(Some(_)) = tokio::time::timeout(QUIET, pulls.next()).await {
        count += 1;
    }
    assert_eq!(count, 2, "one that finds nothing, one that waits");
}

#[tokio::test]
async fn hosts_share_a_durable() {
    let nats = Nats::start();
    let store = TestStore::sqlite().await;
    publish(&nats, numbers(0..200)).await;
    let mut one = JetStream::connect(&options(&nats)).await.unwrap();
    let mut two = JetStream::connect(&options(&nats)).await.unwrap();
    let mut count = BTreeMap::new();
    for _ in 0..10 {
        for source in [&mut one, &mut two] {
            let taken = take(source, 10).await;
            for delivery in &taken {
                *count.entry(text(delivery)).or_insert(0) += 1;
            }
            ack_all(&store, taken).await;
        }
    }
    assert_eq!(count.len(), 200);
    assert!(count.values().all(|n| *n == 1));
    wait_for(&nats, "done", |info| {
        info.num_pending == 0 && info.num_ack_pending == 0
    })
    .await;
}

#[tokio::test]
async fn closing_gives_back_what_was_not_handed_over() {
    let nats = Nats::start();
    let store = TestStore::sqlite().await;
    let mut source = JetStream::connect(&options(&nats)).await.unwrap();
    publish(&nats, numbers(0..3)).await;
    let done = take(&mut source, 1).await;
    assert!(source.next(2).now_or_never().is_none());
    wait_for(&nats, "fetched", |info| info.num_ack_pending == 3).await;
    ack_all(&store, done).await;
    source.close().await;
    assert!(unusable(source.next(1).await).contains("closed"));
    assert_eq!(source.in_hand(), 0);
    drop(source);

    let mut other = JetStream::connect(&options(&nats)).await.unwrap();
    let started = Instant::now();
    let again = take(&mut other, 2).await;
    assert!(started.elapsed() < LONG / 2, "long before the ack wait");
    assert_eq!(texts(&again), ["1", "2"]);
    ack_all(&store, again).await;
    other.close().await;
    wait_for(&nats, "done", |info| {
        info.num_pending == 0 && info.num_ack_pending == 0
    })
    .await;
}

#[tokio::test]
async fn a_stream_made_anew_gives_other_positions() {
    let nats = Nats::start();
    let store = TestStore::sqlite().await;
    let mut source = JetStream::connect(&options(&nats)).await.unwrap();
    publish(&nats, numbers(0..1)).await;
    let old = take(&mut source, 1).await;
    let context = context(&nats).await;
    context.delete_stream("S").await.unwrap();
    publish(&nats, numbers(10..11)).await;
    let started = Instant::now();
    let new = loop {
        assert!(started.elapsed() < LONG);
        match source.next(1).await {
            Ok(deliveries) => break deliveries,
            Err(SourceError::Unavailable(why)) => {
                println!("{why}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    };
    assert_eq!(texts(&new), ["10"]);
    let sequence = |delivery: &Delivery| {
        delivery
            .incoming
            .position
            .0
            .rsplit(':')
            .next()
            .map(str::to_owned)
    };
    assert_eq!(
        sequence(&old[0]),
        sequence(&new[0]),
        "the number is the same"
    );
    assert_ne!(old[0].incoming.position, new[0].incoming.position);
    assert_ne!(id_of(&old[0]), id_of(&new[0]));

    // An answer for the old message must not hit the new one, which has its number.
    ack_all(&store, old).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(info(&nats).await.num_ack_pending, 1);
    ack_all(&store, new).await;
    wait_for(&nats, "acked", |info| info.num_ack_pending == 0).await;
}

/// Another host may have made stream and durable anew before this one noticed anything.
#[tokio::test]
async fn a_stream_made_anew_by_another_host_is_noticed() {
    let nats = Nats::start();
    let mut source = JetStream::connect(&options(&nats)).await.unwrap();
    publish(&nats, numbers(0..2)).await;
    let old = take(&mut source, 2).await;
    let context = context(&nats).await;
    context.delete_stream("S").await.unwrap();
    let _other = JetStream::connect(&options(&nats)).await.unwrap();
    publish(&nats, numbers(10..12)).await;
    let new = take(&mut source, 2).await;
    assert_eq!(texts(&new), ["10", "11"]);
    for (old, new) in old.iter().zip(&new) {
        assert_ne!(old.incoming.position, new.incoming.position);
    }
}

#[tokio::test]
async fn a_durable_deleted_while_in_use() {
    let nats = Nats::start();
    let mut source = JetStream::connect(&options(&nats)).await.unwrap();
    let mut new_only = JetStream::connect(&JetStreamOptions {
        consumer: "new".into(),
        start: Start::New,
        ..options(&nats)
    })
    .await
    .unwrap();
    // Both wait for a message when their durable goes.
    let _ = tokio::time::timeout(QUIET, source.next(1)).await;
    let _ = tokio::time::timeout(QUIET, new_only.next(1)).await;
    let stream = context(&nats).await.get_stream("S").await.unwrap();
    stream.delete_consumer("c").await.unwrap();
    stream.delete_consumer("new").await.unwrap();
    publish(&nats, numbers(0..1)).await;
    assert_eq!(
        texts(&take(&mut source, 1).await),
        ["0"],
        "made anew, from the start"
    );
    let why = unusable(tokio::time::timeout(LONG, new_only.next(1)).await.unwrap());
    assert!(why.contains("was deleted while it was in use"), "{why}");
    assert!(why.contains("hint: set `start`"), "{why}");
}

#[tokio::test]
async fn drift_is_reported_or_refused() {
    let nats = Nats::start();
    publish(&nats, numbers(0..1)).await;
    let stream = context(&nats).await.get_stream("S").await.unwrap();
    let good = consumer::Config {
        durable_name: Some("c".into()),
        name: Some("c".into()),
        ack_wait: LONG,
        max_deliver: -1,
        filter_subjects: vec!["s.>".into()],
        ..consumer::Config::default()
    };
    let change = |change: fn(&mut consumer::Config)| {
        let mut config = good.clone();
        change(&mut config);
        config
    };
    let refused = [
        (
            "ack policy `none`",
            change(|config| config.ack_policy = consumer::AckPolicy::None),
        ),
        (
            "ack policy `all`",
            change(|config| config.ack_policy = consumer::AckPolicy::All),
        ),
        ("max_deliver = 5", change(|config| config.max_deliver = 5)),
        (
            "push consumer",
            change(|config| config.deliver_subject = Some("to.me".into())),
        ),
        ("headers_only", change(|config| config.headers_only = true)),
    ];
    for (problem, config) in refused {
        stream.create_consumer(config).await.unwrap();
        let why = unusable(JetStream::connect(&options(&nats)).await);
        assert!(why.starts_with("durable `c` of stream `S`"), "{why}");
        assert!(why.contains(problem) && why.contains("\nhint: "), "{why}");
        stream.delete_consumer("c").await.unwrap();
    }
    let reported = [
        (
            "has the filter `s.b`, the configuration `s.>`",
            change(|config| config.filter_subjects = vec!["s.b".into()]),
        ),
        (
            "has the filter none",
            change(|config| config.filter_subjects.clear()),
        ),
        (
            "has the ack wait 5s, the configuration 30s",
            change(|config| config.ack_wait = Duration::from_secs(5)),
        ),
        (
            "max_ack_pending = 3, fewer than the 64",
            change(|config| config.max_ack_pending = 3),
        ),
        (
            "is deleted when nobody uses it for 60s",
            change(|config| config.inactive_threshold = Duration::from_secs(60)),
        ),
        (
            "is kept in memory",
            change(|config| config.memory_storage = true),
        ),
    ];
    for (difference, config) in reported {
        stream.create_consumer(config.clone()).await.unwrap();
        let mut source = JetStream::connect(&options(&nats)).await.unwrap();
        assert_eq!(source.drift().len(), 1, "{:?}", source.drift());
        assert!(
            source.drift()[0].contains(difference),
            "{:?}",
            source.drift()
        );
        if config.filter_subjects != ["s.b"] {
            take(&mut source, 1).await;
        }
        let kept = info(&nats).await.config;
        assert_eq!(
            kept.filter_subjects, config.filter_subjects,
            "used as it is"
        );
        assert_eq!(kept.ack_wait, config.ack_wait);
        stream.delete_consumer("c").await.unwrap();
    }
}

#[tokio::test]
async fn what_is_missing_or_wrong_is_said() {
    let nats = Nats::start();
    let without_create = JetStreamOptions {
        create: false,
        ..options(&nats)
    };
    let why = unusable(JetStream::connect(&without_create).await);
    assert!(
        why.contains("has no stream `S`\nhint: create it, or set `create = true`"),
        "{why}"
    );
    let without_subjects = JetStreamOptions {
        subjects: Vec::new(),
        ..options(&nats)
    };
    let why = unusable(JetStream::connect(&without_subjects).await);
    assert!(why.contains("cannot be created without subjects"), "{why}");
    for (consumer, problem) in [
        ("a.b", "contains '.'"),
        ("a b", "contains ' '"),
        ("a/b", "contains '/'"),
    ] {
        let named = JetStreamOptions {
            consumer: consumer.into(),
            ..options(&nats)
        };
        let why = unusable(JetStream::connect(&named).await);
        assert!(
            why.contains(&format!("`{consumer}`")) && why.contains(problem),
            "{why}"
        );
    }
    let odd_subject = JetStreamOptions {
        subjects: vec!["s..a".into()],
        ..options(&nats)
    };
    assert!(unusable(JetStream::connect(&odd_subject).await).contains("`s..a` is no subject"));

    // An existing stream is used as it is; a filter that it does not take is worth a word.
    context(&nats)
        .await
        .create_stream(stream::Config {
            name: "S".into(),
            subjects: vec!["other.>".into()],
            storage: stream::StorageType::Memory,
            ..stream::Config::default()
        })
        .await
        .unwrap();
    let source = JetStream::connect(&options(&nats)).await;
    let drift = source.unwrap().drift().to_vec();
    assert!(
        drift[0].contains("stream `S` does not take `s.>`: its subjects are `other.>`"),
        "{drift:?}"
    );
    let overlapping = JetStreamOptions {
        stream: "T".into(),
        subjects: vec!["other.a".into()],
        ..options(&nats)
    };
    let why = unusable(JetStream::connect(&overlapping).await);
    assert!(
        why.contains("creating stream `T`") && why.contains("another stream takes"),
        "{why}"
    );

    let nobody = JetStreamOptions {
        url: "nats://me:s3cret@127.0.0.1:1".into(),
        ..options(&nats)
    };
    match JetStream::connect(&nobody).await {
        Err(SourceError::Unavailable(why)) => {
            assert!(why.contains("`nats://127.0.0.1:1`"), "{why}");
            assert!(!why.contains("s3cret"), "{why}");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
    assert!(!format!("{nobody:?}").contains("s3cret"));
}

#[tokio::test]
async fn credentials_in_the_url_are_used_and_never_shown() {
    let folder = tempfile::TempDir::with_prefix("hapax-nats-").unwrap();
    let start = |login: &[&str]| {
        let mut command = Command::new(find_program(
            "HAPAX_TEST_NATS",
            "the program nats-server",
            on_path("nats-server"),
        ));
        command
            .args(["-js", "-a", "127.0.0.1", "-p", "-1", "-sd"])
            .arg(folder.path())
            .args(login);
        let mut port: Option<u16> = None;
        Server::start(command, move |line| {
            if let Some((_, address)) = line.split_once("Listening for client connections on ") {
                port = address
                    .rsplit(':')
                    .next()
                    .and_then(|port| port.trim().parse().ok());
            }
            line.contains("Server is ready").then_some(port).flatten()
        })
    };
    let connect = async |url: String| {
        let options = JetStreamOptions {
            access: Access::default(),
            url,
            stream: "S".into(),
            subjects: vec!["s.>".into()],
            create: true,
            ack_wait: LONG,
            consumer: "c".into(),
            start: Start::All,
            in_hand_max: 1,
            in_order: false,
        };
        JetStream::connect(&options).await.map(|_| ())
    };
    let (server, port) = start(&["--user", "me", "--pass", "p@ss:w%rd"]);
    connect(format!("nats://me:p%40ss%3Aw%25rd@127.0.0.1:{port}"))
        .await
        .unwrap();
    for url in [
        format!("nats://me:wr0ng@127.0.0.1:{port}"),
        format!("nats://127.0.0.1:{port}"),
        format!("nats://wr0ng@127.0.0.1:{port}"),
    ] {
        let why = unusable(connect(url).await);
        assert!(
            why.starts_with(&format!(
                "`nats://127.0.0.1:{port}` refuses the credentials"
            )),
            "{why}"
        );
        assert!(!why.contains("wr0ng") && !why.contains("me:"), "{why}");
    }
    drop(server);
    let (_server, port) = start(&["--auth", "t0ken"]);
    connect(format!("nats://t0ken@127.0.0.1:{port}"))
        .await
        .unwrap();
    assert!(
        unusable(connect(format!("nats://127.0.0.1:{port}")).await)
            .contains("refuses the credentials")
    );
}

#[tokio::test]
async fn goes_on_after_the_server_was_killed() {
    let mut nats = Nats::start();
    let store = TestStore::sqlite().await;
    let mut options = options(&nats);
    options.ack_wait = Duration::from_secs(2);
    let mut source = JetStream::connect(&options).await.unwrap();
    publish(&nats, numbers(0..10)).await;
    let mut seen = Vec::new();
    let taken = take(&mut source, 3).await;
    seen.extend(texts(&taken));
    ack_all(&store, taken).await;
    wait_for(&nats, "acked", |info| info.num_ack_pending == 0).await;
    let running = take(&mut source, 2).await;
    seen.extend(texts(&running));

    nats.kill();
    let started = Instant::now();
    let error = loop {
        match source.next(1).await {
            // What lay in the source already.
            Ok(more) => drop(more),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SourceError::Unavailable(_)), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(10));
    assert!(matches!(
        source.backlog().await,
        Err(SourceError::Unavailable(_))
    ));
    // The commit is there; the answers wait for the server.
    ack_all(&store, running).await;

    nats.restart();
    let started = Instant::now();
    let mut back_after = None;
    // A killed server may have forgotten deliveries and answers: each message at least once, and none left over.
    loop {
        match tokio::time::timeout(QUIET, source.next(10)).await {
            Ok(Ok(deliveries)) => {
                back_after.get_or_insert(started.elapsed());
                seen.extend(texts(&deliveries));
                ack_all(&store, deliveries).await;
            }
            Ok(Err(SourceError::Unavailable(_))) => {}
            Ok(Err(error)) => panic!("{error:?}"),
            Err(_) => {
                let info = info(&nats).await;
                if info.num_pending == 0 && info.num_ack_pending == 0 {
                    break;
                }
            }
        }
        assert!(started.elapsed() < LONG, "{seen:?}");
    }
    println!("back after {back_after:?}");
    seen.sort();
    seen.dedup();
    assert_eq!(seen, numbers(0..10).collect::<Vec<_>>());
    assert_eq!(source.backlog().await.unwrap(), 0);
}

#[tokio::test]
async fn a_waiting_next_survives_a_restart() {
    let mut nats = Nats::start();
    let mut source = JetStream::connect(&options(&nats)).await.unwrap();
    // The pull that waits for a message is under way.
    nothing(&mut source).await;
    let mut restart = None;
    let started = Instant::now();
    let came = loop {
        assert!(started.elapsed() < LONG);
        match tokio::time::timeout(Duration::from_secs(2), source.next(1)).await {
            Ok(Ok(deliveries)) => break deliveries,
            Ok(Err(SourceError::Unavailable(_))) | Err(_) => {}
            Ok(Err(error)) => panic!("{error:?}"),
        }
        if restart.is_none() {
            nats.restart();
            publish(&nats, numbers(0..1)).await;
            restart = Some(Instant::now());
        }
    };
    assert_eq!(texts(&came), ["0"]);
    assert!(
        restart.unwrap().elapsed() < Duration::from_secs(8),
        "before the old pull would have ended"
    );
}

#[tokio::test]
async fn backlog_without_a_source() {
    let nats = Nats::start();
    assert_eq!(
        source::backlog(&options(&nats)).await.unwrap(),
        0,
        "there is no stream yet"
    );
    let missing = JetStreamOptions {
        create: false,
        ..options(&nats)
    };
    assert!(unusable(source::backlog(&missing).await).contains("has no stream"));
    publish(&nats, numbers(0..5)).await;
    let narrow = JetStreamOptions {
        subjects: vec!["s.b".into()],
        ..options(&nats)
    };
    assert_eq!(source::backlog(&options(&nats)).await.unwrap(), 5);
    assert_eq!(source::backlog(&narrow).await.unwrap(), 0);
    let new = JetStreamOptions {
        start: Start::New,
        ..options(&nats)
    };
    assert_eq!(source::backlog(&new).await.unwrap(), 0);
    let stream = context(&nats).await.get_stream("S").await.unwrap();
    assert!(stream.consumer_info("c").await.is_err(), "nothing was made");
    let mut source = JetStream::connect(&options(&nats)).await.unwrap();
    let _held = take(&mut source, 2).await;
    assert_eq!(source::backlog(&options(&nats)).await.unwrap(), 5);
}

#[tokio::test]
async fn the_publisher_counts_and_refuses() {
    let nats = Nats::start();
    let mut publisher = publisher(&nats).await;
    assert_eq!(publisher.subjects(), ["s.>"]);
    for round in 0..2 {
        for number in 0..500 {
            publisher
                .publish(NewMessage {
                    id: Some(format!("m-{number}")),
                    ..message(&format!("{round}"))
                })
                .await
                .unwrap();
        }
    }
    publisher.finish().await.unwrap();
    assert_eq!(publisher.confirmed(), (1000, 500));
    let with = |name: &str, value: &[u8]| NewMessage {
        headers: vec![Header {
            name: name.into(),
            value: value.to_vec().into(),
        }],
        ..message("")
    };
    let to = |subject: &str| NewMessage {
        subject: subject.into(),
        ..message("")
    };
    let table = [
        (to("s.*"), "is a pattern"),
        (
            to("s"),
            "does not take subject `s`\nhint: its subjects are `s.>`",
        ),
        (to("t.a"), "does not take subject `t.a`"),
        (to("s..a"), "is no subject"),
        (to(""), "is no subject"),
        (with("", b"x"), "is no header's name"),
        (with("a:b", b"x"), "is no header's name"),
        (with("a", b"\xff"), "header `a`: its value is not UTF-8"),
        (with("a", b"x\r\ny"), "contains a line break"),
        (with("a", b" x"), "has white space around it"),
        (
            NewMessage {
                id: Some("a\nb".into()),
                ..message("")
            },
            "header `Nats-Msg-Id`: its value contains a line break",
        ),
        (
            NewMessage {
                id: Some(String::new()),
                ..message("")
            },
            "id is empty",
        ),
        (
            NewMessage {
                payload: vec![0; 2 << 20].into(),
                ..message("")
            },
            "larger than the 1048576 bytes",
        ),
    ];
    for (message, problem) in table {
        let why = unusable(publisher.publish(message).await);
        assert!(why.contains(problem), "{why}");
    }
    publisher.finish().await.unwrap();
    assert_eq!(
        publisher.confirmed(),
        (1000, 500),
        "nothing of that was sent"
    );
    let stream = context(&nats).await.get_stream("S").await.unwrap();
    assert_eq!(stream.cached_info().state.messages, 500);
}
