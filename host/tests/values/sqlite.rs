//! The storage classes of SQLite, and what columns make of them.

use hapax::store::{StoreKind, Tx, Value as Stored};
use serde_json::{Value, json};

use crate::support::database::{TestStore, options};
use crate::{Case, case, matrix, null, record, recorded, run, scene, text};

fn int(value: i64) -> Value {
    json!({ "int64": value })
}

fn float(value: f64) -> Value {
    json!({ "float64": value })
}

fn bytes(hex: &str) -> Value {
    json!({ "bytes_hex": hex })
}

const UUID: &str = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
const DIGITS: &str = "123456789012345678901234567890.0123456789";

fn classes() -> Vec<Case> {
    let all: String = (0..=255).map(|byte| format!("{byte:02X}")).collect();
    let long = "\u{10ffff}".repeat(1000);
    vec![
        case("INTEGER", int(5), "integer 5"),
        case("INTEGER", int(0), "integer 0"),
        case("INTEGER", int(i64::MIN), "integer -9223372036854775808"),
        case("INTEGER", int(i64::MAX), "integer 9223372036854775807"),
        case("INTEGER", json!({ "boolean": true }), "integer 1").reads(int(1)),
        case("INTEGER", json!({ "boolean": false }), "integer 0").reads(int(0)),
        case("REAL", float(0.5), "real 0.5"),
        case("REAL", float(0.0), "real 0.0"),
        case("REAL", float(0.1), "real 0.10000000000000001"),
        case("REAL", float(f64::MAX), "real 1.7976931348623157e+308"),
        // Not a smaller one: SQLite's own reading of digits is not exact there.
        case("REAL", float(-0.00390625), "real -0.00390625"),
        case("REAL", json!({ "float64_text": "inf" }), "real Inf"),
        case("REAL", json!({ "float64_text": "-inf" }), "real -Inf"),
        case("TEXT", text("x"), "text 'x'"),
        case("TEXT", text(""), "text ''"),
        case("TEXT", text("it's \\ \"x\" \u{e4}\u{1f600}\n"), "text 'it''s \\ \"x\" \u{e4}\u{1f600}\n'"),
        case("TEXT", text(&long), &format!("text '{long}'")),
        case("BLOB", bytes("00ff"), "blob X'00FF'"),
        case("BLOB", bytes(""), "blob X''"),
        case("BLOB", bytes(&all.to_lowercase()), &format!("blob X'{all}'")),
        // What SQLite has no class for, in its stated form.
        case("TEXT", json!({ "decimal": DIGITS }), &format!("text '{DIGITS}'")).reads(text(DIGITS)),
        case("TEXT", json!({ "decimal": "NaN" }), "text 'NaN'").reads(text("NaN")),
        case("TEXT", json!({ "decimal": "1e5" }), "text '1e5'").reads(text("1e5")),
        case("TEXT", json!({ "uuid": UUID.to_uppercase() }), &format!("text '{UUID}'")).reads(text(UUID)),
        case("TEXT", json!({ "json": "{\"a\":  12345678901234567890123}" }), "text '{\"a\":  12345678901234567890123}'")
            .reads(text("{\"a\":  12345678901234567890123}")),
        case("TEXT", json!({ "date": { "year": 1, "month": 2, "day": 3 } }), "text '0001-02-03'").reads(text("0001-02-03")),
        case("TEXT", json!({ "time": { "hour": 24, "minute": 0, "second": 0, "microsecond": 0 } }), "text '24:00:00.000000'")
            .reads(text("24:00:00.000000")),
        case(
            "TEXT",
            json!({ "timestamp": { "date": { "year": 2024, "month": 2, "day": 29 },
                                   "time": { "hour": 1, "minute": 2, "second": 3, "microsecond": 4 } } }),
            "text '2024-02-29T01:02:03.000004'",
        )
        .reads(text("2024-02-29T01:02:03.000004")),
        case("TEXT", json!({ "instant": { "seconds": -1, "nanoseconds": 999_999_000 } }), "text '1969-12-31T23:59:59.999999Z'")
            .reads(text("1969-12-31T23:59:59.999999Z")),
        case("TEXT", json!({ "interval": { "months": 1, "days": -2, "microseconds": -3_500_000 } }), "text 'P1M-2DT-3.500000S'")
            .reads(text("P1M-2DT-3.500000S")),
        case("TEXT", json!({ "other": { "type_name": "inet", "text": "::1" } }), "text '::1'").reads(text("::1")),
        null("INTEGER"),
        null("REAL"),
        null("TEXT"),
        null("BLOB"),
    ]
}

/// The class that is stored counts, not what the column was declared as. What a column's affinity makes of a value is SQLite's.
fn declared_and_stored_differ() -> Vec<Case> {
    vec![
        case("INTEGER", text("no number"), "text 'no number'"),
        case("INTEGER", float(1.5), "real 1.5"),
        case("INTEGER", bytes("00"), "blob X'00'"),
        case("TEXT", bytes("00"), "blob X'00'"),
        case("TEXT", int(5), "text '5'").reads(text("5")),
        case("REAL", text("x"), "text 'x'"),
        case("REAL", int(7), "real 7.0").reads(float(7.0)),
        case("BLOB", text("x"), "text 'x'"),
        case("BLOB", int(1), "integer 1"),
        case("BLOB", float(1.5), "real 1.5"),
        case("DATE", text("2024-02-29"), "text '2024-02-29'"),
        case(
            "DATETIME",
            text("2024-02-29 01:02:03"),
            "text '2024-02-29 01:02:03'",
        ),
        case("BOOLEAN", text("yes"), "text 'yes'"),
        case("BOOLEAN", int(7), "integer 7"),
        case("NUMERIC", text("1e5"), "integer 100000").reads(int(100_000)),
        case("NUMERIC", bytes("ff"), "blob X'FF'"),
        case("VARCHAR(2)", text("longer"), "text 'longer'"),
        null("NUMERIC"),
        null("DATE"),
    ]
}

