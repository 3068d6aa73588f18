//! Explains how a processor got from one block to the next.
//!
//! A transition has up to three parts, in this order: the end of the last block (or the part of it that retired),
//! writes of CR3, and interrupts and exceptions. The log has the latter two. The rules, each checked over whole boots:
//!
//! * An interrupt from a device comes between two blocks, or between two iterations of a REP instruction. Its IP is the
//!   address that the last block led to.
//! * An exception at an address inside the last block ends that block before this instruction. Any other exception is
//!   of the instruction that the last block led to, which could not be fetched.
//! * Without an event, a block that continues in itself is left where it wrote its own code, or after an instruction
//!   that accessed a device, which QEMU runs without callbacks: the instructions before that address retired. If the
//!   end of the block could go there too, a callback at its last instruction decides. An interrupt may follow the
//!   access.
//! * A REP instruction ends a block, may start it again for each iteration, and retires when the address after it is
//!   reached.
//!
//! From 10.2 on, QEMU also reports interrupts and exceptions to the plugin, with their addresses. If the log lacks one,
//! the transition is unknown.

use rtit_events::EventKind;
use rtit_unit::{CodeWidth, EventReport, MwaitOperands, ProcessorState};

use super::{page_table, ProcessorRecorder, MOST_WARNINGS, SWITCH_MARGIN};
use crate::system::block::{Halt, SystemBlock, KERNEL_START};
use crate::system::qemu_log::{LogEvent, LoggedInterrupt};
use crate::thread::translation_block::BlockExit;

/// C-states as MWAIT encodes them.
const C0: u8 = 15;
const C1: u8 = 0;
/// The reason of a wake (Table 33-44).
const WOKEN_BY_INTERRUPT: u8 = 1;

impl ProcessorRecorder {
    #[cold]
    #[inline(never)]
    pub(super) fn follow_any_transition(
        &mut self,
        block: &'static SystemBlock,
        next: &'static SystemBlock,
    ) {
        if next.width == CodeWidth::Bits16 && self.cpu.is_in_real_mode() {
            return self.stop_at_reset();
        }
        let mut last = Some(block);
        let events = self.log.take_events();
        if !self.has_logged_discontinuities(&events) {
            return self.lose_transition(block, next);
        }
        if !self.take_events(&mut last, &events, next) {
            return self.lose_transition(block, next);
        }
        if self.is_in_smm {
            return;
        }
        if let Some(block) = last {
            if !self.leave_block_without_event(block, next) {
                return self.lose_transition(block, next);
            }
        }
        self.totals.cr3.add(self.cr3 == self.cpu.cr3());
    }

    /// Notes an interrupt or exception of the instruction at this address.
    pub(in crate::system) fn note_discontinuity(&mut self, from: u64) {
        if self.block.is_some() {
            self.discontinuities.push(from);
        }
    }

    /// Returns whether the log has all interrupts and exceptions that QEMU has reported to the plugin.
    fn has_logged_discontinuities(&mut self, events: &[LogEvent]) -> bool {
        let is_logged = |&from: &u64| {
            events.iter().any(
                |event| matches!(event, LogEvent::Interrupt(found) | LogEvent::SmmEntry(found) if found.ip == from),
            )
        };
        let all = self.discontinuities.iter().all(is_logged);
        self.discontinuities.clear();
        all
    }

    /// Takes the events of the log between the last block and the next one. Returns false if one has no explanation.
    fn take_events(
        &mut self,
        last: &mut Option<&'static SystemBlock>,
        events: &[LogEvent],
        next: &'static SystemBlock,
    ) -> bool {
        for (index, event) in events.iter().enumerate() {
            let is_explained = match event {
                LogEvent::Cr3(value) => self.write_cr3(last, *value),
                LogEvent::SmmEntry(before) => {
                    self.enter_smm(last.take(), before);
                    let rest = events.get(index + 1..).unwrap_or_default();
                    return self.leave_smm(rest, next);
                }
                LogEvent::SmmExit(_) => false,
                LogEvent::Interrupt(interrupt) => {
                    let later = events[index + 1..].iter().find_map(|event| match event {
                        LogEvent::Interrupt(later) | LogEvent::SmmEntry(later) => Some(later),
                        _ => None,
                    });
                    self.take_interrupt(last, interrupt, later, next)
                }
            };
            if !is_explained {
                return false;
            }
        }
        true
    }

    // System management mode

