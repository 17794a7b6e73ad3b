//! What the demo says at its end: a table for a person, or one JSON object.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::hosts::Hosts;
use super::tables::{Compared, Tables, compare};
use crate::exit::{CommandError, Exit};

/// All that the demo found out.
#[derive(Debug)]
pub struct DemoReport {
    pub(super) seed: u64,
    /// A hash of the messages' ids in the order of their deliveries.
    pub(super) order: String,
    /// Different messages.
    pub(super) messages: u64,
    /// How often each was delivered.
    pub(super) times: u64,
    /// Deliveries that the queue took.
    pub(super) sent: u64,
    /// What the hosts told.
    pub(super) hosts: Hosts,
    /// Dead letters in the database.
    pub(super) dead: u64,
    /// Deliveries that are left in the queue.
    pub(super) backlog: u64,
    /// The tables that the hosts left.
    pub(super) found: Tables,
    /// The consumer without claims.
    pub(super) plain: Plain,
    /// The tables, computed from the messages.
    pub(super) expected: Tables,
    pub(super) elapsed: Duration,
    /// Where everything lies.
    pub(super) folder: PathBuf,
}

/// What the consumer without claims made of the same deliveries.
#[derive(Debug)]
pub(super) struct Plain {
    /// Deliveries that took effect: it skips none.
    pub(super) took_effect: u64,
    pub(super) found: Tables,
}

impl DemoReport {
    /// Whether every row is as expected and the counts agree with it. What the plain consumer made is not asked.
    pub fn is_exact(&self) -> bool {
        self.faults().is_empty() && wrong(&compare(&self.expected, &self.found)) == 0
    }

    /// Returns an error unless the result is exact.
    ///
    /// # Errors
    /// With the exit code 1.
    pub fn require_exact(&self) -> Result<(), CommandError> {
        if self.is_exact() {
            return Ok(());
        }
        Err(CommandError::new(
            Exit::Failed,
            "the result is not what the messages say",
            Some(&format!(
                "that is a bug in hapax: report it with seed {} and the folder `{}`",
                self.seed,
                self.folder.display()
            )),
        ))
    }

    /// Returns the result as a table, and what to try next. `program` is how this program was called.
    pub fn text(&self, program: &str) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text, program);
        text
    }

    /// Returns the result as one JSON object.
    pub fn json(&self) -> Value {
        let tables = |found: &Tables| -> Map<String, Value> {
            compare(&self.expected, found)
                .iter()
                .map(|table| (table.name.to_owned(), table.as_json()))
                .collect()
        };
        let killed: Vec<Value> = self
            .hosts
            .killed
            .iter()
            .map(|kill| json!({"point": kill.point, "settled": kill.settled}))
            .collect();
        json!({
            "exact": self.is_exact(),
            "seed": self.seed,
            "order": self.order,
            "messages": self.messages,
            "deliveries": self.sent,
            "took_effect": self.hosts.claimed,
            "skipped": self.hosts.duplicates,
            "killed": killed,
            "dead": self.dead,
            "backlog": self.backlog,
            "events": events(&self.found),
            "faults": self.faults(),
            "tables": tables(&self.found),
            "plain": {
                "took_effect": self.plain.took_effect,
                "events": events(&self.plain.found),
                "tables": tables(&self.plain.found),
                "database": self.folder.join("plain.db"),
            },
            "database": self.folder.join("hapax.db"),
            "seconds": (self.elapsed.as_secs_f64() * 10.0).round() / 10.0,
        })
    }

    /// Returns what is wrong with the counts, in sentences.
    fn faults(&self) -> Vec<String> {
        let deliveries = self.messages * self.times;
        let mut faults = Vec::new();
        let mut expect = |what: &str, found: u64, expected: u64| {
            if found != expected {
                faults.push(format!("{what}: {found}, not {expected}"));
            }
        };
        expect("deliveries sent", self.sent, deliveries);
        expect(
            "messages that took effect",
            self.hosts.claimed,
            self.messages,
        );
        expect(
            "deliveries skipped",
            self.hosts.duplicates,
            deliveries - self.messages,
        );
        expect("hosts killed", self.hosts.killed.len() as u64, 2);
        expect("dead letters", self.dead, 0);
        expect("deliveries left", self.backlog, 0);
        faults
    }

    fn write(&self, out: &mut String, program: &str) -> std::fmt::Result {
        let (ours, plain) = (
            compare(&self.expected, &self.found),
            compare(&self.expected, &self.plain.found),
        );
        writeln!(
            out,
            "{} GitHub webhooks, each delivered {} times, in the order of seed {}",
            self.messages, self.times, self.seed
        )?;
        writeln!(out)?;
        let mut row = |name: &str, cells: [&dyn std::fmt::Display; 3]| {
            let [ours, plain, expected] = cells.map(ToString::to_string);
            let line = format!("  {name:<16}{ours:>8}{plain:>18}{expected:>12}");
            writeln!(out, "{}", line.trim_end())
        };
        row("", [&"hapax", &"without claims", &"expected"])?;
        row("deliveries", [&self.sent, &self.sent, &self.sent])?;
        row(
            "took effect",
            [&self.hosts.claimed, &self.plain.took_effect, &self.messages],
        )?;
        row(
            "skipped",
            [
                &self.hosts.duplicates,
                &(self.sent - self.plain.took_effect.min(self.sent)),
                &(self.messages * (self.times - 1)),
            ],
        )?;
        row(
            "sum of events",
            [
                &events(&self.found),
                &events(&self.plain.found),
                &events(&self.expected),
            ],
        )?;
        row("wrong rows", [&wrong(&ours), &wrong(&plain), &0])?;
        row("hosts killed", [&self.hosts.killed.len(), &0, &""])?;
        writeln!(out)?;
        for kill in &self.hosts.killed {
            writeln!(
                out,
                "  killed at {:<14}{:>4} deliveries in: {}",
                kill.point, kill.settled, kill.meaning
            )?;
        }
        for table in ours.iter().filter(|table| !table.differences.is_empty()) {
            writeln!(
                out,
                "  {}: {} rows not as expected",
                table.name,
                table.differences.len()
            )?;
            out.push_str(&table.shown());
        }
        for fault in self.faults() {
            writeln!(out, "  fault: {fault}")?;
        }
        writeln!(out)?;
        writeln!(
            out,
            "exact: {} ({} rows compared, {:.1} s)",
            if self.is_exact() { "yes" } else { "no" },
            ours.iter().map(|table| table.rows).sum::<usize>(),
            self.elapsed.as_secs_f64()
        )?;
        writeln!(out)?;
        writeln!(
            out,
            "database: {} (without claims: plain.db)",
            self.folder.join("hapax.db").display()
        )?;
        writeln!(out, "next:")?;
        writeln!(out, "  cd {}", quoted(&self.folder))?;
        writeln!(
            out,
            "  sqlite3 hapax.db 'SELECT * FROM repositories ORDER BY events DESC LIMIT 5'"
        )?;
        writeln!(out, "  # every message a fourth time: no row changes")?;
        writeln!(
            out,
            "  {program} send github --envelope --lines messages.jsonl && {program} run --until-idle"
        )
    }
}

