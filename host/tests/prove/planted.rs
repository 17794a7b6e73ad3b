//! Ten bugs, each found for its reason.

use serde_json::json;

use crate::place::{ACCOUNTS, Place, assert_because, change, changes, named};

pub(crate) fn counter_without_claims() -> Place {
    Place::new("counter", "dedup = \"off\"", ACCOUNTS, &changes())
}

pub(crate) fn lost_update() -> Place {
    let tables = format!("{ACCOUNTS}\nCREATE TABLE seen (account text PRIMARY KEY);");
    Place::new("lost-update", "", &tables, &changes())
}

pub(crate) fn random_id() -> Place {
    Place::new("random-id", "", ACCOUNTS, &changes())
}

pub(crate) fn decision_on_now() -> Place {
    let tables = "CREATE TABLE early (id text PRIMARY KEY, amount bigint NOT NULL);\n\
                  CREATE TABLE late (id text PRIMARY KEY, amount bigint NOT NULL);";
    Place::new("decision-on-now", "", tables, &changes())
}

pub(crate) fn last_wins(handler: &str) -> Place {
    let tables = "CREATE TABLE profiles (id text PRIMARY KEY, name text NOT NULL);";
    let messages = [
        named("m1", "a", 0, "one", 1),
        named("m2", "b", 0, "two", 1),
        named("m3", "a", 0, "three", 2),
        named("m4", "c", 0, "four", 1),
        named("m5", "d", 0, "five", 1),
    ];
    Place::new("last-wins", handler, tables, &messages)
}

#[test]
fn a_counter_without_claims() {
    let report = counter_without_claims().report(&[]);
    let finding = report.the_finding("twice");
    assert_eq!(finding["messages"], json!(["m1", "m1"]));
    assert_eq!(
        finding["differences"],
        json!([{
            "table": "accounts", "columns": ["balance"],
            "reference": { "id": "a", "balance": 1 }, "found": { "id": "a", "balance": 2 },
        }])
    );
    assert_because(
        finding,
        &["written by `UPDATE accounts SET balance = balance + $1"],
    );
    assert!(finding["what"].as_str().unwrap().contains("without claims"));
    // The same cause would show in each of these.
    assert_eq!(
        report.report["left_steps"],
        json!([
            "twice",
            "rolled-back",
            "died-before-commit",
            "died-after-commit",
            "attempt",
            "shuffled"
        ])
    );
    report.assert_same_sql();
}

#[test]
fn a_lost_update_across_a_swallowed_error() {
    let report = lost_update().report(&[]);
    let finding = report.the_finding("once");
    // The third is the second one of its account.
    assert_eq!(finding["messages"], json!(["m3"]));
    assert_because(
        finding,
        &[
            "host call 2, execute `INSERT INTO seen (account) VALUES ($1)`",
            "constraint.unique",
            "the handler returned ok",
        ],
    );
}

#[test]
fn an_outbox_id_made_from_random() {
    let report = random_id().report(&[]);
    let finding = report.the_finding("again");
    assert_eq!(
        finding["messages"].as_array().unwrap().len(),
        1,
        "{finding:#}"
    );
    let difference = &finding["differences"][0];
    assert_eq!(
        (&difference["table"], &difference["columns"]),
        (&json!("(outbox)"), &json!(["headers"]))
    );
    assert_because(finding, &["random() in `SELECT CAST(random() AS text)`"]);
    let sql = report.the_sql("random()");
    assert_eq!(sql["statement"], "SELECT CAST(random() AS text)");
}

#[test]
fn a_decision_on_now() {
    let report = decision_on_now().report(&[]);
    // No two runs differ, since the moment that it decides by is far away.
    assert_eq!(
        (report.code, &report.report["findings"]),
        (Some(1), &json!([]))
    );
    let sql = report.the_sql("CURRENT_TIMESTAMP");
    assert_eq!(sql["statement"], "SELECT CAST(CURRENT_TIMESTAMP AS text)");
    assert_eq!(
        sql["reaches"],
        "the handler, which may decide or write by it"
    );
}

#[test]
fn an_insert_without_key_without_claims() {
    let tables = "CREATE TABLE log (account text NOT NULL, amount bigint NOT NULL);";
    let report = Place::new("no-key", "dedup = \"off\"", tables, &changes()).report(&[]);
    let finding = report.the_finding("twice");
    assert_eq!(finding["messages"], json!(["m1", "m1"]));
    assert_eq!(
        finding["differences"],
        json!([{ "table": "log", "columns": [], "reference": null, "found": { "account": "a", "amount": 1 } }])
    );
    assert_because(finding, &["`log` has no primary key"]);
    assert_because(finding, &["written by `INSERT INTO log"]);
}

