//! Trap 11: a message is processed or dead, never both.

use hapax::message::{FailureClass, ShortHash};
use hapax::store::StoreKind;
use serde_json::json;

use crate::support::database::Probe;
use crate::support::host::Host;
use crate::support::scene::{Scene, TestMessage};
use crate::{
    QUICK, SourceSort, assert_dead, assert_once, effect, effects, good, letters, message, outcomes,
    scene,
};

/// The SQL with which another host's transaction claims a message's id.
fn claim(scene: &Scene, message: &TestMessage) -> String {
    let hash = ShortHash::of_payload(&message.payload).to_hex();
    let hash = match scene.store.kind() {
        StoreKind::Postgres => format!("'\\x{hash}'"),
        StoreKind::Sqlite => format!("X'{hash}'"),
    };
    format!(
        "INSERT INTO {} (consumer, message_id, outcome, payload_hash) VALUES ('subject', '{}', 'done', {hash}); \
         INSERT INTO effects (id, attempt) VALUES ('{}', 1);",
        scene.store.table("processed_messages"),
        message.id.as_ref().unwrap(),
        message.id.as_ref().unwrap(),
    )
}

/// Waits until a lane waits for a lock in a statement with these words.
async fn wait_for_lock(probe: &mut Probe, words: &str) {
    let sql = format!(
        "SELECT least(count(*), 1) FROM pg_stat_activity WHERE application_name LIKE 'hapax lane%' \
         AND wait_event_type = 'Lock' AND query LIKE '%{words}%'"
    );
    probe.wait_for(&sql, 1).await;
}

async fn end_well(host: Host, scene: &Scene) {
    scene.wait_until_nothing_pends().await;
    host.terminate();
    host.wait_well();
}

/// Another host holds the id's claim when this one wants to run the message.
async fn a_run_meets_a_claim(source: SourceSort, end: &str) -> Scene {
    let scene = scene(StoreKind::Postgres, source, QUICK).await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    let one = good("m");
    let mut other = scene.store.probe().await;
    other.run(&format!("BEGIN; {}", claim(&scene, &one))).await;
    scene.publish(&[one]).await;
    let mut probe = scene.store.probe().await;
    wait_for_lock(&mut probe, "processed_messages").await;
    other.run(end).await;
    end_well(host, &scene).await;
    scene
}

#[tokio::test]
async fn trap_11_a_run_that_meets_a_claim_is_a_duplicate_once_that_commits() {
    for source in [SourceSort::Queue, SourceSort::JetStream] {
        let scene = a_run_meets_a_claim(source, "COMMIT").await;
        assert_once(&scene, "m").await;
        let status = scene.status();
        assert_eq!(status["duplicates"], 1, "{status}");
        assert_eq!(status["claimed"], 0, "{status}");
    }
}

#[tokio::test]
async fn trap_11_a_run_that_meets_a_claim_goes_on_once_that_is_rolled_back() {
    for source in [SourceSort::Queue, SourceSort::JetStream] {
        let scene = a_run_meets_a_claim(source, "ROLLBACK").await;
        assert_once(&scene, "m").await;
        let status = scene.status();
        assert_eq!(status["duplicates"], 0, "{status}");
        assert_eq!(status["claimed"], 1, "{status}");
    }
}

/// Another host claims the id between this one's last failed run and its dead letter.
async fn a_burial_meets_a_claim(source: SourceSort, end: &str) -> Scene {
    let scene = scene(StoreKind::Postgres, source, QUICK).await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    // The failure can't be recorded: the host stands between the run and the dead letter.
    let mut recording = scene.store.probe().await;
    recording
        .run("BEGIN; LOCK TABLE hapax.attempts IN EXCLUSIVE MODE")
        .await;
    let one = message("m", json!([effect(), { "reject": "no" }]));
    scene.publish(std::slice::from_ref(&one)).await;
    let mut probe = scene.store.probe().await;
    wait_for_lock(&mut probe, "INSERT INTO hapax.attempts").await;
    let mut other = scene.store.probe().await;
    other.run(&format!("BEGIN; {}", claim(&scene, &one))).await;
    recording.run("COMMIT").await;
    wait_for_lock(&mut probe, "processed_messages").await;
    other.run(end).await;
    end_well(host, &scene).await;
    scene
}

