//! What is traced of publishing: a span for each try, caused by what the row names as its cause.
//!
//! The row leaves as it is: what receives it names the run that published it as its cause, as it would if nothing were traced here.

use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::Span;

use super::target::Target;
use crate::store::OutboxMessage;
use crate::telemetry::{self, context};
use crate::text::one_line;

/// The try to publish one row. Dropped without a word, it came to nothing, and nobody is to blame.
pub(super) struct PublishSpan(Option<Span>);

impl PublishSpan {
    /// The try begins. Only a row whose cause is recorded has a span.
    pub(super) fn begin(handler: &str, target: &Target, message: &OutboxMessage) -> Self {
        let Some(tracer) = telemetry::tracer() else {
            return Self(None);
        };
        let Some(cause) = context::incoming(&message.headers).filter(SpanContext::is_sampled)
        else {
            return Self(None);
        };
        let builder = SpanBuilder::from_name(format!("publish {}", target.name()))
            .with_kind(SpanKind::Producer);
        let mut span =
            tracer.build_with_context(builder, &Context::new().with_remote_span_context(cause));
        span.set_attributes([
            KeyValue::new("messaging.system", target.system()),
            KeyValue::new("messaging.operation.name", "publish"),
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("messaging.destination.name", message.subject.clone()),
            KeyValue::new("messaging.message.id", message.id.clone()),
            KeyValue::new("messaging.message.body.size", message.payload.len() as i64),
            KeyValue::new("hapax.handler", handler.to_owned()),
        ]);
        Self(Some(span))
    }

    /// The target has it.
    pub(super) fn published(self) {
        if let Some(mut span) = self.0 {
            span.set_attribute(KeyValue::new("hapax.published", true));
        }
    }

    /// The target did not take it.
    pub(super) fn failed(self, why: &str) {
        if let Some(mut span) = self.0 {
            span.set_status(Status::error(one_line(why)));
        }
    }
}
