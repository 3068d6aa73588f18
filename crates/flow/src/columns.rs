//! The sink that makes rows.

use crate::event::Event;
use crate::in_space::InSpace;
use crate::kept::{column, Copies, Kept, Parts};
use crate::reuse::{copied, room, taken};
use crate::rows::{PlacedEvent, RowColumns, Rows, Run, Runs};
use crate::segments::InOrder;
use crate::sink::{End, Placed, Room, Sequence, Sink, Step, Steps, Wants, MAX_RUN};

/// Rows for which there is room at first.
const FIRST: usize = 1 << 10;

/// Gathers runs and events.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    rows: Table,
    /// Rows that are whole; behind them is the run that goes on, if it has instructions.
    len: usize,
    /// Of the rows up to the last border of a transaction.
    in_tx: Vec<u8>,
    now_in_tx: bool,
    space: InSpace,
    events: Vec<PlacedEvent>,
    kept: Kept<Head, Block>,
    /// Of the packet at work.
    offset: u64,
    /// Runs handed out so far.
    taken: u64,
    limit: usize,
}

/// Columns with room for a block behind the run that goes on.
#[derive(Clone, Debug, Default)]
struct Table {
    start: Vec<u64>,
    last: Vec<u64>,
    time: Vec<u64>,
    offset: Vec<u64>,
    instructions: Vec<u32>,
    end: Vec<u8>,
    bits: Vec<u8>,
}

/// Rows of a block.
const BLOCK: usize = 4;

/// The first part of a step.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    start: u64,
    last: u64,
    instructions: u32,
    end: u8,
    bits: u8,
    place: u8,
    /// How many parts begin before the first branch.
    early: u32,
    /// Parts after the first.
    more: u32,
}

/// Other parts of a step.
#[derive(Clone, Copy, Debug)]
struct Block {
    start: [u64; BLOCK],
    last: [u64; BLOCK],
    instructions: [u32; BLOCK],
    end: [u8; BLOCK],
    bits: [u8; BLOCK],
    /// As `Part` has it.
    place: [u8; BLOCK],
}

impl Table {
    /// Makes room for so many.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, most: usize, limit: usize) {
        let most = room(most, FIRST, limit);
        for column in [
            &mut self.start,
            &mut self.last,
            &mut self.time,
            &mut self.offset,
        ] {
            column.resize(most, 0);
        }
        self.instructions.resize(most, 0);
        self.end.resize(most, 0);
        self.bits.resize(most, 0);
    }

    /// The run that goes on there.
    fn open(&self, at: usize) -> Run {
        if at >= self.start.len() {
            return Run::default();
        }
        Run {
            start: self.start[at],
            last: self.last[at],
            time: self.time[at],
            instructions: self.instructions[at],
            bits: self.bits[at],
            ..Run::default()
        }
    }

    /// The run that goes on comes first.
    fn go_on(&mut self, open: &Run) {
        if self.start.is_empty() {
            return;
        }
        self.start[0] = open.start;
        self.last[0] = open.last;
        self.time[0] = open.time;
        self.instructions[0] = open.instructions;
        self.bits[0] = open.bits;
    }
}

impl Columns {
    /// Decoding pauses when `limit` rows (runs and events together) wait.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// What has been gathered, in stream order.
    pub fn take(&mut self) -> Rows {
        let runs = self.runs().to_vec();
        Rows {
            runs,
            space: self.space.take(self.len),
            events: self.clear(),
        }
    }

