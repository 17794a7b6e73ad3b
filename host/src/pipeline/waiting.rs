//! Messages that wait long for a retry: they wait in the store, where they take no place in hand and outlive the host.
//!
//! **Invariant**: a message is acknowledged at its broker only after the commit that put it into the consumer's own queue.

use std::time::Duration;

use super::lane::{Lane, Pause, Report};
use super::order;
use super::process::Member;
use crate::message::Carried;
use crate::store::{Committed, Connection, StoreError, Tx};

/// The longest wait of a message in hand.
pub(super) const HELD_MAX: Duration = Duration::from_secs(1);

impl Lane {
    /// Has a message wait for its retry: in hand or in the store. With `order_by` a queue's row always waits in its table,
    /// where other hosts find it, and a stream's message in hand, or newer ones of its key would overtake it.
    pub(super) async fn wait_for_retry(
        &mut self,
        member: Member,
        wait: Duration,
        report: &mut Report,
    ) {
        let is_ordered = self.handler.config.order.is_some();
        let is_short = wait <= self.held_max;
        match order::put_off(&member.delivery, wait) {
            Some(row) if is_ordered || !is_short => {
                if self.write_put_off(&[row]).await.is_some() {
                    member.delivery.let_go();
                }
            }
            None if !is_ordered && !is_short => self.carry(member, wait).await,
            _ => report.retries.push((wait, member.delivery)),
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
    ) -> Result<Committed, StoreError> {
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
