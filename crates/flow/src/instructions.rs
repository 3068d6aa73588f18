//! Every instruction, one after the other.

use crate::event::Event;
use crate::sink::{End, Sequence, Sink, Step, Wants};

/// Instructions of steps that are kept, at most: 9 bytes each.
const MAX_KEPT: usize = 1 << 22;

/// Every instruction: its IP and its length.
#[derive(Clone, Debug, Default)]
pub struct Instructions {
    pub ips: Vec<u64>,
    pub lengths: Vec<u8>,
    /// Decoding pauses when this many wait.
    pub limit: usize,
    kept: Kept,
}

/// The instructions of steps, to be copied when they come again.
#[derive(Clone, Debug, Default)]
struct Kept {
    epoch: u32,
    /// By the number of the step: the first, and how many; none if they are not kept.
    places: Vec<(u32, u32)>,
    ips: Vec<u64>,
    lengths: Vec<u8>,
}

impl Instructions {
    pub fn new(limit: usize) -> Instructions {
        Instructions {
            limit,
            ..Instructions::default()
        }
    }

    /// Takes the instructions of a step from the step, and keeps them.
    #[cold]
    #[inline(never)]
    fn make(&mut self, step: &impl Step) {
        if self.kept.epoch != step.epoch() {
            self.kept = Kept {
                epoch: step.epoch(),
                ..Kept::default()
            };
        }
        let before = self.ips.len();
        step.replay(self);
        let kept = &mut self.kept;
        let (first, count) = (kept.ips.len(), self.ips.len() - before);
        if first + count > MAX_KEPT {
            return;
        }
        kept.ips.extend_from_slice(&self.ips[before..]);
        kept.lengths.extend_from_slice(&self.lengths[before..]);
        let number = step.number() as usize;
        if number >= kept.places.len() {
            kept.places.resize(number + 1, (0, 0));
        }
        kept.places[number] = (first as u32, count as u32);
    }
}

impl Sink for Instructions {
    const WANTS: Wants = Wants::Order;

    fn append(&mut self, sequence: &Sequence<'_>, _time: u64) {
        let mut ip = sequence.start;
        let before = self.ips.len();
        self.ips.resize(before + sequence.lengths.len(), 0);
        for (to, &length) in self.ips[before..].iter_mut().zip(sequence.lengths) {
            *to = ip;
            ip = ip.wrapping_add(u64::from(length));
        }
        self.lengths.extend_from_slice(sequence.lengths);
    }

    fn close(&mut self, _end: End, _offset: u64) {}
    fn event(&mut self, _event: &Event) {}

    #[inline]
    fn step(&mut self, step: &impl Step) {
        match self.kept.places.get(step.number() as usize) {
            Some(&(first, count)) if count != 0 && self.kept.epoch == step.epoch() => {
                let range = first as usize..(first + count) as usize;
                self.ips.extend_from_slice(&self.kept.ips[range.clone()]);
                self.lengths.extend_from_slice(&self.kept.lengths[range]);
            }
            _ => self.make(step),
        }
    }

    fn room(&self, _rows: usize, instructions: usize) -> usize {
        self.limit
            .saturating_sub(self.ips.len())
            .div_ceil(instructions)
    }

    fn is_full(&self) -> bool {
        self.ips.len() >= self.limit
    }
}
