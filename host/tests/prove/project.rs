//! The project's files, the texts, and what can be said about them.

use serde_json::json;

use crate::place::{ACCOUNTS, Place, change, changes};

fn add() -> Place {
    Place::new("add", "", ACCOUNTS, &changes())
}

#[test]
fn expectations_that_are_not_met_are_shown() {
    let place = add();
    place.write(
        "expected.jsonl",
        "{\"table\": \"accounts\", \"rows\": [{\"id\": \"a\", \"balance\": 9}, {\"id\": \"b\", \"balance\": 7}]}\n",
    );
    let report = place.report(&[]);
    let finding = report.the_finding("expected");
    assert_eq!(
        finding["differences"],
        json!([{
            "table": "accounts", "columns": ["balance"],
            "reference": { "id": "b", "balance": 7 }, "found": { "id": "b", "balance": 6 },
        }])
    );
    // All else was proved nevertheless.
    assert_eq!(report.report["left_steps"], json!([]));
}

#[test]
fn expectations_are_written_once_and_hold() {
    let place = add();
    let output = place.test(&[]);
    assert!(
        output.out.contains("there is no `expected.jsonl`"),
        "{output:?}"
    );
    let output = place.test(&["--write-expected"]);
    assert!(output.status.success(), "{output:?}");
    let written = std::fs::read_to_string(place.path().join("expected.jsonl")).unwrap();
    assert!(
        written.contains("{\"balance\":9,\"id\":\"a\"}"),
        "{written}"
    );
    let report = place.report(&[]);
    report.assert_passed();
    assert_eq!(report.report["expected"], 1);
    let output = place.test(&["--write-expected"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.err.contains("remove it first"), "{output:?}");
    assert_eq!(
        std::fs::read_to_string(place.path().join("expected.jsonl")).unwrap(),
        written
    );
}

#[test]
fn what_may_differ_can_be_said() {
    let tables = "CREATE TABLE stock (id text PRIMARY KEY, taken_by text);\nINSERT INTO stock (id) VALUES ('x');";
    let place = Place::new("unordered-limit", "", tables, &[change("m1", "a", 1)]);
    place.report(&["--allow", "limit"]).assert_passed();
    place.write("expected.jsonl", "{\"allow\": [\"limit\"]}\n");
    place.report(&[]).assert_passed();

    let tables = "CREATE TABLE tries (id text PRIMARY KEY, attempt bigint NOT NULL);";
    let place = Place::new("attempt", "", tables, &changes());
    place.report(&["--ignore", "tries.attempt"]).assert_passed();
    let output = place.test(&["--ignore", "attempt"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        output.err.contains("write it as `table.column`"),
        "{output:?}"
    );
}

#[test]
fn the_text_names_what_was_proved_and_what_was_found() {
    let output = add().test(&["--seed", "7"]);
    assert_eq!((output.status.code(), output.err.as_str()), (Some(0), ""));
    for words in [
        "handler `subject` on SQLite: 5 messages, with claims",
        "rolled-back         rolled back at each host call in turn, and run again (5 deliveries, 15 calls, all 10 places)",
        "in another order (seed 11)",
        "\npassed (",
    ] {
        assert!(
            output.out.contains(words),
            "no {words:?} in:\n{}",
            output.out
        );
    }
    let output = Place::new("counter", "dedup = \"off\"", ACCOUNTS, &changes()).test(&[]);
    assert_eq!(
        (output.status.code(), output.err.as_str()),
        (
            Some(1),
            "error: handler `subject` did not pass: 1 finding\n"
        )
    );
    for words in [
        "FOUND twice: delivered twice without claims",
        "  messages `m1`, `m1`\n",
        "  accounts, balance\n    once      {\"balance\":1,\"id\":\"a\"}\n    found     {\"balance\":2,\"id\":\"a\"}\n",
        "\nnot tried after that: ",
        "\ndid not pass: 1 found (",
    ] {
        assert!(
            output.out.contains(words),
            "no {words:?} in:\n{}",
            output.out
        );
    }
}

#[test]
fn a_message_without_an_id_is_a_dead_letter_and_no_place_to_break() {
    let mut messages = changes();
    messages.push(json!({ "payload": { "account": "a", "amount": 1 } }));
    let place = Place::new("add", "", ACCOUNTS, &messages);
    place.write(
        "expected.jsonl",
        "{\"dead\": [{\"id\": \"line 6\", \"class\": \"missing-id\"}]}\n",
    );
    let report = place.report(&[]);
    report.assert_passed();
    for step in report.report["steps"].as_array().unwrap() {
        assert_eq!(step["broken"], step["places"], "{step}");
    }
}

#[test]
fn the_bound_on_broken_places_is_kept_and_told() {
    let report = add().report(&["--breaks", "4"]);
    report.assert_passed();
    let steps = report.report["steps"].as_array().unwrap();
    let rolled_back = steps
        .iter()
        .find(|step| step["step"] == "rolled-back")
        .unwrap();
    assert_eq!(
        (&rolled_back["broken"], &rolled_back["places"]),
        (&json!(4), &json!(10))
    );
}

#[test]
fn mistakes_in_the_project_name_the_file_and_the_line() {
    let place = add();
    for (file, text, words) in [
        (
            "messages.jsonl",
            "\n{\"id\": \"m1\"}\n",
            "`./messages.jsonl`, line 2: missing field `payload`",
        ),
        (
            "messages.jsonl",
            "\n",
            "`./messages.jsonl` holds no message",
        ),
        (
            "expected.jsonl",
            "{\"table\": \"accounts\"}\n",
            "`./expected.jsonl`, line 1: `table` and `rows` go together",
        ),
        (
            "expected.jsonl",
            "{\"tabel\": \"accounts\"}\n",
            "`./expected.jsonl`, line 1: unknown field `tabel`",
        ),
        (
            "expected.jsonl",
            "{\"table\": \"acounts\", \"rows\": []}\n",
            "a table `acounts`, which the migrations do not make",
        ),
        (
            "migrations/0001_tables.sql",
            "CREATE TABEL x;",
            "the database refuses the migration `0001_tables.sql`",
        ),
    ] {
        let before = std::fs::read_to_string(place.path().join(file)).ok();
        place.write(file, text);
        let output = place.test(&[]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(output.err.contains(words), "{words}: {output:?}");
        match before {
            Some(before) => place.write(file, &before),
            None => std::fs::remove_file(place.path().join(file)).unwrap(),
        }
    }
    let output = place.test(&["nowhere"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(output.err.contains("nowhere/hapax.toml"), "{output:?}");
    let output = place.test(&["--handler", "other"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
