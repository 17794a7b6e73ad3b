//! How long messages take.

use std::time::Duration;

/// The times from a message's delivery to its acknowledgement.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn add(&mut self, took: Duration) {
        self.0.push(took);
    }

    /// Returns the time that a share of `quantile` did not exceed, in milliseconds; 0 if there were none.
    pub(crate) fn quantile_ms(&self, quantile: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort();
        let last = sorted.len().saturating_sub(1);
        let index = (last as f64 * quantile).round() as usize;
        sorted
            .get(index)
            .map_or(0.0, |took| took.as_secs_f64() * 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_came() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile_ms(0.5), 0.0);
        for milliseconds in (1..=101).rev() {
            latencies.add(Duration::from_millis(milliseconds));
        }
        assert_eq!(latencies.quantile_ms(0.5), 51.0);
        assert_eq!(latencies.quantile_ms(0.99), 100.0);
    }
}
