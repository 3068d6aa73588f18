//! The base of all sinks with results in order: it appends rows to columns.
//!
//! A [`RowFormat`] defines a row. Transitions that recur are not replayed: [`ColumnSink`] records their rows once, by
//! replaying the transition into a second sink of the same format, and copies these rows from then on
//! ([`RowTemplates`]).

use std::fmt::Debug;

use super::buffer_pool::{batch_capacity, copy_to_buffer};
use super::column_set::ColumnSet;
use crate::event::Event;
use crate::sink::{
    LoggedTransition, RunEnd, RunFragment, Sink, SinkCapacity, SinkNeeds, TakenTransition,
    TakenTransitions, MAX_RUN_INSTRUCTIONS,
};

/// Rows for which a buffer has room at first.
const FIRST_ROWS: usize = 1 << 10;

/// The rows of a sink.
#[derive(Clone, Debug, Default)]
pub struct RowBuffer<C> {
    /// With room after the rows in use, and for a whole block where a template is copied.
    pub(super) columns: C,
    /// Rows that have ended. For a format with an open row, that one is the next.
    pub(super) len: usize,
    /// Makes decoding pause when `limit` rows wait.
    limit: usize,
    with_offsets: bool,
    /// Offset of the packet that is being decoded.
    pub(super) offset: u64,
    pub(super) space: ChangingColumn<u32>,
    pub(super) cr3: ChangingColumn<u64>,
    /// Of the rows up to the last one at which `now_in_tx` changed.
    in_tx: Vec<u8>,
    now_in_tx: bool,
}

