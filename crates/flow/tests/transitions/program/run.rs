//! A random way through a program, and the packets that tell of it.

use rtit_image::Space;

use super::op::Op;
use super::{Plan, Traced};

pub struct Run<'a> {
    plan: &'a Plan,
    ops: Vec<Op>,
    starts: Vec<u64>,
    pub traced: Traced,
    choice: usize,
    at: usize,
    stack: Vec<u64>,
    results: Vec<bool>,
    last_ip: u64,
    time: u64,
    psbs: usize,
}

impl<'a> Run<'a> {
    pub fn new(plan: &'a Plan) -> Run<'a> {
        // the end of the program is an indirect jump, so that nothing runs out of it
        let ops: Vec<Op> = [&plan.ops[..], &[Op::IndirectJump]].concat();
        let mut starts = Vec::new();
        let mut ip = plan.base;
        for op in &ops {
            starts.push(ip);
            ip += op.length();
        }
        let mut run = Run {
            plan,
            ops,
            starts,
            traced: Traced {
                stream: Vec::new(),
                ips: Vec::new(),
                space: Space::new(),
                learned: None,
                turns: Vec::new(),
            },
            choice: 0,
            at: 0,
            stack: Vec::new(),
            results: Vec::new(),
            last_ip: 0,
            time: 1000,
            psbs: 0,
        };
        let code = run.code(0);
        run.traced.space.map(0, plan.base, code.into());
        run
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
        // not the same way round each time
        let value = choices[self.choice % choices.len()].wrapping_add((self.choice / 7) as u8);
        value % from
    }

    fn anywhere(&mut self) -> u64 {
        let some = self.choose(5);
        // few targets are common, some are rare
        let index = match some {
            0 => usize::from(self.choose(255)),
            some => usize::from(some) * 3,
        };
        self.starts[index % self.starts.len()]
    }

    fn put(&mut self, bytes: &[u8]) {
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
        self.put(&[kind << 5 | opcode]);
        self.put(&bytes[..length]);
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
            self.put(&[(bits << 1) as u8]);
        } else {
            let bytes = (bits << 16 | 0xa302).to_le_bytes();
            self.put(&bytes);
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
                self.put(&[cycles << 3 | 3]);
            }
            6 => self.put(&[0x07 | 9 << 3, 0x22]),
            7 => self.put(&[0x07 | 3 << 3, 0x23, 0x44]),
            8 => self.put(&[0x07, 0x23, 0x45, 0x02]),
            9 => {
                let ctc = (self.time >> 4) as u8;
                self.put(&[0x59, ctc]);
            }
            10 => self.put(&[0x00]),
            11 => {
                let ratio = 10 + self.choose(20);
                self.put(&[0x02, 0x03, ratio, 0]);
            }
            12 if self.choose(3) == 0 => self.tsc(),
            _ => {}
        }
        self.time += 40;
    }

    fn tsc(&mut self) {
        let time = self.time.to_le_bytes();
        self.put(&[0x19]);
        self.put(&time[..7]);
    }

    fn psb(&mut self) {
        self.flush();
        self.psbs += 1;
        self.time += 500;
        if let Some(&(from, to)) = self.plan.pokes.get(self.psbs.wrapping_sub(2)) {
            // branches go elsewhere, or are none any more; lengths stay, and so do the starts
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
        self.put(&[0x02, 0x82].repeat(8));
        self.tsc();
        self.put(&[0x02, 0x73, 0x10, 0x01, 0, 0x05, 0]);
        self.put(&[0x02, 0x03, 0x0a, 0]);
        self.put(&[0x99, 0x01]);
        let ip = self.starts[self.at];
        let bytes = ip.to_le_bytes();
        self.put(&[0x7d]);
        self.put(&bytes[..6]);
        self.last_ip = ip;
        self.put(&[0x02, 0x23]);
        self.stack.clear();
    }

    fn index(&self, ip: u64) -> usize {
        self.starts
            .iter()
            .position(|&start| start == ip)
            .unwrap_or(0)
    }

    /// An event strikes before the instruction at which the program is.
    fn event(&mut self) {
        self.flush();
        let ip = self.starts[self.at];
        self.ip_packet(0x1d, ip);
        if self.choose(3) == 0 {
            self.put(&[0x01]);
            let back = self.anywhere();
            self.at = self.index(back);
            self.ip_packet(0x11, back);
            self.stack.clear();
        } else {
            let to = self.anywhere();
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

    pub fn go(&mut self) {
        self.psb();
        let mut branches = 0;
        // what ran since the last packet, and after how many instructions
        let mut straight: Vec<(u64, usize)> = Vec::new();
        while branches < self.plan.branches {
            let op = self.ops[self.at];
            let ip = self.starts[self.at];
            let next = ip + op.length();
            let target = self.target(op);
            if let Some(&(_, before)) = straight.iter().find(|(seen, _)| *seen == ip) {
                // round and round without a packet: how often is nowhere to be read
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
                    let to = self.anywhere();
                    self.tip(to);
                }
                Op::IndirectJump | Op::Syscall | Op::VmLaunch => {
                    let to = self.anywhere();
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
                            let to = self.anywhere();
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
        self.put(&[0x01]);
    }
}
