//! `cargo xtask bench`: the same messages through hapax and through a consumer written by hand, side by side.
//!
//! **Invariant**: a rate counts only if every account ended with the sum that was computed from the messages.
//! **Invariant**: both sides read one stream and write to one server, in turns that alternate, so that neither has the quieter
//! machine; keys are drawn at random from a printed seed, since keys that never meet would hide deadlocks.

mod askers;
mod database;
mod figures;
mod messages;
mod shapes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, bail};
use serde_json::Value;

use self::database::{Database, Databases, Run, StoreKind};
use self::figures::{Figures, Pair};
use self::messages::{Keys, Load, Messages};
use crate::services::{nats, postgres};
use crate::wasm_target::WasmTarget;
use crate::{cargo, guests, process};

/// The source's name, and the subject's first word.
const SOURCE: &str = "bench";
const HANDLER: &str = "credit";
/// The stream of messages whose handler never ends, for a handler of that name.
const LOOPS: &str = "LOOPS";
/// The role of the shapes named so.
const ROLE: &str = "hapax_bench";
/// Few enough accounts that messages in work meet on them.
const USUAL: Load = Load {
    keys: Keys::Uniform(1_000),
    rejects: 0,
};

/// What `cargo xtask bench` was asked for.
#[derive(Debug)]
pub(crate) struct Options {
    /// How many messages each run processes.
    pub(crate) messages: u32,
    /// How often each side runs.
    pub(crate) runs: u32,
    /// Decides accounts and amounts.
    pub(crate) seed: Option<u64>,
    /// All load shapes instead of the usual one.
    pub(crate) shapes: bool,
    /// Of these only the first, and those whose name contains this.
    pub(crate) only: Option<String>,
    /// How many claims a full table holds.
    pub(crate) claims: u32,
    /// Another build of hapax.
    pub(crate) baseline: Option<PathBuf>,
    /// One JSON object instead of a table.
    pub(crate) json: bool,
}

/// Runs the bench.
///
/// # Errors
/// Also if a sum is wrong.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
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
    let bench = Bench {
        programs,
        baseline: options.baseline.as_deref(),
        script: root.join("host/tests/guests/script.wasm"),
        folder: folder.path(),
        component: root.join("examples/credit-account/credit-account.wasm"),
        databases: Databases::new(&postgres.url(), folder.path())?,
        broker: nats.url(),
    };
    bench
        .databases
        .at("postgres")
        .run(&format!("CREATE ROLE {ROLE} NOLOGIN"))?;
    if options.shapes {
        return shapes::run(&bench, options, seed);
    }

    let sent = bench.send("USUAL", options.messages, USUAL, seed)?;
    let mut figures = Figures {
        seed,
        messages: options.messages,
        pairs: Vec::new(),
    };
    for number in 1..=options.runs {
        let hapax = || {
            let name = format!("hapax_{number}");
            Ok::<_, anyhow::Error>(bench.hapax(&name, &sent, &Setting::default())?.rate)
        };
        let plain = || bench.plain(&format!("plain_{number}"), &sent);
        // Who goes second finds a warmer machine: that alternates too.
        let pair = if number % 2 == 1 {
            let hapax = hapax()?;
            Pair {
                hapax,
                plain: plain()?,
            }
        } else {
            let plain = plain()?;
            Pair {
                hapax: hapax()?,
                plain,
            }
        };
        eprintln!("    run {number}: {pair}");
        figures.pairs.push(pair);
    }
    figures.print(options.json)?;
    Ok(ExitCode::SUCCESS)
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

/// A stream that holds messages, for every run to read from its start.
struct Sent {
    stream: String,
    messages: Messages,
    /// The handler's migrations, which make the accounts.
    migrations: PathBuf,
}

/// How hapax runs, beside its defaults.
#[derive(Clone, Debug, Default)]
struct Setting {
    /// Lines of the handler's table.
    handler: &'static str,
    /// Processes beside the first one.
    more_hosts: usize,
    /// Claims that are there before.
    claims: Claims,
    store: StoreKind,
    /// The handler's statements run as `ROLE`.
    role: bool,
    /// Beside a handler of so many messages that never end by themselves.
    loops: u32,
    /// The admin address is open, and so many ask there at once.
    asked: Option<u32>,
    /// With the build to compare with.
    is_baseline: bool,
}

/// Claims of earlier messages.
#[derive(Clone, Copy, Debug, Default)]
struct Claims {
    count: u32,
    /// Half of them are older than the window.
    half_is_old: bool,
}

/// What a run of hapax came to.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// Messages a second.
    rate: f64,
    deadlocks: i64,
    /// Transactions of which nothing stayed.
    rolled_back: i64,
}

