//! W3C Trace Context: what the headers of a message say of the trace that it belongs to, and the headers that say it.
//!
//! Source: <https://www.w3.org/TR/trace-context/>. The library's own reader takes numbers of any length, so this one reads by the letter.

use std::str::FromStr as _;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

use crate::message::Header;

/// Names the trace and the span that caused the message.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// What vendors add; it means nothing without the other.
pub(crate) const TRACESTATE: &str = "tracestate";

/// The length of version 00.
const LENGTH: usize = 55;

/// Returns the span that the headers name as the message's cause. `None` if there is none, more than one, or one that is not well-formed.
pub(crate) fn incoming(headers: &[Header]) -> Option<SpanContext> {
    let mut found = headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case(TRACEPARENT));
    let (Some(header), None) = (found.next(), found.next()) else {
        return None;
    };
    let (trace_id, span_id, flags) = parse(std::str::from_utf8(&header.value).ok()?)?;
    Some(SpanContext::new(
        trace_id,
        span_id,
        flags,
        true,
        state(headers),
    ))
}

/// Returns the trace that the headers name, if they name one.
pub(crate) fn trace_id(headers: &[Header]) -> Option<TraceId> {
    incoming(headers).map(|context| context.trace_id())
}

/// Returns the headers that name `context` as a message's cause.
pub(crate) fn outgoing(context: &SpanContext) -> Vec<Header> {
    let header = |name: &str, value: String| Header {
        name: name.to_owned(),
        value: value.into(),
    };
    let parent = format!(
        "00-{}-{}-{:02x}",
        context.trace_id(),
        context.span_id(),
        context.trace_flags() & TraceFlags::SAMPLED
    );
    let mut headers = vec![header(TRACEPARENT, parent)];
    let state = context.trace_state().header();
    if !state.is_empty() {
        headers.push(header(TRACESTATE, state));
    }
    headers
}

/// Returns the headers of a message that name its cause, as they are.
pub(crate) fn of_message(headers: &[Header]) -> Vec<Header> {
    let is = |header: &Header, name: &str| header.name.eq_ignore_ascii_case(name);
    let mut found: Vec<Header> = headers
        .iter()
        .filter(|header| is(header, TRACEPARENT))
        .take(1)
        .cloned()
        .collect();
    if !found.is_empty() {
        found.extend(
            headers
                .iter()
                .filter(|header| is(header, TRACESTATE))
                .cloned(),
        );
    }
    found
}

/// Adds `cause`, the headers that name a cause, to a published message's `headers`, unless the handler named one itself.
pub(crate) fn caused_by(mut headers: Vec<Header>, cause: &[Header]) -> Vec<Header> {
    if headers
        .iter()
        .any(|header| header.name.eq_ignore_ascii_case(TRACEPARENT))
    {
        return headers;
    }
    if !cause.is_empty() {
        // A state belongs to its parent.
        headers.retain(|header| !header.name.eq_ignore_ascii_case(TRACESTATE));
        headers.extend_from_slice(cause);
    }
    headers
}

fn parse(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let text = text.trim_matches([' ', '\t']);
    let is_hex = |text: &str| {
        text.bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let (known, more) = text.split_at_checked(LENGTH)?;
    let mut fields = known.split('-');
    let fields: [&str; 4] = std::array::from_fn(|_| fields.next().unwrap_or_default());
    let [version, trace_id, span_id, flags] = fields;
    let lengths = fields.map(str::len);
    // A later version may add to it.
    if lengths != [2, 32, 16, 2]
        || !fields.iter().all(|field| is_hex(field))
        || version == "ff"
        || (version == "00" && !more.is_empty())
        || (!more.is_empty() && !more.starts_with('-'))
    {
        return None;
    }
    let trace_id = TraceId::from_hex(trace_id).ok()?;
    let span_id = SpanId::from_hex(span_id).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    (trace_id != TraceId::INVALID && span_id != SpanId::INVALID)
        .then_some((trace_id, span_id, flags))
}

/// Returns the state of all headers of that name together; an empty one if it is not well-formed, as the recommendation says.
fn state(headers: &[Header]) -> TraceState {
    let parts: Vec<&str> = headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case(TRACESTATE))
        .filter_map(|header| std::str::from_utf8(&header.value).ok())
        .collect();
    if parts.is_empty() {
        return TraceState::default();
    }
    TraceState::from_str(&parts.join(",")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn header(name: &str, value: &str) -> Header {
        Header {
            name: name.to_owned(),
            value: bytes::Bytes::copy_from_slice(value.as_bytes()),
        }
    }

    #[test]
    fn what_is_well_formed_is_read() {
        let table = [
            (PARENT, true),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
                false,
            ),
            // Flags that are not known, and a later version that adds to it.
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03",
                true,
            ),
            (
                "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
                true,
            ),
            (
                " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00\t",
                false,
            ),
        ];
        for (text, sampled) in table {
            let context = incoming(&[header("TraceParent", text)]).unwrap();
            assert_eq!(
                context.trace_id().to_string(),
                "4bf92f3577b34da6a3ce929d0e0e4736",
                "{text}"
            );
            assert_eq!(context.span_id().to_string(), "00f067aa0ba902b7", "{text}");
            assert_eq!(context.is_sampled(), sampled, "{text}");
            assert!(context.is_remote());
        }
    }

    #[test]
    fn what_is_not_well_formed_is_no_trace() {
        for text in [
            "",
            "00",
            "00-a-b-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-010",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0ä",
        ] {
            assert_eq!(incoming(&[header("traceparent", text)]), None, "{text}");
        }
        let twice = [header("traceparent", PARENT), header("Traceparent", PARENT)];
        assert_eq!(incoming(&twice), None);
        let bytes = Header {
            name: "traceparent".into(),
            value: bytes::Bytes::from_static(&[0xff; 55]),
        };
        assert_eq!(incoming(&[bytes]), None);
    }

    #[test]
    fn the_state_goes_with_the_parent() {
        let context = incoming(&[
            header("tracestate", "a=1, b=2"),
            header("traceparent", PARENT),
            header("tracestate", "c=3"),
        ])
        .unwrap();
        assert_eq!(context.trace_state().header(), "a=1,b=2,c=3");
        assert_eq!(
            outgoing(&context),
            [
                header("traceparent", PARENT),
                header("tracestate", "a=1,b=2,c=3")
            ]
        );
        // One that is damaged is dropped, and the parent counts.
        let context =
            incoming(&[header("tracestate", "??"), header("traceparent", PARENT)]).unwrap();
        assert_eq!(outgoing(&context), [header("traceparent", PARENT)]);
    }

    #[test]
    fn a_cause_goes_on_unless_the_handler_gives_one() {
        let cause = of_message(&[
            header("tracestate", "a=1"),
            header("x", "y"),
            header("Traceparent", PARENT),
        ]);
        assert_eq!(
            cause,
            [header("Traceparent", PARENT), header("tracestate", "a=1")]
        );
        assert_eq!(of_message(&[header("tracestate", "a=1")]), []);
        let passed = caused_by(vec![header("x", "y"), header("tracestate", "b=2")], &cause);
        assert_eq!(
            passed,
            [
                header("x", "y"),
                header("Traceparent", PARENT),
                header("tracestate", "a=1")
            ]
        );
        let own = vec![header("traceparent", "00-c-d-01")];
        assert_eq!(caused_by(own.clone(), &cause), own);
        let state = vec![header("tracestate", "b=2")];
        assert_eq!(caused_by(state.clone(), &[]), state);
    }
}
