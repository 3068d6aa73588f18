//! Edge counters and bitmaps for fuzzing: edges and counts of one run after another over the same code.
//!
//! The decoder counts transitions by id. This sink keeps the edges of each transition, and the bitmap slot of each
//! edge, from run to run. So reading the counts of a run costs as much as the run itself, however much code is known.
//! Ids are valid within a generation; each address space has its own.
//!
//! A bitmap counts only edges that a packet decided: conditional branches both ways, indirect jumps and calls, returns,
//! far transfers. Direct jumps and calls follow from these, and a system call without a target is no edge there. PT
//! reports branches, not blocks, so AFL's hash takes the address of the branch instead of the start of the first block.

use crate::event::Event;
use crate::hash::{add_to_count, CountsBy};
use crate::sink::{RunEnd, RunFragment, Sink, SinkNeeds, TakenTransition};
use crate::totals::EdgeTotal;

/// Edges and transitions in memory, at most; then they are dropped and built again when needed.
const MAX_KEPT: usize = 1 << 21;

/// The sink that counts edges for a [`ReusableDecoder`](crate::ReusableDecoder). Its edges are those of
/// [`Totals`](crate::Totals).
#[derive(Clone, Debug, Default)]
pub struct EdgeCounter {
    /// By generation; the current one first.
    generations: Vec<GenerationEdges>,
    /// Edges that the interpreter reported.
    interpreted: CountsBy<(u64, u64, u8)>,
}

impl EdgeCounter {
    /// Calls `add_count` with source, target, kind and count of every edge, in no order. An edge may occur more than
    /// once.
    pub fn for_each_edge(&self, mut add_count: impl FnMut(u64, u64, RunEnd, u64)) {
        for generation in &self.generations {
            generation.for_each_edge(|edge, hits| add_count(edge.from, edge.to, edge.kind, hits));
        }
        for (&(from, to, kind), &count) in &self.interpreted {
            add_count(from, to, RunEnd::ALL[usize::from(kind)], count);
        }
    }

    /// Calls `add_count` with bitmap slot and count of every edge that `filter` accepts. Slots are computed once and
    /// kept for the next call with the same arguments. `mask`: the size of the bitmap, a power of two, minus 1.
    pub fn for_each_bitmap_slot(
        &mut self,
        hash: BitmapHash,
        filter: EdgeFilter,
        mask: u64,
        mut add_count: impl FnMut(u64, u64),
    ) {
        let layout_mask = u32::try_from(mask).ok().filter(|&mask| mask != NO_SLOT);
        for generation in &mut self.generations {
            match layout_mask {
                Some(mask) => generation.for_each_slot((hash, filter, mask), &mut add_count),
                None => generation.for_each_edge(|edge, hits| {
                    if filter.accepts_edge(edge.kind) {
                        add_count(hash.bitmap_slot(edge.from, edge.to, mask), hits);
                    }
                }),
            }
        }
        for (&(from, to, kind), &count) in &self.interpreted {
            if to != 0 && filter.accepts_edge(RunEnd::ALL[usize::from(kind)]) {
                add_count(hash.bitmap_slot(from, to, mask), count);
            }
        }
    }

    /// Returns the edges, sorted.
    pub fn sorted_edges(&self) -> Vec<EdgeTotal> {
        let mut sums: CountsBy<(u64, u64, u8)> = CountsBy::default();
        self.for_each_edge(|from, to, kind, count| {
            add_to_count(&mut sums, (from, to, kind as u8), count)
        });
        let total = |((from, to, kind), count)| EdgeTotal {
            from,
            to,
            kind,
            count,
        };
        let mut edges: Vec<EdgeTotal> = sums.into_iter().map(total).collect();
        edges.sort_unstable();
        edges
    }

    /// Resets the counts.
    pub fn clear(&mut self) {
        self.generations.iter_mut().for_each(GenerationEdges::clear);
        self.interpreted.clear();
    }

    /// As `sorted_edges`; resets the counts.
    pub fn take_edges(&mut self) -> Vec<EdgeTotal> {
        let edges = self.sorted_edges();
        self.clear();
        edges
    }

    /// Drops the edges of transitions; the counts are kept.
    fn drop_generations(&mut self) {
        let interpreted = &mut self.interpreted;
        for generation in &self.generations {
            generation.for_each_edge(|edge, hits| {
                add_to_count(interpreted, (edge.from, edge.to, edge.kind as u8), hits);
            });
        }
        self.generations.clear();
    }

    /// The transitions of a generation.
    #[inline]
    fn edges_of_generation(&mut self, generation: u32) -> Option<&mut GenerationEdges> {
        if self.generations.first().map(|edges| edges.generation) != Some(generation) {
            self.move_generation_to_front(generation);
        }
        self.generations.first_mut()
    }