/// Returns the sum of a column that only ever grows: what the duplicates spoil.
fn events(tables: &Tables) -> i64 {
    tables.repositories.values().map(|row| row.events).sum()
}

/// Counts the rows that are not as expected.
fn wrong(tables: &[Compared]) -> usize {
    tables.iter().map(|table| table.differences.len()).sum()
}

/// Returns a path as one word for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    if text.bytes().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kill;
    use super::super::tables::Repository;
    use super::*;

    fn tables(events: i64) -> Tables {
        let row = Repository {
            events,
            last_activity: None,
        };
        Tables {
            repositories: [("a/b".to_owned(), row)].into(),
            ..Tables::default()
        }
    }

    fn exact() -> DemoReport {
        let kill = |point, settled| Kill {
            point,
            meaning: "rolled back",
            settled,
        };
        DemoReport {
            seed: 7,
            order: "00".to_owned(),
            messages: 2,
            times: 3,
            sent: 6,
            hosts: Hosts {
                claimed: 2,
                duplicates: 4,
                killed: vec![kill("after-handler", 1), kill("before-ack", 3)],
            },
            dead: 0,
            backlog: 0,
            found: tables(2),
            plain: Plain {
                took_effect: 6,
                found: tables(6),
            },
            expected: tables(2),
            elapsed: Duration::from_millis(1234),
            folder: "/f g".into(),
        }
    }

    #[test]
    fn equal_tables_and_counts_are_exact() {
        let report = exact();
        assert!(report.is_exact());
        assert_eq!(report.require_exact(), Ok(()));
        let text = report.text("hapax");
        for part in [
            "sum of events          2                 6           2",
            "wrong rows             0                 1           0",
            "killed at before-ack       3 deliveries in",
            "exact: yes (1 rows compared, 1.2 s)",
            "database: /f g/hapax.db",
            "cd '/f g'",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("fault"), "{text}");
        assert_eq!(report.json()["exact"], true);
        assert_eq!(report.json()["plain"]["events"], 6);
    }

    /// Tampers with one thing, and expects the exit code 1.
    #[track_caller]
    fn refused(spoil: impl Fn(&mut DemoReport)) -> DemoReport {
        let mut report = exact();
        spoil(&mut report);
        assert!(!report.is_exact());
        assert_eq!(report.json()["exact"], false);
        let error = report.require_exact().expect_err("not exact");
        assert_eq!(error.exit as u8, 1);
        assert!(error.to_string().contains("seed 7"), "{error}");
        report
    }

    #[test]
    fn another_row_than_expected_is_not_exact() {
        let counted_twice = refused(|report| report.found = tables(3));
        let text = counted_twice.text("hapax");
        for part in [
            "exact: no",
            "repositories: 1 rows not as expected",
            "events: 3",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        refused(|report| report.expected = tables(3));
        refused(|report| report.found = Tables::default());
    }

    #[test]
    fn each_wrong_count_is_a_fault() {
        let spoiled: [fn(&mut DemoReport); 6] = [
            |report| report.sent = 5,
            |report| report.hosts.claimed = 1,
            |report| report.hosts.duplicates = 5,
            |report| report.hosts.killed.truncate(1),
            |report| report.dead = 1,
            |report| report.backlog = 1,
        ];
        for spoil in spoiled {
            let report = refused(spoil);
            assert_eq!(report.faults().len(), 1, "{report:?}");
            assert!(report.text("hapax").contains("fault: "));
        }
    }
}
