//! The tracer's loop: it waits for a stop of any thread, handles the stop, and resumes the thread.
//!
//! Each thread has a [`Position`]: the instruction that it executes next in user code, the system call that it is in,
//! or a state at its start or end. A stop shows how far the thread came from there. `on_stop` selects the handler:
//!
//! | stop | handler |
//! |---|---|
//! | SIGTRAP: a step, a breakpoint, a sent signal | `signal_stops`, which uses `instruction_steps`; `sigtrap` |
//! | other signals | `signal_stops` |
//! | entry and exit of a system call | `syscalls` |
//! | new thread, exec, exit | `threads_processes` |
//! | first and last stop of attached programs | `attach_detach`, `ignored_sigtrap` |
//!
//! Handlers account for the instructions that have retired (`instruction_steps`), write events (`event_output`), act at
//! the edges of the recording window (`recording_window`), and set the new position. They end with `resume_task`, which
//! decides how the thread continues: by one step in user code, up to the next entry or exit around a system call, or
//! freely where nothing is traced.
//!
//! Invariants: while a stop is handled, its task is taken out of `tasks`. An event that brings user code back into
//! context is written only when an instruction has retired. A new thread may stop before its parent reports it; such
//! stops wait in `early`.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use libc::pid_t;
use rtit_events::{flag, EventKind, Record};
use rtit_x86::Class;

use crate::address_space::AddressSpace;
use crate::engine::engine_state::Engine;
use crate::engine::ignored_sigtrap::is_ignore_lost;
use crate::engine::sigtrap::hide_trap;
use crate::ptrace::{self, ResumeMode, StopStatus};
use crate::task::{NextInstruction, Position, Task};

impl Engine<'_> {
    /// Traces from the first instruction of the first process to the end of the last one.
    pub(super) fn run_loop(&mut self) {
        let root = self.root;
        let mut task = Task::new(root, root, Rc::new(RefCell::new(AddressSpace::default())));
        self.announce_thread(&mut task, 0, 0, false);
        let result = self.begin_first_program(&mut task);
        self.tasks.insert(root, task);
        self.handle_error(root, result);
        loop {
            if self.shared.is_killed() {
                self.kill_everything();
            }
            match ptrace::wait_for_stop(-1) {
                Ok(Some((tid, status))) => self.on_status(tid, status),
                Ok(None) => break,
                Err(error) => {
                    self.warn(root, &format!("waitpid: {error}; the trace ends here"));
                    self.kill_everything();
                    break;
                }
            }
            self.publish_counts();
        }
    }

    pub(super) fn publish_counts(&self) {
        self.shared.stops.fetch_add(1, Ordering::Relaxed);
        self.shared.retired.store(self.clock, Ordering::Relaxed);
    }

    pub(super) fn finish_trace(&mut self) {
        let root = self.root;
        if let Some(text) = self.truth.finish() {
            self.warn(root, &text);
        }
        self.emit_record(Record {
            ip: self.status as u32 as u64,
            target: self.window.phase as u64,
            flags: if self.killing { flag::END_KILLED } else { 0 },
            ..Record::new(EventKind::End, root as u32)
        });
    }

    pub(super) fn on_status(&mut self, tid: pid_t, status: StopStatus) {
        let Some(mut task) = self.tasks.remove(&tid) else {
            self.early.entry(tid).or_default().push(status);
            return;
        };
        if let StopStatus::Ended(raw) = status {
            self.on_ended(task, raw);
            return;
        }
        let result = self.on_stop(&mut task, status);
        if !task.detached {
            self.tasks.insert(tid, task);
        }
        self.handle_error(tid, result);
        self.handle_early_stops();
    }

    /// Handles the early stops of threads that have just been reported.
    pub(super) fn handle_early_stops(&mut self) {
        while let Some(born) = self.newborn.pop() {
            for status in self.early.remove(&born).unwrap_or_default() {
                self.on_status(born, status);
            }
        }
    }

    /// Handles the error of a stop. A killed thread answers ESRCH to everything; its end is reported later.
    pub(super) fn handle_error(&mut self, tid: pid_t, result: io::Result<()>) {
        if let Err(error) = result {
            if error.raw_os_error() != Some(libc::ESRCH) {
                let end = match self.control_watcher {
                    Some(_) => "the trace ends here",
                    None => "the program is killed",
                };
                self.warn(tid, &format!("ptrace: {error}; {end}"));
                self.shared.kill_all();
            }
        }
    }

    fn on_stop(&mut self, task: &mut Task, status: StopStatus) -> io::Result<()> {
        if task.breakpoint_set {
            self.clear_breakpoint(task)?;
        }
        hide_trap(task)?;
        if matches!(task.position, Position::Attaching) {
            self.on_first_stop(task, status)?;
        }
        match status {
            StopStatus::Event(libc::PTRACE_EVENT_EXEC, _) => self.on_exec(task),
            StopStatus::Event(libc::PTRACE_EVENT_EXIT, _) => self.on_exit_stop(task),
            StopStatus::Event(
                libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK,
                _,
            ) => {
                self.on_new_thread(task)?;
                self.resume_task(task, 0)
            }
            StopStatus::Event(libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => {
                if matches!(task.position, Position::New) {
                    self.begin_thread(task)?;
                }
                if self.detaching.is_some() {
                    self.ignore_again(task)?;
                }
                self.resume_task(task, 0)
            }
            StopStatus::Event(libc::PTRACE_EVENT_STOP, signal) => {
                self.leave_context(task, signal);
                match self.detaching {
                    Some(_) => {
                        self.ignore_again(task)?;
                        self.detach_task(task, 0)
                    }
                    None => ptrace::resume_thread(task.tid, ResumeMode::Listen, 0),
                }
            }
            StopStatus::Signal(libc::SIGTRAP) if !task.traced && is_ignore_lost(task) => {
                self.on_untraced_sigtrap(task)
            }
            StopStatus::Signal(signal) if !task.traced => self.resume_task(task, signal),
            StopStatus::Event(..) => self.resume_task(task, 0),
            StopStatus::Syscall if !task.traced => self.resume_task(task, 0),
            StopStatus::Syscall => self.on_syscall_stop(task),
            StopStatus::Signal(libc::SIGTRAP) => self.on_sigtrap(task),
            StopStatus::Signal(signal) => self.on_signal(task, signal),
            StopStatus::Ended(_) => Ok(()),
        }
    }

    fn kill_everything(&mut self) {
        if self.killing && self.early.is_empty() {
            return;
        }
        self.killing = true;
        self.shared.kill_all();
        for (&tid, statuses) in &self.early {
            if !statuses
                .iter()
                .any(|status| matches!(status, StopStatus::Ended(_)))
            {
                // SAFETY: no pointers. The thread has not been waited for, so that the number is its own.
                unsafe { libc::kill(tid, libc::SIGKILL) };
            }
        }
    }
}

