//! One run of hapax: its configuration, what stands in its database before, and what it came to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::cpu::Cpu;
use super::database::{Database, StoreKind};
use super::figures::Samples;
use super::messages::Messages;
use super::scenario::{Claims, Scenario, Work};
use super::{Bench, HANDLER, LOOPS, ROLE, SOURCE, Sent, askers, scrape};
use crate::process;

/// Has hapax process what was sent, in a database called `name`. Returns the rate and what it cost.
///
/// # Errors
/// Also if a sum is wrong.
pub(super) fn run(
    bench: &Bench<'_>,
    name: &str,
    scenario: &Scenario,
    sent: &Sent,
) -> anyhow::Result<Samples> {
    let setting = &scenario.setting;
    let kind = scenario.place.store();
    let database = bench.databases.create(kind, name)?;
    let config = configuration(bench, name, database, scenario, sent)?;
    fill(bench, name, database, &config, setting.claims)?;
    if setting.role {
        // The accounts are made by the handler's migration.
        database.run(&format!(
            "ALTER DEFAULT PRIVILEGES GRANT SELECT, UPDATE ON TABLES TO {ROLE}"
        ))?;
    }
    if scenario.place.is_queue() {
        bench.send_lines(&config, SOURCE, &sent.lines, sent.messages.count())?;
    }
    let mut ran = hosts(bench, scenario, &config)?;
    let mut twice: &[usize] = &[];
    let ends = [0, sent.messages.count().saturating_sub(1)];
    let of_ends = format!("'{}', '{}'", Messages::id(ends[0]), Messages::id(ends[1]));
    if setting.again {
        // The first and the last one run again: their claims tell when all between were found to be duplicates.
        database.run(&format!(
            "DELETE FROM {} WHERE message_id IN ({of_ends})",
            kind.table("processed_messages")
        ))?;
        if scenario.place.is_queue() {
            bench.send_lines(&config, SOURCE, &sent.lines, sent.messages.count())?;
        } else {
            bench.forget_durable(&sent.stream, name)?;
        }
        ran = hosts(bench, scenario, &config)?;
        twice = &ends;
    }

    let mut samples = Samples::default();
    let count = sent.messages.count();
    let claims = |consumer: &str| {
        format!(
            "{} WHERE message_id NOT LIKE 'before-%' AND consumer = '{consumer}'",
            kind.table("processed_messages")
        )
    };
    let mut rates = Vec::new();
    let mut deadlocks = 0;
    for number in 0..=setting.more_handlers {
        let run = database.read(
            &claims(&consumer(name, number)),
            &accounts(scenario, number),
        )?;
        sent.check(&run, count, twice)?;
        deadlocks = run.deadlocks;
        rates.push(if setting.again {
            let ends = format!("{} AND message_id IN ({of_ends})", claims(name));
            database.read(&ends, "accounts")?.rate(count)?
        } else {
            run.rate(count)?
        });
    }
    let rate: f64 = rates.iter().sum();
    if rates.len() > 1 {
        let mean = rate / rates.len() as f64;
        let most = rates.iter().copied().fold(0.0, f64::max);
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        samples.add("least_to_mean", least / mean);
        samples.add("most_to_mean", most / mean);
    }
    check_others(database, scenario, sent)?;
    let thousands = (count * rates.len()) as f64 / 1000.0;
    samples.add("msgs_per_s", rate);
    samples.add("cpu_s_per_1000", ran.cpu.ended / thousands);
    if kind == StoreKind::Postgres {
        samples.add("database_cpu_s_per_1000", ran.cpu.database / thousands);
    }
    if let Some(metrics) = &ran.metrics {
        samples.maybe("p50_ms", scrape::quantile_ms(metrics, 0.5));
        samples.maybe("p99_ms", scrape::quantile_ms(metrics, 0.99));
    }
    samples.add("deadlocks", deadlocks as f64);
    let rolled_back = database.number(&format!(
        "SELECT CAST(coalesce(sum(rolled_back), 0) AS bigint) FROM {}",
        kind.table("counters")
    ))?;
    samples.add("rolled_back", rolled_back as f64);
    eprintln!(
        "    {name}: hapax {rate:.0} msg/s{}",
        if setting.again { " of duplicates" } else { "" }
    );
    Ok(samples)
}

