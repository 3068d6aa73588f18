//! Edges and how often each was taken, of one run after the other over the same code.

use crate::event::Event;
use crate::sink::{End, Sequence, Sink, Step, Wants};
use crate::totals::{CountsBy, EdgeTotal};

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
    /// By the number of the step: hits, and where its edges are.
    steps: Vec<Counted>,
    edges: Vec<Edge>,
    /// The steps that have hits.
    touched: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    hits: u64,
    first: u32,
    /// One past the last edge; 0: they are not known yet.
    end: u32,
}

impl Known {
    fn size(&self) -> usize {
        self.steps.len() + self.edges.len()
    }

    fn make(&mut self, step: &impl Step) {
        let number = step.number() as usize;
        if number >= self.steps.len() {
            self.steps.resize(number + 1, Counted::default());
        }
        let known = &mut self.steps[number];
        if known.end == 0 {
            let mut found = Found(Vec::new());
            step.replay_at((0, 0), &mut found);
            known.first = self.edges.len() as u32;
            self.edges.extend(found.0);
            // a step without edges takes a place, too: 0 says that nothing is known
            if known.first == self.edges.len() as u32 {
                self.edges.push(Edge {
                    from: 0,
                    to: 0,
                    kind: NONE,
                });
            }
            known.end = self.edges.len() as u32;
        }
        known.hits = 1;
        self.touched.push(number as u32);
    }

    fn each(&self, mut take: impl FnMut(&Edge, u64)) {
        for &number in &self.touched {
            let step = &self.steps[number as usize];
            for edge in &self.edges[step.first as usize..step.end as usize] {
                if edge.kind != NONE {
                    take(edge, step.hits);
                }
            }
        }
    }

    /// Begins at 0; what is known of steps stays.
    fn clear(&mut self) {
        for number in self.touched.drain(..) {
            self.steps[number as usize].hits = 0;
        }
    }
}

/// No edge is of this kind.
const NONE: End = End::EndOfStream;

/// The edges of one step.
struct Found(Vec<Edge>);

impl Sink for Found {
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

    #[cold]
    #[inline(never)]
    fn other(&mut self, step: &impl Step) {
        let epoch = step.epoch();
        if self
            .known
            .first()
            .map_or(true, |known| known.epoch != epoch)
        {
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
        if let Some(known) = self.known.first_mut() {
            match known.steps.get_mut(step.number() as usize) {
                Some(step) if step.hits != 0 => step.hits += 1,
                _ => known.make(step),
            }
        }
    }
}

impl Sink for EdgeHits {
    const EDGES: bool = true;
    const WANTS: Wants = Wants::Order;

    fn append(&mut self, _sequence: &Sequence<'_>, _time: u64) {}

    fn close(&mut self, _end: End, _offset: u64) {}

    fn edge(&mut self, from: u64, to: u64, kind: End) {
        *self.walked.entry((from, to, kind as u8)).or_default() += 1;
    }

    fn event(&mut self, _event: &Event) {}

    #[inline]
    fn step(&mut self, step: &impl Step) {
        if let Some(known) = self.known.first_mut() {
            if known.epoch == step.epoch() {
                if let Some(counted) = known.steps.get_mut(step.number() as usize) {
                    if counted.hits != 0 {
                        counted.hits += 1;
                        return;
                    }
                }
            }
        }
        self.other(step);
    }
}
