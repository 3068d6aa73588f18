//! Stops for signals and traps: what the thread did before the stop, and whether the program gets the signal.
//!
//! A step takes as long as a thousand instructions, so a timer's signal may arrive again before its handler has been
//! stepped through. Such a signal is deferred until the thread has executed as many instructions as the last handler.
//!
//! Steps need the kernel to accept SIGTRAP, so the kernel must not know that the program blocks it; and the kernel
//! drops the ignoring of SIGTRAP at the first step. The tracer therefore does what the kernel would do:
//!
//! * A blocked SIGTRAP stays with the tracer until the program unblocks it. One that was sent to a whole process waits
//!   until any of its threads may take it.
//! * A call that takes a pending signal (sigwait, read from a signalfd) gets the SIGTRAP put into the kernel's queue;
//!   if the call does not take it, the signal comes back by a stop.
//! * An instruction that traps by itself ends a program that blocks the signal: for that step the kernel must know
//!   (`expose_blocked_sigtrap`).

use std::cell::Cell;
use std::rc::Rc;
use std::{io, mem, ptr};

use libc::{pid_t, siginfo_t};
use rtit_events::{EventKind, Record, ResumeReason};
use rtit_x86::InstructionClass;

use crate::engine::event_loop::TracingEngine;
use crate::procfs;
use crate::ptrace::{self, trap, Registers};
use crate::task::{
    DeferredSignal, InjectedSignal, NextInstruction, PendingTrap, SystemCall, TaskPosition,
    TracedTask,
};

