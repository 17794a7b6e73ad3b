//! Calls of a real component inside real SQLite transactions: every verdict, every limit, and what a call leaves behind.

#![expect(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax::handler::{
    Called, Component, Handler, HandlerOptions, LOG_LINES_MAX, Limits, Runtime, RuntimeOptions,
    Verdict,
};
use hapax::message::{Header, Incoming, Message, MessageId, Position};
use hapax::store::{Connection, HandlerMigration, SessionOptions, Store, Tx, Value};
use serde_json::{Value as Json, json};

const MEBIBYTE: usize = 1 << 20;

/// The test guest that does what its payload says, compiled once for all tests of a process.
fn script() -> Component {
    static SCRIPT: OnceLock<Component> = OnceLock::new();
    SCRIPT.get_or_init(load_script).clone()
}

fn load_script() -> Component {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/guests/script.wasm");
    let bytes = std::fs::read(&path).unwrap_or_else(|error| {
        panic!(
            "cannot read `{}`: {error}; run `cargo xtask guests` to build it",
            path.display()
        )
    });
    Runtime::new(&RuntimeOptions {
        calls_max: 4,
        memory_max_bytes: 256 * MEBIBYTE,
    })
    .unwrap()
    .load_blocking("script.wasm", &bytes)
    .unwrap()
}

fn limits() -> Limits {
    Limits {
        memory_bytes: 64 * MEBIBYTE,
        cpu: Duration::from_secs(20),
        time: Duration::from_secs(60),
        rows: 100,
        ..Limits::DEFAULT
    }
}

fn handler(limits: Limits) -> Handler {
    let options = HandlerOptions {
        name: "script".into(),
        consumer: "script-consumer".into(),
        limits,
        config: [("currency", "EUR"), ("rate", "1.5")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        targets: Default::default(),
    };
    Handler::new(script(), options).unwrap()
}

/// A database of the test's own.
struct Database {
    store: Store,
    _folder: tempfile::TempDir,
}

impl Database {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("test.db").display());
        let database = Self {
            store: Store::open(&url).unwrap(),
            _folder: folder,
        };
        let mut connection = database.connect().await;
        connection.migrate().await.unwrap();
        let tables = HandlerMigration {
            version: 1,
            file: "0001_tables.sql".into(),
            sql: "CREATE TABLE notes (key TEXT, value TEXT); CREATE TABLE vals (a, b, c, d, e, f, g, h, i, j);".into(),
        };
        connection
            .apply_handler_migrations("script", &[tables])
            .await
            .unwrap();
        database
    }

    async fn connect(&self) -> Connection {
        let options = SessionOptions {
            purpose: "test".into(),
            statement_timeout: None,
            lock_timeout: Duration::from_secs(10),
            idle_in_transaction: Duration::from_secs(60),
        };
        self.store.connect(&options).await.unwrap()
    }

    async fn begin(&self) -> Tx {
        Tx::begin(self.connect().await).await.unwrap()
    }

    async fn call(&self, handler: &Handler, steps: Json) -> Called {
        handler
            .call(self.begin().await, &message(steps), None, 1)
            .await
    }

    /// Calls the handler, rolls back, and returns how it ended.
    async fn verdict(&self, handler: &Handler, steps: Json) -> Verdict {
        let called = self.call(handler, steps).await;
        called.tx.unwrap().rollback().await.unwrap();
        called.verdict
    }
}

fn message(steps: Json) -> Message {
    Message {
        id: MessageId::new("m-1").unwrap(),
        source: "source".into(),
        incoming: Incoming {
            subject: "subject".into(),
            headers: vec![Header {
                name: "N".into(),
                value: Bytes::from_static(b"\xff\0"),
            }],
            content_type: Some("application/json".into()),
            payload: json!({ "steps": steps }).to_string().into(),
            published_at: Some(hapax::message::Instant {
                seconds: -1,
                nanoseconds: 999_999_000,
            }),
            position: Position("7".into()),
            queue_id: None,
        }
        .into(),
    }
}

