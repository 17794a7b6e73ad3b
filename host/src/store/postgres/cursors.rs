//! Cursors of a handler, on PostgreSQL: `DECLARE`, `FETCH`, `CLOSE`.
//!
//! A cursor can't be declared on a statement that is prepared, and the driver binds parameters in binary only: so each
//! parameter stands in the declaration as a literal, cast to the type that the statement was described with.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use futures_util::TryStreamExt as _;
use sqlx::{AssertSqlSafe, Either};

use super::rows::RowSink;
use super::statements::Prepared;
use super::{PostgresSession, errors, params};
use crate::store::cursors::{Pace, not_a_query};
use crate::store::{Column, Cursor, CursorSession, FetchLimits, SqlError, Value, guard, records};

/// What is kept of an open cursor.
#[derive(Debug)]
pub(super) struct PostgresCursor {
    prepared: Prepared,
    pace: Pace,
}

/// A declaration, and which bytes of it stand for which bytes of the handler's statement.
#[derive(Debug, Default)]
struct Declaration {
    text: String,
    /// Where the handler's statement begins.
    start: usize,
    params: Vec<Placed>,
}

#[derive(Debug)]
struct Placed {
    /// In the declaration.
    literal: Range<usize>,
    /// In the statement.
    param: Range<usize>,
    number: u32,
}

impl CursorSession for PostgresSession {
    async fn open_cursor(
        &mut self,
        statement: &str,
        params: &[Value],
    ) -> Result<(Cursor, Arc<[Column]>), SqlError> {
        self.settle_first().await?;
        self.refuse_if_aborted()?;
        let cursor = self.tx.cursors.next()?;
        if !self.check(statement).await?.reads {
            return Err(not_a_query());
        }
        let Some(prepared) = self.prepared(statement).await? else {
            return Err(not_a_query());
        };
        if params.len() != prepared.params.len() {
            return Err(records::wrong_count(prepared.params.len(), params.len()));
        }
        let casts = self.casts(&prepared).await?;
        let declaration = declare(cursor, statement, &prepared, &casts, params)?;
        self.close_left().await?;
        // Through the extended protocol, which takes one command only.
        let declared = sqlx::query(AssertSqlSafe(declaration.text.as_str()))
            .persistent(false)
            .execute(&mut self.connection)
            .await;
        if let Err(error) = declared {
            self.note(&error);
            return Err(declaration.locate(statement, errors::sql_error(&error)));
        }
        let columns = Arc::clone(&prepared.columns);
        let kept = PostgresCursor {
            prepared,
            pace: Pace::default(),
        };
        let after = self.tx.savepoints.last();
        self.tx.cursors.opened(cursor, after, kept);
        Ok((cursor, columns))
    }

    async fn fetch_cursor(
        &mut self,
        cursor: Cursor,
        limits: FetchLimits,
    ) -> Result<Vec<Vec<Value>>, SqlError> {
        self.settle_first().await?;
        self.refuse_if_aborted()?;
        let kept = self.tx.cursors.get(cursor)?;
        let (prepared, mut pace) = (kept.prepared.clone(), kept.pace);
        let mut sink = RowSink::new(limits.rows);
        sink.start(&prepared);
        loop {
            let (rows, bytes) = (sink.result.rows.len() as u64, sink.bytes);
            let asked = pace.portion(limits.rows - rows, limits.bytes.saturating_sub(bytes));
            if let Err(error) = self
                .fetch_portion(cursor, asked, &prepared, &mut sink)
                .await
            {
                // It can't go on behind an error, also if that is undone.
                self.close_cursor(cursor).await;
                return Err(error);
            }
            let came = sink.result.rows.len() as u64 - rows;
            pace.came(came, sink.bytes - bytes);
            if came < asked || rows + came >= limits.rows || sink.bytes >= limits.bytes {
                break;
            }
        }
        self.tx.cursors.get(cursor)?.pace = pace;
        Ok(sink.result.rows)
    }

