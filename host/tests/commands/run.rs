//! `run`: the mistakes that end it, each with its sentence and hint.

use std::time::Duration;

use async_nats::jetstream::{self, consumer, stream};

use crate::place::{Place, assert_fails, handler_table, stream_table};
use crate::support::database::{Probe, TestStore};
use crate::support::host::Host;
use crate::support::nats::Nats;

/// Ends by itself, should it start after all.
const RUN: [&str; 2] = ["run", "--until-idle"];

/// The commands that open the store.
const ON_THE_STORE: [(&[&str], &str); 3] = [
    (&RUN, "cannot prepare the store"),
    (&["status"], "cannot read the store"),
    (
        &["send", "orders", "x", "--id", "1"],
        "cannot write to the queue",
    ),
];

#[test]
fn without_a_configuration_every_command_says_where_to_begin() {
    let place = Place::empty();
    let text = |file: &str| {
        format!(
            "error: `{file}`: cannot be read: No such file or directory (os error 2)\n\
             hint: name the file with `--config FILE`, or start from `hapax.example.toml`"
        )
    };
    for command in [
        &["run"][..],
        &["check"],
        &["status"],
        &["send", "orders", "x"],
    ] {
        assert_fails(&place.hapax(command), 3, &text("hapax.toml"));
        assert_fails(
            &place.hapax(&[command, &["--config", "conf/other.toml"]].concat()),
            3,
            &text("conf/other.toml"),
        );
    }
    assert_fails(
        &place.hapax_where(&[("HAPAX_CONFIG", "third.toml")], &["run"]),
        3,
        &text("third.toml"),
    );
}

#[test]
fn every_problem_of_a_configuration_is_told_at_once() {
    let place = Place::new(&format!(
        "[stor]\n[sources.orders]\nkind = \"queue\"\n{}{}limits = {{ time = 30 }}\n",
        handler_table("bill", "orders"),
        handler_table("ship", "orders"),
    ));
    let text = "error: `hapax.toml`: `store`: is missing\n\
                hint: write `[store]` with `url = \"sqlite:hapax.db\"` or `url = \"postgres://user@host/database\"`\n\
                error: `hapax.toml`: `handlers.ship.limits.time`: `30` has no unit\n\
                hint: write `\"30s\"`\n\
                error: `hapax.toml`: `handlers.ship.source`: the queue `orders` serves `bill` already: each row goes to one \
                handler only\n\
                hint: give each handler a queue of its own, or use a `jetstream` source\n\
                error: `hapax.toml`: `stor`: is not a known key\n\
                hint: did you mean `store`?";
    for command in [&["run"][..], &["check"]] {
        assert_fails(&place.hapax(command), 3, text);
    }
}

#[test]
fn a_folder_that_is_missing_for_sqlite() {
    let place = Place::with_queue("");
    for (command, doing) in ON_THE_STORE {
        assert_fails(
            &place.hapax_where(&[("HAPAX_STORE__URL", "sqlite:data/hapax.db")], command),
            3,
            &format!(
                "error: {doing}: the store's file `{}` can't be opened: there is no folder `{}`\n\
                 hint: make it first, or correct `store.url`",
                place.shown("data/hapax.db"),
                place.shown("data"),
            ),
        );
    }
}

#[test]
fn a_folder_in_which_no_file_can_be_made() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::with_queue("");
    // Permissions do not stop root.
    let closed = if rustix::process::getuid().is_root() {
        std::path::PathBuf::from("/proc")
    } else {
        let closed = place.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o500)).unwrap();
        closed
    };
    let file = closed.join("hapax.db").display().to_string();
    for (command, doing) in ON_THE_STORE {
        assert_fails(
            &place.hapax_where(&[("HAPAX_STORE__URL", &format!("sqlite:{file}"))], command),
            3,
            &format!(
                "error: {doing}: the store's file `{file}` can't be opened: unable to open database file (14)\n\
                 hint: `store.url` must name a file, and this user must be able to write to it and to its folder"
            ),
        );
    }
}

#[test]
fn a_file_that_is_no_database() {
    let place = Place::with_queue("");
    place.write("hapax.db", "x".repeat(4096));
    for (command, doing) in ON_THE_STORE {
        assert_fails(
            &place.hapax(command),
            3,
            &format!(
                "error: {doing}: the store's file `{}` can't be opened: file is not a database (26)\n\
                 hint: correct `store.url`: this file is something else",
                place.shown("hapax.db"),
            ),
        );
    }
}

async fn a_schema_that_is_newer(place: &Place, mut probe: Probe, meta: &str) {
    let known = format!("SELECT value FROM {meta} WHERE name = 'schema-version'");
    let known = probe.text(&known).await.unwrap();
    probe
        .run(&format!(
            "UPDATE {meta} SET value = '7000' WHERE name IN ('schema-version', 'schema-serves')"
        ))
        .await;
    for (command, doing) in ON_THE_STORE {
        assert_fails(
            &place.hapax(command),
            4,
            &format!(
                "error: {doing}: the schema of the store has version 7000, newer than version {known} of this binary\n\
                 hint: run the version of hapax that made it, or a newer one"
            ),
        );
    }
}

