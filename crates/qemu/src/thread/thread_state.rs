//! One recorded thread: its trace unit, its clock and its position in the code.
//!
//! Two fields coordinate threads. `attention`: bits that other threads set and the thread handles at its next block.
//! `mode`: who may touch the rest of the state; the thread itself, or, while it is in a system call or stopped, whoever
//! changes `mode` to `MODE_CLAIMED`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rtit_unit::TraceUnit;

use crate::fatal_error::exit_with_error;
use crate::interface::guest_state::CpuState;
use crate::thread::executed_path::{ExecutedPath, ExecutedPathSource, StepTracker};
use crate::thread::path_memo::PathMemo;
use crate::thread::thread_counters::ThreadCounters;
use crate::thread::translation_block::{BlockExit, InstructionStep, TranslationBlock, OUTSIDE};

/// `RecordedThread::attention`: code has changed; switch tracing off and on before the next instruction.
pub(crate) const ATTEND_SWITCH: u32 = 1;
/// `RecordedThread::attention`: the process ends; stop.
pub(crate) const ATTEND_STOP: u32 = 2;
/// `RecordedThread::attention`: the phase of the recording window has changed, or is about to.
pub(crate) const ATTEND_EDGE: u32 = 4;
/// `RecordedThread::attention`: the last block may have waited for another thread; raise the clock.
pub(crate) const ATTEND_CLOCK: u32 = 8;

/// `RecordedThread::mode`: in user code.
pub(crate) const MODE_USER: u32 = 0;
/// In a system call: another thread may change this to `MODE_CLAIMED`.
pub(crate) const MODE_KERNEL: u32 = 1;
pub(crate) const MODE_CLAIMED: u32 = 2;
/// Stopped for good.
pub(crate) const MODE_PARKED: u32 = 3;
/// Ended by its own exit, which has ended its trace.
pub(crate) const MODE_ENDED: u32 = 4;

/// Instructions between two periodic checks.
pub(crate) const CHECK_INTERVAL: u64 = 8192;

/// What the recording needs from each thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadOptions {
    pub(crate) truth: ExecutedPathSource,
    /// Minimum number of instructions in a run of the executed path.
    pub(crate) min_run: u32,
    /// The recorder keeps only the last packets.
    pub(crate) snapshot: bool,
    pub(crate) periodic_check: PeriodicCheck,
}

/// Called when the first so many instructions of the current block have retired and the clock reaches `next_check`.
/// Advances both. Returns how many of the instructions have been added to the path.
pub(crate) type PeriodicCheck = fn(&mut RecordedThread, u32) -> u32;

/// The state that a thread keeps over an exec.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct StateKeptOverExec {
    /// Number and hash of the executed instructions.
    pub(crate) chain: (u64, u64),
    /// A TraceStop ended its trace.
    pub(crate) stopped: bool,
}

/// The facts about a system call's entry that its return needs.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct PendingSyscall {
    pub(crate) arguments: [u64; 4],
    /// Whether the call closes the descriptors of socket and lifeline.
    pub(crate) cut_off: [bool; 2],
    /// The stack limit to restore.
    pub(crate) stack: Option<u64>,
    /// For rt_sigaction: whether the new action ignores the signal.
    pub(crate) ignores: Option<bool>,
    /// The recorder knows that the process is about to run a program unrecorded.
    pub(crate) leaves: bool,
}

/// The fields that each block needs come first, in one cache line.
#[repr(C, align(64))]
pub(crate) struct RecordedThread {
    /// The current block; `OUTSIDE` if the thread runs no user code.
    pub(crate) block: &'static TranslationBlock,
    /// Instructions retired before the current block, plus waiting time (`clock_raises`). Other threads read it.
    pub(crate) clock: AtomicU64,
    pub(crate) attention: AtomicU32,
    /// Transitions may be quiet below this clock. Valid while user code runs.
    pub(super) quiet_until: u64,
    /// Empty unless blocks are counted.
    pub(crate) counters: ThreadCounters,
    pub(crate) truth: ExecutedPathSource,
    pub(crate) next_check: u64,
    /// Conditional and indirect branches, returns and far transfers.
    pub(crate) branches: u64,
    pub(crate) path: ExecutedPath,
    pub(crate) unit: TraceUnit,
    pub(crate) mode: AtomicU32,
    pub(crate) cpu: CpuState,
    pub(crate) tid: u32,
    pub(crate) call: PendingSyscall,
    /// The part of the clock that is no instructions but time in which other threads ran.
    clock_raises: u64,
    pub(crate) steps: StepTracker,
    /// PSBs at which the path has been cut: a decoder of a snapshot can start at each PSB.
    pub(super) psbs: u64,
    pub(crate) snapshot: bool,
    /// The value of `SharedClock::flush_requests` that was last answered.
    pub(crate) answered_requests: u64,
    pub(crate) window: WindowPosition,
    traced: TracedTotals,
    pub(super) periodic_check: PeriodicCheck,
    /// For threads with a ring.
    pub(super) memo: PathMemo,
}

