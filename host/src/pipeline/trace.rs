//! What is traced of a batch's run: a span for each message, in the trace of whoever published it, and one for the batch.
//!
//! A message's span, `process HANDLER`, begins when its source handed it over and ends when it is answered; within it are `fetch`
//! (what it waited in this host), `handle`, `commit` and `ack`. The batch's span, `batch HANDLER`, is a trace of its own that links to
//! its messages; within it are the stages of the transaction. A run that does not commit leaves spans that say so.
//!
//! **Invariant**: nothing here changes what happens to a message, and nothing here waits.
//! **Invariant**: where traces are off no clock is read and no span made.

use std::time::SystemTime;

use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, TraceId,
    Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};

use super::HandlerContext;
use super::policy::{Failure, Outcome};
use super::process::Member;
use super::told::RunTold;
use crate::handler::{Called, CalledBatch};
use crate::message::{ComponentDigest, Header, Message};
use crate::metrics::Stage;
use crate::source::{Delivery, SourceError};
use crate::store::{Claim, ClaimAs};
use crate::telemetry::{self, context};
use crate::text::one_line;

/// How many of a batch's messages its span links to (what the library keeps by default).
const LINKS_MAX: usize = 128;

/// Notes when deliveries came from their source.
pub(super) fn fetched(deliveries: &mut [Delivery]) {
    if telemetry::tracer().is_some() {
        let now = SystemTime::now();
        for delivery in deliveries {
            delivery.fetched_at = Some(now);
        }
    }
}

/// The trace of one run of a batch. Where it ends without `committed`, nothing of the run stayed.
pub(super) struct RunTrace<'a> {
    /// Absent where traces are off.
    spans: Option<Box<Run<'a>>>,
    /// Goes the same way, to whoever follows the messages one by one.
    told: RunTold<'a>,
}

struct Run<'a> {
    handler: &'a HandlerContext,
    tracer: &'static SdkTracer,
    /// The code that this run calls.
    digest: ComponentDigest,
    /// The end of the last stage.
    since: SystemTime,
    stages: Vec<(Stage, SystemTime, SystemTime)>,
    batch: Option<Span>,
    /// In the order of the batch.
    members: Vec<MemberTrace>,
    /// What happens to one member just now.
    step: Option<Span>,
    is_committed: bool,
}

#[derive(Default)]
struct MemberTrace {
    /// Absent if it is not recorded.
    span: Option<Span>,
    /// What its published messages name as their cause; absent where that is what it names itself.
    cause: Option<SpanContext>,
}

impl<'a> RunTrace<'a> {
    /// The run begins.
    pub(super) fn begin(handler: &'a HandlerContext) -> Self {
        let spans = telemetry::tracer().map(|tracer| {
            Box::new(Run {
                handler,
                tracer,
                digest: handler.digest(),
                since: SystemTime::now(),
                stages: Vec::new(),
                batch: None,
                members: Vec::new(),
                step: None,
                is_committed: false,
            })
        });
        Self {
            spans,
            told: RunTold::begin(handler),
        }
    }

    /// These messages are in it, and `digest` is what they are handled by.
    pub(super) fn has(&mut self, batch: &mut [Member], digest: ComponentDigest) {
        self.told.has(batch);
        if let Some(run) = &mut self.spans {
            run.digest = digest;
            run.has(batch);
        }
    }

    /// A stage ends here.
    pub(super) fn ends(&mut self, stage: Stage) {
        if let Some(run) = &mut self.spans {
            let now = SystemTime::now();
            run.stages.push((stage, run.since, now));
            run.since = now;
        }
    }

    /// The member at `index` was claimed like this.
    pub(super) fn claimed(&mut self, index: usize, claim: &Claim) {
        self.told.claimed(index, claim);
        let Some(run) = &mut self.spans else { return };
        let Some(span) = run.span(index) else { return };
        span.set_attribute(KeyValue::new(
            "hapax.claim",
            match claim {
                Claim::Fresh { .. } => "fresh",
                Claim::Duplicate {
                    outcome: ClaimAs::Done,
                } => "duplicate",
                Claim::Duplicate {
                    outcome: ClaimAs::Dead,
                } => "dead",
                Claim::Conflict { .. } => "conflict",
            },
        ));
        if let Claim::Fresh { attempt } = claim {
            span.set_attribute(KeyValue::new("hapax.attempt", i64::from(*attempt)));
        }
    }

    /// The handler is called with the member at `index`.
    pub(super) fn calls(&mut self, index: usize) {
        self.step("handle", index);
    }

