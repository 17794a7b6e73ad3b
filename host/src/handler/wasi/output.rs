//! The standard output and error of a guest: lines for the log.
//!
//! **Invariant**: what is kept of a call is bounded, whatever it writes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tracing::Level;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::handler::LOG_LINES_MAX;

/// A line of output that grows longer is cut into several.
const LINE_BYTES_MAX: usize = 8 << 10;
/// What is kept of the last that was written to the standard error.
const LAST_WORDS_BYTES: usize = 1 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// What a call writes to its standard output and error.
#[derive(Clone, Default)]
pub(super) struct Output(Arc<Mutex<Written>>);

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
    /// Makes it empty; `bytes_max` bounds the bytes that are kept of all lines together.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Written {
            bytes_max,
            ..Written::default()
        })))
    }

    pub(super) fn stream(&self, stream: Stream) -> OutputOf {
        OutputOf {
            output: self.clone(),
            stream,
        }
    }

    /// Returns the whole lines that were written since the last call, each with its level, and how many were too much to be kept. At
    /// the `end` of the call what is left is a line, too.
    pub(super) fn take_lines(&self, end: bool) -> (Vec<(Level, String)>, u64) {
        let mut written = self.written();
        if end {
            written.end_lines();
        }
        let dropped = std::mem::take(&mut written.dropped);
        (std::mem::take(&mut written.lines), dropped)
    }

    /// Returns the last that was written to the standard error; a runtime that gives up says why there.
    pub(super) fn last_words(&self) -> Option<String> {
        let written = self.written();
        let text = String::from_utf8_lossy(&written.last_words);
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
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
        // Empty lines have no bytes.
        if self.lines.len() >= LOG_LINES_MAX || self.bytes + line.len() > self.bytes_max {
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
pub(super) struct OutputOf {
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
        drop(written);

        let empty = Output::new(1);
        empty.written().write(Stream::Out, &vec![b'\n'; 1 << 20]);
        let (lines, dropped) = empty.take_lines(true);
        assert_eq!(lines.len(), LOG_LINES_MAX);
        assert_eq!(dropped, (1 << 20) - LOG_LINES_MAX as u64);
    }
}
