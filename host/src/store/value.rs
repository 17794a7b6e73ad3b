//! Values, results and errors of a handler's SQL, as plain data.

use crate::message::Instant;

/// One parameter, or one column of one row. The cases are those of `hapax:handler/sql.value` that work so far.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// SQL NULL.
    Null,
    /// True or false.
    Boolean(bool),
    /// Any of the database's integers.
    Int64(i64),
    /// Any of the database's floating-point numbers.
    Float64(f64),
    /// Text.
    Text(String),
    /// Any bytes.
    Bytes(Vec<u8>),
    /// Exact, plain or scientific notation; also `NaN`, `Infinity`, `-Infinity`.
    Decimal(String),
    /// PostgreSQL's timestamptz.
    Instant(Instant),
    /// 8-4-4-4-12 hexadecimal digits; lower case in results.
    Uuid(String),
    /// JSON text, verbatim.
    Json(String),
}

impl Value {
    /// Returns the case's name in the contract, for error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean(_) => "boolean",
            Self::Int64(_) => "int64",
            Self::Float64(_) => "float64",
            Self::Text(_) => "text",
            Self::Bytes(_) => "bytes",
            Self::Decimal(_) => "decimal",
            Self::Instant(_) => "instant",
            Self::Uuid(_) => "uuid",
            Self::Json(_) => "json",
        }
    }
}

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// As the statement names it.
    pub name: String,
    /// As the database names it.
    pub type_name: String,
}

/// All rows of a query.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ResultSet {
    /// Also present when there are no rows.
    pub columns: Vec<Column>,
    /// One value for each column.
    pub rows: Vec<Vec<Value>>,
}

/// Why a handler's statement failed: `hapax:handler/types.error`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SqlError {
    /// Stable and documented, such as `constraint.unique`.
    pub code: String,
    /// What failed, for people.
    pub message: String,
    /// True if the same call may succeed in a later run of the same message.
    pub retryable: bool,
    /// The database's five characters (PostgreSQL only).
    pub sqlstate: Option<String>,
    /// The database's own words, as far as it gives them.
    pub detail: Option<String>,
    /// What to do.
    pub hint: Option<String>,
    /// Of the object at fault.
    pub schema: Option<String>,
    /// Of the object at fault.
    pub table: Option<String>,
    /// Of the object at fault.
    pub column: Option<String>,
    /// The constraint that was violated.
    pub constraint: Option<String>,
    /// The parameter at fault, counted from 1.
    pub param: Option<u32>,
    /// The row of parameters at fault, counted from 0.
    pub row: Option<u32>,
    /// The character of the statement at fault, counted from 1.
    pub position: Option<u32>,
}

impl SqlError {
    /// Makes an error that is not retryable, with nothing but a code and a message.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            ..Self::default()
        }
    }
}

impl std::fmt::Display for SqlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for SqlError {}
