//! Letting go of programs that were attached to: each thread at its next stop, as if nobody had traced it.

use std::io;
use std::time::{Duration, Instant};

use crate::engine::state::Engine;
use crate::event::DETACHED;
use crate::sys::{self, Go, Waited};
use crate::task::{Position, Task};

/// A thread that the kernel keeps from stopping (it waits for the child of a vfork, for a disk) is left after this time.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_micros(200);

impl Engine<'_> {
    /// Follows threads that were attached to until they have ended or have been let go.
    pub(super) fn run_attached(&mut self) {
        while !self.tasks.is_empty() {
            if self.shared.killed() {
                self.begin_detaching();
            }
            let found = match self.detaching {
                Some(since) => {
                    if self.may_leave(since) {
                        break;
                    }
                    sys::poll()
                }
                None => sys::wait(-1).map(|found| match found {
                    Some((tid, status)) => Waited::Status(tid, status),
                    None => Waited::Nobody,
                }),
            };
            match found {
                Ok(Waited::Status(tid, _)) if Some(tid) == self.bell => self.begin_detaching(),
                Ok(Waited::Status(tid, status)) => {
                    self.on_status(tid, status);
                    self.count();
                }
                Ok(Waited::Nothing) => std::thread::sleep(PAUSE),
                Ok(Waited::Nobody) | Err(_) => break,
            }
        }
        // The kernel lets go of the rest when this process ends; none of them is under a step.
        for (_, mut task) in std::mem::take(&mut self.tasks) {
            self.end_here(&mut task);
        }
    }

    /// Every thread has to stop once more.
    fn begin_detaching(&mut self) {
        if self.detaching.is_some() {
            return;
        }
        self.detaching = Some(Instant::now());
        for &tid in self.tasks.keys() {
            // It may have ended.
            let _ = sys::interrupt(tid);
        }
    }

    /// Whether nothing is lost by not waiting longer. A thread under a step is always waited for.
    fn may_leave(&self, since: Instant) -> bool {
        let mut left = self.tasks.values();
        let late = since.elapsed() >= PATIENCE;
        left.all(|task| match task.position {
            Position::Exiting => task.traced || late,
            Position::Kernel(_) | Position::Restart(_) | Position::Attaching => late,
            Position::New | Position::User(_) => false,
        })
    }

    /// Lets a stopped thread go and hands it `signal` unless 0.
    pub(super) fn detach(&mut self, task: &mut Task, signal: i32) -> io::Result<()> {
        if signal == 0 && sys::trap_is_pending(task.tid)? {
            // Its step has ended, and the trap is what the thread stops for next, before it runs.
            return sys::resume(task.tid, Go::Free, 0);
        }
        self.give_back(task)?;
        self.end_here(task);
        task.detached = true;
        if task.tid == task.pid {
            self.shared.remove(task.pid);
        }
        sys::detach(task.tid, signal)
    }

    /// The kernel gets to know what was kept from it: that SIGTRAP is blocked, and a signal that waits.
    pub(super) fn give_back(&mut self, task: &mut Task) -> io::Result<()> {
        if std::mem::take(&mut task.trap_blocked) {
            sys::block_trap(task.tid)?;
        }
        self.take_trap(task);
        let trap = task.trap.take().map(|trap| trap.info);
        let held = task.held.take().map(|held| held.info);
        for info in trap.into_iter().chain(held) {
            sys::send(task.pid, task.tid, info.si_signo)?;
        }
        Ok(())
    }

    fn end_here(&mut self, task: &mut Task) {
        self.leave(task, 0);
        self.end_with(task, 0, DETACHED);
    }
}
