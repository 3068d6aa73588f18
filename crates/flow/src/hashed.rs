//! Runs with the hashes over their IPs.

use crate::event::Event;
use crate::kept::{column, Copies, Kept, Parts};
use crate::reuse::{room, taken};
use crate::segments::InOrder;
use crate::sink::{End, Placed, Room, Sequence, Sink, Step, Steps, Wants, MAX_RUN};

/// Runs for which there is room at first.
const FIRST: usize = 1 << 10;

/// A run with the hash over its IPs, for comparison with a truth file. One without instructions says that those at the
/// `start`s of the next `hash` runs, which have none either, may have run any number of times there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HashedRun {
    pub start: u64,
    pub instructions: u32,
    pub hash: u64,
}

/// Gathers runs with hashes.
#[derive(Clone, Debug, Default)]
pub struct HashedRuns {
    runs: Table,
    /// Runs that are whole; behind them is the one that goes on, if it has instructions.
    len: usize,
    kept: Kept<Head, Block>,
    pub limit: usize,
}

/// Runs as columns of one length, each as `HashedRun` has it.
#[derive(Clone, Copy, Debug)]
pub struct Hashes<'a> {
    pub start: &'a [u64],
    pub instructions: &'a [u32],
    pub hash: &'a [u64],
}

/// Runs as columns of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashColumns {
    pub start: Vec<u64>,
    pub instructions: Vec<u32>,
    pub hash: Vec<u64>,
}

/// Columns with room for a block behind the run that goes on.
#[derive(Clone, Debug, Default)]
struct Table {
    start: Vec<u64>,
    instructions: Vec<u32>,
    hash: Vec<u64>,
}

/// Runs of a block.
const BLOCK: usize = 4;

/// The first part of a step.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    start: u64,
    hash: u64,
    factor: u64,
    instructions: u32,
    /// Parts after the first.
    more: u32,
}

/// Other parts of a step.
#[derive(Clone, Copy, Debug)]
struct Block {
    start: [u64; BLOCK],
    hash: [u64; BLOCK],
    instructions: [u32; BLOCK],
}

impl Table {
    /// Makes room for so many.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, most: usize, limit: usize) {
        let most = room(most, FIRST, limit);
        self.start.resize(most, 0);
        self.instructions.resize(most, 0);
        self.hash.resize(most, 0);
    }

    fn run(&self, at: usize) -> HashedRun {
        HashedRun {
            start: self.start[at],
            instructions: self.instructions[at],
            hash: self.hash[at],
        }
    }

    fn set(&mut self, at: usize, run: HashedRun) {
        self.start[at] = run.start;
        self.instructions[at] = run.instructions;
        self.hash[at] = run.hash;
    }
}

impl HashedRuns {
    pub fn new(limit: usize) -> HashedRuns {
        HashedRuns {
            limit,
            ..HashedRuns::default()
        }
    }

    /// The runs that have been gathered, in stream order.
    pub fn runs(&self) -> Hashes<'_> {
        let len = self.len;
        Hashes {
            start: &self.runs.start[..len],
            instructions: &self.runs.instructions[..len],
            hash: &self.runs.hash[..len],
        }
    }

    /// A run that has been gathered.
    pub fn get(&self, index: usize) -> Option<HashedRun> {
        (index < self.len).then(|| self.runs.run(index))
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What has been gathered was taken.
    pub fn clear(&mut self) {
        if self.len != 0 {
            let open = self.runs.run(self.len);
            self.runs.set(0, open);
            self.len = 0;
        }
    }

    /// What has been gathered; it begins anew.
    pub fn take(&mut self) -> Vec<HashedRun> {
        let taken = (0..self.len).map(|at| self.runs.run(at)).collect();
        self.clear();
        taken
    }

    fn learn(&mut self, step: &impl Step) {
        let parts = Parts::of(step);
        let (first, more) = (parts[0], &parts[1..]);
        let head = Head {
            start: first.start,
            hash: first.hash,
            factor: first.factor,
            instructions: first.instructions,
            more: more.len() as u32,
        };
        let block = |parts| Block {
            start: column(parts, |part| part.start),
            hash: column(parts, |part| part.hash),
            instructions: column(parts, |part| part.instructions),
        };
        self.kept.put(step, head, more.chunks(BLOCK).map(block));
    }

    /// One more, while none goes on.
    fn push(&mut self, run: HashedRun) {
        let at = self.len;
        if at + 1 >= self.runs.start.len() {
            self.runs.grow(at + 2, self.limit);
        }
        self.runs.set(at, run);
        self.runs.instructions[at + 1] = 0;
        self.len = at + 1;
    }

    /// Instructions of the run that goes on.
    fn open(&self) -> u32 {
        self.runs.instructions.get(self.len).map_or(0, |&open| open)
    }
}

impl InOrder for HashedRuns {
    type Batch = HashColumns;
    /// The run that goes on, if it has instructions.
    type Seam = HashedRun;
    const ROW: usize = 20;

