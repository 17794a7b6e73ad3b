//! Cutting a statement into tokens, by each database's rules for comments, quotes and names.

use super::{denied, position_at};
use crate::store::{SqlError, StoreKind};

pub(super) enum Token<'a> {
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
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Word(name) => Some(name),
            Self::Quoted(name) | Self::Text(name) => Some(name),
            Self::Param(_) | Self::Symbol(_) | Self::Other => None,
        }
    }
}

pub(super) struct Scanner<'a> {
    pub(super) kind: StoreKind,
    pub(super) text: &'a str,
    pub(super) at: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn byte(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    /// Returns the next token and the byte where it begins.
    pub(super) fn next_token(&mut self) -> Result<Option<(Token<'a>, usize)>, SqlError> {
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

    pub(super) fn skip_blanks(&mut self) -> Result<(), SqlError> {
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

    pub(super) fn skip_line_comment(&mut self) {
        // A bare carriage return ends a comment on PostgreSQL, not on SQLite.
        let postgres = self.kind == StoreKind::Postgres;
        while let Some(byte) = self.byte(0) {
            if byte == b'\n' || (postgres && byte == b'\r') {
                return;
            }
            self.at += 1;
        }
    }

    pub(super) fn skip_block_comment(&mut self) -> Result<(), SqlError> {
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

    pub(super) fn unterminated(&self, what: &str, start: usize) -> SqlError {
        let mut error = denied(
            format!("a {what} in the statement is not closed"),
            "close it".into(),
        );
        error.position = position_at(self.text, start);
        error
    }

    /// Reads up to the closing `quote`, which is doubled inside. Returns the text with the doubling undone.
    pub(super) fn quoted(&mut self, quote: u8, what: &str) -> Result<String, SqlError> {
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

    pub(super) fn word(&mut self) -> &'a str {
        let start = self.at;
        while let Some(byte) = self.byte(0)
            && (byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80)
        {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    pub(super) fn digits(&mut self) -> &'a str {
        let start = self.at;
        while self.byte(0).is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    pub(super) fn symbol(&mut self) -> Token<'a> {
        let symbol = self.text[self.at..].chars().next().unwrap_or(' ');
        self.at += symbol.len_utf8();
        Token::Symbol(symbol)
    }

    pub(super) fn postgres_token(&mut self, byte: u8) -> Result<Token<'a>, SqlError> {
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
    pub(super) fn escape_string(&mut self) -> Result<(), SqlError> {
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
    pub(super) fn dollar(&mut self) -> Result<Token<'a>, SqlError> {
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

    pub(super) fn sqlite_token(&mut self, byte: u8) -> Result<Token<'a>, SqlError> {
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

    pub(super) fn sqlite_param(&mut self, sign: u8) -> Result<Token<'a>, SqlError> {
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

    pub(super) fn named_param(&self) -> SqlError {
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