async fn rows(tx: &mut Tx, statement: &str) -> Vec<Vec<Value>> {
    tx.query(statement, &[], 1000).await.unwrap().rows
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

#[tokio::test]
async fn what_the_handler_writes_is_in_the_transaction_that_comes_back() {
    let database = Database::new().await;
    let called = database
        .call(
            &handler(limits()),
            json!([{"execute": "INSERT INTO notes VALUES ('k', $1)", "params": [{"text": "v"}], "expect_count": 1}]),
        )
        .await;
    assert_eq!(called.verdict, Verdict::Ok);
    let mut tx = called.tx.unwrap();
    assert_eq!(
        rows(&mut tx, "SELECT value FROM notes").await,
        [[text("v")]]
    );
    // Nothing is committed by the call itself.
    tx.rollback().await.unwrap();
    let mut tx = database.begin().await;
    assert!(rows(&mut tx, "SELECT value FROM notes").await.is_empty());
}

#[tokio::test]
async fn the_handler_sees_the_whole_message() {
    let database = Database::new().await;
    let message = message(json!([{"record_message": {"table": "notes", "key": "message"}}]));
    let called = handler(limits())
        .call(database.begin().await, &message, Some("key"), 3)
        .await;
    assert_eq!(called.verdict, Verdict::Ok);
    let found = rows(&mut called.tx.unwrap(), "SELECT value FROM notes").await;
    let [[Value::Text(found)]] = &found.iter().map(|row| [row[0].clone()]).collect::<Vec<_>>()[..]
    else {
        panic!("{found:?}")
    };
    assert_eq!(
        serde_json::from_str::<Json>(found).unwrap(),
        json!({
            "id": "m-1", "source": "source", "subject": "subject", "key": "key",
            "headers": [["N", {"bytes_hex": "ff00"}]], "content_type": "application/json",
            "payload_bytes": message.incoming.payload.len(), "attempt": 3,
            "published_at": {"seconds": -1, "nanoseconds": 999_999_000},
        })
    );
}

#[tokio::test]
async fn reject_and_retry_carry_the_handlers_words() {
    let database = Database::new().await;
    let handler = handler(limits());
    let verdict = database
        .verdict(&handler, json!([{"reject": "no such account\0"}]))
        .await;
    assert_eq!(
        verdict,
        Verdict::Reject {
            reason: "no such account\\u{0}".into()
        }
    );

    let verdict = database
        .verdict(
            &handler,
            json!([{"retry": {"reason": "later", "delay_ms": 1500}}]),
        )
        .await;
    assert_eq!(
        verdict,
        Verdict::Retry {
            reason: "later".into(),
            delay: Some(Duration::from_millis(1500))
        }
    );

    let verdict = database
        .verdict(
            &handler,
            json!([{"retry": {"reason": {"repeat": "x", "times": 1_000_000}, "delay_ms": u64::MAX}}]),
        )
        .await;
    let Verdict::Retry { reason, delay } = verdict else {
        panic!("{:?}", verdict)
    };
    assert!(reason.len() < 20_000, "{}", reason.len());
    assert_eq!(delay, Some(hapax::handler::RETRY_DELAY_MAX));
}

#[tokio::test]
async fn a_trap_is_told_with_the_guests_words_and_the_transaction_comes_back() {
    let database = Database::new().await;
    let handler = handler(limits());
    let insert = json!({"execute": "INSERT INTO notes VALUES ('k', 'v')"});
    for (step, words) in [
        (
            json!({"panic": "the answer is missing"}),
            "the answer is missing",
        ),
        (json!({"unreachable": true}), "unreachable"),
        // Rust keeps a stack of its own in linear memory, which ends first.
        (json!({"recurse": true}), "out of bounds memory access"),
    ] {
        let called = database.call(&handler, json!([insert, step])).await;
        let Verdict::Trap { text } = &called.verdict else {
            panic!("{:?}", called.verdict)
        };
        assert!(text.contains(words) && text.contains("wasm trap"), "{text}");
        assert!(text.contains("\n  at "), "{text}");
        assert!(text.len() < 10_000, "{text}");
        // Alive, with what was written before the trap: it is the pipeline that rolls it back.
        let mut tx = called.tx.unwrap();
        assert_eq!(rows(&mut tx, "SELECT key FROM notes").await.len(), 1);
        assert!(tx.rollback().await.is_some());
    }
}

#[tokio::test]
async fn an_endless_loop_ends_at_the_cpu_limit_while_other_tasks_go_on() {
    let database = Database::new().await;
    let handler = handler(Limits {
        cpu: Duration::from_millis(300),
        ..limits()
    });
    // One thread for all: if the guest did not give way, the other task would stand still.
    let ticks = Arc::new(AtomicU64::new(0));
    let ticked = Arc::clone(&ticks);
    let other = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            ticked.fetch_add(1, Ordering::Relaxed);
        }
    });
    let tx = database.begin().await;
    let before = ticks.load(Ordering::Relaxed);
    let called = handler
        .call(tx, &message(json!([{"loop": true}])), None, 1)
        .await;
    let during = ticks.load(Ordering::Relaxed) - before;
    other.abort();
    let Verdict::Limit { limit: "cpu", text } = &called.verdict else {
        panic!("{:?}", called.verdict)
    };
    assert!(text.contains("300ms (`limits.cpu`)"), "{text}");
    assert!(called.cpu >= Duration::from_millis(300), "{:?}", called.cpu);
    assert!(called.cpu < Duration::from_secs(3), "{:?}", called.cpu);
    assert!(called.tx.is_some());
    assert!(during >= 10, "the other task ran {during} times");
}

