//! Long ways through code without packets can be given up.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use rtit_flow::{
    AdditiveDecoder, CancellationToken, CountingSink, HashedRunSink, OrderedDecoder,
    ParallelConfig, ReusableDecoder, Settings, Spaces, StreamDecoder,
};
use rtit_image::Space;

/// Nothing but NOPs.
const SIZE: usize = 16 << 20;
/// Questions after which it is given up.
const LAST: u32 = 3;
/// A segment is about as long as a stream.
const DIVISION: ParallelConfig = ParallelConfig {
    threads: 2,
    segment_bytes: 20,
    max_lead_in: 20,
    max_result_bytes: 1 << 20,
    max_ledger_entries: 100,
};

/// PSB, MODE.Exec, FUP 1000, PSBEND; TIP 2000, for which there is no branch.
fn stream() -> Vec<u8> {
    let mut stream = [0x02, 0x82].repeat(8);
    stream.extend([
        0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23, 0x2d, 0x00, 0x20,
    ]);
    stream
}

fn cancellation() -> (Spaces, Arc<AtomicU32>) {
    let mut space = Space::new();
    space.map(0, 0x1000, vec![0x90; SIZE].into());
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let mut spaces = Spaces::new(space.view());
    spaces.set_cancellation(CancellationToken::new(move || {
        count.fetch_add(1, Ordering::Relaxed) + 1 >= LAST
    }));
    (spaces, asked)
}

#[test]
fn one_stream() {
    let (spaces, asked) = cancellation();
    let mut flow = StreamDecoder::with_sink(stream(), spaces, &Settings::default(), CountingSink);
    while flow.advance() {}
    assert!(!flow.is_finished());
    assert_eq!(asked.load(Ordering::Relaxed), LAST);
    assert!(!flow.advance());
    assert_eq!(asked.load(Ordering::Relaxed), LAST);
}

#[test]
fn several_threads() {
    let (spaces, asked) = cancellation();
    let bytes = stream().repeat(4);
    let mut all: AdditiveDecoder<Vec<u8>, CountingSink> =
        AdditiveDecoder::new(bytes, spaces, &Settings::default(), DIVISION);
    while all.advance() {}
    assert!(!all.is_finished());
    assert!(asked.load(Ordering::Relaxed) >= LAST);
}

#[test]
fn several_threads_in_order() {
    let (spaces, asked) = cancellation();
    let bytes = stream().repeat(4);
    let sink = HashedRunSink::default();
    let mut all = OrderedDecoder::new(bytes, spaces, &Settings::default(), DIVISION, sink);
    while all.advance(1000) {}
    assert!(!all.is_finished());
    assert!(asked.load(Ordering::Relaxed) >= LAST);
}

/// The next stream begins anew.
#[test]
fn one_after_the_other() {
    let (spaces, asked) = cancellation();
    let mut decoder = ReusableDecoder::new(spaces, &Settings::default());
    for count in [LAST, LAST + 1] {
        decoder.run(&stream(), &mut CountingSink);
        assert_eq!(asked.load(Ordering::Relaxed), count);
    }
}

/// Without anybody to ask, or with patience, it is an error of the stream.
#[test]
fn patience() {
    let mut space = Space::new();
    space.map(0, 0x1000, vec![0x90; SIZE].into());
    let mut spaces = Spaces::new(space.view());
    spaces.set_cancellation(CancellationToken::new(|| false));
    let mut flow = StreamDecoder::with_sink(stream(), spaces, &Settings::default(), CountingSink);
    while flow.advance() {}
    assert!(flow.is_finished());
    assert_eq!(flow.counts().instructions, SIZE as u64);
}
