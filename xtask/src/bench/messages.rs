//! The messages, and what they add up to.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// How many accounts there are: few enough that messages in work meet on them.
pub(super) const ACCOUNTS: usize = 1_000;
const AMOUNT_MAX: i64 = 1_000;

/// The name of an account.
pub(super) fn account(number: usize) -> String {
    format!("a{number}")
}

/// Amounts for accounts, in the order of sending.
#[derive(Debug)]
pub(super) struct Messages(Vec<(usize, i64)>);

impl Messages {
    /// Draws `count` messages.
    pub(super) fn draw(count: u32, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        Self(
            (0..count)
                .map(|_| {
                    let account = random.random_range(0..ACCOUNTS);
                    (account, random.random_range(-AMOUNT_MAX..=AMOUNT_MAX))
                })
                .collect(),
        )
    }

    /// How many they are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns them as lines for `hapax send --envelope`.
    pub(super) fn lines(&self) -> String {
        let mut lines = String::new();
        for (number, (account_number, amount)) in self.0.iter().enumerate() {
            let account = account(*account_number);
            // Writing to a text cannot fail.
            let _ = writeln!(
                lines,
                r#"{{"id":"m{number}","subject":"bench.credit","payload":{{"account":"{account}","amount":{amount}}}}}"#
            );
        }
        lines
    }

    /// Returns the first account whose balance is not the sum of its amounts: its name, the balance, the sum.
    pub(super) fn first_difference(
        &self,
        balances: &BTreeMap<String, i64>,
    ) -> Option<(String, i64, i64)> {
        let mut sums = vec![0; ACCOUNTS];
        for (account, amount) in &self.0 {
            sums[*account] += amount;
        }
        sums.into_iter().enumerate().find_map(|(number, expected)| {
            let account = account(number);
            let found = balances.get(&account).copied().unwrap_or_default();
            (found != expected).then_some((account, found, expected))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_the_messages() {
        let lines = |seed| Messages::draw(50, seed).lines();
        assert_eq!(lines(7), lines(7));
        assert_ne!(lines(7), lines(8));
        for line in lines(7).lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(line["payload"]["amount"].is_i64(), "{line}");
        }
    }

    #[test]
    fn a_wrong_balance_is_found() {
        let messages = Messages(vec![(3, 5), (4, 1), (3, -2)]);
        let mut balances = BTreeMap::from([(account(3), 3), (account(4), 1)]);
        assert_eq!(messages.first_difference(&balances), None);
        balances.insert(account(4), 2);
        assert_eq!(
            messages.first_difference(&balances),
            Some((account(4), 2, 1))
        );
    }
}
