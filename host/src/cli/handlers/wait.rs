//! Waiting until every host has a change.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::super::styled;
use super::client::Client;
use super::text::short_host;
use crate::admin::{Changed, HandlersList, ListedHost};
use crate::exit::{CommandError, Exit};

/// How often the hosts are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Returns every host that is there, when all have taken the change over or failed at it, or when `timeout` is over.
pub(super) async fn until_every_host_has(
    client: &Client,
    changed: &Changed,
    timeout: Duration,
) -> Result<Vec<ListedHost>, CommandError> {
    let bar = styled(ProgressBar::new_spinner(), "{spinner} waiting for {msg}");
    let until = Instant::now() + timeout;
    loop {
        let list: HandlersList = client.get("/api/handlers").await?;
        let hosts: Vec<ListedHost> = list
            .handlers
            .into_iter()
            .find(|handler| handler.name == changed.handler)
            .map(|handler| handler.hosts)
            .unwrap_or_default();
        // The one that answers has the handler; until it has told of it, others may be missing, too.
        let is_complete = hosts.iter().any(|host| host.host == list.host);
        let late: Vec<&str> = hosts
            .iter()
            .filter(|host| host.generation < changed.generation)
            .map(|host| short_host(&host.host))
            .collect();
        if (is_complete && late.is_empty()) || Instant::now() >= until {
            bar.finish_and_clear();
            return Ok(hosts);
        }
        bar.set_message(late.join(", "));
        bar.tick();
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Fails if a host has not taken the change over.
pub(super) fn all_well(
    changed: &Changed,
    hosts: &[ListedHost],
    timeout: Duration,
) -> Result<(), CommandError> {
    let errors = hosts
        .iter()
        .filter_map(|host| {
            let name = short_host(&host.host);
            if host.generation < changed.generation {
                return Some(CommandError::new(
                    Exit::Failed,
                    format!("host `{name}` has not taken it over within {timeout:?}"),
                    Some("look at `hapax handlers list` again, and into the host's log"),
                ));
            }
            let why = host.error.as_deref()?;
            Some(CommandError::new(
                Exit::Failed,
                format!("host `{name}` goes on as before: {why}"),
                Some("look into the host's log; `hapax handlers rollback` brings all hosts back to one component"),
            ))
        })
        .collect();
    CommandError::all(errors).map_or(Ok(()), Err)
}
