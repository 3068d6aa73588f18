//! Blocks by number: what ran as one number for each block, and a table that says what the numbers mean.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::Event;
use crate::hash::AddressHasher;
use crate::kept::{Copies, Kept};
use crate::reuse::{room, taken};
use crate::segments::InOrder;
use crate::sink::{End, Placed, Room, Sequence, Sink, Step, Steps, Wants};

/// Numbers for which there is room at first.
const FIRST: usize = 1 << 12;

/// Numbers that are copied at once.
const CHUNK: usize = 8;

/// Instructions one after the other in memory, up to a branch, taken or not, or to where something came between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// IP of the first instruction.
    pub start: u64,
    /// IP of the last instruction.
    pub last: u64,
    pub instructions: u32,
    /// Why it ended; `Cut` if it goes on.
    pub end: End,
    /// The next block follows in memory, as a part of the same run.
    pub goes_on: bool,
    /// The mode of the code: 16, 32 or 64.
    pub bits: u8,
}

/// All blocks that were met, by number. Who holds the same table gives the same numbers.
#[derive(Clone, Debug, Default)]
pub struct BlockTable(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    all: Vec<Block>,
    numbers: HashMap<Block, u32, BuildHasherDefault<AddressHasher>>,
}

impl Hash for Block {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let kind = u64::from(self.end as u8) << 8 | u64::from(self.goes_on);
        state.write_u64(self.start);
        state.write_u64(self.last ^ u64::from(self.instructions) << 32 ^ kind << 48);
    }
}

impl BlockTable {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blocks from number `first` on, as many as there are now.
    pub fn since(&self, first: usize) -> Vec<Block> {
        let known = self.known();
        known.all.get(first..).unwrap_or_default().to_vec()
    }
}

impl Known {
    fn number(&mut self, block: Block) -> u32 {
        let next = self.all.len() as u32;
        let number = *self.numbers.entry(block).or_insert(next);
        if number == next {
            self.all.push(block);
        }
        number
    }
}

/// The sink that gathers the numbers of blocks. They are handed out in whole runs: a run may have several blocks, of which
/// all but the last go on.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    table: BlockTable,
    /// With room for a chunk behind the last one.
    numbers: Vec<u32>,
    len: usize,
    /// Up to here runs are whole.
    whole: usize,
    in_tx: bool,
    limit: usize,
    kept: Kept<Head, [u32; CHUNK]>,
}

/// The numbers of a step.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    count: u32,
    /// Up to the end of a run; 0 if none ends.
    whole: u32,
}

/// The blocks of a step.
#[derive(Default)]
struct Found {
    blocks: Vec<Block>,
    whole: usize,
}

impl Block {
    fn of(sequence: &Sequence<'_>) -> Block {
        Block {
            start: sequence.start,
            last: sequence.last,
            instructions: sequence.lengths.len() as u32,
            end: End::Cut,
            goes_on: true,
            bits: sequence.mode.bits() as u8,
        }
    }

    fn ended(self, end: End) -> Block {
        Block {
            end,
            goes_on: false,
            ..self
        }
    }
}

impl Sink for Found {
    fn append(&mut self, sequence: &Sequence<'_>, _time: u64) {
        self.blocks.push(Block::of(sequence));
    }

    fn close(&mut self, end: End, _offset: u64) {
        if let Some(last) = self.blocks.last_mut() {
            *last = last.ended(end);
            self.whole = self.blocks.len();
        }
    }

    fn event(&mut self, _event: &Event) {}
}

impl Numbers {
    /// Numbers are those of `table`.
    pub fn new(table: &BlockTable) -> Numbers {
        Numbers {
            table: table.clone(),
            ..Numbers::default()
        }
    }

    /// Makes room for so many.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, most: usize) {
        self.numbers.resize(room(most, FIRST, self.limit), 0);
    }
}

impl InOrder for Numbers {
    type Batch = Vec<u32>;
    /// The blocks of the run that goes on, and whether it is in a transaction.
    type Seam = (Vec<u32>, bool);
    const ROW: usize = 4;

    fn fresh(&self) -> Numbers {
        Numbers::new(&self.table)
    }

    fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    fn is_empty(&self) -> bool {
        self.whole == 0
    }

    fn take_batch(&mut self) -> Vec<u32> {
        let open = self.numbers[self.whole..self.len].to_vec();
        let batch = taken(&mut self.numbers, self.whole);
        self.numbers[..open.len()].copy_from_slice(&open);
        self.len = open.len();
        self.whole = 0;
        batch
    }

    fn seam(&self) -> Self::Seam {
        (self.numbers[self.whole..self.len].to_vec(), self.in_tx)
    }

    fn go_on_from(&mut self, (open, in_tx): &Self::Seam) {
        self.in_tx = *in_tx;
        self.whole = 0;
        self.len = open.len();
        if self.len > self.numbers.len() {
            self.grow(self.len);
        }
        self.numbers[..open.len()].copy_from_slice(open);
    }

    fn sometime_later(seam: &Self::Seam) -> Self::Seam {
        (Vec::new(), seam.1)
    }

    fn rows(batch: &Vec<u32>) -> usize {
        batch.len()
    }
}

impl Copies for Numbers {
    #[inline]
    fn copy(&mut self, epoch: u32, steps: &[Placed]) -> usize {
        let room = self.numbers.len();
        if !self.kept.is_of(epoch) || room < FIRST {
            return 0;
        }
        let (mut at, mut whole) = (self.len, self.whole);
        let mut done = 0;
        for step in steps {
            let Some((head, chunks)) = self.kept.get(step.number) else {
                break;
            };
            if at + chunks.len() * CHUNK > room {
                break;
            }
            done += 1;
            let mut to = at;
            for chunk in chunks {
                self.numbers[to..to + CHUNK].copy_from_slice(chunk);
                to += CHUNK;
            }
            if head.whole != 0 {
                whole = at + head.whole as usize;
            }
            at += head.count as usize;
        }
        (self.len, self.whole) = (at, whole);
        done
    }

    #[cold]
    #[inline(never)]
    fn other(&mut self, step: &impl Step) -> bool {
        if let Some(chunks) = self.kept.blocks_of(step) {
            self.grow(self.len + chunks * CHUNK);
            return false;
        }
        let mut found = Found::default();
        step.replay(&mut found);
        let head = Head {
            count: found.blocks.len() as u32,
            whole: found.whole as u32,
        };
        let mut known = self.table.known();
        let numbers: Vec<u32> = found
            .blocks
            .iter()
            .map(|&block| known.number(block))
            .collect();
        drop(known);
        let chunks = numbers.chunks(CHUNK).map(|numbers| {
            let mut chunk = [0; CHUNK];
            chunk[..numbers.len()].copy_from_slice(numbers);
            chunk
        });
        self.kept.put(step, head, chunks);
        false
    }
}

impl Sink for Numbers {
    const WANTS: Wants = Wants::Order;
    const PLACES: bool = false;

    fn append(&mut self, sequence: &Sequence<'_>, _time: u64) {
        let number = self.table.known().number(Block::of(sequence));
        let at = self.len;
        if at >= self.numbers.len() {
            self.grow(at + 1);
        }
        self.numbers[at] = number;
        self.len = at + 1;
    }

    fn close(&mut self, end: End, _offset: u64) {
        if self.whole == self.len {
            return;
        }
        let last = &mut self.numbers[self.len - 1];
        let mut known = self.table.known();
        if let Some(&block) = known.all.get(*last as usize) {
            *last = known.number(block.ended(end));
        }
        self.whole = self.len;
    }

    fn event(&mut self, event: &Event) {
        if let Some(in_tx) = event.in_tx().filter(|&in_tx| in_tx != self.in_tx) {
            // as rows have it, a run ends here
            self.close(End::Cut, event.offset);
            self.in_tx = in_tx;
        }
    }

    #[inline]
    fn steps(&mut self, steps: &impl Steps) {
        self.copy_all(steps);
    }

    fn room(&self) -> Room {
        Room::for_rows(self.limit, self.whole)
    }

    fn is_full(&self) -> bool {
        self.whole >= self.limit
    }
}
