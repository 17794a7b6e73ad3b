//! A consumer as one writes it first, for comparison: it runs the handler in a transaction for each delivery, commits, and goes on.
//!
//! **Invariant**: the handler, its SQL and the store's code are the same as those of a host. Only the claim is missing.

use std::sync::Arc;

use super::{HANDLER, SOURCE, bug};
use crate::app::check::load;
use crate::app::prepare::migrate_handler;
use crate::app::run::{checked_runtime, open_cache};
use crate::app::supervisor::room_for;
use crate::app::{NewMessage, connect_and_migrate};
use crate::config::Config;
use crate::exit::{CommandError, Exit};
use crate::handler::Verdict;
use crate::message::{Incoming, Message, MessageId, Position};
use crate::store::{Store, StoreError, Tx};

/// Takes every delivery through the handler, in their order, into `store`. Returns how many took effect.
pub(super) async fn run<'a>(
    config: &Config,
    store: &Store,
    deliveries: impl Iterator<Item = &'a NewMessage>,
) -> Result<u64, CommandError> {
    let failed = |error: &StoreError| CommandError::store("the plain consumer's store", error);
    let Some(handler_config) = config.handlers.get(HANDLER) else {
        return Err(bug("the demo's configuration has no handler"));
    };
    let runtime = checked_runtime(&room_for(config.handlers.values()), open_cache(config)).await?;
    let Some(path) = handler_config.component.file() else {
        return Err(bug("the demo's handler has no file"));
    };
    let handler = load(&runtime, handler_config, path, &config.targets)
        .await
        .map_err(|error| CommandError::component(HANDLER, &error))?;
    let mut connection = connect_and_migrate(store, "plain consumer")
        .await
        .map_err(|error| failed(&error))?;
    migrate_handler(&mut connection, store.kind(), handler_config).await?;

    let mut took_effect = 0;
    for (number, delivery) in deliveries.enumerate() {
        let message = message(delivery, number)?;
        let tx = Tx::begin(connection)
            .await
            .map_err(|error| failed(&error))?;
        let called = handler.call(tx, &message, None, 1).await;
        let (Verdict::Ok, Some(tx)) = (&called.verdict, called.tx) else {
            return Err(CommandError::new(
                Exit::Failed,
                format!(
                    "the plain consumer: message `{}`: {:?}",
                    message.id, called.verdict
                ),
                None,
            ));
        };
        let ended = tx.commit().await;
        connection = match (ended.result, ended.connection) {
            (Ok(_), Some(connection)) => connection,
            (Ok(_), None) => return Err(bug("a commit gave no connection back")),
            (Err(error), _) => return Err(failed(&error.into())),
        };
        took_effect += 1;
    }
    Ok(took_effect)
}

fn message(delivery: &NewMessage, number: usize) -> Result<Message, CommandError> {
    let id = delivery.id.clone().unwrap_or_default();
    Ok(Message {
        id: MessageId::new(id.clone()).map_err(|error| bug(&error))?,
        source: SOURCE.to_owned(),
        incoming: Arc::new(Incoming {
            subject: delivery.subject.clone().unwrap_or_default(),
            headers: delivery.headers.clone(),
            content_type: None,
            payload: delivery.payload.clone(),
            published_at: None,
            position: Position(number.to_string()),
            queue_id: Some(id),
        }),
    })
}
