//! Rows of the embedded queue: put in, looked at, and taken inside a transaction.

use std::future::Future;

use super::connection::each;
use super::{Connection, NewQueueRow, QueueRow, Session, StoreError};

/// What both databases offer for the queue beside `Session`, whose rules hold here too.
pub(crate) trait QueueSession: Session {
    // Inside a transaction.

    /// Takes queue rows inside the transaction. Returns those that it got: the others are gone, or another host has
    /// them in hand.
    fn take_queue_rows(
        &mut self,
        numbers: &[i64],
    ) -> impl Future<Output = Result<Vec<i64>, StoreError>> + Send;

    /// Takes one queue row, and waits for whoever has it in hand, at most `lock_timeout`; then `Busy`. False: it is gone.
    fn wait_for_queue_row(
        &mut self,
        number: i64,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    // Outside a transaction: each is one of its own.

    /// Adds rows to a queue, in one transaction, in their order.
    fn enqueue(
        &mut self,
        queue: &str,
        rows: &[NewQueueRow],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns due rows of a queue whose numbers are not in `in_hand`, at most `limit`: in order, or, of a consumer's own queue
    /// (`@CONSUMER`), those first that are due longest.
    fn peek_queue(
        &mut self,
        queue: &str,
        in_hand: &[i64],
        limit: u32,
    ) -> impl Future<Output = Result<Vec<QueueRow>, StoreError>> + Send;

    /// Counts the rows of a queue.
    fn queue_backlog(
        &mut self,
        queue: &str,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Returns how long the first row of a queue has been in it, in seconds.
    fn queue_age(
        &mut self,
        queue: &str,
    ) -> impl Future<Output = Result<Option<f64>, StoreError>> + Send;
}

impl QueueSession for Connection {
    async fn take_queue_rows(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        each!(self, session => session.take_queue_rows(numbers))
    }

    async fn wait_for_queue_row(&mut self, number: i64) -> Result<bool, StoreError> {
        each!(self, session => session.wait_for_queue_row(number))
    }

    async fn enqueue(&mut self, queue: &str, rows: &[NewQueueRow]) -> Result<(), StoreError> {
        each!(self, session => session.enqueue(queue, rows))
    }

    async fn peek_queue(
        &mut self,
        queue: &str,
        in_hand: &[i64],
        limit: u32,
    ) -> Result<Vec<QueueRow>, StoreError> {
        each!(self, session => session.peek_queue(queue, in_hand, limit))
    }

    async fn queue_backlog(&mut self, queue: &str) -> Result<u64, StoreError> {
        each!(self, session => session.queue_backlog(queue))
    }

    async fn queue_age(&mut self, queue: &str) -> Result<Option<f64>, StoreError> {
        each!(self, session => session.queue_age(queue))
    }
}

/// The queue, outside a transaction.
impl Connection {
    /// Adds rows to a queue, in one transaction, in their order.
    ///
    /// # Errors
    /// As `StoreError` says; none is added, unless the connection was lost.
    pub async fn enqueue(&mut self, queue: &str, rows: &[NewQueueRow]) -> Result<(), StoreError> {
        QueueSession::enqueue(self, queue, rows).await
    }

    /// Returns due rows of a queue whose numbers are not in `in_hand`, at most `limit`, in order.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn peek_queue(
        &mut self,
        queue: &str,
        in_hand: &[i64],
        limit: u32,
    ) -> Result<Vec<QueueRow>, StoreError> {
        QueueSession::peek_queue(self, queue, in_hand, limit).await
    }

    /// Counts the rows of a queue.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn queue_backlog(&mut self, queue: &str) -> Result<u64, StoreError> {
        QueueSession::queue_backlog(self, queue).await
    }

    /// Returns how long the first row of a queue has been in it, in seconds by the database's clock; `None` if it is empty.
    ///
    /// # Errors
    /// As `StoreError` says.
    pub async fn queue_age(&mut self, queue: &str) -> Result<Option<f64>, StoreError> {
        QueueSession::queue_age(self, queue).await
    }
}
