//! What failure and stopping cost: attempts, the outbox, dead letters and the drain.

use hapax::message::{FailureClass, ShortHash};
use hapax::store::StoreKind;
use serde_json::json;

use crate::support::scene::TestMessage;
use crate::{
    QUICK, SourceSort, assert_dead, assert_once, effect, good, letters, message, scene,
    wait_for_settled,
};

on_all! {
    attempts_are_counted_in_the_store_across_restarts,
    a_host_that_is_told_to_stop_ends_well_and_nothing_is_lost_or_done_twice,
}

on_both_databases! {
    the_handler_sees_its_attempts_rise,
    what_is_published_is_written_once_with_the_same_ids,
    a_dead_letter_holds_its_attempts,
    a_message_that_waits_for_its_retry_holds_up_no_other,
}

async fn the_handler_sees_its_attempts_rise(kind: StoreKind, source: SourceSort) {
    let handler = "lanes = 1\nretry = { attempts = 4, backoff = \"10ms..20ms\" }";
    let scene = scene(kind, source, handler).await;
    // A step whose expectation fails rejects, which would not be run again.
    let is_attempt = |attempt: i64| {
        json!({ "query": "SELECT CAST($1 AS bigint)", "params": [{ "message": "attempt" }],
                "expect_rows": [[{ "int64": attempt }]] })
    };
    let steps = json!([
        effect(),
        { "if_attempt_below": 2, "steps": [is_attempt(1), { "retry": { "reason": "first" } }] },
        { "if_attempt_below": 3, "steps": [is_attempt(2), { "unreachable": true }] },
        { "if_attempt_below": 4, "steps": [is_attempt(3), { "retry": { "reason": "third", "delay_ms": 50 } }] },
        is_attempt(4),
    ]);
    scene.publish(&[message("m", steps)]).await;
    scene.run_until_idle();
    assert_once(&scene, "m").await;
    assert_eq!(scene.store.number("SELECT attempt FROM effects").await, 4);
    let status = scene.status();
    assert_eq!(status["retried"], 3, "{status}");
    assert_eq!(status["claimed"], 1, "{status}");
}

async fn attempts_are_counted_in_the_store_across_restarts(kind: StoreKind, source: SourceSort) {
    let handler = "lanes = 1\nretry = { attempts = 5, backoff = \"3s\" }";
    let scene = scene(kind, source, handler).await;
    let steps = json!([
        effect(),
        { "if_attempt_below": 2, "steps": [{ "retry": { "reason": "first" } }] },
        { "if_attempt_below": 3, "steps": [{ "retry": { "reason": "second" } }] },
    ]);
    scene.publish(&[message("m", steps)]).await;
    let attempts = scene.store.table("attempts");
    let mut probe = scene.store.probe().await;
    for (number, reason) in [(1, "first"), (2, "second")] {
        // Once it drains, once it is killed.
        let host = scene.host(&[], &[]);
        probe
            .wait_for(&format!("SELECT count(*) FROM {attempts}"), number)
            .await;
        if number == 1 {
            host.terminate();
            host.wait_well();
        } else {
            host.kill();
            drop(host.wait());
        }
        let sql = format!(
            "SELECT class || ' ' || error FROM {attempts} WHERE attempt = {number} AND consumer = 'subject' AND message_id = 'm'"
        );
        assert_eq!(probe.text(&sql).await.unwrap(), format!("retried {reason}"));
        assert_eq!(probe.number("SELECT count(*) FROM effects").await, 0);
    }
    scene.run_until_idle();
    assert_once(&scene, "m").await;
    assert_eq!(probe.number("SELECT attempt FROM effects").await, 3);
    assert_eq!(scene.pending().await, 0);
}

async fn what_is_published_is_written_once_with_the_same_ids(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, QUICK).await;
    let id = |message: &str, ordinal: u32| {
        ShortHash::of(&[
            b"outbox",
            b"subject",
            message.as_bytes(),
            &ordinal.to_be_bytes(),
        ])
        .to_hex()
    };
    let publish = |message: &str, ordinal: u32| {
        json!({ "publish": {
            "subject": format!("out.{ordinal}"), "key": "k", "headers": [["h", "v\0w"]],
            "content_type": "text/plain", "payload_hex": "00ff",
        }, "expect_text": id(message, ordinal) })
    };
    let steps = json!([
        publish("m", 0),
        effect(),
        publish("m", 1),
        { "if_attempt_below": 2, "steps": [publish("m", 2), { "unreachable": true }] },
    ]);
    let given_up = json!([publish("dead", 0), { "reject": "no" }]);
    scene
        .publish(&[
            message("m", steps.clone()),
            message("dead", given_up),
            message("m", steps),
        ])
        .await;
    scene.run_until_idle();
    assert_once(&scene, "m").await;
    assert_dead(&scene, "dead", FailureClass::Rejected).await;
    let outbox = scene.store.table("outbox");
    let mut probe = scene.store.probe().await;
    assert_eq!(
        probe
            .number(&format!("SELECT count(*) FROM {outbox}"))
            .await,
        2
    );
    for ordinal in 0..2 {
        let found = probe
            .text(&format!(
                "SELECT id || ' ' || message_id || ' ' || subject || ' ' || key || ' ' || content_type \
                 FROM {outbox} WHERE ordinal = {ordinal}"
            ))
            .await
            .unwrap();
        let expected = format!("{} m out.{ordinal} k text/plain", id("m", ordinal));
        assert_eq!(found, expected);
    }
}

