//! Cursors of a handler: queries whose rows are taken in portions. How many there may be, and what ends with what.
//!
//! PostgreSQL keeps the query itself open (`DECLARE`). SQLite has one statement at a time on a connection, and leaves open
//! what a query sees of later changes on its own: its rows are taken once, into a file. On both a cursor gives the rows as
//! they were when it was opened.
//!
//! **Invariant**: a cursor's number is not used again in its transaction, and no cursor outlives the call that opened it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use super::connection::each;
use super::{Column, Connection, Savepoint, Session, SqlError, Tx, Value};

/// The most cursors that may be open at once.
pub const CURSORS_MAX: usize = 64;

/// The rows that are asked for before anything is known of their size.
const FIRST_PORTION: u64 = 16;

/// A cursor of the open transaction, by its number there. A later one has a larger number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor(
    /// From 1.
    pub u32,
);

/// How much one `fetch` may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchLimits {
    /// The most rows; at least 1.
    pub rows: u64,
    /// With so many bytes of values the portion is full, although there may be more rows. It still has one row at least.
    pub bytes: usize,
}

/// What both databases offer for cursors beside `Session`, whose rules hold here too: inside a transaction only.
pub(crate) trait CursorSession: Session {
    /// Opens a guarded query of the handler.
    fn open_cursor(
        &mut self,
        statement: &str,
        params: &[Value],
    ) -> impl Future<Output = Result<(Cursor, Arc<[Column]>), SqlError>> + Send;

    /// Returns the next rows; none after the last.
    fn fetch_cursor(
        &mut self,
        cursor: Cursor,
        limits: FetchLimits,
    ) -> impl Future<Output = Result<Vec<Vec<Value>>, SqlError>> + Send;

    /// Ends a cursor, if it has not ended.
    fn close_cursor(&mut self, cursor: Cursor) -> impl Future<Output = ()> + Send;

    /// Ends all cursors.
    fn close_cursors(&mut self) -> impl Future<Output = ()> + Send;
}

impl CursorSession for Connection {
    async fn open_cursor(
        &mut self,
        statement: &str,
        params: &[Value],
    ) -> Result<(Cursor, Arc<[Column]>), SqlError> {
        each!(self, session => session.open_cursor(statement, params))
    }

    async fn fetch_cursor(
        &mut self,
        cursor: Cursor,
        limits: FetchLimits,
    ) -> Result<Vec<Vec<Value>>, SqlError> {
        each!(self, session => session.fetch_cursor(cursor, limits))
    }

    async fn close_cursor(&mut self, cursor: Cursor) {
        each!(self, session => session.close_cursor(cursor));
    }

    async fn close_cursors(&mut self) {
        each!(self, session => session.close_cursors());
    }
}

impl Tx {
    /// Opens a query of the handler whose rows are fetched in portions. Other calls may be made meanwhile; the rows stay
    /// those of this moment. It ends with `close_cursor`, when a savepoint that was begun before is rolled back, and with
    /// the transaction.
    ///
    /// # Errors
    /// For the handler; `limit.cursors` if as many are open as may be, `denied.cursor` for a statement that changes rows.
    pub async fn open_cursor(
        &mut self,
        statement: &str,
        params: &[Value],
    ) -> Result<(Cursor, Arc<[Column]>), SqlError> {
        self.connection.open_cursor(statement, params).await
    }

    /// Returns the next rows of a cursor, at least one and as many as `limits` allow; none after the last.
    ///
    /// # Errors
    /// For the handler; `cursor.ended` if the cursor is not open. After any other error it has ended.
    pub async fn fetch_cursor(
        &mut self,
        cursor: Cursor,
        limits: FetchLimits,
    ) -> Result<Vec<Vec<Value>>, SqlError> {
        self.connection.fetch_cursor(cursor, limits).await
    }

    /// Ends a cursor. There is nobody to tell of a failure, which leaves the transaction aborted.
    pub async fn close_cursor(&mut self, cursor: Cursor) {
        self.connection.close_cursor(cursor).await;
    }

    /// Ends what a call has left open: the next message's call may run in the same transaction.
    pub async fn close_cursors(&mut self) {
        self.connection.close_cursors().await;
    }
}

/// What is known of a transaction's cursors; `C` is what the database at hand keeps of one.
#[derive(Debug)]
pub(crate) struct Cursors<C> {
    open: BTreeMap<Cursor, Open<C>>,
    /// Those that have ended for the handler, but not in the database yet.
    left: Vec<(Cursor, Savepoint)>,
    last: u32,
}

#[derive(Debug)]
struct Open<C> {
    kept: C,
    /// The savepoint that was begun last when it was opened; going back to it or to an earlier one ends the cursor.
    after: Savepoint,
}

impl<C> Default for Cursors<C> {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
            left: Vec::new(),
            last: 0,
        }
    }
}

impl<C> Cursors<C> {
    /// Returns the cursor to open next.
    pub(crate) fn next(&self) -> Result<Cursor, SqlError> {
        match self.last.checked_add(1) {
            Some(number) if self.open.len() < CURSORS_MAX => Ok(Cursor(number)),
            _ => Err(SqlError {
                hint: Some("drop cursors before more are opened".into()),
                ..SqlError::new(
                    "limit.cursors",
                    format!("at most {CURSORS_MAX} cursors may be open at once"),
                )
            }),
        }
    }

