//! Databases of a test's own on a server, beside the one that was named.

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, PgConnection};

use super::{connect, errors, parse};
use crate::store::{SessionOptions, StoreError};

/// What makes and drops them.
#[derive(Debug)]
pub(in crate::store) struct PostgresScratch {
    base: PgConnectOptions,
    connection: PgConnection,
    /// Of the original; copies have a number behind it.
    name: String,
    copy: Option<String>,
}

impl PostgresScratch {
    /// Makes an empty database on the server that `url` names.
    pub(in crate::store) async fn make(url: &str) -> Result<Self, StoreError> {
        let base = parse(url)?;
        let options = SessionOptions {
            purpose: "test".to_owned(),
            statement_timeout: None,
            lock_timeout: std::time::Duration::from_secs(10),
            idle_in_transaction: std::time::Duration::from_secs(10),
        };
        let connection = connect::connect(&base, &options).await?;
        let mut this = Self {
            name: format!("hapax_test_{:08x}", rand::random::<u32>()),
            base,
            connection,
            copy: None,
        };
        let create = format!("CREATE DATABASE {} TEMPLATE template0", this.name);
        this.run(&create).await.map_err(|error| match error {
            StoreError::Refused(error) if error.sqlstate.as_deref() == Some("42501") => {
                StoreError::Unusable(format!(
                    "`{}` may not make a database for the test: {}\nhint: give it the right with `ALTER ROLE {} CREATEDB`, or test on \
                     SQLite without `--database`",
                    this_user(&this.base),
                    error.message,
                    this_user(&this.base),
                ))
            }
            error => error,
        })?;
        Ok(this)
    }

    /// Returns how to reach the original.
    pub(in crate::store) fn original(&self) -> PgConnectOptions {
        self.base.clone().database(&self.name)
    }

    /// Makes a copy and drops the one before it.
    pub(in crate::store) async fn copy(
        &mut self,
        number: u64,
    ) -> Result<PgConnectOptions, StoreError> {
        self.drop_copy().await?;
        let name = format!("{}_{number}", self.name);
        // The server waits some seconds for sessions of the original that are just ending.
        self.run(&format!("CREATE DATABASE {name} TEMPLATE {}", self.name))
            .await?;
        self.copy = Some(name.clone());
        Ok(self.base.clone().database(&name))
    }

    /// Drops all of them.
    pub(in crate::store) async fn remove(mut self) -> Result<(), StoreError> {
        self.drop_copy().await?;
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        self.run(&drop).await
    }

    async fn drop_copy(&mut self) -> Result<(), StoreError> {
        match self.copy.take() {
            None => Ok(()),
            Some(name) => {
                self.run(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
                    .await
            }
        }
    }

    async fn run(&mut self, statement: &str) -> Result<(), StoreError> {
        match sqlx::raw_sql(AssertSqlSafe(statement))
            .execute(&mut self.connection)
            .await
        {
            Ok(_) => Ok(()),
            Err(error) => Err(errors::store_error(&error)),
        }
    }
}

fn this_user(options: &PgConnectOptions) -> &str {
    options.get_username()
}
