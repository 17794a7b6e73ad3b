//! `hapax test`: runs a handler's messages once, then again in every way in which a host may run them, and compares what is left.
//!
//! **Invariant**: the database that the configuration names is not touched: each run has one that is made for it.
//! **Invariant**: a step that fails is a difference that was found in rows, or a statement that was sent; nothing is guessed.

mod bench;
mod causes;
mod expected;
mod plans;
mod project;
mod report;
mod shrink;
mod snapshot;
mod sql;

use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::time::Instant;

pub use report::{Finding, ProveReport, ProvedStep};
pub use snapshot::Difference;
pub use sql::{DifferingSql, LeftOut};

pub(super) use project::{CONFIG, EXPECTED, MESSAGES, read_messages};
pub(super) use snapshot::{Comparison, Snapshot, bytes as bytes_as_json};

use bench::{Bench, BreakAt, MakeError, Plan, Ran, calls_of};
use plans::Step;
use project::Project;
use sql::Statements;

use crate::config::Dedup;
use crate::exit::{CommandError, Exit};
use crate::store::Scratch;

/// How many sets of messages are tried for the smallest one.
const SHRINKS_MAX: usize = 100;

/// What is proved, and how much of it.
#[derive(Clone, Debug)]
pub struct ProveOptions {
    /// The project's folder.
    pub folder: PathBuf,
    /// Which of its handlers, if it has several.
    pub handler: Option<String>,
    /// A PostgreSQL server to run on, beside the database that the URL names; SQLite otherwise.
    pub database: Option<String>,
    /// Decides about the orders; drawn at random if absent.
    pub seed: Option<u64>,
    /// How many orders are tried.
    pub shuffles: u32,
    /// How many places of one step are broken at the most.
    pub breaks_max: usize,
    /// Columns that are not compared, `table.column`, beside those of the expectations.
    pub ignore: Vec<String>,
    /// What may differ from run to run, `now()`, beside what the expectations allow.
    pub allow: Vec<String>,
    /// Write down what the once-only run left as the expectations.
    pub write_expected: bool,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProveProgress {
    /// The handler is compiled, and the database made.
    Preparing,
    /// A step begins.
    Step {
        /// From 1.
        number: usize,
        /// How many there are.
        of: usize,
        /// What it does.
        words: String,
    },
    /// Something was found; the smallest set of messages is looked for.
    Shrinking {
        /// The smallest so far.
        messages: usize,
    },
}

/// Tests a handler. Ends early, without a result, when `stop` ends; databases that were made are removed in any case.
///
/// # Errors
/// What kept it from coming to a result. Findings are none.
pub async fn prove(
    options: &ProveOptions,
    mut progress: impl FnMut(ProveProgress),
    stop: impl Future<Output = ()>,
) -> Result<ProveReport, CommandError> {
    let begun = Instant::now();
    let project = Project::read(&options.folder, options.handler.as_deref())?;
    progress(ProveProgress::Preparing);
    let failed = |error| CommandError::store("the database of the test", &error);
    let scratch = match &options.database {
        None => Scratch::sqlite(),
        Some(url) => Scratch::postgres(url).await,
    }
    .map_err(failed)?;
    let mut bench = match Bench::make(&project, scratch).await {
        Ok(bench) => bench,
        Err(MakeError { error, scratch }) => {
            // The first error is what is told.
            let _ = scratch.remove().await;
            return Err(error);
        }
    };
    let ended = tokio::select! {
        ended = Box::pin(Proof::run(&project, &mut bench, options, &mut progress)) => ended,
        // What is dropped runs in a database that is removed next.
        () = stop => Err(CommandError::new(Exit::Failed, "interrupted", None)),
    };
    let (runs, kind) = (bench.runs, bench.kind);
    let removed = bench.into_scratch().remove().await;
    let mut report = ended?;
    removed.map_err(failed)?;
    report.database = kind.to_string();
    report.runs = runs;
    report.elapsed = begun.elapsed();
    report.passed = report.found() == 0;
    Ok(report)
}

/// A proof under way.
struct Proof<'a> {
    project: &'a Project,
    bench: &'a mut Bench,
    breaks_max: usize,
    /// Columns that are not compared because somebody said so.
    ignore: BTreeSet<(String, String)>,
    statements: Statements,
}

