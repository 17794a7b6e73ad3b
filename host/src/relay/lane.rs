//! A lane of the relay: the rows on their way to one broker, or to the store's queues.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::target::{Sent, Target};
use super::{RelayedHandler, Shared};
use crate::fault;
use crate::idle::Seat;
use crate::store::{
    Connection, OutboxMarks, OutboxMessage, OutboxQuery, SessionOptions, StoreError,
};
use crate::text::one_line;

/// How often the table is looked at when nobody says that there is something: what other programs and hosts wrote, and what is due
/// by now.
const POLL: Duration = Duration::from_secs(1);
/// How many chains of rows are published at the same time.
const AT_ONCE: usize = 64;
/// After this long no more publishing is begun before the marks are written.
const TURN_MAX: Duration = Duration::from_secs(5);
/// How long a transaction with rows in hand may wait for their target.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(60);
/// How long the relay's statements may run, and wait for a lock.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause after the database could not be reached.
const STORE_PAUSE: Duration = Duration::from_millis(500);
/// How often published rows are looked at whether they may go.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// How many published rows are deleted by one statement.
const PRUNE_ROWS: u32 = 1_000;

/// One connection, and the targets that share it.
pub(super) struct Lane {
    shared: Arc<Shared>,
    wake: Arc<Notify>,
    /// One of them deletes what was published long ago, for all.
    prunes: bool,
    /// Whose rows, as it changes.
    configured: watch::Receiver<Vec<RelayedHandler>>,
    handlers: Vec<Relayed>,
    targets: BTreeMap<String, Target>,
    /// Set if it ends when nobody has anything to do.
    pub(super) seat: Option<Seat>,
    connection: Option<Connection>,
}

struct Relayed {
    handler: RelayedHandler,
    from_key: String,
}

/// How a look for a handler's rows ended.
enum Looked {
    /// There is nothing that can be done now.
    Nothing,
    /// Some rows were dealt with, and there may be more.
    Again,
}

impl Lane {
    pub(super) fn new(
        shared: Arc<Shared>,
        wake: Arc<Notify>,
        prunes: bool,
        mut configured: watch::Receiver<Vec<RelayedHandler>>,
        targets: BTreeMap<String, Target>,
    ) -> Self {
        Self {
            shared,
            wake,
            prunes,
            handlers: {
                // The first look needs them all.
                configured.mark_changed();
                Vec::new()
            },
            configured,
            targets,
            seat: None,
            connection: None,
        }
    }

    /// Runs until the drain, or, with a seat, until nobody in this process has anything to do.
    pub(super) async fn run(mut self, mut drain: watch::Receiver<bool>) {
        let mut next_prune = Instant::now();
        while !*drain.borrow() {
            let work = self.seat.as_ref().map_or(0, Seat::work);
            tokio::select! {
                // A connection that is being made is nobody's yet.
                () = self.connect() => {}
                _ = drain.wait_for(|draining| *draining) => return,
            }
            self.follow_configuration();
            let mut has_more = false;
            match self.look(&mut has_more).await {
                Ok(()) => {
                    self.shared.all_is_well();
                    if self.prunes && next_prune <= Instant::now() {
                        next_prune = Instant::now() + PRUNE_EVERY;
                        self.prune(&drain).await;
                    }
                    if has_more {
                        continue;
                    }
                    if self.has_nothing_to_do().await
                        && self
                            .seat
                            .as_ref()
                            .is_some_and(|seat| seat.found_nothing(work))
                    {
                        return;
                    }
                }
                Err(error) => {
                    // The rows in hand come back with the connection's end.
                    self.connection = None;
                    self.shared.tell(&error);
                    pause(STORE_PAUSE, &mut drain).await;
                    continue;
                }
            }
            let poll = if self.seat.is_some() { POLL / 10 } else { POLL };
            tokio::select! {
                // None of them loses anything when dropped: a notification stays until it is taken.
                () = self.wake.notified() => {}
                () = tokio::time::sleep(poll) => {}
                _ = drain.wait_for(|draining| *draining) => {}
            }
        }
    }