/// Sees that nothing is dead but what is to be, and that pruning pruned.
fn check_others(database: Database<'_>, scenario: &Scenario, sent: &Sent) -> anyhow::Result<()> {
    let setting = &scenario.setting;
    let table = |name| database.kind().table(name);
    let dead = database.number(&format!("SELECT count(*) FROM {}", table("dead_letters")))?;
    let doomed = sent.messages.rejects() * (1 + setting.more_handlers) + setting.loops as usize;
    if dead != i64::try_from(doomed)? {
        bail!("{dead} messages are in the dead letters, not {doomed}");
    }
    if setting.claims.half_is_old {
        let kept = database.number(&format!(
            "SELECT count(*) FROM {} WHERE message_id LIKE 'before-%'",
            table("processed_messages")
        ))?;
        let pruned = i64::from(setting.claims.count) - kept;
        if pruned <= 0 {
            bail!("nothing was pruned while messages flowed: send more (`--messages`)");
        }
        eprintln!("    {pruned} claims were pruned");
    }
    Ok(())
}

/// What a run cost, and the last that its first host said of itself.
struct Ran {
    cpu: Cpu,
    metrics: Option<String>,
}

/// Runs hosts until nothing is left to do.
fn hosts(bench: &Bench<'_>, scenario: &Scenario, config: &Path) -> anyhow::Result<Ran> {
    let setting = &scenario.setting;
    let admin = askers::free_address()?;
    let program = match bench.baseline.filter(|_| setting.is_baseline) {
        Some(baseline) => baseline,
        None => &bench.programs.hapax,
    };
    let command = || {
        let mut command = Command::new(program);
        command
            .args(["run", "--until-idle", "--config"])
            .arg(config)
            .current_dir(bench.folder)
            .stdin(Stdio::null());
        command
    };
    let before = Cpu::now(bench.server)?;
    let is_over = &AtomicBool::new(false);
    let metrics = std::thread::scope(|scope| {
        let scraping = scope.spawn(move || scrape::last(admin, is_over));
        let askers = (setting.asked > 0)
            .then(|| scope.spawn(move || askers::ask(admin, setting.asked, is_over)));
        let hosts: Vec<_> = (0..setting.more_hosts)
            .map(|_| scope.spawn(|| process::run_quietly(&mut command())))
            .collect();
        let ended = process::run_quietly(command().env("HAPAX_ADMIN__LISTEN", admin.to_string()));
        is_over.store(true, Ordering::SeqCst);
        ended?;
        if let Some(askers) = askers {
            eprintln!("    {}", joined(askers)?);
        }
        for host in hosts {
            joined(host)?;
        }
        match scraping.join() {
            Ok(metrics) => Ok::<_, anyhow::Error>(metrics),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    Ok(Ran {
        cpu: Cpu::now(bench.server)?.since(before),
        metrics,
    })
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Puts claims of earlier messages into the database of a run.
fn fill(
    bench: &Bench<'_>,
    name: &str,
    database: Database<'_>,
    config: &Path,
    claims: Claims,
) -> anyhow::Result<()> {
    if claims.count == 0 {
        return Ok(());
    }
    // Makes the tables.
    process::run_quietly(
        Command::new(&bench.programs.hapax)
            .args(["prune", "--dry-run", "--config"])
            .arg(config),
    )?;
    let count = claims.count;
    let days = if claims.half_is_old {
        "CASE WHEN number % 2 = 0 THEN 30 ELSE 1 END"
    } else {
        "1"
    };
    let columns = "consumer, message_id, processed_at, outcome, payload_hash";
    // Ids in no order, as they come.
    match database.kind() {
        StoreKind::Postgres => {
            database.run(&format!(
                "INSERT INTO hapax.processed_messages ({columns}) \
                 SELECT '{name}', 'before-' || md5(number::text), \
                     now() - {days} * interval '1 day' + number * interval '1 microsecond', 'done', \
                     decode(md5(number::text), 'hex') \
                 FROM generate_series(1, {count}) AS number"
            ))?;
            database.run("VACUUM ANALYZE hapax.processed_messages")?;
            database.run("CHECKPOINT")
        }
        StoreKind::Sqlite => database.run(&format!(
            "PRAGMA cache_size = -2000000; \
             WITH RECURSIVE numbers (number) AS ( \
                 SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < {count}) \
             INSERT INTO hapax_processed_messages ({columns}) \
             SELECT '{name}', 'before-' || lower(hex(randomblob(16))), \
                 strftime('%Y-%m-%dT%H:%M:%fZ', 'now', -{days} || ' days'), 'done', randomblob(16) FROM numbers; \
             ANALYZE hapax_processed_messages; PRAGMA wal_checkpoint(TRUNCATE)"
        )),
    }
}

/// The identity of the handler `number`.
fn consumer(name: &str, number: usize) -> String {
    match number {
        0 => name.to_owned(),
        _ => format!("{name}_{number}"),
    }
}

/// The table that the handler `number` writes.
fn accounts(scenario: &Scenario, number: usize) -> String {
    if scenario.setting.more_handlers == 0 {
        return "accounts".to_owned();
    }
    format!("accounts_{number}")
}

/// Writes hapax's configuration for one run: all that it does not say has its default.
pub(super) fn configuration(
    bench: &Bench<'_>,
    name: &str,
    database: Database<'_>,
    scenario: &Scenario,
    sent: &Sent,
) -> anyhow::Result<PathBuf> {
    let setting = &scenario.setting;
    let is_queue = scenario.place.is_queue();
    let stream = &sent.stream;
    let mut text = format!("[store]\nurl = {}\n\n", quoted(&database.url()));
    if is_queue {
        text.push_str(&format!("[sources.{SOURCE}]\nkind = \"queue\"\n"));
    } else {
        text.push_str(&source(
            bench,
            SOURCE,
            stream,
            &format!("{SOURCE}.{stream}"),
        ));
    }
    for number in 0..=setting.more_handlers {
        let table = accounts(scenario, number);
        let component = bench.component(scenario);
        let migrations = bench.migrations(&table, sent.messages.accounts())?;
        let handler = match number {
            0 => HANDLER.to_owned(),
            _ => format!("{HANDLER}{number}"),
        };
        text.push_str(&format!(
            "\n[handlers.{handler}]\ncomponent = {}\nsource = \"{SOURCE}\"\nconsumer = \"{}\"\nmigrations = {}\n",
            quoted(&component.to_string_lossy()),
            consumer(name, number),
            quoted(&migrations.to_string_lossy()),
        ));
        if !is_queue {
            text.push_str("start = \"all\"\n");
        }
        if setting.is_awaited && bench.knows_await {
            text.push_str("sql = \"await\"\n");
        }
        if setting.role {
            text.push_str(&format!("role = \"{ROLE}\"\n"));
        }
        text.push_str(&format!("{}\n", setting.handler));
        let lock = match database.kind() {
            StoreKind::Postgres => " FOR UPDATE",
            StoreKind::Sqlite => "",
        };
        match scenario.work {
            Work::ReadWrite => text.push_str(&format!(
                "[handlers.{handler}.config]\ndoes = \"read-write\"\nlock = \"{lock}\"\n"
            )),
            Work::Execute if setting.more_handlers > 0 => text.push_str(&format!(
                "[handlers.{handler}.config]\ndoes = \"execute\"\ntable = \"{table}\"\n"
            )),
            Work::Batch if database.kind() == StoreKind::Sqlite => {
                text.push_str(&format!("[handlers.{handler}.config]\narrays = \"json\"\n"))
            }
            Work::Execute | Work::Batch => {}
        }
    }
    if setting.loops > 0 {
        // One after another, for as long as the others are processed.
        text.push_str(&source(bench, LOOPS, LOOPS, &format!("{LOOPS}.a")));
        text.push_str(&format!(
            "\n[handlers.{LOOPS}]\ncomponent = {}\nsource = \"{LOOPS}\"\nconsumer = \"{name}-loops\"\nstart = \"all\"\nlanes = 1\n\
             retry = {{ attempts = 1 }}\nlimits = {{ cpu = \"200ms\" }}\n",
            quoted(&bench.guest("script").to_string_lossy()),
        ));
    }
    let file = bench.folder.join(format!("{name}.toml"));
    fs::write(&file, text).with_context(|| format!("cannot write `{}`", file.display()))?;
    Ok(file)
}

/// Returns the table of a source that reads a stream.
pub(super) fn source(bench: &Bench<'_>, name: &str, stream: &str, subject: &str) -> String {
    format!(
        "\n[sources.{name}]\nkind = \"jetstream\"\nurl = {}\nstream = \"{stream}\"\nsubjects = [\"{subject}\"]\ncreate = true\n",
        quoted(bench.broker)
    )
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
