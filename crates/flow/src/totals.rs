//! Totals of runs and edges, and the counts of a stream: packets, instructions, branches, cycles.
//!
//! [`Totals`] is a sink that does not depend on the order of results, so transitions are counted in their tables and
//! several threads can add up. The number of counters is limited ([`SortedCounter`]): the first runs and edges in their
//! order have counters.

use rtit_packet::table::ROWS;
use rtit_packet::Kind;

use crate::event::Event;
use crate::settings::Erratum;
use crate::sink::{RunEnd, RunFragment, Sink, SinkNeeds};
use crate::sorted_counter::{SortedCounter, KINDS};

/// Instructions that ran one after the other, in memory order, and how often. Runs overlap: the count of an address is
/// the sum over all runs that contain it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RunTotal {
    /// IP of the first instruction.
    pub start: u64,
    /// Number of instructions.
    pub instructions: u32,
    pub count: u64,
}

/// A transfer, and how often it was taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EdgeTotal {
    /// IP of the instruction that transferred.
    pub from: u64,
    /// IP of the target.
    pub to: u64,
    /// `End` as a number; `Cut` is a conditional branch that was not taken.
    pub kind: u8,
    pub count: u64,
}

/// Default limit of the runs, and of the edges, that have their own counter ([`Settings`](crate::Settings)).
pub const DEFAULT_MAX_COUNTERS: usize = 1 << 22;

/// The sink that counts runs and edges. Those beyond the limit share a sum.
#[derive(Clone, Debug)]
pub struct Totals {
    runs: SortedCounter<(u64, u32)>,
    edges: SortedCounter<(u64, u64, u8)>,
}

impl Default for Totals {
    fn default() -> Totals {
        Totals::with_max_counters(DEFAULT_MAX_COUNTERS)
    }
}

impl Totals {
    /// Returns empty totals with at most `max_counters` counters for runs, and as many for edges.
    pub fn with_max_counters(max_counters: usize) -> Totals {
        let mut totals = Totals {
            runs: SortedCounter::default(),
            edges: SortedCounter::default(),
        };
        totals.limit_counters(max_counters);
        totals
    }

    /// Changes the limit, from the next consolidation on.
    pub(crate) fn limit_counters(&mut self, max_counters: usize) {
        self.runs.limit_key_count(max_counters);
        self.edges.limit_key_count(max_counters);
    }

    /// Number of counters, and of pending counts.
    pub(crate) fn counters_in_use(&self) -> usize {
        self.runs.len() + self.edges.len()
    }

    /// Returns how often runs without a counter ran.
    pub fn uncounted_runs(&mut self) -> u64 {
        self.runs.sorted_counts();
        self.runs.counts_beyond_limit().iter().sum()
    }

    /// Returns how often edges without a counter were taken, by [`RunEnd`].
    pub fn uncounted_edges(&mut self) -> [u64; KINDS] {
        self.edges.sorted_counts();
        self.edges.counts_beyond_limit()
    }

    /// Drops the counters of runs.
    pub fn drop_runs(&mut self) {
        self.runs = SortedCounter::default();
    }

    /// Returns the runs, sorted by start and length.
    pub fn sorted_runs(&mut self) -> Vec<RunTotal> {
        self.iter_runs().collect()
    }

