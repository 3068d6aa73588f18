//! Streams made by hand against small code, and streams made at random: nothing may panic, hang or contradict itself.

#[path = "../../examples/fuzzing_loop.rs"]
#[allow(dead_code)] // its `main`
mod fuzzing_loop;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use crate::support::{examples, psb_plus, stream_from_ip, GrowingStream};
use proptest::prelude::*;
use rtit_flow::{
    AdditiveDecoder, AddressSpaces, ByteStatus, CancellationToken, CountingSink, ErrorCause,
    ErrorClass, FlowError, HashedRunSink, InstructionRun, LedgerSpan, OrderedDecoder,
    ParallelConfig, PositionedEvent, ReusableDecoder, RunColumns, Settings, StreamDecoder,
};
use rtit_image::SpaceView;
use rtit_packet::PacketError;

const BASE: u64 = 0x1000;

/// 1000 call 100e; 1005 jnz 1009; 1007 nop nop; 1009 jnz 1000; 100b call rax; 100d nop; 100e nop; 100f ret;
/// 1010 syscall; 1012 jmp 1012; 1014 ptwrite eax; 1018 jmp rax; 101a int3; 101b mov cr3, rax; 101e nop
const CODE: &[u8] = &[
    0xe8, 0x09, 0, 0, 0, 0x75, 0x02, 0x90, 0x90, 0x75, 0xf5, 0xff, 0xd0, 0x90, 0x90, 0xc3, 0x0f,
    0x05, 0xeb, 0xfe, 0xf3, 0x0f, 0xae, 0xe0, 0xff, 0xe0, 0xcc, 0x0f, 0x22, 0xd8, 0x90,
];

fn ip_packet(opcode: u8, ip: u16) -> Vec<u8> {
    vec![0x20 | opcode, ip as u8, (ip >> 8) as u8]
}

const TIP: u8 = 0x0d;
const PGE: u8 = 0x11;
const PGD: u8 = 0x01;
const FUP: u8 = 0x1d;

fn view_of_code(code: &[u8]) -> SpaceView {
    let mut space = rtit_image::Space::new();
    space.map_bytes(0, BASE, code.into());
    space.view_at_start()
}

fn decode_ips(stream: &[u8], view: SpaceView) -> (Vec<u64>, Vec<LedgerSpan>) {
    let mut flow = StreamDecoder::for_instructions(stream, view, &Settings::default());
    let mut all = Vec::new();
    while let Some(batch) = flow.next_batch(7) {
        all.extend(batch.ips);
    }
    (all, flow.coverage_ledger().closed_spans().to_vec())
}

fn error_causes(spans: &[LedgerSpan]) -> Vec<ErrorCause> {
    spans
        .iter()
        .filter_map(|span| span.error)
        .map(|error| error.cause)
        .collect()
}

#[test]
fn compressed_return_continues_after_its_call() {
    // ret, jnz taken, jnz not taken; call rax -> 1010; syscall leaves
    let mut stream = psb_plus(Some(0x1000));
    stream.push(0x1c);
    stream.extend(ip_packet(TIP, 0x1010));
    stream.push(0x01);
    let (ips, spans) = decode_ips(&stream, view_of_code(CODE));
    assert_eq!(
        ips,
        [0x1000, 0x100e, 0x100f, 0x1005, 0x1009, 0x100b, 0x1010]
    );
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0].status, ByteStatus::Exact);
}

#[test]
fn endless_loop_is_an_error() {
    let mut stream = psb_plus(Some(0x1012));
    stream.push(0x06);
    let (ips, spans) = decode_ips(&stream, view_of_code(CODE));
    assert_eq!(ips, []);
    assert_eq!(
        error_causes(&spans),
        [ErrorCause::EndlessLoop { ip: 0x1012 }]
    );
}

#[test]
fn endless_loop_of_several_nodes_is_an_error() {
    let mut code = vec![0x90; 1500];
    code.extend([0xe9]);
    code.extend((-1505i32).to_le_bytes());
    for packets in [
        vec![0x06],
        ip_packet(TIP, 0x1000),
        ip_packet(FUP, 0x2000),
        vec![0x01],
        ip_packet(PGD, 0x1234),
    ] {
        let mut stream = psb_plus(Some(0x1000));
        stream.extend(packets);
        let (ips, spans) = decode_ips(&stream, view_of_code(&code));
        assert_eq!(ips, []);
        assert_eq!(spans.get(1).map(|span| span.status), Some(ByteStatus::Lost));
    }
    // an event strikes within it
    let mut stream = psb_plus(Some(0x1000));
    stream.extend(ip_packet(FUP, 0x1400));
    let (ips, _) = decode_ips(&stream, view_of_code(&code));
    assert_eq!(ips.len(), 0x400);
}

