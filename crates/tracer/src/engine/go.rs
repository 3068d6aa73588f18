//! How a thread goes on after a stop.

use std::io;

use rtit_x86::Class;

use crate::engine::ignoring::is_forgotten;
use crate::engine::state::Engine;
use crate::sys::{self, Go};
use crate::task::{Next, Position, Task};

impl Engine<'_> {
    /// Lets the thread go on and hands it `signal` unless 0.
    pub(super) fn go(&mut self, task: &mut Task, signal: i32) -> io::Result<()> {
        if self.detaching.is_some() && !matches!(task.position, Position::Exiting if task.traced) {
            if !is_forgotten(task) {
                return self.detach(task, signal);
            }
            if signal == 0 && sys::trap_is_pending(task.tid)? {
                // The trap of its step first: a thread that is told to stop does that before any trap, again and again.
                return sys::resume(task.tid, Go::Free, 0);
            }
            // Its next stop is one at which that can be mended.
            sys::interrupt(task.tid)?;
        }
        // A call under way may have to be mended at its end.
        let in_user = matches!(task.position, Position::User(_));
        if task.traced && in_user && self.shared.released() {
            self.release(task);
        }
        if task.traced && task.trap_blocked && signal == 0 {
            self.expose_trap(task)?;
        }
        let caught = signal != 0 && task.injected.is_some_and(|injected| injected.caught);
        let how = match &task.position {
            _ if !task.traced => Go::Free,
            Position::Exiting => Go::Free,
            Position::New | Position::Attaching => Go::Step,
            // A handler is entered under a step, which shows its first instruction; a call that is made again must be
            // seen at its entry.
            Position::Kernel(_) | Position::Restart(_) if caught => Go::Step,
            Position::Kernel(_) | Position::Restart(_) => Go::Call,
            Position::User(next) if !caught && enters_kernel(next) => Go::Call,
            Position::User(next) if signal == 0 => {
                let next = next.clone();
                self.arm(task, &next)
            }
            Position::User(_) => Go::Step,
        };
        sys::resume(task.tid, how, signal)
    }
}

/// A step over a system call would leave the trap flag in R11, and show the call only when it ends.
fn enters_kernel(next: &Next) -> bool {
    match next.instruction.map(|instruction| instruction.class) {
        Some(Class::Syscall) => true,
        Some(Class::SoftwareInterrupt) => next.vector == 0x80,
        _ => false,
    }
}
