//! Retention: the hosts' pruner, and `hapax prune`.
//!
//! **Invariant**: deletes on a connection of its own, in small transactions, and rests longer than it works.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;

use super::{connect_and_migrate, open_store, own_session};
use crate::config::Config;
use crate::exit::{CommandError, Exit};
use crate::store::{
    Connection, Leftover, PRUNE_BATCH_MAX, PruneCursor, PrunedBatch, SessionOptions, Store,
    StoreError, claims_go_after,
};
use crate::text::one_line;

/// How often hosts look for what is old enough, at the most.
const ROUND_PAUSE_MAX: Duration = Duration::from_secs(60);
/// And at the least.
const ROUND_PAUSE_MIN: Duration = Duration::from_secs(1);
/// After a batch the pruner rests for this many times what it took: it has a tenth of the time.
const REST: u32 = 9;
/// The shortest rest: on an idle database a batch takes almost nothing.
const REST_MIN: Duration = Duration::from_millis(10);
/// The longest rest: a batch that waited for a lock did not work.
const REST_MAX: Duration = Duration::from_secs(5);
/// How long a batch may wait for the write lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// After this long a message with charged failures does not come back.
const ATTEMPTS_AGE: Duration = Duration::from_secs(30 * 86_400);
/// No run takes that long.
const MARKS_AGE: Duration = Duration::from_secs(30 * 86_400);
/// A host that counted nothing for this long is gone, or has nothing to do.
const COUNTERS_AGE: Duration = Duration::from_secs(7 * 86_400);

/// What may go, by the configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    /// Handler, consumer, window.
    windows: Vec<(String, String, Duration)>,
    /// What else, and the age from which it may go.
    leftovers: Vec<(Leftover, Duration)>,
}

impl Rules {
    /// Reads the rules of all handlers.
    pub(super) fn of(config: &Config) -> Self {
        let windows: Vec<(String, String, Duration)> = config
            .handlers
            .values()
            .filter_map(|handler| {
                let window = handler.dedup.window()?;
                Some((handler.name.clone(), handler.consumer.clone(), window))
            })
            .collect();
        // Charged failures outlast every window and every wait for a retry: they tell that a message was not processed.
        let longest = config
            .handlers
            .values()
            .flat_map(|handler| [Some(handler.retry.backoff_max), handler.dedup.window()])
            .flatten()
            .map(claims_go_after)
            .fold(ATTEMPTS_AGE, Duration::max);
        let mut leftovers = vec![
            (Leftover::Attempts, longest),
            (Leftover::Marks, MARKS_AGE),
            (Leftover::Counters, COUNTERS_AGE),
        ];
        leftovers.extend(
            config
                .store
                .dead_letters
                .map(|age| (Leftover::DeadLetters, age)),
        );
        Self { windows, leftovers }
    }

    /// How long the hosts rest between two rounds.
    fn round_pause(&self) -> Duration {
        let shortest = self.windows.iter().map(|(_, _, window)| *window).min();
        shortest
            .map_or(ROUND_PAUSE_MAX, |window| window / 10)
            .clamp(ROUND_PAUSE_MIN, ROUND_PAUSE_MAX)
    }
}

fn session() -> SessionOptions {
    SessionOptions {
        lock_timeout: LOCK_TIMEOUT,
        ..own_session("prune")
    }
}

/// How long to rest after a batch that took `took`.
fn rest_after(took: Duration) -> Duration {
    (took * REST).clamp(REST_MIN, REST_MAX)
}

/// Prunes in rounds, by the rules that hold at each one's start, until `stop` says so. A round of which nothing comes is tried again with the next one.
pub(super) async fn keep_pruning(
    all_rules: watch::Receiver<Rules>,
    store: Arc<Store>,
    process: String,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let rules = all_rules.borrow().clone();
        if let Err(error) = round(&rules, &store, &process, &mut stop).await {
            match error {
                StoreError::Busy(_) | StoreError::Unavailable(_) => {
                    tracing::debug!(why = %one_line(&error.to_string()), "pruning waits");
                }
                _ => {
                    tracing::warn!(why = %one_line(&error.to_string()), "cannot prune");
                }
            }
        }
        if rests_until_stop(&mut stop, rules.round_pause()).await {
            return;
        }
    }
}

/// True if `stop` said so meanwhile.
async fn rests_until_stop(stop: &mut watch::Receiver<bool>, pause: Duration) -> bool {
    tokio::select! {
        // Neither loses anything when dropped.
        _ = stop.wait_for(|stops| *stops) => true,
        () = tokio::time::sleep(pause) => false,
    }
}

async fn round(
    rules: &Rules,
    store: &Store,
    process: &str,
    stop: &mut watch::Receiver<bool>,
) -> Result<(), StoreError> {
    let mut connection = store.connect(&session()).await?;
    if !connection.begin_pruning(process).await? {
        return Ok(());
    }
    for (handler, consumer, window) in &rules.windows {
        let mut cursor = PruneCursor::default();
        let mut pruned = 0;
        loop {
            let began = Instant::now();
            let batch = connection
                .prune_claims(consumer, claims_go_after(*window), &mut cursor)
                .await?;
            pruned += batch.deleted;
            if batch.is_last {
                break;
            }
            if rests_until_stop(stop, rest_after(began.elapsed())).await {
                return connection.end_pruning().await;
            }
        }
        if pruned > 0 {
            tracing::info!(handler, pruned, "pruned claims");
        }
    }
    for (what, age) in &rules.leftovers {
        loop {
            let began = Instant::now();
            let batch = connection.prune_leftovers(*what, *age).await?;
            if batch.deleted > 0 {
                tracing::info!(what = what.as_str(), pruned = batch.deleted, "pruned");
            }
            if batch.is_last {
                break;
            }
            if rests_until_stop(stop, rest_after(began.elapsed())).await {
                return connection.end_pruning().await;
            }
        }
    }
    connection.end_pruning().await
}

