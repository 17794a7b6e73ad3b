//! Deployments in the store, on both databases.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use hapax::message::{ComponentDigest, MessageId, ShortHash};
use hapax::store::{
    ClaimRequest, Deploy, Deployed, HostHandler, NewComponent, StoreError, Tx, WantedState,
};
use support::database::TestStore;

macro_rules! on_both {
    ($($case:ident)*) => {
        mod postgres {
            $(
                #[tokio::test]
                async fn $case() {
                    super::cases::$case(super::TestStore::postgres().await).await;
                }
            )*
        }
        mod sqlite {
            $(
                #[tokio::test]
                async fn $case() {
                    super::cases::$case(super::TestStore::sqlite().await).await;
                }
            )*
        }
    };
}

on_both! {
    a_deployment_is_kept_and_the_same_again_is_none
    going_back_makes_a_line_of_its_own
    what_was_never_deployed_is_refused
    a_withdrawn_component_stays_in_the_history
    pausing_and_deploying_are_apart
    of_two_at_once_both_are_recorded_and_one_is_active
    a_component_that_claims_named_first_gets_its_bytes
    a_rolled_back_deployment_leaves_nothing
    hosts_say_what_they_made_of_it
    bytes_of_many_megabytes_come_back_whole
}

fn new(bytes: &[u8]) -> Deploy<'_> {
    Deploy::New(NewComponent {
        digest: ComponentDigest::of(bytes),
        bytes,
        contract: "0.1.0",
        producers: r#"[{"field":"language","name":"Rust","version":"1"}]"#,
    })
}

fn deployed(number: u64, generation: u64, bytes: &[u8], is_new: bool) -> Deployed {
    Deployed {
        number,
        generation,
        digest: ComponentDigest::of(bytes),
        is_new,
    }
}

fn wanted(handler: &str, active: Option<(u64, &[u8])>, paused: bool, of: u64) -> WantedState {
    WantedState {
        handler: handler.into(),
        active: active.map(|(number, bytes)| (number, ComponentDigest::of(bytes))),
        is_paused: paused,
        generation: of,
    }
}

mod cases {
    use super::*;

    pub(super) async fn a_deployment_is_kept_and_the_same_again_is_none(test: TestStore) {
        let mut connection = test.connect().await;
        assert_eq!(connection.wanted_states().await.unwrap(), []);
        let files = ["0001_a.sql".to_owned()];
        let done = connection.deploy("h", &new(b"one"), "ann@x", &files).await;
        assert_eq!(done.unwrap(), deployed(1, 1, b"one", true));
        let again = connection.deploy("h", &new(b"one"), "bob@y", &[]).await;
        assert_eq!(again.unwrap(), deployed(1, 1, b"one", false));
        // Another handler counts for itself.
        let other = connection.deploy("i", &new(b"one"), "ann@x", &[]).await;
        assert_eq!(other.unwrap(), deployed(1, 1, b"one", true));
        let two = connection.deploy("h", &new(b"two"), "bob@y", &[]).await;
        assert_eq!(two.unwrap(), deployed(2, 2, b"two", true));
        assert_eq!(
            connection.wanted_states().await.unwrap(),
            [
                wanted("h", Some((2, b"two")), false, 2),
                wanted("i", Some((1, b"one")), false, 1)
            ]
        );
        let history = connection.deployments("h").await.unwrap();
        let lines: Vec<_> = history
            .iter()
            .map(|one| {
                (
                    one.number,
                    &one.deployed_by[..],
                    one.is_active,
                    one.size_bytes,
                )
            })
            .collect();
        assert_eq!(lines, [(2, "bob@y", true, 3), (1, "ann@x", false, 3)]);
        assert_eq!(history[1].migrations, files);
        assert_eq!(history[1].contract, "0.1.0");
        assert!(history[1].producers.contains("\"Rust\""), "{history:?}");
        assert!(history.iter().all(|one| one.deployed_at.is_some()));
        assert!(history.iter().all(|one| one.back_to.is_none()));
        let bytes = connection.component_bytes(ComponentDigest::of(b"one"));
        assert_eq!(bytes.await.unwrap().unwrap(), b"one");
        let unknown = connection.component_bytes(ComponentDigest::of(b"three"));
        assert_eq!(unknown.await.unwrap(), None);
    }

