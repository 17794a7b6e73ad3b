//! What does not fit is an error that names the parameter, what is wanted and what was passed; nothing is lost silently.

use hapax::store::{StoreKind, Value as Stored};
use serde_json::{Value, json};

use crate::support::database::TestStore;
use crate::{record, recorded, run, scene, text};

/// Runs each statement in a savepoint of its own. Returns the errors.
async fn errors(kind: StoreKind, tables: &str, cases: &[(String, Vec<Value>)]) -> Vec<Value> {
    let scene = scene(kind, tables).await;
    let mut steps = Vec::new();
    for (number, (statement, params)) in cases.iter().enumerate() {
        let key = format!("outcome {number}");
        // What a savepoint's steps record goes with it, so the error itself comes back as the closure's reason.
        steps.push(json!({
            "savepoint": "closure", "swallow": true,
            "steps": [
                { "execute": statement, "params": params, "on_error": "reject" },
                { "reject": "it was taken" },
            ],
            "record": record(&key),
        }));
    }
    run(&scene, "m", steps).await;
    let mut found = Vec::new();
    for number in 0..cases.len() {
        found.push(recorded(&scene, &format!("outcome {number}")).await);
    }
    found
}

#[tokio::test]
async fn on_postgres_narrowing_never_loses_silently() {
    let int = |value: i64| json!({ "int64": value });
    let float = |value: f64| json!({ "float64": value });
    let date = json!({ "date": { "year": 2024, "month": 2, "day": 30 } });
    let bad_date = json!({ "year": 2023, "month": 2, "day": 29 });
    let day = json!({ "date": { "year": 2024, "month": 2, "day": 29 } });
    let noon = json!({ "hour": 12, "minute": 0, "second": 0, "microsecond": 0 });
    let timestamp =
        json!({ "timestamp": { "date": { "year": 2024, "month": 2, "day": 29 }, "time": noon } });
    let cases: Vec<(&str, Value, &str)> = vec![
        (
            "smallint",
            int(32_768),
            "data.out-of-range: parameter $1: 32768 does not fit into `int2` exactly",
        ),
        (
            "int",
            int(-2_147_483_649),
            "data.out-of-range: parameter $1: -2147483649 does not fit into `int4` exactly",
        ),
        ("oid", int(-1), "data.out-of-range: parameter $1: -1"),
        (
            "real",
            float(0.1),
            "data.out-of-range: parameter $1: 0.1 does not fit into `float4` exactly",
        ),
        (
            "real",
            float(1e300),
            "data.out-of-range: parameter $1: 1e300",
        ),
        (
            "real",
            float(1e-300),
            "data.out-of-range: parameter $1: 1e-300",
        ),
        (
            "real",
            int(16_777_217),
            "data.out-of-range: parameter $1: 16777217",
        ),
        (
            "double precision",
            int(9_007_199_254_740_993),
            "data.out-of-range: parameter $1: 9007199254740993",
        ),
        (
            "int",
            float(1.0),
            "type.mismatch: parameter $1: the statement wants `int4` here, not float64",
        ),
        (
            "int",
            json!({ "decimal": "1.5" }),
            "data.invalid: parameter $1: invalid input syntax for type integer",
        ),
        (
            "smallint",
            json!({ "decimal": "99999" }),
            "data.out-of-range: parameter $1: ",
        ),
        ("int", text("1.6"), "data.invalid: parameter $1: "),
        (
            "int",
            json!({ "boolean": true }),
            "type.mismatch: parameter $1: the statement wants `int4` here, not boolean",
        ),
        (
            "int",
            json!({ "int64_array": [1] }),
            "type.mismatch: parameter $1: the statement wants `int4` here, not int64-array",
        ),
        (
            "int[]",
            int(1),
            "type.mismatch: parameter $1: the statement wants `int4[]` here, not int64",
        ),
        (
            "smallint[]",
            json!({ "int64_array": [1, 40_000] }),
            "data.out-of-range: parameter $1: element 1: 40000 does not fit into `int2[]` exactly",
        ),
        (
            "int[]",
            json!({ "boolean_array": [] }),
            "type.mismatch: parameter $1: the statement wants `int4[]` here, not boolean-array",
        ),
        (
            "real[]",
            json!({ "float64_array": [0.1] }),
            "data.out-of-range: parameter $1: element 0: 0.1",
        ),
        (
            "uuid[]",
            json!({ "uuid_array": ["x"] }),
            "data.invalid: parameter $1: element 0: `x` is no uuid",
        ),
        (
            "uuid",
            json!({ "uuid": "x" }),
            "data.invalid: parameter $1: `x` is no uuid",
        ),
        ("uuid", text("x"), "data.invalid: parameter $1: "),
        (
            "date",
            date,
            "data.invalid: parameter $1: there is no day 30",
        ),
        (
            "date[]",
            json!({ "date_array": [bad_date] }),
            "data.invalid: parameter $1: element 0: there is no day 29",
        ),
        (
            "date",
            json!({ "date": { "year": 0, "month": 1, "day": 1 } }),
            "data.invalid: parameter $1: the year 0",
        ),
        (
            "date",
            timestamp.clone(),
            "type.mismatch: parameter $1: the statement wants `date` here, not timestamp",
        ),
        (
            "time",
            json!({ "time": { "hour": 24, "minute": 0, "second": 0, "microsecond": 1 } }),
            "data.invalid: parameter $1: 24:00:00.000001",
        ),
        (
            "time",
            json!({ "other": { "type_name": "timetz", "text": "12:00:00+02" } }),
            "type.mismatch: parameter $1: the statement wants `time` here, not other `timetz`",
        ),
        (
            "timestamptz",
            timestamp,
            "type.mismatch: parameter $1: the statement wants `timestamptz` here, not timestamp",
        ),
        ("timestamptz", day, "type.mismatch: parameter $1: "),
        (
            "timestamptz",
            json!({ "instant": { "seconds": 0, "nanoseconds": 1 } }),
            "data.invalid: parameter $1: the database keeps microseconds",
        ),
        (
            "timestamptz",
            json!({ "instant": { "seconds": i64::MAX, "nanoseconds": 0 } }),
            "data.invalid: parameter $1: the year is not",
        ),
        (
            "text",
            int(1),
            "type.mismatch: parameter $1: the statement wants `text` here, not int64",
        ),
        (
            "text",
            text("a\0b"),
            "data.invalid: parameter $1: the text contains NUL",
        ),
        (
            "text[]",
            json!({ "text_array": ["a\0b"] }),
            "data.invalid: parameter $1: the text contains NUL",
        ),
        (
            "bytea",
            text("\\xzz"),
            "data: parameter $1: invalid hexadecimal digit",
        ),
        ("varchar(2)", text("abc"), "data.too-long: "),
        ("char(2)", text("abc"), "data.too-long: "),
        (
            "jsonb",
            json!({ "json": "{" }),
            "data.invalid: parameter $1: invalid input syntax for type json",
        ),
        (
            "jsonb",
            json!({ "json": "\"\\u0000\"" }),
            "data.encoding: parameter $1: ",
        ),
        (
            "inet",
            text("x"),
            "data.invalid: parameter $1: invalid input syntax for type inet",
        ),
        (
            "mood",
            text("x"),
            "data.invalid: parameter $1: invalid input value for enum mood",
        ),
        (
            "mood",
            int(1),
            "type.mismatch: parameter $1: the statement wants `mood` here, not int64",
        ),
        ("positive", int(-1), "constraint.check: "),
        ("positive", text("x"), "data.invalid: parameter $1: "),
        ("int4range", text("[5,1)"), "data: parameter $1: "),
        (
            "interval",
            json!({ "undecoded": { "type_name": "x", "bytes_hex": "00" } }),
            "invalid.param: parameter $1: `undecoded`",
        ),
    ];
    let mut tables = String::from(
        "CREATE TYPE mood AS ENUM ('ok'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);\n",
    );
    let mut statements = Vec::new();
    for (number, (declared, value, _)) in cases.iter().enumerate() {
        tables.push_str(&format!("CREATE TABLE t{number} (v {declared});\n"));
        statements.push((
            format!("INSERT INTO t{number} (v) VALUES ($1)"),
            vec![value.clone()],
        ));
    }
    check(
        errors(StoreKind::Postgres, &tables, &statements).await,
        &cases,
    );
}

