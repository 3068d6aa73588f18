//! Programs of several address spaces at the same addresses: CR3 and NR select the space. Also stream after stream over
//! code that changes within a stream or between two, in spaces that are not the current one, too.

use crate::support::{eager_fusion, examples};
use proptest::prelude::*;
use rtit_flow::{
    add_saturating_at_255, AddressSpaces, BitmapHash, BranchSink, ByteStatus, CountingSink,
    EdgeCounter, EdgeFilter, EdgeTotal, HashedRunColumns, InstructionSink, LedgerSpan,
    OrderedDecoder, OrderedSink, ParallelConfig, PeriodTotals, ReusableDecoder, RunColumns, RunEnd,
    RunSink, Settings, SpaceKey, StreamDecoder, TransitionLimits,
};
use rtit_image::{Space, SpaceView};

const BASE: u64 = 0x1000;
/// Bytes from one MOV CR3 to the next; the last slot ends in a JMP to the first.
const SLOT: usize = 32;
const SLOTS: usize = 6;

const MOV_CR3: [u8; 3] = [0x0f, 0x22, 0xd8];
/// nop of one, two and three bytes, and jnz to what follows.
const FILL: [&[u8]; 4] = [&[0x90], &[0x66, 0x90], &[0x0f, 0x1f, 0x00], &[0x75, 0x00]];
const JNZ: usize = 3;

/// A slot with another fill from a time (TSC) on.
type Change = (u64, usize, Vec<usize>);

/// The program of one space: the fill of its slots, and later changes, in order of time.
#[derive(Clone, Debug)]
struct SpaceProgram {
    fill: Vec<Vec<usize>>,
    changes: Vec<Change>,
}

impl SpaceProgram {
    /// Sets the fill of a slot from the beginning on.
    fn set_slot_fill(&mut self, slot: usize, fill: Vec<usize>) {
        self.fill[slot] = fill;
    }

    /// The bytes of a slot: from the first up to the second.
    fn slot_range(slot: usize) -> (u64, u64) {
        let start = BASE + (slot * SLOT) as u64;
        (start, start + SLOT as u64)
    }

    fn slot_fill_at(&self, slot: usize, now: u64) -> &[usize] {
        let mut changes = self.changes.iter().rev();
        let last = changes.find(|(since, which, _)| *since <= now && *which == slot);
        last.map_or(&self.fill[slot], |(_, _, fill)| fill)
    }

    /// The instructions of a slot as (offset, fill).
    fn slot_instructions(&self, slot: usize, now: u64) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut at = 0;
        for &fill in self.slot_fill_at(slot, now).iter().cycle() {
            let room = SLOT - MOV_CR3.len() - 2 - at;
            let fill = if FILL[fill].len() > room { 0 } else { fill };
            if room == 0 {
                break;
            }
            found.push((at, fill));
            at += FILL[fill].len();
        }
        found
    }

    /// Returns the code of a slot, up to its MOV CR3.
    fn slot_code(&self, slot: usize, now: u64) -> Vec<u8> {
        let fills = self.slot_instructions(slot, now).into_iter();
        fills.flat_map(|(_, fill)| FILL[fill]).copied().collect()
    }

    fn program_view(&self) -> SpaceView {
        let mut code = Vec::new();
        for slot in 0..SLOTS {
            code.extend(self.slot_code(slot, 0));
            code.extend(MOV_CR3);
            code.extend([0x90; 2]);
        }
        code.truncate(SLOT * SLOTS - 2);
        code.extend([0xe9]);
        code.extend((-(code.len() as i32) - 4).to_le_bytes());
        let mut space = Space::new();
        space.map_bytes(0, BASE, code.as_slice().into());
        for (since, slot, _) in &self.changes {
            space.overwrite_bytes(
                *since,
                Self::slot_range(*slot).0,
                &self.slot_code(*slot, *since),
            );
        }
        space.view_at_start()
    }
}

fn slot_fills() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..FILL.len(), 1..20)
}