    /// Moves a generation to the front.
    #[cold]
    fn move_generation_to_front(&mut self, generation: u32) {
        if self
            .generations
            .iter()
            .map(GenerationEdges::entry_count)
            .sum::<usize>()
            > MAX_KEPT
        {
            self.drop_generations();
        }
        match self
            .generations
            .iter()
            .position(|edges| edges.generation == generation)
        {
            Some(at) => self.generations.swap(0, at),
            None => self.generations.insert(0, GenerationEdges::new(generation)),
        }
    }
}

impl Sink for EdgeCounter {
    const NEEDS_EDGES: bool = true;
    const NEEDS: SinkNeeds = SinkNeeds::TransitionCounts;
    const HAS_PACKET_OFFSETS: bool = false;

    fn extend_run(&mut self, _fragment: &RunFragment<'_>, _time: u64) {}

    fn end_run(&mut self, _end: RunEnd, _offset: u64) {}

    fn add_edge(&mut self, from: u64, to: u64, kind: RunEnd) {
        add_to_count(&mut self.interpreted, (from, to, kind as u8), 1);
    }

    fn add_event(&mut self, _event: &Event) {}

    fn add_transition_count(&mut self, transition: &impl TakenTransition, times: u64) {
        if let Some(edges) = self.edges_of_generation(transition.transition_generation()) {
            edges.add_transition_count(transition, times);
        }
    }

    fn add_counted_edge(&mut self, from: u64, to: u64, kind: RunEnd, times: u64) {
        add_to_count(&mut self.interpreted, (from, to, kind as u8), times);
    }
}

/// The slot of an edge that is not counted.
const NO_SLOT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct TransitionEdge {
    pub from: u64,
    pub to: u64,
    pub kind: RunEnd,
}

/// The transitions of one generation (the lifetime of their ids): their edges, bitmap slots and hits.
#[derive(Clone, Debug, Default)]
struct GenerationEdges {
    pub generation: u32,
    /// By transition id: range in `edges`; (0, 0) if its edges are unknown.
    pub edge_ranges: Vec<(u32, u32)>,
    edges: Vec<TransitionEdge>,
    /// Slots of the first of `edges` in a bitmap of this layout.
    slots: Vec<u32>,
    layout: Option<BitmapLayout>,
    /// Pairs of id and count. An id may occur more than once; the list is at most twice as long as `edge_ranges`.
    hits: Vec<(u32, u64)>,
}

/// Hash function, edges and size minus 1 of a bitmap.
type BitmapLayout = (BitmapHash, EdgeFilter, u32);

impl GenerationEdges {
    pub fn new(generation: u32) -> GenerationEdges {
        GenerationEdges {
            generation,
            ..GenerationEdges::default()
        }
    }

    pub fn entry_count(&self) -> usize {
        self.edge_ranges.len() + self.edges.len()
    }

    pub fn add_transition_count(&mut self, transition: &impl TakenTransition, times: u64) {
        let number = self.find_edges(transition);
        if self.hits.len() >= 2 * self.edge_ranges.len() {
            self.sum_counts_of_equal_ids();
        }
        self.hits.push((number, times));
    }

    /// Collects the edges of a transition if they are unknown. Returns its id.
    fn find_edges(&mut self, transition: &impl TakenTransition) -> u32 {
        let number = transition.transition_id() as usize;
        if number >= self.edge_ranges.len() {
            self.edge_ranges.resize(number + 1, (0, 0));
        }
        if self.edge_ranges[number].1 == 0 {
            let first = self.edges.len() as u32;
            let mut collector = EdgeCollector(&mut self.edges);
            transition.replay_with_times((0, 0), &mut collector);
            // A transition without edges gets a placeholder, since an empty range means unknown.
            if first == self.edges.len() as u32 {
                self.edges.push(TransitionEdge {
                    from: 0,
                    to: 0,
                    kind: PLACEHOLDER,
                });
            }
            self.edge_ranges[number] = (first, self.edges.len() as u32);
        }
        number as u32
    }

    /// Sums hits of equal ids; a stream in many windows has such.
    #[cold]
    fn sum_counts_of_equal_ids(&mut self) {
        let mut sums = vec![0; self.edge_ranges.len()];
        for (number, times) in self.hits.drain(..) {
            sums[number as usize] += times;
        }
        let hits = (0..).zip(sums).filter(|&(_, times)| times != 0);
        self.hits.extend(hits);
    }

