//! What a host says of itself at `/metrics` while it runs.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The name of the histogram of times from delivery to acknowledgement.
const DURATIONS: &str = "hapax_message_duration_seconds_bucket{";
/// How often it is asked: the last answer is to have nearly all messages.
const INTERVAL: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_secs(2);

/// Asks until `is_over`, and returns the last answer, if there was one.
pub(super) fn last(address: SocketAddr, is_over: &AtomicBool) -> Option<String> {
    let mut last = None;
    while !is_over.load(Ordering::SeqCst) {
        // Before it listens, and while it ends, nobody answers.
        if let Ok(text) = ask(address) {
            last = Some(text);
        }
        std::thread::sleep(INTERVAL);
    }
    last
}

fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if !answer.contains(" 200 OK") {
        return Err(std::io::Error::other("not served"));
    }
    Ok(answer)
}

/// Returns the time in milliseconds that a share of `quantile` of the messages of all handlers did not exceed, within the bounds of the
/// histogram; nothing if it has no message.
pub(super) fn quantile_ms(metrics: &str, quantile: f64) -> Option<f64> {
    // By upper bound; bounds are not negative, so their bits are in their order.
    let mut buckets: BTreeMap<u64, f64> = BTreeMap::new();
    for line in metrics
        .lines()
        .filter_map(|line| line.strip_prefix(DURATIONS))
    {
        let (labels, count) = line.rsplit_once("} ")?;
        let (_, bound) = labels.rsplit_once("le=\"")?;
        let bound: f64 = bound
            .trim_end_matches('"')
            .replace("+Inf", "inf")
            .parse()
            .ok()?;
        *buckets.entry(bound.to_bits()).or_default() += count.parse::<f64>().ok()?;
    }
    let total = buckets.values().copied().fold(0.0, f64::max);
    if total == 0.0 {
        return None;
    }
    let rank = total * quantile;
    let (mut lower, mut below) = (0.0, 0.0);
    for (bits, count) in buckets {
        let bound = f64::from_bits(bits);
        if count >= rank {
            let upper = if bound.is_finite() { bound } else { lower };
            let share = (rank - below) / (count - below).max(1.0);
            return Some((lower + (upper - lower) * share) * 1000.0);
        }
        (lower, below) = (bound, count);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let text = "# TYPE x histogram\n\
            hapax_message_duration_seconds_bucket{handler=\"a\",le=\"0.001\"} 10\n\
            hapax_message_duration_seconds_bucket{handler=\"a\",le=\"0.002\"} 40\n\
            hapax_message_duration_seconds_bucket{handler=\"a\",le=\"0.01\"} 49\n\
            hapax_message_duration_seconds_bucket{handler=\"a\",le=\"+Inf\"} 50\n\
            hapax_message_duration_seconds_bucket{handler=\"b\",le=\"0.001\"} 10\n\
            hapax_message_duration_seconds_bucket{handler=\"b\",le=\"0.002\"} 40\n\
            hapax_message_duration_seconds_bucket{handler=\"b\",le=\"0.01\"} 49\n\
            hapax_message_duration_seconds_bucket{handler=\"b\",le=\"+Inf\"} 50\n\
            hapax_stage_duration_seconds_bucket{handler=\"a\",le=\"0.001\"} 90\n";
        assert_eq!(quantile_ms(text, 0.5), Some(1.5));
        assert_eq!(quantile_ms(text, 0.1), Some(0.5));
        // Beyond the last bound nothing is known.
        assert_eq!(quantile_ms(text, 1.0), Some(10.0));
        assert_eq!(quantile_ms("", 0.5), None);
    }
}