fn programs() -> impl Strategy<Value = Vec<SpaceProgram>> {
    programs_that_change(0, 1)
}

/// Programs with at most `max_changes` changes each, all until a time.
fn programs_that_change(
    max_changes: usize,
    until: u64,
) -> impl Strategy<Value = Vec<SpaceProgram>> {
    let changes = prop::collection::vec((1..=until, 0..SLOTS, slot_fills()), 0..=max_changes);
    let program = (prop::collection::vec(slot_fills(), SLOTS), changes);
    let program = program.prop_map(|(fill, mut changes)| {
        changes.sort_by_key(|change| change.0);
        changes.dedup_by_key(|change| (change.0, change.1));
        SpaceProgram { fill, changes }
    });
    prop::collection::vec(program, 2..4)
}

fn pip_packet(number: usize) -> Vec<u8> {
    let cr3_and_nr = (number as u64 + 1) << 8 | (number as u64 & 1);
    let mut bytes = vec![0x02, 0x43];
    bytes.extend(&cr3_and_nr.to_le_bytes()[..6]);
    bytes
}

fn space_key(number: usize) -> SpaceKey {
    SpaceKey::new((number as u64 + 1) << 12, number & 1 != 0, None)
}

/// Results as short TNTs.
fn tnt_packets(results: &[bool]) -> Vec<u8> {
    results
        .chunks(6)
        .map(|part| {
            part.iter()
                .fold(1, |byte, &taken| byte << 1 | u8::from(taken))
                << 1
        })
        .collect()
}

/// The instructions that ran.
#[derive(Default)]
struct ExecutedInstructions {
    ips: Vec<u64>,
    /// The space of each.
    spaces: Vec<u32>,
    /// Address and space of each branch.
    branches: Vec<(u64, u32)>,
    /// The last time in the packets up to each instruction.
    times: Vec<u64>,
}

impl ExecutedInstructions {
    fn run_slot(&mut self, ip: u64, program: usize) {
        self.ips.push(ip);
        self.spaces.push(program as u32 + 1);
    }

    fn run_branch(&mut self, ip: u64, program: usize) {
        self.branches.push((ip, program as u32 + 1));
    }

    /// Sets the time of the instructions since the last call.
    fn set_time(&mut self, time: u64) {
        self.times.resize(self.ips.len(), time);
    }
}

/// A PSB+, which may say what time it is.
fn psb_plus_at(number: usize, ip: u64, time: Option<u64>) -> Vec<u8> {
    let mut bytes = [0x02, 0x82].repeat(8);
    if let Some(time) = time {
        bytes.push(0x19);
        bytes.extend(&time.to_le_bytes()[..7]);
    }
    bytes.extend([0x99, 0x01]);
    bytes.extend(pip_packet(number));
    bytes.push(0x7d);
    bytes.extend(&ip.to_le_bytes()[..6]);
    bytes.extend([0x02, 0x23]);
    bytes
}

/// Reswitches what ran, and its packets. `switches`: the space to which each slot's MOV CR3 switches; after `every` of
/// them comes a PSB+, and `times` are the times of these.
fn run(
    programs: &[SpaceProgram],
    switches: &[usize],
    results: &[bool],
    every: usize,
    times: &[u64],
) -> (ExecutedInstructions, Vec<u8>) {
    let mut stream = psb_plus_at(0, BASE, None);
    let (mut executed, mut now, mut results) =
        (ExecutedInstructions::default(), 0, results.iter().cycle());
    let (mut time, mut times) = (0, times.iter().copied());
    for (index, &next) in switches.iter().enumerate() {
        let slot = index % SLOTS;
        let start = BASE + (slot * SLOT) as u64;
        let mut taken = Vec::new();
        for (at, fill) in programs[now].slot_instructions(slot, time) {
            executed.run_slot(start + at as u64, now);
            if fill == JNZ {
                executed.run_branch(start + at as u64, now);
                taken.extend(results.next());
            }
        }
        executed.run_slot(start + SLOT as u64 - 5, now);
        stream.extend(tnt_packets(&taken));
        now = next % programs.len();
        stream.extend(pip_packet(now));
        executed.set_time(time);
        if index % every == every - 1 {
            let new_time = times.next();
            time = new_time.unwrap_or(time);
            stream.extend(psb_plus_at(now, start + SLOT as u64 - 2, new_time));
        }
        executed.run_slot(start + SLOT as u64 - 2, now);
        match slot == SLOTS - 1 {
            true => executed.run_branch(start + SLOT as u64 - 2, now),
            false => executed.run_slot(start + SLOT as u64 - 1, now),
        }
    }
    executed.set_time(time);
    let at = BASE + (switches.len() % SLOTS * SLOT) as u64;
    stream.extend([0x3d, at as u8, (at >> 8) as u8, 0x01]);
    (executed, stream)
}

