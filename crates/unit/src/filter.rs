//! Filtering by IP, and TraceStop (section 33.2.5.3).

use crate::error::Error;

/// What an address range is for (ADDRn_CFG, Table 33-6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeKind {
    /// Code inside is traced.
    FilterEn,
    /// A branch into it ends the trace.
    TraceStop,
}

/// One range, both ends inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub kind: RangeKind,
    pub first: u64,
    pub last: u64,
}

/// The ranges in use.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Ranges {
    all: Vec<Range>,
    /// All of them are from here on, within so many bytes.
    start: u64,
    size: u64,
}

impl Ranges {
    pub(crate) fn new(ranges: &[Range]) -> Result<Ranges, Error> {
        if ranges.len() > 4 {
            return Err(Error::TooManyRanges(ranges.len()));
        }
        let start = ranges.iter().map(|range| range.first).min().unwrap_or(0);
        let last = ranges.iter().map(|range| range.last).max().unwrap_or(0);
        Ok(Ranges {
            all: ranges.to_vec(),
            start,
            size: last.saturating_sub(start),
        })
    }

    /// Certainly in none of them: one comparison.
    #[inline(always)]
    pub(crate) fn far_from(&self, ip: u64) -> bool {
        ip.wrapping_sub(self.start) > self.size
    }

    pub(crate) fn as_slice(&self) -> &[Range] {
        &self.all
    }

    pub(crate) fn used(&self) -> bool {
        !self.all.is_empty()
    }

    pub(crate) fn filter(&self) -> bool {
        self.all
            .iter()
            .any(|range| range.kind == RangeKind::FilterEn)
    }

    /// FilterEn at `ip`; without FilterEn ranges all code is inside (section 33.2.6.5).
    pub(crate) fn filter_en(&self, ip: u64) -> bool {
        !self.filter() || self.hit(RangeKind::FilterEn, ip)
    }

    /// Whether a branch or event that lands at `ip` meets the TraceStop condition.
    pub(crate) fn stops(&self, ip: u64) -> bool {
        self.hit(RangeKind::TraceStop, ip)
    }

    fn hit(&self, kind: RangeKind, ip: u64) -> bool {
        let inside = |range: &Range| range.kind == kind && (range.first..=range.last).contains(&ip);
        self.all.iter().any(inside)
    }
}
