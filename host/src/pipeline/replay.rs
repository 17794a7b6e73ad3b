//! Claims, and what a replay adds to them: its letter, its dead claim and its row in the queue end with its run's commit.
//!
//! **Invariant**: a letter is deleted only in the transaction in which its message takes effect, or turns out to have had it.

use super::HandlerContext;
use super::park::letter;
use super::policy::Failure;
use super::process::Member;
use crate::config::Dedup;
use crate::message::{ComponentDigest, MessageId, ShortHash};
use crate::source::Delivery;
use crate::store::{Claim, ClaimAs, ClaimRequest, Replay, StoreError, Tx};

impl Delivery {
    /// Returns the number of the dead letter that this delivery replays.
    pub(super) fn letter(&self) -> Option<i64> {
        self.carried.as_ref()?.dead_letter
    }

    /// True if the message runs without a claim because its id is taken.
    pub(super) fn is_forced(&self) -> bool {
        self.carried.as_ref().is_some_and(|carried| carried.forced)
    }

    /// Returns the name of the source that delivered the message first; `configured` is the handler's own.
    pub(super) fn source<'a>(&'a self, configured: &'a str) -> &'a str {
        self.carried
            .as_ref()
            .map_or(configured, |carried| &carried.source)
    }
}

impl Member {
    /// Returns what the ids of its published messages are derived from besides the message: a forced run is another run.
    pub(super) fn generation(&self) -> Option<i64> {
        self.delivery.letter().filter(|_| self.delivery.is_forced())
    }
}

impl HandlerContext {
    /// True if the message's id is claimed when it runs.
    pub(super) fn claims(&self, delivery: &Delivery) -> bool {
        self.config.dedup != Dedup::Off && !delivery.is_forced()
    }

    /// Claims the ids of a batch, as far as its messages want that, and ends the letters of those that are replayed. A replay
    /// whose letter was dropped counts as a duplicate.
    pub(super) async fn claim_with_replays(
        &self,
        tx: &mut Tx,
        batch: &[Member],
        component: ComponentDigest,
    ) -> Result<Vec<Claim>, StoreError> {
        let replays: Vec<Replay> = batch
            .iter()
            .filter_map(|member| {
                Some(Replay {
                    letter: member.delivery.letter()?,
                    claim: self
                        .claims(&member.delivery)
                        .then(|| (member.message.id.clone(), member.payload_hash)),
                })
            })
            .collect();
        if replays.is_empty() {
            let all: Vec<&Member> = batch.iter().collect();
            return self.claim_some(tx, &all, component).await;
        }

        let found = tx.begin_replays(&self.consumer, &replays).await?;
        let (there, dropped): (Vec<&Member>, Vec<&Member>) = batch.iter().partition(|member| {
            member
                .delivery
                .letter()
                .is_none_or(|number| found.contains(&number))
        });
        for member in dropped {
            tx.let_go(&member.message.id);
        }
        let claimed = self.claim_some(tx, &there, component).await?;
        let ended: Vec<i64> = there
            .iter()
            .zip(&claimed)
            .filter(|(_, claim)| {
                !matches!(claim, Claim::Conflict { .. }) || self.ignores_conflicts()
            })
            .filter_map(|(member, _)| member.delivery.letter())
            .collect();
        tx.end_replays(&self.consumer, &ended).await?;
        let mut claimed = claimed.into_iter();
        Ok(batch
            .iter()
            .filter_map(|member| match member.delivery.letter() {
                Some(number) if !found.contains(&number) => Some(Claim::Duplicate {
                    outcome: ClaimAs::Done,
                }),
                _ => claimed.next(),
            })
            .collect())
    }

    /// Claims the ids of members that want it; the others' are fresh.
    async fn claim_some(
        &self,
        tx: &mut Tx,
        members: &[&Member],
        component: ComponentDigest,
    ) -> Result<Vec<Claim>, StoreError> {
        let (claiming, free): (Vec<&Member>, Vec<&Member>) = members
            .iter()
            .partition(|member| self.claims(&member.delivery));
        let mut fresh = Vec::new();
        if !free.is_empty() {
            let ids: Vec<MessageId> = free
                .iter()
                .map(|member| member.message.id.clone())
                .collect();
            fresh = tx.go_without_claims(&self.consumer, &ids).await?;
        }
        if claiming.is_empty() {
            return Ok(fresh);
        }
        let requests: Vec<ClaimRequest> = claiming
            .iter()
            .map(|member| member.claim_request())
            .collect();
        let claimed = tx.claim(&self.consumer, &requests, Some(component)).await?;
        let (mut fresh, mut claimed) = (fresh.into_iter(), claimed.into_iter());
        Ok(members
            .iter()
            .filter_map(|member| {
                if self.claims(&member.delivery) {
                    claimed.next()
                } else {
                    fresh.next()
                }
            })
            .collect())
    }

    /// Keeps a message whose id is claimed with another payload as a dead letter of that class. Its id is taken, so the
    /// letter needs no claim and commits with its batch.
    pub(super) async fn bury_conflict(
        &self,
        tx: &mut Tx,
        member: &Member,
        stored: ShortHash,
        component: ComponentDigest,
    ) -> Result<(), StoreError> {
        let failure = Failure::conflict(&member.message, member.payload_hash, stored);
        let id = Some(&member.message.id);
        let letter = letter(self, &member.delivery, id, &failure, component);
        match member.delivery.letter() {
            Some(number) => tx.bury_again(number, &letter, None).await.map(|_| ()),
            None => tx.bury(&letter, None).await.map(|_| ()),
        }
    }
}
