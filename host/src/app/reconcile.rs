//! Reconciliation: what the broker counts as done is compared with the claims, so that effects that a restore or a failover has lost are
//! noticed.
//!
//! A host moves each handler's checkpoint along with the ack floor of its durable. A message is acknowledged after its claim is committed, and the
//! checkpoint is written after that into the same database: whatever copy of it has the checkpoint has the claims. So on a session that
//! stays open the checkpoint just follows. On a new session the database may be an older copy, or another server: then each message
//! between checkpoint and ack floor is read again and its claim looked up before the checkpoint moves on.
//!
//! **Invariant**: a checkpoint never passes an acknowledged message without a claim, unless the operator rewinds beyond it.

use std::sync::Arc;
use std::time::{Duration, Instant as Moment};

use serde::Serialize;
use tokio::sync::{mpsc, watch};

use super::own_session;
use crate::config::{Dedup, HandlerConfig};
use crate::message::Instant;
use crate::source::SourceError;
use crate::source::jetstream::{AckFloor, Acknowledged};
use crate::store::{Checkpoint, Connection, Store, StoreError, instant_to_text};
use crate::text::one_line;

/// How often a host looks.
const INTERVAL: Duration = Duration::from_secs(5);
/// How many messages are looked at before a rest.
const PORTION: u64 = 500;
/// After a portion it rests for this many times what that took: messages that run come first.
const REST: u32 = 4;
/// How many messages `hapax status` looks at for each handler.
const STATUS_LOOKS_AT: u64 = 10_000;

/// Why nothing can be said now.
pub(super) enum Trouble {
    Source(SourceError),
    Store(StoreError),
}

impl From<SourceError> for Trouble {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// An acknowledged message without a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unclaimed {
    sequence: u64,
    published_at: Option<Instant>,
}

/// Acknowledged messages without a claim here: their effects are not in this database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unreconciled {
    /// How many.
    pub messages: u64,
    /// There are more messages than were looked at.
    pub at_least: bool,
    /// The number of the first in its stream.
    pub first_sequence: u64,
    /// When that was published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_published_at: Option<String>,
    /// The last message that the broker counts as done.
    pub ack_floor: u64,
}

/// Looks up the claims of the durable's messages from number `first` to `last`.
async fn unclaimed(
    connection: &mut Connection,
    handler: &HandlerConfig,
    acknowledged: &Acknowledged,
    stream: &str,
    first: u64,
    last: u64,
) -> Result<Vec<Unclaimed>, Trouble> {
    let edge = match handler.dedup.window() {
        // The claims of older ones may have been pruned.
        Some(window) => Some(connection.now().await?.before(window)),
        None => None,
    };
    let mut looked_at = Vec::new();
    for (sequence, incoming) in acknowledged.read(stream, first, last).await? {
        let published_at = incoming.published_at;
        let is_old = edge.zip(published_at).is_some_and(|(edge, at)| {
            (at.seconds, at.nanoseconds) < (edge.seconds, edge.nanoseconds)
        });
        // What has no id is never claimed: it is in the dead letters.
        if !is_old && let Ok(id) = handler.message_id.find(&incoming) {
            looked_at.push((
                id,
                Unclaimed {
                    sequence,
                    published_at,
                },
            ));
        }
    }
    let ids: Vec<_> = looked_at.iter().map(|(id, _)| id.clone()).collect();
    let lost: std::collections::HashSet<String> = connection
        .without_claim(&handler.consumer, &ids)
        .await?
        .into_iter()
        .collect();
    Ok(looked_at
        .into_iter()
        .filter(|(id, _)| lost.contains(id.as_str()))
        .map(|(_, message)| message)
        .collect())
}

