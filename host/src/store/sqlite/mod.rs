//! The session on SQLite.

use super::{
    Claim, ClaimAs, ClaimRequest, CommitError, Counters, DeadLetter, HandlerMigration, NewQueueRow,
    OutboxRow, QueueRow, ResultSet, Session, SqlError, StoreError, StoredDeadLetter, Value,
};
use crate::message::{ComponentDigest, FailureClass, MessageId};

/// One connection.
#[derive(Debug)]
pub struct SqliteSession {}

impl Session for SqliteSession {
    async fn begin(&mut self) -> Result<(), StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn claim(
        &mut self,
        _consumer: &str,
        _requests: &[ClaimRequest],
        _claim_as: ClaimAs,
        _component: Option<ComponentDigest>,
    ) -> Result<Vec<Claim>, StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn execute(&mut self, _statement: &str, _params: &[Value]) -> Result<u64, SqlError> {
        Err(SqlError::new("unsupported", "not built yet"))
    }

    async fn query(
        &mut self,
        _statement: &str,
        _params: &[Value],
        _rows_max: u64,
    ) -> Result<ResultSet, SqlError> {
        Err(SqlError::new("unsupported", "not built yet"))
    }

    fn fault(&self) -> Option<StoreError> {
        None
    }

    async fn write_outbox(&mut self, _rows: &[OutboxRow]) -> Result<(), StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn take_queue_row(&mut self, _number: i64) -> Result<bool, StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn write_dead_letter(&mut self, _letter: &DeadLetter) -> Result<(), StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn commit(&mut self) -> Result<(), CommitError> {
        Err(CommitError::Busy("not built yet".into()))
    }

    async fn rollback(&mut self) -> Result<(), StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn migrate(&mut self) -> Result<(), StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn apply_handler_migrations(
        &mut self,
        _handler: &str,
        _migrations: &[HandlerMigration],
    ) -> Result<usize, StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn record_attempt(
        &mut self,
        _consumer: &str,
        _id: &MessageId,
        _class: FailureClass,
        _error: &str,
        _component: Option<ComponentDigest>,
    ) -> Result<u32, StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn enqueue(&mut self, _queue: &str, _rows: &[NewQueueRow]) -> Result<(), StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn peek_queue(
        &mut self,
        _queue: &str,
        _in_hand: &[i64],
        _limit: u32,
    ) -> Result<Vec<QueueRow>, StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn queue_backlog(&mut self, _queue: &str) -> Result<u64, StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn add_counters(
        &mut self,
        _consumer: &str,
        _host: &str,
        _counters: &Counters,
    ) -> Result<(), StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn counters(&mut self, _consumer: &str) -> Result<Counters, StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn dead_letter_count(&mut self, _consumer: &str) -> Result<u64, StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }

    async fn dead_letters(
        &mut self,
        _consumer: &str,
        _limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        Err(StoreError::Unusable("not built yet".into()))
    }
}
