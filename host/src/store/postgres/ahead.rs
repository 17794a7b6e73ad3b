//! Running ahead on PostgreSQL: a statement that changes rows is answered with the number of rows that it has affected every time
//! before, and goes to the server later, together with others, in one message.
//!
//! **Invariant**: statements reach the server in the order in which handlers ran them; nothing else is sent while some wait.
//! **Invariant**: numbers are learned from transactions that committed, and used only after many equal ones in a row.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::{AssertSqlSafe, Either};

use super::statements::Prepared;
use super::{PostgresSession, errors};
use crate::message::ComponentDigest;
use crate::store::ahead::{AheadSession, Misled, Promises, Run};
use crate::store::{SqlError, Value};

/// A number is used after so many equal ones in a row.
const STEADY_AFTER: u32 = 16;
/// The same, once it was another than was promised.
const STEADY_AFTER_BREAK: u32 = 64;
/// What waits is sent when so many statements of one message do: a loop that runs until a statement affects no row must end.
const WAITING_MAX: usize = 64;
/// What waits is sent when it has so many bytes.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// How many calls of one statement in one message are told apart; later ones are waited for.
const CALLS_MAX: usize = 64;
/// Of so many statements numbers are kept; beyond that they are learned anew.
const KNOWN_MAX: usize = 512;

/// What is known of one call of a statement: the n-th in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    count: u64,
    in_a_row: u32,
    wanted: u32,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            count: 0,
            in_a_row: 0,
            wanted: STEADY_AFTER,
        }
    }
}

impl Known {
    fn promised(self) -> Option<u64> {
        (self.in_a_row >= self.wanted).then_some(self.count)
    }

    fn learn(&mut self, count: u64) {
        if self.count == count {
            self.in_a_row = self.in_a_row.saturating_add(1);
        } else {
            self.count = count;
            self.in_a_row = 1;
        }
    }

    fn broke(&mut self) {
        self.in_a_row = 0;
        self.wanted = STEADY_AFTER_BREAK;
    }
}

/// One call of a statement: the statement's number on this connection, and which of its calls in the message it is, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    statement: u64,
    nth: usize,
}

/// What a connection has learned of the numbers of rows that statements affect.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Whose statements they are.
    component: Option<ComponentDigest>,
    by_statement: HashMap<u64, Vec<Known>>,
}

impl Counts {
    fn known(&self, call: Call) -> Known {
        self.by_statement
            .get(&call.statement)
            .and_then(|calls| calls.get(call.nth))
            .copied()
            .unwrap_or_default()
    }

    fn change(&mut self, call: Call, change: impl FnOnce(&mut Known)) {
        if call.nth >= CALLS_MAX {
            return;
        }
        if self.by_statement.len() >= KNOWN_MAX && !self.by_statement.contains_key(&call.statement)
        {
            self.by_statement.clear();
        }
        let calls = self.by_statement.entry(call.statement).or_default();
        if calls.len() <= call.nth {
            calls.resize(call.nth + 1, Known::default());
        }
        if let Some(known) = calls.get_mut(call.nth) {
            change(known);
        }
    }
}

/// A command of the message that waits to be sent.
#[derive(Debug)]
struct Waiting {
    member: usize,
    /// `None`: a command of the host's own, of which no number is expected.
    promise: Option<(Call, u64)>,
}

/// What was answered ahead in the open transaction, and what is learned from it.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    run: Option<Run>,
    /// The statements that the running call has executed, and how often each.
    calls: Vec<(u64, usize)>,
    text: String,
    waiting: Vec<Waiting>,
    /// How many of those are the running call's.
    waiting_of_run: usize,
    /// Commands are on their way: whoever drops the wait for their answers has not compared them.
    is_sending: bool,
    /// What is learned if the transaction commits.
    counted: Vec<(Call, u64)>,
    misled: Option<Misled>,
    promises: Promises,
}

impl Ahead {
    /// Returns which call of a statement by the running message the next one is.
    fn next_call(&self, statement: u64) -> Call {
        let called = self.calls.iter().find(|(known, _)| *known == statement);
        Call {
            statement,
            nth: called.map_or(0, |(_, times)| *times),
        }
    }