impl RecordedThread {
    pub(crate) fn new(
        wanted: ThreadOptions,
        window: WindowPosition,
        unit: TraceUnit,
        cpu: CpuState,
        tid: u32,
    ) -> RecordedThread {
        RecordedThread {
            block: &OUTSIDE,
            clock: AtomicU64::new(0),
            attention: AtomicU32::new(0),
            mode: AtomicU32::new(MODE_USER),
            unit,
            cpu,
            tid,
            call: PendingSyscall::default(),
            clock_raises: 0,
            quiet_until: 0,
            counters: ThreadCounters::default(),
            next_check: CHECK_INTERVAL,
            truth: wanted.truth,
            path: ExecutedPath::new(wanted.min_run),
            steps: StepTracker::default(),
            branches: 0,
            psbs: 0,
            snapshot: wanted.snapshot,
            answered_requests: 0,
            window,
            traced: TracedTotals::default(),
            periodic_check: wanted.periodic_check,
            memo: PathMemo::default(),
        }
    }

    /// Continues from the state that an exec left.
    pub(crate) fn restore_state_after_exec(&mut self, inherited: StateKeptOverExec) {
        self.path.continue_hash(inherited.chain);
        self.window.stopped = inherited.stopped;
    }

    pub(crate) fn state_to_keep_over_exec(&mut self) -> StateKeptOverExec {
        StateKeptOverExec {
            chain: self.path.count_and_hash(),
            stopped: self.window.stopped || self.unit.is_stopped(),
        }
    }

    #[inline(always)]
    pub(crate) fn clock_in_instructions(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Raises the clock to at least `clock`: the thread has waited for other threads until then.
    pub(crate) fn raise_clock(&mut self, clock: u64) {
        let was = self.clock_in_instructions();
        let now = was.max(clock);
        self.clock_raises += now - was;
        self.clock.store(now, Ordering::Relaxed);
        if self.unit.advance_clock_until(now).is_err() {
            clock_left_its_range();
        }
    }

    /// Sets the unit's clock. Required before each event of the unit; timing packets alone can wait until then.
    #[inline(always)]
    pub(crate) fn sync_unit_clock(&mut self) {
        self.set_unit_clock(self.clock_in_instructions());
    }

    /// A direct branch makes packets only if there are address ranges.
    #[inline(always)]
    pub(super) fn sync_unit_clock_unless_plain(&mut self) {
        if !self.unit.has_plain_branches() {
            self.sync_unit_clock();
        }
    }

    #[inline(always)]
    fn set_unit_clock(&mut self, clock: u64) {
        if self.unit.advance_clock(clock).is_err() {
            clock_left_its_range();
        }
    }

    pub(crate) fn is_outside_user_code(&self) -> bool {
        self.block.exit == BlockExit::Out
    }

    pub(crate) fn retired_instructions(&self) -> u64 {
        self.clock_in_instructions() - self.clock_raises
    }

    /// Accounts for a change of PacketEn, before more instructions retire. In the kernel none do, so changes there may
    /// be found on return to user code.
    #[inline(always)]
    pub(crate) fn track_packet_en(&mut self) {
        if self.unit.packet_en() != self.traced.on {
            self.traced
                .toggle_packet_en([self.retired_instructions(), self.branches]);
        }
    }

    /// Returns the traced instructions and branches so far.
    pub(crate) fn traced_totals(&self) -> [u64; 2] {
        self.traced
            .totals_at([self.retired_instructions(), self.branches])
    }

    /// Handles the callback of an instruction.
    pub(crate) fn begin_step(&mut self, step: &'static InstructionStep) {
        self.steps.begin_step(step, &mut self.path);
        // The previous instruction is in the path now.
        self.cut_path_at_psb();
    }

    /// Cuts the path of a snapshot at a new PSB: what follows belongs to that PSB.
    #[inline(always)]
    pub(crate) fn cut_path_at_psb(&mut self) {
        if self.snapshot && self.psbs != self.unit.psb_count() {
            self.psbs = self.unit.psb_count();
            self.path.cut_run();
        }
    }
}

#[cold]
#[inline(never)]
fn clock_left_its_range() -> ! {
    exit_with_error("the clock of a thread left its range");
}

/// Instructions and branches that retired while PacketEn was 1, counted where PacketEn changes.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct TracedTotals {
    pub(crate) on: bool,
    /// Totals at the last change, and traced ones until then.
    since: [u64; 2],
    before: [u64; 2],
}

