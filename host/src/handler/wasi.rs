//! The closed WASI: what a component gets that brings imports of `wasi:` along, because its language's runtime asks for them.
//!
//! It is the 0.2 of `wasmtime-wasi` with everything shut. The clocks stand still at the moment at which the message was published: of
//! all that is known at a delivery's start, that is what every run of the message has in common. Random bytes come from the consumer
//! and the message's id. There is no environment, no file and no socket; what is written to the standard output and error becomes log
//! lines. A sleep waits for real, and counts for `limits.time`.
//!
//! **Invariant**: two runs of a message get the same of it, on whichever host, and neither reaches anything outside.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rand::TryRng;
use sha2::{Digest as _, Sha256};
use tracing::Level;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxView, WasiView};

use super::state::State;
use crate::message::{Instant, MessageId};

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

/// What the clocks show if the message does not tell when it was published: 2000-01-01T00:00:00Z. Some runtimes take 0 for broken.
const UNKNOWN: Duration = Duration::from_secs(946_684_800);
/// The most random bytes that one call gives.
const RANDOM_BYTES_MAX: u64 = 1 << 20;
/// The most streams, pollables and the like that the host holds for a call.
const RESOURCES_MAX: usize = 1_000;
/// A line of output that grows longer is cut into several.
const LINE_BYTES_MAX: usize = 8 << 10;
/// What is kept of the last that was written to the standard error.
const LAST_WORDS_BYTES: usize = 1 << 10;

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
        let clock = Frozen(published_at.and_then(since_1970).unwrap_or(UNKNOWN));
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
            output,
        }
    }

    /// Returns the whole lines that were written since the last call, each with its level, and how many were too much to be kept. At
    /// the `end` of the call what is left is a line, too.
    pub(super) fn take_lines(&self, end: bool) -> (Vec<(Level, String)>, u64) {
        let mut written = self.output.written();
        if end {
            written.end_lines();
        }
        let dropped = std::mem::take(&mut written.dropped);
        (std::mem::take(&mut written.lines), dropped)
    }

    /// Returns the last that was written to the standard error; a runtime that gives up says why there.
    pub(super) fn last_words(&self) -> Option<String> {
        let written = self.output.written();
        let text = String::from_utf8_lossy(&written.last_words);
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        // Made when it is first asked for: many components import it and never do.
        let wasi = self.wasi.get_or_insert_with(|| {
            let options = &self.options;
            Box::new(Wasi::new(
                &options.consumer,
                &self.message_id,
                self.published_at,
                options.limits.log_bytes,
            ))
        });
        WasiCtxView {
            ctx: &mut wasi.ctx,
            table: &mut wasi.table,
        }
    }
}

impl State {
    /// Has what was written to the standard output and error so far among the log lines.
    pub(super) fn log_output(&mut self, end: bool) {
        let Some(wasi) = &self.wasi else { return };
        let (lines, dropped) = wasi.take_lines(end);
        for (level, line) in lines {
            self.log.push(level, &line, &[]);
        }
        self.log.drop_lines(dropped);
    }

    /// Returns what a guest that gave up has said last: by the contract's log, or on its standard error.
    pub(super) fn last_words(&self) -> Option<String> {
        let logged = self.log.last_words().map(str::to_owned);
        logged.or_else(|| self.wasi.as_ref()?.last_words())
    }
}

fn since_1970(moment: Instant) -> Option<Duration> {
    let seconds = u64::try_from(moment.seconds).ok()?;
    Some(Duration::new(seconds, moment.nanoseconds.min(999_999_999)))
}

/// A clock that stands still.
#[derive(Clone, Copy)]
struct Frozen(Duration);

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

/// Random bytes that a message decides about: SHA-256 over what they are for, the consumer, the message's id and the number of the
/// block, each of the texts with its length in front. No library's generator: those change with its versions.
struct Seeded {
    seed: [u8; 32],
    block: u64,
    /// Of the block before.
    left: Vec<u8>,
}

impl Seeded {
    fn new(what: &str, consumer: &str, message_id: &MessageId) -> Self {
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

    fn number(mut self) -> u128 {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

/// What a call writes to its standard output and error.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Written>>);

#[derive(Default)]
struct Written {
    lines: Vec<(Level, String)>,
    /// Lines that have not ended yet.
    out: Vec<u8>,
    err: Vec<u8>,
    last_words: Vec<u8>,
    bytes: usize,
    bytes_max: usize,
    dropped: u64,
}

impl Output {
    fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Written {
            bytes_max,
            ..Written::default()
        })))
    }

    fn stream(&self, stream: Stream) -> OutputOf {
        OutputOf {
            output: self.clone(),
            stream,
        }
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        // Each change is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Written {
    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Err {
            self.last_words.extend_from_slice(bytes);
            let surplus = self.last_words.len().saturating_sub(LAST_WORDS_BYTES);
            self.last_words.drain(..surplus);
        }
        for byte in bytes {
            let line = self.line(stream);
            if *byte == b'\n' || line.len() >= LINE_BYTES_MAX {
                self.end_line(stream);
            }
            if *byte != b'\n' {
                self.line(stream).push(*byte);
            }
        }
    }

    fn line(&mut self, stream: Stream) -> &mut Vec<u8> {
        match stream {
            Stream::Out => &mut self.out,
            Stream::Err => &mut self.err,
        }
    }

    fn end_line(&mut self, stream: Stream) {
        let line = std::mem::take(self.line(stream));
        if self.bytes + line.len() > self.bytes_max {
            self.dropped += 1;
            return;
        }
        self.bytes += line.len();
        let level = match stream {
            Stream::Out => Level::INFO,
            Stream::Err => Level::WARN,
        };
        let line = String::from_utf8_lossy(&line).into_owned();
        self.lines.push((level, line));
    }

    fn end_lines(&mut self) {
        for stream in [Stream::Out, Stream::Err] {
            if !self.line(stream).is_empty() {
                self.end_line(stream);
            }
        }
    }
}

/// One of the two streams.
#[derive(Clone)]
struct OutputOf {
    output: Output,
    stream: Stream,
}

impl IsTerminal for OutputOf {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for OutputOf {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        // That of another WASI, which is not linked.
        Box::new(tokio::io::sink())
    }
}

#[async_trait::async_trait]
impl Pollable for OutputOf {
    async fn ready(&mut self) {}
}

impl OutputStream for OutputOf {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.output.written().write(self.stream, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(LINE_BYTES_MAX)
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

    #[test]
    fn output_is_cut_into_lines_and_bounded() {
        let output = Output::new(3 * LINE_BYTES_MAX);
        let write = |stream, bytes: &[u8]| output.written().write(stream, bytes);
        write(Stream::Out, b"one\ntw");
        write(Stream::Err, b"broken \xff\n");
        write(Stream::Out, b"o");
        let mut written = output.written();
        written.end_lines();
        let lines: Vec<(Level, &str)> = written
            .lines
            .iter()
            .map(|(level, line)| (*level, line.as_str()))
            .collect();
        assert_eq!(
            lines,
            [
                (Level::INFO, "one"),
                (Level::WARN, "broken \u{fffd}"),
                (Level::INFO, "two")
            ]
        );
        drop(written);
        // Without an end, and without bounds.
        write(Stream::Err, &vec![b'x'; 10 * LINE_BYTES_MAX]);
        let written = output.written();
        assert!(written.bytes <= 3 * LINE_BYTES_MAX);
        assert!(written.err.len() <= LINE_BYTES_MAX);
        assert!(written.dropped > 0);
        assert_eq!(written.last_words.len(), LAST_WORDS_BYTES);
    }
}
