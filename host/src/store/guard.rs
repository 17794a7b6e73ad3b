//! The first guard before a handler's statement: its kind, that it is one, and that it leaves hapax's own tables alone.
//!
//! It reads tokens, not grammar: the database parses. What it must never do is take for text or comment what the
//! database takes for a statement, so it follows each database's own scanner (PostgreSQL's `scan.l`, SQLite's
//! `tokenize.c`).
//!
//! **Invariant**: no I/O and no sqlx here.
//! **Invariant**: what can't be scanned is refused, not passed on.

mod params;
mod scanner;

pub(crate) use params::postgres_params;
use scanner::{Scanner, Token};

use super::{SqlError, StoreKind};

/// The longest statement of a handler, in bytes.
pub(crate) const STATEMENT_MAX_BYTES: usize = 1024 * 1024;

/// SQLite's own limit on parameter numbers (`SQLITE_MAX_VARIABLE_NUMBER`).
const SQLITE_PARAMS_MAX: u32 = 32_766;

/// What the guard learned about a statement that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    /// True if it is a SELECT or VALUES, behind `WITH` too: the rows it affects are those it returns.
    pub(crate) reads: bool,
    /// How many parameters it takes; only counted for SQLite (PostgreSQL says it itself).
    pub(crate) params: u32,
}

/// Checks one statement of a handler.
///
/// # Errors
/// `denied.statement`, naming what was found and what is possible; `params.name` for parameters that SQLite would
/// bind by name.
pub(crate) fn check(kind: StoreKind, statement: &str) -> Result<Passed, SqlError> {
    if statement.len() > STATEMENT_MAX_BYTES {
        return Err(denied(
            format!("the statement has {} bytes", statement.len()),
            format!("at most {STATEMENT_MAX_BYTES} are possible; pass data as parameters"),
        ));
    }
    if let Some(at) = statement.find('\0') {
        let mut error = denied(
            "the statement contains a NUL character".into(),
            "pass bytes as a parameter".into(),
        );
        error.position = position_at(statement, at);
        return Err(error);
    }

    let mut scanner = Scanner {
        kind,
        text: statement,
        at: 0,
    };
    let mut first: Option<String> = None;
    // The statement proper behind `WITH`: the first of its keywords outside parentheses.
    let mut main: Option<bool> = None;
    let mut depth = 0_u32;
    let mut ended = false;
    let mut before: Option<String> = None;
    let mut params = Params::default();

    while let Some((token, at)) = scanner.next_token()? {
        let error_at = |mut error: SqlError| {
            error.position = position_at(statement, at);
            error
        };
        if ended {
            if matches!(token, Token::Symbol(';')) {
                continue;
            }
            return Err(error_at(denied(
                "there is a second statement behind `;`".into(),
                "send one statement a call".into(),
            )));
        }
        let word = match &token {
            Token::Word(word) => Some(word.to_ascii_lowercase()),
            _ => None,
        };
        if let Some(name) = token.name().filter(|name| is_own(kind, name, &token)) {
            return Err(error_at(denied(
                format!("the statement names `{}`", shorten(name)),
                own_hint(kind),
            )));
        }
        match &token {
            Token::Symbol(';') => {
                if first.is_none() {
                    break;
                }
                ended = true;
                continue;
            }
            Token::Symbol('(') => depth += 1,
            Token::Symbol(')') => depth = depth.saturating_sub(1),
            Token::Param(number) => params.add(*number).map_err(error_at)?,
            _ => {}
        }

        match &first {
            None => match (&token, word.as_deref()) {
                // `(SELECT ..) UNION ..`
                (Token::Symbol('('), _) if kind == StoreKind::Postgres => {}
                (_, Some(word)) if allowed(kind).contains(&word.to_ascii_uppercase().as_str()) => {
                    first = Some(word.to_owned());
                    main = reads(word);
                    depth = 0;
                }
                (Token::Word(found), _) => {
                    return Err(error_at(denied(
                        format!("the statement begins with `{}`", shorten(found)),
                        allowed_hint(kind),
                    )));
                }
                _ => {
                    return Err(error_at(denied(
                        "the statement does not begin with a keyword".into(),
                        allowed_hint(kind),
                    )));
                }
            },
            Some(_) => {
                if let Some(word) = word.as_deref() {
                    if main.is_none() && depth == 0 {
                        main = reads(word);
                    }
                    // `SELECT .. INTO` makes a table, and a temporary one would hide a real one from the next message.
                    if kind == StoreKind::Postgres
                        && word == "into"
                        && !matches!(before.as_deref(), Some("insert" | "merge"))
                    {
                        return Err(error_at(denied(
                            "the statement makes a table with `INTO`".into(),
                            "make tables in the handler's migrations".into(),
                        )));
                    }
                }
            }
        }
        before = word;
    }
    if first.is_none() {
        return Err(denied("the statement is empty".into(), allowed_hint(kind)));
    }
    Ok(Passed {
        reads: main.unwrap_or(true),
        params: params.count,
    })
}

