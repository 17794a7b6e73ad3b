//! Answers that are given ahead of the database change nothing: what a handler reads, decides, writes, publishes, and whether its message
//! is done or dead, is the same as with every statement awaited.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use hapax::store::StoreKind;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use support::http::Http;
use support::scene::{Scene, SourceSort, TestMessage, script};

const TABLES: &str = "
    CREATE TABLE accounts (id bigint PRIMARY KEY, branch bigint NOT NULL, balance bigint NOT NULL CHECK (balance > -1000));
    INSERT INTO accounts SELECT n, n % 7, 0 FROM generate_series(1, 40) AS n;
    CREATE TABLE entries (id bigserial, account bigint NOT NULL, amount bigint NOT NULL, note text UNIQUE);
    CREATE TABLE results (key text NOT NULL, value text NOT NULL);";

const HANDLER: &str = "lanes = 1\nretry = { attempts = 1 }";

/// What a run leaves behind, but for times and numbers that count transactions.
async fn left(scene: &Scene) -> Vec<Option<String>> {
    let letters = scene.store.table("dead_letters");
    let claims = scene.store.table("processed_messages");
    let outbox = scene.store.table("outbox");
    let all = [
        "SELECT string_agg(a::text, E'\\n' ORDER BY id) FROM accounts a".to_owned(),
        "SELECT string_agg(concat_ws(',', account, amount, note), E'\\n' ORDER BY account, amount, note) FROM entries"
            .to_owned(),
        "SELECT string_agg(concat_ws('=', key, value), E'\\n' ORDER BY key, value) FROM results".to_owned(),
        format!("SELECT string_agg(concat_ws(' ', message_id, class, reason), E'\\n' ORDER BY message_id) FROM {letters}"),
        format!("SELECT string_agg(concat_ws(' ', message_id, outcome), E'\\n' ORDER BY message_id) FROM {claims}"),
        format!("SELECT string_agg(concat_ws(' ', id, message_id, ordinal, subject), E'\\n' ORDER BY id) FROM {outbox}"),
    ];
    let mut left = Vec::new();
    for sql in all {
        left.push(scene.store.text(&sql).await);
    }
    left
}

/// What a host's counters say.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// How many answers were given ahead, and how many of them held and did not.
    promises: [u64; 3],
    /// How many runs were early ones that served, and that did not.
    early: [u64; 2],
    rolled_back: u64,
}

impl Counted {
    fn of(admin: &Http) -> Self {
        let text = admin.get("/metrics").text();
        let sum = |start: &str| {
            text.lines()
                .filter(|line| line.starts_with(start))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum::<f64>() as u64
        };
        let ends =
            |name: &str, end: &str| sum(&format!("{name}{{handler=\"subject\",end=\"{end}\"}}"));
        Self {
            promises: ["promised", "kept", "broken"]
                .map(|end| ends("hapax_statements_ahead_total", end)),
            early: ["used", "unused"].map(|end| ends("hapax_early_runs_total", end)),
            rolled_back: sum("hapax_batches_rolled_back_total"),
        }
    }
}

/// Runs the messages, and returns what is left and what was counted.
async fn run(
    messages: &[TestMessage],
    sql: &str,
    handler: &str,
    tables: &str,
) -> (Vec<Option<String>>, Counted) {
    let handler = format!("{HANDLER}\nsql = \"{sql}\"\n{handler}");
    let scene = scene(&handler, tables).await;
    scene.publish(messages).await;
    let counted = run_all(&scene).await;
    (left(&scene).await, counted)
}

async fn scene(handler: &str, tables: &str) -> Scene {
    let (kind, source) = (StoreKind::Postgres, SourceSort::Queue);
    Scene::new(kind, source, &script(), tables, handler).await
}

/// Runs a host until nothing waits.
async fn run_all(scene: &Scene) -> Counted {
    let mut host = scene.host(&[], &[("HAPAX_ADMIN__LISTEN", "127.0.0.1:0")]);
    let admin = Http::of(&mut host);
    scene.wait_until_nothing_pends().await;
    let counted = Counted::of(&admin);
    host.terminate();
    host.wait_well();
    counted
}