impl TracingEngine<'_> {
    /// Handles a SIGTRAP, which mostly is the end of a step.
    pub(super) fn on_sigtrap(&mut self, task: &mut TracedTask) -> io::Result<()> {
        let registers = ptrace::read_registers(task.tid)?;
        let injected = task.delivered.take();
        // The trap flag was set before the instruction: then the trap is the program's, too.
        let own_steps = task.program_steps;
        if injected.is_none() && is_step_of_plain_instruction(task, &registers) {
            self.on_step(task, &registers)?;
            return match own_steps {
                true => self.deliver_signal(task, libc::SIGTRAP),
                false => self.resume_after_step(task),
            };
        }
        match ptrace::signal_code_of_stop(task.tid)? {
            trap::STEP | trap::HARDWARE | trap::BREAKPOINT if self.is_int1(task) => {
                self.on_software_interrupt(task, &registers);
                self.deliver_signal(task, libc::SIGTRAP)
            }
            trap::STEP | trap::HARDWARE => {
                self.on_step(task, &registers)?;
                match own_steps {
                    true => self.deliver_signal(task, libc::SIGTRAP),
                    false => self.resume_after_step(task),
                }
            }
            trap::BREAKPOINT => {
                self.on_stepped_syscall(task, registers)?;
                self.resume_task(task, 0)
            }
            trap::HANDLER => {
                // The kernel has built the frame of a handler. More signals may arrive before its first instruction.
                if let Some(injected) = injected {
                    self.leave_context(task, injected.signal);
                }
                task.handler_start = task.retired;
                hide_blocked_sigtrap_in_handler_frame(task, &registers)?;
                task.reentry = Some(ResumeReason::Handler);
                self.set_next_instruction(task, &registers);
                self.resume_task(task, 0)
            }
            trap::KERNEL => {
                self.on_software_interrupt(task, &registers);
                self.deliver_signal(task, libc::SIGTRAP)
            }
            // A process has sent it.
            _ => self.on_sent_trap(task),
        }
    }

    fn is_int1(&self, task: &TracedTask) -> bool {
        task.next_instruction().is_some_and(|next| {
            let interrupts = next
                .instruction
                .is_some_and(|i| i.class == InstructionClass::SoftwareInterrupt);
            interrupts && next.vector == 1
        })
    }

    /// Handles a software interrupt, perhaps in the shadow of another instruction; RIP is after it.
    fn on_software_interrupt(&mut self, task: &mut TracedTask, registers: &Registers) {
        let is_interrupt = |task: &TracedTask| {
            let instruction = task.next_instruction().and_then(|next| next.instruction);
            instruction.is_some_and(|i| i.class == InstructionClass::SoftwareInterrupt)
        };
        if !is_interrupt(task) {
            let follow = task.next_instruction().and_then(|next| next.follow.clone());
            if let Some(follow) = follow {
                self.retire_instructions_up_to(task, follow.ip);
                task.position = TaskPosition::User(*follow);
            }
        }
        if let (true, TaskPosition::User(next)) = (is_interrupt(task), task.position.clone()) {
            self.write_software_interrupt(task, &next);
        }
        self.set_next_instruction(task, registers);
    }

    pub(super) fn write_software_interrupt(
        &mut self,
        task: &mut TracedTask,
        next: &crate::task::NextInstruction,
    ) {
        self.enter_context(task, next);
        self.end_run(task);
        self.emit_record(Record {
            length: next.instruction.map_or(0, |i| u16::from(i.length)),
            ip: next.ip,
            extra: u64::from(next.vector),
            ..Record::new(EventKind::SoftInt, task.tid_as_u32())
        });
        task.reentry = Some(ResumeReason::Other);
    }

    /// Handles a step that ended with the report of a system call: one made in a shadow, or repeated.
    fn on_stepped_syscall(
        &mut self,
        task: &mut TracedTask,
        mut registers: Registers,
    ) -> io::Result<()> {
        match task.position.clone() {
            TaskPosition::Restart(call) => {
                let next = call.next.clone();
                self.on_syscall_restart(task, &next);
                self.clear_r11_trap_flag(task, &mut registers)?;
                self.on_syscall_return(task, &call, &registers)
            }
            TaskPosition::User(next) if next.ip != registers.rip => {
                self.retire_instructions_up_to(task, registers.rip);
                if task.reentry.is_some() {
                    self.clear_r11_trap_flag(task, &mut registers)?;
                    let changes = task.space.borrow_mut().reread_mappings(task.tid);
                    self.report_changes(task, changes);
                }
                self.set_next_instruction(task, &registers);
                Ok(())
            }
            _ => {
                self.set_next_instruction(task, &registers);
                Ok(())
            }
        }
    }

    /// Clears the trap flag that SYSCALL has stored in R11 under a step.
    fn clear_r11_trap_flag(
        &mut self,
        task: &TracedTask,
        registers: &mut Registers,
    ) -> io::Result<()> {
        if registers.r11 & ptrace::TRAP_FLAG != 0 && registers.rcx == registers.rip {
            registers.r11 &= !ptrace::TRAP_FLAG;
            ptrace::write_registers(task.tid, registers)?;
        }
        Ok(())
    }

    /// Handles another signal than SIGTRAP.
    pub(super) fn on_signal(&mut self, task: &mut TracedTask, signal: i32) -> io::Result<()> {
        let registers = ptrace::read_registers(task.tid)?;
        let info = ptrace::siginfo_of_stop(task.tid)?;
        let code = info.si_code;
        let injected = task.delivered.take();
        match task.position.clone() {
            TaskPosition::User(next) => {
                let interrupts = next
                    .instruction
                    .is_some_and(|i| i.class == InstructionClass::SoftwareInterrupt);
                if next.ip != registers.rip && interrupts {
                    // INT 4 is a trap: the IP is after it.
                    self.on_software_interrupt(task, &registers);
                } else if next.ip != registers.rip {
                    self.on_step(task, &registers)?;
                }
                let by_kernel = signal == libc::SIGSEGV && code == trap::KERNEL;
                let no_frame = by_kernel && injected.is_some_and(|injected| injected.caught);
                if let (true, Some(injected)) = (no_frame, injected) {
                    self.leave_context(task, injected.signal);
                } else if is_fault_signal(signal, code) && !(by_kernel && task.after_sigreturn) {
                    self.write_fault_record(task, &info);
                }
            }
            TaskPosition::Restart(call) if call.next.ip == registers.rip => {
                // The call would have been repeated, but this signal came first.
                self.set_next_instruction(task, &registers);
            }
            _ => {}
        }
        self.deliver_signal_unless_deferred(task, signal)
    }

    pub(super) fn deliver_signal_unless_deferred(
        &mut self,
        task: &mut TracedTask,
        signal: i32,
    ) -> io::Result<()> {
        if self.detaching.is_none() && self.defer_signal(task, signal)? {
            return self.resume_task(task, 0);
        }
        self.deliver_sent_signal(task, signal)
    }

    /// Writes that the instruction at the thread's position did not retire.
    fn write_fault_record(&mut self, task: &mut TracedTask, info: &libc::siginfo_t) {
        let TaskPosition::User(next) = task.position.clone() else {
            return;
        };
        self.enter_context(task, &next);
        self.end_run(task);
        self.emit_record(Record {
            length: next.instruction.map_or(0, |i| u16::from(i.length)),
            ip: next.ip,
            // SAFETY: the kernel's own signals for an instruction have the address.
            target: unsafe { info.si_addr() } as u64,
            extra: u64::from(info.si_signo as u32) | u64::from(info.si_code as u32) << 32,
            ..Record::new(EventKind::Fault, task.tid_as_u32())
        });
        task.reentry = Some(ResumeReason::Other);
    }

    /// Delivers a signal that no instruction caused: the program may ignore it.
    pub(super) fn deliver_sent_signal(
        &mut self,
        task: &mut TracedTask,
        signal: i32,
    ) -> io::Result<()> {
        if signal == libc::SIGTRAP && task.trap_ignored.get() {
            return self.resume_task(task, 0);
        }
        self.deliver_signal(task, signal)
    }

    pub(super) fn deliver_signal(&mut self, task: &mut TracedTask, signal: i32) -> io::Result<()> {
        task.delivered = Some(InjectedSignal {
            signal,
            caught: crate::procfs::handles_signal(task.tid, signal),
        });
        self.resume_task(task, signal)
    }
}