    /// The runs that have been gathered.
    pub fn runs(&mut self) -> Runs<'_> {
        self.in_tx.resize(self.len, self.now_in_tx.into());
        let (rows, len) = (&self.rows, self.len);
        Runs {
            start: &rows.start[..len],
            last: &rows.last[..len],
            time: &rows.time[..len],
            offset: &rows.offset[..len],
            instructions: &rows.instructions[..len],
            end: &rows.end[..len],
            bits: &rows.bits[..len],
            in_tx: &self.in_tx,
        }
    }

    /// Whether neither runs nor events have been gathered.
    pub fn is_empty(&self) -> bool {
        self.len == 0 && self.events.is_empty()
    }

    /// Begins anew, and gives the events that have been gathered.
    pub fn clear(&mut self) -> Vec<PlacedEvent> {
        let open = self.rows.open(self.len);
        self.begin_with(&open)
    }

    /// As `clear`, when the columns are others: this run goes on.
    fn begin_with(&mut self, open: &Run) -> Vec<PlacedEvent> {
        self.rows.go_on(open);
        self.taken += self.len as u64;
        self.len = 0;
        self.in_tx.clear();
        self.space.go_on_in(self.space.now());
        std::mem::take(&mut self.events)
    }

    /// What comes next is of this space, as the packet at `offset` told; the run that goes on is of another.
    #[inline(always)]
    fn be_in(&mut self, space: u32, offset: u64) {
        if space != self.space.now() {
            self.close(End::Cut, offset);
            self.space.change(self.len, space);
        }
    }

    fn learn(&mut self, step: &impl Step) {
        let parts = Parts::of(step);
        let (first, more) = (parts[0], &parts[1..]);
        let head = Head {
            start: first.start,
            last: first.last,
            instructions: first.instructions,
            end: first.end,
            bits: first.bits,
            place: first.place,
            early: Parts::early(&parts) as u32,
            more: more.len() as u32,
        };
        let block = |parts| Block {
            start: column(parts, |part| part.start),
            last: column(parts, |part| part.last),
            instructions: column(parts, |part| part.instructions),
            end: column(parts, |part| part.end),
            bits: column(parts, |part| part.bits),
            place: column(parts, |part| part.place),
        };
        self.kept.put(step, head, more.chunks(BLOCK).map(block));
    }

    /// Instructions of the run that goes on.
    #[inline(always)]
    fn open(&self) -> u32 {
        self.rows.instructions.get(self.len).map_or(0, |&open| open)
    }
}

/// What a border of a segment has to tell of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RowSeam {
    /// The run that goes on, if it has instructions.
    open: Run,
    in_tx: bool,
    /// The address space of what came last.
    space: u32,
}

impl InOrder for Columns {
    type Batch = RowColumns;
    type Seam = RowSeam;
    const ROW: usize = 40;

    fn fresh(&self) -> Columns {
        Columns::default()
    }

    fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    fn is_empty(&self) -> bool {
        Columns::is_empty(self)
    }

    fn take_batch(&mut self) -> RowColumns {
        self.in_tx.resize(self.len, self.now_in_tx.into());
        let open = self.rows.open(self.len);
        let (rows, len) = (&mut self.rows, self.len);
        RowColumns {
            start: taken(&mut rows.start, len),
            last: taken(&mut rows.last, len),
            time: taken(&mut rows.time, len),
            offset: taken(&mut rows.offset, len),
            instructions: taken(&mut rows.instructions, len),
            end: taken(&mut rows.end, len),
            bits: taken(&mut rows.bits, len),
            in_tx: copied(&self.in_tx),
            space: self.space.take(len),
            events: self.begin_with(&open),
        }
    }

    fn seam(&self) -> RowSeam {
        let open = match self.open() {
            0 => Run::default(),
            _ => self.rows.open(self.len),
        };
        RowSeam {
            open,
            in_tx: self.now_in_tx,
            space: self.space.now(),
        }
    }

    fn go_on_from(&mut self, seam: &RowSeam) {
        self.len = 0;
        self.taken = 0;
        self.events.clear();
        self.in_tx.clear();
        self.now_in_tx = seam.in_tx;
        self.space.go_on_in(seam.space);
        if self.rows.start.is_empty() {
            self.rows.grow(1, self.limit);
        }
        self.rows.go_on(&seam.open);
    }

    fn sometime_later(seam: &RowSeam) -> RowSeam {
        RowSeam {
            in_tx: seam.in_tx,
            space: seam.space,
            ..RowSeam::default()
        }
    }

    fn rows(batch: &RowColumns) -> usize {
        batch.start.len()
    }