fn address_spaces_of(programs: &[SpaceProgram]) -> AddressSpaces {
    let mut spaces = AddressSpaces::new(rtit_image::Space::new().view_at_start());
    for (number, program) in programs.iter().enumerate() {
        spaces.add_space(space_key(number), program.program_view());
    }
    spaces
}

/// Checks that the instructions are those that ran, without a loss.
fn check_instructions(
    programs: &[SpaceProgram],
    stream: &[u8],
    settings: &Settings,
    expected: &ExecutedInstructions,
) -> Result<(), TestCaseError> {
    let mut flow = StreamDecoder::for_instructions(stream, address_spaces_of(programs), settings);
    let mut ips = Vec::new();
    while let Some(batch) = flow.next_batch(50) {
        ips.extend(batch.ips);
    }
    prop_assert_eq!(&ips, &expected.ips);
    let is_exact = |span: &LedgerSpan| span.status == ByteStatus::Exact;
    prop_assert!(flow.coverage_ledger().closed_spans().iter().all(is_exact));
    Ok(())
}

/// All batches of a sink, by one thread or by two.
fn all_batches<S: OrderedSink>(
    stream: &[u8],
    spaces: AddressSpaces,
    settings: &Settings,
    sink: S,
) -> [Vec<S::Batch>; 2] {
    let mut flow =
        StreamDecoder::with_sink(stream, spaces.clone(), settings, sink.new_empty_sink());
    flow.sink_mut().set_row_limit(7);
    let mut one = Vec::new();
    while flow.decode_until_full() {
        one.push(flow.sink_mut().take_batch());
    }
    one.push(flow.sink_mut().take_batch());
    let config = ParallelConfig {
        threads: 2,
        segment_bytes: 64,
        max_lead_in: 400,
        max_result_bytes: 1 << 20,
        max_ledger_entries: 100,
    };
    let mut flow = OrderedDecoder::new(stream, spaces, settings, config, sink);
    let mut several = Vec::new();
    loop {
        let has_more = flow.decode_round(7);
        several.extend(std::iter::from_fn(|| flow.next_batch()));
        if !has_more {
            return [one, several];
        }
    }
}

/// A column that is empty where all are 0.
fn expand_empty_column(column: &[u32], rows: usize) -> Vec<u32> {
    match column.len() {
        0 => vec![0; rows],
        _ => column.to_vec(),
    }
}