    /// The call of the member at `index` has ended; an early one was at another time.
    pub(super) fn called(
        &mut self,
        index: usize,
        called: &Called,
        outcome: &Outcome,
        between: Option<(SystemTime, SystemTime)>,
    ) {
        self.told.called(index, called, outcome);
        if let Some((from, _)) = between {
            self.step_at("handle", index, from);
        }
        let Some(run) = &mut self.spans else { return };
        let Some(mut call) = run.step.take() else {
            return;
        };
        call.set_attributes([
            KeyValue::new("hapax.cpu_seconds", called.cpu.as_secs_f64()),
            KeyValue::new("hapax.memory_bytes", called.memory_bytes as i64),
            KeyValue::new("hapax.published", called.published.len() as i64),
        ]);
        if let Outcome::Failed(failure) = outcome {
            set_failed(&mut call, failure);
            if let Some(span) = run.span(index) {
                set_failed(span, failure);
            }
        }
        match between {
            Some((_, to)) => call.end_with_timestamp(to),
            None => call.end(),
        }
    }

    /// The members at `indexes` were in one call, which has ended just now; those in `failing`, or all of them if it is empty, are the ones
    /// for which it ended as `outcome` says.
    pub(super) fn called_together(
        &mut self,
        indexes: &[usize],
        called: &CalledBatch,
        outcome: &Outcome,
        failing: &[usize],
    ) {
        self.told.called_together(indexes, called, outcome);
        let Some(run) = &mut self.spans else { return };
        let (name, since) = (format!("handle {}", run.handler.name), run.since);
        let tracer = run.tracer;
        for index in indexes {
            let Some(span) = run.span(*index) else {
                continue;
            };
            let parent = Some(span.span_context());
            let mut call = start(tracer, name.clone(), SpanKind::Internal, parent, since);
            call.set_attribute(KeyValue::new("hapax.call_messages", indexes.len() as i64));
            if let Outcome::Failed(failure) = outcome
                && (failing.is_empty() || failing.contains(index))
            {
                set_failed(&mut call, failure);
                set_failed(span, failure);
            }
        }
    }

    /// Returns the headers that name the cause of what the member at `index` publishes.
    pub(super) fn cause(&self, index: usize, message: &Message) -> Vec<Header> {
        match self.own(index) {
            Some(cause) => context::outgoing(cause),
            None => context::of_message(&message.incoming.headers),
        }
    }

    /// Returns the trace of the member at `index`, if it has one that its headers do not name.
    pub(super) fn own_trace(&self, index: usize) -> Option<TraceId> {
        self.own(index).map(SpanContext::trace_id)
    }

    fn own(&self, index: usize) -> Option<&SpanContext> {
        self.spans.as_ref()?.members.get(index)?.cause.as_ref()
    }

    /// All of it stays.
    pub(super) fn committed(&mut self) {
        self.told.committed();
        let Some(run) = &mut self.spans else { return };
        run.is_committed = true;
        let Some((_, from, to)) = run.stages.last().copied() else {
            return;
        };
        let Run {
            tracer,
            handler,
            members,
            ..
        } = &mut **run;
        for span in members.iter().filter_map(|member| member.span.as_ref()) {
            let name = format!("commit {}", handler.name);
            let parent = Some(span.span_context());
            start(tracer, name, SpanKind::Internal, parent, from).end_with_timestamp(to);
        }
    }

    /// The member at `index` is being answered.
    pub(super) fn answers(&mut self, index: usize) {
        self.step("ack", index);
    }

    /// Begins a step of the member at `index`, which ends before another one begins.
    fn step(&mut self, step: &str, index: usize) {
        if self.spans.is_some() {
            self.step_at(step, index, SystemTime::now());
        }
    }

    fn step_at(&mut self, step: &str, index: usize, at: SystemTime) {
        let Some(run) = &mut self.spans else { return };
        let Some(span) = run.span(index) else { return };
        let parent = span.span_context().clone();
        let name = format!("{step} {}", run.handler.name);
        run.step = Some(start(
            run.tracer,
            name,
            SpanKind::Internal,
            Some(&parent),
            at,
        ));
    }

    /// The member at `index` is answered, or could not be.
    pub(super) fn answered(&mut self, index: usize, error: Option<&SourceError>) {
        let Some(run) = &mut self.spans else { return };
        if let Some(mut ack) = run.step.take()
            && let Some(why) = error
        {
            ack.set_status(Status::error(one_line(&why.to_string())));
        }
        if let Some(member) = run.members.get_mut(index) {
            // Ends here.
            member.span = None;
        }
    }
}

