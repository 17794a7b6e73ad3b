//! The step of a transaction in which handlers run: one call for each fresh message, or one for all of them.
//!
//! **Invariant**: what is published, logged or rolled back here is a whole call's; nobody is charged here.

use std::time::{Duration, Instant, SystemTime};

use super::HandlerContext;
use super::ahead::believed;
use super::batch::Took;
use super::early::{EarlyRun, EarlyRuns};
use super::logged::RunLogs;
use super::policy::{Outcome, classify_batch};
use super::process::{Failing, Member, Processed};
use super::trace::RunTrace;
use crate::fault;
use crate::handler::{self, Called, Handler, Outgoing};
use crate::store::{Claim, Connection, OutboxRow, StoreError, Tx};

/// A run that ended before its commit: the connection, if it can be used again, and how.
type Ended = Box<(Option<Connection>, Processed)>;

/// One run of a batch's handler.
pub(super) struct Run<'a, 'h> {
    handler: &'h HandlerContext,
    component: &'a Handler,
    took: &'a mut Took,
    trace: &'a mut RunTrace<'h>,
    calls: &'a fault::Calls,
    early: EarlyRuns<'h>,
    ran: Ran,
}

/// What a run has left for the commit.
#[derive(Default)]
pub(super) struct Ran {
    /// What the handler published, in order.
    pub(super) outbox: Vec<OutboxRow>,
    /// What it logged.
    pub(super) logs: RunLogs,
    /// How many messages are dead letters now, because their id was claimed with another payload.
    pub(super) conflicts: usize,
}

/// A message that the handler is called with.
#[derive(Clone, Copy)]
struct Fresh {
    /// Its place in the batch.
    index: usize,
    attempt: u32,
}

impl<'a, 'h> Run<'a, 'h> {
    pub(super) fn begin(
        handler: &'h HandlerContext,
        component: &'a Handler,
        took: &'a mut Took,
        trace: &'a mut RunTrace<'h>,
        calls: &'a fault::Calls,
        early: EarlyRuns<'h>,
    ) -> Self {
        Self {
            handler,
            component,
            took,
            trace,
            calls,
            early,
            ran: Ran::default(),
        }
    }

    pub(super) fn end(self) -> Ran {
        self.early.through();
        self.ran
    }

    /// Buries what is in conflict, and has the handler called with what is neither that nor a duplicate.
    pub(super) async fn handle(
        &mut self,
        mut tx: Tx,
        batch: Vec<Member>,
        claims: Vec<Claim>,
    ) -> Result<(Tx, Vec<Member>), Ended> {
        let mut fresh = Vec::with_capacity(batch.len());
        for (index, claim) in claims.into_iter().enumerate() {
            self.trace.claimed(index, &claim);
            let member = &batch[index];
            match claim {
                Claim::Fresh { attempt } => fresh.push(Fresh { index, attempt }),
                Claim::Duplicate { .. } => {}
                Claim::Conflict { .. } if self.handler.ignores_conflicts() => {
                    tx.ignore_conflict(&member.message.id);
                }
                Claim::Conflict { stored } => {
                    let digest = self.component.digest();
                    let buried = self.handler.bury_conflict(&mut tx, member, stored, digest);
                    if let Err(why) = buried.await {
                        return Err(rolled_back(Some(tx), Processed::Again { batch, why }).await);
                    }
                    self.ran.conflicts += 1;
                }
            }
        }
        if fresh.is_empty() {
            return Ok((tx, batch));
        }
        match self.component.takes_batches() {
            false => self.one_by_one(tx, batch, &fresh).await,
            true => self.together(tx, batch, &fresh).await,
        }
    }

    /// Calls the handler with each message.
    async fn one_by_one(
        &mut self,
        mut tx: Tx,
        mut batch: Vec<Member>,
        fresh: &[Fresh],
    ) -> Result<(Tx, Vec<Member>), Ended> {
        for (nth, &Fresh { index, attempt }) in fresh.iter().enumerate() {
            if nth > 0 && self.took.held() > self.handler.config.batch.max_hold {
                let fitting = index;
                return Err(rolled_back(Some(tx), Processed::TooLong { batch, fitting }).await);
            }
            let member = &batch[index];
            self.calls.note(member.message.id.as_str(), attempt);
            self.handler
                .begin_run(&mut tx, self.component, index, member, attempt);
            let (mut called, took, between) = self.call(tx, index, member, attempt).await;
            self.took.called(took, called.executed);
            fault::point_of("after-handler", &member.message.id);
            let outcome = match believed(&mut called, index).await {
                Ok(outcome) => outcome,
                Err(misled) => {
                    return Err(Box::new(
                        self.handler.misled(called.tx, batch, misled).await,
                    ));
                }
            };
            self.trace.called(index, &called, &outcome, between);
            let own_trace = self.trace.own_trace(index);
            self.ran.logs.push(called.log.in_trace(own_trace));
            batch = match self.going_on(outcome, batch, Failing::At(index)) {
                Ok(batch) => batch,
                Err(ended) => return Err(rolled_back(called.tx, ended).await),
            };
            for outgoing in called.published {
                self.publishes(index, &batch[index], outgoing);
            }
            tx = match called.tx {
                Some(tx) => tx,
                None => return Err(lost_connection(batch)),
            };
        }
        Ok((tx, batch))
    }

