//! How often transitions were taken, and what follows from that for nodes.
//!
//! The decode loop counts whole transitions. [`IdCounters`] count by transition id, for sinks that add up many short
//! streams: reading them costs as much as the stream ran, not as much as the tables know. Counts of transitions are
//! later expanded to counts of nodes ([`NodeTotals`]), and these to runs and edges by address, before node indices
//! become invalid.

use super::packet_path::BranchOutcome;
use crate::code_cache::CodeCache;
use crate::sink::RunEnd;
use crate::sorted_counter::SortedCounter;
use crate::totals::Totals;

/// Counts by transition id, and a list of the ids with a count.
#[derive(Default)]
pub(super) struct IdCounters {
    /// By id.
    counts: Vec<u32>,
    /// Ids with a count; only the first `touched_len` are valid. One longer than `counts`.
    touched: Vec<u32>,
    touched_len: usize,
}

impl IdCounters {
    /// Makes room for ids up to `id`.
    pub fn grow_to(&mut self, id: u32) {
        let count = id as usize + 1;
        if self.counts.len() < count {
            self.counts.resize(count, 0);
            self.touched.resize(count + 1, 0);
        }
    }

    pub fn clear(&mut self) {
        self.counts.clear();
        self.touched.clear();
        self.touched_len = 0;
    }

    /// Returns the counters for use in a loop, with the length in a register.
    #[inline(always)]
    pub fn open(&mut self) -> OpenIdCounters<'_> {
        OpenIdCounters {
            counts: &mut self.counts,
            touched: &mut self.touched,
            open_len: self.touched_len,
            touched_len: &mut self.touched_len,
        }
    }

    pub fn increment(&mut self, id: u32) {
        let mut counters = self.open();
        counters.increment(id);
        counters.close();
    }

    /// Ids with a count, and their counts.
    pub fn counts(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let touched = self.touched.iter().take(self.touched_len);
        touched.map(|&id| (id, self.counts[id as usize]))
    }

    /// As `counts`; resets the counts.
    pub fn drain(&mut self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let len = std::mem::take(&mut self.touched_len);
        let counts = &mut self.counts;
        let touched = self.touched.iter().take(len);
        touched.map(|&id| (id, std::mem::take(&mut counts[id as usize])))
    }
}

/// `IdCounters` in use by a loop. Must be closed, else the new ids are lost.
pub(super) struct OpenIdCounters<'a> {
    counts: &'a mut [u32],
    touched: &'a mut [u32],
    open_len: usize,
    touched_len: &'a mut usize,
}

impl OpenIdCounters<'_> {
    /// Without a branch: whether an id is new is hard to predict.
    #[inline(always)]
    pub fn increment(&mut self, id: u32) {
        let count = &mut self.counts[id as usize];
        self.touched[self.open_len] = id;
        self.open_len += usize::from(*count == 0);
        *count = count.wrapping_add(1);
    }

    pub fn close(self) {
        *self.touched_len = self.open_len;
    }
}

#[derive(Clone, Copy, Default)]
struct NodeTotal {
    runs: u64,
    taken: u64,
}

/// Counts by node index and call-site number, which are valid until the code cache is emptied.
#[derive(Default)]
pub(super) struct NodeTotals {
    nodes: Vec<NodeTotal>,
    /// By node and target.
    tips: SortedCounter<(u32, u64)>,
    /// By node and call site.
    returns: SortedCounter<(u32, u32)>,
}

/// Pairs of node and target, at most, before all counts are moved to addresses.
const MAX_TARGETS: usize = 1 << 19;

impl NodeTotals {
    /// Whether the counts should be moved to addresses.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.tips.len() + self.returns.len() > MAX_TARGETS
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds `count` runs of a node that ended with `outcome`.
    pub fn add(&mut self, node: u32, outcome: BranchOutcome, count: u64) {
        let index = node as usize;
        if index >= self.nodes.len() {
            let len = (index + 1).next_power_of_two();
            self.nodes.resize(len, NodeTotal::default());
        }
        let total = &mut self.nodes[index];
        total.runs += count;
        match outcome {
            BranchOutcome::Continued | BranchOutcome::NotTaken => {}
            BranchOutcome::Taken => total.taken += count,
            BranchOutcome::Returned(site) => self.returns.add((node, site), count),
            BranchOutcome::Tip(ip) | BranchOutcome::TipReturn(ip) => {
                self.tips.add((node, ip), count);
            }
        }
    }

    /// Moves all counts to runs and edges by address.
    pub fn move_to(&mut self, code: &CodeCache, totals: &mut Totals) {
        let moved = std::mem::take(self);
        for (index, total) in moved.nodes.iter().enumerate() {
            if total.runs == 0 {
                continue;
            }
            let node = code.node(index as u32);
            for (at, code_range) in code.code_ranges(node).iter().enumerate() {
                totals.add_run(code_range.start, code_range.count, total.runs);
                if code_range.run_end != RunEnd::Cut {
                    let to = code.target_after(node, at);
                    totals.add_edge(code_range.last, to, code_range.run_end, total.runs);
                }
            }
            if node.run_end == RunEnd::Conditional {
                let last = code.last_ip(node);
                totals.add_edge(last, node.target, RunEnd::Conditional, total.taken);
                totals.add_edge(last, node.next, RunEnd::Cut, total.runs - total.taken);
            }
        }
        for ((index, ip), count) in moved.tips.into_sorted() {
            let node = code.node(index);
            totals.add_edge(code.last_ip(node), ip, node.run_end, count);
        }
        for ((index, site), count) in moved.returns.into_sorted() {
            let node = code.node(index);
            let return_ip = code.call(site).map_or(0, |call| call.return_ip);
            let to = node.mode.truncate(return_ip);
            totals.add_edge(code.last_ip(node), to, RunEnd::Return, count);
        }
    }
}
