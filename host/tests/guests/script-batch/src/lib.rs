//! `script` for batches: does what the payload of each message says, one after the other, in one call.
//!
//! **Invariant**: the steps are those of `script`, from the same files.

#[path = "../../script/src/cursors.rs"]
mod cursors;
#[path = "../../script/src/run.rs"]
mod run;
#[path = "../../script/src/savepoints.rs"]
mod savepoints;
#[path = "../../script/src/step.rs"]
mod step;
#[path = "../../script/src/tagged.rs"]
mod tagged;

use hapax_guest::batch::{Results, publish};
use hapax_guest::{Failure, Message, config, log, params, sql};

/// The setting that names a table which gets a row for each call: `n` is its number of messages.
const CALLS: &str = "calls";
/// The setting that has a call return one result too many.
const EXTRA_RESULT: &str = "extra_result";

fn handle(messages: &[Message]) -> Result<Results, Failure> {
    log::info!("a call", messages = messages.len());
    if let Some(table) = config::get(CALLS) {
        let messages = i64::try_from(messages.len()).map_err(Failure::reject)?;
        let statement = format!("INSERT INTO {table} (n) VALUES ($1)");
        sql::execute(&statement, &params![messages])?;
    }
    let mut results = Results::ok(messages);
    results.each(messages, |message| {
        let script: step::Script = message.json()?;
        run::steps(message, &script.steps, "")
    });
    match config::get(EXTRA_RESULT) {
        None => Ok(results),
        Some(_) => Ok(vec![Ok(()); messages.len() + 1].into()),
    }
}

hapax_guest::batch_handler!(handle);
