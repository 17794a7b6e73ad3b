//! Which traces are recorded.

use opentelemetry::trace::{Link, SpanKind, TraceContextExt as _, TraceId, TraceState};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Config, Sampler, SamplingDecision, SamplingResult, ShouldSample};

/// A span that begins a trace and links to others is recorded if one of those is; about all others `others` decides.
#[derive(Clone, Debug)]
pub(super) struct ByLinks {
    others: Box<dyn ShouldSample>,
}

impl ByLinks {
    /// Records the part `sample` of what brings no decision, and follows decisions. Without it the variables
    /// `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` decide, and without those all is recorded that is not decided otherwise.
    pub(super) fn new(sample: Option<f64>) -> Self {
        Self {
            others: match sample {
                Some(part) => Box::new(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(
                    part,
                )))),
                // Reads the variables.
                None => Config::default().sampler,
            },
        }
    }
}

impl ShouldSample for ByLinks {
    fn should_sample(
        &self,
        parent_context: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        span_kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let has_parent =
            parent_context.is_some_and(|context| context.span().span_context().is_valid());
        if !has_parent && links.iter().any(|link| link.span_context.is_sampled()) {
            return SamplingResult {
                decision: SamplingDecision::RecordAndSample,
                attributes: Vec::new(),
                trace_state: TraceState::default(),
            };
        }
        self.others
            .should_sample(parent_context, trace_id, name, span_kind, attributes, links)
    }
}
