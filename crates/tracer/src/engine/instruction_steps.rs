//! Single steps: fetches the next instruction, and accounts for those that have retired.
//!
//! Some steps need care. MOV SS and POP SS suppress the stop after them, so their successor is fetched too
//! (`NextInstruction::follow`). PUSHF and SYSCALL store the trap flag, which the program must not see. A conditional
//! branch to the next instruction needs the flags to know whether it was taken. A REP instruction stops at each
//! iteration, so long ones run to a hardware breakpoint after them.

use std::io;

use libc::pid_t;
use rtit_events::{flag, EventKind, Record, ResumeReason};
use rtit_x86::{CodeMode, Instruction, InstructionClass, MAX_LENGTH};

use crate::address_space::VSYSCALL;
use crate::engine::event_loop::TracingEngine;
use crate::ptrace::{self, Registers, ResumeMode, StopStatus, TRAP_FLAG};
use crate::task::{NextInstruction, TaskPosition, TracedTask};

/// Of the instructions in a shadow only the first certainly runs without a stop; more than this never do.
const LONGEST_SHADOW: u32 = 2;

impl TracingEngine<'_> {
    /// Sets the instruction at RIP as the thread's next one.
    pub(super) fn set_next_instruction(&mut self, task: &mut TracedTask, registers: &Registers) {
        let next = self.fetch_next_instruction(task, registers.rip, registers, LONGEST_SHADOW);
        // After POPF and IRET the flag is the one that they loaded. Later the kernel may show the one that steps need.
        let visible = registers.eflags & TRAP_FLAG != 0;
        if task
            .next_instruction()
            .is_some_and(|last| last.popped_flags)
        {
            task.popped_tf = visible;
        }
        task.program_steps = task.popped_tf && visible;
        if task.traced {
            task.position = TaskPosition::User(next);
            self.refresh_context(task);
        }
    }

    pub(super) fn fetch_next_instruction(
        &mut self,
        task: &mut TracedTask,
        ip: u64,
        registers: &Registers,
        depth: u32,
    ) -> NextInstruction {
        let mut next = NextInstruction {
            ip,
            ..NextInstruction::default()
        };
        let mode = if ptrace::runs_64_bit_code(registers) {
            CodeMode::Bits64
        } else {
            if ptrace::is_custom_code_segment(registers) {
                self.warn_of_custom_segment(task);
            }
            next.narrow = true;
            CodeMode::Bits32
        };
        if mode == CodeMode::Bits64 && ip & !0xfff == VSYSCALL {
            next.emulated = true;
            if let (Some(back), 1..) = (ptrace::read_u64(task.tid, registers.rsp), depth) {
                next.follow = Some(Box::new(self.fetch_next_instruction(
                    task,
                    back,
                    registers,
                    depth - 1,
                )));
            }
            return next;
        }
        let mut changes = Vec::new();
        let fetched = task
            .space
            .borrow_mut()
            .fetch_instruction(task.tid, ip, mode, &mut changes);
        self.report_changes(task, changes);
        if fetched.hidden {
            self.release_with_warning(
                task,
                "its memory may not be read (so is its file, or it made itself undumpable)",
            );
            return next;
        }
        next.instruction = fetched.instruction;
        next.vector = fetched.vector;
        if let Some(instruction) = fetched.instruction {
            if instruction.repeats {
                next.count = registers.rcx;
            }
            if instruction.shadows && depth > 0 {
                let follow = self.fetch_next_instruction(
                    task,
                    instruction.next_address(),
                    registers,
                    depth - 1,
                );
                next.follow = Some(Box::new(follow));
            }
        }
        next
    }

    /// Handles a step that ended at RIP.
    pub(super) fn on_step(
        &mut self,
        task: &mut TracedTask,
        registers: &Registers,
    ) -> io::Result<()> {
        if self.retire_instructions_up_to(task, registers.rip) {
            self.clear_pushed_trap_flag(task, registers);
            self.set_next_instruction(task, registers);
        }
        Ok(())
    }

    /// Accounts for the instructions from the thread's position up to `to`; false if the current one has not ended.
    pub(super) fn retire_instructions_up_to(&mut self, task: &mut TracedTask, to: u64) -> bool {
        let TaskPosition::User(mut next) =
            std::mem::replace(&mut task.position, TaskPosition::Exiting)
        else {
            return true;
        };
        task.after_sigreturn = false;
        self.enter_context(task, &next);
        if next.ip == to && next.instruction.is_some_and(|i| i.repeats) {
            // An iteration of a REP instruction that continues.
            task.position = TaskPosition::User(next);
            return false;
        }
        while let Some(follow) = next.follow.take() {
            if to == follow.ip {
                break;
            }
            self.retire_or_fault(task, &next, follow.ip);
            self.enter_context(task, &follow);
            next = *follow;
        }
        self.retire_or_fault(task, &next, to);
        // The caller fetches the instruction; until then the end of the thread finds it at `to`.
        task.position = TaskPosition::User(NextInstruction {
            ip: to,
            pushed_flags: next.instruction.is_some_and(|i| i.pushes_flags),
            popped_flags: next.instruction.is_some_and(|i| i.pops_flags),
            ..NextInstruction::default()
        });
        true
    }

    /// Accounts for an instruction, or a call into the vsyscall page, that led to `to`.
    fn retire_or_fault(&mut self, task: &mut TracedTask, next: &NextInstruction, to: u64) {
        if !next.emulated {
            self.retire_instruction(task, next, to);
            return;
        }
        self.end_run(task);
        self.emit_record(Record {
            ip: next.ip,
            extra: libc::SIGSEGV as u64,
            ..Record::new(EventKind::Fault, task.tid_as_u32())
        });
        task.reentry = Some(ResumeReason::Other);
    }

    /// Accounts for a retired instruction that led to `to`.
    fn retire_instruction(&mut self, task: &mut TracedTask, next: &NextInstruction, to: u64) {
        self.check_window_edges(task, next.ip);
        self.clock += 1;
        task.retired += 1;
        task.call_unblocks_trap = false;
        self.write_truth(task.tid, |truth| {
            truth.add_instruction(task.tid_as_u32(), &mut task.run, next.ip)
        });
        let Some(instruction) = next.instruction else {
            self.retire_unknown(task, next.ip, to);
            return;
        };
        let after = instruction.next_address();
        let mut record = Record {
            length: u16::from(instruction.length),
            ip: next.ip,
            target: to,
            extra: task.retired,
            ..Record::new(EventKind::Jump, task.tid_as_u32())
        };
        match instruction.class {
            InstructionClass::Conditional => {
                let taken = to != after
                    || instruction.target == after && was_branch_taken(task.tid, &instruction);
                let known = !taken || to == instruction.target;
                record.kind = EventKind::Conditional;
                record.target = instruction.target;
                record.flags = if taken && known {
                    flag::CONDITIONAL_TAKEN
                } else {
                    0
                };
                self.emit_record(record);
                if !known {
                    // The continuation is written, since no packet would show it.
                    self.write_unexpected_jump(task, after, to);
                    return;
                }
                if taken || self.truth.cut_at_branches {
                    self.end_run(task);
                }
                return;
            }
            InstructionClass::Jump | InstructionClass::Call if to != instruction.target => {
                self.write_unexpected_jump(task, instruction.target, to);
                return;
            }
            InstructionClass::Jump => {}
            InstructionClass::Call => record.kind = EventKind::Call,
            InstructionClass::IndirectJump => record.kind = EventKind::IndirectJump,
            InstructionClass::IndirectCall => record.kind = EventKind::IndirectCall,
            InstructionClass::Return => record.kind = EventKind::Return,
            InstructionClass::FarTransfer => {
                record.kind = EventKind::Far;
                // It has ended: the registers show the new mode.
                let narrow = ptrace::read_registers(task.tid)
                    .is_ok_and(|now| !ptrace::runs_64_bit_code(&now));
                record.flags = if narrow { flag::FAR_TO_32_BIT } else { 0 };
            }
            InstructionClass::Syscall => {
                record.kind = EventKind::Syscall;
                record.target = 0;
                task.reentry = Some(ResumeReason::SystemCall);
            }
            _ => {
                if to != after {
                    self.write_unexpected_jump(task, after, to);
                }
                return;
            }
        }
        self.emit_record(record);
        self.end_run(task);
    }

    /// Handles bytes that ran although they are no known instruction.
    fn retire_unknown(&mut self, task: &mut TracedTask, ip: u64, to: u64) {
        if !std::mem::replace(&mut self.warned.unknown, true) {
            self.emit_warning(
                task.tid,
                &format!(
                    "an unknown instruction at {ip:#x} was executed; the path there has a gap"
                ),
            );
        }
        self.write_interrupt(task, ip, to);
    }

    /// Handles control that went to `to` instead of `expected`: an aborted transaction, or an act of the kernel.
    fn write_unexpected_jump(&mut self, task: &mut TracedTask, expected: u64, to: u64) {
        if !std::mem::replace(&mut self.warned.jumps, true) {
            self.emit_warning(
                task.tid,
                &format!("control went from {expected:#x} to {to:#x} without a branch"),
            );
        }
        self.write_interrupt(task, expected, to);
    }

    fn write_interrupt(&mut self, task: &mut TracedTask, ip: u64, to: u64) {
        self.end_run(task);
        self.emit_record(Record {
            ip,
            ..Record::new(EventKind::Interrupt, task.tid_as_u32())
        });
        task.reentry = Some(ResumeReason::Other);
        self.enter_context(
            task,
            &NextInstruction {
                ip: to,
                ..NextInstruction::default()
            },
        );
    }

    /// Clears the trap flag that PUSHF has stored under a step.
    fn clear_pushed_trap_flag(&mut self, task: &TracedTask, registers: &Registers) {
        if task.program_steps
            || !task
                .next_instruction()
                .is_some_and(|next| next.pushed_flags)
        {
            return;
        }
        // For all operand sizes the flag is in the second byte.
        let mut byte = [0u8];
        let address = registers.rsp.wrapping_add(1);
        let mask = (TRAP_FLAG >> 8) as u8;
        if ptrace::read_bytes(task.tid, address, &mut byte) == 1 && byte[0] & mask != 0 {
            // The page was written a moment ago; if it is gone, there is nothing to correct.
            let _ = ptrace::write_bytes(task.tid, address, &[byte[0] & !mask]);
        }
    }

    fn warn_of_custom_segment(&mut self, task: &TracedTask) {
        if !std::mem::replace(&mut self.warned.segment, true) {
            self.emit_warning(
                task.tid,
                "the program entered a code segment of its own: the path in it cannot be decoded",
            );
        }
    }
}

