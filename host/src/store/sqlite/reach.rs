//! What a handler can reach on SQLite, which has no roles: all tables but hapax's own, which the guard keeps.

use super::SqliteSession;
use crate::store::StoreError;
use crate::store::reach::{Outlives, Reach, ReachedTable};

impl SqliteSession {
    pub(in crate::store) async fn reach(&mut self) -> Result<Reach, StoreError> {
        let found = self.try_reach().await;
        found.map_err(|error| self.host_error(&error))
    }

    async fn try_reach(&mut self) -> Result<Reach, sqlx::Error> {
        let names: Vec<String> = sqlx::query_scalar(
            "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'hapax\\_%' ESCAPE '\\' \
             AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
        )
        .fetch_all(&mut self.connection)
        .await?;
        // A trigger of the handler's that writes to hapax's own tables is not seen by the guard.
        let triggers: Vec<(String, String)> = sqlx::query_as(
            "SELECT name, tbl_name FROM sqlite_schema WHERE type = 'trigger' AND lower(sql) LIKE '%hapax\\_%' ESCAPE '\\' ORDER BY name",
        )
        .fetch_all(&mut self.connection)
        .await?;
        let rights: Vec<String> = ["SELECT", "INSERT", "UPDATE", "DELETE"]
            .map(str::to_owned)
            .into();
        Ok(Reach {
            role: String::new(),
            is_superuser: false,
            tables: names
                .into_iter()
                .map(|name| ReachedTable {
                    name,
                    rights: rights.clone(),
                })
                .collect(),
            outlives: triggers
                .into_iter()
                .map(|(name, table)| Outlives {
                    kind: "trigger".into(),
                    name: format!("{name} on {table}"),
                    why: "touches hapax's own tables".into(),
                })
                .collect(),
        })
    }
}
