//! The handlers' statements that are prepared on a connection.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use sqlx::postgres::{PgColumn, PgRow};
use sqlx::{
    AssertSqlSafe, Column as _, Either, Executor as _, PgConnection, Row as _, SqlSafeStr as _,
    Statement as _,
};

use super::params::{self, Type};
use crate::store::{Column, SqlError, Value};

/// How many statements of handlers are kept prepared on a connection.
const PREPARED_MAX: usize = 128;

/// A statement that the guard passed and the server took.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    number: u64,
    pub(super) params: Arc<[Type]>,
    pub(super) columns: Arc<[Column]>,
    pub(super) types: Arc<[Type]>,
}

impl Prepared {
    /// True if the row has the columns that the statement was described with.
    pub(super) fn describes(&self, row: &PgRow) -> bool {
        let same = |(column, (known, kind)): (&PgColumn, (&Column, &Type))| {
            column.name() == known.name
                && column
                    .type_info()
                    .oid()
                    .is_none_or(|found| found.0 == kind.oid)
        };
        row.columns().len() == self.columns.len()
            && row
                .columns()
                .iter()
                .zip(self.columns.iter().zip(self.types.iter()))
                .all(same)
    }

    #[cfg(test)]
    pub(super) fn for_test(params: Vec<Type>) -> Self {
        Self {
            number: 1,
            params: params.into(),
            columns: Arc::new([]),
            types: Arc::new([]),
        }
    }

    /// Its number on the connection. None is given twice.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn name(number: u64) -> String {
        format!("hapax_{number}")
    }

    /// Writes the call, and says which bytes of it are which parameter.
    pub(super) fn call(&self, values: &[Value]) -> Result<(String, Vec<Range<usize>>), SqlError> {
        let mut text = String::new();
        let spans = self.push_call(&mut text, values)?;
        Ok((text, spans))
    }

    /// Appends the call, and says which bytes of `text` are which parameter.
    pub(super) fn push_call(
        &self,
        text: &mut String,
        values: &[Value],
    ) -> Result<Vec<Range<usize>>, SqlError> {
        text.push_str("EXECUTE ");
        text.push_str(&Self::name(self.number));
        let mut spans = Vec::with_capacity(values.len());
        for (index, (value, wanted)) in values.iter().zip(self.params.iter()).enumerate() {
            text.push_str(if index == 0 { "(" } else { ", " });
            let start = text.len();
            params::push_param(text, index as u32 + 1, value, wanted)?;
            spans.push(start..text.len());
        }
        if !values.is_empty() {
            text.push(')');
        }
        Ok(spans)
    }

    /// Returns the number, from 1, of the parameter that a byte of the call with these values belongs to.
    pub(super) fn param_at(&self, values: &[Value], byte: usize) -> Option<u32> {
        let (_, spans) = self.call(values).ok()?;
        let index = spans.iter().position(|span| span.contains(&byte))?;
        u32::try_from(index + 1).ok()
    }
}

/// The statements by their text. They survive a rollback.
#[derive(Debug, Default)]
pub(super) struct Statements {
    by_text: HashMap<String, Entry>,
    next_number: u64,
    /// Counts uses; the entry with the smallest one goes first.
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    prepared: Prepared,
    used: u64,
}

impl Statements {
    /// Forgets all. Returns the commands that make the server forget them too.
    pub(super) fn clear(&mut self) -> String {
        let mut text = String::new();
        for (_, entry) in self.by_text.drain() {
            let _ = write!(
                text,
                "DEALLOCATE {};",
                Prepared::name(entry.prepared.number)
            );
        }
        text
    }

    pub(super) fn get(&mut self, statement: &str) -> Option<Prepared> {
        let entry = self.by_text.get_mut(statement)?;
        self.clock += 1;
        entry.used = self.clock;
        Some(entry.prepared.clone())
    }

    /// True if the statement with this number is prepared.
    pub(super) fn has(&self, number: u64) -> bool {
        self.by_text
            .values()
            .any(|entry| entry.prepared.number == number)
    }

    /// Forgets the statement that was not used for the longest time, if there are too many. Returns its name.
    pub(super) fn make_room(&mut self) -> Option<String> {
        if self.by_text.len() < PREPARED_MAX {
            return None;
        }
        let oldest = self
            .by_text
            .iter()
            .min_by_key(|(_, entry)| entry.used)
            .map(|(text, _)| text.clone())?;
        let entry = self.by_text.remove(&oldest)?;
        Some(Prepared::name(entry.prepared.number))
    }

    /// Prepares a statement that passed the guard.
    pub(super) async fn prepare(
        &mut self,
        connection: &mut PgConnection,
        statement: &str,
    ) -> Result<Prepared, sqlx::Error> {
        let described = connection
            .prepare(AssertSqlSafe(statement).into_sql_str())
            .await?;
        let params = match described.parameters() {
            Some(Either::Left(types)) => types.iter().map(Type::of).collect(),
            _ => Vec::new(),
        };
        let (columns, types) = params::columns(described.columns());
        self.next_number += 1;
        let number = self.next_number;
        // Through the extended protocol, which takes one command only.
        sqlx::query(AssertSqlSafe(format!(
            "PREPARE {} AS {statement}",
            Prepared::name(number)
        )))
        .persistent(false)
        .execute(connection)
        .await?;
        let prepared = Prepared {
            number,
            params: params.into(),
            columns: columns.into(),
            types: types.into(),
        };
        self.clock += 1;
        self.by_text.insert(
            statement.to_owned(),
            Entry {
                prepared: prepared.clone(),
                used: self.clock,
            },
        );
        Ok(prepared)
    }
}