/// Returns whether the branch just executed was taken. Such branches change no flags, and only LOOP changes RCX.
pub(super) fn was_branch_taken(tid: pid_t, instruction: &Instruction) -> bool {
    let mut bytes = [0u8; MAX_LENGTH];
    let length = usize::from(instruction.length);
    let count = ptrace::read_bytes(tid, instruction.ip, &mut bytes[..length]);
    match ptrace::read_registers(tid) {
        Ok(registers) => condition_holds(&bytes[..count], &registers),
        Err(_) => false,
    }
}

/// Evaluates Jcc, JRCXZ, JECXZ or LOOPcc in 64-bit code, with the registers after it.
fn condition_holds(bytes: &[u8], registers: &Registers) -> bool {
    let mut bytes = bytes.iter().copied();
    let mut short_count = false;
    let mut opcode = bytes.next();
    // Legacy and REX prefixes.
    while let Some(0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3) =
        opcode
    {
        short_count |= opcode == Some(0x67);
        opcode = bytes.next();
    }
    let count = if short_count {
        registers.rcx & 0xffff_ffff
    } else {
        registers.rcx
    };
    let zero = registers.eflags & ZF != 0;
    match opcode {
        Some(code @ 0x70..=0x7f) => flag_condition_holds(code, registers.eflags),
        Some(0x0f) => bytes
            .next()
            .is_some_and(|code| flag_condition_holds(code, registers.eflags)),
        Some(0xe0) => count != 0 && !zero,
        Some(0xe1) => count != 0 && zero,
        Some(0xe2) => count != 0,
        Some(0xe3) => count == 0,
        _ => false,
    }
}

