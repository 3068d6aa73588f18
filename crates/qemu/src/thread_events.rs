//! Methods of `RecordedThread` that need the state which threads share.
//!
//! **Output.** Packets, executed path and counts go to the recorder when much has gathered, at some system calls, and
//! at the thread's end.
//!
//! **User code.** When a thread enters user code, its clock catches up with the other threads, and new code and address
//! ranges take effect. It leaves user code by a system call, by a signal, or for good. If the plugin does not know how
//! the thread got where it is, the trace has an overflow (`leave_user_code_with_overflow`).
//!
//! **The recording window.** All recorded processes share a phase (before the start, traced, after the stop) and the
//! number of retired instructions. The thread that reaches an edge advances the phase and follows it at that
//! instruction. Other threads of its process follow at their next block, threads of other processes at their next
//! periodic check.

use std::sync::atomic::Ordering;

use rtit_events::{EventKind, MessageKind};
use rtit_truth::format::TRACING;

use crate::fatal_error::exit_with_error;
use crate::shared::block_counters::BlockCounters;
use crate::shared::recorder_link::{new_message, Message};
use crate::shared::shared_state::{shared_state, SharedState};
use crate::shared::signal_frames::SignalInterruption;
use crate::shared::trace_selection::ProcessRanges;
use crate::thread::executed_path::ExecutedPathSource;
use crate::thread::thread_counters::ThreadCounters;
use crate::thread::thread_state::{
    RecordedThread, StateKeptOverExec, ATTEND_EDGE, ATTEND_SWITCH, CHECK_INTERVAL,
};
use crate::thread::translation_block::{BlockExit, TranslationBlock, OUTSIDE};

/// Bytes of packets that a system call sends.
const FLUSH_SIZE_IN_KERNEL: usize = 4096;

impl RecordedThread {
    /// Ends the trace of a thread that is not in user code. `flags` are those of an exit message.
    pub(crate) fn end_trace(&mut self, status: u32, flags: u8) {
        let shared = shared_state();
        self.unit.disable_tracing();
        self.send_buffered_records(shared);
        if self.truth.is_truth_written() {
            let records = self.path.end_records(self.tid, status);
            shared.send_message(self.new_message(MessageKind::Truth), &records);
        }
        let mut message = self.new_message(EventKind::Exit);
        message.ip = status.into();
        message.target = self.end_counting(shared).unwrap_or(message.target);
        message.flags = flags;
        shared.send_message(message, &[]);
        shared.clock.publish_clock(self.clock_in_instructions());
        if self.tid == shared.pid() {
            let inherited = self.state_to_keep_over_exec();
            shared.with_locked(|locked| locked.first_thread_state = inherited);
        }
    }

    /// Ends the trace of a thread that continues in another program, and returns what that program needs.
    pub(crate) fn end_trace_for_exec(&mut self) -> StateKeptOverExec {
        let shared = shared_state();
        self.unit.disable_tracing();
        self.send_buffered_records(shared);
        shared.clock.publish_clock(self.clock_in_instructions());
        // Packets carry the counts too, but there may be none: the last instructions may be outside of the filters.
        let mut message = self.new_message(MessageKind::Counts);
        message.target = self.end_counting(shared).unwrap_or(message.target);
        shared.send_message(message, &[]);
        self.state_to_keep_over_exec()
    }

    /// Sends all that is held back.
    pub(crate) fn send_buffered_records(&mut self, shared: &SharedState) {
        if self.truth.is_truth_written() {
            let records = self.path.take_records(self.tid);
            if !records.is_empty() {
                shared.send_message(self.new_message(MessageKind::Truth), &records);
            }
        }
        if shared.config.traces_only_part() {
            let mut message = self.new_message(MessageKind::Traced);
            [message.target, message.extra] = self.traced_totals();
            shared.send_message(message, &[]);
        }
        if !self.unit.untaken_output().is_empty() {
            if !shared.clock.is_recording_full() {
                shared.send_message(
                    self.new_message(MessageKind::Packets),
                    self.unit.untaken_output(),
                );
            }
            self.unit.discard_output();
        }
    }

    pub(crate) fn flush_in_kernel(&mut self, shared: &SharedState) {
        // The snapshot of a thread that waits in the kernel shows what it waits for.
        if self.snapshot || self.unit.untaken_output().len() >= FLUSH_SIZE_IN_KERNEL {
            self.send_buffered_records(shared);
        }
    }

    /// Creates a message with the pid in `ip`, retired instructions in `target` and branches in `extra`.
    pub(crate) fn new_message(&self, kind: impl Into<u8>) -> Message {
        let mut message = new_message(kind, self.tid, self.clock_in_instructions());
        message.ip = u64::from(shared_state().pid());
        message.target = self.retired_instructions();
        message.extra = self.branches;
        message
    }
}

