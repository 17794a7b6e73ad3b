//! Hands a handler's deliveries to its lanes, and holds those that wait for a retry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::HandlerContext;
use super::lane::Lane;
use super::order::Ready;
use super::trace;
use crate::config::HandlerConfig;
use crate::fault;
use crate::health::PULSE_INTERVAL;
use crate::idle::Seat;
use crate::source::{Delivery, Source};

/// Full batches in hand for each lane: one runs, one stands ready. With fewer, lanes find less than a full batch when their turn
/// comes.
const BATCHES_PER_LANE: usize = 2;
/// Of large batches fewer do, since they run one after the other on all lanes together: one runs, one waits for its turn, one is being
/// filled.
const LARGE_BATCHES: usize = 3;
/// Below so many deliveries in hand batches are not large.
const LARGE_FROM: usize = 512;
/// Payloads in hand are kept below this by the average of the last ones; `IN_HAND_MIN` deliveries always may be.
const IN_HAND_BYTES: usize = 64 << 20;
/// How long messages wait at the most for a batch that began before them: it may end soon, and theirs gets fuller
/// meanwhile. Idle lanes wait for nothing.
const GATHER: Duration = Duration::from_millis(20);
/// Deliveries in hand at the least, so that some may wait for a retry while others run.
const IN_HAND_MIN: usize = 64;
/// The most payload bytes in one batch; a larger message runs alone.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// The pause after the source could not be reached.
const SOURCE_PAUSE: Duration = Duration::from_millis(500);
/// How often an idle pipeline asks its source whether everything is done.
const IDLE_CHECK: Duration = Duration::from_millis(100);

/// When a pipeline ends.
#[derive(Debug)]
pub enum Stop {
    /// When it is drained.
    WhenDrained,
    /// Also when nothing waits in its source, nothing is in hand, and so it is with everybody who has a seat.
    WhenIdle(Seat),
}

/// A lane's task panicked, which is a bug. Nothing is lost: what it had comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneDied;

/// Tells pipelines to take no more and to finish what runs.
#[derive(Clone, Debug)]
pub(crate) struct Drain(watch::Receiver<bool>);

impl Drain {
    /// One that never begins, of whoever has no host.
    pub(super) fn never() -> Self {
        let (_, drain) = watch::channel(false);
        Self(drain)
    }

    /// True once the host drains.
    pub(crate) fn is_draining(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the host drains.
    pub(super) async fn wait(&mut self) {
        // An error means that the sender is gone, and with it the host.
        let _ = self.0.wait_for(|draining| *draining).await;
    }
}

/// Returns how many deliveries of a handler are in hand at the most.
pub fn in_hand_max(handler: &HandlerConfig) -> usize {
    in_hand(handler.lanes, handler.batch.max)
}

/// Returns how many deliveries keep so many lanes busy with batches of such a size.
fn in_hand(lanes: usize, size: usize) -> usize {
    (lanes * size * BATCHES_PER_LANE)
        .min((size * LARGE_BATCHES).max(LARGE_FROM))
        .max(IN_HAND_MIN)
}

/// Runs a handler's pipeline until it is told to stop. Await it to the end.
///
/// At the drain, deliveries that were not run yet are given back, uncharged; those that wait for a retry with what is left
/// of their wait. So it is when a lane dies.
///
/// # Errors
/// `LaneDied`: the process should end, since what the lane had may wait for it until then.
pub async fn run(
    handler: Arc<HandlerContext>,
    mut source: Box<dyn Source>,
    stop: Stop,
    drain: watch::Receiver<bool>,
) -> Result<(), LaneDied> {
    let mut drain = Drain(drain);
    let (report_sender, mut reports) = mpsc::unbounded_channel();
    let lanes: Vec<_> = (0..handler.config.lanes)
        .map(|number| {
            let (work_sender, work) = mpsc::channel(1);
            let lane = Lane::new(Arc::clone(&handler), drain.clone());
            (
                work_sender,
                tokio::spawn(lane.run(number, work, report_sender.clone())),
            )
        })
        .collect();
    drop(report_sender);

    let mut free: Vec<usize> = (0..lanes.len()).rev().collect();
    let mut running = vec![0; lanes.len()];
    let mut ready = Ready::new(handler.config.order.clone());
    let mut payloads = Payloads::default();
    let mut waiting = Waiting::default();
    let mut source_pause: Option<Instant> = None;
    // When each lane's batch has run for so long that nothing waits for it any more.
    let mut slow_from: Vec<Option<Instant>> = vec![None; lanes.len()];
    let mut result = Ok(());
    let pulse = handler.health.pulse();
    loop {
        pulse.beat();
        let mut gather = None;
        while let Some(lane) = free.last().copied() {
            let size = handler.sizes.next();
            let now = Instant::now();
            if !ready.fills(size, BATCH_BYTES_MAX) {
                gather = slow_from
                    .iter()
                    .flatten()
                    .max()
                    .filter(|at| **at > now)
                    .copied();
                if gather.is_some() {
                    break;
                }
            }
            let batch = ready.next_batch(lane, size, BATCH_BYTES_MAX);
            if batch.is_empty() {
                break;
            }
            slow_from[lane] = Some(now + GATHER);
            free.pop();
            running[lane] = batch.len();
            if lanes[lane].0.send(batch).await.is_err() {
                // The lane's task died, which is a bug; the message goes back with its delivery.
                tracing::error!(handler = %handler.name, lane, "the lane is gone");
            }
        }
        let taken = running.iter().sum::<usize>() + ready.len() + waiting.len();
        // While batches stay small, because calls take long or fail, other hosts get what would only wait here.
        let in_hand_max = in_hand(handler.config.lanes, handler.sizes.reckoned());
        let room = payloads.fitting(in_hand_max).saturating_sub(taken);

        tokio::select! {
            biased;
            () = drain.wait() => break,
            // Never loses a report: the channel keeps it.
            Some((lane, report)) = reports.recv() => {
                if report.is_dead {
                    result = Err(LaneDied);
                    break;
                }
                free.push(lane);
                running[lane] = 0;
                slow_from[lane] = None;
                for (wait, delivery) in report.retries {
                    ready.hold_behind(&delivery);
                    waiting.push(Instant::now() + wait, delivery);
                }
                ready.extend(report.behind);
                ready.lane_is_done(lane);
            }
            // Dropped timers are made anew.
            () = sleep_until(waiting.next_due()) => ready.take_back(waiting.take_due(Instant::now())),
            () = sleep_until(gather), if gather.is_some() => {}
            () = tokio::time::sleep(PULSE_INTERVAL) => {}
            () = sleep_until(source_pause), if source_pause.is_some() => source_pause = None,
            // `Source::next` says that dropping it loses nothing.
            fetched = source.next(room), if room > 0 && source_pause.is_none() => match fetched {
                Ok(mut deliveries) => {
                    trace::fetched(&mut deliveries);
                    if let Stop::WhenIdle(seat) = &stop {
                        seat.busy();
                    }
                    fault::point("after-fetch");
                    payloads.came(&deliveries);
                    ready.extend(deliveries);
                }
                // `Merged` tells of its sides, and waits for them by itself.
                Err(error) => {
                    tracing::error!(handler = %handler.name, %error, "the source ended");
                    source_pause = Some(Instant::now() + SOURCE_PAUSE);
                }
            },
            () = tokio::time::sleep(IDLE_CHECK), if matches!(stop, Stop::WhenIdle(_)) && taken == 0 => {
                if let Stop::WhenIdle(seat) = &stop {
                    let work = seat.work();
                    match source.backlog().await {
                        Ok(0) if seat.found_nothing(work) => break,
                        Ok(_) => {}
                        Err(error) => tracing::warn!(handler = %handler.name, %error, "cannot ask for the backlog"),
                    }
                }
            }
        }
    }

    drop(pulse);
    // Drain: what did not start goes back, what runs is finished. First nothing more may come: what goes back would come
    // to this host again.
    source.stop().await;
    let now = Instant::now();
    let unrun = ready
        .into_deliveries()
        .map(|delivery| (Duration::ZERO, delivery));
    for (wait, delivery) in unrun.chain(waiting.into_deliveries(now)) {
        if let Err(error) = delivery.nak(wait).await {
            // It comes again by itself, later.
            tracing::debug!(handler = %handler.name, %error, "could not give a message back");
        }
    }
    for (work, task) in lanes {
        drop(work);
        if let Err(error) = task.await {
            tracing::error!(handler = %handler.name, %error, "a lane died");
            result = Err(LaneDied);
        }
    }
    source.close().await;
    result
}

/// Waits until `due`, or for ever.
async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// How large payloads are, so that not too many of large ones are in hand.
#[derive(Debug, Default)]
struct Payloads {
    average_bytes: f64,
}

impl Payloads {
    /// The share of each new one in the average.
    const NEW_SHARE: f64 = 1.0 / 64.0;

