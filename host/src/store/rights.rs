//! As whom a handler's statements run, and what they may do beyond reading and writing rows.

use super::{Connection, StoreError};

/// What a handler may do, and as whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The database role of its statements; `None` for the login itself. Only on PostgreSQL.
    pub role: Option<String>,
    /// True if it may make, change and drop tables and their like.
    pub allow_ddl: bool,
}

impl Connection {
    /// Says for whom the statements on this connection are run from now on. Call it outside a transaction.
    pub fn set_rights(&mut self, rights: Rights) {
        match self {
            Self::Postgres(session) => session.set_rights(rights),
            Self::Sqlite(session) => session.set_rights(rights),
        }
    }

    /// Finds out whether the login may act as `role`.
    ///
    /// # Errors
    /// `Unusable` if there is no such role, or the login is not a member of it; the text says what to do.
    pub async fn check_role(&mut self, role: &str) -> Result<(), StoreError> {
        match self {
            Self::Postgres(session) => session.check_role(role).await,
            Self::Sqlite(_) => Err(StoreError::Unusable(
                "SQLite has no roles\nhint: leave `role` out, or use PostgreSQL".into(),
            )),
        }
    }
}