    pub fn for_each_edge(&self, mut add_count: impl FnMut(&TransitionEdge, u64)) {
        for &(number, hits) in &self.hits {
            let (first, end) = self.edge_ranges[number as usize];
            for edge in &self.edges[first as usize..end as usize] {
                if edge.kind != PLACEHOLDER {
                    add_count(edge, hits);
                }
            }
        }
    }

    pub fn for_each_slot(&mut self, layout: BitmapLayout, mut add_count: impl FnMut(u64, u64)) {
        if self.layout != Some(layout) {
            self.slots.clear();
            self.layout = Some(layout);
        }
        let (hash, filter, mask) = layout;
        let new = &self.edges[self.slots.len()..];
        self.slots.extend(new.iter().map(|edge| {
            match edge.kind != PLACEHOLDER && filter.accepts_edge(edge.kind) {
                true => hash.bitmap_slot(edge.from, edge.to, mask.into()) as u32,
                false => NO_SLOT,
            }
        }));
        for &(number, hits) in &self.hits {
            let (first, end) = self.edge_ranges[number as usize];
            for &slot in &self.slots[first as usize..end as usize] {
                if slot != NO_SLOT {
                    add_count(slot.into(), hits);
                }
            }
        }
    }

    /// Resets the counts; keeps the edges.
    pub fn clear(&mut self) {
        self.hits.clear();
    }
}

/// The kind of a placeholder, which no edge has.
const PLACEHOLDER: RunEnd = RunEnd::EndOfStream;

/// Collects the edges of one transition.
struct EdgeCollector<'a>(&'a mut Vec<TransitionEdge>);

impl Sink for EdgeCollector<'_> {
    const NEEDS_EDGES: bool = true;

    fn extend_run(&mut self, _fragment: &RunFragment<'_>, _time: u64) {}
    fn end_run(&mut self, _end: RunEnd, _offset: u64) {}
    fn add_edge(&mut self, from: u64, to: u64, kind: RunEnd) {
        self.0.push(TransitionEdge { from, to, kind });
    }
    fn add_event(&mut self, _event: &Event) {}
}

/// Hash of an edge to its slot in a bitmap; the size of a bitmap is a power of two. Several edges may share a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum BitmapHash {
    /// That of AFL's QEMU mode, of the address of a branch and its target.
    Afl,
    /// That of libxdc.
    Libxdc,
}

impl BitmapHash {
    pub const ALL: [BitmapHash; 2] = [BitmapHash::Afl, BitmapHash::Libxdc];

    pub const fn name(self) -> &'static str {
        match self {
            BitmapHash::Afl => "afl",
            BitmapHash::Libxdc => "libxdc",
        }
    }

    /// Returns the slot of an edge. `mask`: the size of the bitmap, minus 1.
    #[inline]
    pub fn bitmap_slot(self, from: u64, to: u64, mask: u64) -> u64 {
        match self {
            BitmapHash::Afl => {
                let block = |ip: u64| (ip >> 4 ^ ip << 8) & mask;
                block(to) ^ block(from) >> 1
            }
            BitmapHash::Libxdc => {
                let mixed = |ip: u64| (ip ^ ip >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
                (mixed(to) ^ mixed(from) >> 1) & 0xffff_ffff & mask
            }
        }
    }
}

/// The edges that are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum EdgeFilter {
    /// Edges that a packet decided: all but direct jumps and calls.
    Decided,
    /// Conditional branches, taken or not, as libxdc counts.
    Conditional,
}

impl EdgeFilter {
    pub const ALL: [EdgeFilter; 2] = [EdgeFilter::Decided, EdgeFilter::Conditional];

    pub const fn name(self) -> &'static str {
        match self {
            EdgeFilter::Decided => "decided",
            EdgeFilter::Conditional => "conditional",
        }
    }

    #[inline]
    pub fn accepts_edge(self, kind: RunEnd) -> bool {
        match self {
            EdgeFilter::Decided => !matches!(kind, RunEnd::Jump | RunEnd::Call),
            EdgeFilter::Conditional => matches!(kind, RunEnd::Conditional | RunEnd::Cut),
        }
    }
}

/// Returns `counter + count`, at most 255: a counter that wraps to 0 would look as if the edge had not run.
#[inline]
pub fn add_saturating_at_255(counter: u8, count: u64) -> u8 {
    let count = u8::try_from(count).unwrap_or(u8::MAX);
    u8::saturating_add(counter, count)
}

/// Returns AFL's class of a count, one bit: 1, 2, 3, 4 to 7, 8 to 15, 16 to 31, 32 to 127, 128 and more.
#[inline]
pub fn afl_count_class(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 4,
        4..=7 => 8,
        8..=15 => 16,
        16..=31 => 32,
        32..=127 => 64,
        128..=255 => 128,
    }
}
