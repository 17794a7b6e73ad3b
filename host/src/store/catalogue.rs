//! The tables of the handlers, as the database describes them; for whoever compares their rows.

use serde::Serialize;

use super::{Connection, StoreError, Tx};

/// A table of a handler's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// As people name it: with its schema only if that is not the usual one.
    pub name: String,
    /// As statements name it, in quotes.
    pub quoted: String,
    /// In their order.
    pub columns: Vec<TableColumn>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableColumn {
    /// Its name.
    pub name: String,
    /// As the database names it.
    pub type_name: String,
    /// True if it is part of the primary key.
    pub is_key: bool,
    /// What the database puts there if the statement names no value.
    pub filled: Option<Filled>,
    /// The table and column that it refers to.
    pub refers_to: Option<(String, String)>,
}

/// What a database puts into a column by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Filled {
    /// A number of its own: a serial, an identity, a row's number.
    Number,
    /// What this expression gives.
    Default(String),
}

impl TableColumn {
    /// True if it holds floating-point numbers.
    pub fn is_float(&self) -> bool {
        let name = self.type_name.to_ascii_lowercase();
        ["real", "double", "float"]
            .iter()
            .any(|float| name.starts_with(float))
    }
}

impl Connection {
    /// Returns the tables that are not hapax's own, by name.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn catalogue(&mut self) -> Result<Vec<Table>, StoreError> {
        match self {
            Self::Postgres(session) => session.catalogue().await,
            Self::Sqlite(session) => session.catalogue().await,
        }
    }
}

impl Tx {
    /// As [`Connection::catalogue`], inside the transaction.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn catalogue(&mut self) -> Result<Vec<Table>, StoreError> {
        self.connection.catalogue().await
    }
}

/// Returns a name in quotes.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