proptest! {
    #[test]
    fn rows_after_a_switch_have_the_current_space(
        programs in programs(),
        switches in prop::collection::vec(0..3_usize, 1..120),
        results in prop::collection::vec(any::<bool>(), 1..50),
    ) {
        let (expected, stream) = run(&programs, &switches, &results, 8, &[]);
        for transitions in [TransitionLimits::NONE, TransitionLimits::default()] {
            let settings = Settings { transitions, ..Settings::default() };
            for batches in all_batches(&stream, address_spaces_of(&programs), &settings, InstructionSink::new(false)) {
                let ips: Vec<u64> = batches.iter().flat_map(|batch| batch.ips.clone()).collect();
                prop_assert_eq!(&ips, &expected.ips);
                let found: Vec<u32> =
                    batches.iter().flat_map(|batch| expand_empty_column(&batch.space, batch.ips.len())).collect();
                prop_assert_eq!(&found, &expected.spaces);
            }
            for batches in all_batches(&stream, address_spaces_of(&programs), &settings, RunSink::default()) {
                let found: Vec<u32> = batches
                    .iter()
                    .flat_map(|batch| {
                        let spaces = expand_empty_column(&batch.space, batch.start.len());
                        let counts = batch.instructions.clone();
                        spaces.into_iter().zip(counts).flat_map(|(space, count)| vec![space; count as usize])
                    })
                    .collect();
                prop_assert_eq!(&found, &expected.spaces);
            }
            for batches in all_batches(&stream, address_spaces_of(&programs), &settings, BranchSink::new(false)) {
                let found: Vec<(u64, u32)> = batches
                    .iter()
                    .flat_map(|batch| {
                        let spaces = expand_empty_column(&batch.space, batch.from.len());
                        batch.from.clone().into_iter().zip(spaces)
                    })
                    .collect();
                prop_assert_eq!(&found, &expected.branches);
                // a MOV CR3 is no branch
                prop_assert!(batches.iter().all(|batch| batch.target_space.is_empty()));
            }
        }
    }

    #[test]
    fn code_after_a_pip_is_that_of_its_space(
        programs in programs(),
        switches in prop::collection::vec(0..3_usize, 1..120),
        results in prop::collection::vec(any::<bool>(), 1..50),
    ) {
        let (expected, stream) = run(&programs, &switches, &results, 8, &[]);
        let mut interpreted = None;
                let whole = Settings::default().cache_limit;
        // with little memory the caches of inactive spaces are dropped
        for (transitions, cache_limit) in [
            (TransitionLimits::NONE, whole),
            (TransitionLimits::default(), whole),
            (TransitionLimits::default(), 1 << 14),
            (eager_fusion(), 1 << 12),
        ] {
            let settings = Settings { transitions, cache_limit, ..Settings::default() };
            check_instructions(&programs, &stream, &settings, &expected)?;

            let mut flow = StreamDecoder::with_sink(&stream[..], address_spaces_of(&programs), &settings, CountingSink);
            while flow.decode_until_full() {}
            prop_assert_eq!(flow.counts().instructions, expected.ips.len() as u64);

            let mut flow = StreamDecoder::for_totals(&stream[..], address_spaces_of(&programs), &settings);
            while flow.decode_until_full() {}
            let runs = flow.totals().sorted_runs();
            let total: u64 = runs.iter().map(|run| u64::from(run.instructions) * run.count).sum();
            prop_assert_eq!(total, expected.ips.len() as u64);

            let edges = flow.totals().sorted_edges();
            let mut decoder = ReusableDecoder::new(address_spaces_of(&programs), &settings);
            let mut hits = EdgeCounter::default();
            for _ in 0..3 {
                decoder.decode_whole_stream(&stream, &mut hits);
                prop_assert_eq!(hits.take_edges(), edges.clone());
                prop_assert_eq!(decoder.counts().instructions, expected.ips.len() as u64);
            }

            let mut flow = StreamDecoder::new(&stream[..], address_spaces_of(&programs), &settings);
            let rows: Vec<RunColumns> =
                std::iter::from_fn(|| flow.next_batch(1 << 20)).collect();
            let mut flow = StreamDecoder::for_hashed_runs(&stream[..], address_spaces_of(&programs), &settings);
            let runs: Vec<HashedRunColumns> =
                std::iter::from_fn(|| flow.next_batch(1 << 20)).collect();
            prop_assert_eq!(interpreted.get_or_insert((rows.clone(), runs.clone())), &mut (rows, runs));
        }
    }
}

