//! Attaches to running programs and detaches from them.
//!
//! To attach, all threads are stopped, and the trace gets what it must know of them before they continue. To detach,
//! each thread leaves at its next stop, in the state that it would have without a tracer.
//!
//! That includes the ignoring of SIGTRAP. The kernel drops it at the first step, and only the process itself can set
//! it. One of its threads therefore makes the call, at a stop that comes before signal delivery, with all signals
//! blocked; then its registers are restored, including the call that the stop interrupted. Each thread checks: a step
//! of another one may drop it again.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use libc::pid_t;
use rtit_events::{flag, ResumeReason};

use crate::address_space::{executable_mappings, AddressSpace};
use crate::engine::event_loop::TracingEngine;
use crate::engine::instruction_steps;
use crate::engine::syscalls::{
    failed_by_tracer_stop, restart_interrupted_syscall, syscall_from_registers, RESTARTS,
};
use crate::event_stream::TracerState;
use crate::ptrace::{self, trap, Registers, ResumeMode, StopStatus, WaitResult};
use crate::task::{TaskPosition, TracedTask};
use crate::truth_output::TruthOutput;
use crate::{error, procfs, Error};

/// The other threads continue after this time. One that the kernel keeps from stopping joins later.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The life of the tracing process. It detaches when its child `control_watcher` exits. `started` gets the result of
/// attaching.
pub(crate) fn trace_attached(
    shared: &TracerState,
    pids: &[pid_t],
    truth: TruthOutput,
    control_watcher: pid_t,
    started: impl FnOnce(Result<(), Error>),
) {
    let mut engine = TracingEngine {
        control_watcher: Some(control_watcher),
        ..TracingEngine::new(
            shared,
            truth,
            pids.first().copied().unwrap_or(0),
            instruction_steps::do_hardware_breakpoints_work(),
        )
    };
    match engine.attach_to_processes(pids) {
        Ok(()) => started(Ok(())),
        // The kernel detaches from those that were attached when this process ends; they have not continued yet.
        Err(error) => return started(Err(error)),
    }
    engine.handle_first_stops();
    engine.run_attached_loop();
    engine.finish_trace();
}

impl TracingEngine<'_> {
    /// Stops all threads and reports them.
    fn attach_to_processes(&mut self, pids: &[pid_t]) -> Result<(), Error> {
        let mut processes = Vec::new();
        for &pid in pids {
            processes.push((pid, seize_process(pid)?));
        }
        self.wait_for_stops(&processes);
        for (pid, tids) in processes {
            let has_ended = |tid: &pid_t| {
                let stops = self.early.get(tid).map(Vec::as_slice);
                matches!(stops, Some([StopStatus::Ended(_)]))
            };
            let (ended, tids): (Vec<_>, Vec<_>) = tids.into_iter().partition(has_ended);
            for tid in ended {
                self.early.remove(&tid);
            }
            if tids.is_empty() {
                return Err(process_ended_error(pid));
            }
            self.report_process(pid, &tids);
        }
        Ok(())
    }

    fn wait_for_stops(&mut self, processes: &[(pid_t, Vec<pid_t>)]) {
        let begin = Instant::now();
        let missing = |engine: &Self| {
            let mut tids = processes.iter().flat_map(|(_, tids)| tids);
            tids.any(|tid| !engine.early.contains_key(tid))
        };
        while missing(self) && begin.elapsed() < ATTACH_TIMEOUT {
            match ptrace::poll_for_stop() {
                Ok(WaitResult::Status(tid, _)) if Some(tid) == self.control_watcher => {
                    self.shared.kill_all_processes()
                }
                Ok(WaitResult::Status(tid, status)) => {
                    self.early.entry(tid).or_default().push(status)
                }
                Ok(WaitResult::NoneStopped) => std::thread::sleep(POLL_INTERVAL),
                Ok(WaitResult::NoTracees) | Err(_) => break,
            }
        }
    }

    /// Writes the threads of a process, their names and the mappings.
    fn report_process(&mut self, pid: pid_t, tids: &[pid_t]) {
        self.shared.add_process(pid);
        let space = Rc::new(RefCell::new(AddressSpace::default()));
        let ignored = Rc::new(Cell::new(procfs::ignores_signal(pid, libc::SIGTRAP)));
        let mut parent = 0;
        for &tid in tids {
            let mut task = TracedTask::new(tid, pid, space.clone());
            task.position = TaskPosition::Attaching;
            task.trap_ignored = Rc::clone(&ignored);
            let parent_process = if parent == 0 { 0 } else { pid };
            self.announce_thread(&mut task, parent, parent_process, parent != 0);
            self.write_thread_name(&task, false);
            if parent == 0 {
                let changes = space.borrow_mut().reread_mappings(tid);
                self.report_changes(&mut task, changes);
                parent = tid;
            }
            // No earlier code of this trace matters.
            task.code_changed = false;
            self.tasks.insert(tid, task);
        }
    }

    /// Handles the first stops.
    fn handle_first_stops(&mut self) {
        self.newborn = self.tasks.keys().copied().collect();
        self.handle_early_stops();
    }

    /// Finds out where a thread that ran untraced has stopped.
    pub(super) fn on_first_stop(
        &mut self,
        task: &mut TracedTask,
        status: StopStatus,
    ) -> io::Result<()> {
        let mut registers = ptrace::read_registers(task.tid)?;
        task.trap_blocked = ptrace::unblock_sigtrap(task.tid)?;
        let in_call = registers.orig_rax as i64 >= 0;
        task.reentry = Some(if in_call {
            ResumeReason::SystemCall
        } else {
            ResumeReason::Other
        });
        let starts_another = matches!(
            status,
            StopStatus::Event(
                libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK,
                _
            )
        );
        if in_call && failed_by_tracer_stop(&registers) {
            restart_interrupted_syscall(task.tid, &mut registers)?;
        }
        let restarts = RESTARTS.contains(&(registers.rax as i64));
        if !in_call || !(restarts || starts_another) {
            self.set_next_instruction(task, &registers);
            return Ok(());
        }
        // Both system call instructions have two bytes.
        let call = syscall_from_registers(
            self.fetch_next_instruction(task, registers.rip.wrapping_sub(2), &registers, 0),
            &registers,
        );
        task.position = if starts_another {
            TaskPosition::Kernel(call)
        } else {
            TaskPosition::Restart(call)
        };
        Ok(())
    }
}

