//! System calls: their entry and exit, the calls that matter to a trace, and calls that a stop interrupts.

use std::io;

use libc::pid_t;
use rtit_events::{flag, EventKind, Record, ResumeReason};

use crate::engine::event_loop::TracingEngine;
use crate::engine::threads_processes::starts_thread;
use crate::procfs;
use crate::ptrace::{self, Registers};
use crate::task::{NextInstruction, SystemCall, TaskPosition, TracedTask};

/// The x32 ABI sets this bit in the number of a call.
const X32: u64 = 0x4000_0000;

impl TracingEngine<'_> {
    /// Handles the entry or exit of a system call.
    pub(super) fn on_syscall_stop(&mut self, task: &mut TracedTask) -> io::Result<()> {
        let mut registers = ptrace::read_registers(task.tid)?;
        task.delivered = None;
        match task.position.clone() {
            TaskPosition::Kernel(call) => {
                if !call.compat
                    && failed_by_tracer_stop(&registers)
                    && (self.detaching.is_some() || only_unseen_signals_pending(task))
                {
                    restart_interrupted_syscall(task.tid, &mut registers)?;
                }
                self.on_syscall_return(task, &call, &registers)?;
            }
            TaskPosition::User(next) => {
                self.on_syscall_entry(task, next, registers)?;
                if let TaskPosition::Kernel(call) = task.position.clone() {
                    self.offer_sigtrap_to_call(task, &call)?;
                }
                let signal = self.take_deferred_signal_for_call(task);
                return self.resume_task(task, signal);
            }
            TaskPosition::Restart(call) => {
                self.on_syscall_restart(task, &call.next);
                self.offer_sigtrap_to_call(task, &call)?;
                task.position = TaskPosition::Kernel(call);
            }
            TaskPosition::New | TaskPosition::Attaching | TaskPosition::Exiting => {}
        }
        self.resume_task(task, 0)
    }

    fn on_syscall_entry(
        &mut self,
        task: &mut TracedTask,
        next: NextInstruction,
        mut registers: Registers,
    ) -> io::Result<()> {
        let compat = next.vector == 0x80;
        if compat {
            self.write_software_interrupt(task, &next);
        } else {
            // The shadow of MOV SS ends at a SYSCALL: instructions before it have retired.
            self.retire_instructions_up_to(task, registers.rip);
        }
        task.reentry = Some(ResumeReason::SystemCall);
        let call = syscall_from_registers(next, &registers);
        if !compat && call.number == libc::SYS_rseq as u64 && self.control_watcher.is_none() {
            // Each stop restarts a restartable sequence, so it would never end. A program that was attached to has been
            // promised the call: glibc aborts if a new thread does not get it.
            registers.orig_rax = u64::MAX;
            ptrace::write_registers(task.tid, &registers)?;
        }
        task.starting_thread = starts_thread(&call);
        task.position = TaskPosition::Kernel(call);
        Ok(())
    }

    /// Handles a call that the kernel repeats by going back to its instruction.
    pub(super) fn on_syscall_restart(&mut self, task: &mut TracedTask, next: &NextInstruction) {
        self.enter_context(task, next);
        if next.vector == 0x80 {
            self.write_software_interrupt(task, next);
        } else {
            task.position = TaskPosition::User(next.clone());
            self.retire_instructions_up_to(task, next.ip.wrapping_add(2));
        }
        task.reentry = Some(ResumeReason::SystemCall);
    }

    /// Handles the end of a call.
    pub(super) fn on_syscall_return(
        &mut self,
        task: &mut TracedTask,
        call: &SystemCall,
        registers: &Registers,
    ) -> io::Result<()> {
        let result = registers.rax as i64;
        self.check_sigtrap_taken_by_call(task, call, result)?;
        task.starting_thread = false;
        task.call_unblocks_trap &= was_syscall_interrupted(result);
        let sigreturn = libc::SYS_rt_sigreturn as u64;
        task.after_sigreturn = !call.compat && call.number == sigreturn;
        if !task.after_sigreturn && RESTARTS.contains(&result) {
            task.position = TaskPosition::Restart(call.clone());
            return Ok(());
        }
        if task.after_sigreturn {
            task.caught_up_at = task.retired + (task.retired - task.handler_start);
        }
        if call.exec || may_change_signal_mask(call) {
            self.update_blocked_sigtrap(task, call, result)?;
        }
        if call.exec {
            task.reentry = Some(ResumeReason::Exec);
        } else if !(-4095..0).contains(&result) {
            self.on_syscall_success(task, call, registers.rax)?;
        }
        self.set_next_instruction(task, registers);
        Ok(())
    }

    /// Hides from the kernel that SIGTRAP is blocked, and keeps what the program expects.
    fn update_blocked_sigtrap(
        &mut self,
        task: &mut TracedTask,
        call: &SystemCall,
        result: i64,
    ) -> io::Result<()> {
        let now = ptrace::unblock_sigtrap(task.tid)?;
        let before = task.trap_blocked;
        let set = |index: usize| {
            let address = call.arguments[index];
            (address != 0).then(|| ptrace::read_u64(task.tid, address))?
        };
        if call.compat || call.exec || call.number != libc::SYS_rt_sigprocmask as u64 {
            task.trap_blocked = now || call.exec && before;
            return Ok(());
        }
        if result != 0 {
            return Ok(());
        }
        let given = call.arguments[1] != 0;
        let unblocked = || set(1).is_some_and(|set| set & ptrace::SIGTRAP_BIT != 0);
        task.trap_blocked = match call.arguments[0] as i32 {
            libc::SIG_SETMASK if given => now,
            libc::SIG_UNBLOCK if given && unblocked() => false,
            _ => now || before,
        };
        if let (true, Some(old)) = (before, set(2)) {
            let old = (old | ptrace::SIGTRAP_BIT).to_le_bytes();
            ptrace::write_bytes(task.tid, call.arguments[2], &old)?;
        }
        Ok(())
    }

    /// Handles the effects of a call that matter to the trace or the tracer.
    fn on_syscall_success(
        &mut self,
        task: &mut TracedTask,
        call: &SystemCall,
        result: u64,
    ) -> io::Result<()> {
        if self.may_change_code(task, call, result) {
            let changes = task.space.borrow_mut().reread_mappings(task.tid);
            self.report_changes(task, changes);
        }
        if call.compat {
            return Ok(());
        }
        match call.number as i64 {
            libc::SYS_prctl if call.arguments[0] as i32 == libc::PR_SET_NAME => {
                self.write_thread_name(task, false);
            }
            libc::SYS_rt_sigaction if call.arguments[0] == libc::SIGTRAP as u64 => {
                self.note_sigtrap_action(task, call)?;
            }
            libc::SYS_sched_setaffinity => {
                let tid = call.arguments[0] as libc::pid_t;
                if tid == 0 || tid == task.tid {
                    task.chose_affinity = true;
                } else if let Some(other) = self.tasks.get_mut(&tid) {
                    other.chose_affinity = true;
                }
            }
            libc::SYS_sched_getaffinity => self.answer_sched_getaffinity(task, call, result)?,
            _ => {}
        }
        Ok(())
    }

    /// Returns whether executable mappings may have changed.
    fn may_change_code(&self, task: &TracedTask, call: &SystemCall, result: u64) -> bool {
        if call.compat {
            // Other numbers; seldom enough to check each time.
            return true;
        }
        let [start, length, third, ..] = call.arguments;
        let executable = third & libc::PROT_EXEC as u64 != 0;
        let over = |start: u64, length: u64| {
            task.space
                .borrow()
                .has_code_in_range(start, start.saturating_add(length))
        };
        match call.number as i64 {
            libc::SYS_mmap => executable || over(result, length),
            libc::SYS_mprotect | libc::SYS_pkey_mprotect => executable || over(start, length),
            libc::SYS_munmap => over(start, length),
            libc::SYS_mremap => over(start, length) || over(result, third),
            libc::SYS_shmat | libc::SYS_shmdt | libc::SYS_remap_file_pages => true,
            _ => false,
        }
    }

    /// Answers sched_getaffinity as without a tracer.
    fn answer_sched_getaffinity(
        &mut self,
        task: &TracedTask,
        call: &SystemCall,
        result: u64,
    ) -> io::Result<()> {
        let Some(mask) = &self.affinity else {
            return Ok(());
        };
        let tid = call.arguments[0] as libc::pid_t;
        let own = match tid {
            0 => task.chose_affinity,
            _ if tid == task.tid => task.chose_affinity,
            _ => self
                .tasks
                .get(&tid)
                .is_none_or(|other| other.chose_affinity),
        };
        if own {
            return Ok(());
        }
        let size = mask
            .len()
            .min(usize::try_from(result).unwrap_or(usize::MAX));
        ptrace::write_bytes(task.tid, call.arguments[2], &mask[..size])
    }

    pub(super) fn write_thread_name(&mut self, task: &TracedTask, by_exec: bool) {
        let Some(name) = procfs::thread_name(task.tid) else {
            return;
        };
        self.emit_with_blob(
            Record {
                flags: u8::from(by_exec) * flag::COMM_BY_EXEC,
                ip: task.pid as u64,
                ..Record::new(EventKind::Comm, task.tid_as_u32())
            },
            Some(name),
        );
    }
}

