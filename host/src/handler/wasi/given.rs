//! What a guest is given of the closed WASI that could differ from run to run: time and random bytes.
//!
//! **Invariant**: all of it follows from the message, the consumer and the calls that the guest has made before.

use std::time::Duration;

use rand::TryRng;
use sha2::{Digest as _, Sha256};
use wasmtime::component::{Resource, ResourceTable};
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock};

use crate::message::{Instant, MessageId};

/// What the clocks show if the message does not tell when it was published: 2000-01-01T00:00:00Z. Some runtimes take 0 for broken.
const UNKNOWN: Duration = Duration::from_secs(946_684_800);

/// A clock that stands still, by the time since 1970.
#[derive(Clone, Copy)]
pub(super) struct Frozen(Duration);

impl Frozen {
    /// Makes one that shows when a message was published.
    pub(super) fn at(published_at: Option<Instant>) -> Self {
        Self(published_at.and_then(since_1970).unwrap_or(UNKNOWN))
    }
}

impl HostWallClock for Frozen {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn now(&self) -> Duration {
        self.0
    }
}

impl HostMonotonicClock for Frozen {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

fn since_1970(moment: Instant) -> Option<Duration> {
    let seconds = u64::try_from(moment.seconds).ok()?;
    Some(Duration::new(seconds, moment.nanoseconds.min(999_999_999)))
}

/// `wasi:clocks/monotonic-clock` of a clock that stands still: whoever waits for it is woken at once.
pub(super) struct StandingClock<'a> {
    pub(super) clock: Frozen,
    pub(super) table: &'a mut ResourceTable,
}

impl monotonic_clock::Host for StandingClock<'_> {
    fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(HostMonotonicClock::now(&self.clock))
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        Ok(HostMonotonicClock::resolution(&self.clock))
    }

    fn subscribe_instant(&mut self, _when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        self.over()
    }

    fn subscribe_duration(&mut self, _duration: u64) -> wasmtime::Result<Resource<DynPollable>> {
        self.over()
    }
}

impl StandingClock<'_> {
    fn over(&mut self) -> wasmtime::Result<Resource<DynPollable>> {
        let over = self.table.push(Over)?;
        subscribe(self.table, over)
    }
}

/// A wait that has ended.
struct Over;

#[async_trait::async_trait]
impl Pollable for Over {
    async fn ready(&mut self) {}
}

/// Random bytes that a message decides about: SHA-256 over what they are for, the consumer, the message's id and the number of the
/// block, each of the texts with its length in front. No library's generator: those change with its versions.
pub(super) struct Seeded {
    seed: [u8; 32],
    block: u64,
    /// Of the block before.
    left: Vec<u8>,
}

impl Seeded {
    pub(super) fn new(what: &str, consumer: &str, message_id: &MessageId) -> Self {
        let mut hasher = Sha256::new();
        for text in [what, consumer, message_id.as_str()] {
            hasher.update((text.len() as u64).to_be_bytes());
            hasher.update(text);
        }
        Self {
            seed: hasher.finalize().into(),
            block: 0,
            left: Vec::new(),
        }
    }

    fn take<const BYTES: usize>(&mut self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        self.fill(&mut bytes);
        bytes
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            if self.left.is_empty() {
                let mut hasher = Sha256::new();
                hasher.update(self.seed);
                hasher.update(self.block.to_be_bytes());
                self.block += 1;
                self.left = hasher.finalize().to_vec();
            }
            *byte = self.left.pop().unwrap_or_default();
        }
    }

    /// Returns the first 16 bytes as a number, big-endian.
    pub(super) fn number(mut self) -> u128 {
        u128::from_be_bytes(self.take())
    }
}

impl TryRng for Seeded {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        Ok(u32::from_be_bytes(self.take()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok(u64::from_be_bytes(self.take()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        self.fill(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was given once is given for ever: a message may run again on a later version.
    #[test]
    fn random_bytes_are_the_messages_own() {
        let bytes = |what: &str, consumer: &str, id: &str| {
            let id = MessageId::new(id).unwrap();
            Seeded::new(what, consumer, &id).take::<40>()
        };
        let first = bytes("random", "credit", "m1");
        assert_eq!(first, bytes("random", "credit", "m1"));
        let hex: String = first[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, RECORDED);
        // What one text ends with is not what the next begins with.
        for (what, consumer, id) in [
            ("random", "credit", "m2"),
            ("random", "creditm", "1"),
            ("insecure", "credit", "m1"),
        ] {
            assert_ne!(first, bytes(what, consumer, id));
        }
        // Blocks differ.
        assert_ne!(first[..8], first[32..]);
    }

    const RECORDED: &str = "e4c683abe38e20a7";
}
