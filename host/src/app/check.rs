//! `hapax check`: the configuration and the components, without database or broker.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::handler_migrations;
use crate::config::{ComponentPlace, Config, HandlerConfig, SourceKind, TargetConfig};
use crate::exit::{CommandError, Exit};
use crate::handler::{ComponentInfo, Handler, HandlerOptions, LoadError, Runtime, Targets, World};
use crate::message::ComponentDigest;
use crate::store::{Reach, StoreKind, check_handler_migrations};

/// What a component imports that publishes.
const OUTBOX_INTERFACES: [&str; 2] = ["hapax:handler/outbox@", "hapax:handler/batch-outbox@"];

/// What a checked handler is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckedHandler {
    /// Its name.
    pub name: String,
    /// The component's file, or `store`: then nothing is known of it here.
    pub component: String,
    /// SHA-256 of the component, in hexadecimal digits.
    pub digest: Option<String>,
    /// The version of `hapax:handler` that it was built for.
    pub contract: Option<String>,
    /// Whether a call takes one message or many.
    pub world: Option<World>,
    /// The component's size.
    pub bytes: Option<usize>,
    /// What the component imports.
    pub imports: Vec<String>,
    /// Where it can publish to; absent if it can't publish.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<Vec<String>>,
    /// The source's name.
    pub source: String,
    /// What the source is: `queue` or `jetstream`.
    pub source_kind: &'static str,
    /// The claims' key.
    pub consumer: String,
    /// The places where the message id is looked for, in order.
    pub message_id: Vec<String>,
    /// Where the key stands whose messages run in the source's order.
    pub order_by: Option<String>,
    /// What a dead letter means for later messages of its key: `continue` or `hold`.
    pub on_dead: Option<&'static str>,
    /// What one call may use.
    pub limits: CheckedLimits,
    /// Connections on which messages run.
    pub lanes: usize,
    /// How many messages go into one transaction.
    pub batch: CheckedBatch,
    /// How often and when a failed message runs again.
    pub retry: CheckedRetry,
    /// How many migrations it has.
    pub migrations: usize,
    /// The database role of its statements.
    pub role: Option<String>,
    /// True if it may make, change and drop tables and their like.
    pub allow_ddl: bool,
    /// What its component's texts have that differs from run to run, although it is said to be replayable: `now()`.
    pub differs: Vec<String>,
}

/// What `check --database` found for one handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckedDatabase {
    /// The handler's name.
    pub handler: String,
    /// What its statements can reach.
    pub reach: Reach,
}

/// What one call of a handler may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CheckedLimits {
    /// Linear memory.
    pub memory_bytes: u64,
    /// Time of its own code.
    pub cpu_ms: u64,
    /// Time from start to end.
    pub time_ms: u64,
    /// Rows of one query.
    pub rows: u64,
    /// Statements.
    pub statements: u64,
    /// The values of one query's result.
    pub result_bytes: u64,
    /// What it hands over in one call of a host function.
    pub call_bytes: u64,
    /// Elements of a table.
    pub table_elements: u64,
    /// Savepoints open at once.
    pub savepoints: u64,
    /// Cursors held at once.
    pub cursors: u64,
    /// Published messages.
    pub outbox: u32,
    /// Log lines that are kept.
    pub log_bytes: u64,
}

/// How many messages go into one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CheckedBatch {
    /// At the most.
    pub max: usize,
    /// How long it may hold its locks.
    pub max_hold_ms: u64,
}

/// How often and when a failed message runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CheckedRetry {
    /// Failed runs before it becomes a dead letter.
    pub attempts: u32,
    /// The wait after the first; it doubles with each.
    pub backoff_min_ms: u64,
    /// The longest wait.
    pub backoff_max_ms: u64,
}