    async fn close_cursor(&mut self, cursor: Cursor) {
        self.tx.cursors.leave(cursor);
        // In an aborted transaction the server closes nothing. After going back to a savepoint it may be there yet.
        if !self.tx.aborted {
            // The failure leaves the transaction aborted.
            let _ = self.close_left().await;
        }
    }

    async fn close_cursors(&mut self) {
        self.tx.cursors.leave_all();
        if !self.tx.aborted {
            let _ = self.close_left().await;
        }
    }
}

impl PostgresSession {
    /// Fetches `count` rows more.
    async fn fetch_portion(
        &mut self,
        cursor: Cursor,
        count: u64,
        prepared: &Prepared,
        sink: &mut RowSink,
    ) -> Result<(), SqlError> {
        let text = format!("FETCH FORWARD {count} FROM {}", name(cursor));
        let mut is_stale = false;
        let mut is_first = true;
        let result = {
            let mut stream = sqlx::Executor::fetch_many(
                &mut self.connection,
                sqlx::raw_sql(AssertSqlSafe(text)),
            );
            loop {
                match stream.try_next().await {
                    Ok(Some(Either::Left(_))) => {}
                    Ok(Some(Either::Right(row))) => {
                        is_stale |= std::mem::take(&mut is_first) && !prepared.describes(&row);
                        if !is_stale {
                            sink.take(&row);
                        }
                    }
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            }
        };
        if let Err(error) = result {
            self.note(&error);
            return Err(errors::sql_error(&error));
        }
        if is_stale {
            return Err(self.stale_description());
        }
        match sink.failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The table was changed since the statement was described, by somebody else: that is no fault of the message.
    pub(super) fn stale_description(&mut self) -> SqlError {
        let text = "the columns of the statement have changed since it was prepared";
        self.tx.aborted = true;
        self.tx.savepoints.lose();
        self.note_stale(text.into());
        SqlError {
            retryable: self.tx.fault.is_some(),
            ..SqlError::new("stale", text)
        }
    }

    /// Returns the names of the parameters' types, as a cast takes them.
    async fn casts(&mut self, prepared: &Prepared) -> Result<Vec<String>, SqlError> {
        if prepared.params.is_empty() {
            return Ok(Vec::new());
        }
        let oids: Vec<i64> = prepared
            .params
            .iter()
            .map(|param| i64::from(param.oid))
            .collect();
        // With a modifier of -1: `character` alone would be one of one letter.
        let names: Result<Vec<String>, _> = sqlx::query_scalar(
            "SELECT pg_catalog.format_type(wanted.type::oid, -1) \
             FROM unnest($1::bigint[]) WITH ORDINALITY AS wanted (type, place) ORDER BY wanted.place",
        )
        .bind(oids)
        .fetch_all(&mut self.connection)
        .await;
        names.map_err(|error| {
            self.note(&error);
            errors::sql_error(&error)
        })
    }

    /// Closes cursors that have ended for the handler only.
    async fn close_left(&mut self) -> Result<(), SqlError> {
        let left = self.tx.cursors.take_left();
        if left.is_empty() {
            return Ok(());
        }
        self.settle_first().await?;
        let mut text = String::new();
        for cursor in left {
            let _ = write!(text, "CLOSE {};", name(cursor));
        }
        let closed = sqlx::raw_sql(AssertSqlSafe(text))
            .execute(&mut self.connection)
            .await;
        if let Err(error) = closed {
            self.host_error(&error);
            return Err(errors::sql_error(&error));
        }
        Ok(())
    }
}

fn name(cursor: Cursor) -> String {
    format!("hapax_cursor_{}", cursor.0)
}

/// Writes the declaration of a cursor on a statement that passed the guard.
fn declare(
    cursor: Cursor,
    statement: &str,
    prepared: &Prepared,
    casts: &[String],
    values: &[Value],
) -> Result<Declaration, SqlError> {
    let mut declaration = Declaration {
        text: format!("DECLARE {} NO SCROLL CURSOR FOR ", name(cursor)),
        ..Declaration::default()
    };
    declaration.start = declaration.text.len();
    let text = &mut declaration.text;
    let mut at = 0;
    for (place, number) in guard::postgres_params(statement)? {
        let index = number.wrapping_sub(1);
        let (Some(value), Some(wanted), Some(cast)) = (
            values.get(index),
            prepared.params.get(index),
            casts.get(index),
        ) else {
            return Err(SqlError::new(
                "internal",
                format!("the server does not know the parameter ${number}"),
            ));
        };
        let number = index as u32 + 1;
        text.push_str(&statement[at..place.start]);
        let start = text.len();
        text.push('(');
        params::push_param(text, number, value, wanted)?;
        let _ = write!(text, "::{cast})");
        declaration.params.push(Placed {
            literal: start..text.len(),
            param: place.clone(),
            number,
        });
        at = place.end;
    }
    text.push_str(&statement[at..]);
    Ok(declaration)
}

impl Declaration {
    /// Says of an error about the declaration where it lies in the handler's statement.
    fn locate(&self, statement: &str, mut error: SqlError) -> SqlError {
        let Some(byte) = error
            .position
            .take()
            .and_then(|position| self.text.char_indices().nth(position as usize - 1))
            .and_then(|(byte, _)| byte.checked_sub(self.start).map(|_| byte))
        else {
            return error;
        };
        if let Some(placed) = self
            .params
            .iter()
            .find(|placed| placed.literal.contains(&byte))
        {
            error.param = Some(placed.number);
            error.message = format!("parameter ${}: {}", placed.number, error.message);
            return error;
        }
        let before = self
            .params
            .iter()
            .rev()
            .find(|placed| placed.literal.end <= byte);
        let byte = match before {
            Some(placed) => placed.param.end + (byte - placed.literal.end),
            None => byte - self.start,
        };
        error.position = statement
            .get(..byte)
            .and_then(|text| u32::try_from(text.chars().count() + 1).ok());
        error
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::{Base, Type};
    use super::*;

    #[test]
    fn parameters_stand_in_the_declaration_and_errors_in_the_statement() {
        let wanted = |base, name: &str| Type::for_test(name, base);
        let prepared =
            Prepared::for_test(vec![wanted(Base::Int8, "int8"), wanted(Base::Text, "text")]);
        let statement = "SELECT 'ä$1', $2, $1 FROM t WHERE a = $2 AND nope";
        let declaration = declare(
            Cursor(3),
            statement,
            &prepared,
            &["bigint".into(), "text".into()],
            &[Value::Int64(-5), Value::Text("it's".into())],
        )
        .unwrap();
        assert_eq!(
            declaration.text,
            "DECLARE hapax_cursor_3 NO SCROLL CURSOR FOR SELECT 'ä$1', (E'it''s'::text), (E'-5'::bigint) FROM t \
             WHERE a = (E'it''s'::text) AND nope"
        );
        let at = |what: &str| {
            let byte = declaration.text.rfind(what).unwrap();
            let error = SqlError {
                position: Some(declaration.text[..byte].chars().count() as u32 + 1),
                ..SqlError::new("x", "y")
            };
            let found = declaration.locate(statement, error);
            (found.param, found.position)
        };
        let place = |what: &str| {
            let byte = statement.rfind(what).unwrap();
            Some(statement[..byte].chars().count() as u32 + 1)
        };
        assert_eq!(at("nope"), (None, place("nope")));
        assert_eq!(at("FROM t"), (None, place("FROM t")));
        assert_eq!(at("SELECT"), (None, place("SELECT")));
        assert_eq!(at("-5"), (Some(1), None));
        assert_eq!(at("it''s"), (Some(2), None));
        assert_eq!(at("CURSOR"), (None, None));
    }
}