#[tokio::test]
async fn waiting_for_the_database_costs_no_cpu() {
    let database = Database::new().await;
    let handler = handler(Limits {
        cpu: Duration::from_millis(300),
        ..limits()
    });
    // Counts up to 5 million in the database, which takes longer than the limit on the guest's own time.
    let slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000000) SELECT count(*) FROM n";
    let began = Instant::now();
    let called = database.call(&handler, json!([{"query": slow}])).await;
    assert_eq!(called.verdict, Verdict::Ok);
    assert!(called.cpu < Duration::from_millis(300), "{:?}", called.cpu);
    assert!(began.elapsed() > called.cpu);
}

#[tokio::test]
async fn a_memory_hog_meets_the_memory_limit() {
    let database = Database::new().await;
    let verdict = database
        .verdict(&handler(limits()), json!([{"alloc": 200 * MEBIBYTE}]))
        .await;
    let Verdict::Limit {
        limit: "memory",
        text,
    } = &verdict
    else {
        panic!("{:?}", verdict)
    };
    assert!(text.contains("64MiB (`limits.memory`)"), "{text}");
    // The same goes through with a greater limit.
    let handler = handler(Limits {
        memory_bytes: 250 * MEBIBYTE,
        ..limits()
    });
    let verdict = database
        .verdict(&handler, json!([{"alloc": 200 * MEBIBYTE}]))
        .await;
    assert_eq!(verdict, Verdict::Ok);
}

#[tokio::test]
async fn a_component_that_starts_above_its_memory_limit_is_refused() {
    let options = HandlerOptions {
        limits: Limits {
            memory_bytes: 64 << 10,
            ..limits()
        },
        ..handler(limits()).options().clone()
    };
    let error = Handler::new(script(), options).unwrap_err();
    assert!(
        error.problem.ends_with("`limits.memory` is 64KiB"),
        "{error:?}"
    );
}

#[tokio::test]
async fn every_call_has_a_fresh_instance() {
    let database = Database::new().await;
    let handler = handler(limits());
    // Memory that an earlier call had taken would add up beyond the limit.
    for _ in 0..5 {
        let verdict = database
            .verdict(&handler, json!([{"alloc": 40 * MEBIBYTE}]))
            .await;
        assert_eq!(verdict, Verdict::Ok);
    }
}

#[tokio::test]
async fn the_wall_limit_cuts_off_a_statement_and_closes_the_connection() {
    let database = Database::new().await;
    let handler = handler(Limits {
        time: Duration::from_millis(500),
        ..limits()
    });
    let endless =
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
    let began = Instant::now();
    let called = database
        .call(
            &handler,
            json!([{"execute": "INSERT INTO notes VALUES ('k', 'v')"}, {"query": endless}]),
        )
        .await;
    assert!(called.tx.is_none());
    let Verdict::Limit {
        limit: "time",
        text,
    } = &called.verdict
    else {
        panic!("{:?}", called.verdict)
    };
    assert_eq!(text, "the call took longer than 500ms (`limits.time`)");
    assert!(began.elapsed() < Duration::from_secs(10));
    // The connection is gone with its write lock and with what it wrote, although its statement would never end.
    let began = Instant::now();
    let mut tx = database.begin().await;
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(rows(&mut tx, "SELECT key FROM notes").await.is_empty());
}

#[tokio::test]
async fn the_wall_limit_cuts_off_a_loop_too() {
    let database = Database::new().await;
    let handler = handler(Limits {
        time: Duration::from_millis(200),
        ..limits()
    });
    let called = database.call(&handler, json!([{"loop": true}])).await;
    assert!(
        matches!(called.verdict, Verdict::Limit { limit: "time", .. }),
        "{:?}",
        called.verdict
    );
    assert!(called.tx.is_none());
    database.begin().await;
}

