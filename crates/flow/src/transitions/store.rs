//! All transitions of one address space: built, decoded with, counted, and invalidated.
//!
//! [`TransitionStore`] owns the three tables, the fused transitions and what belongs to a transition but is not needed
//! in the decode loop, by its id: the nodes that it visits ([`NodeVisits`]). Ids are never reused within a generation;
//! a generation ends when everything is cleared, because the tables serve another kind of sink, memory is full, or the
//! code cache was emptied.
//!
//! Depending on what the sink needs, a table entry holds either a count or the id ([`RecordingMode`]). Counts are 32
//! bits wide and are flushed after 2^30 bytes at the latest. They go from transitions to nodes (`NodeTotals`) and from
//! there to addresses (`Totals`), in the order of ids, which is the order of the visits in memory.
//!
//! When code changes, exactly the transitions that visit a dead node are removed. The index for that (`by_node`) is
//! built at the first change; most programs never change code.

use std::collections::HashMap;
use std::mem::{replace, size_of};
use std::sync::atomic::{AtomicU32, Ordering};

use rtit_huge_pages::Buffer;
use rtit_image::SpaceView;

use super::decode_loop::{
    CountById, CountInPlace, DecodeCursor, LogInOrder, RecordNothing, StopReason, TransitionTables,
};
use super::fused::{
    decode_with_fusion, DecodeFn, FusedTransition, FusedTransitions, FusionBuilder, FusionTables,
    FUSION_COST, FUSION_COST_IN_ORDER, WINDOW,
};
use super::node_visits::{IdCounters, NodeTotals, NodeVisits, TransitionLog};
use super::packet_path::{PacketPath, StackEffect, StackEffects};
use super::table::{
    half_tnt, tnt_slot, CallSite, EvictedTransition, NodeKey, ShortTnt, TipTarget, Transition,
    TransitionInput, TransitionTable, SHORT_TNTS,
};
use crate::code_cache::{CodeCache, NodeEnd};
use crate::return_stack::ReturnStack;
use crate::settings::{Settings, TransitionLimits};
use crate::sink::{LoggedTransition, Sink, SinkNeeds, TakenTransitions as _};
use crate::totals::{StreamCounts, Totals};

/// First sizes of the tables, small for the sake of short streams.
const FIRST_TNT_ENTRIES: usize = 1 << 10;
const FIRST_ENTRIES: usize = 1 << 8;

/// Memory of a key in `by_node`, with its share of the map, in words of 32 bits.
const WORDS_PER_KEY: usize = 12;

/// A byte increments at most two counts, so counts of 32 bits cannot overflow before they are flushed.
const MAX_UNFLUSHED_BYTES: usize = 1 << 30;

/// What finds a transition in the tables.
#[derive(Clone, Copy, Debug)]
enum TransitionKey {
    /// With the TNT byte, shifted right by 1.
    Tnt(NodeKey, u8),
    Tip(NodeKey, TipTarget),
    Return(NodeKey, CallSite),
    Fused {
        slot: usize,
        id: u32,
    },
}

/// What the decode loop records.
enum RecordingMode {
    CountsInPlace,
    Log,
    CountsById,
    Nothing,
}

/// Generations are unique in the process, so that ids of one address space are not mistaken for those of another.
fn next_generation() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) struct TransitionStore {
    limits: TransitionLimits,
    /// Limit of runs, and of edges, that have their own counter.
    max_counters: usize,
    /// RETs may be compressed.
    has_retc: bool,
    /// Results are not recorded: they lie before the cut of a segment.
    pub discards_results: bool,
    /// What the sink needs: the tables are filled for this.
    needs: SinkNeeds,
    tnt: TransitionTable<ShortTnt>,
    tip: TransitionTable<TipTarget>,
    ret: TransitionTable<CallSite>,
    fused: FusedTransitions,
    stack_effects: StackEffects,
    visits: NodeVisits,
    generation: u32,
    /// The transitions that visit a node; `None` until code changes for the first time.
    by_node: Option<HashMap<u32, Vec<TransitionKey>>>,
    by_node_len: usize,
    /// For sinks that need hits.
    counters: IdCounters,
    /// Flushed counts.
    flushed: StreamCounts,
    nodes: NodeTotals,
    addresses: Totals,
    bytes_since_flush: usize,
    /// Written by the decode loop: transition ids or `TimingEntry`s, with offsets in the decoded bytes.
    pub log: Vec<(u32, u32)>,
    path: PacketPath,
    fusion_builder: FusionBuilder,
    /// Evicted transitions with counts that are not flushed.
    evicted: Vec<EvictedTransition>,
}

