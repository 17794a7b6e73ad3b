//! Sees each call of a handler to its host, and can end the run there: how `hapax test` looks into a run and breaks it.
//!
//! **Invariant**: a handler that nobody watches pays one look at an empty option a host call.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Verdict;
use super::state::State;
use crate::message::MessageId;
use crate::store::SqlError;

/// Watches the calls of one handler, and holds what is to happen to them.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    state: Mutex<Watched>,
    died: Notify,
}

#[derive(Debug, Default)]
struct Watched {
    runs: Vec<WatchedRun>,
    breaks: VecDeque<Break>,
}

/// Where a run is broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Break {
    /// The message whose run it is.
    pub(crate) message: MessageId,
    /// Where.
    pub(crate) at: Place,
    /// How.
    pub(crate) how: How,
}

/// A place in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Before the handler is called.
    Begin,
    /// At the host call with this number, from 1, before it is made.
    Call(usize),
    /// When the handler has returned, before anything is committed.
    End,
}

/// How a run is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The transaction is rolled back and the message runs again, charged to nobody.
    RollBack,
    /// The run is charged as failed.
    Charge,
    /// It comes no further: whoever waits for [`Watch::died`] drops it, as if its host had died.
    Die,
}

/// What was seen of one run.
#[derive(Clone, Debug)]
pub(crate) struct WatchedRun {
    /// The message.
    pub(crate) message: MessageId,
    /// As the handler was told.
    pub(crate) attempt: u32,
    /// In their order.
    pub(crate) calls: Vec<HostCall>,
    /// True once the handler has returned ok.
    pub(crate) is_ok: bool,
}

/// One call to the host that has to do with the transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostCall {
    /// What the contract calls it.
    pub(crate) name: &'static str,
    /// The SQL, if it takes any.
    pub(crate) statement: Option<String>,
    /// The rows that it returned; `None` if it failed or returns none.
    pub(crate) rows: Option<usize>,
    /// The error that the handler was told of.
    pub(crate) error: Option<String>,
}

/// Ends a run in its host call; whoever classifies the end knows it by this.
#[derive(Debug, thiserror::Error)]
#[error("rolled back at a host call, for a test")]
pub(super) struct Broken;

impl Watch {
    /// Has runs broken, each once. Those of one message come in this order.
    pub(crate) fn arm(&self, breaks: impl IntoIterator<Item = Break>) {
        self.lock().breaks.extend(breaks);
    }

    /// Returns what is left of what was armed, and forgets it.
    pub(crate) fn disarm(&self) -> Vec<Break> {
        self.lock().breaks.drain(..).collect()
    }

    /// Returns the runs since the last call, and forgets them.
    pub(crate) fn take_runs(&self) -> Vec<WatchedRun> {
        std::mem::take(&mut self.lock().runs)
    }

    /// Waits until a run has come to a place at which it dies.
    pub(crate) async fn died(&self) {
        self.died.notified().await;
    }

    /// Says that what is being done is to be dropped, and never returns.
    pub(crate) async fn die(&self) {
        self.died.notify_one();
        std::future::pending().await
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        // Each change is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes down that a run begins. True if it is to fail at once.
    pub(super) fn begins(&self, message: &MessageId, attempt: u32) -> bool {
        let mut watched = self.lock();
        watched.runs.push(WatchedRun {
            message: message.clone(),
            attempt,
            calls: Vec::new(),
            is_ok: false,
        });
        watched.hits(message, Place::Begin).is_some()
    }

    /// Takes down a host call, and comes back if it is to be made. Without a message, in a call with many of them, it always is, and is
    /// taken down for the last.
    async fn reached(
        &self,
        message: Option<&MessageId>,
        name: &'static str,
        statement: Option<&str>,
    ) -> Result<(), Broken> {
        let hit = {
            let mut watched = self.lock();
            let number = watched.runs.last_mut().map_or(0, |run| {
                run.calls.push(HostCall {
                    name,
                    statement: statement.map(str::to_owned),
                    rows: None,
                    error: None,
                });
                run.calls.len()
            });
            message.and_then(|message| watched.hits(message, Place::Call(number)))
        };
        match hit {
            None => Ok(()),
            Some(How::Die) => {
                self.die().await;
                Ok(())
            }
            Some(How::RollBack | How::Charge) => Err(Broken),
        }
    }

    /// Takes down how the host call that was made last has ended.
    fn answered(&self, rows: Option<usize>, error: Option<&SqlError>) {
        if let Some(call) = self
            .lock()
            .runs
            .last_mut()
            .and_then(|run| run.calls.last_mut())
        {
            call.rows = rows;
            call.error = error.map(SqlError::to_string);
        }
    }

    /// Takes down that a call with many messages has returned, for each of them whether it is well. None of their runs is broken.
    pub(super) fn returned_together(&self, are_well: impl DoubleEndedIterator<Item = bool>) {
        let mut watched = self.lock();
        for (run, is_ok) in watched.runs.iter_mut().rev().zip(are_well.rev()) {
            run.is_ok = is_ok;
        }
    }

    /// Takes down that the handler has returned, and comes back with how that is to be changed.
    pub(super) async fn returned(&self, message: &MessageId, verdict: Verdict) -> Verdict {
        let hit = {
            let mut watched = self.lock();
            if let Some(run) = watched.runs.last_mut() {
                run.is_ok = verdict == Verdict::Ok;
            }
            // What was broken before its end did not get there.
            match verdict {
                Verdict::Host { .. } => None,
                _ => watched.hits(message, Place::End),
            }
        };
        match hit {
            None => verdict,
            Some(How::Die) => {
                self.die().await;
                verdict
            }
            Some(How::RollBack) => Verdict::Host {
                text: Broken.to_string(),
            },
            Some(How::Charge) => Verdict::Retry {
                reason: Broken.to_string(),
                delay: None,
            },
        }
    }
}

impl Watched {
    fn hits(&mut self, message: &MessageId, at: Place) -> Option<How> {
        let first = self
            .breaks
            .iter()
            .position(|armed| armed.message == *message)?;
        if self.breaks.get(first)?.at != at {
            return None;
        }
        self.breaks.remove(first).map(|armed| armed.how)
    }
}

impl State {
    /// Says that the handler calls its host. An error ends the run.
    pub(super) async fn reach(
        // Not shared: what a state holds of WASI cannot be.
        &mut self,
        name: &'static str,
        statement: Option<&str>,
    ) -> wasmtime::Result<()> {
        let Some(watch) = &self.watch else {
            return Ok(());
        };
        let only = match &self.message_ids[..] {
            [id] => Some(id),
            _ => None,
        };
        Ok(watch.reached(only, name, statement).await?)
    }

    /// Says how the host call has ended.
    pub(super) fn answer<T>(
        &self,
        rows: impl FnOnce(&T) -> Option<usize>,
        result: &Result<T, SqlError>,
    ) {
        if let Some(watch) = &self.watch {
            watch.answered(result.as_ref().ok().and_then(rows), result.as_ref().err());
        }
    }
}