/// Returns the first transaction command in a script of several statements, as it is written, if there is one.
///
/// For a handler's migrations, which run in a transaction of the host's. Bodies of triggers and of functions in the SQL
/// standard's form end with `END`, which is therefore not looked for.
pub(crate) fn transaction_command(kind: StoreKind, script: &str) -> Option<String> {
    let mut scanner = Scanner {
        kind,
        text: script,
        at: 0,
    };
    let mut at_start = true;
    // What can't be scanned is left to the database to refuse.
    while let Ok(Some((token, _))) = scanner.next_token() {
        match token {
            Token::Symbol(';') => at_start = true,
            Token::Word(word) if at_start => {
                at_start = false;
                let upper = word.to_ascii_uppercase();
                if [
                    "ABORT",
                    "BEGIN",
                    "COMMIT",
                    "RELEASE",
                    "ROLLBACK",
                    "SAVEPOINT",
                    "START",
                ]
                .contains(&upper.as_str())
                {
                    return Some(upper);
                }
            }
            _ => at_start = false,
        }
    }
    None
}

fn allowed(kind: StoreKind) -> &'static [&'static str] {
    match kind {
        StoreKind::Postgres => &[
            "SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES",
        ],
        StoreKind::Sqlite => &[
            "SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "VALUES",
        ],
    }
}

fn allowed_hint(kind: StoreKind) -> String {
    format!("a handler may send {}", allowed(kind).join(", "))
}

fn own_hint(kind: StoreKind) -> String {
    match kind {
        StoreKind::Postgres => {
            "the schema `hapax` is the host's own; name columns and aliases differently".into()
        }
        StoreKind::Sqlite => {
            "names that begin with `hapax_` or `sqlite_` are the host's own; pass such text as a parameter".into()
        }
    }
}

/// `None` for words that say nothing about it.
fn reads(lower: &str) -> Option<bool> {
    match lower {
        "select" | "values" => Some(true),
        "insert" | "update" | "delete" | "merge" | "replace" => Some(false),
        _ => None,
    }
}

fn is_own(kind: StoreKind, name: &str, token: &Token<'_>) -> bool {
    let starts = |prefix: &str| {
        name.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    match (kind, token) {
        (StoreKind::Postgres, Token::Word(_)) => name.eq_ignore_ascii_case("hapax"),
        (StoreKind::Postgres, Token::Quoted(_)) => name == "hapax",
        (StoreKind::Postgres, _) => false,
        // SQLite takes a string for a name where only a name can stand (`INSERT INTO 'hapax_queue'`).
        (StoreKind::Sqlite, _) => starts("hapax_") || starts("sqlite_"),
    }
}

fn denied(found: String, hint: String) -> SqlError {
    SqlError {
        hint: Some(hint),
        ..SqlError::new("denied.statement", found)
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}

fn position_at(text: &str, byte: usize) -> Option<u32> {
    u32::try_from(text.get(..byte)?.chars().count() + 1).ok()
}

/// Counts parameters as sqlx binds them: all by number, or all by their place.
#[derive(Default)]
struct Params {
    count: u32,
    numbered: bool,
    placed: bool,
}

impl Params {
    fn add(&mut self, number: Option<u32>) -> Result<(), SqlError> {
        match number {
            None => {
                self.placed = true;
                self.count += 1;
            }
            Some(number) if (1..=SQLITE_PARAMS_MAX).contains(&number) => {
                self.numbered = true;
                self.count = self.count.max(number);
            }
            Some(number) => {
                return Err(SqlError::new(
                    "params.name",
                    format!("there is no parameter {number}; they are counted from 1"),
                ));
            }
        }
        if self.placed && self.numbered {
            return Err(SqlError {
                hint: Some("write `$1`, `$2` throughout".into()),
                ..SqlError::new(
                    "params.name",
                    "the statement mixes `?` with numbered parameters",
                )
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
