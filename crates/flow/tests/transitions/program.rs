//! Random programs, random executions of them, and their packets and code.

use proptest::prelude::*;
use rtit_flow::{CodeCachePool, GuestViews, ScheduledThread, Settings, Spaces, TimeSettings};
use rtit_image::{Space, View};

const BASE: u64 = 0x40_1000;
const KERNEL: u64 = 0xffff_ffff_8040_1000;

/// A program and how it runs: every choice during execution is the next one of `choices`, in a cycle.
#[derive(Clone, Debug)]
pub struct Plan {
    ops: Vec<Op>,
    choices: Vec<u8>,
    branches: usize,
    /// One in so many choices is a PSB, and one an event.
    rarity: u8,
    compress: bool,
    clocks: bool,
    /// Changes of the code, one at each PSB: the operations from an index on are replaced.
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

/// A stream, the instructions that ran, and their code.
pub struct Traced {
    pub stream: Vec<u8>,
    pub ips: Vec<u64>,
    pub space: Space,
    /// The pool of code caches of its decoders.
    pub cache_pool: Option<CodeCachePool>,
    intervals: Vec<Interval>,
}

/// Start and thread of a scheduling interval; `None`: a thread that is not decoded.
type Interval = (u64, Option<TestThread>);

/// A thread with the code of the stream.
#[derive(Clone, Copy, Debug)]
pub enum TestThread {
    Busy,
    Idle,
}

impl Traced {
    pub fn new(stream: Vec<u8>, address: u64, code: &[u8]) -> Traced {
        let mut space = Space::new();
        space.map(0, address, code.into());
        Traced {
            stream,
            ips: Vec::new(),
            space,
            cache_pool: None,
            intervals: Vec::new(),
        }
    }

    pub fn view(&self) -> View {
        self.space.view()
    }

    /// Returns the code and the thread schedule.
    pub fn spaces(&self) -> Spaces {
        let mut spaces = Spaces::new(self.view());
        if let Some(pool) = &self.cache_pool {
            spaces.set_code_cache_pool(pool.clone());
        }
        for &(since, thread) in &self.intervals {
            let view = thread.map(|_| spaces.add_view(self.view()));
            let idle = matches!(thread, Some(TestThread::Idle));
            let guest = GuestViews::default();
            let number = spaces.add_thread(ScheduledThread { view, guest, idle });
            spaces.add_interval(since, number);
        }
        spaces
    }

    /// Adds scheduling intervals, each with the ticks since the start of the one before.
    pub fn add_intervals(&mut self, intervals: Vec<(u16, Option<TestThread>)>) {
        let mut since = 0;
        self.intervals
            .extend(intervals.into_iter().map(|(ticks, thread)| {
                since += u64::from(ticks);
                (since, thread)
            }));
    }

    /// Flips bits of these bytes of the stream.
    pub fn damage(&mut self, flips: impl IntoIterator<Item = (usize, u8)>) {
        for (at, value) in flips {
            let at = at % self.stream.len();
            self.stream[at] ^= value;
        }
    }

    /// Cuts the stream, and appends another one from an offset on.
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

    /// Returns the same program with other choices.
    pub fn with_choices(&self, choices: Vec<u8>) -> Plan {
        Plan {
            choices,
            ..self.clone()
        }
    }

    /// Returns the program with another operation of the same length at one position, and its addresses; `None` if
    /// there is no such operation.
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

    /// Whether the interpreter must find what ran: invented clocks may say that code changed before it did.
    pub fn has_exact_times(&self) -> bool {
        !self.clocks || self.pokes.is_empty()
    }

