//! Keeping a message as a dead letter, in a transaction of its own.

use super::HandlerContext;
use super::policy::Failure;
use super::told::Became;
use crate::fault;
use crate::message::{ComponentDigest, Message, MessageId, ShortHash};
use crate::source::Delivery;
use crate::store::{Claim, ClaimRequest, Connection, DeadLetter, Reburied, StoreError, Tx};

/// A message that is given up on.
#[derive(Debug)]
pub(super) struct Doomed {
    pub(super) delivery: Delivery,
    /// Absent if no usable id was found.
    pub(super) identity: Option<(Message, ShortHash)>,
    pub(super) failure: Failure,
    /// The code that failed, or would have run.
    pub(super) component: ComponentDigest,
    /// How often it has failed; absent if it did not run.
    pub(super) attempt: Option<u32>,
}

/// How the parking ended.
#[derive(Debug)]
pub(super) enum Parking {
    /// The message is in the dead letters, or was found done, or is another host's.
    Settled,
    /// Nothing was written: try again after a pause.
    Again(Box<Doomed>, StoreError),
}

/// Writes the dead letter and answers the source.
///
/// A dead letter is a claim: the id is claimed first, so a message is never both processed and dead. `missing-id` and
/// `conflict` have no id to claim; the store keeps them once for each position in their source.
pub(super) async fn park(
    handler: &HandlerContext,
    connection: Connection,
    doomed: Box<Doomed>,
) -> (Option<Connection>, Parking) {
    let mut tx = match Tx::begin(connection).await {
        Ok(tx) => tx,
        Err(why) => return (None, Parking::Again(doomed, why)),
    };
    if let Some(number) = doomed.delivery.queue_row {
        // Waited for: it may still be in the hands of this message's own last run, whose connection was cut off and which the
        // server has not noticed yet. Left alone, the message would come again, and run beyond its attempts.
        match tx.wait_for_queue_row(number).await {
            Ok(true) => {}
            Ok(false) => return (tx.rollback().await, Parking::Settled),
            Err(why) => return (tx.rollback().await, Parking::Again(doomed, why)),
        }
    }
    let is_conflict = doomed.failure.class == crate::message::FailureClass::Conflict;
    // Without claims the same id may still succeed later: the letter is one for its position.
    let claims = handler.claims(&doomed.delivery);
    let request = match &doomed.identity {
        Some((message, payload_hash)) if !is_conflict && claims => Some(ClaimRequest {
            id: message.id.clone(),
            payload_hash: *payload_hash,
        }),
        _ => None,
    };
    let id = doomed.identity.as_ref().map(|(message, _)| &message.id);
    let letter = letter(
        handler,
        &doomed.delivery,
        id,
        &doomed.failure,
        doomed.component,
    );
    let buried = match doomed.delivery.letter() {
        Some(number) => tx.bury_again(number, &letter, request.as_ref()).await,
        None => match tx.bury(&letter, request.as_ref()).await {
            Ok(Some(Claim::Duplicate { .. })) => Ok(Reburied::Succeeded),
            Ok(Some(Claim::Conflict { stored })) => Ok(Reburied::Conflict { stored }),
            Ok(Some(Claim::Fresh { .. }) | None) => Ok(Reburied::Rewritten),
            Err(why) => Err(why),
        },
    };
    let buried = match buried {
        Ok(buried) => buried,
        Err(why) => return (tx.rollback().await, Parking::Again(doomed, why)),
    };
    if let (Reburied::Conflict { stored }, Some((message, hash))) = (&buried, &doomed.identity) {
        // Another payload under this id was claimed since this one last ran.
        let failure = Failure::conflict(message, *hash, *stored);
        let connection = tx.rollback().await;
        let doomed = Box::new(Doomed { failure, ..*doomed });
        let why = StoreError::Busy("the id was claimed with another payload meanwhile".into());
        return (connection, Parking::Again(doomed, why));
    }
    fault::point("before-commit");
    let ended = tx.commit().await;
    let committed = match ended.result {
        Ok(committed) => committed,
        Err(error) => {
            let why = error.into();
            return (ended.connection, Parking::Again(doomed, why));
        }
    };
    fault::point("after-commit");
    let Doomed {
        delivery,
        identity,
        failure,
        component,
        attempt,
    } = *doomed;
    let id = identity.as_ref().map(|(message, _)| &message.id);
    let answered = match (&buried, id) {
        (Reburied::Dropped, _) => {
            fault::point("before-ack");
            delivery.term(&committed.parked).await
        }
        (Reburied::Succeeded, Some(id)) => {
            // Another host finished it while this one gave up.
            fault::point("before-ack");
            handler.settled(0, 1);
            handler.tell(Some(id), || Became::Duplicate { is_dead: false });
            delivery.ack(id, &committed.settled).await
        }
        _ => {
            handler.dead(failure.class, 1);
            tracing::warn!(
                handler = %handler.name,
                component = %component,
                message_id = id.map(MessageId::as_str),
                subject = %crate::text::one_line(&delivery.incoming.subject),
                position = %delivery.incoming.position,
                attempt,
                trace_id = crate::telemetry::context::trace_id(&delivery.incoming.headers)
                    .map(tracing::field::display),
                class = %failure.class,
                reason = %crate::text::one_line(&failure.reason),
                "dead letter"
            );
            handler.tell(id, || Became::Dead {
                class: failure.class,
                reason: failure.reason.clone(),
            });
            fault::point("before-ack");
            delivery.term(&committed.parked).await
        }
    };
    fault::point("after-ack");
    if let Err(error) = answered {
        // The source delivers it again; the claim, or the position, will be found.
        tracing::warn!(handler = %handler.name, %error, "could not answer for a dead letter");
    }
    (ended.connection, Parking::Settled)
}

/// Puts a dead letter together.
pub(super) fn letter(
    handler: &HandlerContext,
    delivery: &Delivery,
    id: Option<&MessageId>,
    failure: &Failure,
    component: ComponentDigest,
) -> DeadLetter {
    let incoming = &delivery.incoming;
    DeadLetter {
        consumer: handler.consumer.clone(),
        handler: handler.name.clone(),
        message_id: id.cloned(),
        source: delivery.source(&handler.config.source).to_owned(),
        position: incoming.position.clone(),
        subject: incoming.subject.clone(),
        headers: incoming.headers.clone(),
        content_type: incoming.content_type.clone(),
        payload: incoming.payload.clone(),
        published_at: incoming.published_at,
        queue_id: incoming.queue_id.clone(),
        class: failure.class,
        reason: failure.reason.clone(),
        component: Some(component),
        order_key: delivery.order_key.as_deref().map(str::to_owned),
    }
}