/// A step that left something else behind.
struct Broken {
    step: Step,
    is_smallest: bool,
    plan: Plan,
    ran: Ran,
    differences: Vec<Difference>,
}

impl<'a> Proof<'a> {
    async fn run(
        project: &'a Project,
        bench: &'a mut Bench,
        options: &ProveOptions,
        progress: &mut impl FnMut(ProveProgress),
    ) -> Result<ProveReport, CommandError> {
        let seed = options.seed.unwrap_or_else(|| rand::random::<u32>().into());
        let steps = plans::steps(project, seed, options.shuffles);
        let mut allow = options.allow.clone();
        let mut ignore = options.ignore.clone();
        if let Some(expected) = &project.expected {
            allow.extend(expected.allow.iter().cloned());
            ignore.extend(expected.ignore.iter().cloned());
        }
        let mut proof = Self {
            ignore: ignored(&ignore)?,
            project,
            bench,
            breaks_max: options.breaks_max,
            statements: Statements::default(),
        };
        let mut report = ProveReport::new(project, seed);
        let of = steps.len() + 1;
        let all: Vec<usize> = (0..project.messages.len()).collect();

        progress(ProveProgress::Step {
            number: 1,
            of,
            words: "each message once: the reference".to_owned(),
        });
        let reference = proof.once(&all).await?;
        report.step("once", "each message once: the reference", &reference, None);
        report.left_in(&reference.snapshot);
        report.findings.extend(causes::swallowed(&reference));
        let is_sound = report.findings.is_empty();
        if options.write_expected {
            let file = options.folder.join(EXPECTED);
            let left_out = proof.left_out();
            expected::write(&file, &reference.snapshot, |table, column| {
                left_out
                    .iter()
                    .any(|out| out.table == table && out.column == column)
                    || proof.is_ignored(table, column)
            })?;
            report.wrote = Some(file.display().to_string());
        } else if let Some(expected) = &project.expected {
            let differences =
                expected::differences(expected, &reference.snapshot, &proof.comparison())?;
            report.expected = Some(expected.tables.len());
            if !differences.is_empty() {
                report.findings.push(causes::unexpected(differences));
            }
        }

        let calls = calls_of(project, &reference.runs);
        for (index, step) in steps.iter().enumerate() {
            if !is_sound {
                // Which messages are lost to it, every order says differently.
                report.left_steps = names_of(&steps);
                break;
            }
            let words = step.words(project);
            progress(ProveProgress::Step {
                number: index + 2,
                of,
                words: words.clone(),
            });
            let (plan, places) = step.plan(project, &all, &calls, proof.breaks_max);
            let ran = proof.bench.run(project, &plan).await?;
            proof.statements.learn(proof.bench.kind, &ran.runs);
            let comparison = proof.comparison();
            let differences = comparison.differences(&reference.snapshot, &ran.snapshot);
            report.step(step.name(), &words, &ran, Some(places));
            if !differences.is_empty() {
                let broken = proof.shrink(*step, all.clone(), progress).await?;
                // Of a difference that does not come twice the whole is told.
                let broken = broken.unwrap_or(Broken {
                    step: *step,
                    is_smallest: false,
                    plan,
                    ran,
                    differences,
                });
                let finding = causes::of(&broken, project, &proof.statements, proof.bench);
                report.findings.push(finding);
                report.left_steps = names_of(&steps[index + 1..]);
                break;
            }
        }
        report.left_out = proof.left_out();
        report.statements = proof.statements.len();
        let is_allowed = |what: &str| allow.iter().any(|allowed| is_same(allowed, what));
        report.differing =
            proof
                .statements
                .differing(&proof.bench.tables, is_allowed, |table, column| {
                    proof.is_ignored(table, column)
                });
        Ok(report)
    }

    /// Runs messages once each, in their order.
    async fn once(&mut self, messages: &[usize]) -> Result<Ran, CommandError> {
        let plan = Plan {
            batches: messages.iter().map(|index| vec![*index]).collect(),
            ..Plan::default()
        };
        let ran = self.bench.run(self.project, &plan).await?;
        self.statements.learn(self.bench.kind, &ran.runs);
        Ok(ran)
    }

