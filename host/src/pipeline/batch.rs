//! How many messages go into one transaction, and how a batch is taken apart when it can't be committed as it is.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::process::Member;

/// The share of a new measurement in what is remembered.
const NEW_SHARE: f64 = 0.2;
/// What a transaction of one message costs beside the call, until it was measured.
const SINGLE_OVERHEAD_GUESS: f64 = 0.001;
/// Lanes go apart when that promises to take at most this share of the time.
const APART_BELOW: f64 = 0.7;
/// Lanes come together again when going apart takes more than this share of the time.
const TOGETHER_ABOVE: f64 = 0.9;
/// Lanes go apart only for calls of at least so many seconds.
const APART_CALL_MIN: f64 = 0.01;
/// The same for handlers of more than one statement that writes: these may lock rows in different orders and deadlock, and each
/// deadlock costs the server's `deadlock_timeout` of 1 s.
const APART_WRITING_CALL_MIN: f64 = 0.1;
/// One lane alone goes apart, for the sake of other hosts, only when a transaction's overhead is less than this share of a call.
const LONE_LANE_BELOW: f64 = 0.05;
/// The first batches have at most so many messages; they double while they are quick.
const FIRST_SIZE: usize = 50;
/// After so many messages, those and the failures among them count half: what failed long ago says little.
const REMEMBERED: f64 = 8_192.0;
/// How long lanes stay together after single messages were in each other's way.
const TOGETHER_FOR: Duration = Duration::from_secs(60);
/// How long batches stay smaller than one whose call went over a limit; then messages may be others.
const WITHIN_LIMIT_FOR: Duration = Duration::from_secs(60);
/// How often lanes that go apart run one batch, to learn whether that still pays.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// The messages of such a batch.
const PROBE_SIZE: usize = 4;

/// The number of messages that a handler's batches may have, between 1 and `batch.max`: it follows what was measured, so
/// that locks are not held longer than `batch.max_hold`, and so that a handler that computes for long runs on all lanes at
/// once: messages of its own transaction each need no baton for themselves.
#[derive(Debug)]
pub(super) struct BatchSizes {
    max: usize,
    /// How many calls can make progress at once.
    parallel: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    now: usize,
    /// As many at most until then: a call with twice as many went over a limit.
    within_limit: Option<(usize, Instant)>,
    /// Set while lanes run single messages side by side: when the last probe began.
    apart_since: Option<Instant>,
    /// Until when they may not.
    together_until: Option<Instant>,
    /// Seconds of a transaction of one message outside its call.
    single_overhead: f64,
    /// Seconds of one call, and of one message in a batch, all told. From batches only: these meet no other lane.
    in_batch: Option<(f64, f64)>,
    /// Seconds of a batch outside its members' runs, and of one member's run with its statements.
    costs: Option<(f64, f64)>,
    /// Members that ran lately, and how many batches they made fail.
    ran: f64,
    failed: f64,
}

impl State {
    /// Returns the size with which a message takes the least time, given how often one fails: a batch of `n` takes `outside + n * run`, and
    /// each failure has half of it run again on average, `n * run / 2`. That is least a message where `n` is the square root of
    /// `2 * outside / (run * share)`.
    fn best(&self, max: usize) -> usize {
        let Some((outside, run)) = self.costs else {
            return max;
        };
        if self.failed < 1.0 {
            return max;
        }
        let best = (2.0 * outside * self.ran / (run * self.failed).max(f64::MIN_POSITIVE)).sqrt();
        (best as usize).clamp(1, max)
    }

    fn remember(&mut self, ran: usize, failed: usize) {
        self.ran += ran as f64;
        self.failed += failed as f64;
        if self.ran > REMEMBERED {
            self.ran /= 2.0;
            self.failed /= 2.0;
        }
    }
}

/// What a batch took so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    /// Messages in the transaction.
    size: usize,
    /// Handled messages among them.
    handled: usize,
    /// They were handled in one call.
    is_together: bool,
    /// All calls together.
    calling: Duration,
    /// The most statements that one of them executed.
    executed_max: usize,
    begun: Instant,
    /// The early runs, before the transaction.
    early: Duration,
    /// All runs with their statements, from the claim to what precedes the commit.
    running: Duration,
    /// From the begin to the commit, and the early runs.
    held: Duration,
}

