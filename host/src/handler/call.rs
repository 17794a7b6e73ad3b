//! One call of a handler: a fresh instance, its limits, and what became of it.
//!
//! **Invariant**: the call's `Tx` is in the wasm store during the call, comes back from it in whatever way the call ends, and is
//! closed if it can be in the middle of a statement.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use wasmtime::{PoolConcurrencyLimitError, Trap, UpdateDeadline, WasmBacktrace};

use super::bindings::hapax::handler::types;
use super::bindings::{Failure, HandlerPre};
use super::engine::{HOST_CALL_BYTES_EXHAUSTED, causes};
use super::load::{Component, ComponentInfo};
use super::log::LogLines;
use super::outbox::Outbox;
use super::state::{Limiter, Meter, Refused, State};
use super::watch::{Broken, Watch};
use super::{Called, HandlerOptions, LoadError, Seen, Verdict, seen, text};
use crate::fault;
use crate::message::{ComponentDigest, Message};
use crate::metrics;
use crate::store::{Misled, Tx};

/// The most resource handles that a guest can hold.
pub const HANDLES_MAX: usize = 1_000;
/// The longest wait that a handler can ask for.
pub const RETRY_DELAY_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What it says at `set_max_component_handles`.
const HANDLES_EXHAUSTED: &str = "store handle limit exceeded";

const REASON_BYTES_MAX: usize = 16 << 10;
const FRAMES_MAX: usize = 20;
const FRAME_BYTES_MAX: usize = 300;

/// A configured handler: a component, its limits and its configuration. Cheap to clone.
#[derive(Clone)]
pub struct Handler {
    component: Component,
    options: Arc<HandlerOptions>,
    watch: Option<Arc<Watch>>,
    /// The tables are read before and after each call.
    shows_effects: bool,
}

impl Handler {
    /// Puts a handler together.
    ///
    /// # Errors
    /// The component's memory is larger than the limit from the start.
    pub fn new(component: Component, options: HandlerOptions) -> Result<Self, LoadError> {
        let starts_with = component.info().memory_bytes;
        let limit = options.limits.memory_bytes;
        if starts_with > limit as u64 {
            return Err(LoadError {
                problem: format!(
                    "cannot run `{}`: its memory starts with {starts_with} bytes; `limits.memory` is {}",
                    component.name(),
                    text::bytes(limit)
                ),
                hint: "raise `limits.memory` of the handler".into(),
            });
        }
        Ok(Self {
            component,
            options: Arc::new(options),
            watch: None,
            shows_effects: false,
        })
    }

    /// Has `watch` see each call of the handler to its host.
    #[must_use]
    pub(crate) fn watched_by(mut self, watch: Arc<Watch>) -> Self {
        self.watch = Some(watch);
        self
    }

    /// True if somebody sees its calls to the host, or what they change.
    pub(crate) fn is_watched(&self) -> bool {
        self.watch.is_some() || self.shows_effects
    }

    /// Has the tables read before and after each call: [`Called::seen`].
    #[must_use]
    pub fn showing_effects(mut self) -> Self {
        self.shows_effects = true;
        self
    }

    /// Returns the handler's name, consumer, limits and configuration.
    pub fn options(&self) -> &HandlerOptions {
        &self.options
    }

    /// Returns what its component is.
    pub fn info(&self) -> &ComponentInfo {
        self.component.info()
    }

    /// Returns which code runs.
    pub fn digest(&self) -> ComponentDigest {
        self.component.digest()
    }

    /// Calls the handler with one message, in a fresh instance, inside `tx`.
    ///
    /// Waits for a free instance first; no limit's time runs then. `key` is `order_by`'s value; `attempt` is the number of
    /// failures charged so far, plus 1. Nothing is committed or rolled back here.
    ///
    /// *Cancellation*: dropped before it has ended, the transaction's connection is closed.
    pub async fn call(&self, tx: Tx, message: &Message, key: Option<&str>, attempt: u32) -> Called {
        self.call_in_generation(tx, message, key, attempt, None)
            .await
    }

