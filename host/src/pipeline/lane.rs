//! A lane: one bare connection and one batch at a time.
//!
//! When a batch can't be committed as it is, nothing of it stays and its parts run again: those before the member that failed
//! as one transaction, it alone, the rest; of a call with many messages those that are well, and each that failed alone. Only a member
//! that failed alone is charged, so siblings never are.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::HandlerContext;
use super::ahead::after_misled;
use super::batch::{around, halves, without, without_twins};
use super::dispatch::Drain;
use super::early::{Begun, run_early};
use super::order;
use super::outage::Outage;
use super::park::{Doomed, Parking, park};
use super::policy::Failure;
use super::process::{Failing, Member, Processed, process};
use super::suspect::apart;
use super::told::Became;
use super::waiting::HELD_MAX;
use crate::message::{ComponentDigest, FailureClass, Message, ShortHash};
use crate::source::Delivery;
use crate::store::{Connection, MarkedFailure, PutOff, SessionOptions, StoreError};
use crate::telemetry::context::trace_id;
use crate::text::one_line;

/// The longest wait for a lock: above it a claim counts as in flight elsewhere.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How much longer than a whole call the database lets one statement run. The call's own limit must come first: it is what
/// the message is charged with, whatever the handler makes of an error. This one ends what is left of the statement.
const STATEMENT_MARGIN: Duration = Duration::from_secs(1);
/// How long a row of a queue is out of other hosts' sight while its failure is being charged, at the most.
const CHARGE_WAIT_MAX: Duration = Duration::from_secs(1);
/// The first pause before something is run again that nobody is charged for.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What a lane tells the dispatcher when it is done with what it was given.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// To be run again after a wait; held, and kept alive at the source, until then. All others are answered, or dropped so
    /// that the source delivers them again.
    pub(super) retries: Vec<(Duration, Delivery)>,
    /// With `order_by`: they stand behind one of `retries`, and did not run.
    pub(super) behind: Vec<Delivery>,
    /// The lane panicked, which is a bug: it takes no more, and what it had is dropped.
    pub(super) is_dead: bool,
}

/// Reports the lane's death if its task panics.
struct DeathNotice {
    number: usize,
    reports: mpsc::UnboundedSender<(usize, Report)>,
}

impl Drop for DeathNotice {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let report = Report {
                is_dead: true,
                ..Report::default()
            };
            // An error means that the dispatcher is gone, too.
            let _ = self.reports.send((self.number, report));
        }
    }
}

/// Puts parts of a batch back in front of what waits, in their order.
fn again(
    work: &mut VecDeque<Vec<Member>>,
    parts: impl IntoIterator<Item = Vec<Member>, IntoIter: DoubleEndedIterator>,
) {
    for part in parts.into_iter().rev() {
        if !part.is_empty() {
            work.push_front(part);
        }
    }
}

/// One lane of a handler.
pub(super) struct Lane {
    pub(super) handler: Arc<HandlerContext>,
    pub(super) drain: Drain,
    pub(super) connection: Option<Connection>,
    pub(super) outage: Outage,
    /// The first pause before something is run again that nobody is charged for.
    pub(super) pause_min: Duration,
    /// The longest wait of a message in hand; it is kept alive at its source meanwhile.
    pub(super) held_max: Duration,
}

impl Lane {
    pub(super) fn new(handler: Arc<HandlerContext>, drain: Drain) -> Self {
        let store = handler.health.part("store");
        Self {
            handler,
            drain,
            connection: None,
            outage: Outage::new(store),
            pause_min: PAUSE_MIN,
            held_max: HELD_MAX,
        }
    }

    /// Takes batches until there are no more, and reports each.
    pub(super) async fn run(
        mut self,
        number: usize,
        mut work: mpsc::Receiver<Vec<Delivery>>,
        reports: mpsc::UnboundedSender<(usize, Report)>,
    ) {
        let _notice = DeathNotice {
            number,
            reports: reports.clone(),
        };
        while let Some(deliveries) = work.recv().await {
            let report = self.take_through(deliveries).await;
            if reports.send((number, report)).is_err() {
                // The dispatcher is gone: nothing waits for this lane any more.
                break;
            }
        }
    }

