//! The messages, and what they add up to.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rand::distr::Distribution as _;
use rand::distr::weighted::WeightedIndex;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

const AMOUNT_MAX: i64 = 1_000;
/// An account that does not exist: the handler rejects its messages.
const NOBODY: &str = "nobody";

/// The name of an account.
pub(super) fn account(number: usize) -> String {
    format!("a{number}")
}

/// Which accounts messages are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Keys {
    /// Any of so many, each as often as another.
    Uniform(usize),
    /// Any of so many, the n-th with a weight of n to the power of -1.1.
    Zipf(usize),
    /// Always the same one.
    OneHot,
}

impl Keys {
    /// How many accounts there are.
    pub(super) fn accounts(self) -> usize {
        match self {
            Self::Uniform(accounts) | Self::Zipf(accounts) => accounts,
            Self::OneHot => 1,
        }
    }
}

impl std::fmt::Display for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uniform(accounts) => write!(f, "uniform-{accounts}"),
            Self::Zipf(accounts) => write!(f, "zipf-1.1-{accounts}"),
            Self::OneHot => f.write_str("one-hot"),
        }
    }
}

/// What messages are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Load {
    pub(super) keys: Keys,
    /// Messages of a thousand that are for an account that does not exist.
    pub(super) rejects: u32,
}

/// Accounts and amounts in the order of sending; without an account it is to be rejected.
#[derive(Debug)]
pub(super) struct Messages {
    accounts: usize,
    drawn: Vec<(Option<usize>, i64)>,
}

impl Messages {
    /// Draws `count` messages.
    pub(super) fn draw(count: u32, load: Load, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let accounts = load.keys.accounts();
        let weighted = match load.keys {
            Keys::Zipf(accounts) => {
                WeightedIndex::new((1..=accounts).map(|rank| (rank as f64).powf(-1.1))).ok()
            }
            Keys::Uniform(_) | Keys::OneHot => None,
        };
        let drawn = (0..count)
            .map(|_| {
                let account = match &weighted {
                    Some(weighted) => weighted.sample(&mut random),
                    None => random.random_range(0..accounts),
                };
                let is_rejected = random.random_range(0..1_000) < load.rejects;
                let amount = random.random_range(-AMOUNT_MAX..=AMOUNT_MAX);
                ((!is_rejected).then_some(account), amount)
            })
            .collect();
        Self { accounts, drawn }
    }

    /// How many accounts there are.
    pub(super) fn accounts(&self) -> usize {
        self.accounts
    }

    /// How many of them are to be rejected.
    pub(super) fn rejects(&self) -> usize {
        self.drawn
            .iter()
            .filter(|(account, _)| account.is_none())
            .count()
    }

    /// How many they are.
    pub(super) fn count(&self) -> usize {
        self.drawn.len()
    }

    /// The id of the message `number`.
    pub(super) fn id(number: usize) -> String {
        format!("m{number}")
    }

    /// Returns the JSON of each message, in their order.
    pub(super) fn payloads(&self) -> impl Iterator<Item = String> + '_ {
        self.drawn.iter().map(|(to, amount)| {
            let account = to.map_or_else(|| NOBODY.to_owned(), account);
            format!(r#"{{"account":"{account}","amount":{amount}}}"#)
        })
    }

    /// Returns them as lines for `hapax send --envelope`.
    pub(super) fn lines(&self, subject: &str) -> String {
        let mut lines = String::new();
        for (number, payload) in self.payloads().enumerate() {
            let id = Self::id(number);
            // Writing to a text cannot fail.
            let _ = writeln!(
                lines,
                r#"{{"id":"{id}","subject":"{subject}","payload":{payload}}}"#
            );
        }
        lines
    }

    /// Returns the first account whose balance is not the sum of its amounts, in the first `count` messages and in those of the
    /// numbers `again`: its name, the balance, the sum.
    pub(super) fn first_difference(
        &self,
        balances: &BTreeMap<String, i64>,
        count: usize,
        again: &[usize],
    ) -> Option<(String, i64, i64)> {
        let mut sums = vec![0; self.accounts];
        let again = again.iter().filter_map(|number| self.drawn.get(*number));
        for (account, amount) in self.drawn.iter().take(count).chain(again) {
            if let Some(account) = account {
                sums[*account] += amount;
            }
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

    const FEW: Load = Load {
        keys: Keys::Uniform(10),
        rejects: 100,
    };

    #[test]
    fn the_seed_decides_the_messages() {
        let lines = |seed| Messages::draw(50, FEW, seed).lines("a.b");
        assert_eq!(lines(7), lines(7));
        assert_ne!(lines(7), lines(8));
        for line in lines(7).lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(line["payload"]["amount"].is_i64(), "{line}");
            assert_eq!(line["subject"], "a.b");
        }
    }

    #[test]
    fn keys_are_drawn_as_the_load_says() {
        let most_frequent = |keys| {
            let messages = Messages::draw(10_000, Load { keys, rejects: 0 }, 1);
            let mut counts = vec![0; keys.accounts()];
            for (account, _) in &messages.drawn {
                counts[account.unwrap()] += 1;
            }
            counts.into_iter().max().unwrap()
        };
        assert_eq!(most_frequent(Keys::OneHot), 10_000);
        let (uniform, zipf) = (
            most_frequent(Keys::Uniform(1_000)),
            most_frequent(Keys::Zipf(1_000)),
        );
        assert!(uniform < 100 && zipf > 1_000, "{uniform}, {zipf}");
        let rejects = Messages::draw(10_000, FEW, 1).rejects();
        assert!((500..1_500).contains(&rejects), "{rejects}");
    }

    #[test]
    fn a_wrong_balance_is_found() {
        let messages = Messages {
            accounts: 5,
            drawn: vec![(Some(3), 5), (Some(4), 1), (None, 7), (Some(3), -2)],
        };
        let mut balances = BTreeMap::from([(account(3), 3), (account(4), 1)]);
        assert_eq!(messages.first_difference(&balances, 4, &[]), None);
        balances.insert(account(4), 2);
        assert_eq!(
            messages.first_difference(&balances, 4, &[]),
            Some((account(4), 2, 1))
        );
        assert_eq!(messages.first_difference(&balances, 4, &[1]), None);
        balances.insert(account(3), 5);
        assert_eq!(messages.first_difference(&balances, 3, &[1]), None);
    }
}
