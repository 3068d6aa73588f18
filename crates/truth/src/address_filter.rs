//! The part of the truth that address filters let through (IP filtering and TraceStop, section 33.2.5.3).

use std::io::Read;

use crate::{Error, PathRun, TruthItem, TruthReader};

/// An address range of a trace unit, both ends inside; 0 to 0 contains no code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilterRange {
    /// n of IA32_RTIT_ADDRn_A, at most 3.
    pub number: u32,
    /// TraceStop; otherwise FilterEn.
    pub stop: bool,
    pub first: u64,
    pub last: u64,
}

/// Selects the part of a thread's path that is traced under FilterEn and TraceStop ranges. Both ends of a range belong
/// to it, as with IA32_RTIT_ADDRn_A and _B.
///
/// Both are evaluated where a run begins, which is the target of a taken branch or an entry from outside. Execution
/// that leaves a range sequentially stays traced until the next taken branch. So the truth must begin a run exactly
/// there.
#[derive(Clone, Debug, Default)]
pub struct TracedPathSelector {
    filters: Vec<FilterRange>,
    stops: Vec<FilterRange>,
    stopped: bool,
    off: bool,
}

impl TracedPathSelector {
    /// Creates a selector. Without filter ranges everything passes. Where a filter range and a stop range overlap, the
    /// stop range applies.
    pub fn new(filters: Vec<(u64, u64)>, stops: Vec<(u64, u64)>) -> Self {
        let numbered = |all: Vec<(u64, u64)>, stop| {
            let ranges = (0..).zip(all).map(|(number, (first, last))| FilterRange {
                number,
                stop,
                first,
                last,
            });
            ranges.collect()
        };
        TracedPathSelector {
            filters: numbered(filters, false),
            stops: numbered(stops, true),
            stopped: false,
            off: false,
        }
    }

    /// Sets a range from here on. Number 0 comes first; a number that is set again replaces its range, and removes
    /// those after it.
    pub fn set_range(&mut self, range: FilterRange) {
        for ranges in [&mut self.filters, &mut self.stops] {
            ranges.retain(|before| before.number < range.number);
        }
        match range.stop {
            true => self.stops.push(range),
            false => self.filters.push(range),
        }
    }

    /// Sets or clears TraceEn.
    pub fn set_tracing(&mut self, on: bool) {
        self.off = !on;
    }

    /// Returns whether the thread's next run is traced.
    pub fn is_run_traced(&mut self, run: &PathRun) -> bool {
        if self.off {
            return false;
        }
        self.stopped = self.stopped || is_in_any_range(&self.stops, run.start);
        !self.stopped && (self.filters.is_empty() || is_in_any_range(&self.filters, run.start))
    }

    /// Returns whether TraceStop has ended this thread's trace.
    pub fn has_trace_stopped(&self) -> bool {
        self.stopped
    }
}

fn is_in_any_range(ranges: &[FilterRange], ip: u64) -> bool {
    let holds = |range: &FilterRange| range.first <= ip && ip <= range.last;
    ranges.iter().any(holds)
}

/// The traced runs of one thread, by the file's records of ranges and TraceEn.
pub struct SelectedRuns<R: Read> {
    reader: TruthReader<R>,
    tid: u32,
    selector: TracedPathSelector,
    /// The recording's filters: a file with other ranges is wrong.
    filters: Vec<(u64, u64)>,
    stops: Vec<(u64, u64)>,
}

impl<R: Read> SelectedRuns<R> {
    /// Creates the iterator. `filters` and `stops` apply from the start, unless the file has ranges of the thread.
    pub fn new(
        reader: TruthReader<R>,
        tid: u32,
        filters: Vec<(u64, u64)>,
        stops: Vec<(u64, u64)>,
    ) -> Self {
        SelectedRuns {
            reader,
            tid,
            selector: TracedPathSelector::new(filters.clone(), stops.clone()),
            filters,
            stops,
        }
    }

    /// Returns whether both ends of a range are ends of mapped parts that a filter selects; adjacent parts are joined.
    fn is_range_of_filters(&self, range: &FilterRange) -> bool {
        let known = match range.stop {
            true => &self.stops,
            false => &self.filters,
        };
        (range.first, range.last) == (0, 0)
            || known.iter().any(|&(first, _)| first == range.first)
                && known.iter().any(|&(_, last)| last == range.last)
    }
}

impl<R: Read> Iterator for SelectedRuns<R> {
    type Item = Result<PathRun, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.reader.next_item() {
                Ok(Some(TruthItem::Run { tid, run })) if tid == self.tid => {
                    if self.selector.is_run_traced(&run) {
                        return Some(Ok(run));
                    }
                }
                Ok(Some(TruthItem::Range { tid, range })) if tid == self.tid => {
                    if !self.is_range_of_filters(&range) {
                        let (first, last) = (range.first, range.last);
                        return Some(Err(Error::Range { tid, first, last }));
                    }
                    self.selector.set_range(range);
                }
                Ok(Some(TruthItem::Tracing { tid, on })) if tid == self.tid => {
                    self.selector.set_tracing(on)
                }
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