impl<C: ColumnSet> RowBuffer<C> {
    /// Makes room for `rows` more.
    #[inline(always)]
    pub(super) fn reserve_rows(&mut self, rows: usize) {
        if self.len + rows > self.columns.row_count() {
            self.grow_columns(self.len + rows);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow_columns(&mut self, rows: usize) {
        let rows = batch_capacity(rows, FIRST_ROWS, self.limit);
        self.columns.resize_columns(rows, self.with_offsets);
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
    /// The state of the format before the rows in the buffer.
    type State: Clone + Debug + Default + PartialEq + Send + Sync;
    const NEEDS_EDGES: bool = false;
    /// Rows have times, packet offsets, and one address space each.
    const IS_LOCATED: bool = false;
    /// A row ends where a transaction begins or ends.
    const SPLITS_AT_TRANSACTIONS: bool = false;
    /// Rows have CR3, and end where it changes.
    const HAS_CR3: bool = false;
    /// The row after the last one that ended is being written: it is a run, and exists if it has instructions.
    const HAS_OPEN_ROW: bool = false;
    /// A row is an instruction.
    const IS_INSTRUCTION: bool = false;
    /// Transitions are recorded when they are taken for the first time: to replay one is slow.
    const RECORDS_AT_ONCE: bool = false;
    /// Approximate bytes of a row in a batch.
    const ROW_BYTES: usize;

    /// Another format for the same results.
    fn new_format_of_same_kind(&self) -> Self {
        Self::default()
    }

    fn append_fragment(
        &mut self,
        buffer: &mut RowBuffer<Self::Columns>,
        fragment: &RunFragment<'_>,
        time: u64,
    );
    fn close_run(&mut self, _buffer: &mut RowBuffer<Self::Columns>, _end: RunEnd, _offset: u64) {}
    /// Writes rows that wait for the next call.
    fn flush_waiting_rows(&mut self, _buffer: &mut RowBuffer<Self::Columns>) {}
    fn append_edge(
        &mut self,
        _buffer: &mut RowBuffer<Self::Columns>,
        _from: u64,
        _to: u64,
        _kind: RunEnd,
    ) {
    }
    fn note_entered_space(&mut self, _buffer: &RowBuffer<Self::Columns>, _space: u32) {}
    fn append_event(&mut self, _buffer: &RowBuffer<Self::Columns>, _event: &Event) {}
    fn append_unknown_repetitions(
        &mut self,
        _buffer: &mut RowBuffer<Self::Columns>,
        _loop_body: &[u64],
    ) {
    }

    /// Rows that can be taken; those after them belong to a run that is not complete.
    fn finished_rows(&self, buffer: &RowBuffer<Self::Columns>) -> usize {
        buffer.len
    }

    /// Rows and events that can be taken.
    fn rows_and_events_to_take(&self, buffer: &RowBuffer<Self::Columns>) -> usize {
        self.finished_rows(buffer)
    }

    /// Adds to a batch the columns that the buffer does not have. The rows of the batch have left the buffer.
    fn add_missing_columns(
        &mut self,
        _buffer: &mut RowBuffer<Self::Columns>,
        _batch: &mut Self::Columns,
    ) {
    }

    /// Instructions of the open run; the next row is at `at`.
    fn open_run_instruction_count(
        &self,
        _columns: &<Self::Columns as ColumnSet>::Slices<'_>,
        _at: usize,
    ) -> u32 {
        0
    }

    /// What a template keeps of the transition that this format and this buffer have recorded.
    fn template_data_of_format(&self, buffer: &RowBuffer<Self::Columns>) -> Self::Extra;

    /// Takes a transition: copies its template to the rows from `at` on and joins the first row to an open run.
    fn copy_template_rows(
        &mut self,
        columns: &mut <Self::Columns as ColumnSet>::Slices<'_>,
        at: usize,
        template: &RowTemplate<'_, Self::Columns, Self::Extra>,
        transition: &LoggedTransition,
    );

    fn open_row_state(&self, buffer: &RowBuffer<Self::Columns>) -> Self::State;
    /// Goes on from a state with an empty buffer.
    fn resume_from_format_state(
        &mut self,
        buffer: &mut RowBuffer<Self::Columns>,
        state: &Self::State,
    );
    /// Returns what is known of the state somewhat later in the stream.
    fn known_format_state_later(_state: &Self::State) -> Self::State {
        Self::State::default()
    }
    /// Renumbers a batch: `rows` rows precede it.
    fn renumber_rows(_batch: &mut Self::Columns, _rows: u64) {}
}

/// Gathers rows of one format.
#[derive(Clone, Debug)]
pub struct ColumnSink<F: RowFormat> {
    pub(super) format: F,
    pub(super) buffer: RowBuffer<F::Columns>,
    templates: RowTemplates<F::Columns, F::Extra>,
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
            templates: RowTemplates::default(),
            recorder: None,
        }
    }

    /// The next rows are of this space; the packet at `offset` showed it. An open run ends.
    #[inline(always)]
    fn enter_space(&mut self, space: u32, offset: u64) {
        if F::IS_LOCATED && space != self.buffer.space.next_value() {
            self.format.close_run(&mut self.buffer, RunEnd::Cut, offset);
            self.buffer.space.set_value_from_row(self.buffer.len, space);
        }
    }

    /// Copies the templates of transitions, up to the first that has none or for which there is no room. Returns how
    /// many.
    #[inline]
    fn copy_templates(&mut self, generation: u32, transitions: &[LoggedTransition]) -> usize {
        let room = self.buffer.columns.row_count();
        if !self.templates.are_of_generation(generation) || room == 0 {
            return 0;
        }
        let mut columns = self.buffer.columns.column_slices();
        let mut at = self.buffer.len;
        let mut offset = self.buffer.offset;
        let mut copied = 0;
        for transition in transitions {
            let Some(template) = self.templates.template_of_transition(transition.number) else {
                break;
            };
            if at + template.rows_overwritten_by_copy() >= room
                || self.format.open_run_instruction_count(&columns, at) >= MAX_RUN_INSTRUCTIONS / 2
            {
                break;
            }
            self.format
                .copy_template_rows(&mut columns, at, &template, transition);
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
    fn take_uncopied(&mut self, transition: &impl TakenTransition) -> bool {
        let at = self.buffer.len;
        let open = self
            .format
            .open_run_instruction_count(&self.buffer.columns.column_slices(), at);
        // a run near its limit may end within the transition
        let is_near_limit = open >= MAX_RUN_INSTRUCTIONS / 2;
        let template = self
            .templates
            .template_of_transition(transition.transition_id());
        let template = template.filter(|_| {
            self.templates
                .are_of_generation(transition.transition_generation())
        });
        let overwrites = template.map(|template| template.rows_overwritten_by_copy());
        if is_near_limit || overwrites.is_none() && !self.should_record_template(transition) {
            transition.replay_to_sink(self);
            return true;
        }
        match overwrites {
            Some(rows) => self.buffer.reserve_rows(rows + 1),
            None => self.record_template(transition),
        }
        false
    }

    /// Returns whether a transition without a template is to have one.
    fn should_record_template(&mut self, transition: &impl TakenTransition) -> bool {
        let recurs = F::RECORDS_AT_ONCE || !self.templates.is_first_time(transition);
        recurs && !self.templates.is_full()
    }

    /// Makes the template of a transition.
    fn record_template(&mut self, transition: &impl TakenTransition) {
        let mut recorder = self
            .recorder
            .take()
            .unwrap_or_else(|| Box::new(self.new_empty_sink()));
        recorder.resume_from_sink_state(&SinkState {
            space: self.buffer.space.next_value(),
            ..SinkState::default()
        });
        transition.replay_with_times((0, 1), &mut *recorder);
        let ColumnSink { format, buffer, .. } = &mut *recorder;
        format.flush_waiting_rows(buffer);
        let rows = buffer.len + usize::from(F::HAS_OPEN_ROW);
        let extra = format.template_data_of_format(buffer);
        self.templates
            .insert_template(transition, &buffer.columns, rows, buffer.offset, extra);
        self.recorder = Some(recorder);
    }
}

/// The state of a sink before the rows in its buffer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SinkState<S> {
    format: S,
    in_tx: bool,
    /// The address space of the last instructions.
    space: u32,
    /// CR3 of the next instruction.
    cr3: u64,
}

impl<F: RowFormat> OrderedSink for ColumnSink<F> {
    type Batch = F::Columns;
    type State = SinkState<F::State>;
    const ROW_BYTES: usize = F::ROW_BYTES;

    fn new_empty_sink(&self) -> ColumnSink<F> {
        ColumnSink::with_format(
            self.format.new_format_of_same_kind(),
            self.buffer.with_offsets,
        )
    }

    fn set_row_limit(&mut self, limit: usize) {
        self.buffer.limit = limit;
    }

    fn is_empty(&self) -> bool {
        self.format.rows_and_events_to_take(&self.buffer) == 0
    }

    fn take_batch(&mut self) -> F::Columns {
        let finished = self.format.finished_rows(&self.buffer);
        let buffer = &mut self.buffer;
        let end = buffer.len + usize::from(F::HAS_OPEN_ROW);
        let end = end.min(buffer.columns.row_count());
        let mut batch = buffer.columns.take_first_rows(finished, end - finished);
        buffer.len -= finished;
        self.format.add_missing_columns(buffer, &mut batch);
        batch
    }

    fn sink_state(&self) -> Self::State {
        SinkState {
            format: self.format.open_row_state(&self.buffer),
            in_tx: self.buffer.now_in_tx,
            space: self.buffer.space.next_value(),
            cr3: self.buffer.cr3.next_value(),
        }
    }

    fn resume_from_sink_state(&mut self, state: &Self::State) {
        let buffer = &mut self.buffer;
        buffer.len = 0;
        buffer.in_tx.clear();
        buffer.now_in_tx = state.in_tx;
        buffer.space.restart_with_value(state.space);
        buffer.cr3.restart_with_value(state.cr3);
        self.format.resume_from_format_state(buffer, &state.format);
    }

    fn known_sink_state_later(state: &Self::State) -> Self::State {
        SinkState {
            format: F::known_format_state_later(&state.format),
            ..state.clone()
        }
    }

    fn batch_row_count(batch: &F::Columns) -> usize {
        batch.row_count()
    }

    fn renumber_rows(batch: &mut F::Columns, rows: u64) {
        F::renumber_rows(batch, rows);
    }
}

impl<F: RowFormat> Sink for ColumnSink<F> {
    const NEEDS_EDGES: bool = F::NEEDS_EDGES;
    const NEEDS: SinkNeeds = SinkNeeds::Order;
    const HAS_PACKET_OFFSETS: bool = F::IS_LOCATED;

    #[inline]
    fn begin_packet(&mut self, offset: u64) {
        self.buffer.offset = offset;
    }

    #[inline]
    fn extend_run(&mut self, fragment: &RunFragment<'_>, time: u64) {
        self.enter_space(fragment.space, self.buffer.offset);
        self.format
            .append_fragment(&mut self.buffer, fragment, time);
    }

    #[inline]
    fn end_run(&mut self, end: RunEnd, offset: u64) {
        self.format.close_run(&mut self.buffer, end, offset);
    }

    #[inline]
    fn add_edge(&mut self, from: u64, to: u64, kind: RunEnd) {
        self.format.append_edge(&mut self.buffer, from, to, kind);
    }

    fn note_entered_space(&mut self, space: u32) {
        self.format.note_entered_space(&self.buffer, space);
    }

    fn add_event(&mut self, event: &Event) {
        let in_tx = event
            .is_in_transaction()
            .filter(|_| F::SPLITS_AT_TRANSACTIONS);
        if let Some(in_tx) = in_tx.filter(|&in_tx| in_tx != self.buffer.now_in_tx) {
            self.format
                .close_run(&mut self.buffer, RunEnd::Cut, event.offset);
            let buffer = &mut self.buffer;
            buffer.in_tx.resize(buffer.len, buffer.now_in_tx.into());
            buffer.now_in_tx = in_tx;
        }
        if let Some(cr3) = event.cr3().filter(|_| F::HAS_CR3) {
            if cr3 != self.buffer.cr3.next_value() {
                self.format
                    .close_run(&mut self.buffer, RunEnd::Cut, event.offset);
                self.buffer.cr3.set_value_from_row(self.buffer.len, cr3);
            }
        }
        self.format.append_event(&self.buffer, event);
    }

    fn note_unknown_repetitions(&mut self, round: &[u64]) {
        self.format
            .append_unknown_repetitions(&mut self.buffer, round);
    }

    #[inline]
    fn take_transitions(&mut self, transitions: &impl TakenTransitions) {
        let mut rest = transitions.logged_transitions();
        if let Some(first) = rest.first() {
            self.enter_space(transitions.address_space_index(), first.offset);
        }
        loop {
            self.format.flush_waiting_rows(&mut self.buffer);
            let copied = self.copy_templates(transitions.transition_generation(), rest);
            rest = &rest[copied..];
            let Some((&first, more)) = rest.split_first() else {
                return;
            };
            if self.take_uncopied(&transitions.resolve_logged(first)) {
                rest = more;
            }
        }
    }

    fn remaining_capacity(&self) -> SinkCapacity {
        let pending = self.format.rows_and_events_to_take(&self.buffer);
        match F::IS_INSTRUCTION {
            true => SinkCapacity::for_instructions(self.buffer.limit, pending),
            false => SinkCapacity::for_rows(self.buffer.limit, pending),
        }
    }

    fn is_full(&self) -> bool {
        self.format.rows_and_events_to_take(&self.buffer) >= self.buffer.limit
    }
}

/// A column that is kept as changes, since most streams have one value: the address space of rows, or CR3.
///
/// A row has one value. The value of the rows before the first change is 0; a stream without a change has no column.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangingColumn<T> {
    /// Of the first row.
    first: T,
    now: T,
    changes: Vec<(usize, T)>,
}

impl<T: Copy + Default + PartialEq> ChangingColumn<T> {
    /// The value of the next row.
    #[inline(always)]
    pub fn next_value(&self) -> T {
        self.now
    }

