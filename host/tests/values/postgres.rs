//! The types of PostgreSQL.

use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::{Case, case, matrix, null, record, recorded, run, scene, text, types};

fn other(name: &str, value: &str) -> Value {
    json!({ "other": { "type_name": name, "text": value } })
}

fn int(value: i64) -> Value {
    json!({ "int64": value })
}

fn float(value: f64) -> Value {
    json!({ "float64": value })
}

fn float_text(value: &str) -> Value {
    json!({ "float64_text": value })
}

fn decimal(value: &str) -> Value {
    json!({ "decimal": value })
}

fn bytes(hex: &str) -> Value {
    json!({ "bytes_hex": hex })
}

fn date(year: i32, month: u8, day: u8) -> Value {
    json!({ "date": plain_date(year, month, day) })
}

fn plain_date(year: i32, month: u8, day: u8) -> Value {
    json!({ "year": year, "month": month, "day": day })
}

fn time(hour: u8, minute: u8, second: u8, microsecond: u32) -> Value {
    json!({ "time": plain_time(hour, minute, second, microsecond) })
}

fn plain_time(hour: u8, minute: u8, second: u8, microsecond: u32) -> Value {
    json!({ "hour": hour, "minute": minute, "second": second, "microsecond": microsecond })
}

fn timestamp(date: Value, time: Value) -> Value {
    json!({ "timestamp": { "date": date, "time": time } })
}

fn instant(seconds: i64, nanoseconds: u32) -> Value {
    json!({ "instant": { "seconds": seconds, "nanoseconds": nanoseconds } })
}

fn interval(months: i32, days: i32, microseconds: i64) -> Value {
    json!({ "interval": { "months": months, "days": days, "microseconds": microseconds } })
}

const DIGITS: &str = "1234567890123456789012345678901234567890.0123456789";
const UUID: &str = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
const NIL: &str = "00000000-0000-0000-0000-000000000000";
const FULL: &str = "ffffffff-ffff-ffff-ffff-ffffffffffff";
const WORDS: &str = "it's \\ \"x\" $1 {,} \u{e4}\u{1f600}\n\t$$--/*";

fn numbers() -> Vec<Case> {
    vec![
        case("smallint", int(5), "5"),
        case("smallint", int(0), "0"),
        case("smallint", int(-32_768), "-32768"),
        case("smallint", int(32_767), "32767"),
        case("int", int(5), "5"),
        case("int", int(0), "0"),
        case("int", int(-2_147_483_648), "-2147483648"),
        case("int", int(2_147_483_647), "2147483647"),
        case("bigint", int(0), "0"),
        case("bigint", int(i64::MIN), "-9223372036854775808"),
        case("bigint", int(i64::MAX), "9223372036854775807"),
        // What no binary form of it may become.
        case("bigint", text("12345678"), "12345678").reads(int(12_345_678)),
        case("bigint", decimal("-12"), "-12").reads(int(-12)),
        case("real", float(0.5), "0.5"),
        case("real", float(0.0), "0"),
        case("real", float(-0.0), "-0"),
        case("real", float(f64::from(0.1_f32)), "0.1"),
        case("real", float(f64::from(f32::MAX)), "3.4028235e+38"),
        case("real", float(f64::from(f32::from_bits(1))), "1e-45"),
        case("real", float_text("NaN"), "NaN"),
        case("real", float_text("-inf"), "-Infinity"),
        case("real", int(16_777_216), "1.6777216e+07").reads(float(16_777_216.0)),
        case("double precision", float(0.1), "0.1"),
        case("double precision", float(0.0), "0"),
        case("double precision", float(-0.0), "-0"),
        case(
            "double precision",
            float(f64::MAX),
            "1.7976931348623157e+308",
        ),
        case(
            "double precision",
            float(f64::MIN_POSITIVE),
            "2.2250738585072014e-308",
        ),
        case("double precision", float(5e-324), "5e-324"),
        case("double precision", float_text("NaN"), "NaN"),
        case("double precision", float_text("inf"), "Infinity"),
        case("double precision", int(-7), "-7").reads(float(-7.0)),
        case("numeric", decimal("1.50"), "1.50"),
        case("numeric", decimal("0"), "0"),
        case("numeric", decimal("0.000"), "0.000"),
        case("numeric", decimal(DIGITS), DIGITS),
        case("numeric", decimal("-1e-20"), "-0.00000000000000000001")
            .reads(decimal("-0.00000000000000000001")),
        case("numeric", decimal("NaN"), "NaN"),
        case("numeric", decimal("Infinity"), "Infinity"),
        case("numeric", decimal("-Infinity"), "-Infinity"),
        case("numeric", int(i64::MAX), "9223372036854775807").reads(decimal("9223372036854775807")),
        case("numeric", float(0.1), "0.1").reads(decimal("0.1")),
        case("numeric(10, 2)", decimal("12345678.90"), "12345678.90"),
        case("oid", int(4_294_967_295), "4294967295"),
        case("positive", int(1), "1"),
        case("positive", int(2_147_483_647), "2147483647"),
        case("bool", json!({ "boolean": true }), "true"),
        case("bool", json!({ "boolean": false }), "false"),
        null("smallint"),
        null("int"),
        null("bigint"),
        null("real"),
        null("double precision"),
        null("numeric"),
        null("bool"),
        null("positive"),
    ]
}

