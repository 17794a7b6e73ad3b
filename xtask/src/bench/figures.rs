//! What came out, in words.

use std::fmt;
use std::io::Write as _;

use anyhow::Context as _;
use serde_json::json;

/// The rates of two runs next to each other, in messages a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) hapax: f64,
    pub(super) plain: f64,
}

impl Pair {
    fn ratio(self) -> f64 {
        self.hapax / self.plain
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "hapax {:.0} msg/s, plain consumer {:.0} msg/s, ratio {:.2}",
            self.hapax,
            self.plain,
            self.ratio()
        )
    }
}

/// All runs.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) seed: u64,
    pub(super) messages: u32,
    pub(super) pairs: Vec<Pair>,
}

/// The smallest, the middle and the largest of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    /// Of at least one value.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.collect();
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

    fn json(self) -> serde_json::Value {
        json!({ "min": self.min, "median": self.median, "max": self.max })
    }
}

impl Figures {
    /// Prints them on standard output.
    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        let text = if json { self.json() } else { self.table() };
        std::io::stdout()
            .write_all(text.as_bytes())
            .context("cannot print the figures")
    }

    fn spreads(&self) -> [Spread; 3] {
        let pairs = || self.pairs.iter().copied();
        [
            Spread::of(pairs().map(|pair| pair.hapax)),
            Spread::of(pairs().map(|pair| pair.plain)),
            Spread::of(pairs().map(Pair::ratio)),
        ]
    }

    fn table(&self) -> String {
        let [hapax, plain, ratio] = self.spreads();
        let mut text = format!(
            "{} messages a run, {} runs each, seed {}; all sums are exact\n\n{:<22}{:>10}{:>10}{:>10}\n",
            self.messages,
            self.pairs.len(),
            self.seed,
            "",
            "min",
            "median",
            "max"
        );
        for (name, spread, digits) in [
            ("hapax, msg/s", hapax, 0),
            ("plain consumer, msg/s", plain, 0),
            ("ratio", ratio, 2),
        ] {
            text.push_str(&format!(
                "{name:<22}{:>10.digits$}{:>10.digits$}{:>10.digits$}\n",
                spread.min, spread.median, spread.max
            ));
        }
        text
    }

    fn json(&self) -> String {
        let [hapax, plain, ratio] = self.spreads();
        let runs: Vec<_> = self
            .pairs
            .iter()
            .map(|pair| json!({ "hapax": pair.hapax, "plain": pair.plain, "ratio": pair.ratio() }))
            .collect();
        let all = json!({
            "seed": self.seed,
            "messages": self.messages,
            "hapax": hapax.json(),
            "plain": plain.json(),
            "ratio": ratio.json(),
            "runs": runs,
        });
        format!("{all}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_two() {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        let spread = |min, median, max| Spread { min, median, max };
        assert_eq!(of(&[3.0, 1.0, 2.0]), spread(1.0, 2.0, 3.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), spread(1.0, 2.5, 4.0));
        assert_eq!(of(&[5.0]), spread(5.0, 5.0, 5.0));
    }

    #[test]
    fn the_table_has_every_figure() {
        let figures = Figures {
            seed: 7,
            messages: 100,
            pairs: vec![
                Pair {
                    hapax: 200.0,
                    plain: 100.0,
                },
                Pair {
                    hapax: 300.0,
                    plain: 100.0,
                },
            ],
        };
        let table = figures.table();
        assert!(table.contains("seed 7"), "{table}");
        assert!(
            table.ends_with("ratio                       2.00      2.50      3.00\n"),
            "{table}"
        );
        let json: serde_json::Value = serde_json::from_str(&figures.json()).unwrap();
        assert_eq!(json["ratio"]["median"], 2.5);
        assert_eq!(json["runs"][0]["hapax"], 200.0);
    }
}
