//! REP instructions in one go: a hardware breakpoint after the instruction instead of a stop at each iteration.

use std::io;

use libc::pid_t;

use crate::engine::state::Engine;
use crate::sys::{self, Go, Status};
use crate::task::{Next, Task};

/// One iteration is one step. Setting and clearing the registers costs a quarter of a second one.
const WORTHWHILE: u64 = 2;
const DR7: usize = 7;
/// DR7.L0: breakpoint 0 on execution.
const ENABLE: u64 = 1;

impl Engine<'_> {
    /// How the thread goes on at `next`: freely to a breakpoint after a long REP instruction, otherwise by a step.
    pub(super) fn arm(&mut self, task: &mut Task, next: &Next) -> Go {
        let Some(instruction) = next.instruction else {
            return Go::Step;
        };
        let worthwhile = instruction.repeats && next.count >= WORTHWHILE;
        if !worthwhile || !self.breakpoints || task.own_steps {
            return Go::Step;
        }
        let set = sys::set_debug_register(task.tid, 0, instruction.next())
            .and_then(|()| sys::set_debug_register(task.tid, DR7, ENABLE));
        match set {
            Ok(()) => {
                task.armed = true;
                Go::Free
            }
            Err(_) => {
                self.breakpoints = false;
                Go::Step
            }
        }
    }

    pub(super) fn disarm(&mut self, task: &mut Task) -> io::Result<()> {
        task.armed = false;
        sys::set_debug_register(task.tid, DR7, 0)
    }
}

/// Whether hardware breakpoints work here: some virtual machines accept them and never stop.
///
/// A child stops itself; a breakpoint at the instruction where it goes on must stop it again before it exits.
pub(super) fn work() -> bool {
    // SAFETY: the child makes system calls only.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return false;
    }
    if pid == 0 {
        // SAFETY: as above. If nobody traces it, the parent's kill ends the stop.
        unsafe {
            libc::kill(libc::getpid(), libc::SIGSTOP);
            libc::_exit(0);
        }
    }
    let works = try_child(pid).unwrap_or(false);
    // SAFETY: the child has not been waited for to its end.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    while let Ok(Some((_, status))) = sys::wait(pid) {
        if matches!(status, Status::Ended(_)) {
            break;
        }
        // It stops once more on its way out.
        let _ = sys::resume(pid, Go::Free, 0);
    }
    works
}

fn try_child(pid: pid_t) -> io::Result<bool> {
    sys::seize(pid)?;
    let mut set = false;
    while let Some((_, status)) = sys::wait(pid)? {
        match status {
            Status::Ended(_) | Status::Event(libc::PTRACE_EVENT_EXIT, _) => break,
            Status::Signal(libc::SIGTRAP) => {
                return Ok(set && sys::signal_code(pid)? == sys::trap::HARDWARE);
            }
            Status::Signal(libc::SIGSTOP)
            | Status::Event(libc::PTRACE_EVENT_STOP, libc::SIGSTOP)
                if !set =>
            {
                let here = sys::registers(pid)?.rip;
                sys::set_debug_register(pid, 0, here)?;
                sys::set_debug_register(pid, DR7, ENABLE)?;
                set = true;
            }
            _ => {}
        }
        sys::resume(pid, Go::Free, 0)?;
    }
    Ok(false)
}
