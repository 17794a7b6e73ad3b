//! A project on the guest `planted`, in a folder of the test's own.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::host::{self, Output};

/// A project.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    /// A handler that does `does`, with more lines of its table, the tables that it writes to, and messages.
    pub(crate) fn new(does: &str, handler: &str, tables: &str, messages: &[Value]) -> Self {
        let place = Self {
            folder: TempDir::with_prefix("hapax-prove-").unwrap(),
        };
        let component = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/planted.wasm");
        assert!(
            component.exists(),
            "`{}` is missing: run `cargo xtask guests`",
            component.display()
        );
        place.write(
            "hapax.toml",
            &format!(
                "[store]\nurl = \"sqlite:not-made.db\"\n[sources.changes]\nkind = \"queue\"\n[handlers.subject]\ncomponent = \"{}\"\n\
                 source = \"changes\"\nmigrations = \"migrations\"\nconfig = {{ does = \"{does}\" }}\n{handler}\n",
                component.display()
            ),
        );
        std::fs::create_dir(place.path().join("migrations")).unwrap();
        place.write("migrations/0001_tables.sql", tables);
        let mut lines = String::new();
        for message in messages {
            writeln!(lines, "{message}").unwrap();
        }
        place.write("messages.jsonl", &lines);
        place
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path().join(file), text).unwrap();
    }

    /// Runs `hapax test` with more arguments.
    pub(crate) fn test(&self, arguments: &[&str]) -> Output {
        let arguments = [&["test"], arguments].concat();
        host::run(self.folder.path(), &arguments)
    }

    /// As `test`, for a program.
    pub(crate) fn report(&self, arguments: &[&str]) -> Report {
        let output = self.test(&[&["--json", "--seed", "7"], arguments].concat());
        let report =
            serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert!(
            !self.path().join("not-made.db").exists(),
            "the project's own database was touched"
        );
        Report {
            report,
            code: output.status.code(),
        }
    }
}

/// What `hapax test --json` printed.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) report: Value,
    pub(crate) code: Option<i32>,
}

impl Report {
    /// Asserts that nothing was found.
    #[track_caller]
    pub(crate) fn assert_passed(&self) {
        assert_eq!(
            (self.code, &self.report["passed"]),
            (Some(0), &json!(true)),
            "{:#}",
            self.report
        );
        assert_eq!(self.report["findings"], json!([]));
        assert_eq!(self.report["differing"], json!([]));
    }

    /// Asserts that exactly one thing was found, by this step, and returns it.
    #[track_caller]
    pub(crate) fn the_finding(&self, step: &str) -> &Value {
        assert_eq!(
            (self.code, &self.report["passed"]),
            (Some(1), &json!(false)),
            "{:#}",
            self.report
        );
        let findings = self.report["findings"].as_array().unwrap();
        assert_eq!(findings.len(), 1, "{:#}", self.report);
        assert_eq!(findings[0]["step"], step, "{:#}", self.report);
        &findings[0]
    }

    /// Asserts that no statement differs from run to run.
    #[track_caller]
    pub(crate) fn assert_same_sql(&self) {
        assert_eq!(self.report["differing"], json!([]), "{:#}", self.report);
    }

    /// Asserts that exactly one statement differs from run to run, by `what`, and returns it.
    #[track_caller]
    pub(crate) fn the_sql(&self, what: &str) -> &Value {
        let differing = self.report["differing"].as_array().unwrap();
        assert_eq!(differing.len(), 1, "{:#}", self.report);
        assert_eq!(differing[0]["what"], what, "{:#}", self.report);
        &differing[0]
    }
}

/// Asserts that one of the reasons of a finding holds all of `words`.
#[track_caller]
pub(crate) fn assert_because(finding: &Value, words: &[&str]) {
    let reasons = finding["because"].as_array().unwrap();
    assert!(
        reasons.iter().any(|reason| words
            .iter()
            .all(|word| reason.as_str().unwrap().contains(word))),
        "no reason with {words:?} in {finding:#}"
    );
}

/// A message that changes an account by an amount.
pub(crate) fn change(id: &str, account: &str, amount: i64) -> Value {
    named(id, account, amount, "", 0)
}

/// A message with all that it can have.
pub(crate) fn named(id: &str, account: &str, amount: i64, name: &str, version: i64) -> Value {
    json!({
        "id": id,
        "payload": { "account": account, "amount": amount, "name": name, "version": version },
    })
}

/// Five messages for two accounts.
pub(crate) fn changes() -> Vec<Value> {
    vec![
        change("m1", "a", 1),
        change("m2", "b", 2),
        change("m3", "a", 3),
        change("m4", "b", 4),
        change("m5", "a", 5),
    ]
}

/// The accounts that these are for.
pub(crate) const ACCOUNTS: &str = "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);\n\
                                   INSERT INTO accounts (id, balance) VALUES ('a', 0), ('b', 0);";
