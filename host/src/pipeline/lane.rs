//! A lane: one bare connection and one batch at a time.
//!
//! When a batch can't be committed as it is, nothing of it stays and its parts run again: those before the member that failed
//! as one transaction, it alone, the rest. Only a member that failed alone is charged, so siblings never are.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::HandlerContext;
use super::batch::{around, halves, without_twins};
use super::dispatch::Drain;
use super::park::{Doomed, Parking, park};
use super::policy::Failure;
use super::process::{Member, Processed, process};
use crate::message::{Message, ShortHash};
use crate::source::Delivery;
use crate::store::{Connection, SessionOptions, StoreError};
use crate::text::one_line;

/// The longest wait for a lock: above it a claim counts as in flight elsewhere.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How much longer than a whole call the database lets one statement run. The call's own limit must come first: it is what
/// the message is charged with, whatever the handler makes of an error. This one ends what is left of the statement.
const STATEMENT_MARGIN: Duration = Duration::from_secs(1);
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
    handler: Arc<HandlerContext>,
    drain: Drain,
    connection: Option<Connection>,
    outage: OutageLog,
}

impl Lane {
    pub(super) fn new(handler: Arc<HandlerContext>, drain: Drain) -> Self {
        Self {
            handler,
            drain,
            connection: None,
            outage: OutageLog::default(),
        }
    }

    /// Takes batches until there are no more, and reports each.
    pub(super) async fn run(
        mut self,
        number: usize,
        mut work: mpsc::Receiver<Vec<Delivery>>,
        reports: mpsc::UnboundedSender<(usize, Report)>,
    ) {
        while let Some(deliveries) = work.recv().await {
            let report = self.take_through(deliveries).await;
            if reports.send((number, report)).is_err() {
                // The dispatcher is gone: nothing waits for this lane any more.
                break;
            }
        }
    }

    /// Takes deliveries to their end. Those that are to be run again later stand in the report.
    async fn take_through(&mut self, deliveries: Vec<Delivery>) -> Report {
        let mut report = Report::default();
        let mut members = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            match self.identify(delivery) {
                Ok(member) => members.push(member),
                Err(doomed) => self.give_up_on(doomed).await,
            }
        }
        let mut work: VecDeque<Vec<Member>> = without_twins(members).into();
        let mut pause = Pause::default();
        let mut is_first = true;
        while let Some(batch) = work.pop_front() {
            if self.drain.is_draining() && !is_first {
                self.give_back(batch.into_iter().chain(work.into_iter().flatten()))
                    .await;
                return report;
            }
            is_first = false;
            let Some(connection) = self.connection().await else {
                // Dropped unrun and uncharged, like all that follows: the source delivers it again.
                return report;
            };
            let (connection, processed) = process(&self.handler, connection, batch).await;
            self.connection = connection;
            // What was rolled back comes first again, so that the order is kept.
            match processed {
                Processed::Settled => pause = Pause::default(),
                Processed::Again { batch, why } => {
                    self.outage.note(&self.handler, &why);
                    if matches!(why, StoreError::Busy(_)) && batch.len() > 1 {
                        again(&mut work, halves(batch));
                    } else {
                        work.push_front(batch);
                    }
                    pause.wait().await;
                }
                Processed::TooLong { mut batch, fitting } => {
                    self.handler.sizes.too_long(fitting);
                    let rest = batch.split_off(fitting);
                    again(&mut work, [batch, rest]);
                }
                Processed::Failed {
                    batch,
                    index,
                    failure,
                } => match index {
                    _ if batch.len() == 1 => {
                        for member in batch {
                            self.charge(member, failure.clone(), &mut report).await;
                        }
                    }
                    Some(index) => again(&mut work, around(batch, index)),
                    None => again(&mut work, batch.into_iter().map(|member| vec![member])),
                },
            }
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
                delivery,
            }),
            Err(reason) => Err(Box::new(Doomed {
                delivery,
                identity: None,
                failure: Failure::missing_id(reason),
            })),
        }
    }

    /// Charges a failure to its message: records the attempt, then holds the message for a retry or gives up on it.
    async fn charge(&mut self, member: Member, failure: Failure, report: &mut Report) {
        let mut pause = Pause::default();
        let attempt = loop {
            let Some(mut connection) = self.connection().await else {
                return;
            };
            let recorded = connection
                .record_attempt(
                    &self.handler.consumer,
                    &member.message.id,
                    failure.class,
                    &failure.reason,
                    Some(self.handler.component.digest()),
                )
                .await;
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
        let retry = &self.handler.config.retry;
        if failure.is_final() || attempt >= retry.attempts {
            return self.give_up_on(doomed(member, failure)).await;
        }
        let backoff = retry.backoff(attempt);
        let wait = failure.delay.map_or(backoff, |delay| delay.max(backoff));
        self.handler.counters.retried();
        tracing::info!(
            handler = %self.handler.name,
            message_id = %member.message.id,
            attempt,
            attempts = retry.attempts,
            class = %failure.class,
            reason = %one_line(&failure.reason),
            wait = ?wait,
            "failed, will be retried"
        );
        report.retries.push((wait, member.delivery));
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
    async fn connection(&mut self) -> Option<Connection> {
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
                Ok(connection) => {
                    self.outage.over(&self.handler);
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

fn doomed(member: Member, failure: Failure) -> Box<Doomed> {
    Box::new(Doomed {
        delivery: member.delivery,
        identity: Some((member.message, member.payload_hash)),
        failure,
    })
}

/// A wait that doubles, with jitter, so that hosts in each other's way part.
#[derive(Default)]
struct Pause {
    waited: u32,
}

impl Pause {
    async fn wait(&mut self) {
        let factor = 1_u32.checked_shl(self.waited).unwrap_or(u32::MAX);
        let longest = PAUSE_MIN.saturating_mul(factor).min(PAUSE_MAX);
        self.waited += 1;
        tokio::time::sleep(longest.mul_f64(rand::random_range(0.5..=1.0))).await;
    }
}

/// Says once a second at most that the database is in the way, and once that it is back.
#[derive(Default)]
struct OutageLog {
    last_line: Option<tokio::time::Instant>,
}

impl OutageLog {
    fn note(&mut self, handler: &HandlerContext, why: &StoreError) {
        match why {
            // Ordinary on a busy database.
            StoreError::Busy(text) => {
                tracing::debug!(handler = %handler.name, why = %one_line(text), "running again");
            }
            _ => {
                let now = tokio::time::Instant::now();
                if self
                    .last_line
                    .is_none_or(|last| now - last >= Duration::from_secs(1))
                {
                    self.last_line = Some(now);
                    tracing::warn!(handler = %handler.name, why = %one_line(&why.to_string()), "paused");
                }
            }
        }
    }

    fn over(&mut self, handler: &HandlerContext) {
        if self.last_line.take().is_some() {
            tracing::info!(handler = %handler.name, "resumed");
        }
    }
}
