//! The guarantee, on one page: begin, claim, handle, commit, ack.
//!
//! **Invariant**: a delivery is acknowledged only with the proof that this transaction's commit gave.
//! **Invariant**: nothing here is raced or dropped half-way: each step is awaited to its end.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::batch::Took;
use super::policy::{Failure, Outcome, classify};
use super::{HandlerContext, order};
use crate::fault;
use crate::message::{Message, ShortHash};
use crate::source::{Delivery, SourceError};
use crate::store::{
    Baton, Claim, ClaimRequest, CommitError, Committed, Connection, Ended, OutboxRow, StoreError,
    Tx,
};

/// A delivery whose message id was found.
#[derive(Debug)]
pub(crate) struct Member {
    /// The means to answer.
    pub(crate) delivery: Delivery,
    /// What the handler gets.
    pub(crate) message: Message,
    /// Of the payload.
    pub(crate) payload_hash: ShortHash,
}

/// How a batch ended.
#[derive(Debug)]
pub(crate) enum Processed {
    /// All of it is committed, and answered as far as the source could be reached.
    Settled,
    /// Nothing of it stays, and nobody is to blame: run it again after a pause.
    Again {
        /// All members, in their order.
        batch: Vec<Member>,
        /// What was in the way.
        why: StoreError,
    },
    /// Nothing was done: some have to wait behind earlier messages of their keys.
    Behind {
        /// All members, in their order.
        batch: Vec<Member>,
        /// For each, how long; `None` for those that may run.
        waits: Vec<Option<Duration>>,
    },
    /// Nothing of it stays, because its locks would have been held too long: run the first `fitting` alone.
    TooLong {
        /// All members, in their order.
        batch: Vec<Member>,
        /// From 1, and fewer than all.
        fitting: usize,
    },
    /// Nothing of it stays, because of one member.
    Failed {
        /// All members, in their order.
        batch: Vec<Member>,
        /// Whose failure it is; `None` if only a run of each alone can tell.
        index: Option<usize>,
        /// What the member is charged with.
        failure: Failure,
    },
}

