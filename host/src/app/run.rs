//! `hapax run`: the daemon.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::deployments::{Deployments, Keeper, at_start};
use super::prepare::{connect_source, migrated};
use super::prune::{Rules, keep_pruning};
use super::reconcile::keep_reconciling;
use super::supervisor::{Loader, Rooms, Supervisor};
use super::watch::{Watching, keep_watching};
use super::{open_store, own_session};
use crate::admin::HandlersDoor;
use crate::config::{CacheConfig, Config, HandlerConfig};
use crate::exit::{CommandError, Exit};
use crate::handler::{Cache, Handler, Runtime, RuntimeOptions};
use crate::health::Health;
use crate::idle::IdleBoard;
use crate::pipeline::{BatchObserver, MessageObserver, Suspects};
use crate::relay::{Relay, RelayedHandler};
use crate::store::{Connection, SessionOptions, Store};
use crate::systemd::Notifier;
use crate::telemetry::{self, Telemetry};
use crate::text::split_hint;

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
    /// Is told of each message and its effects. The handlers' tables are read around each call then: for small databases only.
    pub told: Option<MessageObserver>,
    /// Check the configuration and the components first, as `check` does, and consume nothing if something is wrong.
    pub check_first: bool,
    /// Follow changes of the configuration and the components. One that ends when nothing waits follows none.
    pub watching: Option<Watching>,
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
    if options.check_first {
        super::check(config).await?;
    }
    let telemetry = send_traces(config)?;
    let components = load_components(config).await?;
    let store = open_store(config)?;
    let health = Arc::new(Health::default());
    let (in_force, config_in_force) = watch::channel(Arc::new(config.clone()));
    let door = HandlersDoor::default();
    let _admin = super::admin::listen(config, &health, config_in_force, door.clone()).await?;
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
        let notifier = notifier.clone();
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
        Outside {
            health: Arc::clone(&health),
            door,
            notifier,
            in_force,
        },
        &drain_sender,
        &mut drain,
    )
    .await;
    // The last thing: the spans of what was in hand.
    if let Some(telemetry) = telemetry {
        telemetry.flush().await;
    }
    signal.abort();
    if let Some(notifying) = notifying {
        notifying.abort();
    }
    result
}

/// Has traces sent, if a collector is named.
fn send_traces(config: &Config) -> Result<Option<Telemetry>, CommandError> {
    let configured = config.telemetry.clone().unwrap_or_default();
    let mut headers = Vec::with_capacity(configured.headers.len());
    for (name, secret) in configured.headers {
        let value = secret.read().map_err(|error| {
            let text = error.to_string();
            let (problem, hint) = split_hint(&text);
            CommandError::new(
                Exit::Configuration,
                format!("`telemetry.headers.{name}`: {problem}"),
                hint,
            )
        })?;
        headers.push((name, value));
    }
    let settings = telemetry::Settings {
        otlp: configured.otlp,
        service_name: configured.service_name,
        sample: configured.sample,
        headers,
        machine: host_name().to_owned(),
    };
    telemetry::install(&settings)
        .map_err(|error| CommandError::new(Exit::Configuration, &error, Some(&error.hint)))
}

/// What others see of the host, and by what they ask it.
struct Outside {
    health: Arc<Health>,
    door: HandlersDoor,
    notifier: Option<Arc<Notifier>>,
    in_force: watch::Sender<Arc<Config>>,
}

