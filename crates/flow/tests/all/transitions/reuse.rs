//! Decoders that reuse code: stream after stream by one decoder, and code caches that finished decoders hand on.
//! Whatever came before, the results are those of a new decoder.

use proptest::prelude::*;
use rtit_flow::{
    add_saturating_at_255, BitmapHash, BranchSink, CodeCachePool, CountingSink, EdgeCounter,
    EdgeFilter, EdgeTotal, LedgerSpan, OrderedSink, ReusableDecoder, RunEnd, Settings,
    StreamDecoder, StreamWindow, Totals, TransitionLimits,
};
use rtit_image::Space;

use super::program::{execution_plan, ExecutionPlan, TracedProgram};
use super::proptest_config;
use super::results::all_results;
use crate::support::{eager_fusion, stream_from_ip};

/// The results of one stream.
#[derive(PartialEq, Debug)]
struct StreamResults {
    counts: String,
    spans: Vec<LedgerSpan>,
    edges: Vec<EdgeTotal>,
    maps: Vec<Vec<u8>>,
}

const SIZES: [usize; 2] = [1 << 6, 1 << 16];

fn bitmaps(each: impl Fn(&mut dyn FnMut(u64, u64, RunEnd, u64))) -> Vec<Vec<u8>> {
    let mut maps = Vec::new();
    for index in BitmapHash::ALL {
        for which in EdgeFilter::ALL {
            for size in SIZES {
                let mut map = vec![0; size];
                each(&mut |from, to, kind, count| {
                    if which.accepts_edge(kind) {
                        let at = index.bitmap_slot(from, to, size as u64 - 1) as usize;
                        map[at] = add_saturating_at_255(map[at], count);
                    }
                });
                maps.push(map);
            }
        }
    }
    maps
}

/// Returns the results of a new decoder without transition tables; the maps are those of its branches, one by one.
fn interpreter_results(traced: &TracedProgram, settings: &Settings) -> StreamResults {
    let settings = Settings {
        transitions: TransitionLimits::NONE,
        ..*settings
    };
    let mut totals = StreamDecoder::for_totals(&traced.stream[..], traced.view(), &settings);
    while totals.decode_until_full() {}
    let mut sink = BranchSink::default();
    sink.set_row_limit(usize::MAX);
    let mut flow = StreamDecoder::with_sink(&traced.stream[..], traced.view(), &settings, sink);
    while flow.decode_until_full() {}
    let branches = flow.sink_mut().take_batch();
    StreamResults {
        counts: format!("{:?}", flow.counts()),
        spans: flow.coverage_ledger().closed_spans().to_vec(),
        edges: totals.totals().sorted_edges(),
        maps: bitmaps(|take| {
            for at in 0..branches.from.len() {
                let kind = RunEnd::ALL[usize::from(branches.kind[at])];
                take(branches.from[at], branches.to[at], kind, 1);
            }
        }),
    }
}

/// As `bitmaps`, by bitmap slots; those of the last map are known from the stream before.
fn maps_by_slot(hits: &mut EdgeCounter) -> Vec<Vec<u8>> {
    let mut kinds = Vec::new();
    for index in BitmapHash::ALL {
        for which in EdgeFilter::ALL {
            kinds.extend(SIZES.map(|size| (index, which, size)));
        }
    }
    let mut map = |&(index, which, size): &(BitmapHash, EdgeFilter, usize)| {
        let mut map = vec![0; size];
        hits.for_each_bitmap_slot(index, which, size as u64 - 1, |at, count| {
            map[at as usize] = add_saturating_at_255(map[at as usize], count);
        });
        map
    };
    let last: Vec<Vec<u8>> = kinds.last().map(&mut map).into_iter().collect();
    let maps: Vec<Vec<u8>> = kinds.iter().map(&mut map).collect();
    assert_eq!(maps.last(), last.first());
    maps
}

fn decode_next_stream(
    decoder: &mut ReusableDecoder,
    hits: &mut EdgeCounter,
    traced: &TracedProgram,
) -> StreamResults {
    decoder.decode_whole_stream(&traced.stream, hits);
    let maps_by_slot = maps_by_slot(hits);
    let found = StreamResults {
        counts: format!("{:?}", decoder.counts()),
        spans: decoder.coverage_ledger().closed_spans().to_vec(),
        edges: hits.sorted_edges(),
        maps: bitmaps(|take| hits.for_each_edge(take)),
    };
    assert_eq!(maps_by_slot, found.maps);
    hits.clear();
    found
}

