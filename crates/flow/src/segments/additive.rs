//! Decodes a stream on several threads into a sink that adds up, such as totals of runs and edges.
//!
//! The counts of transitions stay in the tables of each decoder, whatever the segment, and are added up at the end. If
//! a segment is discarded, its counts are already mixed with those of others. So the interpreter decodes the segment
//! once more from the same start, and what it counts is subtracted at the end (`MergeTarget::add_and_subtract_later`).
//! For this reason counters have no limit while several threads decode: what was cut off could not be subtracted.

use std::mem::replace;

use super::rounds::{
    plan_round, run_items_on_threads, ParallelConfig, SpeculationBackoff, StreamSegment,
    MAX_SEGMENTS_PER_THREAD,
};
use crate::address_spaces::AddressSpaces;
use crate::coverage_ledger::CoverageLedger;
use crate::decoder::{Decoder, DecoderSnapshot};
use crate::settings::{Settings, TransitionLimits};
use crate::sink::{CountingSink, Sink, SinkNeeds};
use crate::stream_decoder::{StreamWindow, WindowSource};
use crate::totals::{StreamCounts, Totals};

/// A sink with results that add up in any order.
pub trait AdditiveSink: Sink + Default + Send {
    /// Adds the results of another part of the stream.
    fn merge_results(&mut self, other: Self);

    /// Subtracts results that were added before.
    fn subtract_results(&mut self, other: Self);

    /// As `Totals::with_max_counters`.
    fn limit_counters(&mut self, _max_counters: usize) {}

    /// Sorts all counters and applies the limit.
    fn consolidate_counters(&mut self) {}

    /// Number of counters.
    fn counters_in_use(&self) -> usize {
        0
    }

    /// Moves the counts of transitions from a decoder to the sink.
    fn move_transition_counts(&mut self, _decoder: &mut Decoder) {}
}

impl AdditiveSink for CountingSink {
    fn merge_results(&mut self, _other: CountingSink) {}
    fn subtract_results(&mut self, _other: CountingSink) {}
}

impl AdditiveSink for Totals {
    fn merge_results(&mut self, other: Totals) {
        Totals::merge_totals(self, other);
    }

    fn subtract_results(&mut self, other: Totals) {
        Totals::subtract_totals(self, other);
    }

    fn limit_counters(&mut self, max_counters: usize) {
        Totals::limit_counters(self, max_counters);
    }

    fn consolidate_counters(&mut self) {
        Totals::consolidate_counters(self);
    }

    fn counters_in_use(&self) -> usize {
        Totals::counters_in_use(self)
    }

    fn move_transition_counts(&mut self, decoder: &mut Decoder) {
        decoder.take_totals(self);
    }
}

/// A sink that nothing is cut off in, so that its content can be subtracted.
fn unlimited_sink<S: AdditiveSink>() -> S {
    let mut sink = S::default();
    sink.limit_counters(usize::MAX);
    sink
}

/// Decodes a stream on several threads into one additive sink.
pub struct AdditiveDecoder<B, S> {
    stream: B,
    spaces: AddressSpaces,
    settings: Settings,
    config: ParallelConfig,
    /// One for each thread. They keep their code caches and tables from round to round.
    decoders: Vec<Decoder>,
    /// State at the end of the last round.
    snapshot: DecoderSnapshot,
    ledger: CoverageLedger,
    counts: StreamCounts,
    sink: S,
    /// Counts of transitions in discarded segments, which are still in the tables of the decoders.
    discarded: (StreamCounts, S),
    max_counters: usize,
    /// Counters in the sink after it was last consolidated.
    consolidated_counters: usize,
    /// Segments of the next round for each thread: one after a round with many new counters.
    segments_per_thread: usize,
    backoff: SpeculationBackoff,
}

impl<B: WindowSource, S: AdditiveSink> AdditiveDecoder<B, S> {
    pub fn new(
        stream: B,
        spaces: impl Into<AddressSpaces>,
        settings: &Settings,
        config: ParallelConfig,
    ) -> Self {
        let spaces = spaces.into();
        let config = ParallelConfig {
            threads: match spaces.needs_one_thread() {
                true => 1,
                false => config.threads.max(1),
            },
            ..config
        };
        let max_counters = settings.max_counters;
        let settings = &Settings {
            // Additive results have no timing samples.
            timing_samples: false,
            max_counters: match config.threads {
                1 => max_counters,
                _ => usize::MAX,
            },
            ..settings.for_one_of_threads(config.threads)
        };
        let first = Decoder::new(spaces.clone(), stream.current_window(), settings);
        let mut sink = S::default();
        sink.limit_counters(settings.max_counters);
        AdditiveDecoder {
            snapshot: first.take_snapshot().without_time(),
            ledger: first.coverage_ledger().clone(),
            counts: first.counts(),
            decoders: vec![first],
            sink,
            discarded: (StreamCounts::default(), unlimited_sink()),
            max_counters,
            consolidated_counters: 0,
            segments_per_thread: 1,
            backoff: SpeculationBackoff::new(),
            stream,
            spaces,
            settings: *settings,
            config,
        }
    }

