//! The guarantee, on one page: begin, claim, handle, commit, ack.
//!
//! **Invariant**: a delivery is acknowledged only with the proof that this transaction's commit gave.
//! **Invariant**: nothing here is raced or dropped half-way: each step is awaited to its end.

use super::HandlerContext;
use super::policy::{Failure, Outcome, classify};
use crate::fault;
use crate::message::{Message, ShortHash};
use crate::source::Delivery;
use crate::store::{Claim, ClaimRequest, CommitError, Connection, OutboxRow, StoreError, Tx};

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
    /// Nothing of it stays, because of the member at `index`.
    Failed {
        /// All members, in their order.
        batch: Vec<Member>,
        /// Whose failure it is.
        index: usize,
        /// What the member is charged with.
        failure: Failure,
    },
}

/// Takes `batch` through one transaction on `connection`. Gives the connection back if it can be used again.
pub(crate) async fn process(
    handler: &HandlerContext,
    connection: Connection,
    mut batch: Vec<Member>,
) -> (Option<Connection>, Processed) {
    // Begin.
    let mut tx = match Tx::begin(connection).await {
        Ok(tx) => tx,
        Err(why) => return (None, Processed::Again { batch, why }),
    };

    // A queue's rows are taken here, and come back if the transaction does not commit. What another host has in hand
    // is its own.
    let mut index = 0;
    while let Some(member) = batch.get(index) {
        match take_row(&mut tx, &member.delivery).await {
            Ok(true) => index += 1,
            Ok(false) => drop(batch.remove(index)),
            Err(why) => return (tx.rollback().await, Processed::Again { batch, why }),
        }
    }
    if batch.is_empty() {
        return (tx.rollback().await, Processed::Settled);
    }

    // Claim.
    let requests: Vec<ClaimRequest> = batch
        .iter()
        .map(|member| ClaimRequest {
            id: member.message.id.clone(),
            payload_hash: member.payload_hash,
        })
        .collect();
    let digest = Some(handler.component.digest());
    let claims = match tx.claim(&handler.consumer, &requests, digest).await {
        Ok(claims) => claims,
        Err(why) => return (tx.rollback().await, Processed::Again { batch, why }),
    };
    fault::point("after-claim");

    // Handle what is neither a duplicate nor in conflict.
    let mut outbox: Vec<OutboxRow> = Vec::new();
    let mut logs = Vec::new();
    let mut taking_effect = 0;
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
                let failure = Failure::conflict(message, batch[index].payload_hash, stored);
                return (
                    tx.rollback().await,
                    Processed::Failed {
                        batch,
                        index,
                        failure,
                    },
                );
            }
        };
        let called = handler.component.call(tx, message, None, attempt).await;
        fault::point("after-handler");
        match classify(&called) {
            Outcome::Commit => {
                taking_effect += 1;
                outbox.extend(handler.outbox_rows(message, called.published));
                logs.push(called.log);
            }
            Outcome::Again(why) => {
                called.log.emit_rolled_back();
                return (roll_back(called.tx).await, Processed::Again { batch, why });
            }
            Outcome::Failed(failure) => {
                called.log.emit_rolled_back();
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
                let why =
                    StoreError::Unavailable("the connection was closed during the call".into());
                return (None, Processed::Again { batch, why });
            }
        };
    }

    // Commit: the effects, the outbox rows and the claims together, or none of them.
    if let Err(why) = tx.write_outbox(&outbox).await {
        return (tx.rollback().await, Processed::Again { batch, why });
    }
    fault::point("before-commit");
    let ended = tx.commit().await;
    let committed = match ended.result {
        Ok(committed) => committed,
        Err(CommitError::Refused(error)) => {
            // Which member is at fault can only be told in a batch of one.
            let failure = Failure::refused_at_commit(&error);
            return (
                ended.connection,
                Processed::Failed {
                    batch,
                    index: 0,
                    failure,
                },
            );
        }
        // The claims tell, in the next run, what an unknown commit was.
        Err(CommitError::Busy(text)) => {
            return (
                ended.connection,
                Processed::Again {
                    batch,
                    why: StoreError::Busy(text),
                },
            );
        }
        Err(CommitError::Unknown(text)) => {
            return (
                ended.connection,
                Processed::Again {
                    batch,
                    why: StoreError::Unavailable(text),
                },
            );
        }
    };
    fault::point("after-commit");
    handler.settled(taking_effect, batch.len() as u64 - taking_effect);
    for log in logs {
        log.emit_committed();
    }

    // Ack.
    for member in batch {
        fault::point("before-ack");
        if let Err(error) = member
            .delivery
            .ack(&member.message.id, &committed.settled)
            .await
        {
            // Nothing is lost: the source delivers it again, and the claim finds it a duplicate.
            tracing::warn!(handler = %handler.name, message_id = %member.message.id, %error, "could not acknowledge");
        }
        fault::point("after-ack");
    }
    (ended.connection, Processed::Settled)
}

/// Takes the delivery's row of the embedded queue. True for other sources, which have none.
pub(super) async fn take_row(tx: &mut Tx, delivery: &Delivery) -> Result<bool, StoreError> {
    match delivery.queue_row {
        None => Ok(true),
        Some(number) => tx.take_queue_row(number).await,
    }
}

async fn roll_back(tx: Option<Tx>) -> Option<Connection> {
    match tx {
        Some(tx) => tx.rollback().await,
        None => None,
    }
}
