//! The handlers' tables in a file.

use super::SqliteSession;
use crate::store::StoreError;
use crate::store::catalogue::{Filled, Table, TableColumn, quoted};

/// `?1` is the table. A column each: name, type, default, place in the primary key.
const COLUMNS: &str =
    "SELECT name, type, dflt_value, pk FROM pragma_table_xinfo(?1) WHERE hidden <> 1 ORDER BY cid";

impl SqliteSession {
    pub(in crate::store) async fn catalogue(&mut self) -> Result<Vec<Table>, StoreError> {
        let found = self.try_catalogue().await;
        found.map_err(|error| self.host_error(&error))
    }

    async fn try_catalogue(&mut self) -> Result<Vec<Table>, sqlx::Error> {
        let tables: Vec<(String, bool)> = sqlx::query_as(
            "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table' \
             AND name NOT LIKE 'hapax\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
        )
        .fetch_all(&mut self.connection)
        .await?;
        let mut catalogue = Vec::with_capacity(tables.len());
        for (name, without_rowid) in tables {
            let columns: Vec<(String, String, Option<String>, i64)> = sqlx::query_as(COLUMNS)
                .bind(&name)
                .fetch_all(&mut self.connection)
                .await?;
            let references: Vec<(String, String, Option<String>)> = sqlx::query_as(
                "SELECT \"from\", \"table\", \"to\" FROM pragma_foreign_key_list(?1)",
            )
            .bind(&name)
            .fetch_all(&mut self.connection)
            .await?;
            let keys = columns.iter().filter(|(.., pk)| *pk > 0).count();
            let columns = columns
                .into_iter()
                .map(|(column, type_name, default, pk)| {
                    let is_rowid = keys == 1
                        && pk > 0
                        && !without_rowid
                        && type_name.eq_ignore_ascii_case("integer");
                    TableColumn {
                        filled: match default {
                            _ if is_rowid => Some(Filled::Number),
                            default => default.map(Filled::Default),
                        },
                        refers_to: references
                            .iter()
                            .find(|(from, ..)| *from == column)
                            .map(|(_, table, to)| (table.clone(), to.clone().unwrap_or_default())),
                        is_key: pk > 0,
                        name: column,
                        type_name,
                    }
                })
                .collect();
            catalogue.push(Table {
                quoted: quoted(&name),
                name,
                columns,
            });
        }
        Ok(catalogue)
    }
}
