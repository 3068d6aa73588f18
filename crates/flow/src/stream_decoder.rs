//! Streams and their decoders: a stream with its decoder and sink ([`StreamDecoder`]), windows of a stream that is not
//! in memory as a whole, and a decoder for many short streams over the same code ([`ReusableDecoder`]).

use rtit_image::ChangedCode;

use crate::address_spaces::AddressSpaces;
use crate::coverage_ledger::CoverageLedger;
use crate::decoder::Decoder;
use crate::settings::{InitialState, Settings};
use crate::sink::Sink;
use crate::sinks::{HashedRunSink, InstructionSink, OrderedSink, RunSink};
use crate::time::TimingSample;
use crate::totals::{PeriodTotals, StreamCounts, Totals};

/// One stream of packets (`B`: anything that holds its bytes or a window of them), followed into a sink.
pub struct StreamDecoder<B, S> {
    stream: B,
    decoder: Decoder,
    sink: S,
}

impl<B: WindowSource, S: Sink> StreamDecoder<B, S> {
    pub fn with_sink(
        stream: B,
        spaces: impl Into<AddressSpaces>,
        settings: &Settings,
        sink: S,
    ) -> Self {
        let decoder = Decoder::new(spaces, stream.current_window(), settings);
        StreamDecoder {
            stream,
            decoder,
            sink,
        }
    }

    /// Spans without gaps up to the position of the decoder; complete once the stream has ended.
    pub fn coverage_ledger(&self) -> &CoverageLedger {
        self.decoder.coverage_ledger()
    }

    pub fn counts(&self) -> StreamCounts {
        self.decoder.counts()
    }

    /// Decodes until the sink is full or the window ends; false if the stream has ended.
    pub fn decode_until_full(&mut self) -> bool {
        self.decoder
            .decode_window(self.stream.current_window(), &mut self.sink)
    }

    /// As `advance`, but pauses after about `bytes` bytes of the stream.
    pub fn decode_up_to_bytes(&mut self, bytes: usize) -> bool {
        let until = self.decoder.next_packet_position().saturating_add(bytes);
        self.decoder
            .decode_until_offset(self.stream.current_window(), until, &mut self.sink)
    }

    /// Returns the timing samples since the last call; see `Settings::timing_samples`.
    pub fn take_timing_samples(&mut self) -> Vec<TimingSample> {
        self.decoder.take_timing_samples()
    }

    /// Returns the number of timing samples that were not taken.
    pub fn waiting_sample_count(&self) -> usize {
        self.decoder.waiting_sample_count()
    }

    /// Offset before which the window's bytes are not needed any more.
    pub fn position(&self) -> usize {
        self.decoder.next_packet_position()
    }

    /// Whether decoding needs the next window.
    pub fn needs_next_window(&self) -> bool {
        let window = self.stream.current_window();
        !window.last && !self.is_finished() && self.position() >= window.packet_start_limit()
    }

    pub fn stream_mut(&mut self) -> &mut B {
        &mut self.stream
    }

    pub fn is_finished(&self) -> bool {
        self.decoder.is_finished()
    }

    /// Number of scheduling intervals that have begun.
    pub fn begun_interval_count(&self) -> usize {
        self.decoder.begun_interval_count()
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
        self.sink.set_row_limit(max_rows.max(1));
        self.decode_until_full();
        let is_over = self.sink.is_empty() && self.decoder.is_finished();
        (!is_over).then(|| self.sink.take_batch())
    }
}

impl<B: WindowSource> StreamDecoder<B, RunSink> {
    /// Runs and events as columns.
    pub fn new(stream: B, spaces: impl Into<AddressSpaces>, settings: &Settings) -> Self {
        StreamDecoder::with_sink(stream, spaces, settings, RunSink::default())
    }
}

impl<B: WindowSource> StreamDecoder<B, Totals> {
    /// Runs and edges added up.
    pub fn for_totals(stream: B, spaces: impl Into<AddressSpaces>, settings: &Settings) -> Self {
        let totals = Totals::with_max_counters(settings.max_counters);
        StreamDecoder::with_sink(stream, spaces, settings, totals)
    }

    /// Returns the totals so far.
    pub fn totals(&mut self) -> &mut Totals {
        self.decoder.take_totals(&mut self.sink);
        &mut self.sink
    }
}

impl<B: WindowSource> StreamDecoder<B, PeriodTotals> {
    /// Returns the number and the totals of the current period, which is the last one at the end of the stream.
    pub fn take_current_period(&mut self) -> (usize, Totals) {
        self.decoder.take_totals(self.sink.current_totals());
        self.sink.take_current_period()
    }
}

impl<B: WindowSource> StreamDecoder<B, InstructionSink> {
    pub fn for_instructions(
        stream: B,
        spaces: impl Into<AddressSpaces>,
        settings: &Settings,
    ) -> Self {
        StreamDecoder::with_sink(stream, spaces, settings, InstructionSink::new(false))
    }
}

impl<B: WindowSource> StreamDecoder<B, HashedRunSink> {
    /// Runs with the hashes over their IPs.
    pub fn for_hashed_runs(
        stream: B,
        spaces: impl Into<AddressSpaces>,
        settings: &Settings,
    ) -> Self {
        StreamDecoder::with_sink(stream, spaces, settings, HashedRunSink::default())
    }
}

/// Bytes of a stream from offset `base` on; all offsets elsewhere are of the whole stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamWindow<'a> {
    pub bytes: &'a [u8],
    pub base: usize,
    /// Nothing follows these bytes.
    pub last: bool,
}

