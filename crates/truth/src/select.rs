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
    filters: Vec<Range>,
    stops: Vec<Range>,
    stopped: bool,
    off: bool,
}

impl Selector {
    /// No filter ranges: everything passes; the part of a filter range that a stop range overlaps acts as stop range.
    pub fn new(filters: Vec<(u64, u64)>, stops: Vec<(u64, u64)>) -> Self {
        let numbered = |all: Vec<(u64, u64)>, stop| {
            let ranges = (0..).zip(all).map(|(number, (first, last))| Range {
                number,
                stop,
                first,
                last,
            });
            ranges.collect()
        };
        Selector {
            filters: numbered(filters, false),
            stops: numbered(stops, true),
            stopped: false,
            off: false,
        }
    }

    /// The ranges are these from here on: number 0 comes first, and a number that comes again takes the place of what had
    /// it, and of those after it.
    pub fn set(&mut self, range: Range) {
        for ranges in [&mut self.filters, &mut self.stops] {
            ranges.retain(|before| before.number < range.number);
        }
        match range.stop {
            true => self.stops.push(range),
            false => self.filters.push(range),
        }
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

fn within(ranges: &[Range], ip: u64) -> bool {
    let holds = |range: &Range| range.first <= ip && ip <= range.last;
    ranges.iter().any(holds)
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

    /// Of whichever kind it was.
    #[test]
    fn a_number_that_comes_again_is_no_filter_and_no_stop_any_more() {
        let run = |start| Run {
            start,
            instructions: 1,
            hash: 0,
        };
        let range = |number, stop, first| Range {
            number,
            stop,
            first,
            last: first + 9,
        };
        let mut selector = Selector::default();
        selector.set(range(0, false, 100));
        selector.set(range(1, true, 200));
        selector.set(range(1, true, 300));
        selector.set(range(1, false, 400));
        assert!([100, 400].map(run).iter().all(|run| selector.keeps(run)));
        assert!([200, 300].map(run).iter().all(|run| !selector.keeps(run)));
        assert!(!selector.stopped());
        selector.set(range(1, true, 300));
        assert!(selector.keeps(&run(100)) && !selector.keeps(&run(400)));
        assert!(!selector.keeps(&run(300)) && selector.stopped());
    }
}
