//! Stream after stream over the code of several spaces that changes, in the midst of a stream or between two, also of a
//! space in which the program is not: each gives what a fresh walker gives.

use proptest::prelude::*;
use rtit_flow::{
    add_saturating, BitmapHash, ByteStatus, EdgeCounter, EdgeFilter, EdgeTotal, ReusableDecoder,
    RunEnd, Settings, Span, StreamDecoder, TransitionLimits,
};

use super::world::{fill, programs_that_change, run, spaces, Program, SLOTS};

const UNTIL: u64 = 40;
const SIZE: usize = 1 << 8;

/// A stream: its turns, results and times; what is another from its beginning on, whether all is said to be; its
/// damage.
#[derive(Clone, Debug)]
struct Round {
    turns: Vec<usize>,
    results: Vec<bool>,
    times: Vec<u64>,
    change: Option<(usize, usize, Vec<usize>, bool)>,
    flip: Option<(usize, u8)>,
}

fn round() -> impl Strategy<Value = Round> {
    let change = (any::<usize>(), 0..SLOTS, fill(), any::<bool>());
    let parts = (
        prop::collection::vec(0..3_usize, 1..40),
        prop::collection::vec(any::<bool>(), 1..50),
        prop::collection::vec(1..=UNTIL, 0..20),
        prop::option::weighted(0.4, change),
        prop::option::weighted(0.2, (any::<usize>(), any::<u8>())),
    );
    parts.prop_map(|(turns, results, mut times, change, flip)| {
        times.sort_unstable();
        Round {
            turns,
            results,
            times,
            change,
            flip,
        }
    })
}

/// What a stream gives.
#[derive(PartialEq, Debug)]
struct Found {
    counts: String,
    spans: Vec<Span>,
    edges: Vec<EdgeTotal>,
    map: Vec<u8>,
}

fn walked(programs: &[Program], stream: &[u8], settings: &Settings) -> Found {
    let settings = Settings {
        transitions: TransitionLimits::NONE,
        ..*settings
    };
    let mut flow = StreamDecoder::adding_up(stream, spaces(programs), &settings);
    while flow.advance() {}
    let edges = flow.totals().edges();
    let mut map = vec![0; SIZE];
    for edge in &edges {
        if EdgeFilter::Decided.accepts(RunEnd::ALL[usize::from(edge.kind)]) {
            let at = BitmapHash::Afl.slot(edge.from, edge.to, SIZE as u64 - 1) as usize;
            map[at] = add_saturating(map[at], edge.count);
        }
    }
    Found {
        counts: format!("{:?}", flow.counts()),
        spans: flow.ledger().spans().to_vec(),
        edges,
        map,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn code_that_changes(
        mut programs in programs_that_change(4, UNTIL),
        rounds in prop::collection::vec(round(), 1..6),
        eager in any::<bool>(),
        cache_limit in prop_oneof![3 => Just(1 << 20), 1 => Just(1 << 14), 1 => Just(1 << 12)],
    ) {
        let fusion_warm_up = if eager { 0 } else { TransitionLimits::default().fusion_warm_up };
        let transitions = TransitionLimits { fusion_warm_up, ..TransitionLimits::default() };
        let settings = Settings { transitions, cache_limit, ..Settings::default() };
        let mut decoder = ReusableDecoder::new(spaces(&programs), &settings);
        let mut hits = EdgeCounter::default();
        for Round { turns, results, times, change, flip } in rounds {
            if let Some((which, slot, fill, all)) = change {
                let which = which % programs.len();
                programs[which].set(slot, fill);
                let (start, end) = if all { (0, u64::MAX) } else { Program::range(slot) };
                prop_assert!(decoder.forget(spaces(&programs), start, end));
            }
            let (ran, mut stream) = run(&programs, &turns, &results, 2, &times);
            match flip {
                Some((at, bits)) => {
                    let at = at % stream.len();
                    stream[at] ^= bits;
                }
                None => {
                    let mut flow = StreamDecoder::instructions(&stream[..], spaces(&programs), &settings);
                    let mut ips = Vec::new();
                    while let Some(batch) = flow.next_batch(50) {
                        ips.extend(batch.ips);
                    }
                    prop_assert_eq!(ips, ran.ips);
                    prop_assert!(flow.ledger().spans().iter().all(|span| span.status == ByteStatus::Exact));
                }
            }
            let expected = walked(&programs, &stream, &settings);
            for _ in 0..2 {
                decoder.run(&stream, &mut hits);
                let mut map = vec![0; SIZE];
                hits.for_each_bitmap_slot(BitmapHash::Afl, EdgeFilter::Decided, SIZE as u64 - 1, |at, count| {
                    map[at as usize] = add_saturating(map[at as usize], count);
                });
                let found = Found {
                    counts: format!("{:?}", decoder.counts()),
                    spans: decoder.ledger().spans().to_vec(),
                    edges: hits.take(),
                    map,
                };
                prop_assert_eq!(&found, &expected);
            }
        }
    }
}
