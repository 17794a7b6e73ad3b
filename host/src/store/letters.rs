//! Messages that hapax carries itself, and what becomes of dead letters: replayed, rewritten, dropped, restored.

use std::future::Future;
use std::time::Duration;

use super::connection::each;
use super::{ClaimAs, Connection, DeadLetter, Session, StoreError, StoredDeadLetter};
use crate::message::{Carried, FailureClass, Incoming, Instant, MessageId, Position, ShortHash};

/// A replay at the start of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The letter's number.
    pub letter: i64,
    /// The dead claim whose place the run's own takes; `None` if it runs without a claim.
    pub claim: Option<(MessageId, ShortHash)>,
}

/// Which dead letters are meant; what is absent does not matter.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LetterFilter {
    /// The handler's name, at the time of the failure.
    pub handler: Option<String>,
    /// The consumer that counts as well as `handler`; without effect if `handler` is absent.
    pub consumer: Option<String>,
    /// The reason class.
    pub class: Option<FailureClass>,
    /// Given up on at this moment or later.
    pub since: Option<Instant>,
    /// The message's id.
    pub message_id: Option<String>,
}

/// A dead letter without its message's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterSummary {
    /// In the order of writing.
    pub number: i64,
    /// The claim's key.
    pub consumer: String,
    /// The handler's name.
    pub handler: String,
    /// Absent if no usable id was found.
    pub message_id: Option<String>,
    /// The source's name.
    pub source: String,
    /// Where the source held it.
    pub position: Position,
    /// Why.
    pub class: FailureClass,
    /// Why, in words.
    pub reason: String,
    /// How many failed runs were charged to it.
    pub attempts: u64,
    /// By the database's clock.
    pub dead_at: Option<Instant>,
    /// Of the payload.
    pub bytes: u64,
    /// A replay of it is in the queue.
    pub is_queued: bool,
}

/// How a dead letter stands to its being replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterState {
    /// Its number.
    pub number: i64,
    /// The claim's key.
    pub consumer: String,
    /// Its message's id.
    pub message_id: Option<String>,
    /// Why it is dead.
    pub class: FailureClass,
    /// A replay of it is in the queue.
    pub is_queued: bool,
    /// How the id is claimed.
    pub claim: Option<ClaimAs>,
}

/// What became of a letter that was to be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// It is back, under this number.
    As(i64),
    /// There is a letter of its consumer, source and position.
    IsThere,
    /// Its message was processed meanwhile.
    Succeeded,
}

/// How the end of a replay that failed for good was written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reburied {
    /// The letter has the new reason.
    Rewritten,
    /// The message was processed meanwhile: the letter is gone.
    Succeeded,
    /// The id is claimed with another payload; nothing was written.
    Conflict {
        /// The hash that was stored.
        stored: ShortHash,
    },
    /// The letter was dropped meanwhile; nothing was written.
    Dropped,
}

/// What both databases offer for letters beside `Session`, whose rules hold here too.
pub(crate) trait LetterSession: Session {
    // Inside a transaction.

