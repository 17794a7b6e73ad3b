//! `hapax run`: the daemon.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::prune::{Rules, keep_pruning};
use super::window;
use super::{connect_and_migrate, handler_migrations, jetstream_options, open_store, own_session};
use crate::config::{Config, HandlerConfig, SourceKind};
use crate::exit::{CommandError, Exit};
use crate::handler::{Handler, Runtime, RuntimeOptions};
use crate::message::Carried;
use crate::news::News;
use crate::pipeline::{self, BatchObserver, HandlerContext, LaneDied, Stop, Suspects};
use crate::source::jetstream::JetStream;
use crate::source::merged::Merged;
use crate::source::queue::Queue;
use crate::source::{Source, SourceError};
use crate::store::{Connection, SessionOptions, Store, StoreError};
use crate::text::one_line;

/// How often counters are written to the store.
const COUNTERS_INTERVAL: Duration = Duration::from_secs(1);
/// How long the last word to the database may take when the grace is over already.
const LAST_STATEMENT_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between two tries to reach what is needed at start.
const START_PAUSE: Duration = Duration::from_millis(500);

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
    let (drain_sender, mut drain) = watch::channel(false);
    // Held until the end: one sender more in the signal's task, so that the channel outlives it.
    let drain_sender = Arc::new(drain_sender);
    let signal = tokio::spawn({
        let drain_sender = Arc::clone(&drain_sender);
        async move {
            stop.await;
            tracing::info!("draining");
            let _ = drain_sender.send(true);
        }
    });

    let result = start_and_wait(
        config,
        options,
        components,
        store,
        &drain_sender,
        &mut drain,
    )
    .await;
    signal.abort();
    result
}

async fn start_and_wait(
    config: &Config,
    options: RunOptions,
    components: Vec<(HandlerConfig, Handler)>,
    store: Arc<Store>,
    drain_sender: &watch::Sender<bool>,
    drain: &mut watch::Receiver<bool>,
) -> Result<(), CommandError> {
    let Some(mut connection) = migrated(&store, drain).await? else {
        return Ok(());
    };
    for (handler, _) in &components {
        migrate_handler(&mut connection, store.kind(), handler).await?;
    }

    let stop = if options.until_idle {
        Stop::WhenIdle
    } else {
        Stop::WhenDrained
    };
    let suspects = Arc::new(Suspects::new(host_name()));
    let mut contexts = Vec::new();
    let mut pipelines = JoinSet::new();
    let mut sources = Vec::new();
    for (handler, component) in components {
        let Some(source) = connect_source(config, &handler, &store, drain).await? else {
            return Ok(());
        };
        sweep_marks(&mut connection, &handler).await;
        let context = HandlerContext::new(
            handler,
            component,
            Arc::clone(&store),
            Arc::clone(&suspects),
        )
        .observed_by(options.observer.clone());
        let context = Arc::new(context);
        contexts.push(Arc::clone(&context));
        sources.push((context, source));
    }
    for (context, source) in sources {
        tracing::info!(
            handler = context.name(),
            consumer = context.consumer(),
            "consuming"
        );
        pipelines.spawn(pipeline::run(context, source, stop, drain.clone()));
    }
    tracing::info!(store = %store.display(), handlers = contexts.len(), "ready");

    let (done, is_done) = oneshot::channel();
    let flusher = tokio::spawn(flush_counters(
        contexts.clone(),
        Arc::clone(&store),
        connection,
        is_done,
    ));
    let (stop_pruning, pruning_stops) = watch::channel(false);
    let pruner = tokio::spawn(keep_pruning(
        Rules::of(config),
        Arc::clone(&store),
        suspects.process().to_owned(),
        pruning_stops,
    ));
    let ended = wait_for(&mut pipelines, drain_sender, drain, config.shutdown_grace).await;
    let _ = stop_pruning.send(true);
    drop(done);
    let connection = flusher.await.unwrap_or_default();
    final_flush(&contexts, &store, connection).await;
    // One that does not end is left to the end of the process: its batch rolls back.
    let _ = tokio::time::timeout(LAST_STATEMENT_TIMEOUT, pruner).await;
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
            return Err(CommandError::new(
                Exit::Failed,
                format!(
                    "messages were still running after `shutdown_grace` ({:?})",
                    config.shutdown_grace
                ),
                Some(
                    "nothing is lost: they are delivered again; raise `shutdown_grace` or lower `limits.time`",
                ),
            ));
        }
    }
    tracing::info!("drained");
    Ok(())
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

