//! The consumers written by hand, and the ceilings: what hapax is compared with.

use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use super::cpu::Cpu;
use super::database::{self, Database, StoreKind};
use super::figures::Samples;
use super::pgbench::Pgbench;
use super::scenario::{Place, Work};
use super::{BATCH_MAX, Bench, Sent};
use crate::process;

/// Messages in a transaction of the group commit, at the most, and its connections: while one works, the next is ready.
const GROUP: (usize, usize) = (200, 2);
/// One at a time takes long: so few of the messages.
const ALONE_PART: usize = 8;

/// A consumer written by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consumer {
    /// One message a transaction, so many at the same time.
    Single(usize),
    /// Many messages a transaction.
    Group,
}

/// Everything that one round has beside hapax on the same load.
pub(super) fn measure(
    bench: &Bench<'_>,
    name: &str,
    place: Place,
    work: Work,
    sent: &Sent,
) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    // One writer has one connection.
    let at_once: &[(usize, &'static str)] = match place.store() {
        StoreKind::Postgres => &[
            (32, "baseline_msgs_per_s"),
            (8, "baseline_8_msgs_per_s"),
            (1, "baseline_1_msgs_per_s"),
        ],
        StoreKind::Sqlite => &[(1, "baseline_msgs_per_s")],
    };
    // One message has no statement for many: by hand that is the same as one `execute`.
    let single = match work {
        Work::Batch => Work::Execute,
        Work::Execute | Work::ReadWrite => work,
    };
    for &(at_once, key) in at_once {
        let run = format!("{name}_a{at_once}");
        let measured = consume(bench, &run, place, single, sent, Consumer::Single(at_once))?;
        samples.add(key, measured.rate);
        if key == "baseline_msgs_per_s" {
            measured.add_to(&mut samples, "baseline_");
        }
    }
    let group = consume(
        bench,
        &format!("{name}_b"),
        place,
        work,
        sent,
        Consumer::Group,
    )?;
    samples.add("group_commit_msgs_per_s", group.rate);
    group.add_to(&mut samples, "group_commit_");
    ceilings(bench, &format!("{name}_c"), place, work, sent, &mut samples)?;
    Ok(samples)
}

/// What a run came to.
struct Measured {
    rate: f64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    /// Seconds for 1,000 messages.
    own_cpu: f64,
    database_cpu: Option<f64>,
}

impl Measured {
    fn add_to(&self, samples: &mut Samples, prefix: &'static str) {
        samples.maybe(format!("{prefix}p50_ms"), self.p50_ms);
        samples.maybe(format!("{prefix}p99_ms"), self.p99_ms);
        samples.add(format!("{prefix}cpu_s_per_1000"), self.own_cpu);
        samples.maybe(
            format!("{prefix}database_cpu_s_per_1000"),
            self.database_cpu,
        );
    }
}