/// Returns the call in the registers; `next` is its instruction.
pub(super) fn syscall_from_registers(next: NextInstruction, r: &Registers) -> SystemCall {
    let compat = next.vector == 0x80;
    SystemCall {
        number: r.orig_rax & !X32,
        arguments: if compat {
            [r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp].map(|argument| argument & 0xffff_ffff)
        } else {
            [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]
        },
        compat,
        exec: false,
        next,
    }
}

/// Returns whether the call may block signals beyond its end.
fn may_change_signal_mask(call: &SystemCall) -> bool {
    // INT 80H has other numbers; seldom enough to check each time.
    call.compat
        || matches!(
            call.number as i64,
            libc::SYS_rt_sigprocmask | libc::SYS_rt_sigreturn
        )
}

/// Results that only a tracer sees: the call was interrupted and will be repeated, unless a handler runs.
pub(super) const RESTARTS: [i64; 4] = [-512, -513, -514, -516];

/// Calls that fail with EINTR when a thread is stopped in them, even without a signal; those from `read` on if their
/// socket has a time limit.
const NEVER_RESTARTED: [i64; 18] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
];
/// Makes the kernel repeat the call, or fail with EINTR if a handler runs.
const RESTART_WITHOUT_HANDLER: i64 = -514;
const EINTR: i64 = -(libc::EINTR as i64);

