//! What `/metrics` tells of the store and the sources: asked for from time to time, never by whoever reads it.
//!
//! **Invariant**: the time it takes is a small part of the time it rests, whatever the size of the tables.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{jetstream_options, open_store, own_session};
use crate::config::{Config, HandlerConfig, SourceKind};
use crate::message::Carried;
use crate::metrics::{Asked, claims_asked};
use crate::source::jetstream::Acknowledged;
use crate::store::{Connection, SessionOptions, StoreError};
use crate::text::one_line;

/// How long between two looks, at the least.
const PAUSE: Duration = Duration::from_secs(10);
/// As `PAUSE`, as long as nothing could be learned: the host is starting, or its database is away.
const PAUSE_BEFORE: Duration = Duration::from_secs(1);
/// The size of the claims is asked for with each so manieth look.
const LOOKS_PER_SIZE: u32 = 3;
/// Looking takes at most the hundredth part of the time.
const REST: u32 = 100;
/// The longest that one question may take.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections to brokers, by consumer.
type Brokers = HashMap<String, Acknowledged>;

/// Asks until it is dropped. It changes nothing, so it may be dropped at any point.
pub(super) async fn keep_asking(config: impl Fn() -> Arc<Config>) {
    let mut brokers = Brokers::new();
    let mut size_due = 0;
    let mut size_rests_until = Instant::now();
    loop {
        let began = Instant::now();
        let config = config();
        let looked = look(&config, &mut brokers).await;
        let pause = match looked {
            Ok(mut connection) => {
                let rest = began.elapsed() * REST;
                if size_due == 0 && began >= size_rests_until {
                    let asking = Instant::now();
                    let size = connection.claims_size().await;
                    claims_asked(size.ok().map(|size| (size.rows, size.bytes)));
                    size_rests_until = asking + asking.elapsed() * REST;
                    size_due = LOOKS_PER_SIZE;
                }
                size_due = size_due.saturating_sub(1);
                rest.max(PAUSE)
            }
            Err(error) => {
                tracing::debug!(why = %one_line(&error.to_string()), "what waits is not known");
                for name in config.handlers.keys() {
                    Asked::default().tell(name);
                }
                claims_asked(None);
                size_due = 0;
                PAUSE_BEFORE
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Asks about every handler, over one session of its own.
async fn look(config: &Config, brokers: &mut Brokers) -> Result<Connection, StoreError> {
    let store = open_store(config).map_err(|error| StoreError::Unusable(error.to_string()))?;
    let options = SessionOptions {
        statement_timeout: Some(STATEMENT_TIMEOUT),
        ..own_session("metrics")
    };
    let mut connection = store.connect(&options).await?;
    brokers.retain(|consumer, _| {
        let mut handlers = config.handlers.values();
        handlers.any(|handler| handler.consumer == *consumer)
    });
    for handler in config.handlers.values() {
        ask(&mut connection, config, handler, brokers)
            .await?
            .tell(&handler.name);
    }
    Ok(connection)
}

async fn ask(
    connection: &mut Connection,
    config: &Config,
    handler: &HandlerConfig,
    brokers: &mut Brokers,
) -> Result<Asked, StoreError> {
    let outbox = connection.outbox_counts(&handler.consumer).await?;
    let mut asked = Asked {
        dead_letters: Some(connection.dead_letter_count(&handler.consumer).await?),
        unpublished: Some(outbox.unpublished),
        parked: Some(outbox.parked),
        outbox_oldest_seconds: Some(outbox.oldest_seconds.unwrap_or_default() as f64),
        ..Asked::default()
    };
    let source = config.sources.get(&handler.source);
    let waits = match source.map(|source| &source.kind) {
        Some(SourceKind::Queue) => {
            let backlog = connection.queue_backlog(&handler.source).await?;
            Some((backlog, connection.queue_age(&handler.source).await?))
        }
        Some(SourceKind::JetStream(stream)) => {
            let options = jetstream_options(stream, handler);
            let broker = match brokers.remove(&handler.consumer) {
                Some(broker) => Ok(broker),
                None => Acknowledged::connect(&options).await,
            };
            let pending = match broker {
                Ok(broker) => {
                    let pending = broker.pending().await;
                    // After an error the next look begins with a connection of its own.
                    if pending.is_ok() {
                        brokers.insert(handler.consumer.clone(), broker);
                    }
                    pending
                }
                Err(error) => Err(error),
            };
            match pending {
                Ok(pending) => pending.map(|pending| {
                    let age = pending.oldest.map(|oldest| {
                        let now = SystemTime::now()
                            .duration_since(SystemTime::UNIX_EPOCH)
                            .unwrap_or_default();
                        now.as_secs_f64()
                            - oldest.seconds as f64
                            - f64::from(oldest.nanoseconds) / 1e9
                    });
                    (pending.messages, age)
                }),
                Err(error) => {
                    tracing::debug!(handler = %handler.name, why = %one_line(&error.to_string()), "the backlog is not known");
                    None
                }
            }
        }
        None => None,
    };
    if let Some((backlog, age)) = waits {
        let queue = Carried::queue(&handler.consumer);
        let carried = connection.queue_backlog(&queue).await?;
        let carried_age = connection.queue_age(&queue).await?;
        asked.backlog = Some(backlog + carried);
        // Clocks differ, and a message of the future waits since now.
        let oldest = age.into_iter().chain(carried_age).fold(0.0, f64::max);
        asked.oldest_seconds = Some(oldest);
    }
    Ok(asked)
}
