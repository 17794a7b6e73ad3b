//! Rows that their target does not store, and targets that are away.

use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::TABLES;
use crate::receiver::{Receiver, insert, publishing};
use crate::support::host::run_with;
use crate::support::scene::{Scene, SourceSort, script};

/// A row that no stream takes waits and holds its key, and nobody else's; then it is parked and its key goes on.
async fn a_failing_row_holds_only_its_key(kind: StoreKind) {
    let receiver = Receiver::start().await;
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        TABLES,
        &format!(
            "{}\n[outbox]\nretry = {{ attempts = 3, backoff = \"1h\" }}\n",
            receiver.target()
        ),
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let mut probe = scene.store.probe().await;
    for (id, key, subject) in [
        ("1", Some("k"), "lost.a"),
        ("2", Some("k"), "out.a"),
        ("3", Some("other"), "out.a"),
        ("4", None, "out.a"),
        // Never can be.
        ("5", Some("other"), "out.*"),
        ("6", Some("other"), "out.a"),
    ] {
        probe.run(&insert(&scene, id, key, subject)).await;
    }
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    receiver.wait_for_stored(3).await;
    let state = |id: &'static str| {
        let scene = &scene;
        async move {
            let table = scene.store.table("outbox");
            let sql = format!(
                "SELECT CAST(CASE WHEN published_at IS NOT NULL THEN 1 WHEN parked_at IS NOT NULL THEN 2 ELSE 3 END AS bigint) FROM {table} \
                 WHERE id = '{id}'"
            );
            scene.store.number(&sql).await
        }
    };
    let table = scene.store.table("outbox");
    let attempts =
        |n: i64| format!("SELECT count(*) FROM {table} WHERE id = '1' AND attempts = {n}");
    probe.wait_for(&attempts(1), 1).await;
    probe
        .wait_for(
            &format!("SELECT count(*) FROM {table} WHERE published_at IS NOT NULL"),
            3,
        )
        .await;
    assert_eq!(
        (
            state("1").await,
            state("2").await,
            state("5").await,
            state("6").await
        ),
        (3, 3, 2, 1)
    );
    // Its time comes twice more.
    for n in [2, 3] {
        probe
            .run(&format!(
                "UPDATE {table} SET due_at = created_at WHERE id = '1'"
            ))
            .await;
        probe.wait_for(&attempts(n), 1).await;
    }
    receiver.wait_for_stored(4).await;
    assert_eq!(state("1").await, 2);

    let hapax = |arguments: &[&str]| run_with(scene.folder(), arguments, &[], b"");
    let listed = hapax(&["outbox", "list", "--state", "parked", "--json"]);
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    let parked = listed["messages"].as_array().unwrap();
    assert_eq!(parked.len(), 2);
    assert_eq!(parked[1]["error"], "no stream takes subject `lost.a`");
    assert!(
        parked[0]["error"]
            .as_str()
            .unwrap()
            .contains("`out.*` is a pattern"),
        "{}",
        parked[0]
    );
    let status = scene.status();
    assert_eq!(
        (
            &status["outbox"]["parked"],
            &status["outbox"]["unpublished"]
        ),
        (&json!(2), &json!(0))
    );
    let text = hapax(&["status"]);
    assert!(
        text.err
            .contains("2 messages of `subject` could not be published and are parked"),
        "{}",
        text.err
    );

    // Once a stream takes it, it leaves.
    receiver.add_stream("LOST", "lost.>").await;
    let number = parked[1]["number"].to_string();
    let republished = hapax(&["outbox", "republish", &number]);
    assert_eq!(
        (republished.out.as_str(), republished.status.code()),
        ("republished 1 message\n", Some(0))
    );
    probe
        .wait_for(
            &format!("SELECT count(*) FROM {table} WHERE id = '1' AND published_at IS NOT NULL"),
            1,
        )
        .await;
    let shown = hapax(&["outbox", "show", &number]);
    assert!(
        shown.out.contains("state       published") && shown.out.contains("subject     lost.a"),
        "{}",
        shown.out
    );

    let other = parked[0]["number"].to_string();
    let asked = hapax(&["outbox", "drop", &other]);
    assert_eq!(asked.status.code(), Some(2), "{}", asked.err);
    assert!(asked.err.contains("hint: say `--yes`"), "{}", asked.err);
    assert_eq!(
        hapax(&["outbox", "drop", "--yes", &other]).out,
        "dropped 1 message\n"
    );
    let again = hapax(&["outbox", "drop", "--yes", &other]);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        again
            .err
            .contains(&format!("there is no message {other} in the outbox")),
        "{}",
        again.err
    );
    let nothing = hapax(&["outbox", "list", "--state", "parked"]);
    assert_eq!(nothing.out, "no messages in the outbox\n");
    host.terminate();
    host.wait_well();
}

#[tokio::test]
async fn a_failing_row_holds_only_its_key_on_postgres() {
    a_failing_row_holds_only_its_key(StoreKind::Postgres).await;
}

#[tokio::test]
async fn a_failing_row_holds_only_its_key_on_sqlite() {
    a_failing_row_holds_only_its_key(StoreKind::Sqlite).await;
}

