//! What a statement must not do on PostgreSQL beyond its kind: make a table with `INTO`, write to the catalog, call a
//! function that reaches past the transaction.
//!
//! A function is called by `f(..)`, and by `x.f` too: PostgreSQL takes a name behind a dot for a function of one argument,
//! on any expression (`('x'::text).pg_read_file`). A name can be qualified, quoted, or stand apart from its parenthesis.
//! Operators, casts and types' input functions of the catalog are never volatile (a test asks the server).

use super::functions::{Functions, Refusal};
use super::{SqlError, Token, denied, denied_as, shorten};

/// The deepest nesting of parentheses that is followed.
const DEPTH_MAX: usize = 2_000;

/// An error, and the byte that it is about if that is not the current token's.
type Refused = (SqlError, Option<usize>);

/// What is known of the parentheses that are open.
#[derive(Default)]
struct Level {
    /// The place of INSERT or MERGE, if it is this level's statement.
    writes_at: Option<usize>,
    /// The level's statement has begun.
    has_statement: bool,
    /// A call whose number of arguments decides.
    counted: Option<Counted>,
}

struct Counted {
    refusal: Refusal,
    name: String,
    start: usize,
    wanted: usize,
    commas: usize,
    is_empty: bool,
}

/// Where the name of what is written to stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Elsewhere,
    /// Behind DELETE.
    From,
    /// Here, behind `ONLY` and parentheses at the most.
    Next,
    /// It may go on behind a dot.
    Begun,
}

/// Looks at one token after the other.
pub(super) struct Watch<'a> {
    functions: Option<&'a Functions>,
    /// How many tokens there were.
    count: usize,
    levels: Vec<Level>,
    /// The last token.
    before: Before,
    /// A name that is no call only if no parenthesis follows.
    dotted: Option<(Refusal, String, usize)>,
    target: Target,
    /// A name of the catalog's, if the token behind it shows that it is no call's.
    catalog_name: Option<(String, usize)>,
    /// Where a name of the catalog's stands.
    catalog: Option<(String, usize)>,
    locks_rows: bool,
}

/// As much of the last token as matters.
enum Before {
    Nothing,
    Name {
        name: String,
        is_word: bool,
        start: usize,
    },
    Dot,
    Other,
}

impl Before {
    fn word(&self) -> Option<&str> {
        match self {
            Self::Name {
                name,
                is_word: true,
                ..
            } => Some(name),
            _ => None,
        }
    }
}

impl<'a> Watch<'a> {
    pub(super) fn new(functions: Option<&'a Functions>) -> Self {
        Self {
            functions,
            count: 0,
            levels: vec![Level::default()],
            before: Before::Nothing,
            dotted: None,
            target: Target::Elsewhere,
            catalog_name: None,
            catalog: None,
            locks_rows: false,
        }
    }

    /// Looks at the next token, which begins at the byte `start`.
    pub(super) fn take(
        &mut self,
        token: &Token<'_>,
        start: usize,
        is_ddl: bool,
    ) -> Result<(), Refused> {
        let is_call = matches!(token, Token::Symbol('('));
        if let Some((refusal, name, start)) = self.dotted.take()
            && !is_call
        {
            return Err((refusal.error(&name), Some(start)));
        }
        if let Some((name, start)) = self.catalog_name.take()
            && !is_call
            && !(name == "pg_catalog" && matches!(token, Token::Symbol('.')))
        {
            if is_ddl {
                return Err((catalog(&name), Some(start)));
            }
            self.catalog = Some((name, start));
        }
        if let Some(counted) = self
            .levels
            .last_mut()
            .and_then(|level| level.counted.as_mut())
        {
            match token {
                Token::Symbol(',') => counted.commas += 1,
                Token::Symbol(')') => {}
                _ => counted.is_empty = false,
            }
        }

        let target = self.target;
        self.target = match (target, token) {
            (Target::From, Token::Word(word)) if word.eq_ignore_ascii_case("from") => Target::Next,
            (Target::Next, Token::Word(word)) if word.eq_ignore_ascii_case("only") => Target::Next,
            (Target::Next, Token::Symbol('(')) | (Target::Begun, Token::Symbol('.')) => {
                Target::Next
            }
            (Target::Next, Token::Word(_) | Token::Quoted(_)) => Target::Begun,
            _ => Target::Elsewhere,
        };
        let is_target = self.target == Target::Begun;
        let before = match token {
            Token::Word(word) => {
                let name = word.to_ascii_lowercase();
                self.name(&name, start, is_target)?;
                if is_ddl && name == "execute" {
                    return Err((
                        denied(
                            "the statement runs a prepared one".into(),
                            "write the query itself".into(),
                        ),
                        None,
                    ));
                }
                self.word(&name)?;
                Before::Name {
                    name,
                    is_word: true,
                    start,
                }
            }
            Token::Quoted(name) => {
                self.name(name, start, is_target)?;
                Before::Name {
                    name: name.clone(),
                    is_word: false,
                    start,
                }
            }
            Token::Symbol('.') => Before::Dot,
            Token::Symbol('(') => {
                self.open()?;
                Before::Other
            }
            Token::Symbol('[') => {
                self.push(Level::default())?;
                Before::Other
            }
            Token::Symbol(')' | ']') => {
                self.close()?;
                Before::Other
            }
            Token::Symbol(_) | Token::Text(_) | Token::Param(_) | Token::Other => Before::Other,
        };
        self.before = before;
        self.count += 1;
        Ok(())
    }

