//! The closed WASI: what a component gets that brings imports of `wasi:` along, because its language's runtime asks for them.
//!
//! It is the 0.2 of `wasmtime-wasi` with everything shut. The clocks stand still at the moment at which the message was published: of
//! all that is known at a delivery's start, that is what every run of the message has in common. Random bytes come from the consumer
//! and the message's id. There is no environment, no file and no socket; what is written to the standard output and error becomes log
//! lines. A sleep ends at once: timers that went by the host's clock could be asked in turn with work, and so tell the time.
//!
//! **Invariant**: two runs of a message get the same of it, on whichever host, and neither reaches anything outside.

mod given;
mod output;

use wasmtime::component::{HasData, Linker, ResourceTable};
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use super::HANDLES_MAX;
use super::state::State;
use crate::message::{Instant, MessageId};
use given::{Frozen, Seeded, StandingClock};
use output::{Output, Stream};

/// The interfaces of WASI 0.2 that a component may import.
pub(super) const WASI_INTERFACES: [&str; 27] = [
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:filesystem/preopens",
    "wasi:filesystem/types",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
    "wasi:sockets/instance-network",
    "wasi:sockets/ip-name-lookup",
    "wasi:sockets/network",
    "wasi:sockets/tcp",
    "wasi:sockets/tcp-create-socket",
    "wasi:sockets/udp",
    "wasi:sockets/udp-create-socket",
];

/// The most random bytes that one call gives.
const RANDOM_BYTES_MAX: u64 = 1 << 20;
/// The most that the host holds for a call. What a guest can wait for has what it waits for beside it, so this is met after the handles.
const RESOURCES_MAX: usize = 3 * HANDLES_MAX;

/// True if `import` is of WASI, of whichever version.
pub(super) fn is_wasi(import: &str) -> bool {
    import.starts_with("wasi:")
}

/// True if the closed WASI has an interface of that name in a version that fits.
pub(super) fn is_granted(import: &str) -> bool {
    import.split_once('@').is_some_and(|(name, version)| {
        let patch = version.strip_prefix("0.2.");
        WASI_INTERFACES.contains(&name)
            && patch.is_some_and(|patch| {
                !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit())
            })
    })
}

/// One call's share of the closed WASI.
pub(super) struct Wasi {
    ctx: WasiCtx,
    table: ResourceTable,
    clock: Frozen,
    output: Output,
}

impl Wasi {
    /// Makes it for the run of a message; `output_bytes` bounds what is kept of its output.
    pub(super) fn new(
        consumer: &str,
        message_id: &MessageId,
        published_at: Option<Instant>,
        output_bytes: usize,
    ) -> Self {
        let seeded = |what| Seeded::new(what, consumer, message_id);
        let clock = Frozen::at(published_at);
        let output = Output::new(output_bytes);
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES_MAX);
        let mut builder = WasiCtx::builder();
        builder
            .wall_clock(clock)
            .monotonic_clock(clock)
            .secure_random(seeded("random"))
            .insecure_random(seeded("insecure"))
            .insecure_random_seed(seeded("insecure-seed").number())
            .max_random_size(RANDOM_BYTES_MAX)
            .stdout(output.stream(Stream::Out))
            .stderr(output.stream(Stream::Err))
            // As they are if nothing is said; said, so that it stays so.
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false);
        Self {
            ctx: builder.build(),
            table,
            clock,
            output,
        }
    }
}

/// Adds the closed WASI to what links components.
///
/// # Errors
/// A name is taken already.
pub(super) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    // Its timers wait for real.
    linker.allow_shadowing(true);
    monotonic_clock::add_to_linker::<State, StandingClocks>(linker, |state| {
        let wasi = state.wasi();
        StandingClock {
            clock: wasi.clock,
            table: &mut wasi.table,
        }
    })?;
    linker.allow_shadowing(false);
    Ok(())
}

/// How the linker is told of [`StandingClock`].
struct StandingClocks;

impl HasData for StandingClocks {
    type Data<'a> = StandingClock<'a>;
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let wasi = self.wasi();
        WasiCtxView {
            ctx: &mut wasi.ctx,
            table: &mut wasi.table,
        }
    }
}

impl State {
    /// Returns the call's share, made when it is first asked for: many components import WASI and never use it.
    fn wasi(&mut self) -> &mut Wasi {
        self.wasi.get_or_insert_with(|| {
            let options = &self.options;
            // A call has at least one message; of a batch, the first decides.
            let message_id = &self.message_ids[0];
            Box::new(Wasi::new(
                &options.consumer,
                message_id,
                self.published_at,
                options.limits.log_bytes,
            ))
        })
    }

    /// Has what was written to the standard output and error so far among the log lines.
    pub(super) fn log_output(&mut self, end: bool) {
        let Some(wasi) = &self.wasi else { return };
        let (lines, dropped) = wasi.output.take_lines(end);
        for (level, line) in lines {
            self.log.push(None, level, &line, &[]);
        }
        self.log.drop_lines(dropped);
    }

    /// Returns what a guest that gave up has said last: by the contract's log, or on its standard error.
    pub(super) fn last_words(&self) -> Option<String> {
        let logged = self.log.last_words().map(str::to_owned);
        logged.or_else(|| self.wasi.as_ref()?.output.last_words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_granted_has_a_name_and_a_version_of_it() {
        assert!(is_granted("wasi:cli/stdout@0.2.0"));
        assert!(is_granted("wasi:random/random@0.2.12"));
        for other in [
            "wasi:cli/stdout",
            "wasi:cli/stdout@0.3.0",
            "wasi:cli/stdout@0.2.0-rc",
            "wasi:http/types@0.2.0",
            "wasi:cli@0.2.0",
        ] {
            assert!(!is_granted(other), "{other}");
        }
    }
}
