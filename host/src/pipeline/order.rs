//! Messages of one key, one after the other (`order_by`).
//!
//! The promise rests on one rule: **a host runs a message only if it knows of every earlier one of its key that it is
//! settled, stands before it in the same transaction, or waits** (and then the message waits behind it). Its parts:
//!
//! - In this host, `Ready` lets a key's messages into one lane at a time, in the source's order, and holds them back while
//!   an earlier one waits for a retry. A lane that has to hold one for a retry gives those behind it back.
//! - Batches hold the consumer's baton alone, so on no other host is one in progress.
//! - On the queue a host that has a row in hand has seen all rows before it that were in sight. Those that are gone are
//!   done; those that are left and not in this batch were put off, and name their key: `followers` asks for them, after the
//!   batch took its rows (and waited for whoever had locked one). A message whose row could not be put off is still in
//!   sight, so it comes before its followers on every host.
//! - A stream delivers to one host (`source/jetstream/epoch.rs`), and its redeliveries come before newer messages.
//!
//! **Invariant**: a message without a key stands behind nothing and holds nothing back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::HandlerContext;
use super::process::Member;
use crate::config::{OnDead, Order};
use crate::source::{Delivery, Place};
use crate::store::{PutOff, StoreError, Tx};

/// The shortest wait behind a message that is due and not in hand: it comes into hand first.
const BEHIND_MIN: Duration = Duration::from_millis(50);
/// The pause until a key that a dead letter holds is looked at again.
const HELD_PAUSE: Duration = Duration::from_secs(1);

/// What is in hand and may run, for one handler.
#[derive(Debug)]
pub(super) struct Ready {
    order: Option<Order>,
    keyed: Keyed<Delivery>,
}

impl Ready {
    pub(super) fn new(order: Option<Order>) -> Self {
        Self {
            order,
            keyed: Keyed::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.keyed.entries.len()
    }

    /// Takes deliveries in, at the end, or with `order_by` at their place.
    pub(super) fn extend(&mut self, deliveries: impl IntoIterator<Item = Delivery>) {
        for mut delivery in deliveries {
            let place = match &self.order {
                None => Place::default(),
                Some(order) => {
                    if delivery.order_key.is_none() {
                        delivery.order_key = order.by.find(&delivery.incoming).map(Arc::from);
                    }
                    delivery.place
                }
            };
            self.keyed.push(place, delivery.order_key.clone(), delivery);
        }
    }

    /// Takes what may run, up to `size` messages and `bytes_max` bytes, for a lane. Empty if nothing may.
    pub(super) fn next_batch(
        &mut self,
        lane: usize,
        size: usize,
        bytes_max: usize,
    ) -> Vec<Delivery> {
        let mut bytes = 0;
        let mut taken = 0;
        self.keyed.take_for_lane(lane, |delivery| {
            bytes += delivery.incoming.payload.len();
            let fits = taken == 0 || (taken < size && bytes <= bytes_max);
            taken += usize::from(fits);
            fits
        })
    }

    /// True if what may run makes a batch of `size` messages or `bytes_max` bytes.
    pub(super) fn fills(&self, size: usize, bytes_max: usize) -> bool {
        let mut bytes = 0;
        let mut count = 0;
        self.keyed.free().any(|delivery| {
            bytes += delivery.incoming.payload.len();
            count += 1;
            count >= size || bytes > bytes_max
        })
    }

    /// A lane is done with all that it was given.
    pub(super) fn lane_is_done(&mut self, lane: usize) {
        self.keyed.lane_is_done(lane);
    }

    /// A message waits for a retry outside: those behind it wait, too.
    pub(super) fn hold_behind(&mut self, delivery: &Delivery) {
        if let Some(key) = &delivery.order_key {
            self.keyed.hold(key);
        }
    }

    /// Messages that waited for a retry come back.
    pub(super) fn take_back(&mut self, deliveries: Vec<Delivery>) {
        for delivery in &deliveries {
            if let Some(key) = &delivery.order_key {
                self.keyed.release(key);
            }
        }
        self.extend(deliveries);
    }

    /// Returns all that is left, in order.
    pub(super) fn into_deliveries(self) -> impl Iterator<Item = Delivery> {
        self.keyed.entries.into_values().map(|entry| entry.item)
    }
}

/// Items in their order, of which some have keys: items of one key are in one lane at a time, and none are taken while the
/// key is held.
#[derive(Debug)]
struct Keyed<T> {
    /// By place, and among equals in the order of coming.
    entries: BTreeMap<(Place, u64), Entry<T>>,
    pushed: u64,
    /// How often each key is in a lane or held. Keys that are not are absent.
    busy: HashMap<Arc<str>, usize>,
    /// The keys that a lane runs.
    in_lane: HashMap<usize, HashSet<Arc<str>>>,
}

#[derive(Debug)]
struct Entry<T> {
    key: Option<Arc<str>>,
    item: T,
}

impl<T> Default for Keyed<T> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            pushed: 0,
            busy: HashMap::new(),
            in_lane: HashMap::new(),
        }
    }
}

