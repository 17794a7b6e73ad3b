//! What a handler's statements can reach in the database, for `hapax check --database`.

use serde::Serialize;

use super::{Connection, StoreError};

/// What whoever runs a handler's statements may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reach {
    /// Who runs them: the role, or the login.
    pub role: String,
    /// True if that is a superuser: no privilege holds it back.
    pub is_superuser: bool,
    /// The tables and views that it may read or write, by name. hapax's own are among them only if a role of its own may.
    pub tables: Vec<ReachedTable>,
    /// What it can reach whose effects may outlive a rollback, or that runs with another's rights.
    pub outlives: Vec<Outlives>,
}

/// A table or a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReachedTable {
    /// With its schema, quoted where that is needed.
    pub name: String,
    /// `SELECT`, `INSERT` and so on.
    pub rights: Vec<String>,
}

/// Something in the database that is its owner's trust.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outlives {
    /// `function`, `trigger`, `rule`, `foreign table`, `event trigger`, `extension`, `unlogged table`.
    pub kind: String,
    /// With its schema or table.
    pub name: String,
    /// What is to be known of it.
    pub why: String,
}

impl Connection {
    /// Asks what `role`, or the login, can reach. On SQLite, where everybody may do everything: the tables and triggers.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn reach(&mut self, role: Option<&str>) -> Result<Reach, StoreError> {
        match self {
            Self::Postgres(session) => session.reach(role).await,
            Self::Sqlite(session) => session.reach().await,
        }
    }
}
