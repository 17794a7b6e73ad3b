//! What `hapax test` says at its end: for a person, or one JSON object.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::bench::Ran;
use super::project::Project;
use super::snapshot::{DEAD, Difference, HELD, OUTBOX, Snapshot};
use super::sql::{DifferingSql, LeftOut};
use super::{dedup_words, plans};
use crate::exit::{CommandError, Exit};
use crate::text::{one_line, printable};

/// How many differing rows of a finding, and messages, are shown to a person.
const SHOWN_MAX: usize = 10;

/// Something that a handler must not do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Finding {
    /// The step that found it: `expected`, `once`, `again`, `batches`, `twice`, `rolled-back`, `died-before-commit`,
    /// `died-after-commit`, `attempt`, `shuffled`.
    pub step: &'static str,
    /// In one sentence.
    pub what: String,
    /// The smallest set of deliveries that was found, by the messages' ids, in their order.
    pub messages: Vec<String>,
    /// False if the search for a smaller set came to its bound.
    pub is_smallest: bool,
    /// Where the run was broken.
    pub place: Option<String>,
    /// Of the order.
    pub seed: Option<u64>,
    /// The rows that differ.
    pub differences: Vec<Difference>,
    /// What is known of why: statements, columns, errors.
    pub because: Vec<String>,
    /// What to do.
    pub hint: Option<String>,
}

/// A step that was run over all messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProvedStep {
    /// The stable name.
    pub step: &'static str,
    /// What was done.
    pub what: String,
    /// How many deliveries there were.
    pub deliveries: u64,
    /// How many calls of the handler.
    pub calls: u64,
    /// How many runs were broken; absent in steps that break none.
    pub broken: Option<u64>,
    /// How many places there are; more than `broken` if the bound left some out.
    pub places: Option<u64>,
}

/// All that `hapax test` found out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProveReport {
    /// The handler's name.
    pub handler: String,
    /// `SQLite` or `PostgreSQL`.
    pub database: String,
    /// How many messages the project has.
    pub messages: usize,
    /// True if nothing was found.
    pub passed: bool,
    /// Decides about the orders.
    pub seed: u64,
    /// How many tables the expectations name; absent if there are none.
    pub expected: Option<usize>,
    /// The file of expectations that was written.
    pub wrote: Option<String>,
    /// In their order.
    pub steps: Vec<ProvedStep>,
    /// The steps that were left out after one had failed, by their stable names.
    pub left_steps: Vec<&'static str>,
    /// What the handler must not do.
    pub findings: Vec<Finding>,
    /// Statements whose effect may differ from run to run: as good as findings.
    pub differing: Vec<DifferingSql>,
    /// How many statements there were.
    pub statements: usize,
    /// Columns that were not compared.
    pub left_out: Vec<LeftOut>,
    /// The dead letters of the once-only run.
    pub dead: Vec<Map<String, Json>>,
    /// Messages of the once-only run that wait behind a dead letter.
    pub held: usize,
    /// Messages that the once-only run published.
    pub published: usize,
    /// How many databases were made.
    pub runs: u64,
    /// From the begin to the end.
    #[serde(rename = "elapsed_ms", serialize_with = "milliseconds")]
    pub elapsed: Duration,
    #[serde(skip)]
    notes: Vec<String>,
}

fn milliseconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

impl ProveReport {
    pub(super) fn new(project: &Project, seed: u64) -> Self {
        let mut notes = vec![dedup_words(project.handler.dedup).to_owned()];
        if let Some(order) = &project.handler.order {
            notes.push(format!("ordered by `{}`", order.by));
        }
        if !plans::has_orders(project) {
            notes.push("there is no other order to try".to_owned());
        }
        Self {
            handler: project.handler.name.clone(),
            database: String::new(),
            messages: project.messages.len(),
            passed: true,
            seed,
            expected: None,
            wrote: None,
            steps: Vec::new(),
            left_steps: Vec::new(),
            findings: Vec::new(),
            differing: Vec::new(),
            statements: 0,
            left_out: Vec::new(),
            dead: Vec::new(),
            held: 0,
            published: 0,
            runs: 0,
            elapsed: Duration::ZERO,
            notes,
        }
    }

    pub(super) fn step(
        &mut self,
        step: &'static str,
        what: &str,
        ran: &Ran,
        places: Option<usize>,
    ) {
        let places = places
            .filter(|places| *places > 0)
            .map(|places| places as u64);
        self.steps.push(ProvedStep {
            step,
            what: what.to_owned(),
            deliveries: ran.deliveries,
            calls: ran.runs.len() as u64,
            broken: places.map(|_| ran.broken),
            places,
        });
    }

    pub(super) fn left_in(&mut self, snapshot: &Snapshot) {
        self.dead = snapshot.rows(DEAD).to_vec();
        self.held = snapshot.rows(HELD).len();
        self.published = snapshot.rows(OUTBOX).len();
    }

    /// Returns how much was found.
    pub(super) fn found(&self) -> usize {
        self.findings.len() + self.differing.len()
    }

    /// Fails if something was found.
    ///
    /// # Errors
    /// Says how much was.
    pub fn require_passed(&self) -> Result<(), CommandError> {
        match self.found() {
            0 => Ok(()),
            1 => Err(CommandError::new(
                Exit::Failed,
                format!("handler `{}` did not pass: 1 finding", self.handler),
                None,
            )),
            found => Err(CommandError::new(
                Exit::Failed,
                format!("handler `{}` did not pass: {found} findings", self.handler),
                None,
            )),
        }
    }