#[test]
fn order_dependence_without_order_by() {
    let report = last_wins("").report(&[]);
    let finding = report.the_finding("shuffled");
    // Of five messages the two that are for one profile, the other way round.
    assert_eq!(finding["messages"], json!(["m3", "m1"]));
    assert_eq!(
        finding["differences"],
        json!([{
            "table": "profiles", "columns": ["name"],
            "reference": { "id": "a", "name": "three" }, "found": { "id": "a", "name": "one" },
        }])
    );
    assert!(finding["seed"].as_u64().is_some_and(|seed| seed >= 7));
    assert_because(finding, &["written by `INSERT INTO profiles"]);
    report.assert_same_sql();
}

#[test]
fn a_swallowed_unique_violation() {
    let tables = "CREATE TABLE payments (id text PRIMARY KEY, amount bigint NOT NULL);";
    let place = Place::new("swallowed-unique", "dedup = \"off\"", tables, &changes());
    let report = place.report(&[]);
    let finding = report.the_finding("twice");
    assert_eq!(finding["messages"], json!(["m1", "m1"]));
    let difference = &finding["differences"][0];
    assert_eq!(
        (&difference["table"], &difference["found"]["class"]),
        (&json!("(dead letters)"), &json!("sql"))
    );
    assert_because(
        finding,
        &[
            "execute `INSERT INTO payments (id, amount) VALUES ($1, $2)`, failed with constraint.unique",
            "the handler returned ok",
        ],
    );
}

#[test]
fn an_attempt_used_as_a_value() {
    let tables = "CREATE TABLE tries (id text PRIMARY KEY, attempt bigint NOT NULL);";
    let report = Place::new("attempt", "", tables, &changes()).report(&[]);
    let finding = report.the_finding("attempt");
    assert_eq!(finding["messages"].as_array().unwrap().len(), 1);
    let difference = &finding["differences"][0];
    assert_eq!(difference["columns"], json!(["attempt"]));
    assert_eq!(
        (
            &difference["reference"]["attempt"],
            &difference["found"]["attempt"]
        ),
        (&json!(1), &json!(2))
    );
    assert!(
        finding["what"]
            .as_str()
            .unwrap()
            .contains("attempt 2 instead of 1")
    );
}

#[test]
fn a_float_sum() {
    let tables = "CREATE TABLE totals (id text PRIMARY KEY, total double precision NOT NULL);\n\
                  INSERT INTO totals (id, total) VALUES ('a', 0);";
    // (0.1 + 0.2) + 0.3 is not 0.1 + (0.2 + 0.3).
    let messages = [
        change("m1", "a", 1),
        change("m2", "a", 2),
        change("m3", "a", 3),
    ];
    let report = Place::new("float-sum", "", tables, &messages).report(&[]);
    let finding = report.the_finding("shuffled");
    assert_eq!(
        finding["messages"].as_array().unwrap().len(),
        3,
        "{finding:#}"
    );
    assert_eq!(finding["differences"][0]["columns"], json!(["total"]));
    assert_because(
        finding,
        &[
            "`totals.total` holds floating-point numbers",
            "order of its parts",
        ],
    );
}

/// In another order other messages get other rows.
#[test]
fn an_unordered_limit_that_shows() {
    let tables = "CREATE TABLE stock (id text PRIMARY KEY, taken_by text);\n\
                  INSERT INTO stock (id) VALUES ('x'), ('y'), ('z');";
    let messages = [
        change("m1", "a", 1),
        change("m2", "a", 1),
        change("m3", "a", 1),
    ];
    let report = Place::new("unordered-limit", "", tables, &messages).report(&[]);
    let finding = report.the_finding("shuffled");
    assert_eq!(
        finding["messages"].as_array().unwrap().len(),
        2,
        "{finding:#}"
    );
    assert_because(
        finding,
        &["LIMIT without ORDER BY in `SELECT id FROM stock WHERE taken_by IS NULL LIMIT 1`"],
    );
}

#[test]
fn an_unordered_limit() {
    let tables = "CREATE TABLE stock (id text PRIMARY KEY, taken_by text);\n\
                  INSERT INTO stock (id) VALUES ('x'), ('y'), ('z');";
    let messages = [change("m1", "a", 1)];
    let report = Place::new("unordered-limit", "", tables, &messages).report(&[]);
    // With one message there is nothing to run in another order: only the statement tells.
    assert_eq!(
        (report.code, &report.report["findings"]),
        (Some(1), &json!([]))
    );
    let sql = report.the_sql("LIMIT without ORDER BY");
    assert_eq!(
        (&sql["statement"], &sql["reaches"]),
        (
            &json!("SELECT id FROM stock WHERE taken_by IS NULL LIMIT 1"),
            &json!("the handler, which may decide or write by it")
        )
    );
}