impl Took {
    /// A transaction of `size` messages has begun, whose early runs took so long.
    pub(super) fn begin_after(early: Duration, size: usize) -> Self {
        Self {
            early,
            ..Self::begin(size)
        }
    }

    /// A transaction of `size` messages has begun.
    pub(super) fn begin(size: usize) -> Self {
        Self {
            size,
            handled: 0,
            is_together: false,
            calling: Duration::ZERO,
            executed_max: 0,
            begun: Instant::now(),
            early: Duration::ZERO,
            running: Duration::ZERO,
            held: Duration::ZERO,
        }
    }

    /// The members are claimed: their runs begin.
    pub(super) fn claimed(&mut self) {
        self.running = self.begun.elapsed();
    }

    /// All members have run, and their statements too.
    pub(super) fn ran(&mut self) {
        self.running = self.begun.elapsed().saturating_sub(self.running) + self.early;
    }

    /// Counts a call that took so long and executed so many statements.
    pub(super) fn called(&mut self, took: Duration, executed: usize) {
        self.handled += 1;
        self.calling += took;
        self.executed_max = self.executed_max.max(executed);
    }

    /// Counts a call with `handled` messages.
    pub(super) fn called_together(&mut self, took: Duration, executed: usize, handled: usize) {
        self.called(took, executed);
        self.handled = handled;
        self.is_together = true;
    }

    /// Returns how long locks have been held.
    pub(super) fn held(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The transaction has committed.
    pub(super) fn committed(&mut self) {
        self.held = self.begun.elapsed() + self.early;
    }

    /// Returns how many messages were in the transaction, and how many of them were handled.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.size, self.handled)
    }
}

