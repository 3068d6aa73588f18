//! One recorded thread: its trace unit, its clock, and where it is.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rtit_unit::Unit;

use crate::block::{Block, Exit, OUT};
use crate::config::{Legacy, Truth};
use crate::cpu::{Cpu, State};
use crate::link::{Kind, Message};
use crate::process::{process, Process};
use crate::ranges::Ranges;
use crate::signals::Interrupted;
use crate::syscalls::Call;
use crate::truth::{Path, Steps};
use crate::window::Watch;

/// `Thread::attention`: switch tracing off and on before the next instruction: code has changed.
pub(crate) const SWITCH: u32 = 1;
/// `Thread::attention`: the process ends; do not run on.
pub(crate) const STOP: u32 = 2;
/// `Thread::attention`: the recording's phase has changed, or is to.
pub(crate) const EDGE: u32 = 4;

/// `Thread::mode`: who may touch the thread's state.
pub(crate) const USER: u32 = 0;
/// In a system call: whoever changes this to `CLAIMED` may.
pub(crate) const KERNEL: u32 = 1;
pub(crate) const CLAIMED: u32 = 2;
/// Stopped for good.
pub(crate) const PARKED: u32 = 3;

/// Bytes of packets that a thread holds back, at most: so many, and what `LOOK` instructions more make.
const HELD: usize = 32 * 1024;
const LOOK: u64 = 8192;
/// Bytes from which on a system call sends them.
const HELD_IN_KERNEL: usize = 4096;

/// The fields that each block needs come first, in one line of the cache.
#[repr(C, align(64))]
pub(crate) struct Thread {
    /// The block that runs, or `OUT`.
    pub(crate) block: &'static Block,
    /// Instructions retired before that block, or more: it follows the latest of other threads. Others read it.
    pub(crate) clock: AtomicU64,
    pub(crate) attention: AtomicU32,
    /// `follow_quietly` may be tried below this clock. It holds while user code runs.
    quiet_until: u64,
    pub(crate) truth: Truth,
    pub(crate) next_look: u64,
    /// Conditional and indirect branches, returns and far transfers.
    branches: u64,
    pub(crate) path: Path,
    pub(crate) unit: Unit,
    pub(crate) mode: AtomicU32,
    pub(crate) cpu: Cpu,
    pub(crate) tid: u32,
    pub(crate) call: Call,
    /// What the clock owes to other threads.
    raised: u64,
    steps: Steps,
    /// Of a snapshot the path is cut where a decoder can start: PSBs that it has been cut at.
    psbs: u64,
    snapshot: bool,
    /// `SharedClock::asked` when this was last answered.
    asked: u64,
    pub(crate) watch: Watch,
}

impl Thread {
    pub(crate) fn new(process: &Process, unit: Unit, state: *const State, tid: u32) -> Thread {
        Thread {
            block: &OUT,
            clock: AtomicU64::new(0),
            attention: AtomicU32::new(0),
            mode: AtomicU32::new(USER),
            unit,
            cpu: Cpu::new(state),
            tid,
            call: Call::default(),
            raised: 0,
            quiet_until: 0,
            next_look: LOOK,
            truth: process.config.truth,
            path: Path::new(process.config.joined),
            steps: Steps::default(),
            branches: 0,
            psbs: 0,
            snapshot: process.config.snapshot,
            asked: process.clock.asked(),
            watch: Watch::new(&process.config.window),
        }
    }

    /// Goes on where exec left the thread.
    pub(crate) fn inherit(&mut self, legacy: Legacy) {
        self.path.continue_from(legacy.chain);
        self.watch.stopped = legacy.stopped;
    }

    fn legacy(&mut self) -> Legacy {
        Legacy {
            chain: self.path.chain(),
            stopped: self.watch.stopped || self.unit.stopped(),
        }
    }

    #[inline(always)]
    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// The clock is at least `clock`.
    pub(crate) fn raise(&mut self, clock: u64) {
        let was = self.now();
        let now = was.max(clock);
        self.raised += now - was;
        self.clock.store(now, Ordering::Relaxed);
        self.tick(now);
    }

    /// The unit's clock follows before each event; what time alone brings can wait until then.
    #[inline(always)]
    pub(crate) fn catch_up(&mut self) {
        self.tick(self.now());
    }

    /// A direct branch makes packets only where address ranges can begin or end.
    #[inline(always)]
    fn catch_up_unless_plain(&mut self) {
        if !self.unit.plain() {
            self.catch_up();
        }
    }

    #[inline(always)]
    fn tick(&mut self, clock: u64) {
        if self.unit.at(clock).is_err() {
            clock_left_its_range();
        }
    }

