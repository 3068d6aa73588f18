//! `StreamDecoder`: from one PT stream and its code to what ran, as columns.
//!
//! The first request for results makes a decoder with the sink that gathers them; other results cannot be requested
//! then (`State`). Results in order come from one thread or from several (`OrderedDecoder`), sums from any number.
//! At the end the decoder is dropped, and its counts and ledger are kept (`FinishedDecoder`).

use std::any::{Any, TypeId};
use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};
use rtit_flow::{
    AdditiveDecoder, AdditiveSink, AddressSpaces, BlockIdSink, BlockTable, BranchSink,
    BufferPoolGuard, CountingSink, CoverageLedger, ErrorClass, EventKind, HashedRunSink,
    IndexedBranchSink, InstructionSink, OrderedDecoder, OrderedSink, ParallelConfig, PeriodTotals,
    RunEnd, RunSink, Settings, Sink, StreamCounts, TimingSample, Totals,
};
use rtit_listing::{
    CallLog, CallSink, FunctionCountSink, ListingSink, ProcessCalls, SwitchPermit, Wait,
};

use crate::arguments::{BoundedItems, OsText};
use crate::columns::Column;
use crate::decoder_input::{decoder_settings_from_keywords, DecoderCode, DecoderStream, Schedule};
use crate::errors::{check_errors, lock_exclusively, PendingErrors};
use crate::image::Space;
use crate::listing::Listing;
use crate::results::{
    blocks_dict, branches_dict, counts_dict, instructions_dict, ledger_rows, rows_dict,
    samples_dict, totals_dict, LedgerRow,
};
use crate::symbols::Names;

/// Signals are handled after this many bytes of a stream.
const SLICE_BYTES: usize = 1 << 20;

/// Decoding pauses when more timing samples wait; those of a slice are added.
const MAX_TIMING_SAMPLES: usize = 1 << 16;

type Serial<S> = rtit_flow::StreamDecoder<DecoderStream, S>;

/// How far the calls of a thread have been followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CallProgress {
    Proceeds,
    /// The thread may switch stacks at this time. The other threads come first, up to there.
    Waits(Wait, u64),
    Finished,
}

/// What a decoder reports beside its results.
struct DecoderProgress<'a> {
    counts: StreamCounts,
    ledger: &'a CoverageLedger,
    /// How many scheduling intervals have begun.
    intervals_begun: usize,
    /// The intervals in which anything ran.
    visited_intervals: &'a [usize],
}

trait DynamicDecoder: AsAnyDecoder + Send + 'static {
    fn decoder_progress(&self) -> DecoderProgress<'_>;

    fn take_timing_samples(&mut self) -> Vec<TimingSample> {
        Vec::new()
    }
}

/// Casts to the type of a decoder.
trait AsAnyDecoder {
    fn as_any(&mut self) -> &mut dyn Any;
}

impl<T: Any> AsAnyDecoder for T {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl<S: Sink + Send + 'static> DynamicDecoder for Serial<S> {
    fn decoder_progress(&self) -> DecoderProgress<'_> {
        DecoderProgress {
            counts: self.counts(),
            ledger: self.coverage_ledger(),
            intervals_begun: self.begun_interval_count(),
            visited_intervals: self.visited_intervals(),
        }
    }

    fn take_timing_samples(&mut self) -> Vec<TimingSample> {
        self.take_timing_samples()
    }
}

impl<S: AdditiveSink + 'static> DynamicDecoder for AdditiveDecoder<DecoderStream, S> {
    fn decoder_progress(&self) -> DecoderProgress<'_> {
        DecoderProgress {
            counts: self.counts(),
            ledger: self.coverage_ledger(),
            intervals_begun: 0,
            visited_intervals: self.visited_intervals(),
        }
    }
}

impl<S: OrderedSink + 'static> DynamicDecoder for OrderedDecoder<DecoderStream, S> {
    fn decoder_progress(&self) -> DecoderProgress<'_> {
        DecoderProgress {
            counts: self.counts(),
            ledger: self.coverage_ledger(),
            intervals_begun: 0,
            visited_intervals: &[],
        }
    }
}