fn assert_equal(ahead: &[Option<String>], awaited: &[Option<String>]) {
    for (ahead, awaited) in ahead.iter().zip(awaited) {
        let lines = |text: &Option<String>| -> Vec<String> {
            text.iter()
                .flat_map(|text| text.lines())
                .map(str::to_owned)
                .collect()
        };
        let (ahead, awaited) = (lines(ahead), lines(awaited));
        for (ahead, awaited) in ahead.iter().zip(&awaited) {
            assert_eq!(ahead, awaited);
        }
        assert_eq!(ahead.len(), awaited.len());
    }
}

fn update(account: i64, amount: i64) -> Value {
    json!({
        "execute": "UPDATE accounts SET balance = balance + $1 WHERE id = $2",
        "params": [{ "int64": amount }, { "int64": account }],
        "expect_count": 1,
    })
}

fn insert(account: i64, amount: i64, note: Option<&str>) -> Value {
    json!({
        "execute": "INSERT INTO entries (account, amount, note) VALUES ($1, $2, $3)",
        "params": [
            { "int64": account },
            { "int64": amount },
            note.map_or(json!({ "null": true }), |note| json!({ "text": note })),
        ],
    })
}

/// The key of a recorded result: none is written twice.
fn recorded(mut step: Value, key: &str) -> Value {
    step["record"] = json!({ "table": "results", "key": key });
    step
}

/// A message whose handler acts on what it is told: all but twelve of so many are alike.
fn message(n: usize, twelve_of: u32, random: &mut rand::rngs::StdRng) -> TestMessage {
    let account = random.random_range(1..=40);
    let amount = random.random_range(1..100);
    let (mut first, second) = (update(account, amount), insert(account, amount, None));
    let steps = match random.random_range(0..twelve_of) {
        // No row is updated: the handler rejects.
        0 => vec![update(1_000, amount), second],
        // It goes another way by the count, which is 0, 1 or several.
        1 | 2 => {
            first["expect_count"] = Value::Null;
            first["params"][1] = json!({ "int64": random.random_range(30..50) });
            vec![recorded(first, &format!("count {n}")), second]
        }
        3 => {
            let branch = json!({
                "execute": "UPDATE accounts SET balance = balance + $1 WHERE branch = $2",
                "params": [{ "int64": 1 }, { "int64": random.random_range(0..9) }],
            });
            vec![first, recorded(branch, &format!("branch {n}")), second]
        }
        // A statement fails in the middle.
        4 => vec![first, insert(account, amount, Some("once")), second],
        // It swallows the error.
        5 => {
            let mut taken = insert(account, amount, Some("once"));
            taken["swallow"] = json!(true);
            vec![first, taken, second]
        }
        // The same in a savepoint, where that is allowed.
        6 => {
            let mut taken = insert(account, amount, Some("twice"));
            taken["swallow"] = json!(true);
            vec![
                first,
                json!({ "savepoint": "rollback", "steps": [taken] }),
                second,
            ]
        }
        // It reads what it wrote.
        7 => vec![
            first,
            recorded(
                json!({
                    "query": "SELECT balance FROM accounts WHERE id = $1",
                    "params": [{ "int64": account }],
                }),
                &format!("balance {n}"),
            ),
            second,
        ],
        // It fails after it was told good things, or publishes and ends well.
        8 => vec![first, second, json!({ "reject": format!("no {n}") })],
        9 => vec![
            first,
            json!({ "publish": { "subject": format!("credited.{n}"), "payload": "x" } }),
            second,
        ],
        // It rejects because of a count that is not the real one.
        10 => {
            first = update(1_000, amount);
            first["expect_count"] = json!(0);
            vec![first, second]
        }
        // Its query fails behind statements that were answered.
        11 => vec![
            first,
            second,
            json!({
                "query": "SELECT 1 / (balance - balance) FROM accounts WHERE id = $1",
                "params": [{ "int64": account }],
            }),
        ],
        _ => vec![first, second],
    };
    TestMessage::new(format!("m-{n:05}"), &json!({ "steps": steps }))
}

/// 10,000 messages, a tenth of which do what running ahead could get wrong.
#[tokio::test]
async fn ten_thousand_messages_end_as_if_awaited() {
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    let messages: Vec<TestMessage> = (0..10_000).map(|n| message(n, 100, &mut random)).collect();
    let (ahead, counted) = run(&messages, "ahead", "", TABLES).await;
    let (awaited, counted_awaited) = run(&messages, "await", "", TABLES).await;
    assert_equal(&ahead, &awaited);
    eprintln!("{counted:?}");
    assert_eq!(counted_awaited.promises, [0; 3], "awaited");
    assert_eq!(counted_awaited.early, [0; 2], "awaited");
    let [_, kept, broken] = counted.promises;
    assert!(kept > 2_000 && broken > 10, "{counted:?}");
}

