//! What a host measures: the name of every metric, in one place. `docs/metrics.md` says what each means.
//!
//! **Invariant**: labels are names of the configuration, digests and closed sets of words; nothing out of a message, which could
//! make any number of them.

mod gauges;

use std::time::{Duration, Instant};

pub(crate) use gauges::{Asked, InFlight, InHand, OpenSession, claims_asked, measure_process};
use metrics::{Counter, Gauge, Histogram, Unit, counter, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use crate::message::{ComponentDigest, FailureClass};

const PROCESSED: &str = "hapax_messages_processed_total";
const DUPLICATES: &str = "hapax_messages_duplicate_total";
const RETRIED: &str = "hapax_messages_retried_total";
const DEAD: &str = "hapax_messages_dead_total";
const ROLLED_BACK: &str = "hapax_batches_rolled_back_total";
const PROMISES: &str = "hapax_statements_ahead_total";
const EARLY: &str = "hapax_early_runs_total";
const LIMITS: &str = "hapax_limits_met_total";
const BATCH: &str = "hapax_batch_messages";
const STAGES: &str = "hapax_stage_duration_seconds";
const ANSWERED: &str = "hapax_message_duration_seconds";
const CPU: &str = "hapax_handler_cpu_seconds";
const MEMORY: &str = "hapax_handler_memory_bytes";
const COMPONENT: &str = "hapax_component_info";
const IN_FLIGHT: &str = "hapax_messages_in_flight";
const BACKLOG: &str = "hapax_backlog_messages";
const OLDEST: &str = "hapax_oldest_pending_seconds";
const DEAD_LETTERS: &str = "hapax_dead_letters";
const UNPUBLISHED: &str = "hapax_outbox_unpublished_messages";
const PARKED: &str = "hapax_outbox_parked_messages";
const OUTBOX_OLDEST: &str = "hapax_outbox_oldest_seconds";
const SESSIONS: &str = "hapax_database_sessions";
const CLAIMS_ROWS: &str = "hapax_claims";
const CLAIMS_BYTES: &str = "hapax_claims_bytes";
const BUILD: &str = "hapax_build_info";

const PROCESS_CPU: &str = "process_cpu_seconds_total";
const PROCESS_MEMORY: &str = "process_resident_memory_bytes";
const PROCESS_FILES: &str = "process_open_fds";
const SPANS_SENT: &str = "hapax_trace_spans_sent_total";
const SPANS_DROPPED: &str = "hapax_trace_spans_dropped_total";

/// What a metric is.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Counter,
    Gauge,
    /// The upper bounds of its buckets.
    Histogram(&'static [f64]),
}

const SECONDS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];
/// Close enough to read a percentile off.
const SECONDS_FINE: &[f64] = &[
    0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.000_7, 0.001, 0.001_5, 0.002, 0.003, 0.004, 0.005, 0.007,
    0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 5.0, 10.0,
    60.0,
];
const MESSAGES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
const BYTES: &[f64] = &[
    1_048_576.0,
    2_097_152.0,
    4_194_304.0,
    8_388_608.0,
    16_777_216.0,
    33_554_432.0,
    67_108_864.0,
    134_217_728.0,
    268_435_456.0,
    1_073_741_824.0,
];

