//! Edges and how often each was taken, of one run after the other over the same code.

use crate::bitmap::{Index, Which};
use crate::event::Event;
use crate::hash::CountsBy;
use crate::sink::{End, Sequence, Sink, Step, Wants};
use crate::totals::EdgeTotal;

/// What is kept of steps, in edges and steps, at most: then all of it is made anew.
const MOST_KEPT: usize = 1 << 21;

#[derive(Clone, Copy, Debug)]
struct Edge {
    from: u64,
    to: u64,
    kind: End,
}

/// The steps of one epoch.
#[derive(Clone, Debug, Default)]
struct Known {
    epoch: u32,
    /// By the number of the step: its edges, (0, 0) if they are not known yet.
    steps: Vec<(u32, u32)>,
    edges: Vec<Edge>,
    /// Where the first of `edges` are in a map of this kind; `NO_CELL`: not counted there.
    cells: Vec<u32>,
    map: Option<Map>,
    /// The steps that have hits, with how many; a step may be there more than once, in all twice as many as `steps` at most.
    hits: Vec<(u32, u64)>,
}

/// A map of counters: where an edge is in it, which are, and its size less one.
type Map = (Index, Which, u32);

const NO_CELL: u32 = u32::MAX;

impl Known {
    fn size(&self) -> usize {
        self.steps.len() + self.edges.len()
    }

    fn add(&mut self, step: &impl Step, times: u64) {
        let number = step.number() as usize;
        if number >= self.steps.len() {
            self.steps.resize(number + 1, (0, 0));
        }
        if self.steps[number].1 == 0 {
            let first = self.edges.len() as u32;
            let mut found = Found(&mut self.edges);
            step.replay_at((0, 0), &mut found);
            // a step without edges takes a place, too: (0, 0) says that nothing is known
            if first == self.edges.len() as u32 {
                self.edges.push(Edge {
                    from: 0,
                    to: 0,
                    kind: NONE,
                });
            }
            self.steps[number] = (first, self.edges.len() as u32);
        }
        if self.hits.len() >= 2 * self.steps.len() {
            self.put_together();
        }
        self.hits.push((number as u32, times));
    }

    /// Of a stream in many windows: each step once.
    #[cold]
    fn put_together(&mut self) {
        let mut sums = vec![0; self.steps.len()];
        for (number, times) in self.hits.drain(..) {
            sums[number as usize] += times;
        }
        let hits = (0..).zip(sums).filter(|&(_, times)| times != 0);
        self.hits.extend(hits);
    }

    fn each(&self, mut take: impl FnMut(&Edge, u64)) {
        for &(number, hits) in &self.hits {
            let (first, end) = self.steps[number as usize];
            for edge in &self.edges[first as usize..end as usize] {
                if edge.kind != NONE {
                    take(edge, hits);
                }
            }
        }
    }

    fn each_cell(&mut self, map: Map, mut take: impl FnMut(u64, u64)) {
        if self.map != Some(map) {
            self.cells.clear();
            self.map = Some(map);
        }
        let (index, which, mask) = map;
        let new = &self.edges[self.cells.len()..];
        self.cells.extend(
            new.iter()
                .map(|edge| match edge.kind != NONE && which.has(edge.kind) {
                    true => index.of(edge.from, edge.to, mask.into()) as u32,
                    false => NO_CELL,
                }),
        );
        for &(number, hits) in &self.hits {
            let (first, end) = self.steps[number as usize];
            for &cell in &self.cells[first as usize..end as usize] {
                if cell != NO_CELL {
                    take(cell.into(), hits);
                }
            }
        }
    }

    /// Begins at 0; what is known of steps stays.
    fn clear(&mut self) {
        self.hits.clear();
    }
}

/// No edge is of this kind.
const NONE: End = End::EndOfStream;

/// The edges of one step.
struct Found<'a>(&'a mut Vec<Edge>);

impl Sink for Found<'_> {
    const EDGES: bool = true;

    fn append(&mut self, _sequence: &Sequence<'_>, _time: u64) {}
    fn close(&mut self, _end: End, _offset: u64) {}
    fn edge(&mut self, from: u64, to: u64, kind: End) {
        self.0.push(Edge { from, to, kind });
    }
    fn event(&mut self, _event: &Event) {}
}

