//! What the tables must hold, computed from the messages alone.
//!
//! **Invariant**: every message counts once, whatever was sent how often; no code and no SQL of the handler is used here.
//! `cargo xtask demo --full` compiles this file too.

use serde_json::Value;

use super::tables::{Issue, NO_REPOSITORY, Repository, Tables};

/// Returns the tables that result when each of `messages`, an event's name and what GitHub sent, takes effect once.
///
/// The order of messages makes no difference.
pub(super) fn tables<'a>(messages: impl Iterator<Item = (&'a str, &'a Value)>) -> Tables {
    let mut tables = Tables::default();
    for (event, body) in messages {
        let repository = &body["repository"];
        let name = repository["full_name"].as_str().unwrap_or(NO_REPOSITORY);

        let row = tables
            .repositories
            .entry(name.to_owned())
            .or_insert_with(Repository::default);
        row.events += 1;
        // All times are ISO 8601 in UTC, to the second: the greater text is the later time, and none is less than any.
        row.last_activity = row
            .last_activity
            .take()
            .max(text(&repository["updated_at"]));

        *tables
            .event_counts
            .entry((name.to_owned(), event.to_owned()))
            .or_default() += 1;

        if let Some((id, number)) = body["issue"]["id"]
            .as_i64()
            .zip(body["issue"]["number"].as_i64())
        {
            let incoming = Issue {
                repository: name.to_owned(),
                number,
                title: text(&body["issue"]["title"]),
                state: text(&body["issue"]["state"]),
                updated_at: text(&body["issue"]["updated_at"]),
            };
            let stored = tables.issues.entry(id).or_insert_with(|| incoming.clone());
            if version(&incoming) > version(stored) {
                *stored = incoming;
            }
        }
    }
    tables
}

/// What decides which of two states of an issue is the later one.
fn version(issue: &Issue) -> (&Option<String>, &Option<String>, &Option<String>) {
    (&issue.updated_at, &issue.title, &issue.state)
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(messages: &[(&str, Value)]) -> Tables {
        tables(messages.iter().map(|(event, body)| (*event, body)))
    }

    fn repository(name: &str, updated_at: Value) -> Value {
        json!({"repository": {"full_name": name, "updated_at": updated_at}})
    }

    fn issue(updated_at: &str, title: &str, state: Value) -> Value {
        json!({
            "repository": {"full_name": "a/b"},
            "issue": {"id": 7, "number": 1, "title": title, "state": state, "updated_at": updated_at},
        })
    }

    #[test]
    fn the_latest_time_of_a_repository_is_kept() {
        let tables = of(&[
            ("push", repository("a/b", json!("2019-05-15T15:20:41Z"))),
            ("push", repository("a/b", json!("2021-01-01T00:00:00Z"))),
            ("star", repository("a/b", json!(1_557_933_641))),
            ("star", repository("a/b", Value::Null)),
        ]);
        let row = &tables.repositories["a/b"];
        assert_eq!(row.events, 4);
        assert_eq!(row.last_activity.as_deref(), Some("2021-01-01T00:00:00Z"));
        assert_eq!(
            tables.event_counts[&("a/b".to_owned(), "push".to_owned())],
            2
        );
        assert_eq!(
            tables.event_counts[&("a/b".to_owned(), "star".to_owned())],
            2
        );
    }

    #[test]
    fn messages_without_a_repository_have_a_bucket() {
        let tables = of(&[
            ("installation", json!({"action": "created"})),
            ("ping", json!({})),
        ]);
        assert_eq!(
            tables.repositories,
            [(
                NO_REPOSITORY.to_owned(),
                Repository {
                    events: 2,
                    last_activity: None
                }
            )]
            .into()
        );
        assert_eq!(tables.event_counts.len(), 2);
        assert!(tables.issues.is_empty());
    }

    #[test]
    fn the_order_of_messages_makes_no_difference() {
        let mut messages = vec![
            (
                "issues",
                issue("2021-10-11T16:40:56Z", "t", json!("closed")),
            ),
            ("issues", issue("2021-10-11T16:40:56Z", "t", json!("open"))),
            ("issues", issue("2019-05-15T15:20:18Z", "z", Value::Null)),
            ("issues", issue("2019-05-15T15:20:18Z", "z", json!("open"))),
        ];
        let forward = of(&messages);
        assert_eq!(forward.issues[&7].state.as_deref(), Some("open"));
        assert_eq!(forward.issues[&7].title.as_deref(), Some("t"));
        messages.reverse();
        assert_eq!(of(&messages), forward);
        messages.swap(0, 2);
        assert_eq!(of(&messages), forward);
    }

    #[test]
    fn the_payloads_in_the_repository_are_known() {
        let payloads = super::super::payloads::read(include_bytes!(
            "../../../../examples/github-activity/payloads/index.json.gz"
        ))
        .unwrap();
        let ids: std::collections::HashSet<_> =
            payloads.iter().map(|payload| &payload.id).collect();
        assert_eq!((payloads.len(), ids.len()), (329, 329));

        let tables = tables(
            payloads
                .iter()
                .map(|payload| (&*payload.event, &payload.body)),
        );
        let events: i64 = tables.repositories.values().map(|row| row.events).sum();
        assert_eq!(events, 329);
        assert_eq!(tables.event_counts.values().sum::<i64>(), 329);
        assert_eq!(tables.repositories[NO_REPOSITORY].events, 49);
        assert_eq!(tables.issues.len(), 3);
    }
}
