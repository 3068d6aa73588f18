//! Stream after stream over code that changes: each gives what a decoder that knows nothing before, and takes packet by
//! packet, gives; and so do several threads.
//!
//! Input: a byte of options, then parts of a kind byte and a size byte, with that many bytes: a stream, or code from an
//! offset on.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtit_flow::{
    AdditiveDecoder, EdgeCounter, EdgeTotal, LedgerSpan, ParallelConfig, ReusableDecoder, Settings,
    StreamDecoder, TimeSettings, Totals, TransitionLimits,
};
use rtit_image::{Space, SpaceView};

/// A packet can run all the code some fifty times: little code keeps a case short.
const CODE: usize = 256;
const BASE: u64 = 0x1000;
/// Streams and changes of a case.
const MOST: usize = 16;

fuzz_target!(|data: &[u8]| {
    let Some((&options, mut rest)) = data.split_first() else {
        return;
    };
    let settings = settings(options);
    let mut code = [0x90; CODE];
    let mut decoder = ReusableDecoder::new(view(&code), &settings);
    let mut hits = EdgeCounter::default();
    for _ in 0..MOST {
        let Some((&[kind, size], tail)) = rest.split_first_chunk::<2>() else {
            return;
        };
        // Streams are longer than pieces of code.
        let size = usize::from(size) * if kind & 1 == 1 { 4 } else { 1 };
        let (part, tail) = tail.split_at(size.min(tail.len()));
        rest = tail;
        if kind & 1 == 0 {
            let at = usize::from(kind).min(CODE);
            let part = &part[..part.len().min(CODE - at)];
            code[at..at + part.len()].copy_from_slice(part);
            let (from, to) = (BASE + at as u64, BASE + (at + part.len()) as u64);
            let known = match kind & 2 {
                0 => decoder.forget_changed_code(view(&code), from, to),
                _ => decoder.forget_changed_code(view(&code), 0, u64::MAX),
            };
            assert!(known);
            continue;
        }
        let expected = walked(part, &code, &settings);
        decoder.decode_whole_stream(part, &mut hits);
        let found = DecodedStream {
            counts: format!("{:?}", decoder.counts()),
            spans: decoder.coverage_ledger().closed_spans().to_vec(),
            edges: hits.take_edges(),
        };
        assert_eq!(found, expected);
        assert_eq!(threads(part, &code, &settings, kind), expected);
    }
});

/// What one stream gives.
#[derive(PartialEq, Debug)]
struct DecodedStream {
    counts: String,
    spans: Vec<LedgerSpan>,
    edges: Vec<EdgeTotal>,
}

fn settings(options: u8) -> Settings {
    let small = TransitionLimits {
        entries: 128,
        stride: 9,
        words: 40,
        fusion_warm_up: 0,
    };
    Settings {
        no_tnt: options & 1 != 0,
        no_retcomp: options & 2 != 0,
        cache_limit: if options & 4 != 0 { 1000 } else { 1 << 26 },
        transitions: if options & 8 != 0 {
            small
        } else {
            TransitionLimits {
                entries: 1 << 12,
                fusion_warm_up: 0,
                ..TransitionLimits::default()
            }
        },
        time: TimeSettings {
            mtc_freq: 3,
            tsc_ctc: (80, 2),
            max_nonturbo_ratio: 10,
            ..TimeSettings::default()
        },
        ..Settings::default()
    }
}

fn view(code: &[u8]) -> SpaceView {
    let mut space = Space::new();
    space.map_bytes(0, BASE, code.into());
    space.view_at_start()
}

fn walked(stream: &[u8], code: &[u8], settings: &Settings) -> DecodedStream {
    let settings = Settings {
        transitions: TransitionLimits::NONE,
        ..*settings
    };
    let mut flow = StreamDecoder::for_totals(stream, view(code), &settings);
    while flow.decode_until_full() {}
    DecodedStream {
        counts: format!("{:?}", flow.counts()),
        spans: flow.coverage_ledger().closed_spans().to_vec(),
        edges: flow.totals().sorted_edges(),
    }
}

fn threads(stream: &[u8], code: &[u8], settings: &Settings, kind: u8) -> DecodedStream {
    let division = ParallelConfig {
        segment_bytes: 16 + usize::from(kind),
        max_lead_in: 1000,
        max_ledger_entries: 1 + usize::from(kind),
        ..ParallelConfig::for_threads(2)
    };
    let mut all: AdditiveDecoder<&[u8], Totals> =
        AdditiveDecoder::new(stream, view(code), settings, division);
    while all.decode_round() {}
    DecodedStream {
        counts: format!("{:?}", all.counts()),
        spans: all.coverage_ledger().closed_spans().to_vec(),
        edges: all.take_result().sorted_edges(),
    }
}
