//! Running ahead: what a transaction answers a handler before the database has.
//!
//! **Invariant**: nothing that follows from an answer given ahead is believed, committed or charged before the database has
//! given the same answer.

use super::tx::Tx;
use super::{Connection, SqlError};
use crate::message::ComponentDigest;

/// One call of a handler, as far as the answers to its statements depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The message's place in its batch, from 0.
    pub member: usize,
    /// The code that runs: what is known of its statements holds for it alone.
    pub component: ComponentDigest,
    /// Statements may be answered with the number of rows that they have always affected, before the database has run them.
    pub ahead: bool,
}

/// The database gave another answer than the one that a handler was given ahead: nothing of the transaction can be kept, and nobody
/// is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a statement's result is another than the one that was expected")]
pub struct Misled {
    /// Whose run was the first one that was misled, by its place in the batch; `None` if that is not known.
    pub member: Option<usize>,
}

impl Misled {
    /// What stands for it where a handler's statement is answered. The handler never sees it.
    pub(super) fn answer(self) -> SqlError {
        SqlError::new("internal", self.to_string())
    }
}

/// How many answers were given ahead, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promises {
    /// Given.
    pub made: u64,
    /// The database has given the same.
    pub kept: u64,
    /// It has given another, or an error.
    pub broken: u64,
}

/// What a session can do of this.
pub(super) trait AheadSession {
    /// Says whose statements follow.
    fn begin_run(&mut self, run: Run);

    /// Sends what was answered ahead and compares the answers.
    fn settle(&mut self) -> impl Future<Output = Result<(), Misled>> + Send;

    /// True if answers were given that are not compared yet, or were found to be wrong.
    fn is_unsettled(&self) -> bool;

    /// Returns who was misled first, once that is known.
    fn misled(&self) -> Option<Misled>;

    /// Returns how many were given since the last call, in this transaction.
    fn take_promises(&mut self) -> Promises;
}

impl Tx {
    /// Says whose statements follow. Before the first one, none is answered ahead.
    pub fn begin_run(&mut self, run: Run) {
        if let Connection::Postgres(session) = self.connection() {
            session.begin_run(run);
        }
    }

    /// Waits until every answer that was given ahead is compared with the database's.
    ///
    /// Await it to the end.
    ///
    /// # Errors
    /// One differs; only a rollback is left. `fault` tells if the database could not answer.
    pub async fn settle(&mut self) -> Result<(), Misled> {
        match self.connection() {
            Connection::Postgres(session) => session.settle().await,
            Connection::Sqlite(_) => Ok(()),
        }
    }

    /// True if answers were given ahead that are not compared yet, or were found to be wrong: what a handler does then says nothing
    /// about its message.
    pub fn is_unsettled(&self) -> bool {
        match &self.connection {
            Connection::Postgres(session) => session.is_unsettled(),
            Connection::Sqlite(_) => false,
        }
    }

    /// Returns who was misled first, once that is known.
    pub fn misled(&self) -> Option<Misled> {
        match &self.connection {
            Connection::Postgres(session) => session.misled(),
            Connection::Sqlite(_) => None,
        }
    }

    /// Returns how many answers were given ahead in this transaction since the last call.
    pub fn take_promises(&mut self) -> Promises {
        match &mut self.connection {
            Connection::Postgres(session) => session.take_promises(),
            Connection::Sqlite(_) => Promises::default(),
        }
    }
}
