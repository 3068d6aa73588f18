//! Random programs, random executions of them, and their packets and code.

use proptest::prelude::*;
use rtit_flow::{
    AddressSpaces, CodeCachePool, GuestViews, ScheduledThread, Settings, TimeSettings,
};
use rtit_image::{Space, SpaceView};

const BASE: u64 = 0x40_1000;
const KERNEL: u64 = 0xffff_ffff_8040_1000;

/// A program and how it runs: every choice during execution is the next one of `choices`, in a cycle.
#[derive(Clone, Debug)]
pub struct ExecutionPlan {
    ops: Vec<Operation>,
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

impl Default for ExecutionPlan {
    fn default() -> ExecutionPlan {
        ExecutionPlan {
            ops: vec![Operation::Nop],
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

pub fn execution_plan() -> impl Strategy<Value = ExecutionPlan> {
    (
        proptest::collection::vec(random_operation(), 1..40),
        proptest::collection::vec(any::<u8>(), 1..60),
        1..400usize,
        prop_oneof![Just(200u8), 10..60u8],
        any::<bool>(),
        any::<bool>(),
        proptest::collection::vec((any::<u8>(), any::<u8>()), 0..4),
    )
        .prop_map(
            |(ops, choices, branches, rarity, compress, clocks, pokes)| ExecutionPlan {
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
pub struct TracedProgram {
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

impl TracedProgram {
    pub fn new(stream: Vec<u8>, address: u64, code: &[u8]) -> TracedProgram {
        let mut space = Space::new();
        space.map_bytes(0, address, code.into());
        TracedProgram {
            stream,
            ips: Vec::new(),
            space,
            cache_pool: None,
            intervals: Vec::new(),
        }
    }

    pub fn view(&self) -> SpaceView {
        self.space.view_at_start()
    }

    /// Returns the code and the thread schedule.
    pub fn spaces(&self) -> AddressSpaces {
        let mut spaces = AddressSpaces::new(self.view());
        if let Some(pool) = &self.cache_pool {
            spaces.set_code_cache_pool(pool.clone());
        }
        for &(since, thread) in &self.intervals {
            let view = thread.map(|_| spaces.add_view(self.view()));
            let idle = matches!(thread, Some(TestThread::Idle));
            let guest = GuestViews::default();
            let number = spaces.add_scheduled_thread(ScheduledThread { view, guest, idle });
            spaces.add_scheduling_interval(since, number);
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
    pub fn flip_bits(&mut self, flips: impl IntoIterator<Item = (usize, u8)>) {
        for (at, value) in flips {
            let at = at % self.stream.len();
            self.stream[at] ^= value;
        }
    }

    /// Cuts the stream, and appends another one from an offset on.
    pub fn splice_streams(&mut self, cut: usize, other: &TracedProgram, from: usize) {
        self.stream.truncate(cut % self.stream.len());
        self.stream
            .extend(&other.stream[from % other.stream.len()..]);
    }
}

impl ExecutionPlan {
    pub fn decoder_settings(&self) -> Settings {
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
    pub fn with_choices(&self, choices: Vec<u8>) -> ExecutionPlan {
        ExecutionPlan {
            choices,
            ..self.clone()
        }
    }

    /// Returns the program with another operation of the same length at one position, and its addresses; `None` if
    /// there is no such operation.
    pub fn with_changed_operation(&self, at: usize) -> Option<(ExecutionPlan, u64, u64)> {
        let at = at % self.ops.len();
        let op = match self.ops[at] {
            Operation::Nop => Operation::Return,
            Operation::Return => Operation::Nop,
            Operation::LongNop => Operation::VmLaunch,
            Operation::MovCr3 | Operation::VmLaunch => Operation::LongNop,
            Operation::IndirectJump => Operation::IndirectCall,
            Operation::IndirectCall | Operation::Syscall => Operation::IndirectJump,
            Operation::Jump(to) => Operation::Call(to),
            Operation::Call(to) => Operation::Jump(to),
            Operation::Conditional(to) => Operation::Conditional(to.wrapping_add(1)),
            Operation::PtWrite => return None,
        };
        let start: u64 = self.base
            + self.ops[..at]
                .iter()
                .map(|op| op.operation_length())
                .sum::<u64>();
        let mut plan = self.clone();
        plan.ops[at] = op;
        Some((plan, start, start + op.operation_length()))
    }

    /// The same program in the upper half of addresses.
    pub fn moved_to_kernel(self) -> ExecutionPlan {
        ExecutionPlan {
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

    pub fn trace_execution(&self) -> TracedProgram {
        let mut execution = RandomExecution::new(self);
        execution.run_program();
        execution.traced
    }
}

/// An operation of a random program.
#[derive(Clone, Copy, Debug)]
enum Operation {
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

impl Operation {
    fn operation_length(self) -> u64 {
        match self {
            Operation::Nop | Operation::Return => 1,
            Operation::IndirectJump | Operation::IndirectCall | Operation::Syscall => 2,
            Operation::LongNop | Operation::MovCr3 | Operation::VmLaunch => 3,
            Operation::PtWrite => 4,
            Operation::Jump(_) | Operation::Call(_) => 5,
            Operation::Conditional(_) => 6,
        }
    }

    fn operation_bytes(self, ip: u64, target: u64) -> Vec<u8> {
        let relative = |head: &[u8]| {
            let next = ip + self.operation_length();
            let displacement = target.wrapping_sub(next) as u32;
            [head, &displacement.to_le_bytes()].concat()
        };
        match self {
            Operation::Nop => vec![0x90],
            Operation::LongNop => vec![0x0f, 0x1f, 0x00],
            Operation::Conditional(_) => relative(&[0x0f, 0x85]),
            Operation::Jump(_) => relative(&[0xe9]),
            Operation::Call(_) => relative(&[0xe8]),
            Operation::Return => vec![0xc3],
            Operation::IndirectJump => vec![0xff, 0xe0],
            Operation::IndirectCall => vec![0xff, 0xd0],
            Operation::Syscall => vec![0x0f, 0x05],
            Operation::PtWrite => vec![0xf3, 0x0f, 0xae, 0xe0],
            Operation::MovCr3 => vec![0x0f, 0x22, 0xd8],
            Operation::VmLaunch => vec![0x0f, 0x01, 0xc2],
        }
    }
}

fn random_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        3 => Just(Operation::Nop),
        2 => Just(Operation::LongNop),
        8 => any::<u8>().prop_map(Operation::Conditional),
        3 => any::<u8>().prop_map(Operation::Jump),
        5 => any::<u8>().prop_map(Operation::Call),
        4 => Just(Operation::Return),
        1 => Just(Operation::IndirectJump),
        2 => Just(Operation::IndirectCall),
        1 => Just(Operation::Syscall),
        1 => Just(Operation::PtWrite),
        1 => Just(Operation::MovCr3),
        1 => Just(Operation::VmLaunch),
    ]
}

/// A random execution of a program, and its packets.
struct RandomExecution<'a> {
    plan: &'a ExecutionPlan,
    ops: Vec<Operation>,
    starts: Vec<u64>,
    traced: TracedProgram,
    choice: usize,
    at: usize,
    stack: Vec<u64>,
    results: Vec<bool>,
    last_ip: u64,
    time: u64,
    psbs: usize,
}

impl<'a> RandomExecution<'a> {
    fn new(plan: &'a ExecutionPlan) -> RandomExecution<'a> {
        // the end of the program is an indirect jump, so that nothing runs out of it
        let ops: Vec<Operation> = [&plan.ops[..], &[Operation::IndirectJump]].concat();
        let mut starts = Vec::new();
        let mut ip = plan.base;
        for op in &ops {
            starts.push(ip);
            ip += op.operation_length();
        }
        let mut execution = RandomExecution {
            plan,
            ops,
            starts,
            traced: TracedProgram::new(Vec::new(), 0, &[]),
            choice: 0,
            at: 0,
            stack: Vec::new(),
            results: Vec::new(),
            last_ip: 0,
            time: 1000,
            psbs: 0,
        };
        let code = execution.code_from(0);
        execution.traced.space.map_bytes(0, plan.base, code.into());
        execution
    }

    fn code_from(&self, from: usize) -> Vec<u8> {
        let ops = self.ops.iter().zip(&self.starts).skip(from);
        ops.flat_map(|(op, &ip)| op.operation_bytes(ip, self.operation_target(*op)))
            .collect()
    }

    fn operation_target(&self, op: Operation) -> u64 {
        match op {
            Operation::Conditional(to) | Operation::Jump(to) | Operation::Call(to) => {
                self.starts[usize::from(to) % self.starts.len()]
            }
            _ => 0,
        }
    }

    fn next_choice(&mut self, from: u8) -> u8 {
        self.choice += 1;
        let choices = &self.plan.choices;
        // not the same in each cycle
        let value = choices[self.choice % choices.len()].wrapping_add((self.choice / 7) as u8);
        value % from
    }

    fn any_target(&mut self) -> u64 {
        let some = self.next_choice(5);
        // few targets are common, some are rare
        let index = match some {
            0 => usize::from(self.next_choice(255)),
            some => usize::from(some) * 3,
        };
        self.starts[index % self.starts.len()]
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        self.traced.stream.extend(bytes);
    }

    fn ip_packet(&mut self, opcode: u8, ip: u64) {
        let bytes = ip.to_le_bytes();
        let kinds: &[(u8, usize)] = match (ip >> 16 == self.last_ip >> 16, self.next_choice(4)) {
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
    fn flush_tnt(&mut self) {
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
        self.emit_timing_packets();
    }

    fn add_branch_result(&mut self, taken: bool) {
        self.results.push(taken);
        let most = if self.next_choice(9) == 0 { 3 } else { 6 };
        if self.results.len() >= most && (self.next_choice(40) != 0 || self.results.len() > 40) {
            self.flush_tnt();
        }
    }

    fn emit_timing_packets(&mut self) {
        if !self.plan.clocks {
            return;
        }
        match self.next_choice(24) {
            0..=5 => {
                let cycles = self.next_choice(32);
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
                let ratio = 10 + self.next_choice(20);
                self.push_bytes(&[0x02, 0x03, ratio, 0]);
            }
            12 if self.next_choice(3) == 0 => self.emit_tsc(),
            _ => {}
        }
        self.time += 40;
    }

    fn emit_tsc(&mut self) {
        let time = self.time.to_le_bytes();
        self.push_bytes(&[0x19]);
        self.push_bytes(&time[..7]);
    }

    fn emit_psb_plus(&mut self) {
        self.flush_tnt();
        self.psbs += 1;
        self.time += 500;
        if let Some(&(from, to)) = self.plan.pokes.get(self.psbs.wrapping_sub(2)) {
            // branches get other targets, or become other instructions of the same length
            let from = usize::from(from) % self.ops.len();
            for (index, op) in self.ops.iter_mut().enumerate().skip(from) {
                let to = to.wrapping_add(index as u8);
                *op = match *op {
                    Operation::Conditional(_) => Operation::Conditional(to),
                    Operation::Jump(_) if to & 1 == 0 => Operation::Call(to),
                    Operation::Call(_) => Operation::Jump(to),
                    Operation::Nop => Operation::Return,
                    Operation::IndirectCall => Operation::IndirectJump,
                    op => op,
                };
            }
            let code = self.code_from(from);
            let start = self.starts[from];
            self.traced.space.overwrite_bytes(self.time, start, &code);
        }
        self.push_bytes(&[0x02, 0x82].repeat(8));
        self.emit_tsc();
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

    fn operation_index_at(&self, ip: u64) -> usize {
        self.starts
            .iter()
            .position(|&start| start == ip)
            .unwrap_or(0)
    }

    /// An event strikes before the next instruction.
    fn emit_async_event(&mut self) {
        self.flush_tnt();
        let ip = self.starts[self.at];
        self.ip_packet(0x1d, ip);
        if self.next_choice(3) == 0 {
            self.push_bytes(&[0x01]);
            let back = self.any_target();
            self.at = self.operation_index_at(back);
            self.ip_packet(0x11, back);
            self.stack.clear();
        } else {
            let to = self.any_target();
            self.at = self.operation_index_at(to);
            self.ip_packet(0x0d, to);
        }
    }

    fn emit_tip(&mut self, to: u64) {
        self.flush_tnt();
        self.ip_packet(0x0d, to);
        self.emit_timing_packets();
        self.at = self.operation_index_at(to);
    }

    fn run_program(&mut self) {
        self.emit_psb_plus();
        let mut branches = 0;
        // the instructions since the last packet, and the number of instructions before each
        let mut straight: Vec<(u64, usize)> = Vec::new();
        while branches < self.plan.branches {
            let op = self.ops[self.at];
            let ip = self.starts[self.at];
            let next = ip + op.operation_length();
            let target = self.operation_target(op);
            if let Some(&(_, before)) = straight.iter().find(|(seen, _)| *seen == ip) {
                // a loop without packets: its number of iterations is not in the trace
                self.traced.ips.truncate(before);
                break;
            }
            let bytes = self.traced.stream.len();
            match self.next_choice(self.plan.rarity) {
                0 => self.emit_async_event(),
                1 => self.emit_psb_plus(),
                _ => {}
            }
            if self.traced.stream.len() > bytes {
                straight.clear();
            }
            if self.starts[self.at] != ip || self.operation_target(self.ops[self.at]) != target {
                continue;
            }
            let op = self.ops[self.at];
            straight.push((ip, self.traced.ips.len()));
            self.traced.ips.push(ip);
            match op {
                Operation::Nop | Operation::LongNop | Operation::PtWrite | Operation::MovCr3 => {
                    self.at += 1
                }
                Operation::Conditional(_) => {
                    let taken = self.next_choice(3) != 0;
                    self.at = self.operation_index_at(if taken { target } else { next });
                    self.add_branch_result(taken);
                }
                Operation::Jump(_) => self.at = self.operation_index_at(target),
                Operation::Call(_) => {
                    // a call to the next instruction is no call to RET compression
                    if target != next {
                        self.stack.push(next);
                    }
                    self.at = self.operation_index_at(target);
                }
                Operation::IndirectCall => {
                    self.stack.push(next);
                    let to = self.any_target();
                    self.emit_tip(to);
                }
                Operation::IndirectJump | Operation::Syscall | Operation::VmLaunch => {
                    let to = self.any_target();
                    self.emit_tip(to);
                }
                Operation::Return => {
                    let depth = self.stack.len();
                    self.stack.drain(..depth.saturating_sub(64));
                    match self.stack.pop() {
                        Some(to) if self.plan.compress && self.next_choice(8) != 0 => {
                            self.at = self.operation_index_at(to);
                            self.add_branch_result(true);
                        }
                        _ => {
                            let to = self.any_target();
                            self.emit_tip(to);
                        }
                    }
                }
            }
            let needs_packet = !matches!(
                op,
                Operation::Nop
                    | Operation::LongNop
                    | Operation::PtWrite
                    | Operation::MovCr3
                    | Operation::Jump(_)
                    | Operation::Call(_)
            );
            if needs_packet {
                branches += 1;
                straight.clear();
            }
        }
        self.flush_tnt();
        let ip = self.starts[self.at];
        self.ip_packet(0x1d, ip);
        self.push_bytes(&[0x01]);
    }
}
