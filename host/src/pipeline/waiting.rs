//! Messages that wait long for a retry: they wait in the store, where they take no place in hand and outlive the host.
//!
//! **Invariant**: a message is acknowledged at its broker only after the commit that put it into the consumer's own queue.

use std::time::Duration;

use super::lane::{Lane, Pause, Report};
use super::process::Member;
use crate::message::Carried;
use crate::store::{Connection, PutOff, StoreError, Tx};

/// The longest wait of a message in hand; it is kept alive at its source meanwhile.
const HELD_MAX: Duration = Duration::from_secs(1);

impl Lane {
    /// Has a message wait for its retry: in hand if it is short or if its order asks for that, else in the store.
    pub(super) async fn wait_for_retry(
        &mut self,
        member: Member,
        wait: Duration,
        report: &mut Report,
    ) {
        // A stream's messages of one key wait in hand, or newer ones would overtake them.
        let is_ordered = self.handler.config.order.is_some();
        match member.delivery.queue_row {
            _ if wait <= HELD_MAX => report.retries.push((wait, member.delivery)),
            Some(number) => {
                let key = member.delivery.order_key.as_deref().map(str::to_owned);
                let row = PutOff { number, key, wait };
                if self.write_put_off(&[row]).await.is_some() {
                    member.delivery.let_go();
                }
            }
            None if is_ordered => report.retries.push((wait, member.delivery)),
            None => self.carry(member, wait).await,
        }
    }

    /// Moves a message from its broker into the consumer's own queue. When the host drains before that succeeds, it is dropped,
    /// and its broker delivers it again.
    async fn carry(&mut self, member: Member, wait: Duration) {
        let mut pause = Pause::default();
        loop {
            let Some(connection) = self.connection().await else {
                return;
            };
            let why = match self.try_carry(connection, &member, wait).await {
                Ok(committed) => {
                    let Member {
                        delivery, message, ..
                    } = member;
                    if let Err(error) = delivery.ack(&message.id, &committed.settled).await {
                        // It comes again, fails again or is found done: the queue holds it once.
                        tracing::warn!(handler = %self.handler.name(), %error, "could not acknowledge");
                    }
                    return;
                }
                Err(why) => why,
            };
            self.outage.note(&self.handler, &why);
            if self.drain.is_draining() {
                return;
            }
            pause.wait().await;
        }
    }

    async fn try_carry(
        &mut self,
        connection: Connection,
        member: &Member,
        wait: Duration,
    ) -> Result<crate::store::Committed, StoreError> {
        let mut tx = Tx::begin(connection).await?;
        let incoming = &member.delivery.incoming;
        let carried = Carried {
            source: member.message.source.clone(),
            position: incoming.position.clone(),
            published_at: incoming.published_at,
            message_id: Some(member.message.id.clone()),
            queue_id: incoming.queue_id.clone(),
            dead_letter: None,
            forced: false,
        };
        let consumer = self.handler.consumer().to_owned();
        if let Err(why) = tx.carry(&consumer, &carried, incoming, wait).await {
            self.connection = tx.rollback().await;
            return Err(why);
        }
        let ended = tx.commit().await;
        self.connection = ended.connection;
        ended.result.map_err(StoreError::from)
    }
}