    /// The block that runs is through, the next instruction is at `next`.
    #[inline(always)]
    pub(crate) fn finish(&mut self, next: u64) {
        let block = self.block;
        let done = self.retire(block.count);
        if self.truth == Truth::Blocks {
            self.cut_path();
            let transfers = next != block.next || block.transfers();
            self.path.block(block, done, transfers);
        }
    }

    /// All but the last `left` instructions of the block that runs retired.
    fn finish_part(&mut self, count: u32) {
        let block = self.block;
        let done = self.retire(count);
        if self.truth == Truth::Blocks {
            self.cut_path();
            self.path.part(block, done..count);
        }
    }

    /// What follows on the path comes after the last PSB.
    #[inline(always)]
    fn cut_path(&mut self) {
        if self.snapshot && self.psbs != self.unit.psbs() {
            self.psbs = self.unit.psbs();
            self.path.cut();
        }
    }

    /// How many of them are in the path already.
    #[inline(always)]
    fn retire(&mut self, count: u32) -> u32 {
        let clock = self.now() + u64::from(count);
        if clock >= self.next_look {
            return self.look(count);
        }
        self.clock.store(clock, Ordering::Relaxed);
        0
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self, count: u32) -> u32 {
        let clock = self.now() + u64::from(count);
        self.next_look = clock + LOOK;
        let done = self.pass_edges(count);
        self.clock.store(clock, Ordering::Relaxed);
        self.catch_up();
        let asked = process().clock.asked();
        if self.unit.output().len() >= HELD || self.path.is_long() || asked != self.asked {
            self.asked = asked;
            self.flush(process());
        }
        done
    }

    /// `follow` for most blocks: one has led to the next, and no packet follows. False, and nothing has changed, if it is
    /// not that simple. Where the program's own branch goes must not be guessed here again: few jumps.
    #[inline(always)]
    pub(crate) fn follow_quietly(&mut self, next: &Block) -> bool {
        let (block, start) = (self.block, next.start);
        let clock = self.now() + u64::from(block.count);
        let elsewhere = (start != block.leads[0]) & (start != block.leads[1]);
        if elsewhere || clock >= self.quiet_until {
            return false;
        }
        if !self.unit.quietly(block.results, start != block.next, start) {
            return false;
        }
        self.clock.store(clock, Ordering::Relaxed);
        self.branches += u64::from(block.results);
        true
    }

    /// The same for what takes longer to find out: iterations, calls, returns, a TNT that is full, blocks that may be
    /// parts of others.
    #[inline(always)]
    pub(crate) fn follow_almost_quietly(&mut self, next: &Block) -> bool {
        let (block, start) = (self.block, next.start);
        let clock = self.now() + u64::from(block.count);
        if clock >= self.quiet_until || breaks_off(block, next) {
            return false;
        }
        let clock = match block.exit {
            Exit::Repeat if start == block.next => clock,
            Exit::Repeat if start == block.last => clock - 1,
            Exit::Call if start == block.target => {
                self.unit.call(block.next, start);
                clock
            }
            Exit::Return if self.unit.ret_quietly(start) => {
                self.branches += 1;
                clock
            }
            Exit::Conditional if start == block.next || start == block.target => {
                if !self.unit.conditional_quietly(start != block.next, start) {
                    return false;
                }
                self.branches += 1;
                clock
            }
            _ => return self.follow_quietly(next),
        };
        self.clock.store(clock, Ordering::Relaxed);
        true
    }

