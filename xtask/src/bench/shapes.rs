//! One load after another: keys, rejects, batch sizes, lanes, hosts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;

use super::database::StoreKind;
use super::messages::{Keys, Load};
use super::{Bench, Claims, Options, Outcome, Sent, Setting, USUAL};

/// One line of the table.
struct Shape {
    name: &'static str,
    /// The shape that it is compared with.
    base: &'static str,
    /// The stream that it reads.
    stream: &'static str,
    setting: Setting,
}

/// What is sent, by stream.
const LOADS: [(&str, Load); 7] = [
    ("USUAL", USUAL),
    (
        "WIDE",
        Load {
            keys: Keys::Uniform(100_000),
            rejects: 0,
        },
    ),
    (
        "ZIPF",
        Load {
            keys: Keys::Zipf(100_000),
            rejects: 0,
        },
    ),
    (
        "HOT",
        Load {
            keys: Keys::OneHot,
            rejects: 0,
        },
    ),
    (
        "REJECT1",
        Load {
            rejects: 1,
            ..USUAL
        },
    ),
    (
        "REJECT10",
        Load {
            rejects: 10,
            ..USUAL
        },
    ),
    (
        "REJECT50",
        Load {
            rejects: 50,
            ..USUAL
        },
    ),
];

/// What the others are compared with.
const FIRST: &str = "1,000 accounts";
/// What those on SQLite are compared with.
const FIRST_SQLITE: &str = "SQLite";
/// What pruning is compared with: the same table, of which nothing is old.
const CLAIMS: &str = "claims";
const CLAIMS_4_HOSTS: &str = "claims, 4 hosts";
const CLAIMS_SQLITE: &str = "SQLite, claims";

/// A loop is stopped after 200 ms; meanwhile no more than so many other messages are processed.
const MESSAGES_A_LOOP: u32 = 400;
const ONE_A_BATCH: &str = "batch = { max = 1 }";
const SINGLE: &str = "batch.max = 1";
/// With the admin address open, which nobody asks.
const ADMIN: &str = "admin";

/// A shape that others are compared with comes before them. `claims` is how many a full table holds, `loops`
/// how many messages never end in the shape named so.
fn shapes(claims: u32, loops: u32) -> Vec<Shape> {
    let shape = |name, stream, handler, more_hosts| Shape {
        name,
        base: FIRST,
        stream,
        setting: Setting {
            handler,
            more_hosts,
            ..Setting::default()
        },
    };
    let full = |name, base, store, more_hosts, half_is_old| Shape {
        name,
        base,
        stream: "USUAL",
        setting: Setting {
            handler: "dedup = \"14d\"",
            more_hosts,
            claims: Claims {
                count: claims,
                half_is_old,
            },
            store,
            ..Setting::default()
        },
    };
    let sqlite = Shape {
        name: FIRST_SQLITE,
        base: FIRST_SQLITE,
        stream: "USUAL",
        setting: Setting {
            store: StoreKind::Sqlite,
            ..Setting::default()
        },
    };
    vec![
        shape(FIRST, "USUAL", "", 0),
        shape("100,000 accounts", "WIDE", "", 0),
        shape("Zipf 1.1 over 100,000", "ZIPF", "", 0),
        shape("one hot account", "HOT", "", 0),
        shape("0.1 % rejects", "REJECT1", "", 0),
        shape("1 % rejects", "REJECT10", "", 0),
        shape("5 % rejects", "REJECT50", "", 0),
        shape(SINGLE, "USUAL", ONE_A_BATCH, 0),
        shape("batch.max = 50", "USUAL", "batch = { max = 50 }", 0),
        shape("batch.max = 200", "USUAL", "batch = { max = 200 }", 0),
        shape("lanes = 1", "USUAL", "lanes = 1", 0),
        shape("2 hosts", "USUAL", "", 1),
        full(CLAIMS, FIRST, StoreKind::Postgres, 0, false),
        full("claims, half pruned", CLAIMS, StoreKind::Postgres, 0, true),
        full(CLAIMS_4_HOSTS, FIRST, StoreKind::Postgres, 3, false),
        full(
            "claims, 4 hosts, pruned",
            CLAIMS_4_HOSTS,
            StoreKind::Postgres,
            3,
            true,
        ),
        Shape {
            setting: Setting {
                role: true,
                ..Setting::default()
            },
            ..shape("role", "USUAL", "", 0)
        },
        Shape {
            base: SINGLE,
            setting: Setting {
                role: true,
                handler: ONE_A_BATCH,
                ..Setting::default()
            },
            ..shape("role, batch.max = 1", "USUAL", "", 0)
        },
        Shape {
            setting: Setting {
                loops,
                ..Setting::default()
            },
            ..shape("beside endless loops", "USUAL", "", 0)
        },
        Shape {
            base: ADMIN,
            setting: Setting {
                asked: Some(0),
                ..Setting::default()
            },
            ..shape(ADMIN, "USUAL", "", 0)
        },
        Shape {
            base: ADMIN,
            setting: Setting {
                asked: Some(1_000),
                ..Setting::default()
            },
            ..shape("admin, 1,000 ask", "USUAL", "", 0)
        },
        Shape {
            setting: Setting {
                is_baseline: true,
                ..Setting::default()
            },
            ..shape("baseline", "USUAL", "", 0)
        },
        Shape {
            base: SINGLE,
            setting: Setting {
                is_baseline: true,
                handler: ONE_A_BATCH,
                ..Setting::default()
            },
            ..shape("baseline, batch.max = 1", "USUAL", "", 0)
        },
        sqlite,
        full(CLAIMS_SQLITE, FIRST_SQLITE, StoreKind::Sqlite, 0, false),
        full(
            "SQLite, claims, pruned",
            CLAIMS_SQLITE,
            StoreKind::Sqlite,
            0,
            true,
        ),
    ]
}