    /// As `sorted_runs`, without a copy.
    pub fn iter_runs(&mut self) -> impl ExactSizeIterator<Item = RunTotal> + Clone + '_ {
        let total = |&((start, instructions), count): &((u64, u32), u64)| RunTotal {
            start,
            instructions,
            count,
        };
        self.runs.sorted_counts().iter().map(total)
    }

    /// Returns the edges, sorted by source, target and kind.
    pub fn sorted_edges(&mut self) -> Vec<EdgeTotal> {
        self.iter_edges().collect()
    }

    /// As `sorted_edges`, without a copy.
    pub fn iter_edges(&mut self) -> impl ExactSizeIterator<Item = EdgeTotal> + Clone + '_ {
        let total = |&((from, to, kind), count): &((u64, u64, u8), u64)| EdgeTotal {
            from,
            to,
            kind,
            count,
        };
        self.edges.sorted_counts().iter().map(total)
    }

    /// Sorts all counters and applies the limit; later reads are fast.
    pub(crate) fn consolidate_counters(&mut self) {
        self.runs.sorted_counts();
        self.edges.sorted_counts();
    }

    /// Adds all counts of other totals.
    pub fn merge_totals(&mut self, other: Totals) {
        self.runs.merge_counter(other.runs);
        self.edges.merge_counter(other.edges);
    }

    /// Subtracts totals that were added before.
    pub(crate) fn subtract_totals(&mut self, other: Totals) {
        self.runs.subtract_counter(other.runs);
        self.edges.subtract_counter(other.edges);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.edges.is_empty()
    }

    /// Calls `add` with source, target, kind and count of each edge.
    pub(crate) fn for_each_edge(self, mut add: impl FnMut(u64, u64, RunEnd, u64)) {
        for ((from, to, kind), count) in self.edges.into_sorted_counts() {
            add(from, to, RunEnd::ALL[usize::from(kind)], count);
        }
    }

    pub(crate) fn add_run(&mut self, start: u64, instructions: u32, count: u64) {
        self.runs.add((start, instructions), count);
    }

    pub(crate) fn add_edge(&mut self, from: u64, to: u64, kind: RunEnd, count: u64) {
        if count != 0 {
            self.edges.add((from, to, kind as u8), count);
        }
    }
}

impl Sink for Totals {
    const NEEDS_EDGES: bool = true;
    const NEEDS: SinkNeeds = SinkNeeds::Totals;
    const HAS_PACKET_OFFSETS: bool = false;

    fn extend_run(&mut self, fragment: &RunFragment<'_>, _time: u64) {
        self.add_run(fragment.start, fragment.lengths.len() as u32, 1);
    }

    fn end_run(&mut self, _end: RunEnd, _offset: u64) {}

    fn add_edge(&mut self, from: u64, to: u64, kind: RunEnd) {
        self.add_edge(from, to, kind, 1);
    }

    fn add_event(&mut self, _event: &Event) {}
}

/// The sink that counts as [`Totals`] does, separately for each period of time. Full when a period has ended.
#[derive(Clone, Debug)]
pub struct PeriodTotals {
    /// Times at which periods begin, sorted; the first period begins before all of them.
    starts: Vec<u64>,
    max_counters: usize,
    period: usize,
    totals: Totals,
    /// Periods that have ended, latest first: a packet seldom ends more than one.
    ended: Vec<(usize, Totals)>,
}

impl PeriodTotals {
    /// `max_counters`: for each period, as in [`Totals::with_max_counters`].
    pub fn new(mut starts: Vec<u64>, max_counters: usize) -> PeriodTotals {
        starts.sort_unstable();
        PeriodTotals {
            starts,
            max_counters,
            period: 0,
            totals: Totals::with_max_counters(max_counters),
            ended: Vec::new(),
        }
    }

    /// Number of the period of the code at `time`. Code time does not decrease.
    fn period_at(&self, time: u64) -> usize {
        let period = self.starts.partition_point(|&start| start <= time);
        period.max(self.period)
    }

    /// Returns the earliest period that has ended: its number, from 0, and its totals.
    pub fn take_ended_period(&mut self) -> Option<(usize, Totals)> {
        self.ended.pop()
    }

    /// Returns the number and the totals of the current period, which is then empty.
    pub(crate) fn take_current_period(&mut self) -> (usize, Totals) {
        let empty = Totals::with_max_counters(self.max_counters);
        (self.period, std::mem::replace(&mut self.totals, empty))
    }

    pub(crate) fn current_totals(&mut self) -> &mut Totals {
        &mut self.totals
    }
}

impl Sink for PeriodTotals {
    const NEEDS_EDGES: bool = Totals::NEEDS_EDGES;
    const NEEDS: SinkNeeds = Totals::NEEDS;
    const HAS_PACKET_OFFSETS: bool = Totals::HAS_PACKET_OFFSETS;