impl TransitionStore {
    pub fn new(settings: &Settings, has_single_space: bool) -> TransitionStore {
        let has_retc = !settings.no_retcomp;
        TransitionStore {
            limits: settings.transitions,
            max_counters: settings.max_counters,
            has_retc,
            discards_results: false,
            needs: SinkNeeds::Interpreter,
            tnt: TransitionTable::new(0, 0),
            tip: TransitionTable::new(0, 0),
            ret: TransitionTable::new(0, 0),
            fused: FusedTransitions::default(),
            stack_effects: StackEffects::default(),
            visits: NodeVisits::default(),
            generation: next_generation(),
            by_node: None,
            by_node_len: 0,
            counters: IdCounters::default(),
            flushed: StreamCounts::default(),
            nodes: NodeTotals::default(),
            addresses: Totals::with_max_counters(settings.max_counters),
            bytes_since_flush: 0,
            log: Vec::new(),
            path: PacketPath::new(has_retc, has_single_space),
            fusion_builder: FusionBuilder::default(),
            evicted: Vec::new(),
        }
    }

    /// Prepares the tables for a sink. Returns false if the interpreter must decode everything.
    pub fn prepare_for_sink(&mut self, needs: SinkNeeds) -> bool {
        if self.limits.entries < SHORT_TNTS || needs == SinkNeeds::Interpreter {
            return false;
        }
        if self.needs != needs {
            // Entries hold ids for one kind of sink, and counts for another.
            self.clear_transitions();
            self.needs = needs;
            self.create_tables();
        }
        self.addresses.limit_counters(self.max_counters());
        true
    }

    /// Sinks that need hits get all edges, without a limit.
    fn max_counters(&self) -> usize {
        match self.needs {
            SinkNeeds::TransitionCounts => usize::MAX,
            _ => self.max_counters,
        }
    }

    fn create_tables(&mut self) {
        let max_entries = 1 << self.limits.entries.ilog2();
        let [first_tnt, first] = match self.path.has_single_space() {
            true => [FIRST_TNT_ENTRIES, FIRST_ENTRIES],
            false => [SHORT_TNTS; 2],
        };
        self.tnt = TransitionTable::new(first_tnt, max_entries);
        self.tip = TransitionTable::new(first, max_entries);
        self.ret = TransitionTable::new(first, max_entries);
        let fusion_cost = match self.needs {
            SinkNeeds::Order => FUSION_COST_IN_ORDER,
            _ => FUSION_COST,
        };
        self.fused = FusedTransitions::new(&self.limits, fusion_cost);
    }

    /// Approximate memory beside the tables, in words of 32 bits.
    fn size_in_words(&self) -> usize {
        self.visits.size_in_words() + self.stack_effects.len() + self.by_node_len * WORDS_PER_KEY
    }

    /// Memory in bytes, about, without the totals.
    pub fn size_in_bytes(&self) -> usize {
        let tables = self.tnt.size_in_bytes()
            + self.tip.size_in_bytes()
            + self.ret.size_in_bytes()
            + self.fused.size_in_bytes();
        let log = self.log.capacity() * size_of::<(u32, u32)>();
        self.size_in_words() * size_of::<u32>() + tables + log
    }

    /// Bytes that may be decoded at once: offsets in the log have 32 bits.
    pub fn max_bytes_at_once(&self) -> usize {
        self.limits.stride.clamp(1, MAX_UNFLUSHED_BYTES)
    }

    pub fn node_visits(&self) -> &NodeVisits {
        &self.visits
    }

    pub fn transition_generation(&self) -> u32 {
        self.generation
    }

    fn recording_mode(&self) -> RecordingMode {
        match self.needs {
            SinkNeeds::Order => RecordingMode::Log,
            _ if self.discards_results => RecordingMode::Nothing,
            SinkNeeds::TransitionCounts => RecordingMode::CountsById,
            _ => RecordingMode::CountsInPlace,
        }
    }