    /// As `call`; with a generation, the ids of what it publishes are others than those of the message's first run.
    pub async fn call_in_generation(
        &self,
        tx: Tx,
        message: &Message,
        key: Option<&str>,
        attempt: u32,
        generation: Option<i64>,
    ) -> Called {
        // Declared first, so that it is given back last: an instance's slot is free only when its wasm store is gone.
        let _permit = self.component.runtime().permit().await;
        Box::pin(self.call_permitted(tx, message, key, attempt, generation)).await
    }

    async fn call_permitted(
        &self,
        mut tx: Tx,
        message: &Message,
        key: Option<&str>,
        attempt: u32,
        generation: Option<i64>,
    ) -> Called {
        let is_broken = self
            .watch
            .as_ref()
            .is_some_and(|watch| watch.begins(&message.id, attempt));
        if is_broken || fault::fails_this_call(message.id.as_str(), attempt) {
            return Called {
                tx: Some(tx),
                verdict: Verdict::Retry {
                    reason: "failed by the host, for a test".into(),
                    delay: None,
                },
                published: Vec::new(),
                log: LogLines::new(&self.options.name, message, attempt),
                cpu: Duration::ZERO,
                memory_bytes: 0,
                executed: 0,
                is_unsettled: false,
                seen: None,
            };
        }
        let before = match self.shows_effects {
            false => None,
            true => seen::read(&mut tx).await,
        };
        let limits = &self.options.limits;
        let lowered = lower_message(message, key, attempt);
        let state = State {
            tx,
            options: Arc::clone(&self.options),
            message_id: message.id.clone(),
            limiter: Limiter::new(limits.memory_bytes, limits.table_elements),
            outbox: Outbox::in_generation(generation, limits.outbox),
            log: LogLines::new(&self.options.name, message, attempt).bounded_to(limits.log_bytes),
            cursor_columns: HashMap::new(),
            sql_called: false,
            executed: 0,
            statements: 0,
            watch: self.watch.clone(),
            published_at: message.incoming.published_at,
            wasi: None,
            limits_met: BTreeSet::new(),
        };
        let mut wasm_store = wasmtime::Store::new(&self.component.runtime().engine, state);
        wasm_store.limiter(|state| &mut state.limiter);
        wasm_store.set_hostcall_fuel(limits.call_bytes);
        wasm_store.set_max_component_handles(HANDLES_MAX);

        // Armed before the instance is made: a component's start functions are the guest's code too.
        let meter = Arc::new(Meter::default());
        let (metered, cpu_limit) = (Arc::clone(&meter), limits.cpu);
        wasm_store.epoch_deadline_callback(move |_| {
            Ok(if metered.spent_in_poll() >= cpu_limit {
                UpdateDeadline::Interrupt
            } else {
                UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now()))
            })
        });
        wasm_store.set_epoch_deadline(1);

        // The deadline may cut the call off in the middle of a host call, which epochs do not interrupt. What is dropped then is
        // the guest's stack and the wait for the statement; the connection is closed below.
        let run = Metered {
            future: Box::pin(run(self.component.pre(), &mut wasm_store, &lowered)),
            meter: &meter,
        };
        let ended = tokio::time::timeout(limits.time, run).await;

        let mut state = wasm_store.into_data();
        state.log_output(true);
        let is_unsettled = state.tx.is_unsettled();
        let (mut tx, verdict) = match ended {
            Err(_) => {
                drop(state.tx);
                let verdict = Verdict::Limit {
                    limit: "time",
                    text: format!(
                        "the call took longer than {:?} (`limits.time`)",
                        limits.time
                    ),
                };
                (None, verdict)
            }
            Ok(Ok(Ok(()))) => {
                let mut tx = state.tx;
                tx.close_cursors().await;
                (Some(tx), Verdict::Ok)
            }
            Ok(Ok(Err(failure))) => (Some(state.tx), lift_failure(failure)),
            Ok(Err(stopped)) => {
                let last_words = state.last_words();
                let verdict = self.classify(&stopped, &state.limiter, last_words.as_deref());
                (Some(state.tx), verdict)
            }
        };
        let verdict = match &self.watch {
            None => verdict,
            Some(watch) => watch.returned(&message.id, verdict).await,
        };
        if let Verdict::Limit { limit, .. } = &verdict {
            metrics::limit_met(&self.options.name, limit);
        }
        if state.log.dropped() > 0 {
            metrics::limit_met(&self.options.name, "log");
        }
        let after = match (&mut tx, &before, &verdict) {
            (Some(tx), Some(_), Verdict::Ok) => seen::read(tx).await,
            _ => None,
        };
        // What was published by a call that did not succeed does not exist.
        let published = match verdict {
            Verdict::Ok => state.outbox.into_published(),
            _ => Vec::new(),
        };
        Called {
            tx,
            verdict,
            published,
            log: state.log,
            cpu: meter.spent(),
            memory_bytes: state.limiter.memory_bytes(),
            executed: state.executed,
            is_unsettled,
            seen: before
                .zip(after)
                .map(|(before, after)| Arc::new(Seen { before, after })),
        }
    }

    /// Tells apart what the guest did, which of its limits it met, and what went wrong on our side.
    fn classify(&self, stopped: &Stopped, limiter: &Limiter, last_words: Option<&str>) -> Verdict {
        let limits = &self.options.limits;
        let error = &stopped.error;
        if error.is::<Broken>() {
            return Verdict::Host {
                text: Broken.to_string(),
            };
        }
        if let Some(misled) = error.downcast_ref::<Misled>() {
            return Verdict::Host {
                text: misled.to_string(),
            };
        }
        let trap = error.downcast_ref::<Trap>();
        // Only the epoch callback interrupts.
        if trap == Some(&Trap::Interrupt) {
            return Verdict::Limit {
                limit: "cpu",
                text: with_backtrace(
                    format!(
                        "the handler's code ran longer than {:?} (`limits.cpu`)",
                        limits.cpu
                    ),
                    error,
                ),
            };
        }
        if error.is::<PoolConcurrencyLimitError>() {
            return Verdict::Host {
                text: causes(error),
            };
        }
        if let Some(refused) = limiter.refused() {
            let (limit, refused) = match refused {
                Refused::Memory(bytes) => (
                    "memory",
                    format!(
                        "the memory would have grown to {}, beyond {} (`limits.memory`)",
                        text::bytes(bytes),
                        text::bytes(limits.memory_bytes)
                    ),
                ),
                Refused::Table(elements) => (
                    "table",
                    format!(
                        "a table would have grown to {elements} elements, beyond {} (`limits.table`)",
                        limits.table_elements
                    ),
                ),
            };
            return Verdict::Limit {
                limit,
                text: trap_text(
                    format!("{refused}; then: {}", causes(error)),
                    error,
                    last_words,
                ),
            };
        }
        // An instance that could not be made, for another reason than what it is, is the host's failure: no memory, say.
        let causes = causes(error);
        // wasmtime has no types for these two.
        let met = if causes.contains(HOST_CALL_BYTES_EXHAUSTED) {
            Some((
                "call",
                format!(
                    "it handed more than {} to the host in one call (`limits.call`)",
                    text::bytes(limits.call_bytes)
                ),
            ))
        } else if causes.contains(HANDLES_EXHAUSTED) {
            Some((
                "handles",
                format!("it held more than {HANDLES_MAX} resource handles"),
            ))
        } else {
            None
        };
        if let Some((limit, text)) = met {
            return Verdict::Limit {
                limit,
                text: trap_text(text, error, last_words),
            };
        }
        // With frames of the guest's own it was a start function that failed.
        let is_guests = trap.is_some() || error.is::<WasmBacktrace>();
        if stopped.instantiating && !is_guests && !causes.contains("resource limit exceeded") {
            return Verdict::Host { text: causes };
        }
        Verdict::Trap {
            text: trap_text(causes, error, last_words),
        }
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler")
            .field("component", &self.component)
            .field("name", &self.options.name)
            .finish_non_exhaustive()
    }
}

