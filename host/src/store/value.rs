//! Values, results and errors of a handler's SQL, as plain data.

use crate::message::Instant;

/// A day of the proleptic Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// From 1 on.
    pub year: i32,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
}

/// A time of day. 24:00:00 is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// 0 to 24.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 59.
    pub second: u8,
    /// 0 to 999,999.
    pub microsecond: u32,
}

/// A date and time without a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp {
    /// The date.
    pub date: Date,
    /// The time of day.
    pub time: Time,
}

/// Three parts, which never carry over into one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Any number.
    pub months: i32,
    /// Any number.
    pub days: i32,
    /// Any number.
    pub microseconds: i64,
}

/// What the elements of an array are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// `Value::Boolean`
    Boolean,
    /// `Value::Int64`
    Int64,
    /// `Value::Float64`
    Float64,
    /// `Value::Text`
    Text,
    /// `Value::Bytes`
    Bytes,
    /// `Value::Decimal`
    Decimal,
    /// `Value::Date`
    Date,
    /// `Value::Time`
    Time,
    /// `Value::Timestamp`
    Timestamp,
    /// `Value::Instant`
    Instant,
    /// `Value::Interval`
    Interval,
    /// `Value::Uuid`
    Uuid,
    /// `Value::Json`
    Json,
}

/// One parameter, or one column of one row. The cases are those of `hapax:handler/sql.value`.
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
    /// A day.
    Date(Date),
    /// A time of day.
    Time(Time),
    /// A date and time without a zone.
    Timestamp(Timestamp),
    /// PostgreSQL's timestamptz.
    Instant(Instant),
    /// Months, days and microseconds.
    Interval(Interval),
    /// 8-4-4-4-12 hexadecimal digits; lower case in results.
    Uuid(String),
    /// JSON text, verbatim.
    Json(String),
    /// An array of one dimension. Each element is of the kind, or NULL.
    Array(Element, Vec<Value>),
    /// Everything else that has a text form.
    Other {
        /// As the database names it.
        type_name: String,
        /// In the database's own form.
        text: String,
    },
    /// What can't be decoded. In results only.
    Undecoded {
        /// As the database names it.
        type_name: String,
        /// As the database gave them.
        bytes: Vec<u8>,
    },
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
            Self::Date(_) => "date",
            Self::Time(_) => "time",
            Self::Timestamp(_) => "timestamp",
            Self::Instant(_) => "instant",
            Self::Interval(_) => "interval",
            Self::Uuid(_) => "uuid",
            Self::Json(_) => "json",
            Self::Array(element, _) => element.array_kind(),
            Self::Other { .. } => "other",
            Self::Undecoded { .. } => "undecoded",
        }
    }

    /// Returns the bytes that it takes in memory, about.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Text(text) | Self::Decimal(text) | Self::Uuid(text) | Self::Json(text) => {
                    text.len()
                }
                Self::Bytes(bytes) => bytes.len(),
                Self::Other { type_name, text } => type_name.len() + text.len(),
                Self::Undecoded { type_name, bytes } => type_name.len() + bytes.len(),
                Self::Array(_, elements) => elements.iter().map(Self::bytes).sum(),
                Self::Null
                | Self::Boolean(_)
                | Self::Int64(_)
                | Self::Float64(_)
                | Self::Date(_)
                | Self::Time(_)
                | Self::Timestamp(_)
                | Self::Instant(_)
                | Self::Interval(_) => 0,
            }
    }
}

impl Element {
    /// Returns the name of the array's case in the contract.
    pub fn array_kind(self) -> &'static str {
        match self {
            Self::Boolean => "boolean-array",
            Self::Int64 => "int64-array",
            Self::Float64 => "float64-array",
            Self::Text => "text-array",
            Self::Bytes => "bytes-array",
            Self::Decimal => "decimal-array",
            Self::Date => "date-array",
            Self::Time => "time-array",
            Self::Timestamp => "timestamp-array",
            Self::Instant => "instant-array",
            Self::Interval => "interval-array",
            Self::Uuid => "uuid-array",
            Self::Json => "json-array",
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