    /// Decodes packets from `cursor.offset` to at most `end`, with at most `max_log` entries in the log.
    /// `needs_offsets`: the sink needs the offset of each row's packet; then fusion pays only without RET compression.
    pub fn decode_packets(
        &mut self,
        needs_offsets: bool,
        stack: &mut ReturnStack,
        bytes: &[u8],
        end: usize,
        max_log: usize,
        cursor: &mut DecodeCursor,
    ) -> StopReason {
        let decode = match (self.has_retc, self.recording_mode()) {
            (false, RecordingMode::CountsInPlace) => {
                decode_with_fusion::<false, CountInPlace> as DecodeFn
            }
            (true, RecordingMode::CountsInPlace) => decode_with_fusion::<true, CountInPlace>,
            (false, RecordingMode::Log) => decode_with_fusion::<false, LogInOrder>,
            (true, RecordingMode::Log) => decode_with_fusion::<true, LogInOrder>,
            (false, RecordingMode::CountsById) => decode_with_fusion::<false, CountById>,
            (true, RecordingMode::CountsById) => decode_with_fusion::<true, CountById>,
            (false, RecordingMode::Nothing) => decode_with_fusion::<false, RecordNothing>,
            (true, RecordingMode::Nothing) => decode_with_fusion::<true, RecordNothing>,
        };
        let fusion_pays = !needs_offsets || !self.has_retc;
        let fused = fusion_pays.then_some(&mut self.fused);
        let mut tables = TransitionTables {
            tnt: &mut self.tnt.entries,
            tip: &mut self.tip.entries,
            ret: &mut self.ret.entries,
            stack_effects: &self.stack_effects,
            counters: &mut self.counters,
            log: &mut self.log,
        };
        decode(&mut tables, fused, stack, bytes, end, max_log, cursor)
    }

    /// Called after `bytes` bytes were decoded, with an empty log. Flushes counts before they can overflow; clears
    /// everything when the data of transitions, including evicted ones, takes too much memory.
    pub fn enforce_limits(&mut self, code: &CodeCache, bytes: usize) {
        self.bytes_since_flush += bytes;
        self.fused.warm_up(bytes);
        if self.size_in_words() > self.limits.words {
            self.clear_transitions();
        } else if self.bytes_since_flush > MAX_UNFLUSHED_BYTES {
            self.flush_all_counts();
        }
        if self.nodes.should_move_counts() {
            self.nodes.move_counts_to_totals(code, &mut self.addresses);
        }
    }

    /// Discards all counts; keeps the transitions.
    pub fn reset_counts(&mut self) {
        self.flush_all_counts();
        self.flushed = StreamCounts::default();
        self.nodes = NodeTotals::default();
        self.addresses = Totals::with_max_counters(self.max_counters());
    }
}

/// Adding missing transitions.
impl TransitionStore {
    /// Adds the transition of a short TNT byte. Returns false if the interpreter must decode the packet.
    pub fn add_tnt_transition(
        &mut self,
        code: &mut CodeCache,
        view: &SpaceView,
        node: NodeKey,
        tnt: u8,
    ) -> bool {
        let start = node.node_index();
        if code.node_at(start).end == NodeEnd::Dead
            || self.path.follow_tnt(code, view, start, tnt).is_none()
        {
            return false;
        }
        let (id, stack_effect) = self.assign_id(code);
        self.index_by_node(id, TransitionKey::Tnt(node, tnt >> 1));
        let slot = tnt_slot(node, tnt >> 1, self.tnt.slot_mask());
        let transition = self.new_transition(node, id, stack_effect, ShortTnt);
        self.tnt
            .insert_transition(slot, transition, id, &mut self.evicted);
        self.flush_evicted();
        true
    }

    /// Adds the transition of a TIP to `ip`. Returns false if the interpreter must decode the packet.
    pub fn add_tip_transition(
        &mut self,
        code: &mut CodeCache,
        view: &SpaceView,
        node: NodeKey,
        ip: u64,
    ) -> bool {
        let start = node.node_index();
        if code.node_at(start).end == NodeEnd::Dead
            || self.path.follow_tip(code, view, start, ip).is_none()
        {
            return false;
        }
        let target = TipTarget(ip);
        let (id, stack_effect) = self.assign_id(code);
        self.index_by_node(id, TransitionKey::Tip(node, target));
        let slot = target.first_slot(node, 0, self.tip.slot_mask());
        let transition = self.new_transition(node, id, stack_effect, target);
        self.tip
            .insert_transition(slot, transition, id, &mut self.evicted);
        self.flush_evicted();
        true
    }

