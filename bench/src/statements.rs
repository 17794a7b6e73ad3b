//! The statements of a message.

/// Claims an id; no row is affected if it was claimed before.
pub(crate) const CLAIM: &str =
    "INSERT INTO processed_messages (message_id) VALUES ($1) ON CONFLICT DO NOTHING";
pub(crate) const UPDATE: &str = "UPDATE accounts SET balance = balance + $1 WHERE id = $2";
/// Others may write the account at the same time on PostgreSQL; SQLite has one writer.
pub(crate) const READ_LOCKED: &str = "SELECT balance FROM accounts WHERE id = $1 FOR UPDATE";
pub(crate) const READ: &str = "SELECT balance FROM accounts WHERE id = $1";
pub(crate) const WRITE: &str = "UPDATE accounts SET balance = $1 WHERE id = $2";
pub(crate) const ENTER: &str =
    "INSERT INTO accounts_entries (account, amount, kind) VALUES ($1, $2, $3)";

/// What the reader decides.
pub(crate) fn kind(balance: i64) -> &'static str {
    if balance < 0 { "overdraft" } else { "credit" }
}
