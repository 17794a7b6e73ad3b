//! What the full demo says at its end: a table for a person, or one JSON object.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::found::Found;
use super::tables::{Compared, Tables, compare};

/// The daemon's own counts for one handler, from `hapax status --json`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// Messages that took effect.
    pub(super) claimed: u64,
    /// Deliveries of messages that had taken effect before.
    pub(super) duplicates: u64,
    /// Attempts that failed and were made again.
    pub(super) retried: u64,
    /// Messages given up on.
    pub(super) dead: u64,
    /// Deliveries still to come.
    pub(super) backlog: u64,
}

impl Counts {
    /// Returns the counts of `handler` in the whole status.
    pub(super) fn read(status: &Value, handler: &str) -> anyhow::Result<Self> {
        let of_handler = status["handlers"]
            .as_array()
            .and_then(|all| all.iter().find(|one| one["name"] == handler))
            .with_context(|| format!("`hapax status` says nothing of `{handler}`: {status}"))?;
        let count = |name: &str| {
            of_handler[name]
                .as_u64()
                .with_context(|| format!("`hapax status` has no number `{name}`: {of_handler}"))
        };
        Ok(Self {
            claimed: count("claimed")?,
            duplicates: count("duplicates")?,
            retried: count("retried")?,
            dead: count("dead")?,
            backlog: count("backlog")?,
        })
    }
}

/// All that the demo found out.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) hosts: usize,
    /// Different messages.
    pub(super) messages: usize,
    /// How often each was sent.
    pub(super) times: usize,
    pub(super) status: Counts,
    pub(super) found: Found,
    pub(super) expected: Tables,
    pub(super) elapsed: Duration,
}

impl Report {
    /// Whether every row is as expected and the counts agree with it.
    pub(super) fn is_exact(&self) -> bool {
        self.faults().is_empty()
            && self
                .compared()
                .iter()
                .all(|table| table.differences.is_empty())
    }