    /// Sets the value of the rows from `row`, the next one, on.
    #[cold]
    pub fn set_value_from_row(&mut self, row: usize, value: T) {
        self.now = value;
        match self.changes.last_mut() {
            Some((last, to)) if *last == row => *to = value,
            _ => self.changes.push((row, value)),
        }
    }

    /// Returns the values of the `rows` rows collected so far, and starts a new column. Empty if all are 0.
    pub fn take_values(&mut self, rows: usize) -> Vec<T> {
        let mut found = Vec::new();
        if self.first != T::default() || !self.changes.is_empty() {
            let mut value = self.first;
            for (row, next) in self.changes.drain(..) {
                found.resize(row.min(rows), value);
                value = next;
            }
            found.resize(rows, value);
        }
        self.first = self.now;
        found
    }

    /// Drops all rows; the next one has this value.
    pub fn restart_with_value(&mut self, value: T) {
        self.first = value;
        self.now = value;
        self.changes.clear();
    }
}

/// A sink that collects results in the order of the stream, to be taken in batches.
pub trait OrderedSink: Sink + Send {
    type Batch: Send;
    /// The state of the sink before the results that it has collected: where two sinks have equal states, and their
    /// decoders, too, equal results follow.
    type State: Clone + PartialEq + Default + Debug + Send + Sync;

