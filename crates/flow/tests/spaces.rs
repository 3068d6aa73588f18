//! Code of several address spaces at the same addresses: CR3 and NR say whose runs.

use proptest::prelude::*;
use rtit_flow::{
    Counting, EdgeHits, Flow, HashedRun, Persistent, Rows, Settings, SpaceKey, Spaces, StepLimits,
    Trust,
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

/// What ran, and the packets of it: `turns` says in which space each slot's MOV CR3 goes on.
fn run(programs: &[Program], turns: &[usize], results: &[bool]) -> (Vec<u64>, Vec<u8>) {
    let mut stream = [0x02, 0x82].repeat(8);
    stream.extend([0x99, 0x01]);
    stream.extend(pip(0));
    stream.extend([0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23]);
    let (mut ips, mut now, mut results) = (Vec::new(), 0, results.iter().cycle());
    for (turn, &next) in turns.iter().enumerate() {
        let slot = turn % SLOTS;
        let start = BASE + (slot * SLOT) as u64;
        let mut taken = Vec::new();
        for (at, fill) in programs[now].slot(slot) {
            ips.push(start + at as u64);
            if fill == JNZ {
                taken.extend(results.next());
            }
        }
        ips.push(start + SLOT as u64 - 5);
        stream.extend(tnts(&taken));
        now = next % programs.len();
        stream.extend(pip(now));
        if slot == SLOTS - 1 {
            ips.push(start + SLOT as u64 - 2);
        } else {
            ips.extend([start + SLOT as u64 - 2, start + SLOT as u64 - 1]);
        }
    }
    let at = BASE + (turns.len() % SLOTS * SLOT) as u64;
    stream.extend([0x3d, at as u8, (at >> 8) as u8, 0x01]);
    (ips, stream)
}

fn spaces(programs: &[Program]) -> Spaces {
    let mut spaces = Spaces::new(rtit_image::Space::new().view());
    for (number, program) in programs.iter().enumerate() {
        spaces.add(key(number), program.view());
    }
    spaces
}

proptest! {
    #[test]
    fn code_is_that_of_the_last_pip(
        programs in programs(),
        turns in prop::collection::vec(0..3_usize, 1..120),
        results in prop::collection::vec(any::<bool>(), 1..50),
    ) {
        let (expected, stream) = run(&programs, &turns, &results);
        let mut walked = None;
        for steps in [StepLimits::NONE, StepLimits::default()] {
            let settings = Settings { steps, ..Settings::default() };
            let mut flow = Flow::instructions(&stream[..], spaces(&programs), &settings);
            let mut ips = Vec::new();
            while let Some((part, _)) = flow.next_ips(50) {
                ips.extend(part);
            }
            prop_assert_eq!(&ips, &expected);
            prop_assert!(flow.ledger().spans().iter().all(|span| span.trust == Trust::Exact));

            let mut flow = Flow::with_sink(&stream[..], spaces(&programs), &settings, Counting);
            while flow.advance() {}
            prop_assert_eq!(flow.counts().instructions, expected.len() as u64);

            let mut flow = Flow::adding_up(&stream[..], spaces(&programs), &settings);
            while flow.advance() {}
            let runs = flow.totals().runs();
            let total: u64 = runs.iter().map(|run| u64::from(run.instructions) * run.count).sum();
            prop_assert_eq!(total, expected.len() as u64);

            let edges = flow.totals().edges();
            let mut decoder = Persistent::new(spaces(&programs), &settings);
            let mut hits = EdgeHits::default();
            for _ in 0..3 {
                decoder.run(&stream, &mut hits);
                prop_assert_eq!(hits.take(), edges.clone());
                prop_assert_eq!(decoder.counts().instructions, expected.len() as u64);
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