impl Run<'_> {
    fn span(&mut self, index: usize) -> Option<&mut Span> {
        self.members.get_mut(index)?.span.as_mut()
    }

    fn has(&mut self, batch: &mut [Member]) {
        let began = self.stages.first().map_or(self.since, |stage| stage.1);
        self.members = batch
            .iter_mut()
            .map(|member| self.member(member, began))
            .collect();
        let links: Vec<Link> = self
            .members
            .iter()
            .filter_map(|member| member.span.as_ref())
            .take(LINKS_MAX)
            .map(|span| Link::new(span.span_context().clone(), Vec::new(), 0))
            .collect();
        if links.is_empty() {
            return;
        }
        let builder = SpanBuilder::from_name(format!("batch {}", self.handler.name))
            .with_kind(SpanKind::Internal)
            .with_start_time(began)
            .with_links(links);
        let mut span = self.tracer.build_with_context(builder, &Context::new());
        span.set_attributes([
            KeyValue::new("messaging.batch.message_count", batch.len() as i64),
            KeyValue::new(
                "messaging.consumer.group.name",
                self.handler.consumer.clone(),
            ),
            KeyValue::new("hapax.handler", self.handler.name.clone()),
            KeyValue::new("hapax.component.digest", self.digest.to_string()),
        ]);
        let batch = span.span_context().clone();
        for span in self
            .members
            .iter_mut()
            .filter_map(|member| member.span.as_mut())
        {
            span.add_link(batch.clone(), Vec::new());
        }
        self.batch = Some(span);
    }

    fn member(&self, member: &mut Member, began: SystemTime) -> MemberTrace {
        let handler = self.handler;
        let incoming = &member.message.incoming;
        let parent = context::incoming(&incoming.headers);
        // Taken: a second run did not wait for its source.
        let fetched_at = member.delivery.fetched_at.take();
        let mut span = start(
            self.tracer,
            format!("process {}", handler.name),
            SpanKind::Consumer,
            parent.as_ref(),
            fetched_at.unwrap_or(began),
        );
        if !span.is_recording() {
            // What has a parent names it further on. What has none was decided about here, and those who get what it publishes
            // follow that.
            return MemberTrace {
                span: None,
                cause: parent
                    .is_none()
                    .then(|| span.span_context().clone())
                    .filter(SpanContext::is_valid),
            };
        }
        let system = match member.delivery.queue_row {
            Some(_) => "hapax",
            None => "nats",
        };
        let destination = match incoming.subject.as_str() {
            "" => &member.message.source,
            subject => subject,
        };
        span.set_attributes([
            KeyValue::new("messaging.system", system),
            KeyValue::new("messaging.operation.name", "process"),
            KeyValue::new("messaging.operation.type", "process"),
            KeyValue::new("messaging.destination.name", destination.to_owned()),
            KeyValue::new(
                "messaging.message.id",
                member.message.id.as_str().to_owned(),
            ),
            KeyValue::new("messaging.message.body.size", incoming.payload.len() as i64),
            KeyValue::new("messaging.consumer.group.name", handler.consumer.clone()),
            KeyValue::new("hapax.handler", handler.name.clone()),
            KeyValue::new("hapax.source", member.message.source.clone()),
            KeyValue::new("hapax.component.digest", self.digest.to_string()),
        ]);
        let context = span.span_context().clone();
        if let Some(fetched_at) = fetched_at {
            let name = format!("fetch {}", handler.name);
            start(
                self.tracer,
                name,
                SpanKind::Internal,
                Some(&context),
                fetched_at,
            )
            .end_with_timestamp(began);
        }
        MemberTrace {
            span: Some(span),
            cause: Some(context),
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let is_committed = self.is_committed;
        let spans = self
            .members
            .iter_mut()
            .filter_map(|member| member.span.as_mut());
        if !is_committed {
            for span in spans.chain(&mut self.batch) {
                span.set_attribute(KeyValue::new("hapax.rolled_back", true));
            }
        }
        let Some(batch) = &self.batch else { return };
        for (stage, from, to) in self.stages.drain(..) {
            let name = format!("{} {}", stage.as_str(), self.handler.name);
            let parent = Some(batch.span_context());
            start(self.tracer, name, SpanKind::Internal, parent, from).end_with_timestamp(to);
        }
    }
}

fn set_failed(span: &mut Span, failure: &Failure) {
    span.set_attribute(KeyValue::new("error.type", failure.class.as_str()));
    span.set_status(Status::error(one_line(&failure.reason)));
}

/// Starts a span under `parent`, or a trace of its own.
fn start(
    tracer: &SdkTracer,
    name: String,
    kind: SpanKind,
    parent: Option<&SpanContext>,
    at: SystemTime,
) -> Span {
    let builder = SpanBuilder::from_name(name)
        .with_kind(kind)
        .with_start_time(at);
    let context = match parent {
        Some(parent) => Context::new().with_remote_span_context(parent.clone()),
        None => Context::new(),
    };
    tracer.build_with_context(builder, &context)
}
