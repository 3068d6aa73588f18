//! Threads and processes: the first program, which is traced from its first instruction; start, exec and end.

use std::cell::RefCell;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::sync::mpsc::SyncSender;

use libc::pid_t;
use rtit_events::{flag, EventKind, Record, ResumeReason};

use crate::address_space::AddressSpace;
use crate::engine::event_loop::{RecordingWindow, TracingEngine};
use crate::engine::instruction_steps;
use crate::event_stream::TracerState;
use crate::program_start::{block_all_signals, LaunchPlan, WaitingChild};
use crate::ptrace::{self, ResumeMode, StopStatus};
use crate::task::{SystemCall, TaskPosition, TracedTask};
use crate::tracer::TraceOptions;
use crate::truth_output::TruthOutput;
use crate::{procfs, Error};

/// The life of the tracing thread. `started` gets the first process, or an error.
pub(crate) fn trace_program(
    shared: &TracerState,
    plan: &LaunchPlan,
    truth: TruthOutput,
    options: &TraceOptions,
    started: &SyncSender<Result<pid_t, Error>>,
) {
    block_all_signals();
    let affinity = if options.pin { pin_to_one_cpu() } else { None };
    let root = match launch_program(plan) {
        Ok(root) => root,
        Err(error) => {
            // The caller may be gone.
            let _ = started.send(Err(error));
            return;
        }
    };
    shared.add_process(root);
    let mut engine = TracingEngine {
        window: RecordingWindow::new(options.start.clone(), options.stop.clone()),
        affinity,
        ..TracingEngine::new(
            shared,
            truth,
            root,
            instruction_steps::do_hardware_breakpoints_work(),
        )
    };
    let _ = started.send(Ok(root));
    engine.run_loop();
    engine.finish_trace();
}

/// Pins this thread, and so the program, to the current CPU; returns the CPUs that it had.
fn pin_to_one_cpu() -> Option<Vec<u8>> {
    let all = ptrace::read_affinity().ok()?;
    // SAFETY: no arguments.
    let cpu = usize::try_from(unsafe { libc::sched_getcpu() }).ok()?;
    let mut one = vec![0u8; all.len()];
    *one.get_mut(cpu / 8)? = 1 << (cpu % 8);
    ptrace::set_affinity(0, &one).ok()?;
    Some(all)
}

/// Forks the program and follows it up to its exec.
fn launch_program(plan: &LaunchPlan) -> Result<pid_t, Error> {
    let child = plan.fork_child()?;
    if let Err(error) = child.seize_child() {
        // It waits at the gate, which never opens: it ends by itself.
        let pid = child.pid;
        drop(child);
        let _ = ptrace::wait_for_stop(pid);
        return Err(error);
    }
    child.let_child_exec()?;
    follow_child_to_exec(child, plan)
}

fn follow_child_to_exec(child: WaitingChild, plan: &LaunchPlan) -> Result<pid_t, Error> {
    let pid = child.pid;
    loop {
        let stop = ptrace::wait_for_stop(pid).map_err(Error::from_failed_call("waitpid"))?;
        let (go, signal) = match stop {
            None => break,
            Some((_, StopStatus::Ended(_))) => break,
            Some((_, StopStatus::Event(libc::PTRACE_EVENT_EXEC, _))) => return Ok(pid),
            Some((_, StopStatus::Event(libc::PTRACE_EVENT_STOP, signal)))
                if signal != libc::SIGTRAP =>
            {
                (ResumeMode::Listen, 0)
            }
            Some((_, StopStatus::Signal(signal))) => (ResumeMode::Free, signal),
            Some((_, StopStatus::Event(..) | StopStatus::Syscall)) => (ResumeMode::Free, 0),
        };
        // If it has just been killed, the next wait reports that.
        let _ = ptrace::resume_thread(pid, go, signal);
    }
    Err(child.launch_error(plan).unwrap_or_else(|| {
        Error::from_failed_call("execve")(io::Error::other(
            "the program was killed before it began",
        ))
    }))
}