    /// Looks for the rows of the handlers that are configured now. Those that were before go on at their place.
    fn follow_configuration(&mut self) {
        // An error means that nothing changes any more.
        if !self.configured.has_changed().unwrap_or(false) {
            return;
        }
        let mut before = std::mem::take(&mut self.handlers);
        self.handlers = self
            .configured
            .borrow_and_update()
            .iter()
            .map(|handler| Relayed {
                from_key: before
                    .iter_mut()
                    .find(|known| known.handler.consumer == handler.consumer)
                    .map(|known| std::mem::take(&mut known.from_key))
                    .unwrap_or_default(),
                handler: handler.clone(),
            })
            .collect();
    }

    async fn connect(&mut self) {
        for target in self.targets.values_mut() {
            target.connect().await;
        }
    }

    /// Looks once for the rows of each handler.
    async fn look(&mut self, has_more: &mut bool) -> Result<(), StoreError> {
        for index in 0..self.handlers.len() {
            if let Looked::Again = self.look_for(index).await? {
                *has_more = true;
            }
        }
        Ok(())
    }

    fn query(&self, relayed: &Relayed, is_open: impl Fn(&Target) -> bool) -> OutboxQuery {
        let targets: Vec<String> = self
            .targets
            .iter()
            .filter(|(_, target)| is_open(target))
            .map(|(name, _)| name.clone())
            .collect();
        OutboxQuery {
            consumer: relayed.handler.consumer.clone(),
            without_target: relayed
                .handler
                .target
                .as_ref()
                .is_some_and(|default| targets.contains(default)),
            targets,
            from_key: relayed.from_key.clone(),
            limit: self.shared.settings.batch,
        }
    }

    async fn look_for(&mut self, index: usize) -> Result<Looked, StoreError> {
        let query = self.query(&self.handlers[index], Target::is_open);
        if query.targets.is_empty() {
            return Ok(Looked::Nothing);
        }
        let connection = self.connection().await?;
        let Some(taken) = connection.take_outbox(&query).await? else {
            return Ok(Looked::Nothing);
        };
        self.handlers[index].from_key = taken.from_key;
        if taken.messages.is_empty() {
            self.connection().await?.give_back_outbox().await?;
            return Ok(if taken.has_more {
                Looked::Again
            } else {
                Looked::Nothing
            });
        }
        self.shared.board.busy();
        let count = taken.messages.len();
        let has_keys = taken.messages.iter().any(|message| message.key.is_some());
        let marks = self.publish(index, taken.messages).await;
        let is_moved = marks != OutboxMarks::default();
        fault::point("relay-before-mark");
        self.connection().await?.settle_outbox(&marks).await?;
        fault::point("relay-after-mark");
        // A queue has something to look for.
        self.shared.board.busy();
        if has_keys && is_moved {
            // A key's next row may be for another target.
            self.shared.wakes.wake_all();
        }
        tracing::debug!(
            handler = %self.handlers[index].handler.name,
            taken = count,
            published = marks.published.len() + marks.enqueued.len(),
            failed = marks.failed.len(),
            parked = marks.parked.len(),
            "relayed"
        );
        Ok(if is_moved && taken.has_more {
            Looked::Again
        } else {
            Looked::Nothing
        })
    }

    /// Publishes rows: those of one key one after the other, until one fails.
    async fn publish(&self, index: usize, messages: Vec<OutboxMessage>) -> OutboxMarks {
        let handler = &self.handlers[index].handler;
        let mut chains: Vec<Vec<OutboxMessage>> = Vec::new();
        let mut of_keys: BTreeMap<String, usize> = BTreeMap::new();
        for message in messages {
            let Some(key) = message.key.clone() else {
                chains.push(vec![message]);
                continue;
            };
            match of_keys.get(&key) {
                Some(chain) => chains[*chain].push(message),
                None => {
                    of_keys.insert(key, chains.len());
                    chains.push(vec![message]);
                }
            }
        }
        let until = Instant::now() + TURN_MAX;
        let marks = futures_util::stream::iter(
            chains
                .into_iter()
                .map(|chain| self.publish_chain(handler, chain, until)),
        )
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
        let mut all = OutboxMarks::default();
        for mut some in marks {
            all.published.append(&mut some.published);
            all.enqueued.append(&mut some.enqueued);
            all.failed.append(&mut some.failed);
            all.parked.append(&mut some.parked);
        }
        // In the order in which they were written.
        all.enqueued.sort_by_key(|(_, number)| *number);
        all
    }

