//! Restores the ignoring of SIGTRAP when the tracer detaches.
//!
//! The kernel drops it at the first step, and only the process itself can set it. One of its threads therefore makes
//! the call, at a stop that comes before signal delivery, with all signals blocked; then its registers are restored,
//! including the call that the stop interrupted. Each thread checks: a step of another one may drop it again.

use std::io;

use crate::address_space::executable_mappings;
use crate::engine::engine_state::Engine;
use crate::ptrace::{self, trap, Registers, ResumeMode, StopStatus};
use crate::task::Task;
use crate::{procfs, remote_memory};

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
pub(super) fn is_ignore_lost(task: &Task) -> bool {
    task.trap_ignored.get() && !procfs::ignores_signal(task.tid, libc::SIGTRAP)
}

impl Engine<'_> {
    /// Handles a SIGTRAP of an untraced thread: the kernel does not know that it is ignored.
    pub(super) fn on_untraced_sigtrap(&mut self, task: &mut Task) -> io::Result<()> {
        match ptrace::signal_code(task.tid)? {
            // An instruction caused it, which ends a process that ignores it.
            trap::KERNEL | trap::BREAKPOINT => self.resume_task(task, libc::SIGTRAP),
            _ => self.resume_task(task, 0),
        }
    }

    /// Restores the ignoring in a thread that has been told to stop and will be detached.
    pub(super) fn ignore_again(&mut self, task: &mut Task) -> io::Result<()> {
        if !is_ignore_lost(task) || ptrace::trap_is_pending(task.tid)? {
            return Ok(());
        }
        let text = match self.inject_ignore_call(task) {
            Ok(()) if !is_ignore_lost(task) => return Ok(()),
            Ok(()) => "its call failed".to_owned(),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Err(error),
            Err(error) => error.to_string(),
        };
        task.trap_ignored.set(false);
        self.warn(
            task.tid,
            &format!(
                "process {} ignored SIGTRAP, and does not any more: steps undo that, and it could not be set \
                 again ({text})",
                task.pid
            ),
        );
        Ok(())
    }

    fn inject_ignore_call(&mut self, task: &Task) -> io::Result<()> {
        let tid = task.tid;
        let registers = ptrace::read_registers(tid)?;
        if !ptrace::is_64_bit(&registers) {
            return Err(io::Error::other("it runs 32-bit code"));
        }
        if procfs::seccomp_and_tracer(tid).0 {
            return Err(io::Error::other("a seccomp filter looks at its calls"));
        }
        let call = find_syscall(tid)
            .ok_or_else(|| io::Error::other("its code has no SYSCALL that can be seen"))?;
        let place = registers.rsp.wrapping_sub(BELOW_STACK) & !15;
        let mut kept = [0; 32];
        if remote_memory::read_bytes(tid, place, &mut kept) != kept.len() {
            return Err(io::Error::other("it has no stack that can be read"));
        }
        let mut action = [0; 32];
        for (bytes, word) in action.chunks_exact_mut(8).zip(ACTION) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        remote_memory::write_bytes(tid, place, &action)?;
        let mask = ptrace::signal_mask(tid)?;
        // If blocked, the SIGSYS of a refused call would lose its handler.
        ptrace::set_signal_mask(tid, !(1 << (libc::SIGSYS - 1)))?;
        ptrace::write_registers(
            tid,
            &Registers {
                rip: call,
                rax: libc::SYS_rt_sigaction as u64,
                orig_rax: u64::MAX,
                rdi: libc::SIGTRAP as u64,
                rsi: place,
                rdx: 0,
                r10: 8,
                ..registers
            },
        )?;
        let mut signals = Vec::new();
        let at_call = |status| status == StopStatus::Syscall;
        let made = self.resume_until(tid, ResumeMode::UntilSyscall, at_call, &mut signals)?
            && self.resume_until(tid, ResumeMode::UntilSyscall, at_call, &mut signals)?;
        remote_memory::write_bytes(tid, place, &kept)?;
        ptrace::write_registers(tid, &registers)?;
        ptrace::set_signal_mask(tid, mask)?;
        // At a stop before signal delivery, the kernel itself repeats an interrupted call or fails it.
        ptrace::interrupt_thread(tid)?;
        let at_stop = |status| matches!(status, StopStatus::Event(libc::PTRACE_EVENT_STOP, _));
        self.resume_until(tid, ResumeMode::Free, at_stop, &mut signals)?;
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
    fn resume_until(
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
                StopStatus::Signal(libc::SIGSYS) if ptrace::signal_code(tid)? > 0 => {
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
fn find_syscall(tid: libc::pid_t) -> Option<u64> {
    let mut mappings = executable_mappings(tid)?;
    mappings.sort_by_key(|mapping| mapping.path != b"[vdso]");
    mappings.iter().find_map(|mapping| {
        let mut code = vec![0; (mapping.end - mapping.start).min(LOOKED_AT) as usize];
        let size = remote_memory::read_bytes(tid, mapping.start, &mut code);
        let at = code[..size].windows(2).position(|two| two == SYSCALL)?;
        Some(mapping.start + at as u64)
    })
}