    pub fn trace(&self) -> Traced {
        let mut execution = Execution::new(self);
        execution.run();
        execution.traced
    }
}

/// An operation of a random program.
#[derive(Clone, Copy, Debug)]
enum Op {
    Nop,
    LongNop,
    Conditional(u8),
    Jump(u8),
    Call(u8),
    Return,
    IndirectJump,
    IndirectCall,
    Syscall,
    PtWrite,
    MovCr3,
    VmLaunch,
}

impl Op {
    fn length(self) -> u64 {
        match self {
            Op::Nop | Op::Return => 1,
            Op::IndirectJump | Op::IndirectCall | Op::Syscall => 2,
            Op::LongNop | Op::MovCr3 | Op::VmLaunch => 3,
            Op::PtWrite => 4,
            Op::Jump(_) | Op::Call(_) => 5,
            Op::Conditional(_) => 6,
        }
    }

    fn bytes(self, ip: u64, target: u64) -> Vec<u8> {
        let relative = |head: &[u8]| {
            let next = ip + self.length();
            let displacement = target.wrapping_sub(next) as u32;
            [head, &displacement.to_le_bytes()].concat()
        };
        match self {
            Op::Nop => vec![0x90],
            Op::LongNop => vec![0x0f, 0x1f, 0x00],
            Op::Conditional(_) => relative(&[0x0f, 0x85]),
            Op::Jump(_) => relative(&[0xe9]),
            Op::Call(_) => relative(&[0xe8]),
            Op::Return => vec![0xc3],
            Op::IndirectJump => vec![0xff, 0xe0],
            Op::IndirectCall => vec![0xff, 0xd0],
            Op::Syscall => vec![0x0f, 0x05],
            Op::PtWrite => vec![0xf3, 0x0f, 0xae, 0xe0],
            Op::MovCr3 => vec![0x0f, 0x22, 0xd8],
            Op::VmLaunch => vec![0x0f, 0x01, 0xc2],
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => Just(Op::Nop),
        2 => Just(Op::LongNop),
        8 => any::<u8>().prop_map(Op::Conditional),
        3 => any::<u8>().prop_map(Op::Jump),
        5 => any::<u8>().prop_map(Op::Call),
        4 => Just(Op::Return),
        1 => Just(Op::IndirectJump),
        2 => Just(Op::IndirectCall),
        1 => Just(Op::Syscall),
        1 => Just(Op::PtWrite),
        1 => Just(Op::MovCr3),
        1 => Just(Op::VmLaunch),
    ]
}

/// A random execution of a program, and its packets.
struct Execution<'a> {
    plan: &'a Plan,
    ops: Vec<Op>,
    starts: Vec<u64>,
    traced: Traced,
    choice: usize,
    at: usize,
    stack: Vec<u64>,
    results: Vec<bool>,
    last_ip: u64,
    time: u64,
    psbs: usize,
}

impl<'a> Execution<'a> {
    fn new(plan: &'a Plan) -> Execution<'a> {
        // the end of the program is an indirect jump, so that nothing runs out of it
        let ops: Vec<Op> = [&plan.ops[..], &[Op::IndirectJump]].concat();
        let mut starts = Vec::new();
        let mut ip = plan.base;
        for op in &ops {
            starts.push(ip);
            ip += op.length();
        }
        let mut execution = Execution {
            plan,
            ops,
            starts,
            traced: Traced::new(Vec::new(), 0, &[]),
            choice: 0,
            at: 0,
            stack: Vec::new(),
            results: Vec::new(),
            last_ip: 0,
            time: 1000,
            psbs: 0,
        };
        let code = execution.code(0);
        execution.traced.space.map(0, plan.base, code.into());
        execution
    }

    fn code(&self, from: usize) -> Vec<u8> {
        let ops = self.ops.iter().zip(&self.starts).skip(from);
        ops.flat_map(|(op, &ip)| op.bytes(ip, self.target(*op)))
            .collect()
    }

    fn target(&self, op: Op) -> u64 {
        match op {
            Op::Conditional(to) | Op::Jump(to) | Op::Call(to) => {
                self.starts[usize::from(to) % self.starts.len()]
            }
            _ => 0,
        }
    }

    fn choose(&mut self, from: u8) -> u8 {
        self.choice += 1;
        let choices = &self.plan.choices;
        // not the same in each cycle
        let value = choices[self.choice % choices.len()].wrapping_add((self.choice / 7) as u8);
        value % from
    }

    fn any_target(&mut self) -> u64 {
        let some = self.choose(5);
        // few targets are common, some are rare
        let index = match some {
            0 => usize::from(self.choose(255)),
            some => usize::from(some) * 3,
        };
        self.starts[index % self.starts.len()]
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        self.traced.stream.extend(bytes);
    }

    fn ip_packet(&mut self, opcode: u8, ip: u64) {
        let bytes = ip.to_le_bytes();
        let kinds: &[(u8, usize)] = match (ip >> 16 == self.last_ip >> 16, self.choose(4)) {
            (true, 0..=2) => &[(1, 2)],
            (_, 0) => &[(6, 8)],
            (_, 1) => &[(4, 6)],
            (_, 2) if ip >> 32 == self.last_ip >> 32 => &[(2, 4)],
            _ => &[(3, 6)],
        };
        let (kind, length) = kinds[0];
        self.push_bytes(&[kind << 5 | opcode]);
        self.push_bytes(&bytes[..length]);
        self.last_ip = ip;
    }

    /// A short TNT of the results so far, or a long one.
    fn flush(&mut self) {
        let results = std::mem::take(&mut self.results);
        if results.is_empty() {
            return;
        }
        let bits = results
            .iter()
            .fold(1u64, |bits, &taken| bits << 1 | u64::from(taken));
        if results.len() <= 6 {
            self.push_bytes(&[(bits << 1) as u8]);
        } else {
            let bytes = (bits << 16 | 0xa302).to_le_bytes();
            self.push_bytes(&bytes);
        }
        self.clocks();
    }

    fn result(&mut self, taken: bool) {
        self.results.push(taken);
        let most = if self.choose(9) == 0 { 3 } else { 6 };
        if self.results.len() >= most && (self.choose(40) != 0 || self.results.len() > 40) {
            self.flush();
        }
    }

    fn clocks(&mut self) {
        if !self.plan.clocks {
            return;
        }
        match self.choose(24) {
            0..=5 => {
                let cycles = self.choose(32);
                self.push_bytes(&[cycles << 3 | 3]);
            }
            6 => self.push_bytes(&[0x07 | 9 << 3, 0x22]),
            7 => self.push_bytes(&[0x07 | 3 << 3, 0x23, 0x44]),
            8 => self.push_bytes(&[0x07, 0x23, 0x45, 0x02]),
            9 => {
                let ctc = (self.time >> 4) as u8;
                self.push_bytes(&[0x59, ctc]);
            }
            10 => self.push_bytes(&[0x00]),
            11 => {
                let ratio = 10 + self.choose(20);
                self.push_bytes(&[0x02, 0x03, ratio, 0]);
            }
            12 if self.choose(3) == 0 => self.tsc(),
            _ => {}
        }
        self.time += 40;
    }

    fn tsc(&mut self) {
        let time = self.time.to_le_bytes();
        self.push_bytes(&[0x19]);
        self.push_bytes(&time[..7]);
    }

    fn psb(&mut self) {
        self.flush();
        self.psbs += 1;
        self.time += 500;
        if let Some(&(from, to)) = self.plan.pokes.get(self.psbs.wrapping_sub(2)) {
            // branches get other targets, or become other instructions of the same length
            let from = usize::from(from) % self.ops.len();
            for (index, op) in self.ops.iter_mut().enumerate().skip(from) {
                let to = to.wrapping_add(index as u8);
                *op = match *op {
                    Op::Conditional(_) => Op::Conditional(to),
                    Op::Jump(_) if to & 1 == 0 => Op::Call(to),
                    Op::Call(_) => Op::Jump(to),
                    Op::Nop => Op::Return,
                    Op::IndirectCall => Op::IndirectJump,
                    op => op,
                };
            }
            let code = self.code(from);
            let start = self.starts[from];
            self.traced.space.poke(self.time, start, &code);
        }
        self.push_bytes(&[0x02, 0x82].repeat(8));
        self.tsc();
        self.push_bytes(&[0x02, 0x73, 0x10, 0x01, 0, 0x05, 0]);
        self.push_bytes(&[0x02, 0x03, 0x0a, 0]);
        self.push_bytes(&[0x99, 0x01]);
        let ip = self.starts[self.at];
        let bytes = ip.to_le_bytes();
        self.push_bytes(&[0x7d]);
        self.push_bytes(&bytes[..6]);
        self.last_ip = ip;
        self.push_bytes(&[0x02, 0x23]);
        self.stack.clear();
    }

    fn index(&self, ip: u64) -> usize {
        self.starts
            .iter()
            .position(|&start| start == ip)
            .unwrap_or(0)
    }

    /// An event strikes before the next instruction.
    fn event(&mut self) {
        self.flush();
        let ip = self.starts[self.at];
        self.ip_packet(0x1d, ip);
        if self.choose(3) == 0 {
            self.push_bytes(&[0x01]);
            let back = self.any_target();
            self.at = self.index(back);
            self.ip_packet(0x11, back);
            self.stack.clear();
        } else {
            let to = self.any_target();
            self.at = self.index(to);
            self.ip_packet(0x0d, to);
        }
    }

    fn tip(&mut self, to: u64) {
        self.flush();
        self.ip_packet(0x0d, to);
        self.clocks();
        self.at = self.index(to);
    }

    fn run(&mut self) {
        self.psb();
        let mut branches = 0;
        // the instructions since the last packet, and the number of instructions before each
        let mut straight: Vec<(u64, usize)> = Vec::new();
        while branches < self.plan.branches {
            let op = self.ops[self.at];
            let ip = self.starts[self.at];
            let next = ip + op.length();
            let target = self.target(op);
            if let Some(&(_, before)) = straight.iter().find(|(seen, _)| *seen == ip) {
                // a loop without packets: its number of iterations is not in the trace
                self.traced.ips.truncate(before);
                break;
            }
            let bytes = self.traced.stream.len();
            match self.choose(self.plan.rarity) {
                0 => self.event(),
                1 => self.psb(),
                _ => {}
            }
            if self.traced.stream.len() > bytes {
                straight.clear();
            }
            if self.starts[self.at] != ip || self.target(self.ops[self.at]) != target {
                continue;
            }
            let op = self.ops[self.at];
            straight.push((ip, self.traced.ips.len()));
            self.traced.ips.push(ip);
            match op {
                Op::Nop | Op::LongNop | Op::PtWrite | Op::MovCr3 => self.at += 1,
                Op::Conditional(_) => {
                    let taken = self.choose(3) != 0;
                    self.at = self.index(if taken { target } else { next });
                    self.result(taken);
                }
                Op::Jump(_) => self.at = self.index(target),
                Op::Call(_) => {
                    // a call to the next instruction is no call to RET compression
                    if target != next {
                        self.stack.push(next);
                    }
                    self.at = self.index(target);
                }
                Op::IndirectCall => {
                    self.stack.push(next);
                    let to = self.any_target();
                    self.tip(to);
                }
                Op::IndirectJump | Op::Syscall | Op::VmLaunch => {
                    let to = self.any_target();
                    self.tip(to);
                }
                Op::Return => {
                    let depth = self.stack.len();
                    self.stack.drain(..depth.saturating_sub(64));
                    match self.stack.pop() {
                        Some(to) if self.plan.compress && self.choose(8) != 0 => {
                            self.at = self.index(to);
                            self.result(true);
                        }
                        _ => {
                            let to = self.any_target();
                            self.tip(to);
                        }
                    }
                }
            }
            let needs_packet = !matches!(
                op,
                Op::Nop | Op::LongNop | Op::PtWrite | Op::MovCr3 | Op::Jump(_) | Op::Call(_)
            );
            if needs_packet {
                branches += 1;
                straight.clear();
            }
        }
        self.flush();
        let ip = self.starts[self.at];
        self.ip_packet(0x1d, ip);
        self.push_bytes(&[0x01]);
    }
}