/// Corrects the signal mask that a handler's frame keeps: it is the program's, not the one that steps need.
fn hide_blocked_sigtrap_in_handler_frame(
    task: &mut TracedTask,
    registers: &Registers,
) -> io::Result<()> {
    /// Before uc_sigmask: return address, uc_flags, uc_link, uc_stack, uc_mcontext.
    const MASK: u64 = 8 + 8 + 8 + 24 + 256;
    let at = registers.rsp.wrapping_add(MASK);
    if let (true, Some(mask)) = (task.trap_blocked, ptrace::read_u64(task.tid, at)) {
        ptrace::write_bytes(task.tid, at, &(mask | ptrace::SIGTRAP_BIT).to_le_bytes())?;
    }
    let blocked = task.trap_blocked && !std::mem::take(&mut task.call_unblocks_trap);
    task.trap_blocked = ptrace::unblock_sigtrap(task.tid)? || blocked;
    Ok(())
}

/// Returns whether an ordinary instruction has retired. The kernel reports the trap of a step before any other SIGTRAP,
/// so the origin of the signal is certain.
fn is_step_of_plain_instruction(task: &TracedTask, registers: &Registers) -> bool {
    task.next_instruction().is_some_and(|next| {
        let class = next.instruction.map(|instruction| instruction.class);
        let ordinary = !matches!(
            class,
            None | Some(InstructionClass::SoftwareInterrupt | InstructionClass::Syscall)
        );
        ordinary && next.follow.is_none() && next.ip != registers.rip
    })
}

