//! What `hapax handlers` prints for people.

use std::fmt::Write as _;

use super::super::listing::fitted;
use super::super::{count, size, table_of};
use crate::admin::{Changed, HandlerHistory, HandlersList, ListedHandler, ListedHost};
use crate::text::one_line;

/// How many digits of a digest are shown.
const DIGEST_DIGITS: usize = 12;

/// Leaves the random digits of a process out.
pub(super) fn short_host(host: &str) -> &str {
    host.rsplit_once(':').map_or(host, |(short, _)| short)
}

fn digest(digest: Option<&str>) -> String {
    digest.map_or_else(
        || "-".to_owned(),
        |digest| digest.get(..DIGEST_DIGITS).unwrap_or(digest).to_owned(),
    )
}

/// A line a handler, and one for each host that does something else.
pub(super) fn list(list: &HandlersList) -> String {
    if list.handlers.is_empty() {
        return "the host has no handlers\n".into();
    }
    let heads = ["handler", "from", "state", "deployed", "digest", "hosts"].map(str::to_owned);
    let mut rows = vec![heads];
    let mut notes = String::new();
    for handler in &list.handlers {
        let odd: Vec<&ListedHost> = handler
            .hosts
            .iter()
            .filter(|host| is_odd(handler, host))
            .collect();
        rows.push([
            one_line(&handler.name),
            handler.owner.clone(),
            state(handler).to_owned(),
            handler
                .deployment
                .map_or_else(|| "-".to_owned(), |number| number.to_string()),
            digest(
                handler.digest.as_deref().or(handler
                    .hosts
                    .first()
                    .and_then(|host| host.digest.as_deref())),
            ),
            format!(
                "{} of {}",
                handler.hosts.len() - odd.len(),
                handler.hosts.len()
            ),
        ]);
        for host in odd {
            let _ = writeln!(
                notes,
                "note: `{}` at {}: {} {}{}",
                one_line(&handler.name),
                one_line(short_host(&host.host)),
                host.state,
                digest(host.digest.as_deref()),
                host.error
                    .as_deref()
                    .map_or_else(String::new, |why| format!(": {}", one_line(why)))
            );
        }
    }
    table_of(&rows, |_| true) + &notes
}

fn state(handler: &ListedHandler) -> &'static str {
    if handler.owner == "store" && handler.deployment.is_none() {
        "waiting"
    } else if handler.paused {
        "paused"
    } else {
        "running"
    }
}

/// True of a host that has not, or not yet, what all are to have.
fn is_odd(handler: &ListedHandler, host: &ListedHost) -> bool {
    host.generation < handler.generation
        || host.error.is_some()
        || host.state != state(handler)
        || (handler.digest.is_some() && host.digest != handler.digest)
}

/// The newest first.
pub(super) fn history(history: &HandlerHistory) -> String {
    if history.deployments.is_empty() {
        return format!("nothing was deployed to `{}`\n", history.handler);
    }
    let heads = [
        "",
        "number",
        "at",
        "by",
        "digest",
        "size",
        "made with",
        "notes",
    ];
    let mut rows = vec![heads.map(str::to_owned)];
    for line in &history.deployments {
        let made: Vec<String> = line
            .producers
            .iter()
            .map(|producer| one_line(&producer.name))
            .collect();
        let mut notes = Vec::new();
        if let Some(number) = line.back_to {
            notes.push(format!("back to {number}"));
        }
        if !line.migrations.is_empty() {
            notes.push(format!("applied {}", line.migrations.join(", ")));
        }
        rows.push([
            if line.active { "*" } else { "" }.to_owned(),
            line.number.to_string(),
            line.deployed_at
                .as_deref()
                .map_or_else(|| "-".to_owned(), |at| seconds(at).to_owned()),
            one_line(&line.deployed_by),
            digest(Some(&line.digest)),
            size(line.bytes),
            if made.is_empty() {
                "-".to_owned()
            } else {
                made.join(", ")
            },
            notes.join("; "),
        ]);
    }
    fitted(rows)
}

/// Cuts a moment to the second.
fn seconds(at: &str) -> &str {
    at.split_once('.').map_or(at, |(seconds, _)| seconds)
}

/// What was changed, in a line.
pub(super) fn changed(done: &str, changed: &Changed) -> String {
    let name = one_line(&changed.handler);
    if !changed.changed {
        return format!("`{name}`: nothing to do, it is so already\n");
    }
    let mut text = format!("`{name}` {done}");
    if let (Some(number), Some(_)) = (changed.deployment, &changed.digest) {
        let _ = write!(
            text,
            ": deployment {number}, {}",
            digest(changed.digest.as_deref())
        );
    }
    if changed.paused && done != "paused" {
        text.push_str("; it is paused: `hapax handlers resume` lets its messages run");
    }
    text.push('\n');
    if !changed.migrations.is_empty() {
        let _ = writeln!(
            text,
            "applied {}: {}",
            count(changed.migrations.len() as u64, "migration"),
            changed.migrations.join(", ")
        );
    }
    text
}

/// A line a host.
pub(super) fn hosts(hosts: &[ListedHost]) -> String {
    let rows: Vec<[String; 3]> = hosts
        .iter()
        .map(|host| {
            [
                format!("  {}", one_line(short_host(&host.host))),
                host.state.clone(),
                digest(host.digest.as_deref()),
            ]
        })
        .collect();
    table_of(&rows, |_| true)
}
