//! Early runs: while a batch waits for its transaction, its handler already runs, as long as all that it asks of the database is numbers of rows
//! that are known (`store/ahead.rs`). In the transaction the statements of such a run are sent instead of the handler being called.
//!
//! Who fails in an early run is set apart before there is a transaction that would have to be rolled back.
//!
//! **Invariant**: an early run counts only once its message is claimed as fresh, for the first time, in a transaction that adopts its
//! statements. Of any other nothing stays, and nobody is charged for one.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::HandlerContext;
use super::batch::{around, without};
use super::logged::RunLogs;
use super::policy::{Outcome, classify};
use super::process::Member;
use crate::handler::{Called, Handler};
use crate::message::{ComponentDigest, MessageId};
use crate::store::{Connection, Early, Tx};
use crate::telemetry;

/// After so many runs of a batch that came to nothing, if they are more than their share, the others are left for the transaction.
const UNUSED_MIN: usize = 4;
/// The share of runs that may come to nothing: one of so many.
const UNUSED_ONE_OF: usize = 4;
/// The most batches in a row that go without early runs after those of one came to nothing.
const REST_MAX: u32 = 16;
/// The share of `batch.max_hold` that a batch's early runs may take: one of so many.
const HOLD_ONE_OF: u32 = 4;
/// What early runs of one batch may publish and write down, in bytes.
const BYTES_MAX: usize = 4 << 20;

/// Whether a handler's early runs are worth it.
#[derive(Debug, Default)]
pub(super) struct EarlyRunning {
    /// So many batches go without.
    rest: AtomicU32,
    /// How many went without the last time.
    rested: AtomicU32,
}

impl EarlyRunning {
    /// True if the next batch's runs may be early ones.
    fn is_due(&self) -> bool {
        self.rest
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |rest| {
                rest.checked_sub(1)
            })
            .is_err()
    }

    /// Of a batch's early runs so many served, and so many were vain. Those of a transaction that ended before it came to them say nothing.
    fn ended(&self, used: usize, unused: usize) {
        if used + unused == 0 {
            return;
        }
        let rest = match unused > (used + unused) / UNUSED_ONE_OF {
            true => (self.rested.load(Ordering::Relaxed) * 2).clamp(1, REST_MAX),
            false => 0,
        };
        self.rested.store(rest, Ordering::Relaxed);
        self.rest.store(rest, Ordering::Relaxed);
    }
}

/// A call that has ended well before its transaction began.
pub(super) struct EarlyRun {
    /// What it left, without a transaction.
    pub(super) called: Called,
    /// Its statements.
    pub(super) statements: Early,
    /// How long it took.
    pub(super) took: Duration,
    /// From when to when, where that is traced.
    pub(super) between: Option<(SystemTime, SystemTime)>,
}

/// The early runs of one batch.
pub(super) struct EarlyRuns<'a> {
    handler: &'a HandlerContext,
    component: Option<ComponentDigest>,
    runs: HashMap<MessageId, EarlyRun>,
    used: usize,
    unused: usize,
    /// The transaction had use for all that it wanted: it did not end before.
    is_through: bool,
    /// How long all of it took.
    pub(super) took: Duration,
}

/// A batch before its transaction.
pub(super) struct Begun<'a> {
    /// Absent if it can't be used again.
    pub(super) connection: Option<Connection>,
    /// The batch, without those that are set apart.
    pub(super) batch: Vec<Member>,
    /// What is to run after it: messages that fail, and with `order_by` those behind them.
    pub(super) later: VecDeque<Vec<Member>>,
    /// The batch's early runs.
    pub(super) early: EarlyRuns<'a>,
}

impl<'a> EarlyRuns<'a> {
    /// A batch without early runs.
    pub(super) fn none(handler: &'a HandlerContext) -> Self {
        Self {
            handler,
            component: None,
            runs: HashMap::new(),
            used: 0,
            unused: 0,
            is_through: false,
            took: Duration::ZERO,
        }
    }

    /// Takes the early run of a message, if `component` ran it.
    pub(super) fn take(&mut self, id: &MessageId, component: ComponentDigest) -> Option<EarlyRun> {
        if self.component != Some(component) {
            return None;
        }
        self.runs.remove(id)
    }

    /// All messages of the transaction have run.
    pub(super) fn through(mut self) {
        self.is_through = true;
    }

    /// A run that was taken served.
    pub(super) fn served(&mut self) {
        self.used += 1;
    }

    /// A run that was taken did not.
    pub(super) fn dropped(&mut self, called: Called) {
        self.unused += 1;
        // Their lines say that nothing came of it.
        RunLogs::default().push(called.log);
    }
}

impl Drop for EarlyRuns<'_> {
    fn drop(&mut self) {
        let left = std::mem::take(&mut self.runs);
        let vain = self.unused + left.len() * usize::from(self.is_through);
        for (_, run) in left {
            self.dropped(run.called);
        }
        self.handler.early.ended(self.used, vain);
        self.handler.metrics.early_runs(self.used, self.unused);
    }
}

