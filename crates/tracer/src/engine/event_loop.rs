//! The tracer's loop: it waits for a stop of any thread, handles the stop, and resumes the thread.
//!
//! Each thread has a [`TaskPosition`]: the instruction that it executes next in user code, the system call that it is
//! in, or a state at its start or end. A stop shows how far the thread came from there. `on_stop` selects the handler:
//!
//! | stop | handler |
//! |---|---|
//! | SIGTRAP: a step, a breakpoint, a sent signal | `signal_stops`, which uses `instruction_steps` |
//! | other signals | `signal_stops` |
//! | entry and exit of a system call | `syscalls` |
//! | new thread, exec, exit | `threads_processes` |
//! | first and last stop of attached programs | `attach_detach` |
//!
//! Handlers account for the instructions that have retired (`instruction_steps`), write events, act at the edges of the
//! recording window, and set the new position. They end with `resume_task`, which decides how the thread continues: by
//! one step in user code, up to the next entry or exit around a system call, or freely where nothing is traced.
//!
//! Invariants: while a stop is handled, its task is taken out of `tasks`. An event that brings user code back into
//! context is written only when an instruction has retired. A new thread may stop before its parent reports it; such
//! stops wait in `early`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use libc::pid_t;
use rtit_events::code::CodeChange;
use rtit_events::{flag, EventKind, Record, ResumeReason};
use rtit_x86::InstructionClass;

use crate::address_space::AddressSpace;
use crate::engine::attach_detach::is_ignored_sigtrap_lost;
use crate::engine::signal_stops::hide_blocked_sigtrap;
use crate::event_stream::TracerState;
use crate::ptrace::{self, ResumeMode, StopStatus};
use crate::task::{NextInstruction, TaskPosition, TracedTask};
use crate::tracer::WindowEdge;
use crate::truth_output::TruthOutput;

pub(super) struct TracingEngine<'a> {
    pub(super) shared: &'a TracerState,
    pub(super) truth: TruthOutput,
    /// All threads that have not ended, except the one with the stop that is being handled.
    pub(super) tasks: HashMap<pid_t, TracedTask>,
    /// Stops of threads that their parent has not reported yet.
    pub(super) early: HashMap<pid_t, Vec<StopStatus>>,
    /// Threads that have just been reported.
    pub(super) newborn: Vec<pid_t>,
    /// SIGTRAPs sent to a process, until one of its threads may take them.
    pub(super) traps: Vec<(pid_t, libc::siginfo_t)>,
    /// Instructions retired by all threads.
    pub(super) clock: u64,
    pub(super) window: RecordingWindow,
    pub(super) root: pid_t,
    /// Wait status of the first process.
    pub(super) status: i32,
    /// The CPUs that the program would use without a tracer, if the tracer has pinned it.
    pub(super) affinity: Option<Vec<u8>>,
    pub(super) breakpoints: bool,
    /// Everything has been killed.
    pub(super) killing: bool,
    /// For attached programs: the child that exits when the tracer must detach.
    pub(super) control_watcher: Option<pid_t>,
    /// When everything was asked to stop for the last time.
    pub(super) detaching: Option<Instant>,
    /// Warnings that have been given.
    pub(super) warned: IssuedWarnings,
}

#[derive(Default)]
pub(super) struct IssuedWarnings {
    pub(super) unknown: bool,
    pub(super) jumps: bool,
    pub(super) segment: bool,
}

impl<'a> TracingEngine<'a> {
    pub(super) fn new(
        shared: &'a TracerState,
        truth: TruthOutput,
        root: pid_t,
        breakpoints: bool,
    ) -> TracingEngine<'a> {
        TracingEngine {
            shared,
            truth,
            tasks: HashMap::new(),
            early: HashMap::new(),
            newborn: Vec::new(),
            traps: Vec::new(),
            clock: 0,
            window: RecordingWindow::new(None, None),
            root,
            status: 0,
            affinity: None,
            breakpoints,
            killing: false,
            control_watcher: None,
            detaching: None,
            warned: IssuedWarnings::default(),
        }
    }
}