/// A subject that no stream takes but somebody listens to: nobody says that it was not stored, and yet nobody else waits for it.
#[tokio::test]
async fn a_subject_with_listeners_and_no_stream_is_found() {
    let receiver = Receiver::start().await;
    let _listener = receiver.client.subscribe("lost.>").await.unwrap();
    receiver.client.flush().await.unwrap();
    let scene = Scene::new(
        StoreKind::Sqlite,
        SourceSort::Queue,
        &script(),
        TABLES,
        &format!(
            "{}\n[outbox]\nretry = {{ attempts = 1 }}\n",
            receiver.target()
        ),
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let mut probe = scene.store.probe().await;
    probe.run(&insert(&scene, "1", None, "lost.a")).await;
    probe.run(&insert(&scene, "2", None, "out.a")).await;
    scene.run_until_idle();
    assert_eq!(receiver.stored().await, 1);
    let table = scene.store.table("outbox");
    let error = format!("SELECT error FROM {table} WHERE id = '1' AND parked_at IS NOT NULL");
    assert_eq!(
        scene.store.text(&error).await.as_deref(),
        Some("no stream takes subject `lost.a`")
    );
}

/// While the broker is away nothing is charged, and messages take effect as before.
#[tokio::test]
async fn a_target_that_is_away_charges_nobody() {
    let mut receiver = Receiver::start().await;
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &script(),
        TABLES,
        &receiver.target(),
    )
    .await;
    let mut host = scene.host(&[], &[]);
    host.wait_until_ready();
    receiver.nats.kill();
    scene.publish(&[publishing("m1"), publishing("m2")]).await;
    let mut probe = scene.store.probe().await;
    probe.wait_for("SELECT count(*) FROM effects", 2).await;
    host.wait_for_line("the target is away");
    assert_eq!(
        scene
            .count(
                "outbox",
                "published_at IS NULL AND attempts = 0 AND parked_at IS NULL"
            )
            .await,
        6
    );
    receiver.nats.restart();
    host.wait_for_line("the target can be reached again");
    receiver.wait_for_stored(6).await;
    host.terminate();
    host.wait_well();
}

/// Subjects that the broker's user may not publish to: the rows for them are charged, and nobody else waits for them.
async fn a_subject_that_is_denied_is_no_outage(kind: StoreKind) {
    let receiver = Receiver::start_with_users().await;
    let scene = Scene::new(
        kind,
        SourceSort::Queue,
        &script(),
        TABLES,
        &format!(
            "{}\n[outbox]\nretry = {{ attempts = 2, backoff = \"10ms\" }}\n",
            receiver.target()
        ),
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let mut probe = scene.store.probe().await;
    for (id, key, subject) in [
        ("1", None, "out.secret"),
        ("2", None, "out.a"),
        ("3", Some("k"), "out.secret"),
        ("4", Some("k"), "out.a"),
    ] {
        probe.run(&insert(&scene, id, key, subject)).await;
    }
    let said = scene.run_until_idle();
    assert!(!said.contains("the target is away"), "{said}");
    let parked = "attempts = 2 AND parked_at IS NOT NULL \
         AND error = 'the server does not let this user publish to subject `out.secret`'";
    assert_eq!(scene.count("outbox", parked).await, 2, "{said}");
    let published = "attempts = 0 AND published_at IS NOT NULL";
    assert_eq!(scene.count("outbox", published).await, 2);
    assert_eq!(receiver.stored().await, 2);
}

#[tokio::test]
async fn a_subject_that_is_denied_is_no_outage_on_postgres() {
    a_subject_that_is_denied_is_no_outage(StoreKind::Postgres).await;
}

#[tokio::test]
async fn a_subject_that_is_denied_is_no_outage_on_sqlite() {
    a_subject_that_is_denied_is_no_outage(StoreKind::Sqlite).await;
}

/// A stream that takes the subject and confirms nothing, while the server answers all else.
#[tokio::test]
async fn a_stream_that_does_not_confirm_is_no_outage() {
    let receiver = Receiver::start().await;
    receiver.add_silent_stream("SILENT", "silent.*").await;
    let scene = Scene::new(
        StoreKind::Sqlite,
        SourceSort::Queue,
        &script(),
        TABLES,
        &format!(
            "{}\n[outbox]\nretry = {{ attempts = 1 }}\n",
            receiver.target()
        ),
    )
    .await;
    scene.store.connect().await.migrate().await.unwrap();
    let mut probe = scene.store.probe().await;
    probe.run(&insert(&scene, "1", None, "silent.a")).await;
    probe.run(&insert(&scene, "2", None, "out.a")).await;
    let said = scene.run_until_idle();
    assert!(!said.contains("the target is away"), "{said}");
    assert_eq!(receiver.stored().await, 1);
    let table = scene.store.table("outbox");
    let error = format!("SELECT error FROM {table} WHERE id = '1' AND parked_at IS NOT NULL");
    let error = scene.store.text(&error).await.unwrap();
    assert!(
        error.contains("stream `SILENT` did not confirm the message in time"),
        "{error}"
    );
}
