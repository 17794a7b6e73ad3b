//! `hapax run`: the daemon.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::prepare::{connect_source, migrated};
use super::prune::{Rules, keep_pruning};
use super::reconcile::keep_reconciling;
use super::{open_store, own_session};
use crate::admin::{Admin, AdminState};
use crate::config::{Config, HandlerConfig};
use crate::exit::{CommandError, Exit};
use crate::handler::{Handler, Runtime, RuntimeOptions};
use crate::health::Health;
use crate::idle::IdleBoard;
use crate::pipeline::{self, BatchObserver, HandlerContext, LaneDied, Stop, Suspects};
use crate::relay::{Relay, RelayedHandler};
use crate::store::{Connection, SessionOptions, Store};
use crate::systemd::Notifier;

/// How often counters are written to the store.
const COUNTERS_INTERVAL: Duration = Duration::from_secs(1);
/// How long the last word to the database may take when the grace is over already.
const LAST_STATEMENT_TIMEOUT: Duration = Duration::from_secs(1);

/// How `run` behaves.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// End when nothing waits in any source.
    pub until_idle: bool,
    /// Is told of each settled batch.
    pub observer: Option<BatchObserver>,
}

/// Runs every handler until `stop` ends, or until all are idle if the options say so; then drains.
///
/// A database or broker that is absent at start is waited for.
///
/// # Errors
/// What cannot be cured by waiting: a component that is refused, a schema that is newer, a source that cannot serve.
pub async fn run(
    config: &Config,
    options: RunOptions,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), CommandError> {
    if config.handlers.is_empty() {
        return Err(CommandError::new(
            Exit::Configuration,
            format!("`{}` has no handlers", config.file.display()),
            Some(super::NO_HANDLERS_HINT),
        ));
    }
    let components = load_components(config).await?;
    let store = open_store(config)?;
    let health = Arc::new(Health::default());
    let _admin = listen(config, &health).await?;
    let (drain_sender, mut drain) = watch::channel(false);
    let notifier = Notifier::from_environment(config.shutdown_grace).map(Arc::new);
    let notifying = notifier
        .clone()
        .map(|notifier| tokio::spawn(notifier.run(Arc::clone(&health))));
    // Held until the end: one sender more in the signal's task, so that the channel outlives it.
    let drain_sender = Arc::new(drain_sender);
    let signal = tokio::spawn({
        let drain_sender = Arc::clone(&drain_sender);
        let health = Arc::clone(&health);
        async move {
            stop.await;
            tracing::info!("draining");
            // At once: an idle host is gone in a moment.
            if let Some(notifier) = notifier {
                notifier.stopping();
            }
            let _ = drain_sender.send(true);
            health.draining();
        }
    });

    let result = start_and_wait(
        config,
        options,
        components,
        store,
        &health,
        &drain_sender,
        &mut drain,
    )
    .await;
    signal.abort();
    if let Some(notifying) = notifying {
        notifying.abort();
    }
    result
}

/// Listens at the admin address, if there is one.
async fn listen(config: &Config, health: &Arc<Health>) -> Result<Option<Admin>, CommandError> {
    let Some(admin) = &config.admin else {
        return Ok(None);
    };
    let metrics = crate::metrics::install().map_err(|error| {
        CommandError::new(
            Exit::Bug,
            format!("cannot measure: {error}"),
            Some("a process runs hapax once; report this as a bug"),
        )
    })?;
    let state = AdminState {
        health: Arc::clone(health),
        metrics,
    };
    match Admin::listen(admin.listen, state).await {
        Ok(admin) => {
            tracing::info!(address = %admin.address, "the admin address is open");
            Ok(Some(admin))
        }
        Err(error) => Err(CommandError::new(
            Exit::Failed,
            format!(
                "`admin.listen`: cannot listen at `{}`: {error}",
                admin.listen
            ),
            Some(match error.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "another program, or another host, has this port: choose another in `admin.listen`"
                }
                _ => "choose another address in `admin.listen`",
            }),
        )),
    }
}

