//! SQL inside the delivery's own transaction. There is nothing to open, begin or commit.
//!
//! Parameters are written `$1`, `$2` on both databases and sent as the type that the database expects at their place: text serves for
//! uuid, numeric, enums and the like.

use std::rc::Rc;

use serde::de::DeserializeOwned;

use crate::bindings::hapax::handler::sql as host;
pub use crate::bindings::hapax::handler::sql::{
    Column, Date, Interval, Other, Time, Timestamp, Undecoded, Value,
};
use crate::convert::{FromValue, kind};
use crate::decode;
pub use crate::error::{Code, Error};

/// Runs one statement. Returns the number of rows it affected.
///
/// # Errors
/// The database refuses it, the host does not allow it, or the transaction has ended. With `?` the message is tried again.
pub fn execute(statement: &str, params: &[Value]) -> Result<u64, Error> {
    host::execute(statement, params).map_err(Error::from_wit)
}

/// Runs one statement once for each row of parameters, in order. Returns the rows affected by each.
///
/// On PostgreSQL all rows go to the database in one round trip (of about 1 MiB; more rows take more of them).
///
/// ```no_run
/// # use hapax_guest::{Error, params, sql};
/// # fn f(order: &str, lines: Vec<(String, i64)>) -> Result<(), Error> {
/// let rows: Vec<_> = lines
///     .iter()
///     .map(|(article, amount)| params![order, article, *amount])
///     .collect();
/// sql::execute_many("INSERT INTO lines (order_id, article, amount) VALUES ($1, $2, $3)", &rows)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`execute`]; [`Error::row`] says which row of parameters failed. A row that does not fit the statement's parameters is found
/// before the first one is run.
pub fn execute_many(statement: &str, rows: &[Vec<Value>]) -> Result<Vec<u64>, Error> {
    host::execute_many(statement, rows).map_err(Error::from_wit)
}

/// Runs one statement and returns all of its rows, up to the handler's limits.
///
/// # Errors
/// As [`execute`], or there are more rows than the handler's limits allow ([`Code::Limit`]).
pub fn query(statement: &str, params: &[Value]) -> Result<Rows, Error> {
    let result = host::query(statement, params).map_err(Error::from_wit)?;
    Ok(Rows::new(result.columns.into(), result.rows))
}

/// Runs one statement and returns its only row.
///
/// # Errors
/// As [`query`], or there is no row, or more than one ([`Code::RowCount`]).
pub fn query_one(statement: &str, params: &[Value]) -> Result<Row, Error> {
    query(statement, params)?.one()
}

/// Runs one statement and returns its only row, or `None` if there is none.
///
/// # Errors
/// As [`query`], or there is more than one row ([`Code::RowCount`]).
pub fn query_optional(statement: &str, params: &[Value]) -> Result<Option<Row>, Error> {
    query(statement, params)?.optional()
}

/// The rows of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    columns: Rc<[Column]>,
    rows: Vec<Row>,
}

/// One row of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    columns: Rc<[Column]>,
    values: Vec<Value>,
}

/// A column's name, or its place counted from 0.
pub trait ColumnIndex {
    /// Returns the column's place, `None` if there is no such column.
    fn place(&self, columns: &[Column]) -> Option<usize>;

    /// Names the column for errors: "column `balance`".
    fn describe(&self) -> String;
}

impl ColumnIndex for str {
    fn place(&self, columns: &[Column]) -> Option<usize> {
        columns.iter().position(|column| column.name == self)
    }

    fn describe(&self) -> String {
        format!("column `{self}`")
    }
}

impl ColumnIndex for usize {
    fn place(&self, columns: &[Column]) -> Option<usize> {
        (*self < columns.len()).then_some(*self)
    }

    fn describe(&self) -> String {
        format!("column {self}")
    }
}

impl<T: ColumnIndex + ?Sized> ColumnIndex for &T {
    fn place(&self, columns: &[Column]) -> Option<usize> {
        (**self).place(columns)
    }

    fn describe(&self) -> String {
        (**self).describe()
    }
}

impl ColumnIndex for String {
    fn place(&self, columns: &[Column]) -> Option<usize> {
        self.as_str().place(columns)
    }

    fn describe(&self) -> String {
        self.as_str().describe()
    }
}

