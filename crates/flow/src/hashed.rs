//! Runs with the hashes over their IPs.

use crate::event::Event;
use crate::kept::{Breaks, Kept};
use crate::sink::{End, Sequence, Sink, Step, Wants, MAX_RUN};

/// A run with the hash over its IPs, for comparison with a truth file. One without instructions says that those at the
/// `start`s of the next `hash` runs, which have none either, may have run any number of times there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HashedRun {
    pub start: u64,
    pub instructions: u32,
    pub hash: u64,
}

/// Runs with hashes; a comparison pulls them one by one (`Flow::runs`).
#[derive(Clone, Debug, Default)]
pub struct HashedRuns {
    pub ready: Vec<HashedRun>,
    open: HashedRun,
    kept: Kept<HashedPart>,
    pub limit: usize,
}

/// A run, or its end, as a step has it.
#[derive(Clone, Copy, Debug)]
struct HashedPart {
    run: HashedRun,
    factor: u64,
}

impl Default for HashedPart {
    fn default() -> Self {
        HashedPart {
            run: HashedRun::default(),
            factor: 1,
        }
    }
}

#[derive(Default)]
struct HashedParts {
    ready: Vec<HashedPart>,
    open: HashedPart,
}

impl Sink for HashedParts {
    fn append(&mut self, sequence: &Sequence<'_>, _time: u64) {
        self.open.run.join(
            sequence.start,
            sequence.lengths.len() as u32,
            sequence.hash,
            sequence.factor,
        );
        self.open.factor = self.open.factor.wrapping_mul(sequence.factor);
    }

    fn close(&mut self, _end: End, _offset: u64) {
        self.ready.push(std::mem::take(&mut self.open));
    }

    fn event(&mut self, _event: &Event) {}
}

impl Breaks for HashedParts {
    type Part = HashedPart;

    fn parts(mut self, parts: &mut Vec<HashedPart>) {
        parts.append(&mut self.ready);
        parts.push(self.open);
    }
}

impl HashedRun {
    /// More instructions, which begin at `start`.
    #[inline]
    fn join(&mut self, start: u64, instructions: u32, hash: u64, factor: u64) {
        if self.instructions == 0 {
            self.start = start;
        }
        self.instructions += instructions;
        self.hash = self.hash.wrapping_mul(factor).wrapping_add(hash);
    }
}

impl HashedRuns {
    pub fn new(limit: usize) -> HashedRuns {
        HashedRuns {
            limit,
            ..HashedRuns::default()
        }
    }
}

impl Sink for HashedRuns {
    const WANTS: Wants = Wants::Order;

    #[inline]
    fn append(&mut self, sequence: &Sequence<'_>, _time: u64) {
        let count = sequence.lengths.len() as u32;
        self.open
            .join(sequence.start, count, sequence.hash, sequence.factor);
        if self.open.instructions >= MAX_RUN {
            self.close(End::Cut, 0);
        }
    }

    #[inline]
    fn close(&mut self, _end: End, _offset: u64) {
        if self.open.instructions != 0 {
            self.ready.push(self.open);
            self.open = HashedRun::default();
        }
    }

    fn event(&mut self, _event: &Event) {}

    fn repeats(&mut self, round: &[u64]) {
        self.close(End::Cut, 0);
        let empty = HashedRun::default();
        self.ready.push(HashedRun {
            hash: round.len() as u64,
            ..empty
        });
        let ips = round.iter().map(|&start| HashedRun { start, ..empty });
        self.ready.extend(ips);
    }

    #[inline]
    fn step(&mut self, step: &impl Step) {
        if self.open.instructions >= MAX_RUN / 2 {
            // it may have to be cut within the step
            return step.replay(self);
        }
        let parts = self.kept.of::<HashedParts>(step);
        let Some((&HashedPart { run, factor }, more)) = parts.split_first() else {
            return;
        };
        self.open
            .join(run.start, run.instructions, run.hash, factor);
        let Some((last, whole)) = more.split_last() else {
            return;
        };
        self.ready.push(self.open);
        self.ready.extend(whole.iter().map(|part| part.run));
        self.open = last.run;
    }

    fn room(&self, rows: usize, _instructions: usize) -> usize {
        self.limit.saturating_sub(self.ready.len()).div_ceil(rows)
    }

    fn is_full(&self) -> bool {
        self.ready.len() >= self.limit
    }
}
