//! `check`, and the components that `check` and `run` refuse.

use serde_json::json;

use crate::place::{NO_NATS, NO_POSTGRES, Place, assert_fails, handler_table, stream_table};
use crate::support::scene;
use crate::support::wit::Wit;

/// Everything that is not a handler: the file's name, its bytes, what is wrong, what to do.
fn not_handlers() -> [(&'static str, Vec<u8>, &'static str, &'static str); 5] {
    [
        (
            "empty",
            Vec::new(),
            "`FILE` is empty; a handler is a Wasm component",
            "build it again: the build was interrupted, or wrote to another place",
        ),
        (
            "import",
            Wit::new().with_unknown_import().component("handler"),
            "cannot link `FILE`: this host does not provide import `acme:mail/send@1.0.0`; it provides \
             `hapax:handler@0.1.0` with `sql`, `outbox`, `log`, `config`",
            "rebuild against the interfaces in `wit/`, or remove the import",
        ),
        (
            "module",
            Wit::new().module("handler"),
            "`FILE` is a core Wasm module; a handler is a Wasm component",
            "run the component step of the build, such as `wasm-tools component new FILE -o handler.wasm`",
        ),
        (
            "random",
            random_bytes(),
            "`FILE` is not Wasm: it does not begin with the bytes `00 61 73 6d`; a handler is a Wasm component",
            "build a component for a world in `wit/`, `handler` or `batch-handler`, and give the path of that file",
        ),
        (
            "version",
            Wit::new().with_version("0.2.0").component("handler"),
            "cannot link `FILE`: it was built for `hapax:handler@0.2.0`; this host provides `hapax:handler@0.1.0`",
            "rebuild it against the `wit/` of this host's release, or run a host that provides `hapax:handler@0.2.0`",
        ),
    ]
}

fn random_bytes() -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    rand::fill(&mut bytes[..]);
    // One in four billion would begin like Wasm.
    bytes[0] = 1;
    bytes
}

fn queue_and_handler(name: &str) -> String {
    format!(
        "[sources.{name}]\nkind = \"queue\"\n[handlers.{name}]\ncomponent = \"{name}.wasm\"\nsource = \"{name}\"\n"
    )
}

#[test]
fn what_is_no_handler_is_refused_by_check_and_run() {
    let store = "[store]\nurl = \"sqlite:hapax.db\"\n";
    let all = Place::empty();
    let mut all_config = store.to_owned();
    let mut all_text = Vec::new();
    for (name, bytes, problem, hint) in not_handlers() {
        let text = |place: &Place| {
            let path = place.shown(&format!("{name}.wasm"));
            format!("error: handler `{name}`: {problem}\nhint: {hint}").replace("FILE", &path)
        };
        let place = Place::new(&format!("{store}{}", queue_and_handler(name)));
        place.write(&format!("{name}.wasm"), &bytes);
        for command in [&["check"][..], &["run", "--until-idle"]] {
            assert_fails(&place.hapax(command), 3, &text(&place));
        }
        // Neither got as far as the database.
        assert!(!place.path().join("hapax.db").exists());

        all.write(&format!("{name}.wasm"), &bytes);
        all_config.push_str(&queue_and_handler(name));
        all_text.push(text(&all));
    }

    // Several are reported together, also beside one that is good.
    all_config.push_str("[sources.good]\nkind = \"queue\"\n");
    all_config.push_str(&handler_table("good", "good"));
    all.write("hapax.toml", all_config);
    for command in [&["check"][..], &["run", "--until-idle"]] {
        assert_fails(&all.hapax(command), 3, &all_text.join("\n"));
    }
}