/// Every metric: its name, what it is, its unit, and what it says.
const ALL: &[(&str, Kind, Unit, &str)] = &[
    (
        PROCESSED,
        Kind::Counter,
        Unit::Count,
        "messages that took effect",
    ),
    (
        DUPLICATES,
        Kind::Counter,
        Unit::Count,
        "deliveries of messages that were claimed before",
    ),
    (
        RETRIED,
        Kind::Counter,
        Unit::Count,
        "failed runs of messages that run again, by reason class",
    ),
    (
        DEAD,
        Kind::Counter,
        Unit::Count,
        "messages that were given up on, by reason class",
    ),
    (
        ROLLED_BACK,
        Kind::Counter,
        Unit::Count,
        "transactions of which nothing stayed",
    ),
    (
        PROMISES,
        Kind::Counter,
        Unit::Count,
        "statements that were answered ahead of the database, by what became of the answer",
    ),
    (
        EARLY,
        Kind::Counter,
        Unit::Count,
        "calls of handlers before their transaction had begun, by whether it took them over",
    ),
    (
        LIMITS,
        Kind::Counter,
        Unit::Count,
        "calls that met a limit of theirs, by limit",
    ),
    (
        BATCH,
        Kind::Histogram(MESSAGES),
        Unit::Count,
        "messages of a committed transaction",
    ),
    (
        STAGES,
        Kind::Histogram(SECONDS),
        Unit::Seconds,
        "duration of a stage of a committed transaction",
    ),
    (
        ANSWERED,
        Kind::Histogram(SECONDS_FINE),
        Unit::Seconds,
        "from the delivery of a message to this host until its acknowledgement was on its way",
    ),
    (
        CPU,
        Kind::Histogram(SECONDS),
        Unit::Seconds,
        "processor time of a call",
    ),
    (
        MEMORY,
        Kind::Histogram(BYTES),
        Unit::Bytes,
        "linear memory of a call at its end",
    ),
    (
        COMPONENT,
        Kind::Gauge,
        Unit::Count,
        "1 for the component that a handler runs, by its digest",
    ),
    (
        IN_FLIGHT,
        Kind::Gauge,
        Unit::Count,
        "messages that this host has in hand: delivered to it and not answered yet",
    ),
    (
        BACKLOG,
        Kind::Gauge,
        Unit::Count,
        "messages that wait in the source or are carried by hapax, on all hosts together",
    ),
    (
        OLDEST,
        Kind::Gauge,
        Unit::Seconds,
        "since when the oldest of them waits; 0 if there is none",
    ),
    (
        DEAD_LETTERS,
        Kind::Gauge,
        Unit::Count,
        "dead letters of the consumer that are in the store",
    ),
    (
        UNPUBLISHED,
        Kind::Gauge,
        Unit::Count,
        "what the handler published and has not left",
    ),
    (
        PARKED,
        Kind::Gauge,
        Unit::Count,
        "what the handler published and was given up on",
    ),
    (
        OUTBOX_OLDEST,
        Kind::Gauge,
        Unit::Seconds,
        "for how long the oldest published message should have left; 0 if there is none",
    ),
    (
        SESSIONS,
        Kind::Gauge,
        Unit::Count,
        "sessions that this host has open with the database, by what they are for",
    ),
    (
        CLAIMS_ROWS,
        Kind::Gauge,
        Unit::Count,
        "claims of all consumers; of a large table an estimate",
    ),
    (
        CLAIMS_BYTES,
        Kind::Gauge,
        Unit::Bytes,
        "size of the claims table with its indexes",
    ),
    (
        BUILD,
        Kind::Gauge,
        Unit::Count,
        "1 for the version of hapax that runs",
    ),
    (
        PROCESS_CPU,
        Kind::Counter,
        Unit::Count,
        "processor time of the process, in whole seconds",
    ),
    (
        PROCESS_MEMORY,
        Kind::Gauge,
        Unit::Bytes,
        "resident memory of the process",
    ),
    (
        PROCESS_FILES,
        Kind::Gauge,
        Unit::Count,
        "files and connections that the process has open",
    ),
    (
        SPANS_SENT,
        Kind::Counter,
        Unit::Count,
        "spans that the collector took",
    ),
    (
        SPANS_DROPPED,
        Kind::Counter,
        Unit::Count,
        "spans that were not sent, by reason",
    ),
];

/// Returns the name of every metric.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, ..)| *name)
}

/// Has this process measure. Call it once, before any handler is made.
///
/// # Errors
/// It measures already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for (name, kind, ..) in ALL {
        if let Kind::Histogram(bounds) = kind {
            builder = builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), bounds)?;
        }
    }
    let handle = builder.install_recorder()?;
    for (name, kind, unit, text) in ALL {
        match kind {
            Kind::Counter => metrics::describe_counter!(*name, *unit, *text),
            Kind::Gauge => metrics::describe_gauge!(*name, *unit, *text),
            Kind::Histogram(_) => metrics::describe_histogram!(*name, *unit, *text),
        }
    }
    gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    // There from the start, so that the first one is an increase.
    spans_sent(0);
    for reason in [SpansDropped::QueueFull, SpansDropped::Collector] {
        spans_dropped(reason, 0);
    }
    Ok(handle)
}

/// Why spans were not sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SpansDropped {
    /// They found no room where they wait.
    QueueFull,
    /// The collector could not be reached, or refused them.
    Collector,
}

/// Counts spans that the collector took.
pub(crate) fn spans_sent(spans: usize) {
    counter!(SPANS_SENT).increment(spans as u64);
}

/// Counts spans that were not sent.
pub(crate) fn spans_dropped(reason: SpansDropped, spans: usize) {
    let reason = match reason {
        SpansDropped::QueueFull => "queue-full",
        SpansDropped::Collector => "collector",
    };
    counter!(SPANS_DROPPED, "reason" => reason).increment(spans as u64);
}

/// Counts a call that met `limit`, as `hapax_limits_met_total` names it.
pub(crate) fn limit_met(handler: &str, limit: &str) {
    counter!(LIMITS, "handler" => handler.to_owned(), "limit" => limit.to_owned()).increment(1);
}

/// A part of a transaction's way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// Waiting for the turn, and BEGIN.
    Begin,
    /// Taking rows of a queue, looking after the order, and claiming.
    Claim,
    /// All calls of the handler.
    Handle,
    /// What the host writes, and COMMIT.
    Commit,
    /// Answering the source.
    Ack,
}

impl Stage {
    const ALL: [Self; 5] = [
        Self::Begin,
        Self::Claim,
        Self::Handle,
        Self::Commit,
        Self::Ack,
    ];

    /// Returns its name, in metrics and in traces.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Claim => "claim",
            Self::Handle => "handle",
            Self::Commit => "commit",
            Self::Ack => "ack",
        }
    }
}

