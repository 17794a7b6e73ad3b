//! `hapax dead-letters`: what was given up on, looked at and decided about.
//!
//! **Invariant**: nothing here runs a handler: a replay is a row in the consumer's own queue, which `hapax run` takes like any other.

mod archive;
mod fingerprint;
pub mod said;
pub mod told;

use std::collections::HashMap;
use std::ops::ControlFlow;

use super::{connect_and_migrate, open_store};
use crate::config::{Config, Dedup};
use crate::exit::{Cause, CommandError, Exit};
use crate::message::{FailureClass, Instant};
use crate::store::{
    ClaimAs, Connection, LetterFilter, LetterState, LetterSummary, StoredDeadLetter,
};
pub use archive::{Imported, Record, moment_text};
use fingerprint::fingerprint;

/// Letters that are read or changed at a time.
const PAGE: u32 = 500;
/// Whole letters that are read at a time: a payload can have megabytes.
const WHOLE_PAGE: usize = 16;

/// Which dead letters are meant.
#[derive(Clone, Debug, Default)]
pub struct LetterSelection {
    /// By number; if there are any, nothing else counts.
    pub numbers: Vec<i64>,
    /// The handler's name in the configuration, or that of one that is gone from it.
    pub handler: Option<String>,
    /// The reason class.
    pub class: Option<FailureClass>,
    /// Given up on since.
    pub since: Option<Instant>,
    /// The message's id.
    pub message_id: Option<String>,
    /// The failure's fingerprint, or how it begins.
    pub fingerprint: Option<String>,
}

/// A dead letter in a list.
#[derive(Clone, Debug)]
pub struct ListedLetter {
    /// What the store says.
    pub summary: LetterSummary,
    /// Of the failure.
    pub fingerprint: String,
}

/// Dead letters whose failures are alike.
#[derive(Clone, Debug)]
pub struct LetterGroup {
    /// Of the failure.
    pub fingerprint: String,
    /// The reason class.
    pub class: FailureClass,
    /// How many there are.
    pub count: u64,
    /// When the first was given up on.
    pub first: Option<Instant>,
    /// When the last was.
    pub last: Option<Instant>,
    /// How many of them are queued for replay.
    pub queued: u64,
    /// The newest letter of the group.
    pub number: i64,
    /// Its reason.
    pub reason: String,
}

/// A whole dead letter.
#[derive(Clone, Debug)]
pub struct ShownLetter {
    /// All that was kept.
    pub stored: StoredDeadLetter,
    /// A replay of it is in the queue.
    pub is_queued: bool,
    /// Of the failure.
    pub fingerprint: String,
    /// As it is exported.
    pub record: Record,
}

/// Why a letter is not replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is none of this number.
    NotThere,
    /// No configured handler has its consumer.
    NoHandler {
        /// The consumer.
        consumer: String,
    },
    /// Its id was processed, by this or another payload.
    Processed {
        /// The id.
        message_id: String,
    },
    /// Its id belongs to another dead letter, with another payload.
    Taken {
        /// The id.
        message_id: String,
    },
}

/// What became of letters that were to be replayed.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Now in the queue.
    pub queued: Vec<i64>,
    /// In the queue before.
    pub queued_already: Vec<i64>,
    /// Not replayed.
    pub refused: Vec<(i64, Refusal)>,
}

/// The dead letters of a store.
pub struct DeadLetters<'a> {
    config: &'a Config,
    connection: Connection,
}

fn failed(error: crate::store::StoreError) -> CommandError {
    CommandError::store("cannot read the dead letters", &error)
}

fn failed_to_change(error: crate::store::StoreError) -> CommandError {
    CommandError::store("cannot change the dead letters", &error)
}

/// Says that a number is not there.
pub fn not_there(number: i64) -> CommandError {
    CommandError::new(
        Exit::Failed,
        format!("there is no dead letter {number}"),
        Some("`hapax dead-letters list` shows the numbers"),
    )
    .because(Cause::NotThere)
}

