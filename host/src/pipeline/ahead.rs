//! What the pipeline does about statements that are answered before the database has run them (`store/ahead.rs`).
//!
//! **Invariant**: a failure is charged, and a transaction committed, only when every answer that was given ahead was compared.

use std::collections::VecDeque;

use super::HandlerContext;
use super::batch::around;
use super::policy::{Outcome, classify};
use super::process::{Member, Processed};
use crate::config::SqlMode;
use crate::handler::{Called, Handler};
use crate::store::{Connection, Misled, Promises, Run, Tx};

/// After so many runs of one batch that were rolled back for it, the rest of the batch is run without.
const MISLED_MAX: u32 = 3;

impl HandlerContext {
    /// Says to `tx` whose statements follow.
    pub(super) fn begin_run(
        &self,
        tx: &mut Tx,
        component: &Handler,
        index: usize,
        member: &Member,
        attempt: u32,
    ) {
        tx.begin_run(Run {
            member: index,
            ahead: self.may_run_ahead(component, member, attempt),
        });
    }

    /// True if a message's statements may be answered before the database has run them.
    pub(super) fn may_run_ahead(&self, component: &Handler, member: &Member, attempt: u32) -> bool {
        self.config.sql == SqlMode::Ahead
            && !member.is_awaited
            // One that failed is told what is, so that the next failure says why.
            && attempt == 1
            && !component.is_watched()
            && !member.delivery.is_suspect
    }

    /// Says to `tx` that the statements of a call with a whole batch follow. They are waited for: they are few, and an answer that was
    /// wrong would be nobody's in particular.
    pub(super) fn begin_batch_run(tx: &mut Tx) {
        tx.begin_run(Run {
            member: 0,
            ahead: false,
        });
    }

    /// Compares what was answered ahead in `tx`, before anything of the host's own is sent.
    pub(super) async fn settle(&self, tx: &mut Tx) -> Result<(), Misled> {
        let settled = tx.settle().await;
        self.count(tx.take_promises());
        settled
    }

    fn count(&self, promises: Promises) {
        self.metrics
            .promises(promises.made, promises.kept, promises.broken);
    }

    /// Rolls back what was misled.
    pub(super) async fn misled(
        &self,
        tx: Option<Tx>,
        batch: Vec<Member>,
        misled: Misled,
    ) -> (Option<Connection>, Processed) {
        let Some(mut tx) = tx else {
            return (None, Processed::Misled { batch, misled });
        };
        self.count(tx.take_promises());
        let fault = tx.fault();
        let connection = tx.rollback().await;
        let processed = match fault {
            Some(why) => Processed::Again { batch, why },
            None => Processed::Misled { batch, misled },
        };
        (connection, processed)
    }
}

/// Returns what a call's end means. Unless that is that its effects may be committed, what it was answered ahead is compared first.
pub(super) async fn believed(called: &mut Called, index: usize) -> Result<Outcome, Misled> {
    let outcome = classify(called);
    match &mut called.tx {
        // The connection was closed during the call.
        None if called.is_unsettled => Err(Misled {
            member: Some(index),
        }),
        None => Ok(outcome),
        Some(tx) => {
            if matches!(outcome, Outcome::Commit) && tx.misled().is_none() {
                return Ok(outcome);
            }
            tx.settle().await?;
            Ok(classify(called))
        }
    }
}

/// Prepares the next runs of a batch that was misled for the `times`th time, and of the `rest` that was to run after it: who was misled runs
/// alone, every statement awaited, and after `MISLED_MAX` times all do without answers given ahead. Returns the batch's parts.
pub(super) fn after_misled(
    mut batch: Vec<Member>,
    misled: Misled,
    times: u32,
    rest: &mut VecDeque<Vec<Member>>,
) -> Vec<Vec<Member>> {
    let index = misled.member.filter(|index| *index < batch.len());
    match index {
        Some(index) if times < MISLED_MAX => batch[index].is_awaited = true,
        _ => {
            for member in batch.iter_mut().chain(rest.iter_mut().flatten()) {
                member.is_awaited = true;
            }
        }
    }
    match index {
        Some(index) => around(batch, &[index]).into(),
        None => batch.into_iter().map(|member| vec![member]).collect(),
    }
}
