//! What is said of statements that a handler may not send, and names that it may not use on SQLite.

use super::{SqlError, StoreKind, Token, denied_as, shorten};

/// What `allow_ddl` allows to make, change and drop.
pub(super) fn ddl_objects(kind: StoreKind) -> &'static [&'static str] {
    match kind {
        // No schemas (their elements would be statements of any kind), functions, triggers or rules: these run as code of the
        // database's owner, whom nobody checks.
        StoreKind::Postgres => &["table", "index", "view", "sequence", "type", "domain"],
        StoreKind::Sqlite => &["table", "index", "view"],
    }
}

/// True if the statement makes, changes or drops something.
pub(super) fn is_ddl(kind: StoreKind, word: &str) -> bool {
    match word {
        "create" | "alter" | "drop" => true,
        "truncate" => kind == StoreKind::Postgres,
        _ => false,
    }
}

/// Returns what to do instead of a statement that begins with `word`.
pub(super) fn instead_of(kind: StoreKind, word: &str, allow_ddl: bool) -> Option<&'static str> {
    let postgres = kind == StoreKind::Postgres;
    Some(match word.to_ascii_lowercase().as_str() {
        "commit" | "end" | "rollback" | "abort" | "begin" | "start" | "prepare" => {
            "the host begins and ends the transaction: return ok or a failure"
        }
        "savepoint" | "release" => "begin a savepoint through the host's interface",
        "create" | "alter" | "drop" | "truncate" if !allow_ddl => {
            "make tables in the handler's migrations, or write `allow_ddl = true` in its table"
        }
        "set" | "reset" | "discard" if postgres => {
            "settings are the host's; set them for the login with ALTER ROLE .. SET"
        }
        "copy" => "insert many rows with `execute-many`",
        "call" | "do" if postgres => "write the statements themselves, or SELECT a function",
        "listen" | "notify" | "unlisten" if postgres => "publish a message through the outbox",
        "lock" => {
            "lock rows with SELECT .. FOR UPDATE, or use pg_advisory_xact_lock with one bigint"
        }
        "explain" => "explain it by hand, outside a handler",
        "grant" | "revoke" => "grant in the handler's migrations",
        "replace" if postgres => "write INSERT .. ON CONFLICT DO UPDATE",
        "merge" if !postgres => "write INSERT .. ON CONFLICT DO UPDATE",
        _ => return None,
    })
}

/// Refuses names by which SQLite reaches past the transaction: its settings, code from files.
pub(super) fn sqlite_name(name: &str, token: &Token<'_>) -> Option<SqlError> {
    let lower = name.to_ascii_lowercase();
    // SQLite takes a string for a table's name (`FROM 'pragma_optimize'`), but not for a function's.
    if lower.starts_with("pragma_") {
        return Some(denied_as(
            "denied.function",
            format!("the statement names `{}`", shorten(name)),
            "a handler neither reads nor changes settings; pass such text as a parameter".into(),
        ));
    }
    let is_function = !matches!(token, Token::Text(_));
    (is_function && matches!(lower.as_str(), "load_extension" | "fts3_tokenizer")).then(|| {
        denied_as(
            "denied.function",
            format!("the statement names `{}`", shorten(name)),
            "a handler loads no code; name columns differently".into(),
        )
    })
}
