//! What PostgreSQL's errors mean: stable codes for handlers, and what the host may do about them.

use sqlx::postgres::{PgDatabaseError, PgErrorPosition, PgSeverity};

use crate::store::text::clean_reason;
use crate::store::{SqlError, StoreError};

const DATA_CORRUPTED: &str = "XX001";
const INDEX_CORRUPTED: &str = "XX002";

/// What the host does about an error, whatever the handler says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Roll back and run again, charged to nobody.
    Busy,
    /// As `Busy`, after the connection's prepared statements are forgotten: a table was changed since.
    Stale,
    /// As `Busy`, on another connection: this one is gone or of no use.
    Unavailable,
    /// The statement's own fault.
    Refused,
}

/// Returns what an error means for the host.
pub(super) fn class(error: &sqlx::Error) -> Class {
    match database_error(error) {
        Some(error) => class_of(error),
        // I/O, protocol, TLS: the state of the session is not known any more.
        None => Class::Unavailable,
    }
}

/// True if the server ends the session with this error: what came before it may have taken effect.
pub(super) fn ends_session(error: &sqlx::Error) -> bool {
    database_error(error)
        .is_none_or(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic))
}

fn class_of(error: &PgDatabaseError) -> Class {
    if matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic) {
        return Class::Unavailable;
    }
    match error.code() {
        "40001" | "40P01" | "55P03" => Class::Busy,
        _ if is_stale_plan(error) => Class::Stale,
        // The server became a standby.
        "25006" => Class::Unavailable,
        // Spoilt tables and indexes: nobody's fault, as with a disk that can't be read (class 58). Charged, every message that comes near
        // would be given up on, where a person has to act. All else of class XX may be a statement's own doing.
        DATA_CORRUPTED | INDEX_CORRUPTED => Class::Unavailable,
        code => match &code[..code.floor_char_boundary(2)] {
            "08" | "53" | "57" if code != "57014" => Class::Unavailable,
            "58" => Class::Unavailable,
            "40" => Class::Busy,
            _ => Class::Refused,
        },
    }
}

/// True if a prepared statement is gone.
pub(super) fn lacks_statement(error: &sqlx::Error) -> bool {
    database_error(error).is_some_and(|error| error.code() == "26000")
}

/// True if a statement was prepared before its table was changed.
fn is_stale_plan(error: &PgDatabaseError) -> bool {
    error.code() == "0A000" && error.routine() == Some("RevalidateCachedQuery")
}

fn database_error(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    error.as_database_error()?.try_downcast_ref()
}

/// True if the server stopped the statement because of its `statement_timeout`.
pub(super) fn is_timeout(error: &sqlx::Error) -> bool {
    database_error(error).is_some_and(|error| error.code() == "57014")
}

/// Turns an error of a host's own statement into the room's error.
pub(super) fn store_error(error: &sqlx::Error) -> StoreError {
    match class(error) {
        // The host's own statements are short: what takes long is the wait.
        _ if is_timeout(error) => StoreError::Busy(describe(error)),
        Class::Busy | Class::Stale => StoreError::Busy(describe(error)),
        Class::Unavailable => StoreError::Unavailable(describe(error)),
        Class::Refused => StoreError::Refused(sql_error(error)),
    }
}

/// Turns an error into the contract's record. `position` is that of the text that was sent.
pub(super) fn sql_error(error: &sqlx::Error) -> SqlError {
    let Some(error) = database_error(error) else {
        return SqlError {
            retryable: true,
            ..SqlError::new("unavailable", describe(error))
        };
    };
    let part = |text: Option<&str>| text.map(clean_reason);
    SqlError {
        code: code_of(error).into(),
        message: clean_reason(error.message()),
        retryable: class_of(error) != Class::Refused,
        sqlstate: Some(error.code().into()),
        detail: part(error.detail()),
        hint: part(error.hint()),
        schema: part(error.schema()),
        table: part(error.table()),
        column: part(error.column()),
        constraint: part(error.constraint()),
        param: None,
        row: None,
        position: match error.position() {
            Some(PgErrorPosition::Original(position)) => u32::try_from(position).ok(),
            _ => None,
        },
    }
}

/// Returns an error's words, bounded, without what sqlx puts around them.
pub(super) fn describe(error: &sqlx::Error) -> String {
    match database_error(error) {
        Some(error) => clean_reason(&format!("{} ({})", error.message(), error.code())),
        None => match error {
            sqlx::Error::Io(error) => clean_reason(&error.to_string()),
            other => clean_reason(&other.to_string()),
        },
    }
}

/// The codes are documented in `docs/error-codes.md`. Source: the appendix "PostgreSQL Error Codes" of its manual.
fn code_of(error: &PgDatabaseError) -> &'static str {
    if is_stale_plan(error) {
        return "stale";
    }
    match error.code() {
        "23505" => "constraint.unique",
        "23503" | "23001" => "constraint.foreign-key",
        "23514" | "44000" => "constraint.check",
        "23502" => "constraint.not-null",
        "23P01" => "constraint.exclusion",
        "40001" => "serialization",
        "40P01" => "deadlock",
        "55P03" => "lock-timeout",
        "57014" => "timeout",
        "42601" => "syntax",
        "42P01" => "undefined.table",
        "42703" => "undefined.column",
        "42883" => "undefined.function",
        "42P02" => "undefined.parameter",
        "42704" => "undefined.object",
        "3F000" => "undefined.schema",
        "42501" => "denied.privilege",
        "42804" | "42846" | "42P18" => "type.mismatch",
        "25P02" => "aborted",
        "25006" | DATA_CORRUPTED | INDEX_CORRUPTED => "unavailable",
        "21000" => "data.cardinality",
        "22001" => "data.too-long",
        "22003" => "data.out-of-range",
        "22012" => "data.division-by-zero",
        "22P02" | "22P03" => "data.invalid",
        "22007" | "22008" => "data.datetime",
        "22021" | "22P05" => "data.encoding",
        "0A000" => "unsupported",
        code => match &code[..code.floor_char_boundary(2)] {
            "08" | "53" | "57" | "58" => "unavailable",
            "22" => "data",
            "23" => "constraint",
            "40" => "serialization",
            "42" => "invalid",
            "54" => "limit.database",
            "P0" => "raised",
            "XX" => "internal",
            _ => "database",
        },
    }
}
