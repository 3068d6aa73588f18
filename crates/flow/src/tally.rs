//! Counts by a key that many things add to: what is added waits, and is sorted and merged into what was before once there is
//! an eighth as much. Nothing is looked up in between, and who asks wants them in order.

use std::mem::{swap, take};

/// So many more than an eighth of the keys wait at most.
const MOST_WAITING: usize = 1 << 16;

/// Bits of an address by which is sorted at once, and what is too short for that.
const DIGIT: u32 = 11;
const SHORT: usize = 1 << 8;

/// What is sorted by a first number, and then by the rest.
pub(crate) trait Key: Copy + Default + Ord {
    fn first(self) -> u64;

    /// Of which of [`KINDS`] it is: those that have no count of their own are told by kind.
    fn kind(self) -> u8 {
        0
    }
}

/// Of keys, at most.
pub(crate) const KINDS: usize = 16;

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

    fn kind(self) -> u8 {
        self.2
    }
}

/// Counts are modulo 2^64: what was added can be taken off, in any order.
///
/// If there are more keys than `most` the smallest have counts of their own, and all others one sum a kind: a key that is
/// among the smallest of all is so in every part, thus neither order nor parts matter. What is taken off must have been added to a
/// tally that has had no end: keys that vanish leave the places of others empty.
#[derive(Clone, Debug)]
pub(crate) struct Tally<K> {
    /// In order, each key once, no count 0.
    joined: Vec<(K, u64)>,
    waiting: Vec<(K, u64)>,
    most: usize,
    /// The last key that may have a count of its own, once there have been more than `most`.
    last: Option<K>,
    others: [u64; KINDS],
}

impl<K> Default for Tally<K> {
    fn default() -> Tally<K> {
        Tally {
            joined: Vec::new(),
            waiting: Vec::new(),
            most: usize::MAX,
            last: None,
            others: [0; KINDS],
        }
    }
}

impl<K: Key> Tally<K> {
    /// So many keys have counts of their own at most; if there are more already it holds from the next time on that they
    /// are brought in order.
    pub fn keep(&mut self, most: usize) {
        self.most = most;
    }

    #[inline]
    pub fn add(&mut self, key: K, count: u64) {
        if self.last.is_some_and(|last| key > last) {
            add_other(&mut self.others, key, count);
            return;
        }
        if self.waiting.len() >= self.joined.len() / 8 + MOST_WAITING {
            self.settle();
        }
        self.waiting.push((key, count));
    }

    /// Adds all of another.
    pub fn join(&mut self, mut other: Tally<K>) {
        for (sum, more) in self.others.iter_mut().zip(other.others) {
            *sum = sum.wrapping_add(more);
        }
        self.last = match (self.last, other.last) {
            (Some(one), Some(another)) => Some(one.min(another)),
            (one, another) => one.or(another),
        };
        if self.joined.len() < other.joined.len() {
            swap(&mut self.joined, &mut other.joined);
        }
        if self.waiting.len() < other.waiting.len() {
            swap(&mut self.waiting, &mut other.waiting);
        }
        // what is short is not worth going through all for
        if other.joined.len() > self.joined.len() / 4 {
            self.merge(&take(&mut other.joined));
        }
        self.cut();
        for (key, count) in other.joined.into_iter().chain(other.waiting) {
            self.add(key, count);
        }
    }

    /// Takes off all of another.
    pub fn take_off(&mut self, mut other: Tally<K>) {
        let all = other.joined.iter_mut().chain(&mut other.waiting);
        all.for_each(|(_, count)| *count = count.wrapping_neg());
        other.others = other.others.map(u64::wrapping_neg);
        self.join(other);
    }

    /// Nothing was added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.last.is_none()
    }

    /// How much is kept.
    pub fn len(&self) -> usize {
        self.joined.len() + self.waiting.len()
    }

    /// The sums, by kind, of the counts of keys that have none of their own, of those that were brought in order.
    pub fn others(&self) -> [u64; KINDS] {
        self.others
    }

    /// The keys that have a count, in order.
    pub fn sorted(&mut self) -> &[(K, u64)] {
        self.settle();
        // who asks is done, mostly: as much room as an eighth of all
        self.waiting = Vec::new();
        &self.joined
    }

    /// As `sorted`.
    pub fn into_sorted(mut self) -> Vec<(K, u64)> {
        self.settle();
        self.joined
    }

    fn settle(&mut self) {
        join(&mut self.waiting);
        if self.joined.is_empty() {
            swap(&mut self.joined, &mut self.waiting);
        }
        let mut waiting = take(&mut self.waiting);
        self.merge(&waiting);
        waiting.clear();
        self.waiting = waiting;
        self.cut();
    }

    /// Adds counts in order, each key once.
    fn merge(&mut self, more: &[(K, u64)]) {
        if merge(&mut self.joined, more, self.most, &mut self.others) {
            let last = self.joined.last().map(|&(key, _)| key);
            self.last = self.last.min(last).or(last);
        }
    }

    /// Of keys that are too many, or too large, only the sum stays.
    fn cut(&mut self) {
        let within = |last| self.joined.partition_point(|&(key, _)| key <= last);
        let within = self.last.map_or(self.joined.len(), within);
        if within > self.most {
            self.last = self.joined[..self.most].last().map(|&(key, _)| key);
        }
        for (key, count) in self.joined.drain(within.min(self.most)..) {
            add_other(&mut self.others, key, count);
        }
    }
}

fn add_other<K: Key>(others: &mut [u64; KINDS], key: K, count: u64) {
    if let Some(sum) = others.get_mut(usize::from(key.kind())) {
        *sum = sum.wrapping_add(count);
    }
}

