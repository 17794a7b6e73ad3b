//! The comparison at start: the window of a handler's claims with what its source may deliver again.

use crate::config::{HandlerConfig, Late};
use crate::source::jetstream::Reach;
use crate::text::span;

/// A window of so many ack waits outlives redeliveries of what a dead host had in hand.
const ACK_WAITS: u32 = 10;

/// Writes what is wrong with the window to the log.
pub(super) fn warn(handler: &HandlerConfig, reach: &Reach) {
    for (problem, hint) in problems(handler, reach) {
        tracing::warn!(handler = %handler.name, problem, hint, "the window of `dedup` is shorter than what may come again");
    }
}

fn problems(handler: &HandlerConfig, reach: &Reach) -> Vec<(String, &'static str)> {
    let Some(window) = handler.dedup.window() else {
        return Vec::new();
    };
    let shown = span(window);
    let fate = match handler.late {
        Late::Park => {
            "a message that is delivered later becomes a dead letter of class `too-old`, also one that was never processed, \
             such as after an outage that was longer"
        }
        Late::Run => {
            "a message that is delivered later runs, a second time if it was processed (`late = \"run\"`)"
        }
    };
    let mut problems = Vec::new();
    if reach.max_age.is_none_or(|age| age > window) {
        let kept = reach
            .max_age
            .map_or_else(|| "for ever".to_owned(), |age| format!("for {}", span(age)));
        problems.push((
            format!(
                "claims are kept for {shown}, and the stream keeps messages {kept} (ack wait {}, duplicates dropped for {}): {fate}",
                span(reach.ack_wait),
                span(reach.duplicate_window)
            ),
            "raise `dedup`, or give the stream a `max_age` that is not longer",
        ));
    }
    if reach.ack_wait.saturating_mul(ACK_WAITS) > window {
        problems.push((
            format!(
                "claims are kept for {shown}, and what a dead host had in hand is delivered again after {} at the earliest, \
                 and as often as hosts die: {fate}",
                span(reach.ack_wait)
            ),
            "raise `dedup` to at least ten times the ack wait",
        ));
    }
    problems
}