/// Returns the message up to which all is known to be claimed.
async fn checkpoint(
    connection: &mut Connection,
    handler: &HandlerConfig,
    floor: &AckFloor,
) -> Result<(u64, bool), StoreError> {
    Ok(match connection.checkpoint(&handler.consumer).await? {
        Some(checkpoint) if checkpoint.stream == floor.stream => (checkpoint.sequence, true),
        // The stream was made anew, and counts from 1 again.
        Some(_) => (0, false),
        None => {
            // A durable that acknowledged nothing has nothing to lose. Claims that are there say nothing of what was acknowledged before
            // them: they may be of messages that came after the store was lost.
            let is_trusted = floor.acknowledged == 0;
            (if is_trusted { floor.sequence } else { 0 }, false)
        }
    })
}

/// Returns the acknowledged messages from the checkpoint to `last` (at most to the ack floor) that have no claim.
pub(super) async fn unreconciled(
    connection: &mut Connection,
    handler: &HandlerConfig,
    acknowledged: &Acknowledged,
    last: u64,
) -> Result<Option<Unreconciled>, Trouble> {
    if handler.dedup == Dedup::Off {
        return Ok(None);
    }
    let Some(floor) = acknowledged.floor().await? else {
        return Ok(None);
    };
    let (known, _) = checkpoint(connection, handler, &floor).await?;
    let first = (known + 1).max(floor.first_kept);
    let wanted = floor.sequence.min(last);
    let looked_at = wanted.min(first.saturating_add(STATUS_LOOKS_AT - 1));
    let mut messages = 0;
    let mut first_lost = None;
    let mut from = first;
    while from <= looked_at {
        let to = looked_at.min(from + PORTION - 1);
        let lost = unclaimed(connection, handler, acknowledged, &floor.stream, from, to).await?;
        messages += lost.len() as u64;
        first_lost = first_lost.or(lost.first().copied());
        from = to + 1;
    }
    Ok(first_lost.map(|lost| Unreconciled {
        messages,
        at_least: looked_at < wanted,
        first_sequence: lost.sequence,
        first_published_at: shown(lost.published_at),
        ack_floor: floor.sequence,
    }))
}

fn shown(at: Option<Instant>) -> Option<String> {
    at.and_then(|at| instant_to_text(at, 9_999).ok())
}

/// Says that what lies before message `sequence` is not asked for any more.
pub(super) async fn begin_at(
    connection: &mut Connection,
    handler: &HandlerConfig,
    acknowledged: &Acknowledged,
    sequence: u64,
) -> Result<(), Trouble> {
    let Some(floor) = acknowledged.floor().await? else {
        return Ok(());
    };
    let checkpoint = Checkpoint {
        stream: floor.stream,
        sequence: sequence.saturating_sub(1),
    };
    Ok(connection
        .set_checkpoint(&handler.consumer, &checkpoint)
        .await?)
}

/// One handler's stream beside its claims.
pub(super) struct Reconciled {
    handler: HandlerConfig,
    acknowledged: Acknowledged,
    /// On the session that is open now the claims were looked up as far as the ack floor.
    is_verified: bool,
    /// The first lost message that was told.
    told: Option<u64>,
}

impl Reconciled {
    pub(super) fn new(handler: &HandlerConfig, acknowledged: Acknowledged) -> Self {
        Self {
            handler: handler.clone(),
            acknowledged,
            is_verified: false,
            told: None,
        }
    }

