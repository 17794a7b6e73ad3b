//! The first guard before a handler's statement: its kind, that it is one, and that it leaves hapax's own tables alone.
//!
//! It reads tokens, not grammar: the database parses. What it must never do is take for text or comment what the
//! database takes for a statement, so it follows each database's own scanner (PostgreSQL's `scan.l`, SQLite's
//! `tokenize.c`).
//!
//! **Invariant**: no I/O and no sqlx here.
//! **Invariant**: what can't be scanned is refused, not passed on.

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

enum Token<'a> {
    /// A keyword or an unquoted name, as written.
    Word(&'a str),
    /// A quoted name, with its quotes undone.
    Quoted(String),
    /// A string on SQLite, with its quotes undone. PostgreSQL's strings are `Other`: none of them is a name.
    Text(String),
    /// A parameter: its number, or none for a bare `?`. Only on SQLite.
    Param(Option<u32>),
    Symbol(char),
    /// A string, a number: nothing that the guard looks at.
    Other,
}

impl Token<'_> {
    /// What the database may take for a name.
    fn name(&self) -> Option<&str> {
        match self {
            Self::Word(name) => Some(name),
            Self::Quoted(name) | Self::Text(name) => Some(name),
            Self::Param(_) | Self::Symbol(_) | Self::Other => None,
        }
    }
}