    fn extend_run(&mut self, fragment: &RunFragment<'_>, time: u64) {
        self.totals.extend_run(fragment, time);
    }

    fn end_run(&mut self, _end: RunEnd, _offset: u64) {}

    fn add_edge(&mut self, from: u64, to: u64, kind: RunEnd) {
        self.totals.add_edge(from, to, kind, 1);
    }

    fn add_event(&mut self, _event: &Event) {}

    fn totals_before(&mut self, time: u64) -> Option<&mut Totals> {
        (self.period_at(time) != self.period).then_some(&mut self.totals)
    }

    fn set_code_time(&mut self, time: u64) {
        let period = self.period_at(time);
        if period != self.period {
            let ended = self.take_current_period();
            self.ended.insert(0, ended);
            self.period = period;
        }
    }

    fn is_full(&self) -> bool {
        !self.ended.is_empty()
    }
}

/// Counts of a stream. Instructions and branches are those that were decoded.
#[derive(Clone, Debug, Default)]
pub struct StreamCounts {
    /// Packets by kind, PSB+ contents included.
    pub packets: [u64; ROWS.len()],
    pub instructions: u64,
    /// Conditional branches.
    pub conditional: u64,
    /// Indirect jumps and calls, far transfers, system calls: all that took a TIP and is no near RET.
    pub indirect: u64,
    /// Near RETs.
    pub returns: u64,
    /// Near RETs that took a TNT bit.
    pub compressed_returns: u64,
    /// Asynchronous events (FUP and TIP or TIP.PGD).
    pub asynchronous: u64,
    /// Core cycles that CYC packets report.
    pub cycles: u64,
    /// Core cycles between timing packets that give the time, and the TSC ticks between these: the ratio is that of
    /// core clock and TSC (section 33.8.3.4).
    pub measured: (u64, u64),
    /// TSC ticks in which nothing was traced: what lies between a TSC outside PSB+, or while tracing is off, and the
    /// time by the cycles before it (section 33.3.6).
    pub inactive: u64,
    /// How often the workaround for an erratum applied, by `Erratum`.
    pub errata: [u64; Erratum::ALL.len()],
}

impl StreamCounts {
    /// Returns the number of packets of one kind.
    pub fn packet_count(&self, kind: Kind) -> u64 {
        self.packets.get(kind as usize).copied().unwrap_or(0)
    }

    /// Adds the counts of the next part of the stream.
    pub(crate) fn add_counts(&mut self, more: &StreamCounts) {
        for (sum, more) in self.packets.iter_mut().zip(&more.packets) {
            *sum += more;
        }
        for (sum, more) in self.errata.iter_mut().zip(&more.errata) {
            *sum += more;
        }
        self.add_flow_counts(more);
        self.asynchronous += more.asynchronous;
        self.cycles = self.cycles.saturating_add(more.cycles);
        self.measured.0 = self.measured.0.saturating_add(more.measured.0);
        self.measured.1 = self.measured.1.saturating_add(more.measured.1);
        self.inactive = self.inactive.saturating_add(more.inactive);
    }

    /// Adds instructions and branches.
    pub(crate) fn add_flow_counts(&mut self, more: &StreamCounts) {
        self.instructions += more.instructions;
        self.conditional += more.conditional;
        self.indirect += more.indirect;
        self.returns += more.returns;
        self.compressed_returns += more.compressed_returns;
    }

    /// Subtracts instructions and branches that were added before.
    pub(crate) fn subtract_flow_counts(&mut self, less: &StreamCounts) {
        self.instructions -= less.instructions;
        self.conditional -= less.conditional;
        self.indirect -= less.indirect;
        self.returns -= less.returns;
        self.compressed_returns -= less.compressed_returns;
    }

    pub(crate) fn add_erratum(&mut self, erratum: Erratum) {
        if let Some(count) = self.errata.get_mut(erratum as usize) {
            *count += 1;
        }
    }

    #[inline]
    pub(crate) fn add_packets(&mut self, kind: Kind, more: u64) {
        if let Some(count) = self.packets.get_mut(kind as usize) {
            *count += more;
        }
    }
}
