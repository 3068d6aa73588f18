//! Decodes a stream on several threads, with results in stream order.
//!
//! Each segment collects its results in batches, which are returned in the order of the stream. A sink has state, too
//! (the open run, an open transaction); it is compared beside the decoder's state. So nothing is patched at the seams.
//!
//! A byte of PT may be one row or thousands of instructions. The size of segments therefore follows from the rows per
//! byte of the round before, and a segment that produces far more than expected stops; the segments after it are
//! decoded again. The first round is one batch on one thread, so that the first rows are there soon.

use std::collections::VecDeque;

use super::rounds::{
    plan_round, run_items_on_threads, ParallelConfig, SpeculationBackoff, StreamSegment,
};
use crate::address_spaces::AddressSpaces;
use crate::coverage_ledger::CoverageLedger;
use crate::decoder::{Decoder, DecoderSnapshot};
use crate::settings::Settings;
use crate::sinks::buffer_pool::BufferPoolGuard;
use crate::sinks::OrderedSink;
use crate::stream_decoder::{StreamWindow, WindowSource};
use crate::totals::StreamCounts;

/// A segment should produce one in so many of the bytes of results that it may.
const RESULT_RESERVE: usize = 16;
/// Least size of a segment, unless `ParallelConfig::segment_bytes` is less; its lead-in should be short beside it.
const MIN_SEGMENT_BYTES: usize = 1 << 15;
/// Bytes that a window should hold for an undivided round.
const UNDIVIDED_ROUND_BYTES: usize = 1 << 18;

/// Decodes a stream on several threads; the results are those of one thread.
pub struct OrderedDecoder<B, S: OrderedSink> {
    stream: B,
    spaces: AddressSpaces,
    settings: Settings,
    config: ParallelConfig,
    /// One for each thread. They keep their code caches and tables from round to round.
    workers: Vec<SegmentWorker<S>>,
    /// State after the last result in `ready`.
    state: SegmentState<S>,
    ledger: CoverageLedger,
    counts: StreamCounts,
    ready: VecDeque<S::Batch>,
    /// Number of rows so far.
    rows: u64,
    /// Of the last round.
    rows_per_byte: Option<f64>,
    backoff: SpeculationBackoff,
    /// Keeps the memory of batches for reuse.
    _pool: BufferPoolGuard,
}

struct SegmentWorker<S> {
    decoder: Decoder,
    sink: S,
}

struct SegmentState<S: OrderedSink> {
    snapshot: DecoderSnapshot,
    sink: S::State,
}

impl<S: OrderedSink> PartialEq for SegmentState<S> {
    fn eq(&self, other: &SegmentState<S>) -> bool {
        self.snapshot == other.snapshot && self.sink == other.sink
    }
}

/// What the decoder of a segment found between its cut and its end.
struct SegmentResult<S: OrderedSink> {
    begin: SegmentState<S>,
    end: SegmentState<S>,
    counts: StreamCounts,
    ledger: CoverageLedger,
    batches: Vec<S::Batch>,
}

/// What all segments of a round share.
struct RoundInput<'a, S: OrderedSink> {
    window: StreamWindow<'a>,
    /// In their state at the start of the stream.
    spaces: &'a AddressSpaces,
    state: &'a SegmentState<S>,
    /// Rows of a batch.
    batch_rows: usize,
    /// Rows of a segment.
    max_rows: usize,
    /// As in `ParallelConfig`.
    max_ledger_entries: usize,
}

impl<B: WindowSource, S: OrderedSink> OrderedDecoder<B, S> {
    /// Returns whether a stream can be divided. It cannot if pages are requested in order, threads are attributed by
    /// scheduling intervals, or timing samples are numbered.
    pub fn can_divide(
        spaces: &AddressSpaces,
        settings: &Settings,
        config: &ParallelConfig,
    ) -> bool {
        config.threads > 1 && !spaces.needs_one_thread() && !settings.timing_samples
    }

    /// `sink` is empty. Uses one thread where `can_divide` is false.
    pub fn new(
        stream: B,
        spaces: impl Into<AddressSpaces>,
        settings: &Settings,
        config: ParallelConfig,
        sink: S,
    ) -> Self {
        let spaces = spaces.into();
        let threads = match Self::can_divide(&spaces, settings, &config) {
            true => config.threads,
            false => 1,
        };
        let settings = settings.for_one_of_threads(threads);
        let decoder = Decoder::new(spaces.clone(), stream.current_window(), &settings);
        OrderedDecoder {
            state: SegmentState {
                snapshot: decoder.take_snapshot(),
                sink: sink.sink_state(),
            },
            ledger: decoder.coverage_ledger().clone(),
            counts: decoder.counts(),
            workers: vec![SegmentWorker { decoder, sink }],
            ready: VecDeque::new(),
            rows: 0,
            rows_per_byte: None,
            backoff: SpeculationBackoff::new(),
            _pool: BufferPoolGuard::new(),
            stream,
            spaces,
            settings,
            config: ParallelConfig { threads, ..config },
        }
    }

