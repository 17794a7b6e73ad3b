//! `cargo xtask bench`: the same messages through hapax, through consumers written by hand, and through the database alone.
//!
//! **Invariant**: a rate counts only if every account ended with the sum that was computed from the messages.
//! **Invariant**: all sides write to one server, in turns that alternate, so that none has the quieter machine; keys are drawn at
//! random from a printed seed, since keys that never meet would hide deadlocks.

mod askers;
mod by_hand;
mod cpu;
mod database;
mod figures;
mod hapax;
mod latency;
mod messages;
mod pgbench;
mod plot;
mod scenario;
mod scrape;
mod selection;
mod sent;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::runtime::Runtime;

use self::database::Databases;
use self::figures::{Figures, Samples};
use self::messages::Load;
use self::scenario::{Compared, Place, Scenario, Work};
use self::sent::Sent;
use crate::services::{nats, postgres};
use crate::wasm_target::WasmTarget;
use crate::{cargo, guests, process};

/// The source's name, and the subject's first word.
const SOURCE: &str = "bench";
const HANDLER: &str = "credit";
/// The stream of messages whose handler never ends, for a handler of that name.
const LOOPS: &str = "LOOPS";
/// The role of the scenarios named so.
const ROLE: &str = "hapax_bench";
/// The component of the world `batch-handler`, below the repository's root.
const BATCH_COMPONENT: &str = "examples/credit-accounts/credit-accounts.wasm";
/// The default of `batch.max`, for whom is compared at the same size.
const BATCH_MAX: usize = 50;

/// What `cargo xtask bench` was asked for.
#[derive(Debug)]
pub(crate) struct Options {
    /// How many messages each run processes.
    pub(crate) messages: u32,
    /// How often each side runs.
    pub(crate) runs: u32,
    /// Decides accounts and amounts.
    pub(crate) seed: Option<u64>,
    /// Patterns of the scenarios to run.
    pub(crate) only: Vec<String>,
    /// How many claims a full table holds.
    pub(crate) claims: u32,
    /// Another build of hapax.
    pub(crate) baseline: Option<PathBuf>,
    /// One JSON object a scenario instead of tables.
    pub(crate) json: bool,
    /// Where to draw throughput against batch size, lanes and claims.
    pub(crate) plot: Option<PathBuf>,
    /// Only the names.
    pub(crate) list: bool,
}

/// Runs the bench.
///
/// # Errors
/// Also if a sum is wrong.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let mut scenarios = scenario::all(options.claims, options.messages);
    if options.list {
        print(&scenario::names(&scenarios))?;
        return Ok(ExitCode::SUCCESS);
    }
    select(root, options, &mut scenarios)?;
    let seed = options.seed.unwrap_or_else(|| rand::random::<u32>().into());
    guests::build(root, &WasmTarget::prepare()?)?;
    let programs = Programs::build(root)?;
    let postgres_binaries = postgres::binaries()?;
    let nats_binary = nats::binary()?;
    let postgres = postgres::Server::start(&postgres_binaries)?;
    let nats = nats::Server::start(&nats_binary)?;
    let folder = tempfile::Builder::new()
        .prefix("hapax-bench-")
        .tempdir()
        .context("cannot make a folder for the bench")?;
    let pgbench = pgbench::find(&postgres_binaries);
    if pgbench.is_none() {
        process::say(format_args!(
            "no `pgbench` beside the server in `{}` or in `PATH`: the ceilings on PostgreSQL are left out",
            postgres_binaries.display()
        ));
    }
    let mut bench = Bench {
        programs,
        baseline: options.baseline.as_deref(),
        root,
        folder: folder.path(),
        databases: Databases::new(&postgres.url(), folder.path())?,
        broker: nats.url(),
        server: postgres.pid(),
        pgbench,
        seed,
        knows_await: false,
        runtime: tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start talking to the broker")?,
    };
    bench
        .databases
        .at("postgres")
        .run(&format!("CREATE ROLE {ROLE} NOLOGIN"))?;
    bench.knows_await = bench.asks_for_await()?;
    let figures = rounds(&bench, scenarios, options)?;
    if let Some(file) = &options.plot {
        fs::write(file, plot::svg(&figures))
            .with_context(|| format!("cannot write `{}`", file.display()))?;
        process::say(format_args!("the plot is in `{}`", file.display()));
    }
    let text = if options.json {
        figures.json_lines()
    } else {
        figures.tables()
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> anyhow::Result<()> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("cannot print the figures")
}

