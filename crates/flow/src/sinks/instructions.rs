//! Every instruction, one after the other.

use super::column_set::{column_set, ColumnSet};
use super::column_sink::{ColumnSink, RowBuffer, RowFormat, RowTemplate};
use crate::sink::{LoggedTransition, RunEnd, RunFragment, MAX_RUN_INSTRUCTIONS};

/// The sink that lists every instruction.
pub type InstructionSink = ColumnSink<InstructionFormat>;

column_set! {
    /// Instructions as columns.
    InstructionColumns, InstructionSlices, InstructionBlock[8]
    copied {
        ips: u64,
        /// In bytes.
        lengths: u8,
        /// The mode of the code: 16, 32 or 64.
        bits: u8,
    }
    offsets {
        /// Of the packet that showed it, if `InstructionSink::new` enabled offsets; else empty.
        offsets
    }
    times {
        /// When the run began, as `Run` has it.
        times
    }
    added {
        /// 1: in a transaction, according to MODE.TSX.
        in_tx: u8,
        /// The address space of each, as `RunFragment` has it; empty: all are in space 0.
        space: u32,
        /// CR3 as PIP packets have it, 0 before the first; empty: all are 0.
        cr3: u64,
    }
}

/// The open run: when it began, and how many instructions it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenRun {
    time: u64,
    instructions: u32,
}

impl OpenRun {
    /// When the run began to which the instructions at `time` belong.
    #[inline(always)]
    fn run_start_time(self, time: u64) -> u64 {
        match self.instructions {
            0 => time,
            _ => self.time,
        }
    }
}

#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct InstructionFormat {
    open: OpenRun,
    /// Rows before the first end of a run since this format began to record.
    first_end: Option<u32>,
}

/// The runs of a transition, as a template stores them.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransitionRuns {
    /// Instructions before the first end of a run; None: no run ends.
    first_end: Option<u32>,
    /// The open run; its time is not 0 if it begins after the first branch.
    open: OpenRun,
}

impl InstructionSink {
    pub fn new(with_offsets: bool) -> InstructionSink {
        ColumnSink::with_format(InstructionFormat::default(), with_offsets)
    }
}

impl RowFormat for InstructionFormat {
    type Columns = InstructionColumns;
    type Extra = TransitionRuns;
    type State = OpenRun;
    const IS_LOCATED: bool = true;
    const SPLITS_AT_TRANSACTIONS: bool = true;
    const HAS_CR3: bool = true;
    const IS_INSTRUCTION: bool = true;
    const ROW_BYTES: usize = 19;

    #[inline]
    fn append_fragment(
        &mut self,
        buffer: &mut RowBuffer<InstructionColumns>,
        fragment: &RunFragment<'_>,
        time: u64,
    ) {
        let count = fragment.lengths.len();
        buffer.reserve_rows(count);
        let (rows, range) = (&mut buffer.columns, buffer.len..buffer.len + count);
        for (to, ip) in rows.ips[range.clone()]
            .iter_mut()
            .zip(fragment.instruction_addresses())
        {
            *to = ip;
        }
        rows.lengths[range.clone()].copy_from_slice(fragment.lengths);
        rows.bits[range.clone()].fill(fragment.mode.pointer_bits() as u8);
        let time = self.open.run_start_time(time);
        rows.times[range.clone()].fill(time);
        if let Some(offsets) = rows.offsets.get_mut(range) {
            offsets.fill(buffer.offset);
        }
        buffer.len += count;
        let instructions = self.open.instructions + count as u32;
        self.open = match instructions < MAX_RUN_INSTRUCTIONS {
            true => OpenRun { time, instructions },
            false => OpenRun::default(),
        };
    }

    #[inline]
    fn close_run(
        &mut self,
        buffer: &mut RowBuffer<InstructionColumns>,
        _end: RunEnd,
        _offset: u64,
    ) {
        self.first_end.get_or_insert(buffer.len as u32);
        self.open = OpenRun::default();
    }

    fn add_missing_columns(
        &mut self,
        buffer: &mut RowBuffer<InstructionColumns>,
        batch: &mut InstructionColumns,
    ) {
        batch.in_tx = buffer.take_in_tx(batch.row_count());
        batch.space = buffer.space.take_values(batch.row_count());
        batch.cr3 = buffer.cr3.take_values(batch.row_count());
    }

    #[inline(always)]
    fn open_run_instruction_count(&self, _rows: &InstructionSlices<'_>, _at: usize) -> u32 {
        self.open.instructions
    }

    fn template_data_of_format(&self, _buffer: &RowBuffer<InstructionColumns>) -> TransitionRuns {
        TransitionRuns {
            first_end: self.first_end,
            open: self.open,
        }
    }

    #[inline(always)]
    fn copy_template_rows(
        &mut self,
        rows: &mut InstructionSlices<'_>,
        at: usize,
        template: &RowTemplate<'_, InstructionColumns, TransitionRuns>,
        transition: &LoggedTransition,
    ) {
        template.copy_to(rows, at, transition);
        let (before, after) = transition.times;
        let time = self.open.run_start_time(before);
        let TransitionRuns { first_end, open } = template.extra;
        if time != before {
            let first = first_end.map_or(template.rows, |rows| rows as usize);
            rows.times[at..at + first].fill(time);
        }
        self.open = match (first_end, open.time) {
            (None, _) => OpenRun {
                time,
                instructions: self.open.instructions + open.instructions,
            },
            (Some(_), 0) => OpenRun {
                time: before,
                ..open
            },
            (Some(_), _) => OpenRun {
                time: after,
                ..open
            },
        };
    }

    fn open_row_state(&self, _buffer: &RowBuffer<InstructionColumns>) -> OpenRun {
        match self.open.instructions {
            0 => OpenRun::default(),
            _ => self.open,
        }
    }

    fn resume_from_format_state(
        &mut self,
        _buffer: &mut RowBuffer<InstructionColumns>,
        open: &OpenRun,
    ) {
        self.open = *open;
        self.first_end = None;
    }
}
