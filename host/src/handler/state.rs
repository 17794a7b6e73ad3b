//! What a call's wasm store owns, and what it may use.
//!
//! **Invariant**: lives for one call; the `Tx` leaves it only when the wasm store is gone.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wasmtime::ResourceLimiter;

use super::HandlerOptions;
use super::bindings::hapax::handler::types;
use super::engine::TICK;
use super::log::CallLog;
use super::outbox::Outbox;
use super::sql::lower_error;
use super::wasi::Wasi;
use super::watch::Watch;
use crate::message::{Instant, MessageId};
use crate::metrics;
use crate::store::{Column, Cursor, SqlError, Tx};

/// The most core instances of one component: components of some languages are linked of dozens of modules.
pub(super) const CORE_INSTANCES_MAX: u32 = 50;
/// The most linear memories of one component.
pub(super) const MEMORIES_MAX: u32 = 2;
/// The most tables of one component.
pub(super) const TABLES_MAX: u32 = 10;
/// The most elements of one table that a handler can be given: the pool reserves room for as many.
pub(super) const TABLE_ELEMENTS_MAX: usize = 1_000_000;

/// The data of a call's wasm store.
pub(super) struct State {
    pub(super) tx: Tx,
    pub(super) options: Arc<HandlerOptions>,
    /// The messages of the call: one, unless the handler takes batches.
    pub(super) message_ids: Vec<MessageId>,
    pub(super) limiter: Limiter,
    pub(super) outbox: Outbox,
    pub(super) log: CallLog,
    /// Of the cursors that the guest has not dropped.
    pub(super) cursor_columns: HashMap<Cursor, Arc<[Column]>>,
    /// True once the call has run a statement.
    pub(super) sql_called: bool,
    /// Rows of parameters that statements were executed with.
    pub(super) executed: usize,
    /// Statements of all kinds so far, those of `execute-many` counted once for each row.
    pub(super) statements: u64,
    /// Who sees the calls to the host, if anybody does.
    pub(super) watch: Option<Arc<Watch>>,
    /// When the message, or the first of a batch, was published.
    pub(super) published_at: Option<Instant>,
    /// Made at the first call of WASI.
    pub(super) wasi: Option<Box<Wasi>>,
    /// The limits that the call was told of by an error.
    pub(super) limits_met: BTreeSet<String>,
}

impl State {
    /// Lowers an error for the guest. A limit that it names is counted once a call.
    pub(super) fn refuse(&mut self, error: SqlError) -> types::Error {
        if let Some(limit) = error.code.strip_prefix("limit.")
            && !self.limits_met.contains(limit)
        {
            let whole = self.log.whole();
            tracing::info!(
                handler = %self.options.name,
                message_id = whole.message_id(),
                subject = whole.subject(),
                attempt = whole.attempt(),
                messages = whole.messages(),
                trace_id = whole.trace_id(),
                limit,
                "a call met a limit: {}",
                error.message
            );
            metrics::limit_met(&self.options.name, limit);
            self.limits_met.insert(limit.to_owned());
        }
        lower_error(error)
    }
}

/// Counts the linear memory of all modules of a call together.
#[derive(Debug)]
pub(super) struct Limiter {
    memory_bytes_max: usize,
    table_elements_max: usize,
    memory_bytes: usize,
    last_growth_bytes: usize,
    refused: Option<Refused>,
}

/// Growth that a limit has refused: what it would have grown to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// All linear memories together, in bytes.
    Memory(usize),
    /// One table, in elements.
    Table(usize),
}

impl Limiter {
    pub(super) fn new(memory_bytes_max: usize, table_elements_max: usize) -> Self {
        Self {
            memory_bytes_max,
            table_elements_max,
            memory_bytes: 0,
            last_growth_bytes: 0,
            refused: None,
        }
    }

    /// Returns what was refused last, if anything was.
    pub(super) fn refused(&self) -> Option<Refused> {
        self.refused
    }

    /// Returns all linear memories together, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current);
        let grown = self.memory_bytes.saturating_add(growth);
        if grown > self.memory_bytes_max {
            self.refused = Some(Refused::Memory(grown));
            return Ok(false);
        }
        self.memory_bytes = grown;
        self.last_growth_bytes = growth;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        // It was counted when it was permitted.
        self.memory_bytes -= std::mem::take(&mut self.last_growth_bytes);
        Ok(())
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > self.table_elements_max {
            self.refused = Some(Refused::Table(desired));
            return Ok(false);
        }
        Ok(true)
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES_MAX as usize
    }

    fn tables(&self) -> usize {
        TABLES_MAX as usize
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX as usize
    }
}

/// Measures the processor time of one call: that of its polls, on whichever thread each of them ran.
///
/// What counts is the thread's own clock, which counts neither what the call waited for nor what the thread stood still for others. To
/// ask for it takes as long as a short call's own work, so polls that end before the first tick of the epoch count as they took, up to one
/// tick, until the call has spent `EXACT_FROM` on them.
#[derive(Debug)]
pub(super) struct Meter {
    spent_nanoseconds: AtomicU64,
    /// By the clock of the machine.
    poll_began_nanoseconds: AtomicU64,
    /// What the thread's clock showed, or would have shown, when the poll began; `UNKNOWN` until it is asked for.
    thread_began_nanoseconds: AtomicU64,
}