/// A call that ended without the handler's answer.
struct Stopped {
    error: wasmtime::Error,
    instantiating: bool,
}

/// Makes an instance and calls it.
async fn run(
    pre: &HandlerPre<State>,
    wasm_store: &mut wasmtime::Store<State>,
    message: &types::Message,
) -> Result<Result<(), Failure>, Stopped> {
    let instance = pre
        .instantiate_async(&mut *wasm_store)
        .await
        .map_err(|error| Stopped {
            error,
            instantiating: true,
        })?;
    instance
        .call_handle(wasm_store, message)
        .await
        .map_err(|error| Stopped {
            error,
            instantiating: false,
        })
}

/// A future whose polls are measured.
struct Metered<'a, F> {
    future: Pin<Box<F>>,
    meter: &'a Meter,
}

impl<F: Future> Future for Metered<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.meter.poll_begins();
        let poll = self.future.as_mut().poll(context);
        self.meter.poll_ends();
        poll
    }
}

fn lower_message(message: &Message, key: Option<&str>, attempt: u32) -> types::Message {
    let incoming = &message.incoming;
    types::Message {
        id: message.id.as_str().to_owned(),
        source: message.source.clone(),
        subject: incoming.subject.clone(),
        key: key.map(str::to_owned),
        headers: incoming
            .headers
            .iter()
            .map(|header| types::Header {
                name: header.name.clone(),
                value: header.value.to_vec(),
            })
            .collect(),
        content_type: incoming.content_type.clone(),
        payload: incoming.payload.to_vec(),
        attempt,
        published_at: incoming.published_at.map(|moment| types::Instant {
            seconds: moment.seconds,
            nanoseconds: moment.nanoseconds,
        }),
    }
}

