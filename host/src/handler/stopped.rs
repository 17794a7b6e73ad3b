//! What the end of a call means: the handler's own answer, or what stopped it.

use std::time::Duration;

use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace};

use super::bindings::Failure;
use super::call::{HANDLES_MAX, RETRY_DELAY_MAX};
use super::engine::{HOST_CALL_BYTES_EXHAUSTED, causes};
use super::state::{Limiter, Refused};
use super::watch::Broken;
use super::{Limits, Verdict, text};
use crate::store::Misled;

/// What it says at `set_max_component_handles`.
const HANDLES_EXHAUSTED: &str = "store handle limit exceeded";

const REASON_BYTES_MAX: usize = 16 << 10;
const FRAMES_MAX: usize = 20;
const FRAME_BYTES_MAX: usize = 300;

/// A call that ended without the handler's answer.
pub(super) struct Stopped {
    pub(super) error: wasmtime::Error,
    pub(super) instantiating: bool,
}

/// Tells apart what the guest did, which of its limits it met, and what went wrong on our side.
pub(super) fn classify(
    stopped: &Stopped,
    limits: &Limits,
    limiter: &Limiter,
    last_words: Option<&str>,
) -> Verdict {
    let error = &stopped.error;
    if error.is::<Broken>() {
        return Verdict::Host {
            text: Broken.to_string(),
        };
    }
    if let Some(misled) = error.downcast_ref::<Misled>() {
        return Verdict::Host {
            text: misled.to_string(),
        };
    }
    let trap = error.downcast_ref::<Trap>();
    // Only the epoch callback interrupts.
    if trap == Some(&Trap::Interrupt) {
        return Verdict::Limit {
            limit: "cpu",
            text: with_backtrace(
                format!(
                    "the handler's code ran longer than {:?} (`limits.cpu`)",
                    limits.cpu
                ),
                error,
            ),
        };
    }
    if error.is::<PoolConcurrencyLimitError>() {
        return Verdict::Host {
            text: causes(error),
        };
    }
    if let Some(refused) = limiter.refused() {
        let (limit, refused) = match refused {
            Refused::Memory(bytes) => (
                "memory",
                format!(
                    "the memory would have grown to {}, beyond {} (`limits.memory`)",
                    text::bytes(bytes),
                    text::bytes(limits.memory_bytes)
                ),
            ),
            Refused::Table(elements) => (
                "table",
                format!(
                    "a table would have grown to {elements} elements, beyond {} (`limits.table`)",
                    limits.table_elements
                ),
            ),
        };
        return Verdict::Limit {
            limit,
            text: trap_text(
                format!("{refused}; then: {}", causes(error)),
                error,
                last_words,
            ),
        };
    }
    // An instance that could not be made, for another reason than what it is, is the host's failure: no memory, say.
    let causes = causes(error);
    // wasmtime has no types for these two.
    let met = if causes.contains(HOST_CALL_BYTES_EXHAUSTED) {
        Some((
            "call",
            format!(
                "it handed more than {} to the host in one call (`limits.call`)",
                text::bytes(limits.call_bytes)
            ),
        ))
    } else if causes.contains(HANDLES_EXHAUSTED) {
        Some((
            "handles",
            format!("it held more than {HANDLES_MAX} resource handles"),
        ))
    } else {
        None
    };
    if let Some((limit, text)) = met {
        return Verdict::Limit {
            limit,
            text: trap_text(text, error, last_words),
        };
    }
    // With frames of the guest's own it was a start function that failed.
    let is_guests = trap.is_some() || error.is::<WasmBacktrace>();
    if stopped.instantiating && !is_guests && !causes.contains("resource limit exceeded") {
        return Verdict::Host { text: causes };
    }
    Verdict::Trap {
        text: trap_text(causes, error, last_words),
    }
}

/// Returns what a handler said of a message.
pub(super) fn lift_result(result: Result<(), Failure>) -> Verdict {
    match result {
        Ok(()) => Verdict::Ok,
        Err(failure) => lift_failure(failure),
    }
}

fn lift_failure(failure: Failure) -> Verdict {
    match failure {
        Failure::Retry(retry) => Verdict::Retry {
            reason: text::bounded(&retry.reason, REASON_BYTES_MAX),
            delay: retry
                .delay_milliseconds
                .map(|milliseconds| Duration::from_millis(milliseconds).min(RETRY_DELAY_MAX)),
        },
        Failure::Reject(reason) => Verdict::Reject {
            reason: text::bounded(&reason, REASON_BYTES_MAX),
        },
    }
}

/// Puts together what is known of a trap: what stopped it, the guest's own last words, and where it was.
fn trap_text(what: String, error: &wasmtime::Error, last_words: Option<&str>) -> String {
    let text = match last_words {
        None => what,
        Some(words) => format!("{words}\n{what}"),
    };
    with_backtrace(text, error)
}

fn with_backtrace(mut text: String, error: &wasmtime::Error) -> String {
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else {
        return text;
    };
    let frames = backtrace.frames();
    let mut shown = 0;
    let mut rest = frames;
    while let Some(frame) = rest.first()
        && shown < FRAMES_MAX
    {
        // A recursion is one line.
        let same = rest
            .iter()
            .take_while(|other| {
                other.func_index() == frame.func_index() && other.func_name() == frame.func_name()
            })
            .count();
        let function = match frame.func_name() {
            // Without the hash of its crate.
            Some(name) => text::one_line(
                &format!("{:#}", rustc_demangle::demangle(name)),
                FRAME_BYTES_MAX,
            ),
            None => format!("function {}", frame.func_index()),
        };
        text.push_str("\n  at ");
        text.push_str(&function);
        if same > 1 {
            text.push_str(&format!(" ({same} times)"));
        }
        shown += 1;
        rest = &rest[same..];
    }
    if !rest.is_empty() {
        text.push_str(&format!("\n  and {} more", rest.len()));
    }
    text
}
