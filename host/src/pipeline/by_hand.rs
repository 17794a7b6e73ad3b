//! A lane that is worked by hand, without a dispatcher: whoever has it decides what is delivered when, and may drop it at any point as
//! if its host had died there. `hapax test` proves handlers by it.
//!
//! **Invariant**: what happens to a batch is what happens to it in a host; only waits are left out.

use std::sync::Arc;
use std::time::Duration;

use super::HandlerContext;
use super::dispatch::Drain;
use super::lane::Lane;
use crate::source::Delivery;

/// One lane, and its connection.
pub(crate) struct ByHand {
    lane: Lane,
}

/// Deliveries that are neither answered nor dropped.
#[derive(Debug, Default)]
pub(crate) struct NotDone {
    /// They failed, were charged, and are to run again.
    pub(crate) retries: Vec<Delivery>,
    /// They did not run, because they stand behind an earlier message of their key.
    pub(crate) behind: Vec<Delivery>,
}

impl ByHand {
    /// Makes a lane; it connects when it is first given something.
    pub(crate) fn new(handler: Arc<HandlerContext>) -> Self {
        let mut lane = Lane::new(handler, Drain::never());
        lane.pause_min = Duration::ZERO;
        lane.held_max = Duration::MAX;
        Self { lane }
    }

    /// Takes deliveries through, as one batch if they can be one.
    ///
    /// With `order_by` whoever calls keeps the order: what is not done comes again before others of its key.
    ///
    /// *Cancellation*: dropped before it has ended, and this lane after it, it is as if the host had died: what is not
    /// committed is rolled back by the database, and nothing more is answered.
    pub(crate) async fn take(&mut self, mut deliveries: Vec<Delivery>) -> NotDone {
        if let Some(order) = &self.lane.handler.config().order {
            for delivery in &mut deliveries {
                delivery.order_key = order.by.find(&delivery.incoming).map(Arc::from);
            }
        }
        let report = self.lane.take_through(deliveries).await;
        NotDone {
            retries: report
                .retries
                .into_iter()
                .map(|(_, delivery)| delivery)
                .collect(),
            behind: report.behind,
        }
    }
}
