//! Runs and events as rows.

use crate::event::Event;
use crate::kept::{Breaks, Kept};
use crate::sink::{End, Sequence, Sink, Step, Wants, MAX_RUN};

/// A run: instructions that ran one after the other in memory order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// IP of the first instruction.
    pub start: u64,
    /// IP of the last instruction.
    pub last: u64,
    /// TSC estimate at the start, a lower bound.
    pub time: u64,
    /// Stream offset of the packet that ended it.
    pub offset: u64,
    /// Number of instructions, at least 1.
    pub instructions: u32,
    /// Why the run ended: `End` as a number.
    pub end: u8,
    /// The mode of the code: 16, 32 or 64.
    pub bits: u8,
    /// It ran in a transaction, as far as MODE.TSX has told: a run has no border of one within.
    pub in_tx: bool,
}

/// An event and its place: the number of runs, counted from the start of the stream, that began before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedEvent {
    pub row: u64,
    pub event: Event,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    pub runs: Vec<Run>,
    pub events: Vec<PlacedEvent>,
}

impl Rows {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.events.is_empty()
    }

    fn len(&self) -> usize {
        self.runs.len() + self.events.len()
    }
}

/// The sink that makes rows.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    rows: Rows,
    /// The run that goes on, if it has instructions.
    open: Run,
    kept: Kept<Part>,
    in_tx: bool,
    /// Of the packet at work.
    offset: u64,
    /// Runs handed out so far.
    taken: u64,
    limit: usize,
}

/// A run, or its end, as a step has it.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    start: u64,
    last: u64,
    instructions: u32,
    end: u8,
    bits: u8,
    /// It begins after the first branch of the step.
    late: bool,
}

#[derive(Default)]
struct Parts {
    ready: Vec<Part>,
    open: Part,
}

impl Sink for Parts {
    fn append(&mut self, sequence: &Sequence<'_>, time: u64) {
        if self.open.instructions == 0 {
            self.open.start = sequence.start;
            self.open.late = time == Self::TIMES.1;
            self.open.bits = sequence.mode.bits() as u8;
        }
        self.open.last = sequence.last;
        self.open.instructions += sequence.lengths.len() as u32;
    }

    fn close(&mut self, end: End, _offset: u64) {
        self.open.end = end as u8;
        self.ready.push(std::mem::take(&mut self.open));
    }

    fn event(&mut self, _event: &Event) {}
}

impl Breaks for Parts {
    type Part = Part;

    fn parts(mut self, parts: &mut Vec<Part>) {
        parts.append(&mut self.ready);
        parts.push(self.open);
    }
}

/// Rows for which room is made at once.
const MAX_RESERVED: usize = 1 << 16;

impl Columns {
    /// Decoding pauses when `limit` rows (runs and events together) wait.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// What has been gathered, in stream order.
    pub fn take(&mut self) -> Rows {
        self.taken += self.rows.runs.len() as u64;
        let next = Vec::with_capacity(self.limit.min(MAX_RESERVED));
        Rows {
            runs: std::mem::replace(&mut self.rows.runs, next),
            events: std::mem::take(&mut self.rows.events),
        }
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
        if self.open.instructions == 0 {
            self.open.start = sequence.start;
            self.open.time = time;
            self.open.bits = sequence.mode.bits() as u8;
            self.open.in_tx = self.in_tx;
        }
        self.open.last = sequence.last;
        self.open.instructions += sequence.lengths.len() as u32;
        if self.open.instructions >= MAX_RUN {
            self.close(End::Cut, self.offset);
        }
    }

    #[inline]
    fn close(&mut self, end: End, offset: u64) {
        if self.open.instructions != 0 {
            self.rows.runs.push(Run {
                end: end as u8,
                offset,
                ..self.open
            });
            self.open.instructions = 0;
        }
    }

    fn event(&mut self, event: &Event) {
        if let Some(in_tx) = event.in_tx().filter(|&in_tx| in_tx != self.in_tx) {
            self.close(End::Cut, event.offset);
            self.in_tx = in_tx;
        }
        let begun = u64::from(self.open.instructions != 0);
        self.rows.events.push(PlacedEvent {
            row: self.taken + self.rows.runs.len() as u64 + begun,
            event: *event,
        });
    }

    #[inline]
    fn step(&mut self, step: &impl Step) {
        if self.open.instructions >= MAX_RUN / 2 {
            // it may have to be cut within the step
            return step.replay(self);
        }
        let parts = self.kept.of::<Parts>(step);
        let Some((first, more)) = parts.split_first() else {
            return;
        };
        let ((before, after), offset) = (step.times(), step.offset());
        let in_tx = self.in_tx;
        let run = |part: &Part| Run {
            start: part.start,
            last: part.last,
            time: if part.late { after } else { before },
            offset,
            instructions: part.instructions,
            end: part.end,
            bits: part.bits,
            in_tx,
        };
        self.open = match self.open.instructions {
            0 => run(first),
            open => Run {
                last: if first.instructions == 0 {
                    self.open.last
                } else {
                    first.last
                },
                offset,
                instructions: open + first.instructions,
                end: first.end,
                ..self.open
            },
        };
        let Some((last, whole)) = more.split_last() else {
            return;
        };
        self.rows.runs.push(self.open);
        self.rows.runs.extend(whole.iter().map(run));
        self.open = run(last);
    }

    fn room(&self, rows: usize, _instructions: usize) -> usize {
        self.limit.saturating_sub(self.rows.len()).div_ceil(rows)
    }

    fn is_full(&self) -> bool {
        self.rows.len() >= self.limit
    }
}
