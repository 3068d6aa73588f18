//! Code of several address spaces at the same addresses: CR3 and NR say whose runs.

use proptest::prelude::*;
use rtit_flow::{
    Branches, Columns, Counting, Division, EdgeHits, Flow, HashedRun, InOrder, Ordered, Persistent,
    Rows, Settings, SpaceKey, Spaces, StepLimits, TimedInstructions, Trust,
};
use rtit_image::View;

const BASE: u64 = 0x1000;
/// Every so many bytes a MOV CR3; the last slot ends in a JMP to the first.
const SLOT: usize = 32;
const SLOTS: usize = 6;

const MOV_CR3: [u8; 3] = [0x0f, 0x22, 0xd8];
/// nop of one, two and three bytes, and jnz to what follows.
const FILL: [&[u8]; 4] = [&[0x90], &[0x66, 0x90], &[0x0f, 0x1f, 0x00], &[0x75, 0x00]];
const JNZ: usize = 3;

/// One space: what fills its slots.
#[derive(Clone, Debug)]
struct Program {
    fill: Vec<Vec<usize>>,
}

impl Program {
    /// The instructions of a slot as (offset, fill), and the code of all.
    fn slot(&self, slot: usize) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut at = 0;
        for &fill in self.fill[slot].iter().cycle() {
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

    fn view(&self) -> View {
        let mut code = vec![0x90; SLOT * SLOTS];
        for slot in 0..SLOTS {
            for (at, fill) in self.slot(slot) {
                let at = slot * SLOT + at;
                code[at..at + FILL[fill].len()].copy_from_slice(FILL[fill]);
            }
            let end = (slot + 1) * SLOT;
            code[end - 5..end - 2].copy_from_slice(&MOV_CR3);
        }
        code.truncate(SLOT * SLOTS - 2);
        code.extend([0xe9]);
        code.extend((-(code.len() as i32) - 4).to_le_bytes());
        let mut space = rtit_image::Space::new();
        space.map(0, BASE, code.as_slice().into());
        space.view()
    }
}

fn programs() -> impl Strategy<Value = Vec<Program>> {
    let fill = prop::collection::vec(0..FILL.len(), 1..20);
    let program = prop::collection::vec(fill, SLOTS).prop_map(|fill| Program { fill });
    prop::collection::vec(program, 2..4)
}

fn pip(number: usize) -> Vec<u8> {
    let cr3_and_nr = (number as u64 + 1) << 8 | (number as u64 & 1);
    let mut bytes = vec![0x02, 0x43];
    bytes.extend(&cr3_and_nr.to_le_bytes()[..6]);
    bytes
}

fn key(number: usize) -> SpaceKey {
    SpaceKey::new((number as u64 + 1) << 12, number & 1 != 0, None)
}

/// Results as short TNTs.
fn tnts(results: &[bool]) -> Vec<u8> {
    results
        .chunks(6)
        .map(|part| {
            part.iter()
                .fold(1, |byte, &taken| byte << 1 | u8::from(taken))
                << 1
        })
        .collect()
}

/// What ran.
#[derive(Default)]
struct Ran {
    ips: Vec<u64>,
    /// The number of the space of each.
    spaces: Vec<u32>,
    /// Of branches the place and the space.
    branches: Vec<(u64, u32)>,
}

impl Ran {
    fn run(&mut self, ip: u64, program: usize) {
        self.ips.push(ip);
        self.spaces.push(program as u32 + 1);
    }

