//! Messages from before the window: whether they were processed can't be told, because their claims may have been pruned.
//!
//! **Invariant**: decided inside the message's transaction, after its claim, by the database's clock.

use super::HandlerContext;
use super::park::letter;
use super::policy::Failure;
use super::process::Member;
use crate::config::Late;
use crate::message::ComponentDigest;
use crate::store::{Claim, ClaimAs, StoreError, Tx, instant_to_text};

/// The last year that a reason shows.
const YEAR_MAX: i64 = 9_999;

impl HandlerContext {
    /// Claims the ids of a batch, as far as its messages want that, and ends the letters of those that are replayed. Those
    /// that are too old become dead letters; they count as duplicates of dead ones, and their number is returned, too.
    ///
    /// What hapax carries itself is never too old: it was not processed, or a person wants it to run.
    pub(super) async fn claim(
        &self,
        tx: &mut Tx,
        batch: &[Member],
        component: ComponentDigest,
    ) -> Result<(Vec<Claim>, usize), StoreError> {
        let mut claims = self.claim_with_replays(tx, batch, component).await?;
        let (Some(window), Late::Park) = (self.config.dedup.window(), self.config.late) else {
            return Ok((claims, 0));
        };
        let edge = tx.now().await?.before(window);
        let mut buried = 0;
        for (member, claim) in batch.iter().zip(&mut claims) {
            // With failures charged to it, it is known to have run here and to have come to nothing.
            if *claim != (Claim::Fresh { attempt: 1 }) || member.delivery.carried.is_some() {
                continue;
            }
            let Some(published_at) = member.message.incoming.published_at else {
                continue;
            };
            if (published_at.seconds, published_at.nanoseconds) >= (edge.seconds, edge.nanoseconds)
            {
                continue;
            }
            let shown = instant_to_text(published_at, YEAR_MAX).unwrap_or_default();
            let failure = Failure::too_old(&shown, window);
            let id = Some(&member.message.id);
            let letter = letter(self, &member.delivery, id, &failure, component);
            tx.bury_claimed(&letter).await?;
            *claim = Claim::Duplicate {
                outcome: ClaimAs::Dead,
            };
            buried += 1;
        }
        if buried > 0 {
            tracing::warn!(handler = %self.name, buried, window = ?window, "dead letters: too old");
        }
        Ok((claims, buried))
    }
}