    /// Enters system management mode before an instruction, after the last block.
    fn enter_smm(&mut self, last: Option<&'static SystemBlock>, before: &LoggedInterrupt) {
        let state = before.state_before();
        if let Some(block) = last {
            if block.exit == BlockExit::Repeat && before.ip == block.last {
                self.retire_part(block, block.instructions - 1);
            } else if self.may_have_led_to(block, before.ip) {
                self.retire_block(block, before.ip, Some(state));
                if let Some(c_state) = self.sleep_after(block) {
                    self.unit.wake(c_state, c_state, WOKEN_BY_INTERRUPT);
                }
            } else if let Some(count) = block.instruction_index_at(before.ip) {
                self.retire_part(block, count);
            } else {
                self.lose_packets_until(block, before.ip, state);
            }
        }
        self.path.cut_run();
        self.unit.enter_smm(before.ip);
        self.is_in_smm = true;
        self.block = None;
    }

    /// Follows events in system management mode: only the exit counts, and what comes after it.
    fn leave_smm(&mut self, events: &[LogEvent], next: &'static SystemBlock) -> bool {
        let exit = (0..).zip(events).find_map(|(index, event)| match event {
            LogEvent::SmmExit(after) => Some((index, after)),
            _ => None,
        });
        let Some((index, after)) = exit else {
            return true;
        };
        self.is_in_smm = false;
        self.cr3 = after.cr3.unwrap_or(self.cr3);
        let state = after.state_before();
        if self.window.is_open() {
            self.unit.leave_smm(after.ip, state, self.cr3);
            self.evaluates_filters = true;
        } else {
            self.unit.start_in_state(after.ip, state, self.cr3);
        }
        let rest = events.get(index + 1..).unwrap_or_default();
        self.take_events(&mut None, rest, next)
    }

    pub(super) fn leave_smm_if_done(&mut self, next: &'static SystemBlock) {
        let events = self.log.take_events();
        if !self.leave_smm(&events, next) {
            self.lose_transition(next, next);
        }
        if !self.is_in_smm {
            self.enter_block(next);
        }
    }

    fn leave_block_without_event(
        &mut self,
        block: &'static SystemBlock,
        next: &SystemBlock,
    ) -> bool {
        let to = next.start;
        if block.writes_cr3 && to == block.next {
            // The log lacks writes while paging is off.
            return self.write_cr3(&mut Some(block), self.cpu.cr3());
        }
        if block.exit == BlockExit::Repeat && to == block.last {
            self.retire_part(block, block.instructions - 1);
        } else if self.may_have_led_to(block, to) {
            self.retire_block(block, to, None);
        } else if let Some(count) = block.instruction_index_at(to) {
            self.retire_part(block, count);
        } else {
            return false;
        }
        true
    }

    /// Returns whether the end of the last block was reached and can lead to an address.
    fn may_have_led_to(&self, block: &SystemBlock, to: u64) -> bool {
        (self.has_started_last || !block.needs_last_callback) && can_lead_to(block, to)
    }

    /// Writes CR3, by the MOV at the end of the last block.
    fn write_cr3(&mut self, last: &mut Option<&'static SystemBlock>, value: u64) -> bool {
        let Some(block) = last.take().filter(|block| block.writes_cr3) else {
            return false;
        };
        self.add_to_path(block, block.next);
        self.advance(block.instructions.into());
        self.cr3 = value;
        self.unit.mov_cr3(block.next, value);
        if !self.is_in_context {
            self.arrive_at(block.next, block.user);
        }
        if self.context.user && !self.context.os {
            self.switch_process(value);
        }
        // The context may change with CR3; the next block decides.
        self.path.cut_run();
        true
    }

    /// Reports that programs run with other page tables from now on, where no PIP shows it. The trace has the exact
    /// time.
    fn switch_process(&mut self, cr3: u64) {
        let name = page_table(cr3);
        if name == self.switched_to {
            return;
        }
        self.unit.disable_tracing();
        self.set_clock(self.clock + SWITCH_MARGIN);
        self.send_message(EventKind::Switch, name, 0, &[]);
        self.switched_to = name;
        self.set_clock(self.clock + SWITCH_MARGIN);
        self.enable_tracing();
    }