/// What `hapax prune` is asked.
#[derive(Clone, Debug, Default)]
pub struct PruneOptions {
    /// Only this handler's claims, and nothing else.
    pub handler: Option<String>,
    /// Count, and delete nothing.
    pub dry_run: bool,
}

/// What of one table went, or would.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// `claims`, or what else there is that gets old.
    pub what: &'static str,
    /// Whose claims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    /// From which age, in seconds; for claims the window and a margin for clocks that differ.
    pub older_than_seconds: u64,
    /// How many rows are that old and may go.
    pub rows: u64,
    /// How many stay although they are that old: claims of dead letters that exist.
    pub kept: u64,
    /// How many are gone.
    pub deleted: u64,
}

/// What `hapax prune` has done so far, and how much there is.
pub type PruneProgress<'a> = &'a mut dyn FnMut(&str, u64, u64);

/// Prunes now, or says what would be pruned.
///
/// # Errors
/// A handler that does not exist or keeps its claims for ever; a store that can't be reached; another pruner at work.
pub async fn prune(
    config: &Config,
    options: &PruneOptions,
    progress: PruneProgress<'_>,
) -> Result<Vec<Pruned>, CommandError> {
    let mut rules = Rules::of(config);
    if let Some(name) = &options.handler {
        let handler = super::handler_named(config, name)?;
        if handler.dedup.window().is_none() {
            return Err(CommandError::new(
                Exit::Configuration,
                format!("handler `{name}` has no claims to prune: it has no window"),
                Some("write how long its claims are kept: `dedup = \"14d\"`"),
            ));
        }
        rules.windows.retain(|(handler, _, _)| handler == name);
        rules.leftovers.clear();
    }
    let store = open_store(config)?;
    let failed = |error| CommandError::store("cannot prune the store", &error);
    let mut connection = connect_and_migrate(&store, "prune").await.map_err(failed)?;
    let process = format!("prune:{}", std::process::id());
    if !options.dry_run && !connection.begin_pruning(&process).await.map_err(failed)? {
        return Err(CommandError::new(
            Exit::Failed,
            "a host is pruning this store now",
            Some(
                "there is nothing to do: hosts prune by themselves; `--dry-run` tells what is left",
            ),
        ));
    }
    let mut all = Vec::new();
    for (handler, consumer, window) in &rules.windows {
        let age = claims_go_after(*window);
        progress(&format!("claims of `{handler}`"), 0, 0);
        let found = connection
            .prunable_claims(consumer, age)
            .await
            .map_err(failed)?;
        let mut pruned = Pruned {
            what: "claims",
            handler: Some(handler.clone()),
            older_than_seconds: age.as_secs(),
            rows: found.rows,
            kept: found.kept,
            deleted: 0,
        };
        let mut cursor = PruneCursor::default();
        loop {
            if options.dry_run {
                break;
            }
            let batch = paced(&mut connection, async |connection| {
                connection.prune_claims(consumer, age, &mut cursor).await
            })
            .await
            .map_err(failed)?;
            pruned.deleted += batch.deleted;
            progress(
                &format!("claims of `{handler}`"),
                pruned.deleted,
                pruned.rows,
            );
            if batch.is_last {
                break;
            }
        }
        all.push(pruned);
    }
    for (what, age) in &rules.leftovers {
        progress(what.as_str(), 0, 0);
        let rows = connection
            .prunable_leftovers(*what, *age)
            .await
            .map_err(failed)?;
        let mut pruned = Pruned {
            what: what.as_str(),
            handler: None,
            older_than_seconds: age.as_secs(),
            rows,
            kept: 0,
            deleted: 0,
        };
        loop {
            if options.dry_run {
                break;
            }
            let batch = paced(&mut connection, async |connection| {
                connection.prune_leftovers(*what, *age).await
            })
            .await
            .map_err(failed)?;
            pruned.deleted += batch.deleted;
            progress(what.as_str(), pruned.deleted, pruned.rows);
            if batch.is_last {
                break;
            }
        }
        all.push(pruned);
    }
    if !options.dry_run {
        connection.end_pruning().await.map_err(failed)?;
    }
    Ok(all)
}

/// Runs one batch, and rests after it if there are more.
async fn paced(
    connection: &mut Connection,
    batch: impl AsyncFnOnce(&mut Connection) -> Result<PrunedBatch, StoreError>,
) -> Result<PrunedBatch, StoreError> {
    let began = Instant::now();
    let batch = batch(connection).await?;
    if batch.deleted >= u64::from(PRUNE_BATCH_MAX) {
        tokio::time::sleep(rest_after(began.elapsed())).await;
    }
    Ok(batch)
}
