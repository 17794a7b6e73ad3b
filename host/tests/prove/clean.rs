//! Handlers without a bug: the prover stays silent.

use serde_json::json;

use crate::place::{ACCOUNTS, Place, change, changes, named};
use crate::planted::last_wins;

#[test]
fn a_counter_with_claims() {
    let place = Place::new("add", "", ACCOUNTS, &changes());
    place.write(
        "expected.jsonl",
        "{\"table\": \"accounts\", \"rows\": [{\"id\": \"b\", \"balance\": 6}, {\"id\": \"a\", \"balance\": 9}]}\n\
         {\"outbox\": []}\n{\"dead\": []}\n",
    );
    let report = place.report(&[]);
    report.assert_passed();
    // Five messages with a host call each, and their ends.
    let step = |name: &str| {
        let steps = report.report["steps"].as_array().unwrap().iter();
        steps
            .filter(|step| step["step"] == name)
            .cloned()
            .collect::<Vec<_>>()
    };
    let rolled_back = &step("rolled-back")[0];
    assert_eq!(
        (
            &rolled_back["broken"],
            &rolled_back["places"],
            &rolled_back["calls"]
        ),
        (&json!(10), &json!(10), &json!(15)),
        "{rolled_back}"
    );
    // Those that died came again, and ran again only if they had not committed.
    let died = |name: &str| {
        (
            step(name)[0]["deliveries"].clone(),
            step(name)[0]["calls"].clone(),
        )
    };
    assert_eq!(died("died-before-commit"), (json!(10), json!(10)));
    assert_eq!(died("died-after-commit"), (json!(10), json!(5)));
    assert_eq!(
        (&step("twice")[0]["deliveries"], &step("twice")[0]["calls"]),
        (&json!(10), &json!(5))
    );
    assert_eq!(step("shuffled").len(), 5);
    assert_eq!(report.report["expected"], 1);
}

#[test]
fn the_newest_version_without_claims() {
    let tables =
        "CREATE TABLE profiles (id text PRIMARY KEY, name text NOT NULL, version bigint NOT NULL);";
    let messages = [
        named("m1", "a", 0, "one", 1),
        named("m2", "a", 0, "two", 2),
        named("m3", "b", 0, "three", 1),
        named("m4", "a", 0, "four", 3),
    ];
    Place::new("newest", "dedup = \"off\"", tables, &messages)
        .report(&[])
        .assert_passed();
}

#[test]
fn a_keyed_insert_without_claims() {
    let tables = "CREATE TABLE payments (id text PRIMARY KEY, amount bigint NOT NULL, at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP);";
    let report = Place::new("keyed", "dedup = \"off\"", tables, &changes()).report(&[]);
    report.assert_passed();
    assert_eq!(
        report.report["left_out"],
        json!([{ "table": "payments", "column": "at", "why": "filled by the database with CURRENT_TIMESTAMP" }])
    );
}

/// Numbers of rows, and what refers to them, depend on the order.
pub(crate) fn serial(number: &str) -> Place {
    let tables = format!(
        "CREATE TABLE entries (number {number}, message text NOT NULL, amount bigint NOT NULL);\n\
         CREATE TABLE notes (entry bigint NOT NULL REFERENCES entries (number), account text NOT NULL);"
    );
    Place::new("serial", "", &tables, &changes())
}

#[test]
fn serials_and_what_refers_to_them() {
    let report = serial("integer PRIMARY KEY").report(&[]);
    report.assert_passed();
    let names: Vec<String> = report.report["left_out"]
        .as_array()
        .unwrap()
        .iter()
        .map(|out| {
            format!(
                "{}.{}",
                out["table"].as_str().unwrap(),
                out["column"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(names, ["entries.number", "notes.entry"]);
    assert_eq!(report.report["published"], 5);
}

#[test]
fn an_error_in_a_savepoint() {
    let tables = "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);";
    Place::new("savepoint", "", tables, &changes())
        .report(&[])
        .assert_passed();
}

#[test]
fn the_last_one_wins_where_the_order_is_kept() {
    last_wins("order_by = \"json:/account\"")
        .report(&["--shuffles", "20"])
        .assert_passed();
}

/// A message that comes too early waits for the one that it needs; what can never be is refused.
#[test]
fn retries_and_rejects() {
    let tables = "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);";
    let messages = [
        named("m1", "a", 10, "open", 0),
        change("m2", "a", 5),
        change("m3", "a", 0),
        named("m4", "b", 10, "open", 0),
        change("m5", "b", 7),
    ];
    let place = Place::new("transfer", "", tables, &messages);
    place.write(
        "expected.jsonl",
        "{\"table\": \"accounts\", \"rows\": [{\"id\": \"a\", \"balance\": 15}, {\"id\": \"b\", \"balance\": 17}]}\n\
         {\"dead\": [{\"id\": \"m3\", \"class\": \"rejected\", \"reason\": \"nothing\"}]}\n",
    );
    place.report(&[]).assert_passed();
}