#[tokio::test]
async fn a_schema_that_is_newer_on_sqlite() {
    let place = Place::with_queue("");
    place.hapax(&["status"]);
    let probe = place.sqlite().await;
    a_schema_that_is_newer(&place, probe, "hapax_meta").await;
}

#[tokio::test]
async fn a_schema_that_is_newer_on_postgres() {
    let store = TestStore::postgres().await;
    let place = Place::new(&format!(
        "[store]\nurl = \"{}\"\n[sources.orders]\nkind = \"queue\"\n{}",
        store.url,
        handler_table("ship", "orders")
    ));
    let probe = store.probe().await;
    a_schema_that_is_newer(&place, probe, "hapax.meta").await;
}

/// `failing` is what the database says to a second `CREATE TABLE accounts`.
fn migrations_that_change_or_fail(place: &Place, failing: &str) {
    place.write(
        "tables/0001_accounts.sql",
        "CREATE TABLE accounts (id int);",
    );
    assert!(place.hapax(&RUN).status.success());
    // Twice is once.
    assert!(place.hapax(&RUN).status.success());

    place.write(
        "tables/0001_accounts.sql",
        "CREATE TABLE accounts (id int, name text);",
    );
    assert_fails(
        &place.hapax(&RUN),
        3,
        "error: handler `ship`: migrations: `0001_accounts.sql` has changed since it was applied to this database\n\
         hint: put the old text back, and write the change as a new file",
    );
    std::fs::remove_file(place.path().join("tables/0001_accounts.sql")).unwrap();
    assert_fails(
        &place.hapax(&RUN),
        3,
        "error: handler `ship`: migrations: `0001_accounts.sql` was applied to this database and is missing now\n\
         hint: put it back",
    );
    place.write(
        "tables/0001_accounts.sql",
        "CREATE TABLE accounts (id int);",
    );
    place.write(
        "tables/0002_more.sql",
        "CREATE TABLE more (id int);\n\nCREATE TABLE accounts (id int);\n",
    );
    for _ in 0..2 {
        // Nothing of the file stays, or the second run would fail at its first statement.
        assert_fails(
            &place.hapax(&RUN),
            3,
            &format!(
                "error: handler `ship`: the database refuses the migration {failing}\n\
                 hint: correct the file: nothing of it was applied, and those before it stay applied"
            ),
        );
    }
    place.write("tables/0002_more.sql", "CREATE TABLE more (id int);");
    assert!(place.hapax(&RUN).status.success());
    place.write("tables/0000_early.sql", "CREATE TABLE early (id int);");
    assert_fails(
        &place.hapax(&RUN),
        3,
        "error: handler `ship`: migrations: `0000_early.sql` is new, but number 2 was applied already\n\
         hint: give it a higher number",
    );
}

#[test]
fn migrations_that_change_or_fail_on_sqlite() {
    migrations_that_change_or_fail(
        &Place::with_queue("migrations = \"tables\""),
        "`0002_more.sql`: table accounts already exists",
    );
}

#[tokio::test]
async fn migrations_that_change_or_fail_on_postgres() {
    let store = TestStore::empty_postgres().await;
    let place = Place::new(&format!(
        "[store]\nurl = \"{}\"\n[sources.orders]\nkind = \"queue\"\n{}migrations = \"tables\"\n",
        store.url,
        handler_table("ship", "orders")
    ));
    migrations_that_change_or_fail(
        &place,
        "`0002_more.sql`: relation \"accounts\" already exists",
    );
}

fn on_a_stream(nats: &Nats) -> Place {
    Place::new(&format!(
        "[store]\nurl = \"sqlite:hapax.db\"\n{}{}start = \"all\"\n",
        stream_table(
            "orders",
            &nats.url(),
            "subjects = [\"orders\"]\nack_wait = \"5s\""
        ),
        handler_table("ship", "orders"),
    ))
}

async fn make_stream(nats: &Nats) -> stream::Stream {
    jetstream::new(async_nats::connect(nats.url()).await.unwrap())
        .create_stream(stream::Config {
            name: "ORDERS".into(),
            subjects: vec!["orders".into()],
            ..stream::Config::default()
        })
        .await
        .unwrap()
}

fn durable() -> consumer::pull::Config {
    consumer::pull::Config {
        durable_name: Some("ship".into()),
        filter_subjects: vec!["orders".into()],
        ack_wait: Duration::from_secs(5),
        ..consumer::pull::Config::default()
    }
}

#[tokio::test]
async fn a_stream_that_is_missing() {
    let nats = Nats::start();
    let place = on_a_stream(&nats);
    let output = place.hapax(&RUN);
    assert_fails(
        &output,
        3,
        &format!(
            "error: source `orders`: `{}` has no stream `ORDERS`\nhint: create it, or set `create = true` and `subjects`",
            nats.url()
        ),
    );
    make_stream(&nats).await;
    let output = place.hapax(&RUN);
    assert!(output.status.success(), "{}", output.err);
}