    /// Moves the checkpoint on. True if there is more to look at.
    async fn step(&mut self, connection: &mut Connection) -> Result<bool, Trouble> {
        let Some(floor) = self.acknowledged.floor().await? else {
            return Ok(false);
        };
        let (known, is_written) = checkpoint(connection, &self.handler, &floor).await?;
        let is_trusted = self.is_verified || self.handler.dedup == Dedup::Off;
        let first = (known + 1).max(floor.first_kept);
        if is_trusted || first > floor.sequence {
            self.is_verified = true;
            let sequence = known.max(floor.sequence);
            if sequence > known || !is_written {
                self.write(connection, &floor, sequence).await?;
            }
            return Ok(false);
        }
        let last = floor.sequence.min(first + PORTION - 1);
        let lost = unclaimed(
            connection,
            &self.handler,
            &self.acknowledged,
            &floor.stream,
            first,
            last,
        )
        .await?;
        let Some(lost) = lost.first() else {
            self.write(connection, &floor, last).await?;
            self.is_verified = last == floor.sequence;
            return Ok(!self.is_verified);
        };
        if lost.sequence - 1 > known || !is_written {
            self.write(connection, &floor, lost.sequence - 1).await?;
        }
        if self.told != Some(lost.sequence) {
            self.told = Some(lost.sequence);
            tracing::error!(
                handler = %self.handler.name,
                consumer = %self.handler.consumer,
                first_sequence = lost.sequence,
                first_published_at = shown(lost.published_at).unwrap_or_default(),
                ack_floor = floor.sequence,
                hint = format!(
                    "`hapax status` counts them, `hapax rewind {} --to {}` has them take effect",
                    self.handler.name, lost.sequence
                ),
                "the broker counts messages as done that have no effect in this database: it may have been restored from an older \
                 backup, or a failover lost commits"
            );
        }
        Ok(false)
    }

    async fn write(
        &self,
        connection: &mut Connection,
        floor: &AckFloor,
        sequence: u64,
    ) -> Result<(), StoreError> {
        let checkpoint = Checkpoint {
            stream: floor.stream.clone(),
            sequence,
        };
        connection
            .set_checkpoint(&self.handler.consumer, &checkpoint)
            .await
    }
}

/// Whose checkpoint is kept.
pub(super) enum Reconciling {
    /// This one's from now on, instead of an earlier one of its handler.
    Begins(Box<Reconciled>),
    /// That of the handler with this name no more.
    Ends(String),
}

impl Reconciling {
    fn apply(self, all: &mut Vec<Reconciled>) {
        let name = match &self {
            Self::Begins(one) => &one.handler.name,
            Self::Ends(name) => name,
        };
        all.retain(|known| known.handler.name != *name);
        if let Self::Begins(one) = self {
            all.push(*one);
        }
    }
}

/// Keeps the checkpoints of this host's handlers, of which `changes` tells, until `stop`. What can't be done now is done later.
pub(super) async fn keep_reconciling(
    mut changes: mpsc::UnboundedReceiver<Reconciling>,
    store: Arc<Store>,
    mut stop: watch::Receiver<bool>,
) {
    let mut all: Vec<Reconciled> = Vec::new();
    let mut connection = None;
    loop {
        while let Ok(change) = changes.try_recv() {
            change.apply(&mut all);
        }
        let mut rest = INTERVAL;
        if all.is_empty() {
            connection = None;
        } else if connection.is_none() {
            match store.connect(&own_session("reconcile")).await {
                Ok(open) => {
                    connection = Some(open);
                    // It may be another server, or an older copy.
                    for one in &mut all {
                        one.is_verified = false;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "claims are not compared with the broker now")
                }
            }
        }
        if let Some(open) = &mut connection {
            for one in &mut all {
                let began = Moment::now();
                match one.step(open).await {
                    Ok(false) => {}
                    Ok(true) => rest = rest.min(began.elapsed() * REST),
                    Err(Trouble::Source(error)) => {
                        tracing::debug!(handler = %one.handler.name, why = %one_line(&error.to_string()), "claims are not compared with the broker now");
                    }
                    Err(Trouble::Store(error)) => {
                        tracing::debug!(%error, "claims are not compared with the broker now");
                        connection = None;
                        break;
                    }
                }
            }
        }
        tokio::select! {
            // None loses anything when dropped.
            _ = stop.wait_for(|stopping| *stopping) => return,
            Some(change) = changes.recv() => change.apply(&mut all),
            () = tokio::time::sleep(rest) => {}
        }
    }
}
