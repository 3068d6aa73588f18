//! Signals that are handed over later than the kernel would.
//!
//! A step takes as long as a thousand instructions, so that a timer's signal may come again before its handler has been
//! stepped through. Between two of them the thread gets as many instructions as the last handler took. And a SIGTRAP
//! that the program blocks waits here, because the kernel must not know that it is blocked.

use std::io;

use crate::engine::state::Engine;
use crate::engine::traps::is_of_process;
use crate::sys;
use crate::task::{Held, Position, Task};

impl Engine<'_> {
    /// Takes the signal that stopped the thread, if it has to wait.
    pub(super) fn hold(&mut self, task: &mut Task, signal: i32) -> io::Result<bool> {
        let info = sys::signal_info(task.tid)?;
        if let Some(held) = task.held {
            if held.info.si_signo != signal {
                return Ok(false);
            }
            if held.sent && held.until.is_none() && task.trap_blocked {
                // No call has taken it.
                task.held = if is_of_process(&held.info) {
                    self.let_wait(task.pid, held.info);
                    None
                } else {
                    Some(Held {
                        sent: false,
                        ..held
                    })
                };
                return Ok(true);
            }
            if held.sent {
                task.held = None;
                sys::set_signal_info(task.tid, &held.info)?;
                return Ok(false);
            }
            // Two of the kind are one.
            return Ok(true);
        }
        let until = if signal == libc::SIGTRAP {
            None
        } else {
            Some(task.even)
        };
        let early = match until {
            None => task.trap_blocked,
            Some(until) => {
                let in_user_code = matches!(task.position, Position::User(_));
                in_user_code && is_of_timer(&info) && task.retired < until
            }
        };
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
        let due = |held: &Held| match held.until {
            // It has a stop of its own.
            _ if held.sent => false,
            None => !task.trap_blocked,
            Some(until) => task.retired >= until,
        };
        match task.held {
            Some(held) if self.detaching.is_none() && due(&held) => {
                task.held = None;
                sys::set_signal_info(task.tid, &held.info)?;
                self.deliver_sent(task, held.info.si_signo)
            }
            _ => self.go(task, 0),
        }
    }

    /// The signal to send into a system call that begins, because it must not wait for the call's end.
    pub(super) fn send_held(&self, task: &mut Task) -> i32 {
        match &mut task.held {
            Some(held) if held.until.is_some() && self.detaching.is_none() => {
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
