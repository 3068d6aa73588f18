//! Signals that are handed over later than the kernel would.
//!
//! A step takes as long as a thousand instructions, so that a timer's signal may come again before its handler has been
//! stepped through. Between two of them the thread gets as many instructions as the last handler took. A SIGTRAP that
//! the program blocks waits beside (`traps`).

use std::io;

use crate::engine::state::Engine;
use crate::sys;
use crate::task::{Held, Position, Task};

impl Engine<'_> {
    /// Takes the signal that stopped the thread, if it has to wait.
    pub(super) fn hold(&mut self, task: &mut Task, signal: i32) -> io::Result<bool> {
        let info = sys::signal_info(task.tid)?;
        if signal == libc::SIGTRAP {
            return self.hold_trap(task, info);
        }
        if let Some(held) = task.held {
            if held.info.si_signo != signal {
                return Ok(false);
            }
            if held.sent {
                task.held = None;
                sys::set_signal_info(task.tid, &held.info)?;
                return Ok(false);
            }
            // Two of the kind are one.
            return Ok(true);
        }
        let until = task.even;
        let in_user_code = matches!(task.position, Position::User(_));
        let early = in_user_code && is_of_timer(&info) && task.retired < until;
        if early {
            task.held = Some(Held {
                info,
                until,
                sent: false,
            });
        }
        Ok(early)
    }

    /// Lets the thread go on after a step, with the signal that has waited long enough.
    pub(super) fn go_after_step(&mut self, task: &mut Task) -> io::Result<()> {
        if !self.traps.is_empty() && !task.trap_blocked {
            self.take_trap(task);
        }
        if self.detaching.is_some() {
            return self.go(task, 0);
        }
        // What was sent has a stop of its own.
        let waited = if task.trap.is_some_and(|trap| !trap.sent) && !task.trap_blocked {
            task.trap.take().map(|trap| trap.info)
        } else if task
            .held
            .is_some_and(|held| !held.sent && task.retired >= held.until)
        {
            task.held.take().map(|held| held.info)
        } else {
            None
        };
        match waited {
            Some(info) => {
                sys::set_signal_info(task.tid, &info)?;
                self.deliver_sent(task, info.si_signo)
            }
            None => self.go(task, 0),
        }
    }

    /// The signal to send into a system call that begins, because it must not wait for the call's end.
    pub(super) fn send_held(&self, task: &mut Task) -> i32 {
        match &mut task.held {
            Some(held) if self.detaching.is_none() => {
                held.sent = true;
                held.info.si_signo
            }
            _ => 0,
        }
    }
}

/// setitimer's signals come from the kernel, timer_create's say that they are of a timer. Real-time signals are counted
/// and never wait.
fn is_of_timer(info: &libc::siginfo_t) -> bool {
    const KERNEL: i32 = 0x80;
    const TIMER: i32 = -2;
    let of_interval = matches!(
        info.si_signo,
        libc::SIGALRM | libc::SIGVTALRM | libc::SIGPROF
    );
    info.si_signo < 32 && (info.si_code == TIMER || info.si_code == KERNEL && of_interval)
}