const CF: u64 = 1 << 0;
const PF: u64 = 1 << 2;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const OF: u64 = 1 << 11;

/// The low four bits of the opcode select the condition; bit 0 negates it.
fn flag_condition_holds(code: u8, flags: u64) -> bool {
    let set = |mask: u64| flags & mask != 0;
    let less = set(SF) != set(OF);
    let holds = match code >> 1 & 7 {
        0 => set(OF),
        1 => set(CF),
        2 => set(ZF),
        3 => set(CF | ZF),
        4 => set(SF),
        5 => set(PF),
        6 => less,
        _ => less || set(ZF),
    };
    holds != (code & 1 == 1)
}

/// One iteration is one step. Setting and clearing the registers costs a quarter of a second one.
const WORTHWHILE: u64 = 2;
const DR7: usize = 7;
/// DR7.L0: breakpoint 0 on execution.
const ENABLE: u64 = 1;

impl TracingEngine<'_> {
    /// Returns how to resume the thread at `next`: freely up to a breakpoint after a long REP instruction, otherwise by
    /// a step.
    pub(super) fn choose_resume_mode(
        &mut self,
        task: &mut TracedTask,
        next: &NextInstruction,
    ) -> ResumeMode {
        let Some(instruction) = next.instruction else {
            return ResumeMode::Step;
        };
        let worthwhile = instruction.repeats && next.count >= WORTHWHILE;
        if !worthwhile || !self.breakpoints || task.program_steps {
            return ResumeMode::Step;
        }
        let set = ptrace::set_debug_register(task.tid, 0, instruction.next_address())
            .and_then(|()| ptrace::set_debug_register(task.tid, DR7, ENABLE));
        match set {
            Ok(()) => {
                task.breakpoint_set = true;
                ResumeMode::Free
            }
            Err(_) => {
                self.breakpoints = false;
                ResumeMode::Step
            }
        }
    }

    pub(super) fn clear_breakpoint(&mut self, task: &mut TracedTask) -> io::Result<()> {
        task.breakpoint_set = false;
        ptrace::set_debug_register(task.tid, DR7, 0)
    }
}