fn process_ended_error(pid: pid_t) -> Error {
    Error::Attach {
        why: format!("process {pid} ended while it was being attached to"),
    }
}

/// Traces all threads of a process, the first one first, and stops them.
fn seize_process(pid: pid_t) -> Result<Vec<pid_t>, Error> {
    // SAFETY: no arguments.
    let tracer = unsafe { libc::gettid() };
    let mut known = HashSet::new();
    let mut seized = Vec::new();
    loop {
        let mut grew = false;
        for tid in procfs::thread_ids(pid) {
            if !known.insert(tid) {
                continue;
            }
            match ptrace::seize_running_thread(tid) {
                Ok(()) => {
                    seized.push(tid);
                    grew = true;
                    // If it has ended, that is reported.
                    let _ = ptrace::interrupt_thread(tid);
                }
                // It has ended, or a traced thread has just started it and will report it.
                Err(_) if procfs::has_ended(tid) => {}
                Err(_) if procfs::seccomp_filter_and_tracer(tid).1 == tracer as u32 => {}
                Err(error) => {
                    return Err(Error::Attach {
                        why: error::explain_attach_error(pid, &error),
                    });
                }
            }
        }
        if !grew {
            break;
        }
    }
    if seized.is_empty() {
        return Err(process_ended_error(pid));
    }
    Ok(seized)
}

/// A thread that the kernel keeps from stopping (waiting for the child of a vfork, or a disk) is left after this time.
const DETACH_TIMEOUT: Duration = Duration::from_secs(2);