    /// Decodes one round, in batches of about `batch_rows` rows, or to the end of the window. Returns false at the end
    /// of the stream.
    pub fn decode_round(&mut self, batch_rows: usize) -> bool {
        if self.is_finished() || self.is_cancelled() {
            return false;
        }
        let batch_rows = batch_rows.max(1);
        let window = self.stream.current_window();
        let position = self.state.snapshot.snapshot_position();
        let segments = self.plan_next_round(window);
        let input = RoundInput {
            window,
            spaces: &self.spaces,
            state: &self.state,
            batch_rows,
            // The first round is one batch, so that the first rows are there soon.
            max_rows: match self.rows_per_byte {
                None => 1,
                Some(_) => (self.config.max_result_bytes / S::ROW_BYTES).max(1),
            },
            max_ledger_entries: self.config.max_ledger_entries,
        };
        let threads = segments.len().min(self.config.threads);
        while self.workers.len() < threads {
            let decoder = Decoder::new(
                self.spaces.clone(),
                StreamWindow::of_whole_stream(&[]),
                &self.settings,
            );
            let sink = self.workers[0].sink.new_empty_sink();
            self.workers.push(SegmentWorker { decoder, sink });
        }
        let workers = &mut self.workers[..threads];
        let results = run_items_on_threads(
            workers,
            &segments,
            &self.spaces.cancellation,
            |worker, segment| worker.decode_segment(&input, segment),
        );
        let rows = self.rows;
        let (mut mismatches, mut used) = (0, 0);
        let mut end: Option<SegmentState<S>> = None;
        for (segment, mut result) in segments.iter().zip(results) {
            let state = end.as_ref().unwrap_or(&self.state);
            if result.begin != *state {
                mismatches += 1;
                result = self.workers[0].decode_from_snapshot(&input, state, segment.until);
            }
            used += 1;
            self.ledger.append_segment_ledger(result.ledger);
            self.counts.add_counts(&result.counts);
            let before = self.rows;
            for mut batch in result.batches {
                S::renumber_rows(&mut batch, before);
                self.rows += S::batch_row_count(&batch) as u64;
                self.ready.push_back(batch);
            }
            let snapshot = &result.end.snapshot;
            let is_complete =
                snapshot.snapshot_position() >= segment.until && !snapshot.has_deferred_calls();
            end = Some(result.end);
            if !is_complete {
                // It had too many results, or the window ends here.
                break;
            }
        }
        if let Some(end) = end {
            self.state = end;
        }
        let bytes = self
            .state
            .snapshot
            .snapshot_position()
            .saturating_sub(position);
        if bytes > 0 {
            self.rows_per_byte = Some((self.rows - rows) as f64 / bytes as f64);
        }
        if let several @ 2.. = segments.len() {
            self.backoff
                .note_divided_round(mismatches, several - used, several - 1);
        } else {
            self.backoff.note_undivided_round();
        }
        !self.is_finished() && !self.is_cancelled()
    }

    fn plan_next_round(&self, window: StreamWindow<'_>) -> Vec<StreamSegment> {
        let position = self.state.snapshot.snapshot_position();
        let Some(segment_bytes) = self.segment_bytes() else {
            let size = self.config.segment_bytes;
            return vec![StreamSegment::undivided_segment(position, size)];
        };
        let count = self.config.ordered_round_segments();
        let lead_in_psbs = self.backoff.lead_in_psbs;
        let config = ParallelConfig {
            segment_bytes,
            ..self.config
        };
        plan_round(window, position, &config, count, lead_in_psbs)
    }

    fn is_cancelled(&self) -> bool {
        self.workers
            .iter()
            .any(|worker| worker.decoder.is_cancelled())
    }

    /// The approximate bytes of the next round: a window should hold as many.
    pub fn round_bytes(&self) -> usize {
        match self.segment_bytes() {
            Some(segment_bytes) => segment_bytes * self.config.ordered_round_segments(),
            None => UNDIVIDED_ROUND_BYTES,
        }
    }

