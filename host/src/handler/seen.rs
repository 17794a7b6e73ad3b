//! The handlers' tables before and after a call: what `hapax dev` shows of a message's effects.
//!
//! They are read whole, inside the call's own transaction, so that nothing else can have changed them in between. That is for the small
//! databases of an author; a host does none of it.
//!
//! **Invariant**: a handler whose effects nobody looks at pays one look at a flag a call.

use crate::store::{Table, Tx, Value};

/// The most rows of one table that are looked at.
pub const SEEN_ROWS_MAX: usize = 10_000;

/// The tables around one call that has succeeded.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// When the call began.
    pub before: Vec<SeenTable>,
    /// When it had returned.
    pub after: Vec<SeenTable>,
}

/// One table with its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenTable {
    /// As the database describes it.
    pub table: Table,
    /// The names of the columns, in the order of the values.
    pub columns: Vec<String>,
    /// In no order; absent if there are more than `SEEN_ROWS_MAX`.
    pub rows: Option<Vec<Vec<Value>>>,
}

/// Reads the tables. `None` if the transaction is not one in which anything can be read any more.
pub(super) async fn read(tx: &mut Tx) -> Option<Vec<SeenTable>> {
    let mut seen = Vec::new();
    for table in tx.catalogue().await.ok()? {
        let statement = format!("SELECT * FROM {} LIMIT {}", table.quoted, SEEN_ROWS_MAX + 1);
        let result = tx
            .query(&statement, &[], SEEN_ROWS_MAX as u64 + 1)
            .await
            .ok()?;
        let rows = (result.rows.len() <= SEEN_ROWS_MAX).then_some(result.rows);
        seen.push(SeenTable {
            table,
            columns: result
                .columns
                .into_iter()
                .map(|column| column.name)
                .collect(),
            rows,
        });
    }
    Some(seen)
}