#[tokio::test]
async fn published_messages_are_the_same_in_every_run() {
    let database = Database::new().await;
    let handler = handler(limits());
    let steps = json!([
        {"publish": {"subject": "a", "payload": "1", "key": "k", "headers": [["h", "v"]], "content_type": "text/plain",
                     "target": "t", "not_before": {"seconds": 1, "nanoseconds": 2}},
         "record": {"table": "notes", "key": "first"}},
        {"publish": {"subject": "a", "payload": "1"}},
    ]);
    let first = database.call(&handler, steps.clone()).await;
    assert_eq!(first.verdict, Verdict::Ok);
    drop(first.tx);
    let second = database.call(&handler, steps).await;
    assert_eq!(first.published, second.published);
    let [a, b] = &second.published[..] else {
        panic!("{:?}", second.published)
    };
    assert_eq!((a.ordinal, b.ordinal), (0, 1));
    assert_ne!(a.id, b.id);
    assert_eq!(a.id.len(), 32);
    assert_eq!((a.subject.as_str(), &a.payload[..]), ("a", &b"1"[..]));
    assert_eq!(a.key.as_deref(), Some("k"));
    assert_eq!(a.target.as_deref(), Some("t"));
    assert_eq!(a.headers[0].name, "h");
    assert_eq!(a.not_before.map(|moment| moment.nanoseconds), Some(2));
    // The guest was told the same id.
    let told = rows(&mut second.tx.unwrap(), "SELECT value FROM notes").await;
    assert_eq!(told, [[text(&json!({"text": a.id}).to_string())]]);
}

#[tokio::test]
async fn what_a_failed_call_published_does_not_exist() {
    let database = Database::new().await;
    let called = database
        .call(
            &handler(limits()),
            json!([{"publish": {"subject": "a"}}, {"reject": "no"}]),
        )
        .await;
    assert!(called.published.is_empty());
}

/// Each limit that the host counts has an error of its own, and leaves the transaction as it was: the handler may go on.
#[tokio::test]
async fn each_limit_of_the_host_has_its_own_error() {
    let database = Database::new().await;
    let few = handler(Limits {
        statements: 4,
        rows: 2,
        result_bytes: 1_000,
        savepoints: 1,
        outbox: 2,
        log_bytes: 10,
        ..limits()
    });
    let insert = "INSERT INTO notes VALUES ($1, 'v')";
    let key = |key: &str| json!([{ "text": key }]);
    let called = database
        .call(
            &few,
            json!([
                {"query": "SELECT 1 UNION SELECT 2"},
                {"savepoint": "release", "steps": [
                    {"begin_savepoint": "inner", "expect_error": "limit.savepoints"},
                ]},
                {"execute_many": insert, "rows": [key("a"), key("b"), key("c"), key("d")], "expect_error": "limit.statements"},
                {"execute_many": insert, "rows": [key("a"), key("b"), key("c")], "expect_counts": [1, 1, 1]},
                {"execute": insert, "params": key("e"), "expect_error": "limit.statements"},
                {"query": "SELECT 1", "expect_error": "limit.statements"},
                {"repeat": 2, "steps": [{"publish": {"subject": "a"}}]},
                {"publish": {"subject": "a"}, "expect_error": "limit.outbox"},
                {"log": {"message": "12345"}},
                {"log": {"message": "123456"}},
            ]),
        )
        .await;
    assert_eq!(called.verdict, Verdict::Ok);
    assert_eq!(called.published.len(), 2);
    assert_eq!((called.log.lines().len(), called.log.dropped()), (1, 1));
    let mut tx = called.tx.unwrap();
    assert_eq!(rows(&mut tx, "SELECT key FROM notes").await.len(), 3);
    assert!(tx.rollback().await.is_some());

    for (query, code) in [
        ("SELECT 1 UNION SELECT 2 UNION SELECT 3", "limit.rows"),
        ("SELECT hex(zeroblob(1000))", "limit.bytes"),
    ] {
        let verdict = database
            .verdict(&few, json!([{"query": query, "expect_error": code}]))
            .await;
        assert_eq!(verdict, Verdict::Ok, "{query}");
    }
}

#[tokio::test]
async fn what_is_handed_over_in_one_call_is_bounded() {
    let database = Database::new().await;
    let narrow = handler(Limits {
        call_bytes: 100_000,
        ..limits()
    });
    let insert = |times: usize| {
        json!([{"execute": "INSERT INTO notes VALUES ('k', $1)",
            "params": [{"long_text": {"repeat": "x", "times": times}}]}])
    };
    assert_eq!(database.verdict(&narrow, insert(90_000)).await, Verdict::Ok);
    let verdict = database.verdict(&narrow, insert(110_000)).await;
    assert!(
        matches!(&verdict, Verdict::Limit { limit: "call", text } if text.contains("(`limits.call`)")),
        "{verdict:?}"
    );
}

