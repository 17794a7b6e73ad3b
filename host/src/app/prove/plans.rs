//! The steps of a proof, and what each does with a set of messages.

use std::collections::BTreeMap;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use super::bench::{BreakAt, Plan, PlannedBreak};
use super::project::Project;
use crate::config::Dedup;

/// A step of the proof. Each must leave behind what the once-only run leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Once more, as the reference was made.
    Again,
    /// As many in one transaction as the configuration allows.
    Batches,
    /// Each message twice.
    Twice,
    /// All messages, then all of them once more, without claims.
    TwiceLater,
    /// In an order that the seed gives.
    Shuffled(u64),
    /// Rolled back at each host call in turn, and run again.
    RolledBack,
    /// Its host dies when the handler has returned.
    DiedBeforeCommit,
    /// Its host dies after the commit.
    DiedAfterCommit,
    /// Each message has failed once.
    Attempt,
}

impl Step {
    /// Returns the stable name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Again => "again",
            Self::Batches => "batches",
            Self::Twice | Self::TwiceLater => "twice",
            Self::Shuffled(_) => "shuffled",
            Self::RolledBack => "rolled-back",
            Self::DiedBeforeCommit => "died-before-commit",
            Self::DiedAfterCommit => "died-after-commit",
            Self::Attempt => "attempt",
        }
    }

    /// Returns what it does, for people.
    pub(super) fn words(self, project: &Project) -> String {
        let without_claims = match project.handler.dedup {
            Dedup::Off => ", without claims",
            Dedup::Claims | Dedup::Window(_) => "",
        };
        match self {
            Self::Again => "once more, in the same way".to_owned(),
            Self::Batches => format!(
                "up to {} messages in one transaction",
                project.handler.batch.max
            ),
            Self::Twice => format!("each message delivered twice in a row{without_claims}"),
            Self::TwiceLater => {
                format!("each message delivered again after all others{without_claims}")
            }
            Self::Shuffled(seed) => match project.handler.order {
                None => format!("in another order (seed {seed})"),
                Some(_) => format!("in another order, each key's messages in theirs (seed {seed})"),
            },
            Self::RolledBack => "rolled back at each host call in turn, and run again".to_owned(),
            Self::DiedBeforeCommit => "the host dies before the commit".to_owned(),
            Self::DiedAfterCommit => {
                "the host dies after the commit, before the source hears of it".to_owned()
            }
            Self::Attempt => "each message has failed once before: its `attempt` is 2".to_owned(),
        }
    }

    /// Returns what it does with `messages`, of which each had so many host calls in the once-only run. At most `breaks_max` places are
    /// broken, spread over all; the second number is how many there are.
    pub(super) fn plan(
        self,
        project: &Project,
        messages: &[usize],
        calls: &[usize],
        breaks_max: usize,
    ) -> (Plan, usize) {
        let singly = |messages: &[usize]| messages.iter().map(|index| vec![*index]).collect();
        let batches = match self {
            Self::Batches => messages
                .chunks(project.handler.batch.max)
                .map(<[usize]>::to_vec)
                .collect(),
            Self::Twice => messages
                .iter()
                .flat_map(|index| [vec![*index], vec![*index]])
                .collect(),
            Self::TwiceLater => singly(&[messages, messages].concat()),
            Self::Shuffled(seed) => singly(&shuffled(project, messages, seed)),
            _ => singly(messages),
        };
        // A message without an id is buried without a run.
        let runs: Vec<usize> = messages
            .iter()
            .copied()
            .filter(|index| {
                let message = project.messages.get(*index);
                message.is_some_and(|message| message.id.is_some())
            })
            .collect();
        let of_each = |at: BreakAt| runs.iter().map(move |index| (*index, at)).collect();
        let places: Vec<(usize, BreakAt)> = match self {
            Self::RolledBack => runs
                .iter()
                .flat_map(|index| {
                    let calls = calls.get(*index).copied().unwrap_or(0);
                    (1..=calls)
                        .map(BreakAt::RolledBack)
                        .chain([BreakAt::RolledBackAtEnd])
                        .map(move |at| (*index, at))
                })
                .collect(),
            Self::DiedBeforeCommit => of_each(BreakAt::DiedBeforeCommit),
            Self::DiedAfterCommit => of_each(BreakAt::DiedAfterCommit),
            Self::Attempt => of_each(BreakAt::Charged),
            _ => Vec::new(),
        };
        let all = places.len();
        let breaks = spread(places, breaks_max)
            .map(|(message, at)| PlannedBreak { message, at })
            .collect();
        let plan = Plan {
            batches,
            breaks,
            charges: self == Self::Attempt,
        };
        (plan, all)
    }
}

