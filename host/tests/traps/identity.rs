//! Traps 14 and 15: the same id with another payload, and no id at all.

use std::os::unix::process::ExitStatusExt as _;

use hapax::message::FailureClass;
use hapax::store::{StoreKind, StoredDeadLetter};
use serde_json::json;

use crate::support::scene::TestMessage;
use crate::{
    QUICK, SourceSort, assert_once, effect, effects, good, letters, message, outcomes, scene,
};

/// All that a payload can hold, and no JSON.
fn any_bytes() -> Vec<u8> {
    (0..=u8::MAX).collect()
}

fn of_class(letters: Vec<StoredDeadLetter>, class: FailureClass) -> Vec<StoredDeadLetter> {
    letters
        .into_iter()
        .filter(|letter| letter.letter.class == class)
        .collect()
}

on_all! {
    trap_14_another_payload_under_a_known_id_is_parked_as_it_is,
    trap_14_conflicts_can_be_ignored,
    trap_15_a_message_without_a_usable_id_is_parked_once,
}

/// Dropped as a duplicate, it would be lost.
async fn trap_14_another_payload_under_a_known_id_is_parked_as_it_is(
    kind: StoreKind,
    source: SourceSort,
) {
    let scene = scene(kind, source, QUICK).await;
    let other = TestMessage {
        id: Some("m".into()),
        payload: any_bytes(),
    };
    let same_meaning = TestMessage {
        id: Some("m".into()),
        payload: [good("m").payload, b" ".to_vec()].concat(),
    };
    let dead = message("dead", json!([{ "reject": "no" }]));
    let after_dead = good("dead");
    scene.publish(&[good("m"), dead]).await;
    scene.run_until_idle();
    scene
        .publish(&[
            other.clone(),
            same_meaning.clone(),
            good("m"),
            after_dead.clone(),
            good("next"),
        ])
        .await;
    scene.run_until_idle();

    let mut found = of_class(letters(&scene).await, FailureClass::Conflict);
    assert_eq!(found.len(), 3, "{found:#?}");
    // Batches may park them in another order.
    found.sort_by(|a, b| a.letter.payload.cmp(&b.letter.payload));
    let mut expected = [other, same_meaning, after_dead];
    expected.sort_by(|a, b| a.payload.cmp(&b.payload));
    for (letter, message) in found.iter().zip(expected) {
        let own_id = letter.letter.message_id.as_ref().unwrap();
        assert_eq!(Some(own_id.as_str()), message.id.as_deref());
        assert_eq!(&letter.letter.payload[..], &message.payload[..]);
        let header = &letter.letter.headers[0];
        assert_eq!(header.name, "Message-Id");
        assert_eq!(&header.value[..], own_id.as_str().as_bytes());
        assert!(letter.attempts.is_empty(), "{letter:#?}");
    }
    assert_eq!(effects(&scene, "m").await, 1);
    assert_eq!(outcomes(&scene, "m").await, "done");
    assert_eq!(effects(&scene, "dead").await, 0);
    assert_eq!(outcomes(&scene, "dead").await, "dead");
    assert_eq!(scene.count("attempts", "true").await, 0);
    assert_once(&scene, "next").await;
    let status = scene.status();
    assert_eq!(status["claimed"], 2, "{status}");
    assert_eq!(status["duplicates"], 1, "{status}");
    assert_eq!(status["dead"], 4, "{status}");
    assert_eq!(scene.pending().await, 0);
}

async fn trap_14_conflicts_can_be_ignored(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, &format!("{QUICK}\nconflict = \"ignore\"")).await;
    let other = TestMessage {
        id: Some("m".into()),
        payload: any_bytes(),
    };
    scene.publish(&[good("m")]).await;
    scene.run_until_idle();
    scene.publish(&[other.clone(), other, good("next")]).await;
    scene.run_until_idle();
    assert_once(&scene, "m").await;
    assert_once(&scene, "next").await;
    assert!(letters(&scene).await.is_empty());
    let status = scene.status();
    assert_eq!(status["duplicates"], 2, "{status}");
    assert_eq!(scene.pending().await, 0);
}