async fn start_and_wait(
    config: &Config,
    options: RunOptions,
    components: Vec<(HandlerConfig, Handler)>,
    store: Arc<Store>,
    health: &Arc<Health>,
    drain_sender: &watch::Sender<bool>,
    drain: &mut watch::Receiver<bool>,
) -> Result<(), CommandError> {
    let handlers: Vec<&HandlerConfig> = components.iter().map(|(handler, _)| handler).collect();
    let Some((mut connection, losable)) = migrated(&store, &handlers, health, drain).await? else {
        return Ok(());
    };

    let board = Arc::new(IdleBoard::default());
    let relay = relay_of(config, &store, &board, options.until_idle);
    let waker = relay.as_ref().map(Relay::waker);
    let suspects = Arc::new(Suspects::new(host_name()));
    let mut contexts = Vec::new();
    let mut pipelines = JoinSet::new();
    let mut sources = Vec::new();
    let mut reconciled = Vec::new();
    for (handler, component) in components {
        let Some(connected) = connect_source(config, &handler, &store, health, drain).await? else {
            return Ok(());
        };
        reconciled.extend(connected.reconciled);
        sweep_marks(&mut connection, &handler).await;
        let context = HandlerContext::new(
            handler,
            component,
            Arc::clone(&store),
            Arc::clone(&suspects),
        )
        .observed_by(options.observer.clone())
        .relayed_by(waker.clone())
        .reporting_to(Arc::clone(health));
        let context = Arc::new(context);
        contexts.push(Arc::clone(&context));
        sources.push((context, connected.source));
    }
    let seat = || options.until_idle.then(|| board.seat());
    let (relay_ends, is_relay_over) = watch::channel(false);
    let seats: Vec<_> = sources.iter().map(|_| seat()).collect();
    let relay = relay.map(|relay| tokio::spawn(relay.run(is_relay_over)));
    for ((context, source), seat) in sources.into_iter().zip(seats) {
        let stop = seat.map_or(Stop::WhenDrained, Stop::WhenIdle);
        tracing::info!(
            handler = context.name(),
            consumer = context.consumer(),
            "consuming"
        );
        pipelines.spawn(pipeline::run(context, source, stop, drain.clone()));
    }
    for sentence in losable {
        tracing::warn!(store = %store.display(), "{sentence}");
    }
    health.consuming();
    tracing::info!(store = %store.display(), handlers = contexts.len(), "ready");

    let (done, is_done) = oneshot::channel();
    let flusher = tokio::spawn(flush_counters(
        contexts.clone(),
        Arc::clone(&store),
        connection,
        is_done,
    ));
    let (stop_keeping, keeping_stops) = watch::channel(false);
    let pruner = tokio::spawn(keep_pruning(
        Rules::of(config),
        Arc::clone(&store),
        suspects.process().to_owned(),
        keeping_stops.clone(),
    ));
    let reconciler = tokio::spawn(keep_reconciling(
        reconciled,
        Arc::clone(&store),
        keeping_stops,
    ));
    let looking = tokio::spawn(look_for_stranded(config, &store));
    let (ended, left) = wait_for(&mut pipelines, drain_sender, drain, config.shutdown_grace).await;
    if options.until_idle && !*drain.borrow() {
        // A short run says it, too.
        let _ = looking.await;
    } else {
        looking.abort();
    }
    let _ = stop_keeping.send(true);
    // After the pipelines, so that what they committed last may leave at once.
    let _ = relay_ends.send(true);
    if let Some(relay) = relay {
        end_relay(relay, left).await;
    }
    drop(done);
    let connection = flusher.await.unwrap_or_default();
    final_flush(&contexts, &store, connection).await;
    // What does not end is left to the end of the process: its statement rolls back.
    let _ = tokio::time::timeout(LAST_STATEMENT_TIMEOUT, async {
        let _ = pruner.await;
        let _ = reconciler.await;
    })
    .await;
    match ended {
        Ended::Drained => {}
        Ended::Broken => {
            return Err(CommandError::new(
                Exit::Bug,
                "a part of the host panicked, so it stopped",
                Some(
                    "nothing is lost: messages that were running are delivered again; start it again, and report this as a \
                     bug, with the log's lines before this one",
                ),
            ));
        }
        Ended::TooLate => {
            unmark_what_runs(&store, suspects.process()).await;
            // Their connections end with this process, and the database rolls back.
            tracing::warn!(
                grace = ?config.shutdown_grace,
                hint = "raise `shutdown_grace` or lower `limits.time`",
                "messages were still running after the grace; nothing is lost: they are rolled back and delivered again"
            );
            return Ok(());
        }
    }
    tracing::info!("drained");
    Ok(())
}