    /// Takes down that the running message has made the next call of a statement.
    fn called(&mut self, statement: u64) {
        match self.calls.iter_mut().find(|(known, _)| *known == statement) {
            Some((_, times)) => *times += 1,
            None => self.calls.push((statement, 1)),
        }
    }

    fn wait(&mut self, member: usize, promise: Option<(Call, u64)>) {
        self.waiting.push(Waiting { member, promise });
        self.waiting_of_run += 1;
    }

    fn push(
        &mut self,
        write: impl FnOnce(&mut String) -> Result<(), SqlError>,
    ) -> Result<(), SqlError> {
        let before = self.text.len();
        if before > 0 {
            self.text.push(';');
        }
        if let Err(error) = write(&mut self.text) {
            self.text.truncate(before);
            return Err(error);
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.waiting_of_run >= WAITING_MAX || self.text.len() >= WAITING_BYTES_MAX
    }

    fn mislead(&mut self, member: Option<usize>) -> Misled {
        *self.misled.get_or_insert(Misled { member })
    }
}

/// What became of a message of waiting commands.
#[derive(Debug, Default)]
struct Compared {
    /// How many were completed.
    done: usize,
    /// The first one with another number than was promised.
    differs: Option<usize>,
}

impl PostgresSession {
    /// Answers a handler's statement ahead, if that can be done; else `None`, and nothing has happened.
    ///
    /// # Errors
    /// What is wrong with the parameters.
    pub(super) fn answer_ahead(
        &mut self,
        statement: &str,
        params: &[Value],
    ) -> Result<Option<u64>, SqlError> {
        let Some(run) = self.tx.ahead.run.filter(|run| run.ahead) else {
            return Ok(None);
        };
        if self.tx.aborted
            || self.tx.savepoints.open() > 0
            || self.tx.ahead.misled.is_some()
            || self.learned.is_none()
        {
            return Ok(None);
        }
        let Some(prepared) = self.statements.get(statement) else {
            return Ok(None);
        };
        // What returns rows reads.
        if !prepared.columns.is_empty() || params.len() != prepared.params.len() {
            return Ok(None);
        }
        let call = self.tx.ahead.next_call(prepared.number());
        let Some(count) = self.counts.known(call).promised() else {
            return Ok(None);
        };
        let role = self.role_to_enter();
        let ahead = &mut self.tx.ahead;
        if let Some(role) = role {
            ahead.push(|text| {
                text.push_str(&role);
                Ok(())
            })?;
            ahead.wait(run.member, None);
            self.tx.in_role = true;
        }
        ahead.push(|text| prepared.push_call(text, params).map(drop))?;
        ahead.wait(run.member, Some((call, count)));
        ahead.called(call.statement);
        ahead.promises.made += 1;
        self.tx.ran = true;
        Ok(Some(count))
    }

    /// Sends what waits, before anything else is.
    ///
    /// # Errors
    /// What stands for a broken promise; whoever called the handler looks at that.
    pub(super) async fn settle_first(&mut self) -> Result<(), SqlError> {
        self.settle().await.map_err(Misled::answer)
    }

    /// True if so much waits that it is to be sent.
    pub(super) fn waits_for_much(&self) -> bool {
        self.tx.ahead.is_full()
    }

    /// Takes down what a statement that was waited for has affected.
    pub(super) fn count(&mut self, statement: &str, count: u64) {
        if self.tx.ahead.run.is_none() {
            return;
        }
        let Some(number) = self
            .statements
            .get(statement)
            .as_ref()
            .map(Prepared::number)
        else {
            return;
        };
        let call = self.tx.ahead.next_call(number);
        self.tx.ahead.called(number);
        self.tx.ahead.counted.push((call, count));
    }

    /// Learns from the open transaction, which has committed.
    pub(super) fn learn_counts(&mut self) {
        for (call, count) in std::mem::take(&mut self.tx.ahead.counted) {
            self.counts.change(call, |known| known.learn(count));
        }
    }

