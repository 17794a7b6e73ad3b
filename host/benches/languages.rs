//! What one handler costs in each language: `credit-account`, as `cargo xtask languages` builds it. Prints a table.
//!
//! Each row is a component on an engine of its own, as a host makes it. A call is what a lane pays for a message: a fresh instance, the call, and
//! the instance's end, on one thread. `no SQL` is a message that is rejected before any statement; `one UPDATE` goes to SQLite, in a transaction
//! that stays open. Both are medians; the first call of a new engine stands beside them, since its memory is new, too. The last line is the same
//! UPDATE without any handler.

#![expect(clippy::unwrap_used, reason = "a measurement may stop where it stands")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax::handler::{
    Cache, Called, Handler, HandlerOptions, Limits, Runtime, RuntimeOptions, Verdict,
};
use hapax::message::{Incoming, Message, MessageId, Position};
use hapax::store::{HandlerMigration, SessionOptions, Store, Tx, Value};

/// Calls whose median counts.
const CALLS: usize = 2_000;
/// Calls before them.
const WARM_UP: usize = 100;
/// The limit that the default configuration gives, and that the pool is made for.
const MEMORY_BYTES: usize = 64 << 20;

/// Each language with its component, below `examples`.
const LANGUAGES: [(&str, &str); 6] = [
    ("Rust", "credit-account/rust/credit-account.wasm"),
    ("C", "credit-account/c/credit-account.wasm"),
    ("Go", "credit-account/go/credit-account.wasm"),
    ("JavaScript", "credit-account/js/credit-account.wasm"),
    ("TypeScript", "credit-account/ts/credit-account.wasm"),
    ("Python", "credit-account/python/credit-account.wasm"),
];
/// What each of them sends for the message.
const UPDATE: &str = "UPDATE accounts SET balance = balance + $1 WHERE id = $2";

