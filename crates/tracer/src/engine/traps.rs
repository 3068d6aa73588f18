//! SIGTRAP where the program blocks or ignores it, which steps do not let the kernel know.
//!
//! The kernel forgets at the first trap of a step that the program ignores the signal: what it would then do is done
//! here. An instruction that traps by itself ends a program that blocks the signal: for that one the kernel must know.
//! A signal that was sent to a whole process waits here until one of its threads may have it.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use libc::{pid_t, siginfo_t};
use rtit_x86::Class;

use crate::engine::state::Engine;
use crate::engine::waiting::takes;
use crate::sys;
use crate::task::{Call, Next, Position, Task, WaitingTrap};
use crate::{memory, procfs};

impl Engine<'_> {
    /// The thread goes on by a step: if that ends in a trap of the program's own, the kernel gets to know that it is
    /// blocked.
    pub(super) fn expose_trap(&self, task: &mut Task) -> io::Result<()> {
        let Position::User(next) = &task.position else {
            return Ok(());
        };
        let traps = |next: &Next| {
            let interrupts = |class| class == Class::SoftwareInterrupt;
            next.instruction.is_some_and(|i| interrupts(i.class)) && matches!(next.vector, 1 | 3)
        };
        if traps(next) || task.own_steps || next.follow.as_deref().is_some_and(traps) {
            sys::block_trap(task.tid)?;
            task.trap_exposed = true;
        }
        Ok(())
    }

    /// A SIGTRAP that somebody sent has stopped the thread.
    pub(super) fn sent_trap(&mut self, task: &mut Task) -> io::Result<()> {
        if is_blocked(task) && self.detaching.is_none() && task.trap.is_none_or(|trap| !trap.sent) {
            let info = sys::signal_info(task.tid)?;
            if is_of_process(&info) {
                self.pass_on(task, info)?;
                return self.go(task, 0);
            }
        }
        self.deliver_unless_held(task, libc::SIGTRAP)
    }

    /// A thread that waits in a call gets it, if it may have it; else it waits for the first that may.
    fn pass_on(&mut self, task: &Task, info: siginfo_t) -> io::Result<()> {
        let sleeping = |other: &&mut Task| match &other.position {
            Position::Kernel(call) if other.pid == task.pid && other.trap.is_none() => {
                !call.compat && (!is_blocked(other) || takes(other.tid, call))
            }
            _ => false,
        };
        if let Some(other) = self.tasks.values_mut().find(sleeping) {
            sys::queue(other.pid, other.tid, &info)?;
            other.trap = Some(WaitingTrap { info, sent: true });
        } else {
            self.let_wait(task.pid, info);
        }
        Ok(())
    }

    /// Takes the SIGTRAP that stopped the thread, if it has to wait: the kernel must not know that it is blocked.
    pub(super) fn hold_trap(&mut self, task: &mut Task, info: siginfo_t) -> io::Result<bool> {
        let blocked = is_blocked(task);
        match task.trap {
            Some(trap) if trap.sent => {
                task.trap = None;
                if !blocked {
                    sys::set_signal_info(task.tid, &trap.info)?;
                } else if is_of_process(&trap.info) {
                    // No call has taken it.
                    self.let_wait(task.pid, trap.info);
                } else {
                    task.trap = Some(WaitingTrap {
                        sent: false,
                        ..trap
                    });
                }
                Ok(blocked)
            }
            // Two are one.
            Some(_) => Ok(true),
            None => {
                task.trap = blocked.then_some(WaitingTrap { info, sent: false });
                Ok(blocked)
            }
        }
    }

    /// Any thread of the process may have it. Two are one.
    pub(super) fn let_wait(&mut self, pid: pid_t, info: siginfo_t) {
        if !self.trap_waits(pid) {
            self.traps.push((pid, info));
        }
    }

    /// Whether one waits for any thread of the process.
    pub(super) fn trap_waits(&self, pid: pid_t) -> bool {
        self.traps.iter().any(|&(of, _)| of == pid)
    }

    /// The thread may have the one that waits for any of its process.
    pub(super) fn take_trap(&mut self, task: &mut Task) {
        if task.trap.is_some() {
            return;
        }
        if let Some(at) = self.traps.iter().position(|&(of, _)| of == task.pid) {
            let (_, info) = self.traps.swap_remove(at);
            task.trap = Some(WaitingTrap { info, sent: false });
        }
    }

    /// rt_sigaction of SIGTRAP has succeeded.
    pub(super) fn trap_action(&mut self, task: &mut Task, call: &Call) -> io::Result<()> {
        let [_, new, old, ..] = call.arguments;
        let before = task.trap_ignored.get();
        if new != 0 {
            let ignored = match memory::read_u64(task.tid, new) {
                Some(handler) if new != old => handler == libc::SIG_IGN as u64,
                _ => procfs::ignores(task.tid, libc::SIGTRAP),
            };
            task.trap_ignored.set(ignored);
            if ignored {
                self.forget_traps(task);
            }
        }
        if before && old != 0 {
            memory::write(task.tid, old, &(libc::SIG_IGN as u64).to_le_bytes())?;
        }
        Ok(())
    }

    /// A signal that is ignored from now on does not wait any more.
    fn forget_traps(&mut self, task: &mut Task) {
        let pid = task.pid;
        self.traps.retain(|&(of, _)| of != pid);
        let others = self.tasks.values_mut().filter(|other| other.pid == pid);
        for each in others.chain([task]) {
            each.trap = each.trap.filter(|trap| trap.sent);
        }
    }

    /// The process runs another program, with what it ignores.
    pub(super) fn own_trap_action(&self, task: &mut Task) {
        task.trap_ignored = Rc::new(Cell::new(task.trap_ignored.get()));
    }
}

/// A stop: the kernel knows nothing of it again.
pub(super) fn hide_trap(task: &mut Task) -> io::Result<()> {
    if std::mem::take(&mut task.trap_exposed) {
        sys::unblock_trap(task.tid)?;
    }
    Ok(())
}

/// The program blocks SIGTRAP, and is in no call that lets it in.
fn is_blocked(task: &Task) -> bool {
    task.trap_blocked && !task.lets_trap
}

/// Sent to a process, not to one of its threads.
pub(super) fn is_of_process(info: &siginfo_t) -> bool {
    info.si_code <= 0 && info.si_code != libc::SI_TKILL
}
