//! The delivery's transaction, and the proofs that only its commit can give.

use std::collections::HashSet;
use std::time::Duration;

use super::letters::{Reburied, Replay, Restored};
use super::queue::QueueSession as _;
use super::session::{
    Baton, Claim, ClaimAs, ClaimRequest, CommitError, DeadLetter, OutboxRow, StoreError,
};
use super::{
    Connection, LetterSession as _, ResultSet, Savepoint, Session as _, SqlError, StoredDeadLetter,
    Value,
};
use crate::message::{Carried, ComponentDigest, Incoming, Instant, MessageId, Position, ShortHash};

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

/// Proof that messages are in the dead letters, or were dropped from them by a person: they may be given back as never to be
/// delivered again.
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
        Ok(Self::on(connection))
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
        Ok(Self::on(connection))
    }

    pub(super) fn on(connection: Connection) -> Self {
        Self {
            connection,
            claimed: HashSet::new(),
            parked: Vec::new(),
        }
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

    /// Has hapax carry a message itself: puts it into the consumer's own queue, due after `wait` by the database's clock, and
    /// covers its id, so that its source may be told that it is done.
    ///
    /// `incoming` gives its bytes, `carried` all else. A row that carries the same id with the same payload already, or replays
    /// the same letter, only gets the new time. Take the row of a delivery that was carried before, first.
    ///
    /// # Errors
    /// `Busy` if that row is in hand elsewhere.
    pub async fn carry(
        &mut self,
        consumer: &str,
        carried: &Carried,
        incoming: &Incoming,
        wait: Duration,
    ) -> Result<(), StoreError> {
        self.connection
            .carry(consumer, carried, incoming, wait)
            .await?;
        self.claimed.extend(carried.message_id.clone());
        Ok(())
    }

    /// Begins replays: locks their letters, and deletes the dead claims of their ids, so that a claim is fresh. Returns the
    /// letters that are there; the others were dropped.
    ///
    /// All of it comes back if the transaction does not commit.
    ///
    /// # Errors
    /// `Busy` if somebody else has one of the letters in hand.
    pub async fn begin_replays(
        &mut self,
        consumer: &str,
        replays: &[Replay],
    ) -> Result<HashSet<i64>, StoreError> {
        let numbers: Vec<i64> = replays.iter().map(|replay| replay.letter).collect();
        let found: HashSet<i64> = self
            .connection
            .lock_letters(consumer, &numbers)
            .await?
            .into_iter()
            .collect();
        let claims: Vec<_> = replays
            .iter()
            .filter(|replay| found.contains(&replay.letter))
            .filter_map(|replay| replay.claim.clone())
            .collect();
        if !claims.is_empty() {
            self.connection
                .release_dead_claims(consumer, &claims)
                .await?;
        }
        Ok(found)
    }

    /// Deletes the letters of replays that end with this commit.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn end_replays(&mut self, consumer: &str, letters: &[i64]) -> Result<(), StoreError> {
        if letters.is_empty() {
            return Ok(());
        }
        self.connection.delete_letters(consumer, letters).await
    }

    /// Covers the id of a message that nothing is to be done for any more: its letter was dropped.
    pub fn let_go(&mut self, id: &MessageId) {
        self.claimed.insert(id.clone());
    }

    /// Keeps a replay that failed for good under its letter's number: with the new reason, and the new attempts after the old
    /// ones. As with `bury`, an id that can be claimed is claimed first.
    ///
    /// # Errors
    /// `Busy` if the id or the letter is in hand elsewhere.
    pub async fn bury_again(
        &mut self,
        number: i64,
        letter: &DeadLetter,
        claim: Option<&ClaimRequest>,
    ) -> Result<Reburied, StoreError> {
        let found = self
            .connection
            .lock_letters(&letter.consumer, &[number])
            .await?;
        if found.is_empty() {
            self.parked.push(letter.position.clone());
            return Ok(Reburied::Dropped);
        }
        let claim = match claim {
            None => None,
            Some(request) => {
                // Its own dead claim gives way to one that is fresh: to a duplicate, recorded attempts would count no more.
                let own = (request.id.clone(), request.payload_hash);
                self.connection
                    .release_dead_claims(&letter.consumer, &[own])
                    .await?;
                self.connection
                    .claim(
                        &letter.consumer,
                        std::slice::from_ref(request),
                        ClaimAs::Dead,
                        letter.component,
                    )
                    .await?
                    .pop()
            }
        };
        match claim {
            Some(Claim::Duplicate {
                outcome: ClaimAs::Done,
            }) => {
                self.connection
                    .delete_letters(&letter.consumer, &[number])
                    .await?;
                self.claimed.extend(letter.message_id.clone());
                return Ok(Reburied::Succeeded);
            }
            Some(Claim::Conflict { stored }) => return Ok(Reburied::Conflict { stored }),
            Some(
                Claim::Duplicate {
                    outcome: ClaimAs::Dead,
                }
                | Claim::Fresh { .. },
            )
            | None => {}
        }
        self.connection.rewrite_letter(number, letter).await?;
        self.parked.push(letter.position.clone());
        Ok(Reburied::Rewritten)
    }

    /// Puts a letter back that was dropped, with its dead claim if it had one. Its number stays if it is free and was given
    /// before.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn restore(
        &mut self,
        stored: &StoredDeadLetter,
        is_claimed: bool,
    ) -> Result<Restored, StoreError> {
        let letter = &stored.letter;
        let payload_hash = ShortHash::of_payload(&letter.payload);
        if let Some(id) = &letter.message_id
            && self
                .connection
                .is_done(&letter.consumer, id, payload_hash)
                .await?
        {
            return Ok(Restored::Succeeded);
        }
        let Some(number) = self.connection.insert_letter(stored).await? else {
            return Ok(Restored::IsThere);
        };
        if let (Some(id), true) = (&letter.message_id, is_claimed) {
            let request = ClaimRequest {
                id: id.clone(),
                payload_hash,
            };
            let claim = self
                .connection
                .claim(
                    &letter.consumer,
                    &[request],
                    ClaimAs::Dead,
                    letter.component,
                )
                .await?
                .pop();
            if let Some(Claim::Duplicate {
                outcome: ClaimAs::Done,
            }) = claim
            {
                // It was claimed since the look above.
                self.connection
                    .delete_letters(&letter.consumer, &[number])
                    .await?;
                return Ok(Restored::Succeeded);
            }
        }
        Ok(Restored::As(number))
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
        self.leave_role().await?;
        self.connection.write_outbox(rows).await
    }

    /// Ends the role of the handlers, after the last of them and before the host writes rows of its own: constraints that were put
    /// off are checked as that role, and the session is compared with what it was. Without a role the commit does both.
    ///
    /// # Errors
    /// `Refused`: because of what the handlers did; only a rollback is left.
    pub async fn end_role(&mut self) -> Result<(), CommitError> {
        match &mut self.connection {
            Connection::Postgres(session) => session.end_role().await,
            Connection::Sqlite(_) => Ok(()),
        }
    }

    /// Ends the role for statements of the host's own between those of handlers.
    async fn leave_role(&mut self) -> Result<(), StoreError> {
        match &mut self.connection {
            Connection::Postgres(session) => session.leave_role().await,
            Connection::Sqlite(_) => Ok(()),
        }
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
        self.leave_role().await?;
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

    /// Keeps a message whose id this transaction has just claimed as a dead letter; the claim becomes one of a dead message.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn bury_claimed(&mut self, letter: &DeadLetter) -> Result<(), StoreError> {
        if let Some(id) = &letter.message_id {
            self.connection.claim_died(&letter.consumer, id).await?;
        }
        self.connection.write_dead_letter(letter).await?;
        self.parked.push(letter.position.clone());
        Ok(())
    }

    /// Returns the database's time, at the last claim or now.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn now(&mut self) -> Result<Instant, StoreError> {
        self.connection.now().await
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