impl TracedTotals {
    /// Returns the traced totals when `now` have retired.
    pub(crate) fn totals_at(&self, now: [u64; 2]) -> [u64; 2] {
        let [mut instructions, mut branches] = self.before;
        if self.on {
            instructions += now[0] - self.since[0];
            branches += now[1] - self.since[1];
        }
        [instructions, branches]
    }

    /// Inverts PacketEn when `now` have retired.
    #[cold]
    #[inline(never)]
    pub(crate) fn toggle_packet_en(&mut self, now: [u64; 2]) {
        self.before = self.totals_at(now);
        self.since = now;
        self.on = !self.on;
    }
}

/// Phase: before the start of the window.
pub(crate) const BEFORE_START: u64 = 0;
pub(crate) const TRACED: u64 = 1;
/// Phase: nothing is traced and no edge follows.
pub(crate) const NEVER_TRACED: u64 = u64::MAX;

/// A thread's position relative to the recording window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowPosition {
    /// The phase that the thread acts by: before the start, traced, or a higher number after the stop.
    pub(crate) phase: u64,
    /// A TraceStop ended the trace, before an exec or before packets were lost.
    pub(crate) stopped: bool,
    /// Retired instructions that have been added to the total of all threads.
    pub(crate) reported: u64,
    /// The thread's retired instructions at which the next edge is due.
    pub(crate) due: u64,
    /// Indices of the instructions in the current block at which edges are.
    pub(crate) edges_inside: [Option<u32>; 2],
}

impl WindowPosition {
    pub(crate) fn new(phase: u64) -> WindowPosition {
        WindowPosition {
            phase,
            stopped: false,
            reported: 0,
            due: u64::MAX,
            edges_inside: [None; 2],
        }
    }

    pub(crate) fn is_inside_window(&self) -> bool {
        self.phase == TRACED && !self.stopped
    }

    /// Returns the number of instructions before the next edge in the current block, greater than `done`.
    pub(crate) fn instructions_to_next_window_edge(
        &self,
        done: u32,
        count: u32,
        retired: u64,
    ) -> Option<u32> {
        let inside = self
            .edges_inside
            .get(self.phase as usize)
            .copied()
            .flatten();
        let due = u32::try_from(self.due.wrapping_sub(retired)).ok();
        let edges = [inside, due].into_iter().flatten();
        edges.filter(|&at| done < at && at < count).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_edge_is_the_first_one_after_done() {
        let mut watch = WindowPosition::new(BEFORE_START);
        watch.due = 103;
        assert_eq!(watch.instructions_to_next_window_edge(0, 5, 100), Some(3));
        assert_eq!(watch.instructions_to_next_window_edge(0, 3, 100), None);
        assert_eq!(watch.instructions_to_next_window_edge(3, 5, 100), None);
        watch.edges_inside = [Some(2), Some(4)];
        assert_eq!(watch.instructions_to_next_window_edge(0, 5, 100), Some(2));
        watch.phase = TRACED;
        watch.due = u64::MAX;
        assert_eq!(watch.instructions_to_next_window_edge(2, 5, 100), Some(4));
        watch.phase += 1;
        assert_eq!(watch.instructions_to_next_window_edge(0, 5, 100), None);
    }
}