proptest! {
    /// Equal for the interpreter and for transitions, and for any size of the parts.
    #[test]
    fn totals_by_period_have_what_ran_in_each_period(
        programs in programs_that_change(4, UNTIL),
        switches in prop::collection::vec(0..3_usize, 1..120),
        results in prop::collection::vec(any::<bool>(), 1..50),
        every in 1..8_usize,
        mut times in prop::collection::vec(1..=UNTIL, 0..20),
        starts in prop::collection::btree_set(1..=UNTIL, 0..8),
        part in 1..400_usize,
    ) {
        times.sort_unstable();
        let starts: Vec<u64> = starts.into_iter().collect();
        let (executed, stream) = run(&programs, &switches, &results, every, &times);
        let mut expected = vec![0; starts.len() + 1];
        for time in &executed.times {
            expected[starts.iter().filter(|start| *start <= time).count()] += 1;
        }
        let mut interpreted = None;
        for transitions in [TransitionLimits::NONE, TransitionLimits::default(), eager_fusion()] {
            let settings = Settings { transitions, ..Settings::default() };
            let sink = PeriodTotals::new(starts.clone(), 1 << 20);
            let mut flow =
                StreamDecoder::with_sink(&stream[..], address_spaces_of(&programs), &settings, sink);
            let mut periods = Vec::new();
            loop {
                let has_more = flow.decode_up_to_bytes(part);
                periods.extend(std::iter::from_fn(|| flow.sink_mut().take_ended_period()));
                if !has_more {
                    break;
                }
            }
            periods.push(flow.take_current_period());
            let mut found = vec![0; starts.len() + 1];
            let mut edges = Vec::new();
            for (period, totals) in &mut periods {
                let runs = totals.sorted_runs();
                found[*period] += runs.iter().map(|run| u64::from(run.instructions) * run.count).sum::<u64>();
                edges.push((*period, totals.sorted_edges()));
            }
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(interpreted.get_or_insert(edges.clone()), &mut edges);
        }
    }
}

const UNTIL: u64 = 40;
const BITMAP_SIZE: usize = 1 << 8;

/// A stream: its switches, results and times; what is another from its beginning on, whether all is said to be; its
/// damage.
#[derive(Clone, Debug)]
struct StreamPlan {
    switches: Vec<usize>,
    results: Vec<bool>,
    times: Vec<u64>,
    change: Option<(usize, usize, Vec<usize>, bool)>,
    flip: Option<(usize, u8)>,
}

fn stream_plan() -> impl Strategy<Value = StreamPlan> {
    let change = (any::<usize>(), 0..SLOTS, slot_fills(), any::<bool>());
    let parts = (
        prop::collection::vec(0..3_usize, 1..40),
        prop::collection::vec(any::<bool>(), 1..50),
        prop::collection::vec(1..=UNTIL, 0..20),
        prop::option::weighted(0.4, change),
        prop::option::weighted(0.2, (any::<usize>(), any::<u8>())),
    );
    parts.prop_map(|(switches, results, mut times, change, flip)| {
        times.sort_unstable();
        StreamPlan {
            switches,
            results,
            times,
            change,
            flip,
        }
    })
}

/// The results of a stream.
#[derive(PartialEq, Debug)]
struct StreamResults {
    counts: String,
    spans: Vec<LedgerSpan>,
    edges: Vec<EdgeTotal>,
    map: Vec<u8>,
}

