//! Runs and events as values.

use crate::event::Event;

/// A run: instructions that ran one after the other in memory order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// IP of the first instruction.
    pub start: u64,
    /// IP of the last instruction.
    pub last: u64,
    /// TSC estimate at the start, a lower bound.
    pub time: u64,
    /// Stream offset of the packet that ended it.
    pub offset: u64,
    /// Number of instructions, at least 1.
    pub instructions: u32,
    /// Why the run ended: `End` as a number.
    pub end: u8,
    /// The mode of the code: 16, 32 or 64.
    pub bits: u8,
    /// It ran in a transaction, as far as MODE.TSX has told: a run has no border of one within.
    pub in_tx: bool,
}

/// An event and its place: the number of runs, counted from the start of the stream, that began before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedEvent {
    pub row: u64,
    pub event: Event,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    pub runs: Vec<Run>,
    /// As `RowColumns` has it.
    pub space: Vec<u32>,
    pub events: Vec<PlacedEvent>,
}

impl Rows {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.events.is_empty()
    }
}

/// Runs as columns of one length, each as `Run` has it.
#[derive(Clone, Copy, Debug)]
pub struct Runs<'a> {
    pub start: &'a [u64],
    pub last: &'a [u64],
    pub time: &'a [u64],
    pub offset: &'a [u64],
    pub instructions: &'a [u32],
    pub end: &'a [u8],
    pub bits: &'a [u8],
    pub in_tx: &'a [u8],
}

/// Runs as columns of their own, each as `Run` has it, and the events between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowColumns {
    pub start: Vec<u64>,
    pub last: Vec<u64>,
    pub time: Vec<u64>,
    pub offset: Vec<u64>,
    pub instructions: Vec<u32>,
    pub end: Vec<u8>,
    pub bits: Vec<u8>,
    pub in_tx: Vec<u8>,
    /// The address space of each, as `Sequence` has it: a run is in one alone; empty: all are in space 0.
    pub space: Vec<u32>,
    pub events: Vec<PlacedEvent>,
}

impl Runs<'_> {
    pub fn len(&self) -> usize {
        self.start.len()
    }

    pub fn is_empty(&self) -> bool {
        self.start.is_empty()
    }

    /// One by one.
    pub fn to_vec(&self) -> Vec<Run> {
        let run = |at: usize| Run {
            start: self.start[at],
            last: self.last[at],
            time: self.time[at],
            offset: self.offset[at],
            instructions: self.instructions[at],
            end: self.end[at],
            bits: self.bits[at],
            in_tx: self.in_tx[at] != 0,
        };
        (0..self.len()).map(run).collect()
    }
}