const UNKNOWN: u64 = u64::MAX;
/// Below all limits that are set in earnest.
const EXACT_FROM: Duration = Duration::from_millis(20);
const TICK_NANOSECONDS: u64 = TICK.as_nanos() as u64;

impl Default for Meter {
    fn default() -> Self {
        Self {
            spent_nanoseconds: AtomicU64::new(0),
            poll_began_nanoseconds: AtomicU64::new(0),
            thread_began_nanoseconds: AtomicU64::new(UNKNOWN),
        }
    }
}

impl Meter {
    /// Returns the time spent so far. Call it within a poll, at a tick.
    pub(super) fn spent_in_poll(&self) -> Duration {
        let now = thread_cpu_nanoseconds();
        let mut began = self.thread_began_nanoseconds.load(Ordering::Relaxed);
        if began == UNKNOWN {
            // Computing, it would have been looked at one tick after it began.
            began = now.saturating_sub(self.elapsed_nanoseconds().min(TICK_NANOSECONDS));
            self.thread_began_nanoseconds
                .store(began, Ordering::Relaxed);
        }
        self.spent() + Duration::from_nanos(now.saturating_sub(began))
    }

    /// Returns the time spent in the polls that have ended.
    pub(super) fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent_nanoseconds.load(Ordering::Relaxed))
    }

    pub(super) fn poll_begins(&self) {
        self.poll_began_nanoseconds.store(
            nanoseconds(rustix::time::ClockId::Monotonic),
            Ordering::Relaxed,
        );
        let began = match self.spent() < EXACT_FROM {
            true => UNKNOWN,
            false => thread_cpu_nanoseconds(),
        };
        self.thread_began_nanoseconds
            .store(began, Ordering::Relaxed);
    }

    pub(super) fn poll_ends(&self) {
        let spent = match self.thread_began_nanoseconds.load(Ordering::Relaxed) {
            UNKNOWN => {
                let elapsed = self.elapsed_nanoseconds().min(TICK_NANOSECONDS);
                self.spent() + Duration::from_nanos(elapsed)
            }
            _ => self.spent_in_poll(),
        };
        self.spent_nanoseconds.store(
            u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    /// Since the poll began, by the clock of the machine.
    fn elapsed_nanoseconds(&self) -> u64 {
        nanoseconds(rustix::time::ClockId::Monotonic)
            .saturating_sub(self.poll_began_nanoseconds.load(Ordering::Relaxed))
    }
}

fn thread_cpu_nanoseconds() -> u64 {
    nanoseconds(rustix::time::ClockId::ThreadCPUTime)
}

fn nanoseconds(clock: rustix::time::ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    (now.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_over_all_modules() {
        let mut limiter = Limiter::new(100, 10);
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(!limiter.memory_growing(0, 50, None).unwrap());
        assert_eq!(limiter.refused(), Some(Refused::Memory(110)));
        assert!(limiter.memory_growing(60, 100, None).unwrap());
        assert!(!limiter.memory_growing(100, usize::MAX, None).unwrap());
        assert!(limiter.table_growing(0, 10, None).unwrap());
        assert!(!limiter.table_growing(10, 11, None).unwrap());
        assert_eq!(limiter.refused(), Some(Refused::Table(11)));
    }

    #[test]
    fn growth_that_failed_is_not_counted() {
        let mut limiter = Limiter::new(100, 10);
        assert!(limiter.memory_growing(0, 100, None).unwrap());
        limiter
            .memory_grow_failed(wasmtime::Error::msg("no memory"))
            .unwrap();
        assert!(limiter.memory_growing(0, 100, None).unwrap());
    }

    #[test]
    fn waiting_costs_nothing_and_work_does() {
        let meter = Meter::default();
        meter.poll_begins();
        std::thread::sleep(Duration::from_millis(50));
        meter.poll_ends();
        assert!(meter.spent() < Duration::from_millis(25), "{meter:?}");
        meter.poll_begins();
        while meter.spent_in_poll() < Duration::from_millis(30) {}
        meter.poll_ends();
        assert!(meter.spent() >= Duration::from_millis(30), "{meter:?}");
    }

    #[test]
    fn many_short_polls_add_up() {
        let meter = Meter::default();
        let began = thread_cpu_nanoseconds();
        let worked = || Duration::from_nanos(thread_cpu_nanoseconds() - began);
        while worked() < Duration::from_millis(60) {
            meter.poll_begins();
            let poll = thread_cpu_nanoseconds();
            while thread_cpu_nanoseconds() - poll < 1_000_000 {}
            meter.poll_ends();
        }
        // What lies between the polls is little; by the clock of the machine they may have taken longer, up to where it is exact.
        let spent = meter.spent();
        assert!(spent > worked() / 2, "{spent:?} of {:?}", worked());
        assert!(
            spent < worked() + EXACT_FROM + TICK,
            "{spent:?} of {:?}",
            worked()
        );
    }
}
