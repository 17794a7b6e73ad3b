//! Why a call into the host failed.

use std::fmt;

use crate::bindings::hapax::handler::types;
use crate::failure::Failure;

/// The error of a call into the host, or of reading its rows.
///
/// With `?` it becomes [`Failure::Retry`], the code and message its reason. After a failed statement the transaction can't be used any
/// more, so a handler that swallows such an error and returns `Ok` fails all the same; unless the statement was in a
/// [savepoint](fn@crate::sql::savepoint) that was rolled back.
#[derive(Clone, PartialEq)]
pub struct Error(Box<types::Error>);

/// What kind of error it is. Names for the codes that a handler may want to tell apart.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// `constraint.unique`: a unique index or primary key holds the value already.
    UniqueViolation,
    /// `constraint.foreign-key`
    ForeignKeyViolation,
    /// `constraint.not-null`
    NotNullViolation,
    /// `constraint.check`
    CheckViolation,
    /// `constraint.exclusion` (PostgreSQL only)
    ExclusionViolation,
    /// `constraint`: another kind of constraint.
    ConstraintViolation,
    /// All that begin with `denied.`: a handler may not do this.
    Denied,
    /// All that begin with `limit.`: more rows, bytes, parameters, savepoints, cursors or messages than one call may have.
    Limit,
    /// `aborted`: an earlier failure ended the transaction, or what was done since the last savepoint.
    Aborted,
    /// `syntax`, `invalid`, and all that begin with `undefined.` or `params.`: the statement is wrong, or has other parameters.
    Statement,
    /// `type.mismatch`: a parameter's case does not fit the type that the database wants.
    TypeMismatch,
    /// `data` and all that begin with `data.`: a value that the database can't take.
    Data,
    /// All that begin with `invalid.`: an argument of the call breaks the contract.
    InvalidArgument,
    /// All that begin with `savepoint.`: a savepoint is not open any more.
    Savepoint,
    /// `cursor.ended`: the cursor is not open any more.
    CursorEnded,
    /// `raised`: a trigger or function of the database raised an error of its own.
    Raised,
    /// `serialization`: the database asks to run the transaction again.
    Serialization,
    /// `deadlock`
    Deadlock,
    /// `lock-timeout`: another transaction held a lock for too long.
    LockTimeout,
    /// `busy`: another program writes to the database (SQLite only).
    Busy,
    /// `stale`: a table was changed since the statement was prepared.
    Stale,
    /// `timeout`: the statement took too long.
    Timeout,
    /// `unavailable`: the connection to the database is lost.
    Unavailable,
    /// `unsupported`: this host or this database can't do it.
    Unsupported,
    /// `internal`, `database`: an error that the host knows no better name for.
    Internal,
    /// `sdk.decode`: a column is absent or holds something else than the handler wanted.
    Decode,
    /// `sdk.row-count`: another number of rows than the handler wanted.
    RowCount,
    /// Any other code, verbatim.
    Other(String),
}

impl Error {
    pub(crate) fn from_wit(error: types::Error) -> Self {
        Self(Box::new(error))
    }

    /// Returns an error of this crate's own, found while reading rows. Trying again does not help.
    pub(crate) fn local(code: &str, message: String) -> Self {
        Self(Box::new(types::Error {
            code: code.to_owned(),
            message,
            retryable: false,
            sqlstate: None,
            detail: None,
            hint: None,
            schema: None,
            table: None,
            column: None,
            constraint: None,
            param: None,
            row: None,
            position: None,
            extra: Vec::new(),
        }))
    }

    pub(crate) fn decode(column: Option<&str>, message: String) -> Self {
        let mut error = Self::local("sdk.decode", message);
        error.0.column = column.map(str::to_owned);
        error
    }

    /// Returns the kind of error.
    pub fn code(&self) -> Code {
        match self.0.code.as_str() {
            "constraint.unique" => Code::UniqueViolation,
            "constraint.foreign-key" => Code::ForeignKeyViolation,
            "constraint.not-null" => Code::NotNullViolation,
            "constraint.check" => Code::CheckViolation,
            "constraint.exclusion" => Code::ExclusionViolation,
            "constraint" => Code::ConstraintViolation,
            "aborted" => Code::Aborted,
            "syntax" | "invalid" => Code::Statement,
            "type.mismatch" => Code::TypeMismatch,
            "data" => Code::Data,
            "cursor.ended" => Code::CursorEnded,
            "raised" => Code::Raised,
            "serialization" => Code::Serialization,
            "deadlock" => Code::Deadlock,
            "lock-timeout" => Code::LockTimeout,
            "busy" => Code::Busy,
            "stale" => Code::Stale,
            "timeout" => Code::Timeout,
            "unavailable" => Code::Unavailable,
            "unsupported" => Code::Unsupported,
            "internal" | "database" => Code::Internal,
            "sdk.decode" => Code::Decode,
            "sdk.row-count" => Code::RowCount,
            other => match other.split_once('.').map(|(family, _)| family) {
                Some("denied") => Code::Denied,
                Some("limit") => Code::Limit,
                Some("undefined" | "params") => Code::Statement,
                Some("data") => Code::Data,
                Some("invalid") => Code::InvalidArgument,
                Some("savepoint") => Code::Savepoint,
                _ => Code::Other(other.to_owned()),
            },
        }
    }