/// The sink that counts edges for a [`Persistent`](crate::Persistent) decoder: what it costs to take the counts goes by
/// what ran, not by all that is known. The edges are those of [`Totals`](crate::Totals).
#[derive(Clone, Debug, Default)]
pub struct EdgeHits {
    /// That of the current space first.
    known: Vec<Known>,
    /// What the walker told.
    walked: CountsBy<(u64, u64, u8)>,
}

impl EdgeHits {
    /// Hands over every edge with how often it was taken, in no order and some of them in several parts: from, to, kind,
    /// count.
    pub fn each(&self, mut take: impl FnMut(u64, u64, End, u64)) {
        for known in &self.known {
            known.each(|edge, hits| take(edge.from, edge.to, edge.kind, hits));
        }
        for (&(from, to, kind), &count) in &self.walked {
            take(from, to, End::ALL[usize::from(kind)], count);
        }
    }

    /// As `each`, of the edges that a map has: where each is in it, and count; what it costs to find these places is paid
    /// once. `mask`: the size of the map, a power of two, less one.
    pub fn each_cell(
        &mut self,
        index: Index,
        which: Which,
        mask: u64,
        mut take: impl FnMut(u64, u64),
    ) {
        let narrow = u32::try_from(mask).ok().filter(|&mask| mask != NO_CELL);
        for known in &mut self.known {
            match narrow {
                Some(mask) => known.each_cell((index, which, mask), &mut take),
                None => known.each(|edge, hits| {
                    if which.has(edge.kind) {
                        take(index.of(edge.from, edge.to, mask), hits);
                    }
                }),
            }
        }
        for (&(from, to, kind), &count) in &self.walked {
            if which.has(End::ALL[usize::from(kind)]) {
                take(index.of(from, to, mask), count);
            }
        }
    }

    /// As `each`, every edge once, in the order of `EdgeTotal`.
    pub fn edges(&self) -> Vec<EdgeTotal> {
        let mut sums: CountsBy<(u64, u64, u8)> = CountsBy::default();
        self.each(|from, to, kind, count| {
            *sums.entry((from, to, kind as u8)).or_default() += count
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

    /// Begins at 0.
    pub fn clear(&mut self) {
        self.known.iter_mut().for_each(Known::clear);
        self.walked.clear();
    }

    /// `edges`, and begins at 0.
    pub fn take(&mut self) -> Vec<EdgeTotal> {
        let edges = self.edges();
        self.clear();
        edges
    }

    /// Lets go of what is kept of steps; the counts stay.
    fn forget(&mut self) {
        let walked = &mut self.walked;
        for known in &self.known {
            known.each(|edge, hits| {
                *walked
                    .entry((edge.from, edge.to, edge.kind as u8))
                    .or_default() += hits;
            });
        }
        self.known.clear();
    }

    /// Puts the steps of an epoch in front.
    #[cold]
    fn turn_to(&mut self, epoch: u32) {
        if self.known.iter().map(Known::size).sum::<usize>() > MOST_KEPT {
            self.forget();
        }
        match self.known.iter().position(|known| known.epoch == epoch) {
            Some(at) => self.known.swap(0, at),
            None => self.known.insert(
                0,
                Known {
                    epoch,
                    ..Known::default()
                },
            ),
        }
    }
}

impl Sink for EdgeHits {
    const EDGES: bool = true;
    const WANTS: Wants = Wants::Hits;
    const PLACES: bool = false;

    fn append(&mut self, _sequence: &Sequence<'_>, _time: u64) {}

    fn close(&mut self, _end: End, _offset: u64) {}

    fn edge(&mut self, from: u64, to: u64, kind: End) {
        *self.walked.entry((from, to, kind as u8)).or_default() += 1;
    }

    fn event(&mut self, _event: &Event) {}

    fn hits(&mut self, step: &impl Step, times: u64) {
        let epoch = step.epoch();
        if self.known.first().map(|known| known.epoch) != Some(epoch) {
            self.turn_to(epoch);
        }
        if let Some(known) = self.known.first_mut() {
            known.add(step, times);
        }
    }

    fn edge_times(&mut self, from: u64, to: u64, kind: End, times: u64) {
        *self.walked.entry((from, to, kind as u8)).or_default() += times;
    }
}