/// What is kept of a decoder at the end. There may be thousands of streams, and a decoder's code cache is large.
struct FinishedDecoder {
    counts: StreamCounts,
    ledger: CoverageLedger,
    intervals_begun: usize,
    visited_intervals: Vec<usize>,
    timing_samples: Vec<TimingSample>,
}

impl DynamicDecoder for FinishedDecoder {
    fn decoder_progress(&self) -> DecoderProgress<'_> {
        DecoderProgress {
            counts: self.counts.clone(),
            ledger: &self.ledger,
            intervals_begun: self.intervals_begun,
            visited_intervals: &self.visited_intervals,
        }
    }

    fn take_timing_samples(&mut self) -> Vec<TimingSample> {
        std::mem::take(&mut self.timing_samples)
    }
}

struct DecoderInput {
    stream: DecoderStream,
    spaces: AddressSpaces,
    settings: Settings,
}

impl DecoderInput {
    fn into_serial_decoder<S: Sink>(self, sink: S) -> Serial<S> {
        Serial::with_sink(self.stream, self.spaces, &self.settings, sink)
    }
}

struct StreamDecoderState {
    /// None once a decoder was made of it.
    input: Option<Box<DecoderInput>>,
    /// The decoder, at the end a `FinishedDecoder`.
    decoder: Option<Box<dyn DynamicDecoder>>,
    /// The type of the decoder, which determines the results.
    decoder_type: Option<TypeId>,
    /// Keeps the memory of columns for the next batch.
    pool: Option<BufferPoolGuard>,
}

impl StreamDecoderState {
    /// The decoder of type `D`, which `make` makes if there is none; None at the end. ValueError if there is another.
    fn decoder_of_type<D: DynamicDecoder>(
        &mut self,
        make: impl FnOnce(DecoderInput) -> PyResult<D>,
    ) -> PyResult<Option<&mut D>> {
        if let Some(input) = self.input.take() {
            self.decoder = Some(Box::new(make(*input)?));
            self.decoder_type = Some(TypeId::of::<D>());
            self.pool = Some(BufferPoolGuard::new());
        }
        if self.decoder_type != Some(TypeId::of::<D>()) {
            return Err(other_results_requested_error());
        }
        let decoder = self.decoder.as_deref_mut();
        Ok(decoder.and_then(|decoder| decoder.as_any().downcast_mut()))
    }

    /// The decoder of lines, after `start_listing`.
    fn serial_listing_decoder(&mut self) -> PyResult<Option<&mut Serial<ListingSink>>> {
        if self.input.is_some() {
            return Err(PyValueError::new_err("start_listing was not called"));
        }
        self.decoder_of_type(|_| Err(other_results_requested_error()))
    }

    fn finish_decoder(&mut self) {
        self.pool = None;
        if let Some(mut decoder) = self.decoder.take() {
            let timing_samples = decoder.take_timing_samples();
            let progress = decoder.decoder_progress();
            self.decoder = Some(Box::new(FinishedDecoder {
                counts: progress.counts,
                ledger: progress.ledger.clone(),
                intervals_begun: progress.intervals_begun,
                visited_intervals: progress.visited_intervals.to_vec(),
                timing_samples,
            }));
        }
    }
}

fn other_results_requested_error() -> PyErr {
    PyValueError::new_err("other results of this decoder were requested before")
}

/// Whether results must be taken; timing samples also come without rows.
fn must_take_results<S: Sink>(decoder: &mut Serial<S>) -> bool {
    decoder.sink_mut().is_full() || decoder.waiting_sample_count() > MAX_TIMING_SAMPLES
}

#[pyclass(frozen, module = "rtit._core")]
pub struct StreamDecoder {
    state: Mutex<StreamDecoderState>,
    errors: PendingErrors,
    parallel_config: ParallelConfig,
    /// Whether several threads decode results in order.
    is_parallel: bool,
    block_table: BlockTable,
}

