//! SIGTRAP that the program blocks, ignores or waits for itself.
//!
//! Steps need the kernel to accept SIGTRAP, so the kernel must not know that the program blocks it; and the kernel
//! drops the ignoring of SIGTRAP at the first step. The tracer therefore does what the kernel would do:
//!
//! * A blocked SIGTRAP stays with the tracer until the program unblocks it. One that was sent to a whole process waits
//!   until any of its threads may take it.
//! * A call that takes a pending signal (sigwait, read from a signalfd) gets the SIGTRAP put into the kernel's queue;
//!   if the call does not take it, the signal comes back by a stop.
//! * An instruction that traps by itself ends a program that blocks the signal: for that step the kernel must know
//!   (`expose_trap`).

use std::cell::Cell;
use std::rc::Rc;
use std::{io, mem, ptr};

use libc::{pid_t, siginfo_t};
use rtit_x86::Class;

use crate::engine::engine_state::Engine;
use crate::task::{NextInstruction, PendingTrap, Position, SystemCall, Task};
use crate::{procfs, ptrace, remote_memory};

impl Engine<'_> {
    /// Tells the kernel that SIGTRAP is blocked, for a step that ends in a trap of the program's own.
    pub(super) fn expose_trap(&self, task: &mut Task) -> io::Result<()> {
        let Position::User(next) = &task.position else {
            return Ok(());
        };
        let traps = |next: &NextInstruction| {
            let interrupts = |class| class == Class::SoftwareInterrupt;
            next.instruction.is_some_and(|i| interrupts(i.class)) && matches!(next.vector, 1 | 3)
        };
        if traps(next) || task.program_steps || next.follow.as_deref().is_some_and(traps) {
            ptrace::block_trap(task.tid)?;
            task.trap_exposed = true;
        }
        Ok(())
    }

    /// Handles a SIGTRAP that was sent.
    pub(super) fn on_sent_trap(&mut self, task: &mut Task) -> io::Result<()> {
        if is_blocked(task) && self.detaching.is_none() && task.trap.is_none_or(|trap| !trap.sent) {
            let info = ptrace::signal_info(task.tid)?;
            if is_of_process(&info) {
                self.redirect_trap(task, info)?;
                return self.resume_task(task, 0);
            }
        }
        self.deliver_unless_deferred(task, libc::SIGTRAP)
    }

    /// Gives a SIGTRAP to a thread that waits in a call and may take it; otherwise it waits for the first that may.
    fn redirect_trap(&mut self, task: &Task, info: siginfo_t) -> io::Result<()> {
        let sleeping = |other: &&mut Task| match &other.position {
            Position::Kernel(call) if other.pid == task.pid && other.trap.is_none() => {
                !call.compat && (!is_blocked(other) || takes_pending_trap(other.tid, call))
            }
            _ => false,
        };
        if let Some(other) = self.tasks.values_mut().find(sleeping) {
            ptrace::requeue_signal(other.pid, other.tid, &info)?;
            other.trap = Some(PendingTrap { info, sent: true });
        } else {
            self.keep_trap_for_process(task.pid, info);
        }
        Ok(())
    }

    /// Defers the SIGTRAP that stopped the thread, if the program blocks it.
    pub(super) fn defer_trap(&mut self, task: &mut Task, info: siginfo_t) -> io::Result<bool> {
        let blocked = is_blocked(task);
        match task.trap {
            Some(trap) if trap.sent => {
                task.trap = None;
                if !blocked {
                    ptrace::set_signal_info(task.tid, &trap.info)?;
                } else if is_of_process(&trap.info) {
                    // No call has taken it.
                    self.keep_trap_for_process(task.pid, trap.info);
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
    pub(super) fn keep_trap_for_process(&mut self, pid: pid_t, info: siginfo_t) {
        if !self.trap_waits(pid) {
            self.traps.push((pid, info));
        }
    }

    /// Returns whether a SIGTRAP waits for any thread of the process.
    pub(super) fn trap_waits(&self, pid: pid_t) -> bool {
        self.traps.iter().any(|&(of, _)| of == pid)
    }

    /// Gives the thread a SIGTRAP that waits for any thread of its process.
    pub(super) fn take_process_trap(&mut self, task: &mut Task) {
        if task.trap.is_some() {
            return;
        }
        if let Some(at) = self.traps.iter().position(|&(of, _)| of == task.pid) {
            let (_, info) = self.traps.swap_remove(at);
            task.trap = Some(PendingTrap { info, sent: false });
        }
    }

    /// Notes a new action for SIGTRAP.
    pub(super) fn on_trap_action(&mut self, task: &mut Task, call: &SystemCall) -> io::Result<()> {
        let [_, new, old, ..] = call.arguments;
        let before = task.trap_ignored.get();
        if new != 0 {
            let ignored = match remote_memory::read_u64(task.tid, new) {
                Some(handler) if new != old => handler == libc::SIG_IGN as u64,
                _ => procfs::ignores_signal(task.tid, libc::SIGTRAP),
            };
            task.trap_ignored.set(ignored);
            if ignored {
                self.forget_traps(task);
            }
        }
        if before && old != 0 {
            remote_memory::write_bytes(task.tid, old, &(libc::SIG_IGN as u64).to_le_bytes())?;
        }
        Ok(())
    }

    /// Drops pending SIGTRAPs, which are ignored from now on.
    fn forget_traps(&mut self, task: &mut Task) {
        let pid = task.pid;
        self.traps.retain(|&(of, _)| of != pid);
        let others = self.tasks.values_mut().filter(|other| other.pid == pid);
        for each in others.chain([task]) {
            each.trap = each.trap.filter(|trap| trap.sent);
        }
    }

    /// Gives the process its own copy of the action when it runs another program.
    pub(super) fn unshare_trap_action(&self, task: &mut Task) {
        task.trap_ignored = Rc::new(Cell::new(task.trap_ignored.get()));
    }
}

/// Hides from the kernel again that SIGTRAP is blocked.
pub(super) fn hide_trap(task: &mut Task) -> io::Result<()> {
    if std::mem::take(&mut task.trap_exposed) {
        ptrace::unblock_trap(task.tid)?;
    }
    Ok(())
}

/// Returns whether the program blocks SIGTRAP, and is in no call that unblocks it.
fn is_blocked(task: &Task) -> bool {
    task.trap_blocked && !task.call_unblocks_trap
}

/// Returns whether it was sent to a process, not to a thread.
pub(super) fn is_of_process(info: &siginfo_t) -> bool {
    info.si_code <= 0 && info.si_code != libc::SI_TKILL
}

/// Descriptors that one call is believed to wait for, at most.
const MOST_FILES: u64 = 4096;

impl Engine<'_> {
    /// Puts the delayed SIGTRAP into the kernel's queue for a call that can take it.
    pub(super) fn offer_trap_to_call(
        &mut self,
        task: &mut Task,
        call: &SystemCall,
    ) -> io::Result<()> {
        task.call_unblocks_trap =
            task.trap_blocked && !call.compat && unblocks_trap_while_waiting(task.tid, call);
        if call.compat || (task.trap.is_none() && !self.trap_waits(task.pid)) {
            return Ok(());
        }
        if task.trap_blocked && !task.call_unblocks_trap && !takes_pending_trap(task.tid, call) {
            return Ok(());
        }
        self.take_process_trap(task);
        if let Some(trap) = &mut task.trap {
            if !trap.sent {
                ptrace::requeue_signal(task.pid, task.tid, &trap.info)?;
                trap.sent = true;
            }
        }
        Ok(())
    }

    /// Checks whether the call has taken the SIGTRAP, and corrects the result of sigpending.
    pub(super) fn check_trap_taken_by_call(
        &mut self,
        task: &mut Task,
        call: &SystemCall,
        result: i64,
    ) -> io::Result<()> {
        if task.trap.is_none() && !self.trap_waits(task.pid) {
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
            if let Some(set) = remote_memory::read_u64(task.tid, at) {
                remote_memory::write_bytes(
                    task.tid,
                    at,
                    &(set | ptrace::SIGTRAP_BIT).to_le_bytes(),
                )?;
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
            remote_memory::write_bytes(tid, at, bytes)
        }
        libc::SYS_read if result > 0 => {
            let all = mem::size_of::<libc::signalfd_siginfo>() as u64;
            let mut each = (0..result as u64 / all).map(|index| at.wrapping_add(index * all));
            let is_trap = |at: &u64| {
                remote_memory::read_u64(tid, *at)
                    .is_some_and(|word| word as u32 == libc::SIGTRAP as u32)
            };
            // Code, process and user: siginfo has padding after the code.
            let who = [&bytes[8..12], &bytes[16..24]].concat();
            each.find(is_trap).map_or(Ok(()), |at| {
                remote_memory::write_bytes(tid, at.wrapping_add(8), &who)
            })
        }
        _ => Ok(()),
    }
}

/// Returns whether the call has a signal mask of its own while it waits, without SIGTRAP.
fn unblocks_trap_while_waiting(tid: pid_t, call: &SystemCall) -> bool {
    let set = match call.number as i64 {
        libc::SYS_rt_sigsuspend => Some(call.arguments[0]),
        libc::SYS_ppoll => Some(call.arguments[3]),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Some(call.arguments[4]),
        // A structure: the address of the mask, and its size.
        libc::SYS_pselect6 if call.arguments[5] != 0 => {
            remote_memory::read_u64(tid, call.arguments[5])
        }
        _ => None,
    };
    let set = set.filter(|&at| at != 0);
    set.and_then(|at| remote_memory::read_u64(tid, at))
        .is_some_and(|set| set & ptrace::SIGTRAP_BIT == 0)
}

/// Returns whether the call takes a pending SIGTRAP, or reports it, before anything else.
pub(super) fn takes_pending_trap(tid: pid_t, call: &SystemCall) -> bool {
    let [first, second, ..] = call.arguments;
    let gives = |fd: u64| procfs::is_signalfd_for(tid, fd as i32, ptrace::SIGTRAP_BIT);
    let bit = |set: u64, fd: u64| {
        let word = remote_memory::read_u64(tid, set.wrapping_add(fd / 64 * 8));
        word.is_some_and(|word| word >> (fd % 64) & 1 == 1)
    };
    match call.number as i64 {
        libc::SYS_rt_sigtimedwait => {
            remote_memory::read_u64(tid, first).is_some_and(|set| set & ptrace::SIGTRAP_BIT != 0)
        }
        libc::SYS_read | libc::SYS_readv => gives(first),
        // struct pollfd: the descriptor, then the events.
        libc::SYS_poll | libc::SYS_ppoll => (0..second.min(MOST_FILES)).any(|index| {
            let entry = remote_memory::read_u64(tid, first.wrapping_add(8 * index));
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