    async fn publish_chain(
        &self,
        handler: &RelayedHandler,
        chain: Vec<OutboxMessage>,
        until: Instant,
    ) -> OutboxMarks {
        let mut marks = OutboxMarks::default();
        for message in chain {
            if Instant::now() >= until {
                break;
            }
            let target = message.target.as_ref().or(handler.target.as_ref());
            // The query asked for no others.
            let Some(target) = target.and_then(|name| self.targets.get(name)) else {
                break;
            };
            let (number, id, attempts) = (message.number, message.id.clone(), message.attempts);
            fault::point("relay-before-publish");
            match target.send(message).await {
                Sent::Published => marks.published.push(number),
                Sent::Queue(queue) => marks.enqueued.push((queue, number)),
                Sent::Unavailable => break,
                Sent::Failed(why) => {
                    let failed = attempts + 1;
                    if failed >= self.shared.settings.retry.attempts {
                        self.park(handler, &mut marks, number, &id, why);
                        continue;
                    }
                    let wait = self.shared.settings.retry.backoff(failed);
                    tracing::info!(
                        handler = %handler.name, outbox_id = %id, attempt = failed, reason = %one_line(&why), ?wait,
                        "not published, will be tried again"
                    );
                    marks.failed.push((number, why, wait));
                    break;
                }
                Sent::Refused(why) => {
                    self.park(handler, &mut marks, number, &id, why);
                    continue;
                }
            }
            fault::point("relay-after-publish");
        }
        marks
    }

    fn park(
        &self,
        handler: &RelayedHandler,
        marks: &mut OutboxMarks,
        number: i64,
        id: &str,
        why: String,
    ) {
        tracing::warn!(
            handler = %handler.name, number, outbox_id = %id, reason = %one_line(&why),
            "parked: `hapax outbox republish` tries it again"
        );
        marks.parked.push((number, why));
    }

    /// True, asked with a seat, if no row waits for any target of this lane, reachable or not.
    async fn has_nothing_to_do(&mut self) -> bool {
        if self.seat.is_none() {
            return false;
        }
        for index in 0..self.handlers.len() {
            let query = self.query(&self.handlers[index], |_| true);
            let has_rows = match self.connection().await {
                Ok(connection) => connection.has_outbox(&query).await,
                Err(error) => Err(error),
            };
            match has_rows {
                Ok(false) => {}
                Ok(true) => return false,
                Err(_) => {
                    self.connection = None;
                    return false;
                }
            }
        }
        true
    }

    async fn prune(&mut self, drain: &watch::Receiver<bool>) {
        let keep = self.shared.settings.keep;
        while !*drain.borrow() {
            let pruned = match self.connection().await {
                Ok(connection) => connection.prune_outbox(keep, PRUNE_ROWS).await,
                Err(error) => Err(error),
            };
            match pruned {
                Ok(rows) if rows < u64::from(PRUNE_ROWS) => return,
                Ok(_) => {}
                Err(error) => {
                    self.connection = None;
                    self.shared.tell(&error);
                    return;
                }
            }
        }
    }

    async fn connection(&mut self) -> Result<&mut Connection, StoreError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let options = SessionOptions {
                    purpose: "relay".to_owned(),
                    statement_timeout: Some(STATEMENT_TIMEOUT),
                    lock_timeout: STATEMENT_TIMEOUT,
                    idle_in_transaction: IDLE_IN_TRANSACTION,
                };
                self.shared.store.connect(&options).await?
            }
        };
        Ok(self.connection.insert(connection))
    }
}

/// Pauses, or until the drain.
async fn pause(span: Duration, drain: &mut watch::Receiver<bool>) {
    tokio::select! {
        // Neither loses anything when dropped.
        () = tokio::time::sleep(span) => {}
        _ = drain.wait_for(|draining| *draining) => {}
    }
}
