//! The nodes that each transition visits, and how each of them ended.
//!
//! The decode loop never touches this list. It is read afterwards: to turn the log of transitions into runs, edges and
//! branches for a sink ([`TransitionLog`]), or to add up counts. A fused transition has the visits of its parts, with a
//! marker where a later packet begins, so that each branch gets the offset of its own packet.
//!
//! The decode loop counts whole transitions. [`IdCounters`] count by transition id, for sinks that add up many short
//! streams: reading them costs as much as the stream ran, not as much as the tables hold. Counts of transitions are
//! later expanded to counts of nodes ([`NodeTotals`]), and these to runs and edges by address, before node indices
//! become invalid.

use std::ops::Range;

use rtit_huge_pages::Buffer;

use super::packet_path::BranchOutcome;
use crate::code_cache::{CodeCache, CodeNode};
use crate::sink::{
    LoggedTransition, RunEnd, Sink, SinkCapacity, TakenTransition, TakenTransitions,
};
use crate::sorted_counter::SortedCounter;
use crate::totals::{StreamCounts, Totals};

/// A visit is one word (node and tag), followed by a call site (one word) or a target (two words).
const CONTINUED: u32 = 0;
const NOT_TAKEN: u32 = 1;
const TAKEN: u32 = 2;
const RETURNED: u32 = 3;
const TIP: u32 = 4;
const TIP_RETURN: u32 = 5;
/// No visit: the start of a later packet of a fused transition, in bytes after the start of the first.
const PACKET: u32 = 6;
const TAG_BITS: u32 = 3;

/// Largest node index that fits into a visit.
pub(super) const MAX_NODE: u32 = (1 << (32 - TAG_BITS)) - 1;

/// Number of instructions and branches of a transition.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct InstructionMix {
    pub instructions: u32,
    /// Four counts of 16 bits: conditional and indirect branches, RETs, compressed RETs. A packet has six at most of
    /// each, a fused transition 96.
    branches: u64,
}

const CONDITIONAL: u32 = 0;
const INDIRECT: u32 = 16;
const RETURNS: u32 = 32;
const COMPRESSED: u32 = 48;

impl InstructionMix {
    fn add_node(&mut self, instructions: u32, outcome: BranchOutcome) {
        self.instructions += instructions;
        self.branches += match outcome {
            BranchOutcome::Continued => 0,
            BranchOutcome::NotTaken | BranchOutcome::Taken => 1 << CONDITIONAL,
            BranchOutcome::Returned(_) => 1 << RETURNS | 1 << COMPRESSED,
            BranchOutcome::Tip(_) => 1 << INDIRECT,
            BranchOutcome::TipReturn(_) => 1 << RETURNS,
        };
    }

    fn add_mix(&mut self, other: InstructionMix) {
        self.instructions += other.instructions;
        self.branches += other.branches;
    }

    /// False only for a transition that ends before a RET, which is a transition of its own.
    #[inline(always)]
    pub fn has_branches(self) -> bool {
        self.branches != 0
    }

    pub fn add_to_counts(self, counts: &mut StreamCounts, times: u64) {
        let count = |bit: u32| (self.branches >> bit & 0xffff) * times;
        counts.instructions += u64::from(self.instructions) * times;
        counts.conditional += count(CONDITIONAL);
        counts.indirect += count(INDIRECT);
        counts.returns += count(RETURNS);
        counts.compressed_returns += count(COMPRESSED);
    }
}

/// Sum over at most `MAX_SUMMED` transitions.
#[derive(Default)]
pub(crate) struct InstructionMixSum {
    instructions: u64,
    branches: u64,
}

/// 96 times as many fit into 16 bits.
pub(crate) const MAX_SUMMED: usize = 1 << 8;

impl InstructionMixSum {
    #[inline(always)]
    pub fn add_mix(&mut self, mix: InstructionMix) {
        self.instructions += u64::from(mix.instructions);
        self.branches += mix.branches;
    }

    pub fn add_sum_to_counts(self, counts: &mut StreamCounts) {
        let branches = InstructionMix {
            instructions: 0,
            branches: self.branches,
        };
        branches.add_to_counts(counts, 1);
        counts.instructions += self.instructions;
    }
}

#[derive(Clone, Copy, Debug)]
struct TransitionVisits {
    first_word: u32,
    max_rows: u32,
    mix: InstructionMix,
}