/// What the runs of one shape came to.
#[derive(Default)]
struct Row {
    rates: Vec<f64>,
    to_base: Vec<f64>,
    to_plain: Vec<f64>,
    deadlocks: i64,
    rolled_back: i64,
}

/// Runs every shape, and the consumer written by hand for each kind of keys, once in each round.
pub(super) fn run(bench: &Bench<'_>, options: &Options, seed: u64) -> anyhow::Result<ExitCode> {
    let mut streams: BTreeMap<&str, Sent> = BTreeMap::new();
    let loops = (options.messages / MESSAGES_A_LOOP).max(10);
    let mut shapes = shapes(options.claims, loops);
    if options.baseline.is_none() {
        shapes.retain(|shape| !shape.setting.is_baseline);
    }
    if let Some(only) = &options.only {
        retain(&mut shapes, only);
    }
    let is_read = |stream: &str| shapes.iter().any(|shape| shape.stream == stream);
    for (stream, load) in LOADS.into_iter().filter(|(stream, _)| is_read(stream)) {
        streams.insert(stream, bench.send(stream, options.messages, load, seed)?);
    }
    if shapes.iter().any(|shape| shape.setting.loops > 0)
        && let Some(sent) = streams.values().next()
    {
        bench.send_loops(loops, sent)?;
    }
    let mut rows: Vec<Row> = shapes.iter().map(|_| Row::default()).collect();
    for round in 1..=options.runs {
        let mut bases: BTreeMap<&str, f64> = BTreeMap::new();
        let mut plain: BTreeMap<&str, f64> = BTreeMap::new();
        for (number, (shape, row)) in shapes.iter().zip(&mut rows).enumerate() {
            let sent = &streams[shape.stream];
            // It has no dead letters, so rejects are not for it.
            if sent.messages.rejects() == 0 && !plain.contains_key(shape.stream) {
                let name = format!("plain_{round}_{number}");
                plain.insert(shape.stream, bench.plain(&name, sent)?);
            }
            let outcome = bench.hapax(&format!("hapax_{round}_{number}"), sent, &shape.setting)?;
            bases.insert(shape.name, outcome.rate);
            let base = bases[shape.base];
            let plain = plain.get(shape.stream).copied();
            row.add(outcome, base, plain);
            eprintln!(
                "    round {round}, {}: {:.0} msg/s",
                shape.name, outcome.rate
            );
        }
    }
    let text = if options.json {
        json_lines(&shapes, &rows, options, seed)
    } else {
        table(&shapes, &rows, options, seed)
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("cannot print the figures")?;
    Ok(ExitCode::SUCCESS)
}

/// Leaves the shapes whose name contains `only`, and those that they are compared with.
fn retain(shapes: &mut Vec<Shape>, only: &str) {
    let mut wanted: Vec<&str> = shapes
        .iter()
        .map(|shape| shape.name)
        .filter(|name| name.contains(only))
        .collect();
    // A shape comes after the one that it is compared with, so one way back finds those of those, too.
    for shape in shapes.iter().rev() {
        if wanted.contains(&shape.name) {
            wanted.push(shape.base);
        }
    }
    shapes.retain(|shape| wanted.contains(&shape.name));
}

impl Row {
    fn add(&mut self, outcome: Outcome, base: f64, plain: Option<f64>) {
        self.rates.push(outcome.rate);
        self.to_base.push(outcome.rate / base);
        self.to_plain
            .extend(plain.map(|plain| outcome.rate / plain));
        self.deadlocks += outcome.deadlocks;
        self.rolled_back += outcome.rolled_back;
    }
}

/// The middle value, or the lower of the two in the middle.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

fn table(shapes: &[Shape], rows: &[Row], options: &Options, seed: u64) -> String {
    let mut text = format!(
        "{} messages a run, {} rounds, seed {seed}; all sums are exact; medians, deadlocks and rollbacks added up\n\n",
        options.messages, options.runs
    );
    // Writing to a text cannot fail.
    let _ = writeln!(
        text,
        "{:<24}{:>8}{:>12}{:>12}{:>11}{:>13}",
        "", "msg/s", "to base", "to plain", "deadlocks", "rolled back"
    );
    for (shape, row) in shapes.iter().zip(rows) {
        let ratio = |values: &[f64]| {
            median(values).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
        };
        let _ = writeln!(
            text,
            "{:<24}{:>8.0}{:>12}{:>12}{:>11}{:>13}",
            shape.name,
            median(&row.rates).unwrap_or_default(),
            ratio(&row.to_base),
            ratio(&row.to_plain),
            row.deadlocks,
            row.rolled_back
        );
    }
    text
}

/// One object a shape.
fn json_lines(shapes: &[Shape], rows: &[Row], options: &Options, seed: u64) -> String {
    let mut text = String::new();
    for (shape, row) in shapes.iter().zip(rows) {
        let object = json!({
            "name": shape.name,
            "seed": seed,
            "messages": options.messages,
            "msgs_per_s": median(&row.rates),
            "base": shape.base,
            "ratio_to_base": median(&row.to_base),
            "ratio_to_plain": median(&row.to_plain),
            "deadlocks": row.deadlocks,
            "rolled_back": row.rolled_back,
        });
        let _ = writeln!(text, "{object}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_reads_a_stream_that_is_sent() {
        for shape in shapes(1, 1) {
            assert!(
                LOADS.iter().any(|(stream, _)| *stream == shape.stream),
                "{}",
                shape.name
            );
        }
    }

    #[test]
    fn those_that_are_compared_with_come_along() {
        let mut shapes = shapes(1, 1);
        retain(&mut shapes, "half pruned");
        let names: Vec<&str> = shapes.iter().map(|shape| shape.name).collect();
        assert_eq!(names, [FIRST, CLAIMS, "claims, half pruned"]);
    }

    #[test]
    fn the_table_has_a_line_a_shape() {
        let shapes = shapes(1, 1);
        let mut rows: Vec<Row> = shapes.iter().map(|_| Row::default()).collect();
        let outcome = |rate| Outcome {
            rate,
            deadlocks: 1,
            rolled_back: 2,
        };
        for rate in [300.0, 100.0, 200.0] {
            rows[0].add(outcome(rate), 100.0, Some(50.0));
        }
        rows[1].add(outcome(100.0), 100.0, None);
        let options = Options {
            messages: 10,
            runs: 3,
            seed: None,
            shapes: true,
            only: None,
            claims: 1,
            baseline: None,
            json: false,
        };
        let table = table(&shapes, &rows, &options, 7);
        let lines: Vec<&str> = table.lines().skip(3).collect();
        assert_eq!(lines.len(), shapes.len());
        assert_eq!(
            lines[0].split_whitespace().collect::<Vec<_>>(),
            ["1,000", "accounts", "200", "2.00", "4.00", "3", "6"]
        );
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["100,000", "accounts", "100", "1.00", "-", "1", "2"]
        );
    }
}