impl<T> Keyed<T> {
    fn push(&mut self, place: Place, key: Option<Arc<str>>, item: T) {
        self.entries
            .insert((place, self.pushed), Entry { key, item });
        self.pushed += 1;
    }

    /// Returns the items whose key is not busy, in order.
    fn free(&self) -> impl Iterator<Item = &T> {
        let is_busy = |key: &Arc<str>| self.busy.contains_key(key);
        self.entries
            .values()
            .filter(move |entry| !entry.key.as_ref().is_some_and(is_busy))
            .map(|entry| &entry.item)
    }

    /// Takes items in order, passing over those whose key is busy, until `fits` says no.
    fn take_for_lane(&mut self, lane: usize, mut fits: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut places = Vec::new();
        for (place, entry) in &self.entries {
            if entry
                .key
                .as_ref()
                .is_some_and(|key| self.busy.contains_key(key))
            {
                continue;
            }
            if !fits(&entry.item) {
                break;
            }
            places.push(*place);
        }
        let mut keys = HashSet::new();
        let mut items = Vec::with_capacity(places.len());
        for place in places {
            if let Some(entry) = self.entries.remove(&place) {
                keys.extend(entry.key);
                items.push(entry.item);
            }
        }
        for key in &keys {
            self.hold(key);
        }
        self.in_lane.entry(lane).or_default().extend(keys);
        items
    }

    fn lane_is_done(&mut self, lane: usize) {
        for key in self.in_lane.remove(&lane).unwrap_or_default() {
            self.release(&key);
        }
    }

    fn hold(&mut self, key: &Arc<str>) {
        *self.busy.entry(Arc::clone(key)).or_default() += 1;
    }

    fn release(&mut self, key: &Arc<str>) {
        if let Some(count) = self.busy.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.busy.remove(key);
            }
        }
    }
}

/// Cuts `members` into batches in which no id occurs twice, without changing their order.
pub(super) fn cut_at_twins(members: Vec<Member>) -> Vec<Vec<Member>> {
    let mut batches: Vec<Vec<Member>> = Vec::new();
    let mut ids = HashSet::new();
    for member in members {
        let is_new = ids.insert(member.message.id.clone());
        match batches.last_mut() {
            Some(batch) if is_new => batch.push(member),
            _ => {
                ids.clear();
                ids.insert(member.message.id.clone());
                batches.push(vec![member]);
            }
        }
    }
    batches
}

/// Takes out of `batch` what has the key of one of `held`, messages that wait for a retry in this host.
pub(super) fn without_followers<'a>(
    batch: Vec<Member>,
    held: impl Iterator<Item = &'a Delivery>,
) -> (Vec<Member>, Vec<Delivery>) {
    let keys: HashSet<Arc<str>> = held
        .filter_map(|delivery| delivery.order_key.clone())
        .collect();
    if keys.is_empty() {
        return (batch, Vec::new());
    }
    let (behind, rest): (Vec<Member>, Vec<Member>) = batch.into_iter().partition(|member| {
        member
            .delivery
            .order_key
            .as_ref()
            .is_some_and(|key| keys.contains(key))
    });
    let behind = behind.into_iter().map(|member| member.delivery).collect();
    (rest, behind)
}