/// The visits of all transitions, by transition id.
#[derive(Default)]
pub(crate) struct NodeVisits {
    words: Buffer<u32>,
    transitions: Buffer<TransitionVisits>,
    most_rows: usize,
    most_instructions: usize,
}

impl NodeVisits {
    /// Approximate memory in words of 32 bits.
    pub fn size_in_words(&self) -> usize {
        self.words.len() + 5 * self.transitions.len()
    }

    /// Number of transition ids.
    pub fn len(&self) -> usize {
        self.transitions.len()
    }

    /// Returns how many transitions may follow such that there certainly is room before the last of them.
    pub fn max_transitions(&self, room: SinkCapacity) -> usize {
        let by_rows = room.rows.div_ceil(self.most_rows.max(1));
        by_rows.min(room.instructions.div_ceil(self.most_instructions.max(1)))
    }

    /// Returns a lower bound of the room after these transitions.
    pub fn remaining_room(
        &self,
        mut room: SinkCapacity,
        ids: impl Iterator<Item = u32>,
    ) -> SinkCapacity {
        for id in ids {
            let TransitionVisits { max_rows, mix, .. } = self.transitions[id as usize];
            room.rows = room.rows.saturating_sub(max_rows as usize);
            let instructions = mix.instructions as usize;
            room.instructions = room.instructions.saturating_sub(instructions);
        }
        room
    }

    pub fn clear(&mut self) {
        *self = NodeVisits::default();
    }

    /// Adds the visits of a new transition and returns its id.
    pub fn add_transition_visits(
        &mut self,
        code: &CodeCache,
        visits: &[(u32, BranchOutcome)],
    ) -> u32 {
        let mut mix = InstructionMix::default();
        let first_word = self.words.len() as u32;
        let mut max_rows = 0;
        for &(node, outcome) in visits {
            mix.add_node(code.node_at(node).instructions, outcome);
            max_rows += code.code_ranges(code.node_at(node)).len() + 1;
            let (tag, operand): (u32, &[u32]) = match outcome {
                BranchOutcome::Continued => (CONTINUED, &[]),
                BranchOutcome::NotTaken => (NOT_TAKEN, &[]),
                BranchOutcome::Taken => (TAKEN, &[]),
                BranchOutcome::Returned(site) => (RETURNED, &[site]),
                BranchOutcome::Tip(ip) => (TIP, &[ip as u32, (ip >> 32) as u32]),
                BranchOutcome::TipReturn(ip) => (TIP_RETURN, &[ip as u32, (ip >> 32) as u32]),
            };
            self.words.push(node << TAG_BITS | tag);
            self.words.extend_from_slice(operand);
        }
        self.assign_id(first_word, max_rows, mix)
    }

    /// Adds a fused transition and returns its id. `parts`: ids, each with the start of its packet in bytes after the
    /// start of the first.
    pub fn add_fused_transition(&mut self, parts: &[(u32, u8)]) -> u32 {
        let first_word = self.words.len() as u32;
        let (mut max_rows, mut mix, mut packet_start) = (0, InstructionMix::default(), 0);
        for &(id, start) in parts {
            if start != packet_start {
                packet_start = start;
                self.words.push(u32::from(start) << TAG_BITS | PACKET);
            }
            max_rows += self.max_rows_of_transition(id);
            mix.add_mix(self.instruction_mix(id));
            let words = self.word_range(id);
            // The range of the newest transition would otherwise include the words of this one.
            self.words
                .extend_from_within(words.start..words.end.min(first_word as usize));
        }
        self.assign_id(first_word, max_rows, mix)
    }

    fn assign_id(&mut self, first_word: u32, max_rows: usize, mix: InstructionMix) -> u32 {
        self.most_rows = self.most_rows.max(max_rows);
        self.most_instructions = self.most_instructions.max(mix.instructions as usize);
        self.transitions.push(TransitionVisits {
            first_word,
            max_rows: max_rows as u32,
            mix,
        });
        self.transitions.len() as u32 - 1
    }

    /// Upper bound of the rows that a transition adds.
    pub fn max_rows_of_transition(&self, id: u32) -> usize {
        self.transitions[id as usize].max_rows as usize
    }

    fn word_range(&self, id: u32) -> Range<usize> {
        let first = self.transitions[id as usize].first_word as usize;
        let next = self.transitions.get(id as usize + 1);
        first..next.map_or(self.words.len(), |next| next.first_word as usize)
    }

