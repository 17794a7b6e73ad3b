//! Rows of the outbox after their commit: taken for publishing, marked, looked at.
//!
//! **Invariant**: what is to be published is found because it is not published yet, never by a remembered position: a
//! transaction that wrote its rows early may commit late.
//! **Invariant**: rows of one consumer and key are taken by one host at a time, in the order of their numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use super::connection::each;
use super::{Connection, Session, StoreError};
use crate::message::{Header, Instant, MessageId};

/// The most payload bytes that are taken at once; a larger message is taken alone.
pub(super) const TAKEN_BYTES_MAX: u64 = 16 << 20;

/// Which rows a relay asks for.
#[derive(Clone, Debug)]
pub struct OutboxQuery {
    /// Whose rows.
    pub consumer: String,
    /// The targets that can be reached now.
    pub targets: Vec<String>,
    /// Whether rows without a target may be taken: the handler's default can be reached.
    pub without_target: bool,
    /// Where the look at keys begins, so that no key waits for others for ever; `""`, which is a key too, for the first.
    pub from_key: String,
    /// How many rows at the most.
    pub limit: u32,
}

impl OutboxQuery {
    /// Returns the targets as `coalesce(target, '')` gives them.
    pub(super) fn reachable(&self) -> Vec<&str> {
        let without = self.without_target.then_some("");
        self.targets
            .iter()
            .map(String::as_str)
            .chain(without)
            .collect()
    }
}

/// Rows that this host has in hand.
#[derive(Clone, Debug, Default)]
pub struct OutboxTaken {
    /// In the order of their numbers.
    pub messages: Vec<OutboxMessage>,
    /// Where the next look at keys begins.
    pub from_key: String,
    /// There may be more that could be taken now.
    pub has_more: bool,
}

/// A committed row of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxMessage {
    /// In the order of writing.
    pub number: i64,
    /// The same in every run of its message.
    pub id: String,
    /// The configured target; the handler's default if absent.
    pub target: Option<String>,
    /// Where it goes.
    pub subject: String,
    /// Rows of one consumer and key leave in order.
    pub key: Option<String>,
    /// As the handler gave them.
    pub headers: Vec<Header>,
    /// As the handler gave it.
    pub content_type: Option<String>,
    /// Any bytes.
    pub payload: Bytes,
    /// Tries that failed so far.
    pub attempts: u32,
}

/// What became of rows in hand. Those that are not named are given back as they were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxMarks {
    /// Confirmed by their target.
    pub published: Vec<i64>,
    /// To be put into a queue of the store by the same transaction that marks them, each with the queue's name, in their order.
    pub enqueued: Vec<(String, i64)>,
    /// To be tried again after a wait, with what was wrong.
    pub failed: Vec<(i64, String, Duration)>,
    /// Given up on, with the reason.
    pub parked: Vec<(i64, String)>,
}

/// How a row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OutboxState {
    /// To be published now, or behind one of its key.
    Unpublished,
    /// Its moment has not come: the handler said so, or a try failed.
    Waiting,
    /// Given up on.
    Parked,
    /// Confirmed; kept for a while.
    Published,
}

impl OutboxState {
    /// Every state.
    pub const ALL: [Self; 4] = [
        Self::Unpublished,
        Self::Waiting,
        Self::Parked,
        Self::Published,
    ];

    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unpublished => "unpublished",
            Self::Waiting => "waiting",
            Self::Parked => "parked",
            Self::Published => "published",
        }
    }

    /// Returns the state with this word.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// The state as a condition; `now` is the database's moment.
    pub(super) fn condition(self, now: &str) -> String {
        match self {
            Self::Unpublished => {
                format!("published_at IS NULL AND parked_at IS NULL AND due_at <= {now}")
            }
            Self::Waiting => {
                format!("published_at IS NULL AND parked_at IS NULL AND due_at > {now}")
            }
            Self::Parked => "parked_at IS NOT NULL".to_owned(),
            Self::Published => "published_at IS NOT NULL".to_owned(),
        }
    }
}

/// Which rows are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxFilter {
    /// Of these consumers only, if any are named.
    pub consumers: Vec<String>,
    /// For this target.
    pub target: Option<String>,
    /// In this state.
    pub state: Option<OutboxState>,
    /// With this id.
    pub id: Option<String>,
}