    /// Prints the result on standard output.
    pub(super) fn print(&self, as_json: bool) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        let printed = if as_json {
            writeln!(out, "{}", self.as_json())
        } else {
            self.write(&mut out)
        };
        printed.context("cannot print the result")
    }

    fn deliveries(&self) -> usize {
        self.messages * self.times
    }

    fn compared(&self) -> [Compared; 3] {
        compare(&self.expected, &self.found.tables)
    }

    /// Returns what is wrong with the counts, in sentences.
    fn faults(&self) -> Vec<String> {
        let messages = u64::try_from(self.messages).unwrap_or(u64::MAX);
        let repeated = u64::try_from(self.messages * (self.times - 1)).unwrap_or(u64::MAX);
        let mut faults = Vec::new();
        if u64::try_from(self.found.claims) != Ok(messages) {
            faults.push(format!(
                "{} messages are claimed in the database, not {messages}",
                self.found.claims
            ));
        }
        if self.status.claimed != messages {
            faults.push(format!(
                "the daemon counted {} messages that took effect, not {messages}",
                self.status.claimed
            ));
        }
        // More is no fault: a broker may deliver again what was answered too late.
        if self.status.duplicates < repeated {
            faults.push(format!(
                "the daemon skipped {} deliveries, not {repeated}",
                self.status.duplicates
            ));
        }
        if self.status.dead != 0 {
            faults.push(format!("{} messages are dead letters", self.status.dead));
        }
        if self.status.backlog != 0 {
            faults.push(format!("{} deliveries are left", self.status.backlog));
        }
        faults
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out)?;
        writeln!(
            out,
            "  deliveries   {:>5}   {} messages, each {} times, shuffled with seed {}; {} daemons at once on JetStream and PostgreSQL",
            self.deliveries(),
            self.messages,
            self.times,
            self.seed,
            self.hosts
        )?;
        writeln!(
            out,
            "  took effect  {:>5}   the handler ran and its transaction was committed",
            self.status.claimed
        )?;
        writeln!(
            out,
            "  skipped      {:>5}   known already: acknowledged without the handler",
            self.status.duplicates
        )?;
        if self.status.retried != 0 {
            writeln!(out, "  retried      {:>5}", self.status.retried)?;
        }
        writeln!(out)?;
        for table in self.compared() {
            let verdict = match table.differences.len() {
                0 => "all as expected".to_owned(),
                count => format!("{count} not as expected"),
            };
            writeln!(
                out,
                "  {:<12} {:>5} rows, {verdict}",
                table.name, table.rows
            )?;
            write!(out, "{}", table.shown())?;
        }
        writeln!(out)?;
        for fault in self.faults() {
            writeln!(out, "  fault: {fault}")?;
        }
        writeln!(
            out,
            "exact: {} ({:.1} s)",
            if self.is_exact() { "yes" } else { "no" },
            self.elapsed.as_secs_f64()
        )?;
        writeln!(
            out,
            "database: a PostgreSQL of its own, stopped and removed with its folder"
        )
    }

    fn as_json(&self) -> Value {
        let tables: serde_json::Map<String, Value> = self
            .compared()
            .iter()
            .map(|table| (table.name.to_owned(), table.as_json()))
            .collect();
        json!({
            "exact": self.is_exact(),
            "deliveries": self.deliveries(),
            "messages": self.messages,
            "took_effect": self.status.claimed,
            "skipped": self.status.duplicates,
            "retried": self.status.retried,
            "dead": self.status.dead,
            "backlog": self.status.backlog,
            "claims": self.found.claims,
            "faults": self.faults(),
            "tables": tables,
            "seed": self.seed,
            "daemons": self.hosts,
            "source": "jetstream",
            "store": "postgres",
            "seconds": (self.elapsed.as_secs_f64() * 10.0).round() / 10.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tables::Repository;
    use super::*;

    fn exact() -> Report {
        let tables = || Tables {
            repositories: [(
                "a/b".to_owned(),
                Repository {
                    events: 2,
                    last_activity: None,
                },
            )]
            .into(),
            ..Tables::default()
        };
        Report {
            seed: 7,
            hosts: 2,
            messages: 2,
            times: 3,
            status: Counts {
                claimed: 2,
                duplicates: 4,
                retried: 0,
                dead: 0,
                backlog: 0,
            },
            found: Found {
                tables: tables(),
                claims: 2,
            },
            expected: tables(),
            elapsed: Duration::from_millis(1234),
        }
    }

    fn written(report: &Report) -> String {
        let mut out = Vec::new();
        report.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_status_of_one_handler_is_read() {
        let status = json!({"handlers": [
            {"name": "other", "claimed": 9, "duplicates": 9, "retried": 9, "dead": 9, "backlog": 9},
            {"name": "x", "consumer": "x", "claimed": 1, "duplicates": 2, "retried": 3, "dead": 4, "backlog": 5},
        ]});
        assert_eq!(
            Counts::read(&status, "x").unwrap(),
            Counts {
                claimed: 1,
                duplicates: 2,
                retried: 3,
                dead: 4,
                backlog: 5
            }
        );
        assert!(Counts::read(&status, "y").is_err());
        assert!(Counts::read(&json!({"handlers": [{"name": "x"}]}), "x").is_err());
    }

    #[test]
    fn equal_tables_and_counts_are_exact() {
        let report = exact();
        assert!(report.is_exact());
        let text = written(&report);
        assert!(text.contains("exact: yes (1.2 s)"), "{text}");
        assert_eq!(report.as_json()["exact"], true);
    }

    #[test]
    fn a_redelivery_more_is_no_fault() {
        let mut report = exact();
        report.status.duplicates += 1;
        assert!(report.is_exact());
    }

    #[test]
    fn a_row_too_many_effects_is_shown() {
        let mut report = exact();
        report.found.tables.repositories.insert(
            "a/b".into(),
            Repository {
                events: 3,
                last_activity: None,
            },
        );
        assert!(!report.is_exact());
        let text = written(&report);
        assert!(
            text.contains("exact: no") && text.contains("events: 3"),
            "{text}"
        );
        assert_eq!(
            report.as_json()["tables"]["repositories"]["differences"][0]["key"],
            "\"a/b\""
        );
    }

    #[test]
    fn each_wrong_count_is_a_fault() {
        let spoiled: [fn(&mut Report); 5] = [
            |report| report.found.claims = 3,
            |report| report.status.claimed = 1,
            |report| report.status.duplicates = 3,
            |report| report.status.dead = 1,
            |report| report.status.backlog = 1,
        ];
        for spoil in spoiled {
            let mut report = exact();
            spoil(&mut report);
            assert_eq!(report.faults().len(), 1, "{report:?}");
            assert!(!report.is_exact());
        }
    }
}
