//! What came out of all rounds: in a table, and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::scenario::{Compared, Scenario};

/// Figures by their names in JSON, each once a round.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(BTreeMap<String, Vec<f64>>);

impl Samples {
    pub(super) fn add(&mut self, key: impl Into<String>, value: f64) {
        self.0.entry(key.into()).or_default().push(value);
    }

    /// Adds what could be learned.
    pub(super) fn maybe(&mut self, key: impl Into<String>, value: Option<f64>) {
        if let Some(value) = value {
            self.add(key, value);
        }
    }

    /// Adds all of another one's.
    pub(super) fn extend(&mut self, other: &Self) {
        for (key, values) in &other.0 {
            self.0.entry(key.clone()).or_default().extend(values);
        }
    }

    /// Returns the latest.
    pub(super) fn last(&self, key: &str) -> Option<f64> {
        self.0.get(key)?.last().copied()
    }

    /// Returns the smallest, the middle and the largest.
    pub(super) fn spread(&self, key: &str) -> Option<Spread> {
        self.0.get(key).map(|values| Spread::of(values))
    }

    fn median(&self, key: &str) -> Option<f64> {
        self.spread(key).map(|spread| spread.median)
    }
}

/// The smallest, the middle and the largest of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Of at least one value.
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Self {
            min: sorted[0],
            median,
            max: sorted[sorted.len() - 1],
        }
    }
}

/// All rounds of all scenarios.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) seed: u64,
    pub(super) messages: u32,
    pub(super) runs: u32,
    pub(super) rows: Vec<(Scenario, Samples)>,
}

/// These are added up over the rounds; of all others the median is told.
const SUMS: [&str; 2] = ["deadlocks", "rolled_back"];
/// What every object has; null where the scenario has no such figure.
const ALWAYS: [&str; 8] = [
    "msgs_per_s",
    "baseline_msgs_per_s",
    "group_commit_msgs_per_s",
    "ceiling_msgs_per_s",
    "ratio",
    "p50_ms",
    "p99_ms",
    "cpu_s_per_1000",
];

impl Figures {
    /// Returns one object a scenario, each on a line.
    pub(super) fn json_lines(&self) -> String {
        let mut text = String::new();
        for (scenario, samples) in &self.rows {
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{}", self.object(scenario, samples));
        }
        text
    }

    fn object(&self, scenario: &Scenario, samples: &Samples) -> Value {
        let mut object = Map::new();
        object.insert("name".into(), json!(scenario.name));
        object.insert("seed".into(), json!(self.seed));
        object.insert("messages".into(), json!(self.messages));
        object.insert("runs".into(), json!(self.runs));
        object.insert("keys".into(), json!(scenario.load.keys.to_string()));
        object.insert("ratio_to".into(), json!(ratio_to(scenario)));
        for key in ALWAYS {
            object.insert(key.into(), Value::Null);
        }
        for (key, values) in &samples.0 {
            let value = if SUMS.contains(&&**key) {
                json!(values.iter().sum::<f64>() as i64)
            } else {
                json!(Spread::of(values).median)
            };
            object.insert(key.clone(), value);
        }
        if let Some(ratio) = samples.spread("ratio") {
            object.insert("ratio_min".into(), json!(ratio.min));
            object.insert("ratio_max".into(), json!(ratio.max));
        }
        Value::Object(object)
    }

    /// Returns tables in Markdown: those beside the consumers written by hand, and those beside another scenario.
    pub(super) fn tables(&self) -> String {
        let mut text = format!(
            "{} messages a run, {} runs each, seed {}; all sums are exact; medians, deadlocks and rollbacks added up\n",
            self.messages, self.runs, self.seed
        );
        let is_beside = |scenario: &Scenario| matches!(scenario.compared, Compared::ByHand);
        let rows = |beside: bool| {
            self.rows
                .iter()
                .filter(move |(scenario, _)| is_beside(scenario) == beside)
        };
        if rows(true).next().is_some() {
            text.push_str(
                "\n| scenario | keys | hapax, msg/s | A at 1 / 8 / 32 | B | C: single / awaited / pipelined | to A (min / median / max) | to B | to C | \
                 p50 / p99, ms | of A | CPU ms a 1,000: hapax / its database | of A | deadlocks |\n\
                 | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
            );
        }
        for (scenario, samples) in rows(true) {
            let rates = |keys: &[&str]| joined(keys.iter().map(|key| whole(samples.median(key))));
            let milliseconds = |prefix: &str| {
                joined(
                    ["p50_ms", "p99_ms"]
                        .iter()
                        .map(|key| digits(samples.median(&format!("{prefix}{key}")), 1)),
                )
            };
            let cpu = |prefix: &str| {
                joined(
                    ["cpu_s_per_1000", "database_cpu_s_per_1000"]
                        .iter()
                        .map(|key| {
                            let seconds = samples.median(&format!("{prefix}{key}"));
                            whole(seconds.map(|seconds| seconds * 1000.0))
                        }),
                )
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                scenario.name,
                scenario.load.keys,
                whole(samples.median("msgs_per_s")),
                rates(&[
                    "baseline_1_msgs_per_s",
                    "baseline_8_msgs_per_s",
                    "baseline_msgs_per_s"
                ]),
                whole(samples.median("group_commit_msgs_per_s")),
                rates(&[
                    "ceiling_single_msgs_per_s",
                    "ceiling_awaited_msgs_per_s",
                    "ceiling_msgs_per_s"
                ]),
                ratio(samples),
                digits(samples.median("ratio_to_group_commit"), 2),
                digits(samples.median("ratio_to_ceiling"), 2),
                milliseconds(""),
                milliseconds("baseline_"),
                cpu(""),
                cpu("baseline_"),
                sum(samples, "deadlocks"),
            );
        }
        if rows(false).next().is_some() {
            text.push_str(
                "\n| scenario | keys | msg/s | compared with | ratio (min / median / max) | p50 / p99, ms | deadlocks | rolled back | note |\n\
                 | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
            );
        }
        for (scenario, samples) in rows(false) {
            let note = match (
                samples.median("least_to_mean"),
                samples.median("baseline_p50_ms"),
            ) {
                (Some(least), _) => format!(
                    "handlers: {least:.2} to {} of their mean",
                    digits(samples.median("most_to_mean"), 2)
                ),
                (None, Some(p50)) => format!("A: p50 {p50:.2} ms"),
                (None, None) => String::new(),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} / {} | {} | {} | {note} |",
                scenario.name,
                scenario.load.keys,
                whole(samples.median("msgs_per_s")),
                ratio_to(scenario),
                ratio(samples),
                digits(samples.median("p50_ms"), 2),
                digits(samples.median("p99_ms"), 2),
                sum(samples, "deadlocks"),
                sum(samples, "rolled_back"),
            );
        }
        text
    }
}