/// A row for a list; its message without the payload's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredOutboxRow {
    /// Without payload in a list.
    pub message: OutboxMessage,
    /// Whose handler published it.
    pub consumer: String,
    /// The message whose handler published it.
    pub message_id: MessageId,
    /// Of the payload.
    pub payload_bytes: u64,
    /// How it stands.
    pub state: OutboxState,
    /// What the last failed try said, or why it was given up on.
    pub error: Option<String>,
    /// By the database's clock.
    pub created_at: Option<Instant>,
    /// Not published before; absent if it is unknown.
    pub due_at: Option<Instant>,
    /// When it was confirmed.
    pub published_at: Option<Instant>,
}

/// A consumer's rows that are not published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboxCounts {
    /// To be published, now or later.
    pub unpublished: u64,
    /// Given up on.
    pub parked: u64,
    /// How long the oldest one that should have been published by now has been due, in seconds.
    pub oldest_seconds: Option<u64>,
}

/// Rows that are not published, and wait for a target that is not there, or behind one of their key that does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxStranded {
    /// The target; absent for those that name none.
    pub target: Option<String>,
    /// How many rows.
    pub rows: u64,
}

/// A row that could be taken, before its payload is read.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) number: i64,
    pub(super) key: Option<String>,
    pub(super) bytes: u64,
    /// Its moment has come and its target can be reached.
    pub(super) may_leave: bool,
}

/// Returns where the look at keys goes on after one that gave `heads`, in order, and was asked for `limit`; `""` for the first key, and
/// true then: all were seen.
pub(super) fn next_key(heads: &[(String, i64)], limit: u32) -> (String, bool) {
    match heads.last() {
        // No key stands between: U+0000 is in none.
        Some((key, _)) if heads.len() >= limit as usize => (format!("{key}\u{1}"), false),
        _ => (String::new(), true),
    }
}

/// Returns the numbers of the rows to take, in order: all without a key, and of each key those from its head (`heads`: key and
/// number) up to the first that may not leave; no more bytes than `TAKEN_BYTES_MAX`.
pub(super) fn chosen(
    without_key: Vec<Candidate>,
    heads: &BTreeMap<String, i64>,
    of_keys: Vec<Candidate>,
) -> Vec<i64> {
    let mut candidates = without_key;
    // A key's rows come in order; `false` once one of them stays.
    let mut open: BTreeMap<&str, bool> = BTreeMap::new();
    let mut keyed = Vec::new();
    for candidate in of_keys {
        let Some((key, head)) = candidate
            .key
            .as_deref()
            .and_then(|key| heads.get_key_value(key))
        else {
            continue;
        };
        // A row that came into sight before the head since is nobody's yet.
        let is_open = *open.entry(key).or_insert(candidate.number == *head);
        if is_open && candidate.may_leave {
            keyed.push(candidate);
        } else {
            open.insert(key, false);
        }
    }
    candidates.append(&mut keyed);
    candidates.sort_by_key(|candidate| candidate.number);
    let mut bytes = 0;
    candidates
        .into_iter()
        .take_while(|candidate| {
            let is_first = bytes == 0;
            bytes += candidate.bytes.max(1);
            is_first || bytes <= TAKEN_BYTES_MAX
        })
        .map(|candidate| candidate.number)
        .collect()
}

/// Leaves of each key only what stands before the first row that was `wanted` and did not come: `key_of` names the keys of those that
/// have one.
pub(super) fn without_gaps(
    messages: &mut Vec<OutboxMessage>,
    wanted: &[i64],
    key_of: &BTreeMap<i64, String>,
) {
    let came: BTreeSet<i64> = messages.iter().map(|message| message.number).collect();
    let mut gaps: BTreeMap<&str, i64> = BTreeMap::new();
    for number in wanted.iter().filter(|number| !came.contains(number)) {
        if let Some(key) = key_of.get(number) {
            let first = gaps.entry(key).or_insert(*number);
            *first = (*first).min(*number);
        }
    }
    messages.retain(|message| {
        let gap = message.key.as_deref().and_then(|key| gaps.get(key));
        gap.is_none_or(|gap| message.number < *gap)
    });
}

