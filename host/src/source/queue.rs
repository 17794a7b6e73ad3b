//! The embedded queue as a source: a table in the store.
//!
//! A task of the source's own peeks at rows; it locks and changes nothing. A row goes away inside the transaction of
//! its message (`Tx::take_queue_row`), so an answer only says that the row is in hand no more. Two hosts may peek at
//! the same row; the one that does not get it in its transaction drops its delivery.
//!
//! What a process had in hand when it died is not known afterwards. So the first look after the start counts itself in the
//! rows at the head of the queue (`seen`): those that several starts found there are suspects.
//!
//! **Invariant**: this file writes nothing to the database but that count, and a row is delivered by this host once at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant as Moment;

use super::desk::{CloseOnDrop, Desk, lock};
use super::{Answer, BoxFuture, Delivery, Place, Source, SourceError};
use crate::health::Part;
use crate::message::{Carried, Incoming, Position};
use crate::store::{Connection, QueueRow, SessionOptions, Store, StoreError};

/// The pause after the first empty look; it doubles up to `POLL_MAX`.
const POLL_MIN: Duration = Duration::from_millis(20);
/// The longest pause between two looks at an empty queue.
const POLL_MAX: Duration = Duration::from_millis(500);
/// The pause after the database could not be reached.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);
/// How long a row stays out of sight whose delivery was dropped: mostly another host is just taking it.
const DROPPED_PAUSE: Duration = Duration::from_millis(100);
/// How long it is remembered that a row was delivered before.
const REMEMBERED: Duration = Duration::from_secs(60);
/// The longest that a look at the queue may take.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// A queue in the store, as a source.
pub struct Queue {
    desk: Arc<Desk>,
    wake: Arc<Notify>,
    requests: mpsc::Sender<Request>,
    peeking: JoinSet<()>,
}

/// Makes a queue look at its table at once; for whoever puts rows into it in this process.
#[derive(Clone, Debug)]
pub struct QueueWaker(Arc<Notify>);

impl QueueWaker {
    /// Wakes the queue.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

enum Request {
    Backlog(oneshot::Sender<Result<u64, SourceError>>),
    Stop,
}

impl Queue {
    /// Makes a source of the queue `name`. Connects when it is first asked for something. Call it inside a runtime.
    pub fn new(store: Arc<Store>, name: &str) -> Self {
        let desk = Arc::new(Desk::default());
        let wake = Arc::new(Notify::new());
        let (requests, received) = mpsc::channel(4);
        let peeker = Peeker {
            store,
            name: name.to_owned(),
            desk: Arc::clone(&desk),
            wake: Arc::clone(&wake),
            rows: Arc::default(),
            connection: None,
            has_looked: false,
            poll: POLL_MIN,
            pause_until: None,
        };
        let mut peeking = JoinSet::new();
        peeking.spawn(peeker.run(received));
        Self {
            desk,
            wake,
            requests,
            peeking,
        }
    }

    /// Returns what wakes this queue when a row was put into it.
    pub fn waker(&self) -> QueueWaker {
        QueueWaker(Arc::clone(&self.wake))
    }
}

impl Source for Queue {
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<Delivery>, SourceError>> {
        Box::pin(self.desk.next(max))
    }

    fn backlog(&mut self) -> BoxFuture<'_, Result<u64, SourceError>> {
        Box::pin(async {
            let closed = || SourceError::Unusable("the source was closed".into());
            let (reply, answer) = oneshot::channel();
            self.requests
                .send(Request::Backlog(reply))
                .await
                .map_err(|_| closed())?;
            answer.await.map_err(|_| closed())?
        })
    }

    fn report_to(&mut self, part: Part) {
        self.desk.report_to(part);
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // An error means that the task has ended already.
            let _ = self.requests.send(Request::Stop).await;
            while self.peeking.join_next().await.is_some() {}
            drop(self.desk.clear());
        })
    }
}

/// The rows that this host has in hand or keeps out of sight.
#[derive(Default)]
struct Rows {
    states: Mutex<HashMap<i64, RowState>>,
    /// A row was answered or dropped.
    changed: Notify,
}

#[derive(Clone, Copy, Debug)]
enum RowState {
    /// A delivery exists.
    InHand { delivered: u64 },
    /// No delivery exists, and none is made before this moment.
    OutOfSight { delivered: u64, until: Moment },
}