impl StreamDecoder {
    fn lock_state(&self) -> PyResult<MutexGuard<'_, StreamDecoderState>> {
        lock_exclusively(&self.state, "Trace")
    }

    /// None before the first request.
    fn progress_value<T>(&self, get: impl FnOnce(DecoderProgress<'_>) -> T) -> PyResult<Option<T>> {
        let state = self.lock_state()?;
        Ok(state
            .decoder
            .as_deref()
            .map(|decoder| get(decoder.decoder_progress())))
    }

    /// About `max_rows` more rows; None at the end. With `in_interval` all are of one scheduling interval.
    fn next_batch<S: OrderedSink + 'static>(
        &self,
        py: Python<'_>,
        max_rows: usize,
        in_interval: bool,
        sink: impl FnOnce(&Settings) -> S,
    ) -> PyResult<Option<S::Batch>> {
        let mut state = self.lock_state()?;
        let batch = if self.is_parallel {
            let config = self.parallel_config;
            let decoder = state.decoder_of_type(|input| {
                let (settings, sink) = (&input.settings, sink(&input.settings));
                Ok(OrderedDecoder::new(
                    input.stream,
                    input.spaces,
                    settings,
                    config,
                    sink,
                ))
            })?;
            let Some(decoder) = decoder else {
                return Ok(None);
            };
            self.next_parallel_batch(py, decoder, max_rows)?
        } else {
            let decoder = state.decoder_of_type(|input| {
                let sink = sink(&input.settings);
                Ok(input.into_serial_decoder(sink))
            })?;
            let Some(decoder) = decoder else {
                return Ok(None);
            };
            decoder.sink_mut().set_row_limit(max_rows.max(1));
            self.decode_serially(py, decoder, in_interval)?;
            let is_end = decoder.sink_mut().is_empty() && decoder.is_finished();
            (!is_end).then(|| py.detach(|| decoder.sink_mut().take_batch()))
        };
        if batch.is_none() {
            state.finish_decoder();
        }
        Ok(batch)
    }

    fn next_parallel_batch<S: OrderedSink>(
        &self,
        py: Python<'_>,
        decoder: &mut OrderedDecoder<DecoderStream, S>,
        max_rows: usize,
    ) -> PyResult<Option<S::Batch>> {
        loop {
            if let Some(batch) = decoder.next_batch() {
                return Ok(Some(batch));
            }
            if decoder.is_finished() {
                return Ok(None);
            }
            // The window has all bytes of a round, so that no round ends before its last segment.
            let (bytes, position) = (decoder.round_bytes(), decoder.position());
            decoder.stream_mut().set_min_bytes(py, bytes, position)?;
            py.detach(|| decoder.decode_round(max_rows));
            if decoder.needs_more_bytes() {
                let position = decoder.position();
                decoder.stream_mut().advance_window(py, position)?;
            }
            check_errors(py, &self.errors)?;
        }
    }

    /// Decodes without the GIL until the sink is full, with `in_interval` at most to the end of a scheduling interval.
    fn decode_serially<S: Sink + Send>(
        &self,
        py: Python<'_>,
        decoder: &mut Serial<S>,
        in_interval: bool,
    ) -> PyResult<()> {
        loop {
            let has_more = !must_take_results(decoder)
                && py.detach(|| decoder.decode_up_to_bytes(SLICE_BYTES));
            if has_more && decoder.needs_next_window() {
                let position = decoder.position();
                decoder.stream_mut().advance_window(py, position)?;
            }
            check_errors(py, &self.errors)?;
            if must_take_results(decoder)
                || decoder.is_finished()
                || in_interval && decoder.is_paused()
            {
                return Ok(());
            }
        }
    }

    /// Follows the calls of a thread of a process, or of a processor, until its sink is full. `permit`: for one that
    /// waits. `sink`: its sink.
    pub fn follow_calls<L: CallLog + Send + 'static>(
        &self,
        py: Python<'_>,
        process: &mut Option<Box<ProcessCalls<L>>>,
        permit: SwitchPermit,
        sink: impl FnOnce() -> CallSink<L>,
    ) -> PyResult<CallProgress> {
        let mut state = self.lock_state()?;
        let decoder = state.decoder_of_type(|input| Ok(input.into_serial_decoder(sink())))?;
        let (Some(decoder), Some(calls)) = (decoder, process.take()) else {
            return Err(other_results_requested_error());
        };
        decoder.sink_mut().give_process(calls, permit);
        self.decode_serially(py, decoder, false)?;
        let is_at_end = decoder.is_finished();
        let sink = decoder.sink_mut();
        let progress = match sink.wait() {
            Some((wait, time)) => CallProgress::Waits(wait, time),
            None if is_at_end => CallProgress::Finished,
            None => CallProgress::Proceeds,
        };
        if progress == CallProgress::Finished {
            sink.end_thread();
        }
        *process = sink.take_process();
        if progress == CallProgress::Finished {
            state.finish_decoder();
        }
        Ok(progress)
    }

    /// Makes a decoder that adds up results, if there is none, and decodes to the end without the GIL.
    fn decode_additively<'a, S: AdditiveSink + 'static>(
        &self,
        py: Python<'_>,
        state: &'a mut StreamDecoderState,
    ) -> PyResult<Option<&'a mut AdditiveDecoder<DecoderStream, S>>> {
        let config = self.parallel_config;
        let decoder = state.decoder_of_type(|input| {
            let mut stream = input.stream;
            if config.threads > 1 {
                stream.set_min_bytes(py, config.round_bytes(), 0)?;
            }
            let (spaces, settings) = (input.spaces, input.settings);
            Ok(AdditiveDecoder::<DecoderStream, S>::new(
                stream, spaces, &settings, config,
            ))
        })?;
        let Some(decoder) = decoder else {
            return Ok(None);
        };
        while py.detach(|| decoder.decode_round()) {
            if decoder.needs_more_bytes() {
                let position = decoder.position();
                decoder.stream_mut().advance_window(py, position)?;
            }
            check_errors(py, &self.errors)?;
        }
        check_errors(py, &self.errors)?;
        Ok(Some(decoder))
    }
}

