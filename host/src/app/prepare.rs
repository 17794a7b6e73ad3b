//! What `hapax run` needs before it consumes: the store with everybody's tables, and each handler's source. What is away is waited for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::reconcile::Reconciled;
use super::{connect_and_migrate, handler_migrations, jetstream_options, own_session, window};
use crate::config::{HandlerConfig, SourceConfig, SourceKind};
use crate::exit::{CommandError, Exit};
use crate::health::Health;
use crate::message::Carried;
use crate::news::News;
use crate::pipeline;
use crate::source::jetstream::JetStream;
use crate::source::merged::Merged;
use crate::source::queue::Queue;
use crate::source::{Source, SourceError};
use crate::store::{Connection, Store, StoreError};
use crate::text::one_line;

/// The pause between two tries to reach what is needed at start.
const START_PAUSE: Duration = Duration::from_millis(500);

/// Why what a handler needs is not prepared.
pub(super) enum NotPrepared {
    /// The database is away or busy: it is tried again.
    Away(String),
    /// Waiting won't help.
    Refused(CommandError),
}

impl NotPrepared {
    /// Tells what a wait can cure from what it can't.
    pub(super) fn of(error: StoreError, refused: impl FnOnce(StoreError) -> CommandError) -> Self {
        match error {
            StoreError::Unavailable(why) | StoreError::Busy(why) => Self::Away(why),
            error => Self::Refused(refused(error)),
        }
    }
}

/// Brings hapax's own tables and those of the handlers up to date.
async fn prepare(store: &Store, handlers: &[&HandlerConfig]) -> Result<Connection, NotPrepared> {
    let mut connection = connect_and_migrate(store, "host").await.map_err(|error| {
        NotPrepared::of(error, |error| {
            CommandError::store("cannot prepare the store", &error)
        })
    })?;
    for handler in handlers {
        apply_migrations(&mut connection, store.kind(), handler).await?;
    }
    // A migration may make the role.
    for handler in handlers {
        check_role(&mut connection, handler).await?;
    }
    Ok(connection)
}

/// Brings the tables of one handler up to date, over a connection of its own, and sees that it can take its role. Without either
/// there is nothing to ask the database.
pub(super) async fn prepare_handler(
    store: &Store,
    handler: &HandlerConfig,
) -> Result<(), NotPrepared> {
    if handler.migrations.is_none() && handler.rights.role.is_none() {
        return Ok(());
    }
    let mut connection = store
        .connect(&own_session("reload"))
        .await
        .map_err(|error| {
            NotPrepared::of(error, |error| {
                CommandError::store(
                    &format!("handler `{}`: cannot ask the database", handler.name),
                    &error,
                )
            })
        })?;
    apply_migrations(&mut connection, store.kind(), handler).await?;
    check_role(&mut connection, handler).await
}

async fn check_role(
    connection: &mut Connection,
    handler: &HandlerConfig,
) -> Result<(), NotPrepared> {
    let Some(role) = &handler.rights.role else {
        return Ok(());
    };
    connection.check_role(role).await.map_err(|error| {
        NotPrepared::of(error, |error| {
            CommandError::store(&format!("handler `{}`: `role`", handler.name), &error)
        })
    })
}

/// Waits for the database and brings hapax's own tables and those of the handlers up to date. Returns, too, what can lose data there; `None` when the drain
/// came first.
pub(super) async fn migrated(
    store: &Store,
    handlers: &[&HandlerConfig],
    health: &Arc<Health>,
    drain: &mut watch::Receiver<bool>,
) -> Result<Option<(Connection, Vec<String>)>, CommandError> {
    let part = health.part("store");
    let mut news = News::default();
    loop {
        match prepare(store, handlers).await {
            Ok(connection) => {
                let losable = look_at_store(store).await?;
                return Ok(Some((connection, losable)));
            }
            Err(NotPrepared::Away(why)) => {
                part.down(&why);
                if news.is_news(&why) {
                    tracing::warn!(why = %one_line(&why), "waiting for the database");
                }
            }
            Err(NotPrepared::Refused(error)) => return Err(error),
        }
        if pause_or_drain(drain).await {
            return Ok(None);
        }
    }
}