async fn trap_15_a_message_without_a_usable_id_is_parked_once(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, QUICK).await;
    let payload = good("x").payload;
    let with_id = |id: Option<String>| TestMessage {
        id,
        payload: payload.clone(),
    };
    let longest = "ä".repeat(512);
    let mut messages = vec![
        with_id(None),
        with_id(Some(String::new())),
        with_id(Some("x".repeat(1_025))),
        TestMessage {
            id: None,
            payload: any_bytes(),
        },
        TestMessage {
            id: None,
            payload: Vec::new(),
        },
    ];
    if source == SourceSort::Queue {
        messages.push(with_id(Some("a\0b".into())));
    }
    let without = messages.len();
    messages.push(with_id(Some(longest.clone())));
    messages.push(good("next"));
    scene.publish(&messages).await;

    // The first of them is parked (more, with more lanes), but its answer is lost.
    let told = scene.folder().join("died-at");
    let (status, said) = scene
        .host(
            &["--until-idle"],
            &[
                ("HAPAX_FAULT_POINT", "before-ack:1"),
                ("HAPAX_FAULT_FILE", &told.display().to_string()),
            ],
        )
        .wait();
    assert_eq!(status.signal(), Some(9), "{status}; the host said:\n{said}");
    let parked = letters(&scene).await.len();
    assert!(parked > 0);
    let done = scene.count("processed_messages", "true").await as usize;
    let left = match source {
        // The row goes with the transaction.
        SourceSort::Queue => messages.len() - parked - done,
        SourceSort::JetStream => messages.len(),
    };
    assert_eq!(scene.pending().await as usize, left);
    scene.run_until_idle();

    let found = letters(&scene).await;
    assert_eq!(found.len(), without, "{found:#?}");
    // What was delivered again may come last.
    for message in &messages[..without] {
        let same = found
            .iter()
            .filter(|letter| letter.letter.payload == message.payload)
            .count();
        let published = messages[..without]
            .iter()
            .filter(|other| other.payload == message.payload)
            .count();
        assert_eq!(same, published);
    }
    let mut positions: Vec<_> = found
        .iter()
        .map(|letter| &letter.letter.position.0)
        .collect();
    positions.sort();
    positions.dedup();
    assert_eq!(positions.len(), without);
    for letter in &found {
        assert_eq!(letter.letter.class, FailureClass::MissingId, "{letter:#?}");
        assert_eq!(letter.letter.message_id, None);
        assert!(
            letter.letter.reason.contains("header:Message-Id"),
            "{letter:#?}"
        );
    }
    assert_once(&scene, &longest).await;
    assert_once(&scene, "next").await;
    assert_eq!(scene.count("processed_messages", "true").await, 2);
    assert_eq!(scene.count("attempts", "true").await, 0);
    assert_eq!(scene.pending().await, 0);
}

/// A conflict is found by its claim, and has none of its own: its position keeps it from being written twice.
#[tokio::test]
async fn trap_14_a_conflict_whose_answer_is_lost_stands_once() {
    for kind in [StoreKind::Postgres, StoreKind::Sqlite] {
        let scene = scene(kind, SourceSort::JetStream, QUICK).await;
        scene.publish(&[good("m")]).await;
        scene.run_until_idle();
        scene
            .publish(&[message("m", json!([{ "reject": "no" }, effect()]))])
            .await;
        let variables = [("HAPAX_FAULT_POINT", "before-ack:1")];
        let (status, said) = scene.host(&["--until-idle"], &variables).wait();
        assert_eq!(status.signal(), Some(9), "{said}");
        assert_eq!(letters(&scene).await.len(), 1);
        assert_eq!(scene.pending().await, 1);
        scene.run_until_idle();
        assert_eq!(letters(&scene).await.len(), 1);
        assert_eq!(effects(&scene, "m").await, 1);
        assert_eq!(scene.pending().await, 0);
        // The id itself stays as it was.
        scene.publish(&[good("m")]).await;
        scene.run_until_idle();
        assert_eq!(effects(&scene, "m").await, 1);
    }
}

/// The claim of an id is byte for byte: neither case nor Unicode's forms nor blanks make two ids one.
#[tokio::test]
async fn trap_14_ids_that_look_alike_are_different() {
    for kind in [StoreKind::Postgres, StoreKind::Sqlite] {
        let scene = scene(kind, SourceSort::Queue, QUICK).await;
        let ids = ["a", "A", "a ", "\u{e9}", "e\u{301}", "1", "01", "1.0", "''"];
        let messages: Vec<_> = ids.iter().map(|id| good(id)).collect();
        scene.publish(&messages).await;
        scene.publish(&messages).await;
        scene.run_until_idle();
        let all = scene.store.number("SELECT count(*) FROM effects").await;
        assert_eq!(all as usize, ids.len());
        assert_eq!(
            scene.count("processed_messages", "true").await as usize,
            ids.len()
        );
        assert!(letters(&scene).await.is_empty());
        assert_eq!(scene.count("attempts", "true").await, 0);
        assert_eq!(scene.pending().await, 0);
    }
}
