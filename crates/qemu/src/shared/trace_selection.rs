//! The parts of the execution that are traced: address filters and the recording window.
//!
//! **Address filters** (section 33.2.5.3) name parts of files. They become address ranges when the file is mapped; a
//! filter without a mapping is the range 0 to 0, where no code is. A changed range takes effect when the thread next
//! sets TraceEn, which it does after each new mapping.
//!
//! **The recording window** goes from a start edge to a stop edge: an address in a file, or a number of retired
//! instructions of all threads. `thread_events` acts at the edges.

use rtit_events::code::Mapping;
use rtit_truth::format::RANGE;
use rtit_unit::{AddressRange, RangeKind};

use crate::shared::shared_state::SharedClock;
use crate::thread::thread_state::{BEFORE_START, TRACED};
use crate::thread::translation_block::{TranslationBlock, WINDOW_START, WINDOW_STOP};

/// `size` bytes from `offset` of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileRange {
    pub(crate) path: Vec<u8>,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// An address filter of the recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AddressFilter {
    kind: RangeKind,
    part: FileRange,
}

impl FileRange {
    /// Parses `OFFSET SIZE PATH`: two decimal numbers, and the bytes of the path in hexadecimal.
    pub(crate) fn parse_file_range(text: &str) -> Option<FileRange> {
        let mut words = text.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (offset, size) = (number()?, number()?);
        let path = parse_hex(words.next()?)?;
        Some(FileRange { path, offset, size })
    }

    /// Returns the first and last address at which a mapping shows this part of the file.
    pub(crate) fn addresses_in_mapping(&self, mapped: &Mapping) -> Option<(u64, u64)> {
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

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect()
}

impl AddressFilter {
    /// Parses `filter PART` or `stop PART`.
    pub(crate) fn parse_address_filter(text: &str) -> Result<AddressFilter, String> {
        let wrong = || format!("settings: no filter: {text}");
        let (kind, part) = text.split_once(' ').ok_or_else(wrong)?;
        let kind = match kind {
            "filter" => RangeKind::FilterEn,
            "stop" => RangeKind::TraceStop,
            _ => return Err(wrong()),
        };
        let part = FileRange::parse_file_range(part).ok_or_else(wrong)?;
        Ok(AddressFilter { kind, part })
    }
}

/// The address ranges of a process, one for each filter.
#[derive(Clone, Default, Debug)]
pub(crate) struct ProcessRanges(Vec<AddressRange>);

impl ProcessRanges {
    pub(crate) fn new(filters: &[AddressFilter]) -> ProcessRanges {
        let nowhere = |filter: &AddressFilter| AddressRange {
            kind: filter.kind,
            first: 0,
            last: 0,
        };
        ProcessRanges(filters.iter().map(nowhere).collect())
    }

    /// Updates the ranges for a new mapping.
    pub(crate) fn update_ranges_for_mapping(
        &mut self,
        filters: &[AddressFilter],
        mapped: &Mapping,
    ) {
        for (range, filter) in self.0.iter_mut().zip(filters) {
            let Some((first, last)) = filter.part.addresses_in_mapping(mapped) else {
                continue;
            };
            // The program has split a mapping: the next part continues this range.
            (range.first, range.last) = match (range.first, range.last) {
                (old, end) if old != 0 && end.wrapping_add(1) == first => (old, last),
                (old, end) if old != 0 && last.wrapping_add(1) == old => (first, end),
                _ => (first, last),
            };
        }
    }

    pub(crate) fn as_slice(&self) -> &[AddressRange] {
        &self.0
    }

    /// Returns the ranges as records of a truth file.
    pub(crate) fn truth_records(&self, tid: u32) -> Vec<u8> {
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

/// An edge of the recording window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum WindowEdge {
    /// Before the first byte of the range is executed.
    Code(FileRange),
    /// After so many instructions of all threads.
    After(u64),
    /// After so many instructions since the start.
    AfterStart(u64),
}

/// The edges that the recording asks for: start, then stop.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct RecordingWindow {
    edges: [Option<WindowEdge>; 2],
}

/// The addresses of the edges in code, once their files are mapped.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct EdgeAddresses([Option<u64>; 2]);

impl RecordingWindow {
    /// Sets the start or stop edge: `at PART`, `after N` or `plus N`.
    pub(crate) fn set_edge(&mut self, stop: bool, text: &str) -> Result<(), String> {
        let edge = match text.split_once(' ') {
            Some(("at", part)) => FileRange::parse_file_range(part).map(WindowEdge::Code),
            Some(("after", number)) => number.parse().ok().map(WindowEdge::After),
            Some(("plus", number)) => number.parse().ok().map(WindowEdge::AfterStart),
            _ => None,
        };
        let edge = edge.ok_or_else(|| format!("settings: no edge: {text}"))?;
        self.edges[usize::from(stop)] = Some(edge);
        Ok(())
    }

    pub(crate) fn is_used(&self) -> bool {
        self.edges != [None, None]
    }