impl Rows {
    pub(crate) fn new(columns: Rc<[Column]>, rows: Vec<Vec<Value>>) -> Self {
        let rows = rows
            .into_iter()
            .map(|values| Row {
                columns: Rc::clone(&columns),
                values,
            })
            .collect();
        Self { columns, rows }
    }

    /// Returns the columns; they are there also if there are no rows.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the rows in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, Row> {
        self.rows.iter()
    }

    /// Returns the only row.
    ///
    /// # Errors
    /// [`Code::RowCount`]: there is none, or more than one.
    pub fn one(self) -> Result<Row, Error> {
        self.optional()?.ok_or_else(|| {
            Error::local(
                "sdk.row-count",
                "the query returned no row, wanted one".to_owned(),
            )
        })
    }

    /// Returns the only row, or `None` if there is none.
    ///
    /// # Errors
    /// [`Code::RowCount`]: there is more than one.
    pub fn optional(mut self) -> Result<Option<Row>, Error> {
        if self.rows.len() > 1 {
            let message = format!(
                "the query returned {} rows, wanted at most one",
                self.rows.len()
            );
            return Err(Error::local("sdk.row-count", message));
        }
        Ok(self.rows.pop())
    }

    /// Reads every row as a `T`, as [`Row::decode`] does.
    ///
    /// # Errors
    /// [`Code::Decode`]: a row is not a `T`.
    pub fn into_structs<T: DeserializeOwned>(self) -> Result<Vec<T>, Error> {
        self.rows.iter().map(Row::decode).collect()
    }
}

impl IntoIterator for Rows {
    type Item = Row;
    type IntoIter = std::vec::IntoIter<Row>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.into_iter()
    }
}

impl<'a> IntoIterator for &'a Rows {
    type Item = &'a Row;
    type IntoIter = std::slice::Iter<'a, Row>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Row {
    /// Returns the columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns the values in the order of the columns.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Reads the column of this name, or at this place counted from 0: `row.get::<i64>("balance")?`.
    ///
    /// A column that can be NULL is read as an `Option`.
    ///
    /// # Errors
    /// [`Code::Decode`]: there is no such column, or its value is no `T`. The message names the column and its type.
    pub fn get<T: FromValue>(&self, column: impl ColumnIndex) -> Result<T, Error> {
        let place = column
            .place(&self.columns)
            .filter(|place| *place < self.values.len());
        let Some(place) = place else {
            let message = format!(
                "{} is not in the result, which has {}",
                column.describe(),
                self.names()
            );
            return Err(Error::decode(None, message));
        };
        let value = &self.values[place];
        T::from_value(value).ok_or_else(|| mismatch(&self.columns[place], value, T::WANTED))
    }

    /// Reads the row as a struct whose fields have the columns' names, or as a tuple in the columns' order. A row of one column can
    /// be read as that column's value.
    ///
    /// Fields of other types than the columns' are read as [`Row::get`] does; a field that is a struct, map or list is read from JSON.
    ///
    /// # Errors
    /// [`Code::Decode`]: a field has no column, or a column's value does not fit its field. The message names the column and its type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        decode::row(&self.columns, &self.values)
    }

    fn names(&self) -> String {
        if self.columns.is_empty() {
            return "no columns".to_owned();
        }
        let names: Vec<String> = self
            .columns
            .iter()
            .map(|column| format!("`{}`", column.name))
            .collect();
        names.join(", ")
    }
}

/// Returns the error for a value that is not what was wanted of its column.
pub(crate) fn mismatch(column: &Column, value: &Value, wanted: &str) -> Error {
    let Column { name, type_name } = column;
    let message = match value {
        Value::Null => format!(
            "column `{name}` ({type_name}) is NULL, wanted {wanted}; an `Option` takes both"
        ),
        value => format!(
            "column `{name}` ({type_name}) holds {} that is not {wanted}",
            kind(value)
        ),
    };
    Error::decode(Some(name), message)
}

