//! The sink behind all results in order: it appends rows to columns.
//!
//! A [`RowFormat`] says what a row is. Transitions that recur are not replayed: [`ColumnSink`] records their rows once,
//! by replaying the transition into a second sink of the same format, and copies these rows from then on (`templates`).

use std::fmt::Debug;

use super::buffer_pool::{batch_capacity, copy_to_buffer};
use super::column_set::ColumnSet;
use super::ordered_sink::OrderedSink;
use super::templates::{Template, Templates};
use crate::event::Event;
use crate::sink::{
    Capacity, LoggedTransition, RunEnd, RunFragment, Sink, SinkNeeds, TakenTransition,
    TakenTransitions, MAX_RUN_INSTRUCTIONS,
};
use crate::space_column::InSpace;

/// Rows for which a buffer has room at first.
const FIRST_ROWS: usize = 1 << 10;

/// The rows of a sink.
#[derive(Clone, Debug, Default)]
pub struct RowBuffer<C> {
    /// With room after the rows in use, and for a whole block where a template is copied.
    pub(super) columns: C,
    /// Rows that have ended. For a format with an open row, that one is the next.
    pub(super) len: usize,
    /// Decoding pauses when so many rows wait.
    limit: usize,
    with_offsets: bool,
    /// Offset of the packet that is being decoded.
    pub(super) offset: u64,
    pub(super) space: InSpace,
    /// Of the rows up to the last one at which `now_in_tx` changed.
    in_tx: Vec<u8>,
    now_in_tx: bool,
}

impl<C: ColumnSet> RowBuffer<C> {
    /// Makes room for `rows` more.
    #[inline(always)]
    pub(super) fn reserve(&mut self, rows: usize) {
        if self.len + rows > self.columns.row_count() {
            self.grow(self.len + rows);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, rows: usize) {
        let rows = batch_capacity(rows, FIRST_ROWS, self.limit);
        self.columns.resize(rows, self.with_offsets);
    }

    /// Returns the transaction column of the first `rows` rows, which leave the buffer.
    pub(super) fn take_in_tx(&mut self, rows: usize) -> Vec<u8> {
        self.in_tx.resize(rows, self.now_in_tx.into());
        let column = copy_to_buffer(&self.in_tx);
        self.in_tx.clear();
        column
    }
}

/// What a row is, and how the flow becomes rows.
pub trait RowFormat: Clone + Debug + Default + Send {
    type Columns: ColumnSet;
    /// What a template keeps of a transition beside its rows.
    type Extra: Copy + Debug + Default + Send;
    /// What the format knows of the flow before the rows in the buffer.
    type State: Clone + Debug + Default + PartialEq + Send + Sync;
    const NEEDS_EDGES: bool = false;
    /// Rows have times, packet offsets, and one address space each.
    const IS_LOCATED: bool = false;
    /// A row ends where a transaction begins or ends.
    const SPLITS_AT_TRANSACTIONS: bool = false;
    /// The row after the last one that ended is being written: it is a run, and exists if it has instructions.
    const HAS_OPEN_ROW: bool = false;
    /// A row is an instruction.
    const IS_INSTRUCTION: bool = false;
    /// Transitions are recorded when they are met for the first time: to replay one is slow.
    const RECORDS_AT_ONCE: bool = false;
    /// Bytes of a row in a batch, about.
    const ROW_BYTES: usize;

    /// Another format for the same results.
    fn fresh(&self) -> Self {
        Self::default()
    }

    fn append(
        &mut self,
        buffer: &mut RowBuffer<Self::Columns>,
        fragment: &RunFragment<'_>,
        time: u64,
    );
    fn close(&mut self, _buffer: &mut RowBuffer<Self::Columns>, _end: RunEnd, _offset: u64) {}
    /// Writes rows that wait for the next call.
    fn flush(&mut self, _buffer: &mut RowBuffer<Self::Columns>) {}
    fn edge(
        &mut self,
        _buffer: &mut RowBuffer<Self::Columns>,
        _from: u64,
        _to: u64,
        _kind: RunEnd,
    ) {
    }
    fn entered_space(&mut self, _buffer: &RowBuffer<Self::Columns>, _space: u32) {}
    fn event(&mut self, _buffer: &RowBuffer<Self::Columns>, _event: &Event) {}
    fn unknown_repetitions(&mut self, _buffer: &mut RowBuffer<Self::Columns>, _loop_body: &[u64]) {}

    /// Rows that can be taken; those after them belong to a run that is not complete.
    fn finished_rows(&self, buffer: &RowBuffer<Self::Columns>) -> usize {
        buffer.len
    }

    /// Rows and events that can be taken.
    fn pending(&self, buffer: &RowBuffer<Self::Columns>) -> usize {
        self.finished_rows(buffer)
    }

    /// Adds to a batch the columns that the buffer does not have. The rows of the batch have left the buffer.
    fn complete(&mut self, _buffer: &mut RowBuffer<Self::Columns>, _batch: &mut Self::Columns) {}

