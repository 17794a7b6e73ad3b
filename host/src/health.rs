//! What is in the way: which parts of the host are down, and why; whether it is ready.
//!
//! **Invariant**: ready means that every handler consumes, nothing is down, and the host does not drain.
//! **Invariant**: no reason that is kept here holds a secret: they are the texts of errors, which hold none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;

use crate::text::one_line;

/// How long a pipeline may show no sign of life before it counts as stuck.
const PULSE_MAX: Duration = Duration::from_secs(10);
/// How often a pipeline shows one.
pub(crate) const PULSE_INTERVAL: Duration = Duration::from_secs(1);

/// The health of one process. Shared by all that report to it and all that ask it.
#[derive(Debug)]
pub struct Health {
    state: Mutex<State>,
    /// Counts the changes.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// By the number of the reporter: what it reports on, and why that is down.
    down: BTreeMap<u64, (String, String)>,
    /// By the number of the pipeline: its last sign of life.
    pulses: BTreeMap<u64, Instant>,
    phase: Phase,
}

/// How far a process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Starting,
    Consuming,
    Draining,
}

/// A part that is down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Down {
    /// `store`, `source NAME` or `host`.
    pub part: String,
    /// One line, without secrets.
    pub why: String,
}

/// Whether the host is ready, and what is in the way if it is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Every handler consumes, and nothing is down.
    pub ready: bool,
    /// A line for each part.
    pub down: Vec<Down>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            changes: watch::channel(0).0,
        }
    }
}

impl Health {
    /// Returns a reporter on `part`, which is not down until it says so. There may be several on one part: it is down while any
    /// of them says so.
    pub fn part(self: &Arc<Self>, part: impl Into<String>) -> Part {
        Part {
            health: Arc::clone(self),
            number: self.number(),
            name: part.into(),
            is_down: AtomicBool::new(false),
        }
    }

    /// Returns what a pipeline shows its signs of life through, until it is dropped.
    pub(crate) fn pulse(self: &Arc<Self>) -> Pulse {
        let number = self.number();
        self.lock().pulses.insert(number, Instant::now());
        Pulse {
            health: Arc::clone(self),
            number,
        }
    }

    /// Says that every handler consumes.
    pub fn consuming(&self) {
        self.enter(Phase::Consuming);
    }

    /// Says that the host takes no more.
    pub fn draining(&self) {
        self.enter(Phase::Draining);
    }

    /// Returns whether the host is ready, and what is in the way.
    pub fn readiness(&self) -> Readiness {
        let state = self.lock();
        let mut down: Vec<Down> = Vec::new();
        for (part, why) in state.down.values() {
            // Lanes that share a database need not all be heard.
            if !down.iter().any(|known| known.part == *part) {
                down.push(Down {
                    part: part.clone(),
                    why: why.clone(),
                });
            }
        }
        let why = match state.phase {
            Phase::Starting => Some("starting: not every handler consumes yet"),
            Phase::Consuming => None,
            Phase::Draining => Some("draining: no more messages are taken"),
        };
        down.extend(why.map(|why| Down {
            part: "host".into(),
            why: why.into(),
        }));
        Readiness {
            ready: down.is_empty(),
            down,
        }
    }

    /// True while every pipeline shows signs of life.
    pub fn is_alive(&self) -> bool {
        self.lock()
            .pulses
            .values()
            .all(|last| last.elapsed() < PULSE_MAX)
    }

    /// Returns what tells of each change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn enter(&self, phase: Phase) {
        let mut state = self.lock();
        if state.phase != Phase::Draining {
            state.phase = phase;
        }
        drop(state);
        self.changed();
    }

    fn number(&self) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        state.next
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Nothing that runs under this lock can panic halfway through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports on one part. When it is dropped, it reports no more.
#[derive(Debug)]
pub struct Part {
    health: Arc<Health>,
    number: u64,
    name: String,
    /// Most reports say what is known.
    is_down: AtomicBool,
}

impl Part {
    /// Says that the part is down, and why: the first line of `why` counts.
    pub fn down(&self, why: &str) {
        self.is_down.store(true, Ordering::SeqCst);
        let why = one_line(why.lines().next().unwrap_or_default()).to_string();
        let before = self
            .health
            .lock()
            .down
            .insert(self.number, (self.name.clone(), why.clone()));
        if before.is_none_or(|(_, before)| before != why) {
            self.health.changed();
        }
    }

    /// Says that the part is not down, or no more.
    pub fn up(&self) {
        if self.is_down.swap(false, Ordering::SeqCst) {
            self.health.lock().down.remove(&self.number);
            self.health.changed();
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.up();
    }
}

/// A pipeline's signs of life.
#[derive(Debug)]
pub(crate) struct Pulse {
    health: Arc<Health>,
    number: u64,
}

impl Pulse {
    /// Shows one.
    pub(crate) fn beat(&self) {
        self.health
            .lock()
            .pulses
            .insert(self.number, Instant::now());
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.health.lock().pulses.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_down_while_any_reporter_says_so() {
        let health = Arc::new(Health::default());
        assert!(!health.readiness().ready);
        health.consuming();
        assert!(health.readiness().ready);
        let (one, other) = (health.part("store"), health.part("store"));
        one.down("refused\nhint: start it");
        other.down("refused");
        one.up();
        let readiness = health.readiness();
        assert!(!readiness.ready);
        assert_eq!(
            readiness.down,
            [Down {
                part: "store".into(),
                why: "refused".into()
            }]
        );
        drop(other);
        assert!(health.readiness().ready);
        health.draining();
        health.consuming();
        assert!(!health.readiness().ready);
    }

    #[test]
    fn a_pipeline_without_signs_of_life_is_stuck() {
        let health = Arc::new(Health::default());
        assert!(health.is_alive());
        let pulse = health.pulse();
        assert!(health.is_alive());
        let long_ago = Instant::now().checked_sub(PULSE_MAX).unwrap();
        health.lock().pulses.insert(pulse.number, long_ago);
        assert!(!health.is_alive());
        pulse.beat();
        assert!(health.is_alive());
    }
}
