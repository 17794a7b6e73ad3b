//! A handler that does what its payload says, for the host's tests. `README.md` describes the steps.
//!
//! **Invariant**: a step that this guest does not understand, or whose expectation fails, rejects the message with a reason that
//! begins with `step`: a test that is wrong never looks like one that passed.

mod cursors;
mod run;
mod savepoints;
mod step;
mod tagged;

use hapax_guest::outbox::publish;
use hapax_guest::{Failure, Message};

fn handle(message: Message) -> Result<(), Failure> {
    let script: step::Script = message.json()?;
    run::steps(&message, &script.steps, "")
}

hapax_guest::handler!(handle);
