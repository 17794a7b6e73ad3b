//! The guarantee, on one page: begin, claim, handle, commit, ack.
//!
//! **Invariant**: a delivery is acknowledged only with the proof that this transaction's commit gave.
//! **Invariant**: nothing here is raced or dropped half-way: each step is awaited to its end.

use std::time::Duration;

use super::batch::Took;
use super::early::EarlyRuns;
use super::handle::{Ran, Run};
use super::policy::Failure;
use super::trace::RunTrace;
use super::{HandlerContext, order};
use crate::fault;
use crate::message::{ComponentDigest, Message, ShortHash};
use crate::metrics::{Stage, Stages};
use crate::source::{Delivery, SourceError};
use crate::store::{
    ClaimRequest, CommitError, Committed, Connection, Ended, Misled, StoreError, Tx,
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
    /// Its statements are waited for: in an earlier run an answer that was given ahead was wrong.
    pub(crate) is_awaited: bool,
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
    /// Nothing of it stays, because a handler was told something that is not so; nobody is to blame.
    Misled {
        /// All members, in their order.
        batch: Vec<Member>,
        /// Whose handler.
        misled: Misled,
    },
    /// Nothing of it stays, because of some members.
    Failed {
        /// All members, in their order.
        batch: Vec<Member>,
        /// Whose failure it is.
        failing: Failing,
        /// What is charged, if the batch has only one member.
        failure: Failure,
        /// The code that failed.
        component: ComponentDigest,
    },
}

/// Whose failure it is that nothing of a batch stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failing {
    /// Only runs of smaller batches can tell.
    Unknown,
    /// The member's at this place; the handler was not called with those behind it.
    At(usize),
    /// The members' at these places, in order; the handler was called with all and says that the others are well.
    These(Vec<usize>),
}

impl Processed {
    /// What a refused commit means.
    fn refused(batch: Vec<Member>, error: CommitError, component: ComponentDigest) -> Self {
        match error {
            CommitError::Refused(error) => Self::Failed {
                batch,
                failing: Failing::Unknown,
                failure: Failure::refused_at_commit(&error),
                component,
            },
            // The claims tell, in the next run, what an unknown commit was.
            CommitError::Busy(_) | CommitError::Unknown(_) => Self::Again {
                batch,
                why: error.into(),
            },
        }
    }
}

/// Takes `batch`, in which no id occurs twice, through one transaction on `connection`. What of it ran before is in `early`. Gives the
/// connection back if it can be used again.
pub(crate) async fn process(
    handler: &HandlerContext,
    connection: Connection,
    mut batch: Vec<Member>,
    early: EarlyRuns<'_>,
) -> (Option<Connection>, Processed) {
    let mut stages = Stages::begin();
    let mut trace = RunTrace::begin(handler);
    // Begin: batches of one handler never overlap, or they would deadlock.
    let baton = handler.baton_of(&batch);
    let turn = handler.turn(baton).await;
    // Taken once: what is recorded with the claims is what runs, also if another one is swapped in meanwhile.
    let component = handler.component();
    let digest = component.digest();
    let mut tx = match Tx::begin_with_baton(connection, &handler.config.baton, baton).await {
        Ok(tx) => tx,
        Err(why) => return (None, Processed::Again { batch, why }),
    };
    let mut took = Took::begin_after(early.took, batch.len());
    stages.ends(Stage::Begin);
    trace.ends(Stage::Begin);

    // A queue's rows are taken here, and come back if the transaction does not commit. What another host has in hand
    // is its own.
    if let Err(why) = handler.take_rows(&mut tx, &mut batch).await {
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

    trace.has(&mut batch, digest);

    // Claim. What is too old to tell whether it was processed is buried here, and counts as claimed elsewhere.
    let (claims, too_old) = match handler.claim(&mut tx, &batch, digest).await {
        Ok(claims) => claims,
        Err(why) => return (tx.rollback().await, Processed::Again { batch, why }),
    };
    stages.ends(Stage::Claim);
    trace.ends(Stage::Claim);
    took.claimed();
    fault::point("after-claim");

    // Handle what is neither a duplicate nor in conflict, one by one, or all in one call.
    let calls = fault::Calls::begin();
    let mut run = Run::begin(handler, &component, &mut took, &mut trace, &calls, early);
    let (mut tx, batch) = match run.handle(tx, batch, claims).await {
        Ok(handled) => handled,
        Err(ended) => return *ended,
    };
    let Ran {
        outbox,
        logs,
        conflicts,
    } = run.end();

    // What handlers were told ahead is compared before anything is believed or committed.
    if let Err(misled) = handler.settle(&mut tx).await {
        return handler.misled(Some(tx), batch, misled).await;
    }
    took.ran();
    stages.ends(Stage::Handle);
    trace.ends(Stage::Handle);

    // Commit: the effects, the outbox rows and the claims together, or none of them.
    // Rows of the host's own are written by the login, after what the handlers left behind was found to be in order.
    if (!outbox.is_empty() || batch.iter().any(|member| member.delivery.is_suspect))
        && let Err(error) = tx.end_role().await
    {
        return (
            tx.rollback().await,
            Processed::refused(batch, error, digest),
        );
    }
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
        Err(error) => return (connection, Processed::refused(batch, error, digest)),
    };
    calls.committed();
    fault::point("after-commit");
    took.committed();
    stages.ends(Stage::Commit);
    trace.ends(Stage::Commit);
    trace.committed();
    // The locks are gone: the next batch may begin while this one is acknowledged.
    drop(turn);
    handler.batch_committed(&took, too_old, conflicts);
    handler.wake_relay(&outbox);
    logs.committed();

    // Ack.
    for (index, member) in batch.into_iter().enumerate() {
        fault::point_of("before-ack", &member.message.id);
        trace.answers(index);
        let answered = member.answer(&committed).await;
        trace.answered(index, answered.as_ref().err());
        if let Err(error) = answered {
            // Nothing is lost: the source delivers it again, and the claim finds it a duplicate.
            tracing::warn!(handler = %handler.name, %error, "could not acknowledge");
        }
        fault::point("after-ack");
    }
    stages.ends(Stage::Ack);
    trace.ends(Stage::Ack);
    stages.tell(&handler.metrics);
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
