//! Suspects: messages that were delivered so often that a host may have died of them. They run alone.
//!
//! One suspect runs at a time in the whole process, so that the process's death can be charged to exactly one message. Its run
//! is marked in the store before it begins; whoever finds a mark whose run goes on nowhere charges that run as crashed.
//!
//! **Invariant**: a message that is no suspect costs nothing here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::HandlerContext;
use super::dispatch::Drain;
use super::early::EarlyRuns;
use super::lane::{Lane, Pause, Report};
use super::policy::Failure;
use super::process::{Member, Processed, process};
use crate::message::MessageId;
use crate::store::{Mark, StoreError, Tx};

/// How long a suspect waits that runs elsewhere.
const ELSEWHERE_PAUSE: Duration = Duration::from_millis(250);

/// What all handlers of a process share about suspects.
#[derive(Debug)]
pub struct Suspects {
    turns: Semaphore,
    /// Names this process in its marks.
    process: String,
}

impl Suspects {
    /// Makes it for a process on the machine `machine`. Make one for all handlers of the process.
    pub fn new(machine: &str) -> Self {
        let random: u64 = rand::random();
        Self {
            turns: Semaphore::new(1),
            process: format!("{machine}:{}:{random:016x}", std::process::id()),
        }
    }

    /// Returns how this process is called in its marks.
    pub fn process(&self) -> &str {
        &self.process
    }

    /// Waits for the turn of one suspect. `None` when the host drains.
    async fn turn(&self, drain: &mut Drain) -> Option<SemaphorePermit<'_>> {
        tokio::select! {
            biased;
            // Either wait can be given up.
            () = drain.wait() => None,
            turn = self.turns.acquire() => turn.ok(),
        }
    }
}

/// Puts each suspect of a batch into a batch of its own; the order stays.
pub(super) fn apart(batch: Vec<Member>) -> Vec<Vec<Member>> {
    let mut parts: Vec<Vec<Member>> = Vec::new();
    let mut goes_on = false;
    for member in batch {
        let is_suspect = member.delivery.is_suspect;
        match parts.last_mut() {
            Some(part) if goes_on && !is_suspect => part.push(member),
            _ => parts.push(vec![member]),
        }
        goes_on = !is_suspect;
    }
    parts
}

impl HandlerContext {
    /// Removes the marks of the suspects whose runs end with `tx`.
    pub(super) async fn unmark(&self, tx: &mut Tx, batch: &[Member]) -> Result<(), StoreError> {
        let ids: Vec<&MessageId> = batch
            .iter()
            .filter(|member| member.delivery.is_suspect)
            .map(|member| &member.message.id)
            .collect();
        if ids.is_empty() {
            return Ok(());
        }
        tx.unmark_started(&self.consumer, &ids).await
    }
}

impl Lane {
    /// Takes one suspect to its end. Gives it back if the host drains first: unmarked and uncharged, as far as the
    /// database can be reached.
    pub(super) async fn take_suspect(
        &mut self,
        mut suspect: Member,
        report: &mut Report,
    ) -> Option<Member> {
        let handler = Arc::clone(&self.handler);
        let Some(_turn) = handler.suspects.turn(&mut self.drain).await else {
            return Some(suspect);
        };
        let process_name = handler.suspects.process.as_str();
        let id = suspect.message.id.clone();
        let mut pause = Pause::default();
        loop {
            let Some(mut connection) = self.connection().await else {
                return Some(suspect);
            };
            let marked = connection
                .mark_started(&handler.consumer, &id, process_name)
                .await;
            let why = match marked {
                Ok(Mark::Mine) => {
                    tracing::debug!(handler = %handler.name, message_id = %id, "runs alone");
                    let early = EarlyRuns::none(&handler);
                    let (connection, processed) =
                        process(&handler, connection, vec![suspect], early).await;
                    self.connection = connection;
                    match processed {
                        Processed::Settled => {
                            self.unmark(&id).await;
                            return None;
                        }
                        Processed::Failed {
                            batch,
                            failure,
                            component,
                            ..
                        } => {
                            for member in batch {
                                let mark = Some(process_name);
                                self.charge(member, failure.clone(), component, mark, report)
                                    .await;
                            }
                            self.unmark(&id).await;
                            return None;
                        }
                        Processed::Again { mut batch, why } => {
                            // It runs no more, so nothing that happens now is its fault.
                            self.unmark(&id).await;
                            suspect = batch.pop()?;
                            why
                        }
                        Processed::Behind { batch, waits } => {
                            self.unmark(&id).await;
                            suspect = self.put_off(batch, waits, report).await.pop()?;
                            continue;
                        }
                        Processed::TooLong { mut batch, .. } => {
                            suspect = batch.pop()?;
                            StoreError::Busy("a single message is never too long".into())
                        }
                        Processed::Misled { mut batch, misled } => {
                            suspect = batch.pop()?;
                            StoreError::Busy(misled.to_string())
                        }
                    }
                }
                Ok(Mark::Elsewhere) => {
                    self.connection = Some(connection);
                    tracing::info!(
                        handler = %handler.name,
                        message_id = %id,
                        "runs at another host"
                    );
                    report.retries.push((ELSEWHERE_PAUSE, suspect.delivery));
                    return None;
                }
                Ok(Mark::Left { host, started_at }) => {
                    self.connection = Some(connection);
                    let failure = Failure::crashed(&host, &started_at);
                    // Which code the dead process ran is not known; the two are rarely different.
                    let component = handler.digest();
                    self.charge(suspect, failure, component, Some(&host), report)
                        .await;
                    self.unmark(&id).await;
                    return None;
                }
                // The connection is closed, and with it the run's lock is free.
                Err(why) => why,
            };
            self.outage.note(&handler, &why);
            if self.drain.is_draining() {
                return Some(suspect);
            }
            pause.wait().await;
        }
    }

    /// Removes the mark of this process's run, if it is still there, and frees its lock. Where that fails the mark is
    /// left to this process's next run of the message, or is charged by another host.
    async fn unmark(&mut self, id: &MessageId) {
        let Some(mut connection) = self.connection().await else {
            return;
        };
        let handler = Arc::clone(&self.handler);
        let unmarked = connection
            .unmark_started(&handler.consumer, id, &handler.suspects.process)
            .await;
        match unmarked {
            Ok(()) => self.connection = Some(connection),
            Err(why) => self.outage.note(&handler, &why),
        }
    }
}
