//! What one call of a handler may use.
//!
//! **Invariant**: every limit has a default under which the host stays small, whatever the guest does.

use std::time::Duration;

/// What a handler may use, for each call. A call that goes over one fails alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Linear memory of all its modules together, in bytes. Growth beyond it is refused; who then traps has met the limit.
    pub memory_bytes: usize,
    /// Elements of one table. Refused as memory is.
    pub table_elements: usize,
    /// Time that its own code runs.
    pub cpu: Duration,
    /// Time from the start of the call to its end, the database's included. The connection is closed then.
    pub time: Duration,
    /// What it hands to the host in one call of a host function, in bytes. More is a trap.
    pub call_bytes: usize,
    /// Statements, those of `execute-many` counted once for each row: `limit.statements`.
    pub statements: u64,
    /// Rows that one query may return: `limit.rows`.
    pub rows: u64,
    /// The values of one query's result, in bytes: `limit.bytes`.
    pub result_bytes: usize,
    /// Savepoints that are open at once: `limit.savepoints`.
    pub savepoints: usize,
    /// Cursors that it holds at once: `limit.cursors`.
    pub cursors: usize,
    /// Messages that it publishes, those that went with a savepoint included: `limit.outbox`.
    pub outbox: u32,
    /// What is kept of its log lines, in bytes. More is dropped, and counted.
    pub log_bytes: usize,
}

impl Limits {
    /// What a configuration without `limits` means.
    pub const DEFAULT: Self = Self {
        memory_bytes: 64 << 20,
        table_elements: 100_000,
        cpu: Duration::from_secs(1),
        time: Duration::from_secs(10),
        call_bytes: 16 << 20,
        statements: 10_000,
        rows: 10_000,
        result_bytes: 16 << 20,
        savepoints: 64,
        cursors: 16,
        outbox: 1_000,
        log_bytes: 256 << 10,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