/// Checks everything that `config` names, and reports every problem.
///
/// # Errors
/// All problems, each with its hint.
pub async fn check(config: &Config) -> Result<Vec<CheckedHandler>, CommandError> {
    let runtime = super::run::checked_runtime(
        &super::supervisor::room_for(config.handlers.values()),
        super::run::open_cache(config),
    )
    .await?;
    let kind = if config.store.is_sqlite() {
        StoreKind::Sqlite
    } else {
        StoreKind::Postgres
    };
    let mut problems = Vec::new();
    let mut checked = Vec::new();
    if let Err(error) = super::open_store(config) {
        problems.push(error);
    }
    for handler in config.handlers.values() {
        let migrations = match &handler.migrations {
            None => 0,
            Some(folder) => match handler_migrations::read(folder, kind) {
                Ok(migrations) => {
                    if let Err(error) = check_handler_migrations(kind, &migrations) {
                        problems.push(CommandError::store(
                            &format!("handler `{}`: migrations", handler.name),
                            &error,
                        ));
                    }
                    migrations.len()
                }
                Err((problem, hint)) => {
                    problems.push(CommandError::new(
                        Exit::Configuration,
                        format!("handler `{}`: {problem}", handler.name),
                        Some(&hint),
                    ));
                    0
                }
            },
        };
        let info = match &handler.component {
            ComponentPlace::Store => None,
            ComponentPlace::File(path) => {
                match load(&runtime, handler, path, &config.targets).await {
                    Ok(component) => Some(component.info().clone()),
                    Err(error) => {
                        problems.push(CommandError::component(&handler.name, &error));
                        continue;
                    }
                }
            }
        };
        checked.push(checked_handler(config, handler, info, migrations).await);
    }
    match CommandError::all(problems) {
        Some(error) => Err(error),
        None => Ok(checked),
    }
}

/// Describes a handler; `info` is of its component, where that is at hand.
async fn checked_handler(
    config: &Config,
    handler: &HandlerConfig,
    info: Option<ComponentInfo>,
    migrations: usize,
) -> CheckedHandler {
    CheckedHandler {
        name: handler.name.clone(),
        component: handler.component.to_string(),
        digest: info.as_ref().map(|info| info.digest.to_string()),
        contract: info.as_ref().map(|info| info.contract_version.clone()),
        world: info.as_ref().map(|info| info.world),
        bytes: info.as_ref().map(|info| info.size_bytes),
        targets: info
            .as_ref()
            .is_some_and(|info| {
                let mut imports = info.imports.iter();
                imports.any(|import| {
                    OUTBOX_INTERFACES
                        .iter()
                        .any(|outbox| import.starts_with(outbox))
                })
            })
            .then(|| config.targets.keys().cloned().collect()),
        imports: info.map(|info| info.imports).unwrap_or_default(),
        source: handler.source.clone(),
        source_kind: match config
            .sources
            .get(&handler.source)
            .map(|source| &source.kind)
        {
            Some(SourceKind::JetStream(_)) => "jetstream",
            // The source exists, or the configuration would have been refused.
            Some(SourceKind::Queue) | None => "queue",
        },
        consumer: handler.consumer.clone(),
        message_id: handler
            .message_id
            .places()
            .iter()
            .map(ToString::to_string)
            .collect(),
        order_by: handler.order.as_ref().map(|order| order.by.to_string()),
        on_dead: handler.order.as_ref().map(|order| order.on_dead.as_str()),
        limits: CheckedLimits {
            memory_bytes: handler.limits.memory_bytes as u64,
            cpu_ms: milliseconds(handler.limits.cpu),
            time_ms: milliseconds(handler.limits.time),
            rows: handler.limits.rows,
            statements: handler.limits.statements,
            result_bytes: handler.limits.result_bytes as u64,
            call_bytes: handler.limits.call_bytes as u64,
            table_elements: handler.limits.table_elements as u64,
            savepoints: handler.limits.savepoints as u64,
            cursors: handler.limits.cursors as u64,
            outbox: handler.limits.outbox,
            log_bytes: handler.limits.log_bytes as u64,
        },
        lanes: handler.lanes,
        batch: CheckedBatch {
            max: handler.batch.max,
            max_hold_ms: milliseconds(handler.batch.max_hold),
        },
        retry: CheckedRetry {
            attempts: handler.retry.attempts,
            backoff_min_ms: milliseconds(handler.retry.backoff_min),
            backoff_max_ms: milliseconds(handler.retry.backoff_max),
        },
        migrations,
        role: handler.rights.role.clone(),
        allow_ddl: handler.rights.allow_ddl,
        differs: differs(handler).await,
    }
}

