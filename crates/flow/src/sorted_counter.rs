//! Counts by key, for many additions and few readers, which need the keys in order.
//!
//! Nothing is looked up when a count is added: it is appended to a pending list. Once that list is longer than an
//! eighth of the counters, it is sorted by digits (radix sort), equal keys are summed, and the result is merged into
//! the sorted counters. This took fewer machine instructions than a hash table spent on growing alone, and readers
//! would have had to sort that as well. Subtracting is adding modulo 2^64, so nothing is looked up for it either.
//!
//! The number of counters may be limited. Then the smallest keys have counters and all others share one sum for each
//! kind of key. A key that is among the smallest of all is among the smallest of every part, so neither the order of
//! additions nor the division into parts matters. Subtraction needs an unlimited counter: keys that vanish would leave
//! room that cut-off keys should have had.

use std::mem::{swap, take};

use rtit_huge_pages::Buffer;

/// Pending counts, at most, beside an eighth of the counters.
const MAX_PENDING: usize = 1 << 16;

/// Bits of a radix-sort digit.
const DIGIT_BITS: u32 = 11;
const DIGIT_MASK: u64 = (1 << DIGIT_BITS) - 1;
/// Shorter lists are sorted by comparison.
const MIN_RADIX_SORT: usize = 1 << 8;

/// A key that is sorted by its first number, mostly an address, before the rest.
pub(crate) trait CounterKey: Copy + Default + Ord {
    fn primary_sort_key(self) -> u64;

    /// Which of the [`KINDS`] of keys it is: keys without a counter are summed by kind.
    fn key_kind(self) -> u8 {
        0
    }
}

/// Number of kinds of keys.
pub(crate) const KINDS: usize = 16;

impl CounterKey for (u32, u32) {
    fn primary_sort_key(self) -> u64 {
        self.0.into()
    }
}

impl CounterKey for (u32, u64) {
    fn primary_sort_key(self) -> u64 {
        self.0.into()
    }
}

impl CounterKey for (u64, u32) {
    fn primary_sort_key(self) -> u64 {
        self.0
    }
}

impl CounterKey for (u64, u64, u8) {
    fn primary_sort_key(self) -> u64 {
        self.0
    }

    fn key_kind(self) -> u8 {
        self.2
    }
}

/// Counts by key, modulo 2^64; see the module.
#[derive(Clone, Debug)]
pub(crate) struct SortedCounter<K> {
    /// Sorted, each key once, no count 0.
    sorted: Buffer<(K, u64)>,
    pending: Buffer<(K, u64)>,
    max_keys: usize,
    /// The largest key that may have a counter, once more than `max_keys` keys have been added.
    largest_key: Option<K>,
    uncounted: [u64; KINDS],
}

impl<K> Default for SortedCounter<K> {
    fn default() -> SortedCounter<K> {
        SortedCounter {
            sorted: Buffer::new(),
            pending: Buffer::new(),
            max_keys: usize::MAX,
            largest_key: None,
            uncounted: [0; KINDS],
        }
    }
}

impl<K: CounterKey> SortedCounter<K> {
    /// Limits the number of counters, from the next consolidation on.
    pub fn limit_key_count(&mut self, max_keys: usize) {
        self.max_keys = max_keys;
    }

    #[inline]
    pub fn add(&mut self, key: K, count: u64) {
        if self.largest_key.is_some_and(|largest| key > largest) {
            add_uncounted(&mut self.uncounted, key, count);
            return;
        }
        if self.pending.len() >= self.sorted.len() / 8 + MAX_PENDING {
            self.consolidate_counts();
        }
        self.pending.push((key, count));
    }

