//! Savepoints by name, for what nested steps can't say: one that ends out of order.

use std::cell::RefCell;
use std::collections::BTreeMap;

use hapax_guest::Error;
use hapax_guest::sql::{self, Savepoint};

thread_local! {
    // An instance serves one message. What is still in here at its end is never dropped.
    static NAMED: RefCell<BTreeMap<String, Savepoint>> = const { RefCell::new(BTreeMap::new()) };
}

/// Begins one; an earlier one of this name is dropped.
pub(crate) fn begin(name: &str) -> Result<(), Error> {
    let savepoint = sql::begin_savepoint()?;
    NAMED.with_borrow_mut(|named| named.insert(name.to_owned(), savepoint));
    Ok(())
}

/// Gives the one of this name out of hand.
pub(crate) fn take(name: &str) -> Option<Savepoint> {
    NAMED.with_borrow_mut(|named| named.remove(name))
}