/// Returns whether the kernel sent the signal because of the instruction.
fn is_fault_signal(signal: i32, code: i32) -> bool {
    const BUS_MCEERR_AO: i32 = 5;
    match signal {
        libc::SIGSEGV | libc::SIGFPE | libc::SIGILL => code > 0,
        libc::SIGBUS => code > 0 && code != BUS_MCEERR_AO,
        _ => false,
    }
}

impl TracingEngine<'_> {
    /// Defers the signal that stopped the thread, if it came too early.
    pub(super) fn defer_signal(&mut self, task: &mut TracedTask, signal: i32) -> io::Result<bool> {
        let info = ptrace::siginfo_of_stop(task.tid)?;
        if signal == libc::SIGTRAP {
            return self.defer_blocked_sigtrap(task, info);
        }
        if let Some(held) = task.deferred {
            if held.info.si_signo != signal {
                return Ok(false);
            }
            if held.sent {
                task.deferred = None;
                ptrace::set_signal_info(task.tid, &held.info)?;
                return Ok(false);
            }
            // Two equal signals become one.
            return Ok(true);
        }
        let until = task.caught_up_at;
        let in_user_code = matches!(task.position, TaskPosition::User(_));
        let early = in_user_code && is_timer_signal(&info) && task.retired < until;
        if early {
            task.deferred = Some(DeferredSignal {
                info,
                until,
                sent: false,
            });
        }
        Ok(early)
    }

    /// Resumes the thread after a step, with a deferred signal that is due.
    pub(super) fn resume_after_step(&mut self, task: &mut TracedTask) -> io::Result<()> {
        if !self.traps.is_empty() && !task.trap_blocked {
            self.take_sigtrap_of_process(task);
        }
        if self.detaching.is_some() {
            return self.resume_task(task, 0);
        }
        // A signal that was sent has a stop of its own.
        let waited = if task.trap.is_some_and(|trap| !trap.sent) && !task.trap_blocked {
            task.trap.take().map(|trap| trap.info)
        } else if task
            .deferred
            .is_some_and(|held| !held.sent && task.retired >= held.until)
        {
            task.deferred.take().map(|held| held.info)
        } else {
            None
        };
        match waited {
            Some(info) => {
                ptrace::set_signal_info(task.tid, &info)?;
                self.deliver_sent_signal(task, info.si_signo)
            }
            None => self.resume_task(task, 0),
        }
    }

    /// Returns the deferred signal, to send it into a system call that begins: it must not wait for the end of the
    /// call.
    pub(super) fn take_deferred_signal_for_call(&self, task: &mut TracedTask) -> i32 {
        match &mut task.deferred {
            Some(held) if self.detaching.is_none() => {
                held.sent = true;
                held.info.si_signo
            }
            _ => 0,
        }
    }
}

/// Returns whether a timer sent it: setitimer's signals come from the kernel, timer_create's have an si_code of their
/// own. Real-time signals are counted and never wait.
fn is_timer_signal(info: &libc::siginfo_t) -> bool {
    const KERNEL: i32 = 0x80;
    const TIMER: i32 = -2;
    let of_interval = matches!(
        info.si_signo,
        libc::SIGALRM | libc::SIGVTALRM | libc::SIGPROF
    );
    info.si_signo < 32 && (info.si_code == TIMER || info.si_code == KERNEL && of_interval)
}