/// Bytes of packets that a thread holds back, apart from those of the next `CHECK_INTERVAL` instructions.
const FLUSH_SIZE: usize = 32 * 1024;

/// See `thread::thread_state::PeriodicCheck`.
#[cold]
#[inline(never)]
pub(crate) fn run_periodic_check(thread: &mut RecordedThread, count: u32) -> u32 {
    let shared = shared_state();
    let clock = thread.clock_in_instructions() + u64::from(count);
    thread.next_check = clock + CHECK_INTERVAL;
    let done = thread.pass_window_edges_in_block(count);
    thread.clock.store(clock, Ordering::Relaxed);
    thread.sync_unit_clock();
    let requests = shared.clock.flush_requests();
    if thread.unit.untaken_output().len() >= FLUSH_SIZE
        || thread.path.should_send_records()
        || requests != thread.answered_requests
    {
        if thread.path.is_at_boundary() {
            thread.answered_requests = requests;
            thread.send_buffered_records(shared);
        } else {
            thread.next_check = clock;
        }
    }
    done
}

/// Returns the counters of a thread that starts.
pub(crate) fn new_counters(shared: &SharedState, tid: u32) -> ThreadCounters {
    let cells = shared.with_locked(|locked| Some(locked.counters.as_mut()?.new_counter_table(tid)));
    // SAFETY: tables have a cell for each number; where nothing is counted no counter is used.
    cells.map_or_else(ThreadCounters::default, |cells| unsafe {
        ThreadCounters::new(cells, partial_block_id)
    })
}

fn partial_block_id(block: &TranslationBlock, count: u32) -> u32 {
    let number = |counters: &mut BlockCounters| counters.partial_block_id(block, count);
    shared_state().with_locked(|locked| locked.counters.as_mut().map_or(0, number))
}

impl RecordedThread {
    /// Adds up the counts of a thread that ends or continues in another program. Returns the number of its
    /// instructions; None if nothing is counted.
    pub(super) fn end_counting(&self, shared: &SharedState) -> Option<u64> {
        let cells = self.counters.counter_array();
        shared
            .with_locked(|locked| Some(locked.counters.as_mut()?.add_ended_thread(self.tid, cells)))
    }
}

impl RecordedThread {
    /// Follows a block that the last one does not lead to: entry into user code, or a restart of the block. False if
    /// neither applies.
    pub(crate) fn enter_user_code_or_restart_block_at(&mut self, start: u64) -> bool {
        if self.is_outside_user_code() {
            self.enter_user_code(start);
            return true;
        }
        self.restart_inside_block(start)
    }

    /// Enters user code at `start`.
    fn enter_user_code(&mut self, start: u64) {
        self.raise_clock(shared_state().clock.latest_clock());
        if self.attention.load(Ordering::Acquire) & ATTEND_SWITCH != 0 {
            self.attention.fetch_and(!ATTEND_SWITCH, Ordering::AcqRel);
            self.load_address_ranges();
            if self.window.is_inside_window() {
                self.unit.switch_thread_out_and_in(None);
            }
        }
        self.follow_window_in_kernel();
        self.path.enter_user_code();
        if self.window.is_inside_window() {
            self.unit.switch_thread_in(start);
        } else {
            self.unit.resume_user_code(start);
        }
        self.track_packet_en();
    }

    /// Switches the thread out and in before the instruction at `ip` of user code, so that new code and ranges take
    /// effect.
    pub(crate) fn switch_context(&mut self, ip: u64) {
        self.sync_unit_clock();
        self.steps.interrupt_before(ip, false, &mut self.path);
        self.path.cut_run();
        self.unit.interrupt(ip);
        self.raise_clock(shared_state().clock.latest_clock());
        self.load_address_ranges();
        if self.window.is_inside_window() {
            self.unit.switch_thread_out_and_in(None);
        }
        self.unit.resume_user_code(ip);
        self.path.enter_user_code();
    }

    fn load_address_ranges(&mut self) {
        let shared = shared_state();
        if !shared.config.filters.is_empty() {
            shared.with_locked(|locked| self.set_address_ranges(&locked.ranges));
        }
    }

    /// Sets the address ranges that apply from the next enable on.
    pub(crate) fn set_address_ranges(&mut self, ranges: &ProcessRanges) {
        if ranges.as_slice().is_empty() {
            return;
        }
        if let Err(error) = self.unit.set_ranges(ranges.as_slice()) {
            exit_with_error(&error.to_string());
        }
        if self.truth.is_truth_written() {
            self.path
                .insert_record(&ranges.truth_records(self.tid), self.tid);
        }
    }
}

