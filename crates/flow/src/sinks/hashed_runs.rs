//! Runs with the hashes over their IPs.

use super::column_set::column_set;
use super::column_sink::{ColumnSink, RowBuffer, RowFormat, RowTemplate};
use crate::hash::K;
use crate::sink::{LoggedTransition, RunEnd, RunFragment, MAX_RUN_INSTRUCTIONS};

/// The sink that collects runs with hashes.
pub type HashedRunSink = ColumnSink<HashedRunFormat>;

/// A run with the hash over its IPs, for comparison with a truth file. A run without instructions means that the
/// instructions at the `start`s of the next `hash` runs, which have no instructions either, may have run any number of
/// times there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HashedRun {
    pub start: u64,
    pub instructions: u32,
    pub hash: u64,
}

column_set! {
    /// Runs as columns, each as `HashedRun` has it.
    HashedRunColumns, HashedRunSlices, HashedRunBlock[4]
    copied {
        start: u64,
        instructions: u32,
        hash: u64,
    }
    offsets {}
    times {}
    added {}
}

impl HashedRunColumns {
    /// Returns a run; None after the last one.
    pub fn run_at(&self, at: usize) -> Option<HashedRun> {
        Some(HashedRun {
            start: *self.start.get(at)?,
            instructions: *self.instructions.get(at)?,
            hash: *self.hash.get(at)?,
        })
    }

    fn set_run_at(&mut self, at: usize, run: HashedRun) {
        self.start[at] = run.start;
        self.instructions[at] = run.instructions;
        self.hash[at] = run.hash;
    }
}

#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct HashedRunFormat;

/// The open run, if it has instructions.
fn open_run(buffer: &RowBuffer<HashedRunColumns>) -> Option<HashedRun> {
    let open = buffer.columns.run_at(buffer.len);
    open.filter(|open| open.instructions != 0)
}

/// Adds a run while no run is open.
fn push_run(buffer: &mut RowBuffer<HashedRunColumns>, run: HashedRun) {
    buffer.reserve_rows(2);
    buffer.columns.set_run_at(buffer.len, run);
    buffer.len += 1;
    buffer.columns.instructions[buffer.len] = 0;
}

impl RowFormat for HashedRunFormat {
    type Columns = HashedRunColumns;
    /// What the hash before the first run is multiplied by.
    type Extra = u64;
    /// The open run, if it has instructions.
    type State = HashedRun;
    const HAS_OPEN_ROW: bool = true;
    const ROW_BYTES: usize = 20;

    #[inline]
    fn append_fragment(
        &mut self,
        buffer: &mut RowBuffer<HashedRunColumns>,
        fragment: &RunFragment<'_>,
        _time: u64,
    ) {
        buffer.reserve_rows(2);
        let (rows, at) = (&mut buffer.columns, buffer.len);
        let open = rows.instructions[at];
        if open == 0 {
            rows.start[at] = fragment.start;
            rows.hash[at] = 0;
        }
        rows.instructions[at] = open + fragment.lengths.len() as u32;
        rows.hash[at] = rows.hash[at]
            .wrapping_mul(fragment.factor)
            .wrapping_add(fragment.hash);
        if rows.instructions[at] >= MAX_RUN_INSTRUCTIONS {
            self.close_run(buffer, RunEnd::Cut, 0);
        }
    }

    #[inline]
    fn close_run(&mut self, buffer: &mut RowBuffer<HashedRunColumns>, _end: RunEnd, _offset: u64) {
        if open_run(buffer).is_some() {
            buffer.len += 1;
            buffer.columns.instructions[buffer.len] = 0;
        }
    }

    fn append_unknown_repetitions(
        &mut self,
        buffer: &mut RowBuffer<HashedRunColumns>,
        loop_body: &[u64],
    ) {
        self.close_run(buffer, RunEnd::Cut, 0);
        let empty = HashedRun::default();
        let head = HashedRun {
            hash: loop_body.len() as u64,
            ..empty
        };
        push_run(buffer, head);
        for &start in loop_body {
            push_run(buffer, HashedRun { start, ..empty });
        }
    }

    #[inline(always)]
    fn open_run_instruction_count(&self, rows: &HashedRunSlices<'_>, at: usize) -> u32 {
        rows.instructions.get(at).map_or(0, |&open| open)
    }

    fn template_data_of_format(&self, buffer: &RowBuffer<HashedRunColumns>) -> u64 {
        K.wrapping_pow(buffer.columns.instructions[0])
    }

    #[inline(always)]
    fn copy_template_rows(
        &mut self,
        rows: &mut HashedRunSlices<'_>,
        at: usize,
        template: &RowTemplate<'_, HashedRunColumns, u64>,
        transition: &LoggedTransition,
    ) {
        let (start, open, hash) = (rows.start[at], rows.instructions[at], rows.hash[at]);
        template.copy_to(rows, at, transition);
        if open != 0 {
            rows.start[at] = start;
            rows.instructions[at] += open;
            rows.hash[at] = hash
                .wrapping_mul(template.extra)
                .wrapping_add(rows.hash[at]);
        }
    }

    fn open_row_state(&self, buffer: &RowBuffer<HashedRunColumns>) -> HashedRun {
        open_run(buffer).unwrap_or_default()
    }

    fn resume_from_format_state(
        &mut self,
        buffer: &mut RowBuffer<HashedRunColumns>,
        open: &HashedRun,
    ) {
        buffer.reserve_rows(1);
        buffer.columns.set_run_at(buffer.len, *open);
    }
}
