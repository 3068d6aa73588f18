//! Stream after stream over the same code: whatever came before, each gives what a fresh walker gives.

use proptest::prelude::*;
use rtit_flow::{
    add_saturating, BitmapHash, BranchSink, CountingSink, EdgeCounter, EdgeFilter, EdgeTotal,
    OrderedSink, ReusableDecoder, RunEnd, Settings, Span, StreamDecoder, StreamWindow, Totals,
    TransitionLimits,
};

use super::program::{plan, Plan, Traced};

/// What one stream gives.
#[derive(PartialEq, Debug)]
struct Found {
    counts: String,
    spans: Vec<Span>,
    edges: Vec<EdgeTotal>,
    maps: Vec<Vec<u8>>,
}

const SIZES: [usize; 2] = [1 << 6, 1 << 16];

fn maps(each: impl Fn(&mut dyn FnMut(u64, u64, RunEnd, u64))) -> Vec<Vec<u8>> {
    let mut maps = Vec::new();
    for index in BitmapHash::ALL {
        for which in EdgeFilter::ALL {
            for size in SIZES {
                let mut map = vec![0; size];
                each(&mut |from, to, kind, count| {
                    if which.accepts(kind) {
                        let at = index.slot(from, to, size as u64 - 1) as usize;
                        map[at] = add_saturating(map[at], count);
                    }
                });
                maps.push(map);
            }
        }
    }
    maps
}

/// A fresh decoder that takes every packet by itself; the maps are of its branches, one by one.
fn walked(traced: &Traced, settings: &Settings) -> Found {
    let settings = Settings {
        transitions: TransitionLimits::NONE,
        ..*settings
    };
    let mut totals = StreamDecoder::adding_up(&traced.stream[..], traced.view(), &settings);
    while totals.advance() {}
    let mut sink = BranchSink::default();
    sink.set_limit(usize::MAX);
    let mut flow = StreamDecoder::with_sink(&traced.stream[..], traced.view(), &settings, sink);
    while flow.advance() {}
    let branches = flow.sink_mut().take_batch();
    Found {
        counts: format!("{:?}", flow.counts()),
        spans: flow.ledger().spans().to_vec(),
        edges: totals.totals().edges(),
        maps: maps(|take| {
            for at in 0..branches.from.len() {
                let kind = RunEnd::ALL[usize::from(branches.kind[at])];
                take(branches.from[at], branches.to[at], kind, 1);
            }
        }),
    }
}

/// As `maps` of what the hits say, by the max_counters that are found once: those of the last map are known from the stream
/// before.
fn maps_of_cells(hits: &mut EdgeCounter) -> Vec<Vec<u8>> {
    let mut kinds = Vec::new();
    for index in BitmapHash::ALL {
        for which in EdgeFilter::ALL {
            kinds.extend(SIZES.map(|size| (index, which, size)));
        }
    }
    let mut map = |&(index, which, size): &(BitmapHash, EdgeFilter, usize)| {
        let mut map = vec![0; size];
        hits.for_each_bitmap_slot(index, which, size as u64 - 1, |at, count| {
            map[at as usize] = add_saturating(map[at as usize], count);
        });
        map
    };
    let last: Vec<Vec<u8>> = kinds.last().map(&mut map).into_iter().collect();
    let maps: Vec<Vec<u8>> = kinds.iter().map(&mut map).collect();
    assert_eq!(maps.last(), last.first());
    maps
}

fn warm(decoder: &mut ReusableDecoder, hits: &mut EdgeCounter, traced: &Traced) -> Found {
    decoder.run(&traced.stream, hits);
    let maps_of_cells = maps_of_cells(hits);
    let found = Found {
        counts: format!("{:?}", decoder.counts()),
        spans: decoder.ledger().spans().to_vec(),
        edges: hits.edges(),
        maps: maps(|take| hits.for_each_edge(take)),
    };
    assert_eq!(maps_of_cells, found.maps);
    hits.clear();
    found
}

/// One stream: how the program runs, what is damaged, which instruction is another from here on.
#[derive(Clone, Debug)]
struct Turn {
    /// `None`: those of the turn before.
    choices: Option<Vec<u8>>,
    flip: Option<(usize, u8)>,
    cut: Option<usize>,
    change: Option<(usize, bool)>,
    count_first: bool,
}

fn turn() -> impl Strategy<Value = Turn> {
    (
        prop::option::weighted(0.5, prop::collection::vec(any::<u8>(), 1..60)),
        prop::option::weighted(0.3, (any::<usize>(), any::<u8>())),
        prop::option::weighted(0.2, any::<usize>()),
        prop::option::weighted(0.3, (any::<usize>(), any::<bool>())),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(choices, flip, cut, change, count_first)| Turn {
            choices,
            flip,
            cut,
            change,
            count_first,
        })
}

