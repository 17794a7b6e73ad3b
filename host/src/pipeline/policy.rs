//! What a failure means: who is charged, and whether the message runs again.

use std::time::Duration;

use crate::handler::{Called, Verdict};
use crate::message::{FailureClass, Message, ShortHash};
use crate::store::{SqlError, StoreError, Tx};

/// The handler returned ok, but nothing of what it wrote can be kept.
const SWALLOWED: &str = "aborted: a statement failed and the handler went on; after an error of the database nothing of the transaction can be kept";

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
            FailureClass::MissingId | FailureClass::Conflict | FailureClass::Rejected => true,
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
    let is_aborted = called.tx.as_ref().is_some_and(Tx::is_aborted);
    decide(
        &called.verdict,
        called.tx.as_ref().and_then(Tx::fault),
        is_aborted,
    )
}

fn decide(verdict: &Verdict, fault: Option<StoreError>, is_aborted: bool) -> Outcome {
    if let Some(why) = fault {
        return Outcome::Again(why);
    }
    let (class, reason, delay) = match verdict {
        Verdict::Ok if is_aborted => (FailureClass::Sql, SWALLOWED.to_owned(), None),
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

        assert!(matches!(decide(&Verdict::Ok, None, false), Outcome::Commit));
        assert_eq!(
            charged(decide(&retry, None, true)),
            Some((FailureClass::Retried, false, Some(Duration::from_secs(3))))
        );
        assert_eq!(
            charged(decide(&reject, None, true)),
            Some((FailureClass::Rejected, true, None))
        );
        assert_eq!(
            charged(decide(&trap, None, false)),
            Some((FailureClass::Trapped, false, None))
        );
        assert_eq!(
            charged(decide(&limit, None, true)),
            Some((FailureClass::Limit, false, None))
        );
        assert_eq!(charged(decide(&host, None, false)), None);
        // A swallowed error.
        assert_eq!(
            charged(decide(&Verdict::Ok, None, true)),
            Some((FailureClass::Sql, false, None))
        );
        // A fault of the database is charged to nobody, whatever the handler said.
        for verdict in [&Verdict::Ok, &retry, &reject, &trap, &limit, &host] {
            assert_eq!(charged(decide(verdict, busy(), true)), None, "{verdict:?}");
            assert_eq!(charged(decide(verdict, lost(), true)), None, "{verdict:?}");
        }
    }
}