    /// Approximate bytes of a row in a batch.
    const ROW_BYTES: usize;

    /// Returns an empty sink for the same results.
    fn new_empty_sink(&self) -> Self;
    /// Makes decoding pause when `limit` rows wait.
    fn set_row_limit(&mut self, limit: usize);
    /// Returns whether there are no results to take.
    fn is_empty(&self) -> bool;
    /// Takes the results that were collected.
    fn take_batch(&mut self) -> Self::Batch;
    fn sink_state(&self) -> Self::State;
    /// Drops all results, and continues from this state.
    fn resume_from_sink_state(&mut self, state: &Self::State);
    /// Returns what is known of the state somewhat later in the stream.
    fn known_sink_state_later(state: &Self::State) -> Self::State;
    /// Returns the number of rows in a batch.
    fn batch_row_count(batch: &Self::Batch) -> usize;
    /// Renumbers a batch: `rows` rows precede the state that the sink continued from.
    fn renumber_rows(_batch: &mut Self::Batch, _rows: u64) {}
}

/// Limit of stored blocks: further transitions are replayed each time.
const MAX_BLOCKS: usize = 1 << 19;

/// Values of `TemplateEntry::first` for a transition that was never taken, and for one that was taken once and has no
/// template.
const NOT_MET: u32 = u32::MAX;
const MET_ONCE: u32 = u32::MAX - 1;

/// The rows of one transition, without its blocks.
#[derive(Clone, Copy, Debug)]
struct TemplateEntry<E> {
    /// Index of the first block, `NOT_MET`, or `MET_ONCE`.
    first: u32,
    rows: u32,
    early_rows: u32,
    last_packet: u8,
    extra: E,
}

/// The rows of one transition.
pub struct RowTemplate<'a, C: ColumnSet, E> {
    blocks: &'a [C::Block],
    /// The number of rows, with the one that the transition leaves unfinished.
    pub(super) rows: usize,
    /// Rows that begin before the first branch of the transition.
    early_rows: usize,
    /// Where the last packet of the transition begins, in bytes after the first.
    pub(super) last_packet: u8,
    /// Other data of the format.
    pub(super) extra: E,
}

