//! Messages that leave once, after the commit.
//!
//! ```no_run
//! use hapax_guest::outbox::Outgoing;
//! # fn f() -> Result<(), hapax_guest::Failure> {
//! let id = Outgoing::new("accounts.credited").key("a1").json(&serde_json::json!({ "amount": 5 }))?.publish()?;
//! # Ok(())
//! # }
//! ```

use serde::Serialize;

use crate::bindings::hapax::handler::outbox as host;
pub use crate::bindings::hapax::handler::types::Outgoing;
use crate::error::Error;
use crate::failure::Failure;
use crate::{Header, Instant};

/// Keeps `message` until the transaction commits. Returns its id, the same in every run of this delivery's message.
///
/// A handler of batches publishes with [`batch::publish`](crate::batch::publish); its world doesn't have this function, so a component that
/// calls it can't be made.
///
/// # Errors
/// The host refuses it: an unknown target, a subject or size that it can't publish.
pub fn publish(message: &Outgoing) -> Result<String, Error> {
    host::publish(message).map_err(Error::from_wit)
}

impl Outgoing {
    /// Returns an empty message for `subject`, to the handler's default target.
    pub fn new(subject: impl Into<String>) -> Self {
        Self {
            target: None,
            subject: subject.into(),
            key: None,
            headers: Vec::new(),
            content_type: None,
            payload: Vec::new(),
            not_before: None,
        }
    }

    /// Sets the configured target.
    pub fn target(mut self, target: impl Into<String>) -> Self {
        self.target = Some(target.into());
        self
    }

    /// Sets the key: messages of one key leave in the order in which they were published.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push(Header {
            name: name.into(),
            value: value.into(),
        });
        self
    }

    /// Sets the content type.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Sets the payload.
    pub fn payload(mut self, payload: impl Into<Vec<u8>>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Sets the payload to `value` as JSON, and the content type to `application/json` unless there is one.
    ///
    /// # Errors
    /// [`Failure::Reject`]: JSON can't express the value, such as a map with keys that are not text.
    pub fn json(mut self, value: &impl Serialize) -> Result<Self, Failure> {
        self.payload = serde_json::to_vec(value).map_err(|error| {
            Failure::reject(format_args!(
                "message for `{}` cannot be written as JSON: {error}",
                self.subject
            ))
        })?;
        self.content_type
            .get_or_insert_with(|| "application/json".to_owned());
        Ok(self)
    }

    /// Lets the message leave at this moment at the earliest.
    pub fn not_before(mut self, moment: Instant) -> Self {
        self.not_before = Some(moment);
        self
    }

    /// Publishes it, as [`publish`].
    ///
    /// # Errors
    /// As [`publish`].
    pub fn publish(&self) -> Result<String, Error> {
        publish(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_put_together() {
        let message = Outgoing::new("a.b")
            .key("k")
            .header("n", "v")
            .json(&[1, 2])
            .unwrap();
        assert_eq!(message.payload, b"[1,2]");
        assert_eq!(message.content_type.as_deref(), Some("application/json"));
        assert_eq!(message.headers[0].value, b"v");
        let message = Outgoing::new("a.b")
            .content_type("text/x")
            .json(&1)
            .unwrap();
        assert_eq!(message.content_type.as_deref(), Some("text/x"));
    }
}