#[test]
fn changed_code_is_decoded_again() {
    let mut space = rtit_image::Space::new();
    space.map_bytes(0, BASE, CODE.into());
    // 1009 becomes jnz 100d
    space.overwrite_bytes(500, 0x1009, &[0x75, 0x02]);
    let tsc = |time: u16| vec![0x19, time as u8, (time >> 8) as u8, 0, 0, 0, 0, 0];
    let mut stream = Vec::new();
    for time in [100, 600] {
        stream.extend(psb_plus(None));
        stream.extend(tsc(time));
        stream.extend([0x71, 0x09, 0x10, 0, 0, 0, 0]);
        stream.push(0x06);
        stream.extend(ip_packet(FUP, if time == 100 { 0x1000 } else { 0x100d }));
        stream.push(0x01);
    }
    let (ips, spans) = decode_ips(&stream, space.view_at_start());
    assert_eq!(ips, [0x1009, 0x1009]);
    assert_eq!(error_causes(&spans), []);
}

#[test]
fn code_mapped_later_is_decoded() {
    let mut space = rtit_image::Space::new();
    space.map_bytes(0, BASE, CODE.get(..9).unwrap_or(&[]).into());
    space.unmap_range(1, 0x1009, 1);
    space.map_bytes(500, 0x1009, CODE.get(9..).unwrap_or(&[]).into());
    let mut stream = psb_plus(Some(0x1007));
    stream.push(0x06);
    stream.extend(psb_plus(Some(0x1007)));
    stream.extend([0x19, 0x00, 0x10, 0, 0, 0, 0, 0]);
    stream.push(0x06);
    let (ips, _) = decode_ips(&stream, space.view_at_start());
    assert_eq!(
        ips.get(ips.len() - 3..),
        Some(&[0x1007, 0x1008, 0x1009][..])
    );
}

/// A node that ended where nothing was mapped does not end there any more.
#[test]
fn code_unmapped_and_mapped_again_is_decoded_as_before() {
    // 1000: je 1002; 1002: nop; nop; 1004: nop; jmp rax
    let mut space = rtit_image::Space::new();
    space.map_bytes(0, BASE, [0x74, 0x00, 0x90, 0x90][..].into());
    space.map_bytes(0, 0x1004, [0x90, 0xff, 0xe0][..].into());
    space.unmap_range(20, 0x1004, 3);
    space.map_bytes(40, 0x1004, [0x90, 0xff, 0xe0][..].into());
    let part = |time: u8| {
        let mut part = [0x02, 0x82].repeat(8);
        part.extend([0x19, time, 0, 0, 0, 0, 0, 0, 0x99, 0x01]);
        part.extend([0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23]);
        // two branches, of which there is one
        part.push(0x0e);
        part
    };
    let count = |stream: &[u8]| {
        let mut flow =
            StreamDecoder::for_totals(stream, space.view_at_start(), &Settings::default());
        while flow.decode_until_full() {}
        (
            flow.counts().instructions,
            decode_ips(stream, space.view_at_start()).0,
        )
    };
    let (first, second) = (count(&part(30)), count(&part(50)));
    let both = count(&[part(30), part(50)].concat());
    assert_eq!(both.0, first.0 + second.0);
    assert_eq!(both.1, [first.1, second.1].concat());
}

#[test]
fn results_do_not_depend_on_the_cache_limit() {
    let mut stream = psb_plus(Some(0x1000));
    for _ in 0..50 {
        stream.extend([0x1e, 0x3e]);
    }
    let settings = Settings {
        cache_limit: 1,
        ..Settings::default()
    };
    let mut small = StreamDecoder::new(&stream, view_of_code(CODE), &settings);
    let mut large = StreamDecoder::new(&stream, view_of_code(CODE), &Settings::default());
    assert_eq!(small.next_batch(usize::MAX), large.next_batch(usize::MAX));
}

