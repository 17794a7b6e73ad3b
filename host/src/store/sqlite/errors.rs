//! What SQLite's errors mean: stable codes for handlers, and what the host may do about them.

use crate::store::text::clean_reason;
use crate::store::{SqlError, StoreError};

/// What the host does about an error, whatever the handler says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Roll back and run again, charged to nobody.
    Busy,
    /// As `Busy`, on another connection: this one is of no use.
    Unavailable,
    /// The statement's own fault.
    Refused,
}

/// Returns what an error means for the host.
pub(super) fn class(error: &sqlx::Error) -> Class {
    match result_code(error) {
        None => Class::Unavailable,
        Some(code) => class_of(code),
    }
}

// Source: https://www.sqlite.org/rescode.html; the low byte is the primary code.
fn class_of(code: i32) -> Class {
    match code & 0xff {
        // BUSY, LOCKED
        5 | 6 => Class::Busy,
        // NOMEM, READONLY, IOERR, CORRUPT, FULL, CANTOPEN, PROTOCOL, NOTADB: the file or the machine, whatever the statement
        7 | 8 | 10 | 11 | 13 | 14 | 15 | 26 => Class::Unavailable,
        _ => Class::Refused,
    }
}

/// True if it is not known whether a COMMIT that failed with this error took effect.
pub(super) fn leaves_commit_unknown(error: &sqlx::Error) -> bool {
    // IOERR: the last write may have reached the disk.
    result_code(error).is_none_or(|code| code & 0xff == 10)
}

fn result_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

/// Turns an error of a host's own statement into the room's error.
pub(super) fn store_error(error: &sqlx::Error) -> StoreError {
    match class(error) {
        Class::Busy => StoreError::Busy(describe(error)),
        Class::Unavailable => StoreError::Unavailable(describe(error)),
        Class::Refused => StoreError::Refused(sql_error(error)),
    }
}

/// Returns an error's words, bounded, without what sqlx puts around them.
pub(super) fn describe(error: &sqlx::Error) -> String {
    match error.as_database_error() {
        Some(database) => clean_reason(&format!(
            "{} ({})",
            database.message(),
            database.code().unwrap_or_default()
        )),
        None => clean_reason(&error.to_string()),
    }
}

/// Returns what to do about a file that can't be opened, as a hint's line of its own; empty if nothing is known.
pub(super) fn open_hint(error: &sqlx::Error) -> &'static str {
    match result_code(error).map(|code| code & 0xff) {
        // PERM, READONLY, CANTOPEN
        Some(3 | 8 | 14) => {
            "\nhint: `store.url` must name a file, and this user must be able to write to it and to its folder"
        }
        // NOTADB
        Some(26) => "\nhint: correct `store.url`: this file is something else",
        _ => "",
    }
}

/// Turns an error into the contract's record.
pub(super) fn sql_error(error: &sqlx::Error) -> SqlError {
    let (Some(database), Some(code)) = (error.as_database_error(), result_code(error)) else {
        return SqlError {
            retryable: true,
            ..SqlError::new("unavailable", describe(error))
        };
    };
    let message = database.message();
    let mut mapped = SqlError {
        retryable: class_of(code) != Class::Refused,
        ..SqlError::new(code_of(code, message), clean_reason(message))
    };
    place(message, &mut mapped);
    mapped
}

/// Reads from an error's words what it is about.
fn place(message: &str, mapped: &mut SqlError) {
    // `cannot store TEXT value in INTEGER column accounts.balance`
    let in_strict_table = message
        .strip_prefix("cannot store ")
        .and_then(|rest| rest.split_once(" column "))
        .map(|(_, object)| ("COLUMN", object));
    // `UNIQUE constraint failed: accounts.owner, accounts.kind`, `.. failed: index 'one_open'`
    let Some((kind, object)) = message
        .split_once(" constraint failed: ")
        .or(in_strict_table)
    else {
        return;
    };
    if kind == "CHECK" {
        // A CHECK without a name is told by its expression.
        mapped.constraint = Some(clean_reason(object));
    } else if let Some(index) = object
        .strip_prefix("index '")
        .and_then(|rest| rest.strip_suffix('\''))
    {
        mapped.constraint = Some(clean_reason(index));
    } else if let Some((table, _)) = object.split_once('.') {
        mapped.table = Some(clean_reason(table));
        let columns: Vec<&str> = object
            .split(", ")
            .filter_map(|one| one.strip_prefix(table)?.strip_prefix('.'))
            .collect();
        mapped.column = Some(clean_reason(&columns.join(", ")));
    }
}

/// The codes are documented in `docs/error-codes.md`.
fn code_of(code: i32, message: &str) -> &'static str {
    match code {
        // UNIQUE, PRIMARYKEY, ROWID
        2067 | 1555 | 2579 => "constraint.unique",
        787 => "constraint.foreign-key",
        275 => "constraint.check",
        1299 => "constraint.not-null",
        // RAISE(ABORT | FAIL | ROLLBACK, ..) in a trigger
        1811 => "raised",
        // DATATYPE: a value in a column of a STRICT table
        3091 => "type.mismatch",
        // COMMITHOOK: a COMMIT that is not the host's
        531 => "aborted",
        _ => match code & 0xff {
            1 if message.contains("syntax error")
                || message.starts_with("incomplete input")
                || message.starts_with("unrecognized token") =>
            {
                "syntax"
            }
            1 if message.starts_with("no such table") => "undefined.table",
            1 if message.starts_with("no such column")
                || message.contains("has no column named") =>
            {
                "undefined.column"
            }
            1 if message.starts_with("no such function") => "undefined.function",
            1 => "invalid",
            5 | 6 => "busy",
            9 => "timeout",
            7 | 8 | 10 | 11 | 13 | 14 | 15 | 26 => "unavailable",
            18 => "data.too-long",
            19 => "constraint",
            20 => "type.mismatch",
            23 => "denied.privilege",
            25 => "params.count",
            _ => "database",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_error_is_about_is_read_from_its_words() {
        for (message, table, column, constraint) in [
            ("UNIQUE constraint failed: t.a", Some("t"), Some("a"), None),
            (
                "UNIQUE constraint failed: t.a, t.b",
                Some("t"),
                Some("a, b"),
                None,
            ),
            (
                "UNIQUE constraint failed: index 'one_open'",
                None,
                None,
                Some("one_open"),
            ),
            (
                "NOT NULL constraint failed: t.a",
                Some("t"),
                Some("a"),
                None,
            ),
            (
                "CHECK constraint failed: positive",
                None,
                None,
                Some("positive"),
            ),
            ("FOREIGN KEY constraint failed", None, None, None),
            (
                "cannot store TEXT value in INTEGER column t.a",
                Some("t"),
                Some("a"),
                None,
            ),
            ("no such table: t.a", None, None, None),
        ] {
            let mut error = SqlError::default();
            place(message, &mut error);
            assert_eq!(
                (
                    error.table.as_deref(),
                    error.column.as_deref(),
                    error.constraint.as_deref()
                ),
                (table, column, constraint),
                "{message}"
            );
        }
    }
}