impl<C: ColumnSet, E> RowTemplate<'_, C, E> {
    /// The number of rows that `copy_to` overwrites.
    #[inline(always)]
    pub(super) fn rows_overwritten_by_copy(&self) -> usize {
        self.blocks.len() * C::BLOCK
    }

    /// Writes all rows from `at` on. Rows after those of the template, up to the end of a block, have no meaning.
    #[inline(always)]
    pub(super) fn copy_to(
        &self,
        columns: &mut C::Slices<'_>,
        at: usize,
        transition: &LoggedTransition,
    ) {
        let (before, after) = transition.times;
        let mut to = at;
        for block in self.blocks {
            C::copy_block(columns, to, block, transition.offset, after);
            to += C::BLOCK;
        }
        if before != after && self.early_rows != 0 {
            C::set_row_times(columns, at..at + self.early_rows, before);
        }
    }
}

/// The templates of all transitions of one generation, by the number of the transition.
#[derive(Clone, Debug)]
pub(super) struct RowTemplates<C: ColumnSet, E> {
    generation: u32,
    entries: Vec<TemplateEntry<E>>,
    blocks: Vec<C::Block>,
}

impl<C: ColumnSet, E> Default for RowTemplates<C, E> {
    fn default() -> Self {
        RowTemplates {
            generation: 0,
            entries: Vec::new(),
            blocks: Vec::new(),
        }
    }
}