/// One stream: its choices, its damage, and a change of the code before it.
#[derive(Clone, Debug)]
struct StreamPlan {
    /// `None`: those of the stream before.
    choices: Option<Vec<u8>>,
    flip: Option<(usize, u8)>,
    cut: Option<usize>,
    change: Option<(usize, bool)>,
    count_first: bool,
}

fn stream_plan() -> impl Strategy<Value = StreamPlan> {
    (
        prop::option::weighted(0.5, prop::collection::vec(any::<u8>(), 1..60)),
        prop::option::weighted(0.3, (any::<usize>(), any::<u8>())),
        prop::option::weighted(0.2, any::<usize>()),
        prop::option::weighted(0.3, (any::<usize>(), any::<bool>())),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(choices, flip, cut, change, count_first)| StreamPlan {
            choices,
            flip,
            cut,
            change,
            count_first,
        })
}

fn transition_limits() -> impl Strategy<Value = (TransitionLimits, usize)> {
    let small = TransitionLimits {
        entries: 128,
        stride: 9,
        words: 40,
        fusion_warm_up: 0,
    };
    prop_oneof![
        4 => Just((eager_fusion(), 1 << 20)),
        1 => Just((TransitionLimits { stride: 30, ..eager_fusion() }, 1 << 20)),
        3 => Just((TransitionLimits::default(), 1 << 20)),
        1 => Just((small, 1 << 20)),
        1 => Just((TransitionLimits::default(), 2000)),
        1 => Just((TransitionLimits::NONE, 1 << 20)),
    ]
}

proptest! {
    #![proptest_config(proptest_config(1500))]

    #[test]
    fn reused_decoder_equals_a_new_one(
        first in execution_plan(),
        plans in prop::collection::vec(stream_plan(), 1..8),
        (transitions, cache_limit) in transition_limits(),
    ) {
        let settings = Settings { transitions, cache_limit, ..first.decoder_settings() };
        let mut now: ExecutionPlan = first;
        let mut decoder = ReusableDecoder::new(now.trace_execution().view(), &settings);
        let mut hits = EdgeCounter::default();
        let mut choices = vec![0];
        for plan in plans {
            choices = plan.choices.unwrap_or(choices);
            let mut traced = now.with_choices(choices.clone()).trace_execution();
            let mut changes = now.changes_while_it_runs().then_some((0, u64::MAX));
            if let Some((changed, start, end)) = plan.change.and_then(|(at, _)| now.with_changed_operation(at)) {
                let whole = plan.change.is_some_and(|(_, whole)| whole) || changes.is_some();
                now = changed;
                traced = now.with_choices(choices.clone()).trace_execution();
                changes = Some(if whole { (0, u64::MAX) } else { (start, end) });
            }
            if let Some((start, end)) = changes {
                decoder.forget_changed_code(traced.view(), start, end);
            }
            if let Some((at, value)) = plan.flip {
                let at = at % traced.stream.len();
                traced.stream[at] ^= value;
            }
            if let Some(cut) = plan.cut {
                traced.stream.truncate(cut % traced.stream.len());
            }
            let expected = interpreter_results(&traced, &settings);
            if plan.count_first {
                decoder.decode_whole_stream(&traced.stream, &mut CountingSink);
                prop_assert_eq!(format!("{:?}", decoder.counts()), &expected.counts[..]);
                let mut totals = Totals::default();
                decoder.decode_whole_stream(&traced.stream, &mut totals);
                decoder.take_totals(&mut totals);
                prop_assert_eq!(&totals.sorted_edges(), &expected.edges);
                prop_assert_eq!(format!("{:?}", decoder.counts()), &expected.counts[..]);
            }
            let found = decode_next_stream(&mut decoder, &mut hits, &traced);
            prop_assert_eq!(found, expected);
        }
    }
}

/// A conditional branch in a loop, taken 240 times: 40 packets of 6 results.
fn branch_taken_240_times() -> TracedProgram {
    TracedProgram::new(
        stream_from_ip(0x1000, &[0xfe; 40]),
        0x1000,
        &[0x74, 0x00, 0xeb, 0xfc],
    )
}

