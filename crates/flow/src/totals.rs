//! How often each run of instructions and each edge between them was taken.

use crate::event::Event;
use crate::sink::{End, Sequence, Sink, Wants};
use crate::tally::{Tally, KINDS};

/// Instructions that ran one after the other, in memory order, and how often. Runs overlap: what ran at an address is the
/// sum over all runs that hold it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RunTotal {
    /// IP of the first instruction.
    pub start: u64,
    /// How many instructions.
    pub instructions: u32,
    pub count: u64,
}

/// A transfer, and how often it was taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EdgeTotal {
    /// IP of the instruction that transferred.
    pub from: u64,
    /// Where it went.
    pub to: u64,
    /// `End` as a number; that of `Cut` is a conditional branch that was not taken.
    pub kind: u8,
    pub count: u64,
}

/// Runs and edges that have counts of their own, at most, as [`Settings`](crate::Settings) has it by default.
pub const MOST_PLACES: usize = 1 << 22;

/// The sink that adds up runs and edges, whatever their order: the first of each in their order, if there are more than
/// [`MOST_PLACES`], and of all others the sum.
#[derive(Clone, Debug)]
pub struct Totals {
    runs: Tally<(u64, u32)>,
    edges: Tally<(u64, u64, u8)>,
}

impl Default for Totals {
    fn default() -> Totals {
        Totals::keeping(MOST_PLACES)
    }
}

impl Totals {
    /// So many runs and so many edges at most have counts of their own.
    pub fn keeping(places: usize) -> Totals {
        let mut totals = Totals {
            runs: Tally::default(),
            edges: Tally::default(),
        };
        totals.keep(places);
        totals
    }

    /// As `keeping`, from the next time on that all is brought in order.
    pub(crate) fn keep(&mut self, places: usize) {
        self.runs.keep(places);
        self.edges.keep(places);
    }

    /// How many runs and edges are kept, those that are kept several times as often.
    pub(crate) fn places(&self) -> usize {
        self.runs.len() + self.edges.len()
    }

    /// How often others ran than those of `runs`.
    pub fn other_runs(&mut self) -> u64 {
        self.runs.sorted();
        self.runs.others().iter().sum()
    }

    /// How often others were taken than those of `edges`, by [`End`].
    pub fn other_edges(&mut self) -> [u64; KINDS] {
        self.edges.sorted();
        self.edges.others()
    }

    /// Lets go of the runs.
    pub fn forget_runs(&mut self) {
        self.runs = Tally::default();
    }

    /// Runs by start and length.
    pub fn runs(&mut self) -> Vec<RunTotal> {
        self.run_rows().collect()
    }

    /// As `runs`, without a copy.
    pub fn run_rows(&mut self) -> impl ExactSizeIterator<Item = RunTotal> + Clone + '_ {
        let total = |&((start, instructions), count): &((u64, u32), u64)| RunTotal {
            start,
            instructions,
            count,
        };
        self.runs.sorted().iter().map(total)
    }

    /// Edges by where they come from, where they go and what they are.
    pub fn edges(&mut self) -> Vec<EdgeTotal> {
        self.edge_rows().collect()
    }

    /// As `edges`, without a copy.
    pub fn edge_rows(&mut self) -> impl ExactSizeIterator<Item = EdgeTotal> + Clone + '_ {
        let total = |&((from, to, kind), count): &((u64, u64, u8), u64)| EdgeTotal {
            from,
            to,
            kind,
            count,
        };
        self.edges.sorted().iter().map(total)
    }

    /// Brings all in order, which takes a while: who asks for rows later has them at once.
    pub(crate) fn settle(&mut self) {
        self.runs.sorted();
        self.edges.sorted();
    }

    /// Adds those of another.
    pub fn join(&mut self, other: Totals) {
        self.runs.join(other.runs);
        self.edges.join(other.edges);
    }

    /// Takes off those of another that were joined before.
    pub(crate) fn take_off(&mut self, other: Totals) {
        self.runs.take_off(other.runs);
        self.edges.take_off(other.edges);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.edges.is_empty()
    }

    /// Edges alone: from, to, kind, count.
    pub(crate) fn each_edge(self, mut take: impl FnMut(u64, u64, End, u64)) {
        for ((from, to, kind), count) in self.edges.into_sorted() {
            take(from, to, End::ALL[usize::from(kind)], count);
        }
    }

    pub(crate) fn add_run(&mut self, start: u64, instructions: u32, count: u64) {
        self.runs.add((start, instructions), count);
    }

    pub(crate) fn add_edge(&mut self, from: u64, to: u64, kind: End, count: u64) {
        if count != 0 {
            self.edges.add((from, to, kind as u8), count);
        }
    }
}

impl Sink for Totals {
    const EDGES: bool = true;
    const WANTS: Wants = Wants::Totals;
    const PLACES: bool = false;

    fn append(&mut self, sequence: &Sequence<'_>, _time: u64) {
        self.add_run(sequence.start, sequence.lengths.len() as u32, 1);
    }

    fn close(&mut self, _end: End, _offset: u64) {}

    fn edge(&mut self, from: u64, to: u64, kind: End) {
        self.add_edge(from, to, kind, 1);
    }

    fn event(&mut self, _event: &Event) {}
}
