//! The messages: GitHub's webhooks as collected in the npm package `@octokit/webhooks-examples`, one per example.
//!
//! A message's id is its event's name and its position in the file, since five payloads repeat.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use flate2::read::GzDecoder;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde_json::{Value, json};

/// The header in which GitHub sends an id.
pub(super) const ID_HEADER: &str = "X-GitHub-Delivery";
const EVENT_HEADER: &str = "X-GitHub-Event";

/// One webhook.
#[derive(Debug)]
pub(super) struct Payload {
    /// Its event's name and its position, as `issues:131`.
    pub(super) id: String,
    /// The event's name.
    pub(super) event: String,
    /// What GitHub sent.
    pub(super) body: Value,
}

/// Reads the package's file, compressed with gzip.
pub(super) fn read(file: &Path) -> anyhow::Result<Vec<Payload>> {
    let shown = || format!("cannot read `{}`", file.display());
    let reader = GzDecoder::new(File::open(file).with_context(shown)?);
    let index: Value =
        serde_json::from_reader(std::io::BufReader::new(reader)).with_context(shown)?;
    parse(index).with_context(shown)
}

/// Returns the examples of all events in the file's order.
fn parse(index: Value) -> anyhow::Result<Vec<Payload>> {
    let Value::Array(events) = index else {
        anyhow::bail!("it is not a list of events");
    };
    let mut payloads = Vec::new();
    for mut entry in events {
        let Some(event) = entry["name"].as_str().map(str::to_owned) else {
            anyhow::bail!("an event has no `name`");
        };
        let Value::Array(examples) = entry["examples"].take() else {
            anyhow::bail!("the event `{event}` has no `examples`");
        };
        for body in examples {
            payloads.push(Payload {
                id: format!("{event}:{}", payloads.len()),
                event: event.clone(),
                body,
            });
        }
    }
    Ok(payloads)
}

/// Where a message says its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdPlace {
    /// In the envelope, for `hapax send` to put where the source keeps ids.
    Envelope,
    /// Only in the header that GitHub uses, which a broker takes for one like any other.
    Header,
}

/// Returns every payload `times` times as a line for `hapax send --envelope`, in the order that `seed` gives.
pub(super) fn shuffled_lines(
    payloads: &[Payload],
    times: usize,
    seed: u64,
    place: IdPlace,
) -> String {
    let mut order: Vec<usize> = (0..payloads.len() * times).collect();
    order.shuffle(&mut StdRng::seed_from_u64(seed));
    let mut lines = String::new();
    for index in order {
        lines.push_str(&envelope(&payloads[index % payloads.len()], place));
        lines.push('\n');
    }
    lines
}

fn envelope(payload: &Payload, place: IdPlace) -> String {
    let mut line = json!({
        "subject": format!("github.{}", payload.event),
        "headers": { EVENT_HEADER: payload.event },
        "payload": payload.body,
    });
    match place {
        IdPlace::Envelope => line["id"] = Value::from(&*payload.id),
        IdPlace::Header => line["headers"][ID_HEADER] = Value::from(&*payload.id),
    }
    line.to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn three() -> Vec<Payload> {
        parse(json!([
            {"name": "star", "examples": [{"action": "created"}, {"action": "deleted"}]},
            {"name": "ping", "examples": [{"zen": "line\nbreak"}]},
        ]))
        .unwrap()
    }

    #[test]
    fn positions_count_over_all_events() {
        let ids: Vec<_> = three().into_iter().map(|payload| payload.id).collect();
        assert_eq!(ids, ["star:0", "star:1", "ping:2"]);
    }

    #[test]
    fn every_message_is_sent_as_often_and_on_one_line() {
        let lines = shuffled_lines(&three(), 3, 1, IdPlace::Envelope);
        let mut seen: HashMap<String, usize> = HashMap::new();
        for line in lines.lines() {
            let message: Value = serde_json::from_str(line).unwrap();
            assert_eq!(
                message["subject"],
                format!(
                    "github.{}",
                    message["headers"]["X-GitHub-Event"].as_str().unwrap()
                )
            );
            *seen
                .entry(message["id"].as_str().unwrap().to_owned())
                .or_default() += 1;
        }
        assert_eq!(seen.len(), 3);
        assert!(seen.values().all(|&count| count == 3));
    }

    #[test]
    fn the_seed_decides_the_order() {
        let lines = |seed| shuffled_lines(&three(), 20, seed, IdPlace::Envelope);
        assert_eq!(lines(7), lines(7));
        assert_ne!(lines(7), lines(8));
    }

    #[test]
    fn an_id_in_the_header_is_nowhere_else() {
        let lines = shuffled_lines(&three(), 1, 1, IdPlace::Header);
        for line in lines.lines() {
            let message: Value = serde_json::from_str(line).unwrap();
            assert!(message.get("id").is_none());
            assert!(message["headers"][ID_HEADER].is_string());
        }
    }

    #[test]
    fn a_file_of_another_shape_is_refused() {
        assert!(parse(json!({})).is_err());
        assert!(parse(json!([{"examples": []}])).is_err());
        assert!(parse(json!([{"name": "star"}])).is_err());
    }
}