#[tokio::test]
async fn trap_11_a_burial_that_meets_a_claim_writes_nothing_once_that_commits() {
    for source in [SourceSort::Queue, SourceSort::JetStream] {
        let scene = a_burial_meets_a_claim(source, "COMMIT").await;
        assert_once(&scene, "m").await;
        assert!(letters(&scene).await.is_empty());
        let status = scene.status();
        assert_eq!(status["dead"], 0, "{status}");
    }
}

#[tokio::test]
async fn trap_11_a_burial_that_meets_a_claim_goes_on_once_that_is_rolled_back() {
    for source in [SourceSort::Queue, SourceSort::JetStream] {
        let scene = a_burial_meets_a_claim(source, "ROLLBACK").await;
        let letter = assert_dead(&scene, "m", FailureClass::Rejected).await;
        assert_eq!(letter.attempts.len(), 1, "{letter:#?}");
    }
}

on_all! {
    trap_11_a_message_that_another_host_finished_is_not_buried,
    trap_11_a_dead_message_that_comes_again_does_not_run,
}

/// As above, committed before this host looks, so that it can be done on SQLite too: the trigger is the other host.
async fn trap_11_a_message_that_another_host_finished_is_not_buried(
    kind: StoreKind,
    source: SourceSort,
) {
    let scene = scene(kind, source, QUICK).await;
    let one = message("m", json!([effect(), { "retry": { "reason": "later" } }]));
    scene.publish(&[one.clone(), good("next")]).await;
    // The handler's tables are made by the first start.
    let mut host = scene.host(&[], &[("HAPAX_FAULT_POINT", "after-fetch:1")]);
    host.wait_for_line("consuming");
    drop(host.wait());
    let attempts = scene.store.table("attempts");
    let claim = claim(&scene, &one);
    let trigger = match kind {
        StoreKind::Postgres => format!(
            "CREATE FUNCTION finish() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {claim} RETURN NULL; END $$; \
             CREATE TRIGGER finish AFTER INSERT ON {attempts} FOR EACH ROW WHEN (NEW.attempt = 2) \
             EXECUTE FUNCTION finish();"
        ),
        StoreKind::Sqlite => format!(
            "CREATE TRIGGER finish AFTER INSERT ON {attempts} WHEN NEW.attempt = 2 BEGIN {claim} END;"
        ),
    };
    scene.store.run(&trigger).await;
    scene.run_until_idle();
    assert_once(&scene, "m").await;
    assert_once(&scene, "next").await;
    assert!(letters(&scene).await.is_empty());
    assert_eq!(scene.pending().await, 0);
}

/// Delivered or published again after its dead letter: a duplicate.
async fn trap_11_a_dead_message_that_comes_again_does_not_run(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, QUICK).await;
    // Would do well in its second run.
    let one = message(
        "m",
        json!([effect(), { "if_attempt_below": 2, "steps": [{ "reject": "no" }] }]),
    );
    scene.publish(std::slice::from_ref(&one)).await;
    scene.run_until_idle();
    assert_dead(&scene, "m", FailureClass::Rejected).await;

    scene.publish(&[one.clone(), one, good("next")]).await;
    scene.run_until_idle();
    let letter = assert_dead(&scene, "m", FailureClass::Rejected).await;
    assert_eq!(letter.attempts.len(), 1, "{letter:#?}");
    assert_once(&scene, "next").await;
    assert_eq!(effects(&scene, "m").await, 0);
    assert_eq!(outcomes(&scene, "m").await, "dead");
    let status = scene.status();
    assert_eq!(status["duplicates"], 2, "{status}");
    assert_eq!(status["dead"], 1, "{status}");
    assert_eq!(scene.pending().await, 0);
}

/// The host dies between the dead letter's commit and the answer: the message comes again, and is dead already.
#[tokio::test]
async fn trap_11_a_dead_letter_whose_answer_is_lost_stands_once() {
    for kind in [StoreKind::Postgres, StoreKind::Sqlite] {
        let scene = scene(kind, SourceSort::JetStream, QUICK).await;
        scene
            .publish(&[message("m", json!([effect(), { "reject": "no" }]))])
            .await;
        let variables = [("HAPAX_FAULT_POINT", "before-ack:1")];
        let (status, said) = scene.host(&["--until-idle"], &variables).wait();
        assert!(!status.success(), "{said}");
        assert_eq!(scene.pending().await, 1);
        assert_dead(&scene, "m", FailureClass::Rejected).await;
        scene.run_until_idle();
        assert_dead(&scene, "m", FailureClass::Rejected).await;
        assert_eq!(scene.pending().await, 0);
    }
}