/// Leaves the scenarios that were asked for and can be run here.
fn select(root: &Path, options: &Options, scenarios: &mut Vec<Scenario>) -> anyhow::Result<()> {
    if options.plot.is_some() && options.only.is_empty() {
        let drawn: Vec<String> = scenarios
            .iter()
            .filter(|one| scenario::is_drawn(one))
            .map(|one| one.name.clone())
            .collect();
        selection::select(scenarios, &drawn)?;
    } else {
        selection::select(scenarios, &options.only)?;
    }
    if options.baseline.is_none() && scenarios.iter().any(|one| one.setting.is_baseline) {
        process::say("the scenarios of another build are left out: name it with `--baseline`");
        scenarios.retain(|one| !one.setting.is_baseline);
    }
    if scenarios.iter().any(|one| one.work == Work::Batch) && !root.join(BATCH_COMPONENT).is_file()
    {
        process::say(format_args!(
            "`batch-handler` is left out: there is no component `{BATCH_COMPONENT}`"
        ));
        scenarios.retain(|one| one.work != Work::Batch);
    }
    Ok(())
}

/// Runs each scenario once a round, with what it is compared with.
fn rounds(
    bench: &Bench<'_>,
    scenarios: Vec<Scenario>,
    options: &Options,
) -> anyhow::Result<Figures> {
    let mut streams: BTreeMap<Load, Sent> = BTreeMap::new();
    for scenario in &scenarios {
        if scenario.compared != Compared::OneAtATime && !streams.contains_key(&scenario.load) {
            let stream = format!("S{}", streams.len());
            let sent = bench.send(&stream, options.messages, scenario.load)?;
            streams.insert(scenario.load, sent);
        }
        if scenario.setting.loops > 0 {
            bench.send_loops(scenario.setting.loops)?;
        }
    }
    let count = scenarios.len();
    let mut rows: Vec<(Scenario, Samples)> = scenarios
        .into_iter()
        .map(|scenario| (scenario, Samples::default()))
        .collect();
    for round in 1..=options.runs {
        let mut beside: BTreeMap<(Place, Work, Load), Samples> = BTreeMap::new();
        let mut rates: BTreeMap<String, f64> = BTreeMap::new();
        // Who goes second finds a warmer machine: that alternates.
        let hapax_first = round % 2 == 1;
        for (number, (scenario, row)) in rows.iter_mut().enumerate() {
            process::say(format_args!(
                "run {round} of {}, scenario {} of {count}: {}",
                options.runs,
                number + 1,
                scenario.name
            ));
            let name = format!("r{round}_{number}");
            if scenario.compared == Compared::OneAtATime {
                row.extend(&latency::measure(bench, &name, scenario, hapax_first)?);
                continue;
            }
            let sent = streams
                .get(&scenario.load)
                .context("every load was sent before")?;
            let key = (scenario.place, scenario.work, scenario.load);
            let is_by_hand = scenario.compared == Compared::ByHand;
            let others = || by_hand::measure(bench, &name, scenario.place, scenario.work, sent);
            if is_by_hand && !hapax_first && !beside.contains_key(&key) {
                beside.insert(key, others()?);
            }
            let mut samples = hapax::run(bench, &name, scenario, sent)?;
            if is_by_hand && !beside.contains_key(&key) {
                beside.insert(key, others()?);
            }
            let rate = samples.last("msgs_per_s").context("a run has a rate")?;
            rates.insert(scenario.name.clone(), rate);
            let base = match &scenario.compared {
                Compared::With(base) => rates.get(base).copied(),
                Compared::ByHand | Compared::OneAtATime => {
                    let others = beside.get(&key).context("they were measured")?;
                    samples.extend(others);
                    for (to, ratio) in [
                        ("group_commit_msgs_per_s", "ratio_to_group_commit"),
                        ("ceiling_msgs_per_s", "ratio_to_ceiling"),
                    ] {
                        let to = others.last(to);
                        samples.maybe(ratio, to.map(|to| rate / to));
                    }
                    others.last("baseline_msgs_per_s")
                }
            };
            samples.maybe("ratio", base.map(|base| rate / base));
            row.extend(&samples);
        }
    }
    Ok(Figures {
        seed: bench.seed,
        messages: options.messages,
        runs: options.runs,
        rows,
    })
}

/// The programs of both sides, optimized.
struct Programs {
    hapax: PathBuf,
    plain: PathBuf,
}

impl Programs {
    fn build(root: &Path) -> anyhow::Result<Self> {
        process::say("building both sides with optimization (the first time takes many minutes)");
        let mut built = cargo::build(root, &["hapax", "plain-consumer"], &["--release"])?;
        let plain = built.pop().context("cargo built one program only")?;
        let hapax = built.pop().context("cargo built one program only")?;
        Ok(Self { hapax, plain })
    }
}

/// What all runs share.
struct Bench<'a> {
    programs: Programs,
    baseline: Option<&'a Path>,
    /// The repository's root.
    root: &'a Path,
    folder: &'a Path,
    databases: Databases,
    broker: &'a str,
    /// The database server's process.
    server: u32,
    pgbench: Option<PathBuf>,
    seed: u64,
    /// Whether hapax can be told to await every statement.
    knows_await: bool,
    runtime: Runtime,
}
