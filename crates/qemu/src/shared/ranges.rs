//! Address filters: parts of files, and where these are in the process (section 33.2.5.3).
//!
//! A range that is in no mapping yet stands as 0 to 0, where no code is. What is found counts for a thread from the next
//! time on that the driver's part sets its TraceEn: as everywhere, a switch follows on each new mapping.

use rtit_unit::{Range, RangeKind};

use crate::shared::maps::Mapped;

/// A record of a truth file.
const RANGE: u32 = 6;

/// `size` bytes from `offset` of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) path: Vec<u8>,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// One filter of the recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Filter {
    kind: RangeKind,
    part: Part,
}

impl Part {
    /// Reads `OFFSET SIZE PATH`: two decimal numbers, and the path's bytes in hexadecimal.
    pub(crate) fn parse(text: &str) -> Option<Part> {
        let mut words = text.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (offset, size) = (number()?, number()?);
        let path = unhex(words.next()?)?;
        Some(Part { path, offset, size })
    }

    /// First and last address of what of it is in a mapping.
    pub(crate) fn within(&self, mapped: &Mapped) -> Option<(u64, u64)> {
        let end = mapped.offset.checked_add(mapped.end - mapped.start)?;
        let first = self.offset.max(mapped.offset);
        let after = self.offset.checked_add(self.size)?.min(end);
        if self.path != mapped.path || first >= after {
            return None;
        }
        let at = |offset: u64| mapped.start + (offset - mapped.offset);
        Some((at(first), at(after - 1)))
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect()
}

impl Filter {
    /// Reads `filter PART` or `stop PART`.
    pub(crate) fn parse(text: &str) -> Result<Filter, String> {
        let wrong = || format!("settings: no filter: {text}");
        let (kind, part) = text.split_once(' ').ok_or_else(wrong)?;
        let kind = match kind {
            "filter" => RangeKind::FilterEn,
            "stop" => RangeKind::TraceStop,
            _ => return Err(wrong()),
        };
        let part = Part::parse(part).ok_or_else(wrong)?;
        Ok(Filter { kind, part })
    }
}

/// The ranges of a process, one a filter.
#[derive(Clone, Default, Debug)]
pub(crate) struct Ranges(Vec<Range>);

impl Ranges {
    pub(crate) fn new(filters: &[Filter]) -> Ranges {
        let nowhere = |filter: &Filter| Range {
            kind: filter.kind,
            first: 0,
            last: 0,
        };
        Ranges(filters.iter().map(nowhere).collect())
    }

    /// Code of a file can run from now on.
    pub(crate) fn mapped(&mut self, filters: &[Filter], mapped: &Mapped) {
        for (range, filter) in self.0.iter_mut().zip(filters) {
            let Some((first, last)) = filter.part.within(mapped) else {
                continue;
            };
            // Another piece of the same mapping, which the program has split, goes on where this one ends.
            (range.first, range.last) = match (range.first, range.last) {
                (old, end) if old != 0 && end.wrapping_add(1) == first => (old, last),
                (old, end) if old != 0 && last.wrapping_add(1) == old => (first, end),
                _ => (first, last),
            };
        }
    }

    pub(crate) fn as_slice(&self) -> &[Range] {
        &self.0
    }

    /// As records of a truth file.
    pub(crate) fn records(&self, tid: u32) -> Vec<u8> {
        let mut records = Vec::new();
        for (number, range) in (0u32..).zip(&self.0) {
            let kind = 1 + u32::from(range.kind == RangeKind::TraceStop);
            for word in [RANGE, 24, tid, number | kind << 16] {
                records.extend(word.to_le_bytes());
            }
            records.extend(range.first.to_le_bytes());
            records.extend(range.last.to_le_bytes());
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(start: u64, end: u64, offset: u64) -> Mapped {
        Mapped {
            start,
            end,
            offset,
            major: 0,
            minor: 0,
            inode: 1,
            path: b"/a".to_vec(),
        }
    }

    fn found(ranges: &Ranges) -> (u64, u64) {
        (ranges.as_slice()[0].first, ranges.as_slice()[0].last)
    }

    #[test]
    fn a_filter_becomes_a_range_where_its_file_is_mapped() {
        let filters = [Filter::parse("filter 4112 32 2f61").unwrap()];
        let mut ranges = Ranges::new(&filters);
        ranges.mapped(&filters, &mapped(0x7000, 0x8000, 0));
        assert_eq!(found(&ranges), (0, 0));
        ranges.mapped(&filters, &mapped(0x8000, 0x9000, 0x1000));
        assert_eq!(found(&ranges), (0x8010, 0x802f));
        let other = Mapped {
            path: b"/b".to_vec(),
            ..mapped(0xa000, 0xb000, 0x1000)
        };
        ranges.mapped(&filters, &other);
        assert_eq!(found(&ranges), (0x8010, 0x802f));
        // Mapped again elsewhere: the later place counts.
        ranges.mapped(&filters, &mapped(0xc000, 0xd000, 0x1000));
        assert_eq!(found(&ranges), (0xc010, 0xc02f));
    }

    #[test]
    fn pieces_of_one_mapping_make_one_range() {
        let filters = [Filter::parse("stop 0 12288 2f61").unwrap()];
        let mut ranges = Ranges::new(&filters);
        ranges.mapped(&filters, &mapped(0x8000, 0x9000, 0x1000));
        ranges.mapped(&filters, &mapped(0x9000, 0xf000, 0x2000));
        assert_eq!(found(&ranges), (0x8000, 0x9fff));
        ranges.mapped(&filters, &mapped(0x7000, 0x8000, 0));
        assert_eq!(found(&ranges), (0x7000, 0x9fff));
        assert_eq!(ranges.records(7).len(), 8 + 24);
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for bad in [
            "",
            "filter",
            "begin 0 1 2f61",
            "filter 0 1",
            "filter 0 x 2f",
            "stop 0 1 zz",
        ] {
            assert!(Filter::parse(bad).is_err(), "{bad}");
        }
    }
}