    /// Adds all counts of another counter.
    pub fn merge_counter(&mut self, mut other: SortedCounter<K>) {
        for (sum, added) in self.uncounted.iter_mut().zip(other.uncounted) {
            *sum = sum.wrapping_add(added);
        }
        self.largest_key = match (self.largest_key, other.largest_key) {
            (Some(one), Some(another)) => Some(one.min(another)),
            (one, another) => one.or(another),
        };
        if self.sorted.len() < other.sorted.len() {
            swap(&mut self.sorted, &mut other.sorted);
        }
        if self.pending.len() < other.pending.len() {
            swap(&mut self.pending, &mut other.pending);
        }
        // A pass over all counters does not pay for a short list.
        if other.sorted.len() > self.sorted.len() / 4 {
            self.merge_sorted_counts(&take(&mut other.sorted));
        }
        self.apply_key_limit();
        for (key, count) in other.sorted.into_iter().chain(other.pending) {
            self.add(key, count);
        }
    }

    /// Subtracts all counts of another counter. Both must have been unlimited since those counts were added.
    pub fn subtract_counter(&mut self, mut other: SortedCounter<K>) {
        let all = other.sorted.iter_mut().chain(other.pending.iter_mut());
        all.for_each(|(_, count)| *count = count.wrapping_neg());
        other.uncounted = other.uncounted.map(u64::wrapping_neg);
        self.merge_counter(other);
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.largest_key.is_none()
    }

    /// Number of counters, and of pending counts.
    pub fn len(&self) -> usize {
        self.sorted.len() + self.pending.len()
    }

    /// Counts of keys without a counter, by kind; complete after `sorted_counts`.
    pub fn counts_beyond_limit(&self) -> [u64; KINDS] {
        self.uncounted
    }

    /// The keys with a counter, in order, and their counts.
    pub fn sorted_counts(&mut self) -> &[(K, u64)] {
        self.consolidate_counts();
        // Mostly nothing is added after this call; the list takes an eighth of all memory.
        self.pending = Buffer::new();
        &self.sorted
    }

    /// As `sorted_counts`.
    pub fn into_sorted_counts(mut self) -> Buffer<(K, u64)> {
        self.consolidate_counts();
        self.sorted
    }

    fn consolidate_counts(&mut self) {
        sort_and_sum(&mut self.pending);
        if self.sorted.is_empty() {
            swap(&mut self.sorted, &mut self.pending);
        }
        let mut pending = take(&mut self.pending);
        self.merge_sorted_counts(&pending);
        pending.clear();
        self.pending = pending;
        self.apply_key_limit();
    }

    /// Merges sorted counts, each key once.
    fn merge_sorted_counts(&mut self, added: &[(K, u64)]) {
        if merge_sorted_into(&mut self.sorted, added, self.max_keys, &mut self.uncounted) {
            let largest = self.sorted.last().map(|&(key, _)| key);
            self.largest_key = self.largest_key.min(largest).or(largest);
        }
    }

    /// Removes the counters of keys beyond the limit and adds them to the sums.
    fn apply_key_limit(&mut self) {
        let kept_len = |largest| self.sorted.partition_point(|&(key, _)| key <= largest);
        let kept_len = self.largest_key.map_or(self.sorted.len(), kept_len);
        if kept_len > self.max_keys {
            self.largest_key = self.sorted[..self.max_keys].last().map(|&(key, _)| key);
        }
        for (key, count) in self.sorted.drain(kept_len.min(self.max_keys)..) {
            add_uncounted(&mut self.uncounted, key, count);
        }
    }
}

fn add_uncounted<K: CounterKey>(uncounted: &mut [u64; KINDS], key: K, count: u64) {
    if let Some(sum) = uncounted.get_mut(usize::from(key.key_kind())) {
        *sum = sum.wrapping_add(count);
    }
}

/// Sorts counts, sums those of equal keys, and removes zeros.
fn sort_and_sum<K: CounterKey>(counts: &mut Buffer<(K, u64)>) {
    sort_by_key(counts);
    counts.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1 = kept.1.wrapping_add(next.1);
        }
        same
    });
    counts.retain(|&(_, count)| count != 0);
}