impl Rows {
    /// Returns the rows that must not be delivered now, and when the first of them may be again.
    fn hidden(&self, now: Moment) -> (Vec<i64>, Option<Moment>) {
        let mut states = lock(&self.states);
        states.retain(|_, state| match state {
            RowState::InHand { .. } => true,
            RowState::OutOfSight { until, .. } => *until + REMEMBERED > now,
        });
        let mut hidden = Vec::with_capacity(states.len());
        let mut next: Option<Moment> = None;
        for (number, state) in states.iter() {
            match state {
                RowState::InHand { .. } => hidden.push(*number),
                RowState::OutOfSight { until, .. } if *until > now => {
                    hidden.push(*number);
                    next = Some(next.map_or(*until, |next| next.min(*until)));
                }
                RowState::OutOfSight { .. } => {}
            }
        }
        (hidden, next)
    }

    /// Takes a row in hand; returns how often it was delivered by this host, this time included.
    fn hold(self: &Arc<Self>, number: i64) -> (u64, Box<dyn Answer>) {
        let mut states = lock(&self.states);
        let delivered = match states.get(&number) {
            Some(RowState::InHand { delivered } | RowState::OutOfSight { delivered, .. }) => {
                delivered + 1
            }
            None => 1,
        };
        states.insert(number, RowState::InHand { delivered });
        let answer = QueueAnswer {
            rows: Arc::clone(self),
            number,
            answered: false,
        };
        (delivered, Box::new(answer))
    }

    fn forget(&self, number: i64) {
        lock(&self.states).remove(&number);
        self.changed.notify_one();
    }

    fn hide(&self, number: i64, time: Duration) {
        let mut states = lock(&self.states);
        if let Some(RowState::InHand { delivered }) = states.get(&number).copied() {
            // A wait beyond what the clock can count is a wait beyond this process.
            let now = Moment::now();
            let until = now.checked_add(time).unwrap_or(now + REMEMBERED);
            states.insert(number, RowState::OutOfSight { delivered, until });
        }
        drop(states);
        self.changed.notify_one();
    }
}

struct QueueAnswer {
    rows: Arc<Rows>,
    number: i64,
    answered: bool,
}

impl Answer for QueueAnswer {
    fn ack(mut self: Box<Self>) -> BoxFuture<'static, Result<(), SourceError>> {
        self.answered = true;
        self.rows.forget(self.number);
        Box::pin(std::future::ready(Ok(())))
    }

    fn term(self: Box<Self>) -> BoxFuture<'static, Result<(), SourceError>> {
        self.ack()
    }

    fn nak(mut self: Box<Self>, delay: Duration) -> BoxFuture<'static, Result<(), SourceError>> {
        self.answered = true;
        self.rows.hide(self.number, delay);
        Box::pin(std::future::ready(Ok(())))
    }

    fn let_go(mut self: Box<Self>) {
        self.answered = true;
        self.rows.forget(self.number);
    }
}

impl Drop for QueueAnswer {
    fn drop(&mut self) {
        if !self.answered {
            self.rows.hide(self.number, DROPPED_PAUSE);
        }
    }
}

/// The task that looks at the table when something is asked for.
struct Peeker {
    store: Arc<Store>,
    name: String,
    desk: Arc<Desk>,
    wake: Arc<Notify>,
    rows: Arc<Rows>,
    /// Dropping it closes it.
    connection: Option<Connection>,
    /// This start is counted in the rows that it found.
    has_looked: bool,
    poll: Duration,
    /// Nothing is to be found before this moment.
    pause_until: Option<Moment>,
}

