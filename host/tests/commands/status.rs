//! `status`: figures and backlogs, also of what cannot be reached.

use serde_json::json;

use crate::place::{
    NO_NATS, NO_POSTGRES, Place, assert_fails, assert_prints, handler_table, stream_table,
};
use crate::support::database::TestStore;
use crate::support::nats::Nats;

const NOTHING: &str = "handler  claimed  duplicates  retried  dead  backlog  outbox\n\
                       ship           0           0        0     0        0       0\n";

fn nothing(name: &str) -> serde_json::Value {
    json!({"name": name, "consumer": name, "claimed": 0, "duplicates": 0, "retried": 0, "rolled_back": 0, "dead": 0, "backlog": 0, "outbox": {"unpublished": 0, "parked": 0}})
}

fn json(output: &crate::support::host::Output) -> serde_json::Value {
    assert_eq!((output.status.code(), output.err.as_str()), (Some(0), ""));
    assert_eq!(output.out.lines().count(), 1);
    let mut status: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    let claims = status.as_object_mut().unwrap().remove("claims").unwrap();
    assert!(claims["bytes"].is_u64(), "{claims}");
    for handler in status["handlers"].as_array_mut().unwrap() {
        let handler = handler.as_object_mut().unwrap();
        assert_eq!(
            handler.remove("oldest_claim_seconds").is_some(),
            claims["rows"] != 0
        );
    }
    status
}

#[test]
fn before_anything_ran() {
    let place = Place::with_queue("");
    assert_prints(&place.hapax(&["status"]), NOTHING);
    assert_eq!(
        json(&place.hapax(&["status", "--json"])),
        json!({ "handlers": [nothing("ship")] })
    );
}

#[tokio::test]
async fn before_anything_ran_on_postgres() {
    let store = TestStore::empty_postgres().await;
    let place = Place::new(&format!(
        "[store]\nurl = \"{}\"\n[sources.orders]\nkind = \"queue\"\n{}",
        store.url,
        handler_table("ship", "orders")
    ));
    assert_prints(&place.hapax(&["status"]), NOTHING);
}

#[test]
fn what_was_done_and_what_waits() {
    let place =
        Place::with_queue("consumer = \"shipping\"\nretry = { attempts = 2, backoff = \"1ms\" }");
    for (id, payload) in [
        ("1", r#"{"steps": []}"#),
        ("1", r#"{"steps": []}"#),
        ("2", r#"{"steps": [{"reject": "no"}]}"#),
        (
            "3",
            r#"{"steps": [{"if_attempt_below": 2, "steps": [{"panic": "first"}]}]}"#,
        ),
        ("4", r#"{"steps": [{"panic": "always"}]}"#),
    ] {
        place.hapax(&["send", "orders", payload, "--id", id]);
    }
    let output = place.hapax(&["run", "--until-idle"]);
    assert!(output.status.success(), "{}", output.err);
    place.hapax(&["send", "orders", "later", "--id", "5"]);
    let output = place.hapax(&["status"]);
    let (table, claims) = output.out.split_once("\n\n").unwrap();
    assert!(
        claims.starts_with("4 claims in 0.0 MiB, ") && claims.contains("oldest claim of `ship`: "),
        "{claims}"
    );
    assert_eq!(
        (output.status.code(), table),
        (
            Some(0),
            "handler  claimed  duplicates  retried  dead  backlog  outbox\n\
             ship           2           1        2     2        1       0"
        )
    );
    assert_eq!(
        output.err,
        "hint: `hapax dead-letters list` shows what was given up on, `hapax dead-letters replay` runs it again\n"
    );
    let mut status = json(&place.hapax(&["status", "--json"]));
    // How often depends on who came into one batch with the messages that failed.
    let rolled_back = status["handlers"][0]["rolled_back"].take();
    assert!(rolled_back.as_u64() >= Some(4), "{rolled_back}");
    assert_eq!(
        status,
        json!({"handlers": [{"name": "ship", "consumer": "shipping", "claimed": 2, "duplicates": 1, "retried": 2, "rolled_back": null, "dead": 2, "backlog": 1, "outbox": {"unpublished": 0, "parked": 0}}]})
    );
}

#[test]
fn a_broker_that_cannot_be_reached_is_a_warning() {
    let place = Place::new(&format!(
        "[store]\nurl = \"sqlite:hapax.db\"\n[sources.orders]\nkind = \"queue\"\n{}{}{}start = \"all\"\n",
        stream_table("payments", NO_NATS, ""),
        handler_table("ship", "orders"),
        handler_table("bill", "payments"),
    ));
    let why = "cannot connect to `nats://127.0.0.1:1`: IO error: Connection refused (os error 111)";
    let output = place.hapax(&["status"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        output.out,
        "handler  claimed  duplicates  retried  dead  backlog  outbox\n\
         bill           0           0        0     0        ?       0\n\
         ship           0           0        0     0        0       0\n"
    );
    assert_eq!(
        output.err,
        format!("warning: the backlog of `bill` is not known: {why}\n")
    );
    let mut bill = nothing("bill");
    bill["backlog"] = json!(null);
    bill["backlog_error"] = json!(why);
    assert_eq!(
        json(&place.hapax(&["status", "--json"])),
        json!({ "handlers": [bill, nothing("ship")] })
    );
}

#[test]
fn the_backlog_of_a_stream() {
    let nats = Nats::start();
    let config = |more: &str| {
        format!(
            "[store]\nurl = \"sqlite:hapax.db\"\n{}{}start = \"all\"\n",
            stream_table("orders", &nats.url(), more),
            handler_table("ship", "orders"),
        )
    };
    let place = Place::new(&config(""));
    let output = place.hapax(&["status"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.out, NOTHING.replace("0       0\n", "?       0\n"));
    let (why, hint) = (
        format!("`{}` has no stream `ORDERS`", nats.url()),
        "create it, or set `create = true` and `subjects`",
    );
    assert_eq!(
        output.err,
        format!("warning: the backlog of `ship` is not known: {why}\nhint: {hint}\n")
    );
    let status = json(&place.hapax(&["status", "--json"]));
    assert_eq!(status["handlers"][0]["backlog_error"], why);
    assert_eq!(status["handlers"][0]["backlog_hint"], hint);

    place.write(
        "hapax.toml",
        config("subjects = [\"orders\"]\ncreate = true"),
    );
    // A stream that will be made has nothing in it, and `status` does not make it.
    assert_prints(&place.hapax(&["status"]), NOTHING);
    place.hapax_reading(
        b"1\n2\n3\n",
        &["send", "orders", "--lines", "-", "--id", "x"],
    );
    assert_prints(
        &place.hapax(&["status"]),
        &NOTHING.replace("0       0\n", "3       0\n"),
    );
}

#[test]
fn a_database_that_cannot_be_reached_is_an_error() {
    let place = Place::new(&format!(
        "[store]\nurl = \"{NO_POSTGRES}\"\n[sources.orders]\nkind = \"queue\"\n{}",
        handler_table("ship", "orders")
    ));
    for arguments in [&["status"][..], &["status", "--json"]] {
        assert_fails(
            &place.hapax(arguments),
            1,
            "error: cannot read the store: cannot connect to `postgres://u@127.0.0.1:1/db`: Connection refused (os error 111)\n\
             hint: check `store.url` in the configuration, and that the database runs",
        );
    }
}
