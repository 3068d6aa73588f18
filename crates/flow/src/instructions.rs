//! Every instruction, one after the other.

use crate::event::Event;
use crate::kept::{Copies, Kept};
use crate::reuse::{room, taken};
use crate::segments::InOrder;
use crate::sink::{End, Placed, Room, Sequence, Sink, Step, Steps, Wants};

/// Blocks of steps that are kept, at most: 72 bytes each.
pub(crate) const MAX_KEPT: usize = 1 << 19;

/// Instructions of a block.
pub(crate) const BLOCK: usize = 8;

/// Instructions for which there is room at first.
const FIRST: usize = 1 << 12;

/// Every instruction: its IP and its length.
#[derive(Clone, Debug, Default)]
pub struct Instructions {
    ips: Vec<u64>,
    lengths: Vec<u8>,
    len: usize,
    /// Decoding pauses when this many wait.
    pub limit: usize,
    kept: Kept<u32, Block>,
}

/// Instructions of a step; how many it has is kept with it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    pub ips: [u64; BLOCK],
    pub lengths: [u8; BLOCK],
}

/// Lists the instructions of a step.
#[derive(Default)]
pub(crate) struct Listed {
    ips: Vec<u64>,
    lengths: Vec<u8>,
    /// Where the packet that told of each begins, in bytes behind the first of the step.
    places: Vec<u8>,
    /// Offset of the step, and that of the packet at work behind it.
    from: u64,
    place: u8,
}

impl Listed {
    pub fn of(step: &impl Step) -> Listed {
        let mut listed = Listed {
            from: step.offset(),
            ..Listed::default()
        };
        step.replay(&mut listed);
        listed
    }

    pub fn blocks(&self) -> impl ExactSizeIterator<Item = Block> + '_ {
        let (ips, lengths) = (self.ips.chunks(BLOCK), self.lengths.chunks(BLOCK));
        ips.zip(lengths).map(|(ips, lengths)| {
            let mut block = Block::default();
            block.ips[..ips.len()].copy_from_slice(ips);
            block.lengths[..lengths.len()].copy_from_slice(lengths);
            block
        })
    }

    /// The places of the blocks, as blocks.
    pub fn places(&self) -> impl Iterator<Item = [u8; BLOCK]> + '_ {
        self.places.chunks(BLOCK).map(|places| {
            let mut block = [0; BLOCK];
            block[..places.len()].copy_from_slice(places);
            block
        })
    }

    /// Where the last packet begins.
    pub fn last_place(&self) -> u8 {
        self.place
    }
}

impl Sink for Listed {
    fn packet(&mut self, offset: u64) {
        self.place = (offset - self.from) as u8;
    }
    fn append(&mut self, sequence: &Sequence<'_>, _time: u64) {
        self.ips.extend(sequence.ips());
        self.lengths.extend_from_slice(sequence.lengths);
        self.places.resize(self.ips.len(), self.place);
    }
    fn close(&mut self, _end: End, _offset: u64) {}
    fn event(&mut self, _event: &Event) {}
}

impl Instructions {
    pub fn new(limit: usize) -> Instructions {
        Instructions {
            limit,
            ..Instructions::default()
        }
    }

    /// IPs of what has been gathered.
    pub fn ips(&self) -> &[u64] {
        &self.ips[..self.len]
    }

    /// Lengths of what has been gathered, in bytes.
    pub fn lengths(&self) -> &[u8] {
        &self.lengths[..self.len]
    }

    /// What has been gathered was taken.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Makes room for so many.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, most: usize) {
        let most = room(most, FIRST, self.limit);
        self.ips.resize(most, 0);
        self.lengths.resize(most, 0);
    }
}

/// Instructions as columns of one length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstructionColumns {
    pub ips: Vec<u64>,
    pub lengths: Vec<u8>,
}

impl InOrder for Instructions {
    type Batch = InstructionColumns;
    type Seam = ();
    const ROW: usize = 9;

    fn fresh(&self) -> Instructions {
        Instructions::default()
    }

    fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn take_batch(&mut self) -> InstructionColumns {
        let columns = InstructionColumns {
            ips: taken(&mut self.ips, self.len),
            lengths: taken(&mut self.lengths, self.len),
        };
        self.clear();
        columns
    }

    fn seam(&self) {}

    fn go_on_from(&mut self, _seam: &()) {
        self.clear();
    }

    fn sometime_later(_seam: &()) {}

    fn rows(batch: &InstructionColumns) -> usize {
        batch.ips.len()
    }
}

impl Copies for Instructions {
    #[inline]
    fn copy(&mut self, epoch: u32, steps: &[Placed]) -> usize {
        let room = self.ips.len();
        if !self.kept.is_of(epoch) || room < FIRST {
            return 0;
        }
        let (ips, lengths) = (&mut self.ips[..room], &mut self.lengths[..room]);
        let mut at = self.len;
        let mut done = 0;
        for step in steps {
            let Some((&count, blocks)) = self.kept.get(step.number) else {
                break;
            };
            if at + blocks.len() * BLOCK > room {
                break;
            }
            done += 1;
            let mut to = at;
            for block in blocks {
                ips[to..to + BLOCK].copy_from_slice(&block.ips);
                lengths[to..to + BLOCK].copy_from_slice(&block.lengths);
                to += BLOCK;
            }
            at += count as usize;
        }
        self.len = at;
        done
    }

    #[cold]
    #[inline(never)]
    fn other(&mut self, step: &impl Step) -> bool {
        if let Some(blocks) = self.kept.blocks_of(step) {
            self.grow(self.len + blocks * BLOCK);
            return false;
        }
        if self.kept.is_new(step) {
            step.replay(self);
            return true;
        }
        let listed = Listed::of(step);
        if self.kept.len() + listed.blocks().len() > MAX_KEPT {
            step.replay(self);
            return true;
        }
        let count = listed.ips.len() as u32;
        self.kept.put(step, count, listed.blocks());
        false
    }
}

impl Sink for Instructions {
    const WANTS: Wants = Wants::Order;
    const PLACES: bool = false;

    fn append(&mut self, sequence: &Sequence<'_>, _time: u64) {
        let (at, end) = (self.len, self.len + sequence.lengths.len());
        if end > self.ips.len() {
            self.grow(end);
        }
        for (to, ip) in self.ips[at..end].iter_mut().zip(sequence.ips()) {
            *to = ip;
        }
        self.lengths[at..end].copy_from_slice(sequence.lengths);
        self.len = end;
    }

    fn close(&mut self, _end: End, _offset: u64) {}
    fn event(&mut self, _event: &Event) {}

    #[inline]
    fn steps(&mut self, steps: &impl Steps) {
        self.copy_all(steps);
    }

    fn room(&self) -> Room {
        Room::for_instructions(self.limit, self.len)
    }

    fn is_full(&self) -> bool {
        self.len >= self.limit
    }
}
