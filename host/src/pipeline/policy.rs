//! What a failure means: who is charged, and whether the message runs again.

use std::time::Duration;

use crate::handler::{Called, CalledBatch, Verdict};
use crate::message::{FailureClass, Message, ShortHash};
use crate::store::{SqlError, StoreError, Tx};

/// The handler returned ok, but nothing of what it wrote can be kept.
const SWALLOWED: &str = "aborted: a statement failed and the handler went on; after an error of the database nothing of the transaction can be kept";

/// The handler returned ok, and it is not known what it wanted of its open savepoint.
const LEFT_OPEN: &str = "savepoint.open: the handler returned ok with a savepoint still open; it has to release or roll back every one";

/// A failure that is charged to its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The reason class.
    pub(crate) class: FailureClass,
    /// In words.
    pub(crate) reason: String,
    /// The shortest wait that the handler asked for.
    pub(crate) delay: Option<Duration>,
}

impl Failure {
    /// No configured place held a usable id.
    pub(crate) fn missing_id(reason: String) -> Self {
        Self {
            class: FailureClass::MissingId,
            reason,
            delay: None,
        }
    }

    /// The id was claimed before, with another payload.
    pub(crate) fn conflict(message: &Message, hash: ShortHash, stored: ShortHash) -> Self {
        Self {
            class: FailureClass::Conflict,
            reason: format!(
                "message id `{}` was claimed before with another payload (hash {}, this one has {})",
                message.id,
                stored.to_hex(),
                hash.to_hex()
            ),
            delay: None,
        }
    }

    /// The message is older than the window, and its id is free.
    pub(crate) fn too_old(published_at: &str, window: Duration) -> Self {
        Self {
            class: FailureClass::TooOld,
            reason: format!(
                "published at {published_at}, before the window (`dedup`, {}) began: if it was processed, its claim is pruned",
                crate::text::span(window)
            ),
            delay: None,
        }
    }

    /// A host ended while this message ran alone.
    pub(crate) fn crashed(host: &str, started_at: &str) -> Self {
        Self {
            class: FailureClass::Crashed,
            reason: format!(
                "the host ended while this message ran (host `{host}`, started at {started_at})"
            ),
            delay: None,
        }
    }

    /// The database refused the commit because of what the handler wrote or swallowed.
    pub(crate) fn refused_at_commit(error: &SqlError) -> Self {
        Self {
            class: FailureClass::Sql,
            reason: format!("the database refused the commit: {error}"),
            delay: None,
        }
    }

    /// True if running the message again can't help.
    pub(crate) fn is_final(&self) -> bool {
        match self.class {
            FailureClass::MissingId
            | FailureClass::Conflict
            | FailureClass::TooOld
            | FailureClass::Rejected => true,
            FailureClass::Retried
            | FailureClass::Trapped
            | FailureClass::Limit
            | FailureClass::Sql
            | FailureClass::Crashed => false,
        }
    }
}

/// What becomes of a message after its handler was called.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// Its effects may be committed.
    Commit,
    /// Run it again, charged to nobody.
    Again(StoreError),
    /// It failed.
    Failed(Failure),
}

/// Decides what a call's end means.
///
/// What the host knows of the transaction comes first: a deadlock or a lost connection is nobody's fault, whatever the
/// handler made of the error that it saw.
pub(crate) fn classify(called: &Called) -> Outcome {
    decide(&called.verdict, left_of(called.tx.as_ref()))
}

/// Decides what the end of a call with a batch means. Returns with it the places of the messages that failed; none if that is not known.
///
/// What the host knows of the transaction comes first here, too, but a message of which the handler itself says that it failed is to
/// blame for a transaction that can't be kept.
pub(crate) fn classify_batch(called: &CalledBatch) -> (Outcome, Vec<usize>) {
    let left = left_of(called.tx.as_ref());
    let (verdict, failing) = match &called.results {
        Err(verdict) => (verdict, Vec::new()),
        Ok(verdicts) => {
            let failing: Vec<usize> = (0..verdicts.len())
                .filter(|place| verdicts[*place] != Verdict::Ok)
                .collect();
            let first = failing.first().map(|place| &verdicts[*place]);
            (first.unwrap_or(&Verdict::Ok), failing)
        }
    };
    (decide(verdict, left), failing)
}