#[tokio::test]
async fn every_class_goes_both_ways() {
    let mut cases = classes();
    cases.extend(declared_and_stored_differ());
    let mut tables = String::new();
    for (place, declared) in crate::types(&cases).into_iter().enumerate() {
        tables.push_str(&format!(
            "CREATE TABLE t{place} (n INTEGER, v {declared});\n"
        ));
    }
    let scene = scene(StoreKind::Sqlite, &tables).await;
    let as_text = "CASE typeof(v) WHEN 'null' THEN NULL WHEN 'real' THEN 'real ' || printf('%!.17g', v) \
                   ELSE typeof(v) || ' ' || quote(v) END";
    let literal = |_: &str, text: &str| {
        let (_, value) = text.split_once(' ').unwrap();
        value.replace("Inf", "9e999")
    };
    let name = |declared: &str| match declared {
        "VARCHAR(2)" => "TEXT".to_owned(),
        // The driver has no name for it.
        "NUMERIC" => "NULL".to_owned(),
        same => same.to_owned(),
    };
    matrix(&scene, &cases, as_text, literal, name).await;
}

/// A table that says STRICT refuses what does not fit, and says what and where.
#[tokio::test]
async fn a_strict_table_names_the_column_and_what_it_got() {
    let scene = scene(
        StoreKind::Sqlite,
        "CREATE TABLE strict_ones (i INTEGER, r REAL, t TEXT, b BLOB, a ANY) STRICT;",
    )
    .await;
    let insert = |column: &str, value: Value, key: &str| {
        json!([
            { "begin_savepoint": "s" },
            { "execute": format!("INSERT INTO strict_ones ({column}) VALUES ($1)"), "params": [value],
              "expect_error": "type.mismatch" },
            { "roll_back_savepoint": "s" },
            { "begin_savepoint": "s" },
            { "execute": format!("INSERT INTO strict_ones ({column}) VALUES ($1)"), "params": [value],
              "swallow": true },
            { "roll_back_savepoint": "s" },
            { "execute": "INSERT INTO results (key, value) VALUES ($1, '')", "params": [text(key)] },
        ])
    };
    let mut steps = Vec::new();
    for (column, value) in [
        ("i", text("x")),
        ("i", float(1.5)),
        ("r", text("x")),
        ("b", int(1)),
        ("t", bytes("00")),
    ] {
        let key = format!("{column} {value}");
        steps.extend(insert(column, value, &key).as_array().unwrap().clone());
    }
    run(&scene, "m", steps).await;

    let test = TestStore::sqlite().await;
    test.run("CREATE TABLE strict_ones (i INTEGER) STRICT")
        .await;
    let mut tx = test.begin().await;
    let error = tx
        .execute(
            "INSERT INTO strict_ones (i) VALUES ($1)",
            &[Stored::Text("x".into())],
        )
        .await
        .unwrap_err();
    assert_eq!(error.code, "type.mismatch");
    assert_eq!(error.table.as_deref(), Some("strict_ones"), "{error:?}");
    assert_eq!(error.column.as_deref(), Some("i"), "{error:?}");
    assert!(
        error.message.contains("TEXT") && error.message.contains("INTEGER"),
        "{error:?}"
    );
}

#[tokio::test]
async fn text_that_is_no_text_is_undecoded_and_the_row_comes() {
    let test = TestStore::sqlite().await;
    test.run("CREATE TABLE t (a, b, c); INSERT INTO t VALUES (1, CAST(X'61ff' AS TEXT), 'x')")
        .await;
    let connection = test.connect_with(&options()).await;
    let mut tx = Tx::begin(connection).await.unwrap();
    let expected = [[
        Stored::Int64(1),
        Stored::Undecoded {
            type_name: "TEXT".into(),
            bytes: vec![0x61, 0xff],
        },
        Stored::Text("x".into()),
    ]];
    let result = tx.query("SELECT a, b, c FROM t", &[], 10).await.unwrap();
    assert_eq!(result.rows, expected);
    let (cursor, _) = tx.open_cursor("SELECT a, b, c FROM t", &[]).await.unwrap();
    let limits = hapax::store::FetchLimits {
        rows: 10,
        bytes: 1000,
    };
    assert_eq!(tx.fetch_cursor(cursor, limits).await.unwrap(), expected);
}

/// A NUL within a text is the databases' one difference here: SQLite keeps it.
#[tokio::test]
async fn text_with_nul_is_kept() {
    let scene = scene(StoreKind::Sqlite, "CREATE TABLE t (v TEXT);").await;
    run(
        &scene,
        "m",
        vec![
            json!({ "execute": "INSERT INTO t VALUES ($1)", "params": [text("a\0b")] }),
            json!({ "query": "SELECT v, length(CAST(v AS BLOB)) AS n FROM t", "record": record("r") }),
        ],
    )
    .await;
    assert_eq!(
        recorded(&scene, "r").await["rows"],
        json!([[text("a\0b"), int(3)]])
    );
    assert_eq!(
        scene
            .store
            .number("SELECT length(CAST(v AS BLOB)) FROM t")
            .await,
        3
    );
}
