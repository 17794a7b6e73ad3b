//! What the tables hold, read from the database.

use anyhow::Context as _;
use sqlx::{Connection as _, PgConnection, Row as _};

use super::tables::{Issue, Repository, Tables};

/// What stands in the database after the run.
#[derive(Debug)]
pub(super) struct Found {
    /// The handler's own tables.
    pub(super) tables: Tables,
    /// How many messages the handler's consumer has claimed.
    pub(super) claims: i64,
}

/// Reads the handler's tables and counts the claims of `consumer` in the database at `url`.
pub(super) fn read(url: &str, consumer: &str) -> anyhow::Result<Found> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start reading the database")?;
    runtime
        .block_on(async {
            let mut connection = PgConnection::connect(url).await?;
            let found = all(&mut connection, consumer).await;
            connection.close().await?;
            found
        })
        .context("cannot read the tables back from the database")
}

async fn all(connection: &mut PgConnection, consumer: &str) -> Result<Found, sqlx::Error> {
    let mut tables = Tables::default();
    for row in sqlx::query("SELECT repository, events, last_activity FROM repositories")
        .fetch_all(&mut *connection)
        .await?
    {
        let events = row.try_get(1)?;
        let last_activity = row.try_get(2)?;
        tables.repositories.insert(
            row.try_get(0)?,
            Repository {
                events,
                last_activity,
            },
        );
    }
    for row in sqlx::query("SELECT repository, event, count FROM event_counts")
        .fetch_all(&mut *connection)
        .await?
    {
        tables
            .event_counts
            .insert((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?);
    }
    for row in
        sqlx::query("SELECT issue_id, repository, number, title, state, updated_at FROM issues")
            .fetch_all(&mut *connection)
            .await?
    {
        tables.issues.insert(
            row.try_get(0)?,
            Issue {
                repository: row.try_get(1)?,
                number: row.try_get(2)?,
                title: row.try_get(3)?,
                state: row.try_get(4)?,
                updated_at: row.try_get(5)?,
            },
        );
    }
    let claims = sqlx::query("SELECT count(*) FROM hapax.processed_messages WHERE consumer = $1")
        .bind(consumer)
        .fetch_one(&mut *connection)
        .await?
        .try_get(0)?;
    Ok(Found { tables, claims })
}
