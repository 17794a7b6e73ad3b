//! Running ahead on PostgreSQL: a statement that changes rows is answered with the number of rows that it has affected every time
//! before, and goes to the server later, together with others, in one message.
//!
//! A run before its transaction has begun (`Tx::before_begin`) gets such answers only; its statements are sent once the transaction adopts them.
//!
//! **Invariant**: statements reach the server in the order in which handlers ran them; nothing else is sent while some wait.
//! **Invariant**: before a transaction has begun nothing is sent, and whatever would have to be sent ends the run.
//! **Invariant**: numbers are learned from transactions that committed, and used only after many equal ones in a row.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Either};

use super::rows::RowSink;
use super::statements::Prepared;
use super::{PostgresSession, TxState, errors};
use crate::store::ahead::{AheadSession, Misled, Promises, Run};
use crate::store::{SqlError, Value};

/// A number is used after so many equal ones in a row.
const STEADY_AFTER: u32 = 16;
/// The most, for a statement whose number is often another one.
const STEADY_AFTER_MAX: u32 = 256;
/// A number that has held for so many times since it was last another one goes on being used when it is another one again: the message is
/// at fault then, such as one that is rejected because no row was there, and not the statement.
const SELDOM: u32 = 32;
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
    /// How often it was this one since it was promised and another.
    held: u32,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            count: 0,
            in_a_row: 0,
            wanted: STEADY_AFTER,
            held: 0,
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
            self.held = self.held.saturating_add(1);
        } else {
            self.count = count;
            self.in_a_row = 1;
            self.held = 1;
        }
    }

    /// It was promised, and was another one.
    fn broke(&mut self) {
        if self.held >= SELDOM {
            self.wanted = (self.wanted / 2).max(STEADY_AFTER);
        } else {
            self.wanted = (self.wanted * 4).min(STEADY_AFTER_MAX);
            self.in_a_row = 0;
        }
        self.held = 0;
    }
}

/// One call of a statement: the statement's number on this connection, and which of its calls in the message it is, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    statement: u64,
    nth: usize,
}

/// What a connection has learned of the numbers of rows that statements affect. Another version of a handler goes on from there: a number that
/// no longer holds is found before it counts.
#[derive(Debug, Default)]
pub(super) struct Counts {
    by_statement: HashMap<u64, Vec<Known>>,
}

impl Counts {
    fn is_empty(&self) -> bool {
        self.by_statement.is_empty()
    }

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

/// What a run before its transaction was told.
#[derive(Debug)]
pub(in crate::store) struct Told {
    /// Its statements as commands, between semicolons.
    text: String,
    /// The number of rows of each.
    promises: Vec<(Call, u64)>,
}

impl Told {
    pub(in crate::store) fn bytes(&self) -> usize {
        self.text.len()
    }
}

/// What was answered ahead in the open transaction, and what is learned from it.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    run: Option<Run>,
    /// No transaction has begun.
    is_early: bool,
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

    fn push_text(&mut self, commands: &str) {
        if !self.text.is_empty() {
            self.text.push(';');
        }
        self.text.push_str(commands);
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

/// The query behind what waits.
struct Last<'a> {
    prepared: Prepared,
    sink: &'a mut RowSink,
    /// Its rows are not what it was described with.
    is_stale: bool,
    is_first: bool,
}

impl Last<'_> {
    fn take(&mut self, row: &PgRow) {
        // The driver's own copy of a description can be older than the statement.
        self.is_stale |= std::mem::take(&mut self.is_first) && !self.prepared.describes(row);
        if !self.is_stale {
            self.sink.take(row);
        }
    }
}

impl PostgresSession {
    /// True if something is known of the handler's statements, and what is prepared is up to date.
    pub(in crate::store) fn can_run_early(&self) -> bool {
        !self.broken && !self.is_stale && self.learned.is_some() && !self.counts.is_empty()
    }

    /// Has the runs that follow be early ones, until a transaction begins.
    pub(in crate::store) fn run_early(&mut self) {
        self.tx = TxState {
            // The transaction that adopts them sees to the role.
            in_role: true,
            ahead: Ahead {
                is_early: true,
                ..Ahead::default()
            },
            ..TxState::default()
        };
    }