fn texts() -> Vec<Case> {
    let all: String = (0..=255).map(|byte| format!("{byte:02x}")).collect();
    let mut cases = vec![
        case("text", text("x"), "x"),
        case("text", text(""), ""),
        case("text", text(WORDS), WORDS),
        case(
            "text",
            text(&"\u{10ffff}".repeat(1000)),
            &"\u{10ffff}".repeat(1000),
        ),
        case("text", json!({ "uuid": UUID }), UUID).reads(text(UUID)),
        case("text", json!({ "json": "{\"a\":  1}" }), "{\"a\":  1}").reads(text("{\"a\":  1}")),
        case("varchar(20)", text("\u{1f600}"), "\u{1f600}"),
        case("varchar(20)", text(""), ""),
        case(
            "varchar(20)",
            text("12345678901234567890"),
            "12345678901234567890",
        ),
        // A character column pads, and its cast to text drops that.
        case("char(5)", text("ab"), "ab").reads(text("ab   ")),
        case("char(5)", text(""), "").reads(text("     ")),
        case("char(5)", text("\u{1f600}bcde"), "\u{1f600}bcde"),
        case("\"char\"", text("x"), "x"),
        case("name", text("a name"), "a name"),
        case("bytea", bytes("00ff"), "\\x00ff"),
        case("bytea", bytes(""), "\\x"),
        case("bytea", bytes(&all), &format!("\\x{all}")),
        case("bytea", text("\\x0aff"), "\\x0aff").reads(bytes("0aff")),
        case("uuid", json!({ "uuid": UUID }), UUID),
        case("uuid", json!({ "uuid": NIL }), NIL),
        case("uuid", json!({ "uuid": FULL }), FULL),
        case("uuid", text(&UUID.to_uppercase()), UUID).reads(json!({ "uuid": UUID })),
        case(
            "json",
            json!({ "json": "{\"b\" : 1, \"b\":2}" }),
            "{\"b\" : 1, \"b\":2}",
        ),
        case("json", json!({ "json": "null" }), "null"),
        case("json", json!({ "json": "[]" }), "[]"),
        case(
            "jsonb",
            json!({ "json": "12345678901234567890123" }),
            "12345678901234567890123",
        ),
        case("jsonb", json!({ "json": "1.00" }), "1.00"),
        case("jsonb", json!({ "json": "{}" }), "{}"),
        case("jsonb", json!({ "json": "null" }), "null"),
        case(
            "jsonb",
            json!({ "json": "{\"b\":2,\"a\":\"\u{1f600}\\\\\"}" }),
            "{\"a\": \"\u{1f600}\\\\\", \"b\": 2}",
        )
        .reads(json!({ "json": "{\"a\": \"\u{1f600}\\\\\", \"b\": 2}" })),
    ];
    for declared in [
        "text",
        "varchar(20)",
        "char(5)",
        "bytea",
        "uuid",
        "json",
        "jsonb",
    ] {
        cases.push(null(declared));
    }
    cases
}