    fn fresh(&self) -> HashedRuns {
        HashedRuns::default()
    }

    fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    fn is_empty(&self) -> bool {
        HashedRuns::is_empty(self)
    }

    fn take_batch(&mut self) -> HashColumns {
        let (runs, len) = (&mut self.runs, self.len);
        if len == 0 {
            return HashColumns::default();
        }
        let open = runs.run(len);
        let columns = HashColumns {
            start: taken(&mut runs.start, len),
            instructions: taken(&mut runs.instructions, len),
            hash: taken(&mut runs.hash, len),
        };
        runs.set(0, open);
        self.len = 0;
        columns
    }

    fn seam(&self) -> HashedRun {
        match self.open() {
            0 => HashedRun::default(),
            _ => self.runs.run(self.len),
        }
    }

    fn go_on_from(&mut self, seam: &HashedRun) {
        self.len = 0;
        if self.runs.start.is_empty() {
            self.runs.grow(1, self.limit);
        }
        self.runs.set(0, *seam);
    }

    fn sometime_later(_seam: &HashedRun) -> HashedRun {
        HashedRun::default()
    }

    fn rows(batch: &HashColumns) -> usize {
        batch.start.len()
    }
}

impl Copies for HashedRuns {
    #[inline]
    fn copy(&mut self, epoch: u32, steps: &[Placed]) -> usize {
        let (runs, kept) = (&mut self.runs, &self.kept);
        let room = runs.start.len();
        if !kept.is_of(epoch) || room < FIRST {
            return 0;
        }
        // that all have one length is known from here on
        let (start, hash) = (&mut runs.start[..room], &mut runs.hash[..room]);
        let instructions = &mut runs.instructions[..room];
        let mut at = self.len;
        let mut done = 0;
        for step in steps {
            let Some((head, blocks)) = kept.get(step.number) else {
                break;
            };
            if at + (blocks.len() + 1) * BLOCK >= room {
                break;
            }
            let open = instructions[at];
            if open >= MAX_RUN / 2 {
                break;
            }
            done += 1;
            let mut before = hash[at];
            if open == 0 {
                start[at] = head.start;
                before = 0;
            }
            instructions[at] = open + head.instructions;
            hash[at] = before.wrapping_mul(head.factor).wrapping_add(head.hash);
            let mut to = at + 1;
            for block in blocks {
                start[to..to + BLOCK].copy_from_slice(&block.start);
                hash[to..to + BLOCK].copy_from_slice(&block.hash);
                instructions[to..to + BLOCK].copy_from_slice(&block.instructions);
                to += BLOCK;
            }
            at += head.more as usize;
        }
        self.len = at;
        done
    }

    #[cold]
    #[inline(never)]
    fn other(&mut self, step: &impl Step) -> bool {
        if self.open() >= MAX_RUN / 2 {
            // it may have to be cut within the step
            step.replay(self);
            return true;
        }
        match self.kept.blocks_of(step) {
            Some(blocks) => {
                let most = (blocks + 1) * BLOCK;
                self.runs.grow(self.len + most + 1, self.limit);
            }
            None if self.kept.is_new(step) => {
                step.replay(self);
                return true;
            }
            None => self.learn(step),
        }
        false
    }
}

impl Sink for HashedRuns {
    const WANTS: Wants = Wants::Order;
    const PLACES: bool = false;

    #[inline]
    fn append(&mut self, sequence: &Sequence<'_>, _time: u64) {
        let at = self.len;
        if at + 1 >= self.runs.start.len() {
            self.runs.grow(at + 2, self.limit);
        }
        let count = sequence.lengths.len() as u32;
        let runs = &mut self.runs;
        let open = runs.instructions[at];
        if open == 0 {
            runs.start[at] = sequence.start;
            runs.hash[at] = 0;
        }
        runs.instructions[at] = open + count;
        let hash = runs.hash[at].wrapping_mul(sequence.factor);
        runs.hash[at] = hash.wrapping_add(sequence.hash);
        if open + count >= MAX_RUN {
            self.close(End::Cut, 0);
        }
    }

    #[inline]
    fn close(&mut self, _end: End, _offset: u64) {
        if self.open() != 0 {
            self.len += 1;
            self.runs.instructions[self.len] = 0;
        }
    }

    fn event(&mut self, _event: &Event) {}

    fn repeats(&mut self, round: &[u64]) {
        self.close(End::Cut, 0);
        let empty = HashedRun::default();
        self.push(HashedRun {
            hash: round.len() as u64,
            ..empty
        });
        for &start in round {
            self.push(HashedRun { start, ..empty });
        }
    }

    #[inline]
    fn steps(&mut self, steps: &impl Steps) {
        self.copy_all(steps);
    }

    fn room(&self) -> Room {
        Room::for_rows(self.limit, self.len)
    }

    fn is_full(&self) -> bool {
        self.len >= self.limit
    }
}
