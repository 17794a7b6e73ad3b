//! The handler of the tests of all languages, in Rust: does what the payload says; what it finds is in the tables.

use std::time::Duration;

use hapax_guest::outbox::Outgoing;
use hapax_guest::sql::{self, Code, Date, Interval, Time, Timestamp, Value};
use hapax_guest::{
    Decimal, Failure, Instant, Json, Message, OrFail as _, Uuid, config, log, outbox, params,
};

fn handle(message: Message) -> Result<(), Failure> {
    match message.text()? {
        "tour" => return tour(&message),
        "values" => return values(),
        "arrays" => return arrays(),
        "reject" => return Err(Failure::reject("not today: ä😀")),
        "retry" => {
            return Err(Failure::retry_after(Duration::from_millis(1), "later: ä😀"));
        }
        "error" => return Err(Failure::retry("out of order")),
        "unique" => sql::execute("INSERT INTO samples (number) VALUES ($1)", &params![1_i64])?,
        "wrong" => sql::execute(
            "INSERT INTO samples (number, i) VALUES (9, $1)",
            &params!["five"],
        )?,
        "panic" => panic!("out of order"),
        "memory" => {
            let mut pieces = Vec::new();
            loop {
                pieces.push(vec![1_u8; 1 << 20]);
            }
        }
        "time" => loop {
            std::hint::black_box(());
        },
        word => return Err(Failure::reject(format!("no such word: {word}"))),
    };
    Ok(())
}

fn tell(name: &str, value: Option<&str>) -> Result<u64, hapax_guest::Error> {
    sql::execute(
        "INSERT INTO told (name, value) VALUES ($1, $2)",
        &params![name, value],
    )
}

fn tour(message: &Message) -> Result<(), Failure> {
    #[derive(serde::Deserialize)]
    struct Found {
        great: i64,
    }

    tell("attempt", Some(&message.attempt.to_string()))?;
    tell("header", message.header_text("MESSAGE-ID")?)?;
    if message.header_text("absent")?.is_some() {
        return Err(Failure::reject("a header that is not there"));
    }
    tell("config", Some(&config::require("currency")?))?;
    tell("nothing", None)?;
    let row = sql::query_one(
        "SELECT CAST($1 AS bigint) AS great, x AS blob FROM samples WHERE number = 1",
        &params![9_007_199_254_740_993_i64],
    )?;
    let Found { great } = row.decode()?;
    let blob: Vec<u8> = row.get("blob")?;
    tell("great", Some(&great.to_string()))?;
    let hex: String = blob.iter().map(|byte| format!("{byte:02x}")).collect();
    tell("blob", Some(&hex))?;
    sql::savepoint(|| tell("kept", Some("y")))?;
    let undone = sql::savepoint(|| {
        tell("gone", Some("x"))?;
        outbox::publish(&Outgoing::new("gone").payload("never"))?;
        tell("kept", Some("z"))
    });
    match undone {
        Err(error) if error.code() == Code::UniqueViolation => {
            tell("unique", Some(error.code_text()))?
        }
        _ => return Err(Failure::reject("another error")),
    };
    let gone = sql::query_optional(
        "SELECT 1 AS one FROM told WHERE name = $1",
        &params!["gone"],
    )?;
    if gone.is_some() {
        return Err(Failure::reject("it is there"));
    }
    let mut sum = 0;
    for row in sql::open_cursor("SELECT number FROM samples ORDER BY number", &[])?.rows() {
        sum += row?.get::<i64>("number")?;
    }
    sql::execute_many(
        "INSERT INTO told (name, value) VALUES ($1, $2)",
        &[params!["cursor", sum.to_string()]],
    )?;
    Outgoing::new("told")
        .key("k")
        .header("Kind", "tour")
        .json(&serde_json::json!({ "great": great }))?
        .publish()?;
    log::write(
        log::Level::Info,
        "toured",
        &[("great".to_owned(), great.to_string())],
    );
    Ok(())
}

/// All kinds of values: those of the table as they come, and one row of Rust's own.
fn values() -> Result<(), Failure> {
    let date = Date {
        year: 2024,
        month: 2,
        day: 29,
    };
    let time = |hour, minute, second, microsecond| Time {
        hour,
        minute,
        second,
        microsecond,
    };
    let own = params![
        100_i64,
        true,
        i64::MIN,
        0.1,
        "ä😀",
        [0_u8, 255],
        Decimal("0.10".into()),
        Value::Date(date),
        Value::Time(time(12, 34, 56, 1)),
        Value::Timestamp(Timestamp {
            date,
            time: time(12, 0, 0, 0),
        }),
        Instant {
            seconds: 1_709_210_096,
            nanoseconds: 123_000_000,
        },
        Value::Interval(Interval {
            months: 1,
            days: -2,
            microseconds: 3_500_000,
        }),
        Uuid("00112233-4455-6677-8899-aabbccddeeff".into()),
        Json::encode(&serde_json::json!({ "a": [1, true, null] })).or_reject()?,
    ];
    copy(
        "SELECT * FROM samples ORDER BY number",
        "INSERT INTO copies (number, b, i, f, t, x, n, d, h, ts, at, iv, u, j) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
        own,
    )
}

fn arrays() -> Result<(), Failure> {
    let own = params![
        100_i64,
        Value::Int64Array(vec![Some(i64::MIN), None]),
        Value::TextArray(vec![Some("ä".to_owned()), None]),
        Value::BooleanArray(vec![Some(true)]),
        Value::Float64Array(vec![Some(0.1)]),
        Value::DecimalArray(vec![Some("0.10".to_owned())]),
        "192.0.2.2",
    ];
    copy(
        "SELECT * FROM array_samples ORDER BY number",
        "INSERT INTO array_copies (number, ia, ta, ba, fa, na, o) VALUES ($1, $2, $3, $4, $5, $6, $7)",
        own,
    )
}

fn copy(query: &str, insert: &str, own: Vec<Value>) -> Result<(), Failure> {
    for row in sql::query(query, &[])? {
        sql::execute(insert, row.values())?;
    }
    sql::execute(insert, &own)?;
    Ok(())
}

hapax_guest::handler!(handle);
