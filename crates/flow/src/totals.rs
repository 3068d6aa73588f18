//! How often each run of instructions and each edge between them was taken.

use std::collections::hash_map::{Entry, HashMap};
use std::hash::{BuildHasherDefault, Hash};

use crate::event::Event;
use crate::hash::AddressHasher;
use crate::sink::{End, Sequence, Sink, Wants};

/// Counts by a key of a few numbers.
pub(crate) type CountsBy<K> = HashMap<K, u64, BuildHasherDefault<AddressHasher>>;

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

/// The sink that adds up runs and edges, whatever their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    runs: CountsBy<(u64, u32)>,
    edges: CountsBy<(u64, u64, u8)>,
}

impl Totals {
    /// Runs by start and length.
    pub fn runs(&self) -> Vec<RunTotal> {
        let total = |(&(start, instructions), &count): (&(u64, u32), &u64)| RunTotal {
            start,
            instructions,
            count,
        };
        let mut runs: Vec<RunTotal> = self.runs.iter().map(total).collect();
        runs.sort_unstable();
        runs
    }

    /// Edges by where they come from, where they go and what they are.
    pub fn edges(&self) -> Vec<EdgeTotal> {
        let total = |(&(from, to, kind), &count): (&(u64, u64, u8), &u64)| EdgeTotal {
            from,
            to,
            kind,
            count,
        };
        let mut edges: Vec<EdgeTotal> = self.edges.iter().map(total).collect();
        edges.sort_unstable();
        edges
    }

    /// Adds those of another.
    pub fn join(&mut self, other: Totals) {
        if self.is_empty() {
            *self = other;
            return;
        }
        for (run, count) in other.runs {
            *self.runs.entry(run).or_default() += count;
        }
        for (edge, count) in other.edges {
            *self.edges.entry(edge).or_default() += count;
        }
    }

    /// Takes off those of another that were joined before.
    pub(crate) fn take_off(&mut self, other: Totals) {
        take_off(&mut self.runs, other.runs);
        take_off(&mut self.edges, other.edges);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.edges.is_empty()
    }

    /// Without order: from, to, kind, count.
    pub(crate) fn each_edge(&self, mut take: impl FnMut(u64, u64, End, u64)) {
        for (&(from, to, kind), &count) in &self.edges {
            take(from, to, End::ALL[usize::from(kind)], count);
        }
    }

    pub(crate) fn add_run(&mut self, start: u64, instructions: u32, count: u64) {
        *self.runs.entry((start, instructions)).or_default() += count;
    }

    pub(crate) fn add_edge(&mut self, from: u64, to: u64, kind: End, count: u64) {
        if count != 0 {
            *self.edges.entry((from, to, kind as u8)).or_default() += count;
        }
    }
}

fn take_off<K: Eq + Hash>(from: &mut CountsBy<K>, counts: CountsBy<K>) {
    for (key, less) in counts {
        if let Entry::Occupied(mut entry) = from.entry(key) {
            *entry.get_mut() -= less;
            if *entry.get() == 0 {
                entry.remove();
            }
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