/// Brings counts in order, and makes those of a key one.
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

/// Adds counts to others, both joined: in place from the back, where there is as much room as it takes. What is beyond the
/// first `most` is added to `beyond`; whether there is any.
fn merge<K: Key>(
    all: &mut Vec<(K, u64)>,
    more: &[(K, u64)],
    most: usize,
    beyond: &mut [u64; KINDS],
) -> bool {
    let mut rest = all.iter().peekable();
    let (mut new, mut gone) = (0, false);
    for &(key, count) in more {
        while rest.next_if(|&&(before, _)| before < key).is_some() {}
        match rest.peek() {
            Some(&&(before, had)) if before == key => gone |= had.wrapping_add(count) == 0,
            _ => new += 1,
        }
    }
    // what vanishes takes no place: where the end is shows when it is gone
    let most = if gone { usize::MAX } else { most };
    let mut from = all.len();
    let mut to = from + new;
    let kept = to.min(most);
    let is_cut = kept < to;
    all.reserve_exact(kept.saturating_sub(from));
    all.resize(kept.max(from), (K::default(), 0));
    let mut put = |all: &mut Vec<(K, u64)>, to: usize, (key, count)| match to < kept {
        true => all[to] = (key, count),
        false => add_other(beyond, key, count),
    };
    for &(key, count) in more.iter().rev() {
        while from > 0 && all[from - 1].0 > key {
            from -= 1;
            to -= 1;
            let row = all[from];
            put(all, to, row);
        }
        let mut sum = count;
        if from > 0 && all[from - 1].0 == key {
            from -= 1;
            sum = sum.wrapping_add(all[from].1);
        }
        to -= 1;
        put(all, to, (key, sum));
    }
    while from > kept {
        from -= 1;
        let row = all[from];
        put(all, from, row);
    }
    all.truncate(kept);
    if gone {
        all.retain(|&(_, count)| count != 0);
    }
    is_cut
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
    let mut to = vec![(K::default(), 0); counts.len()];
    for shift in (0..u64::BITS).step_by(DIGIT as usize) {
        if differ >> shift & DIGITS != 0 {
            by_digit(counts, &mut to, shift);
            swap(counts, &mut to);
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
            prop_assert!(tally.joined.len() <= 45 && tally.waiting.len() <= 45 / 8 + MOST_WAITING);
            let mut all = Tally::default();
            all.take_off(off);
            all.join(tally);
            let expected: Vec<((u64, u32), u64)> = map.into_iter().filter(|&(_, count)| count != 0).collect();
            prop_assert_eq!(all.sorted(), &expected[..]);
            prop_assert_eq!(all.into_sorted(), expected);
        }

        #[test]
        fn the_smallest_are_kept_and_the_rest_is_a_sum(
            parts in prop::collection::vec(prop::collection::vec(((0..9u64, 0..2u64, 0..KINDS as u8), 1..3u64), 0..60), 1..6),
            most in 1..60usize,
            looks in prop::array::uniform7(any::<bool>()),
            vain in prop::collection::vec(((0..9u64, 0..2u64, 0..KINDS as u8), 1..3u64), 0..60),
        ) {
            let (mut all, mut map) = (Tally::default(), BTreeMap::new());
            all.keep(most);
            for (part, look) in parts.iter().zip(&looks[1..]) {
                let mut tally = Tally::default();
                tally.keep(most);
                for &(key, count) in part {
                    tally.add(key, count);
                    *map.entry(key).or_insert(0) += count;
                    if *look {
                        tally.sorted();
                    }
                }
                all.join(tally);
            }
            // what is taken off again before there is an end leaves nothing
            all.keep(usize::MAX);
            let mut off = Tally::default();
            for (key, count) in vain {
                all.add(key, count);
                off.add(key, count);
            }
            if looks[0] {
                all.sorted();
            }
            all.take_off(off);
            all.keep(most);
            let sums: Vec<_> = map.into_iter().collect();
            let (kept, rest) = sums.split_at(most.min(sums.len()));
            prop_assert_eq!(all.sorted(), kept);
            let mut others = [0; KINDS];
            rest.iter().for_each(|&((_, _, kind), count)| others[usize::from(kind)] += count);
            prop_assert_eq!(all.others(), others);
        }

        #[test]
        fn what_is_merged_is_in_order(
            some in prop::collection::btree_map((0..99u64, 0..2u32), 1..3u64, 0..150),
            more in prop::collection::btree_map((0..99u64, 0..2u32), prop::sample::select(vec![1, 2, u64::MAX]), 0..150),
            most in prop::option::of(0..200usize),
        ) {
            // where there is an end nothing vanishes
            let lasting = |(key, count)| (key, if most.is_some() { count & 3 } else { count });
            let more: Vec<_> = more.into_iter().map(lasting).collect();
            let mut all: Vec<((u64, u32), u64)> = some.clone().into_iter().collect();
            let mut rest = [0; KINDS];
            let is_cut = merge(&mut all, &more, most.unwrap_or(usize::MAX), &mut rest);
            let mut sums = some;
            for (key, count) in more {
                let sum = sums.entry(key).or_insert(0);
                *sum = sum.wrapping_add(count);
            }
            sums.retain(|_, &mut count| count != 0);
            let sums: Vec<_> = sums.into_iter().collect();
            let (kept, beyond) = sums.split_at(most.map_or(sums.len(), |most| most.min(sums.len())));
            prop_assert_eq!(&all[..], kept);
            prop_assert_eq!(is_cut, !beyond.is_empty());
            prop_assert_eq!(rest.iter().sum::<u64>(), beyond.iter().map(|&(_, count)| count).sum());
        }
    }
}