/// Refuses a database that is reached in a way that breaks the promise. Returns what can lose data, a sentence each.
async fn look_at_store(store: &Store) -> Result<Vec<String>, CommandError> {
    match store.look().await {
        Ok(losable) => Ok(losable),
        Err(error @ StoreError::Unusable(_)) => Err(CommandError::store("`store.url`", &error)),
        Err(error) => {
            tracing::debug!(%error, "how the database is reached was not looked at");
            Ok(Vec::new())
        }
    }
}

/// Pauses between two tries. True if the drain began.
pub(super) async fn pause_or_drain(drain: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        // Neither loses anything when dropped.
        _ = drain.wait_for(|draining| *draining) => true,
        () = tokio::time::sleep(START_PAUSE) => false,
    }
}

/// Brings one handler's own tables up to date; for who does not wait.
pub(super) async fn migrate_handler(
    connection: &mut Connection,
    kind: crate::store::StoreKind,
    handler: &HandlerConfig,
) -> Result<(), CommandError> {
    apply_migrations(connection, kind, handler)
        .await
        .map_err(|error| match error {
            NotPrepared::Refused(error) => error,
            NotPrepared::Away(why) => CommandError::store(
                &format!("handler `{}`: migrations", handler.name),
                &StoreError::Unavailable(why),
            ),
        })
}

async fn apply_migrations(
    connection: &mut Connection,
    kind: crate::store::StoreKind,
    handler: &HandlerConfig,
) -> Result<(), NotPrepared> {
    let Some(folder) = &handler.migrations else {
        return Ok(());
    };
    let migrations = handler_migrations::read(folder, kind).map_err(|(problem, hint)| {
        NotPrepared::Refused(CommandError::new(
            Exit::Configuration,
            format!("handler `{}`: {problem}", handler.name),
            Some(&hint),
        ))
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
            Err(NotPrepared::Refused(CommandError::new(
                Exit::Configuration,
                format!(
                    "handler `{}`: the database refuses the migration {}",
                    handler.name, error.message
                ),
                Some(
                    "correct the file: nothing of it was applied, and those before it stay applied",
                ),
            )))
        }
        Err(error) => Err(NotPrepared::of(error, |error| {
            CommandError::store(&format!("handler `{}`: migrations", handler.name), &error)
        })),
    }
}

/// A handler's source, and what compares it with the claims.
pub(super) struct ConnectedSource {
    pub(super) source: Box<dyn Source>,
    /// Absent for a queue: its rows are in the same database as the claims.
    pub(super) reconciled: Option<Reconciled>,
}

/// Waits for a handler's source. `None` when the drain came first.
pub(super) async fn connect_source(
    source: &SourceConfig,
    handler: &HandlerConfig,
    store: &Arc<Store>,
    health: &Arc<Health>,
    drain: &mut watch::Receiver<bool>,
) -> Result<Option<ConnectedSource>, CommandError> {
    let part = health.part(part_of(source));
    let mut news = News::default();
    loop {
        match try_source(source, handler, store, health).await {
            Ok(connected) => return Ok(Some(connected)),
            Err(SourceError::Unavailable(why)) => {
                part.down(&why);
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

/// What a source's health is reported on.
fn part_of(source: &SourceConfig) -> String {
    match &source.kind {
        SourceKind::Queue => "store".to_owned(),
        SourceKind::JetStream(_) => format!("source {}", source.name),
    }
}

/// Connects a handler's source, which fetches from then on.
pub(super) async fn try_source(
    source: &SourceConfig,
    handler: &HandlerConfig,
    store: &Arc<Store>,
    health: &Arc<Health>,
) -> Result<ConnectedSource, SourceError> {
    let (mut main, reconciled): (Box<dyn Source>, Option<Reconciled>) = match &source.kind {
        SourceKind::Queue => (Box::new(Queue::new(Arc::clone(store), &source.name)), None),
        SourceKind::JetStream(stream) => {
            let source = JetStream::connect(&jetstream_options(stream, handler)).await?;
            window::warn(handler, &source.reach());
            let reconciled = Reconciled::new(handler, source.acknowledged());
            (Box::new(source), Some(reconciled))
        }
    };
    let mut carried = Queue::new(Arc::clone(store), &Carried::queue(&handler.consumer));
    main.report_to(health.part(part_of(source)));
    carried.report_to(health.part("store"));
    let merged = Merged::new(
        &handler.name,
        main,
        Box::new(carried),
        pipeline::in_hand_max(handler),
    );
    Ok(ConnectedSource {
        source: Box::new(merged),
        reconciled,
    })
}