fn moments() -> Vec<Case> {
    let midnight = || plain_time(0, 0, 0, 0);
    let mut cases = vec![
        case("date", date(2024, 2, 29), "2024-02-29"),
        case("date", date(1, 1, 1), "0001-01-01"),
        case("date", date(5_874_897, 12, 31), "5874897-12-31"),
        case("date", other("date", "infinity"), "infinity"),
        case("date", other("date", "0044-03-15 BC"), "0044-03-15 BC"),
        case("time", time(12, 34, 56, 789_000), "12:34:56.789"),
        case("time", time(0, 0, 0, 0), "00:00:00"),
        case("time", time(23, 59, 59, 999_999), "23:59:59.999999"),
        case("time", time(24, 0, 0, 0), "24:00:00"),
        case(
            "timetz",
            other("timetz", "12:34:56.789+05:45"),
            "12:34:56.789+05:45",
        ),
        case("timetz", other("timetz", "00:00:00+00"), "00:00:00+00"),
        case(
            "timetz",
            other("timetz", "24:00:00-15:59"),
            "24:00:00-15:59",
        ),
        case(
            "timestamp",
            timestamp(plain_date(2024, 2, 29), plain_time(1, 2, 3, 4)),
            "2024-02-29 01:02:03.000004",
        ),
        case(
            "timestamp",
            timestamp(plain_date(1, 1, 1), midnight()),
            "0001-01-01 00:00:00",
        ),
        case(
            "timestamp",
            timestamp(plain_date(294_275, 12, 31), plain_time(23, 59, 59, 999_999)),
            "294275-12-31 23:59:59.999999",
        ),
        case("timestamp", other("timestamp", "-infinity"), "-infinity"),
        case(
            "timestamp",
            other("timestamp", "4713-01-01 00:00:00 BC"),
            "4713-01-01 00:00:00 BC",
        ),
        case("timestamptz", instant(0, 0), "1970-01-01 00:00:00+00"),
        case(
            "timestamptz",
            instant(-1, 999_999_000),
            "1969-12-31 23:59:59.999999+00",
        ),
        case(
            "timestamptz",
            instant(-62_135_596_800, 0),
            "0001-01-01 00:00:00+00",
        ),
        case(
            "timestamptz",
            instant(-2_208_988_801, 0),
            "1899-12-31 23:59:59+00",
        ),
        case(
            "timestamptz",
            instant(9224306524800, 0),
            "294276-08-21 00:00:00+00",
        )
        .passing(text("294276-08-21 00:00:00Z")),
        case(
            "timestamptz",
            text("2024-01-01T05:45:00+05:45"),
            "2024-01-01 00:00:00+00",
        )
        .reads(instant(1_704_067_200, 0)),
        case("timestamptz", other("timestamptz", "infinity"), "infinity"),
        case(
            "timestamptz",
            other("timestamptz", "0044-03-15 00:00:00+00 BC"),
            "0044-03-15 00:00:00+00 BC",
        ),
        case(
            "interval",
            interval(14, 3, 14_706_789_000),
            "1 year 2 mons 3 days 04:05:06.789",
        ),
        case("interval", interval(0, 0, 0), "00:00:00"),
        case(
            "interval",
            interval(-1, 1, -1),
            "-1 mons +1 day -00:00:00.000001",
        ),
        case(
            "interval",
            interval(0, 45, 172_800_000_000),
            "45 days 48:00:00",
        ),
        case(
            "interval",
            interval(2_147_483_647, 2_147_483_647, i64::MAX - 1),
            "178956970 years 7 mons 2147483647 days 2562047788:00:54.775806",
        ),
        case("interval", text("1 week"), "7 days").reads(interval(0, 7, 0)),
    ];
    for declared in [
        "date",
        "time",
        "timetz",
        "timestamp",
        "timestamptz",
        "interval",
    ] {
        cases.push(null(declared));
    }
    cases
}

/// Types that are known by their text only.
fn others() -> Vec<Case> {
    let mut cases = Vec::new();
    for (declared, name, values) in [
        ("inet", "inet", &["10.0.0.1/8", "::1", "0.0.0.0/0"][..]),
        ("cidr", "cidr", &["10.0.0.0/8", "::/0"]),
        (
            "macaddr",
            "macaddr",
            &["08:00:2b:01:02:03", "00:00:00:00:00:00"],
        ),
        ("macaddr8", "macaddr8", &["08:00:2b:01:02:03:04:05"]),
        ("mood", "mood", &["ok", "not \"so\" bad"]),
        ("int4range", "int4range", &["[1,5)", "empty", "(,)"]),
        ("tstzrange", "tstzrange", &["[\"2024-01-01 00:00:00+00\",)"]),
        ("bit(3)", "bit", &["101"]),
        ("varbit", "varbit", &["", "1"]),
        ("point", "point", &["(1,-2.5)"]),
        ("tsvector", "tsvector", &["'a':1 'b':2"]),
        ("pair", "pair", &["(1,\"a b\")", "(,)"]),
        ("inet[]", "inet[]", &["{10.0.0.1,NULL}", "{}"]),
        (
            "mood[]",
            "mood[]",
            &["{ok,NULL,\"not \\\"so\\\" bad\"}", "{}"],
        ),
    ] {
        for value in values {
            // Its cast to text says the whole mask.
            let shown = if *value == "::1" { "::1/128" } else { value };
            cases.push(case(declared, other(name, value), shown));
            cases.push(case(declared, text(value), shown).reads(other(name, value)));
        }
        cases.push(null(declared));
    }
    cases
}

