//! `dead-letters`: what is listed, shown and decided, and the sentence and the hint of each refusal.

use serde_json::{Value, json};

use crate::place::{NO_POSTGRES, Place, assert_fails, assert_prints, handler_table};
use crate::support::database::TestStore;
use crate::support::host::Output;

/// A place where `n` messages were rejected, each with its own number in the words.
fn rejected(n: usize) -> Place {
    let place = Place::with_queue("");
    for n in 1..=n {
        send(
            &place,
            &format!("m{n}"),
            &json!([{ "reject": format!("no account {n}") }]),
        );
    }
    run(&place);
    place
}

fn send(place: &Place, id: &str, steps: &Value) {
    let payload = json!({ "steps": steps }).to_string();
    let output = place.hapax(&["send", "orders", &payload, "--id", id]);
    assert!(output.status.success(), "{}", output.err);
}

fn run(place: &Place) {
    let output = place.hapax(&["run", "--until-idle"]);
    assert!(output.status.success(), "{}", output.err);
}

fn letters(place: &Place, arguments: &[&str]) -> Output {
    let arguments: Vec<&str> = std::iter::once("dead-letters")
        .chain(arguments.iter().copied())
        .collect();
    place.hapax(&arguments)
}

#[track_caller]
fn json_of(output: &Output) -> Value {
    assert_eq!((output.status.code(), output.err.as_str()), (Some(0), ""));
    serde_json::from_str(&output.out).unwrap()
}

fn list(place: &Place, arguments: &[&str]) -> Vec<Value> {
    let arguments: Vec<&str> = ["list", "--json"]
        .into_iter()
        .chain(arguments.iter().copied())
        .collect();
    let listed = json_of(&letters(place, &arguments));
    listed["dead_letters"].as_array().unwrap().clone()
}

fn numbers(place: &Place, arguments: &[&str]) -> Vec<i64> {
    list(place, arguments)
        .iter()
        .map(|letter| letter["number"].as_i64().unwrap())
        .collect()
}

/// Runs SQL of the test's own.
async fn sql(place: &Place, sql: &str) {
    place.sqlite().await.run(sql).await;
}

#[test]
fn where_there_are_none() {
    let place = Place::with_queue("");
    for arguments in [
        &["list"][..],
        &["list", "--group"],
        &["replay", "--all"],
        &["drop", "--handler", "ship"],
    ] {
        assert_prints(&letters(&place, arguments), "no dead letters\n");
    }
    let output = letters(&place, &["export"]);
    assert_eq!(
        (output.out.as_str(), output.err.as_str()),
        ("", "exported 0 dead letters\n")
    );
}

#[tokio::test]
async fn the_list_on_postgres() {
    let store = TestStore::empty_postgres().await;
    let place = Place::new(&format!(
        "[store]\nurl = \"{}\"\n[sources.orders]\nkind = \"queue\"\n{}",
        store.url,
        handler_table("ship", "orders")
    ));
    send(&place, "m1", &json!([{ "reject": "no" }]));
    run(&place);
    assert_eq!(
        numbers(&place, &["--since", "1h", "--class", "rejected"]),
        [1]
    );
    assert_eq!(
        numbers(&place, &["--since", "2100-01-01T00:00:00Z"]),
        [0_i64; 0]
    );
    let shown = letters(&place, &["show", "1"]);
    assert!(shown.out.starts_with("dead letter 1\n"), "{}", shown.out);
}