    #[inline(always)]
    pub fn instruction_mix(&self, id: u32) -> InstructionMix {
        self.transitions[id as usize].mix
    }

    /// The nodes of a transition in execution order.
    pub fn visited_nodes(&self, id: u32) -> impl Iterator<Item = (u32, BranchOutcome)> + '_ {
        self.nodes_with_packets(id)
            .map(|(_, node, outcome)| (node, outcome))
    }

    /// As `visited_nodes`, each with the start of its packet in bytes after the start of the first.
    fn nodes_with_packets(&self, id: u32) -> impl Iterator<Item = (u32, u32, BranchOutcome)> + '_ {
        let mut words = self.words[self.word_range(id)].iter().copied();
        let mut packet_start = 0;
        std::iter::from_fn(move || {
            let mut word = words.next()?;
            while word & ((1 << TAG_BITS) - 1) == PACKET {
                packet_start = word >> TAG_BITS;
                word = words.next()?;
            }
            let mut target = || {
                let low = u64::from(words.next().unwrap_or(0));
                low | u64::from(words.next().unwrap_or(0)) << 32
            };
            let outcome = match word & ((1 << TAG_BITS) - 1) {
                CONTINUED => BranchOutcome::Continued,
                NOT_TAKEN => BranchOutcome::NotTaken,
                TAKEN => BranchOutcome::Taken,
                TIP => BranchOutcome::Tip(target()),
                TIP_RETURN => BranchOutcome::TipReturn(target()),
                _ => BranchOutcome::Returned(words.next().unwrap_or(0)),
            };
            Some((packet_start, word >> TAG_BITS, outcome))
        })
    }
}

/// Transitions that were taken, in order.
pub(crate) struct TransitionLog<'a> {
    pub logged: &'a [LoggedTransition],
    pub generation: u32,
    pub code: &'a CodeCache,
    pub visits: &'a NodeVisits,
}

impl TakenTransitions for TransitionLog<'_> {
    fn transition_generation(&self) -> u32 {
        self.generation
    }

    fn logged_transitions(&self) -> &[LoggedTransition] {
        self.logged
    }

    fn address_space_index(&self) -> u32 {
        self.code.address_space_index()
    }

    fn resolve_logged(&self, logged: LoggedTransition) -> impl TakenTransition {
        LogEntry { logged, log: self }
    }
}

struct LogEntry<'a> {
    logged: LoggedTransition,
    log: &'a TransitionLog<'a>,
}

impl LogEntry<'_> {
    /// Target and kind of the transfer at the end of a node.
    fn transfer_at_node_end(&self, node: &CodeNode, outcome: BranchOutcome) -> (u64, RunEnd) {
        match outcome {
            BranchOutcome::Continued | BranchOutcome::NotTaken => (node.next, RunEnd::Cut),
            BranchOutcome::Taken => (node.target, RunEnd::Conditional),
            BranchOutcome::Returned(site) => {
                let call = self.log.code.call_at_site(site);
                let return_ip = call.map_or(0, |call| call.return_ip);
                (node.mode.truncate_ip(return_ip), RunEnd::Return)
            }
            BranchOutcome::Tip(ip) => (ip, node.run_end),
            BranchOutcome::TipReturn(ip) => (ip, RunEnd::Return),
        }
    }
}

impl TakenTransition for LogEntry<'_> {
    fn transition_id(&self) -> u32 {
        self.logged.number
    }

    fn transition_generation(&self) -> u32 {
        self.log.generation
    }

    fn first_packet_offset(&self) -> u64 {
        self.logged.offset
    }

    fn branch_times(&self) -> (u64, u64) {
        self.logged.times
    }

    #[inline]
    fn replay_with_times<S: Sink>(&self, (mut time, after): (u64, u64), sink: &mut S) {
        let (code, mut offset) = (self.log.code, self.logged.offset);
        sink.begin_packet(offset);
        for (packet_start, index, outcome) in self.log.visits.nodes_with_packets(self.logged.number)
        {
            let packet = self.logged.offset + u64::from(packet_start);
            if packet != offset {
                offset = packet;
                sink.begin_packet(offset);
            }
            let node = code.node_at(index);
            for (at, code_range) in code.code_ranges(node).iter().enumerate() {
                code.report_code_range(node, at, code_range, time, offset, sink);
            }
            match outcome {
                BranchOutcome::Continued => continue,
                BranchOutcome::NotTaken => {}
                BranchOutcome::Taken => sink.end_run(RunEnd::Conditional, offset),
                BranchOutcome::Returned(_) | BranchOutcome::TipReturn(_) => {
                    sink.end_run(RunEnd::Return, offset);
                }
                BranchOutcome::Tip(_) => sink.end_run(node.run_end, offset),
            }
            if S::NEEDS_EDGES {
                let (to, kind) = self.transfer_at_node_end(node, outcome);
                sink.add_edge(code.last_ip(node), to, kind);
            }
            time = after;
        }
    }
}