/// Does `work` in a savepoint: what it did is kept if it returns `Ok`, and undone if it returns `Err`, messages of
/// [`outbox`](crate::outbox) included.
///
/// The transaction is as good as before then, also after an error of the database: what would otherwise fail the message can be one
/// of several ways.
///
/// ```no_run
/// # use hapax_guest::{Error, Failure, params, sql};
/// # fn f(name: &str) -> Result<(), Failure> {
/// let added = sql::savepoint(|| sql::execute("INSERT INTO names (name) VALUES ($1)", &params![name]));
/// match added {
///     Err(error) if error.is_unique_violation() => {
///         sql::execute("UPDATE names SET seen = seen + 1 WHERE name = $1", &params![name])?;
///     }
///     other => {
///         other?;
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// Savepoints cost two round trips each on PostgreSQL. Where a statement that can't fail will do (`ON CONFLICT DO NOTHING`), it is faster.
///
/// # Errors
/// What `work` returns. As [`execute`] if the savepoint can't be begun or released; [`Code::Limit`] if too many are open. After a deadlock
/// or a lost connection nothing can be undone: later calls fail, and the message runs again whatever the handler returns.
pub fn savepoint<T, E: From<Error>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let savepoint = begin_savepoint()?;
    match work() {
        Ok(value) => {
            savepoint.release()?;
            Ok(value)
        }
        Err(error) => {
            // If that fails, the transaction can't be used any more; the first error tells more.
            let _ = savepoint.rollback();
            Err(error)
        }
    }
}

/// Marks a place in the transaction to go back to. [`savepoint`](fn@savepoint) does it for the length of a closure.
///
/// # Errors
/// As [`execute`]; [`Code::Limit`] if too many are open.
pub fn begin_savepoint() -> Result<Savepoint, Error> {
    host::begin_savepoint()
        .map(Savepoint)
        .map_err(Error::from_wit)
}

/// A place in the transaction to go back to. Dropped while open, it is rolled back to.
///
/// A handler that returns `Ok` with one still open, because it was leaked, has failed.
#[derive(Debug)]
pub struct Savepoint(host::Savepoint);

impl Savepoint {
    /// Keeps what was done since. Savepoints begun later end with it.
    ///
    /// # Errors
    /// As [`execute`]; `savepoint.ended` if one that was begun before it has been released or rolled back. After an error of the database
    /// it is rolled back instead, and the error is [`Code::Aborted`].
    pub fn release(self) -> Result<(), Error> {
        self.0.release().map_err(Error::from_wit)
    }

    /// Undoes what was done since, outbox messages included. Savepoints begun later end with it.
    ///
    /// # Errors
    /// As [`execute`]; `savepoint.ended` if one that was begun before it has been released or rolled back.
    pub fn rollback(self) -> Result<(), Error> {
        self.0.rollback().map_err(Error::from_wit)
    }
}

/// Opens a query whose rows are fetched in portions, for more of them than fit into the handler's memory; other calls may be made
/// meanwhile. The rows are those of this moment, whatever is written later.
///
/// ```no_run
/// # use hapax_guest::{Failure, params, sql};
/// # fn f() -> Result<(), Failure> {
/// for account in sql::open_cursor("SELECT id, balance FROM accounts ORDER BY id", &[])?.rows() {
///     let account = account?;
///     let interest = account.get::<i64>("balance")? / 100;
///     sql::execute(
///         "UPDATE accounts SET balance = balance + $1 WHERE id = $2",
///         &params![interest, account.get::<String>("id")?],
///     )?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`execute`]; [`Code::Limit`] if too many are open; [`Code::Denied`] if the statement changes rows.
pub fn open_cursor(statement: &str, params: &[Value]) -> Result<Cursor, Error> {
    let cursor = host::open_cursor(statement, params).map_err(Error::from_wit)?;
    let columns = cursor.columns().into();
    Ok(Cursor { cursor, columns })
}

/// A query whose rows are fetched in portions.
///
/// It ends when dropped, and when a savepoint that was begun before it is rolled back.
#[derive(Debug)]
pub struct Cursor {
    cursor: host::Cursor,
    columns: Rc<[Column]>,
}

impl Cursor {
    /// Returns the columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns the next rows, 1 to `rows_max` of them, fewer also where they are large; none after the last.
    ///
    /// # Errors
    /// As [`execute`], or `rows_max` is 0; `cursor.ended` if it has ended.
    pub fn fetch(&self, rows_max: u32) -> Result<Rows, Error> {
        let rows = self.cursor.fetch(rows_max).map_err(Error::from_wit)?;
        Ok(Rows::new(Rc::clone(&self.columns), rows))
    }

