//! `send` into a stream: bytes, duplicates, and what the stream refuses.

use async_nats::jetstream::{self, stream};

use crate::place::{Place, assert_fails, assert_prints, handler_table, stream_table};
use crate::send::all_bytes;
use crate::support::nats::Nats;

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
