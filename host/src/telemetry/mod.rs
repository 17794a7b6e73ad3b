//! Traces: spans of what happens to messages, sent to a collector by OTLP.
//!
//! **Invariant**: nothing here waits for the collector but the last flush, which is bounded: a collector that is away or slow costs spans,
//! never messages.
//! **Invariant**: where nothing is installed there is no tracer, and nobody makes a span.

mod collector;
pub(crate) mod context;
mod queue;
mod sampler;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{InstrumentationScope, Key, KeyValue};
use opentelemetry_otlp::{
    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use collector::Collector;
use queue::{Board, Bounded};
use sampler::ByLinks;

/// How long the last spans may take to leave when the host ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// What a collector's address lacks (OTLP specification, "OTLP/HTTP Request").
const TRACES_PATH: &str = "/v1/traces";
/// The service's name if nobody gives one.
const SERVICE_NAME: &str = "hapax";
/// What hapax speaks.
const PROTOCOL: &str = "http/protobuf";

static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// Returns what makes spans, if traces are on.
pub(crate) fn tracer() -> Option<&'static SdkTracer> {
    TRACER.get()
}

/// Where traces go, and which. What is absent is left to OpenTelemetry's own variables.
#[derive(Clone, Default)]
pub struct Settings {
    /// The collector's address, without the path of traces.
    pub otlp: Option<String>,
    /// What this service is called.
    pub service_name: Option<String>,
    /// Which part of the messages is traced that bring no decision, from 0 to 1.
    pub sample: Option<f64>,
    /// What goes with each request. The values may be secrets.
    pub headers: Vec<(String, String)>,
    /// The name of this machine.
    pub machine: String,
}

/// Why traces can't be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct TelemetryError {
    /// What is wrong, in one sentence.
    pub problem: String,
    /// What to do.
    pub hint: String,
}

/// Traces that are on. Flush it at the end.
#[derive(Debug)]
pub struct Telemetry(SdkTracerProvider);

/// Has this process send traces. `None` if nobody named a collector. Call it once, inside a runtime, before any handler runs.
///
/// # Errors
/// What is configured can't be: an address or a header that is none, or a process that sends traces already.
pub fn install(settings: &Settings) -> Result<Option<Telemetry>, TelemetryError> {
    if is_off(settings) {
        return Ok(None);
    }
    let board = Arc::new(Board::from_environment());
    let collector = Collector::new(
        address(settings).is_some_and(|address| address.starts_with("https:")),
        checked_headers(&settings.headers)?,
        Arc::clone(&board),
    )?;
    let mut exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(collector);
    if let Some(otlp) = &settings.otlp {
        let path = if otlp.ends_with(TRACES_PATH) {
            ""
        } else {
            TRACES_PATH
        };
        exporter = exporter.with_endpoint(format!("{otlp}{path}"));
    }
    let exporter = exporter.build().map_err(|error| TelemetryError {
        problem: format!("traces cannot be sent: {error}"),
        hint: format!("correct `telemetry.otlp`, or the variable `{OTEL_EXPORTER_OTLP_ENDPOINT}`"),
    })?;
    let provider = SdkTracerProvider::builder()
        .with_resource(resource(settings))
        .with_sampler(ByLinks::new(settings.sample))
        .with_span_processor(Bounded::new(exporter, board))
        .build();
    let scope = InstrumentationScope::builder("hapax")
        .with_version(env!("CARGO_PKG_VERSION"))
        .build();
    TRACER
        .set(provider.tracer_with_scope(scope))
        .map_err(|_| TelemetryError {
            problem: "traces are sent already".into(),
            hint: "a process runs hapax once; report this as a bug".into(),
        })?;
    Ok(Some(Telemetry(provider)))
}

impl Telemetry {
    /// Sends what is left, for two seconds at the most; makes no spans any more. What is not sent by then is lost.
    pub async fn flush(self) {
        let provider = self.0;
        // It waits for the thread that sends.
        let flushed =
            tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_TIMEOUT));
        match flushed.await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => tracing::warn!(
                "the collector did not take the last traces in time; they are lost, and no message is"
            ),
            Err(error) => tracing::warn!(%error, "the last traces were not sent"),
        }
    }
}

/// True if no collector is named, or traces are turned off. Says so where somebody may expect them.
fn is_off(settings: &Settings) -> bool {
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || variable("OTEL_TRACES_EXPORTER").is_some_and(|value| value.trim() == "none")
    {
        return true;
    }
    if settings.otlp.is_some() {
        return false;
    }
    if address(settings).is_none() {
        if settings.service_name.is_some() || settings.sample.is_some() {
            tracing::warn!(
                "no traces are sent: neither `telemetry.otlp` nor the variable `{OTEL_EXPORTER_OTLP_ENDPOINT}` names a collector"
            );
        }
        return true;
    }
    let protocol = variable(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL)
        .or_else(|| variable(OTEL_EXPORTER_OTLP_PROTOCOL))
        .filter(|protocol| protocol.trim() != PROTOCOL);
    if let Some(protocol) = protocol {
        tracing::warn!(
            "no traces are sent: the environment asks for the protocol `{}`, and hapax speaks `{PROTOCOL}`; write `telemetry.otlp` \
             with the collector's address for it",
            crate::text::one_line(&protocol)
        );
        return true;
    }
    false
}

/// Returns the collector's address.
fn address(settings: &Settings) -> Option<String> {
    settings
        .otlp
        .clone()
        .or_else(|| variable(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT))
        .or_else(|| variable(OTEL_EXPORTER_OTLP_ENDPOINT))
}

/// Returns a variable of the environment that is not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn checked_headers(
    headers: &[(String, String)],
) -> Result<Vec<(HeaderName, HeaderValue)>, TelemetryError> {
    headers
        .iter()
        .map(|(name, value)| {
            let mut value = HeaderValue::from_str(value).map_err(|_| TelemetryError {
                // Without the value, which may be a secret.
                problem: format!("`telemetry.headers.{name}` holds what no header can hold"),
                hint: "write it in visible ASCII characters, on one line".into(),
            })?;
            value.set_sensitive(true);
            let name = name.parse::<HeaderName>().map_err(|error| TelemetryError {
                problem: format!("`telemetry.headers.{name}`: {error}"),
                hint: "write a header's name".into(),
            })?;
            Ok((name, value))
        })
        .collect()
}

/// Says who sends: by the configuration, else by the environment, else by what is known here.
fn resource(settings: &Settings) -> Resource {
    let found = Resource::builder().build();
    let is_named = found
        .get(&Key::from_static_str("service.name"))
        .is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let mut resource = Resource::builder();
    match &settings.service_name {
        Some(name) => resource = resource.with_service_name(name.clone()),
        None if !is_named => resource = resource.with_service_name(SERVICE_NAME),
        None => {}
    }
    let ours = [
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("host.name", settings.machine.clone()),
        KeyValue::new("process.pid", i64::from(std::process::id())),
    ];
    resource
        .with_attributes(
            ours.into_iter()
                .filter(|attribute| found.get(&attribute.key).is_none()),
        )
        .build()
}