/// Returns whether a call with this result was interrupted.
pub(super) fn was_syscall_interrupted(result: i64) -> bool {
    result == EINTR || RESTARTS.contains(&result)
}

/// Returns whether the call has failed only because it was interrupted.
pub(super) fn failed_by_tracer_stop(registers: &Registers) -> bool {
    registers.rax as i64 == EINTR && NEVER_RESTARTED.contains(&(registers.orig_rax as i64))
}

/// Returns whether only signals have interrupted the thread that it would not notice without a tracer: the kernel wakes
/// a traced thread also for ignored signals.
pub(super) fn only_unseen_signals_pending(task: &TracedTask) -> bool {
    const fn signal_bit(signal: i32) -> u64 {
        1 << (signal - 1)
    }
    /// Their default action does nothing.
    const OF_NO_EFFECT: u64 = signal_bit(libc::SIGCHLD)
        | signal_bit(libc::SIGURG)
        | signal_bit(libc::SIGWINCH)
        | signal_bit(libc::SIGCONT);
    let Some(signals) = procfs::signal_sets(task.tid) else {
        return false;
    };
    let mut unseen = signals.ignored | OF_NO_EFFECT & !signals.caught;
    if task.trap_ignored.get() || task.trap_blocked && !task.call_unblocks_trap {
        unseen |= ptrace::SIGTRAP_BIT;
    }
    let came = signals.pending & !signals.blocked;
    came != 0 && came & !unseen == 0
}

/// Repeats a call that only a stop of the tracer has interrupted.
pub(super) fn restart_interrupted_syscall(tid: pid_t, registers: &mut Registers) -> io::Result<()> {
    registers.rax = RESTART_WITHOUT_HANDLER as u64;
    ptrace::write_registers(tid, registers)
}
