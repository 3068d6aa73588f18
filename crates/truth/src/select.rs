//! What address filters let through (IP filtering and TraceStop, section 33.2.5.3).

use crate::Run;

/// An address range that a unit was given, both ends inside; 0 to 0 is nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// n of IA32_RTIT_ADDRn_A, 3 at most.
    pub number: u32,
    /// TraceStop, not FilterEn.
    pub stop: bool,
    pub first: u64,
    pub last: u64,
}

/// Takes the part of a thread's path that is traced under FilterEn and TraceStop ranges. A range is inclusive at both
/// ends, as IA32_RTIT_ADDRn_A and _B are.
///
/// Both are evaluated where a run begins, which is the target of a taken branch or an entry from outside; execution
/// that leaves a range sequentially stays traced until the next taken branch. So the truth must begin a run exactly
/// there.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    filters: Vec<(u64, u64)>,
    stops: Vec<(u64, u64)>,
    stopped: bool,
    off: bool,
}

impl Selector {
    /// No filter ranges: everything passes; the part of a filter range that a stop range overlaps acts as stop range.
    pub fn new(filters: Vec<(u64, u64)>, stops: Vec<(u64, u64)>) -> Self {
        Selector {
            filters,
            stops,
            stopped: false,
            off: false,
        }
    }

    /// The ranges are these from here on: number 0 comes first.
    pub fn set(&mut self, range: Range) {
        if range.number == 0 {
            self.filters.clear();
            self.stops.clear();
        }
        let into = match range.stop {
            true => &mut self.stops,
            false => &mut self.filters,
        };
        // a number that comes again takes the place of what had it
        into.truncate(range.number as usize);
        into.push((range.first, range.last));
    }

    /// TraceEn.
    pub fn turn(&mut self, on: bool) {
        self.off = !on;
    }

    /// Whether `run`, the thread's next, is traced.
    pub fn keeps(&mut self, run: &Run) -> bool {
        if self.off {
            return false;
        }
        self.stopped = self.stopped || within(&self.stops, run.start);
        !self.stopped && (self.filters.is_empty() || within(&self.filters, run.start))
    }

    /// Whether TraceStop has ended this thread's trace.
    pub fn stopped(&self) -> bool {
        self.stopped
    }
}

fn within(ranges: &[(u64, u64)], ip: u64) -> bool {
    ranges
        .iter()
        .any(|&(first, last)| first <= ip && ip <= last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_is_set_again_is_another() {
        let mut selector = Selector::default();
        let range = |number, first| Range {
            number,
            stop: false,
            first,
            last: first + 9,
        };
        let mut keeps = |set: &[Range], start| {
            set.iter().for_each(|range| selector.set(*range));
            selector.keeps(&Run {
                start,
                instructions: 1,
                hash: 0,
            })
        };
        assert!(keeps(&[range(0, 100), range(1, 200)], 100));
        assert!(keeps(&[range(1, 300)], 100));
        assert!(keeps(&[], 300) && !keeps(&[], 200));
        assert!(keeps(&[range(0, 400)], 400) && !keeps(&[], 300));
    }
}