    /// Adds the transition of the compressed RET at the end of a node to a call site, takes it, and returns the next
    /// node. `offset`: of the packet. `None` if the interpreter must decode the RET.
    pub fn take_new_return_transition(
        &mut self,
        code: &mut CodeCache,
        view: &SpaceView,
        node: NodeKey,
        site: CallSite,
        offset: usize,
    ) -> Option<NodeKey> {
        let start = node.node_index();
        if code.node_at(start).end == NodeEnd::Dead {
            return None;
        }
        self.path.follow_return(code, view, start, site.0)?;
        let (id, _) = self.assign_id(code);
        self.index_by_node(id, TransitionKey::Return(node, site));
        let slot = site.first_slot(node, 0, self.ret.slot_mask());
        let mut transition = self.new_transition(node, id, 0, site);
        match self.recording_mode() {
            RecordingMode::Log => self.log.push((id, offset as u32)),
            RecordingMode::CountsInPlace => transition.count_or_id = 1,
            RecordingMode::CountsById => self.counters.increment_count(id),
            RecordingMode::Nothing => {}
        }
        let next = transition.next;
        self.ret
            .insert_transition(slot, transition, id, &mut self.evicted);
        self.flush_evicted();
        Some(next)
    }

    /// Adds the fused transition for the packets at `cursor`, if they can be fused.
    pub fn add_fused_transition(&mut self, bytes: &[u8], cursor: &DecodeCursor) {
        let window = bytes.get(cursor.offset..cursor.offset + WINDOW);
        let window: Option<&[u8; WINDOW]> = window.and_then(|window| window.try_into().ok());
        let Some(mut window) = window.copied() else {
            return;
        };
        if cursor.pending_tnt != 0 {
            window[0] = cursor.pending_tnt;
        }
        let tables = FusionTables {
            tnt: &self.tnt,
            tip: &self.tip,
            ret: &self.ret,
            stack_effects: &self.stack_effects,
            visits: &self.visits,
            has_retc: self.has_retc,
        };
        let builder = &mut self.fusion_builder;
        let Some(covered) = builder.compose_transitions(&tables, cursor, &window) else {
            return;
        };
        let id = self.visits.add_fused_transition(&builder.parts);
        if self.needs == SinkNeeds::TransitionCounts {
            self.counters.grow_to(id);
        }
        let key = self.fused.fusion_key(cursor.node, &window, 0);
        let (low, high) = key.masked_first_bytes(covered.length);
        let transition = FusedTransition {
            low,
            high,
            last_ip_mask: covered.last_ip_mask,
            last_ip_before: cursor.last_ip & covered.last_ip_mask,
            last_ip_after: covered.last_ip,
            node: cursor.node,
            next: builder.next,
            count_or_id: match self.needs {
                SinkNeeds::Order | SinkNeeds::TransitionCounts => id,
                _ => 0,
            },
            stack_effect: match self.has_retc {
                true => self
                    .stack_effects
                    .encode_stack_effect(builder.effect, &builder.pushes),
                false => 0,
            },
            length: covered.length,
            tip_bytes: covered.tip_bytes,
            tips: covered.tips_and_end(),
            ..FusedTransition::default()
        };
        let slot = key.slot;
        self.index_by_node(id, TransitionKey::Fused { slot, id });
        self.fused
            .insert_transition(&key, transition, id, &mut self.evicted);
        self.flush_evicted();
    }

    /// Assigns an id to the path that was just followed; returns it and the encoded stack effect.
    fn assign_id(&mut self, code: &CodeCache) -> (u32, u32) {
        let id = self.visits.add_transition_visits(code, &self.path.visits);
        if self.needs == SinkNeeds::TransitionCounts {
            self.counters.grow_to(id);
        }
        let effect = StackEffect {
            peak: self.path.peak as u8,
            pops: self.path.pending_tnt.is_some(),
            pending_tnt: self.path.pending_tnt.unwrap_or(0),
        };
        let stack_effect = match self.has_retc {
            true => self
                .stack_effects
                .encode_stack_effect(effect, &self.path.pushes),
            false => 0,
        };
        (id, stack_effect)
    }

    fn new_transition<I>(
        &self,
        node: NodeKey,
        id: u32,
        stack_effect: u32,
        input: I,
    ) -> Transition<I> {
        Transition {
            node,
            next: NodeKey::from_index(self.path.next),
            count_or_id: match self.needs {
                SinkNeeds::Order | SinkNeeds::TransitionCounts => id,
                _ => 0,
            },
            stack_effect,
            input,
        }
    }
}