/// Returns whether hardware breakpoints work: some virtual machines accept them and never stop.
///
/// A child stops itself; a breakpoint at its next instruction must stop it again before it exits.
pub(super) fn do_hardware_breakpoints_work() -> bool {
    // SAFETY: the child makes system calls only.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return false;
    }
    if pid == 0 {
        // SAFETY: as above. Without a tracer, the parent's kill ends the stop.
        unsafe {
            libc::kill(libc::getpid(), libc::SIGSTOP);
            libc::_exit(0);
        }
    }
    let works = test_hardware_breakpoint(pid).unwrap_or(false);
    // SAFETY: the child has not been waited for to its end.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    while let Ok(Some((_, status))) = ptrace::wait_for_stop(pid) {
        if matches!(status, StopStatus::Ended(_)) {
            break;
        }
        // It stops once more before it exits.
        let _ = ptrace::resume_thread(pid, ResumeMode::Free, 0);
    }
    works
}

fn test_hardware_breakpoint(pid: pid_t) -> io::Result<bool> {
    ptrace::seize_new_child(pid)?;
    let mut set = false;
    while let Some((_, status)) = ptrace::wait_for_stop(pid)? {
        match status {
            StopStatus::Ended(_) | StopStatus::Event(libc::PTRACE_EVENT_EXIT, _) => break,
            StopStatus::Signal(libc::SIGTRAP) => {
                return Ok(set && ptrace::signal_code_of_stop(pid)? == ptrace::trap::HARDWARE);
            }
            StopStatus::Signal(libc::SIGSTOP)
            | StopStatus::Event(libc::PTRACE_EVENT_STOP, libc::SIGSTOP)
                if !set =>
            {
                let here = ptrace::read_registers(pid)?.rip;
                ptrace::set_debug_register(pid, 0, here)?;
                ptrace::set_debug_register(pid, DR7, ENABLE)?;
                set = true;
            }
            _ => {}
        }
        ptrace::resume_thread(pid, ResumeMode::Free, 0)?;
    }
    Ok(false)
}
