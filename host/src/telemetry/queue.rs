//! Spans on their way to the collector: a bounded queue, and what did not get through it.
//!
//! **Invariant**: whoever ends a span never waits: a span that finds no room is dropped, and counted.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, OTEL_BSP_MAX_QUEUE_SIZE, Span, SpanData, SpanExporter,
    SpanProcessor,
};

use super::variable;
use crate::metrics;

/// How many spans wait at the most, unless `OTEL_BSP_MAX_QUEUE_SIZE` says it: a batch of many messages leaves several of each at once.
const WAITING_MAX_DEFAULT: usize = 8_192;

/// What is known of the queue and the collector.
#[derive(Debug)]
pub(super) struct Board {
    waiting: AtomicUsize,
    waiting_max: usize,
    was_full: AtomicBool,
    is_failing: AtomicBool,
    /// Why the last request failed.
    why: Mutex<String>,
}

impl Board {
    pub(super) fn from_environment() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            waiting_max: variable(OTEL_BSP_MAX_QUEUE_SIZE)
                .and_then(|number| number.parse().ok())
                .filter(|number| *number > 0)
                .unwrap_or(WAITING_MAX_DEFAULT),
            was_full: AtomicBool::new(false),
            is_failing: AtomicBool::new(false),
            why: Mutex::default(),
        }
    }

    /// Notes why a request failed.
    pub(super) fn failed(&self, why: String) {
        // Nothing panics with the lock held, and each change is whole.
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn why(&self) -> String {
        self.why
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// True if there is room for one span, which is taken.
    fn takes(&self) -> bool {
        let before = self.waiting.fetch_add(1, Ordering::AcqRel);
        if before < self.waiting_max {
            return true;
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        metrics::spans_dropped(metrics::SpansDropped::QueueFull, 1);
        // Once: the metric has the rest.
        if !self.was_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                queue = self.waiting_max,
                hint = "lower `telemetry.sample`, or raise `OTEL_BSP_MAX_QUEUE_SIZE`",
                "spans come faster than the collector takes them: some are dropped, and no message waits"
            );
        }
        false
    }

    fn leave(&self, spans: usize) {
        self.waiting.fetch_sub(spans, Ordering::AcqRel);
    }

    fn sent(&self, spans: usize, result: &OTelSdkResult) {
        let Err(error) = result else {
            metrics::spans_sent(spans);
            if self.is_failing.swap(false, Ordering::Relaxed) {
                tracing::info!("the collector takes traces again");
            }
            return;
        };
        metrics::spans_dropped(metrics::SpansDropped::Collector, spans);
        // Once for each time that it is away.
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %error,
                why = %crate::text::one_line(&self.why()),
                "the collector does not take traces: they are dropped until it does, and messages go on"
            );
        }
    }
}

/// The library's queue, which drops what finds no room without saying how much; so what waits is counted in front of it and behind it.
#[derive(Debug)]
pub(super) struct Bounded {
    queue: BatchSpanProcessor,
    board: Arc<Board>,
}

impl Bounded {
    /// Has `exporter` send what ends, from a thread of its own.
    pub(super) fn new(exporter: impl SpanExporter + 'static, board: Arc<Board>) -> Self {
        let exporter = Reporting {
            exporter,
            board: Arc::clone(&board),
        };
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(board.waiting_max)
            .build();
        Self {
            queue: BatchSpanProcessor::builder(exporter)
                .with_batch_config(config)
                .build(),
            board,
        }
    }
}

impl SpanProcessor for Bounded {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.board.takes() {
            self.queue.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.queue.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.queue.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.queue.set_resource(resource);
    }
}

#[derive(Debug)]
struct Reporting<E> {
    exporter: E,
    board: Arc<Board>,
}

impl<E: SpanExporter> SpanExporter for Reporting<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.board.leave(spans);
        let result = self.exporter.export(batch).await;
        self.board.sent(spans, &result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