/// The warning for a block in which `first_refused` has run.
pub(crate) const REFUSED_INSTRUCTION: &str =
    "QEMU ran an instruction that processors refuse, and that a decoder does not know";

impl RecordedThread {
    /// Leaves user code by the system call that ends the block.
    pub(crate) fn enter_kernel(&mut self) {
        match self.block.exit {
            BlockExit::Syscall => {
                self.retire_block(0);
                self.steps.leave_after_step(&mut self.path);
                self.sync_unit_clock();
                self.branches += 1;
                self.unit.syscall();
            }
            BlockExit::SoftInt => self.leave_user_code_by_software_interrupt(),
            BlockExit::Out => {}
            _ => self.leave_user_code_with_overflow(
                "a system call came from an instruction that is none",
            ),
        }
        self.block = &OUTSIDE;
    }

    fn leave_user_code_by_software_interrupt(&mut self) {
        let block = self.block;
        self.retire_part(block.instructions - 1);
        self.steps.leave_after_step(&mut self.path);
        self.sync_unit_clock();
        self.unit.software_interrupt(block.last);
    }

    /// Leaves user code without an instruction: by a signal, or for good.
    pub(crate) fn leave_user_code_by_signal(&mut self, what: SignalInterruption) {
        let SignalInterruption { ip, faulted } = what;
        let block = self.block;
        if block.exit == BlockExit::Out {
            return;
        }
        if block.exit == BlockExit::SoftInt && ip == block.next {
            self.leave_user_code_by_software_interrupt();
            self.block = &OUTSIDE;
            return;
        }
        let inside = block.instruction_index_at(ip);
        let reached = block.may_continue_at(ip);
        match inside {
            // Asynchronous signals arrive between blocks: a block that can lead to itself has then retired.
            Some(index) if index > block.first_refused => {
                self.leave_user_code_with_overflow(REFUSED_INSTRUCTION);
                return;
            }
            Some(index) if faulted || !reached => self.retire_part(index),
            _ if reached => self.retire_block_and_branch_to(ip),
            _ if block.first_refused < block.instructions => {
                self.leave_user_code_with_overflow(REFUSED_INSTRUCTION);
                return;
            }
            _ => {
                self.leave_user_code_with_overflow(
                    "a signal arrived where the interrupted instruction is not known",
                );
                return;
            }
        }
        self.steps.interrupt_before(ip, faulted, &mut self.path);
        // A decoder finds the repetitions of a loop without packets by this boundary.
        self.path.cut_run();
        self.sync_unit_clock();
        self.unit.interrupt(ip);
        self.block = &OUTSIDE;
    }

    /// Leaves user code by a call into the vsyscall page, which the kernel carries out.
    pub(crate) fn enter_vsyscall(&mut self, start: u64) {
        self.steps.leave_after_step(&mut self.path);
        self.sync_unit_clock();
        self.unit.exception(start);
        self.block = &OUTSIDE;
    }

    /// Leaves user code for good before the instruction at `ip`.
    pub(crate) fn stop_thread_before_instruction(&mut self, ip: u64) {
        if !self.is_outside_user_code() {
            self.steps.interrupt_before(ip, false, &mut self.path);
            self.path.cut_run();
            self.sync_unit_clock();
            self.unit.interrupt(ip);
            self.block = &OUTSIDE;
        }
    }

    /// Leaves user code at the RIP of QEMU's CPU state. The thread must have left generated code.
    pub(crate) fn leave_user_code_at_current_ip(&mut self, faulted: bool) {
        if self.is_outside_user_code() {
            return;
        }
        match self.cpu.read_rip() {
            Some(ip) => self.leave_user_code_by_signal(SignalInterruption { ip, faulted }),
            None => self.leave_user_code_with_overflow(
                "the thread ended where its last instruction is not known",
            ),
        }
    }

    /// Leaves user code with an overflow: the path is unknown, and the executed path omits it as well.
    pub(crate) fn leave_user_code_with_overflow(&mut self, why: &str) {
        let shared = shared_state();
        self.steps.forget_step();
        let now = self.clock_in_instructions();
        let text = format!("{why} (after the block at {:#x})", self.block.start);
        shared.send_warning(self.tid, now, &text);
        self.sync_unit_clock();
        if self.window.is_inside_window() {
            self.unit.apply_overflow(None);
        }
        self.block = &OUTSIDE;
    }
}

impl RecordedThread {
    /// Writes whether the thread starts traced.
    pub(crate) fn write_initial_tracing(&mut self) {
        self.write_tracing_record(self.window.is_inside_window());
    }

    fn write_tracing_record(&mut self, on: bool) {
        if self.truth.is_truth_written() && shared_state().config.window.is_used() {
            let record = [TRACING, 8, self.tid, on.into()].map(u32::to_le_bytes);
            self.path.insert_record(&record.concat(), self.tid);
        }
    }