    /// Takes down that one is open. `after` is the savepoint that was begun last.
    pub(crate) fn opened(&mut self, cursor: Cursor, after: Savepoint, kept: C) {
        self.last = cursor.0;
        self.open.insert(cursor, Open { kept, after });
    }

    /// Returns what is kept of an open one.
    pub(crate) fn get(&mut self, cursor: Cursor) -> Result<&mut C, SqlError> {
        match self.open.get_mut(&cursor) {
            Some(open) => Ok(&mut open.kept),
            None => Err(SqlError::new(
                "cursor.ended",
                "the cursor is not open: an error ended it, or a savepoint that was begun before it was rolled back",
            )),
        }
    }

    /// Takes down that one has ended for the handler, if it has not.
    pub(crate) fn leave(&mut self, cursor: Cursor) {
        if let Some(open) = self.open.remove(&cursor) {
            self.left.push((cursor, open.after));
        }
    }

    /// Takes down that all have ended for the handler.
    pub(crate) fn leave_all(&mut self) {
        while let Some((cursor, open)) = self.open.pop_first() {
            self.left.push((cursor, open.after));
        }
    }

    /// Returns those that have ended for the handler only, and forgets them.
    pub(crate) fn take_left(&mut self) -> Vec<Cursor> {
        let left = std::mem::take(&mut self.left);
        left.into_iter().map(|(cursor, _)| cursor).collect()
    }

    /// As `leave`, where the database knows nothing of it.
    pub(crate) fn forget(&mut self, cursor: Cursor) {
        self.open.remove(&cursor);
    }

    /// As `leave_all`, where the database knows nothing of them.
    pub(crate) fn forget_all(&mut self) {
        self.open.clear();
    }

    /// Takes down that a savepoint was rolled back.
    pub(crate) fn rolled_back(&mut self, savepoint: Savepoint) {
        self.open.retain(|_, open| open.after < savepoint);
        self.left.retain(|(_, after)| *after < savepoint);
    }
}

/// Decides how many rows to ask for, so that a portion's bytes stay in bounds although rows differ in size.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    rows: u64,
    bytes: u64,
}

impl Pace {
    /// Returns how many rows to ask for now, at least 1, if `rows_left` and `bytes_left` may still come.
    pub(crate) fn portion(self, rows_left: u64, bytes_left: usize) -> u64 {
        let by_size = match self.bytes.checked_div(self.rows) {
            None => FIRST_PORTION,
            // Not at once to what the mean of a few rows suggests.
            Some(mean) => (bytes_left as u64 / mean.max(1)).min(self.rows.saturating_mul(16)),
        };
        rows_left.min(by_size).max(1)
    }

    /// Takes down what came.
    pub(crate) fn came(&mut self, rows: u64, bytes: usize) {
        self.rows += rows;
        self.bytes += bytes as u64;
    }
}

/// A cursor can be opened on what only reads.
pub(crate) fn not_a_query() -> SqlError {
    SqlError {
        hint: Some("use `query` for the rows of RETURNING".into()),
        ..SqlError::new(
            "denied.cursor",
            "a cursor is opened on SELECT or VALUES, not on a statement that changes rows",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_end_with_a_savepoint_that_was_begun_before() {
        let mut cursors = Cursors::default();
        for (number, after) in [(1, 0), (2, 1), (3, 2), (4, 2)] {
            let cursor = cursors.next().unwrap();
            assert_eq!(cursor, Cursor(number));
            cursors.opened(cursor, Savepoint(after), number);
        }
        cursors.leave(Cursor(4));
        cursors.leave(Cursor(4));
        cursors.rolled_back(Savepoint(2));
        assert_eq!(cursors.take_left(), []);
        assert_eq!(*cursors.get(Cursor(2)).unwrap(), 2);
        assert_eq!(cursors.get(Cursor(3)).unwrap_err().code, "cursor.ended");
        cursors.rolled_back(Savepoint(1));
        assert_eq!(cursors.get(Cursor(2)).unwrap_err().code, "cursor.ended");
        cursors.leave_all();
        assert_eq!(cursors.take_left(), [Cursor(1)]);
        assert_eq!(cursors.next().unwrap(), Cursor(5));
    }

    #[test]
    fn open_ones_are_bounded() {
        let mut cursors = Cursors::default();
        for _ in 0..CURSORS_MAX {
            let cursor = cursors.next().unwrap();
            cursors.opened(cursor, Savepoint(0), ());
        }
        assert_eq!(cursors.next().unwrap_err().code, "limit.cursors");
        cursors.leave(Cursor(1));
        cursors.next().unwrap();
    }

    #[test]
    fn portions_follow_the_size_of_rows() {
        let mut pace = Pace::default();
        assert_eq!(pace.portion(1_000, 1 << 20), FIRST_PORTION);
        assert_eq!(pace.portion(3, 1 << 20), 3);
        pace.came(16, 16 * 100);
        assert_eq!(pace.portion(1_000, 1 << 20), 256);
        pace.came(256, 256 * 100);
        assert_eq!(pace.portion(1_000, 1 << 20), 1_000);
        assert_eq!(pace.portion(1_000, 5_000), 50);
        // Rows without columns.
        let mut pace = Pace::default();
        pace.came(16, 0);
        assert_eq!(pace.portion(100, 1), 1);
    }
}