fn left_of(tx: Option<&Tx>) -> Left {
    tx.map_or(Left::default(), |tx| Left {
        fault: tx.fault(),
        is_aborted: tx.is_aborted(),
        open_savepoints: tx.open_savepoints(),
    })
}

/// What the host knows of a call's transaction.
#[derive(Clone, Debug, Default)]
struct Left {
    fault: Option<StoreError>,
    is_aborted: bool,
    open_savepoints: usize,
}

fn decide(verdict: &Verdict, left: Left) -> Outcome {
    if let Some(why) = left.fault {
        return Outcome::Again(why);
    }
    let (class, reason, delay) = match verdict {
        Verdict::Ok if left.is_aborted => (FailureClass::Sql, SWALLOWED.to_owned(), None),
        Verdict::Ok if left.open_savepoints > 0 => (FailureClass::Sql, LEFT_OPEN.to_owned(), None),
        Verdict::Ok => return Outcome::Commit,
        Verdict::Host { text } => return Outcome::Again(StoreError::Busy(text.clone())),
        Verdict::Retry { reason, delay } => (FailureClass::Retried, reason.clone(), *delay),
        Verdict::Reject { reason } => (FailureClass::Rejected, reason.clone(), None),
        Verdict::Trap { text } => (FailureClass::Trapped, text.clone(), None),
        Verdict::Limit { limit, text } => (
            FailureClass::Limit,
            format!("limit `{limit}`: {text}"),
            None,
        ),
    };
    Outcome::Failed(Failure {
        class,
        reason,
        delay,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_of_a_call_has_one_meaning() {
        let busy = || Some(StoreError::Busy("deadlock".into()));
        let lost = || Some(StoreError::Unavailable("gone".into()));
        let retry = Verdict::Retry {
            reason: "later".into(),
            delay: Some(Duration::from_secs(3)),
        };
        let reject = Verdict::Reject {
            reason: "no".into(),
        };
        let trap = Verdict::Trap {
            text: "unreachable".into(),
        };
        let limit = Verdict::Limit {
            limit: "cpu",
            text: "1s".into(),
        };
        let host = Verdict::Host { text: "bug".into() };
        let charged = |outcome: Outcome| match outcome {
            Outcome::Failed(failure) => Some((failure.class, failure.is_final(), failure.delay)),
            Outcome::Again(_) => None,
            Outcome::Commit => panic!("must not commit"),
        };

        let alive = Left::default;
        let aborted = || Left {
            is_aborted: true,
            ..Left::default()
        };
        let faulty = |fault| Left { fault, ..aborted() };
        let open = |count| Left {
            open_savepoints: count,
            ..Left::default()
        };

        assert!(matches!(decide(&Verdict::Ok, alive()), Outcome::Commit));
        assert_eq!(
            charged(decide(&retry, aborted())),
            Some((FailureClass::Retried, false, Some(Duration::from_secs(3))))
        );
        assert_eq!(
            charged(decide(&reject, aborted())),
            Some((FailureClass::Rejected, true, None))
        );
        assert_eq!(
            charged(decide(&trap, alive())),
            Some((FailureClass::Trapped, false, None))
        );
        assert_eq!(
            charged(decide(&limit, aborted())),
            Some((FailureClass::Limit, false, None))
        );
        assert_eq!(charged(decide(&host, alive())), None);
        // A swallowed error.
        assert_eq!(
            charged(decide(&Verdict::Ok, aborted())),
            Some((FailureClass::Sql, false, None))
        );
        // A savepoint that was forgotten; with a failure of the handler's own it means nothing.
        assert_eq!(
            charged(decide(&Verdict::Ok, open(1))),
            Some((FailureClass::Sql, false, None))
        );
        assert_eq!(
            charged(decide(&reject, open(2))),
            Some((FailureClass::Rejected, true, None))
        );
        // A fault of the database is charged to nobody, whatever the handler said.
        for verdict in [&Verdict::Ok, &retry, &reject, &trap, &limit, &host] {
            assert_eq!(
                charged(decide(verdict, faulty(busy()))),
                None,
                "{verdict:?}"
            );
            assert_eq!(
                charged(decide(verdict, faulty(lost()))),
                None,
                "{verdict:?}"
            );
        }
    }
}
