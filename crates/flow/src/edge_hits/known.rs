//! What is known of the steps of one epoch: their edges, and where these are in a map.

use crate::bitmap::{Index, Which};
use crate::event::Event;
use crate::sink::{End, Sequence, Sink, Step};

/// The place of an edge that is in none.
pub(super) const NO_CELL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub from: u64,
    pub to: u64,
    pub kind: End,
}

/// The steps of one epoch.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub epoch: u32,
    /// By the number of the step: its edges, (0, 0) if they are not known yet.
    pub steps: Vec<(u32, u32)>,
    edges: Vec<Edge>,
    /// Where the first of `edges` are in a map of this kind; `NO_CELL`: not counted there.
    cells: Vec<u32>,
    map: Option<Map>,
    /// The steps that have hits, with how many; a step may be there more than once, in all twice as many as `steps` at most.
    hits: Vec<(u32, u64)>,
}

/// A map of counters: where an edge is in it, which are, and its size less one.
pub(super) type Map = (Index, Which, u32);

impl Known {
    pub fn of(epoch: u32) -> Known {
        Known {
            epoch,
            ..Known::default()
        }
    }

    pub fn size(&self) -> usize {
        self.steps.len() + self.edges.len()
    }

    pub fn add(&mut self, step: &impl Step, times: u64) {
        let number = self.learn(step);
        if self.hits.len() >= 2 * self.steps.len() {
            self.put_together();
        }
        self.hits.push((number, times));
    }

    /// The edges of a step. Gives its number.
    fn learn(&mut self, step: &impl Step) -> u32 {
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
        number as u32
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

    pub fn each(&self, mut take: impl FnMut(&Edge, u64)) {
        for &(number, hits) in &self.hits {
            let (first, end) = self.steps[number as usize];
            for edge in &self.edges[first as usize..end as usize] {
                if edge.kind != NONE {
                    take(edge, hits);
                }
            }
        }
    }

    pub fn each_cell(&mut self, map: Map, mut take: impl FnMut(u64, u64)) {
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
    pub fn clear(&mut self) {
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