    /// Puts a message into the consumer's own queue, due after `wait` by the database's clock.
    ///
    /// A row that carries the same id with the same payload, or replays the same letter, only gets the new time.
    fn carry(
        &mut self,
        consumer: &str,
        carried: &Carried,
        incoming: &Incoming,
        wait: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Locks letters of a consumer until the transaction ends. Returns those that are there.
    fn lock_letters(
        &mut self,
        consumer: &str,
        numbers: &[i64],
    ) -> impl Future<Output = Result<Vec<i64>, StoreError>> + Send;

    /// Deletes the claims of these ids and payloads that are `dead`.
    fn release_dead_claims(
        &mut self,
        consumer: &str,
        claims: &[(MessageId, ShortHash)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Deletes letters of a consumer.
    fn delete_letters(
        &mut self,
        consumer: &str,
        numbers: &[i64],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Gives a letter another reason, and adds the attempts recorded for its id to those that it has.
    fn rewrite_letter(
        &mut self,
        number: i64,
        letter: &DeadLetter,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Writes a letter as it was, also its number if that is free and was given before; `None`: there is one of its
    /// consumer, source and position.
    fn insert_letter(
        &mut self,
        letter: &StoredDeadLetter,
    ) -> impl Future<Output = Result<Option<i64>, StoreError>> + Send;

    /// True if the id is claimed as done with this payload.
    fn is_done(
        &mut self,
        consumer: &str,
        id: &MessageId,
        payload_hash: ShortHash,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Writes a dead letter with the attempts recorded for its id. Writing the same source and position of the
    /// consumer again changes nothing.
    fn write_dead_letter(
        &mut self,
        letter: &DeadLetter,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    // Outside a transaction: each is one of its own.

    /// Counts the dead letters of a consumer.
    fn dead_letter_count(
        &mut self,
        consumer: &str,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Returns the dead letters of a consumer, oldest first, at most `limit`.
    fn dead_letters(
        &mut self,
        consumer: &str,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StoredDeadLetter>, StoreError>> + Send;

    /// Returns letters, newest first, at most `limit`; those below a number if one is given.
    fn letter_summaries(
        &mut self,
        filter: &LetterFilter,
        below: Option<i64>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<LetterSummary>, StoreError>> + Send;

    /// Returns whole letters by their numbers, in ascending order.
    fn letters(
        &mut self,
        numbers: &[i64],
    ) -> impl Future<Output = Result<Vec<StoredDeadLetter>, StoreError>> + Send;

    /// Returns how letters stand to their being replayed, in ascending order.
    fn letter_states(
        &mut self,
        numbers: &[i64],
    ) -> impl Future<Output = Result<Vec<LetterState>, StoreError>> + Send;

    /// Queues letters for replay, each with whether it runs without a claim. Returns those that were not in the queue.
    fn queue_replays(
        &mut self,
        letters: &[(i64, bool)],
    ) -> impl Future<Output = Result<Vec<i64>, StoreError>> + Send;

    /// Deletes letters and their queued replays. Returns those that were there. The claims stay.
    fn drop_letters(
        &mut self,
        numbers: &[i64],
    ) -> impl Future<Output = Result<Vec<i64>, StoreError>> + Send;
}

impl LetterSession for Connection {
    async fn write_dead_letter(&mut self, letter: &DeadLetter) -> Result<(), StoreError> {
        each!(self, session => session.write_dead_letter(letter))
    }

    async fn dead_letter_count(&mut self, consumer: &str) -> Result<u64, StoreError> {
        each!(self, session => session.dead_letter_count(consumer))
    }

    async fn dead_letters(
        &mut self,
        consumer: &str,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        each!(self, session => session.dead_letters(consumer, limit))
    }

    async fn carry(
        &mut self,
        consumer: &str,
        carried: &Carried,
        incoming: &Incoming,
        wait: Duration,
    ) -> Result<(), StoreError> {
        each!(self, session => session.carry(consumer, carried, incoming, wait))
    }

    async fn lock_letters(
        &mut self,
        consumer: &str,
        numbers: &[i64],
    ) -> Result<Vec<i64>, StoreError> {
        each!(self, session => session.lock_letters(consumer, numbers))
    }

    async fn release_dead_claims(
        &mut self,
        consumer: &str,
        claims: &[(MessageId, ShortHash)],
    ) -> Result<(), StoreError> {
        each!(self, session => session.release_dead_claims(consumer, claims))
    }

    async fn delete_letters(&mut self, consumer: &str, numbers: &[i64]) -> Result<(), StoreError> {
        each!(self, session => session.delete_letters(consumer, numbers))
    }

    async fn rewrite_letter(&mut self, number: i64, letter: &DeadLetter) -> Result<(), StoreError> {
        each!(self, session => session.rewrite_letter(number, letter))
    }

    async fn insert_letter(
        &mut self,
        letter: &StoredDeadLetter,
    ) -> Result<Option<i64>, StoreError> {
        each!(self, session => session.insert_letter(letter))
    }

    async fn is_done(
        &mut self,
        consumer: &str,
        id: &MessageId,
        payload_hash: ShortHash,
    ) -> Result<bool, StoreError> {
        each!(self, session => session.is_done(consumer, id, payload_hash))
    }

    async fn letter_summaries(
        &mut self,
        filter: &LetterFilter,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<LetterSummary>, StoreError> {
        each!(self, session => session.letter_summaries(filter, below, limit))
    }

    async fn letters(&mut self, numbers: &[i64]) -> Result<Vec<StoredDeadLetter>, StoreError> {
        each!(self, session => session.letters(numbers))
    }

    async fn letter_states(&mut self, numbers: &[i64]) -> Result<Vec<LetterState>, StoreError> {
        each!(self, session => session.letter_states(numbers))
    }

    async fn queue_replays(&mut self, letters: &[(i64, bool)]) -> Result<Vec<i64>, StoreError> {
        each!(self, session => session.queue_replays(letters))
    }

    async fn drop_letters(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        each!(self, session => session.drop_letters(numbers))
    }
}

/// Dead letters, outside a transaction.
impl Connection {
    /// Counts the dead letters of a consumer.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn dead_letter_count(&mut self, consumer: &str) -> Result<u64, StoreError> {
        LetterSession::dead_letter_count(self, consumer).await
    }

    /// Returns the dead letters of a consumer, oldest first, at most `limit`.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn dead_letters(
        &mut self,
        consumer: &str,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        LetterSession::dead_letters(self, consumer, limit).await
    }

    /// Returns letters, newest first, at most `limit`; those below a number if one is given.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn letter_summaries(
        &mut self,
        filter: &LetterFilter,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<LetterSummary>, StoreError> {
        LetterSession::letter_summaries(self, filter, below, limit).await
    }

    /// Returns whole letters by their numbers, in ascending order; those that are not there are left out.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn letters(&mut self, numbers: &[i64]) -> Result<Vec<StoredDeadLetter>, StoreError> {
        LetterSession::letters(self, numbers).await
    }

    /// Returns how letters stand to their being replayed, in ascending order; those that are not there are left out.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn letter_states(&mut self, numbers: &[i64]) -> Result<Vec<LetterState>, StoreError> {
        LetterSession::letter_states(self, numbers).await
    }

    /// Queues letters for replay, each with whether it runs without a claim. Returns those that were not in the queue:
    /// the others are there already, or no letters.
    ///
    /// # Errors
    /// As `StoreError` says; none is queued, unless the connection was lost.
    pub async fn queue_replays(&mut self, letters: &[(i64, bool)]) -> Result<Vec<i64>, StoreError> {
        LetterSession::queue_replays(self, letters).await
    }

    /// Deletes letters and their queued replays. Returns those that were there. The claims stay, so that a message that is
    /// delivered again stays a duplicate.
    ///
    /// # Errors
    /// As `StoreError` says; none is deleted, unless the connection was lost.
    pub async fn drop_letters(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        LetterSession::drop_letters(self, numbers).await
    }
}
