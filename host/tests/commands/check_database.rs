//! `check --database`, and what `check` says of a handler that is said to be replayable.

use crate::place::{Place, handler_table};
use crate::support::database::TestStore;

const INSTALLED: &str = "
    CREATE ROLE ship NOLOGIN;
    CREATE TABLE orders (id text, secret text);
    CREATE TABLE secrets (id text);
    CREATE UNLOGGED TABLE scratch (id text);
    CREATE TABLE audited (id text);
    CREATE FUNCTION borrows() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1';
    CREATE FUNCTION kept() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1';
    REVOKE EXECUTE ON FUNCTION kept() FROM PUBLIC;
    CREATE FUNCTION plain() RETURNS int LANGUAGE sql AS 'SELECT 1';
    CREATE FUNCTION audits() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN RETURN NEW; END $$;
    CREATE TRIGGER audit AFTER INSERT ON audited FOR EACH ROW EXECUTE FUNCTION audits();
    CREATE TRIGGER elsewhere AFTER INSERT ON secrets FOR EACH ROW EXECUTE FUNCTION audits();
    CREATE RULE tells AS ON INSERT TO audited DO ALSO NOTIFY told;
    CREATE FOREIGN DATA WRAPPER nothing;
    CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing;
    CREATE FOREIGN TABLE far (id text) SERVER elsewhere;
    CREATE FUNCTION watches() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN END $$;
    CREATE EVENT TRIGGER watch ON ddl_command_start EXECUTE FUNCTION watches();
    GRANT SELECT (id), INSERT ON orders TO ship;
    GRANT INSERT ON scratch, audited TO ship;
    GRANT SELECT ON far TO ship;
";

#[tokio::test]
async fn what_a_role_can_reach() {
    let test = TestStore::postgres().await;
    test.run(INSTALLED).await;
    let config = |handler: &str| {
        format!(
            "[store]\nurl = \"{}\"\n[sources.orders]\nkind = \"queue\"\n{}{handler}\n",
            test.url,
            handler_table("ship", "orders")
        )
    };
    let place = Place::new(&config("role = \"ship\""));
    let output = place.hapax(&["check", "--database"]);
    assert_eq!((output.status.code(), output.err.as_str()), (Some(0), ""));
    let (_, text) = output.out.split_once("is valid: 1 handler\n").unwrap();
    assert_eq!(
        text,
        "handler `ship` in the database, as `ship`
  may touch  public.audited: INSERT
             public.far: SELECT
             public.orders: SELECT, INSERT
             public.scratch: INSERT
  beware     function public.borrows: SECURITY DEFINER: runs with the rights of tester
             trigger audit on public.audited: calls public.audits: SECURITY DEFINER: runs with the rights of tester
             rule tells on public.audited: does more or something else than the statement says
             foreign table public.far: its rows live elsewhere, and may stay there after a rollback
             unlogged table public.scratch: is empty after a crash of the server, though the messages stay processed
             event trigger watch: runs on ddl_command_start
"
    );
    let output = place.hapax(&["check", "--database", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(value["database"][0]["handler"], "ship");
    assert_eq!(value["database"][0]["reach"]["role"], "ship");
    assert_eq!(
        value["database"][0]["reach"]["tables"][2]["rights"][1],
        "INSERT"
    );
    assert_eq!(value["handlers"][0]["role"], "ship");

    // As the login, which here is a superuser.
    place.write("hapax.toml", config(""));
    let output = place.hapax(&["check", "--database"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        output.err,
        "warning: handler `ship` runs its SQL as the superuser `tester`, whom no privilege holds back\n\
         hint: connect as a login of hapax's own, or set `role` in the handler's table\n"
    );
    assert!(
        output.out.contains("public.secrets: SELECT"),
        "{}",
        output.out
    );
    assert!(
        output.out.contains("function public.kept"),
        "{}",
        output.out
    );
    assert!(!output.out.contains("hapax.queue"), "{}", output.out);
    assert!(!output.out.contains("public.plain"), "{}", output.out);

    // A role that may reach hapax's own tables is told.
    test.run("GRANT USAGE ON SCHEMA hapax TO ship; GRANT SELECT ON hapax.queue TO ship")
        .await;
    place.write("hapax.toml", config("role = \"ship\""));
    let output = place.hapax(&["check", "--database"]);
    assert!(output.out.contains("hapax.queue: SELECT"), "{}", output.out);

    place.write("hapax.toml", config("role = \"nobody\""));
    let output = place.hapax(&["check", "--database"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(
        output.err,
        "error: handler `ship`: `role`: there is no role `\"nobody\"` in the database\n\
         hint: make it: `CREATE ROLE \"nobody\" NOLOGIN; GRANT \"nobody\" TO \"tester\"`, and give it its rights in the handler's \
         migrations\n"
    );
    // Without `--database` nobody is asked.
    assert_eq!(place.hapax(&["check"]).status.code(), Some(0));
}

#[tokio::test]
async fn on_sqlite_everybody_may_do_everything() {
    let place = Place::with_queue("");
    let mut probe = place.sqlite_made().await;
    probe
        .run("CREATE TABLE orders (id text); CREATE TABLE hapax_queue (id text); \
              CREATE TRIGGER enqueues AFTER INSERT ON orders BEGIN INSERT INTO hapax_queue VALUES ('a'); END")
        .await;
    let output = place.hapax(&["check", "--database"]);
    assert_eq!((output.status.code(), output.err.as_str()), (Some(0), ""));
    let (_, text) = output.out.split_once("is valid: 1 handler\n").unwrap();
    assert_eq!(
        text,
        "handler `ship` in the database\n  may touch  orders: SELECT, INSERT, UPDATE, DELETE\n  \
         beware     trigger enqueues on orders: touches hapax's own tables\n"
    );
}

/// The scriptable component holds no such SQL; a copy with a text in a custom section does.
#[test]
fn sql_that_differs_from_run_to_run_is_warned_of_where_replays_are_promised() {
    let place = Place::with_queue("replayable = true");
    let output = place.hapax(&["check"]);
    assert_eq!((output.status.code(), output.err.as_str()), (Some(0), ""));

    let mut component = std::fs::read(crate::support::scene::script()).unwrap();
    let text = b"INSERT INTO effects (at, n) VALUES (now(), nextval('numbers'))";
    component.extend([0, text.len() as u8 + 2, 1, b'x']);
    component.extend(text);
    place.write("ship.wasm", component);
    let config = |more: &str| {
        format!(
            "[store]\nurl = \"sqlite:hapax.db\"\n[sources.orders]\nkind = \"queue\"\n[handlers.ship]\ncomponent = \"ship.wasm\"\n\
             source = \"orders\"\n{more}"
        )
    };
    place.write("hapax.toml", config("replayable = true\n"));
    let output = place.hapax(&["check"]);
    assert_eq!(output.status.code(), Some(0), "{}", output.err);
    assert_eq!(
        output.err,
        format!(
            "warning: handler `ship` is said to be replayable, but texts of `{}` look like SQL with nextval(), now()\n\
             hint: take times and numbers from the message, or leave `replayable` out\n",
            place.shown("ship.wasm")
        )
    );
    place.write("hapax.toml", config(""));
    assert_eq!(place.hapax(&["check"]).err, "");
}