    fn shift(batch: &mut RowColumns, rows: u64) {
        for event in &mut batch.events {
            event.row += rows;
        }
    }
}

impl Copies for Columns {
    #[inline]
    fn copy(&mut self, epoch: u32, steps: &[Placed]) -> usize {
        let (rows, kept) = (&mut self.rows, &self.kept);
        let room = rows.start.len();
        if !kept.is_of(epoch) || room < FIRST {
            return 0;
        }
        // that all have one length is known from here on
        let (start, last) = (&mut rows.start[..room], &mut rows.last[..room]);
        let (time, offset) = (&mut rows.time[..room], &mut rows.offset[..room]);
        let instructions = &mut rows.instructions[..room];
        let (end, bits) = (&mut rows.end[..room], &mut rows.bits[..room]);
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
            let (before, after) = step.times;
            if open == 0 {
                start[at] = head.start;
                time[at] = before;
                bits[at] = head.bits;
            }
            if head.instructions != 0 {
                last[at] = head.last;
            }
            instructions[at] = open + head.instructions;
            end[at] = head.end;
            offset[at] = step.offset + u64::from(head.place);
            let mut to = at + 1;
            for block in blocks {
                start[to..to + BLOCK].copy_from_slice(&block.start);
                last[to..to + BLOCK].copy_from_slice(&block.last);
                instructions[to..to + BLOCK].copy_from_slice(&block.instructions);
                end[to..to + BLOCK].copy_from_slice(&block.end);
                bits[to..to + BLOCK].copy_from_slice(&block.bits);
                time[to..to + BLOCK].copy_from_slice(&[after; BLOCK]);
                let offsets = block.place.map(|place| step.offset + u64::from(place));
                offset[to..to + BLOCK].copy_from_slice(&offsets);
                to += BLOCK;
            }
            if before != after && head.early > 1 {
                time[at + 1..at + head.early as usize].fill(before);
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
                self.rows.grow(self.len + most + 1, self.limit);
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

impl Sink for Columns {
    const WANTS: Wants = Wants::Order;

    #[inline]
    fn packet(&mut self, offset: u64) {
        self.offset = offset;
    }

    #[inline]
    fn append(&mut self, sequence: &Sequence<'_>, time: u64) {
        self.be_in(sequence.space, self.offset);
        let at = self.len;
        if at + 1 >= self.rows.start.len() {
            self.rows.grow(at + 2, self.limit);
        }
        let rows = &mut self.rows;
        if rows.instructions[at] == 0 {
            rows.start[at] = sequence.start;
            rows.time[at] = time;
            rows.bits[at] = sequence.mode.bits() as u8;
        }
        rows.last[at] = sequence.last;
        rows.instructions[at] += sequence.lengths.len() as u32;
        if rows.instructions[at] >= MAX_RUN {
            self.close(End::Cut, self.offset);
        }
    }

    #[inline]
    fn close(&mut self, end: End, offset: u64) {
        if self.open() != 0 {
            let (rows, at) = (&mut self.rows, self.len);
            rows.end[at] = end as u8;
            rows.offset[at] = offset;
            rows.instructions[at + 1] = 0;
            self.len = at + 1;
        }
    }

    fn event(&mut self, event: &Event) {
        if let Some(in_tx) = event.in_tx().filter(|&in_tx| in_tx != self.now_in_tx) {
            self.close(End::Cut, event.offset);
            self.in_tx.resize(self.len, self.now_in_tx.into());
            self.now_in_tx = in_tx;
        }
        let begun = u64::from(self.open() != 0);
        self.events.push(PlacedEvent {
            row: self.taken + self.len as u64 + begun,
            event: *event,
        });
    }

    #[inline]
    fn steps(&mut self, steps: &impl Steps) {
        if let Some(first) = steps.placed().first() {
            self.be_in(steps.space(), first.offset);
        }
        self.copy_all(steps);
    }

    fn room(&self) -> Room {
        Room::for_rows(self.limit, self.len + self.events.len())
    }

    fn is_full(&self) -> bool {
        self.len + self.events.len() >= self.limit
    }
}