/// A long TNT has 47 results, each a run of its own.
#[test]
fn batch_has_at_most_the_rows_asked_for() {
    let mut stream = psb_plus(Some(0x1000));
    for _ in 0..3 {
        stream.extend([0x02, 0xa3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    }
    // 1000: jnz 1000
    let mut flow = StreamDecoder::new(&stream, view_of_code(&[0x75, 0xfe]), &Settings::default());
    let mut runs = 0;
    while let Some(rows) = flow.next_batch(10) {
        assert!(rows.start.len() + rows.events.len() <= 10);
        runs += rows.start.len();
    }
    assert_eq!(runs, 3 * 47);
}

#[test]
fn errors_have_offset_and_bad_value() {
    let unknown = PacketError::UnknownOpcode {
        offset: 27,
        first: 5,
        second: None,
    };
    // where the program is, packets, the offset of the bad one among them
    let cases: [(u16, &[u8], u64, ErrorCause); 4] = [
        (
            0x1000,
            &[0x04],
            0,
            ErrorCause::NotTakenReturn { ip: 0x100f },
        ),
        // one result is left when the PSB comes
        (
            0x1000,
            &[0x1c, 0x06],
            2,
            ErrorCause::ResultsLeft { count: 1 },
        ),
        (
            0x1005,
            &[0x2d, 0x0d, 0x10],
            0,
            ErrorCause::UnexpectedTarget { ip: 0x1005 },
        ),
        (0x1000, &[0x05], 0, ErrorCause::Packet(unknown)),
    ];
    for (start, packets, at, cause) in cases {
        let mut stream = psb_plus(Some(start.into()));
        let offset = stream.len() as u64 + at;
        stream.extend(packets);
        stream.extend(psb_plus(Some(0x100d)));
        let (_, spans) = decode_ips(&stream, view_of_code(CODE));
        let errors: Vec<FlowError> = spans.iter().filter_map(|span| span.error).collect();
        assert_eq!(errors, [FlowError { offset, cause }]);
        assert_eq!(
            spans.last().map(|span| span.status),
            Some(ByteStatus::Exact)
        );
    }
}

/// Runs and events of several batches.
#[derive(PartialEq, Debug, Default)]
struct CollectedRows {
    runs: Vec<InstructionRun>,
    events: Vec<PositionedEvent>,
}

impl CollectedRows {
    fn add_batch(&mut self, batch: RunColumns) {
        self.runs.extend(batch.iter_runs());
        self.events.extend(batch.events);
    }
}

/// Checks what must hold for any stream.
fn check_stream_invariants(stream: &[u8], code: &[u8]) -> Result<(), TestCaseError> {
    let settings = Settings::default();
    let mut whole = StreamDecoder::new(stream, view_of_code(code), &settings);
    let mut rows = CollectedRows::default();
    rows.add_batch(whole.next_batch(usize::MAX).unwrap_or_default());
    prop_assert!(whole.next_batch(usize::MAX).is_none());

    let mut parts = StreamDecoder::new(stream, view_of_code(code), &settings);
    let mut joined = CollectedRows::default();
    while let Some(batch) = parts.next_batch(3) {
        joined.add_batch(batch);
    }
    prop_assert_eq!(&joined, &rows);

    for size in [1, 7, 100] {
        let windows = GrowingStream::new(stream, size);
        let mut flow = StreamDecoder::new(windows, view_of_code(code), &settings);
        let mut joined = CollectedRows::default();
        while let Some(batch) = flow.next_batch(usize::MAX) {
            joined.add_batch(batch);
            if flow.needs_next_window() {
                let position = flow.position();
                flow.stream_mut().grow_window(position);
            }
        }
        prop_assert_eq!(&joined, &rows);
        prop_assert_eq!(flow.counts().packets, whole.counts().packets);
        prop_assert_eq!(
            flow.coverage_ledger().closed_spans(),
            whole.coverage_ledger().closed_spans()
        );
    }

    let (ips, spans) = decode_ips(stream, view_of_code(code));
    let total: u64 = rows
        .runs
        .iter()
        .map(|run| u64::from(run.instructions))
        .sum();
    prop_assert_eq!(total, ips.len() as u64);
    prop_assert_eq!(total, whole.counts().instructions);
    prop_assert_eq!(&spans, whole.coverage_ledger().closed_spans());
    let mut at = 0;
    for span in &spans {
        prop_assert_eq!(span.from, at);
        prop_assert!(span.to >= span.from);
        let repeats =
            |error: &FlowError| error.cause.error_class() == ErrorClass::UnknownRepetitions;
        if span.error.as_ref().is_some_and(repeats) {
            prop_assert!(span.from == span.to && span.status != ByteStatus::Lost);
        } else {
            prop_assert_eq!(span.status == ByteStatus::Lost, span.error.is_some());
        }
        at = span.to;
    }
    prop_assert_eq!(at, stream.len() as u64);

    let mut next = ips.iter();
    let mut hashed = StreamDecoder::for_hashed_runs(stream, view_of_code(code), &settings);
    let mut batches = Vec::new();
    while let Some(batch) = hashed.next_batch(4096) {
        batches.push(batch);
    }
    for run in batches
        .iter()
        .flat_map(|batch| (0..).map_while(|at| batch.run_at(at)))
    {
        if run.instructions == 0 {
            continue; // an unknown number of repetitions
        }
        prop_assert_eq!(Some(&run.start), next.as_slice().first());
        let own: Vec<u64> = next
            .by_ref()
            .take(run.instructions as usize)
            .copied()
            .collect();
        let hash = own.iter().fold(0u64, |hash, &ip| {
            hash.wrapping_mul(rtit_flow::K)
                .wrapping_add(rtit_flow::mix_address(ip))
        });
        prop_assert_eq!(hash, run.hash);
    }
    Ok(())
}

fn random_packet() -> impl Strategy<Value = Vec<u8>> {
    let ip = || 0x0ffeu16..0x1022;
    prop_oneof![
        6 => (1u8..128).prop_map(|bits| vec![bits << 1]).prop_filter("escape", |tnt| tnt[0] > 2),
        4 => ip().prop_map(|ip| ip_packet(TIP, ip)),
        3 => ip().prop_map(|ip| ip_packet(FUP, ip)),
        2 => ip().prop_map(|ip| ip_packet(PGE, ip)),
        2 => ip().prop_map(|ip| ip_packet(PGD, ip)),
        2 => Just(vec![0x01]),
        2 => proptest::option::of(ip()).prop_map(|ip| psb_plus(ip.map(u64::from))),
        1 => any::<[u8; 6]>().prop_map(|bits| [&[0x02, 0xa3][..], &bits].concat()),
        1 => Just(vec![0x02, 0xf3]),
        1 => Just(vec![0x02, 0x83]),
        1 => (0u8..3).prop_map(|bits| vec![0x99, 0x20 | bits]),
        1 => (0u8..3).prop_map(|bits| vec![0x99, bits]),
        1 => any::<[u8; 4]>().prop_map(|data| [&[0x02, 0x12][..], &data].concat()),
        1 => any::<[u8; 4]>().prop_map(|data| [&[0x02, 0x92][..], &data].concat()),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(kind, vector)| vec![0x02, 0x13, kind & 0x9f, vector]),
        1 => any::<u16>().prop_map(|time| vec![0x19, time as u8, (time >> 8) as u8, 0, 0, 0, 0, 0]),
        1 => any::<u8>().prop_map(|ctc| vec![0x59, ctc]),
        1 => any::<u8>().prop_map(|cycles| vec![cycles & 0xf8 | 3]),
        1 => Just(vec![0x02, 0xe2]),
        1 => Just(vec![0xd9, 0x80, 0x01]),
    ]
}

fn random_packets() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(random_packet(), 0..40)
        .prop_map(|packets| [psb_plus(Some(0x1000)), packets.concat()].concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: examples(2000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_packets_keep_all_stream_invariants(stream in random_packets()) {
        check_stream_invariants(&stream, CODE)?;
    }

    #[test]
    fn random_bytes_after_a_psb_keep_all_stream_invariants(tail in proptest::collection::vec(any::<u8>(), 0..200)) {
        check_stream_invariants(&[psb_plus(Some(0x1000)), tail].concat(), CODE)?;
    }

    #[test]
    fn flipped_bits_keep_all_stream_invariants(
        stream in random_packets(),
        flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        let mut stream = stream;
        for (at, value) in flips {
            let at = at % stream.len();
            stream[at] ^= value;
        }
        check_stream_invariants(&stream, CODE)?;
    }

    #[test]
    fn random_code_keeps_all_stream_invariants(
        stream in random_packets(),
        code in proptest::collection::vec(any::<u8>(), 1..64),
    ) {
        check_stream_invariants(&stream, &code)?;
    }
}

#[test]
fn error_classes_have_distinct_numbers() {
    let mut numbers: Vec<u8> = ErrorClass::ALL.iter().map(|class| *class as u8).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), ErrorClass::ALL.len());
}

