//! Branches one by one, in order.

use crate::event::Event;
use crate::in_space::InSpace;
use crate::kept::{Copies, Kept};
use crate::reuse::{room, taken};
use crate::segments::InOrder;
use crate::sink::{End, Placed, Room, Sequence, Sink, Step, Steps, Wants};

/// Branches for which there is room at first.
const FIRST: usize = 1 << 10;

/// Branches of a block.
const BLOCK: usize = 4;

/// The sink that lists branches and other transfers.
#[derive(Clone, Debug, Default)]
pub struct Branches {
    /// With room for a block behind the last one.
    rows: BranchColumns,
    len: usize,
    places: bool,
    /// Decoding pauses when this many wait.
    pub limit: usize,
    now: u64,
    packet: u64,
    kept: Kept<Head, Block>,
    space: InSpace,
    /// Branches into another space than their own: which, and that space.
    landed: Vec<(usize, u32)>,
}

/// Branches as columns of one length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BranchColumns {
    /// IP of the instruction.
    pub from: Vec<u64>,
    /// Where it went.
    pub to: Vec<u64>,
    /// `End` as a number; that of `Cut` is a conditional branch that was not taken.
    pub kind: Vec<u8>,
    /// TSC estimate, a lower bound.
    pub time: Vec<u64>,
    /// Of the packet that told of it, if `Branches::new` was asked for places; else empty.
    pub offset: Vec<u64>,
    /// The address space of the instruction, as `Sequence` has it; empty: that of all is 0.
    pub space: Vec<u32>,
    /// That of where it went; empty: that of all is the instruction's.
    pub target_space: Vec<u32>,
}

/// The branches of a step, in numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    count: u32,
    /// Up to the first that took a packet, with it.
    early: u32,
    /// Its last instructions come after that one; None: it has none.
    is_late: Option<bool>,
    /// Where its last packet begins, in bytes behind the first.
    last: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    from: [u64; BLOCK],
    to: [u64; BLOCK],
    kind: [u8; BLOCK],
    /// Where their packets begin, in bytes behind the first of the step.
    place: [u8; BLOCK],
}

/// The branches of one step.
#[derive(Default)]
struct Found {
    edges: Vec<(u64, u64, End, u8)>,
    head: Head,
    /// Offset of the step.
    from: u64,
}

impl Sink for Found {
    const EDGES: bool = true;

    fn packet(&mut self, offset: u64) {
        self.head.last = (offset - self.from) as u8;
    }

    fn append(&mut self, _sequence: &Sequence<'_>, time: u64) {
        self.head.is_late = Some(time != 0);
    }

    fn close(&mut self, _end: End, _offset: u64) {}

    fn edge(&mut self, from: u64, to: u64, kind: End) {
        self.edges.push((from, to, kind, self.head.last));
        self.head.count += 1;
        self.head.early += u32::from(self.head.is_late == Some(false));
    }

    fn event(&mut self, _event: &Event) {}
}

impl Branches {
    /// `places`: offsets are wanted.
    pub fn new(places: bool) -> Branches {
        Branches {
            places,
            ..Branches::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What has been gathered; it begins anew.
    pub fn take(&mut self) -> BranchColumns {
        let (rows, len) = (&mut self.rows, std::mem::take(&mut self.len));
        let space = self.space.take(len);
        let mut target_space = Vec::new();
        if !self.landed.is_empty() {
            target_space.extend_from_slice(&space);
            target_space.resize(len, 0);
            for (row, there) in self.landed.drain(..) {
                target_space[row] = there;
            }
        }
        BranchColumns {
            from: taken(&mut rows.from, len),
            to: taken(&mut rows.to, len),
            kind: taken(&mut rows.kind, len),
            time: taken(&mut rows.time, len),
            offset: match self.places {
                true => taken(&mut rows.offset, len),
                false => Vec::new(),
            },
            space,
            target_space,
        }
    }

    #[inline(always)]
    fn be_in(&mut self, space: u32) {
        if space != self.space.now() {
            self.space.change(self.len, space);
        }
    }

    /// Makes room for so many.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, most: usize) {
        let most = room(most, FIRST, self.limit);
        let rows = &mut self.rows;
        rows.from.resize(most, 0);
        rows.to.resize(most, 0);
        rows.kind.resize(most, 0);
        rows.time.resize(most, 0);
        if self.places {
            rows.offset.resize(most, 0);
        }
    }
}

impl InOrder for Branches {
    type Batch = BranchColumns;
    /// The time of the last instructions, and their address space.
    type Seam = (u64, u32);
    const ROW: usize = 25;

