//! Runs of instructions, with the events between them.

use super::column_set::{column_set, ColumnSet};
use super::column_sink::{ColumnSink, RowBuffer, RowFormat, RowTemplate};
use crate::event::Event;
use crate::sink::{LoggedTransition, RunEnd, RunFragment, MAX_RUN_INSTRUCTIONS};

/// The sink that collects runs and events.
pub type RunSink = ColumnSink<RunFormat>;

/// A run: instructions that ran one after the other in memory order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstructionRun {
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
    /// It ran in a transaction, according to MODE.TSX: no transaction begins or ends within a run.
    pub in_tx: bool,
}

/// An event and its position: the number of runs, counted from the start of the stream, that began before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionedEvent {
    pub row: u64,
    pub event: Event,
}

column_set! {
    /// Runs as columns, each as `Run` has it, and the events between them.
    RunColumns, RunSlices, RunBlock[4]
    copied {
        start: u64,
        last: u64,
        instructions: u32,
        end: u8,
        bits: u8,
    }
    offsets { offset }
    times { time }
    added {
        in_tx: u8,
        /// The address space of each run, as `RunFragment` has it; empty: all are in space 0.
        space: u32,
        /// CR3 as PIP packets have it, 0 before the first; empty: all are 0.
        cr3: u64,
        events: PositionedEvent,
    }
}

impl RunColumns {
    /// Returns the runs one by one.
    pub fn iter_runs(&self) -> impl Iterator<Item = InstructionRun> + '_ {
        (0..self.start.len()).map(|at| InstructionRun {
            start: self.start[at],
            last: self.last[at],
            time: self.time[at],
            offset: self.offset[at],
            instructions: self.instructions[at],
            end: self.end[at],
            bits: self.bits[at],
            in_tx: self.in_tx[at] != 0,
        })
    }
}

#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct RunFormat {
    events: Vec<PositionedEvent>,
    /// Runs in earlier batches.
    taken: u64,
}

/// Instructions of the open run.
fn open_run_instruction_count(buffer: &RowBuffer<RunColumns>) -> u32 {
    let open = buffer.columns.instructions.get(buffer.len);
    open.map_or(0, |&instructions| instructions)
}

impl RowFormat for RunFormat {
    type Columns = RunColumns;
    type Extra = ();
    /// The open run, if it has instructions.
    type State = InstructionRun;
    const IS_LOCATED: bool = true;
    const SPLITS_AT_TRANSACTIONS: bool = true;
    const HAS_CR3: bool = true;
    const HAS_OPEN_ROW: bool = true;
    const ROW_BYTES: usize = 40;

    #[inline]
    fn append_fragment(
        &mut self,
        buffer: &mut RowBuffer<RunColumns>,
        fragment: &RunFragment<'_>,
        time: u64,
    ) {
        buffer.reserve_rows(2);
        let (rows, at) = (&mut buffer.columns, buffer.len);
        if rows.instructions[at] == 0 {
            rows.start[at] = fragment.start;
            rows.time[at] = time;
            rows.bits[at] = fragment.mode.pointer_bits() as u8;
        }
        rows.last[at] = fragment.last;
        rows.instructions[at] += fragment.lengths.len() as u32;
        if rows.instructions[at] >= MAX_RUN_INSTRUCTIONS {
            self.close_run(buffer, RunEnd::Cut, buffer.offset);
        }
    }

    #[inline]
    fn close_run(&mut self, buffer: &mut RowBuffer<RunColumns>, end: RunEnd, offset: u64) {
        if open_run_instruction_count(buffer) != 0 {
            let (rows, at) = (&mut buffer.columns, buffer.len);
            rows.end[at] = end as u8;
            rows.offset[at] = offset;
            rows.instructions[at + 1] = 0;
            buffer.len = at + 1;
        }
    }

    fn append_event(&mut self, buffer: &RowBuffer<RunColumns>, event: &Event) {
        let begun = buffer.len as u64 + u64::from(open_run_instruction_count(buffer) != 0);
        self.events.push(PositionedEvent {
            row: self.taken + begun,
            event: *event,
        });
    }

    fn rows_and_events_to_take(&self, buffer: &RowBuffer<RunColumns>) -> usize {
        buffer.len + self.events.len()
    }

    fn add_missing_columns(&mut self, buffer: &mut RowBuffer<RunColumns>, batch: &mut RunColumns) {
        batch.in_tx = buffer.take_in_tx(batch.row_count());
        batch.space = buffer.space.take_values(batch.row_count());
        batch.cr3 = buffer.cr3.take_values(batch.row_count());
        batch.events = std::mem::take(&mut self.events);
        self.taken += batch.row_count() as u64;
    }

    #[inline(always)]
    fn open_run_instruction_count(&self, rows: &RunSlices<'_>, at: usize) -> u32 {
        rows.instructions.get(at).map_or(0, |&open| open)
    }

    fn template_data_of_format(&self, _buffer: &RowBuffer<RunColumns>) {}

    #[inline(always)]
    fn copy_template_rows(
        &mut self,
        rows: &mut RunSlices<'_>,
        at: usize,
        template: &RowTemplate<'_, RunColumns, ()>,
        transition: &LoggedTransition,
    ) {
        let open = rows.instructions[at];
        let (start, last, time, bits) =
            (rows.start[at], rows.last[at], rows.time[at], rows.bits[at]);
        template.copy_to(rows, at, transition);
        if open != 0 {
            if rows.instructions[at] == 0 {
                rows.last[at] = last;
            }
            rows.start[at] = start;
            rows.time[at] = time;
            rows.bits[at] = bits;
            rows.instructions[at] += open;
        }
    }

    fn open_row_state(&self, buffer: &RowBuffer<RunColumns>) -> InstructionRun {
        let (rows, at) = (&buffer.columns, buffer.len);
        match open_run_instruction_count(buffer) {
            0 => InstructionRun::default(),
            instructions => InstructionRun {
                start: rows.start[at],
                last: rows.last[at],
                time: rows.time[at],
                instructions,
                bits: rows.bits[at],
                ..InstructionRun::default()
            },
        }
    }

    fn resume_from_format_state(
        &mut self,
        buffer: &mut RowBuffer<RunColumns>,
        open: &InstructionRun,
    ) {
        self.events.clear();
        self.taken = 0;
        buffer.reserve_rows(1);
        let (rows, at) = (&mut buffer.columns, buffer.len);
        rows.start[at] = open.start;
        rows.last[at] = open.last;
        rows.time[at] = open.time;
        rows.instructions[at] = open.instructions;
        rows.bits[at] = open.bits;
    }

    fn renumber_rows(batch: &mut RunColumns, rows: u64) {
        for event in &mut batch.events {
            event.row += rows;
        }
    }
}
