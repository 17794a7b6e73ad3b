//! Opening a file and preparing its session.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use super::errors::Class;
use super::hooks::Hooks;
use super::{
    OPEN_AGAIN_AFTER, ROWS_AHEAD, STATEMENTS_MAX, STEPS_BETWEEN_LOOKS, SqliteSession, authorizer,
    errors, params, started,
};
use crate::metrics::OpenSession;
use crate::store::cursors::Cursors;
use crate::store::savepoints::Savepoints;
use crate::store::{Rights, SessionOptions, StoreError, Value};

impl SqliteSession {
    /// Opens the file, and makes it if it is missing.
    pub(in crate::store) async fn connect(
        path: &Path,
        options: &SessionOptions,
    ) -> Result<Self, StoreError> {
        if let Some(folder) = path.parent()
            && !folder.as_os_str().is_empty()
            && !folder.is_dir()
        {
            return Err(StoreError::Unusable(format!(
                "the store's file `{}` can't be opened: there is no folder `{}`\nhint: make it first, or \
                 correct `store.url`",
                path.display(),
                folder.display()
            )));
        }
        let driver_options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(options.lock_timeout)
            .statement_cache_capacity(STATEMENTS_MAX)
            .row_buffer_size(ROWS_AHEAD)
            .disable_statement_logging();
        let opening = Instant::now();
        let mut connection = loop {
            match driver_options.connect().await {
                Ok(connection) => break connection,
                // The switch to WAL does not wait for others, whatever the busy timeout says.
                Err(error)
                    if errors::class(&error) == Class::Busy
                        && opening.elapsed() < options.lock_timeout =>
                {
                    tokio::time::sleep(OPEN_AGAIN_AFTER).await;
                }
                Err(error) => {
                    let text = format!(
                        "the store's file `{}` can't be opened: {}{}",
                        path.display(),
                        errors::describe(&error),
                        errors::open_hint(&error)
                    );
                    return Err(match errors::class(&error) {
                        Class::Busy => StoreError::Busy(text),
                        _ => StoreError::Unusable(text),
                    });
                }
            }
        };

        let hooks = Arc::new(Hooks::new());
        let mut handle = connection
            .lock_handle()
            .await
            .map_err(|error| errors::store_error(&error))?;
        let is_guarded = authorizer::install(&mut handle, &hooks, |handle, shared| {
            handle.set_commit_hook(move || !shared.guarded.load(Ordering::SeqCst));
        });
        if !is_guarded {
            return Err(StoreError::Unusable(format!(
                "the store's file `{}` can't be guarded: SQLite takes no authorizer\nhint: this is a bug in hapax; please report it",
                path.display()
            )));
        }
        let shared = Arc::clone(&hooks);
        handle.set_rollback_hook(move || {
            if shared.guarded.load(Ordering::SeqCst) {
                shared.ended.store(true, Ordering::SeqCst);
            }
        });
        let shared = Arc::clone(&hooks);
        handle.set_progress_handler(STEPS_BETWEEN_LOOKS, move || shared.may_go_on());
        drop(handle);

        let mut session = Self {
            connection,
            statement_timeout: options.statement_timeout,
            rights: Rights::default(),
            hooks,
            verdicts: HashMap::new(),
            columns: HashMap::new(),
            components: HashMap::new(),
            tx_components: Vec::new(),
            aborted: false,
            fault: None,
            savepoints: Savepoints::default(),
            cursors: Cursors::default(),
            schema_version: None,
            run_lock_path: started::lock_path(path),
            run_lock: None,
            pruner: String::new(),
            path: path.to_owned(),
            relay_locks: Vec::new(),
            broken: false,
            _counted: OpenSession::begin(&options.purpose),
        };
        session.check_settings(path).await?;
        Ok(session)
    }

    async fn check_settings(&mut self, path: &Path) -> Result<(), StoreError> {
        for (name, expected) in [
            ("journal_mode", "wal"),
            ("synchronous", "2"),
            ("foreign_keys", "1"),
        ] {
            let row = sqlx::raw_sql(AssertSqlSafe(format!("PRAGMA {name}")))
                .fetch_one(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
            let value = match params::read(&row).map_err(StoreError::Refused)?.pop() {
                Some(Value::Text(text)) => text,
                Some(Value::Int64(number)) => number.to_string(),
                other => format!("{other:?}"),
            };
            if value != expected {
                return Err(StoreError::Unusable(format!(
                    "the store's file `{}` has `{name} = {value}` although `{expected}` was set\nhint: put it on a local \
                     file system: this one cannot lock or share memory",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}
