//! The guard against PostgreSQL itself: statements made by a grammar from a printed seed, with hostile parts in every place. What the
//! guard passes is run, and the state afterwards is asked for.
//!
//! `HAPAX_TEST_SEED` repeats a run. With `HAPAX_TEST_FULL` there are 1,000,000 statements, else a thousandth.

use hapax::store::{Connection, Tx, Value};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::begin;
use crate::support::database::TestStore;

const TABLES: &str = "
    CREATE TABLE effects (id text NOT NULL);
    CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
    INSERT INTO accounts SELECT 'a' || n, n FROM generate_series(1, 20) AS n;
    CREATE SEQUENCE numbers;
    CREATE SEQUENCE untouched;
    SELECT nextval('untouched');
";

/// Commands that must not run, wherever they stand.
const COMMANDS: &[&str] = &[
    "COMMIT",
    "ROLLBACK",
    "END",
    "ABORT",
    "SET search_path = x",
    "RESET ALL",
    "SET ROLE stranger",
    "DISCARD ALL",
    "DROP TABLE accounts",
    "LOCK accounts",
    "SAVEPOINT s",
    "DELETE FROM hapax.processed_messages",
];

/// Calls that must not be made.
const CALLS: &[&str] = &[
    "set_config('search_path', 'x', false)",
    "set_config('role', 'stranger', true)",
    "setval('untouched', 77)",
    "pg_advisory_lock(5)",
    "pg_advisory_unlock_all()",
    "query_to_xml('SELECT set_con' || 'fig(''search_path'', ''x'', false)', true, true, '')",
    "ts_stat('SELECT to_tsvector(set_con' || 'fig(''search_path'', ''x'', false))')",
    "lo_creat(-1)",
    "pg_notify('a', 'b')",
    "pg_read_file('PG_VERSION')",
    "pg_terminate_backend(pg_backend_pid())",
    "pg_logical_emit_message(false, 'a', 'b')",
];

/// Names of functions of one argument that must not be called behind a dot.
const DOTTED: &[&str] = &[
    "('PG_VERSION'::text).pg_read_file",
    "(5::bigint).pg_advisory_lock",
    "(-1).lo_creat",
    "(0.5::float8).setseed",
];

/// Texts and names that a tokenizer may take for more or less than they are.
const ATOMS: &[&str] = &[
    "1",
    "1.5e3",
    "NULL",
    "true",
    "'a'",
    "''",
    "'it''s'",
    "'\\'",
    "E'\\''",
    "E'\\\\'",
    "E'a\\'; COMMIT; --'",
    "'; COMMIT; --'",
    "'--'",
    "'/*'",
    "$$; COMMIT; $$",
    "$a$ $$ ' $a$",
    "$_1$'$_1$",
    "U&'\\0041'",
    "U&'!0041' UESCAPE '!'",
    "B'01'",
    "X'ff'",
    "N'n'",
    "'a'\n'b'",
    "E'a'\n'\\''",
    "'a' -- '\n'b'",
    "balance",
    "id",
    "accounts.id",
    "\"id\"",
    "now()",
    "random()",
    "nextval('numbers')",
    "pg_advisory_xact_lock(3)",
    "current_user",
    "length('a')",
    "('a'::text).upper",
    "ARRAY[1, 2]",
    "(ARRAY[1,2])[1]",
    "ROW(1, 'b')",
    "'accounts'::regclass",
    "CAST('1' AS int)",
    "CASE WHEN true THEN 1 ELSE 2 END",
    "EXTRACT(year FROM now())",
    "(SELECT max(balance) FROM accounts)",
    "1::numeric(10, 2)",
    "a$b$c",
    "\"a\"\"b\"",
    "U&\"id\"",
    "\u{e4}",
];

/// What may stand between two tokens.
const BLANKS: &[&str] = &[
    " ",
    " ",
    " ",
    "\n",
    "\t",
    "\u{c}",
    "\r",
    "/**/",
    "/* x */",
    "/* ' */",
    "/* /* */ */",
    "/* -- */",
    "-- x\n",
    "-- '\n",
    "-- /*\n",
    "--\r",
    " /*/**/*/ ",
];

/// Between texts.
const OPERATORS: &[&str] = &[
    "||",
    "||",
    "||",
    "IS DISTINCT FROM",
    "= ",
    "<>",
    "@-",
    "- -",
    "LIKE",
    "~",
];

struct Fuzzer {
    random: StdRng,
}

