//! Running ahead: what a transaction answers a handler before the database has.
//!
//! **Invariant**: nothing that follows from an answer given ahead is believed, committed or charged before the database has
//! given the same answer.

use super::postgres::Told;
use super::tx::Tx;
use super::{Connection, SqlError};

/// One call of a handler, as far as the answers to its statements depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The message's place in its batch, from 0.
    pub member: usize,
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

/// What a run before its transaction was told, and the statements for which it was told so: [`Tx::adopt`] sends them.
#[derive(Debug)]
pub struct Early(pub(super) Told);

impl Early {
    /// True if it was told nothing: it ran no statement.
    pub fn is_empty(&self) -> bool {
        self.0.bytes() == 0
    }

    /// Returns how long its statements are, as they are sent.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
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

impl Connection {
    /// True if calls may run before their transaction begins: something is known of the statements, and it is still so.
    pub fn can_run_early(&self) -> bool {
        match self {
            Self::Postgres(session) => session.can_run_early(),
            Self::Sqlite(_) => false,
        }
    }
}

impl Tx {
    /// Stands in for a transaction that has not begun. A handler's statements are answered if the number of rows is known, and are taken
    /// down with that ([`Tx::take_early`]); at any other the run is misled, and ends. Nothing is sent, and a commit is refused.
    ///
    /// Only for a connection that [can](Connection::can_run_early); on another every run is misled.
    pub fn before_begin(mut connection: Connection) -> Self {
        if let Connection::Postgres(session) = &mut connection {
            session.run_early();
        }
        Self::on(connection)
    }

    /// Returns what the run was told since `begin_run`, and forgets it. `None`: it was misled.
    pub fn take_early(&mut self) -> Option<Early> {
        match self.connection() {
            Connection::Postgres(session) => session.take_told().map(Early),
            Connection::Sqlite(_) => None,
        }
    }

    /// Ends what [`Tx::before_begin`] began: there is nothing to roll back.
    pub fn end_before_begin(self) -> Connection {
        self.connection
    }

    /// Takes over the statements of an early run, in the name of the run that was begun last. False, and nothing has happened, if they can't be
    /// sent as they are; then the handler has to run again.
    pub async fn adopt(&mut self, early: Early) -> bool {
        match self.connection() {
            Connection::Postgres(session) => {
                let is_adopted = session.adopt(early.0);
                if is_adopted && session.waits_for_much() {
                    // What comes of it is told to whoever settles next.
                    let _ = session.settle().await;
                }
                is_adopted
            }
            Connection::Sqlite(_) => false,
        }
    }

    /// True between [`Tx::before_begin`] and its end: no statement is on its way, whenever a call is cut off.
    pub fn is_before_begin(&self) -> bool {
        match &self.connection {
            Connection::Postgres(session) => session.runs_early(),
            Connection::Sqlite(_) => false,
        }
    }

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