#[tokio::test]
async fn the_list_is_a_table_that_fits() {
    let place = rejected(2);
    send(
        &place,
        &"long-id-".repeat(20),
        &json!([{ "reject": "x ".repeat(500) }]),
    );
    run(&place);
    sql(
        &place,
        "UPDATE hapax_dead_letters SET dead_at = '2026-05-01T12:00:00.123Z'",
    )
    .await;
    letters(&place, &["replay", "1"]);
    let output = letters(&place, &["list"]);
    let (first, others) = output.out.split_once("\n3 ").unwrap();
    assert_eq!(
        first,
        "number  dead since            handler  class     runs  replay  message id            reason"
    );
    assert!(
        output.out.lines().all(|line| line.chars().count() <= 120),
        "{}",
        output.out
    );
    assert!(others.contains('…'));
    assert!(
        output.out.ends_with(
            "2       2026-05-01T12:00:00Z  ship     rejected  1     -       m2                    no account 2\n\
             1       2026-05-01T12:00:00Z  ship     rejected  1     queued  m1                    no account 1\n"
        ),
        "{}",
        output.out
    );
    let output = letters(&place, &["list", "--limit", "2"]);
    assert_eq!(output.out.lines().count(), 3);
    assert_eq!(
        output.err,
        "note: there are more than 2\nhint: raise `--limit`, or see them in groups with `--group`\n"
    );
    let all = list(&place, &["--id", "m1"]);
    assert_eq!(all.len(), 1);
    let fingerprint = all[0]["fingerprint"].clone();
    assert_eq!(
        all[0],
        json!({
            "number": 1, "handler": "ship", "consumer": "ship", "message_id": "m1", "source": "orders", "position": "1",
            "class": "rejected", "reason": "no account 1", "fingerprint": fingerprint, "attempts": 1,
            "dead_at": "2026-05-01T12:00:00.123000Z", "bytes": 37, "queued": true,
        })
    );
}

