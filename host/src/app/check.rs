//! `hapax check`: the configuration and the components, without database or broker.

use std::sync::Arc;

use serde::Serialize;

use super::handler_migrations;
use crate::config::{Config, HandlerConfig};
use crate::exit::{CommandError, Exit};
use crate::handler::{Handler, Runtime};
use crate::store::StoreKind;

/// What a checked handler is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckedHandler {
    /// Its name.
    pub name: String,
    /// The component's file.
    pub component: String,
    /// SHA-256 of the component, in hexadecimal digits.
    pub digest: String,
    /// The component's size.
    pub bytes: u64,
    /// What the component imports.
    pub imports: Vec<String>,
    /// The source's name.
    pub source: String,
    /// The claims' key.
    pub consumer: String,
    /// The places where the message id is looked for, in order.
    pub message_id: Vec<String>,
    /// How many migrations it has.
    pub migrations: usize,
}

/// Checks everything that `config` names, and reports every problem.
///
/// # Errors
/// All problems, each with its hint.
pub async fn check(config: &Config) -> Result<Vec<CheckedHandler>, CommandError> {
    let runtime = Arc::new(super::run::runtime(config)?);
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
                Ok(migrations) => migrations.len(),
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
        match load(Arc::clone(&runtime), handler.clone()).await {
            Ok(component) => checked.push(CheckedHandler {
                name: handler.name.clone(),
                component: handler.component.display().to_string(),
                digest: component.digest().to_string(),
                bytes: component.bytes(),
                imports: component.imports().to_vec(),
                source: handler.source.clone(),
                consumer: handler.consumer.clone(),
                message_id: handler.message_id.iter().map(ToString::to_string).collect(),
                migrations,
            }),
            Err(error) => problems.push(error),
        }
    }
    match CommandError::all(problems) {
        Some(error) => Err(error),
        None => Ok(checked),
    }
}

/// Reads and compiles a handler's component, off the async threads.
pub(super) async fn load(
    runtime: Arc<Runtime>,
    handler: HandlerConfig,
) -> Result<Handler, CommandError> {
    let name = handler.name.clone();
    let loaded = tokio::task::spawn_blocking(move || {
        let bytes = std::fs::read(&handler.component).map_err(|err| {
            CommandError::new(
                Exit::Configuration,
                format!(
                    "handler `{}`: cannot read `{}`: {err}",
                    handler.name,
                    handler.component.display()
                ),
                Some("build the component, or correct `component` in the configuration"),
            )
        })?;
        runtime
            .load(&handler.component.display().to_string(), &bytes)
            .map(|component| {
                Handler::new(
                    Arc::clone(&runtime),
                    component,
                    handler.name.clone(),
                    handler.consumer.clone(),
                    handler.limits.clone(),
                    handler.config.clone(),
                )
            })
            .map_err(|error| CommandError::component(&handler.name, &error))
    })
    .await;
    match loaded {
        Ok(loaded) => loaded,
        Err(error) => Err(CommandError::new(
            Exit::Bug,
            format!("handler `{name}`: loading its component failed: {error}"),
            None,
        )),
    }
}