/// Bytes of code, all of it NOPs.
const NOPS: usize = 16 << 20;
/// Number of the check that cancels decoding.
const LAST_CHECK: u32 = 3;
/// A segment is about as long as a stream.
const PARALLEL: ParallelConfig = ParallelConfig {
    threads: 2,
    segment_bytes: 20,
    max_lead_in: 20,
    max_result_bytes: 1 << 20,
    max_ledger_entries: 100,
};

/// A TIP for which there is no branch.
fn stream_without_branch() -> Vec<u8> {
    stream_from_ip(BASE, &[0x2d, 0x00, 0x20])
}

fn cancelled_spaces() -> (AddressSpaces, Arc<AtomicU32>) {
    let checks = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&checks);
    let mut spaces = AddressSpaces::new(view_of_code(&vec![0x90; NOPS]));
    spaces.set_cancellation_token(CancellationToken::new(move || {
        count.fetch_add(1, Ordering::Relaxed) + 1 >= LAST_CHECK
    }));
    (spaces, checks)
}

#[test]
fn cancellation_ends_one_stream() {
    let (spaces, checks) = cancelled_spaces();
    let mut flow = StreamDecoder::with_sink(
        stream_without_branch(),
        spaces,
        &Settings::default(),
        CountingSink,
    );
    while flow.decode_until_full() {}
    assert!(!flow.is_finished());
    assert_eq!(checks.load(Ordering::Relaxed), LAST_CHECK);
    assert!(!flow.decode_until_full());
    assert_eq!(checks.load(Ordering::Relaxed), LAST_CHECK);
}