/// Says what a scenario's ratio is taken to.
fn ratio_to(scenario: &Scenario) -> &str {
    match &scenario.compared {
        Compared::ByHand => "by hand, 32 at once",
        Compared::With(base) => base,
        Compared::OneAtATime => "by hand, 1 at once: p50",
    }
}

fn ratio(samples: &Samples) -> String {
    samples.spread("ratio").map_or_else(
        || "-".to_owned(),
        |spread| {
            format!(
                "{:.2} / **{:.2}** / {:.2}",
                spread.min, spread.median, spread.max
            )
        },
    )
}

fn sum(samples: &Samples, key: &str) -> String {
    samples.0.get(key).map_or_else(
        || "-".to_owned(),
        |values| format!("{:.0}", values.iter().sum::<f64>()),
    )
}

/// Writes a number without a fraction, with commas.
fn whole(value: Option<f64>) -> String {
    let Some(value) = value else {
        return "-".to_owned();
    };
    let plain = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in plain.chars().enumerate() {
        if index > 0 && (plain.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn digits(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// Joins the figures that are there.
fn joined(figures: impl Iterator<Item = String>) -> String {
    let there: Vec<String> = figures.filter(|figure| figure != "-").collect();
    if there.is_empty() {
        return "-".to_owned();
    }
    there.join(" / ")
}

#[cfg(test)]
mod tests {
    use super::super::scenario;
    use super::*;

    fn figures() -> Figures {
        let mut samples = Samples::default();
        for (rate, ratio) in [(30_000.0, 6.0), (10_000.0, 2.0), (20_000.4, 5.0)] {
            samples.add("msgs_per_s", rate);
            samples.add("ratio", ratio);
            samples.add("deadlocks", 1.0);
        }
        samples.maybe("p50_ms", None);
        let mut with = Samples::default();
        with.add("ratio", 0.5);
        let all = scenario::all(1, 1_000);
        let find = |name: &str| all.iter().find(|one| one.name == name).unwrap().clone();
        Figures {
            seed: 7,
            messages: 1_000,
            runs: 3,
            rows: vec![
                (find("pg-jetstream/execute-zipf"), samples),
                (find("pg-jetstream/hosts-2"), with),
            ],
        }
    }

    #[test]
    fn the_median_is_the_middle_or_between_two() {
        let spread = |min, median, max| Spread { min, median, max };
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), spread(1.0, 2.0, 3.0));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]), spread(1.0, 2.5, 4.0));
        assert_eq!(Spread::of(&[5.0]), spread(5.0, 5.0, 5.0));
    }

    #[test]
    fn each_scenario_is_an_object() {
        let text = figures().json_lines();
        let objects: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(objects.len(), 2);
        let first = &objects[0];
        assert_eq!(first["name"], "pg-jetstream/execute-zipf");
        assert_eq!(first["keys"], "zipf-1.1-100000");
        assert_eq!(first["msgs_per_s"], 20_000.4);
        assert_eq!(first["ratio"], 5.0);
        assert_eq!(first["ratio_min"], 2.0);
        assert_eq!(first["deadlocks"], 3);
        assert_eq!(first["p50_ms"], Value::Null);
        assert_eq!(objects[1]["ratio_to"], "pg-jetstream/execute");
    }

    #[test]
    fn the_tables_have_a_line_a_scenario() {
        let text = figures().tables();
        assert!(text.contains("seed 7"), "{text}");
        let line = |name: &str| {
            text.lines()
                .find(|line| line.starts_with(&format!("| {name} |")))
                .unwrap()
        };
        let line_by_hand = line("pg-jetstream/execute-zipf");
        assert!(line_by_hand.contains("| 20,000 |"), "{text}");
        assert!(
            line_by_hand.contains("| 2.00 / **5.00** / 6.00 |"),
            "{text}"
        );
        assert!(
            line("pg-jetstream/hosts-2")
                .contains("| pg-jetstream/execute | 0.50 / **0.50** / 0.50 |")
        );
        let columns = |line: &str| line.matches('|').count();
        assert_eq!(columns(line_by_hand), columns(text.lines().nth(2).unwrap()));
    }
}
