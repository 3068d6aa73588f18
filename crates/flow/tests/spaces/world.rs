//! Programs of several spaces that take turns, and the packets of it.

use proptest::prelude::*;
use rtit_flow::{SpaceKey, Spaces};
use rtit_image::{Space, View};

const BASE: u64 = 0x1000;
/// Every so many bytes a MOV CR3; the last slot ends in a JMP to the first.
const SLOT: usize = 32;
pub const SLOTS: usize = 6;

const MOV_CR3: [u8; 3] = [0x0f, 0x22, 0xd8];
/// nop of one, two and three bytes, and jnz to what follows.
const FILL: [&[u8]; 4] = [&[0x90], &[0x66, 0x90], &[0x0f, 0x1f, 0x00], &[0x75, 0x00]];
const JNZ: usize = 3;

/// A slot that is filled otherwise from a time (TSC) on.
pub type Change = (u64, usize, Vec<usize>);

/// One space: what fills its slots, and what changes later, in order of time.
#[derive(Clone, Debug)]
pub struct Program {
    fill: Vec<Vec<usize>>,
    changes: Vec<Change>,
}

impl Program {
    /// From its beginning on, without changes.
    pub fn set(&mut self, slot: usize, fill: Vec<usize>) {
        self.fill[slot] = fill;
    }

    /// The bytes of a slot: from the first up to the second.
    pub fn range(slot: usize) -> (u64, u64) {
        let start = BASE + (slot * SLOT) as u64;
        (start, start + SLOT as u64)
    }

    fn filled(&self, slot: usize, now: u64) -> &[usize] {
        let mut changes = self.changes.iter().rev();
        let last = changes.find(|(since, which, _)| *since <= now && *which == slot);
        last.map_or(&self.fill[slot], |(_, _, fill)| fill)
    }

    /// The instructions of a slot as (offset, fill).
    fn slot(&self, slot: usize, now: u64) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut at = 0;
        for &fill in self.filled(slot, now).iter().cycle() {
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

    /// What fills a slot, up to its MOV CR3.
    fn code(&self, slot: usize, now: u64) -> Vec<u8> {
        let fills = self.slot(slot, now).into_iter();
        fills.flat_map(|(_, fill)| FILL[fill]).copied().collect()
    }

    fn view(&self) -> View {
        let mut code = Vec::new();
        for slot in 0..SLOTS {
            code.extend(self.code(slot, 0));
            code.extend(MOV_CR3);
            code.extend([0x90; 2]);
        }
        code.truncate(SLOT * SLOTS - 2);
        code.extend([0xe9]);
        code.extend((-(code.len() as i32) - 4).to_le_bytes());
        let mut space = Space::new();
        space.map(0, BASE, code.as_slice().into());
        for (since, slot, _) in &self.changes {
            space.poke(*since, Self::range(*slot).0, &self.code(*slot, *since));
        }
        space.view()
    }
}

pub fn fill() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..FILL.len(), 1..20)
}

pub fn programs() -> impl Strategy<Value = Vec<Program>> {
    programs_that_change(0, 1)
}

/// So many changes of each at most, all before a time.
pub fn programs_that_change(most: usize, until: u64) -> impl Strategy<Value = Vec<Program>> {
    let changes = prop::collection::vec((1..=until, 0..SLOTS, fill()), 0..=most);
    let program = (prop::collection::vec(fill(), SLOTS), changes);
    let program = program.prop_map(|(fill, mut changes)| {
        changes.sort_by_key(|change| change.0);
        changes.dedup_by_key(|change| (change.0, change.1));
        Program { fill, changes }
    });
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
pub struct Ran {
    pub ips: Vec<u64>,
    /// The number of the space of each.
    pub spaces: Vec<u32>,
    /// Of branches the place and the space.
    pub branches: Vec<(u64, u32)>,
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

/// A PSB+, which may say what time it is.
fn psb(number: usize, ip: u64, time: Option<u64>) -> Vec<u8> {
    let mut bytes = [0x02, 0x82].repeat(8);
    if let Some(time) = time {
        bytes.push(0x19);
        bytes.extend(&time.to_le_bytes()[..7]);
    }
    bytes.extend([0x99, 0x01]);
    bytes.extend(pip(number));
    bytes.push(0x7d);
    bytes.extend(&ip.to_le_bytes()[..6]);
    bytes.extend([0x02, 0x23]);
    bytes
}

/// What ran, and the packets of it: `turns` says in which space each slot's MOV CR3 goes on; every so many have a PSB+
/// behind, and `times` are those of these.
pub fn run(
    programs: &[Program],
    turns: &[usize],
    results: &[bool],
    every: usize,
    times: &[u64],
) -> (Ran, Vec<u8>) {
    let mut stream = psb(0, BASE, None);
    let (mut ran, mut now, mut results) = (Ran::default(), 0, results.iter().cycle());
    let (mut time, mut times) = (0, times.iter().copied());
    for (turn, &next) in turns.iter().enumerate() {
        let slot = turn % SLOTS;
        let start = BASE + (slot * SLOT) as u64;
        let mut taken = Vec::new();
        for (at, fill) in programs[now].slot(slot, time) {
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
        if turn % every == every - 1 {
            let told = times.next();
            time = told.unwrap_or(time);
            stream.extend(psb(now, start + SLOT as u64 - 2, told));
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

pub fn spaces(programs: &[Program]) -> Spaces {
    let mut spaces = Spaces::new(rtit_image::Space::new().view());
    for (number, program) in programs.iter().enumerate() {
        spaces.add_space(key(number), program.view());
    }
    spaces
}
