//! Edges and how often each was taken, of one run after the other over the same code.

mod known;

use crate::bitmap::{Index, Which};
use crate::event::Event;
use crate::hash::{add, CountsBy};
use crate::sink::{End, Sequence, Sink, Step, Wants};
use crate::totals::EdgeTotal;
use known::{Known, NO_CELL};

/// What is kept of steps, in edges and steps, at most: then all of it is made anew.
const MOST_KEPT: usize = 1 << 21;

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
        self.each(|from, to, kind, count| add(&mut sums, (from, to, kind as u8), count));
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
                add(walked, (edge.from, edge.to, edge.kind as u8), hits);
            });
        }
        self.known.clear();
    }

    /// The steps of an epoch.
    #[inline]
    fn of(&mut self, epoch: u32) -> Option<&mut Known> {
        if self.known.first().map(|known| known.epoch) != Some(epoch) {
            self.turn_to(epoch);
        }
        self.known.first_mut()
    }

    /// Puts the steps of an epoch in front.
    #[cold]
    fn turn_to(&mut self, epoch: u32) {
        if self.known.iter().map(Known::size).sum::<usize>() > MOST_KEPT {
            self.forget();
        }
        match self.known.iter().position(|known| known.epoch == epoch) {
            Some(at) => self.known.swap(0, at),
            None => self.known.insert(0, Known::of(epoch)),
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
        add(&mut self.walked, (from, to, kind as u8), 1);
    }

    fn event(&mut self, _event: &Event) {}

    fn hits(&mut self, step: &impl Step, times: u64) {
        if let Some(known) = self.of(step.epoch()) {
            known.add(step, times);
        }
    }

    fn edge_times(&mut self, from: u64, to: u64, kind: End, times: u64) {
        add(&mut self.walked, (from, to, kind as u8), times);
    }
}
