//! Edge counters for fuzzing: edges and counts of one run after another over the same code.
//!
//! The decoder counts transitions by id. This sink keeps the edges of each transition, and the bitmap slot of each
//! edge, from run to run. So reading the counts of a run costs as much as the run itself, however much code is known.
//! Ids are valid within an epoch; each address space has its own.

use crate::bitmap::{BitmapHash, EdgeFilter};
use crate::event::Event;
use crate::hash::{add, CountsBy};
use crate::sink::{End, Sequence, Sink, Step, Wants};
use crate::totals::EdgeTotal;

/// Edges and transitions in memory, at most; then they are dropped and built again when needed.
const MAX_KEPT: usize = 1 << 21;

/// The sink that counts edges for a [`Persistent`](crate::Persistent) decoder. Its edges are those of
/// [`Totals`](crate::Totals).
#[derive(Clone, Debug, Default)]
pub struct EdgeCounter {
    /// By epoch; the current one first.
    epochs: Vec<EpochEdges>,
    /// Edges that the interpreter reported.
    interpreted: CountsBy<(u64, u64, u8)>,
}

impl EdgeCounter {
    /// Calls `add_count` with source, target, kind and count of every edge, in no order. An edge may occur more than
    /// once.
    pub fn for_each_edge(&self, mut add_count: impl FnMut(u64, u64, End, u64)) {
        for epoch in &self.epochs {
            epoch.for_each_edge(|edge, hits| add_count(edge.from, edge.to, edge.kind, hits));
        }
        for (&(from, to, kind), &count) in &self.interpreted {
            add_count(from, to, End::ALL[usize::from(kind)], count);
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
        for epoch in &mut self.epochs {
            match layout_mask {
                Some(mask) => epoch.for_each_slot((hash, filter, mask), &mut add_count),
                None => epoch.for_each_edge(|edge, hits| {
                    if filter.accepts(edge.kind) {
                        add_count(hash.slot(edge.from, edge.to, mask), hits);
                    }
                }),
            }
        }
        for (&(from, to, kind), &count) in &self.interpreted {
            if filter.accepts(End::ALL[usize::from(kind)]) {
                add_count(hash.slot(from, to, mask), count);
            }
        }
    }

    /// Returns the edges, sorted.
    pub fn edges(&self) -> Vec<EdgeTotal> {
        let mut sums: CountsBy<(u64, u64, u8)> = CountsBy::default();
        self.for_each_edge(|from, to, kind, count| add(&mut sums, (from, to, kind as u8), count));
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
        self.epochs.iter_mut().for_each(EpochEdges::clear);
        self.interpreted.clear();
    }

    /// As `edges`; resets the counts.
    pub fn take(&mut self) -> Vec<EdgeTotal> {
        let edges = self.edges();
        self.clear();
        edges
    }

    /// Drops the edges of transitions; the counts are kept.
    fn drop_epochs(&mut self) {
        let interpreted = &mut self.interpreted;
        for epoch in &self.epochs {
            epoch.for_each_edge(|edge, hits| {
                add(interpreted, (edge.from, edge.to, edge.kind as u8), hits);
            });
        }
        self.epochs.clear();
    }

    /// The transitions of an epoch.
    #[inline]
    fn epoch_edges(&mut self, epoch: u32) -> Option<&mut EpochEdges> {
        if self.epochs.first().map(|edges| edges.epoch) != Some(epoch) {
            self.move_to_front(epoch);
        }
        self.epochs.first_mut()
    }

    /// Moves an epoch to the front.
    #[cold]
    fn move_to_front(&mut self, epoch: u32) {
        if self.epochs.iter().map(EpochEdges::size).sum::<usize>() > MAX_KEPT {
            self.drop_epochs();
        }
        match self.epochs.iter().position(|edges| edges.epoch == epoch) {
            Some(at) => self.epochs.swap(0, at),
            None => self.epochs.insert(0, EpochEdges::new(epoch)),
        }
    }
}

impl Sink for EdgeCounter {
    const EDGES: bool = true;
    const WANTS: Wants = Wants::Hits;
    const PLACES: bool = false;

