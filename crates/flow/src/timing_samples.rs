//! Timing samples: one for each timing packet, for callers that compute bounds of times.
//!
//! With `Settings::points` rows get the number of the last sample in place of a time, so that nothing else in the
//! decoder changes; the Python side computes bounds from rows and samples.

/// State of the clock after a timing packet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimingSample {
    /// Stream offset of the packet.
    pub offset: u64,
    /// TSC estimate.
    pub time: u64,
    /// Core cycles counted by CYCs so far.
    pub cycles: u64,
    /// Core cycles in a tick of the TSC, at which CYCs count from here on; NaN: unknown.
    pub frequency: f64,
    /// The packet gives the time (TSC, or MTC after a TSC with its TMA); else `time` is computed from CYCs.
    pub known: bool,
    /// Between samples of one span all cycles were counted, at one frequency.
    pub span: u64,
}

/// TimingSamples that wait to be taken. Each has a number, from 1 on: that is what rows have as their time meanwhile.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TimingSamples {
    pub waiting: Vec<TimingSample>,
    /// Number of samples so far.
    pub count: u64,
}

impl TimingSamples {
    pub fn push(&mut self, sample: TimingSample) {
        self.waiting.push(sample);
        self.count += 1;
    }
}