/// Has a consumer written by hand process what was sent, in a database called `name`.
fn consume(
    bench: &Bench<'_>,
    name: &str,
    place: Place,
    work: Work,
    sent: &Sent,
    consumer: Consumer,
) -> anyhow::Result<Measured> {
    let kind = place.store();
    let database = prepared(bench, kind, name, sent)?;
    if place.is_queue() {
        database.run(&database::queue(kind, &sent.messages))?;
    }
    let is_alone = kind == StoreKind::Postgres && consumer == Consumer::Single(1);
    let count = match sent.messages.count() {
        all if is_alone => all / ALONE_PART,
        all => all,
    };
    let (batch, at_once) = match consumer {
        Consumer::Single(at_once) => (1, at_once),
        Consumer::Group => GROUP,
    };
    let work = match work {
        Work::Execute => "execute",
        Work::ReadWrite => "read-write",
        // SQLite has no arrays, and no round trips that they would save.
        Work::Batch if kind == StoreKind::Sqlite => "execute",
        Work::Batch => "set",
    };
    let mut command = Command::new(&bench.programs.plain);
    command
        .args(["--database", &database.url(), "--work", work])
        .args(["--messages", &count.to_string()])
        .args(["--batch", &batch.to_string()])
        .args(["--at-once", &at_once.to_string()]);
    if !place.is_queue() {
        command
            .args(["--broker", bench.broker, "--stream", &sent.stream])
            .args(["--durable", name]);
    }
    let before = Cpu::now(bench.server)?;
    let said = process::output(&mut command)?;
    let used = Cpu::now(bench.server)?.since(before);
    let said: Value = serde_json::from_str(&said)
        .with_context(|| format!("the consumer written by hand printed `{said}`"))?;
    let run = database.read("processed_messages", "accounts")?;
    sent.check(&run, count, &[])?;
    let rate = run.rate(count)?;
    let thousands = count as f64 / 1000.0;
    eprintln!("    {name}: {rate:.0} msg/s");
    Ok(Measured {
        rate,
        p50_ms: said["p50_ms"].as_f64(),
        p99_ms: said["p99_ms"].as_f64(),
        own_cpu: used.ended / thousands,
        database_cpu: (kind == StoreKind::Postgres).then_some(used.database / thousands),
    })
}

/// What the database does with the same statements, and nothing else.
fn ceilings(
    bench: &Bench<'_>,
    name: &str,
    place: Place,
    work: Work,
    sent: &Sent,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let kind = place.store();
    let database = prepared(bench, kind, name, sent)?;
    match kind {
        StoreKind::Postgres => {
            let Some(program) = &bench.pgbench else {
                return Ok(());
            };
            let pgbench = Pgbench {
                program,
                url: without_options(&database.url()),
                folder: bench.folder,
            };
            let found = pgbench.ceilings(work, sent.load)?;
            eprintln!(
                "    {name}: pgbench {:.0} msg/s one a transaction, {:.0} awaited, {:.0} pipelined",
                found.single, found.awaited, found.pipelined
            );
            samples.add("ceiling_single_msgs_per_s", found.single);
            samples.add("ceiling_awaited_msgs_per_s", found.awaited);
            samples.add("ceiling_msgs_per_s", found.pipelined);
        }
        StoreKind::Sqlite => {
            let said = process::output(
                Command::new(&bench.programs.plain)
                    .args(["--database", &database.url()])
                    .args([
                        "--work",
                        if work == Work::ReadWrite {
                            "read-write"
                        } else {
                            "execute"
                        },
                    ])
                    // Many, since it is over soon.
                    .args(["--messages", &(10 * sent.messages.count()).to_string()])
                    .args(["--batch", &BATCH_MAX.to_string()])
                    .args(["--c-api", &bench.seed.to_string()]),
            )?;
            let said: Value = serde_json::from_str(&said)
                .with_context(|| format!("the loop over SQLite's C API printed `{said}`"))?;
            let rate = said["msgs_per_s"]
                .as_f64()
                .context("the loop over SQLite's C API told no rate")?;
            eprintln!(
                "    {name}: {rate:.0} msg/s over SQLite's C API, {} a transaction",
                BATCH_MAX
            );
            samples.add("ceiling_msgs_per_s", rate);
        }
    }
    Ok(())
}

/// Makes a database with accounts and an empty table of ids.
fn prepared<'a>(
    bench: &'a Bench<'_>,
    kind: StoreKind,
    name: &'a str,
    sent: &Sent,
) -> anyhow::Result<Database<'a>> {
    let database = bench.databases.create(kind, name)?;
    database.run(&database::accounts("accounts", sent.messages.accounts()))?;
    database.run(database::by_hand(kind))?;
    Ok(database)
}

/// Returns the URL without what only the daemon's driver knows.
fn without_options(url: &str) -> String {
    url.split_once('?')
        .map_or(url, |(before, _)| before)
        .to_owned()
}
