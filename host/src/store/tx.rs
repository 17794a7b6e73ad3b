//! The delivery's transaction, and the proofs that only its commit can give.

use std::collections::HashSet;

use super::session::{
    Baton, Claim, ClaimAs, ClaimRequest, CommitError, DeadLetter, OutboxRow, StoreError,
};
use super::{Connection, ResultSet, Savepoint, Session as _, SqlError, Value};
use crate::message::{ComponentDigest, MessageId, Position};

/// Proof that messages may be acknowledged: their effects are committed, by this transaction or by an earlier one.
///
/// Only `Tx::commit` makes one, and it names the ids that it covers.
#[derive(Debug)]
pub struct Settled {
    ids: HashSet<MessageId>,
}

impl Settled {
    /// True if the message with this id may be acknowledged.
    pub fn covers(&self, id: &MessageId) -> bool {
        self.ids.contains(id)
    }
}

/// Proof that messages are in the dead letters: they may be given back as never to be delivered again.
#[derive(Debug)]
pub struct Parked {
    positions: Vec<Position>,
}

impl Parked {
    /// True if the message at this position is in the dead letters.
    pub fn covers(&self, position: &Position) -> bool {
        self.positions.contains(position)
    }
}

/// What a commit proves.
#[derive(Debug)]
pub struct Committed {
    /// The claimed ids and the duplicates.
    pub settled: Settled,
    /// The dead letters.
    pub parked: Parked,
}

/// How a transaction ended.
#[derive(Debug)]
pub struct Ended {
    /// The connection, if it can be used again.
    pub connection: Option<Connection>,
    /// What was committed, or why nothing was (or may not have been: `CommitError::Unknown`).
    pub result: Result<Committed, CommitError>,
}

/// An open transaction. Dropping it closes its connection, which rolls it back.
#[derive(Debug)]
pub struct Tx {
    pub(super) connection: Connection,
    claimed: HashSet<MessageId>,
    parked: Vec<Position>,
}

impl Tx {
    /// Begins a transaction on `connection`. After an error the connection is closed.
    ///
    /// # Errors
    /// As `StoreError` says; nothing has happened.
    pub async fn begin(mut connection: Connection) -> Result<Self, StoreError> {
        connection.begin().await?;
        Ok(Self {
            connection,
            claimed: HashSet::new(),
            parked: Vec::new(),
        })
    }

    /// As `begin`, with the baton of `consumer` as the first lock: waits while a batch of that consumer runs, on any
    /// host, or for any of its messages if it is held alone.
    ///
    /// # Errors
    /// `Busy`: the wait ran out.
    pub async fn begin_with_baton(
        mut connection: Connection,
        consumer: &str,
        baton: Baton,
    ) -> Result<Self, StoreError> {
        connection.begin_with_baton(consumer, baton).await?;
        Ok(Self {
            connection,
            claimed: HashSet::new(),
            parked: Vec::new(),
        })
    }

    /// Claims ids for `consumer`. Returns one entry for each request, in their order.
    ///
    /// # Errors
    /// `Busy`: the wait for another host's claim ran out; give the messages back. `Unavailable`: the connection is lost.
    pub async fn claim(
        &mut self,
        consumer: &str,
        requests: &[ClaimRequest],
        component: Option<ComponentDigest>,
    ) -> Result<Vec<Claim>, StoreError> {
        let claims = self
            .connection
            .claim(consumer, requests, ClaimAs::Done, component)
            .await?;
        for (request, claim) in requests.iter().zip(&claims) {
            match claim {
                Claim::Fresh { .. } | Claim::Duplicate { .. } => {
                    self.claimed.insert(request.id.clone());
                }
                Claim::Conflict { .. } => {}
            }
        }
        Ok(claims)
    }