    fn came(&mut self, deliveries: &[Delivery]) {
        for delivery in deliveries {
            self.came_of(delivery.incoming.payload.len());
        }
    }

    fn came_of(&mut self, bytes: usize) {
        self.average_bytes += (bytes as f64 - self.average_bytes) * Self::NEW_SHARE;
    }

    /// Returns how many of them may be in hand, `max` at the most.
    fn fitting(&self, max: usize) -> usize {
        let fitting = IN_HAND_BYTES as f64 / self.average_bytes.max(1.0);
        max.min((fitting as usize).max(IN_HAND_MIN))
    }
}

/// Deliveries that wait for a retry, by the time they are due.
#[derive(Default)]
struct Waiting {
    by_due: BTreeMap<(Instant, u64), Delivery>,
    pushed: u64,
}

impl Waiting {
    fn len(&self) -> usize {
        self.by_due.len()
    }

    fn push(&mut self, due: Instant, delivery: Delivery) {
        self.by_due.insert((due, self.pushed), delivery);
        self.pushed += 1;
    }

    fn next_due(&self) -> Option<Instant> {
        self.by_due.first_key_value().map(|((due, _), _)| *due)
    }

    /// Returns each delivery with what is left of its wait.
    fn into_deliveries(self, now: Instant) -> impl Iterator<Item = (Duration, Delivery)> {
        self.by_due
            .into_iter()
            .map(move |((due, _), delivery)| (due.saturating_duration_since(now), delivery))
    }

    fn take_due(&mut self, now: Instant) -> Vec<Delivery> {
        let later = self.by_due.split_off(&(now, u64::MAX));
        std::mem::replace(&mut self.by_due, later)
            .into_values()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_large_payloads_fewer_are_in_hand() {
        let mut payloads = Payloads::default();
        assert_eq!(payloads.fitting(1_500), 1_500);
        for _ in 0..64 {
            payloads.came_of(1 << 20);
        }
        let fitting = payloads.fitting(1_500);
        assert!((IN_HAND_MIN..=110).contains(&fitting), "{fitting}");
        for _ in 0..640 {
            payloads.came_of(8 << 20);
        }
        assert_eq!(payloads.fitting(1_500), IN_HAND_MIN);
        for _ in 0..1_000 {
            payloads.came_of(100);
        }
        assert_eq!(payloads.fitting(1_500), 1_500);
    }
}
