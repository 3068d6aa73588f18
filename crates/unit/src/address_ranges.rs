//! IP filtering and TraceStop ranges (section 33.2.5.3).

use crate::error::Error;

/// The purpose of an address range (ADDRn_CFG, Table 33-6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeKind {
    /// Code inside the range is traced.
    FilterEn,
    /// A branch into the range ends the trace.
    TraceStop,
}

/// An address range; both ends belong to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressRange {
    pub kind: RangeKind,
    pub first: u64,
    pub last: u64,
}

/// The ranges in use.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct AddressRanges {
    all: Vec<AddressRange>,
    /// All ranges are within `size` bytes from here.
    start: u64,
    size: u64,
}

impl AddressRanges {
    pub(crate) fn new(ranges: &[AddressRange]) -> Result<AddressRanges, Error> {
        if ranges.len() > 4 {
            return Err(Error::TooManyRanges(ranges.len()));
        }
        let start = ranges.iter().map(|range| range.first).min().unwrap_or(0);
        let last = ranges.iter().map(|range| range.last).max().unwrap_or(0);
        Ok(AddressRanges {
            all: ranges.to_vec(),
            start,
            size: last.saturating_sub(start),
        })
    }

    /// Returns true only if `ip` is in no range, by one comparison.
    #[inline(always)]
    pub(crate) fn is_far_from(&self, ip: u64) -> bool {
        ip.wrapping_sub(self.start) > self.size
    }

    pub(crate) fn as_slice(&self) -> &[AddressRange] {
        &self.all
    }

    pub(crate) fn is_used(&self) -> bool {
        !self.all.is_empty()
    }

    pub(crate) fn has_filter(&self) -> bool {
        self.all
            .iter()
            .any(|range| range.kind == RangeKind::FilterEn)
    }

    /// Returns FilterEn at `ip`. Without FilterEn ranges all code is inside (section 33.2.6.5).
    pub(crate) fn filter_en(&self, ip: u64) -> bool {
        !self.has_filter() || self.contains(RangeKind::FilterEn, ip)
    }

    /// Returns whether a branch or event that continues at `ip` meets the TraceStop condition.
    pub(crate) fn is_trace_stop(&self, ip: u64) -> bool {
        self.contains(RangeKind::TraceStop, ip)
    }

    fn contains(&self, kind: RangeKind, ip: u64) -> bool {
        let inside =
            |range: &AddressRange| range.kind == kind && (range.first..=range.last).contains(&ip);
        self.all.iter().any(inside)
    }
}
