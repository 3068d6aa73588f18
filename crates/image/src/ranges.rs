//! A set of addresses as disjoint half-open ranges.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    /// start -> end; no two ranges touch.
    by_start: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds `start..end` and returns the parts that were not in the set, in order.
    pub(crate) fn add(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut new = Vec::new();
        if start >= end {
            return new;
        }
        let first = match self.by_start.range(..=start).next_back() {
            Some((&from, &to)) if to >= start => from,
            _ => start,
        };
        let absorbed: Vec<(u64, u64)> = self
            .by_start
            .range(first..=end)
            .map(|(&from, &to)| (from, to))
            .collect();
        let mut at = start;
        let mut last = end;
        for (from, to) in absorbed {
            if from > at {
                new.push((at, from));
            }
            at = at.max(to);
            last = last.max(to);
            self.by_start.remove(&from);
        }
        if at < end {
            new.push((at, end));
        }
        self.by_start.insert(first.min(start), last);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn gaps_between_ranges_are_what_is_new() {
        let mut set = Ranges::default();
        assert_eq!(set.add(10, 20), [(10, 20)]);
        assert_eq!(set.add(30, 40), [(30, 40)]);
        assert_eq!(set.add(5, 35), [(5, 10), (20, 30)]);
        assert_eq!(set.add(5, 40), []);
        assert_eq!(set.add(40, 41), [(40, 41)]);
        assert_eq!(set.add(0, u64::MAX), [(0, 5), (41, u64::MAX)]);
        assert_eq!(set.add(7, 7), []);
    }
}