/// A stream with these packets, then PADs.
fn padded_stream(ip: u64, packets: &[&[u8]]) -> Vec<u8> {
    stream_from_ip(ip, &[&packets.concat(), &[0; 16][..]].concat())
}

/// Decodes two streams alternately: the same bytes occur in both, with another meaning.
fn decode_alternately(streams: [Vec<u8>; 2], address: u64, code: &[u8]) -> [StreamResults; 2] {
    let settings = Settings {
        transitions: eager_fusion(),
        ..Settings::default()
    };
    let traced = streams.map(|stream| TracedProgram::new(stream, address, code));
    let mut decoder = ReusableDecoder::new(traced[0].view(), &settings);
    let mut hits = EdgeCounter::default();
    for which in [0, 0, 0, 1, 1, 0, 1] {
        let found = decode_next_stream(&mut decoder, &mut hits, &traced[which]);
        assert_eq!(found, interpreter_results(&traced[which], &settings));
    }
    traced.map(|traced| interpreter_results(&traced, &settings))
}

/// The other bytes of the target are those of LastIP.
#[test]
fn tip_of_two_bytes_after_another_last_ip_has_another_target() {
    let mut code = vec![0x90; 0x21000];
    let mut put = |at: usize, bytes: &[u8]| code[at..at + bytes.len()].copy_from_slice(bytes);
    // 1000 and 21000: jmp 3000; 3000: je 3004; jmp 3000; 3004: jmp rax; 1200 and 21200: je; jmp back
    put(0, &[0xe9, 0xfb, 0x1f, 0, 0]);
    put(0x20000, &[0xe9, 0xfb, 0x1f, 0xfe, 0xff]);
    put(0x2000, &[0x74, 0x02, 0xeb, 0xfc, 0xff, 0xe0]);
    put(0x200, &[0x74, 0x00, 0xeb, 0xfc]);
    put(0x20200, &[0x74, 0x00, 0xeb, 0xfc]);
    // the interpreter decodes a PAD
    let packets: &[&[u8]] = &[
        &[0x80; 3],
        &[0],
        &[0x80; 9],
        &[0x06, 0x2d, 0x00, 0x12],
        &[0xfe; 9],
    ];
    let streams = [
        padded_stream(0x1000, packets),
        padded_stream(0x21000, packets),
    ];
    let found = decode_alternately(streams, 0x1000, &code);
    for (found, to) in found.iter().zip([0x1200, 0x21200]) {
        assert!(found
            .edges
            .iter()
            .any(|edge| (edge.from, edge.to) == (0x3004, to)));
    }
}

/// The call of a leaf pushes the oldest of 64 entries off.
#[test]
fn reused_transitions_of_calls_on_a_full_stack_are_exact() {
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
    let streams = [padded_stream(0x1000, shallow), padded_stream(0x1000, deep)];
    let [shallow, deep] = decode_alternately(streams, 0x1000, &code);
    assert!(shallow.spans.iter().all(|span| span.error.is_none()));
    assert!(deep.spans.iter().any(|span| span.error.is_some()));
}

/// je; nop; nop; then a byte that was no instruction, or was not mapped; jmp rax. The second of two results waits at
/// the jump: the code before it has not run, wherever it ended before.
#[test]
fn code_added_where_a_node_ended_is_decoded() {
    let packets: &[&[u8]] = &[&[0x0e]];
    let code = |byte: u8| [0x74, 0x00, 0x90, 0x90, byte, 0xff, 0xe0];
    let settings = Settings::default();
    let now = TracedProgram::new(padded_stream(0x1000, packets), 0x1000, &code(0x90));
    let expected = interpreter_results(&now, &settings);
    for before in [&code(0x06)[..], &code(0x90)[..4]] {
        let before = TracedProgram::new(padded_stream(0x1000, packets), 0x1000, before);
        let mut decoder = ReusableDecoder::new(before.view(), &settings);
        let mut hits = EdgeCounter::default();
        assert_eq!(
            decode_next_stream(&mut decoder, &mut hits, &before),
            interpreter_results(&before, &settings)
        );
        assert!(decoder.forget_changed_code(now.view(), 0x1004, 0x1005));
        assert_eq!(decode_next_stream(&mut decoder, &mut hits, &now), expected);
    }
}