impl BatchSizes {
    /// `lanes` run this handler; `cores` are there for them.
    pub(super) fn new(max: usize, lanes: usize, cores: usize) -> Self {
        Self {
            max,
            parallel: lanes.min(cores) as f64,
            state: Mutex::new(State {
                now: max.min(FIRST_SIZE),
                within_limit: None,
                apart_since: None,
                together_until: None,
                single_overhead: SINGLE_OVERHEAD_GUESS,
                in_batch: None,
                costs: None,
                ran: 0.0,
                failed: 0.0,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many messages the next batch may have.
    pub(super) fn next(&self) -> usize {
        let mut state = self.state();
        match state.apart_since {
            None => state.now.min(state.best(self.max)),
            Some(since) if since.elapsed() < PROBE_EVERY => 1,
            Some(_) => {
                state.apart_since = Some(Instant::now());
                PROBE_SIZE.min(state.now)
            }
        }
    }

    /// Returns for which size of batches messages are taken in hand: that of whole ones, but not less than that of the first ones, so that
    /// messages which wait for a retry are not in the way of others.
    pub(super) fn reckoned(&self) -> usize {
        let state = self.state();
        let whole = state.now.min(state.best(self.max));
        whole.max(FIRST_SIZE.min(self.max))
    }

    /// True if single messages may run side by side, on all lanes and hosts.
    pub(super) fn is_apart(&self) -> bool {
        // Who wants transactions of one message wants them on all lanes.
        self.max == 1 || self.state().apart_since.is_some()
    }

    /// A message was in another one's way: they would meet again if they went on side by side.
    pub(super) fn collided(&self) {
        let mut state = self.state();
        if state.apart_since.take().is_some() {
            state.together_until = Some(Instant::now() + TOGETHER_FOR);
        }
    }

    /// Learns from a batch: grow if there is room, shrink if locks were held for too long, go apart if calls dominate.
    pub(super) fn committed(&self, took: &Took, max_hold: Duration) {
        let mut state = self.state();
        if took.held > max_hold {
            state.now = (took.size / 2).clamp(1, self.max);
        } else if took.size >= state.now.min(state.best(self.max)) && took.held < max_hold / 4 {
            let most = match state.within_limit {
                Some((fitting, until)) if Instant::now() < until => fitting,
                _ => self.max,
            };
            state.now = state.now.saturating_mul(2).min(most);
        }
        if took.is_together {
            // What a call with many messages takes says nothing about one with a single message, for which nobody writes such a handler.
            state.apart_since = None;
            return;
        }
        if took.handled == 0 {
            return;
        }
        state.remember(took.handled, 0);
        if took.size > 1 {
            let outside = took.held.saturating_sub(took.running).as_secs_f64();
            let run = took.running.as_secs_f64() / took.handled as f64;
            match &mut state.costs {
                None => state.costs = Some((outside, run)),
                Some((old_outside, old_run)) => {
                    blend(old_outside, outside);
                    blend(old_run, run);
                }
            }
        }
        let calling = took.calling.as_secs_f64() / took.handled as f64;
        let total = took.held.as_secs_f64() / took.size as f64;
        if took.size == 1 {
            blend(&mut state.single_overhead, total - calling);
            return;
        }
        let (calling, total) = match &mut state.in_batch {
            None => *state.in_batch.insert((calling, total)),
            Some((old_calling, old_total)) => {
                blend(old_calling, calling);
                blend(old_total, total);
                (*old_calling, *old_total)
            }
        };
        let (pays, pays_no_more) = if self.parallel < 2.0 {
            let overhead = state.single_overhead / calling;
            (overhead < LONE_LANE_BELOW, overhead > 2.0 * LONE_LANE_BELOW)
        } else {
            let apart = (calling + state.single_overhead) / self.parallel;
            (apart < APART_BELOW * total, apart > TOGETHER_ABOVE * total)
        };
        let call_min = match took.executed_max {
            0 | 1 => APART_CALL_MIN,
            _ => APART_WRITING_CALL_MIN,
        };
        let now = Instant::now();
        match state.apart_since {
            None if pays
                && calling >= call_min
                && state.together_until.is_none_or(|until| until <= now) =>
            {
                state.apart_since = Some(now);
            }
            Some(_) if pays_no_more => state.apart_since = None,
            _ => {}
        }
    }

    /// Of a batch nothing stays, because of its member number `index`, from 0.
    pub(super) fn failed(&self, index: usize) {
        self.state().remember(index + 1, 1);
    }

    /// A call with so many messages went over a limit, and none of them would have done so alone.
    pub(super) fn over_limit(&self, messages: usize) {
        let fitting = (messages / 2).clamp(1, self.max);
        let mut state = self.state();
        state.now = state.now.min(fitting);
        state.within_limit = Some((fitting, Instant::now() + WITHIN_LIMIT_FOR));
    }

    /// Only `fitting` messages of a batch fitted.
    pub(super) fn too_long(&self, fitting: usize) {
        self.state().now = fitting.clamp(1, self.max);
    }
}

fn blend(old: &mut f64, new: f64) {
    *old += (new - *old) * NEW_SHARE;
}

/// Cuts `members` into batches in which no id occurs twice, in their order: a second message of an id waits for the
/// first one's batch, and is then a duplicate, a conflict, or the one that is tried next.
pub(super) fn without_twins(members: Vec<Member>) -> Vec<Vec<Member>> {
    let mut batches: Vec<Vec<Member>> = Vec::new();
    let mut seen: Vec<HashSet<String>> = Vec::new();
    for member in members {
        let id = member.message.id.as_str();
        let place = seen.iter().position(|ids| !ids.contains(id));
        match place {
            Some(place) => {
                seen[place].insert(id.to_owned());
                batches[place].push(member);
            }
            None => {
                seen.push(HashSet::from([id.to_owned()]));
                batches.push(vec![member]);
            }
        }
    }
    batches
}

/// Cuts a batch that was in somebody's way into two halves.
pub(super) fn halves(mut batch: Vec<Member>) -> [Vec<Member>; 2] {
    let second = batch.split_off(batch.len() / 2);
    [batch, second]
}

/// Takes the members that failed, given in order, out of a batch: the others together, then each of them alone.
pub(super) fn without(batch: Vec<Member>, failing: &[usize]) -> VecDeque<Vec<Member>> {
    let mut well = Vec::with_capacity(batch.len());
    let mut parts = VecDeque::with_capacity(failing.len() + 1);
    for (index, member) in batch.into_iter().enumerate() {
        match failing.binary_search(&index) {
            Ok(_) => parts.push_back(vec![member]),
            Err(_) => well.push(member),
        }
    }
    parts.push_front(well);
    parts
}

/// Cuts a batch around the members that failed, given in order: each of them alone, and what stands before, between and behind them.
pub(super) fn around(mut batch: Vec<Member>, failing: &[usize]) -> VecDeque<Vec<Member>> {
    let mut parts = VecDeque::new();
    for &index in failing.iter().rev() {
        parts.push_front(batch.split_off(index + 1));
        parts.push_front(batch.split_off(index));
    }
    parts.push_front(batch);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_HOLD: Duration = Duration::from_millis(500);

    /// A batch without calls teaches only how long locks are held.
    fn held(size: usize, milliseconds: u64) -> Took {
        Took {
            held: Duration::from_millis(milliseconds),
            ..Took::begin(size)
        }
    }

    fn took(size: usize, calling: Duration, overhead: Duration) -> Took {
        let calling = calling * size as u32;
        Took {
            handled: size,
            calling,
            executed_max: 1,
            held: calling + overhead,
            ..Took::begin(size)
        }
    }

    #[test]
    fn sizes_follow_the_time_that_locks_are_held() {
        let sizes = BatchSizes::new(100, 4, 4);
        sizes.too_long(3);
        assert_eq!(sizes.next(), 3);
        // Full and fast: more. Not full: nothing is known. Too long: half.
        sizes.committed(&held(3, 10), MAX_HOLD);
        assert_eq!(sizes.next(), 6);
        sizes.committed(&held(2, 1), MAX_HOLD);
        assert_eq!(sizes.next(), 6);
        sizes.committed(&held(6, 750), MAX_HOLD);
        assert_eq!(sizes.next(), 3);
        sizes.too_long(0);
        assert_eq!(sizes.next(), 1);
        for _ in 0..20 {
            sizes.committed(&held(100, 0), MAX_HOLD);
        }
        assert_eq!(sizes.next(), 100);
    }

    #[test]
    fn the_first_batches_are_small_and_quick_ones_grow() {
        let sizes = BatchSizes::new(500, 4, 4);
        assert_eq!(sizes.next(), FIRST_SIZE);
        for _ in 0..4 {
            sizes.committed(&held(sizes.next(), 5), MAX_HOLD);
        }
        assert_eq!(sizes.next(), 500);
        assert_eq!(BatchSizes::new(3, 4, 4).next(), 3);
    }

    #[test]
    fn the_more_messages_fail_the_smaller_batches_are() {
        // 4 ms around a batch, 40 us a message: with 1 % failing the best is the root of 2 * 4000 / (40 * 0.01), 141.
        let batch = |size: usize| {
            let running = Duration::from_micros(40) * size as u32;
            Took {
                handled: size,
                calling: running,
                executed_max: 1,
                running,
                held: running + Duration::from_millis(4),
                ..Took::begin(size)
            }
        };
        let sizes = BatchSizes::new(500, 4, 4);
        for _ in 0..4 {
            sizes.committed(&batch(500), MAX_HOLD);
        }
        assert_eq!(sizes.next(), 500, "none fails");
        for _ in 0..200 {
            sizes.failed(49);
            sizes.committed(&batch(50), MAX_HOLD);
        }
        let next = sizes.next();
        assert!((130..=150).contains(&next), "{next}");
        for _ in 0..60 {
            sizes.committed(&batch(1_000), MAX_HOLD);
        }
        assert_eq!(sizes.next(), 500, "none fails any more");
    }

    #[test]
    fn batches_stay_within_a_limit_that_one_went_over() {
        let sizes = BatchSizes::new(100, 4, 4);
        sizes.over_limit(50);
        assert_eq!(sizes.next(), 25);
        sizes.too_long(3);
        for _ in 0..20 {
            sizes.committed(&held(100, 0), MAX_HOLD);
        }
        assert_eq!(sizes.next(), 25, "not again at once");
        sizes.over_limit(1);
        assert_eq!(sizes.next(), 1);
    }

    #[test]
    fn a_handler_of_batches_keeps_its_batches() {
        let sizes = BatchSizes::new(10, 4, 4);
        let overhead = Duration::from_millis(1);
        for _ in 0..20 {
            sizes.committed(&took(4, Duration::from_millis(20), overhead), MAX_HOLD);
        }
        assert!(sizes.is_apart());
        // Another component was swapped in.
        let together = Took {
            is_together: true,
            ..took(1, Duration::from_millis(20), overhead)
        };
        sizes.committed(&together, MAX_HOLD);
        assert_eq!(sizes.next(), 10);
    }

    #[test]
    fn lanes_go_apart_only_when_calls_dominate() {
        let overhead = Duration::from_millis(1);
        let quick = took(10, Duration::from_micros(100), overhead);
        let slow = took(10, Duration::from_millis(12), overhead);
        let sizes = BatchSizes::new(10, 4, 2);
        sizes.committed(&took(10, Duration::from_millis(8), overhead), MAX_HOLD);
        assert_eq!(sizes.next(), 10, "too short for the risk of a deadlock");
        let sizes = BatchSizes::new(10, 4, 2);
        sizes.committed(&quick, MAX_HOLD);
        assert_eq!(sizes.next(), 10, "one commit for many is cheaper");
        for _ in 0..20 {
            sizes.committed(&slow, MAX_HOLD);
        }
        assert_eq!(sizes.next(), 1, "two calls at once are faster");
        // What single messages take says nothing about batches: they may have met each other's locks.
        sizes.committed(&took(1, Duration::from_micros(100), overhead), MAX_HOLD);
        assert_eq!(sizes.next(), 1);
        for _ in 0..20 {
            sizes.committed(&quick, MAX_HOLD);
        }
        assert_eq!(sizes.next(), 10);
    }

    #[test]
    fn one_lane_goes_apart_only_when_that_costs_it_nothing() {
        let overhead = Duration::from_millis(1);
        for (lanes, cores) in [(1, 8), (8, 1)] {
            let sizes = BatchSizes::new(10, lanes, cores);
            for _ in 0..20 {
                sizes.committed(&took(4, Duration::from_millis(5), overhead), MAX_HOLD);
            }
            assert!(!sizes.is_apart(), "{lanes} lanes on {cores} cores");
            for _ in 0..20 {
                sizes.committed(&took(2, Duration::from_millis(45), overhead), MAX_HOLD);
            }
            assert!(sizes.is_apart(), "{lanes} lanes on {cores} cores");
        }
    }

    #[test]
    fn calls_that_write_more_than_once_stay_together_for_longer() {
        let overhead = Duration::from_millis(1);
        let writing = |call| Took {
            executed_max: 2,
            ..took(4, Duration::from_millis(call), overhead)
        };
        let sizes = BatchSizes::new(10, 4, 4);
        sizes.committed(&writing(50), MAX_HOLD);
        assert!(!sizes.is_apart());
        let sizes = BatchSizes::new(10, 4, 4);
        sizes.committed(&writing(120), MAX_HOLD);
        assert!(sizes.is_apart());
    }

    #[test]
    fn messages_in_each_others_way_end_it() {
        let slow = took(4, Duration::from_millis(20), Duration::from_millis(1));
        let sizes = BatchSizes::new(10, 4, 4);
        sizes.committed(&slow, MAX_HOLD);
        assert!(sizes.is_apart());
        sizes.collided();
        assert!(!sizes.is_apart());
        sizes.committed(&slow, MAX_HOLD);
        assert!(!sizes.is_apart(), "not again at once");
        assert!(BatchSizes::new(1, 4, 4).is_apart());
    }
}