async fn a_dead_letter_holds_its_attempts(kind: StoreKind, source: SourceSort) {
    let handler = "lanes = 1\nretry = { attempts = 3, backoff = \"10ms\" }";
    let scene = scene(kind, source, handler).await;
    let one = message(
        "m",
        json!([
            effect(),
            { "if_attempt_below": 2, "steps": [{ "retry": { "reason": "first" } }] },
            { "if_attempt_below": 3, "steps": [{ "panic": "second" }] },
            { "execute": "INSERT INTO notes (key) VALUES ('taken')", "swallow": true },
        ]),
    );
    scene.publish(&[one.clone(), good("next")]).await;
    scene.run_until_idle();
    let letter = assert_dead(&scene, "m", FailureClass::Sql).await;
    let told: Vec<_> = letter
        .attempts
        .iter()
        .map(|attempt| (attempt.number, attempt.class))
        .collect();
    let expected = [
        (1, FailureClass::Retried),
        (2, FailureClass::Trapped),
        (3, FailureClass::Sql),
    ];
    assert_eq!(told, expected);
    assert_eq!(letter.attempts[0].error, "first");
    assert!(letter.attempts[1].error.contains("second"), "{letter:#?}");
    assert!(letter.attempts[2].error.contains("aborted"), "{letter:#?}");
    assert_eq!(letter.letter.reason, letter.attempts[2].error);
    assert_eq!(letter.letter.payload, one.payload);
    assert!(letter.letter.component.is_some());
    for attempt in &letter.attempts {
        assert_eq!(attempt.component, letter.letter.component);
    }
    assert!(letter.dead_at.is_some());
    assert_once(&scene, "next").await;
    let status = scene.status();
    assert_eq!(status["retried"], 2, "{status}");
    assert_eq!(status["dead"], 1, "{status}");
}

async fn a_message_that_waits_for_its_retry_holds_up_no_other(kind: StoreKind, source: SourceSort) {
    let handler = "lanes = 1\nretry = { attempts = 5, backoff = \"1h\" }";
    let scene = scene(kind, source, handler).await;
    let mut messages = vec![message(
        "waits",
        json!([{ "retry": { "reason": "later" } }]),
    )];
    messages.extend((0..20).map(|number| good(&format!("m-{number}"))));
    scene.publish(&messages).await;
    let host = scene.host(&[], &[]);
    wait_for_settled(&scene, 20).await;
    assert_eq!(scene.count("attempts", "true").await, 1);
    host.terminate();
    host.wait_well();
    assert_eq!(scene.pending().await, 1);
}

async fn a_host_that_is_told_to_stop_ends_well_and_nothing_is_lost_or_done_twice(
    kind: StoreKind,
    source: SourceSort,
) {
    const MESSAGES: usize = 120;
    let handler = match kind {
        StoreKind::Postgres => "lanes = 3",
        StoreKind::Sqlite => "lanes = 1",
    };
    let scene = scene(
        kind,
        source,
        &format!("{handler}\nlimits = {{ cpu = \"20s\", time = \"60s\" }}"),
    )
    .await;
    let ids: Vec<String> = (0..MESSAGES).map(|number| format!("m-{number}")).collect();
    let messages: Vec<TestMessage> = ids
        .iter()
        .map(|id| message(id, json!([effect(), { "busy": 10_000_000 }])))
        .collect();
    let table = scene.store.table("processed_messages");
    let done = format!("SELECT count(*) FROM {table}");
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    scene.publish(&messages).await;
    let mut probe = scene.store.probe().await;
    while probe.number(&done).await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    host.terminate();
    host.wait_well();
    let before = probe.number(&done).await;
    assert!((1..MESSAGES as i64).contains(&before), "{before} were done");
    assert_eq!(scene.count("attempts", "true").await, 0);
    scene.run_until_idle();
    for id in &ids {
        assert_once(&scene, id).await;
    }
    assert!(letters(&scene).await.is_empty());
    assert_eq!(scene.pending().await, 0);
}
