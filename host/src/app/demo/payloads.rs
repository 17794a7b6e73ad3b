//! The messages: GitHub's webhooks as collected in the npm package `@octokit/webhooks-examples`, one per example.
//!
//! A message's id is its event's name and its position in the file, since five payloads repeat. `cargo xtask demo --full` compiles
//! this file too.

use anyhow::{Context as _, bail};
use flate2::read::GzDecoder;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde_json::{Value, json};

/// The header in which GitHub names the event.
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
pub(super) fn read(file: &[u8]) -> anyhow::Result<Vec<Payload>> {
    let index = serde_json::from_reader(std::io::BufReader::new(GzDecoder::new(file)))
        .context("it is not JSON compressed with gzip")?;
    parse(index)
}

/// Returns the examples of all events in the file's order.
fn parse(index: Value) -> anyhow::Result<Vec<Payload>> {
    let Value::Array(events) = index else {
        bail!("it is not a list of events");
    };
    let mut payloads = Vec::new();
    for mut entry in events {
        let Some(event) = entry["name"].as_str().map(str::to_owned) else {
            bail!("an event has no `name`");
        };
        let Value::Array(examples) = entry["examples"].take() else {
            bail!("the event `{event}` has no `examples`");
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

impl Payload {
    /// Returns it as a line for `hapax send --envelope`, without the line's end.
    pub(super) fn envelope(&self) -> Value {
        json!({
            "id": self.id,
            "subject": format!("github.{}", self.event),
            "headers": { EVENT_HEADER: self.event },
            "payload": self.body,
        })
    }
}

/// Returns the positions of `count` payloads, each `times` times, in the order that `seed` gives.
pub(super) fn shuffled(count: usize, times: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count * times).map(|number| number % count).collect();
    order.shuffle(&mut StdRng::seed_from_u64(seed));
    order
}

#[cfg(test)]
mod tests {
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
    fn an_envelope_is_one_line_with_its_id_and_event() {
        let envelope = three()[2].envelope();
        assert_eq!(
            envelope,
            json!({
                "id": "ping:2",
                "subject": "github.ping",
                "headers": {"X-GitHub-Event": "ping"},
                "payload": {"zen": "line\nbreak"},
            })
        );
        assert!(!envelope.to_string().contains('\n'));
    }

    #[test]
    fn every_message_is_there_as_often() {
        let mut order = shuffled(329, 3, 1);
        assert_eq!(order.len(), 987);
        order.sort_unstable();
        assert!(order.iter().enumerate().all(|(at, index)| at / 3 == *index));
    }

    #[test]
    fn the_seed_decides_the_order() {
        assert_eq!(shuffled(20, 3, 7), shuffled(20, 3, 7));
        assert_ne!(shuffled(20, 3, 7), shuffled(20, 3, 8));
    }

    #[test]
    fn a_file_of_another_shape_is_refused() {
        assert!(parse(json!({})).is_err());
        assert!(parse(json!([{"examples": []}])).is_err());
        assert!(parse(json!([{"name": "star"}])).is_err());
        assert!(read(b"no gzip").is_err());
    }
}