/// Takes `batch`, in which no id occurs twice, through one transaction on `connection`. Gives the connection back if it
/// can be used again.
pub(crate) async fn process(
    handler: &HandlerContext,
    connection: Connection,
    mut batch: Vec<Member>,
) -> (Option<Connection>, Processed) {
    // Begin: batches of one handler never overlap, or they would deadlock.
    let is_ordered = handler.config.order.is_some();
    let baton = match batch.len() {
        1 if handler.sizes.is_apart() && !is_ordered => Baton::Shared,
        1 => Baton::Alone,
        _ => Baton::AloneForBatch,
    };
    let turn = handler.turn(baton).await;
    let mut tx = match Tx::begin_with_baton(connection, &handler.config.baton, baton).await {
        Ok(tx) => tx,
        Err(why) => return (None, Processed::Again { batch, why }),
    };
    let begun = Instant::now();

    // A queue's rows are taken here, and come back if the transaction does not commit. What another host has in hand
    // is its own.
    if let Err(why) = take_rows(&mut tx, &mut batch, is_ordered).await {
        return (tx.rollback().await, Processed::Again { batch, why });
    }
    if batch.is_empty() {
        return (tx.rollback().await, Processed::Settled);
    }

    // With `order_by`, what stands behind an earlier message of its key that waits is put off with it.
    match order::waits(handler, &mut tx, &batch).await {
        Ok(waits) if waits.iter().all(Option::is_none) => {}
        Ok(waits) => return (tx.rollback().await, Processed::Behind { batch, waits }),
        Err(why) => return (tx.rollback().await, Processed::Again { batch, why }),
    }

    // Claim.
    let claims = match handler.claim(&mut tx, &batch).await {
        Ok(claims) => claims,
        Err(why) => return (tx.rollback().await, Processed::Again { batch, why }),
    };
    fault::point("after-claim");

    // Handle what is neither a duplicate nor in conflict.
    let mut outbox: Vec<OutboxRow> = Vec::new();
    let mut logs = Vec::new();
    let mut conflicts = 0;
    let mut calling = Duration::ZERO;
    let mut executed_max = 0;
    let calls = fault::Calls::begin();
    for (index, claim) in claims.into_iter().enumerate() {
        let message = &batch[index].message;
        let attempt = match claim {
            Claim::Fresh { attempt } => attempt,
            Claim::Duplicate { .. } => continue,
            Claim::Conflict { .. } if handler.ignores_conflicts() => {
                tx.ignore_conflict(&message.id);
                continue;
            }
            Claim::Conflict { stored } => {
                if let Err(why) = handler.bury_conflict(&mut tx, &batch[index], stored).await {
                    return (tx.rollback().await, Processed::Again { batch, why });
                }
                conflicts += 1;
                continue;
            }
        };
        if !logs.is_empty() && begun.elapsed() > handler.config.batch.max_hold {
            let fitting = index;
            return (tx.rollback().await, Processed::TooLong { batch, fitting });
        }
        let key = batch[index].delivery.order_key.as_deref();
        let generation = batch[index].generation();
        calls.note(message.id.as_str(), attempt);
        let started = Instant::now();
        let called = handler
            .component
            .call_in_generation(tx, message, key, attempt, generation)
            .await;
        calling += started.elapsed();
        executed_max = executed_max.max(called.executed);
        fault::point_of("after-handler", &batch[index].message.id);
        match classify(&called) {
            Outcome::Commit => {
                outbox.extend(handler.outbox_rows(message, called.published));
                logs.push(called.log);
            }
            Outcome::Again(why) => {
                called.log.emit_rolled_back();
                return (roll_back(called.tx).await, Processed::Again { batch, why });
            }
            Outcome::Failed(failure) => {
                called.log.emit_rolled_back();
                let index = Some(index);
                return (
                    roll_back(called.tx).await,
                    Processed::Failed {
                        batch,
                        index,
                        failure,
                    },
                );
            }
        }
        tx = match called.tx {
            Some(tx) => tx,
            None => {
                return (
                    None,
                    Processed::Again {
                        batch,
                        why: lost_connection(),
                    },
                );
            }
        };
    }

    // Commit: the effects, the outbox rows and the claims together, or none of them.
    if let Err(why) = tx.write_outbox(&outbox).await {
        return (tx.rollback().await, Processed::Again { batch, why });
    }
    if let Err(why) = handler.unmark(&mut tx, &batch).await {
        return (tx.rollback().await, Processed::Again { batch, why });
    }
    fault::point("before-commit");
    let Ended { connection, result } = tx.commit().await;
    let committed = match result {
        Ok(committed) => committed,
        Err(CommitError::Refused(error)) => {
            let failure = Failure::refused_at_commit(&error);
            return (
                connection,
                Processed::Failed {
                    batch,
                    index: None,
                    failure,
                },
            );
        }
        // The claims tell, in the next run, what an unknown commit was.
        Err(CommitError::Busy(text)) => {
            return (
                connection,
                Processed::Again {
                    batch,
                    why: StoreError::Busy(text),
                },
            );
        }
        Err(CommitError::Unknown(text)) => {
            return (
                connection,
                Processed::Again {
                    batch,
                    why: StoreError::Unavailable(text),
                },
            );
        }
    };
    calls.committed();
    fault::point("after-commit");
    let took = Took {
        size: batch.len(),
        calls: logs.len(),
        calling,
        executed_max,
        held: begun.elapsed(),
    };
    // The locks are gone: the next batch may begin while this one is acknowledged.
    drop(turn);
    handler.batch_committed(&took, conflicts);
    for log in logs {
        log.emit_committed();
    }

    // Ack.
    for member in batch {
        fault::point_of("before-ack", &member.message.id);
        if let Err(error) = member.answer(&committed).await {
            // Nothing is lost: the source delivers it again, and the claim finds it a duplicate.
            tracing::warn!(handler = %handler.name, %error, "could not acknowledge");
        }
        fault::point("after-ack");
    }
    (connection, Processed::Settled)
}

impl Member {
    pub(super) fn claim_request(&self) -> ClaimRequest {
        ClaimRequest {
            id: self.message.id.clone(),
            payload_hash: self.payload_hash,
        }
    }

    /// Answers the source with what the commit proves.
    async fn answer(self, committed: &Committed) -> Result<(), SourceError> {
        if committed.parked.covers(&self.delivery.incoming.position) {
            self.delivery.term(&committed.parked).await
        } else {
            self.delivery
                .ack(&self.message.id, &committed.settled)
                .await
        }
    }
}

/// Takes the rows of the embedded queue among the deliveries of `batch`, and drops the members whose row is not to be had.
async fn take_rows(
    tx: &mut Tx,
    batch: &mut Vec<Member>,
    is_ordered: bool,
) -> Result<(), StoreError> {
    let numbers: Vec<i64> = batch
        .iter()
        .filter_map(|member| member.delivery.queue_row)
        .collect();
    if numbers.is_empty() {
        return Ok(());
    }
    let taken = match is_ordered {
        false => tx.take_queue_rows(&numbers).await?,
        true => tx.take_due_queue_rows(&numbers).await?,
    };
    let taken: HashSet<i64> = taken.into_iter().collect();
    let is_ours = |member: &Member| {
        let row = member.delivery.queue_row;
        row.is_none_or(|number| taken.contains(&number))
    };
    let (ours, others): (Vec<Member>, Vec<Member>) =
        std::mem::take(batch).into_iter().partition(is_ours);
    *batch = ours;
    if is_ordered {
        // Gone, or waiting in the table until it is due.
        others
            .into_iter()
            .for_each(|member| member.delivery.let_go());
    }
    Ok(())
}

fn lost_connection() -> StoreError {
    StoreError::Unavailable("the connection was closed during the call".into())
}

async fn roll_back(tx: Option<Tx>) -> Option<Connection> {
    match tx {
        Some(tx) => tx.rollback().await,
        None => None,
    }
}