    /// Returns the phase in which a recording starts.
    pub(crate) fn first_phase(&self) -> u64 {
        if self.edges[0].is_some() {
            BEFORE_START
        } else {
            TRACED
        }
    }

    pub(crate) fn current_phase(&self, clock: &SharedClock) -> u64 {
        clock.window_phase().max(self.first_phase())
    }

    /// Returns the total of retired instructions at which a phase ends; None if an address ends it.
    pub(crate) fn instruction_limit(&self, clock: &SharedClock, phase: u64) -> Option<u64> {
        match self.edges.get(phase as usize)? {
            Some(WindowEdge::After(count)) => Some(*count),
            Some(WindowEdge::AfterStart(count)) => Some(clock.retired_at_start() + count),
            _ => None,
        }
    }
}

impl EdgeAddresses {
    /// Code of a file can run from now on.
    pub(crate) fn update_edges_for_mapping(&mut self, window: &RecordingWindow, mapped: &Mapping) {
        for (point, edge) in self.0.iter_mut().zip(&window.edges) {
            if let Some(WindowEdge::Code(part)) = edge {
                *point = part
                    .addresses_in_mapping(mapped)
                    .map(|(first, _)| first)
                    .or(*point);
            }
        }
    }

    /// Marks a new block that has one in it.
    pub(crate) fn mark_block(&self, block: &TranslationBlock) {
        for (index, mark) in self
            .edges_inside(block)
            .iter()
            .zip([WINDOW_START, WINDOW_STOP])
        {
            if index.is_some() {
                block.add_mark_bits(mark);
            }
        }
    }

    /// Which of its instructions they are.
    pub(crate) fn edges_inside(&self, block: &TranslationBlock) -> [Option<u32>; 2] {
        self.0.map(|point| block.instruction_index_at(point?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_mapping(start: u64, end: u64, offset: u64) -> Mapping {
        Mapping {
            start,
            end,
            offset,
            path: b"/a".to_vec(),
            ..Mapping::default()
        }
    }

    fn first_range(ranges: &ProcessRanges) -> (u64, u64) {
        (ranges.as_slice()[0].first, ranges.as_slice()[0].last)
    }

    #[test]
    fn filter_becomes_a_range_where_its_file_is_mapped() {
        let filters = [AddressFilter::parse_address_filter("filter 4112 32 2f61").unwrap()];
        let mut ranges = ProcessRanges::new(&filters);
        ranges.update_ranges_for_mapping(&filters, &test_mapping(0x7000, 0x8000, 0));
        assert_eq!(first_range(&ranges), (0, 0));
        ranges.update_ranges_for_mapping(&filters, &test_mapping(0x8000, 0x9000, 0x1000));
        assert_eq!(first_range(&ranges), (0x8010, 0x802f));
        let other = Mapping {
            path: b"/b".to_vec(),
            ..test_mapping(0xa000, 0xb000, 0x1000)
        };
        ranges.update_ranges_for_mapping(&filters, &other);
        assert_eq!(first_range(&ranges), (0x8010, 0x802f));
        // Mapped again elsewhere: the later address counts.
        ranges.update_ranges_for_mapping(&filters, &test_mapping(0xc000, 0xd000, 0x1000));
        assert_eq!(first_range(&ranges), (0xc010, 0xc02f));
    }

    #[test]
    fn adjacent_parts_of_a_mapping_make_one_range() {
        let filters = [AddressFilter::parse_address_filter("stop 0 12288 2f61").unwrap()];
        let mut ranges = ProcessRanges::new(&filters);
        ranges.update_ranges_for_mapping(&filters, &test_mapping(0x8000, 0x9000, 0x1000));
        ranges.update_ranges_for_mapping(&filters, &test_mapping(0x9000, 0xf000, 0x2000));
        assert_eq!(first_range(&ranges), (0x8000, 0x9fff));
        ranges.update_ranges_for_mapping(&filters, &test_mapping(0x7000, 0x8000, 0));
        assert_eq!(first_range(&ranges), (0x7000, 0x9fff));
        assert_eq!(ranges.truth_records(7).len(), 8 + 24);
    }

    #[test]
    fn malformed_filters_are_refused() {
        for bad in [
            "",
            "filter",
            "begin 0 1 2f61",
            "filter 0 1",
            "filter 0 x 2f",
            "stop 0 1 zz",
        ] {
            assert!(AddressFilter::parse_address_filter(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn window_edges_are_parsed() {
        let mut window = RecordingWindow::default();
        assert!(!window.is_used());
        window.set_edge(false, "at 16 4 2f61").unwrap();
        window.set_edge(true, "plus 1000").unwrap();
        let Some(WindowEdge::Code(part)) = &window.edges[0] else {
            panic!("{window:?}");
        };
        assert_eq!((part.offset, &part.path[..]), (16, &b"/a"[..]));
        assert_eq!(window.edges[1], Some(WindowEdge::AfterStart(1000)));
        for bad in ["", "at", "at 1", "after x", "plus -1", "when 7"] {
            assert!(window.set_edge(true, bad).is_err(), "{bad}");
        }
    }
}