/// Returns what tells of messages in the outbox that do not leave.
fn look_for_stranded(
    config: &Config,
    store: &Arc<Store>,
) -> impl Future<Output = ()> + Send + 'static {
    let handlers: Vec<HandlerConfig> = config.handlers.values().cloned().collect();
    let targets = config.targets.clone();
    let store = Arc::clone(store);
    async move { super::outbox::warn_of_stranded(&store, &handlers, &targets).await }
}

/// Makes the relay of the configured handlers, if there is anywhere to publish to.
fn relay_of(
    config: &Config,
    store: &Arc<Store>,
    board: &Arc<IdleBoard>,
    until_idle: bool,
) -> Option<Relay> {
    if config.targets.is_empty() {
        return None;
    }
    let handlers: Vec<_> = config
        .handlers
        .values()
        .map(|handler| RelayedHandler {
            name: handler.name.clone(),
            consumer: handler.consumer.clone(),
            target: handler.target.clone(),
        })
        .collect();
    let relay = Relay::new(
        Arc::clone(store),
        &handlers,
        &config.targets,
        config.outbox.clone(),
        Arc::clone(board),
    );
    Some(if until_idle {
        relay.until_idle()
    } else {
        relay
    })
}

/// Waits until the relay has marked what it has in hand, for what is `left` of the grace. Rows that are not marked in time are
/// published again by the next host, under the same ids.
async fn end_relay(mut relay: JoinHandle<()>, left: Duration) {
    let last = left.max(LAST_STATEMENT_TIMEOUT);
    match tokio::time::timeout(last, &mut relay).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "the relay died"),
        Err(_) => {
            relay.abort();
            tracing::warn!(
                "the relay had not heard of all that it published when the grace was over; it is published again, under the same ids"
            );
        }
    }
}

/// How the pipelines ended.
enum Ended {
    /// All are drained.
    Drained,
    /// One died, which is a bug; the others are drained.
    Broken,
    /// Some were still running after the grace.
    TooLate,
}

/// Waits for all pipelines; after the drain began, at most `grace`. When one dies the others are drained. Returns, too, how much of the
/// grace is left.
async fn wait_for(
    pipelines: &mut JoinSet<Result<(), LaneDied>>,
    drain_sender: &watch::Sender<bool>,
    drain: &mut watch::Receiver<bool>,
    grace: Duration,
) -> (Ended, Duration) {
    let mut is_broken = false;
    let began = OnceLock::new();
    let all = async {
        while let Some(ended) = pipelines.join_next().await {
            match ended {
                Ok(Ok(())) => continue,
                // It is in the log already.
                Ok(Err(LaneDied)) => {}
                Err(error) => tracing::error!(%error, "a pipeline died"),
            }
            is_broken = true;
            // Nobody restarts a part of this process: the whole has to be started again.
            let _ = drain_sender.send(true);
        }
    };
    let too_late = async {
        let _ = drain.wait_for(|draining| *draining).await;
        let _ = began.set(Instant::now());
        tokio::time::sleep(grace).await;
    };
    let is_late = tokio::select! {
        // Dropping the wait leaves the pipelines to the end of the process: their connections close, and the
        // database rolls back.
        () = all => false,
        () = too_late => true,
    };
    let ended = match (is_broken, is_late) {
        (true, _) => Ended::Broken,
        (false, true) => Ended::TooLate,
        (false, false) => Ended::Drained,
    };
    let used = began.get().map_or(Duration::ZERO, Instant::elapsed);
    (ended, grace.saturating_sub(used))
}