fn interpreter_results(
    programs: &[SpaceProgram],
    stream: &[u8],
    settings: &Settings,
) -> StreamResults {
    let settings = Settings {
        transitions: TransitionLimits::NONE,
        ..*settings
    };
    let mut flow = StreamDecoder::for_totals(stream, address_spaces_of(programs), &settings);
    while flow.decode_until_full() {}
    let edges = flow.totals().sorted_edges();
    let mut map = vec![0; BITMAP_SIZE];
    for edge in &edges {
        if EdgeFilter::Decided.accepts_edge(RunEnd::ALL[usize::from(edge.kind)]) {
            let at =
                BitmapHash::Afl.bitmap_slot(edge.from, edge.to, BITMAP_SIZE as u64 - 1) as usize;
            map[at] = add_saturating_at_255(map[at], edge.count);
        }
    }
    StreamResults {
        counts: format!("{:?}", flow.counts()),
        spans: flow.coverage_ledger().closed_spans().to_vec(),
        edges,
        map,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: examples(600),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn reused_decoder_over_changed_code_equals_a_new_one(
        mut programs in programs_that_change(4, UNTIL),
        plans in prop::collection::vec(stream_plan(), 1..6),
        eager in any::<bool>(),
        cache_limit in prop_oneof![3 => Just(1 << 20), 1 => Just(1 << 14), 1 => Just(1 << 12)],
    ) {
        let transitions = if eager { eager_fusion() } else { TransitionLimits::default() };
        let settings = Settings { transitions, cache_limit, ..Settings::default() };
        let mut decoder = ReusableDecoder::new(address_spaces_of(&programs), &settings);
        let mut hits = EdgeCounter::default();
        for StreamPlan { switches, results, times, change, flip } in plans {
            if let Some((which, slot, fill, all)) = change {
                let which = which % programs.len();
                programs[which].set_slot_fill(slot, fill);
                let (start, end) = if all { (0, u64::MAX) } else { SpaceProgram::slot_range(slot) };
                prop_assert!(decoder.forget_changed_code(address_spaces_of(&programs), start, end));
            }
            let (executed, mut stream) = run(&programs, &switches, &results, 2, &times);
            match flip {
                Some((at, bits)) => {
                    let at = at % stream.len();
                    stream[at] ^= bits;
                }
                None => check_instructions(&programs, &stream, &settings, &executed)?,
            }
            let expected = interpreter_results(&programs, &stream, &settings);
            for _ in 0..2 {
                decoder.decode_whole_stream(&stream, &mut hits);
                let mut map = vec![0; BITMAP_SIZE];
                hits.for_each_bitmap_slot(BitmapHash::Afl, EdgeFilter::Decided, BITMAP_SIZE as u64 - 1, |at, count| {
                    map[at as usize] = add_saturating_at_255(map[at as usize], count);
                });
                let found = StreamResults {
                    counts: format!("{:?}", decoder.counts()),
                    spans: decoder.coverage_ledger().closed_spans().to_vec(),
                    edges: hits.take_edges(),
                    map,
                };
                prop_assert_eq!(&found, &expected);
            }
        }
    }
}

/// A kernel sets up its page tables in the lower half of the addresses, and jumps to the upper half.
#[test]
fn near_jump_into_the_kernel_half_continues_in_the_kernel_view() {
    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    let space = |code: &[(u64, &[u8])]| {
        let mut space = Space::new();
        for &(address, bytes) in code {
            space.map_bytes(0, address, bytes.into());
        }
        space.view_at_start()
    };
    let jump: &[u8] = &[0xff, 0xe0];
    let mut spaces = AddressSpaces::new(space(&[(BASE, &MOV_CR3)]));
    spaces.set_kernel_view(space(&[(KERNEL, &[0x90, 0xff, 0xe0])]));
    // Code of the upper half in the space of a CR3 is not used.
    let key = SpaceKey::new(0x5000, false, None);
    spaces.add_space(key, space(&[(BASE + 3, jump), (KERNEL, jump)]));
    // PSB, MODE.Exec, FUP 1000, PSBEND; PIP 5000; TIP to the kernel; TIP 1003
    let mut stream = [0x02, 0x82].repeat(8);
    stream.extend([0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23]);
    stream.extend([0x02, 0x43, 0x00, 0x05, 0, 0, 0, 0]);
    stream.extend([0x6d, 0, 0, 0, 0x81, 0xff, 0xff]);
    stream.extend([0x6d, 0x03, 0x10, 0, 0, 0, 0]);
    let mut flow = StreamDecoder::for_instructions(stream, spaces, &Settings::default());
    let batch = flow.next_batch(100).unwrap();
    let executed = vec![BASE, BASE + 3, KERNEL, KERNEL + 1];
    assert_eq!(batch.ips, executed);
}