    /// Returns the rows that are left, one by one; they are fetched as needed.
    pub fn rows(self) -> CursorRows {
        CursorRows {
            portion: Vec::new().into_iter(),
            cursor: Some(self),
        }
    }
}

/// The rows that are asked for at a time by [`CursorRows`].
const PORTION_ROWS: u32 = 256;

/// The rows of a [`Cursor`]. After an error there are no more.
#[derive(Debug)]
pub struct CursorRows {
    portion: std::vec::IntoIter<Row>,
    /// Dropped after the last row, so that its place is free for another.
    cursor: Option<Cursor>,
}

impl Iterator for CursorRows {
    type Item = Result<Row, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(row) = self.portion.next() {
            return Some(Ok(row));
        }
        match self.cursor.as_ref()?.fetch(PORTION_ROWS) {
            Ok(rows) if rows.is_empty() => {
                self.cursor = None;
                None
            }
            Ok(rows) => {
                self.portion = rows.into_iter();
                self.portion.next().map(Ok)
            }
            Err(error) => {
                self.cursor = None;
                Some(Err(error))
            }
        }
    }
}

impl std::iter::FusedIterator for CursorRows {}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn rows(columns: &[(&str, &str)], rows: Vec<Vec<Value>>) -> Rows {
        let columns: Vec<Column> = columns
            .iter()
            .map(|(name, type_name)| Column {
                name: (*name).to_owned(),
                type_name: (*type_name).to_owned(),
            })
            .collect();
        Rows::new(columns.into(), rows)
    }

    fn account() -> Row {
        rows(
            &[("id", "TEXT"), ("balance", "BIGINT"), ("note", "TEXT")],
            vec![vec![
                Value::Text("a1".to_owned()),
                Value::Int64(5),
                Value::Null,
            ]],
        )
        .one()
        .unwrap()
    }

    #[test]
    fn columns_are_read_by_name_and_place() {
        let row = account();
        assert_eq!(row.get::<i64>("balance"), Ok(5));
        assert_eq!(row.get::<String>(0), Ok("a1".to_owned()));
        assert_eq!(row.get::<Option<String>>("note"), Ok(None));
        assert_eq!(row.get::<Value>("note"), Ok(Value::Null));
    }

    #[test]
    fn errors_name_the_column_its_type_and_what_was_wanted() {
        let row = account();
        let message = |error: Result<i64, Error>| {
            let error = error.unwrap_err();
            assert_eq!(error.code(), Code::Decode);
            error.message().to_owned()
        };
        assert_eq!(
            message(row.get("id")),
            "column `id` (TEXT) holds text that is not a 64-bit integer"
        );
        assert_eq!(
            message(row.get("note")),
            "column `note` (TEXT) is NULL, wanted a 64-bit integer; an `Option` takes both"
        );
        assert_eq!(
            message(row.get("amount")),
            "column `amount` is not in the result, which has `id`, `balance`, `note`"
        );
        assert_eq!(
            message(row.get(3)),
            "column 3 is not in the result, which has `id`, `balance`, `note`"
        );
    }

    #[test]
    fn a_row_short_of_values_is_an_error() {
        let short = rows(&[("a", "INT8"), ("b", "INT8")], vec![vec![Value::Int64(1)]])
            .one()
            .unwrap();
        assert!(short.get::<i64>("b").is_err());
    }

    #[test]
    fn row_counts_are_checked() {
        let none = rows(&[("n", "INT8")], vec![]);
        let two = rows(
            &[("n", "INT8")],
            vec![vec![Value::Int64(1)], vec![Value::Int64(2)]],
        );
        assert_eq!(none.clone().optional(), Ok(None));
        assert_eq!(none.one().unwrap_err().code(), Code::RowCount);
        assert_eq!(two.clone().one().unwrap_err().code(), Code::RowCount);
        assert_eq!(two.len(), 2);
        let numbers: Vec<i64> = two.iter().map(|row| row.get("n").unwrap()).collect();
        assert_eq!(numbers, [1, 2]);
    }
}
