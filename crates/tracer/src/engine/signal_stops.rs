//! Stops for signals and traps: what the thread did before the stop, and whether the program gets the signal.
//!
//! A step takes as long as a thousand instructions, so a timer's signal may arrive again before its handler has been
//! stepped through. Such a signal is deferred until the thread has executed as many instructions as the last handler.
//! `sigtrap` defers a SIGTRAP that the program blocks.

use std::io;

use rtit_events::{EventKind, Record, ResumeReason};
use rtit_x86::Class;

use crate::engine::engine_state::Engine;
use crate::ptrace::{self, trap, Registers};
use crate::remote_memory;
use crate::task::{DeferredSignal, InjectedSignal, Position, Task};

impl Engine<'_> {
    /// Handles a SIGTRAP, which mostly is the end of a step.
    pub(super) fn on_sigtrap(&mut self, task: &mut Task) -> io::Result<()> {
        let registers = ptrace::read_registers(task.tid)?;
        let injected = task.delivered.take();
        // The trap flag was set before the instruction: then the trap is the program's, too.
        let own_steps = task.program_steps;
        if injected.is_none() && is_plain_step(task, &registers) {
            self.on_step(task, &registers)?;
            return match own_steps {
                true => self.deliver_signal(task, libc::SIGTRAP),
                false => self.resume_after_step(task),
            };
        }
        match ptrace::signal_code(task.tid)? {
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
                hide_blocked_trap(task, &registers)?;
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

    fn is_int1(&self, task: &Task) -> bool {
        task.next().is_some_and(|next| {
            let interrupts = next
                .instruction
                .is_some_and(|i| i.class == Class::SoftwareInterrupt);
            interrupts && next.vector == 1
        })
    }

    /// Handles a software interrupt, perhaps in the shadow of another instruction; RIP is after it.
    fn on_software_interrupt(&mut self, task: &mut Task, registers: &Registers) {
        let is_interrupt = |task: &Task| {
            let instruction = task.next().and_then(|next| next.instruction);
            instruction.is_some_and(|i| i.class == Class::SoftwareInterrupt)
        };
        if !is_interrupt(task) {
            let follow = task.next().and_then(|next| next.follow.clone());
            if let Some(follow) = follow {
                self.retire_up_to(task, follow.ip);
                task.position = Position::User(*follow);
            }
        }
        if let (true, Position::User(next)) = (is_interrupt(task), task.position.clone()) {
            self.write_software_interrupt(task, &next);
        }
        self.set_next_instruction(task, registers);
    }

    pub(super) fn write_software_interrupt(
        &mut self,
        task: &mut Task,
        next: &crate::task::NextInstruction,
    ) {
        self.enter_context(task, next);
        self.end_run(task);
        self.emit_record(Record {
            length: next.instruction.map_or(0, |i| u16::from(i.length)),
            ip: next.ip,
            extra: u64::from(next.vector),
            ..Record::new(EventKind::SoftInt, task.id())
        });
        task.reentry = Some(ResumeReason::Other);
    }

    /// Handles a step that ended with the report of a system call: one made in a shadow, or repeated.
    fn on_stepped_syscall(&mut self, task: &mut Task, mut registers: Registers) -> io::Result<()> {
        match task.position.clone() {
            Position::Restart(call) => {
                let next = call.next.clone();
                self.on_syscall_restart(task, &next);
                self.clear_r11_trap_flag(task, &mut registers)?;
                self.on_syscall_return(task, &call, &registers)
            }
            Position::User(next) if next.ip != registers.rip => {
                self.retire_up_to(task, registers.rip);
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
    fn clear_r11_trap_flag(&mut self, task: &Task, registers: &mut Registers) -> io::Result<()> {
        if registers.r11 & ptrace::TRAP_FLAG != 0 && registers.rcx == registers.rip {
            registers.r11 &= !ptrace::TRAP_FLAG;
            ptrace::write_registers(task.tid, registers)?;
        }
        Ok(())
    }

    /// Handles another signal than SIGTRAP.
    pub(super) fn on_signal(&mut self, task: &mut Task, signal: i32) -> io::Result<()> {
        let registers = ptrace::read_registers(task.tid)?;
        let info = ptrace::signal_info(task.tid)?;
        let code = info.si_code;
        let injected = task.delivered.take();
        match task.position.clone() {
            Position::User(next) => {
                let interrupts = next
                    .instruction
                    .is_some_and(|i| i.class == Class::SoftwareInterrupt);
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
                } else if is_fault(signal, code) && !(by_kernel && task.after_sigreturn) {
                    self.write_fault(task, &info);
                }
            }
            Position::Restart(call) if call.next.ip == registers.rip => {
                // The call would have been repeated, but this signal came first.
                self.set_next_instruction(task, &registers);
            }
            _ => {}
        }
        self.deliver_unless_deferred(task, signal)
    }

    pub(super) fn deliver_unless_deferred(
        &mut self,
        task: &mut Task,
        signal: i32,
    ) -> io::Result<()> {
        if self.detaching.is_none() && self.defer_signal(task, signal)? {
            return self.resume_task(task, 0);
        }
        self.deliver_sent(task, signal)
    }

    /// Writes that the instruction at the thread's position did not retire.
    fn write_fault(&mut self, task: &mut Task, info: &libc::siginfo_t) {
        let Position::User(next) = task.position.clone() else {
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
            ..Record::new(EventKind::Fault, task.id())
        });
        task.reentry = Some(ResumeReason::Other);
    }

    /// Delivers a signal that no instruction caused: the program may ignore it.
    pub(super) fn deliver_sent(&mut self, task: &mut Task, signal: i32) -> io::Result<()> {
        if signal == libc::SIGTRAP && task.trap_ignored.get() {
            return self.resume_task(task, 0);
        }
        self.deliver_signal(task, signal)
    }

    pub(super) fn deliver_signal(&mut self, task: &mut Task, signal: i32) -> io::Result<()> {
        task.delivered = Some(InjectedSignal {
            signal,
            caught: crate::procfs::handles_signal(task.tid, signal),
        });
        self.resume_task(task, signal)
    }
}

/// Corrects the signal mask that a handler's frame keeps: it is the program's, not the one that steps need.
fn hide_blocked_trap(task: &mut Task, registers: &Registers) -> io::Result<()> {
    /// Before uc_sigmask: return address, uc_flags, uc_link, uc_stack, uc_mcontext.
    const MASK: u64 = 8 + 8 + 8 + 24 + 256;
    let at = registers.rsp.wrapping_add(MASK);
    if let (true, Some(mask)) = (task.trap_blocked, remote_memory::read_u64(task.tid, at)) {
        remote_memory::write_bytes(task.tid, at, &(mask | ptrace::SIGTRAP_BIT).to_le_bytes())?;
    }
    let blocked = task.trap_blocked && !std::mem::take(&mut task.call_unblocks_trap);
    task.trap_blocked = ptrace::unblock_trap(task.tid)? || blocked;
    Ok(())
}

/// Returns whether an ordinary instruction has retired. The kernel reports the trap of a step before any other SIGTRAP,
/// so the origin of the signal is certain.
fn is_plain_step(task: &Task, registers: &Registers) -> bool {
    task.next().is_some_and(|next| {
        let class = next.instruction.map(|instruction| instruction.class);
        let ordinary = !matches!(
            class,
            None | Some(Class::SoftwareInterrupt | Class::Syscall)
        );
        ordinary && next.follow.is_none() && next.ip != registers.rip
    })
}

/// Returns whether the kernel sent the signal because of the instruction.
fn is_fault(signal: i32, code: i32) -> bool {
    const BUS_MCEERR_AO: i32 = 5;
    match signal {
        libc::SIGSEGV | libc::SIGFPE | libc::SIGILL => code > 0,
        libc::SIGBUS => code > 0 && code != BUS_MCEERR_AO,
        _ => false,
    }
}

impl Engine<'_> {
    /// Defers the signal that stopped the thread, if it came too early.
    pub(super) fn defer_signal(&mut self, task: &mut Task, signal: i32) -> io::Result<bool> {
        let info = ptrace::signal_info(task.tid)?;
        if signal == libc::SIGTRAP {
            return self.defer_trap(task, info);
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
        let in_user_code = matches!(task.position, Position::User(_));
        let early = in_user_code && is_of_timer(&info) && task.retired < until;
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
    pub(super) fn resume_after_step(&mut self, task: &mut Task) -> io::Result<()> {
        if !self.traps.is_empty() && !task.trap_blocked {
            self.take_process_trap(task);
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
                self.deliver_sent(task, info.si_signo)
            }
            None => self.resume_task(task, 0),
        }
    }

    /// Returns the deferred signal, to send it into a system call that begins: it must not wait for the end of the
    /// call.
    pub(super) fn send_deferred(&self, task: &mut Task) -> i32 {
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
fn is_of_timer(info: &libc::siginfo_t) -> bool {
    const KERNEL: i32 = 0x80;
    const TIMER: i32 = -2;
    let of_interval = matches!(
        info.si_signo,
        libc::SIGALRM | libc::SIGVTALRM | libc::SIGPROF
    );
    info.si_signo < 32 && (info.si_code == TIMER || info.si_code == KERNEL && of_interval)
}