/// Removes the marks of the suspect that still runs when the grace is over: being stopped is not its fault. Where that can't be
/// done at once (on SQLite the run itself holds the write lock), it will be charged with the stop.
async fn unmark_what_runs(store: &Store, process: &str) {
    let options = SessionOptions {
        statement_timeout: Some(LAST_STATEMENT_TIMEOUT),
        lock_timeout: LAST_STATEMENT_TIMEOUT,
        ..own_session("stop")
    };
    let unmarked = match store.connect(&options).await {
        Ok(mut connection) => connection.unmark_process(process).await,
        Err(error) => Err(error),
    };
    if let Err(error) = unmarked {
        tracing::warn!(%error, "a suspect that was still running may be charged with this stop");
    }
}

/// Removes the marks of suspects' runs that mean nothing any more. Failing at it harms nobody.
async fn sweep_marks(connection: &mut Connection, handler: &HandlerConfig) {
    if let Err(error) = connection.sweep_started(&handler.consumer).await {
        tracing::debug!(handler = %handler.name, %error, "marks of ended runs were not looked at");
    }
}

/// Loads every handler's component, and reports every one that is refused.
async fn load_components(config: &Config) -> Result<Vec<(HandlerConfig, Handler)>, CommandError> {
    let runtime = checked_runtime(config).await?;
    let mut loaded = Vec::new();
    let mut refused = Vec::new();
    for handler in config.handlers.values() {
        // What the store holds is looked up when the store is there.
        let Some(path) = handler.component.file() else {
            continue;
        };
        match super::check::load(&runtime, handler, path, &config.targets).await {
            Ok(component) => loaded.push((handler.clone(), component)),
            Err(error) => refused.push(error),
        }
    }
    match CommandError::all(refused) {
        Some(error) => Err(error),
        None => Ok(loaded),
    }
}

/// Makes the Wasm runtime, and sees that its limits hold.
pub(super) async fn checked_runtime(config: &Config) -> Result<Runtime, CommandError> {
    let runtime = runtime(config)?;
    runtime.self_check().await.map_err(|error| {
        CommandError::new(
            Exit::Bug,
            error,
            Some("no handler is run without its limits: report this as a bug, with the machine and its kernel"),
        )
    })?;
    Ok(runtime)
}

/// Makes the Wasm runtime, sized for every lane of every handler.
fn runtime(config: &Config) -> Result<Runtime, CommandError> {
    let options = RuntimeOptions {
        calls_max: config
            .handlers
            .values()
            .map(|handler| handler.lanes)
            .sum::<usize>()
            .max(1),
        memory_max_bytes: config
            .handlers
            .values()
            .map(|handler| handler.limits.memory_bytes)
            .max()
            .unwrap_or(1 << 20),
    };
    Runtime::new(&options).map_err(|error| {
        CommandError::new(
            Exit::Failed,
            error,
            Some("run it on a machine with 64 bits and enough address space (`ulimit -v`)"),
        )
    })
}

/// Writes the counters of every handler once a second, until `done` is dropped. Returns its connection.
async fn flush_counters(
    handlers: Vec<Arc<HandlerContext>>,
    store: Arc<Store>,
    connection: Connection,
    mut done: oneshot::Receiver<()>,
) -> Option<Connection> {
    let mut connection = Some(connection);
    loop {
        // Only the wait is raced, never the writing.
        if tokio::time::timeout(COUNTERS_INTERVAL, &mut done)
            .await
            .is_ok()
        {
            return connection;
        }
        connection = flush_once(&handlers, &store, connection).await;
    }
}

async fn final_flush(
    handlers: &[Arc<HandlerContext>],
    store: &Store,
    connection: Option<Connection>,
) {
    if flush_once(handlers, store, connection).await.is_none() {
        tracing::warn!("the counters of the last second are lost");
    }
}

async fn flush_once(
    handlers: &[Arc<HandlerContext>],
    store: &Store,
    connection: Option<Connection>,
) -> Option<Connection> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => store.connect(&own_session("counters")).await.ok()?,
    };
    for handler in handlers {
        let counters = handler.counters().take();
        if counters == Default::default() {
            continue;
        }
        if connection
            .add_counters(handler.consumer(), host_name(), &counters)
            .await
            .is_err()
        {
            handler.counters().put_back(&counters);
            return None;
        }
    }
    Some(connection)
}

/// Returns a name for this process in the counters table.
fn host_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned()
    })
}