#[tokio::test]
async fn the_engine_keeps_its_limits() {
    Runtime::new(&RuntimeOptions {
        calls_max: 1,
        memory_max_bytes: MEBIBYTE,
    })
    .unwrap()
    .self_check()
    .await
    .unwrap();
}

#[tokio::test]
async fn a_flood_of_messages_and_lines_is_bounded() {
    let database = Database::new().await;
    let called = database
        .call(
            &handler(limits()),
            json!([
                {"publish": {"subject": ""}, "expect_error": "invalid.subject"},
                {"repeat": Limits::DEFAULT.outbox, "steps": [{"publish": {"subject": "a"}}]},
                {"publish": {"subject": "a"}, "expect_error": "limit.outbox"},
                {"repeat": 2 * LOG_LINES_MAX, "steps": [{"log": {"message": "line"}}]},
            ]),
        )
        .await;
    assert_eq!(called.verdict, Verdict::Ok);
    assert_eq!(called.published.len(), Limits::DEFAULT.outbox as usize);
    assert_eq!(called.log.lines().len(), LOG_LINES_MAX);
    assert_eq!(called.log.dropped() as usize, LOG_LINES_MAX);
}

#[tokio::test]
async fn values_go_to_the_database_and_back() {
    let database = Database::new().await;
    let called = database
        .call(
            &handler(limits()),
            json!([
                {"execute": "INSERT INTO vals VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                 "params": [{"null": true}, {"int64": i64::MIN}, {"float64": 0.1}, {"text": "ä\n"}, {"bytes_hex": "00ff"},
                            {"boolean": true}, {"decimal": "123456789012345678901234567890.5"},
                            {"uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}, {"json": "{\"a\": [1]}"},
                            {"instant": {"seconds": 0, "nanoseconds": 0}}]},
                {"query": "SELECT a, b, c, d, e, g, h, i FROM vals",
                 "expect_columns": ["a", "b", "c", "d", "e", "g", "h", "i"],
                 "expect_rows": [[{"null": true}, {"int64": i64::MIN}, {"float64": 0.1}, {"text": "ä\n"}, {"bytes_hex": "00ff"},
                                  {"text": "123456789012345678901234567890.5"},
                                  {"text": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}, {"text": "{\"a\": [1]}"}]]},
                {"query": "SELECT f, j FROM vals", "expect_count": 1},
                {"query": "SELECT a FROM vals WHERE 1 = 0", "expect_columns": ["a"], "expect_rows": []},
            ]),
        )
        .await;
    assert_eq!(called.verdict, Verdict::Ok);
}

#[tokio::test]
async fn what_does_not_fit_says_so_and_touches_nothing() {
    let database = Database::new().await;
    let called = database
        .call(
            &handler(limits()),
            json!([
                {"query": "SELECT $1", "params": [{"date": {"year": 2024, "month": 1, "day": 32}}], "expect_error": "data.invalid"},
                {"query": "SELECT $1, $2", "params": [{"int64": 1}, {"text_array": ["a"]}],
                 "expect_error": "type.mismatch", "record": {"table": "notes", "key": "error"}},
                {"query": "SELECT $1", "params": [{"undecoded": {"type_name": "x", "bytes_hex": "00"}}], "expect_error": "invalid.param"},
                {"query": "SELECT $1", "params": [{"instant": {"seconds": 1, "nanoseconds": 1_000_000_000}}], "expect_error": "invalid.param"},
                {"cursor": "SELECT 1", "fetch": 0, "expect_error": "invalid.max-rows"},
                // None of these has touched the transaction.
                {"execute": "INSERT INTO notes VALUES ('k', 'v')", "expect_count": 1},
            ]),
        )
        .await;
    assert_eq!(called.verdict, Verdict::Ok);
    let found = rows(
        &mut called.tx.unwrap(),
        "SELECT value FROM notes WHERE key = 'error'",
    )
    .await;
    let Value::Text(error) = &found[0][0] else {
        panic!("{found:?}")
    };
    let error: Json = serde_json::from_str(error).unwrap();
    assert_eq!(error["error"]["param"], 2);
    assert_eq!(
        error["error"]["message"],
        "parameter $2: SQLite has no arrays, and this is a text-array"
    );
}