impl Peeker {
    async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let desk = Arc::clone(&self.desk);
        let rows = Arc::clone(&self.rows);
        let wake = Arc::clone(&self.wake);
        let _closed_at_the_end = CloseOnDrop(&desk);
        loop {
            let wanted = desk.wanted();
            if wanted > 0 && self.pause_until.is_none_or(|until| until <= Moment::now()) {
                self.look(wanted).await;
                continue;
            }
            // Each branch that loses is a wait that can be made anew.
            tokio::select! {
                biased;
                request = requests.recv() => match request {
                    Some(Request::Backlog(reply)) => {
                        let backlog = self.backlog().await;
                        // An error means that nobody waits for it any more.
                        let _ = reply.send(backlog);
                    }
                    Some(Request::Stop) | None => return,
                },
                () = wake.notified(), if self.connection.is_some() => self.pause_until = None,
                () = sleep_until(self.pause_until), if wanted > 0 => {}
                () = rows.changed.notified(), if wanted > 0 => self.shorten_pause(),
                () = desk.asked() => {}
            }
        }
    }

    /// Looks once; lays down what it finds, or pauses.
    async fn look(&mut self, wanted: usize) {
        let now = Moment::now();
        let (hidden, next_in_sight) = self.rows.hidden(now);
        let limit = u32::try_from(wanted).unwrap_or(u32::MAX);
        let peeked = self.peek(&hidden, limit).await;
        if peeked.is_ok() {
            self.desk.is_reached();
        }
        match peeked {
            Ok(found) if found.is_empty() => {
                let until = Moment::now() + self.poll;
                self.pause_until = Some(next_in_sight.map_or(until, |next| until.min(next)));
                self.poll = (self.poll * 2).min(POLL_MAX);
            }
            Ok(found) => {
                self.poll = POLL_MIN;
                self.pause_until = None;
                for row in found {
                    let number = row.number;
                    let seen = row.seen.into();
                    let (delivered, answer) = self.rows.hold(number);
                    let (incoming, carried) = incoming(row);
                    let place = Place {
                        generation: 0,
                        number: number.unsigned_abs(),
                    };
                    let delivery =
                        Delivery::new(incoming, delivered, seen, Some(number), place, answer);
                    self.desk.lay_down(delivery.carried_from(carried));
                }
                self.desk.hand_over();
            }
            Err(error) => {
                self.connection = None;
                self.pause_until = Some(Moment::now() + RECONNECT_PAUSE);
                self.desk.fail(self.source_error(error));
            }
        }
    }

    async fn peek(&mut self, hidden: &[i64], limit: u32) -> Result<Vec<QueueRow>, StoreError> {
        let is_first = !self.has_looked;
        let (connection, name) = self.connection().await?;
        if is_first {
            // All that may be in hand of this process is asked for in the first look, since nothing is in hand yet.
            connection.see_queue(name, limit).await?;
        }
        let found = connection.peek_queue(name, hidden, limit).await?;
        self.has_looked = true;
        Ok(found)
    }

    /// A row came back into sight, or will: the pause may be too long for it.
    fn shorten_pause(&mut self) {
        let (_, next_in_sight) = self.rows.hidden(Moment::now());
        if let (Some(until), Some(next)) = (self.pause_until, next_in_sight)
            && self.connection.is_some()
        {
            self.pause_until = Some(until.min(next));
        }
    }

    async fn backlog(&mut self) -> Result<u64, SourceError> {
        let counted = match self.connection().await {
            Ok((connection, name)) => connection.queue_backlog(name).await,
            Err(error) => Err(error),
        };
        counted.map_err(|error| {
            self.connection = None;
            self.source_error(error)
        })
    }

    async fn connection(&mut self) -> Result<(&mut Connection, &str), StoreError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let options = SessionOptions {
                    purpose: format!("queue {}", self.name),
                    statement_timeout: Some(STATEMENT_TIMEOUT),
                    lock_timeout: STATEMENT_TIMEOUT,
                    idle_in_transaction: STATEMENT_TIMEOUT,
                };
                self.store.connect(&options).await?
            }
        };
        Ok((self.connection.insert(connection), &self.name))
    }

    fn source_error(&self, error: StoreError) -> SourceError {
        let text = format!("queue `{}`: {error}", self.name);
        match error {
            StoreError::Busy(_) | StoreError::Unavailable(_) => SourceError::Unavailable(text),
            StoreError::Refused(_) | StoreError::Unusable(_) | StoreError::SchemaNewer { .. } => {
                SourceError::Unusable(text)
            }
        }
    }
}

fn incoming(row: QueueRow) -> (Incoming, Option<Carried>) {
    let incoming = Incoming {
        subject: row.subject,
        headers: row.headers,
        content_type: row.content_type,
        payload: row.payload,
        published_at: row.enqueued_at,
        position: Position(row.number.to_string()),
        queue_id: row.message_id,
    };
    match row.carried {
        None => (incoming, None),
        Some(carried) => (
            Incoming {
                published_at: carried.published_at,
                position: carried.position.clone(),
                queue_id: carried.queue_id.clone(),
                ..incoming
            },
            Some(carried),
        ),
    }
}

async fn sleep_until(moment: Option<Moment>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