    /// Instructions of the run that goes on; the next row is at `at`.
    fn open_instructions(
        &self,
        _columns: &<Self::Columns as ColumnSet>::Slices<'_>,
        _at: usize,
    ) -> u32 {
        0
    }

    /// What a template keeps of the transition that this format and this buffer have recorded.
    fn extra(&self, buffer: &RowBuffer<Self::Columns>) -> Self::Extra;

    /// Takes a transition: copies its template to the rows from `at` on and joins the first row to an open run.
    fn copy(
        &mut self,
        columns: &mut <Self::Columns as ColumnSet>::Slices<'_>,
        at: usize,
        template: &Template<'_, Self::Columns, Self::Extra>,
        transition: &LoggedTransition,
    );

    fn state(&self, buffer: &RowBuffer<Self::Columns>) -> Self::State;
    /// Goes on from a state with an empty buffer.
    fn resume(&mut self, buffer: &mut RowBuffer<Self::Columns>, state: &Self::State);
    /// What is known of the state somewhat later in the stream.
    fn later_state(_state: &Self::State) -> Self::State {
        Self::State::default()
    }
    /// So many rows come before those that the batch counts from.
    fn shift_rows(_batch: &mut Self::Columns, _rows: u64) {}
}

/// Gathers rows of one format.
#[derive(Clone, Debug)]
pub struct ColumnSink<F: RowFormat> {
    pub(super) format: F,
    pub(super) buffer: RowBuffer<F::Columns>,
    templates: Templates<F::Columns, F::Extra>,
    /// Records the rows of templates.
    recorder: Option<Box<ColumnSink<F>>>,
}

impl<F: RowFormat> Default for ColumnSink<F> {
    fn default() -> Self {
        ColumnSink::with_format(F::default(), true)
    }
}

impl<F: RowFormat> ColumnSink<F> {
    /// `with_offsets`: rows have the offset of their packet, if the format has a column for it.
    pub(super) fn with_format(format: F, with_offsets: bool) -> ColumnSink<F> {
        ColumnSink {
            format,
            buffer: RowBuffer {
                with_offsets,
                ..RowBuffer::default()
            },
            templates: Templates::default(),
            recorder: None,
        }
    }

    /// The next rows are of this space; the packet at `offset` showed it. An open run ends.
    #[inline(always)]
    fn enter_space(&mut self, space: u32, offset: u64) {
        if F::IS_LOCATED && space != self.buffer.space.now() {
            self.format.close(&mut self.buffer, RunEnd::Cut, offset);
            self.buffer.space.change(self.buffer.len, space);
        }
    }

    /// Copies the templates of transitions, up to the first that has none or for which there is no room. Returns how
    /// many.
    #[inline]
    fn copy_templates(&mut self, generation: u32, transitions: &[LoggedTransition]) -> usize {
        let room = self.buffer.columns.row_count();
        if !self.templates.are_of(generation) || room == 0 {
            return 0;
        }
        let mut columns = self.buffer.columns.slices();
        let mut at = self.buffer.len;
        let mut offset = self.buffer.offset;
        let mut copied = 0;
        for transition in transitions {
            let Some(template) = self.templates.get(transition.number) else {
                break;
            };
            if at + template.overwrites() >= room
                || self.format.open_instructions(&columns, at) >= MAX_RUN_INSTRUCTIONS / 2
            {
                break;
            }
            self.format.copy(&mut columns, at, &template, transition);
            at += template.rows - usize::from(F::HAS_OPEN_ROW);
            offset = transition.offset + u64::from(template.last_packet);
            copied += 1;
        }
        self.buffer.len = at;
        self.buffer.offset = offset;
        copied
    }

    /// Takes a transition that could not be copied, or prepares to copy it. Returns whether the transition is taken.
    #[cold]
    #[inline(never)]
    fn take_uncopied(&mut self, step: &impl TakenTransition) -> bool {
        let at = self.buffer.len;
        let open = self
            .format
            .open_instructions(&self.buffer.columns.slices(), at);
        // a run near its limit may end within the transition
        let is_near_limit = open >= MAX_RUN_INSTRUCTIONS / 2;
        let template = self.templates.get(step.id());
        let template = template.filter(|_| self.templates.are_of(step.generation()));
        let overwrites = template.map(|template| template.overwrites());
        if is_near_limit || overwrites.is_none() && !self.is_recorded(step) {
            step.replay(self);
            return true;
        }
        match overwrites {
            Some(rows) => self.buffer.reserve(rows + 1),
            None => self.record(step),
        }
        false
    }

    /// Returns whether a transition without a template is to have one.
    fn is_recorded(&mut self, step: &impl TakenTransition) -> bool {
        let recurs = F::RECORDS_AT_ONCE || !self.templates.is_first_time(step);
        recurs && !self.templates.is_full()
    }