impl TracingEngine<'_> {
    /// Tells the kernel that SIGTRAP is blocked, for a step that ends in a trap of the program's own.
    pub(super) fn expose_blocked_sigtrap(&self, task: &mut TracedTask) -> io::Result<()> {
        let TaskPosition::User(next) = &task.position else {
            return Ok(());
        };
        let traps = |next: &NextInstruction| {
            let interrupts = |class| class == InstructionClass::SoftwareInterrupt;
            next.instruction.is_some_and(|i| interrupts(i.class)) && matches!(next.vector, 1 | 3)
        };
        if traps(next) || task.program_steps || next.follow.as_deref().is_some_and(traps) {
            ptrace::block_sigtrap(task.tid)?;
            task.trap_exposed = true;
        }
        Ok(())
    }

    /// Handles a SIGTRAP that was sent.
    pub(super) fn on_sent_trap(&mut self, task: &mut TracedTask) -> io::Result<()> {
        if is_sigtrap_blocked(task)
            && self.detaching.is_none()
            && task.trap.is_none_or(|trap| !trap.sent)
        {
            let info = ptrace::siginfo_of_stop(task.tid)?;
            if was_sent_to_process(&info) {
                self.redirect_sigtrap_to_waiting_thread(task, info)?;
                return self.resume_task(task, 0);
            }
        }
        self.deliver_signal_unless_deferred(task, libc::SIGTRAP)
    }

    /// Gives a SIGTRAP to a thread that waits in a call and may take it; otherwise it waits for the first that may.
    fn redirect_sigtrap_to_waiting_thread(
        &mut self,
        task: &TracedTask,
        info: siginfo_t,
    ) -> io::Result<()> {
        let sleeping = |other: &&mut TracedTask| match &other.position {
            TaskPosition::Kernel(call) if other.pid == task.pid && other.trap.is_none() => {
                !call.compat
                    && (!is_sigtrap_blocked(other) || takes_pending_sigtrap(other.tid, call))
            }
            _ => false,
        };
        if let Some(other) = self.tasks.values_mut().find(sleeping) {
            ptrace::requeue_signal(other.pid, other.tid, &info)?;
            other.trap = Some(PendingTrap { info, sent: true });
        } else {
            self.keep_sigtrap_for_process(task.pid, info);
        }
        Ok(())
    }

    /// Defers the SIGTRAP that stopped the thread, if the program blocks it.
    pub(super) fn defer_blocked_sigtrap(
        &mut self,
        task: &mut TracedTask,
        info: siginfo_t,
    ) -> io::Result<bool> {
        let blocked = is_sigtrap_blocked(task);
        match task.trap {
            Some(trap) if trap.sent => {
                task.trap = None;
                if !blocked {
                    ptrace::set_signal_info(task.tid, &trap.info)?;
                } else if was_sent_to_process(&trap.info) {
                    // No call has taken it.
                    self.keep_sigtrap_for_process(task.pid, trap.info);
                } else {
                    task.trap = Some(PendingTrap {
                        sent: false,
                        ..trap
                    });
                }
                Ok(blocked)
            }
            // Two become one.
            Some(_) => Ok(true),
            None => {
                task.trap = blocked.then_some(PendingTrap { info, sent: false });
                Ok(blocked)
            }
        }
    }

    /// Keeps a SIGTRAP for any thread of the process. Two become one.
    pub(super) fn keep_sigtrap_for_process(&mut self, pid: pid_t, info: siginfo_t) {
        if !self.is_sigtrap_kept_for_process(pid) {
            self.traps.push((pid, info));
        }
    }

    /// Returns whether a SIGTRAP waits for any thread of the process.
    pub(super) fn is_sigtrap_kept_for_process(&self, pid: pid_t) -> bool {
        self.traps.iter().any(|&(of, _)| of == pid)
    }

    /// Gives the thread a SIGTRAP that waits for any thread of its process.
    pub(super) fn take_sigtrap_of_process(&mut self, task: &mut TracedTask) {
        if task.trap.is_some() {
            return;
        }
        if let Some(at) = self.traps.iter().position(|&(of, _)| of == task.pid) {
            let (_, info) = self.traps.swap_remove(at);
            task.trap = Some(PendingTrap { info, sent: false });
        }
    }

    /// Notes a new action for SIGTRAP.
    pub(super) fn note_sigtrap_action(
        &mut self,
        task: &mut TracedTask,
        call: &SystemCall,
    ) -> io::Result<()> {
        let [_, new, old, ..] = call.arguments;
        let before = task.trap_ignored.get();
        if new != 0 {
            let ignored = match ptrace::read_u64(task.tid, new) {
                Some(handler) if new != old => handler == libc::SIG_IGN as u64,
                _ => procfs::ignores_signal(task.tid, libc::SIGTRAP),
            };
            task.trap_ignored.set(ignored);
            if ignored {
                self.drop_pending_sigtraps(task);
            }
        }
        if before && old != 0 {
            ptrace::write_bytes(task.tid, old, &(libc::SIG_IGN as u64).to_le_bytes())?;
        }
        Ok(())
    }

    /// Drops pending SIGTRAPs, which are ignored from now on.
    fn drop_pending_sigtraps(&mut self, task: &mut TracedTask) {
        let pid = task.pid;
        self.traps.retain(|&(of, _)| of != pid);
        let others = self.tasks.values_mut().filter(|other| other.pid == pid);
        for each in others.chain([task]) {
            each.trap = each.trap.filter(|trap| trap.sent);
        }
    }

    /// Gives the process its own copy of the action when it runs another program.
    pub(super) fn unshare_sigtrap_action(&self, task: &mut TracedTask) {
        task.trap_ignored = Rc::new(Cell::new(task.trap_ignored.get()));
    }
}

