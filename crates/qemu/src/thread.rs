//! One recorded thread: its trace unit, its clock, and where it is.

mod blocks;
mod leaving;
mod quiet;
mod sending;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rtit_unit::Unit;

use crate::block::{Block, Exit, OUT};
use crate::config::{Legacy, Truth};
use crate::cpu::{Cpu, State};
use crate::process::{process, Process};
use crate::ranges::Ranges;
use crate::syscalls::Call;
use crate::truth::{Path, Steps};
use crate::window::Watch;

use blocks::LOOK;

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

    pub(crate) fn is_out(&self) -> bool {
        self.block.exit == Exit::Out
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

#[cold]
#[inline(never)]
fn clock_left_its_range() -> ! {
    crate::die("the clock of a thread left its range");
}
