//! Every instruction, one after the other.

use crate::event::Event;
use crate::kept::Kept;
use crate::sink::{End, Placed, Sequence, Sink, Step, Steps, Wants};

/// Blocks of steps that are kept, at most: 72 bytes each.
const MAX_KEPT: usize = 1 << 19;

/// Instructions of a block.
const BLOCK: usize = 8;

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
struct Block {
    ips: [u64; BLOCK],
    lengths: [u8; BLOCK],
}

/// Lists the instructions of a step.
#[derive(Default)]
struct Listed {
    ips: Vec<u64>,
    lengths: Vec<u8>,
}

impl Sink for Listed {
    fn append(&mut self, sequence: &Sequence<'_>, _time: u64) {
        self.ips.extend(sequence.ips());
        self.lengths.extend_from_slice(sequence.lengths);
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

    /// Copies the instructions of steps that are kept, as long as there is room; how many steps.
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

    /// Takes a step that was not copied, or does what it takes to copy it. Whether it is taken.
    #[cold]
    #[inline(never)]
    fn other(&mut self, step: &impl Step) -> bool {
        let known = self.kept.is_of(step.epoch());
        if let Some((_, blocks)) = self.kept.get(step.number()).filter(|_| known) {
            self.grow(self.len + blocks.len() * BLOCK);
            return false;
        }
        let mut listed = Listed::default();
        step.replay(&mut listed);
        let count = listed.ips.len();
        if known && self.kept.len() + count.div_ceil(BLOCK) > MAX_KEPT {
            step.replay(self);
            return true;
        }
        let ips = listed.ips.chunks(BLOCK);
        let blocks = ips.zip(listed.lengths.chunks(BLOCK)).map(|(ips, lengths)| {
            let mut block = Block::default();
            block.ips[..ips.len()].copy_from_slice(ips);
            block.lengths[..lengths.len()].copy_from_slice(lengths);
            block
        });
        self.kept.put(step, count as u32, blocks);
        false
    }

    /// Makes room for so many.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, most: usize) {
        let most = most.next_power_of_two().max(FIRST);
        self.ips.resize(most, 0);
        self.lengths.resize(most, 0);
    }
}

impl Sink for Instructions {
    const WANTS: Wants = Wants::Order;

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
        let mut rest = steps.placed();
        loop {
            let done = self.copy(steps.epoch(), rest);
            rest = &rest[done..];
            let Some((&first, more)) = rest.split_first() else {
                return;
            };
            if self.other(&steps.step(first)) {
                rest = more;
            }
        }
    }

    fn room(&self, _rows: usize, instructions: usize) -> usize {
        self.limit.saturating_sub(self.len).div_ceil(instructions)
    }

    fn is_full(&self) -> bool {
        self.len >= self.limit
    }
}