/// Hides from the kernel again that SIGTRAP is blocked.
pub(super) fn hide_blocked_sigtrap(task: &mut TracedTask) -> io::Result<()> {
    if std::mem::take(&mut task.trap_exposed) {
        ptrace::unblock_sigtrap(task.tid)?;
    }
    Ok(())
}

/// Returns whether the program blocks SIGTRAP, and is in no call that unblocks it.
fn is_sigtrap_blocked(task: &TracedTask) -> bool {
    task.trap_blocked && !task.call_unblocks_trap
}

/// Returns whether it was sent to a process, not to a thread.
pub(super) fn was_sent_to_process(info: &siginfo_t) -> bool {
    info.si_code <= 0 && info.si_code != libc::SI_TKILL
}

/// Descriptors that one call is believed to wait for, at most.
const MOST_FILES: u64 = 4096;

impl TracingEngine<'_> {
    /// Puts the delayed SIGTRAP into the kernel's queue for a call that can take it.
    pub(super) fn offer_sigtrap_to_call(
        &mut self,
        task: &mut TracedTask,
        call: &SystemCall,
    ) -> io::Result<()> {
        task.call_unblocks_trap =
            task.trap_blocked && !call.compat && unblocks_sigtrap_while_waiting(task.tid, call);
        if call.compat || (task.trap.is_none() && !self.is_sigtrap_kept_for_process(task.pid)) {
            return Ok(());
        }
        if task.trap_blocked && !task.call_unblocks_trap && !takes_pending_sigtrap(task.tid, call) {
            return Ok(());
        }
        self.take_sigtrap_of_process(task);
        if let Some(trap) = &mut task.trap {
            if !trap.sent {
                ptrace::requeue_signal(task.pid, task.tid, &trap.info)?;
                trap.sent = true;
            }
        }
        Ok(())
    }

    /// Checks whether the call has taken the SIGTRAP, and corrects the result of sigpending.
    pub(super) fn check_sigtrap_taken_by_call(
        &mut self,
        task: &mut TracedTask,
        call: &SystemCall,
        result: i64,
    ) -> io::Result<()> {
        if task.trap.is_none() && !self.is_sigtrap_kept_for_process(task.pid) {
            return Ok(());
        }
        if let Some(trap) = task.trap {
            if trap.sent && !procfs::is_signal_pending(task.tid, libc::SIGTRAP) {
                task.trap = None;
                correct_signal_sender(task.tid, call, result, &trap.info)?;
            }
        }
        let asked = call.number as i64 == libc::SYS_rt_sigpending && !call.compat;
        if asked && result == 0 && task.trap_blocked {
            let at = call.arguments[0];
            if let Some(set) = ptrace::read_u64(task.tid, at) {
                ptrace::write_bytes(task.tid, at, &(set | ptrace::SIGTRAP_BIT).to_le_bytes())?;
            }
        }
        Ok(())
    }
}

