//! The loop: waits for a stop, and who handles which.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use libc::pid_t;

use crate::engine::ignoring::is_forgotten;
use crate::engine::state::Engine;
use crate::engine::traps::hide_trap;
use crate::event::{Kind, Record, KILLED};
use crate::space::Space;
use crate::sys::{self, Go, Status};
use crate::task::{Position, Task};

impl Engine<'_> {
    /// From the first process's first instruction to the last one's end.
    pub(super) fn run(&mut self) {
        let root = self.root;
        let mut task = Task::new(root, root, Rc::new(RefCell::new(Space::default())));
        self.announce(&mut task, 0, 0, false);
        let result = self.began(&mut task);
        self.tasks.insert(root, task);
        self.settle_errors(root, result);
        loop {
            if self.shared.killed() {
                self.kill_everything();
            }
            match sys::wait(-1) {
                Ok(Some((tid, status))) => self.on_status(tid, status),
                Ok(None) => break,
                Err(error) => {
                    self.warn(root, &format!("waitpid: {error}; the trace ends here"));
                    self.kill_everything();
                    break;
                }
            }
            self.count();
        }
    }

    pub(super) fn count(&self) {
        self.shared.stops.fetch_add(1, Ordering::Relaxed);
        self.shared.retired.store(self.clock, Ordering::Relaxed);
    }

    pub(super) fn finish(&mut self) {
        let root = self.root;
        if let Some(text) = self.truth.finish() {
            self.warn(root, &text);
        }
        self.emit(Record {
            ip: self.status as u32 as u64,
            target: self.window.phase as u64,
            flags: if self.killing { KILLED } else { 0 },
            ..Record::new(Kind::End, root as u32)
        });
    }

    pub(super) fn on_status(&mut self, tid: pid_t, status: Status) {
        let Some(mut task) = self.tasks.remove(&tid) else {
            self.early.entry(tid).or_default().push(status);
            return;
        };
        if let Status::Ended(raw) = status {
            self.ended(task, raw);
            return;
        }
        let result = self.on_stop(&mut task, status);
        if !task.detached {
            self.tasks.insert(tid, task);
        }
        self.settle_errors(tid, result);
        self.on_newborn();
    }

    /// Handles what threads reported before they were known.
    pub(super) fn on_newborn(&mut self) {
        while let Some(born) = self.newborn.pop() {
            for status in self.early.remove(&born).unwrap_or_default() {
                self.on_status(born, status);
            }
        }
    }

    /// A thread that was killed answers ESRCH to everything; its end is reported later.
    pub(super) fn settle_errors(&mut self, tid: pid_t, result: io::Result<()>) {
        if let Err(error) = result {
            if error.raw_os_error() != Some(libc::ESRCH) {
                let end = match self.bell {
                    Some(_) => "the trace ends here",
                    None => "the program is killed",
                };
                self.warn(tid, &format!("ptrace: {error}; {end}"));
                self.shared.kill();
            }
        }
    }

    fn on_stop(&mut self, task: &mut Task, status: Status) -> io::Result<()> {
        if task.armed {
            self.disarm(task)?;
        }
        hide_trap(task)?;
        if matches!(task.position, Position::Attaching) {
            self.first_stop(task, status)?;
        }
        match status {
            Status::Event(libc::PTRACE_EVENT_EXEC, _) => self.executed(task),
            Status::Event(libc::PTRACE_EVENT_EXIT, _) => self.exiting(task),
            Status::Event(
                libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK,
                _,
            ) => {
                self.created(task)?;
                self.go(task, 0)
            }
            Status::Event(libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => {
                if matches!(task.position, Position::New) {
                    self.began_thread(task)?;
                }
                if self.detaching.is_some() {
                    self.ignore_again(task)?;
                }
                self.go(task, 0)
            }
            Status::Event(libc::PTRACE_EVENT_STOP, signal) => {
                self.leave(task, signal);
                match self.detaching {
                    Some(_) => {
                        self.ignore_again(task)?;
                        self.detach(task, 0)
                    }
                    None => sys::resume(task.tid, Go::Listen, 0),
                }
            }
            Status::Signal(libc::SIGTRAP) if !task.traced && is_forgotten(task) => {
                self.trapped_untraced(task)
            }
            Status::Signal(signal) if !task.traced => self.go(task, signal),
            Status::Event(..) => self.go(task, 0),
            Status::Call if !task.traced => self.go(task, 0),
            Status::Call => self.call_stop(task),
            Status::Signal(libc::SIGTRAP) => self.trapped(task),
            Status::Signal(signal) => self.signalled(task, signal),
            Status::Ended(_) => Ok(()),
        }
    }

    fn kill_everything(&mut self) {
        if self.killing && self.early.is_empty() {
            return;
        }
        self.killing = true;
        self.shared.kill();
        for (&tid, statuses) in &self.early {
            if !statuses
                .iter()
                .any(|status| matches!(status, Status::Ended(_)))
            {
                // SAFETY: no pointers. The thread has not been waited for, so that the number is its own.
                unsafe { libc::kill(tid, libc::SIGKILL) };
            }
        }
    }
}
