//! Cursors by name, so that other steps can stand between their portions.

use std::cell::RefCell;
use std::collections::BTreeMap;

use hapax_guest::Error;
use hapax_guest::sql::{self, Cursor, Value};

thread_local! {
    // An instance serves one message. What is still in here at its end is never dropped.
    static NAMED: RefCell<BTreeMap<String, Cursor>> = const { RefCell::new(BTreeMap::new()) };
}

/// Opens one; an earlier one of this name is dropped.
pub(crate) fn open(name: &str, statement: &str, params: &[Value]) -> Result<(), Error> {
    let cursor = sql::open_cursor(statement, params)?;
    NAMED.with_borrow_mut(|named| named.insert(name.to_owned(), cursor));
    Ok(())
}

/// Works with the one of this name.
pub(crate) fn with<T>(name: &str, work: impl FnOnce(&Cursor) -> T) -> Option<T> {
    NAMED.with_borrow(|named| named.get(name).map(work))
}

/// Gives the one of this name out of hand.
pub(crate) fn take(name: &str) -> Option<Cursor> {
    NAMED.with_borrow_mut(|named| named.remove(name))
}
