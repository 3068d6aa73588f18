//! Signals and traps: what a thread did before the stop, and whether a signal goes on to the program.

use std::io;

use rtit_x86::Class;

use crate::engine::state::Engine;
use crate::event::{Kind, Record, Resume};
use crate::memory;
use crate::sys::{self, trap, Registers};
use crate::task::{Injected, Position, Task};

impl Engine<'_> {
    /// A SIGTRAP: mostly our own step.
    pub(super) fn trapped(&mut self, task: &mut Task) -> io::Result<()> {
        let registers = sys::registers(task.tid)?;
        let injected = task.injected.take();
        // It was set before the instruction: then the trap is the program's, too.
        let own_steps = task.own_steps;
        if injected.is_none() && is_plain_step(task, &registers) {
            self.stepped(task, &registers)?;
            return match own_steps {
                true => self.deliver(task, libc::SIGTRAP),
                false => self.go_after_step(task),
            };
        }
        match sys::signal_code(task.tid)? {
            trap::STEP | trap::HARDWARE | trap::BREAKPOINT if self.is_int1(task) => {
                self.software_interrupt(task, &registers);
                self.deliver(task, libc::SIGTRAP)
            }
            trap::STEP | trap::HARDWARE => {
                self.stepped(task, &registers)?;
                match own_steps {
                    true => self.deliver(task, libc::SIGTRAP),
                    false => self.go_after_step(task),
                }
            }
            trap::BREAKPOINT => {
                self.stepped_over_call(task, registers)?;
                self.go(task, 0)
            }
            trap::HANDLER => {
                // The kernel has built the frame of a handler. More signals may come before its first instruction.
                if let Some(injected) = injected {
                    self.leave(task, injected.signal);
                }
                task.handler_began = task.retired;
                hide_blocked_trap(task, &registers)?;
                task.outside = Some(Resume::Handler);
                self.arrive(task, &registers);
                self.go(task, 0)
            }
            trap::KERNEL => {
                self.software_interrupt(task, &registers);
                self.deliver(task, libc::SIGTRAP)
            }
            // Sent by somebody.
            _ => self.sent_trap(task),
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

    /// A software interrupt ran, maybe in the shadow of another instruction; RIP is after it.
    fn software_interrupt(&mut self, task: &mut Task, registers: &Registers) {
        let is_interrupt = |task: &Task| {
            let instruction = task.next().and_then(|next| next.instruction);
            instruction.is_some_and(|i| i.class == Class::SoftwareInterrupt)
        };
        if !is_interrupt(task) {
            let follow = task.next().and_then(|next| next.follow.clone());
            if let Some(follow) = follow {
                self.pass_to(task, follow.ip);
                task.position = Position::User(*follow);
            }
        }
        if let (true, Position::User(next)) = (is_interrupt(task), task.position.clone()) {
            self.write_software_interrupt(task, &next);
        }
        self.arrive(task, registers);
    }

    pub(super) fn write_software_interrupt(&mut self, task: &mut Task, next: &crate::task::Next) {
        self.enter(task, next);
        self.cut(task);
        self.emit(Record {
            length: next.instruction.map_or(0, |i| u16::from(i.length)),
            ip: next.ip,
            extra: u64::from(next.vector),
            ..Record::new(Kind::SoftInt, task.id())
        });
        task.outside = Some(Resume::Other);
    }

    /// A step that ended with the report of a system call: one that was made in a shadow or by a restart.
    fn stepped_over_call(&mut self, task: &mut Task, mut registers: Registers) -> io::Result<()> {
        match task.position.clone() {
            Position::Restart(call) => {
                let next = call.next.clone();
                self.made_again(task, &next);
                self.mend_r11(task, &mut registers)?;
                self.returned(task, &call, &registers)
            }
            Position::User(next) if next.ip != registers.rip => {
                self.pass_to(task, registers.rip);
                if task.outside.is_some() {
                    self.mend_r11(task, &mut registers)?;
                    let changes = task.space.borrow_mut().refresh(task.tid);
                    self.change(task, changes);
                }
                self.arrive(task, &registers);
                Ok(())
            }
            _ => {
                self.arrive(task, &registers);
                Ok(())
            }
        }
    }

    /// SYSCALL under a single step stores the trap flag in R11: the program must not see it.
    fn mend_r11(&mut self, task: &Task, registers: &mut Registers) -> io::Result<()> {
        if registers.r11 & sys::TRAP_FLAG != 0 && registers.rcx == registers.rip {
            registers.r11 &= !sys::TRAP_FLAG;
            sys::set_registers(task.tid, registers)?;
        }
        Ok(())
    }

    /// Another signal than SIGTRAP is about to be delivered.
    pub(super) fn signalled(&mut self, task: &mut Task, signal: i32) -> io::Result<()> {
        let registers = sys::registers(task.tid)?;
        let info = sys::signal_info(task.tid)?;
        let code = info.si_code;
        let injected = task.injected.take();
        match task.position.clone() {
            Position::User(next) => {
                let interrupts = next
                    .instruction
                    .is_some_and(|i| i.class == Class::SoftwareInterrupt);
                if next.ip != registers.rip && interrupts {
                    // INT 4 is a trap: the IP is after it.
                    self.software_interrupt(task, &registers);
                } else if next.ip != registers.rip {
                    self.stepped(task, &registers)?;
                }
                let by_kernel = signal == libc::SIGSEGV && code == trap::KERNEL;
                let no_frame = by_kernel && injected.is_some_and(|injected| injected.caught);
                if let (true, Some(injected)) = (no_frame, injected) {
                    self.leave(task, injected.signal);
                } else if is_fault(signal, code) && !(by_kernel && task.returned) {
                    self.faulted(task, &info);
                }
            }
            Position::Restart(call) if call.next.ip == registers.rip => {
                // It would have been made again, but this signal came first.
                self.arrive(task, &registers);
            }
            _ => {}
        }
        self.deliver_unless_held(task, signal)
    }

    pub(super) fn deliver_unless_held(&mut self, task: &mut Task, signal: i32) -> io::Result<()> {
        if self.detaching.is_none() && self.hold(task, signal)? {
            return self.go(task, 0);
        }
        self.deliver_sent(task, signal)
    }

    /// The instruction at the thread's position did not retire.
    fn faulted(&mut self, task: &mut Task, info: &libc::siginfo_t) {
        let Position::User(next) = task.position.clone() else {
            return;
        };
        self.enter(task, &next);
        self.cut(task);
        self.emit(Record {
            length: next.instruction.map_or(0, |i| u16::from(i.length)),
            ip: next.ip,
            // SAFETY: the kernel's own signals for an instruction have the address.
            target: unsafe { info.si_addr() } as u64,
            extra: u64::from(info.si_signo as u32) | u64::from(info.si_code as u32) << 32,
            ..Record::new(Kind::Fault, task.id())
        });
        task.outside = Some(Resume::Other);
    }

    /// A signal that no instruction of the program made: it may be ignored.
    pub(super) fn deliver_sent(&mut self, task: &mut Task, signal: i32) -> io::Result<()> {
        if signal == libc::SIGTRAP && task.trap_ignored.get() {
            return self.go(task, 0);
        }
        self.deliver(task, signal)
    }

    pub(super) fn deliver(&mut self, task: &mut Task, signal: i32) -> io::Result<()> {
        task.injected = Some(Injected {
            signal,
            caught: crate::procfs::catches(task.tid, signal),
        });
        self.go(task, signal)
    }
}

/// A handler begins: the mask that its frame keeps for the return is the program's, not the one that steps need.
fn hide_blocked_trap(task: &mut Task, registers: &Registers) -> io::Result<()> {
    /// The return address, uc_flags, uc_link, uc_stack and uc_mcontext are before uc_sigmask.
    const MASK: u64 = 8 + 8 + 8 + 24 + 256;
    let at = registers.rsp.wrapping_add(MASK);
    if let (true, Some(mask)) = (task.trap_blocked, memory::read_u64(task.tid, at)) {
        memory::write(task.tid, at, &(mask | sys::TRAP).to_le_bytes())?;
    }
    let blocked = task.trap_blocked && !std::mem::take(&mut task.lets_trap);
    task.trap_blocked = sys::unblock_trap(task.tid)? || blocked;
    Ok(())
}

/// Whether an ordinary instruction retired. The kernel reports the trap of a step before any other SIGTRAP, so that no
/// question about the signal's origin is left.
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

/// Whether the kernel sent the signal because of the instruction.
fn is_fault(signal: i32, code: i32) -> bool {
    const BUS_MCEERR_AO: i32 = 5;
    match signal {
        libc::SIGSEGV | libc::SIGFPE | libc::SIGILL => code > 0,
        libc::SIGBUS => code > 0 && code != BUS_MCEERR_AO,
        _ => false,
    }
}