    /// Makes the template of a transition.
    fn record(&mut self, step: &impl TakenTransition) {
        let mut recorder = self
            .recorder
            .take()
            .unwrap_or_else(|| Box::new(self.fresh()));
        recorder.resume_from(&SinkState {
            space: self.buffer.space.now(),
            ..SinkState::default()
        });
        step.replay_at((0, 1), &mut *recorder);
        let ColumnSink { format, buffer, .. } = &mut *recorder;
        format.flush(buffer);
        let rows = buffer.len + usize::from(F::HAS_OPEN_ROW);
        let extra = format.extra(buffer);
        self.templates
            .insert(step, &buffer.columns, rows, buffer.offset, extra);
        self.recorder = Some(recorder);
    }
}

/// What a sink knows of the flow before the rows in its buffer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SinkState<S> {
    format: S,
    in_tx: bool,
    /// The address space of the last instructions.
    space: u32,
}

impl<F: RowFormat> OrderedSink for ColumnSink<F> {
    type Batch = F::Columns;
    type State = SinkState<F::State>;
    const ROW_BYTES: usize = F::ROW_BYTES;

    fn fresh(&self) -> ColumnSink<F> {
        ColumnSink::with_format(self.format.fresh(), self.buffer.with_offsets)
    }

    fn set_limit(&mut self, limit: usize) {
        self.buffer.limit = limit;
    }

    fn is_empty(&self) -> bool {
        self.format.pending(&self.buffer) == 0
    }

    fn take_batch(&mut self) -> F::Columns {
        let finished = self.format.finished_rows(&self.buffer);
        let buffer = &mut self.buffer;
        let end = buffer.len + usize::from(F::HAS_OPEN_ROW);
        let end = end.min(buffer.columns.row_count());
        let mut batch = buffer.columns.take_front(finished, end - finished);
        buffer.len -= finished;
        self.format.complete(buffer, &mut batch);
        batch
    }

    fn state(&self) -> Self::State {
        SinkState {
            format: self.format.state(&self.buffer),
            in_tx: self.buffer.now_in_tx,
            space: self.buffer.space.now(),
        }
    }

    fn resume_from(&mut self, state: &Self::State) {
        let buffer = &mut self.buffer;
        buffer.len = 0;
        buffer.in_tx.clear();
        buffer.now_in_tx = state.in_tx;
        buffer.space.go_on_in(state.space);
        self.format.resume(buffer, &state.format);
    }

    fn later_state(state: &Self::State) -> Self::State {
        SinkState {
            format: F::later_state(&state.format),
            ..state.clone()
        }
    }

    fn rows(batch: &F::Columns) -> usize {
        batch.row_count()
    }

    fn shift_rows(batch: &mut F::Columns, rows: u64) {
        F::shift_rows(batch, rows);
    }
}

impl<F: RowFormat> Sink for ColumnSink<F> {
    const NEEDS_EDGES: bool = F::NEEDS_EDGES;
    const NEEDS: SinkNeeds = SinkNeeds::Order;
    const HAS_PACKET_OFFSETS: bool = F::IS_LOCATED;

    #[inline]
    fn packet(&mut self, offset: u64) {
        self.buffer.offset = offset;
    }

    #[inline]
    fn extend_run(&mut self, fragment: &RunFragment<'_>, time: u64) {
        self.enter_space(fragment.space, self.buffer.offset);
        self.format.append(&mut self.buffer, fragment, time);
    }

    #[inline]
    fn end_run(&mut self, end: RunEnd, offset: u64) {
        self.format.close(&mut self.buffer, end, offset);
    }

    #[inline]
    fn edge(&mut self, from: u64, to: u64, kind: RunEnd) {
        self.format.edge(&mut self.buffer, from, to, kind);
    }

    fn entered_space(&mut self, space: u32) {
        self.format.entered_space(&self.buffer, space);
    }

    fn event(&mut self, event: &Event) {
        let in_tx = event.in_tx().filter(|_| F::SPLITS_AT_TRANSACTIONS);
        if let Some(in_tx) = in_tx.filter(|&in_tx| in_tx != self.buffer.now_in_tx) {
            self.format
                .close(&mut self.buffer, RunEnd::Cut, event.offset);
            let buffer = &mut self.buffer;
            buffer.in_tx.resize(buffer.len, buffer.now_in_tx.into());
            buffer.now_in_tx = in_tx;
        }
        self.format.event(&self.buffer, event);
    }

    fn unknown_repetitions(&mut self, round: &[u64]) {
        self.format.unknown_repetitions(&mut self.buffer, round);
    }

    #[inline]
    fn take_transitions(&mut self, steps: &impl TakenTransitions) {
        let mut rest = steps.logged();
        if let Some(first) = rest.first() {
            self.enter_space(steps.space(), first.offset);
        }
        loop {
            self.format.flush(&mut self.buffer);
            let copied = self.copy_templates(steps.generation(), rest);
            rest = &rest[copied..];
            let Some((&first, more)) = rest.split_first() else {
                return;
            };
            if self.take_uncopied(&steps.transition(first)) {
                rest = more;
            }
        }
    }

    fn capacity(&self) -> Capacity {
        let pending = self.format.pending(&self.buffer);
        match F::IS_INSTRUCTION {
            true => Capacity::for_instructions(self.buffer.limit, pending),
            false => Capacity::for_rows(self.buffer.limit, pending),
        }
    }

    fn is_full(&self) -> bool {
        self.format.pending(&self.buffer) >= self.buffer.limit
    }
}
