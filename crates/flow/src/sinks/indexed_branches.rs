//! Branches with the position of each among the instructions of the stream.

use super::branches::{BranchColumns, BranchSink};
use super::column_sink::OrderedSink;
use crate::event::Event;
use crate::sink::{RunEnd, RunFragment, Sink, SinkCapacity, SinkNeeds};

/// The sink that lists branches with their positions. It replays each transition, where `BranchSink` copies rows.
pub struct IndexedBranchSink {
    branches: BranchSink,
    /// Instructions so far.
    instructions: u64,
    /// IP of the last one.
    last: u64,
    /// For each branch, the number of instructions before it.
    indexes: Vec<u64>,
}

impl IndexedBranchSink {
    /// `with_offsets`: as for `BranchSink::new`.
    pub fn new(with_offsets: bool) -> IndexedBranchSink {
        IndexedBranchSink {
            branches: BranchSink::new(with_offsets),
            instructions: 0,
            last: 0,
            indexes: Vec::new(),
        }
    }

    /// Makes decoding pause when `limit` rows wait.
    pub fn set_row_limit(&mut self, limit: usize) {
        self.branches.set_row_limit(limit);
    }

    pub fn is_empty(&self) -> bool {
        self.branches.is_empty()
    }

    /// Takes the branches so far, and their positions.
    pub fn take_batch(&mut self) -> (BranchColumns, Vec<u64>) {
        let indexes = std::mem::take(&mut self.indexes);
        (self.branches.take_batch(), indexes)
    }
}

impl Sink for IndexedBranchSink {
    const NEEDS_EDGES: bool = true;
    const NEEDS: SinkNeeds = SinkNeeds::Order;

    #[inline]
    fn begin_packet(&mut self, offset: u64) {
        self.branches.begin_packet(offset);
    }

    #[inline]
    fn extend_run(&mut self, fragment: &RunFragment<'_>, time: u64) {
        self.instructions += fragment.lengths.len() as u64;
        self.last = fragment.last;
        self.branches.extend_run(fragment, time);
    }

    #[inline]
    fn end_run(&mut self, end: RunEnd, offset: u64) {
        self.branches.end_run(end, offset);
    }

    #[inline]
    fn add_edge(&mut self, from: u64, to: u64, kind: RunEnd) {
        // INT 80H is not among the instructions.
        let is_counted = from == self.last && self.instructions > 0;
        self.indexes.push(self.instructions - u64::from(is_counted));
        self.branches.add_edge(from, to, kind);
    }

    fn note_entered_space(&mut self, space: u32) {
        self.branches.note_entered_space(space);
    }

    fn add_event(&mut self, event: &Event) {
        self.branches.add_event(event);
    }

    fn remaining_capacity(&self) -> SinkCapacity {
        self.branches.remaining_capacity()
    }

    fn is_full(&self) -> bool {
        self.branches.is_full()
    }
}