/// Runs what can be run of `batch` before its transaction on `connection`.
pub(super) async fn run_early(
    handler: &HandlerContext,
    connection: Connection,
    mut batch: Vec<Member>,
) -> Begun<'_> {
    let mut early = EarlyRuns::none(handler);
    let component = handler.component();
    let none = |connection, early| Begun {
        connection,
        batch: Vec::new(),
        later: VecDeque::new(),
        early,
    };
    if component.takes_batches()
        || !connection.can_run_early()
        || !batch
            .iter()
            .any(|member| may_be_early(handler, &component, member))
        || !handler.early.is_due()
    {
        return Begun {
            batch,
            ..none(Some(connection), early)
        };
    }
    early.component = Some(component.digest());
    let began = Instant::now();
    let mut tx = Tx::before_begin(connection);
    let mut failing = Vec::new();
    let mut is_certain = true;
    let mut bytes = 0;
    for (index, member) in batch.iter().enumerate() {
        if !may_be_early(handler, &component, member) {
            continue;
        }
        let is_vain = early.unused >= UNUSED_MIN
            && early.unused > (early.runs.len() + early.unused) / UNUSED_ONE_OF;
        if is_vain
            || bytes > BYTES_MAX
            || began.elapsed() > handler.config.batch.max_hold / HOLD_ONE_OF
        {
            break;
        }
        handler.begin_run(&mut tx, &component, index, member, 1);
        let started = Instant::now();
        let traced_from = telemetry::tracer().map(|_| SystemTime::now());
        let mut called = component.call_member(tx, member.for_call(1)).await;
        handler.metrics.called(called.cpu, called.memory_bytes);
        let Some(back) = called.tx.take() else {
            // A call that was cut off in its transaction comes back without one; there is none here.
            early.dropped(called);
            for member in &mut batch {
                member.is_awaited = true;
            }
            return Begun {
                batch,
                ..none(None, early)
            };
        };
        tx = back;
        match (classify(&called), tx.take_early()) {
            (Outcome::Commit, Some(statements)) => {
                bytes += statements.bytes();
                bytes += called
                    .published
                    .iter()
                    .map(|sent| sent.payload.len())
                    .sum::<usize>();
                let run = EarlyRun {
                    called,
                    statements,
                    took: started.elapsed(),
                    between: traced_from.map(|from| (from, SystemTime::now())),
                };
                early.runs.insert(member.message.id.clone(), run);
            }
            (Outcome::Failed(_), Some(statements)) => {
                failing.push(index);
                is_certain &= statements.is_empty();
                RunLogs::default().push(called.log);
            }
            _ => early.dropped(called),
        }
    }
    early.took = began.elapsed();
    let connection = Some(tx.end_before_begin());
    let (batch, later) = handler.set_apart(batch, &failing, is_certain);
    Begun {
        connection,
        batch,
        later,
        early,
    }
}

/// True if an early run of the message may be of use: it was not tried before, as far as its source knows.
fn may_be_early(handler: &HandlerContext, component: &Handler, member: &Member) -> bool {
    member.delivery.delivered <= 1 && handler.may_run_ahead(component, member, 1)
}

impl HandlerContext {
    /// Takes those that fail, by their places in order, out of a batch of which nothing has run: what runs now, and what runs later. It
    /// `is_certain` that they fail if nothing that they were told can be wrong: then there is no order to keep between them and others.
    fn set_apart(
        &self,
        mut batch: Vec<Member>,
        failing: &[usize],
        is_certain: bool,
    ) -> (Vec<Member>, VecDeque<Vec<Member>>) {
        for index in failing {
            if let Some(member) = batch.get_mut(*index) {
                // Its failure is to be what the database says.
                member.is_awaited = true;
            }
        }
        if failing.is_empty() || batch.len() == 1 {
            return (batch, VecDeque::new());
        }
        let mut parts = match &self.config.order {
            None if is_certain => without(batch, failing),
            _ => around(batch, failing),
        };
        parts.retain(|part| !part.is_empty());
        (parts.pop_front().unwrap_or_default(), parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_runs_rest_for_longer_the_longer_they_come_to_nothing() {
        let early = EarlyRunning::default();
        let rests = |early: &EarlyRunning| (0..).take_while(|_| !early.is_due()).count();
        assert_eq!(rests(&early), 0);
        for rest in [1, 2, 4, 8, 16, 16] {
            early.ended(3, 2);
            assert_eq!(rests(&early), rest);
        }
        // Few of many, or none at all, change nothing.
        early.ended(6, 2);
        early.ended(0, 0);
        assert_eq!(rests(&early), 0);
        early.ended(0, 1);
        assert_eq!(rests(&early), 1);
    }
}