    /// Adds the thread's retired instructions to the total, and computes when the next edge is due.
    pub(crate) fn count_towards_window(&mut self, shared: &SharedState) {
        let window = &shared.config.window;
        if !window.is_used() {
            return;
        }
        let own = self.retired_instructions();
        let total = shared.clock.add_retired(own - self.window.reported);
        self.window.reported = own;
        let limit = window.instruction_limit(&shared.clock, self.window.phase);
        self.window.due = limit.map_or(u64::MAX, |limit| own + limit.saturating_sub(total));
        if self.window.due != u64::MAX {
            let ahead = self.window.due - own;
            self.next_check = self.next_check.min(self.clock_in_instructions() + ahead);
        }
    }

    /// Acts at the edges among the next `count` instructions of the current block, before they retire. Returns how many
    /// of them have been added to the path.
    pub(crate) fn pass_window_edges_in_block(&mut self, count: u32) -> u32 {
        let shared = shared_state();
        if !shared.config.window.is_used() {
            return 0;
        }
        let (block, clock, retired) = (
            self.block,
            self.clock_in_instructions(),
            self.retired_instructions(),
        );
        let mut done = 0;
        while let Some(at) = self
            .window
            .instructions_to_next_window_edge(done, count, retired)
        {
            let now = clock + u64::from(at);
            self.clock.store(now, Ordering::Relaxed);
            if self.truth == ExecutedPathSource::Blocks {
                self.path.add_part(block, done..at);
            }
            done = at;
            self.pass_window_edge_at(shared, Some(block.start + block.instruction_offset(at)));
        }
        self.window.edges_inside = [None; 2];
        self.clock
            .store(clock + u64::from(count), Ordering::Relaxed);
        self.count_towards_window(shared);
        self.clock.store(clock, Ordering::Relaxed);
        let phase = shared.config.window.current_phase(&shared.clock);
        if phase != self.window.phase || self.window.due <= retired + u64::from(count) {
            self.attention.fetch_or(ATTEND_EDGE, Ordering::AcqRel);
        }
        done
    }

    /// Acts at an edge at the start of `block`, and notes edges inside of it.
    pub(crate) fn check_window_edges_at(&mut self, block: &TranslationBlock) {
        let shared = shared_state();
        if self.attention.load(Ordering::Relaxed) & ATTEND_EDGE != 0 {
            self.attention.fetch_and(!ATTEND_EDGE, Ordering::AcqRel);
            self.follow_window_phase(shared, Some(block.start));
            if self.window.due <= self.retired_instructions() {
                return self.pass_window_edge_at(shared, Some(block.start));
            }
        }
        let inside = shared.with_locked(|locked| locked.edge_addresses.edges_inside(block));
        if inside.get(self.window.phase as usize) == Some(&Some(0)) {
            self.pass_window_edge_at(shared, Some(block.start));
        }
        if inside.iter().flatten().any(|&at| at > 0) {
            self.window.edges_inside = inside;
            self.next_check = 0;
        }
    }

    /// Follows the phase in the kernel, before user code continues.
    pub(crate) fn follow_window_in_kernel(&mut self) {
        let shared = shared_state();
        if !shared.config.window.is_used() {
            return;
        }
        self.attention.fetch_and(!ATTEND_EDGE, Ordering::AcqRel);
        self.follow_window_phase(shared, None);
        self.count_towards_window(shared);
        if self.window.due <= self.retired_instructions() {
            self.pass_window_edge_at(shared, None);
        }
    }

    /// Ends the phase here: before the instruction at `ip` in user code, or in the kernel.
    fn pass_window_edge_at(&mut self, shared: &SharedState, ip: Option<u64>) {
        let own = self.retired_instructions() - self.window.reported;
        if shared.clock.end_window_phase(self.window.phase, own) {
            shared.request_attention(ATTEND_EDGE);
        }
        self.follow_window_phase(shared, ip);
    }

    fn follow_window_phase(&mut self, shared: &SharedState, ip: Option<u64>) {
        let phase = shared.config.window.current_phase(&shared.clock);
        let was = self.window.is_inside_window();
        if phase == self.window.phase {
            return;
        }
        self.window.phase = phase;
        self.count_towards_window(shared);
        let on = self.window.is_inside_window();
        if on == was {
            return;
        }
        self.write_tracing_record(on);
        self.sync_unit_clock();
        if on {
            self.unit.switch_thread_out_and_in(ip);
            return self.track_packet_en();
        }
        if let Some(ip) = ip {
            self.unit.interrupt(ip);
        }
        self.unit.disable_tracing();
        if let Some(ip) = ip {
            self.unit.resume_user_code(ip);
        }
        self.track_packet_en();
    }
}