fn limits() -> impl Strategy<Value = (TransitionLimits, usize)> {
    let small = TransitionLimits {
        entries: 128,
        stride: 9,
        words: 40,
        fusion_warm_up: 0,
    };
    let eager = TransitionLimits {
        fusion_warm_up: 0,
        ..TransitionLimits::default()
    };
    prop_oneof![
        4 => Just((eager, 1 << 20)),
        1 => Just((TransitionLimits { stride: 30, ..eager }, 1 << 20)),
        3 => Just((TransitionLimits::default(), 1 << 20)),
        1 => Just((small, 1 << 20)),
        1 => Just((TransitionLimits::default(), 2000)),
        1 => Just((TransitionLimits::NONE, 1 << 20)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_of_what_came_before_shows(
        first in plan(),
        turns in prop::collection::vec(turn(), 1..8),
        (transitions, cache_limit) in limits(),
    ) {
        let settings = Settings { transitions, cache_limit, ..first.settings() };
        let mut now: Plan = first;
        let mut decoder = ReusableDecoder::new(now.trace().view(), &settings);
        let mut hits = EdgeCounter::default();
        let mut choices = vec![0];
        for turn in turns {
            choices = turn.choices.unwrap_or(choices);
            let mut traced = now.otherwise(choices.clone()).trace();
            let mut told = now.changes_while_it_runs().then_some((0, u64::MAX));
            if let Some((changed, start, end)) = turn.change.and_then(|(at, _)| now.changed(at)) {
                let whole = turn.change.is_some_and(|(_, whole)| whole) || told.is_some();
                now = changed;
                traced = now.otherwise(choices.clone()).trace();
                told = Some(if whole { (0, u64::MAX) } else { (start, end) });
            }
            if let Some((start, end)) = told {
                decoder.forget(traced.view(), start, end);
            }
            if let Some((at, value)) = turn.flip {
                let at = at % traced.stream.len();
                traced.stream[at] ^= value;
            }
            if let Some(cut) = turn.cut {
                traced.stream.truncate(cut % traced.stream.len());
            }
            let expected = walked(&traced, &settings);
            if turn.count_first {
                decoder.run(&traced.stream, &mut CountingSink);
                prop_assert_eq!(format!("{:?}", decoder.counts()), &expected.counts[..]);
                let mut totals = Totals::default();
                decoder.run(&traced.stream, &mut totals);
                decoder.take_totals(&mut totals);
                prop_assert_eq!(&totals.edges(), &expected.edges);
                prop_assert_eq!(format!("{:?}", decoder.counts()), &expected.counts[..]);
            }
            let found = warm(&mut decoder, &mut hits, &traced);
            prop_assert_eq!(found, expected);
        }
    }
}

/// A conditional branch in a loop, taken 240 times: 40 packets of 6 results.
fn taken_240_times() -> Traced {
    let mut stream = [0x02, 0x82].repeat(8);
    stream.extend([0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23]);
    stream.extend([0xfe; 40]);
    Traced::of(stream, 0x1000, &[0x74, 0x00, 0xeb, 0xfc])
}

/// From the first PSB on, at an address, with these packets.
fn stream(ip: u32, packets: &[&[u8]]) -> Vec<u8> {
    let mut stream = [0x02, 0x82].repeat(8);
    stream.extend([0x99, 0x01, 0x7d]);
    stream.extend(&u64::from(ip).to_le_bytes()[..6]);
    stream.extend([0x02, 0x23]);
    stream.extend(packets.concat());
    stream.extend([0; 16]);
    stream
}

/// Two streams, again and again: pieces of one come in the other, where they stand for something else.
fn take_turns(streams: [Vec<u8>; 2], address: u64, code: &[u8]) -> [Found; 2] {
    let transitions = TransitionLimits {
        fusion_warm_up: 0,
        ..TransitionLimits::default()
    };
    let settings = Settings {
        transitions,
        ..Settings::default()
    };
    let traced = streams.map(|stream| Traced::of(stream, address, code));
    let mut decoder = ReusableDecoder::new(traced[0].view(), &settings);
    let mut hits = EdgeCounter::default();
    for which in [0, 0, 0, 1, 1, 0, 1] {
        let found = warm(&mut decoder, &mut hits, &traced[which]);
        assert_eq!(found, walked(&traced[which], &settings));
    }
    traced.map(|traced| walked(&traced, &settings))
}

/// Two bytes of a target, of which the others are those of the IP before.
#[test]
fn the_same_bytes_after_another_ip() {
    let mut code = vec![0x90; 0x21000];
    let mut put = |at: usize, bytes: &[u8]| code[at..at + bytes.len()].copy_from_slice(bytes);
    // 1000 and 21000: jmp 3000; 3000: je 3004; jmp 3000; 3004: jmp rax; 1200 and 21200: je; jmp back
    put(0, &[0xe9, 0xfb, 0x1f, 0, 0]);
    put(0x20000, &[0xe9, 0xfb, 0x1f, 0xfe, 0xff]);
    put(0x2000, &[0x74, 0x02, 0xeb, 0xfc, 0xff, 0xe0]);
    put(0x200, &[0x74, 0x00, 0xeb, 0xfc]);
    put(0x20200, &[0x74, 0x00, 0xeb, 0xfc]);
    // a PAD is the walker's
    let packets: &[&[u8]] = &[
        &[0x80; 3],
        &[0],
        &[0x80; 9],
        &[0x06, 0x2d, 0x00, 0x12],
        &[0xfe; 9],
    ];
    let streams = [stream(0x1000, packets), stream(0x21000, packets)];
    let found = take_turns(streams, 0x1000, &code);
    for (found, to) in found.iter().zip([0x1200, 0x21200]) {
        assert!(found
            .edges
            .iter()
            .any(|edge| (edge.from, edge.to) == (0x3004, to)));
    }
}

/// Calls and their RETs, of which the first one pushes the oldest of 64 off.
#[test]
fn the_same_bytes_on_a_full_stack() {
    let mut code = vec![0x90; 0x50];
    let mut put = |at: usize, bytes: &[u8]| code[at..at + bytes.len()].copy_from_slice(bytes);
    // 1000: je 1010; je 1020; ret; 1010: call 1000; jmp 1000; 1020: call 1040; jmp 1000; 1040: je 1042; ret
    put(0, &[0x74, 0x0e, 0x74, 0x1c, 0xc3]);
    put(0x10, &[0xe8, 0xeb, 0xff, 0xff, 0xff, 0xeb, 0xe9]);
    put(0x20, &[0xe8, 0x1b, 0, 0, 0, 0xeb, 0xd9]);
    put(0x40, &[0x74, 0x00, 0xc3]);
    // a leaf is not taken, taken, not taken, taken: two packets have three
    let leaves: &[u8] = &[0xaa; 18];
    let shallow: &[&[u8]] = &[&[0xfe; 2], &[0], leaves, &[0], &[0x92; 6]];
    let deep: &[&[u8]] = &[&[0xfe; 10], &[0x3e], &[0], leaves, &[0], &[0x92; 32]];
    let streams = [stream(0x1000, shallow), stream(0x1000, deep)];
    let [shallow, deep] = take_turns(streams, 0x1000, &code);
    assert!(shallow.spans.iter().all(|span| span.error.is_none()));
    assert!(deep.spans.iter().any(|span| span.error.is_some()));
}

/// Code that ended at what is no instruction, or where nothing was, and goes on there now: je; nop; nop; then a byte;
/// jmp rax. Of the two results the second waits at the jump: what is before it has not run, wherever the code ended
/// once.
#[test]
fn code_that_goes_on_where_it_ended() {
    let packets: &[&[u8]] = &[&[0x0e]];
    let code = |byte: u8| [0x74, 0x00, 0x90, 0x90, byte, 0xff, 0xe0];
    let settings = Settings::default();
    let now = Traced::of(stream(0x1000, packets), 0x1000, &code(0x90));
    let expected = walked(&now, &settings);
    for before in [&code(0x06)[..], &code(0x90)[..4]] {
        let before = Traced::of(stream(0x1000, packets), 0x1000, before);
        let mut decoder = ReusableDecoder::new(before.view(), &settings);
        let mut hits = EdgeCounter::default();
        assert_eq!(
            warm(&mut decoder, &mut hits, &before),
            walked(&before, &settings)
        );
        assert!(decoder.forget(now.view(), 0x1004, 0x1005));
        assert_eq!(warm(&mut decoder, &mut hits, &now), expected);
    }
}

/// Of totals the first max_counters have counts of their own; of hits each has.
#[test]
fn hits_of_all_places() {
    let mut code = [0x74, 0x00].repeat(60);
    code.extend([0xeb, 0x86]);
    let traced = Traced::of(stream(0x1000, &[&[0xfe; 500], &[0xaa; 500]]), 0x1000, &code);
    let expected = walked(&traced, &Settings::default());
    assert!(expected.edges.len() > 60);
    // code is forgotten on the way, and with it the transitions that were taken
    let settings = Settings {
        max_counters: 1,
        cache_limit: 4000,
        ..Settings::default()
    };
    let mut decoder = ReusableDecoder::new(traced.view(), &settings);
    let mut totals = Totals::with_max_counters(1);
    decoder.run(&traced.stream, &mut totals);
    decoder.take_totals(&mut totals);
    assert_eq!(totals.edges().len(), 1);
    let mut hits = EdgeCounter::default();
    for _ in 0..6 {
        assert_eq!(warm(&mut decoder, &mut hits, &traced), expected);
    }
}

/// Hits of a stream in many pieces, and of several streams that nobody took.
#[test]
fn hits_of_many_pieces() {
    let traced = taken_240_times();
    let mut decoder = ReusableDecoder::new(traced.view(), &Settings::default());
    let mut hits = EdgeCounter::default();
    let window = StreamWindow::whole(&traced.stream);
    for _ in 0..5 {
        decoder.begin(window);
        while decoder.advance(window, decoder.position() + 1, &mut hits) {}
    }
    assert_eq!(hits.edges()[0].count, 5 * 240);
}

/// A loop over a conditional branch, of results that hardly repeat, again and again: what is added up of many pieces of
/// the stream is what its bits say.
#[test]
fn a_long_stream_again_and_again() {
    let mut stream = [0x02, 0x82].repeat(8);
    stream.extend([0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23]);
    let results = (0..5000u32).map(|at| (at.wrapping_mul(0x9E37_79B1) >> 24) as u8 & 0xfe | 4);
    let results: Vec<u8> = results.collect();
    let bits = |tnt: &u8| u64::from(7 - tnt.leading_zeros() - 1);
    let all: u64 = results.iter().map(bits).sum();
    // all bits set but the one that ends them
    let taken: u64 = results
        .iter()
        .map(|tnt| u64::from(tnt.count_ones() - 1))
        .sum();
    stream.extend(&results);
    let traced = Traced::of(stream, 0x1000, &[0x74, 0x00, 0xeb, 0xfc]);
    let mut decoder = ReusableDecoder::new(traced.view(), &Settings::default());
    let mut hits = EdgeCounter::default();
    for _ in 0..6 {
        decoder.run(&traced.stream, &mut hits);
        let mut sum = 0;
        hits.for_each_bitmap_slot(
            BitmapHash::Afl,
            EdgeFilter::Conditional,
            0xffff,
            |_, count| sum += count,
        );
        assert_eq!(sum, all);
        let edges = hits.take();
        let of = |kind: RunEnd| edges.iter().find(|edge| edge.kind == kind as u8);
        assert_eq!(of(RunEnd::Conditional).map(|edge| edge.count), Some(taken));
        assert_eq!(of(RunEnd::Cut).map(|edge| edge.count), Some(all - taken));
    }
}

/// Totals that nobody took are those of their stream alone.
#[test]
fn totals_that_were_left() {
    let traced = taken_240_times();
    // with so little room hits are added up in the midst of a stream
    let transitions = TransitionLimits {
        words: 4,
        stride: 8,
        ..TransitionLimits::default()
    };
    let settings = Settings {
        transitions,
        ..Settings::default()
    };
    let mut decoder = ReusableDecoder::new(traced.view(), &settings);
    for _ in 0..3 {
        decoder.run(&traced.stream, &mut Totals::default());
    }
    let mut totals = Totals::default();
    decoder.run(&traced.stream, &mut totals);
    decoder.take_totals(&mut totals);
    assert_eq!(totals.edges()[0].count, 240);
}

#[test]
fn counters_stay_at_255_and_have_their_classes() {
    assert_eq!(add_saturating(250, 5), 255);
    assert_eq!(add_saturating(250, 6), 255);
    assert_eq!(add_saturating(0, u64::MAX), 255);
    // the lookup table of AFL's technical notes
    let classes = [
        (0, 0, 0),
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 4),
        (4, 7, 8),
        (8, 15, 16),
        (16, 31, 32),
        (32, 127, 64),
        (128, 255, 128),
    ];
    for (first, last, class) in classes {
        for count in first..=last {
            assert_eq!(rtit_flow::count_class(count), class, "{count}");
        }
    }
}

/// By hand: AFL's (ip >> 4) ^ (ip << 8), the second one halved; libxdc's with one multiplication.
#[test]
fn indexes() {
    // 0x401000: 0x40100 ^ 0x40100000 = 0x40140100; 0x401010: 0x40101 ^ 0x40101000 = 0x40141101
    assert_eq!(
        BitmapHash::Afl.slot(0x401000, 0x401010, 0xffff),
        0x1101 ^ 0x0080
    );
    assert_eq!(BitmapHash::Afl.slot(0, 0, 0xffff), 0);
    // small addresses do not reach bit 31: 1 * k and (2 * k) >> 1, which is k without bit 63
    let k: u64 = 0x7fb5_d329_728e_a185;
    assert_eq!(BitmapHash::Libxdc.slot(0, 1, u64::MAX), k & 0xffff_ffff);
    assert_eq!(BitmapHash::Libxdc.slot(2, 1, u64::MAX), 0);
    assert_eq!(BitmapHash::Libxdc.slot(0, 3, 0xff), (3 * 0x85) & 0xff);
}