/// Returns how long each member of `batch` has to wait behind an earlier message of its key, `None` for those that may run.
/// Ask when the batch has taken its rows.
pub(super) async fn waits(
    handler: &HandlerContext,
    tx: &mut Tx,
    batch: &[Member],
) -> Result<Vec<Option<Duration>>, StoreError> {
    let mut waits = vec![None; batch.len()];
    let Some(order) = &handler.config.order else {
        return Ok(waits);
    };
    let keys: HashSet<&str> = batch
        .iter()
        .filter_map(|member| member.delivery.order_key.as_deref())
        .collect();
    let keys: Vec<&str> = keys.into_iter().collect();
    if keys.is_empty() {
        return Ok(waits);
    }
    let is_queue = batch
        .iter()
        .any(|member| member.delivery.queue_row.is_some());
    if is_queue {
        let heads = tx.queue_heads(&handler.config.source, &keys).await?;
        // A replay runs when it was asked for, whatever stands before it.
        for (member, wait) in batch.iter().zip(&mut waits) {
            if member.delivery.letter().is_some() {
                continue;
            }
            *wait = heads
                .iter()
                .find(|head| {
                    member.delivery.order_key.as_deref() == Some(head.key.as_str())
                        && member
                            .delivery
                            .queue_row
                            .is_some_and(|number| head.number < number)
                })
                .map(|head| head.wait.max(BEHIND_MIN));
        }
    }
    if order.on_dead == OnDead::Hold {
        let held = tx.keys_with_dead_letters(&handler.consumer, &keys).await?;
        for (member, wait) in batch.iter().zip(&mut waits) {
            if member.delivery.letter().is_none()
                && let Some(key) = member.delivery.order_key.as_deref()
                && held.iter().any(|held| held == key)
            {
                *wait = Some(wait.unwrap_or_default().max(HELD_PAUSE));
            }
        }
    }
    Ok(waits)
}

/// Returns what puts the row of `delivery` off, if it has one.
pub(super) fn put_off(delivery: &Delivery, wait: Duration) -> Option<PutOff> {
    delivery.queue_row.map(|number| PutOff {
        number,
        key: delivery.order_key.as_deref().map(str::to_owned),
        wait,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyed(items: &[(u64, &str)]) -> Keyed<u64> {
        let mut keyed = Keyed::default();
        for (number, key) in items {
            push(&mut keyed, *number, key);
        }
        keyed
    }

    fn push(keyed: &mut Keyed<u64>, number: u64, key: &str) {
        let place = Place {
            generation: 0,
            number,
        };
        let key = Some(Arc::from(key)).filter(|_| !key.is_empty());
        keyed.push(place, key, number);
    }

    fn take(keyed: &mut Keyed<u64>, lane: usize, size: usize) -> Vec<u64> {
        let mut taken = 0;
        keyed.take_for_lane(lane, |_| {
            taken += 1;
            taken <= size
        })
    }

    #[test]
    fn a_key_is_in_one_lane_at_a_time_and_in_its_order() {
        let mut keyed = keyed(&[(3, "a"), (1, "a"), (2, "b"), (4, "b"), (5, ""), (6, "")]);
        assert_eq!(take(&mut keyed, 0, 1), [1]);
        assert_eq!(take(&mut keyed, 1, 3), [2, 4, 5]);
        // `a` is in lane 0.
        assert_eq!(take(&mut keyed, 2, 9), [6]);
        assert_eq!(take(&mut keyed, 2, 9), [0; 0]);
        keyed.lane_is_done(1);
        assert_eq!(take(&mut keyed, 1, 9), [0; 0]);
        keyed.lane_is_done(0);
        assert_eq!(take(&mut keyed, 0, 9), [3]);
    }

    #[test]
    fn nothing_overtakes_a_message_that_waits() {
        let mut keyed = keyed(&[(1, "a"), (2, "a"), (3, "b")]);
        assert_eq!(take(&mut keyed, 0, 1), [1]);
        // 1 failed and waits outside, before its lane reports; 2 stays behind it, 3 goes on.
        keyed.hold(&Arc::from("a"));
        keyed.lane_is_done(0);
        assert_eq!(take(&mut keyed, 0, 9), [3]);
        keyed.lane_is_done(0);
        push(&mut keyed, 1, "a");
        keyed.release(&Arc::from("a"));
        // A redelivery of 1 stands beside it, before 2.
        push(&mut keyed, 1, "a");
        assert_eq!(take(&mut keyed, 0, 9), [1, 1, 2]);
        keyed.lane_is_done(0);
        assert!(keyed.busy.is_empty() && keyed.entries.is_empty());
    }

    #[test]
    fn a_stream_that_was_made_anew_comes_after_the_old_one() {
        let mut keyed: Keyed<u64> = Keyed::default();
        for (generation, number) in [(1, 1), (0, 900)] {
            let place = Place { generation, number };
            keyed.push(place, Some("a".into()), number);
        }
        assert_eq!(take(&mut keyed, 0, 9), [900, 1]);
    }
}