/// The phase between the edges.
pub(super) const PHASE_TRACED: usize = 1;

/// The edges, and the number of edges passed.
#[derive(Clone, Debug)]
pub(super) struct RecordingWindow {
    pub(super) edges: [Option<WindowEdge>; 2],
    pub(super) phase: usize,
    /// Retired instructions at the start edge.
    pub(super) started: u64,
}

impl RecordingWindow {
    pub(super) fn new(start: Option<WindowEdge>, stop: Option<WindowEdge>) -> RecordingWindow {
        RecordingWindow {
            phase: usize::from(start.is_none()),
            edges: [start, stop],
            started: 0,
        }
    }

    /// Returns whether threads start untraced.
    pub(super) fn starts_untraced(&self) -> bool {
        self.edges[0].is_some()
    }

    pub(super) fn has_edges(&self) -> bool {
        self.edges != [None, None]
    }
}

impl TracingEngine<'_> {
    /// Traces from the first instruction of the first process to the end of the last one.
    pub(super) fn run_loop(&mut self) {
        let root = self.root;
        let mut task = TracedTask::new(root, root, Rc::new(RefCell::new(AddressSpace::default())));
        self.announce_thread(&mut task, 0, 0, false);
        let result = self.begin_first_program(&mut task);
        self.tasks.insert(root, task);
        self.handle_error(root, result);
        loop {
            if self.shared.are_processes_killed() {
                self.kill_everything();
            }
            match ptrace::wait_for_stop(-1) {
                Ok(Some((tid, status))) => self.on_status(tid, status),
                Ok(None) => break,
                Err(error) => {
                    self.emit_warning(root, &format!("waitpid: {error}; the trace ends here"));
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
        self.write_truth(root, TruthOutput::finish_file);
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
                self.emit_warning(tid, &format!("ptrace: {error}; {end}"));
                self.shared.kill_all_processes();
            }
        }
    }

    fn on_stop(&mut self, task: &mut TracedTask, status: StopStatus) -> io::Result<()> {
        if task.breakpoint_set {
            self.clear_breakpoint(task)?;
        }
        hide_blocked_sigtrap(task)?;
        if matches!(task.position, TaskPosition::Attaching) {
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
                if matches!(task.position, TaskPosition::New) {
                    self.begin_thread(task)?;
                }
                if self.detaching.is_some() {
                    self.ignore_sigtrap_again(task)?;
                }
                self.resume_task(task, 0)
            }
            StopStatus::Event(libc::PTRACE_EVENT_STOP, signal) => {
                self.leave_context(task, signal);
                match self.detaching {
                    Some(_) => {
                        self.ignore_sigtrap_again(task)?;
                        self.detach_task(task, 0)
                    }
                    None => ptrace::resume_thread(task.tid, ResumeMode::Listen, 0),
                }
            }
            StopStatus::Signal(libc::SIGTRAP) if !task.traced && is_ignored_sigtrap_lost(task) => {
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
        self.shared.kill_all_processes();
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

impl TracingEngine<'_> {
    /// Resumes the thread and delivers `signal` unless 0.
    pub(super) fn resume_task(&mut self, task: &mut TracedTask, signal: i32) -> io::Result<()> {
        if self.detaching.is_some()
            && !matches!(task.position, TaskPosition::Exiting if task.traced)
        {
            if !is_ignored_sigtrap_lost(task) {
                return self.detach_task(task, signal);
            }
            if signal == 0 && ptrace::is_step_trap_pending(task.tid)? {
                // First the trap of its step: a thread that has been asked to stop does so before any trap, again and
                // again.
                return ptrace::resume_thread(task.tid, ResumeMode::Free, 0);
            }
            // At its next stop the ignoring can be restored.
            ptrace::interrupt_thread(task.tid)?;
        }
        // The end of a current call may need corrections.
        let in_user = matches!(task.position, TaskPosition::User(_));
        if task.traced && in_user && self.shared.are_threads_released() {
            self.release_task(task);
        }
        if task.traced && task.trap_blocked && signal == 0 {
            self.expose_blocked_sigtrap(task)?;
        }
        let caught = signal != 0 && task.delivered.is_some_and(|injected| injected.caught);
        let how = match &task.position {
            _ if !task.traced => ResumeMode::Free,
            TaskPosition::Exiting => ResumeMode::Free,
            TaskPosition::New | TaskPosition::Attaching => ResumeMode::Step,
            // A step shows the first instruction of a handler; the entry of a repeated call must be seen.
            TaskPosition::Kernel(_) | TaskPosition::Restart(_) if caught => ResumeMode::Step,
            TaskPosition::Kernel(_) | TaskPosition::Restart(_) => ResumeMode::UntilSyscall,
            TaskPosition::User(next) if !caught && instruction_enters_kernel(next) => {
                ResumeMode::UntilSyscall
            }
            TaskPosition::User(next) if signal == 0 => {
                let next = next.clone();
                self.choose_resume_mode(task, &next)
            }
            TaskPosition::User(_) => ResumeMode::Step,
        };
        ptrace::resume_thread(task.tid, how, signal)
    }
}

/// Returns whether the instruction enters the kernel. A step over it would leave the trap flag in R11, and show the
/// call only at its end.
fn instruction_enters_kernel(next: &NextInstruction) -> bool {
    match next.instruction.map(|instruction| instruction.class) {
        Some(InstructionClass::Syscall) => true,
        Some(InstructionClass::SoftwareInterrupt) => next.vector == 0x80,
        _ => false,
    }
}

impl TracingEngine<'_> {
    pub(super) fn emit_record(&mut self, record: Record) {
        self.emit_with_blob(record, None);
    }

    pub(super) fn emit_with_blob(&mut self, mut record: Record, blob: Option<Vec<u8>>) {
        record.clock = self.clock;
        if !self.shared.stream.push_record(record, blob) {
            self.shared.kill_all_processes();
        }
    }

    pub(super) fn emit_warning(&mut self, tid: libc::pid_t, text: &str) {
        let record = Record::new(EventKind::Warning, tid as u32);
        self.emit_with_blob(record, Some(text.as_bytes().to_vec()));
    }

    /// Writes to the truth file, and warns if that fails.
    pub(super) fn write_truth(
        &mut self,
        tid: pid_t,
        write: impl FnOnce(&mut TruthOutput) -> Option<String>,
    ) {
        if let Some(text) = write(&mut self.truth) {
            self.emit_warning(tid, &text);
        }
    }

    /// Ends the thread's run in the truth file.
    pub(super) fn end_run(&mut self, task: &mut TracedTask) {
        self.write_truth(task.tid, |truth| {
            truth.end_run(task.tid_as_u32(), &mut task.run)
        });
    }

    /// Brings user code into context at `next`, unless it is.
    pub(super) fn enter_context(&mut self, task: &mut TracedTask, next: &NextInstruction) {
        let Some(reason) = task.reentry.take() else {
            return;
        };
        if std::mem::take(&mut task.code_changed) {
            self.emit_record(Record {
                ip: next.ip,
                extra: task.retired,
                ..Record::new(EventKind::Switch, task.tid_as_u32())
            });
        }
        self.emit_record(Record {
            flags: reason as u8 | if next.narrow { flag::RESUME_32_BIT } else { 0 },
            target: next.ip,
            extra: task.retired,
            ..Record::new(EventKind::Resume, task.tid_as_u32())
        });
    }

    /// Takes the thread out of context before its next instruction, for a signal.
    pub(super) fn leave_context(&mut self, task: &mut TracedTask, signal: i32) {
        let Some(ip) = task.next_instruction().map(|next| next.ip) else {
            return;
        };
        if task.reentry.is_some() {
            return;
        }
        self.end_run(task);
        self.emit_record(Record {
            ip,
            extra: signal as u64,
            ..Record::new(EventKind::Interrupt, task.tid_as_u32())
        });
        task.reentry = Some(ResumeReason::Other);
    }

    /// Switches the thread out and in if code has changed since its last instruction.
    pub(super) fn refresh_context(&mut self, task: &mut TracedTask) {
        if task.reentry.is_some() || !task.code_changed {
            return;
        }
        let TaskPosition::User(next) = &task.position else {
            return;
        };
        let ip = next.ip;
        task.code_changed = false;
        // Address filters check this IP, as they check the target of a branch.
        self.end_run(task);
        self.emit_record(Record {
            ip,
            flags: flag::SWITCH_IN_USER,
            extra: task.retired,
            ..Record::new(EventKind::Switch, task.tid_as_u32())
        });
    }

    /// Writes changes of code in the thread's address space, and marks all threads in it.
    pub(super) fn report_changes(&mut self, task: &mut TracedTask, changes: Vec<CodeChange>) {
        if changes.is_empty() {
            return;
        }
        for change in changes {
            match change {
                CodeChange::Mapped(mapping, contents) => {
                    let mut blob = mapping.to_blob();
                    let mut record = Record {
                        ip: mapping.start,
                        target: mapping.end - mapping.start,
                        ..Record::new(EventKind::Mmap, task.tid_as_u32())
                    };
                    let Some(contents) = contents else {
                        self.emit_with_blob(record, Some(blob));
                        continue;
                    };
                    record.flags = flag::MMAP_WITH_CONTENTS;
                    blob.extend_from_slice(&contents.head);
                    self.emit_with_blob(record, Some(blob));
                    let record = Record {
                        ip: mapping.start,
                        flags: flag::CODE_OF_MAPPING,
                        ..Record::new(EventKind::Code, task.tid_as_u32())
                    };
                    self.emit_with_blob(record, Some(contents.code));
                }
                CodeChange::Code(address, bytes) => self.emit_with_blob(
                    Record {
                        ip: address,
                        ..Record::new(EventKind::Code, task.tid_as_u32())
                    },
                    Some(bytes),
                ),
            }
        }
        task.code_changed = true;
        for other in self.tasks.values_mut() {
            if std::rc::Rc::ptr_eq(&other.space, &task.space) {
                other.code_changed = true;
            }
        }
    }
}

impl TracingEngine<'_> {
    /// Acts at edges before the thread retires the instruction at `ip`.
    pub(super) fn check_window_edges(&mut self, task: &mut TracedTask, ip: u64) {
        if !self.window.has_edges() {
            return;
        }
        let due = match self.window.edges.get(self.window.phase) {
            Some(Some(WindowEdge::Code { path, offset, .. })) => {
                task.space.borrow().address_of_file_offset(path, *offset) == Some(ip)
            }
            Some(Some(WindowEdge::After(count))) => self.clock >= *count,
            Some(Some(WindowEdge::AfterStart(count))) => self.clock - self.window.started >= *count,
            _ => false,
        };
        if due {
            self.window.phase += 1;
            if self.window.phase == PHASE_TRACED {
                self.window.started = self.clock;
            }
        }
        let on = self.window.phase == PHASE_TRACED;
        if on == task.tracing {
            return;
        }
        task.tracing = on;
        self.end_run(task);
        self.write_truth(task.tid, |truth| truth.write_tracing(task.tid_as_u32(), on));
        self.emit_record(Record {
            ip,
            flags: flag::SWITCH_IN_USER
                | if on {
                    flag::SWITCH_TURNS_ON
                } else {
                    flag::SWITCH_TURNS_OFF
                },
            extra: task.retired,
            ..Record::new(EventKind::Switch, task.tid_as_u32())
        });
    }
}