struct Scanner<'a> {
    kind: StoreKind,
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    fn byte(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    /// Returns the next token and the byte where it begins.
    fn next_token(&mut self) -> Result<Option<(Token<'a>, usize)>, SqlError> {
        self.skip_blanks()?;
        let start = self.at;
        let Some(byte) = self.byte(0) else {
            return Ok(None);
        };
        let token = match self.kind {
            StoreKind::Postgres => self.postgres_token(byte)?,
            StoreKind::Sqlite => self.sqlite_token(byte)?,
        };
        Ok(Some((token, start)))
    }

    fn skip_blanks(&mut self) -> Result<(), SqlError> {
        loop {
            match self.byte(0) {
                Some(b' ' | b'\t' | b'\n' | b'\r' | 0x0c) => self.at += 1,
                // The vertical tab is white space since PostgreSQL 16, and an error before.
                Some(0x0b) if self.kind == StoreKind::Postgres => self.at += 1,
                Some(0xef)
                    if self.kind == StoreKind::Sqlite
                        && self.text[self.at..].starts_with('\u{feff}') =>
                {
                    self.at += '\u{feff}'.len_utf8();
                }
                Some(b'-') if self.byte(1) == Some(b'-') => self.skip_line_comment(),
                Some(b'/') if self.byte(1) == Some(b'*') => self.skip_block_comment()?,
                _ => return Ok(()),
            }
        }
    }

    fn skip_line_comment(&mut self) {
        // A bare carriage return ends a comment on PostgreSQL, not on SQLite.
        let postgres = self.kind == StoreKind::Postgres;
        while let Some(byte) = self.byte(0) {
            if byte == b'\n' || (postgres && byte == b'\r') {
                return;
            }
            self.at += 1;
        }
    }

    fn skip_block_comment(&mut self) -> Result<(), SqlError> {
        let start = self.at;
        self.at += 2;
        let mut depth = 1;
        while depth > 0 {
            match (self.byte(0), self.byte(1)) {
                (Some(b'*'), Some(b'/')) => {
                    depth -= 1;
                    self.at += 2;
                }
                (Some(b'/'), Some(b'*')) if self.kind == StoreKind::Postgres => {
                    depth += 1;
                    self.at += 2;
                }
                (Some(_), _) => self.at += 1,
                (None, _) => return Err(self.unterminated("comment", start)),
            }
        }
        Ok(())
    }

    fn unterminated(&self, what: &str, start: usize) -> SqlError {
        let mut error = denied(
            format!("a {what} in the statement is not closed"),
            "close it".into(),
        );
        error.position = position_at(self.text, start);
        error
    }

    /// Reads up to the closing `quote`, which is doubled inside. Returns the text with the doubling undone.
    fn quoted(&mut self, quote: u8, what: &str) -> Result<String, SqlError> {
        let start = self.at;
        self.at += 1;
        let mut piece = self.at;
        let mut undone = String::new();
        loop {
            match self.byte(0) {
                None => return Err(self.unterminated(what, start)),
                Some(byte) if byte == quote => {
                    undone.push_str(&self.text[piece..self.at]);
                    self.at += 1;
                    if self.byte(0) != Some(quote) {
                        return Ok(undone);
                    }
                    piece = self.at;
                    self.at += 1;
                }
                Some(_) => self.at += 1,
            }
        }
    }

    fn word(&mut self) -> &'a str {
        let start = self.at;
        while let Some(byte) = self.byte(0)
            && (byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80)
        {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn digits(&mut self) -> &'a str {
        let start = self.at;
        while self.byte(0).is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn symbol(&mut self) -> Token<'a> {
        let symbol = self.text[self.at..].chars().next().unwrap_or(' ');
        self.at += symbol.len_utf8();
        Token::Symbol(symbol)
    }

    fn postgres_token(&mut self, byte: u8) -> Result<Token<'a>, SqlError> {
        match byte {
            b'\'' => {
                self.quoted(b'\'', "string")?;
                Ok(Token::Other)
            }
            b'"' => Ok(Token::Quoted(self.quoted(b'"', "name")?)),
            b'E' | b'e' if self.byte(1) == Some(b'\'') => {
                self.at += 1;
                self.escape_string()?;
                Ok(Token::Other)
            }
            b'B' | b'b' | b'X' | b'x' | b'N' | b'n' if self.byte(1) == Some(b'\'') => {
                self.at += 1;
                self.quoted(b'\'', "string")?;
                Ok(Token::Other)
            }
            b'U' | b'u' if self.byte(1) == Some(b'&') && self.byte(2) == Some(b'\'') => {
                self.at += 2;
                self.quoted(b'\'', "string")?;
                Ok(Token::Other)
            }
            b'U' | b'u' if self.byte(1) == Some(b'&') && self.byte(2) == Some(b'"') => {
                let mut error = denied(
                    "the statement has a name in the form `U&\"..\"`".into(),
                    "write the name itself, in plain quotes".into(),
                );
                error.position = position_at(self.text, self.at);
                Err(error)
            }
            b'$' => self.dollar(),
            _ if byte.is_ascii_digit() => {
                self.digits();
                Ok(Token::Other)
            }
            _ if byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80 => {
                Ok(Token::Word(self.word()))
            }
            _ => Ok(self.symbol()),
        }
    }

    /// Reads `'..'` behind `E`, where a backslash escapes, with its continuations on further lines.
    fn escape_string(&mut self) -> Result<(), SqlError> {
        let start = self.at;
        loop {
            self.at += 1;
            loop {
                match (self.byte(0), self.byte(1)) {
                    (None, _) => return Err(self.unterminated("string", start)),
                    (Some(b'\\'), _) | (Some(b'\''), Some(b'\'')) => self.at += 2,
                    (Some(b'\''), _) => {
                        self.at += 1;
                        break;
                    }
                    (Some(_), _) => self.at += 1,
                }
                if self.at > self.text.len() {
                    return Err(self.unterminated("string", start));
                }
            }
            // `E'a'`, a line break, `'b'`: the second part is an escape string too.
            let end = self.at;
            let mut line_break = false;
            loop {
                match self.byte(0) {
                    Some(b'\n' | b'\r') => {
                        line_break = true;
                        self.at += 1;
                    }
                    Some(b' ' | b'\t' | 0x0b | 0x0c) => self.at += 1,
                    Some(b'-') if self.byte(1) == Some(b'-') => self.skip_line_comment(),
                    _ => break,
                }
            }
            if !(line_break && self.byte(0) == Some(b'\'')) {
                self.at = end;
                return Ok(());
            }
        }
    }

    /// Reads `$1`, or a string in dollar quotes.
    fn dollar(&mut self) -> Result<Token<'a>, SqlError> {
        let start = self.at;
        self.at += 1;
        if self.byte(0).is_some_and(|byte| byte.is_ascii_digit()) {
            self.digits();
            return Ok(Token::Other);
        }
        while let Some(byte) = self.byte(0)
            && (byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80)
        {
            self.at += 1;
        }
        if self.byte(0) != Some(b'$') {
            self.at = start;
            return Ok(self.symbol());
        }
        self.at += 1;
        let tag = &self.text[start..self.at];
        match self.text[self.at..].find(tag) {
            Some(length) => {
                self.at += length + tag.len();
                Ok(Token::Other)
            }
            None => Err(self.unterminated("string", start)),
        }
    }

    fn sqlite_token(&mut self, byte: u8) -> Result<Token<'a>, SqlError> {
        match byte {
            b'\'' => Ok(Token::Text(self.quoted(b'\'', "string")?)),
            b'"' => Ok(Token::Quoted(self.quoted(b'"', "name")?)),
            b'`' => Ok(Token::Quoted(self.quoted(b'`', "name")?)),
            b'[' => {
                let start = self.at;
                match self.text[start..].find(']') {
                    Some(length) => {
                        self.at += length + 1;
                        Ok(Token::Quoted(self.text[start + 1..start + length].into()))
                    }
                    None => Err(self.unterminated("name", start)),
                }
            }
            b'X' | b'x' if self.byte(1) == Some(b'\'') => {
                self.at += 1;
                self.quoted(b'\'', "string")?;
                Ok(Token::Other)
            }
            b'?' | b'$' => self.sqlite_param(byte),
            b':' | b'@' | b'#'
                if self.byte(1).is_some_and(|byte| {
                    byte.is_ascii_alphanumeric() || b"_$:".contains(&byte) || byte >= 0x80
                }) =>
            {
                Err(self.named_param())
            }
            _ if byte.is_ascii_digit() => {
                self.digits();
                Ok(Token::Other)
            }
            _ if byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80 => {
                Ok(Token::Word(self.word()))
            }
            _ => Ok(self.symbol()),
        }
    }

    fn sqlite_param(&mut self, sign: u8) -> Result<Token<'a>, SqlError> {
        let start = self.at;
        self.at += 1;
        let digits = self.digits();
        if digits.is_empty() && sign == b'?' {
            return Ok(Token::Param(None));
        }
        // `$1::x(..)` is one name to SQLite.
        let goes_on = self.byte(0).is_some_and(|byte| {
            byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
        }) || (sign == b'$' && matches!(self.byte(0), Some(b'(' | b':')));
        if digits.is_empty() || goes_on {
            self.at = start;
            return Err(self.named_param());
        }
        // Too many digits for a number are out of range in any case.
        Ok(Token::Param(Some(digits.parse().unwrap_or(u32::MAX))))
    }

    fn named_param(&self) -> SqlError {
        SqlError {
            hint: Some("write `$1`, `$2`".into()),
            position: position_at(self.text, self.at),
            ..SqlError::new(
                "params.name",
                "the statement has a parameter with a name; parameters are counted",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(kind: StoreKind, statement: &str) -> String {
        match check(kind, statement) {
            Ok(_) => "ok".into(),
            Err(error) => error.code,
        }
    }

    #[test]
    fn statements_that_pass_on_both() {
        for kind in [StoreKind::Postgres, StoreKind::Sqlite] {
            for statement in [
                "SELECT 1",
                "select 1;",
                "SELECT 1 ; ; -- done",
                "  -- a comment\n insert into t values (1)",
                "/* a */ update t set a = 1 /* b */;",
                "DELETE FROM t",
                "WITH a AS (SELECT 1) SELECT * FROM a",
                "VALUES (1), (2)",
                "SELECT ';COMMIT'",
                "SELECT 'it''s;' || \"a;b\" FROM t",
                "INSERT INTO t VALUES ('-- no comment', '/*')",
                "SELECT a/b, a - -b FROM t",
                "SELECT \u{e4}\u{f6} FROM \"caf\u{e9}\"",
            ] {
                assert_eq!(code(kind, statement), "ok", "{kind}: {statement}");
            }
        }
    }

    #[test]
    fn statements_that_are_denied_on_both() {
        for kind in [StoreKind::Postgres, StoreKind::Sqlite] {
            for statement in [
                "",
                " -- nothing\n",
                ";",
                ";COMMIT",
                "; SELECT 1",
                "COMMIT",
                "/* a */COMMIT",
                "-- a\nCOMMIT",
                "commit;",
                "END",
                "ROLLBACK",
                "ABORT",
                "BEGIN",
                "START TRANSACTION",
                "SAVEPOINT a",
                "RELEASE a",
                "SET search_path = a",
                "RESET ALL",
                "CREATE TABLE t (a int)",
                "DROP TABLE t",
                "ALTER TABLE t ADD a int",
                "TRUNCATE t",
                "COPY t FROM STDIN",
                "DO $$ BEGIN COMMIT; END $$",
                "CALL p()",
                "PREPARE a AS SELECT 1",
                "EXECUTE a",
                "LISTEN a",
                "NOTIFY a",
                "LOCK TABLE t",
                "EXPLAIN ANALYZE DELETE FROM t",
                "VACUUM",
                "PRAGMA synchronous = OFF",
                "ATTACH 'x' AS y",
                "SELECT 1; COMMIT",
                "SELECT 1;/* a */COMMIT",
                "SELECT 1;;COMMIT",
                "SELECT 'a'; COMMIT --'",
                "SELECT 'a''; COMMIT --",
                "SELECT 'unterminated",
                "SELECT \"unterminated",
                "SELECT 1 /* unterminated",
                "1",
                "'a'",
                "\"select\" 1",
                "SELECT 1\0; COMMIT",
            ] {
                assert_eq!(
                    code(kind, statement),
                    "denied.statement",
                    "{kind}: {statement}"
                );
            }
        }
    }

    #[test]
    fn postgres_comments_nest() {
        let kind = StoreKind::Postgres;
        assert_eq!(code(kind, "/* /* */ */COMMIT"), "denied.statement");
        assert_eq!(code(kind, "/* /* */ COMMIT */ SELECT 1"), "ok");
        assert_eq!(code(kind, "/* /* */ SELECT 1"), "denied.statement");
        // SQLite ends the comment at the first `*/`.
        assert_eq!(
            code(StoreKind::Sqlite, "/* /* */ COMMIT */ SELECT 1"),
            "denied.statement"
        );
        assert_eq!(code(StoreKind::Sqlite, "/* /* */ SELECT 1"), "ok");
    }

    #[test]
    fn postgres_strings() {
        let kind = StoreKind::Postgres;
        for statement in [
            r"SELECT E'it\'s;COMMIT'",
            r"SELECT e'\\';",
            r"SELECT 'a\'",
            "SELECT E'a'\n'b\\';COMMIT'",
            "SELECT E'a' -- c\n 'b\\';COMMIT'",
            "SELECT $$;COMMIT$$",
            "SELECT $a$;$$;COMMIT$a$",
            "SELECT $1::text || $2",
            "SELECT a$b$c FROM t",
            "SELECT U&'\\0041;'",
            "SELECT B'01', X'ff', N'x'",
            "(SELECT 1) UNION (SELECT 2)",
            "SELECT ARRAY[1,2][1], a::int, 'a' @> 'b'",
            "MERGE INTO t USING s ON true WHEN MATCHED THEN DO NOTHING",
            "INSERT INTO t SELECT 'hapax'",
            "SELECT hapax_queue FROM hapaxes",
            "SELECT \"HAPAX\" FROM t",
        ] {
            assert_eq!(code(kind, statement), "ok", "{statement}");
        }
        for statement in [
            r"SELECT 'a\'; COMMIT --'",
            r"SELECT E'\\'; COMMIT --'",
            "SELECT E'a' 'b\\'; COMMIT --'",
            "SELECT $$a$$; COMMIT",
            "SELECT $a$ $$ ; COMMIT",
            "SELECT $1$$a$$;COMMIT",
            "SELECT U&\"\\0068apax\" FROM t",
            "SELECT * FROM hapax.queue",
            "SELECT * FROM Hapax . queue",
            "DELETE FROM \"hapax\".queue",
            "DELETE FROM/**/hapax/**/.queue",
            "WITH a AS (DELETE FROM hapax.queue RETURNING 1) SELECT 1",
            "SELECT * INTO TEMP accounts FROM t",
            "SELECT 1 INTO t",
            "WITH a AS (SELECT 1) SELECT * INTO t FROM a",
            "REPLACE INTO t VALUES (1)",
            "SELECT E'\\",
        ] {
            assert_eq!(code(kind, statement), "denied.statement", "{statement}");
        }
    }

    #[test]
    fn sqlite_names_and_parameters() {
        let kind = StoreKind::Sqlite;
        for (statement, params, reads) in [
            ("SELECT $1, $2", 2, true),
            ("SELECT ?3", 3, true),
            ("SELECT ?, ?", 2, true),
            ("SELECT [a;b], `c;d` FROM t", 0, true),
            ("REPLACE INTO t VALUES (x'00', $1)", 1, false),
            ("INSERT OR ROLLBACK INTO t VALUES ('$1')", 0, false),
            (
                "WITH a(x) AS (SELECT 1) INSERT INTO t SELECT x FROM a",
                0,
                false,
            ),
            ("WITH a AS (DELETE) VALUES (1)", 0, true),
            ("SELECT a$1 FROM t", 0, true),
            ("SELECT a->'b', a->>'$.c' FROM t", 0, true),
            ("\u{feff}SELECT 1", 0, true),
        ] {
            assert_eq!(
                check(kind, statement).unwrap(),
                Passed { reads, params },
                "{statement}"
            );
        }
        for statement in [
            "SELECT * FROM hapax_queue",
            "SELECT * FROM Hapax_Queue",
            "DELETE FROM main.hapax_queue",
            "DELETE FROM [hapax_queue]",
            "DELETE FROM `hapax_queue`",
            "DELETE FROM \"hapax_queue\"",
            "INSERT INTO 'hapax_queue' VALUES (1)",
            "SELECT * FROM \u{feff}hapax_queue",
            "SELECT * FROM sqlite_master",
            "SELECT [unterminated",
            "SELECT `unterminated",
            "MERGE INTO t USING s ON 1",
            "(SELECT 1)",
        ] {
            assert_eq!(code(kind, statement), "denied.statement", "{statement}");
        }
        for statement in [
            "SELECT :a",
            "SELECT @a",
            "SELECT $a",
            "SELECT $",
            "SELECT $0",
            "SELECT ?0",
            "SELECT $1a",
            "SELECT $1(;COMMIT)",
            "SELECT $1::int",
            "SELECT ?99999",
            "SELECT $99999999999999999999",
            "SELECT ?, $1",
        ] {
            assert_eq!(code(kind, statement), "params.name", "{statement}");
        }
    }

    #[test]
    fn what_is_denied_is_named() {
        let error = check(StoreKind::Postgres, "  /* x */ Commit").unwrap_err();
        assert_eq!(error.message, "the statement begins with `Commit`");
        assert_eq!(error.position, Some(11));
        assert_eq!(
            error.hint.unwrap(),
            "a handler may send SELECT, INSERT, UPDATE, DELETE, MERGE, WITH, VALUES"
        );
        let long = format!("SELECT '{}'", "a".repeat(STATEMENT_MAX_BYTES));
        assert_eq!(code(StoreKind::Sqlite, &long), "denied.statement");
    }

    #[test]
    fn transaction_commands_in_scripts() {
        let found = |script| transaction_command(StoreKind::Postgres, script);
        assert_eq!(
            found("CREATE TABLE t (a int); INSERT INTO t VALUES (1)"),
            None
        );
        assert_eq!(
            found("CREATE TABLE t (a int); commit; x"),
            Some("COMMIT".into())
        );
        assert_eq!(found("-- x\nBEGIN; "), Some("BEGIN".into()));
        assert_eq!(
            found("CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$BEGIN; COMMIT; END$$"),
            None
        );
        assert_eq!(
            transaction_command(
                StoreKind::Sqlite,
                "CREATE TRIGGER a AFTER INSERT ON t BEGIN SELECT 1; END; SELECT 1"
            ),
            None
        );
    }
}