    /// Takes deliveries to their end. Those that are to be run again later stand in the report.
    pub(super) async fn take_through(&mut self, deliveries: Vec<Delivery>) -> Report {
        let mut report = Report::default();
        let mut members = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            match self.identify(delivery) {
                Ok(member) => members.push(member),
                Err(doomed) => self.give_up_on(doomed).await,
            }
        }
        let work = match self.handler.config.order {
            None => without_twins(members),
            Some(_) => order::cut_at_twins(members),
        };
        let mut work: VecDeque<Vec<Member>> = work.into_iter().flat_map(apart).collect();
        let mut pause = Pause::from(self.pause_min);
        let mut is_first = true;
        let mut misled_times = 0;
        // How many messages went over a limit together, of which none did so alone.
        let mut limited = None;
        while let Some(batch) = work.pop_front() {
            if self.drain.is_draining() && !is_first {
                self.give_back(batch.into_iter().chain(work.into_iter().flatten()))
                    .await;
                return report;
            }
            is_first = false;
            let batch = if self.handler.config.order.is_some() {
                let held = report.retries.iter().map(|(_, delivery)| delivery);
                let (rest, behind) = order::without_followers(batch, held);
                report.behind.extend(behind);
                if rest.is_empty() {
                    continue;
                }
                rest
            } else {
                batch
            };
            if let [Member { delivery, .. }] = &batch[..]
                && delivery.is_suspect
            {
                for suspect in batch {
                    if let Some(unrun) = self.take_suspect(suspect, &mut report).await {
                        work.push_front(vec![unrun]);
                    }
                }
                continue;
            }
            let Some(connection) = self.connection().await else {
                // Dropped unrun and uncharged, like all that follows: the source delivers it again.
                return report;
            };
            let handler = Arc::clone(&self.handler);
            let Begun {
                connection,
                batch,
                later,
                early,
            } = run_early(&handler, connection, batch).await;
            again(&mut work, later);
            let Some(connection) = connection else {
                work.push_front(batch);
                continue;
            };
            let (connection, processed) = process(&handler, connection, batch, early).await;
            self.connection = connection;
            if !matches!(processed, Processed::Settled) {
                self.handler.counters.rolled_back();
                self.handler.metrics.rolled_back();
            }
            // What was rolled back comes first again, so that the order is kept.
            match processed {
                Processed::Settled => {
                    self.outage.over(&self.handler);
                    pause = Pause::from(self.pause_min);
                }
                Processed::Again { batch, why } => {
                    self.outage.note(&self.handler, &why);
                    if matches!(why, StoreError::Busy(_)) && batch.len() == 1 {
                        self.handler.sizes.collided();
                    }
                    if matches!(why, StoreError::Busy(_)) && batch.len() > 1 {
                        again(&mut work, halves(batch));
                    } else {
                        work.push_front(batch);
                    }
                    pause.wait().await;
                }
                Processed::Behind { batch, waits } => {
                    let rest = self.put_off(batch, waits, &mut report).await;
                    again(&mut work, [rest]);
                }
                Processed::TooLong { mut batch, fitting } => {
                    self.handler.sizes.too_long(fitting);
                    let rest = batch.split_off(fitting);
                    again(&mut work, [batch, rest]);
                }
                Processed::Misled { batch, misled } => {
                    misled_times += 1;
                    if let Some(index) = misled.member.filter(|_| batch.len() > 1) {
                        self.handler.sizes.failed(index);
                    }
                    let parts = after_misled(batch, misled, misled_times, &mut work);
                    again(&mut work, parts);
                }
                Processed::Failed {
                    batch,
                    failing,
                    failure,
                    component,
                } => match failing {
                    _ if batch.len() == 1 => {
                        // It would be over the limit in any batch.
                        limited = limited.filter(|_| failure.class != FailureClass::Limit);
                        for member in batch {
                            self.charge(member, failure.clone(), component, None, &mut report)
                                .await;
                        }
                    }
                    Failing::At(index) => {
                        self.handler.sizes.failed(index);
                        again(&mut work, around(batch, &[index]));
                    }
                    Failing::These(failing) if self.handler.config.order.is_none() => {
                        again(&mut work, without(batch, &failing));
                    }
                    Failing::These(failing) => again(&mut work, around(batch, &failing)),
                    // Half as many messages may be within the limit.
                    Failing::Unknown if failure.class == FailureClass::Limit => {
                        limited = Some(batch.len());
                        again(&mut work, halves(batch));
                    }
                    // A refused commit or a trap of a call with many: smaller and smaller batches find who it is.
                    Failing::Unknown => {
                        self.handler.sizes.failed(batch.len() - 1);
                        again(&mut work, halves(batch));
                    }
                },
            }
        }
        if let Some(messages) = limited {
            self.handler.sizes.over_limit(messages);
        }
        report
    }

    /// Gives messages back that did not run, or of which nothing stays: uncharged, and to be delivered at once.
    async fn give_back(&self, members: impl Iterator<Item = Member>) {
        for member in members {
            if let Err(error) = member.delivery.nak(Duration::ZERO).await {
                // It comes again by itself, later.
                tracing::debug!(handler = %self.handler.name, %error, "could not give a message back");
            }
        }
    }

    /// Has the members for which `waits` holds a time wait behind an earlier message of their key, uncharged; returns the
    /// others. Rows of a queue wait in their table, deliveries of a stream in this host.
    pub(super) async fn put_off(
        &mut self,
        batch: Vec<Member>,
        waits: Vec<Option<Duration>>,
        report: &mut Report,
    ) -> Vec<Member> {
        let mut rest = Vec::new();
        let mut in_table = Vec::new();
        let mut rows = Vec::new();
        for (member, wait) in batch.into_iter().zip(waits) {
            match wait {
                None => rest.push(member),
                Some(wait) => match order::put_off(&member.delivery, wait) {
                    None => report.retries.push((wait, member.delivery)),
                    Some(row) => {
                        rows.push(row);
                        in_table.push(member.delivery);
                    }
                },
            }
        }
        if !rows.is_empty() && self.write_put_off(&rows).await.is_some() {
            in_table.into_iter().for_each(Delivery::let_go);
        }
        rest
    }

    /// Writes when rows of the queue come again. Returns the numbers of those that are there; `None` when the host drains
    /// before it could.
    pub(super) async fn write_put_off(&mut self, rows: &[PutOff]) -> Option<Vec<i64>> {
        let mut pause = Pause::default();
        loop {
            let mut connection = self.connection().await?;
            match connection.put_off_queue_rows(rows).await {
                Ok(here) => {
                    self.connection = Some(connection);
                    return Some(here);
                }
                Err(why) => {
                    self.outage.note(&self.handler, &why);
                    if self.drain.is_draining() {
                        return None;
                    }
                    pause.wait().await;
                }
            }
        }
    }

    fn identify(&self, delivery: Delivery) -> Result<Member, Box<Doomed>> {
        let known = delivery
            .carried
            .as_ref()
            .and_then(|carried| carried.message_id.clone());
        let found = match known {
            Some(id) => Ok(id),
            None => self.handler.config.message_id.find(&delivery.incoming),
        };
        match found {
            Ok(id) => Ok(Member {
                message: Message {
                    id,
                    source: delivery.source(&self.handler.config.source).to_owned(),
                    incoming: Arc::clone(&delivery.incoming),
                },
                payload_hash: ShortHash::of_payload(&delivery.incoming.payload),
                is_awaited: false,
                delivery,
            }),
            Err(reason) => Err(Box::new(Doomed {
                delivery,
                identity: None,
                failure: Failure::missing_id(reason),
                component: self.handler.digest(),
                attempt: None,
            })),
        }
    }

    /// Charges a failure of `component` to its message: records the attempt, then holds the message for a retry or gives up on it. The
    /// failed run of a suspect was marked by the process `marked_by`; the mark goes with the record.
    pub(super) async fn charge(
        &mut self,
        member: Member,
        failure: Failure,
        component: ComponentDigest,
        marked_by: Option<&str>,
        report: &mut Report,
    ) {
        let retry = self.handler.config.retry;
        // With `order_by` a row of a queue waits in its table, where other hosts find it: from now on, so that none runs it
        // while it is being charged.
        if self.handler.config.order.is_some()
            && let Some(row) =
                order::put_off(&member.delivery, retry.backoff_min.min(CHARGE_WAIT_MAX))
        {
            match self.write_put_off(&[row]).await {
                None => return,
                // Another host finished it meanwhile.
                Some(here) if here.is_empty() => return member.delivery.let_go(),
                Some(_) => {}
            }
        }
        let mut pause = Pause::default();
        let attempt = loop {
            let Some(mut connection) = self.connection().await else {
                return;
            };
            let consumer = self.handler.consumer.as_str();
            let id = &member.message.id;
            let class = failure.class;
            let error = failure.reason.as_str();
            let recorded = match marked_by {
                None => {
                    connection
                        .record_attempt(consumer, id, class, error, Some(component))
                        .await
                }
                Some(host) => {
                    let marked = MarkedFailure {
                        consumer,
                        id,
                        host,
                        class,
                        error,
                        component: Some(component),
                    };
                    connection.charge_started(&marked).await
                }
            };
            match recorded {
                Ok(attempt) => {
                    self.connection = Some(connection);
                    break attempt;
                }
                Err(why) => {
                    self.outage.note(&self.handler, &why);
                    if self.drain.is_draining() {
                        return;
                    }
                    pause.wait().await;
                }
            }
        };
        if failure.is_final() || attempt >= retry.attempts {
            return self
                .give_up_on(doomed(member, failure, component, attempt))
                .await;
        }
        let backoff = retry.backoff(attempt);
        let wait = failure.delay.map_or(backoff, |delay| delay.max(backoff));
        self.handler.counters.retried();
        self.handler.metrics.retried(failure.class);
        tracing::info!(
            handler = %self.handler.name,
            component = %component,
            message_id = %member.message.id,
            subject = %one_line(&member.message.incoming.subject),
            attempt,
            attempts = retry.attempts,
            trace_id = trace_id(&member.message.incoming.headers).map(tracing::field::display),
            class = %failure.class,
            reason = %one_line(&failure.reason),
            wait = ?wait,
            "failed, will be retried"
        );
        self.handler
            .tell(Some(&member.message.id), || Became::Retried {
                attempt,
                attempts: retry.attempts,
                class: failure.class,
                reason: failure.reason.clone(),
                wait,
            });
        self.wait_for_retry(member, wait, report).await;
    }

    async fn give_up_on(&mut self, mut doomed: Box<Doomed>) {
        let mut pause = Pause::default();
        loop {
            let Some(connection) = self.connection().await else {
                return;
            };
            let (connection, parking) = park(&self.handler, connection, doomed).await;
            self.connection = connection;
            match parking {
                Parking::Settled => return,
                Parking::Again(again, why) => {
                    self.outage.note(&self.handler, &why);
                    if self.drain.is_draining() {
                        return;
                    }
                    doomed = again;
                    pause.wait().await;
                }
            }
        }
    }

    /// Returns the lane's connection, made anew if it was lost. `None` when the host drains meanwhile.
    pub(super) async fn connection(&mut self) -> Option<Connection> {
        if let Some(connection) = self.connection.take() {
            return Some(connection);
        }
        let limits = &self.handler.config.limits;
        let options = SessionOptions {
            purpose: format!("lane {}", self.handler.name),
            statement_timeout: Some(limits.time + STATEMENT_MARGIN),
            lock_timeout: LOCK_TIMEOUT,
            idle_in_transaction: limits.time + LOCK_TIMEOUT,
        };
        let mut pause = Pause::default();
        loop {
            match self.handler.store.connect(&options).await {
                Ok(mut connection) => {
                    self.outage.over(&self.handler);
                    connection.set_rights(self.handler.config.rights.clone());
                    return Some(connection);
                }
                Err(why) => self.outage.note(&self.handler, &why),
            }
            if self.drain.is_draining() {
                return None;
            }
            pause.wait().await;
        }
    }
}

fn doomed(
    member: Member,
    failure: Failure,
    component: ComponentDigest,
    attempt: u32,
) -> Box<Doomed> {
    Box::new(Doomed {
        delivery: member.delivery,
        identity: Some((member.message, member.payload_hash)),
        failure,
        component,
        attempt: Some(attempt),
    })
}

/// A wait that doubles, with jitter, so that hosts in each other's way part.
pub(super) struct Pause {
    min: Duration,
    waited: u32,
}

impl Default for Pause {
    fn default() -> Self {
        Self::from(PAUSE_MIN)
    }
}

impl Pause {
    /// Begins with `min`; 0 for none at all.
    fn from(min: Duration) -> Self {
        Self { min, waited: 0 }
    }

    pub(super) async fn wait(&mut self) {
        let factor = 1_u32.checked_shl(self.waited).unwrap_or(u32::MAX);
        let longest = self.min.saturating_mul(factor).min(PAUSE_MAX);
        self.waited += 1;
        tokio::time::sleep(longest.mul_f64(rand::random_range(0.5..=1.0))).await;
    }
}
