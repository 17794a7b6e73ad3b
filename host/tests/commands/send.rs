//! `send`: which bytes arrive where, and what it says.

use crate::place::{
    NO_NATS, NO_POSTGRES, Place, assert_fails, assert_prints, handler_table, stream_table,
};
use crate::support::database::{Probe, TestStore};
use crate::support::postgres::Postgres;

/// Every byte there is, as a payload that is no text.
pub(crate) fn all_bytes() -> Vec<u8> {
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
             hint: check the user and the password in `store.url`; a password may also stand in `PGPASSWORD` or in a password file\n"
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
