//! The first guard before a handler's statement: its kind, that it is one, that it leaves hapax's own tables alone, and
//! that it calls nothing that reaches past the transaction.
//!
//! It reads tokens, not grammar: the database parses. What it must never do is take for text or comment what the
//! database takes for a statement, so it follows each database's own scanner (PostgreSQL's `scan.l`, SQLite's
//! `tokenize.c`).
//!
//! **Invariant**: no I/O and no sqlx here.
//! **Invariant**: what can't be scanned is refused, not passed on.

mod functions;
mod params;
mod postgres;
mod reading;
mod refusals;
mod scanner;

pub(crate) use functions::{EXTENSIONS, Functions};
pub(crate) use params::postgres_params;
pub(crate) use reading::{Reaches, Reading, differing_in, read};
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
    /// True if it makes, changes or drops tables and their like.
    pub(crate) is_ddl: bool,
}

/// What a statement is checked against.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules<'a> {
    /// True if the handler may make, change and drop tables and their like.
    pub(crate) allow_ddl: bool,
    /// What the server says of its functions; only on PostgreSQL. Without it no call is refused by what the server says.
    pub(crate) functions: Option<&'a Functions>,
}

/// Checks one statement of a handler.
///
/// # Errors
/// `denied.statement`, `denied.function` or `denied.catalog`, naming what was found and what to do instead;
/// `params.name` for parameters that SQLite would bind by name.
pub(crate) fn check(
    kind: StoreKind,
    statement: &str,
    rules: Rules<'_>,
) -> Result<Passed, SqlError> {
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
    let mut kinds = Kinds::default();
    let mut postgres = postgres::Watch::new(rules.functions);
    let mut ended = false;
    let mut params = Params::default();

    while let Some((token, at)) = scanner.next_token()? {
        let error_at = |mut error: SqlError| {
            error.position = error.position.or_else(|| position_at(statement, at));
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
        if let Some(name) = token.name() {
            if is_own(kind, name, &token) {
                return Err(error_at(denied(
                    format!("the statement names `{}`", shorten(name)),
                    own_hint(kind),
                )));
            }
            if kind == StoreKind::Sqlite
                && let Some(error) = refusals::sqlite_name(name, &token)
            {
                return Err(error_at(error));
            }
        }
        match &token {
            Token::Symbol(';') => {
                if kinds.is_empty() {
                    break;
                }
                ended = true;
                continue;
            }
            Token::Param(number) => params.add(*number).map_err(error_at)?,
            _ => {}
        }
        kinds
            .take(kind, &token, rules.allow_ddl)
            .map_err(error_at)?;
        if kind == StoreKind::Postgres {
            postgres
                .take(&token, at, kinds.is_ddl)
                .map_err(|(error, back)| match back {
                    // It is about a token before this one.
                    Some(start) => SqlError {
                        position: position_at(statement, start),
                        ..error
                    },
                    None => error_at(error),
                })?;
        }
    }
    if kind == StoreKind::Postgres {
        postgres
            .end(kinds.is_ddl)
            .map_err(|(error, back)| SqlError {
                position: back.and_then(|start| position_at(statement, start)),
                ..error
            })?;
    }
    kinds.end(kind)?;
    Ok(Passed {
        reads: kinds.reads.unwrap_or(!kinds.is_ddl),
        params: params.count,
        is_ddl: kinds.is_ddl,
    })
}

/// What kind of statement it is, from its first keywords.
#[derive(Default)]
struct Kinds {
    /// The first keyword.
    first: Option<String>,
    /// The statement proper behind `WITH`: the first of its keywords outside parentheses.
    reads: Option<bool>,
    depth: u32,
    is_ddl: bool,
    /// What is made, changed or dropped is named next.
    wants_object: bool,
}

impl Kinds {
    fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn take(
        &mut self,
        kind: StoreKind,
        token: &Token<'_>,
        allow_ddl: bool,
    ) -> Result<(), SqlError> {
        let word = match token {
            Token::Word(word) => Some(word.to_ascii_lowercase()),
            _ => None,
        };
        let word = word.as_deref();
        match token {
            Token::Symbol('(') => self.depth += 1,
            Token::Symbol(')') => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        if self.first.is_some() {
            if self.wants_object {
                self.object(kind, word)?;
            }
            if let Some(word) = word
                && self.reads.is_none()
                && !self.is_ddl
                && self.depth == 0
            {
                self.reads = reads(word);
            }
            return Ok(());
        }
        match (token, word) {
            // `(SELECT ..) UNION ..`
            (Token::Symbol('('), _) if kind == StoreKind::Postgres => Ok(()),
            (_, Some(word)) if allowed(kind).contains(&word.to_ascii_uppercase().as_str()) => {
                self.first = Some(word.to_owned());
                self.reads = reads(word);
                self.depth = 0;
                Ok(())
            }
            (_, Some(word)) if allow_ddl && self.depth == 0 && refusals::is_ddl(kind, word) => {
                self.first = Some(word.to_owned());
                self.is_ddl = true;
                self.wants_object = word != "truncate";
                Ok(())
            }
            (Token::Word(found), _) => Err(denied(
                format!("the statement begins with `{}`", shorten(found)),
                refusals::instead_of(kind, found, allow_ddl).map_or_else(
                    || allowed_hint(kind),
                    |hint| format!("{hint}; {}", allowed_hint(kind)),
                ),
            )),
            _ => Err(denied(
                "the statement does not begin with a keyword".into(),
                allowed_hint(kind),
            )),
        }
    }

    /// Takes the words between CREATE and the like and the name.
    fn object(&mut self, kind: StoreKind, word: Option<&str>) -> Result<(), SqlError> {
        match word {
            Some("or" | "replace" | "unique" | "materialized") => Ok(()),
            Some(word) if refusals::ddl_objects(kind).contains(&word) => {
                self.wants_object = false;
                Ok(())
            }
            _ => Err(denied(
                format!(
                    "the statement is no {} of a table or its like",
                    self.first.as_deref().unwrap_or_default().to_uppercase()
                ),
                format!(
                    "with `allow_ddl` a handler may make, change and drop {}; all else belongs into its migrations",
                    refusals::ddl_objects(kind).join(", ")
                ),
            )),
        }
    }

    fn end(&self, kind: StoreKind) -> Result<(), SqlError> {
        if self.first.is_none() {
            return Err(denied("the statement is empty".into(), allowed_hint(kind)));
        }
        if self.wants_object {
            return Err(denied(
                "the statement is not complete".into(),
                allowed_hint(kind),
            ));
        }
        Ok(())
    }
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
    denied_as("denied.statement", found, hint)
}

fn denied_as(code: &str, found: String, hint: String) -> SqlError {
    SqlError {
        hint: Some(hint),
        ..SqlError::new(code, found)
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