impl TracingEngine<'_> {
    /// Follows attached threads until they have ended or been detached.
    pub(super) fn run_attached_loop(&mut self) {
        while !self.tasks.is_empty() {
            if self.shared.are_processes_killed() {
                self.interrupt_all_threads();
            }
            let found = match self.detaching {
                Some(since) => {
                    if self.may_stop_waiting_for_threads(since) {
                        break;
                    }
                    ptrace::poll_for_stop()
                }
                None => ptrace::wait_for_stop(-1).map(|found| match found {
                    Some((tid, status)) => WaitResult::Status(tid, status),
                    None => WaitResult::NoTracees,
                }),
            };
            match found {
                Ok(WaitResult::Status(tid, _)) if Some(tid) == self.control_watcher => {
                    self.interrupt_all_threads()
                }
                Ok(WaitResult::Status(tid, status)) => {
                    self.on_status(tid, status);
                    self.publish_counts();
                }
                Ok(WaitResult::NoneStopped) => std::thread::sleep(POLL_INTERVAL),
                Ok(WaitResult::NoTracees) | Err(_) => break,
            }
        }
        // The kernel detaches from the rest when this process ends; none of them is under a step.
        for (_, mut task) in std::mem::take(&mut self.tasks) {
            self.end_detached_thread(&mut task);
        }
    }

    /// Makes every thread stop once more.
    fn interrupt_all_threads(&mut self) {
        if self.detaching.is_some() {
            return;
        }
        self.detaching = Some(Instant::now());
        for &tid in self.tasks.keys() {
            // It may have ended.
            let _ = ptrace::interrupt_thread(tid);
        }
    }

    /// Returns whether waiting longer gains nothing. A thread under a step is always waited for.
    fn may_stop_waiting_for_threads(&self, since: Instant) -> bool {
        let mut left = self.tasks.values();
        let late = since.elapsed() >= DETACH_TIMEOUT;
        left.all(|task| match task.position {
            TaskPosition::Exiting => task.traced || late,
            TaskPosition::Kernel(_) | TaskPosition::Restart(_) | TaskPosition::Attaching => late,
            TaskPosition::New | TaskPosition::User(_) => false,
        })
    }

    /// Detaches from a stopped thread and delivers `signal` unless 0.
    pub(super) fn detach_task(&mut self, task: &mut TracedTask, signal: i32) -> io::Result<()> {
        if signal == 0 && ptrace::is_step_trap_pending(task.tid)? {
            // Its step has ended, and its next stop is for the trap, before it runs.
            return ptrace::resume_thread(task.tid, ResumeMode::Free, 0);
        }
        self.restore_hidden_signals(task)?;
        self.end_detached_thread(task);
        task.detached = true;
        if task.tid == task.pid {
            self.shared.remove_process(task.pid);
        }
        ptrace::detach_thread(task.tid, signal)
    }

    /// Tells the kernel what was hidden from it: that SIGTRAP is blocked, and delayed signals.
    pub(super) fn restore_hidden_signals(&mut self, task: &mut TracedTask) -> io::Result<()> {
        if std::mem::take(&mut task.trap_blocked) {
            ptrace::block_sigtrap(task.tid)?;
        }
        self.take_sigtrap_of_process(task);
        let trap = task.trap.take().map(|trap| trap.info);
        let held = task.deferred.take().map(|held| held.info);
        for info in trap.into_iter().chain(held) {
            ptrace::send_signal(task.pid, task.tid, info.si_signo)?;
        }
        Ok(())
    }

    fn end_detached_thread(&mut self, task: &mut TracedTask) {
        self.leave_context(task, 0);
        self.end_thread_trace(task, 0, flag::EXIT_DETACHED);
    }
}

/// Left alone below the stack pointer: the red zone, and what a handler of the program may have there.
const BELOW_STACK: u64 = 1024;
/// `struct sigaction` of the kernel: handler, flags, restorer, mask.
const ACTION: [u64; 4] = [libc::SIG_IGN as u64, 0, 0, 0];
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// How far into a mapping SYSCALL is searched for.
const LOOKED_AT: u64 = 1 << 20;
/// Stops for other reasons while one for ours is awaited.
const OTHER_STOPS: usize = 64;

/// Returns whether the kernel has dropped the ignoring of SIGTRAP.
pub(super) fn is_ignored_sigtrap_lost(task: &TracedTask) -> bool {
    task.trap_ignored.get() && !procfs::ignores_signal(task.tid, libc::SIGTRAP)
}