/// Counts.
impl TransitionStore {
    fn flush_evicted(&mut self) {
        while let Some(EvictedTransition { id, count }) = self.evicted.pop() {
            // Where the sink needs ids, the field holds the id.
            if count != 0 && !matches!(self.needs, SinkNeeds::Order | SinkNeeds::TransitionCounts) {
                self.flush_transition_count(id, count.into());
            }
        }
    }

    fn flush_transition_count(&mut self, id: u32, count: u64) {
        self.visits
            .instruction_mix(id)
            .add_to_counts(&mut self.flushed, count);
        if matches!(self.needs, SinkNeeds::Totals | SinkNeeds::TransitionCounts) {
            for (node, outcome) in self.visits.visited_nodes(id) {
                self.nodes.add_node_runs(node, outcome, count);
            }
        }
    }

    fn flush_all_counts(&mut self) {
        self.bytes_since_flush = 0;
        if self.needs == SinkNeeds::Order {
            return;
        }
        if self.needs == SinkNeeds::TransitionCounts {
            let mut counters = std::mem::take(&mut self.counters);
            for (id, count) in counters.drain_counts() {
                self.flush_transition_count(id, count.into());
            }
            self.counters = counters;
            return;
        }
        // In the order of ids, which is the order of the visits in memory.
        let mut counts = Buffer::filled(0, self.visits.len());
        let mut add = |id: u32, count: u32| counts[id as usize] += u64::from(count);
        self.tnt.drain_counts(&mut add);
        self.tip.drain_counts(&mut add);
        self.ret.drain_counts(&mut add);
        self.fused.drain_counts(&mut add);
        for (count, id) in counts.into_iter().zip(0..) {
            if count != 0 {
                self.flush_transition_count(id, count);
            }
        }
    }

    /// Adds instructions and branches that were decoded with transitions to `nonzero_counts`.
    pub fn add_counts(&self, counts: &mut StreamCounts) {
        let flushed = &self.flushed;
        counts.instructions += flushed.instructions;
        counts.conditional += flushed.conditional;
        counts.indirect += flushed.indirect;
        counts.returns += flushed.returns;
        counts.compressed_returns += flushed.compressed_returns;
        if matches!(self.needs, SinkNeeds::Order | SinkNeeds::TransitionCounts) {
            for (id, count) in self.counters.nonzero_counts() {
                self.visits
                    .instruction_mix(id)
                    .add_to_counts(counts, count.into());
            }
            return;
        }
        let in_place = self
            .tnt
            .nonzero_counts()
            .chain(self.tip.nonzero_counts())
            .chain(self.ret.nonzero_counts())
            .chain(self.fused.nonzero_counts());
        for (id, count) in in_place {
            self.visits
                .instruction_mix(id)
                .add_to_counts(counts, count.into());
        }
    }

    /// Hands the counts over to a sink that needs hits, and resets them.
    pub fn report_transition_counts<S: Sink>(&mut self, code: &CodeCache, sink: &mut S) {
        if self.needs == SinkNeeds::TransitionCounts {
            self.report_counters_of_transitions(code, sink);
        }
        // Flushed counts are those of cleared tables, also of address spaces that have been dropped.
        if !self.nodes.is_empty() || !self.addresses.is_empty() {
            self.nodes.move_counts_to_totals(code, &mut self.addresses);
            let totals = self.take_address_totals();
            totals.for_each_edge(|from, to, kind, times| {
                sink.add_counted_edge(from, to, kind, times)
            });
        }
    }

    fn report_counters_of_transitions<S: Sink>(&mut self, code: &CodeCache, sink: &mut S) {
        let log = TransitionLog {
            logged: &[],
            generation: self.generation,
            code,
            visits: &self.visits,
        };
        for (id, count) in self.counters.drain_counts() {
            self.visits
                .instruction_mix(id)
                .add_to_counts(&mut self.flushed, count.into());
            let logged = LoggedTransition {
                number: id,
                ..LoggedTransition::default()
            };
            sink.add_transition_count(&log.resolve_logged(logged), count.into());
        }
    }

    /// Moves all counts by address to `totals`.
    pub fn move_totals(&mut self, code: &CodeCache, totals: &mut Totals) {
        self.flush_all_counts();
        self.nodes.move_counts_to_totals(code, &mut self.addresses);
        totals.merge_totals(self.take_address_totals());
    }