    /// Decodes one round (`ParallelConfig::round_bytes`) or to the end of the window. Returns false at the end of the
    /// stream.
    pub fn decode_round(&mut self) -> bool {
        if self.snapshot.is_at_end() || self.decoders.iter().any(Decoder::is_cancelled) {
            return false;
        }
        let window = self.stream.current_window();
        let segments = self.plan_next_round(window);
        let input = RoundInput {
            window,
            spaces: &self.spaces,
            snapshot: &self.snapshot,
            max_ledger_entries: self.config.max_ledger_entries,
        };
        let threads = segments.len().min(self.config.threads);
        while self.decoders.len() < threads {
            let decoder = Decoder::new(
                self.spaces.clone(),
                StreamWindow::of_whole_stream(&[]),
                &self.settings,
            );
            self.decoders.push(decoder);
        }
        let decoders = &mut self.decoders[..threads.max(1)];
        let results = run_items_on_threads(
            decoders,
            &segments,
            &self.spaces.cancellation,
            |decoder, segment| input.decode_segment::<S>(decoder, segment),
        );
        let new_counters = results.iter().map(|result| result.sink.counters_in_use());
        let new_counters = new_counters.sum::<usize>();
        let mut target = MergeTarget {
            ledger: &mut self.ledger,
            counts: &mut self.counts,
            sink: &mut self.sink,
            discarded: &mut self.discarded,
        };
        let decoder = &mut self.decoders[0];
        let (end, mismatches) =
            target.merge_segment_results(decoder, &self.settings, &input, &segments, results);
        self.snapshot = end;
        if segments.len() > 1 {
            self.backoff
                .note_divided_round(mismatches, 0, segments.len() - 1);
        } else {
            self.backoff.note_undivided_round();
        }
        self.segments_per_thread = match new_counters > self.max_counters / 2 {
            true => 1,
            false => (2 * self.segments_per_thread).min(MAX_SEGMENTS_PER_THREAD),
        };
        let counters = self
            .decoders
            .iter()
            .map(Decoder::counters_in_use)
            .sum::<usize>()
            + self.sink.counters_in_use()
            + self.discarded.1.counters_in_use();
        if counters > self.consolidated_counters + self.max_counters / 2 {
            self.consolidate();
        }
        !self.snapshot.is_at_end() && !self.decoders.iter().any(Decoder::is_cancelled)
    }

    fn plan_next_round(&self, window: StreamWindow<'_>) -> Vec<StreamSegment> {
        let position = self.snapshot.snapshot_position();
        let count =
            match self.backoff.should_divide_next_round() && !self.snapshot.is_searching_psb() {
                true => self.config.round_segments(self.segments_per_thread),
                false => 1,
            };
        if count < 2 {
            let size = self.config.round_bytes();
            return vec![StreamSegment::undivided_segment(position, size)];
        }
        let lead_in_psbs = self.backoff.lead_in_psbs;
        plan_round(window, position, &self.config, count, lead_in_psbs)
    }

    /// The ledger up to `position`; complete at the end of the stream.
    pub fn coverage_ledger(&self) -> &CoverageLedger {
        &self.ledger
    }

    pub fn counts(&self) -> StreamCounts {
        let mut counts = self.counts.clone();
        for decoder in &self.decoders {
            decoder.add_counts(&mut counts);
        }
        counts.subtract_flow_counts(&self.discarded.0);
        counts
    }

    /// Returns the sink with the results of all decoders.
    pub fn take_result(&mut self) -> &mut S {
        self.consolidate();
        &mut self.sink
    }

    /// Moves all counts to the sink, subtracts the discarded ones, and applies the limit.
    fn consolidate(&mut self) {
        if self.discarded.1.counters_in_use() == 0 {
            // Nothing will be subtracted, so the limit can apply at once.
            self.sink.limit_counters(self.max_counters);
        }
        for decoder in &mut self.decoders {
            self.sink.move_transition_counts(decoder);
        }
        let discarded = replace(&mut self.discarded.1, unlimited_sink());
        self.sink.subtract_results(discarded);
        self.sink.limit_counters(self.max_counters);
        self.sink.consolidate_counters();
        self.consolidated_counters = self.sink.counters_in_use();
        if self.config.threads > 1 {
            self.sink.limit_counters(usize::MAX);
        }
    }

    /// The scheduling intervals (`AddressSpaces::add_scheduling_interval`) in which any code ran, in order; 0 is the
    /// time before the first.
    pub fn visited_intervals(&self) -> &[usize] {
        self.decoders
            .first()
            .map_or(&[], Decoder::visited_intervals)
    }

    /// Bytes of the window before this offset are not needed any more.
    pub fn position(&self) -> usize {
        self.snapshot.snapshot_position()
    }