    /// Returns it for a person.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a text cannot fail.
        let _ = writeln!(
            text,
            "handler `{}` on {}: {} messages, {}",
            self.handler,
            self.database,
            self.messages,
            self.notes.join(", ")
        );
        for step in &self.steps {
            let broken = match (step.broken, step.places) {
                (Some(broken), Some(places)) if broken == places => {
                    format!(", all {places} places")
                }
                (Some(broken), Some(places)) => format!(", {broken} of {places} places"),
                _ => String::new(),
            };
            let _ = writeln!(
                text,
                "  {:<20}{} ({} deliveries, {} calls{broken})",
                step.step, step.what, step.deliveries, step.calls
            );
        }
        let _ = match (&self.wrote, self.expected) {
            (Some(file), _) => writeln!(
                text,
                "  wrote `{}`: read it before you rely on it",
                printable(file)
            ),
            (None, Some(tables)) => {
                writeln!(text, "  compared with `expected.jsonl` ({tables} tables)")
            }
            (None, None) => writeln!(
                text,
                "  there is no `expected.jsonl`: what is proved is that all runs leave the same. `--write-expected` writes it"
            ),
        };
        self.write_left(&mut text);
        for finding in &self.findings {
            finding.write(&mut text);
        }
        for sql in &self.differing {
            let _ = writeln!(
                text,
                "\nFOUND sql: {} differs from run to run, and reaches {}\n  in       `{}`",
                sql.what,
                sql.reaches,
                one_line(&sql.statement)
            );
            let _ = match (&sql.table, &sql.column) {
                (Some(table), Some(column)) => writeln!(
                    text,
                    "  hint     take it from the message, or say that it may differ: `--ignore {table}.{column}`"
                ),
                _ => writeln!(
                    text,
                    "  hint     {}, or say that it may differ: `--allow '{}'`",
                    if sql.what.starts_with("LIMIT") {
                        "order the rows by a key"
                    } else {
                        "take it from the message"
                    },
                    if sql.what.starts_with("LIMIT") {
                        "limit"
                    } else {
                        &sql.what
                    }
                ),
            };
        }
        if !self.left_steps.is_empty() {
            let _ = writeln!(
                text,
                "\nnot tried after that: {}",
                self.left_steps.join(", ")
            );
        }
        let conclusion = match self.found() {
            0 => "passed".to_owned(),
            found => format!("did not pass: {found} found"),
        };
        let calls: u64 = self.steps.iter().map(|step| step.calls).sum();
        let _ = writeln!(
            text,
            "\n{conclusion} ({calls} calls in {} databases, {:.1} s)",
            self.runs,
            self.elapsed.as_secs_f64()
        );
        text
    }

    fn write_left(&self, text: &mut String) {
        for out in &self.left_out {
            let _ = writeln!(
                text,
                "  not compared: `{}.{}`, {}",
                out.table, out.column, out.why
            );
        }
        if self.published > 0 {
            let _ = writeln!(text, "  published in the once-only run: {}", self.published);
        }
        for letter in self.dead.iter().take(SHOWN_MAX) {
            let of = |name: &str| letter.get(name).and_then(Json::as_str).unwrap_or_default();
            let _ = writeln!(
                text,
                "  dead letter in the once-only run: `{}`, {}: {}",
                one_line(of("id")),
                of("class"),
                one_line(of("reason"))
            );
        }
        if self.dead.len() > SHOWN_MAX {
            let _ = writeln!(
                text,
                "  and {} more dead letters",
                self.dead.len() - SHOWN_MAX
            );
        }
        if self.held > 0 {
            let _ = writeln!(
                text,
                "  messages that wait behind a dead letter of their key: {}",
                self.held
            );
        }
    }
}

impl Finding {
    fn write(&self, text: &mut String) {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "\nFOUND {}: {}", self.step, self.what);
        if !self.messages.is_empty() {
            let shown: Vec<String> = self
                .messages
                .iter()
                .take(SHOWN_MAX)
                .map(|id| format!("`{}`", one_line(id)))
                .collect();
            let more = match self.messages.len().saturating_sub(SHOWN_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let bound = if self.is_smallest {
                ""
            } else {
                " (there may be a smaller set)"
            };
            let _ = writeln!(text, "  messages {}{more}{bound}", shown.join(", "));
        }
        if let Some(place) = &self.place {
            let _ = writeln!(text, "  at       {place}");
        }
        if let Some(seed) = self.seed {
            let _ = writeln!(text, "  seed     {seed}");
        }
        let expects = if self.step == "expected" {
            "expected"
        } else {
            "once"
        };
        for difference in self.differences.iter().take(SHOWN_MAX) {
            let columns = match difference.columns.as_slice() {
                [] => String::new(),
                columns => format!(", {}", columns.join(", ")),
            };
            let side = |row: &Option<Map<String, Json>>| match row {
                Some(row) => one_line(&Json::Object(row.clone()).to_string()),
                None => "no such row".to_owned(),
            };
            let _ = writeln!(
                text,
                "  {}{columns}\n    {expects:<8}  {}\n    found     {}",
                difference.table,
                side(&difference.reference),
                side(&difference.found)
            );
        }
        if self.differences.len() > SHOWN_MAX {
            let _ = writeln!(
                text,
                "  and {} more rows",
                self.differences.len() - SHOWN_MAX
            );
        }
        for because in &self.because {
            let _ = writeln!(text, "  because  {because}");
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "  hint     {hint}");
        }
    }
}