#[tokio::test]
async fn filters_and_groups() {
    let place =
        Place::with_queue("retry = { attempts = 1, backoff = \"1ms\" }\nconsumer = \"shipping\"");
    for n in 1..=3 {
        send(
            &place,
            &format!("r{n}"),
            &json!([{ "reject": format!("no account {n} in `{n}{n}`") }]),
        );
    }
    send(&place, "p1", &json!([{ "panic": "boom 1" }]));
    send(&place, "p2", &json!([{ "panic": "boom 2" }]));
    run(&place);
    for n in 1..=5 {
        let at = format!(
            "UPDATE hapax_dead_letters SET dead_at = '2026-05-01T12:00:0{n}.000Z' WHERE id = {n}"
        );
        sql(&place, &at).await;
    }
    assert_eq!(numbers(&place, &[]), [5, 4, 3, 2, 1]);
    assert_eq!(numbers(&place, &["--class", "trapped"]), [5, 4]);
    assert_eq!(numbers(&place, &["--id", "r2"]), [2]);
    assert_eq!(
        numbers(&place, &["--since", "2026-05-01T12:00:04Z"]),
        [5, 4]
    );
    assert_eq!(numbers(&place, &["--handler", "ship", "--limit", "1"]), [5]);
    assert_eq!(numbers(&place, &["--handler", "shipping"]).len(), 5);
    assert_eq!(numbers(&place, &["--handler", "other"]), [0_i64; 0]);
    // Its name is another since; the consumer is the same.
    let config = std::fs::read_to_string(place.path().join("hapax.toml")).unwrap();
    place.write(
        "hapax.toml",
        config.replace("[handlers.ship]", "[handlers.renamed]"),
    );
    assert_eq!(numbers(&place, &["--handler", "renamed"]).len(), 5);

    let groups = json_of(&letters(&place, &["list", "--group", "--json"]));
    let groups = groups["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 2, "{groups:?}");
    assert_eq!(
        (
            &groups[0]["count"],
            &groups[0]["class"],
            &groups[0]["reason"],
            &groups[0]["number"]
        ),
        (
            &json!(3),
            &json!("rejected"),
            &json!("no account 3 in `33`"),
            &json!(3)
        )
    );
    assert_eq!(
        (&groups[0]["first"], &groups[0]["last"]),
        (
            &json!("2026-05-01T12:00:01.000000Z"),
            &json!("2026-05-01T12:00:03.000000Z")
        )
    );
    let fingerprint = groups[1]["fingerprint"].as_str().unwrap();
    assert_eq!(numbers(&place, &["--fingerprint", fingerprint]), [5, 4]);
    assert_eq!(
        numbers(&place, &["--fingerprint", &fingerprint[..6]]),
        [5, 4]
    );
    let text = letters(&place, &["list", "--group"]).out;
    let rejected = groups[0]["fingerprint"].as_str().unwrap();
    assert!(
        text.contains(&format!(
            "{rejected}  3      0       rejected  2026-05-01T12:00:01Z  2026-05-01T12:00:03Z  no account 3 in `33`\n"
        )),
        "{text}"
    );

    // A group is replayed, and no other.
    let output = letters(
        &place,
        &["replay", "--fingerprint", fingerprint, "--yes", "--json"],
    );
    assert_eq!(
        json_of(&output),
        json!({ "queued": [4, 5], "queued_already": [], "refused": [] })
    );
}

#[tokio::test]
async fn all_that_was_kept_is_shown() {
    let place = Place::with_queue("retry = { attempts = 2, backoff = \"1ms\" }");
    send(&place, "p", &json!([{ "panic": "out of\nluck" }]));
    run(&place);
    sql(
        &place,
        "UPDATE hapax_dead_letters SET headers = '[[\"A\",\"text\"],[\"B\",{\"base64\":\"/wA=\"}]]', content_type = 'application/json', \
         published_at = '2026-05-01T11:00:00.123456Z', dead_at = '2026-05-01T12:00:00.000Z', subject = 'a\x1b[31m'",
    )
    .await;
    let output = letters(&place, &["show", "1"]);
    assert_eq!((output.status.code(), output.err.as_str()), (Some(0), ""));
    let text = &output.out;
    for part in [
        "dead letter 1\n  handler      ship\n  consumer     ship\n  message id   p\n  source       orders at 1\n  \
         subject      a\\u{1b}[31m\n  published    2026-05-01T11:00:00Z\n  dead since   2026-05-01T12:00:00Z\n  \
         class        trapped\n  component    ",
        "\nreason\n  panic: out of\n  luck\n",
        "\nheaders (2)\n  A: text\n  B: (not UTF-8) ff00\n",
        "\npayload (36 bytes, application/json)\n  {\n    \"steps\": [\n      {\n        \"panic\": \"out of\\nluck\"\n      }\n    ]\n  }\n",
        "\nattempts (2)\n  1  2",
        "  trapped  component ",
        "\n     panic: out of\n     luck\n",
        "\n  2  2",
    ] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
    let shown = json_of(&letters(&place, &["show", "1", "--json"]));
    assert_eq!(shown["queued"], false);
    let letter = &shown["dead_letter"];
    assert_eq!(letter["message_id"], "p");
    assert_eq!(letter["attempts"].as_array().unwrap().len(), 2);
    assert_eq!(letter["headers"][1], json!(["B", { "base64": "/wA=" }]));
    letters(&place, &["replay", "1"]);
    let text = letters(&place, &["show", "1"]).out;
    assert!(
        text.starts_with("dead letter 1 (queued for replay)\n"),
        "{text}"
    );
}

#[tokio::test]
async fn a_payload_is_written_byte_for_byte() {
    let place = rejected(1);
    let every: Vec<u8> = (0..=255).collect();
    let hex: String = every.iter().map(|byte| format!("{byte:02x}")).collect();
    sql(
        &place,
        &format!("UPDATE hapax_dead_letters SET payload = X'{hex}'"),
    )
    .await;
    assert_prints(
        &letters(&place, &["show", "1", "--payload", "p.bin"]),
        "wrote 256 bytes to `p.bin`\n",
    );
    assert_eq!(std::fs::read(place.path().join("p.bin")).unwrap(), every);
    let output = crate::support::host::hapax()
        .args(["dead-letters", "show", "1", "--payload", "-"])
        .current_dir(place.path())
        .output()
        .unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, every);
    let text = letters(&place, &["show", "1"]).out;
    assert!(
        text.contains(
            "\n  00000010  10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f  ................\n  \
             00000020  20 21 22 23 24 25 26 27 28 29 2a 2b 2c 2d 2e 2f   !\"#$%&'()*+,-./\n"
        ),
        "{text}"
    );
    assert_fails(
        &letters(&place, &["show", "1", "--payload", "no/p.bin"]),
        1,
        "error: cannot write `no/p.bin`: No such file or directory (os error 2)\n\
         hint: name a file in a folder that is there and writable",
    );
}