impl TracingEngine<'_> {
    pub(super) fn announce_thread(
        &mut self,
        task: &mut TracedTask,
        parent: pid_t,
        parent_process: pid_t,
        shares_memory: bool,
    ) {
        self.write_truth(task.tid, |truth| {
            truth.begin_thread(task.tid_as_u32(), task.pid as u32)
        });
        let waits = self.window.starts_untraced();
        task.tracing = !waits;
        if waits {
            self.write_truth(task.tid, |truth| {
                truth.write_tracing(task.tid_as_u32(), false)
            });
        }
        let shares = if shares_memory {
            flag::THREAD_SHARES_MEMORY
        } else {
            0
        };
        self.emit_record(Record {
            flags: shares | if waits { flag::THREAD_UNTRACED } else { 0 },
            ip: task.pid as u64,
            target: parent as u64,
            extra: parent_process as u64,
            ..Record::new(EventKind::Thread, task.tid_as_u32())
        });
    }

    /// Starts the trace of the first program at its exec.
    pub(super) fn begin_first_program(&mut self, task: &mut TracedTask) -> io::Result<()> {
        self.begin_program(task)?;
        task.trap_ignored
            .set(procfs::ignores_signal(task.tid, libc::SIGTRAP));
        // No earlier code matters.
        task.code_changed = false;
        self.resume_task(task, 0)
    }

    /// Handles the first stop of a new thread, in user code.
    pub(super) fn begin_thread(&mut self, task: &mut TracedTask) -> io::Result<()> {
        if task.traced {
            let registers = ptrace::read_registers(task.tid)?;
            self.set_next_instruction(task, &registers);
        }
        Ok(())
    }

    /// Handles the report of a new thread by its parent.
    pub(super) fn on_new_thread(&mut self, task: &mut TracedTask) -> io::Result<()> {
        let tid = ptrace::event_stop_message(task.tid)? as pid_t;
        task.starting_thread = false;
        self.adopt_thread(task, tid);
        Ok(())
    }

    fn adopt_thread(&mut self, parent: &TracedTask, tid: pid_t) {
        let flags = match &parent.position {
            TaskPosition::Kernel(call) => clone_flags(parent.tid, call),
            _ if procfs::process_id_of_thread(tid) == Some(parent.pid) => THREAD_FLAGS,
            _ => 0,
        };
        let pid = if flags & libc::CLONE_THREAD as u64 != 0 {
            parent.pid
        } else {
            tid
        };
        let shares_memory = flags & libc::CLONE_VM as u64 != 0;
        let mut task = parent.new_child_task(tid, pid, shares_memory);
        if pid == tid {
            self.shared.add_process(pid);
        }
        self.announce_thread(&mut task, parent.tid, parent.pid, shares_memory);
        self.tasks.insert(tid, task);
        self.newborn.push(tid);
    }

    /// Handles an exec: the process runs a new program, and its other threads are gone.
    pub(super) fn on_exec(&mut self, task: &mut TracedTask) -> io::Result<()> {
        let former = ptrace::event_stop_message(task.tid)? as pid_t;
        if former != task.tid {
            if let Some(mut caller) = self.tasks.remove(&former) {
                // The calling thread continues under the number of the process's first thread.
                task.position = caller.position.clone();
                task.chose_affinity = caller.chose_affinity;
                task.trap_blocked = caller.trap_blocked;
                task.deferred = caller.deferred;
                task.trap = caller.trap;
                task.traced = caller.traced;
                self.end_task_thread(&mut caller, 0);
            }
        }
        self.begin_program(task)?;
        self.resume_task(task, 0)
    }

    fn begin_program(&mut self, task: &mut TracedTask) -> io::Result<()> {
        let registers = ptrace::read_registers(task.tid)?;
        task.space = Rc::new(RefCell::new(AddressSpace::default()));
        self.unshare_sigtrap_action(task);
        let path = procfs::executable_path(task.tid).unwrap_or_default();
        self.emit_with_blob(
            Record {
                ip: task.pid as u64,
                ..Record::new(EventKind::Exec, task.tid_as_u32())
            },
            Some(path.clone()),
        );
        self.write_thread_name(task, true);
        self.warn_of_lost_privilege(task, &path);
        task.reentry = Some(ResumeReason::Exec);
        task.delivered = None;
        if !ptrace::runs_64_bit_code(&registers) {
            self.release_with_warning(task, "it is a 32-bit program");
            return Ok(());
        }
        task.traced = true;
        if self.shared.are_threads_released() {
            self.release_task(task);
            return Ok(());
        }
        let changes = task.space.borrow_mut().reread_mappings(task.tid);
        self.report_changes(task, changes);
        task.code_changed = true;
        let call = match std::mem::replace(&mut task.position, TaskPosition::Exiting) {
            TaskPosition::Kernel(call) => Some(call),
            _ => None,
        };
        task.position = TaskPosition::Kernel(SystemCall {
            exec: true,
            ..call.unwrap_or_default()
        });
        Ok(())
    }

    /// Stops tracing the thread, with a warning.
    pub(super) fn release_with_warning(&mut self, task: &mut TracedTask, why: &str) {
        let name = procfs::executable_path(task.tid).or_else(|| procfs::thread_name(task.tid));
        let name = String::from_utf8_lossy(name.as_deref().unwrap_or_default()).into_owned();
        self.emit_warning(
            task.tid,
            &format!("process {} ({name}) runs untraced: {why}", task.pid),
        );
        self.release_task(task);
    }

    /// Lets the thread run untraced. Its end is still reported.
    pub(super) fn release_task(&mut self, task: &mut TracedTask) {
        self.leave_context(task, 0);
        task.traced = false;
        task.position = TaskPosition::Exiting;
        // It may have been killed.
        let _ = self.restore_hidden_signals(task);
        if let (Some(all), false) = (&self.affinity, task.chose_affinity) {
            // An untraced thread need not share the tracer's CPU; if it may not move, it stays.
            let _ = ptrace::set_affinity(task.tid, all);
        }
    }

    fn warn_of_lost_privilege(&mut self, task: &TracedTask, path: &[u8]) {
        let file = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
        let (Ok(metadata), Some((user, group))) =
            (file.metadata(), procfs::effective_ids(task.tid))
        else {
            return;
        };
        let mode = metadata.mode();
        let user_lost = mode & libc::S_ISUID != 0 && metadata.uid() != user;
        let group_lost = mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP
            && metadata.gid() != group;
        if user_lost || group_lost {
            let what = if user_lost {
                "set-user-ID"
            } else {
                "set-group-ID"
            };
            self.emit_warning(
                task.tid,
                &format!(
                    "{} is {what} and runs without that privilege: the tracer has none",
                    file.display()
                ),
            );
        }
    }

    /// Handles a thread that is about to exit.
    pub(super) fn on_exit_stop(&mut self, task: &mut TracedTask) -> io::Result<()> {
        let signal = task
            .delivered
            .map_or(libc::SIGKILL, |injected| injected.signal);
        self.leave_context(task, signal);
        if task.traced {
            task.position = TaskPosition::Exiting;
        }
        ptrace::resume_thread(task.tid, ResumeMode::Free, 0)
    }

    /// Handles the end of a thread.
    pub(super) fn on_ended(&mut self, mut task: TracedTask, raw: i32) {
        self.leave_context(&mut task, libc::SIGKILL);
        if task.tid == self.root {
            self.status = raw;
        }
        if task.tid == task.pid {
            self.shared.remove_process(task.pid);
            self.traps.retain(|&(of, _)| of != task.pid);
        }
        let took = task
            .delivered
            .is_some_and(|injected| raw & 0x7f == injected.signal);
        self.end_thread_trace(
            &mut task,
            raw,
            if took { flag::EXIT_TOOK_SIGNAL } else { 0 },
        );
        // A thread that is killed while it starts another one never reports it.
        if task.starting_thread && !self.tasks.values().any(|other| other.starting_thread) {
            let orphans: Vec<pid_t> = self.early.keys().copied().collect();
            for tid in orphans {
                self.adopt_thread(&task, tid);
            }
            self.handle_early_stops();
        }
    }

    fn end_task_thread(&mut self, task: &mut TracedTask, raw: i32) {
        self.end_thread_trace(task, raw, 0);
    }

    /// Ends the thread's trace; `flags` are those of [`EventKind::Exit`].
    pub(super) fn end_thread_trace(&mut self, task: &mut TracedTask, raw: i32, flags: u8) {
        self.end_run(task);
        self.write_truth(task.tid, |truth| {
            truth.end_thread(task.tid_as_u32(), raw as u32)
        });
        self.emit_record(Record {
            flags,
            ip: u64::from(raw as u32),
            extra: task.retired,
            ..Record::new(EventKind::Exit, task.tid_as_u32())
        });
    }
}

const THREAD_FLAGS: u64 = (libc::CLONE_THREAD | libc::CLONE_VM) as u64;

/// Returns whether the call starts a thread or process.
pub(super) fn starts_thread(call: &SystemCall) -> bool {
    let calls: &[u64] = if call.compat { &COMPAT_CALLS } else { &CALLS };
    calls.contains(&call.number)
}

/// clone, fork, vfork, clone3, by SYSCALL and by INT 80H.
const CALLS: [u64; 4] = [56, 57, 58, 435];
const COMPAT_CALLS: [u64; 4] = [120, 2, 190, 435];

fn clone_flags(tid: pid_t, call: &SystemCall) -> u64 {
    let calls = if call.compat { COMPAT_CALLS } else { CALLS };
    match calls.iter().position(|&number| number == call.number) {
        Some(0) => call.arguments[0],
        Some(2) => (libc::CLONE_VM | libc::CLONE_VFORK) as u64,
        // The flags are the first field of the structure.
        Some(3) => ptrace::read_u64(tid, call.arguments[0]).unwrap_or(0),
        _ => 0,
    }
}
