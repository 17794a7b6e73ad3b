//! `hapax outbox`: what handlers published, looked at and decided about.
//!
//! **Invariant**: nothing here publishes: a row that is to leave again is marked, and `hapax run` takes it.

pub mod told;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::{connect_and_migrate, open_store, own_session};
use crate::config::{Config, HandlerConfig, TargetConfig};
use crate::exit::{Cause, CommandError, Exit};
use crate::store::{
    Connection, OutboxFilter, OutboxQuery, OutboxState, SessionOptions, Store, StoreError,
    StoredOutboxRow,
};

/// How long a start looks for what waits in vain.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// Rows that are read or changed at a time.
const PAGE: u32 = 500;

/// What a handler published and does not leave, because its target is not configured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Stranded {
    /// The handler's name.
    #[serde(skip)]
    pub handler: String,
    /// The target's name; absent for messages that name none, of a handler without a default.
    pub target: Option<String>,
    /// How many.
    pub messages: u64,
}

impl Stranded {
    /// Returns what they wait for, as the end of a sentence.
    pub fn waits_for(&self) -> String {
        match &self.target {
            Some(target) => format!("the target `{target}`, which is not configured"),
            None => "a target: they name none, and the handler has no default".to_owned(),
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> String {
        let handler = &self.handler;
        match &self.target {
            Some(target) => format!(
                "write the table `[targets.{target}]` again, or delete them: `hapax outbox drop --handler {handler} --target {target}`"
            ),
            None => format!(
                "write `target = \"NAME\"` in `[handlers.{handler}]`, for a table `[targets.NAME]`"
            ),
        }
    }
}

/// Returns what of a handler's does not leave.
pub(super) async fn stranded(
    connection: &mut Connection,
    handler: &HandlerConfig,
    targets: &BTreeMap<String, TargetConfig>,
) -> Result<Vec<Stranded>, StoreError> {
    let query = OutboxQuery {
        consumer: handler.consumer.clone(),
        targets: targets.keys().cloned().collect(),
        without_target: handler.target.is_some(),
        from_key: String::new(),
        limit: 0,
    };
    let stranded = connection.stranded_outbox(&query).await?;
    Ok(stranded
        .into_iter()
        .map(|stranded| Stranded {
            handler: handler.name.clone(),
            target: stranded.target,
            messages: stranded.rows,
        })
        .collect())
}

/// Tells the log of what does not leave. Failing at it harms nobody. May be dropped.
pub(super) async fn warn_of_stranded(
    store: &Store,
    handlers: &[HandlerConfig],
    targets: &BTreeMap<String, TargetConfig>,
) {
    let options = SessionOptions {
        statement_timeout: Some(LOOK_MAX),
        ..own_session("start")
    };
    let looked = async {
        let mut connection = store.connect(&options).await?;
        for handler in handlers {
            for stranded in self::stranded(&mut connection, handler, targets).await? {
                tracing::warn!(
                    handler = %handler.name,
                    messages = stranded.messages,
                    hint = %stranded.hint(),
                    "messages in the outbox do not leave: they wait for {}",
                    stranded.waits_for()
                );
            }
        }
        Ok::<_, StoreError>(())
    };
    if let Err(error) = looked.await {
        tracing::debug!(%error, "whether the outbox holds messages for targets that are gone was not looked at");
    }
}

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

    /// Returns which of `rows` do not leave, because their target is not configured.
    pub fn stranded(&self, rows: &[StoredOutboxRow]) -> Vec<Stranded> {
        let mut counts: BTreeMap<(&str, Option<&str>), u64> = BTreeMap::new();
        for row in rows {
            let is_open = matches!(row.state, OutboxState::Unpublished | OutboxState::Waiting);
            let handler = self
                .config
                .handlers
                .values()
                .find(|handler| handler.consumer == row.consumer);
            let target = row.message.target.as_deref();
            if let (true, Some(handler)) = (is_open, handler)
                && !target
                    .or(handler.target.as_deref())
                    .is_some_and(|target| self.config.targets.contains_key(target))
            {
                *counts.entry((&handler.name, target)).or_default() += 1;
            }
        }
        counts
            .into_iter()
            .map(|((handler, target), messages)| Stranded {
                handler: handler.to_owned(),
                target: target.map(str::to_owned),
                messages,
            })
            .collect()
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
    .because(Cause::NotThere)
}

/// Reads how a published message stands.
///
/// # Errors
/// What the states are.
pub fn state(text: &str) -> Result<OutboxState, String> {
    OutboxState::named(text).ok_or_else(|| {
        let words: Vec<&str> = OutboxState::ALL
            .iter()
            .map(|state| state.as_str())
            .collect();
        format!("the states are {}", words.join(", "))
    })
}