/// Totals have a limited number of counters, an edge counter has not.
#[test]
fn edge_counter_has_edges_beyond_the_counter_limit() {
    let mut code = [0x74, 0x00].repeat(60);
    code.extend([0xeb, 0x86]);
    let traced = TracedProgram::new(
        padded_stream(0x1000, &[&[0xfe; 500], &[0xaa; 500]]),
        0x1000,
        &code,
    );
    let expected = interpreter_results(&traced, &Settings::default());
    assert!(expected.edges.len() > 60);
    // the code cache is emptied within the stream, and with it the transitions
    let settings = Settings {
        max_counters: 1,
        cache_limit: 4000,
        ..Settings::default()
    };
    let mut decoder = ReusableDecoder::new(traced.view(), &settings);
    let mut totals = Totals::with_max_counters(1);
    decoder.decode_whole_stream(&traced.stream, &mut totals);
    decoder.take_totals(&mut totals);
    assert_eq!(totals.sorted_edges().len(), 1);
    let mut hits = EdgeCounter::default();
    for _ in 0..6 {
        assert_eq!(
            decode_next_stream(&mut decoder, &mut hits, &traced),
            expected
        );
    }
}

/// The counts of several streams in many parts add up.
#[test]
fn edge_counts_of_a_stream_in_many_parts_add_up() {
    let traced = branch_taken_240_times();
    let mut decoder = ReusableDecoder::new(traced.view(), &Settings::default());
    let mut hits = EdgeCounter::default();
    let window = StreamWindow::of_whole_stream(&traced.stream);
    for _ in 0..5 {
        decoder.begin_stream(window);
        while decoder.decode_until_offset(window, decoder.position() + 1, &mut hits) {}
    }
    assert_eq!(hits.sorted_edges()[0].count, 5 * 240);
}

/// A loop over a conditional branch, with results that hardly repeat.
#[test]
fn edge_counts_of_a_long_stream_are_those_of_its_tnt_bits() {
    let results = (0..5000u32).map(|at| (at.wrapping_mul(0x9E37_79B1) >> 24) as u8 & 0xfe | 4);
    let results: Vec<u8> = results.collect();
    let bits = |tnt: &u8| u64::from(7 - tnt.leading_zeros() - 1);
    let all: u64 = results.iter().map(bits).sum();
    // all bits set but the one that ends them
    let taken: u64 = results
        .iter()
        .map(|tnt| u64::from(tnt.count_ones() - 1))
        .sum();
    let stream = stream_from_ip(0x1000, &results);
    let traced = TracedProgram::new(stream, 0x1000, &[0x74, 0x00, 0xeb, 0xfc]);
    let mut decoder = ReusableDecoder::new(traced.view(), &Settings::default());
    let mut hits = EdgeCounter::default();
    for _ in 0..6 {
        decoder.decode_whole_stream(&traced.stream, &mut hits);
        let mut sum = 0;
        hits.for_each_bitmap_slot(
            BitmapHash::Afl,
            EdgeFilter::Conditional,
            0xffff,
            |_, count| sum += count,
        );
        assert_eq!(sum, all);
        let edges = hits.take_edges();
        let of = |kind: RunEnd| edges.iter().find(|edge| edge.kind == kind as u8);
        assert_eq!(of(RunEnd::Conditional).map(|edge| edge.count), Some(taken));
        assert_eq!(of(RunEnd::Cut).map(|edge| edge.count), Some(all - taken));
    }
}

#[test]
fn untaken_totals_do_not_count_for_the_next_stream() {
    let traced = branch_taken_240_times();
    // with so little memory counts are flushed within a stream
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
        decoder.decode_whole_stream(&traced.stream, &mut Totals::default());
    }
    let mut totals = Totals::default();
    decoder.decode_whole_stream(&traced.stream, &mut totals);
    decoder.take_totals(&mut totals);
    assert_eq!(totals.sorted_edges()[0].count, 240);
}

#[test]
fn bitmap_counters_saturate_and_have_the_classes_of_afl() {
    assert_eq!(add_saturating_at_255(250, 5), 255);
    assert_eq!(add_saturating_at_255(250, 6), 255);
    assert_eq!(add_saturating_at_255(0, u64::MAX), 255);
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
            assert_eq!(rtit_flow::afl_count_class(count), class, "{count}");
        }
    }
}