    fn is_ignored(&self, table: &str, column: &str) -> bool {
        self.ignore.contains(&(table.to_owned(), column.to_owned()))
    }

    fn left_out(&self) -> Vec<LeftOut> {
        self.statements
            .left_out(self.bench.kind, &self.bench.tables)
    }

    fn comparison(&self) -> Comparison {
        let left_out = self
            .left_out()
            .into_iter()
            .map(|out| (out.table, out.column));
        Comparison::new(&self.bench.tables, left_out.chain(self.ignore.clone()))
    }

    /// Runs a step with some of the messages, beside a once-only run of these. `None`: nothing differs.
    async fn try_step(
        &mut self,
        step: Step,
        messages: &[usize],
        only: Option<BreakAt>,
    ) -> Result<Option<(Plan, Ran, Vec<Difference>)>, CommandError> {
        let reference = self.once(messages).await?;
        let calls = calls_of(self.project, &reference.runs);
        let (mut plan, _) = step.plan(self.project, messages, &calls, self.breaks_max);
        if let Some(only) = only {
            plan.breaks.retain(|planned| planned.at == only);
        }
        let ran = self.bench.run(self.project, &plan).await?;
        self.statements.learn(self.bench.kind, &ran.runs);
        let differences = self
            .comparison()
            .differences(&reference.snapshot, &ran.snapshot);
        Ok((!differences.is_empty()).then_some((plan, ran, differences)))
    }

    /// Finds the smallest set of messages with which the step still fails. `None`: it does not fail any more.
    async fn shrink(
        &mut self,
        step: Step,
        all: Vec<usize>,
        progress: &mut impl FnMut(ProveProgress),
    ) -> Result<Option<Broken>, CommandError> {
        let (messages, is_smallest) =
            shrink::smallest(all, SHRINKS_MAX, async |part: Vec<usize>| {
                let fails = self.try_step(step, &part, None).await?.is_some();
                if fails {
                    progress(ProveProgress::Shrinking {
                        messages: part.len(),
                    });
                }
                Ok::<bool, CommandError>(fails)
            })
            .await?;
        let Some((mut plan, mut ran, mut differences)) =
            self.try_step(step, &messages, None).await?
        else {
            return Ok(None);
        };
        // Of several places one is enough.
        if messages.len() == 1 && plan.breaks.len() > 1 {
            for planned in plan.breaks.clone() {
                if let Some(found) = self.try_step(step, &messages, Some(planned.at)).await? {
                    (plan, ran, differences) = found;
                    break;
                }
            }
        }
        Ok(Some(Broken {
            step,
            is_smallest,
            plan,
            ran,
            differences,
        }))
    }
}

/// Returns the names of steps, each once.
fn names_of(steps: &[Step]) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = steps.iter().map(|step| step.name()).collect();
    names.dedup();
    names
}

/// Reads names of columns, `table.column`.
fn ignored(names: &[String]) -> Result<BTreeSet<(String, String)>, CommandError> {
    names
        .iter()
        .map(|name| match name.rsplit_once('.') {
            Some((table, column)) if !table.is_empty() && !column.is_empty() => {
                Ok((table.to_owned(), column.to_owned()))
            }
            _ => Err(CommandError::new(
                Exit::CommandLine,
                format!("`{name}` is no column to ignore"),
                Some("write it as `table.column`"),
            )),
        })
        .collect()
}

/// True if a person means `what`: parentheses and case do not count.
fn is_same(said: &str, what: &str) -> bool {
    let bare = |text: &str| {
        let name = text.split('(').next().unwrap_or(text);
        name.trim().to_ascii_lowercase()
    };
    bare(said) == bare(what) || (bare(said) == "limit" && what.starts_with("LIMIT"))
}

/// Returns how claims are used, for people.
fn dedup_words(dedup: Dedup) -> &'static str {
    match dedup {
        Dedup::Off => "without claims (`dedup = \"off\"`)",
        Dedup::Claims | Dedup::Window(_) => "with claims",
    }
}

impl Snapshot {
    fn rows(&self, table: &str) -> &[snapshot::Row] {
        self.tables.get(table).map_or(&[], Vec::as_slice)
    }
}