/// Waits for all pipelines; after the drain began, at most `grace`. When one dies the others are drained.
async fn wait_for(
    pipelines: &mut JoinSet<Result<(), LaneDied>>,
    drain_sender: &watch::Sender<bool>,
    drain: &mut watch::Receiver<bool>,
    grace: Duration,
) -> Ended {
    let mut is_broken = false;
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
        tokio::time::sleep(grace).await;
    };
    let is_late = tokio::select! {
        // Dropping the wait leaves the pipelines to the end of the process: their connections close, and the
        // database rolls back.
        () = all => false,
        () = too_late => true,
    };
    match (is_broken, is_late) {
        (true, _) => Ended::Broken,
        (false, true) => Ended::TooLate,
        (false, false) => Ended::Drained,
    }
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
    let runtime = runtime(config)?;
    let mut loaded = Vec::new();
    let mut refused = Vec::new();
    for handler in config.handlers.values() {
        match super::check::load(&runtime, handler).await {
            Ok(component) => loaded.push((handler.clone(), component)),
            Err(error) => refused.push(error),
        }
    }
    match CommandError::all(refused) {
        Some(error) => Err(error),
        None => Ok(loaded),
    }
}

/// Makes the Wasm runtime, sized for every lane of every handler.
pub(super) fn runtime(config: &Config) -> Result<Runtime, CommandError> {
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

/// Waits for the database and brings hapax's own tables up to date. `None` when the drain came first.
async fn migrated(
    store: &Store,
    drain: &mut watch::Receiver<bool>,
) -> Result<Option<Connection>, CommandError> {
    let mut news = News::default();
    loop {
        match connect_and_migrate(store, "host").await {
            Ok(connection) => return Ok(Some(connection)),
            Err(StoreError::Unavailable(why) | StoreError::Busy(why)) => {
                if news.is_news(&why) {
                    tracing::warn!(why = %one_line(&why), "waiting for the database");
                }
            }
            Err(error) => return Err(CommandError::store("cannot prepare the store", &error)),
        }
        if pause_or_drain(drain).await {
            return Ok(None);
        }
    }
}

/// Pauses between two tries. True if the drain began.
async fn pause_or_drain(drain: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        // Neither loses anything when dropped.
        _ = drain.wait_for(|draining| *draining) => true,
        () = tokio::time::sleep(START_PAUSE) => false,
    }
}

pub(super) async fn migrate_handler(
    connection: &mut Connection,
    kind: crate::store::StoreKind,
    handler: &HandlerConfig,
) -> Result<(), CommandError> {
    let Some(folder) = &handler.migrations else {
        return Ok(());
    };
    let migrations = handler_migrations::read(folder, kind).map_err(|(problem, hint)| {
        CommandError::new(
            Exit::Configuration,
            format!("handler `{}`: {problem}", handler.name),
            Some(&hint),
        )
    })?;
    match connection
        .apply_handler_migrations(&handler.name, &migrations)
        .await
    {
        Ok(0) => Ok(()),
        Ok(applied) => {
            tracing::info!(handler = %handler.name, applied, "migrated");
            Ok(())
        }
        // The message begins with the file's name, unless it is about hapax's own tables.
        Err(StoreError::Refused(error)) if error.message.starts_with('`') => {
            Err(CommandError::new(
                Exit::Configuration,
                format!(
                    "handler `{}`: the database refuses the migration {}",
                    handler.name, error.message
                ),
                Some(
                    "correct the file: nothing of it was applied, and those before it stay applied",
                ),
            ))
        }
        Err(error) => Err(CommandError::store(
            &format!("handler `{}`: migrations", handler.name),
            &error,
        )),
    }
}

async fn connect_source(
    config: &Config,
    handler: &HandlerConfig,
    store: &Arc<Store>,
    drain: &mut watch::Receiver<bool>,
) -> Result<Option<Box<dyn Source>>, CommandError> {
    let Some(source) = config.sources.get(&handler.source) else {
        return Err(CommandError::new(
            Exit::Bug,
            format!(
                "handler `{}`: its source vanished after the check",
                handler.name
            ),
            None,
        ));
    };
    let mut news = News::default();
    loop {
        let connected: Result<Box<dyn Source>, SourceError> = match &source.kind {
            SourceKind::Queue => Ok(Box::new(Queue::new(Arc::clone(store), &source.name))),
            SourceKind::JetStream(stream) => {
                JetStream::connect(&jetstream_options(stream, handler))
                    .await
                    .map(|source| {
                        window::warn(handler, &source.reach());
                        Box::new(source) as Box<dyn Source>
                    })
            }
        };
        match connected {
            Ok(main) => {
                let carried = Queue::new(Arc::clone(store), &Carried::queue(&handler.consumer));
                return Ok(Some(Box::new(Merged::new(
                    &handler.name,
                    main,
                    Box::new(carried),
                    pipeline::in_hand_max(handler),
                ))));
            }
            Err(SourceError::Unavailable(why)) => {
                if news.is_news(&why) {
                    tracing::warn!(source = %source.name, why = %one_line(&why), "waiting for the source");
                }
            }
            Err(error) => return Err(CommandError::source(&source.name, &error)),
        }
        if pause_or_drain(drain).await {
            return Ok(None);
        }
    }
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
    static NAME: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    NAME.get_or_init(|| {
        rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned()
    })
}
