//! Instructions with their times, modes and transactions.

use crate::event::Event;
use crate::in_space::InSpace;
use crate::instructions::{Block, Listed, BLOCK, MAX_KEPT};
use crate::kept::{Copies, Kept, Part, Parts};
use crate::reuse::{copied, room, taken};
use crate::segments::InOrder;
use crate::sink::{End, Placed, Room, Sequence, Sink, Step, Steps, Wants, MAX_RUN};

/// Instructions for which there is room at first.
const FIRST: usize = 1 << 12;

/// The sink that lists every instruction: its IP, its length and when its run began, as `Run` has it.
#[derive(Clone, Debug, Default)]
pub struct TimedInstructions {
    /// With room for a block behind the last one; `in_tx` is that up to the last border of a transaction, without.
    rows: TimedColumns,
    len: usize,
    /// Decoding pauses when this many wait.
    pub limit: usize,
    places: bool,
    offset: u64,
    now_in_tx: bool,
    /// The time of the open run, and how many instructions it has.
    open: (u64, u32),
    kept: Kept<Head, PlacedBlock>,
    space: InSpace,
}

/// Instructions as columns of one length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimedColumns {
    pub ips: Vec<u64>,
    pub lengths: Vec<u8>,
    pub times: Vec<u64>,
    /// The mode of the code: 16, 32 or 64.
    pub bits: Vec<u8>,
    /// 1: in a transaction, as far as MODE.TSX has told.
    pub in_tx: Vec<u8>,
    /// Of the packet that told of it, if `TimedInstructions::new` was asked for places; else empty.
    pub offsets: Vec<u64>,
    /// The address space of each, as `Sequence` has it; empty: all are in space 0.
    pub space: Vec<u32>,
}

/// The instructions of a step, in numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    count: u32,
    /// Of the run that was open before.
    first: u32,
    /// Of runs that began before the first branch.
    early: u32,
    /// Of the run that goes on.
    last: u32,
    /// That run began after the first branch.
    last_is_late: bool,
    /// No run ends in it.
    one: bool,
    bits: u8,
    /// Where its last packet begins, in bytes behind the first.
    place: u8,
}

/// Instructions of a step, and where the packet that told of each begins, in bytes behind the first of the step.
#[derive(Clone, Copy, Debug)]
struct PlacedBlock {
    block: Block,
    places: [u8; BLOCK],
}

impl TimedInstructions {
    /// `places`: offsets are wanted.
    pub fn new(places: bool) -> TimedInstructions {
        TimedInstructions {
            places,
            ..TimedInstructions::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What has been gathered; it begins anew.
    pub fn take(&mut self) -> TimedColumns {
        let (rows, len) = (&mut self.rows, std::mem::take(&mut self.len));
        rows.in_tx.resize(len, self.now_in_tx.into());
        let in_tx = copied(&rows.in_tx);
        rows.in_tx.clear();
        TimedColumns {
            ips: taken(&mut rows.ips, len),
            lengths: taken(&mut rows.lengths, len),
            times: taken(&mut rows.times, len),
            bits: taken(&mut rows.bits, len),
            in_tx,
            offsets: match self.places {
                true => taken(&mut rows.offsets, len),
                false => Vec::new(),
            },
            space: self.space.take(len),
        }
    }

    /// What comes next is of this space; as rows have it, a run that is of another ends.
    #[inline(always)]
    fn be_in(&mut self, space: u32) {
        if space != self.space.now() {
            self.open = (0, 0);
            self.space.change(self.len, space);
        }
    }

    /// Makes room for so many.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, most: usize) {
        let most = room(most, FIRST, self.limit);
        let rows = &mut self.rows;
        rows.ips.resize(most, 0);
        rows.lengths.resize(most, 0);
        rows.times.resize(most, 0);
        rows.bits.resize(most, 0);
        if self.places {
            rows.offsets.resize(most, 0);
        }
    }
}

impl InOrder for TimedInstructions {
    type Batch = TimedColumns;
    /// The time of the open run and how many instructions it has; whether it is in a transaction; its address space.
    type Seam = ((u64, u32), bool, u32);
    const ROW: usize = 19;

    fn fresh(&self) -> TimedInstructions {
        TimedInstructions::new(self.places)
    }

    fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    fn is_empty(&self) -> bool {
        TimedInstructions::is_empty(self)
    }

    fn take_batch(&mut self) -> TimedColumns {
        self.take()
    }

    fn seam(&self) -> Self::Seam {
        let open = if self.open.1 == 0 { (0, 0) } else { self.open };
        (open, self.now_in_tx, self.space.now())
    }

    fn go_on_from(&mut self, seam: &Self::Seam) {
        self.len = 0;
        self.rows.in_tx.clear();
        self.space.go_on_in(seam.2);
        (self.open, self.now_in_tx, _) = *seam;
    }

    fn sometime_later(seam: &Self::Seam) -> Self::Seam {
        ((0, 0), seam.1, seam.2)
    }