    /// Returns the code as the host wrote it, such as `constraint.unique`.
    pub fn code_text(&self) -> &str {
        &self.0.code
    }

    /// Returns the message, of the database for the most part.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns true if the same call may succeed in a later run of the same message.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// Returns true if a unique index or primary key holds the value already.
    pub fn is_unique_violation(&self) -> bool {
        self.code() == Code::UniqueViolation
    }

    /// Returns true if a constraint of a table, of whatever kind, is violated.
    pub fn is_constraint_violation(&self) -> bool {
        self.0.code == "constraint" || self.0.code.starts_with("constraint.")
    }

    /// Returns the name of the violated constraint, if the database says it.
    pub fn constraint(&self) -> Option<&str> {
        self.0.constraint.as_deref()
    }

    /// Returns the schema concerned, if the database says it.
    pub fn schema(&self) -> Option<&str> {
        self.0.schema.as_deref()
    }

    /// Returns the table concerned, if the database says it.
    pub fn table(&self) -> Option<&str> {
        self.0.table.as_deref()
    }

    /// Returns the column concerned, if it is known.
    pub fn column(&self) -> Option<&str> {
        self.0.column.as_deref()
    }

    /// Returns the database's five characters (PostgreSQL only).
    pub fn sqlstate(&self) -> Option<&str> {
        self.0.sqlstate.as_deref()
    }

    /// Returns the database's further explanation, if there is one.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }

    /// Returns what to do about it, if the database or the host knows.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Returns the number of the parameter at fault, counted from 1 as in `$1`.
    pub fn param(&self) -> Option<u32> {
        self.0.param
    }

    /// Returns the row of parameters at fault in [`execute_many`](crate::sql::execute_many), counted from 0.
    pub fn row(&self) -> Option<u32> {
        self.0.row
    }

    /// Returns the character of the statement at fault, counted from 1.
    pub fn position(&self) -> Option<u32> {
        self.0.position
    }

    /// Returns what else the host knows under `name`.
    pub fn extra(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.extra.iter().find(|(key, _)| key == name)?;
        Some(value)
    }

    /// Returns all that the host knows beyond the other methods, as names and values.
    pub fn extras(&self) -> &[(String, String)] {
        &self.0.extra
    }

    /// Returns a rejection if a constraint is violated, and a retry for everything else. For `map_err`:
    ///
    /// ```no_run
    /// # use hapax_guest::{params, sql, Error, Failure};
    /// # fn f() -> Result<(), Failure> {
    /// sql::execute("INSERT INTO transfers (id) VALUES ($1)", &params!["t1"]).map_err(Error::reject_constraint)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reject_constraint(self) -> Failure {
        if self.is_constraint_violation() {
            Failure::reject(self)
        } else {
            Failure::retry(self)
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code, self.0.message)?;
        if let Some(detail) = &self.0.detail {
            write!(f, " ({detail})")?;
        }
        if let Some(param) = self.0.param {
            write!(f, " (parameter ${param})")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_typed() {
        let code = |text: &str| Error::local(text, String::new()).code();
        assert_eq!(code("constraint.unique"), Code::UniqueViolation);
        assert_eq!(code("denied.statement"), Code::Denied);
        assert_eq!(code("limit.rows"), Code::Limit);
        assert_eq!(code("limits"), Code::Other("limits".to_owned()));
        assert_eq!(code("brand-new"), Code::Other("brand-new".to_owned()));
    }

    /// The table names every code that this host gives.
    #[test]
    fn every_documented_code_has_a_name() {
        let page = include_str!("../../../docs/error-codes.md");
        let rows: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        assert!(rows.len() > 30, "{rows:?}");
        for row in rows {
            let cell = row.trim_start_matches("| ").split(" | ").next().unwrap();
            for text in cell.split('`').skip(1).step_by(2) {
                let code = Error::local(text, String::new()).code();
                assert!(!matches!(code, Code::Other(_)), "`{text}`");
            }
        }
    }

    #[test]
    fn an_error_is_a_retry_unless_the_author_decides() {
        let error = Error::local("constraint.unique", "duplicate key".to_owned());
        assert_eq!(
            Failure::from(error.clone()),
            Failure::retry("constraint.unique: duplicate key")
        );
        assert_eq!(
            error.reject_constraint(),
            Failure::reject("constraint.unique: duplicate key")
        );
        let busy = Error::local("serialization", "try again".to_owned());
        assert_eq!(
            busy.reject_constraint(),
            Failure::retry("serialization: try again")
        );
    }
}