    /// Sends what waits as one message, and compares what comes back.
    async fn send_waiting(&mut self) -> Result<(), Misled> {
        let text = std::mem::take(&mut self.tx.ahead.text);
        let waiting = std::mem::take(&mut self.tx.ahead.waiting);
        self.tx.ahead.waiting_of_run = 0;
        self.tx.ahead.is_sending = true;
        let mut compared = Compared::default();
        // The server's limit counts for each command; this one for all of them.
        let longest = self.options.statement_timeout.unwrap_or(Duration::MAX);
        let sent = {
            let connection = &mut self.connection;
            let (waiting, compared) = (&waiting, &mut compared);
            let send = async move {
                let mut stream = sqlx::Executor::fetch_many(
                    connection,
                    sqlx::raw_sql(AssertSqlSafe(text.as_str())),
                );
                while let Some(part) = stream.try_next().await? {
                    if let Either::Left(done) = part {
                        let promised = waiting
                            .get(compared.done)
                            .and_then(|command| command.promise);
                        if let Some((_, count)) = promised
                            && count != done.rows_affected()
                        {
                            compared.differs.get_or_insert(compared.done);
                        }
                        compared.done += 1;
                    }
                }
                Ok::<(), sqlx::Error>(())
            };
            tokio::time::timeout(longest, send).await
        };
        self.tx.ahead.is_sending = false;
        let kept = compared.differs.unwrap_or(compared.done).min(waiting.len());
        for command in &waiting[..kept] {
            if let Some((call, count)) = command.promise {
                self.tx.ahead.counted.push((call, count));
                self.tx.ahead.promises.kept += 1;
            }
        }
        match sent {
            Ok(Ok(())) if compared.done == waiting.len() => match compared.differs {
                None => Ok(()),
                Some(index) => Err(self.broke(&waiting[index])),
            },
            Ok(Ok(())) => {
                self.tx.aborted = true;
                self.broken = true;
                Err(self.tx.ahead.mislead(None))
            }
            Ok(Err(error)) => {
                self.note(&error);
                // Of the first that went another way than was promised.
                let index = compared.differs.unwrap_or(compared.done);
                let is_own = self.tx.fault.is_none() && !errors::is_timeout(&error);
                Err(match waiting.get(index) {
                    Some(command) if is_own => self.broke(command),
                    _ => self.tx.ahead.mislead(None),
                })
            }
            // In the middle of a message: the server finds the connection gone and rolls back.
            Err(_) => {
                self.tx.aborted = true;
                self.broken = true;
                Err(self.tx.ahead.mislead(None))
            }
        }
    }

    fn broke(&mut self, command: &Waiting) -> Misled {
        if let Some((call, _)) = command.promise {
            self.tx.ahead.promises.broken += 1;
            self.counts.change(call, Known::broke);
        }
        self.tx.ahead.mislead(Some(command.member))
    }
}

impl AheadSession for PostgresSession {
    fn begin_run(&mut self, run: Run) {
        if self.counts.component != Some(run.component) {
            self.counts = Counts {
                component: Some(run.component),
                by_statement: HashMap::new(),
            };
        }
        let ahead = &mut self.tx.ahead;
        ahead.run = Some(run);
        ahead.calls.clear();
        ahead.waiting_of_run = 0;
    }

    async fn settle(&mut self) -> Result<(), Misled> {
        if let Some(misled) = self.tx.ahead.misled {
            return Err(misled);
        }
        if self.tx.ahead.waiting.is_empty() {
            return Ok(());
        }
        self.send_waiting().await
    }

    fn is_unsettled(&self) -> bool {
        let ahead = &self.tx.ahead;
        ahead.misled.is_some() || ahead.is_sending || !ahead.waiting.is_empty()
    }

    fn misled(&self) -> Option<Misled> {
        self.tx.ahead.misled
    }

    fn take_promises(&mut self) -> Promises {
        std::mem::take(&mut self.tx.ahead.promises)
    }
}