#[tokio::test]
async fn on_sqlite_what_has_no_form_is_refused() {
    let cases: Vec<(&str, Value, &str)> = vec![
        (
            "REAL",
            json!({ "float64_text": "NaN" }),
            "data.invalid: parameter $1: SQLite would store NULL",
        ),
        (
            "TEXT",
            json!({ "text_array": ["x"] }),
            "type.mismatch: parameter $1: SQLite has no arrays, and this is a text-array",
        ),
        (
            "TEXT",
            json!({ "decimal": "x" }),
            "data.invalid: parameter $1: `x` is no decimal",
        ),
        (
            "TEXT",
            json!({ "uuid": "x" }),
            "data.invalid: parameter $1: `x` is no uuid",
        ),
        (
            "TEXT",
            json!({ "date": { "year": 10_000, "month": 1, "day": 1 } }),
            "data.invalid: parameter $1: the year 10000",
        ),
        (
            "TEXT",
            json!({ "time": { "hour": 25, "minute": 0, "second": 0, "microsecond": 0 } }),
            "data.invalid: parameter $1: 25:00:00",
        ),
        (
            "TEXT",
            json!({ "instant": { "seconds": 0, "nanoseconds": 1 } }),
            "data.invalid: parameter $1: the database keeps",
        ),
        (
            "TEXT",
            json!({ "undecoded": { "type_name": "x", "bytes_hex": "00" } }),
            "invalid.param: parameter $1: `undecoded`",
        ),
    ];
    let mut tables = String::new();
    let mut statements = Vec::new();
    for (number, (declared, value, _)) in cases.iter().enumerate() {
        tables.push_str(&format!("CREATE TABLE t{number} (v {declared});\n"));
        statements.push((
            format!("INSERT INTO t{number} (v) VALUES ($1)"),
            vec![value.clone()],
        ));
    }
    check(
        errors(StoreKind::Sqlite, &tables, &statements).await,
        &cases,
    );
}