impl<'a> DeadLetters<'a> {
    /// Connects.
    ///
    /// # Errors
    /// If the store cannot be reached.
    pub async fn open(config: &'a Config) -> Result<Self, CommandError> {
        let store = open_store(config)?;
        let connection = connect_and_migrate(&store, "dead-letters")
            .await
            .map_err(failed)?;
        Ok(Self { config, connection })
    }

    fn filter(&self, selection: &LetterSelection) -> LetterFilter {
        let consumer = selection.handler.as_ref().map(|name| {
            self.config
                .handlers
                .get(name)
                .map_or_else(|| name.clone(), |handler| handler.consumer.clone())
        });
        LetterFilter {
            handler: selection.handler.clone(),
            consumer,
            class: selection.class,
            since: selection.since,
            message_id: selection.message_id.clone(),
        }
    }

    /// Calls `visit` with each letter of the selection, newest first, until it breaks.
    async fn each(
        &mut self,
        selection: &LetterSelection,
        mut visit: impl FnMut(ListedLetter) -> ControlFlow<()>,
    ) -> Result<(), CommandError> {
        let filter = self.filter(selection);
        let mut below = None;
        loop {
            let page = self
                .connection
                .letter_summaries(&filter, below, PAGE)
                .await
                .map_err(failed)?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            below = Some(last.number);
            for summary in page {
                let fingerprint = fingerprint(summary.class, &summary.reason);
                let is_meant = selection
                    .fingerprint
                    .as_ref()
                    .is_none_or(|wanted| fingerprint.starts_with(wanted.as_str()));
                if is_meant
                    && visit(ListedLetter {
                        summary,
                        fingerprint,
                    })
                    .is_break()
                {
                    return Ok(());
                }
            }
        }
    }