    pub(in crate::store) fn runs_early(&self) -> bool {
        self.tx.ahead.is_early
    }

    /// Returns what the early run was told; `None` if it was misled.
    pub(in crate::store) fn take_told(&mut self) -> Option<Told> {
        let ahead = &mut self.tx.ahead;
        let text = std::mem::take(&mut ahead.text);
        let promises = ahead
            .waiting
            .drain(..)
            .filter_map(|command| command.promise)
            .collect();
        ahead.waiting_of_run = 0;
        ahead.promises = Promises::default();
        match ahead.misled.take() {
            None => Some(Told { text, promises }),
            Some(_) => None,
        }
    }

    /// Has the statements of an early run wait as those of the running one. False if one is not prepared any more, or if the transaction can't
    /// go on by itself.
    pub(in crate::store) fn adopt(&mut self, told: Told) -> bool {
        let Some(run) = self.tx.ahead.run.filter(|run| run.ahead) else {
            return false;
        };
        let is_there = |(call, _): &(Call, u64)| self.statements.has(call.statement);
        if self.tx.aborted
            || self.tx.savepoints.open() > 0
            || self.tx.ahead.misled.is_some()
            || !told.promises.iter().all(is_there)
        {
            return false;
        }
        if told.promises.is_empty() {
            return true;
        }
        if let Some(role) = self.role_to_enter() {
            self.tx.ahead.push_text(&role);
            self.tx.ahead.wait(run.member, None);
            self.tx.in_role = true;
        }
        let ahead = &mut self.tx.ahead;
        ahead.push_text(&told.text);
        ahead.promises.made += told.promises.len() as u64;
        for (call, count) in told.promises {
            ahead.wait(run.member, Some((call, count)));
            ahead.called(call.statement);
        }
        self.tx.ran = true;
        true
    }

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
            ahead.push_text(&role);
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
    pub(in crate::store) fn waits_for_much(&self) -> bool {
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

    /// Runs a handler's query behind what waits, in one message with it; `None` if that can't be done, and nothing has happened.
    ///
    /// # Errors
    /// What is wrong with the parameters, or what stands for a broken promise. An error of the query itself ends the run as misled, too: alone in
    /// its message it says more.
    pub(super) async fn query_behind(
        &mut self,
        statement: &str,
        params: &[Value],
        sink: &mut RowSink,
    ) -> Result<Option<()>, SqlError> {
        let ahead = &self.tx.ahead;
        if ahead.is_early || ahead.misled.is_some() || ahead.waiting.is_empty() || self.tx.aborted {
            return Ok(None);
        }
        let Some(prepared) = self.statements.get(statement) else {
            return Ok(None);
        };
        if prepared.columns.is_empty() || params.len() != prepared.params.len() {
            return Ok(None);
        }
        self.tx
            .ahead
            .push(|text| prepared.push_call(text, params).map(drop))?;
        self.tx.ran = true;
        sink.start(&prepared);
        let mut last = Last {
            prepared,
            sink,
            is_stale: false,
            is_first: true,
        };
        let sent = self.send_waiting(Some(&mut last)).await;
        let is_stale = last.is_stale;
        sent.map_err(Misled::answer)?;
        match is_stale {
            true => Err(self.stale_description()),
            false => Ok(Some(())),
        }
    }

    /// Sends what waits as one message, and compares what comes back. A query can be the `last` command of the message.
    async fn send_waiting(&mut self, mut last: Option<&mut Last<'_>>) -> Result<(), Misled> {
        let text = std::mem::take(&mut self.tx.ahead.text);
        let waiting = std::mem::take(&mut self.tx.ahead.waiting);
        self.tx.ahead.waiting_of_run = 0;
        self.tx.ahead.is_sending = true;
        let commands = waiting.len() + usize::from(last.is_some());
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
                    match part {
                        Either::Left(done) => {
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
                        Either::Right(row) => {
                            if let Some(last) = &mut last {
                                last.take(&row);
                            }
                        }
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
            Ok(Ok(())) if compared.done == commands => match compared.differs {
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
                let of_last = self.tx.ahead.run.map(|run| run.member);
                Err(match waiting.get(index) {
                    Some(command) if is_own => self.broke(command),
                    None if is_own => self.tx.ahead.mislead(of_last),
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
        let ahead = &mut self.tx.ahead;
        ahead.run = Some(run);
        ahead.calls.clear();
        ahead.waiting_of_run = 0;
    }

    async fn settle(&mut self) -> Result<(), Misled> {
        if let Some(misled) = self.tx.ahead.misled {
            return Err(misled);
        }
        if self.tx.ahead.is_early {
            // What the run needs now only a transaction can tell.
            let member = self.tx.ahead.run.map(|run| run.member);
            return Err(self.tx.ahead.mislead(member));
        }
        if self.tx.ahead.waiting.is_empty() {
            return Ok(());
        }
        self.send_waiting(None).await
    }

    fn is_unsettled(&self) -> bool {
        let ahead = &self.tx.ahead;
        ahead.is_early || ahead.misled.is_some() || ahead.is_sending || !ahead.waiting.is_empty()
    }

    fn misled(&self) -> Option<Misled> {
        self.tx.ahead.misled
    }

    fn take_promises(&mut self) -> Promises {
        std::mem::take(&mut self.tx.ahead.promises)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Learns `count` so many times.
    fn learned(known: &mut Known, count: u64, times: u32) -> Option<u64> {
        for _ in 0..times {
            known.learn(count);
        }
        known.promised()
    }

    #[test]
    fn a_number_is_used_once_it_is_steady() {
        let mut known = Known::default();
        assert_eq!(known.promised(), None);
        assert_eq!(learned(&mut known, 1, STEADY_AFTER - 1), None);
        assert_eq!(learned(&mut known, 1, 1), Some(1));
        assert_eq!(learned(&mut known, 2, 1), None, "another one");
        assert_eq!(learned(&mut known, 2, STEADY_AFTER - 1), Some(2));
    }

    #[test]
    fn a_number_that_often_breaks_is_waited_for_longer() {
        let mut known = Known::default();
        learned(&mut known, 1, STEADY_AFTER);
        for wanted in [STEADY_AFTER * 4, STEADY_AFTER_MAX] {
            known.broke();
            assert_eq!(known.promised(), None);
            known.held = 0;
            assert_eq!(learned(&mut known, 1, wanted - 1), None);
            assert_eq!(learned(&mut known, 1, 1), Some(1));
            known.held = 1;
        }
    }

    #[test]
    fn a_number_that_seldom_breaks_goes_on_being_used() {
        let mut known = Known::default();
        learned(&mut known, 1, STEADY_AFTER);
        for _ in 0..5 {
            learned(&mut known, 1, SELDOM);
            known.broke();
            assert_eq!(known.promised(), Some(1));
        }
        known.broke();
        assert_eq!(known.promised(), None, "twice in a row");
    }

    #[test]
    fn calls_of_a_statement_are_told_apart_and_bounded() {
        let mut counts = Counts::default();
        let call = |statement, nth| Call { statement, nth };
        for _ in 0..STEADY_AFTER {
            counts.change(call(1, 0), |known| known.learn(1));
            counts.change(call(1, 1), |known| known.learn(2));
            counts.change(call(1, CALLS_MAX), |known| known.learn(3));
        }
        assert_eq!(counts.known(call(1, 0)).promised(), Some(1));
        assert_eq!(counts.known(call(1, 1)).promised(), Some(2));
        assert_eq!(counts.known(call(1, CALLS_MAX)).promised(), None);
        assert_eq!(counts.known(call(2, 0)).promised(), None);
        for statement in 2..=KNOWN_MAX as u64 + 1 {
            counts.change(call(statement, 0), |known| known.learn(1));
        }
        assert!(counts.by_statement.len() <= KNOWN_MAX);
        assert_eq!(counts.known(call(1, 0)).promised(), None, "learned anew");
    }
}