/// Merges sorted counts into sorted counts, in start from the back, with no added memory than needed. Adds what is
/// beyond the first `max_keys` keys to `beyond`; returns whether there is any.
fn merge_sorted_into<K: CounterKey>(
    all: &mut Buffer<(K, u64)>,
    added: &[(K, u64)],
    max_keys: usize,
    beyond: &mut [u64; KINDS],
) -> bool {
    let mut rest = all.iter().peekable();
    let (mut new, mut has_vanished) = (0, false);
    for &(key, count) in added {
        while rest.next_if(|&&(before, _)| before < key).is_some() {}
        match rest.peek() {
            Some(&&(before, had)) if before == key => has_vanished |= had.wrapping_add(count) == 0,
            _ => new += 1,
        }
    }
    // Keys that vanish take no room; the limit can only be applied after they are removed.
    let max_keys = if has_vanished { usize::MAX } else { max_keys };
    let mut from = all.len();
    let mut to = from + new;
    let kept = to.min(max_keys);
    let is_cut = kept < to;
    all.reserve_exact(kept.saturating_sub(from));
    all.resize(kept.max(from), (K::default(), 0));
    let mut write = |all: &mut Buffer<(K, u64)>, to: usize, (key, count)| match to < kept {
        true => all[to] = (key, count),
        false => add_uncounted(beyond, key, count),
    };
    for &(key, count) in added.iter().rev() {
        while from > 0 && all[from - 1].0 > key {
            from -= 1;
            to -= 1;
            let row = all[from];
            write(all, to, row);
        }
        let mut sum = count;
        if from > 0 && all[from - 1].0 == key {
            from -= 1;
            sum = sum.wrapping_add(all[from].1);
        }
        to -= 1;
        write(all, to, (key, sum));
    }
    while from > kept {
        from -= 1;
        let row = all[from];
        write(all, from, row);
    }
    all.truncate(kept);
    if has_vanished {
        all.retain(|&(_, count)| count != 0);
    }
    is_cut
}

fn sort_by_key<K: CounterKey>(counts: &mut Buffer<(K, u64)>) {
    if counts.len() < MIN_RADIX_SORT {
        counts.sort_unstable_by_key(|&(key, _)| key);
        return;
    }
    let first = counts[0].0.primary_sort_key();
    let differ = counts.iter().fold(0, |differ, &(key, _)| {
        differ | key.primary_sort_key() ^ first
    });
    let mut to = Buffer::filled((K::default(), 0), counts.len());
    for shift in (0..u64::BITS).step_by(DIGIT_BITS as usize) {
        if differ >> shift & DIGIT_MASK != 0 {
            sort_by_digit(counts, &mut to, shift);
            swap(counts, &mut to);
        }
    }
    for same in
        counts.chunk_by_mut(|one, next| one.0.primary_sort_key() == next.0.primary_sort_key())
    {
        if same.len() > 1 {
            same.sort_unstable_by_key(|&(key, _)| key);
        }
    }
}