/// Returns the steps for a project, from the plainest on.
pub(super) fn steps(project: &Project, seed: u64, shuffles: u32) -> Vec<Step> {
    let mut steps = vec![Step::Again];
    if project.handler.batch.max > 1 && project.messages.len() > 1 {
        steps.push(Step::Batches);
    }
    steps.push(Step::Twice);
    if project.handler.dedup == Dedup::Off && project.messages.len() > 1 {
        steps.push(Step::TwiceLater);
    }
    steps.extend([
        Step::RolledBack,
        Step::DiedBeforeCommit,
        Step::DiedAfterCommit,
        Step::Attempt,
    ]);
    if has_orders(project) {
        steps.extend((0..shuffles).map(|round| Step::Shuffled(seed.wrapping_add(round.into()))));
    }
    steps
}

/// True if the messages may come in another order than that of the file.
pub(super) fn has_orders(project: &Project) -> bool {
    let mut labels = project.messages.iter().map(|message| &message.key);
    match labels.next() {
        None => false,
        Some(_) if project.handler.order.is_none() => project.messages.len() > 1,
        Some(first) => labels.any(|label| label.is_none() || label != first),
    }
}

/// Another order of `messages`; with `order_by` those of one key stay in theirs.
fn shuffled(project: &Project, messages: &[usize], seed: u64) -> Vec<usize> {
    let key_of = |index: &usize| {
        project
            .messages
            .get(*index)
            .and_then(|message| message.key.clone())
    };
    let mut order = messages.to_vec();
    order.shuffle(&mut StdRng::seed_from_u64(seed));
    if project.handler.order.is_none() {
        return order;
    }
    // The places of a key's messages are drawn; which one comes to which is theirs to say.
    let mut of_key: BTreeMap<String, std::vec::IntoIter<usize>> = BTreeMap::new();
    for key in messages.iter().filter_map(key_of) {
        of_key.entry(key.clone()).or_insert_with(|| {
            let own: Vec<usize> = messages
                .iter()
                .filter(|index| key_of(index).as_ref() == Some(&key))
                .copied()
                .collect();
            own.into_iter()
        });
    }
    order
        .into_iter()
        .map(|index| {
            key_of(&index)
                .and_then(|key| of_key.get_mut(&key)?.next())
                .unwrap_or(index)
        })
        .collect()
}

/// Takes at most `max` of all, as far from each other as they go.
fn spread<T>(all: Vec<T>, max: usize) -> impl Iterator<Item = T> {
    let every = all.len().div_ceil(max.max(1)).max(1);
    all.into_iter().step_by(every)
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn what_is_too_much_is_thinned_out() {
        let of = |all: usize, max: usize| spread((0..all).collect(), max).collect::<Vec<_>>();
        assert_eq!(of(5, 10), [0, 1, 2, 3, 4]);
        assert_eq!(of(5, 5), [0, 1, 2, 3, 4]);
        assert_eq!(of(6, 3), [0, 2, 4]);
        assert_eq!(of(7, 3), [0, 3, 6]);
        assert_eq!(of(3, 0), [0]);
        assert_eq!(of(0, 3), Vec::<usize>::new());
    }
}
