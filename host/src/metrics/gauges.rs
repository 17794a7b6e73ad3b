//! What is so now: counted where it begins and ends, or asked for from time to time.

use std::time::Instant;

use metrics::{Gauge, Histogram, counter, gauge, histogram};
use rustix::time::{ClockId, clock_gettime};

use super::{
    ANSWERED, BACKLOG, CLAIMS_BYTES, CLAIMS_ROWS, DEAD_LETTERS, IN_FLIGHT, OLDEST, OUTBOX_OLDEST,
    PARKED, PROCESS_CPU, PROCESS_FILES, PROCESS_MEMORY, SESSIONS, UNPUBLISHED,
};

/// One more of something, until it is dropped.
struct OneMore(Gauge);

impl OneMore {
    fn of(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for OneMore {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// The messages that a handler has in hand.
pub(crate) struct InHand {
    count: Gauge,
    answered: Histogram,
}

impl InHand {
    /// None yet.
    pub(crate) fn of(handler: &str) -> Self {
        let gauge = gauge!(IN_FLIGHT, "handler" => handler.to_owned());
        // So that an idle handler is told as 0.
        gauge.increment(0.0);
        Self {
            count: gauge,
            answered: histogram!(ANSWERED, "handler" => handler.to_owned()),
        }
    }

    /// One more comes in hand.
    pub(crate) fn one_more(&self) -> InFlight {
        InFlight {
            _counted: OneMore::of(self.count.clone()),
            since: Instant::now(),
            answered: self.answered.clone(),
        }
    }
}

/// A message in hand, until it is dropped.
pub(crate) struct InFlight {
    _counted: OneMore,
    since: Instant,
    answered: Histogram,
}

impl InFlight {
    /// Its acknowledgement is on its way.
    pub(crate) fn acknowledged(self) {
        self.answered.record(self.since.elapsed());
    }
}

/// An open session with the database, until it is dropped.
pub(crate) struct OpenSession {
    _counted: OneMore,
}

impl OpenSession {
    /// Counts a session by the first word of what it is for, of which there are few.
    pub(crate) fn begin(purpose: &str) -> Self {
        let purpose = purpose.split(' ').next().unwrap_or_default();
        Self {
            _counted: OneMore::of(gauge!(SESSIONS, "purpose" => purpose.to_owned())),
        }
    }
}

impl std::fmt::Debug for OpenSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OpenSession")
    }
}

/// What was asked about one handler. What could not be learned is told as NaN, never as the figure of an hour ago.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) backlog: Option<u64>,
    pub(crate) oldest_seconds: Option<f64>,
    pub(crate) dead_letters: Option<u64>,
    pub(crate) unpublished: Option<u64>,
    pub(crate) parked: Option<u64>,
    pub(crate) outbox_oldest_seconds: Option<f64>,
}

impl Asked {
    /// Tells it.
    pub(crate) fn tell(&self, handler: &str) {
        let count = |count: Option<u64>| count.map(|count| count as f64);
        for (name, value) in [
            (BACKLOG, count(self.backlog)),
            (OLDEST, self.oldest_seconds),
            (DEAD_LETTERS, count(self.dead_letters)),
            (UNPUBLISHED, count(self.unpublished)),
            (PARKED, count(self.parked)),
            (OUTBOX_OLDEST, self.outbox_oldest_seconds),
        ] {
            gauge!(name, "handler" => handler.to_owned()).set(value.unwrap_or(f64::NAN));
        }
    }
}

/// Tells the size of the claims table, if it could be learned.
pub(crate) fn claims_asked(size: Option<(u64, u64)>) {
    let (rows, bytes) = size.map_or((f64::NAN, f64::NAN), |(rows, bytes)| {
        (rows as f64, bytes as f64)
    });
    gauge!(CLAIMS_ROWS).set(rows);
    gauge!(CLAIMS_BYTES).set(bytes);
}

/// Asks the system about this process. Call it before what is measured is told. What the system does not say is not told.
pub(crate) fn measure_process() {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    counter!(PROCESS_CPU).absolute(cpu.tv_sec.unsigned_abs());
    let resident = std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.trim().strip_suffix(" kB")?.parse::<f64>().ok()
        });
    if let Some(kibibytes) = resident {
        gauge!(PROCESS_MEMORY).set(kibibytes * 1024.0);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        // One of them is the folder itself.
        gauge!(PROCESS_FILES).set(files.count().saturating_sub(1) as f64);
    }
}