    /// After anything else has happened.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        self.quiet_until = match self.truth {
            Truth::None => self.unit.quiet_until().min(self.next_look),
            _ => 0,
        };
    }

    /// A block starts at `next` after the one that runs, and nothing about it is unusual. False if something is.
    #[inline(always)]
    pub(crate) fn follow(&mut self, next: &Block) -> bool {
        let (block, start) = (self.block, next.start);
        if breaks_off(block, next) {
            return false;
        }
        if block.exit == Exit::Conditional {
            let taken = start != block.next;
            if taken && start != block.target {
                return false;
            }
            self.finish(start);
            self.catch_up();
            self.branches += 1;
            self.unit.conditional(block.next, block.target, taken);
            return true;
        }
        match block.exit {
            Exit::Fall => {
                if start != block.next {
                    return false;
                }
                self.finish(start);
            }
            Exit::Jump => {
                if start != block.target {
                    return false;
                }
                self.finish(start);
                self.catch_up_unless_plain();
                self.unit.jump(start);
            }
            Exit::Call => {
                if start != block.target {
                    return false;
                }
                self.finish(start);
                self.catch_up_unless_plain();
                self.unit.call(block.next, start);
            }
            Exit::Return => {
                self.finish(start);
                self.catch_up();
                self.branches += 1;
                self.unit.ret(start);
            }
            Exit::IndirectJump => {
                self.finish(start);
                self.catch_up();
                self.branches += 1;
                self.unit.indirect_jump(start);
            }
            Exit::IndirectCall => {
                self.finish(start);
                self.catch_up();
                self.branches += 1;
                self.unit.indirect_call(block.next, start);
            }
            Exit::Repeat if start == block.next => self.finish(start),
            Exit::Repeat if start == block.last => self.finish_part(block.count - 1),
            _ => return false,
        }
        true
    }

    /// A block starts at `start` that does not simply follow: begin, resumption, restart, far transfer. False if
    /// nobody can tell how that came.
    pub(crate) fn follow_strangely(&mut self, start: u64) -> bool {
        let block = self.block;
        if block.exit == Exit::Out {
            self.resume(start);
            return true;
        }
        if let Some(index) = block.index_of(start) {
            self.finish_part(index);
            return true;
        }
        if block.exit == Exit::Far {
            self.finish(start);
            self.catch_up();
            self.branches += 1;
            self.unit.far(start);
            return true;
        }
        false
    }

    /// User code goes on, or begins.
    fn resume(&mut self, start: u64) {
        let process = process();
        self.raise(process.clock.latest());
        if self.attention.load(Ordering::Acquire) & SWITCH != 0 {
            self.attention.fetch_and(!SWITCH, Ordering::AcqRel);
            self.take_ranges();
            if self.watch.tracing() {
                self.unit.switch(None);
            }
        }
        self.follow_in_kernel();
        self.path.enter();
        if self.watch.tracing() {
            self.unit.run(start);
        } else {
            self.unit.resume(start);
        }
    }

    /// The block's last instruction called the kernel. The thread is out of user code afterwards.
    pub(crate) fn enter_kernel(&mut self) {
        match self.block.exit {
            Exit::Syscall => {
                self.finish(0);
                self.steps.leave(&mut self.path);
                self.catch_up();
                self.branches += 1;
                self.unit.syscall();
            }
            Exit::SoftInt => self.soft_interrupt(),
            Exit::Out => {}
            _ => self.lose("a system call came from an instruction that is none"),
        }
        self.block = &OUT;
    }

    fn soft_interrupt(&mut self) {
        let block = self.block;
        self.finish_part(block.count - 1);
        self.steps.leave(&mut self.path);
        self.catch_up();
        self.unit.software_interrupt(block.last);
    }

    /// User code is left for a signal or for good, without an instruction for it.
    pub(crate) fn interrupt(&mut self, what: Interrupted) {
        let Interrupted { ip, faulted } = what;
        let block = self.block;
        if block.exit == Exit::Out {
            return;
        }
        if block.exit == Exit::SoftInt && ip == block.next {
            self.soft_interrupt();
            self.block = &OUT;
            return;
        }
        let inside = block.index_of(ip);
        let reached = block.may_reach(ip);
        match inside {
            // Signals that come from outside arrive between blocks: then a block that leads to itself is through.
            Some(index) if faulted || !reached => self.finish_part(index),
            _ if reached => self.complete(ip),
            _ => {
                self.lose("a signal arrived where the interrupted instruction is not known");
                self.block = &OUT;
                return;
            }
        }
        self.steps.interrupt(ip, faulted, &mut self.path);
        self.catch_up();
        self.unit.interrupt(ip);
        self.block = &OUT;
    }

    /// The block is through and goes on at `ip`, where no block starts.
    fn complete(&mut self, ip: u64) {
        let block = self.block;
        self.finish(ip);
        self.catch_up();
        match block.exit {
            Exit::Conditional => self
                .unit
                .conditional(block.next, block.target, ip != block.next),
            Exit::Jump => self.unit.jump(ip),
            Exit::Call => self.unit.call(block.next, ip),
            Exit::IndirectJump => self.unit.indirect_jump(ip),
            Exit::IndirectCall => self.unit.indirect_call(block.next, ip),
            Exit::Return => self.unit.ret(ip),
            Exit::Far => self.unit.far(ip),
            _ => {}
        }
    }

    /// A call into the vsyscall page, which the kernel carries out.
    pub(crate) fn enter_vsyscall(&mut self, start: u64) {
        self.steps.leave(&mut self.path);
        self.catch_up();
        self.unit.exception(start);
        self.block = &OUT;
    }

    fn take_ranges(&mut self) {
        let process = process();
        if !process.config.filters.is_empty() {
            process.with(|shared| self.aim(&shared.ranges));
        }
    }

    /// The address ranges that count from the next enable on.
    pub(crate) fn aim(&mut self, ranges: &Ranges) {
        if ranges.as_slice().is_empty() {
            return;
        }
        if let Err(error) = self.unit.set_ranges(ranges.as_slice()) {
            crate::die(&error.to_string());
        }
        if self.truth != Truth::None {
            self.path.note(&ranges.records(self.tid), self.tid);
        }
    }

    /// Before the instruction at `ip`, in user code.
    pub(crate) fn switch(&mut self, ip: u64) {
        self.raise(process().clock.latest());
        self.steps.interrupt(ip, false, &mut self.path);
        self.take_ranges();
        if self.watch.tracing() {
            self.unit.switch(Some(ip));
        }
        self.path.enter();
    }

    /// What happened is not known: an overflow, out of user code. The truth is not told either.
    pub(crate) fn lose(&mut self, why: &str) {
        let process = process();
        self.steps.forget();
        let now = self.now();
        let place = format!("{why} (after the block at {:#x})", self.block.start);
        process.send(Message::new(Kind::Warning, self.tid, now), place.as_bytes());
        self.catch_up();
        if self.watch.tracing() {
            self.unit.overflow(None);
        }
        self.block = &OUT;
    }

    pub(crate) fn is_out(&self) -> bool {
        self.block.exit == Exit::Out
    }

    /// User code is left for good before the instruction at `ip`.
    pub(crate) fn stop_at(&mut self, ip: u64) {
        if !self.is_out() {
            self.steps.interrupt(ip, false, &mut self.path);
            self.catch_up();
            self.unit.interrupt(ip);
            self.block = &OUT;
        }
    }

    /// The thread has left generated code, so that QEMU's state of it tells where it is.
    pub(crate) fn interrupt_where_it_is(&mut self, faulted: bool) {
        if self.is_out() {
            return;
        }
        match self.cpu.rip() {
            Some(ip) => self.interrupt(Interrupted { ip, faulted }),
            None => self.lose("the thread ended where its last instruction is not known"),
        }
    }

    /// The thread, which is not in user code, ends.
    pub(crate) fn end(&mut self, status: u32) {
        let process = process();
        self.unit.disable();
        self.flush(process);
        if self.truth != Truth::None {
            let records = self.path.end(self.tid, status);
            process.send(self.message(Kind::Truth), &records);
        }
        let mut message = self.message(Kind::Exit);
        message.ip = status.into();
        process.send(message, &[]);
        process.clock.publish(self.now());
        if self.tid == process.pid() {
            process.keep_leaders(self.legacy());
        }
    }

    /// The thread, which is not in user code, goes on in another program.
    pub(crate) fn leave_for_exec(&mut self) -> Legacy {
        let process = process();
        self.unit.disable();
        self.flush(process);
        process.clock.publish(self.now());
        self.legacy()
    }

    /// Sends what is held back.
    pub(crate) fn flush(&mut self, process: &Process) {
        if self.truth != Truth::None {
            let records = self.path.take(self.tid);
            if !records.is_empty() {
                process.send(self.message(Kind::Truth), &records);
            }
        }
        if !self.unit.output().is_empty() {
            if !process.clock.full() {
                process.send(self.message(Kind::Packets), self.unit.output());
            }
            self.unit.discard();
        }
    }

    pub(crate) fn flush_in_kernel(&mut self, process: &Process) {
        // A snapshot of a thread that waits shows why.
        if self.snapshot || self.unit.output().len() >= HELD_IN_KERNEL {
            self.flush(process);
        }
    }

    /// With the process's pid in `ip`, the number of retired instructions in `target`, and that of branches in `extra`.
    pub(crate) fn message(&self, kind: Kind) -> Message {
        let mut message = Message::new(kind, self.tid, self.now());
        message.ip = u64::from(process().pid());
        message.target = self.retired();
        message.extra = self.branches;
        message
    }

    pub(crate) fn retired(&self) -> u64 {
        self.now() - self.raised
    }

    /// The callback at each instruction.
    pub(crate) fn step(&mut self, step: &'static crate::block::Step) {
        self.steps.step(step, &mut self.path);
        // The instruction before this one is on the path now.
        self.cut_path();
    }
}

/// A block of one instruction inside the last one: that one was broken off there.
#[inline(always)]
fn breaks_off(block: &Block, next: &Block) -> bool {
    next.count == 1 && next.start.wrapping_sub(block.start) < block.last.wrapping_sub(block.start)
}

#[cold]
#[inline(never)]
fn clock_left_its_range() -> ! {
    crate::die("the clock of a thread left its range");
}