#[tokio::test]
async fn a_durable_that_would_lose_messages() {
    let nats = Nats::start();
    let stream = make_stream(&nats).await;
    stream
        .create_consumer(consumer::pull::Config {
            max_deliver: 5,
            ..durable()
        })
        .await
        .unwrap();
    assert_fails(
        &on_a_stream(&nats).hapax(&RUN),
        3,
        "error: source `orders`: durable `ship` of stream `ORDERS` has max_deliver = 5, after which the server drops a \
         message that was not processed\n\
         hint: change it to a pull consumer with explicit acks and max_deliver -1, or name another with `consumer`",
    );
}

#[tokio::test]
async fn a_durable_that_differs_harmlessly_is_used_and_told() {
    let nats = Nats::start();
    let stream = make_stream(&nats).await;
    stream
        .create_consumer(consumer::pull::Config {
            ack_wait: Duration::from_secs(7),
            ..durable()
        })
        .await
        .unwrap();
    let place = on_a_stream(&nats);
    place.hapax(&["send", "orders", "{\"steps\": []}", "--id", "1"]);
    let output = place.hapax(&RUN);
    assert!(output.status.success(), "{}", output.err);
    assert!(
        output
            .err
            .contains("durable `ship` has the ack wait 7s, the configuration 5s"),
        "{}",
        output.err
    );
    let status = place.hapax(&["status"]);
    assert!(
        status.out.starts_with(
            "handler  claimed  duplicates  retried  dead  backlog  outbox\n\
             ship           1           0        0     0        0       0\n"
        ),
        "{}",
        status.out
    );
}

#[tokio::test]
async fn the_password_of_a_broker_is_not_shown() {
    let nats = Nats::start();
    let place = on_a_stream(&nats);
    // The server asks for no password, so any is taken: what is shown is without it all the same.
    let url = nats.url().replace("nats://", "nats://me:secret@");
    let output = place.hapax_where(&[("HAPAX_SOURCES__ORDERS__URL", &url)], &RUN);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        output
            .err
            .contains(&format!("`{}` has no stream", nats.url())),
        "{}",
        output.err
    );
    assert!(!output.err.contains("secret"), "{}", output.err);
}

#[test]
fn a_variable_overrides_the_file() {
    let place = Place::with_queue("");
    let variables = [("HAPAX_STORE__URL", "sqlite:other.db")];
    assert_eq!(
        place
            .hapax_where(
                &variables,
                &["send", "orders", "{\"steps\": []}", "--id", "1"]
            )
            .out,
        "sent 1 message\n"
    );
    assert!(place.path().join("other.db").exists());
    assert!(!place.path().join("hapax.db").exists());
    assert!(place.hapax_where(&variables, &RUN).status.success());
    let claimed = |variables: &[(&str, &str)]| {
        let status: serde_json::Value =
            serde_json::from_str(&place.hapax_where(variables, &["status", "--json"]).out).unwrap();
        status["handlers"][0]["claimed"].clone()
    };
    assert_eq!(claimed(&variables), 1);
    assert_eq!(claimed(&[]), 0);
    assert_fails(
        &place.hapax_where(&[("HAPAX_STORE_URL", "sqlite:other.db")], &["status"]),
        3,
        "error: `hapax.toml`: the variable `HAPAX_STORE_URL` has one underscore where keys are separated by two\n\
         hint: write it as `HAPAX_STORE__URL` for `store.url`",
    );
}

#[test]
fn relative_paths_start_at_the_configuration() {
    let place = Place::empty();
    let elsewhere = Place::empty();
    place.write(
        "conf/hapax.toml",
        "[store]\nurl = \"sqlite:hapax.db\"\n[sources.orders]\nkind = \"queue\"\n[handlers.ship]\ncomponent = \"ship.wasm\"\n\
         source = \"orders\"\n",
    );
    std::fs::copy(
        crate::support::scene::script(),
        place.path().join("conf/ship.wasm"),
    )
    .unwrap();
    let mut host = Host::start(
        std::path::Path::new(&place.shown("conf/hapax.toml")),
        &[],
        &[],
    );
    host.wait_until_ready();
    host.terminate();
    host.wait_well();
    assert!(
        elsewhere
            .hapax(&["status", "--config", &place.shown("conf/hapax.toml")])
            .status
            .success()
    );
    assert!(place.path().join("conf/hapax.db").exists());
}

#[test]
fn check_first_ends_with_the_findings_of_check_before_anything_is_asked() {
    let place = Place::with_queue("migrations = \"migrations\"");
    place.write("migrations/0001_a.sql", "COMMIT");
    let checked = place.hapax(&["check"]);
    assert_eq!(checked.status.code(), Some(3), "{}", checked.err);
    let output = place.hapax(&[&RUN[..], &["--check-first"]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", output.err);
    assert_eq!(output.err, checked.err);
    assert!(!place.path().join("hapax.db").exists());
    // With nothing to find it runs.
    place.write(
        "migrations/0001_a.sql",
        "CREATE TABLE effects (id TEXT NOT NULL)",
    );
    let output = place.hapax(&[&RUN[..], &["--check-first"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", output.err);
    assert!(place.path().join("hapax.db").exists());
}
