//! A stream, its decoder and its sink together; results in batches or one by one.

use crate::address_spaces::Spaces;
use crate::counts::Counts;
use crate::coverage_ledger::CoverageLedger;
use crate::decoder::Decoder;
use crate::settings::Settings;
use crate::sink::Sink;
use crate::sinks::{
    HashedRun, HashedRunColumns, HashedRunSink, InstructionSink, OrderedSink, RunSink,
};
use crate::stream_window::WindowSource;
use crate::timing_samples::TimingSample;
use crate::totals::Totals;

/// One stream of packets (`B`: anything that holds its bytes or a window of them), followed into a sink.
pub struct StreamDecoder<B, S> {
    stream: B,
    decoder: Decoder,
    sink: S,
}

impl<B: WindowSource, S: Sink> StreamDecoder<B, S> {
    pub fn with_sink(stream: B, spaces: impl Into<Spaces>, settings: &Settings, sink: S) -> Self {
        let decoder = Decoder::new(spaces, stream.window(), settings);
        StreamDecoder {
            stream,
            decoder,
            sink,
        }
    }

    /// Spans without gaps up to where decoding has come; complete once the stream has ended.
    pub fn ledger(&self) -> &CoverageLedger {
        self.decoder.ledger()
    }

    pub fn counts(&self) -> Counts {
        self.decoder.counts()
    }

    /// Decodes until the sink is full or the window ends; false if the stream has ended.
    pub fn advance(&mut self) -> bool {
        self.decoder.decode(self.stream.window(), &mut self.sink)
    }

    /// As `advance`, but pauses after about `bytes` bytes of the stream.
    pub fn advance_by(&mut self, bytes: usize) -> bool {
        let until = self.decoder.position().saturating_add(bytes);
        self.decoder
            .decode_until(self.stream.window(), until, &mut self.sink)
    }

    /// Takes the timing samples since the last call; see `Settings::points`.
    pub fn take_points(&mut self) -> Vec<TimingSample> {
        self.decoder.take_points()
    }

    /// How many points wait to be taken.
    pub fn points_waiting(&self) -> usize {
        self.decoder.points_waiting()
    }

    /// Offset before which the window's bytes are not needed any more.
    pub fn position(&self) -> usize {
        self.decoder.position()
    }

    /// Whether decoding needs the next window.
    pub fn is_starved(&self) -> bool {
        let window = self.stream.window();
        !window.last && !self.is_finished() && self.position() >= window.limit()
    }

    pub fn stream_mut(&mut self) -> &mut B {
        &mut self.stream
    }

    pub fn is_finished(&self) -> bool {
        self.decoder.is_finished()
    }

    /// Number of scheduling intervals that have begun.
    pub fn intervals_begun(&self) -> usize {
        self.decoder.intervals_begun()
    }

    /// The intervals in which anything ran, in order; 0 is the time before the first.
    pub fn visited_intervals(&self) -> &[usize] {
        self.decoder.visited_intervals()
    }

    /// Whether `advance` has returned because an interval may begin here.
    pub fn is_paused(&self) -> bool {
        self.decoder.is_paused()
    }

    pub fn sink_mut(&mut self) -> &mut S {
        &mut self.sink
    }
}

impl<B: WindowSource, S: OrderedSink> StreamDecoder<B, S> {
    /// Returns about `max_rows` more rows (one packet may add some dozens beyond it); `None` at the end.
    pub fn next_batch(&mut self, max_rows: usize) -> Option<S::Batch> {
        self.sink.set_limit(max_rows.max(1));
        self.advance();
        let is_over = self.sink.is_empty() && self.decoder.is_finished();
        (!is_over).then(|| self.sink.take_batch())
    }
}

impl<B: WindowSource> StreamDecoder<B, RunSink> {
    /// Runs and events as columns.
    pub fn new(stream: B, spaces: impl Into<Spaces>, settings: &Settings) -> Self {
        StreamDecoder::with_sink(stream, spaces, settings, RunSink::default())
    }
}

impl<B: WindowSource> StreamDecoder<B, Totals> {
    /// Runs and edges added up.
    pub fn adding_up(stream: B, spaces: impl Into<Spaces>, settings: &Settings) -> Self {
        StreamDecoder::with_sink(
            stream,
            spaces,
            settings,
            Totals::with_max_counters(settings.places),
        )
    }

    /// What was added up so far.
    pub fn totals(&mut self) -> &mut Totals {
        self.decoder.take_totals(&mut self.sink);
        &mut self.sink
    }
}

impl<B: WindowSource> StreamDecoder<B, InstructionSink> {
    pub fn instructions(stream: B, spaces: impl Into<Spaces>, settings: &Settings) -> Self {
        StreamDecoder::with_sink(stream, spaces, settings, InstructionSink::new(false))
    }
}

impl<B: WindowSource> StreamDecoder<B, HashedRunSink> {
    /// Runs with the hashes over their IPs.
    pub fn hashed(stream: B, spaces: impl Into<Spaces>, settings: &Settings) -> Self {
        StreamDecoder::with_sink(stream, spaces, settings, HashedRunSink::default())
    }
}

/// The runs of a stream with the hashes over their IPs, one by one, for comparison with a truth.
pub struct RunIterator<B> {
    flow: StreamDecoder<B, HashedRunSink>,
    batch: HashedRunColumns,
    next: usize,
}

/// Runs decoded at a time.
const RUNS: usize = 4096;

impl<B: WindowSource> RunIterator<B> {
    pub fn new(stream: B, spaces: impl Into<Spaces>, settings: &Settings) -> Self {
        let mut flow = StreamDecoder::hashed(stream, spaces, settings);
        flow.sink.set_limit(RUNS);
        RunIterator {
            flow,
            batch: HashedRunColumns::default(),
            next: 0,
        }
    }

    /// The ledger and the counts: complete when the iterator has ended.
    pub fn flow(&self) -> &StreamDecoder<B, HashedRunSink> {
        &self.flow
    }
}

impl<B: AsRef<[u8]>> Iterator for RunIterator<B> {
    type Item = HashedRun;

    fn next(&mut self) -> Option<HashedRun> {
        loop {
            if let Some(run) = self.batch.get(self.next) {
                self.next += 1;
                return Some(run);
            }
            if !self.flow.advance() && self.flow.sink.is_empty() {
                return None;
            }
            self.batch = self.flow.sink.take_batch();
            self.next = 0;
        }
    }
}
