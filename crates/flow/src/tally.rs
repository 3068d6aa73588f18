//! Counts by a key that many things add to: written one behind the other, sorted and joined once there are twice as many
//! as there were keys. Nothing is looked up in between, and who asks wants them in order.

use rtit_memory::{copied, filled, Grow};

/// So many more than twice the keys wait at most.
const MOST_WAITING: usize = 1 << 16;

/// Bits of an address by which is sorted at once, and what is too short for that.
const DIGIT: u32 = 11;
const SHORT: usize = 1 << 8;

/// What is sorted by a first number, and then by the rest.
pub(crate) trait Key: Copy + Default + Ord {
    fn first(self) -> u64;
}

impl Key for (u32, u32) {
    fn first(self) -> u64 {
        self.0.into()
    }
}

impl Key for (u32, u64) {
    fn first(self) -> u64 {
        self.0.into()
    }
}

impl Key for (u64, u32) {
    fn first(self) -> u64 {
        self.0
    }
}

impl Key for (u64, u64, u8) {
    fn first(self) -> u64 {
        self.0
    }
}

/// Counts are modulo 2^64: what was added can be taken off, in any order.
#[derive(Clone, Debug)]
pub(crate) struct Tally<K> {
    counts: Vec<(K, u64)>,
    /// So many at the front have keys of their own, in order.
    joined: usize,
}

impl<K> Default for Tally<K> {
    fn default() -> Tally<K> {
        Tally {
            counts: Vec::new(),
            joined: 0,
        }
    }
}

impl<K: Key> Tally<K> {
    #[inline]
    pub fn add(&mut self, key: K, count: u64) {
        if self.counts.len() >= 2 * self.joined + MOST_WAITING {
            self.settle();
        }
        self.counts.put((key, count));
    }

    /// Adds all of another.
    pub fn join(&mut self, other: Tally<K>) {
        if self.counts.is_empty() {
            *self = other;
            return;
        }
        for (key, count) in other.counts {
            self.add(key, count);
        }
    }

    /// Takes off all of another.
    pub fn take_off(&mut self, other: Tally<K>) {
        for (key, count) in other.counts {
            self.add(key, count.wrapping_neg());
        }
    }

    fn settle(&mut self) {
        join(&mut self.counts);
        self.joined = self.counts.len();
    }

    /// Nothing was added.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The keys that have a count, in order.
    pub fn sorted(&self) -> Vec<(K, u64)> {
        let mut counts = copied(&self.counts);
        join(&mut counts);
        counts
    }

    /// As `sorted`.
    pub fn into_sorted(mut self) -> Vec<(K, u64)> {
        join(&mut self.counts);
        self.counts
    }
}

fn join<K: Key>(counts: &mut Vec<(K, u64)>) {
    sort(counts);
    counts.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1 = kept.1.wrapping_add(next.1);
        }
        same
    });
    counts.retain(|&(_, count)| count != 0);
}

fn sort<K: Key>(counts: &mut Vec<(K, u64)>) {
    if counts.len() < SHORT {
        counts.sort_unstable_by_key(|&(key, _)| key);
        return;
    }
    let first = counts[0].0.first();
    let differ = counts
        .iter()
        .fold(0, |differ, &(key, _)| differ | key.first() ^ first);
    let mut to = filled(counts.len(), (K::default(), 0));
    for shift in (0..u64::BITS).step_by(DIGIT as usize) {
        if differ >> shift & DIGITS != 0 {
            by_digit(counts, &mut to, shift);
            std::mem::swap(counts, &mut to);
        }
    }
    for same in counts.chunk_by_mut(|one, next| one.0.first() == next.0.first()) {
        if same.len() > 1 {
            same.sort_unstable_by_key(|&(key, _)| key);
        }
    }
}

const DIGITS: u64 = (1 << DIGIT) - 1;

/// By one digit, what has the same in the order in which it was.
fn by_digit<K: Key>(from: &[(K, u64)], to: &mut [(K, u64)], shift: u32) {
    let digit = |key: K| (key.first() >> shift & DIGITS) as usize;
    let mut places = [0; 1 << DIGIT];
    for &(key, _) in from {
        places[digit(key)] += 1;
    }
    let mut before = 0;
    for place in &mut places {
        before += std::mem::replace(place, before);
    }
    for &(key, count) in from {
        let place = &mut places[digit(key)];
        to[*place] = (key, count);
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_what_a_map_counts(
            more in prop::collection::vec(((0..9u64, 0..5u32), 0..3u64), 0..200),
            spread in prop::sample::select(vec![1, 0x1234_5678_9abc_def1u64]),
            less in 0..200usize,
            rounds in 1..500u64,
        ) {
            let (mut tally, mut off, mut map) = (Tally::default(), Tally::default(), BTreeMap::new());
            for round in 0..rounds {
                for (at, &((first, second), count)) in more.iter().enumerate() {
                    let key = (first.wrapping_mul(spread), second);
                    tally.add(key, count);
                    let kept = at >= less || round % 2 == 0;
                    if !kept {
                        off.add(key, count);
                    }
                    *map.entry(key).or_insert(0) += if kept { count } else { 0 };
                }
            }
            prop_assert!(tally.counts.len() <= 2 * 45 + MOST_WAITING);
            let mut all = Tally::default();
            all.take_off(off);
            all.join(tally);
            let expected: Vec<((u64, u32), u64)> = map.into_iter().filter(|&(_, count)| count != 0).collect();
            prop_assert_eq!(all.sorted(), expected.clone());
            prop_assert_eq!(all.into_sorted(), expected);
        }
    }
}
