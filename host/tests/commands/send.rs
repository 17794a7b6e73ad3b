//! `send`: which bytes arrive where, and what it says.

use async_nats::jetstream::{self, stream};

use crate::place::{
    NO_NATS, NO_POSTGRES, Place, assert_fails, assert_prints, handler_table, stream_table,
};
use crate::support::database::{Probe, TestStore};
use crate::support::nats::Nats;
use crate::support::postgres::Postgres;

/// Every byte there is, as a payload that is no text.
fn all_bytes() -> Vec<u8> {
    (0..=255).chain([b'\r', b'\n']).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The rows of the queue in their order: id, subject, headers, content type, and the payload in hexadecimal digits.
async fn rows(probe: &mut Probe) -> Vec<[String; 5]> {
    let fields = |payload: &str, headers: &str| {
        format!(
            "coalesce(message_id, 'NULL') || '|' || subject || '|' || {headers} || '|' || \
             coalesce(content_type, 'NULL') || '|' || {payload}"
        )
    };
    let sql = match probe {
        Probe::Sqlite(_) => format!(
            "SELECT group_concat(row, '~') FROM (SELECT {} AS row FROM hapax_queue ORDER BY number)",
            fields("lower(hex(payload))", "headers")
        ),
        Probe::Postgres(_) => format!(
            "SELECT string_agg({}, '~' ORDER BY number) FROM hapax.queue",
            fields("encode(payload, 'hex')", "headers::text")
        ),
    };
    let text = probe.text(&sql).await.unwrap_or_default();
    text.split('~')
        .filter(|row| !row.is_empty())
        .map(|row| {
            let fields: Vec<String> = row.split('|').map(str::to_owned).collect();
            fields.try_into().unwrap()
        })
        .collect()
}

/// The ids and payloads alone.
async fn messages(probe: &mut Probe) -> Vec<(String, String)> {
    rows(probe)
        .await
        .into_iter()
        .map(|[id, _, _, _, payload]| (id, payload))
        .collect()
}

fn pairs(expected: &[(&str, &[u8])]) -> Vec<(String, String)> {
    expected
        .iter()
        .map(|(id, payload)| ((*id).to_owned(), hex(payload)))
        .collect()
}

async fn a_queue_gets_every_byte(place: &Place, mut probe: Probe) {
    place.write("all.bin", all_bytes());
    let options = [
        "--subject",
        "orders.eu",
        "--header",
        "Content-Type: text/plain",
        "--header",
        "A:b:c ",
    ];
    assert_prints(
        &place.hapax(&[&["send", "orders", "grün", "--id", "1"][..], &options].concat()),
        "sent 1 message\n",
    );
    assert_prints(
        &place.hapax(&["send", "orders", "--file", "all.bin", "--id", "2"]),
        "sent 1 message\n",
    );
    assert_prints(
        &place.hapax_reading(
            &all_bytes(),
            &["send", "orders", "--file", "-", "--id", "3"],
        ),
        "sent 1 message\n",
    );
    assert_prints(
        &place.hapax(&["send", "orders", "", "--id", "1", "--json"]),
        "{\"sent\":1,\"duplicates\":0}\n",
    );
    let headers = r#"[["Content-Type","text/plain"],["A","b:c"]]"#;
    let found = rows(&mut probe).await;
    let expected = [
        [
            "1",
            "orders.eu",
            headers,
            "text/plain",
            &hex("grün".as_bytes()),
        ],
        ["2", "", "[]", "NULL", &hex(&all_bytes())],
        ["3", "", "[]", "NULL", &hex(&all_bytes())],
        // The same id again: hapax drops nothing, the claim will tell.
        ["1", "", "[]", "NULL", ""],
    ];
    let found: Vec<Vec<String>> = found
        .into_iter()
        .map(|row| {
            row.map(|field| field.replace(": ", ":").replace(", ", ","))
                .to_vec()
        })
        .collect();
    assert_eq!(found, expected.map(|row| row.map(str::to_owned).to_vec()));
}

#[tokio::test]
async fn a_queue_on_sqlite_gets_every_byte() {
    let place = Place::with_queue("");
    // Makes the database.
    place.hapax(&["status"]);
    let probe = place.sqlite().await;
    a_queue_gets_every_byte(&place, probe).await;
}

#[tokio::test]
async fn a_queue_on_postgres_gets_every_byte() {
    let store = TestStore::empty_postgres().await;
    let place = Place::new(&format!(
        "[store]\nurl = \"{}\"\n[sources.orders]\nkind = \"queue\"\n{}",
        store.url,
        handler_table("ship", "orders")
    ));
    let probe = store.probe().await;
    a_queue_gets_every_byte(&place, probe).await;
}

#[tokio::test]
async fn each_line_is_a_message() {
    let text: &[u8] = b"one\r\n\r\n   \n\xff\xfe \xf0\n{\"a\": 1}  \ntwo\rtwo\nlast";
    let expected = pairs(&[
        ("b-1", b"one"),
        // Numbers are those of the lines, so that an editor finds them.
        ("b-4", b"\xff\xfe \xf0"),
        ("b-5", b"{\"a\": 1}  "),
        ("b-6", b"two\rtwo"),
        ("b-7", b"last"),
    ]);
    let place = Place::with_queue("");
    place.write("lines", text);
    let options = ["--id", "b"];
    assert_prints(
        &place.hapax(&[&["send", "orders", "--lines", "lines"][..], &options].concat()),
        "sent 5 messages\n",
    );
    let mut probe = place.sqlite().await;
    assert_eq!(messages(&mut probe).await, expected);
    probe.run("DELETE FROM hapax_queue").await;
    assert_prints(
        &place.hapax_reading(
            text,
            &[&["send", "orders", "--lines", "-"][..], &options].concat(),
        ),
        "sent 5 messages\n",
    );
    assert_eq!(messages(&mut probe).await, expected);
    assert_prints(
        &place.hapax(&["send", "orders", "--lines", "-"]),
        "sent 0 messages\n",
    );
}

#[tokio::test]
async fn many_lines_keep_their_order() {
    let place = Place::with_queue("");
    let text: String = (1..=1201).map(|number| format!("{number}\n")).collect();
    assert_prints(
        &place.hapax_reading(
            text.as_bytes(),
            &["send", "orders", "--lines", "-", "--id", "x"],
        ),
        "sent 1201 messages\n",
    );
    let expected: Vec<(String, String)> = (1..=1201)
        .map(|number| (format!("x-{number}"), hex(number.to_string().as_bytes())))
        .collect();
    assert_eq!(messages(&mut place.sqlite().await).await, expected);
}

#[tokio::test]
async fn a_line_is_sent_though_the_next_one_is_long_in_coming() {
    use std::io::Write as _;
    let place = Place::with_queue("");
    place.hapax(&["status"]);
    let mut probe = place.sqlite().await;
    let mut child = crate::support::host::hapax()
        .args(["send", "orders", "--lines", "-", "--id", "x"])
        .current_dir(place.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for number in 1..=2 {
        stdin.write_all(b"line\n").unwrap();
        probe
            .wait_for("SELECT count(*) FROM hapax_queue", number)
            .await;
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "sent 2 messages\n");
}

#[tokio::test]
async fn an_envelope_brings_id_subject_headers_and_the_payload_as_it_stands() {
    let place = Place::with_queue("");
    place.write(
        "lines",
        "{\"id\":\"e1\",\"subject\":\"s\",\"headers\":{\"A\":\"ä\"},\"payload\":{\"x\": [1,  2.50]}}\r\n\
         {\"payload\":\"text\",\"id\":\"e2\"}",
    );
    let options = ["--envelope", "--subject", "d", "--header", "B: c"];
    assert_prints(
        &place.hapax(&[&["send", "orders", "--lines", "lines"][..], &options].concat()),
        "sent 2 messages\n",
    );
    let found = rows(&mut place.sqlite().await).await;
    let expected = [
        [
            "e1",
            "s",
            r#"[["A","ä"],["B","c"]]"#,
            "NULL",
            &hex(br#"{"x": [1,  2.50]}"#),
        ],
        ["e2", "d", r#"[["B","c"]]"#, "NULL", &hex(br#""text""#)],
    ];
    assert_eq!(found, expected.map(|row| row.map(str::to_owned)));
}

const ENVELOPE_HINT: &str = "hint: write each line as `{\"payload\": ..}`, with `\"id\": \"..\"`, `\"subject\": \"..\"` and \
                             `\"headers\": {..}` where they are needed";

#[tokio::test]
async fn a_bad_line_is_named_and_what_stands_before_it_is_sent() {
    let place = Place::with_queue("");
    let send = ["send", "orders", "--envelope", "--lines"];
    for (bad, problem) in [
        ("{\"id\":\"3\"}", "column 10: missing field `payload`"),
        (
            "{\"id\":\"3\",\"payload\":1,\"key\":2}",
            "column 27: unknown field `key`, expected one of `id`, `subject`, `headers`, `payload`",
        ),
        ("hello", "column 1: expected value"),
        (
            "{\"id\":3,\"payload\":1}",
            "column 7: invalid type: integer `3`, expected a string",
        ),
    ] {
        place.write(
            "lines",
            format!("{{\"id\":\"1\",\"payload\":1}}\n\n{{\"id\":\"2\",\"payload\":2}}\n{bad}\n{{\"id\":\"5\",\"payload\":5}}\n"),
        );
        assert_fails(
            &place.hapax(&[&send[..], &["lines"]].concat()),
            1,
            &format!(
                "error: `lines`, line 4, {problem}\n{ENVELOPE_HINT}\nnote: 2 messages were sent before that"
            ),
        );
        let mut probe = place.sqlite().await;
        assert_eq!(
            messages(&mut probe).await,
            pairs(&[("1", b"1"), ("2", b"2")]),
            "{bad}"
        );
        probe.run("DELETE FROM hapax_queue").await;
    }
    // From standard input; the first line is bad.
    assert_fails(
        &place.hapax_reading(b"\n{}\n", &[&send[..], &["-"]].concat()),
        1,
        &format!(
            "error: standard input, line 2, column 2: missing field `payload`\n{ENVELOPE_HINT}"
        ),
    );
}

#[tokio::test]
async fn a_message_without_an_id_is_refused_since_it_would_become_a_dead_letter() {
    let place = Place::with_queue("");
    let reason = "handler `ship` would find no usable message id: `queue:id`: absent; `header:Nats-Msg-Id`: absent; \
                  `header:ce-source+ce-id`: `ce-source` absent";
    let hint = "hint: give one with `--id` (in an envelope: `\"id\"`), or put one where the handler's `message_id` looks for it";
    assert_fails(
        &place.hapax(&["send", "orders", "hello"]),
        2,
        &format!("error: {reason}\n{hint}"),
    );
    assert_fails(
        &place.hapax_reading(b"\none\n", &["send", "orders", "--lines", "-"]),
        2,
        &format!("error: standard input, line 2: {reason}\n{hint}"),
    );
    assert_fails(
        &place.hapax_reading(
            b"{\"id\":\"1\",\"payload\":1}\n{\"payload\":2}\n",
            &["send", "orders", "--lines", "-", "--envelope"],
        ),
        2,
        &format!(
            "error: standard input, line 2: {reason}\n{hint}\nnote: 1 message was sent before that"
        ),
    );
    let output = place.hapax(&["send", "orders", "x", "--id", ""]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        output.err.contains("`queue:id`: the message id is empty"),
        "{}",
        output.err
    );
    // Another place where the handler looks does as well.
    let sent = place.hapax(&["send", "orders", "x", "--header", "Nats-Msg-Id: 7"]);
    assert_prints(&sent, "sent 1 message\n");
    assert_eq!(
        place
            .sqlite()
            .await
            .number("SELECT count(*) FROM hapax_queue")
            .await,
        2
    );
}

#[test]
fn an_id_that_the_handler_does_not_look_at_does_not_help() {
    let place = Place::with_queue("message_id = [\"json:/id\"]");
    assert_fails(
        &place.hapax(&["send", "orders", "{}", "--id", "7"]),
        2,
        "error: handler `ship` would find no usable message id: `json:/id`: absent\n\
         hint: put one where the handler's `message_id` looks for it: `--id` gives none there",
    );
    assert_prints(
        &place.hapax(&["send", "orders", "{\"id\": 7}"]),
        "sent 1 message\n",
    );
}

#[test]
fn what_cannot_be_read_is_named() {
    let place = Place::with_queue("");
    let hint = "hint: name a file that can be read, or `-` for standard input";
    for option in ["--file", "--lines"] {
        assert_fails(
            &place.hapax(&["send", "orders", option, "nope", "--id", "1"]),
            1,
            &format!("error: cannot read `nope`: No such file or directory (os error 2)\n{hint}"),
        );
    }
    assert_fails(
        &place.hapax(&["send", "orders", "--file", ".", "--id", "1"]),
        1,
        &format!("error: cannot read `.`: Is a directory (os error 21)\n{hint}"),
    );
    assert_fails(
        &place.hapax(&["send", "orders", "--lines", ".", "--id", "1"]),
        1,
        &format!("error: cannot read `.`, line 1: Is a directory (os error 21)\n{hint}"),
    );
}

#[test]
fn an_unknown_source_is_answered_with_those_there_are() {
    assert_fails(
        &Place::with_queue("").hapax(&["send", "order", "x", "--id", "1"]),
        2,
        "error: there is no source `order` in `hapax.toml`\nhint: the sources are `orders`",
    );
    assert_fails(
        &Place::new("[store]\nurl = \"sqlite:hapax.db\"\n").hapax(&["send", "order", "x"]),
        2,
        "error: there is no source `order` in `hapax.toml`\nhint: write `[sources.order]` with `kind = \"queue\"`",
    );
}

#[test]
fn what_cannot_be_reached_is_named_without_its_password() {
    let place = Place::new(&format!(
        "[store]\nurl = \"{NO_POSTGRES}\"\n[sources.orders]\nkind = \"queue\"\n{}",
        stream_table("payments", NO_NATS, "")
    ));
    assert_fails(
        &place.hapax(&["send", "orders", "x", "--id", "1"]),
        1,
        "error: cannot write to the queue: cannot connect to `postgres://u@127.0.0.1:1/db`: Connection refused (os error 111)\n\
         hint: check `store.url` in the configuration, and that the database runs",
    );
    assert_fails(
        &place.hapax(&["send", "payments", "x", "--id", "1"]),
        1,
        "error: source `payments` cannot be reached: cannot connect to `nats://127.0.0.1:1`: IO error: \
         Connection refused (os error 111)\n\
         hint: check the source's `url` in the configuration, and that the server runs",
    );
}

#[test]
fn a_login_that_postgres_does_not_know_is_a_wrong_configuration() {
    let postgres = Postgres::start();
    let url = postgres.url("postgres").replace("tester:", "stranger:");
    let place = Place::new(&format!(
        "[store]\nurl = \"{url}\"\n[sources.orders]\nkind = \"queue\"\n"
    ));
    let output = place.hapax(&["send", "orders", "x"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        output.err.ends_with(
            "role \"stranger\" does not exist (28000)\n\
             hint: check the user and the password in `store.url`\n"
        ),
        "{}",
        output.err
    );
    assert!(!output.err.contains("secret"));
}

#[test]
fn a_database_that_does_not_exist_is_a_wrong_configuration() {
    let postgres = Postgres::start();
    let url = postgres.url("nowhere");
    let place = Place::new(&format!(
        "[store]\nurl = \"{url}\"\n[sources.orders]\nkind = \"queue\"\n"
    ));
    let output = place.hapax(&["send", "orders", "x"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        output
            .err
            .starts_with("error: cannot write to the queue: cannot connect to `postgres://tester@"),
        "{}",
        output.err
    );
    assert!(
        output.err.ends_with(
            "database \"nowhere\" does not exist (3D000)\n\
             hint: create the database, or correct its name in `store.url`\n"
        ),
        "{}",
        output.err
    );
    assert!(!output.err.contains("secret"));
}

fn with_stream(nats: &Nats, subjects: &str, handler: &str) -> Place {
    Place::new(&format!(
        "[store]\nurl = \"sqlite:hapax.db\"\n{}{}start = \"all\"\n{handler}\n",
        stream_table(
            "orders",
            &nats.url(),
            &format!("subjects = {subjects}\ncreate = true")
        ),
        handler_table("ship", "orders"),
    ))
}

async fn stored(nats: &Nats) -> Vec<(String, Option<String>, Vec<u8>)> {
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let stream = context.get_stream("ORDERS").await.unwrap();
    let mut stored = Vec::new();
    for sequence in 1..=stream.cached_info().state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let id = message.headers.get("Nats-Msg-Id").map(ToString::to_string);
        stored.push((message.subject.to_string(), id, message.payload.to_vec()));
    }
    stored
}

#[tokio::test]
async fn a_stream_gets_every_byte_and_its_duplicates_are_counted() {
    let nats = Nats::start();
    let place = with_stream(&nats, "[\"orders\", \"orders.*\"]", "");
    place.write("all.bin", all_bytes());
    let none = "sent 1 message; the broker dropped 0 of them as duplicates\n";
    let send = ["send", "orders", "--file", "all.bin", "--id", "1"];
    assert_prints_after_log(&place.hapax(&send), none);
    // The broker drops it, and not hapax.
    assert_prints(
        &place.hapax(&send),
        "sent 1 message; the broker dropped 1 of them as a duplicate\n",
    );
    let lines = b"{\"id\":\"1\",\"payload\":1}\n{\"id\":\"2\",\"payload\":2,\"subject\":\"orders.eu\"}\n{\"id\":\"2\",\"payload\":2}\n";
    assert_prints(
        &place.hapax_reading(lines, &["send", "orders", "--lines", "-", "--envelope"]),
        "sent 3 messages; the broker dropped 2 of them as duplicates\n",
    );
    assert_prints(
        &place.hapax_reading(
            lines,
            &["send", "orders", "--lines", "-", "--envelope", "--json"],
        ),
        "{\"sent\":3,\"duplicates\":3}\n",
    );
    assert_eq!(
        stored(&nats).await,
        [
            ("orders".to_owned(), Some("1".to_owned()), all_bytes()),
            ("orders.eu".to_owned(), Some("2".to_owned()), b"2".to_vec()),
        ]
    );
}

/// As `assert_prints`, where a line of the log tells that the stream was made.
#[track_caller]
fn assert_prints_after_log(output: &crate::support::host::Output, text: &str) {
    assert_eq!((output.status.code(), output.out.as_str()), (Some(0), text));
    assert_eq!(output.err.lines().count(), 1, "{}", output.err);
    assert!(output.err.contains("created the stream"), "{}", output.err);
}

#[tokio::test]
async fn hapax_itself_drops_nothing() {
    let nats = Nats::start();
    let place = with_stream(&nats, "[\"orders\"]", "message_id = [\"stream-sequence\"]");
    // Without `--id` there is nothing by which the broker could drop a message.
    let output = place.hapax_reading(
        b"same\nsame\nsame\n",
        &["send", "orders", "--lines", "-", "--header", "A: b"],
    );
    assert_prints_after_log(
        &output,
        "sent 3 messages; the broker dropped 0 of them as duplicates\n",
    );
    let same = ("orders".to_owned(), None, b"same".to_vec());
    assert_eq!(stored(&nats).await, [same.clone(), same.clone(), same]);
}

#[tokio::test]
async fn a_subject_that_the_stream_does_not_take_is_refused() {
    let nats = Nats::start();
    let place = with_stream(&nats, "[\"orders.*\"]", "");
    place.hapax(&["send", "orders", "x", "--id", "0", "--subject", "orders.eu"]);
    assert_fails(
        &place.hapax(&[
            "send",
            "orders",
            "x",
            "--id",
            "1",
            "--subject",
            "payments.eu",
        ]),
        1,
        "error: source `orders`: stream `ORDERS` does not take subject `payments.eu`\nhint: its subjects are `orders.*`",
    );
    assert_fails(
        &place.hapax(&["send", "orders", "x", "--id", "1"]),
        2,
        "error: the message has no subject, and the subjects of source `orders` are patterns: `orders.*`\n\
         hint: name one that fits with `--subject`",
    );
    // In a file, with many under way before it: all of them are stored, and counted.
    let mut lines: String = (1..=300)
        .map(|number| {
            format!("{{\"id\":\"n{number}\",\"subject\":\"orders.eu\",\"payload\":{number}}}\n")
        })
        .collect();
    lines.push_str("{\"id\":\"x\",\"subject\":\"payments.eu\",\"payload\":0}\n");
    assert_fails(
        &place.hapax_reading(
            lines.as_bytes(),
            &["send", "orders", "--lines", "-", "--envelope"],
        ),
        1,
        "error: standard input, line 301: source `orders`: stream `ORDERS` does not take subject `payments.eu`\n\
         hint: its subjects are `orders.*`\n\
         note: 300 messages were sent before that",
    );
    assert_eq!(stored(&nats).await.len(), 301);
}

#[tokio::test]
async fn a_stream_that_is_missing_or_full_is_told_apart() {
    let nats = Nats::start();
    let place = Place::new(&format!(
        "[store]\nurl = \"sqlite:hapax.db\"\n{}",
        stream_table("orders", &nats.url(), "")
    ));
    assert_fails(
        &place.hapax(&["send", "orders", "x"]),
        3,
        &format!(
            "error: source `orders`: `{}` has no stream `ORDERS`\nhint: create it, or set `create = true` and `subjects`",
            nats.url()
        ),
    );
    jetstream::new(async_nats::connect(nats.url()).await.unwrap())
        .create_stream(stream::Config {
            name: "ORDERS".into(),
            subjects: vec!["orders".into()],
            max_messages: 1,
            discard: stream::DiscardPolicy::New,
            ..stream::Config::default()
        })
        .await
        .unwrap();
    assert_eq!(place.hapax(&["send", "orders", "x"]).status.code(), Some(0));
    let output = place.hapax(&["send", "orders", "x"]);
    assert_eq!(output.status.code(), Some(1), "{}", output.err);
    assert!(
        output
            .err
            .starts_with("error: source `orders`: stream `ORDERS` did not store a message: ")
            && output.err.contains("maximum messages exceeded"),
        "{}",
        output.err
    );
}