/// Where few messages do so, most run before their transaction.
#[tokio::test]
async fn early_runs_end_as_if_awaited() {
    let mut random = rand::rngs::StdRng::seed_from_u64(8);
    let messages: Vec<TestMessage> = (0..5_000).map(|n| message(n, 2_000, &mut random)).collect();
    let (ahead, counted) = run(&messages, "ahead", "", TABLES).await;
    let (awaited, _) = run(&messages, "await", "", TABLES).await;
    assert_equal(&ahead, &awaited);
    eprintln!("{counted:?}");
    assert!(
        counted.early[0] > 1_500 && counted.promises[2] > 2,
        "{counted:?}"
    );
}

/// One random statement on random rows, of those kinds that go together with what is answered ahead.
fn random_step(random: &mut rand::rngs::StdRng, depth: usize, key: &str) -> Value {
    let account = random.random_range(1..=12);
    let amount = random.random_range(-30..30);
    let params = json!([{ "int64": amount }, { "int64": account }]);
    let step = match random.random_range(0..13) {
        0..=3 => json!({
            "execute": "UPDATE accounts SET balance = balance + $1 WHERE id = $2",
            "params": params,
        }),
        4 => json!({
            "execute": "UPDATE accounts SET balance = balance - 1 WHERE branch = $1",
            "params": [{ "int64": random.random_range(0..8) }],
        }),
        5 => insert(account, amount, None),
        6 => insert(
            account,
            amount,
            Some(&format!("n {}", random.random_range(0..60))),
        ),
        7 => json!({
            "execute": "DELETE FROM entries WHERE account = $1 AND amount > $2",
            "params": [{ "int64": account }, { "int64": amount }],
        }),
        8 => {
            json!({ "query": "SELECT count(*), sum(balance) FROM accounts WHERE balance > $1", "params": [{ "int64": amount }] })
        }
        9 => json!({
            "execute_many": "UPDATE accounts SET balance = balance + $1 WHERE id = $2",
            "rows": [params, [{ "int64": 1 }, { "int64": account + 3 }]],
        }),
        10 => json!({
            "cursor": "SELECT id, balance FROM accounts WHERE balance > $1 ORDER BY id",
            "params": [{ "int64": amount }], "fetch": 3,
        }),
        11 => json!({
            "query": "INSERT INTO entries (account, amount) VALUES ($1, 1) RETURNING amount",
            "params": [{ "int64": account }],
        }),
        _ if depth < 2 => {
            let end = ["release", "rollback", "drop"][random.random_range(0..3)];
            let steps: Vec<Value> = (0..random.random_range(1..4))
                .map(|part| random_step(random, depth + 1, &format!("{key}.{part}")))
                .collect();
            return json!({ "savepoint": end, "steps": steps });
        }
        _ => json!({ "log": { "message": "still here" } }),
    };
    let mut step = step;
    // Errors are swallowed now and then; results are kept now and then, so that they are compared.
    if random.random_bool(0.2) && step.get("log").is_none() {
        step["swallow"] = json!(true);
    }
    if random.random_bool(0.2) && step.get("log").is_none() {
        step = recorded(step, key);
    }
    step
}

/// Most messages repeat one shape, so that its counts become known; then the shape changes.
fn random_messages(seed: u64, count: usize) -> Vec<TestMessage> {
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let mut shape: Vec<Value> = Vec::new();
    (0..count)
        .map(|n| {
            if n % 60 == 0 || random.random_bool(0.05) {
                shape = (0..random.random_range(1..7))
                    .map(|part| random_step(&mut random, 0, &format!("{n}.{part}")))
                    .collect();
            }
            TestMessage::new(format!("m-{n:05}"), &json!({ "steps": shape }))
        })
        .collect()
}

