//! The ceilings on PostgreSQL: its own load generator sends the same statements, with no broker, no ids to find and no code between.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::messages::{Keys, Load};
use super::scenario::Work;
use crate::process;

/// Messages in one transaction.
const BATCH: usize = 200;
/// Clients with one message a transaction each.
const CLIENTS: &str = "32";
/// Clients that wait for the baton: while one works, the next is ready.
const BATON_CLIENTS: &str = "2";
/// How long each is measured, in seconds.
const SECONDS: &str = "3";
const ROWS_MAX: &str = "1000000000000000";

/// Messages a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceilings {
    /// One message a transaction, 32 at a time.
    pub(super) single: f64,
    /// 200 a transaction with the baton, each statement awaited.
    pub(super) awaited: f64,
    /// The same, sent as one pipeline, on one connection.
    pub(super) pipelined: f64,
}

/// Returns the program that came with the server, else the one on `PATH`.
pub(super) fn find(binaries: &Path) -> Option<PathBuf> {
    let beside = binaries.join("pgbench");
    if process::is_executable(&beside) {
        return Some(beside);
    }
    process::find("pgbench")
}

/// The program, and the database that it is let loose on.
#[derive(Debug)]
pub(super) struct Pgbench<'a> {
    pub(super) program: &'a Path,
    pub(super) url: String,
    pub(super) folder: &'a Path,
}

impl Pgbench<'_> {
    /// Measures all three.
    ///
    /// # Errors
    /// What the program says.
    pub(super) fn ceilings(&self, work: Work, load: Load) -> anyhow::Result<Ceilings> {
        let batch = BATCH as f64;
        Ok(Ceilings {
            single: self.rate(&single(work, load), CLIENTS)?,
            awaited: batch * self.rate(&grouped(work, load, false), BATON_CLIENTS)?,
            pipelined: batch * self.rate(&grouped(work, load, true), "1")?,
        })
    }

    /// Returns the transactions a second.
    fn rate(&self, script: &str, clients: &str) -> anyhow::Result<f64> {
        let file: PathBuf = self.folder.join("ceiling.sql");
        std::fs::write(&file, script)
            .with_context(|| format!("cannot write `{}`", file.display()))?;
        // Each client prepares its statements before it is timed only in part: with more threads they do so side by side.
        let threads = if clients == "1" { "1" } else { "2" };
        let said = process::output(
            Command::new(self.program)
                .args(["--no-vacuum", "--protocol=prepared", "--time", SECONDS])
                .args(["--client", clients, "--jobs", threads])
                .arg("--file")
                .arg(&file)
                .arg(&self.url),
        )?;
        transactions_a_second(&said).with_context(|| format!("pgbench printed no `tps`:\n{said}"))
    }
}

/// Reads `tps = 123.456 (without initial connection time)`.
fn transactions_a_second(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.strip_prefix("tps = "))?;
    line.split_whitespace().next()?.parse().ok()
}

fn draw(keys: Keys) -> String {
    let account = match keys {
        Keys::Uniform(accounts) => format!("random(0, {})", accounts - 1),
        Keys::Zipf(accounts) => format!("random_zipfian(1, {accounts}, 1.1) - 1"),
        Keys::OneHot => "0".to_owned(),
    };
    format!("\\set account {account}\n\\set amount random(-1000, 1000)\n")
}

/// The statements of one message.
fn statements(work: Work) -> &'static str {
    match work {
        Work::Execute | Work::Batch => {
            "UPDATE accounts SET balance = balance + :amount WHERE id = 'a' || :account::text;\n"
        }
        Work::ReadWrite => {
            "SELECT balance FROM accounts WHERE id = 'a' || :account::text FOR UPDATE;\n\
             UPDATE accounts SET balance = :amount WHERE id = 'a' || :account::text;\n\
             INSERT INTO accounts_entries (account, amount, kind) VALUES ('a' || :account::text, :amount, 'credit');\n"
        }
    }
}

fn single(work: Work, load: Load) -> String {
    format!(
        "\\set id random(1, {ROWS_MAX})\n{}BEGIN;\n\
         INSERT INTO processed_messages (message_id) VALUES ('m' || :id::text) ON CONFLICT DO NOTHING;\n\
         {}COMMIT;\n",
        draw(load.keys),
        statements(work)
    )
}

fn grouped(work: Work, load: Load, is_pipelined: bool) -> String {
    let mut script = format!("\\set id random(1, {ROWS_MAX})\n");
    if is_pipelined {
        script.push_str("\\startpipeline\n");
    }
    script.push_str(&format!(
        "BEGIN;\nSELECT pg_advisory_xact_lock(1, 1);\n\
         INSERT INTO processed_messages (message_id) \
         SELECT 'm' || :id::text || '-' || n FROM generate_series(1, {BATCH}) AS n ON CONFLICT DO NOTHING;\n"
    ));
    if work == Work::Batch {
        // The server draws: a client has no arrays.
        let account = match load.keys {
            Keys::Uniform(accounts) | Keys::Zipf(accounts) => {
                format!("floor(random() * {accounts})::int")
            }
            Keys::OneHot => "0".to_owned(),
        };
        script.push_str(&format!(
            "UPDATE accounts SET balance = balance + sums.amount FROM (SELECT id, sum(amount)::bigint AS amount FROM \
             (SELECT 'a' || {account} AS id, (random() * 2000 - 1000)::bigint AS amount FROM generate_series(1, {BATCH})) AS drawn \
             GROUP BY id) AS sums WHERE accounts.id = sums.id;\n"
        ));
    } else {
        for _ in 0..BATCH {
            script.push_str(&draw(load.keys));
            script.push_str(statements(work));
        }
    }
    script.push_str("COMMIT;\n");
    if is_pipelined {
        script.push_str("\\endpipeline\n");
    }
    script
}

#[cfg(test)]
mod tests {
    use super::super::scenario::USUAL;
    use super::*;

    #[test]
    fn the_rate_is_read() {
        let said = "latency average = 1.5 ms\ninitial connection time = 3 ms\ntps = 671.25 (without initial connection time)\n";
        assert_eq!(transactions_a_second(said), Some(671.25));
        assert_eq!(transactions_a_second("tps: none"), None);
    }

    #[test]
    fn a_group_has_the_statements_of_its_messages() {
        for (work, statements) in [(Work::Execute, 1), (Work::ReadWrite, 2)] {
            let script = grouped(work, USUAL, true);
            assert_eq!(script.matches("UPDATE accounts").count(), BATCH, "{script}");
            assert_eq!(
                script.matches(":amount").count(),
                BATCH * statements,
                "{script}"
            );
            assert_eq!(script.matches("\\startpipeline").count(), 1);
            assert_eq!(script.matches("random(0, 999)").count(), BATCH);
        }
        assert!(!grouped(Work::Batch, USUAL, false).contains("pipeline"));
    }
}
