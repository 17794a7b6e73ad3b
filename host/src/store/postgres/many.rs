//! One statement for many rows of parameters: one message to the server, or as few as their size asks for.
//!
//! **Invariant**: every row's parameters are encoded before the first row is sent.

use futures_util::TryStreamExt as _;
use sqlx::{AssertSqlSafe, Either};

use super::statements::Prepared;
use super::{PostgresSession, errors};
use crate::store::{SqlError, Value, records};

/// A message that has so many bytes is sent, and the next row begins another.
const MESSAGE_BYTES: usize = 1 << 20;

/// Calls that are sent together.
#[derive(Debug, Default)]
struct Message {
    text: String,
    /// Where in the text each call begins.
    starts: Vec<usize>,
}

impl PostgresSession {
    /// Runs a handler's statement for each row. Returns the rows affected by each.
    pub(super) async fn run_many(
        &mut self,
        statement: &str,
        rows: &[Vec<Value>],
    ) -> Result<Vec<u64>, SqlError> {
        self.refuse_if_aborted()?;
        if rows.is_empty() {
            self.check(statement).await?;
            return Ok(Vec::new());
        }
        let Some(prepared) = self.prepared(statement).await? else {
            return Err(records::no_rows_for_ddl());
        };
        let messages = encode(&prepared, rows)?;
        let mut counts = Vec::with_capacity(rows.len());
        for message in &messages {
            let before = counts.len();
            if let Err(mut error) = self.send(message, &mut counts).await {
                // As many calls have completed as there are counts: the next one is the one that failed.
                let row = counts.len();
                let start = message.starts.get(row - before).copied();
                // The position is one in the text that was sent, which the handler never saw.
                let position = error.position.take();
                error.param = start
                    .zip(position)
                    .and_then(|(start, position)| {
                        byte_at(&message.text, position)?.checked_sub(start)
                    })
                    .and_then(|byte| prepared.param_at(rows.get(row)?, byte));
                return Err(records::in_row(row, error));
            }
        }
        Ok(counts)
    }

    /// Sends one message and appends what each of its calls has affected.
    async fn send(&mut self, message: &Message, counts: &mut Vec<u64>) -> Result<(), SqlError> {
        let mut left = message.starts.len();
        let result = {
            let mut stream = sqlx::Executor::fetch_many(
                &mut self.connection,
                sqlx::raw_sql(AssertSqlSafe(message.text.as_str())),
            );
            loop {
                match stream.try_next().await {
                    // One completion a call, in their order; then the error, if one fails.
                    Ok(Some(Either::Left(done))) => {
                        counts.push(done.rows_affected());
                        left = left.saturating_sub(1);
                    }
                    Ok(Some(Either::Right(_))) => {}
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            }
        };
        if let Err(error) = result {
            self.note(&error);
            return Err(errors::sql_error(&error));
        }
        if left > 0 {
            self.tx.aborted = true;
            self.tx.savepoints.lose();
            return Err(SqlError::new(
                "internal",
                format!("{left} of {} completions are missing", message.starts.len()),
            ));
        }
        Ok(())
    }
}

/// Writes the calls of all rows.
fn encode(prepared: &Prepared, rows: &[Vec<Value>]) -> Result<Vec<Message>, SqlError> {
    let mut messages = Vec::new();
    let mut message = Message::default();
    for (index, row) in rows.iter().enumerate() {
        if row.len() != prepared.params.len() {
            let error = records::wrong_count(prepared.params.len(), row.len());
            return Err(records::in_row(index, error));
        }
        if message.text.len() >= MESSAGE_BYTES {
            messages.push(std::mem::take(&mut message));
        }
        if !message.starts.is_empty() {
            message.text.push(';');
        }
        message.starts.push(message.text.len());
        prepared
            .push_call(&mut message.text, row)
            .map_err(|error| records::in_row(index, error))?;
    }
    messages.push(message);
    Ok(messages)
}

/// Returns where the character `position`, counted from 1, begins in `text`.
fn byte_at(text: &str, position: u32) -> Option<usize> {
    let index = usize::try_from(position).ok()?.checked_sub(1)?;
    text.char_indices().nth(index).map(|(byte, _)| byte)
}
