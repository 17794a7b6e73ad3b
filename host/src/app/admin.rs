//! The admin address: opened with what the host runs with.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::gauges::keep_asking;
use crate::admin::{Admin, AdminRooms, HandlersDoor, Token};
use crate::config::{AdminConfig, Config};
use crate::exit::{CommandError, Exit};
use crate::health::Health;

/// The admin address, and what asks for figures as long as it is open.
pub(super) struct OpenAdmin {
    _admin: Admin,
    asking: JoinHandle<()>,
}

impl Drop for OpenAdmin {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

/// Listens at the admin address, if there is one. `in_force` is what the host runs with from then on, `handlers` who answers about them.
///
/// # Errors
/// A token that can't be read or used; an address that can't be listened at.
pub(super) async fn listen(
    config: &Config,
    health: &Arc<Health>,
    in_force: watch::Receiver<Arc<Config>>,
    handlers: HandlersDoor,
) -> Result<Option<OpenAdmin>, CommandError> {
    let Some(admin) = &config.admin else {
        return Ok(None);
    };
    let token = token(admin)?;
    let metrics = crate::metrics::install().map_err(|error| {
        CommandError::new(
            Exit::Bug,
            format!("cannot measure: {error}"),
            Some("a process runs hapax once; report this as a bug"),
        )
    })?;
    let rooms = AdminRooms {
        config: in_force.clone(),
        health: Arc::clone(health),
        metrics,
        token,
        handlers,
    };
    match Admin::listen(admin.listen, rooms).await {
        Ok(admin) => {
            tracing::info!(address = %admin.address, "the admin address is open");
            Ok(Some(OpenAdmin {
                _admin: admin,
                asking: tokio::spawn(keep_asking(move || Arc::clone(&in_force.borrow()))),
            }))
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

/// Reads the token where it stands.
fn token(admin: &AdminConfig) -> Result<Option<Token>, CommandError> {
    let Some(secret) = &admin.token else {
        return Ok(None);
    };
    let refused = |why: String, hint: Option<&str>| {
        CommandError::new(Exit::Configuration, format!("`admin.token`: {why}"), hint)
    };
    let text = secret
        .read()
        .map_err(|error| refused(error.to_string(), None))?;
    match Token::new(&text) {
        Ok(token) => Ok(Some(token)),
        Err(problem) => Err(refused(
            format!("the token {problem}"),
            Some("use one that `openssl rand -hex 32` makes"),
        )),
    }
}
