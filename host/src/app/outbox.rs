//! `hapax outbox`: what handlers published, looked at and decided about.
//!
//! **Invariant**: nothing here publishes: a row that is to leave again is marked, and `hapax run` takes it.

use super::{connect_and_migrate, open_store};
use crate::config::Config;
use crate::exit::{CommandError, Exit};
use crate::store::{Connection, OutboxFilter, OutboxState, StoredOutboxRow};

/// Rows that are read or changed at a time.
const PAGE: u32 = 500;

/// Which rows are meant.
#[derive(Clone, Debug, Default)]
pub struct OutboxSelection {
    /// By number; if there are any, nothing else counts.
    pub numbers: Vec<i64>,
    /// The handler's name in the configuration, or a consumer.
    pub handler: Option<String>,
    /// The target's name.
    pub target: Option<String>,
    /// How they stand.
    pub state: Option<OutboxState>,
    /// The id that receivers see.
    pub id: Option<String>,
}

/// The outbox of a store.
pub struct Outbox<'a> {
    config: &'a Config,
    connection: Connection,
}

fn failed(error: crate::store::StoreError) -> CommandError {
    CommandError::store("cannot read the outbox", &error)
}

impl<'a> Outbox<'a> {
    /// Connects to the store.
    ///
    /// # Errors
    /// If it can't be used.
    pub async fn open(config: &'a Config) -> Result<Self, CommandError> {
        let store = open_store(config)?;
        let connection = connect_and_migrate(&store, "outbox")
            .await
            .map_err(failed)?;
        Ok(Self { config, connection })
    }

    fn filter(&self, selection: &OutboxSelection) -> OutboxFilter {
        let consumers = selection.handler.as_ref().map(|name| {
            match self.config.handlers.get(name) {
                Some(handler) => handler.consumer.clone(),
                // One that is gone from the configuration.
                None => name.clone(),
            }
        });
        OutboxFilter {
            consumers: consumers.into_iter().collect(),
            target: selection.target.clone(),
            state: selection.state,
            id: selection.id.clone(),
        }
    }

    /// Returns rows without payloads, newest first, at most `limit`, and whether there are more.
    ///
    /// # Errors
    /// If the store can't be read.
    pub async fn list(
        &mut self,
        selection: &OutboxSelection,
        limit: usize,
    ) -> Result<(Vec<StoredOutboxRow>, bool), CommandError> {
        let filter = self.filter(selection);
        let wanted = u32::try_from(limit).unwrap_or(u32::MAX - 1) + 1;
        let mut rows = self
            .connection
            .outbox_rows(&filter, None, wanted)
            .await
            .map_err(failed)?;
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        Ok((rows, has_more))
    }

    /// Returns one whole row.
    ///
    /// # Errors
    /// If it is not there.
    pub async fn show(&mut self, number: i64) -> Result<StoredOutboxRow, CommandError> {
        let row = self.connection.outbox_row(number).await.map_err(failed)?;
        row.ok_or_else(|| not_there(number))
    }

    /// Returns the numbers of all rows that are meant, in ascending order.
    ///
    /// # Errors
    /// If the store can't be read.
    pub async fn numbers(&mut self, selection: &OutboxSelection) -> Result<Vec<i64>, CommandError> {
        if !selection.numbers.is_empty() {
            let mut numbers = selection.numbers.clone();
            numbers.sort_unstable();
            numbers.dedup();
            return Ok(numbers);
        }
        let filter = self.filter(selection);
        let mut numbers = Vec::new();
        loop {
            let page = self
                .connection
                .outbox_rows(&filter, numbers.last().copied(), PAGE)
                .await
                .map_err(failed)?;
            let is_last = page.len() < PAGE as usize;
            numbers.extend(page.into_iter().map(|row| row.message.number));
            if is_last {
                break;
            }
        }
        numbers.reverse();
        Ok(numbers)
    }

    /// Makes rows leave again. Returns those that were there.
    ///
    /// # Errors
    /// If the store can't be written; those before stay marked.
    pub async fn republish(
        &mut self,
        numbers: &[i64],
        mut progress: impl FnMut(u64),
    ) -> Result<Vec<i64>, CommandError> {
        let mut done = Vec::new();
        for page in numbers.chunks(PAGE as usize) {
            let page = self.connection.republish_outbox(page).await;
            done.extend(page.map_err(failed)?);
            progress(done.len() as u64);
        }
        Ok(done)
    }

    /// Deletes rows. Returns those that were there.
    ///
    /// # Errors
    /// If the store can't be written; those before are gone.
    pub async fn drop_rows(
        &mut self,
        numbers: &[i64],
        mut progress: impl FnMut(u64),
    ) -> Result<Vec<i64>, CommandError> {
        let mut done = Vec::new();
        for page in numbers.chunks(PAGE as usize) {
            let page = self.connection.drop_outbox(page).await;
            done.extend(page.map_err(failed)?);
            progress(done.len() as u64);
        }
        Ok(done)
    }
}

/// The error for a number that names no row.
pub fn not_there(number: i64) -> CommandError {
    CommandError::new(
        Exit::Failed,
        format!("there is no message {number} in the outbox"),
        Some("`hapax outbox list` shows the numbers; published ones go after `outbox.keep`"),
    )
}
