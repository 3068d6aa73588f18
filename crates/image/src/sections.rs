//! Sorted, non-overlapping sections of bytes: the content of a space at one moment.

use std::collections::BTreeMap;

use crate::bytes::SharedBytes;

/// Bytes at `start..end`.
#[derive(Clone, Debug)]
pub(crate) struct MemorySection {
    pub start: u64,
    pub end: u64,
    pub bytes: SharedBytes,
}

impl MemorySection {
    /// The part of this section within `start..end`, which it must overlap.
    pub(crate) fn clamp_to_range(&self, start: u64, end: u64) -> MemorySection {
        let from = start.clamp(self.start, self.end);
        let to = end.clamp(from, self.end);
        let bytes = self
            .bytes
            .slice_of_clamped_range((from - self.start) as usize, (to - self.start) as usize);
        MemorySection {
            start: from,
            end: to,
            bytes,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct MemorySections {
    sorted: Vec<MemorySection>,
}

impl MemorySections {
    /// `sections` must not overlap; any order.
    pub(crate) fn new(mut sections: Vec<MemorySection>) -> MemorySections {
        sections.sort_unstable_by_key(|section| section.start);
        MemorySections { sorted: sections }
    }

    /// Whether these are the same parts of the same allocations at the same addresses.
    pub(crate) fn are_same_parts_as(&self, other: &MemorySections) -> bool {
        let same = |(one, two): (&MemorySection, &MemorySection)| {
            (one.start, one.end) == (two.start, two.end)
                && one.bytes.is_same_allocation_part(&two.bytes)
        };
        self.sorted.len() == other.sorted.len() && self.sorted.iter().zip(&other.sorted).all(same)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Returns the section with `address` and those after it; none if no section has it.
    pub(crate) fn sections_from_address(&self, address: u64) -> &[MemorySection] {
        let first = self
            .sorted
            .partition_point(|section| section.end <= address);
        match self.sorted.get(first..) {
            Some(rest @ [section, ..]) if section.start <= address => rest,
            _ => &[],
        }
    }

    /// Returns the start of the first section after `address`.
    pub(crate) fn next_section_start(&self, address: u64) -> Option<u64> {
        let next = self
            .sorted
            .partition_point(|section| section.start <= address);
        self.sorted.get(next).map(|section| section.start)
    }

    /// Returns the parts of `start..end` that are in no section.
    pub(crate) fn gaps_in_range(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let (first, last) = self.overlapped_indices(start, end);
        let within = self.sorted.get(first..last).unwrap_or(&[]);
        let starts = within.iter().map(|section| section.start).chain([end]);
        let ends = within.iter().map(|section| section.end);
        let gaps = [start].into_iter().chain(ends).zip(starts);
        gaps.filter(|(from, to)| from < to).collect()
    }

    /// Replaces what `new` overlaps. Returns the ranges that were readable and now differ.
    pub(crate) fn overlay_section(&mut self, new: MemorySection) -> Vec<(u64, u64)> {
        let (first, last) = self.overlapped_indices(new.start, new.end);
        let old = self.sorted.get(first..last).unwrap_or(&[]);
        if let [only] = old {
            if only.start == new.start
                && only.end == new.end
                && only.bytes.is_same_allocation_part(&new.bytes)
            {
                return Vec::new();
            }
        }
        let changed = old
            .iter()
            .filter_map(|section| differing_range(section, &new))
            .collect();
        let before = old.first().filter(|section| section.start < new.start);
        let after = old.last().filter(|section| section.end > new.end);
        let before = before.map(|section| section.clamp_to_range(section.start, new.start));
        let after = after.map(|section| section.clamp_to_range(new.end, section.end));
        let parts = before.into_iter().chain([new]).chain(after);
        self.sorted.splice(first..last, parts);
        changed
    }

    /// Removes what is in `start..end`. Returns the ranges that were readable before.
    pub(crate) fn remove_range(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let (first, last) = self.overlapped_indices(start, end);
        let mut removed = Vec::new();
        let mut kept = Vec::new();
        for section in self.sorted.drain(first..last) {
            if section.start < start {
                kept.push(section.clamp_to_range(section.start, start));
            }
            removed.push((section.start.max(start), section.end.min(end)));
            if section.end > end {
                kept.push(section.clamp_to_range(end, section.end));
            }
        }
        self.sorted.splice(first..first, kept);
        removed
    }

    /// Indices of the sections that overlap `start..end`.
    fn overlapped_indices(&self, start: u64, end: u64) -> (usize, usize) {
        let first = self.sorted.partition_point(|section| section.end <= start);
        let last = self.sorted.partition_point(|section| section.start < end);
        (first, last.max(first))
    }
}

/// The smallest range that holds every byte in which `old` and `new` differ where they overlap.
fn differing_range(old: &MemorySection, new: &MemorySection) -> Option<(u64, u64)> {
    let (start, end) = (old.start.max(new.start), old.end.min(new.end));
    let (before, after) = (
        old.clamp_to_range(start, end),
        new.clamp_to_range(start, end),
    );
    if before.bytes.is_same_allocation_part(&after.bytes) {
        return None;
    }
    let (before, after) = (before.bytes.as_slice(), after.bytes.as_slice());
    let differs = |(a, b): (&u8, &u8)| a != b;
    let first = before.iter().zip(after).position(differs)? as u64;
    let last = before.iter().zip(after).rposition(differs)? as u64;
    Some((start + first, start + last + 1))
}

/// A set of addresses as disjoint half-open ranges.
#[derive(Clone, Debug, Default)]
pub(crate) struct DisjointRanges {
    /// start -> end; no two ranges touch.
    by_start: BTreeMap<u64, u64>,
}

impl DisjointRanges {
    /// Adds `start..end` and returns the parts that were not in the set, in order.
    pub(crate) fn add_range(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
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
    use super::DisjointRanges;

    #[test]
    fn added_ranges_return_the_gaps_that_they_fill() {
        let mut set = DisjointRanges::default();
        assert_eq!(set.add_range(10, 20), [(10, 20)]);
        assert_eq!(set.add_range(30, 40), [(30, 40)]);
        assert_eq!(set.add_range(5, 35), [(5, 10), (20, 30)]);
        assert_eq!(set.add_range(5, 40), []);
        assert_eq!(set.add_range(40, 41), [(40, 41)]);
        assert_eq!(set.add_range(0, u64::MAX), [(0, 5), (41, u64::MAX)]);
        assert_eq!(set.add_range(7, 7), []);
    }
}