    /// Returns letters, newest first, at most `limit`, and whether there are more.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn list(
        &mut self,
        selection: &LetterSelection,
        limit: usize,
    ) -> Result<(Vec<ListedLetter>, bool), CommandError> {
        let mut letters = Vec::new();
        let mut has_more = false;
        self.each(selection, |letter| {
            if letters.len() == limit {
                has_more = true;
                return ControlFlow::Break(());
            }
            letters.push(letter);
            ControlFlow::Continue(())
        })
        .await?;
        Ok((letters, has_more))
    }

    /// Returns the groups of letters whose failures are alike, the largest first.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn groups(
        &mut self,
        selection: &LetterSelection,
    ) -> Result<Vec<LetterGroup>, CommandError> {
        let mut groups: HashMap<String, LetterGroup> = HashMap::new();
        self.each(selection, |letter| {
            let ListedLetter {
                summary,
                fingerprint,
            } = letter;
            let group = groups
                .entry(fingerprint.clone())
                .or_insert_with(|| LetterGroup {
                    fingerprint,
                    class: summary.class,
                    count: 0,
                    first: summary.dead_at,
                    last: summary.dead_at,
                    queued: 0,
                    number: summary.number,
                    reason: summary.reason,
                });
            group.count += 1;
            group.queued += u64::from(summary.is_queued);
            // A letter that was replayed in vain is young under an old number.
            group.first = group.first.min(summary.dead_at);
            group.last = group.last.max(summary.dead_at);
            ControlFlow::Continue(())
        })
        .await?;
        let mut groups: Vec<LetterGroup> = groups.into_values().collect();
        groups.sort_by(|one, other| {
            (other.count, other.number, &other.fingerprint).cmp(&(
                one.count,
                one.number,
                &one.fingerprint,
            ))
        });
        Ok(groups)
    }

    /// Returns the numbers that are meant, in ascending order; numbers that were named are not looked up.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn numbers(&mut self, selection: &LetterSelection) -> Result<Vec<i64>, CommandError> {
        let mut numbers = selection.numbers.clone();
        if numbers.is_empty() {
            self.each(selection, |letter| {
                numbers.push(letter.summary.number);
                ControlFlow::Continue(())
            })
            .await?;
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// Returns a whole letter.
    ///
    /// # Errors
    /// If there is none of this number, or the store cannot be read.
    pub async fn show(&mut self, number: i64) -> Result<ShownLetter, CommandError> {
        let stored = self.connection.letters(&[number]).await.map_err(failed)?;
        let states = self
            .connection
            .letter_states(&[number])
            .await
            .map_err(failed)?;
        let (Some(stored), Some(state)) = (stored.into_iter().next(), states.into_iter().next())
        else {
            return Err(not_there(number));
        };
        Ok(ShownLetter {
            is_queued: state.is_queued,
            fingerprint: fingerprint(stored.letter.class, &stored.letter.reason),
            record: Record::of(&stored, &state),
            stored,
        })
    }

    /// Queues letters for replay, and tells `progress` how many were looked at. With `force` also those whose ids are taken,
    /// which then run without a claim.
    ///
    /// Done again, it changes nothing.
    ///
    /// # Errors
    /// If the store cannot be written; those that were queued before stay queued.
    pub async fn replay(
        &mut self,
        numbers: &[i64],
        force: bool,
        mut progress: impl FnMut(u64),
    ) -> Result<Replayed, CommandError> {
        let mut replayed = Replayed::default();
        let mut done = 0;
        for page in numbers.chunks(PAGE as usize) {
            let states = self
                .connection
                .letter_states(page)
                .await
                .map_err(failed_to_change)?;
            let mut states: HashMap<i64, LetterState> = states
                .into_iter()
                .map(|state| (state.number, state))
                .collect();
            let mut wanted = Vec::new();
            for number in page {
                match states.remove(number) {
                    None => replayed.refused.push((*number, Refusal::NotThere)),
                    Some(state) if state.is_queued => replayed.queued_already.push(*number),
                    Some(state) => match self.may_replay(&state, force) {
                        Ok(forced) => wanted.push((*number, forced)),
                        Err(refusal) => replayed.refused.push((*number, refusal)),
                    },
                }
            }
            let mut queued = self
                .connection
                .queue_replays(&wanted)
                .await
                .map_err(failed_to_change)?;
            queued.sort_unstable();
            // Queued by another command since the look above, or gone.
            let others = wanted.iter().map(|(number, _)| *number);
            replayed
                .queued_already
                .extend(others.filter(|number| queued.binary_search(number).is_err()));
            replayed.queued.extend(queued);
            done += page.len() as u64;
            progress(done);
        }
        Ok(replayed)
    }

    /// Returns whether the letter runs without a claim.
    fn may_replay(&self, state: &LetterState, force: bool) -> Result<bool, Refusal> {
        let handler = self
            .config
            .handlers
            .values()
            .find(|handler| handler.consumer == state.consumer);
        let Some(handler) = handler else {
            return Err(Refusal::NoHandler {
                consumer: state.consumer.clone(),
            });
        };
        let message_id = state.message_id.clone().unwrap_or_default();
        let refusal = match state.claim {
            // Without claims every delivery runs.
            _ if handler.dedup == Dedup::Off => return Ok(false),
            Some(ClaimAs::Done) => Refusal::Processed { message_id },
            Some(ClaimAs::Dead) if state.class == FailureClass::Conflict => {
                Refusal::Taken { message_id }
            }
            Some(ClaimAs::Dead) | None => return Ok(false),
        };
        if force { Ok(true) } else { Err(refusal) }
    }

    /// Drops letters, and tells `progress` how many were looked at. Returns those that were there. Their claims stay.
    ///
    /// # Errors
    /// If the store cannot be written; those that were dropped before stay dropped.
    pub async fn drop_letters(
        &mut self,
        numbers: &[i64],
        mut progress: impl FnMut(u64),
    ) -> Result<Vec<i64>, CommandError> {
        let mut dropped = Vec::new();
        let mut done = 0;
        for page in numbers.chunks(PAGE as usize) {
            let gone = self
                .connection
                .drop_letters(page)
                .await
                .map_err(failed_to_change)?;
            dropped.extend(gone);
            done += page.len() as u64;
            progress(done);
        }
        Ok(dropped)
    }
}