    /// Takes an interrupt or exception. `later`: the next one, before any block.
    fn take_interrupt(
        &mut self,
        last: &mut Option<&'static SystemBlock>,
        interrupt: &LoggedInterrupt,
        later: Option<&LoggedInterrupt>,
        next: &SystemBlock,
    ) -> bool {
        let ip = interrupt.ip;
        let before = interrupt.state_before();
        let mut c_state = None;
        if let Some(block) = last.take() {
            let index = block.instruction_index_at(ip);
            let may_have_ended = self.may_have_led_to(block, ip);
            let is_trap = interrupt.is_hardware || interrupt.vector == 1;
            let is_between_iterations = block.exit == BlockExit::Repeat && ip == block.last;
            let retired = if is_between_iterations {
                block.instructions - 1
            } else if may_have_ended && (is_trap || index.is_none()) {
                block.instructions
            } else if let Some(count) = index {
                count
            } else {
                return false;
            };
            if retired == block.instructions {
                self.retire_block(block, ip, Some(before));
                c_state = self.sleep_after(block);
            } else {
                self.retire_part(block, retired);
            }
            self.compare_with_state(block, retired, before);
        }
        if let Some(cr3) = interrupt.cr3 {
            self.totals.cr3.add(cr3 == self.cr3);
        }
        if interrupt.is_hardware && self.shared.has_several_processors() {
            self.catch_up();
        }
        if let Some(state) = c_state {
            self.unit.wake(state, state, WOKEN_BY_INTERRUPT);
        }
        let (target, state) = match later {
            Some(later) => (later.ip, later.state_before()),
            None => (next.start, self.cpu.processor_state()),
        };
        let report = EventReport::Interrupt {
            vector: interrupt.vector,
            page_fault: interrupt.cr2.filter(|_| interrupt.vector == 14),
        };
        self.path.cut_run();
        self.unit.transfer(target, state, Some(ip), Some(report));
        self.arrive_at(target, state.user);
        self.count_branch();
        true
    }

    /// Reports that the processor sleeps, if the block ends with HLT or MWAIT. Returns the C-state.
    fn sleep_after(&mut self, block: &SystemBlock) -> Option<u8> {
        let mwait = match block.halt? {
            Halt::Hlt => None,
            // QEMU does not wait then.
            Halt::Mwait if self.shared.has_several_processors() => return None,
            // No instruction has changed the registers since.
            Halt::Mwait => Some(MwaitOperands {
                hints: self.cpu.rax() as u8,
                extensions: self.cpu.rcx() as u8 & 3,
            }),
        };
        let (state, sub_state) =
            mwait.map_or((C1, 0), |mwait| (mwait.hints >> 4, mwait.hints & 15));
        if state == C0 {
            return None;
        }
        self.unit.sleep(block.last, state, sub_state, mwait);
        Some(state)
    }

    /// Compares the state that the log has, `logged`, with that of the processor after the first `retired` instructions
    /// of a block. After a far transfer only the log has CPL and RFLAGS.IF, and after POPF only the log has RFLAGS.IF.
    fn compare_with_state(&mut self, block: &SystemBlock, retired: u32, logged: ProcessorState) {
        let is_whole = retired == block.instructions;
        if is_whole && matches!(block.exit, BlockExit::Far | BlockExit::Syscall) {
            return;
        }
        let totals = &mut self.totals;
        totals.cpl.add(logged.user == block.user);
        if let Some(flag) = block.interrupt_flag_after(retired, self.interrupt_flag) {
            totals.interrupt_flag.add(logged.interrupt_flag == flag);
        }
    }

    /// Gives up a transition that neither the code nor the log explains.
    fn lose_transition(&mut self, block: &SystemBlock, next: &SystemBlock) {
        self.cr3 = self.cpu.cr3();
        self.lose_packets_until(block, next.start, self.cpu.processor_state());
    }

    fn lose_packets_until(&mut self, block: &SystemBlock, ip: u64, state: ProcessorState) {
        self.totals.unknown_transitions += 1;
        if self.totals.unknown_transitions <= MOST_WARNINGS {
            let text = format!(
                "it is unknown how the processor got from the block at {:#x} to {ip:#x}",
                block.start
            );
            self.send_message(EventKind::Warning, 0, 0, text.as_bytes());
        }
        self.path.cut_run();
        self.unit.lose_packets_until(ip, state, self.cr3);
        self.evaluates_filters = true;
    }
}

/// Returns whether the end of a block can lead to an address.
fn can_lead_to(block: &SystemBlock, to: u64) -> bool {
    match block.exit {
        // SYSCALL can lead anywhere, unlike in user mode.
        BlockExit::Syscall => to >= KERNEL_START,
        BlockExit::Unsupported => to == block.next,
        _ => block.may_continue_at(to),
    }
}