    pub fn is_finished(&self) -> bool {
        self.snapshot.is_at_end()
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

/// What all segments of a round share.
struct RoundInput<'a> {
    window: StreamWindow<'a>,
    /// In their state at the start of the stream.
    spaces: &'a AddressSpaces,
    /// The state at the start of the round.
    snapshot: &'a DecoderSnapshot,
    /// As in `ParallelConfig`.
    max_ledger_entries: usize,
}

/// What a decoder found between the cut of a segment and its end, without the counts of its transitions.
struct SegmentResult<S> {
    /// State at the cut.
    begin: DecoderSnapshot,
    end: DecoderSnapshot,
    counts: StreamCounts,
    ledger: CoverageLedger,
    sink: S,
}

impl RoundInput<'_> {
    fn decode_segment<S: AdditiveSink>(
        &self,
        decoder: &mut Decoder,
        segment: &StreamSegment,
    ) -> SegmentResult<S> {
        let Some(psb) = segment.lead_in else {
            return self.decode_from_snapshot(decoder, self.snapshot, segment.until);
        };
        decoder.limit_segment_ledger(self.max_ledger_entries);
        decoder.restore_snapshot(&self.snapshot.for_later_psb(psb), self.spaces);
        decoder.discard_results(true);
        self.decode_until_offset(decoder, segment.cut, &mut S::default());
        decoder.discard_results(false);
        self.decode_and_record_until(decoder, segment.until)
    }

    fn decode_from_snapshot<S: AdditiveSink>(
        &self,
        decoder: &mut Decoder,
        snapshot: &DecoderSnapshot,
        until: usize,
    ) -> SegmentResult<S> {
        decoder.limit_segment_ledger(self.max_ledger_entries);
        decoder.restore_snapshot(snapshot, self.spaces);
        self.decode_and_record_until(decoder, until)
    }

    fn decode_and_record_until<S: AdditiveSink>(
        &self,
        decoder: &mut Decoder,
        until: usize,
    ) -> SegmentResult<S> {
        let begin = decoder.begin_segment().without_time();
        let mut sink: S = unlimited_sink();
        self.decode_until_offset(decoder, until, &mut sink);
        // Duplicates should not take memory while the result waits for the others.
        sink.consolidate_counters();
        let (counts, ledger) = decoder.end_segment();
        SegmentResult {
            begin,
            end: decoder.take_snapshot().without_time(),
            counts,
            ledger,
            sink,
        }
    }

    /// Decodes to the first packet at or after `until`, or until the ledger is full; resumes after every pause.
    fn decode_until_offset<S: AdditiveSink>(
        &self,
        decoder: &mut Decoder,
        until: usize,
        sink: &mut S,
    ) {
        while decoder.decode_until_offset(self.window, until, sink)
            && decoder.is_paused()
            && decoder.next_packet_position() < until
            && !decoder.coverage_ledger().is_full()
        {}
    }
}

/// What the results of segments are merged into.
struct MergeTarget<'a, S> {
    ledger: &'a mut CoverageLedger,
    counts: &'a mut StreamCounts,
    sink: &'a mut S,
    discarded: &'a mut (StreamCounts, S),
}

impl<S: AdditiveSink> MergeTarget<'_, S> {
    /// Merges the results in order. Discards a result with another state than the end of the one before, and decodes
    /// its segment again. Returns the state at the end and the number of discarded results.
    fn merge_segment_results(
        &mut self,
        decoder: &mut Decoder,
        settings: &Settings,
        input: &RoundInput<'_>,
        segments: &[StreamSegment],
        results: Vec<SegmentResult<S>>,
    ) -> (DecoderSnapshot, usize) {
        let mut snapshot = input.snapshot.clone();
        let mut mismatches = 0;
        for (segment, mut result) in segments.iter().zip(results) {
            if result.begin != snapshot {
                mismatches += 1;
                if matches!(S::NEEDS, SinkNeeds::Counts | SinkNeeds::Totals) {
                    self.add_and_subtract_later(settings, input, segment, result);
                }
                result = input.decode_from_snapshot(decoder, &snapshot, segment.until);
            }
            self.ledger.append_segment_ledger(result.ledger);
            self.counts.add_counts(&result.counts);
            self.sink.merge_results(result.sink);
            snapshot = result.end;
        }
        (snapshot, mismatches)
    }

    /// Adds a discarded result, which together with the counts of transitions in its decoder's tables is all that was
    /// counted, and has the interpreter count the same for subtraction.
    fn add_and_subtract_later(
        &mut self,
        settings: &Settings,
        input: &RoundInput<'_>,
        segment: &StreamSegment,
        result: SegmentResult<S>,
    ) {
        let interpreter_only = Settings {
            transitions: TransitionLimits::NONE,
            ..*settings
        };
        let mut decoder = Decoder::new(
            input.spaces.clone(),
            StreamWindow::of_whole_stream(&[]),
            &interpreter_only,
        );
        let interpreted: SegmentResult<S> = input.decode_segment(&mut decoder, segment);
        self.counts.add_flow_counts(&result.counts);
        self.sink.merge_results(result.sink);
        self.discarded.0.add_flow_counts(&interpreted.counts);
        self.discarded.1.merge_results(interpreted.sink);
    }
}

#[cfg(test)]
mod tests;