fn lift_failure(failure: Failure) -> Verdict {
    match failure {
        Failure::Retry(retry) => Verdict::Retry {
            reason: text::bounded(&retry.reason, REASON_BYTES_MAX),
            delay: retry
                .delay_milliseconds
                .map(|milliseconds| Duration::from_millis(milliseconds).min(RETRY_DELAY_MAX)),
        },
        Failure::Reject(reason) => Verdict::Reject {
            reason: text::bounded(&reason, REASON_BYTES_MAX),
        },
    }
}

/// Puts together what is known of a trap: what stopped it, the guest's own last words, and where it was.
fn trap_text(what: String, error: &wasmtime::Error, last_words: Option<&str>) -> String {
    let text = match last_words {
        None => what,
        Some(words) => format!("{words}\n{what}"),
    };
    with_backtrace(text, error)
}

fn with_backtrace(mut text: String, error: &wasmtime::Error) -> String {
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else {
        return text;
    };
    let frames = backtrace.frames();
    let mut shown = 0;
    let mut rest = frames;
    while let Some(frame) = rest.first()
        && shown < FRAMES_MAX
    {
        // A recursion is one line.
        let same = rest
            .iter()
            .take_while(|other| {
                other.func_index() == frame.func_index() && other.func_name() == frame.func_name()
            })
            .count();
        let function = match frame.func_name() {
            // Without the hash of its crate.
            Some(name) => text::one_line(
                &format!("{:#}", rustc_demangle::demangle(name)),
                FRAME_BYTES_MAX,
            ),
            None => format!("function {}", frame.func_index()),
        };
        text.push_str("\n  at ");
        text.push_str(&function);
        if same > 1 {
            text.push_str(&format!(" ({same} times)"));
        }
        shown += 1;
        rest = &rest[same..];
    }
    if !rest.is_empty() {
        text.push_str(&format!("\n  and {} more", rest.len()));
    }
    text
}