/// Asks the database what each handler can reach, and whether it can take its role. Changes nothing: no migration is applied.
///
/// # Errors
/// All problems, each with its hint.
pub async fn check_database(config: &Config) -> Result<Vec<CheckedDatabase>, CommandError> {
    let store = super::open_store(config)?;
    let mut connection = store
        .connect(&super::own_session("check"))
        .await
        .map_err(|error| CommandError::store("cannot look at the database", &error))?;
    let mut problems = Vec::new();
    let mut checked = Vec::new();
    for handler in config.handlers.values() {
        let role = handler.rights.role.as_deref();
        if let Some(role) = role
            && let Err(error) = connection.check_role(role).await
        {
            problems.push(CommandError::store(
                &format!("handler `{}`: `role`", handler.name),
                &error,
            ));
            continue;
        }
        match connection.reach(role).await {
            Ok(reach) => checked.push(CheckedDatabase {
                handler: handler.name.clone(),
                reach,
            }),
            Err(error) => problems.push(CommandError::store(
                &format!("handler `{}`: what it can reach", handler.name),
                &error,
            )),
        }
    }
    match CommandError::all(problems) {
        Some(error) => Err(error),
        None => Ok(checked),
    }
}

/// Looks for SQL whose result differs from run to run, if the handler is said to be replayable.
async fn differs(handler: &HandlerConfig) -> Vec<String> {
    if !handler.replayable {
        return Vec::new();
    }
    let Some(path) = handler.component.file() else {
        return Vec::new();
    };
    match tokio::fs::read(path).await {
        Ok(bytes) => super::replayable::differing(&bytes),
        // It was read a moment ago; that it is gone is another check's to say.
        Err(_) => Vec::new(),
    }
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Returns what a handler is, but for its component.
pub(super) fn handler_options(
    handler: &HandlerConfig,
    targets: &BTreeMap<String, TargetConfig>,
) -> HandlerOptions {
    HandlerOptions {
        name: handler.name.clone(),
        consumer: handler.consumer.clone(),
        limits: handler.limits.clone(),
        config: handler.config.clone(),
        targets: Targets {
            names: targets.keys().cloned().collect(),
            default: handler.target.clone(),
        },
    }
}

/// Reads and compiles a handler's component from its file, off the async threads.
pub(super) async fn load(
    runtime: &Runtime,
    handler: &HandlerConfig,
    path: &Path,
    targets: &BTreeMap<String, TargetConfig>,
) -> Result<Handler, LoadError> {
    let component = runtime.load_file(path).await?;
    check_pin(handler, &path.display().to_string(), component.digest())?;
    Handler::new(component, handler_options(handler, targets))
}

/// Refuses a component that is not the pinned one. `name` is for messages: the file's path.
pub(super) fn check_pin(
    handler: &HandlerConfig,
    name: &str,
    digest: ComponentDigest,
) -> Result<(), LoadError> {
    match handler.sha256 {
        Some(pinned) if pinned != digest => Err(LoadError {
            problem: format!(
                "`{name}` has the digest `{digest}`, and `sha256` of the handler allows only `{pinned}`"
            ),
            hint: "if this component is the right one, write its digest into `sha256`".into(),
        }),
        _ => Ok(()),
    }
}