/// Sorts by one digit, stably.
fn sort_by_digit<K: CounterKey>(from: &[(K, u64)], to: &mut [(K, u64)], shift: u32) {
    let digit = |key: K| (key.primary_sort_key() >> shift & DIGIT_MASK) as usize;
    let mut starts = [0; 1 << DIGIT_BITS];
    for &(key, _) in from {
        starts[digit(key)] += 1;
    }
    let mut before = 0;
    for start in &mut starts {
        before += std::mem::replace(start, before);
    }
    for &(key, count) in from {
        let start = &mut starts[digit(key)];
        to[*start] = (key, count);
        *start += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counts_equal_those_of_a_map(
            more in prop::collection::vec(((0..9u64, 0..5u32), 0..3u64), 0..200),
            spread in prop::sample::select(vec![1, 0x1234_5678_9abc_def1u64]),
            less in 0..200usize,
            rounds in 1..500u64,
        ) {
            let (mut counter, mut off, mut map) = (SortedCounter::default(), SortedCounter::default(), BTreeMap::new());
            for round in 0..rounds {
                for (at, &((first, second), count)) in more.iter().enumerate() {
                    let key = (first.wrapping_mul(spread), second);
                    counter.add(key, count);
                    let kept = at >= less || round % 2 == 0;
                    if !kept {
                        off.add(key, count);
                    }
                    *map.entry(key).or_insert(0) += if kept { count } else { 0 };
                }
            }
            prop_assert!(counter.sorted.len() <= 45 && counter.pending.len() <= 45 / 8 + MAX_PENDING);
            let mut all = SortedCounter::default();
            all.subtract_counter(off);
            all.merge_counter(counter);
            let expected: Vec<((u64, u32), u64)> = map.into_iter().filter(|&(_, count)| count != 0).collect();
            prop_assert_eq!(all.sorted_counts(), &expected[..]);
            prop_assert_eq!(&all.into_sorted_counts()[..], expected);
        }

        #[test]
        fn smallest_keys_have_counters_and_others_are_summed(
            parts in prop::collection::vec(
                prop::collection::vec(((0..9u64, 0..2u64, 0..KINDS as u8), 1..3u64), 0..60), 1..6,
            ),
            max_keys in 1..60usize,
            looks in prop::array::uniform7(any::<bool>()),
            discarded in prop::collection::vec(((0..9u64, 0..2u64, 0..KINDS as u8), 1..3u64), 0..60),
        ) {
            let (mut all, mut map) = (SortedCounter::default(), BTreeMap::new());
            all.limit_key_count(max_keys);
            for (part, look) in parts.iter().zip(&looks[1..]) {
                let mut counter = SortedCounter::default();
                counter.limit_key_count(max_keys);
                for &(key, count) in part {
                    counter.add(key, count);
                    *map.entry(key).or_insert(0) += count;
                    if *look {
                        counter.sorted_counts();
                    }
                }
                all.merge_counter(counter);
            }
            // Counts that are subtracted before the limit applies leave nothing.
            all.limit_key_count(usize::MAX);
            let mut off = SortedCounter::default();
            for (key, count) in discarded {
                all.add(key, count);
                off.add(key, count);
            }
            if looks[0] {
                all.sorted_counts();
            }
            all.subtract_counter(off);
            all.limit_key_count(max_keys);
            let sums: Vec<_> = map.into_iter().collect();
            let (kept, rest) = sums.split_at(max_keys.min(sums.len()));
            prop_assert_eq!(all.sorted_counts(), kept);
            let mut uncounted = [0; KINDS];
            rest.iter().for_each(|&((_, _, kind), count)| uncounted[usize::from(kind)] += count);
            prop_assert_eq!(all.counts_beyond_limit(), uncounted);
        }

        #[test]
        fn merging_keeps_order_and_limit(
            some in prop::collection::btree_map((0..99u64, 0..2u32), 1..3u64, 0..150),
            more in prop::collection::btree_map(
                (0..99u64, 0..2u32), prop::sample::select(vec![1, 2, u64::MAX]), 0..150,
            ),
            max_keys in prop::option::of(0..200usize),
        ) {
            // With a limit no key vanishes.
            let lasting = |(key, count)| (key, if max_keys.is_some() { count & 3 } else { count });
            let more: Vec<_> = more.into_iter().map(lasting).collect();
            let mut all: Buffer<((u64, u32), u64)> = some.clone().into_iter().collect();
            let mut rest = [0; KINDS];
            let is_cut = merge_sorted_into(&mut all, &more, max_keys.unwrap_or(usize::MAX), &mut rest);
            let mut sums = some;
            for (key, count) in more {
                let sum = sums.entry(key).or_insert(0);
                *sum = sum.wrapping_add(count);
            }
            sums.retain(|_, &mut count| count != 0);
            let sums: Vec<_> = sums.into_iter().collect();
            let (kept, beyond) = sums.split_at(max_keys.map_or(sums.len(), |max_keys| max_keys.min(sums.len())));
            prop_assert_eq!(&all[..], kept);
            prop_assert_eq!(is_cut, !beyond.is_empty());
            prop_assert_eq!(rest.iter().sum::<u64>(), beyond.iter().map(|&(_, count)| count).sum());
        }
    }
}