    /// Size of the segments of the next round; `None` if it is not divided.
    fn segment_bytes(&self) -> Option<usize> {
        let is_undivided = self.config.threads < 2 || self.state.snapshot.is_searching_psb();
        if is_undivided || !self.backoff.should_divide_next_round() {
            return None;
        }
        let max_bytes = self.config.segment_bytes;
        let rows = (self.config.max_result_bytes / S::ROW_BYTES / RESULT_RESERVE) as f64;
        let bytes = (rows / self.rows_per_byte?.max(1e-9)) as usize;
        Some(bytes.clamp(MIN_SEGMENT_BYTES.min(max_bytes), max_bytes))
    }

    /// Returns the next batch that has been decoded.
    pub fn next_batch(&mut self) -> Option<S::Batch> {
        self.ready.pop_front()
    }

    /// The ledger up to `position`; complete at the end of the stream.
    pub fn coverage_ledger(&self) -> &CoverageLedger {
        &self.ledger
    }

    pub fn counts(&self) -> StreamCounts {
        let mut counts = self.counts.clone();
        for worker in &self.workers {
            worker.decoder.add_counts(&mut counts);
        }
        counts
    }

    /// Bytes of the window before this offset are not needed any more.
    pub fn position(&self) -> usize {
        self.state.snapshot.snapshot_position()
    }

    pub fn is_finished(&self) -> bool {
        self.state.snapshot.is_at_end()
    }

    /// Whether decoding needs more bytes of the stream.
    pub fn needs_more_bytes(&self) -> bool {
        let window = self.stream.current_window();
        !window.last && !self.is_finished() && self.position() >= window.packet_start_limit()
    }

    pub fn stream_mut(&mut self) -> &mut B {
        &mut self.stream
    }
}

impl<S: OrderedSink> SegmentWorker<S> {
    fn decode_segment(
        &mut self,
        input: &RoundInput<'_, S>,
        segment: &StreamSegment,
    ) -> SegmentResult<S> {
        let Some(psb) = segment.lead_in else {
            return self.decode_from_snapshot(input, input.state, segment.until);
        };
        let state = input.state;
        self.decoder.limit_segment_ledger(input.max_ledger_entries);
        self.decoder
            .restore_snapshot(&state.snapshot.for_later_psb(psb), input.spaces);
        self.sink
            .resume_from_sink_state(&S::known_sink_state_later(&state.sink));
        self.collect_batches(input, segment.cut, usize::MAX, |_| ());
        let state_at_cut = self.sink.sink_state();
        self.sink.resume_from_sink_state(&state_at_cut);
        self.decode_and_record_until(input, segment.until)
    }

    /// Decodes from a known state.
    fn decode_from_snapshot(
        &mut self,
        input: &RoundInput<'_, S>,
        state: &SegmentState<S>,
        until: usize,
    ) -> SegmentResult<S> {
        self.decoder.limit_segment_ledger(input.max_ledger_entries);
        self.decoder.restore_snapshot(&state.snapshot, input.spaces);
        self.sink.resume_from_sink_state(&state.sink);
        self.decode_and_record_until(input, until)
    }

    fn decode_and_record_until(
        &mut self,
        input: &RoundInput<'_, S>,
        until: usize,
    ) -> SegmentResult<S> {
        let begin = SegmentState {
            snapshot: self.decoder.begin_segment(),
            sink: self.sink.sink_state(),
        };
        let mut batches = Vec::new();
        self.collect_batches(input, until, input.max_rows, |batch| batches.push(batch));
        let (counts, ledger) = self.decoder.end_segment();
        SegmentResult {
            begin,
            end: SegmentState {
                snapshot: self.decoder.take_snapshot(),
                sink: self.sink.sink_state(),
            },
            counts,
            ledger,
            batches,
        }
    }

    /// Decodes to the first packet at or after `until`, to the end of the window, or until batches have `max_rows`
    /// rows or the ledger is full.
    fn collect_batches(
        &mut self,
        input: &RoundInput<'_, S>,
        until: usize,
        max_rows: usize,
        mut add_batch: impl FnMut(S::Batch),
    ) {
        let (decoder, sink) = (&mut self.decoder, &mut self.sink);
        sink.set_row_limit(input.batch_rows);
        let mut rows = 0;
        while rows < max_rows {
            let before = decoder.next_packet_position();
            let can_continue = decoder.decode_until_offset(input.window, until, sink);
            let is_full = sink.is_full();
            if is_full {
                let batch = sink.take_batch();
                rows += S::batch_row_count(&batch);
                add_batch(batch);
            }
            let position = decoder.next_packet_position();
            let has_progress = is_full || position > before || decoder.is_paused();
            let is_at_end = position >= until && !decoder.has_deferred_calls();
            if !can_continue || !has_progress || is_at_end || decoder.coverage_ledger().is_full() {
                break;
            }
        }
        if !sink.is_empty() {
            add_batch(sink.take_batch());
        }
    }
}