pub(super) fn stranded(rows: Vec<(Option<String>, i64)>) -> Vec<OutboxStranded> {
    rows.into_iter()
        .map(|(target, rows)| OutboxStranded {
            target,
            rows: rows.unsigned_abs(),
        })
        .collect()
}

/// What both databases offer for the outbox beside `Session`, whose rules hold here too.
pub(crate) trait OutboxSession: Session {
    /// Takes rows; `None` if another host is at it. Until `settle_outbox` or `give_back_outbox` the connection is used for nothing
    /// else. PostgreSQL: they are locked in an open transaction; SQLite: by a lock on a file, without a transaction.
    fn take_outbox(
        &mut self,
        query: &OutboxQuery,
    ) -> impl Future<Output = Result<Option<OutboxTaken>, StoreError>> + Send;

    /// Marks rows in hand and commits.
    fn settle_outbox(
        &mut self,
        marks: &OutboxMarks,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Lets go of what is in hand.
    fn give_back_outbox(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    // Outside a transaction: each is one of its own.

    /// True if there are rows that the query could take now or after a failed try's wait.
    fn has_outbox(
        &mut self,
        query: &OutboxQuery,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Counts rows that wait for targets that are not the query's.
    fn stranded_outbox(
        &mut self,
        query: &OutboxQuery,
    ) -> impl Future<Output = Result<Vec<OutboxStranded>, StoreError>> + Send;

    /// Deletes published rows that are older than `keep`, at most `limit`. Returns how many.
    fn prune_outbox(
        &mut self,
        keep: Duration,
        limit: u32,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Counts a consumer's rows that are not published.
    fn outbox_counts(
        &mut self,
        consumer: &str,
    ) -> impl Future<Output = Result<OutboxCounts, StoreError>> + Send;

    /// Returns rows without their payloads, newest first; those below a number if one is given.
    fn outbox_rows(
        &mut self,
        filter: &OutboxFilter,
        below: Option<i64>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StoredOutboxRow>, StoreError>> + Send;

    /// Returns one whole row.
    fn outbox_row(
        &mut self,
        number: i64,
    ) -> impl Future<Output = Result<Option<StoredOutboxRow>, StoreError>> + Send;

    /// Makes rows leave again, at once and with no failed try. Returns those that were there.
    fn republish_outbox(
        &mut self,
        numbers: &[i64],
    ) -> impl Future<Output = Result<Vec<i64>, StoreError>> + Send;

    /// Deletes rows. Returns those that were there.
    fn drop_outbox(
        &mut self,
        numbers: &[i64],
    ) -> impl Future<Output = Result<Vec<i64>, StoreError>> + Send;
}

/// The outbox, outside a transaction of messages.
impl Connection {
    /// Takes rows to publish; `None` if another host is at it, which happens on SQLite only. Until `settle_outbox` or
    /// `give_back_outbox` the connection is used for nothing else. Dropping it gives the rows back.
    ///
    /// # Errors
    /// As `StoreError` says; nothing is in hand then.
    pub async fn take_outbox(
        &mut self,
        query: &OutboxQuery,
    ) -> Result<Option<OutboxTaken>, StoreError> {
        each!(self, session => session.take_outbox(query))
    }

    /// Marks rows in hand, puts those that go to a queue there, and commits all of it. The others are given back.
    ///
    /// # Errors
    /// As `StoreError` says. Nothing may be marked then: what was published is published again, under the same id.
    pub async fn settle_outbox(&mut self, marks: &OutboxMarks) -> Result<(), StoreError> {
        each!(self, session => session.settle_outbox(marks))
    }

    /// Gives back what is in hand.
    ///
    /// # Errors
    /// As `StoreError` says; the connection must be dropped then.
    pub async fn give_back_outbox(&mut self) -> Result<(), StoreError> {
        each!(self, session => session.give_back_outbox())
    }

    /// True if there are rows that the query could take now, or once the wait after a failed try is over.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn has_outbox(&mut self, query: &OutboxQuery) -> Result<bool, StoreError> {
        each!(self, session => session.has_outbox(query))
    }

    /// Counts rows that are to be published, now or later, to targets that are not the query's, and those behind them of their keys; by
    /// target. Reads no others, but one of each key.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn stranded_outbox(
        &mut self,
        query: &OutboxQuery,
    ) -> Result<Vec<OutboxStranded>, StoreError> {
        each!(self, session => session.stranded_outbox(query))
    }

    /// Deletes published rows that are older than `keep` by the database's clock, at most `limit`. Returns how many.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn prune_outbox(&mut self, keep: Duration, limit: u32) -> Result<u64, StoreError> {
        each!(self, session => session.prune_outbox(keep, limit))
    }

    /// Counts a consumer's rows that are not published.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn outbox_counts(&mut self, consumer: &str) -> Result<OutboxCounts, StoreError> {
        each!(self, session => session.outbox_counts(consumer))
    }

    /// Returns rows without their payloads, newest first, at most `limit`; those below a number if one is given.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn outbox_rows(
        &mut self,
        filter: &OutboxFilter,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<StoredOutboxRow>, StoreError> {
        each!(self, session => session.outbox_rows(filter, below, limit))
    }

    /// Returns one whole row, if it is there.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn outbox_row(&mut self, number: i64) -> Result<Option<StoredOutboxRow>, StoreError> {
        each!(self, session => session.outbox_row(number))
    }