    fn branch(&mut self, ip: u64, program: usize) {
        self.branches.push((ip, program as u32 + 1));
    }
}

/// A PSB+.
fn psb(number: usize, ip: u64) -> Vec<u8> {
    let mut bytes = [0x02, 0x82].repeat(8);
    bytes.extend([0x99, 0x01]);
    bytes.extend(pip(number));
    bytes.push(0x7d);
    bytes.extend(&ip.to_le_bytes()[..6]);
    bytes.extend([0x02, 0x23]);
    bytes
}

/// What ran, and the packets of it: `turns` says in which space each slot's MOV CR3 goes on, and some have a PSB+ behind.
fn run(programs: &[Program], turns: &[usize], results: &[bool]) -> (Ran, Vec<u8>) {
    let mut stream = psb(0, BASE);
    let (mut ran, mut now, mut results) = (Ran::default(), 0, results.iter().cycle());
    for (turn, &next) in turns.iter().enumerate() {
        let slot = turn % SLOTS;
        let start = BASE + (slot * SLOT) as u64;
        let mut taken = Vec::new();
        for (at, fill) in programs[now].slot(slot) {
            ran.run(start + at as u64, now);
            if fill == JNZ {
                ran.branch(start + at as u64, now);
                taken.extend(results.next());
            }
        }
        ran.run(start + SLOT as u64 - 5, now);
        stream.extend(tnts(&taken));
        now = next % programs.len();
        stream.extend(pip(now));
        if turn % 8 == 7 {
            stream.extend(psb(now, start + SLOT as u64 - 2));
        }
        if slot == SLOTS - 1 {
            ran.run(start + SLOT as u64 - 2, now);
            ran.branch(start + SLOT as u64 - 2, now);
        } else {
            ran.run(start + SLOT as u64 - 2, now);
            ran.run(start + SLOT as u64 - 1, now);
        }
    }
    let at = BASE + (turns.len() % SLOTS * SLOT) as u64;
    stream.extend([0x3d, at as u8, (at >> 8) as u8, 0x01]);
    (ran, stream)
}

fn spaces(programs: &[Program]) -> Spaces {
    let mut spaces = Spaces::new(rtit_image::Space::new().view());
    for (number, program) in programs.iter().enumerate() {
        spaces.add(key(number), program.view());
    }
    spaces
}

/// All batches of a sink, by one thread or by two.
fn all<S: InOrder>(
    stream: &[u8],
    spaces: Spaces,
    settings: &Settings,
    sink: S,
) -> [Vec<S::Batch>; 2] {
    let mut flow = Flow::with_sink(stream, spaces.clone(), settings, sink.fresh());
    flow.sink_mut().set_limit(7);
    let mut one = Vec::new();
    while flow.advance() {
        one.push(flow.sink_mut().take_batch());
    }
    one.push(flow.sink_mut().take_batch());
    let division = Division {
        threads: 2,
        segment: 64,
        lead: 400,
        results: 1 << 20,
        changes: 100,
    };
    let mut flow = Ordered::new(stream, spaces, settings, division, sink);
    let mut several = Vec::new();
    loop {
        let goes_on = flow.advance(7);
        several.extend(std::iter::from_fn(|| flow.take()));
        if !goes_on {
            return [one, several];
        }
    }
}

/// A column that is empty where all are 0.
fn filled(column: &[u32], rows: usize) -> Vec<u32> {
    match column.len() {
        0 => vec![0; rows],
        _ => column.to_vec(),
    }
}

proptest! {
    #[test]
    fn rows_know_their_space(
        programs in programs(),
        turns in prop::collection::vec(0..3_usize, 1..120),
        results in prop::collection::vec(any::<bool>(), 1..50),
    ) {
        let (expected, stream) = run(&programs, &turns, &results);
        for steps in [StepLimits::NONE, StepLimits::default()] {
            let settings = Settings { steps, ..Settings::default() };
            for batches in all(&stream, spaces(&programs), &settings, TimedInstructions::new(false)) {
                let ips: Vec<u64> = batches.iter().flat_map(|batch| batch.ips.clone()).collect();
                prop_assert_eq!(&ips, &expected.ips);
                let found: Vec<u32> =
                    batches.iter().flat_map(|batch| filled(&batch.space, batch.ips.len())).collect();
                prop_assert_eq!(&found, &expected.spaces);
            }
            for batches in all(&stream, spaces(&programs), &settings, Columns::default()) {
                let found: Vec<u32> = batches
                    .iter()
                    .flat_map(|batch| {
                        let spaces = filled(&batch.space, batch.start.len());
                        let counts = batch.instructions.clone();
                        spaces.into_iter().zip(counts).flat_map(|(space, count)| vec![space; count as usize])
                    })
                    .collect();
                prop_assert_eq!(&found, &expected.spaces);
            }
            for batches in all(&stream, spaces(&programs), &settings, Branches::new(false)) {
                let found: Vec<(u64, u32)> = batches
                    .iter()
                    .flat_map(|batch| {
                        let spaces = filled(&batch.space, batch.from.len());
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
    fn code_is_that_of_the_last_pip(
        programs in programs(),
        turns in prop::collection::vec(0..3_usize, 1..120),
        results in prop::collection::vec(any::<bool>(), 1..50),
    ) {
        let (expected, stream) = run(&programs, &turns, &results);
        let mut walked = None;
        let eager = StepLimits { phrases: 0, ..StepLimits::default() };
        let whole = Settings::default().cache_limit;
        // at the end of little memory all that waits is let go of
        for (steps, cache_limit) in [
            (StepLimits::NONE, whole),
            (StepLimits::default(), whole),
            (StepLimits::default(), 1 << 14),
            (eager, 1 << 12),
        ] {
            let settings = Settings { steps, cache_limit, ..Settings::default() };
            let mut flow = Flow::instructions(&stream[..], spaces(&programs), &settings);
            let mut ips = Vec::new();
            while let Some((part, _)) = flow.next_ips(50) {
                ips.extend(part);
            }
            prop_assert_eq!(&ips, &expected.ips);
            prop_assert!(flow.ledger().spans().iter().all(|span| span.trust == Trust::Exact));

            let mut flow = Flow::with_sink(&stream[..], spaces(&programs), &settings, Counting);
            while flow.advance() {}
            prop_assert_eq!(flow.counts().instructions, expected.ips.len() as u64);

            let mut flow = Flow::adding_up(&stream[..], spaces(&programs), &settings);
            while flow.advance() {}
            let runs = flow.totals().runs();
            let total: u64 = runs.iter().map(|run| u64::from(run.instructions) * run.count).sum();
            prop_assert_eq!(total, expected.ips.len() as u64);

            let edges = flow.totals().edges();
            let mut decoder = Persistent::new(spaces(&programs), &settings);
            let mut hits = EdgeHits::default();
            for _ in 0..3 {
                decoder.run(&stream, &mut hits);
                prop_assert_eq!(hits.take(), edges.clone());
                prop_assert_eq!(decoder.counts().instructions, expected.ips.len() as u64);
            }

            let mut flow = Flow::new(&stream[..], spaces(&programs), &settings);
            let rows: Vec<Rows> = std::iter::from_fn(|| flow.next_rows(1 << 20)).collect();
            let mut flow = Flow::hashed(&stream[..], spaces(&programs), &settings);
            let runs: Vec<Vec<HashedRun>> =
                std::iter::from_fn(|| flow.next_runs(1 << 20)).collect();
            prop_assert_eq!(walked.get_or_insert((rows.clone(), runs.clone())), &mut (rows, runs));
        }
    }
}
