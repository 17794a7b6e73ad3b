//! How a handler says that it did not succeed.

use std::fmt;
use std::time::Duration;

use crate::bindings;
use crate::error::Error;

/// Why a message was not processed, and what becomes of it. Nothing that the handler wrote stays in either case.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// Roll back, charge an attempt, deliver the message again.
    Retry {
        /// For the log and the history of the message's attempts.
        reason: String,
        /// Wait at least this long (milliseconds count, rounded up); the configured backoff if `None`.
        delay: Option<Duration>,
    },
    /// Roll back and keep the message as a dead letter now.
    Reject {
        /// Kept with the dead letter.
        reason: String,
    },
}

impl Failure {
    /// Returns a failure after which the message comes again, after the configured backoff.
    pub fn retry(reason: impl fmt::Display) -> Self {
        Self::Retry {
            reason: reason.to_string(),
            delay: None,
        }
    }

    /// Returns a failure after which the message comes again, after `delay` at the earliest.
    pub fn retry_after(delay: Duration, reason: impl fmt::Display) -> Self {
        Self::Retry {
            reason: reason.to_string(),
            delay: Some(delay),
        }
    }

    /// Returns a failure that makes a dead letter of the message: for what will not succeed however often it is tried.
    pub fn reject(reason: impl fmt::Display) -> Self {
        Self::Reject {
            reason: reason.to_string(),
        }
    }

    /// Returns the reason as written.
    pub fn reason(&self) -> &str {
        match self {
            Self::Retry { reason, .. } | Self::Reject { reason } => reason,
        }
    }

    pub(crate) fn into_wit(self) -> bindings::Failure {
        match self {
            Self::Retry { reason, delay } => {
                bindings::Failure::Retry(bindings::hapax::handler::types::Retry {
                    reason,
                    delay_milliseconds: delay.map(milliseconds),
                })
            }
            Self::Reject { reason } => bindings::Failure::Reject(reason),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry { reason, .. } => write!(f, "retry: {reason}"),
            Self::Reject { reason } => write!(f, "reject: {reason}"),
        }
    }
}

impl std::error::Error for Failure {}

/// A failed call into the host asks for another attempt. Where another attempt can't help, say so with
/// [`OrFail::or_reject`] or [`Error::reject_constraint`].
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::retry(error)
    }
}

/// Turns what is missing or went wrong into a [`Failure`], to be passed on with `?`.
pub trait OrFail<T> {
    /// Makes a dead letter of the message if there is no value; the error's text is the reason.
    fn or_reject(self) -> Result<T, Failure>;

    /// Makes a dead letter of the message if there is no value, for the reason given.
    fn or_reject_with<R: fmt::Display>(self, reason: impl FnOnce() -> R) -> Result<T, Failure>;

    /// Asks for another attempt if there is no value; the error's text is the reason.
    fn or_retry(self) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> OrFail<T> for Result<T, E> {
    fn or_reject(self) -> Result<T, Failure> {
        self.map_err(Failure::reject)
    }

    fn or_reject_with<R: fmt::Display>(self, reason: impl FnOnce() -> R) -> Result<T, Failure> {
        self.map_err(|error| Failure::reject(format_args!("{}: {error}", reason())))
    }

    fn or_retry(self) -> Result<T, Failure> {
        self.map_err(Failure::retry)
    }
}

impl<T> OrFail<T> for Option<T> {
    fn or_reject(self) -> Result<T, Failure> {
        self.ok_or_else(|| Failure::reject("a value that the handler needs is absent"))
    }

    fn or_reject_with<R: fmt::Display>(self, reason: impl FnOnce() -> R) -> Result<T, Failure> {
        self.ok_or_else(|| Failure::reject(reason()))
    }

    fn or_retry(self) -> Result<T, Failure> {
        self.ok_or_else(|| Failure::retry("a value that the handler needs is absent"))
    }
}

fn milliseconds(delay: Duration) -> u64 {
    u64::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_rounded_up_to_milliseconds() {
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::from_millis(1500)), 1500);
        assert_eq!(milliseconds(Duration::MAX), u64::MAX);
    }

    #[test]
    fn what_is_absent_can_be_a_reason() {
        let found: Option<i64> = None;
        assert_eq!(
            found.or_reject_with(|| "no such account"),
            Err(Failure::reject("no such account"))
        );
        let parsed = "x"
            .parse::<i64>()
            .or_reject_with(|| "`amount` is not a number");
        assert_eq!(
            parsed.expect_err("not a number").reason(),
            "`amount` is not a number: invalid digit found in string"
        );
    }
}
