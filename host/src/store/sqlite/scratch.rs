//! Copies of a file for tests.

use std::path::{Path, PathBuf};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use super::errors;
use crate::store::StoreError;

/// Makes the copy with this number of `original.db` in `folder`, and removes the one before it.
pub(in crate::store) async fn copy_scratch(
    folder: &Path,
    number: u64,
) -> Result<PathBuf, StoreError> {
    // One file without a log beside it, whatever the original's connections have left there.
    let clean = folder.join("clean.db");
    if !clean.exists() {
        vacuum_into(&folder.join("original.db"), &clean)
            .await
            .map_err(|error| errors::store_error(&error))?;
    }
    let named = |number: u64| folder.join(format!("{number}.db"));
    for end in ["", "-wal", "-shm", "-suspect"] {
        // A copy that is not there was never made.
        let _ = std::fs::remove_file(folder.join(format!("{}.db{end}", number - 1)));
    }
    let copy = named(number);
    std::fs::copy(&clean, &copy).map_err(|error| {
        StoreError::Unusable(format!("cannot write `{}`: {error}", copy.display()))
    })?;
    Ok(copy)
}

async fn vacuum_into(from: &Path, to: &Path) -> Result<(), sqlx::Error> {
    let mut connection = SqliteConnectOptions::new().filename(from).connect().await?;
    let name = to.display().to_string().replace('\'', "''");
    sqlx::raw_sql(AssertSqlSafe(format!("VACUUM INTO '{name}'")))
        .execute(&mut connection)
        .await?;
    connection.close().await
}