async fn random_handlers(seed: u64, messages: usize, batch_max: usize) {
    eprintln!("seed {seed}, batch.max {batch_max}");
    let messages = random_messages(seed, messages);
    let handler = format!("batch = {{ max = {batch_max} }}");
    let (ahead, counted) = run(&messages, "ahead", &handler, TABLES).await;
    let (awaited, _) = run(&messages, "await", &handler, TABLES).await;
    assert_equal(&ahead, &awaited);
    eprintln!("{counted:?}");
    assert!(counted.promises[1] > 0, "nothing was answered ahead");
}

/// How many messages each run of random handlers has.
fn size() -> usize {
    match std::env::var_os("HAPAX_TEST_FULL") {
        Some(_) => 20_000,
        None => 600,
    }
}

#[tokio::test]
async fn random_handlers_one_at_a_time() {
    random_handlers(11, size(), 1).await;
}

#[tokio::test]
async fn random_handlers_in_small_batches() {
    random_handlers(12, size(), 7).await;
}

#[tokio::test]
async fn random_handlers_in_large_batches() {
    random_handlers(13, size(), 500).await;
}

/// What ran before its transaction takes effect once, or not at all: duplicates, what fails before or after its statements, what is logged.
#[tokio::test]
async fn early_runs_that_are_not_needed_leave_nothing() {
    let handler = "lanes = 2\nretry = { attempts = 1 }";
    let scene = scene(handler, TABLES).await;
    let mut messages = Vec::new();
    let mut dead = 0;
    for n in 0..2_000_i64 {
        let mut steps = vec![
            json!({ "log": { "message": format!("line {n}") } }),
            update(n % 40 + 1, 1),
            insert(n % 40 + 1, n, None),
            json!({ "publish": { "subject": "credited", "payload": "x" } }),
        ];
        match n % 100 {
            50 => steps.insert(1, json!({ "reject": "at once" })),
            80 => steps.push(json!({ "reject": "at the end" })),
            _ => {}
        }
        dead += i64::from(n % 100 == 50 || n % 100 == 80);
        // Every fifth comes twice, with some others between.
        for _ in 0..1 + usize::from(n % 5 == 1) {
            let id = format!("m-{n:05}");
            messages.push(TestMessage::new(id, &json!({ "steps": steps })));
        }
        if n % 5 == 4 {
            let place = messages.len() - 6;
            messages[place..].rotate_left(2);
        }
    }
    scene.publish(&messages).await;
    let counted = run_all(&scene).await;
    eprintln!("{counted:?}");
    let done = 2_000 - dead;
    let number = async |sql: &str| scene.store.number(sql).await;
    assert_eq!(
        number("SELECT sum(balance)::bigint FROM accounts").await,
        done
    );
    assert_eq!(number("SELECT count(*) FROM entries").await, done);
    assert_eq!(
        number("SELECT count(DISTINCT amount) FROM entries").await,
        done
    );
    assert_eq!(scene.count("outbox", "1 = 1").await, done);
    assert_eq!(
        scene.count("dead_letters", "class = 'rejected'").await,
        dead
    );
    assert_eq!(
        scene.count("processed_messages", "outcome = 'done'").await,
        done
    );
    let [used, unused] = counted.early;
    assert!(used > 500 && unused > 50, "{counted:?}");
}

/// Who fails is found before there is a transaction with others: only its own is rolled back.
#[tokio::test]
async fn who_fails_early_costs_no_other_run() {
    let handler = "lanes = 1\nretry = { attempts = 1 }";
    let scene = scene(handler, TABLES).await;
    let messages = |from: i64, count: i64| -> Vec<TestMessage> {
        (from..from + count)
            .map(|n| {
                let mut steps = vec![update(n % 40 + 1, 1)];
                if n % 20 == 19 && from > 0 {
                    steps.insert(0, json!({ "reject": "no" }));
                }
                TestMessage::new(format!("m-{n:05}"), &json!({ "steps": steps }))
            })
            .collect()
    };
    // Numbers are known from the first on, so all others can run early.
    scene.publish(&messages(0, 200)).await;
    scene.publish(&messages(200, 1_000)).await;
    let counted = run_all(&scene).await;
    eprintln!("{counted:?}");
    assert_eq!(scene.count("dead_letters", "1 = 1").await, 50);
    assert_eq!(
        scene
            .store
            .number("SELECT sum(balance)::bigint FROM accounts")
            .await,
        1_150
    );
    assert!(counted.rolled_back <= 60, "{counted:?}");
}