/// Counts by transition id, and a list of the ids with a count.
#[derive(Default)]
pub(super) struct IdCounters {
    /// By id.
    counts: Buffer<u32>,
    /// Ids with a count; only the first `touched_len` are valid. One longer than `counts`.
    touched: Buffer<u32>,
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
    pub fn open_for_loop(&mut self) -> OpenIdCounters<'_> {
        OpenIdCounters {
            counts: &mut self.counts,
            touched: &mut self.touched,
            open_len: self.touched_len,
            touched_len: &mut self.touched_len,
        }
    }

    pub fn increment_count(&mut self, id: u32) {
        let mut counters = self.open_for_loop();
        counters.increment_count(id);
        counters.close();
    }

    /// Ids with a count, and their counts.
    pub fn nonzero_counts(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let touched = self.touched.iter().take(self.touched_len);
        touched.map(|&id| (id, self.counts[id as usize]))
    }

    /// As `counts`; resets the counts.
    pub fn drain_counts(&mut self) -> impl Iterator<Item = (u32, u32)> + '_ {
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
    pub fn increment_count(&mut self, id: u32) {
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
    nodes: Buffer<NodeTotal>,
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
    pub fn should_move_counts(&self) -> bool {
        self.tips.len() + self.returns.len() > MAX_TARGETS
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds `count` runs of a node that ended with `outcome`.
    pub fn add_node_runs(&mut self, node: u32, outcome: BranchOutcome, count: u64) {
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
    pub fn move_counts_to_totals(&mut self, code: &CodeCache, totals: &mut Totals) {
        let moved = std::mem::take(self);
        for (index, total) in moved.nodes.iter().enumerate() {
            if total.runs == 0 {
                continue;
            }
            let node = code.node_at(index as u32);
            for (at, code_range) in code.code_ranges(node).iter().enumerate() {
                totals.add_run(code_range.start, code_range.count, total.runs);
                if code_range.run_end != RunEnd::Cut {
                    let to = code.target_of_code_range(node, at);
                    totals.add_edge(code_range.last, to, code_range.run_end, total.runs);
                }
            }
            if node.run_end == RunEnd::Conditional {
                let last = code.last_ip(node);
                totals.add_edge(last, node.target, RunEnd::Conditional, total.taken);
                totals.add_edge(last, node.next, RunEnd::Cut, total.runs - total.taken);
            }
        }
        for ((index, ip), count) in moved.tips.into_sorted_counts() {
            let node = code.node_at(index);
            totals.add_edge(code.last_ip(node), ip, node.run_end, count);
        }
        for ((index, site), count) in moved.returns.into_sorted_counts() {
            let node = code.node_at(index);
            let return_ip = code.call_at_site(site).map_or(0, |call| call.return_ip);
            let to = node.mode.truncate_ip(return_ip);
            totals.add_edge(code.last_ip(node), to, RunEnd::Return, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_the_largest_mixes_do_not_overflow_their_fields() {
        let mut mix = InstructionMix::default();
        for _ in 0..96 {
            mix.add_node(7, BranchOutcome::Returned(0));
        }
        let mut sum = InstructionMixSum::default();
        let transitions = MAX_SUMMED as u64;
        for _ in 0..transitions {
            sum.add_mix(mix);
        }
        let mut counts = StreamCounts::default();
        sum.add_sum_to_counts(&mut counts);
        assert_eq!(counts.instructions, 7 * 96 * transitions);
        assert_eq!((counts.conditional, counts.indirect), (0, 0));
        assert_eq!(counts.returns, 96 * transitions);
        assert_eq!(counts.compressed_returns, 96 * transitions);
    }
}
