//! The store on both databases: one suite, unchanged; what differs is asserted by name.
//!
//! Each case is a test of its own on each database: `postgres::claims_tell_fresh_from_duplicate`, ...

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use hapax::message::{
    ComponentDigest, FailureClass, Header, Instant, MessageId, Position, ShortHash,
};
use hapax::store::{
    Claim, ClaimAs, ClaimRequest, CommitError, Connection, Counters, DeadLetter, HandlerMigration,
    NewQueueRow, OutboxRow, SessionOptions, SqlError, Store, StoreError, StoreKind, Tx, Value,
    schema_version,
};
use support::database::{TestStore, options};

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
    claims_tell_fresh_from_duplicate
    claims_of_consumers_are_apart
    a_rollback_leaves_no_claim
    a_dropped_transaction_leaves_nothing
    many_ids_in_one_claim
    a_claim_waits_for_a_commit
    a_claim_waits_for_a_rollback
    a_wait_that_runs_out_is_busy
    two_hosts_at_the_same_moment
    a_dead_letter_is_a_claim
    a_processed_message_is_not_buried
    a_dead_letter_without_an_id_is_unique_by_position
    a_dead_letter_keeps_every_byte
    attempts_are_counted_and_copied
    attempts_go_with_the_claim
    a_conflict_leaves_the_attempts
    values_round_trip
    values_arrive_as_an_independent_connection_sees_them
    affected_rows
    columns_without_rows
    a_row_limit_keeps_the_transaction
    wrong_parameters_keep_the_transaction
    a_denied_statement_keeps_the_transaction
    an_error_aborts_the_transaction
    constraints_are_named
    errors_have_codes
    a_deferred_constraint_refuses_the_commit
    a_statement_timeout_aborts
    large_values
    a_queue_in_order
    a_queue_row_is_taken_inside_the_transaction
    queue_headers_survive_byte_for_byte
    any_program_can_enqueue
    a_row_that_is_not_due_waits
    numbers_of_a_queue_are_not_used_again
    outbox_rows_come_with_the_commit
    migrations_twice
    a_newer_schema_is_refused
    migrations_of_a_handler
    migrations_of_a_handler_that_fail
    migrations_of_a_handler_that_changed
    counters_add_up_over_hosts
    a_connection_is_used_again
    components_are_recorded
    a_component_of_a_rolled_back_transaction_is_made_again
    dropping_a_session_ends_its_statement
}