impl<C: ColumnSet, E: Copy + Default> RowTemplates<C, E> {
    /// Returns whether these are the templates of `generation`.
    pub fn are_of_generation(&self, generation: u32) -> bool {
        self.generation == generation
    }

    #[inline(always)]
    pub fn template_of_transition(&self, number: u32) -> Option<RowTemplate<'_, C, E>> {
        let entry = self.entries.get(number as usize)?;
        let (first, rows) = (entry.first as usize, entry.rows as usize);
        Some(RowTemplate {
            blocks: self.blocks.get(first..first + rows.div_ceil(C::BLOCK))?,
            rows,
            early_rows: entry.early_rows as usize,
            last_packet: entry.last_packet,
            extra: entry.extra,
        })
    }

    pub fn is_full(&self) -> bool {
        self.blocks.len() > MAX_BLOCKS
    }

    /// Returns whether a transition that has no template is taken for the first time. Many are taken once, and to keep
    /// a template costs more than to replay the transition.
    pub fn is_first_time(&mut self, transition: &impl TakenTransition) -> bool {
        let entry = self.entry_of_transition(transition);
        let is_first = entry.first == NOT_MET;
        if is_first {
            entry.first = MET_ONCE;
        }
        is_first
    }

    /// Keeps the first `rows` rows of `columns` as those of a transition whose last packet has this offset.
    pub fn insert_template(
        &mut self,
        transition: &impl TakenTransition,
        columns: &C,
        rows: usize,
        last_offset: u64,
        extra: E,
    ) {
        let _ = self.entry_of_transition(transition);
        let first = self.blocks.len() as u32;
        self.blocks
            .extend(columns.row_blocks(rows, transition.first_packet_offset()));
        *self.entry_of_transition(transition) = TemplateEntry {
            first,
            rows: rows as u32,
            early_rows: columns.leading_rows_without_time(rows) as u32,
            last_packet: last_offset.wrapping_sub(transition.first_packet_offset()) as u8,
            extra,
        };
    }

    /// The entry of a transition. The entries of another generation are dropped.
    fn entry_of_transition(&mut self, transition: &impl TakenTransition) -> &mut TemplateEntry<E> {
        if self.generation != transition.transition_generation() {
            self.entries.clear();
            self.blocks.clear();
            self.generation = transition.transition_generation();
        }
        let number = transition.transition_id() as usize;
        if number >= self.entries.len() {
            let none = TemplateEntry {
                first: NOT_MET,
                rows: 0,
                early_rows: 0,
                last_packet: 0,
                extra: E::default(),
            };
            self.entries.resize(number + 1, none);
        }
        &mut self.entries[number]
    }
}
