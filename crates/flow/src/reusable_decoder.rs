//! A decoder for many short streams over the same code, for a fuzzer that decodes thousands of traces a second.
//!
//! Most of the time of a short decode goes into building nodes and transitions, so these are kept. All other state is
//! reset for each stream: results are those of a new decoder. Code that changes outside the image must be reported
//! (`forget`).

use rtit_image::Changed;

use crate::address_spaces::Spaces;
use crate::counts::Counts;
use crate::coverage_ledger::CoverageLedger;
use crate::decoder::Decoder;
use crate::settings::{InitialState, Settings};
use crate::sink::Sink;
use crate::stream_window::StreamWindow;
use crate::totals::Totals;

/// Keeps code cache and transitions from stream to stream; all other state is reset.
///
/// ```
/// use rtit_flow::{EdgeCounter, ReusableDecoder, Settings};
/// let mut space = rtit_image::Space::new();
/// space.map(0, 0x1000, [0x74, 0x00, 0xc3][..].into()); // je 1002; ret
/// let mut decoder = ReusableDecoder::new(space.view(), &Settings::default());
/// let mut hits = EdgeCounter::default();
/// // PSB, MODE.Exec, FUP 1000, PSBEND; TNT of one result, taken; TIP 2000
/// let mut stream = [0x02, 0x82].repeat(8);
/// stream.extend([0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23, 0x06, 0x2d, 0x00, 0x20]);
/// for _ in 0..2 {
///     decoder.run(&stream, &mut hits);
///     let edges = hits.take();
///     assert_eq!((edges[0].from, edges[0].to, edges[0].count), (0x1000, 0x1002, 1));
/// }
/// ```
pub struct ReusableDecoder {
    /// As they are where a stream begins.
    spaces: Spaces,
    settings: Settings,
    decoder: Decoder,
}

impl ReusableDecoder {
    pub fn new(spaces: impl Into<Spaces>, settings: &Settings) -> ReusableDecoder {
        let mut spaces = spaces.into();
        spaces.rewind();
        ReusableDecoder {
            decoder: Decoder::new(spaces.clone(), StreamWindow::whole(&[]), settings),
            spaces,
            settings: *settings,
        }
    }

    /// What is known where the next streams begin.
    pub fn start_at(&mut self, start: Option<InitialState>) {
        self.settings.start = start;
    }

    /// Begins another stream with its first window; `advance` decodes it.
    pub fn begin(&mut self, stream: StreamWindow<'_>) {
        self.decoder.restart(&self.spaces, stream, &self.settings);
    }

    /// As `Decoder::decode_until`.
    pub fn advance<S: Sink>(
        &mut self,
        stream: StreamWindow<'_>,
        until: usize,
        sink: &mut S,
    ) -> bool {
        self.decoder.decode_until(stream, until, sink)
    }

    /// Decodes a whole stream into a sink that is never full, or that was made as large as it may become.
    pub fn run<S: Sink>(&mut self, stream: &[u8], sink: &mut S) {
        let window = StreamWindow::whole(stream);
        self.begin(window);
        while self.advance(window, usize::MAX, sink) && !sink.is_full() {}
    }

    /// The code from `start` to before `end` has changed, or is asked for anew; `spaces` are what holds now, as many as
    /// before and with the same keys: false, and nothing is done, if they have others. Between two streams.
    pub fn forget(&mut self, spaces: impl Into<Spaces>, start: u64, end: u64) -> bool {
        let mut spaces = spaces.into();
        if !spaces.has_same_keys(&self.spaces) {
            return false;
        }
        spaces.rewind();
        let changed = match (start, end) {
            (0, u64::MAX) => Changed::All,
            _ => Changed::Ranges(vec![(start, end)]),
        };
        self.decoder.forget(&self.spaces, &spaces, &changed);
        self.spaces = spaces;
        true
    }

    /// Of the last stream.
    pub fn ledger(&self) -> &CoverageLedger {
        self.decoder.ledger()
    }

    /// Of the last stream.
    pub fn counts(&self) -> Counts {
        self.decoder.counts()
    }

    /// Adds the sums of the transition tables to `totals`, the sink of the last stream.
    pub fn take_totals(&mut self, totals: &mut Totals) {
        self.decoder.take_totals(totals);
    }

    /// Offset of the next packet.
    pub fn position(&self) -> usize {
        self.decoder.position()
    }
}
