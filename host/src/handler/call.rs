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

use wasmtime::UpdateDeadline;

use super::bindings::hapax::handler::types;
use super::bindings::{Failure, World};
use super::load::{Component, ComponentInfo, Pre};
use super::log::{CallLog, LogLines};
use super::outbox::Outbox;
use super::state::{Limiter, Meter, State};
use super::stopped::{Stopped, classify, lift_result};
use super::watch::Watch;
use super::{Called, HandlerOptions, LoadError, Outgoing, Seen, Verdict, seen, text};
use crate::fault;
use crate::message::{ComponentDigest, Message};
use crate::metrics;
use crate::store::Tx;

/// The most resource handles that a guest can hold.
pub const HANDLES_MAX: usize = 1_000;
/// The longest wait that a handler can ask for.
pub const RETRY_DELAY_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// One message of a call.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// What the handler gets.
    pub message: &'a Message,
    /// `order_by`'s value.
    pub key: Option<&'a str>,
    /// Failures charged so far, plus 1.
    pub attempt: u32,
    /// With one, the ids of what is published are others than those of the message's first run.
    pub generation: Option<i64>,
}

/// What one call of a handler of batches leaves behind.
#[derive(Debug)]
pub struct CalledBatch {
    /// As that of `Called`.
    pub tx: Option<Tx>,
    /// What the handler said of each message, in their order: ok, retry or reject. Otherwise how the call as a whole ended, which says
    /// nothing about any one message.
    pub results: Result<Vec<Verdict>, Verdict>,
    /// What it published, in order, each with the place of the message on whose behalf it is. Empty unless all went well.
    pub published: Vec<(usize, Outgoing)>,
    /// What it logged about each message, by its place, and about the batch. Emit it after the commit or the rollback.
    pub logs: Vec<(Option<usize>, LogLines)>,
    /// The time that its own code ran.
    pub cpu: Duration,
    /// The linear memory that it had at its end, in bytes.
    pub memory_bytes: usize,
    /// How many statements it executed, those of `execute-many` once for each row. Queries do not count.
    pub executed: usize,
    /// The tables around the call, if all went well and somebody looks.
    pub seen: Option<Arc<Seen>>,
}

