//! Sorted, non-overlapping sections of bytes: the content of a space at one moment.

use crate::bytes::Bytes;

/// Bytes at `start..end`.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub start: u64,
    pub end: u64,
    pub bytes: Bytes,
}

impl Section {
    /// The part of this section within `start..end`, which it must overlap.
    pub(crate) fn part(&self, start: u64, end: u64) -> Section {
        let from = start.clamp(self.start, self.end);
        let to = end.clamp(from, self.end);
        let bytes = self
            .bytes
            .cut((from - self.start) as usize, (to - self.start) as usize);
        Section {
            start: from,
            end: to,
            bytes,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sections {
    sorted: Vec<Section>,
}

impl Sections {
    /// `sections` must not overlap; any order.
    pub(crate) fn new(mut sections: Vec<Section>) -> Sections {
        sections.sort_unstable_by_key(|section| section.start);
        Sections { sorted: sections }
    }

    /// Whether these are the same parts of the same allocations at the same addresses.
    pub(crate) fn are(&self, other: &Sections) -> bool {
        let same = |(one, two): (&Section, &Section)| {
            (one.start, one.end) == (two.start, two.end) && one.bytes.is(&two.bytes)
        };
        self.sorted.len() == other.sorted.len() && self.sorted.iter().zip(&other.sorted).all(same)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The section that holds `address`, and those after it.
    pub(crate) fn from(&self, address: u64) -> &[Section] {
        let first = self
            .sorted
            .partition_point(|section| section.end <= address);
        match self.sorted.get(first..) {
            Some(rest @ [section, ..]) if section.start <= address => rest,
            _ => &[],
        }
    }

    /// Where the first section behind `address` begins.
    pub(crate) fn after(&self, address: u64) -> Option<u64> {
        let next = self
            .sorted
            .partition_point(|section| section.start <= address);
        self.sorted.get(next).map(|section| section.start)
    }

    /// The parts of `start..end` that are in no section.
    pub(crate) fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let (first, last) = self.overlapped(start, end);
        let within = self.sorted.get(first..last).unwrap_or(&[]);
        let starts = within.iter().map(|section| section.start).chain([end]);
        let ends = within.iter().map(|section| section.end);
        let gaps = [start].into_iter().chain(ends).zip(starts);
        gaps.filter(|(from, to)| from < to).collect()
    }

    /// Puts `new` over what is there. Returns the ranges that were readable before and read
    /// differently now.
    pub(crate) fn overlay(&mut self, new: Section) -> Vec<(u64, u64)> {
        let (first, last) = self.overlapped(new.start, new.end);
        let old = self.sorted.get(first..last).unwrap_or(&[]);
        if let [only] = old {
            if only.start == new.start && only.end == new.end && only.bytes.is(&new.bytes) {
                return Vec::new();
            }
        }
        let changed = old
            .iter()
            .filter_map(|section| difference(section, &new))
            .collect();
        let before = old.first().filter(|section| section.start < new.start);
        let after = old.last().filter(|section| section.end > new.end);
        let before = before.map(|section| section.part(section.start, new.start));
        let after = after.map(|section| section.part(new.end, section.end));
        let parts = before.into_iter().chain([new]).chain(after);
        self.sorted.splice(first..last, parts);
        changed
    }

    /// Removes what is in `start..end`. Returns the ranges that were readable before.
    pub(crate) fn remove(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let (first, last) = self.overlapped(start, end);
        let mut removed = Vec::new();
        let mut kept = Vec::new();
        for section in self.sorted.drain(first..last) {
            if section.start < start {
                kept.push(section.part(section.start, start));
            }
            removed.push((section.start.max(start), section.end.min(end)));
            if section.end > end {
                kept.push(section.part(end, section.end));
            }
        }
        self.sorted.splice(first..first, kept);
        removed
    }

    /// Indices of the sections that overlap `start..end`.
    fn overlapped(&self, start: u64, end: u64) -> (usize, usize) {
        let first = self.sorted.partition_point(|section| section.end <= start);
        let last = self.sorted.partition_point(|section| section.start < end);
        (first, last.max(first))
    }
}

/// The smallest range that holds every byte in which `old` and `new` differ where they overlap.
fn difference(old: &Section, new: &Section) -> Option<(u64, u64)> {
    let (start, end) = (old.start.max(new.start), old.end.min(new.end));
    let (before, after) = (old.part(start, end), new.part(start, end));
    if before.bytes.is(&after.bytes) {
        return None;
    }
    let (before, after) = (before.bytes.as_slice(), after.bytes.as_slice());
    let differs = |(a, b): (&u8, &u8)| a != b;
    let first = before.iter().zip(after).position(differs)? as u64;
    let last = before.iter().zip(after).rposition(differs)? as u64;
    Some((start + first, start + last + 1))
}
