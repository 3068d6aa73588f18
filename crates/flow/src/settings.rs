//! Settings of a decoder: what the packets alone do not say about a stream, and limits of memory.

use rtit_x86::Mode;

use crate::errata::Cpu;
use crate::time::TimeSettings;
use crate::totals::DEFAULT_MAX_COUNTERS;

/// IP filter ranges that a processor can have (ADDRn_CFG = 1, section 33.2.5.2).
pub const MAX_RANGES: usize = 4;

/// The address ranges outside of which nothing was traced; none: there was no filter, or it is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FilterRanges {
    /// First and last address of each.
    ranges: [(u64, u64); MAX_RANGES],
    count: usize,
}

impl FilterRanges {
    /// `None` if there are more than `MAX_RANGES`.
    pub fn new(ranges: &[(u64, u64)]) -> Option<FilterRanges> {
        let mut found = FilterRanges::default();
        found
            .ranges
            .get_mut(..ranges.len())?
            .copy_from_slice(ranges);
        found.count = ranges.len();
        Some(found)
    }

    /// Whether code at `ip` is certainly not traced.
    pub(crate) fn excludes(&self, ip: u64) -> bool {
        let ranges = self.ranges.get(..self.count).unwrap_or(&[]);
        !ranges.is_empty() && ranges.iter().all(|&(first, last)| ip < first || ip > last)
    }
}

/// Settings of a decoder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    pub time: TimeSettings,
    /// The stream was recorded with DisTNT: no conditional branch can be followed.
    pub no_tnt: bool,
    /// The stream was recorded with DisRETC: every RET has its own TIP.
    pub no_retcomp: bool,
    /// Bytes that are kept of the code of the space in which the program is, and half as many of all others; when there
    /// are more, the cache is emptied before the next packet. Results are the same.
    pub cache_limit: usize,
    /// The processor that wrote the stream, if it is known: it decides which errata to reckon with.
    pub cpu: Option<Cpu>,
    pub ranges: FilterRanges,
    /// What is known where the stream begins; `None`: nothing is, and it is read from its first PSB on.
    pub start: Option<InitialState>,
    pub steps: TransitionLimits,
    /// Runs and edges that have counts of their own, at most, where they are added up (`Totals`).
    pub places: usize,
    /// Rows have as their time the number of the last timing packet before them (`Decoder::take_points`).
    pub points: bool,
}

/// The state of tracing at the first byte of a stream, which is that of a packet outside a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitialState {
    /// The next instruction; `None`: tracing is off.
    pub ip: Option<u64>,
    pub mode: Mode,
    /// What IPs are compressed against (section 33.4.2.2).
    pub last_ip: u64,
}

/// Limits of the transition tables (module `transitions`). Results do not depend on them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransitionLimits {
    /// Limit of entries of a table; below 128: no tables.
    pub entries: usize,
    /// Limit of bytes that are decoded at once.
    pub stride: usize,
    /// Limit of words kept of transitions; above it, all are dropped.
    pub words: usize,
    /// Bytes that are taken before there are phrases, steps of several packets; 0: at once, of all that comes again.
    pub phrases: usize,
}

impl TransitionLimits {
    /// No transition tables: the interpreter decodes everything. The reference.
    pub const NONE: TransitionLimits = TransitionLimits {
        entries: 0,
        stride: 0,
        words: 0,
        phrases: usize::MAX,
    };
}

impl Default for TransitionLimits {
    fn default() -> TransitionLimits {
        TransitionLimits {
            entries: 1 << 20,
            stride: usize::MAX,
            words: 1 << 21,
            phrases: 1 << 15,
        }
    }
}

impl Settings {
    /// For one of so many decoders of a stream: what they keep of code and steps is as much as one keeps alone, or a
    /// quarter of that each.
    pub(crate) fn of_one_in(&self, threads: usize) -> Settings {
        let part = threads.clamp(1, 4);
        Settings {
            cache_limit: self.cache_limit / part,
            steps: TransitionLimits {
                words: self.steps.words / part,
                ..self.steps
            },
            ..*self
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            time: TimeSettings::default(),
            no_tnt: false,
            no_retcomp: false,
            cache_limit: 1 << 26,
            cpu: None,
            ranges: FilterRanges::default(),
            start: None,
            steps: TransitionLimits::default(),
            places: DEFAULT_MAX_COUNTERS,
            points: false,
        }
    }
}