impl TracingEngine<'_> {
    /// Handles a SIGTRAP of an untraced thread: the kernel does not know that it is ignored.
    pub(super) fn on_untraced_sigtrap(&mut self, task: &mut TracedTask) -> io::Result<()> {
        match ptrace::signal_code_of_stop(task.tid)? {
            // An instruction caused it, which ends a process that ignores it.
            trap::KERNEL | trap::BREAKPOINT => self.resume_task(task, libc::SIGTRAP),
            _ => self.resume_task(task, 0),
        }
    }

    /// Restores the ignoring in a thread that has been asked to stop and will be detached.
    pub(super) fn ignore_sigtrap_again(&mut self, task: &mut TracedTask) -> io::Result<()> {
        if !is_ignored_sigtrap_lost(task) || ptrace::is_step_trap_pending(task.tid)? {
            return Ok(());
        }
        let text = match self.inject_sigaction_that_ignores_sigtrap(task) {
            Ok(()) if !is_ignored_sigtrap_lost(task) => return Ok(()),
            Ok(()) => "its call failed".to_owned(),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Err(error),
            Err(error) => error.to_string(),
        };
        task.trap_ignored.set(false);
        self.emit_warning(
            task.tid,
            &format!(
                "process {} ignored SIGTRAP, and does not any more: steps undo that, and it could not be set \
                 again ({text})",
                task.pid
            ),
        );
        Ok(())
    }

    fn inject_sigaction_that_ignores_sigtrap(&mut self, task: &TracedTask) -> io::Result<()> {
        let tid = task.tid;
        let registers = ptrace::read_registers(tid)?;
        if !ptrace::runs_64_bit_code(&registers) {
            return Err(io::Error::other("it runs 32-bit code"));
        }
        if procfs::seccomp_filter_and_tracer(tid).0 {
            return Err(io::Error::other("a seccomp filter looks at its calls"));
        }
        let call = find_syscall_instruction(tid)
            .ok_or_else(|| io::Error::other("its code has no SYSCALL that can be seen"))?;
        let action_at = registers.rsp.wrapping_sub(BELOW_STACK) & !15;
        let mut kept = [0; 32];
        if ptrace::read_bytes(tid, action_at, &mut kept) != kept.len() {
            return Err(io::Error::other("it has no stack that can be read"));
        }
        let mut action = [0; 32];
        for (bytes, word) in action.chunks_exact_mut(8).zip(ACTION) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        ptrace::write_bytes(tid, action_at, &action)?;
        let mask = ptrace::read_signal_mask(tid)?;
        // If blocked, the SIGSYS of a refused call would lose its handler.
        ptrace::set_signal_mask(tid, !(1 << (libc::SIGSYS - 1)))?;
        ptrace::write_registers(
            tid,
            &Registers {
                rip: call,
                rax: libc::SYS_rt_sigaction as u64,
                orig_rax: u64::MAX,
                rdi: libc::SIGTRAP as u64,
                rsi: action_at,
                rdx: 0,
                r10: 8,
                ..registers
            },
        )?;
        let mut signals = Vec::new();
        let at_call = |status| status == StopStatus::Syscall;
        let made = self.resume_until_stop(tid, ResumeMode::UntilSyscall, at_call, &mut signals)?
            && self.resume_until_stop(tid, ResumeMode::UntilSyscall, at_call, &mut signals)?;
        ptrace::write_bytes(tid, action_at, &kept)?;
        ptrace::write_registers(tid, &registers)?;
        ptrace::set_signal_mask(tid, mask)?;
        // At a stop before signal delivery, the kernel itself repeats an interrupted call or fails it.
        ptrace::interrupt_thread(tid)?;
        let at_stop = |status| matches!(status, StopStatus::Event(libc::PTRACE_EVENT_STOP, _));
        self.resume_until_stop(tid, ResumeMode::Free, at_stop, &mut signals)?;
        for signal in signals {
            ptrace::send_signal(task.pid, tid, signal)?;
        }
        match made {
            true => Ok(()),
            false => Err(io::Error::other(
                "its calls are refused, or too many stops came between",
            )),
        }
    }

    /// Resumes the thread until a stop of this kind; collects the signals before it.
    fn resume_until_stop(
        &mut self,
        tid: libc::pid_t,
        how: ResumeMode,
        wanted: impl Fn(StopStatus) -> bool,
        signals: &mut Vec<i32>,
    ) -> io::Result<bool> {
        for _ in 0..OTHER_STOPS {
            ptrace::resume_thread(tid, how, 0)?;
            let Some((_, status)) = ptrace::wait_for_stop(tid)? else {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            };
            match status {
                _ if wanted(status) => return Ok(true),
                // The kernel's own: the call is refused (PR_SET_SYSCALL_USER_DISPATCH), and the code after it must not
                // run.
                StopStatus::Signal(libc::SIGSYS) if ptrace::signal_code_of_stop(tid)? > 0 => {
                    return Ok(false)
                }
                StopStatus::Signal(signal) => signals.push(signal),
                StopStatus::Ended(_) | StopStatus::Event(libc::PTRACE_EVENT_EXIT, _) => {
                    // It was killed: the loop must see that.
                    self.early.entry(tid).or_default().push(status);
                    self.newborn.push(tid);
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                StopStatus::Event(..) | StopStatus::Syscall => {}
            }
        }
        Ok(false)
    }
}

/// Finds a SYSCALL instruction in the code of the process; the vDSO has one.
fn find_syscall_instruction(tid: libc::pid_t) -> Option<u64> {
    let mut mappings = executable_mappings(tid)?;
    mappings.sort_by_key(|mapping| mapping.path != b"[vdso]");
    mappings.iter().find_map(|mapping| {
        let mut code = vec![0; (mapping.end - mapping.start).min(LOOKED_AT) as usize];
        let size = ptrace::read_bytes(tid, mapping.start, &mut code);
        let at = code[..size].windows(2).position(|two| two == SYSCALL)?;
        Some(mapping.start + at as u64)
    })
}
