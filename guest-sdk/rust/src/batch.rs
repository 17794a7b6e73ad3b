//! Handlers of many messages a call: [`batch_handler!`](crate::batch_handler).
//!
//! All messages of a call are in one transaction, so one statement can serve them all. What fails is told by its place: the host rolls the
//! transaction back, runs the others again without it, and it alone.
//!
//! ```no_run
//! use hapax_guest::batch::Results;
//! use hapax_guest::{Failure, Message, params, sql};
//!
//! #[derive(serde::Deserialize)]
//! struct Credit {
//!     account: String,
//!     amount: i64,
//! }
//!
//! fn handle(messages: &[Message]) -> Result<Results, Failure> {
//!     let mut results = Results::ok(messages);
//!     // Those that are not what they should be fail, each by itself.
//!     let credits = results.each(messages, |message| message.json::<Credit>());
//!     let accounts: Vec<&str> = credits.iter().map(|(_, credit)| credit.account.as_str()).collect();
//!     let amounts: Vec<i64> = credits.iter().map(|(_, credit)| credit.amount).collect();
//!     // An UPDATE takes only one of several rows that it is joined with, so they are added up first.
//!     sql::execute(
//!         "UPDATE accounts SET balance = balance + credits.amount
//!          FROM (SELECT account, sum(amount)::bigint AS amount
//!                FROM unnest($1::text[], $2::bigint[]) AS credit (account, amount) GROUP BY account) AS credits
//!          WHERE accounts.id = credits.account",
//!         &params![accounts, amounts],
//!     )?;
//!     Ok(results)
//! }
//!
//! hapax_guest::batch_handler!(handle);
//! # fn main() {}
//! ```
//!
//! In [`Results::each`], lines written with [`log`](crate::log) and messages published with [`publish`] are those of the message
//! at hand; elsewhere [`on_behalf_of`] says whose they are. Lines of nobody in particular are the batch's; a message of nobody can't be published.

use crate::batch_bindings::hapax::handler::{batch_log, batch_outbox};
use crate::error::Error;
use crate::failure::Failure;
use crate::outbox::Outgoing;
use crate::{Message, bindings, host};

/// What becomes of each message of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Results(Vec<Result<(), Failure>>);

impl Results {
    /// Begins with all of them well.
    pub fn ok(messages: &[Message]) -> Self {
        Self(vec![Ok(()); messages.len()])
    }

    /// Says that the message at `index` failed. The first failure of a message counts; beyond the last message there is nothing to say.
    pub fn fail(&mut self, index: usize, failure: Failure) {
        if let Some(result @ Ok(())) = self.0.get_mut(index) {
            *result = Err(failure);
        }
    }

    /// True if the message at `index` has failed.
    pub fn has_failed(&self, index: usize) -> bool {
        self.0.get(index).is_some_and(Result::is_err)
    }

    /// Does `work` on behalf of each message that has not failed. Returns what it gave, each with its message's place; those for which it
    /// failed have failed.
    pub fn each<T>(
        &mut self,
        messages: &[Message],
        mut work: impl FnMut(&Message) -> Result<T, Failure>,
    ) -> Vec<(usize, T)> {
        let mut given = Vec::with_capacity(messages.len());
        for (index, message) in messages.iter().enumerate() {
            if self.has_failed(index) {
                continue;
            }
            match on_behalf_of(index, || work(message)) {
                Ok(value) => given.push((index, value)),
                Err(failure) => self.fail(index, failure),
            }
        }
        given
    }
}

impl From<Vec<Result<(), Failure>>> for Results {
    /// One result for each message, in their order: another number counts as a trap.
    fn from(results: Vec<Result<(), Failure>>) -> Self {
        Self(results)
    }
}

/// Does `work` on behalf of the message at `index`: what it logs and publishes is that message's.
pub fn on_behalf_of<T>(index: usize, work: impl FnOnce() -> T) -> T {
    host::on_behalf_of(index, work)
}

/// Keeps `message` until the transaction commits, on behalf of the message at hand ([`Results::each`], [`on_behalf_of`]). Returns its id,
/// the same in every run of that message, alone or in any batch.
///
/// # Errors
/// `unsupported`: no message is at hand. Or the host refuses it: an unknown target, a subject or size that it can't publish.
pub fn publish(message: &Outgoing) -> Result<String, Error> {
    let Some(member) = host::member() else {
        return Err(Error::local(
            "unsupported",
            "in a batch a message is published on behalf of one of its messages: call `publish` within `Results::each` or `on_behalf_of`"
                .to_owned(),
        ));
    };
    batch_outbox::publish(member, message).map_err(Error::from_wit)
}

/// Makes a function the handler of this component, with many messages a call.
///
/// The function takes a slice of [`Message`] and returns `Result<Results, Failure>`. A failure instead of results is that of every
/// message: they run again in halves, until who fails is alone and is charged. Use it once in a crate of type `cdylib`.
#[macro_export]
macro_rules! batch_handler {
    ($handle:path) => {
        #[allow(
            unsafe_code,
            reason = "the functions that a component exports have unsafe attributes"
        )]
        const _: () = {
            struct Handler;

            impl $crate::batch_bindings::Guest for Handler {
                fn handle_batch(
                    messages: ::std::vec::Vec<$crate::Message>,
                ) -> ::std::vec::Vec<::core::result::Result<(), $crate::batch_bindings::Failure>>
                {
                    $crate::batch::__run(&messages, $handle)
                }
            }

            $crate::batch_bindings::export_batch_handler!(Handler with_types_in $crate::batch_bindings);
        };
    };
}

/// What [`batch_handler!`](crate::batch_handler) calls. Not part of the public interface.
#[doc(hidden)]
pub fn __run(
    messages: &[Message],
    handle: fn(&[Message]) -> Result<Results, Failure>,
) -> Vec<Result<(), bindings::Failure>> {
    host::begin(batch_log::write);
    let results = match handle(messages) {
        Ok(Results(results)) => results,
        Err(failure) => vec![Err(failure); messages.len()],
    };
    results
        .into_iter()
        .map(|result| result.map_err(Failure::into_wit))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &str, payload: &str) -> Message {
        Message {
            id: id.to_owned(),
            source: "s".to_owned(),
            subject: String::new(),
            key: None,
            headers: Vec::new(),
            content_type: None,
            payload: payload.as_bytes().to_vec(),
            attempt: 1,
            published_at: None,
        }
    }

    #[test]
    fn nobody_publishes_nothing() {
        let error = publish(&Outgoing::new("a")).expect_err("no message is at hand");
        assert!(error.to_string().contains("on_behalf_of"), "{error}");
    }

    #[test]
    fn who_fails_is_left_out_of_what_follows() {
        let messages = [message("a", "1"), message("b", "x"), message("c", "3")];
        let mut results = Results::ok(&messages);
        let numbers = results.each(&messages, |message| message.json::<i64>());
        assert_eq!(numbers, [(0, 1), (2, 3)]);
        assert!(results.has_failed(1));
        results.fail(1, Failure::retry("later"));
        results.fail(2, Failure::reject("odd"));
        results.fail(3, Failure::reject("not there"));
        let left = results.each(&messages, |message| Ok(message.id.clone()));
        assert_eq!(left, [(0, "a".to_owned())]);
        let Results(results) = results;
        assert_eq!(results.len(), 3);
        let reason = |index: usize| results[index].as_ref().expect_err("failed").reason();
        assert!(reason(1).starts_with("payload"), "the first failure counts");
        assert_eq!(reason(2), "odd");
    }
}