impl Fuzzer {
    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of.choose(&mut self.random).copied().unwrap_or_default()
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.random_range(0..n) == 0
    }

    fn blank(&mut self) -> &'static str {
        self.pick(BLANKS)
    }

    /// Joins parts by what may stand between tokens.
    fn join(&mut self, parts: &[&str]) -> String {
        let mut text = String::new();
        for part in parts {
            text.push_str(self.blank());
            text.push_str(part);
        }
        text
    }

    /// The name of a function in one of its forms, and its arguments.
    fn call(&mut self) -> String {
        if self.one_in(4) {
            return self.pick(DOTTED).to_owned();
        }
        let call = self.pick(CALLS);
        let (name, arguments) = call.split_once('(').unwrap();
        let blank = self.blank();
        let name = match self.random.random_range(0..6) {
            0 => format!("pg_catalog.{name}"),
            1 => format!("pg_catalog{blank}.{blank}\"{name}\""),
            2 => format!("\"{name}\""),
            3 => name.to_uppercase(),
            4 => format!("U&\"{name}\""),
            _ => name.to_owned(),
        };
        format!("{name}{blank}({arguments}")
    }

    fn expression(&mut self, depth: u32) -> String {
        if depth > 0 && self.one_in(3) {
            let (left, operator, right) = (
                self.expression(depth - 1),
                self.pick(OPERATORS),
                self.expression(depth - 1),
            );
            return self.join(&["(", &left, operator, &right, ")::text"]);
        }
        if depth > 0 && self.one_in(6) {
            let inner = self.expression(depth - 1);
            return self.join(&["(", &inner, ")"]);
        }
        if self.one_in(16) {
            return self.call();
        }
        // As text, or hardly anything would fit with anything.
        let atom = self.pick(ATOMS);
        if self.one_in(10) {
            return atom.to_owned();
        }
        self.join(&["(", atom, ")", "::text"])
    }

    fn select(&mut self, depth: u32) -> String {
        let list = self.expression(2);
        let mut parts = vec!["SELECT".to_owned(), list];
        if self.one_in(12) {
            parts.push(
                self.pick(&[
                    "INTO TEMP accounts",
                    "INTO t",
                    "AS insert INTO t",
                    "merge INTO TEMP accounts",
                ])
                .to_owned(),
            );
        }
        parts.push("FROM".into());
        let from = match self.random.random_range(0..12) {
            0 if depth > 0 => format!("({}) AS accounts", self.select(depth - 1)),
            1 => format!("{} AS accounts", self.call()),
            2 => "hapax.processed_messages".into(),
            3 => "U&\"hapax\".queue".into(),
            4 => "pg_settings".into(),
            _ => "accounts".into(),
        };
        parts.push(from);
        if self.one_in(2) {
            parts.push("WHERE (".into());
            parts.push(self.expression(1));
            parts.push(") IS NOT NULL".into());
        }
        if self.one_in(6) {
            parts.push(
                self.pick(&["FOR UPDATE", "FOR NO KEY UPDATE", "FOR SHARE", "LIMIT 1"])
                    .to_owned(),
            );
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.join(&parts)
    }

    fn write(&mut self) -> String {
        let target = self.pick(&[
            "accounts",
            "accounts",
            "accounts",
            "effects",
            "hapax.queue",
            "pg_settings",
            "ONLY accounts",
        ]);
        let value = self.expression(1);
        let parts: Vec<&str> = match self.random.random_range(0..4) {
            0 => vec!["UPDATE", target, "SET balance = length(", &value, ")"],
            1 => vec!["DELETE FROM", target, "WHERE (", &value, ") IS NULL"],
            2 => vec![
                "INSERT INTO",
                target,
                "(id) SELECT",
                &value,
                "ON CONFLICT DO NOTHING",
            ],
            _ => vec!["INSERT INTO effects VALUES (", &value, ") RETURNING", "id"],
        };
        self.join(&parts)
    }

    /// One input: a statement, perhaps with something before, behind or inside that should not be there.
    fn statement(&mut self) -> String {
        let mut text = match self.random.random_range(0..10) {
            0..5 => self.select(2),
            5..8 => self.write(),
            8 => {
                let (inner, outer) = (self.write(), self.select(1));
                self.join(&["WITH a AS (", &inner, "RETURNING 1 )", &outer])
            }
            _ => {
                let inner = self.select(1);
                self.join(&["(", &inner, ") UNION ALL SELECT ''"])
            }
        };
        if self.one_in(5) {
            let (command, blank) = (self.pick(COMMANDS), self.blank());
            text = match self.random.random_range(0..4) {
                0 => format!("{command};{text}"),
                1 => format!("{text};{blank}{command}"),
                2 => format!("{command}{blank}{text}"),
                _ => format!("{text}{blank}{command}"),
            };
        }
        if self.one_in(5) {
            text = self.damaged(&text);
        }
        text
    }

    /// Puts in, takes out or doubles a few characters.
    fn damaged(&mut self, text: &str) -> String {
        const PIECES: &[&str] = &[
            "'",
            "\"",
            "$$",
            "$a$",
            "/*",
            "*/",
            "--",
            "\n",
            "\r",
            ";",
            "\\",
            "E'",
            "U&\"",
            "(",
            ")",
            ".",
            "$1",
            "''",
            "; COMMIT; ",
            "\u{b}",
            "\u{a0}",
            "0x",
            "1e",
            "::",
            "E",
            "x",
        ];
        let mut chars: Vec<char> = text.chars().collect();
        for _ in 0..self.random.random_range(1..4) {
            let at = self.random.random_range(0..=chars.len());
            if at < chars.len() && self.one_in(3) {
                chars.remove(at);
            } else {
                let piece: Vec<char> = self.pick(PIECES).chars().collect();
                chars.splice(at..at, piece);
            }
        }
        chars.into_iter().collect()
    }
}

