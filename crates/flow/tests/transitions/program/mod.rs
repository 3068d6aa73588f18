//! Random programs, random ways through them, and the packets and the code that go with those.

mod op;
mod run;

use op::{op, Op};
use proptest::prelude::*;
use rtit_flow::{CodeCachePool, GuestViews, Settings, Spaces, TimeSettings};
use rtit_image::{Space, View};
use run::Run;

const BASE: u64 = 0x40_1000;
const KERNEL: u64 = 0xffff_ffff_8040_1000;

/// A program and how it runs: every choice on the way is one of `choices`, over and over.
#[derive(Clone, Debug)]
pub struct Plan {
    ops: Vec<Op>,
    choices: Vec<u8>,
    branches: usize,
    /// Among so many choices there is one for a PSB, and one for an event.
    rarity: u8,
    compress: bool,
    clocks: bool,
    /// At the n-th PSB the operations from there on are others.
    pokes: Vec<(u8, u8)>,
    base: u64,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            ops: vec![Op::Nop],
            choices: vec![0],
            branches: 1,
            rarity: 200,
            compress: true,
            clocks: true,
            pokes: Vec::new(),
            base: BASE,
        }
    }
}

pub fn plan() -> impl Strategy<Value = Plan> {
    (
        proptest::collection::vec(op(), 1..40),
        proptest::collection::vec(any::<u8>(), 1..60),
        1..400usize,
        prop_oneof![Just(200u8), 10..60u8],
        any::<bool>(),
        any::<bool>(),
        proptest::collection::vec((any::<u8>(), any::<u8>()), 0..4),
    )
        .prop_map(
            |(ops, choices, branches, rarity, compress, clocks, pokes)| Plan {
                ops,
                choices,
                branches,
                rarity,
                compress,
                clocks,
                pokes,
                base: BASE,
            },
        )
}

pub struct Traced {
    pub stream: Vec<u8>,
    pub ips: Vec<u64>,
    pub space: Space,
    /// Where its decoders leave code for others.
    pub learned: Option<CodeCachePool>,
    turns: Vec<Turn>,
}

/// Since when, and whose: somebody of the same code, nobody, somebody who is passed over.
pub type Turn = (u64, Option<ScheduledThread>);

#[derive(Clone, Copy, Debug)]
pub enum ScheduledThread {
    Ours,
    Nobodys,
}

impl Traced {
    pub fn of(stream: Vec<u8>, address: u64, code: &[u8]) -> Traced {
        let mut space = Space::new();
        space.map(0, address, code.into());
        Traced {
            stream,
            ips: Vec::new(),
            space,
            learned: None,
            turns: Vec::new(),
        }
    }

    pub fn view(&self) -> View {
        self.space.view()
    }

    /// The code, and whose turn it is when.
    pub fn spaces(&self) -> Spaces {
        let mut spaces = Spaces::new(self.view());
        if let Some(learned) = &self.learned {
            spaces.set_code_cache_pool(learned.clone());
        }
        for &(since, whose) in &self.turns {
            let view = whose.map(|_| spaces.add_view(self.view()));
            let idle = matches!(whose, Some(ScheduledThread::Nobodys));
            let guest = GuestViews::default();
            let number = spaces.add_thread(rtit_flow::ScheduledThread { view, guest, idle });
            spaces.add_interval(since, number);
        }
        spaces
    }

    /// Turns begin so many ticks one after the other.
    pub fn share(&mut self, turns: Vec<(u16, Option<ScheduledThread>)>) {
        let mut since = 0;
        self.turns.extend(turns.into_iter().map(|(after, whose)| {
            since += u64::from(after);
            (since, whose)
        }));
    }

    /// Flips bits of these bytes of the stream.
    pub fn damage(&mut self, flips: impl IntoIterator<Item = (usize, u8)>) {
        for (at, value) in flips {
            let at = at % self.stream.len();
            self.stream[at] ^= value;
        }
    }

    /// Cuts the stream, and lets another go on from some place.
    pub fn splice(&mut self, cut: usize, other: &Traced, from: usize) {
        self.stream.truncate(cut % self.stream.len());
        self.stream
            .extend(&other.stream[from % other.stream.len()..]);
    }
}

impl Plan {
    pub fn settings(&self) -> Settings {
        Settings {
            time: TimeSettings {
                mtc_freq: 3,
                tsc_ctc: (168, 2),
                max_nonturbo_ratio: 20,
                ..TimeSettings::default()
            },
            no_retcomp: !self.compress,
            ..Settings::default()
        }
    }

    /// The same program, run otherwise.
    pub fn otherwise(&self, choices: Vec<u8>) -> Plan {
        Plan {
            choices,
            ..self.clone()
        }
    }

    /// The program with another operation of the same length in one place, and where that is; None if there is none.
    pub fn changed(&self, at: usize) -> Option<(Plan, u64, u64)> {
        let at = at % self.ops.len();
        let op = match self.ops[at] {
            Op::Nop => Op::Return,
            Op::Return => Op::Nop,
            Op::LongNop => Op::VmLaunch,
            Op::MovCr3 | Op::VmLaunch => Op::LongNop,
            Op::IndirectJump => Op::IndirectCall,
            Op::IndirectCall | Op::Syscall => Op::IndirectJump,
            Op::Jump(to) => Op::Call(to),
            Op::Call(to) => Op::Jump(to),
            Op::Conditional(to) => Op::Conditional(to.wrapping_add(1)),
            Op::PtWrite => return None,
        };
        let start: u64 = self.base + self.ops[..at].iter().map(|op| op.length()).sum::<u64>();
        let mut plan = self.clone();
        plan.ops[at] = op;
        Some((plan, start, start + op.length()))
    }

    /// The same program in the upper half of addresses.
    pub fn in_kernel(self) -> Plan {
        Plan {
            base: KERNEL,
            ..self
        }
    }

    pub fn changes_while_it_runs(&self) -> bool {
        !self.pokes.is_empty()
    }

    /// Whether the walker must find what ran: made-up clocks may say that code changed before it did.
    pub fn is_true(&self) -> bool {
        !self.clocks || self.pokes.is_empty()
    }

    pub fn trace(&self) -> Traced {
        let mut run = Run::new(self);
        run.go();
        run.traced
    }
}