impl Engine<'_> {
    /// Resumes the thread and delivers `signal` unless 0.
    pub(super) fn resume_task(&mut self, task: &mut Task, signal: i32) -> io::Result<()> {
        if self.detaching.is_some() && !matches!(task.position, Position::Exiting if task.traced) {
            if !is_ignore_lost(task) {
                return self.detach_task(task, signal);
            }
            if signal == 0 && ptrace::trap_is_pending(task.tid)? {
                // First the trap of its step: a thread that has been told to stop does so before any trap, again and
                // again.
                return ptrace::resume_thread(task.tid, ResumeMode::Free, 0);
            }
            // At its next stop the ignoring can be restored.
            ptrace::interrupt_thread(task.tid)?;
        }
        // The end of a current call may need corrections.
        let in_user = matches!(task.position, Position::User(_));
        if task.traced && in_user && self.shared.is_released() {
            self.release_task(task);
        }
        if task.traced && task.trap_blocked && signal == 0 {
            self.expose_trap(task)?;
        }
        let caught = signal != 0 && task.delivered.is_some_and(|injected| injected.caught);
        let how = match &task.position {
            _ if !task.traced => ResumeMode::Free,
            Position::Exiting => ResumeMode::Free,
            Position::New | Position::Attaching => ResumeMode::Step,
            // A step shows the first instruction of a handler; the entry of a repeated call must be seen.
            Position::Kernel(_) | Position::Restart(_) if caught => ResumeMode::Step,
            Position::Kernel(_) | Position::Restart(_) => ResumeMode::UntilSyscall,
            Position::User(next) if !caught && enters_kernel(next) => ResumeMode::UntilSyscall,
            Position::User(next) if signal == 0 => {
                let next = next.clone();
                self.choose_resume_mode(task, &next)
            }
            Position::User(_) => ResumeMode::Step,
        };
        ptrace::resume_thread(task.tid, how, signal)
    }
}

/// Returns whether the instruction enters the kernel. A step over it would leave the trap flag in R11, and show the
/// call only at its end.
fn enters_kernel(next: &NextInstruction) -> bool {
    match next.instruction.map(|instruction| instruction.class) {
        Some(Class::Syscall) => true,
        Some(Class::SoftwareInterrupt) => next.vector == 0x80,
        _ => false,
    }
}