    fn rows(batch: &TimedColumns) -> usize {
        batch.ips.len()
    }
}

impl Copies for TimedInstructions {
    #[inline]
    fn copy(&mut self, epoch: u32, steps: &[Placed]) -> usize {
        let room = self.rows.ips.len();
        let rows = &mut self.rows;
        if !self.kept.is_of(epoch) || room < FIRST {
            return 0;
        }
        // that all have one length is known from here on
        let (ips, lengths) = (&mut rows.ips[..room], &mut rows.lengths[..room]);
        let (times, bits) = (&mut rows.times[..room], &mut rows.bits[..room]);
        let mut at = self.len;
        let mut done = 0usize;
        let mut last = self.offset;
        for step in steps {
            let Some((head, blocks)) = self.kept.get(step.number) else {
                break;
            };
            let (began, open) = self.open;
            if at + blocks.len() * BLOCK > room || open >= MAX_RUN / 2 {
                break;
            }
            done += 1;
            last = step.offset + u64::from(head.place);
            let (before, after) = step.times;
            let began = if open == 0 { before } else { began };
            let mut to = at;
            for PlacedBlock { block, places } in blocks {
                if self.places {
                    let offsets = places.map(|place| step.offset + u64::from(place));
                    rows.offsets[to..to + BLOCK].copy_from_slice(&offsets);
                }
                ips[to..to + BLOCK].copy_from_slice(&block.ips);
                lengths[to..to + BLOCK].copy_from_slice(&block.lengths);
                times[to..to + BLOCK].copy_from_slice(&[after; BLOCK]);
                bits[to..to + BLOCK].copy_from_slice(&[head.bits; BLOCK]);
                to += BLOCK;
            }
            if began != after {
                times[at..at + head.first as usize].fill(began);
            }
            if before != after && head.early > head.first {
                times[at + head.first as usize..at + head.early as usize].fill(before);
            }
            self.open = match (head.one, head.last_is_late) {
                (true, _) => (began, open + head.count),
                (false, true) => (after, head.last),
                (false, false) => (before, head.last),
            };
            at += head.count as usize;
        }
        (self.len, self.offset) = (at, last);
        done
    }

    #[cold]
    #[inline(never)]
    fn other(&mut self, step: &impl Step) -> bool {
        if self.open.1 >= MAX_RUN / 2 {
            // it may have to be cut within the step
            step.replay(self);
            return true;
        }
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
        let parts = Parts::of(step);
        let count = |parts: &[Part]| parts.iter().map(|part| part.instructions).sum();
        let last = parts[parts.len() - 1];
        let head = Head {
            count: count(&parts),
            first: parts[0].instructions,
            early: count(&parts[..Parts::early(&parts)]),
            last: last.instructions,
            last_is_late: last.late,
            one: parts.len() == 1,
            bits: parts[0].bits,
            place: listed.last_place(),
        };
        let blocks = listed.blocks().zip(listed.places());
        let blocks = blocks.map(|(block, places)| PlacedBlock { block, places });
        self.kept.put(step, head, blocks);
        false
    }
}

impl Sink for TimedInstructions {
    const WANTS: Wants = Wants::Order;

    fn packet(&mut self, offset: u64) {
        self.offset = offset;
    }

    fn append(&mut self, sequence: &Sequence<'_>, time: u64) {
        self.be_in(sequence.space);
        let (at, end) = (self.len, self.len + sequence.lengths.len());
        if end > self.rows.ips.len() {
            self.grow(end);
        }
        let rows = &mut self.rows;
        for (to, ip) in rows.ips[at..end].iter_mut().zip(sequence.ips()) {
            *to = ip;
        }
        rows.lengths[at..end].copy_from_slice(sequence.lengths);
        let (began, before) = self.open;
        let began = if before == 0 { time } else { began };
        rows.times[at..end].fill(began);
        rows.bits[at..end].fill(sequence.mode.bits() as u8);
        if self.places {
            rows.offsets[at..end].fill(self.offset);
        }
        self.len = end;
        let count = before + sequence.lengths.len() as u32;
        self.open = if count >= MAX_RUN {
            (0, 0)
        } else {
            (began, count)
        };
    }

    fn close(&mut self, _end: End, _offset: u64) {
        self.open = (0, 0);
    }

    fn event(&mut self, event: &Event) {
        if let Some(in_tx) = event.in_tx().filter(|&in_tx| in_tx != self.now_in_tx) {
            // as rows have it, a run ends here
            self.open = (0, 0);
            self.rows.in_tx.resize(self.len, self.now_in_tx.into());
            self.now_in_tx = in_tx;
        }
    }

    #[inline]
    fn steps(&mut self, steps: &impl Steps) {
        if !steps.placed().is_empty() {
            self.be_in(steps.space());
        }
        self.copy_all(steps);
    }

    fn room(&self) -> Room {
        Room::for_instructions(self.limit, self.len)
    }

    fn is_full(&self) -> bool {
        self.len >= self.limit
    }
}