    /// Number of runs and edges with a counter by address.
    pub fn counters_in_use(&self) -> usize {
        self.addresses.counters_in_use()
    }

    /// Moves the counts by address from `other` to `self`.
    pub fn move_address_totals_from(&mut self, other: &mut TransitionStore) {
        if !other.addresses.is_empty() {
            self.addresses.merge_totals(other.take_address_totals());
        }
    }

    /// Adds all counts of `other`, which decoded in `code`.
    pub fn add_counts_from_store(&mut self, mut other: TransitionStore, code: &CodeCache) {
        other.invalidate_all(code);
        self.move_address_totals_from(&mut other);
        self.flushed.add_flow_counts(&other.flushed);
    }

    fn take_address_totals(&mut self) -> Totals {
        let empty = Totals::with_max_counters(self.max_counters());
        replace(&mut self.addresses, empty)
    }
}

/// Removing transitions.
impl TransitionStore {
    /// Removes all transitions; their counts are kept.
    fn clear_transitions(&mut self) {
        self.flush_all_counts();
        self.tnt.clear();
        self.tip.clear();
        self.ret.clear();
        self.fused.clear();
        self.stack_effects.clear();
        self.visits.clear();
        self.counters.clear();
        self.by_node = None;
        self.by_node_len = 0;
        self.generation = next_generation();
    }

    /// Called before all node indices and call-site numbers of `code` become invalid.
    pub fn invalidate_all(&mut self, code: &CodeCache) {
        if self.needs == SinkNeeds::Interpreter {
            return;
        }
        self.clear_transitions();
        self.nodes.move_counts_to_totals(code, &mut self.addresses);
    }

    /// Removes the transitions that visit dead nodes.
    pub fn remove_transitions_of_nodes(&mut self, dead: &[u32]) {
        if dead.is_empty() || self.needs == SinkNeeds::Interpreter {
            return;
        }
        if self.by_node.is_none() {
            self.index_all_by_node();
        }
        for node in dead {
            let by_node = self.by_node.as_mut();
            let keys = by_node.and_then(|by_node| by_node.remove(node));
            let keys = keys.unwrap_or_default();
            self.by_node_len -= keys.len();
            for key in keys {
                self.remove_transition(key);
            }
        }
        self.flush_evicted();
    }

    fn index_all_by_node(&mut self) {
        self.by_node = Some(HashMap::new());
        let mut keys = Vec::new();
        for (slot, entry) in self.tnt.used_slots() {
            let key = TransitionKey::Tnt(entry.node, half_tnt(entry.node, slot));
            keys.push((self.tnt.transition_id(slot), key));
        }
        for (slot, entry) in self.tip.used_slots() {
            let key = TransitionKey::Tip(entry.node, entry.input);
            keys.push((self.tip.transition_id(slot), key));
        }
        for (slot, entry) in self.ret.used_slots() {
            let key = TransitionKey::Return(entry.node, entry.input);
            keys.push((self.ret.transition_id(slot), key));
        }
        for (slot, id) in self.fused.used_slots() {
            keys.push((id, TransitionKey::Fused { slot, id }));
        }
        for (id, key) in keys {
            self.index_by_node(id, key);
        }
    }

    fn index_by_node(&mut self, id: u32, key: TransitionKey) {
        if let Some(by_node) = &mut self.by_node {
            for (node, _) in self.visits.visited_nodes(id) {
                self.by_node_len += 1;
                by_node.entry(node).or_default().push(key);
            }
        }
    }

    /// Removes a transition if it is still in its table.
    fn remove_transition(&mut self, key: TransitionKey) {
        let evicted = &mut self.evicted;
        match key {
            TransitionKey::Tnt(node, half) => {
                let slot = tnt_slot(node, half, self.tnt.slot_mask());
                self.tnt.remove_if_present(slot, node, ShortTnt, evicted);
            }
            TransitionKey::Tip(node, target) => {
                let slot = target.first_slot(node, 0, self.tip.slot_mask());
                self.tip.remove_if_present(slot, node, target, evicted);
            }
            TransitionKey::Return(node, site) => {
                let slot = site.first_slot(node, 0, self.ret.slot_mask());
                self.ret.remove_if_present(slot, node, site, evicted);
            }
            TransitionKey::Fused { slot, id } => self.fused.remove_if_present(slot, id, evicted),
        }
    }
}