#[pymethods]
impl StreamDecoder {
    #[new]
    #[pyo3(signature = (stream, space, *, spaces = None, schedule = None, kernel = None, guest = None, jobs = 1,
        **keywords))]
    #[allow(clippy::too_many_arguments)] // each is a keyword of the Python class
    fn new(
        stream: &Bound<'_, PyAny>,
        space: &Bound<'_, Space>,
        spaces: Option<&Bound<'_, PyDict>>,
        schedule: Option<Schedule>,
        kernel: Option<&Bound<'_, Space>>,
        guest: Option<&Bound<'_, Space>>,
        jobs: usize,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<StreamDecoder> {
        let settings = decoder_settings_from_keywords(keywords)?;
        let mut code = DecoderCode::new(space.get(), spaces)?;
        if let Some(schedule) = &schedule {
            code.set_schedule(space, schedule)?;
        }
        code.set_kernel_and_guest_code(kernel.map(Bound::get), guest.map(Bound::get));
        let spaces = code.spaces;
        let parallel_config = ParallelConfig::for_threads(jobs);
        let can_divide = OrderedDecoder::<DecoderStream, RunSink>::can_divide;
        let is_parallel = can_divide(&spaces, &settings, &parallel_config);
        let input = DecoderInput {
            stream: DecoderStream::new(stream)?,
            spaces,
            settings,
        };
        Ok(StreamDecoder {
            state: Mutex::new(StreamDecoderState {
                input: Some(Box::new(input)),
                decoder: None,
                decoder_type: None,
                pool: None,
            }),
            errors: code.errors,
            parallel_config,
            is_parallel,
            block_table: BlockTable::default(),
        })
    }

    fn rows<'py>(&self, py: Python<'py>, max_rows: usize) -> PyResult<Option<Bound<'py, PyDict>>> {
        let batch = self.next_batch(py, max_rows, true, |_| RunSink::default())?;
        batch.map(|batch| rows_dict(py, batch)).transpose()
    }

    fn runs(&self, py: Python<'_>, max_rows: usize) -> PyResult<Option<(Column, Column, Column)>> {
        let batch = self.next_batch(py, max_rows, true, |_| HashedRunSink::default())?;
        Ok(batch.map(|runs| {
            (
                runs.start.into(),
                runs.instructions.into(),
                runs.hash.into(),
            )
        }))
    }

    fn instructions<'py>(
        &self,
        py: Python<'py>,
        max_rows: usize,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let sink = |settings: &Settings| InstructionSink::new(settings.timing_samples);
        let batch = self.next_batch(py, max_rows, true, sink)?;
        batch.map(|batch| instructions_dict(py, batch)).transpose()
    }

    fn branches<'py>(
        &self,
        py: Python<'py>,
        max_rows: usize,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let sink = |settings: &Settings| BranchSink::new(settings.timing_samples);
        let batch = self.next_batch(py, max_rows, true, sink)?;
        batch.map(|batch| branches_dict(py, batch)).transpose()
    }

    fn indexed_branches<'py>(
        &self,
        py: Python<'py>,
        max_rows: usize,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let mut state = self.lock_state()?;
        // One thread decodes: instructions count from the start of the stream.
        let decoder = state.decoder_of_type(|input| {
            let sink = IndexedBranchSink::new(input.settings.timing_samples);
            Ok(input.into_serial_decoder(sink))
        })?;
        let Some(decoder) = decoder else {
            return Ok(None);
        };
        decoder.sink_mut().set_row_limit(max_rows.max(1));
        self.decode_serially(py, decoder, true)?;
        if decoder.sink_mut().is_empty() && decoder.is_finished() {
            state.finish_decoder();
            return Ok(None);
        }
        let (batch, indexes) = decoder.sink_mut().take_batch();
        let dict = branches_dict(py, batch)?;
        dict.set_item("index", Column::from(indexes))?;
        Ok(Some(dict))
    }

    fn block_ids(&self, py: Python<'_>, max_rows: usize) -> PyResult<Option<Column>> {
        let sink = |_: &Settings| BlockIdSink::with_table(&self.block_table);
        let batch = self.next_batch(py, max_rows, false, sink)?;
        Ok(batch.map(|batch| batch.ids.into()))
    }

    #[pyo3(signature = (first = 0))]
    fn blocks<'py>(&self, py: Python<'py>, first: usize) -> PyResult<Bound<'py, PyDict>> {
        blocks_dict(py, &self.block_table.blocks_from_id(first))
    }

    fn timing_samples<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut state = self.lock_state()?;
        let decoder = state.decoder.as_deref_mut();
        let samples = decoder.map_or_else(Vec::new, DynamicDecoder::take_timing_samples);
        samples_dict(py, &samples)
    }

    fn start_listing(&self, listing: &Listing) -> PyResult<()> {
        let mut state = self.lock_state()?;
        if state.input.is_none() {
            return Err(other_results_requested_error());
        }
        state.decoder_of_type(|input| Ok(input.into_serial_decoder(listing.new_listing_sink())))?;
        Ok(())
    }

    #[pyo3(signature = (max_bytes, max_lines = u64::MAX, until = u64::MAX))]
    fn lines<'py>(
        &self,
        py: Python<'py>,
        max_bytes: usize,
        max_lines: u64,
        until: u64,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, u64)>> {
        let mut state = self.lock_state()?;
        let Some(decoder) = state.serial_listing_decoder()? else {
            return Ok(None);
        };
        decoder
            .sink_mut()
            .set_pending_text_limits(max_bytes, max_lines);
        self.decode_serially(py, decoder, false)?;
        let part = py.detach(|| decoder.sink_mut().take_text(max_bytes, max_lines, until));
        if part.lines == 0 && decoder.sink_mut().next_line_time().is_none() {
            state.finish_decoder();
            return Ok(None);
        }
        Ok(Some((PyBytes::new(py, &part.text), part.lines)))
    }

    fn next_time(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let mut state = self.lock_state()?;
        let Some(decoder) = state.serial_listing_decoder()? else {
            return Ok(None);
        };
        if decoder.sink_mut().next_line_time().is_none() {
            decoder.sink_mut().set_pending_text_limits(1, 1);
            self.decode_serially(py, decoder, false)?;
        }
        let next = decoder.sink_mut().next_line_time();
        if next.is_none() {
            state.finish_decoder();
        }
        Ok(next)
    }

    #[pyo3(signature = (names, others = BoundedItems::default()))]
    fn functions(
        &self,
        py: Python<'_>,
        names: &Names,
        others: BoundedItems<Py<Names>>,
    ) -> PyResult<Vec<(String, OsText, u64)>> {
        let others = others.0.iter().map(|names| names.get().new_name_cursor());
        let names = std::iter::once(names.new_name_cursor())
            .chain(others)
            .collect();
        let mut state = self.lock_state()?;
        let decoder = state.decoder_of_type(|input| {
            Ok(input.into_serial_decoder(FunctionCountSink::new(names)))
        })?;
        let decoder = decoder.ok_or_else(other_results_requested_error)?;
        self.decode_serially(py, decoder, false)?;
        let found = py.detach(|| decoder.sink_mut().finish_counts());
        state.finish_decoder();
        let row = |((name, path), count)| (name, OsText(path), count);
        Ok(found.into_iter().map(row).collect())
    }

    fn count<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut state = self.lock_state()?;
        self.decode_additively::<CountingSink>(py, &mut state)?;
        state.finish_decoder();
        drop(state);
        self.counts(py)
    }

    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut state = self.lock_state()?;
        let decoder = self.decode_additively::<Totals>(py, &mut state)?;
        let decoder = decoder.ok_or_else(other_results_requested_error)?;
        let totals = py.detach(|| std::mem::take(decoder.take_result()));
        state.finish_decoder(); // frees the code cache before there are columns
        totals_dict(py, totals)
    }

    fn next_period_totals<'py>(
        &self,
        py: Python<'py>,
        starts: Vec<u64>,
    ) -> PyResult<Option<(usize, Bound<'py, PyDict>)>> {
        let mut state = self.lock_state()?;
        let decoder = state.decoder_of_type(|input| {
            let max_counters = input.settings.max_counters;
            Ok(input.into_serial_decoder(PeriodTotals::new(starts, max_counters)))
        })?;
        let Some(decoder) = decoder else {
            return Ok(None);
        };
        self.decode_serially(py, decoder, false)?;
        let (period, totals) = match decoder.sink_mut().take_ended_period() {
            Some(ended) => ended,
            None => {
                let last = py.detach(|| decoder.take_current_period());
                state.finish_decoder();
                last
            }
        };
        Ok(Some((period, totals_dict(py, totals)?)))
    }

    #[pyo3(signature = (first = 0, max_rows = usize::MAX))]
    fn ledger(&self, first: usize, max_rows: usize) -> PyResult<Vec<LedgerRow>> {
        let rows = self.progress_value(|progress| ledger_rows(progress.ledger, first, max_rows))?;
        Ok(rows.unwrap_or_default())
    }

    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = |progress: DecoderProgress| counts_dict(py, &progress.counts, progress.ledger);
        self.progress_value(counts)?
            .unwrap_or_else(|| Ok(PyDict::new(py)))
    }

    #[getter]
    fn intervals_begun(&self) -> PyResult<usize> {
        let count = self.progress_value(|progress| progress.intervals_begun)?;
        Ok(count.unwrap_or(0))
    }

    #[getter]
    fn visited_intervals(&self) -> PyResult<Vec<usize>> {
        let visited = self.progress_value(|progress| progress.visited_intervals.to_vec())?;
        Ok(visited.unwrap_or_default())
    }

    #[classattr]
    #[pyo3(name = "ENDS")]
    fn run_end_names(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        RunEnd::ALL
            .map(|end| (end as u8, end.name()))
            .into_py_dict(py)
    }

    #[classattr]
    #[pyo3(name = "EVENTS")]
    fn event_kind_names(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        EventKind::ALL
            .map(|kind| (kind as u8, kind.name()))
            .into_py_dict(py)
    }

    #[classattr]
    #[pyo3(name = "ERRORS")]
    fn error_class_names(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        ErrorClass::ALL
            .map(|class| (class as u8, class.name()))
            .into_py_dict(py)
    }
}
