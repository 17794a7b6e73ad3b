//! Telling somebody what became of each message: what `hapax dev` shows.
//!
//! **Invariant**: of a run's messages nothing is told before its commit; of one that is rolled back, nothing at all.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::HandlerContext;
use super::policy::Outcome;
use super::process::Member;
use crate::handler::{Called, CalledBatch, Outgoing, Seen};
use crate::message::{FailureClass, MessageId};
use crate::store::{Claim, ClaimAs};

/// What became of one delivery of a message.
#[derive(Clone, Debug)]
pub struct MessageTold {
    /// The handler's name.
    pub handler: String,
    /// Absent if none was found in it.
    pub message_id: Option<MessageId>,
    /// What became of it.
    pub became: Became,
}

/// What became of a delivery.
#[derive(Clone, Debug)]
pub enum Became {
    /// It took effect.
    Committed(Effects),
    /// Its id was done before: it took no effect.
    Duplicate {
        /// What it was before is a dead letter.
        is_dead: bool,
    },
    /// It failed, and runs again.
    Retried {
        /// How often it has failed.
        attempt: u32,
        /// After how many it is given up on.
        attempts: u32,
        /// Of the failure.
        class: FailureClass,
        /// In words.
        reason: String,
        /// Until it runs again.
        wait: Duration,
    },
    /// It is in the dead letters.
    Dead {
        /// Of the failure.
        class: FailureClass,
        /// In words.
        reason: String,
    },
}

/// What a message's run has left behind.
#[derive(Clone, Debug)]
pub struct Effects {
    /// The number of the run, from 1.
    pub attempt: u32,
    /// How many messages were in the call: more than one for a handler of batches.
    pub call_messages: usize,
    /// The tables around the call, for the first of its messages; absent if they could not be read.
    pub seen: Option<Arc<Seen>>,
    /// In their order.
    pub published: Vec<Outgoing>,
    /// The time that the handler's own code ran in the call.
    pub cpu: Duration,
}

/// Is told of each message when its fate is committed. It is called on the lane's way: it must be quick.
#[derive(Clone)]
pub struct MessageObserver(Arc<dyn Fn(MessageTold) + Send + Sync>);

impl MessageObserver {
    /// Makes an observer of a function.
    pub fn new(observe: impl Fn(MessageTold) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }
}

impl fmt::Debug for MessageObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageObserver").finish_non_exhaustive()
    }
}

impl HandlerContext {
    /// Tells of one message, if somebody listens.
    pub(super) fn tell(&self, message_id: Option<&MessageId>, became: impl FnOnce() -> Became) {
        if let Some(observer) = &self.told {
            (observer.0)(MessageTold {
                handler: self.name.clone(),
                message_id: message_id.cloned(),
                became: became(),
            });
        }
    }
}

/// What is to be told of a run when it is committed. Does nothing where nobody listens.
pub(super) struct RunTold<'a>(Option<Run<'a>>);

struct Run<'a> {
    handler: &'a HandlerContext,
    /// In the order of the batch.
    members: Vec<Told>,
}

struct Told {
    id: MessageId,
    attempt: u32,
    became: Option<Became>,
}

impl<'a> RunTold<'a> {
    pub(super) fn begin(handler: &'a HandlerContext) -> Self {
        Self(handler.told.as_ref().map(|_| Run {
            handler,
            members: Vec::new(),
        }))
    }

    pub(super) fn has(&mut self, batch: &[Member]) {
        if let Some(run) = &mut self.0 {
            run.members = batch
                .iter()
                .map(|member| Told {
                    id: member.message.id.clone(),
                    attempt: 1,
                    became: None,
                })
                .collect();
        }
    }

    pub(super) fn claimed(&mut self, index: usize, claim: &Claim) {
        let Some(run) = &mut self.0 else { return };
        let became = match claim {
            Claim::Fresh { attempt } => {
                if let Some(member) = run.members.get_mut(index) {
                    member.attempt = *attempt;
                }
                return;
            }
            Claim::Duplicate { outcome } => Became::Duplicate {
                is_dead: *outcome == ClaimAs::Dead,
            },
            Claim::Conflict { .. } if run.handler.ignores_conflicts() => {
                Became::Duplicate { is_dead: false }
            }
            Claim::Conflict { .. } => Became::Dead {
                class: FailureClass::Conflict,
                reason: "the id was claimed before with another payload".into(),
            },
        };
        run.sets(index, became);
    }

    pub(super) fn called(&mut self, index: usize, called: &Called, outcome: &Outcome) {
        let Some(run) = &mut self.0 else { return };
        if !matches!(outcome, Outcome::Commit) {
            return;
        }
        let effects = Effects {
            attempt: run.attempt(index),
            call_messages: 1,
            seen: called.seen.clone(),
            published: called.published.clone(),
            cpu: called.cpu,
        };
        run.sets(index, Became::Committed(effects));
    }

    /// The members at `indexes` were in one call.
    pub(super) fn called_together(
        &mut self,
        indexes: &[usize],
        called: &CalledBatch,
        outcome: &Outcome,
    ) {
        let Some(run) = &mut self.0 else { return };
        if !matches!(outcome, Outcome::Commit) {
            return;
        }
        for (place, &index) in indexes.iter().enumerate() {
            let published = called.published.iter();
            let effects = Effects {
                attempt: run.attempt(index),
                call_messages: indexes.len(),
                // Which of them has changed a row nobody can tell.
                seen: called.seen.clone().filter(|_| place == 0),
                published: published
                    .filter(|(on_behalf_of, _)| *on_behalf_of == place)
                    .map(|(_, outgoing)| outgoing.clone())
                    .collect(),
                cpu: called.cpu,
            };
            run.sets(index, Became::Committed(effects));
        }
    }

    pub(super) fn committed(&mut self) {
        let Some(run) = self.0.take() else { return };
        for member in run.members {
            if let Some(became) = member.became {
                run.handler.tell(Some(&member.id), || became);
            }
        }
    }
}

impl Run<'_> {
    fn attempt(&self, index: usize) -> u32 {
        self.members.get(index).map_or(1, |member| member.attempt)
    }

    fn sets(&mut self, index: usize, became: Became) {
        if let Some(member) = self.members.get_mut(index) {
            member.became = Some(became);
        }
    }
}