    /// Stands in for `claim` where the handler wants none (`dedup = "off"`): every id is fresh, whatever was processed
    /// before, and is covered by the commit.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn go_without_claims(
        &mut self,
        consumer: &str,
        ids: &[MessageId],
    ) -> Result<Vec<Claim>, StoreError> {
        let attempts = self
            .connection
            .attempts_without_claim(consumer, ids)
            .await?;
        self.claimed.extend(ids.iter().cloned());
        Ok(attempts
            .into_iter()
            .map(|charged| Claim::Fresh {
                attempt: charged + 1,
            })
            .collect())
    }

    /// Counts `id` among the duplicates although its payload differs from the one that was claimed: the handler's
    /// configuration says that such a difference means nothing.
    pub fn ignore_conflict(&mut self, id: &MessageId) {
        self.claimed.insert(id.clone());
    }

    /// Takes rows of the embedded queue inside this transaction. Returns the numbers of those that it got: the others are
    /// somebody else's, or were.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn take_queue_rows(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        self.connection.take_queue_rows(numbers).await
    }

    /// Takes one row of the embedded queue, and waits for whoever has it in hand. False: it is gone.
    ///
    /// # Errors
    /// `Busy` if the wait ran out.
    pub async fn wait_for_queue_row(&mut self, number: i64) -> Result<bool, StoreError> {
        self.connection.wait_for_queue_row(number).await
    }

    /// Runs one statement of the handler. Returns the rows affected.
    ///
    /// # Errors
    /// For the handler; the transaction is aborted if the database raised it.
    pub async fn execute(&mut self, statement: &str, params: &[Value]) -> Result<u64, SqlError> {
        self.connection.execute(statement, params).await
    }

    /// Runs one statement of the handler and returns its rows, at most `rows_max`.
    ///
    /// # Errors
    /// For the handler; `limit.rows` if there are more.
    pub async fn query(
        &mut self,
        statement: &str,
        params: &[Value],
        rows_max: u64,
    ) -> Result<ResultSet, SqlError> {
        self.connection.query(statement, params, rows_max).await
    }

    /// Runs one statement of the handler once for each row of parameters, in order. Returns the rows affected by each. No
    /// rows, no effect: the statement must only be one that is allowed.
    ///
    /// On PostgreSQL all rows go in one message, or as few as their size asks for. The time limit of a statement counts
    /// for each row.
    ///
    /// # Errors
    /// For the handler, with the row at fault, and the parameter if it is one. What does not fit the statement's
    /// parameters is found before the first row is run and aborts nothing.
    pub async fn execute_many(
        &mut self,
        statement: &str,
        rows: &[Vec<Value>],
    ) -> Result<Vec<u64>, SqlError> {
        self.connection.execute_many(statement, rows).await
    }

    /// Begins a savepoint: a place in the transaction to go back to. With one open, the commit is refused.
    ///
    /// # Errors
    /// `limit.savepoints`: as many are open as may be. `aborted`: an earlier statement failed.
    pub async fn begin_savepoint(&mut self) -> Result<Savepoint, SqlError> {
        self.connection.begin_savepoint().await
    }

    /// Keeps what was done since a savepoint was begun, and ends it and those that were begun later.
    ///
    /// # Errors
    /// `savepoint.ended`: it is not open. `aborted`: an earlier statement failed; it stays open, to be rolled back.
    pub async fn release_savepoint(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        self.connection.release_savepoint(savepoint).await
    }

    /// Undoes what was done since a savepoint was begun, and ends it and those that were begun later. An error of a
    /// statement since then is undone too.
    ///
    /// # Errors
    /// `savepoint.ended`: it is not open. `aborted`: what has happened is more than a savepoint can undo.
    pub async fn roll_back_savepoint(&mut self, savepoint: Savepoint) -> Result<(), SqlError> {
        self.connection.roll_back_savepoint(savepoint).await
    }

    /// Counts the open savepoints.
    pub fn open_savepoints(&self) -> usize {
        self.connection.open_savepoints()
    }

    /// The connection that it runs on, for this room's other files.
    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Returns what made this transaction unusable through no fault of its message: such a run is charged to nobody.
    pub fn fault(&self) -> Option<StoreError> {
        self.connection.fault()
    }

    /// True once nothing of this transaction can be kept: the database raised an error, swallowed by the handler or not.
    pub fn is_aborted(&self) -> bool {
        self.connection.is_aborted()
    }

    /// Writes the rows that handlers published.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn write_outbox(&mut self, rows: &[OutboxRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        self.connection.write_outbox(rows).await
    }

    /// Keeps a message as a dead letter. A message with a claimable id is claimed first, so that it can't be both
    /// processed and dead: if a committed transaction holds the id, nothing is written and the claim is returned.
    ///
    /// # Errors
    /// `Busy` if the id is in flight elsewhere.
    pub async fn bury(
        &mut self,
        letter: &DeadLetter,
        claim: Option<&ClaimRequest>,
    ) -> Result<Option<Claim>, StoreError> {
        let claim = match claim {
            None => None,
            Some(request) => self
                .connection
                .claim(
                    &letter.consumer,
                    std::slice::from_ref(request),
                    ClaimAs::Dead,
                    letter.component,
                )
                .await?
                .pop(),
        };
        match claim {
            Some(Claim::Duplicate { .. }) => {
                self.claimed.extend(letter.message_id.clone());
                return Ok(claim);
            }
            Some(Claim::Conflict { .. }) => return Ok(claim),
            Some(Claim::Fresh { .. }) | None => {}
        }
        self.connection.write_dead_letter(letter).await?;
        self.parked.push(letter.position.clone());
        Ok(claim)
    }

    /// Commits, after checking that the transaction is alive and the one that was begun.
    ///
    /// Await it to the end.
    pub async fn commit(mut self) -> Ended {
        match self.connection.commit().await {
            Ok(()) => Ended {
                connection: Some(self.connection),
                result: Ok(Committed {
                    settled: Settled { ids: self.claimed },
                    parked: Parked {
                        positions: self.parked,
                    },
                }),
            },
            Err(error @ CommitError::Unknown(_)) => Ended {
                connection: None,
                result: Err(error),
            },
            Err(error) => Ended {
                connection: match self.connection.rollback().await {
                    Ok(()) => Some(self.connection),
                    Err(_) => None,
                },
                result: Err(error),
            },
        }
    }

    /// Rolls back and gives the connection back, if it can still be used.
    ///
    /// Await it to the end.
    pub async fn rollback(mut self) -> Option<Connection> {
        match self.connection.rollback().await {
            Ok(()) => Some(self.connection),
            // The transaction ends with the connection, which is dropped here.
            Err(_) => None,
        }
    }
}