async fn start_and_wait(
    config: &Config,
    options: RunOptions,
    (loader, components): (Loader, Vec<(HandlerConfig, Handler)>),
    store: Arc<Store>,
    outside: Outside,
    drain_sender: &watch::Sender<bool>,
    drain: &mut watch::Receiver<bool>,
) -> Result<(), CommandError> {
    let Outside {
        health,
        door,
        notifier,
        in_force,
    } = outside;
    let health = &health;
    let handlers: Vec<&HandlerConfig> = components.iter().map(|(handler, _)| handler).collect();
    let Some((mut connection, losable)) = migrated(&store, &handlers, health, drain).await? else {
        return Ok(());
    };

    let board = Arc::new(IdleBoard::default());
    let (relayed_sender, relayed_handlers) = watch::channel(relayed(config));
    let (rules_sender, rules) = watch::channel(Rules::of(config));
    let (reconciling, reconciled) = mpsc::unbounded_channel();
    let relay = relay_of(config, &store, &board, relayed_handlers, options.until_idle);
    let suspects = Arc::new(Suspects::new(host_name()));
    let supervisor = Supervisor::new(
        config.clone(),
        loader,
        Rooms {
            store: Arc::clone(&store),
            health: Arc::clone(health),
            suspects: Arc::clone(&suspects),
            observer: options.observer.clone(),
            told: options.told.clone(),
            waker: relay.as_ref().map(Relay::waker),
            board: options.until_idle.then(|| Arc::clone(&board)),
            relayed: relayed_sender,
            rules: rules_sender,
            reconciling,
            in_force,
        },
    );
    let Some(deployed) = at_start(config, &store, health, drain).await? else {
        return Ok(());
    };
    let mut components = components;
    for (handler, component) in &deployed.components {
        match component {
            None => supervisor.wait_at_start(handler),
            Some(component) => {
                let loaded = supervisor.load_at_start(handler, component.clone()).await?;
                components.push((handler.clone(), loaded));
            }
        }
    }
    let (mut ready, mut paused) = (Vec::new(), Vec::new());
    for (handler, component) in components {
        let source = super::supervisor::source_of(config, &handler)?;
        let Some(connected) = connect_source(source, &handler, &store, health, drain).await? else {
            return Ok(());
        };
        sweep_marks(&mut connection, &handler).await;
        let is_paused = deployed.is_paused(&handler.name);
        let one = supervisor.ready_at_start(handler, component, connected);
        if is_paused { &mut paused } else { &mut ready }.push(one);
    }
    let (relay_ends, is_relay_over) = watch::channel(false);
    let relay = relay.map(|relay| tokio::spawn(relay.run(is_relay_over)));
    let handlers = ready.len();
    supervisor.pause_at_start(paused).await;
    supervisor.start(ready);
    let draining = tokio::spawn({
        let (supervisor, mut drain) = (supervisor.clone(), drain.clone());
        async move {
            // An error means that the host is gone.
            let _ = drain.wait_for(|draining| *draining).await;
            supervisor.drain();
        }
    });
    for sentence in losable {
        tracing::warn!(store = %store.display(), "{sentence}");
    }
    health.consuming();
    tracing::info!(store = %store.display(), handlers, "ready");

    let changed = Arc::new(Notify::new());
    let process = suspects.process().to_owned();
    let deployments = Arc::new(Deployments::new(
        supervisor.clone(),
        Arc::clone(&store),
        process.clone(),
        Arc::clone(&changed),
    ));
    door.open(move |request| {
        let deployments = Arc::clone(&deployments);
        Box::pin(async move { deployments.answer(request).await })
    });
    let (done, is_done) = oneshot::channel();
    let flusher = tokio::spawn(flush_counters(
        supervisor.clone(),
        Arc::clone(&store),
        connection,
        is_done,
    ));
    let (stop_keeping, keeping_stops) = watch::channel(false);
    let keeper = Keeper::new(supervisor.clone(), Arc::clone(&store), process, changed);
    let keeper = tokio::spawn(keeper.run(keeping_stops.clone()));
    let pruner = tokio::spawn(keep_pruning(
        rules,
        Arc::clone(&store),
        suspects.process().to_owned(),
        keeping_stops.clone(),
    ));
    let reconciler = tokio::spawn(keep_reconciling(
        reconciled,
        Arc::clone(&store),
        keeping_stops,
    ));
    let watching = options
        .watching
        .filter(|_| !options.until_idle)
        .map(|watching| {
            tokio::spawn(keep_watching(
                watching,
                supervisor.clone(),
                notifier,
                drain.clone(),
            ))
        });
    let looking = tokio::spawn(look_for_stranded(config, &store));
    let (ended, left) = wait_for(&supervisor, drain_sender, drain, config.shutdown_grace).await;
    draining.abort();
    if let Some(watching) = watching {
        // A change that it waits for goes to its end by itself.
        watching.abort();
    }
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
    final_flush(&supervisor, &store, connection).await;
    // What does not end is left to the end of the process: its statement rolls back.
    let _ = tokio::time::timeout(LAST_STATEMENT_TIMEOUT, async {
        let _ = keeper.await;
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
    handlers: watch::Receiver<Vec<RelayedHandler>>,
    until_idle: bool,
) -> Option<Relay> {
    if config.targets.is_empty() {
        return None;
    }
    let relay = Relay::new(
        Arc::clone(store),
        handlers,
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

/// Returns whose rows are relayed.
pub(super) fn relayed(config: &Config) -> Vec<RelayedHandler> {
    config
        .handlers
        .values()
        .map(|handler| RelayedHandler {
            name: handler.name.clone(),
            consumer: handler.consumer.clone(),
            target: handler.target.clone(),
        })
        .collect()
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
    supervisor: &Supervisor,
    drain_sender: &watch::Sender<bool>,
    drain: &mut watch::Receiver<bool>,
    grace: Duration,
) -> (Ended, Duration) {
    let began = OnceLock::new();
    let all = async {
        // Nobody restarts a part of this process: the whole has to be started again.
        let when_one_dies = async {
            supervisor.death().await;
            let _ = drain_sender.send(true);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // Neither does anything that a drop could cut off.
            () = supervisor.end() => {}
            () = when_one_dies => {}
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
    let ended = match (supervisor.has_died(), is_late) {
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

/// As `sweep_marks`, over a connection of its own.
pub(super) async fn sweep_marks_of(store: &Store, handler: &HandlerConfig) {
    match store.connect(&own_session("reload")).await {
        Ok(mut connection) => sweep_marks(&mut connection, handler).await,
        Err(error) => {
            tracing::debug!(handler = %handler.name, %error, "marks of ended runs were not looked at");
        }
    }
}

/// Loads every handler's component, and reports every one that is refused.
async fn load_components(
    config: &Config,
) -> Result<(Loader, Vec<(HandlerConfig, Handler)>), CommandError> {
    let loader = Loader::new(config).await?;
    let mut loaded = Vec::new();
    let mut refused = Vec::new();
    for handler in config.handlers.values() {
        // What the store holds is looked up when the store is there.
        let Some(path) = handler.component.file() else {
            continue;
        };
        let component = match loader.read(path).await {
            Ok(component) => {
                loader
                    .load_at_start(handler, &config.targets, component)
                    .await
            }
            Err(error) => Err(error),
        };
        match component {
            Ok(component) => loaded.push((handler.clone(), component)),
            Err(error) => refused.push(CommandError::component(&handler.name, &error)),
        }
    }
    match CommandError::all(refused) {
        Some(error) => Err(error),
        None => Ok((loader, loaded)),
    }
}

/// Opens the cache of compiled code. Without one all works, slower: says once why there is none.
pub(super) fn open_cache(config: &Config) -> Option<Arc<Cache>> {
    let directory = match &config.cache {
        CacheConfig::Off => return None,
        CacheConfig::At(directory) => directory.clone(),
        CacheConfig::Default => Cache::default_directory(|name| std::env::var_os(name))?,
    };
    match Cache::open(directory) {
        Ok(cache) => Some(Arc::new(cache)),
        Err(why) => {
            tracing::warn!(
                why,
                hint = "give `cache.directory` a folder that only this user may write to, or write `\"off\"`",
                "there is no cache of compiled code: components are compiled at each start"
            );
            None
        }
    }
}

/// Makes a Wasm runtime, and sees that its limits hold.
pub(super) async fn checked_runtime(
    options: &RuntimeOptions,
    cache: Option<Arc<Cache>>,
) -> Result<Runtime, CommandError> {
    let runtime = Runtime::with_cache(options, cache).map_err(|error| {
        CommandError::new(
            Exit::Failed,
            error,
            Some("run it on a machine with 64 bits and enough address space (`ulimit -v`)"),
        )
    })?;
    runtime.self_check().await.map_err(|error| {
        CommandError::new(
            Exit::Bug,
            error,
            Some("no handler is run without its limits: report this as a bug, with the machine and its kernel"),
        )
    })?;
    Ok(runtime)
}

/// Writes the counters of every handler once a second, until `done` is dropped. Returns its connection.
async fn flush_counters(
    supervisor: Supervisor,
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
        connection = flush_once(&supervisor, &store, connection).await;
    }
}

async fn final_flush(supervisor: &Supervisor, store: &Store, connection: Option<Connection>) {
    if flush_once(supervisor, store, connection).await.is_none() {
        tracing::warn!("the counters of the last second are lost");
    }
}

async fn flush_once(
    supervisor: &Supervisor,
    store: &Store,
    connection: Option<Connection>,
) -> Option<Connection> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => store.connect(&own_session("counters")).await.ok()?,
    };
    let handlers = supervisor.counted();
    for handler in &handlers {
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
    supervisor.are_counted(&handlers);
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