struct Bench<'a> {
    programs: Programs,
    baseline: Option<&'a Path>,
    /// A handler that does what its messages say.
    script: PathBuf,
    folder: &'a Path,
    component: PathBuf,
    databases: Databases,
    broker: &'a str,
}

impl Bench<'_> {
    /// Draws messages and fills a stream with them.
    fn send(&self, stream: &str, count: u32, load: Load, seed: u64) -> anyhow::Result<Sent> {
        let messages = Messages::draw(count, load, seed);
        process::say(format_args!(
            "sending {count} messages for {} accounts, drawn with seed {seed} (hapax send)",
            messages.accounts()
        ));
        let migrations = self.folder.join(format!("migrations-{stream}"));
        fs::create_dir(&migrations)
            .and_then(|()| {
                fs::write(
                    migrations.join("0001_accounts.sql"),
                    database::accounts(messages.accounts()),
                )
            })
            .context("cannot write the handler's migration")?;
        let lines = self.folder.join(format!("{stream}.jsonl"));
        fs::write(&lines, messages.lines(&format!("{SOURCE}.{stream}")))
            .with_context(|| format!("cannot write `{}`", lines.display()))?;
        let sent = Sent {
            stream: stream.to_owned(),
            messages,
            migrations,
        };
        // Only the source matters here.
        let database = self.databases.at("postgres");
        let config = self.configuration("send", database, &sent, &Setting::default())?;
        let answer = process::output(
            Command::new(&self.programs.hapax)
                .args(["send", SOURCE, "--envelope", "--json", "--config"])
                .arg(config)
                .arg("--lines")
                .arg(lines),
        )?;
        let answer: Value = serde_json::from_str(&answer)
            .with_context(|| format!("`hapax send --json` answered `{answer}`"))?;
        if answer["sent"] != count || answer["duplicates"] != 0 {
            bail!("`hapax send` should have sent {count} and dropped none; it says {answer}");
        }
        Ok(sent)
    }

    /// Fills a stream with messages whose handler never ends.
    fn send_loops(&self, count: u32, sent: &Sent) -> anyhow::Result<()> {
        let database = self.databases.at("postgres");
        let setting = Setting {
            loops: count,
            ..Setting::default()
        };
        let config = self.configuration("send-loops", database, sent, &setting)?;
        let lines = self.folder.join("loops.jsonl");
        let text: String = (0..count)
            .map(|number| {
                format!(
                    "{{\"id\":\"l{number}\",\"subject\":\"{LOOPS}.a\",\"payload\":{{\"steps\":[{{\"loop\":true}}]}}}}\n"
                )
            })
            .collect();
        fs::write(&lines, text).with_context(|| format!("cannot write `{}`", lines.display()))?;
        process::run_quietly(
            Command::new(&self.programs.hapax)
                .args(["send", LOOPS, "--envelope", "--config"])
                .arg(config)
                .arg("--lines")
                .arg(lines),
        )
    }

    /// Has hapax process what was sent, in a database called `name`.
    fn hapax(&self, name: &str, sent: &Sent, setting: &Setting) -> anyhow::Result<Outcome> {
        process::say(format_args!("{name}: hapax"));
        let database = self.databases.create(setting.store, name)?;
        let config = self.configuration(name, database, sent, setting)?;
        let admin = askers::free_address()?;
        self.fill(name, database, &config, setting.claims)?;
        if setting.role {
            // The accounts are made by the handler's migration.
            database.run(&format!(
                "ALTER DEFAULT PRIVILEGES GRANT SELECT, UPDATE ON TABLES TO {ROLE}"
            ))?;
        }
        let program = match self.baseline.filter(|_| setting.is_baseline) {
            Some(baseline) => baseline,
            None => &self.programs.hapax,
        };
        let command = || {
            let mut command = Command::new(program);
            command
                .args(["run", "--until-idle", "--config"])
                .arg(&config)
                .current_dir(self.folder)
                .stdin(Stdio::null());
            if setting.asked.is_some() {
                command.env("HAPAX_ADMIN__LISTEN", admin.to_string());
            }
            command
        };
        let is_over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let askers = setting
                .asked
                .filter(|at_once| *at_once > 0)
                .map(|at_once| scope.spawn(move || askers::ask(admin, at_once, is_over)));
            let hosts: Vec<_> = (0..setting.more_hosts)
                .map(|_| scope.spawn(|| process::run_quietly(&mut command())))
                .collect();
            let ended = process::run_quietly(&mut command());
            is_over.store(true, Ordering::SeqCst);
            ended?;
            if let Some(askers) = askers {
                match askers.join() {
                    Ok(asked) => eprintln!("    {}", asked?),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            for host in hosts {
                match host.join() {
                    Ok(ended) => ended?,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok::<_, anyhow::Error>(())
        })?;
        let table = |name| setting.store.table(name);
        let dead = database.number(&format!("SELECT count(*) FROM {}", table("dead_letters")))?;
        let doomed = sent.messages.rejects() + setting.loops as usize;
        if dead != i64::try_from(doomed)? {
            bail!("{dead} messages are in the dead letters, not {doomed}");
        }
        if setting.claims.half_is_old {
            let kept = database.number(&format!(
                "SELECT count(*) FROM {} WHERE message_id LIKE 'before-%'",
                table("processed_messages")
            ))?;
            if kept >= i64::from(setting.claims.count) {
                bail!("nothing was pruned while messages flowed: send more (`--messages`)");
            }
            eprintln!(
                "    {} claims were pruned",
                i64::from(setting.claims.count) - kept
            );
        }
        let run = database.read(&format!(
            "{} WHERE message_id NOT LIKE 'before-%' AND consumer = '{name}'",
            table("processed_messages")
        ))?;
        Ok(Outcome {
            rate: sent.rate(&run)?,
            deadlocks: run.deadlocks,
            rolled_back: database.number(&format!(
                "SELECT CAST(coalesce(sum(rolled_back), 0) AS bigint) FROM {}",
                table("counters")
            ))?,
        })
    }

    /// Puts claims of earlier messages into the database of a run.
    fn fill(
        &self,
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
            Command::new(&self.programs.hapax)
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

    /// Returns the messages a second that the consumer written by hand processed.
    fn plain(&self, name: &str, sent: &Sent) -> anyhow::Result<f64> {
        process::say(format_args!("{name}: the consumer written by hand"));
        let database = self.databases.create(StoreKind::Postgres, name)?;
        database.run(&database::accounts(sent.messages.accounts()))?;
        database.run(database::PROCESSED)?;
        process::run_quietly(
            Command::new(&self.programs.plain)
                .args([&database.url(), self.broker, &sent.stream, name])
                .arg(sent.messages.count().to_string()),
        )?;
        sent.rate(&database.read("processed_messages")?)
    }

    /// Writes hapax's configuration for one run: all that it does not say has its default.
    fn configuration(
        &self,
        name: &str,
        database: Database<'_>,
        sent: &Sent,
        setting: &Setting,
    ) -> anyhow::Result<PathBuf> {
        let quoted = |text: &str| Value::from(text).to_string();
        let stream = &sent.stream;
        let text = format!(
            "[store]\nurl = {}\n\n\
             [sources.{SOURCE}]\nkind = \"jetstream\"\nurl = {}\nstream = \"{stream}\"\nsubjects = [\"{SOURCE}.{stream}\"]\ncreate = true\n\n\
             [handlers.{HANDLER}]\ncomponent = {}\nsource = \"{SOURCE}\"\nconsumer = \"{name}\"\nstart = \"all\"\nmigrations = {}\n{}\n",
            quoted(&database.url()),
            quoted(self.broker),
            quoted(&self.component.to_string_lossy()),
            quoted(&sent.migrations.to_string_lossy()),
            setting.handler,
        );
        let mut text = text;
        if setting.role {
            text.push_str(&format!("role = \"{ROLE}\"\n"));
        }
        if setting.loops > 0 {
            // One after another, for as long as the others are processed.
            text.push_str(&format!(
                "\n[sources.{LOOPS}]\nkind = \"jetstream\"\nurl = {}\nstream = \"{LOOPS}\"\nsubjects = [\"{LOOPS}.a\"]\ncreate = true\n\n\
                 [handlers.{LOOPS}]\ncomponent = {}\nsource = \"{LOOPS}\"\nconsumer = \"{name}-loops\"\nstart = \"all\"\nlanes = 1\n\
                 retry = {{ attempts = 1 }}\nlimits = {{ cpu = \"200ms\" }}\n",
                quoted(self.broker),
                quoted(&self.script.to_string_lossy()),
            ));
        }
        let file = self.folder.join(format!("{name}.toml"));
        fs::write(&file, text).with_context(|| format!("cannot write `{}`", file.display()))?;
        Ok(file)
    }
}

impl Sent {
    /// Returns the rate of a run whose sums are right.
    fn rate(&self, run: &Run) -> anyhow::Result<f64> {
        if run.processed != self.messages.count() {
            bail!(
                "{} messages were processed, not {}",
                run.processed,
                self.messages.count()
            );
        }
        if let Some((account, found, expected)) = self.messages.first_difference(&run.balances) {
            bail!("the balance of account `{account}` is {found}, not {expected}");
        }
        Ok(run.rate())
    }
}