#[test]
fn what_is_not_said_or_not_there() {
    let place = rejected(2);
    assert_fails(
        &letters(&place, &["show", "7"]),
        1,
        "error: there is no dead letter 7\nhint: `hapax dead-letters list` shows the numbers",
    );
    for command in ["replay", "drop"] {
        assert_fails(
            &letters(&place, &[command]),
            2,
            "error: which dead letters are meant is not said\n\
             hint: name their numbers, a filter such as `--handler` or `--fingerprint`, or `--all`",
        );
    }
    for (command, done) in [("replay", "replayed"), ("drop", "dropped")] {
        for arguments in [&[command, "--all"][..], &[command, "1", "2"]] {
            assert_fails(
                &letters(&place, arguments),
                2,
                &format!(
                    "error: 2 dead letters would be {done}, and there is no terminal to ask at\nhint: say `--yes`"
                ),
            );
        }
    }
    assert_fails(
        &letters(&place, &["drop", "1"]),
        2,
        "error: 1 dead letter would be dropped, and there is no terminal to ask at\nhint: say `--yes`",
    );
    assert_eq!(numbers(&place, &[]), [2, 1]);
    let output = letters(&place, &["replay", "1", "7", "--yes"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        output.out,
        "queued 1 dead letter for replay; a running `hapax run` processes them\n"
    );
    let not_there =
        "error: there is no dead letter 7\nhint: `hapax dead-letters list` shows the numbers\n";
    assert_eq!(output.err, not_there);
    let output = letters(&place, &["drop", "1", "7", "--yes"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        output.out,
        "dropped 1 dead letter; its id stays claimed, so that a redelivery stays a duplicate\n"
    );
    assert_eq!(output.err, not_there);
    let output = letters(&place, &["export", "2", "7"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.out.lines().count(), 1);
    assert_eq!(
        output.err,
        "exported 1 dead letter\nerror: not there: 1 of the dead letters that were named\n\
         hint: `hapax dead-letters list` shows the numbers\n"
    );
}

#[tokio::test]
async fn a_replay_is_queued_once_or_refused() {
    let place = rejected(3);
    let queued = "queued 1 dead letter for replay; a running `hapax run` processes them\n";
    assert_prints(&letters(&place, &["replay", "1"]), queued);
    assert_prints(
        &letters(&place, &["replay", "1"]),
        "dead letter 1 is queued already\n",
    );
    assert_prints(
        &letters(&place, &["replay", "--all", "--yes"]),
        "queued 2 dead letters for replay; a running `hapax run` processes them\ndead letter 1 is queued already\n",
    );
    assert_prints(
        &letters(&place, &["replay", "--all", "--yes"]),
        "3 dead letters are queued already\n",
    );
    // They count as waiting.
    let status = json_of(&place.hapax(&["status", "--json"]));
    assert_eq!(status["handlers"][0]["backlog"], 3);
    run(&place);
    assert_eq!(numbers(&place, &[]), [3, 2, 1]);

    sql(
        &place,
        "UPDATE hapax_processed_messages SET outcome = 'done' WHERE message_id = 'm1'; \
         UPDATE hapax_dead_letters SET class = 'conflict' WHERE id = 2; \
         UPDATE hapax_dead_letters SET consumer = 'gone' WHERE id = 3",
    )
    .await;
    let output = letters(&place, &["replay", "--all", "--yes"]);
    assert_fails(
        &output,
        1,
        "error: dead letter 1 is not replayed: its message id `m1` was processed\n\
         hint: `--force` runs it without a claim; `hapax dead-letters drop 1` removes it\n\
         error: dead letter 2 is not replayed: its message id `m2` belongs to another dead letter, with another payload\n\
         hint: `--force` runs it without a claim; `hapax dead-letters drop 2` removes it\n\
         error: dead letter 3 is not replayed: no handler has its consumer `gone`\n\
         hint: configure one with `consumer = \"gone\"`",
    );
    let output = letters(&place, &["replay", "--all", "--yes", "--force", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let said: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(
        said,
        json!({
            "queued": [1, 2], "queued_already": [],
            "refused": [{ "number": 3, "reason": "no-handler", "about": "gone" }],
        })
    );
}

#[test]
fn many_refusals_are_counted() {
    let place = rejected(0);
    let wanted: Vec<String> = (1..=13).map(|n| n.to_string()).collect();
    let arguments: Vec<&str> = ["replay", "--yes"]
        .into_iter()
        .chain(wanted.iter().map(String::as_str))
        .collect();
    let output = letters(&place, &arguments);
    assert_eq!((output.status.code(), output.out.as_str()), (Some(1), ""));
    assert_eq!(
        output.err.matches("error: there is no dead letter").count(),
        10
    );
    assert!(
        output
            .err
            .ends_with("error: 3 more are not replayed\nhint: `--json` names each\n"),
        "{}",
        output.err
    );
}

#[test]
fn dropped_letters_stay_duplicates() {
    let place = rejected(2);
    letters(&place, &["replay", "1"]);
    assert_prints(
        &letters(&place, &["drop", "--all", "--yes"]),
        "dropped 2 dead letters; their ids stay claimed, so that a redelivery stays a duplicate\n",
    );
    let status =
        |key: &str| json_of(&place.hapax(&["status", "--json"]))["handlers"][0][key].clone();
    // Its queued replay went with it.
    assert_eq!((status("dead"), status("backlog")), (json!(0), json!(0)));
    send(&place, "m1", &json!([{ "reject": "no account 1" }]));
    run(&place);
    assert_eq!((status("dead"), status("duplicates")), (json!(0), json!(1)));
}

/// Every byte in payload and headers, a missing id, a conflict, attempts, a letter without a claim.
async fn exported_letters_come_back(place: &Place) {
    send(place, "done", &json!([]));
    send(place, "done", &json!([{ "log": { "message": "another" } }]));
    for n in 1..=3 {
        send(
            place,
            &format!("m{n}"),
            &json!([{ "panic": format!("boom\u{e9} {n}") }]),
        );
    }
    run(place);
}

async fn export_drop_import_list_is_the_same(
    place: Place,
    mut probe: crate::support::database::Probe,
) {
    exported_letters_come_back(&place).await;
    let hex: String = (0..=255).map(|byte: u8| format!("{byte:02x}")).collect();
    let (tables, payload) = match probe {
        crate::support::database::Probe::Postgres(_) => ("hapax.", format!("'\\x{hex}'")),
        crate::support::database::Probe::Sqlite(_) => ("hapax_", format!("X'{hex}'")),
    };
    let headers = r#"[["A","text"],["B",{"base64":"gP8A"}],["b",""]]"#;
    probe
        .run(&format!(
            "UPDATE {tables}dead_letters SET payload = {payload}, headers = '{headers}', queue_id = 'q', content_type = 'x/y' \
             WHERE message_id = 'm1'; \
             UPDATE {tables}dead_letters SET message_id = NULL, class = 'missing-id' WHERE message_id = 'm2'; \
             DELETE FROM {tables}processed_messages WHERE message_id IN ('m2', 'm3');"
        ))
        .await;
    let all = |place: &Place| {
        let list = list(place, &[]);
        let shown: Vec<Value> = list
            .iter()
            .map(|letter| {
                json_of(&letters(
                    place,
                    &["show", &letter["number"].to_string(), "--json"],
                ))
            })
            .collect();
        (list, shown)
    };
    let before = all(&place);
    assert_eq!(before.0.len(), 4);
    let output = letters(&place, &["export", "-o", "letters.jsonl"]);
    assert_eq!(output.err, "exported 4 dead letters\n");
    let exported = std::fs::read_to_string(place.path().join("letters.jsonl")).unwrap();
    assert_eq!(exported.lines().count(), 4);
    assert!(
        exported
            .lines()
            .all(|line| line.starts_with("{\"hapax_dead_letter\":1,"))
    );
    assert_eq!(letters(&place, &["export"]).out, exported);

    // What is there is left out.
    assert_prints(
        &letters(&place, &["import", "letters.jsonl"]),
        "imported 0 dead letters\nleft out 4 dead letters: there already\n",
    );
    letters(&place, &["drop", "--all", "--yes"]);
    // Their claims are gone too, as in another store.
    probe
        .run(&format!(
            "DELETE FROM {tables}processed_messages WHERE outcome = 'dead'"
        ))
        .await;
    assert_eq!(list(&place, &[]).len(), 0);
    assert_prints(
        &place.hapax_reading(exported.as_bytes(), &["dead-letters", "import", "-"]),
        "imported 4 dead letters\n",
    );
    assert_eq!(all(&place), before);
    assert_eq!(letters(&place, &["export"]).out, exported);
    let dead = format!("SELECT count(*) FROM {tables}processed_messages WHERE outcome = 'dead'");
    assert_eq!(probe.number(&dead).await, 1);

    // A message that was processed meanwhile does not come back.
    let m3 = before
        .0
        .iter()
        .find(|letter| letter["message_id"] == "m3")
        .unwrap();
    letters(&place, &["drop", &m3["number"].to_string(), "--yes"]);
    let (hash, digits) = match probe {
        crate::support::database::Probe::Postgres(_) => ("'\\x", "'"),
        crate::support::database::Probe::Sqlite(_) => ("X'", "'"),
    };
    let payload = json!({ "steps": [{ "panic": "boom\u{e9} 3" }] }).to_string();
    let sha = hapax::message::ShortHash::of_payload(payload.as_bytes()).to_hex();
    probe
        .run(&format!(
            "INSERT INTO {tables}processed_messages (consumer, message_id, outcome, payload_hash) \
             VALUES ('ship', 'm3', 'done', {hash}{sha}{digits})"
        ))
        .await;
    let output = letters(&place, &["import", "letters.jsonl", "--json"]);
    assert_eq!(
        json_of(&output),
        json!({ "imported": 0, "renumbered": 0, "there_already": 3, "processed_already": 1 })
    );

    // Another store has other numbers.
    let other = Place::with_queue("");
    let last: String = exported.split_inclusive('\n').skip(2).collect();
    other.write("letters.jsonl", last);
    assert_prints(
        &letters(&other, &["import", "letters.jsonl"]),
        "imported 2 dead letters, 2 under a new number\n",
    );
    assert_eq!(numbers(&other, &[]), [2, 1]);
}

#[tokio::test]
async fn export_drop_import_list_is_the_same_on_sqlite() {
    let place = Place::with_queue("retry = { attempts = 2, backoff = \"1ms\" }");
    place.hapax(&["status"]);
    let probe = place.sqlite().await;
    export_drop_import_list_is_the_same(place, probe).await;
}

#[tokio::test]
async fn export_drop_import_list_is_the_same_on_postgres() {
    let store = TestStore::empty_postgres().await;
    let place = Place::new(&format!(
        "[store]\nurl = \"{}\"\n[sources.orders]\nkind = \"queue\"\n{}retry = {{ attempts = 2, backoff = \"1ms\" }}",
        store.url,
        handler_table("ship", "orders")
    ));
    let probe = store.probe().await;
    export_drop_import_list_is_the_same(place, probe).await;
}

#[test]
fn an_import_is_whole_or_nothing() {
    let place = rejected(2);
    let exported = letters(&place, &["export"]).out;
    letters(&place, &["drop", "--all", "--yes"]);
    let lines: Vec<&str> = exported.lines().collect();
    for (second, says) in [
        (
            "{}".to_owned(),
            "this is no dead letter\nhint: name a file that `hapax dead-letters export` wrote",
        ),
        (
            lines[1].replace("\"hapax_dead_letter\":1", "\"hapax_dead_letter\":2"),
            "the dead letter has version 2; this binary reads version 1\n\
             hint: import it with the version of hapax that exported it",
        ),
        (
            lines[1].replace("\"rejected\"", "\"sad\""),
            "`sad` is no class",
        ),
        (
            lines[1].replace("\"text\":", "\"txt\":"),
            "unknown variant `txt`, expected `text` or `base64`\nhint: name a file that `hapax dead-letters export` wrote",
        ),
    ] {
        place.write("letters.jsonl", format!("{}\n{second}\n", lines[0]));
        assert_fails(
            &letters(&place, &["import", "letters.jsonl"]),
            1,
            &format!("error: `letters.jsonl`, line 2: {says}\nnote: nothing was imported"),
        );
        assert_eq!(list(&place, &[]).len(), 0);
    }
    assert_fails(
        &letters(&place, &["import", "none.jsonl"]),
        1,
        "error: cannot read `none.jsonl`: No such file or directory (os error 2)\n\
         hint: name a file that can be read, or `-` for standard input",
    );
    assert_fails(
        &letters(&place, &["export", "-o", "no/letters.jsonl"]),
        1,
        "error: cannot write `no/letters.jsonl`: No such file or directory (os error 2)\n\
         hint: name a file in a folder that is there and writable",
    );
}

#[test]
fn a_database_that_cannot_be_reached_is_an_error() {
    let place = Place::new(&format!(
        "[store]\nurl = \"{NO_POSTGRES}\"\n[sources.orders]\nkind = \"queue\"\n{}",
        handler_table("ship", "orders")
    ));
    for arguments in [
        &["list"][..],
        &["show", "1"],
        &["replay", "1"],
        &["drop", "1", "--yes"],
        &["export"],
    ] {
        assert_fails(
            &letters(&place, arguments),
            1,
            "error: cannot read the dead letters: cannot connect to `postgres://u@127.0.0.1:1/db`: Connection refused (os error 111)\n\
             hint: check `store.url` in the configuration, and that the database runs",
        );
    }
}