fn check(found: Vec<Value>, cases: &[(&str, Value, &str)]) {
    let mut wrong = Vec::new();
    for (found, (declared, value, expected)) in found.iter().zip(cases) {
        let text = found["text"].as_str().unwrap_or_default();
        if !text.starts_with(expected) {
            wrong.push(format!("{declared} {value}: {found}, not `{expected}`"));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// The record's own fields, as a handler branches on them.
#[tokio::test]
async fn on_postgres_the_error_has_the_parameter_in_its_field() {
    let test = TestStore::postgres().await;
    test.run("CREATE TABLE t (a smallint, b uuid)").await;
    for (params, code, number) in [
        (
            [Stored::Int64(1 << 20), Stored::Null],
            "data.out-of-range",
            1,
        ),
        (
            [Stored::Int64(1), Stored::Boolean(true)],
            "type.mismatch",
            2,
        ),
        (
            [Stored::Int64(1), Stored::Text("x".into())],
            "data.invalid",
            2,
        ),
    ] {
        let mut tx = test.begin().await;
        let error = tx
            .execute("INSERT INTO t VALUES ($1, $2)", &params)
            .await
            .unwrap_err();
        assert_eq!((error.code.as_str(), error.param), (code, Some(number)));
        assert!(!error.retryable);
    }
}
