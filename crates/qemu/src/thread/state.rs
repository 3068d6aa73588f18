//! One recorded thread: its trace unit, its clock, and where it is.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rtit_unit::Unit;

use crate::failure::die;
use crate::interface::cpu::Cpu;
use crate::thread::block::{Block, Exit, Step, OUT};
use crate::thread::path::{Path, Truth};
use crate::thread::steps::Steps;
use crate::thread::tally::Tally;
use crate::thread::traced::Traced;
use crate::thread::watch::Watch;
use crate::thread::windows::Windows;

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

/// Instructions from one look to the next.
pub(crate) const LOOK: u64 = 8192;

/// What the recording wants of each thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) truth: Truth,
    /// Instructions that the truth joins into one run, at least.
    pub(crate) joined: u32,
    /// The recorder keeps the last packets alone.
    pub(crate) snapshot: bool,
    pub(crate) look: Look,
}

/// Called when the first so many instructions of the block that runs have retired and the clock with them reaches
/// `next_look`; moves both on. How many of them it has put into the path.
pub(crate) type Look = fn(&mut Thread, u32) -> u32;

/// What a thread that exec left over brings with it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Legacy {
    /// Instructions and hash of its path.
    pub(crate) chain: (u64, u64),
    /// A TraceStop ended its trace.
    pub(crate) stopped: bool,
}

/// What the return of a system call needs of its beginning.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Call {
    pub(crate) arguments: [u64; 4],
    /// Whether the socket, and the lifeline's pipe, are among the files that it closes.
    pub(crate) cut_off: [bool; 2],
    /// The stack limit that was in force, if ours is.
    pub(crate) stack: Option<u64>,
    /// Of an rt_sigaction that installs an action: whether that ignores the signal.
    pub(crate) ignores: Option<bool>,
    /// The recorder was told that the process is about to run a program without us.
    pub(crate) leaves: bool,
}

/// The fields that each block needs come first, in one line of the cache.
#[repr(C, align(64))]
pub(crate) struct Thread {
    /// The block that runs, or `OUT`.
    pub(crate) block: &'static Block,
    /// Instructions retired before that block, or more: it follows the latest of other threads. Others read it.
    pub(crate) clock: AtomicU64,
    pub(crate) attention: AtomicU32,
    /// `follow_quietly` may be tried below this clock. It holds while user code runs.
    pub(super) quiet_until: u64,
    /// Of nothing unless blocks are counted.
    pub(crate) tally: Tally,
    pub(crate) truth: Truth,
    pub(crate) next_look: u64,
    /// Conditional and indirect branches, returns and far transfers.
    pub(crate) branches: u64,
    pub(crate) path: Path,
    pub(crate) unit: Unit,
    pub(crate) mode: AtomicU32,
    pub(crate) cpu: Cpu,
    pub(crate) tid: u32,
    pub(crate) call: Call,
    /// What the clock owes to other threads.
    raised: u64,
    pub(crate) steps: Steps,
    /// Of a snapshot the path is cut where a decoder can start: PSBs that it has been cut at.
    pub(super) psbs: u64,
    pub(crate) snapshot: bool,
    /// `SharedClock::asked` when this was last answered.
    pub(crate) asked: u64,
    pub(crate) watch: Watch,
    traced: Traced,
    pub(super) look: Look,
    /// Of a thread that runs ahead.
    pub(super) windows: Windows,
}

impl Thread {
    pub(crate) fn new(wanted: Wanted, watch: Watch, unit: Unit, cpu: Cpu, tid: u32) -> Thread {
        Thread {
            block: &OUT,
            clock: AtomicU64::new(0),
            attention: AtomicU32::new(0),
            mode: AtomicU32::new(USER),
            unit,
            cpu,
            tid,
            call: Call::default(),
            raised: 0,
            quiet_until: 0,
            tally: Tally::default(),
            next_look: LOOK,
            truth: wanted.truth,
            path: Path::new(wanted.joined),
            steps: Steps::default(),
            branches: 0,
            psbs: 0,
            snapshot: wanted.snapshot,
            asked: 0,
            watch,
            traced: Traced::default(),
            look: wanted.look,
            windows: Windows::default(),
        }
    }

    /// Goes on where exec left the thread.
    pub(crate) fn inherit(&mut self, legacy: Legacy) {
        self.path.continue_from(legacy.chain);
        self.watch.stopped = legacy.stopped;
    }

    pub(crate) fn legacy(&mut self) -> Legacy {
        Legacy {
            chain: self.path.chain(),
            stopped: self.watch.stopped || self.unit.stopped(),
        }
    }

    #[inline(always)]
    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// The clock is at least `clock`: a thread in the kernel has waited until then.
    pub(crate) fn raise(&mut self, clock: u64) {
        let was = self.now();
        let now = was.max(clock);
        self.raised += now - was;
        self.clock.store(now, Ordering::Relaxed);
        if self.unit.wait_until(now).is_err() {
            clock_left_its_range();
        }
    }

    /// The unit's clock follows before each event; what time alone brings can wait until then.
    #[inline(always)]
    pub(crate) fn catch_up(&mut self) {
        self.tick(self.now());
    }

    /// A direct branch makes packets only where address ranges can begin or end.
    #[inline(always)]
    pub(super) fn catch_up_unless_plain(&mut self) {
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

    pub(crate) fn is_out(&self) -> bool {
        self.block.exit == Exit::Out
    }

    pub(crate) fn retired(&self) -> u64 {
        self.now() - self.raised
    }

    /// Wherever PacketEn may have changed since, before anything else retires. In the kernel nothing does: what changes
    /// there may be found when user code goes on.
    #[inline(always)]
    pub(crate) fn follow_packet_en(&mut self) {
        if self.unit.packet_en() != self.traced.on {
            self.traced.change([self.retired(), self.branches]);
        }
    }

    /// Traced instructions and branches so far.
    pub(crate) fn traced(&self) -> [u64; 2] {
        self.traced.so_far([self.retired(), self.branches])
    }

    /// The callback at each instruction.
    pub(crate) fn step(&mut self, step: &'static Step) {
        self.steps.step(step, &mut self.path);
        // The instruction before this one is on the path now.
        self.cut_path();
    }

    /// What follows on the path comes after the last PSB.
    #[inline(always)]
    pub(crate) fn cut_path(&mut self) {
        if self.snapshot && self.psbs != self.unit.psbs() {
            self.psbs = self.unit.psbs();
            self.path.cut();
        }
    }
}

#[cold]
#[inline(never)]
fn clock_left_its_range() -> ! {
    die("the clock of a thread left its range");
}