/// What one handler measures. Where nothing is installed it does nothing.
pub(crate) struct HandlerMetrics {
    handler: String,
    processed: Counter,
    duplicates: Counter,
    rolled_back: Counter,
    /// Answers given ahead: all, those that held, those that did not.
    promises: [Counter; 3],
    /// Early runs: those that a transaction took over, those that came to nothing.
    early: [Counter; 2],
    batch: Histogram,
    stages: [Histogram; 5],
    cpu: Histogram,
    memory: Histogram,
}

impl HandlerMetrics {
    pub(crate) fn new(handler: &str, component: ComponentDigest) -> Self {
        let name = || handler.to_owned();
        let info: Gauge = gauge!(COMPONENT, "handler" => name(), "digest" => component.to_string());
        info.set(1.0);
        let stage = |stage: &'static str| histogram!(STAGES, "handler" => name(), "stage" => stage);
        Self {
            processed: counter!(PROCESSED, "handler" => name()),
            duplicates: counter!(DUPLICATES, "handler" => name()),
            rolled_back: counter!(ROLLED_BACK, "handler" => name()),
            promises: ["promised", "kept", "broken"]
                .map(|end| counter!(PROMISES, "handler" => name(), "end" => end)),
            early: ["used", "unused"].map(|end| counter!(EARLY, "handler" => name(), "end" => end)),
            batch: histogram!(BATCH, "handler" => name()),
            // In the order of `Stage`.
            stages: Stage::ALL.map(|part| stage(part.as_str())),
            cpu: histogram!(CPU, "handler" => name()),
            memory: histogram!(MEMORY, "handler" => name()),
            handler: name(),
        }
    }

    /// Another component runs from now on. A series that is there stays, so the one before becomes 0.
    pub(crate) fn component(&self, before: ComponentDigest, now: ComponentDigest) {
        let gauge = |digest: ComponentDigest| -> Gauge {
            gauge!(COMPONENT, "handler" => self.handler.clone(), "digest" => digest.to_string())
        };
        gauge(before).set(0.0);
        gauge(now).set(1.0);
    }

    /// The handler runs no more.
    pub(crate) fn stopped(&self, component: ComponentDigest) {
        gauge!(COMPONENT, "handler" => self.handler.clone(), "digest" => component.to_string())
            .set(0.0);
    }

    pub(crate) fn settled(&self, processed: u64, duplicates: u64) {
        self.processed.increment(processed);
        self.duplicates.increment(duplicates);
    }

    pub(crate) fn committed(&self, messages: usize) {
        self.batch.record(messages as f64);
    }

    pub(crate) fn rolled_back(&self) {
        self.rolled_back.increment(1);
    }

    pub(crate) fn promises(&self, promised: u64, kept: u64, broken: u64) {
        for (counter, more) in self.promises.iter().zip([promised, kept, broken]) {
            counter.increment(more);
        }
    }

    pub(crate) fn early_runs(&self, used: usize, unused: usize) {
        for (counter, more) in self.early.iter().zip([used, unused]) {
            counter.increment(more as u64);
        }
    }

    pub(crate) fn called(&self, cpu: Duration, memory_bytes: usize) {
        self.cpu.record(cpu);
        self.memory.record(memory_bytes as f64);
    }

    pub(crate) fn retried(&self, class: FailureClass) {
        counter!(RETRIED, "handler" => self.handler.clone(), "class" => class.as_str())
            .increment(1);
    }

    pub(crate) fn dead(&self, class: FailureClass, messages: u64) {
        if messages > 0 {
            counter!(DEAD, "handler" => self.handler.clone(), "class" => class.as_str())
                .increment(messages);
        }
    }

    fn stage(&self, stage: Stage, took: Duration) {
        self.stages[stage as usize].record(took);
    }
}

impl std::fmt::Debug for HandlerMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandlerMetrics")
            .field("handler", &self.handler)
            .finish_non_exhaustive()
    }
}

/// The stages of one transaction, one behind the other; told once it is committed.
#[derive(Debug)]
pub(crate) struct Stages {
    since: Instant,
    took: Vec<(Stage, Duration)>,
}

impl Stages {
    pub(crate) fn begin() -> Self {
        Self {
            since: Instant::now(),
            took: Vec::with_capacity(5),
        }
    }

    /// `stage` ends here.
    pub(crate) fn ends(&mut self, stage: Stage) {
        let now = Instant::now();
        self.took.push((stage, now - self.since));
        self.since = now;
    }

    /// All of them have ended.
    pub(crate) fn tell(self, metrics: &HandlerMetrics) {
        for (stage, took) in self.took {
            metrics.stage(stage, took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_prometheus_and_stand_once() {
        let mut seen = std::collections::BTreeSet::new();
        for (name, kind, unit, _) in ALL {
            assert!(seen.insert(name), "{name}");
            assert_eq!(
                name.ends_with("_total"),
                matches!(kind, Kind::Counter),
                "{name}"
            );
            match unit {
                Unit::Seconds => assert!(name.ends_with("_seconds"), "{name}"),
                Unit::Bytes => assert!(name.ends_with("_bytes"), "{name}"),
                _ => {}
            }
        }
    }
}