/// By hand: AFL's (ip >> 4) ^ (ip << 8), the second one halved; libxdc's with one multiplication.
#[test]
fn bitmap_hashes_are_those_of_afl_and_libxdc() {
    // 0x401000: 0x40100 ^ 0x40100000 = 0x40140100; 0x401010: 0x40101 ^ 0x40101000 = 0x40141101
    assert_eq!(
        BitmapHash::Afl.bitmap_slot(0x401000, 0x401010, 0xffff),
        0x1101 ^ 0x0080
    );
    assert_eq!(BitmapHash::Afl.bitmap_slot(0, 0, 0xffff), 0);
    // small addresses do not reach bit 31: 1 * k and (2 * k) >> 1, which is k without bit 63
    let k: u64 = 0x7fb5_d329_728e_a185;
    assert_eq!(
        BitmapHash::Libxdc.bitmap_slot(0, 1, u64::MAX),
        k & 0xffff_ffff
    );
    assert_eq!(BitmapHash::Libxdc.bitmap_slot(2, 1, u64::MAX), 0);
    assert_eq!(
        BitmapHash::Libxdc.bitmap_slot(0, 3, 0xff),
        (3 * 0x85) & 0xff
    );
}

/// A stream: its choices, its damage, the index of the code with which it is decoded, the time at which a child with
/// that code was forked, and the operation that changes before it.
type PooledStream = (
    Vec<u8>,
    Option<(usize, u8)>,
    usize,
    Option<u16>,
    Option<usize>,
);

fn pooled_stream() -> impl Strategy<Value = PooledStream> {
    (
        prop::collection::vec(any::<u8>(), 1..60),
        prop::option::weighted(0.3, (any::<usize>(), any::<u8>())),
        any::<usize>(),
        prop::option::weighted(0.3, any::<u16>()),
        prop::option::weighted(0.3, any::<usize>()),
    )
}

proptest! {
    #![proptest_config(proptest_config(300))]

    #[test]
    fn decoder_with_a_pooled_cache_equals_a_new_one(
        mut now in execution_plan(),
        streams in prop::collection::vec(pooled_stream(), 1..6),
        limit in prop_oneof![3 => Just(1 << 20), 1 => Just(2000)],
        eager in any::<bool>(),
    ) {
        let transitions = if eager { eager_fusion() } else { TransitionLimits::default() };
        let settings = Settings { cache_limit: limit, transitions, ..now.decoder_settings() };
        let interpreted = Settings { transitions: TransitionLimits::NONE, ..settings };
        let pool = CodeCachePool::default();
        let mut spaces: Vec<Space> = vec![now.trace_execution().space];
        for (choices, flip, which, forked, change) in streams {
            if let Some((changed, ..)) = change.and_then(|at| now.with_changed_operation(at)) {
                now = changed;
                spaces.push(now.trace_execution().space);
            }
            let mut traced = now.with_choices(choices).trace_execution();
            traced.flip_bits(flip);
            let space = &spaces[which % spaces.len()];
            traced.space = forked.map_or_else(|| space.clone(), |time| space.fork_at_time(time.into()));
            let expected = all_results(&traced, &interpreted, usize::MAX, usize::MAX);
            traced.cache_pool = Some(pool.clone());
            let found = all_results(&traced, &settings, 200, 30);
            let difference = found.first_difference(&expected);
            prop_assert!(difference.is_none(), "{:?}", difference);
        }
    }
}

#[test]
fn code_cache_of_a_dropped_decoder_is_used_by_the_next() {
    // 1000: jnz 1000
    let mut traced = TracedProgram::new(stream_from_ip(0x1000, &[0xfe]), 0x1000, &[0x75, 0xfe]);
    let pool = CodeCachePool::default();
    traced.cache_pool = Some(pool.clone());
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let (stream, spaces) = (&traced.stream[..], traced.spaces());
        let mut flow = StreamDecoder::with_sink(stream, spaces, &Settings::default(), CountingSink);
        while flow.decode_until_full() {}
        assert_eq!(flow.counts().conditional, 6);
        sizes.push(pool.size_in_bytes());
        drop(flow);
        sizes.push(pool.size_in_bytes());
    }
    assert!(sizes[1] > 0);
    assert_eq!(sizes, [0, sizes[1]].repeat(3));
}