struct Measured {
    bytes: usize,
    compile: Duration,
    load: Duration,
    first: Duration,
    rejected: Duration,
    /// Of it, the part within the instance: its making and the call.
    rejected_cpu: Duration,
    updated: Duration,
    updated_cpu: Duration,
    memory_start: u64,
    memory_end: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let only: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let mut text = String::from(
        "| language | component | cold compile | warm load | first call | call, no SQL | of it instance and code | call, one UPDATE | of it instance and code | memory at start | and at the end |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let mut missing = Vec::new();
    for (language, component) in LANGUAGES {
        if !only.is_empty() && !only.iter().any(|word| language.eq_ignore_ascii_case(word)) {
            continue;
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../examples")
            .join(component);
        if !path.exists() {
            missing.push(language);
            continue;
        }
        let measured = measure(&path).await;
        text.push_str(&row(language, &measured));
    }
    print(&text);
    let alone = update_alone().await;
    print(&format!("\nthe UPDATE alone: {}\n", time(alone)));
    if !missing.is_empty() {
        print(&format!(
            "\nnot built here: {}; `cargo xtask guests` says why\n",
            missing.join(", ")
        ));
    }
}

fn print(text: &str) {
    use std::io::Write as _;
    std::io::stdout().write_all(text.as_bytes()).unwrap();
}

async fn measure(path: &PathBuf) -> Measured {
    let bytes = std::fs::read(path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cache = Arc::new(Cache::open(folder.path().join("cache")).unwrap());
    let runtime = || {
        let options = RuntimeOptions {
            calls_max: 2,
            memory_max_bytes: MEMORY_BYTES,
        };
        Runtime::with_cache(&options, Some(Arc::clone(&cache))).unwrap()
    };
    // The first puts it into the cache.
    let cold = runtime();
    let began = Instant::now();
    cold.load_blocking("cold", &bytes).unwrap();
    let compile = began.elapsed();
    drop(cold);
    let warm = runtime();
    let began = Instant::now();
    let component = warm.load_blocking("warm", &bytes).unwrap();
    let load = began.elapsed();
    let memory_start = component.info().memory_bytes;
    let options = HandlerOptions {
        name: "credit".into(),
        consumer: "credit".into(),
        limits: Limits {
            statements: u64::MAX,
            ..Limits::DEFAULT
        },
        config: Default::default(),
        targets: Default::default(),
    };
    let handler = Handler::new(component, options).unwrap();

    let mut tx = Some(begin(folder.path()).await);
    let credit = message(br#"{"account":"a1","amount":1}"#);
    let broken = message(b"not JSON");
    let (first, called) = timed(&handler, &mut tx, &credit).await;
    assert_eq!(called.verdict, Verdict::Ok);
    let memory_end = called.memory_bytes;
    let (updated, updated_cpu) = median(&handler, &mut tx, &credit, |verdict| {
        *verdict == Verdict::Ok
    })
    .await;
    let (rejected, rejected_cpu) = median(&handler, &mut tx, &broken, |verdict| {
        matches!(verdict, Verdict::Reject { .. })
    })
    .await;
    tx.unwrap().rollback().await;
    Measured {
        bytes: bytes.len(),
        compile,
        load,
        first,
        rejected,
        rejected_cpu,
        updated,
        updated_cpu,
        memory_start,
        memory_end,
    }
}

async fn begin(folder: &Path) -> Tx {
    let url = format!("sqlite:{}", folder.join("bench.db").display());
    let options = SessionOptions {
        purpose: "bench".into(),
        statement_timeout: None,
        lock_timeout: Duration::from_secs(10),
        idle_in_transaction: Duration::from_secs(3_600),
    };
    let mut connection = Store::open(&url).unwrap().connect(&options).await.unwrap();
    connection.migrate().await.unwrap();
    let tables = HandlerMigration {
        version: 1,
        file: "0001_accounts.sql".into(),
        sql: "CREATE TABLE accounts (id TEXT NOT NULL PRIMARY KEY, balance INTEGER NOT NULL) STRICT; INSERT INTO accounts VALUES ('a1', 0)".into(),
    };
    connection
        .apply_handler_migrations("credit", &[tables])
        .await
        .unwrap();
    Tx::begin(connection).await.unwrap()
}

fn message(payload: &'static [u8]) -> Message {
    Message {
        id: MessageId::new("m-1").unwrap(),
        source: "payments".into(),
        incoming: Incoming {
            subject: "payments".into(),
            headers: Vec::new(),
            content_type: None,
            payload: Bytes::from_static(payload),
            published_at: None,
            position: Position("1".into()),
            queue_id: None,
        }
        .into(),
    }
}

/// Calls it once, and puts the transaction back.
async fn timed(handler: &Handler, tx: &mut Option<Tx>, message: &Message) -> (Duration, Called) {
    let open = tx.take().unwrap();
    let began = Instant::now();
    let mut called = handler.call(open, message, None, 1).await;
    let took = began.elapsed();
    *tx = called.tx.take();
    (took, called)
}

/// Returns the median of the statement without a handler.
async fn update_alone() -> Duration {
    let folder = tempfile::tempdir().unwrap();
    let mut tx = begin(folder.path()).await;
    let parameters = [Value::Int64(1), Value::Text("a1".into())];
    let mut all = Vec::with_capacity(CALLS);
    for index in 0..WARM_UP + CALLS {
        let began = Instant::now();
        assert_eq!(tx.execute(UPDATE, &parameters).await.unwrap(), 1);
        if index >= WARM_UP {
            all.push(began.elapsed());
        }
    }
    tx.rollback().await;
    all.sort_unstable();
    all[CALLS / 2]
}

/// Returns the median of a call, and of its part within the instance.
async fn median(
    handler: &Handler,
    tx: &mut Option<Tx>,
    message: &Message,
    is_expected: impl Fn(&Verdict) -> bool,
) -> (Duration, Duration) {
    let mut all = Vec::with_capacity(CALLS);
    let mut within = Vec::with_capacity(CALLS);
    for index in 0..WARM_UP + CALLS {
        let (took, called) = timed(handler, tx, message).await;
        assert!(is_expected(&called.verdict), "{:?}", called.verdict);
        if index >= WARM_UP {
            all.push(took);
            within.push(called.cpu);
        }
    }
    all.sort_unstable();
    within.sort_unstable();
    (all[CALLS / 2], within[CALLS / 2])
}

fn row(language: &str, measured: &Measured) -> String {
    let mebibytes = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
    format!(
        "| {language} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
        size(measured.bytes),
        time(measured.compile),
        time(measured.load),
        time(measured.first),
        time(measured.rejected),
        time(measured.rejected_cpu),
        time(measured.updated),
        time(measured.updated_cpu),
        mebibytes(measured.memory_start as f64),
        mebibytes(measured.memory_end as f64),
    )
}

fn size(bytes: usize) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1_000)),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

fn time(time: Duration) -> String {
    let microseconds = time.as_secs_f64() * 1e6;
    match microseconds {
        ..100.0 => format!("{microseconds:.1} us"),
        ..1_000.0 => format!("{microseconds:.0} us"),
        ..1_000_000.0 => format!("{:.2} ms", microseconds / 1e3),
        _ => format!("{:.2} s", microseconds / 1e6),
    }
}
