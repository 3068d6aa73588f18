//! A thread enters or leaves user code.
//!
//! On entry the thread's clock catches up with the other threads, and new code and address ranges take effect. A thread
//! leaves user code by a system call, by a signal, or for good. If the plugin does not know how the thread got where it
//! is, the trace has an overflow (`lose_path`).

use rtit_events::EventKind;
use std::sync::atomic::Ordering;

use crate::fatal_error::exit_with_error;
use crate::shared::recorder_link::new_message;
use crate::shared::shared_state::shared;
use crate::shared::signal_frames::Interruption;
use crate::shared::trace_selection::ProcessRanges;
use crate::thread::thread_state::{Thread, ATTEND_SWITCH};
use crate::thread::translation_block::{BlockExit, OUTSIDE};

impl Thread {
    /// Follows a block that the last one does not lead to: entry into user code, or a restart of the block. False if
    /// neither applies.
    pub(crate) fn enter_or_restart_at(&mut self, start: u64) -> bool {
        if self.is_outside() {
            self.enter_user_code(start);
            return true;
        }
        self.restart_inside(start)
    }

    /// Enters user code at `start`.
    fn enter_user_code(&mut self, start: u64) {
        self.raise_clock(shared().clock.latest());
        if self.attention.load(Ordering::Acquire) & ATTEND_SWITCH != 0 {
            self.attention.fetch_and(!ATTEND_SWITCH, Ordering::AcqRel);
            self.load_address_ranges();
            if self.window.is_traced() {
                self.unit.switch_out_and_in(None);
            }
        }
        self.follow_window_in_kernel();
        self.path.enter_user_code();
        if self.window.is_traced() {
            self.unit.switch_in(start);
        } else {
            self.unit.resume(start);
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
        self.raise_clock(shared().clock.latest());
        self.load_address_ranges();
        if self.window.is_traced() {
            self.unit.switch_out_and_in(None);
        }
        self.unit.resume(ip);
        self.path.enter_user_code();
    }

    fn load_address_ranges(&mut self) {
        let shared = shared();
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
        if self.truth.is_written() {
            self.path
                .insert_record(&ranges.truth_records(self.tid), self.tid);
        }
    }
}

/// The warning for a block in which `first_refused` has run.
pub(crate) const REFUSED_INSTRUCTION: &str =
    "QEMU ran an instruction that processors refuse, and that a decoder does not know";

impl Thread {
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
            BlockExit::SoftInt => self.leave_by_software_interrupt(),
            BlockExit::Out => {}
            _ => self.lose_path("a system call came from an instruction that is none"),
        }
        self.block = &OUTSIDE;
    }

    fn leave_by_software_interrupt(&mut self) {
        let block = self.block;
        self.retire_part(block.instructions - 1);
        self.steps.leave_after_step(&mut self.path);
        self.sync_unit_clock();
        self.unit.software_interrupt(block.last);
    }

    /// Leaves user code without an instruction: by a signal, or for good.
    pub(crate) fn leave_by_signal(&mut self, what: Interruption) {
        let Interruption { ip, faulted } = what;
        let block = self.block;
        if block.exit == BlockExit::Out {
            return;
        }
        if block.exit == BlockExit::SoftInt && ip == block.next {
            self.leave_by_software_interrupt();
            self.block = &OUTSIDE;
            return;
        }
        let inside = block.index_of(ip);
        let reached = block.may_reach(ip);
        match inside {
            // Asynchronous signals arrive between blocks: a block that can lead to itself has then retired.
            Some(index) if index > block.first_refused => {
                self.lose_path(REFUSED_INSTRUCTION);
                return;
            }
            Some(index) if faulted || !reached => self.retire_part(index),
            _ if reached => self.retire_block_and_branch_to(ip),
            _ if block.first_refused < block.instructions => {
                self.lose_path(REFUSED_INSTRUCTION);
                return;
            }
            _ => {
                self.lose_path("a signal arrived where the interrupted instruction is not known");
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
    pub(crate) fn stop_before(&mut self, ip: u64) {
        if !self.is_outside() {
            self.steps.interrupt_before(ip, false, &mut self.path);
            self.path.cut_run();
            self.sync_unit_clock();
            self.unit.interrupt(ip);
            self.block = &OUTSIDE;
        }
    }

    /// Leaves user code at the RIP of QEMU's CPU state. The thread must have left generated code.
    pub(crate) fn leave_at_current_ip(&mut self, faulted: bool) {
        if self.is_outside() {
            return;
        }
        match self.cpu.rip() {
            Some(ip) => self.leave_by_signal(Interruption { ip, faulted }),
            None => self.lose_path("the thread ended where its last instruction is not known"),
        }
    }

    /// Leaves user code with an overflow: the path is unknown, and the executed path omits it as well.
    pub(crate) fn lose_path(&mut self, why: &str) {
        let shared = shared();
        self.steps.forget_step();
        let now = self.now();
        let place = format!("{why} (after the block at {:#x})", self.block.start);
        shared.send(
            new_message(EventKind::Warning, self.tid, now),
            place.as_bytes(),
        );
        self.sync_unit_clock();
        if self.window.is_traced() {
            self.unit.overflow(None);
        }
        self.block = &OUTSIDE;
    }
}