    fn fresh(&self) -> Branches {
        Branches::new(self.places)
    }

    fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    fn is_empty(&self) -> bool {
        Branches::is_empty(self)
    }

    fn take_batch(&mut self) -> BranchColumns {
        self.take()
    }

    fn seam(&self) -> (u64, u32) {
        (self.now, self.space.now())
    }

    fn go_on_from(&mut self, seam: &(u64, u32)) {
        self.len = 0;
        self.landed.clear();
        self.now = seam.0;
        self.space.go_on_in(seam.1);
    }

    fn sometime_later(seam: &(u64, u32)) -> (u64, u32) {
        *seam
    }

    fn rows(batch: &BranchColumns) -> usize {
        batch.from.len()
    }
}

impl Copies for Branches {
    #[inline]
    fn copy(&mut self, epoch: u32, steps: &[Placed]) -> usize {
        let room = self.rows.from.len();
        let rows = &mut self.rows;
        if !self.kept.is_of(epoch) || room < FIRST {
            return 0;
        }
        // that all have one length is known from here on
        let (from, to) = (&mut rows.from[..room], &mut rows.to[..room]);
        let (kind, time) = (&mut rows.kind[..room], &mut rows.time[..room]);
        let mut at = self.len;
        let mut done = 0usize;
        let mut last = self.packet;
        for step in steps {
            let Some((head, blocks)) = self.kept.get(step.number) else {
                break;
            };
            if at + blocks.len() * BLOCK > room {
                break;
            }
            done += 1;
            last = step.offset + u64::from(head.last);
            let (before, after) = step.times;
            let mut place = at;
            for block in blocks {
                if self.places {
                    let offset = block.place.map(|place| step.offset + u64::from(place));
                    rows.offset[place..place + BLOCK].copy_from_slice(&offset);
                }
                from[place..place + BLOCK].copy_from_slice(&block.from);
                to[place..place + BLOCK].copy_from_slice(&block.to);
                kind[place..place + BLOCK].copy_from_slice(&block.kind);
                time[place..place + BLOCK].copy_from_slice(&[after; BLOCK]);
                place += BLOCK;
            }
            if before != after {
                time[at..at + head.early as usize].fill(before);
            }
            if let Some(is_late) = head.is_late {
                self.now = if is_late { after } else { before };
            }
            at += head.count as usize;
        }
        (self.len, self.packet) = (at, last);
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
        let mut found = Found {
            from: step.offset(),
            ..Found::default()
        };
        step.replay_at((0, 1), &mut found);
        let blocks = found.edges.chunks(BLOCK).map(|edges| {
            let mut block = Block::default();
            for (at, &(from, to, kind, place)) in edges.iter().enumerate() {
                block.from[at] = from;
                block.to[at] = to;
                block.kind[at] = kind as u8;
                block.place[at] = place;
            }
            block
        });
        self.kept.put(step, found.head, blocks);
        false
    }
}

impl Sink for Branches {
    const EDGES: bool = true;
    const WANTS: Wants = Wants::Order;

    fn packet(&mut self, offset: u64) {
        self.packet = offset;
    }

    fn append(&mut self, sequence: &Sequence<'_>, time: u64) {
        self.be_in(sequence.space);
        self.now = time;
    }

    fn close(&mut self, _end: End, _offset: u64) {}

    fn edge(&mut self, from: u64, to: u64, kind: End) {
        let at = self.len;
        if at >= self.rows.from.len() {
            self.grow(at + 1);
        }
        let rows = &mut self.rows;
        rows.from[at] = from;
        rows.to[at] = to;
        rows.kind[at] = kind as u8;
        rows.time[at] = self.now;
        if self.places {
            rows.offset[at] = self.packet;
        }
        self.len = at + 1;
    }

    fn landed(&mut self, space: u32) {
        if let Some(row) = self
            .len
            .checked_sub(1)
            .filter(|_| space != self.space.now())
        {
            self.landed.push((row, space));
        }
    }

    fn event(&mut self, _event: &Event) {}

    #[inline]
    fn steps(&mut self, steps: &impl Steps) {
        if !steps.placed().is_empty() {
            self.be_in(steps.space());
        }
        self.copy_all(steps);
    }

    fn room(&self) -> Room {
        Room::for_rows(self.limit, self.len)
    }

    fn is_full(&self) -> bool {
        self.len >= self.limit
    }
}