/// What no statement of a handler may change.
const STATE: &str = "
    SELECT pg_current_xact_id_if_assigned()::text, current_user::text, session_user::text, pg_my_temp_schema()::text,
        current_setting('search_path'), current_setting('synchronous_commit'), current_setting('role'),
        (SELECT count(*) FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid() AND l.objid NOT IN (3)),
        (SELECT last_value FROM untouched), (SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM pg_largeobject_metadata)";

async fn state(tx: &mut Tx, what: &str) -> Vec<Value> {
    match tx.query(STATE, &[], 1).await {
        Ok(mut result) => result.rows.remove(0),
        Err(error) => panic!("{what}: {error}"),
    }
}

/// The contents of hapax's own tables, and what outlives a session. The claim of a transaction that is open is not seen.
const OUTSIDE: &str = "
    SELECT (SELECT count(*) FROM hapax.processed_messages) || ' ' || (SELECT count(*) FROM hapax.queue) || ' '
        || (SELECT count(*) FROM hapax.outbox) || ' ' || (SELECT count(*) FROM hapax.dead_letters) || ' '
        || (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace) || ' '
        || (SELECT count(*) FROM accounts) || ' ' || (SELECT sum(balance) FROM accounts) || ' ' || (SELECT count(*) FROM effects)
        || ' ' || (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 5)";

#[tokio::test]
async fn no_statement_that_passes_changes_more_than_rows() {
    let inputs: u64 = if std::env::var_os("HAPAX_TEST_FULL").is_some() {
        1_000_000
    } else {
        1_000
    };
    let seed: u64 = std::env::var("HAPAX_TEST_SEED")
        .map(|seed| seed.parse().unwrap())
        .unwrap_or_else(|_| rand::random());
    println!("HAPAX_TEST_SEED={seed}");
    let mut fuzzer = Fuzzer {
        random: StdRng::seed_from_u64(seed),
    };
    let test = TestStore::postgres().await;
    test.run(TABLES).await;
    test.run("CREATE ROLE stranger").await;
    let mut probe = test.probe().await;
    let outside = probe.text(OUTSIDE).await;

    let mut connection: Option<Connection> = None;
    let mut open: Option<(Tx, Vec<Value>)> = None;
    let (mut refused, mut failed, mut run) = (0_u64, 0_u64, 0_u64);
    for number in 0..inputs {
        let statement = fuzzer.statement();
        let (mut tx, before) = match open.take() {
            Some(open) => open,
            None => {
                let connection = match connection.take() {
                    Some(connection) => connection,
                    None => test.connect().await,
                };
                let mut tx = begin(connection, "m").await;
                let before = state(&mut tx, "at the start").await;
                (tx, before)
            }
        };
        let what = || format!("seed {seed}, input {number}: {statement:?}");
        match tx.execute(&statement, &[]).await {
            Err(error) if error.code.starts_with("denied.") && error.code != "denied.privilege" => {
                refused += 1;
                open = Some((tx, before));
            }
            Err(error) if !tx.is_aborted() => {
                // A parameter that is missing.
                failed += 1;
                assert!(error.code.starts_with("params."), "{}: {error}", what());
                open = Some((tx, before));
            }
            Err(error) => {
                failed += 1;
                // The server found two commands where the guard had found one.
                assert!(
                    !error.message.contains("multiple commands"),
                    "{}: {error}",
                    what()
                );
                assert!(error.code != "unavailable", "{}: {error}", what());
                // With its transaction gone, what a session keeps is asked in the next one.
                let back = tx.rollback().await.unwrap_or_else(|| panic!("{}", what()));
                let mut tx = begin(back, "m").await;
                let now = state(&mut tx, &what()).await;
                assert_eq!(now[1..], before[1..], "{}", what());
                open = Some((tx, now));
            }
            Ok(_) => {
                run += 1;
                assert_eq!(state(&mut tx, &what()).await, before, "{}", what());
                // Rolled back now and then, so that rows do not pile up, and so that what outlives a rollback shows.
                if run.is_multiple_of(16) {
                    connection = tx.rollback().await;
                    assert!(connection.is_some(), "{}", what());
                } else {
                    open = Some((tx, before));
                }
            }
        }
        if number % 500 == 499 {
            assert_eq!(probe.text(OUTSIDE).await, outside, "{}", what());
        }
    }
    if let Some((tx, _)) = open {
        tx.rollback().await.unwrap();
    }
    assert_eq!(probe.text(OUTSIDE).await, outside, "seed {seed}");
    println!("{refused} refused, {failed} failed, {run} run");
    // A fuzzer whose statements all fail finds nothing.
    assert!(
        run * 10 >= inputs,
        "seed {seed}: {run} of {inputs} were run"
    );
    assert!(
        refused * 10 >= inputs,
        "seed {seed}: {refused} of {inputs} were refused"
    );
}