/// Corrects the sender in the result of the call: the tracer has sent the signal.
fn correct_signal_sender(
    tid: pid_t,
    call: &SystemCall,
    result: i64,
    info: &libc::siginfo_t,
) -> io::Result<()> {
    let [_, at, ..] = call.arguments;
    // SAFETY: a structure of integers that is read as bytes.
    let bytes = unsafe {
        std::slice::from_raw_parts(ptr::from_ref(info).cast::<u8>(), mem::size_of_val(info))
    };
    match call.number as i64 {
        libc::SYS_rt_sigtimedwait if at != 0 && result == i64::from(libc::SIGTRAP) => {
            ptrace::write_bytes(tid, at, bytes)
        }
        libc::SYS_read if result > 0 => {
            let all = mem::size_of::<libc::signalfd_siginfo>() as u64;
            let mut each = (0..result as u64 / all).map(|index| at.wrapping_add(index * all));
            let is_trap = |at: &u64| {
                ptrace::read_u64(tid, *at).is_some_and(|word| word as u32 == libc::SIGTRAP as u32)
            };
            // Code, process and user: siginfo has padding after the code.
            let who = [&bytes[8..12], &bytes[16..24]].concat();
            each.find(is_trap).map_or(Ok(()), |at| {
                ptrace::write_bytes(tid, at.wrapping_add(8), &who)
            })
        }
        _ => Ok(()),
    }
}

/// Returns whether the call has a signal mask of its own while it waits, without SIGTRAP.
fn unblocks_sigtrap_while_waiting(tid: pid_t, call: &SystemCall) -> bool {
    let set = match call.number as i64 {
        libc::SYS_rt_sigsuspend => Some(call.arguments[0]),
        libc::SYS_ppoll => Some(call.arguments[3]),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Some(call.arguments[4]),
        // A structure: the address of the mask, and its size.
        libc::SYS_pselect6 if call.arguments[5] != 0 => ptrace::read_u64(tid, call.arguments[5]),
        _ => None,
    };
    let set = set.filter(|&at| at != 0);
    set.and_then(|at| ptrace::read_u64(tid, at))
        .is_some_and(|set| set & ptrace::SIGTRAP_BIT == 0)
}

/// Returns whether the call takes a pending SIGTRAP, or reports it, before anything else.
pub(super) fn takes_pending_sigtrap(tid: pid_t, call: &SystemCall) -> bool {
    let [first, second, ..] = call.arguments;
    let gives = |fd: u64| procfs::is_signalfd_for(tid, fd as i32, ptrace::SIGTRAP_BIT);
    let bit = |set: u64, fd: u64| {
        let word = ptrace::read_u64(tid, set.wrapping_add(fd / 64 * 8));
        word.is_some_and(|word| word >> (fd % 64) & 1 == 1)
    };
    match call.number as i64 {
        libc::SYS_rt_sigtimedwait => {
            ptrace::read_u64(tid, first).is_some_and(|set| set & ptrace::SIGTRAP_BIT != 0)
        }
        libc::SYS_read | libc::SYS_readv => gives(first),
        // struct pollfd: the descriptor, then the events.
        libc::SYS_poll | libc::SYS_ppoll => (0..second.min(MOST_FILES)).any(|index| {
            let entry = ptrace::read_u64(tid, first.wrapping_add(8 * index));
            entry.is_some_and(|entry| {
                entry >> 32 & libc::POLLIN as u64 != 0 && gives(entry & 0xffff_ffff)
            })
        }),
        libc::SYS_select | libc::SYS_pselect6 if second != 0 => {
            (0..first.min(MOST_FILES)).any(|fd| bit(second, fd) && gives(fd))
        }
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => {
            procfs::epoll_targets(tid, first as i32)
                .into_iter()
                .any(gives)
        }
        _ => false,
    }
}