fn arrays() -> Vec<Case> {
    let mut cases = vec![
        case(
            "int[]",
            json!({ "int64_array": [1, null, -2_147_483_648_i64, 2_147_483_647] }),
            "{1,NULL,-2147483648,2147483647}",
        ),
        case(
            "int[]",
            other("int4[]", "{{1,2},{3,NULL}}"),
            "{{1,2},{3,NULL}}",
        ),
        case("int[]", other("int4[]", "[0:1]={1,2}"), "[0:1]={1,2}"),
        case("int[]", text("{1,2}"), "{1,2}").reads(json!({ "int64_array": [1, 2] })),
        case("int[]", json!({ "text_array": ["1", null] }), "{1,NULL}")
            .reads(json!({ "int64_array": [1, null] })),
        case(
            "smallint[]",
            json!({ "int64_array": [32_767, -32_768] }),
            "{32767,-32768}",
        ),
        case(
            "bigint[]",
            json!({ "int64_array": [i64::MAX, i64::MIN] }),
            "{9223372036854775807,-9223372036854775808}",
        ),
        case(
            "text[]",
            json!({ "text_array": ["a", null, "", "NULL", "null", " b ", "{,}", "\"", "\\", WORDS] }),
            ARRAY_OF_WORDS,
        ),
        case("text[]", other("text[]", "{{a},{b}}"), "{{a},{b}}"),
        case("varchar[]", json!({ "text_array": ["x"] }), "{x}"),
        case(
            "uuid[]",
            json!({ "uuid_array": [UUID, null, NIL] }),
            &format!("{{{UUID},NULL,{NIL}}}"),
        ),
        case(
            "timestamptz[]",
            json!({ "instant_array": [{ "seconds": 0, "nanoseconds": 1000 }, null] }),
            "{\"1970-01-01 00:00:00.000001+00\",NULL}",
        ),
        case(
            "timestamptz[]",
            other("timestamptz[]", "{infinity}"),
            "{infinity}",
        ),
        case(
            "bool[]",
            json!({ "boolean_array": [true, null, false] }),
            "{t,NULL,f}",
        ),
        case(
            "real[]",
            json!({ "float64_array": [0.5, null] }),
            "{0.5,NULL}",
        ),
        case(
            "double precision[]",
            json!({ "float64_array": [0.1, -1e300] }),
            "{0.1,-1e+300}",
        ),
        case(
            "numeric[]",
            json!({ "decimal_array": [DIGITS, "NaN", null] }),
            &format!("{{{DIGITS},NaN,NULL}}"),
        ),
        case(
            "bytea[]",
            json!({ "bytes_hex_array": ["00ff", "", null] }),
            "{\"\\\\x00ff\",\"\\\\x\",NULL}",
        ),
        case(
            "date[]",
            json!({ "date_array": [plain_date(2024, 2, 29), null] }),
            "{2024-02-29,NULL}",
        ),
        case(
            "time[]",
            json!({ "time_array": [plain_time(24, 0, 0, 0)] }),
            "{24:00:00}",
        ),
        case(
            "timestamp[]",
            json!({ "timestamp_array": [{ "date": plain_date(1, 1, 1), "time": plain_time(0, 0, 0, 1) }] }),
            "{\"0001-01-01 00:00:00.000001\"}",
        ),
        case(
            "interval[]",
            json!({ "interval_array": [{ "months": 1, "days": -1, "microseconds": 1 }, null] }),
            "{\"1 mon -1 days +00:00:00.000001\",NULL}",
        ),
        case(
            "json[]",
            json!({ "json_array": ["{\"a\": [1, \"x\"]}", "null", null] }),
            "{\"{\\\"a\\\": [1, \\\"x\\\"]}\",\"null\",NULL}",
        ),
        case(
            "jsonb[]",
            json!({ "json_array": ["12345678901234567890123"] }),
            "{12345678901234567890123}",
        ),
        case("positive[]", json!({ "int64_array": [1, 2] }), "{1,2}"),
    ];
    let empty = [
        ("int[]", "int64_array"),
        ("text[]", "text_array"),
        ("uuid[]", "uuid_array"),
        ("timestamptz[]", "instant_array"),
        ("bool[]", "boolean_array"),
        ("real[]", "float64_array"),
        ("numeric[]", "decimal_array"),
        ("bytea[]", "bytes_hex_array"),
        ("date[]", "date_array"),
        ("time[]", "time_array"),
        ("timestamp[]", "timestamp_array"),
        ("interval[]", "interval_array"),
        ("json[]", "json_array"),
    ];
    for (declared, kind) in empty {
        cases.push(case(declared, json!({ kind: [] }), "{}"));
        cases.push(case(declared, json!({ kind: [null] }), "{NULL}"));
        cases.push(null(declared));
    }
    cases
}