    pub(super) async fn going_back_makes_a_line_of_its_own(test: TestStore) {
        let mut connection = test.connect().await;
        for bytes in [&b"one"[..], b"two"] {
            connection.deploy("h", &new(bytes), "a", &[]).await.unwrap();
        }
        let back = connection.deploy("h", &Deploy::BackTo(1), "b", &[]).await;
        assert_eq!(back.unwrap(), deployed(3, 3, b"one", true));
        // It runs already.
        let again = connection.deploy("h", &Deploy::BackTo(1), "b", &[]).await;
        assert_eq!(again.unwrap(), deployed(3, 3, b"one", false));
        let newest = &connection.deployments("h").await.unwrap()[0];
        assert_eq!(
            (newest.number, newest.back_to, newest.is_active),
            (3, Some(1), true)
        );
    }

    pub(super) async fn what_was_never_deployed_is_refused(test: TestStore) {
        let mut connection = test.connect().await;
        connection.deploy("h", &new(b"1"), "a", &[]).await.unwrap();
        for (handler, number) in [("h", 2), ("i", 1)] {
            let back = Deploy::BackTo(number);
            let refused = connection.deploy(handler, &back, "a", &[]).await;
            let Err(StoreError::Unusable(why)) = refused else {
                panic!("{handler} {number}");
            };
            assert!(
                why.contains(&format!("`{handler}` has no deployment {number}")),
                "{why}"
            );
        }
        // And the connection works on.
        let states = connection.wanted_states().await.unwrap();
        assert_eq!(states, [wanted("h", Some((1, b"1")), false, 1)]);
    }

    pub(super) async fn a_withdrawn_component_stays_in_the_history(test: TestStore) {
        let mut connection = test.connect().await;
        assert_eq!(connection.withdraw("h", "a").await.unwrap(), None);
        connection.deploy("h", &new(b"1"), "a", &[]).await.unwrap();
        assert_eq!(connection.withdraw("h", "a").await.unwrap(), Some(2));
        assert_eq!(connection.withdraw("h", "a").await.unwrap(), None);
        let states = connection.wanted_states().await.unwrap();
        assert_eq!(states, [wanted("h", None, false, 2)]);
        let history = connection.deployments("h").await.unwrap();
        assert_eq!(history.len(), 1);
        assert!(!history[0].is_active);
        let back = connection.deploy("h", &Deploy::BackTo(1), "a", &[]).await;
        assert_eq!(back.unwrap(), deployed(2, 3, b"1", true));
    }

    pub(super) async fn pausing_and_deploying_are_apart(test: TestStore) {
        let mut connection = test.connect().await;
        // Also for a handler whose component is a file.
        assert_eq!(
            connection.set_paused("h", true, "a").await.unwrap(),
            (1, true)
        );
        assert_eq!(
            connection.set_paused("h", true, "a").await.unwrap(),
            (1, false)
        );
        connection.deploy("h", &new(b"1"), "a", &[]).await.unwrap();
        let states = connection.wanted_states().await.unwrap();
        assert_eq!(states, [wanted("h", Some((1, b"1")), true, 2)]);
        assert_eq!(
            connection.set_paused("h", false, "a").await.unwrap(),
            (3, true)
        );
        let states = connection.wanted_states().await.unwrap();
        assert_eq!(states, [wanted("h", Some((1, b"1")), false, 3)]);
        assert!(!connection.set_paused("i", false, "a").await.unwrap().1);
    }

    pub(super) async fn of_two_at_once_both_are_recorded_and_one_is_active(test: TestStore) {
        let (mut a, mut b) = (test.connect().await, test.connect().await);
        for round in 0..10_u8 {
            let (one, two) = ([round, 1], [round, 2]);
            let (one, two) = (new(&one), new(&two));
            let (first, second) =
                tokio::join!(a.deploy("h", &one, "a", &[]), b.deploy("h", &two, "b", &[]));
            let mut both = [first.unwrap(), second.unwrap()];
            both.sort_by_key(|done| done.number);
            let base = u64::from(round) * 2;
            assert_eq!(
                both.each_ref().map(|done| done.number),
                [base + 1, base + 2]
            );
            assert_eq!(
                both.each_ref().map(|done| done.generation),
                [base + 1, base + 2]
            );
            let states = a.wanted_states().await.unwrap();
            assert_eq!(states[0].active, Some((base + 2, both[1].digest)));
        }
        let history = a.deployments("h").await.unwrap();
        assert_eq!(history.iter().filter(|one| one.is_active).count(), 1);
        assert_eq!(history.len(), 20);
    }

