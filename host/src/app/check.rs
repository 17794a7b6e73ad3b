//! `hapax check`: the configuration and the components, without database or broker.

use serde::Serialize;

use super::handler_migrations;
use crate::config::{Config, HandlerConfig};
use crate::exit::{CommandError, Exit};
use crate::handler::{Handler, HandlerOptions, Runtime};
use crate::store::{StoreKind, check_handler_migrations};

/// What a checked handler is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckedHandler {
    /// Its name.
    pub name: String,
    /// The component's file.
    pub component: String,
    /// SHA-256 of the component, in hexadecimal digits.
    pub digest: String,
    /// The version of `hapax:handler` that it was built for.
    pub contract: String,
    /// The component's size.
    pub bytes: usize,
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
    let runtime = super::run::runtime(config)?;
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
        match load(&runtime, handler).await {
            Ok(component) => checked.push(CheckedHandler {
                name: handler.name.clone(),
                component: handler.component.display().to_string(),
                digest: component.digest().to_string(),
                contract: component.info().contract_version.clone(),
                bytes: component.info().size_bytes,
                imports: component.info().imports.clone(),
                source: handler.source.clone(),
                consumer: handler.consumer.clone(),
                message_id: handler
                    .message_id
                    .places()
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
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
    runtime: &Runtime,
    handler: &HandlerConfig,
) -> Result<Handler, CommandError> {
    let options = HandlerOptions {
        name: handler.name.clone(),
        consumer: handler.consumer.clone(),
        limits: handler.limits.clone(),
        config: handler.config.clone(),
    };
    runtime
        .load_file(&handler.component)
        .await
        .and_then(|component| Handler::new(component, options))
        .map_err(|error| CommandError::component(&handler.name, &error))
}