    /// Looks at what only the end tells.
    pub(super) fn end(&mut self, is_ddl: bool) -> Result<(), Refused> {
        if let Some((refusal, name, start)) = self.dotted.take() {
            return Err((refusal.error(&name), Some(start)));
        }
        if let Some(found) = self.catalog_name.take() {
            self.catalog = Some(found);
        }
        match self.catalog.take() {
            Some((name, start)) if self.locks_rows || is_ddl => Err((catalog(&name), Some(start))),
            _ => Ok(()),
        }
    }

    fn name(&mut self, name: &str, start: usize, is_target: bool) -> Result<(), Refused> {
        if name.starts_with("pg_temp") || name.starts_with("pg_toast") {
            return Err((
                denied_as(
                    "denied.catalog",
                    format!("the statement names `{}`", shorten(name)),
                    "temporary tables would hide real ones from the next message; make tables in the handler's migrations"
                        .into(),
                ),
                None,
            ));
        }
        let is_catalog = name.starts_with("pg_") || name == "information_schema";
        if is_catalog && is_target {
            return Err((catalog(name), None));
        }
        if is_catalog {
            self.catalog_name = Some((name.to_owned(), start));
        }
        self.behind_dot(name, start)
    }

    fn behind_dot(&mut self, name: &str, start: usize) -> Result<(), Refused> {
        if matches!(self.before, Before::Dot)
            && let Some(refusal) = self.refusal(name)
        {
            if refusal.arguments().is_none() {
                return Err((refusal.error(name), None));
            }
            // `schema.f(..)` may be fine where `x.f` is not.
            self.dotted = Some((refusal, name.to_owned(), start));
        }
        Ok(())
    }

    fn word(&mut self, word: &str) -> Result<(), Refused> {
        let count = self.count;
        let at_start = self.before_allows_statement();
        let level = self.levels.last_mut();
        match word {
            "insert" | "merge" => {
                if let Some(level) = level
                    && !level.has_statement
                    && at_start
                {
                    level.writes_at = Some(count);
                    level.has_statement = true;
                }
            }
            "select" | "values" | "table" => {
                if let Some(level) = level {
                    level.has_statement = true;
                }
            }
            "update" => {
                if let Some(level) = level {
                    level.has_statement = true;
                }
                if matches!(self.before.word(), Some("for" | "key")) {
                    self.locks_rows = true;
                } else {
                    self.target = Target::Next;
                }
            }
            "share" | "no" | "key" if self.before.word() == Some("for") => self.locks_rows = true,
            "delete" => {
                if let Some(level) = level {
                    level.has_statement = true;
                }
                self.target = Target::From;
            }
            // `WITH insert AS (..)`: it was a name.
            "as" => {
                if let Some(level) = level
                    && level.writes_at.is_some_and(|at| at + 1 == count)
                {
                    level.writes_at = None;
                    level.has_statement = false;
                }
            }
            "into" => {
                // `SELECT .. INTO` makes a table, and a temporary one would hide a real one from the next message.
                if level.is_none_or(|level| level.writes_at.is_none_or(|at| at + 1 != count)) {
                    return Err((
                        denied(
                            "the statement makes a table with `INTO`".into(),
                            "make tables in the handler's migrations".into(),
                        ),
                        None,
                    ));
                }
                self.target = Target::Next;
            }
            _ => {}
        }
        Ok(())
    }

    /// False behind what makes a keyword a name or an alias.
    fn before_allows_statement(&self) -> bool {
        matches!(self.before, Before::Nothing | Before::Other)
    }

    fn open(&mut self) -> Result<(), Refused> {
        let count = self.count;
        if let Some(level) = self.levels.last_mut()
            && level.writes_at.is_some_and(|at| at + 1 == count)
        {
            // `WITH insert (a) AS ..`: it was a name.
            level.writes_at = None;
            level.has_statement = false;
        }
        let mut level = Level::default();
        if let Before::Name { name, start, .. } = &self.before {
            let (name, start) = (name.clone(), *start);
            if let Some(refusal) = self.refusal(&name) {
                match refusal.arguments() {
                    None => return Err((refusal.error(&name), Some(start))),
                    Some(wanted) => {
                        level.counted = Some(Counted {
                            refusal,
                            name,
                            start,
                            wanted,
                            commas: 0,
                            is_empty: true,
                        });
                    }
                }
            }
        }
        self.push(level)
    }

    fn push(&mut self, level: Level) -> Result<(), Refused> {
        if self.levels.len() >= DEPTH_MAX {
            return Err((
                denied(
                    format!("the statement nests more than {DEPTH_MAX} parentheses"),
                    "pass data as parameters".into(),
                ),
                None,
            ));
        }
        self.levels.push(level);
        Ok(())
    }

    fn close(&mut self) -> Result<(), Refused> {
        if self.levels.len() > 1
            && let Some(level) = self.levels.pop()
            && let Some(counted) = level.counted
        {
            let arguments = if counted.is_empty {
                0
            } else {
                counted.commas + 1
            };
            if arguments != counted.wanted {
                return Err((counted.refusal.error(&counted.name), Some(counted.start)));
            }
        }
        Ok(())
    }

    fn refusal(&self, name: &str) -> Option<Refusal> {
        Functions::refusal(self.functions, name)
    }
}

fn catalog(name: &str) -> SqlError {
    denied_as(
        "denied.catalog",
        format!("the statement writes to or locks `{}`", shorten(name)),
        "the catalog and the settings are the database owner's; use a table of the handler's own, whose name does not begin \
         with `pg_`"
            .into(),
    )
}