    /// A claim writes a component's row with its digest alone.
    pub(super) async fn a_component_that_claims_named_first_gets_its_bytes(test: TestStore) {
        let digest = ComponentDigest::of(b"one");
        let mut tx = Tx::begin(test.connect().await).await.unwrap();
        let request = ClaimRequest {
            id: MessageId::new("m").unwrap(),
            payload_hash: ShortHash::of_payload(b"m"),
        };
        tx.claim("c", &[request], Some(digest)).await.unwrap();
        let mut connection = tx.commit().await.connection.unwrap();
        let unknown = connection.component_bytes(digest).await.unwrap();
        assert_eq!(unknown, None);
        connection
            .deploy("h", &new(b"one"), "a", &[])
            .await
            .unwrap();
        let bytes = connection.component_bytes(digest).await.unwrap();
        assert_eq!(bytes.unwrap(), b"one");
        let components = format!("SELECT count(*) FROM {}", test.table("components"));
        assert_eq!(test.number(&components).await, 1);
    }

    pub(super) async fn a_rolled_back_deployment_leaves_nothing(test: TestStore) {
        // The history can't be written: nothing else is, either.
        let (table, states) = (test.table("deployments"), test.table("handler_states"));
        let mut connection = test.connect().await;
        connection.deploy("h", &new(b"1"), "a", &[]).await.unwrap();
        let forged = match test.kind() {
            hapax::store::StoreKind::Postgres => {
                format!("ALTER TABLE {table} ADD CONSTRAINT few CHECK (number < 2)")
            }
            hapax::store::StoreKind::Sqlite => format!(
                "CREATE TRIGGER few BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'few'); END"
            ),
        };
        test.run(&forged).await;
        connection
            .deploy("h", &new(b"2"), "a", &[])
            .await
            .unwrap_err();
        let wanted_now = connection.wanted_states().await.unwrap();
        assert_eq!(wanted_now, [wanted("h", Some((1, b"1")), false, 1)]);
        let bytes = connection.component_bytes(ComponentDigest::of(b"2")).await;
        assert_eq!(bytes.unwrap(), None);
        assert_eq!(
            test.number(&format!("SELECT count(*) FROM {states}")).await,
            1
        );
    }

    pub(super) async fn hosts_say_what_they_made_of_it(test: TestStore) {
        let row = |handler: &str, generation| HostHandler {
            handler: handler.into(),
            state: "running".into(),
            digest: Some(ComponentDigest::of(b"1")),
            generation,
            error: None,
        };
        let failed = HostHandler {
            state: "failed".into(),
            digest: None,
            error: Some("no room".into()),
            ..row("i", 4)
        };
        let mut connection = test.connect().await;
        let said = [row("h", 1), failed.clone()];
        connection.report_host("x", &said).await.unwrap();
        connection.report_host("y", &[row("h", 2)]).await.unwrap();
        // What a host says is all there is to say of it: it has no `i` any more.
        connection.report_host("x", &[row("h", 3)]).await.unwrap();
        let seen = connection.host_handlers().await.unwrap();
        assert!(seen.iter().all(|row| row.age < Duration::from_secs(600)));
        let rows: Vec<_> = seen.into_iter().map(|seen| (seen.host, seen.row)).collect();
        assert_eq!(rows, [("x".into(), row("h", 3)), ("y".into(), row("h", 2))]);
        connection
            .report_host("x", std::slice::from_ref(&failed))
            .await
            .unwrap();
        connection.forget_host("y").await.unwrap();
        let seen = connection.host_handlers().await.unwrap();
        let rows: Vec<_> = seen.into_iter().map(|seen| (seen.host, seen.row)).collect();
        assert_eq!(rows, [("x".into(), failed)]);
        connection.report_host("x", &[]).await.unwrap();
        assert_eq!(connection.host_handlers().await.unwrap(), []);
    }

    pub(super) async fn bytes_of_many_megabytes_come_back_whole(test: TestStore) {
        let mut bytes = vec![0_u8; 40 << 20];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = (index * 31 + index / 4093) as u8;
        }
        let mut connection = test.connect().await;
        connection
            .deploy("h", &new(&bytes), "a", &[])
            .await
            .unwrap();
        let kept = connection
            .component_bytes(ComponentDigest::of(&bytes))
            .await
            .unwrap()
            .unwrap();
        assert!(kept == bytes, "{} of {} bytes", kept.len(), bytes.len());
    }
}
