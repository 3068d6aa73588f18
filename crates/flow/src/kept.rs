//! What steps add to columns, kept so that it is copied when the step comes again.
//!
//! It is kept in blocks of a fixed size, and copied in whole blocks, which costs less than to copy as much as there is:
//! columns have room for a block behind what they hold, and what lies there means nothing.

use crate::event::Event;
use crate::sink::{End, Placed, Sequence, Sink, Step, Steps};

/// A sink that copies what it keeps of steps.
pub(crate) trait Copies {
    /// Copies what is kept of steps, up to the first that is not kept or for which there is no room; how many steps.
    fn copy(&mut self, epoch: u32, steps: &[Placed]) -> usize;

    /// Takes a step that was not copied, or does what it takes to copy it. Whether it is taken.
    fn other(&mut self, step: &impl Step) -> bool;

    /// Takes all of them.
    #[inline(always)]
    fn copy_all(&mut self, steps: &impl Steps) {
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
}

/// No step is kept under this, and it has not come.
const NONE: u32 = u32::MAX;
/// Not kept either, but it has come once.
const SEEN: u32 = u32::MAX - 1;

#[derive(Clone, Copy, Debug)]
struct Entry<H> {
    head: H,
    /// Of its blocks.
    first: u32,
    blocks: u32,
}

/// By the numbers of steps: what is to be known of a step at once, and its blocks.
#[derive(Clone, Debug)]
pub(crate) struct Kept<H, B> {
    epoch: u32,
    entries: Vec<Entry<H>>,
    blocks: Vec<B>,
}

impl<H, B> Default for Kept<H, B> {
    fn default() -> Self {
        Kept {
            epoch: 0,
            entries: Vec::new(),
            blocks: Vec::new(),
        }
    }
}

impl<H: Copy + Default, B> Kept<H, B> {
    /// Whether these are the numbers of `epoch`.
    pub fn is_of(&self, epoch: u32) -> bool {
        self.epoch == epoch
    }

    #[inline(always)]
    pub fn get(&self, number: u32) -> Option<(&H, &[B])> {
        let entry = self.entries.get(number as usize)?;
        let first = entry.first as usize;
        let blocks = self.blocks.get(first..first + entry.blocks as usize)?;
        Some((&entry.head, blocks))
    }

    /// How many blocks are kept of a step; None: it is not kept.
    pub fn blocks_of(&self, step: &impl Step) -> Option<usize> {
        let found = self.get(step.number()).filter(|_| self.is_of(step.epoch()));
        found.map(|(_, blocks)| blocks.len())
    }

    /// Whether a step that is not kept comes for the first time: many come once, and to keep what they add takes longer than
    /// to tell of it.
    pub fn is_new(&mut self, step: &impl Step) -> bool {
        let entry = self.entry(step);
        let is_new = entry.first == NONE;
        if is_new {
            entry.first = SEEN;
        }
        is_new
    }

    /// How many blocks are kept.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Keeps a step.
    pub fn put(&mut self, step: &impl Step, head: H, blocks: impl IntoIterator<Item = B>) {
        let _ = self.entry(step);
        let first = self.blocks.len();
        self.blocks.extend(blocks);
        let entry = Entry {
            head,
            first: first as u32,
            blocks: (self.blocks.len() - first) as u32,
        };
        *self.entry(step) = entry;
    }

    /// The place of a step; those of another epoch are forgotten.
    fn entry(&mut self, step: &impl Step) -> &mut Entry<H> {
        if self.epoch != step.epoch() {
            self.entries.clear();
            self.blocks.clear();
            self.epoch = step.epoch();
        }
        let number = step.number() as usize;
        let none = Entry {
            head: H::default(),
            first: NONE,
            blocks: 0,
        };
        if number >= self.entries.len() {
            self.entries.resize(number + 1, none);
        }
        &mut self.entries[number]
    }
}

/// A run, or its end, as a step has it. The first goes on with the run that was open before, the last one goes on after
/// the step and may be empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub start: u64,
    pub last: u64,
    pub instructions: u32,
    pub end: u8,
    pub bits: u8,
    /// It begins after the first branch of the step.
    pub late: bool,
    /// Where the packet that ended it begins, in bytes behind the first of the step.
    pub place: u8,
    pub hash: u64,
    pub factor: u64,
}

impl Default for Part {
    fn default() -> Part {
        Part {
            start: 0,
            last: 0,
            instructions: 0,
            end: 0,
            bits: 0,
            late: true,
            place: 0,
            hash: 0,
            factor: 1,
        }
    }
}

/// Breaks a step into parts.
#[derive(Default)]
pub(crate) struct Parts {
    ready: Vec<Part>,
    open: Part,
    /// Offset of the step.
    from: u64,
}

impl Parts {
    /// The parts of a step, one at least.
    pub fn of(step: &impl Step) -> Vec<Part> {
        let mut parts = Parts {
            from: step.offset(),
            ..Parts::default()
        };
        step.replay_at((0, 1), &mut parts);
        parts.ready.push(parts.open);
        parts.ready
    }

    /// How many begin before the first branch.
    pub fn early(parts: &[Part]) -> usize {
        parts.iter().take_while(|part| !part.late).count()
    }
}

impl Sink for Parts {
    fn append(&mut self, sequence: &Sequence<'_>, time: u64) {
        let open = &mut self.open;
        if open.instructions == 0 {
            open.start = sequence.start;
            open.late = time == 1;
            open.bits = sequence.mode.bits() as u8;
        }
        open.last = sequence.last;
        open.instructions += sequence.lengths.len() as u32;
        let hash = open.hash.wrapping_mul(sequence.factor);
        open.hash = hash.wrapping_add(sequence.hash);
        open.factor = open.factor.wrapping_mul(sequence.factor);
    }

    fn close(&mut self, end: End, offset: u64) {
        self.open.end = end as u8;
        self.open.place = (offset - self.from) as u8;
        self.ready.push(std::mem::take(&mut self.open));
    }

    fn event(&mut self, _event: &Event) {}
}

/// Copies parts into the columns of a block.
pub(crate) fn column<const N: usize, T: Copy + Default>(
    parts: &[Part],
    value: impl Fn(&Part) -> T,
) -> [T; N] {
    let mut column = [T::default(); N];
    for (to, part) in column.iter_mut().zip(parts) {
        *to = value(part);
    }
    column
}