fn id(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

fn request(text: &str, payload: &str) -> ClaimRequest {
    ClaimRequest {
        id: id(text),
        payload_hash: ShortHash::of_payload(payload.as_bytes()),
    }
}

fn requests(ids: &[&str]) -> Vec<ClaimRequest> {
    ids.iter().map(|one| request(one, one)).collect()
}

fn text(value: &str) -> Value {
    Value::Text(value.into())
}

const FRESH: Claim = Claim::Fresh { attempt: 1 };

async fn commit(tx: Tx) -> Connection {
    let ended = tx.commit().await;
    ended.result.unwrap();
    ended.connection.unwrap()
}

async fn claim(tx: &mut Tx, ids: &[&str]) -> Vec<Claim> {
    tx.claim("c", &requests(ids), None).await.unwrap()
}

fn letter(position: &str) -> DeadLetter {
    DeadLetter {
        consumer: "c".into(),
        handler: "h".into(),
        message_id: None,
        source: "s".into(),
        position: Position(position.into()),
        subject: "subject".into(),
        headers: Vec::new(),
        content_type: None,
        payload: Bytes::from_static(b"payload"),
        published_at: None,
        queue_id: None,
        class: FailureClass::Rejected,
        reason: "no".into(),
        component: None,
        order_key: None,
    }
}

fn letter_of(message: &str) -> DeadLetter {
    DeadLetter {
        message_id: Some(id(message)),
        ..letter(message)
    }
}

fn migration(version: i64, sql: &str) -> HandlerMigration {
    HandlerMigration {
        version,
        file: format!("{version:04}_x.sql"),
        sql: sql.into(),
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, CommitError>) -> SqlError {
    match result {
        Err(CommitError::Refused(error)) => error,
        other => panic!("{other:?}"),
    }
}

mod cases {
    use super::*;

    pub(super) async fn claims_tell_fresh_from_duplicate(test: TestStore) {
        let mut tx = test.begin().await;
        assert_eq!(claim(&mut tx, &["b", "a"]).await, [FRESH, FRESH]);
        let ended = tx.commit().await;
        let settled = ended.result.unwrap().settled;
        assert!(settled.covers(&id("a")) && settled.covers(&id("b")) && !settled.covers(&id("c")));

        let mut tx = Tx::begin(ended.connection.unwrap()).await.unwrap();
        let claims = tx
            .claim(
                "c",
                &[request("b", "other"), request("c", "c"), request("a", "a")],
                None,
            )
            .await
            .unwrap();
        assert_eq!(
            claims,
            [
                Claim::Conflict {
                    stored: ShortHash::of_payload(b"b")
                },
                FRESH,
                Claim::Duplicate {
                    outcome: ClaimAs::Done
                },
            ]
        );
        let settled = tx.commit().await.result.unwrap().settled;
        assert!(settled.covers(&id("a")) && settled.covers(&id("c")) && !settled.covers(&id("b")));

        // Nothing but duplicates: the transaction has no number on PostgreSQL.
        let mut tx = test.begin().await;
        claim(&mut tx, &["a", "c"]).await;
        assert!(tx.commit().await.result.unwrap().settled.covers(&id("a")));
        let table = test.table("processed_messages");
        assert_eq!(
            test.number(&format!("SELECT count(*) FROM {table}")).await,
            3
        );
    }

    pub(super) async fn claims_of_consumers_are_apart(test: TestStore) {
        let mut tx = test.begin().await;
        for consumer in ["c", "d", "C", "\u{e9}"] {
            let claims = tx.claim(consumer, &requests(&["a"]), None).await.unwrap();
            assert_eq!(claims, [FRESH]);
        }
        commit(tx).await;
    }

    pub(super) async fn a_rollback_leaves_no_claim(test: TestStore) {
        test.run("CREATE TABLE t (a int)").await;
        let mut tx = test.begin().await;
        claim(&mut tx, &["a"]).await;
        tx.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
        let connection = tx.rollback().await.unwrap();
        let mut tx = Tx::begin(connection).await.unwrap();
        assert_eq!(claim(&mut tx, &["a"]).await, [FRESH]);
        tx.rollback().await.unwrap();
        assert_eq!(test.number("SELECT count(*) FROM t").await, 0);
    }

    pub(super) async fn a_dropped_transaction_leaves_nothing(test: TestStore) {
        test.run("CREATE TABLE t (a int)").await;
        let mut tx = test.begin().await;
        claim(&mut tx, &["a"]).await;
        tx.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
        drop(tx);
        let mut tx = test.begin().await;
        assert_eq!(claim(&mut tx, &["a"]).await, [FRESH]);
        commit(tx).await;
        assert_eq!(test.number("SELECT count(*) FROM t").await, 0);
    }

    pub(super) async fn many_ids_in_one_claim(test: TestStore) {
        let ids: Vec<String> = (0..500)
            .map(|number| format!("{}-\u{e9}'\"\\{{}},NULL-{number}", 7919 * number % 500))
            .collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let mut tx = test.begin().await;
        assert_eq!(claim(&mut tx, &ids[..250]).await, vec![FRESH; 250]);
        let connection = commit(tx).await;
        let mut tx = Tx::begin(connection).await.unwrap();
        let claims = claim(&mut tx, &ids).await;
        let duplicate = Claim::Duplicate {
            outcome: ClaimAs::Done,
        };
        assert_eq!(claims[..250], vec![duplicate; 250]);
        assert_eq!(claims[250..], vec![FRESH; 250]);
        commit(tx).await;
        let mut tx = test.begin().await;
        assert_eq!(claim(&mut tx, &[]).await, []);
        let longest = "x".repeat(1024);
        assert_eq!(claim(&mut tx, &[&longest]).await, [FRESH]);
        commit(tx).await;
    }

    /// Starts a second claim of `a` and returns once it waits for the first one.
    async fn second_claim(test: &TestStore) -> tokio::task::JoinHandle<(Tx, Vec<Claim>)> {
        let second = test.connect().await;
        let task = tokio::spawn(async move {
            let mut tx = Tx::begin(second).await.unwrap();
            let claims = claim(&mut tx, &["a"]).await;
            (tx, claims)
        });
        match test.kind() {
            StoreKind::Postgres => {
                test.probe()
                    .await
                    .wait_for(
                        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
                        1,
                    )
                    .await;
            }
            // The second BEGIN waits inside SQLite, where nobody can see it.
            StoreKind::Sqlite => tokio::time::sleep(Duration::from_millis(50)).await,
        }
        assert!(!task.is_finished());
        task
    }

    pub(super) async fn a_claim_waits_for_a_commit(test: TestStore) {
        let mut first = test.begin().await;
        claim(&mut first, &["a"]).await;
        let second = second_claim(&test).await;
        commit(first).await;
        let (tx, claims) = second.await.unwrap();
        assert_eq!(
            claims,
            [Claim::Duplicate {
                outcome: ClaimAs::Done
            }]
        );
        assert!(tx.commit().await.result.unwrap().settled.covers(&id("a")));
    }

    pub(super) async fn a_claim_waits_for_a_rollback(test: TestStore) {
        let mut first = test.begin().await;
        claim(&mut first, &["a"]).await;
        let second = second_claim(&test).await;
        first.rollback().await.unwrap();
        let (tx, claims) = second.await.unwrap();
        assert_eq!(claims, [FRESH]);
        commit(tx).await;
    }

    pub(super) async fn a_wait_that_runs_out_is_busy(test: TestStore) {
        let mut first = test.begin().await;
        claim(&mut first, &["a"]).await;
        let short = SessionOptions {
            lock_timeout: Duration::from_millis(100),
            ..options()
        };
        let second = test.connect_with(&short).await;
        match test.kind() {
            StoreKind::Postgres => {
                let mut tx = Tx::begin(second).await.unwrap();
                let error = tx.claim("c", &requests(&["a"]), None).await.unwrap_err();
                assert!(matches!(error, StoreError::Busy(_)), "{error:?}");
                assert!(matches!(tx.fault(), Some(StoreError::Busy(_))));
                // The connection is good for more.
                let mut tx = Tx::begin(tx.rollback().await.unwrap()).await.unwrap();
                assert_eq!(claim(&mut tx, &["b"]).await, [FRESH]);
                commit(tx).await;
            }
            // One writer at a time: the wait is at BEGIN IMMEDIATE.
            StoreKind::Sqlite => {
                let error = Tx::begin(second).await.unwrap_err();
                assert!(matches!(error, StoreError::Busy(_)), "{error:?}");
            }
        }
        commit(first).await;
    }

    pub(super) async fn two_hosts_at_the_same_moment(test: TestStore) {
        test.run("CREATE TABLE t (a text)").await;
        let host = |connection: Connection| async move {
            let mut connection = connection;
            let mut fresh = 0;
            for number in 0..50 {
                let mut tx = Tx::begin(connection).await.unwrap();
                let message = number.to_string();
                if claim(&mut tx, &[&message]).await == [FRESH] {
                    fresh += 1;
                    tx.execute("INSERT INTO t VALUES ($1)", &[text(&message)])
                        .await
                        .unwrap();
                }
                connection = commit(tx).await;
            }
            fresh
        };
        let one = tokio::spawn(host(test.connect().await));
        let two = tokio::spawn(host(test.connect().await));
        assert_eq!(one.await.unwrap() + two.await.unwrap(), 50);
        assert_eq!(test.number("SELECT count(*) FROM t").await, 50);
        assert_eq!(test.number("SELECT count(DISTINCT a) FROM t").await, 50);
    }

    pub(super) async fn a_dead_letter_is_a_claim(test: TestStore) {
        let mut tx = test.begin().await;
        let letter = letter_of("a");
        let claimed = tx.bury(&letter, Some(&request("a", "a"))).await.unwrap();
        assert_eq!(claimed, Some(FRESH));
        let committed = tx.commit().await.result.unwrap();
        assert!(committed.parked.covers(&letter.position));
        assert!(!committed.settled.covers(&id("a")));

        let mut tx = test.begin().await;
        assert_eq!(
            claim(&mut tx, &["a"]).await,
            [Claim::Duplicate {
                outcome: ClaimAs::Dead
            }]
        );
        tx.rollback().await.unwrap();

        // The reply to the first was lost: it is tried again.
        let mut tx = test.begin().await;
        let claimed = tx.bury(&letter, Some(&request("a", "a"))).await.unwrap();
        assert_eq!(
            claimed,
            Some(Claim::Duplicate {
                outcome: ClaimAs::Dead
            })
        );
        let committed = tx.commit().await.result.unwrap();
        assert!(committed.settled.covers(&id("a")));
        assert!(!committed.parked.covers(&letter.position));
        let mut connection = test.connect().await;
        assert_eq!(connection.dead_letter_count("c").await.unwrap(), 1);
        assert_eq!(connection.dead_letter_count("d").await.unwrap(), 0);
    }

    pub(super) async fn a_processed_message_is_not_buried(test: TestStore) {
        let mut tx = test.begin().await;
        claim(&mut tx, &["a"]).await;
        commit(tx).await;
        let mut tx = test.begin().await;
        let claimed = tx
            .bury(&letter_of("a"), Some(&request("a", "a")))
            .await
            .unwrap();
        assert_eq!(
            claimed,
            Some(Claim::Duplicate {
                outcome: ClaimAs::Done
            })
        );
        let conflict = tx
            .bury(&letter_of("a"), Some(&request("a", "b")))
            .await
            .unwrap();
        assert!(matches!(conflict, Some(Claim::Conflict { .. })));
        assert!(tx.commit().await.result.unwrap().settled.covers(&id("a")));
        assert_eq!(
            test.connect().await.dead_letter_count("c").await.unwrap(),
            0
        );
    }

    pub(super) async fn a_dead_letter_without_an_id_is_unique_by_position(test: TestStore) {
        for _ in 0..2 {
            let mut tx = test.begin().await;
            for position in ["1", "2"] {
                assert_eq!(tx.bury(&letter(position), None).await.unwrap(), None);
            }
            let parked = tx.commit().await.result.unwrap().parked;
            assert!(parked.covers(&Position("1".into())) && parked.covers(&Position("2".into())));
        }
        let mut connection = test.connect().await;
        assert_eq!(connection.dead_letter_count("c").await.unwrap(), 2);
        let letters = connection.dead_letters("c", 1).await.unwrap();
        assert_eq!(letters.len(), 1);
        assert_eq!(letters[0].letter, letter("1"));
        assert!(letters[0].dead_at.is_some());
    }

    pub(super) async fn a_dead_letter_keeps_every_byte(test: TestStore) {
        let every: Bytes = (0..=255).collect::<Vec<u8>>().into();
        let megabytes = format!("\0{}", "\u{1f600}\0".repeat(1_000_000));
        let nasty = DeadLetter {
            subject: "a\0b'\\\u{e9}".into(),
            headers: vec![
                Header {
                    name: "N\0'\"".into(),
                    value: every.clone(),
                },
                Header {
                    name: "n".into(),
                    value: Bytes::from_static(b"text\0"),
                },
                Header {
                    name: "n".into(),
                    value: Bytes::new(),
                },
            ],
            content_type: Some("x\0y".into()),
            payload: every,
            published_at: Some(Instant {
                seconds: 1_700_000_000,
                nanoseconds: 123_456_000,
            }),
            reason: megabytes.clone(),
            component: Some(ComponentDigest::of(b"component")),
            ..letter_of("a")
        };
        let mut connection = test.connect().await;
        let number = connection
            .record_attempt(
                "c",
                &id("a"),
                FailureClass::Trapped,
                &megabytes,
                nasty.component,
            )
            .await
            .unwrap();
        assert_eq!(number, 1);
        let mut tx = Tx::begin(connection).await.unwrap();
        tx.bury(&nasty, Some(&request("a", "a"))).await.unwrap();
        let mut connection = commit(tx).await;
        let stored = connection.dead_letters("c", 10).await.unwrap().remove(0);
        assert_eq!(stored.letter.subject, "a\u{fffd}b'\\\u{e9}");
        assert_eq!(stored.letter.content_type.as_deref(), Some("x\u{fffd}y"));
        for reason in [&stored.letter.reason, &stored.attempts[0].error] {
            assert!(reason.len() <= 8192 && reason.starts_with("\u{fffd}\u{1f600}\u{fffd}"));
            assert!(reason.ends_with(&format!("[cut: {} bytes in all]", megabytes.len())));
        }
        assert_eq!(stored.attempts[0].component, nasty.component);
        let expected = DeadLetter {
            subject: stored.letter.subject.clone(),
            content_type: stored.letter.content_type.clone(),
            reason: stored.letter.reason.clone(),
            ..nasty
        };
        assert_eq!(stored.letter, expected);
    }

    pub(super) async fn attempts_are_counted_and_copied(test: TestStore) {
        let mut connection = test.connect().await;
        let component = Some(ComponentDigest::of(b"x"));
        for (number, class) in [
            (1, FailureClass::Retried),
            (2, FailureClass::Trapped),
            (3, FailureClass::Sql),
        ] {
            let recorded = connection
                .record_attempt("c", &id("a"), class, &format!("error {number}"), component)
                .await
                .unwrap();
            assert_eq!(recorded, number);
        }
        connection
            .record_attempt("c", &id("b"), FailureClass::Limit, "x", None)
            .await
            .unwrap();
        connection
            .record_attempt("d", &id("a"), FailureClass::Limit, "x", None)
            .await
            .unwrap();

        let mut tx = Tx::begin(connection).await.unwrap();
        let claimed = tx
            .bury(&letter_of("a"), Some(&request("a", "a")))
            .await
            .unwrap();
        assert_eq!(claimed, Some(Claim::Fresh { attempt: 4 }));
        let mut connection = commit(tx).await;
        let stored = connection.dead_letters("c", 10).await.unwrap().remove(0);
        let attempts: Vec<_> = stored
            .attempts
            .iter()
            .map(|one| (one.number, one.class, one.error.as_str(), one.component))
            .collect();
        assert_eq!(
            attempts,
            [
                (1, FailureClass::Retried, "error 1", component),
                (2, FailureClass::Trapped, "error 2", component),
                (3, FailureClass::Sql, "error 3", component),
            ]
        );
        assert!(
            stored
                .attempts
                .iter()
                .all(|one| one.at.starts_with("20") && one.at.ends_with('Z'))
        );
        let left = format!("SELECT count(*) FROM {}", test.table("attempts"));
        assert_eq!(test.number(&left).await, 2);
    }

    pub(super) async fn attempts_go_with_the_claim(test: TestStore) {
        let mut connection = test.connect().await;
        for message in ["a", "a", "b"] {
            connection
                .record_attempt("c", &id(message), FailureClass::Retried, "x", None)
                .await
                .unwrap();
        }
        let mut tx = Tx::begin(connection).await.unwrap();
        let expected = [
            Claim::Fresh { attempt: 3 },
            FRESH,
            Claim::Fresh { attempt: 2 },
        ];
        assert_eq!(claim(&mut tx, &["a", "c", "b"]).await, expected);
        // Rolled back, they are counted again.
        let mut tx = Tx::begin(tx.rollback().await.unwrap()).await.unwrap();
        assert_eq!(claim(&mut tx, &["a", "c", "b"]).await, expected);
        commit(tx).await;
        let left = format!("SELECT count(*) FROM {}", test.table("attempts"));
        assert_eq!(test.number(&left).await, 0);
    }

    pub(super) async fn a_conflict_leaves_the_attempts(test: TestStore) {
        let mut connection = test.connect().await;
        connection
            .record_attempt("c", &id("a"), FailureClass::Retried, "x", None)
            .await
            .unwrap();
        let mut tx = Tx::begin(connection).await.unwrap();
        let conflict = DeadLetter {
            class: FailureClass::Conflict,
            ..letter_of("a")
        };
        assert_eq!(tx.bury(&conflict, None).await.unwrap(), None);
        let mut connection = commit(tx).await;
        let stored = connection.dead_letters("c", 10).await.unwrap().remove(0);
        assert_eq!(stored.letter, conflict);
        assert_eq!(stored.attempts, []);
        let mut tx = Tx::begin(connection).await.unwrap();
        assert_eq!(claim(&mut tx, &["a"]).await, [Claim::Fresh { attempt: 2 }]);
    }

    fn table_of_values(kind: StoreKind) -> &'static str {
        match kind {
            StoreKind::Postgres => {
                "CREATE TABLE t (id int PRIMARY KEY, b bool, i bigint, f float8, t text, y bytea, d numeric, \
                 s timestamptz, u uuid, j json)"
            }
            StoreKind::Sqlite => {
                "CREATE TABLE t (id INTEGER PRIMARY KEY, b INTEGER, i INTEGER, f REAL, t TEXT, y BLOB, d TEXT, \
                 s TEXT, u TEXT, j TEXT) STRICT"
            }
        }
    }

    const INSERT: &str = "INSERT INTO t VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

    fn row_of_values(number: i64) -> Vec<Value> {
        vec![
            Value::Int64(number),
            Value::Boolean(true),
            Value::Int64(i64::MIN),
            Value::Float64(0.1),
            text("it's \\ \"\u{e9}\u{1f600}\n$1"),
            Value::Bytes((0..=255).collect()),
            Value::Decimal("123456789012345678901234567890.123456789".into()),
            Value::Instant(Instant {
                seconds: -1,
                nanoseconds: 999_999_000,
            }),
            Value::Uuid("0123abcd-0000-4000-8000-0123456789ab".into()),
            Value::Json(r#"{"b": 1,  "a": [null]}"#.into()),
        ]
    }

    pub(super) async fn values_round_trip(test: TestStore) {
        test.run(table_of_values(test.kind())).await;
        let mut tx = test.begin().await;
        let values = row_of_values(1);
        assert_eq!(tx.execute(INSERT, &values).await.unwrap(), 1);
        let mut nulls = vec![Value::Null; 10];
        nulls[0] = Value::Int64(2);
        tx.execute(INSERT, &nulls).await.unwrap();
        let result = tx
            .query("SELECT * FROM t ORDER BY id", &[], 10)
            .await
            .unwrap();
        let names: Vec<&str> = result.columns.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["id", "b", "i", "f", "t", "y", "d", "s", "u", "j"]);
        let mut expected = values;
        let types: Vec<&str> = result
            .columns
            .iter()
            .map(|one| one.type_name.as_str())
            .collect();
        match test.kind() {
            StoreKind::Postgres => assert_eq!(
                types,
                [
                    "int4",
                    "bool",
                    "int8",
                    "float8",
                    "text",
                    "bytea",
                    "numeric",
                    "timestamptz",
                    "uuid",
                    "json"
                ]
            ),
            // SQLite gives values back as it stores them.
            StoreKind::Sqlite => {
                assert_eq!(types[..3], ["INTEGER"; 3]);
                expected[1] = Value::Int64(1);
                expected[6] = text("123456789012345678901234567890.123456789");
                expected[7] = text("1969-12-31T23:59:59.999999Z");
                expected[8] = text("0123abcd-0000-4000-8000-0123456789ab");
                expected[9] = text(r#"{"b": 1,  "a": [null]}"#);
            }
        }
        assert_eq!(result.rows, [expected, nulls]);

        for value in [
            0.0,
            -0.0,
            5e-324,
            f64::MAX,
            1e-7,
            1e16,
            0.1 + 0.2,
            f64::INFINITY,
            -1.5,
        ] {
            tx.execute("UPDATE t SET f = $1", &[Value::Float64(value)])
                .await
                .unwrap();
            let result = tx
                .query("SELECT f FROM t WHERE id = 1", &[], 1)
                .await
                .unwrap();
            let [Value::Float64(back)] = result.rows[0][..] else {
                panic!("{result:?}");
            };
            match test.kind() {
                StoreKind::Postgres => assert_eq!(back.to_bits(), value.to_bits(), "{value}"),
                // It stores -0.0 as the integer 0.
                StoreKind::Sqlite => assert_eq!(back, value),
            }
        }
        for value in [i64::MIN, -1, 0, i64::MAX] {
            tx.execute("UPDATE t SET i = $1", &[Value::Int64(value)])
                .await
                .unwrap();
            let result = tx
                .query("SELECT i FROM t WHERE id = 1", &[], 1)
                .await
                .unwrap();
            assert_eq!(result.rows, [[Value::Int64(value)]]);
        }
        for value in [
            "", " ", "'", "''", "\\", "\\'", "E'\\''", "$$", "--", "/*", "\u{feff}",
        ] {
            tx.execute("UPDATE t SET t = $1", &[text(value)])
                .await
                .unwrap();
            let result = tx
                .query("SELECT t FROM t WHERE t = $1 AND id = 1", &[text(value)], 1)
                .await
                .unwrap();
            assert_eq!(result.rows, [[text(value)]]);
        }
        commit(tx).await;
    }

    pub(super) async fn values_arrive_as_an_independent_connection_sees_them(test: TestStore) {
        test.run(table_of_values(test.kind())).await;
        let mut tx = test.begin().await;
        tx.execute(INSERT, &row_of_values(1)).await.unwrap();
        commit(tx).await;
        let mut probe = test.probe().await;
        let (hex, wanted) = match test.kind() {
            StoreKind::Postgres => (
                "SELECT encode(y, 'hex') FROM t",
                [
                    ("CAST(b AS text)", "true"),
                    ("CAST(i AS text)", "-9223372036854775808"),
                    ("CAST(f AS text)", "0.1"),
                    ("t", "it's \\ \"\u{e9}\u{1f600}\n$1"),
                    (
                        "CAST(d AS text)",
                        "123456789012345678901234567890.123456789",
                    ),
                    (
                        "to_char(s AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')",
                        "1969-12-31 23:59:59.999999",
                    ),
                    ("CAST(u AS text)", "0123abcd-0000-4000-8000-0123456789ab"),
                    ("CAST(j AS text)", r#"{"b": 1,  "a": [null]}"#),
                ],
            ),
            StoreKind::Sqlite => (
                "SELECT lower(hex(y)) FROM t",
                [
                    ("CAST(b AS text)", "1"),
                    ("CAST(i AS text)", "-9223372036854775808"),
                    ("CAST(f AS text)", "0.1"),
                    ("t", "it's \\ \"\u{e9}\u{1f600}\n$1"),
                    ("d", "123456789012345678901234567890.123456789"),
                    ("s", "1969-12-31T23:59:59.999999Z"),
                    ("u", "0123abcd-0000-4000-8000-0123456789ab"),
                    ("j", r#"{"b": 1,  "a": [null]}"#),
                ],
            ),
        };
        for (expression, expected) in wanted {
            let found = probe.text(&format!("SELECT {expression} FROM t")).await;
            assert_eq!(found.as_deref(), Some(expected), "{expression}");
        }
        let every: String = (0..=255).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(probe.text(hex).await, Some(every));
    }

    pub(super) async fn affected_rows(test: TestStore) {
        test.run("CREATE TABLE t (a int)").await;
        let mut tx = test.begin().await;
        for (statement, affected) in [
            ("INSERT INTO t VALUES (1), (2), (3)", 3),
            ("UPDATE t SET a = a + 1 WHERE a > 1", 2),
            ("UPDATE t SET a = a WHERE false", 0),
            ("SELECT a FROM t WHERE a > 1", 2),
            ("SELECT a FROM t WHERE false", 0),
            ("VALUES (1), (2);", 2),
            ("WITH b AS (SELECT a FROM t) SELECT * FROM b", 3),
            ("WITH b AS (SELECT 9 AS a) INSERT INTO t SELECT a FROM b", 1),
            ("DELETE FROM t WHERE a = 9 RETURNING a", 1),
            ("DELETE FROM t -- all of them", 3),
        ] {
            let found = tx.execute(statement, &[]).await.unwrap();
            assert_eq!(found, affected, "{statement}");
        }
        let result = tx
            .query(
                "INSERT INTO t VALUES (5), (6) RETURNING a + 1 AS b",
                &[],
                10,
            )
            .await
            .unwrap();
        assert_eq!(result.columns[0].name, "b");
        assert_eq!(result.rows, [[Value::Int64(6)], [Value::Int64(7)]]);
        let result = tx.query("UPDATE t SET a = 0", &[], 10).await.unwrap();
        assert_eq!((result.columns.len(), result.rows.len()), (0, 0));
        commit(tx).await;
        assert_eq!(test.number("SELECT count(*) FROM t WHERE a = 0").await, 2);
    }

    pub(super) async fn columns_without_rows(test: TestStore) {
        test.run("CREATE TABLE t (a int, b text)").await;
        let mut tx = test.begin().await;
        for _ in 0..2 {
            let result = tx.query("SELECT b, a AS c FROM t", &[], 10).await.unwrap();
            let names: Vec<&str> = result.columns.iter().map(|one| one.name.as_str()).collect();
            assert_eq!(names, ["b", "c"]);
            assert_eq!(result.rows.len(), 0);
        }
    }

    pub(super) async fn a_row_limit_keeps_the_transaction(test: TestStore) {
        test.run("CREATE TABLE t (a int)").await;
        let mut tx = test.begin().await;
        claim(&mut tx, &["a"]).await;
        tx.execute("INSERT INTO t VALUES (1), (2), (3)", &[])
            .await
            .unwrap();
        let error = tx.query("SELECT a FROM t", &[], 2).await.unwrap_err();
        assert_eq!(error.code, "limit.rows");
        assert_eq!(error.message, "the query returns more than 2 rows");
        assert_eq!(
            tx.query("SELECT a FROM t", &[], 3)
                .await
                .unwrap()
                .rows
                .len(),
            3
        );
        assert!(tx.fault().is_none());
        commit(tx).await;
        assert_eq!(test.number("SELECT count(*) FROM t").await, 3);
    }

    pub(super) async fn wrong_parameters_keep_the_transaction(test: TestStore) {
        test.run("CREATE TABLE t (a int, b text)").await;
        let mut tx = test.begin().await;
        claim(&mut tx, &["a"]).await;
        let insert = "INSERT INTO t VALUES ($1, $2)";
        for params in [
            &[][..],
            &[Value::Null],
            &[Value::Null, Value::Null, Value::Null],
        ] {
            let error = tx.execute(insert, params).await.unwrap_err();
            assert_eq!(error.code, "params.count");
            assert_eq!(
                error.message,
                format!(
                    "the statement takes 2 parameters, but {} were passed",
                    params.len()
                )
            );
        }
        for value in [Value::Decimal("x".into()), Value::Uuid("x".into())] {
            let error = tx
                .query(
                    "SELECT CAST($1 AS text), 1",
                    std::slice::from_ref(&value),
                    1,
                )
                .await
                .unwrap_err();
            let code = match (test.kind(), &value) {
                // There is no case of decimal for a text.
                (StoreKind::Postgres, Value::Decimal(_)) => "type.mismatch",
                _ => "data.invalid",
            };
            assert_eq!((error.code.as_str(), error.param), (code, Some(1)));
        }
        match test.kind() {
            StoreKind::Postgres => {
                let error = tx
                    .execute(insert, &[Value::Boolean(true), text("x")])
                    .await
                    .unwrap_err();
                assert_eq!(
                    (error.code.as_str(), error.param),
                    ("type.mismatch", Some(1))
                );
                assert_eq!(
                    error.message,
                    "parameter $1: the statement wants `int4` here, not boolean"
                );
                let error = tx
                    .execute(insert, &[Value::Int64(1), text("a\0b")])
                    .await
                    .unwrap_err();
                assert_eq!(
                    (error.code.as_str(), error.param),
                    ("data.invalid", Some(2))
                );
            }
            StoreKind::Sqlite => {
                // SQLite can store NUL in a text, and would store NULL for NaN.
                tx.execute(insert, &[Value::Int64(1), text("a\0b")])
                    .await
                    .unwrap();
                let result = tx.query("SELECT b FROM t", &[], 1).await.unwrap();
                assert_eq!(result.rows, [[text("a\0b")]]);
                tx.execute("DELETE FROM t", &[]).await.unwrap();
                let error = tx
                    .execute(insert, &[Value::Float64(f64::NAN), Value::Null])
                    .await
                    .unwrap_err();
                assert_eq!(
                    (error.code.as_str(), error.param),
                    ("data.invalid", Some(1))
                );
            }
        }
        tx.execute(insert, &[Value::Int64(1), text("x")])
            .await
            .unwrap();
        commit(tx).await;
        assert_eq!(test.number("SELECT count(*) FROM t").await, 1);
    }

    pub(super) async fn a_denied_statement_keeps_the_transaction(test: TestStore) {
        test.run("CREATE TABLE t (a int)").await;
        let mut tx = test.begin().await;
        claim(&mut tx, &["a"]).await;
        tx.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
        let own = format!("DELETE FROM {}", test.table("processed_messages"));
        for statement in [
            "COMMIT",
            "/* x */ COMMIT",
            "INSERT INTO t VALUES (2); COMMIT",
            "ROLLBACK",
            "SAVEPOINT a",
            "END",
            "CREATE TABLE u (a int)",
            "",
            &own,
        ] {
            let error = tx.execute(statement, &[]).await.unwrap_err();
            assert_eq!(error.code, "denied.statement", "{statement}");
            let error = tx.query(statement, &[], 1).await.unwrap_err();
            assert_eq!(error.code, "denied.statement", "{statement}");
        }
        // Had one of them worked, this rollback would come too late.
        tx.rollback().await.unwrap();
        assert_eq!(test.number("SELECT count(*) FROM t").await, 0);
        let table = test.table("processed_messages");
        assert_eq!(
            test.number(&format!("SELECT count(*) FROM {table}")).await,
            0
        );
    }

    /// The handler swallows an error and says ok: PostgreSQL would answer COMMIT with ROLLBACK, and no error.
    pub(super) async fn an_error_aborts_the_transaction(test: TestStore) {
        test.run("CREATE TABLE t (a int PRIMARY KEY)").await;
        let mut tx = test.begin().await;
        claim(&mut tx, &["a"]).await;
        tx.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
        let error = tx
            .execute("INSERT INTO t VALUES (1)", &[])
            .await
            .unwrap_err();
        assert_eq!(error.code, "constraint.unique");
        assert!(!error.retryable);
        for _ in 0..2 {
            let error = tx
                .execute("INSERT INTO t VALUES (2)", &[])
                .await
                .unwrap_err();
            assert_eq!(error.code, "aborted");
            let error = tx.query("SELECT 1", &[], 1).await.unwrap_err();
            assert_eq!(error.code, "aborted");
        }
        assert!(tx.fault().is_none());
        let ended = tx.commit().await;
        assert_eq!(refused(ended.result).code, "aborted");
        assert_eq!(test.number("SELECT count(*) FROM t").await, 0);
        // Nothing was claimed, and the connection is good for more.
        let mut tx = Tx::begin(ended.connection.unwrap()).await.unwrap();
        assert_eq!(claim(&mut tx, &["a"]).await, [FRESH]);
        tx.execute("INSERT INTO t VALUES (3)", &[]).await.unwrap();
        commit(tx).await;
        assert_eq!(test.number("SELECT count(*) FROM t").await, 1);
    }

    pub(super) async fn constraints_are_named(test: TestStore) {
        test.run(
            "CREATE TABLE p (id int PRIMARY KEY); \
             CREATE TABLE t (a int NOT NULL, b int UNIQUE, c int, d int REFERENCES p, \
             CONSTRAINT c_is_positive CHECK (c > 0))",
        )
        .await;
        let mut connection = test.connect().await;
        for (statement, code, constraint, column) in [
            (
                "INSERT INTO t (a) VALUES (NULL)",
                "constraint.not-null",
                None,
                Some("a"),
            ),
            (
                "INSERT INTO t (a, b) VALUES (1, 1), (1, 1)",
                "constraint.unique",
                Some("t_b_key"),
                Some("b"),
            ),
            (
                "INSERT INTO t (a, b, c) VALUES (1, 1, 0)",
                "constraint.check",
                Some("c_is_positive"),
                None,
            ),
            (
                "INSERT INTO t VALUES (1, 1, 1, 1)",
                "constraint.foreign-key",
                Some("t_d_fkey"),
                None,
            ),
        ] {
            let mut tx = Tx::begin(connection).await.unwrap();
            let error = tx.execute(statement, &[]).await.unwrap_err();
            assert_eq!(error.code, code);
            match test.kind() {
                StoreKind::Postgres => {
                    assert_eq!(error.constraint.as_deref(), constraint);
                    assert_eq!(error.table.as_deref(), Some("t"));
                    assert!(error.sqlstate.is_some_and(|state| state.starts_with("23")));
                }
                // SQLite names columns for UNIQUE and NOT NULL, and the constraint for CHECK.
                StoreKind::Sqlite => {
                    assert_eq!(error.column.as_deref(), column);
                    if code == "constraint.check" {
                        assert_eq!(error.constraint.as_deref(), constraint);
                    }
                }
            }
            connection = tx.rollback().await.unwrap();
        }
    }

    pub(super) async fn errors_have_codes(test: TestStore) {
        test.run("CREATE TABLE t (a int)").await;
        let mut connection = test.connect().await;
        for (statement, code, position) in [
            ("SELECT a FROM nowhere", "undefined.table", Some(15)),
            ("SELECT nope FROM t", "undefined.column", Some(8)),
            ("SELECT \u{e9}\u{e9}(1)", "undefined.function", Some(8)),
            ("SELECT FROM WHERE", "syntax", Some(13)),
            ("SELECT a FROM t WHERE", "syntax", Some(22)),
        ] {
            let mut tx = Tx::begin(connection).await.unwrap();
            let error = tx.query(statement, &[], 1).await.unwrap_err();
            assert_eq!(error.code, code, "{statement}: {error:?}");
            if test.kind() == StoreKind::Postgres {
                assert_eq!(error.position, position, "{statement}");
            }
            assert_eq!(
                tx.query("SELECT 1", &[], 1).await.unwrap_err().code,
                "aborted"
            );
            connection = tx.rollback().await.unwrap();
        }
    }

    pub(super) async fn a_deferred_constraint_refuses_the_commit(test: TestStore) {
        test.run(
            "CREATE TABLE p (id int PRIMARY KEY); \
             CREATE TABLE t (a int REFERENCES p DEFERRABLE INITIALLY DEFERRED)",
        )
        .await;
        let mut tx = test.begin().await;
        claim(&mut tx, &["a"]).await;
        tx.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
        let ended = tx.commit().await;
        assert_eq!(refused(ended.result).code, "constraint.foreign-key");
        let mut tx = Tx::begin(ended.connection.unwrap()).await.unwrap();
        assert_eq!(claim(&mut tx, &["a"]).await, [FRESH]);
        tx.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
        tx.execute("INSERT INTO p VALUES (1)", &[]).await.unwrap();
        commit(tx).await;
        assert_eq!(test.number("SELECT count(*) FROM t").await, 1);
    }

    fn endless(kind: StoreKind) -> &'static str {
        match kind {
            StoreKind::Postgres => "SELECT count(*) FROM generate_series(1, 1000000000000)",
            StoreKind::Sqlite => {
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
            }
        }
    }

    pub(super) async fn a_statement_timeout_aborts(test: TestStore) {
        test.run("CREATE TABLE t (a bigint)").await;
        let short = SessionOptions {
            statement_timeout: Some(Duration::from_millis(200)),
            ..options()
        };
        let mut tx = Tx::begin(test.connect_with(&short).await).await.unwrap();
        claim(&mut tx, &["a"]).await;
        let error = tx.query(endless(test.kind()), &[], 1).await.unwrap_err();
        assert_eq!(error.code, "timeout");
        // The message's own fault: it is charged.
        assert!(tx.fault().is_none());
        assert_eq!(
            tx.execute("SELECT 1", &[]).await.unwrap_err().code,
            "aborted"
        );
        let ended = tx.commit().await;
        assert_eq!(refused(ended.result).code, "aborted");

        // A write that is cut off ends the whole transaction on SQLite: its connection is of no more use.
        let mut tx = Tx::begin(test.connect_with(&short).await).await.unwrap();
        claim(&mut tx, &["a"]).await;
        let write = match test.kind() {
            StoreKind::Postgres => "INSERT INTO t SELECT generate_series(1, 1000000000000)",
            StoreKind::Sqlite => {
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) INSERT INTO t SELECT i FROM n"
            }
        };
        assert_eq!(tx.execute(write, &[]).await.unwrap_err().code, "timeout");
        let ended = tx.commit().await;
        assert_eq!(refused(ended.result).code, "aborted");
        assert_eq!(
            ended.connection.is_some(),
            test.kind() == StoreKind::Postgres
        );
        assert_eq!(test.number("SELECT count(*) FROM t").await, 0);
    }

    pub(super) async fn large_values(test: TestStore) {
        let (bytes, chars) = match test.kind() {
            StoreKind::Postgres => ("bytea", "text"),
            StoreKind::Sqlite => ("BLOB", "TEXT"),
        };
        test.run(&format!("CREATE TABLE t (a {bytes}, b {chars})"))
            .await;
        let mut tx = test.begin().await;
        let values = [
            Value::Bytes(vec![0xa5; 5_000_000]),
            text(&"\u{e9}'\\".repeat(1_000_000)),
        ];
        tx.execute("INSERT INTO t VALUES ($1, $2)", &values)
            .await
            .unwrap();
        let result = tx.query("SELECT a, b FROM t", &[], 1).await.unwrap();
        assert!(result.rows == [values]);
        // Enough rows, but too many bytes.
        tx.execute("INSERT INTO t SELECT t.a, t.b FROM t, (VALUES (1), (2), (3), (4), (5), (6), (7), (8)) AS n", &[])
            .await
            .unwrap();
        let error = tx.query("SELECT a, b FROM t", &[], 100).await.unwrap_err();
        assert_eq!(error.code, "limit.bytes");
        commit(tx).await;
    }

    fn queued(message: &str) -> NewQueueRow {
        NewQueueRow {
            message_id: Some(message.into()),
            subject: "topic".into(),
            content_type: Some("text/plain".into()),
            payload: Bytes::copy_from_slice(message.as_bytes()),
            ..NewQueueRow::default()
        }
    }

    pub(super) async fn a_queue_in_order(test: TestStore) {
        let mut connection = test.connect().await;
        let rows: Vec<NewQueueRow> = (0..20).map(|number| queued(&number.to_string())).collect();
        connection.enqueue("q", &rows).await.unwrap();
        connection.enqueue("q", &[]).await.unwrap();
        connection.enqueue("other", &rows[..3]).await.unwrap();
        assert_eq!(connection.queue_backlog("q").await.unwrap(), 20);
        assert_eq!(connection.queue_backlog("other").await.unwrap(), 3);
        assert_eq!(connection.queue_backlog("none").await.unwrap(), 0);
        let first = connection.peek_queue("q", &[], 5).await.unwrap();
        let ids = |rows: &[hapax::store::QueueRow]| {
            rows.iter()
                .map(|row| row.message_id.clone().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(&first), ["0", "1", "2", "3", "4"]);
        assert_eq!(first[0].subject, "topic");
        assert_eq!(first[0].content_type.as_deref(), Some("text/plain"));
        assert_eq!(&first[0].payload[..], b"0");
        assert!(
            first[0]
                .enqueued_at
                .is_some_and(|at| at.seconds > 1_700_000_000)
        );
        let in_hand: Vec<i64> = first.iter().map(|row| row.number).collect();
        let next = connection.peek_queue("q", &in_hand, 100).await.unwrap();
        assert_eq!(next.len(), 15);
        assert_eq!(ids(&next)[0], "5");
    }

    pub(super) async fn a_queue_row_is_taken_inside_the_transaction(test: TestStore) {
        let mut connection = test.connect().await;
        connection.enqueue("q", &[queued("a")]).await.unwrap();
        let number = connection.peek_queue("q", &[], 1).await.unwrap()[0].number;
        let mut tx = Tx::begin(connection).await.unwrap();
        assert_eq!(tx.take_queue_rows(&[number]).await.unwrap(), [number]);
        assert_eq!(tx.take_queue_rows(&[number]).await.unwrap(), [0_i64; 0]);
        let mut tx = Tx::begin(tx.rollback().await.unwrap()).await.unwrap();
        claim(&mut tx, &["a"]).await;
        assert_eq!(tx.take_queue_rows(&[number]).await.unwrap(), [number]);
        if test.kind() == StoreKind::Postgres {
            // Another host does not wait for it.
            let mut other = test.begin().await;
            assert_eq!(other.take_queue_rows(&[number]).await.unwrap(), [0_i64; 0]);
        }
        let connection = commit(tx).await;
        let mut tx = Tx::begin(connection).await.unwrap();
        assert_eq!(tx.take_queue_rows(&[number]).await.unwrap(), [0_i64; 0]);
        let mut connection = commit(tx).await;
        assert_eq!(connection.queue_backlog("q").await.unwrap(), 0);
    }

    pub(super) async fn queue_headers_survive_byte_for_byte(test: TestStore) {
        let header = |name: &str, value: &[u8]| Header {
            name: name.into(),
            value: Bytes::copy_from_slice(value),
        };
        let row = NewQueueRow {
            headers: vec![
                header("Nats-Msg-Id", b"a"),
                header("nats-msg-id", b"\0"),
                header("\u{e9}\0", &(0..=255).collect::<Vec<u8>>()),
                header("", b""),
            ],
            payload: (0..=255).collect::<Vec<u8>>().into(),
            ..NewQueueRow::default()
        };
        let mut connection = test.connect().await;
        connection
            .enqueue("q", std::slice::from_ref(&row))
            .await
            .unwrap();
        let back = connection.peek_queue("q", &[], 1).await.unwrap().remove(0);
        assert_eq!(back.headers, row.headers);
        assert_eq!(back.payload, row.payload);
        assert_eq!((back.message_id, back.content_type), (None, None));
        assert_eq!(back.subject, "");
    }

    pub(super) async fn any_program_can_enqueue(test: TestStore) {
        let table = test.table("queue");
        test.run(&format!(
            "INSERT INTO {table} (queue, message_id, payload) VALUES ('q', 'p-1', '{{\"amount\": 5}}'); \
             INSERT INTO {table} (queue, headers) VALUES ('q', '{{\"Nats-Msg-Id\": \"x\"}}'); \
             INSERT INTO {table} (queue, headers) VALUES ('q', '[1]')"
        ))
        .await;
        let rows = test.connect().await.peek_queue("q", &[], 10).await.unwrap();
        assert_eq!(rows[0].message_id.as_deref(), Some("p-1"));
        assert_eq!(&rows[0].payload[..], br#"{"amount": 5}"#);
        assert_eq!(rows[0].headers, []);
        assert_eq!(&rows[1].headers[0].value[..], b"x");
        assert_eq!(rows[2].headers[0].name, "hapax-unreadable-headers");
        assert_eq!(&rows[2].headers[0].value[..], b"[1]");
        let mut probe = test.probe().await;
        for bad in [
            format!("INSERT INTO {table} (queue, headers) VALUES ('q', 'x')"),
            format!("INSERT INTO {table} (queue, due_at) VALUES ('q', 'x')"),
            format!("INSERT INTO {table} (message_id) VALUES ('q')"),
        ] {
            assert!(probe.try_run(&bad).await.is_err(), "{bad}");
        }
    }

    pub(super) async fn a_row_that_is_not_due_waits(test: TestStore) {
        let table = test.table("queue");
        let (later, earlier) = match test.kind() {
            StoreKind::Postgres => ("now() + interval '1 hour'", "now() - interval '1 hour'"),
            StoreKind::Sqlite => ("datetime('now', '+1 hour')", "datetime('now', '-1 hour')"),
        };
        test.run(&format!(
            "INSERT INTO {table} (queue, message_id, due_at) VALUES ('q', 'later', {later}), ('q', 'earlier', {earlier})"
        ))
        .await;
        let mut connection = test.connect().await;
        let rows = connection.peek_queue("q", &[], 10).await.unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].message_id.as_deref(), Some("earlier"));
        assert_eq!(connection.queue_backlog("q").await.unwrap(), 2);
    }

    pub(super) async fn numbers_of_a_queue_are_not_used_again(test: TestStore) {
        let mut connection = test.connect().await;
        connection
            .enqueue("q", &[queued("a"), queued("b")])
            .await
            .unwrap();
        let last = connection.peek_queue("q", &[], 2).await.unwrap()[1].number;
        test.run(&format!("DELETE FROM {}", test.table("queue")))
            .await;
        connection.enqueue("q", &[queued("c")]).await.unwrap();
        assert!(connection.peek_queue("q", &[], 1).await.unwrap()[0].number > last);
    }

    pub(super) async fn outbox_rows_come_with_the_commit(test: TestStore) {
        let row = |ordinal: u32| OutboxRow {
            id: format!("o-{ordinal}"),
            consumer: "c".into(),
            message_id: id("a"),
            ordinal,
            target: (ordinal > 0).then(|| "target".into()),
            subject: "out".into(),
            key: (ordinal > 0).then(|| "key".into()),
            headers: vec![Header {
                name: "n".into(),
                value: Bytes::from_static(&[0xff]),
            }],
            content_type: None,
            payload: Bytes::from_static(&[0, 0xff]),
            not_before: (ordinal > 0).then_some(Instant {
                seconds: 1_700_000_000,
                nanoseconds: 1000,
            }),
        };
        let count = format!("SELECT count(*) FROM {}", test.table("outbox"));
        let mut tx = test.begin().await;
        tx.write_outbox(&[]).await.unwrap();
        claim(&mut tx, &["a"]).await;
        tx.write_outbox(&[row(0), row(1)]).await.unwrap();
        assert_eq!(test.number(&count).await, 0);
        let connection = tx.rollback().await.unwrap();
        assert_eq!(test.number(&count).await, 0);
        let mut tx = Tx::begin(connection).await.unwrap();
        claim(&mut tx, &["a"]).await;
        tx.write_outbox(&[row(0), row(1)]).await.unwrap();
        commit(tx).await;
        assert_eq!(test.number(&count).await, 2);
        let ordered = format!(
            "SELECT id FROM {} WHERE key IS NULL AND not_before IS NULL AND published_at IS NULL ORDER BY number",
            test.table("outbox")
        );
        assert_eq!(test.text(&ordered).await.as_deref(), Some("o-0"));
        // Nothing that is lost silently.
        let mut tx = test.begin().await;
        let fine = OutboxRow {
            not_before: Some(Instant {
                seconds: 0,
                nanoseconds: 1,
            }),
            ..row(2)
        };
        let error = tx.write_outbox(&[fine]).await.unwrap_err();
        assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
    }

    pub(super) async fn migrations_twice(test: TestStore) {
        let mut connection = test.connect().await;
        connection.migrate().await.unwrap();
        connection.enqueue("q", &[queued("a")]).await.unwrap();
        connection.migrate().await.unwrap();
        assert_eq!(connection.queue_backlog("q").await.unwrap(), 1);
    }

    pub(super) async fn a_newer_schema_is_refused(test: TestStore) {
        test.run(&format!("UPDATE {} SET value = '7000'", test.table("meta")))
            .await;
        let mut connection = test.connect().await;
        let error = connection.migrate().await.unwrap_err();
        assert!(
            matches!(
                error,
                StoreError::SchemaNewer { found: 7000, known } if known == schema_version()
            ),
            "{error:?}"
        );
        assert_eq!(
            error.to_string(),
            format!(
                "the schema of the store has version 7000, newer than version {} of this binary",
                schema_version()
            )
        );
        test.run(&format!("UPDATE {} SET value = 'x'", test.table("meta")))
            .await;
        let error = connection.migrate().await.unwrap_err();
        assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    }

    pub(super) async fn migrations_of_a_handler(test: TestStore) {
        let one = migration(
            1,
            "CREATE TABLE a (x int); -- one\nINSERT INTO a VALUES (1);",
        );
        let two = migration(2, "CREATE TABLE b AS SELECT * FROM a");
        let mut connection = test.connect().await;
        let applied = connection.apply_handler_migrations("h", &[]).await.unwrap();
        assert_eq!(applied, 0);
        let applied = connection
            .apply_handler_migrations("h", std::slice::from_ref(&one))
            .await
            .unwrap();
        assert_eq!(applied, 1);
        let both = [two, one];
        assert_eq!(
            connection
                .apply_handler_migrations("h", &both)
                .await
                .unwrap(),
            1
        );
        assert_eq!(
            connection
                .apply_handler_migrations("h", &both)
                .await
                .unwrap(),
            0
        );
        // Another handler's are its own.
        let other = [migration(1, "CREATE TABLE c (x int)")];
        assert_eq!(
            connection
                .apply_handler_migrations("g", &other)
                .await
                .unwrap(),
            1
        );
        assert_eq!(test.number("SELECT count(*) FROM b").await, 1);
        // A handler sees what they made.
        let mut tx = Tx::begin(connection).await.unwrap();
        tx.execute("INSERT INTO c VALUES (1)", &[]).await.unwrap();
        commit(tx).await;

        // Two hosts at once.
        let many: Vec<HandlerMigration> = (1..=5)
            .map(|version| migration(version, &format!("CREATE TABLE t{version} (x int)")))
            .collect();
        let apply = |mut connection: Connection, many: Vec<HandlerMigration>| async move {
            connection
                .apply_handler_migrations("two", &many)
                .await
                .unwrap()
        };
        let first = tokio::spawn(apply(test.connect().await, many.clone()));
        let second = tokio::spawn(apply(test.connect().await, many));
        assert_eq!(first.await.unwrap() + second.await.unwrap(), 5);
    }

    pub(super) async fn migrations_of_a_handler_that_fail(test: TestStore) {
        let mut connection = test.connect().await;
        let files = [
            migration(1, "CREATE TABLE a (x int)"),
            migration(2, "CREATE TABLE b (x int);\nINSERT INTO nowhere VALUES (1)"),
        ];
        let error = connection
            .apply_handler_migrations("h", &files)
            .await
            .unwrap_err();
        let StoreError::Refused(error) = error else {
            panic!("{error:?}");
        };
        assert_eq!(error.code, "undefined.table");
        match test.kind() {
            StoreKind::Postgres => assert_eq!(
                error.message,
                "`0002_x.sql`, line 2: relation \"nowhere\" does not exist"
            ),
            StoreKind::Sqlite => {
                assert_eq!(error.message, "`0002_x.sql`: no such table: nowhere");
            }
        }
        // The first file stays, the second left nothing.
        let files = [
            files[0].clone(),
            migration(2, "CREATE TABLE b (x int);\nINSERT INTO a VALUES (1)"),
        ];
        assert_eq!(
            connection
                .apply_handler_migrations("h", &files)
                .await
                .unwrap(),
            1
        );

        let commits = [migration(
            1,
            "CREATE TABLE c (x int); COMMIT; CREATE TABLE d (x int)",
        )];
        let error = connection
            .apply_handler_migrations("commits", &commits)
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("`0001_x.sql` contains `COMMIT`"),
            "{error}"
        );
        // What the search for commands does not find is refused all the same.
        let ends = [migration(
            1,
            "CREATE TABLE c (x int); END; CREATE TABLE d (x int)",
        )];
        let error = connection
            .apply_handler_migrations("ends", &ends)
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
    }

    pub(super) async fn migrations_of_a_handler_that_changed(test: TestStore) {
        let mut connection = test.connect().await;
        let (one, two) = (
            migration(1, "CREATE TABLE a (x int)"),
            migration(2, "CREATE TABLE b (x int)"),
        );
        let both = [one.clone(), two.clone()];
        connection
            .apply_handler_migrations("h", &both)
            .await
            .unwrap();
        let changed = [migration(1, "CREATE TABLE a (x int, y int)"), two.clone()];
        for (files, words) in [
            (&changed[..], "`0001_x.sql` has changed"),
            (
                &[two][..],
                "`0001_x.sql` was applied to this database and is missing now",
            ),
        ] {
            let error = connection
                .apply_handler_migrations("h", files)
                .await
                .unwrap_err();
            assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
            assert!(error.to_string().contains(words), "{error}");
        }
        assert_eq!(
            connection
                .apply_handler_migrations("h", &both)
                .await
                .unwrap(),
            0
        );
    }

    pub(super) async fn counters_add_up_over_hosts(test: TestStore) {
        let mut connection = test.connect().await;
        assert_eq!(connection.counters("c").await.unwrap(), Counters::default());
        let some = Counters {
            claimed: 1,
            duplicates: 2,
            retried: 3,
            rolled_back: 5,
            dead: 4,
        };
        for (consumer, host) in [("c", "one"), ("c", "one"), ("c", "two"), ("d", "one")] {
            connection
                .add_counters(consumer, host, &some)
                .await
                .unwrap();
        }
        assert_eq!(
            connection.counters("c").await.unwrap(),
            Counters {
                claimed: 3,
                duplicates: 6,
                retried: 9,
                rolled_back: 15,
                dead: 12,
            }
        );
    }

    pub(super) async fn a_connection_is_used_again(test: TestStore) {
        test.run("CREATE TABLE t (a int)").await;
        let mut connection = test.connect().await;
        for number in 0..20_i64 {
            let mut tx = Tx::begin(connection).await.unwrap();
            claim(&mut tx, &[&number.to_string()]).await;
            tx.execute("INSERT INTO t VALUES ($1)", &[Value::Int64(number)])
                .await
                .unwrap();
            connection = match number % 3 {
                0 => commit(tx).await,
                1 => tx.rollback().await.unwrap(),
                _ => {
                    tx.execute("INSERT INTO nowhere VALUES (1)", &[])
                        .await
                        .unwrap_err();
                    tx.rollback().await.unwrap()
                }
            };
            connection
                .record_attempt("c", &id("x"), FailureClass::Retried, "x", None)
                .await
                .unwrap();
        }
        assert_eq!(test.number("SELECT count(*) FROM t").await, 7);
    }

    pub(super) async fn components_are_recorded(test: TestStore) {
        let component = ComponentDigest::of(b"x");
        let mut connection = test.connect().await;
        for message in ["a", "b"] {
            let mut tx = Tx::begin(connection).await.unwrap();
            tx.claim("c", &requests(&[message]), Some(component))
                .await
                .unwrap();
            connection = commit(tx).await;
        }
        let sql = format!(
            "SELECT count(*) FROM {} p JOIN {} c ON c.id = p.component",
            test.table("processed_messages"),
            test.table("components")
        );
        assert_eq!(test.number(&sql).await, 2);
    }

    pub(super) async fn a_component_of_a_rolled_back_transaction_is_made_again(test: TestStore) {
        let component = Some(ComponentDigest::of(b"x"));
        let mut tx = test.begin().await;
        tx.claim("c", &requests(&["a"]), component).await.unwrap();
        let mut tx = Tx::begin(tx.rollback().await.unwrap()).await.unwrap();
        tx.claim("c", &requests(&["a"]), component).await.unwrap();
        commit(tx).await;
        let sql = format!(
            "SELECT count(*) FROM {} p JOIN {} c ON c.id = p.component",
            test.table("processed_messages"),
            test.table("components")
        );
        assert_eq!(test.number(&sql).await, 1);
    }

    /// The wall-clock cut-off drops the whole transaction, in the middle of a statement.
    pub(super) async fn dropping_a_session_ends_its_statement(test: TestStore) {
        let mut tx = test.begin().await;
        claim(&mut tx, &["a"]).await;
        let statement = endless(test.kind());
        let cut_off = tokio::time::timeout(Duration::from_millis(200), async move {
            tx.query(statement, &[], 1).await
        })
        .await;
        assert!(cut_off.is_err());
        let dropped = std::time::Instant::now();
        // Its locks are free again soon after: within the statement timeout of 20 s by far.
        let mut tx = test.begin().await;
        assert_eq!(claim(&mut tx, &["a"]).await, [FRESH]);
        commit(tx).await;
        assert!(
            dropped.elapsed() < Duration::from_secs(5),
            "{:?}",
            dropped.elapsed()
        );
    }
}

mod only_postgres {
    use super::*;

    #[tokio::test]
    async fn migrations_at_once() {
        let test = TestStore::empty_postgres().await;
        migrate_at_once(&test).await;
    }

    pub(super) async fn migrate_at_once(test: &TestStore) {
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let store = test.store.clone();
            tasks.push(tokio::spawn(async move {
                store.connect(&options()).await.unwrap().migrate().await
            }));
        }
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let version = format!(
            "SELECT value FROM {} WHERE name = 'schema-version'",
            test.table("meta")
        );
        assert_eq!(
            test.text(&version).await,
            Some(schema_version().to_string())
        );
    }

    /// A message's fate is not known: the host must run it again and let the claim tell.
    #[tokio::test]
    async fn a_connection_lost_in_the_commit_is_unknown() {
        let mut test = TestStore::postgres().await;
        let mut tx = test.begin().await;
        claim(&mut tx, &["a"]).await;
        terminate(&test).await;
        let ended = tx.commit().await;
        assert!(
            matches!(ended.result, Err(CommitError::Unknown(_))),
            "{:?}",
            ended.result
        );
        assert!(ended.connection.is_none());

        let mut tx = test.begin().await;
        assert_eq!(claim(&mut tx, &["a"]).await, [FRESH]);
        test.postgres.as_mut().unwrap().stop();
        let ended = tx.commit().await;
        assert!(
            matches!(ended.result, Err(CommitError::Unknown(_))),
            "{:?}",
            ended.result
        );
        let error = test.store.connect(&options()).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    }

    async fn terminate(test: &TestStore) {
        let gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'hapax %'";
        let mut probe = test.probe().await;
        probe
            .run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'hapax %'",
            )
            .await;
        probe.wait_for(gone, 0).await;
    }

    #[tokio::test]
    async fn a_connection_lost_in_a_statement_is_a_fault() {
        let test = TestStore::postgres().await;
        let mut tx = test.begin().await;
        claim(&mut tx, &["a"]).await;
        terminate(&test).await;
        let error = tx.execute("SELECT 1", &[]).await.unwrap_err();
        assert_eq!(
            (error.code.as_str(), error.retryable),
            ("unavailable", true)
        );
        assert!(matches!(tx.fault(), Some(StoreError::Unavailable(_))));
        assert!(tx.rollback().await.is_none());
    }

    #[tokio::test]
    async fn a_deadlock_is_a_fault() {
        let test = TestStore::postgres().await;
        test.run("CREATE TABLE t (a int PRIMARY KEY, b int); INSERT INTO t VALUES (1, 0), (2, 0)")
            .await;
        let update = "UPDATE t SET b = b + 1 WHERE a = $1";
        let mut one = test.begin().await;
        let mut two = test.begin().await;
        one.execute(update, &[Value::Int64(1)]).await.unwrap();
        two.execute(update, &[Value::Int64(2)]).await.unwrap();
        let (first, second) = tokio::join!(
            async {
                let result = one.execute(update, &[Value::Int64(2)]).await;
                let fault = one.fault();
                (one.commit().await, result, fault)
            },
            async {
                let result = two.execute(update, &[Value::Int64(1)]).await;
                let fault = two.fault();
                (two.commit().await, result, fault)
            }
        );
        let (loser, winner) = if first.1.is_err() {
            (first, second)
        } else {
            (second, first)
        };
        winner.0.result.unwrap();
        let error = loser.1.unwrap_err();
        assert_eq!((error.code.as_str(), error.retryable), ("deadlock", true));
        assert!(matches!(loser.2, Some(StoreError::Busy(_))));
        assert!(matches!(loser.0.result, Err(CommitError::Busy(_))));
        assert!(loser.0.connection.is_some());
    }

    #[tokio::test]
    async fn two_hosts_record_attempts_at_once() {
        let test = TestStore::postgres().await;
        let record = |mut connection: Connection| async move {
            let mut numbers = Vec::new();
            for _ in 0..20 {
                numbers.push(
                    connection
                        .record_attempt("c", &id("a"), FailureClass::Retried, "x", None)
                        .await
                        .unwrap(),
                );
            }
            numbers
        };
        let one = tokio::spawn(record(test.connect().await));
        let two = tokio::spawn(record(test.connect().await));
        let mut numbers = one.await.unwrap();
        numbers.extend(two.await.unwrap());
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=40).collect::<Vec<u32>>());
    }

    /// Text serves for any type, read by the type's own input function.
    #[tokio::test]
    async fn text_for_any_type() {
        let test = TestStore::postgres().await;
        test.run(
            "CREATE TYPE mood AS ENUM ('ok', 'bad'); CREATE DOMAIN positive AS int CHECK (VALUE > 0); \
             CREATE TABLE t (a inet, b mood, c positive, d int[], e interval, f jsonb, g varchar(3), h uuid, \
             i numeric(10, 2), j smallint, k real, l date)",
        )
        .await;
        let insert = "INSERT INTO t VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
        let values = [
            "10.0.0.1/8",
            "ok",
            "12345678",
            "{1,2}",
            "1 day",
            "{\"a\": 1}",
            "abc",
            "0123abcd-0000-4000-8000-0123456789ab",
            "1.50",
            "-7",
            "0.5",
            "2024-02-29",
        ];
        let params: Vec<Value> = values.iter().map(|value| text(value)).collect();
        let mut tx = test.begin().await;
        tx.execute(insert, &params).await.unwrap();
        let result = tx
            .query(
                "SELECT a::text, b::text, c, d::text, e::text, f, g, h, i, j, k, l::text FROM t",
                &[],
                1,
            )
            .await
            .unwrap();
        assert_eq!(result.rows[0][2], Value::Int64(12_345_678));
        assert_eq!(result.rows[0][5], Value::Json("{\"a\": 1}".into()));
        assert_eq!(result.rows[0][8], Value::Decimal("1.50".into()));
        assert_eq!(result.rows[0][10], Value::Float64(0.5));
        assert_eq!(result.rows[0][11], text("2024-02-29"));
        commit(tx).await;

        // What a type has no case for comes as the database writes it.
        let mut tx = test.begin().await;
        let result = tx
            .query("SELECT a, b, 'infinity'::timestamptz AS c FROM t", &[], 1)
            .await
            .unwrap();
        let other = |type_name: &str, text: &str| Value::Other {
            type_name: type_name.into(),
            text: text.into(),
        };
        assert_eq!(
            result.rows,
            [[
                other("inet", "10.0.0.1/8"),
                other("mood", "ok"),
                other("timestamptz", "infinity")
            ]]
        );
    }

    /// The server's error at a literal names the parameter, and hides the text that was sent.
    #[tokio::test]
    async fn errors_of_input_functions_name_the_parameter() {
        let test = TestStore::postgres().await;
        test.run(
            "CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE TABLE t (a text, b int, c uuid, d positive)",
        )
        .await;
        let insert = "INSERT INTO t VALUES ($1, $2, $3, $4)";
        let good = [
            "\u{e9}'\u{1f600}",
            "1",
            "0123abcd-0000-4000-8000-0123456789ab",
            "1",
        ];
        for (index, bad, code) in [
            (1, "abc", "data.invalid"),
            (1, "1.6", "data.invalid"),
            (1, "99999999999", "data.out-of-range"),
            (2, "x", "data.invalid"),
        ] {
            let mut values = good;
            values[index] = bad;
            let params: Vec<Value> = values.iter().map(|value| text(value)).collect();
            let mut tx = test.begin().await;
            let error = tx.execute(insert, &params).await.unwrap_err();
            let number = index as u32 + 1;
            assert_eq!(
                (error.code.as_str(), error.param),
                (code, Some(number)),
                "{error:?}"
            );
            assert_eq!(error.position, None);
            assert!(error.message.starts_with(&format!("parameter ${number}: ")));
            assert_eq!(
                tx.execute(insert, &params).await.unwrap_err().code,
                "aborted"
            );
        }
        let mut tx = test.begin().await;
        let params = ["a", "1", good[2], "0"].map(text);
        let error = tx.execute(insert, &params).await.unwrap_err();
        assert_eq!(error.code, "constraint.check");
    }

    /// More statements than a connection keeps prepared.
    #[tokio::test]
    async fn prepared_statements_are_bounded() {
        let test = TestStore::postgres().await;
        let mut connection = test.connect().await;
        for round in 0..2 {
            let mut tx = Tx::begin(connection).await.unwrap();
            for number in 0..300_i64 {
                let result = tx
                    .query(
                        &format!("SELECT {number} + $1::bigint"),
                        &[Value::Int64(round)],
                        1,
                    )
                    .await
                    .unwrap();
                assert_eq!(result.rows, [[Value::Int64(number + round)]]);
                if number % 100 == 50 {
                    let result = tx
                        .query(
                            "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'h_pax\\_%'",
                            &[],
                            1,
                        )
                        .await
                        .unwrap();
                    let Value::Int64(count) = result.rows[0][0] else {
                        panic!("{result:?}");
                    };
                    assert!(count <= 128, "{count}");
                }
            }
            connection = commit(tx).await;
        }
    }

    #[tokio::test]
    async fn a_session_is_as_the_room_needs_it() {
        let test = TestStore::postgres().await;
        let mut probe = test.probe().await;
        probe
            .run(
                "ALTER ROLE tester SET synchronous_commit = off; ALTER ROLE tester SET search_path = nowhere; \
                 ALTER ROLE tester SET standard_conforming_strings = off; ALTER ROLE tester SET TimeZone = 'Asia/Tokyo'; \
                 ALTER ROLE tester SET bytea_output = 'escape'; ALTER ROLE tester SET DateStyle = 'SQL, DMY'; \
                 ALTER ROLE tester SET default_transaction_read_only = on; \
                 ALTER ROLE tester SET default_transaction_isolation = 'serializable'",
            )
            .await;
        let mut tx = test.begin().await;
        claim(&mut tx, &["a"]).await;
        for (name, value) in [
            ("synchronous_commit", "on"),
            ("search_path", "public, pg_temp"),
            ("standard_conforming_strings", "on"),
            ("TimeZone", "UTC"),
            ("bytea_output", "hex"),
            ("DateStyle", "ISO, MDY"),
            ("transaction_isolation", "read committed"),
            ("statement_timeout", "2min"),
            ("lock_timeout", "1min"),
            ("idle_in_transaction_session_timeout", "1min"),
            ("client_connection_check_interval", "1s"),
            ("application_name", "hapax test"),
        ] {
            let result = tx
                .query("SELECT current_setting($1)", &[text(name)], 1)
                .await
                .unwrap();
            assert_eq!(result.rows, [[text(value)]], "{name}");
        }
        commit(tx).await;

        // The URL may choose the search path.
        probe
            .run("CREATE SCHEMA mine; CREATE TABLE mine.t (a int)")
            .await;
        let store = Store::open(&format!("{}?options=-c%20search_path%3Dmine", test.url)).unwrap();
        let mut tx = Tx::begin(store.connect(&options()).await.unwrap())
            .await
            .unwrap();
        tx.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
        commit(tx).await;
        assert_eq!(test.number("SELECT count(*) FROM mine.t").await, 1);
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_unavailable() {
        // The connection is taken by the system, and nobody reads from it.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        let store = Store::open(&format!("postgres://u:secret@{address}/x")).unwrap();
        let error = store.connect(&options()).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert!(
            error.to_string().contains("no answer within 10 s"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_store_that_can_not_be_used_says_why() {
        let test = TestStore::postgres().await;
        let wrong = test.url.replace("test_0", "nowhere");
        let store = Store::open(&wrong).unwrap();
        assert!(!store.display().contains("secret"), "{}", store.display());
        assert!(store.display().ends_with("/nowhere"), "{}", store.display());
        let error = store.connect(&options()).await.unwrap_err();
        assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
        assert!(
            error.to_string().contains("\"nowhere\" does not exist"),
            "{error}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
        // Nobody listens on this port.
        let store = Store::open("postgres://u:secret@127.0.0.1:1/x").unwrap();
        let error = store.connect(&options()).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        assert!(
            error.to_string().contains("postgres://u@127.0.0.1:1/x"),
            "{error}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
        for bad in ["mysql://x", "postgres://u:secret@h:port/x", "x"] {
            let error = Store::open(bad).unwrap_err();
            assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}

mod only_sqlite {
    use super::*;

    #[tokio::test]
    async fn migrations_at_once() {
        let test = TestStore::empty_sqlite();
        only_postgres::migrate_at_once(&test).await;
    }

    /// With a plain BEGIN the second transaction would read first, and then fail at once to become a writer.
    #[tokio::test]
    async fn a_transaction_is_a_writer_from_its_start() {
        let test = TestStore::sqlite().await;
        test.run("CREATE TABLE t (a int)").await;
        let mut first = test.begin().await;
        claim(&mut first, &["a"]).await;
        let second = test.connect().await;
        let second = tokio::spawn(async move {
            let mut tx = Tx::begin(second).await.unwrap();
            let result = tx.query("SELECT count(*) FROM t", &[], 1).await.unwrap();
            claim(&mut tx, &["b"]).await;
            commit(tx).await;
            result.rows
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        first
            .execute("INSERT INTO t VALUES (1)", &[])
            .await
            .unwrap();
        commit(first).await;
        assert_eq!(second.await.unwrap(), [[Value::Int64(1)]]);
    }

    /// Runs `statement` behind a claim; it must end the transaction without saying so.
    async fn ends_unseen(schema: &str, statement: &str) {
        let test = TestStore::sqlite().await;
        test.run(&format!("CREATE TABLE seen (a int); {schema}"))
            .await;
        let mut tx = test.begin().await;
        claim(&mut tx, &["a"]).await;
        tx.execute("INSERT INTO seen VALUES (1)", &[])
            .await
            .unwrap();
        let error = tx.execute(statement, &[]).await.unwrap_err();
        assert!(
            ["constraint.unique", "raised"].contains(&error.code.as_str()),
            "{error:?}"
        );
        // Outside a transaction now, this would be kept at once.
        let error = tx
            .execute("INSERT INTO seen VALUES (2)", &[])
            .await
            .unwrap_err();
        assert_eq!(error.code, "aborted");
        let ended = tx.commit().await;
        assert_eq!(refused(ended.result).code, "aborted");
        assert!(ended.connection.is_none());
        assert_eq!(test.number("SELECT count(*) FROM seen").await, 0);
        let mut tx = test.begin().await;
        assert_eq!(claim(&mut tx, &["a"]).await, [FRESH]);
    }

    #[tokio::test]
    async fn insert_or_rollback() {
        ends_unseen(
            "CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1)",
            "INSERT OR ROLLBACK INTO t VALUES (1)",
        )
        .await;
    }

    #[tokio::test]
    async fn update_or_rollback() {
        ends_unseen(
            "CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1), (2)",
            "UPDATE OR ROLLBACK t SET a = 1",
        )
        .await;
    }

    #[tokio::test]
    async fn a_table_with_on_conflict_rollback() {
        ends_unseen(
            "CREATE TABLE t (a int PRIMARY KEY ON CONFLICT ROLLBACK); INSERT INTO t VALUES (1)",
            "INSERT INTO t VALUES (1)",
        )
        .await;
    }

    #[tokio::test]
    async fn a_trigger_that_raises_rollback() {
        ends_unseen(
            "CREATE TABLE t (a int); CREATE TRIGGER stop BEFORE INSERT ON t BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
            "INSERT INTO t VALUES (1)",
        )
        .await;
    }

    #[tokio::test]
    async fn a_store_that_can_not_be_used_says_why() {
        let test = TestStore::sqlite().await;
        let path = test.url.replace("hapax.db", "nowhere/hapax.db");
        let error = Store::open(&path)
            .unwrap()
            .connect(&options())
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
        assert!(error.to_string().contains("there is no folder"), "{error}");
        for bad in [
            "sqlite:",
            "sqlite::memory:",
            "sqlite:x?mode=ro",
            "sqlite:file:x",
        ] {
            let error = Store::open(bad).unwrap_err();
            assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
        }
        let folder = test.url.trim_end_matches("hapax.db").to_owned();
        let error = Store::open(&folder)
            .unwrap()
            .connect(&options())
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    }
}
