//! One message at a time: from its publication to its acknowledgement, as the broker's clients see both.
//!
//! **Invariant**: both sides are watched in the same way, from outside: what each says of itself does not count.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use async_nats::HeaderMap;
use async_nats::jetstream::{self, stream};
use futures_util::StreamExt as _;
use rustix::process::Signal;

use super::figures::Samples;
use super::messages::Messages;
use super::scenario::Scenario;
use super::{Bench, SOURCE, Sent, database, hapax};
use crate::process::Daemon;

/// So many messages are sent by each side, and the first of them do not count.
const MESSAGES: u32 = 500;
const WARM: usize = 50;
/// How long a message may take; the first one waits for its side to start.
const LIMIT: Duration = Duration::from_secs(60);

/// Measures hapax and the consumer written by hand, in this order or the other one.
pub(super) fn measure(
    bench: &Bench<'_>,
    name: &str,
    scenario: &Scenario,
    hapax_first: bool,
) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    for of_hapax in [hapax_first, !hapax_first] {
        let run = format!("{name}_{}", if of_hapax { "h" } else { "a1" });
        let sent = Sent::unsent(&run, MESSAGES, scenario.load, bench.seed);
        let times = if of_hapax {
            by_hapax(bench, &run, scenario, &sent)?
        } else {
            by_hand(bench, &run, scenario, &sent)?
        };
        let prefix = if of_hapax { "" } else { "baseline_" };
        let (p50, p99) = (at(&times, 0.5), at(&times, 0.99));
        eprintln!(
            "    {run}: p50 {p50:.2} ms, p99 {p99:.2} ms from publication to acknowledgement"
        );
        samples.add(format!("{prefix}p50_ms"), p50);
        samples.add(format!("{prefix}p99_ms"), p99);
        samples.add(format!("{prefix}msgs_per_s"), 1000.0 / p50);
    }
    if let (Some(own), Some(theirs)) = (samples.last("p50_ms"), samples.last("baseline_p50_ms")) {
        samples.add("ratio", own / theirs);
    }
    Ok(samples)
}

fn by_hapax(
    bench: &Bench<'_>,
    name: &str,
    scenario: &Scenario,
    sent: &Sent,
) -> anyhow::Result<Vec<f64>> {
    let database = bench.databases.create(scenario.place.store(), name)?;
    let config = hapax::configuration(bench, name, database, scenario, sent)?;
    let mut command = Command::new(&bench.programs.hapax);
    command.args(["run", "--config"]).arg(config);
    let times = times(bench, name, sent, command)?;
    let run = database.read("hapax.processed_messages", "accounts")?;
    sent.check(&run, sent.messages.count(), &[])?;
    Ok(times)
}

fn by_hand(
    bench: &Bench<'_>,
    name: &str,
    scenario: &Scenario,
    sent: &Sent,
) -> anyhow::Result<Vec<f64>> {
    let kind = scenario.place.store();
    let database = bench.databases.create(kind, name)?;
    database.run(&database::accounts("accounts", sent.messages.accounts()))?;
    database.run(database::by_hand(kind))?;
    let mut command = Command::new(&bench.programs.plain);
    command
        .args(["--database", &database.url(), "--broker", bench.broker])
        .args(["--stream", &sent.stream, "--durable", name])
        .args(["--at-once", "1"])
        .args(["--messages", &sent.messages.count().to_string()]);
    let times = times(bench, name, sent, command)?;
    let run = database.read("processed_messages", "accounts")?;
    sent.check(&run, sent.messages.count(), &[])?;
    Ok(times)
}

/// Starts one side, and publishes each message when the one before was acknowledged. Returns the sorted times in milliseconds.
fn times(
    bench: &Bench<'_>,
    name: &str,
    sent: &Sent,
    mut command: Command,
) -> anyhow::Result<Vec<f64>> {
    let subject = format!("{SOURCE}.{}", sent.stream);
    let mut times = bench
        .runtime
        .block_on(async {
            let client = async_nats::connect(bench.broker).await?;
            jetstream::new(client.clone())
                .create_stream(stream::Config {
                    name: sent.stream.clone(),
                    subjects: vec![subject.clone()],
                    ..Default::default()
                })
                .await?;
            let mut answers = client.subscribe("$JS.ACK.>").await?;
            client.flush().await?;
            let side = Daemon::start(
                name,
                &mut command,
                bench.folder.join(format!("{name}.log")),
                Signal::TERM,
            )?;
            let mut times = Vec::new();
            for (number, payload) in sent.messages.payloads().enumerate() {
                let mut headers = HeaderMap::new();
                headers.insert("Nats-Msg-Id", Messages::id(number));
                let begun = Instant::now();
                client
                    .publish_with_headers(subject.clone(), headers, payload.into())
                    .await?;
                client.flush().await?;
                let acknowledged = async {
                    // A sign of progress is an answer, too. The broker takes an empty one for an acknowledgement.
                    while let Some(answer) = answers.next().await {
                        if (answer.payload.is_empty() || answer.payload.starts_with(b"+ACK"))
                            && answer.subject.contains(&format!(".{}.", sent.stream))
                        {
                            return Ok(());
                        }
                    }
                    anyhow::bail!("the broker's connection ended")
                };
                tokio::time::timeout(LIMIT, acknowledged)
                    .await
                    .map_err(|_| {
                        side.failed(format_args!("acknowledged no message in {LIMIT:?}"))
                    })??;
                if number >= WARM {
                    times.push(begun.elapsed().as_secs_f64() * 1000.0);
                }
            }
            Ok::<_, anyhow::Error>(times)
        })
        .with_context(|| format!("{name}: one message at a time"))?;
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn at(sorted: &[f64], quantile: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((last as f64 * quantile).round() as usize)
        .copied()
        .unwrap_or_default()
}