    /// Calls the handler with a message, or takes over what it did in its early run. Returns how long that took, and if it was early, when
    /// that was.
    async fn call(
        &mut self,
        mut tx: Tx,
        index: usize,
        member: &Member,
        attempt: u32,
    ) -> (Called, Duration, Option<(SystemTime, SystemTime)>) {
        let run = self.early.take(&member.message.id, self.component.digest());
        if let Some(run) = run {
            let EarlyRun {
                mut called,
                statements,
                took,
                between,
            } = run;
            if attempt == 1 && tx.adopt(statements).await {
                called.tx = Some(tx);
                self.early.served();
                return (called, took, between);
            }
            self.early.dropped(called);
        }
        self.trace.calls(index);
        let started = Instant::now();
        let called = self
            .component
            .call_member(tx, member.for_call(attempt))
            .await;
        self.handler.metrics.called(called.cpu, called.memory_bytes);
        (called, started.elapsed(), None)
    }

    /// Calls the handler once, with all messages.
    async fn together(
        &mut self,
        mut tx: Tx,
        batch: Vec<Member>,
        fresh: &[Fresh],
    ) -> Result<(Tx, Vec<Member>), Ended> {
        HandlerContext::begin_batch_run(&mut tx);
        let members: Vec<handler::Member<'_>> = fresh
            .iter()
            .map(|fresh| batch[fresh.index].for_call(fresh.attempt))
            .collect();
        for member in &members {
            self.calls.note(member.message.id.as_str(), member.attempt);
        }
        let started = Instant::now();
        let called = self.component.call_batch(tx, &members).await;
        self.took
            .called_together(started.elapsed(), called.executed, fresh.len());
        self.handler.metrics.called(called.cpu, called.memory_bytes);
        for member in &members {
            fault::point_of("after-handler", &member.message.id);
        }
        let (outcome, failing) = classify_batch(&called);
        let indexes: Vec<usize> = fresh.iter().map(|fresh| fresh.index).collect();
        let failing: Vec<usize> = failing.into_iter().map(|place| indexes[place]).collect();
        self.trace
            .called_together(&indexes, &called, &outcome, &failing);
        // One statement that fails for the sake of one message fails for all of them.
        let failing = match failing.len() {
            0 => Failing::Unknown,
            all if all == fresh.len() && all > 1 => Failing::Unknown,
            _ => Failing::These(failing),
        };
        for (place, lines) in called.logs {
            let own_trace = place.and_then(|place| self.trace.own_trace(indexes[place]));
            self.ran.logs.push(lines.in_trace(own_trace));
        }
        let batch = match self.going_on(outcome, batch, failing) {
            Ok(batch) => batch,
            Err(ended) => return Err(rolled_back(called.tx, ended).await),
        };
        for (place, outgoing) in called.published {
            let index = indexes[place];
            self.publishes(index, &batch[index], outgoing);
        }
        match called.tx {
            Some(tx) => Ok((tx, batch)),
            None => Err(lost_connection(batch)),
        }
    }

    /// Says what becomes of the batch, unless its transaction goes on; `failing` says who failed, if somebody did.
    fn going_on(
        &self,
        outcome: Outcome,
        batch: Vec<Member>,
        failing: Failing,
    ) -> Result<Vec<Member>, Processed> {
        match outcome {
            Outcome::Commit => Ok(batch),
            Outcome::Again(why) => Err(Processed::Again { batch, why }),
            Outcome::Failed(failure) => Err(Processed::Failed {
                batch,
                failing,
                failure,
                component: self.component.digest(),
            }),
        }
    }

    /// Keeps what was published on behalf of `member`.
    fn publishes(&mut self, index: usize, member: &Member, outgoing: Outgoing) {
        let cause = self.trace.cause(index, &member.message);
        let row = self.handler.outbox_row(&member.message, outgoing, &cause);
        self.ran.outbox.push(row);
    }
}

impl Member {
    /// Returns what the handler is called with.
    pub(super) fn for_call(&self, attempt: u32) -> handler::Member<'_> {
        handler::Member {
            message: &self.message,
            key: self.delivery.order_key.as_deref(),
            attempt,
            generation: self.generation(),
        }
    }
}

async fn rolled_back(tx: Option<Tx>, processed: Processed) -> Ended {
    let connection = match tx {
        Some(tx) => tx.rollback().await,
        None => None,
    };
    Box::new((connection, processed))
}

fn lost_connection(batch: Vec<Member>) -> Ended {
    let why = StoreError::Unavailable("the connection was closed during the call".into());
    Box::new((None, Processed::Again { batch, why }))
}