    fn append(&mut self, _sequence: &Sequence<'_>, _time: u64) {}

    fn close(&mut self, _end: End, _offset: u64) {}

    fn edge(&mut self, from: u64, to: u64, kind: End) {
        add(&mut self.interpreted, (from, to, kind as u8), 1);
    }

    fn event(&mut self, _event: &Event) {}

    fn hits(&mut self, step: &impl Step, times: u64) {
        if let Some(edges) = self.epoch_edges(step.epoch()) {
            edges.add(step, times);
        }
    }

    fn edge_times(&mut self, from: u64, to: u64, kind: End, times: u64) {
        add(&mut self.interpreted, (from, to, kind as u8), times);
    }
}

/// The slot of an edge that is not counted.
const NO_SLOT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Edge {
    pub from: u64,
    pub to: u64,
    pub kind: End,
}

/// The transitions of one epoch (the lifetime of their ids): their edges, bitmap slots and hits.
#[derive(Clone, Debug, Default)]
struct EpochEdges {
    pub epoch: u32,
    /// By transition id: range in `edges`; (0, 0) if its edges are unknown.
    pub edge_ranges: Vec<(u32, u32)>,
    edges: Vec<Edge>,
    /// Slots of the first of `edges` in a bitmap of this layout.
    slots: Vec<u32>,
    layout: Option<BitmapLayout>,
    /// Pairs of id and count. An id may occur more than once; the list is at most twice as long as `edge_ranges`.
    hits: Vec<(u32, u64)>,
}

/// Hash function, edges and size minus 1 of a bitmap.
type BitmapLayout = (BitmapHash, EdgeFilter, u32);

impl EpochEdges {
    pub fn new(epoch: u32) -> EpochEdges {
        EpochEdges {
            epoch,
            ..EpochEdges::default()
        }
    }

    pub fn size(&self) -> usize {
        self.edge_ranges.len() + self.edges.len()
    }

    pub fn add(&mut self, step: &impl Step, times: u64) {
        let number = self.find_edges(step);
        if self.hits.len() >= 2 * self.edge_ranges.len() {
            self.sum_hits();
        }
        self.hits.push((number, times));
    }

    /// Collects the edges of a transition if they are unknown. Returns its id.
    fn find_edges(&mut self, step: &impl Step) -> u32 {
        let number = step.number() as usize;
        if number >= self.edge_ranges.len() {
            self.edge_ranges.resize(number + 1, (0, 0));
        }
        if self.edge_ranges[number].1 == 0 {
            let first = self.edges.len() as u32;
            let mut collector = EdgeCollector(&mut self.edges);
            step.replay_at((0, 0), &mut collector);
            // A transition without edges gets a placeholder, since an empty range means unknown.
            if first == self.edges.len() as u32 {
                self.edges.push(Edge {
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
    fn sum_hits(&mut self) {
        let mut sums = vec![0; self.edge_ranges.len()];
        for (number, times) in self.hits.drain(..) {
            sums[number as usize] += times;
        }
        let hits = (0..).zip(sums).filter(|&(_, times)| times != 0);
        self.hits.extend(hits);
    }

    pub fn for_each_edge(&self, mut add_count: impl FnMut(&Edge, u64)) {
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
            match edge.kind != PLACEHOLDER && filter.accepts(edge.kind) {
                true => hash.slot(edge.from, edge.to, mask.into()) as u32,
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

/// The kind of a placeholder, filter no edge accepts.
const PLACEHOLDER: End = End::EndOfStream;

/// Collects the edges of one transition.
struct EdgeCollector<'a>(&'a mut Vec<Edge>);

impl Sink for EdgeCollector<'_> {
    const EDGES: bool = true;

    fn append(&mut self, _sequence: &Sequence<'_>, _time: u64) {}
    fn close(&mut self, _end: End, _offset: u64) {}
    fn edge(&mut self, from: u64, to: u64, kind: End) {
        self.0.push(Edge { from, to, kind });
    }
    fn event(&mut self, _event: &Event) {}
}