    /// Makes rows leave again at once, whether they were published, given up on or waiting. Returns those that were there.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn republish_outbox(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        each!(self, session => session.republish_outbox(numbers))
    }

    /// Deletes rows, published or not. Returns those that were there.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn drop_outbox(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        each!(self, session => session.drop_outbox(numbers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: i64, key: Option<&str>, bytes: u64, may_leave: bool) -> Candidate {
        Candidate {
            number,
            key: key.map(str::to_owned),
            bytes,
            may_leave,
        }
    }

    #[test]
    fn of_a_key_only_what_stands_behind_its_head_without_a_gap_leaves() {
        let heads = BTreeMap::from([
            ("a".to_owned(), 2),
            ("b".to_owned(), 5),
            ("c".to_owned(), 9),
        ]);
        let of_keys = vec![
            row(2, Some("a"), 1, true),
            row(3, Some("a"), 1, true),
            row(4, Some("a"), 1, false),
            row(6, Some("a"), 1, true),
            row(5, Some("b"), 1, true),
            // Came into sight before its head, so the key stays as a whole.
            row(8, Some("c"), 1, true),
            row(9, Some("c"), 1, true),
            row(10, Some("d"), 1, true),
        ];
        let without = vec![row(1, None, 1, true), row(7, None, 1, true)];
        assert_eq!(chosen(without, &heads, of_keys), [1, 2, 3, 5, 7]);
    }

    #[test]
    fn behind_a_row_that_is_not_free_its_key_stays() {
        let message = |number, key: Option<&str>| OutboxMessage {
            number,
            id: String::new(),
            target: None,
            subject: String::new(),
            key: key.map(str::to_owned),
            headers: Vec::new(),
            content_type: None,
            payload: Bytes::new(),
            attempts: 0,
        };
        // 2 and 5 of `a` and 7, which has no key, are in other hands.
        let mut messages = vec![
            message(1, Some("a")),
            message(3, None),
            message(4, Some("b")),
            message(6, Some("a")),
        ];
        let key_of = [(1, "a"), (2, "a"), (4, "b"), (5, "a"), (6, "a")]
            .map(|(number, key)| (number, key.to_owned()))
            .into();
        without_gaps(&mut messages, &[1, 2, 3, 4, 5, 6, 7], &key_of);
        let numbers: Vec<i64> = messages.iter().map(|message| message.number).collect();
        assert_eq!(numbers, [1, 3, 4]);
    }

    #[test]
    fn bytes_are_bounded_but_one_row_always_leaves() {
        let heads = BTreeMap::new();
        let big = TAKEN_BYTES_MAX + 1;
        let rows = vec![row(1, None, big, true), row(2, None, 1, true)];
        assert_eq!(chosen(rows, &heads, Vec::new()), [1]);
        let half = TAKEN_BYTES_MAX / 2;
        let rows = (1..=3)
            .map(|number| row(number, None, half, true))
            .collect();
        assert_eq!(chosen(rows, &heads, Vec::new()), [1, 2]);
    }
}