#[test]
fn cancellation_ends_additive_threads() {
    let (spaces, checks) = cancelled_spaces();
    let bytes = stream_without_branch().repeat(4);
    let mut all: AdditiveDecoder<Vec<u8>, CountingSink> =
        AdditiveDecoder::new(bytes, spaces, &Settings::default(), PARALLEL);
    while all.decode_round() {}
    assert!(!all.is_finished());
    assert!(checks.load(Ordering::Relaxed) >= LAST_CHECK);
}

#[test]
fn cancellation_ends_ordered_threads() {
    let (spaces, checks) = cancelled_spaces();
    let bytes = stream_without_branch().repeat(4);
    let sink = HashedRunSink::default();
    let mut all = OrderedDecoder::new(bytes, spaces, &Settings::default(), PARALLEL, sink);
    while all.decode_round(1000) {}
    assert!(!all.is_finished());
    assert!(checks.load(Ordering::Relaxed) >= LAST_CHECK);
}

/// The next stream is decoded until it is cancelled itself.
#[test]
fn cancellation_ends_only_the_current_stream() {
    let (spaces, checks) = cancelled_spaces();
    let mut decoder = ReusableDecoder::new(spaces, &Settings::default());
    for count in [LAST_CHECK, LAST_CHECK + 1] {
        decoder.decode_whole_stream(&stream_without_branch(), &mut CountingSink);
        assert_eq!(checks.load(Ordering::Relaxed), count);
    }
}

/// Without cancellation the missing branch is an error of the stream.
#[test]
fn long_path_without_cancellation_is_decoded() {
    let mut spaces = AddressSpaces::new(view_of_code(&vec![0x90; NOPS]));
    spaces.set_cancellation_token(CancellationToken::new(|| false));
    let mut flow = StreamDecoder::with_sink(
        stream_without_branch(),
        spaces,
        &Settings::default(),
        CountingSink,
    );
    while flow.decode_until_full() {}
    assert!(flow.is_finished());
    assert_eq!(flow.counts().instructions, NOPS as u64);
}

/// The example of a fuzzing loop finds what it looks for.
#[test]
fn fuzzing_loop_finds_the_crashing_input() {
    let (input, runs) = fuzzing_loop::fuzz_until_crash(100_000).expect("edges lead to the input");
    assert_eq!(input, b"PT!");
    // not by chance: one in 2^24 inputs is right
    assert!(runs < 50_000, "{runs}");
}
