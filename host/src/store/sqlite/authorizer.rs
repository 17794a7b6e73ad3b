//! SQLite's authorizer: what a handler's statement may do, as SQLite itself reads it.
//!
//! The guard before it reads tokens; this one is asked by SQLite's own parser for each table, function and command of a statement
//! that it prepares. It is installed once, since setting it expires every prepared statement, and looks at a flag that says whose
//! statement is being prepared. sqlx has no safe door to it.
//!
//! What stands in a trigger or a view is its owner's, and passes.
//!
//! **Invariant**: the only `unsafe` of this crate's own dealings with SQLite is here.

#![expect(
    unsafe_code,
    reason = "sqlx offers the other hooks of SQLite, but not its authorizer"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libsqlite3_sys as ffi;
use sqlx::sqlite::LockedSqliteHandle;

use super::hooks::Hooks;

/// Installs it on a connection that is being opened. True if SQLite took it.
///
/// `keep` must keep the hooks alive as long as the connection can prepare statements.
pub(super) fn install(
    handle: &mut LockedSqliteHandle<'_>,
    hooks: &Arc<Hooks>,
    keep: impl FnOnce(&mut LockedSqliteHandle<'_>, Arc<Hooks>),
) -> bool {
    // The driver owns the closure that holds them, and gives it up after its last statement, when it closes the connection.
    keep(handle, Arc::clone(hooks));
    let hooks = Arc::as_ptr(hooks);
    // SAFETY: the handle is locked, so no statement runs. `hooks` points to what `keep` gave to the connection, which lives until the
    // driver has dropped its statements; what is called then only reads atomics.
    let result = unsafe {
        ffi::sqlite3_set_authorizer(
            handle.as_raw_handle().as_ptr(),
            Some(authorize),
            hooks.cast_mut().cast(),
        )
    };
    result == ffi::SQLITE_OK
}

/// Called by SQLite for each thing that a statement does, while it is prepared.
unsafe extern "C" fn authorize(
    hooks: *mut c_void,
    action: c_int,
    first: *const c_char,
    second: *const c_char,
    _database: *const c_char,
    inside: *const c_char,
) -> c_int {
    // SAFETY: it is the pointer that `install` gave, and what it points to is alive.
    let hooks = unsafe { &*hooks.cast_const().cast::<Hooks>() };
    if !hooks.in_handler.load(Ordering::SeqCst) || !inside.is_null() {
        return ffi::SQLITE_OK;
    }
    // SAFETY: SQLite passes null or a text that ends with NUL and lives during the call.
    let text = |text: *const c_char| {
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
    };
    let action = Action {
        code: action,
        first: text(first).unwrap_or_default().to_ascii_lowercase(),
        second: text(second).map(|text| text.to_ascii_lowercase()),
    };
    if action.is_allowed(hooks.allow_ddl.load(Ordering::SeqCst)) {
        ffi::SQLITE_OK
    } else {
        ffi::SQLITE_DENY
    }
}

struct Action {
    code: c_int,
    /// A table, mostly.
    first: String,
    second: Option<String>,
}

impl Action {
    fn is_allowed(&self, allow_ddl: bool) -> bool {
        match self.code {
            ffi::SQLITE_SELECT | ffi::SQLITE_RECURSIVE => true,
            ffi::SQLITE_READ => {
                // ALTER TABLE looks at the rows that are there with one of these.
                !self.first.starts_with("hapax_")
                    && (!self.first.starts_with("pragma_")
                        || allow_ddl && self.first == "pragma_quick_check")
                    && (allow_ddl || !self.first.starts_with("sqlite_"))
            }
            ffi::SQLITE_INSERT | ffi::SQLITE_UPDATE | ffi::SQLITE_DELETE => {
                // Making a table is a row in SQLite's own; that a statement does not name it is the guard's to see.
                !self.first.starts_with("hapax_")
                    && (allow_ddl || !self.first.starts_with("sqlite_"))
            }
            ffi::SQLITE_FUNCTION => !matches!(
                self.second.as_deref(),
                Some("load_extension" | "fts3_tokenizer")
            ),
            // Full-text and R-tree tables ask the first two of their own.
            ffi::SQLITE_PRAGMA => match &*self.first {
                "data_version" | "page_size" => self.second.is_none(),
                "quick_check" => allow_ddl,
                _ => false,
            },
            ffi::SQLITE_CREATE_TABLE
            | ffi::SQLITE_CREATE_INDEX
            | ffi::SQLITE_CREATE_VIEW
            | ffi::SQLITE_DROP_TABLE
            | ffi::SQLITE_DROP_INDEX
            | ffi::SQLITE_DROP_VIEW
            | ffi::SQLITE_REINDEX => allow_ddl && !self.first.starts_with("hapax_"),
            // Behind the name of the schema.
            ffi::SQLITE_ALTER_TABLE => {
                allow_ddl
                    && self
                        .second
                        .as_deref()
                        .is_some_and(|table| !table.starts_with("hapax_"))
            }
            // Transactions, savepoints, ATTACH, temporary and virtual tables, triggers, ANALYZE, and what is yet to come.
            _ => false,
        }
    }
}
