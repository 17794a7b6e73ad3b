//! What the handler's tables hold, read from the database.

use super::tables::{Issue, Repository, Tables};
use crate::app::own_session;
use crate::exit::{CommandError, Exit};
use crate::store::{Store, StoreError, Tx, Value};

/// More rows than the demo's messages can make.
const ROWS_MAX: u64 = 100_000;

/// Reads the three tables in `store`.
pub(super) async fn read(store: &Store) -> Result<Tables, CommandError> {
    let failed = |error: StoreError| CommandError::store("cannot read the tables back", &error);
    let connection = store.connect(&own_session("demo")).await.map_err(failed)?;
    let mut tx = Tx::begin(connection).await.map_err(failed)?;
    let mut tables = Tables::default();
    for row in rows(
        &mut tx,
        "SELECT repository, events, last_activity FROM repositories",
    )
    .await?
    {
        let [Value::Text(name), Value::Int64(events), last_activity] = row else {
            return Err(unreadable("repositories", &row));
        };
        let last_activity = text(last_activity);
        tables.repositories.insert(
            name,
            Repository {
                events,
                last_activity,
            },
        );
    }
    for row in rows(&mut tx, "SELECT repository, event, count FROM event_counts").await? {
        let [
            Value::Text(repository),
            Value::Text(event),
            Value::Int64(count),
        ] = row
        else {
            return Err(unreadable("event_counts", &row));
        };
        tables.event_counts.insert((repository, event), count);
    }
    for row in rows(
        &mut tx,
        "SELECT issue_id, repository, number, title, state, updated_at FROM issues",
    )
    .await?
    {
        let [
            Value::Int64(id),
            Value::Text(repository),
            Value::Int64(number),
            title,
            state,
            updated_at,
        ] = row
        else {
            return Err(unreadable("issues", &row));
        };
        let issue = Issue {
            repository,
            number,
            title: text(title),
            state: text(state),
            updated_at: text(updated_at),
        };
        tables.issues.insert(id, issue);
    }
    // Nothing was written: there is nothing to lose if this fails.
    let _ = tx.rollback().await;
    Ok(tables)
}

async fn rows<const COLUMNS: usize>(
    tx: &mut Tx,
    statement: &str,
) -> Result<Vec<[Value; COLUMNS]>, CommandError> {
    let failed =
        |text: String| CommandError::new(Exit::Failed, format!("`{statement}`: {text}"), None);
    let found = tx
        .query(statement, &[], ROWS_MAX)
        .await
        .map_err(|error| failed(error.to_string()))?;
    found
        .rows
        .into_iter()
        .map(|row| {
            row.try_into()
                .map_err(|row: Vec<Value>| failed(format!("a row has {} columns", row.len())))
        })
        .collect()
}

/// Returns the text of a column that may be NULL.
fn text(value: Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

fn unreadable(table: &str, row: &[Value]) -> CommandError {
    CommandError::new(
        Exit::Failed,
        format!("a row of `{table}` is not as its migration says: {row:?}"),
        None,
    )
}