/// As PostgreSQL writes the array of texts above.
const ARRAY_OF_WORDS: &str = "{a,NULL,\"\",\"NULL\",\"null\",\" b \",\"{,}\",\"\\\"\",\"\\\\\",\"it's \\\\ \\\"x\\\" $1 {,} \u{e4}\u{1f600}\n\t$$--/*\"}";

impl Case {
    fn passing(mut self, passed: Value) -> Self {
        self.passed = passed;
        self
    }
}

/// What a type is called in results, where that is not what it is declared as.
fn name(declared: &str) -> String {
    let (plain, array) = match declared.strip_suffix("[]") {
        Some(plain) => (plain, "[]"),
        None => (declared, ""),
    };
    let plain = match plain.split('(').next().unwrap().trim() {
        "smallint" => "int2",
        "int" | "positive" if array.is_empty() => "int4",
        "int" => "int4",
        "bigint" => "int8",
        "real" => "float4",
        "double precision" => "float8",
        "char" => "bpchar",
        same => same,
    };
    format!("{plain}{array}")
}

#[tokio::test]
async fn every_type_goes_both_ways() {
    let mut cases = numbers();
    cases.extend(texts());
    cases.extend(moments());
    cases.extend(others());
    cases.extend(arrays());
    let mut tables = String::from(
        "CREATE TYPE mood AS ENUM ('ok', 'not \"so\" bad'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);\n\
         CREATE TYPE pair AS (a int, b text);\n",
    );
    for (place, declared) in types(&cases).into_iter().enumerate() {
        tables.push_str(&format!(
            "CREATE TABLE t{place} (n bigint, v {declared});\n"
        ));
    }
    let scene = scene(StoreKind::Postgres, &tables).await;
    let literal = |declared: &str, text: &str| {
        let quoted = text.replace('\'', "''");
        // A cast to a character type of a length cuts; an assignment does not.
        if declared.contains("char") {
            format!("'{quoted}'")
        } else {
            format!("'{quoted}'::{declared}")
        }
    };
    matrix(&scene, &cases, "v::text", literal, name).await;
}

/// In other words than a column: what a statement computes, with no table behind it.
#[tokio::test]
async fn expressions_have_types_too() {
    let scene = scene(StoreKind::Postgres, "").await;
    let statement = "SELECT $1 + 1 AS a, $2 || 'x' AS b, now() - $3 > $4 AS c, coalesce($5, 'none') AS d, \
                     array_agg(n) AS e, NULL AS f FROM generate_series(1, $6) AS n";
    let params = json!([
        int(41), text("y"), instant(0, 0), interval(0, 1, 0), { "null": true }, int(3),
    ]);
    run(
        &scene,
        "m",
        vec![json!({ "query": statement, "params": params, "record": record("r") })],
    )
    .await;
    let found = recorded(&scene, "r").await;
    assert_eq!(
        found["rows"],
        json!([[int(42), text("yx"), { "boolean": true }, text("none"), { "int64_array": [1, 2, 3] }, { "null": true }]])
    );
    assert_eq!(
        found["columns"],
        json!([
            ["a", "int4"],
            ["b", "text"],
            ["c", "bool"],
            ["d", "text"],
            ["e", "int4[]"],
            ["f", "text"]
        ])
    );
}
