//! Errors that tell the reader what to do.
//!
//! **Invariant**: the remedy is never part of the message; `main` prints it on a line of its own.

use std::fmt;

/// An error with its remedy.
#[derive(Debug)]
pub(crate) struct Hinted {
    message: String,
    hint: String,
}

impl Hinted {
    /// Returns an error that says `message`, with what to do about it.
    pub(crate) fn error(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self {
            message: message.into(),
            hint: hint.into(),
        })
    }

    /// Returns the remedy of the first cause of `err` that has one.
    pub(crate) fn find(err: &anyhow::Error) -> Option<&str> {
        err.chain()
            .find_map(|cause| cause.downcast_ref::<Self>())
            .map(|found| found.hint.as_str())
    }
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hinted {}
