//! Databases that live as long as a test: one that is made ready, and copies of it. `hapax test` runs handlers in them.
//!
//! **Invariant**: nothing is written to a database that was there before.

use tempfile::TempDir;

use super::{Store, StoreError, Target, postgres, sqlite};

/// A place for databases of one test. SQLite's are files in a temporary folder, which goes with this value. PostgreSQL's are
/// databases of their own on the server, which [`Scratch::remove`] drops.
#[derive(Debug)]
pub struct Scratch {
    place: Place,
    copies: u64,
}

#[derive(Debug)]
enum Place {
    Sqlite(TempDir),
    Postgres(Box<postgres::PostgresScratch>),
}

impl Scratch {
    /// Makes a temporary folder for files of SQLite.
    ///
    /// # Errors
    /// `Unusable`: it can't be made.
    pub fn sqlite() -> Result<Self, StoreError> {
        let folder = TempDir::with_prefix("hapax-test-").map_err(|error| {
            StoreError::Unusable(format!(
                "cannot make a folder in `{}`: {error}\nhint: name another one by the variable `TMPDIR`",
                std::env::temp_dir().display()
            ))
        })?;
        Ok(Self {
            place: Place::Sqlite(folder),
            copies: 0,
        })
    }

    /// Makes an empty database on the server that `url` names, beside the one that it names.
    ///
    /// # Errors
    /// As `StoreError` says; `Unusable` if the URL's user may make none.
    pub async fn postgres(url: &str) -> Result<Self, StoreError> {
        Ok(Self {
            place: Place::Postgres(Box::new(postgres::PostgresScratch::make(url).await?)),
            copies: 0,
        })
    }

    /// Returns the database that copies are made of. Make it ready, and close all connections to it before the first copy.
    pub fn original(&self) -> Store {
        let target = match &self.place {
            Place::Sqlite(folder) => Target::Sqlite(folder.path().join("original.db")),
            Place::Postgres(scratch) => Target::Postgres(Box::new(scratch.original())),
        };
        Store { target }
    }

    /// Makes a copy. The one that was made before is removed; connections to it are ended.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn copy(&mut self) -> Result<Store, StoreError> {
        self.copies += 1;
        let target = match &mut self.place {
            Place::Sqlite(folder) => {
                Target::Sqlite(sqlite::copy_scratch(folder.path(), self.copies).await?)
            }
            Place::Postgres(scratch) => {
                Target::Postgres(Box::new(scratch.copy(self.copies).await?))
            }
        };
        Ok(Store { target })
    }

    /// Removes all of it.
    ///
    /// # Errors
    /// As `StoreError` says, naming what stays.
    pub async fn remove(self) -> Result<(), StoreError> {
        match self.place {
            Place::Sqlite(folder) => folder.close().map_err(|error| {
                StoreError::Unusable(format!("the temporary folder cannot be removed: {error}"))
            }),
            Place::Postgres(scratch) => scratch.remove().await,
        }
    }
}