#[tokio::test]
async fn results_are_bounded_in_rows_and_bytes() {
    let database = Database::new().await;
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 101) SELECT i FROM n";
    let verdict = database
        .verdict(
            &handler(limits()),
            json!([{"query": many, "expect_error": "limit.rows"}]),
        )
        .await;
    assert_eq!(verdict, Verdict::Ok);
    let verdict = database
        .verdict(
            &handler(limits()),
            json!([{"query": "SELECT zeroblob(70000000)", "expect_error": "limit.bytes"}]),
        )
        .await;
    assert_eq!(verdict, Verdict::Ok);
}

#[tokio::test]
async fn more_than_a_host_call_may_carry_by_default() {
    let database = Database::new().await;
    let handler = handler(Limits {
        memory_bytes: 256 * MEBIBYTE,
        ..limits()
    });
    let called = database
        .call(
            &handler,
            json!([{"query": "SELECT $1", "params": [{"long_text": {"repeat": "x", "times": 17 * MEBIBYTE}}]}]),
        )
        .await;
    let Verdict::Limit {
        limit: "call",
        text,
    } = &called.verdict
    else {
        panic!("{:?}", called.verdict)
    };
    assert!(text.contains("16MiB to the host in one call"), "{text}");
    assert!(called.tx.is_some());
}

#[tokio::test]
async fn the_handler_reads_its_configuration() {
    let database = Database::new().await;
    let called = database
        .call(
            &handler(limits()),
            json!([
                {"config": "currency", "expect_text": "EUR"},
                {"config": "missing", "record": {"table": "notes", "key": "missing"}},
                {"config_names": true, "record": {"table": "notes", "key": "names"}},
            ]),
        )
        .await;
    assert_eq!(called.verdict, Verdict::Ok);
    assert_eq!(
        rows(
            &mut called.tx.unwrap(),
            "SELECT value FROM notes ORDER BY key"
        )
        .await,
        [
            [text("{\"text\":null}")],
            [text("{\"names\":[\"currency\",\"rate\"]}")]
        ]
    );
}

/// A place for log lines that a test can look at.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn lines_of_a_run_that_was_rolled_back_are_debug() {
    let database = Database::new().await;
    let called = database
        .call(
            &handler(limits()),
            json!([{"log": {"level": "warn", "message": "careful\n", "fields": {"account": "a\u{1b}"}}}, {"log": {"message": "plain"}}]),
        )
        .await;
    let lines = Lines::default();
    let written = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || written.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        called.log.emit_committed();
        called.log.emit_rolled_back();
    });
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let found: Vec<(String, Json)> = text
        .lines()
        .map(|line| {
            let line: Json = serde_json::from_str(line).unwrap();
            (
                line["level"].as_str().unwrap().to_owned(),
                line["fields"].clone(),
            )
        })
        .collect();
    let careful = json!({"handler": "script", "message_id": "m-1", "subject": "subject", "attempt": 1, "fields": "account=a\\u{1b}", "message": "careful\\n"});
    let plain = json!({"handler": "script", "message_id": "m-1", "subject": "subject", "attempt": 1, "message": "plain"});
    assert_eq!(
        found,
        [
            ("WARN".to_owned(), careful.clone()),
            ("INFO".to_owned(), plain.clone()),
            ("DEBUG".to_owned(), careful),
            ("DEBUG".to_owned(), plain),
        ]
    );
}

#[tokio::test]
async fn more_calls_than_instances_wait_their_turn() {
    let handler = handler(limits());
    let calls = (0..12).map(|_| {
        let handler = handler.clone();
        tokio::spawn(async move {
            let database = Database::new().await;
            let called = database
                .call(
                    &handler,
                    json!([{"busy": 1_000_000}, {"execute": "INSERT INTO notes VALUES ('k', 'v')"}]),
                )
                .await;
            assert_eq!(called.verdict, Verdict::Ok);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

#[tokio::test]
async fn a_payload_that_does_not_fit_the_memory_meets_the_limit() {
    let database = Database::new().await;
    let mut message = message(json!([]));
    Arc::make_mut(&mut message.incoming).payload = vec![b' '; 65 * MEBIBYTE].into();
    let called = handler(limits())
        .call(database.begin().await, &message, None, 1)
        .await;
    assert!(
        matches!(
            called.verdict,
            Verdict::Limit {
                limit: "memory",
                ..
            }
        ),
        "{:?}",
        called.verdict
    );
}
