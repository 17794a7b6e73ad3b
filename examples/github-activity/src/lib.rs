//! Keeps, from GitHub's webhooks, how much happens in each repository and the latest state of each issue.
//!
//! **Invariant**: the tables do not depend on the order of the messages, so that they can be recomputed and compared. They do depend
//! on each message counting once: the counters only ever add 1.

use hapax_guest::{Failure, Message, OrFail as _, params, sql};

/// The repository of webhooks that concern none, such as those of an organisation.
const NO_REPOSITORY: &str = "(none)";

#[derive(serde::Deserialize)]
struct Webhook {
    repository: Option<Repository>,
    issue: Option<Issue>,
}

#[derive(serde::Deserialize)]
struct Repository {
    full_name: String,
    /// Of interest only if it is text.
    updated_at: Option<serde_json::Value>,
}

#[derive(serde::Deserialize)]
struct Issue {
    id: i64,
    number: i64,
    title: String,
    /// Absent when an issue is pinned or unpinned.
    state: Option<String>,
    updated_at: String,
}

fn handle(message: Message) -> Result<(), Failure> {
    let event = message
        .header_text("X-GitHub-Event")?
        .or_reject_with(|| "header `X-GitHub-Event` is missing: it names the event")?;
    let webhook: Webhook = message.json()?;
    let (repository, last_activity) = match &webhook.repository {
        Some(repository) => (
            repository.full_name.as_str(),
            repository
                .updated_at
                .as_ref()
                .and_then(|moment| moment.as_str()),
        ),
        None => (NO_REPOSITORY, None),
    };

    count(repository, event, last_activity)?;
    if let Some(issue) = &webhook.issue {
        keep(repository, issue)?;
    }
    Ok(())
}

fn count(repository: &str, event: &str, last_activity: Option<&str>) -> Result<(), sql::Error> {
    // The repository's row first, in every message: whoever comes second waits here, holding nothing.
    sql::execute(
        "INSERT INTO repositories (repository, events, last_activity) VALUES ($1, 1, $2)
         ON CONFLICT (repository) DO UPDATE SET
             events = repositories.events + 1,
             last_activity = CASE
                 WHEN repositories.last_activity IS NULL OR excluded.last_activity > repositories.last_activity
                 THEN excluded.last_activity
                 ELSE repositories.last_activity
             END",
        &params![repository, last_activity],
    )?;
    sql::execute(
        "INSERT INTO event_counts (repository, event, count) VALUES ($1, $2, 1)
         ON CONFLICT (repository, event) DO UPDATE SET count = event_counts.count + 1",
        &params![repository, event],
    )?;
    Ok(())
}

/// Keeps the latest of what was said about an issue; of two with the same time, the greater by title and state.
fn keep(repository: &str, issue: &Issue) -> Result<(), sql::Error> {
    sql::execute(
        "INSERT INTO issues (issue_id, repository, number, title, state, updated_at) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (issue_id) DO UPDATE SET
             repository = excluded.repository,
             number = excluded.number,
             title = excluded.title,
             state = excluded.state,
             updated_at = excluded.updated_at
         WHERE (excluded.updated_at, excluded.title, COALESCE(excluded.state, ''))
             > (issues.updated_at, issues.title, COALESCE(issues.state, ''))",
        &params![
            issue.id,
            repository,
            issue.number,
            issue.title,
            issue.state,
            issue.updated_at
        ],
    )?;
    Ok(())
}

hapax_guest::handler!(handle);
