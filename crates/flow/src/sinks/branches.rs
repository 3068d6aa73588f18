//! Branches and other transfers, in order.

use super::column_set::{column_set, ColumnSet};
use super::column_sink::{ColumnSink, RowBuffer, RowFormat, RowTemplate};
use crate::sink::{LoggedTransition, RunEnd, RunFragment};

/// The sink that lists branches and other transfers.
pub type BranchSink = ColumnSink<BranchFormat>;

column_set! {
    /// Branches as columns.
    BranchColumns, BranchSlices, BranchBlock[4]
    copied {
        /// IP of the instruction.
        from: u64,
        /// Where it went.
        to: u64,
        /// `End` as a number; that of `Cut` is a conditional branch that was not taken.
        kind: u8,
    }
    offsets {
        /// Of the packet that showed it, if `BranchSink::new` was asked for offsets; else empty.
        offset
    }
    times {
        /// TSC estimate, a lower bound.
        time
    }
    added {
        /// The address space of the instruction, as `RunFragment` has it; empty: that of all is 0.
        space: u32,
        /// The address space of the target; empty: that of all is the instruction's.
        target_space: u32,
    }
}

#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct BranchFormat {
    /// The time of the last instructions.
    now: Option<u64>,
    /// Branches into another space: row and that space.
    targets_elsewhere: Vec<(usize, u32)>,
}

impl BranchSink {
    pub fn new(with_offsets: bool) -> BranchSink {
        ColumnSink::with_format(BranchFormat::default(), with_offsets)
    }
}

impl RowFormat for BranchFormat {
    type Columns = BranchColumns;
    /// Whether the last instructions come after the first branch; None: there are no instructions.
    type Extra = Option<bool>;
    /// The time of the last instructions.
    type State = Option<u64>;
    const NEEDS_EDGES: bool = true;
    const IS_LOCATED: bool = true;
    const ROW_BYTES: usize = 25;

    #[inline]
    fn append_fragment(
        &mut self,
        _buffer: &mut RowBuffer<BranchColumns>,
        _fragment: &RunFragment<'_>,
        time: u64,
    ) {
        self.now = Some(time);
    }

    #[inline]
    fn append_edge(
        &mut self,
        buffer: &mut RowBuffer<BranchColumns>,
        from: u64,
        to: u64,
        kind: RunEnd,
    ) {
        buffer.reserve_rows(1);
        let (rows, at) = (&mut buffer.columns, buffer.len);
        rows.from[at] = from;
        rows.to[at] = to;
        rows.kind[at] = kind as u8;
        rows.time[at] = self.now.unwrap_or(0);
        if let Some(offset) = rows.offset.get_mut(at) {
            *offset = buffer.offset;
        }
        buffer.len = at + 1;
    }

    fn note_entered_space(&mut self, buffer: &RowBuffer<BranchColumns>, space: u32) {
        let row = buffer.len.checked_sub(1);
        if let Some(row) = row.filter(|_| space != buffer.space.next_value()) {
            self.targets_elsewhere.push((row, space));
        }
    }

    fn add_missing_columns(
        &mut self,
        buffer: &mut RowBuffer<BranchColumns>,
        batch: &mut BranchColumns,
    ) {
        batch.space = buffer.space.take_values(batch.row_count());
        if !self.targets_elsewhere.is_empty() {
            batch.target_space = batch.space.clone();
            batch.target_space.resize(batch.row_count(), 0);
            for (row, space) in self.targets_elsewhere.drain(..) {
                batch.target_space[row] = space;
            }
        }
    }

    fn template_data_of_format(&self, _buffer: &RowBuffer<BranchColumns>) -> Option<bool> {
        self.now.map(|time| time != 0)
    }

    #[inline(always)]
    fn copy_template_rows(
        &mut self,
        rows: &mut BranchSlices<'_>,
        at: usize,
        template: &RowTemplate<'_, BranchColumns, Option<bool>>,
        transition: &LoggedTransition,
    ) {
        template.copy_to(rows, at, transition);
        if let Some(is_late) = template.extra {
            let (before, after) = transition.times;
            self.now = Some(if is_late { after } else { before });
        }
    }

    fn open_row_state(&self, _buffer: &RowBuffer<BranchColumns>) -> Option<u64> {
        self.now
    }

    fn resume_from_format_state(
        &mut self,
        _buffer: &mut RowBuffer<BranchColumns>,
        now: &Option<u64>,
    ) {
        self.targets_elsewhere.clear();
        self.now = *now;
    }

    fn known_format_state_later(now: &Option<u64>) -> Option<u64> {
        *now
    }
}
