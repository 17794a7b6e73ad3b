//! The plot: throughput against batch size, lanes, and rows in the claims table, as SVG.

use std::fmt::Write as _;

use super::figures::{Figures, Spread};
use super::scenario::{BATCH_SIZES, LANES, ROWS};

const PANEL: (f64, f64) = (270.0, 220.0);
const LEFT: f64 = 60.0;
const TOP: f64 = 50.0;
const GAP: f64 = 25.0;
const BOTTOM: f64 = 60.0;

/// One of the three.
struct Panel {
    title: &'static str,
    /// The scenarios' names begin so; a number follows.
    prefix: &'static str,
    values: &'static [u32],
}

const PANELS: [Panel; 3] = [
    Panel {
        title: "batch.max",
        prefix: "pg-jetstream/batch-max-",
        values: &BATCH_SIZES,
    },
    Panel {
        title: "lanes",
        prefix: "pg-jetstream/lanes-",
        values: &LANES,
    },
    Panel {
        title: "rows in processed_messages",
        prefix: "pg-jetstream/rows-",
        values: &ROWS,
    },
];

/// Draws what was measured of it.
pub(super) fn svg(figures: &Figures) -> String {
    let of = |name: &str, key: &str| {
        let (_, samples) = figures.rows.iter().find(|(one, _)| one.name == name)?;
        samples.spread(key)
    };
    let lines: Vec<(&str, f64)> = [
        ("by hand, 32 at once", "baseline_msgs_per_s"),
        ("group commit by hand", "group_commit_msgs_per_s"),
    ]
    .into_iter()
    .filter_map(|(label, key)| Some((label, of("pg-jetstream/execute", key)?.median)))
    .collect();
    let panels: Vec<(&Panel, Vec<(u32, Spread)>)> = PANELS
        .iter()
        .map(|panel| {
            let points = panel.values.iter().filter_map(|value| {
                let name = format!("{}{value}", panel.prefix);
                Some((*value, of(&name, "msgs_per_s")?))
            });
            (panel, points.collect())
        })
        .collect();
    let highest = panels
        .iter()
        .flat_map(|(_, points)| points.iter().map(|(_, spread)| spread.max))
        .chain(lines.iter().map(|(_, rate)| *rate))
        .fold(0.0, f64::max);
    let step = step(highest);
    let top = (highest / step).ceil().max(1.0) * step;
    let width = LEFT + 3.0 * (PANEL.0 + GAP);
    let height = TOP + PANEL.1 + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"13\">messages a second: PostgreSQL and JetStream, one statement a message, 1,000 accounts \
         (median of {}, with the smallest and the largest)</text>\n",
        figures.runs
    );
    for (index, (panel, points)) in panels.iter().enumerate() {
        let x = LEFT + index as f64 * (PANEL.0 + GAP);
        draw(&mut svg, x, panel, points, &lines, top, step);
    }
    svg.push_str("</svg>\n");
    svg
}

/// A round step, of which about five fit.
fn step(highest: f64) -> f64 {
    let rough = (highest / 5.0).max(1.0);
    let power = 10.0_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= rough)
        .unwrap_or(rough)
}

fn draw(
    svg: &mut String,
    left: f64,
    panel: &Panel,
    points: &[(u32, Spread)],
    lines: &[(&str, f64)],
    top: f64,
    step: f64,
) {
    let y = |rate: f64| TOP + PANEL.1 * (1.0 - rate / top);
    let slot = PANEL.0 / panel.values.len() as f64;
    let x = |value: u32| {
        let index = panel.values.iter().position(|one| *one == value);
        left + slot * (index.unwrap_or_default() as f64 + 0.5)
    };
    let right = left + PANEL.0;
    // Writing to a text cannot fail.
    let mut rate = 0.0;
    while rate <= top {
        let at = y(rate);
        let _ = writeln!(
            svg,
            "<line x1=\"{left:.1}\" y1=\"{at:.1}\" x2=\"{right:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"
        );
        if left <= LEFT {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{rate:.0}</text>",
                left - 6.0,
                at + 4.0
            );
        }
        rate += step;
    }
    for (label, rate) in lines {
        let at = y(*rate);
        let _ = writeln!(
            svg,
            "<line x1=\"{left:.1}\" y1=\"{at:.1}\" x2=\"{right:.1}\" y2=\"{at:.1}\" stroke=\"#888\" stroke-dasharray=\"5 4\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#666\">{label}</text>",
            right - 4.0,
            at - 4.0
        );
    }
    let path: Vec<String> = points
        .iter()
        .map(|(value, spread)| format!("{:.1},{:.1}", x(*value), y(spread.median)))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#1f5fa8\" stroke-width=\"2\"/>",
        path.join(" ")
    );
    for (value, spread) in points {
        let at = x(*value);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{:.1}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"#1f5fa8\"/>\n\
             <circle cx=\"{at:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"#1f5fa8\"/>",
            y(spread.min),
            y(spread.max),
            y(spread.median)
        );
    }
    for value in panel.values {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>",
            x(*value),
            TOP + PANEL.1 + 16.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        left + PANEL.0 / 2.0,
        TOP + PANEL.1 + 38.0,
        panel.title
    );
}

#[cfg(test)]
mod tests {
    use super::super::figures::Samples;
    use super::super::scenario;
    use super::*;

    #[test]
    fn each_point_is_drawn_once() {
        let rows = scenario::all(1, 1_000)
            .into_iter()
            .filter(|one| scenario::is_drawn(one) || one.name == "pg-jetstream/execute")
            .map(|one| {
                let mut samples = Samples::default();
                samples.add("msgs_per_s", 20_000.0);
                samples.add("baseline_msgs_per_s", 5_000.0);
                (one, samples)
            })
            .collect();
        let text = svg(&Figures {
            seed: 1,
            messages: 1_000,
            runs: 1,
            rows,
        });
        let points = BATCH_SIZES.len() + LANES.len() + ROWS.len();
        assert_eq!(text.matches("<circle").count(), points);
        assert_eq!(text.matches("by hand, 32 at once").count(), PANELS.len());
        assert!(
            text.ends_with("</svg>\n") && !text.contains("NaN"),
            "{text}"
        );
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(step(20_000.0), 5_000.0);
        assert_eq!(step(48_000.0), 10_000.0);
        assert_eq!(step(0.0), 1.0);
    }
}
