//! `hapax status`: what each handler has done, and what waits.

use serde::Serialize;

use super::outbox::{Stranded, stranded};
use super::reconcile::{self, Trouble, Unreconciled};
use super::{connect_and_migrate, jetstream_options, open_store};
use crate::config::{Config, HandlerConfig, SourceKind};
use crate::exit::CommandError;
use crate::message::Carried;
use crate::source::jetstream::{self, Acknowledged, JetStreamOptions};
use crate::store::Connection;

/// One handler's figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HandlerStatus {
    /// Its name.
    pub name: String,
    /// The claims' key.
    pub consumer: String,
    /// Messages that took effect.
    pub claimed: u64,
    /// Deliveries acknowledged without running the handler.
    pub duplicates: u64,
    /// Failed runs that were or will be run again.
    pub retried: u64,
    /// Transactions of which nothing stayed, and whose messages ran again, alone or in other company.
    pub rolled_back: u64,
    /// Messages in the dead letters.
    pub dead: u64,
    /// The age of the oldest claim, in whole seconds by the database's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_claim_seconds: Option<u64>,
    /// What the handler published, and has not left yet.
    pub outbox: OutboxStatus,
    /// What the broker counts as done without an effect in this database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreconciled: Option<Unreconciled>,
    /// Messages that wait in the source, and those that hapax carries itself; absent if the source cannot be reached.
    pub backlog: Option<u64>,
    /// Why the backlog is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog_error: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog_hint: Option<String>,
}

/// Published messages that have not left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OutboxStatus {
    /// To be published, now or later.
    pub unpublished: u64,
    /// Given up on.
    pub parked: u64,
    /// How long the oldest one that should have left by now has been due, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_seconds: Option<u64>,
    /// What does not leave, because its target is not configured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stranded: Vec<Stranded>,
    /// No target is configured: nothing leaves.
    #[serde(skip)]
    pub is_off: bool,
}

/// The claims table, of all consumers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClaimsStatus {
    /// Claims; on PostgreSQL, of a large table, the estimate of its statistics.
    pub rows: u64,
    /// Of the table with its indexes.
    pub bytes: u64,
    /// Absent without claims.
    pub bytes_per_million: Option<u64>,
}

/// What `hapax status` tells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// In the order of their names.
    pub handlers: Vec<HandlerStatus>,
    /// The claims table.
    pub claims: ClaimsStatus,
}

/// Returns the figures of every handler, and of the claims table.
///
/// # Errors
/// If the store cannot be reached.
pub async fn status(config: &Config) -> Result<Status, CommandError> {
    let store = open_store(config)?;
    let failed = |error| CommandError::store("cannot read the store", &error);
    let mut connection = connect_and_migrate(&store, "status")
        .await
        .map_err(failed)?;
    let mut statuses = Vec::new();
    for handler in config.handlers.values() {
        let counters = connection
            .counters(&handler.consumer)
            .await
            .map_err(failed)?;
        let dead = connection
            .dead_letter_count(&handler.consumer)
            .await
            .map_err(failed)?;
        let oldest = connection
            .oldest_claim(&handler.consumer)
            .await
            .map_err(failed)?;
        let outbox = connection
            .outbox_counts(&handler.consumer)
            .await
            .map_err(failed)?;
        let mut unreconciled = None;
        let stranded = stranded(&mut connection, handler, &config.targets)
            .await
            .map_err(failed)?;
        let backlog = match config
            .sources
            .get(&handler.source)
            .map(|source| &source.kind)
        {
            Some(SourceKind::Queue) => Ok(connection
                .queue_backlog(&handler.source)
                .await
                .map_err(failed)?),
            Some(SourceKind::JetStream(stream)) => {
                let options = jetstream_options(stream, handler);
                let backlog = jetstream::backlog(&options).await;
                if backlog.is_ok() {
                    unreconciled = lost(&mut connection, handler, &options).await?;
                }
                backlog.map_err(|error| error.to_string())
            }
            None => Err("its source is not configured".to_owned()),
        };
        let carried = connection
            .queue_backlog(&Carried::queue(&handler.consumer))
            .await
            .map_err(failed)?;
        let (backlog, backlog_error) = match backlog {
            Ok(backlog) => (Some(backlog + carried), None),
            Err(error) => (None, Some(error)),
        };
        let (backlog_error, backlog_hint) = match backlog_error {
            None => (None, None),
            Some(error) => match error.split_once("\nhint: ") {
                None => (Some(error), None),
                Some((error, hint)) => (Some(error.to_owned()), Some(hint.to_owned())),
            },
        };
        statuses.push(HandlerStatus {
            name: handler.name.clone(),
            consumer: handler.consumer.clone(),
            claimed: counters.claimed,
            duplicates: counters.duplicates,
            retried: counters.retried,
            rolled_back: counters.rolled_back,
            dead,
            oldest_claim_seconds: oldest.map(|seconds| seconds.max(0.0) as u64),
            unreconciled,
            backlog,
            backlog_error,
            backlog_hint,
            outbox: OutboxStatus {
                unpublished: outbox.unpublished,
                parked: outbox.parked,
                oldest_seconds: outbox.oldest_seconds,
                stranded,
                is_off: config.targets.is_empty(),
            },
        });
    }
    let size = connection.claims_size().await.map_err(failed)?;
    Ok(Status {
        handlers: statuses,
        claims: ClaimsStatus {
            rows: size.rows,
            bytes: size.bytes,
            bytes_per_million: (size.rows > 0).then(|| {
                let bytes = u128::from(size.bytes) * 1_000_000 / u128::from(size.rows);
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }),
        },
    })
}

async fn lost(
    connection: &mut Connection,
    handler: &HandlerConfig,
    options: &JetStreamOptions,
) -> Result<Option<Unreconciled>, CommandError> {
    let found = match Acknowledged::connect(options).await {
        Ok(acknowledged) => {
            reconcile::unreconciled(connection, handler, &acknowledged, u64::MAX).await
        }
        Err(error) => Err(error.into()),
    };
    match found {
        Ok(lost) => Ok(lost),
        Err(Trouble::Store(error)) => Err(CommandError::store("cannot read the store", &error)),
        Err(Trouble::Source(error)) => {
            tracing::warn!(handler = %handler.name, %error, "claims could not be compared with the broker");
            Ok(None)
        }
    }
}