#[test]
fn a_component_that_is_not_there_is_named_with_its_whole_path() {
    let place = Place::new(&format!(
        "[store]\nurl = \"sqlite:hapax.db\"\n{}",
        queue_and_handler("ship")
    ));
    let text = |error: &str| {
        format!(
            "error: handler `ship`: cannot read `{}`: {error}\n\
             hint: build the component, or correct `component` in the configuration",
            place.shown("ship.wasm")
        )
    };
    let missing = text("No such file or directory (os error 2)");
    for command in [&["check"][..], &["run", "--until-idle"]] {
        assert_fails(&place.hapax(command), 3, &missing);
    }
    std::fs::create_dir(place.path().join("ship.wasm")).unwrap();
    let output = place.hapax(&["check"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(output.err.contains("is a directory"), "{}", output.err);
}

/// The stores and brokers that the configuration names do not exist.
fn offline() -> Place {
    Place::new(&format!(
        "[store]\nurl = \"{NO_POSTGRES}\"\n[sources.orders]\nkind = \"queue\"\n{}{}{}start = \"new\"\nlanes = 2\n\
         limits = {{ memory = \"3MiB\", cpu = \"250ms\", time = \"2s\", rows = 7, statements = 100, result = \"1MiB\", call = \"2MiB\", table = 1000, savepoints = 3, cursors = 2, outbox = 5, log = \"1KiB\" }}\n\
         retry = {{ attempts = 1, backoff = \"1s..5m\" }}\nmessage_id = [\"json:/id\", \"stream-sequence\"]\n",
        stream_table("payments", NO_NATS, ""),
        handler_table("ship", "orders"),
        handler_table("bill", "payments"),
    ))
}

#[test]
fn check_needs_neither_database_nor_broker() {
    let place = offline();
    place.write("migrations/postgres/0001_a.sql", "CREATE TABLE a (x int)");
    place.write("migrations/postgres/0002_b.sql", "CREATE TABLE b (x int)");
    let mut config = std::fs::read_to_string(place.path().join("hapax.toml")).unwrap();
    config.push_str("migrations = \"migrations\"\n");
    place.write("hapax.toml", config);
    let output = place.hapax(&["check"]);
    assert_eq!((output.status.code(), output.err.as_str()), (Some(0), ""));
    assert!(!output.out.contains("secret"), "{}", output.out);
    let component = std::fs::read(scene::script()).unwrap();
    let component = format!(
        "{} ({} bytes, contract 0.1.0, sha256 ",
        scene::script().display(),
        component.len()
    );
    for line in [
        "handler `bill`\n".to_owned(),
        format!("  component  {component}"),
        "  imports    hapax:handler/config@0.1.0, hapax:handler/log@0.1.0, hapax:handler/outbox@0.1.0, \
         hapax:handler/sql@0.1.0\n"
            .to_owned(),
        "  targets    none: what it publishes stays in the outbox until there is a table `[targets.NAME]`\n".to_owned(),
        "  source     payments (jetstream)\n".to_owned(),
        "  consumer   bill\n".to_owned(),
        "  message id json:/id, stream-sequence\n".to_owned(),
        "  limits     memory 3MiB, cpu 250ms, time 2s, rows 7,\n             \
         statements 100, result 1MiB, call 2MiB, table 1000, savepoints 3, cursors 2, outbox 5, log 1KiB\n"
            .to_owned(),
        "  lanes      2\n".to_owned(),
        "  batch      up to 500 messages, 250ms at the most\n".to_owned(),
        "  retry      1 attempt, 1s..300s between them\n".to_owned(),
        "  migrations 2\n".to_owned(),
        "handler `ship`\n".to_owned(),
        "  source     orders (queue)\n".to_owned(),
        "  message id queue:id, header:Nats-Msg-Id, header:ce-source+ce-id\n".to_owned(),
        "  limits     memory 64MiB, cpu 1s, time 10s, rows 10000,\n             \
         statements 10000, result 16MiB, call 16MiB, table 100000, savepoints 64, cursors 16, outbox 1000, log 256KiB\n"
            .to_owned(),
        "  migrations 0\n".to_owned(),
    ] {
        assert!(output.out.contains(&line), "no `{line}` in:\n{}", output.out);
    }
    assert!(
        output.out.ends_with("`hapax.toml` is valid: 2 handlers\n"),
        "{}",
        output.out
    );
}

#[test]
fn one_handler_is_not_handlers() {
    let output = Place::with_queue("").hapax(&["check"]);
    assert!(
        output.out.ends_with("`hapax.toml` is valid: 1 handler\n"),
        "{}",
        output.out
    );
}

#[test]
fn check_as_json() {
    let output = offline().hapax(&["check", "--json"]);
    assert_eq!((output.status.code(), output.err.as_str()), (Some(0), ""));
    assert_eq!(output.out.lines().count(), 1);
    let mut value: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    let component = std::fs::read(scene::script()).unwrap();
    let handlers = value["handlers"].as_array_mut().unwrap();
    for handler in handlers.iter_mut() {
        let digest = handler["digest"].take();
        assert_eq!(digest.as_str().unwrap().len(), 64, "{digest}");
    }
    let imports = json!([
        "hapax:handler/config@0.1.0",
        "hapax:handler/log@0.1.0",
        "hapax:handler/outbox@0.1.0",
        "hapax:handler/sql@0.1.0"
    ]);
    let handler = |name: &str| {
        json!({
            "name": name, "consumer": name, "digest": null, "contract": "0.1.0", "world": "handler", "migrations": 0,
            "component": scene::script().display().to_string(), "bytes": component.len(), "imports": imports,
            "batch": {"max": 500, "max_hold_ms": 250}, "targets": [],
            "order_by": null, "on_dead": null, "role": null, "allow_ddl": false, "differs": [],
        })
    };
    let mut bill = handler("bill");
    bill["source"] = json!("payments");
    bill["source_kind"] = json!("jetstream");
    bill["message_id"] = json!(["json:/id", "stream-sequence"]);
    bill["lanes"] = json!(2);
    bill["limits"] = json!({"memory_bytes": 3 << 20, "cpu_ms": 250, "time_ms": 2000, "rows": 7,
        "statements": 100, "result_bytes": 1 << 20, "call_bytes": 2 << 20, "table_elements": 1000,
        "savepoints": 3, "cursors": 2, "outbox": 5, "log_bytes": 1 << 10});
    bill["retry"] = json!({"attempts": 1, "backoff_min_ms": 1000, "backoff_max_ms": 300_000});
    let mut ship = handler("ship");
    ship["source"] = json!("orders");
    ship["source_kind"] = json!("queue");
    ship["message_id"] = json!(["queue:id", "header:Nats-Msg-Id", "header:ce-source+ce-id"]);
    ship["lanes"] = json!(4);
    ship["limits"] = json!({"memory_bytes": 64 << 20, "cpu_ms": 1000, "time_ms": 10_000, "rows": 10_000,
        "statements": 10_000, "result_bytes": 16 << 20, "call_bytes": 16 << 20, "table_elements": 100_000,
        "savepoints": 64, "cursors": 16, "outbox": 1_000, "log_bytes": 256 << 10});
    ship["retry"] = json!({"attempts": 10, "backoff_min_ms": 1000, "backoff_max_ms": 300_000});
    assert_eq!(value, json!({ "handlers": [bill, ship] }));
}

#[test]
fn a_configuration_without_handlers_is_valid_but_there_is_nothing_to_run() {
    let place =
        Place::new("[store]\nurl = \"sqlite:hapax.db\"\n[sources.orders]\nkind = \"queue\"\n");
    let hint = "hint: write a table `[handlers.NAME]` with `component = \"FILE.wasm\"` and `source = \"SOURCE\"`";
    let output = place.hapax(&["check"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.out, "`hapax.toml` is valid: 0 handlers\n");
    assert_eq!(
        output.err,
        format!("warning: without a handler there is nothing to run\n{hint}\n")
    );
    assert_fails(
        &place.hapax(&["run"]),
        3,
        &format!("error: `hapax.toml` has no handlers\n{hint}"),
    );
    assert_eq!(place.hapax(&["check", "--json"]).out, "{\"handlers\":[]}\n");
}

#[test]
fn check_reads_the_migrations_as_far_as_it_can() {
    let place = Place::with_queue("migrations = \"tables\"");
    let check = |text: &str| assert_fails(&place.hapax(&["check"]), 3, text);
    let tables = place.shown("tables");
    check(&format!(
        "error: handler `ship`: the folder of migrations `{tables}` cannot be read: No such file or directory (os error 2)\n\
         hint: correct `migrations`, or leave it out"
    ));
    place.write("tables/postgres/0001_a.sql", "CREATE TABLE a (x int)");
    check(&format!(
        "error: handler `ship`: the migrations in `{tables}` are for PostgreSQL only, and the store is SQLite\n\
         hint: add a folder `sqlite` there"
    ));
    place.write("tables/sqlite/tables.sql", "CREATE TABLE a (x int)");
    check(&format!(
        "error: handler `ship`: the migration `tables.sql` in `{tables}/sqlite` does not begin with a number\n\
         hint: name it such as `0001_accounts.sql`"
    ));
    std::fs::remove_file(place.path().join("tables/sqlite/tables.sql")).unwrap();
    place.write(
        "tables/sqlite/0001_a.sql",
        "CREATE TABLE a (x int); COMMIT;",
    );
    check(
        "error: handler `ship`: migrations: `0001_a.sql` contains `COMMIT`\n\
         hint: leave it out: each file runs in a transaction of the host's",
    );
    place.write("tables/sqlite/0001_a.sql", "CREATE TABLE a (x int);");
    assert_eq!(place.hapax(&["check"]).status.code(), Some(0));
}

/// Where a handler can publish to is said of those that can publish.
#[test]
fn the_targets_are_named_of_who_can_publish() {
    let place = Place::new(&format!(
        "[store]\nurl = \"sqlite:hapax.db\"\n[sources.orders]\nkind = \"queue\"\n[sources.payments]\nkind = \"queue\"\n[targets.next]\nkind = \"queue\"\nqueue = \"orders\"\n\
         {}[handlers.credit]\ncomponent = \"{}\"\nsource = \"payments\"\n",
        handler_table("ship", "orders"),
        scene::credit_account().display()
    ));
    let output = place.hapax(&["check"]);
    assert_eq!((output.status.code(), output.err.as_str()), (Some(0), ""));
    let (credit, ship) = output.out.split_once("handler `ship`\n").unwrap();
    assert!(!credit.contains("targets"), "{credit}");
    assert!(ship.contains("  targets    next\n"), "{ship}");
}