/// What a call leaves behind, of either world.
struct Entered {
    tx: Option<Tx>,
    results: Result<Vec<Verdict>, Verdict>,
    published: Vec<(usize, Outgoing)>,
    log: CallLog,
    cpu: Duration,
    memory_bytes: usize,
    executed: usize,
    is_unsettled: bool,
    seen: Option<Arc<Seen>>,
}

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

    /// True if a call takes many messages: the component is for the world `batch-handler`.
    pub fn takes_batches(&self) -> bool {
        self.info().world == World::BatchHandler
    }

    /// Calls the handler with one message, in a fresh instance, inside `tx`. One of batches gets a batch of one.
    ///
    /// Waits for a free instance first; no limit's time runs then. `key` is `order_by`'s value; `attempt` is the number of
    /// failures charged so far, plus 1. Nothing is committed or rolled back here.
    ///
    /// *Cancellation*: dropped before it has ended, the transaction's connection is closed.
    pub async fn call(&self, tx: Tx, message: &Message, key: Option<&str>, attempt: u32) -> Called {
        let member = Member {
            message,
            key,
            attempt,
            generation: None,
        };
        self.call_member(tx, member).await
    }

    /// As `call`.
    pub async fn call_member(&self, tx: Tx, member: Member<'_>) -> Called {
        let entered = self.enter(tx, &[member]).await;
        Called {
            tx: entered.tx,
            verdict: match entered.results {
                Ok(verdicts) => verdicts.into_iter().next().unwrap_or(Verdict::Ok),
                Err(verdict) => verdict,
            },
            published: entered
                .published
                .into_iter()
                .map(|(_, outgoing)| outgoing)
                .collect(),
            log: entered.log.into_one(),
            cpu: entered.cpu,
            memory_bytes: entered.memory_bytes,
            executed: entered.executed,
            is_unsettled: entered.is_unsettled,
            seen: entered.seen,
        }
    }

    /// Calls a handler of batches with all of `members`, at least one, in one fresh instance inside `tx`. Its limits hold for the
    /// call as a whole.
    ///
    /// Waits and *cancellation* are those of `call`. A handler of one message a call is not called.
    pub async fn call_batch(&self, tx: Tx, members: &[Member<'_>]) -> CalledBatch {
        let entered = self.enter(tx, members).await;
        CalledBatch {
            tx: entered.tx,
            results: entered.results,
            published: entered.published,
            logs: entered.log.into_lines(),
            cpu: entered.cpu,
            memory_bytes: entered.memory_bytes,
            executed: entered.executed,
            seen: entered.seen,
        }
    }

    async fn enter(&self, tx: Tx, members: &[Member<'_>]) -> Entered {
        // Declared first, so that it is given back last: an instance's slot is free only when its wasm store is gone.
        let _permit = self.component.runtime().permit().await;
        Box::pin(self.enter_permitted(tx, members)).await
    }

    async fn enter_permitted(&self, mut tx: Tx, members: &[Member<'_>]) -> Entered {
        let limits = &self.options.limits;
        let name = &self.options.name;
        let log = match (self.info().world, members) {
            (World::Handler, [member, ..]) => CallLog::of_message(name, member, limits.log_bytes),
            _ => CallLog::of_batch(name, members, limits.log_bytes),
        };
        if let Some(results) = self.fails_for_a_test(members) {
            return Entered {
                tx: Some(tx),
                results: Ok(results),
                published: Vec::new(),
                log,
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
        let lowered: Vec<types::Message> = members.iter().map(lower_message).collect();
        let state = State {
            tx,
            options: Arc::clone(&self.options),
            message_ids: members
                .iter()
                .map(|member| member.message.id.clone())
                .collect(),
            limiter: Limiter::new(limits.memory_bytes, limits.table_elements),
            outbox: Outbox::new(members, limits.outbox),
            log,
            cursor_columns: HashMap::new(),
            sql_called: false,
            executed: 0,
            statements: 0,
            watch: self.watch.clone(),
            published_at: members
                .first()
                .and_then(|member| member.message.incoming.published_at),
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
        let (mut tx, results) = match ended {
            Err(_) => {
                let tx = state.tx.is_before_begin().then_some(state.tx);
                let verdict = Verdict::Limit {
                    limit: "time",
                    text: format!(
                        "the call took longer than {:?} (`limits.time`)",
                        limits.time
                    ),
                };
                (tx, Err(verdict))
            }
            Ok(Ok(results)) if results.len() == members.len() => {
                let mut tx = state.tx;
                let verdicts: Vec<Verdict> = results.into_iter().map(lift_result).collect();
                if verdicts.iter().all(|verdict| *verdict == Verdict::Ok) {
                    tx.close_cursors().await;
                }
                (Some(tx), Ok(verdicts))
            }
            Ok(Ok(results)) => {
                let verdict = Verdict::Trap {
                    text: format!(
                        "the handler returned {} results for {} messages; it has to return one for each",
                        results.len(),
                        members.len()
                    ),
                };
                (Some(state.tx), Err(verdict))
            }
            Ok(Err(stopped)) => {
                let last_words = state.last_words();
                let verdict = classify(&stopped, limits, &state.limiter, last_words.as_deref());
                (Some(state.tx), Err(verdict))
            }
        };
        let results = self.as_watched(members, results).await;
        if let Err(Verdict::Limit { limit, .. }) = &results {
            metrics::limit_met(name, limit);
        }
        if state.log.dropped() > 0 {
            metrics::limit_met(name, "log");
        }
        let is_ok = matches!(&results, Ok(verdicts) if verdicts.iter().all(|verdict| *verdict == Verdict::Ok));
        let after = match (&mut tx, &before) {
            (Some(tx), Some(_)) if is_ok => seen::read(tx).await,
            _ => None,
        };
        // What was published by a call that did not succeed does not exist.
        Entered {
            tx,
            results,
            published: if is_ok {
                state.outbox.into_published()
            } else {
                Vec::new()
            },
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

    /// Takes down that a run begins, if somebody watches. Returns what is to become of the messages if one of them is to fail at once.
    fn fails_for_a_test(&self, members: &[Member<'_>]) -> Option<Vec<Verdict>> {
        let fails = |member: &Member<'_>| {
            let (message, attempt) = (member.message, member.attempt);
            let is_broken = self
                .watch
                .as_ref()
                .is_some_and(|watch| watch.begins(&message.id, attempt));
            is_broken || fault::fails_this_call(message.id.as_str(), attempt)
        };
        let failing: Vec<bool> = members.iter().map(fails).collect();
        failing.contains(&true).then(|| {
            let verdict = |fails| match fails {
                false => Verdict::Ok,
                true => Verdict::Retry {
                    reason: "failed by the host, for a test".into(),
                    delay: None,
                },
            };
            failing.into_iter().map(verdict).collect()
        })
    }

    /// Tells who watches how a run has ended, and returns what is to be made of it.
    async fn as_watched(
        &self,
        members: &[Member<'_>],
        results: Result<Vec<Verdict>, Verdict>,
    ) -> Result<Vec<Verdict>, Verdict> {
        let Some(watch) = &self.watch else {
            return results;
        };
        let [member] = members else {
            if let Ok(verdicts) = &results {
                watch.returned_together(verdicts.iter().map(|verdict| *verdict == Verdict::Ok));
            }
            return results;
        };
        let verdict = match results {
            Ok(verdicts) => verdicts.into_iter().next().unwrap_or(Verdict::Ok),
            Err(verdict) => verdict,
        };
        match watch.returned(&member.message.id, verdict).await {
            verdict @ (Verdict::Ok | Verdict::Retry { .. } | Verdict::Reject { .. }) => {
                Ok(vec![verdict])
            }
            verdict => Err(verdict),
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

/// Makes an instance and calls it. Returns what it said of each message.
async fn run(
    pre: &Pre,
    wasm_store: &mut wasmtime::Store<State>,
    messages: &[types::Message],
) -> Result<Vec<Result<(), Failure>>, Stopped> {
    let instantiating = |error| Stopped {
        error,
        instantiating: true,
    };
    let calling = |error| Stopped {
        error,
        instantiating: false,
    };
    match (pre, messages) {
        (Pre::Handler(pre), [message]) => {
            let instance = pre
                .instantiate_async(&mut *wasm_store)
                .await
                .map_err(instantiating)?;
            let result = instance.call_handle(wasm_store, message).await;
            Ok(vec![result.map_err(calling)?])
        }
        (Pre::Handler(_), _) => Err(instantiating(wasmtime::Error::msg(
            "a handler of one message a call was given a batch",
        ))),
        (Pre::BatchHandler(pre), messages) => {
            let instance = pre
                .instantiate_async(&mut *wasm_store)
                .await
                .map_err(instantiating)?;
            let results = instance.call_handle_batch(wasm_store, messages).await;
            results.map_err(calling)
        }
    }
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

fn lower_message(member: &Member<'_>) -> types::Message {
    let Member {
        message,
        key,
        attempt,
        ..
    } = *member;
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