/// Bytes before the end of a window, other than the last, in which no packet is read: no packet is longer, and the
/// clock looks ahead (`packet_clock`).
pub(crate) const MARGIN: usize = 1 << 12;

impl<'a> StreamWindow<'a> {
    /// Returns the window of a stream that is in memory as a whole.
    pub fn of_whole_stream(bytes: &'a [u8]) -> StreamWindow<'a> {
        StreamWindow {
            bytes,
            base: 0,
            last: true,
        }
    }

    /// Offset after the last byte.
    pub fn end(&self) -> usize {
        self.base + self.bytes.len()
    }

    /// Offset from which on packets are read only with the next window.
    pub fn packet_start_limit(&self) -> usize {
        if self.last {
            usize::MAX
        } else {
            self.end().saturating_sub(MARGIN)
        }
    }

    /// The byte at offset `offset` of the stream; `None` outside of the window.
    pub fn byte_at(&self, offset: usize) -> Option<u8> {
        self.bytes.get(offset.checked_sub(self.base)?).copied()
    }
}

/// A source of the windows of a stream.
pub trait WindowSource {
    fn current_window(&self) -> StreamWindow<'_>;
}

impl<B: AsRef<[u8]>> WindowSource for B {
    fn current_window(&self) -> StreamWindow<'_> {
        StreamWindow::of_whole_stream(self.as_ref())
    }
}

/// A decoder for many short streams over the same code, for a fuzzer that decodes thousands of traces a second.
///
/// Most of the time of a short decode goes into building nodes and transitions, so these are kept. All other state is
/// reset for each stream: results are those of a new decoder. Code that changes outside the image must be reported
/// (`forget_changed_code`).
///
/// ```
/// use rtit_flow::{EdgeCounter, ReusableDecoder, Settings};
/// let mut space = rtit_image::Space::new();
/// space.map_bytes(0, 0x1000, [0x74, 0x00, 0xc3][..].into()); // je 1002; ret
/// let mut decoder = ReusableDecoder::new(space.view_at_start(), &Settings::default());
/// let mut hits = EdgeCounter::default();
/// // PSB, MODE.Exec, FUP 1000, PSBEND; TNT of one result, taken; TIP 2000
/// let mut stream = [0x02, 0x82].repeat(8);
/// stream.extend([0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23, 0x06, 0x2d, 0x00, 0x20]);
/// for _ in 0..2 {
///     decoder.decode_whole_stream(&stream, &mut hits);
///     let edges = hits.take_edges();
///     assert_eq!((edges[0].from, edges[0].to, edges[0].count), (0x1000, 0x1002, 1));
/// }
/// ```
pub struct ReusableDecoder {
    /// The code at the beginning of a stream.
    spaces: AddressSpaces,
    settings: Settings,
    decoder: Decoder,
}

impl ReusableDecoder {
    pub fn new(spaces: impl Into<AddressSpaces>, settings: &Settings) -> ReusableDecoder {
        let mut spaces = spaces.into();
        spaces.rewind_all_views();
        ReusableDecoder {
            decoder: Decoder::new(spaces.clone(), StreamWindow::of_whole_stream(&[]), settings),
            spaces,
            settings: *settings,
        }
    }

    /// Sets the state at the beginning of the next streams.
    pub fn set_initial_state(&mut self, start: Option<InitialState>) {
        self.settings.start = start;
    }

    /// Begins another stream with its first window; `advance` decodes it.
    pub fn begin_stream(&mut self, stream: StreamWindow<'_>) {
        self.decoder
            .restart_with_stream(&self.spaces, stream, &self.settings);
    }

    /// As `Decoder::decode_until_offset`.
    pub fn decode_until_offset<S: Sink>(
        &mut self,
        stream: StreamWindow<'_>,
        until: usize,
        sink: &mut S,
    ) -> bool {
        self.decoder.decode_until_offset(stream, until, sink)
    }

    /// Decodes a whole stream into a sink that is never full, or that was made as large as it may become.
    pub fn decode_whole_stream<S: Sink>(&mut self, stream: &[u8], sink: &mut S) {
        let window = StreamWindow::of_whole_stream(stream);
        self.begin_stream(window);
        while self.decode_until_offset(window, usize::MAX, sink) && !sink.is_full() {}
    }

    /// Drops the code from `start` to before `end`, which has changed since the last stream. `spaces`: the current
    /// code. Returns false, and does nothing, if they do not have the same keys as before.
    pub fn forget_changed_code(
        &mut self,
        spaces: impl Into<AddressSpaces>,
        start: u64,
        end: u64,
    ) -> bool {
        let mut spaces = spaces.into();
        if !spaces.has_same_keys(&self.spaces) {
            return false;
        }
        spaces.rewind_all_views();
        let changed = match (start, end) {
            (0, u64::MAX) => ChangedCode::All,
            _ => ChangedCode::Ranges(vec![(start, end)]),
        };
        self.decoder
            .drop_changed_code(&self.spaces, &spaces, &changed);
        self.spaces = spaces;
        true
    }

    /// Returns the ledger of the last stream.
    pub fn coverage_ledger(&self) -> &CoverageLedger {
        self.decoder.coverage_ledger()
    }

    /// Returns the counts of the last stream.
    pub fn counts(&self) -> StreamCounts {
        self.decoder.counts()
    }

    /// Adds the sums of the transition tables to `totals`, the sink of the last stream.
    pub fn take_totals(&mut self, totals: &mut Totals) {
        self.decoder.take_totals(totals);
    }

    /// Offset of the next packet.
    pub fn position(&self) -> usize {
        self.decoder.next_packet_position()
    }
}
